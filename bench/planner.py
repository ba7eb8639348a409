"""What does the planner save, and how late does it come, in the weeks of the pool?

    python bench/planner.py
    python bench/planner.py --weeks 1000 --keep planner.jsonl --markdown    # the tables of docs/planner.md

The product's own dispatcher, lease and worker code, in the seeded weeks of ``bench/pool.py``, where each
configuration is wanted by a deadline: two to eight times the hours of the usual card, or twelve. Once the
dispatcher follows the user's ladder and looks at no deadline; once it asks its planner. A seed is the same world
for both, so differences are paired. Counts do not depend on the machine that this runs on; the seconds do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.instruments.report import Report, arguments
from bench.pool import MEASURES, Measure, verdict, weeks_of
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


def measures() -> tuple[Measure, ...]:
    """What came late, and all that the pool is measured by."""
    return LATENESS + MEASURES


def markdown(weeks: Mapping[Policy, Sequence[Week]]) -> str:
    """The table of docs/planner.md."""
    lines = ["| measure | planner off | planner on | on less off |", "|---|---|---|---|"]
    for measure in measures():
        off, on = measure.of(weeks["ours"]), measure.of(weeks["planner"])
        found = measure.difference(weeks["planner"], weeks["ours"])
        digits = measure.digits
        words = f"{found.words(digits)}: {verdict(measure, found)}"
        lines.append(f"| {measure.name} | {off.words(digits)} | {on.words(digits)} | {words} |")
    return "\n".join(lines)


def report_measures(report: Report, weeks: Mapping[Policy, Sequence[Week]]) -> None:
    """One line for each measure under each policy, and one for the difference."""
    for measure in measures():
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


def main() -> None:
    """Run so many weeks with the planner and without, and print what came of them."""
    parser = arguments(__doc__)
    parser.add_argument("--weeks", type=int, help=f"worlds (default {WEEKS}, quick {QUICK_WEEKS})")
    parser.add_argument("--seed", type=int, default=0, help="of the first week (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="a file that holds the weeks run so far")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of docs/planner.md"
    )
    options = parser.parse_args()
    report = Report("planner", options)
    count = options.weeks or (QUICK_WEEKS if options.quick else WEEKS)
    weeks: dict[Policy, list[Week]] = {policy: [] for policy in PRODUCT}
    began_s = time.perf_counter()
    for week in weeks_of(count, options.seed, options.processes, options.keep, PRODUCT):
        weeks[week.policy].append(week)
        for broken in week.broken:
            report.note(f"week {week.seed} under {week.policy}: BROKEN: {broken}")
    took_s = time.perf_counter() - began_s
    if options.markdown:
        print(markdown(weeks))
    else:
        report_measures(report, weeks)
    broken_weeks = sum(bool(week.broken) for each in weeks.values() for week in each)
    whole = f"{broken_weeks} of {2 * count}"
    report.line("weeks with a broken invariant", whole, "0", broken=broken_weeks, weeks=2 * count)
    report.line(
        "one week under one policy",
        f"{took_s / (2 * count):.2f} s of {options.processes} processes",
        week_s=took_s / (2 * count),
        processes=options.processes,
        first_seed=options.seed,
    )
    report.end()


if __name__ == "__main__":
    main()
