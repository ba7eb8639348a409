"""The cheapest run of a job with a deadline on spot markets whose whole future is known: no rule costs less.

A dynamic program over ticks, the mode and the slack (time left less work left, the overhead of a start counted as
work when it begins). It is exact under the rules of :mod:`tenure.plan.deadline` where the tick, the overhead,
the task and the deadline are whole multiples of a common unit: nobody who knows the future starts a machine that
is lost, or given up, before its overhead is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tenure.plan.deadline import Market, Terms, there_of

Costs = NDArray[np.float64]


def least_usd(markets: Sequence[Market], starts: Sequence[int], terms: Terms) -> Costs:
    """Dollars of the cheapest run of each window, shape (windows,); ValueError where no unit divides all times.

    >>> up = Market("up", 600.0, np.ones(20, bool))
    >>> terms = Terms(task_h=1.0, deadline_h=3.0, overhead_h=1 / 6, on_demand_usd_per_h=3.0, spot_usd_per_h=0.6)
    >>> least_usd([up], [0], terms).round(3)  # seven ticks on spot
    array([0.7])
    >>> gone = Market("gone", 600.0, np.zeros(20, bool))
    >>> least_usd([gone], [0], terms).round(3)
    array([3.5])
    """
    gap_s = markets[0].gap_s
    unit_s = math.gcd(
        *(round(each) for each in (gap_s, terms.overhead_s, terms.task_s, terms.deadline_s))
    )
    for name, value in (("tick", gap_s), ("overhead", terms.overhead_s), ("task", terms.task_s)):
        if abs(value - round(value)) > 1e-6:
            raise ValueError(f"a {name} of {value} s is no whole number of seconds")
    gap, over = (round(each / unit_s) for each in (gap_s, terms.overhead_s))
    slack, left = (
        round(each / unit_s) for each in (terms.deadline_s - terms.task_s, terms.deadline_s)
    )
    ticks = terms.ticks(gap_s)
    there = there_of(markets)
    first = np.asarray(starts, dtype=np.int64)
    modes, size = 2 + len(markets), slack + 1
    price = (
        np.array([terms.on_demand_usd_per_h] + [terms.spot_usd_per_h] * len(markets)) * gap_s / 3600
    )
    value = np.full((len(first), modes, size), math.inf)
    value[:, :, max(left - ticks * gap, 0) :] = 0.0
    for tick in range(ticks - 1, -1, -1):
        up = np.concatenate([np.ones((len(first), 1), bool), there[:, first + tick].T], axis=1)
        run = value[:, 1:] + np.where(up, price, math.inf)[:, :, None]  # on a machine at this tick
        new = np.full_like(value, math.inf)
        new[:, 0, gap:] = value[:, 0, :-gap] if gap else value[:, 0]
        begun = np.min(run, axis=1)
        new[:, 0, over:] = np.minimum(new[:, 0, over:], begun[:, : size - over])
        for mode in range(1, modes):
            new[:, mode] = np.minimum(new[:, 0], run[:, mode - 1])
        new[:, :, max(left - tick * gap, 0) :] = 0.0  # the work is done
        value = new
    return np.asarray(value[:, 0, slack])
