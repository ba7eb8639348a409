"""What does watching jobs cost: LISTs, GETs, seconds and memory of a dispatcher's tick?

    python bench/watch.py

The product's own dispatcher over 100, 1,000 and 10,000 jobs of one experiment, all held, each with
an open bill and a milestone whose manifest the dispatcher has read, so that it judges the speed of
all of them at every tick; on a directory and on SeaweedFS. Between the ticks a tenth of the holders
renew, which changes their ETags and nothing else that a listing shows. Targets for 10,000 jobs on
two cores: 13 LISTs, no GET, 5 s and 1 GiB. Memory is that of this whole process, the fleet's side
included. How it grows with the number of jobs is fitted over the sizes.

Then a fifth of the jobs (2,000 of 10,000) changes at once, between two ticks: a third of them is
released, a third finishes, a third moves its pointer. The next tick sees all of it, launches anew,
and closes bills, on a platform that answers at once.

Three shortcuts, all before anything is measured. The dispatcher gets to know the jobs, and the
holders leave the time in which each renewal is read, over a store in memory; then the store that
is measured takes its place, with the same jobs. There it reads all manifests in one look, where the
product reads 32. And the store is filled past the product, by many plain writes at once. How long the
first look of a dispatcher that starts anew takes is measured on the store itself, at up to 1,000 jobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import psutil

from bench.instruments import stores
from bench.instruments.growth import exponent
from bench.instruments.report import Report, arguments
from bench.instruments.stores import PAGE, CountingStore
from tenure.dispatch import observations
from tenure.dispatch.contract import ALL_KINDS, Capacity, Closed, Job, Receipt, Settlement, Site
from tenure.dispatch.decide import Launch as Launching
from tenure.dispatch.decide import ReleaseBill, Wait
from tenure.dispatch.loop import Dispatcher, Rung, Tick
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Event, Finish, Hold, Move, Release, transition
from tenure_protocol.records import (
    FileEntry,
    Holder,
    Intent,
    JobSpec,
    Launch,
    LaunchReceipt,
    Manifest,
    PlanRecord,
    Pointer,
    Witness,
    sha256_hex,
)
from tenure_protocol.store.api import Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.s3 import S3Store
from tests.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY

SIZES, QUICK_SIZES = (100, 1_000, 10_000), (20, 100)
TICKS, QUICK_TICKS = 5, 2
LONGEST_TICK_S, MOST_MIB = 5.0, 1024
FIRST_LOOK_UP_TO = 1_000
RENEWING = 10  # one in ten renews between two ticks
CHANGING = 5  # one in five changes its phase or moves its pointer, once
#: Steps of 12 s, as a large model has them: K = 50 of them. Each job renews every 200 s.
SILENCE_S = 600.0
EXPERIMENT = "fleet"
ENVIRONMENT: dict[str, object] = {
    "card": "cpu",
    "python": "3.11.7",
    "packages": {f"package-{number}": f"{number}.{number}.0" for number in range(100)},
}
WRITERS = 16
MIB = 1 << 20
_MOST_ROUNDS = 10

Put = Callable[[Iterable[tuple[str, bytes]]], None]


class AtOnce:
    """A platform with room for everybody that does what it is told and answers at once."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        raise AssertionError("it is made without a configuration")

    @classmethod
    def of(cls) -> AtOnce:
        """The one there is."""
        return object.__new__(cls)

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, 2 * max(SIZES), 600.0)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        (job,) = jobs
        return Receipt((job.job_id,), "here", job.name, "cpu", 0.0, {"pid": 1})

    def release(self, receipt: Receipt) -> Settlement:
        return Closed("it is gone")


