"""The worker's side, in this process: what it may write and when, and how each of its ends looks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Ask, Cancel, Claim, Reserve, Resume, Revoke
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import (
    FileEntry,
    Manifest,
    Pointer,
    SnapshotRef,
    Witness,
    load,
    sha256_hex,
)
from tenure_protocol.store.api import Found
from tenure_worker import exits, journal, snapshot, stages
from tenure_worker.claim import claim
from tenure_worker.courier import Chunk
from tenure_worker.exits import Stopped, classify
from tenure_worker.experiment import Backtest, Evaluation, Metric
from tenure_worker.gang import Gang, RankFailed
from tenure_worker.pacing import LEAST_K, UNMEASURED_S
from tenure_worker.tenure import MEASURED_AFTER, Tenure
from tests.fake_clock import FakeClock
from tests.faulty_store import WRITE_FAULTS
from tests.toy.experiment import Toy
from tests.unit.worker_world import MEASURED, World

FLOOR_S = 9.0  # three times the deadline and the p99 of a memory store


@pytest.fixture
def world(clock: FakeClock) -> World:
    return World(clock)


def touch(folder: Path) -> None:
    (folder / "f").write_text("x")


def is_artifact(key: str) -> bool:
    return key.startswith("jobs/")


# -------------------------------------------------------------------------------- a good run


def test_a_run_from_claim_to_finish(world: World) -> None:
    assert world.run() == exits.FINISHED
    w = world.witness
    assert (w.phase, w.exit_code, w.result) == ("finished", 0, {"word": world.expected_word()})
    assert w.pointer and (w.pointer.ordinal, w.pointer.step) == (6, 60)
    assert [e["step"] for e in world.events()] == list(range(1, 61))
    manifest = world.manifest(w.pointer)
    assert manifest.fingerprint == MEASURED
    assert manifest.median_step_s == 1.0 and 58 < manifest.busy_s < 62
    world.check()


def test_the_folder_is_gone_after_the_block(world: World) -> None:
    with world.claimed() as tenure:
        folder = tenure.folder
        assert folder.is_dir()
        world.steps(tenure, 3)
        tenure.milestone(touch)
        tenure.finish({})
    assert not folder.exists()


def test_a_released_job_goes_on_where_it_was(world: World) -> None:
    def interrupted(at: int) -> int:
        try:
            with world.claimed() as tenure:
                real, seen = tenure.step, []

                def step() -> None:
                    seen.append(1)
                    if len(seen) == at:
                        tenure.request_stop("a test")
                    real()

                tenure.step = step  # type: ignore[method-assign]
                tenure.finish(world.train(tenure))
        except Stopped as stop:
            return stop.exit_code
        return 0

    assert [interrupted(7), interrupted(16), interrupted(30)] == [10, 10, 10]
    assert world.run() == 0
    assert world.history == list(range(1, 61)), "a step was lost or done twice"
    assert world.witness.result == {"word": world.expected_word()}
    assert world.witness.attempt == 4
    world.check()


def test_finish_waits_for_the_last_pointer(world: World) -> None:
    world.store.put_s = lambda key: 50.0
    assert world.run() == 0
    assert world.witness.pointer and world.witness.pointer.step == 60
    world.check()


# ---------------------------------------------------------------------------------- renewals


def test_no_step_no_renewal(world: World, clock: FakeClock) -> None:
    """Neither carrier nor courier renews: a loop that hangs loses its lease."""
    world.store.put_s = lambda key: 5.0
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 30)
        tenure.milestone(touch)
        clock.sleep(20.0)
        seq = world.witness.seq
        clock.sleep(5000.0)  # the courier has long delivered
        assert world.witness.seq == seq, "somebody renewed without a step"
        assert world.witness.pointer is None, "the courier moved the pointer"
        tenure.step()
        clock.sleep(1.0)
        assert world.witness.seq > seq
        tenure.request_stop("end")
        tenure.milestone(touch)


def test_a_loop_that_steps_never_outlives_its_lease(world: World, clock: FakeClock) -> None:
    with world.claimed() as tenure:
        for _ in range(300):
            clock.sleep(0.7)
            assert world.age_s < world.witness.silence_allowed_s / 2
            tenure.step()
        tenure.milestone(touch)
        tenure.finish({})
    assert len(world.store.bodies(world.key)) < 110, "too many renewals"


def test_the_lease_follows_the_steps(world: World, clock: FakeClock) -> None:
    with world.claimed() as tenure:
        assert world.witness.silence_s == 600.0  # the claim window
        world.steps(tenure, 2, 5.0)
        clock.sleep(1.0)
        assert world.witness.silence_s == UNMEASURED_S
        world.steps(tenure, MEASURED_AFTER, 5.0)
        clock.sleep(1.0)
        assert tenure.median_step_s == 5.0
        assert world.witness.silence_s == LEAST_K * 5.0, "its steps are all alike"
        world.steps(tenure, 4000, 0.01)
        clock.sleep(1.0)
        assert world.witness.silence_s == FLOOR_S
        tenure.finish({})


def test_the_lease_never_passes_the_jobs_longest_silence(clock: FakeClock) -> None:
    world = World(clock, max_silence_s=40.0)
    with world.claimed() as tenure:
        world.steps(tenure, 30, 5.0)
        tenure.announce("evaluating", 9999.0)
        assert world.witness.silence_allowed_s == 40.0
        tenure.finish({})
    assert all(json.loads(b).get("silence_s", 0) <= 40.0 for b in world.store.bodies(world.key))


def test_fruitless_attempts_double_the_lease(world: World, clock: FakeClock) -> None:
    for _ in range(3):
        with pytest.raises(Stopped), world.claimed() as tenure:
            world.steps(tenure, 30)
            tenure.request_stop("x", 0.0)
            world.steps(tenure, 1)
    with world.claimed() as tenure:
        assert world.witness.silence_s == 3600.0  # 600 s doubled thrice, capped
        world.steps(tenure, 30)
        clock.sleep(1.0)
        assert world.witness.silence_s == LEAST_K * 8
        tenure.finish({})


def k_of(world: World, tenure: Tenure) -> float:
    world.clock.sleep(1.0)
    return world.witness.silence_s / tenure.median_step_s


def test_k_is_learnt_from_the_steps_of_the_job(world: World, clock: FakeClock) -> None:
    """One step of seven medians among sixty: a lease that would have ended in it is never chosen again."""
    with world.claimed() as tenure:
        world.steps(tenure, 40, 5.0)
        calm = k_of(world, tenure)
        world.steps(tenure, 1, 35.0)
        world.steps(tenure, 40, 5.0)
        assert calm == LEAST_K and 50 >= k_of(world, tenure) > 7
        tenure.finish({})


def test_a_resumed_job_knows_its_steps_and_the_one_it_was_written_off_in(
    world: World, clock: FakeClock
) -> None:
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 40, 5.0)
        tenure.milestone(touch)
        world.steps(tenure, 1, 35.0)
        world.steps(tenure, 40, 5.0)
        tenure.milestone(touch)
        world.steps(tenure, 2, 5.0)  # its pointer moves
        tenure.request_stop("x", 0.0)
        world.steps(tenure, 1)
    with world.claimed() as tenure:
        tenure.resume(lambda folder: True)
        world.steps(tenure, 30, 5.0)
        assert k_of(world, tenure) > 7
        tenure.finish({})


def test_a_write_off_is_a_step_that_lasted_that_long_at_least(
    world: World, clock: FakeClock
) -> None:
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 40, 5.0)
        tenure.milestone(touch)
        world.steps(tenure, 2, 5.0)  # its pointer moves
        tenure.request_stop("x", 0.0)
        world.steps(tenure, 1)
    world.event(Reserve("here", 600.0, "d1", lapsed_s=50.0))
    world.launch += 1
    with world.claimed(world.launch) as tenure:
        tenure.resume(lambda folder: True)
        world.steps(tenure, 30, 5.0)
        assert k_of(world, tenure) > 10, "it was silent for ten medians, and nobody knows more"
        tenure.finish({})


def test_what_a_step_costs_stands_in_the_manifest(world: World) -> None:
    with world.claimed() as tenure:
        tenure.work(flops=3e9, dtype="bf16", steps=100)
        world.steps(tenure, 30, 2.0)
        tenure.milestone(touch)
        tenure.finish({})
    pointer = world.witness.pointer
    assert pointer
    key = keys.manifest(world.spec.id, pointer)
    found = world.store.read(key)
    assert isinstance(found, Found)
    manifest = load(Manifest, found.body, key)
    assert (manifest.flops_per_step, manifest.dtype, manifest.steps_total) == (3e9, "bf16", 100)
    assert (manifest.from_step, manifest.step) == (0, 30)
    assert manifest.ratios and Ratios.from_json(manifest.ratios).total == 30


def test_the_first_lease_is_predicted_where_a_step_is_known_to_be_long(clock: FakeClock) -> None:
    """A step of 1.3e13 FLOPs lasts two seconds at a tenth of a T4's peak, so fifty of them 100 s."""
    world = World(clock)
    number = world.reserve()
    with claim(world.spec.id, world.store, number, clock, {"card": "Tesla T4"}) as tenure:
        tenure.work(flops=1.3e13, dtype="fp16")
        world.steps(tenure, 2, 1.0)
        clock.sleep(1.0)
        assert world.witness.silence_s == pytest.approx(100.0)
        tenure.finish({})


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"flops": -1.0}, "-1.0 FLOPs"),
        ({"flops": float("nan")}, "nan FLOPs"),
        ({"flops": 1.0, "dtype": "fp3"}, "fp3"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": True}, "steps is True"),
    ],
)
def test_work_that_cannot_be_is_refused(world: World, told: dict, says: str) -> None:
    with world.claimed() as tenure:
        with pytest.raises(ValueError, match=says):
            tenure.work(**told)
        tenure.finish({})


