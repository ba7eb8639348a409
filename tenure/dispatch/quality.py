"""Stay or move: what an attempt has shown, against what is usual, and what is left here and elsewhere.

Quality is ``FLOPs in artifacts / (peak * paid seconds)`` (DESIGN section 8), in two factors: speed, the
work done per second in steps, and the useful share, the seconds in steps per second paid for after the
start. On one card and dtype the peak cancels, so speeds are compared as they are; it counts where one
card's speed is predicted from another's. Work of different kinds is never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from tenure_protocol.records import Observation

#: Below this part of the median an attempt is slow, until there are enough of them to know the spread.
FEW_FLOOR = 0.7
ENOUGH = 8  # observations from which on the median absolute deviation is used
#: Deviations below the median at which an attempt is slow; 1.4826 MAD estimate one standard deviation of
#: a normal distribution.
_DEVIATIONS, _MAD_TO_SIGMA = 3.0, 1.4826
#: The floor by the deviation stays within these parts of the median: three equal hosts prove no exactness,
#: and a rung whose hosts vary tenfold has no usual speed.
_LOWEST_FLOOR, _HIGHEST_FLOOR = 0.5, 0.9
#: A move must win by this factor, and by more for each move that a job has behind it.
MARGIN, MARGIN_GROWTH = 1.15, 1.3
BACK_MARGIN = (
    1.5  # where nothing is wrong with the machine: the next one may be lost or never start
)
LEAST_STEPS = 20  # of an attempt before it is judged
_LEAST_SHARE = 0.02  # of paid time in steps: below it the estimate of what is left has no meaning
#: Until starts of a rung are observed.
UNKNOWN_START_S = 300.0
#: Back to a preferred rung whose price is of another currency: what is left here must take so many times
#: its start, and there at most so many times as long as here.
_STARTS_LEFT, _SLOWER_AT_MOST = 10.0, 3.0


@dataclass(frozen=True)
class Usual:
    """What the observations of one kind of work on one card have in common."""

    count: int
    per_s: float  # median of the work done per second in steps
    mad_per_s: float
    share: float  # median of the seconds in steps per second paid for after the start
    where: str  # the card and the runner, in words

    @property
    def floor(self) -> float:
        """The part of the usual speed below which an attempt is slow.

        >>> Usual(3, 100.0, 1.0, 0.9, "").floor, round(Usual(9, 100.0, 5.0, 0.9, "").floor, 3)
        (0.7, 0.778)
        """
        if self.count < ENOUGH:
            return FEW_FLOOR
        spread = _DEVIATIONS * _MAD_TO_SIGMA * self.mad_per_s / self.per_s
        return min(max(1.0 - spread, _LOWEST_FLOOR), _HIGHEST_FLOOR)


@dataclass(frozen=True)
class Pace:
    """What the attempt that holds a job has shown up to its last milestone."""

    rung: str
    work: str  # what ``done`` and ``left`` count
    done: float
    busy_s: float
    paid_s: float  # since its launch was announced
    start_s: float  # of these, until its claim
    steps: int
    left: float  # work to the end of the job
    guessed: bool = False  # nobody told how long the job is: as much is left as was done

    @property
    def per_s(self) -> float:
        """Work done per second in steps."""
        return self.done / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def share(self) -> float:
        """Seconds in steps per second paid for after the start."""
        after_s = self.paid_s - self.start_s
        return min(max(self.busy_s / after_s, _LEAST_SHARE), 1.0) if after_s > 0 else 1.0

    @property
    def left_s(self) -> float | None:
        """Seconds that what is left takes at this pace; ``None`` where nothing was measured."""
        return takes_s(self.left, self.per_s, self.share) if self.per_s > 0 else None


@dataclass(frozen=True)
class Option:
    """A rung where a job could go on, and what is expected of it."""

    rung: str
    per_s: float
    share: float
    start_s: float
    per_h: float  # price in ``currency``; 0: free
    currency: str
    predicted: bool = False  # nobody has done this work there: by the peaks of the cards

    def takes_s(self, left: float) -> float:
        """Seconds that so much work takes there, once it has started."""
        return takes_s(left, self.per_s, self.share)


def takes_s(left: float, per_s: float, share: float) -> float:
    """Seconds that work takes at a speed in steps and a useful share; infinite at no speed.

    >>> takes_s(100.0, 10.0, 0.5), takes_s(1.0, 0.0, 1.0), takes_s(1.0, 1e-200, 1e-200)
    (20.0, inf, inf)
    """
    useful_per_s = per_s * share  # 0 where both are next to nothing
    return left / useful_per_s if useful_per_s > 0 else float("inf")


class Shown(NamedTuple):
    """What a dispatcher can say of a job and the attempt that holds it, as far as it is known."""

    work: float | None = None  # FLOPs left, by all its cards together
    pace: Pace | None = None  # None: it may not be judged
    usual: Usual | None = None
    options: Mapping[str, Option] = {}  # as of any tuple, nobody writes to it


NOTHING_SHOWN = Shown()


@dataclass(frozen=True)
class Stay:
    """The attempt goes on, and why."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """The holder is asked to yield, and the job goes on on another machine."""

    rung: str
    reason: str
    slow: bool = True  # it is slower than is usual where it is


def usual(rows: Iterable[Observation], where: str) -> Usual | None:
    """The common part of observations that have work to show; ``None`` where none has."""
    shown = [row for row in rows if row.busy_s > 0 and row.done > 0]
    if not shown:
        return None
    speeds = [row.done / row.busy_s for row in shown]
    middle = median(speeds)
    shares = [
        row.busy_s / after for row in shown if (after := row.paid_s - (row.start_s or 0.0)) > 0
    ]
    return Usual(
        len(shown),
        middle,
        median(abs(speed - middle) for speed in speeds),
        min(max(median(shares), _LEAST_SHARE), 1.0) if shares else 1.0,
        where,
    )


def judge(
    pace: Pace,
    common: Usual | None,
    here: Option,
    earlier: Sequence[Option],
    others: Sequence[Option],
    moves: int,
) -> Stay | Leave:
    """Whether an attempt goes on where it is.

    ``here`` is what its own rung costs, ``earlier`` are the rungs that the user prefers to it, ``others``
    another machine of its own and the rungs after it: those that can be had now, in the user's order. An
    unusually slow attempt leaves for the first that is better by the margin; one that is as fast as is
    usual leaves only for a rung that is preferred and saves more than the move costs. The margin grows
    with the ``moves`` that the job has behind it.
    """
    if pace.steps < LEAST_STEPS:
        return Stay(f"{pace.steps} of {LEAST_STEPS} steps are measured")
    slow = common is not None and pace.per_s < common.floor * common.per_s
    margin = (MARGIN if slow else BACK_MARGIN) * MARGIN_GROWTH**moves
    words = speed_words(pace, common)
    reachable = [*earlier, *(others if slow else [])]
    stay = _Cost.of(takes_s(pace.left, pace.per_s, pace.share), here)
    for option in reachable:
        cost = _Cost.of(option.start_s + option.takes_s(pace.left), option)
        if stay.over(cost) > margin or (
            option in earlier and _preferable(stay, cost, option, margin)
        ):
            return Leave(option.rung, f"{words}; {_why(pace, stay, cost, option)}", slow)
    kept = f"; nothing that can be had now is better by {margin - 1:.0%}" if slow else ""
    return Stay(words + kept)


def _preferable(stay: _Cost, cost: _Cost, option: Option, margin: float) -> bool:
    """Whether a rung that the user prefers and that is paid otherwise is worth a move.

    No sum says so, since nobody sells one currency for the other: the order of the rungs does, as long
    as the move itself is small against what is left.
    """
    if stay.money == 0 or (cost.money > 0 and cost.currency == stay.currency):
        return False
    small = stay.time_s > _STARTS_LEFT * margin * option.start_s
    return small and cost.time_s < _SLOWER_AT_MOST * stay.time_s


def _why(pace: Pace, stay: _Cost, cost: _Cost, option: Option) -> str:
    another = "another machine of rung" if option.rung == pace.rung else "rung"
    guess = ", as much as it has done," if pace.guessed else ""
    peaks = " by the peaks of the cards" if option.predicted else ""
    return (
        f"what is left{guess} takes {stay.words()} here and {cost.words()} on {another} {option.rung}"
        f"{peaks}, {option.start_s:.0f} s of them to start"
    )


def speed_words(pace: Pace, common: Usual | None) -> str:
    """The speed of an attempt against the usual one, in words and numbers."""
    if common is None:
        return f"its speed is {_rate(pace.per_s, pace.work)}, and nothing of the kind is known to compare"
    return (
        f"its speed is {pace.per_s / common.per_s:.2f} of the usual {_rate(common.per_s, pace.work)} on "
        f"{common.where} ({common.count} seen, slow below {common.floor:.2f})"
    )


def _rate(per_s: float, work: str) -> str:
    """
    >>> _rate(1.5e12, "FLOPs of bf16"), _rate(2.0, "steps of vol/ab12")
    ('1.5e+12 FLOPs of bf16 a second', '2 steps of vol/ab12 a second')
    """
    return f"{per_s:.3g} {work} a second"


@dataclass(frozen=True)
class _Cost:
    """What a way to the end of a job takes."""

    time_s: float
    money: float
    currency: str

    @classmethod
    def of(cls, time_s: float, at: Option) -> _Cost:
        return cls(time_s, at.per_h * time_s / 3600.0, at.currency)

    def over(self, other: _Cost) -> float:
        """How many times as much as the other: in money of one currency, else in time.

        Sums are never compared across currencies. What is free costs less than what is not.
        """
        if self.money == 0 and other.money > 0:
            return 0.0
        if self.currency == other.currency and other.money > 0:
            return self.money / other.money
        return self.time_s / other.time_s if other.time_s > 0 else float("inf")

    def words(self) -> str:
        hours = f"{self.time_s / 3600.0:.1f} h" if self.time_s >= 360.0 else f"{self.time_s:.0f} s"
        return f"{hours} and {self.money:.2f} {self.currency}" if self.money > 0 else hours
