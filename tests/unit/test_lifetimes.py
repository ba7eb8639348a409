"""How long machines lasted: followed, kept beside observations, merged; and what the planner makes of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.dispatch.foresight import UNKNOWN_SAVE_S, UNKNOWN_START_S, Foresight, life
from tenure.dispatch.lifetimes import LifetimeBook, joined, merge, scored
from tenure.dispatch.rows import MOST_ROWS
from tenure.plan.predict import calibration
from tenure.plan.survival import Life
from tenure_protocol import peaks
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Confirmed, change, read_witness
from tenure_protocol.lease.machine import Cancel, Hold
from tenure_protocol.records import Lifetime, Lifetimes, Observation, load
from tenure_protocol.store.api import Found, Store, Written
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_observations import FLOPS, T4, Pool

HERE = ("spotty", T4)
WORK = "FLOPs of fp16"
TOLD = tuple(float(10 * n) for n in range(1, 10))

rows = st.builds(
    Lifetime,
    st.sampled_from(["a", "b"]),
    st.integers(1, 2),
    st.just("r"),
    st.sampled_from(["running", "lost", "finished", "taken"]),
    st.integers(1, 2),
    st.none() | st.integers(0, 3).map(float),
    st.none() | st.integers(0, 3).map(float),
    st.integers(0, 3),
    st.none() | st.just(TOLD),
    st.none() | st.integers(0, 3).map(float),
)


def stored(store: Store) -> dict[str, Lifetime]:
    """By job, as it stands in the store."""
    found: dict[str, Lifetime] = {}
    for entry in store.list(keys.LIFETIMES):
        body = store.read(entry.key)
        assert isinstance(body, Found)
        rows = load(Lifetimes, body.body, entry.key).rows
        found |= {row.job: row for row in rows if row.launch == 1}
    return found


def seen(pool: Pool) -> Lifetime:
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    (row,) = stored(pool.store).values()
    return row


def test_a_launch_becomes_a_life_with_its_cards_its_milestones_and_its_end(
    clock: FakeClock,
) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    clock.sleep(30.0)  # it loads
    worker.train(250, 2.0)
    row = seen(pool)
    assert (row.end, row.rung, row.cards, row.milestones) == ("running", "spot", 1, 2)
    assert row.held_s == pytest.approx(530.0) and row.load_s == pytest.approx(30.0)
    clock.sleep(100.0)
    worker.finish()
    row = seen(pool)
    assert (row.end, row.held_s) == ("finished", pytest.approx(630.0))
    (entry,) = pool.store.list(keys.LIFETIMES)
    assert entry.key.startswith("lifetimes/spotty/tesla-t4-")


def test_a_lost_machine_lived_until_its_last_sign_and_not_until_it_was_written_off(
    clock: FakeClock,
) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    clock.sleep(100.0)
    assert isinstance(worker.lease.write(Hold(worker.lease.holder, 1, 36_000.0)), Confirmed)
    pool.tick()
    for _ in range(140):  # its lease is ten hours long
        pool.tick(300.0)
    rows = pool.dispatcher.observatory.lifetimes.rows()
    (row,) = (row for _, row in rows if row.launch == 1)
    assert row.end == "lost" and row.held_s == pytest.approx(300.0)
    assert life(row) == Life(row.held_s or 0.0, True)


@pytest.mark.parametrize(("code", "end", "lost"), [(10, "taken", True), (17, "released:17", False)])
def test_who_ends_unasked_was_taken(clock: FakeClock, code: int, end: str, lost: bool) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    worker.release(code)
    row = seen(pool)
    assert row.end == end and life(row).lost is lost


def test_who_was_asked_to_yield_was_not_taken(clock: FakeClock) -> None:
    pool = Pool(clock)
    workers = pool.started()
    clock.sleep(600.0)
    for worker, steps in zip(workers, (100, 300, 300), strict=True):
        worker.train(steps, 600.0 / steps, total=40_000, slept=True)
    pool.tick()  # the slow one is asked
    w = read_witness(pool.store, keys.witness_of(pool.specs[0])).witness
    assert w and w.asked and w.holder
    assert isinstance(workers[0].lease.write(Hold(w.holder, 1, 36_000.0)), Confirmed)
    workers[0].release()
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    row = stored(pool.store)[pool.specs[0].id]
    assert row.end == "released:10" and not life(row).lost


def test_a_rung_that_never_claims_has_no_lives(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    pool.tick()
    pool.tick(61.0)
    row = seen(pool)
    assert row.end == "unclaimed" and row.held_s is None
    assert Foresight([], [(HERE, row)]).lives("spot") == []


def test_observations_stay_as_an_older_tenure_reads_them(clock: FakeClock) -> None:
    """Its decoder refuses a field that it does not know, so none may be added to a row."""
    names = {"job", "launch", "rung", "end", "work", "start_s", "paid_s", "busy_s", "done"}
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    (entry,) = pool.store.list(keys.OBSERVATIONS)
    found = pool.store.read(entry.key)
    assert isinstance(found, Found)
    (row,) = json.loads(found.body)["rows"]
    assert set(row) <= names | {"median_step_s", "ratios"}
    assert json.loads(found.body)["protocol"] == 1


@given(rows, rows, rows)
def test_sights_of_one_launch_are_joined_in_any_order(
    a: Lifetime, b: Lifetime, c: Lifetime
) -> None:
    same = [replace(each, job="a", launch=1) for each in (a, b, c)]
    one, two, three = same
    assert joined(one, two) == joined(two, one)
    assert joined(one, one) == one
    every = joined(joined(one, two), three)
    assert every.end != "running" or all(each.end == "running" for each in same)
    if any(each.predicted_s for each in same):
        assert every.predicted_s == TOLD, "what one of them knows is not lost"


unique = st.lists(rows, max_size=4, unique_by=lambda row: (row.job, row.launch))


@given(unique, unique)
def test_merging_counts_a_launch_once_and_drops_none(
    one: list[Lifetime], two: list[Lifetime]
) -> None:
    found = merge(one, two)
    assert set(found) == {(row.job, row.launch) for row in (*one, *two)}
    assert found == merge(two, one) == merge(found.values(), one)


def test_the_newest_are_kept(clock: FakeClock) -> None:
    book = LifetimeBook(MemoryStore(clock), clock, "d")
    for number in range(MOST_ROWS + 50):
        book.put(HERE, Lifetime("j", number + 1, "r", "lost", held_s=1.0))
    kept = [row.launch for _, row in book.rows()]
    assert len(kept) == MOST_ROWS and min(kept) == 51


def test_two_dispatchers_lose_nothing_of_each_other(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    one, two = LifetimeBook(store, clock, "one"), LifetimeBook(store, clock, "two")
    one.put(HERE, Lifetime("a", 1, "r", "running", held_s=5.0))
    one.predicted(HERE, Lifetime("a", 1, "r", "running", held_s=5.0), TOLD)
    two.put(HERE, Lifetime("a", 1, "r", "lost", held_s=9.0))
    two.put(HERE, Lifetime("b", 1, "r", "lost", held_s=2.0))
    one.write(at_once=True)
    two.write(at_once=True)  # refused: it reads, and writes the next time
    two.write(at_once=True)
    found = stored(store)
    assert found["a"] == Lifetime("a", 1, "r", "lost", held_s=9.0, predicted_s=TOLD)
    assert set(found) == {"a", "b"}
    third = LifetimeBook(store, clock, "three")
    third.read()
    assert {row.job for _, row in third.rows()} == {"a", "b"}


def test_nothing_is_written_before_its_time_nor_without_news(clock: FakeClock) -> None:
    store = FaultyStore(clock)
    book = LifetimeBook(store, clock, "d")
    book.put(HERE, Lifetime("a", 1, "r", "lost", held_s=9.0))
    book.write()
    assert not stored(store.inner)
    clock.sleep(301.0)
    book.write()
    assert stored(store.inner)
    before = len(store.applied)
    book.put(HERE, Lifetime("a", 1, "r", "lost", held_s=9.0))
    book.write(at_once=True)
    assert len(store.applied) == before


def test_a_silent_store_is_said_and_costs_nothing_else(clock: FakeClock) -> None:
    store = FaultyStore(clock)
    book = LifetimeBook(store, clock, "d")
    store.silent = lambda key: key.startswith("lifetimes/")
    book.put(HERE, Lifetime("a", 1, "r", "lost", held_s=9.0))
    book.read()
    book.write(at_once=True)
    assert book.troubles
    store.silent = lambda key: False
    book.read()
    book.write(at_once=True)
    assert keys.LIFETIMES not in book.troubles and set(stored(store.inner)) == {"a"}


def test_those_of_a_newer_tenure_are_left_alone_and_named(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    key = keys.lifetimes(*HERE)
    assert isinstance(store.create(key, json.dumps({"protocol": 99}).encode()), Written)
    book = LifetimeBook(store, clock, "d")
    book.put(HERE, Lifetime("a", 1, "r", "lost", held_s=9.0))
    for _ in range(3):
        book.read()
        book.write(at_once=True)
    assert "upgrade this side" in book.troubles[key]
    found = store.read(key)
    assert isinstance(found, Found) and json.loads(found.body) == {"protocol": 99}


def test_every_prediction_of_a_job_is_scored_when_it_ends(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    book = LifetimeBook(store, clock, "d")
    for launch in (1, 2):
        book.predicted(HERE, Lifetime("a", launch, "r", "running"), TOLD)
        clock.sleep(25.0)
    book.predicted(HERE, Lifetime("b", 1, "r", "running"), TOLD)
    book.finished("a")
    book.forget("b")
    book.finished("b")
    book.write(at_once=True)
    again = LifetimeBook(store, clock, "e")
    again.read()
    pairs = scored(row for _, row in again.rows())
    assert pairs == [(TOLD, 50.0), (TOLD, 25.0)]
    assert calibration(pairs).count == 2


def test_a_dispatcher_scores_what_it_foretold_when_it_sees_the_end(clock: FakeClock) -> None:
    pool = Pool(clock, 2)
    workers = pool.started()
    book = pool.dispatcher.observatory.lifetimes
    for spec in pool.specs:
        book.predicted(HERE, Lifetime(spec.id, 1, "spot", "running"), TOLD)
    workers[0].train(100, 2.0)
    workers[0].finish()
    ended = Cancel("ann", "not needed")
    key = keys.witness_of(pool.specs[1])
    change(pool.store, key, pool.specs[1].id, read_witness(pool.store, key), ended, clock)
    pool.tick()
    clock.sleep(1_000.0)
    pool.tick()
    found = {row.job: row.took_s for _, row in book.rows()}
    assert found[pool.specs[0].id] == pytest.approx(200.0)
    assert found[pool.specs[1].id] is None
    assert scored(row for _, row in book.rows()) == [(TOLD, pytest.approx(200.0))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"held_s": -1.0},
        {"milestones": -1},
        {"took_s": -2.0},
        {"cards": 0},
        {"predicted_s": (2.0, 1.0)},
    ],
)
def test_a_row_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Lifetime("j", 1, "r", "lost", **wrong)  # type: ignore[arg-type]


def test_a_row_is_read_as_it_was_written() -> None:
    row = Lifetime("j", 1, "r", "lost", 2, 5.0, 1.0, 3, TOLD, 7.0)
    record = Lifetimes("a", "b", "w", (row, Lifetime("k", 1, "r", "running")), "id")
    assert load(Lifetimes, encode(record), "k") == record


# ------------------------------------------------------------------------------ foresight


def observation(job: str, done: float, busy_s: float = 1_000.0, **more: object) -> Observation:
    row = Observation(job, 1, "spot", "finished", WORK, 50.0, 1_200.0, busy_s, done, 1.0)
    return replace(row, **more)  # type: ignore[arg-type]


def test_speeds_are_of_one_place_and_one_kind_of_work_by_their_cards() -> None:
    observed = [
        (HERE, observation("a", 1e15)),
        (HERE, observation("b", 1.8e15)),
        (HERE, observation("few", 1e10, busy_s=10.0)),
        (HERE, observation("other", 1e3, work="steps of e/x")),
        (("spotty", "NVIDIA A10G"), observation("there", 9e15)),
    ]
    held = [(HERE, Lifetime("b", 1, "spot", "finished", cards=2, held_s=1.0))]
    known = Foresight(observed, held)
    assert [(each.cards, each.per_s) for each in known.speeds(HERE, WORK)] == [
        (1, 1e12),
        (2, 1.8e12),
    ]
    law = known.law(HERE, WORK)
    assert law.points == 2 and 0.7 < law.alpha <= 1.0
    assert law.per_s() == pytest.approx(1e12, rel=0.1)


def test_a_card_that_nobody_has_used_is_predicted_by_its_peak_and_the_platform() -> None:
    known = Foresight([(HERE, observation(job, 26e15)) for job in "abc"], [])
    a10 = ("spotty", "NVIDIA A10G")
    law = known.law(a10, WORK)
    share = 26e12 / 65e12
    peak = peaks.known_peak(a10[1], "fp16")
    assert peak and law.points == 0
    assert law.per_s() == pytest.approx(share * peak.flops_per_s, rel=1e-6)
    assert "measured on the platform" in law.reason
    elsewhere = Foresight([], []).law(a10, WORK)
    assert "assumed, nothing was measured" in elsewhere.reason


def test_where_nothing_is_known_that_is_said() -> None:
    with pytest.raises(
        ValueError, match="no machine has shown how fast steps of e/x on cpu at here"
    ):
        Foresight([], []).law(("here", "cpu"), "steps of e/x")


def test_lives_know_walls_and_like_rungs() -> None:
    held = [
        (HERE, Lifetime("a", 1, "free", "taken", held_s=43_000.0)),
        (HERE, Lifetime("b", 1, "free", "lost", held_s=600.0)),
        (HERE, Lifetime("c", 1, "free", "finished", held_s=700.0)),
        (HERE, Lifetime("d", 1, "spot", "lost", held_s=60.0)),
    ]
    known = Foresight([], held)
    assert [each.lost for each in known.lives("free", wall_s=43_200.0)] == [False, True, False]
    assert known.curve("free", 43_200.0).alive(43_200.0) == 0.0
    assumed = known.curve("never seen")
    assert assumed.remaining_s() == pytest.approx(20 * 3600.0)
    borrowed = known.curve("never seen", like=["free", "spot"])
    assert borrowed.lives == 0 and borrowed.remaining_s() < assumed.remaining_s()
    assert known.bands("never seen").remaining_s() < 20 * 3600.0 * 1.01


def test_overheads_are_medians_of_what_was_seen_else_assumed() -> None:
    observed = [(HERE, observation(job, 1e15)) for job in "abc"]
    held = [(HERE, Lifetime(job, 1, "spot", "finished", 1, 1_150.0, 30.0, 10)) for job in "abc"]
    found = Foresight(observed, held).overheads("spot", 600.0, silence_s=60.0)
    assert found.starts_s == (50.0, 50.0, 50.0) and found.load_s == 30.0
    assert found.save_s == pytest.approx((1_200 - 50 - 30 - 1_000) / 10)
    empty = Foresight([], []).overheads("spot", 600.0)
    assert (empty.starts_s, empty.save_s) == ((UNKNOWN_START_S,), UNKNOWN_SAVE_S)


def test_a_dispatcher_foresees_from_its_own_rounds(clock: FakeClock) -> None:
    pool = Pool(clock)
    for worker in pool.started():
        worker.train(100, 2.0)
        worker.finish()
    pool.tick()
    book = pool.dispatcher.observatory
    known = Foresight(book.rows(), book.lifetimes.rows())
    assert known.law(HERE, WORK).per_s() == pytest.approx(FLOPS / 2.0, rel=0.05)
    assert len(known.lives("spot")) == 3 and not any(each.lost for each in known.lives("spot"))