def test_an_announcement_is_stored_before_the_silence_and_ends_with_it(
    world: World, clock: FakeClock
) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 30, 0.1)
        tenure.announce("evaluating", 500.0)
        announced = world.witness.announced
        assert announced and (announced.reason, announced.silence_s) == ("evaluating", 500.0)
        clock.sleep(480.0)
        world.steps(tenure, 2)
        assert world.witness.announced is None
        tenure.finish({})


def test_announcing_to_a_silent_store_stops_nobody(world: World, clock: FakeClock) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 5)
        world.store.silent = lambda key: True
        tenure.announce("evaluating", 100.0)
        world.store.heal()
        world.steps(tenure, 30)
        tenure.finish({})


def test_waiting_for_the_courier_renews_under_an_announcement(world: World) -> None:
    world.store.put_s = lambda key: 400.0
    with world.claimed() as tenure:
        world.steps(tenure, 30, 0.1)
        tenure.milestone(touch)
        before = len(world.store.bodies(world.key))
        tenure.milestone(touch)  # waits 400 s for the first
        bodies = [json.loads(b) for b in world.store.bodies(world.key)[before:]]
        assert len(bodies) > 10
        assert all("announced" in body for body in bodies)
        tenure.finish({})
    world.check()


# ------------------------------------------------------------------------- snapshots, pointer


@pytest.mark.parametrize("put_s", [0.0, 0.5, 15.0, 90.0])
def test_no_snapshot_is_ever_skipped(world: World, put_s: float) -> None:
    """Back-pressure: a courier slower than the milestones slows the loop."""
    world.store.put_s = lambda key: put_s
    assert world.run() == 0
    moved = {p.step: p for p in world_pointers(world)}
    assert sorted(moved) == [10, 20, 30, 40, 50, 60]
    world.check()


def world_pointers(world: World) -> list[Pointer]:
    found = [Witness.decode(body, "k").pointer for body in world.store.bodies(world.key)]
    return [pointer for n, pointer in enumerate(found) if pointer and pointer != found[n - 1]]


def test_a_second_save_of_one_step_has_another_name(world: World) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(lambda folder: (folder / "f").write_text("one"))
        tenure.milestone(lambda folder: (folder / "f").write_text("two"))
        tenure.finish({})
    names = [key.split("/")[-2] for key in world.stored_keys() if key.endswith("manifest.json")]
    assert names == ["10-1", "10-2"]
    world.check()


def test_uploads_survive_an_outage(world: World, clock: FakeClock) -> None:
    outage: list[bool] = []

    def silent(key: str) -> bool:
        return bool(outage) and is_artifact(key)

    world.store.silent = silent

    def weather() -> None:
        for _ in range(3):
            clock.sleep(11.0)
            outage.append(True)
            clock.sleep(40.0)
            outage.clear()

    clock.spawn(weather, "weather")
    assert world.run() == 0
    assert [p.step for p in world_pointers(world)] == [10, 20, 30, 40, 50, 60]
    world.check()


