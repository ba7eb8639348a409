"""What does watching jobs cost: LISTs, GETs, seconds and memory of a dispatcher's tick?

    python bench/watch.py

The product's own dispatcher over 100, 1,000 and 10,000 jobs of one experiment, all held, each with
an open bill, on a directory and on SeaweedFS. Between the ticks a tenth of the holders renew, which
changes their ETags and nothing else that a listing shows. Targets for 10,000 jobs on two cores: 13
LISTs, no GET, 5 s and 1 GiB. Memory is that of this whole process, the fleet's side included.

Two shortcuts, both before anything is measured. The dispatcher gets to know the jobs, and the
holders leave the time in which each renewal is read, over a store in memory; then the store that
is measured takes its place, with the same jobs. And that store is filled past the product, by many
plain writes at once. How long the first look of a dispatcher that starts anew takes is measured on
the store itself, at up to 1,000 jobs.
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
from bench.instruments.report import Report, arguments
from bench.instruments.stores import PAGE, CountingStore
from tenure.dispatch.contract import ALL_KINDS, Capacity, Job, Receipt, Settlement, Site
from tenure.dispatch.decide import Wait
from tenure.dispatch.loop import Dispatcher, Rung, Tick
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    Holder,
    Intent,
    JobSpec,
    Launch,
    LaunchReceipt,
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
#: Steps of 12 s, as a large model has them: K = 50 of them. Each job renews every 200 s.
SILENCE_S = 600.0
EXPERIMENT = "fleet"
WRITERS = 16
MIB = 1 << 20
_MOST_ROUNDS = 10

Put = Callable[[Iterable[tuple[str, bytes]]], None]


class NoPlatform:
    """A runner under which everything runs already: nothing may be launched or released."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        raise AssertionError("it is made without a configuration")

    @classmethod
    def of(cls) -> NoPlatform:
        """The one there is."""
        return object.__new__(cls)

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, max(SIZES), 600.0)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        raise AssertionError(f"{jobs[0].job_id} was launched")

    def release(self, receipt: Receipt) -> Settlement:
        raise AssertionError(f"{receipt.name} was released")


class Fleet:
    """Jobs that are all held, in their second milestone, and renew when they are told."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._specs = [
            JobSpec(EXPERIMENT, "train", "training", "m:C", {"width": 64}, seed, 1, "c", "d", 500)
            for seed in range(jobs)
        ]
        self._witnesses = {spec.id: _held(spec.id) for spec in self._specs}
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


def _held(job: str) -> Witness:
    return Witness(
        job, "held", SYSTEM.nonce(), seq=40, launch=Launch(1, "here", 600.0), attempt=1,
        holder=Holder(1, SYSTEM.nonce()), silence_s=SILENCE_S,
        pointer=Pointer(1, 1000, 2, 2, sha256_hex(job.encode())),
    )  # fmt: skip


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


def dispatcher_over(store: Store) -> Dispatcher:
    rung = Rung("local", "here", NoPlatform.of(), NoPlatform.capacity({}))
    return Dispatcher(store, [rung], SYSTEM)


def acquainted(fleet: Fleet, store: CountingStore) -> Dispatcher:
    """A dispatcher to which every job is an old one: a renewal of it costs no GET any more."""
    memory = MemoryStore()
    put = put_memory(memory)
    put(fleet.objects())
    store.inner = memory
    dispatcher = dispatcher_over(store)
    dispatcher.tick()
    for _ in range(_MOST_ROUNDS):
        put(fleet.renew())
        store.calls.clear()
        dispatcher.tick()
        if not store.of("read"):
            break
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


def first_look(fleet: Fleet, store: CountingStore, put: Put) -> tuple[float, int]:
    """Seconds and GETs of a dispatcher that knows nothing yet."""
    put(fleet.objects())
    store.calls.clear()
    began_s = SYSTEM.monotonic_s()
    tick = dispatcher_over(store).look()
    took_s = SYSTEM.monotonic_s() - began_s
    check(tick, fleet.jobs)
    return took_s, len(store.of("read"))


def measure(jobs: int, kinds: Mapping[str, tuple[Store, Put]], report: Report, ticks: int) -> None:
    """One fleet and one dispatcher over each kind of store in turn."""
    fleet = Fleet(jobs)
    counting = CountingStore(next(iter(kinds.values()))[0])
    dispatcher = acquainted(fleet, counting)
    for name, (store, put) in kinds.items():
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


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", help=f"instead of {SIZES}")
    options: argparse.Namespace = parser.parse_args()
    report = Report("watch", options)
    sizes = options.jobs or (QUICK_SIZES if report.quick else SIZES)
    report.note(f"leases of {SILENCE_S:.0f} s; one job in {RENEWING} renews between two ticks")
    with stores.folder() as folder, stores.seaweedfs() as server:
        for jobs in sizes:
            root, prefix = folder / str(jobs), f"fleet-{jobs}"
            kinds: dict[str, tuple[Store, Put]] = {
                "directory": (DirectoryStore(root), put_files(root)),
                "SeaweedFS": (
                    S3Store(server.url(prefix)), put_objects(server.endpoint, prefix),
                ),
            }  # fmt: skip
            measure(jobs, kinds, report, QUICK_TICKS if report.quick else TICKS)
    report.end()


if __name__ == "__main__":
    main()