class Fleet:
    """Jobs that are all held, in their second milestone, and renew when they are told."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._specs = [
            JobSpec(EXPERIMENT, "train", "training", "m:C", {"width": 64}, seed, 1, "c", "d", 500)
            for seed in range(jobs)
        ]
        self._manifests = {spec.id: _manifest(spec, 1, None) for spec in self._specs}
        self._witnesses = {
            job: _held(job, manifest.pointer(encode(manifest)))
            for job, manifest in self._manifests.items()
        }
        self._turn = 0

    def objects(self) -> Iterable[tuple[str, bytes]]:
        """Everything the store holds of them."""
        for spec in self._specs:
            job = spec.id
            yield keys.job(job), encode(spec)
            intent = Intent(job, 1, "here", "local", f"t-{job}", "d", "nobody has run it yet", 0.0)
            yield keys.intent(job, 1), encode(intent)
            receipt = LaunchReceipt(job, 1, "here", "local", f"t-{job}", "cpu", 0.0, {"pid": 1})
            yield keys.receipt(job, 1), encode(receipt)
            yield _stored(self._manifests[job])
        yield from self.watched()

    def watched(self) -> Iterable[tuple[str, bytes]]:
        """Only what a steady tick lists."""
        plan = PlanRecord("bench", EXPERIMENT, tuple(self._witnesses), {"rungs": ["local"]})
        yield keys.plan("bench", "0"), encode(plan)
        for job, witness in self._witnesses.items():
            yield keys.unsettled(job, 1), b"{}"
            yield keys.witness(EXPERIMENT, job), witness.encode()

    def renew(self, every: int = 1) -> Iterable[tuple[str, bytes]]:
        """The next of ``every`` parts of the fleet writes its witnesses anew."""
        jobs = list(self._witnesses)[self._turn % every :: every]
        self._turn += 1
        for job in jobs:
            old = self._witnesses[job]
            new = replace(old, seq=old.seq + 1, write_id=SYSTEM.nonce())
            assert new.residue == old.residue
            self._witnesses[job] = new
            yield keys.witness(EXPERIMENT, job), new.encode()

    def change(self) -> tuple[int, Iterable[tuple[str, bytes]]]:
        """One in so many is released, finishes or moves its pointer: how many, and their writes."""
        jobs = list(self._witnesses)[::CHANGING]
        return len(jobs), self._changes(jobs)

    def _changes(self, jobs: Sequence[str]) -> Iterable[tuple[str, bytes]]:
        for number, job in enumerate(jobs):
            old = self._witnesses[job]
            assert old.holder and old.pointer
            event: Event
            if number % 3 == 0:
                event = Release(old.holder, 1, 10, "the machine is reclaimed")
            elif number % 3 == 1:
                event = Finish(old.holder, 1, 0, "finished", {"loss": 0.5})
            else:
                manifest = _manifest(self._specs[number * CHANGING], 2, old.pointer)
                moved = Move(manifest.pointer(encode(manifest)), old.pointer)
                event = Hold(old.holder, 1, SILENCE_S, move=moved)
                yield _stored(manifest)
            new = transition(job, old, event)
            assert isinstance(new, Witness), new
            yield keys.witness(EXPERIMENT, job), new.stamped(SYSTEM.nonce()).encode()


def _held(job: str, pointer: Pointer) -> Witness:
    return Witness(
        job, "held", SYSTEM.nonce(), seq=40, launch=Launch(1, "here", 600.0), attempt=1,
        holder=Holder(1, SYSTEM.nonce()), silence_s=SILENCE_S, pointer=pointer,
    )  # fmt: skip


def _manifest(spec: JobSpec, ordinal: int, parent: Pointer | None) -> Manifest:
    """What a worker writes: two files, and an environment of some hundred packages."""
    steps = 500 * ordinal
    busy_s = steps * (12.0 + 0.2 * (spec.seed % 5))  # their speeds differ by some percent
    files = {name: FileEntry(sha256_hex(name.encode()), 1 << 20) for name in ("model", "optimizer")}
    return Manifest(
        spec.id, 1, steps, ordinal, ordinal, files, ENVIRONMENT, parent,
        median_step_s=12.0, busy_s=busy_s, flops_per_step=1e15, dtype="bf16", steps_total=5000,
    )  # fmt: skip


def _stored(manifest: Manifest) -> tuple[str, bytes]:
    body = encode(manifest)
    return keys.manifest(manifest.job, manifest.pointer(body)), body


# ------------------------------------------------------------------------------- plain writes


def put_memory(store: MemoryStore) -> Put:
    """Writes without conditions into memory."""

    def put(items: Iterable[tuple[str, bytes]]) -> None:
        for key, body in items:
            store.delete(key)
            store.create(key, body)

    return put


def put_files(root: Path) -> Put:
    """Writes without conditions or fsync into the folder of a directory store."""

    def put(items: Iterable[tuple[str, bytes]]) -> None:
        for key, body in items:
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}")
            fresh.write_bytes(body)
            fresh.replace(path)

    return put


def put_objects(endpoint: str, prefix: str) -> Put:
    """Writes without conditions into the bucket, many at once."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY, config=Config(max_pool_connections=WRITERS),
    )  # fmt: skip

    def one(item: tuple[str, bytes]) -> None:
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{item[0]}", Body=item[1])

    def put(items: Iterable[tuple[str, bytes]]) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            for _ in pool.map(one, items):
                pass

    return put


