"""``tenure rehearse PLAN``: when a plan would end and what it would cost, before a cent is spent."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.bad_input import did_you_mean
from tenure.cli import screen
from tenure.cli.workplace import Config, Json, open_workplace
from tenure.dispatch.registry import build_rungs
from tenure.errors import Blocked, UsageError
from tenure.plan.file import Plan, load_plan
from tenure_protocol.clock import SYSTEM

if TYPE_CHECKING:
    from tenure.dispatch.rehearsal import Hints
    from tenure.plan.rehearse_script import Trace

_MOST_PLAYS = 100_000
_COMMANDS = ("lease", "spot")


def rehearse_plan(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan's file.")],
    plays: Annotated[int, typer.Option(help="How often it is played.")] = 200,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal plays.")] = 0,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Play the pinned retrain after it, too.")
    ] = False,
    work: Annotated[float | None, typer.Option(help="FLOPs of one job.")] = None,
    dtype: Annotated[str, typer.Option(help="The format that --work is done in.")] = "fp16",
    steps: Annotated[int | None, typer.Option(help="Steps of one job.")] = None,
    step_s: Annotated[
        list[str] | None,
        typer.Option(metavar="[RUNG=]S", help="Seconds of a step, on the first rung or on RUNG."),
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="RUNG=FILE", help="A recorded market, in place of the fitted lives."),
    ] = None,
    faster: Annotated[
        float, typer.Option(help="The card that Amdahl's sentence is about: times as fast.")
    ] = 2.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw finish times and costs.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Play a plan: when it ends, what it costs, is it on time.

    Exit code 1: no play keeps its deadline, or its budget. Nothing is launched.
    """
    from tenure.cli.rehearse_told import Told
    from tenure.dispatch.rehearsal import prepare
    from tenure.plan.rehearse import rehearse, relax

    _check_numbers(plays, seed, faster)
    _check_file(plan)
    place = open_workplace(config)
    asked = load_plan(plan, place.settings)
    hints = _hints(asked, work, dtype, steps, step_s or [])
    traces = _traces(asked, trace or [])
    rungs = build_rungs(place.settings, only=asked.rungs)
    with screen.working("reading what was observed"):
        ready = prepare(
            asked,
            rungs,
            place.store,
            SYSTEM,
            hints,
            traces,
            place.settings.planner.rates,
            retrain,
        )
    planned = asked.deadline_h is not None and place.settings.planner.enabled
    with screen.working(f"playing {len(ready.script.jobs)} jobs {plays} times"):
        outcome = rehearse(ready.script, plays, seed, planned)
        off = rehearse(ready.script, plays, seed, planned=False) if planned else None
        way_out = relax(outcome, seed, planned)
    told = Told(asked, ready, outcome, off, way_out, faster, seed)
    if as_json:
        typer.echo(json.dumps(told.as_json(), indent=2))
    else:
        told.show()
    if plot is not None:
        told.draw(plot)
    if way_out is not None:
        raise Blocked(way_out.reason)


# ---------------------------------------------------------------------------- what was typed


def _check_numbers(plays: int, seed: int, faster: float) -> None:
    if not 1 <= plays <= _MOST_PLAYS:
        raise UsageError(f"--plays {plays}; there are 1 to {_MOST_PLAYS}")
    if seed < 0:
        raise UsageError(f"--seed {seed}; it counts from 0")
    if not (math.isfinite(faster) and faster > 0):
        raise UsageError(f"--faster {faster:g}; a card is so many times as fast, above 0")


def _check_file(plan: Path) -> None:
    """A word that is no file may be a command that was written wrongly."""
    if plan.parent == Path() and not plan.suffix and not plan.exists():
        hint = did_you_mean(str(plan), _COMMANDS)
        raise UsageError(f"{plan}: there is no such plan file, and no such rehearsal; {hint}")


def _hints(
    plan: Plan, work: float | None, dtype: str, steps: int | None, step_s: Sequence[str]
) -> Hints:
    from tenure.dispatch.rehearsal import Hints, check_dtype

    check_dtype(dtype)
    if steps is not None and steps < 1:
        raise UsageError(f"--steps {steps}; a job has at least 1")
    if work is not None and not (math.isfinite(work) and work > 0):
        raise UsageError(f"--work {work:g}; a job has a number of FLOPs above 0")
    if work is not None and step_s:
        raise UsageError("--work and --step-s say the same twice; give one of them")
    if step_s and steps is None:
        raise UsageError("--step-s needs --steps: how many of them a job has")
    if steps is not None and work is None and not step_s:
        raise UsageError("--steps needs --step-s, how long one lasts, or --work, FLOPs of the job")
    named: dict[str, float] = {}
    for text in step_s:
        rung, _, seconds = text.rpartition("=")
        if rung and rung not in plan.rungs:
            raise UsageError(f"--step-s {text}: {_no_rung(rung, plan)}")
        named[rung] = _positive(seconds, f"--step-s {text}")
    first = named.pop("", None)
    return Hints(work, dtype, steps, first, named)


def _traces(plan: Plan, given: Sequence[str]) -> dict[str, Trace]:
    from tenure.plan.rehearse_script import read_trace

    found: dict[str, Trace] = {}
    for text in given:
        rung, equals, file = text.partition("=")
        if not equals or not file:
            raise UsageError(f"--trace {text}: write RUNG=FILE")
        if rung not in plan.rungs:
            raise UsageError(f"--trace {text}: {_no_rung(rung, plan)}")
        if rung in found:
            raise UsageError(f"--trace {text}: rung {rung!r} has a trace already; give one")
        found[rung] = read_trace(Path(file))
    return found


def _no_rung(rung: str, plan: Plan) -> str:
    return f"the plan has no rung {rung!r}; {did_you_mean(rung, plan.rungs)}"


def _positive(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{where}: {text!r} is no number of seconds above 0")
    return value
