"""Several jobs on one machine: who goes together, and what one of them may do to the others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tenure.cli import release as release_command
from tenure.dispatch import packing
from tenure.dispatch.contract import (
    Capacity,
    Closed,
    Job,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Rejected,
    Settlement,
    Unreachable,
)
from tenure.dispatch.decide import ReleaseBill
from tenure.dispatch.ladder import Rung, launch_name, pack_name
from tenure.dispatch.loop import Dispatcher, receipt_of
from tenure.dispatch.packing import Filling, Sized, paid
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import canonical, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Lease, acquire, change, read_witness
from tenure_protocol.lease.machine import Cancel, Event, Finish, Hold, Reserve, Revoke
from tenure_protocol.records import Aboard, Intent, JobSpec, LaunchReceipt, SettlementRecord, load
from tenure_protocol.store.api import Found, Missing, Outcome, Store
from tenure_protocol.store.api import Unknown as NoAnswer
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import ListingRunner


def packs(
    jobs: Sequence[tuple[str, int]], capacity: Capacity, free: int
) -> tuple[tuple[str, ...], ...]:
    """The machines that take ``jobs``, each (job, its cards), in the order of turns."""
    filling = Filling(capacity, free)
    for job, cards in jobs:
        if filling.has_room(cards):
            filling.take(job, cards)
    return tuple(tuple(each.job for each in machine) for machine in filling.machines)


def test_who_does_not_fit_is_left() -> None:
    jobs = [("a", 1), ("b", 1), ("c", 2), ("d", 1)]
    assert packs(jobs, Capacity(2, 2, 600.0, cards=2), free=2) == (("a", "b"), ("c",))


WANTS = st.lists(st.integers(1, 5), max_size=12)


@given(WANTS, st.integers(1, 4), st.integers(1, 4), st.integers(-1, 5))
def test_no_machine_is_overfull_and_nobody_is_on_two(
    wants: list[int], per_launch: int, cards: int, free: int
) -> None:
    jobs = [(f"j{n:02d}", need) for n, need in enumerate(wants)]
    made = packs(jobs, Capacity(per_launch, 9, 60.0, cards=cards), free)
    need = dict(jobs)
    assert len(made) <= max(0, free)
    for machine in made:
        assert 1 <= len(machine) <= per_launch
        assert sum(need[job] for job in machine) <= cards
        assert list(machine) == sorted(machine), "the order of turns"
    aboard = [job for machine in made for job in machine]
    assert len(aboard) == len(set(aboard))
    assert [machine[0] for machine in made] == sorted(machine[0] for machine in made)


@given(WANTS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 5))
def test_nobody_is_left_whom_a_machine_has_room_for(
    wants: list[int], per_launch: int, cards: int, free: int
) -> None:
    jobs = [(f"j{n:02d}", need) for n, need in enumerate(wants)]
    made = packs(jobs, Capacity(per_launch, 9, 60.0, cards=cards), free)
    need = dict(jobs)
    aboard = {job for machine in made for job in machine}
    for job in need.keys() - aboard:
        assert need[job] > cards or len(made) == free
        for machine in made:
            full = len(machine) == per_launch
            assert full or sum(map(need.__getitem__, machine)) + need[job] > cards


# ------------------------------------------------------------------------------- equal work


@dataclass(frozen=True)
class Load:
    """Jobs of a round, each (its cards, its work), and the machines that they are for."""

    jobs: tuple[tuple[int, float | None], ...]
    cards: int
    per_launch: int
    free: int

    def fill(self, known: bool = True) -> Filling:
        """A round of those that find room."""
        filling = Filling(Capacity(self.per_launch, 9, 60.0, cards=self.cards), self.free)
        for n, (cards, work) in enumerate(self.jobs):
            if filling.has_room(cards):
                filling.take(f"j{n:02d}", cards, work if known else None)
        return filling


def least(jobs: list[Sized], load: Load, machines: int) -> float:
    """What the cheapest way to put ``jobs`` onto so many machines comes to.

    Every way is tried, but those that are too dear already.
    """
    best = math.inf
    made: list[list[Sized]] = []

    def put(n: int) -> None:
        nonlocal best
        price = paid(tuple(map(tuple, made)))
        if price >= best:
            return
        if n == len(jobs):
            best = price
            return
        for machine in made:
            cards = sum(each.cards for each in machine) + jobs[n].cards
            if cards <= load.cards and len(machine) < load.per_launch:
                machine.append(jobs[n])
                put(n + 1)
                machine.pop()
        if len(made) < machines:
            made.append([jobs[n]])
            put(n + 1)
            made.pop()

    put(0)
    return best


WORKS = st.integers(0, 12).map(float)
SOME_WORKS = WORKS | st.none()


@st.composite
def loads(
    draw: st.DrawFn,
    works: st.SearchStrategy[float | None] = SOME_WORKS,
    most: int = 7,
    one: bool = False,
) -> Load:
    cards = draw(st.integers(1, 5))
    needs = st.just(draw(st.integers(1, cards))) if one else st.integers(1, cards)
    jobs = draw(st.lists(st.tuples(needs, works), min_size=1, max_size=most))
    return Load(tuple(jobs), cards, draw(st.integers(1, 5)), draw(st.integers(1, 5)))


@settings(deadline=None)
@given(loads(most=20))
def test_jobs_of_known_work_are_neither_lost_nor_doubled_and_the_limits_hold(load: Load) -> None:
    before, after = load.fill(known=False), load.fill()
    aboard = [each for machine in after.machines for each in machine]
    placed = {each.job for machine in before.machines for each in machine}
    assert len(aboard) == len(placed) and {each.job for each in aboard} == placed
    assert len(after.machines) <= len(before.machines) and after.free == before.free
    for machine in after.machines:
        assert 1 <= len(machine) <= load.per_launch
        assert sum(each.cards for each in machine) <= load.cards
        assert list(machine) == sorted(machine, key=lambda each: each.turn)
        for each in machine:
            assert after.together(each.job) == tuple(one.job for one in machine)
    assert [machine[0].turn for machine in after.machines] == sorted(
        machine[0].turn for machine in after.machines
    )


@settings(deadline=None)
@given(loads(most=20))
def test_no_more_is_paid_than_by_first_fit(load: Load) -> None:
    after = load.fill()
    sized = {each.job: each for machine in after.machines for each in machine}
    before = tuple(
        tuple(sized[each.job] for each in machine) for machine in load.fill(known=False).machines
    )
    assert paid(after.machines) <= paid(before)
    if paid(after.machines) == paid(before):
        assert after.machines == before, "nobody is moved for nothing"


@settings(deadline=None)
@given(loads(works=WORKS))
def test_the_least_is_paid_for_a_few_jobs_of_any_cards(load: Load) -> None:
    made = load.fill().machines
    jobs = [each for machine in made for each in machine]
    first_fit = len(load.fill(known=False).machines)
    assert paid(made) == pytest.approx(least(jobs, load, first_fit))


@settings(deadline=None)
@given(loads(most=8, one=True))
def test_the_least_is_paid_where_all_need_the_same_number_of_cards(load: Load) -> None:
    """With jobs of unknown work among them, too: what is known of the sum is the least."""
    made = load.fill().machines
    jobs = [each for machine in made for each in machine]
    assert paid(made) == pytest.approx(least(jobs, load, len(jobs)))


@settings(deadline=None)
@given(loads(works=WORKS, most=8))
def test_in_order_of_length_at_most_twice_the_least_is_paid(load: Load) -> None:
    """What more jobs than can be tried out get, where the cards alone limit a machine."""
    load = replace(load, per_launch=load.cards)
    jobs = [Sized(str(n), n, *each) for n, each in enumerate(load.jobs)]
    jobs.sort(key=lambda each: -(each.lasts or 0.0))
    made = packing._first_fit(jobs, load.cards, load.per_launch)
    assert paid(made) <= 2 * least(jobs, load, len(jobs)) + 1e-9


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 60))
def test_many_jobs_of_different_cards_keep_the_limits(seed: int, count: int) -> None:
    draw = random.Random(seed)
    jobs = tuple((draw.randint(1, 4), draw.uniform(0, 1e20)) for _ in range(count))
    filling = Load(jobs, 4, 4, count).fill()
    aboard = [each.job for machine in filling.machines for each in machine]
    assert len(aboard) == len(set(aboard)) == count
    assert all(sum(each.cards for each in machine) <= 4 for machine in filling.machines)
    floor = sum(cards * work / cards for cards, work in jobs) / 4  # every card busy to the end
    assert floor <= paid(filling.machines) * (1 + 1e-12)


def test_equal_work_goes_together() -> None:
    filling = Load(((1, 9e20), (1, 1e20), (1, 8e20), (1, 2e20)), 2, 2, 2).fill()
    assert filling.together("j00") == ("j00", "j02") and filling.together("j01") == ("j01", "j03")
    assert paid(filling.machines) == 11e20, "17e20 in the order of turns"
    assert filling.spread("j00") == "work left per card 8e+20 to 9e+20 FLOPs"


def test_a_job_of_several_cards_shares_its_work_among_them() -> None:
    """12e20 FLOPs on three cards end with 4e20 on one."""
    filling = Load(((3, 12e20), (1, 5e20), (3, 15e20), (1, 4e20)), 4, 4, 2).fill()
    assert filling.together("j00") == ("j00", "j03") and filling.together("j01") == ("j01", "j02")
    assert paid(filling.machines) == 9e20


def test_what_no_order_of_length_finds_is_tried_out() -> None:
    filling = Load(((2, 0.0), (1, 8.0), (2, 16.0), (3, 9.0), (3, 21.0)), 5, 5, 4).fill()
    assert paid(filling.machines) == 16.0, "18 in order of length, and of turns"


def test_jobs_of_unknown_work_keep_the_order_of_turns() -> None:
    filling = Load(
        ((1, None), (1, 1e20), (1, None), (1, 9e20), (1, None), (1, 8e20)), 2, 2, 3
    ).fill()
    assert filling.together("j03") == ("j03", "j05")
    assert filling.together("j01") == ("j00", "j01") and filling.together("j02") == ("j02", "j04")
    assert filling.spread("j01") == "work left per card 1e+20 to 1e+20 FLOPs, 1 unknown"
    assert filling.spread("j02") == ""


@pytest.mark.parametrize("work", [math.nan, math.inf, -1.0])
def test_an_amount_of_work_that_can_be_none_is_unknown(work: float) -> None:
    filling = Load(((1, work), (1, 1.0), (1, 9.0), (1, 9.0)), 2, 2, 2).fill()
    assert filling.together("j02") == ("j02", "j03") and paid(filling.machines) == 10.0


def test_who_comes_after_a_look_is_distributed_too() -> None:
    filling = Filling(Capacity(2, 9, 60.0, cards=2), 2)
    filling.take("a", 1, 9.0)
    filling.take("b", 1, 1.0)
    assert filling.together("a") == ("a", "b")
    filling.take("c", 1, 9.0)
    assert filling.together("a") == ("a", "c") and filling.together("b") == ("b",)
    assert filling.free == 0 and filling.has_room(1) and not filling.has_room(2)


def test_who_has_a_place_keeps_it() -> None:
    filling = Filling(Capacity(2, 9, 60.0, cards=2), 1)
    for _ in range(2):
        filling.take("a", 1)
    filling.take("b", 1)
    filling.take("a", 1)
    assert filling.together("a") == ("a", "b") and not filling.has_room(1)


def test_a_machine_that_is_kept_takes_nobody_on() -> None:
    filling = Filling(Capacity(2, 9, 60.0, cards=2), 2)
    filling.keep()
    assert filling.opens(1)
    filling.take("a", 1)
    assert filling.has_room(1) and not filling.opens(1)
    assert not filling.has_room(2) and filling.opens(2)
    assert filling.free == 0
    filling.take("b", 1)
    assert filling.together("a") == ("a", "b") and not filling.has_room(1)


# --------------------------------------------------------------------------------- their names


def test_a_pack_has_one_name_whatever_a_pack_of_one_has_todays() -> None:
    two = [("j", 1), ("k", 3)]
    assert pack_name("s3://b", two[:1]) == launch_name("s3://b", "j", 1)
    assert pack_name("s3://b", two) == pack_name("s3://b", two)
    others = [pack_name("s3://c", two), pack_name("s3://b", two[::-1]),
              pack_name("s3://b", [("j", 1), ("k", 4)])]  # fmt: skip
    assert len({pack_name("s3://b", two), *others}) == 4
    job = "a" * 26
    assert len(pack_name("s3://b", [(job, 1), (job, 2)])) <= len(launch_name("s3://b", job, 1))


# ---------------------------------------------------------------------------- the dispatcher


class MachineRunner(ListingRunner):
    """Machines of two cards: which jobs each was made for, and how often its end was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.machines: list[tuple[Job, ...]] = []

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        if self.failures:
            raise self.failures.pop(0)
        self.machines.append(tuple(jobs))
        self.launched += jobs
        together = tuple(job.job_id for job in jobs)
        return Receipt(together, "here", jobs[0].name, "NVIDIA T4", 0.0, {"id": len(self.machines)})


