"""The law s n^alpha: it is found, its limits hold, few points are held to the prior; Amdahl's bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.plan.amdahl import Phases, speedup
from tenure.plan.throughput import (
    LEAST_ALPHA,
    PRIOR_ALPHA,
    Speed,
    check_alpha,
    cold_start,
    fit,
    known,
    measured_share,
)


def machines(
    rng: np.random.Generator, s: float, alpha: float, noise: float, counts: list[int]
) -> list[Speed]:
    return [Speed(n, s * n**alpha * math.exp(noise * rng.standard_normal())) for n in counts]


def test_with_many_points_it_is_least_squares() -> None:
    rng = np.random.default_rng(5)
    seen = machines(rng, 40.0, 0.7, 0.05, [1, 2, 4, 8] * 50)
    slope, level = np.polyfit(
        np.log([each.cards for each in seen]), np.log([each.per_s for each in seen]), 1
    )
    law = fit(seen)
    assert law.alpha == pytest.approx(slope, abs=0.003)
    assert law.log_s == pytest.approx(level, abs=0.005)


def test_limits_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(17)
    held = {"machine": 0, "median": 0, "alpha": 0}
    rounds = 300
    for _ in range(rounds):
        alpha = float(np.clip(rng.normal(0.9, 0.1), 0.4, 0.99))
        law = fit(machines(rng, 100.0, alpha, 0.15, [1, 1, 2, 2, 4, 4]))
        low, high = law.interval(8)
        held["machine"] += low <= 100.0 * 8**alpha * math.exp(0.15 * rng.standard_normal()) <= high
        low, high = law.interval(2, machine=False)
        held["median"] += low <= 100.0 * 2**alpha <= high
        low, high = law.alpha_interval()
        held["alpha"] += low <= alpha <= high
    assert all(0.86 <= count / rounds <= 0.98 for count in held.values()), held


def test_one_point_moves_s_and_leaves_alpha_to_the_prior() -> None:
    law = fit([Speed(2, 100.0)])
    assert law.per_s(2) == pytest.approx(100.0, rel=1e-3)
    assert law.alpha == pytest.approx(PRIOR_ALPHA, abs=1e-3)
    wide, narrow = (
        law.interval(8),
        fit([Speed(n, 50.0 * n**0.9) for n in (1, 2, 4, 8)] * 5).interval(8),
    )
    assert wide[1] / wide[0] > 1.5 * narrow[1] / narrow[0]


def test_a_cold_start_counts_until_there_is_more() -> None:
    start = cold_start(100.0, 0.5, 0.3)
    assert fit([], start).per_s() == pytest.approx(50.0)
    assert 50.0 < fit([Speed(1, 80.0)], start).per_s() < 80.0
    assert fit([Speed(1, 80.0)] * 30, start).per_s() == pytest.approx(80.0, rel=0.01)


@given(
    st.lists(st.builds(Speed, st.integers(1, 64), st.floats(1e-6, 1e15)), min_size=1, max_size=12)
)
def test_alpha_stays_in_its_bounds_whatever_was_measured(seen: list[Speed]) -> None:
    law = fit(seen)
    assert LEAST_ALPHA <= law.alpha <= 1.0
    assert law.per_s(1) <= law.per_s(2) <= 2 * law.per_s(1) * (1 + 1e-9)
    low, high = law.interval(4)
    assert 0 < low <= law.per_s(4) * (1 + 1e-9) and law.per_s(4) <= high * (1 + 1e-9)


def test_more_than_linear_becomes_linear_and_goes_through_the_points() -> None:
    law = fit([Speed(2, 20.0 * 2**1.3), Speed(4, 20.0 * 4**1.3)] * 20)
    assert law.alpha == 1.0
    assert law.per_s(3) == pytest.approx(20.0 * 3**1.3, rel=0.03)


def test_the_share_of_a_platform_is_wide_while_few_have_shown_it() -> None:
    assert measured_share([]) is None
    one, many = measured_share([0.4]), measured_share([0.4, 0.41, 0.39] * 10)
    assert one and many and one[0] == pytest.approx(0.4) and many[1] < 0.2 < one[1]


@given(st.floats(0.0, 1.0), st.floats(1.0, 1e6))
def test_amdahl_is_between_nothing_and_the_factor(part: float, factor: float) -> None:
    assert speedup(part, factor) * (1 + 1e-9) >= 1.0 and speedup(part, factor) <= factor * (
        1 + 1e-9
    )
    assert speedup(part, factor) <= speedup(part, math.inf) * (1 + 1e-9)


def test_the_part_that_a_faster_card_shortens_is_the_computing_alone() -> None:
    phases = Phases(600.0, start_s=100.0, restart_s=100.0, checkpoint_s=100.0, data_s=100.0)
    assert phases.part == pytest.approx(0.6) and phases.most == pytest.approx(2.5)
    assert phases.speedup(3) == pytest.approx(1 / (0.4 + 0.2))
    assert "no card more than 2.5" in phases.words(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fit([], what="steps of vol"), "no machine has shown how fast steps of vol goes"),
        (lambda: known(1.0, 1.01), r"alpha is 1.01; it lies in \(0, 1\]"),
        (lambda: check_alpha(0.0), r"alpha is 0.0; it lies in \(0, 1\]"),
        (lambda: check_alpha(math.nan), "alpha is nan"),
        (lambda: Speed(0, 1.0), "0 cards"),
        (lambda: Speed(1, 0.0), "a speed of 0.0 a second"),
        (lambda: known(1.0, 0.5).per_s(0), "0 cards"),
        (lambda: cold_start(0.0), "peak_flops is 0.0"),
        (lambda: cold_start(1.0, 1.5), "a speed of 1.5 of the peak"),
        (lambda: known(1.0, 0.5).interval(1, 1.0), "a level of 1.0"),
        (lambda: speedup(1.1, 2.0), "the part that becomes faster is 1.1"),
        (lambda: speedup(0.5, 0.0), "a card 0.0 times as fast"),
        (lambda: Phases(0.0), "all 0 s"),
        (lambda: Phases(-1.0), "finite seconds"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
