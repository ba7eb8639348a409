"""What to try, what to believe of rungs that are alike, and how many cards to go on with.

* A probe on a new card is worth its price when it may change the choice: the expected value of its
  information (Raiffa and Schlaifer 1961) under the throughput's prior, in closed form for a log-normal.
* Among like rungs the next job goes where a draw from what is believed of each costs least (Thompson 1933;
  Russo et al. 2018): rungs that nobody knows are tried as often as they may be the best, and no oftener.
* A card is added or removed where n^alpha says that the plan gains more than the restart costs.

Nothing here draws entropy: a seed is passed in, and equal seeds give equal choices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from tenure.plan.objective import Limits, Option, Weights, j, scales
from tenure.plan.throughput import check_alpha

#: What a rung costs for one unit of work, before it is tried: log-standard deviation, worth so many jobs.
PRIOR_LOG_SD, PRIOR_JOBS = 0.5, 1.0
#: Cards are added or removed for a gain of at least this part of J.
CARDS_MARGIN = 0.05
_NORMAL = NormalDist()


# ---------------------------------------------------------------------------------- probes


@dataclass(frozen=True)
class Probe:
    """Whether a short run on a card nobody has measured is worth its price; amounts in one currency."""

    worth: float  # expected saving by its answer
    price: float
    run: bool
    switch: float  # chance that its answer changes the choice
    reason: str


def probe(
    known_cost: float,
    new_cost: float,
    log_sd: float,
    price: float,
    noise_log_sd: float = 0.1,
    what: str = "the new card",
) -> Probe:
    """Value of a probe where all that is left costs ``known_cost`` on the card in use.

    The new card is believed to cost ``new_cost`` in the median, log-normal with ``log_sd`` (of the throughput's
    prior: cost goes as 1 / speed). The probe measures with ``noise_log_sd``, so that the mean cost after it
    is log-normal with log-variance v = sd^4 / (sd^2 + noise^2). Without it the cheaper one in expectation is
    taken, K or m; with it the cheaper one by the answer Y (the integral is Black's, 1976)::

        worth = min(K, m) - E[min(K, Y)]
        E[min(K, Y)] = m N(d2 - sqrt(v)) + K (1 - N(d2)),  d2 = (log(K / m) + v / 2) / sqrt(v)

    Raises ValueError for amounts that are none.

    >>> unsure = probe(known_cost=100.0, new_cost=100.0, log_sd=0.5, price=1.0)
    >>> unsure.run, round(unsure.worth, 1), round(unsure.switch, 2)
    (True, 14.7, 0.5)
    >>> probe(known_cost=100.0, new_cost=400.0, log_sd=0.2, price=1.0).run
    False
    """
    for name, value in (("known_cost", known_cost), ("new_cost", new_cost)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be a finite number above 0")
    for name, value in (("log_sd", log_sd), ("price", price), ("noise_log_sd", noise_log_sd)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be a finite number, 0 or more")
    mean = new_cost * math.exp(log_sd**2 / 2)
    total = log_sd**2 + noise_log_sd**2
    sd = log_sd**2 / math.sqrt(total) if total else 0.0
    below, least = _expected_least(known_cost, mean, sd)
    worth = max(min(known_cost, mean) - least, 0.0)
    stays = known_cost <= mean
    switch = below if stays else 1 - below
    run = worth > price
    verdict = "worth" if run else "not worth"
    return Probe(
        worth,
        price,
        run,
        switch,
        f"what is left costs {known_cost:.3g} here and {mean:.3g} on {what} as far as is known (by a factor of "
        f"{math.exp(log_sd):.2f} more or less); a probe changes the choice with a chance of {switch:.2f} and saves "
        f"{worth:.3g} on average: {verdict} its {price:.3g}",
    )


def _expected_least(strike: float, mean: float, sd: float) -> tuple[float, float]:
    """P(Y < strike) and E[min(strike, Y)] for a log-normal Y of this mean and log-sd.

    >>> _expected_least(2.0, 1.0, 0.0), _expected_least(1.0, 2.0, 0.0)
    ((1.0, 1.0), (0.0, 1.0))
    """
    if sd < 1e-12:
        return (1.0, mean) if mean < strike else (0.0, strike)
    d2 = (math.log(strike / mean) + sd * sd / 2) / sd
    below = _NORMAL.cdf(d2)
    return below, mean * _NORMAL.cdf(d2 - sd) + strike * (1 - below)


# --------------------------------------------------------------------------------- bandit


@dataclass(frozen=True)
class Arm:
    """One of several like rungs: what it is expected to cost per unit of work, and what it did cost."""

    rung: str
    expected: float  # by price and predicted throughput, in one currency
    costs: tuple[float, ...] = ()  # per unit of work, of the jobs that were run there


@dataclass(frozen=True)
class Pick:
    """The rung for the next job, and why."""

    rung: str
    drawn: Mapping[str, float]
    reason: str


def pick(arms: Sequence[Arm], seed: int) -> Pick:
    """The rung whose drawn cost is least; the same for the same seed, whatever the order of the arms.

    The logarithm of a rung's cost is normal with unknown mean and variance (normal-inverse-gamma, prior mean
    ``log expected``, :data:`PRIOR_LOG_SD`, worth :data:`PRIOR_JOBS` jobs); one mean is drawn for each. Raises
    ValueError where there is no rung, or a cost that is none.

    >>> seen = [Arm("a", 1.0, (1.0,) * 30), Arm("b", 1.0, (2.0,) * 30), Arm("new", 1.1)]
    >>> picks = [pick(seen, seed).rung for seed in range(200)]
    >>> picks.count("b"), 20 < picks.count("new") < 120
    (0, True)
    """
    if not arms:
        raise ValueError("there is no rung to choose from")
    drawn = {arm.rung: _drawn(arm, seed) for arm in arms}
    found = min(sorted(drawn), key=lambda rung: drawn[rung])
    best = min(arms, key=lambda arm: (_believed(arm)[0], arm.rung))
    arm = next(each for each in arms if each.rung == found)
    middle = math.exp(_believed(arm)[0])
    words = f"{found} is believed to cost {middle:.3g} per unit of work after {len(arm.costs)} jobs"
    if found == best.rung:
        return Pick(found, drawn, f"{words}, the least of {len(arms)} like rungs")
    least = math.exp(_believed(best)[0])
    return Pick(
        found,
        drawn,
        f"{words} and may cost less than {best.rung} ({least:.3g} after {len(best.costs)}): it is tried",
    )


def _believed(arm: Arm) -> tuple[float, float, float, float]:
    """Posterior of the log cost: mean, jobs it is worth, degrees of freedom, sum of squares."""
    if not all(math.isfinite(each) and each > 0 for each in (arm.expected, *arm.costs)):
        raise ValueError(f"{arm.rung}: costs per unit of work are finite numbers above 0")
    prior = math.log(arm.expected)
    logs = [math.log(cost) for cost in arm.costs]
    count = len(logs)
    worth = PRIOR_JOBS + count
    mean = (PRIOR_JOBS * prior + math.fsum(logs)) / worth
    squares = 2 * PRIOR_LOG_SD**2 + math.fsum((each - mean) ** 2 for each in logs)
    squares += PRIOR_JOBS * (prior - mean) ** 2
    return mean, worth, 2.0 + count, squares


def _drawn(arm: Arm, seed: int) -> float:
    """One draw of the rung's mean cost; each rung has draws of its own."""
    mean, worth, freedom, squares = _believed(arm)
    rng = random.Random(f"{seed}/{arm.rung}")
    variance = squares / (2 * rng.gammavariate(freedom / 2, 1.0))
    return math.exp(rng.gauss(mean, math.sqrt(variance / worth)))


