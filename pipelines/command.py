"""``tenure run`` and ``tenure up``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pipelines.extras import demand_dagster
from pipelines.interrupts import Interrupted, noting_signals
from tenure.cli.plain import plain
from tenure.errors import UsageError
from tenure.plan.file import Plan, demand_own_name, load_plan
from tenure.settings import Settings, load_settings

if TYPE_CHECKING:
    from assets.stage import Report
    from assets.standing import Count
    from pipelines.chain_run import ChainOutcome
    from tenure.dispatch.loop import Dispatcher

_COLOURS = {
    "PASS": "green",
    "BLOCK": "red",
    "NOT_ENOUGH_SEEDS": "yellow",
    "NOT_REACHED": "dim",
    "done": "green",
    "blocked": "red",
    "not reached": "dim",
}
ATTACHES = "Workers that run go on to their ends; the same command attaches to them."

Config = Annotated[Path | None, typer.Option("--config", help="The tenure.toml to use.")]


def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan's YAML file.")],
    rungs: Annotated[
        list[str] | None,
        typer.Option("--rungs", help="Rungs to use instead of the plan's, in order of preference."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    config: Config = None,
) -> None:
    """Play a plan from training to deployment. Run again, it attaches to what is there.

    Exit code 0: deployed, 1: blocked, 2: bad input, 3: store out of reach, 130: Ctrl-C, 143: SIGTERM.
    """
    demand_dagster("run")
    settings = load_settings(config)
    names = rung_names(rungs)
    found = load_plan(plan, settings, check_import=True, check_rungs=not names)
    demand_own_name(found, settings)
    wanted = with_rungs(found, names, settings)
    console = Console(stderr=as_json)
    warn_without_key(settings, console)
    with Watching(console) as watching:
        outcome = watching.run(settings, wanted)
    if as_json:
        typer.echo(json.dumps(answer(outcome), indent=2))
    else:
        show(outcome, console)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def up(
    port: Annotated[int | None, typer.Option(help="Instead of [dagster] port.")] = None,
    config: Config = None,
) -> None:
    """Show the chain in a browser and play nightly plans: Dagster's page and daemon, until Ctrl-C."""
    demand_dagster("up")
    demand_dagster("up", "dagster_webserver")
    from pipelines.up import page

    settings = load_settings(config)
    console = Console()
    with noting_signals() as stopped, page(settings, port) as ours:
        with console.status("starting Dagster's page and daemon"):
            ours.wait_until_it_answers(stopped)
        if not stopped:
            console.print(f"Dagster answers at {ours.url} (Ctrl-C ends it; workers go on)")
        ours.wait(stopped)
        console.print("ending Dagster's page and daemon")


def rung_names(given: list[str] | None) -> list[str]:
    """What ``--rungs`` named, one by one or joined by commas."""
    return [name.strip() for item in given or [] for name in item.split(",") if name.strip()]


def with_rungs(plan: Plan, names: list[str], settings: Settings) -> Plan:
    """The plan on other rungs, if any are named."""
    if not names:
        return plan
    for name in names:
        if name not in settings.rungs:
            known = ", ".join(sorted(settings.rungs))
            raise UsageError(f"--rungs: there is no rung {name!r}; known: {known}")
    return plan.model_copy(update={"rungs": list(dict.fromkeys(names))})


def warn_without_key(settings: Settings, console: Console) -> None:
    """Say at the beginning, not after hours, that the last stage will lack its key."""
    from gates.trust import load_signer

    try:
        load_signer(settings)
    except UsageError as error:
        console.print(Text(f"The chain will stop before its last stage: {error}", "yellow"))


