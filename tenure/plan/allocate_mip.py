"""The exact allocation of few jobs: a mixed-integer program, solved by HiGHS.

On a rung whose launches take several jobs, each launch is named by its longest job, which alone says
what it costs: the *leader*. ``x[j, m]`` is 1 where job j goes on the launch that m leads; ``x[m, m]``
opens it. So there are no products of unknowns, and no two names for one set of launches.

Launches on one place of a rung follow each other in the order of the times by which they must have ended.
With every job there from the start that order is never worse than another (Jackson 1955), so a place
keeps all its times if, for each of them, the launches due by then last no longer than it can work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING

from tenure.plan.allocate_launches import Launch, timeline
from tenure.plan.allocate_model import SLACK, Problem, Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Unknowns that must be whole numbers; above it "auto" takes the greedy way.
MOST_WHOLE = 15_000


class OutOfTime(Exception):
    """The solver has found nothing in its time, and has not shown that there is nothing."""


@dataclass(frozen=True)
class Solved:
    """What the solver found."""

    launches: tuple[Launch, ...]
    optimal: bool  # proved, to the solver's tolerance
    objective: float


@dataclass
class _Program:
    """Columns and rows as they are written down; rows are ``low <= sum <= high``."""

    cost: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)
    at: tuple[list[int], list[int], list[float]] = field(default_factory=lambda: ([], [], []))

    def column(self, cost: float = 0.0, high: float = 1.0, whole: bool = True) -> int:
        self.cost.append(cost)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def row(self, terms: Sequence[tuple[int, float]], low: float = -inf, high: float = inf) -> None:
        number = len(self.row_low)
        self.row_low.append(low)
        self.row_high.append(high)
        rows, columns, values = self.at
        for column, value in terms:
            rows.append(number)
            columns.append(column)
            values.append(value)


@dataclass
class _OnRung:
    """The unknowns of one rung."""

    rung: int
    jobs: list[int]  # that may go there, the longest first
    windows: tuple[Window, ...]
    places: int  # 0: as many as launches, and no need to say which
    member: dict[tuple[int, int], int] = field(default_factory=dict)  # (job, leader) -> column
    due: dict[tuple[int, float, int], int] = field(default_factory=dict)  # (leader, due, place)
    works: dict[tuple[int, int], int] = field(default_factory=dict)  # (place, window) -> column


def size(problem: Problem) -> int:
    """How many whole unknowns :func:`solve` would have, without writing them down."""
    import numpy as np

    total = 0
    for r, rung in enumerate(problem.rungs):
        count = int(np.isfinite(problem.launch_h[:, r]).sum())
        places = _places(problem, r, count)
        total += count * (count + 1) // 2 if problem.packs(r) else count
        if places:
            dues = len(set(problem.due_h))
            per_leader = min(count, dues * (count if problem.packs(r) else 1))
            spread = 1 if rung.concurrency is None or rung.concurrency >= count else places
            total += count * (per_leader if problem.packs(r) else 1) * spread
    return total


def solve(
    problem: Problem,
    leave: Collection[int] = (),
    *,
    must_place: bool = True,
    limit_s: float = 20.0,
) -> Solved | None:
    """The allocation of least dollars that places every job but ``leave``; ``None`` where there is none.

    Without ``must_place`` as many jobs as possible are placed, critical ones before all others, for the
    least dollars among those.
    A solver that runs out of ``limit_s`` returns what it has, not proved optimal, or raises OutOfTime.
    """
    if must_place:
        homeless = [j for j, row in enumerate(problem.launch_h) if not (row < inf).any()]
        if set(homeless) - set(leave):
            return None
        return _Model(problem, leave).solved(limit_s)
    few = _Model(problem, leave, may_leave=True).solved(limit_s, count=True)
    if few is None:
        return None
    left = round(few.objective)
    return _Model(problem, leave, may_leave=True, most_left=left).solved(limit_s) or few


def _places(problem: Problem, rung: int, jobs: int) -> int:
    """Places that a rung's launches must be told apart by; 0 where nobody waits for anybody."""
    most = problem.rungs[rung].concurrency
    if len(problem.windows(rung)) == 1 and (most is None or most >= jobs):
        return 0
    return jobs if most is None else min(most, jobs)