# ---------------------------------------------------------------------------------- cards


@dataclass(frozen=True)
class Cards:
    """How many cards to go on with, and why."""

    cards: int
    reason: str


def rescale(
    now: int,
    counts: Sequence[int],
    alpha: float,
    left_s: float,
    per_card_h: float,
    restart_s: float,
    weights: Weights,
    limits: Limits | None = None,
) -> Cards:
    """Cards added or removed where J falls by :data:`CARDS_MARGIN`, the restart that it takes included.

    On n cards what is left takes ``left_s (now / n)^alpha`` and costs n cards for that long: more cards are
    never cheaper unless alpha is 1, so it is time that buys them. A count that breaks a limit which the present
    one keeps is not considered; where the present one breaks a limit, one that keeps it is taken for any gain.

    >>> hurried = rescale(2, (1, 2, 4), 0.9, 36_000, 1.0, 300, Weights(3, 1, 0))
    >>> hurried.cards
    4
    >>> rescale(2, (1, 2, 4), 0.5, 36_000, 1.0, 300, Weights(1, 3, 0)).cards
    1
    """
    check_alpha(alpha)
    if now not in counts or min(counts) < 1:
        raise ValueError(f"{now} cards are not among the counts that can be had: {list(counts)}")
    for name, value in (("left_s", left_s), ("per_card_h", per_card_h), ("restart_s", restart_s)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be a finite number, 0 or more")
    limits = limits or Limits()
    options = {
        n: _on_cards(n, now, alpha, left_s, per_card_h, restart_s) for n in sorted(set(counts))
    }
    here = options[now]
    time, cost = scales([here], limits)
    scores = {n: j(each, weights, time, cost) for n, each in options.items()}
    allowed = [n for n in options if _keeps(options[n], limits)]
    if now not in allowed and allowed:
        best = min(allowed, key=lambda n: scores[n])
        return Cards(
            best,
            f"{_cards_words(here, now)} breaks a limit that {_cards_words(options[best], best)} keeps",
        )
    best = min(allowed or [now], key=lambda n: (scores[n], abs(n - now)))
    gain = 1 - scores[best] / scores[now] if scores[now] > 0 else 0.0
    if best == now or gain < CARDS_MARGIN:
        return Cards(
            now, f"{_cards_words(here, now)}: no other count gains {100 * CARDS_MARGIN:.0f} %"
        )
    return Cards(
        best,
        f"{_cards_words(here, now)}; {_cards_words(options[best], best)} with the restart: J falls by {100 * gain:.0f} % "
        f"at alpha {alpha:.2f}",
    )


def _on_cards(
    n: int, now: int, alpha: float, left_s: float, per_card_h: float, restart_s: float
) -> Option:
    took = left_s * (now / n) ** alpha + (restart_s if n != now else 0.0)
    return Option(str(n), took, took / 3600 * n * per_card_h, 1.0)


def _keeps(each: Option, limits: Limits) -> bool:
    late = limits.deadline_s is not None and each.time_s > limits.deadline_s
    return not late and (limits.budget is None or each.cost <= limits.budget)


def _cards_words(each: Option, n: int) -> str:
    return f"{n} card{'s' if n > 1 else ''} take {each.time_s / 3600:.1f} h and {each.cost:.3g}"
