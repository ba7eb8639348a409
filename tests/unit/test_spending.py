"""Budgets of plans: what was settled and what still runs, and what happens when it is spent."""

from __future__ import annotations

from tenure.dispatch import decide
from tenure.dispatch.contract import Bounded, Closed
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.plan.enlist import enlist
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Confirmed, Lease, acquire, read_witness
from tenure_protocol.lease.machine import Finish, Hold, Release
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Written
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import ListingRunner

SILENCE_S = 36_000.0
HOUR = 3600.0


class Purse:
    """A plan with a budget over a ladder of one rung that costs and, where asked for, one that is free."""

    def __init__(self, clock: FakeClock, budget: dict[str, float], free: bool = False) -> None:
        self.clock = clock
        self.store = FaultyStore(clock)
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {}, seed, 1, "c", "d", 100, max_silence_s=SILENCE_S)
            for seed in range(2)
        ]  # fmt: skip
        self.free = free
        self.rungs = ["paid", "own"] if free else ["paid"]
        terms: dict[str, object] = {"rungs": self.rungs, "priority": 0, "budget": dict(budget)}
        enlist(self.store, "p", "e", self.specs, terms, clock)
        self.runner = ListingRunner()
        self.dispatcher = self.another()

    def another(self) -> Dispatcher:
        capacity = ListingRunner.capacity({})
        rungs = [Rung("paid", "paid", self.runner, capacity, price=Price("usd", 2.0))]
        if self.free:
            rungs.append(Rung("own", "own", ListingRunner(), capacity, price=Price("usd", 0.0)))
        return Dispatcher(self.store, rungs, self.clock)

    def claim(self, number: int = 0, launch: int = 1) -> Lease:
        spec = self.specs[number]
        key = keys.witness_of(spec)
        lease = acquire(self.store, key, spec.id, launch, SILENCE_S, 1.0, self.clock)
        assert isinstance(lease, Lease)
        return lease

    def asked(self, number: int = 0) -> str | None:
        w = read_witness(self.store, keys.witness_of(self.specs[number])).witness
        return w.asked.what if w and w.asked else None

    def phase(self, number: int = 0) -> str:
        w = read_witness(self.store, keys.witness_of(self.specs[number])).witness
        return w.phase if w else "absent"

    def reason(self, tick: Tick, number: int = 0) -> str:
        job = self.specs[number].id
        return next(why for action, why in reversed(tick.decisions) if action.job == job)


def test_a_spent_budget_stops_the_jobs_with_a_last_milestone_and_then_ends_them(
    clock: FakeClock,
) -> None:
    """Two machines of 2 usd an hour, and 3 usd: three quarters of an hour."""
    purse = Purse(clock, {"usd": 3.0})
    purse.dispatcher.tick()
    leases = [purse.claim(number) for number in range(2)]
    clock.sleep(0.7 * HOUR)
    purse.dispatcher.tick()
    assert purse.asked() is None
    clock.sleep(0.1 * HOUR)
    tick = purse.dispatcher.tick()
    assert purse.asked(0) == purse.asked(1) == "yield"
    assert purse.reason(tick).endswith("the budget of plan p is spent: 3.20 of 3.00 usd")
    for lease in leases:
        assert isinstance(lease.write(Hold(lease.holder, 1, SILENCE_S)), Confirmed)
        assert isinstance(lease.write(Release(lease.holder, 1, 10, "asked")), Confirmed)
    purse.dispatcher.tick()
    assert purse.phase(0) == purse.phase(1) == "cancelled"
    w = read_witness(purse.store, keys.witness_of(purse.specs[0])).witness
    assert w and w.reason and "no allowed rung (paid: the budget of plan p is spent" in w.reason
    assert len(purse.runner.launched) == 2


def test_what_is_paid_in_another_currency_or_free_goes_on(clock: FakeClock) -> None:
    purse = Purse(clock, {"usd": 1.0}, free=True)
    purse.dispatcher.tick()
    lease = purse.claim()
    clock.sleep(HOUR)
    purse.dispatcher.tick()
    assert purse.asked() == "yield"
    assert isinstance(lease.write(Hold(lease.holder, 1, SILENCE_S)), Confirmed)
    assert isinstance(lease.write(Release(lease.holder, 1, 10, "asked")), Confirmed)
    tick = purse.dispatcher.tick()
    launches = [action for action, _ in tick.decisions if isinstance(action, decide.Launch)]
    assert [launch.rung for launch in launches] == ["own"]


