"""``tenure events`` and ``tenure log``: what an experiment recorded and printed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.cli.why import read_history
from tenure.cli.workplace import (
    Config,
    JobName,
    Json,
    Workplace,
    find_job,
    open_workplace,
    operator,
)
from tenure.dispatch.contract import KnowsEnds, Receipt, Slice
from tenure.dispatch.execution import Execution
from tenure.dispatch.registry import build_rungs
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import StoreSilent

_EVERY_S = 1.0
_SHOWN = 200  # last lines of what a launch wrote
_DEPOSED = re.compile(r"\[deposed attempt (\d+)\] (.*)", re.DOTALL)

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")]


def events(
    job: JobName, follow: Follow = False, as_json: Json = False, config: Config = None
) -> None:
    """Print the numbers that a job recorded, oldest first."""
    place = open_workplace(config)
    execution = Execution(place.store, {}, SYSTEM, operator())
    found = find_job(place, job)
    for line in _lines(lambda cursor: execution.events(found, cursor), follow):
        event = _event(line)
        typer.echo(json.dumps(event) if as_json else _sentence(event))


def log(job: JobName, follow: Follow = False, config: Config = None) -> None:
    """Print what a job wrote, oldest first."""
    place = open_workplace(config)
    execution = Execution(place.store, {}, SYSTEM, operator())
    found = find_job(place, job)
    empty = True
    for line in _lines(lambda cursor: execution.log(found, cursor), follow):
        typer.echo(line)
        empty = False
    if empty and (output := _of_last_launch(place, found)):
        screen.warn(
            f"no attempt left a log in the store; what the last launch wrote is in {output}:"
        )
        for line in output.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN:]:
            typer.echo(line)


def _of_last_launch(place: Workplace, job: str) -> Path | None:
    """Where the newest launch of a job wrote to on this machine, if that is known and there."""
    intents = read_history(place.store, job).intents
    rungs = build_rungs(place.settings) if intents else []
    for rung in rungs:
        if rung.name == intents[-1].rung and isinstance(rung.runner, KnowsEnds):
            made = intents[-1]
            receipt = Receipt((job,), made.runner, made.name, rung.card, made.at_s)
            return rung.runner.output(receipt)
    return None


def _lines(read: Callable[[str], Slice], follow: bool) -> Iterator[str]:
    """Lines as they come. A silent store is waited for while following, and raised when not."""
    cursor, silent, gap = "", "", ""
    while True:
        try:
            part = read(cursor)
        except StoreSilent as error:
            if not follow:
                raise
            if str(error) != silent:
                silent = str(error)
                screen.warn(f"the store does not answer ({silent}); waiting")
            SYSTEM.sleep(_EVERY_S)
            continue
        silent = ""
        yield from part.records
        if part.gap != gap and part.gap:
            screen.warn(f"incomplete: {part.gap}")
        # Of a job that is over nobody fills a gap but a zombie, which is waited for once.
        stuck = part.over and part.incomplete and (part.gap, part.next) == (gap, cursor)
        cursor, gap = part.next, part.gap
        if part.end or stuck or not follow:
            return
        SYSTEM.sleep(_EVERY_S)


def _event(line: str) -> dict[str, object]:
    """One event; of a deposed attempt it says so.

    >>> _event('{"at_s": 0, "step": 3}')
    {'at_s': 0, 'step': 3}
    >>> _event('[deposed attempt 2] {"step": 3}')
    {'step': 3, 'deposed_attempt': 2}
    """
    late = _DEPOSED.fullmatch(line)
    text = late.group(2) if late else line
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    event = value if isinstance(value, dict) else {"unreadable": text}
    return {**event, "deposed_attempt": int(late.group(1))} if late else event


def _sentence(event: dict[str, object]) -> str:
    """An event for people.

    >>> _sentence({"at_s": 0.0, "step": 3, "loss": 0.25})
    '1970-01-01 00:00:00  step=3 loss=0.25'
    """
    rest = dict(event)
    at_s = rest.pop("at_s", None)
    when = ""
    if isinstance(at_s, (int, float)):
        when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S") + "  "
    return when + " ".join(f"{name}={value}" for name, value in rest.items())
