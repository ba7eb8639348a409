"""``tenure enlist``: the training jobs of a plan, for whichever dispatcher runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from assets.chain import Chain
from tenure.cli import screen
from tenure.cli.workplace import Config, Json, open_workplace
from tenure.plan.enlist import enlist as write_jobs
from tenure.plan.file import Plan, load_plan, load_plans
from tenure.settings import Settings
from tenure_protocol.clock import SYSTEM

_STAGE = "training"


def enlist(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Write the training jobs of a plan into the store.

    Writing them again changes nothing.
    """
    place = open_workplace(config)
    found = load_plan(plan, place.settings, check_import=True)
    _check_only(found, place.settings)
    with screen.working(f"enlisting {found.name}"):
        specs = Chain(place.store, found, place.settings, SYSTEM).specs(_STAGE)
        jobs = write_jobs(place.store, found.name, found.name, specs, found.terms(), SYSTEM)
    if as_json:
        typer.echo(json.dumps({"plan": found.name, "stage": _STAGE, "jobs": jobs}))
        return
    for job, spec in zip(jobs, specs, strict=True):
        typer.echo(f"{job}  seed {spec.seed}  {json.dumps(spec.config)}")
    typer.echo(f"{len(jobs)} jobs of {_STAGE} are enlisted; `tenure dispatch` runs them")


def _check_only(plan: Plan, settings: Settings) -> None:
    """Refuse a second plan of the same name: both would own the same jobs' keys."""
    for other in load_plans(settings):
        same = other.file and plan.file and other.file.resolve() == plan.file.resolve()
        if other.name == plan.name and not same:
            raise plan.error(
                ("name",), f"{plan.name!r} is the name of {other.file} too; rename one"
            )
