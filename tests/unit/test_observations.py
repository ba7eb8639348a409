"""What launches came to: followed, kept, merged by several dispatchers, and made again when lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.dispatch import decide
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.dispatch.observations import _Place
from tenure.dispatch.rows import MOST_ROWS, encode_with_rows, merge
from tenure.plan.enlist import enlist
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Confirmed, Lease, acquire, read_witness
from tenure_protocol.lease.machine import Finish, Hold, Move, Release
from tenure_protocol.records import JobSpec, Manifest, Observation, Observations, Pointer, load
from tenure_protocol.store.api import Found, Store, Written
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import ListingRunner

T4, H100 = "Tesla T4", "NVIDIA H100 80GB HBM3"
FLOPS = 1e12  # of a step
SILENCE_S = 36_000.0


class Worker:
    """The worker of one launch, whose machine is as fast as the test likes."""

    def __init__(self, pool: Pool, spec: JobSpec, launch: int = 1, card: str = T4) -> None:
        self.pool, self.spec, self.card = pool, spec, card
        key = keys.witness_of(spec)
        lease = acquire(pool.store, key, spec.id, launch, SILENCE_S, 1.0, pool.clock)
        assert isinstance(lease, Lease)
        self.lease = lease
        self.began_at = lease.witness.pointer.step if lease.witness.pointer else 0
        self.busy_s = 0.0

    def train(
        self,
        steps: int,
        step_s: float,
        total: int | None = 10_000,
        flops: float | None = FLOPS,
        slept: bool = False,
        lie: Mapping[str, object] = {},
    ) -> None:
        """So many steps, unless the time for them has passed already, and then a milestone."""
        lease, pool, old = self.lease, self.pool, self.lease.witness.pointer
        pool.clock.sleep(0.0 if slept else steps * step_s)
        self.busy_s += steps * step_s
        step = (old.step if old else 0) + steps
        manifest = Manifest(
            self.spec.id, lease.attempt, step, 1, (old.ordinal if old else 0) + 1, {},
            {"card": self.card}, old, step_s, self.busy_s, self.began_at, flops,
            "fp16" if flops else None, total,
        )  # fmt: skip
        manifest = replace(manifest, **lie)  # type: ignore[arg-type]
        body = encode(manifest)
        pointer = manifest.pointer(body)
        assert isinstance(pool.store.create(keys.manifest(self.spec.id, pointer), body), Written)
        hold = Hold(lease.holder, lease.attempt, SILENCE_S, None, Move(pointer, old))
        assert isinstance(lease.write(hold), Confirmed)

    def finish(self) -> None:
        ended = Finish(self.lease.holder, self.lease.attempt, 0, "done", {})
        assert isinstance(self.lease.write(ended), Confirmed)

    def release(self, code: int = 10) -> None:
        ended = Release(self.lease.holder, self.lease.attempt, code, "asked to yield")
        assert isinstance(self.lease.write(ended), Confirmed)


class Pool:
    """A ladder of two rungs that lists launches; the test trains for the workers."""

    def __init__(self, clock: FakeClock, count: int = 3, store: Store | None = None) -> None:
        self.clock = clock
        self.store = store or MemoryStore(clock)
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {"lr": 1}, seed, 1, "c", "d", 100,
                    max_silence_s=SILENCE_S)
            for seed in range(count)
        ]  # fmt: skip
        terms: dict[str, object] = {"rungs": ["spot", "demand"], "priority": 0}
        enlist(self.store, "p", "e", self.specs, terms, clock)
        self.dispatcher = self.another()

    def another(self, moves: bool = True, slots: int = 3) -> Dispatcher:
        capacity = replace(ListingRunner.capacity({}), launches=slots)
        rungs = [
            Rung("spot", "spotty", ListingRunner(), capacity, "t4", "spot", Price("usd", 1.0)),
            Rung("demand", "dear", ListingRunner(), capacity, "h100", price=Price("usd", 1.5)),
        ]
        return Dispatcher(self.store, rungs, self.clock, moves=moves)

    def tick(self, pause_s: float = 0.0) -> Tick:
        self.clock.sleep(pause_s)
        return self.dispatcher.tick()

    def decided(self, tick: Tick, number: int = 0) -> tuple[decide.Action, str]:
        job = self.specs[number].id
        return next(each for each in reversed(tick.decisions) if each[0].job == job)

    def stored(self, store: Store | None = None) -> dict[str, Observation]:
        """By job, as it stands in the store."""
        rows: dict[str, Observation] = {}
        for entry in self.store.list(keys.OBSERVATIONS):
            found = self.store.read(entry.key)
            assert isinstance(found, Found)
            rows |= {row.job: row for row in load(Observations, found.body, entry.key).rows}
        return rows

    def started(self, delay_s: float = 50.0, count: int | None = None) -> list[Worker]:
        """All jobs are launched and, some time later, claimed."""
        self.tick()
        self.tick(delay_s)
        workers = [Worker(self, spec) for spec in self.specs[:count]]
        self.tick()
        return workers


def test_a_launch_becomes_a_row_with_its_start_its_speed_and_its_end(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started(delay_s=50.0)
    worker.train(100, 2.0)
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    (row,) = pool.stored().values()
    assert (row.end, row.rung, row.work) == ("running", "spot", "FLOPs of fp16")
    assert row.start_s == pytest.approx(50.0) and row.paid_s == pytest.approx(250.0)
    assert (row.busy_s, row.done) == (200.0, 100 * FLOPS)
    worker.train(50, 2.0)
    worker.finish()
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    (row,) = pool.stored().values()
    assert (row.end, row.done, row.busy_s) == ("finished", 150 * FLOPS, 300.0)
    (entry,) = pool.store.list(keys.OBSERVATIONS)
    assert entry.key.startswith("observations/spotty/tesla-t4-"), "by runner, and the measured card"


def test_without_flops_the_steps_of_one_configuration_are_what_is_counted(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0, flops=None)
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    (row,) = pool.stored().values()
    assert row.work.startswith("steps of e/") and row.done == 100


@pytest.mark.parametrize(("code", "word"), [(10, "released:10"), (17, "released:17")])
def test_how_an_attempt_ended_is_kept(clock: FakeClock, code: int, word: str) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    worker.release(code)
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    assert [row.end for row in pool.stored().values()] == [word]


def test_a_launch_that_never_claimed_is_a_row_without_work(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    pool.tick()
    pool.tick(61.0)
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    (row,) = pool.stored().values()
    assert (row.end, row.done, row.start_s) == ("unclaimed", 0.0, None)


def trained(pool: Pool, workers: list[Worker]) -> Tick:
    """Ten minutes beside each other, of which the first worker's steps are three times as long."""
    pool.clock.sleep(600.0)
    for worker, steps in zip(workers, (100, 300, 300), strict=True):
        worker.train(steps, 600.0 / steps, total=40_000, slept=True)
    return pool.tick()


