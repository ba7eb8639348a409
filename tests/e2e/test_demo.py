"""What the demo does to its workers, and undoes: real workers, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import typer

from pipelines import demo
from pipelines.demo import PART, SPOT, STAGE, STEADY, Faults, Moves, SimulatedSlowMachine
from runners.own_process import OwnProcessRunner, live_processes
from tenure.dispatch.billing import receipt_of
from tenure.dispatch.contract import Site
from tenure.dispatch.loop import Dispatcher, Rung, Tick
from tenure.plan.enlist import enlist
from tenure.plan.file import load_plan
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Revoke
from tenure_protocol.records import JobSpec
from tenure_protocol.store.open import open_store
from tenure_worker import code
from tests.e2e.ladder import CHECKOUT, Ladder
from tests.e2e.test_init import COMMAND
from tests.processes import end

MakeLadder = Callable[..., Ladder]
TOLD_ORBIT = "tests.orbit.told:ToldOrbit"
CONFIG: dict[str, object] = {"steps": 40, "pause_s": 0.02, "until": "/nonexistent"}  # none ends
WAIT_S = 400.0


class Harmed:
    """A ladder of two workers whose faults go as far as a stopped worker."""

    def __init__(self, ladder: Ladder) -> None:
        self.said: list[str] = []
        self.ladder = ladder
        self.faults = Faults(ladder.store, self.said.append)
        self.jobs = [spec.id for spec in ladder.orbits(2, CONFIG, every=5)]
        self.until(lambda: self.faults.stopped is not None)
        assert self.faults.stopped is not None
        self.asleep = self.faults.stopped.process
        assert self.asleep.status() == psutil.STATUS_STOPPED

    def until(self, holds: Callable[[], bool]) -> None:
        end_s = SYSTEM.monotonic_s() + WAIT_S
        while not holds():
            assert SYSTEM.monotonic_s() < end_s, self.said
            self.ladder.dispatcher.follow(self.jobs, 0.1, 0.0)
            self.faults(self.ladder.dispatcher, STAGE, self.jobs)
            SYSTEM.sleep(0.1)

    def take_away(self) -> None:
        """Depose the stopped worker, as the end of its lease would after a while."""
        assert self.faults.stopped is not None
        job, key = self.faults.stopped.job, keys.witness("orbits", self.faults.stopped.job)
        store = self.ladder.store
        event = Revoke("a test", "its lease ran out", False)
        assert isinstance(change(store, key, job, read_witness(store, key), event, SYSTEM), Applied)


@pytest.fixture
def harmed(tmp_path: Path, make_ladder: MakeLadder) -> Harmed:
    return Harmed(make_ladder(tmp_path, slots=2, linger_s=120.0, grace_s=120.0))


def test_whatever_is_stopped_is_woken_at_the_end(harmed: Harmed) -> None:
    harmed.faults.end()
    assert harmed.asleep.is_running() and harmed.asleep.status() != psutil.STATUS_STOPPED
    # nobody is harmed any more, whatever still calls
    killed = harmed.faults.killed
    harmed.faults.killed = harmed.faults.stopped = None
    harmed.faults(harmed.ladder.dispatcher, STAGE, harmed.jobs)
    assert killed and harmed.faults.killed is None


def test_a_stopped_worker_that_somebody_ended_is_no_traceback(harmed: Harmed) -> None:
    harmed.asleep.kill()
    harmed.asleep.wait(120)
    harmed.take_away()
    harmed.until(lambda: harmed.faults.woken)
    assert "ended by somebody else meanwhile" in harmed.said[-1]
    assert any("ended with code" in words for words in harmed.faults.problems(lambda _: None, ()))
    harmed.faults.end()


def sleeper(folder: Path, **environ: str) -> psutil.Process:
    """A process with what a worker has in its environment, stopped as the demo's victim is."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    made = subprocess.Popen([sys.executable, "-c", code], cwd=folder, env={**os.environ, **environ})
    os.kill(made.pid, signal.SIGSTOP)
    process = psutil.Process(made.pid)
    _until(lambda: bool(process.status() == psutil.STATUS_STOPPED))
    return process


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[Callable[..., psutil.Process]]:
    made: list[psutil.Process] = []

    def make(**environ: str) -> psutil.Process:
        made.append(sleeper(tmp_path, **environ))
        return made[-1]

    yield make
    for process in made:
        if process.is_running():
            process.kill()
            process.wait(120)


