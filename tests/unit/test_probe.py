"""The probe of a store: safe ones pass, and each condition that is ignored is named."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.store import probe
from tenure_protocol.store.api import (
    Entry,
    Found,
    Missing,
    Outcome,
    Store,
    StoreSilent,
    StoreUnusable,
    Unknown,
    Written,
)
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.s3 import S3Store
from tests.fake_clock import FakeClock
from tests.seaweed import Seaweed


class OverwritesOnCreate(MemoryStore):
    def create(self, key: str, body: bytes) -> Outcome:
        return self._put(key, body)


class IgnoresIfMatch(MemoryStore):
    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return (
            super().create(key, body)
            if isinstance(self.read(key), Missing)
            else self._put(key, body)
        )


class WantsBareETags(MemoryStore):
    """As Hetzner: what it returns has quotes, what it takes has none."""

    def create(self, key: str, body: bytes) -> Outcome:
        outcome = super().create(key, body)
        return Written(f'"{outcome.etag}"') if isinstance(outcome, Written) else outcome

    def read(self, key: str) -> Found | Missing:
        found = super().read(key)
        return found if isinstance(found, Missing) else Found(found.body, f'"{found.etag}"', 0.0)


class ListsLate(MemoryStore):
    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(())


class Outage(MemoryStore):
    """Gives no answer from one call to another; ``reads`` are answered all the same."""

    def __init__(self, begins: int, ends: int, reads: bool = False) -> None:
        super().__init__()
        self._calls = itertools.count()
        self._span = range(begins, ends)
        self._reads = reads

    def create(self, key: str, body: bytes) -> Outcome:
        return Unknown("no answer") if self._silent() else super().create(key, body)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return Unknown("no answer") if self._silent() else super().replace(key, body, etag)

    def read(self, key: str) -> Found | Missing:
        self._answer()
        return super().read(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        self._answer()
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self._answer()
        super().delete(key)

    def _silent(self) -> bool:
        return next(self._calls) in self._span

    def _answer(self) -> None:
        if not self._reads and self._silent():
            raise StoreSilent("no answer")


class TwoWinners(MemoryStore):
    """Its first race of creates has two winners, and one writer who hears nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._racers = itertools.count(1)

    def create(self, key: str, body: bytes) -> Outcome:
        outcome = super().create(key, body)
        if "/create-race-0" not in key or isinstance(outcome, Written):
            return outcome
        racer = next(self._racers)
        if racer == 1:
            return self._put(key, body)
        return Unknown("no answer") if racer == 2 else outcome


BROKEN: dict[str, tuple[type[MemoryStore], set[str]]] = {
    "creates": (OverwritesOnCreate, {"create-only", "race of creates"}),
    "if-match": (
        IgnoresIfMatch,
        {"replace on a stale ETag", "replace of a missing key", "race of replaces"},
    ),
    "quotes": (WantsBareETags, {"replace on its ETag"}),
    "listing": (ListsLate, {"listing after write"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_ignored_condition_is_named(name: str) -> None:
    kind, expected = BROKEN[name]
    broken = {check.name for check in probe.probe(kind(), SYSTEM) if not check.ok}
    assert expected <= broken
    with pytest.raises(StoreUnusable, match="does not keep its conditions") as error:
        probe.demand_safe(kind(), SYSTEM)
    for condition in expected:
        assert condition in str(error.value)


@pytest.mark.parametrize("lasts", [1, 7, 1000])
def test_an_outage_in_mid_probe_is_no_broken_condition(lasts: int) -> None:
    """Wherever it begins, a store is found safe or is silent."""
    for begins in range(0, 100, 3):
        with FakeClock() as clock, contextlib.suppress(StoreSilent):
            probe.demand_safe(Outage(begins, begins + lasts), clock)


def test_a_write_that_was_not_answered_is_tried_again() -> None:
    for begins in range(0, 100, 3):
        with FakeClock() as clock:
            probe.demand_safe(Outage(begins, begins + 1, reads=True), clock)


def test_a_store_that_never_answers_a_conditional_write_is_refused() -> None:
    with pytest.raises(StoreUnusable, match="create-only"):
        probe.demand_safe(Outage(0, 10_000, reads=True), SYSTEM)


class Full(MemoryStore):
    """Its disk is full from the given write on."""

    def __init__(self, writes_left: int) -> None:
        super().__init__()
        self._left = itertools.count(writes_left, -1)

    def create(self, key: str, body: bytes) -> Outcome:
        return self._unless_full(lambda: super(Full, self).create(key, body))

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._unless_full(lambda: super(Full, self).replace(key, body, etag))

    def _unless_full(self, write: Callable[[], Outcome]) -> Outcome:
        if next(self._left) > 0:
            return write()
        return Unknown("it could not be written (No space left on device)", full=True)


@pytest.mark.parametrize("writes_left", [0, 1, 2, 5, 9, 12, 30, 60])
def test_a_full_store_is_full_and_not_unsafe(writes_left: int) -> None:
    with pytest.raises(StoreSilent, match="No space left on device") as error:
        probe.demand_safe(Full(writes_left), SYSTEM)
    assert "conditions" not in str(error.value) and "\n" not in str(error.value)


def test_a_full_store_that_is_unsafe_all_the_same_is_unsafe() -> None:
    class Both(Full, OverwritesOnCreate):
        pass

    checks = probe.probe(OverwritesOnCreate(), SYSTEM)
    assert not probe.safe(checks)
    with pytest.raises((StoreSilent, StoreUnusable)):
        probe.demand_safe(Both(60), SYSTEM)


def test_two_winners_are_proof_though_a_third_had_no_answer() -> None:
    """The only check that fails is the race, and only there is a write without an answer."""
    checks = probe.probe(TwoWinners(), SYSTEM)
    assert [check.name for check in checks if not check.ok] == ["race of creates"]


def test_bare_etags_are_told() -> None:
    (check,) = [c for c in probe.probe(WantsBareETags(), SYSTEM) if c.name == "replace on its ETag"]
    assert "etags=unquoted" in check.detail


@pytest.mark.parametrize("kind", ["directory", "memory", "seaweedfs"])
def test_safe_stores_pass_leave_nothing_and_are_probed_once(
    kind: str, tmp_path: Path, seaweed: Callable[[], Seaweed], monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store
    if kind == "directory":
        store = DirectoryStore(tmp_path)
    elif kind == "memory":
        store = MemoryStore()
    else:
        store = S3Store(seaweed().url("probe"))
    probe.demand_safe(store, SYSTEM)
    assert [row.key for row in store.list("")] == [probe.KEY]
    found = store.read(probe.KEY)
    assert isinstance(found, Found) and json.loads(found.body)["safe"] is True
    monkeypatch.setattr(probe, "probe", lambda *_: pytest.fail("it was probed again"))
    probe.demand_safe(store, SYSTEM)


def test_a_damaged_verdict_is_one_sentence() -> None:
    store = MemoryStore()
    store.create(probe.KEY, b"{")
    with pytest.raises(StoreUnusable, match=r"store/probe.json is corrupt.*remove it"):
        probe.demand_safe(store, SYSTEM)
