"""Enlisting: specs and a plan record in the store. Idempotent, because a job's id is its spec."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tenure.errors import StoreOutOfReach
from tenure.plan.submit import Desk
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, canonical, encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import FINAL, JobSpec, PlanRecord, load
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once

#: The term of a plan's record that names backup copies: by id, their originals and why.
BACKUPS = "backups"


def enlist(
    store: Store,
    plan: str,
    experiment: str,
    specs: Sequence[JobSpec],
    terms: dict[str, object],
    clock: Clock,
    desk: Desk | None = None,
) -> list[str]:
    """Write the specs, then a plan record that names them; returns the jobs' ids in order.

    Before the record that makes them known, ``desk`` submits them for a team, where teams share rungs.
    The same specs and terms again write nothing; other terms, or more jobs, become a new version.
    Raises :class:`StoreOutOfReach`, or Corrupt for a stored spec that differs from its own id.
    """
    try:
        for spec in specs:
            key = keys.job(spec.id)
            if not create_once(store, key, encode(spec), clock):
                raise Corrupt("it differs from the spec whose digest is its id", key)
        ids = [spec.id for spec in specs]
        if desk is not None:
            desk.submit(plan, ids, clock)
        versions = _versions(store, plan)
        named = {job for record in versions for job in record.jobs}
        newest = max(versions, key=lambda record: record.version, default=None)
        if newest and named.issuperset(ids) and canonical(newest.terms) == canonical(terms):
            return ids
        version = newest.version + 1 if newest else 0
        record = PlanRecord(plan, experiment, tuple(ids), terms, version)
        body = encode(record)
        create_once(store, keys.plan(plan, short_id(body)), body, clock)
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store did not take the plan {plan}: {error}") from error
    return ids


def enlist_copy(store: Store, plan: str, spec: JobSpec, reason: str, clock: Clock) -> str:
    """Enlist the backup copy of a job, which is the next run of its spec; returns its id.

    A version of the plan's record names it, under the newest terms, with its original and why. Whoever else does the
    same enlists the same job; what is enlisted already is left as it is. Raises as :func:`enlist`.
    """
    twin = replace(spec, run=spec.run + 1)
    try:
        versions = _versions(store, plan)
        if any(twin.id in record.jobs for record in versions):
            return twin.id
        key = keys.job(twin.id)
        if not create_once(store, key, encode(twin), clock):
            raise Corrupt("it differs from the spec whose digest is its id", key)
        newest = max(versions, key=lambda record: record.version)
        terms = {**newest.terms, BACKUPS: {twin.id: {"of": spec.id, "why": reason}}}
        record = PlanRecord(plan, spec.experiment, (twin.id,), terms, newest.version + 1)
        body = encode(record)
        create_once(store, keys.plan(plan, short_id(body)), body, clock)
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store did not take the copy of {spec.id}: {error}") from error
    return twin.id


@dataclass(frozen=True)
class Tally:
    """What became of enlisted jobs, by id."""

    open: tuple[str, ...]
    finished: tuple[str, ...]
    over: dict[str, str]  # without a result, and why

    def words(self, new: Collection[str]) -> str:
        """
        >>> Tally(("a", "b"), ("c",), {"d": "cancelled"}).words({"a"})
        '1 new, 1 open, 1 finished, 1 over without a result'
        """
        fresh = sum(job in new for job in self.open)
        counts = {
            "new": fresh,
            "open": len(self.open) - fresh,
            "finished": len(self.finished),
            "over without a result": len(self.over),
        }
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def named_jobs(store: Store, plan: str) -> set[str]:
    """Every job that the plan's records name. Raises StoreOutOfReach."""
    try:
        return {job for record in _versions(store, plan) for job in record.jobs}
    except StoreSilent as error:
        raise StoreOutOfReach(f"the plan {plan} cannot be read: {error}") from error


def tally(store: Store, specs: Sequence[JobSpec]) -> Tally:
    """Read the witness of every job. Raises StoreOutOfReach; a corrupt witness ends its job."""
    still_open, finished, over = [], [], {}
    for spec in specs:
        try:
            w = read_witness(store, keys.witness_of(spec)).witness
        except Corrupt as error:
            over[spec.id] = str(error)
            continue
        except StoreSilent as error:
            raise StoreOutOfReach(f"job {spec.id} cannot be read: {error}") from error
        if w is None or w.phase not in FINAL:
            still_open.append(spec.id)
        elif w.phase == "finished" and w.exit_code == 0:
            finished.append(spec.id)
        else:
            end = f"ended with code {w.exit_code}" if w.phase == "finished" else "cancelled"
            lines = (w.reason or "no reason given").strip().splitlines()
            over[spec.id] = f"{end}: {lines[-1]}"
    return Tally(tuple(still_open), tuple(finished), over)


def plan_records(store: Store) -> list[PlanRecord]:
    """Every readable version of every plan; a corrupt one is named by ``tenure status``."""
    records = []
    for row in store.list(keys.PLANS):
        body = store.read(row.key)
        try:
            if not isinstance(body, Missing):
                records.append(load(PlanRecord, body.body, row.key))
        except Corrupt:
            continue
    return sorted(records, key=lambda record: record.version)


def _versions(store: Store, plan: str) -> list[PlanRecord]:
    found = []
    for row in store.list(f"{keys.PLANS}{plan}/"):
        body = store.read(row.key)
        if not isinstance(body, Missing):
            found.append(load(PlanRecord, body.body, row.key))
    return found
