"""The directory store's own promises; what every store must do is in tests/conformance."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.store import directory
from tenure_protocol.store.api import (
    Found,
    Lost,
    Missing,
    StoreSilent,
    StoreUnusable,
    Unknown,
    Written,
)
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.open import open_store
from tenure_protocol.store.settle import create_once
from tests.fake_clock import FakeClock
from tests.faulty_store import WRITE_FAULTS, FaultyStore


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_file_system", lambda path: kind)
    with pytest.raises(StoreUnusable, match=kind) as caught:
        DirectoryStore(tmp_path / "store")
    assert str(tmp_path) in str(caught.value) and "s3://" in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_the_mount_table_names_the_file_system() -> None:
    assert directory._file_system(Path("/proc/self/nowhere")) == "proc"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnusable, match="cannot be written") as caught:
        DirectoryStore(tmp_path / "file" / "store")
    assert str(tmp_path / "file" / "store") in str(caught.value)


def test_opened_for_reading_it_writes_nothing_anywhere(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with pytest.raises(StoreUnusable, match=f"there is no store folder {root}"):
        open_store(f"file:{root}", read_only=True)
    assert list(tmp_path.iterdir()) == []
    (root / "a").mkdir(parents=True)
    (root / "a" / "k").write_bytes(b"x")
    future_s = SYSTEM.wall_s() + 3600
    os.utime(root / "a" / "k", (future_s, future_s))
    store = open_store(f"file:{root}", read_only=True)
    found = store.read("a/k")
    assert isinstance(found, Found) and (found.body, found.age_s) == (b"x", 0.0)
    assert [row.key for row in store.list("")] == ["a/k"]
    assert store.read_range("a/k", 0, 9) == b"x"
    assert store.get_file("a/k", tmp_path / "copy") and isinstance(store.read("b"), Missing)
    for write in (
        lambda: store.create("b", b"y"),
        lambda: store.replace("a/k", b"y", found.etag),
        lambda: store.put_file("b", tmp_path / "copy"),
        lambda: store.delete("a/k"),
    ):
        with pytest.raises(StoreUnusable, match="opened for reading only"):
            write()
    assert [str(path.relative_to(root)) for path in root.rglob("*")] == ["a", "a/k"]
    assert (root / "a" / "k").stat().st_mtime == pytest.approx(future_s)


def test_two_stores_in_one_folder_are_one_store(tmp_path: Path) -> None:
    one, two = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    outcome = one.create("k", b"x")
    assert isinstance(outcome, Written)
    assert two.create("k", b"y") == Lost()
    assert isinstance(two.replace("k", b"y", outcome.etag), Written)
    assert one.replace("k", b"z", outcome.etag) == Lost()


def test_a_temp_file_of_a_dead_process_with_our_number_is_no_obstacle(tmp_path: Path) -> None:
    """In a container the worker is process 1 again and again."""
    DirectoryStore(tmp_path)
    (tmp_path / ".temp" / f"{os.getpid()}-probe").touch()
    assert isinstance(DirectoryStore(tmp_path).create("k", b"x"), Written)


def test_old_temp_files_are_swept_and_fresh_ones_stay(tmp_path: Path) -> None:
    DirectoryStore(tmp_path)
    old, fresh = tmp_path / ".temp" / "1-old", tmp_path / ".temp" / "1-fresh"
    for path in (old, fresh):
        path.touch()
    a_week_ago_s = SYSTEM.wall_s() - 7 * 86_400
    os.utime(old, (a_week_ago_s, a_week_ago_s))
    DirectoryStore(tmp_path)
    assert not old.exists() and fresh.exists()


def test_no_write_leaves_a_temp_file(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    (tmp_path / "f").write_text("x")
    store.create("a", b"x")
    store.create("a", b"y")
    store.replace("a", b"y", "stale")
    store.put_file("b", tmp_path / "f")
    with pytest.raises(StoreSilent):
        store.put_file("c", tmp_path / "gone")
    assert not list((tmp_path / "store" / ".temp").iterdir())


def test_the_age_counts_from_the_write_not_from_before_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped between its temp file and the rename must not look long silent."""
    real = directory._write_through

    def written_an_hour_ago(path: Path, body: bytes) -> None:
        real(path, body)
        then_s = SYSTEM.wall_s() - 3600
        os.utime(path, (then_s, then_s))

    monkeypatch.setattr(directory, "_write_through", written_an_hour_ago)
    store = DirectoryStore(tmp_path)
    store.create("k", b"x")
    found = store.read("k")
    assert isinstance(found, Found) and found.age_s < 1800


