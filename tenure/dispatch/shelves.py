"""Rows of launches by (runner, card), each place in one object of the store that all dispatchers share.

A place's object is changed by conditional replace. Whoever writes it merges in what it has seen itself, so two
dispatchers that saw one launch count it once. Nothing but judgements depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from tenure.dispatch.rows import Place, R, encode_with_rows, newest
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.records import Lifetimes, Observations, load
from tenure_protocol.store.api import Missing, Store, StoreSilent, Written

_WRITE_EVERY_S = 300.0
F = TypeVar("F", bound=Observations | Lifetimes)


@dataclass
class Shelf(Generic[R]):
    """The rows of one (runner, card), by (job, launch); the newest stand last."""

    rows: dict[tuple[str, int], R] = field(default_factory=dict)
    etag: str = ""
    dirty: bool = False
    #: Rows as they were last encoded: of hundreds, a few have changed when they are written again.
    encoded: dict[tuple[str, int], tuple[R, bytes]] = field(default_factory=dict)

    def put(self, row: R) -> bool:
        """Keep a row as the newest; whether that changed anything."""
        key = (row.job, row.launch)
        if self.rows.get(key) == row:
            return False
        self.rows.pop(key, None)
        self.rows[key] = row
        self.rows, self.dirty = newest(self.rows), True
        return True

    def encode_rows(self) -> list[bytes]:
        """The rows in canonical JSON, in their order."""
        before, self.encoded = self.encoded, {}
        for key, row in self.rows.items():
            known = before.get(key)
            self.encoded[key] = known if known and known[0] is row else (row, encode(row))
        return [body for _, body in self.encoded.values()]


class Shelves(Generic[R, F]):
    """The shelves of one kind that a dispatcher has seen. Called from its rounds alone."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        frame: type[F],
        name: str,
        prefix: str,
        key: Callable[[str, str], str],
        merge: Callable[[Iterable[R], Iterable[R]], dict[tuple[str, int], R]],
        changed: Callable[[Place], None],
        make: Callable[[], Shelf[R]] = Shelf,
    ) -> None:
        """``frame`` is the record that a place's rows are kept in, under ``key(runner, card)`` below ``prefix``.

        ``changed`` is told of a place into which rows of others were merged.
        """
        self._store = store
        self._clock = clock
        self._frame = frame
        self._name = name
        self._prefix = prefix
        self._key = key
        self._merge = merge
        self._changed = changed
        self._make = make
        self.at: dict[Place, Shelf[R]] = {}
        self._keys: dict[str, Place] = {}
        self._written_s = clock.monotonic_s()
        self.troubles: dict[str, str] = {}

    def of(self, place: Place) -> Shelf[R]:
        """The shelf of a place; an empty one at first."""
        return self.at.setdefault(place, self._make())

    def rows(self) -> list[tuple[Place, R]]:
        """Every row that is known, by (runner, card), the oldest first."""
        return [(place, row) for place, kept in self.at.items() for row in kept.rows.values()]

    def write(self, at_once: bool = False) -> None:
        """Write what is new, every five minutes or ``at_once``; by a replace on what was read before."""
        now_s = self._clock.monotonic_s()
        if not at_once and now_s - self._written_s < _WRITE_EVERY_S:
            return
        self._written_s = now_s
        for place, kept in self.at.items():
            if kept.dirty:
                self._write(place, kept)

    def _write(self, place: Place, kept: Shelf[R]) -> None:
        runner, card = place
        key = self._key(runner, card)
        frame = self._frame(runner, card, self._name, (), self._clock.nonce())
        body = encode_with_rows(frame, kept.encode_rows())
        outcome = (
            self._store.replace(key, body, kept.etag)
            if kept.etag
            else self._store.create(key, body)
        )
        if isinstance(outcome, Written):
            kept.etag, kept.dirty = outcome.etag, False
            return
        kept.etag = ""  # another wrote it, or that is not known: it is read before the next try
        try:
            self._read(key)
        except StoreSilent as error:
            self.troubles[key] = str(error)

    def read(self) -> bool:
        """Merge in what other dispatchers have seen; whether anybody may have kept anything.

        A silent store costs knowledge and nothing else.
        """
        try:
            listed = list(self._store.list(self._prefix))
            for entry in listed:
                place = self._keys.get(entry.key)
                if place is None or self.at[place].etag != entry.etag:
                    self._read(entry.key)
            self.troubles.pop(self._prefix, None)
        except StoreSilent as error:
            self.troubles[self._prefix] = str(error)
            return True
        return bool(listed)

    def _read(self, key: str) -> None:
        """Merge one object into what is known. A newer Tenure's is left alone, and said."""
        found = self._store.read(key)
        if isinstance(found, Missing):
            return
        try:
            stored = load(self._frame, found.body, key)
        except Corrupt as error:
            self.troubles[key] = str(error)
            return
        self.troubles.pop(key, None)
        place = stored.runner, stored.card
        kept = self.of(place)
        self._keys[key], kept.etag = place, found.etag
        rows = cast("tuple[R, ...]", stored.rows)
        merged = self._merge(rows, kept.rows.values())
        kept.dirty = kept.dirty or list(merged.values()) != list(rows)
        kept.rows = merged
        self._changed(place)
