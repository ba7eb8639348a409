"""``tenure agent``: an own machine of a pool admits, refuses and ends jobs by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from runners.pool_agent import EVERY_S, Agent
from tenure.bad_input import did_you_mean
from tenure.cli import screen
from tenure.cli.workplace import Config, open_workplace
from tenure.dispatch.contract import Site
from tenure.dispatch.registry import secret_variables
from tenure.errors import UsageError
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import StoreSilent


def agent(
    pool: Annotated[str, typer.Argument(help="The runner of kind pool.")],
    machine: Annotated[str, typer.Argument(help="This machine's name in it.")],
    for_s: Annotated[
        float | None, typer.Option(help="Seconds; else until Ctrl-C.", min=0.0)
    ] = None,
    config: Config = None,
) -> None:
    """Let this machine of a pool take jobs on, within its quota.

    Ctrl-C ends the agent and nothing else: workers go on, and the next agent finds them again.
    """
    place = open_workplace(config)
    settings = place.settings
    section = settings.runners.get(pool)
    if section is None or section.kind != "pool":
        pools = [name for name, each in settings.runners.items() if each.kind == "pool"]
        raise UsageError(f"there is no pool {pool!r} in tenure.toml; {did_you_mean(pool, pools)}")
    hidden = secret_variables(settings)[0]
    site = Site(settings.root, SYSTEM, hidden, settings.store_url)
    try:
        made = Agent(place.store, pool, machine, section.extra, site)
    except ValueError as error:
        raise settings.error(("runners", pool), str(error)) from error
    end_s = None if for_s is None else SYSTEM.monotonic_s() + for_s
    said = ""
    while True:
        try:
            made.step()
            said = ""
        except StoreSilent as error:
            if str(error) != said:
                screen.warn(f"{error}; what runs goes on, and nothing is taken on meanwhile")
            said = str(error)
        if end_s is not None and SYSTEM.monotonic_s() >= end_s:
            return
        SYSTEM.sleep(EVERY_S)