@pytest.mark.parametrize("name", ["manifest.json", ".hidden", "with space", "a/.b", "ü"])
def test_a_file_name_that_no_key_can_hold(world: World, name: str) -> None:
    def save(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")

    with pytest.raises(ValueError, match=name), world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(save)
    assert world.witness.phase == "finished" and world.witness.exit_code == exits.CODE_ERROR


def test_an_upload_that_can_never_work_ends_the_job_even_if_swallowed(
    world: World, clock: FakeClock
) -> None:
    class Gone(Exception):
        pass

    def put_file(key: str, path: Path, progress: object = None) -> None:
        raise Gone(key)

    world.store.put_file = put_file  # type: ignore[method-assign, assignment]
    with pytest.raises(Gone), world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(touch)
        for _ in range(5):  # an experiment that swallows everything still cannot go on
            clock.sleep(1.0)
            with pytest.raises(Gone):
                tenure._woken = True
                tenure.step()
        tenure.finish({})
    assert world.witness.pointer is None


def test_subfolders_travel(world: World) -> None:
    def save(folder: Path) -> None:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "c.bin").write_bytes(b"deep")

    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(save)
    with world.claimed() as tenure:
        assert tenure.resume(lambda folder: (folder / "a/b/c.bin").read_bytes()) == b"deep"
        assert tenure.step_number == tenure.saved_step == 10 and not tenure.milestone_due
        tenure.finish({})


def test_there_is_nothing_to_resume_at_first(world: World) -> None:
    with world.claimed() as tenure:
        assert tenure.resume(lambda folder: pytest.fail("called")) is None
        tenure.finish({})


# ------------------------------------------------------------------- a store that is silent


def silence_after(
    world: World, seconds: float, lasts_s: float, which: Callable[[str], bool]
) -> None:
    def weather() -> None:
        world.clock.sleep(seconds)
        world.store.silent = which
        world.clock.sleep(lasts_s)
        world.store.heal()

    world.clock.spawn(weather, "weather")


@pytest.mark.parametrize("which", [lambda key: True, is_artifact, lambda key: not is_artifact(key)])
def test_a_silence_within_patience_stops_nobody(world: World, which: Callable[[str], bool]) -> None:
    silence_after(world, 15.0, 250.0, which)
    assert world.run(step_s=10.0) == 0
    assert world.history == list(range(1, 61))
    assert world.witness.result == {"word": world.expected_word()}
    assert ("working on" in world.log() and "answers again" in world.log()) or which is is_artifact
    world.check()


@pytest.mark.parametrize("which", [lambda key: True, is_artifact, lambda key: not is_artifact(key)])
def test_a_silence_beyond_patience_is_store_gone(
    world: World, clock: FakeClock, which: Callable[[str], bool]
) -> None:
    silence_after(world, 15.0, 1e5, which)
    began_s = clock.now_s
    assert world.run(steps=10_000) == exits.STORE_GONE
    assert 300.0 < clock.now_s - began_s < 900.0
    assert len(world.store.calls) < 4000, "a silent store was hammered"
    world.check()


def test_a_loop_that_only_steps_works_on_until_its_patience_ends(
    world: World, clock: FakeClock
) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 30)
        world.store.silent = lambda key: True
        began_s = clock.now_s
        while True:
            world.steps(tenure, 1)
            tenure.log("line after line")
            tenure.metric(x=1)
    assert stop.value.exit_code == exits.STORE_GONE and "not taken a write" in stop.value.reason
    assert clock.now_s - began_s > world.spec.patience_s


def test_a_milestone_in_a_long_silence_does_not_hang(clock: FakeClock) -> None:
    """With more chunks waiting than the courier's queue holds."""
    world = World(clock, patience_s=2000.0, milestone_every=100)
    silence_after(world, 5.0, 1e5, is_artifact)
    assert world.run(steps=10_000, step_s=6.0) == exits.STORE_GONE
    world.check()


def test_a_long_pause_is_no_silence_of_the_store(world: World, clock: FakeClock) -> None:
    """SIGSTOP, or one very long step: it must ask before it gives up."""
    with world.claimed() as tenure:
        world.steps(tenure, 30)
        clock.sleep(100 * world.spec.patience_s)
        world.steps(tenure, 10)
        tenure.milestone(touch)
        tenure.finish({})
    assert world.witness.phase == "finished"


@pytest.mark.parametrize("which", [is_artifact, lambda key: not is_artifact(key)])
def test_a_long_pause_in_a_short_silence_is_no_long_silence(
    world: World, clock: FakeClock, which: Callable[[str], bool]
) -> None:
    """Calls had failed before it; the store answers again after it: it asks before it gives up."""
    with world.claimed() as tenure:
        world.steps(tenure, 30)
        world.store.silent = which
        tenure.milestone(touch)
        world.steps(tenure, 10)
        world.store.heal()
        clock.now_s += 100 * world.spec.patience_s  # no thread of a stopped process runs on
        world.steps(tenure, 10)
        tenure.milestone(touch)
        tenure.finish({})
    assert world.witness.phase == "finished"


def test_one_failed_call_after_a_long_pause_in_a_short_silence_stops_nobody(
    world: World, clock: FakeClock
) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 30)
        world.store.silent = lambda key: True
        tenure.milestone(touch)
        world.steps(tenure, 10)
        clock.now_s += 100 * world.spec.patience_s
        world.steps(tenure, 1)
        clock.sleep(20.0)  # the courier asks, and that fails as well
        world.store.heal()
        world.steps(tenure, 10)
        tenure.milestone(touch)
        tenure.finish({})
    assert world.witness.phase == "finished"


def test_woken_after_its_lease_is_gone_it_is_lease_lost(world: World, clock: FakeClock) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 30)
        tenure.milestone(touch)
        clock.sleep(100 * world.spec.patience_s)
        world.reserve()
        world.event(Claim(2, "other", 60.0))
        before = world.witness
        world.steps(tenure, 10)
    assert stop.value.exit_code == exits.LEASE_LOST and "launch 2 holds it" in stop.value.reason
    assert world.witness == before


def test_finish_insists(world: World, clock: FakeClock) -> None:
    silence_after(world, 30.0, 200.0, lambda key: not is_artifact(key))
    with world.claimed() as tenure:
        world.steps(tenure, 29)
        clock.sleep(5.0)
        tenure.finish({"a": 1})
    assert world.witness.result == {"a": 1}
    assert clock.now_s > 1000 + 230


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_finish_is_written_once_whatever_its_first_answer(world: World, fault: str) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 30)
        world.clock.sleep(1.0)
        world.store.fail_writes([fault])
        tenure.finish({"a": 1})
    world.store.land()
    finals = [b for b in world.store.bodies(world.key) if b'"finished"' in b]
    assert len(finals) == 1 and world.witness.result == {"a": 1}


def test_resume_outlasts_a_silence_and_keeps_its_lease(world: World, clock: FakeClock) -> None:
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.train(tenure, until=25)
    silence_after(world, 0.5, 200.0, is_artifact)
    number = world.reserve()
    with world.claimed(number) as tenure:
        clock.sleep(1.0)
        tenure.resume(lambda folder: None)
        assert tenure.step_number == 20
        tenure.finish({})
    assert clock.now_s > 1000 + 200


