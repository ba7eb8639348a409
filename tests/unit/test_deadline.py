"""Policies under a deadline: the rules of a tick, never late whatever the markets do, and what the plan saves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.plan import deadline_dp
from tenure.plan.deadline import (
    FIRST_MARKET,
    IDLE,
    SURE,
    Greedy,
    Ints,
    Market,
    OnDemand,
    Played,
    Policy,
    Terms,
    UniformProgress,
    View,
    replay,
)
from tenure.plan.deadline_dp import OneMarket, Ours, Shape, TwoMarkets, solve
from tenure.plan.spot_market import COARSE, FINE, Bins, History
from tests.spot_market import semi_markov

DAY = Terms(8, 10, 0.2, 3.06, 0.9731)


def market(marks: str, gap_s: float = 600.0, name: str = "m") -> Market:
    return Market(name, gap_s, np.array([mark == "#" for mark in marks]))


def plainly(there: list[bool], gap_s: float, terms: Terms, rule: str) -> tuple[float, float, int]:
    """One window in plain Python, after the words of the issue: cost, finish, moves."""
    done = cost = left = 0.0
    mode, moves = IDLE, 0
    for tick, up in enumerate(there):
        time_s = tick * gap_s
        work = terms.task_s - done
        if work <= 1e-6:
            break
        if mode == FIRST_MARKET and not up:
            mode = IDLE
        last = terms.deadline_s - time_s - gap_s < work + terms.overhead_s - 1e-6
        spot = FIRST_MARKET if up else IDLE
        slope = terms.task_s / terms.deadline_s
        if last or (rule == "greedy" and mode == SURE):
            new = SURE
        elif rule == "greedy":
            new = spot
        elif mode == SURE:
            new = FIRST_MARKET if up and (time_s + 2 * terms.overhead_s) * slope < done else SURE
        else:
            new = FIRST_MARKET if up else IDLE if done >= time_s * slope else SURE
        if new not in (mode, IDLE):
            left, moves = terms.overhead_s, moves + 1
        mode = new
        if mode == IDLE:
            continue
        made = min(max(gap_s - left, 0), work)
        finish = time_s + left + made
        left, done = max(left - gap_s, 0), done + made
        price = terms.on_demand_usd_per_h if mode == SURE else terms.spot_usd_per_h
        cost += price * gap_s / 3600
    return cost, finish, moves


@given(
    marks=st.lists(st.booleans(), min_size=60, max_size=60),
    overhead_h=st.sampled_from([0.0, 0.1, 0.2, 0.55]),
    task_h=st.sampled_from([4.0, 6.3, 8.0]),
    rule=st.sampled_from(["greedy", "uniform-progress"]),
)
@settings(max_examples=60)
def test_simple_policies_are_what_the_words_say(
    marks: list[bool], overhead_h: float, task_h: float, rule: str
) -> None:
    terms = Terms(task_h, 10, overhead_h, 3.06, 0.9731)
    policy: Policy = Greedy() if rule == "greedy" else UniformProgress()
    played = replay([Market("m", 600.0, np.array(marks))], [0], terms, policy)
    cost, finish, moves = plainly(marks, 600.0, terms, rule)
    assert played.cost_usd[0] == pytest.approx(cost)
    assert played.finish_s[0] == pytest.approx(finish)
    assert played.moves[0] == moves


def test_a_tick_pays_whole_and_progress_waits_for_the_overhead() -> None:
    terms = Terms(1, 5, 0.2, 3.0, 1.0)  # 6 ticks of work, 1.2 of overhead
    played = replay([market("#" * 30)], [0], terms, Greedy())
    assert played.finish_s[0] == pytest.approx(1.2 * 3600)
    assert played.cost_usd[0] == pytest.approx(8 / 6)  # of 7.2 ticks the eighth is paid whole
    broken = replay([market("###." + "#" * 26)], [0], terms, Greedy())
    # 3 ticks make 1.8 of work; the second start pays another 1.2 and the last 4.2
    assert broken.moves[0] == 2
    assert broken.finish_s[0] == pytest.approx((4 + 1.2 + 4.2) * 600)


def test_a_window_must_lie_in_the_trace() -> None:
    with pytest.raises(ValueError, match="60 ticks does not lie in 61"):
        replay([market("#" * 61)], [2], DAY, OnDemand())
    with pytest.raises(ValueError, match="different length"):
        replay([market("#" * 99), market("#" * 99, 300.0)], [0], DAY, OnDemand())


def test_on_demand_costs_the_task_and_one_start() -> None:
    played = replay([market("#" * 70)], [0, 5], DAY, OnDemand())
    assert played.cost_usd == pytest.approx(
        [50 * 0.51, 50 * 0.51]
    )  # 49.2 ticks, the last one whole
    assert not played.late.any() and played.moves.tolist() == [1, 1]


# -------------------------------------------------------------------------------- never late


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Market], Terms, list[int]]:
    gap_s = draw(st.sampled_from([195.0, 600.0, 1000.0, 3600.0]))
    task_h = draw(st.floats(0.5, 6))
    overhead_h = draw(st.sampled_from([0.0, 0.05, 0.2, 0.7]))
    slack_h = draw(st.floats(0, 4))
    terms = Terms(task_h, task_h + overhead_h + slack_h, overhead_h, 3.06, draw(st.floats(0, 4)))
    ticks = terms.ticks(gap_s) + 3
    count = draw(st.integers(1, 3))
    runs = st.lists(st.integers(1, 20), min_size=1, max_size=ticks)
    markets = []
    for j in range(count):
        up, marks = draw(st.booleans()), list[bool]()
        for length in draw(runs):
            marks += [up] * length
            up = not up
        marks = (marks + [up] * ticks)[:ticks]
        markets.append(Market(f"m{j}", gap_s, np.array(marks)))
    return markets, terms, [0, 1, 3]


def bounded(played: Played, terms: Terms) -> None:
    """Never late, and never cheaper than all of the work on the cheapest rung."""
    assert not played.late.any(), (played.finish_s, terms)
    cheapest = min(terms.spot_usd_per_h, terms.on_demand_usd_per_h)
    assert (played.cost_usd >= terms.task_h * cheapest - 1e-9).all()


@given(job=jobs())
@settings(max_examples=40, deadline=None)
def test_never_late_for_any_market(job: tuple[list[Market], Terms, list[int]]) -> None:
    markets, terms, starts = job
    for policy in (Greedy(), UniformProgress(), OnDemand(), Ours(markets, terms)):
        bounded(replay(markets, starts, terms, policy), terms)


@given(seed=st.integers(0, 10_000), marks=st.lists(st.booleans(), min_size=60, max_size=60))
@example(seed=0, marks=[False] * 60)
@settings(max_examples=20, deadline=None)
def test_never_late_whatever_the_table_says(seed: int, marks: list[bool]) -> None:
    bounded(_with_wild_table(seed, marks), DAY)


def _with_wild_table(seed: int, marks: list[bool]) -> Played:
    rng = np.random.default_rng(seed)

    def wild(world: deadline_dp.World, shape: Shape, terms: Terms) -> deadline_dp.Table:
        states = world.up.shape[1]
        table = rng.uniform(0, 99, (shape.steps + 1, states, 3, shape.slacks)).astype(np.float32)
        table[:, :, IDLE] -= 60  # idleness looks best
        return table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline_dp, "solve", wild)
        made = Market("m", 600.0, np.array(marks))
        return replay([made], [0], DAY, Ours([made], DAY))


def test_without_the_safety_rule_it_would_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(View, "safe", lambda self, mode: np.ones(len(self.work_s), dtype=bool))
    assert _with_wild_table(0, [False] * 60).late.any()


def test_safe_is_exact_to_the_second() -> None:
    def seen(left_s: float) -> View:
        """One hour of work and a machine of market 0 that runs."""
        return View(
            tick=0,
            gap_s=600.0,
            terms=DAY,
            there=np.array([True]),
            elapsed_s=np.array([DAY.deadline_s - left_s]),
            work_s=np.array([3600.0]),
            mode=np.array([FIRST_MARKET]),
            overhead_s=np.array([0.0]),
        )

    assert seen(4320).safe(FIRST_MARKET)[0] and not seen(4319).safe(FIRST_MARKET)[0]
    assert seen(4920).safe(IDLE)[0] and not seen(4919).safe(IDLE)[0]
    assert seen(0).safe(SURE)[0]


# -------------------------------------------------------------------------------- what is learnt


@dataclass
class Recorded:
    """A policy, and what it chose at each tick."""

    policy: Policy
    chosen: dict[int, list[int]] = field(default_factory=dict)

    def choose(self, view: View) -> Ints:
        modes = self.policy.choose(view)
        self.chosen[view.tick] = modes.tolist()
        return modes


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_of_the_future_is_used(count: int) -> None:
    made = [semi_markov(seed, 400, 2, 1) for seed in range(count)]
    cut = 233
    other = [
        Market(m.name, m.gap_s, np.concatenate((m.there[: cut + 1], ~m.there[cut + 1 :])))
        for m in made
    ]
    told = []
    for markets in (made, other):
        policy = Recorded(Ours(markets, DAY))
        replay(markets, [100, 180, 200, 300], DAY, policy)
        told.append({tick: modes for tick, modes in policy.chosen.items() if tick <= cut})
    assert told[0] == told[1] and len(told[0]) > 50


def test_history_before_the_window_is_used() -> None:
    """The same window after a market that lasts and after one that flickers is played otherwise."""
    window = "#" * 8 + "." * 4 + "#" * 20 + "." * 30
    chosen = []
    for past in ("#" * 288 + "." * 12, "#." * 150):
        made = market(past * 2 + window)
        policy = Recorded(Ours([made], DAY))
        replay([made], [600], DAY, policy)
        chosen.append(list(policy.chosen.values()))
    assert chosen[0] != chosen[1]


def test_hazards_go_from_the_prior_to_the_markets_own() -> None:
    flicker = History(market("##." * 400), FINE)
    prior = FINE.prior()
    empty = flicker.chain(0).hazard.reshape(FINE.shape)
    assert (empty / prior).min() > 0.4 and (empty / prior).max() < 3
    learnt = flicker.chain(1200).hazard.reshape(FINE.shape)
    assert (learnt[0, 1] > 0.8).all()  # the second tick up is the last one
    assert (learnt[0, 0] < 0.05).all()  # and the first never is
    assert (learnt[1, 0] > 0.8).all()


@given(bins=st.sampled_from([FINE, COARSE, Bins((600.0,), (0.65,))]), steps=st.integers(1, 3))
@settings(max_examples=9)
def test_a_chain_is_a_chain(bins: Bins, steps: int) -> None:
    chain = History(semi_markov(3, 900, 2, 1), bins).chain(700, steps)
    for matrix in (chain.matrix, chain.stays, chain.flips):
        assert matrix.min() >= 0 and matrix.sum(1) == pytest.approx(np.ones(bins.states))


@given(together=st.floats(0, 1))
@settings(max_examples=9)
def test_correlation_leaves_each_market_as_it_is(together: float) -> None:
    a, b = (History(semi_markov(seed, 900, 2, 1), COARSE).chain(800) for seed in (1, 2))
    world, n = TwoMarkets(a, b, together), COARSE.states
    eye = np.eye(n * n, dtype=np.float32)
    joint = np.empty_like(eye)
    world.ahead(eye, joint)
    assert joint.min() >= -1e-6
    cube = joint.reshape(n, n, n, n)
    assert cube.sum(3)[:, 0] == pytest.approx(a.matrix, abs=1e-5)
    assert cube.sum(2)[0] == pytest.approx(b.matrix, abs=1e-5)
    half = n // 2
    both_go = cube[:half, :half, half:, half:].sum((2, 3))
    apart = a.hazard[:half, None] * b.hazard[None, :half]
    assert (both_go >= apart - 1e-5).all() and (together < 0.1 or (both_go > 1.1 * apart).any())


# -------------------------------------------------------------------------------- the table


def one(marks: str) -> OneMarket:
    return OneMarket(History(market(marks), FINE).chain(len(marks)), 1)


def test_the_table_of_a_market_that_never_is_there() -> None:
    world = one("." * 4000)
    shape = Shape.of(DAY, 600.0)
    table = solve(world, shape, DAY)
    down = FINE.states - 1 - (FINE.shape[2] - 1)  # down for long, the lowest level
    n = 60
    slack = shape.starts  # 10 h left, the rest work that the sure rung does to the end
    work_ticks = math.ceil((n * 5 - slack) / 5)
    assert table[n, down, SURE, slack] == pytest.approx((work_ticks - 1) * 0.51, rel=0.02)


def test_the_table_is_the_best_of_all_choices() -> None:
    """Against an expectation written out in full, on a grid of few steps."""
    terms = Terms(1.0, 1.5, 0.2, 3.0, 1.0)
    world, shape = one("##.#...####." * 60), Shape.of(terms, 600.0)
    table = solve(world, shape, terms)
    states = world.up.shape[1]
    eye = np.eye(states, dtype=np.float32)
    moves = np.empty_like(eye)
    world.ahead(eye, moves)
    up, q, d = world.up[0], 5, shape.starts
    known: dict[tuple[int, int, int, int], float] = {}

    def before(n: int, k: int, mode: int, slack: int) -> float:
        if mode != IDLE and slack >= q * n:
            return 0.0
        if mode == FIRST_MARKET and not up[k]:
            mode = IDLE
        key = (n, k, mode, slack)
        if key not in known:
            options = []
            for new in (IDLE, SURE, FIRST_MARKET):
                cost = (0.0, 0.5, 1 / 6)[new]
                left = slack - (q if new == IDLE else 0 if new == mode else d)
                over = new != IDLE and left >= q * (n - 1)
                if new == FIRST_MARKET and (
                    not up[k] or (left < d and not (over and new == mode)) or left < 0
                ):
                    continue
                if (new == IDLE and left < d) or left < 0:
                    continue
                options.append(cost + after(n, k, new, left))
            short = 0.1 * max(q * n - slack, 0) + 20.0
            known[key] = min(options) if options else short
        return known[key]

    def after(n: int, k: int, mode: int, slack: int) -> float:
        if mode != IDLE and slack >= q * (n - 1):
            return 0.0
        to = np.flatnonzero(moves[k])
        return sum(float(moves[k, j]) * before(n - 1, int(j), mode, slack) for j in to)

    for k in (0, 2, 33, 36, 60):
        for mode in (IDLE, SURE, FIRST_MARKET):
            for slack in (d, 2 * d, shape.slacks - 4):
                assert table[6, k, mode, slack] == pytest.approx(after(6, k, mode, slack), abs=2e-3)


# -------------------------------------------------------------------------------- what it saves


def test_ours_is_cheaper_than_uniform_progress() -> None:
    terms = Terms(24, 28, 0.2, 3.06, 0.9731)
    ours, uniform = 0.0, 0.0
    for seed in range(3):
        made = semi_markov(seed, 1500, 2.5, 1.5)
        starts = list(range(200, 1300, 60))
        ours += replay([made], starts, terms, Ours([made], terms)).cost_usd.mean()
        uniform += replay([made], starts, terms, UniformProgress()).cost_usd.mean()
    assert ours < 0.97 * uniform


def test_two_unlike_markets_are_cheaper_than_the_better_one() -> None:
    terms = Terms(16, 18, 0.2, 3.06, 0.9731)
    pair = [semi_markov(seed, 900, 2, 2, name=f"m{seed}") for seed in (11, 12)]
    starts = list(range(150, 780, 30))
    alone = [replay([each], starts, terms, Ours([each], terms)).cost_usd.mean() for each in pair]
    both = replay(pair, starts, terms, Ours(pair, terms))
    assert both.cost_usd.mean() < 0.95 * min(alone) and not both.late.any()


def test_a_twin_market_adds_nothing_to_hop_for() -> None:
    terms = Terms(16, 18, 0.2, 3.06, 0.9731)
    made = semi_markov(5, 700, 3, 1)
    starts = list(range(150, 590, 40))
    alone = replay([made], starts, terms, Ours([made], terms))
    twins = replay([made, made], starts, terms, Ours([made, made], terms))
    assert twins.moves.mean() <= 1.5 * alone.moves.mean()
    assert twins.cost_usd.mean() <= 1.03 * alone.cost_usd.mean()


def test_spot_that_costs_more_than_on_demand_is_never_used() -> None:
    terms = Terms(8, 10, 0.2, 1.0, 1.5)
    made = market("#" * 80)
    played = replay([made], [0], terms, Ours([made], terms))
    assert played.cost_usd[0] == pytest.approx(50 / 6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((48, 48.1, 0.2, 3, 1), "too short by 0.1 h"),
        ((-1, 48, 0.2, 3, 1), "task_h is -1"),
        ((48, math.nan, 0.2, 3, 1), "deadline_h is nan"),
        ((48, 52, 0.2, 3, -1), "spot_usd_per_h is -1"),
    ],
)
def test_terms_are_judged(values: tuple[float, float, float, float, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Terms(*values)


def test_where_all_is_doubt_uniform_progress_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    made = semi_markov(8, 400, 2, 1)
    starts = list(range(0, 330, 30))

    def costs(policy: Policy) -> list[float]:
        return [float(usd) for usd in replay([made], starts, DAY, policy).cost_usd]

    uniform = costs(UniformProgress())
    assert costs(Ours([made], DAY)) != uniform
    monkeypatch.setattr(deadline_dp, "DOUBT", 1e9)
    assert costs(Ours([made], DAY)) == pytest.approx(uniform)


def test_of_three_markets_the_two_that_complete_each_other_are_planned() -> None:
    a = market("#####....." * 60, name="a")
    twin = market("####......" * 60, name="twin")
    other = market("......####" * 60, name="other")
    terms = Terms(4, 5, 0.2, 3.06, 0.9731)
    seen: list[tuple[int, ...]] = []

    class Watched(Ours):
        def choose(self, view: View) -> Ints:
            modes = super().choose(view)
            assert self._plan is not None
            seen.append(self._plan.slots)
            return modes

    replay([twin, a, other], [500], terms, Watched([twin, a, other], terms))
    assert set(seen) == {(1, 2)}
