"""Shadow prices: what one unit more of a limit saves, checked by giving it one more and one less."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tenure.plan.allocate import allocate
from tenure.plan.allocate_ascent import ascend, prices_of
from tenure.plan.allocate_model import Problem, hazard_factor
from tenure.plan.allocate_scenario import Job, Price, Quota, Rung, Scenario, read_scenario
from tenure.plan.shadow import ShadowPrices, relaxed, shadow_prices

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "allocate" / "kaggle.yaml"


def prices(scenario: Scenario) -> ShadowPrices:
    found = shadow_prices(Problem(scenario))
    assert found is not None
    return found


def with_quota(scenario: Scenario, rung: str, **change: Any) -> Scenario:
    rungs = [
        it.model_copy(update={"quota": it.quota.model_copy(update=change)})
        if it.name == rung and it.quota
        else it
        for it in scenario.rungs
    ]
    return scenario.model_copy(update={"rungs": rungs})


def test_the_worked_example_is_what_the_page_says() -> None:
    """Perturbed by a quarter of an hour each way, the least cost moves by the price."""
    scenario = read_scenario(EXAMPLE)
    found = prices(scenario)
    worth = found.worth("kaggle")
    more = prices(with_quota(scenario, "kaggle", left=30.25)).bound_usd
    less = prices(with_quota(scenario, "kaggle", left=29.75)).bound_usd
    assert (found.bound_usd - more) / 0.25 == pytest.approx(worth, rel=1e-6)
    assert (less - found.bound_usd) / 0.25 == pytest.approx(worth, rel=1e-6)
    # by hand: an hour of Kaggle is 0.8 h of work, which is paid for on vast, losses included
    assert worth == pytest.approx(0.8 * 0.35 * (hazard_factor(0.05, 0.5, 0.1) + 0.1 / 12), rel=1e-4)
    page = (DOCS / "allocate.md").read_text(encoding="utf-8")
    assert f"{worth:.4f} usd" in page and f"{found.bound_usd:.4f}" in page
    answer = allocate(scenario)
    assert answer.optimal and f"{answer.cost_usd:.4f}" in page
    assert answer.as_json()["shadow_prices"] == {"kaggle": worth, "vast": 0.0, "modal": 0.0}


def test_hours_that_are_renewed_unused_are_worth_nothing_until_then() -> None:
    scenario = with_quota(
        read_scenario(EXAMPLE), "kaggle", left=30.0, renews_in_h=2.0, granted=20.0
    )
    found = prices(scenario)
    assert found.worth("kaggle", 0.0) == found.worth("kaggle", 1.9) == 0.0
    assert found.worth("kaggle", 2.0) > 0.2
    spare = with_quota(scenario, "kaggle", left=28.0)
    assert prices(spare).bound_usd == pytest.approx(found.bound_usd)
    short = with_quota(scenario, "kaggle", left=1.0)  # and where even these two hours are scarce
    assert prices(short).worth("kaggle") > 0.2


def test_a_price_is_a_slope_of_the_least_cost() -> None:
    """f(b + e) >= f(b) - price e for either sign: what makes a price one, where f bends as well."""
    looked, positive, equal = 0, 0, 0
    for seed in range(40):
        scenario = with_a_scarce_quota(seed)
        found = prices(scenario)
        quota = scenario.rungs[0].quota
        price = next(it for it in found.prices if it.kind == "quota")
        assert quota is not None
        for step in (0.1, -0.1):
            moved = with_quota(scenario, "free", left=quota.left + step)
            least = found.bound_usd - price.usd_per_unit * step
            cost_usd = prices(moved).bound_usd
            assert cost_usd >= least - 1e-6, f"seed {seed}"
            looked += 1
            positive += price.usd_per_unit > 1e-6
            equal += abs(cost_usd - least) < 1e-6
    assert looked == 80 and 20 < positive < 80 and equal > 0.8 * looked


def with_a_scarce_quota(seed: int) -> Scenario:
    """A free rung with a quota, renewed or not, among paid ones."""
    rng = random.Random(seed)
    jobs = [
        Job(
            name=f"j{n}",
            hours=rng.uniform(1, 9),
            deadline_h=rng.choice([None, 12.0, 25.0]),
            kind=rng.choice(["train", "backtest"]),
            cards=rng.choice([1, 1, 2]),
        )
        for n in range(6)
    ]
    quota = Quota(left=rng.uniform(2, 25), renews_in_h=rng.choice([None, 10.0, 20.0]), granted=9.0)
    free = Rung(name="free", price=Price(per_h=0.0), concurrency=2, cards=2, quota=quota)
    paid = [
        Rung(
            name=f"paid{n}",
            price=Price(per_h=rng.uniform(0.2, 3)),
            speed=rng.uniform(0.7, 3),
            cards=2,
            concurrency=rng.choice([None, 1]) if n else None,
            kinds=["train"] if n and rng.random() < 0.5 else ["train", "backtest"],
        )
        for n in range(3)
    ]
    return Scenario(horizon_h=40.0, jobs=jobs, rungs=[free, *paid])


def test_places_and_budgets_have_prices_too() -> None:
    cheap = Rung(name="cheap", price=Price(per_h=1.0), concurrency=1)
    dear = Rung(name="dear", price=Price(per_h=3.0), speed=2.0)
    credit = Rung(name="credit", price=Price(currency="credits", per_h=2.0))
    jobs = [Job(name=f"j{n}", hours=4.0, deadline_h=20.0) for n in range(8)]
    scenario = Scenario(jobs=jobs, rungs=[cheap, dear, credit], budget={"credits": 10.0})
    found = prices(scenario)
    # 32 h: 20 on the cheap place, 5 by credits, the rest at 1.5 usd for an hour of work
    assert found.bound_usd == pytest.approx(20.0 + 1.5 * 7.0)
    assert found.worth("cheap") == pytest.approx(0.5)
    budget = next(it for it in found.prices if it.kind == "budget")
    assert budget.usd_per_unit == pytest.approx(0.75) and budget.unit == "credits"
    assert "all 10 credits of the budget in credits are used" in budget.reason


def test_a_spot_hour_carries_its_losses_and_fewer_are_taken_as_hazard_grows() -> None:
    def spots(hazard: float) -> int:
        spot = Rung(
            name="spot", price=Price(per_h=1.0), spot=True, hazard_per_h=hazard, start_h=0.3
        )
        sure = Rung(name="sure", price=Price(per_h=1.6))
        jobs = [
            Job(name=f"j{n}", hours=6.0, milestone_h=0.25 * (n + 1), critical=n == 0)
            for n in range(6)
        ]
        found = allocate(Scenario(jobs=jobs, rungs=[spot, sure]))
        where = {it.job: it.rung for it in found.assignments}
        assert where["j0"] == "sure"  # whatever the hazard: it is critical
        return sum(rung == "spot" for rung in where.values())

    counts = [spots(hazard) for hazard in (0.0, 0.3, 0.6, 0.9, 3.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 5 and counts[-1] == 0
    assert len(set(counts)) > 2


@pytest.mark.parametrize("seed", range(4))
def test_the_way_for_many_jobs_finds_nearly_the_same_prices(seed: int) -> None:
    """Its bound is below every allocation, and near the linear program's."""
    jobs = [
        Job(
            name=f"j{n}",
            hours=1.0 + (7 * n + seed) % 11,
            deadline_h=[None, 40.0, 70.0][n % 3],
            critical=n % 5 == 0,
        )
        for n in range(60)
    ]
    rungs = [
        Rung(name="free", price=Price(per_h=0.0), concurrency=2, speed=0.8,
             quota=Quota(left=30.0 + seed, renews_in_h=50.0, granted=40.0)),
        Rung(name="spot", price=Price(per_h=0.4), spot=True, hazard_per_h=0.1, concurrency=2),
        Rung(name="sure", price=Price(per_h=1.0), concurrency=1, speed=1.3),
        Rung(name="dear", price=Price(per_h=2.0), speed=1.5),
    ]  # fmt: skip
    problem = Problem(Scenario(horizon_h=80.0, jobs=jobs, rungs=rungs))
    exact = shadow_prices(problem)
    of = relaxed(problem, renewals=False)
    found = prices_of(of, ascend(of, list(range(60))))
    assert exact is not None and exact.exact and not found.exact
    assert 0.97 * exact.bound_usd <= found.bound_usd <= exact.bound_usd + 1e-6
    cost = allocate(problem.scenario, "greedy").cost_usd
    assert found.bound_usd <= cost <= 1.15 * found.bound_usd
    ours, theirs = found.worth("free"), exact.worth("free")
    assert theirs > 0 and ours == pytest.approx(theirs, rel=0.25)