class Watching:
    """A bar for every stage that has begun; a line for each change where there is no terminal."""

    def __init__(self, console: Console, afterwards: str = ATTACHES) -> None:
        """``afterwards`` is what an interrupted person may count on."""
        self._afterwards = afterwards
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", style="dim"),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}
        self._console = console
        self._told = ""

    def __enter__(self) -> Watching:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def run(
        self,
        settings: Settings,
        plan: Plan,
        report: Report | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> ChainOutcome:
        """The chain with this watching it; Ctrl-C or SIGTERM ends it and leaves the workers."""
        from pipelines.chain_run import run_chain

        try:
            return run_chain(
                settings,
                plan,
                report,
                self.watch,
                dispatcher=dispatcher,
                at_first_signal=lambda: self._say("Ending; Ctrl-C again ends at once."),
            )
        except Interrupted as error:
            self._progress.stop()
            self._say(f"Interrupted. {self._afterwards}")
            raise typer.Exit(error.exit_code) from None

    def _say(self, words: str) -> None:
        self._console.print(Text(plain(words)), soft_wrap=True)

    def watch(self, stage: str, found: Count, waiting: str) -> None:
        """Show the numbers of a stage, and what its first open job waits for."""
        if not self._console.is_terminal:
            line = f"{stage}: {found.words()}"
            if line != self._told:
                self._told = line
                self._console.print(Text(plain(line)), soft_wrap=True)
            return
        if stage not in self._bars:
            self._bars[stage] = self._progress.add_task(stage, total=found.jobs, words="")
        lost = f"{found.attempts_lost} lost; " if found.attempts_lost else ""
        words = escape(plain(f"{lost}{waiting}"))
        bar = self._bars[stage]
        total = self._progress.tasks[self._progress.task_ids.index(bar)].total or 0
        # a retry is followed alone, so that what is open is subtracted from all there is
        done = total - (found.jobs - found.finished - found.ended)
        self._progress.update(bar, completed=done, words=words)


def show(outcome: ChainOutcome, console: Console) -> None:
    """The seven stages, the verdict of every gate, and where the deployed model lies."""
    from assets.deployment import places

    stages = _table(f"The chain of {outcome.plan}")
    for column in ("stage", "state"):
        stages.add_column(column, no_wrap=True)
    for column in ("jobs", "lost", "seconds"):
        stages.add_column(column, justify="right", no_wrap=True)
    stages.add_column("numbers", overflow="fold")
    for stage in outcome.stages:
        jobs = f"{stage.count.finished}/{stage.count.jobs}" if stage.count.jobs else "-"
        lost = str(stage.count.attempts_lost) if stage.count.jobs else "-"
        seconds = f"{stage.seconds:.1f}" if stage.state != "not reached" else "-"
        stages.add_row(
            stage.stage, _coloured(stage.state), jobs, lost, seconds, Text(plain(stage.summary))
        )
    gates = _table("The gates")
    gates.add_column("gate", no_wrap=True)
    gates.add_column("verdict", no_wrap=True)
    gates.add_column("reason", overflow="fold")
    for gate, verdict, reason in _verdicts(outcome):
        gates.add_row(gate, _coloured(verdict), Text(plain(reason)))
    console.print(stages, gates)
    for reason in outcome.reasons:
        console.print(Text(plain(f"Not deployed: {reason}"), "red"), soft_wrap=True)
    if not outcome.drained:
        console.print("A launch of this plan is still open; the next dispatcher closes it.")
    if outcome.deployed is not None:
        console.print(f"Deployed: record {outcome.deployed.record}, seed {outcome.deployed.seed}")
        for what, key in places(outcome.deployed).items():
            console.print(f"  {what:<12}{key}", soft_wrap=True)


def answer(outcome: ChainOutcome) -> dict[str, object]:
    """What ``--json`` prints: plan, stages, verdicts, deployed, and the reasons against it."""
    from assets.deployment import places

    deployed = outcome.deployed
    return {
        "plan": outcome.plan,
        "stages": [
            {
                "stage": stage.stage,
                "state": stage.state,
                "jobs": stage.count.jobs,
                "finished": stage.count.finished,
                "attempts_lost": stage.count.attempts_lost,
                "summary": stage.summary,
                "duration_s": round(stage.seconds, 3),
            }
            for stage in outcome.stages
        ],
        "verdicts": [
            {"gate": gate, "verdict": verdict, "reason": reason}
            for gate, verdict, reason in _verdicts(outcome)
        ],
        "deployed": None
        if deployed is None
        else {
            "name": deployed.name,
            "record": deployed.record,
            "seed": deployed.seed,
            "warrant": deployed.warrant,
            "keys": places(deployed),
        },
        "reasons": list(outcome.reasons),
    }


def _verdicts(outcome: ChainOutcome) -> list[tuple[str, str, str]]:
    asked = [(v.gate, str(v.verdict), v.reason) for v in outcome.verdicts]
    return [*asked, *((gate, "NOT_REACHED", "not reached") for gate in outcome.not_reached)]


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _coloured(word: str) -> Text:
    return Text(word, _COLOURS[word])
