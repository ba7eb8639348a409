"""``tenure sim``: seeded histories of the whole protocol over a hostile store and platform."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.errors import Blocked
from tenure.sim.run import History, Summary, run_history, run_many

_REPLAY = "tenure sim --replay {}"


def sim(
    histories: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1000,
    seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Histories at once.")] = 2,
    replay: Annotated[
        int | None, typer.Option(help="Print every event of this one seed instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Play seeded histories of the protocol over a hostile world.

    The same seed is the same history. Exit code 1: an invariant of the protocol was broken.
    """
    if replay is not None:
        summary = _replay(run_history(replay, record=True), as_json)
    else:
        with screen.working(f"playing {histories} histories"):
            summary = run_many(histories, seed, processes)
        _tell(summary, as_json)
    if summary.violations:
        first, found = summary.violations[0]
        raise Blocked(
            f"{len(summary.violations)} broken invariants in {summary.histories} histories; "
            f"`{_REPLAY.format(first)}` shows the first ({found.invariant}: {found.detail})"
        )


def _replay(history: History, as_json: bool) -> Summary:
    summary = Summary()
    summary.add(history)
    if as_json:
        _tell(summary, as_json)
        return summary
    for line in history.lines:
        typer.echo(line)
    for found in history.violations:
        typer.echo(f"{found.at_s:10.3f} BROKEN {found.invariant}: {found.detail}")
    typer.echo(f"seed {history.seed} ({history.theme}): {history.trace_hash}")
    return summary


def _tell(summary: Summary, as_json: bool) -> None:
    violations = [
        {
            "invariant": found.invariant,
            "seed": seed,
            "detail": found.detail,
            "replay": _REPLAY.format(seed),
        }
        for seed, found in summary.violations
    ]
    if as_json:
        whole = {
            "histories": summary.histories,
            "steps": summary.steps,
            "faults": dict(sorted(summary.faults.items())),
            "ends": dict(sorted(summary.ends.items())),
            "violations": violations,
        }
        typer.echo(json.dumps(whole, indent=2))
        return
    rows = [(kind, str(count)) for kind, count in summary.faults.most_common()]
    screen.show(("fault", "injected"), rows)
    ends = ", ".join(f"{count} {phase}" for phase, count in summary.ends.most_common())
    typer.echo(f"{summary.histories} histories, {summary.steps} steps; jobs: {ends}")
    for broken in violations:
        typer.echo(f"BROKEN {broken['invariant']}, {broken['replay']}: {broken['detail']}")