def test_a_slow_machine_is_left_and_the_job_goes_on_elsewhere(clock: FakeClock) -> None:
    """Measured, asked to yield, released, launched on the other rung: the whole way."""
    pool = Pool(clock)
    workers = pool.started()
    tick = trained(pool, workers)
    action, reason = pool.decided(tick)
    assert action == decide.AskToYield(pool.specs[0].id, "spot", slow=True), reason
    assert (
        "its speed is 0.33 of the usual 5e+11 FLOPs of fp16 a second on Tesla T4 at spotty"
        in reason
    )
    assert "(2 seen, slow below 0.70)" in reason
    w = read_witness(pool.store, keys.witness_of(pool.specs[0])).witness
    assert w and w.asked and w.asked.what == "yield"
    for number in (1, 2):
        assert isinstance(pool.decided(tick, number)[0], decide.Wait)
    assert isinstance(workers[0].lease.write(Hold(w.holder, 1, SILENCE_S)), Confirmed)  # type: ignore[arg-type]
    workers[0].release()
    pool.tick()  # closes the bill of the machine that was left
    action, reason = pool.decided(pool.tick())
    assert isinstance(action, decide.Launch) and action.rung == "spot", reason
    assert pool.dispatcher.world.jobs[pool.specs[0].id].moving_to == "", "it has arrived"


