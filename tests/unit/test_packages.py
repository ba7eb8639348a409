"""What is installed: every distribution that Python finds, and every byte of its RECORD that counts."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import zipfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure_protocol.fingerprint import packages
from tenure_protocol.fingerprint.packages import build_digest, installed


def test_every_package_has_a_build_and_an_editable_one_says_so() -> None:
    versions, builds = installed()
    assert set(versions) == set(builds)
    assert {n for n, build in builds.items() if build == "editable"} == {
        n for n, version in versions.items() if version.endswith("(editable)")
    }
    assert len(builds["numpy"]) == 16


RECORD = b"""\
mkl/__init__.py,sha256=AAA,10
mkl-1.0.dist-info/METADATA,sha256=MMM,99
mkl-1.0.dist-info/entry_points.txt,sha256=EEE,5
mkl-1.0.dist-info/RECORD,,
../../../lib/libmkl_core.so.2,sha256=LLL,7
"""


@pytest.mark.parametrize(
    "more",
    [
        b"mkl-1.0.dist-info/INSTALLER,sha256=pip,4\n",
        b"mkl-1.0.dist-info/REQUESTED,sha256=47D,0\n",
        b"mkl-1.0.dist-info/direct_url.json,sha256=ddd,9\n",
        b"mkl/__pycache__/__init__.cpython-311.pyc,,\n",
        b"../../../bin/mkl-tool,sha256=here,200\n",
        b"../../../include/site/python3.11/mkl/mkl.h,sha256=h,2\n",
    ],
)
def test_a_build_does_not_depend_on_the_place_or_the_installer(more: bytes) -> None:
    assert build_digest(RECORD + more) == build_digest(RECORD)
    lines = b"\n".join(reversed(RECORD.splitlines()))
    assert build_digest(lines.replace(b"../../../lib/", b"../../lib/")) == build_digest(RECORD)


@pytest.mark.parametrize("hash_of", [b"AAA", b"EEE", b"LLL"])
def test_another_content_is_another_build(hash_of: bytes) -> None:
    assert build_digest(RECORD.replace(hash_of, b"other")) != build_digest(RECORD)
    rows = [line for line in RECORD.splitlines() if hash_of not in line]
    assert build_digest(b"\n".join(rows)) != build_digest(RECORD)


PLAIN = st.tuples(
    st.lists(st.sampled_from(["a", "b.c", "..", "__pycache__", "x-1.dist-info", "x-1.data", "é", ""]),
             min_size=1, max_size=3).map("/".join),
    st.sampled_from([".py", ".pyc", "/entry_points.txt", "/RECORD", ""]),
    st.sampled_from(["sha256=AA", "sha256=BB", ""]),
    st.sampled_from(["", "7", "12"]),
).map(lambda row: f"{row[0]}{row[1]},{row[2]},{row[3]}")  # fmt: skip
ODD = st.sampled_from(
    ['"a,b.py",sha256=A,1', "no comma", "one,comma", "a,b,c,d", "", "a\\b.py,,", "7,b,sha256=A,1"]
)


@given(
    st.lists(PLAIN, max_size=8),
    st.lists(ODD, max_size=2),
    st.sampled_from(["\n", "\r\n"]),
    st.randoms(),
)
def test_the_quick_reading_of_a_record_finds_what_the_slow_one_finds(
    plain: list[str], odd: list[str], end: str, order: Random
) -> None:
    rows = plain + odd
    order.shuffle(rows)
    record = "".join(row + end for row in rows).encode()
    found = packages._plain_rows(record)
    assert found is None or found == sorted(packages._content(record))
    assert build_digest(record) == build_digest("\n".join(rows).encode())
    assert odd or not plain or found is not None or any("__pycache__" in row for row in plain), (
        "it is quick"
    )


def distribution(place: Path, name: str, version: str, folder: str | None = None) -> Path:
    """An installed package of one file, as an installer leaves it."""
    info = place / (folder or f"{name}-{version}.dist-info")
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nlong"
    )
    (info / "RECORD").write_text(f"{name}.py,sha256={version},1\n{info.name}/RECORD,,\n")
    return info


def seen(monkeypatch: pytest.MonkeyPatch, *path: Path) -> tuple[dict[str, str], dict[str, str]]:
    monkeypatch.setattr(sys, "path", [str(entry) for entry in path])
    return installed()


def test_a_package_is_found_wherever_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    distribution(first, "Two_Words", "1")
    distribution(second, "two-words", "2")
    distribution(second, "zipped", "3")
    egg = second / "old.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: old\r\nVersion: 4\r\n")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("inzip-5.dist-info/METADATA", "Name: inzip\nVersion: 5\n\n")
        archive.writestr("inzip-5.dist-info/RECORD", "inzip.py,sha256=A,1\n")
    versions, builds = seen(monkeypatch, tmp_path / "nowhere", first, second, tmp_path / "some.zip")
    assert versions == {"inzip": "5", "old": "4", "two-words": "1", "zipped": "3"}
    assert builds["old"] == "no RECORD" and builds["inzip"] == build_digest(
        b"inzip.py,sha256=A,1\n"
    )


def test_whatever_is_edited_of_a_package_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = distribution(tmp_path, "one", "1")
    before = seen(monkeypatch, tmp_path)
    about = (info / "METADATA").read_text()
    for text, words in (
        (about.replace("Version: 1", "Version: 1.1"), {"one": "1.1"}),
        (about.replace("Name: one", "Name: other"), {"other": "1"}),
        ("X: " + "y" * 5000 + "\n" + about, {"one": "1"}),  # the head is long, and read whole
        (about.partition("Version")[0] + "\n\nVersion: 1\n", {}),  # a version in the text is none
    ):
        (info / "METADATA").write_text(text)
        assert seen(monkeypatch, tmp_path)[0] == words
    for pad in range(980, 1025):  # the first block that is read may end anywhere
        (info / "METADATA").write_text(f"Name: one\nX: {'y' * pad}\nVersion: 12345\n\n")
        assert seen(monkeypatch, tmp_path)[0] == {"one": "12345"}
    (info / "METADATA").write_text(about)
    assert seen(monkeypatch, tmp_path) == before
    (info / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    assert seen(monkeypatch, tmp_path) == ({"one": "1 (editable)"}, {"one": "editable"})
    (info / "direct_url.json").unlink()
    (info / "RECORD").unlink()
    assert seen(monkeypatch, tmp_path) == ({"one": "1"}, {"one": "no RECORD"})


def test_a_package_that_another_finder_offers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return {"METADATA": "Name: offered\nVersion: 1\n\n", "RECORD": "a.py,sha256=A,1\n"}.get(
                filename
            )

        def locate_file(self, path: object) -> Path:
            return Path(str(path))

    class Finder:
        def find_distributions(self, context: object) -> list[Offered]:
            return [Offered()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    versions, builds = seen(monkeypatch)
    assert (versions["offered"], builds["offered"]) == ("1", build_digest(b"a.py,sha256=A,1\n"))


def test_this_machines_packages_are_those_of_the_standard_library() -> None:
    found = importlib.metadata.distributions()
    names = {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version
        for one in reversed(list(found))
    }
    assert {
        name: version.removesuffix(" (editable)") for name, version in installed()[0].items()
    } == names


def test_a_build_is_digested_again_when_its_record_was_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "one-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Name: one\nVersion: 1\n\n")
    record = place / "RECORD"
    record.write_text("one.py,sha256=aaa,1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    known: dict[str, str] = {}
    first = packages.installed(known)[1]
    with monkeypatch.context() as patch:
        patch.setattr(packages, "build_digest", None)  # nothing is digested again
        assert packages.installed(known)[1] == first
    at = record.stat()
    record.write_text("one.py,sha256=bbb,1\n")
    os.utime(record, ns=(at.st_atime_ns, at.st_mtime_ns))  # as who hides it would
    assert packages.installed(known)[1] != first
    assert packages.installed()[1] == packages.installed(known)[1]
