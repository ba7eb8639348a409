"""What lies in the store, read once and checked against the digest that names it.

What cannot be proved raises :class:`Unproved` with a sentence, which a gate turns into a BLOCK. A silent
store is no evidence at all: :class:`StoreSilent` goes through to the caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar, cast

from tenure_protocol.codec import Corrupt, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    FileEntry,
    JobSpec,
    Manifest,
    Pointer,
    SnapshotRef,
    Witness,
    load,
)
from tenure_protocol.store.api import Missing, Store

R = TypeVar("R")
P = ParamSpec("P")
CHUNK_BYTES = 8 * 1024 * 1024


class Unproved(Exception):
    """Something a gate needs is missing or contradicts itself; the message is a sentence."""


def attempt(read: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R | None, list[str]]:
    """The result of ``read``, or the sentence of why there is none.

    >>> attempt(int, "1")
    (1, [])
    """
    try:
        return read(*args, **kwargs), []
    except Unproved as why:
        return None, [str(why)]


class Objects:
    """The store's view of jobs, their snapshots and files; keeps every small object it has read."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._bodies: dict[str, bytes] = {}
        self._read: dict[tuple[type[object], str], object] = {}  # what the bodies hold
        self._specs: dict[str, JobSpec] = {}  # by job, once their id was found to be theirs

    def spec(self, job: str) -> JobSpec:
        """The spec of a job. Raises Unproved."""
        if job not in self._specs:
            key = keys.job(job)
            spec = self._load(JobSpec, key, f"the spec of job {job}")
            if spec.id != job:
                raise Unproved(f"{key} was edited: its content has the id {spec.id}")
            self._specs[job] = spec
        return self._specs[job]

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

    def finished(self, ref: SnapshotRef) -> None:
        """A snapshot that its job finished with: nothing else is a result. Raises Unproved."""
        witness = self.witness(self.spec(ref.job))
        if witness.phase != "finished":
            raise Unproved(f"job {ref.job} is {witness.phase}, not finished")
        if witness.exit_code != 0:
            raise Unproved(f"job {ref.job} ended with exit code {witness.exit_code}, not 0")
        if witness.pointer != ref.pointer:
            raise Unproved(f"job {ref.job} finished with another snapshot than the record names")
        self.manifest(ref)

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

    def verify_bytes(
        self, ref: SnapshotRef, name: str, entry: FileEntry, named_by: str = "the record"
    ) -> None:
        """Read one file of a snapshot in pieces and compare its digest. Raises Unproved."""
        key = keys.snapshot(ref.job, ref.pointer) + name
        digest, size = hashlib.sha256(), 0
        while size < entry.size:
            try:
                part = self.store.read_range(key, size, CHUNK_BYTES)
            except ValueError as error:
                raise Unproved(str(error)) from error
            if isinstance(part, Missing):
                raise Unproved(f"{key} is missing, and {named_by} names it")
            if not part:
                break
            digest.update(part)
            size += len(part)
        if size != entry.size or digest.hexdigest() != entry.sha256:
            raise Unproved(f"the bytes of {key} are not those that {named_by} names")

    def _load(self, kind: type[R], key: str, what: str) -> R:
        if (kind, key) not in self._read:
            try:
                self._read[kind, key] = load(kind, self._body(key, what), key)
            except Corrupt as error:
                raise Unproved(str(error)) from error
        return cast(R, self._read[kind, key])

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
