"""The allocation: the exact way is as good as trying everything, and no way breaks a limit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from math import inf, isclose

import pytest
from hypothesis import HealthCheck, given, settings
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
    if it.kind not in at.kinds or (it.sure_only and at.spot) or it.cards > at.cards:
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
    due = [[min(scenario.jobs[j].deadline_h or inf, until_h) for j in group] for group in groups]
    places = min(at.concurrency or len(groups), len(groups))
    quota = (
        at.quota if at.quota and at.quota.renews_in_h and at.quota.renews_in_h < until_h else None
    )
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
                for turn in permutations(
                    [n for n, at_place in enumerate(spread) if at_place == place]
                )
            )
            for place in range(places)
        ):
            return True
    return not groups


def paused_in_time(scenario: Scenario, quota: Quota, lasts: list[float], due: list[float]) -> bool:
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
        job
        if "usd" in {it.price.currency for it in rungs}
        else job.model_copy(update={"budget": {}})
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


# ------------------------------------------------------------------------- nothing is broken


def broken(scenario: Scenario, found: Allocation) -> list[str]:
    """Limits that the printed answer breaks, from the scenario's own words alone."""
    jobs = {it.name: it for it in scenario.jobs}
    rungs = {it.name: it for it in scenario.rungs}
    wrong: list[str] = []
    answer = found.as_json()
    launches: dict[int, list[dict]] = {}  # type: ignore[type-arg]
    for row in answer["assignments"]:  # type: ignore[attr-defined]
        launches.setdefault(row["launch"], []).append(row)
        job, rung = jobs[row["job"]], rungs[row["rung"]]
        worked = sum(run["to_h"] - run["from_h"] for run in row["runs"])
        due = min(job.deadline_h or inf, scenario.until_h)
        if not isclose(worked, launch_hours(job, rung), abs_tol=1e-3):
            wrong.append(f"{job.name} works {worked}")
        if row["end_h"] > due + 1e-3 or row["start_h"] < -1e-9:
            wrong.append(f"{job.name} is late")
        if job.kind not in rung.kinds or (job.sure_only and rung.spot):
            wrong.append(f"{job.name} must not be on {rung.name}")
        if job.environment is not None and job.environment not in rung.environments:
            wrong.append(f"{job.name} is pinned elsewhere")
        if row["amount"] > job.budget.get(rung.price.currency, inf) + 1e-3:
            wrong.append(f"{job.name} is too dear")
    spent: dict[str, float] = {}
    taken: dict[tuple[str, float], float] = {}
    busy: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for rows in launches.values():
        rung = rungs[rows[0]["rung"]]
        longest = max(rows, key=lambda row: row["hours"])
        if {row["rung"] for row in rows} != {rung.name} or len({r["place"] for r in rows}) > 1:
            wrong.append("one launch is in two places")
        if sum(jobs[row["job"]].cards for row in rows) > rung.cards:
            wrong.append("too few cards")
        if len(rows) > (rung.per_launch or rung.cards):
            wrong.append("too many jobs")
        amount = rung.price.per_h * longest["hours"]
        spent[rung.price.currency] = spent.get(rung.price.currency, 0.0) + amount
        if not isclose(sum(row["amount"] for row in rows), amount, abs_tol=1e-6):
            wrong.append("the parts of a launch are not its price")
        owner = rungs[rung.quota_of] if rung.quota_of else rung
        for run in longest["runs"]:
            busy.setdefault((rung.name, longest["place"]), []).append((run["from_h"], run["to_h"]))
            if owner.quota:
                for at, part in by_window(owner.quota, run["from_h"], run["to_h"]):
                    rate = 1.0 if owner.quota.unit == "h" else rung.price.per_h
                    taken[owner.name, at] = taken.get((owner.name, at), 0.0) + part * rate
    for (name, at), units in taken.items():
        quota = rungs[name].quota
        assert quota is not None
        renewed = quota.left if quota.granted is None else quota.granted
        if units > (quota.left if at == 0.0 else renewed) + 1e-3:
            wrong.append(f"the quota of {name} is overdrawn at {at}: {units}")
    for (name, place), runs in busy.items():
        runs.sort()
        if any(a[1] > b[0] + 1e-3 for a, b in pairwise(runs)):
            wrong.append(f"place {place} of {name} is taken twice")
        if place >= (rungs[name].concurrency or inf):
            wrong.append(f"{name} has too many places")
    for currency, most in scenario.budget.items():
        if spent.get(currency, 0.0) > most + 1e-3:
            wrong.append(f"{spent[currency]} {currency} of {most}")
    named = [row["job"] for row in answer["assignments"]]  # type: ignore[attr-defined]
    named += [row["job"] for row in answer["unplaced"]]  # type: ignore[attr-defined]
    if sorted(named) != sorted(jobs):
        wrong.append("a job is lost")
    if not isclose(sum(r["cost_usd"] for r in answer["assignments"]), found.cost_usd, abs_tol=1e-6):  # type: ignore[attr-defined]
        wrong.append("the costs do not add up")
    if found.cost_usd < found.prices.bound_usd - 1e-4:
        wrong.append("the bound is none")
    return wrong


