"""When a job will be done, what that costs, and how well such predictions held.

ETA = work left / throughput + starts and restarts + snapshots + work that losses undo. The last three
depend on each other, so a job is played a number of times, life after life: a life is drawn from the
survival curve of its rung, a speed from the throughput's law, a start from the delays that were seen.
Work counts when a snapshot holds it; what a lost machine did since its last one is done again. The draws
come from a seed that is passed in, and equal seeds draw equal lives whatever the work, so that two
predictions differ by what they predict and not by luck.

What was predicted is kept as nine quantiles and judged by the outcome: coverage by decile, and the
pinball loss (Koenker and Bassett 1978), whose mean over many levels is half the CRPS (Gneiting and
Raftery 2007, section 4.2).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from tenure.plan.amdahl import Phases
from tenure.plan.survival import Curve
from tenure.plan.throughput import Throughput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]
    Indices = NDArray[np.intp]

DRAWS = 1_000
#: A job that is not done after so long, or so many machines, is said never to be.
HORIZON_S = 10 * 365.25 * 86_400.0
MOST_LIVES = 2_000
#: The quantiles of a prediction that are kept and scored.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
#: Predictions with an outcome before a table of them says anything.
ENOUGH_SCORES = 20


@dataclass(frozen=True)
class Overheads:
    """What a job loses beside its work, on one rung.

    ``starts_s`` are delays from launch to claim, as seen (a single one where it is assumed); ``load_s`` goes
    by from the claim to the first step; a snapshot stops the loop for ``save_s`` every ``interval_s`` of
    training; a loss is noticed after ``silence_s``, and ``notice_s`` before it the machine is told.
    """

    starts_s: tuple[float, ...]
    load_s: float = 0.0
    save_s: float = 0.0
    interval_s: float = math.inf
    silence_s: float = 0.0
    notice_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.starts_s:
            raise ValueError("no start delay is given; one that is assumed will do")
        named = {
            name: getattr(self, name) for name in ("load_s", "save_s", "silence_s", "notice_s")
        }
        for name, value in [*named.items(), *(("starts_s", each) for each in self.starts_s)]:
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a finite number, 0 or more")
        if not self.interval_s > 0:
            raise ValueError(f"interval_s is {self.interval_s}; it must be above 0")


@dataclass(frozen=True)
class Running:
    """A machine that holds the job already."""

    age_s: float  # since its claim
    unsaved_s: float = 0.0  # in steps since its last milestone; more than an interval counts as one


@dataclass(frozen=True)
class Forecast:
    """The draws of one prediction: seconds from now to the end, and paid for, both in rising order."""

    finish_s: tuple[float, ...]
    paid_s: tuple[float, ...]
    phases: Phases  # means over the draws that end
    machines: float  # mean number of them, the running one included
    unscathed: float  # the part of the draws in which no work was done twice
    reason: str

    @property
    def mean_s(self) -> float:
        """The ETA; infinite where some draws never end."""
        return fmean(self.finish_s)

    @property
    def paid_h(self) -> float:
        """Mean hours that machines are paid for."""
        return fmean(self.paid_s) / 3600.0

    def quantile_s(self, level: float) -> float:
        """The time by which it is done with this chance."""
        if not 0 < level < 1:
            raise ValueError(f"a level of {level}; it lies between 0 and 1")
        return self.finish_s[math.ceil(level * len(self.finish_s)) - 1]

    def interval_s(self, level: float = 0.8) -> tuple[float, float]:
        """The time between whose ends it is done with this chance."""
        return self.quantile_s(0.5 - level / 2), self.quantile_s(0.5 + level / 2)

    def on_time(self, deadline_s: float) -> float:
        """P(done within so many seconds from now)."""
        return bisect.bisect_right(self.finish_s, deadline_s) / len(self.finish_s)

    @property
    def quantiles_s(self) -> tuple[float, ...]:
        """At :data:`LEVELS`, cut to the horizon: what is stored and scored."""
        return tuple(min(self.quantile_s(level), HORIZON_S) for level in LEVELS)


def forecast(
    left: float,
    throughput: Throughput,
    curve: Curve,
    overheads: Overheads,
    cards: int = 1,
    running: Running | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    most_lives: int = MOST_LIVES,
) -> Forecast:
    """Play what is left of a job ``draws`` times. ``left`` is work that no milestone holds, in units.

    On a known wall, and with a notice that is as long as a snapshot takes, a last milestone is taken, so
    that nothing is lost there but its time. Raises ValueError for work that is none.

    >>> from tenure.plan.survival import exponential
    >>> from tenure.plan.throughput import known
    >>> calm = forecast(36_000, known(10, 0.9), exponential(1e-9), Overheads((60.0,), 30.0, 10.0, 600.0))
    >>> round(calm.mean_s, 6)  # 3600 s of work, a start, loading, six snapshots
    3750.0
    >>> spot = forecast(36_000, known(10, 0.9), exponential(1 / 3600), Overheads((60.0,), 30.0, 10.0, 600.0))
    >>> 4000 < spot.mean_s < 5500, spot.on_time(3749.0)
    (True, 0.0)
    """
    import numpy as np

    if not (math.isfinite(left) and left >= 0):
        raise ValueError(f"the work left is {left}; it must be a finite number, 0 or more")
    if draws < 1:
        raise ValueError(f"{draws} draws; there is at least 1")
    rng = np.random.default_rng(seed)
    play = _Play(draws, overheads, curve)
    play.need(left / _speeds(throughput, cards, draws, rng))
    delays = np.asarray(overheads.starts_s)
    for number in range(most_lives):
        if not play.open.any():
            break
        gone = rng.standard_exponential(draws)
        starts = delays[rng.integers(0, len(delays), draws)]
        play.live(gone, starts, running if number == 0 else None)
    return play.result(throughput)


def _speeds(throughput: Throughput, cards: int, draws: int, rng: np.random.Generator) -> Values:
    """Units of work per second of each draw: one machine's, every part of the law hit evenly."""
    import numpy as np
    from scipy import special

    scale = throughput.log_sd(cards)
    middle = math.log(throughput.per_s(cards))
    if scale == 0.0:
        return np.full(draws, math.exp(middle))
    strata = (rng.permutation(draws) + 0.5) / draws
    return np.exp(middle + scale * np.asarray(special.stdtrit(throughput.freedom, strata)))