class _Model:
    """The whole program."""

    def __init__(
        self,
        problem: Problem,
        leave: Collection[int],
        *,
        may_leave: bool = False,
        most_left: int | None = None,
    ) -> None:
        self._problem = problem
        self._program = _Program()
        self._hours = problem.launch_h
        self._on = [self._rung(r) for r in range(len(problem.rungs))]
        wanted = [j for j in range(len(problem.jobs)) if j not in leave]
        self._left = {j: self._program.column() if may_leave else -1 for j in wanted}
        if most_left is not None:
            terms = [(column, self._weight(j)) for j, column in self._left.items()]
            self._program.row(terms, high=float(most_left))
        self._place_each()
        self._budgets()
        self._quotas()

    # ---------------------------------------------------------------------- a rung

    def _rung(self, r: int) -> _OnRung:
        hours = self._hours[:, r]
        jobs = [j for j in range(len(hours)) if isfinite(hours[j])]
        jobs.sort(key=lambda j: (-hours[j], j))
        on = _OnRung(r, jobs, self._problem.windows(r), _places(self._problem, r, len(jobs)))
        usd_per_h = self._problem.usd_per_h[r]
        for n, leader in enumerate(jobs):
            on.member[leader, leader] = self._program.column(usd_per_h * float(hours[leader]))
            for j in jobs[n + 1 :] if self._problem.packs(r) else ():
                if self._problem.jobs[j].cards + self._problem.jobs[leader].cards <= (
                    self._problem.rungs[r].cards
                ):
                    on.member[j, leader] = self._program.column()
        if self._problem.packs(r):
            self._fit(on)
        if on.places:
            self._in_time(on)
        return on

    def _aboard(self, on: _OnRung, leader: int) -> list[int]:
        return [j for j in on.jobs if j != leader and (j, leader) in on.member]

    def _fit(self, on: _OnRung) -> None:
        """The others of a launch fit beside its leader, and each pays no more than it may."""
        rung, jobs = self._problem.rungs[on.rung], self._problem.jobs
        most = (rung.per_launch or rung.cards) - 1
        for leader in on.jobs:
            opens = on.member[leader, leader]
            others = self._aboard(on, leader)
            free = rung.cards - jobs[leader].cards
            cards = [(on.member[j, leader], float(jobs[j].cards)) for j in others]
            self._program.row([*cards, (opens, -float(free))], high=0.0)
            self._program.row([*((c, 1.0) for c, _ in cards), (opens, -float(most))], high=0.0)
            for j in others:
                self._program.row([(on.member[j, leader], 1.0), (opens, -1.0)], high=0.0)
            self._pay(on, leader, others)

    def _pay(self, on: _OnRung, leader: int, others: list[int]) -> None:
        """Its part of the cost, by card-hours, is within a job's budget: linear, since the cost is known.

        ``price T c h / (sum of c h) <= B`` is ``sum of c h >= price T c h / B``.
        """
        rung, jobs = self._problem.rungs[on.rung], self._problem.jobs
        hours = self._hours[:, on.rung]
        for j in (leader, *others):
            most = jobs[j].budget.get(rung.price.currency)
            if most is None or not rung.price.per_h:
                continue
            least = rung.price.per_h * hours[leader] * jobs[j].cards * hours[j] / (most + SLACK)
            aboard = [
                (on.member[each, leader], jobs[each].cards * float(hours[each]))
                for each in (leader, *others)
            ]
            self._program.row([*aboard, (on.member[j, leader], -float(least))], low=0.0)

    # ---------------------------------------------------------------------- in time

    def _due_in(self, on: _OnRung, leader: int, job: int) -> float:
        """By when the launch of a leader must have ended, for this job to be in time.

        Without a pause a job ends its own hours after the start. Where a quota may make it pause, the
        launch counts as ended for all its jobs when it ends.
        """
        due_h = self._problem.due_h[job]
        if len(on.windows) > 1:
            return due_h
        return due_h - float(self._hours[job, on.rung]) + float(self._hours[leader, on.rung])

    def _in_time(self, on: _OnRung) -> None:
        own_place = on.places >= len(
            on.jobs
        )  # each leader has its own, so that none is like another
        for n, leader in enumerate(on.jobs):
            hours = float(self._hours[leader, on.rung])
            own = self._due_in(on, leader, leader)
            others = self._aboard(on, leader)
            dues = {own, *(self._due_in(on, leader, j) for j in others)}
            dues = {due for due in dues if hours - SLACK <= due <= own}
            for place in [n] if own_place else range(on.places):
                for due in sorted(dues):
                    on.due[leader, due, place] = self._program.column()
            opens = on.member[leader, leader]
            mine = {key: column for key, column in on.due.items() if key[0] == leader}
            self._program.row(
                [*((c, 1.0) for c in mine.values()), (opens, -1.0)], low=0.0, high=0.0
            )
            for j in others:
                due = self._due_in(on, leader, j)
                early = [(column, -1.0) for key, column in mine.items() if key[1] <= due + SLACK]
                self._program.row([(on.member[j, leader], 1.0), *early], high=0.0)
        for place in range(on.places):
            self._one_after_another(on, place)
        if not own_place:
            self._tell_apart(on)

    def _one_after_another(self, on: _OnRung, place: int) -> None:
        here = {
            key: (column, float(self._hours[key[0], on.rung]))
            for key, column in on.due.items()
            if key[2] == place
        }
        several = len(on.windows) > 1
        works = []
        for k, window in enumerate(on.windows if several else ()):
            on.works[place, k] = self._program.column(high=window.lasts_h, whole=False)
            works.append(on.works[place, k])
        if several:
            total = [(column, -1.0) for column in works]
            self._program.row([*here.values(), *total], low=0.0, high=0.0)
        for due in sorted({key[1] for key in here}):
            load = [term for key, term in here.items() if key[1] <= due]
            if not several:
                self._program.row(load, high=due)
                continue
            # Work is done as early in a window as can be, so by `due` all of it or all of the time.
            k = max(n for n, window in enumerate(on.windows) if window.from_h < due)
            before = [(column, -1.0) for column in works[:k]]
            self._program.row([*load, *before, (works[k], -1.0)], high=0.0)
            self._program.row([*load, *before], high=due - on.windows[k].from_h)

    def _tell_apart(self, on: _OnRung) -> None:
        """The places of a rung are alike: the first works longest, and so on."""
        for place in range(on.places - 1):
            terms = [
                (column, float(self._hours[key[0], on.rung]) * (1.0 if key[2] == place else -1.0))
                for key, column in on.due.items()
                if key[2] in (place, place + 1)
            ]
            self._program.row(terms, low=0.0)

    # ---------------------------------------------------------------------- all of them

    def _place_each(self) -> None:
        for j, left in self._left.items():
            terms = [
                (column, 1.0)
                for on in self._on
                for (job, _), column in on.member.items()
                if job == j
            ]
            if left >= 0:
                terms.append((left, 1.0))
            self._program.row(terms, low=1.0, high=1.0)

    def _weight(self, job: int) -> float:
        """What it counts to leave a job out: one critical job more than all others together."""
        return 1.0 + len(self._problem.jobs) * self._problem.jobs[job].sure_only

    def _launch_terms(self, on: _OnRung, per_h: float) -> list[tuple[int, float]]:
        return [(on.member[m, m], per_h * float(self._hours[m, on.rung])) for m in on.jobs if per_h]

    def _budgets(self) -> None:
        for currency, most in self._problem.scenario.budget.items():
            terms = [
                term
                for on in self._on
                if (price := self._problem.rungs[on.rung].price).currency == currency
                for term in self._launch_terms(on, price.per_h)
            ]
            self._program.row(terms, high=most)

    def _quotas(self) -> None:
        for account in self._problem.accounts:
            for k, window in enumerate(account.windows):
                terms = []
                for r in account.rungs:
                    on, rate = self._on[r], account.rate(r)
                    if len(account.windows) == 1:
                        terms += self._launch_terms(on, rate)
                        continue
                    terms += [(on.works[p, k], rate) for p in range(on.places) if rate]
                self._program.row(terms, high=window.amount)

    # ---------------------------------------------------------------------- the answer

    def solved(self, limit_s: float, *, count: bool = False) -> Solved | None:
        """Solve; with ``count`` for the fewest jobs left out instead of the fewest dollars."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        program = self._program
        cost = np.array(program.cost)
        if count:
            cost = np.zeros(len(cost))
            cost[list(self._left.values())] = [self._weight(j) for j in self._left]
        rows, columns, values = program.at
        matrix = csr_array((values, (rows, columns)), shape=(len(program.row_low), len(cost)))
        answer = milp(
            cost,
            integrality=np.array(program.whole),
            bounds=Bounds(0.0, np.array(program.high)),
            constraints=LinearConstraint(
                matrix, np.array(program.row_low), np.array(program.row_high)
            ),
            options={"time_limit": limit_s, "mip_rel_gap": 0.0},
        )
        if answer.x is None and answer.status == 2:
            return None
        if answer.x is None:
            raise OutOfTime(f"HiGHS found nothing in {limit_s:g} s: {answer.message}")
        launches = [launch for on in self._on for launch in self._launches(on, answer.x)]
        return Solved(tuple(launches), bool(answer.status == 0), float(answer.fun))

    def _launches(self, on: _OnRung, x: NDArray[np.float64]) -> list[Launch]:
        chosen = [(j, m) for (j, m), column in on.member.items() if x[column] > 0.5]
        leaders = [m for j, m in chosen if j == m]
        aboard = {m: tuple(j for j, of in chosen if of == m) for m in leaders}
        hours = self._hours[:, on.rung]
        if not on.places:
            return [
                Launch(on.rung, place, aboard[m], float(hours[m]), ((0.0, float(hours[m])),))
                for place, m in enumerate(leaders)
            ]
        found = []
        for place in range(on.places):
            here = sorted(
                (due, m)
                for (m, due, of), column in on.due.items()
                if of == place and x[column] > 0.5
            )
            turn = [m for _, m in here]
            lengths_h = [float(hours[m]) for m in turn]
            used = [(0.0, sum(lengths_h))]
            if len(on.windows) > 1:
                used = [
                    (window.from_h, float(x[on.works[place, k]]))
                    for k, window in enumerate(on.windows)
                ]
            runs = timeline(lengths_h, used)
            found += [
                Launch(on.rung, place, aboard[m], length_h, run)
                for m, length_h, run in zip(turn, lengths_h, runs, strict=True)
            ]
        return found
