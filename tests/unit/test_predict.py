"""Predictions of the end of a job: right on average, honest in their width, and judged afterwards."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.plan import predict
from tenure.plan.predict import LEVELS, Overheads, Running, calibration, forecast, score
from tenure.plan.survival import Curve, Life, curve, exponential
from tenure.plan.throughput import known

HOUR_S = 3600.0
SPOT = exponential(1 / HOUR_S)
USUAL = Overheads((120.0,), load_s=60.0, save_s=20.0, interval_s=600.0, silence_s=30.0)


def played(rng: random.Random, work_s: float, per_h: float, o: Overheads) -> float:
    """One history of a job, second by second in words: a life, then what is kept of it."""
    clock, left = 0.0, work_s
    while True:
        clock += o.starts_s[0]
        life = rng.expovariate(per_h / HOUR_S)
        at, inside = o.load_s, left
        while inside > 0:
            piece = min(o.interval_s, inside)
            at += piece + o.save_s
            if at > life:
                break
            inside -= piece
        if at <= life:
            return clock + at
        left = inside
        clock += life + o.silence_s


def test_the_mean_is_that_of_histories_played_one_by_one() -> None:
    rng = random.Random(5)
    seen = [played(rng, 5_000.0, 1.0, USUAL) for _ in range(6_000)]
    found = forecast(5_000.0, known(1.0, 0.9), SPOT, USUAL, draws=6_000)
    assert found.mean_s == pytest.approx(np.mean(seen), rel=0.03)
    for level in (0.1, 0.5, 0.9):
        assert found.quantile_s(level) == pytest.approx(np.quantile(seen, level), rel=0.06)
    phases = found.phases
    assert phases.total_s == pytest.approx(found.mean_s, rel=1e-6), (
        "nothing is counted twice or left out"
    )


@settings(max_examples=30)
@given(
    st.floats(0, 50_000), st.floats(1, 20_000), st.floats(0.05, 3.0), st.floats(60, 5_000),
    st.integers(0, 5),
)  # fmt: skip
def test_more_work_is_never_done_sooner(
    left: float, more: float, per_h: float, interval_s: float, seed: int
) -> None:
    o = replace(USUAL, interval_s=interval_s)
    rates = exponential(per_h / HOUR_S)
    law = known(1.0, 0.9, noise=0.1)
    one = forecast(left, law, rates, o, draws=50, seed=seed)
    two = forecast(left + more, law, rates, o, draws=50, seed=seed)
    assert all(a <= b for a, b in zip(one.finish_s, two.finish_s, strict=True))
    assert one.mean_s >= left * 0.5


def test_shorter_lives_slower_machines_and_dearer_saves_all_cost_time() -> None:
    base = forecast(20_000.0, known(1.0, 0.9), SPOT, USUAL).mean_s
    assert forecast(20_000.0, known(1.0, 0.9), exponential(2 / HOUR_S), USUAL).mean_s > base
    assert forecast(20_000.0, known(0.9, 0.9), SPOT, USUAL).mean_s > base
    assert forecast(20_000.0, known(1.0, 0.9), SPOT, replace(USUAL, save_s=60.0)).mean_s > base
    assert forecast(20_000.0, known(1.0, 0.9), SPOT, replace(USUAL, silence_s=300.0)).mean_s > base
    assert forecast(20_000.0, known(1.0, 0.9), SPOT, USUAL, cards=2).mean_s < base


def test_work_without_snapshots_is_lost_with_each_machine() -> None:
    saved = forecast(10_000.0, known(1.0, 0.9), SPOT, USUAL)
    never = forecast(10_000.0, known(1.0, 0.9), SPOT, replace(USUAL, interval_s=math.inf))
    assert never.mean_s > 2 * saved.mean_s
    assert never.phases.restart_s > saved.phases.restart_s
    assert saved.unscathed < 0.2


def test_on_a_wall_and_with_notice_a_last_milestone_keeps_what_was_done() -> None:
    calm = exponential(1e-9, wall_s=2 * HOUR_S)
    o = Overheads((60.0,), 0.0, 100.0, interval_s=5_000.0)
    found = forecast(10_000.0, known(1.0, 0.9), calm, o, draws=20)
    # 5000 + 100 + 2000 + 100 s to the wall, then 3000 s of work and the last snapshot
    assert found.mean_s == pytest.approx(60 + 7200 + 60 + 3000 + 100)
    assert found.unscathed == 1.0
    told = forecast(10_000.0, known(1.0, 0.9), SPOT, replace(o, notice_s=120.0), draws=2_000)
    late = forecast(10_000.0, known(1.0, 0.9), SPOT, replace(o, notice_s=99.0), draws=2_000)
    assert told.mean_s < 0.8 * late.mean_s
    # but for machines that last no longer than a snapshot takes
    assert told.unscathed > 0.85 > 0.1 > late.unscathed


def test_a_machine_that_runs_has_started_and_its_age_counts() -> None:
    fresh = forecast(1_000.0, known(1.0, 0.9), exponential(1e-9), USUAL, draws=10)
    runs = forecast(
        1_000.0, known(1.0, 0.9), exponential(1e-9), USUAL, running=Running(500.0, 300.0), draws=10
    )
    assert fresh.mean_s == pytest.approx(120 + 60 + 1000 + 40)
    assert runs.mean_s == pytest.approx(700 + 40)
    old_ones_last = curve([Life(100.0, True)] * 40 + [Life(500 * HOUR_S, True)] * 40)
    young = forecast(3_000.0, known(1.0, 0.9), old_ones_last, USUAL, running=Running(61.0))
    old = forecast(3_000.0, known(1.0, 0.9), old_ones_last, USUAL, running=Running(HOUR_S))
    assert old.mean_s < young.mean_s


def test_a_job_that_can_never_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "MOST_LIVES", 50)
    o = Overheads((60.0,), load_s=500.0, save_s=10.0, interval_s=100.0)
    found = forecast(5_000.0, known(1.0, 0.9), exponential(1e-9, wall_s=400.0), o, draws=10)
    assert math.isinf(found.mean_s) and found.on_time(1e9) == 0.0
    assert "100 % of the draws never end" in found.reason
    assert all(math.isfinite(each) for each in found.quantiles_s), "what is stored has a JSON form"


def test_equal_seeds_give_equal_answers_and_others_do_not() -> None:
    law = known(1.0, 0.9, noise=0.1)
    one, same = (forecast(5_000.0, law, SPOT, USUAL, seed=4) for _ in range(2))
    assert one == same
    assert one.finish_s != forecast(5_000.0, law, SPOT, USUAL, seed=5).finish_s


def test_no_work_left_is_done() -> None:
    assert forecast(0.0, known(1.0, 0.9), SPOT, USUAL, draws=5).finish_s == (0.0,) * 5


def predicted(rng: random.Random, curve_of: Curve, scale: float) -> tuple[tuple[float, ...], float]:
    actual = played(rng, 3_000.0 * rng.lognormvariate(0, 0.15), 1.0, USUAL)
    law = known(1.0, 0.9, noise=0.15)
    found = forecast(3_000.0, law, curve_of, USUAL, draws=200, seed=rng.randrange(2**30))
    return tuple(scale * each for each in found.quantiles_s), actual


def test_predictions_are_as_wide_as_they_should_be_and_the_table_shows_where_not() -> None:
    rng = random.Random(9)
    right = calibration(predicted(rng, SPOT, 1.0) for _ in range(150))
    assert 0.72 <= right.coverage <= 0.88
    assert all(abs(below - level) < 0.1 for below, level in zip(right.below, LEVELS, strict=True))
    hopeful = calibration(predicted(rng, SPOT, 0.6) for _ in range(150))
    assert "too hopeful" in hopeful.reason and hopeful.pinball_s > right.pinball_s
    cautious = calibration(predicted(rng, SPOT, 1.8) for _ in range(150))
    assert "too cautious" in cautious.reason and cautious.median_relative < 0
    assert "as they promise" in right.reason


def test_the_pinball_loss_is_half_the_crps_of_the_quantiles() -> None:
    told = [float(10 * n) for n in range(1, 10)]
    assert score(told, 55.0).pinball_s < score(told, 90.0).pinball_s
    table = calibration([(told, 55.0)])
    assert table.crps_s == 2 * table.pinball_s and table.deciles[5] == 1
    assert "20 are needed" in table.reason


@given(st.lists(st.floats(0, 1e6), min_size=9, max_size=9).map(sorted), st.floats(0, 1e6))
def test_the_decile_is_where_the_outcome_fell(told: list[float], actual: float) -> None:
    found = score(told, actual)
    assert found.decile == 1 + sum(each < actual for each in told)
    assert found.pinball_s >= 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: forecast(-1.0, known(1, 0.9), SPOT, USUAL), "the work left is -1.0"),
        (lambda: forecast(math.inf, known(1, 0.9), SPOT, USUAL), "the work left is inf"),
        (lambda: forecast(1.0, known(1, 0.9), SPOT, USUAL, draws=0), "0 draws"),
        (lambda: Overheads(()), "no start delay is given"),
        (lambda: Overheads((-1.0,)), "starts_s is -1.0"),
        (lambda: Overheads((1.0,), save_s=math.inf), "save_s is inf"),
        (lambda: Overheads((1.0,), interval_s=0.0), "interval_s is 0.0"),
        (lambda: score([1.0] * 8, 1.0), "9 quantiles"),
        (lambda: score([2.0, 1.0, *[3.0] * 7], 1.0), "do not fall"),
        (lambda: score([1.0] * 9, math.inf), "it took inf s"),
        (lambda: calibration([]), "no prediction has an outcome yet"),
        (
            lambda: forecast(1.0, known(1, 0.9), SPOT, USUAL, draws=5).quantile_s(1.0),
            "a level of 1.0",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