class Park:
    """Machines of two cards, one dispatcher and some jobs of one card."""

    def __init__(
        self,
        jobs: int = 2,
        cards: int = 1,
        machines: int = 2,
        store: Store | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.clock = clock
        self.store = store or MemoryStore(clock)
        self.runner = MachineRunner()
        self.capacity = Capacity(2, machines, 60.0, cards=2)
        self.dispatcher = self.another()
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {}, seed, 1, "c", "d", 10, cards=cards)
            for seed in range(jobs)
        ]
        self.jobs = enlist(self.store, "p", "e", self.specs, {"rungs": ["pairs"]}, clock)

    def another(self) -> Dispatcher:
        rung = Rung("pairs", "here", self.runner, self.capacity)
        return Dispatcher(self.store, [rung], self.clock)

    def claim(self, number: int, launch: int = 1) -> Lease:
        key = keys.witness_of(self.specs[number])
        lease = acquire(self.store, key, self.jobs[number], launch, 100.0, 1.0, self.clock)
        assert isinstance(lease, Lease)
        return lease

    def finish(self, lease: Lease) -> None:
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))

    def order(self, number: int, event: Event) -> None:
        key = keys.witness_of(self.specs[number])
        stored = read_witness(self.store, key)
        done = change(self.store, key, self.jobs[number], stored, event, self.clock)
        assert isinstance(done, Applied)

    def intent(self, number: int, launch: int = 1) -> Intent:
        key = keys.intent(self.jobs[number], launch)
        found = self.store.read(key)
        assert isinstance(found, Found)
        return load(Intent, found.body, key)

    def is_open(self, number: int, launch: int = 1) -> bool:
        key = keys.unsettled(self.jobs[number], launch)
        return not isinstance(self.store.read(key), Missing)

    def settlements(self, number: int, launch: int = 1) -> list[SettlementRecord]:
        prefix = keys.launch(self.jobs[number], launch) + "settlement-"
        found = []
        for row in self.store.list(prefix):
            body = self.store.read(row.key)
            assert isinstance(body, Found)
            found.append(load(SettlementRecord, body.body, row.key))
        return found


