"""How fast a job goes on n cards: throughput(n) = s n^alpha, learnt for each (job family, card).

A family is what an observation calls its work: FLOPs of a dtype, or steps of one configuration; ``s`` is
in units of it per second on one card. On logarithms the law is a line, log y = log s + alpha log n, fitted
by Bayesian regression with a normal-inverse-gamma prior (Gelman et al. 2013, section 14.2 with 14.8):
with few points it is the prior, with many it is least squares, and its limits are those of Student's t in
both cases. The prior of ``s`` comes from FLOPs, the card's peak and the speed that the platform was
measured at; that of alpha from nothing but the law's own bounds, (0, 1].

numpy and scipy are imported inside functions, so that the command line starts fast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

#: Alpha before anything is known: data-parallel training of one machine loses some 5 to 15 % per doubling.
PRIOR_ALPHA, PRIOR_ALPHA_SD = 0.9, 0.15
#: Machines of one card that do the same work: log-standard deviation, and how many points that is worth.
PRIOR_NOISE, PRIOR_POINTS = 0.15, 4.0
#: The share of a card's peak that training reaches where the platform has not been measured, and by what
#: factor (one standard deviation of its logarithm) that may be wrong.
PRIOR_SHARE, PRIOR_SHARE_SD = 0.35, 0.5
#: log s without any cold start: so wide that a single point replaces it.
_NO_IDEA_SD = 20.0
LEAST_ALPHA = 0.05  # below it no card is worth adding, and the law stops meaning anything
MOST_CARDS = 4096


@dataclass(frozen=True)
class Speed:
    """One machine as it was measured: units of work per second in steps, on so many cards."""

    cards: int
    per_s: float

    def __post_init__(self) -> None:
        if not 1 <= self.cards <= MOST_CARDS:
            raise ValueError(f"{self.cards} cards; there are 1 to {MOST_CARDS}")
        if not (math.isfinite(self.per_s) and self.per_s > 0):
            raise ValueError(
                f"a speed of {self.per_s} a second; it must be a finite number above 0"
            )


@dataclass(frozen=True)
class ColdStart:
    """What one card is expected to do before anybody saw it: the median, and the sd of its logarithm."""

    per_s: float
    log_sd: float
    reason: str


@dataclass(frozen=True)
class Throughput:
    """The fitted law, with what is needed for its limits.

    ``log_s`` and ``alpha`` are posterior means, ``cov`` their covariance times 1 / noise^2: (s s, s a,
    a a); ``noise`` is the log-standard deviation of one machine, ``freedom`` its degrees of freedom.
    """

    log_s: float
    alpha: float
    cov: tuple[float, float, float]
    noise: float
    freedom: float
    points: int
    reason: str

    @property
    def s(self) -> float:
        """Units of work per second on one card."""
        return math.exp(self.log_s)

    def per_s(self, cards: int = 1) -> float:
        """Units of work per second on so many cards: the median machine.

        >>> round(known(100.0, 0.5).per_s(4), 6)
        200.0
        """
        return math.exp(self.log_s + self.alpha * math.log(_checked_cards(cards)))

    def interval(
        self, cards: int = 1, level: float = 0.9, machine: bool = True
    ) -> tuple[float, float]:
        """Limits of the throughput on so many cards: of one more machine, or of the median machine."""
        reach = _t(0.5 + level / 2, self.freedom) * self.log_sd(cards, machine)
        middle = self.log_s + self.alpha * math.log(cards)
        return math.exp(middle - reach), math.exp(middle + reach)

    def log_sd(self, cards: int = 1, machine: bool = True) -> float:
        """Scale of log throughput, a Student t with ``freedom``; with one machine's own spread or without."""
        x = math.log(_checked_cards(cards))
        ss, sa, aa = self.cov
        return self.noise * math.sqrt(max(ss + 2 * x * sa + x * x * aa, 0.0) + float(machine))

    def alpha_interval(self, level: float = 0.9) -> tuple[float, float]:
        """Limits of alpha, cut to (0, 1]."""
        reach = _t(0.5 + level / 2, self.freedom) * self.noise * math.sqrt(max(self.cov[2], 0.0))
        return max(self.alpha - reach, LEAST_ALPHA), min(self.alpha + reach, 1.0)


def known(s: float, alpha: float, noise: float = 0.0) -> Throughput:
    """A law that is simply given. Raises ValueError for an alpha outside (0, 1] and a speed that is none.

    >>> known(100.0, 1.5)
    Traceback (most recent call last):
    ...
    ValueError: alpha is 1.5; it lies in (0, 1]: no card makes a job slower, and n cards are at most n times one
    """
    check_alpha(alpha)
    Speed(1, s)
    return Throughput(math.log(s), alpha, (0.0, 0.0, 0.0), noise, 1e6, 0, "given")


def check_alpha(alpha: float) -> float:
    """``alpha`` itself; ValueError, one sentence, unless it lies in (0, 1]."""
    if not 0 < alpha <= 1:
        raise ValueError(
            f"alpha is {alpha}; it lies in (0, 1]: no card makes a job slower, "
            "and n cards are at most n times one"
        )
    return alpha


