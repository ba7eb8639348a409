"""Survival curves: by hand, by brute force, and against laws that are known."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.plan import survival
from tenure.plan.survival import Curve, Life, banded, curve, exponential, kaplan_meier

HOUR_S = 3600.0
lives = st.lists(
    st.builds(Life, st.integers(1, 40).map(float), st.booleans()), min_size=1, max_size=30
)
walls = st.none() | st.floats(5.0, 60.0)


def brute_force(seen: list[Life], age_s: float) -> float:
    """The product over ages, counted anew at each."""
    alive = 1.0
    for age in sorted({life.age_s for life in seen if life.lost and life.age_s <= age_s}):
        reached = sum(life.age_s >= age for life in seen)
        lost = sum(life.lost and life.age_s == age for life in seen)
        alive *= 1 - lost / reached
    return alive


@given(lives, st.floats(0, 40))
def test_kaplan_and_meier_by_brute_force(seen: list[Life], age_s: float) -> None:
    age_s = min(age_s, max(life.age_s for life in seen))  # beyond it is the tail
    assert kaplan_meier(seen).alive(age_s) == pytest.approx(brute_force(seen, age_s), abs=1e-12)


@given(lives)
def test_without_censoring_it_is_the_share_that_lasted_longer(seen: list[Life]) -> None:
    ended = [Life(life.age_s, True) for life in seen]
    found = kaplan_meier(ended)
    for age in (3.0, 17.5, 39.0):
        share = sum(life.age_s > age for life in ended) / len(ended)
        if age <= max(life.age_s for life in ended):
            assert found.alive(age) == pytest.approx(share, abs=1e-12)


@given(lives, lives, walls, st.sampled_from(["own", "rung", "bands", "bare"]))
def test_no_curve_rises(
    seen: list[Life], others: list[Life], wall_s: float | None, kind: str
) -> None:
    made: dict[str, Callable[[], Curve]] = {
        "own": lambda: curve(seen, wall_s=wall_s),
        "rung": lambda: curve(seen, curve(others), wall_s),
        "bands": lambda: banded(seen, wall_s=wall_s),
        "bare": lambda: kaplan_meier(seen, wall_s),
    }
    found = made[kind]()
    ages = np.linspace(0, 80, 200)
    alive = [found.alive(float(age)) for age in ages]
    assert all(later <= sooner for sooner, later in itertools.pairwise(alive))
    assert min(alive) >= 0 and max(alive) <= 1
    assert found.alive_many(ages) == pytest.approx(alive, abs=1e-12)
    for age in (0.0, 11.0, 39.0):
        low, high = found.interval(age)
        assert 0 <= low <= high <= 1


@given(lives, walls, st.floats(0, 50))
def test_what_remains_is_the_area_under_the_curve_from_an_age_on(
    seen: list[Life], wall_s: float | None, age_s: float
) -> None:
    found = curve(seen, wall_s=wall_s)
    end = min(60.0, wall_s or math.inf)
    grid = np.linspace(age_s, end, 40_001) if age_s < end else np.array([age_s])
    # the middle of each piece, so that jumps at its ends cost half a piece at most
    area = sum(found.given(float(x), age_s) for x in grid[:-1:10]) * (grid[-1] - grid[0]) / 4000
    assert found.remaining_s(age_s, 60.0) == pytest.approx(area, abs=0.05)


def test_a_memoryless_machine_has_always_the_same_before_it() -> None:
    found = exponential(1 / HOUR_S)
    assert found.remaining_s(5 * HOUR_S) == pytest.approx(HOUR_S)
    assert found.hazard_per_s(0, 10) == pytest.approx(1 / HOUR_S)


def test_an_old_machine_is_safer_where_many_die_young() -> None:
    rng = random.Random(7)
    seen = [Life(rng.expovariate(1 / 60.0), True) for _ in range(100)]
    seen += [Life(rng.expovariate(1 / 36_000.0), True) for _ in range(50)]
    found = curve(seen)
    assert found.remaining_s(3600.0) > 3 * found.remaining_s(0.0) / 2
    assert found.hazard_per_s(0, 120) > 10 * found.hazard_per_s(3600, 7200)


def test_a_wall_is_certain_and_nothing_else_is() -> None:
    seen = [Life(100.0, False)] * 20
    found = curve(seen, wall_s=100.0)
    assert found.alive(99.9) > 0.9 and found.alive(100.0) == 0.0
    assert found.remaining_s(40.0) == pytest.approx(60.0, rel=0.02)
    assert found.remaining_s(100.0) == 0.0
    assert found.quantile_s(0.999) == 100.0
    assert curve(seen).remaining_s(40.0) > 1000.0, "without the wall nothing ends"


def test_a_censored_life_counts_as_long_as_it_was_watched() -> None:
    ended = [Life(10.0, True), Life(20.0, True)]
    censored = [*ended, Life(15.0, False)]
    assert kaplan_meier(censored).alive(12.0) == pytest.approx(2 / 3)
    assert kaplan_meier(ended).alive(12.0) == pytest.approx(1 / 2)


def test_few_ends_are_held_to_the_prior_rung_and_many_are_not() -> None:
    prior = exponential(1 / (10 * HOUR_S))
    few = curve([Life(60.0, True)], prior)
    many = curve([Life(60.0, True)] * 400, prior)
    assert few.alive(61.0) == pytest.approx(1 - 1 / 5, rel=0.01)
    assert many.alive(61.0) < 0.02
    assert curve([], prior).alive(HOUR_S) == pytest.approx(prior.alive(HOUR_S))


def test_the_lives_of_a_prior_end_as_it_says() -> None:
    """Four machines that lasted eight hours, beside four of a prior whose lives last one: half of eight."""
    found = curve([Life(8 * HOUR_S, False)] * 4, exponential(1 / HOUR_S))
    assert found.alive(7.9 * HOUR_S) == pytest.approx(0.5, abs=0.01)


def test_the_tail_is_of_the_old_ones() -> None:
    seen = [Life(60.0, True)] * 32 + [Life(100 * HOUR_S, True)] * 8
    found = curve(seen)
    assert found.rates_per_s[-1] < survival.pooled_per_s(seen) / 2
    assert math.isfinite(found.remaining_s(1000 * HOUR_S))


def test_beyond_the_last_death_the_tail_speaks() -> None:
    found = kaplan_meier([Life(10.0, True), Life(20.0, True)])
    assert found.alive(20.0) == 0.0
    assert found.remaining_s(25.0) == pytest.approx(1 / found.rates_per_s[-1])
    assert 0 < found.given(30.0, 25.0) < 1


def test_quantiles_and_draws_are_the_curve_turned_round() -> None:
    rng = random.Random(3)
    seen = [Life(rng.expovariate(1 / 100.0), rng.random() < 0.8) for _ in range(60)]
    found = curve(seen, wall_s=400.0)
    for chance in (0.1, 0.5, 0.9):
        age = found.quantile_s(chance)
        assert (
            found.alive(age) <= 1 - chance + 1e-9 and found.alive(age * 0.999) >= 1 - chance - 0.02
        )
    drawn = found.ages_s(np.random.default_rng(0).standard_exponential(40_000))
    for age in (20.0, 100.0, 300.0):
        assert np.mean(drawn > age) == pytest.approx(found.alive(age), abs=0.012)
    assert drawn.max() == 400.0


def test_limits_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    held = mean_held = 0
    rounds = 400
    for _ in range(rounds):
        ages = 100 * rng.weibull(0.7, 60)
        cut = rng.uniform(20, 400, 60)
        seen = [Life(float(min(a, c)), bool(a <= c)) for a, c in zip(ages, cut, strict=True)]
        found = kaplan_meier(seen)
        low, high = found.interval(60.0, 0.9)
        held += low <= math.exp(-(0.6**0.7)) <= high
        low, high = found.remaining_interval_s(0.0, 200.0, 0.9)
        truth = 84.6378  # the integral of exp(-(t / 100) ** 0.7) from 0 to 200
        mean_held += low <= truth <= high
    assert 0.85 <= held / rounds <= 0.95
    assert 0.85 <= mean_held / rounds <= 0.95


def test_where_none_was_lost_the_limit_is_the_binomials() -> None:
    low, high = kaplan_meier([Life(50.0, False)] * 10).interval(40.0, 0.95)
    assert high == 1.0 and low == pytest.approx(0.025**0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kaplan_meier([]), "no launch on this rung has been seen yet"),
        (lambda: curve([], where="rung spot"), "no launch on rung spot"),
        (lambda: Life(-1.0, True), "a machine lived -1.0 s"),
        (lambda: Life(math.nan, True), "a machine lived nan s"),
        (lambda: exponential(0.0), "a rate of 0.0 losses"),
        (lambda: exponential(1.0, wall_s=0.0), "a wall at 0.0 s"),
        (lambda: exponential(1.0).interval(1.0, 1.0), "a level of 1.0"),
        (lambda: exponential(1.0).quantile_s(1.0), "a chance of 1.0"),
        (lambda: exponential(1.0).hazard_per_s(2.0, 2.0), "no stretch of time"),
        (lambda: Curve((1.0,), (1.0,), (0.0,), (0.0,), (0.0,)), "begin at age 0"),
        (lambda: Curve((0.0,), (1.5,), (0.0,), (0.0,), (0.0,)), "never rises"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