def test_two_jobs_are_one_launch_with_one_name() -> None:
    park = Park(3)
    tick = park.dispatcher.tick()
    assert [len(machine) for machine in park.runner.machines] == [2, 1]
    first, second = park.runner.machines[0]
    assert first.name == second.name == pack_name(park.store.url, [(j, 1) for j in park.jobs[:2]])
    assert park.runner.machines[1][0].name == launch_name(park.store.url, park.jobs[2], 1)
    assert (first.launch, second.launch, first.cards) == (1, 1, 1)
    assert tick.reason(park.jobs[0]) == (
        "nobody has run it yet; 1 of 2 slots of rung pairs left; "
        "with 1 other job on one machine of 2 cards"
    )
    assert tick.reason(park.jobs[2]).endswith("alone on one machine of 2 cards")
    for number in range(2):
        assert park.intent(number).beside == ((park.jobs[1 - number], 1),)
        found = park.store.read(keys.receipt(park.jobs[number], 1))
        assert isinstance(found, Found)
        receipt = load(LaunchReceipt, found.body, "receipt")
        assert receipt.jobs == tuple(park.jobs[:2]) and receipt.handle == {"id": 1}
    assert park.intent(2).pack is None, "as an older Tenure reads it"


def test_jobs_of_two_cards_have_a_machine_each() -> None:
    park = Park(3, cards=2)
    tick = park.dispatcher.tick()
    assert [len(machine) for machine in park.runner.machines] == [1, 1]
    assert "all 2 slots of rung pairs go to jobs before it" in tick.reason(park.jobs[2])
    assert "all 2 slots of rung pairs are taken" in park.dispatcher.tick().reason(park.jobs[2])


