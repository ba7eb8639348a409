"""The slots of a deployment, and the history of what was in them.

``deployments/<name>/current`` is what is live; ``deployments/<name>/shadow`` runs beside it and decides
nothing. A slot changes by conditional replace alone, and each state names its number (``move``) and the
digest of the state before. ``history/<n>.json`` is, byte for byte, the state of move ``n``: whoever moves
a slot first sees to it that the state which he replaces is there, so that it is complete whoever died.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from gates.evidence import same_json
from gates.trust import Trust
from gates.warrant import BadWarrant, LogEntry, Statement
from tenure.errors import Blocked, UsageError
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, encode, plain, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    PROTOCOL_VERSION,
    FileEntry,
    SnapshotRef,
    check_name,
    load,
)
from tenure_protocol.store.api import Found, Missing, Store, StoreSilent, Written
from tenure_protocol.store.settle import create_once
from tenure_protocol.warrants import Slot

_TRIES = 10


@dataclass(frozen=True)
class Deployment:
    """What is in a slot of a name, the warrant that allows it, and how it came there."""

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
    replaced: int | None = None  # number of the warrant that was in the slot before
    slot: Slot = "live"
    what: Literal["deploy", "rollback"] = "deploy"
    move: int = 1  # 1, 2, ... along the states of this slot
    rolled_back: int = 0  # the last move up to this one that was a rollback, 0 for none
    before: str | None = None  # SHA-256 of the bytes of the state that this one replaced
    by: str | None = None  # who asked, in a word of his own
    reason: str | None = None
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        if self.warrant < 1:
            raise ValueError(f"warrant is {self.warrant}, they count from 1")
        if self.move < 1 or not 0 <= self.rolled_back <= self.move:
            raise ValueError(
                "move counts from 1, and rolled_back is one of the moves up to it or 0"
            )


def check_deployment_name(name: str) -> str:
    """``name`` itself when it can stand in a key. Raises UsageError."""
    try:
        return check_name(name, "the deployment's name")
    except ValueError as error:
        raise UsageError(str(error)) from None


def current(store: Store, name: str, slot: Slot = "live") -> Deployment | None:
    """What is in a slot, unproved: see :func:`proved`. Raises Corrupt, StoreSilent."""
    found = _read(store, name, slot)
    return found[1] if found else None


def proved(store: Store, deployment: Deployment, trust: Trust) -> Statement:
    """The warrant of a deployment, checked against everything it claims. Raises BadWarrant."""
    entry = warrant_of(store, deployment)
    statement = trust.verified(entry.warrant, deployment.warrant)
    demand_same(statement, deployment, entry)
    return statement


def warrant_of(store: Store, deployment: Deployment) -> LogEntry:
    """The entry of the log that a deployment names, by number and digest. Raises BadWarrant."""
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
    if entry.number != deployment.warrant:
        raise BadWarrant(f"{key} says that it is entry {entry.number}")
    return entry


def demand_same(statement: Statement, deployment: Deployment, entry: LogEntry) -> None:
    """Raises BadWarrant unless the warrant is about this very model, name and place in the log."""
    if (statement.place.number, statement.place.previous) != (deployment.warrant, entry.previous):
        raise BadWarrant(
            f"entry {deployment.warrant} of the log holds a warrant that was signed for entry "
            f"{statement.place.number} of it, behind another one: it was put there again"
        )
    claimed = {name: entry.sha256 for name, entry in deployment.files.items()}
    if statement.subject != claimed:
        raise BadWarrant("its warrant is about other files")
    if (statement.record, statement.deployment) != (deployment.record, deployment.name):
        raise BadWarrant(
            f"its warrant lets record {statement.record} be deployed as {statement.deployment!r}, "
            f"not {deployment.record} as {deployment.name!r}"
        )
    said = statement.predicate
    for what, signed, ours in (
        ("experiment", said.get("experiment"), deployment.experiment),
        ("seed", said.get("seed"), deployment.seed),
        ("snapshot", said.get("train"), plain(deployment.model)),
    ):
        if not same_json(signed, ours):
            raise BadWarrant(f"its warrant is about the {what} {signed!r}, not {ours!r}")


def history(store: Store, name: str, slot: Slot = "live") -> list[Deployment]:
    """Every state of a slot, the first one first; the last one is what is in it now.

    Raises Blocked for one that was taken out, put in, edited or put back, Corrupt, StoreSilent.
    """
    # In this order: a state that is listed was in the slot before the slot is read.
    listed = {row.key for row in store.list(keys.history(name, slot))}
    found = _read(store, name, slot)
    if found is None:
        if listed:
            raise Blocked(
                f"{keys.slot(name, slot)} is gone: {len(listed)} moves of it are recorded"
            )
        return []
    body, last = found[0].body, found[1]
    if any(_number(key) > last.move for key in listed):
        raise Blocked(_put_back(name, slot, last.move))
    states = [last]
    for number in range(last.move - 1, 0, -1):
        key = keys.moved(name, slot, number)
        stored = store.read(key)
        if isinstance(stored, Missing):
            raise Blocked(f"the history of {name!r} lacks {key}")
        if sha256_hex(stored.body) != states[-1].before:
            raise Blocked(f"{key} is not the state that move {number + 1} replaced")
        states.append(load(Deployment, stored.body, key))
    newest = store.read(keys.moved(name, slot, last.move))
    if isinstance(newest, Found) and newest.body != body:
        raise Blocked(f"{keys.moved(name, slot, last.move)} is not what is in the slot")
    for number, state in enumerate(reversed(states), 1):
        if (state.name, state.slot, state.move) != (name, slot, number):
            raise Blocked(
                f"move {number} of {name!r} ({slot}) says that it is move {state.move} of "
                f"{state.name!r} ({state.slot}): it was put there by hand"
            )
    return states[::-1]


def moved(
    store: Store,
    name: str,
    slot: Slot,
    decide: Callable[[Deployment | None], Deployment],
    clock: Clock,
) -> Deployment:
    """Move a slot to what ``decide`` makes of its state, by conditional writes until one is confirmed.

    ``decide`` is asked again whenever the state has changed, and raises Blocked where it must not be
    moved. An unknown outcome is settled by what a read shows, or by another conditional write on the
    same ETag; a read that finds nothing new settles nothing. Raises Blocked, Corrupt, StoreSilent.
    """
    key = keys.slot(name, slot)
    tried: set[str] = set()
    for count in range(_TRIES):
        found = _read(store, name, slot)
        before = found[1] if found else None
        if before is not None and before.write_id in tried:
            return _kept(store, before)
        wanted = decide(before)
        if found is not None and not _recorded(store, *found, clock):
            continue  # somebody moved it between two reads
        ours = replace(
            wanted,
            slot=slot,
            write_id=clock.nonce(),
            move=before.move + 1 if before else 1,
            replaced=before.warrant if before else None,
            before=sha256_hex(found[0].body) if found else None,
        )
        rolled_back = ours.move if ours.what == "rollback" else before.rolled_back if before else 0
        ours = replace(ours, rolled_back=rolled_back)
        body = encode(ours)
        outcome = store.replace(key, body, found[0].etag) if found else store.create(key, body)
        if isinstance(outcome, Written):
            return _kept(store, ours)
        tried.add(ours.write_id)  # after a refusal too: a retry on the way refuses its own success
        clock.sleep(0.05 * 2 ** min(count, 5))
    raise StoreSilent(f"{key} could not be moved in {_TRIES} tries; do the same again")


def _recorded(store: Store, found: Found, state: Deployment, clock: Clock) -> bool:
    """See to it that the history holds a state before it is replaced; false when it was already.

    Raises Blocked where the history says otherwise, StoreSilent.
    """
    name, slot = state.name, state.slot
    key, after = (keys.moved(name, slot, state.move + n) for n in (0, 1))
    if not isinstance(store.read(after), Missing):
        again = _read(store, name, slot)
        if again is None or again[0].etag != found.etag:
            return False
        raise Blocked(_put_back(name, slot, state.move))
    known = store.read(key)
    same = (
        create_once(store, key, found.body, clock)
        if isinstance(known, Missing)
        else known.body == found.body
    )
    if not same:
        raise Blocked(
            f"{key} is not what is in {keys.slot(name, slot)}: one of them was written by hand; "
            "nothing is moved until a person has looked at it"
        )
    return True


def _kept(store: Store, state: Deployment) -> Deployment:
    """The state itself, put into the history too; where that gets no answer, the next mover does it."""
    with suppress(StoreSilent):
        key = keys.moved(state.name, state.slot, state.move)
        store.create(key, encode(state))
    return state


def _number(key: str) -> int:
    """The move that a key of a history is of; for any other key one that nothing reaches.

    >>> _number("deployments/vol/history/00000012.json"), _number("deployments/vol/history/x")
    (12, 9223372036854775807)
    """
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isascii() and name.isdigit() else sys.maxsize


def _put_back(name: str, slot: Slot, move: int) -> str:
    return (
        f"{keys.slot(name, slot)} says that it is move {move}, and the history knows later ones: it was "
        "put back by hand, which is no rollback; nothing is moved until a person has looked at it"
    )


def _read(store: Store, name: str, slot: Slot) -> tuple[Found, Deployment] | None:
    key = keys.slot(name, slot)
    found = store.read(key)
    return None if isinstance(found, Missing) else (found, load(Deployment, found.body, key))
