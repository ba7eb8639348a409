"""``tenure costs``: what the launches that are settled have cost, each in its own currency."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config, Json, Workplace, book_of, jobs_of_plan, open_workplace
from tenure.dispatch.ledger import JobCost, by_job, by_rung, per_job
from tenure.plan.file import load_plan
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import LedgerEntry
from tenure_protocol.store.api import Store

_COLUMNS = ("rung", "runner", "currency", "launches", "hours", "amount")
_PLAN_FILES = (".yaml", ".yml")


def costs(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="A plan's name or file; else all jobs.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Sum what settled launches cost, by rung, job and currency.

    A launch is in the ledger once its bill is closed, or bounded by its platform.
    """
    place = open_workplace(config)
    only = jobs_of_plan(place.store, _name(place, plan)) if plan else None
    with screen.working("reading the ledger"):
        book = book_of(place)
        book.look()
    for trouble in book.troubles.values():
        screen.warn(f"{trouble}; what it cost is in no sum")
    entries = [each for each in book.entries if only is None or each.job in only]
    rungs, jobs = by_rung(entries), by_job(entries)
    if as_json:
        typer.echo(
            json.dumps(
                {"rungs": [asdict(each) for each in rungs], "jobs": [asdict(each) for each in jobs]}
            )
        )
    elif not rungs:
        typer.echo("no launch on a rung with a price has been settled yet")
    else:
        screen.show(
            _COLUMNS,
            [
                (
                    each.rung,
                    each.runner,
                    each.currency,
                    str(each.launches),
                    f"{each.paid_h:.3f}",
                    f"{each.amount:.4f}",
                )
                for each in rungs
            ],
        )
        for line in _of_jobs(place.store, entries, jobs):
            typer.echo(line)
    if still := _still_open(place.store, only):
        screen.warn(f"{still} launches are not settled yet, and in no sum")


def _name(place: Workplace, plan: str) -> str:
    """A plan's name, which its file has as well. Raises UsageError."""
    return load_plan(Path(plan), place.settings).name if plan.endswith(_PLAN_FILES) else plan


def _of_jobs(store: Store, entries: list[LedgerEntry], jobs: list[JobCost]) -> list[str]:
    """What a finished job cost: all that was paid, for the others too, over those that finished."""
    experiments = {each.job: each.experiment for each in entries}
    finished = sum(_finished(store, experiment, job) for job, experiment in experiments.items())
    if not finished:
        return [f"none of {len(experiments)} jobs has finished"]
    return [
        f"{finished} of {len(experiments)} jobs finished, for {amount:.4f} {currency} each"
        for currency, amount in sorted(per_job(jobs, finished).items())
    ]


def _finished(store: Store, experiment: str, job: str) -> bool:
    try:
        w = read_witness(store, keys.witness(experiment, job)).witness
    except Corrupt:
        return False  # `tenure status` names it
    return w is not None and w.phase == "finished" and w.exit_code == 0


def _still_open(store: Store, only: set[str] | None) -> int:
    jobs = (
        row.key.removeprefix(keys.UNSETTLED).rpartition("-")[0]
        for row in store.list(keys.UNSETTLED)
    )
    return sum(only is None or job in only for job in jobs)