def test_nothing_is_launched_on_a_budget_that_another_dispatcher_has_spent(
    clock: FakeClock,
) -> None:
    purse = Purse(clock, {"usd": 1.0})
    purse.dispatcher.tick()
    lease = purse.claim()
    clock.sleep(HOUR)
    purse.runner.settlements = [Closed("gone", 1800.0), Closed("gone", 1800.0)]
    assert isinstance(lease.write(Finish(lease.holder, 1, 0, "done", {})), Confirmed)
    other = purse.claim(1)
    assert isinstance(other.write(Release(other.holder, 1, 10, "notice")), Confirmed)
    fresh = purse.another()
    fresh.tick()  # closes both bills: 1 usd each, as the platform tells
    clock.sleep(1.0)
    fresh.tick()
    purse.another().tick()
    assert len(purse.runner.launched) == 2 and purse.phase(1) == "cancelled"


def test_a_bill_that_is_being_settled_is_never_taken_for_unspent(clock: FakeClock) -> None:
    """Between the end of a machine and the next reading of the ledger its cost stands nowhere else."""
    purse = Purse(clock, {"usd": 2.0})
    purse.dispatcher.tick()
    lease = purse.claim()
    clock.sleep(HOUR - 10.0)
    purse.dispatcher.tick()  # reads the ledger, which is empty, and not again for a minute
    clock.sleep(10.0)
    assert isinstance(lease.write(Release(lease.holder, 1, 10, "notice")), Confirmed)
    for _ in range(4):
        purse.dispatcher.tick()
        clock.sleep(1.0)
    assert purse.phase() == "cancelled" and len(purse.runner.launched) == 2


def test_a_bill_that_was_closed_is_read_from_the_ledger_at_once(clock: FakeClock) -> None:
    purse = Purse(clock, {"usd": 3.0})
    purse.dispatcher.tick()
    leases = [purse.claim(number) for number in range(2)]
    clock.sleep(HOUR - 10.0)
    purse.dispatcher.tick()  # reads the ledger, and not again for a minute
    clock.sleep(10.0)
    for lease in leases:
        assert isinstance(lease.write(Hold(lease.holder, 1, SILENCE_S)), Confirmed)
        assert isinstance(lease.write(Finish(lease.holder, 1, 0, "done", {})), Confirmed)
    purse.dispatcher.tick()  # closes both bills: 2 usd each
    assert purse.dispatcher.world.bills == {}
    purse.dispatcher.tick()
    assert ("p", "usd") in purse.dispatcher.snapshot().spent


def test_a_bound_that_is_in_the_ledger_is_not_counted_a_second_time(clock: FakeClock) -> None:
    """The platform ends the machine in an hour: 4 usd at most, and the bill stays open."""
    purse = Purse(clock, {"usd": 7.0})
    purse.dispatcher.tick()
    leases = [purse.claim(number) for number in range(2)]
    clock.sleep(HOUR)
    ends = Bounded(clock.wall_s() + HOUR, "it ends by itself")
    purse.runner.settlements = [ends] * 9
    assert isinstance(leases[0].write(Release(leases[0].holder, 1, 10, "notice")), Confirmed)
    purse.dispatcher.tick()
    clock.sleep(61.0)
    purse.dispatcher.tick()
    assert purse.asked(1) is None, "4 of the bound and 2 of the other machine are less than 7"


def test_a_ledger_that_cannot_be_read_launches_nothing_new_on_what_was_known_as_spent(
    clock: FakeClock,
) -> None:
    purse = Purse(clock, {"usd": 0.5})
    purse.dispatcher.tick()
    purse.claim()
    clock.sleep(HOUR)
    purse.store.silent = lambda key: key.startswith(keys.LEDGER)
    tick = purse.dispatcher.tick()
    assert keys.LEDGER in tick.troubles
    assert purse.asked() == "yield", "what its open machines cost is known all the same"


def test_a_corrupt_entry_is_named_and_the_others_count(clock: FakeClock) -> None:
    purse = Purse(clock, {"usd": 0.5})
    key = keys.ledger("other", purse.specs[0].id, 7, "closed")
    assert isinstance(purse.store.create(key, b"{}"), Written)
    purse.dispatcher.tick()
    purse.claim()
    clock.sleep(HOUR)
    tick = purse.dispatcher.tick()
    assert key in tick.troubles and purse.asked() == "yield"


def test_a_plan_without_a_budget_costs_no_reading(clock: FakeClock) -> None:
    purse = Purse(clock, {})
    for _ in range(3):
        purse.dispatcher.tick()
        clock.sleep(HOUR)
    assert not [call for call, key in purse.store.calls if call == "list" and key == keys.LEDGER]


def test_a_larger_budget_lets_the_plan_go_on(clock: FakeClock) -> None:
    purse = Purse(clock, {"usd": 1.0})
    purse.dispatcher.tick()
    purse.claim()
    clock.sleep(0.6 * HOUR)
    terms: dict[str, object] = {"rungs": purse.rungs, "priority": 0, "budget": {"usd": 9.0}}
    enlist(purse.store, "p", "e", purse.specs, terms, clock)
    purse.dispatcher.tick()
    assert purse.asked() is None
