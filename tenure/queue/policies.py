"""Other ways to keep a queue, to compare with: first come first served, plain priority, and the seed's system.

``fifo-local-preemption`` is the system that was gamed: priorities count within a team only, but a job of more
priority takes the place of its team's lesser one, in the queue or on the cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from tenure.queue.fair import Fair, Pick
from tenure.queue.floor import Floor, Parcel, Running
from tenure.queue.records import Penalty, Pool, Submission, Team

Name = Literal["ours", "fifo", "fifo-backfill", "priority", "fifo-local-preemption"]
NAMES: tuple[Name, ...] = ("ours", "fifo", "fifo-backfill", "priority", "fifo-local-preemption")


class Policy(Protocol):
    """What a simulation asks of a queue; :class:`tenure.queue.fair.Fair` says what each call means."""

    penalties: list[Penalty]

    def add(self, job: Submission, now_s: float) -> None: ...
    def withdraw(self, job: Submission, now_s: float) -> None: ...
    def ended(self, run: Running, now_s: float) -> None: ...
    def submitted(self, job: Submission, now_s: float) -> None: ...
    def cancelled(self, job: Submission, had_cards: bool, now_s: float) -> None: ...
    def held(self, job: Submission, had_cards: bool, now_s: float) -> None: ...
    def replaced(self, job: Submission, had_cards: bool, now_s: float) -> None: ...
    def round(self, now_s: float, floor: Floor) -> Iterator[Pick]: ...
    def started(self, pick: Pick, now_s: float) -> tuple[Parcel, ...]: ...
    def preempted(self, tie: str) -> None: ...


class Plain:
    """One line for everybody: by age, or by priority and then age. The first that does not fit stops the rest."""

    def __init__(self, *, by_priority: bool = False, backfill: bool = False) -> None:
        self.penalties: list[Penalty] = []
        self._by_priority, self._backfill = by_priority, backfill
        self._place: dict[str, float] = {}  # by tie: as of when it stands in the line
        self.waiting: dict[str, Submission] = {}

    def add(self, job: Submission, now_s: float) -> None:
        """A job comes to wait, with its age."""
        del now_s
        self.waiting[job.tie] = job
        self._place.setdefault(job.tie, job.submitted_s)

    def withdraw(self, job: Submission, now_s: float) -> None:
        """A waiting job leaves."""
        del now_s
        del self.waiting[job.tie]
        self._place.pop(job.tie, None)

    def ended(self, run: Running, now_s: float) -> None:
        """Nothing is charged."""

    def submitted(self, job: Submission, now_s: float) -> None:
        """Nothing is watched for."""

    def cancelled(self, job: Submission, had_cards: bool, now_s: float) -> None:
        """Nothing is watched for."""

    def held(self, job: Submission, had_cards: bool, now_s: float) -> None:
        """Nothing is watched for."""

    def replaced(self, job: Submission, had_cards: bool, now_s: float) -> None:
        """Nothing is watched for."""

    def preempted(self, tie: str) -> None:
        """Nothing is remembered."""

    def started(self, pick: Pick, now_s: float) -> tuple[Parcel, ...]:
        """A pick was started."""
        del now_s
        del self.waiting[pick.job.tie]
        return ()

    def round(self, now_s: float, floor: Floor) -> Iterator[Pick]:
        """The jobs that start now."""
        line = self._in_order()
        at = 0
        while at < len(line) and line[at].need.cards <= floor.free:
            yield Pick(line[at], "first in line")
            at += 1
        if not self._backfill or at == len(line) or not floor.free:
            return
        first = line[at].need.cards
        at_s = floor.earliest_s(first, now_s)
        for job in line[at + 1 :]:
            if job.need.cards > floor.free:
                continue
            if now_s + job.expected_s <= at_s or floor.free_at(at_s) - job.need.cards >= first:
                yield Pick(job, "it ends before the first in line could start")

    def _in_order(self) -> list[Submission]:
        def key(job: Submission) -> tuple[int, float, str]:
            return (
                -job.priority if self._by_priority else 0,
                self._place[job.tie],
                job.tie,
            )

        return sorted(self.waiting.values(), key=key)


class LocalPreemption(Plain):
    """The seed's system: a team's job takes the place of its own lesser one, waiting or running."""

    def __init__(self) -> None:
        super().__init__()
        self._fresh: list[Submission] = []

    def add(self, job: Submission, now_s: float) -> None:
        """A job comes to wait; a new one in the place of the first lesser one of its team."""
        new = job.tie not in self._place and job.submitted_s == now_s
        super().add(job, now_s)
        if not new:
            self._place[job.tie] = now_s  # a victim goes to the back
            return
        self._fresh.append(job)
        lesser = [
            other
            for other in self.waiting.values()
            if other.team == job.team and other.priority < job.priority
        ]
        if lesser:
            first = min(lesser, key=lambda other: (self._place[other.tie], other.tie))
            mine, its = self._place[job.tie], self._place[first.tie]
            self._place[job.tie], self._place[first.tie] = its, mine

    def round(self, now_s: float, floor: Floor) -> Iterator[Pick]:
        """The jobs that start now: first those that take a running one's place."""
        for job in self._fresh:
            if job.tie not in self.waiting:
                continue
            lesser = sorted(
                (
                    run
                    for run in floor.running.values()
                    if run.job.team == job.team and run.job.priority < job.priority
                ),
                key=lambda run: (run.job.priority, -run.from_s, run.job.tie),
            )
            victims: list[str] = []
            cards = floor.free
            for run in lesser:
                if cards >= job.need.cards:
                    break
                victims.append(run.job.tie)
                cards += run.job.need.cards
            if victims and cards >= job.need.cards:
                yield Pick(job, "in the place of its team's lesser job", tuple(victims))
        self._fresh = []
        yield from super().round(now_s, floor)


def make(
    name: Name, pool: Pool, teams: Sequence[Team], half_life_s: float, max_wait_s: float
) -> Policy:
    """A queue by its name."""
    if name == "ours":
        return Fair(pool, teams, half_life_s, max_wait_s)
    if name == "fifo-local-preemption":
        return LocalPreemption()
    return Plain(by_priority=name == "priority", backfill=name == "fifo-backfill")
