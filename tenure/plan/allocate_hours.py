"""How long each of many jobs takes on each of many rungs, all at once."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from tenure.plan.allocate_scenario import Job, Rung

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenure.plan.allocate_model import Problem

_SLACK = 1e-6
_HOUR_S = 3600.0


def hours_of_all(problem: Problem) -> NDArray[np.float64]:
    """Hours of each job on each rung, shape (jobs, rungs); infinite where something excludes it.

    The same as :func:`tenure.plan.allocate_model.launch_hours` where ``problem.excluded`` is ``None``.
    """
    jobs, rungs = problem.jobs, problem.rungs
    known = {job.name: n for n, job in enumerate(jobs) if job.hours_on is not None}
    alone_h = _alone(jobs, rungs)
    for name, n in known.items():
        assert jobs[n].name == name
        alone_h[n] = [(jobs[n].hours_on or {}).get(rung.name, inf) for rung in rungs]
    hours = _with_losses(alone_h, jobs, rungs)
    hours[~_allowed(jobs, rungs)] = inf
    due_h = np.array(problem.due_h)
    hours[hours > due_h[:, None] + _SLACK] = inf
    for r in problem.account_of:
        _within_quota(problem, hours, r, due_h)
    _within_budgets(problem, hours)
    return hours


def _alone(jobs: list[Job], rungs: list[Rung]) -> NDArray[np.float64]:
    """Hours of work without a loss, of jobs that give hours or FLOPs."""
    given_h = np.array([inf if job.hours is None else job.hours for job in jobs])
    per_card = np.array([inf if job.flops is None else job.flops / job.cards for job in jobs])
    speed = np.array([rung.speed for rung in rungs])
    flops_per_h = np.array([(rung.flops_per_s or 0.0) * rung.speed * _HOUR_S for rung in rungs])
    with np.errstate(divide="ignore", over="ignore"):
        by_flops: NDArray[np.float64] = per_card[:, None] / flops_per_h[None, :]
        found: NDArray[np.float64] = np.minimum(given_h[:, None] / speed[None, :], by_flops)
    return found


def _with_losses(
    alone_h: NDArray[np.float64], jobs: list[Job], rungs: list[Rung]
) -> NDArray[np.float64]:
    milestone_h = np.minimum(np.array([job.milestone_h for job in jobs])[:, None], alone_h)
    hazard = np.array([rung.hazard_per_h for rung in rungs])[None, :]
    start_h = np.array([rung.start_h for rung in rungs])[None, :]
    share = np.array([rung.useful_share for rung in rungs])[None, :]
    wall_h = np.array([inf if rung.wall_h is None else rung.wall_h for rung in rungs])[None, :]
    exponent = hazard * milestone_h
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_losses = (1.0 / hazard + start_h) * np.expm1(exponent) / milestone_h
        factor = np.where(exponent < 1e-12, 1.0 + hazard * start_h, by_losses)
        factor = np.where((exponent > 500.0) | ~np.isfinite(alone_h), inf, factor)
        paid_h = np.where(np.isfinite(factor), alone_h / share * factor, inf)
        net_h = wall_h - start_h
        launches = np.where(np.isfinite(wall_h), np.ceil(paid_h / net_h - 1e-9), 1.0)
        hours = np.where(np.isfinite(paid_h), paid_h + start_h * launches, inf)
    hours[net_h < milestone_h] = inf
    return hours


def _allowed(jobs: list[Job], rungs: list[Rung]) -> NDArray[np.bool_]:
    """By kind, environment, cards, and critical jobs only where it is sure."""
    wanted = [(job.kind, job.environment, job.sure_only, job.cards) for job in jobs]
    rows = {
        each: np.array(
            [
                each[0] in rung.kinds
                and (each[1] is None or each[1] in rung.environments)
                and not (each[2] and rung.spot)
                and each[3] <= rung.cards
                for rung in rungs
            ]
        )
        for each in set(wanted)
    }
    return np.array([rows[each] for each in wanted])


def _within_quota(
    problem: Problem, hours: NDArray[np.float64], rung: int, due_h: NDArray[np.float64]
) -> None:
    account = problem.account_of[rung]
    rate = account.rate(rung)
    most_h = np.zeros(len(due_h))
    for window in account.windows:
        lasts_h = np.clip(np.minimum(window.to_h, due_h) - window.from_h, 0.0, None)
        most_h += np.minimum(lasts_h, window.amount / rate if rate else inf)
    hours[hours[:, rung] > most_h + problem.quota_slack_h(rung), rung] = inf


def _within_budgets(problem: Problem, hours: NDArray[np.float64]) -> None:
    cards = np.array([job.cards for job in problem.jobs])
    own = {currency for job in problem.jobs for currency in job.budget}
    for currency in own | set(problem.scenario.budget):
        whole = problem.scenario.budget.get(currency, inf)
        most = np.array([min(job.budget.get(currency, inf), whole) for job in problem.jobs])
        for r, rung in enumerate(problem.rungs):
            if rung.price.currency == currency and rung.price.per_h:
                part = cards / rung.cards if problem.packs(r) else 1.0
                least = hours[:, r] * rung.price.per_h * part
                hours[least > most + _SLACK, r] = inf
