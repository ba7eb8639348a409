"""Is an effect larger than the seeds' noise, and is a platform's deviation inside it or a fault?

For research, not for deployment: :mod:`tenure.statistics` decides that. Every function takes values
of which less is better. "Not shown" is never read as "equal": an answer inside the noise says which
effect these seeds could have shown, and "inside" of a platform is a test of its own.

Sources: Welch 1947; Pitman 1937 and Hartigan 1969 (exact tests and intervals from splits); Julious
2004 (power); Schuirmann 1987 (two one-sided tests) with the noncentral t, because the margin is in
standard deviations (Wellek 2010, chapter 6); Holm 1979 (several platforms).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tenure.statistics import (
    EXACT_UP_TO,
    MOST_SEEDS,
    POWER,
    VARIANCE_ALPHA,
    check_sample,
    least_seeds,
    mean_p,
    pooled_sd,
    power,
    seeds_needed,
    splits,
    variance_p,
)

Values = NDArray[np.float64]
Answer = Literal["larger than the noise", "inside the noise", "not enough seeds"]
PlatformAnswer = Literal["inside the noise", "fault", "not enough seeds"]

#: A platform's deviation is inside the noise when it is shown to be less than so many standard
#: deviations between seeds: what one seed differs from another by, and no more.
WITHIN_SD = 1.0


@dataclass(frozen=True)
class Effect:
    """How two samples differ, and whether the seeds' noise could have made it."""

    answer: Answer
    reason: str
    seeds: tuple[int, int]
    alpha: float
    worse_by: float | None = None  # mean of the second less that of the first, in the metric's unit
    low: float | None = None  # confidence interval of it; None: no bound
    high: float | None = None
    noise_sd: float | None = None  # standard deviation between seeds, pooled
    p: float | None = None  # two-sided
    detectable: float | None = None  # smallest effect that these seeds show with 80 %; None: none
    seeds_needed: int | None = None  # on each side, to show an effect as large as this with 80 %


@dataclass(frozen=True)
class Deviation:
    """How one platform's seeds differ from those of the reference."""

    platform: str
    answer: PlatformAnswer
    reason: str
    seeds: int
    worse_by: float | None = None  # than the reference, in the metric's unit
    sds: float | None = None  # the same in standard deviations between seeds
    p: float | None = None  # two-sided, of no deviation; adjusted (Holm)
    p_inside: float | None = None  # of a deviation of WITHIN_SD or more
    p_spread: float | None = None  # of no larger spread; adjusted (Holm)
    seeds_needed: int | None = None  # on each side, to show that an equal platform is inside


# --------------------------------------------------------------------------------- effects


def compare(first: Values, second: Values, alpha: float = 0.05) -> Effect:
    """Is the difference of two configurations larger than the noise of their seeds?

    Two-sided at ``alpha``: exact permutation up to six seeds a side, Welch's t test above, and the
    interval that belongs to the test. Raises ValueError for what is no sample.

    >>> import numpy as np
    >>> base = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    >>> compare(base, base - 0.5).answer, compare(base, base + 0.03).answer
    ('larger than the noise', 'inside the noise')
    >>> compare(base[:3], base[:3] - 0.5).answer
    'not enough seeds'
    """
    _check_alpha(alpha)
    for name, values in (("first", first), ("second", second)):
        check_sample(values, name)
    sizes = (len(first), len(second))
    if min(sizes) < 2:
        reason = (
            f"{sizes[0]} against {sizes[1]} seeds show no noise to compare with; {_enough(alpha)} on "
            f"each side are the least that can show an effect at {alpha:g}"
        )
        return Effect("not enough seeds", reason, sizes, alpha)
    worse_by = float(second.mean() - first.mean())
    sd = pooled_sd(first, second)
    smallest = smallest_p(*sizes)
    p = two_sided_p(first, second)
    low, high = interval(first, second, alpha)
    shown = detectable(sd, *sizes, alpha)
    needed = seeds_needed(sd, abs(worse_by), alpha / 2) if worse_by else None
    between = (
        f"between {_worse(low)} and {_worse(high)} at {100 * (1 - alpha):g} %"
        if low is not None and high is not None
        else "without a bound at these seeds"
    )
    said = (
        f"the second is {_worse(worse_by)} ({between}), {abs(worse_by) / sd:.2g} standard "
        f"deviations of the seeds ({sd:.3g})"
    )
    answer: Answer
    if smallest > alpha:
        answer = "not enough seeds"
        enough = _enough(alpha)
        reason = (
            f"{said}; {sizes[0]} against {sizes[1]} seeds can show no effect at all at "
            f"{alpha:g}, {enough} on each side are the least"
        )
    elif p <= alpha:
        answer = "larger than the noise"
        reason = f"{said}; two-sided p {p:.3g} against {alpha:g}"
    else:
        answer = "inside the noise"
        could = "no effect" if shown is None else f"one of {shown:.3g}"
        reason = (
            f"{said}, which seeds alone may make (two-sided p {p:.3g} against {alpha:g}); this does "
            f"not say that they are equal: {sizes[0]} against {sizes[1]} seeds could show {could} "
            f"with {100 * POWER:g} %"
        )
        if needed is not None:
            reason += f", and one as small as this takes {needed} a side"
        elif worse_by:
            reason += f", and one as small as this takes more than {MOST_SEEDS} a side"
    return Effect(answer, reason, sizes, alpha, worse_by, low, high, sd, p, shown, needed)


