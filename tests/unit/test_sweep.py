"""What a platform still runs for us without an open bill is ended, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tenure.dispatch.contract import (
    Capacity,
    Closed,
    Job,
    ListsItsOwn,
    Pending,
    Receipt,
    Rejected,
    Settlement,
    Unreachable,
)
from tenure.dispatch.ladder import Rung, launch_name, name_prefix
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.sweep import SWEEP_EVERY_S
from tenure.plan.enlist import enlist
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Lease, acquire
from tenure_protocol.lease.machine import Finish
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Missing
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import ListingRunner


class TellingRunner(ListingRunner):
    """A platform that tells what it runs: by name, as it has them."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, Receipt] = {}
        self.asked = 0
        self.down = False
        self.refuses = False
        self.stubborn = 0  # so many releases are answered with Pending

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        receipt = super().launch(jobs)
        self.runs[receipt.name] = receipt
        return receipt

    def release(self, receipt: Receipt) -> Settlement:
        self.released.append(receipt)
        if self.stubborn:
            self.stubborn -= 1
            return Pending("it is being ended")
        self.runs.pop(receipt.name, None)
        return Closed("it is gone")

    def running(self, prefix: str) -> Sequence[Receipt]:
        self.asked += 1
        if self.down:
            raise Unreachable("the platform does not answer")
        if self.refuses:
            raise Rejected("the key is not known")
        return [Receipt((), "here", name, "?", 0.0, {"id": 7}) for name in self.runs]


class Yard:
    """A platform that tells, one dispatcher and some jobs."""

    def __init__(self, clock: FakeClock, jobs: int = 2) -> None:
        self.clock = clock
        self.store = FaultyStore(clock)
        self.runner = TellingRunner()
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {}, seed, 1, "c", "d", 10)
            for seed in range(jobs)
        ]
        self.jobs = enlist(self.store, "p", "e", self.specs, {"rungs": ["spot"]}, clock)
        self.dispatcher = self.another()

    def another(self, per_launch: int = 1) -> Dispatcher:
        capacity = Capacity(per_launch, 4, 60.0, cards=per_launch)
        rungs = [Rung(name, "here", self.runner, capacity) for name in ("spot", "dear")]
        return Dispatcher(self.store, rungs, self.clock)

    def ghost(self, name: str = "") -> str:
        """A machine that nobody keeps a bill of."""
        name = name or launch_name(self.store.url, "z" * 26, 3)
        self.runner.runs[name] = Receipt((), "here", name, "?", 0.0, {"id": 7})
        return name

    def finish(self, number: int) -> None:
        key = keys.witness_of(self.specs[number])
        lease = acquire(self.store, key, self.jobs[number], 1, 100.0, 1.0, self.clock)
        assert isinstance(lease, Lease)
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))


def test_an_orphan_is_ended_and_told_once(clock: FakeClock) -> None:
    yard = Yard(clock)
    assert isinstance(yard.runner, ListsItsOwn) and not isinstance(ListingRunner(), ListsItsOwn)
    name = yard.ghost()
    tick = yard.dispatcher.tick()
    assert tick.troubles == {
        name: "runner here still ran it, and no bill of ours is open for it; it has been ended "
        "(it is gone)"
    }
    assert tick.orphans == 1
    assert [receipt.name for receipt in yard.runner.released] == [name]
    assert yard.runner.released[0].handle == {"id": 7}, "as the platform told of it"
    assert yard.runner.asked == 1, "two rungs of one runner are one question"
    assert yard.dispatcher.tick().troubles == {}


def test_machines_of_open_launches_are_left_alone(clock: FakeClock) -> None:
    yard = Yard(clock)
    yard.dispatcher.tick()
    assert len(yard.runner.runs) == 2
    for dispatcher in (yard.dispatcher, yard.another(), yard.another()):
        dispatcher.sweeper.sweep(at_once=True)
    assert yard.runner.asked >= 3 and yard.runner.released == []