def test_a_new_demo_ends_the_workers_of_an_earlier_one_and_nobody_else(
    tmp_path: Path, sleepers: Callable[..., psutil.Process]
) -> None:
    home = tmp_path / "home"
    ours = load_settings(demo.prepare(home), environ={}).store_url
    workers = [sleepers(TENURE_RUNNER=name, TENURE_STORE=ours) for name in (STEADY, SPOT)]
    foreign = [
        sleepers(TENURE_RUNNER=SPOT, TENURE_STORE=f"{ours}2"),
        sleepers(TENURE_RUNNER="other", TENURE_STORE=ours),
        sleepers(TENURE_STORE=ours),  # a person who looks around in that store
    ]
    (home / "store").mkdir()
    demo.prepare(home)
    assert not any(process.is_running() for process in workers)
    assert all(process.status() == psutil.STATUS_STOPPED for process in foreign)
    assert not (home / "store").exists()


def test_the_demo_ends_its_faults_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def interrupted(*_: object) -> None:
        raise typer.Exit(130)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.Watching, "run", interrupted)
    monkeypatch.setattr(Faults, "end", lambda _: ended.append("woken"))
    with pytest.raises(typer.Exit):
        demo.demo()
    assert ended == ["woken"]


def test_the_demo_plays_the_plan_of_the_example_on_its_own_rungs(tmp_path: Path) -> None:
    settings = load_settings(demo.prepare(tmp_path / "home"), environ={})
    ours = load_plan(tmp_path / "home" / "plan.yaml", settings)
    example = load_plan(CHECKOUT / demo.PLAN, settings, check_rungs=False)
    assert ours.rungs == [STEADY, SPOT] == list(settings.rungs)
    assert {**ours.model_dump(), "rungs": example.rungs} == example.model_dump()


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    made = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield psutil.Process(made.pid)
    made.kill()
    made.wait(120)


def _until(holds: Callable[[], bool]) -> None:
    end_s = SYSTEM.monotonic_s() + WAIT_S
    while not holds():
        assert SYSTEM.monotonic_s() < end_s
        SYSTEM.sleep(0.01)


def test_a_slow_machine_runs_and_stands_in_turn_until_it_is_repaired(busy: psutil.Process) -> None:
    def stands() -> bool:
        return bool(busy.status() == psutil.STATUS_STOPPED)

    machine = SimulatedSlowMachine(busy, PART)
    for _ in range(3):
        _until(stands)
        _until(lambda: not stands())
    machine.eased = True
    _until(lambda: not stands())
    machine.eased = False
    _until(stands)
    machine.repair()
    _until(lambda: not stands())
    before = busy.cpu_times().user
    _until(lambda: stands() or busy.cpu_times().user > before + 0.5)  # some windows long
    assert not stands()


def test_a_slow_machine_whose_process_ends_is_no_traceback(busy: psutil.Process) -> None:
    machine = SimulatedSlowMachine(busy, PART)
    busy.kill()
    busy.wait(120)  # a zombie takes signals
    _until(lambda: machine.over)
    machine.repair()


def test_the_slow_machine_is_repaired_however_the_demo_ends(
    busy: psutil.Process, tmp_path: Path, make_ladder: MakeLadder
) -> None:
    faults = Faults(make_ladder(tmp_path).store, print)
    faults._slow = SimulatedSlowMachine(busy, PART)
    _until(lambda: bool(busy.status() == psutil.STATUS_STOPPED))
    faults.end()
    assert faults._slow.over
    _until(lambda: bool(busy.status() != psutil.STATUS_STOPPED))


