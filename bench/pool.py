"""What do three answers to "stay or move" cost over a pool of five platforms that promise nothing?

    python bench/pool.py
    python bench/pool.py --weeks 1000 --keep weeks.jsonl --markdown    # hours; the tables of docs/policy.md

With ``--keep`` each week is written to the file once it is over, and a run that was interrupted goes
on from there; a file of other code is refused, since its weeks would be other ones.

The product's own dispatcher, lease and worker code, in seeded weeks on a virtual clock, and the same
dispatcher under the two rules that people use instead: count three failures, then take the next rung;
and stay for ever on the rung that took the job. A seed is the same world for all three, so differences
are paired. Counts do not depend on the machine that this runs on; the seconds do.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.instruments.intervals import Interval, bootstrap, bootstrap_share, mean_of
from bench.instruments.report import Report, arguments
from tenure.sim.pool import Week, run_weeks
from tenure.sim.pool_policies import POLICIES, Policy

WEEKS, QUICK_WEEKS = 16, 2
DOCS = {"pool": "policy", "planner": "planner"}  # where the tables of each bench stand
_WORDS: Mapping[Policy, str] = {
    "ours": "Tenure",
    "three": "three failures, then next",
    "stay": "stay for ever",
}


@dataclass(frozen=True)
class Measure:
    """A sum over weeks, or one sum over another."""

    name: str
    key: str  # with its unit
    digits: int
    part: Callable[[Week], float]
    whole: Callable[[Week], float] | None = None  # None: a mean over weeks
    scale: float = 1.0
    less_is_better: bool | None = True  # None: neither is

    def of(self, weeks: Sequence[Week]) -> Interval:
        """Over weeks of one policy."""
        parts = [self.scale * self.part(week) for week in weeks]
        if self.whole is None:
            return bootstrap(parts, mean_of)
        return bootstrap_share(parts, [self.whole(week) for week in weeks])

    def difference(self, ours: Sequence[Week], others: Sequence[Week]) -> Interval:
        """Ours less the other, over pairs of weeks of one seed; redrawn as pairs."""
        first, second = self._columns(ours), self._columns(others)
        rows = np.random.default_rng(0).integers(0, len(ours), (2000, len(ours)))
        drawn = _ratio(*first, rows) - _ratio(*second, rows)
        low, high = np.quantile(drawn, [0.025, 0.975])
        every = np.arange(len(ours))[None, :]
        middle = float((_ratio(*first, every) - _ratio(*second, every))[0])
        return Interval(middle, float(low), float(high))

    def _columns(self, weeks: Sequence[Week]) -> tuple[Array, Array]:
        whole = self.whole or (lambda _: 1.0)
        parts = np.array([self.scale * self.part(week) for week in weeks])
        return parts, np.array([whole(week) for week in weeks])


Array = NDArray[np.float64]


def _ratio(parts: Array, wholes: Array, rows: NDArray[np.int64]) -> Array:
    return np.asarray(parts[rows].sum(axis=-1) / wholes[rows].sum(axis=-1))


def _hours(week: Week) -> list[float]:
    return list(week.hours.values())


MEASURES: tuple[Measure, ...] = (
    Measure(
        "jobs finished, of those that can, %",
        "finished_percent",
        2,
        lambda w: w.finished,
        lambda w: w.can_finish,
        100.0,
        less_is_better=False,
    ),
    Measure("dollars for a finished job", "usd_per_job", 2, lambda w: w.usd, lambda w: w.finished),
    Measure(
        "hours of paid machines for a finished job",
        "paid_h_per_job",
        2,
        lambda w: w.paid_h,
        lambda w: w.finished,
    ),
    Measure(
        "free quota used, h a week's load",
        "quota_h",
        1,
        lambda w: w.quota_h,
        less_is_better=None,
    ),
    Measure("credits used for a week's load", "credits", 1, lambda w: w.credits),
    Measure(
        "mean time to completion, h",
        "mean_h",
        2,
        lambda w: sum(_hours(w)),
        lambda w: w.finished,
    ),
    Measure(
        "p95 time to completion, h (mean over weeks)",
        "p95_h",
        1,
        lambda w: float(np.quantile(_hours(w), 0.95)) if w.hours else 0.0,
    ),
    Measure("until the last job is over, h", "span_h", 1, lambda w: w.span_h),
    Measure(
        "FLOPs of finished jobs for a dollar, 1e18",
        "exaflops_per_usd",
        3,
        lambda w: w.flops,
        lambda w: w.usd,
        1e-18,
        less_is_better=False,
    ),
    Measure(
        "machines for a finished job", "launches", 2, lambda w: w.launches, lambda w: w.finished
    ),
    Measure(
        "holders asked to yield, a week's load",
        "yields",
        1,
        lambda w: w.yields,
        less_is_better=None,
    ),
)


def verdict(measure: Measure, difference: Interval) -> str:
    """Whether ours is better on a measure, in one word.

    >>> verdict(MEASURES[1], Interval(-1.0, -1.5, -0.5)), verdict(MEASURES[1], Interval(0.1, -1.0, 1.0))
    ('better', 'no difference shown')
    """
    if measure.less_is_better is None:
        return "neither is better"
    if difference.low <= 0.0 <= difference.high:
        return "no difference shown"
    return "better" if (difference.high < 0.0) == measure.less_is_better else "worse"


def markdown(weeks: Mapping[Policy, Sequence[Week]]) -> str:
    """The tables of docs/policy.md."""
    head = " | ".join(_WORDS[policy] for policy in POLICIES)
    lines = [f"| measure | {head} |", "|---|" + "---|" * len(POLICIES)]
    for measure in MEASURES:
        row = " | ".join(measure.of(weeks[policy]).words(measure.digits) for policy in POLICIES)
        lines.append(f"| {measure.name} | {row} |")
    others = [policy for policy in POLICIES if policy != "ours"]
    head = " | ".join(f"Tenure less {_WORDS[policy]}" for policy in others)
    lines += ["", f"| paired difference | {head} |", "|---|" + "---|" * len(others)]
    for measure in MEASURES:
        cells = []
        for policy in others:
            difference = measure.difference(weeks["ours"], weeks[policy])
            cells.append(f"{difference.words(measure.digits)}: {verdict(measure, difference)}")
        lines.append(f"| {measure.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report_measures(report: Report, weeks: Mapping[Policy, Sequence[Week]]) -> None:
    """One line for each measure and policy, and one for each paired difference."""
    for measure in MEASURES:
        for policy in POLICIES:
            found = measure.of(weeks[policy])
            report.line(
                f"{measure.name}: {_WORDS[policy]}",
                found.words(measure.digits),
                **found.numbers(measure.key),
            )
            if policy != "ours":
                found = measure.difference(weeks["ours"], weeks[policy])
                report.line(
                    f"    Tenure less that, {measure.key} against {policy}",
                    f"{found.words(measure.digits)}: {verdict(measure, found)}",
                    **found.numbers(f"{measure.key}_difference"),
                )


CHECKOUT = Path(__file__).resolve().parent.parent
#: What a week follows from.
_PLAYED = ("tenure", "worker/tenure_protocol", "worker/tenure_worker")


@cache
def code_digest() -> str:
    """SHA-256 over the code that plays a week; 16 digits of it."""
    found = hashlib.sha256()
    for folder in _PLAYED:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            found.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def kept(path: Path) -> dict[tuple[int, Policy], Week]:
    """The weeks of an earlier run. Raises SystemExit for a file that is none, or of other code."""
    found: dict[tuple[int, Policy], Week] = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            said = json.loads(line)
            if said.pop("code") != code_digest():
                raise SystemExit(f"{path}:{number} is a week of other code; name another file")
            week = Week(**{**said, "broken": tuple(said["broken"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(
                f"{path}:{number} holds no week ({error}); name another file"
            ) from None
        found[week.seed, week.policy] = week
    return found


def weeks_of(
    count: int,
    seed: int,
    processes: int,
    path: Path | None,
    policies: Sequence[Policy] = POLICIES,
) -> Iterator[Week]:
    """The weeks of so many seeds; those that ``path`` has are not run again, the others go there."""
    before = kept(path) if path else {}
    yield from (week for (number, _), week in before.items() if seed <= number < seed + count)
    over = {number for number, _ in before if all((number, p) in before for p in policies)}
    left = [number for number in range(seed, seed + count) if number not in over]
    part: list[Week] = []
    for week in run_weeks(left, processes, policies):
        yield week
        part.append(week)
        if path and len(part) == len(policies):  # a seed is kept when all of it is over
            said = [json.dumps({**asdict(each), "code": code_digest()}) + "\n" for each in part]
            with path.open("a") as file:
                file.write("".join(said))
            part = []


def play(
    name: str,
    usage: str,
    policies: Sequence[Policy],
    table: Callable[[Mapping[Policy, Sequence[Week]]], str],
    lines: Callable[[Report, Mapping[Policy, Sequence[Week]]], None],
    default: int,
    quick: int,
) -> None:
    """Run so many weeks under each policy and print what came of them: a bench's whole command line."""
    parser = arguments(usage)
    parser.add_argument("--weeks", type=int, help=f"worlds (default {default}, quick {quick})")
    parser.add_argument("--seed", type=int, default=0, help="of the first week (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="a file that holds the weeks run so far")
    parser.add_argument(
        "--markdown", action="store_true", help=f"print the tables of docs/{DOCS[name]}.md"
    )
    options = parser.parse_args()
    report = Report(name, options)
    count = options.weeks or (quick if options.quick else default)
    weeks: dict[Policy, list[Week]] = {policy: [] for policy in policies}
    began_s = time.perf_counter()
    for week in weeks_of(count, options.seed, options.processes, options.keep, policies):
        weeks[week.policy].append(week)
        for broken in week.broken:
            report.note(f"week {week.seed} under {week.policy}: BROKEN: {broken}")
    took_s = time.perf_counter() - began_s
    if options.markdown:
        print(table(weeks))
    else:
        lines(report, weeks)
    broken_weeks = sum(bool(week.broken) for each in weeks.values() for week in each)
    runs = len(policies) * count
    whole = f"{broken_weeks} of {runs}"
    report.line("weeks with a broken invariant", whole, "0", broken=broken_weeks, weeks=runs)
    report.line(
        "one week under one policy",
        f"{took_s / runs:.2f} s of {options.processes} processes",
        week_s=took_s / runs,
        processes=options.processes,
        first_seed=options.seed,
    )
    report.end()


if __name__ == "__main__":
    play("pool", __doc__, POLICIES, markdown, report_measures, WEEKS, QUICK_WEEKS)
