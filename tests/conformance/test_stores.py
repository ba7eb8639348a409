"""Every store backend against every check of tenure.testing.store_checks.

A further backend is one more line of BACKENDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from tenure.testing import store_checks
from tenure_protocol.store.api import (
    Entry,
    Found,
    Missing,
    Outcome,
    Progress,
    Store,
    StoreSilent,
)
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.s3 import S3Store
from tests.hostile_proxy import HostileProxy, Kind, Request, Weather
from tests.seaweed import Seaweed

CHECKS = store_checks.all_checks()
T = TypeVar("T")


@dataclass(frozen=True)
class Ground:
    """What a backend may be made of: a folder, a real S3 server, a hostile wire in front of it."""

    folder: Path
    seaweed: Callable[[], Seaweed]
    hostile: Callable[[], HostileProxy]


@dataclass(frozen=True)
class Backend:
    """How to make a fresh store, and which checks it cannot pass and why."""

    fresh: Callable[[Ground], Store]
    cannot: Mapping[str, str] = field(default_factory=dict)


class Blind(MemoryStore):
    """Ignores every condition, as localbucket and rclone serve do: the suite must notice."""

    def create(self, key: str, body: bytes) -> Outcome:
        found = self.read(key)
        return super().create(key, body) if not hasattr(found, "etag") else self._put(key, body)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        self.read(key)
        return self._put(key, body)


class AsksAgain(S3Store):
    """An honest client on a bad wire: a read that got no answer is asked again, a write never."""

    def read(self, key: str) -> Found | Missing:
        return self._again(lambda: super(AsksAgain, self).read(key))

    def list(self, prefix: str) -> Iterator[Entry]:
        yield from self._again(lambda: [*super(AsksAgain, self).list(prefix)])

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        return self._again(lambda: super(AsksAgain, self).get_file(key, path, progress))

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        return self._again(lambda: super(AsksAgain, self).read_range(key, start, length))

    def _again(self, ask: Callable[[], T]) -> T:
        for _ in range(20):
            try:
                return ask()
            except StoreSilent:
                continue
        raise AssertionError("twenty faults in a row, at one in four")


#: A definite outcome is asserted of conditional writes, so theirs are no cuts. Plain reads and lists
#: meet everything. The rest is retried by boto3, which does not know a page from an answer.
WRITES: Mapping[Kind, float] = {"delay_request": 0.05, "delay_answer": 0.05, "twice_first": 0.05}
READS: Mapping[Kind, float] = {
    "drop": 0.03, "lose_answer": 0.03, "cut_head": 0.03, "cut_body": 0.03, "error_500": 0.03,
    "error_503": 0.03, "applied_500": 0.02, "html": 0.03, "late1": 0.02, **WRITES,
}  # fmt: skip
RETRIED: Mapping[Kind, float] = {
    "drop": 0.05, "lose_answer": 0.05, "cut_body": 0.03, "error_500": 0.03, "error_503": 0.03,
    "applied_500": 0.03, "twice_second": 0.03, **WRITES,
}  # fmt: skip


def bad_weather(seed: int) -> Callable[[Request], Kind]:
    """What an honest client must survive without a wrong answer."""
    writes, reads, retried = (Weather(seed, chances) for chances in (WRITES, READS, RETRIED))

    def of(request: Request) -> Kind:
        if request.conditional or _completes(request):
            return writes(request)
        plain = request.method == "GET" and not request.has("range")
        return reads(request) if plain else retried(request)

    return of


def _completes(request: Request) -> bool:
    """Ends an upload in parts; asked twice, it is told that there is no such upload any more."""
    return request.method == "POST" and "uploadId=" in request.target


def _through(ground: Ground, store: type[S3Store], weather: Callable[[Request], Kind]) -> Store:
    proxy = ground.hostile()
    made = store(ground.seaweed().url(uuid4().hex, proxy.endpoint))
    proxy.weather = weather
    return made


IGNORES = "ignores conditions"
UNORDERED = {"check_list_order": "SeaweedFS lists a folder's files as it keeps them"}
BACKENDS = {
    "directory": Backend(lambda ground: DirectoryStore(ground.folder / uuid4().hex)),
    "memory": Backend(lambda _: MemoryStore()),
    "seaweedfs": Backend(
        lambda ground: S3Store(ground.seaweed().url(uuid4().hex)), cannot=UNORDERED
    ),
    "seaweedfs behind a proxy": Backend(
        lambda ground: _through(ground, S3Store, lambda _: "pass"), cannot=UNORDERED
    ),
    "seaweedfs in bad weather": Backend(
        lambda ground: _through(ground, AsksAgain, bad_weather(seed=3)), cannot=UNORDERED
    ),
    "blind": Backend(
        lambda _: Blind(),
        cannot={
            "check_create_twice": IGNORES,
            "check_create_equal_body_is_lost": IGNORES,
            "check_replace_stale_loses": IGNORES,
            "check_replace_missing_loses": IGNORES,
            "check_replace_other_keys_etag_loses": IGNORES,
            "check_race_of_creates": IGNORES,
            "check_race_of_replaces": IGNORES,
            "check_file_and_conditions": IGNORES,
        },
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_store(
    backend: str,
    check: str,
    tmp_path: Path,
    seaweed: Callable[[], Seaweed],
    hostile: Callable[[], HostileProxy],
) -> None:
    under_test = BACKENDS[backend]

    def make() -> Store:
        return under_test.fresh(Ground(tmp_path, seaweed, hostile))

    if check in under_test.cannot:
        with pytest.raises(AssertionError):
            CHECKS[check](make)
    else:
        CHECKS[check](make)


def test_exceptions_name_checks_that_exist() -> None:
    for backend in BACKENDS.values():
        assert set(backend.cannot) <= set(CHECKS)
