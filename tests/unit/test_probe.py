"""The probe of a store: safe ones pass, and each condition that is ignored is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.store import probe
from tenure_protocol.store.api import Entry, Found, Missing, Outcome, Store, StoreUnusable, Written
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.s3 import S3Store
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
