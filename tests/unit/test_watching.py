"""What a dispatcher asks the store while every job is held and nothing but renewals happens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal

import pytest

from tenure.dispatch import world
from tenure.dispatch.contract import Capacity, NoSlots, Pending
from tenure.dispatch.loop import Dispatcher, Rung
from tenure.plan.enlist import enlist
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Confirmed, Lease, acquire, change, read_witness
from tenure_protocol.lease.machine import Ask, Finish, Hold, Revoke
from tenure_protocol.records import ID_LETTERS, JobSpec
from tenure_protocol.store.api import Found, Missing
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import ListingRunner

TICK_S = 5.0


class Fleet:
    """Jobs that one dispatcher launched and their workers hold, each with an open bill."""

    def __init__(self, clock: FakeClock, jobs: int, silence_s: float) -> None:
        self.clock = clock
        self.store = FaultyStore(clock)
        self.runner = ListingRunner()
        self.silence_s = silence_s
        specs = [
            JobSpec("e", "train", "training", "m:C", {}, seed, 1, "c", "d", 10)
            for seed in range(jobs)
        ]
        self.jobs = enlist(self.store, "p", "e", specs, {"rungs": ["local"]}, clock)
        self.dispatcher = self.another()
        self.dispatcher.tick()
        self.leases = {spec.id: self._claim(spec) for spec in specs}
        self.renewed_s = clock.monotonic_s()
        self.asked: list[tuple[str, str]] = []  # of the store, by the ticks of ``pass_time``

    def another(self) -> Dispatcher:
        rung = Rung("local", "here", self.runner, Capacity(1, 100, 60.0))
        return Dispatcher(self.store, [rung], self.clock)

    def _claim(self, spec: JobSpec) -> Lease:
        lease = acquire(self.store, keys.witness_of(spec), spec.id, 1, 600.0, 1.0, self.clock)
        assert isinstance(lease, Lease)
        return lease

    def renew(self) -> None:
        for lease in self.leases.values():
            hold = Hold(lease.holder, lease.attempt, self.silence_s)
            assert isinstance(lease.write(hold), Confirmed)
        self.renewed_s = self.clock.monotonic_s()

    def tick(self) -> list[tuple[str, str]]:
        """The calls of one round."""
        self.store.calls.clear()
        self.dispatcher.tick()
        return list(self.store.calls)

    def pass_time(self, seconds: float, renewing: bool = True) -> None:
        """Ticks, and a renewal after each third of a lease."""
        end_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < end_s:
            self.asked += self.tick()
            self.clock.sleep(TICK_S)
            if renewing and self.clock.monotonic_s() - self.renewed_s >= self.silence_s / 3:
                self.renew()

    def asked_of(self, call: str) -> list[str]:
        return [key for made, key in self.asked if made == call]


def seasoned(clock: FakeClock, jobs: int = 1, silence_s: float = 600.0) -> Fleet:
    """A fleet beyond the first renewals of its attempts, each of which is read."""
    fleet = Fleet(clock, jobs, silence_s)
    fleet.pass_time(TICK_S)
    for _ in range(10):
        fleet.renew()
        fleet.pass_time(TICK_S)
    fleet.asked.clear()
    return fleet


@pytest.mark.parametrize("silence_s", [9.0, 42.0, 600.0, 3600.0])
def test_renewals_cost_no_read_however_long_the_lease(clock: FakeClock, silence_s: float) -> None:
    fleet = seasoned(clock, 2, silence_s)
    fleet.pass_time(3 * silence_s)
    assert fleet.asked_of("read") == []
    assert set(fleet.asked_of("list")) == {"plans/", "unsettled/", "witness/e/"}


def test_a_silence_beyond_the_lease_that_was_read_is_read_before_it_is_judged(
    clock: FakeClock,
) -> None:
    """The lease grew with a renewal that shows in no listing: nobody is deposed for that."""
    fleet = seasoned(clock, silence_s=60.0)
    fleet.silence_s = 300.0
    fleet.renew()
    fleet.pass_time(60.0, renewing=False)
    assert fleet.asked_of("read") == [], "as long as its old lease lasts it is no silence"
    fleet.pass_time(230.0, renewing=False)
    assert len(fleet.asked_of("read")) == 1
    assert len(fleet.runner.launched) == 1
    fleet.pass_time(30.0, renewing=False)
    assert [job.launch for job in fleet.runner.launched] == [1, 2], "and then it is vacant"


@pytest.mark.parametrize("silence_s", [9.0, 600.0])
@pytest.mark.parametrize("what", ["yield", "pause"])
def test_a_request_that_is_not_obeyed_is_noticed_under_every_lease(
    clock: FakeClock, silence_s: float, what: Literal["yield", "pause"]
) -> None:
    fleet = seasoned(clock, silence_s=silence_s)
    (job,) = fleet.jobs
    key = keys.witness("e", job)
    asked = change(
        fleet.store, key, job, read_witness(fleet.store, key), Ask(what, 20.0, "ann"), clock
    )
    assert isinstance(asked, Applied)
    with contextlib.suppress(AssertionError):  # its worker renews, until it no longer may
        fleet.pass_time(silence_s + 60.0)
    fleet.pass_time(2 * TICK_S, renewing=False)
    stored = read_witness(fleet.store, key).witness
    assert stored and stored.barrier == 1, "launch 1 may no longer claim"
    assert stored.held_back is (what == "pause")
    assert [made.launch for made in fleet.runner.launched] == [1] + [2] * (what == "yield")


# ------------------------------------------------------------------------------ many open bills


@pytest.fixture
def many(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """More bills than one LIST tells: a page has three rows here."""
    monkeypatch.setattr(world, "PAGE", 3)
    return seasoned(clock, jobs=8)


def test_bills_on_which_nothing_hangs_are_listed_in_parts(many: Fleet) -> None:
    many.pass_time(len(ID_LETTERS) * TICK_S)
    assert sorted(many.asked_of("list")) == sorted(
        ["plans/", "witness/e/"] * len(ID_LETTERS) + [f"unsettled/{it}" for it in ID_LETTERS]
    )
    assert many.asked_of("read") == []
    assert len(many.dispatcher.world.bills) == 8


def test_what_others_open_or_close_is_found_in_parts(many: Fleet) -> None:
    """A dispatcher that was frozen in a launch opens a bill of a job that needs none any more."""
    mine, other = many.jobs[0], many.jobs[-1]
    many.store.inner.create(keys.unsettled(other, 7), b"{}")
    many.store.inner.delete(keys.unsettled(mine, 1))
    many.pass_time(len(ID_LETTERS) * TICK_S)
    assert (mine, 1) not in many.dispatcher.world.bills
    intent = many.store.inner.read(keys.intent(other, 7))
    assert isinstance(intent, Found), "it was made void, so that nobody launches it later"
    assert many.store.inner.read(keys.unsettled(other, 7)) == Missing()


def end(fleet: Fleet, job: str) -> None:
    fleet.runner.settlements = [Pending("it is being ended")]
    lease = fleet.leases.pop(job)
    done = lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
    assert isinstance(done, Confirmed)


def ask(fleet: Fleet, job: str) -> None:
    key = keys.witness("e", job)
    stored = read_witness(fleet.store, key)
    assert isinstance(
        change(fleet.store, key, job, stored, Ask("pause", 500.0, "ann"), fleet.clock), Applied
    )


def revoke(fleet: Fleet, job: str) -> None:
    del fleet.leases[job]
    key = keys.witness("e", job)
    stored = read_witness(fleet.store, key)
    assert isinstance(
        change(fleet.store, key, job, stored, Revoke("ann", "poisoned"), fleet.clock), Applied
    )


def corrupt(fleet: Fleet, job: str) -> None:
    del fleet.leases[job]
    key = keys.witness("e", job)
    found = fleet.store.inner.read(key)
    assert isinstance(found, Found)
    fleet.store.inner.replace(key, b"{" * 16, found.etag)


def more(fleet: Fleet, job: str) -> None:
    spec = JobSpec("e", "train", "training", "m:C", {}, 99, 1, "c", "d", 10)
    enlist(fleet.store, "p", "e", [spec], {"rungs": ["no such"]}, fleet.clock)


def parked(fleet: Fleet, job: str) -> None:
    """It has no bill any more, and waits for a place."""
    fleet.runner.failures = [NoSlots("all taken")] * 9
    revoke(fleet, job)
    for _ in range(4):
        fleet.tick()
    assert job not in {it for it, _ in fleet.dispatcher.world.bills}


@pytest.mark.parametrize("event", [end, ask, revoke, corrupt, more, parked])
def test_all_bills_are_listed_as_soon_as_something_may_hang_on_one(
    many: Fleet, event: Callable[[Fleet, str], None]
) -> None:
    """A bill may be closed, or a slot that another dispatcher has filled may be wanted."""
    event(many, many.jobs[3])
    many.tick()
    assert ("list", keys.UNSETTLED) in many.tick()


def test_all_bills_are_listed_before_a_silent_holder_is_replaced(many: Fleet) -> None:
    del many.leases[many.jobs[3]]
    while len(many.runner.launched) == len(many.jobs):
        many.asked.clear()
        many.pass_time(TICK_S)
    assert ("list", keys.UNSETTLED) in many.asked
