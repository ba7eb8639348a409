"""The dispatcher over real stores, with a runner that only keeps a list: nothing runs here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tenure.dispatch import decide, faults
from tenure.dispatch.contract import (
    ALL_KINDS,
    AlreadyFinal,
    Capacity,
    Closed,
    Finished,
    Job,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Rejected,
    Revoked,
    Running,
    Settlement,
    Site,
    Unknown,
    Unreachable,
    Vacant,
)
from tenure.dispatch.decide import Launch
from tenure.dispatch.execution import Execution
from tenure.dispatch.loop import WATCH_EVERY_S, Dispatcher, Rung, _Reserved
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import (
    Applied,
    Confirmed,
    Lease,
    acquire,
    change,
    read_witness,
)
from tenure_protocol.lease.machine import (
    Cancel,
    Finish,
    Hold,
    Move,
    Release,
    Reserve,
    Resume,
    Revoke,
    Rewind,
)
from tenure_protocol.records import (
    Announced,
    Holder,
    Intent,
    JobSpec,
    Pointer,
    Refusal,
    SettlementRecord,
    load,
)
from tenure_protocol.store.api import Found, Outcome, Store, StoreSilent, Written
from tenure_protocol.store.api import Unknown as NoAnswer
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_worker import exits
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore


class ListingRunner:
    """A stand-in for a platform: it remembers what was launched and answers as it was told."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(
        self, name: str = "here", config: Mapping[str, object] = {}, site: Site | None = None
    ):
        self.launched: list[Job] = []
        self.released: list[Receipt] = []
        self.failures: list[Exception] = []
        self.settlements: list[Settlement] = []

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, 2, 60.0)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        if self.failures:
            raise self.failures.pop(0)
        self.launched += jobs
        return Receipt((jobs[0].job_id,), "here", jobs[0].name, "cpu", 0.0, {"pid": 1})

    def release(self, receipt: Receipt) -> Settlement:
        self.released.append(receipt)
        return self.settlements.pop(0) if self.settlements else Closed("gone")


class Bench:
    """A store, a runner, a dispatcher and some jobs."""

    def __init__(self, count: int = 1, store: Store | None = None, clock: Clock = SYSTEM) -> None:
        self.clock = clock
        self.store = store or MemoryStore()
        self.runner = ListingRunner()
        self.dispatcher = self.another()
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {}, seed, 1, "c", "d", 10)
            for seed in range(count)
        ]
        terms: dict[str, object] = {"rungs": ["local"], "priority": 0}
        self.jobs = enlist(self.store, "p", "e", self.specs, terms, SYSTEM)

    def another(self) -> Dispatcher:
        rung = Rung("local", "here", self.runner, ListingRunner.capacity({}))
        return Dispatcher(self.store, [rung], self.clock)

    def claim(self, number: int = 0, launch: int = 1) -> Lease:
        spec = self.specs[number]
        lease = acquire(self.store, keys.witness_of(spec), spec.id, launch, 100.0, 1.0, self.clock)
        assert isinstance(lease, Lease)
        return lease


def test_launch_writes_reservation_bill_intent_and_receipt() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    (job,) = bench.jobs
    witness = read_witness(bench.store, keys.witness("e", job)).witness
    assert witness and witness.phase == "expected" and witness.launched == 1
    found = bench.store.read(keys.intent(job, 1))
    assert isinstance(found, Found)
    intent = load(Intent, found.body, "intent")
    assert intent.reason.startswith("nobody has run it yet")
    assert [made.name for made in bench.runner.launched] == [intent.name]
    assert isinstance(bench.store.read(keys.receipt(job, 1)), Found)
    assert isinstance(bench.store.read(keys.unsettled(job, 1)), Found)


def test_a_finished_job_is_settled_and_its_bill_forgotten() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    lease = bench.claim()
    lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {"x": 1}))
    bench.runner.settlements = [Pending("ending"), Closed("gone")]
    done = bench.dispatcher.follow(bench.jobs, every_s=0.01, for_s=5.0)
    assert done[bench.jobs[0]].result == {"x": 1}
    assert bench.dispatcher.drain(5.0, 0.05)
    assert list(bench.store.list(keys.UNSETTLED)) == []
    found = bench.store.read(keys.settlement(bench.jobs[0], 1, 2))
    assert isinstance(found, Found)
    assert load(SettlementRecord, found.body, "s").outcome == "closed"


def test_draining_closes_bills_and_launches_nothing() -> None:
    bench = Bench(3)
    bench.dispatcher.tick()
    lease = bench.claim()
    lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
    assert not bench.dispatcher.drain(0.1, 0.02), "the second job still runs"
    assert len(bench.runner.launched) == 2
    assert bench.dispatcher.drain(0.1, 0.02, experiment="another")


def test_two_dispatchers_launch_once() -> None:
    bench = Bench(2)
    other = bench.another()
    for _ in range(5):
        bench.dispatcher.tick()
        other.tick()
    assert sorted(job.job_id for job in bench.runner.launched) == sorted(bench.jobs)


def test_a_restarted_dispatcher_finds_open_bills_and_jobs() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    lease = bench.claim()
    lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
    fresh = bench.another()
    assert fresh.drain(5.0, 0.01)
    assert [receipt.handle for receipt in bench.runner.released] == [{"pid": 1}]


def test_a_crash_between_launch_and_receipt_is_found_by_name() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    bench.store.delete(keys.receipt(bench.jobs[0], 1))
    lease = bench.claim()
    lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
    assert bench.another().drain(5.0, 0.01)
    (receipt,) = bench.runner.released
    assert receipt.handle == {} and receipt.name == bench.runner.launched[0].name


@pytest.mark.parametrize("failure", [NoSlots("none"), Unreachable("down")])
def test_what_is_no_failure_of_the_job_never_ends_it(failure: Exception) -> None:
    with FakeClock() as clock:
        bench = Bench(1, MemoryStore(clock), clock)
        bench.runner.failures = [failure] * 40
        for _ in range(1000):
            if bench.runner.launched:
                break
            bench.dispatcher.tick()
            clock.sleep(60.0)
        assert [job.job_id for job in bench.runner.launched] == bench.jobs


