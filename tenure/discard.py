"""Deletes the files of snapshots that no job can need any more, and nothing else.

A job needs its pointer and that pointer's parent, and whatever a model record or another job's spec names.
Of all snapshots that lie behind the pointer the files go; manifests stay, so that the line of pointers can
be walked and proved, and so do witnesses, events and logs. A zombie may write its files again at any time,
with the same bytes: who sweeps again finds them again.

One order makes it safe beside workers and operators. First a create-only record says that the files go; then
the pointer is read once more, and only what still lies behind it is deleted. An operator who takes a job back
to an earlier milestone moves the pointer first and looks for such a record afterwards: one of the two sees
the other.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import (
    Discard,
    JobSpec,
    Manifest,
    ModelRecord,
    Pointer,
    load,
)
from tenure_protocol.store.api import Entry, Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_worker.snapshot import MANIFEST, read_manifest

Place = tuple[int, int, int]  # attempt, step, save: what names a snapshot of a job
SWEEPS = 3  # of one job: a zombie may have written again meanwhile; who writes on is left for the next run


@dataclass(frozen=True)
class Behind:
    """One snapshot behind the pointer that still has files."""

    place: Place
    files: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(each.size for each in self.files)


@dataclass
class Swept:
    """What was found behind the pointer of one job, and what became of it."""

    job: str
    milestones: int = 0
    files: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)  # what was left alone, and why


def place_of(pointer: Pointer) -> Place:
    """The name of the snapshot that a pointer names."""
    return pointer.attempt, pointer.step, pointer.save


def behind(
    rows: Iterable[Entry], prefix: str, pointer: Pointer, kept: Collection[Place]
) -> list[Behind]:
    """The snapshots before the pointer that have files besides their manifest; ``kept`` are left out.

    ``rows`` are a listing below ``prefix``. Attempts only grow, and so do the saves of one: what has a smaller
    pair of them than the pointer was written before it, and can never become the pointer by a worker.

    >>> row = Entry("a/00001/milestones/5-1/w.bin", "", 9, 0.0)
    >>> [each.place for each in behind([row], "a/", Pointer(1, 10, 2, 2, ""), [])]
    [(1, 5, 1)]
    >>> behind([row], "a/", Pointer(1, 5, 1, 1, ""), [])
    []
    """
    found: dict[Place, list[Entry]] = {}
    for row in rows:
        attempt, _, rest = row.key.removeprefix(prefix).partition("/")
        folder, _, rest = rest.partition("/")
        name, _, file = rest.partition("/")
        step, _, save = name.partition("-")
        if folder != "milestones" or not file or file == MANIFEST:
            continue
        if not (attempt.isdigit() and step.isdigit() and save.isdigit()):
            continue
        place = int(attempt), int(step), int(save)
        if (place[0], place[2]) < (pointer.attempt, pointer.save) and place not in kept:
            found.setdefault(place, []).append(row)
    return [Behind(place, tuple(files)) for place, files in sorted(found.items())]


def needed(store: Store, jobs: Iterable[str]) -> dict[str, set[Place]]:
    """What model records and the specs of ``jobs`` name, by job.

    Raises Corrupt for a record that cannot be read: what it names is not known. Raises StoreSilent.
    """
    found: dict[str, set[Place]] = {}
    for row in store.list(keys.models()):
        body = store.read(row.key)
        if isinstance(body, Missing):
            continue
        for member in load(ModelRecord, body.body, row.key).members:
            for ref in member.refs():
                found.setdefault(ref.job, set()).add(place_of(ref.pointer))
    for job in jobs:
        body = store.read(keys.job(job))
        spec = None if isinstance(body, Missing) else load(JobSpec, body.body, keys.job(job))
        if spec and spec.model:
            found.setdefault(spec.model.job, set()).add(place_of(spec.model.pointer))
    return found


class Discarder:
    """Sweeps jobs of one store; with an ``archive`` every file is copied there first."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        by: str,
        kept: Mapping[str, Collection[Place]],
        archive: Store | None = None,
        shown_as: str | None = None,  # the archive's address, for people
    ) -> None:
        self._store = store
        self._clock = clock
        self._by = by
        self._kept = kept
        self._archive = archive
        self._shown_as = shown_as

    def look(self, job: str, experiment: str) -> tuple[list[Behind], str]:
        """What could be deleted of a job now, and why nothing can, where something is wrong with it.

        Raises StoreSilent.
        """
        try:
            w = read_witness(self._store, keys.witness(experiment, job)).witness
            if w is None or w.pointer is None:
                return [], ""
            parent = read_manifest(self._store, job, w.pointer).parent
        except Corrupt as error:
            return [], f"{error}; nothing of job {job} is deleted"
        kept = {*self._kept.get(job, ()), *([place_of(parent)] if parent else [])}
        prefix = keys.attempts(job)
        return behind(self._store.list(prefix), prefix, w.pointer, kept), ""

    def sweep(self, job: str, experiment: str) -> Swept:
        """Delete what lies behind a job's pointer, and look again. Raises StoreSilent."""
        done = Swept(job)
        seen: set[Place] = set()
        stuck: set[Place] = set()  # what could not be copied
        for _ in range(SWEEPS):
            found, wrong = self.look(job, experiment)
            if wrong:
                done.notes.append(wrong)
                return done
            wanted = [each for each in found if each.place not in stuck]
            if not wanted:
                return done
            ready = [each for each in wanted if self._announced(job, each, done, stuck)]
            # The pointer may be an earlier one by now: an operator's.
            still, _ = self.look(job, experiment)
            allowed = {each.place for each in still}
            for each in ready:
                if each.place in allowed:
                    self._delete(each, done)
                    seen.add(each.place)
            done.milestones = len(seen)
        return done

    def _announced(self, job: str, each: Behind, done: Swept, stuck: set[Place]) -> bool:
        """Copy the files where there is an archive, and say that they go; whether that is done."""
        attempt, step, save = each.place
        if self._archive is not None and (wrong := self._copied(job, each)):
            done.notes.append(wrong)
            stuck.add(each.place)
            return False
        record = Discard(job, attempt, step, save, self._by, self._clock.wall_s(), self._shown_as)
        # Somebody else's is as good: it says the same.
        create_once(
            self._store, keys.discard(job, attempt, step, save), encode(record), self._clock
        )
        return True

    def _copied(self, job: str, each: Behind) -> str:
        """Why the files of a snapshot are not in the archive, or '' when they are, every byte."""
        assert self._archive is not None
        attempt, step, save = each.place
        prefix = keys.save(job, attempt, step, save)
        body = self._store.read(prefix + MANIFEST)
        try:
            manifest = None if isinstance(body, Missing) else load(Manifest, body.body, prefix)
        except Corrupt as error:
            return f"{error}; its files are neither copied nor deleted"
        with tempfile.TemporaryDirectory(prefix="tenure-gc-") as folder:
            path = Path(folder) / "file"
            for row in each.files:
                if not self._store.get_file(row.key, path):
                    continue  # somebody else has deleted it
                name = row.key.removeprefix(prefix)
                told = manifest.files.get(name) if manifest else None
                if told and _sha256(path) != told.sha256:
                    return f"{row.key} is not the file of its manifest; it is neither copied nor deleted"
                self._archive.put_file(row.key, path)
        if not isinstance(body, Missing):
            create_once(self._archive, prefix + MANIFEST, body.body, self._clock)
        return ""

    def _delete(self, each: Behind, done: Swept) -> None:
        for row in each.files:
            try:
                self._store.delete(row.key)
            except StoreSilent as error:  # the next sweep finds it, or the next run
                done.notes.append(str(error))
                continue
            done.files += 1
            done.bytes += row.size


def _sha256(path: Path) -> str:
    """SHA-256 of a file, in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def total(swept: Sequence[Swept]) -> Swept:
    """All of them together.

    >>> total([Swept("a", 1, 2, 30, ["x"]), Swept("b", 1, 1, 5)])
    Swept(job='', milestones=2, files=3, bytes=35, notes=['x'])
    """
    return Swept(
        "",
        sum(each.milestones for each in swept),
        sum(each.files for each in swept),
        sum(each.bytes for each in swept),
        [note for each in swept for note in each.notes],
    )
