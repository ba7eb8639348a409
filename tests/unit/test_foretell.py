"""A forecast with every launch: made of what was seen, scored by whoever sees the end, told by a command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.dispatch import foretell
from tenure.dispatch.foretell import DRAWN_EVERY_S, Foreseen
from tenure.dispatch.ladder import Rung
from tenure.dispatch.lifetimes import LifetimeBook, scored
from tenure.dispatch.loop import Dispatcher
from tenure.plan.predict import LEVELS
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Finish
from tenure_protocol.records import Lifetime
from tenure_protocol.store.api import Written
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.tenure_command import tenure
from tests.unit.test_observations import T4, Pool, Worker

HERE = ("spotty", T4)
TOLD = tuple(float(10 * n) for n in range(1, 10))


def rows_of(dispatcher: Dispatcher) -> list[Lifetime]:
    rows = [row for _, row in dispatcher.observatory.lifetimes.rows()]
    return [row for row in rows if row.predicted_s is not None]


def relaunched(pool: Pool) -> None:
    """The first job did 100 of 1,000 steps of two seconds, was released, and has a second launch."""
    worker = pool.started(count=1)[0]
    worker.train(100, 2.0, total=1_000)
    pool.tick()
    worker.release()
    pool.tick()
    pool.tick()
    w = pool.dispatcher.world.jobs[pool.specs[0].id].witness
    assert w and w.launched == 2


def test_a_launch_of_a_job_that_is_known_keeps_when_it_will_be_done(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    pool.tick()
    assert rows_of(pool.dispatcher) == [], "nobody has told how long it is"
    relaunched(pool)
    (row,) = rows_of(pool.dispatcher)
    assert (row.launch, row.rung, row.end, row.took_s) == (2, "spot", "running", None)
    assert row.predicted_s and list(row.predicted_s) == sorted(row.predicted_s)
    assert len(row.predicted_s) == len(LEVELS)
    assert row.predicted_s[4] == pytest.approx(900 * 2.0 + 50.0, rel=0.25)


def test_its_outcome_is_the_time_from_its_announcement_to_the_end(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    relaunched(pool)
    began_s = clock.monotonic_s()
    clock.sleep(40.0)
    worker = Worker(pool, pool.specs[0], 2)
    worker.train(900, 2.0, total=1_000)
    worker.finish()
    ended_s = clock.monotonic_s()
    clock.sleep(500.0)  # nobody looks
    pool.tick()
    (pair,) = scored(rows_of(pool.dispatcher))
    assert pair[1] == pytest.approx(ended_s - began_s, abs=2.0)


def test_a_dispatcher_scores_what_another_has_foretold(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    relaunched(pool)
    began_s = clock.monotonic_s()
    pool.dispatcher.observatory.write(at_once=True)
    clock.sleep(40.0)
    worker = Worker(pool, pool.specs[0], 2)
    worker.train(900, 2.0, total=1_000)
    other = pool.another()
    other.tick()
    assert not scored(rows_of(other))
    worker.finish()
    ended_s = clock.monotonic_s()
    clock.sleep(500.0)
    other.tick()
    other.observatory.write(at_once=True)
    third = LifetimeBook(pool.store, clock, "third")
    third.read()
    (pair,) = scored(row for _, row in third.rows())
    assert pair[1] == pytest.approx(ended_s - began_s, abs=2.0)


def foretold_and_over(pool: Pool) -> float:
    """Somebody foretold of a launch, kept it, and was gone before its job ended; how long that took."""
    relaunched(pool)
    began_s = pool.clock.monotonic_s()
    pool.dispatcher.observatory.write(at_once=True)
    worker = Worker(pool, pool.specs[0], 2)
    worker.train(900, 2.0, total=1_000)
    worker.finish()
    return pool.clock.monotonic_s() - began_s


def stored_outcomes(pool: Pool) -> list[tuple[tuple[float, ...], float]]:
    book = LifetimeBook(pool.store, pool.clock, "somebody else")
    book.read()
    return scored(row for _, row in book.rows())


def test_who_starts_when_all_is_over_scores_what_was_foretold(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    took_s = foretold_and_over(pool)
    clock.sleep(5_000.0)
    last = pool.another()
    last.tick()
    clock.sleep(3_000.0)  # ages of an experiment that is over are not listed any more
    last.leave()
    ((_, told_s),) = stored_outcomes(pool)
    assert told_s == pytest.approx(took_s, abs=2.0)


def test_a_store_that_is_silent_at_first_is_asked_what_was_foretold_again(clock: FakeClock) -> None:
    store = FaultyStore(clock)
    pool = Pool(clock, 1, store)
    took_s = foretold_and_over(pool)
    last = pool.another()
    store.silent = lambda key: key.startswith(keys.LIFETIMES)
    last.tick()
    clock.sleep(3_000.0)
    last.leave()  # nothing is lost but what it would have told
    assert not stored_outcomes(pool)
    store.silent = lambda key: False
    last.tick()
    assert scored(rows_of(last))
    last.leave()
    ((_, told_s),) = stored_outcomes(pool)
    assert told_s == pytest.approx(took_s, abs=2.0)


def test_who_leaves_scores_what_was_foretold_after_he_had_asked(clock: FakeClock) -> None:
    """All outcomes, of which a look takes 32, and those that another wrote while he ran."""
    pool = Pool(clock, 1)
    relaunched(pool)
    early = pool.another()
    early.tick()
    worker = Worker(pool, pool.specs[0], 2)
    worker.train(900, 2.0, total=1_000)
    worker.finish()
    early.tick()
    for number in range(3, 60):  # launches that he never saw, and that tell of the same job
        row = Lifetime(pool.specs[0].id, number, "spot", "lost")
        assert isinstance(pool.store.create(keys.intent(row.job, number), b"{}"), Written)
        pool.dispatcher.observatory.lifetimes.predicted(HERE, row, TOLD)
    pool.dispatcher.leave()
    early.leave()
    assert len(stored_outcomes(pool)) == 58


def test_the_end_of_a_dispatcher_is_its_last_word(clock: FakeClock) -> None:
    """Within the five minutes between two writes."""
    pool = Pool(clock, 1)
    pool.started()[0].train(100, 2.0)
    pool.tick()
    assert not list(pool.store.list(keys.OBSERVATIONS))
    pool.dispatcher.leave()
    assert pool.stored() and list(pool.store.list(keys.LIFETIMES))


def test_a_job_that_failed_is_not_scored(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    relaunched(pool)
    worker = Worker(pool, pool.specs[0], 2)
    worker.lease.write(Finish(worker.lease.holder, worker.lease.attempt, 3, "a bug", {}))
    pool.tick()
    pool.tick()
    assert rows_of(pool.dispatcher) and not scored(rows_of(pool.dispatcher))


def test_a_silent_store_puts_scoring_off(clock: FakeClock) -> None:
    store = FaultyStore(clock)
    one, two = LifetimeBook(store, clock, "one"), LifetimeBook(store, clock, "two")
    assert isinstance(store.create(keys.intent("a", 1), b"{}"), Written)
    one.predicted(HERE, Lifetime("a", 1, "r", "running"), TOLD)
    one.write(at_once=True)
    two.read()
    clock.sleep(25.0)
    two.finished("a")
    store.silent = lambda key: key == keys.intent("a", 1)
    two.score()
    assert not scored(row for _, row in two.rows()) and two.troubles
    clock.sleep(70.0)
    store.silent = lambda key: False
    two.score()
    ((_, took_s),) = scored(row for _, row in two.rows())
    assert took_s == pytest.approx(25.0, abs=2.0) and not two.troubles


def test_a_launch_without_an_intent_has_no_outcome(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    one, two = LifetimeBook(store, clock, "one"), LifetimeBook(store, clock, "two")
    one.predicted(HERE, Lifetime("a", 1, "r", "running"), TOLD)
    one.write(at_once=True)
    two.read()
    two.finished("a")
    two.score()
    assert not scored(row for _, row in two.rows())


def test_a_round_that_launches_nothing_draws_nothing(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(clock, 1)
    workers = pool.started()
    workers[0].train(100, 2.0)
    pool.tick()
    monkeypatch.setattr(foretell.Foreseen, "at", pytest.fail)
    for _ in range(3):
        pool.tick(700.0)


@pytest.mark.parametrize("error", [ValueError("no number"), OverflowError("too large")])
def test_numbers_that_cannot_be_cost_a_forecast_and_no_round(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(foretell, "forecast", failing)
    pool = Pool(clock, 1)
    relaunched(pool)
    assert rows_of(pool.dispatcher) == []


def test_a_job_that_needs_hundreds_of_machines_is_said_never_to_end(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    worker = pool.started()[0]
    worker.train(100, 2.0, total=3_000_000)
    pool.tick()
    worker.release()
    pool.tick()
    pool.tick()
    (row,) = rows_of(pool.dispatcher)
    assert row.predicted_s and row.predicted_s[0] > 1e8


def test_a_life_has_its_wall_less_the_start(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    pool.started(delay_s=50.0)[0].train(100, 2.0)
    pool.tick()
    rungs: dict[str, Rung] = {
        name: replace(rung, capacity=replace(rung.capacity, wall_s=36_000.0))
        for name, rung in pool.dispatcher.rungs.items()
    }
    seen = Foreseen(rungs, pool.dispatcher.observatory)
    seen.at(clock.monotonic_s())
    assert seen.curve("spot").wall_s == pytest.approx(36_000.0 - 50.0)
    assert seen.curve("demand").wall_s == 36_000.0 - 300.0, "as long as a start is assumed to take"


@pytest.mark.parametrize("wall_s", [None, 0.0, -1.0])
def test_a_wall_of_no_time_is_none(clock: FakeClock, wall_s: float | None) -> None:
    pool = Pool(clock, 1)
    rungs: dict[str, Rung] = {
        name: replace(rung, capacity=replace(rung.capacity, wall_s=wall_s))
        for name, rung in pool.dispatcher.rungs.items()
    }
    seen = Foreseen(rungs, pool.dispatcher.observatory)
    seen.at(clock.monotonic_s())
    assert seen.curve("spot").wall_s is None


def test_what_is_drawn_holds_for_some_minutes(clock: FakeClock) -> None:
    pool = Pool(clock, 1)
    seen = Foreseen(pool.dispatcher.rungs, pool.dispatcher.observatory)
    seen.at(0.0)
    first = seen.curve("spot"), seen.law(HERE, "steps of e/x")
    assert first[1] is None, "nobody has done such work"
    seen.at(DRAWN_EVERY_S - 1.0)
    assert seen.curve("spot") is first[0]
    seen.at(DRAWN_EVERY_S)
    assert seen.curve("spot") is not first[0]


# ------------------------------------------------------------------------------ the command


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LifetimeBook:
    (tmp_path / "tenure.toml").write_text('[store]\nurl = "file:store"\n')
    monkeypatch.chdir(tmp_path)
    return LifetimeBook(DirectoryStore(tmp_path / "store", clock=SYSTEM), SYSTEM, "d")


def test_without_forecasts_the_command_says_when_there_will_be_some(kept: LifetimeBook) -> None:
    ended = tenure("forecasts")
    assert ended.code == 0 and "no launch has foretold yet" in ended.out
    kept.predicted(HERE, Lifetime("a", 1, "r", "running"), TOLD)
    kept.write(at_once=True)
    assert "1 launches have foretold" in tenure("forecasts").out
    told = json.loads(tenure("forecasts", "--json").out)
    assert told == {"scored": 0, "not_scored": 1, "table": None}


@pytest.mark.parametrize(
    ("took_s", "words"),
    [
        (lambda n: 10.0 * (n % 10) + 5, "as they promise"),
        (lambda n: 400.0 + n, "too hopeful"),
        (lambda n: 1.0, "too cautious"),
        (lambda n: 1.0 + 400 * (n % 2), "too narrow"),
        (lambda n: 45.0 + 10 * (n % 2), "too wide"),
    ],
)
def test_the_command_says_what_forecasts_are_worth(
    kept: LifetimeBook, took_s: object, words: str
) -> None:
    assert callable(took_s)
    for n in range(40):
        row = Lifetime(f"j{n}", 1, "r", "finished", took_s=took_s(n))
        kept.predicted(HERE, row, TOLD)
    kept.predicted(HERE, Lifetime("open", 1, "r", "running"), TOLD)
    kept.write(at_once=True)
    ended = tenure("forecasts")
    assert ended.code == 0 and words in ended.out and "1 forecasts have no outcome" in ended.out
    told = json.loads(tenure("forecasts", "--json").out)
    assert (told["scored"], told["not_scored"], told["table"]["count"]) == (40, 1, 40)
    assert sum(told["table"]["deciles"]) == 40 and told["table"]["pinball_s"] > 0
    lines = ended.out.splitlines()
    assert lines[0].split() == ["decile", "outcomes", "up", "to", "it", "promised"]
    assert [int(line.split()[1]) for line in lines[1:11]] == told["table"]["deciles"]


def test_an_object_that_cannot_be_read_is_named(kept: LifetimeBook) -> None:
    store = DirectoryStore(Path("store"), clock=SYSTEM)
    assert isinstance(store.create(keys.lifetimes(*HERE), b"{"), Written)
    ended = tenure("forecasts")
    assert ended.code == 0 and "its forecasts are left out" in ended.err