@pytest.mark.parametrize(
    ("lived_s", "ended"), [(60.0, True), (6 * 3600.0, False)], ids=["a minute", "six hours"]
)
def test_a_loss_after_long_work_is_free_and_an_early_one_is_not(
    lived_s: float, ended: bool
) -> None:
    with FakeClock() as clock:
        bench = Bench(1, MemoryStore(clock), clock)
        for launch in range(1, 9):
            for _ in range(100):
                if bench.runner.launched and bench.runner.launched[-1].launch == launch:
                    break
                bench.dispatcher.tick()
                clock.sleep(1.0)
            else:
                break
            lease = bench.claim(launch=launch)
            for _ in range(int(lived_s / 30)):
                lease.write(Hold(lease.holder, lease.attempt, 100.0))
                bench.dispatcher.tick()
                clock.sleep(30.0)
            lease.write(Release(lease.holder, lease.attempt, 10, "reclaimed"))
        state = Execution(bench.store, {}, clock, "t").status(bench.jobs[0])
        assert isinstance(state, Finished) is ended, state


def test_an_operators_revocations_cost_no_budget() -> None:
    bench = Bench()
    for _ in range(10):
        bench.dispatcher.tick()
        bench.claim(launch=bench.runner.launched[-1].launch)
        assert Execution(bench.store, {}, SYSTEM, "ann").revoke(bench.jobs[0], "x") == Revoked()
    bench.dispatcher.tick()
    assert len(bench.runner.launched) == 11


def test_a_person_who_sends_a_job_back_to_its_start_begins_the_count_anew() -> None:
    """A snapshot that nobody could read is gone from the line: the next worker is the first."""
    bench = Bench()
    bench.dispatcher.tick()
    first = bench.claim()
    move = Move(Pointer(1, 10, 1, 1, "0" * 64), None)
    first.write(Hold(first.holder, first.attempt, 100.0, move=move))
    first.write(Release(first.holder, first.attempt, exits.PROTOCOL, "its snapshot is corrupt"))
    bench.dispatcher.tick()
    memory = bench.dispatcher.world.jobs[bench.jobs[0]]
    assert memory.unreadable == 1
    for event in (Revoke("ann", "poisoned", held_back=True), Rewind("ann", None), Resume("ann")):
        stored = read_witness(bench.store, keys.witness("e", memory.job))
        done = change(bench.store, keys.witness("e", memory.job), memory.job, stored, event, SYSTEM)
        assert isinstance(done, Applied)
    bench.dispatcher.tick()
    assert (memory.unreadable, memory.strikes) == (0, 0)
    assert bench.runner.launched[-1].launch == 3


def test_a_decision_holds_for_the_body_it_was_made_from_alone() -> None:
    """The background watch reads a newer body between the decision and its act."""
    bench = Bench()
    bench.dispatcher.tick()
    memory = bench.dispatcher.world.jobs[bench.jobs[0]]
    bench.dispatcher.world.observe()
    bench.dispatcher.snapshot()
    lease = bench.claim()
    bench.dispatcher.world.watch()
    assert memory.witness and memory.witness.phase == "held"
    bench.dispatcher._launch([(Launch(bench.jobs[0], "local", "vacant"), "from expected")])
    bench.dispatcher._write(bench.jobs[0], Cancel("d", "decided from expected"))
    assert isinstance(lease.write(Hold(lease.holder, 1, 100.0)), Confirmed)


def test_a_frozen_dispatcher_leaves_no_launch_without_a_bill() -> None:
    """Between its reservation and its intent another one passes it over and closes the bill."""
    bench = Bench()
    frozen, other = bench.dispatcher, bench.another()
    frozen.world.observe()
    frozen.snapshot()
    job = bench.jobs[0]
    spec = bench.specs[0]
    key = keys.witness_of(spec)
    stored = read_witness(bench.store, key)
    change(bench.store, key, job, stored, Reserve("here", 0.0, frozen.name), SYSTEM)
    bench.store.create(keys.unsettled(job, 1), b"{}")
    SYSTEM.sleep(0.01)
    for _ in range(3):
        other.tick()
    memory = frozen.world.jobs[job]
    frozen._make([_Reserved(memory, spec, 1, "woken")], frozen.rungs["local"])
    assert [made.launch for made in bench.runner.launched] == [2], "its intent's key is taken"


def test_a_bill_that_was_closed_before_a_late_launch_is_open_again() -> None:
    bench = Bench()
    made = bench.runner.launch

    def late(jobs: Sequence[Job]) -> Receipt:
        bench.store.delete(keys.unsettled(jobs[0].job_id, 1))  # another dispatcher found nothing
        return made(jobs)

    bench.runner.launch = late  # type: ignore[method-assign]
    bench.dispatcher.tick()
    assert isinstance(bench.store.read(keys.unsettled(bench.jobs[0], 1)), Found)


def test_a_bug_of_a_plug_in_does_not_end_the_dispatcher() -> None:
    bench = Bench(2)
    bench.runner.failures = [KeyError("data")]
    tick = bench.dispatcher.tick()
    assert "just been parked" in tick.reason(bench.jobs[1])
    bench.dispatcher._parked["local"].until_s = 0.0
    tick = bench.dispatcher.tick()
    assert [job.job_id for job in bench.runner.launched] == [bench.jobs[1]]
    assert "may claim" in tick.reason(bench.jobs[0]), "what it did is not known"


@pytest.mark.parametrize("failure", [NoSlots("full"), Unreachable("down"), Unreachable("?", True)])
def test_a_platform_that_gives_no_machine_is_asked_once_in_a_round(failure: Exception) -> None:
    """Ten jobs on one that hangs for a minute a call must not hold the others up for ten."""
    bench = Bench(2)
    asked: list[str] = []

    def launch(jobs: Sequence[Job]) -> Receipt:
        asked.append(jobs[0].job_id)
        raise failure

    bench.runner.launch = launch  # type: ignore[method-assign]
    bench.dispatcher.tick()
    assert asked == [bench.jobs[0]]


