"""Every store backend against every check of tenure.testing.store_checks.

A further backend is one more line of BACKENDS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from tenure.testing import store_checks
from tenure_protocol.store.api import Outcome, Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.s3 import S3Store
from tests.seaweed import Seaweed

CHECKS = store_checks.all_checks()


@dataclass(frozen=True)
class Backend:
    """How to make a fresh store, and which checks it cannot pass and why."""

    fresh: Callable[[Path, Callable[[], Seaweed]], Store]
    cannot: Mapping[str, str] = field(default_factory=dict)


class Blind(MemoryStore):
    """Ignores every condition, as localbucket and rclone serve do: the suite must notice."""

    def create(self, key: str, body: bytes) -> Outcome:
        found = self.read(key)
        return super().create(key, body) if not hasattr(found, "etag") else self._put(key, body)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        self.read(key)
        return self._put(key, body)


IGNORES = "ignores conditions"
BACKENDS = {
    "directory": Backend(lambda folder, _: DirectoryStore(folder / uuid4().hex)),
    "memory": Backend(lambda *_: MemoryStore()),
    "seaweedfs": Backend(
        lambda _, server: S3Store(server().url(uuid4().hex)),
        cannot={"check_list_order": "SeaweedFS lists a folder's files as it keeps them"},
    ),
    "blind": Backend(
        lambda *_: Blind(),
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
def test_store(backend: str, check: str, tmp_path: Path, seaweed: Callable[[], Seaweed]) -> None:
    under_test = BACKENDS[backend]

    def make() -> Store:
        return under_test.fresh(tmp_path, seaweed)

    if check in under_test.cannot:
        with pytest.raises(AssertionError):
            CHECKS[check](make)
    else:
        CHECKS[check](make)


def test_exceptions_name_checks_that_exist() -> None:
    for backend in BACKENDS.values():
        assert set(backend.cannot) <= set(CHECKS)