def test_a_pack_is_known_by_the_bill_of_any_of_its_jobs(clock: FakeClock) -> None:
    yard = Yard(clock)
    yard.another(per_launch=2).tick()
    assert len(yard.runner.runs) == 1
    yard.store.inner.delete(keys.unsettled(yard.jobs[0], 1))
    yard.another().sweeper.sweep(at_once=True)
    assert yard.runner.released == []
    yard.store.inner.delete(keys.unsettled(yard.jobs[1], 1))
    yard.another().sweeper.sweep(at_once=True)
    assert len(yard.runner.released) == 1


def test_a_launch_that_begins_while_the_platform_answers_is_no_orphan(clock: FakeClock) -> None:
    """Its bill is opened before its machine: so bills are read after the platform's answer."""
    yard = Yard(clock)
    running = yard.runner.running

    def slow(prefix: str) -> Sequence[Receipt]:
        yard.runner.running = running  # type: ignore[method-assign]
        yard.dispatcher.tick()
        return running(prefix)

    sweeper = yard.another().sweeper
    yard.runner.running = slow  # type: ignore[method-assign]
    sweeper.sweep(at_once=True)
    assert len(yard.runner.runs) == 2 and yard.runner.released == []


def test_what_is_not_ours_is_left_alone(clock: FakeClock) -> None:
    yard = Yard(clock, jobs=0)
    other = launch_name("s3://another", "z" * 26, 1)
    for name in (other, "notebook", name_prefix(yard.store.url)[:-1], f"x-{other}"):
        yard.ghost(name)
    yard.dispatcher.tick()
    assert yard.runner.released == []


def test_an_orphan_is_asked_to_end_until_it_has_even_if_it_is_listed_no_more(
    clock: FakeClock,
) -> None:
    yard = Yard(clock)
    name, yard.runner.stubborn = yard.ghost(), 3
    tick = yard.dispatcher.tick()
    assert tick.troubles[name].endswith("its end was asked for (it is being ended)")
    assert yard.dispatcher.sweeper.orphans == [name]
    del yard.runner.runs[name]
    for _ in range(20):
        clock.sleep(2.0)
        tick = yard.dispatcher.tick()
    assert [receipt.name for receipt in yard.runner.released] == [name] * 4
    assert (tick.orphans, yard.dispatcher.sweeper.ended) == (1, 1)
    assert yard.dispatcher.sweeper.clean and tick.troubles == {}


def test_an_orphan_whose_bill_is_open_again_is_asked_no_more(clock: FakeClock) -> None:
    """A dispatcher that was frozen in a launch opens the bill anew when it wakes."""
    yard = Yard(clock)
    name, yard.runner.stubborn = yard.ghost(), 99
    yard.dispatcher.tick()
    yard.store.inner.create(keys.unsettled("z" * 26, 3), b"{}")
    for _ in range(5):
        clock.sleep(10.0)
        yard.dispatcher.sweeper.sweep(at_once=True)
    assert [receipt.name for receipt in yard.runner.released] == [name]


@pytest.mark.parametrize("unseen", ["unsettled/", "/launches/"])
def test_nothing_is_swept_while_bills_cannot_be_read(clock: FakeClock, unseen: str) -> None:
    yard = Yard(clock)
    yard.dispatcher.tick()
    name = yard.ghost()
    fresh = yard.another()
    yard.store.silent = lambda key: unseen in key
    for _ in range(5):
        tick = fresh.tick()
        clock.sleep(20.0)
    assert yard.runner.released == []
    assert "cannot be judged, for the bills" in tick.troubles["runner here"]
    assert not fresh.sweeper.clean
    yard.store.heal()
    clock.sleep(SWEEP_EVERY_S)
    fresh.sweeper.sweep()
    assert [receipt.name for receipt in yard.runner.released] == [name]
    assert "runner here" not in fresh.sweeper.troubles