def test_resume_loses_its_patience(world: World) -> None:
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.train(tenure, until=25)
    number = world.reserve()
    with pytest.raises(Stopped) as stop, world.claimed(number) as tenure:
        world.store.silent = is_artifact
        tenure.resume(lambda folder: None)
    assert stop.value.exit_code == exits.STORE_GONE
    assert world.witness.phase == "released"


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_faults_change_no_result(data: st.DataObject) -> None:
    """Lost, late and cut writes, slow uploads, crashes: the same result, one line of pointers."""
    with FakeClock() as clock:
        world = World(clock)
        world.store.touches = lambda key: True
        put_s = data.draw(st.sampled_from([0.0, 0.1, 3.0, 30.0]))
        world.store.put_s = lambda key: put_s
        fault = st.sampled_from(["ok", *WRITE_FAULTS])
        crashes = data.draw(st.lists(st.integers(1, 59), max_size=2))
        for step in crashes:
            world.store.fail_writes(data.draw(st.lists(fault, max_size=25)))
            with world.killed() as tenure:
                world.train(tenure, until=step)
            clock.sleep(10_000.0)
        world.store.fail_writes(data.draw(st.lists(fault, max_size=25)))
        assert world.run() == 0
        world.store.land()
        assert world.witness.result == {"word": world.expected_word()}
        assert world.witness.attempt == len(crashes) + 1
        world.check()


# ------------------------------------------------------------------------------- being told


@pytest.mark.parametrize("event", [Revoke("ops", "poison"), Cancel("ops", "budget")])
def test_deposed_it_stops_at_the_next_step_and_nothing_moves(
    world: World, clock: FakeClock, event: Revoke | Cancel
) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 25)
        tenure.milestone(touch)  # on its way when the proof comes
        world.event(event)
        before, steps = world.witness, 0
        while steps < 200:
            world.steps(tenure, 1)
            steps += 1
    assert stop.value.exit_code == exits.LEASE_LOST and event.reason in stop.value.reason
    assert steps <= 20, "it went on for longer than a renewal"
    assert world.witness == before and before.pointer is None
    world.check()


def test_swallowing_the_proof_does_not_help(world: World) -> None:
    swallowed: list[BaseException] = []
    stops = 0
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 5)
        before = world.event(Revoke("ops", "poison"))
        for _ in range(50):
            try:
                world.steps(tenure, 1)
            except BaseException:
                stops += 1
        calls: tuple[Callable[[], object], ...] = (
            lambda: tenure.milestone(touch),
            lambda: tenure.finish({}),
            lambda: tenure.announce("x", 1.0),
            tenure.step,
        )
        for call in calls:
            try:
                call()
            except BaseException as error:
                swallowed.append(error)
    assert stops >= 25
    assert [type(error) for error in swallowed] == [Stopped] * 4
    assert stop.value.exit_code == exits.LEASE_LOST
    assert world.witness == before


def test_an_error_after_a_swallowed_proof_is_still_lease_lost(world: World) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 5)
        world.event(Revoke("ops", "poison"))
        try:
            world.steps(tenure, 50)
        except BaseException:
            raise KeyError("confused") from None
    assert stop.value.exit_code == exits.LEASE_LOST


@pytest.mark.parametrize(("what", "held_back"), [("yield", False), ("pause", True)])
def test_asked_it_saves_and_releases(world: World, what: str, held_back: bool) -> None:
    def ask() -> None:
        world.clock.sleep(25.5)
        world.event(Ask(what, 100.0, "ops"))  # type: ignore[arg-type]

    world.clock.spawn(ask, "ops")
    assert world.run() == exits.RELEASED
    w = world.witness
    assert (w.phase, w.exit_code, w.held_back) == ("released", exits.RELEASED, held_back)
    assert w.reason == f"asked to {what} by ops"
    assert w.pointer and w.pointer.step == world.history[-1]
    if held_back:
        world.event(Resume("ops"))
    assert world.run() == 0 and world.history == list(range(1, 61))
    world.check()


def test_request_stop_is_one_last_milestone(world: World) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 13)
        tenure.request_stop("received SIGTERM")
        assert tenure.milestone_due
        tenure.milestone(touch)
    assert stop.value.exit_code == exits.RELEASED
    w = world.witness
    assert (w.phase, w.reason, w.pointer and w.pointer.step) == ("released", "received SIGTERM", 13)
    assert not w.held_back


def test_a_stop_while_saving_still_counts(world: World) -> None:
    def save(folder: Path) -> None:
        touch(folder)
        tenure.request_stop("received SIGTERM")

    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(save)
    assert world.witness.phase == "released" and world.witness.pointer


def test_no_time_for_a_last_milestone(world: World) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 13)
        tenure.request_stop("received SIGTERM", 5.0)
        world.steps(tenure, 10)  # a loop that does not look at milestone_due
    assert stop.value.exit_code == exits.RELEASED
    assert "no time for a last milestone" in (world.witness.reason or "")


def test_no_time_for_the_upload_of_the_last_milestone(world: World) -> None:
    world.store.put_s = lambda key: 1000.0
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 13)
        tenure.request_stop("received SIGTERM", 30.0)
        tenure.milestone(touch)
    assert stop.value.exit_code == exits.RELEASED and world.witness.pointer is None
    assert world.witness.phase == "released"


