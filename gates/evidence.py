"""What the store says about a record: its parent, jobs, witnesses, manifests and losses.

Everything is read once and checked against the digest that names it. What cannot be proved raises
:class:`Unproved` with a sentence, which a gate turns into a BLOCK. A silent store is no evidence at
all: :class:`StoreSilent` goes through to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gates.objects import Objects
from gates.objects import Unproved as Unproved
from gates.objects import attempt as attempt
from tenure_protocol.codec import canonical, encode, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import FileEntry, Member, ModelRecord, environment_digest
from tenure_protocol.store.api import Store


def losses_file(metric: str) -> str:
    """Where an evaluation snapshot holds the per-example losses of a metric: float64, little-endian.

    >>> losses_file("qlike")
    'losses/qlike.f64'
    """
    return f"losses/{metric}.f64"


def losses_of(files: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """The per-example losses among the files of an evaluation snapshot, by metric.

    >>> losses_of({"evaluation.json": FileEntry("0", 2), "losses/qlike.f64": FileEntry("1", 8)})
    {'qlike': FileEntry(sha256='1', size=8)}
    """
    prefix, suffix = losses_file("\n").split("\n")
    return {
        name.removeprefix(prefix).removesuffix(suffix): entry
        for name, entry in files.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }


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


class Evidence(Objects):
    """The store's view of one record; reads every object at most once."""

    def __init__(self, store: Store, record: ModelRecord) -> None:
        super().__init__(store)
        self.record = record

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