def cold_start(
    peak_flops: float,
    share: float | None = None,
    share_log_sd: float = PRIOR_SHARE_SD,
    flops_per_unit: float = 1.0,
) -> ColdStart:
    """What one card is expected to do: peak * share / FLOPs of one unit of work.

    ``share`` is what the platform was measured at (:func:`measured_share`); ``flops_per_unit`` is 1 where
    work is counted in FLOPs, else the FLOPs of a step.

    >>> cold_start(65e12, 0.4, flops_per_unit=1e12).per_s
    26.0
    """
    for name, value in (("peak_flops", peak_flops), ("flops_per_unit", flops_per_unit)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be a finite number above 0")
    guessed = share is None
    part = PRIOR_SHARE if share is None else share
    if not 0 < part <= 1:
        raise ValueError(f"a speed of {part} of the peak; it lies in (0, 1]")
    whose = "assumed, nothing was measured here" if guessed else "measured on the platform"
    return ColdStart(
        peak_flops * part / flops_per_unit,
        PRIOR_SHARE_SD if guessed else share_log_sd,
        f"{100 * part:.0f} % ({whose}) of a peak of {peak_flops:.3g} FLOPs a second",
    )


def measured_share(shares: Sequence[float]) -> tuple[float, float] | None:
    """The speed of a platform as a share of peak, and the sd of its logarithm; ``None`` for no shares.

    The median, and 1.4826 MAD of the logarithms, held to :data:`PRIOR_SHARE_SD` worth two machines: other
    work on the same cards says how fast they are, not how well this work uses them.

    >>> found = measured_share([0.3, 0.4, 0.5])
    >>> round(found[0], 2), found[1] < 0.5
    (0.4, True)
    """
    logs = [math.log(share) for share in shares if 0 < share <= 1]
    if not logs:
        return None
    middle = median(logs)
    spread = 1.4826 * median(abs(each - middle) for each in logs)
    count = len(logs)
    held = math.sqrt((count * spread**2 + 2 * PRIOR_SHARE_SD**2) / (count + 2))
    return math.exp(middle), held


def fit(
    speeds: Iterable[Speed], start: ColdStart | None = None, what: str = "this work"
) -> Throughput:
    """The law from what was measured, held to a cold start where there is one.

    Alpha is kept in (0, 1]: where the line is steeper, it is the line with alpha 1 (the conditional mean
    of log s given alpha). Raises ValueError where there is neither a measurement nor a cold start.

    >>> law = fit([Speed(n, 100 * n**0.8) for n in (1, 2, 4, 8) for _ in range(25)])
    >>> round(law.s), round(law.alpha, 2)
    (100, 0.8)
    >>> one = fit([Speed(1, 50.0)])  # alpha is the prior's where all have as many cards
    >>> round(one.s), round(one.alpha, 2)
    (50, 0.9)
    """
    seen = list(speeds)
    if not seen and start is None:
        raise ValueError(
            f"no machine has shown how fast {what} goes, and its FLOPs or the card's peak are not known; "
            "run a short probe, or let the experiment tell tenure.work()"
        )
    mean_s = math.log(start.per_s) if start else math.log(median(each.per_s for each in seen))
    sd_s = start.log_sd if start else _NO_IDEA_SD
    log_s, alpha, cov, noise2, freedom = _posterior(seen, mean_s, sd_s)
    held = min(max(alpha, LEAST_ALPHA), 1.0)
    if held != alpha:
        log_s += cov[1] / cov[2] * (held - alpha)
    counts = sorted({each.cards for each in seen})
    words = f"{len(seen)} machines" + (f" with {_listed(counts)} cards" if seen else "")
    return Throughput(
        log_s,
        held,
        cov,
        math.sqrt(noise2),
        freedom,
        len(seen),
        f"{what}: {math.exp(log_s):.3g} a second on one card, alpha {held:.2f}; from {words}"
        + (f", held to {start.reason}" if start else ""),
    )


def _posterior(
    seen: Sequence[Speed], mean_s: float, sd_s: float
) -> tuple[float, float, tuple[float, float, float], float, float]:
    """Means, covariance / noise^2, noise^2 and degrees of freedom of the normal-inverse-gamma posterior."""
    noise2 = PRIOR_NOISE**2
    # precisions relative to the noise, as the conjugate prior has them
    ps, pa = noise2 / sd_s**2, noise2 / PRIOR_ALPHA_SD**2
    # measured from the prior's mean, so that large logarithms cost no digits
    xs = [math.log(each.cards) for each in seen]
    ys = [math.log(each.per_s) - mean_s - PRIOR_ALPHA * x for each, x in zip(seen, xs, strict=True)]
    a, b, d = ps + len(seen), math.fsum(xs), pa + math.fsum(x * x for x in xs)
    det = a * d - b * b
    cov = d / det, -b / det, a / det
    sy, sxy = math.fsum(ys), math.fsum(x * y for x, y in zip(xs, ys, strict=True))
    off_s, off_a = cov[0] * sy + cov[1] * sxy, cov[1] * sy + cov[2] * sxy
    freedom = PRIOR_POINTS + len(seen)
    misfit = math.fsum(
        (y - off_s - off_a * x) ** 2 for x, y in zip(xs, ys, strict=True)
    ) + ps * off_s**2 + pa * off_a**2  # fmt: skip
    scale2 = (PRIOR_POINTS * noise2 + misfit) / freedom
    return mean_s + off_s, PRIOR_ALPHA + off_a, cov, scale2, freedom


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))


@functools.lru_cache(maxsize=256)
def _t(quantile: float, freedom: float) -> float:
    if not 0.5 <= quantile < 1:
        raise ValueError(f"a level of {2 * quantile - 1}; it lies between 0 and 1")
    from scipy import stats

    return float(stats.t.ppf(quantile, freedom))


def _checked_cards(cards: int) -> int:
    if not 1 <= cards <= MOST_CARDS:
        raise ValueError(f"{cards} cards; there are 1 to {MOST_CARDS}")
    return cards
