"""The interval between snapshots: no neighbour is better, and played histories waste what was expected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import interval as bench
from tenure.plan.interval import (
    MOST_OVERHEAD,
    Costs,
    Last,
    before_wall,
    best,
    daly_s,
    on_notice,
    revise,
    schedule,
    skip_regular,
    waste,
    young_s,
)
from tenure.plan.survival import Life, banded, curve, exponential, kaplan_meier

HOUR_S = 3600.0
SERIES = bench.TRACES / "spot-traces" / "preemption"
costs = st.builds(
    Costs, st.floats(1, 120), st.floats(0, 600), st.floats(0, 120), st.sampled_from([0.0, 1.0])
)


def bathtub(count: int, seed: int = 1) -> list[Life]:
    return bench.lives_of(bench.bathtub(np.random.default_rng(seed), count), None)


@settings(max_examples=15)
@given(st.floats(0.02, 4.0), costs, st.none() | st.floats(2, 12))
def test_no_other_interval_wastes_less(per_h: float, c: Costs, wall_h: float | None) -> None:
    c = replace(c, notice_s=0.0)
    law = exponential(per_h / HOUR_S, None if wall_h is None else wall_h * HOUR_S)
    found = best(law, c)
    assert found.waste == pytest.approx(waste(law, c, found.interval_s))
    # the interval may have been raised to what snapshots may take, at 1 % more waste
    for other in np.geomspace(found.interval_s / 30, found.interval_s * 30, 40):
        assert found.waste <= waste(law, c, float(other)) * 1.0125 + 1e-9


def test_without_a_memory_it_is_between_young_and_daly() -> None:
    for save_s in (1.0, 10.0, 60.0):
        c = Costs(save_s, 120.0, 30.0)
        found = best(exponential(1 / (10 * HOUR_S)), c)
        near = sorted([young_s(save_s, 10 * HOUR_S), daly_s(save_s, 10 * HOUR_S)])
        assert 0.9 * near[0] <= found.interval_s <= 1.1 * near[1] or found.overhead == MOST_OVERHEAD


def test_daly_is_young_less_a_snapshot_where_snapshots_cost_nothing_to_speak_of() -> None:
    assert daly_s(1.0, 1e6) == pytest.approx(young_s(1.0, 1e6) - 1 + 1 / 3, rel=1e-3)


@pytest.mark.parametrize("law", ["exponential", "bathtub", "heavy", "session"])
def test_played_lives_waste_what_was_expected_and_the_search_finds_nothing_better(law: str) -> None:
    draw: bench.Law = getattr(bench, law)
    wall_s = bench.WALL_S if law == "session" else None
    rng = np.random.default_rng(4)
    learnt = bench.lives_of(draw(rng, 1_000), wall_s)
    judged = bench.Judged(draw(rng, 10_000), wall_s)
    save_s = 30.0
    c = Costs(save_s, bench.START_S, bench.LOAD_S)
    found = best(curve(learnt, wall_s=wall_s), c)
    longest = float(judged.lives_s.max())
    simulated = bench.waste(judged, save_s, *bench.fixed(found.interval_s, save_s, longest))
    assert simulated == pytest.approx(found.waste, rel=0.1)
    _, least = bench.searched(judged, save_s)
    assert simulated <= 1.02 * least
    by_age = schedule(banded(learnt, wall_s=wall_s), c)
    aged = bench.waste(judged, save_s, *bench.by_age(by_age, save_s, longest))
    assert aged <= 1.02 * least
    assert aged == pytest.approx(by_age.waste, rel=0.1)


def test_where_the_hazard_falls_with_age_intervals_grow_and_waste_less_than_any_fixed_one() -> None:
    rng = np.random.default_rng(8)
    learnt = bench.lives_of(bench.heavy(rng, 1_000), None)
    judged = bench.Judged(bench.heavy(rng, 10_000))
    found = schedule(banded(learnt), Costs(30.0, bench.START_S, bench.LOAD_S))
    assert found.at(8 * HOUR_S) > 1.5 * found.at(600.0)
    longest = float(judged.lives_s.max())
    aged = bench.waste(judged, 30.0, *bench.by_age(found, 30.0, longest))
    assert aged < 0.98 * bench.searched(judged, 30.0)[1]


@pytest.mark.skipif(not SERIES.exists(), reason=f"there are no recorded preemptions in {SERIES}")
@pytest.mark.parametrize("stem", ["us-east-1c_v100_1", "us-west-2b_v100_1"])
def test_a_recorded_series_that_is_known_leaves_nothing_to_a_search(stem: str) -> None:
    (file,) = SERIES.rglob(f"{stem}.json")
    not_beaten(bench.ups(file))


def test_a_series_of_our_own_that_is_known_leaves_nothing_to_a_search(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    data = [0]
    for up, down in zip(bench.heavy(rng, 45), rng.exponential(1_000, 45), strict=True):
        data += [1] * max(1, int(up / 32)) + [0] * max(1, int(down / 32))
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"metadata": {"gap_seconds": 32}, "data": data}))
    seen = bench.ups(file)
    assert len(seen) == 45 and all(life.lost for life in seen)
    not_beaten(seen)


def not_beaten(seen: list[Life]) -> None:
    judged = bench.Judged(np.array([life.age_s for life in seen]))
    for save_s in bench.SAVES_S:
        found = best(kaplan_meier(seen), Costs(save_s, bench.START_S, bench.LOAD_S))
        marks = bench.fixed(found.interval_s, save_s, float(judged.lives_s.max()))
        assert bench.waste(judged, save_s, *marks) <= 1.02 * bench.searched(judged, save_s)[1]


def test_snapshots_take_at_most_a_thirtieth_where_losses_allow() -> None:
    allowed = best(exponential(1 / (2.3 * HOUR_S)), Costs(25.0))
    assert young_s(25.0, 2.3 * HOUR_S) < 25.0 * (1 / MOST_OVERHEAD - 1)
    assert allowed.overhead == pytest.approx(MOST_OVERHEAD) and "kept to 3.5 %" in allowed.reason
    torn = best(exponential(4 / HOUR_S), Costs(25.0))
    assert torn.overhead > MOST_OVERHEAD and "do not allow" in torn.reason


def test_the_interval_follows_the_hazard_and_the_cost_but_not_every_estimate() -> None:
    c = Costs(20.0, 120.0)
    calm, wild = exponential(1 / (10 * HOUR_S)), exponential(1 / HOUR_S)
    now = best(calm, c).interval_s
    kept = revise(now * 1.05, calm, c)
    assert kept.interval_s == now * 1.05 and "kept at" in kept.reason
    shorter = revise(now, wild, c)
    assert shorter.interval_s < now / 2 and shorter.reason.startswith(f"from {now:.0f} s")
    assert revise(now, calm, Costs(200.0, 120.0)).interval_s > 2 * now
    assert revise(now, calm, c).interval_s == now


def test_a_life_that_reaches_its_wall_leaves_all_but_its_snapshots() -> None:
    calm = exponential(1e-12, wall_s=1_000.0)
    assert waste(calm, Costs(10.0), 700.0) == pytest.approx(1_000 / 980 - 1, rel=1e-6)
    assert waste(calm, Costs(10.0, 100.0, 20.0), 5_000.0) == pytest.approx(
        1_100 / 970 - 1, rel=1e-6
    )
    assert waste(calm, Costs(10.0), 995.0) == pytest.approx(1_000 / 990 - 1, rel=1e-6)


def test_a_notice_that_is_long_enough_makes_snapshots_needless() -> None:
    law = exponential(1 / HOUR_S)
    told = best(law, Costs(20.0, 120.0, notice_s=20.0))
    assert told.interval_s > 5 * best(law, Costs(20.0, 120.0, notice_s=19.0)).interval_s


def test_the_last_snapshot_before_a_wall_begins_as_late_as_it_can() -> None:
    assert before_wall(0.0, 1_000.0, 30.0, 2.0).in_s == 968.0
    late = before_wall(980.0, 1_000.0, 30.0)
    assert late.in_s == 0.0 and not late.fits and "may not be done in time" in late.reason
    tight = before_wall(969.0, 1_000.0, 30.0, 2.0)
    assert tight.in_s == 0.0 and tight.fits
    assert on_notice(120.0, 30.0, 2.0).in_s == 88.0


def test_a_milestone_just_before_the_last_one_is_left_out() -> None:
    last = Last(300.0, True, "")
    assert skip_regular(1_000.0, 250.0, last, 20.0, 1 / HOUR_S)
    assert not skip_regular(1_000.0, 100.0, last, 20.0, 1 / HOUR_S)
    assert skip_regular(1_000.0, 301.0, last, 20.0, 1.0), "there is none left to guard"


@settings(max_examples=20)
@given(st.lists(st.builds(Life, st.floats(1, 1e6), st.booleans()), max_size=40), costs)
def test_any_lives_give_an_interval_or_a_sentence(seen: list[Life], c: Costs) -> None:
    law = curve(seen, prior=exponential(1 / HOUR_S))
    try:
        found = best(law, c)
    except ValueError as error:
        assert "no machine here lives long enough" in str(error)
        return
    assert found.interval_s > 0 and 0 < found.overhead < 1 and found.waste > 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: young_s(0.0, 1.0), "save_s is 0.0"),
        (lambda: daly_s(1.0, math.inf), "between_s is inf"),
        (lambda: Costs(0.0), "a snapshot that takes 0.0 s"),
        (lambda: Costs(1.0, start_s=-1.0), "start_s is -1.0"),
        (lambda: waste(exponential(1.0), Costs(1.0), 0.0), "an interval of 0.0 s"),
        (
            lambda: best(exponential(1.0, wall_s=5.0), Costs(1.0, load_s=9.0)),
            "no machine here lives",
        ),
        (lambda: before_wall(0.0, 0.0, 1.0), "a wall at 0.0 s"),
        (lambda: on_notice(1.0, -1.0), "save_s is -1.0"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
