"""``tenure rehearse``: a plan (the default), ``spot``, and ``lease``: what the lease's K would have been, and cost."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tenure.bad_input import did_you_mean, read_text
from tenure.cli import rehearse_spot, screen
from tenure.cli.rehearse_group import PlanByDefault
from tenure.cli.rehearse_plan import rehearse_plan
from tenure.errors import UsageError
from tenure_protocol.patience import LEAST_K, MOST_K, best_k, check_costs
from tenure_protocol.ratios import Ratios

MEDIAN_OF = 20  # steps, as a worker has it measured
FIXED = range(LEAST_K, MOST_K + 1)
_COLUMNS = ("worker", "gpu", "time", "batch_time_norm")
SHORTEST_MS, LONGEST_MS = 1e-3, 1e9  # of a step: what lies beyond is no measurement
_HOUR_S = 3600.0

app = typer.Typer(cls=PlanByDefault, no_args_is_help=True)
app.command("plan")(rehearse_plan)


@app.callback()
def rehearse() -> None:
    """Play a plan, or a rule, before a cent is spent.

    `tenure rehearse PLAN.yaml` is short for `tenure rehearse plan PLAN.yaml`.
    """


app.command("spot")(rehearse_spot.spot)


@app.command("lease")
def lease(
    steps: Annotated[
        Path, typer.Option(help="A CSV file of columns worker, gpu, time, batch_time_norm (ms).")
    ],
    restart_s: Annotated[float, typer.Option(help="What a worker written off costs.")] = 300.0,
    death_per_h: Annotated[float, typer.Option(help="Workers that die, per hour.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Learn K from recorded steps, judge each by the K known before it, and compare fixed ones."""
    try:
        check_costs(restart_s=restart_s, death_per_h=death_per_h)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise UsageError(f"--{name.replace('_', '-')} {rest}") from None
    series = read_series(steps)
    with screen.working(f"judging {sum(map(len, series.values()))} steps"):
        told = rehearse_lease(series, restart_s, death_per_h)
    if as_json:
        fixed = {str(k): cost for k, cost in told.fixed.items()}
        whole = {"k": told.k, "cost_s_per_h": told.cost_s_per_h, "fixed": fixed}
        typer.echo(json.dumps(whole, indent=2))
        return
    _tell(told, len(series))


def _tell(told: Rehearsal, workers: int) -> None:
    best = told.best_fixed
    rows = [
        ("learnt", f"{told.cost_s_per_h:.4g}", str(told.false_write_offs), f"{told.mean_k:.2f}")
    ]
    shown = sorted({best, LEAST_K, 5, 10, 20, MOST_K})
    rows += [
        (f"fixed {k}", f"{told.fixed[k]:.4g}", str(told.fixed_false[k]), str(k)) for k in shown
    ]
    screen.show(("K", "lost s/h", "written off", "mean K"), rows)
    beyond = ""
    if told.fixed[best]:
        beyond = f" ({100 * (told.cost_s_per_h / told.fixed[best] - 1):+.1f} %)"
    typer.echo(
        f"{told.judged} steps of {workers} workers were judged; the first by K {told.first_k}, the "
        f"last K is {told.k}; the best fixed K, known only afterwards, is {best}{beyond}"
    )
    typer.echo(f"K {told.k}: {told.reason}")


# -------------------------------------------------------------------------------- the rehearsal


class Step(NamedTuple):
    """A step of a worker: when it was recorded, and how long it lasted, in seconds."""

    time_s: float
    duration_s: float


@dataclass(frozen=True)
class Rehearsal:
    """What was learnt on one series, and its costs in expected lost seconds per hour of training."""

    k: int  # learnt from all steps
    first_k: int  # the first that judged a step
    mean_k: float  # over judged steps
    judged: int
    false_write_offs: int
    cost_s_per_h: float
    fixed: Mapping[int, float]
    fixed_false: Mapping[int, int]
    reason: str  # of the last K

    @property
    def best_fixed(self) -> int:
        """The fixed K that cost least; of equal ones the smallest."""
        return min(self.fixed, key=lambda k: (self.fixed[k], k))


@dataclass
class _Worker:
    """What one worker's judged steps come to, under the K that was learnt."""

    durations_s: Sequence[float]  # of its judged steps
    ratios: list[float] = field(default_factory=list)  # of them to the running median
    k_sum: int = 0
    false: int = 0

    def judge(self, ratio: float, k: int) -> bool:
        """Whether a step that lasted ``ratio`` medians had its worker written off under ``k``."""
        self.ratios.append(ratio)
        self.k_sum += k
        self.false += ratio > k
        return ratio > k

    def exceeding(self, k: int) -> int:
        """How often a fixed K would have written the worker off."""
        return sum(ratio > k for ratio in self.ratios)

    @property
    def hours(self) -> float:
        return math.fsum(self.durations_s) / _HOUR_S

    @property
    def median_step_s(self) -> float:
        return statistics.median(self.durations_s)

    def cost_s_per_h(self, false: int, k: float, restart_s: float, death_per_h: float) -> float:
        return false / self.hours * restart_s + death_per_h * k * self.median_step_s


