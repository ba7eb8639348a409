"""``tenure verify`` and ``tenure rollback``: what is deployed, proved again; and the one before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gates.bom import written
from gates.head import KnownHead
from gates.slots import check_deployment_name
from gates.trust import load_trust
from gates.verification import Verification, answer, verify_deployment
from tenure.cli.workplace import Config, Json
from tenure.dispatch.deploy_store import open_deploy_store
from tenure.dispatch.registry import open_settings_store
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.notify.notifier import Notifier
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.store.api import StoreSilent

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a deployment.")]


def verify(
    name: Name,
    bom: Annotated[
        Path | None,
        typer.Option(
            "--bom", metavar="FILE", help="Write the live model's bill of materials there."
        ),
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Prove again what is deployed: log, history, warrant, signature, record, and every byte.

    Takes public keys alone. Exit code 0: all of it holds, 1: not, 2: bad input, 3: store out of reach.
    Changes nothing in the store; remembers the end of the log in .tenure/warrants.json.
    """
    settings = load_settings(config)
    check_deployment_name(name)
    trust = load_trust(settings)
    store = open_settings_store(settings, read_only=True)
    try:
        found = verify_deployment(store, name, trust, KnownHead.of(settings))
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {store.url} does not answer: {error}") from None
    if as_json:
        typer.echo(json.dumps(answer(found), indent=2))
    else:
        Console().print(_table(found))
    if not found.ok:
        if not as_json:
            wrong = next(check for check in found.checks if not check.ok)
            raise Blocked(f"{name}: {wrong.check}: {wrong.detail}")
        raise typer.Exit(Blocked.exit_code)
    if bom is not None:
        _write(bom, written(found.statements["live"].predicate.get("bom")))


def rollback(
    name: Name,
    to: Annotated[
        int | None,
        typer.Option(
            metavar="WARRANT", help="Its number; by default that of the model before the live one."
        ),
    ] = None,
    by: Annotated[str, typer.Option(help="Who asks, for the history.")] = "tenure rollback",
    reason: Annotated[str | None, typer.Option(help="Why, for the history.")] = None,
    config: Config = None,
) -> None:
    """Make a model live again that was live before. Needs no deploy key: its warrant is there."""
    from gates.rollback import rollback as roll_back

    settings = load_settings(config)
    check_deployment_name(name)
    trust = load_trust(settings)
    store = open_settings_store(settings)
    try:
        ours, head = open_deploy_store(settings, store), KnownHead.of(settings)
        done = roll_back(ours, name, trust, to, head=head, by=by, reason=reason)
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {store.url} does not answer: {error}") from None
    except Corrupt as error:
        raise Blocked(f"{error}; nothing was rolled back") from None
    notifier = Notifier.of(settings, store, SYSTEM, "tenure rollback")
    notifier.rolled_back(done.name, done.record, done.seed, done.warrant, done.move)
    notifier.close()
    typer.echo(
        f"{done.name}: record {done.record}, seed {done.seed}, is live again by warrant "
        f"{done.warrant}, in place of warrant {done.replaced} "
        f"({keys.moved(done.name, done.slot, done.move)})"
    )


def _table(found: Verification) -> Table:
    said = "is what was proved" if found.ok else "is not proved"
    table = Table(title=Text(f"{found.name} {said}"), title_justify="left")
    for column in ("slot", "check", "holds"):
        table.add_column(column, no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for check in found.checks:
        holds = Text("yes", "green") if check.ok else Text("no", "red")
        table.add_row(check.slot or "", check.check, holds, Text(check.detail))
    return table


def _write(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
