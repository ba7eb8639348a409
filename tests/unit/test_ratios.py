"""The histogram of step / median: it loses nothing but the place within a bin, and forgets no censored step."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure_protocol.ratios import MOST, MOST_STEPS, WIDTH, Ratios, upper_edge

RATIO = st.floats(min_value=0.0, max_value=5_000.0)
STEPS = st.lists(st.tuples(RATIO, st.booleans()), max_size=60)  # ratio, censored


def made(steps: list[tuple[float, bool]]) -> Ratios:
    it = Ratios()
    for ratio, cut in steps:
        (it.censor if cut else it.add)(ratio)
    return it


# ------------------------------------------------------------------------------- counting


@given(st.lists(RATIO, min_size=1), st.floats(min_value=1.0, max_value=900.0))
def test_without_censored_steps_it_counts_within_a_bin(ratios: list[float], k: float) -> None:
    it = made([(ratio, False) for ratio in ratios])
    assert it.total == len(ratios)
    least = sum(ratio > k for ratio in ratios)
    most = sum(ratio * WIDTH > k * (1 - 1e-9) and ratio > 1 for ratio in ratios)
    assert least - 1e-6 <= it.exceeding(k) <= most + 1e-6


@given(st.lists(st.floats(min_value=0.0, max_value=1e9), max_size=100), st.floats(0.01, 1e3))
def test_many_at_once_are_the_same_as_one_by_one(durations: list[float], median: float) -> None:
    at_once, singly = Ratios(), Ratios()
    at_once.add_many(durations, median)
    for duration in durations:
        singly.add(duration / median)
    assert at_once == singly


@pytest.mark.parametrize("median", [0.0, -1.0, math.nan])
def test_a_clock_that_stands_still_teaches_nothing(median: float) -> None:
    it = Ratios()
    it.add_many([0.0, 0.0, 0.0], median)
    assert it.total == 0


@given(STEPS, STEPS, STEPS)
def test_merging_is_counting_together_in_any_order(
    a: list[tuple[float, bool]], b: list[tuple[float, bool]], c: list[tuple[float, bool]]
) -> None:
    left, right = made(a), made(c)
    left.merge(made(b))
    left.merge(made(c))
    right.merge(made(b))
    right.merge(made(a))
    assert left == right == made(a + b + c)


def test_merging_with_itself_doubles_it() -> None:
    it = made([(1.5, False), (3.0, True)])
    it.merge(it)
    assert it == made([(1.5, False), (3.0, True)] * 2)


def test_what_lasts_longer_than_the_last_bin_counts_as_that() -> None:
    it = made([(MOST, False), (1e300, False)])
    assert it.exceeding(900) == 2
    assert len(it.to_json()["steps"]) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize("put", [Ratios.add, Ratios.censor])
def test_what_is_no_ratio_is_refused(put: object, ratio: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number, 0 or more"):
        put(Ratios(), ratio)  # type: ignore[operator]


@pytest.mark.parametrize("count", [0, -3])
def test_no_steps_at_all_cannot_be_added(count: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ratios().add(1.0, count)


@pytest.mark.parametrize("k", [0.99, 0.0, -1.0, math.nan])
def test_below_the_median_nothing_can_be_told(k: float) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ratios().exceeding(k)


# ------------------------------------------------------------------------- censored steps


def handed_on(it: Ratios) -> tuple[dict[int, float], float]:
    """Efron's reading of Kaplan and Meier, step by step: each censored one is shared out to the right."""
    form = json.loads(json.dumps(it.to_json()))
    seen = {int(b): float(n) for b, n in form["steps"].items()}
    cut = {int(b): float(n) for b, n in form["censored"].items()}
    left = 0.0
    for b in sorted(cut):
        longer = [c for c in seen if c > b], [c for c in cut if c > b]
        heads = sum(seen[c] for c in longer[0]) + sum(cut[c] for c in longer[1])
        if not heads:
            left += cut[b]
            continue
        for c in longer[0]:
            seen[c] += cut[b] * seen[c] / heads
        for c in longer[1]:
            cut[c] += cut[b] * cut[c] / heads
    return seen, left


@given(STEPS)
def test_a_censored_step_is_shared_out_among_the_longer_ones(
    steps: list[tuple[float, bool]],
) -> None:
    it = made(steps)
    masses, left, _ = it.masses()
    expected, rest = handed_on(it)
    assert masses == pytest.approx(expected)
    assert left == pytest.approx(rest)
    assert sum(masses.values()) + left == pytest.approx(it.total)


@given(STEPS)
def test_longer_waits_are_exceeded_less_often(steps: list[tuple[float, bool]]) -> None:
    it = made(steps)
    counts = [it.exceeding(k) for k in (1, 1.5, 2, 3, 5, 10, 50, 500)]
    for shorter, longer in itertools.pairwise(counts):
        assert longer <= shorter + 1e-9
    assert counts[0] <= it.total + 1e-9


def test_censored_steps_give_back_the_law_that_leaving_them_out_hides() -> None:
    rng = random.Random(7)
    honest, forgetful = Ratios(), Ratios()
    for _ in range(20_000):
        ratio, limit = 1 + rng.expovariate(1.0), 1 + rng.expovariate(0.5)
        if ratio > limit:
            honest.censor(limit)
        else:
            honest.add(ratio)
            forgetful.add(ratio)
    true = math.exp(-2)  # P(ratio > 3)
    assert honest.exceeding(3) / honest.total == pytest.approx(true, rel=0.08)
    assert forgetful.exceeding(3) / forgetful.total < 0.7 * true


# ----------------------------------------------------------------------------------- JSON


@given(STEPS)
def test_plain_json_and_back(steps: list[tuple[float, bool]]) -> None:
    it = made(steps)
    text = json.dumps(it.to_json())
    back = Ratios.from_json(json.loads(text))
    assert back == it
    assert json.dumps(back.to_json()) == text
    assert json.dumps(made(list(reversed(steps))).to_json()) == text


def test_its_size_is_bounded() -> None:
    it = Ratios()
    for index in range(400):
        it.add(upper_edge(index) * 0.99, MOST_STEPS)
        it.censor(upper_edge(index) * 0.99, MOST_STEPS)
    assert len(json.dumps(it.to_json())) < 12_000
    assert Ratios.from_json(it.to_json()) == it  # no count left the range


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "must have the keys"),
        ([], "must have the keys"),
        ({"steps": {}}, "must have the keys"),
        ({"steps": {}, "censored": {}, "more": {}}, "must have the keys"),
        ({"steps": [], "censored": {}}, "must map bins to counts"),
        ({"steps": {"x": 1}, "censored": {}}, "has the bin 'x'"),
        ({"steps": {"-1": 1}, "censored": {}}, "has the bin '-1'"),
        ({"steps": {"01": 1}, "censored": {}}, "has the bin '01'"),
        ({"steps": {"178": 1}, "censored": {}}, "has the bin '178'"),
        ({"steps": {"3": 0}, "censored": {}}, "whole number from 1"),
        ({"steps": {"3": True}, "censored": {}}, "whole number from 1"),
        ({"steps": {"3": 1.0}, "censored": {}}, "whole number from 1"),
        ({"steps": {"3": MOST_STEPS + 1}, "censored": {}}, "whole number from 1"),
        ({"steps": {}, "censored": {"3": -1}}, "censored of step ratios"),
    ],
)
def test_what_is_no_histogram_is_refused_in_a_sentence(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        Ratios.from_json(value)
    assert len(str(refused.value).splitlines()) == 1
