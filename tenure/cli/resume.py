"""``tenure resume``: let a held-back job go on, from where it was or from an earlier milestone."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.change import newest_record
from tenure.cli.workplace import ASKED, Config, JobName, OneJob, Reason, open_job, operator
from tenure.dispatch.desks import desk_of, several_teams
from tenure.errors import Blocked, UsageError
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Resume, Revoke, Rewind
from tenure_protocol.records import FINAL, Manifest, Pointer, load
from tenure_protocol.store.api import Found, Store
from tenure_worker.snapshot import gone, read_manifest

START = "start"
_LISTED = 12


def resume(
    job: JobName,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="STEP", help="A milestone's step, or start."),
    ] = None,
    reason: Reason = ASKED,
    config: Config = None,
) -> None:
    """Let a job that was held back go on, or begin again at --from.

    --from an earlier milestone is for a job whose later ones are poisoned. It need not be held back:
    it is taken from its holder first, and what was done after that milestone is done again.
    """
    found = open_job(config, job)
    if origin is None:
        wait_anew(found)
        found.change(lambda _: Resume(operator()))
        typer.echo(f"job {found.id} is no longer held back; a dispatcher launches it")
        return
    target = rewind(found, origin, reason)
    where = f"step {target.step}, written by attempt {target.attempt}" if target else "its start"
    typer.echo(f"job {found.id} goes on from {where}; a dispatcher launches it")


def wait_anew(found: OneJob) -> None:
    """Where teams share rungs, a job that was held back gets no place for the time that it was.

    Written first: who may not speak for its team does not let it go on either. Raises Blocked where it is
    not held back, UsageError, StoreOutOfReach.
    """
    settings, store = found.place.settings, found.place.store
    if not several_teams(settings):
        return
    w = found.read().witness
    if w is None or not (w.held_back or w.asked):
        return  # the change itself says what is wrong
    record = newest_record(found)
    desk = desk_of(settings, store, record.terms.get("team"))
    assert desk is not None
    desk.submit(record.plan, [found.id], SYSTEM, "resumed")


def rewind(found: OneJob, origin: str, reason: str) -> Pointer | None:
    """Hold the job back, point it at the milestone of ``origin``, and let it go on.

    Three conditional writes: whoever is interrupted between them leaves the job held back, and may
    run the command again. Raises UsageError for a step that is no milestone of its line, Blocked.
    """
    w = found.read().witness
    if w is None or w.phase in FINAL or w.pointer is None:
        state = w.phase if w else "waiting for its first launch"
        raise Blocked(
            f"job {found.id} is {state}"
            + (" and has no milestone yet" if w and w.phase not in FINAL else "")
            + ", so there is nothing to go back to"
        )
    # Should the holder move the pointer before it is deposed, an ancestor is an ancestor still.
    store = found.place.store
    target = _pick(ancestors(store, found.id, w.pointer), origin, w.pointer)
    if target and (words := gone(store, found.id, target)):
        raise Blocked(f"job {found.id} cannot go on from step {target.step}: {words}")
    if w.phase != "revoked":
        found.change(lambda _: Revoke(operator(), reason, held_back=True))
    w = found.change(lambda _: Rewind(operator(), target))
    # Whoever deletes files says so first and then looks at the pointer again, and we look the other way
    # round: so one of the two sees the other.
    if target and (words := gone(store, found.id, target)):
        raise Blocked(
            f"job {found.id} is held back at step {target.step}: {words}; name another one"
        )
    if w.held_back:
        wait_anew(found)
        found.change(lambda _: Resume(operator()))
    return target


def ancestors(store: Store, job: str, pointer: Pointer) -> list[Pointer]:
    """The milestones before ``pointer`` on its line, newest first, as their manifests name them.

    A manifest that is corrupt names nobody; the line goes on where only one stored manifest can be
    its parent, by ordinal. Raises StoreSilent.
    """
    line: list[Pointer] = []
    while pointer.ordinal > 1:
        try:
            parent = read_manifest(store, job, pointer).parent
        except Corrupt:
            parent = _only_one(store, job, pointer.ordinal - 1)
        if parent is None:
            break
        line.append(parent)
        pointer = parent
    return line


def _only_one(store: Store, job: str, ordinal: int) -> Pointer | None:
    found = []
    for row in store.list(keys.attempts(job)):
        if not row.key.endswith("/manifest.json"):
            continue
        body = store.read(row.key)
        try:
            manifest = load(Manifest, body.body, row.key) if isinstance(body, Found) else None
        except Corrupt:
            continue
        if manifest and isinstance(body, Found) and manifest.ordinal == ordinal:
            found.append(manifest.pointer(body.body))
    return found[0] if len(found) == 1 else None


def _pick(line: list[Pointer], origin: str, newest: Pointer) -> Pointer | None:
    """The milestone that a person named; ``None`` for the start. Raises UsageError."""
    if origin.strip().lower() == START:
        return None
    for pointer in line:
        if origin.strip() == str(pointer.step):
            return pointer
    steps = [str(pointer.step) for pointer in line]
    more = f" and {len(steps) - _LISTED} before" if len(steps) > _LISTED else ""
    listed = ", ".join(steps[:_LISTED])
    raise UsageError(
        f"--from {origin}: no earlier milestone has this step; the newest is {newest.step}, "
        + (
            f"before it there are {listed}{more}, or {START}"
            if steps
            else f"before it only {START}"
        )
    )
