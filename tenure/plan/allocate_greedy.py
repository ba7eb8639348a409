"""The allocation of many jobs: by gain per unit of what is scarce, with a local search behind it.

1. Prices of all limits (:mod:`tenure.plan.allocate_ascent`): a job's cost on a rung is its dollars and
   what the scarce hours there are worth to others.
2. Each job goes to the rung where that is least, those first who lose most per hour if they have to go
   elsewhere, while the rung has room for it in its time.
3. Each rung's jobs are put together on launches by their length, and launches on places by when they
   must have ended; then they change places (:mod:`tenure.plan.allocate_repack`). Who has no place goes
   where it costs least.
4. Jobs move to where they cost less, as long as anybody gains.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from tenure.plan.allocate_ascent import Climbed, ascend, given_h
from tenure.plan.allocate_floor import Floor, Purse
from tenure.plan.allocate_launches import Launch
from tenure.plan.allocate_model import SLACK, Problem
from tenure.plan.allocate_repack import Rates, exchange, trade
from tenure.plan.shadow import Relaxed, relaxed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CANDIDATES = 64  # rungs that a job is tried on before all of them are
ALIKE = 1.005  # rungs that cost as much as the best, or next to nothing more
ROUNDS = 4  # of those who were late where they were wanted
PASSES = 3  # of the local search at most
CLASSES = (1, 2, 4, 8)  # of deadlines within which jobs are put together
CLASSES_LATE = (1, 4, 8)  # the same for those who were late at first
TOO_DEAR = (
    1.1  # a launch that costs so many times what its jobs cost elsewhere is not begun at first
)


@dataclass(frozen=True)
class Filled:
    """What the greedy way found."""

    launches: tuple[Launch, ...]
    left: tuple[int, ...]  # jobs without a place
    climbed: Climbed
    relaxed: Relaxed


def fill(problem: Problem, jobs: list[int]) -> Filled:
    """Place as many of the jobs as the greedy way can, at little cost."""
    of = relaxed(problem, renewals=False)
    climbed = ascend(of, jobs)
    filling = _Filling(problem, of, climbed)
    left = jobs
    for turn in range(ROUNDS):
        room = _Room(of, climbed.hours, filling.used_h())
        left = filling.by_price(left, room, first=turn == 0) if left else left
    left = filling.settle(left)
    filling.improve()
    filling.tighten()
    launches = [launch for floor in filling.floors for launch in floor.launches()]
    return Filled(tuple(launches), tuple(left), climbed, of)


class _Filling:
    """The state of one allocation."""

    def __init__(self, problem: Problem, of: Relaxed, climbed: Climbed) -> None:
        self._problem, self._of = problem, of
        self._usd: Floats = np.array(problem.usd_per_h)
        self._last: NDArray[np.intp] = np.array(of.last)
        hours = problem.launch_h
        self._cost_usd = np.where(np.isfinite(hours), hours, 0.0) * self._usd
        self._cost_usd[~np.isfinite(hours)] = inf  # of a launch of its own
        machine_h = np.where(np.isfinite(hours), hours * problem.share, 1e15)
        per_h = np.maximum(self._usd[:, None] + climbed.per_h, 1e-9)
        self._machine_h = machine_h
        self._per_h: list[list[float]] = per_h.tolist()
        self._priced = machine_h * per_h.T[self._last]
        purse = Purse.of(problem)
        self.floors = [Floor(problem, r, purse) for r in range(len(problem.rungs))]
        self._cards = [job.cards for job in problem.jobs]
        # What a job that is late costs elsewhere: as on the next best rung.
        second = min(1, len(self._usd) - 1)
        self._elsewhere: list[float] = np.partition(self._priced, second, axis=1)[
            :, second
        ].tolist()
        self._hours = hours
        self._due_h = np.array(problem.due_h) + SLACK
        self._look()
        self._due_list: list[float] = problem.due_h
        self._at: dict[int, int] = {}  # job -> rung

    # ------------------------------------------------------------------- by price

    def by_price(self, jobs: list[int], room: _Room, *, first: bool) -> list[int]:
        """Give each job the rung of least priced cost that has room; return those that have none.

        First those for whom one rung is the best, then those for whom several are alike, spread as the
        relaxation spreads them, and then who has found no room, on the next best. In each turn those
        come first who lose most per hour elsewhere. ``first``: launches that are not worth their price wait.
        """
        count = min(CANDIDATES, len(self._usd))
        priced = self._priced[jobs]
        tops = np.argpartition(priced, count - 1, axis=1)[:, :count]
        priced = np.take_along_axis(priced, tops, axis=1)
        order = priced.argsort(axis=1, kind="stable")
        tops, priced = (np.take_along_axis(it, order, axis=1) for it in (tops, priced))
        hours = np.take_along_axis(self._machine_h[jobs], tops, axis=1)
        alike = (priced <= ALIKE * priced[:, :1]).sum(axis=1)
        per_hour = (priced[:, min(1, count - 1)] - priced[:, 0]) / hours[:, 0]
        turn = np.argsort(-per_hour, kind="stable")
        wanted: list[list[int]] = [[] for _ in self.floors]
        candidates, candidates_h = tops.tolist(), hours.tolist()

        def seat(n: int, most: int, as_relaxed: bool) -> bool:
            job = jobs[n]
            last = self._of.last[job]
            for rung, hours in zip(candidates[n][:most], candidates_h[n], strict=False):
                if hours < 1e14 and room.take(rung, last, hours, as_relaxed):
                    wanted[rung].append(job)
                    return True
            return False

        left = [n for n in turn[alike[turn] == 1].tolist() if not seat(n, 1, False)]
        several = turn[alike[turn] > 1].tolist()
        left += [n for n in several if not seat(n, int(alike[n]), True)]
        without = [jobs[n] for n in left if not seat(n, count, False)]
        for rung, these in enumerate(wanted):
            if not these:
                continue
            already = self.floors[rung].clear()
            late = self._launch_all(rung, [*already, *these], first=first)
            self._priced[late, rung] = 1e18  # the next round tries others
            without += late
        return without

    def used_h(self) -> Floats:
        """Hours of launches by rung and the last period of their jobs, shape (rungs, periods)."""
        found = np.zeros((len(self.floors), self._of.periods))
        for r, floor in enumerate(self.floors):
            for draft in floor.drafts.values():
                found[r, min(self._of.last[j] for j in draft.jobs)] += draft.hours
        return found

    def _launch_all(self, rung: int, jobs: list[int], *, first: bool) -> list[int]:
        """Put jobs together, and launch them in the order of their times; return those that are late."""
        ways = [[[job] for job in jobs]]
        if self._problem.packs(rung) and len(jobs) > 1:
            ways = [self._together(rung, jobs, classes) for classes in CLASSES]
        tried = [
            self._scheduled(rung, groups, order) for groups in ways for order in (0, 1) if groups
        ]
        _, turn, late = min(tried, key=lambda it: it[0]) if tried else (0.0, [], [])
        if first:
            dear = [group for group in turn if self._gain_usd(rung, group, TOO_DEAR) < 0]
            late += [job for group in dear for job in group]
            turn = [group for group in turn if self._gain_usd(rung, group, TOO_DEAR) >= 0]
        late += self._open(rung, turn)
        late = self._repack(rung, late)
        for draft in self.floors[rung].drafts.values():
            self._at.update(dict.fromkeys(draft.jobs, rung))
        return late

    def _open(self, rung: int, groups: list[list[int]]) -> list[int]:
        """Launch groups in turn; return those that cannot be."""
        floor = self.floors[rung]
        return [job for group in groups if not floor.open(group) for job in group]

    def _repack(self, rung: int, late: list[int]) -> list[int]:
        """Let jobs change places, and launch all anew; who is late may have the time that this has saved."""
        floor, rates = self.floors[rung], self._rates(rung)
        drafts = list(floor.drafts.values())
        changed = self._problem.packs(rung) and exchange(drafts, rates)
        if not (changed or late):
            return late
        late = trade(drafts, late, rates)
        floor.clear()
        late += self._open(rung, [draft.jobs for draft in drafts])
        for classes in CLASSES_LATE if late else ():
            worth = self._worth(rung, late, classes)
            placed = {job for group in worth for job in group} - set(self._open(rung, worth))
            late = [job for job in late if job not in placed]
        return late

    def _worth(self, rung: int, late: list[int], classes: int) -> list[list[int]]:
        """Jobs in groups that are cheaper here than elsewhere, those first that save most in an hour."""
        hours = self.floors[rung].hours
        groups = self._together(rung, late, classes)
        gains = [(self._gain_usd(rung, it) / max(hours[job] for job in it), it) for it in groups]
        return [group for gain, group in sorted(gains, key=lambda it: -it[0]) if gain > 0]

    def _gain_usd(self, rung: int, group: list[int], times: float = 1.0) -> float:
        """What so many times the cost of jobs elsewhere is above a launch of them, its limits priced as well."""
        lasts_h = max(self.floors[rung].hours[job] for job in group)
        elsewhere = times * sum(self._elsewhere[job] for job in group)
        return elsewhere - lasts_h * self._per_h[rung][self._of.last[group[0]]]

    def _rates(self, rung: int) -> Rates:
        """What is known of jobs on a rung."""
        return Rates(self.floors[rung].hours, self._due_list, self._cards, self._elsewhere)

    def _scheduled(
        self, rung: int, groups: list[list[int]], order: int
    ) -> tuple[float, list[list[int]], list[int]]:
        """What a way to group costs, the groups in turn, and who is late: as if there were no quota.

        In order 0 those go first that must begin first; in order 1, of those due in one period, the
        longest: short ones fill what is left at the end.
        """
        hours, due_h = self.floors[rung].hours, self._problem.due_h
        most = self._problem.rungs[rung].concurrency
        free = [0.0] * (len(groups) if most is None else min(most, len(groups)))
        timed = [
            (min(due_h[j] - hours[j] for j in group), hours[group[0]], group) for group in groups
        ]
        if order:
            bounds_h = self._of.bounds_h
            timed.sort(key=lambda it: (bisect_right(bounds_h, it[0] + it[1] + SLACK), -it[1]))
        else:
            timed.sort(key=lambda it: it[0])
        cost, late, turn = 0.0, list[int](), list[list[int]]()
        for begin_h, lasts_h, group in timed:
            at_h = free[0]
            if at_h > begin_h:
                out = [j for j in group if at_h + hours[j] > due_h[j]]
                late += out
                cost += sum(self._elsewhere[j] for j in out)
                if len(out) == len(group):
                    continue
                group = [j for j in group if at_h + hours[j] <= due_h[j]]
                lasts_h = hours[group[0]]
            heapq.heapreplace(free, at_h + lasts_h)
            cost += lasts_h * self._usd[rung]
            turn.append(group)
        return cost, turn, late

    def _together(self, rung: int, jobs: list[int], classes: int) -> list[list[int]]:
        """Jobs of about equal length, as many as a launch takes, within so many classes of deadlines."""
        it = self._problem.rungs[rung]
        most = it.per_launch or it.cards
        hours, cards_of = self.floors[rung].hours, self._cards
        groups: list[list[int]] = []
        for part in self._parts(rung, jobs, classes):
            filling: list[tuple[list[int], int]] = []  # a group, its free cards
            for job in sorted(part, key=lambda j: -hours[j]):
                cards = cards_of[job]
                for at, (group, free) in enumerate(filling):
                    if cards <= free:
                        group.append(job)
                        filling[at] = (group, free - cards)
                        if free == cards or len(group) == most:
                            del filling[at]
                        break
                else:
                    groups.append([job])
                    if cards < it.cards and most > 1:
                        filling.append((groups[-1], it.cards - cards))
        return groups

    def _parts(self, rung: int, jobs: list[int], classes: int) -> list[list[int]]:
        """Jobs by the window of the quota in which they must begin, and those by deadline in so many classes."""
        due_h, hours = self._problem.due_h, self.floors[rung].hours
        renewed_h = [it.from_h for it in self._problem.windows(rung)]
        windows: list[list[int]] = [[] for _ in renewed_h]
        for job in jobs:
            windows[max(0, bisect_right(renewed_h, due_h[job] - hours[job]) - 1)].append(job)
        found = []
        for part in windows:
            part.sort(key=due_h.__getitem__)
            found += _cut([due_h[job] for job in part], part, classes)
        return found

    # ------------------------------------------------------------------- one by one

    def settle(self, left: list[int]) -> list[int]:
        """Place one job after the other where it costs least now; return those without any place."""
        none = []
        self._look()
        order = sorted(left, key=lambda j: (self._of.last[j], -float(self._priced[j].min())))
        for job in order:
            if not self._place(job, inf):
                none.append(job)
        return none

    def _place(self, job: int, below_usd: float) -> bool:
        """Put a job where it costs least, and less than so much."""
        for floor in self.floors:
            if floor.roomy and floor.join(job):
                self._at[job] = floor.rung
                return True
        cost_usd, hours = self._cost_usd[job], self._hours[job]
        can = (self._free_h + hours <= self._due_h[job]) & (hours <= self._spare_h)
        can &= cost_usd < below_usd
        for rung in np.flatnonzero(can)[np.argsort(cost_usd[can], kind="stable")].tolist():
            floor = self.floors[rung]
            if floor.open([job]):
                self._at[job] = rung
                self._free_h[rung], self._spare_h[rung] = floor.free_h, floor.spare_h
                return True
        return False

    def _look(self) -> None:
        """Note what each rung has to give, so that most that cannot be need not be tried."""
        self._free_h = np.array([floor.free_h for floor in self.floors])
        self._spare_h = np.array([floor.spare_h for floor in self.floors])

    # ------------------------------------------------------------------- local search

    def improve(self) -> None:
        """Move jobs that have a launch of their own to where they cost less, while that helps."""
        for _ in range(PASSES):
            if not sum(self._move(job) for job in self._worth_a_try()):
                return

    def tighten(self) -> None:
        """Let jobs change places once more: only ends of launches move, so nobody is asked again."""
        if any(job.budget for job in self._problem.jobs):
            return  # what a job pays of a launch would have to be within its own
        for rung, floor in enumerate(self.floors):
            if self._usd[rung] and self._problem.packs(rung):
                whole = [it for it in floor.drafts.values() if len(it.runs) == 1]
                exchange(whole, self._rates(rung))
                floor.shorten()

    def _worth_a_try(self) -> list[int]:
        """Jobs that may gain, those first who gain most."""
        at = [(job, r) for job, r in self._at.items() if self._usd[r] and self.floors[r].alone(job)]
        if not at:
            return []
        jobs, rungs = (list(each) for each in zip(*at, strict=True))
        hours = self._problem.launch_h[jobs]
        self._look()
        can = self._free_h[None, :] + hours <= self._due_h[jobs][:, None]
        can &= hours <= self._spare_h[None, :]
        best_usd = np.where(can, self._cost_usd[jobs], inf).min(axis=1)
        longest_h = np.array([max((d.hours for d in f.roomy), default=0.0) for f in self.floors])
        best_usd[(hours <= longest_h[None, :]).any(axis=1)] = 0.0
        gain = self._cost_usd[jobs, rungs] - best_usd
        order = np.argsort(-gain, kind="stable")[: int((gain > 1e-9).sum())]
        return [jobs[n] for n in order.tolist()]

    def _move(self, job: int) -> bool:
        rung = self._at[job]
        floor = self.floors[rung]
        if not floor.alone(job):
            return False  # somebody has joined it meanwhile
        draft = floor.leave(job)
        if self._place(job, float(self._cost_usd[job, rung]) - 1e-9):
            return True
        floor.restore(draft)
        return False


def _cut(due_h: list[float], jobs: list[int], classes: int) -> list[list[int]]:
    """Jobs in the order of their deadlines in so many parts, about equal: no deadline is cut in two.

    >>> _cut([48.0, 48.0, 48.0, 72.0, 96.0, 96.0], [0, 1, 2, 3, 4, 5], 2)
    [[0, 1, 2], [3, 4, 5]]
    """
    cuts = [0]
    for n in range(1, classes):
        at = n * len(jobs) // classes
        if at < len(jobs):
            low, high = bisect_left(due_h, due_h[at]), bisect_right(due_h, due_h[at])
            cuts.append(low if at - low <= high - at else high)
    cuts.append(len(jobs))
    return [jobs[a:b] for a, b in pairwise(cuts) if a < b]


class _Room:
    """How many hours each rung and each shared quota can still give, by when."""

    def __init__(self, of: Relaxed, wanted_h: Floats, used_h: Floats) -> None:
        # Where many jobs cost the same on several rungs, no price says who goes where.
        self._wanted: list[list[float]] = wanted_h.tolist()
        problem, ends = of.problem, of.bounds_h[1:]
        gone_h = used_h.cumsum(axis=1).tolist()
        self._rungs = [
            [given_h(of, r, end_h) - gone for end_h, gone in zip(ends, gone_h[r], strict=True)]
            for r in range(len(problem.rungs))
        ]
        self._shared: dict[int, tuple[list[float], float]] = {}
        for account in problem.accounts:
            if len(account.rungs) > 1:
                units = [sum(w.amount for w in account.windows if w.from_h < end) for end in ends]
                for r in account.rungs:
                    self._shared[r] = (units, account.rate(r))
        self._money = dict(problem.scenario.budget)
        self._prices = [(it.price.currency, it.price.per_h) for it in problem.rungs]

    def take(self, rung: int, last: int, hours: float, as_relaxed: bool) -> bool:
        """Take so many hours for a job that is due by the end of a period, if there are any.

        With ``as_relaxed`` also no more than the relaxation has jobs of that period there.
        """
        rows, wanted = self._rungs[rung], self._wanted[rung]
        if as_relaxed and wanted[last] < 0.5 * hours:
            return False
        if min(rows[last:]) < hours:
            return False
        units, rate = self._shared.get(rung, ([], 0.0))
        if units and min(units[last:]) < hours * rate:
            return False
        currency, per_h = self._prices[rung]
        if self._money.get(currency, inf) < per_h * hours:
            return False
        wanted[last] -= hours
        for n in range(last, len(rows)):
            rows[n] -= hours
        for n in range(last, len(units)):
            units[n] -= hours * rate
        if currency in self._money:
            self._money[currency] -= per_h * hours
        return True