def test_a_job_that_no_machine_has_the_cards_for_ends_in_words() -> None:
    park = Park(1, cards=3)
    park.dispatcher.tick()
    w = read_witness(park.store, keys.witness_of(park.specs[0])).witness
    assert w and w.phase == "cancelled"
    assert w.reason == "no allowed rung (pairs: its machine has 2 cards, the job needs 3)"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_machine_is_kept_for_whoever_is_still_on_it(restarted: bool) -> None:
    park = Park()
    park.dispatcher.tick()
    done, goes_on = park.claim(0), park.claim(1)
    park.finish(done)
    dispatcher = park.another() if restarted else park.dispatcher
    tick = dispatcher.tick()
    assert park.runner.released == []
    assert tick.reason(park.jobs[0]) == (
        "it is finished; the bill of launch 1 stays open for launch 1 of job "
        f"{park.jobs[1]} on its machine"
    )
    park.finish(goes_on)
    park.runner.settlements = [Pending("it is being ended")]
    dispatcher.tick()
    assert [receipt.jobs for receipt in park.runner.released] == [tuple(park.jobs)]
    assert park.is_open(0) and park.is_open(1)
    assert dispatcher.drain(5.0, 0.01)
    assert len(park.runner.released) == 2, "one machine, asked for once more"
    assert not park.is_open(0) and not park.is_open(1)
    assert [s.outcome for s in park.settlements(0)] == ["pending", "closed"]
    assert [s.outcome for s in park.settlements(1)] == ["pending", "closed"]


