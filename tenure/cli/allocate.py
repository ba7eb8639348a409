"""``tenure allocate``: which job runs where, for the least money, by its deadline."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import screen
from tenure.errors import Blocked, UsageError

if TYPE_CHECKING:
    from tenure.plan.allocate import Allocation

_COLUMNS = ("job", "rung", "from h", "to h", "hours", "usd", "why")


class _Way(StrEnum):
    auto = "auto"
    mip = "mip"
    greedy = "greedy"


def allocate(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO.yaml", help="Jobs, rungs and limits.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print a scenario's JSON schema and end.")
    ] = False,
    method: Annotated[
        _Way, typer.Option(help="Exact (mip), greedy, or by the size of the scenario.")
    ] = _Way.auto,
) -> None:
    """Place jobs where they cost least, each by its deadline.

    Exit code 1: a job has no place. 2: a deadline, horizon or budget cannot be kept; by how much is told.
    """
    from tenure.plan.allocate import allocate as solved
    from tenure.plan.allocate_scenario import Scenario, read_scenario
    from tenure.quiet import stdout_kept

    if schema:
        typer.echo(json.dumps(Scenario.model_json_schema(), indent=2))
        return
    if scenario is None:
        raise UsageError("a scenario is missing: name its file, or ask for --schema")
    asked = read_scenario(scenario)
    words = f"allocating {len(asked.jobs)} jobs to {len(asked.rungs)} rungs"
    with screen.working(words), stdout_kept():
        found = solved(asked, method.value)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        _tell(found)
    if found.left:
        first = found.unplaced[0]
        raise Blocked(
            f"{len(found.left)} of {len(asked.jobs)} jobs have no place; the first is {first.job}: "
            f"{first.reason}"
        )


def _tell(found: Allocation) -> None:
    rows = [
        (
            it.job,
            it.rung,
            f"{it.start_h:.2f}",
            f"{it.end_h:.2f}",
            f"{it.hours:.2f}",
            f"{it.cost_usd:.2f}",
            it.reason,
        )
        for it in found.assignments
    ]
    if rows:
        screen.show(_COLUMNS, rows)
    for each in found.unplaced:
        typer.echo(f"{each.job} has no place: {each.reason}")
    spent = ", ".join(
        f"{amount:.4g} {currency}" for currency, amount in sorted(found.spent.items())
    )
    above = "" if found.gap is None else f", at most {found.gap:.2%} above the least"
    proved = ", the least there is" if found.optimal else above
    typer.echo(
        f"{found.method}: {found.why_method}; {found.cost_usd:.4f} usd ({spent or 'nothing'} spent){proved}; "
        f"no answer costs less than {found.prices.bound_usd:.4f} usd"
    )
    for price in found.prices.prices:
        if price.usd_per_unit > 0 or price.kind == "quota":
            typer.echo(price.reason)
