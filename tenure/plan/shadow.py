"""One currency: what an hour of a quota, a credit, or a place on a rung is worth in dollars now.

The allocation's linear relaxation lets a job be split over rungs and over time. Its dual prices say by
how much the least cost falls with one more unit of each limit, which is what a unit is worth: a Kaggle
hour replaces so many paid hours elsewhere. A limit that is not reached has the price 0, so hours that will
be renewed unused are worth nothing until then.

A caller needs three things: ``shadow_prices(Problem(scenario))``, ``ShadowPrices.worth(rung)`` for the
dollars of an hour of a launch there now, and the :class:`ShadowPrice` records with their sentences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from tenure.plan.allocate_model import SLACK, Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

#: Unknowns of the linear program up to which HiGHS solves it; above, prices are found by ascent.
MOST_UNKNOWNS = 20_000
#: Deadlines that are told apart.
MOST_DUES = 12


@dataclass(frozen=True)
class ShadowPrice:
    """What one unit more of a limit would save."""

    kind: Literal["quota", "concurrency", "budget"]
    name: str  # of the rung, or the currency of a budget
    from_h: float
    to_h: float
    unit: str
    usd_per_unit: float
    limit: float
    used: float  # by the relaxation, in `unit`

    @property
    def reason(self) -> str:
        """In words and numbers.

        >>> ShadowPrice("quota", "kaggle", 0.0, 24.0, "h", 0.35, 12.0, 12.0).reason
        'all 12 h of the quota of kaggle from 0 to 24 h are used: one more would save 0.35 usd'
        >>> ShadowPrice("quota", "kaggle", 0.0, 24.0, "h", 0.0, 30.0, 12.0).reason
        '12 of 30 h of the quota of kaggle from 0 to 24 h are used: one more would save nothing'
        """
        what = {
            "quota": f"the quota of {self.name}",
            "concurrency": f"the places of {self.name}",
            "budget": f"the budget in {self.name}",
        }[self.kind]
        when = "" if self.kind == "budget" else f" from {self.from_h:g} to {self.to_h:g} h"
        all_of_it = self.used >= self.limit - 1e-4 * max(1.0, self.limit)
        count = f"all {self.limit:.4g}" if all_of_it else f"{self.used:.4g} of {self.limit:.4g}"
        worth = f"{self.usd_per_unit:.4g} usd" if self.usd_per_unit > SLACK else "nothing"
        return f"{count} {self.unit} of {what}{when} are used: one more would save {worth}"


@dataclass(frozen=True)
class ShadowPrices:
    """The prices of all limits, and the least cost of the relaxation: no allocation costs less."""

    bound_usd: float
    prices: tuple[ShadowPrice, ...]
    exact: bool  # the linear program was solved; else its bound is approached from below
    rates: Mapping[str, tuple[str, float]]  # by rung: the quota it draws on, and units per hour
    #: Dollars for an hour of a launch beside its price, by rung and the last period of a job.
    per_h: tuple[tuple[float, ...], ...]
    last: tuple[int, ...]  # by job: that period

    def worth(self, rung: str, at_h: float = 0.0) -> float:
        """Dollars that one more hour of a launch would save at a time: of its quota, else of its places."""
        of, per_h = self.rates.get(rung, (rung, 1.0))
        kind = "quota" if rung in self.rates else "concurrency"
        for price in self.prices:
            if (price.kind, price.name) == (kind, of) and price.from_h <= at_h < price.to_h:
                return price.usd_per_unit * per_h
        return 0.0


@dataclass(frozen=True)
class Relaxed:
    """The relaxation's periods and limits, the same for both ways to solve it."""

    problem: Problem
    bounds_h: tuple[float, ...]  # of the periods, from 0 to the horizon
    last: tuple[int, ...]  # by job: the last period it may work in

    @property
    def periods(self) -> int:
        """How many there are."""
        return len(self.bounds_h) - 1

    def lasts_h(self, period: int) -> float:
        """The length of one."""
        return self.bounds_h[period + 1] - self.bounds_h[period]

    def window(self, rung: int, period: int) -> int:
        """The number of the quota's window that a period lies in."""
        windows = self.problem.windows(rung)
        at_h = self.bounds_h[period]
        return max(n for n, it in enumerate(windows) if it.from_h <= at_h + SLACK)


