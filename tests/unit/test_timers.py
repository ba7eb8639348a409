"""The timers: what they choose is the cheapest, they begin generous, and they say why."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tenure.dispatch.timers import (
    LEAST_WINDOW_S,
    best_k,
    claim_window_s,
    first_silence_s,
    milestone_interval_s,
)
from tenure_protocol.patience import KNOWN_STEPS, LEAST_K, LEAST_STEPS, MOST_K, Tail, costs
from tenure_protocol.ratios import Ratios

RATIOS = st.lists(
    st.tuples(st.floats(min_value=0.5, max_value=80.0), st.integers(1, 500), st.booleans()),
    max_size=25,
)
STEP_S = st.floats(min_value=0.01, max_value=100.0)
RESTART_S = st.floats(min_value=0.0, max_value=5_000.0)
DEATH_PER_H = st.floats(min_value=0.001, max_value=10.0)


def made(steps: list[tuple[float, int, bool]]) -> Ratios:
    it = Ratios()
    for ratio, count, cut in steps:
        (it.censor if cut else it.add)(ratio, count)
    return it


def drawn(draw: Callable[[], float], count: int) -> Ratios:
    it = Ratios()
    it.add_many([draw() for _ in range(count)], 1.0)
    return it


def even(count: int, seed: int = 0) -> Ratios:
    rng = random.Random(seed)
    return drawn(lambda: rng.gauss(1, 0.02), count)


def chosen(ratios: Ratios, prior: Ratios | None = None) -> int:
    return best_k(ratios, step_s=0.5, restart_s=300, death_per_h=0.05, prior=prior).k


# -------------------------------------------------------------------------------------- K


@given(RATIOS, STEP_S, RESTART_S, DEATH_PER_H, st.floats(0, 5_000))
def test_no_other_k_costs_less(
    steps: list[tuple[float, int, bool]],
    step_s: float,
    restart_s: float,
    death_per_h: float,
    milestone_s: float,
) -> None:
    ratios = made(steps)
    found = best_k(ratios, step_s, restart_s, death_per_h, milestone_s)
    tail = Tail(ratios)
    if not tail.known:
        assert found.k == MOST_K
        return
    loss_s = restart_s + milestone_s / 2
    every = {
        k: tail.chance(k) * 3600 / step_s * loss_s + death_per_h * k * step_s
        for k in range(LEAST_K, MOST_K + 1)
    }
    assert found.cost_s_per_h == pytest.approx(min(every.values()))
    assert every[found.k] == pytest.approx(min(every.values()))


@given(RATIOS)
def test_longer_waits_fail_less_often(steps: list[tuple[float, int, bool]]) -> None:
    tail = Tail(made(steps))
    chances = [tail.chance(k) for k in range(1, 60)]
    assert all(0.0 <= chance <= 1.0 for chance in chances)
    assert chances == sorted(chances, reverse=True)


@given(RATIOS, STEP_S, RESTART_S, DEATH_PER_H)
def test_a_dearer_error_lengthens_the_lease_and_a_commoner_death_shortens_it(
    steps: list[tuple[float, int, bool]], step_s: float, restart_s: float, death_per_h: float
) -> None:
    ratios = made(steps)
    k = best_k(ratios, step_s, restart_s, death_per_h).k
    assert best_k(ratios, step_s, 3 * restart_s, death_per_h).k >= k
    assert best_k(ratios, step_s, restart_s, death_per_h, milestone_s=600).k >= k
    assert best_k(ratios, step_s, restart_s, 3 * death_per_h).k <= k


def test_it_starts_at_50_and_comes_down_as_steps_are_seen() -> None:
    assert chosen(Ratios()) == MOST_K == 50
    assert chosen(even(LEAST_STEPS - 1)) == MOST_K
    ks = [chosen(even(count)) for count in (20, 50, 200, 2_000)]
    assert ks == sorted(ks, reverse=True)
    assert ks[0] > ks[-1] == LEAST_K


def test_there_is_room_beyond_the_longest_step_seen() -> None:
    for longest in (2.5, 4.0, 7.0, 20.0):
        ratios = even(2_000)
        ratios.add(longest)
        assert chosen(ratios) > longest


def test_a_step_that_led_to_a_write_off_is_not_forgotten() -> None:
    kept, seen, forgotten = even(2_000), even(2_000), even(2_000)
    kept.censor(3.0)
    seen.add(3.0)
    assert chosen(kept) > 2 * chosen(seen) > 2 * chosen(forgotten)


def test_a_censored_step_is_settled_by_longer_ones_that_were_seen() -> None:
    open_end, settled = even(2_000), even(2_000)
    open_end.censor(3.0)
    settled.censor(3.0)
    settled.add(5.0)
    assert 5 < chosen(settled) < chosen(open_end)


def test_a_platform_stands_in_until_the_job_is_known() -> None:
    stalling = even(5_000)
    stalling.add(12.0, 5)
    assert chosen(Ratios(), prior=stalling) > 12
    assert chosen(even(KNOWN_STEPS // 2), prior=stalling) > 12
    assert chosen(even(KNOWN_STEPS), prior=stalling) == chosen(even(KNOWN_STEPS))
    assert chosen(Ratios(), prior=Ratios()) == MOST_K
    assert chosen(Ratios(), prior=even(5_000)) < chosen(even(LEAST_STEPS))


def test_a_platform_that_wrote_somebody_off_is_not_forgotten_either() -> None:
    careful = even(5_000)
    careful.censor(3.0, 5)
    assert chosen(even(50), prior=careful) > chosen(even(50), prior=even(5_000))


@pytest.mark.parametrize(
    ("law", "least", "most"),
    [
        (stats.lognorm(0.1), 1.0, 2.0),
        (stats.lognorm(0.3), 1.0, 2.0),
        (stats.lognorm(0.6), 0.8, 2.0),
    ],
)
def test_it_comes_near_the_k_of_those_who_know_the_law(
    law: stats.rv_continuous, least: float, most: float
) -> None:
    rng = random.Random(3)
    learnt = chosen(drawn(lambda: float(law.ppf(rng.random())), 10_000))
    oracle = min(
        range(LEAST_K, MOST_K + 1),
        key=lambda k: law.sf(k) * 3600 / 0.5 * 300 + 0.05 * k * 0.5,
    )
    assert least * oracle <= learnt <= most * oracle


def test_the_reason_has_the_numbers() -> None:
    ratios = even(2_000)
    ratios.add(3.6)
    found = best_k(ratios, step_s=0.5, restart_s=300, death_per_h=0.05)
    assert "of 2001 steps the longest lasted 3.6 medians" in found.reason.replace("3.7", "3.6")
    assert f"a lease of {found.k} medians" in found.reason and "300 s each" in found.reason
    lent = best_k(even(50), step_s=0.5, restart_s=300, death_per_h=0.05, prior=even(900)).reason
    assert "of 200 steps, 150 of them its platform's" in lent
    assert "20 are needed" in best_k(Ratios(), 0.5, 300, 0.05).reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_s", 0.0),
        ("step_s", math.nan),
        ("restart_s", -1.0),
        ("death_per_h", math.inf),
        ("milestone_s", -0.5),
    ],
)
def test_costs_that_are_none_are_refused(name: str, value: float) -> None:
    numbers = {"step_s": 0.5, "restart_s": 300.0, "death_per_h": 0.05, "milestone_s": 0.0}
    with pytest.raises(ValueError, match=f"^{name} is .*; it must be a number"):
        best_k(even(100), **{**numbers, name: value})


# ----------------------------------------------------------------------------- milestones


@given(
    RATIOS,
    st.floats(min_value=0.1, max_value=60.0),
    STEP_S,
    RESTART_S,
    st.floats(min_value=0.001, max_value=1.0),
)
def test_no_other_interval_and_k_cost_less(
    steps: list[tuple[float, int, bool]],
    save_s: float,
    step_s: float,
    restart_s: float,
    death_per_h: float,
) -> None:
    tail = Tail(made(steps))
    found = milestone_interval_s(made(steps), save_s, step_s, restart_s, death_per_h)
    if not tail.known:
        assert found.k == MOST_K
        return
    for each in costs(tail, step_s, death_per_h):
        failures = death_per_h + each.false_per_h
        for factor in (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0):
            interval_s = max(factor * found.interval_s, step_s, save_s)
            if interval_s > 3600 / failures:
                continue  # beyond the mean time between failures the formula is none
            cost = (
                failures * (restart_s + interval_s / 2)
                + death_per_h * each.k * step_s
                + 3600 * save_s / interval_s
            )
            assert found.cost_s_per_h <= cost * (1 + 1e-9)


def test_where_leases_never_fail_it_is_youngs_interval() -> None:
    found = milestone_interval_s(
        even(50_000), save_s=2, step_s=0.5, restart_s=300, death_per_h=0.05
    )
    assert found.interval_s == pytest.approx(math.sqrt(2 * 2 * 3600 / 0.05), rel=1e-3)
    assert found.k == LEAST_K


def test_cheaper_saves_make_cheaper_errors_and_shorter_leases() -> None:
    rng = random.Random(1)
    wide = drawn(lambda: rng.lognormvariate(0, 0.6), 5_000)
    found = [
        milestone_interval_s(wide, save_s, step_s=60, restart_s=10, death_per_h=0.5)
        for save_s in (0.5, 20, 300)
    ]
    assert found[0].interval_s < found[1].interval_s < found[2].interval_s
    assert found[0].k < found[2].k


def test_an_interval_is_never_shorter_than_a_step_or_a_save() -> None:
    free = milestone_interval_s(even(500), save_s=0, step_s=7, restart_s=300, death_per_h=0.05)
    assert free.interval_s == 7
    slow = milestone_interval_s(even(500), save_s=900, step_s=7, restart_s=300, death_per_h=40)
    assert slow.interval_s >= 900
    with pytest.raises(ValueError, match="death_per_h is 0"):
        milestone_interval_s(even(500), save_s=1, step_s=7, restart_s=300, death_per_h=0)


# ---------------------------------------------------------------------------------- claims


@given(st.lists(st.floats(min_value=0, max_value=10_000), max_size=19), st.floats(1, 5_000))
def test_a_claim_window_is_generous_until_there_are_twenty(
    delays_s: list[float], default_s: float
) -> None:
    window_s, reason = claim_window_s(delays_s, default_s)
    assert window_s == default_s
    assert f"only {len(delays_s)} start delays" in reason


@given(st.lists(st.floats(min_value=0, max_value=10_000), min_size=20, max_size=400))
def test_then_at_most_one_start_in_a_hundred_would_have_missed_it(delays_s: list[float]) -> None:
    window_s, reason = claim_window_s(delays_s)
    assert 100 * sum(delay_s > window_s for delay_s in delays_s) <= len(delays_s)
    assert window_s <= max(1.5 * max(delays_s), LEAST_WINDOW_S)
    assert f"{len(delays_s)} start delays" in reason


def test_one_late_start_among_hundreds_does_not_make_all_others_wait() -> None:
    assert claim_window_s([40.0] * 299 + [3_000.0])[0] == 40.0
    assert claim_window_s([1.0] * 300) == (
        LEAST_WINDOW_S,
        "the 99th percentile of 300 start delays, but at least 30 s",
    )


@pytest.mark.parametrize("delay_s", [-1.0, math.nan, math.inf])
def test_a_delay_that_is_none_is_refused(delay_s: float) -> None:
    with pytest.raises(ValueError, match="a start delay is"):
        claim_window_s([10.0, delay_s])


# ------------------------------------------------------------------------------- first steps


def test_the_first_lease_is_predicted_from_flops() -> None:
    silence_s, reason = first_silence_s(3e12, 6e12, speed=0.25, k=50)
    assert silence_s == pytest.approx(100.0)
    assert "2 s" in reason and "25 %" in reason and "K 50" in reason


@pytest.mark.parametrize(
    ("flops", "peak", "what"), [(None, 1e12, "FLOPs of a step"), (1e12, None, "card's peak")]
)
def test_what_is_not_known_is_not_guessed(
    flops: float | None, peak: float | None, what: str
) -> None:
    silence_s, reason = first_silence_s(flops, peak, speed=0.5, k=50, default_s=45)
    assert silence_s == 45 and what in reason


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed is"):
        first_silence_s(1e12, 1e12, speed, k=50)
