"""``tenure report``: what became of a plan, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assets.plan_facts import PlanFacts, gather
from assets.report_page import compared, page
from tenure.bad_input import did_you_mean
from tenure.cli import screen
from tenure.cli.workplace import Config, Workplace, open_workplace, write_whole
from tenure.errors import StoreOutOfReach, UsageError
from tenure.plan.enlist import plan_records
from tenure.plan.file import Plan, load_plan, load_plans
from tenure.report.page import html
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import StoreSilent

_PLAN_FILES = (".yaml", ".yml")


def report(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="A plan's name or file.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="A B", help="Two plans, side by side."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; default PLAN-report.html.")
    ] = None,
    config: Config = None,
) -> None:
    """Write what became of a plan as one HTML file.

    Outcome, gates, costs, attempts, quality, predictions, seeds and equity. Nothing is fetched when it
    is read, and nothing is changed in the store.
    """
    if (plan is None) == (compare is None):
        raise UsageError("name one plan, or two with --compare A B; `tenure status` lists the jobs")
    place = open_workplace(config)
    names = (plan,) if plan is not None else compare or ()
    with screen.working("reading the store"):
        found = [_facts(place, name) for name in names]
    made = page(found[0]) if len(found) == 1 else compared(found[0], found[1])
    path = out or Path("-".join(facts.name for facts in found) + "-report.html")
    write_whole(path, html(made).encode("utf-8", "replace"), "report")
    typer.echo(f"{path}: {made.state}")
    for note in made.notes:
        screen.warn(note)


def _facts(place: Workplace, name: str) -> PlanFacts:
    """Of the plan of a file, or of a name. Raises UsageError, StoreOutOfReach."""
    file = _file(place, name)
    plan = file.name if file else name
    try:
        known = {record.plan for record in plan_records(place.store)}
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {place.store.url} does not answer: {error}") from error
    if plan not in known:
        raise UsageError(
            f"no plan {plan!r} has been enlisted in {place.store.url}; {did_you_mean(plan, known)}"
        )
    return gather(place, plan, file, SYSTEM)


def _file(place: Workplace, name: str) -> Plan | None:
    if name.endswith(_PLAN_FILES):
        return load_plan(Path(name), place.settings, check_rungs=False)
    plans = load_plans(place.settings, check_rungs=False)
    return next((each for each in plans if each.name == name), None)
