"""Verdicts as a JUnit report, which code hosts show beside a commit.

One ``testcase`` per gate. The form is what both schemas in use accept, that of Ant
(https://github.com/windyroad/JUnit-Schema) and that of Jenkins (xunit-plugin, junit-10.xsd): neither
allows properties in a test case, so the numbers of all gates stand before them, as ``gate.number``.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gates.verdict import Verdict

#: What XML 1.0 cannot hold, not even escaped (https://www.w3.org/TR/xml/#charsets).
_UNHOLDABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CLASS = "tenure.gates"


def of_verdicts(
    what: str, record: str | None, verdicts: Sequence[Verdict], at_s: float, took_s: float
) -> bytes:
    """The report of a check of ``what``, as a person named it.

    BLOCK and NOT_ENOUGH_SEEDS are failures of that type, with the gate's sentence. ``at_s`` is Unix
    time, ``took_s`` how long the whole check took: gates are not timed one by one.
    """
    numbers = {
        f"{item.gate}.{name}": value for item in verdicts for name, value in item.numbers.items()
    }
    cases = []
    for item in verdicts:
        case = _case(item.gate)
        if item.verdict != "PASS":
            _add(case, "failure", item.verdict, item.reason)
        cases.append(case)
    about = {"record": record or "none", **numbers}
    said = "\n".join(f"{item.gate}: {item.verdict}: {item.reason}" for item in verdicts)
    return _report(what, about, cases, at_s, took_s, said)


def of_error(what: str, error: Exception, at_s: float, took_s: float) -> bytes:
    """The report of a check that ended without an answer: one case, with an error."""
    case = _case("check")
    _add(case, "error", type(error).__name__, str(error) or type(error).__name__)
    return _report(what, {"record": "unknown"}, [case], at_s, took_s, "")


def _case(name: str) -> ET.Element:
    return ET.Element("testcase", {"name": _held(name), "classname": _CLASS, "time": "0"})


def _add(case: ET.Element, tag: str, kind: str, sentence: str) -> None:
    found = ET.SubElement(case, tag, {"type": kind, "message": _held(sentence)})
    found.text = _held(sentence)


def _report(
    what: str,
    about: Mapping[str, float | str],
    cases: Sequence[ET.Element],
    at_s: float,
    took_s: float,
    said: str,
) -> bytes:
    root = ET.Element("testsuites")
    suite = ET.SubElement(
        root,
        "testsuite",
        {
            "name": f"tenure gate check {_held(what)}",
            "package": _CLASS,
            "id": "0",
            "timestamp": datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            "hostname": "localhost",  # the schema's word for a name that is not told
            "tests": str(len(cases)),
            "failures": str(sum(case.find("failure") is not None for case in cases)),
            "errors": str(sum(case.find("error") is not None for case in cases)),
            "time": f"{max(0.0, took_s):.3f}",
        },
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in about.items():
        ET.SubElement(properties, "property", {"name": _held(name), "value": _held(str(value))})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _held(said)
    ET.SubElement(suite, "system-err")
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _held(text: str) -> str:
    r"""
    >>> print(_held("a\x1b[31m\x00b & <c>"))
    a\x1b[31m\x00b & <c>
    """
    return _UNHOLDABLE.sub(lambda found: ascii(found.group())[1:-1], text)
