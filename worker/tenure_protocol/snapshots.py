"""What names a snapshot, its files and its environment; all of the records that the live side needs.

They stand apart from :mod:`tenure_protocol.records` because whoever only loads a model would pay 20 ms
for the classes of all the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tenure_protocol.codec import Corrupt, NewerProtocol, canonical, plain, short_id

PROTOCOL_VERSION = 1

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def check_name(name: str, what: str) -> str:
    """``name`` itself when it may stand in a key; ``ValueError`` with the rule when not."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r} must be 1 to 63 of a-z, 0-9, '_', '.' and '-', "
            "and begin with a letter or digit"
        )
    return name


def demand_protocol(value: Mapping[str, object], key: str) -> None:
    """Raises :class:`NewerProtocol` or :class:`Corrupt` for a record of a version that is not known here."""
    protocol = value.get("protocol")
    if isinstance(protocol, int) and protocol > PROTOCOL_VERSION:
        raise NewerProtocol(protocol, PROTOCOL_VERSION, key)
    if isinstance(protocol, int) and protocol < 1:
        raise Corrupt(f"protocol is {protocol}, they count from 1", key)


@dataclass(frozen=True)
class Pointer:
    """Where to resume: a snapshot that was confirmed by the store before this was written."""

    attempt: int
    step: int
    save: int  # a new save of an attempt takes a new number, so that no key ever has two contents
    ordinal: int  # 1, 2, ... along the one line of pointers of a job
    digest: str  # SHA-256 of the manifest's bytes

    def folder(self) -> str:
        """The last part of the snapshot's key."""
        return f"{self.step}-{self.save}"


@dataclass(frozen=True)
class SnapshotRef:
    """One snapshot of one job."""

    job: str
    pointer: Pointer


@dataclass(frozen=True)
class FileEntry:
    """One file of a snapshot."""

    sha256: str
    size: int  # bytes


def environment_digest(environment: Mapping[str, object]) -> str:
    """Name of an environment inside a record."""
    return short_id(canonical(cast(object, plain(environment))))
