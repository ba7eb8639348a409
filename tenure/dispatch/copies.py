"""Backup copies of stragglers: jobs of their own, one of a kind, and what becomes of both.

A copy is the next run of its original's spec: the same configuration, seed, code, data and environment, pinned where
the original is, under an id that follows from the original's. Whoever enlists it, it is one job; nobody but its own
holder writes to it. Whether one is worth its price is pure (:mod:`tenure.plan.backup`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tenure.dispatch.ladder import Rung
from tenure.dispatch.memory import JobMemory
from tenure.dispatch.observations import Observatory
from tenure.dispatch.rows import LIKELY_DTYPES, peak_ratio, work_of
from tenure.dispatch.views import JobView, RungView
from tenure.dispatch.world import World
from tenure.plan.advise import Prospect
from tenure.plan.backup import Rest, left_by_lengths, left_by_pace
from tenure.plan.enlist import enlist_copy
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.store.api import Store

#: A job's whole time on one rung as a prospect: rung, its view, seconds.
Make = Callable[[Rung, RungView, float], Prospect]


class Stragglers:
    """What is left of jobs that run, and what a copy of each would take. Called from a dispatcher's rounds alone."""

    def __init__(self, rungs: Mapping[str, Rung], observatory: Observatory, world: World) -> None:
        self._rungs = rungs
        self._observatory = observatory
        self._world = world
        #: Of this round: by configuration and job, its seconds on each rung; of jobs that finished.
        self._took: dict[str, dict[str, list[tuple[str, float]]]] | None = None

    def begin(self) -> None:
        """A round begins: what was seen since the last one counts."""
        self._took = None

    def judged(
        self,
        view: JobView,
        on: str,
        usable: Sequence[tuple[Rung, RungView]],
        make: Make,
        due_in_s: float,
    ) -> JobView:
        """The same with what is left of it on its rung, and with what a copy would take on the others.

        Nothing for a job that is not held, that has a copy or is one, or of whose like too little is known.
        """
        w, spec = view.witness, self._world.jobs[view.job].spec
        paired = view.copied_as or view.copy_of
        if w is None or w.phase != "held" or paired or spec is None or on == "":
            return view
        took = self._lengths().get(work_of(spec, None), {})
        left = self._left(view, on, took, due_in_s)
        if left is None:
            return view
        fresh = [
            make(rung, now, whole_s)
            for rung, now in usable
            if rung.name != on and (whole_s := self._whole_s(rung.name, took)) is not None
        ]
        return replace(view, rest=left, fresh=tuple(fresh)) if fresh else view

    def _left(
        self,
        view: JobView,
        on: str,
        took: Mapping[str, list[tuple[str, float]]],
        due_in_s: float,
    ) -> Rest | None:
        pace = view.pace
        if pace is not None and not pace.guessed and pace.left_s is not None:
            return left_by_pace(pace.left_s, due_in_s)
        spent_s = sum(
            (row.held_s or 0.0) * self._ratio(row.rung, on)
            for _, row in self._observatory.lifetimes.rows()
            if row.job == view.job and row.end not in ("running", "unclaimed")
        )
        return left_by_lengths(self._on(on, took), spent_s + view.held_for_s, due_in_s)

    def _whole_s(self, rung: str, took: Mapping[str, list[tuple[str, float]]]) -> float | None:
        """The middle of what such jobs took, as it would have been on a rung."""
        found = sorted(self._on(rung, took))
        return found[len(found) // 2] if found else None

    def _on(self, rung: str, took: Mapping[str, list[tuple[str, float]]]) -> list[float]:
        return [
            sum(seconds * self._ratio(there, rung) for there, seconds in rows)
            for rows in took.values()
        ]

    def _ratio(self, there: str, here: str) -> float:
        """How many times as long work takes here as there, by the peaks of the two cards; 1 where one has none."""
        first, second = self._rungs.get(there), self._rungs.get(here)
        if first is None or second is None or there == here:
            return 1.0
        cards = self._observatory.card_of(first), self._observatory.card_of(second)
        ratios = (peak_ratio(*cards, dtype) for dtype in LIKELY_DTYPES)
        return next((each for each in ratios if each), 1.0)

    def _lengths(self) -> dict[str, dict[str, list[tuple[str, float]]]]:
        if self._took is None:
            self._took = {}
            for _, row in self._observatory.lifetimes.rows():
                memory = self._world.jobs.get(row.job)
                if (
                    memory is None
                    or memory.spec is None
                    or not row.held_s
                    or not _has_result(memory)
                ):
                    continue
                alike = self._took.setdefault(work_of(memory.spec, None), {})
                alike.setdefault(row.job, []).append((row.rung, row.held_s))
        return self._took


def _has_result(memory: JobMemory) -> bool:
    w = memory.witness
    return w is not None and w.phase == "finished" and w.exit_code == 0


def spare(jobs: Mapping[str, JobMemory], job: str) -> bool:
    """Whether a job is over without a result because the other of its pair has one."""
    memory = jobs[job]
    other = jobs.get(memory.copy_of or memory.copied_as)
    return other is not None and memory.final and not _has_result(memory) and _has_result(other)


def enlist(store: Store, world: World, job: str, reason: str, clock: Clock) -> None:
    """Enlist the copy of a job; once, whoever does it and however often. Raises StoreOutOfReach."""
    memory = world.jobs[job]
    if memory.spec is None:
        return
    try:
        enlist_copy(store, memory.plan, memory.spec, reason, clock)
    except Corrupt as error:
        world.troubles[error.key] = str(error)


def told(world: World, job: str) -> str:
    """The other of a pair in words, for whoever asks why; '' for a job that has none."""
    memory = world.jobs.get(job)
    if memory is None:
        return ""
    if memory.copy_of:
        return f"it is the backup copy of job {memory.copy_of}: {memory.copied_for}"
    if memory.copied_as:
        why = world.jobs[memory.copied_as].copied_for
        return f"it has a backup copy, job {memory.copied_as}: {why}"
    return ""
