"""What the store says about a record: its parent, jobs, witnesses, manifests and losses.

Everything is read once and checked against the digest that names it. What cannot be proved raises
:class:`Unproved` with a sentence, which a gate turns into a BLOCK. A silent store is no evidence at
all: :class:`StoreSilent` goes through to the caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from tenure_protocol.codec import Corrupt, canonical, encode, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    FileEntry,
    JobSpec,
    Manifest,
    Member,
    ModelRecord,
    Pointer,
    SnapshotRef,
    Witness,
    environment_digest,
    load,
)
from tenure_protocol.store.api import Missing, Store

R = TypeVar("R")
P = ParamSpec("P")
CHUNK_BYTES = 8 * 1024 * 1024


class Unproved(Exception):
    """Something a gate needs is missing or contradicts itself; the message is a sentence."""


def losses_file(metric: str) -> str:
    """Where an evaluation snapshot holds the per-example losses of a metric: float64, little-endian.

    >>> losses_file("qlike")
    'losses/qlike.f64'
    """
    return f"losses/{metric}.f64"


def deployed_member(record: ModelRecord) -> Member:
    """The member of the first seed, fixed beforehand, never the best. Raises Unproved."""
    for member in record.members:
        if record.seeds and member.seed == record.seeds[0]:
            return member
    raise Unproved("the record has no member of its first seed, which is the one to deploy")


def same_json(one: object, other: object) -> bool:
    """Equality as the store sees it: by canonical JSON.

    >>> same_json({"lr": 1}, {"lr": True})
    False
    """
    return canonical(one) == canonical(other)


def attempt(read: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R | None, list[str]]:
    """The result of ``read``, or the sentence of why there is none.

    >>> attempt(int, "1")
    (1, [])
    """
    try:
        return read(*args, **kwargs), []
    except Unproved as why:
        return None, [str(why)]


class Evidence:
    """The store's view of one record; reads every object at most once."""

    def __init__(self, store: Store, record: ModelRecord) -> None:
        self.store = store
        self.record = record
        self._bodies: dict[str, bytes] = {}

    def stored(self) -> None:
        """Raises Unproved unless the store holds this very record under its own id."""
        key = keys.model(self.record.experiment, self.record.id)
        if self._body(key, "the record, whose content has this id,") != encode(self.record):
            raise Unproved(f"{key} does not hold this record")

    def parent(self) -> ModelRecord:
        """The record this one was retrained from. Raises Unproved."""
        name = self.record.parent
        if name is None:
            raise Unproved("the record names no parent")
        key = keys.model(self.record.experiment, name)
        parent = self._load(ModelRecord, key, f"the parent {name}")
        if parent.id != name:
            raise Unproved(f"{key} was edited: its content has the id {parent.id}")
        return parent

    def spec(self, job: str) -> JobSpec:
        """The spec of a job. Raises Unproved."""
        key = keys.job(job)
        spec = self._load(JobSpec, key, f"the spec of job {job}")
        if spec.id != job:
            raise Unproved(f"{key} was edited: its content has the id {spec.id}")
        return spec

    def witness(self, spec: JobSpec) -> Witness:
        """The witness of a job. Raises Unproved."""
        return self._load(Witness, keys.witness_of(spec), f"the witness of job {spec.id}")

    def manifest(self, ref: SnapshotRef) -> Manifest:
        """The manifest a reference names, its digest checked. Raises Unproved."""
        key = keys.manifest(ref.job, ref.pointer)
        what = f"the manifest of snapshot {ref.pointer.folder()} of job {ref.job}"
        if sha256_hex(self._body(key, what)) != ref.pointer.digest:
            raise Unproved(f"{key} does not have the digest that the record names")
        manifest = self._load(Manifest, key, what)
        if manifest.job != ref.job:
            raise Unproved(f"{key} belongs to job {manifest.job}")
        return manifest

    def chain(self, ref: SnapshotRef) -> Iterator[Manifest]:
        """The manifests from a snapshot back to the first one of its job. Raises Unproved."""
        pointer: Pointer | None = ref.pointer
        while pointer is not None:
            manifest = self.manifest(SnapshotRef(ref.job, pointer))
            yield manifest
            before = manifest.parent
            if before is not None and before.ordinal >= pointer.ordinal:
                raise Unproved(f"the line of snapshots of job {ref.job} does not go back")
            pointer = before

    def environment(self, record: ModelRecord, digest: str) -> dict[str, object]:
        """An environment of a record by its digest, which is checked. Raises Unproved."""
        found = record.environments.get(digest)
        if found is None:
            raise Unproved(f"the record does not hold the environment {digest} it names")
        if environment_digest(found) != digest:
            raise Unproved(f"the environment {digest} was edited: its content has another digest")
        return found

    def losses(self, member: Member, metric: str) -> NDArray[np.float64]:
        """Per-example losses of one member, their digest checked. Raises Unproved."""
        entry = member.losses.get(metric)
        if entry is None or member.evaluation is None:
            raise Unproved(f"seed {member.seed} has no per-example losses of {metric!r}")
        ref = member.evaluation
        key = keys.snapshot(ref.job, ref.pointer) + losses_file(metric)
        body = self._body(key, f"the losses of seed {member.seed}")
        if sha256_hex(body) != entry.sha256:
            raise Unproved(f"{key} does not have the digest that the record names")
        if len(body) % 8:
            raise Unproved(f"{key} is no row of float64: it has {len(body)} bytes")
        return np.frombuffer(body, dtype="<f8").astype(np.float64)

    def verify_bytes(self, ref: SnapshotRef, name: str, entry: FileEntry) -> None:
        """Read one file of a snapshot in pieces and compare its digest. Raises Unproved."""
        key = keys.snapshot(ref.job, ref.pointer) + name
        digest, size = hashlib.sha256(), 0
        while size < entry.size:
            try:
                part = self.store.read_range(key, size, CHUNK_BYTES)
            except ValueError as error:
                raise Unproved(str(error)) from error
            if isinstance(part, Missing):
                raise Unproved(f"{key} is missing, and the record names it")
            if not part:
                break
            digest.update(part)
            size += len(part)
        if size != entry.size or digest.hexdigest() != entry.sha256:
            raise Unproved(f"the bytes of {key} are not those that the record names")

    def _load(self, kind: type[R], key: str, what: str) -> R:
        try:
            return load(kind, self._body(key, what), key)
        except Corrupt as error:
            raise Unproved(str(error)) from error

    def _body(self, key: str, what: str) -> bytes:
        if key not in self._bodies:
            try:
                found = self.store.read(key)
            except ValueError as error:  # a name that no key can hold
                raise Unproved(str(error)) from error
            if isinstance(found, Missing):
                raise Unproved(f"{what} is not in the store ({key})")
            self._bodies[key] = found.body
        return self._bodies[key]
