"""Backup copies: when one is worth its price, that there is one of a kind, and whose result counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.cli.dispatch import _demand_results
from tenure.dispatch import copies, decide
from tenure.dispatch.contract import Capacity
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.dispatch.registry import build_dispatcher
from tenure.notify import notices
from tenure.plan.advise import Prospect
from tenure.plan.backup import LEAST_LENGTHS, LIKELY, Rest, copy, left_by_lengths
from tenure.plan.enlist import enlist, enlist_copy, plan_records
from tenure.settings import load_settings
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Cancel, Revoke
from tenure_protocol.records import JobSpec, Witness
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.unit.test_dispatcher import ListingRunner
from tests.unit.test_observations import SILENCE_S, Pool, Worker

H = 3600.0
DEAR = Prospect("dear", 2 * H, 60.0, 3.0, sure=True)
CHEAP = Prospect("cheap", 2 * H, 60.0, 1.0, milestone_s=1800.0, silence_s=600.0)
SLOW = Rest(20 * H, 0.1, "20 h are left of it")


# -------------------------------------------------------------------------------- the rule


def test_a_copy_begins_as_late_as_it_can_on_the_cheapest_rung_that_is_in_time() -> None:
    kept_s = CHEAP.takes_s + CHEAP.reserve_s
    assert kept_s > CHEAP.safe_s
    assert copy(SLOW, [DEAR, CHEAP], 40 * H, 40 * H - kept_s - 1.0) is None, "there is time yet"
    found = copy(SLOW, [DEAR, CHEAP], 40 * H, 40 * H - kept_s)
    assert found and found.rung == "cheap"
    assert found.reason == (
        "20 h are left of it, it is due in 3.2 h and on time with 10%; a copy from the beginning takes 2.0 h and "
        "2.02 USD on cheap"
    )
    late_s = 40 * H - DEAR.safe_s
    assert copy(SLOW, [DEAR], 40 * H, late_s - 1.0) is None
    assert copy(SLOW, [DEAR], 40 * H, late_s) is not None


@pytest.mark.parametrize(
    ("rest", "fresh"),
    [
        (replace(SLOW, on_time=LIKELY), [DEAR]),  # it is likely to be on time
        (SLOW, [replace(DEAR, run_s=2.6 * H)]),  # the copy would be late as well
        (replace(SLOW, left_s=1.1 * 2 * H), [DEAR]),  # and it would not be clearly sooner
        (SLOW, []),
    ],
)
def test_nothing_is_paid_for_a_copy_that_changes_nothing(rest: Rest, fresh: list[Prospect]) -> None:
    assert copy(SLOW, [DEAR], 2.5 * H, 0.0) is not None
    assert copy(rest, fresh, 2.5 * H, 0.0) is None


@given(st.lists(st.floats(600.0, 1e5), min_size=LEAST_LENGTHS, max_size=12), st.floats(0.0, 1e6))
def test_what_is_left_of_a_straggler_grows_with_its_age(took_s: list[float], late_s: float) -> None:
    """Once it is older than any that finished: whoever is very late is not about to end."""
    age_s = max(took_s) + late_s
    now, later = (left_by_lengths(took_s, at_s, 3600.0) for at_s in (age_s, 2 * age_s))
    assert now and later
    assert later.left_s >= now.left_s * (1 - 1e-6) and later.on_time <= now.on_time + 1e-6
    assert left_by_lengths(took_s[: LEAST_LENGTHS - 1], age_s, 3600.0) is None


# -------------------------------------------------------------------------- in the dispatcher


class Race(Pool):
    """Evaluations of an hour, which tell no steps, on two like rungs; the last of them goes on for ever."""

    def __init__(self, clock: FakeClock, **more: object) -> None:
        super().__init__(clock, 4)
        self.store = MemoryStore(clock)
        self.specs = [
            replace(spec, kind="evaluate", max_silence_s=SILENCE_S, **more)  # type: ignore[arg-type]
            for spec in self.specs
        ]
        terms: dict[str, object] = {"rungs": ["one", "two"], "deadline_h": 10.0, "x": 1}
        enlist(self.store, "p", "e", self.specs, terms, clock)
        self.dispatcher = self.racing()

    def racing(self, backups: bool = True, price_class: str = "on_demand") -> Dispatcher:
        capacity = Capacity(1, 4, 60.0)
        rungs = [
            Rung("one", "first", ListingRunner(), capacity, "t4", price=Price("usd", 1.0)),
            Rung("two", "other", ListingRunner(), capacity, "t4", price_class, Price("usd", 2.0)),
        ]
        return Dispatcher(self.store, rungs, self.clock, backups=backups)

    @property
    def last(self) -> JobSpec:
        return self.specs[-1]

    @property
    def twin(self) -> JobSpec:
        return replace(self.last, run=1)

    def straggle(self) -> Worker:
        """Three are done after an hour; of the fourth seven more have gone by."""
        workers = self.started()
        self.clock.sleep(1 * H)
        for worker in workers[:3]:
            worker.finish()
        self.tick()
        self.tick(7 * H)
        return workers[3]

    def copied(self, worker: Worker | None = None) -> Worker:
        """The straggler's worker, once it has a copy."""
        worker = worker or self.straggle()
        self.tick(0.7 * H)
        self.tick(1.0)
        return worker

    def enlisted(self) -> set[str]:
        return {job for record in plan_records(self.store) for job in record.jobs}

    def witness(self, spec: JobSpec) -> Witness:
        found = read_witness(self.store, keys.witness_of(spec)).witness
        assert found is not None
        return found

    def last_words(self, tick: Tick) -> tuple[decide.Action, str]:
        return self.decided(tick, 3)


