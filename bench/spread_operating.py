"""How often does the gate over seeds pass a model that is equal, worse, or spreads more?

    python bench/spread_operating.py
    python bench/spread_operating.py --repetitions 20000    # half an hour

Prints P(pass) of the gate (non-inferiority, variance guard and worst-seed bound together) beside
the gates people use instead. Sigma is the parent's standard deviation between seeds. The seeds of
the simulation are fixed, so the table is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.instruments.report import Report, arguments
from tenure.statistics import seed_spread

Values = NDArray[np.float64]
Gate = Callable[[Values, Values], bool]
Draw = Callable[[np.random.Generator, int], Values]


def gate(margin: float) -> Gate:
    """The product's gate with a margin in sigmas."""
    return lambda parent, new: all(f.outcome == "PASS" for f in seed_spread(parent, new, margin))


def naive_welch(parent: Values, new: Values) -> bool:
    """'Not significantly different', the gate that passes whatever has few seeds."""
    return bool(stats.ttest_ind(new, parent, equal_var=False).pvalue > 0.05)


def naive_two_sd(parent: Values, new: Values) -> bool:
    """The new mean lies within two standard deviations."""
    return bool(abs(new.mean() - parent.mean()) <= 2 * parent.std(ddof=1))


def naive_min_max(parent: Values, new: Values) -> bool:
    """Every new seed lies between the parent's best and worst."""
    return bool(new.max() <= parent.max() and new.min() >= parent.min())


def normal(rng: np.random.Generator, n: int) -> Values:
    return rng.normal(0, 1, n)


def skewed(rng: np.random.Generator, n: int) -> Values:
    """Log-normal with shape 0.5, centred, standard deviation 1."""
    shape = 0.5
    mean = np.exp(shape**2 / 2)
    sd = mean * np.sqrt(np.exp(shape**2) - 1)
    return np.asarray((rng.lognormal(0, shape, n) - mean) / sd)


def heavy(rng: np.random.Generator, n: int) -> Values:
    """Student's t with 4 degrees of freedom, standard deviation 1."""
    return np.asarray(rng.standard_t(4, n) / np.sqrt(2))


CASES = (("equal", 0.0, 1.0), ("1 worse", 1.0, 1.0), ("1.5 worse", 1.5, 1.0),
         ("2 worse", 2.0, 1.0), ("2.5 worse", 2.5, 1.0), ("3 x spread", 0.0, 3.0))  # fmt: skip


def share_passed(
    judge: Gate, draw: Draw, sizes: tuple[int, int], case: tuple[float, float], repetitions: int
) -> float:
    """P(pass) when the new model is ``case[0]`` sigma worse and spreads ``case[1]`` as much."""
    rng = np.random.default_rng([*sizes, round(10 * case[0]), round(10 * case[1])])
    passed = 0
    for _ in range(repetitions):
        parent = draw(rng, sizes[0])
        passed += judge(parent, case[0] + case[1] * draw(rng, sizes[1]))
    return passed / repetitions


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
    rows: list[tuple[str, Gate, Draw, tuple[int, int]]] = [
        ("gate, margin 1.5, normal", gate(1.5), normal, (10, 10)),
        ("gate, margin 1.5, skewed", gate(1.5), skewed, (10, 10)),
        ("gate, margin 1.5, heavy tails", gate(1.5), heavy, (10, 10)),
        ("gate, margin 2.5, normal", gate(2.5), normal, (5, 5)),
        ("gate, margin 2.5, skewed", gate(2.5), skewed, (5, 5)),
        ("gate, margin 2.5, heavy tails", gate(2.5), heavy, (5, 5)),
        ("naive: Welch p > .05", naive_welch, normal, (5, 5)),
        ("naive: mean within 2 sd", naive_two_sd, normal, (5, 5)),
        ("naive: inside min-max", naive_min_max, normal, (5, 5)),
    ]
    error = 0.5 / repetitions**0.5
    report.note(f"P(pass), {repetitions} repetitions, standard error at most {error:.3f}")
    report.note(f"{'':36}" + "".join(f"{name:>12}" for name, _, _ in CASES))
    for number, (name, judge, draw, sizes) in enumerate(rows):
        shares = {
            case: share_passed(judge, draw, sizes, (worse, spread), repetitions)
            for case, worse, spread in CASES
        }
        report.line(
            f"{name:30}{sizes[0]:>3},{sizes[1]:>2}",
            "".join(f"{share:>12.3f}" for share in shares.values()),
            "; ".join(f"{case} {wanted}" for case, wanted in WANTED.items()) if not number else "",
            repetitions=repetitions, passed=shares,
        )  # fmt: skip
    report.end()


if __name__ == "__main__":
    main()