def test_a_rung_that_was_left_is_passed_over_for_a_while(clock: FakeClock) -> None:
    """Else a job that is lost on its new rung would go back to the slow host it came from."""
    pool = Pool(clock)
    workers = pool.started()
    pool.dispatcher._parked["spot"].until_s = 1e9
    tick = trained(pool, workers)
    job = pool.specs[0].id
    assert pool.decided(tick)[0] == decide.AskToYield(job, "demand", slow=True)
    w = read_witness(pool.store, keys.witness_of(pool.specs[0])).witness
    assert w and isinstance(workers[0].lease.write(Hold(w.holder, 1, SILENCE_S)), Confirmed)  # type: ignore[arg-type]
    workers[0].release()
    pool.tick()
    pool.dispatcher._parked["spot"].until_s = 0.0
    moved = Worker(pool, pool.specs[0], 2, H100)
    pool.tick()
    moved.release()
    for _ in range(3):
        _, reason = pool.decided(pool.tick(30.0))
    w = read_witness(pool.store, keys.witness_of(pool.specs[0])).witness
    assert w and w.launch and (w.launch.number, w.launch.runner) == (3, "dear"), reason


def test_without_moves_nobody_is_asked(clock: FakeClock) -> None:
    pool = Pool(clock)
    pool.dispatcher = pool.another(moves=False)
    workers = pool.started()
    tick = trained(pool, workers)
    assert isinstance(pool.decided(tick)[0], decide.Wait)


def test_a_card_that_nobody_has_used_is_predicted_by_the_peaks(clock: FakeClock) -> None:
    pool = Pool(clock)
    workers = pool.started()
    for worker in workers:
        worker.train(100, 2.0)
    pool.tick()
    (track, *_) = pool.specs
    pace = pool.dispatcher.observatory.pace(track.id)
    assert pace
    options = pool.dispatcher.observatory.options(track.id, pace, ["spot", "demand"])
    assert not options["spot"].predicted and options["demand"].predicted
    assert options["demand"].per_s > 5 * options["spot"].per_s, "an H100 is no T4"


def test_two_dispatchers_count_one_launch_once_and_lose_nothing(clock: FakeClock) -> None:
    pool = Pool(clock)
    workers = pool.started()
    second = pool.another()
    for worker in workers:
        worker.train(100, 2.0)
    pool.tick()
    second.tick()
    pool.dispatcher.observatory.write(at_once=True)
    second.observatory.write(at_once=True)
    assert len(pool.stored()) == 3
    workers[0].train(100, 2.0)
    pool.tick(61.0)
    second.tick()
    pool.dispatcher.observatory.write(at_once=True)
    second.observatory.write(at_once=True)  # it is refused, reads, and writes the next time
    second.observatory.write(at_once=True)
    rows = pool.stored()
    assert len(rows) == 3 and rows[pool.specs[0].id].done == 200 * FLOPS


def test_two_dispatchers_that_leave_together_both_keep_what_they_saw(clock: FakeClock) -> None:
    """Who comes second is refused, and has no later round to try again in."""
    pool = Pool(clock)
    first, second, *_ = pool.started()
    first.train(100, 2.0)
    pool.tick()
    other = pool.another()
    other.tick()
    second.train(100, 2.0)
    clock.sleep(61.0)
    other.tick()
    assert other.observatory.rows() and not pool.stored()
    pool.dispatcher.leave()
    other.leave()
    assert {pool.specs[0].id, pool.specs[1].id} <= pool.stored().keys()


def test_a_new_dispatcher_knows_what_the_last_one_saw(clock: FakeClock) -> None:
    pool = Pool(clock)
    for worker in pool.started():
        worker.train(100, 2.0)
        worker.finish()
    pool.tick()
    pool.dispatcher.drain(for_s=1.0)
    specs = [replace(pool.specs[0], seed=9)]
    enlist(pool.store, "q", "e", specs, {"rungs": ["spot"], "priority": 0}, clock)
    fresh = pool.another()
    fresh.tick()
    fresh.tick()
    known = fresh.observatory.usual(("spotty", T4), "FLOPs of fp16")
    assert known and known.count == 3 and known.per_s == pytest.approx(FLOPS / 2.0)


def test_observations_that_are_lost_are_made_again_from_the_manifests(clock: FakeClock) -> None:
    pool = Pool(clock)
    for worker in pool.started():
        worker.train(100, 2.0)
        worker.finish()
    pool.tick()
    specs = [replace(pool.specs[0], seed=9)]
    enlist(pool.store, "q", "e", specs, {"rungs": ["spot"], "priority": 0}, clock)
    for entry in list(pool.store.list(keys.OBSERVATIONS)):
        pool.store.delete(entry.key)
    fresh = pool.another()
    for _ in range(3):  # it is launched, the store is found empty, the manifests are read
        fresh.tick()
    known = fresh.observatory.usual(("spotty", T4), "FLOPs of fp16")
    assert known and known.count == 3 and known.per_s == pytest.approx(FLOPS / 2.0)


