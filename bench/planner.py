"""What does the planner save, and how late does it come, in the weeks of the pool?

    python bench/planner.py
    python bench/planner.py --weeks 1000 --keep planner.jsonl --markdown    # the tables of docs/planner.md

The product's own dispatcher, lease and worker code, in the seeded weeks of ``bench/pool.py``, where each
configuration is wanted by a deadline: two to eight times the hours of the usual card, or twelve. Once the
dispatcher follows the user's ladder and looks at no deadline; once it asks its planner. A seed is the same world
for both, so differences are paired. Counts do not depend on the machine that this runs on; the seconds do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.instruments.report import Report
from bench.pool import MEASURES, Measure, play, verdict
from tenure.sim.pool import Week
from tenure.sim.pool_policies import PRODUCT, Policy

WEEKS, QUICK_WEEKS = 16, 1
_WORDS: Mapping[Policy, str] = {"ours": "planner off", "planner": "planner on"}

LATENESS: tuple[Measure, ...] = (
    Measure(
        "jobs that missed their deadline, %",
        "late_percent",
        2,
        lambda w: len(w.late_h),
        lambda w: w.due,
        100.0,
    ),
    Measure(
        "hours too late, a job with a deadline",
        "late_h",
        3,
        lambda w: sum(w.late_h.values()),
        lambda w: w.due,
    ),
)


#: What came late, and all that the pool is measured by.
ALL = LATENESS + MEASURES


def markdown(weeks: Mapping[Policy, Sequence[Week]]) -> str:
    """The table of docs/planner.md."""
    lines = ["| measure | planner off | planner on | on less off |", "|---|---|---|---|"]
    for measure in ALL:
        off, on = measure.of(weeks["ours"]), measure.of(weeks["planner"])
        found = measure.difference(weeks["planner"], weeks["ours"])
        digits = measure.digits
        words = f"{found.words(digits)}: {verdict(measure, found)}"
        lines.append(f"| {measure.name} | {off.words(digits)} | {on.words(digits)} | {words} |")
    return "\n".join(lines)


def report_measures(report: Report, weeks: Mapping[Policy, Sequence[Week]]) -> None:
    """One line for each measure under each policy, and one for the difference."""
    for measure in ALL:
        for policy in PRODUCT:
            found = measure.of(weeks[policy])
            words = found.words(measure.digits)
            name = f"{measure.name}: {_WORDS[policy]}"
            report.line(name, words, **found.numbers(f"{measure.key}_{policy}"))
        found = measure.difference(weeks["planner"], weeks["ours"])
        words = f"{found.words(measure.digits)}: {verdict(measure, found)}"
        report.line(
            f"    on less off, {measure.key}", words, **found.numbers(f"{measure.key}_difference")
        )


if __name__ == "__main__":
    play("planner", __doc__, PRODUCT, markdown, report_measures, WEEKS, QUICK_WEEKS)
