"""Probes that pay, rungs that are tried, cards that are worth it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.plan.learn import (
    CARDS_MARGIN,
    Arm,
    pick,
    probe,
    rescale,
)
from tenure.plan.objective import Limits, Weights

amounts = st.floats(0.1, 1e4)


def test_the_value_of_an_answer_is_that_of_many_drawn_ones() -> None:
    rng = random.Random(2)
    for here, there, sd, noise in (
        (100.0, 100.0, 0.5, 0.1),
        (100.0, 60.0, 0.6, 0.3),
        (50.0, 90.0, 0.4, 0.0),
    ):
        found = probe(here, there, sd, 1.0, noise)
        gain = []
        for _ in range(40_000):
            truth = rng.gauss(math.log(there), sd)
            told = truth + rng.gauss(0, noise)
            weight = sd**2 / (sd**2 + noise**2)
            after = math.log(there) + weight * (told - math.log(there))
            spread = sd**2 * (1 - weight)
            gain.append(min(here, math.exp(after + spread / 2)))
        mean = there * math.exp(sd**2 / 2)
        assert found.worth == pytest.approx(min(here, mean) - statistics.fmean(gain), rel=0.05)


@given(amounts, amounts, st.floats(0, 1.5), st.floats(0, 1))
def test_an_answer_is_never_worth_less_than_nothing_nor_more_than_all(
    here: float, there: float, sd: float, noise: float
) -> None:
    found = probe(here, there, sd, 0.0, noise)
    assert 0 <= found.worth <= here * (1 + 1e-9) and 0 <= found.switch <= 1
    assert probe(here, there, sd, 0.0, noise + 0.5).worth <= found.worth + 1e-9 * here, "noise"


def test_a_card_that_is_known_or_hopeless_or_a_short_job_is_not_probed() -> None:
    assert probe(100.0, 100.0, 0.5, price=2.0).run
    assert not probe(100.0, 100.0, 0.01, price=2.0).run
    assert not probe(100.0, 900.0, 0.3, price=2.0).run
    assert not probe(3.0, 3.0, 0.5, price=2.0).run
    assert "not worth" in probe(3.0, 3.0, 0.5, price=2.0).reason


def test_the_bandit_finds_the_best_of_like_rungs_and_stops_paying_for_the_others() -> None:
    rng = random.Random(6)
    truth = {"a": 1.0, "b": 0.8, "c": 1.3}
    costs: dict[str, list[float]] = {name: [] for name in truth}
    for seed in range(200):
        arms = [Arm(name, 1.0, tuple(costs[name])) for name in truth]
        rung = pick(arms, seed).rung
        costs[rung].append(truth[rung] * rng.lognormvariate(0, 0.2))
    assert len(costs["b"]) > 140 and len(costs["c"]) < 25
    assert all(costs.values()), "each was tried"


def test_equal_seeds_pick_equally_in_any_order() -> None:
    arms = [Arm("a", 1.0, (1.1, 0.9)), Arm("b", 1.0), Arm("c", 2.0)]
    assert [pick(arms, n).rung for n in range(20)] == [pick(arms[::-1], n).rung for n in range(20)]
    assert len({pick(arms, n).rung for n in range(50)}) > 1
    assert any("it is tried" in pick(arms, n).reason for n in range(50))


@given(
    st.sampled_from([1, 2, 4, 8]), st.floats(0.1, 1.0), st.floats(60, 1e6), st.floats(0, 600),
    st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)),
)  # fmt: skip
def test_cards_change_for_a_gain_alone(
    now: int, alpha: float, left_s: float, restart_s: float, weights: tuple[float, float]
) -> None:
    w_time, w_cost = weights
    found = rescale(now, (1, 2, 4, 8), alpha, left_s, 1.0, restart_s, Weights(w_time, w_cost, 0))

    def total(n: int) -> float:
        took = left_s * (now / n) ** alpha + (restart_s if n != now else 0)
        here = left_s
        return (w_time * took / here + w_cost * took * n / (here * now)) / (w_time + w_cost)

    assert total(found.cards) <= total(now) * (1 + 1e-9)
    if found.cards == now:
        assert min(map(total, (1, 2, 4, 8))) > total(now) * (1 - CARDS_MARGIN) * (1 - 1e-9)
    else:
        assert total(found.cards) <= total(now) * (1 - CARDS_MARGIN) * (1 + 1e-9)


def test_a_deadline_adds_cards_and_a_budget_bounds_them() -> None:
    thrifty = Weights(0, 1, 0)
    args = (1, (1, 2, 4), 0.8, 36_000.0, 1.0, 60.0, thrifty)
    assert rescale(*args).cards == 1
    late = rescale(*args, Limits(deadline_s=22_000.0))
    assert late.cards == 2 and "breaks a limit" in late.reason
    hurried = (1, (1, 2, 4), 0.8, 36_000.0, 1.0, 60.0, Weights(9, 1, 0))
    assert rescale(*hurried).cards == 4
    assert rescale(*hurried, Limits(budget=12.0)).cards == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: probe(0.0, 1.0, 0.1, 1.0), "known_cost is 0.0"),
        (lambda: probe(1.0, 1.0, -0.1, 1.0), "log_sd is -0.1"),
        (lambda: pick([], 1), "there is no rung to choose from"),
        (lambda: pick([Arm("a", 0.0)], 1), "a: costs per unit of work"),
        (lambda: rescale(3, (1, 2), 0.9, 1.0, 1.0, 1.0, Weights()), "3 cards are not among"),
        (lambda: rescale(1, (1, 2), 1.9, 1.0, 1.0, 1.0, Weights()), "alpha is 1.9"),
        (lambda: rescale(1, (1, 2), 0.9, math.inf, 1.0, 1.0, Weights()), "left_s is inf"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
