"""A store in this process's memory, for tests and the simulator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.store.api import (
    DEADLINE_S,
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Progress,
    Written,
    check_key,
)


class MemoryStore:
    """Keys, bodies and write times in a dictionary. ETags are content hashes, as on S3."""

    deadline_s = DEADLINE_S["memory"]

    def __init__(self, clock: Clock = SYSTEM, name: str = "") -> None:
        self.url = f"memory:{name}"
        self._clock = clock
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = Lock()

    def read(self, key: str) -> Found | Missing:
        check_key(key)
        with self._lock:
            if key not in self._objects:
                return Missing()
            body, at_s = self._objects[key]
            return Found(body, _etag(body), self._clock.monotonic_s() - at_s)

    def list(self, prefix: str) -> Iterator[Entry]:
        with self._lock:
            now_s = self._clock.monotonic_s()
            rows = [
                Entry(key, _etag(body), len(body), now_s - at_s)
                for key, (body, at_s) in sorted(self._objects.items())
                if key.startswith(prefix)
            ]
        yield from rows

    def create(self, key: str, body: bytes) -> Outcome:
        check_key(key)
        with self._lock:
            if key in self._objects:
                return Lost()
            return self._put(key, body)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        check_key(key)
        with self._lock:
            held = self._objects.get(key)
            if held is None or _etag(held[0]) != etag:
                return Lost()
            return self._put(key, body)

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        body = path.read_bytes()
        with self._lock:
            self._put(check_key(key), body)
        if progress:
            progress(len(body), len(body))

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        found = self.read(key)
        if isinstance(found, Missing):
            return False
        path.write_bytes(found.body)
        if progress:
            progress(len(found.body), len(found.body))
        return True

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        found = self.read(key)
        return found if isinstance(found, Missing) else found.body[start : start + length]

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return None

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def _put(self, key: str, body: bytes) -> Written:
        self._objects[key] = (body, self._clock.monotonic_s())
        return Written(_etag(body))


def _etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]
