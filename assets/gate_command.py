"""``tenure gate check`` and ``tenure deploy``: of a record, or of what a plan would deploy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assets.chain import Chain, Incomplete
from assets.repetition_command import repetition
from gates import junit
from gates.check import check_record
from gates.planned import of_plan, planned_seeds
from gates.verdict import Verdict, deployable
from tenure.cli.workplace import Config, write_whole
from tenure.dispatch.deploy_store import open_deploy_store
from tenure.dispatch.registry import open_settings_store
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.lookup import find_record, retrains
from tenure.notify.notifier import Notifier
from tenure.plan.file import Plan, demand_own_name, load_plan
from tenure.settings import Settings, load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.api import Missing, Store, StoreSilent

_COLOURS = {"PASS": "green", "BLOCK": "red", "NOT_ENOUGH_SEEDS": "yellow"}

app = typer.Typer(help="May a model be deployed?", no_args_is_help=True)

Record = Annotated[
    str,
    typer.Argument(
        metavar="RECORD",
        help="A record's JSON file, its id, or a plan file: what it would deploy as it stands.",
    ),
]


@app.callback()
def gate() -> None:
    """May a model be deployed? Every gate answers with a sentence."""


app.command("repetition")(repetition)


@app.command("check")
def check(
    record: Record,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            "--junit", metavar="FILE", help="Write a JUnit report too, for a code host to show."
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Ask every gate. Exit code 0: deployable, 1: not, 2: bad input, 3: store out of reach.

    Reads only: in the store, and where the store would be, nothing changes.
    """
    began_s = SYSTEM.monotonic_s()
    try:
        name, verdicts = _asked(record, config)
    except Exception as error:  # a code host that finds no report shows nothing at all
        if report:
            took_s = SYSTEM.monotonic_s() - began_s
            try:
                write_whole(
                    report, junit.of_error(record, error, SYSTEM.wall_s(), took_s), "report"
                )
            except UsageError as unwritten:
                typer.echo(f"tenure: {unwritten}", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(answer(name, verdicts), indent=2, allow_nan=False))
    else:
        Console().print(_table(name or record, verdicts))
    if report:
        took_s = SYSTEM.monotonic_s() - began_s
        body = junit.of_verdicts(record, name, verdicts, SYSTEM.wall_s(), took_s)
        write_whole(report, body, "report")
    if not deployable(verdicts):
        raise typer.Exit(Blocked.exit_code)


def _asked(record: str, config: Path | None) -> tuple[str | None, list[Verdict]]:
    """The id of what was named, if it has one, and every gate's verdict on it."""
    settings = load_settings(config)
    plan = _plan(record, settings)
    store = open_settings_store(settings, read_only=True)
    try:
        found, seeds = _found(record, plan, store, settings)
        return found.id, [*check_record(store, found), seeds]
    except _NoRecord as error:
        return None, [Verdict("generation", "BLOCK", str(error))]
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {store.url} does not answer: {error}") from None


def deploy(
    record: Record,
    name: Annotated[
        str | None, typer.Option(help="Deployment to move; by default the experiment's name.")
    ] = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Put it beside the live model, which stays live.")
    ] = False,
    by: Annotated[str, typer.Option(help="Who asks, for the history.")] = "tenure deploy",
    reason: Annotated[str | None, typer.Option(help="Why, for the history.")] = None,
    config: Config = None,
) -> None:
    """Ask every gate again, sign a warrant, make the model live."""
    from gates import deploy as deployment
    from gates.head import KnownHead
    from gates.trust import load_signer

    settings = load_settings(config)
    plan = _plan(record, settings)
    store = open_settings_store(settings)
    try:
        found, seeds = _found(record, plan, store, settings)
        key, trust = load_signer(settings)
        done = deployment.deploy(
            open_deploy_store(settings, store),
            found,
            key,
            name or found.experiment,
            trust=trust,
            slot="shadow" if shadow else "live",
            head=KnownHead.of(settings),
            by=by,
            reason=reason,
            beside=[seeds],
        )
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {store.url} does not answer: {error}") from None
    except Corrupt as error:
        raise Blocked(f"{error}; nothing was deployed") from None
    if not shadow:
        notifier = Notifier.of(settings, store, SYSTEM, "tenure deploy")
        notifier.deployed(done.name, done.record, done.seed, done.warrant)
        notifier.close()
    typer.echo(
        f"{done.name}: record {done.record}, seed {done.seed}, is "
        f"{'in the shadow slot' if shadow else 'deployed'} by warrant {done.warrant} "
        f"({keys.slot(done.name, done.slot)}, {keys.warrant(done.warrant)})"
    )


def answer(record: str | None, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The JSON of INTERFACES: record, deployable, and gate, verdict, reason and numbers of each."""
    return {
        "record": record,
        "deployable": deployable(verdicts),
        "verdicts": [
            {
                "gate": item.gate,
                "verdict": item.verdict,
                "reason": item.reason,
                "numbers": {name: _number(value) for name, value in item.numbers.items()},
            }
            for item in verdicts
        ],
    }


def _number(value: float | str) -> float | str:
    """JSON has no infinity: ``inf`` is a text there."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


class _NoRecord(Blocked):
    """A plan that as it stands now would deploy nothing; the message says why."""


def _plan(name: str, settings: Settings) -> Plan | None:
    """The plan a person named; ``None`` for a record. Raises UsageError."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        return None
    plan = load_plan(path, settings, check_import=True)
    demand_own_name(plan, settings)
    return plan


def _found(
    name: str, plan: Plan | None, store: Store, settings: Settings
) -> tuple[ModelRecord, Verdict]:
    """The record that a person named, and whether its seeds are those that its plan had fixed."""
    if plan is None:
        found = find_record(name, store)
        return found, planned_seeds(store, found)
    found = _of_plan(store, plan, settings)
    return found, of_plan(found)


def _of_plan(store: Store, plan: Plan, settings: Settings) -> ModelRecord:
    """The record that the plan as it stands now would deploy: that of its very jobs and terms.

    A record of the same name is not enough: terms, grid, code, data or seeds may have changed since.
    Writes nothing. Raises _NoRecord.
    """
    chain = Chain(store, plan, settings, SYSTEM, keep_records=False)
    try:
        record = chain.second_generation()
        if isinstance(store.read(keys.model(record.experiment, record.id)), Missing):
            raise Blocked(
                f"its jobs are finished and record {record.id} is not written yet; "
                f"`tenure run {plan.file}` writes it"
            )
        return record
    except (Blocked, Incomplete) as error:
        said = f"{plan.name} as it stands now has no generation-2 record to deploy: {error}"
        older = next(retrains(store, plan.name), None)
        if older is not None:
            differences = ", ".join(chain.differences(older)) or "jobs that are not the plan's"
            said += f". The newest there is, {older.id}, is not of this plan: it has {differences}"
        if isinstance(error, Incomplete):
            said += f". `tenure run {plan.file}` plays it"
        raise _NoRecord(said) from None


def _table(record: str, verdicts: Sequence[Verdict]) -> Table:
    said = "may be deployed" if deployable(verdicts) else "may not be deployed"
    table = Table(title=Text(f"{record} {said}"), title_justify="left")
    table.add_column("gate", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for item in verdicts:
        # Text, because a reason may hold square brackets, which are markup in a plain string
        table.add_row(item.gate, Text(item.verdict, _COLOURS[item.verdict]), Text(item.reason))
    return table
