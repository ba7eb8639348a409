"""The allocation: the exact way is as good as trying everything, and no way breaks a limit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import inf, isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import UsageError
from tenure.plan.allocate import Allocation, Method, allocate
from tenure.plan.allocate_launches import Launch, violations
from tenure.plan.allocate_mip import solve
from tenure.plan.allocate_model import Problem, launch_hours
from tenure.plan.allocate_scenario import Job, Price, Quota, Rung, Scenario, check

# ------------------------------------------------------------------------- trying everything


def partitions(jobs: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to put jobs into groups."""
    if not jobs:
        yield []
        return
    first, rest = jobs[0], jobs[1:]
    for found in partitions(rest):
        yield [[first], *found]
        for n in range(len(found)):
            yield [*found[:n], [first, *found[n]], *found[n + 1 :]]


def hours_of(scenario: Scenario, job: int, rung: int) -> float:
    it, at = scenario.jobs[job], scenario.rungs[rung]
    if it.kind not in at.kinds or (it.critical and at.spot) or it.cards > at.cards:
        return inf
    if it.environment is not None and it.environment not in at.environments:
        return inf
    return launch_hours(it, at)


def fits_in_time(scenario: Scenario, rung: int, groups: list[list[int]], use: float) -> bool:
    """Whether launches can follow each other on the places of a rung so that every job is in time.

    ``use`` is what a quota with one window still has, in hours; with more windows a rung has one place.
    """
    at, until_h = scenario.rungs[rung], scenario.until_h
    hours = {j: hours_of(scenario, j, rung) for group in groups for j in group}
    lasts = [max(hours[j] for j in group) for group in groups]
    if sum(lasts) > use + 1e-9:
        return False
    due = [
        [min(scenario.jobs[j].deadline_h or inf, until_h) for j in group] for group in groups
    ]
    places = min(at.concurrency or len(groups), len(groups))
    quota = at.quota if at.quota and at.quota.renews_in_h and at.quota.renews_in_h < until_h else None
    if quota is not None:
        assert at.concurrency == 1
        return any(
            paused_in_time(scenario, quota, [lasts[n] for n in turn], [min(due[n]) for n in turn])
            for turn in permutations(range(len(groups)))
        )
    for spread in product(range(places), repeat=len(groups)):
        if all(
            any(
                all(
                    sum(lasts[m] for m in turn[:k]) + hours[j] <= d + 1e-9
                    for k, n in enumerate(turn)
                    for j, d in zip(groups[n], due[n], strict=True)
                )
                for turn in permutations([n for n, at_place in enumerate(spread) if at_place == place])
            )
            for place in range(places)
        ):
            return True
    return not groups


def paused_in_time(
    scenario: Scenario, quota: Quota, lasts: list[float], due: list[float]
) -> bool:
    """One place, as early as the quota lets it work; a launch has ended for all its jobs when it ends."""
    assert quota.renews_in_h is not None
    now, window_end, left = 0.0, quota.renews_in_h, quota.left
    for hours, by in zip(lasts, due, strict=True):
        while hours > 1e-12:
            if now > scenario.until_h:
                return False
            step = min(hours, window_end - now, left)
            now, hours, left = now + step, hours - step, left - step
            if hours > 1e-12:
                now, left = window_end, quota.granted if quota.granted is not None else quota.left
                window_end += quota.every_h
        if now > by + 1e-9:
            return False
    return True


def least_by_trying(scenario: Scenario) -> float | None:
    """The least dollars with every job in its place; ``None``: there is no way."""
    jobs, rungs = range(len(scenario.jobs)), range(len(scenario.rungs))
    groupings = [allowed_groups(scenario, rung) for rung in rungs]
    best = inf
    for spread in product(rungs, repeat=len(scenario.jobs)):
        if any(hours_of(scenario, j, spread[j]) == inf for j in jobs):
            continue
        sets = [tuple(j for j in jobs if spread[j] == rung) for rung in rungs]
        ways = [groupings[rung](sets[rung]) for rung in rungs]
        for chosen in product(*ways):
            spent: dict[str, float] = {}
            for amount, currency in chosen:
                spent[currency] = spent.get(currency, 0.0) + amount
            if all(spent.get(name, 0.0) <= most + 1e-9 for name, most in scenario.budget.items()):
                usd = sum(v * scenario.usd_per_unit(c) for c, v in spent.items())
                best = min(best, usd)
    return None if best == inf else best


