"""How long machines lasted, and what was predicted of them: kept in the store, shared by all dispatchers.

What observations lack and the planner needs, in objects of its own (``lifetimes/<runner>/<card>.json``): an
older Tenure refuses a record with a field that it does not know, so the rows of observations stay as they
are. One object for each (runner, card), changed by conditional replace; a row is a launch, whoever writes
merges, the newest are kept. Lost, it is seen anew with the next launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from tenure.dispatch.rows import RUNNING, Place, merged
from tenure.dispatch.shelves import Shelves
from tenure_protocol.clock import Clock
from tenure_protocol.lease import keys
from tenure_protocol.records import Lifetime, Lifetimes
from tenure_protocol.store.api import Missing, Store, StoreSilent

_READS = 32  # of intents in one look
Rows = dict[tuple[str, int], Lifetime]


class LifetimeBook:
    """What one dispatcher knows of lifetimes. Called from its rounds alone."""

    def __init__(self, store: Store, clock: Clock, name: str) -> None:
        self._store = store
        self._clock = clock
        self._shelves: Shelves[Lifetime, Lifetimes] = Shelves(
            store,
            clock,
            Lifetimes,
            name,
            keys.LIFETIMES,
            keys.lifetimes,
            merge,
            self._merged,
        )
        #: By job, its launches whose prediction has no outcome yet, and where their rows are.
        self._open: dict[str, dict[int, Place]] = {}
        #: When (monotonic) those of them were launched that this process has launched.
        self._made_s: dict[tuple[str, int], float] = {}
        #: Launches of others whose job has ended, and when (monotonic): their intents tell the rest.
        self._ended: dict[tuple[Place, str, int], float] = {}
        self.troubles = self._shelves.troubles

    def put(self, place: Place, row: Lifetime) -> None:
        """Note what is known of one launch now; what an earlier sight knew and this one does not stays."""
        shelf = self._shelves.of(place)
        old = shelf.rows.get((row.job, row.launch))
        made = row if old is None else joined(old, row)
        if shelf.put(made):
            self._await(place, made)

    def _await(self, place: Place, row: Lifetime) -> None:
        if row.predicted_s is not None and row.took_s is None:
            self._open.setdefault(row.job, {})[row.launch] = place

    def predicted(
        self,
        place: Place,
        row: Lifetime,
        quantiles_s: Sequence[float],
        made_s: float | None = None,
    ) -> None:
        """A launch was made, and its job is said to be done within these times (``predict.LEVELS``).

        They count from ``made_s`` (monotonic), when its intent was written; without it, from now.
        """
        at_s = self._clock.monotonic_s() if made_s is None else made_s
        self._made_s[row.job, row.launch] = at_s
        told_s = tuple(round(each, 1) for each in quantiles_s)  # they are written again and again
        self.put(place, replace(row, predicted_s=told_s))

    def finished(self, job: str, ended_s: float | None = None) -> None:
        """A job ended with a result, now or then (monotonic): what was predicted of it has its outcome.

        At once where this process made the launch; else with :meth:`score`.
        """
        at_s = self._clock.monotonic_s() if ended_s is None else ended_s
        for launch, place in self._open.pop(job, {}).items():
            made_s = self._made_s.pop((job, launch), None)
            if made_s is None:
                self._ended[place, job, launch] = at_s
            else:
                self._came(place, job, launch, at_s - made_s)

    def _came(self, place: Place, job: str, launch: int, took_s: float) -> None:
        row = self._shelves.of(place).rows.get((job, launch))
        if row is not None and row.took_s is None:  # it may be too old to be kept by now
            self.put(place, replace(row, took_s=max(0.0, took_s)))

    def score(self) -> bool:
        """Fill in the outcomes of launches that another process made and foretold; whether more of them wait.

        A launch was made when its intent was stored, and both that and the end of its job are ages by the
        store's own clock: no two clocks are compared. What is left over waits for the next look; where the
        store is silent it has to, and nothing more can be done now.
        """
        for place, job, launch in list(self._ended)[:_READS]:
            key = keys.intent(job, launch)
            try:
                found = self._store.read(key)
            except StoreSilent as error:
                self.troubles[key] = str(error)
                return False
            self.troubles.pop(key, None)
            ended_s = self._ended.pop((place, job, launch))
            if not isinstance(found, Missing):
                made_s = self._clock.monotonic_s() - found.age_s
                self._came(place, job, launch, ended_s - made_s)
        return bool(self._ended)

    def forget(self, job: str) -> None:
        """A job ended without a result: its predictions have no outcome and are not scored."""
        for launch in self._open.pop(job, {}):
            self._made_s.pop((job, launch), None)

    def rows(self) -> list[tuple[Place, Lifetime]]:
        """Every row that is known, by (runner, card), the oldest first."""
        return self._shelves.rows()

    def write(self, at_once: bool = False) -> None:
        """Write what is new, every five minutes or ``at_once``; by a replace on what was read before."""
        self._shelves.write(at_once)

    def read(self) -> None:
        """Merge in what other dispatchers have seen. A silent store costs knowledge and nothing else."""
        self._shelves.read()

    @property
    def silent(self) -> bool:
        """Whether the store did not answer the last time it was asked what others have seen."""
        return keys.LIFETIMES in self.troubles

    def _merged(self, place: Place) -> None:
        for row in self._shelves.of(place).rows.values():
            self._await(place, row)


def merge(one: Iterable[Lifetime], other: Iterable[Lifetime]) -> Rows:
    """The rows of both, a launch once, the newest at most.

    >>> a = Lifetime("j", 1, "r", "running", held_s=5.0, predicted_s=(1.0,) * 9)
    >>> b = Lifetime("j", 1, "r", "lost", held_s=9.0)
    >>> [(row.end, row.held_s, row.predicted_s is None) for row in merge([b], [a]).values()]
    [('lost', 9.0, False)]
    """
    return merged(one, other, joined)


def joined(one: Lifetime, other: Lifetime) -> Lifetime:
    """Two sights of one launch as one: who saw more stands, and what only the other one knows is added.

    The order of the two does not matter, so that all writers come to the same.
    """
    less, more = sorted((one, other), key=_seen)
    gaps = {
        each.name: getattr(less, each.name)
        for each in fields(Lifetime)
        if getattr(more, each.name) is None
    }
    return replace(more, **gaps)


def _seen(row: Lifetime) -> tuple[bool, float, int, str]:
    return row.end != RUNNING, row.held_s or 0.0, row.milestones, repr(row)


def scored(rows: Iterable[Lifetime]) -> list[tuple[tuple[float, ...], float]]:
    """Predictions that have an outcome, as :func:`tenure.plan.predict.calibration` takes them."""
    return [
        (row.predicted_s, row.took_s)
        for row in rows
        if row.predicted_s is not None and row.took_s is not None and math.isfinite(row.took_s)
    ]
