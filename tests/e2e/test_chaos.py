"""Real workers, killed, stopped and woken with real signals at random moments."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.cli.resume import rewind
from tenure.cli.workplace import OneJob, Workplace
from tenure.dispatch.loop import Tick
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.records import JobSpec, Witness
from tests.e2e.ladder import Ladder, check_one_line, pointer_line, send, writers
from tests.orbit.experiment import let_go, uninterrupted

MakeLadder = Callable[..., Ladder]
STEPS = 120
CONFIG: dict[str, object] = {"steps": STEPS, "pause_s": 0.04}


def held(until: Path) -> dict[str, object]:
    """The same training, which does not end before the test lets it go."""
    return {**CONFIG, "until": str(until)}


def check_finished(ladder: Ladder, specs: list[JobSpec], done: dict[str, Witness]) -> None:
    """Every job ended in the very state of an uninterrupted run, on one line, without a chimera."""
    for spec in specs:
        witness = done[spec.id]
        assert (witness.phase, witness.exit_code) == ("finished", 0), witness.reason
        assert witness.result == {"state": uninterrupted(spec.seed, STEPS)}
        assert witness.pointer is not None
        check_one_line(ladder, spec.id, witness.pointer)
        for attempt, pids in writers(ladder, spec.id).items():
            assert len(pids) == 1, f"attempt {attempt} of {spec.id} was written by {pids}"


def kill_at_random(ladder: Ladder, folder: Path, kills: int, seed: int) -> list[JobSpec]:
    """``kills`` jobs, each of whose first workers is killed at a moment of its own."""
    rng = random.Random(seed)
    specs = ladder.orbits(kills, held(folder))
    when_s = {spec.id: rng.uniform(0.2, 5.0) for spec in specs}
    seen_s: dict[str, float] = {}
    killed: set[str] = set()

    def kill(_: Tick) -> None:
        now_s = SYSTEM.monotonic_s()
        for bill, pid in ladder.running():
            since_s = now_s - seen_s.setdefault(bill.job, now_s)
            if bill.job not in killed and since_s >= when_s[bill.job]:
                killed.add(bill.job)
                send(pid, signal.SIGKILL)
                let_go(folder, *(spec.seed for spec in specs if spec.id == bill.job))

    done = ladder.dispatcher.follow([spec.id for spec in specs], 0.2, 900.0, kill)
    assert killed == {spec.id for spec in specs}
    check_finished(ladder, specs, done)
    assert ladder.dispatcher.drain(60.0), "bills were left open"
    return specs


def test_four_runs_killed_at_random_moments_all_finish(
    tmp_path: Path, make_ladder: MakeLadder
) -> None:
    kill_at_random(make_ladder(tmp_path), tmp_path / "go", 4, seed=1)


@pytest.mark.soak
def test_forty_runs_killed_at_random_moments_all_finish(
    tmp_path: Path, make_ladder: MakeLadder
) -> None:
    kill_at_random(make_ladder(tmp_path), tmp_path / "go", 40, seed=2)


def test_a_stopped_worker_that_wakes_after_its_lease_changes_nothing(
    tmp_path: Path, make_ladder: MakeLadder
) -> None:
    ladder = make_ladder(tmp_path, slots=2, linger_s=60.0)
    (spec,) = ladder.orbits(1, held(tmp_path / "go"))
    dispatcher = ladder.dispatcher
    while not ((w := _witness(ladder, spec)) and w.pointer and w.pointer.ordinal >= 2):
        dispatcher.tick()
        SYSTEM.sleep(0.2)
    ((_, pid),) = ladder.running()
    zombie = ladder.runner._children[pid]
    send(pid, signal.SIGSTOP)
    let_go(tmp_path / "go", spec.seed)
    done = dispatcher.follow([spec.id], 0.2, 400.0)
    before = {row.key: row.etag for row in ladder.store.list(f"witness/{spec.experiment}/")}
    line = done[spec.id].pointer
    send(pid, signal.SIGCONT)
    assert zombie.wait(120.0) == 11, "a deposed worker ends with the code 'lease lost'"
    assert {row.key: row.etag for row in ladder.store.list(f"witness/{spec.experiment}/")} == before
    assert _witness(ladder, spec).pointer == line  # type: ignore[union-attr]
    check_finished(ladder, [spec], done)
    assert done[spec.id].attempt == 2


def test_a_second_launch_of_one_job_finds_it_held(tmp_path: Path, make_ladder: MakeLadder) -> None:
    """A platform that creates twice: the second worker ends by itself and nothing is mixed."""
    ladder = make_ladder(tmp_path)
    (spec,) = ladder.orbits(1, CONFIG)
    while not ladder.running():
        ladder.dispatcher.tick()
    ((_, first),) = ladder.running()
    children = [ladder.runner._children[first]]
    job = ladder.runner_job(spec, launch=1, name="a-ghost-of-the-same-launch")
    ghost = ladder.runner.launch([job]).handle["pid"]
    assert isinstance(ghost, int)
    children.append(ladder.runner._children[ghost])
    done = ladder.dispatcher.follow([spec.id], 0.2, 400.0)
    check_finished(ladder, [spec], done)
    # whichever came first holds it; the bill of the other is still ours to wait for
    won, other = sorted(child.wait(120.0) for child in children)
    assert won == 0 and other in (12, 13)


def test_a_dispatcher_that_dies_costs_nothing(tmp_path: Path, make_ladder: MakeLadder) -> None:
    ladder = make_ladder(tmp_path)
    specs = ladder.orbits(3, CONFIG)
    for _ in range(5):
        ladder.dispatcher.tick()
        SYSTEM.sleep(0.2)
    ladder.dispatcher = ladder.another()
    done = ladder.dispatcher.follow([spec.id for spec in specs], 0.2, 400.0)
    check_finished(ladder, specs, done)
    assert {witness.attempt for witness in done.values()} == {1}, "nobody was launched twice"


def test_sigterm_takes_one_last_milestone_and_another_worker_goes_on(
    tmp_path: Path, make_ladder: MakeLadder
) -> None:
    ladder = make_ladder(tmp_path)
    (spec,) = ladder.orbits(1, held(tmp_path / "go"), every=1000)
    while not ((w := _witness(ladder, spec)) and w.phase == "held" and w.silence_s < 20.0):
        ladder.dispatcher.tick()
        SYSTEM.sleep(0.1)
    ((_, pid),) = ladder.running()
    first = ladder.runner._children[pid]
    send(pid, signal.SIGTERM)
    assert first.wait(120.0) == 10
    let_go(tmp_path / "go", spec.seed)
    w = _witness(ladder, spec)
    assert w and w.pointer and w.pointer.step % 1000, "a milestone out of turn"
    done = ladder.dispatcher.follow([spec.id], 0.2, 400.0)
    check_finished(ladder, [spec], done)
    assert done[spec.id].attempt == 2


def test_a_person_sends_a_running_job_back_to_an_earlier_milestone(
    tmp_path: Path, make_ladder: MakeLadder
) -> None:
    ladder = make_ladder(tmp_path)
    (spec,) = ladder.orbits(1, held(tmp_path / "go"))
    while not ((w := _witness(ladder, spec)) and w.pointer and w.pointer.ordinal >= 3):
        ladder.dispatcher.tick()
        SYSTEM.sleep(0.1)
    found = OneJob(Workplace(load_settings(None), ladder.store), spec.id, spec)
    target = rewind(found, "20", "poisoned")
    assert target is not None and (target.step, target.ordinal) == (20, 1)
    let_go(tmp_path / "go", spec.seed)
    done = ladder.dispatcher.follow([spec.id], 0.2, 400.0)
    check_finished(ladder, [spec], done)
    pointer = done[spec.id].pointer
    assert pointer is not None
    line = pointer_line(ladder, spec.id, pointer)
    assert [m.attempt for m in line] == [1] + [2] * (len(line) - 1), "attempt 2 began at step 20"
    assert ladder.dispatcher.drain(60.0), "the deposed worker has ended"


def _witness(ladder: Ladder, spec: JobSpec) -> Witness | None:
    memory = ladder.dispatcher.world.jobs.get(spec.id)
    if memory is None:
        return None
    ladder.dispatcher.world.read(memory)
    return memory.witness
