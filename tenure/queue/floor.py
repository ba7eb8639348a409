"""The cards of a pool in a simulation: what runs, until when, and what stopping it would lose."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from math import floor, inf

from tenure.queue.records import Submission


@dataclass(frozen=True)
class Running:
    """A job on its cards. ``job.duration_s`` is the work that was left to it when it started."""

    job: Submission
    from_s: float
    overhead_s: float  # of going on again: spent before its work goes on
    done_s: float  # of its work, before this start
    parcels: tuple[Parcel, ...] = ()

    @property
    def end_s(self) -> float:
        """When it is done if nobody stops it."""
        return self.from_s + self.overhead_s + self.job.expected_s

    def saved_s(self, now_s: float) -> float:
        """Work of this run that its last milestone keeps."""
        worked_s = max(0.0, now_s - self.from_s - self.overhead_s)
        reached_s = self.done_s + worked_s
        kept_s = floor(reached_s / self.job.milestone_s) * self.job.milestone_s
        return max(0.0, min(worked_s, kept_s - self.done_s))

    def loss_s(self, now_s: float) -> float:
        """What stopping it now costs: the time since its last milestone, and going on again."""
        return now_s - self.from_s - self.saved_s(now_s) + self.job.restart_s


@dataclass(frozen=True)
class Parcel:
    """Cards that one team has had since ``since_s`` without a break."""

    team: str
    since_s: float
    cards: int


class Floor:
    """Which cards are free, and when the others will be."""

    def __init__(self, cards: int) -> None:
        self.cards = cards
        self.free = cards
        self.running: dict[str, Running] = {}  # by the job's tie
        self._ends: list[tuple[float, str]] = []
        self._done_s: dict[str, float] = {}  # of jobs that were stopped; by name and team
        self._stopped: set[str] = set()
        self._known: tuple[list[float], list[int]] | None = None

    def start(self, job: Submission, now_s: float, parcels: tuple[Parcel, ...] = ()) -> Running:
        """The cards are taken at once; the caller has seen that they are free."""
        key = f"{job.team}\n{job.job}"
        overhead_s = job.restart_s if key in self._stopped else 0.0
        found = Running(job, now_s, overhead_s, self._done_s.get(key, 0.0), parcels)
        assert job.need.cards <= self.free, (
            f"{job.job} needs {job.need.cards}, {self.free} are free"
        )
        self.free -= job.need.cards
        self.running[job.tie] = found
        insort(self._ends, (found.end_s, job.tie))
        self._known = None
        return found

    def stop(self, tie: str, now_s: float) -> Submission:
        """Takes a job off its cards; what is left of it, from its last milestone."""
        run = self._off(tie)
        key = f"{run.job.team}\n{run.job.job}"
        saved_s = run.saved_s(now_s)
        self._done_s[key] = run.done_s + saved_s
        self._stopped.add(key)
        return replace(run.job, duration_s=run.job.expected_s - saved_s)

    def forget(self, job: Submission) -> None:
        """A job of this name begins anew: nothing of it is kept."""
        key = f"{job.team}\n{job.job}"
        self._done_s.pop(key, None)
        self._stopped.discard(key)

    def due(self, now_s: float) -> list[Running]:
        """The jobs that end by now, taken off their cards; in the order of their ends."""
        found = []
        while self._ends and self._ends[0][0] <= now_s:
            found.append(self._off(self._ends[0][1]))
        return found

    def _off(self, tie: str) -> Running:
        run = self.running.pop(tie)
        self.free += run.job.need.cards
        self._known = None
        del self._ends[bisect_left(self._ends, (run.end_s, tie))]
        return run

    @property
    def next_end_s(self) -> float:
        """When the next job ends; infinity where none runs."""
        return self._ends[0][0] if self._ends else inf

    def earliest_s(self, cards: int, now_s: float) -> float:
        """When so many cards are free if nothing else starts; infinity for more than there are."""
        if cards <= self.free:
            return now_s
        ends, frees = self._timeline()
        at = bisect_left(frees, cards)
        return ends[at] if at < len(ends) else inf

    def free_at(self, at_s: float) -> int:
        """Cards that are free at ``at_s`` if nothing else starts."""
        ends, frees = self._timeline()
        at = bisect_right(ends, at_s)
        return frees[at - 1] if at else self.free

    def _timeline(self) -> tuple[list[float], list[int]]:
        """The ends of what runs, and how many cards are free from each on."""
        if self._known is None:
            free, frees = self.free, []
            for _, tie in self._ends:
                free += self.running[tie].job.need.cards
                frees.append(free)
            self._known = ([end_s for end_s, _ in self._ends], frees)
        return self._known