def test_a_bug_in_the_watch_is_told_and_does_not_end_it() -> None:
    with FakeClock() as clock:
        bench = Bench(clock=clock)
        world, seen = bench.dispatcher.world, [0]

        def watch() -> None:
            seen[0] += 1
            if seen[0] == 2:
                raise KeyError("a bug")

        world.watch = watch  # type: ignore[method-assign]
        bench.dispatcher.keep_watching()
        clock.sleep(1.5 * WATCH_EVERY_S)
        assert "KeyError: 'a bug'" in world.troubles["the watch"]
        clock.sleep(3 * WATCH_EVERY_S)
        assert seen[0] >= 4 and "the watch" not in world.troubles
        bench.dispatcher.stop_watching()


def test_a_rejection_may_be_about_one_job_and_holds_up_no_other() -> None:
    bench = Bench(2)
    bench.runner.failures = [Rejected("its code changed")]
    bench.dispatcher.tick()
    assert [job.job_id for job in bench.runner.launched] == [bench.jobs[1]]


def test_a_release_that_lets_us_wait_lets_the_round_go_on() -> None:
    with FakeClock() as clock:
        bench = Bench(2, clock=clock)
        bench.dispatcher.tick()
        for number in (0, 1):
            bench.claim(number).write(Finish(bench_holder(bench, number), 1, 0, "done", {}))

        def release(receipt: Receipt) -> Settlement:
            bench.runner.released.append(receipt)
            clock.sleep(60.0)
            return Pending("no answer within 60 s")

        bench.runner.release = release  # type: ignore[method-assign]
        began_s = clock.monotonic_s()
        bench.dispatcher.tick()
        assert len(bench.runner.released) == 1 and clock.monotonic_s() - began_s < 70.0
        bench.dispatcher.tick()
        assert len({receipt.name for receipt in bench.runner.released}) == 2, "each gets its turn"


def bench_holder(bench: Bench, number: int) -> Holder:
    w = read_witness(bench.store, keys.witness_of(bench.specs[number])).witness
    assert w and w.holder
    return w.holder


def forged(bench: Bench, **fields: object) -> None:
    """What a rented machine may do, whose credentials open its job's witness."""
    key = keys.witness_of(bench.specs[0])
    stored = read_witness(bench.store, key)
    assert stored.witness and stored.etag
    body = replace(stored.witness, write_id="forged", **fields).encode()
    assert isinstance(bench.store.replace(key, body, stored.etag), Written)


def test_a_forged_number_of_attempts_stops_nobody() -> None:
    bench = Bench(2)
    bench.dispatcher.tick()
    bench.claim()
    bench.dispatcher.tick()
    forged(bench, attempt=10**15)
    bench.dispatcher.tick()
    assert bench.dispatcher.world.jobs[bench.jobs[0]].strikes <= decide.FRUITLESS_BUDGET + 1
    bench.claim(1)
    assert "renewed" in bench.dispatcher.tick().reason(bench.jobs[1])


def test_a_forged_lease_lasts_no_longer_than_its_job_allows() -> None:
    with FakeClock() as clock:
        bench = Bench(store=MemoryStore(clock=clock), clock=clock)
        bench.dispatcher.tick()
        bench.claim()
        forged(bench, silence_s=1e12)
        end_s = clock.monotonic_s() + 2 * bench.specs[0].max_silence_s
        while clock.monotonic_s() < end_s and len(bench.runner.launched) < 2:
            bench.dispatcher.tick()
            clock.sleep(5.0)
        assert [job.launch for job in bench.runner.launched] == [1, 2]


@pytest.mark.parametrize("newer", [False, True])
def test_a_machine_whose_witness_is_none_any_more_is_not_paid_for_ever(newer: bool) -> None:
    with FakeClock() as clock:
        bench = Bench(clock=clock)
        bench.dispatcher.tick()
        bench.claim()
        key = keys.witness_of(bench.specs[0])
        stored = bench.store.read(key)
        assert isinstance(stored, Found)
        body = stored.body.replace(b'"protocol":1', b'"protocol":9') if newer else b"garbage"
        bench.store.replace(key, body, stored.etag)
        bench.dispatcher.tick()
        assert not bench.runner.released, "a person may mend it"
        clock.sleep(decide.BROKEN_GRACE_S + 1.0)
        bench.dispatcher.tick()
        assert len(bench.runner.released) == (0 if newer else 1)
        assert ("j" in bench.dispatcher.world.bills) is False
        assert bool(bench.dispatcher.world.bills) is newer, "a newer Tenure knows its holder"


def test_a_body_that_no_worker_writes_is_not_read_as_a_witness() -> None:
    with FakeClock() as clock:
        bench = Bench(clock=clock)
        bench.dispatcher.tick()
        bench.claim()
        forged(bench, reason="x" * (1 << 17))
        tick = bench.dispatcher.tick()
        assert "bytes" in tick.reason(bench.jobs[0]) and "stopped" in tick.reason(bench.jobs[0])


def test_a_rejection_parks_a_rung_for_a_minute_at_most() -> None:
    """It may be about one job, which is tried on for ever if there is work behind it."""
    with FakeClock() as clock:
        bench = Bench(clock=clock)
        bench.runner.failures = [Rejected("no")] * 4
        bench.dispatcher._parked["local"].failures = 9
        bench.dispatcher.tick()
        assert bench.dispatcher._parked["local"].until_s - clock.monotonic_s() <= 60.0


