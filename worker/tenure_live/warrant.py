"""What is deployed under a name, and the warrant that allows exactly that.

A deployment is a plain object that is changed at any time; it says nothing until the warrant that it
names is found in the log, has the digest that it names, is signed by a trusted key, and speaks of this
name, this record, this seed, this snapshot and these files.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from tenure_live.envelope import TrustedKey, signed
from tenure_live.refusal import Refused, WrongCall
from tenure_protocol.codec import Corrupt, Json, decode, from_base64, parse, plain, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.snapshots import (
    PROTOCOL_VERSION,
    FileEntry,
    SnapshotRef,
    check_name,
    demand_protocol,
    environment_digest,
)
from tenure_protocol.store.api import Missing, Store, is_key
from tenure_protocol.warrants import PREDICATE_TYPE, SLOTS, STATEMENT_TYPE

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_NUMBER = 99_999_999  # as many digits as a key of the log has
R = TypeVar("R")


@dataclass(frozen=True)
class Deployed:
    """What a slot holds, as far as the live side reads it; unproved."""

    name: str
    record: str
    experiment: str
    seed: int
    model: SnapshotRef
    files: dict[str, FileEntry]
    warrant: int  # its number in the log
    warrant_digest: str  # SHA-256 of that log entry's bytes
    slot: str
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class _Entry:
    number: int
    envelope: str  # base64 of the envelope's bytes
    previous: str | None = None  # SHA-256 of the bytes of the entry before; None for the first
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Proved:
    """A deployment whose warrant was found good, and the environment that it demands."""

    deployed: Deployed
    prefix: str  # of the model's files in the store
    required: dict[str, object]


def slot_key(name: str, slot: str) -> str:
    """Where a slot of a deployment lives. Raises WrongCall for a name or a slot that cannot be."""
    try:
        check_name(name, "the deployment's name")
    except ValueError as error:
        raise WrongCall(str(error)) from None
    if slot not in SLOTS:
        raise WrongCall(f"there is no slot {slot!r}; there are {' and '.join(SLOTS)}")
    return keys.slot(name, slot)


def nothing_deployed(key: str) -> Refused:
    """The sentence about an empty slot."""
    return Refused(
        f"nothing is deployed there: {key} does not exist; deploy a model, or correct the name"
    )


def read_slot(store: Store, key: str) -> Deployed | None:
    """What a slot holds; ``None`` when nothing is there. Raises Refused or StoreSilent."""
    found = store.read(key)
    return None if isinstance(found, Missing) else _known(Deployed, found.body, key)


def prove(
    store: Store,
    name: str,
    slot: str,
    trusted: Sequence[TrustedKey],
    revoked: Mapping[str, int],
) -> Proved:
    """The proved deployment of a slot. Raises Refused, StoreSilent or WrongCall."""
    key = slot_key(name, slot)
    deployed = read_slot(store, key)
    if deployed is None:
        raise nothing_deployed(key)
    try:
        prefix = _check_places(deployed)
        if (deployed.name, deployed.slot) != (name, slot):
            raise Refused(
                f"what is there belongs to the {deployed.slot} slot of {deployed.name!r} and was put here "
                "by hand; deploy a model here"
            )
        entry, statement = _statement(store, deployed, trusted, revoked)
        return Proved(deployed, prefix, _agree(deployed, entry, statement))
    except Refused as error:
        raise Refused(f"{key}: {error}") from None


def _check_places(deployed: Deployed) -> str:
    """The prefix of the model's files. Raises Refused for one that could lie anywhere else."""
    prefix = keys.snapshot(deployed.model.job, deployed.model.pointer)
    if not deployed.files:
        raise Refused("it names no file, so there is no model")
    for name, entry in deployed.files.items():
        if not is_key(prefix + name) or not _DIGEST.fullmatch(entry.sha256) or entry.size < 0:
            raise Refused(f"it names the file {name!r}, which no snapshot can hold")
        if any(other.startswith(f"{name}/") for other in deployed.files):
            raise Refused(f"it names {name!r} as a file and as a folder")
    return prefix


