"""The JUnit report of a gate check holds to the schemas of Ant and of Jenkins, whatever is in it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from gates import junit
from gates.verdict import Verdict

#: What both schemas allow: attributes (all required), and the children in this order.
SHAPE: dict[str, tuple[set[str], list[str]]] = {
    "testsuites": (set(), ["testsuite*"]),
    "testsuite": (
        {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "time"},
        ["properties", "testcase*", "system-out", "system-err"],
    ),
    "properties": (set(), ["property*"]),
    "property": ({"name", "value"}, []),
    "testcase": ({"name", "classname", "time"}, ["(failure|error)?"]),
    "failure": ({"type", "message"}, []),
    "error": ({"type", "message"}, []),
    "system-out": (set(), []),
    "system-err": (set(), []),
}
WITH_TEXT = {"failure", "error", "system-out", "system-err"}


def check_schema(element: ET.Element) -> None:
    attributes, children = SHAPE[element.tag]
    assert set(element.attrib) == attributes, element.tag
    form = "".join(f"(?:<{c}>)*" if c[-1] == "*" else f"<{c}>" for c in children)
    form = re.sub(r"<([a-z-]+)\*>", r"<\1>", form).replace(
        "<(failure|error)?>", "(<(failure|error)>)?"
    )
    assert re.fullmatch(form, "".join(f"<{child.tag}>" for child in element)), element.tag
    if element.tag not in WITH_TEXT:
        assert not (element.text or "").strip()
    for name in ("tests", "failures", "errors", "id"):
        assert re.fullmatch(r"\d+", element.get(name, "0"))
    assert re.fullmatch(r"\d{1,3}(\d{3})*(\.\d*)?|\d+\.\d+", element.get("time", "0"))
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    assert re.fullmatch(stamp, element.get("timestamp", "2026-01-01T00:00:00"))
    for child in element:
        check_schema(child)


def read(body: bytes) -> ET.Element:
    root = ET.fromstring(body)
    check_schema(root)
    (suite,) = root
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        assert suite.get(name) == str(len(list(suite.iter(tag))))
    return suite


def test_each_gate_is_a_case_with_its_sentence_and_its_numbers() -> None:
    verdicts = [
        Verdict("generation", "PASS", "a generation-2 retrain", {"generation": 2.0}),
        Verdict("score", "BLOCK", "the score is 0.4", {"score": 0.4, "seed": 11}),
        Verdict("spread_mean", "NOT_ENOUGH_SEEDS", "9 seeds are needed", {"metric": "qlike"}),
    ]
    suite = read(junit.of_verdicts("plan.yaml", "a" * 26, verdicts, 1e9, 0.5))
    cases = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert cases["generation"] is None
    for name, kind, words in (
        ("score", "BLOCK", "the score is 0.4"),
        ("spread_mean", "NOT_ENOUGH_SEEDS", "9 seeds are needed"),
    ):
        found = cases[name]
        assert found is not None
        assert (found.get("type"), found.get("message"), found.text) == (kind, words, words)
    properties = {item.get("name"): item.get("value") for item in suite.iter("property")}
    assert properties == {
        "record": "a" * 26,
        "generation.generation": "2.0",
        "score.score": "0.4",
        "score.seed": "11",
        "spread_mean.metric": "qlike",
    }
    assert (suite.get("timestamp"), suite.get("time")) == ("2001-09-09T01:46:40", "0.500")


@given(st.text(), st.text(min_size=1), st.sampled_from(["BLOCK", "NOT_ENOUGH_SEEDS"]))
@settings(max_examples=60, deadline=None)
def test_whatever_a_sentence_holds_it_can_be_read_again(what: str, reason: str, kind: str) -> None:
    verdict = Verdict("parent", kind, f"\x00\x1b[31m\ud800]]>\ufffe{reason}", {reason: reason})  # type: ignore[arg-type]
    suite = read(junit.of_verdicts(what, None, [verdict], 0, 0))
    (found,) = suite.iter("failure")
    assert (found.get("message") or "").startswith("\\x00\\x1b[31m\\ud800]]>\\ufffe")
    (error,) = read(junit.of_error(what, ValueError(reason), 0, 0)).iter("error")
    assert error.get("type") == "ValueError"
