"""Which job runs where, for the least money, by its deadline.

:func:`allocate` takes a :class:`~tenure.plan.allocate_scenario.Scenario` and returns an
:class:`Allocation`: exact where the scenario is small, greedy where it is large, each with its distance to
the bound of the linear relaxation, a reason for each job, and the dollars that a unit of each limit is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Literal

from tenure.plan.allocate_launches import Launch, amounts, cost_shares, violations
from tenure.plan.allocate_mip import MOST_WHOLE, OutOfTime, Solved, size, solve
from tenure.plan.allocate_model import SLACK, TOLERANCE, Problem
from tenure.plan.allocate_relax import demand_feasible, demand_feasible_alone
from tenure.plan.allocate_scenario import Scenario
from tenure.plan.shadow import ShadowPrices, is_small, shadow_prices

Method = Literal["auto", "mip", "greedy"]
#: Seconds that the exact way may take before the greedy one is asked as well.
LIMIT_S = 20.0


@dataclass(frozen=True)
class Assignment:
    """Where and when one job runs, and what it pays."""

    job: str
    rung: str
    launch: int  # jobs with the same number share one launch
    place: int  # of the rung: its launches follow each other there
    start_h: float
    end_h: float
    hours: float  # that it keeps its cards
    runs: tuple[tuple[float, float], ...]  # from when to when; more than one where a quota ran out
    amount: float  # its part of the launch, in `currency`
    currency: str
    cost_usd: float
    reason: str


@dataclass(frozen=True)
class Unplaced:
    """A job that has no place, and what excludes each rung."""

    job: str
    reason: str
    excluded: Mapping[str, str]


@dataclass(frozen=True)
class Allocation:
    """What came of a scenario. Where jobs are unplaced, costs and bound are of the others."""

    problem: Problem
    launches: tuple[Launch, ...]
    left: tuple[int, ...]
    method: Literal["mip", "greedy"]
    why_method: str
    optimal: bool
    prices: ShadowPrices

    @cached_property
    def cost_usd(self) -> float:
        """Dollars for all launches; what one has already costs none."""
        return sum(self.problem.usd_per_h[it.rung] * it.hours for it in self.launches)

    @property
    def spent(self) -> dict[str, float]:
        """By currency."""
        return amounts(self.problem, self.launches)

    @property
    def gap(self) -> float | None:
        """How much dearer it is than the bound, as a part of the bound; ``None`` where the bound is 0.

        Of an exact answer it is what the relaxation gives away, and no better answer exists.
        """
        over_usd = max(0.0, self.cost_usd - self.prices.bound_usd)
        if over_usd <= SLACK:
            return 0.0
        return over_usd / self.prices.bound_usd if self.prices.bound_usd > SLACK else None

    @cached_property
    def assignments(self) -> tuple[Assignment, ...]:
        """In the order of the scenario."""
        from tenure.plan.allocate_reasons import reasons

        words = reasons(self.problem, self.launches, self.prices)
        found: dict[int, Assignment] = {}
        for number, launch in enumerate(self.launches):
            rung = self.problem.rungs[launch.rung]
            usd = self.problem.scenario.usd_per_unit(rung.price.currency)
            for job, amount in zip(launch.jobs, cost_shares(self.problem, launch), strict=True):
                hours = float(self.problem.launch_h[job, launch.rung])
                end_h = launch.until_h(hours)
                runs = tuple((a, min(b, end_h)) for a, b in launch.runs if a < end_h)
                found[job] = Assignment(
                    self.problem.jobs[job].name, rung.name, number, launch.place,
                    launch.runs[0][0], end_h, hours, runs,
                    amount, rung.price.currency, amount * usd, words[job],
                )  # fmt: skip
        return tuple(found[job] for job in sorted(found))

    @property
    def unplaced(self) -> tuple[Unplaced, ...]:
        """In the order of the scenario."""
        return tuple(_unplaced(self.problem, job, self.method) for job in self.left)

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints: docs/allocate.md has every key."""
        return {
            "method": self.method,
            "why_method": self.why_method,
            "optimal": self.optimal,
            "cost_usd": self.cost_usd,
            "bound_usd": self.prices.bound_usd,
            "gap": self.gap,
            "spent": self.spent,
            "horizon_h": self.problem.until_h,
            "assignments": [_json(it) for it in self.assignments],
            "unplaced": [
                {"job": it.job, "reason": it.reason, "excluded": dict(it.excluded)}
                for it in self.unplaced
            ],
            "shadow_prices": {it.name: self.prices.worth(it.name) for it in self.problem.rungs},
            "limits": [
                {
                    "kind": it.kind, "name": it.name, "from_h": it.from_h, "to_h": it.to_h,
                    "unit": it.unit, "limit": it.limit, "used": it.used,
                    "usd_per_unit": it.usd_per_unit, "reason": it.reason,
                }
                for it in self.prices.prices
            ],
        }  # fmt: skip


