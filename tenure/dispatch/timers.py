"""How long to wait: for a claim, for a first step, for a step, and between two milestones.

Pure functions of what was observed; every answer comes with its reason in words. ``docs/timers.md``
has the formulas and what they reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tenure_protocol.patience import (
    MOST_K,
    Choice,
    Costs,
    Tail,
    best_k,
    check_costs,
    costs,
    first_silence_s,
)
from tenure_protocol.ratios import Ratios

ENOUGH_DELAYS = 20
PERCENTILE = 99
LEAST_WINDOW_S = 30.0  # a shorter one saves seconds, and a wrong one is a second bill
_FEW = 1.5  # times the longest, while there are too few delays for the percentile to be another one
_HOUR_S = 3600.0

__all__ = [
    "Choice",
    "Milestones",
    "best_k",
    "claim_window_s",
    "first_silence_s",
    "milestone_interval_s",
]


def claim_window_s(delays_s: Sequence[float], default_s: float = 600.0) -> tuple[float, str]:
    """How long a launch may take to claim its job, and why.

    ``delays_s`` are the seconds from launch to claim on this runner and card. Up to
    :data:`ENOUGH_DELAYS` of them the default holds; then their 99th percentile (nearest rank), times
    1.5 as long as that is merely the longest. Raises ValueError for a delay that is none.

    >>> claim_window_s([40.0] * 19)
    (600.0, 'only 19 start delays are known, 20 are needed: the default')
    >>> claim_window_s([40.0] * 19 + [60.0])
    (90.0, '1.5 times the longest of 20 start delays, 60.0 s')
    >>> claim_window_s([40.0] * 199 + [90.0])
    (40.0, 'the 99th percentile of 200 start delays')
    """
    for delay_s in delays_s:
        if not (math.isfinite(delay_s) and delay_s >= 0):
            raise ValueError(f"a start delay is {delay_s} s; it must be a finite number, 0 or more")
    count = len(delays_s)
    if count < ENOUGH_DELAYS:
        return (
            default_s,
            f"only {count} start delays are known, {ENOUGH_DELAYS} are needed: the default",
        )
    rank = -(-count * PERCENTILE // 100)
    found_s = sorted(delays_s)[rank - 1]
    reason = f"the {PERCENTILE}th percentile of {count} start delays"
    if rank == count:
        reason = f"{_FEW} times the longest of {count} start delays, {found_s:.1f} s"
        found_s *= _FEW
    if found_s < LEAST_WINDOW_S:
        return LEAST_WINDOW_S, f"{reason}, but at least {LEAST_WINDOW_S:.0f} s"
    return found_s, reason


@dataclass(frozen=True)
class Milestones:
    """Seconds of training between two milestones, and the K that goes with them."""

    interval_s: float
    k: int
    cost_s_per_h: float
    reason: str


def milestone_interval_s(
    ratios: Ratios,
    save_s: float,
    step_s: float,
    restart_s: float,
    death_per_h: float,
    prior: Ratios | None = None,
) -> Milestones:
    """The interval between milestones and the K that together cost least.

    Per hour of training, with f(K) false write-offs and d deaths::

        (d + f(K)) * (restart_s + interval_s / 2) + d * K * step_s + 3600 * save_s / interval_s

    For a given K the interval of least cost is Young's (1974), ``sqrt(2 * save_s * 3600 / (d + f(K)))``,
    with the false write-offs among the failures; it is kept to at most the mean time between
    failures (Daly 2006, section 3), and to at least a step and a save. Shorter intervals make errors
    cheaper, and cheaper errors make shorter leases worth it: so each K is tried with its own.

    >>> calm = Ratios()
    >>> calm.add_many([1.0, 1.01, 1.02, 1.03] * 500, median=1.01)
    >>> found = milestone_interval_s(calm, save_s=2, step_s=0.5, restart_s=300, death_per_h=0.05)
    >>> round(found.interval_s), found.k
    (537, 2)
    """
    check_costs(save_s=save_s, step_s=step_s, restart_s=restart_s, death_per_h=death_per_h)
    if death_per_h == 0:
        raise ValueError("death_per_h is 0; where nothing ever dies no milestone is worth its save")
    tail = Tail(ratios, prior)
    choices = (
        list(costs(tail, step_s, death_per_h))
        if tail.known
        else [Costs(MOST_K, 0.0, death_per_h * MOST_K * step_s)]
    )
    return min(
        (_milestones(each, save_s, step_s, restart_s, death_per_h) for each in choices),
        key=lambda found: (found.cost_s_per_h, found.k),
    )


def _milestones(
    of_k: Costs, save_s: float, step_s: float, restart_s: float, death_per_h: float
) -> Milestones:
    failures_per_h = death_per_h + of_k.false_per_h
    between_s = _HOUR_S / failures_per_h
    interval_s = max(min(math.sqrt(2 * save_s * between_s), between_s), step_s, save_s)
    cost = (
        failures_per_h * (restart_s + interval_s / 2)
        + of_k.lease_s_per_h
        + _HOUR_S * save_s / interval_s
    )
    return Milestones(
        interval_s,
        of_k.k,
        cost,
        f"{death_per_h:.3g} deaths and {of_k.false_per_h:.1e} false write-offs an hour at K {of_k.k}, "
        f"a save of {save_s:.3g} s: one milestone in {interval_s:.0f} s loses {cost:.3g} s an hour, "
        "restarts included",
    )
