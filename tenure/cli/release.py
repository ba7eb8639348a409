"""``tenure release``: the big red button. Closes the bill of one launch, alive or not."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config, JobName, OneJob, open_job
from tenure.dispatch.contract import Bounded, Closed, Pending, Settlement
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.registry import build_dispatcher
from tenure.dispatch.world import Bill
from tenure.errors import Blocked, UsageError
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import FINAL, Intent, LaunchReceipt, SettlementRecord, Witness, load
from tenure_protocol.store.api import Missing

_EVERY_S = 0.5


def release(
    job: JobName,
    launch: Annotated[
        int | None, typer.Option(min=1, help="Which launch; by default the newest.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    for_s: Annotated[
        float, typer.Option("--for-s", min=0.0, help="Seconds to wait for the platform.")
    ] = 60.0,
    config: Config = None,
) -> None:
    """End a launch on its platform, even a live one; asks first.

    Shows what it will do. Without a terminal to ask on it needs --yes.
    """
    found = open_job(config, job)
    bill, closed = _bill(found, launch)
    if closed:
        typer.echo(screen.plain(f"the bill of launch {bill.launch} is closed already: {closed}"))
        return
    _ask(_warning(found, bill), yes)
    rungs = [bill.rung] if bill.rung in found.place.settings.rungs else []
    if not rungs:
        raise Blocked(f"tenure.toml has no rung {bill.rung}, so nothing can close this launch")
    dispatcher = build_dispatcher(found.place.settings, found.place.store, only=rungs)
    with screen.working(f"closing launch {bill.launch}"):
        settlement = _close(dispatcher, bill, for_s)
    if isinstance(settlement, Pending):
        raise Blocked(
            f"launch {bill.launch} is not closed after {for_s:g} s: {settlement.reason}; "
            "a dispatcher goes on asking, and so does this command when you run it again"
        )
    bound = ""
    if isinstance(settlement, Bounded):
        bound = " (nothing can be done, the platform ends it by itself)"
    words = f"launch {bill.launch} of job {bill.job}: {settlement.reason}{bound}"
    typer.echo(screen.plain(words))


def _bill(found: OneJob, launch: int | None) -> tuple[Bill, str | None]:
    """The launch that a person means, and how its bill was closed, if it was. Raises Blocked."""
    store, prefix = found.place.store, f"jobs/{found.id}/launches/"
    rows = [row.key for row in store.list(prefix)]
    made = sorted({int(key.removeprefix(prefix).partition("/")[0]) for key in rows})
    if not made:
        raise Blocked(f"job {found.id} has never been launched, so there is nothing to release")
    number = made[-1] if launch is None else launch
    if number not in made:
        listed = ", ".join(map(str, made))
        raise UsageError(f"job {found.id} has no launch {number}; there are {listed}")
    bill = Bill(found.id, number)
    for key in rows:
        body = store.read(key) if key.startswith(keys.launch(found.id, number)) else Missing()
        if isinstance(body, Missing):
            continue
        if key == keys.intent(found.id, number):
            bill.intent = load(Intent, body.body, key)
        elif key == keys.receipt(found.id, number):
            bill.receipt = load(LaunchReceipt, body.body, key)
        elif key.startswith(f"{keys.launch(found.id, number)}settlement-"):
            record = load(SettlementRecord, body.body, key)
            if record.outcome == "closed":
                return bill, record.reason
    return bill, None


def _warning(found: OneJob, bill: Bill) -> str:
    stored = found.read()
    w = stored.witness
    intent = bill.intent
    what = (
        f"launch {bill.launch} of job {found.id} on rung {bill.rung} "
        f"(runner {intent.runner if intent else '?'}, name {intent.name if intent else '?'})"
    )
    lines = [f"This ends {what}."]
    if intent and intent.beside:
        lines.append(_others(found, intent))
    if w and w.phase == "held" and w.holder and w.holder.launch == bill.launch:
        since = f"since step {w.pointer.step}" if w.pointer else "so far; it has no milestone yet"
        lines.append(
            f"IT IS ALIVE: attempt {w.attempt} renewed {stored.age_s:.0f} s ago. A worker that is "
            f"not given the time for a last milestone loses what it did {since}."
        )
    lines.append(_afterwards(w))
    return "\n".join(lines)


def _others(found: OneJob, intent: Intent) -> str:
    """Who else is on the machine, which ends as a whole."""
    store = found.place.store
    aboard = [
        f"launch {launch} of job {job}"
        for job, launch in intent.beside
        if not isinstance(store.read(keys.unsettled(job, launch)), Missing)
    ]
    if not aboard:
        return "Other jobs were on the same machine; their bills are closed."
    return (
        f"THE MACHINE HAS OTHERS, and they end with it: {', '.join(aboard)}. To end one job alone, "
        "revoke, pause or cancel it."
    )


def _afterwards(w: Witness | None) -> str:
    if w and w.phase in FINAL:
        return f"The job is {w.phase}; this changes nothing about that."
    return (
        "The job is not over: a dispatcher will launch it again. Pause or cancel it to stop that."
    )


def _ask(warning: str, yes: bool) -> None:
    """Show what will happen and let the person decide. Raises UsageError, or Blocked for a no."""
    typer.echo(screen.plain(warning), err=True)
    if yes:
        return
    if not _on_terminal():
        raise UsageError("there is no terminal to ask on; add --yes if you mean it")
    if not typer.confirm("Do it?", err=True):
        raise Blocked("nothing was done")


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _close(dispatcher: Dispatcher, bill: Bill, for_s: float) -> Settlement:
    end_s = SYSTEM.monotonic_s() + for_s
    while True:
        settlement = dispatcher.close(bill, "released by a person")
        if isinstance(settlement, (Closed, Bounded)) or SYSTEM.monotonic_s() >= end_s:
            return settlement
        SYSTEM.sleep(_EVERY_S)
