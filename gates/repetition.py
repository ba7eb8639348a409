"""Proof by repetition: the training of the model to be deployed, done once more, gave the same bits.

Files are compared by the digests of their manifests, milestone by milestone. Where two differ, the first
milestone and the first tensor that do are named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from gates.evidence import Evidence, Unproved, attempt, deployed_member, same_json
from gates.objects import CHUNK_BYTES, Objects
from gates.tensors import TENSOR_SUFFIXES, Part, parts
from gates.verdict import Verdict, judged
from tenure_protocol.codec import Corrupt, plain
from tenure_protocol.fingerprint import compare as compare_environments
from tenure_protocol.fingerprint import refusing
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    FileEntry,
    JobSpec,
    LaunchReceipt,
    Manifest,
    Member,
    SnapshotRef,
    environment_digest,
    load,
)
from tenure_protocol.store.api import Missing, Store

GATE = "repetition"
MEANING = "the code is not deterministic, or a machine does not compute what it should"
_OTHER = frozenset({"run", "stage"})  # of a spec, where a job and its repetition may differ
_SHOWN_DIGITS = 16  # of a digest in a sentence; the numbers have it whole
_HAS_DIGEST = "has digest "
_BLOCK_BYTES = 1 << 20  # read at once where little is asked for


@dataclass(frozen=True)
class Comparison:
    """Two trainings, up to the first place where they are not the same bits."""

    ours: str  # job
    theirs: str
    equal: int  # milestones that both have and that are equal, up to the first difference
    skipped: int  # milestones that only one of them has: attempts ended at other steps
    files: int  # of the last milestone
    difference: str | None  # the first, in words
    where: str  # on one machine or on two
    details: Mapping[str, float | str] = field(default_factory=dict)  # of the difference

    def sentence(self) -> str:
        """What was compared, where it ran, and what it says."""
        skipped = f", {self.skipped} that only one of them has left out" if self.skipped else ""
        before = f"{_count(self.equal, 'milestone')}{skipped}"
        if self.difference is None:
            return (
                f"job {self.ours} and its repetition {self.theirs} gave the same bits: {before}, "
                f"{_count(self.files, 'file')} in the last; {self.where}"
            )
        return f"{self.difference} (equal before it: {before}); {self.where}: either {MEANING}"

    def numbers(self) -> dict[str, float | str]:
        """The same for scripts."""
        return {
            "job": self.ours,
            "repetition": self.theirs,
            "equal_milestones": float(self.equal),
            "skipped_milestones": float(self.skipped),
            **self.details,
        }


def repetition(evidence: Evidence) -> Verdict:
    """The deployed seed's training was repeated in another job of its spec, and gave the same bits."""
    member, problems = attempt(deployed_member, evidence.record)
    if member is None:
        return judged(GATE, problems, "")
    if member.repetition is None:
        said = (
            f"the training of seed {member.seed}, which is to be deployed, was not repeated, so that "
            "nobody knows whether it gives the same bits again"
        )
        return judged(GATE, [said], "")
    problems += _contradictions(evidence, member, member.repetition)
    if problems:
        return judged(GATE, problems, "")
    found, problems = attempt(compare, evidence, member.train, member.repetition)
    if found is None:
        return judged(GATE, problems, "")
    problems += [found.sentence()] if found.difference else []
    return judged(GATE, problems, found.sentence(), found.numbers())


def compare(objects: Objects, ours: SnapshotRef, theirs: SnapshotRef) -> Comparison:
    """Compare what two jobs finished with, and every milestone on the way. Raises Unproved."""
    sides = _line(objects, ours), _line(objects, theirs)
    common = sorted(set(sides[0]) & set(sides[1]))
    skipped = len(set(sides[0]) ^ set(sides[1]))
    ends = ours.pointer.step, theirs.pointer.step
    equal, difference = 0, None
    for step in common:
        difference = _milestone(objects, sides[0][step], sides[1][step])
        if difference is not None:
            break
        equal += 1
    if difference is None and ends[0] != ends[1]:
        words = f"job {ours.job} ended at step {ends[0]} and job {theirs.job} at step {ends[1]}"
        difference = _Difference(words, {"step": float(min(ends))})
    return Comparison(
        ours.job,
        theirs.job,
        equal,
        skipped,
        len(sides[0][ends[0]].files),
        difference.words if difference else None,
        where(objects.store, ours.job, theirs.job),
        difference.details if difference else {},
    )


def spec_differences(ours: JobSpec, theirs: JobSpec) -> list[str]:
    """In what two jobs differ that are to be one spec, in words; run and stage may.

    The requirement is told by its digest, as a record does.
    """
    found = []
    for each in fields(JobSpec):
        one, other = (getattr(spec, each.name) for spec in (ours, theirs))
        if each.name in _OTHER or same_json(plain(one), plain(other)):
            continue
        if each.name == "requires":
            one, other = (item and environment_digest(item) for item in (one, other))
        found.append(f"its {each.name} is {other!r} where job {ours.id} has {one!r}")
    return found


