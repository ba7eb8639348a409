"""How often does the gate over seeds pass a model that is equal, worse, or spreads more?

    python bench/spread_operating.py
    python bench/spread_operating.py --repetitions 20000    # half a minute

Prints P(pass) of the gate (non-inferiority, variance guard and worst-seed bound together) beside
the gates people use instead. Sigma is the parent's standard deviation between seeds. What is
measured is :func:`tenure.statistics.seeds_pass`, whose parts are those of the gate's own checks (a
test compares the two sample by sample). The seeds of the simulation are fixed, so the table is the
same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.instruments.report import Report, arguments
from tenure.seed_noise import platforms
from tenure.statistics import seeds_pass

Values = NDArray[np.float64]
Passed = NDArray[np.bool_]
#: Many samples at once: (repetitions, metrics, seeds) of the parent and of the new model.
Gate = Callable[[Values, Values], Passed]
Draw = Callable[[np.random.Generator, tuple[int, int, int]], Values]


def gate(margin: float) -> Gate:
    """The product's gate with a margin in sigmas; of several metrics all must pass."""

    def judge(parent: Values, new: Values) -> Passed:
        each = [
            seeds_pass(parent[:, metric], new[:, metric], margin)
            for metric in range(parent.shape[1])
        ]
        return np.asarray(np.all(each, axis=0))

    return judge


def naive_welch(parent: Values, new: Values) -> Passed:
    """'Not significantly different', the gate that passes whatever has few seeds."""
    found = stats.ttest_ind(new, parent, axis=-1, equal_var=False)
    return np.asarray(np.all(found.pvalue > 0.05, axis=-1))


def naive_two_sd(parent: Values, new: Values) -> Passed:
    """The new mean lies within two standard deviations."""
    away = np.abs(new.mean(axis=-1) - parent.mean(axis=-1))
    return np.asarray(np.all(away <= 2 * parent.std(axis=-1, ddof=1), axis=-1))


def naive_prediction(parent: Values, new: Values) -> Passed:
    """The new mean lies in the 95 % prediction interval for a mean of so many seeds."""
    n, m = parent.shape[-1], new.shape[-1]
    reach = stats.t.isf(0.025, n - 1) * np.sqrt(1 / n + 1 / m) * parent.std(axis=-1, ddof=1)
    away = np.abs(new.mean(axis=-1) - parent.mean(axis=-1))
    return np.asarray(np.all(away <= reach, axis=-1))


def naive_min_max(parent: Values, new: Values) -> Passed:
    """Every new seed lies between the parent's best and worst."""
    inside = (new.max(axis=-1) <= parent.max(axis=-1)) & (new.min(axis=-1) >= parent.min(axis=-1))
    return np.asarray(np.all(inside, axis=-1))


def normal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Values:
    return rng.normal(0, 1, shape)


def correlated(rng: np.random.Generator, shape: tuple[int, int, int]) -> Values:
    """Normal; any two metrics of a seed have the correlation 0.8."""
    common = rng.normal(0, 1, (shape[0], 1, shape[2]))
    return np.asarray(np.sqrt(0.8) * common + np.sqrt(0.2) * rng.normal(0, 1, shape))


def skewed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Values:
    """Log-normal with shape 0.5, centred, standard deviation 1; bad seeds lie far out."""
    form = 0.5
    mean = np.exp(form**2 / 2)
    sd = mean * np.sqrt(np.exp(form**2) - 1)
    return np.asarray((rng.lognormal(0, form, shape) - mean) / sd)


def heavy(rng: np.random.Generator, shape: tuple[int, int, int]) -> Values:
    """Student's t with 4 degrees of freedom, standard deviation 1."""
    return np.asarray(rng.standard_t(4, shape) / np.sqrt(2))


#: Of several metrics the last alone is worse or spreads more.
CASES = (("equal", 0.0, 1.0), ("1 worse", 1.0, 1.0), ("1.5 worse", 1.5, 1.0),
         ("2 worse", 2.0, 1.0), ("2.5 worse", 2.5, 1.0), ("3 x spread", 0.0, 3.0))  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    judge: Gate
    draw: Draw
    sizes: tuple[int, int]  # seeds of the parent, and of the new model
    metrics: int = 1


