"""``tenure rehearse spot``: what a policy under a deadline would have cost on recorded spot markets."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import screen
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.plan.deadline import Market, Played, Policy, Terms


class PolicyName(StrEnum):
    """The policies that can be rehearsed."""

    OURS = "ours"
    UNIFORM_PROGRESS = "uniform-progress"
    GREEDY = "greedy"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True)
class Summary:
    """What a policy came to on the windows of one series, or of all."""

    name: str
    runs: int
    mean_cost_usd: float
    saving: float  # share of the task's hours on demand
    late_runs: int
    mean_moves: float


def spot(
    trace: Annotated[list[Path], typer.Option(help="A trace, JSON; give one or several.")],
    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE")] = None,
    windows: Annotated[Path | None, typer.Option(help="Start ticks per series, JSON.")] = None,
    task_h: Annotated[float, typer.Option(help="Hours of work.")] = 48.0,
    deadline_h: Annotated[float, typer.Option(help="Hours until it must be done.")] = 52.0,
    overhead_h: Annotated[float, typer.Option(help="Hours that a start costs.")] = 0.2,
    on_demand: Annotated[float, typer.Option(help="Dollars per hour, on demand.")] = 3.06,
    spot_price: Annotated[float, typer.Option("--spot", help="Dollars per hour, spot.")] = 0.9731,
    policy: Annotated[PolicyName, typer.Option(help="Who decides.")] = PolicyName.OURS,
    markets: Annotated[bool, typer.Option("--markets", help="All are one job's markets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Play a policy for a job with a deadline on recorded spot markets."""
    from tenure.plan.spot_traces import read_trace

    terms = _terms(task_h, deadline_h, overhead_h, on_demand, spot_price)
    files = [*trace, *(more or [])]
    read = [read_trace(file) for file in files]
    names = [market.name for market in read]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(
            f"two traces are named {doubled[0]!r}; a series is named after its file, rename one"
        )
    jobs = _jobs(read, windows, terms, together=markets)
    played = []
    with screen.working(f"playing {sum(len(starts) for _, starts in jobs)} windows"):
        played = [_play(group, starts, terms, policy) for group, starts in jobs]
    series = [
        _summary("+".join(market.name for market in group), [one])
        for (group, _), one in zip(jobs, played, strict=True)
    ]
    overall = _summary("overall", played)
    if as_json:
        whole = {"series": [asdict(one) for one in series], "overall": asdict(overall)}
        typer.echo(json.dumps(whole, indent=2))
        return
    _show([*series, overall] if len(series) > 1 else series)


def _terms(task_h: float, deadline_h: float, overhead_h: float, sure: float, cheap: float) -> Terms:
    """The job's terms; UsageError with the option's name where one is no use."""
    from tenure.plan.deadline import Terms

    for option, value in (
        ("--task-h", task_h),
        ("--deadline-h", deadline_h),
        ("--overhead-h", overhead_h),
        ("--on-demand", sure),
        ("--spot", cheap),
    ):
        least = (
            "more than 0" if option in ("--task-h", "--deadline-h", "--on-demand") else "0 or more"
        )
        if not math.isfinite(value) or value < 0 or (value == 0 and least == "more than 0"):
            raise UsageError(f"{option} is {value:g}; it must be a finite number, {least}")
    slack_h = deadline_h - task_h
    if 0 <= slack_h < overhead_h - 1e-9:
        raise UsageError(
            f"--overhead-h {overhead_h:g} is longer than the slack of {slack_h:g} h between --task-h and "
            f"--deadline-h by {overhead_h - slack_h:.4g} h, so even on demand the job is late; the cheapest "
            f"relaxation is --deadline-h {task_h + overhead_h:g}"
        )
    try:
        return Terms(task_h, deadline_h, overhead_h, sure, cheap)
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-', 1)}") from None


def _jobs(
    read: Sequence[Market], windows: Path | None, terms: Terms, *, together: bool
) -> list[tuple[list[Market], list[int]]]:
    """The markets of each job and its start ticks: one job of all markets, or one of each."""
    from tenure.plan import spot_traces

    groups = [list(read)] if together else [[market] for market in read]
    named = spot_traces.read_windows(windows, [m.name for m in read]) if windows else {}
    jobs = []
    for group in groups:
        gaps = {market.gap_s: market.name for market in group}
        if len(gaps) > 1:
            (one_s, one), (other_s, other), *_ = gaps.items()
            raise UsageError(
                f"--markets: the ticks of {one!r} last {one_s:g} s and those of {other!r} {other_s:g} s; "
                "the markets of one job need the same"
            )
        ticks = terms.ticks(group[0].gap_s)
        shortest = min(group, key=lambda market: len(market.there))
        length = len(shortest.there)
        if ticks > length:
            hours = length * shortest.gap_s / 3600
            raise UsageError(
                f"{shortest.name}: the trace lasts {hours:.4g} h and --deadline-h is {terms.deadline_h:g}; "
                "give a longer trace or a shorter deadline"
            )
        starts = spot_traces.even_starts(length, ticks)
        if windows:
            starts = spot_traces.common_starts({m.name: named[m.name] for m in group}, windows)
            spot_traces.check_windows(shortest.name, starts, ticks, length)
        jobs.append((group, starts))
    return jobs


def _play(markets: list[Market], starts: list[int], terms: Terms, name: PolicyName) -> Played:
    from tenure.plan.deadline import Greedy, OnDemand, UniformProgress, replay
    from tenure.plan.deadline_dp import Ours

    simple: dict[PolicyName, Policy] = {
        PolicyName.UNIFORM_PROGRESS: UniformProgress(),
        PolicyName.GREEDY: Greedy(),
        PolicyName.ON_DEMAND: OnDemand(),
    }
    policy = simple.get(name) or Ours(markets, terms)
    return replay(markets, starts, terms, policy)


def _summary(name: str, played: Sequence[Played]) -> Summary:
    """The mean over all runs of what was played."""
    runs = sum(len(one.cost_usd) for one in played)
    cost_usd = math.fsum(float(one.cost_usd.sum()) for one in played) / runs
    return Summary(
        name=name,
        runs=runs,
        mean_cost_usd=cost_usd,
        saving=1 - cost_usd / played[0].terms.on_demand_usd,
        late_runs=sum(int(one.late.sum()) for one in played),
        mean_moves=sum(int(one.moves.sum()) for one in played) / runs,
    )


def _show(rows: Sequence[Summary]) -> None:
    screen.show(
        ("series", "runs", "mean $", "saving", "late", "mean moves"),
        [
            (
                row.name,
                str(row.runs),
                f"{row.mean_cost_usd:.2f}",
                f"{100 * row.saving:.1f} %",
                str(row.late_runs),
                f"{row.mean_moves:.1f}",
            )
            for row in rows
        ],
    )
