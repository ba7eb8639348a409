"""What launches cost: what is noted when a bill is settled, and how it is summed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tenure.cli import costs as command
from tenure.dispatch import ledger
from tenure.dispatch.contract import (
    Bounded,
    Capacity,
    Closed,
    Job,
    NoSlots,
    Pending,
    Receipt,
    Unreachable,
)
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.ledger import JobCost, RungCost, by_job, by_rung, once, read_ledger
from tenure.dispatch.loop import Dispatcher
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Lease, acquire
from tenure_protocol.lease.keys import part
from tenure_protocol.lease.machine import Finish, Release
from tenure_protocol.records import Aboard, Intent, JobSpec, LaunchReceipt, LedgerEntry, load
from tenure_protocol.store.api import Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import ListingRunner

PRICE = Price("usd", 0.9)


class PricedRunner(ListingRunner):
    """Its receipts tell the time by the clock of the test."""

    clock: FakeClock

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        receipt = super().launch(jobs)
        together = tuple(job.job_id for job in jobs)
        return replace(receipt, jobs=together, at_s=self.clock.wall_s(), card="NVIDIA T4")


class Till:
    """A priced rung of machines of two cards."""

    def __init__(
        self, clock: FakeClock, cards: Sequence[int] = (1,), store: Store | None = None
    ) -> None:  # fmt: skip
        self.clock = clock
        self.store = store or MemoryStore(clock)
        self.runner = PricedRunner()
        self.runner.clock = clock
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {}, seed, 1, "c", "d", 10, cards=need)
            for seed, need in enumerate(cards)
        ]
        terms: dict[str, object] = {"rungs": ["spot"], "team": "a"}
        self.jobs = enlist(self.store, "p", "e", self.specs, terms, clock)
        self.dispatcher = self.another("d1")

    def another(self, name: str) -> Dispatcher:
        capacity = Capacity(3, 4, 60.0, cards=4)
        rung = Rung(
            "spot", "here", self.runner, capacity, "nvidia-t4", "interruptible", PRICE
        )  # fmt: skip
        return Dispatcher(self.store, [rung], self.clock, name)

    def claim(self, number: int, launch: int = 1) -> Lease:
        key = keys.witness_of(self.specs[number])
        lease = acquire(self.store, key, self.jobs[number], launch, 9999.0, 1.0, self.clock)
        assert isinstance(lease, Lease)
        return lease

    def finish(self, number: int, launch: int = 1) -> None:
        lease = self.claim(number, launch)
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))

    def entries(self) -> list[LedgerEntry]:
        found, troubles = read_ledger(self.store)
        assert troubles == []
        return found


def test_a_settled_launch_has_one_entry_with_all_that_it_was_charged_for() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.dispatcher.tick()
        clock.sleep(1800.0)
        till.finish(0)
        till.dispatcher.tick()
        (entry,) = till.entries()
        (row,) = till.store.list(keys.LEDGER)
        assert row.key == f"ledger/d1/{till.jobs[0]}-00001.json"
        assert entry == LedgerEntry(
            till.jobs[0], 1, "e", "here", "spot", till.runner.launched[0].name, "NVIDIA T4",
            "interruptible", "usd", 0.9, 1800.0, 1.0,
            0.45, "closed", entry.at_s, False, "a",
        )  # fmt: skip


def test_a_machine_is_shared_by_cards() -> None:
    with FakeClock() as clock:
        till = Till(clock, cards=(1, 2, 1))
        till.dispatcher.tick()
        assert len({job.name for job in till.runner.launched}) == 1
        clock.sleep(3600.0)
        for number in range(3):
            till.finish(number)
        till.dispatcher.tick()
        entries = {entry.job: entry for entry in till.entries()}
        assert [entries[job].share for job in till.jobs] == [0.25, 0.5, 0.25]
        (total,) = by_rung(entries.values())
        assert total.launches == 1 and total.paid_h == pytest.approx(1.0, abs=0.01)
        assert total.amount == pytest.approx(0.9, abs=0.01)


def test_who_fell_out_of_a_pack_pays_nothing_and_the_others_share_it() -> None:
    pack = (Aboard("a", 1, 1), Aboard("b", 1, 1), Aboard("c", 1, 2))
    intent = Intent("a", 1, "here", "spot", "n", "d", "why", 0.0, pack)
    receipt = LaunchReceipt("a", 1, "here", "spot", "n", "t4", 0.0, {}, ("a", "c"))
    assert ledger.share(intent, receipt) == pytest.approx(1 / 3)
    assert ledger.share(intent, None) == 0.25
    assert ledger.share(replace(intent, pack=None), None) == 1.0


@pytest.mark.parametrize("failure", [NoSlots("none"), Unreachable("cut", sent=True)])
def test_what_never_was_costs_nothing(failure: Exception) -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.runner.failures = [failure]
        for _ in range(40):
            till.dispatcher.tick()
            clock.sleep(5.0)
            if till.runner.launched:
                break
        till.finish(0, launch=2)
        till.dispatcher.drain(60.0)
        assert [entry.launch for entry in till.entries()] == [2]


def test_a_machine_without_a_receipt_on_which_somebody_worked_is_paid_for() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.runner.failures = [Unreachable("applied, and then a 504", sent=True)]
        till.dispatcher.tick()
        lease = till.claim(0)
        till.dispatcher.tick()
        clock.sleep(600.0)
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
        till.dispatcher.drain(60.0)
        (entry,) = till.entries()
        assert entry.paid_s == pytest.approx(600.0, abs=2)


def test_a_machine_that_was_found_by_its_name_alone_is_paid_for_since_its_order() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.runner.failures = [Unreachable("applied, and then a 504", sent=True)]
        till.runner.settlements = [Closed("it was queued, and is ended", seen=True)]
        till.dispatcher.tick()
        clock.sleep(120.0)
        while till.runner.settlements:
            till.dispatcher.tick()
            clock.sleep(1.0)
        (entry,) = [each for each in till.entries() if each.launch == 1]
        assert 120.0 <= entry.paid_s <= 130.0, "nobody ever claimed it, and it was charged for"


def test_what_the_platform_tells_goes_before_our_clock() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.dispatcher.tick()
        clock.sleep(900.0)
        till.finish(0)
        till.runner.settlements = [Closed("gone", paid_s=120.0)]
        till.dispatcher.tick()
        (entry,) = till.entries()
        assert (entry.paid_s, entry.told) == (120.0, True)
        assert entry.amount == pytest.approx(0.03)


def test_a_bound_is_noted_and_gives_way_to_what_it_came_to() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.dispatcher.tick()
        at_s = clock.wall_s()
        clock.sleep(600.0)
        till.finish(0)
        till.runner.settlements = [Bounded(at_s + 7200.0, "it ends by itself")] * 3
        for _ in range(3):
            till.dispatcher.tick()
            clock.sleep(3.0)
        (entry,) = till.entries()
        assert (entry.outcome, entry.paid_s) == ("bounded", pytest.approx(7200.0, abs=1))
        launch = keys.launch(till.jobs[0], 1)
        settled = [row.key for row in till.store.list(f"{launch}settlement")]
        assert len(settled) == 1, "said once, until it changes"
        till.dispatcher.drain(60.0)
        (entry,) = till.entries()
        assert (entry.outcome, entry.paid_s) == ("closed", pytest.approx(610.0, abs=10))
        assert len(list(till.store.list(keys.LEDGER))) == 2


def test_a_cost_that_could_not_be_noted_keeps_the_bill_open() -> None:
    with FakeClock() as clock:
        store = FaultyStore(clock)
        till = Till(clock, store=store)
        till.dispatcher.tick()
        till.finish(0)
        store.silent = lambda key: key.startswith(keys.LEDGER)
        store.touches = lambda key: key.startswith(keys.LEDGER)
        store.writes.extend(["lost_request"] * 5)
        till.dispatcher.tick()
        assert list(store.inner.list(keys.UNSETTLED))
        store.heal()
        store.writes.clear()
        assert till.dispatcher.drain(60.0)
        assert len(till.entries()) == 1


def test_two_dispatchers_that_settle_one_launch_are_summed_once() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.dispatcher.tick()
        till.finish(0)
        other = till.another("D2 of ann@host")
        other.world.observe()
        clock.sleep(100.0)
        till.dispatcher.tick()
        clock.sleep(100.0)
        other._billing.close(other.world.bills[till.jobs[0], 1], "the job is finished")
        assert len(list(till.store.list(keys.LEDGER))) == 2
        (entry,) = till.entries()
        assert entry.paid_s == pytest.approx(100.0, abs=2), "who saw its end first"


@pytest.mark.parametrize("jump_s", [86_400.0, -3600.0])
def test_a_wall_clock_that_jumps_changes_no_cost(jump_s: float) -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.dispatcher.tick()
        clock.sleep(1800.0)
        clock.wall_skew_s += jump_s
        till.finish(0)
        till.dispatcher.tick()
        (entry,) = till.entries()
        assert entry.paid_s == pytest.approx(1800.0, abs=2)


def test_a_platform_that_could_not_be_asked_has_not_said_that_there_is_a_machine() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        till.runner.failures = [Unreachable("no answer", sent=True)]
        till.runner.settlements = [Pending("the look failed", seen=False), Closed("none bears it")]
        till.dispatcher.tick()
        for _ in range(300):
            clock.sleep(5.0)
            till.dispatcher.tick()
        assert not till.runner.settlements
        assert [entry for entry in till.entries() if entry.launch == 1] == []


def test_a_void_launch_and_a_rung_without_a_price_have_no_entry() -> None:
    with FakeClock() as clock:
        till = Till(clock)
        free = Rung("spot", "here", till.runner, Capacity(1, 2, 60.0))
        dispatcher = Dispatcher(till.store, [free], clock)
        dispatcher.tick()
        till.finish(0)
        assert dispatcher.drain(60.0)
        assert till.entries() == []


# --------------------------------------------------------------------------------------- sums

ENTRY = LedgerEntry(
    "a", 1, "e", "here", "spot", "n1", "t4", "spot", "usd", 2.0, 3600.0, 1.0, 2.0, "closed", 9.0
)


@st.composite
def entries(draw: st.DrawFn) -> LedgerEntry:
    per_h, paid_s = draw(st.sampled_from([0.0, 0.5, 2.0])), draw(st.sampled_from([0.0, 60.0, 7e3]))
    part = draw(st.sampled_from([0.25, 0.5, 1.0]))
    return replace(
        ENTRY,
        job=draw(st.sampled_from("ab")),
        launch=draw(st.integers(1, 3)),
        rung=draw(st.sampled_from(["spot", "dear"])),
        currency=draw(st.sampled_from(["usd", "credits"])),
        per_h=per_h,
        paid_s=paid_s,
        share=part,
        amount=per_h * paid_s / 3600 * part,
        outcome=draw(st.sampled_from(["closed", "bounded"])),
        told=draw(st.booleans()),
    )


@given(st.lists(entries(), max_size=12), st.randoms())
def test_each_launch_counts_once_whoever_wrote_it_and_in_whatever_order(
    written: list[LedgerEntry], rng: object
) -> None:
    kept = once(written)
    launches = [(each.job, each.launch) for each in kept]
    assert sorted(set(launches)) == launches == sorted({(e.job, e.launch) for e in written})
    shuffled = list(written)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    again = once(shuffled)
    assert [ledger._doubt(each) for each in again] == [ledger._doubt(each) for each in kept]
    for each in kept:
        same = [e for e in written if (e.job, e.launch) == (each.job, each.launch)]
        assert any(e.outcome == "closed" for e in same) is (each.outcome == "closed")


@given(st.lists(entries(), max_size=12))
def test_no_sum_crosses_a_currency_and_nothing_is_lost(written: list[LedgerEntry]) -> None:
    for currency in ("usd", "credits"):
        total = pytest.approx(sum(e.amount for e in written if e.currency == currency))
        assert sum(row.amount for row in by_rung(written) if row.currency == currency) == total
        assert sum(row.amount for row in by_job(written) if row.currency == currency) == total


def test_the_sums_of_rungs_and_jobs() -> None:
    twin = replace(ENTRY, job="b", share=0.5, amount=1.0)
    shared = [replace(ENTRY, share=0.5, amount=1.0), twin]
    other = replace(ENTRY, launch=2, rung="quota", name="n2", currency="hours", amount=4.0)
    assert by_rung([*shared, other]) == [
        RungCost("quota", "here", "hours", 1, 1.0, 4.0),
        RungCost("spot", "here", "usd", 1, 1.0, 2.0),
    ]
    assert by_job([*shared, other]) == [
        JobCost("a", "hours", 4.0),
        JobCost("a", "usd", 1.0),
        JobCost("b", "usd", 1.0),
    ]


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_writer_is_one_part_of_a_key_and_two_names_are_never_one(one: str, two: str) -> None:
    assert "/" not in part(one) and 1 <= len(part(one)) <= 60 and part(one)[0] != "."
    assert part(one).isascii()
    assert (part(one) == part(two)) is (one == two)


# ------------------------------------------------------------------------------------ command


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, list[str]]:
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore(tmp_path / ".tenure" / "store")
    specs = [JobSpec("e", "train", "training", "m:C", {}, s, 1, "c", "d", 10) for s in range(2)]
    jobs = enlist(store, "p", "e", specs, {"rungs": ["local"]}, SYSTEM)
    enlist(store, "q", "e", specs[1:], {"rungs": ["local"]}, SYSTEM)
    for job, code in zip(specs, (0, 10), strict=True):
        lease = acquire(store, keys.witness_of(job), job.id, 0, 99.0, 1.0, SYSTEM)
        assert isinstance(lease, Lease)
        if code:
            lease.write(Release(lease.holder, 1, code, "reclaimed"))
        else:
            lease.write(Finish(lease.holder, 1, 0, "finished", {}))
    rows = [
        replace(ENTRY, job=jobs[0]),
        replace(ENTRY, job=jobs[1], name="n2"),
        replace(ENTRY, job=jobs[1], launch=2, name="n3", rung="k", currency="hours"),
    ]
    for writer_name in ("d1", "d2"):
        for each in rows:
            key = keys.ledger(writer_name, each.job, each.launch, each.outcome)
            store.create(key, encode(each))
    store.create(keys.unsettled(jobs[0], 7), b"{}")
    return store, jobs


def run(*args: str) -> tuple[str, str]:
    import typer

    app = typer.Typer()
    app.command()(command.costs)
    done = CliRunner().invoke(app, list(args))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout, done.stderr


def test_the_command_prints_what_each_rung_and_job_cost(shop: tuple[Store, list[str]]) -> None:
    _, jobs = shop
    told = json.loads(run("--json")[0])
    assert told == {
        "rungs": [
            {"rung": "k", "runner": "here", "currency": "hours", "launches": 1, "paid_h": 1.0,
             "amount": 2.0},
            {"rung": "spot", "runner": "here", "currency": "usd", "launches": 2, "paid_h": 2.0,
             "amount": 4.0},
        ],
        "jobs": sorted(
            [
                {"job": jobs[0], "currency": "usd", "amount": 2.0},
                {"job": jobs[1], "currency": "hours", "amount": 2.0},
                {"job": jobs[1], "currency": "usd", "amount": 2.0},
            ],
            key=lambda row: (row["job"], row["currency"]),
        ),
    }  # fmt: skip
    words, warned = run()
    assert "1 of 2 jobs finished, for 4.0000 usd each" in words
    assert "1 of 2 jobs finished, for 2.0000 hours each" in words
    assert "1 launches are not settled yet" in warned


def test_the_command_of_one_plan(shop: tuple[Store, list[str]]) -> None:
    _, jobs = shop
    told = json.loads(run("q", "--json")[0])
    assert {row["job"] for row in told["jobs"]} == {jobs[1]}
    assert "none of 1 jobs has finished" in run("q")[0]
    told = json.loads(run("p", "--json")[0])
    assert {row["job"] for row in told["jobs"]} == set(jobs)


def test_a_corrupt_entry_is_named_and_the_others_are_summed(shop: tuple[Store, list[str]]) -> None:
    store, _ = shop
    store.create("ledger/d3/x-00001.json", b"{")
    words, warned = run()
    assert "ledger/d3/x-00001.json is corrupt" in warned and "4.0000" in words


def test_an_entry_that_cannot_be_is_corrupt() -> None:
    body = encode(ENTRY)
    assert load(LedgerEntry, body, "k") == ENTRY
    with pytest.raises(ValueError, match="share"):
        replace(ENTRY, share=0.0)
    with pytest.raises(ValueError, match="negative"):
        replace(ENTRY, paid_s=-1.0)