def by_window(quota: Quota, from_h: float, to_h: float) -> Iterator[tuple[float, float]]:
    """How much of a stretch lies in each window, by the start of the window."""
    start, end = 0.0, quota.renews_in_h or inf
    while start < to_h:
        part = min(to_h, end) - max(from_h, start)
        if part > 1e-9:
            yield start, part
        start, end = end, end + quota.every_h


quotas = st.builds(
    Quota,
    left=st.floats(0, 40),
    unit=st.sampled_from(["h", "money"]),
    renews_in_h=st.none() | st.floats(1, 50),
    granted=st.none() | st.floats(0, 40),
    every_h=st.floats(10, 60),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """What a person may write, with shared quotas, several places and windows, packs, walls and budgets."""
    rungs: list[Rung] = []
    for n in range(draw(st.integers(1, 4))):
        currency = draw(st.sampled_from(["usd", "credits"]))
        quota = draw(st.none() | quotas)
        owner = next((it.name for it in rungs if it.quota and it.quota.unit == "h"), None)
        shares = quota is None and owner is not None and draw(st.booleans())
        if quota is not None and quota.unit == "money":
            quota = quota.model_copy(update={"unit": currency})
        cards = draw(st.integers(1, 4))
        rungs.append(
            Rung(
                name=f"r{n}",
                price=Price(currency=currency, per_h=draw(st.floats(0, 5))),
                spot=draw(st.booleans()),
                hazard_per_h=draw(st.floats(0, 0.5)),
                start_h=draw(st.floats(0, 0.5)),
                speed=draw(st.floats(0.2, 4)),
                useful_share=draw(st.floats(0.5, 1)),
                cards=cards,
                per_launch=draw(st.none() | st.integers(1, 3)),
                concurrency=draw(st.none() | st.integers(1, 3)),
                quota=quota,
                quota_of=owner if shares else None,
                wall_h=draw(st.none() | st.floats(1, 12)),
                environments=draw(st.sampled_from([[], ["e"]])),
            )
        )
    used = sorted({it.price.currency for it in rungs})
    budgets = st.dictionaries(st.sampled_from(used), st.floats(0, 80), max_size=1)
    jobs = [
        Job(
            name=f"j{n}",
            hours=draw(st.floats(0.1, 30)),
            kind=draw(st.sampled_from(["train", "backtest"])),
            cards=draw(st.integers(1, 3)),
            critical=draw(st.booleans()),
            environment=draw(st.sampled_from([None, None, "e"])),
            deadline_h=draw(st.none() | st.floats(2, 90)),
            budget=draw(budgets),
            milestone_h=draw(st.floats(0.1, 2)),
        )
        for n in range(draw(st.integers(1, 7)))
    ]
    rates = {"credits": 0.7} if "credits" in used else {}
    return Scenario(
        horizon_h=draw(st.floats(10, 120)),
        jobs=jobs,
        rungs=rungs,
        budget=draw(budgets),
        rates=rates,
    )


@pytest.mark.parametrize("method", ["mip", "greedy"])
@given(scenario=scenarios())
@settings(max_examples=40, deadline=None)
def test_no_budget_deadline_quota_or_place_is_ever_broken(
    method: Method, scenario: Scenario
) -> None:
    try:
        found = allocate(scenario, method, limit_s=5.0)
    except UsageError:
        return  # what cannot be kept is told; test_allocate_words looks at that
    assert not broken(scenario, found)


@given(scenario=scenarios())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_all_hours_at_once_are_those_of_one_at_a_time(scenario: Scenario) -> None:
    """And what excludes a job in numbers excludes it in words."""
    problem = Problem(scenario)
    for j, job in enumerate(scenario.jobs):
        for r, rung in enumerate(scenario.rungs):
            why, hours = problem.excluded(j, r), float(problem.launch_h[j, r])
            assert (why is not None) == (hours == inf), why
            assert hours == inf or isclose(hours, launch_hours(job, rung), rel_tol=1e-9)


def test_the_checker_of_this_file_sees_what_is_broken() -> None:
    """So that the property above can fail: each limit is tightened behind the answer's back."""
    rung = Rung(name="r", price=Price(per_h=1.0), cards=2, concurrency=1, quota=Quota(left=50.0))
    jobs = [Job(name="a", hours=5.0, deadline_h=30.0), Job(name="b", hours=5.0, cards=2)]
    scenario = Scenario(horizon_h=40.0, jobs=jobs, rungs=[rung], budget={"usd": 10.0})
    found = allocate(scenario)
    assert not broken(scenario, found)
    tighter = [
        {"rungs": [rung.model_copy(update={"cards": 1})]},
        {"rungs": [rung.model_copy(update={"quota": Quota(left=9.0)})]},
        {"rungs": [rung.model_copy(update={"speed": 0.5})]},
        {"rungs": [rung.model_copy(update={"kinds": ["backtest"]})]},
        {"jobs": [job.model_copy(update={"deadline_h": 4.0}) for job in jobs]},
        {"jobs": [job.model_copy(update={"environment": "e"}) for job in jobs]},
        {"jobs": [job.model_copy(update={"budget": {"usd": 4.0}}) for job in jobs]},
        {"budget": {"usd": 9.0}},
    ]
    for change in tighter:
        assert broken(scenario.model_copy(update=change), found), change


def test_what_the_product_asserts_of_itself_sees_it_too() -> None:
    jobs = [Job(name="a", hours=5.0), Job(name="b", hours=4.0)]
    rung = Rung(name="r", price=Price(per_h=1.0), cards=2, concurrency=1, quota=Quota(left=6.0))
    problem = Problem(Scenario(horizon_h=40.0, jobs=jobs, rungs=[rung], budget={"usd": 6.0}))
    both = Launch(0, 0, (0, 1), 5.0, ((0.0, 5.0),))
    assert violations(problem, [both]) == []
    first, second = Launch(0, 0, (0,), 5.0, ((0.0, 5.0),)), Launch(0, 0, (1,), 4.0, ((2.0, 6.0),))
    words = "; ".join(violations(problem, [first, second]))
    assert "place 0" in words and "quota r" in words and "usd" in words
    assert violations(problem, [Launch(0, 1, (0,), 5.0, ((0.0, 5.0),))]) != []
    assert violations(problem, [both, both]) != []
    assert violations(problem, [Launch(0, 0, (0,), 5.0, ((36.0, 41.0),))]) != []
    assert violations(problem, [Launch(0, 0, (0,), 4.0, ((0.0, 4.0),))]) != []


def many(seed: int, packs: bool) -> Scenario:
    """300 jobs that compete for what is cheap, on rungs with quotas, spots and walls."""
    rng = random.Random(seed)
    rungs = [Rung(name="sure", price=Price(per_h=3.0), speed=1.2, environments=["e"])]
    for n in range(7):
        rungs.append(
            Rung(
                name=f"r{n}",
                price=Price(per_h=rng.uniform(0.2, 2) if n else 0.0),
                speed=rng.uniform(0.5, 1.5),
                spot=n % 3 == 1,
                hazard_per_h=0.1 if n % 3 == 1 else 0.0,
                cards=rng.choice([1, 2, 4]) if packs else 1,
                concurrency=rng.randint(4, 10),
                quota=Quota(left=60.0, renews_in_h=70.0, granted=90.0) if n in (0, 3) else None,
                quota_of="r3" if n == 4 else None,
                wall_h=12.0 if n == 2 else None,
            )
        )
    jobs = [
        Job(
            name=f"j{n}",
            hours=rng.uniform(0.5, 9),
            deadline_h=rng.choice([None, 30.0, 60.0, 100.0]),
            critical=rng.random() < 0.15,
            environment="e" if rng.random() < 0.05 else None,
            budget={"usd": 60.0} if rng.random() < 0.2 else {},
        )
        for n in range(300)
    ]
    return Scenario(horizon_h=120.0, jobs=jobs, rungs=rungs, budget={"usd": 4000.0})


@pytest.mark.parametrize(
    ("seed", "packs", "most"), [(0, False, 0.03), (1, False, 0.03), (2, True, 0.2)]
)
def test_many_jobs_go_the_greedy_way_near_the_bound(seed: int, packs: bool, most: float) -> None:
    scenario = many(seed, packs)
    found = allocate(scenario, "greedy")
    assert not broken(scenario, found) and not found.left
    assert found.gap is not None and found.gap <= most and not found.optimal


def test_the_size_of_a_scenario_chooses_the_way() -> None:
    scenario = some_scenario(0)
    few = allocate(scenario)
    assert few.method == "mip" and "are solved exactly" in few.why_method
    assert allocate(scenario, "greedy").method == "greedy"
    large = allocate(many(3, True))
    assert large.method == "greedy" and "15000" in large.why_method


def test_an_exact_way_without_time_gives_way_to_the_greedy_one() -> None:
    found = allocate(many(4, False), "mip", limit_s=1e-6)
    assert found.method == "greedy" and "1e-06 s" in found.why_method
