"""The gate over seeds: its size, its power, and what it refuses to judge."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tenure import statistics
from tenure.statistics import (
    MOST_SEEDS,
    Finding,
    mean_error,
    non_inferiority,
    oriented,
    paired_examples,
    permutation_p,
    power,
    seed_spread,
    seeds_needed,
    seeds_pass,
    variance_guard,
    worst_seed_bound,
)

Values = NDArray[np.float64]


def passes(parent: Values, new: Values, margin: float) -> bool:
    return all(finding.outcome == "PASS" for finding in seed_spread(parent, new, margin))


def share(
    n: int, margin: float, worse: float, spread: float = 1.0, repetitions: int = 600
) -> float:
    rng = np.random.default_rng([n, round(10 * worse), round(10 * spread)])
    passed = sum(
        passes(rng.normal(0, 1, n), rng.normal(worse, spread, n), margin)
        for _ in range(repetitions)
    )
    return passed / repetitions


# Targets of research/anchors.md, last row; each with three standard errors of 600 repetitions.
def test_ten_seeds_pass_an_equal_model() -> None:
    assert share(10, 1.5, 0.0) >= 0.90 - 0.035


def test_ten_seeds_pass_a_model_worse_by_the_margin_at_most_by_alpha() -> None:
    assert share(10, 1.5, 1.5) <= 0.05 + 0.03


def test_ten_seeds_seldom_pass_three_times_the_spread() -> None:
    assert share(10, 1.5, 0.0, spread=3.0) <= 0.13 + 0.04


def test_five_seeds_have_the_power_the_demo_counts_on() -> None:
    assert share(5, 2.5, 0.0) >= 0.85


def test_five_seeds_keep_their_size() -> None:
    assert share(5, 2.5, 2.5) <= 0.05 + 0.03


def test_the_exact_test_needs_no_normal_values() -> None:
    rng = np.random.default_rng(7)
    samples = rng.exponential(1.0, (1000, 2, 5))
    passed = [non_inferiority(a, b + 1.0, 1.0).outcome == "PASS" for a, b in samples]
    assert np.mean(passed) <= 0.05 + 0.021


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=5, unique=True), st.floats(0.1, 10))
@settings(max_examples=40, deadline=None)
def test_units_do_not_matter(values: list[float], scale: float) -> None:
    parent = np.array(values)
    if np.ptp(parent) < 1e-3:
        return
    new = parent[::-1] + 0.3
    one = non_inferiority(parent, new, 1.0)
    other = non_inferiority(scale * parent, scale * new, scale)
    assert one.outcome == other.outcome
    assert one.numbers["p"] == pytest.approx(other.numbers["p"])


def test_a_maximised_metric_is_turned_round() -> None:
    parent = oriented([0.50, 0.52, 0.49, 0.51, 0.50], "maximize")
    better = oriented([0.60, 0.62, 0.59, 0.61, 0.60], "maximize")
    assert non_inferiority(parent, better, 0.01).outcome == "PASS"
    assert non_inferiority(better, parent, 0.01).outcome == "BLOCK"


def test_a_direction_must_be_one_of_two() -> None:
    with pytest.raises(ValueError, match="'up'"):
        oriented([1.0], "up")  # type: ignore[arg-type]


def test_not_enough_seeds_names_the_number_that_is() -> None:
    rng = np.random.default_rng(3)
    found = non_inferiority(rng.normal(0, 1, 5), rng.normal(0, 1, 5), 0.5)
    assert found.outcome == "NOT_ENOUGH_SEEDS"
    needed = int(found.numbers["seeds_needed"])
    assert f"{needed} on each side" in found.reason
    sd = found.numbers["pooled_sd"]
    assert power(sd, 0.5, needed, needed) >= 0.8 > power(sd, 0.5, needed - 1, needed - 1)


def test_the_number_of_seeds_reaches_the_power_or_is_not_named() -> None:
    for margin in (10.0, 1.0, 0.1, 0.0361, 0.0353, 0.035, 0.01, 1e-6):
        needed = seeds_needed(sd=1, margin=margin)
        if needed is None:
            assert power(1, margin, MOST_SEEDS, MOST_SEEDS) < 0.8
        else:
            assert needed <= MOST_SEEDS and power(1, margin, needed, needed) >= 0.8
    assert seeds_needed(sd=1, margin=0.0353) is not None, "the last step of the search counts too"


@pytest.mark.parametrize("new", [5, 1])
def test_a_margin_that_no_number_of_seeds_proves_is_said_so(new: int) -> None:
    parent = np.random.default_rng(3).normal(0, 1, 5)
    found = non_inferiority(parent, np.random.default_rng(4).normal(0, 1, new), 1e-9)
    assert found.outcome == "NOT_ENOUGH_SEEDS"
    assert f" more than {MOST_SEEDS} on each side" in found.reason
    assert "at least" not in found.reason
    assert "seeds_needed" not in found.numbers


def test_two_seeds_can_prove_nothing_exactly() -> None:
    found = non_inferiority(np.array([1.0, 1.1]), np.array([1.0, 1.05]), 50.0)
    assert found.outcome == "NOT_ENOUGH_SEEDS"
    assert seeds_needed(sd=1, margin=50) == 3


def test_a_seed_that_diverged_is_found_by_the_bound_and_the_guard() -> None:
    parent = np.random.default_rng(1).normal(1, 0.01, 10)
    new = np.random.default_rng(2).normal(1, 0.01, 10)
    new[3] += 0.3
    assert worst_seed_bound(parent, new, 0.02).outcome == "BLOCK"
    assert variance_guard(parent, new).outcome == "BLOCK"


def test_less_spread_is_no_fault() -> None:
    parent = np.random.default_rng(1).normal(1, 0.1, 10)
    assert variance_guard(parent, 1 + (parent - 1) / 10).outcome == "PASS"


GOOD = np.array([1.0, 1.1, 0.9, 1.05, 0.95])


@pytest.mark.parametrize(
    ("parent", "new", "margin", "words"),
    [
        (GOOD, np.array([1.0, np.nan, 1.0, 1.1, 0.9]), 0.1, "retrain is not a finite"),
        (np.array([1.0, np.inf, 1.0, 1.1, 0.9]), GOOD, 0.1, "parent is not a finite"),
        (np.full(5, 0.7), GOOD, 0.1, "all 5 seeds of the parent gave 0.7"),
        (GOOD, np.full(5, 0.7), 0.1, "all 5 seeds of the retrain gave 0.7"),
        (GOOD, GOOD, 0.0, "margin is 0.0"),
        (GOOD, GOOD, -1.0, "margin is -1.0"),
        (GOOD, GOOD, float("nan"), "margin is nan"),
        (np.ones((2, 2)), GOOD, 0.1, "one number per seed"),
    ],
)
def test_what_is_no_sample_is_refused_in_words(
    parent: Values, new: Values, margin: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        non_inferiority(parent, new, margin)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, float("nan")])
def test_alpha_is_a_small_probability(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        non_inferiority(GOOD, GOOD, 0.1, alpha)


@pytest.mark.parametrize("new", [np.array([1.0]), np.array([])])
def test_one_seed_or_none_is_not_enough(new: Values) -> None:
    checks: list[Finding] = [*seed_spread(GOOD, new, 0.1)]
    assert {finding.outcome for finding in checks} == {"NOT_ENOUGH_SEEDS"}


# ------------------------------------------------------------------------------- examples


def losses(seed: int, count: int = 400, shift: float = 0.0) -> Values:
    rng = np.random.default_rng(seed)
    return np.asarray(np.sin(np.arange(count)) ** 2 + shift + rng.normal(0, 0.05, count))


def test_pairing_removes_what_both_models_share() -> None:
    found = paired_examples([losses(1), losses(2)], [losses(3), losses(4)], 0.02)
    assert found.outcome == "PASS"
    assert found.numbers["standard_error"] < 0.3 * float(losses(1).std()) / 400**0.5


def test_a_shift_beyond_the_margin_is_blocked() -> None:
    assert paired_examples([losses(1)], [losses(3, shift=0.03)], 0.02).outcome == "BLOCK"


def test_dependent_examples_widen_the_error() -> None:
    """An autoregression of 0.8: the naive error is three times too small."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        noise = rng.normal(0, 1, 700)
        series = np.empty(700)
        state = 0.0
        for n in range(700):
            state = 0.8 * state + noise[n]
            series[n] = state
        error, _ = mean_error(series)
        covered += abs(series.mean()) < 2.03 * error
    assert covered / 400 > 0.90