def test_a_signal_that_comes_with_the_claim_gives_it_back(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform that takes its machine back at once must not cost the length of a lease."""
    world = World(clock)
    launch = world.reserve()
    real = world.store.replace

    def replaced(key: str, body: bytes, etag: str) -> object:
        outcome = real(key, body, etag)
        if key == world.key and world.witness.phase == "held":
            signal.raise_signal(signal.SIGTERM)
        return outcome

    monkeypatch.setattr(world.store, "replace", replaced)
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(Stopped) as stop,
        claim(world.spec.id, world.store, launch, clock, measured={}) as tenure,
    ):
        pytest.fail(f"it began: {tenure}")
    assert stop.value.exit_code == exits.RELEASED
    assert (world.witness.phase, world.witness.reason) == ("released", "received SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_ends_who_still_waits_for_the_claim(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(clock)
    launch = world.reserve()
    world.event(
        Claim(launch, "another", 600.0)
    )  # this launch again, on a platform that restarts it
    held = world.witness
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        signal.raise_signal(signal.SIGTERM)
        slept.append(seconds)

    monkeypatch.setattr(clock, "sleep", sleep)
    with (
        pytest.raises(Stopped, match="before the claim") as stop,
        claim(world.spec.id, world.store, launch, clock, measured={}) as tenure,
    ):
        pytest.fail(f"it began: {tenure}")
    assert stop.value.exit_code == exits.RELEASED and world.witness == held
    assert slept == [], "at once, and not when the sleep is over"


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gang:
    """Another rank of the job that this process is rank 0 of."""
    monkeypatch.setenv("TENURE_GANG", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    return Gang(tmp_path, 1)


def ended_by_rank_1(world: World) -> None:
    w = world.witness
    assert (w.phase, w.exit_code) == ("finished", exits.CODE_ERROR)
    assert w.reason and "rank 1: " in w.reason and "its own mistake" in w.reason


def test_a_lost_connection_is_told_as_what_made_the_other_rank_fail(
    clock: FakeClock, gang: Gang
) -> None:
    world = World(clock)
    with pytest.raises(RuntimeError), world.claimed():
        gang.fail(ValueError("its own mistake"))
        raise RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer")
    ended_by_rank_1(world)


def test_a_rank_that_failed_ends_the_others_at_their_next_step(
    clock: FakeClock, gang: Gang
) -> None:
    world = World(clock)
    with pytest.raises(RankFailed), world.claimed() as tenure:
        world.steps(tenure, 3)
        gang.fail(ValueError("its own mistake"))
        world.steps(tenure, 1)
    ended_by_rank_1(world)


def test_a_signal_is_a_stop(world: World) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 3)
        signal.raise_signal(signal.SIGTERM)
        assert tenure.milestone_due
        tenure.milestone(touch)
    assert world.witness.reason == "received SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_finishing_after_a_stop_is_finishing(world: World) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 3)
        tenure.milestone(touch)
        tenure.request_stop("late")
        tenure.finish({"done": True})
    assert world.witness.phase == "finished"


# ------------------------------------------------------------------------- how it can end


def end_with(world: World, error: BaseException) -> type[BaseException]:
    with pytest.raises(BaseException) as caught, world.claimed() as tenure:
        world.steps(tenure, 12)
        raise error
    return caught.type


def test_a_code_error_finishes_the_job_with_its_traceback(world: World) -> None:
    assert end_with(world, KeyError("a bug")) is KeyError
    w = world.witness
    assert (w.phase, w.exit_code) == ("finished", exits.CODE_ERROR)
    assert "KeyError: 'a bug'" in (w.reason or "") and "Traceback" in (w.reason or "")
    assert "KeyError: 'a bug'" in world.log()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), exits.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate"), exits.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "no memory"), exits.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: an illegal memory access"), exits.RELEASED),
        (RuntimeError("Uncorrectable ECC error"), exits.RELEASED),
        (RuntimeError("NVRM: Xid 79"), exits.RELEASED),
        (OSError(errno.EIO, "input/output error"), exits.RELEASED),
        (OSError(errno.ENOSPC, "disk full"), exits.RELEASED),
        (RuntimeError("[gloo/transport] Connection closed by peer"), exits.RELEASED),
        (KeyboardInterrupt(), exits.RELEASED),
    ],
)
def test_the_machines_faults_release_the_job(world: World, error: BaseException, code: int) -> None:
    assert end_with(world, error) is Stopped
    assert (world.witness.phase, world.witness.exit_code) == ("released", code)
    others = isinstance(error, KeyboardInterrupt) or "peer" in str(error)
    fault = exits.fault_of(world.witness.reason)
    assert (fault is not None) is (code == exits.RELEASED and not others)
    assert fault is None or fault[1] == 12, "the step that it came at"


@pytest.mark.parametrize("error", [None, MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize(("put_s", "saved"), [(5.0, True), (500.0, False)])
def test_a_snapshot_on_its_way_is_worth_a_short_wait(
    world: World, error: BaseException | None, put_s: float, saved: bool
) -> None:
    world.store.put_s = lambda key: put_s
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(touch)
        if error:
            raise error
    assert world.witness.phase == "released" and (world.witness.pointer is not None) is saved
    world.check()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the column maxid is missing"),
        FileNotFoundError(errno.ENOENT, "no such file"),
        ValueError("out of memory of things to say"),
        SystemExit(0),
        SystemExit("bye"),
        AssertionError(),
    ],
)
def test_the_codes_own_errors_end_it(world: World, error: BaseException) -> None:
    assert classify(error) == exits.CODE_ERROR
    assert end_with(world, error) is type(error)
    assert (world.witness.phase, world.witness.exit_code) == ("finished", exits.CODE_ERROR)


def test_a_full_disk_while_saving_moves_no_pointer(world: World) -> None:
    def full(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 10)
        tenure.milestone(touch)
        world.steps(tenure, 10)
        tenure.milestone(full)
    assert stop.value.exit_code == exits.RELEASED
    w = world.witness
    assert w.phase == "released" and w.pointer and w.pointer.step == 10
    assert "No space left" in (w.reason or "")
    world.check()


def test_a_block_without_finish_releases(world: World) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 3)
    assert stop.value.exit_code == exits.RELEASED and "finish" in stop.value.reason
    assert world.witness.phase == "released"


def test_an_error_after_finish_changes_nothing(world: World, clock: FakeClock) -> None:
    with pytest.raises(ZeroDivisionError), world.claimed() as tenure:
        world.steps(tenure, 3)
        tenure.finish({"a": 1})
        began_s = clock.now_s
        raise ZeroDivisionError
    assert world.witness.exit_code == 0 and world.witness.result == {"a": 1}
    assert clock.now_s - began_s < 10


def test_nothing_follows_finish(world: World) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 3)
        tenure.finish({"a": 1})
        calls: tuple[Callable[[], object], ...] = (
            lambda: tenure.finish({}),
            lambda: tenure.milestone(touch),
            lambda: tenure.announce("x", 1),
            tenure.step,
        )
        for call in calls:
            with pytest.raises(RuntimeError, match="finished"):
                call()
    assert world.witness.result == {"a": 1}


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"x": "y" * 5000}, ValueError),
        ({"x": float("nan")}, ValueError),
        ({"x": {1, 2}}, TypeError),
        ([1], ValueError),
    ],
)
def test_a_result_that_cannot_be(world: World, result: object, error: type[Exception]) -> None:
    with pytest.raises(error), world.claimed() as tenure:
        world.steps(tenure, 3)
        tenure.finish(result)  # type: ignore[arg-type]
    assert world.witness.exit_code == exits.CODE_ERROR


def test_release_without_an_answer_ends_all_the_same(world: World, clock: FakeClock) -> None:
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        world.steps(tenure, 30)
        world.store.silent = lambda key: True
        tenure.request_stop("x", 1.0)
        world.steps(tenure, 5)
    assert stop.value.exit_code == exits.RELEASED
    assert world.witness.phase == "held"  # the lease runs out by itself


# --------------------------------------------------------------------------- what is corrupt


def with_a_snapshot(world: World) -> str:
    """Train to step 25; the prefix of the stored snapshot."""
    with pytest.raises(Stopped), world.claimed() as tenure:
        world.train(tenure, until=25)
    assert world.witness.pointer
    return keys.snapshot(world.spec.id, world.witness.pointer)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("manifest.json", b"{}"),
        ("manifest.json", b"another manifest"),
        ("manifest.json", None),
        ("state.json", b'{"step": 20, "word": 1}'),
        ("state.json", b""),
        ("state.json", None),
    ],
)
def test_a_snapshot_that_was_tampered_with_is_named(
    world: World, name: str, damage: bytes | None
) -> None:
    key = with_a_snapshot(world) + name
    if damage == b"another manifest":  # a good one, and not the one the pointer names
        assert world.witness.pointer
        damage = encode(replace(world.manifest(world.witness.pointer), busy_s=1e6))
    if damage is None:
        world.store.inner.delete(key)
    else:
        world.store.inner._objects[key] = (damage, 0.0)
    assert world.run() == exits.PROTOCOL
    w = world.witness
    assert (w.phase, w.exit_code) == ("released", exits.PROTOCOL)
    assert key in (w.reason or "")


def test_a_manifest_that_names_files_outside_its_folder(world: World, tmp_path: Path) -> None:
    for name in ("../out", "/etc/x", "a/../../out", "..", ".x"):
        manifest = Manifest("j", 1, 1, 1, 1, {name: FileEntry(sha256_hex(b"x"), 1)}, {})
        pointer = manifest.pointer(encode(manifest))
        world.store.inner.create(keys.manifest(name_free(name), pointer), encode(manifest))
        with pytest.raises(Corrupt, match="manifest"):
            snapshot.fetch(world.store, name_free(name), pointer, tmp_path / "in")
    assert not list(tmp_path.iterdir())


def name_free(name: str) -> str:
    return f"job{abs(hash(name))}"


# --------------------------------------------------------------------------- the claim itself


def test_a_pinned_job_is_refused_in_another_environment(clock: FakeClock) -> None:
    world = World(clock, requires={"card": "H100", "packages": {"numpy": "2.3"}})
    number = world.reserve()
    with pytest.raises(Stopped) as stop, world.claimed(number):
        raise AssertionError("not reached")
    assert stop.value.exit_code == exits.REFUSED
    assert world.witness.phase == "expected", "it claimed before it looked"
    (refusal,) = world.store.inner.list(keys.refusals(world.spec.id))
    body = world.store.inner._objects[refusal.key][0].decode()
    assert "H100" in body and "packages.numpy" in body


def test_a_pinned_job_runs_where_its_environment_is(clock: FakeClock) -> None:
    world = World(clock, requires=MEASURED)
    assert world.run() == 0


@pytest.mark.parametrize("body", [b"{", b"{}", None])
def test_a_job_that_cannot_be_read_is_named(world: World, body: bytes | None) -> None:
    key = keys.job(world.spec.id)
    world.store.inner.delete(key)
    if body is not None:
        world.store.inner.create(key, body)
    with pytest.raises(Stopped) as stop, world.claimed():
        raise AssertionError("not reached")
    assert stop.value.exit_code == exits.PROTOCOL and key in stop.value.reason


def test_a_job_under_another_jobs_id_is_corrupt(world: World) -> None:
    key = keys.job(world.spec.id)
    world.store.inner._objects[key] = (encode(replace(world.spec, seed=99)), 0.0)
    with pytest.raises(Stopped) as stop, world.claimed():
        raise AssertionError("not reached")
    assert stop.value.exit_code == exits.PROTOCOL and key in stop.value.reason


def test_a_spec_given_as_an_object_enlists_itself_in_local_mode(clock: FakeClock) -> None:
    world = World(clock)
    spec = replace(world.spec, seed=77, patience_s=60)
    with claim(spec, world.store, 0, clock, MEASURED) as tenure:
        world.steps(tenure, 3)
        tenure.finish({})
    found = world.store.inner.read(keys.job(spec.id))
    assert isinstance(found, Found) and load(type(spec), found.body, "k") == spec
    with pytest.raises(Stopped) as stop, claim(spec, world.store, 0, clock, MEASURED):
        raise AssertionError("not reached")
    assert stop.value.exit_code == exits.SUPERSEDED


def test_claiming_is_elsewhere_superseded_or_store_gone(world: World) -> None:
    with world.claimed() as tenure:
        world.steps(tenure, 3)
        with pytest.raises(Stopped) as stop, world.claimed(2):
            raise AssertionError("not reached")
        assert stop.value.exit_code == exits.ELSEWHERE
        tenure.finish({})
    assert world.run(1) == exits.SUPERSEDED
    for silent in (lambda key: not is_artifact(key), is_artifact):
        world.store.silent = silent
        assert world.run(1) == exits.STORE_GONE


def test_a_silence_before_the_claim_is_waited_for(world: World, clock: FakeClock) -> None:
    silence_after(world, 0.0, 250.0, lambda key: True)
    clock.sleep(1.0)
    assert world.run() == exits.FINISHED
    spec = replace(world.spec, seed=77)
    silence_after(world, 0.0, 250.0, lambda key: True)
    clock.sleep(1.0)
    with claim(spec, world.store, 0, clock, MEASURED) as tenure:
        world.steps(tenure, 3)
        tenure.finish({})


def test_a_machine_without_room_for_a_folder_gives_the_job_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    number = world.reserve()
    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert world.run(number) == exits.RELEASED
    assert world.witness.phase == "released"


# ------------------------------------------------------------------------- metrics and logs


class Strange:
    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    def __str__(self) -> str:
        return "strange"


def test_no_metric_and_no_line_can_end_a_training(world: World) -> None:
    import numpy as np

    with world.claimed() as tenure:
        world.steps(tenure, 1)
        tenure.metric(
            nan=float("nan"),
            inf=float("-inf"),
            f32=np.float32(0.5),  # type: ignore[arg-type]
            i64=np.int64(3),  # type: ignore[arg-type]
            array=np.zeros(2),  # type: ignore[arg-type]
            strange=Strange(),  # type: ignore[arg-type]
            half="\ud800",
            none=None,
            flag=True,
            word="x",
        )
        tenure.log("a line with half a pair \ud800 and an end\n")
        tenure.log("")
        tenure.finish({})
    (event,) = world.events()
    del event["at_s"]
    assert event == {
        "step": 1,
        "nan": "nan",
        "inf": "-inf",
        "f32": 0.5,
        "i64": 3.0,
        "array": "[0. 0.]",
        "strange": "strange",
        "half": "?",
        "none": None,
        "flag": True,
        "word": "x",
    }
    assert world.log() == "a line with half a pair ? and an end\n\n"


def test_events_can_be_read_soon_however_long_the_lease(world: World) -> None:
    with world.claimed() as tenure:
        for step in range(1, 200):
            world.steps(tenure, 1, 60.0 if step == 30 else 2.0)
            tenure.metric(x=step)
            assert step < 10 or len(world.events()) >= step - 6, "events wait for the next renewal"
        assert world.witness.silence_s > 60.0
        tenure.finish({})


def test_chunks_are_contiguous_through_an_outage_and_lose_nothing(
    world: World, clock: FakeClock
) -> None:
    silence_after(world, 20.0, 250.0, is_artifact)
    assert world.run(steps=100, step_s=3.0) == 0
    assert [e["step"] for e in world.events()] == list(range(1, 101))
    world.check()


def test_a_courier_too_slow_for_the_log_is_told_and_counted(clock: FakeClock) -> None:
    taken: list[Chunk] = []
    room = [0]

    def offer(chunk: Chunk) -> bool:
        if room[0] > 0:
            room[0] -= 1
            taken.append(chunk)
            return True
        return False

    told = journal.Journal("j", 1, offer, clock)
    line = "x" * 99_999
    for _ in range(100):
        told.line(line)
    told.event({"a": 1})
    told.flush()
    assert not taken
    room[0] = 2
    told.flush()
    told.line("after")
    room[0] = 9
    told.flush()
    told.flush()
    text = b"".join(c.body for c in taken if "/log/" in c.key).decode()
    kept = text.count(line)
    assert 30 < kept < 50
    assert f"tenure: {100 - kept} lines dropped" in text and text.count("dropped") == 1
    logs = [c.key[-10:] for c in taken if "/log/" in c.key]
    assert logs == [f"{n:06d}.txt" for n in range(1, len(logs) + 1)]


def test_events_of_many_threads_all_arrive(clock: FakeClock) -> None:
    taken: list[Chunk] = []
    told = journal.Journal("j", 1, lambda chunk: taken.append(chunk) is None, clock)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            Thread(target=lambda k=k: [told.event({"k": k, "n": n}) for n in range(500)])
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    told.flush()
    rows = [json.loads(line) for chunk in taken for line in chunk.body.splitlines()]
    for k in range(4):
        assert [row["n"] for row in rows if row["k"] == k] == list(range(500))


def test_an_event_keeps_what_a_value_was_when_it_was_recorded(clock: FakeClock) -> None:
    class Counter:
        value = 1.5

        def __float__(self) -> float:
            return self.value

    taken: list[Chunk] = []
    told = journal.Journal("j", 1, lambda chunk: taken.append(chunk) is None, clock)
    counter = Counter()
    told.event({"loss": counter})
    at_s = clock.wall_s()
    counter.value = 9.0
    clock.sleep(100.0)
    told.flush()
    (row,) = (json.loads(line) for chunk in taken for line in chunk.body.splitlines())
    assert row["loss"] == 1.5 and row["at_s"] == round(at_s, 3)


# --------------------------------------------------------------------------------- stages


def trained(clock: FakeClock) -> World:
    world = World(clock, config={"steps": 12})
    with world.claimed() as tenure:
        tenure.finish(stages.run(tenure, Toy()))
    world.check()
    return world


def stage_of(world: World, kind: str) -> World:
    assert world.witness.pointer
    after = World(
        world.clock,
        kind=kind,
        stage=kind,
        config={"steps": 12},
        model=SnapshotRef(world.spec.id, world.witness.pointer),
    )
    for key, (body, at_s) in world.store.inner._objects.items():
        after.store.inner._objects.setdefault(key, (body, at_s))
    return after


def files_of(world: World) -> dict[str, bytes]:
    assert world.witness.pointer
    prefix = keys.snapshot(world.spec.id, world.witness.pointer)
    return {
        entry.key.removeprefix(prefix): world.store.inner._objects[entry.key][0]
        for entry in world.store.inner.list(prefix)
    }


def test_train_evaluate_and_backtest(clock: FakeClock) -> None:
    import array

    world = trained(clock)
    assert world.witness.result == {"word": world.expected_word(12)}
    evaluation = stage_of(world, "evaluate")
    with evaluation.claimed() as tenure:
        tenure.finish(stages.run(tenure, Toy()))
    files = files_of(evaluation)
    assert sorted(files) == ["evaluation.json", "losses/loss.f64", "manifest.json"]
    losses = array.array("d", files["losses/loss.f64"])
    metric = evaluation.witness.result["metrics"]["loss"]  # type: ignore[index]
    assert metric == {"value": sum(losses) / 50, "direction": "minimize", "unit": "1"}
    assert json.loads(files["evaluation.json"])["examples"] == {"loss": 50}
    backtest = stage_of(world, "backtest")
    with backtest.claimed() as tenure:
        tenure.finish(stages.run(tenure, Toy()))
    whole = json.loads(files_of(backtest)["backtest.json"])
    assert len(whole["series"]["equity"]) == 21 and whole["tables"]["years"][0]["year"] == 1
    result = backtest.witness.result
    assert result and result["score"] == whole["score"] and "deployable" not in whole
    for done in (evaluation, backtest):
        assert done.witness.pointer and done.witness.pointer.ordinal == 1
        done.check()


class Other(Toy):
    """A Toy whose answers a test chooses."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def evaluate(self, tenure: Tenure, config: object, model_dir: Path) -> Evaluation:
        return self.answer  # type: ignore[return-value]

    def backtest(self, tenure: Tenure, config: object, model_dir: Path) -> Backtest:
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("evaluate", {"loss": 1.0}, "not an Evaluation"),
        ("evaluate", Evaluation({"loss": Metric(float("nan"), "minimize", "1")}), "loss is nan"),
        ("evaluate", Evaluation({"a b": Metric(1.0, "minimize", "1")}), "metric 'a b'"),
        ("evaluate", Evaluation({"a": Metric(1.0, "smaller", "1")}), "direction"),  # type: ignore[arg-type]
        ("evaluate", Evaluation({}, {"loss": [1.0, float("inf")]}), "no finite number"),
        ("backtest", 1.0, "not a Backtest"),
        ("backtest", Backtest(float("nan"), {}, {}, True), "score"),
        ("backtest", Backtest(1.0, {"equity": [float("nan")]}, {}, True), "JSON"),
    ],
)
def test_an_answer_that_cannot_be(clock: FakeClock, kind: str, answer: object, words: str) -> None:
    world = stage_of(trained(clock), kind)
    with pytest.raises((ValueError, TypeError), match=words), world.claimed() as tenure:
        tenure.finish(stages.run(tenure, Other(answer)))
    assert world.witness.exit_code == exits.CODE_ERROR and world.witness.pointer is None


