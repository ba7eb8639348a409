"""``tenure gate repetition``: did two jobs of one spec give the same bits? Of research jobs too."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gates.objects import Objects, Unproved
from gates.repetition import Comparison, compare, environment_differences, spec_differences
from tenure.cli.workplace import Config, JobName, Json, Workplace, find_job
from tenure.dispatch.registry import open_settings_store
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.settings import load_settings
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import SnapshotRef
from tenure_protocol.store.api import StoreSilent

Again = Annotated[
    str, typer.Argument(metavar="REPETITION", help="Another run of the same spec, likewise.")
]


def repetition(job: JobName, again: Again, as_json: Json = False, config: Config = None) -> None:
    """Compare two finished jobs of one spec, bit for bit. Exit code 0: equal, 1: not so.

    The first milestone and the first tensor that differ are named. `tenure retry JOB` enlists a
    finished job once more. Reads only.
    """
    settings = load_settings(config)
    place = Workplace(settings, open_settings_store(settings, read_only=True))
    try:
        jobs = [find_job(place, name) for name in (job, again)]
        found, elsewhere = compared(Objects(place.store), *jobs)
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {place.store.url} does not answer: {error}") from None
    except (Unproved, Corrupt) as error:
        raise Blocked(str(error)) from None
    equal = found.difference is None
    said = found.sentence()
    if elsewhere:
        said += f"; they ran in different environments: {'; '.join(elsewhere)}"
    if as_json:
        answer = {"equal": equal, "reason": said, "environments": list(elsewhere)}
        typer.echo(json.dumps({**answer, **found.numbers()}, indent=2))
    else:
        typer.echo(said)
    if not equal:
        raise typer.Exit(Blocked.exit_code)


def compared(objects: Objects, ours: str, theirs: str) -> tuple[Comparison, tuple[str, ...]]:
    """The comparison of two jobs, and in what their environments differ.

    Raises UsageError for jobs that are no two runs of one spec, Unproved, StoreSilent.
    """
    if ours == theirs:
        raise UsageError(f"job {ours} is named twice; name another run of its spec")
    specs = [objects.spec(job) for job in (ours, theirs)]
    if differences := spec_differences(specs[0], specs[1]):
        raise UsageError(f"job {theirs} is no repetition of job {ours}: {'; '.join(differences)}")
    refs = []
    for spec in specs:
        w = objects.witness(spec)
        if w.phase != "finished" or w.exit_code != 0 or w.pointer is None:
            code = f" with code {w.exit_code}" if w.phase == "finished" else ""
            raise Unproved(
                f"job {spec.id} is {w.phase}{code}: only what a job finished with can be compared"
            )
        refs.append(SnapshotRef(spec.id, w.pointer))
    return compare(objects, refs[0], refs[1]), environment_differences(objects, refs[0], refs[1])