def environment_differences(
    objects: Objects, ours: SnapshotRef, theirs: SnapshotRef
) -> tuple[str, ...]:
    """In which fields that numbers may depend on the environments of two jobs differ, in words.

    Of every environment that their attempts measured, against the last of the first. Raises Unproved.
    """
    lines = [list(objects.chain(ref)) for ref in (ours, theirs)]
    base = lines[0][0].fingerprint
    found: dict[str, None] = {}
    for manifest in (*lines[0][1:], *lines[1]):
        other = manifest.fingerprint
        both_ways = (
            *((d.field, d.required, d.measured, d) for d in compare_environments(base, other)),
            *((d.field, d.measured, d.required, d) for d in compare_environments(other, base)),
        )
        for name, first, second, each in both_ways:
            if refusing([each]):
                found[
                    f"{name} was {first!r} in job {ours.job} and {second!r} in job {manifest.job} "
                    f"({each.kind}: {each.effect})"
                ] = None
    return tuple(found)


def where(store: Store, ours: str, theirs: str) -> str:
    """Whether two jobs ran on one machine, as far as the receipts of their launches tell, in words."""
    sides = [_machines(store, job) for job in (ours, theirs)]
    if None in sides or not all(sides):
        return "the store does not tell whether they ran on one machine or on two"
    one, other = (set(side or ()) for side in sides)
    if not one & other:
        return f"they ran on two machines ({_listed(one)}; {_listed(other)})"
    if len(one | other) == 1:
        return f"they ran on one machine ({_listed(one)})"
    return f"they have the machine {_listed(one & other)} in common"


def _machines(store: Store, job: str) -> set[str] | None:
    """The machines of a job's launches; ``None`` where a receipt does not tell. Raises StoreSilent."""
    found = set()
    for row in store.list(keys.launches(job)):
        if not row.key.endswith("/receipt.json"):
            continue
        body = store.read(row.key)
        try:
            receipt = None if isinstance(body, Missing) else load(LaunchReceipt, body.body, row.key)
        except Corrupt:
            return None
        if receipt is None:
            return None
        host = receipt.handle.get("host")
        if isinstance(host, str):
            found.add(host)
        elif "pid" in receipt.handle:  # a process, and nobody noted of which machine
            return None
        else:
            found.add(f"{receipt.runner}/{receipt.name}")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _contradictions(evidence: Evidence, member: Member, again: SnapshotRef) -> list[str]:
    """Why a job is no repetition of a member's training, or none that counts."""
    if again.job == member.train.job:
        return [f"job {again.job} is passed off as its own repetition: one training proves nothing"]
    specs, problems = attempt(lambda: [evidence.spec(r.job) for r in (member.train, again)])
    if specs is None:
        return problems
    model, repeated = specs
    differences = spec_differences(model, repeated)
    if differences:
        said = "; ".join(differences)
        problems.append(f"job {repeated.id} is no repetition of job {model.id}: {said}")
    problems += attempt(evidence.finished, again)[1]
    if model.requires is None:
        return [*problems, f"job {model.id} was not pinned, so that it cannot be repeated"]
    for ref in (member.train, again):
        problems += attempt(_ran_as_required, evidence, ref, model.requires)[1]
    return problems


def _ran_as_required(evidence: Evidence, ref: SnapshotRef, requires: dict[str, object]) -> None:
    """Every attempt measured the environment that was required. Raises Unproved."""
    for manifest in evidence.chain(ref):
        found = refusing(compare_environments(requires, manifest.fingerprint))
        if found:
            said = "; ".join(each.sentence() for each in found)
            raise Unproved(f"attempt {manifest.attempt} of job {ref.job} ran elsewhere: {said}")


# -------------------------------------------------------------------------------- milestones


@dataclass(frozen=True)
class _Difference:
    """Where two trainings part, in words and for scripts."""

    words: str
    details: Mapping[str, float | str]


def _line(objects: Objects, ref: SnapshotRef) -> dict[int, Manifest]:
    """The milestones of a job by their step, the newest of a step. Raises Unproved."""
    found: dict[int, Manifest] = {}
    pointer = ref.pointer
    for manifest in objects.chain(ref):
        says = manifest.attempt, manifest.step, manifest.save
        if says != (pointer.attempt, pointer.step, pointer.save):
            raise Unproved(
                f"the manifest of snapshot {pointer.folder()} of job {ref.job} says it is of step "
                f"{manifest.step}, save {manifest.save} of attempt {manifest.attempt}"
            )
        found.setdefault(manifest.step, manifest)
        pointer = manifest.parent or pointer
    return found


def _milestone(objects: Objects, ours: Manifest, theirs: Manifest) -> _Difference | None:
    """The first tensor in which a milestone of two jobs differs. Raises Unproved."""
    names = {*ours.files, *theirs.files}
    other = [name for name in names if ours.files.get(name) != theirs.files.get(name)]
    if not other:
        return None
    name = min(other, key=lambda name: (not name.endswith(TENSOR_SUFFIXES), name))
    first = _file(objects, name, ours, theirs)
    more = f" ({len(other)} of {len(names)} files differ)" if len(names) > 1 else ""
    return _Difference(
        f"milestone of step {ours.step}: {first.words}{more}",
        {"step": float(ours.step), "file": name, **first.details},
    )