def allowed_groups(scenario: Scenario, rung: int):  # type: ignore[no-untyped-def]
    """By set of jobs: what each allowed way to launch them on a rung costs."""
    at = scenario.rungs[rung]
    memory: dict[tuple[int, ...], list[tuple[float, str]]] = {}

    def ways(jobs: tuple[int, ...]) -> list[tuple[float, str]]:
        if jobs not in memory:
            found = set()
            for groups in partitions(list(jobs)):
                lasts = [max(hours_of(scenario, j, rung) for j in group) for group in groups]
                quota = at.quota
                once = quota and not (quota.renews_in_h and quota.renews_in_h < scenario.until_h)
                rate = at.price.per_h if quota and quota.unit != "h" else 1.0
                use = quota.left / rate if quota and once and rate else inf
                if all(can_share(scenario, rung, group) for group in groups) and fits_in_time(
                    scenario, rung, groups, use
                ):
                    found.add((round(at.price.per_h * sum(lasts), 9), at.price.currency))
            memory[jobs] = sorted(found)
        return memory[jobs]

    return ways


def can_share(scenario: Scenario, rung: int, group: list[int]) -> bool:
    at = scenario.rungs[rung]
    jobs = [scenario.jobs[j] for j in group]
    if sum(job.cards for job in jobs) > at.cards or len(group) > (at.per_launch or at.cards):
        return False
    hours = [hours_of(scenario, j, rung) for j in group]
    card_h = [job.cards * h for job, h in zip(jobs, hours, strict=True)]
    cost = at.price.per_h * max(hours)
    return all(
        cost * part / sum(card_h) <= job.budget.get(at.price.currency, inf) + 1e-9
        for job, part in zip(jobs, card_h, strict=True)
    )


def some_scenario(seed: int) -> Scenario:
    """A tiny one in which limits bind."""
    rng = random.Random(seed)
    packed = rng.random() < 0.5
    count = rng.randint(2, 4)
    jobs = [
        Job(
            name=f"j{n}",
            hours=float(rng.randint(1, 9)),
            cards=rng.choice([1, 1, 2]) if packed else 1,
            kind=rng.choice(["train", "train", "backtest"]),
            critical=rng.random() < 0.2,
            environment="e" if rng.random() < 0.2 else None,
            deadline_h=rng.choice([None, 9.0, 14.0, 20.0]),
            budget={"usd": float(rng.randint(3, 20))} if rng.random() < 0.3 else {},
        )
        for n in range(count)
    ]
    rungs = []
    for n in range(rng.randint(2, 3)):
        windows = rng.random() < 0.4
        quota = None
        if rng.random() < 0.5:
            quota = Quota(
                left=float(rng.randint(2, 14)),
                renews_in_h=float(rng.randint(4, 12)) if windows else None,
                granted=float(rng.randint(2, 12)),
                every_h=10.0,
            )
        rungs.append(
            Rung(
                name=f"r{n}",
                price=Price(
                    currency=rng.choice(["usd", "usd", "credits"]),
                    per_h=rng.choice([0.0, 0.5, 1.0, 1.3, 2.0]),
                ),
                spot=rng.random() < 0.4,
                hazard_per_h=rng.choice([0.0, 0.0, 0.2]),
                start_h=rng.choice([0.0, 0.25]),
                speed=rng.choice([0.5, 1.0, 2.0]),
                cards=rng.choice([2, 3, 4]) if packed else 1,
                per_launch=2 if packed and rng.random() < 0.2 else None,
                concurrency=1 if windows and quota else rng.choice([None, 1, 2]),
                quota=quota,
                wall_h=rng.choice([None, None, 4.0]),
                kinds=["train", "backtest"] if rng.random() < 0.7 else ["train"],
                environments=["e"] if rng.random() < 0.6 else [],
            )
        )
    budget: dict[str, float] = {}
    if rng.random() < 0.3 and any(it.price.currency == "usd" for it in rungs):
        budget["usd"] = float(rng.randint(2, 20))
    rates = {"credits": 0.5} if any(it.price.currency == "credits" for it in rungs) else {}
    jobs = [
        job if "usd" in {it.price.currency for it in rungs} else job.model_copy(update={"budget": {}})
        for job in jobs
    ]
    return Scenario(horizon_h=24.0, jobs=jobs, rungs=rungs, budget=budget, rates=rates)


def test_the_exact_way_is_as_good_as_trying_everything() -> None:
    found, dear = 0, 0
    for seed in range(200):
        scenario = some_scenario(seed)
        check(scenario)
        problem = Problem(scenario)
        least = least_by_trying(scenario)
        solved = solve(problem)
        assert (solved is None) == (least is None), f"seed {seed}"
        if solved is None or least is None:
            continue
        assert solved.optimal and not violations(problem, solved.launches), f"seed {seed}"
        usd = sum(problem.usd_per_h[it.rung] * it.hours for it in solved.launches)
        assert isclose(usd, least, rel_tol=1e-6, abs_tol=1e-6), f"seed {seed}: {usd} and {least}"
        found += 1
        dear += usd > 0
    assert found > 80 and dear > 60 and found < 200  # some are impossible, and most cost something
