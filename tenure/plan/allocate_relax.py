"""What stands in the way where jobs do not fit: which limit, by how much, and the least that would help."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from tenure.bad_input import KeyPath
from tenure.plan.allocate_launches import amounts
from tenure.plan.allocate_mip import OutOfTime, Solved, solve
from tenure.plan.allocate_model import Problem, launch_hours
from tenure.plan.allocate_scenario import LONGEST_H, MOST_RENEWALS, USD, Scenario

_PRECISION_H = 0.01


@dataclass(frozen=True)
class _Option:
    """A rung that would take a job, and what would have to be given up for it."""

    rung: str
    hours: float
    due_h: float  # when it can have ended there
    amount: float
    currency: str
    in_time: bool
    over: float  # how much more it costs than it may
    whole: bool  # the budget of all jobs is what it breaks, not its own


def demand_feasible_alone(problem: Problem, job: int) -> None:
    """Raise UsageError where a job's deadline or budget alone keeps it off every rung that takes its kind."""
    found = (_option(problem, job, r) for r in range(len(problem.rungs)))
    options = [option for option in found if option is not None]
    it = problem.jobs[job]
    dear = [each for each in options if each.in_time]
    late = [each for each in options if not each.in_time and each.over <= 0]
    if dear:
        _too_dear(problem, job, min(dear, key=lambda each: each.over), late)
    late = late or options
    if not late or it.deadline_h is None or it.deadline_h > problem.until_h:
        return
    first = min(late, key=lambda each: each.due_h)
    cheap = min(late, key=lambda each: (each.amount, each.due_h))
    also = (
        f", or {_up(cheap.due_h):g} on {cheap.rung} for {cheap.amount:.4g} {cheap.currency}"
        if cheap.amount < first.amount and cheap.currency == first.currency
        else ""
    )
    also += (
        f"; its budget is {first.over:.4g} {first.currency} too small as well"
        if first.over > 0
        else ""
    )
    raise problem.scenario.error(
        ("jobs", job, "deadline_h"),
        f"job {it.name!r} cannot end by {it.deadline_h:g} h: {first.rung}, the fastest rung that takes it, "
        f"has it done after {first.due_h:.4g} h, {first.due_h - it.deadline_h:.4g} h too late; the cheapest "
        f"relaxation is deadline_h: {_up(first.due_h):g} ({first.amount:.4g} {first.currency}){also}",
    )


def _too_dear(problem: Problem, job: int, least: _Option, late: list[_Option]) -> None:
    it = problem.jobs[job]
    at: KeyPath = ("budget",) if least.whole else ("jobs", job, "budget")
    budget = problem.scenario.budget if least.whole else it.budget
    most = budget[least.currency]
    also = ""
    if late and it.deadline_h is not None:
        slow = min(late, key=lambda each: each.due_h)
        also = f", or deadline_h: {_up(slow.due_h):g} on {slow.rung} for {slow.amount:.4g} {slow.currency}"
    raise problem.scenario.error(
        (*at, least.currency),
        f"job {it.name!r} costs {least.amount:.4g} {least.currency} on {least.rung}, the cheapest rung that "
        f"has it done in time, {least.over:.4g} more than the budget of {most:g}; the cheapest relaxation is "
        f"a budget of {_up(least.amount):g} {least.currency}{also}",
    )


def _option(problem: Problem, job: int, r: int) -> _Option | None:
    if problem.refused(job, r) is not None:
        return None
    rung, it = problem.rungs[r], problem.jobs[job]
    hours = launch_hours(it, rung)
    due_h = _done_h(problem, r, hours)
    if due_h is None:
        return None
    amount, currency = problem.least_amount(job, r), rung.price.currency
    own = amount - it.budget.get(currency, amount)
    whole = amount - problem.scenario.budget.get(currency, amount)
    in_time = problem.too_long(job, r) is None
    return _Option(rung.name, hours, due_h, amount, currency, in_time, max(own, whole), whole > own)


def _done_h(problem: Problem, rung: int, hours: float) -> float | None:
    """When a job that has a rung for itself has ended there; ``None`` where its quota is never enough."""
    account = problem.account_of.get(rung)
    if account is None:
        return hours
    rate = account.rate(rung)
    left_h = hours
    windows = Problem(_later(problem.scenario, hours)).windows(rung) if rate else account.windows
    for window in windows:
        works_h = min(window.lasts_h, window.amount / rate if rate else left_h)
        if works_h >= left_h - 1e-9:
            return window.from_h + left_h
        left_h -= works_h
    return None


