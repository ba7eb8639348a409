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
from pipelines.demo import STAGE, Faults
from runners.own_process import live_processes
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Revoke
from tests.e2e.ladder import Ladder
from tests.e2e.test_init import COMMAND

MakeLadder = Callable[..., Ladder]
CONFIG: dict[str, object] = {"steps": 400, "pause_s": 0.02}
WAIT_S = 120.0


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
    harmed.asleep.wait(20)
    harmed.take_away()
    harmed.until(lambda: harmed.faults.woken)
    assert "ended by somebody else meanwhile" in harmed.said[-1]
    assert any("ended with code" in words for words in harmed.faults.problems(lambda _: None))
    harmed.faults.end()


def sleeper(folder: Path, **environ: str) -> psutil.Process:
    """A process with what a worker has in its environment, stopped as the demo's victim is."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
    made = subprocess.Popen([sys.executable, "-c", code], cwd=folder, env={**os.environ, **environ})
    os.kill(made.pid, signal.SIGSTOP)
    return psutil.Process(made.pid)


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
            process.wait(20)


def test_a_new_demo_ends_the_workers_of_an_earlier_one_and_nobody_else(
    tmp_path: Path, sleepers: Callable[..., psutil.Process]
) -> None:
    home = tmp_path / "home"
    ours = load_settings(demo.prepare(home), environ={}).store_url
    workers = [sleepers(TENURE_RUNNER="here", TENURE_STORE=ours) for _ in range(2)]
    foreign = [
        sleepers(TENURE_RUNNER="here", TENURE_STORE=f"{ours}2"),
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


@pytest.mark.soak
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
        left = live_processes("here", url)
        assert left and all(each.status() != psutil.STATUS_STOPPED for each in left)
    demo.end_workers(tmp_path / ".tenure" / "demo")
    assert not live_processes("here", url)


def _read_until(process: subprocess.Popen[str], words: str) -> Sequence[str]:
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it ended before {words!r}: {lines}")
