"""Put a model that passed every gate into a slot of a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from gates.check import check_record
from gates.evidence import deployed_member
from gates.head import KnownHead
from gates.slots import Deployment as Deployment
from gates.slots import check_deployment_name, moved, proved
from gates.slots import current as current
from gates.trust import Trust
from gates.verdict import Verdict, deployable
from gates.warrant import BadWarrant, DeployKey, append, blocked_sentence, sign
from tenure.errors import Blocked
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.api import Store
from tenure_protocol.warrants import Slot


def deploy(
    store: Store,
    record: ModelRecord,
    key: DeployKey,
    name: str,
    clock: Clock = SYSTEM,
    *,
    trust: Trust | None = None,
    slot: Slot = "live",
    head: KnownHead | None = None,
    by: str | None = None,
    reason: str | None = None,
    beside: Sequence[Verdict] = (),
) -> Deployment:
    """Check the record again, sign its warrant, log it, and put it into a slot of ``name``.

    ``trust`` is who believes the warrant, by default the key's own half alone; ``head`` is what this
    machine remembers of the log; ``beside`` are verdicts of gates that take more than the store to ask,
    and must pass too. Deploying what is in the slot already, by the same key, changes
    nothing. Of two deployments that race, the one whose warrant stands later in the log stays; one that
    began before a rollback never undoes it. Raises Blocked with every reason, UsageError for a name that
    no key can hold and a deploy key that is revoked or not trusted, Corrupt, and StoreSilent when the
    store does not answer: then do the same again.
    """
    check_deployment_name(name)
    (trust or Trust.only(key.public)).demand_signer(key)
    before = current(store, name, slot)
    verdicts = [*check_record(store, record), *beside]
    if not deployable(verdicts):
        raise Blocked(blocked_sentence(record, verdicts))
    member = deployed_member(record)
    if before is not None and _is_it(store, before, record, key):
        return before
    try:
        if head is not None:
            head.demand(store)
        number, digest = append(
            store, lambda place: sign(record, member, verdicts, key, name, place), clock
        )
    except BadWarrant as error:
        raise Blocked(f"{error}; nothing is deployed until a person has looked at it") from None
    if head is not None:
        head.remember(number, digest)
    wanted = Deployment(
        name=name,
        record=record.id,
        experiment=record.experiment,
        seed=member.seed,
        model=member.train,
        files=member.files,
        warrant=number,
        warrant_digest=digest,
        at_s=clock.wall_s(),
        write_id="",
        by=by,
        reason=reason,
    )
    began = before.move if before else 0
    return moved(store, name, slot, lambda state: _unless_later(state, wanted, began), clock)


def _is_it(store: Store, found: Deployment, record: ModelRecord, key: DeployKey) -> bool:
    """Whether a slot holds this very model, by a warrant of this very key."""
    member = deployed_member(record)
    if (found.record, found.model, found.files) != (record.id, member.train, member.files):
        return False
    try:
        proved(store, found, Trust.only(key.public))
    except BadWarrant:
        return False
    return True


def _unless_later(state: Deployment | None, wanted: Deployment, began: int) -> Deployment:
    """``wanted``, unless somebody rolled back since move ``began`` or holds a later warrant."""
    if state is None:
        return wanted
    logged = f"warrant {wanted.warrant} is logged and not current"
    if state.rolled_back > began:
        raise Blocked(
            f"{wanted.name!r} was rolled back meanwhile (move {state.rolled_back}; warrant "
            f"{state.warrant} is current), which a deployment that began before does not undo; "
            f"{logged}; deploy again if it is still wanted"
        )
    if state.warrant > wanted.warrant:
        raise Blocked(
            f"record {state.record} was deployed as {wanted.name!r} meanwhile, by the later warrant "
            f"{state.warrant}; {logged}"
        )
    return wanted
