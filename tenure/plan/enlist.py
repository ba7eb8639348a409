"""Enlisting: specs and a plan record in the store. Idempotent, because a job's id is its spec."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import StoreOutOfReach
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, canonical, encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, PlanRecord, load
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once


def enlist(
    store: Store,
    plan: str,
    experiment: str,
    specs: Sequence[JobSpec],
    terms: dict[str, object],
    clock: Clock,
) -> list[str]:
    """Write the specs, then a plan record that names them; returns the jobs' ids in order.

    The same specs and terms again write nothing; other terms, or more jobs, become a new version.
    Raises :class:`StoreOutOfReach`, or Corrupt for a stored spec that differs from its own id.
    """
    try:
        for spec in specs:
            key = keys.job(spec.id)
            if not create_once(store, key, encode(spec), clock):
                raise Corrupt("it differs from the spec whose digest is its id", key)
        ids = [spec.id for spec in specs]
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


def _versions(store: Store, plan: str) -> list[PlanRecord]:
    found = []
    for row in store.list(f"{keys.PLANS}{plan}/"):
        body = store.read(row.key)
        if not isinstance(body, Missing):
            found.append(load(PlanRecord, body.body, row.key))
    return found
