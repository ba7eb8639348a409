"""The waiting jobs of a pool, kept so that the next one is found without looking at them all.

Per team and number of cards there are two heaps, one in the team's own order and one by length, and over all
teams one list by age. What has left is dropped when it comes up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from tenure.queue.rank import OwnOrder, own_order
from tenure.queue.records import Submission

#: The number tells a job's entry from an older one of the same job, and never decides between two jobs.
_Entry = tuple[OwnOrder, str, int, Submission]
#: Of the jobs of one size, so many are asked whether they end early enough before the shortest is.
_LOOKS = 16


class _Size:
    """The waiting jobs of one team that need the same number of cards."""

    def __init__(self) -> None:
        self.ordered: list[_Entry] = []
        self.shortest: list[tuple[float, _Entry]] = []

    def add(self, job: Submission, number: int) -> None:
        entry = (own_order(job), job.tie, number, job)
        heappush(self.ordered, entry)
        heappush(self.shortest, (job.expected_s, entry))


class _Aged:
    """Jobs by age; what waits no longer is passed over."""

    def __init__(self, waiting: dict[str, Submission]) -> None:
        self._waiting = waiting
        self._entries: list[tuple[float, str]] = []
        self._first = 0

    def add(self, job: Submission) -> None:
        entry = (job.submitted_s, job.tie)
        if self._first and entry < self._entries[self._first - 1]:
            del self._entries[: self._first]
            self._first = 0
        insort(self._entries, entry, lo=self._first)

    def __iter__(self) -> Iterator[Submission]:
        while self._first < len(self._entries) and not self._waits(self._first):
            self._first += 1
        if self._first > 64 and self._first * 2 > len(self._entries):
            del self._entries[: self._first]
            self._first = 0
        last = ""
        for at in range(self._first, len(self._entries)):
            tie = self._entries[at][1]
            if tie != last and self._waits(at):  # a job that came back stands here twice
                last = tie
                yield self._waiting[tie]

    def _waits(self, at: int) -> bool:
        submitted_s, tie = self._entries[at]
        job = self._waiting.get(tie)
        return job is not None and job.submitted_s == submitted_s


class Line:
    """All waiting jobs; each is in it once, under its tie."""

    def __init__(self) -> None:
        self.waiting: dict[str, Submission] = {}
        self.longest_s = 0.0  # of any job that ever waited here
        self._sizes: dict[str, dict[int, _Size]] = {}
        self._counts: dict[str, int] = {}
        self._aged: dict[str, _Aged] = {}
        self._added = 0
        self._heads: dict[str, Submission] = {}

    def add(self, job: Submission, team: str) -> None:
        """A job comes to wait; ``team`` is whose entitlement it draws on."""
        assert job.tie not in self.waiting, f"{job.job} waits already"
        self.waiting[job.tie] = job
        self._added += 1
        self._heads.pop(team, None)
        self.longest_s = max(self.longest_s, job.expected_s)
        self._sizes.setdefault(team, {}).setdefault(job.need.cards, _Size()).add(job, self._added)
        self._counts[team] = self._counts.get(team, 0) + 1
        self._aged.setdefault(team, _Aged(self.waiting)).add(job)

    def remove(self, job: Submission, team: str) -> None:
        """A job waits no longer."""
        del self.waiting[job.tie]
        self._counts[team] -= 1
        self._heads.pop(team, None)

    def teams(self) -> list[str]:
        """The teams that have a waiting job, in the order of their names."""
        return sorted(team for team, count in self._counts.items() if count)

    def head(self, team: str) -> Submission:
        """The next of a team's jobs, by its own order."""
        if team not in self._heads:
            tops = [top for size in self._sizes[team].values() if (top := self._top(size))]
            self._heads[team] = min(tops)[-1]
        return self._heads[team]

    def fitting(self, team: str, cards: int, ok: Callable[[Submission], bool]) -> Submission | None:
        """The first of a team's jobs, by its own order, that needs ``cards`` at most and that is ``ok``.

        Of one size a few are asked in order, then the shortest: whether a job is ok is a matter of when it ends.
        """
        best: _Entry | None = None
        for wanted, size in self._sizes.get(team, {}).items():
            top = self._top(size) if wanted <= cards else None
            if top is None or (best is not None and best < top):
                continue
            found = top if ok(top[-1]) else self._later(size, ok)
            if found is not None and (best is None or found < best):
                best = found
        return best[-1] if best else None

    def oldest(self, team: str) -> Iterator[Submission]:
        """A team's waiting jobs by age."""
        return iter(self._aged.get(team, ()))

    def _live(self, entry: _Entry) -> bool:
        return self.waiting.get(entry[1]) is entry[-1]

    def _top(self, size: _Size) -> _Entry | None:
        while size.ordered and not self._live(size.ordered[0]):
            heappop(size.ordered)
        return size.ordered[0] if size.ordered else None

    def _later(self, size: _Size, ok: Callable[[Submission], bool]) -> _Entry | None:
        while size.shortest and not self._live(size.shortest[0][1]):
            heappop(size.shortest)
        shortest = size.shortest[0][1]
        if not ok(shortest[-1]):
            return None
        if len(size.ordered) <= _LOOKS:
            size.ordered = [entry for entry in size.ordered if self._live(entry)]
            heapify(size.ordered)
            return min(entry for entry in size.ordered if ok(entry[-1]))
        # The few next ones lie near the front of a heap, though not in order: taken off and put back.
        taken: list[_Entry] = []
        found: _Entry | None = None
        while len(taken) < _LOOKS and found is None and (top := self._top(size)) is not None:
            taken.append(heappop(size.ordered))
            found = top if ok(top[-1]) else None
        for entry in taken:
            heappush(size.ordered, entry)
        return found or shortest