def test_a_corrupt_intent_may_name_any_machine(clock: FakeClock) -> None:
    yard = Yard(clock)
    yard.dispatcher.tick()
    yard.ghost()
    key = keys.intent(yard.jobs[0], 1)
    yard.store.inner.delete(key)
    yard.store.inner.create(key, b"{")
    fresh = yard.another()
    fresh.sweeper.sweep(at_once=True)
    assert yard.runner.released == [] and key in fresh.sweeper.troubles["runner here"]


def test_a_platform_that_does_not_tell_is_named_and_asked_later(clock: FakeClock) -> None:
    yard = Yard(clock)
    name, yard.runner.down = yard.ghost(), True
    tick = yard.dispatcher.tick()
    assert tick.troubles["runner here"] == (
        "it does not tell what it still runs for us (Unreachable: the platform does not answer)"
    )
    yard.runner.down = False
    for _ in range(3):
        clock.sleep(2.0)
        tick = yard.dispatcher.tick()
    assert [receipt.name for receipt in yard.runner.released] == [name]
    assert "runner here" not in tick.troubles


def test_a_platform_that_refuses_to_tell_is_named_and_not_waited_for(clock: FakeClock) -> None:
    yard = Yard(clock, jobs=0)
    yard.runner.refuses = True
    began_s = clock.monotonic_s()
    assert yard.dispatcher.drain(60.0) and clock.monotonic_s() == began_s
    assert "Rejected: the key is not known" in yard.dispatcher.sweeper.troubles["runner here"]
    yard.runner.refuses = False
    yard.store.silent = lambda key: keys.UNSETTLED in key
    yard.dispatcher.sweeper.sweep(at_once=True)
    assert not yard.dispatcher.sweeper.clean, "this time it was the store that did not tell"
    yard.store.heal()
    yard.runner.down = True
    began_s = clock.monotonic_s()
    assert yard.dispatcher.drain(60.0) and clock.monotonic_s() >= began_s + 60.0
    name, yard.runner.down = yard.ghost(), False
    assert yard.dispatcher.drain(60.0)
    assert [receipt.name for receipt in yard.runner.released] == [name]


def test_it_is_asked_at_the_beginning_and_then_now_and_then(clock: FakeClock) -> None:
    yard = Yard(clock)
    for _ in range(int(3.5 * SWEEP_EVERY_S / 10.0)):
        yard.dispatcher.tick()
        clock.sleep(10.0)
    assert yard.runner.asked == 4
    asked = yard.runner.asked
    yard.dispatcher.look()
    assert yard.runner.asked == asked, "a look does nothing"


def test_draining_ends_what_has_no_bill(clock: FakeClock) -> None:
    yard = Yard(clock, jobs=1)
    yard.dispatcher.tick()
    yard.finish(0)
    name, yard.runner.stubborn = yard.ghost(), 3
    assert yard.dispatcher.drain(60.0)
    assert yard.runner.runs == {}
    assert name in {receipt.name for receipt in yard.runner.released}
    assert isinstance(yard.store.read(keys.unsettled(yard.jobs[0], 1)), Missing)


def test_draining_says_when_an_orphan_would_not_end(clock: FakeClock) -> None:
    yard = Yard(clock, jobs=0)
    yard.ghost()
    yard.runner.stubborn = 10**6
    assert not yard.dispatcher.drain(20.0)
    yard.runner.stubborn = 0
    assert yard.dispatcher.drain(20.0)


def test_draining_does_not_hang_on_a_platform_that_does_not_tell(clock: FakeClock) -> None:
    yard = Yard(clock, jobs=0)
    yard.runner.down = True
    began_s = clock.monotonic_s()
    assert yard.dispatcher.drain(20.0), "no bill is open and no orphan is known"
    assert clock.monotonic_s() - began_s < 30.0
    assert yard.runner.asked > 2
