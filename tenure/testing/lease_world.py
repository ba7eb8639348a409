"""What the checks of the lease play on: one job on one store, paths that lose, time that is skipped.

Nobody here takes silence for an answer, so that a store which loses answers by itself is no trouble.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from tenure_protocol.clock import SYSTEM, Mailbox, Task
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import client, keys, machine
from tenure_protocol.lease.client import Confirmed, Deposed, Lease, Silent
from tenure_protocol.lease.machine import (
    Event,
    Finish,
    Hold,
    Move,
    Occupied,
    Release,
    Reserve,
    Vacant,
)
from tenure_protocol.lease.watch import Watch
from tenure_protocol.records import Announced, JobSpec, Pointer, Witness
from tenure_protocol.store import api
from tenure_protocol.store.api import Store, StoreSilent
from tenure_worker import exits, snapshot
from tenure_worker.claim import claim
from tenure_worker.exits import Stopped
from tenure_worker.tenure import Tenure

T = TypeVar("T")

Make = Callable[[], Store]
Check = Callable[[Make], None]
Got = Lease | client.Elsewhere | client.Superseded | Silent
Mine = Hold | Release | Finish

RACERS = 16
ROUNDS = 4  # conditional writes that one call of the product may send
WINDOW_S = 60.0
LEASE_S = 30.0
PATIENCE_S = 60.0
LONG_S = 300 * LEASE_S  # until a watch without a gap has come about, even over a bad path
_ENDLESS_S = 86_400.0  # no check skips so much
_TRIES = 60  # how often one thing is asked of a store that stays silent
_PAUSE_S = 0.02
_SNAPSHOT_FILE = "state"

#: What may become of one conditional write on the way: never sent; applied, and the answer lost;
#: applied, and answered as refused (a retry inside an SDK); refused though its condition held (a
#: 409); held back until the check lets it land; overtaken: it lands just before the next write.
FAULTS = ("lost_request", "lost_answer", "ghost", "conflict", "late", "overtaken")


def nothing() -> None:
    """What others do by default while somebody sleeps."""


class SkippedTime:
    """The real clock, but for a sleep: time is set forward, and others act, as if it had passed."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = nothing
        self._skipped_s = 0.0
        self._new_at_s: dict[str, float] = {}  # ETag: how much was skipped when it was first seen

    def monotonic_s(self) -> float:
        return SYSTEM.monotonic_s() + self._skipped_s

    def wall_s(self) -> float:
        return SYSTEM.wall_s() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        self._skipped_s += seconds
        assert self._skipped_s < _ENDLESS_S, "a client waits without end"
        self.meanwhile()

    def nonce(self) -> str:
        return SYSTEM.nonce()

    def mailbox(self, size: int) -> Mailbox[T]:
        return SYSTEM.mailbox(size)

    def spawn(self, target: Callable[[], None], name: str) -> Task:
        return SYSTEM.spawn(target, name)

    def aged_s(self, etag: str) -> float:
        """How much was skipped since this ETag was first seen."""
        return self._skipped_s - self._new_at_s.setdefault(etag, self._skipped_s)


