"""Is a retrained model not worse than its parent? Small pure functions over seeds and examples.

Every function takes values of which **less is better**; :func:`oriented` turns a maximised metric
round. A margin is in the metric's unit and was stated before the retrain. None of them ever reads
"not significantly different" as "equal": with 5 reference and 3 new seeds that gate passes a model
1.5 standard deviations worse two times in three (bench/spread_operating.py prints the table).

Sources: Piaggio et al. 2012 (CONSORT non-inferiority); Welch 1947; Pitman 1937 (permutation);
Hahn and Meeker 1991, chapter 4 (prediction bounds); Lazarus, Lewis, Stock and Watson 2018 (means of
dependent examples); Berger 1982 (intersection-union: several metrics, each at the full level);
Bouthillier et al. 2021 and Jordan 2023 (what the spread of seeds is made of). docs/spread.md says what each check does and cannot tell.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["PASS", "BLOCK", "NOT_ENOUGH_SEEDS"]
Values = NDArray[np.float64]

POWER = 0.8
#: Alpha of the variance guard. 0.01, because an equal model must pass all checks together with
#: probability 0.90 at 10 v 10 seeds, and the mean alone passes it with 0.94 (margin 1.5 sd).
VARIANCE_ALPHA = 0.01
#: Chance that the worst of the new seeds lies beyond the bound without any margin, if all is equal.
WORST_SEED_ALPHA = 0.05
#: Up to so many seeds a side the exact permutation test: 12 v 6 splits are 924 at most.
EXACT_UP_TO = 6
MIN_EXAMPLES = 30
_CELLS = 4_000_000  # of the table of splits held at once, when many samples are tested together
MOST_SEEDS = 10_000  # nobody trains more of one point; a search for the number needed ends here


@dataclass(frozen=True)
class Finding:
    """What one check says, in a sentence and in numbers."""

    check: str
    outcome: Outcome
    reason: str
    numbers: dict[str, float]


def oriented(values: Sequence[float], direction: Literal["minimize", "maximize"]) -> Values:
    """The values as losses: unchanged when minimised, with the sign turned when maximised.

    >>> oriented([0.5, 0.7], "maximize").tolist()
    [-0.5, -0.7]
    """
    if direction not in ("minimize", "maximize"):
        raise ValueError(f"the direction is {direction!r}, there are minimize and maximize")
    array = np.asarray(values, dtype=np.float64)
    return array if direction == "minimize" else -array


# ------------------------------------------------------------------------- many samples at once


def mean_p(reference: Values, new: Values, margin: float) -> Values:
    """One-sided p-values of "the mean of ``new`` is ``margin`` or more above that of ``reference``".

    Samples lie along the last axis, (..., n) and (..., m); the answer has the axes before it.
    Exact permutation up to :data:`EXACT_UP_TO` seeds a side, Welch's t test above.
    """
    if max(reference.shape[-1], new.shape[-1]) <= EXACT_UP_TO:
        return permutation_p(reference, new - margin)
    from scipy import stats  # inside, here and below: 0.9 s of CPU, and most processes test nothing

    found = stats.ttest_ind(new - margin, reference, axis=-1, equal_var=False, alternative="less")
    return np.asarray(found.pvalue)


def permutation_p(reference: Values, shifted: Values) -> Values:
    """Share of all splits whose mean of the second part is as low as the one observed; exact.

    Samples lie along the last axis. Pitman 1937.

    >>> import numpy as np
    >>> round(float(permutation_p(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))), 3)
    0.05
    """
    pooled = np.concatenate([reference, shifted], axis=-1)
    pooled = pooled - pooled.mean(axis=-1, keepdims=True)  # a common level costs digits only
    rows = pooled.reshape(-1, pooled.shape[-1])
    observed = rows[:, reference.shape[-1] :].sum(axis=-1)
    most = observed + 1e-12 * np.abs(rows).sum(axis=-1)  # of equal splits none is lost to rounding
    table = splits(pooled.shape[-1], shifted.shape[-1])
    at_once = max(1, _CELLS // table.shape[1])
    shares = [
        np.mean(rows[i : i + at_once] @ table <= most[i : i + at_once, None], axis=-1)
        for i in range(0, len(rows), at_once)
    ]
    return np.asarray(np.concatenate(shares).reshape(pooled.shape[:-1]))


@functools.cache
def splits(size: int, chosen: int) -> Values:
    """Every choice of ``chosen`` out of ``size`` as a column of ones and zeros."""
    places = np.array(list(itertools.combinations(range(size), chosen)))
    table = np.zeros((size, len(places)))
    table[places.T, np.arange(len(places))] = 1.0
    return table


def variance_p(reference: Values, new: Values) -> Values:
    """One-sided p-values of the F test that ``new`` spreads no more; samples along the last axis."""
    from scipy import stats

    ratio = new.var(axis=-1, ddof=1) / reference.var(axis=-1, ddof=1)
    return np.asarray(stats.f.sf(ratio, new.shape[-1] - 1, reference.shape[-1] - 1))


def pooled_sd(reference: Values, new: Values) -> float:
    """Standard deviation between seeds, of both samples together, each around its own mean.

    >>> import numpy as np
    >>> pooled_sd(np.array([1.0, 3.0]), np.array([11.0, 13.0])) ** 2
    2.0000000000000004
    """
    n, m = len(reference), len(new)
    squares = (n - 1) * reference.var(ddof=1) + (m - 1) * new.var(ddof=1)
    return math.sqrt(float(squares) / (n + m - 2))


def check_sample(values: Values, name: str) -> None:
    """Refuse what is no sample of seeds. Raises ValueError with a sentence."""
    if values.ndim != 1:
        raise ValueError(f"the {name}'s values must be one number per seed")
    if not np.all(np.isfinite(values)):
        raise ValueError(f"a metric of the {name} is not a finite number")
    if len(values) < 2:
        return
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        raise ValueError(
            f"all {len(values)} seeds of the {name} gave {_short(float(values[0]))}: "
            "the seed seems to change nothing, so there is no spread to judge by"
        )
    with np.errstate(over="ignore", under="ignore"):
        variance = float(values.var(ddof=1))
    if not np.finfo(np.float64).tiny < variance < math.inf:
        raise ValueError(
            f"the values of the {name} spread by {_short(float(np.ptp(values)))}, whose square "
            "no floating-point number holds: measure in another unit"
        )


def bound_factor(reference: int, new: int, alpha: float = WORST_SEED_ALPHA) -> float:
    """Standard deviations above the reference's mean that none of ``new`` seeds is to exceed.

    Bonferroni over them (Hahn and Meeker 1991, section 4.8).

    >>> round(bound_factor(10, 10), 2)
    3.41
    """
    from scipy import stats

    return float(stats.t.isf(alpha / new, reference - 1)) * math.sqrt(1 + 1 / reference)


def worst_bound(reference: Values, factor: float, margin: float) -> Values:
    """What no new seed may exceed; samples along the last axis."""
    sd = reference.std(axis=-1, ddof=1)
    return np.asarray(reference.mean(axis=-1) + factor * sd + margin)


def seeds_pass(
    reference: Values, new: Values, margin: float, alpha: float = 0.05
) -> NDArray[np.bool_]:
    """Where all of :func:`seed_spread` say PASS, for many samples along the last axis at once."""
    factor = bound_factor(reference.shape[-1], new.shape[-1])
    return np.asarray(
        (mean_p(reference, new, margin) <= alpha)
        & (variance_p(reference, new) > VARIANCE_ALPHA)
        & (new.max(axis=-1) <= worst_bound(reference, factor, margin))
    )


# ---------------------------------------------------------------------------------- power


@functools.lru_cache(maxsize=4096)
def power(sd: float, margin: float, reference: int, new: int, alpha: float = 0.05) -> float:
    """Chance that an equal model passes :func:`non_inferiority`; ``sd`` and ``margin`` in one unit.

    Of the one-sided t test with equal variances (noncentral t; Julious 2004, section 3). The exact
    permutation test has up to 0.02 less at 5 and 6 seeds a side, up to 0.05 less at 3 and 4
    (20,000 simulated repetitions, margins of 1 to 3.5 sd).

    >>> round(power(sd=1, margin=1.5, reference=10, new=10), 2)
    0.94
    >>> round(power(sd=1, margin=2.5, reference=5, new=5), 2)
    0.97
    """
    _check_terms(margin, alpha)
    if not (math.isfinite(sd) and sd > 0):
        raise ValueError(f"the standard deviation is {sd}, it must be a positive number")
    if min(reference, new) < 2:
        return 0.0
    from scipy import stats

    freedom = reference + new - 2
    shift = margin / (sd * math.sqrt(1 / reference + 1 / new))
    return float(stats.nct.sf(stats.t.isf(alpha, freedom), freedom, shift))


@functools.lru_cache(maxsize=1024)  # a run of the chain asks the same dozens of times
def seeds_needed(
    sd: float, margin: float, alpha: float = 0.05, wanted: float = POWER
) -> int | None:
    """Seeds on each side, so that an equal model passes with the chance ``wanted``.

    ``None`` when :data:`MOST_SEEDS` do not suffice.

    >>> [seeds_needed(sd=1, margin=m) for m in (2.5, 1.5, 0.5, 1e-6)]
    [3, 7, 51, None]
    """
    if not 0 < wanted < 1:
        raise ValueError(f"the power wanted is {wanted}, it lies between 0 and 1")
    needed = least_seeds(lambda seeds: power(sd, margin, seeds, seeds, alpha) >= wanted)
    if needed is None:
        return None
    # an exact test of 2 or 3 seeds a side has no p-value below alpha to give
    while needed <= EXACT_UP_TO and 1 / math.comb(2 * needed, needed) > alpha:
        needed += 1
    return needed


def least_seeds(enough: Callable[[int], bool]) -> int | None:
    """The least number from 2 that is ``enough``, which no larger one ceases to be.

    ``None`` when :data:`MOST_SEEDS` do not suffice.

    >>> least_seeds(lambda seeds: seeds >= 37), least_seeds(lambda seeds: False)
    (37, None)
    """
    low, high = 1, 2
    while not enough(high):
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


# ---------------------------------------------------------------------------------- seeds


def non_inferiority(
    reference: Values, new: Values, margin: float, alpha: float = 0.05, wanted: float = POWER
) -> Finding:
    """Is the mean of ``new`` proved to be less than ``margin`` above the mean of ``reference``?

    One-sided, at level ``alpha``: exact permutation of the shifted values up to
    :data:`EXACT_UP_TO` seeds a side, Welch's t test above. Not proved is BLOCK, or
    NOT_ENOUGH_SEEDS where the seeds at hand would have proved it for an equal model with less than
    the chance ``wanted`` and do not prove the contrary either.

    >>> import numpy as np
    >>> parent, child = np.array([1.0, 1.1, 0.9, 1.05, 0.95]), np.array([1.0, 1.1, 0.92, 1.0, 0.97])
    >>> non_inferiority(parent, child, margin=0.2).outcome
    'PASS'
    >>> non_inferiority(parent, child + 0.2, margin=0.2).outcome
    'BLOCK'
    >>> non_inferiority(parent, child, margin=0.02).outcome
    'NOT_ENOUGH_SEEDS'
    """
    _check_terms(margin, alpha)
    if (few := _too_few("non_inferiority", reference, new, margin, alpha)) is not None:
        return few
    worse_by = float(new.mean() - reference.mean())
    exact = max(len(reference), len(new)) <= EXACT_UP_TO
    p = float(mean_p(reference, new, margin))
    sd = pooled_sd(reference, new)
    chance = power(sd, margin, len(reference), len(new), alpha)
    numbers = {
        "worse_by": worse_by,
        "margin": margin,
        "p": p,
        "alpha": alpha,
        "reference_mean": float(reference.mean()),
        "new_mean": float(new.mean()),
        "pooled_sd": sd,
        "reference_seeds": float(len(reference)),
        "new_seeds": float(len(new)),
        "power": chance,
    }
    test = "exact permutation" if exact else "Welch t"
    said = (
        f"the mean is {_worse(worse_by)}, the margin is {_short(margin)} "
        f"({test}, one-sided p {_short(p)} against {_short(alpha)})"
    )
    if p <= alpha:
        return Finding("non_inferiority", "PASS", f"not worse: {said}", numbers)
    smallest = 1 / math.comb(len(reference) + len(new), len(new)) if exact else 0.0
    needed = seeds_needed(sd, margin, alpha, wanted)
    numbers |= _needed_number(needed)
    shown_worse = float(mean_p(new, reference, -margin)) <= alpha
    if not shown_worse and (chance < wanted or smallest > alpha):
        reason = (
            f"not enough seeds to tell: {said}; {len(reference)} against {len(new)} seeds prove it "
            f"for an equal model with probability {_short(chance)}, {_needed_words(needed)} on each "
            f"side with {_short(wanted)}"
        )
        return Finding("non_inferiority", "NOT_ENOUGH_SEEDS", reason, numbers)
    return Finding("non_inferiority", "BLOCK", f"not proved to be not worse: {said}", numbers)


def variance_guard(reference: Values, new: Values, alpha: float = VARIANCE_ALPHA) -> Finding:
    """Do the new seeds spread more than the reference's? One-sided F test of the two variances.

    Under heavier tails than the normal's F blocks more often than ``alpha``: it errs to the safe
    side. Brown and Forsythe's test passes three times the spread oftener at ten seeds.

    >>> import numpy as np
    >>> narrow = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    >>> [variance_guard(narrow, 1 + k * (narrow - 1)).outcome for k in (1, 9)]
    ['PASS', 'BLOCK']
    """
    if (few := _too_few("variance_guard", reference, new, None, alpha)) is not None:
        return few
    p = float(variance_p(reference, new))
    numbers = {
        "reference_sd": float(reference.std(ddof=1)),
        "new_sd": float(new.std(ddof=1)),
        "p": p,
        "alpha": alpha,
    }
    said = (
        f"the seeds' standard deviation is {_short(numbers['new_sd'])} against the parent's "
        f"{_short(numbers['reference_sd'])} (one-sided F, p {_short(p)} against {_short(alpha)})"
    )
    if p <= alpha:
        return Finding("variance_guard", "BLOCK", f"the retrain spreads more: {said}", numbers)
    return Finding("variance_guard", "PASS", said, numbers)


def worst_seed_bound(
    reference: Values, new: Values, margin: float, alpha: float = WORST_SEED_ALPHA
) -> Finding:
    """Is no new seed beyond what the reference's seeds allow?

    The bound is the reference's upper prediction bound for all new seeds together (Bonferroni over
    them; Hahn and Meeker 1991, section 4.8) plus the margin: it finds a seed that diverged.

    >>> import numpy as np
    >>> parent = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    >>> worst_seed_bound(parent, np.array([1.0, 1.1, 0.9, 1.0, 3.0]), margin=0.2).outcome
    'BLOCK'
    """
    _check_terms(margin, alpha)
    if (few := _too_few("worst_seed_bound", reference, new, margin, alpha)) is not None:
        return few
    k = bound_factor(len(reference), len(new), alpha)
    bound = float(worst_bound(reference, k, margin))
    worst = float(new.max())
    above = worst - float(reference.mean())
    numbers = {"worst": worst, "bound": bound, "k": k, "margin": margin}
    said = (
        f"the worst new seed is {_worse(above)} than the parent's mean, the bound is "
        f"{_worse(bound - float(reference.mean()))} ({_short(k)} standard deviations and the margin)"
    )
    outcome: Outcome = "PASS" if worst <= bound else "BLOCK"
    return Finding("worst_seed_bound", outcome, said, numbers)


def seed_spread(
    reference: Values, new: Values, margin: float, alpha: float = 0.05, wanted: float = POWER
) -> tuple[Finding, Finding, Finding]:
    """The three checks of one metric over seeds; it may be deployed when all say PASS.

    >>> import numpy as np
    >>> parent = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    >>> [f.outcome for f in seed_spread(parent, parent + 0.01, margin=0.2)]
    ['PASS', 'PASS', 'PASS']
    """
    return (
        non_inferiority(reference, new, margin, alpha, wanted),
        variance_guard(reference, new),
        worst_seed_bound(reference, new, margin),
    )


# ------------------------------------------------------------------------------- examples


def paired_examples(
    reference: Sequence[Values], new: Sequence[Values], margin: float, alpha: float = 0.05
) -> Finding:
    """Is the mean loss per example proved to be less than ``margin`` above the reference's?

    Each side has one array per seed, over the same examples in the same order. The seeds' mean per
    example is compared, so the difficulty that both share cancels. Neighbouring examples may depend
    on each other (days): the variance of the mean is the equal-weighted cosine estimate with
    ``0.4 * n ** (2/3)`` terms and Student's t (Lazarus et al. 2018, section 3).

    >>> import numpy as np
    >>> hard = np.sin(np.arange(400.0)) ** 2
    >>> noise = np.random.default_rng(1).normal(0, 0.01, (2, 400))
    >>> paired_examples([hard], [hard + noise[0]], margin=0.01).outcome
    'PASS'
    >>> paired_examples([hard], [hard + 0.02 + noise[0]], margin=0.01).outcome
    'BLOCK'
    """
    _check_terms(margin, alpha)
    sizes = {len(losses) for losses in [*reference, *new]}
    if not reference or not new:
        raise ValueError("there are no per-example losses on one side")
    if len(sizes) != 1:
        raise ValueError(
            "the losses are over different numbers of examples "
            f"({', '.join(map(str, sorted(sizes)))}), so they cannot be paired"
        )
    (count,) = sizes
    if count < MIN_EXAMPLES:
        raise ValueError(f"{count} examples are too few to pair, {MIN_EXAMPLES} are the least")
    difference = np.mean(np.stack(new), axis=0) - np.mean(np.stack(reference), axis=0)
    if not np.all(np.isfinite(difference)):
        raise ValueError("a per-example loss is not a finite number")
    if float(np.ptp(difference)) == 0.0:
        raise ValueError("every example differs by the same amount: these are not two models")
    from scipy import stats

    error, freedom = mean_error(difference)
    worse_by = float(difference.mean())
    p = float(stats.t.cdf((worse_by - margin) / error, freedom)) if error > 0 else float(
        worse_by >= margin
    )  # fmt: skip
    bound = worse_by + float(stats.t.isf(alpha, freedom)) * error
    numbers = {
        "worse_by": worse_by,
        "standard_error": error,
        "upper_bound": bound,
        "margin": margin,
        "p": p,
        "alpha": alpha,
        "examples": float(count),
    }
    limit = "at most" if bound > 0 else "at least"
    said = (
        f"over {count} paired examples the mean loss is {_worse(worse_by)}, {limit} "
        f"{_worse(bound)} at {_short(100 * (1 - alpha))} %, the margin is {_short(margin)}"
    )
    outcome: Outcome = "PASS" if p <= alpha else "BLOCK"
    return Finding("paired_examples", outcome, said, numbers)


def mean_error(values: Values) -> tuple[float, int]:
    """Standard error of the mean of dependent values in order, and its degrees of freedom.

    >>> import numpy as np
    >>> error, freedom = mean_error(np.random.default_rng(0).normal(0, 1, 1000))
    >>> freedom, 0.7 < error * 1000 ** 0.5 < 1.3
    (40, True)
    """
    count = len(values)
    terms = max(1, round(0.4 * count ** (2 / 3)))
    centred = values - values.mean()
    at = (np.arange(count) + 0.5) / count
    orders = np.arange(1, terms + 1)
    waves = math.sqrt(2 / count) * np.cos(math.pi * np.outer(orders, at)) @ centred
    return math.sqrt(float(np.mean(waves**2)) / count), terms


# ------------------------------------------------------------------------------- internals


def _check_terms(margin: float, alpha: float) -> None:
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(
            f"the margin is {margin}; it must be a positive number in the metric's unit: "
            "no finite number of seeds proves that a model is not worse by nothing at all"
        )
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha is {alpha}, it lies between 0 and 0.5")


def _too_few(
    check: str, reference: Values, new: Values, margin: float | None, alpha: float
) -> Finding | None:
    """Refuse what is no sample; say NOT_ENOUGH_SEEDS for a sample without any spread to know."""
    for name, values in (("parent", reference), ("retrain", new)):
        check_sample(values, name)
    needed: int | None = 2
    if margin is not None and len(reference) > 1 and np.ptp(reference) > 0:
        needed = seeds_needed(float(reference.std(ddof=1)), margin, alpha)
    if min(len(reference), len(new)) < 2:
        reason = (
            f"{len(reference)} against {len(new)} seeds show no spread; "
            f"{'at least ' if needed else ''}{_needed_words(needed)} on each side are needed"
        )
        return Finding(check, "NOT_ENOUGH_SEEDS", reason, _needed_number(needed))
    return None


def _needed_words(needed: int | None) -> str:
    return f"more than {MOST_SEEDS}" if needed is None else str(needed)


def _needed_number(needed: int | None) -> dict[str, float]:
    """For :attr:`Finding.numbers`: the number needed, or the one that does not suffice."""
    if needed is None:
        return {"seeds_needed_above": float(MOST_SEEDS)}
    return {"seeds_needed": float(needed)}


def _short(value: float) -> str:
    return f"{value:.3g}"


def _worse(by: float) -> str:
    return f"{_short(by)} worse" if by > 0 else f"{_short(-by)} better"