def test_a_straggler_has_a_copy_when_it_would_be_late_and_not_before(clock: FakeClock) -> None:
    race = Race(clock)
    race.straggle()
    assert race.twin.id not in race.enlisted()
    action, reason = race.last_words(race.tick(0.7 * H))
    assert action == decide.EnlistCopy(race.last.id, "two")
    assert "3 jobs of its configuration took 1.0 h to 1.0 h, and it has run for 8.7 h" in reason
    assert "a copy from the beginning takes 1.1 h and 2.18 USD on two" in reason
    assert race.enlisted() == {spec.id for spec in (*race.specs, race.twin)}
    newest = plan_records(race.store)[-1]
    assert newest.jobs == (race.twin.id,) and newest.terms["x"] == 1, "under the plan's terms"


def test_a_copy_is_a_job_of_its_own_with_the_deadline_of_its_original(clock: FakeClock) -> None:
    race = Race(clock)
    race.copied()
    views = race.dispatcher.snapshot().view_of
    twin, original = views[race.twin.id], views[race.last.id]
    assert (twin.copy_of, original.copied_as) == (race.last.id, race.twin.id)
    assert (twin.deadline_s, twin.since_s) == (original.deadline_s, original.since_s)
    w = race.witness(race.twin)
    assert w.phase == "expected" and w.launch and w.launch.runner == "other"
    assert race.witness(race.last).attempt == 1, "nobody took it from its holder"
    assert "whose backup copy it is, is there" in twin.excluded["one"]


def test_there_is_one_copy_whoever_enlists_it(clock: FakeClock) -> None:
    race = Race(clock)
    race.straggle()
    rival = race.racing()
    clock.sleep(0.7 * H)
    for dispatcher in (race.dispatcher, rival):
        dispatcher.world.observe()  # both decide from a store without a copy
    for dispatcher in (race.dispatcher, rival, race.dispatcher):
        dispatcher.world._observe_plans = lambda: None  # type: ignore[method-assign]
        copies.enlist(race.store, dispatcher.world, race.last.id, f"by {dispatcher.name}", clock)
    assert race.enlisted() == {spec.id for spec in (*race.specs, race.twin)}
    versions = [each for each in plan_records(race.store) if race.twin.id in each.jobs]
    assert len(versions) == 1 and versions[0].terms["backups"] == {
        race.twin.id: {"of": race.last.id, "why": f"by {race.dispatcher.name}"}
    }
    race = Race(clock)
    race.copied()
    for _ in range(5):
        assert isinstance(race.last_words(race.tick(1.0))[0], decide.Wait), "it has one"
    assert len(race.enlisted()) == 5, "a copy has no copy, and an original one alone"


def test_without_the_option_nobody_is_copied(clock: FakeClock) -> None:
    race = Race(clock)
    race.dispatcher = race.racing(backups=False)
    race.copied(race.straggle())
    assert race.twin.id not in race.enlisted()


@pytest.mark.parametrize(
    ("option", "copies_are_made"),
    [("", False), ("backups = true", True), ("backups = true\nenabled = false", False)],
)
def test_the_option_stands_in_the_settings(
    option: str, copies_are_made: bool, tmp_path: Path
) -> None:
    (tmp_path / "tenure.toml").write_text(f'[store]\nurl = "memory:"\n[planner]\n{option}\n')
    dispatcher = build_dispatcher(load_settings(start=tmp_path, environ={}))
    assert (dispatcher._sight._planner._stragglers is not None) is copies_are_made


def test_two_jobs_that_finished_call_nobody_a_straggler(clock: FakeClock) -> None:
    race = Race(clock)
    workers = race.started()
    clock.sleep(1 * H)
    for worker in workers[:2]:
        worker.finish()
    race.tick()
    race.tick(7.7 * H)
    race.tick(1.0)
    assert race.twin.id not in race.enlisted()


