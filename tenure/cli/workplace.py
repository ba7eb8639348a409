"""What most commands begin with: the settings, their store, and a job that a person named."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tenure.bad_input import did_you_mean
from tenure.dispatch.ledger import LedgerBook
from tenure.dispatch.registry import open_settings_store
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.plan.enlist import plan_records
from tenure.settings import Settings, load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt, NewerProtocol
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Changed, Refused, Stored, change, read_witness
from tenure_protocol.lease.machine import Event
from tenure_protocol.records import JobSpec, Witness
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_worker.claim import read_spec

Config = Annotated[Path | None, typer.Option("--config", help="The tenure.toml to use.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or how it begins.")]
Json = Annotated[bool, typer.Option("--json", help="For scripts.")]
ASKED = "asked on the command line"  # where a person gives no reason
Reason = Annotated[str, typer.Option(help="Kept in the witness, for whoever asks why.")]

_PREFIX = re.compile(r"[a-z2-7]{1,26}")
_ID_CHARS = 26
_LISTED = 6
_TRIES = 5  # a holder renews every few seconds at most: five changes in a row are no accident


@dataclass(frozen=True)
class Workplace:
    """The settings in force and the store they name."""

    settings: Settings
    store: Store


def open_workplace(config: Path | None) -> Workplace:
    """Raises UsageError or StoreOutOfReach."""
    settings = load_settings(config)
    return Workplace(settings, open_settings_store(settings))


def book_of(place: Workplace) -> LedgerBook:
    """The ledger of the place's store; of one that is not on this machine, what was read is kept here."""
    local = place.store.url.startswith(("file:", "memory:"))
    return LedgerBook(place.store, None if local else place.settings.root / ".tenure" / "ledger")


def find_job(place: Workplace, name: str) -> str:
    """The one job whose id begins with ``name``. Raises UsageError, or StoreSilent."""
    prefix = name.strip().lower()
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"{name!r} is no job's id (26 of a-z and 2-7) and no beginning of one")
    found = sorted(job for job in known_jobs(place.store) if job.startswith(prefix))
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        listed = ", ".join(found[:_LISTED])
        raise UsageError(
            f"{len(found)} jobs begin with {prefix!r}: {listed}{more}; write more of it"
        )
    if len(prefix) == _ID_CHARS and not isinstance(place.store.read(keys.job(prefix)), Missing):
        return prefix
    raise UsageError(
        f"no job in {place.store.url} begins with {prefix!r}; `tenure status` lists them"
    )


def known_jobs(store: Store) -> dict[str, str]:
    """Experiment by job: all that a plan names, and all that have a witness (local mode too)."""
    found = {job: record.experiment for record in plan_records(store) for job in record.jobs}
    for row in store.list(keys.WITNESSES):
        experiment, _, file = row.key.removeprefix(keys.WITNESSES).partition("/")
        if file.endswith(".json"):  # anything else is no witness
            found.setdefault(file.removesuffix(".json"), experiment)
    return found


def jobs_of_plan(store: Store, plan: str) -> set[str]:
    """Every job that any version of a plan names. Raises UsageError for an unknown plan."""
    records = plan_records(store)
    jobs = {job for record in records if record.plan == plan for job in record.jobs}
    if not jobs:
        hint = did_you_mean(plan, {record.plan for record in records})
        raise UsageError(f"no plan {plan!r} has been enlisted in {store.url}; {hint}")
    return jobs


@dataclass(frozen=True)
class OneJob:
    """A job that a person named, with its spec and its witness as they were read."""

    place: Workplace
    id: str
    spec: JobSpec

    @property
    def key(self) -> str:
        """The key of its witness."""
        return keys.witness_of(self.spec)

    def read(self) -> Stored:
        """Its witness now. Raises Corrupt or StoreSilent."""
        return read_witness(self.place.store, self.key)

    def change(self, event: Callable[[Witness | None], Event]) -> Witness:
        """Apply what ``event`` makes of the witness, anew when somebody else wrote first.

        Raises Blocked when the table has no such transition or the witness is corrupt,
        StoreOutOfReach when the store does not say whether the change is written: it may be, or may
        still come to be.
        """
        store = self.place.store
        for _ in range(_TRIES):
            try:
                stored = self.read()
            except NewerProtocol:
                raise
            except Corrupt as error:
                raise Blocked(
                    f"{error}; nothing can be decided from it, so the job stands still; "
                    f"`tenure retry {self.id}` enlists it once more as another run"
                ) from error
            outcome = change(store, self.key, self.id, stored, event(stored.witness), SYSTEM)
            if isinstance(outcome, Applied):
                return outcome.witness
            if isinstance(outcome, Refused):
                raise Blocked(f"job {self.id}: {outcome.reason}")
            if not isinstance(outcome, Changed):
                raise StoreOutOfReach(
                    f"{self.key} may or may not be written ({outcome.reason}); look at it with "
                    "`tenure status` before you do anything else"
                )
        raise Blocked(f"{self.key} changed {_TRIES} times under this command; run it again")


def open_job(config: Path | None, name: str) -> OneJob:
    """The job of a person's words. Raises UsageError, StoreOutOfReach, or Corrupt for its spec."""
    place = open_workplace(config)
    try:
        job = find_job(place, name)
        return OneJob(place, job, read_spec(place.store, job))
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {place.store.url} does not answer: {error}") from error


def write_whole(path: Path, body: bytes, what: str) -> None:
    """Write a file, whole or not at all. Raises UsageError, which calls it by ``what`` it is."""
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(body)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be written: {error.strerror}") from None


def operator() -> str:
    """Who gives the order, for the witness.

    >>> operator().startswith("operator")
    True
    """
    try:
        return f"operator {getpass.getuser()}"
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return "operator"
