"""The files of a snapshot: which there are, in which order, and what they hold."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tenure_protocol.records import FileEntry
from tenure_worker import snapshot


def test_files_are_named_in_the_order_of_their_folders(tmp_path: Path) -> None:
    """As paths are sorted: a folder before a name that it begins."""
    for name in ("a-b", "a/c", "a/b/z", "b.txt", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    found = snapshot.names(tmp_path, "jobs/j/")
    assert found == ["a/b/z", "a/c", "a-b", "a.txt", "b.txt"]
    paths = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert found == [p.relative_to(tmp_path).as_posix() for p in paths]


def test_a_linked_file_counts_and_a_linked_folder_is_not_entered(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "save", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "w").write_bytes(b"weights")
    (folder / "linked").symlink_to(elsewhere / "w")
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "there").symlink_to(elsewhere, target_is_directory=True)
    assert snapshot.names(folder, "jobs/j/") == ["linked"]


@pytest.mark.parametrize("size", [0, 1, snapshot._SMALL, snapshot._SMALL + 1, 3 * snapshot._SMALL])
def test_a_file_of_any_size_has_its_digest(tmp_path: Path, size: int) -> None:
    body = bytes(n % 251 for n in range(size))
    (tmp_path / "w").write_bytes(body)
    entry = FileEntry(hashlib.sha256(body).hexdigest(), size)
    assert snapshot.entries(tmp_path, "jobs/j/") == {"w": entry}
