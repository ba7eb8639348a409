"""Would another test of the spread serve the gate over seeds better than F?

    python bench/spread_guards.py --repetitions 20000    # a minute

Each row is P(pass) of an equal model / of one that spreads three times as much, with the gate's mean
and worst-seed checks and another variance guard, 10 seeds against 10. The levels were chosen where the
normal meets the gate's targets, on other seeds and on three of these distributions (normal, log-normal
0.5, t with 4 degrees); the rest were looked at once. Below: what more seeds do for the gate as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.instruments.report import Report, arguments
from bench.spread_operating import correlated, heavy, normal, skewed
from tenure.statistics import bound_factor, mean_p, seeds_pass, variance_p, worst_bound

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int, int]], Values]
MARGIN, ALPHA, SEEDS = 1.5, 0.05, 10
REPETITIONS, QUICK_REPETITIONS = 2000, 50


def deviations_p(reference: Values, new: Values, centre: Callable[..., Values]) -> Values:
    """One-sided t of the absolute deviations: Brown and Forsythe about the median, Levene about the mean."""
    sides = [np.abs(x - centre(x, axis=-1, keepdims=True)) for x in (new, reference)]
    equal = centre is np.median
    return np.asarray(
        stats.ttest_ind(*sides, axis=-1, equal_var=equal, alternative="greater").pvalue
    )


def kurtosis_p(reference: Values, new: Values) -> Values:
    """F with degrees of freedom that the pooled kurtosis takes away or adds (Shoemaker 2003)."""
    sides = (reference, new)
    sizes = [side.shape[-1] for side in sides]
    centred = [side - side.mean(axis=-1, keepdims=True) for side in sides]
    fourth = [
        (c**4).mean(axis=-1) / (c**2).mean(axis=-1) ** 2 * n
        for c, n in zip(centred, sizes, strict=True)
    ]
    pooled = (fourth[0] + fourth[1]) / sum(sizes)
    freedom = [np.clip(2 * n / (pooled - (n - 3) / (n - 1)), 1, 4 * n) for n in sizes]
    ratio = new.var(axis=-1, ddof=1) / reference.var(axis=-1, ddof=1)
    return np.asarray(stats.f.sf(ratio, freedom[1], freedom[0]))


GUARDS: dict[str, tuple[Callable[[Values, Values], Values], float]] = {
    "F, 0.01 (the gate)": (variance_p, 0.01),
    "Brown-Forsythe, 0.04": (lambda a, b: deviations_p(a, b, np.median), 0.04),
    "Levene-Welch, 0.03": (lambda a, b: deviations_p(a, b, np.mean), 0.03),
    "F by kurtosis, 0.01": (kurtosis_p, 0.01),
}


def log_normal(form: float, side: int = 1) -> Draw:
    mean = np.exp(form**2 / 2)
    sd = mean * np.sqrt(np.exp(form**2) - 1)
    return lambda rng, shape: np.asarray(side * (rng.lognormal(0, form, shape) - mean) / sd)


def contaminated(rng: np.random.Generator, shape: tuple[int, int, int]) -> Values:
    """One seed of twenty comes from three times the spread; standard deviation 1."""
    wide = rng.random(shape) < 0.05
    return np.asarray(rng.normal(0, np.where(wide, 3.0, 1.0)) / np.sqrt(1.4))


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": normal,
    "log-normal 0.5": skewed,
    "t, 4 degrees": heavy,
    "log-normal 0.3": log_normal(0.3),
    "log-normal 0.5, to the good side": log_normal(0.5, side=-1),
    "gamma 2": lambda rng, shape: np.asarray((rng.gamma(2, 1, shape) - 2) / np.sqrt(2)),
    "Laplace": lambda rng, shape: rng.laplace(0, np.sqrt(0.5), shape),
    "t, 6 degrees": lambda rng, shape: np.asarray(rng.standard_t(6, shape) / np.sqrt(1.5)),
    "uniform": lambda rng, shape: np.asarray(rng.uniform(-1, 1, shape) * np.sqrt(3)),
    "1 seed of 20 three times as wide": contaminated,
}


def guarded(draw: Draw, spread: float, repetitions: int, seed: int) -> dict[str, float]:
    """P(pass) by guard when the new model spreads ``spread`` times as much."""
    rng = np.random.default_rng([seed, round(spread)])
    parent, new = (draw(rng, (repetitions, 1, SEEDS))[:, 0] for _ in range(2))
    new = spread * new
    others = (mean_p(parent, new, MARGIN) <= ALPHA) & (
        new.max(axis=-1) <= worst_bound(parent, bound_factor(SEEDS, SEEDS), MARGIN)
    )
    return {
        name: float(np.mean(others & (p_of(parent, new) > level)))
        for name, (p_of, level) in GUARDS.items()
    }


def passed(draw: Draw, seeds: int, metrics: int, spread: float, repetitions: int) -> float:
    """P(pass) of the gate as it is; of several metrics the last alone spreads more."""
    rng = np.random.default_rng([seeds, metrics, round(spread)])
    parent, new = (draw(rng, (repetitions, metrics, seeds)) for _ in range(2))
    new[:, -1] *= spread
    each = [seeds_pass(parent[:, k], new[:, k], MARGIN) for k in range(metrics)]
    return float(np.mean(np.all(each, axis=0)))


MORE: dict[str, tuple[Draw, int]] = {
    "one metric, normal": (normal, 1),
    "one metric, skewed": (skewed, 1),
    "one metric, heavy tails": (heavy, 1),
    "two metrics, independent": (normal, 2),
    "four metrics, independent": (normal, 4),
    "four metrics, correlated": (correlated, 4),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repetitions", type=int, default=0, help=f"instead of {REPETITIONS}")
    options = parser.parse_args()
    report = Report("spread_guards", options)
    repetitions = options.repetitions or (QUICK_REPETITIONS if report.quick else REPETITIONS)
    report.note(f"P(pass) equal / three times the spread, {repetitions} repetitions")
    report.note(f"{'':34}" + "".join(f"{name:>22}" for name in GUARDS))
    for place, (name, draw) in enumerate(DISTRIBUTIONS.items()):
        equal, wide = (guarded(draw, spread, repetitions, 4242 + place) for spread in (1.0, 3.0))
        cells = {guard: f"{equal[guard]:.3f} / {wide[guard]:.3f}" for guard in GUARDS}
        report.line(
            f"{name:34}", "".join(f"{cell:>22}" for cell in cells.values()),
            equal=equal, three_times=wide,
        )  # fmt: skip
    sizes = (10, 11, 12, 13, 14, 16, 20)
    report.note(f"{'the gate, seeds a side':34}" + "".join(f"{size:>16}" for size in sizes))
    for name, (draw, metrics) in MORE.items():
        found = {
            size: (
                passed(draw, size, metrics, 1.0, repetitions),
                passed(draw, size, metrics, 3.0, repetitions),
            )
            for size in sizes
        }
        report.line(
            f"{name:34}", "".join(f"{f'{a:.3f} / {b:.3f}':>16}" for a, b in found.values()),
            passed={str(size): pair for size, pair in found.items()},
        )  # fmt: skip
    report.end()


if __name__ == "__main__":
    main()
