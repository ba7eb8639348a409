"""Prices of limits for many jobs: those of a sample's linear program, then steps over all of them.

For any prices at which limits are charged, the least that the jobs cost at these prices, less what the
limits are worth, is a lower bound of every allocation (weak duality). The bound is concave in the prices,
and what a limit is overdrawn by is its slope (Held and Karp 1971). Each price has a step of its own that
gets shorter as it moves (AdaGrad; Duchi and others 2011). So the bound is right whatever the sample was.

Time is told apart by *what must have ended by when*: the jobs due by the end of a period do not use more
hours of a rung than it can give until then. A price for each such limit, and not for each period, leaves
one price that matters for most rungs, that of the last period.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np

from tenure.plan.allocate_model import Window
from tenure.plan.shadow import Relaxed, ShadowPrice, ShadowPrices, quota_rates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Kind = Literal["rung", "quota", "budget"]

SAMPLE = 500  # jobs whose linear program is solved: some tenths of a second
#: Steps over all jobs, and how long the first is, in usual prices of an hour: coarse, then fine.
CLIMBS = ((60, 0.05), (40, 0.015), (20, 0.004))


@dataclass(frozen=True)
class Limits:
    """Every limit as a row; a column is a rung and the last period of a job on it."""

    matrix: Floats  # shape (limits, rungs * periods): units for an hour of a launch
    most: Floats  # shape (limits,)
    of: tuple[tuple[Kind, int, int], ...]  # what, its number, the last period that it counts


@dataclass(frozen=True)
class Climbed:
    """Where the ascent ended."""

    bound_usd: float
    per_unit: Floats  # shape (limits,): dollars
    per_h: Floats  # shape (rungs, periods): dollars for an hour of a launch, beside its price
    limits: Limits
    hours: Floats  # shape (rungs, periods): of launches, by the last period of jobs; as the sample has it


def given_h(of: Relaxed, rung: int, until_h: float) -> float:
    """Hours of launches that a rung can give before a time: by its places and a quota of its own."""
    return sum(min(places_h, quota_h) for _, places_h, quota_h in _by_window(of, rung, until_h))


def _by_window(of: Relaxed, rung: int, until_h: float) -> list[tuple[Window, float, float]]:
    """Each window of a rung's quota, with the hours that its places and its quota give before a time."""
    problem = of.problem
    account = problem.account_of.get(rung)
    rate = account.rate(rung) if account else 0.0
    found = []
    for window in problem.windows(rung):
        lasts_h = min(window.to_h, until_h) - window.from_h
        if lasts_h > 0:
            places_h = lasts_h * (problem.rungs[rung].concurrency or inf)
            found.append((window, places_h, window.amount / rate if rate else inf))
    return found


def limits_of(of: Relaxed) -> Limits:
    """What each rung gives, what each shared quota gives, and budgets."""
    problem = of.problem
    rungs, periods = len(problem.rungs), of.periods
    rows: list[Floats] = []
    most: list[float] = []
    what: list[tuple[Kind, int, int]] = []

    def add(row: Floats, limit: float, kind: Kind, number: int, period: int) -> None:
        rows.append(row.ravel())
        most.append(limit)
        what.append((kind, number, period))

    busy = sorted(set(of.last))
    for r in range(rungs):
        for period in busy:
            limit = given_h(of, r, of.bounds_h[period + 1])
            if limit < inf:
                row = np.zeros((rungs, periods))
                row[r, : period + 1] = 1.0
                add(row, limit, "rung", r, period)
    for n, account in enumerate(problem.accounts):
        for period in busy if len(account.rungs) > 1 else ():
            row = np.zeros((rungs, periods))
            row[list(account.rungs), : period + 1] = np.array(account.per_h)[:, None]
            ends_h = of.bounds_h[period + 1]
            add(
                row, sum(w.amount for w in account.windows if w.from_h < ends_h), "quota", n, period
            )
    for n, (currency, amount) in enumerate(problem.scenario.budget.items()):
        row = np.zeros((rungs, periods))
        for r, rung in enumerate(problem.rungs):
            row[r, :] = rung.price.per_h * (rung.price.currency == currency)
        add(row, amount, "budget", n, periods - 1)
    matrix = np.array(rows).reshape(len(rows), rungs * periods)
    return Limits(matrix, np.array(most), tuple(what))