def test_a_crash_before_the_receipts_is_found_by_the_name_of_the_machine() -> None:
    park = Park()
    park.dispatcher.tick()
    for number in range(2):
        park.store.delete(keys.receipt(park.jobs[number], 1))
        park.finish(park.claim(number))
    assert park.another().drain(5.0, 0.01)
    (receipt,) = park.runner.released
    assert receipt.name == park.intent(0).name and receipt.handle == {}
    assert receipt.jobs == tuple(park.jobs)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_receipt_is_enough_for_the_machine(lost: int) -> None:
    park = Park()
    park.dispatcher.tick()
    park.store.delete(keys.receipt(park.jobs[lost], 1))
    for number in range(2):
        park.finish(park.claim(number))
    assert park.another().drain(5.0, 0.01)
    assert [receipt.handle for receipt in park.runner.released] == [{"id": 1}]


def test_a_crash_between_the_settlements_of_one_machine_closes_the_rest() -> None:
    park = Park()
    park.dispatcher.tick()
    for number in range(2):
        park.finish(park.claim(number))
    park.store.delete(keys.unsettled(park.jobs[0], 1))
    assert park.another().drain(5.0, 0.01)
    assert not park.is_open(1)


def test_a_revoked_job_of_a_pack_is_launched_on_another_machine() -> None:
    park = Park(machines=1)
    park.dispatcher.tick()
    park.claim(0)
    stays = park.claim(1)
    park.order(0, Revoke("ann", "poisoned"))
    tick = park.dispatcher.tick()
    assert "all 1 slots of rung pairs are taken" in tick.reason(park.jobs[0])
    assert park.runner.released == [] and len(park.runner.machines) == 1
    park.finish(stays)
    for _ in range(3):
        park.dispatcher.tick()
    again = park.runner.machines[1]
    assert [(job.job_id, job.launch) for job in again] == [(park.jobs[0], 2)]
    assert again[0].name != park.runner.machines[0][0].name


