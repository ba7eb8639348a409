"""What a finished job costs with all attempts counted, and that the ledger is what was billed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.dispatch.history import Running
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.ledger import LedgerBook, once, read_ledger
from tenure.dispatch.loop import Dispatcher
from tenure.report.costs import NO_TEAM, CostRow, JobEnd, cost_table, job_ends, of_jobs
from tenure.sim.pool_cloud import Machine
from tenure.sim.pool_platforms import HOUR_S, POOL
from tenure.sim.pool_world import STEP_S, Config, PoolWorld
from tenure.sim.run import quiet_folder
from tenure.sim.store import DirectStore
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.records import LedgerEntry
from tenure_protocol.store.api import Found, Missing, Store
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.unit.test_dispatcher import ListingRunner
from tests.unit.test_ledger import ENTRY, entries

END = JobEnd("a", "p", "blue", "e", 1, True, True, True, True)


def row(rows: Sequence[CostRow], by: str, name: str, currency: str = "usd") -> CostRow:
    (found,) = [r for r in rows if (r.by, r.name, r.currency) == (by, name, currency)]
    return found


def test_what_was_lost_on_the_way_is_paid_for_by_the_jobs_that_finished() -> None:
    """Two jobs finish, one of them at the second try, and a third never does: 2 + 4 + 3 usd for two."""
    ends = {
        "a": END,
        "b": replace(END, job="b", launched=2, in_time=False),
        "c": replace(END, job="c", launched=1, finished=False, in_time=False),
    }
    paid = [
        ENTRY,
        replace(ENTRY, job="b", name="n2", rung="spot"),
        replace(ENTRY, job="b", launch=2, name="n3", rung="dear"),
        replace(ENTRY, job="c", name="n4", amount=3.0),
        replace(ENTRY, job="c", launch=2, name="n5", currency="hours", amount=7.0),
    ]
    rows = cost_table(ends, paid, [])
    plan = row(rows, "plan", "p")
    assert (plan.jobs, plan.finished, plan.in_time, plan.machines) == (3, 2, 1, 4)
    assert (plan.amount, plan.per_finished, plan.per_in_time) == (9.0, 4.5, 9.0)
    assert plan.unfinished == 5.0, "the first launch of b, and the one of c"
    assert plan.counted == 9.0, "no platform told any of it"
    told = [replace(each, told=each.job == "a") for each in paid]
    assert row(cost_table(ends, told, []), "plan", "p").counted == 7.0
    assert row(rows, "plan", "p", "hours").per_finished == 3.5, "currencies are never added"
    assert row(rows, "team", "blue") == replace(plan, by="team", name="blue")
    spot, dear = row(rows, "rung", "spot"), row(rows, "rung", "dear")
    assert (spot.jobs, spot.finished, spot.amount, spot.per_finished) == (3, 1, 7.0, 7.0)
    assert (dear.jobs, dear.finished, dear.in_time, dear.per_in_time) == (1, 1, 0, None)


def test_nothing_finished_is_no_price_and_no_deadline_is_nobody_in_time() -> None:
    ends = {"a": replace(END, finished=False, in_time=False, deadline=False)}
    (plan, _, _) = cost_table(ends, [ENTRY], [])
    assert (plan.per_finished, plan.per_in_time, plan.in_time) == (None, None, None)
    assert plan.unfinished == plan.amount == 2.0


def test_what_still_runs_is_counted_beside_what_is_settled() -> None:
    going = Running("a", 2, "n9", "spot", "here", "usd", 0.5, 1.0)
    plan = row(cost_table({"a": END}, [ENTRY], [going]), "plan", "p")
    assert (plan.amount, plan.amount_so_far, plan.per_finished) == (2.0, 1.0, 3.0)
    assert (plan.machines, plan.paid_h) == (2, 1.5)


@given(st.lists(entries(), max_size=12))
def test_every_cut_of_the_ledger_has_the_same_sum(written: list[LedgerEntry]) -> None:
    paid = once(written)
    ends = {job: replace(END, job=job, plan=f"p{job}", team=f"t{job}") for job in "ab"}
    rows = cost_table(ends, paid, [])
    for currency in {each.currency for each in paid}:
        whole = sum(each.amount for each in paid if each.currency == currency)
        for by in ("plan", "team", "rung"):
            cut = sum(r.amount for r in rows if (r.by, r.currency) == (by, currency))
            assert cut == pytest.approx(whole)
    some = of_jobs(["a"], ends, paid, [])
    assert sum(r.amount for r in some if r.by == "plan") == pytest.approx(
        sum(each.amount for each in paid if each.job == "a")
    )


# ------------------------------------------------------------- the ledger and what was billed


@pytest.fixture(scope="module")
def week() -> PoolWorld:
    """A plan on machines that are taken back, fail, never start, or whose order has no answer."""
    pool = tuple(
        replace(
            market,
            tells_paid=True,
            lies=0.0,
            slots=2,
            never=0.2 if market.price_class == "spot" else market.never,
            cut=0.2,
            bad=0.0,
            clusters=0,
            lives_h=4.0 if market.price_class == "spot" else market.lives_h,
        )
        for market in POOL
    )
    config = Config(0, 0.0, 8, round(5 * HOUR_S / STEP_S), 8.0, told=True, deadline_h=8.0)
    with quiet_folder():
        world = PoolWorld(11, "ours", [config], pool)
        world.run()
    assert world.settled and world.checker.violations == []
    return world


def _look(world: PoolWorld, clock: FakeClock) -> Dispatcher:
    rungs = [
        Rung(m.name, m.name, ListingRunner(), ListingRunner.capacity({}), m.card, m.price_class,
             Price(m.currency, m.per_h))
        for m in world.pool
    ]  # fmt: skip
    dispatcher = Dispatcher(DirectStore(world.objects), rungs, clock)
    dispatcher.look()
    return dispatcher


def _billed(world: PoolWorld) -> Mapping[str, list[Machine]]:
    found: dict[str, list[Machine]] = {}
    for machine in world.cloud.machines.values():
        found.setdefault(machine.rung, []).append(machine)
    return found


def test_the_ledger_is_what_the_platforms_billed_to_the_cent_and_the_second(
    week: PoolWorld, clock: FakeClock
) -> None:
    store = DirectStore(week.objects)
    paid, troubles = read_ledger(store)
    assert troubles == []
    machines = [each for group in _billed(week).values() for each in group]
    assert sum(each.host.cut for each in machines) >= 1 and len(machines) > len(week.tasks) + 2
    now_s = week.scheduler.now_s
    for market in week.pool:
        here = [each.charged_s(now_s) for each in machines if each.rung == market.name]
        noted = [each.paid_s * each.share for each in paid if each.rung == market.name]
        assert sum(noted) == pytest.approx(sum(here), abs=1.0), f"seconds of {market.name}"
    ends = job_ends(store, _look(week, clock), clock)
    rows = cost_table(ends, paid, [])
    for currency in {market.currency for market in week.pool}:
        billed = sum(
            each.market.per_h * each.charged_s(now_s) / HOUR_S
            for each in machines
            if each.market.currency == currency
        )
        for by in ("plan", "team", "rung"):
            told = sum(r.amount for r in rows if (r.by, r.currency) == (by, currency))
            assert told == pytest.approx(billed, abs=0.005), f"{currency} by {by}"
    lost = sum(r.unfinished for r in rows if r.by == "plan")
    assert lost > 0, "attempts that were lost are in the sum"
    plan = [r for r in rows if r.by == "plan" and r.amount > 0]
    assert {r.finished for r in plan} == {len(week.tasks)} and {r.name for r in plan} == {"p0"}
    assert all(r.per_finished == pytest.approx(r.amount / len(week.tasks)) for r in plan)


def test_who_was_in_time_is_told_by_the_stores_own_times(week: PoolWorld, clock: FakeClock) -> None:
    ends = job_ends(DirectStore(week.objects), _look(week, clock), clock)
    for job, end in ends.items():
        took_h = (week.ended_s[job] - week.arrived_s[job]) / HOUR_S
        assert end.in_time is (took_h <= 8.0), took_h
    assert {end.in_time for end in ends.values()} == {True, False}, "some are, and some are not"
    assert {end.team for end in ends.values()} == {NO_TEAM}


# ----------------------------------------------------------------------------------- the cache


class Counted(MemoryStore):
    """A store that counts reads."""

    reads = 0

    def read(self, key: str) -> Found | Missing:
        self.reads += 1
        return super().read(key)


def _filled(clock: FakeClock, count: int = 6) -> Counted:
    store = Counted(clock)
    for number in range(count):
        each = replace(ENTRY, job=f"{'abc'[number % 3]}", launch=number, amount=float(number))
        store.create(keys.ledger("d1", each.job, each.launch, "closed"), encode(each))
    return store


def _asked(store: Store, folder: Path | None) -> list[LedgerEntry]:
    book = LedgerBook(store, folder)
    book.look()
    assert book.troubles == {}
    return book.entries


def test_a_ledger_is_read_once_and_its_cache_may_be_lost(clock: FakeClock, tmp_path: Path) -> None:
    store = _filled(clock)
    truth = _asked(store, None)
    folder = tmp_path / "kept"
    store.reads = 0
    assert _asked(store, folder) == truth and store.reads == 6
    assert _asked(store, folder) == truth and store.reads == 6, "nothing is read twice"
    (file,) = folder.iterdir()
    file.unlink()
    assert _asked(store, folder) == truth and store.reads == 12, "it is rebuilt"
    assert _asked(store, folder) == truth and store.reads == 12


@pytest.mark.parametrize("spoil", [b"", b"{", b'{"key": 1}\n[]\n', b"\xff\xfe\n", b"null\n"])
def test_a_cache_that_is_spoilt_is_none(clock: FakeClock, tmp_path: Path, spoil: bytes) -> None:
    store = _filled(clock)
    truth = _asked(store, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + spoil + whole[len(whole) // 2 :])
    assert _asked(store, tmp_path) == truth
    file.unlink()
    file.mkdir()  # it can be neither read nor written
    assert _asked(store, tmp_path) == truth


def test_what_the_store_has_goes_before_the_cache(clock: FakeClock, tmp_path: Path) -> None:
    """Of a store that was wiped and filled again at the same address."""
    old = _filled(clock)
    _asked(old, tmp_path)
    new = Counted(clock)
    assert new.url == old.url
    other = replace(ENTRY, launch=0, amount=99.0)
    new.create(keys.ledger("d1", "a", 0, "closed"), encode(other))
    assert _asked(new, tmp_path) == [other]


@given(st.lists(st.tuples(entries(), st.sampled_from("xy"), st.booleans()), max_size=15))
def test_a_ledger_read_bit_by_bit_is_the_ledger(
    written: list[tuple[LedgerEntry, str, bool]],
) -> None:
    with FakeClock() as clock:
        store = MemoryStore(clock)
        book = LedgerBook(store)
        for each, writer, look in written:
            store.create(keys.ledger(writer, each.job, each.launch, each.outcome), encode(each))
            if look:
                book.look()
        book.look()
        assert book.entries == read_ledger(store)[0]
