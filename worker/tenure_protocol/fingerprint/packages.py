"""What is installed: the version of every distribution, and a digest of what was installed of it."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from tenure_protocol.codec import sha256_hex

EDITABLE = "editable"
NO_RECORD = "no RECORD"
_NAME = re.compile(r"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_DIGITS = 16
_OUT = re.compile(r"^(\.\.|/)[./]*")
#: What lies outside of site-packages and belongs to the place of installation, not to the package.
_OF_THE_PLACE = frozenset({"bin", "Scripts", "include", "Include"})


def installed(
    known: MutableMapping[str, str] | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Version and build of every installed distribution, by normalised name (PEP 503).

    Where there are two of a name, it is the one Python imports first. A build is 16 hex digits of
    SHA-256 over the distribution's RECORD (see :func:`build_digest`), ``editable``, or ``no RECORD``.
    ``known`` are builds that were digested before, by what tells an unchanged RECORD; it is added to.
    """
    versions: dict[str, str] = {}
    builds: dict[str, str] = {}
    known = {} if known is None else known
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
        builds[key] = EDITABLE if editable else _build(distribution, known)
    return dict(sorted(versions.items())), dict(sorted(builds.items()))


def _build(distribution: importlib.metadata.Distribution, known: MutableMapping[str, str]) -> str:
    """The build of a distribution; that in ``known`` where its RECORD is the same file, unchanged.

    Nobody but root sets ``st_ctime_ns``, so a RECORD that was written to is read again.
    """
    folder, mark = getattr(distribution, "_path", None), ""
    if isinstance(folder, Path):
        try:
            at = (folder / "RECORD").stat()
            mark = f"{at.st_dev}-{at.st_ino}-{at.st_size}-{at.st_mtime_ns}-{at.st_ctime_ns}"
        except OSError:
            return NO_RECORD
    if mark and mark in known:
        return known[mark]
    record = distribution.read_text("RECORD")
    found = build_digest(record) if record else NO_RECORD
    if mark:
        known[mark] = found
    return found


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
    rows: list[str] = []
    for line in record.splitlines():
        path, _, rest = line.partition(",")
        unusual = '"' in line or "\\" in line or path.startswith(("..", "/"))
        if unusual or ".dist-info/" in path or ".data/" in path:
            rows += [f"{name},{digest}\n" for name, digest in _content(line)]
            continue
        digest = rest.partition(",")[0]  # nearly all rows: a file of the package
        if path.endswith(".pyc") and (not digest or "__pycache__/" in path):
            continue
        rows.append(f"{path},{digest}\n")
    rows.sort()
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