def rehearse_lease(
    series: Mapping[str, Sequence[Step]], restart_s: float, death_per_h: float
) -> Rehearsal:
    """Learn one K online from all workers of a series, and judge every step by it.

    A step is *judged* once its worker has :data:`MEDIAN_OF` steps before it: its ratio is its duration
    over their median. The first 20 steps of a worker are judged by no K (until then a lease is
    predicted, the same for every K): they count neither as training nor as written off. They are learnt
    from, over the median of all 20, as soon as the 20th is there.

    A step at time t is judged with the K learnt from the steps of all workers with a time before t.
    Where its ratio is above K, the worker was written off though it lived, and the step is learnt from
    as censored at K. What it really lasted still counts as training and in the running medians, since
    the trace goes on.

    The cost of a worker is::

        false write-offs / hours * restart_s + death_per_h * mean K * median_step_s

    with ``hours`` the sum of its judged steps, ``mean K`` the mean over them (of a fixed K, that K), and
    ``median_step_s`` their median. A series costs the mean over its workers. The learner knows the
    mean of the workers' medians up to t, not those of the whole trace.

    >>> calm = {"a": [Step(t, 0.5 + 0.001 * (t % 7)) for t in range(300)]}
    >>> told = rehearse_lease(calm, restart_s=300, death_per_h=0.05)
    >>> told.best_fixed, told.k, told.false_write_offs
    (2, 2, 0)
    """
    durations_s = {name: [step.duration_s for step in steps] for name, steps in series.items()}
    workers = {name: _Worker(durations_s[name][MEDIAN_OF:]) for name in series}
    seen = Ratios()
    medians_s: dict[str, float] = {}  # the latest of each worker
    k, first_k, reason = MOST_K, 0, ""
    for moment in _moments(series):
        for name, i in moment:
            if i >= MEDIAN_OF:
                first_k = first_k or k
                medians_s[name] = statistics.median(durations_s[name][i - MEDIAN_OF : i])
                ratio = durations_s[name][i] / medians_s[name]
                if workers[name].judge(ratio, k):
                    seen.censor(k)
                else:
                    seen.add(ratio)
            elif i == MEDIAN_OF - 1:
                first = durations_s[name][:MEDIAN_OF]
                medians_s[name] = statistics.median(first)
                seen.add_many(first, medians_s[name])
        if medians_s:
            choice = best_k(seen, statistics.fmean(medians_s.values()), restart_s, death_per_h)
            k, reason = choice.k, choice.reason
    fixed_false = {each: sum(w.exceeding(each) for w in workers.values()) for each in FIXED}
    judged = sum(len(worker.ratios) for worker in workers.values())
    return Rehearsal(
        k=k,
        first_k=first_k,
        mean_k=sum(worker.k_sum for worker in workers.values()) / judged,
        judged=judged,
        false_write_offs=sum(worker.false for worker in workers.values()),
        cost_s_per_h=statistics.fmean(
            w.cost_s_per_h(w.false, w.k_sum / len(w.ratios), restart_s, death_per_h)
            for w in workers.values()
        ),
        fixed={
            each: statistics.fmean(
                w.cost_s_per_h(w.exceeding(each), each, restart_s, death_per_h)
                for w in workers.values()
            )
            for each in FIXED
        },
        fixed_false=fixed_false,
        reason=reason,
    )


def _moments(series: Mapping[str, Sequence[Step]]) -> Iterator[list[tuple[str, int]]]:
    """Worker and index of all steps that share a time, in the order of time."""
    order = sorted(
        (step.time_s, name, i) for name, steps in series.items() for i, step in enumerate(steps)
    )
    for _, group in itertools.groupby(order, key=lambda each: each[0]):
        yield [(name, i) for _, name, i in group]


# ------------------------------------------------------------------------------------- the file


def read_series(file: Path) -> dict[str, list[Step]]:
    """The steps of each worker, in the order of time. Raises UsageError, one sentence, for a bad file."""
    text = read_text(file, "file of step times").removeprefix("\ufeff")
    series: dict[str, list[Step]] = {}
    try:
        rows = csv.DictReader(io.StringIO(text, newline=""))
        missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            present = [name for name in rows.fieldnames or () if name]
            hint = did_you_mean(missing[0], present)
            raise UsageError(f"{file}:1: the column {missing[0]!r} is missing; {hint}")
        for row in rows:
            place = f"{file}:{rows.line_num}"
            name = (row["worker"] or "").strip()
            if not name:
                raise UsageError(f"{place}: the worker is missing; give every row one")
            time_s = _number(place, "time", row["time"])
            duration_ms = _number(place, "batch_time_norm", row["batch_time_norm"])
            if not SHORTEST_MS <= duration_ms <= LONGEST_MS:
                raise UsageError(
                    f"{place}: batch_time_norm is {duration_ms:g}; a step takes from {SHORTEST_MS:g} "
                    f"to {LONGEST_MS:g} ms, remove the row"
                )
            series.setdefault(name, []).append(Step(time_s, duration_ms / 1000))
    except csv.Error as error:
        raise UsageError(f"{file}: it cannot be read as CSV ({error}); export it again") from None
    if not series:
        raise UsageError(f"{file}: there is no step in it; record some first")
    for name, steps in series.items():
        if len(steps) <= MEDIAN_OF:
            raise UsageError(
                f"{file}: worker {name!r} has {len(steps)} steps, and a step is judged by the median of "
                f"the {MEDIAN_OF} before it; remove the worker, or record at least {MEDIAN_OF + 1}"
            )
        steps.sort(key=lambda step: step.time_s)
    return series


def _number(place: str, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        shown = "missing" if not text else repr(text[:40])
        raise UsageError(f"{place}: {column} is {shown}; it must be a finite number, 0 or more")
    return value