def relaxed(problem: Problem, *, renewals: bool = True) -> Relaxed:
    """Periods between deadlines and, with ``renewals``, renewals; of too many deadlines some of them.

    Those are chosen that most jobs are due at or about. A job may then work to the end of the period that
    its deadline lies in, which makes the bound lower and never wrong.
    """
    fixed = {0.0, problem.until_h}
    if renewals:
        fixed |= {it.from_h for r in range(len(problem.rungs)) for it in problem.windows(r)}
    due_h = sorted(due for due in problem.due_h if due not in fixed)
    dues = set(due_h)
    if len(dues) > MOST_DUES:
        counts = Counter(due_h)
        dues = {due for due, n in counts.items() if n * MOST_DUES > len(due_h)}
        others = [due for due in due_h if due not in dues]
        room = MOST_DUES - len(dues)
        dues |= {others[(2 * n + 1) * len(others) // (2 * room)] for n in range(room)}
    bounds_h = sorted(fixed | dues)
    last = [bisect_left(bounds_h, due) - 1 for due in problem.due_h]
    return Relaxed(problem, tuple(bounds_h), tuple(last))


def shadow_prices(
    problem: Problem, leave: frozenset[int] = frozenset(), slack: float = 0.0
) -> ShadowPrices | None:
    """Prices of every limit; ``None`` where the jobs do not fit even if they may be split.

    ``leave`` are jobs that are not counted: those that have no place. ``slack`` is added to every limit.
    """
    jobs = [j for j in range(len(problem.jobs)) if j not in leave]
    if not is_small(problem, jobs):
        from tenure.plan.allocate_ascent import ascend, prices_of

        of = relaxed(problem, renewals=False)
        return prices_of(of, ascend(of, jobs))
    return _solved(relaxed(problem), jobs, slack)


def is_small(problem: Problem, jobs: list[int]) -> bool:
    """Whether the linear program is solved as it is."""
    import numpy as np

    choices = int(np.isfinite(problem.launch_h[jobs]).sum())
    return choices * relaxed(problem).periods <= MOST_UNKNOWNS


def by_hour(of: Relaxed, prices: Sequence[ShadowPrice]) -> tuple[tuple[float, ...], ...]:
    """What an hour of a launch costs beside its price, by rung and last period: at its cheapest time."""
    problem = of.problem
    found = []
    for r, rung in enumerate(problem.rungs):
        account = problem.account_of.get(r)
        row, least = list[float](), inf
        for period in range(of.periods):
            at_h, total = of.bounds_h[period], 0.0
            for it in prices:
                if it.kind == "budget":
                    total += it.usd_per_unit * rung.price.per_h * (it.name == rung.price.currency)
                elif it.from_h <= at_h < it.to_h and it.kind == "concurrency":
                    total += it.usd_per_unit * (it.name == rung.name)
                elif it.from_h <= at_h < it.to_h and account and it.name == account.name:
                    total += it.usd_per_unit * account.rate(r)
            least = min(least, total)
            row.append(least)
        found.append(tuple(row))
    return tuple(found)


def quota_rates(problem: Problem) -> dict[str, tuple[str, float]]:
    """By rung with a quota: whose it is, and units for an hour of a launch."""
    return {
        problem.rungs[r].name: (account.name, account.rate(r))
        for account in problem.accounts
        for r in account.rungs
    }


@dataclass(frozen=True)
class _Limit:
    """A row of the program."""

    kind: Literal["quota", "concurrency", "budget"]
    name: str
    from_h: float
    to_h: float
    unit: str
    limit: float
    row: NDArray[np.float64]


def _solved(of: Relaxed, jobs: list[int], slack: float) -> ShadowPrices | None:
    """The linear program, by HiGHS: the unknowns are parts of jobs, by rung and period."""
    import numpy as np
    from scipy.optimize import linprog

    problem = of.problem
    hours = problem.launch_h
    lasts_h = np.diff(np.array(of.bounds_h))
    keys = [
        (n, r, w)
        for n, j in enumerate(jobs)
        for r in range(len(problem.rungs))
        if isfinite(hours[j, r])
        for w in range(of.last[j] + 1)
    ]
    if not jobs:
        unused = tuple(_unused(of))
        rates, per_h = quota_rates(problem), by_hour(of, unused)
        return ShadowPrices(0.0, unused, True, rates, per_h, of.last)
    if len({n for n, _, _ in keys}) < len(jobs):
        return None
    n, r, w = (np.array(each) for each in zip(*keys, strict=True))
    j = np.array(jobs)[n]
    whole_h = hours[j, r]
    # A job is never in two places at once, and not before now or after it is due.
    ends_h = np.minimum(np.array(of.bounds_h)[w + 1], np.array(problem.due_h)[j])
    can_h = np.minimum(lasts_h[w], ends_h - np.array(of.bounds_h)[w])
    # With the slack that whole jobs have: what is placed whole can be placed in parts.
    high = np.minimum(1.0, (can_h + SLACK) / whole_h)
    packed = [
        (rung, period)
        for rung in range(len(problem.rungs))
        if problem.packs(rung)
        for period in range(of.periods)
    ]
    own_h = np.where([problem.packs(rung) for rung in r], 0.0, whole_h * problem.share[j, r])
    all_r = np.concatenate([r, np.array([rung for rung, _ in packed], dtype=int)])
    all_w = np.concatenate([w, np.array([period for _, period in packed], dtype=int)])
    machine_h = np.concatenate([own_h, np.ones(len(packed))])
    limits = _limits(of, all_r, all_w, machine_h)
    linked = _linked(packed, r, w, whole_h, whole_h * problem.share[j, r])
    cost = machine_h * np.array(problem.usd_per_h)[all_r]
    from scipy.sparse import csr_array, vstack

    shape = (len(jobs), len(cost))
    each = csr_array((np.ones(len(keys)), (n, np.arange(len(keys)))), shape=shape)
    rows = csr_array(np.array([it.row for it in limits]).reshape(len(limits), len(cost)))
    answer = linprog(
        cost,
        A_ub=vstack([rows, linked]),
        b_ub=np.concatenate([[it.limit + slack for it in limits], np.zeros(linked.shape[0])]),
        A_eq=each,
        b_eq=np.ones(len(jobs)),
        bounds=np.column_stack(
            [np.zeros(len(cost)), np.concatenate([high, np.full(len(packed), inf)])]
        ),
        method="highs",
    )
    if answer.status != 0:
        return None
    duals = answer.ineqlin.marginals[: len(limits)]
    prices = [
        ShadowPrice(
            it.kind, it.name, it.from_h, it.to_h, it.unit, max(0.0, -float(dual)), it.limit,
            float(it.row @ answer.x),
        )
        for it, dual in zip(limits, duals, strict=True)
    ]  # fmt: skip
    rates, per_h = quota_rates(problem), by_hour(of, prices)
    return ShadowPrices(float(answer.fun), tuple(prices), True, rates, per_h, of.last)


def _linked(
    packed: list[tuple[int, int]],
    r: NDArray[np.intp],
    w: NDArray[np.intp],
    whole_h: NDArray[np.float64],
    share_h: NDArray[np.float64],
) -> csr_array:
    """Launches of several jobs work as long, in each period, as their cards are used and as any job.

    The rows ``work - launches <= 0`` over the parts of jobs and, after them, the hours of launches of each
    rung and period in ``packed``.
    """
    import numpy as np
    from scipy.sparse import csr_array

    rows, columns, values, count = [], [], [], 0
    for at, (rung, period) in enumerate(packed):
        here = np.flatnonzero((r == rung) & (w == period))
        own = np.arange(count + 1, count + 1 + len(here))
        rows += [np.full(len(here) + 1, count), own, own]
        columns += [np.append(here, len(r) + at), here, np.full(len(here), len(r) + at)]
        values += [np.append(share_h[here], -1.0), whole_h[here], np.full(len(here), -1.0)]
        count += 1 + len(here)
    shape = (count, len(r) + len(packed))
    if not packed:
        return csr_array(shape)
    at_all = (np.concatenate(rows), np.concatenate(columns))
    return csr_array((np.concatenate(values), at_all), shape=shape)


def _unused(of: Relaxed) -> list[ShadowPrice]:
    import numpy as np

    none = np.zeros(0)
    limits = _limits(of, none.astype(int), none.astype(int), none)
    return [
        ShadowPrice(it.kind, it.name, it.from_h, it.to_h, it.unit, 0.0, it.limit, 0.0)
        for it in limits
    ]


def _limits(
    of: Relaxed, r: NDArray[np.intp], w: NDArray[np.intp], machine_h: NDArray[np.float64]
) -> list[_Limit]:
    """Quotas by window, places by period, budgets; each with its row over the unknowns."""
    import numpy as np

    problem, found = of.problem, list[_Limit]()
    zero = np.zeros(len(r))
    for account in problem.accounts:
        rate = np.zeros(len(problem.rungs))
        rate[list(account.rungs)] = account.per_h
        at = np.array([of.window(account.rungs[0], period) for period in range(of.periods)])
        for k, it in enumerate(account.windows):
            row = np.where(at[w] == k, machine_h * rate[r], zero) if len(r) else zero
            found.append(
                _Limit("quota", account.name, it.from_h, it.to_h, account.unit, it.amount, row)
            )
    for rung, each in enumerate(problem.rungs):
        for period in range(of.periods if each.concurrency else 0):
            most_h = (each.concurrency or inf) * of.lasts_h(period)
            row = np.where((r == rung) & (w == period), machine_h, zero)
            from_h, to_h = of.bounds_h[period : period + 2]
            found.append(_Limit("concurrency", each.name, from_h, to_h, "h", most_h, row))
    for currency, most in problem.scenario.budget.items():
        per_h = np.array([it.price.per_h * (it.price.currency == currency) for it in problem.rungs])
        row = machine_h * per_h[r] if len(r) else zero
        found.append(_Limit("budget", currency, 0.0, problem.until_h, currency, most, row))
    return found