def two_sided_p(first: Values, second: Values) -> float:
    """Twice the smaller one-sided p-value, at most 1.

    >>> import numpy as np
    >>> round(two_sided_p(np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7, 8])), 4)
    0.0286
    """
    lower = float(mean_p(first, second, 0.0))
    upper = float(mean_p(second, first, 0.0))
    return min(1.0, 2 * min(lower, upper))


def smallest_p(first: int, second: int) -> float:
    """The smallest two-sided p-value that so many seeds can give; 0 where none is smallest.

    >>> [round(smallest_p(n, n), 4) for n in (1, 3, 4, 7)]
    [1.0, 0.1, 0.0286, 0.0]
    """
    if min(first, second) < 2:
        return 1.0
    if max(first, second) > EXACT_UP_TO:
        return 0.0
    return min(1.0, 2 / math.comb(first + second, second))


def interval(first: Values, second: Values, alpha: float) -> tuple[float | None, float | None]:
    """Confidence interval of mean(second) - mean(first): the shifts that the test does not reject.

    Exact: of each split, the shift at which it is as extreme as what was observed; the interval ends
    at the rank that leaves alpha / 2 on each side (Hartigan 1969). ``None`` where seeds are too few.

    >>> import numpy as np
    >>> interval(np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7, 8]), 0.05)
    (1.0, 7.0)
    """
    n, m = len(first), len(second)
    if max(n, m) > EXACT_UP_TO:
        from scipy import stats

        found = stats.ttest_ind(second, first, equal_var=False).confidence_interval(1 - alpha)
        return float(found.low), float(found.high)
    table = splits(n + m, m)
    kept = table[n:].sum(axis=0)  # of the second sample's values in each split
    sums = np.concatenate([first, second]) @ table
    shifts = np.sort((second.sum() - sums[kept < m]) / (m - kept[kept < m]))
    rank = math.floor(alpha / 2 * table.shape[1] + 1e-9)
    if rank < 1:
        return None, None
    return float(shifts[rank - 1]), float(shifts[-rank])


def detectable(sd: float, first: int, second: int, alpha: float = 0.05) -> float | None:
    """The smallest effect that is shown with the chance :data:`POWER`; ``None``: none is.

    >>> round(detectable(1.0, 10, 10), 2), detectable(1.0, 3, 3)
    (1.32, None)
    """
    if smallest_p(first, second) > alpha:
        return None
    low, high = 0.0, sd
    while power(sd, high, first, second, alpha / 2) < POWER:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if power(sd, middle, first, second, alpha / 2) < POWER:
            low = middle
        else:
            high = middle
    return high


# ------------------------------------------------------------------------------- platforms


def platforms(
    samples: Mapping[str, Values],
    reference: str | None = None,
    within_sd: float = WITHIN_SD,
    alpha: float = 0.05,
) -> tuple[str, tuple[Deviation, ...]]:
    """The reference, and each other platform's deviation from it: inside the seeds' noise, or a fault?

    Inside: shown, at ``alpha``, to be less than ``within_sd`` standard deviations; all
    may be said to be inside together, because each was shown. A fault: not inside, and the means
    differ at ``alpha``, or the seeds spread more at :data:`VARIANCE_ALPHA`, both by Holm's steps over
    the platforms. Neither: not enough seeds, with the number needed. Without ``reference`` it is the
    platform with the most seeds. Raises ValueError.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cards = {"T4": rng.normal(0, 1, 40), "L4": rng.normal(0, 1, 40), "K80": rng.normal(3, 1, 40)}
    >>> _, found = platforms(cards, "T4")
    >>> [(each.platform, each.answer) for each in found]
    [('L4', 'inside the noise'), ('K80', 'fault')]
    """
    _check_alpha(alpha)
    if not (math.isfinite(within_sd) and within_sd > 0):
        raise ValueError(
            f"within is {within_sd:g}, it must be a positive number of standard deviations"
        )
    if len(samples) < 2:
        only = f" ({next(iter(samples))})" if samples else ""
        raise ValueError(
            f"there is {'one platform' if samples else 'no platform'}{only}, two are compared"
        )
    if reference is None:
        reference = min(samples, key=lambda name: (-len(samples[name]), name))
    if reference not in samples:
        raise ValueError(
            f"there is no platform {reference!r}, there are {', '.join(sorted(samples))}"
        )
    for name, values in samples.items():
        if len(values) > 1:
            check_sample(values, name)
    base = samples[reference]
    if len(base) < 2:
        raise ValueError(
            f"the reference {reference} has {len(base)} seed, its noise shows with 2 or more"
        )
    others = {name: values for name, values in samples.items() if name != reference}
    judged = {name: values for name, values in others.items() if len(values) > 1}
    means = holm([two_sided_p(base, values) for values in judged.values()])
    spreads = holm([float(variance_p(base, values)) for values in judged.values()])
    adjusted = dict(zip(judged, zip(means, spreads, strict=True), strict=True))
    found = [
        _deviation(reference, base, name, values, adjusted.get(name), within_sd, alpha)
        for name, values in others.items()
    ]
    return reference, tuple(found)


