"""What a dispatcher and the agents of a pool of own machines tell each other, through the store alone.

``orders``, ``answers``, ``ends`` and ``closed`` are create-only, so that each question has one answer,
whoever was faster: an order that its agent has not answered is withdrawn by answering it. ``quota`` is
changed by conditional replace; ``load`` has one writer, the agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from tenure_protocol.clock import Clock
from tenure_protocol.codec import encode
from tenure_protocol.lease.keys import POOLS, part
from tenure_protocol.records import PROTOCOL_VERSION, load
from tenure_protocol.store.api import Missing, Store, StoreSilent, Unknown, Written
from tenure_protocol.store.settle import create_once

R = TypeVar("R")
Kind = Literal["orders", "answers", "ends", "closed", "quota", "load"]


@dataclass(frozen=True)
class Order:
    """A launch that a machine is asked to take on, and what it needs there."""

    name: str
    job: str
    kind: str
    launch: int
    cards: int
    cpus: float
    memory_gb: float
    window_s: float
    wall_s: float | None = None
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Answer:
    """What became of an order: admitted, refused by the machine, or withdrawn by who had asked."""

    verdict: Literal["admitted", "refused", "withdrawn"]
    reason: str
    by: str
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class End:
    """A launch that is to end, or that has ended."""

    reason: str
    by: str
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class MachineQuota:
    """What a machine may give away, for ``lasts_s`` from the moment at which the store took this."""

    cards: int
    cpus: float
    memory_gb: float
    lasts_s: float
    write_id: str
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class MachineLoad:
    """What an agent has given away, as it saw itself when it wrote this."""

    cards: int
    cpus: float
    memory_gb: float
    of_cards: int  # by the quota in force; 0 once that has expired
    names: tuple[str, ...]  # of the launches
    write_id: str
    protocol: int = PROTOCOL_VERSION


class Mail:
    """The keys of one pool."""

    def __init__(self, store: Store, pool: str, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._prefix = f"{POOLS}{part(pool)}/"

    def key(self, kind: Kind, machine: str, name: str = "") -> str:
        """Where a record is; of a quota and a load there is one for each machine."""
        return f"{self._prefix}{kind}/{part(machine)}{f'/{name}' if name else ''}.json"

    def write(self, kind: Kind, machine: str, name: str, record: object) -> bool:
        """Create; whether the stored record is ours. Raises StoreSilent where nobody can say."""
        return create_once(self.store, self.key(kind, machine, name), encode(record), self.clock)

    def read(self, kind: Kind, machine: str, name: str, of: type[R]) -> R | None:
        """Raises StoreSilent, or Corrupt."""
        found = self.told(kind, machine, name, of)
        return found[0] if found else None

    def told(self, kind: Kind, machine: str, name: str, of: type[R]) -> tuple[R, str, float] | None:
        """The same with its ETag and its age in seconds, by the store. Raises StoreSilent, or Corrupt."""
        key = self.key(kind, machine, name)
        found = self.store.read(key)
        if isinstance(found, Missing):
            return None
        return load(of, found.body, key), found.etag, found.age_s

    def put(self, kind: Kind, machine: str, record: object, etag: str | None) -> str | None:
        """Create, or replace on an ETag; the new ETag, or ``None`` where somebody else was faster.

        Raises StoreSilent where the store did not say; the next one is decided from a read.
        """
        key, body = self.key(kind, machine), encode(record)
        outcome = (
            self.store.create(key, body) if etag is None else self.store.replace(key, body, etag)
        )
        if isinstance(outcome, Unknown):
            raise StoreSilent(outcome.reason)
        return outcome.etag if isinstance(outcome, Written) else None

    def names(self, kind: Kind, machine: str = "") -> Iterator[tuple[str, str, float]]:
        """(machine's part of the key, name, age in seconds) of every record, the oldest first."""
        prefix = f"{self._prefix}{kind}/" + (f"{part(machine)}/" if machine else "")
        rows = []
        for row in self.store.list(prefix):
            where, _, name = row.key.removeprefix(f"{self._prefix}{kind}/").rpartition("/")
            if where and name.endswith(".json"):
                rows.append((where, name.removesuffix(".json"), row.age_s))
        yield from sorted(rows, key=lambda row: -row[2])

    def delete(self, kind: Kind, machine: str, name: str) -> None:
        """Once its end is written down: the answer and the end stay, so that no name is used again."""
        self.store.delete(self.key(kind, machine, name))