def share_passed(row: Row, worse: float, spread: float, repetitions: int) -> float:
    """P(pass) when the last metric is ``worse`` sigma worse and spreads ``spread`` as much."""
    rng = np.random.default_rng([*row.sizes, row.metrics, round(10 * worse), round(10 * spread)])
    parent = row.draw(rng, (repetitions, row.metrics, row.sizes[0]))
    new = row.draw(rng, (repetitions, row.metrics, row.sizes[1]))
    new[:, -1] = worse + spread * new[:, -1]
    return float(np.mean(row.judge(parent, new)))


def rows() -> list[Row]:
    """The gate over distributions, seeds and metrics, and the gates people use instead."""
    ours = [
        Row(f"gate, margin {margin:g}, {name}", gate(margin), draw, (seeds, seeds))
        for margin, seeds in ((1.5, 10), (2.5, 5))
        for name, draw in (("normal", normal), ("skewed", skewed), ("heavy tails", heavy))
    ]
    ours += [Row("gate, margin 1.5, normal", gate(1.5), normal, at) for at in ((5, 3), (10, 5))]
    several = [
        Row(f"gate, {count} metrics, {name}", gate(1.5), draw, (10, 10), count)
        for count in (2, 4)
        for name, draw in (("independent", normal), ("correlated", correlated))
    ]
    naive = [
        Row(f"naive: {name}", judge, normal, at)
        for at in ((5, 3), (10, 5), (10, 10))
        for name, judge in (
            ("Welch p > .05", naive_welch),
            ("mean within 2 sd", naive_two_sd),
            ("95 % prediction", naive_prediction),
            ("inside min-max", naive_min_max),
        )
    ]
    return ours + several + naive


#: How far a platform's seeds lie from those of the reference, in standard deviations.
AWAY = (0.0, 0.5, 1.0, 2.0, 3.0)
FEWER = 10  # platforms are judged one pair at a time, so by a tenth of the repetitions


def platform_answers(seeds: int, away: float, repetitions: int) -> dict[str, float]:
    """How often `tenure compare --by card` says each of its answers of one platform."""
    rng = np.random.default_rng([seeds, round(10 * away)])
    answers: Counter[str] = Counter()
    for _ in range(repetitions):
        samples = {"reference": rng.normal(0, 1, seeds), "other": rng.normal(away, 1, seeds)}
        answers.update(each.answer for each in platforms(samples, "reference")[1])
    return {answer: answers[answer] / repetitions for answer in ("inside the noise", "fault")}


#: What the gate has to reach with ten reference and ten new seeds.
WANTED = {"equal": "at least 0.90", "1.5 worse": "at most 0.06", "3 x spread": "at most 0.13"}
REPETITIONS, QUICK_REPETITIONS = 1000, 20


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repetitions", type=int, default=0, help=f"instead of {REPETITIONS}")
    options = parser.parse_args()
    report = Report("spread_operating", options)
    default = QUICK_REPETITIONS if report.quick else REPETITIONS
    repetitions = options.repetitions or default
    error = 0.5 / repetitions**0.5
    report.note(f"P(pass), {repetitions} repetitions, standard error at most {error:.4f}")
    report.note(f"{'':36}" + "".join(f"{name:>12}" for name, _, _ in CASES))
    target = "; ".join(f"{case} {wanted}" for case, wanted in WANTED.items())
    for row in rows():
        shares = {
            case: share_passed(row, worse, spread, repetitions) for case, worse, spread in CASES
        }
        aimed = row.name.startswith("gate") and row.sizes == (10, 10)
        report.line(
            f"{row.name:30}{row.sizes[0]:>3},{row.sizes[1]:>2}",
            "".join(f"{share:>12.3f}" for share in shares.values()),
            target if aimed else "",
            repetitions=repetitions, passed=shares,
        )  # fmt: skip
    fewer = max(1, repetitions // FEWER)
    report.note(f"a platform: inside the noise / fault, {fewer} repetitions")
    report.note(f"{'':36}" + "".join(f"{f'{away:g} sd away':>14}" for away in AWAY))
    for seeds in (5, 10, 20):
        found = {f"{away:g} sd": platform_answers(seeds, away, fewer) for away in AWAY}
        cells = (f"{a['inside the noise']:.2f} / {a['fault']:.2f}" for a in found.values())
        report.line(
            f"{'platform within 1 sd':30}{seeds:>3},{seeds:>2}",
            "".join(f"{cell:>14}" for cell in cells),
            repetitions=fewer, answers=found,
        )  # fmt: skip
    report.end()


if __name__ == "__main__":
    main()
