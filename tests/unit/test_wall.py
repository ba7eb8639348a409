"""The known end of a machine: a last milestone is taken before it, and the job goes on elsewhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.own_process import OwnProcessRunner
from tenure.dispatch.contract import Job as Launch
from tenure.dispatch.contract import Site
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease.machine import Reserve
from tenure_worker import exits, wall
from tenure_worker.tenure import STOP_GRACE_S, Tenure
from tenure_worker.wall import VARIABLE, Wall, ahead_s
from tests.fake_clock import FakeClock
from tests.toy.experiment import final_word
from tests.unit.test_worker_process import Make, make, no_torch
from tests.unit.worker_world import World

__all__ = ["make", "no_torch"]  # fixtures
HOUR_S = 3600.0


@dataclass
class Loop:
    """A tenure as the wall sees it."""

    clock: FakeClock
    median_step_s: float = 0.0
    save_s: float | None = None
    in_transit: bool = False
    asked: list[tuple[float, float, str]] = field(default_factory=list)  # when, within, why

    def request_stop(self, reason: str, within_s: float) -> None:
        self.asked.append((self.clock.now_s, within_s, reason))


def before_the_wall(loop: Loop, session_s: float = 12 * HOUR_S) -> float:
    """How long before the wall ``loop`` is asked for its last milestone; it is asked once."""
    at_s = loop.clock.now_s + session_s
    Wall(at_s, loop.clock).guards(loop)
    loop.clock.sleep(session_s + 10.0)
    ((when_s, within_s, reason),) = loop.asked
    assert within_s == pytest.approx(at_s - when_s) and "the known end of its machine" in reason
    return within_s


def test_a_loop_that_has_saved_nothing_gets_the_grace_of_a_signal(clock: FakeClock) -> None:
    assert before_the_wall(Loop(clock, median_step_s=3.0)) == pytest.approx(STOP_GRACE_S + 6.0)


def test_a_slow_save_is_begun_earlier(clock: FakeClock) -> None:
    assert before_the_wall(Loop(clock, save_s=90.0)) == pytest.approx(360.0)


@pytest.mark.parametrize("upload_s", [100.0, 700.0])
def test_the_last_upload_counts(clock: FakeClock, upload_s: float) -> None:
    loop = Loop(clock, save_s=10.0)

    def uploads() -> None:
        for lasts_s in (3 * upload_s, upload_s):
            clock.sleep(1000.0)
            loop.in_transit = True
            clock.sleep(lasts_s)
            loop.in_transit = False

    clock.spawn(uploads, "uploads")
    assert before_the_wall(loop) == pytest.approx(40.0 + upload_s, abs=2 * wall.LOOK_EVERY_S)


def test_an_upload_under_way_counts_while_it_is_longer_than_the_last(clock: FakeClock) -> None:
    loop = Loop(clock)

    def upload() -> None:
        clock.sleep(12 * HOUR_S - 1000.0)
        loop.in_transit = True

    clock.spawn(upload, "upload")
    assert before_the_wall(loop) == pytest.approx(500.0, abs=2 * wall.LOOK_EVERY_S)


def test_a_session_that_is_short_beside_its_saves_is_worked_in(clock: FakeClock) -> None:
    assert before_the_wall(Loop(clock, save_s=HOUR_S), session_s=HOUR_S) == pytest.approx(900.0)


@settings(deadline=None)
@given(st.floats(-1e5, 1e6), st.none() | st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e4))
def test_a_quarter_of_the_session_is_given_up_at_most(
    session_s: float, save_s: float | None, upload_s: float, step_s: float
) -> None:
    early_s = ahead_s(session_s, save_s, upload_s, step_s)
    assert 0 <= early_s <= max(0.0, session_s) / 4
    if early_s < session_s / 4:
        assert early_s >= max(STOP_GRACE_S, 4 * (save_s or 0.0) + upload_s)


def test_without_a_wall_nobody_looks(clock: FakeClock) -> None:
    loop = Loop(clock)
    assert Wall.of({}, clock).guards(loop) is None
    assert Wall.of({VARIABLE: ""}, clock).guards(loop) is None
    clock.sleep(100 * HOUR_S / 2)
    assert loop.asked == []


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "-inf", "12:00"])
def test_a_wall_that_is_no_time_is_one_sentence(clock: FakeClock, text: str) -> None:
    with pytest.raises(ValueError, match="must be seconds of the monotonic clock") as caught:
        Wall.of({VARIABLE: text}, clock)
    assert repr(text) in str(caught.value)


# ------------------------------------------------------------------------- with a real tenure


def attempt(world: World, session_s: float, step_s: float) -> int:
    """One attempt on a machine that lives ``session_s`` from its claim; its exit code."""
    try:
        with world.claimed() as tenure:
            Wall(world.clock.now_s + session_s, world.clock).guards(tenure)
            tenure.finish(world.train(tenure, steps=400, step_s=step_s))
    except exits.Stopped as stop:
        return stop.exit_code
    return 0


@pytest.mark.parametrize("step_s", [0.5, 7.0])
def test_a_job_goes_from_machine_to_machine_and_loses_no_step(
    clock: FakeClock, step_s: float
) -> None:
    world = World(clock, milestone_every=1000, config={"steps": 400})
    session_s = 100 * step_s + STOP_GRACE_S
    codes = []
    while not codes or codes[-1] == exits.RELEASED:
        codes.append(attempt(world, session_s, step_s))
        w = world.witness
        if w.phase == "released":
            assert "the known end of its machine" in (w.reason or "")
            assert "no time for a last milestone" not in (w.reason or "")
            assert w.pointer and w.pointer.step == len(world.history), "every step is in it"
    assert codes[-1] == 0 and len(codes) >= 4
    assert world.history == list(range(1, 401)), "no step was made twice"
    assert world.witness.result == {"word": world.expected_word(400)}
    world.check()


def test_a_tenure_has_what_the_wall_looks_at(clock: FakeClock) -> None:
    world = World(clock)
    with world.claimed() as tenure:
        assert isinstance(tenure, Tenure) and (tenure.save_s, tenure.in_transit) == (None, False)
        world.steps(tenure, 3)

        def save(folder: Path) -> None:
            clock.sleep(2.0)
            (folder / "model").write_text("m")

        tenure.milestone(save)
        assert tenure.save_s == 2.0 and tenure.in_transit
        tenure.finish({})


# ---------------------------------------------------------------------------- a real process


def test_a_worker_saves_before_its_wall_and_another_one_finishes(make: Make) -> None:
    """A step takes 0.02 s at least, so that the first can never make all of them."""
    job = make(config={"steps": 380, "pause_s": 0.02}, milestone_every=100_000)
    code, said = job.run(**{VARIABLE: f"{SYSTEM.monotonic_s() + 7.0:.3f}"})
    w = job.witness
    assert code == exits.RELEASED and "the known end of its machine" in said, said
    assert w.phase == "released" and w.pointer and 0 < w.pointer.step < 380
    job.event(Reserve("elsewhere", 600.0, "d"))
    code, said = job.run(TENURE_LAUNCH="2")
    w = job.witness
    assert code == 0 and w.phase == "finished" and w.attempt == 2, said
    assert w.result == {"word": final_word(job.spec.seed, 380)}


def test_a_worker_says_what_is_wrong_with_its_wall(make: Make) -> None:
    job = make()
    code, said = job.run(**{VARIABLE: "noon"})
    assert code == exits.USAGE and f"${VARIABLE} is 'noon'" in said and "Traceback" not in said
    assert job.witness.phase == "expected"


# ------------------------------------------------------------------- who tells of it, here


def told(tmp_path: Path, wall_s: float | None) -> float | None:
    """The wall that a worker of this machine is told, in seconds from now."""
    with FakeClock() as clock:
        runner = OwnProcessRunner("here", {}, Site(tmp_path, clock))
        launch = Launch("j", "train", 1, "tenure-x", "file:/nowhere", wall_s=wall_s)
        text = runner._environ(launch, tmp_path).get(VARIABLE)
        return None if text is None else float(text) - clock.now_s


def test_a_process_of_this_machine_has_the_wall_of_its_quota(tmp_path: Path) -> None:
    assert told(tmp_path, None) is None
    assert told(tmp_path, 600.0) == 600.0


def test_a_process_with_credentials_that_end_has_their_wall(tmp_path: Path) -> None:
    with FakeClock() as clock:
        runner = OwnProcessRunner("here", {"sandbox": True}, Site(tmp_path, clock))

        def left_s(ends_s: float, wall_s: float | None) -> float | None:
            launch = Launch("j", "train", 1, "tenure-x", "s3://b", wall_s=wall_s)
            text = runner._set(launch, "s3://b", clock.wall_s() + ends_s).get(VARIABLE)
            return None if text is None else float(text) - clock.now_s

        assert left_s(HOUR_S, None) == HOUR_S - 60.0, "another clock's hour"
        assert left_s(HOUR_S, 600.0) == 600.0 and left_s(600.0, HOUR_S) == 540.0
        assert left_s(math.inf, None) is None
    assert OwnProcessRunner.capacity({}).wall_s is None
    borrowed = {"sandbox": True, "network": "host", "role": "arn:aws:iam::1:role/t"}
    assert OwnProcessRunner.capacity({**borrowed, "session_s": 1800.0}).wall_s == 1800.0
    assert OwnProcessRunner.capacity({**borrowed, "trust": "full"}).wall_s is None
