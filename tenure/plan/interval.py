"""How long to train between two snapshots, and when to take the last one.

A snapshot costs ``save_s`` of the loop; a machine that is lost takes with it what was done since the last.
Young (1974) and Daly (2006) balance the two for losses without memory. For any other law the balance is
found numerically: machines come one after the other, so by the renewal-reward theorem (Ross 2014, section
7.4) the useful part of all paid time is the work that an average life leaves in snapshots over the length of
an average life and its start. With a constant interval that sum is exact for any curve; with intervals by
age it is a dynamic program over age, for the hazard in bands (:func:`tenure.plan.survival.banded`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.plan.survival import Curve, check_wall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

#: CheckFreq's (Mohan et al. 2021) bound on what snapshots may take of the loop's time.
MOST_OVERHEAD = 0.035
#: Expected waste that keeping to this bound may cost, relative to the least.
_BOUND_WORTH = 0.01
#: An interval in use is kept while it wastes no more than this above the best one.
STEADY = 0.01
#: Snapshots of one life that are counted: beyond so many nothing changes an interval.
_MOST_SAVES = 200_000
_AGES, _TRIALS = 400, 48  # of the program over age
_ROUNDS = 12
_SEARCHED = 600  # intervals, before those around the best


@dataclass(frozen=True)
class Costs:
    """What goes with an interval: a snapshot's seconds of the loop, and what each machine costs beside work.

    ``start_s`` is paid before its claim and until a loss is noticed, ``load_s`` between its claim and its
    first step. ``notice_s`` before a loss the machine is told.
    """

    save_s: float
    start_s: float = 0.0
    load_s: float = 0.0
    notice_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start_s", "load_s", "notice_s"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a finite number, 0 or more")
        if not (math.isfinite(self.save_s) and self.save_s > 0):
            raise ValueError(
                f"a snapshot that takes {self.save_s} s; it must be a finite number above 0 "
                "(one that costs nothing is taken at each step)"
            )

    @property
    def told(self) -> bool:
        """Whether a snapshot fits into the notice, so that losses undo nothing."""
        return self.notice_s >= self.save_s


@dataclass(frozen=True)
class Interval:
    """Seconds of training between two snapshots, what that is expected to waste, and why."""

    interval_s: float
    waste: float  # seconds that are paid and useless, per useful second
    overhead: float  # seconds in snapshots per second in the loop
    reason: str


def young_s(save_s: float, between_s: float) -> float:
    """sqrt(2 C M): Young 1974. C is a snapshot's cost, M the mean time between losses.

    >>> young_s(10.0, 7200.0)
    379.4733192202055
    """
    _check_young(save_s, between_s)
    return math.sqrt(2 * save_s * between_s)


def daly_s(save_s: float, between_s: float) -> float:
    """Daly 2006, equation 37: sqrt(2 C M) (1 + x / 3 + x^2 / 9) - C with x = sqrt(C / 2M), M where C >= 2 M.

    >>> round(daly_s(10.0, 7200.0), 1), daly_s(100.0, 40.0)
    (372.8, 40.0)
    """
    _check_young(save_s, between_s)
    if save_s >= 2 * between_s:
        return between_s
    x = math.sqrt(save_s / (2 * between_s))
    return math.sqrt(2 * save_s * between_s) * (1 + x / 3 + x * x / 9) - save_s


def waste(curve: Curve, costs: Costs, interval_s: float) -> float:
    """Seconds paid and useless per useful second, with one interval for all ages; infinite if none is useful.

    (E[life] + start) / (interval * sum over j of S(load + j (interval + save))) - 1; a life that ends at its
    wall leaves what it did up to one snapshot before it.

    >>> from tenure.plan.survival import exponential
    >>> hourly, costs = exponential(1 / 3600), Costs(save_s=10.0, start_s=120.0)
    >>> [round(waste(hourly, costs, each), 3) for each in (60, 268, 1200)]
    [0.217, 0.114, 0.238]
    """
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise ValueError(f"an interval of {interval_s} s; it must be a finite number above 0")
    kept_s = _kept_s(curve, costs, interval_s)
    if kept_s <= 0:
        return math.inf
    return (curve.mean_s + costs.start_s) / kept_s - 1


def _kept_s(curve: Curve, costs: Costs, interval_s: float) -> float:
    """E[training seconds that one life leaves in snapshots]."""
    import numpy as np

    cycle = interval_s + costs.save_s
    count = int(min(max((curve.end_s - costs.load_s) / cycle, 0.0), _MOST_SAVES))
    if costs.told:  # all but the time of snapshots, the last one included
        until_s = math.inf if curve.wall_s is None else curve.wall_s
        return curve.area_s(costs.load_s + costs.save_s, until_s) * interval_s / cycle
    ends = costs.load_s + cycle * np.arange(1, count + 1, dtype=np.float64)
    kept = interval_s * float(curve.alive_many(ends).sum())
    if curve.wall_s is not None:
        kept += _at_wall_s(curve, costs, interval_s)
    return kept


def _at_wall_s(curve: Curve, costs: Costs, interval_s: float) -> float:
    """What the snapshot just before the wall adds to a life that gets there."""
    assert curve.wall_s is not None
    usable = curve.wall_s - costs.load_s - costs.save_s
    if usable <= 0:
        return 0.0
    cycle = interval_s + costs.save_s
    whole = math.floor((usable + costs.save_s) / cycle)
    rest = usable - whole * cycle
    return max(rest, 0.0) * math.exp(-curve.fallen(curve.wall_s))


def best(curve: Curve, costs: Costs, least_s: float = 0.0) -> Interval:
    """The interval of least expected waste for any hazard: a search over all, then around the best.

    ``curve`` in bands (:func:`tenure.plan.survival.banded`) is the one to plan with: for Kaplan and Meier's an
    interval may be best that merely ends before some of the ages at which somebody was lost.

    Kept to :data:`MOST_OVERHEAD` of the loop where that costs less than 1 % more waste; ``least_s`` is the
    shortest that the job allows (a step). Raises ValueError where no machine lives long enough to keep
    anything, which no interval mends.

    >>> from tenure.plan.survival import exponential
    >>> found = best(exponential(1 / 36_000), Costs(save_s=10.0, start_s=120.0))
    >>> 800 < found.interval_s < 900, found.overhead < 0.035
    (True, True)
    """
    import numpy as np

    between_s = curve.mean_s
    low = max(least_s, costs.save_s / 20, 1e-3)
    high = max(low * 2, curve.quantile_s(1 - 1e-3), 4 * young_s(costs.save_s, between_s))
    trials = np.geomspace(low, high, _SEARCHED)
    wastes = [waste(curve, costs, float(each)) for each in trials]
    at = int(np.argmin(wastes))
    if not math.isfinite(wastes[at]):
        raise ValueError(
            f"no machine here lives long enough to keep anything: a load of {costs.load_s:.0f} s and a "
            f"snapshot of {costs.save_s:.0f} s, and a mean life of {between_s:.0f} s"
        )
    # a curve with jumps has many hollows: the deepest three are searched, not the first alone
    near = [
        float(each)
        for start in np.argsort(wastes)[:3]
        for each in np.linspace(
            trials[max(start - 1, 0)], trials[min(start + 1, len(trials) - 1)], 41
        )
    ]
    found_s = min(near, key=lambda each: (waste(curve, costs, each), each))
    least = waste(curve, costs, found_s)
    bound_s = costs.save_s * (1 / MOST_OVERHEAD - 1)
    said = ""
    if found_s < bound_s:
        held = waste(curve, costs, bound_s)
        if held <= least * (1 + _BOUND_WORTH):
            found_s, least = bound_s, held
            said = f", kept to {100 * MOST_OVERHEAD:.1f} % of the loop"
        else:
            said = f": more than {100 * MOST_OVERHEAD:.1f} %, which these losses do not allow"
    overhead = costs.save_s / (found_s + costs.save_s)
    return Interval(
        found_s,
        least,
        overhead,
        f"machines last {between_s / 3600:.2f} h on average and a snapshot costs {costs.save_s:.3g} s: one "
        f"every {found_s:.0f} s wastes {100 * least:.1f} s per 100 useful ones, restarts included, and takes "
        f"{100 * overhead:.1f} % of the loop{said}",
    )


def revise(current_s: float, curve: Curve, costs: Costs, least_s: float = 0.0) -> Interval:
    """The interval to go on with, now that the hazard or a snapshot's cost is another one.

    The current one is kept while it wastes at most :data:`STEADY` more than the best: an optimum is flat,
    and an interval that follows every new estimate would say nothing to a reader.
    """
    found = best(curve, costs, least_s)
    now = waste(curve, costs, current_s)
    if now <= found.waste * (1 + STEADY):
        return Interval(
            current_s,
            now,
            costs.save_s / (current_s + costs.save_s),
            f"kept at {current_s:.0f} s: the best, {found.interval_s:.0f} s, would waste "
            f"{100 * found.waste:.1f} s per 100 useful ones, this one {100 * now:.1f}",
        )
    return Interval(
        found.interval_s, found.waste, found.overhead, f"from {current_s:.0f} s: {found.reason}"
    )


# ----------------------------------------------------------------------------------- by age


@dataclass(frozen=True)
class Schedule:
    """The interval to take at each age: what a hazard that changes with age asks for."""

    ages_s: tuple[float, ...]
    intervals_s: tuple[float, ...]  # to begin at each of those ages
    waste: float

    def at(self, age_s: float) -> float:
        """The interval that begins at an age, between those worked out on a line."""
        import numpy as np

        return float(np.interp(age_s, self.ages_s, self.intervals_s))


def schedule(curve: Curve, costs: Costs, least_s: float = 0.0) -> Schedule:
    """The intervals by age that keep most work of a life; ``curve`` is one in bands.

    W(a), the work that a machine of age a is yet expected to keep, is the most over tau of
    ``P(alive at a + tau + C | a) (tau + W(a + tau + C))``, worked out from the oldest age back; beyond it
    the hazard is the tail's. A tau that lies within the grid refers to ages that are not worked out yet:
    the rounds are repeated until nothing changes. Before a wall the last tau ends just before it. A notice
    is not looked at: where one is given, no interval is needed at all.
    """
    import numpy as np

    edge = math.inf if curve.wall_s is None else curve.wall_s * (1 - 1e-9)
    last = edge if curve.wall_s is not None else max(curve.knots_s[-1], 1.0) * 1.02
    first = min(costs.load_s, last)
    scale = young_s(costs.save_s, curve.mean_s)
    # ages: dense while young, where hazards fall; never sparser than the taus that they are for
    ages = np.unique(
        np.concatenate([first + np.geomspace(1e-3, 1, _AGES) * (last - first), [first]])
    )
    low = max(least_s, costs.save_s / 4)
    taus = np.geomspace(low, max(8 * scale, 4 * low), _TRIALS)
    tail = curve.rates_per_s[-1]
    beyond = _tail_work_s(tail, costs.save_s, taus) if curve.wall_s is None else 0.0
    ends = ages[:, None] + taus[None, :] + costs.save_s
    gains = np.broadcast_to(taus[None, :], ends.shape)
    if curve.wall_s is not None:  # what would pass the wall is cut to end with it
        gains = np.clip(np.where(ends > edge, edge - costs.save_s - ages[:, None], gains), 0, None)
        ends = np.minimum(ends, edge)
    survive = curve.alive_many(ends) / np.maximum(curve.alive_many(ages), 1e-300)[:, None]
    work = np.zeros(len(ages))
    for _ in range(_ROUNDS * len(ages)):
        later = np.interp(ends, ages, work)
        if curve.wall_s is None:
            later = np.where(ends > ages[-1], beyond, later)
        value = survive * (gains + later)
        new = value.max(axis=1)
        if np.max(np.abs(new - work)) <= 1e-6 * max(float(new.max()), 1.0):
            break
        work = new
    chosen = gains[np.arange(len(ages)), value.argmax(axis=1)]
    kept = float(work[0]) * curve.alive(first)
    wasted = (curve.mean_s + costs.start_s) / kept - 1 if kept > 0 else math.inf
    return Schedule(tuple(ages.tolist()), tuple(chosen.tolist()), wasted)


def _tail_work_s(rate: float, save_s: float, taus: Values) -> float:
    """What is kept of a life without memory: the most over tau of tau q / (1 - q), q to outlast a cycle."""
    import numpy as np

    passed = -np.expm1(-rate * (taus + save_s))
    return float((taus * (1 - passed) / passed).max())


# -------------------------------------------------------------------------------- the last one


@dataclass(frozen=True)
class Last:
    """When to begin the last snapshot of a machine, in seconds from now, and why."""

    in_s: float
    fits: bool
    reason: str


def before_wall(age_s: float, wall_s: float, save_s: float, step_s: float = 0.0) -> Last:
    """When to begin the snapshot that a known wall demands.

    As late as it can be: one snapshot of ``save_s`` (the longest that was seen, not the mean) and one step
    before the wall, since a snapshot is begun at a step boundary.

    >>> before_wall(3600.0, 43_200.0, save_s=60.0, step_s=2.0).in_s
    39538.0
    """
    check_wall(wall_s)
    _check_last(save_s, step_s)
    left = wall_s - age_s
    return _last(left, save_s, step_s, f"the machine ends in {left:.0f} s")


def on_notice(notice_s: float, save_s: float, step_s: float = 0.0) -> Last:
    """When to begin the last snapshot after a notice that the machine ends in ``notice_s``.

    >>> on_notice(120.0, save_s=20.0, step_s=1.0).in_s
    99.0
    >>> on_notice(5.0, save_s=20.0).fits
    False
    """
    _check_last(save_s, step_s)
    return _last(notice_s, save_s, step_s, f"a notice of {notice_s:.0f} s")


def skip_regular(
    unsaved_s: float, to_regular_s: float, last: Last, save_s: float, lost_per_s: float
) -> bool:
    """Whether a milestone that is due shortly before the last one is not worth its save.

    Taken, it guards the ``unsaved_s`` of training that it would hold against a loss before the last one,
    whose chance is ``lost_per_s`` times the time between the two.

    >>> soon = Last(60.0, True, "")
    >>> skip_regular(900.0, 30.0, soon, save_s=20.0, lost_per_s=1 / 36_000)
    True
    >>> skip_regular(900.0, 0.0, Last(3600.0, True, ""), save_s=20.0, lost_per_s=1 / 36_000)
    False
    """
    between_s = max(last.in_s - to_regular_s, 0.0)
    return lost_per_s * between_s * unsaved_s < save_s


def _last(left: float, save_s: float, step_s: float, why: str) -> Last:
    wait = left - save_s - step_s
    if wait >= 0:
        return Last(
            wait,
            True,
            f"{why}; a last snapshot takes {save_s:.0f} s and a step {step_s:.3g} s, so it begins in {wait:.0f} s",
        )
    return Last(
        0.0,
        left >= save_s,
        f"{why}, and a last snapshot takes {save_s:.0f} s: it begins at once"
        + ("" if left >= save_s else " and may not be done in time; nothing is lost by trying"),
    )


def _check_last(save_s: float, step_s: float) -> None:
    for name, value in (("save_s", save_s), ("step_s", step_s)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be a finite number, 0 or more")


def _check_young(save_s: float, between_s: float) -> None:
    for name, value in (("save_s", save_s), ("between_s", between_s)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be a finite number above 0")