class _Play:
    """All draws of one forecast, one life of each at a time."""

    def __init__(self, draws: int, overheads: Overheads, curve: Curve) -> None:
        import numpy as np

        self._o, self._curve = overheads, curve
        self._left = np.zeros(draws)  # seconds of training that no milestone holds
        self._clock = np.zeros(draws)
        self._paid = np.zeros(draws)
        self._parts = {
            name: np.zeros(draws) for name in ("start", "again", "save", "twice", "work")
        }
        self._lives = np.zeros(draws)
        self.open = np.ones(draws, dtype=bool)

    def need(self, seconds: Values) -> None:
        """How long the work takes on each draw's machine; none left is done at once."""
        self._left, self._parts["work"] = seconds.copy(), seconds.copy()
        self.open = seconds > 0

    def live(self, gone: Values, starts: Values, running: Running | None) -> None:
        """One machine for each draw that still has work, from its launch to its end or the job's."""
        import numpy as np

        o, open_ones = self._o, np.flatnonzero(self.open)
        if running is None:
            start, load, begun, age = starts[open_ones], o.load_s, 0.0, 0.0
        else:
            # a machine that loads still is loaded after load_s of age
            start, load = np.zeros(len(open_ones)), max(0.0, o.load_s - running.age_s)
            begun, age = running.unsaved_s, running.age_s
        left = self._left[open_ones]
        reached = 0.0 if running is None else self._curve.fallen(age)
        life = np.maximum(self._curve.ages_s(reached + gone[open_ones]) - age, 0.0)
        usable = life - load
        whole = np.minimum(min(begun, o.interval_s), left)
        saving = np.maximum(np.ceil(left / o.interval_s), 1.0) * o.save_s  # one of them at the end
        need = left - whole + saving
        ends = usable >= need
        self._end(open_ones[ends], (start + load)[ends], need[ends], saving[ends], running)
        if not ends.all():
            lost = ~ends
            self._lose(open_ones[lost], start[lost], load, life[lost], whole[lost], running)
        self.open[open_ones] = ~ends & (self._clock[open_ones] < HORIZON_S)
        self._clock[open_ones[~ends & ~self.open[open_ones]]] = math.inf

    def _end(
        self, which: Indices, begin: Values, need: Values, saving: Values, running: Running | None
    ) -> None:
        took = begin + need
        self._clock[which] += took
        self._paid[which] += took
        self._lives[which] += 1
        self._parts["save"][which] += saving
        self._note_start(which, begin, running)
        self._left[which] = 0.0

    def _lose(
        self,
        which: Indices,
        start: Values,
        load: float,
        life: Values,
        begun: Values,
        running: Running | None,
    ) -> None:
        import numpy as np

        o = self._o
        left, usable = self._left[which], np.maximum(life - load, 0.0)
        wall = self._curve.wall_s
        age = running.age_s if running else 0.0
        told = np.full(len(life), o.notice_s >= o.save_s and o.notice_s > 0)
        if wall is not None:
            told |= life + age >= wall * (1 - 1e-12)
        kept, done, saved_s = _progress(usable, begun, o.interval_s, o.save_s)
        saved_s = saved_s + np.maximum(done - left, 0.0)
        silent = np.full(len(life), o.silence_s)
        if told.any():
            last, last_s = _progress_last(usable, begun, o.interval_s, o.save_s)
            kept, saved_s = np.where(told, last, kept), np.where(told, last_s, saved_s)
            silent[told] = 0.0
        kept = np.minimum(kept, left)
        took = start + life + silent
        self._clock[which] += took
        self._paid[which] += took
        self._lives[which] += 1
        self._parts["save"][which] += saved_s
        self._parts["twice"][which] += np.maximum(usable + begun - kept - saved_s, 0.0)
        self._parts["again"][which] += silent
        self._note_start(which, start + np.minimum(load, life), running)
        self._left[which] = left - kept

    def _note_start(self, which: Indices, took: Values, running: Running | None) -> None:
        """All draws that are open have had equally many machines: the first one's start is the job's own."""
        first = running is None and len(which) > 0 and self._lives[which[0]] == 1
        self._parts["start" if first else "again"][which] += took

    def result(self, throughput: Throughput) -> Forecast:
        """What all draws came to."""
        import numpy as np

        self._clock[self.open] = math.inf
        ended = np.isfinite(self._clock)
        number = max(int(ended.sum()), 1)
        mean = {name: float(part[ended].sum()) / number for name, part in self._parts.items()}
        phases = Phases(
            mean["work"] or 1e-9,
            start_s=mean["start"],
            restart_s=mean["again"] + mean["twice"],
            checkpoint_s=mean["save"],
        )
        lives = float(self._lives.mean())
        never = "" if ended.all() else f"; {100 * (1 - ended.mean()):.0f} % of the draws never end"
        reason = (
            f"{mean['work']:.0f} s of work at {throughput.s:.3g} a second on one card, "
            f"{mean['start']:.0f} s to start, {mean['save']:.0f} s of snapshots, {mean['again']:.0f} s to start "
            f"again and {mean['twice']:.0f} s lost with machines, {lives:.1f} of them on average{never}"
        )
        return Forecast(
            tuple(np.sort(self._clock).tolist()),
            tuple(np.sort(np.where(ended, self._paid, math.inf)).tolist()),
            phases,
            lives,
            float((self._parts["twice"] < 1e-3).mean()),
            reason,
        )


