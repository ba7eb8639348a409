"""The cheapest run with the whole future known: equal to trying everything, and below every rule."""

from __future__ import annotations

from functools import cache
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.clairvoyant import least_usd
from tenure.plan.deadline import Greedy, Market, OnDemand, Policy, Terms, UniformProgress, replay

GAP_S = 600.0
JOB = Terms(
    task_h=1.0, deadline_h=2.0, overhead_h=0.25, on_demand_usd_per_h=3.0, spot_usd_per_h=1.0
)


def tried(markets: list[Market], start: int, job: Terms) -> float:
    """The least by the rules of a tick, every choice tried: work and overhead left in seconds."""

    @cache
    def least(tick: int, mode: int, work_s: float, over_s: float) -> float:
        if work_s <= 0:
            return 0.0
        if tick == job.ticks(GAP_S):
            return inf
        if mode >= 2 and not markets[mode - 2].there[start + tick]:
            mode, over_s = 0, 0.0
        found = least(tick + 1, 0, work_s, 0.0)
        for to in range(1, 2 + len(markets)):
            if to >= 2 and not markets[to - 2].there[start + tick]:
                continue
            rest = over_s if to == mode else job.overhead_s
            price = job.on_demand_usd_per_h if to == 1 else job.spot_usd_per_h
            done = min(max(GAP_S - rest, 0.0), work_s)
            found = min(
                found,
                price * GAP_S / 3600 + least(tick + 1, to, work_s - done, max(rest - GAP_S, 0.0)),
            )
        return found

    return least(0, 0, job.task_s, 0.0)


ups = st.lists(st.booleans(), min_size=14, max_size=14)


@settings(max_examples=60, deadline=None)
@given(st.lists(ups, min_size=1, max_size=2), st.sampled_from([0, 2]))
def test_it_is_what_trying_everything_finds(there: list[list[bool]], start: int) -> None:
    markets = [Market(f"m{n}", GAP_S, np.array(each)) for n, each in enumerate(there)]
    assert least_usd(markets, [start], JOB)[0] == pytest.approx(tried(markets, start, JOB))


@settings(max_examples=30, deadline=None)
@given(st.lists(ups, min_size=1, max_size=2))
def test_no_policy_costs_less(there: list[list[bool]]) -> None:
    markets = [Market(f"m{n}", GAP_S, np.array(each)) for n, each in enumerate(there)]
    starts = [0, 1, 2]
    least = least_usd(markets, starts, JOB)
    policies: list[Policy] = [Greedy(), UniformProgress(), OnDemand()]
    for policy in policies:
        assert (replay(markets, starts, JOB, policy).cost_usd >= least - 1e-9).all()


def test_times_without_a_common_unit_are_refused() -> None:
    market = Market("m", 0.5, np.ones(99_999, bool))
    with pytest.raises(ValueError, match="no whole number of seconds"):
        least_usd([market], [0], JOB)