def _file(objects: Objects, name: str, ours: Manifest, theirs: Manifest) -> _Difference:
    """How a file of two snapshots differs, by its first tensor that does. Raises Unproved."""
    jobs = ours.job, theirs.job
    entries = ours.files.get(name), theirs.files.get(name)
    if entries[0] is None or entries[1] is None:
        tells = [_digest_words(entry.sha256) if entry else None for entry in entries]
        return _told(f"file {name}", tells, jobs, {})
    digests = {"digest": entries[0].sha256, "digest_of_repetition": entries[1].sha256}
    whole = _told(f"file {name}", [_digest_words(e.sha256) for e in entries if e], jobs, digests)
    try:
        files = [
            _stored(objects, manifest, name, entry)
            for manifest, entry in zip((ours, theirs), entries, strict=True)
            if entry
        ]
        within = [parts(name, file.size, file.read) for file in files]
        if not all(within):
            return whole
        first = _first_part(name, files, within, jobs)
    except Unproved as why:  # by their manifests they differ all the same
        return _Difference(f"{whole.words} (in which tensor is not known: {why})", whole.details)
    around = f"{whole.words}, in what lies around its {_count(len(within[0]), 'tensor')}"
    return first or _Difference(around, whole.details)


def _first_part(
    name: str, files: Sequence[_Stored], within: Sequence[Sequence[Part]], jobs: tuple[str, str]
) -> _Difference | None:
    """The first part of a file that differs, in the order of the first one's bytes."""
    theirs = {part.name: part for part in within[1]}
    ours = {part.name for part in within[0]}
    for part in within[0]:
        what, details = f"{part.name} of {name}", {"tensor": part.name}
        other = theirs.get(part.name)
        if other is None:
            return _told(what, [f"is {part.form}", None], jobs, details)
        if other.form != part.form or other.size != part.size:
            return _told(what, [f"is {part.form}", f"is {other.form}"], jobs, details)
        one, two = files[0].digest(part), files[1].digest(other)
        if one != two:
            details |= {"digest": one, "digest_of_repetition": two}
            return _told(what, [_digest_words(one), _digest_words(two)], jobs, details)
    added = next((part for part in within[1] if part.name not in ours), None)
    if added is None:
        return None
    words = f"{added.name} of {name}"
    return _told(words, [None, f"is {added.form}"], jobs, {"tensor": added.name})


def _told(
    what: str,
    tells: Sequence[str | None],
    jobs: tuple[str, str],
    details: Mapping[str, float | str],
) -> _Difference:
    """One sentence of what is so in one job and otherwise in the other; ``None``: it is not there."""
    one, other = (tell or "is missing" for tell in tells)
    if one.startswith(_HAS_DIGEST):
        other = other.removeprefix(_HAS_DIGEST)
    return _Difference(f"{what} {one} in job {jobs[0]} and {other} in job {jobs[1]}", details)


def _digest_words(digest: str) -> str:
    return f"{_HAS_DIGEST}{digest[:_SHOWN_DIGITS]}"


def _count(count: int, what: str) -> str:
    """
    >>> _count(1, "file"), _count(0, "milestone")
    ('1 file', '0 milestones')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


# ------------------------------------------------------------------------------ stored files


def _stored(objects: Objects, manifest: Manifest, name: str, entry: FileEntry) -> _Stored:
    """A file of a snapshot, once its bytes are those of its manifest. Raises Unproved."""
    newest = SnapshotRef(manifest.job, manifest.pointer(b""))  # its key needs no digest
    objects.verify_bytes(newest, name, entry, "its manifest")
    key = keys.snapshot(manifest.job, newest.pointer) + name
    return _Stored(objects.store, key, entry.size)


class _Stored:
    """One file of the store, read in bounded pieces."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self.size = size
        self._store = store
        self._key = key
        self._block, self._from = b"", 0

    def read(self, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``. Raises Unproved, StoreSilent."""
        end = min(start + length, self.size)
        if not (self._from <= start and end <= self._from + len(self._block)):
            wanted = min(max(length, _BLOCK_BYTES), self.size - start)
            self._block, self._from = b"".join(self._pieces(start, wanted)), start
        return self._block[start - self._from : end - self._from]

    def digest(self, part: Part) -> str:
        """SHA-256 of one part. Raises Unproved, StoreSilent."""
        digest = hashlib.sha256()
        if part.size <= _BLOCK_BYTES:
            digest.update(self.read(part.start, part.size))
        else:
            for piece in self._pieces(part.start, part.size):
                digest.update(piece)
        return digest.hexdigest()

    def _pieces(self, start: int, size: int) -> Iterator[bytes]:
        end = start + size
        while start < end:
            piece = self._store.read_range(self._key, start, min(end - start, CHUNK_BYTES))
            if isinstance(piece, Missing) or not piece:
                raise Unproved(f"{self._key} ends before its {self.size} bytes")
            start += len(piece)
            yield piece