class FaultyPath:
    """One client's way to the store: a Store that loses and holds back what it is told to."""

    def __init__(self, store: Store, time: SkippedTime) -> None:
        self.url, self.deadline_s = store.url, store.deadline_s
        self.get_file, self.read_range = store.get_file, store.read_range
        self.presign, self.delete = store.presign, store.delete
        self.cut = False  # nothing passes, and the sender knows at once that it has no answer
        self.mute_reads = 0  # so many reads have no answer
        self.faults: deque[str] = deque()  # of the next conditional writes; then none
        self.uploads = 0  # begun so far
        self.lost_uploads = 0  # so many uploads have no answer and never arrive
        self.unanswered = 0  # calls to which the store itself gave no answer
        self._store = store
        self._time = time
        self._uploading = threading.Event()
        self._uploading.set()
        self._late: list[Callable[[], api.Outcome]] = []
        self._overtaken: list[Callable[[], api.Outcome]] = []

    def land(self) -> None:
        """What was held back arrives now."""
        late, self._late = self._late, []
        for send in late:
            send()

    @contextmanager
    def held_uploads(self) -> Iterator[None]:
        """Within the block no upload arrives: it is under way until the end."""
        self._uploading.clear()
        try:
            yield
        finally:
            self._uploading.set()

    def read(self, key: str) -> api.Found | api.Missing:
        if self.cut or self.mute_reads:
            self.mute_reads = max(self.mute_reads - 1, 0)
            raise StoreSilent(f"{key} was not answered")
        try:
            found = self._store.read(key)
        except StoreSilent:
            self.unanswered += 1
            raise
        if isinstance(found, api.Missing):
            return found
        return replace(found, age_s=found.age_s + self._time.aged_s(found.etag))

    def list(self, prefix: str) -> Iterator[api.Entry]:
        if self.cut:
            raise StoreSilent(f"{prefix}* was not answered")
        for row in self._store.list(prefix):
            yield row._replace(age_s=row.age_s + self._time.aged_s(row.etag))

    def create(self, key: str, body: bytes) -> api.Outcome:
        return self._write(partial(self._store.create, key, body))

    def replace(self, key: str, body: bytes, etag: str) -> api.Outcome:
        return self._write(partial(self._store.replace, key, body, etag))

    def put_file(
        self, key: str, path: Path, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.uploads += 1
        self._uploading.wait()
        if self.cut or self.lost_uploads:
            self.lost_uploads = max(self.lost_uploads - 1, 0)
            raise StoreSilent(f"{key} was not answered")
        self._store.put_file(key, path, progress)

    def _write(self, send: Callable[[], api.Outcome]) -> api.Outcome:
        if self.cut:
            return api.Unknown("the path is cut")
        fault = self.faults.popleft() if self.faults else ""
        overtaken, self._overtaken = self._overtaken, []
        for earlier in overtaken:
            earlier()
        if fault in ("late", "overtaken"):
            (self._late if fault == "late" else self._overtaken).append(send)
        elif fault in ("lost_answer", "ghost"):
            send()
        elif not fault:
            return self._noted(send())
        return api.Lost() if fault in ("ghost", "conflict") else api.Unknown(fault)

    def _noted(self, outcome: api.Outcome) -> api.Outcome:
        if isinstance(outcome, api.Written):
            self._time.aged_s(outcome.etag)
        self.unanswered += isinstance(outcome, api.Unknown)
        return outcome


class Together(FaultyPath):
    """A path of many clients of which none goes on before all have read the same."""

    def __init__(self, store: Store, time: SkippedTime) -> None:
        super().__init__(store, time)
        self._all_have_read = threading.Barrier(RACERS, timeout=60.0)
        self._readers: set[int] = set()

    def read(self, key: str) -> api.Found | api.Missing:
        found = super().read(key)
        me = threading.get_ident()
        if me not in self._readers:
            self._readers.add(me)
            self._all_have_read.wait()
        return found


class World:
    """One job on one store, what others do to it, and what its clients get."""

    def __init__(self, store: Store, number: int = 0, longest_s: float = 2.4) -> None:
        self.spec = JobSpec(
            experiment="lease-checks",
            kind="train",
            stage="training",
            entry_point="nowhere:Nothing",
            config={"number": number},
            seed=1,
            generation=1,
            code="code",
            data="data",
            milestone_every=1000,
            patience_s=PATIENCE_S,
            max_silence_s=longest_s,
        )
        self.job = self.spec.id
        self.key = keys.witness_of(self.spec)
        self.time = SkippedTime()
        self.inner = store
        self.store = self.path()

    def path(self) -> FaultyPath:
        """A further client's own way to the store."""
        return FaultyPath(self.inner, self.time)

    # ----------------------------------------------------------------------- what is stored

    def read(self) -> client.Stored:
        """The witness now."""
        return patiently(lambda: client.read_witness(self.store, self.key))

    @property
    def witness(self) -> Witness:
        """The witness now, which exists."""
        found = self.read().witness
        assert found, "the witness is missing"
        return found

    def row(self) -> api.Entry:
        """The one row of a listing of all witnesses that is this job's."""
        prefix = keys.experiment_witnesses(self.spec.experiment)
        rows = patiently(lambda: list(self.store.list(prefix)))
        (row,) = (row for row in rows if row.key == self.key)
        return row

    def fetch(self, pointer: Pointer) -> tuple[Pointer | None, bytes]:
        """The parent that a snapshot's manifest names, and the content of its file, verified."""
        with tempfile.TemporaryDirectory(prefix="tenure-check-") as folder:
            try:
                manifest = patiently(
                    lambda: snapshot.fetch(self.store, self.job, pointer, Path(folder))
                )
            except Corrupt as error:
                raise AssertionError(str(error)) from error
            return manifest.parent, (Path(folder) / _SNAPSHOT_FILE).read_bytes()

    # ------------------------------------------------------------------------- other people

    def outcome(
        self, event: Event, decided_from: client.Stored | None = None
    ) -> client.Applied | client.Changed | client.Refused:
        """What one change comes to that is not to be applied, from what is stored or was read."""
        for _ in range(_TRIES):
            told = self._change(event, decided_from or self.read(), self.store)
            if not isinstance(told, client.Unsettled):
                return told
        raise AssertionError(f"{event} is not settled in {_TRIES} tries")

    def event(self, event: Event, path: FaultyPath | None = None) -> Witness:
        """Somebody else's change of what is stored; nobody else writes meanwhile."""
        before = self.read()
        outcome = self._change(event, before, path or self.store)
        unsettled = False
        for _ in range(_TRIES):
            if isinstance(outcome, client.Applied):
                return outcome.witness
            assert isinstance(outcome, client.Unsettled) or unsettled, f"{event} is {outcome}"
            unsettled = True
            now = self.read()
            if now.etag != before.etag:  # a try without an answer has landed
                assert now.witness
                return now.witness
            outcome = self._change(event, before, path or self.store)
        raise AssertionError(f"{event} is not settled in {_TRIES} tries")

    def _change(
        self, event: Event, decided_from: client.Stored, path: FaultyPath
    ) -> client.Applied | client.Changed | client.Refused | client.Unsettled:
        return client.change(path, self.key, self.job, decided_from, event, self.time)

    # -------------------------------------------------------------------------- its clients

    def claim(self, launch: int = 1, path: FaultyPath | None = None) -> Got:
        """What a worker of this launch gets."""
        way = path or self.store
        return client.acquire(way, self.key, self.job, launch, 3600.0, PATIENCE_S, self.time)

    def claimed(self, launch: int = 1, path: FaultyPath | None = None) -> Lease:
        """The lease of a worker of this launch."""
        got = self.claim(launch, path)
        assert isinstance(got, Lease), f"the claim of launch {launch} is {got}"
        return got

    def held(self, path: FaultyPath | None = None) -> Lease:
        """Launch 1, announced and claimed over ``path``, with a lease of ``LEASE_S``."""
        self.event(reserve())
        lease = self.claimed(path=path)
        confirm(lease, renewal(lease))
        return lease

    def worker(
        self, launch: int, work: Callable[[Tenure], object], path: FaultyPath | None = None
    ) -> int:
        """The exit code of a worker of this launch that does ``work`` while it holds the job."""
        try:
            with claim(self.spec, path or self.store, launch, measured={}) as tenure:
                work(tenure)
        except Stopped as stopped:
            return stopped.exit_code
        return exits.FINISHED


class Watcher:
    """A dispatcher that watches by listings and judges by what it then reads."""

    def __init__(self, world: World) -> None:
        self.path = world.path()
        self._world = world
        self._watch = Watch(world.time)
        self._lease_s = LEASE_S  # in force when it last looked

    def look(self) -> Vacant | Occupied:
        """List once, and judge the holder."""
        w = self._world
        try:
            self._watch.saw(list(self.path.list(keys.experiment_witnesses(w.spec.experiment))))
        except StoreSilent as error:
            self._watch.broke()
            return Occupied(str(error))
        now = w.read()
        assert now.witness
        self._lease_s = now.witness.silence_allowed_s or LEASE_S
        watched = self._watch.of(w.key, now.etag, self._lease_s)
        return machine.vacancy(now.witness, now.age_s, watched)

    def watch(self, seconds: float) -> Vacant | Occupied:
        """Look now and every sixth of the lease, for so long or until the holder is vacant."""
        told, watched_s = self.look(), 0.0
        while isinstance(told, Occupied) and watched_s + self._lease_s / 6 <= seconds:
            watched_s += self._lease_s / 6
            self._world.time.sleep(self._lease_s / 6)
            told = self.look()
        return told


# ------------------------------------------------------------------------------ asking again


def patiently(ask: Callable[[], T]) -> T:
    """The answer of a store that may be silent now and then."""
    reason = ""
    for _ in range(_TRIES):
        try:
            return ask()
        except StoreSilent as error:
            reason = str(error)
            SYSTEM.sleep(_PAUSE_S)
    raise AssertionError(f"no answer in {_TRIES} tries: {reason}")


def answer(lease: Lease, mine: Mine) -> Confirmed | Deposed:
    """What a write of a holder comes to: it is authorised again while the store is silent."""

    def ask() -> Confirmed | Deposed:
        told = lease.write(mine)
        if isinstance(told, Silent):
            raise StoreSilent(told.reason)
        return told

    return patiently(ask)


def seen(lease: Lease) -> Witness | Deposed:
    """What a holder reads."""

    def look() -> Witness | Deposed:
        found = lease.read()
        if isinstance(found, Silent):
            raise StoreSilent(found.reason)
        return found

    return patiently(look)


def confirm(lease: Lease, mine: Mine) -> None:
    """A write of a holder that nobody deposed."""
    told = answer(lease, mine)
    assert isinstance(told, Confirmed), f"{mine} is {told}"


def until(ready: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
    """Wait for what other threads bring about."""
    for _ in range(_TRIES * 50):
        if ready():
            return
        meanwhile()
        SYSTEM.sleep(_PAUSE_S)
    raise AssertionError("it did not come about")


def at_once(work: Callable[[int], T]) -> dict[int, T]:
    """What each of sixteen threads got that began together; raises what one of them raised."""
    start = threading.Barrier(RACERS, timeout=60.0)
    got: dict[int, T] = {}
    raised: list[BaseException] = []

    def race(number: int) -> None:
        try:
            start.wait()
            got[number] = work(number)
        except BaseException as error:
            raised.append(error)

    racers = [SYSTEM.spawn(partial(race, n), f"racer-{n}") for n in range(RACERS)]
    for racer in racers:
        racer.join()
    if raised:
        raise raised[0]
    return got


# ------------------------------------------------------------------------------------ events


def reserve(
    evidence: Literal["none", "vacant", "failed"] = "none",
    by: str = "dispatcher",
    window_s: float = WINDOW_S,
) -> Reserve:
    """A further launch, announced with this evidence against an open one."""
    return Reserve("here", window_s, by, evidence)


def renewal(lease: Lease, move: Move | None = None, announced_s: float = 0.0) -> Hold:
    """A lease of ``LEASE_S`` from now, with a move, or under an announcement."""
    announced = Announced("evaluating", announced_s) if announced_s else None
    return Hold(lease.holder, lease.attempt, LEASE_S, announced, move)


def release(lease: Lease) -> Release:
    """The holder gives the tenure back."""
    return Release(lease.holder, lease.attempt, exits.RELEASED, "the machine is needed elsewhere")


def finish(lease: Lease) -> Finish:
    """The holder ends the job."""
    return Finish(lease.holder, lease.attempt, exits.FINISHED, "finished", {"loss": 0.5})


def next_move(lease: Lease, save: int = 1) -> Move:
    """A move from the pointer that the holder knows; nothing is stored where it points."""
    parent = lease.witness.pointer
    ordinal = parent.ordinal + 1 if parent else 1
    return Move(Pointer(lease.attempt, 10 * ordinal, save, ordinal, f"{ordinal:064x}"), parent)


def save(content: bytes) -> Callable[[Path], object]:
    """What a milestone calls to write a snapshot of one file."""
    return lambda folder: (folder / _SNAPSHOT_FILE).write_bytes(content)


def load(folder: Path) -> bytes:
    """What a resume calls to read it."""
    return (folder / _SNAPSHOT_FILE).read_bytes()
