"""How long a machine is left to us: a survival curve by age, from the ends that were seen.

Nothing here assumes that a machine forgets its age: up-times of spot machines vary 1.4 to 4.8 times as
much as an exponential law allows. A life that ended by itself (the job finished, it was asked to yield, it
still runs) is right-censored: it would have lasted longer, nobody knows by how much. A known wall (the
session limit of a platform) is a certain end and no hazard: nothing outlasts it.

Sources: Kaplan and Meier 1958 (the estimate); Greenwood 1926 (its variance), with limits on the scale of
log(-log S) as in Kalbfleisch and Prentice 2002, section 1.4; Hjort 1990 (the estimate with a beta process
as prior, which is how a rung with few ends borrows from another); Klein and Moeschberger 2003, section 4.5
(variance of a restricted mean). ``docs/predictor.md`` has the formulas in one place.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: What a prior is worth: so many lives that lasted as it says, beside those that were seen.
PRIOR_LIVES = 4.0
#: Of a rung nobody knows anything of: one loss in 20 hours, worth 20 hours of watching.
DEATH_PER_H, PRIOR_H = 0.05, 20.0
#: Bands of ages with one hazard each: half the root of the losses seen, so that both the number of bands
#: and what is known of each of them grow.
MOST_BANDS = 12
_GONE = (0.2, 0.4, 0.6, 0.8, 0.95)  # parts of a prior's lives at whose ends a curve has knots
_HOUR_S = 3600.0
_DEAD = 700.0  # -log S of a curve that has reached 0


@dataclass(frozen=True)
class Life:
    """How long one machine worked for us after its claim, and whether it was lost then.

    ``lost`` is False where it ended by itself, at a known wall, or is alive: right-censored.
    """

    age_s: float
    lost: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.age_s) and self.age_s >= 0):
            raise ValueError(
                f"a machine lived {self.age_s} s; it must be a finite number, 0 or more"
            )


@dataclass(frozen=True)
class Curve:
    """S(age): the chance that a machine is still ours at an age; a jump at each knot, a rate after it.

    From ``knots_s[i]`` on, S is multiplied by ``factors[i]`` at once and then falls at ``rates_per_s[i]``
    until the next knot; the last rate goes on for ever: the tail. ``greenwood[i]`` is the term that the
    knot adds to the variance of log S, ``at_risk[i]`` how many lives had reached it.
    """

    knots_s: tuple[float, ...]
    factors: tuple[float, ...]
    rates_per_s: tuple[float, ...]
    greenwood: tuple[float, ...]
    at_risk: tuple[float, ...]
    lives: int = 0
    lost: int = 0
    wall_s: float | None = None

    def __post_init__(self) -> None:
        if not self.knots_s or self.knots_s[0] != 0.0 or list(self.knots_s) != sorted(self.knots_s):
            raise ValueError("the knots of a survival curve begin at age 0 and do not fall")
        if not all(0 <= factor <= 1 for factor in self.factors) or min(self.rates_per_s) < 0:
            raise ValueError("a survival curve never rises: factors are 0 to 1, rates not negative")
        check_wall(self.wall_s)

    @functools.cached_property
    def _fallen(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """-log S before and after the jump at each knot."""
        before, after, level = [], [], 0.0
        for i, factor in enumerate(self.factors):
            if i:
                level += self.rates_per_s[i - 1] * (self.knots_s[i] - self.knots_s[i - 1])
            before.append(level)
            level = min(level - math.log(factor), _DEAD) if factor > 0 else _DEAD
            after.append(level)
        return tuple(before), tuple(after)

    @functools.cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Knots, rates, and -log S after each knot."""
        import numpy as np

        return np.array(self.knots_s), np.array(self.rates_per_s), np.array(self._fallen[1])

    @functools.cached_property
    def _before(self) -> NDArray[np.float64]:
        """-log S before the jump at each knot."""
        import numpy as np

        return np.array(self._fallen[0])

    @functools.cached_property
    def mean_s(self) -> float:
        """E[life] of a new machine; infinite where nothing ends it."""
        return self.remaining_s()

    @functools.cached_property
    def end_s(self) -> float:
        """The age that one machine in a million reaches; at most the wall."""
        return self.quantile_s(1 - 1e-6)

    def _piece(self, age_s: float) -> int:
        return bisect_right(self.knots_s, age_s) - 1

    def fallen(self, age_s: float) -> float:
        """The cumulated hazard -log S at an age, without the wall."""
        i = self._piece(age_s)
        return self._fallen[1][i] + self.rates_per_s[i] * (age_s - self.knots_s[i])

    def alive(self, age_s: float) -> float:
        """S(age): the chance to last longer than an age; 0 from the wall on.

        >>> seen = [Life(3600, True), Life(7200, False), Life(7200, True), Life(9000, True)]
        >>> [round(kaplan_meier(seen).alive(h * 3600), 6) for h in (0.5, 1, 2, 2.5)]
        [1.0, 0.75, 0.5, 0.0]
        """
        if self.wall_s is not None and age_s >= self.wall_s:
            return 0.0
        fallen = self.fallen(age_s)
        return math.exp(-fallen) if fallen < _DEAD else 0.0

    def alive_many(self, ages_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """S at many ages, of any shape."""
        import numpy as np

        knots, rates, fallen = self._arrays
        at = np.searchsorted(knots, ages_s, side="right") - 1
        found = np.exp(-(fallen[at] + rates[at] * (ages_s - knots[at])))
        return found if self.wall_s is None else np.where(ages_s < self.wall_s, found, 0.0)

    def given(self, age_s: float, now_s: float) -> float:
        """The chance to last longer than ``age_s`` for one that has reached ``now_s``.

        Where nobody was seen to get so far, the tail's rate says it.
        """
        if self.wall_s is not None and age_s >= self.wall_s:
            return 0.0
        if age_s <= now_s:
            return 1.0
        start = self.fallen(now_s)
        if start >= _DEAD:
            return math.exp(-self.rates_per_s[-1] * (age_s - now_s))
        fallen = self.fallen(age_s)
        return math.exp(start - fallen) if fallen < _DEAD else 0.0

    def hazard_per_s(self, from_s: float, to_s: float) -> float:
        """Losses per second between two ages: -log(S(to) / S(from)) / (to - from)."""
        if not 0 <= from_s < to_s:
            raise ValueError(f"ages of {from_s} to {to_s} s are no stretch of time")
        fallen = self.fallen(to_s) - self.fallen(from_s)
        return math.inf if self.fallen(to_s) >= _DEAD else fallen / (to_s - from_s)

    # ------------------------------------------------------------------------------- intervals

    def interval(self, age_s: float, level: float = 0.95) -> tuple[float, float]:
        """Confidence limits of S at an age, by Greenwood's variance on the scale of log(-log S).

        Where S is 1 or 0 that variance is 0 and says nothing: there it is the exact limit of a binomial.
        """
        miss = (1.0 - _checked_level(level)) / 2.0
        i = self._piece(age_s)
        fallen = self.fallen(age_s)
        reached = max(self.at_risk[i], 1.0)
        if fallen <= 0.0:
            return miss ** (1.0 / reached), 1.0
        if fallen >= _DEAD:
            most = max(self.at_risk)
            return 0.0, 1.0 - miss ** (1.0 / max(most, 1.0))
        error = math.sqrt(math.fsum(self.greenwood[: i + 1])) / fallen
        z = NormalDist().inv_cdf(1.0 - miss)
        return math.exp(-fallen * math.exp(z * error)), math.exp(-fallen * math.exp(-z * error))

    # ------------------------------------------------------------------------------ integrals

    def area_s(self, from_s: float, to_s: float) -> float:
        """The integral of S between two ages, in seconds; ``to_s`` may be infinite. Without the wall."""
        if to_s <= from_s:
            return 0.0
        total, first, last = 0.0, self._piece(from_s), len(self.knots_s) - 1
        for i in range(first, last + 1):
            start = max(from_s, self.knots_s[i])
            end = to_s if i == last else min(to_s, self.knots_s[i + 1])
            if end > start:
                total += _under(self.fallen(start), self.rates_per_s[i], end - start)
            if end >= to_s:
                break
        return total

    def remaining_s(self, age_s: float = 0.0, horizon_s: float = math.inf) -> float:
        """E[min(life, horizon) - age | life > age]: what is left of a machine of this age.

        The mean is restricted to the wall and to ``horizon_s``, an age. Beyond the last age that was seen
        the tail is exponential. Infinite where the tail's rate is 0 and nothing restricts it.

        >>> memoryless = exponential(1 / 3600)
        >>> round(memoryless.remaining_s()), round(memoryless.remaining_s(36_000))
        (3600, 3600)
        >>> round(replace(memoryless, wall_s=3600.0).remaining_s())
        2276
        """
        end_s = min(horizon_s, math.inf if self.wall_s is None else self.wall_s)
        if age_s >= end_s:
            return 0.0
        if self.fallen(age_s) >= _DEAD:  # nobody was seen to reach it
            return _under(0.0, self.rates_per_s[-1], end_s - age_s)
        area = self.area_s(age_s, end_s)
        return area if math.isinf(area) else area * math.exp(self.fallen(age_s))

    def remaining_interval_s(
        self, age_s: float = 0.0, horizon_s: float | None = None, level: float = 0.95
    ) -> tuple[float, float]:
        """Confidence limits of :meth:`remaining_s`, by the variance of a restricted mean.

        The variance is the sum over knots after the age of (area right of the knot / S(age))^2 times the
        knot's term of Greenwood. Without a horizon or wall it holds for the tail as given.
        """
        z = NormalDist().inv_cdf(1.0 - (1.0 - _checked_level(level)) / 2.0)
        end_s = min(
            math.inf if horizon_s is None else horizon_s,
            math.inf if self.wall_s is None else self.wall_s,
        )
        mean = self.remaining_s(age_s, end_s)
        if self.fallen(age_s) >= _DEAD or not math.isfinite(mean):
            return 0.0, math.inf
        reach = math.exp(self.fallen(age_s))
        variance = math.fsum(
            (self.area_s(knot, end_s) * reach) ** 2 * term
            for knot, term in zip(self.knots_s, self.greenwood, strict=True)
            if age_s < knot < end_s and term
        )
        error = z * math.sqrt(variance)
        return max(0.0, mean - error), mean + error

    def quantile_s(self, chance: float, age_s: float = 0.0) -> float:
        """The age by which a machine of ``age_s`` is lost with this chance; at most the wall.

        >>> round(exponential(1 / 3600).quantile_s(0.5))
        2495
        """
        if not 0 < chance < 1:
            raise ValueError(f"a chance of {chance}; it lies between 0 and 1")
        start = self.fallen(age_s)
        end_s = math.inf if self.wall_s is None else self.wall_s
        if start >= _DEAD:
            return min(end_s, age_s + _per(-math.log1p(-chance), self.rates_per_s[-1]))
        wanted = start - math.log1p(-chance)
        _, after = self._fallen
        for i in range(self._piece(age_s), len(self.knots_s)):
            last = i == len(self.knots_s) - 1
            begin = max(self.knots_s[i], age_s)
            level = max(after[i], start)
            if level >= wanted:
                return min(end_s, begin)
            reached = begin + _per(wanted - level, self.rates_per_s[i])
            if last or reached < self.knots_s[i + 1]:
                return min(end_s, reached)
        return end_s

    def ages_s(self, fallen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ages at which -log S reaches the given levels: what unit exponentials become lives by.

        ``fallen`` has any shape; the answer has the same, in seconds, at most the wall.
        """
        import numpy as np

        knots, rates, after = self._arrays
        at = np.searchsorted(self._before, fallen, side="right") - 1
        past = np.maximum(fallen - after[at], 0.0)  # 0 inside a jump
        found = knots[at] + past / np.maximum(rates[at], 1e-18)
        return np.minimum(found, np.inf if self.wall_s is None else self.wall_s)


def exponential(per_s: float, wall_s: float | None = None) -> Curve:
    """The memoryless curve of a rate: what is assumed of a rung that nobody has seen."""
    return Curve((0.0,), (1.0,), (_checked_rate(per_s),), (0.0,), (0.0,), wall_s=wall_s)


def pooled_per_s(lives: Iterable[Life]) -> float:
    """Losses per second over all ages, with the prior of :data:`DEATH_PER_H` in :data:`PRIOR_H` hours.

    >>> round(3600 * pooled_per_s([Life(10 * 3600, True), Life(10 * 3600, True)]), 3)
    0.075
    """
    seen = list(lives)
    exposed_s = math.fsum(life.age_s for life in seen) + PRIOR_H * _HOUR_S
    return (sum(life.lost for life in seen) + DEATH_PER_H * PRIOR_H) / exposed_s


def kaplan_meier(lives: Iterable[Life], wall_s: float | None = None) -> Curve:
    """The estimate of Kaplan and Meier, without any prior; the tail after the last age seen is exponential.

    At each age d of the Y machines that reached it were lost: S is multiplied by 1 - d / Y. The tail has
    the rate of :func:`tail_per_s`. Raises ValueError where nothing was seen.

    >>> curve = kaplan_meier([Life(10, True), Life(20, False), Life(30, True), Life(40, False)])
    >>> [round(curve.alive(age), 3) for age in (9, 10, 29, 30)]
    [1.0, 0.75, 0.75, 0.375]
    """
    seen = _checked_lives(lives, "this rung")
    return _estimate(seen, None, 0.0, tail_per_s(seen, pooled_per_s(seen)), wall_s)


def curve(
    lives: Iterable[Life],
    prior: Curve | None = None,
    wall_s: float | None = None,
    where: str = "this rung",
) -> Curve:
    """The survival curve of a rung, pooled with a prior rung's, or with its own mean rate.

    The hazard at each age is ``(c dA0 + dN) / (c + Y)``, where A0 is the prior's cumulated hazard, N counts
    losses, Y the machines at risk, and c is what is left of :data:`PRIOR_LIVES` of the prior at that age (Hjort
    1990, section 3, with the weights of Ferguson's 1973 process). With many ends this is Kaplan and Meier's;
    with none the prior's. Without a prior the rate is one for all ages,
    :func:`pooled_per_s`. ``where`` names the rung in the sentence of the ValueError that is raised where
    there is neither a life nor a prior.

    >>> few = curve([Life(3600, True)], prior=exponential(1 / 36_000))
    >>> 0.7 < few.alive(3600) < 0.8
    True
    """
    seen = list(lives)
    if prior is None:
        seen = _checked_lives(seen, where)
        prior = exponential(pooled_per_s(seen))
    if not seen:
        return replace(prior, wall_s=wall_s, lives=0, lost=0)
    return _estimate(seen, prior, PRIOR_LIVES, tail_per_s(seen, prior.rates_per_s[-1]), wall_s)


def banded(
    lives: Iterable[Life],
    prior: Curve | None = None,
    wall_s: float | None = None,
    where: str = "this rung",
) -> Curve:
    """The hazard by age as steps: one rate for each band of ages with equally many losses.

    A rate is ``(d + 1) / (exposure + 1 / h)``: d losses in the band's exposure, with a gamma prior worth
    one loss at the prior's rate h. It is smooth enough to choose each interval between snapshots by,
    where the jumps of :func:`curve` would put one just before every age at which somebody was lost.
    """
    seen = list(lives)
    if prior is None:
        seen = _checked_lives(seen, where)
        prior = exponential(pooled_per_s(seen))
    edges = _edges(seen)
    rates, reached = [], []
    for low, high in itertools.pairwise([*edges, math.inf]):
        lost = sum(life.lost and low < life.age_s <= high for life in seen)
        exposed_s = math.fsum(max(0.0, min(life.age_s, high) - low) for life in seen)
        rates.append((lost + 1.0) / (exposed_s + 1.0 / max(_rate_over(prior, low, high), 1e-18)))
        reached.append(float(sum(life.age_s > low for life in seen)))
    count = len(edges)
    return Curve(
        tuple(edges),
        (1.0,) * count,
        tuple(rates),
        (0.0,) * count,
        tuple(reached),
        len(seen),
        sum(life.lost for life in seen),
        wall_s,
    )


def tail_per_s(lives: Sequence[Life], prior_per_s: float) -> float:
    """The rate beyond the last age that was seen: of the oldest lives, held to a prior worth one loss.

    ``(d + 1) / (exposure + 1 / prior)`` over ages above the last band's edge (:func:`banded`): where old
    machines last, as spot machines do, the rate over all ages would be far too high for them.

    >>> young = [Life(60.0, True)] * 16
    >>> old = [Life(360_000.0, True)] * 4
    >>> tail_per_s(young + old, pooled_per_s(young + old)) < pooled_per_s(young + old)
    True
    """
    low = _edges(lives)[-1]
    lost = sum(life.lost and life.age_s > low for life in lives)
    exposed_s = math.fsum(max(0.0, life.age_s - low) for life in lives)
    return (lost + 1.0) / (exposed_s + 1.0 / _checked_rate(prior_per_s))


# ------------------------------------------------------------------------------- internals


def _edges(lives: Iterable[Life]) -> list[float]:
    """Where the bands of ages begin: 0, and at every so many-th loss but the last few."""
    ends = sorted(life.age_s for life in lives if life.lost)
    bands = min(max(1, int(math.sqrt(len(ends)) / 2)), MOST_BANDS)
    return [0.0, *sorted({ends[i * len(ends) // bands] for i in range(1, bands)} - {0.0})]


def _rate_over(prior: Curve, low_s: float, high_s: float) -> float:
    if math.isinf(high_s):
        return prior.rates_per_s[-1]
    found = prior.hazard_per_s(low_s, high_s)
    return found if math.isfinite(found) else prior.rates_per_s[-1]


def _estimate(
    seen: Sequence[Life], prior: Curve | None, worth: float, tail: float, wall_s: float | None
) -> Curve:
    ages = sorted(life.age_s for life in seen)
    lost: dict[float, int] = {}
    for life in seen:
        if life.lost:
            lost[life.age_s] = lost.get(life.age_s, 0) + 1
    priors = dict(zip(prior.knots_s, prior.factors, strict=True)) if prior else {}
    between = {prior.quantile_s(gone) for gone in _GONE} if prior else set()
    knots = sorted({0.0, ages[-1], *ages, *priors, *(age for age in between if age < ages[-1])})
    factors, rates, terms, reached = [], [], [], []
    for number, knot in enumerate(knots):
        at_risk = len(ages) - bisect_left(ages, knot)
        after = len(ages) - bisect_right(ages, knot)
        ends = lost.get(knot, 0)
        before, then = _prior_alive(prior, knot, worth)
        weight = before + at_risk
        drop = (before * (1.0 - priors.get(knot, 1.0)) + ends) / weight if weight else 0.0
        factors.append(1.0 - drop)
        terms.append(ends / (weight * (weight - ends)) if weight > ends else 0.0)
        reached.append(float(at_risk))
        if knot >= ages[-1]:
            rates.append(tail)
        else:
            # of c h / (c + Y) the integral, where c falls as the prior's lives do
            later = knots[number + 1]
            gone = math.log((then + after) / (_prior_alive(prior, later, worth)[0] + after))
            rates.append(max(gone, 0.0) / (later - knot))
    return Curve(
        tuple(knots),
        tuple(factors),
        tuple(rates),
        tuple(terms),
        tuple(reached),
        len(seen),
        sum(life.lost for life in seen),
        wall_s,
    )


def _prior_alive(prior: Curve | None, knot: float, worth: float) -> tuple[float, float]:
    """How many of the prior's lives reach an age, and how many are left after a jump there."""
    if prior is None:
        return 0.0, 0.0
    i = prior._piece(knot)
    then = prior.fallen(knot)
    before = prior._fallen[0][i] if prior.knots_s[i] == knot else then
    return worth * math.exp(-before), worth * math.exp(-then)


def _under(fallen: float, rate: float, width_s: float) -> float:
    """The area under exp(-fallen - rate * t) over a width."""
    if fallen >= _DEAD:
        return 0.0
    if rate == 0.0:
        return math.exp(-fallen) * width_s
    return math.exp(-fallen) * -math.expm1(-rate * width_s) / rate


def _per(amount: float, rate: float) -> float:
    return amount / rate if rate > 0 else math.inf


def _checked_lives(lives: Iterable[Life], where: str) -> list[Life]:
    seen = list(lives)
    if not seen:
        raise ValueError(
            f"no launch on {where} has been seen yet, so nothing is known of how long its machines last; "
            "give the curve of a like rung, or a rate to assume"
        )
    return seen


def _checked_rate(per_s: float) -> float:
    if not (math.isfinite(per_s) and per_s > 0):
        raise ValueError(f"a rate of {per_s} losses per second; it must be a finite number above 0")
    return per_s


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"a level of {level}; it lies between 0 and 1")
    return level


def check_wall(wall_s: float | None) -> None:
    """Raise ValueError, one sentence, for a wall that is no age."""
    if wall_s is not None and not wall_s > 0:
        raise ValueError(f"a wall at {wall_s} s; it must be an age above 0")
