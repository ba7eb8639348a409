"""What does a lease lose whose K is learnt, beside the best K of those known only afterwards?

    python bench/lease_k.py

Plays ``tenure rehearse lease`` on the recorded step times ($TENURE_TRACES, by default ../shared/data
beside the checkout) and on generated series of known laws. *Learnt / best* is the cost of the K
learnt online over that of the fixed K that turned out best on the very series. *Oracle / best* is the
same for the fixed K of least expected cost under the law itself, which no rule knows: what is above 1
there is the luck of the series. The laws differ in their tails; the rule has not been fitted to any.

The last part leaves one file out: of 25 pairs of the rule's two constants, the one that does best on
the two other files is played on the third. Seeds are fixed: the table is the same on every machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.instruments.report import Report, arguments
from tenure.cli.rehearse import FIXED, Rehearsal, Step, read_series, rehearse_lease
from tenure_protocol import patience

Values = NDArray[np.float64]
Series = dict[str, list[Step]]
Law = Callable[[np.random.Generator, int], Values]
Beyond = Callable[[float], float]

TRACES = Path(
    os.environ.get("TENURE_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
RESTART_S = 300.0
DEATH_PER_H = 0.05
WORKERS = 10
STEPS, QUICK_STEPS = 1_000, 100
SEEDS, QUICK_SEEDS = 5, 1
STEP_S = 0.4
PRIOR_STEPS = (1.0, 5.0, 10.0, 20.0, 50.0)
PRIOR_EXCESSES = (0.05, 0.1, 0.25, 0.5, 1.0)


def even(rng: np.random.Generator, n: int) -> Values:
    return rng.normal(1, 0.02, n)


def log_normal(sigma: float) -> Law:
    return lambda rng, n: rng.lognormal(0, sigma, n)


def gamma(shape: float) -> Law:
    return lambda rng, n: rng.gamma(shape, 1 / shape, n)


def stalls(share: float) -> Law:
    """Even steps, and a share of them that take 2 to 6 times as long."""
    return lambda rng, n: even(rng, n) * np.where(rng.random(n) < share, rng.uniform(2, 6, n), 1)


def pareto_stalls(share: float, index: float) -> Law:
    """Even steps, and a share of them that take twice as long or any multiple: P(> x) = (2 / x) ** index."""
    return lambda rng, n: (
        even(rng, n) * np.where(rng.random(n) < share, 2 * (1 + rng.pareto(index, n)), 1)
    )


def shifts(rng: np.random.Generator, n: int) -> Values:
    """Now and then, once in 500 steps, all steps become up to four times as long, or short again."""
    levels = np.exp(rng.uniform(0, np.log(4), n))
    changes = np.maximum.accumulate(np.where(rng.random(n) < 1 / 500, np.arange(n), 0))
    return log_normal(0.05)(rng, n) * levels[changes]


def beyond_uniform(share: float) -> Beyond:
    return lambda k: share * min(max((6 - k) / 4, 0.0), 1.0)


def beyond_pareto(share: float, index: float) -> Beyond:
    return lambda k: share * min((2 / k) ** index, 1.0)


def beyond_log_normal(sigma: float) -> Beyond:
    return lambda k: float(stats.lognorm.sf(k, sigma))


def beyond_gamma(shape: float) -> Beyond:
    return lambda k: float(stats.gamma.sf(k * stats.gamma.median(shape), shape))


#: Each with P(step > k medians); that of the shifts hangs on where the running median is.
LAWS: dict[str, tuple[Law, Beyond | None]] = {
    "normal, sd 2 %": (even, lambda k: float(stats.norm.sf((k - 1) / 0.02))),
    "log-normal, sigma 0.1": (log_normal(0.1), beyond_log_normal(0.1)),
    "log-normal, sigma 0.3": (log_normal(0.3), beyond_log_normal(0.3)),
    "log-normal, sigma 0.6": (log_normal(0.6), beyond_log_normal(0.6)),
    "gamma, shape 4": (gamma(4), beyond_gamma(4)),
    "1 step in 200 stalls 2 to 6 times": (stalls(1 / 200), beyond_uniform(1 / 200)),
    "1 step in 5,000 stalls 2 to 6 times": (stalls(1 / 5000), beyond_uniform(1 / 5000)),
    "1 step in 200 a Pareto stall, index 3": (
        pareto_stalls(1 / 200, 3),
        beyond_pareto(1 / 200, 3),
    ),
    "1 step in 200 a Pareto stall, index 1.5": (
        pareto_stalls(1 / 200, 1.5),
        beyond_pareto(1 / 200, 1.5),
    ),
    "the level shifts up to 4 times": (shifts, None),
}


def oracle(beyond: Beyond) -> int:
    """The fixed K of least expected cost, for who knows the law."""

    def cost(k: int) -> float:
        return beyond(k) * 3600 / STEP_S * RESTART_S + DEATH_PER_H * k * STEP_S

    return min(FIXED, key=cost)


def generated(law: Law, seed: int, steps: int) -> Series:
    rng = np.random.default_rng(seed)
    return {
        str(worker): [
            Step(float(10 * i), max(float(ratio), 0.01) * STEP_S)
            for i, ratio in enumerate(law(rng, steps))
        ]
        for worker in range(WORKERS)
    }


def play(series: Series) -> Rehearsal:
    return rehearse_lease(series, RESTART_S, DEATH_PER_H)


def over_best(told: Rehearsal) -> float:
    return told.cost_s_per_h / told.fixed[told.best_fixed]


def measured(report: Report, files: list[Path]) -> None:
    for file in files:
        told = play(read_series(file))
        report.line(
            f"{file.name}: learnt / best",
            f"{over_best(told):.3f} ({told.cost_s_per_h:.4g} against {told.fixed[told.best_fixed]:.4g} s/h; "
            f"mean K {told.mean_k:.2f}, best {told.best_fixed}, first {told.first_k}, last {told.k}; "
            f"{told.false_write_offs} of {told.judged} steps written off)",
            "at most 1.05",
            ratio=over_best(told),
            cost_s_per_h=told.cost_s_per_h,
            mean_k=told.mean_k,
            best_fixed=told.best_fixed,
            last_k=told.k,
            false_write_offs=told.false_write_offs,
        )


def laws(report: Report) -> None:
    steps, seeds = (QUICK_STEPS, QUICK_SEEDS) if report.quick else (STEPS, SEEDS)
    for name, (law, beyond) in LAWS.items():
        told = [play(generated(law, seed, steps)) for seed in range(seeds)]
        learnt = [over_best(each) for each in told]
        off = [each.false_write_offs for each in told]
        known, words = [], "not known"
        if beyond is not None:
            k = oracle(beyond)
            known = [each.fixed[k] / each.fixed[each.best_fixed] for each in told]
            words = f"{spread(known)}, K {k}"
        report.line(
            f"{name}: learnt / best",
            f"{spread(learnt)}; oracle / best {words}; mean K "
            f"{statistics.fmean(each.mean_k for each in told):.1f}, best "
            f"{min(each.best_fixed for each in told)} to {max(each.best_fixed for each in told)}; "
            f"{sum(off)} of {sum(each.judged for each in told)} steps written off",
            learnt=learnt,
            oracle=known,
            false_write_offs=off,
        )


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.4g} ({min(ratios):.4g} to {max(ratios):.4g})"


def left_out(report: Report, files: list[Path]) -> None:
    """The constants chosen on the other files, for each file."""
    series = {file.name: read_series(file) for file in files}
    kept = patience.PRIOR_STEPS, patience.PRIOR_EXCESS
    found: dict[tuple[float, float], dict[str, float]] = {}
    try:
        for steps in PRIOR_STEPS:
            for excess in PRIOR_EXCESSES:
                patience.PRIOR_STEPS, patience.PRIOR_EXCESS = steps, excess
                found[steps, excess] = {name: over_best(play(it)) for name, it in series.items()}
    finally:
        patience.PRIOR_STEPS, patience.PRIOR_EXCESS = kept
    for name in series:
        others = [other for other in series if other != name]
        best = min(found, key=lambda pair: max(found[pair][other] for other in others))
        all_of_it = [ratios[name] for ratios in found.values()]
        report.line(
            f"{name}, constants chosen without it: learnt / best",
            f"{found[best][name]:.3f} (prior of {best[0]:.0f} steps, excess {best[1]}); "
            f"{min(all_of_it):.3f} to {max(all_of_it):.3f} over all {len(found)} pairs",
            ratio=found[best][name],
            least=min(all_of_it),
            most=max(all_of_it),
        )


def main() -> None:
    report = Report("lease_k", arguments(__doc__).parse_args())
    files = sorted((TRACES / "step-times").glob("*.csv"))
    if not files:
        report.note(f"there are no step times in {TRACES}: only generated series are played")
    measured(report, files)
    laws(report)
    if len(files) > 1 and not report.quick:
        left_out(report, files)
    report.end()


if __name__ == "__main__":
    main()