def test_those_of_a_newer_tenure_are_left_alone_and_named(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    key = keys.observations("spotty", T4)
    newer = {"protocol": 99, "runner": "spotty", "card": T4}
    assert isinstance(pool.store.create(key, json.dumps(newer).encode()), Written)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    for _ in range(3):
        tick = pool.tick(601.0)
    assert key in tick.troubles and "upgrade this side" in tick.troubles[key]
    found = pool.store.read(key)
    assert isinstance(found, Found) and json.loads(found.body)["protocol"] == 99


@pytest.mark.parametrize(
    "lie",
    [
        {"flops_per_step": -1.0},
        {"flops_per_step": 1e308},
        {"busy_s": -5.0},
        {"dtype": "x" * 50_000},
        {"steps_total": -7},
        {"steps_total": 10**400},
        {"step": 2**60, "steps_total": None},
        {"median_step_s": -1.0},
        {"from_step": -(10**400)},
        {"ratios": {"seen": {str(n): 1 for n in range(100_000)}}},
        {"ratios": {"x": "y"}},
    ],
    ids=lambda lie: str(lie)[:40],
)
def test_a_machine_that_lies_about_its_work_ends_no_dispatcher(
    clock: FakeClock, lie: dict[str, object]
) -> None:
    """Whoever runs a rented machine may write any manifest of its job."""
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0, lie=lie)
    for _ in range(3):
        pool.tick(61.0)
    pool.dispatcher.observatory.write(at_once=True)
    (row,) = pool.stored().values()
    assert (row.done, row.busy_s, row.median_step_s, row.ratios) == (0.0, 0.0, None, None)
    assert sum(entry.size for entry in pool.store.list(keys.OBSERVATIONS)) < 2_000
    assert pool.dispatcher.observatory.pace(row.job) is None
    worker.finish()
    pool.tick()
    assert pool.dispatcher.world.jobs[pool.specs[0].id].final