def _progress(
    usable: Values, begun: Values, interval_s: float, save_s: float
) -> tuple[Values, Values, Values]:
    """Training seconds that milestones hold after so much time in the loop, all that was done, and saving."""
    import numpy as np

    if not math.isfinite(interval_s):
        return np.zeros_like(usable), begun + usable, np.zeros_like(usable)
    cycle = interval_s + save_s
    at = usable + begun
    number = np.floor(at / cycle)
    inside = np.minimum(at - number * cycle, interval_s)
    saving = number * save_s + np.maximum(at - number * cycle - interval_s, 0.0)
    return number * interval_s, number * interval_s + inside, saving


def _progress_last(
    usable: Values, begun: Values, interval_s: float, save_s: float
) -> tuple[Values, Values]:
    """Training seconds held where a last snapshot is taken just in time, and saving."""
    import numpy as np

    _, done, saved_s = _progress(np.maximum(usable - save_s, 0.0), begun, interval_s, save_s)
    fits = usable >= save_s
    return np.where(fits, done, 0.0), saved_s + np.where(fits, save_s, 0.0)


# -------------------------------------------------------------------------------- scoring


@dataclass(frozen=True)
class Score:
    """How one prediction compares with what happened."""

    decile: (
        int  # 1 to 10: between which quantiles the outcome fell; each is as likely if all is right
    )
    pinball_s: float  # mean over LEVELS
    relative: float  # outcome / median - 1: above 0 it took longer than was said


