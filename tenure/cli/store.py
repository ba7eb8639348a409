"""``tenure store check``: does a store keep the conditions that everything rests on?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.errors import Blocked, UsageError
from tenure.settings import absolute_store_url, load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store import probe
from tenure_protocol.store.api import StoreUnusable
from tenure_protocol.store.open import open_store

app = typer.Typer(no_args_is_help=True)


@app.callback()
def store() -> None:
    """Check that a store keeps the conditions all else rests on."""


@app.command("check")
def check(
    url: Annotated[
        str | None, typer.Argument(help="A store's address; by default that of tenure.toml.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    config: Annotated[Path | None, typer.Option("--config", help="The tenure.toml to use.")] = None,
) -> None:
    """Try every condition in scratch keys. Exit code 0: safe, 1: not, 2: bad input, 3: silent."""
    settings = load_settings(config)
    wanted = settings.store_url if url is None else absolute_store_url(url, settings.root)
    try:
        opened = open_store(wanted)
    except StoreUnusable as error:
        raise UsageError(str(error)) from error
    with screen.working(f"probing {opened.url}"):
        checks = probe.probe(opened, SYSTEM)
    safe = probe.safe(checks)
    if as_json:
        rows = [{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks]
        typer.echo(json.dumps({"url": opened.url, "safe": safe, "checks": rows}, indent=2))
    else:
        screen.show(
            ("condition", "kept", "what was seen"),
            [(c.name, "yes" if c.ok else "NO", c.detail) for c in checks],
        )
    if not safe:
        broken = ", ".join(c.name for c in checks if not c.ok)
        raise Blocked(f"{opened.url} does not keep: {broken}; two workers could both win there")
