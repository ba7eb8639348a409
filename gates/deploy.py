"""Move ``deployments/<name>/current`` to a model that passed every gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gates.check import check_record
from gates.evidence import deployed_member
from gates.verdict import deployable
from gates.warrant import (
    BadWarrant,
    DeployKey,
    LogEntry,
    PublicKey,
    Statement,
    append,
    blocked_sentence,
    sign,
    verify,
)
from tenure.errors import Blocked, UsageError
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import Corrupt, encode, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    PROTOCOL_VERSION,
    FileEntry,
    ModelRecord,
    SnapshotRef,
    check_name,
    load,
)
from tenure_protocol.store.api import Found, Missing, Store, StoreSilent, Unknown, Written

_TRIES = 10


@dataclass(frozen=True)
class Deployment:
    """What is deployed under a name, and the warrant that allows it."""

    name: str
    record: str
    experiment: str
    seed: int
    model: SnapshotRef
    files: dict[str, FileEntry]
    warrant: int  # its number in the log
    warrant_digest: str  # SHA-256 of that log entry's bytes
    at_s: float  # Unix time by the deployer's clock, for people
    write_id: str  # fresh per conditional write
    replaced: int | None = None  # number of the warrant that was current before
    protocol: int = PROTOCOL_VERSION


def deploy(
    store: Store, record: ModelRecord, key: DeployKey, name: str, clock: Clock = SYSTEM
) -> Deployment:
    """Check the record again, sign its warrant, log it, and make it current under ``name``.

    Deploying what is current already, by the same key, changes nothing. Of two deployments that
    race, the one whose warrant stands later in the log stays. Raises Blocked with every reason,
    UsageError for a name that no key can hold, StoreSilent when the store does not answer: then do
    the same again.
    """
    try:
        check_name(name, "the deployment's name")
    except ValueError as error:
        raise UsageError(str(error)) from None
    verdicts = check_record(store, record)
    if not deployable(verdicts):
        raise Blocked(blocked_sentence(record, verdicts))
    if (already := _already(store, record, key, name)) is not None:
        return already
    member = deployed_member(record)
    try:
        number, digest = append(store, sign(record, member, verdicts, key, name), clock)
    except BadWarrant as error:
        raise Blocked(f"{error}; nothing is deployed until a person has looked at it") from None
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
    )
    return _move(store, wanted, clock)


def current(store: Store, name: str) -> Deployment | None:
    """What is deployed under ``name``, unproved: see :func:`proved`. Raises Corrupt, StoreSilent."""
    found = _read(store, name)
    return found[1] if found else None


def proved(store: Store, deployment: Deployment, public_keys: Sequence[PublicKey]) -> Statement:
    """The warrant of a deployment, checked against everything it claims. Raises BadWarrant."""
    key = keys.warrant(deployment.warrant)
    found = store.read(key)
    if isinstance(found, Missing):
        raise BadWarrant(f"the warrant {deployment.warrant} it names is not in the log")
    if sha256_hex(found.body) != deployment.warrant_digest:
        raise BadWarrant(f"{key} is not the warrant that it names")
    try:
        entry = load(LogEntry, found.body, key)
    except Corrupt as error:
        raise BadWarrant(str(error)) from error
    statement = verify(entry.warrant, public_keys)
    claimed = {name: entry.sha256 for name, entry in deployment.files.items()}
    if statement.subject != claimed:
        raise BadWarrant("its warrant is about other files")
    if (statement.record, statement.deployment) != (deployment.record, deployment.name):
        raise BadWarrant(
            f"its warrant lets record {statement.record} be deployed as {statement.deployment!r}, "
            f"not {deployment.record} as {deployment.name!r}"
        )
    return statement


def _already(store: Store, record: ModelRecord, key: DeployKey, name: str) -> Deployment | None:
    try:
        found = current(store, name)
        if found is None or found.record != record.id:
            return None
        proved(store, found, [key.public])
    except (BadWarrant, Corrupt):
        return None
    member = deployed_member(record)
    return found if (found.model, found.files) == (member.train, member.files) else None


def _read(store: Store, name: str) -> tuple[Found, Deployment] | None:
    key = keys.deployment(name)
    found = store.read(key)
    return None if isinstance(found, Missing) else (found, load(Deployment, found.body, key))


def _move(store: Store, wanted: Deployment, clock: Clock) -> Deployment:
    """Conditional writes until one is confirmed, found by its write id, or another stands later.

    An unknown outcome is settled by what a read shows, or by another conditional write on the same
    ETag; a read that finds nothing new settles nothing.
    """
    key = keys.deployment(wanted.name)
    tried: dict[str, Deployment] = {}
    for count in range(_TRIES):
        found = store.read(key)
        if isinstance(found, Missing):
            before = None
        else:
            before = load(Deployment, found.body, key)
            if before.write_id in tried:
                return tried[before.write_id]
            if before.warrant > wanted.warrant:
                raise Blocked(
                    f"record {before.record} was deployed as {wanted.name!r} meanwhile, by the later "
                    f"warrant {before.warrant}; warrant {wanted.warrant} is logged and not current"
                )
        ours = replace(wanted, write_id=clock.nonce(), replaced=before.warrant if before else None)
        body = encode(ours)
        outcome = (
            store.create(key, body)
            if isinstance(found, Missing)
            else store.replace(key, body, found.etag)
        )
        if isinstance(outcome, Written):
            return ours
        if isinstance(outcome, Unknown):
            tried[ours.write_id] = ours
        clock.sleep(0.05 * 2 ** min(count, 5))
    raise StoreSilent(f"{key} could not be moved in {_TRIES} tries; deploy again")