def test_two_lapsed_jobs_do_not_keep_their_machine_for_each_other() -> None:
    with FakeClock() as clock:
        park = Park(machines=1, clock=clock)
        park.dispatcher.tick()
        for _ in range(20):
            clock.sleep(5.0)
            park.dispatcher.tick()
        assert [receipt.name for receipt in park.runner.released] == [park.intent(0).name]
        assert [job.launch for job in park.runner.launched] == [1, 1, 2, 2]


def test_one_lapsed_job_does_not_end_the_machine_of_another() -> None:
    with FakeClock() as clock:
        park = Park(machines=1, clock=clock)
        park.dispatcher.tick()
        lease = park.claim(1)
        for _ in range(60):
            clock.sleep(5.0)
            lease.write(Hold(lease.holder, 1, 30.0))
            tick = park.dispatcher.tick()
        assert park.runner.released == [] and len(park.runner.machines) == 1
        assert "did not claim within its 60 s window" in tick.reason(park.jobs[0])


def test_whoever_is_lost_to_a_race_falls_out_of_the_pack() -> None:
    """Between decision and act another dispatcher reserves the second of three."""
    park = Park(3)
    park.capacity = Capacity(3, 2, 60.0, cards=3)
    slow = park.another()
    real = slow._launch

    def race(pack: object) -> dict[str, str]:
        park.order(1, Reserve("elsewhere", 60.0, "another"))
        return real(pack)  # type: ignore[arg-type]

    slow._launch = race  # type: ignore[method-assign]
    tick = slow.tick()
    (machine,) = park.runner.machines
    assert [job.job_id for job in machine] == [park.jobs[0], park.jobs[2]]
    assert machine[0].name == pack_name(park.store.url, [(park.jobs[0], 1), (park.jobs[2], 1)])
    assert "decided anew" in tick.reason(park.jobs[1])
    assert park.intent(0).beside == ((park.jobs[2], 1),)


def test_a_pack_that_loses_all_but_one_has_todays_name() -> None:
    park = Park()
    park.dispatcher.world.observe()
    real = park.dispatcher._launch

    def race(pack: object) -> dict[str, str]:
        park.order(0, Cancel("ann", "no longer wanted"))
        return real(pack)  # type: ignore[arg-type]

    park.dispatcher._launch = race  # type: ignore[method-assign]
    park.dispatcher.tick()
    (machine,) = park.runner.machines
    assert [job.name for job in machine] == [launch_name(park.store.url, park.jobs[1], 1)]
    assert park.intent(1).pack is None


def test_a_launch_whose_intent_another_dispatcher_took_is_not_on_the_machine() -> None:
    park = Park()
    store, job = park.store, park.jobs[1]
    real = store.create

    def create(key: str, body: bytes) -> Outcome:
        if key == keys.intent(job, 1):
            void = Intent(job, 1, "", "", "", "other", "never launched", 0.0)
            real(key, encode(void))
        return real(key, body)

    store.create = create  # type: ignore[method-assign]
    tick = park.dispatcher.tick()
    (machine,) = park.runner.machines
    assert [each.job_id for each in machine] == [park.jobs[0]]
    assert "another dispatcher found this launch unmade" in tick.reason(job)
    found = store.read(keys.receipt(park.jobs[0], 1))
    assert isinstance(found, Found)
    jobs = load(LaunchReceipt, found.body, "r").jobs
    assert jobs == (park.jobs[0],), "it alone pays for the machine"


@pytest.mark.parametrize("applied", [True, False])
def test_a_reservation_without_an_answer_is_later_a_pack_of_one(applied: bool) -> None:
    with FakeClock() as clock:
        store = FaultyStore(clock)
        park = Park(store=store, clock=clock)
        second = keys.witness_of(park.specs[1])
        real = store.create

        def create(key: str, body: bytes) -> Outcome:
            if key != second:
                return real(key, body)
            if applied:
                store.inner.create(key, body)
            store.silent = lambda key: key == second
            return NoAnswer("cut")

        store.create = create  # type: ignore[method-assign]
        park.dispatcher.tick()
        assert [[job.job_id for job in machine] for machine in park.runner.machines] == [
            park.jobs[:1]
        ]
        store.heal()
        store.create = real  # type: ignore[method-assign]
        for _ in range(4):
            clock.sleep(2.0)
            park.dispatcher.tick()
        assert [[job.job_id for job in machine] for machine in park.runner.machines] == [
            park.jobs[:1],
            park.jobs[1:],
        ]