def demand_feasible(problem: Problem, leave: Collection[int], limit_s: float) -> None:
    """Raise UsageError where all jobs together break a budget or their deadlines, and not one alone.

    Returns where nothing of these would help: then what there is of quotas and rungs is too little.
    """
    scenario = problem.scenario
    for currency, most in scenario.budget.items():
        need = _least_spent(scenario, currency, leave, limit_s)
        if need is None:
            continue
        later_h = _least_delay(scenario, leave, limit_s)
        also = f", or every deadline {later_h:g} h later" if later_h is not None else ""
        raise scenario.error(
            ("budget", currency),
            f"the cheapest way to have every job in time costs {need:.4g} {currency}, {need - most:.4g} more "
            f"than the budget of {most:g}; the cheapest relaxation is a budget of {_up(need):g} "
            f"{currency}{also}",
        )
    due = [(it.deadline_h, n) for n, it in enumerate(scenario.jobs) if it.deadline_h is not None]
    later_h = _least_delay(scenario, leave, limit_s) if due else None
    if later_h is None:
        return
    first_h, first = min(due)
    raise scenario.error(
        ("jobs", first, "deadline_h"),
        f"the {len(due)} deadlines, the first of them {first_h:g} h, cannot all be kept: together the jobs end "
        f"{later_h:g} h too late on what the rungs have; the cheapest relaxation is every deadline {later_h:g} h "
        "later, or more concurrency or quota on a rung",
    )


def _least_spent(
    scenario: Scenario, currency: str, leave: Collection[int], limit_s: float
) -> float | None:
    """What has to be spent in one currency, if that is what is short."""
    budget = {name: most for name, most in scenario.budget.items() if name != currency}
    rates = scenario.rates if currency == USD else {currency: 1.0}
    without = scenario.model_copy(update={"budget": budget, "rates": rates})
    problem = Problem(without)
    solved = _tried(problem, leave, limit_s)
    return None if solved is None else amounts(problem, solved.launches).get(currency, 0.0)


def _least_delay(scenario: Scenario, leave: Collection[int], limit_s: float) -> float | None:
    """Hours by which every deadline, and the horizon, would have to be later; rounded up."""

    def fits(later_h: float) -> bool:
        return _tried(Problem(_later(scenario, later_h)), leave, limit_s / 10) is not None

    longest_h = sum(
        min(
            (h for rung in scenario.rungs if (h := launch_hours(job, rung)) < LONGEST_H),
            default=0.0,
        )
        for job in scenario.jobs
    )
    low, high = 0.0, 1.0
    while not fits(high):
        if high > 2.0 * longest_h + 2.0:
            return None
        low, high = high, 2.0 * high
    while high - low > _PRECISION_H:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return ceil(high / _PRECISION_H) * _PRECISION_H


def _later(scenario: Scenario, later_h: float) -> Scenario:
    """The same with every deadline, and the horizon, so much later; as many renewals as are allowed."""
    until_h = min(scenario.until_h + later_h, LONGEST_H)
    for rung in scenario.rungs:
        if rung.quota is not None and rung.quota.renews_in_h is not None:
            last_h = rung.quota.renews_in_h + (MOST_RENEWALS - 1) * rung.quota.every_h
            until_h = min(until_h, max(last_h, scenario.until_h))
    jobs = [
        job
        if job.deadline_h is None
        else job.model_copy(update={"deadline_h": job.deadline_h + later_h})
        for job in scenario.jobs
    ]
    return scenario.model_copy(update={"jobs": jobs, "horizon_h": until_h})


def _tried(problem: Problem, leave: Collection[int], limit_s: float) -> Solved | None:
    try:
        return solve(problem, leave, limit_s=limit_s)
    except OutOfTime:
        return None


def _up(value: float) -> float:
    """A little more rather than less, with few digits.

    >>> _up(14.2000001), _up(3.0)
    (14.201, 3.0)
    """
    return ceil(value * 1000 - 1e-6) / 1000