# -------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Steady:
    """Ticks over a fleet in which nothing happens but renewals."""

    seconds: list[float]
    cpu_s: list[float]
    lists: int  # of one tick, the most
    gets: int  # likewise
    other: int  # calls that are neither
    rss_mib: float


@dataclass(frozen=True)
class Changed:
    """One tick that sees many changes, and what it did about them."""

    changes: int
    seen_s: float  # until it first writes: it has looked and decided
    took_s: float
    lists: int
    gets_to_see: int
    gets: int  # these included
    writes: int
    launched: int
    closed: int


def dispatcher_over(store: Store) -> Dispatcher:
    rung = Rung("local", "here", AtOnce.of(), AtOnce.capacity({}))
    return Dispatcher(store, [rung], SYSTEM)


def acquainted(fleet: Fleet, store: CountingStore) -> Dispatcher:
    """A dispatcher to which every job is an old one: a renewal of it costs no GET any more."""
    memory = MemoryStore()
    put = put_memory(memory)
    put(fleet.objects())
    store.inner = memory
    dispatcher = dispatcher_over(store)
    product, observations._READS = observations._READS, fleet.jobs
    try:
        dispatcher.tick()
        for _ in range(_MOST_ROUNDS):
            put(fleet.renew())
            store.calls.clear()
            dispatcher.tick()
            if not store.of("read"):
                break
    finally:
        observations._READS = product
    return dispatcher


def check(tick: Tick, jobs: int) -> None:
    """Whether the dispatcher saw what it was shown: every job held and left alone."""
    assert not tick.troubles, tick.troubles
    assert len(tick.decisions) == jobs, f"{len(tick.decisions)} decisions for {jobs} jobs"
    for action, reason in tick.decisions:
        assert isinstance(action, Wait) and "renewed" in reason, (action, reason)


def steady(
    dispatcher: Dispatcher, fleet: Fleet, store: CountingStore, put: Put, ticks: int
) -> Steady:
    """Renew a part, tick, and again."""
    put(fleet.watched())
    check(dispatcher.tick(), fleet.jobs)  # the first over this store: every ETag is new
    seconds, cpu_s, lists, gets, other = [], [], [], [], []
    for _ in range(ticks):
        put(fleet.renew(RENEWING))
        store.calls.clear()
        cpu_before_s, began_s = time.process_time(), SYSTEM.monotonic_s()
        tick = dispatcher.tick()
        seconds.append(SYSTEM.monotonic_s() - began_s)
        cpu_s.append(time.process_time() - cpu_before_s)
        check(tick, fleet.jobs)
        lists.append(store.lists())
        gets.append(len(store.of("read")))
        other.append(len(store.calls) - len(store.of("list")) - len(store.of("read")))
    rss_mib = psutil.Process(os.getpid()).memory_info().rss / MIB
    return Steady(seconds, cpu_s, max(lists), max(gets), max(other), rss_mib)