def test_a_lock_that_is_held_too_long_is_unknown(tmp_path: Path) -> None:
    with FakeClock() as clock:
        store = DirectoryStore(tmp_path, clock)
        with store._locked("k") as mine:
            assert mine
            outcome = store.create("k", b"x")
            assert isinstance(outcome, Unknown) and "lock of k" in outcome.reason
        assert isinstance(store.read("k"), Missing)
        assert isinstance(store.create("k", b"x"), Written)


def test_a_write_that_the_disk_refuses_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)

    def full(path: Path, body: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "_write_through", full)
    outcome = store.create("k", b"x")
    assert (
        isinstance(outcome, Unknown) and "No space left" in outcome.reason and "k" in outcome.reason
    )


def test_a_failure_after_the_rename_is_unknown_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "_sync_parents", fail)
    assert isinstance(store.create("k", b"x"), Unknown)
    assert isinstance(store.read("k"), Found)


def test_the_wall_clock_may_jump_and_ages_stay_sane(tmp_path: Path) -> None:
    with FakeClock(wall_s=SYSTEM.wall_s()) as clock:
        store = DirectoryStore(tmp_path, clock)
        store.create("k", b"x")
        clock.wall_skew_s -= 7200
        found = store.read("k")
        assert isinstance(found, Found) and found.age_s == 0.0


# ------------------------------------------------------------------------------------ URLs


@pytest.mark.parametrize("name", ["plain", "with space", "100%20", "a%b", "ü", "x:y"])
def test_a_url_opens_the_same_folder(tmp_path: Path, name: str) -> None:
    store = DirectoryStore(tmp_path / name)
    store.create("k", b"x")
    found = open_store(store.url).read("k")
    assert isinstance(found, Found) and found.body == b"x"


def test_file_urls_with_slashes(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/s").url == open_store(f"file:{tmp_path}/s").url


def test_a_memory_url_opens_the_same_store() -> None:
    first = open_store("memory:test-directory-store")
    first.create("k", b"x")
    assert open_store(first.url) is first
    assert open_store("memory:another-of-them") is not first
    assert MemoryStore().url == "memory:"


@pytest.mark.parametrize("url", ["", "file:", "s4://x", "/tmp/x", "C:\\x", "file"])
def test_an_unknown_url_is_named(url: str) -> None:
    with pytest.raises(StoreUnusable) as caught:
        open_store(url)
    assert repr(url) in str(caught.value)


# ---------------------------------------------------------------------------- create_once


def faulty(clock: FakeClock) -> FaultyStore:
    return FaultyStore(clock, touches=lambda key: True)


@pytest.mark.parametrize("fault", ["ok", *WRITE_FAULTS])
def test_create_once_is_settled(fault: str) -> None:
    with FakeClock() as clock:
        store = faulty(clock)
        store.fail_writes([fault])
        assert create_once(store, "k", b"mine", clock) is True
        store.land()
        assert store.bodies("k") == [b"mine"]
        assert create_once(store, "k", b"mine", clock) is True
        assert create_once(store, "k", b"theirs", clock) is False


def test_create_once_without_an_answer_is_silence() -> None:
    with FakeClock() as clock:
        store = faulty(clock)
        store.fail_writes(["lost_request"] * 100)
        with pytest.raises(StoreSilent, match="lost"):
            create_once(store, "k", b"x", clock)
        assert len(store.writes) > 90
