"""The stores that are measured: a folder and a real SeaweedFS; and one that counts every call."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import Entry, Found, Missing, Outcome, Progress, Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.s3 import S3Store
from tests import seaweed

#: Rows of one LIST call; a directory's listing is counted as if it were paged like this too.
PAGE = 1000

Verb = Literal["read", "list", "write", "put_file", "get_file", "read_range", "delete"]


@dataclass(frozen=True)
class Call:
    """One finished call. A write is a conditional one."""

    verb: Verb
    key: str
    began_s: float  # monotonic
    ended_s: float
    rows: int = 0  # of a listing

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class CountingStore:
    """Passes every call on to ``inner`` and remembers it.

    ``inner`` may be exchanged between calls; the deadline stays that of the first.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.deadline_s = inner.deadline_s
        self.calls: list[Call] = []
        self.writing = 0  # conditional writes under way
        self._lock = Lock()

    # ------------------------------------------------------------------------- counting

    def of(self, verb: Verb) -> list[Call]:
        """The calls of one verb, in the order in which they ended."""
        return [call for call in list(self.calls) if call.verb == verb]

    def lists(self) -> int:
        """LIST calls: one for each page of a listing, at least one for each listing."""
        return sum(max(1, math.ceil(call.rows / PAGE)) for call in self.of("list"))

    def _ended(self, verb: Verb, key: str, began_s: float, rows: int = 0) -> None:
        self.calls.append(Call(verb, key, began_s, SYSTEM.monotonic_s(), rows))

    # ---------------------------------------------------------------------------- Store

    def read(self, key: str) -> Found | Missing:
        began_s = SYSTEM.monotonic_s()
        found = self.inner.read(key)
        self._ended("read", key, began_s)
        return found

    def list(self, prefix: str) -> Iterator[Entry]:
        began_s = SYSTEM.monotonic_s()
        rows = list(self.inner.list(prefix))
        self._ended("list", prefix, began_s, len(rows))
        yield from rows

    def create(self, key: str, body: bytes) -> Outcome:
        return self._written(key, body, None)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._written(key, body, etag)

    def _written(self, key: str, body: bytes, etag: str | None) -> Outcome:
        self._write_began(1)
        began_s = SYSTEM.monotonic_s()
        inner = self.inner
        outcome = inner.create(key, body) if etag is None else inner.replace(key, body, etag)
        self._ended("write", key, began_s)
        self._write_began(-1)
        return outcome

    def _write_began(self, more: int) -> None:
        with self._lock:
            self.writing += more

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        began_s = SYSTEM.monotonic_s()
        self.inner.put_file(key, path, progress)
        self._ended("put_file", key, began_s)

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        began_s = SYSTEM.monotonic_s()
        got = self.inner.get_file(key, path, progress)
        self._ended("get_file", key, began_s)
        return got

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        began_s = SYSTEM.monotonic_s()
        part = self.inner.read_range(key, start, length)
        self._ended("read_range", key, began_s)
        return part

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return self.inner.presign(key, method, expires_s)

    def delete(self, key: str) -> None:
        began_s = SYSTEM.monotonic_s()
        self.inner.delete(key)
        self._ended("delete", key, began_s)


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as name:
        yield Path(name)


@contextmanager
def seaweedfs() -> Iterator[seaweed.Seaweed]:
    """A SeaweedFS on loopback over a folder of its own, and its keys in the environment."""
    ours = {"AWS_ACCESS_KEY_ID": seaweed.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": seaweed.SECRET_KEY}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        with folder() as data, seaweed.running(data / "weed") as server:
            yield server
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def each() -> Generator[tuple[str, Store], None, None]:
    """A fresh store of each kind, by name; the server runs only while its own is in use."""
    with folder() as root:
        yield "directory", DirectoryStore(root)
    with seaweedfs() as server:
        yield "SeaweedFS", S3Store(server.url("bench"))