def test_a_pointer_that_no_key_can_hold_ends_no_dispatcher(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    lease = worker.lease
    pointer = Pointer(lease.attempt, 10**400, 1, 1, "0" * 64)
    move = Hold(lease.holder, lease.attempt, SILENCE_S, None, Move(pointer, None))
    assert isinstance(lease.write(move), Confirmed)
    pool.tick(61.0)
    assert pool.dispatcher.observatory.pace(pool.specs[0].id) is None


def test_corrupt_ones_cost_knowledge_and_no_job(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    key = keys.observations("spotty", T4)
    assert isinstance(pool.store.create(key, b"\x00 not json"), Written)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    tick = pool.tick(61.0)
    assert key in tick.troubles
    worker.finish()
    pool.tick()
    assert pool.dispatcher.world.jobs[pool.specs[0].id].final


def test_a_silent_store_costs_nothing_but_time(clock: FakeClock) -> None:
    store = FaultyStore(clock)
    pool = Pool(clock, 1, store)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    store.silent = lambda key: key.startswith((keys.OBSERVATIONS, "jobs/"))
    pool.tick(61.0)
    pool.dispatcher.observatory.write(at_once=True)
    store.heal()
    pool.tick(61.0)
    pool.dispatcher.observatory.write(at_once=True)
    assert len(pool.stored()) == 1


def reads_of(store: FaultyStore) -> list[str]:
    """The manifests that were read, and the list is emptied."""
    found = [key for call, key in store.calls if call == "read" and key.endswith("manifest.json")]
    store.calls.clear()
    return found


def test_manifests_are_read_once_a_minute_and_so_many_a_round(clock: FakeClock) -> None:
    """Jobs with a milestone every few seconds must not turn a round into a thousand reads."""
    store = FaultyStore(clock)
    pool = Pool(clock, 40, store)
    pool.dispatcher = pool.another(slots=40)
    workers = pool.started()
    for worker in workers:
        worker.train(1, 100.0, slept=True)
    store.calls.clear()
    pool.tick()
    first = reads_of(store)
    assert len(first) == 32
    pool.tick()
    assert len(reads_of(store)) == 8, "who was not read comes next"
    for _ in range(3):
        for worker in workers:
            worker.train(1, 100.0, slept=True)
        store.calls.clear()
        pool.tick(10.0)
        assert reads_of(store) == []
    pool.tick(60.0)
    assert set(reads_of(store)) and len(first) == 32


def test_an_attempt_is_judged_by_its_own_milestones_alone(clock: FakeClock) -> None:
    """A launch whose platform starts it anew has had a manifest, of the attempt before."""
    pool = Pool(clock, 1)
    (worker,) = pool.started()
    worker.train(100, 2.0)
    pool.tick()
    assert pool.dispatcher.observatory.pace(pool.specs[0].id)
    clock.sleep(2 * SILENCE_S)
    track = pool.dispatcher.observatory._tracks[pool.specs[0].id]
    track.attempt = 2  # as after a claim by the same launch
    assert pool.dispatcher.observatory.pace(pool.specs[0].id) is None


@pytest.mark.parametrize("kind", ["evaluate", "backtest"])
def test_jobs_of_one_milestone_show_no_speed(clock: FakeClock, kind: str) -> None:
    pool = Pool(clock, 1)
    pool.specs = [replace(pool.specs[0], kind=kind)]  # type: ignore[arg-type]
    enlist(pool.store, "p", "e", pool.specs, {"rungs": ["spot"], "priority": 0}, clock)
    pool.dispatcher = pool.another()
    (worker,) = pool.started()
    worker.train(100, 2.0)
    worker.finish()
    pool.tick()
    pool.dispatcher.observatory.write(at_once=True)
    row = pool.stored()[pool.specs[0].id]
    assert (row.end, row.done, row.busy_s) == ("finished", 0.0, 0.0)


rows_of = st.builds(
    Observation,
    job=st.sampled_from(["a", "b", "c"]),
    launch=st.integers(1, 3),
    rung=st.just("r"),
    end=st.sampled_from(["running", "finished", "lost"]),
    work=st.just("w"),
    start_s=st.none() | st.floats(0, 9),
    paid_s=st.floats(0, 9),
    busy_s=st.floats(0, 9),
    done=st.floats(0, 9),
)
some_rows = st.lists(rows_of, max_size=12)


@given(some_rows, some_rows, some_rows)
def test_a_merge_gives_the_same_in_any_order(
    one: list[Observation], two: list[Observation], three: list[Observation]
) -> None:
    left = merge(merge(one, two).values(), three)
    right = merge(three, merge(two, one).values())
    assert left == right
    assert merge(left.values(), left.values()) == left
    assert left.keys() == {(row.job, row.launch) for row in (*one, *two, *three)}


def test_an_object_is_bounded_and_keeps_the_newest() -> None:
    many = [Observation("j", n, "r", "lost", "w") for n in range(MOST_ROWS + 50)]
    kept = merge(many, [])
    assert len(kept) == MOST_ROWS and ("j", 49) not in kept and ("j", 50) in kept


@given(st.lists(st.text(max_size=12), max_size=4), st.text(max_size=20))
def test_rows_that_were_encoded_before_give_the_same_bytes(names: list[str], card: str) -> None:
    """Whatever the names are: that of a card may look like the place where the rows belong."""
    rows = tuple(Observation(name, n, "r", "lost", '"rows":[]') for n, name in enumerate(names))
    for told in (card, '"rows":[]' + card, '\\"rows":[]'):
        frame = Observations("r", told, '"rows":[]', (), "n")
        body = encode_with_rows(frame, [encode(row) for row in rows])
        assert body == encode(replace(frame, rows=rows))


def test_only_rows_that_changed_are_encoded_again() -> None:
    place = _Place({("j", n): Observation("j", n, "r", "running", "w") for n in range(3)})
    before = place.encode_rows()
    place.rows["j", 1] = replace(place.rows["j", 1], end="lost")
    after = place.encode_rows()
    assert after == [encode(row) for row in place.rows.values()]
    assert [old is new for old, new in zip(before, after, strict=True)] == [True, False, True]
    del place.rows["j", 0]
    assert place.encode_rows() == after[1:] and len(place.encoded) == 2
