"""``tenure queue``: who is next and why; ``tenure queue simulate`` plays a scenario."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import screen
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.queue.answer import Answer
    from tenure.queue.play import Played

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Shares of a pool: who goes next, and why.",
)

_COLUMNS = ("team", "jobs", "finished", "mean wait", "p95", "card-hours", "share", "penalties")


@app.command()
def simulate(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="SCENARIO.yaml", help="A pool, teams, and what they do."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print a scenario's JSON schema and end.")
    ] = False,
    policy: Annotated[
        str, typer.Option(help="ours, or one to compare with; a wrong one lists them.")
    ] = "ours",
) -> None:
    """Play a scenario of teams and jobs, and tell who waited how long."""
    from tenure.bad_input import did_you_mean
    from tenure.queue.answer import answer
    from tenure.queue.play import play
    from tenure.queue.policies import NAMES
    from tenure.queue.scenario import Scenario, read_scenario

    if schema:
        typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))
        return
    known = next((name for name in NAMES if name == policy), None)
    if known is None:
        raise UsageError(f"--policy: there is no {policy!r}; {did_you_mean(policy, NAMES)}")
    if scenario is None:
        raise UsageError("a scenario is missing: name its file, or ask for --schema")
    asked = read_scenario(scenario)
    with screen.working(f"playing {len(asked.events)} events of {len(asked.teams)} teams"):
        played = play(asked, known)
    found = answer(asked, played)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _tell(found, played)


def _tell(found: Answer, played: Played) -> None:
    def hours(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds / 3600:.2f} h"

    rows = [
        (
            name,
            str(team["jobs"]),
            str(team["finished"]),
            hours(team["wait_s"]["mean"]),
            hours(team["wait_s"]["p95"]),
            f"{team['card_hours']:.1f}",
            f"{team['share']:.1%}",
            str(team["penalties"]),
        )
        for name, team in found["teams"].items()
    ]
    screen.show(_COLUMNS, rows)
    for each in played.penalties:
        typer.echo(f"{each.from_s / 3600:.2f} h: {each.reason}")