def _deviation(
    reference: str,
    base: Values,
    name: str,
    values: Values,
    adjusted: tuple[float, float] | None,
    within_sd: float,
    alpha: float,
) -> Deviation:
    needed = seeds_needed_inside(within_sd, alpha)
    if adjusted is None:
        return Deviation(
            name, "not enough seeds", f"{len(values)} seed of {name} shows no noise; {_words(needed)}",
            len(values), seeds_needed=needed,
        )  # fmt: skip
    p, p_spread = adjusted
    worse_by, sd = float(values.mean() - base.mean()), pooled_sd(base, values)
    p_inside = inside_p(base, values, within_sd)
    said = (
        f"{name} is {_worse(worse_by)} than {reference}, {abs(worse_by) / sd:.2g} standard deviations "
        f"of the seeds ({sd:.3g})"
    )
    answer: PlatformAnswer
    if p_spread <= VARIANCE_ALPHA:
        answer = "fault"
        ratio = float(values.std(ddof=1) / base.std(ddof=1))
        reason = f"{said}, and its seeds spread {ratio:.2g} times as much (Holm p {p_spread:.3g}): a fault"
    elif p_inside <= alpha:
        answer = "inside the noise"
        also = "; it is there, and smaller than what a seed does" if p <= alpha else ""
        reason = f"{said}, shown to be less than {within_sd:g} (p {p_inside:.3g}){also}"
    elif p <= alpha:
        answer = "fault"
        reason = (
            f"{said}, more than seeds make (Holm p {p:.3g} against {alpha:g}): look for a fault"
        )
    else:
        answer = "not enough seeds"
        reason = (
            f"{said}: neither shown to be a fault (Holm p {p:.3g}) nor to be less than {within_sd:g} "
            f"(p {p_inside:.3g}); {_words(needed)}"
        )
    return Deviation(
        name, answer, reason, len(values), worse_by, worse_by / sd, p, p_inside, p_spread, needed
    )


def inside_p(first: Values, second: Values, within_sd: float) -> float:
    """p-value of "the means are ``within_sd`` standard deviations or more apart".

    The larger p-value of the two one-sided tests, by the noncentral t: at or below alpha where the
    interval of the standardised difference at 1 - 2 alpha lies between the margins (Schuirmann 1987).

    >>> import numpy as np
    >>> base = np.arange(20.0)
    >>> inside_p(base, base, 1.0) < 0.05 < inside_p(base, base + 6, 1.0)
    True
    """
    from scipy import stats

    n, m = len(first), len(second)
    scale = math.sqrt(n * m / (n + m))
    t = scale * abs(float(second.mean() - first.mean())) / pooled_sd(first, second)
    return float(stats.nct.cdf(t, n + m - 2, scale * within_sd))


def seeds_needed_inside(within_sd: float, alpha: float = 0.05) -> int | None:
    """Seeds on each side that show an equal platform to be inside with the chance :data:`POWER`.

    >>> [seeds_needed_inside(within) for within in (0.5, 1.0, 2.0)]
    [69, 18, 5]
    """
    return least_seeds(lambda seeds: _power_inside(seeds, within_sd, alpha) >= POWER)


def _power_inside(seeds: int, within_sd: float, alpha: float) -> float:
    from scipy import stats

    freedom = 2 * seeds - 2
    critical = float(stats.nct.ppf(alpha, freedom, math.sqrt(seeds / 2) * within_sd))
    return max(0.0, 1 - 2 * float(stats.t.sf(critical, freedom)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    count = len(p_values)
    adjusted, least = [0.0] * count, 0.0
    for rank, at in enumerate(sorted(range(count), key=lambda at: p_values[at])):
        least = max(least, min(1.0, (count - rank) * p_values[at]))
        adjusted[at] = least
    return adjusted


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha:g}, it lies between 0 and 0.5")


def _enough(alpha: float) -> int:
    """The least seeds on each side that can show anything at ``alpha``."""
    return next(n for n in range(2, EXACT_UP_TO + 2) if smallest_p(n, n) <= alpha)


def _words(needed: int | None) -> str:
    many = f"more than {MOST_SEEDS}" if needed is None else str(needed)
    return f"{many} on each side show an equal platform with {100 * POWER:g} %"


def _worse(by: float) -> str:
    return (
        f"{by:.3g} worse"
        if by > 0
        else f"{-by:.3g} better"
        if by < 0
        else "neither worse nor better"
    )