# ----------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("failure", [NoSlots("none"), Rejected("no"), Unreachable("down")])
def test_a_failed_machine_parks_its_rung_once_and_each_job_tries_again(failure: Exception) -> None:
    with FakeClock() as clock:
        park = Park(clock=clock)
        park.runner.failures = [failure]
        tick = park.dispatcher.tick()
        assert all(type(failure).__name__ in tick.reason(job) for job in park.jobs)
        assert park.dispatcher._parked["pairs"].failures == 1, "one launch has failed"
        clock.sleep(20.0)
        park.dispatcher.tick()
        assert [(job.launch, job.cards) for job in park.runner.launched] == [(2, 1), (2, 1)]
        memories = [park.dispatcher.world.jobs[job] for job in park.jobs]
        spent = 1 if isinstance(failure, Rejected) else 0
        assert [memory.rejections for memory in memories] == [spent, spent]


AMBIGUOUS: list[Callable[[], Exception]] = [
    lambda: Unreachable("cut", sent=True),
    lambda: ProtocolError("200 and no body"),
    lambda: KeyError("data"),
]


@pytest.mark.parametrize("failure", AMBIGUOUS, ids=["unreachable", "protocol error", "a bug"])
def test_what_may_have_been_made_all_the_same_is_waited_for_and_then_ended_by_name(
    failure: Callable[[], Exception],
) -> None:
    with FakeClock() as clock:
        park = Park(clock=clock)
        park.runner.failures = [failure()]
        park.dispatcher.tick()
        for _ in range(10):
            clock.sleep(5.0)
            tick = park.dispatcher.tick()
        assert all("may claim" in tick.reason(job) for job in park.jobs)
        assert park.runner.launched == [] and park.runner.released == []
        assert park.is_open(0) and park.is_open(1)
        silent = Unreachable("the platform does not answer")
        answers: list[Settlement | Exception] = [silent, Pending("ending"), Closed("gone")]
        asked: list[Receipt] = []

        def release(receipt: Receipt) -> Settlement:
            asked.append(receipt)
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        park.runner.release = release  # type: ignore[method-assign]
        for _ in range(20):
            clock.sleep(5.0)
            park.dispatcher.tick()
            if not answers:
                break
        assert {receipt.name for receipt in asked} == {park.intent(0).name}
        assert all(receipt.handle == {} for receipt in asked)
        assert not park.is_open(0) and not park.is_open(1)


@pytest.mark.parametrize("failure", AMBIGUOUS[:2], ids=["unreachable", "protocol error"])
def test_a_ghost_machine_on_which_one_job_lives_is_kept_for_it(
    failure: Callable[[], Exception],
) -> None:
    """The create was applied, and its answer was lost: one worker claims, the other never does."""
    with FakeClock() as clock:
        park = Park(clock=clock)
        park.runner.failures = [failure()]
        park.dispatcher.tick()
        lease = park.claim(0)
        for _ in range(40):
            clock.sleep(5.0)
            lease.write(Hold(lease.holder, 1, 30.0))
            park.dispatcher.tick()
        assert park.intent(0).name not in names(park), "the machine of launch 1 is alive"
        park.finish(lease)
        for _ in range(3):
            clock.sleep(5.0)
            park.dispatcher.tick()
        assert park.intent(0).name in names(park)
        assert not park.is_open(0) and not park.is_open(1)


def names(park: Park) -> list[str]:
    """The machines whose end was asked for."""
    return [receipt.name for receipt in park.runner.released]


def test_two_dispatchers_make_one_machine() -> None:
    park = Park(4)
    other = park.another()
    for _ in range(4):
        park.dispatcher.tick()
        other.tick()
    assert sorted(job.job_id for job in park.runner.launched) == sorted(park.jobs)
    assert [len(machine) for machine in park.runner.machines] == [2, 2]