class TwoRungs:
    """The rungs of the demo over a store, with its faults, on trainings whose steps are mostly sleep."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.store = open_store(f"file:{folder / 'store'}")
        self.rungs = [self._rung(folder, name, slots) for name, slots in ((STEADY, 1), (SPOT, 2))]
        self.dispatcher = Dispatcher(self.store, self.rungs, SYSTEM)
        self.faults = Faults(self.store, self.said.append)
        self.moves = Moves(self.said.append)
        digest, data = code.code_digest(TOLD_ORBIT), code.data_digest(object())  # type: ignore[arg-type]
        config: dict[str, object] = {"steps": 600, "pause_s": 0.02}
        specs = [
            JobSpec("orbits", "train", "training", TOLD_ORBIT, config, seed, 1, digest, data, 50)
            for seed in range(6)
        ]
        enlist(self.store, "orbits", "orbits", specs, {"rungs": [STEADY, SPOT]}, SYSTEM)
        self.jobs = [spec.id for spec in specs]

    def _rung(self, folder: Path, name: str, slots: int) -> Rung:
        config: dict[str, object] = {
            "slots": slots, "threads": 1, "linger_s": 120.0, "grace_s": 120.0
        }  # fmt: skip
        runner = OwnProcessRunner(name, config, Site(CHECKOUT, SYSTEM))
        return Rung(name, name, runner, OwnProcessRunner.capacity(config))

    def report(self, tick: Tick) -> None:
        self.moves(self.dispatcher, tick)
        self.faults(self.dispatcher, STAGE, self.jobs)

    def close(self) -> None:
        self.faults.end()
        end(_workers(self.store.url))
        for bill in self.dispatcher.world.bills.values():
            if bill.receipt:  # its temporary folder goes with it
                self.dispatcher.rungs[bill.receipt.rung].runner.release(receipt_of(bill.receipt))


@pytest.fixture
def two_rungs(tmp_path: Path) -> Iterator[TwoRungs]:
    made = TwoRungs(tmp_path)
    yield made
    made.close()


def test_a_job_leaves_a_machine_that_degrades_beside_one_killed_and_one_stopped(
    two_rungs: TwoRungs,
) -> None:
    done = two_rungs.dispatcher.follow(two_rungs.jobs, 0.2, WAIT_S, two_rungs.report)
    assert set(done) == set(two_rungs.jobs), two_rungs.said
    two_rungs.dispatcher.drain(WAIT_S, 0.2, report=two_rungs.report)
    assert two_rungs.faults.problems(done.get, two_rungs.moves.asked) == [], two_rungs.said
    slowed = two_rungs.faults.slowed
    assert slowed is not None and slowed.rung == SPOT
    (reason,) = [words for words in two_rungs.said if f"{slowed.job[:8]} is asked" in words]
    assert "of the usual" in reason and "what is left" in reason
    assert any(f"{slowed.job[:8]} goes on in attempt 2 on rung" in w for w in two_rungs.said)


def test_what_did_not_happen_is_named(tmp_path: Path, make_ladder: MakeLadder) -> None:
    found = Faults(make_ladder(tmp_path).store, print).problems(lambda _: None, ())
    assert found == [
        f"the stage ended before a worker could be {word}"
        for word in ("killed", "stopped", "slowed")
    ]


@pytest.mark.soak
@pytest.mark.usefixtures("with_torch")
def test_an_interrupted_demo_leaves_nobody_stopped_and_can_be_begun_again(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/.tenure/demo/store"
    for _ in range(2):
        process = subprocess.Popen(
            [*COMMAND, "demo"], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            before = _read_until(process, "is stopped (SIGSTOP)")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=150)
        finally:
            process.kill()
        assert process.returncode == 130 and "begins anew" in said, before
        assert "Traceback" not in said
        left = _workers(url)
        assert left and all(each.status() != psutil.STATUS_STOPPED for each in left)
    demo.end_workers(tmp_path / ".tenure" / "demo")
    assert not _workers(url)


def _workers(url: str) -> list[psutil.Process]:
    return [process for name in (STEADY, SPOT) for process in live_processes(name, url)]


def _read_until(process: subprocess.Popen[str], words: str) -> Sequence[str]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it ended before {words!r}: {lines}")