def test_answers_of_numpy_are_fine(clock: FakeClock) -> None:
    import numpy as np

    start = trained(clock)
    world = stage_of(start, "evaluate")
    answer: object = Evaluation(
        {"loss": Metric(np.float32(0.5), "minimize", "1")},  # type: ignore[arg-type]
        {"loss": np.arange(3, dtype=np.float32)},  # type: ignore[dict-item]
    )
    with world.claimed() as tenure:
        tenure.finish(stages.run(tenure, Other(answer)))
    assert world.witness.result == {
        "metrics": {"loss": {"value": 0.5, "direction": "minimize", "unit": "1"}}
    }
    world = stage_of(start, "backtest")
    series = {"equity": np.ones(2), "day": ["a", "b"]}
    answer = Backtest(np.float64(1.0), series, {"t": [{"a": np.int64(1)}]}, np.bool_(True))  # type: ignore[arg-type]
    with world.claimed() as tenure:
        tenure.finish(stages.run(tenure, Other(answer)))
    whole = json.loads(files_of(world)["backtest.json"])
    assert whole["series"]["equity"] == [1.0, 1.0] and whole["tables"] == {"t": [{"a": 1}]}
    assert whole["passed"] is True


@pytest.mark.parametrize(
    ("fails", "words"), [("no_milestone", "call tenure.milestone"), ("no_result", "NoneType")]
)
def test_a_training_that_ends_badly(clock: FakeClock, fails: str, words: str) -> None:
    world = World(clock, config={"steps": 12, "fails": fails})
    with pytest.raises((ValueError, TypeError), match=words), world.claimed() as tenure:
        tenure.finish(stages.run(tenure, Toy()))
    assert world.witness.exit_code == exits.CODE_ERROR


