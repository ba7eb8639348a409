"""A rung as the greedy way fills it: its places, what is left of quotas and budgets, and open launches.

Nothing is placed that would break a limit, so whatever order jobs come in, the result is allowed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from tenure.plan.allocate_launches import Launch, Runs
from tenure.plan.allocate_model import SLACK, Problem, Window


@dataclass(eq=False)
class Draft:
    """A launch as it is planned: it may still take somebody on, or let jobs change places."""

    place: int
    jobs: list[int]
    hours: float
    runs: Runs
    cards: int  # free
    room: int  # jobs that it may take on

    def until_h(self, worked_h: float) -> float:
        """When it has worked so long."""
        if len(self.runs) == 1:
            return self.runs[0][0] + worked_h
        return Launch(0, self.place, (), self.hours, self.runs).until_h(worked_h)


@dataclass
class Purse:
    """What is left of quotas and budgets, of all rungs together."""

    quota: dict[str, list[float]]  # by rung that has it: units by window
    money: dict[str, float]  # by currency

    @classmethod
    def of(cls, problem: Problem) -> Purse:
        """All of it."""
        quota = {it.name: [w.amount for w in it.windows] for it in problem.accounts}
        return cls(quota, dict(problem.scenario.budget))


@dataclass
class Floor:
    """The launches of one rung."""

    problem: Problem
    rung: int
    purse: Purse
    drafts: dict[int, Draft] = field(default_factory=dict)  # by the first of their jobs
    roomy: list[Draft] = field(default_factory=list)  # of these, those that take on somebody
    _free: list[tuple[float, int]] = field(default_factory=list)  # a heap: when, place

    def __post_init__(self) -> None:
        it = self.problem.rungs[self.rung]
        self._places = it.concurrency
        self._opened = 0
        account = self.problem.account_of.get(self.rung)
        self._windows: tuple[Window, ...] = account.windows if account else ()
        self._left = self.purse.quota[account.name] if account else []
        self._rate = account.rate(self.rung) if account else 0.0
        self._price = it.price.per_h
        self._currency = it.price.currency
        self.hours: list[float] = self.problem.launch_h[:, self.rung].tolist()  # by job

    @property
    def free_h(self) -> float:
        """When the next launch can begin, quotas apart."""
        if self._places is None or self._opened < self._places:
            return 0.0
        return self._free[0][0]

    @property
    def spare_h(self) -> float:
        """Hours that its quota still has until the horizon."""
        return sum(self._left) / self._rate if self._windows and self._rate else inf

    def can_pay(self, hours: float) -> bool:
        """Whether the whole budget lasts for a launch of so many hours."""
        if self._currency not in self.purse.money:
            return True
        return self._price * hours <= self.purse.money[self._currency] + SLACK / 10

    def affordable(self, job: int, jobs: Sequence[int], hours: float) -> bool:
        """Whether a job's part of a launch, by card-hours, is within its own budget."""
        it = self.problem.jobs[job]
        most = it.budget.get(self._currency)
        if most is None:
            return True
        total = sum(self.problem.jobs[j].cards * self.hours[j] for j in jobs)
        return self._price * hours * it.cards * self.hours[job] / total <= most + SLACK

    def open(self, jobs: Sequence[int]) -> bool:
        """Launch jobs together at the next free place, if all end in time and all can be paid."""
        hours = max(self.hours[j] for j in jobs)
        if hours == inf or not self.can_pay(hours):
            return False
        rung = self.problem.rungs[self.rung]
        cards = rung.cards - sum(self.problem.jobs[j].cards for j in jobs)
        room = (rung.per_launch or rung.cards) - len(jobs)
        if cards < 0 or room < 0:
            return False
        if not all(self.affordable(j, jobs, hours) for j in jobs):
            return False
        at_h = self.free_h
        due_h = self.problem.due_h
        if any(at_h + self.hours[j] > due_h[j] + SLACK for j in jobs):
            return False
        runs, takes = self._runs(at_h, hours)
        if not runs:
            return False
        draft = Draft(0, list(jobs), hours, runs, cards, room)
        waits = len(runs) > 1 or runs[0][0] > at_h  # for its quota
        if waits and any(draft.until_h(self.hours[j]) > due_h[j] + SLACK for j in jobs):
            return False
        draft.place = self._take_place(runs[-1][1])
        for window, amount in takes:
            self._left[window] -= amount
        if self._currency in self.purse.money:
            self.purse.money[self._currency] -= self._price * hours
        self.drafts[draft.jobs[0]] = draft
        if draft.cards and draft.room:
            self.roomy.append(draft)
        return True

    def join(self, job: int) -> bool:
        """Put a job on a launch with room that lasts as long as the job, which costs nothing more.

        Of several, on the one that lasts least.
        """
        cards, hours = self.problem.jobs[job].cards, self.hours[job]
        due_h = self.problem.due_h[job]
        found = [
            draft
            for draft in self.roomy
            if hours <= draft.hours
            and cards <= draft.cards
            and draft.runs[0][0] + hours <= due_h
            and draft.until_h(hours) <= due_h
            and self.affordable(job, (*draft.jobs, job), draft.hours)
        ]
        if not found:
            return False
        draft = min(found, key=lambda it: it.hours)
        draft.jobs.append(job)
        draft.cards -= cards
        draft.room -= 1
        if not (draft.cards and draft.room):
            self.roomy.remove(draft)
        return True

    def alone(self, job: int) -> bool:
        """Whether a job has a launch of its own."""
        draft = self.drafts.get(job)
        return draft is not None and len(draft.jobs) == 1

    def leave(self, job: int) -> Draft:
        """Take back a launch that has this job alone; its place stays empty for that time."""
        draft = self.drafts.pop(job)
        assert draft.jobs == [job]
        if draft in self.roomy:
            self.roomy.remove(draft)
        self._pay(draft, 1.0)
        return draft

    def restore(self, draft: Draft) -> None:
        """Put back what :meth:`leave` has taken, if nothing else was done since."""
        self.drafts[draft.jobs[0]] = draft
        if draft.cards and draft.room:
            self.roomy.append(draft)
        self._pay(draft, -1.0)

    def shorten(self) -> None:
        """Let launches end with the longest of their jobs, after these have changed places."""
        for draft in self.drafts.values():
            hours = max(self.hours[job] for job in draft.jobs)
            if hours < draft.hours and len(draft.runs) == 1:
                self._pay(draft, 1.0)
                from_h = draft.runs[0][0]
                draft.hours, draft.runs = hours, ((from_h, from_h + hours),)
                self._pay(draft, -1.0)
        self.drafts = {draft.jobs[0]: draft for draft in self.drafts.values()}

    def clear(self) -> list[int]:
        """Take back everything, and return the jobs."""
        jobs = [job for draft in self.drafts.values() for job in draft.jobs]
        for draft in self.drafts.values():
            self._pay(draft, 1.0)
        self.drafts, self.roomy, self._free, self._opened = {}, [], [], 0
        return jobs

    def launches(self) -> list[Launch]:
        """As they are now."""
        return [
            Launch(self.rung, it.place, tuple(it.jobs), it.hours, it.runs)
            for it in self.drafts.values()
        ]

    def _pay(self, draft: Draft, sign: float) -> None:
        """Give quota and budget of a launch back, or take them again."""
        for n, window in enumerate(self._windows):
            for from_h, to_h in draft.runs:
                inside_h = min(to_h, window.to_h) - max(from_h, window.from_h)
                self._left[n] += sign * max(0.0, inside_h) * self._rate
        if self._currency in self.purse.money:
            self.purse.money[self._currency] += sign * self._price * draft.hours

    def _take_place(self, until_h: float) -> int:
        if self._places is None or self._opened < self._places:
            place = self._opened
            self._opened += 1
        else:
            place = heapq.heappop(self._free)[1]
        if self._places is not None:
            heapq.heappush(self._free, (until_h, place))
        return place

    def _runs(self, at_h: float, hours: float) -> tuple[Runs, list[tuple[int, float]]]:
        """When a launch works that may begin at a time, and what it takes of each window; or nothing."""
        if not self._windows or not self._rate:
            return ((at_h, at_h + hours),), []
        runs, takes, left_h = list[tuple[float, float]](), list[tuple[int, float]](), hours
        for n, window in enumerate(self._windows):
            from_h = max(at_h, window.from_h)
            step_h = min(left_h, window.to_h - from_h, self._left[n] / self._rate)
            if step_h <= SLACK:
                continue
            if runs and runs[-1][1] >= from_h:
                runs[-1] = (runs[-1][0], from_h + step_h)
            else:
                runs.append((from_h, from_h + step_h))
            takes.append((n, step_h * self._rate))
            left_h -= step_h
            if left_h <= SLACK / 10:
                return tuple(runs), takes
        return (), []