def changed(dispatcher: Dispatcher, fleet: Fleet, store: CountingStore, put: Put) -> Changed:
    """Many jobs change between two ticks."""
    count, writes = fleet.change()
    put(writes)
    store.calls.clear()
    began_s = SYSTEM.monotonic_s()
    tick = dispatcher.tick()
    took_s = SYSTEM.monotonic_s() - began_s
    assert not tick.troubles and not tick.unmade, (tick.troubles, tick.unmade)
    launched = sum(isinstance(action, Launching) for action, _ in tick.decisions)
    closed = sum(isinstance(action, ReleaseBill) for action, _ in tick.decisions)
    assert launched == -(-count // 3) and closed == launched + (count + 1) // 3, "it missed some"
    first_s = min(call.began_s for call in store.of("write"))
    reads = store.of("read")
    return Changed(
        count, first_s - began_s, took_s, store.lists(),
        sum(call.ended_s <= first_s for call in reads), len(reads),
        len(store.of("write")) + len(store.of("delete")), launched, closed,
    )  # fmt: skip


def first_look(fleet: Fleet, store: CountingStore, put: Put) -> tuple[float, int]:
    """Seconds and GETs of a dispatcher that knows nothing yet."""
    put(fleet.objects())
    store.calls.clear()
    began_s = SYSTEM.monotonic_s()
    tick = dispatcher_over(store).look()
    took_s = SYSTEM.monotonic_s() - began_s
    check(tick, fleet.jobs)
    return took_s, len(store.of("read"))


def measure(
    jobs: int, name: str, store: Store, put: Put, report: Report, ticks: int
) -> tuple[Steady, Changed]:
    """One fleet and one dispatcher over one store."""
    fleet, counting = Fleet(jobs), CountingStore(store)
    dispatcher = acquainted(fleet, counting)
    counting.inner = store
    got = steady(dispatcher, fleet, counting, put, ticks)
    limits = f", {LONGEST_TICK_S:g} s, {MOST_MIB} MiB" if jobs == max(SIZES) else ""
    report.line(
        f"{name}, {jobs:,} jobs, a steady tick",
        f"{got.lists} LISTs, {got.gets} GETs, {got.other} other calls; "
        f"{statistics.median(got.seconds):.3f} s (median of {ticks}, "
        f"the longest {max(got.seconds):.3f} s), "
        f"{statistics.median(got.cpu_s):.3f} s of this process's time, {got.rss_mib:.0f} MiB",
        f"at most {-(-jobs // PAGE) + 3} LISTs, 0 GETs{limits}",
        lists=got.lists, gets=got.gets, other_calls=got.other,
        tick_s=statistics.median(got.seconds), longest_tick_s=max(got.seconds),
        cpu_s=statistics.median(got.cpu_s), rss_mib=got.rss_mib, ticks=ticks,
    )  # fmt: skip
    if jobs <= FIRST_LOOK_UP_TO:
        took_s, gets = first_look(fleet, CountingStore(store), put)
        report.line(
            f"{name}, {jobs:,} jobs, first look of a dispatcher that starts anew",
            f"{gets} GETs, {took_s:.2f} s",
            first_look_s=took_s, gets=gets,
        )  # fmt: skip
    saw = changed(dispatcher, fleet, counting, put)
    report.line(
        f"{name}, {jobs:,} jobs, a tick with {saw.changes:,} changes",
        f"seen and decided in {saw.seen_s:.2f} s ({saw.lists} LISTs, {saw.gets_to_see} GETs); with "
        f"{saw.launched} launches and {saw.closed} bills closed {saw.took_s:.2f} s "
        f"({saw.gets} GETs, {saw.writes} writes)",
        "one GET to see a change",
        changes=saw.changes, seen_s=saw.seen_s, tick_s=saw.took_s, lists=saw.lists,
        gets_to_see=saw.gets_to_see, gets=saw.gets, writes=saw.writes,
        launches=saw.launched, closed=saw.closed,
    )  # fmt: skip
    return got, saw


def compare(name: str, found: Mapping[int, tuple[Steady, Changed]], report: Report) -> None:
    """How a tick grows with the number of jobs."""
    sizes = list(found)
    cpu = exponent(sizes, [statistics.median(got.cpu_s) for got, _ in found.values()])
    wall = exponent(sizes, [statistics.median(got.seconds) for got, _ in found.values()])
    seen = exponent(sizes, [saw.seen_s for _, saw in found.values()])
    report.line(
        f"{name}, from {min(sizes):,} to {max(sizes):,} jobs, growth",
        f"a steady tick with the number of jobs to the power of {wall:.2f}, this process's time in it "
        f"{cpu:.2f}; seeing that one job in {CHANGING} has changed {seen:.2f}",
        "at most 1, which is linear",
        tick_exponent=wall, cpu_exponent=cpu, seen_exponent=seen,
    )  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", help=f"instead of {SIZES}")
    options: argparse.Namespace = parser.parse_args()
    report = Report("watch", options)
    sizes = options.jobs or (QUICK_SIZES if report.quick else SIZES)
    ticks = QUICK_TICKS if report.quick else TICKS
    report.note(f"leases of {SILENCE_S:.0f} s; one job in {RENEWING} renews between two ticks")
    found: dict[str, dict[int, tuple[Steady, Changed]]] = {"directory": {}, "SeaweedFS": {}}
    with stores.folder() as folder, stores.seaweedfs() as server:
        for jobs in sizes:
            root, prefix = folder / str(jobs), f"fleet-{jobs}"
            kinds: dict[str, tuple[Store, Put]] = {
                "directory": (DirectoryStore(root), put_files(root)),
                "SeaweedFS": (
                    S3Store(server.url(prefix)), put_objects(server.endpoint, prefix),
                ),
            }  # fmt: skip
            for name, (store, put) in kinds.items():
                found[name][jobs] = measure(jobs, name, store, put, report, ticks)
    if len(sizes) > 1:
        for name, by_size in found.items():
            compare(name, by_size, report)
    report.end()


if __name__ == "__main__":
    main()