def _statement(
    store: Store, deployed: Deployed, trusted: Sequence[TrustedKey], revoked: Mapping[str, int]
) -> tuple[_Entry, dict[str, Json]]:
    number = deployed.warrant
    key = keys.warrant(number)
    found = store.read(key) if 1 <= number <= _MAX_NUMBER else Missing()
    if isinstance(found, Missing):
        raise Refused(f"the warrant {number} that it names is not in the log")
    if sha256_hex(found.body) != deployed.warrant_digest:
        raise Refused(f"{key} is not the warrant that it names: their digests differ")
    entry = _known(_Entry, found.body, key)
    if entry.number != number:
        raise Refused(f"{key} says that it is entry {entry.number}")
    try:
        envelope = from_base64(entry.envelope, key)
    except Corrupt:
        raise Refused(f"{key} holds no envelope") from None
    payload, signers = signed(envelope, trusted)
    believed = [one for one in signers if number <= revoked.get(one.id, number)]
    if not believed:
        last = revoked[signers[0].id]
        raise Refused(
            f"its warrant {number} is signed by the key {signers[0].id[:16]}, which is revoked: "
            + (
                f"warrants up to {last} are believed"
                if last
                else "none of its warrants is believed"
            )
            + "; deploy the model again with a key that is trusted"
        )
    try:
        return entry, parse(payload, "the warrant")
    except Corrupt as error:
        raise Refused(str(error)) from None


def _agree(deployed: Deployed, entry: _Entry, statement: Mapping[str, Json]) -> dict[str, object]:
    """The environment that the warrant demands. Raises Refused where it speaks of anything else."""
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise Refused("what was signed is no warrant of this version")
        said = cast("dict[str, Json]", statement["predicate"])
        rows = cast("list[dict[str, dict[str, str]]]", statement["subject"])
        subject = {str(row["name"]): row["digest"]["sha256"] for row in rows}
        if len(subject) != len(rows):
            raise Refused("its warrant names a file twice")
        allowed = (said["deployment"], said["record"])
        place = said["log"]
        other = {
            "experiment": (said["experiment"], deployed.experiment),
            "seed": (said["seed"], deployed.seed),
            "snapshot": (said["train"], plain(deployed.model)),
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise Refused(
            f"its warrant lacks {error}; if an older Tenure signed it, deploy the model again"
        ) from None
    if allowed != (deployed.name, deployed.record):
        raise Refused(
            f"its warrant lets record {allowed[1]} be deployed as {allowed[0]!r}, not "
            f"{deployed.record} as {deployed.name!r}"
        )
    if place != {"number": entry.number, "previous": entry.previous}:
        raise Refused(
            f"entry {entry.number} of the log holds a warrant that was signed for another place in it"
        )
    if subject != {file: entry.sha256 for file, entry in deployed.files.items()}:
        raise Refused("its warrant is about other files")
    for what, (by_warrant, here) in other.items():
        if by_warrant != here or type(by_warrant) is not type(here):
            raise Refused(f"its warrant is about the {what} {by_warrant!r}, not {here!r}")
    return _required(said)


def _required(said: Mapping[str, Json]) -> dict[str, object]:
    name, environments = said.get("environment"), said.get("environments")
    if not isinstance(environments, dict):
        raise Refused(
            "its warrant does not hold the environment that it demands (an older Tenure signed it); "
            "deploy the model again"
        )
    found = environments.get(str(name))
    if not isinstance(found, dict) or not found:
        raise Refused(f"its warrant demands the environment {name}, which it does not hold")
    if environment_digest(cast("dict[str, object]", found)) != name:
        raise Refused(f"the environment that its warrant holds as {name} is another one")
    return cast("dict[str, object]", found)


def _known(kind: type[R], body: bytes, key: str) -> R:
    """A stored record of which the live side knows some fields; others are of no matter to it."""
    try:
        value = parse(body, key)
        demand_protocol(value, key)
        names = {field.name for field in dataclasses.fields(cast("type", kind))}
        return decode(kind, {name: item for name, item in value.items() if name in names}, key)
    except Corrupt as error:
        raise Refused(str(error)) from None