def test_a_bill_is_closed_though_the_job_has_been_renewed_elsewhere_meanwhile() -> None:
    """A platform that let the round wait must not keep the bills of the others open for as long."""
    with FakeClock() as clock:
        bench = Bench(store=MemoryStore(clock=clock), clock=clock)
        bench.dispatcher.tick()
        first = bench.claim()
        first.write(Release(first.holder, first.attempt, exits.RELEASED, "preempted"))
        bench.runner.settlements = [Pending("ending")]
        bench.dispatcher.tick()
        lease = bench.claim(launch=2)
        clock.sleep(10.0)
        bench.dispatcher._observe()
        bench.dispatcher.snapshot()
        lease.write(Hold(lease.holder, lease.attempt, 100.0))  # between the decision and the act
        bench.dispatcher._release(
            decide.ReleaseBill(bench.jobs[0], 1, "local"), "launch 2 holds it"
        )
        assert (bench.jobs[0], 1) not in bench.dispatcher.world.bills
        bench.dispatcher._release(decide.ReleaseBill(bench.jobs[0], 2, "local"), "by mistake")
        assert (bench.jobs[0], 2) in bench.dispatcher.world.bills, "its holder lives"


def test_an_end_is_never_taken_back() -> None:
    with FakeClock() as clock:
        bench = Bench(2, clock=clock)
        bench.dispatcher.tick()
        lease = bench.claim()
        held = read_witness(bench.store, keys.witness_of(bench.specs[0])).witness
        lease.write(Finish(lease.holder, lease.attempt, 0, "done", {}))
        bench.dispatcher.tick()
        assert held
        forged(bench, **{name: getattr(held, name) for name in ("phase", "holder", "exit_code")})
        clock.sleep(1000.0)
        tick = bench.dispatcher.tick()
        assert "it was finished, and is held now" in tick.reason(bench.jobs[0])
        assert [job.launch for job in bench.runner.launched] == [1, 1]


def test_a_flood_of_refusals_is_not_read() -> None:
    with FakeClock() as clock:
        store = MemoryStore()
        bench = Bench(store=store, clock=clock)
        bench.dispatcher.tick()
        for number in range(300):
            body = encode(Refusal(bench.jobs[0], 1, f"no {number}"))
            store.create(keys.refusal(bench.jobs[0], 1, f"{number:016x}"), body)
        reads: list[str] = []
        real = store.read

        def read(key: str) -> object:
            reads.append(key)
            return real(key)

        store.read = read  # type: ignore[method-assign,assignment]
        for _ in range(3):
            clock.sleep(10.0)
            bench.dispatcher.tick()
        assert 0 < len([key for key in reads if "/refusals/" in key]) <= 60
        assert "local" in bench.dispatcher.world.jobs[bench.jobs[0]].excluded


@pytest.mark.parametrize("failure", [Rejected("the key has expired"), ProtocolError("a page")])
def test_a_job_with_work_behind_it_is_not_ended_for_a_platforms_sake(failure: Exception) -> None:
    with FakeClock() as clock:
        bench = Bench(store=MemoryStore(clock=clock), clock=clock)
        bench.dispatcher.tick()
        lease = bench.claim()
        move = Move(Pointer(1, 10, 1, 1, "0" * 64), None)
        lease.write(Hold(lease.holder, lease.attempt, 100.0, move=move))
        lease.write(Release(lease.holder, lease.attempt, exits.RELEASED, "preempted"))
        bench.runner.failures = [failure] * (12 if isinstance(failure, Rejected) else 3)
        for _ in range(5000):
            bench.dispatcher.tick()
            clock.sleep(5.0)
            if len(bench.runner.launched) == 2:
                break
        w = read_witness(bench.store, keys.witness_of(bench.specs[0])).witness
        assert w and w.phase == "expected" and not bench.runner.failures


@pytest.mark.parametrize("failure", [NoSlots("none"), Rejected("no"), Unreachable("down")])
def test_a_launch_known_to_have_failed_is_made_again_after_its_parking(failure: Exception) -> None:
    bench = Bench()
    bench.runner.failures = [failure]
    tick = bench.dispatcher.tick()
    bench.dispatcher.tick()
    assert bench.runner.launched == []
    tick = bench.dispatcher.tick()
    assert "parked" in tick.reason(bench.jobs[0])
    assert type(failure).__name__ in tick.reason(bench.jobs[0])
    bench.dispatcher._parked["local"].until_s = 0.0
    bench.dispatcher.tick()
    assert [job.launch for job in bench.runner.launched] == [2]


def test_an_ambiguous_launch_is_waited_for() -> None:
    bench = Bench()
    bench.runner.failures = [Unreachable("cut", sent=True)]
    bench.dispatcher.tick()
    bench.dispatcher._parked["local"].until_s = 0.0
    assert "may claim" in bench.dispatcher.tick().reason(bench.jobs[0])
    assert bench.claim().attempt == 1, "what was launched all the same may claim"


def test_a_protocol_error_is_fatal_on_that_rung_once_the_window_is_over() -> None:
    """What answered nonsense may have launched all the same."""
    with FakeClock() as clock:
        bench = Bench(1, MemoryStore(clock), clock)
        bench.runner.failures = [ProtocolError("200 and no body")]
        verbs = Execution(bench.store, {}, clock, "t")
        for _ in range(5):
            bench.dispatcher.tick()
            clock.sleep(10.0)
        assert verbs.status(bench.jobs[0]) == Vacant("expected")
        for _ in range(3):
            bench.dispatcher.tick()
            clock.sleep(10.0)
        state = verbs.status(bench.jobs[0])
        assert isinstance(state, Finished) and "200 and no body" in state.reason


