"""``tenure enlist``: the training jobs of a plan, for whichever dispatcher runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from assets.chain import Chain
from tenure.cli import screen
from tenure.cli.workplace import Config, Json, open_workplace
from tenure.dispatch.desks import desk_of
from tenure.plan.enlist import enlist as write_jobs
from tenure.plan.enlist import named_jobs, tally
from tenure.plan.file import demand_own_name, load_plan
from tenure_protocol.clock import SYSTEM

_STAGE = "training"


def enlist(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Write the training jobs of a plan into the store.

    Writing them again changes nothing, and tells what became of them.
    """
    place = open_workplace(config)
    found = load_plan(plan, place.settings, check_import=True)
    demand_own_name(found, place.settings)
    with screen.working(f"enlisting {found.name}"):
        chain = Chain(place.store, found, place.settings, SYSTEM)
        specs = chain.specs(_STAGE)
        before = named_jobs(place.store, found.name)
        desk = desk_of(place.settings, place.store, found.team)
        jobs = write_jobs(place.store, found.name, found.name, specs, found.terms(), SYSTEM, desk)
        now = tally(place.store, chain.newest_runs(_STAGE))
    new = [job for job in jobs if job not in before]
    if as_json:
        states = {"new": new, "open": now.open, "finished": now.finished, "over": list(now.over)}
        typer.echo(json.dumps({"plan": found.name, "stage": _STAGE, "jobs": jobs, **states}))
        return
    for job, spec in zip(jobs, specs, strict=True):
        typer.echo(f"{job}  seed {spec.seed}  {json.dumps(spec.config)}")
    runs = "; `tenure dispatch` runs what is open" if now.open else ""
    typer.echo(f"{len(jobs)} jobs of {_STAGE} are enlisted: {now.words(new)}{runs}")
    for job, reason in now.over.items():
        typer.echo(f"`tenure retry {job}` runs that job again, which is over: {reason}")
