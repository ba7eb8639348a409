"""``tenure doctor``: is everything that tenure.toml names there and in order? Spends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config, Json
from tenure.dispatch.contract import ChecksItself, Site
from tenure.dispatch.registry import open_settings_store, runner_class
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.settings import Settings, load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import shown


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    about: str
    ok: bool
    detail: str


def doctor(as_json: Json = False, config: Config = None) -> None:
    """Check settings, store, runners and quotas; launches nothing.

    Exit code 1 when something is wrong.
    """
    settings = load_settings(config)
    with screen.working("asking the store and the platforms"):
        found = list(examine(settings))
    wrong = [finding for finding in found if not finding.ok]
    if as_json:
        rows = [{"about": f.about, "ok": f.ok, "detail": f.detail} for f in found]
        typer.echo(json.dumps({"ok": not wrong, "checks": rows}, indent=2))
    else:
        screen.show(
            ("about", "well", "what was seen"),
            [(f.about, "yes" if f.ok else "NO", f.detail) for f in found],
        )
    if wrong:
        about = ", ".join(dict.fromkeys(finding.about for finding in wrong))
        raise Blocked(f"not in order: {about}")


def examine(settings: Settings) -> Iterator[Finding]:
    """Everything that can be looked at without spending; one thing that is wrong hides no other."""
    where = str(settings.file) if settings.file else "there is no tenure.toml: the defaults hold"
    yield Finding("settings", True, where)
    yield _store(settings)
    site = Site(settings.root, SYSTEM, store=settings.store_url)
    for name, section in settings.runners.items():
        about = f"runner {name}"
        rungs = [rung for rung, one in settings.rungs.items() if one.runner == name]
        used = f"rungs {', '.join(rungs)}" if rungs else "no rung uses it"
        try:
            kind = runner_class(section.kind)
            runner = kind(name, section.extra, site)
            capacity = kind.capacity(section.extra)
        except (UsageError, ValueError) as error:
            yield Finding(about, False, str(settings.error(("runners", name), str(error))))
            continue
        cards = f" of {capacity.cards} x {capacity.card}" if capacity.card else ""
        yield Finding(about, True, f"{section.kind}, {capacity.launches} at once{cards}; {used}")
        if isinstance(runner, ChecksItself):
            for seen, problem in runner.examine():
                yield Finding(about, problem is None, f"{seen}: {problem}" if problem else seen)


def _store(settings: Settings) -> Finding:
    try:
        open_settings_store(settings)
    except (UsageError, StoreOutOfReach) as error:
        return Finding("store", False, str(error))
    return Finding("store", True, f"{shown(settings.store_url)} keeps every condition")
