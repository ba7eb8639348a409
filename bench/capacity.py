"""Do the formulas of `tenure capacity` agree with a platform that has queues, and by how much do they err?

    python bench/capacity.py
    python bench/capacity.py --quick

A discrete-event model of the chapter's platform (simpy) plays examples/capacity/11-9-chosen.yaml and the overloaded
11-1-environments.yaml. With even arrivals the formulas are exact; with Poisson arrivals tasks wait, which no formula
here knows. Counts do not depend on the machine that this runs on. docs/capacity.md has the tables.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.instruments.platform_model import BOTH, Arrivals, Observed, Platform
from bench.instruments.report import Report, arguments
from tenure.capacity.demand import DemandScenario, demand
from tenure.capacity.scenario import read_questions

EXAMPLES = Path(__file__).parents[1] / "examples" / "capacity"
WARM_S = 100.0
LOADS = (0.5, 0.8, 0.9, 0.95, 0.98)  # of the most that may arrive


def example(name: str) -> DemandScenario:
    """The first scenario of a file."""
    scenario = read_questions(EXAMPLES / f"{name}.yaml").asked[0].scenario
    assert isinstance(scenario, DemandScenario)
    return scenario


def play(
    asked: DemandScenario, arrivals: Arrivals, watch_s: float, seeds: int, limited: bool = True
) -> list[Observed]:
    """One history for each seed."""
    return [
        Platform(asked, arrivals, watch_s, WARM_S, seed, limited).play() for seed in range(seeds)
    ]


def at(asked: DemandScenario, rate: float) -> DemandScenario:
    """The same with another rate of arrivals."""
    return asked.model_copy(update={"arrivals_per_s": rate})


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("capacity", options)
    watch_s, seeds = (200.0, 2) if report.quick else (2000.0, 5)
    chosen = example("11-9-chosen")
    _means(report, chosen, watch_s, seeds)
    _loads(report, chosen, watch_s, seeds)
    _overload(report, example("11-1-environments"), watch_s)
    report.end()


def _means(report: Report, asked: DemandScenario, watch_s: float, seeds: int) -> None:
    """Every number that both tell, at the chapter's rate."""
    told = demand(asked)
    even = play(asked, "even", watch_s, 1)[0]
    poisson = play(asked, "poisson", watch_s, seeds)
    for key, of in BOTH.items():
        formula = float(getattr(told, key))
        drawn = statistics.fmean(of(seen) for seen in poisson)
        report.line(
            key,
            f"formula {formula:.4g}, even {of(even):.4g} ({of(even) / formula - 1:+.2%}), "
            f"Poisson {drawn:.4g} ({drawn / formula - 1:+.2%})",
            "even within 1 %",
            formula=formula, even=of(even), poisson=drawn,
        )  # fmt: skip
    for name in even.peaks:
        most = statistics.fmean(seen.peaks[name] for seen in poisson)
        report.line(
            f"peak {name}",
            f"even {even.peaks[name]:.4g}, Poisson {most:.4g} (mean of {seeds} histories)",
            even=even.peaks[name], poisson=most,
        )  # fmt: skip


def _loads(report: Report, asked: DemandScenario, watch_s: float, seeds: int) -> None:
    """What waiting does as the platform fills."""
    most = demand(asked).max_arrivals_per_s
    assert most is not None
    for load in LOADS:
        scenario = at(asked, load * most)
        told = demand(scenario)
        seen = play(scenario, "poisson", watch_s, seeds)
        task_s = statistics.fmean(each.task_s for each in seen)
        p95_s = statistics.fmean(each.task_p95_s for each in seen)
        share = statistics.fmean(each.in_time_share for each in seen)
        report.line(
            f"Poisson at {load:.0%} of the most",
            f"task {told.task_s:.4g} s by formula, {task_s:.4g} s on average, {p95_s:.4g} s at 95 %; "
            f"in time {told.in_time_share:.3f} by formula, {share:.3f}",
            formula_task_s=told.task_s, task_s=task_s, task_p95_s=p95_s,
            formula_in_time=told.in_time_share, in_time=share,
        )  # fmt: skip


def _overload(report: Report, asked: DemandScenario, watch_s: float) -> None:
    """More arrives than fits: what is completed is the most that may arrive."""
    told = demand(asked)
    assert told.max_arrivals_per_s is not None
    watch_s = told.task_s * round(watch_s / told.task_s)  # a full platform ends tasks in waves
    ways: tuple[Arrivals, ...] = ("even", "poisson")
    for arrivals in ways:
        seen = play(asked, arrivals, watch_s, 1)[0]
        off = seen.completed_per_s / told.max_arrivals_per_s - 1
        report.line(
            f"completed per second, overloaded, {arrivals}",
            f"{seen.completed_per_s:.4g}, {told.max_arrivals_per_s:.4g} by formula ({off:+.2%})",
            "within 1 %",
            completed_per_s=seen.completed_per_s, formula=told.max_arrivals_per_s,
        )  # fmt: skip


if __name__ == "__main__":
    main()