def score(quantiles_s: Sequence[float], actual_s: float) -> Score:
    """Judge nine quantiles by the time that it took. Raises ValueError for other than nine, or falling ones.

    >>> score([10, 20, 30, 40, 50, 60, 70, 80, 90], 55.0)
    Score(decile=6, pinball_s=4.722222222222222, relative=0.10000000000000009)
    """
    if len(quantiles_s) != len(LEVELS) or list(quantiles_s) != sorted(quantiles_s):
        raise ValueError(f"a prediction has {len(LEVELS)} quantiles that do not fall")
    if not (math.isfinite(actual_s) and actual_s >= 0):
        raise ValueError(f"it took {actual_s} s; that must be a finite number, 0 or more")
    losses = [
        (actual_s - q) * level if actual_s >= q else (q - actual_s) * (1 - level)
        for q, level in zip(quantiles_s, LEVELS, strict=True)
    ]
    middle = quantiles_s[len(LEVELS) // 2]
    relative = actual_s / middle - 1 if middle > 0 else math.inf if actual_s > 0 else 0.0
    return Score(bisect.bisect_left(quantiles_s, actual_s) + 1, fmean(losses), relative)


@dataclass(frozen=True)
class Calibration:
    """How many predictions held: ``below[i]`` is the share of outcomes at or under the quantile LEVELS[i]."""

    count: int
    below: tuple[float, ...]
    deciles: tuple[int, ...]  # outcomes in each of the ten
    coverage: float  # share between the first and the last quantile, 0.8 if all is right
    pinball_s: float
    crps_s: float
    median_relative: float
    reason: str


def calibration(scored: Iterable[tuple[Sequence[float], float]]) -> Calibration:
    """The table over (quantiles, outcome). Raises ValueError where nothing has an outcome yet.

    >>> told = tuple(float(10 * i) for i in range(1, 10))
    >>> calibration([(told, 10.0 * i + 5) for i in range(10)] * 2).coverage
    0.8
    """
    pairs = list(scored)
    if not pairs:
        raise ValueError("no prediction has an outcome yet, so none can be scored")
    scores = [score(quantiles, actual) for quantiles, actual in pairs]
    count = len(scores)
    deciles = tuple(sum(each.decile == n for each in scores) for n in range(1, len(LEVELS) + 2))
    below = tuple(sum(deciles[: n + 1]) / count for n in range(len(LEVELS)))
    coverage = below[-1] - below[0]
    pinball = fmean(each.pinball_s for each in scores)
    relative = median(each.relative for each in scores)
    return Calibration(
        count,
        below,
        deciles,
        coverage,
        pinball,
        2 * pinball,
        relative,
        _calibrated(count, coverage, below[len(LEVELS) // 2]),
    )


def _calibrated(count: int, coverage: float, half: float) -> str:
    said = (
        f"of {count} predictions {100 * coverage:.0f} % fell between their 10 % and 90 % quantiles"
    )
    if count < ENOUGH_SCORES:
        return f"{said}; {ENOUGH_SCORES} are needed to say whether that is right"
    error = 2 * math.sqrt(0.8 * 0.2 / count)  # two standard errors of a share of 0.8
    late = 2 * math.sqrt(0.25 / count)
    if coverage < 0.8 - error:
        said += ", fewer than the 80 % that they promise: they are too narrow"
    elif coverage > 0.8 + error:
        said += ", more than the 80 % that they promise: they are too wide"
    else:
        said += ", as they promise"
    if half < 0.5 - late:
        said += f"; {100 * (1 - half):.0f} % took longer than their median: too hopeful"
    elif half > 0.5 + late:
        said += f"; {100 * half:.0f} % took less than their median: too cautious"
    return said