@pytest.mark.parametrize(
    ("steps", "saves", "words"),
    [
        (0, (), r"returned and never called tenure.step\(\); call it after every step"),
        (0, (0,), r"returned and never called tenure.step\(\)"),
        (3, (), r"returned at step 3 without any milestone; call tenure.milestone\(save\)"),
        (3, (2,), "returned at step 3 and its last milestone is of step 2; call"),
    ],
)
def test_a_training_without_a_model_is_told_what_it_did_not_call(
    clock: FakeClock, steps: int, saves: tuple[int, ...], words: str
) -> None:
    class Forgetful(Toy):
        def train(self, tenure: Tenure, config: object, seed: int) -> dict[str, object]:
            for step in range(steps + 1):
                if step:
                    tenure.step()
                if step in saves:
                    tenure.milestone(lambda folder: None)
                    clock.sleep(5.0)
            return {}

    world = World(clock)
    with pytest.raises(ValueError, match=words), world.claimed() as tenure:
        tenure.finish(stages.run(tenure, Forgetful()))
    assert world.witness.exit_code == exits.CODE_ERROR


def test_an_unknown_kind_is_told(clock: FakeClock) -> None:
    world = World(clock, kind="dataset")
    with pytest.raises(ValueError, match="dataset"), world.claimed() as tenure:
        stages.run(tenure, Toy())


