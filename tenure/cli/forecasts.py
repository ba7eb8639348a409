"""``tenure forecasts``: whether jobs were done when their launches foretold it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config, Json, open_workplace
from tenure.dispatch.lifetimes import LifetimeBook, scored
from tenure.plan.predict import ENOUGH_SCORES, LEVELS, Calibration, calibration
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import Lifetime
from tenure_protocol.store.api import StoreSilent

_COLUMNS = ("decile", "outcomes", "up to it", "promised")


def forecasts(as_json: Json = False, config: Config = None) -> None:
    """Tell how often jobs ended when it was foretold.

    Each launch of a job whose length and speed are known keeps nine quantiles of the time to the job's
    end; they are scored once it has finished. Jobs without a result are not scored.
    """
    place = open_workplace(config)
    book = LifetimeBook(place.store, SYSTEM, "tenure forecasts")
    with screen.working("reading lifetimes"):
        book.read()
    if silent := book.troubles.pop(keys.LIFETIMES, None):
        raise StoreSilent(silent)
    for trouble in book.troubles.values():
        screen.warn(f"{trouble}; its forecasts are left out")
    rows = [row for _, row in book.rows() if row.predicted_s is not None]
    pairs = scored(rows)
    waiting = len(rows) - len(pairs)
    table = calibration(pairs) if pairs else None
    if as_json:
        numbers = {"levels": LEVELS, **asdict(table)} if table else None
        typer.echo(json.dumps({"scored": len(pairs), "not_scored": waiting, "table": numbers}))
    elif table is None:
        typer.echo(_none(rows))
    else:
        _tell(table, waiting)


def _none(rows: Sequence[Lifetime]) -> str:
    """Why there is no table, and when there will be one.

    >>> _none([])[:57]
    'no launch has foretold yet when its job will be done: one'
    """
    if not rows:
        return (
            "no launch has foretold yet when its job will be done: one does where the experiment says how "
            "many steps the job has (`tenure.work(steps=...)`) and such work was seen on the rung's card"
        )
    return (
        f"{len(rows)} launches have foretold when their jobs will be done, and none of those jobs was "
        "seen to finish yet: a running dispatcher scores them as they do"
    )


def _tell(table: Calibration, waiting: int) -> None:
    levels = [*LEVELS, 1.0]
    below = [*table.below, 1.0]
    screen.show(
        _COLUMNS,
        [
            (str(number + 1), str(count), f"{100 * share:.0f} %", f"{100 * level:.0f} %")
            for number, (count, share, level) in enumerate(
                zip(table.deciles, below, levels, strict=True)
            )
        ],
    )
    typer.echo(table.reason)
    typer.echo(
        f"middle 80 %: {100 * table.coverage:.0f} % of the outcomes; mean pinball loss {table.pinball_s:.0f} s; "
        f"median of outcome over foretold median: {1 + table.median_relative:.2f}"
    )
    if table.count < ENOUGH_SCORES:
        typer.echo(f"{ENOUGH_SCORES - table.count} more outcomes are needed for a judgement")
    if waiting:
        typer.echo(f"{waiting} forecasts have no outcome: their jobs still run, or had no result")