def test_a_copy_of_what_is_to_be_deployed_goes_to_a_sure_rung_alone(clock: FakeClock) -> None:
    """In the environment that the original requires: it is the same spec, but for its run."""
    requires: dict[str, object] = {"python": "3.11"}
    race = Race(clock, generation=2, requires=requires)
    race.dispatcher = race.racing(price_class="spot")
    race.copied(race.straggle())
    assert race.twin.id not in race.enlisted()
    race = Race(clock, generation=2, requires=requires)
    race.copied(race.straggle())
    assert race.twin.id in race.enlisted() and race.twin.requires == requires


def test_who_is_asked_to_yield_is_not_copied_too(clock: FakeClock) -> None:
    race = Race(clock)
    race.straggle()
    race.dispatcher._move(decide.AskToYield(race.last.id, "two"))
    race.tick(0.7 * H)
    assert race.twin.id not in race.enlisted()


# ------------------------------------------------------------------------- whose result counts


def second(race: Race) -> Worker:
    """The copy's worker."""
    worker = Worker(race, race.twin)
    race.tick(1.0)
    return worker


def test_where_the_copy_is_done_sooner_its_original_is_cancelled(clock: FakeClock) -> None:
    race = Race(clock)
    race.copied()
    second(race).finish()
    race.tick(1.0)
    w = race.witness(race.last)
    assert w.phase == "cancelled" and w.reason == (
        f"its backup copy, job {race.twin.id}, was done sooner"
    )
    assert race.witness(race.twin).phase == "finished"
    race.tick(1.0)
    _demand_results(race.dispatcher, race.store)


def test_where_the_original_is_done_sooner_its_copy_is_cancelled(clock: FakeClock) -> None:
    race = Race(clock)
    worker = race.copied()
    second(race)
    worker.finish()
    race.tick(1.0)
    w = race.witness(race.twin)
    assert w.phase == "cancelled" and w.reason == (
        f"job {race.last.id}, whose backup copy it is, was done sooner"
    )
    tick = race.tick(1.0)
    _demand_results(race.dispatcher, race.store)  # the other has the result: nothing lacks
    seen = notices.look(tick, race.dispatcher.world)
    assert [each.state for each in seen.jobs] == ["finished"] * 4, "nor is anybody told so"


def test_where_both_are_done_neither_is_touched(clock: FakeClock) -> None:
    """The original's counts: whoever follows a stage takes the first run that finished well."""
    race = Race(clock)
    worker, twin = race.copied(), second(race)
    twin.finish()
    worker.finish()
    race.tick(1.0)
    assert race.witness(race.last).phase == race.witness(race.twin).phase == "finished"
    assert not copies.spare(race.dispatcher.world.jobs, race.twin.id)


@pytest.mark.parametrize(("by", "ended"), [("operator me", True), ("dispatcher-9", False)])
def test_what_a_person_cancels_is_not_wanted_as_a_copy_either(
    by: str, ended: bool, clock: FakeClock
) -> None:
    """What a dispatcher gave up is what its copy is for."""
    race = Race(clock)
    race.copied()
    second(race)
    key = keys.witness_of(race.last)
    stored = read_witness(race.store, key)
    event = Cancel(by, "of no use")
    assert isinstance(change(race.store, key, race.last.id, stored, event, clock), Applied)
    race.tick(1.0)
    w = race.witness(race.twin)
    assert (w.phase == "cancelled") is ended
    assert not ended or f"was cancelled by {by}: of no use" in (w.reason or "")


def test_a_paused_original_is_ended_too(clock: FakeClock) -> None:
    race = Race(clock)
    race.copied()
    twin = second(race)
    memory = race.dispatcher.world.jobs[race.last.id]
    race.dispatcher.look()
    race.dispatcher._write(memory.job, Revoke("operator me", "paused", held_back=True))
    race.tick(1.0)
    assert race.witness(race.last).held_back
    twin.finish()
    race.tick(1.0)
    assert race.witness(race.last).phase == "cancelled"


def test_why_tells_of_the_other(clock: FakeClock) -> None:
    race = Race(clock)
    race.copied()
    world = race.dispatcher.world
    mine, its = copies.told(world, race.last.id), copies.told(world, race.twin.id)
    assert mine.startswith(f"it has a backup copy, job {race.twin.id}: ")
    assert its.startswith(f"it is the backup copy of job {race.last.id}: ")
    assert all("it is due in" in each for each in (mine, its))
    assert copies.told(world, race.specs[0].id) == ""


def test_a_record_that_names_no_copy_is_a_record_all_the_same(clock: FakeClock) -> None:
    race = Race(clock)
    terms: dict[str, object] = {
        "rungs": ["one"],
        "backups": {race.twin.id: {"of": "nobody"}, "q": 1},
    }
    enlist(race.store, "p", "e", [race.twin], terms, clock)
    race.tick()
    assert race.dispatcher.world.jobs[race.twin.id].copy_of == ""
    assert enlist_copy(race.store, "p", race.last, "again", clock) == race.twin.id