def test_a_tampered_model_is_named(clock: FakeClock) -> None:
    world = stage_of(trained(clock), "evaluate")
    assert world.spec.model
    key = keys.snapshot(world.spec.model.job, world.spec.model.pointer) + "state.json"
    world.store.inner._objects[key] = (b'{"step": 12, "word": 0}', 0.0)
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        stages.run(tenure, Toy())
    assert stop.value.exit_code == exits.PROTOCOL and key in stop.value.reason


# ------------------------------------------------------------------------- what experiments do


@pytest.mark.parametrize(
    ("error", "phase", "code"),
    [(ValueError, "finished", exits.CODE_ERROR), (MemoryError, "released", exits.OUT_OF_MEMORY)],
)
def test_an_error_that_names_a_file_which_is_no_utf8_ends_the_job_all_the_same(
    world: World, error: type[Exception], phase: str, code: int
) -> None:
    with pytest.raises((error, Stopped)), world.claimed() as tenure:
        world.steps(tenure, 25)
        raise error("cannot parse caf\udce9.csv")
    assert (world.witness.phase, world.witness.exit_code) == (phase, code)
    assert "cannot parse caf?.csv" in (world.witness.reason or "")


FORKS = """
import multiprocessing, os, sys, time
from tenure_protocol.records import JobSpec
from tenure_protocol.store.memory import MemoryStore
from tenure_worker.claim import claim
spec = JobSpec("e", "train", "training", "m:C", {}, 0, 1, "c", "d", 10)
with claim(spec, MemoryStore(), 0, measured={}) as tenure:
    child = os.fork()
    if child == 0:
        sys.exit(7)  # leaves the block by its own way
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert tenure.folder.is_dir(), "the child has removed its parent's folder"
    context = multiprocessing.get_context("fork")
    runs = context.Event()
    sleeper = context.Process(target=lambda: (runs.set(), time.sleep(60)))
    sleeper.start()
    assert runs.wait(120)  # CPython forgets a signal that meets a child within its fork
    sleeper.terminate()
    sleeper.join(120)
    assert sleeper.exitcode == -15, "SIGTERM ends a child as it does without Tenure"
    assert not tenure.stopping
    tenure.finish({})
"""


def test_forked_children_of_an_experiment_are_not_the_worker() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS], timeout=300, check=False)
    assert ended.returncode == 0


def test_a_snapshot_that_changes_while_it_is_uploaded_is_refused(
    world: World, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    live.write_text("one")

    def link(folder: Path) -> None:
        os.link(live, folder / "f")

    put = world.store.inner.put_file

    def slowly(key: str, path: Path, progress: object = None) -> None:
        live.write_text("two")
        put(key, path)

    world.store.inner.put_file = slowly  # type: ignore[method-assign]
    with (
        pytest.raises(ValueError, match="changed while it was uploaded"),
        world.claimed() as tenure,
    ):
        world.steps(tenure, 25)
        tenure.milestone(link)
        world.steps(tenure, 50)
    assert world.witness.pointer is None


def test_a_milestone_that_comes_after_the_grace_is_still_kept(world: World) -> None:
    """An evaluation cannot be cut; what it found is written before the worker goes."""
    with pytest.raises(Stopped) as stop, world.claimed() as tenure:
        tenure.request_stop("received SIGTERM", 5.0)
        world.clock.sleep(21.0)
        tenure.milestone(touch)
    assert stop.value.exit_code == exits.RELEASED
    assert world.witness.pointer is not None
