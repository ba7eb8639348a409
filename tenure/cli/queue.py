"""``tenure queue``: who is next and why, and what each team has had; ``queue simulate`` plays a scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config, Json, open_workplace
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.dispatch.queueing import Queue, waits
from tenure.dispatch.registry import build_dispatcher
from tenure.dispatch.views import Launch, Wait
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.queue.answer import Answer
    from tenure.queue.play import Played

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)

_LISTED = 40  # jobs that a person is shown; --json has them all
_TEAMS = ("team", "weight", "entitled", "of use", "card-hours", "cards run", "jobs wait")
_JOBS = ("place", "job", "team", "why")
_SIMULATED = ("team", "jobs", "finished", "mean wait", "p95", "card-hours", "share", "penalties")


@dataclass(frozen=True)
class Row:
    """One job that waits."""

    job: str
    team: str
    place: int | None  # 1 goes next; None: held, or refused
    verdict: str
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """As a person reads it."""
        return str(self.place or "-"), self.job, self.team or "-", self.reason


@app.callback()
def queue(context: typer.Context, as_json: Json = False, config: Config = None) -> None:
    """Show whose job goes next, why, and each team's share and use."""
    if context.invoked_subcommand is not None:
        return
    place = open_workplace(config)
    dispatcher = build_dispatcher(place.settings, place.store)
    with screen.working("reading the queue"):
        tick = dispatcher.look()
        found = dispatcher.team_queue()
    for key, trouble in sorted(tick.troubles.items()):
        screen.warn(f"{key}: {trouble}")
    (team, *_) = [*place.settings.teams, ""]
    rows = of_teams(found) if found else alone(dispatcher, tick, team)
    if as_json:
        typer.echo(json.dumps(told(found, rows)))
        return
    if found:
        _print_teams(found)
    if not rows:
        typer.echo("no job waits")
        return
    screen.show(_JOBS, [row.cells for row in rows[:_LISTED]])
    if len(rows) > _LISTED:
        typer.echo(f"and {len(rows) - _LISTED} more; --json has them all")


def of_teams(found: Queue) -> list[Row]:
    """Every job that waits, in the queue's order."""
    return [
        Row(each.job, each.team, each.place, each.verdict, each.reason, dict(each.numbers))
        for each in found.decisions
    ]


def alone(dispatcher: Dispatcher, tick: Tick, team: str) -> list[Row]:
    """The same where there is one team: the order in which a dispatcher goes through its jobs."""
    views = dispatcher.snapshot().view_of
    waiting = {
        action.job: reason
        for action, reason in tick.decisions
        if isinstance(action, (Launch, Wait)) and waits(views[action.job])
    }
    return [
        Row(job, team, place, "waits" if place > 1 else "next", reason)
        for place, (job, reason) in enumerate(waiting.items(), 1)
    ]


def told(found: Queue | None, rows: Sequence[Row]) -> dict[str, object]:
    """The JSON: numbers of each team, every job that waits with its place and reason, penalties."""
    jobs = [asdict(row) for row in rows]
    if found is None:
        return {"teams": {}, "jobs": jobs, "penalties": []}
    return {
        "teams": {name: dict(numbers) for name, numbers in found.teams.items()},
        "jobs": jobs,
        "penalties": [
            {
                "team": each.team,
                "factor": each.factor,
                "reason": each.reason,
                "ends_in_s": each.until_s - found.now_s,
            }
            for each in found.state.penalties
        ],
        "half_life_h": found.state.half_life_s / 3600.0,
        "max_wait_h": found.state.max_wait_s / 3600.0,
    }


def _print_teams(found: Queue) -> None:
    """Each team's numbers, and what lowers its weight."""
    rows = [
        (
            name,
            f"{of['weight_now']:g}",
            f"{of['entitlement']:.0%}",
            f"{of['share']:.0%}",
            f"{of['charged_card_h']:.2f}",
            f"{of['running_cards']:.0f}",
            f"{of['waiting_jobs']:.0f}",
        )
        for name, of in found.teams.items()
    ]
    screen.show(_TEAMS, rows)
    for each in found.state.penalties:
        left_h = (each.until_s - found.now_s) / 3600.0
        if left_h > 0:
            words = f"team {each.team} weighs {each.factor:g} of its weight for {left_h:.1f} h"
            typer.echo(screen.plain(f"{words}: {each.reason}"))


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
    screen.show(_SIMULATED, rows)
    for each in played.penalties:
        typer.echo(f"{each.from_s / 3600:.2f} h: {each.reason}")