@pytest.mark.parametrize(
    ("parent", "new", "words"),
    [
        ([losses(1)], [losses(2, 300)], "different numbers of examples"),
        ([losses(1, 10)], [losses(2, 10)], "too few"),
        ([losses(1)], [losses(1)], "not two models"),
        ([losses(1)], [], "no per-example losses"),
        ([losses(1)], [np.full(400, np.nan)], "not a finite"),
    ],
)
def test_what_cannot_be_paired_is_refused_in_words(
    parent: list[Values], new: list[Values], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        paired_examples(parent, new, 0.1)


# ------------------------------------------------------------------- many samples, properties


def brute_force_p(reference: Values, shifted: Values) -> float:
    """Every split, in exact arithmetic: the share whose second part sums to no more."""
    pooled = [Fraction(float(value)) for value in (*reference, *shifted)]
    observed = sum(pooled[len(reference) :])
    sums = [sum(split) for split in itertools.combinations(pooled, len(shifted))]
    return sum(total <= observed for total in sums) / len(sums)


# Steps of 1/8: sums are exact, so that ties are ties.
steps = st.integers(-40, 40).map(lambda n: n / 8)


@given(st.lists(steps, min_size=2, max_size=5), st.lists(steps, min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_exact_p_is_that_of_brute_force(reference: list[float], new: list[float]) -> None:
    a, b = np.array(reference), np.array(new)
    assert float(permutation_p(a, b)) == pytest.approx(brute_force_p(a, b), abs=1e-12)


@pytest.mark.parametrize("seeds", [(5, 3), (6, 6), (10, 10)])
def test_many_samples_at_once_are_judged_as_one_by_one(seeds: tuple[int, int]) -> None:
    """What bench/spread_operating.py measures is the gate itself."""
    rng = np.random.default_rng(8)
    parent = rng.normal(0, 1, (120, seeds[0]))
    new = rng.normal(0.3, rng.uniform(0.5, 4, (120, 1)), (120, seeds[1]))
    found = seeds_pass(parent, new, 1.5)
    alone = [passes(a, b, 1.5) for a, b in zip(parent, new, strict=True)]
    assert found.tolist() == alone and 20 < sum(alone) < 100


def test_more_samples_than_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    a, b = rng.normal(0, 1, (7, 2, 4)), rng.normal(0, 1, (7, 2, 4))
    whole = permutation_p(a, b)
    monkeypatch.setattr(statistics, "_CELLS", 200)
    assert whole.shape == (7, 2) and permutation_p(a, b).tolist() == whole.tolist()


@st.composite
def two_samples(draw: st.DrawFn) -> tuple[Values, Values]:
    """Seeds of both sides, from 3 to 8 each, of any closeness and spread."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, m = draw(st.integers(3, 8)), draw(st.integers(3, 8))
    return rng.normal(0, 1, n), rng.normal(draw(st.floats(-1, 2)), draw(st.floats(0.3, 3)), m)


@given(two_samples(), st.floats(0.2, 4), st.floats(1.01, 3))
@settings(max_examples=60, deadline=None)
def test_a_larger_margin_never_blocks_what_a_smaller_passed(
    samples: tuple[Values, Values], margin: float, factor: float
) -> None:
    parent, new = samples
    if passes(parent, new, margin):
        assert passes(parent, new, factor * margin)


@given(
    two_samples(), st.floats(-100, 100), st.floats(1e-6, 1e6), st.integers(0, 2**32 - 1),
    st.floats(0.5, 4),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_level_unit_order_and_sign_of_a_metric_do_not_matter(
    samples: tuple[Values, Values], shift: float, scale: float, order: int, margin: float
) -> None:
    parent, new = samples
    said = seed_spread(parent, new, margin)
    rng = np.random.default_rng(order)
    other = [rng.permutation(scale * (values + shift)) for values in samples]
    turned = [oriented(list(-values), "maximize") for values in other]
    for moved in (other, turned):
        again = seed_spread(moved[0], moved[1], scale * margin)
        assert [finding.outcome for finding in again] == [finding.outcome for finding in said]
        assert again[0].numbers["p"] == pytest.approx(said[0].numbers["p"], abs=1e-9)


def test_values_that_no_square_holds_are_refused_in_words() -> None:
    for scale in (1e-170, 1e200):
        with pytest.raises(ValueError, match="measure in another unit"):
            seed_spread(scale * GOOD, scale * GOOD[::-1], scale)