def test_a_bill_that_this_dispatcher_has_not_seen_keeps_the_machine() -> None:
    """Bills are listed in parts where there are many: one may be missing from what was decided."""
    park = Park()
    park.dispatcher.tick()
    park.finish(park.claim(0))
    park.claim(1)
    fresh = park.another()
    fresh.world.observe()
    snapshot = fresh.snapshot()
    del fresh.world.bills[park.jobs[1], 1]
    assert len(snapshot.bills) == 2
    fresh._release(ReleaseBill(park.jobs[0], 1, "pairs"), "the job is finished")
    assert park.runner.released == []


def test_a_neighbour_that_claims_after_the_decision_keeps_the_machine() -> None:
    """Both had let their window pass, and its slot was needed."""
    park = Park()
    park.dispatcher.tick()
    park.dispatcher.world.observe()
    park.dispatcher.snapshot()
    park.claim(1)
    park.dispatcher._release(ReleaseBill(park.jobs[0], 1, "pairs"), "its slot is needed")
    assert park.runner.released == []


def test_what_an_older_tenure_wrote_is_read_and_a_pack_of_one_is_written_as_it_did() -> None:
    intent = {
        "job": "j", "launch": 1, "runner": "here", "rung": "local", "name": "tenure-x-j-00001",
        "by": "d", "reason": "nobody has run it yet", "at_s": 1.5, "protocol": 1,
    }  # fmt: skip
    read = load(Intent, canonical(intent), "intent")
    assert read.pack is None and read.beside == ()
    assert encode(read) == canonical(intent)
    receipt = {
        "job": "j", "launch": 1, "runner": "here", "rung": "local", "name": "tenure-x-j-00001",
        "card": "cpu", "at_s": 1.5, "handle": {"pid": 7}, "protocol": 1,
    }  # fmt: skip
    told = load(LaunchReceipt, canonical(receipt), "receipt")
    assert receipt_of(told).jobs == ("j",)
    assert encode(told) == canonical(receipt)


def test_a_pack_without_its_own_launch_is_corrupt() -> None:
    pack = (Aboard("k", 1, 1), Aboard("l", 1, 1))
    with pytest.raises(ValueError, match="names that launch once"):
        Intent("j", 1, "here", "local", "n", "d", "why", 0.0, pack)


# ------------------------------------------------------------------------------ tenure release


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two jobs on one machine of this computer, which has ended."""
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore(tmp_path / ".tenure" / "store")
    specs = [JobSpec("e", "train", "training", "m:C", {}, s, 1, "c", "d", 10) for s in range(2)]
    jobs = enlist(store, "p", "e", specs, {"rungs": ["local"]}, SYSTEM)
    pack = tuple(Aboard(job, 1, 1) for job in jobs)
    for job in jobs:
        intent = Intent(job, 1, "here", "local", "tenure-x-pack", "d", "why", 0.0, pack)
        receipt = LaunchReceipt(
            job, 1, "here", "local", intent.name, "cpu", 0.0, {"pid": 2**22}, tuple(jobs)
        )
        store.create(keys.unsettled(job, 1), b"{}")
        store.create(keys.intent(job, 1), encode(intent))
        store.create(keys.receipt(job, 1), encode(receipt))
    return store


def release(job: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(release_command.release)
    done = CliRunner().invoke(app, [job, "--yes", "--for-s", "5"])
    return done.exit_code, done.output


def test_a_person_is_told_who_else_is_on_the_machine(shared: Store) -> None:
    one, other = (row.key.removeprefix(keys.UNSETTLED)[:26] for row in shared.list(keys.UNSETTLED))
    code, said = release(one)
    assert code == 0, said
    assert f"THE MACHINE HAS OTHERS, and they end with it: launch 1 of job {other}" in said
    assert list(shared.list(keys.UNSETTLED)) == [], "every bill of the machine is closed"
    code, said = release(other)
    assert code == 0 and "is closed already: its machine ended with launch 1 of job" in said


def test_a_person_is_not_warned_of_jobs_that_have_gone(shared: Store) -> None:
    one, other = (row.key.removeprefix(keys.UNSETTLED)[:26] for row in shared.list(keys.UNSETTLED))
    shared.delete(keys.unsettled(other, 1))
    code, said = release(one)
    assert code == 0 and "THE MACHINE HAS OTHERS" not in said and "their bills are closed" in said
