"""What is installed: the version of every distribution, and a digest of what was installed of it.

Read from the folders of ``sys.path`` in one look at each and as bytes, since this stands before every
claim and every load of a model: ``importlib.metadata`` took 80 ms for 241 packages, this takes 30.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, MutableMapping
from importlib.machinery import PathFinder
from itertools import compress
from operator import not_

from tenure_protocol.codec import sha256_hex

EDITABLE = "editable"
NO_RECORD = "no RECORD"
_NAME = re.compile(rb"^Name:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_VERSION = re.compile(rb"^Version:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
_DIGITS = 16
_OUT = re.compile(rb"^(\.\.|/)[./]*")
#: What lies outside of site-packages and belongs to the place of installation, not to the package.
_OF_THE_PLACE = frozenset({b"bin", b"Scripts", b"include", b"Include"})
_HEAD = 1024  # name and version stand at the beginning of METADATA
#: All bytes that separate nothing; what quotes counts as a separator.
_NO_SEPARATORS = bytes(set(range(256)) - set(b',\n\r"\\'))
_ROWS_TO_FIELDS = bytes.maketrans(b"\n", b",")
_INFO = b".dist-info/"

#: Reads a file of a distribution, or its first bytes; empty where there is none.
_Read = Callable[[str, int | None], bytes]


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
    for folder, read in _distributions():
        about = _name_and_version(read)
        if about is None:  # a damaged installation: its files name nobody
            continue
        key = re.sub(r"[-_.]+", "-", about[0]).lower()
        if key in versions:
            continue
        editable = _is_editable(read("direct_url.json", None))
        versions[key] = about[1] + (" (editable)" if editable else "")
        builds[key] = EDITABLE if editable else _build(folder, read, known)
    return dict(sorted(versions.items())), dict(sorted(builds.items()))


def _distributions() -> Iterator[tuple[str | None, _Read]]:
    """Every distribution, in the order in which Python looks for modules: its folder, its reader.

    What lies in anything but a plain folder, such as a zip file, and what a finder of somebody else's
    offers, is found by importlib.metadata, and has no folder here.
    """
    for finder in sys.meta_path:
        if finder is PathFinder:
            for entry in sys.path:
                yield from _in_folder(entry)
        elif hasattr(finder, "find_distributions"):
            from importlib.metadata import DistributionFinder

            for found in finder.find_distributions(DistributionFinder.Context()):
                yield None, _reader(found.read_text)


def _in_folder(entry: str) -> Iterator[tuple[str | None, _Read]]:
    if entry.lower().endswith(".egg"):
        names = None
    else:
        try:
            names = sorted(os.listdir(entry or "."))
        except OSError:
            names = None
    if names is not None:
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info")):
                folder = os.path.join(entry, name)
                yield folder, _folder_reader(folder)
    elif os.path.exists(entry):
        from importlib.metadata import distributions

        for found in distributions(path=[entry]):
            yield None, _reader(found.read_text)


def _folder_reader(folder: str) -> _Read:
    def read(name: str, most: int | None) -> bytes:
        try:
            file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return b""
        try:
            wanted = os.fstat(file).st_size if most is None else most
            found = os.read(file, wanted)
            while most is None and (more := os.read(file, wanted + 1)):  # until its end is seen
                found += more
            return found
        except IsADirectoryError:
            return b""
        finally:
            os.close(file)

    return read


def _reader(read_text: Callable[[str], str | None]) -> _Read:
    return lambda name, _: (read_text(name) or "").encode("utf-8", "surrogateescape")


def _name_and_version(read: _Read) -> tuple[str, str] | None:
    """Of the first lines of METADATA, or of all of it where they do not stand there."""
    for name in ("METADATA", "PKG-INFO"):
        for most in (_HEAD, None):
            text = read(name, most)
            if not text:
                break
            if most and len(text) >= most:
                text = text[: text.rfind(b"\n") + 1]  # the last line may go on
            head = text.replace(b"\r", b"").partition(b"\n\n")[0]
            found, version = _NAME.search(head), _VERSION.search(head)
            if found and version:
                return found[1].decode(errors="replace"), version[1].decode(errors="replace")
    return None


def _build(folder: str | None, read: _Read, known: MutableMapping[str, str]) -> str:
    """The build of a distribution; that in ``known`` where its RECORD is the same file, unchanged.

    Nobody but root sets ``st_ctime_ns``, so a RECORD that was written to is read again.
    """
    mark = ""
    if folder is not None:
        try:
            at = os.stat(f"{folder}/RECORD")
            mark = f"{at.st_dev}-{at.st_ino}-{at.st_size}-{at.st_mtime_ns}-{at.st_ctime_ns}"
        except OSError:
            return NO_RECORD
    if mark and mark in known:
        return known[mark]
    record = read("RECORD", None)
    found = build_digest(record) if record else NO_RECORD
    if mark:
        known[mark] = found
    return found


def changed_s(mark: str) -> float:
    """When the RECORD that a mark of ``known`` is of was last changed, in Unix time.

    >>> changed_s("1-2-3-4000000000-5000000000"), changed_s("no mark")
    (5.0, inf)
    """
    last = mark.rpartition("-")[2]
    return int(last) / 1e9 if last.isdecimal() else math.inf


def build_digest(record: bytes) -> str:
    """16 hex digits of SHA-256 over the paths and hashes of a RECORD, wherever it was installed.

    Left out: byte code, scripts and headers, whose bytes or paths depend on the place, and of the
    ``dist-info`` folder all but the entry points: who installed, from where, and what is only said
    of the package. What a wheel puts elsewhere, such as ``lib/libmkl_core.so``, counts.

    >>> one = b"a.py,sha256=x,1\\na-1.dist-info/INSTALLER,sha256=pip,1\\na-1.dist-info/RECORD,,\\n"
    >>> two = b"a.py,sha256=x,1\\n__pycache__/a.cpython-311.pyc,,\\n../../../bin/a,sha256=here,9\\n"
    >>> build_digest(one) == build_digest(two), build_digest(b"a.py,sha256=y,1") == build_digest(one)
    (True, False)
    """
    rows = _plain_rows(record)
    if rows is None:
        rows = sorted(_content(record))
    rows.append(b"")
    return sha256_hex(b"\n".join(rows) if len(rows) > 1 else b"")[:_DIGITS]


def _plain_rows(record: bytes) -> list[bytes] | None:
    """What :func:`_content` gives, sorted, of a RECORD without quoting; ``None`` for any other.

    The 62,000 rows of 241 packages pass here in each worker's start, so nothing is done row by row
    in Python, but for the few that are not just files of the package.
    """
    record += b"" if record.endswith(b"\n") else b"\n"
    between = record.translate(None, _NO_SEPARATORS)
    if between not in (b",,\n" * (len(between) // 3), b",,\r\n" * (len(between) // 4)):
        return None
    fields = record.translate(_ROWS_TO_FIELDS, b"\r").split(b",")
    paths, digests = fields[0::3], fields[1::3]
    rows = list(map(b",".join, compress(zip(paths, digests, strict=False), digests)))
    if len(rows) < len(digests):  # byte code that was made here has no digest
        bare = compress(paths, map(not_, digests))
        rows += [path + b"," for path in bare if not path.endswith(b".pyc")]
    rows.sort()
    unusual = _taken(rows, b"..") + _taken(rows, b"/")
    text = b"\n".join(rows)
    if b"__pycache__/" in text:  # byte code that came with the wheel
        return None
    at = text.find(_INFO)
    while at >= 0:
        start = text.rfind(b"\n", 0, at) + 1
        found = _taken(rows, text[start : at + len(_INFO)])
        unusual += [row for row in found if b"/entry_points.txt," in row]
        at = text.find(_INFO, start + sum(map(len, found)) + len(found))
    if unusual:
        rows += _content(b"\n".join(unusual))
        rows.sort()
    return rows


def _taken(rows: list[bytes], prefix: bytes) -> list[bytes]:
    """Takes out of sorted rows those that begin with ``prefix``."""
    low = bisect_left(rows, prefix)
    high = bisect_left(rows, prefix[:-1] + bytes([prefix[-1] + 1]))
    found = rows[low:high]
    del rows[low:high]
    return found


def _content(record: bytes) -> Iterator[bytes]:
    """Path and hash of each row that counts, joined by a comma."""
    lines = record.decode("utf-8", "surrogateescape").splitlines()
    for row in csv.reader(lines):
        if not row:
            continue
        path, digest = (cell.encode("utf-8", "surrogateescape") for cell in [*row, ""][:2])
        if path.startswith((b"..", b"/")):  # out of site-packages
            path = _OUT.sub(b"", path)
            if path.partition(b"/")[0] in _OF_THE_PLACE:
                continue
        if path.endswith(b".pyc") and (not digest or b"__pycache__/" in path):
            continue
        if _INFO in path:
            if path.endswith(b"/entry_points.txt"):
                yield b"entry_points.txt," + digest
            continue
        yield path + b"," + digest


def _is_editable(direct_url: bytes) -> bool:
    try:
        return bool(direct_url) and bool(json.loads(direct_url).get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False