class TwoRungs:
    """A cheap rung that is no good and a dear one that is, or is full."""

    def __init__(self, clock: Clock, dear_slots: int = 1) -> None:
        self.clock = clock
        self.bench = Bench(store=FaultyStore(clock), clock=clock)
        self.job = self.bench.jobs[0]
        terms: dict[str, object] = {"rungs": ["cheap", "dear"], "priority": 0}
        enlist(self.bench.store, "p", "e", self.bench.specs, terms, clock)
        self.cheap, self.dear = ListingRunner(), ListingRunner()
        rungs = [
            Rung("cheap", "there", self.cheap, Capacity(1, 2, 60.0)),
            Rung("dear", "here", self.dear, Capacity(1, dear_slots, 60.0)),
        ]
        self.dispatcher = Dispatcher(self.bench.store, rungs, clock)

    @property
    def window_s(self) -> float:
        w = read_witness(self.bench.store, keys.witness("e", self.job)).witness
        assert w and w.launch
        return w.launch.window_s

    def lapse(self) -> str:
        """Let the claim window run out; the reason that is given then."""
        for _ in range(int(self.window_s // 5) + 2):
            self.clock.sleep(5.0)
            tick = self.dispatcher.tick()
        return tick.reason(self.job)


def test_a_launch_that_is_never_claimed_is_followed_by_one_on_the_next_rung() -> None:
    with FakeClock() as clock:
        two = TwoRungs(clock)
        two.dispatcher.tick()
        assert (len(two.cheap.launched), len(two.dear.launched), two.window_s) == (1, 0, 60.0)
        two.lapse()
        assert (len(two.cheap.launched), len(two.dear.launched), two.window_s) == (1, 1, 60.0)
        assert [receipt.name for receipt in two.cheap.released] == [two.cheap.launched[0].name]
        lease = two.bench.claim(launch=2)
        two.dispatcher.tick()
        assert two.dispatcher.world.jobs[two.job].unclaimed == 0
        lease.write(Release(lease.holder, lease.attempt, 10, "preempted"))
        two.dispatcher.tick()  # the slot of the old launch is closed in this one
        two.dispatcher.tick()
        assert len(two.dear.launched) == 2, "where it was claimed comes before where it was not"


def test_a_claim_makes_good_what_a_rung_missed() -> None:
    with FakeClock() as clock:
        two = TwoRungs(clock)
        two.dispatcher.tick()
        two.lapse()  # cheap, then dear
        two.lapse()  # dear, then cheap again: no rung is better
        assert (len(two.cheap.launched), len(two.dear.launched), two.window_s) == (2, 1, 120.0)
        two.bench.claim(launch=3)
        two.dispatcher.tick()
        assert list(two.dispatcher.world.jobs[two.job].no_shows) == ["dear"]


def test_rejections_take_a_rung_away_and_not_the_job() -> None:
    with FakeClock() as clock:
        two = TwoRungs(clock, dear_slots=0)
        two.cheap.failures = [Rejected(f"no such account ({n})") for n in range(5)]
        for _ in range(40):
            clock.sleep(5.0)
            tick = two.dispatcher.tick()
        assert two.cheap.failures == [] and two.cheap.launched == []
        assert tick.reason(two.job).endswith(
            "rung cheap is out: 5 launches in a row were rejected there; last: no such account "
            "(4), all 0 slots of rung dear are taken"
        )
        alone = Bench(clock=clock)
        alone.runner.failures = [Rejected("no such account")] * 5
        done = alone.dispatcher.follow(alone.jobs, every_s=5.0, for_s=300.0)
        assert done[alone.jobs[0]].phase == "cancelled"
        assert (done[alone.jobs[0]].reason or "").startswith("no allowed rung (local: 5 launches")


def test_a_launch_that_is_made_forgives_the_rejections_before_it() -> None:
    with FakeClock() as clock:
        bench = Bench(store=FaultyStore(clock), clock=clock)
        for launch in (5, 10):
            bench.runner.failures = [Rejected("the image is being pulled")] * 4
            for _ in range(24):  # the rung is parked for 5, 10, 20 and 40 s
                clock.sleep(5.0)
                bench.dispatcher.tick()
                if bench.runner.launched and bench.runner.launched[-1].launch == launch:
                    break
            lease = bench.claim(launch=launch)
            lease.write(Release(lease.holder, lease.attempt, 10, "preempted"))


@pytest.mark.parametrize("seen", [False, True])
def test_nobody_owes_a_launch_that_was_refused_where_he_cannot_even_ask(seen: bool) -> None:
    bench = Bench()
    bench.runner.failures = [Rejected("the key is not known")]
    bench.runner.settlements = [Pending("the key is not known", seen=seen)] * 99
    bench.dispatcher.tick()
    assert bench.dispatcher.drain(0.5, 0.1) is not seen, "what was seen is waited for"
    found = bench.store.read(keys.settlement(bench.jobs[0], 1, 1))
    assert isinstance(found, Found)
    record = load(SettlementRecord, found.body, "s")
    assert record.outcome == ("pending" if seen else "closed")
    assert record.reason.endswith("the key is not known" + ("" if seen else ")"))


def test_a_refused_job_ends_with_the_workers_words() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    job = bench.jobs[0]
    record = Refusal(job, 1, "torch is 2.14.0 and 2.13.0 is required")
    bench.store.create(keys.refusal(job, 1, "n"), encode(record))
    bench.dispatcher.world.jobs[job].refusal_look_s = 1e-9
    for _ in range(3):
        bench.dispatcher.tick()
    state = Execution(bench.store, {}, SYSTEM, "t").status(job)
    assert isinstance(state, Finished) and "torch is 2.14.0" in state.reason


def test_out_of_memory_on_the_only_rung_ends_the_job() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    lease = bench.claim()
    lease.write(Release(lease.holder, lease.attempt, 17, "CUDA out of memory"))
    bench.dispatcher.tick()
    bench.dispatcher.tick()
    state = Execution(bench.store, {}, SYSTEM, "t").status(bench.jobs[0])
    assert isinstance(state, Finished) and "out of memory" in state.reason


def faulty(two: TwoRungs, launch: int, words: str, milestone: bool = False) -> None:
    """The launch claims, and its machine fails."""
    lease = two.bench.claim(launch=launch)
    two.dispatcher.tick()
    if milestone:
        old = lease.witness.pointer
        pointer = Pointer(lease.attempt, 10, 1, (old.ordinal if old else 0) + 1, "0" * 64)
        move = Hold(lease.holder, lease.attempt, 100.0, None, Move(pointer, old))
        assert isinstance(lease.write(move), Confirmed)
        two.dispatcher.tick()
    ended = Release(lease.holder, lease.attempt, exits.RELEASED, words)
    assert isinstance(lease.write(ended), Confirmed)
    for _ in range(3):
        two.clock.sleep(10.0)
        two.dispatcher.tick()


def fault(number: int, step: int | None) -> str:
    at = "" if step is None else f" at step {step}"
    return f"machine fault{at}: RuntimeError: CUDA error {number} at 0x{number}"


@pytest.mark.parametrize(
    ("first", "second", "milestone", "ends"),
    [
        (None, None, False, ""),
        (None, 30, False, ""),
        (30, 30, False, " at step 30"),
        (30, 31, False, None),
        (30, 30, True, None),
    ],
)
def test_the_same_fault_at_one_step_on_two_rungs_is_the_jobs_own_and_ends_it(
    first: int | None, second: int | None, milestone: bool, ends: str | None
) -> None:
    """Unless a milestone lies between them: then it was two machines."""
    with FakeClock() as clock:
        two = TwoRungs(clock)
        two.dispatcher.tick()
        faulty(two, 1, fault(719, first))
        two.dispatcher.world.jobs[two.job].excluded["cheap"] = "for this test"
        clock.sleep(60.0)
        launched = two.dispatcher.world.jobs[two.job].witness
        assert launched and launched.launched == 2 and launched.phase == "expected"
        two.dispatcher.world.jobs[two.job].excluded.clear()
        lease = two.bench.claim(launch=2)
        lease.write(Release(lease.holder, lease.attempt, exits.RELEASED, "received SIGTERM"))
        two.dispatcher._parked["cheap"].until_s = 1e9
        for _ in range(3):
            clock.sleep(10.0)
            two.dispatcher.tick()
        faulty(two, 3, fault(700, second), milestone)
        state = Execution(two.bench.store, {}, clock, "t").status(two.job)
        assert isinstance(state, Finished) is (ends is not None)
        if isinstance(state, Finished):
            assert state.reason == (
                f"the same failure{ends} on the rungs cheap and dear: RuntimeError: CUDA error # at #"
            )


def test_a_fault_that_is_read_twice_is_one() -> None:
    with FakeClock() as clock:
        two = TwoRungs(clock)
        two.dispatcher.tick()
        faulty(two, 1, fault(719, 30))
        memory = two.dispatcher.world.jobs[two.job]
        lease = two.bench.claim(launch=2)
        held = lease.witness
        lease.write(Release(lease.holder, lease.attempt, exits.RELEASED, fault(700, 31)))
        for _ in range(5):
            two.dispatcher.world._note_failure(memory, held, lease.witness)
        (seen,) = memory.faults.values()
        assert len(seen) == 2 and faults.own({"": tuple(seen.values())}) is None


def test_another_fault_on_another_rung_ends_nothing() -> None:
    with FakeClock() as clock:
        two = TwoRungs(clock)
        two.dispatcher.tick()
        faulty(two, 1, fault(719, 30))
        two.dispatcher._parked["cheap"].until_s = 1e9
        lease = two.bench.claim(launch=2)
        lease.write(Release(lease.holder, lease.attempt, exits.RELEASED, "received SIGTERM"))
        for _ in range(3):
            clock.sleep(10.0)
            two.dispatcher.tick()
        faulty(two, 3, "machine fault: OSError: [Errno 5] input/output error")
        state = Execution(two.bench.store, {}, clock, "t").status(two.job)
        assert not isinstance(state, Finished)


@pytest.mark.parametrize("announced", [None, Announced("evaluating", 100.0)])
def test_a_launch_is_told_what_its_leases_are_chosen_by(announced: Announced | None) -> None:
    """How long the attempt before was silent, which is no longer than its lease: the rest was ours."""
    with FakeClock() as clock:
        bench = Bench(1, MemoryStore(clock), clock)
        bench.dispatcher.tick()
        lease = bench.claim()
        assert isinstance(lease.write(Hold(lease.holder, 1, 100.0, announced)), Confirmed)
        while len(bench.runner.launched) < 2:
            clock.sleep(10.0)
            bench.dispatcher.tick()
        w = read_witness(bench.store, keys.witness_of(bench.specs[0])).witness
        assert w and w.launch and w.launched == 2
        assert w.launch.lapsed_s == (None if announced else 100.0)
        assert w.launch.first_silence_s == ListingRunner.capacity({}).window_s


def test_a_claim_window_is_learnt_and_the_time_to_load_is_not_cut_with_it() -> None:
    with FakeClock() as clock:
        bench = Bench(41, MemoryStore(clock), clock)
        capacity = Capacity(1, 40, 600.0)
        rung = Rung("local", "here", bench.runner, capacity)
        dispatcher = bench.dispatcher = Dispatcher(bench.store, [rung], clock)
        dispatcher.tick()
        clock.sleep(40.0)
        for number in range(40):
            bench.claim(number)
        dispatcher.tick()
        for number in range(40):
            w = read_witness(bench.store, keys.witness_of(bench.specs[number])).witness
            assert w and w.holder
            key = keys.witness_of(bench.specs[number])
            stored = read_witness(bench.store, key)
            ended = Finish(w.holder, w.attempt, 0, "done", {})
            assert isinstance(
                change(bench.store, key, bench.jobs[number], stored, ended, clock), Applied
            )
        for _ in range(5):
            dispatcher.tick()
        w = read_witness(bench.store, keys.witness_of(bench.specs[40])).witness
        assert w and w.launch and w.launch.window_s == pytest.approx(60.0), "1.5 times the longest"
        assert w.launch.first_silence_s == 600.0
        assert w.launch.restart_s == pytest.approx(40.0)


def test_out_of_memory_on_many_rungs_is_no_early_loss() -> None:
    """Six cards that are too small must not end a job that the seventh has room for."""
    with FakeClock() as clock:
        two = TwoRungs(clock)
        two.dispatcher.tick()
        lease = two.bench.claim(launch=1)
        two.dispatcher.tick()
        ended = Release(lease.holder, lease.attempt, exits.OUT_OF_MEMORY, "MemoryError")
        assert isinstance(lease.write(ended), Confirmed)
        two.dispatcher.tick()
        memory = two.dispatcher.world.jobs[two.job]
        assert memory.strikes == 0 and list(memory.excluded) == ["cheap"]


def test_a_platform_that_refuses_for_weeks_is_asked_every_ten_minutes() -> None:
    with FakeClock() as clock:
        bench = Bench(1, MemoryStore(clock), clock)
        bench.dispatcher.tick()
        bench.dispatcher._parked["local"].failures = 1100
        lease = bench.claim()
        lease.write(Release(lease.holder, lease.attempt, 10, "notice"))
        bench.runner.failures = [NoSlots("full")] * 9
        for _ in range(4):
            bench.dispatcher.tick()
        parking = bench.dispatcher._parked["local"]
        assert parking.failures > 1100 and 0 < parking.until_s - clock.monotonic_s() <= 600.0


def test_corrupt_objects_stop_their_job_alone() -> None:
    bench = Bench(3)
    bench.store.put_file(keys.job(bench.jobs[0]), _file(b"{"))
    bench.dispatcher.tick()
    key = keys.witness("e", bench.jobs[1])
    bench.store.put_file(key, _file(b'{"phase": 1}'))
    tick = bench.dispatcher.tick()
    assert keys.job(bench.jobs[0]) in tick.reason(bench.jobs[0])
    assert key in tick.reason(bench.jobs[1])
    assert key in tick.troubles
    assert {job.job_id for job in bench.runner.launched} >= {bench.jobs[2]}


class SilentStore(MemoryStore):
    """A memory store whose listings or conditional answers can be taken away."""

    silent = False
    swallow = 0  # answers of conditional writes to lose, after applying them

    def list(self, prefix: str):  # type: ignore[no-untyped-def]
        if self.silent:
            raise StoreSilent("no route")
        return super().list(prefix)

    def read(self, key: str):  # type: ignore[no-untyped-def]
        if self.silent:
            raise StoreSilent("no route")
        return super().read(key)

    def create(self, key: str, body: bytes) -> Outcome:
        outcome = super().create(key, body)
        if self.swallow and key.startswith(keys.WITNESSES):
            self.swallow -= 1
            return NoAnswer("cut")
        return outcome


def test_a_silent_store_deposes_nobody_and_starts_the_watch_anew() -> None:
    store = SilentStore()
    bench = Bench(1, store)
    bench.dispatcher.tick()
    bench.claim()
    bench.dispatcher.tick()
    memory = bench.dispatcher.world.jobs[bench.jobs[0]]
    assert bench.dispatcher.world.watched(memory).gapless_s >= 0
    store.silent = True
    tick = bench.dispatcher.tick()
    assert tick.reason(bench.jobs[0]) == "unknown: no route"
    assert bench.dispatcher.world.watched(memory).unchanged_s == 0.0
    store.silent = False
    bench.dispatcher.tick()
    state = Execution(store, {}, SYSTEM, "t").status(bench.jobs[0])
    assert isinstance(state, Running)


@pytest.mark.parametrize("unseen", ["plans/", "plans/p/", "unsettled/"])
def test_what_could_not_be_seen_is_never_taken_for_nothing(unseen: str) -> None:
    """A listing that fails, or a plan that is listed and cannot be read, may hide an open bill."""
    with FakeClock() as clock:
        store = FaultyStore(clock)
        bench = Bench(store=store, clock=clock)
        bench.dispatcher.tick()
        fresh = bench.another()
        store.silent = lambda key: key.startswith(unseen)
        assert not fresh.drain(for_s=3.0, experiment="e")
        assert not fresh.world.whole
        store.heal()
        lease = bench.claim()
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
        assert fresh.drain(for_s=3.0, experiment="e")
        assert fresh.world.whole


@pytest.mark.parametrize("unseen", ["unsettled/", "/launches/"])
def test_a_dispatcher_that_knows_no_bills_yet_launches_nothing(unseen: str) -> None:
    """It would take every slot for free."""
    with FakeClock() as clock:
        store = FaultyStore(clock)
        bench = Bench(3, store, clock)
        bench.dispatcher.tick()
        fresh = bench.another()
        store.silent = lambda key: unseen in key
        tick = fresh.tick()
        assert "cannot be read yet" in tick.reason(bench.jobs[2])
        assert len(bench.runner.launched) == 2, "as many as there are slots"
        store.heal()
        assert "slots of rung local are taken" in fresh.tick().reason(bench.jobs[2])


@pytest.mark.parametrize(
    ("unseen", "ends"),
    [
        ("plans/p/", True),
        ("unsettled/", True),
        ("/launches/", True),
        ("/launches/", False),
        ("/receipt", True),
        ("/settlement", True),
        ("/refusals/", True),
        ("/refusals/", False),
    ],
)
def test_a_trouble_that_is_over_is_told_no_more(unseen: str, ends: bool) -> None:
    """Whatever the store did not answer for, while a job is launched and its bill is closed."""
    with FakeClock() as clock:
        store = FaultyStore(clock)
        bench = Bench(store=store, clock=clock)
        told: set[str] = set()

        def tick_on(times: int) -> None:
            for _ in range(times):
                told.update(bench.dispatcher.tick().troubles)
                clock.sleep(2.5)

        store.silent = lambda key: unseen in key
        tick_on(3)
        if ends:
            (job,), key = bench.jobs, keys.witness_of(bench.specs[0])
            stored = read_witness(store, key)
            change(store, key, job, stored, Cancel("o", "enough"), clock)
            tick_on(3)
        assert told
        store.heal()
        tick_on(6)
        assert bench.dispatcher.tick().troubles == {}


def test_a_holder_frozen_inside_a_write_is_ended_once_its_lease_is_gone(tmp_path: Path) -> None:
    """SIGSTOP between lock and rename: the lock stays with the frozen process until it ends."""
    store = DirectoryStore(tmp_path)
    store.deadline_s = 0.1
    bench = Bench(1, store)
    bench.dispatcher.tick()
    key = keys.witness_of(bench.specs[0])
    lease = acquire(
        store, key, bench.jobs[0], 1, 6.0, 1.0, SYSTEM
    )  # a round lasts less than two seconds
    assert isinstance(lease, Lease)
    with contextlib.ExitStack() as frozen:
        assert frozen.enter_context(store._locked(key))
        ended = bench.runner.release
        bench.runner.release = lambda receipt: (frozen.close(), ended(receipt))[1]  # type: ignore[method-assign]
        end_s = SYSTEM.monotonic_s() + 240.0
        while not [job for job in bench.runner.launched if job.launch == 2]:
            assert SYSTEM.monotonic_s() < end_s, bench.dispatcher.look().decisions
            bench.dispatcher.tick()
            SYSTEM.sleep(0.1)


def test_a_reservation_without_an_answer_is_launched_once() -> None:
    store = SilentStore()
    bench = Bench(1, store)
    store.swallow = 1
    for _ in range(3):
        bench.dispatcher.tick()
    assert [job.launch for job in bench.runner.launched] == [1]


def test_execution_answers() -> None:
    bench = Bench()
    verbs = Execution(bench.store, {"here": bench.runner}, SYSTEM, "ann")
    (job,) = bench.jobs
    assert verbs.status(job) == Vacant("nobody has run it yet")
    bench.dispatcher.tick()
    assert isinstance(verbs.status(job), Vacant)
    bench.claim()
    assert verbs.status(job) == Running(1, 1)
    assert verbs.revoke(job, "poisoned") == Revoked()
    assert isinstance(verbs.status(job), Vacant)
    assert verbs.cancel(job, "enough") == Revoked()
    assert verbs.revoke(job, "again") == AlreadyFinal()
    assert verbs.status(job) == Finished(None, "enough")
    assert isinstance(verbs.status("a" * 26), Unknown)


def test_slices_are_contiguous_and_say_when_a_chunk_is_missing() -> None:
    bench = Bench()
    (job,) = bench.jobs
    verbs = Execution(bench.store, {}, SYSTEM, "ann")
    bench.store.create(keys.log(job, 1, 1), b"one\ntwo\n")
    bench.store.create(keys.log(job, 1, 3), b"four\n")
    first = verbs.log(job)
    assert first.records == ("one", "two") and first.incomplete and not first.end
    assert first.gap == (
        "chunk 2 of the log of attempt 1 is missing, and what follows it (1 chunk) is held back"
    )
    bench.store.create(keys.log(job, 1, 2), b"three\n")
    second = verbs.log(job, first.next)
    assert second.records == ("three", "four") and not second.incomplete and not second.gap
    bench.store.create(keys.log(job, 2, 1), b"anew\n")
    third = verbs.log(job, second.next)
    bench.store.create(keys.log(job, 1, 4), b"late\n")
    fourth = verbs.log(job, third.next)
    assert third.records == ("anew",)
    assert fourth.records == ("[deposed attempt 1] late",)


def test_enlisting_twice_writes_nothing_and_new_terms_are_a_version() -> None:
    bench = Bench(2)
    before = {row.key: row.etag for row in bench.store.list("")}
    enlist(bench.store, "p", "e", bench.specs, {"rungs": ["local"], "priority": 0}, SYSTEM)
    assert {row.key: row.etag for row in bench.store.list("")} == before
    bench.dispatcher.tick()
    enlist(bench.store, "p", "e", bench.specs, {"rungs": ["other"], "priority": 9}, SYSTEM)
    bench.dispatcher.look()
    views = bench.dispatcher.world.job_views()
    assert {(view.rungs, view.priority) for view in views} == {(("other",), 9)}


def test_what_was_wrong_with_a_bill_is_over_once_all_of_it_is_known() -> None:
    bench = Bench()
    bench.dispatcher.tick()
    world, key = bench.dispatcher.world, keys.launch(bench.jobs[0], 1)
    bill = world.bills[bench.jobs[0], 1]
    assert bill.intent and bill.receipt, "of a launch that this dispatcher made itself"
    world.troubles[key] = "its receipt could not be read"
    bench.dispatcher.look()
    assert key not in world.troubles


def test_a_job_that_is_over_is_looked_at_once_until_something_is_new() -> None:
    with FakeClock() as clock:
        store = FaultyStore(clock)
        bench = Bench(2, store, clock)
        bench.dispatcher.tick()
        lease = bench.claim()
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {"x": 1}))
        bench.dispatcher.tick()
        world = bench.dispatcher.world
        over, waits = world.job_views()
        clock.sleep(100.0)
        bench.dispatcher.tick()
        again, later = world.job_views()
        assert again is over and later is not waits, "only what is over is kept"
        terms: dict[str, object] = {"rungs": ["other"], "priority": 9}
        enlist(store, "p", "e", bench.specs, terms, clock)
        bench.dispatcher.look()
        newer, _ = world.job_views()
        assert (newer.rungs, newer.priority, newer.witness) == (("other",), 9, over.witness)
        store.silent = lambda key: key.startswith("witness/")
        bench.dispatcher.look()
        silent, _ = world.job_views()
        assert silent.silent and not newer.silent


def _file(body: bytes) -> Path:
    import tempfile

    path = Path(tempfile.mkstemp()[1])
    path.write_bytes(body)
    return path


def test_a_changed_witness_is_decided_anew() -> None:
    """The decision was made from one body; another stands there when it is acted on."""
    bench = Bench()
    bench.dispatcher.world.observe()
    stored = read_witness(bench.store, keys.witness_of(bench.specs[0]))
    bench.another().tick()
    assert bench.runner.launched[0].launch == 1
    bench.dispatcher._launch([(Launch(bench.jobs[0], "local", "none"), "stale")])
    assert len(bench.runner.launched) == 1
    assert stored.witness is None
    assert not isinstance(
        change(bench.store, keys.witness_of(bench.specs[0]), bench.jobs[0], stored,
               Finish(bench.claim().holder, 1, 0, "", {}), SYSTEM), Applied)  # fmt: skip