def _json(it: Assignment) -> dict[str, object]:
    runs = [{"from_h": from_h, "to_h": to_h} for from_h, to_h in it.runs]
    return {
        "job": it.job, "rung": it.rung, "launch": it.launch, "place": it.place,
        "start_h": it.start_h, "end_h": it.end_h, "hours": it.hours, "runs": runs,
        "amount": it.amount, "currency": it.currency, "cost_usd": it.cost_usd, "reason": it.reason,
    }  # fmt: skip


def allocate(scenario: Scenario, method: Method = "auto", limit_s: float = LIMIT_S) -> Allocation:
    """Allocate every job that has a place.

    Raises :class:`~tenure.errors.UsageError` for a deadline or a budget that cannot be kept: by how much, and
    the least that would have to be given up.
    """
    problem = Problem(scenario)
    somewhere = [least < inf for least in problem.launch_h.min(axis=1).tolist()]
    jobs = [j for j, found in enumerate(somewhere) if found]
    stranded = [j for j, found in enumerate(somewhere) if not found]
    for job in stranded:
        demand_feasible_alone(problem, job)
    count = size(problem)
    exact = method == "mip" or (method == "auto" and count <= MOST_WHOLE)
    why = (
        f"{count} unknowns that must be whole, and up to {MOST_WHOLE} are solved exactly"
        if method == "auto"
        else "it was asked for"
    )
    if exact:
        try:
            return _exactly(problem, jobs, stranded, why, limit_s)
        except OutOfTime as error:
            why = str(error)
    return _greedily(problem, jobs, stranded, why)


def _exactly(
    problem: Problem, jobs: list[int], stranded: list[int], why: str, limit_s: float
) -> Allocation:
    solved = solve(problem, stranded, limit_s=limit_s) if jobs else Solved((), True, 0.0)
    if solved is None:
        demand_feasible(problem, stranded, limit_s)
        solved = solve(problem, stranded, must_place=False, limit_s=limit_s)
        assert solved is not None, "leaving everybody out is always possible"
    wrong = violations(problem, solved.launches)
    if wrong:  # where numbers are very far apart, HiGHS takes for a whole answer what is none
        return _greedily(problem, jobs, stranded, f"the exact way was off by rounding: {wrong[0]}")
    placed = {job for launch in solved.launches for job in launch.jobs}
    left = tuple(j for j in range(len(problem.jobs)) if j not in placed)
    found = _allocation(problem, solved.launches, left, "mip", why, solved.optimal)
    if solved.optimal:
        return found
    other = _greedily(problem, jobs, stranded, f"the exact way was not done after {limit_s:g} s")
    better = (len(other.left), other.cost_usd) < (len(found.left), found.cost_usd)
    return other if better else found


def _greedily(problem: Problem, jobs: list[int], stranded: list[int], why: str) -> Allocation:
    from tenure.plan.allocate_ascent import prices_of
    from tenure.plan.allocate_greedy import fill

    if not jobs:
        return _allocation(problem, (), tuple(stranded), "greedy", why, False)
    filled = fill(problem, jobs)
    left = tuple(sorted([*stranded, *filled.left]))
    if filled.left:
        return _allocation(problem, filled.launches, left, "greedy", why, False)
    small = is_small(problem, jobs)
    prices = None if small else prices_of(filled.relaxed, filled.climbed)
    return _allocation(problem, filled.launches, left, "greedy", why, False, prices)


def _allocation(
    problem: Problem,
    launches: Sequence[Launch],
    left: tuple[int, ...],
    method: Literal["mip", "greedy"],
    why: str,
    optimal: bool,
    prices: ShadowPrices | None = None,
) -> Allocation:
    wrong = violations(problem, launches)
    assert not wrong, "; ".join(wrong)
    prices = prices or shadow_prices(problem, frozenset(left))
    # The program that places whole jobs is solved to a tolerance, at whose edge theirs is infeasible.
    prices = prices or shadow_prices(problem, frozenset(left), TOLERANCE)
    assert prices is not None, "what is placed whole can be placed in parts"
    return Allocation(problem, tuple(launches), left, method, why, optimal, prices)


def _unplaced(problem: Problem, job: int, method: str) -> Unplaced:
    excluded = {
        rung.name: why
        for r, rung in enumerate(problem.rungs)
        if (why := problem.excluded(job, r)) is not None
    }
    name = problem.jobs[job].name
    free = [rung.name for rung in problem.rungs if rung.name not in excluded]
    if not free:
        each = "; ".join(f"{rung} {why}" for rung, why in excluded.items())
        return Unplaced(name, f"no rung takes it: {each}", excluded)
    best = min(free, key=lambda it: float(problem.launch_h[job, _number(problem, it)]))
    hours = float(problem.launch_h[job, _number(problem, best)])
    found = "there is no room" if method == "mip" else "the greedy way found no room"
    for rung in free:
        excluded[rung] = "others take what there is of it in its time"
    return Unplaced(
        name, f"{found} for it beside the others: {best} would take {hours:.4g} h", excluded
    )


def _number(problem: Problem, rung: str) -> int:
    return next(n for n, it in enumerate(problem.rungs) if it.name == rung)
