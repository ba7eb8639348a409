"""``tenure retry``, ``revoke``, ``pause`` and ``cancel``: what a person may order."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from tenure.cli.workplace import (
    ASKED,
    Config,
    JobName,
    OneJob,
    Reason,
    open_job,
    operator,
)
from tenure.dispatch.desks import desk_of
from tenure.errors import Blocked
from tenure.plan.enlist import enlist, plan_records
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt, NewerProtocol
from tenure_protocol.lease.machine import Ask, Cancel, Event, Revoke
from tenure_protocol.records import FINAL, PlanRecord, Witness


def retry(job: JobName, config: Config = None) -> None:
    """Enlist a job that is over once more, as run + 1 of its spec.

    So is one whose witness is corrupt: nobody can run it any more. Prints the id of the new job;
    enlisting it again prints the same one.
    """
    found = open_job(config, job)
    _demand_over(found)
    record = newest_record(found)
    again = replace(found.spec, run=found.spec.run + 1)
    store = found.place.store
    desk = desk_of(found.place.settings, store, record.terms.get("team"))
    enlist(store, record.plan, record.experiment, [again], record.terms, SYSTEM, desk)
    typer.echo(again.id)


def _demand_over(found: OneJob) -> None:
    """Raises Blocked while somebody may still run the job."""
    try:
        w = found.read().witness
    except NewerProtocol:
        raise
    except Corrupt:
        return
    if w is None or w.phase not in FINAL:
        phase = w.phase if w else "waiting for its first launch"
        raise Blocked(
            f"job {found.id} is not over, it is {phase}, so there is nothing to repeat; "
            f"`tenure revoke {found.id}` has it run elsewhere"
        )


def newest_record(found: OneJob) -> PlanRecord:
    """The newest record of the plan that names the job: its terms are the ones in force."""
    records = plan_records(found.place.store)
    plans = [record.plan for record in records if found.id in record.jobs]
    if not plans:
        raise Blocked(f"no plan names job {found.id}, so no dispatcher would run it again")
    return [record for record in records if record.plan == plans[-1]][-1]


def revoke(job: JobName, reason: Reason = ASKED, config: Config = None) -> None:
    """Take a job away from its holder; it goes on elsewhere.

    Launches so far may no longer claim it. The next one resumes from the last milestone.
    """
    found = open_job(config, job)
    found.change(lambda _: Revoke(operator(), reason))
    typer.echo(f"job {found.id} is revoked; a dispatcher launches it again")


def pause(
    job: JobName,
    reason: Reason = ASKED,
    within_s: Annotated[
        float, typer.Option(min=0.0, help="Seconds a holder has for a last milestone.")
    ] = 60.0,
    config: Config = None,
) -> None:
    """Hold a job back until it is resumed.

    A holder is asked to write a last milestone first.
    """
    found = open_job(config, job)
    by = operator() if reason == ASKED else f"{operator()} ({reason})"

    def event(w: Witness | None) -> Event:
        if w and w.phase == "held":
            return Ask("pause", within_s, by)  # a request has no other place for the reason
        return Revoke(operator(), reason, held_back=True)

    now = found.change(event)
    if now.phase == "held":
        typer.echo(
            f"job {found.id}: attempt {now.attempt} is asked to write a last milestone and stop "
            f"within {within_s:g} s; `tenure resume {found.id}` lets it go on"
        )
    else:
        typer.echo(f"job {found.id} is held back; `tenure resume {found.id}` lets it go on")


def cancel(job: JobName, reason: Reason = ASKED, config: Config = None) -> None:
    """End a job without a result, for good.

    `tenure retry` would be another run.
    """
    found = open_job(config, job)
    found.change(lambda _: Cancel(operator(), reason))
    typer.echo(f"job {found.id} is cancelled")
