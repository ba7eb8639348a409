"""What a rung promises a job: its :class:`~tenure.plan.advise.Prospect`, made of what is known of the rung.

Pure. The dispatcher's planner and the rehearsal both ask :func:`promised`, so that what is rehearsed is what
is done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tenure.dispatch.rows import MOST_SECONDS
from tenure.plan.advise import Prospect
from tenure.plan.survival import Curve

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Offer:
    """What is known of a rung, whoever comes."""

    rung: str
    curve: Curve  # of lives from the claim, with the wall where one is known
    start_s: float
    usd_per_h: float  # of a machine; what is paid otherwise at its worth in dollars
    on_demand: bool
    in_usd: bool  # nobody knows when credits end that no platform tells: they are not counted on
    slots: int  # machines that it can be at one time


def promised(
    offer: Offer, run_s: float, milestone_s: float, age_s: float = 0.0, quota_h: float | None = None
) -> Prospect:
    """What a rung does with work of ``run_s`` there, with milestones so far apart.

    ``age_s`` is that of the machine that the job holds there; 0: it would get a new one. ``quota_h`` are the
    hours that its quota has left; None: no platform tells any.

    >>> from tenure.plan.survival import exponential
    >>> spot = Offer("spot", exponential(0.1 / 3600), 300.0, 0.3, False, True, 2)
    >>> round(promised(spot, 36_000.0, 1800.0).takes_s)
    37500
    >>> sure = Offer("dear", exponential(1e-12), 300.0, 2.6, True, True, 1)
    >>> [promised(sure, 36_000.0, 1800.0, quota_h=each).sure for each in (None, 9.0, 11.0)]
    [True, False, True]
    """
    run_s = min(run_s, 2.0 * MOST_SECONDS)
    death_per_h = loss_per_h(offer.curve, age_s, run_s)
    if offer.curve.wall_s and run_s <= MOST_SECONDS:  # it goes on after each with another start
        run_s += run_s // offer.curve.wall_s * offer.start_s
    sure = offer.on_demand and lasts(offer.in_usd, run_s, quota_h)
    return Prospect(
        offer.rung, run_s, offer.start_s, offer.usd_per_h, death_per_h, milestone_s, sure, max(1, offer.slots)
    )  # fmt: skip


def lasts(in_usd: bool, run_s: float, quota_h: float | None) -> bool:
    """Whether what pays for a rung is known to last for a run.

    >>> lasts(True, 3600.0, None), lasts(False, 3600.0, None), lasts(False, 3600.0, 2.0)
    (True, False, True)
    """
    return in_usd if quota_h is None else quota_h * _HOUR_S >= run_s


def loss_per_h(curve: Curve, age_s: float, run_s: float) -> float:
    """Losses per hour of a machine of this age, while it runs for so long: losses over hours lived.

    ``(S(a) - S(b)) / integral of S from a to b``, the rate of a market in which every machine is given up after
    such a run. Its wall is none of them: what it costs is known.

    >>> from tenure.plan.survival import Life, curve, exponential
    >>> round(loss_per_h(exponential(0.1 / 3600), 0.0, 36_000.0), 6)
    0.1
    >>> old_last = curve([Life(900.0, True)] * 30 + [Life(90_000.0, True)] * 30)
    >>> loss_per_h(old_last, 0.0, 3600.0) > 10 * loss_per_h(old_last, 3600.0, 3600.0)
    True
    """
    end_s = age_s + max(run_s, 1.0)
    if curve.wall_s is not None:
        end_s = max(min(end_s, curve.wall_s), age_s + 1.0)
    area_s = curve.area_s(age_s, end_s)
    if area_s <= 0:  # nobody was seen to become so old
        return _HOUR_S * curve.rates_per_s[-1]
    lost = math.exp(-curve.fallen(age_s)) - math.exp(-curve.fallen(end_s))
    return _HOUR_S * lost / area_s
