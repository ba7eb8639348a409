"""``tenure gate check`` and ``tenure deploy``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gates.check import check_record
from gates.verdict import Verdict, deployable
from tenure.bad_input import read_text
from tenure.dispatch.registry import open_settings_store
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.settings import Settings, load_settings
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord, load
from tenure_protocol.store.api import Missing, Store, StoreSilent

_ID = re.compile(r"[a-z2-7]{26}")
_COLOURS = {"PASS": "green", "BLOCK": "red", "NOT_ENOUGH_SEEDS": "yellow"}

app = typer.Typer(help="May a model be deployed?", no_args_is_help=True)

Record = Annotated[
    str,
    typer.Argument(
        metavar="RECORD", help="A record's JSON file, its id, or a plan file: its newest retrain."
    ),
]
Config = Annotated[Path | None, typer.Option("--config", help="The tenure.toml to use.")]


@app.callback()
def gate() -> None:
    """May a model be deployed? Every gate answers with a sentence."""


@app.command("check")
def check(
    record: Record,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    config: Config = None,
) -> None:
    """Ask every gate. Exit code 0: deployable, 1: not, 2: bad input, 3: store out of reach."""
    settings = load_settings(config)
    store = open_settings_store(settings)
    try:
        found = find_record(record, store, settings)
        verdicts = check_record(store, found) if found else [_no_retrain(record)]
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {store.url} does not answer: {error}") from None
    name = found.id if found else None
    if as_json:
        typer.echo(json.dumps(answer(name, verdicts), indent=2))
    else:
        Console().print(_table(name or record, verdicts))
    if not deployable(verdicts):
        raise typer.Exit(Blocked.exit_code)


def deploy(
    record: Record,
    name: Annotated[
        str | None, typer.Option(help="Deployment to move; by default the experiment's name.")
    ] = None,
    config: Config = None,
) -> None:
    """Ask every gate again, sign the warrant, and make the model current."""
    from gates import deploy as deployment
    from gates.warrant import load_deploy_key

    settings = load_settings(config)
    store = open_settings_store(settings)
    try:
        found = find_record(record, store, settings)
        if found is None:
            raise Blocked(_no_retrain(record).reason)
        key = load_deploy_key(settings.gates.deploy_key, settings.root)
        done = deployment.deploy(store, found, key, name or found.experiment)
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {store.url} does not answer: {error}") from None
    except Corrupt as error:
        raise Blocked(f"{error}; nothing was deployed") from None
    typer.echo(
        f"{done.name}: record {done.record}, seed {done.seed}, is deployed by warrant "
        f"{done.warrant} ({keys.deployment(done.name)}, {keys.warrant(done.warrant)})"
    )


def answer(record: str | None, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The JSON of INTERFACES: record, deployable, and gate, verdict and reason of each."""
    return {
        "record": record,
        "deployable": deployable(verdicts),
        "verdicts": [
            {"gate": item.gate, "verdict": item.verdict, "reason": item.reason} for item in verdicts
        ],
    }


def find_record(name: str, store: Store, settings: Settings) -> ModelRecord | None:
    """The record a person named; ``None`` for a plan whose experiment has no retrain yet.

    Raises UsageError for a name that leads nowhere and a file that holds no record.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        from tenure.plan.file import load_plan

        return _newest_retrain(store, load_plan(path, settings).name)
    if path.exists() or path.suffix == ".json":
        return _read(read_text(path, "record").encode(), str(path))
    if not _ID.fullmatch(name):
        raise UsageError(
            f"{name!r} is no file here and no record's id (26 of a-z and 2-7); "
            "name a record's JSON file, a record's id, or a plan file"
        )
    for entry in store.list(keys.models()):
        if entry.key.endswith(f"/{name}.json"):
            return _stored(store, entry.key)
    raise UsageError(f"the store at {store.url} holds no model record {name}")


def _newest_retrain(store: Store, experiment: str) -> ModelRecord | None:
    rows = sorted(store.list(keys.models(experiment)), key=lambda row: row.age_s)
    for row in rows:
        found = _stored(store, row.key)
        if found.generation == 2:
            return found
    return None


def _stored(store: Store, key: str) -> ModelRecord:
    found = store.read(key)
    if isinstance(found, Missing):
        raise StoreSilent(f"{key} is listed and cannot be read")
    return _read(found.body, key)


def _read(body: bytes, where: str) -> ModelRecord:
    try:
        return load(ModelRecord, body, where)
    except Corrupt as error:
        raise UsageError(f"{error}; it is no model record of this version") from None


def _no_retrain(plan: str) -> Verdict:
    reason = f"{plan} has no generation-2 record yet, so nothing of it can be deployed"
    return Verdict("generation", "BLOCK", reason)


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
