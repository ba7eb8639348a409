"""``tenure gc``: the files of snapshots that no job needs any more, told or deleted."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.cli.workplace import (
    Config,
    Json,
    Workplace,
    jobs_of_plan,
    known_jobs,
    open_workplace,
    operator,
)
from tenure.discard import Discarder, Swept, needed, total
from tenure.errors import UsageError
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import Store, StoreUnusable, shown
from tenure_protocol.store.open import open_store

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def gc(
    plan: Annotated[str | None, typer.Option(help="Only the jobs of this plan.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; else it is only told.")] = False,
    archive: Annotated[
        str | None, typer.Option(metavar="URL", help="Copy each file to this store first.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Delete files behind each job's pointer and its parent.

    Manifests, witnesses, events and logs stay, and so does whatever a model record or another job names.
    Without --yes nothing is deleted or copied.
    """
    place = open_workplace(config)
    other = _archive(place, archive, yes) if archive else None
    known = known_jobs(place.store)
    only = jobs_of_plan(place.store, plan) if plan else known.keys()
    with screen.working("looking for files that no job needs"):
        kept = needed(place.store, known)
        discarder = Discarder(
            place.store, SYSTEM, operator(), kept, other, shown(archive) if archive else None
        )
        jobs = [job for job in sorted(only) if job in known]
        if yes:
            swept = [discarder.sweep(job, known[job]) for job in jobs]
        else:
            swept = [_told(discarder, job, known[job]) for job in jobs]
    _tell(swept, yes, as_json, archive)


def _archive(place: Workplace, url: str, yes: bool) -> Store | None:
    """The store that files are copied to; where it is only told of, it is not made. Raises UsageError."""
    try:
        store = open_store(url, read_only=not yes)
    except StoreUnusable as error:
        if not yes and url.startswith("file:"):
            return None  # a folder that is not there yet
        raise UsageError(f"--archive: {error}") from error
    if store.url == place.store.url:
        raise UsageError(
            f"--archive {shown(url)} is the store itself, whose files are to go; name another one"
        )
    return store


def _told(discarder: Discarder, job: str, experiment: str) -> Swept:
    """What would be deleted."""
    found, wrong = discarder.look(job, experiment)
    files = [row for each in found for row in each.files]
    size = sum(row.size for row in files)
    return Swept(job, len(found), len(files), size, [wrong] if wrong else [])


def _tell(swept: list[Swept], done: bool, as_json: bool, archive: str | None) -> None:
    whole = total(swept)
    if as_json:
        rows = [asdict(each) for each in swept if each.files or each.notes]
        sums = {"milestones": whole.milestones, "files": whole.files, "bytes": whole.bytes}
        typer.echo(json.dumps({"deleted": done, **sums, "jobs": rows}))
        return
    rows_shown = [
        (each.job, str(each.milestones), str(each.files), size(each.bytes))
        for each in swept
        if each.files
    ]
    if rows_shown:
        screen.show(("job", "milestones", "files", "size"), rows_shown)
    for note in whole.notes:
        screen.warn(note)
    copied = f" after a copy to {shown(archive)}" if archive else ""
    what = f"{whole.files} files of {whole.milestones} milestones, {size(whole.bytes)}"
    if not whole.files:
        typer.echo("no file lies behind the pointers of the jobs and their parents")
    elif done:
        typer.echo(f"deleted{copied}: {what}")
    else:
        lost = "" if archive else ", and nothing brings them back"
        typer.echo(f"{what}, could be deleted{copied}; --yes does it{lost}")


def size(count: int) -> str:
    """Bytes for people.

    >>> size(12), size(3_400_000)
    ('12 bytes', '3.4 MB')
    """
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
