"""The research questions: is an effect larger than the noise, is a platform's deviation a fault?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tenure.seed_noise import (
    compare,
    detectable,
    holm,
    inside_p,
    interval,
    platforms,
    seeds_needed_inside,
    smallest_p,
    two_sided_p,
)

Values = NDArray[np.float64]
BASE = np.array([1.0, 1.1, 0.9, 1.05, 0.95])


def normal(seed: int, mean: float, count: int, sd: float = 1.0) -> Values:
    return np.random.default_rng(seed).normal(mean, sd, count)


# ---------------------------------------------------------------------------------- effects


def test_an_effect_larger_than_the_noise() -> None:
    found = compare(BASE, BASE + 0.4)
    assert found.answer == "larger than the noise" and found.p is not None and found.p < 0.05
    assert found.low is not None and 0 < found.low < 0.4 < (found.high or 0)
    assert "0.4 worse (between" in found.reason and "5.1 standard deviations" in found.reason


def test_an_effect_inside_the_noise_is_never_called_equal() -> None:
    """The article's case: 0.3 % between two variants, 1 % between seeds."""
    found = compare(normal(1, 90.0, 5), normal(2, 90.3, 5))
    assert found.answer == "inside the noise"
    assert (
        "this does not say that they are equal: 5 against 5 seeds could show one of" in found.reason
    )
    assert found.detectable is not None and f"one of {found.detectable:.3g}" in found.reason
    assert f"takes {found.seeds_needed} a side" in found.reason


@pytest.mark.parametrize("seeds", [(1, 5), (3, 3), (2, 6)])
def test_seeds_that_can_show_nothing(seeds: tuple[int, int]) -> None:
    found = compare(normal(1, 0, seeds[0]), normal(2, 50, seeds[1]))
    assert found.answer == "not enough seeds" and "4 on each side are the least" in found.reason


def test_what_can_be_detected_is_detected_four_times_of_five() -> None:
    least = detectable(1.0, 10, 10)
    assert least is not None
    rng = np.random.default_rng(3)
    shown = [
        two_sided_p(rng.normal(0, 1, 10), rng.normal(least, 1, 10)) <= 0.05 for _ in range(400)
    ]
    assert 0.72 < np.mean(shown) < 0.88


def test_noise_alone_is_seldom_called_an_effect() -> None:
    rng = np.random.default_rng(4)
    shown = [two_sided_p(*rng.exponential(1.0, (2, 5))) <= 0.05 for _ in range(400)]
    assert np.mean(shown) <= 0.05 + 0.033


@given(st.integers(0, 2**32 - 1), st.integers(4, 8), st.integers(4, 8), st.floats(-3, 3))
@settings(max_examples=50, deadline=None)
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(
    seed: int, n: int, m: int, effect: float
) -> None:
    a, b = normal(seed, 0, n), normal(seed + 1, effect, m)
    low, high = interval(a, b, 0.05)
    assert low is not None and high is not None and low < high
    width = high - low
    for shift in (low + 0.01 * width, high - 0.01 * width):
        assert two_sided_p(a, b - shift) > 0.05
    for shift in (low - 0.01 * width, high + 0.01 * width):
        assert two_sided_p(a, b - shift) <= 0.05
    assert (compare(a, b).answer == "larger than the noise") == (not low < 0 < high)


def test_the_smallest_p_is_reached_by_samples_that_do_not_overlap() -> None:
    for n, m in ((4, 4), (2, 6), (5, 3)):
        assert two_sided_p(normal(1, 0, n), normal(2, 99, m)) == pytest.approx(smallest_p(n, m))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.array([1.0, np.nan, 2.0]), "second is not a finite"),
        (np.full(4, 2.0), "all 4 seeds of the second gave 2"),
    ],
)
def test_what_is_no_sample_is_refused_in_words(values: Values, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compare(BASE, values)


# -------------------------------------------------------------------------------- platforms


def test_platforms_that_only_change_the_noise_are_inside() -> None:
    samples = {name: normal(number, 0, 40) for number, name in enumerate(("T4", "L4", "P100"))}
    reference, found = platforms(samples)
    assert reference == "L4" and [each.platform for each in found] == ["T4", "P100"]
    assert {each.answer for each in found} == {"inside the noise"}
    assert "shown to be less than 1 (p " in found[0].reason


def test_a_deviation_that_is_real_and_small_is_inside_and_said() -> None:
    samples = {"T4": normal(1, 0, 300), "L4": normal(2, 0.4, 300)}
    _, (found,) = platforms(samples, "T4")
    assert found.answer == "inside the noise" and found.p is not None and found.p < 0.05
    assert "it is there, and smaller than what a seed does" in found.reason


def test_a_platform_that_computes_something_else_is_a_fault() -> None:
    _, (found,) = platforms({"T4": normal(1, 0, 8), "L4": normal(2, 3, 8)}, "T4")
    assert found.answer == "fault" and "look for a fault" in found.reason


def test_a_platform_that_spreads_more_is_a_fault_with_an_equal_mean() -> None:
    wide = normal(2, 0, 20, sd=6.0)
    _, (found,) = platforms({"T4": normal(1, 0, 20), "L4": wide - wide.mean()}, "T4")
    assert found.answer == "fault" and "its seeds spread" in found.reason


@pytest.mark.parametrize("seeds", [1, 5])
def test_too_few_seeds_say_how_many_are_needed(seeds: int) -> None:
    _, (found,) = platforms({"T4": BASE, "L4": normal(2, 1.0, seeds, 0.1)}, "T4")
    assert found.answer == "not enough seeds"
    assert "18 on each side show an equal platform with 80 %" in found.reason


def test_several_platforms_raise_no_more_false_alarms_than_one() -> None:
    rng = np.random.default_rng(6)
    alarms = 0
    for _ in range(300):
        samples = {f"card {n}": rng.normal(0, 1, 8) for n in range(5)}
        alarms += any(each.answer == "fault" for each in platforms(samples)[1])
    assert alarms / 300 <= 0.06 + 0.041  # alpha of the means and of the spreads, 3 standard errors


def test_an_equal_platform_is_inside_as_often_as_is_told_and_one_beyond_seldom() -> None:
    needed = seeds_needed_inside(1.0)
    assert needed == 18
    rng = np.random.default_rng(7)
    for away, least, most in ((0.0, 0.74, 0.86), (1.0, 0.01, 0.085)):
        samples = rng.normal(0, 1, (400, 2, needed))
        share = np.mean([inside_p(a, b + away, 1.0) <= 0.05 for a, b in samples])
        assert least < share < most


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_between_the_p_value_and_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, found in zip(p_values, adjusted, strict=True):
        assert p <= found <= min(1.0, len(p_values) * p) + 1e-12
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff(np.array(adjusted)[order]) >= 0)


@pytest.mark.parametrize(
    ("samples", "reference", "within", "words"),
    [
        ({"T4": BASE}, None, 1.0, "there is one platform .T4., two are compared"),
        ({"T4": BASE, "L4": BASE}, "K80", 1.0, "no platform 'K80', there are L4, T4"),
        ({"T4": BASE, "L4": BASE}, None, 0.0, "within is 0, it must be a positive number"),
        ({"T4": BASE[:1], "L4": BASE}, "T4", 1.0, "the reference T4 has 1 seed"),
        ({"T4": BASE, "L4": np.full(5, 2.0)}, None, 1.0, "all 5 seeds of the L4 gave 2"),
    ],
)
def test_platforms_that_cannot_be_compared(
    samples: dict[str, Values], reference: str | None, within: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        platforms(samples, reference, within)
