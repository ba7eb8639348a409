"""What is installed: the version of every distribution, and a digest of what was installed of it."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import re
from collections.abc import Iterator

from tenure_protocol.codec import sha256_hex

EDITABLE = "editable"
NO_RECORD = "no RECORD"
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_DIGITS = 16
_OUT = re.compile(r"^(\.\.|/)[./]*")
#: What lies outside of site-packages and belongs to the place of installation, not to the package.
_OF_THE_PLACE = frozenset({"bin", "Scripts", "include", "Include"})


def installed() -> tuple[dict[str, str], dict[str, str]]:
    """Version and build of every installed distribution, by normalised name (PEP 503).

    Where there are two of a name, it is the one Python imports first. A build is 16 hex digits of
    SHA-256 over the distribution's RECORD (see :func:`build_digest`), ``editable``, or ``no RECORD``.
    """
    versions: dict[str, str] = {}
    builds: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        about = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        head = about.partition("\n\n")[0]
        name, version = _NAME.search(head), _VERSION.search(head)
        if not name or not version:  # a damaged installation: its files name nobody
            continue
        key = re.sub(r"[-_.]+", "-", name[1]).lower()
        if key in versions:
            continue
        editable = _editable(distribution)
        versions[key] = version[1] + (" (editable)" if editable else "")
        record = distribution.read_text("RECORD")
        builds[key] = EDITABLE if editable else build_digest(record) if record else NO_RECORD
    return dict(sorted(versions.items())), dict(sorted(builds.items()))


def build_digest(record: str) -> str:
    """16 hex digits of SHA-256 over the paths and hashes of a RECORD, wherever it was installed.

    Left out: byte code, scripts and headers, whose bytes or paths depend on the place, and of the
    ``dist-info`` folder all but the entry points: who installed, from where, and what is only said
    of the package. What a wheel puts elsewhere, such as ``lib/libmkl_core.so``, counts.

    >>> one = "a.py,sha256=x,1\\na-1.dist-info/INSTALLER,sha256=pip,1\\na-1.dist-info/RECORD,,\\n"
    >>> two = "a.py,sha256=x,1\\n__pycache__/a.cpython-311.pyc,,\\n../../../bin/a,sha256=here,9\\n"
    >>> build_digest(one) == build_digest(two), build_digest("a.py,sha256=y,1") == build_digest(one)
    (True, False)
    """
    rows = sorted(f"{path},{digest}\n" for path, digest in _content(record))
    return sha256_hex("".join(rows).encode("utf-8", "surrogateescape"))[:_DIGITS]


def _content(record: str) -> Iterator[tuple[str, str]]:
    """Paths and hashes that count. Tens of thousands of rows pass here in each worker's start."""
    for row in csv.reader(record.splitlines()):
        if not row:
            continue
        path, digest = row[0], row[1] if len(row) > 1 else ""
        if path.startswith(("..", "/")):  # out of site-packages
            path = _OUT.sub("", path)
            if path.partition("/")[0] in _OF_THE_PLACE:
                continue
        if path.endswith(".pyc") and (not digest or "__pycache__/" in path):
            continue
        if ".dist-info/" in path:
            if path.endswith("/entry_points.txt"):
                yield "entry_points.txt", digest
            continue
        yield path, digest


def _editable(distribution: importlib.metadata.Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    try:
        return bool(text) and bool(json.loads(str(text)).get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False
