"""What stands in the way where jobs do not fit: which limit, by how much, and the least that would help."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from tenure.bad_input import KeyPath
from tenure.plan.allocate_launches import amounts
from tenure.plan.allocate_mip import OutOfTime, Solved, solve
from tenure.plan.allocate_model import Problem, launch_hours, windows_until
from tenure.plan.allocate_scenario import LONGEST_H, MOST, MOST_RENEWALS, USD, Scenario

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
    """Raise UsageError where time or a budget alone keeps a job off every rung that takes its kind.

    Time is its deadline, or the horizon where that is earlier. Returns where no time and no budget would help.
    """
    found = (_option(problem, job, r) for r in range(len(problem.rungs)))
    options = [option for option in found if option is not None]
    it = problem.jobs[job]
    dear = [each for each in options if each.in_time]
    late = [each for each in options if not each.in_time and each.over <= 0]
    if dear:
        _too_dear(problem, job, min(dear, key=lambda each: each.over), late)
    late = late or options
    if not late:
        return
    first = min(late, key=lambda each: each.due_h)
    cheap = min(late, key=lambda each: (each.amount, each.due_h))
    also = (
        f", or {_eased(problem, job, cheap.due_h)} on {cheap.rung} for {cheap.amount:.4g} {cheap.currency}"
        if cheap.amount < first.amount and cheap.currency == first.currency
        else ""
    )
    also += (
        f"; its budget is {first.over:.4g} {first.currency} too small as well"
        if first.over > 0
        else ""
    )
    due_h = problem.due_h[job]
    at, limit = _time_limit(problem, job)
    raise problem.scenario.error(
        at,
        f"job {it.name!r} cannot end by {limit}{due_h:g} h: {first.rung}, the fastest rung that takes it, "
        f"has it done after {first.due_h:.4g} h, {first.due_h - due_h:.4g} h too late; the cheapest "
        f"relaxation is {_eased(problem, job, first.due_h)} ({first.amount:.4g} {first.currency}){also}",
    )


def _time_limit(problem: Problem, job: int) -> tuple[KeyPath, str]:
    """The key that says by when a job must have ended, and what to call it where it is not its own."""
    deadline_h = problem.jobs[job].deadline_h
    if deadline_h is not None and deadline_h <= problem.until_h:
        return ("jobs", job, "deadline_h"), ""
    if problem.scenario.horizon_h is not None:
        return ("horizon_h",), "the horizon of "
    return ("jobs", job), "the default horizon of "


def _eased(problem: Problem, job: int, due_h: float) -> str:
    """The keys to write so that a job may end so late: its deadline, the horizon, or both."""
    deadline_h, horizon_h = problem.jobs[job].deadline_h, problem.scenario.horizon_h
    keys = []
    if deadline_h is not None and deadline_h < due_h:
        keys.append("deadline_h")
    if problem.until_h < due_h and (horizon_h is not None or deadline_h is None):
        keys.append("horizon_h")  # a default horizon moves with a deadline
    return " and ".join(f"{key}: {_up(due_h)}" for key in keys)


def _too_dear(problem: Problem, job: int, least: _Option, late: list[_Option]) -> None:
    it = problem.jobs[job]
    at: KeyPath = ("budget",) if least.whole else ("jobs", job, "budget")
    budget = problem.scenario.budget if least.whole else it.budget
    most = budget[least.currency]
    also = ""
    if late:
        slow = min(late, key=lambda each: each.due_h)
        eased = _eased(problem, job, slow.due_h)
        also = f", or {eased} on {slow.rung} for {slow.amount:.4g} {slow.currency}"
    raise problem.scenario.error(
        (*at, least.currency),
        f"job {it.name!r} costs {least.amount:.4g} {least.currency} on {least.rung}, the cheapest rung that "
        f"has it done in time, {least.over:.4g} more than the budget of {most:g}; the cheapest relaxation is "
        f"a budget of {_up(least.amount)} {least.currency}{also}",
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
    if due_h > _latest_h(problem.scenario) or amount > MOST:  # no scenario may say so
        return None
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
    owner = next(it for it in problem.rungs if it.name == account.name)
    for window in windows_until(owner, _latest_h(problem.scenario)):
        works_h = min(window.lasts_h, window.amount / rate if rate else left_h)
        if works_h >= left_h - 1e-9:
            return window.from_h + left_h
        left_h -= works_h
    return None


def demand_feasible(problem: Problem, leave: Collection[int], limit_s: float) -> None:
    """Raise UsageError where all jobs together break a budget or are too late, and not one alone.

    Returns where nothing of these would help: then what there is of quotas and rungs is too little.
    """
    scenario = problem.scenario
    for currency, most in scenario.budget.items():
        need = _least_spent(scenario, currency, leave, limit_s)
        if need is None or need > MOST:
            continue
        later_h = _least_delay(scenario, leave, limit_s)
        also = f", or {_all_later(scenario, later_h)}" if later_h is not None else ""
        raise scenario.error(
            ("budget", currency),
            f"the cheapest way to have every job in time costs {need:.4g} {currency}, {need - most:.4g} more "
            f"than the budget of {most:g}; the cheapest relaxation is a budget of {_up(need)} "
            f"{currency}{also}",
        )
    later_h = _least_delay(scenario, leave, limit_s)
    if later_h is None:
        return
    due = [(it.deadline_h, n) for n, it in enumerate(scenario.jobs) if it.deadline_h is not None]
    first_h, first = min(due, default=(LONGEST_H, 0))
    at: KeyPath = ("jobs", first, "deadline_h")
    what = f"the {len(due)} deadlines, the first of them {first_h:g} h, cannot all be kept"
    if not due:
        at = ("jobs",) if scenario.horizon_h is None else ("horizon_h",)
        what = f"the jobs cannot all end by the horizon of {problem.until_h:g} h"
    raise scenario.error(
        at,
        f"{what}: together the jobs end {later_h:g} h too late on what the rungs have; the cheapest relaxation "
        f"is {_all_later(scenario, later_h)}, or more concurrency or quota on a rung",
    )


def _all_later(scenario: Scenario, later_h: float) -> str:
    """What to write so that everything may end so much later."""
    horizon = f"horizon_h: {_up(scenario.until_h + later_h)}"
    with_deadline = [it for it in scenario.jobs if it.deadline_h is not None]
    if not with_deadline:
        return horizon
    # A default horizon moves with the deadlines, unless it is the week of a job that has none.
    moves = scenario.horizon_h is None and len(with_deadline) == len(scenario.jobs)
    return f"every deadline {later_h:g} h later" + ("" if moves else f" and {horizon}")


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


def _latest_h(scenario: Scenario) -> float:
    """The latest horizon that a scenario may have: of no quota are there too many renewals by then."""
    latest_h = LONGEST_H
    for rung in scenario.rungs:
        if rung.quota is not None and rung.quota.renews_in_h is not None:
            last_h = rung.quota.renews_in_h + (MOST_RENEWALS - 1) * rung.quota.every_h
            latest_h = min(latest_h, max(last_h, scenario.until_h))
    return latest_h


def _later(scenario: Scenario, later_h: float) -> Scenario:
    """The same with every deadline, and the horizon, so much later; as many renewals as are allowed."""
    until_h = min(scenario.until_h + later_h, _latest_h(scenario))
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


def _up(value: float) -> str:
    """A little more rather than less, with three digits behind the point.

    >>> _up(14.2000001), _up(3.0), _up(1234561.0001)
    ('14.201', '3', '1234561.001')
    """
    return f"{ceil(value * 1000 - 1e-6) / 1000:.12g}"