def ascend(of: Relaxed, jobs: list[int]) -> Climbed:
    """Prices whose bound is close to the relaxation's least cost."""
    limits = limits_of(of)
    machine_h = of.problem.launch_h[jobs] * of.problem.share[jobs]
    last = np.array(of.last)[jobs]
    usd = np.array(of.problem.usd_per_h)
    # Every so-manieth of the jobs in the order of their deadlines and lengths stands for its neighbours.
    order = np.lexsort((machine_h.min(axis=1), last))
    count = min(SAMPLE, len(jobs))
    picked = order[((np.arange(count) + 0.5) * len(jobs) / count).astype(int)]
    part = limits.most * len(picked) / len(jobs)
    start, hours = _of_sample(limits.matrix, part, machine_h[picked], usd, last[picked])
    ascent = _Ascent(limits, machine_h, usd, last, of.periods, start)
    for steps, step in CLIMBS:
        ascent.climb(steps, step)
    return ascent.climbed(hours * len(jobs) / len(picked))


def _of_sample(
    matrix: Floats, most: Floats, machine_h: Floats, usd: Floats, last: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """The linear program of a few jobs: its dual prices, shape (limits,), and hours, (rungs, periods).

    A job may be left out at twice the most that it can cost: a sample may be longer than its part.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack

    count = len(machine_h)
    job, rung = np.nonzero(np.isfinite(machine_h))
    hours = machine_h[job, rung]
    cost = hours * usd[rung]
    left_out = 2.0 * np.bincount(job, cost, count) + 1.0
    periods = matrix.shape[1] // len(usd)
    rows = csr_array(matrix)[:, rung * periods + last[job]].multiply(hours[None, :])
    jobs = np.concatenate([job, np.arange(count)])
    each = csr_array((np.ones(len(jobs)), (jobs, np.arange(len(jobs)))), shape=(count, len(jobs)))
    answer = linprog(
        np.concatenate([cost, left_out]),
        A_ub=hstack([rows, csr_array((len(most), count))]),
        b_ub=most,
        A_eq=each,
        b_eq=np.ones(count),
        method="highs-ds",
    )
    if answer.status != 0:  # any prices give a right bound
        return np.zeros(len(most)), np.zeros((len(usd), periods))
    done_h = answer.x[: len(job)] * hours
    used: Floats = np.bincount(rung * periods + last[job], done_h, matrix.shape[1]).astype(float)
    duals: Floats = np.maximum(0.0, -answer.ineqlin.marginals)
    return duals, used.reshape(len(usd), periods)


class _Ascent:
    """Subgradient steps over some jobs."""

    def __init__(
        self,
        limits: Limits,
        machine_h: Floats,
        usd: Floats,
        last: NDArray[np.intp],
        periods: int,
        start: Floats,
    ) -> None:
        self._limits, self._usd, self._periods = limits, usd, periods
        order = np.argsort(last, kind="stable")
        ends = np.searchsorted(last[order], np.arange(periods + 1))
        can = np.isfinite(machine_h)
        # An hour that is excluded costs more than any other even where hours cost next to nothing.
        big_h = np.where(can, machine_h, 1e15)[order]
        self._blocks = [
            (period, big_h[ends[period] : ends[period + 1]])
            for period in range(periods)
            if ends[period + 1] > ends[period]
        ]
        paid = usd[usd > 0]
        self._usual = float(np.median(paid)) if len(paid) else 1.0  # a price of an hour
        self._best = start
        self._bound_usd = -inf

    def climb(self, steps: int, step: float) -> None:
        """Take so many steps from the best prices; the best on the way are kept."""
        matrix, most = self._limits.matrix, self._limits.most
        unit = self._usual / np.maximum(matrix.max(axis=1, initial=0.0), 1e-9)
        at, seen = self._best.copy(), np.full(len(most), 1e-12)
        mean = at.copy()
        for n in range(steps):
            hours = self._ask(at)
            slope = (matrix @ hours.ravel() - most) / np.maximum(most, 1e-9)
            slope = np.clip(slope, -1.0, 1.0)
            seen += slope**2
            at = np.maximum(0.0, at + step * unit * slope / np.sqrt(seen))
            mean += (at - mean) * 3.0 / (n + 4.0)
            if n % 10 == 9:
                self._ask(mean)
        self._ask(mean)

    def climbed(self, hours: Floats) -> Climbed:
        """The best prices, with the hours of the sample."""
        matrix = self._limits.matrix
        per_h = (self._best @ matrix).reshape(len(self._usd), self._periods)
        return Climbed(self._bound_usd, self._best, per_h, self._limits, hours)

    def _ask(self, per_unit: Floats) -> Floats:
        """Hours by rung and period at these prices; the best bound so far is kept."""
        rungs = len(self._usd)
        per_h = (per_unit @ self._limits.matrix).reshape(rungs, self._periods)
        hours = np.zeros((rungs, self._periods))
        total = -float(per_unit @ self._limits.most)
        for period, machine_h in self._blocks:
            cost = machine_h * np.maximum(self._usd + per_h[:, period], 1e-9)
            chosen = cost.argmin(axis=1)
            rows = np.arange(len(chosen))
            total += float(cost[rows, chosen].sum())
            hours[:, period] = np.bincount(chosen, machine_h[rows, chosen], rungs)
        if total > self._bound_usd:
            self._bound_usd, self._best = total, per_unit.copy()
        return hours


def prices_of(of: Relaxed, climbed: Climbed) -> ShadowPrices:
    """The same by quota and window, by rung and period, as :mod:`tenure.plan.shadow` has it.

    One hour more in a period lets every limit that counts the period give one hour more, as far as it is
    the places, or the quota, that bind there.
    """
    problem = of.problem
    by_rung: dict[int, list[tuple[int, float]]] = {}
    shared: dict[int, list[tuple[int, float]]] = {}
    budgets: list[float] = []
    for (kind, number, period), price in zip(climbed.limits.of, climbed.per_unit, strict=True):
        if kind == "budget":
            budgets.append(float(price))
        else:
            found = by_rung if kind == "rung" else shared
            found.setdefault(number, []).append((period, float(price)))
    prices = list[ShadowPrice]()
    for n, account in enumerate(problem.accounts):
        only = account.rungs[0] if len(account.rungs) == 1 else None
        for window in account.windows:
            worth = sum(
                price
                for period, price in shared.get(n, ())
                if of.bounds_h[period + 1] > window.from_h
            )
            if only is not None and account.rate(only):
                worth = _worth(of, only, by_rung, window, quota=True) / account.rate(only)
            used = _filled(of, account.rungs, account.per_h, climbed.hours, window)
            prices.append(
                ShadowPrice(
                    "quota", account.name, window.from_h, window.to_h, account.unit, worth,
                    window.amount, window.amount if worth > 0 else min(used, window.amount),
                )
            )  # fmt: skip
    for r, rung in enumerate(problem.rungs):
        for period in range(of.periods if rung.concurrency else 0):
            stretch = Window(of.bounds_h[period], of.bounds_h[period + 1], inf)
            most_h = (rung.concurrency or inf) * stretch.lasts_h
            worth = _worth(of, r, by_rung, stretch, quota=False)
            used = _filled(of, (r,), (1.0,), climbed.hours, stretch)
            prices.append(
                ShadowPrice(
                    "concurrency", rung.name, stretch.from_h, stretch.to_h, "h", worth, most_h,
                    most_h if worth > 0 else min(used, most_h),
                )
            )  # fmt: skip
    for (currency, most), price in zip(problem.scenario.budget.items(), budgets, strict=True):
        per_h = [it.price.per_h * (it.price.currency == currency) for it in problem.rungs]
        used = float(np.array(per_h) @ climbed.hours.sum(axis=1))
        used = most if price > 0 else min(used, most)
        prices.append(
            ShadowPrice("budget", currency, 0.0, problem.until_h, currency, price, most, used)
        )
    by_hour = tuple(tuple(row) for row in climbed.per_h.tolist())
    rates = quota_rates(problem)
    return ShadowPrices(climbed.bound_usd, tuple(prices), False, rates, by_hour, of.last)


def _worth(
    of: Relaxed,
    rung: int,
    by_rung: dict[int, list[tuple[int, float]]],
    stretch: Window,
    *,
    quota: bool,
) -> float:
    """Dollars that one more hour in a stretch saves, where the quota binds in it, or the places do."""
    total = 0.0
    for period, price in by_rung.get(rung, ()) if quota or by_rung else ():
        ends_h = of.bounds_h[period + 1]
        for window, places_h, quota_h in _by_window(of, rung, ends_h):
            inside = window.from_h <= stretch.from_h < min(window.to_h, ends_h)
            if inside and (quota_h <= places_h) == quota:
                total += price
    return total


def _filled(
    of: Relaxed, rungs: tuple[int, ...], per_h: tuple[float, ...], hours: Floats, stretch: Window
) -> float:
    """Units that jobs use in a stretch, each spread evenly over the time that it has."""
    total = 0.0
    for r, rate in zip(rungs, per_h, strict=True):
        for period in range(of.periods):
            ends_h = of.bounds_h[period + 1]
            inside_h = max(0.0, min(stretch.to_h, ends_h) - stretch.from_h)
            total += rate * float(hours[r, period]) * inside_h / ends_h
    return total
