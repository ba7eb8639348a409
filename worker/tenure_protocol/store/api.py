"""What Tenure needs of an object store, and the three answers a conditional write can have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

#: Total deadline of one conditional call and its p99, in seconds, until measured.
DEADLINE_S = {"s3": 13.0, "file": 2.0, "memory": 2.0}
P99_S = 1.0


def shortest_lease_s(deadline_s: float) -> float:
    """Shortest lease, in seconds, on a store with such calls: two may fail before the third renews.

    Under a shorter one, a single call without an answer outlasts the watch of everybody else.

    >>> shortest_lease_s(DEADLINE_S["s3"])
    42.0
    """
    return 3 * (deadline_s + P99_S)


_PART = r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,254}"  # a file name of a directory store
_KEY = re.compile(rf"{_PART}(/{_PART})*")
MAX_KEY = 900

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Written:
    """The store confirmed the write."""

    etag: str


@dataclass(frozen=True)
class Lost:
    """The store refused the write: its condition did not hold."""


@dataclass(frozen=True)
class Unknown:
    """No usable answer. The write may have happened, may still happen, or never."""

    reason: str
    locked: bool = False  # it has not been tried: a process of this machine holds the key's lock
    full: bool = False  # the store has no room for it


Outcome = Written | Lost | Unknown


@dataclass(frozen=True)
class Found:
    """A body, its ETag, and its age by the store's own times in this same answer."""

    body: bytes
    etag: str
    age_s: float


@dataclass(frozen=True)
class Missing:
    """The store answered that there is no such key."""


class Entry(NamedTuple):
    """One row of a listing; a tuple, since a watch of thousands of jobs makes them by the thousand."""

    key: str
    etag: str
    size: int
    age_s: float


class StoreSilent(Exception):
    """A read, a listing or an upload got no usable answer. Proves nothing about the object."""


class StoreUnusable(Exception):
    """The store cannot be used as configured; says what is wrong, where, and what to do."""


class Store(Protocol):
    """Backends: a directory, memory, S3. All keys are relative to the store's root."""

    @property
    def url(self) -> str:
        """What opens this store again."""

    @property
    def deadline_s(self) -> float:
        """Total deadline of one conditional call."""

    def read(self, key: str) -> Found | Missing:
        """Body, ETag and age of a key. Raises :class:`StoreSilent`."""

    def list(self, prefix: str) -> Iterator[Entry]:
        """Every key that begins with ``prefix``, in no promised order. Raises StoreSilent."""

    def create(self, key: str, body: bytes) -> Outcome:
        """Write a key that must not exist yet."""

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        """Write a key whose ETag must be ``etag``."""

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        """Upload a file; returns once every byte is confirmed. Raises :class:`StoreSilent`."""

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        """Download into ``path``; false when there is no such key. Raises :class:`StoreSilent`."""

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        """At most ``length`` bytes from ``start``. Raises :class:`StoreSilent`."""

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        """A temporary link, or ``None`` where this store has none."""

    def delete(self, key: str) -> None:
        """Remove a temp, scratch or ``unsettled/`` key, or a file that ``tenure gc`` may; nothing else."""


def is_key(key: str) -> bool:
    """Whether every backend can hold ``key``."""
    return len(key) <= MAX_KEY and _KEY.fullmatch(key) is not None


def shown(url: str) -> str:
    """A store's address for people, without what may be secret: the query, and all before an '@'.

    >>> shown("s3://AKIA:pass/word@bucket/prefix?endpoint_url=http://x"), shown("file:/a@b")
    ('s3://***@bucket/prefix', 'file:/a@b')
    """
    return re.sub(r"(//).*@", r"\1***@", url.partition("?")[0])


def check_key(key: str) -> str:
    """``key`` itself when every backend can hold it; ``ValueError`` when not."""
    if not is_key(key):
        raise ValueError(
            f"the key {key!r} must be parts of A-Z, a-z, 0-9, '_', '.', '=' and '-' joined by '/', "
            "each beginning with a letter or digit and of 255 characters at most, "
            f"{MAX_KEY} in all"
        )
    return key
