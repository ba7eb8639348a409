"""Real ``python -m tenure_worker`` processes: each end has its code of the public table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Claim, Event, Reserve, Revoke
from tenure_protocol.records import JobSpec, SnapshotRef, Witness
from tenure_protocol.store.api import StoreSilent
from tenure_protocol.store.directory import DirectoryStore
from tenure_worker import code, exits
from tenure_worker.claim import patiently
from tenure_worker.exits import Stopped
from tests.fake_clock import FakeClock
from tests.toy.experiment import final_word
from tests.without_torch import without_torch

CHECKOUT = Path(__file__).parents[2]
TOY = "tests.toy.experiment:Toy"
DEADLINE_S = 240.0


@dataclass
class Job:
    """A job in a directory store, and worker processes on it."""

    store: DirectoryStore
    spec: JobSpec
    no_torch: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def key(self) -> str:
        return keys.witness_of(self.spec)

    @property
    def witness(self) -> Witness:
        found = read_witness(self.store, self.key).witness
        assert found is not None
        return found

    def event(self, event: Event) -> None:
        stored = read_witness(self.store, self.key)
        done = change(self.store, self.key, self.spec.id, stored, event, SYSTEM)
        assert isinstance(done, Applied), done

    def start(self, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure_worker"],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("TENURE_")},
                "PYTHONPATH": os.pathsep.join([str(self.no_torch), str(CHECKOUT / "worker")]),
                "PYTHONUNBUFFERED": "1",
                "TENURE_STORE": self.store.url,
                "TENURE_JOB": self.spec.id,
                "TENURE_LAUNCH": "1",
                "TENURE_CODE": str(CHECKOUT),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, **variables: str) -> tuple[int, str]:
        process = self.start(**variables)
        _, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, err

    def until(self, ready: Callable[[Witness], bool]) -> None:
        end_s = SYSTEM.monotonic_s() + DEADLINE_S
        while not ready(self.witness):
            assert SYSTEM.monotonic_s() < end_s, f"never came: {self.witness}"
            SYSTEM.sleep(0.02)


Make = Callable[..., Job]


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Importing torch takes longer than all else these workers do."""
    return without_torch(tmp_path_factory.mktemp("worker"))


@pytest.fixture
def make(tmp_path: Path, no_torch: Path) -> Iterator[Make]:
    jobs: list[Job] = []
    digest = code.code_digest(TOY)

    def made(reserve: bool = True, **spec: object) -> Job:
        job = JobSpec(
            **{  # type: ignore[arg-type]
                "experiment": "toy",
                "kind": "train",
                "stage": "training",
                "entry_point": TOY,
                "config": {"steps": 30},
                "seed": 5 + len(jobs),
                "generation": 1,
                "code": digest,
                "data": code.data_digest(object()),  # type: ignore[arg-type]
                "milestone_every": 10,
                **spec,
            }
        )
        found = Job(DirectoryStore(tmp_path / "store"), job, no_torch)
        found.store.create(keys.job(job.id), encode(job))
        if reserve:
            found.event(Reserve("here", 60.0, "d1"))
        jobs.append(found)
        return found

    yield made
    for job in jobs:
        for process in job.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def test_finished_then_evaluated_and_backtested(make: Make) -> None:
    train = make()
    assert train.run() == (exits.FINISHED, "")
    assert train.witness.result == {"word": final_word(5, 30)}
    assert train.witness.pointer
    model = SnapshotRef(train.spec.id, train.witness.pointer)
    after = [make(kind=kind, stage=kind, model=model) for kind in ("evaluate", "backtest")]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(Job.run, after)) == [(exits.FINISHED, "")] * 2
    logs = [e.key for e in train.store.list(f"jobs/{train.spec.id}/attempts/00001/log/")]
    found = train.store.read(logs[0])
    assert b"trained to step 30\n" in found.body  # type: ignore[union-attr]


def test_the_ends_of_an_experiment(make: Make) -> None:
    ends = {
        "raise": (exits.CODE_ERROR, "finished", "KeyError: 'a bug of the experiment'"),
        "exit": (exits.CODE_ERROR, "finished", "SystemExit: 0"),
        "memory": (exits.OUT_OF_MEMORY, "released", "MemoryError"),
        "no_milestone": (exits.CODE_ERROR, "finished", "call tenure.milestone(save)"),
        "big": (exits.CODE_ERROR, "finished", "at most 4096 fit"),
    }
    jobs = {fails: make(config={"steps": 15, "fails": fails}) for fails in ends}
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(jobs, pool.map(Job.run, jobs.values()), strict=True))
    for fails, (exit_code, phase, words) in ends.items():
        w = jobs[fails].witness
        assert results[fails][0] == exit_code, results[fails][1]
        assert (w.phase, w.exit_code) == (phase, exit_code)
        assert words in (w.reason or "")


def test_those_that_never_start(make: Make) -> None:
    elsewhere = make()
    elsewhere.event(Claim(1, "somebody", 600.0))
    revoked = make()
    revoked.event(Revoke("ops", "not this one"))
    pinned = make(requires={"card": "H100", "packages": {"numpy": "0.1"}})
    changed = make(code="another")
    missing = make(entry_point="tests.toy.nowhere:Toy")
    corrupt = make()
    (corrupt.store._root / keys.job(corrupt.spec.id)).write_bytes(b'{"experiment": 1')
    witness = make()
    (witness.store._root / witness.key).write_bytes(b"{}")
    cases: list[tuple[Job, dict[str, str], int, str]] = [
        (elsewhere, {"TENURE_LAUNCH": "2"}, exits.ELSEWHERE, "launch 1 holds it"),
        (revoked, {}, exits.SUPERSEDED, "revoked"),
        (pinned, {}, exits.REFUSED, "'H100' is required"),
        (changed, {}, exits.REFUSED, "changed since the job was enlisted"),
        (changed, {}, exits.REFUSED, f"run `tenure retry {changed.spec.id}`"),
        (missing, {}, exits.REFUSED, "tests.toy.nowhere"),
        (corrupt, {}, exits.PROTOCOL, keys.job(corrupt.spec.id)),
        (witness, {}, exits.PROTOCOL, witness.key),
        (
            revoked,
            {"TENURE_JOB": "nobody-enlisted-this"},
            exits.PROTOCOL,
            "jobs/nobody-enlisted-this/job.json is missing: no job of this id has been enlisted",
        ),
        (revoked, {"TENURE_JOB": "../up"}, exits.USAGE, "'../up' is no job id"),
        (revoked, {"TENURE_JOB": ""}, exits.USAGE, "name a store and a job"),
        (revoked, {"TENURE_STORE": "ftp://x"}, exits.USAGE, "'ftp://x'"),
        (revoked, {"TENURE_LAUNCH": "first"}, exits.USAGE, "first"),
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: case[0].run(**case[1]), cases))
    for (_, variables, want, words), (exit_code, err) in zip(cases, results, strict=True):
        assert (exit_code, words in err) == (want, True), (variables, exit_code, err)
        assert "Traceback" not in err
    for job, runs in ((pinned, 1), (changed, 2), (missing, 1)):
        assert job.witness.phase == "expected"
        assert len(list(job.store.list(keys.refusals(job.spec.id)))) == runs


def test_sigterm_is_one_last_milestone_and_the_next_launch_goes_on(make: Make) -> None:
    job = make(config={"steps": 2000, "pause_s": 0.005}, milestone_every=40)
    process = job.start()
    job.until(lambda w: w.pointer is not None)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE_S)
    w = job.witness
    assert process.returncode == exits.RELEASED, err
    assert (w.phase, w.exit_code, w.reason) == ("released", exits.RELEASED, "received SIGTERM")
    assert w.pointer and w.pointer.step < 2000
    job.event(Reserve("here", 60.0, "d1"))
    process = job.start(TENURE_LAUNCH="2")
    job.until(lambda w: w.attempt == 2 and w.pointer is not None and w.pointer.attempt == 2)
    assert job.witness.pointer and job.witness.pointer.step > w.pointer.step


def test_a_revoked_worker_is_lease_lost_and_a_killed_one_is_replaced(make: Make) -> None:
    revoked = make(config={"steps": 100_000, "pause_s": 0.005}, milestone_every=40)
    killed = make(config={"steps": 300, "pause_s": 0.005}, milestone_every=40)
    processes = [job.start() for job in (revoked, killed)]
    for job in (revoked, killed):
        job.until(lambda w: w.pointer is not None)
    revoked.event(Revoke("ops", "poison"))
    before = revoked.witness
    processes[1].kill()
    killed.event(Reserve("here", 60.0, "d1", "vacant"))
    assert killed.run(TENURE_LAUNCH="2")[0] == exits.FINISHED
    assert killed.witness.result == {"word": final_word(killed.spec.seed, 300)}
    _, err = processes[0].communicate(timeout=DEADLINE_S)
    assert processes[0].returncode == exits.LEASE_LOST and "poison" in err
    assert revoked.witness == before
    with suppress(ProcessLookupError):
        processes[1].wait(DEADLINE_S)


def test_an_exit_code_survives_sigterm_on_the_way_out(make: Make, tmp_path: Path) -> None:
    """A platform's notice, or a release, that meets a worker whose end is decided already."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(CHECKOUT / "worker")])
    (tmp_path / "torch.py").write_text("raise ImportError('not in these tests')\n")
    job = make()
    assert job.run(PYTHONPATH=path)[0] == exits.FINISHED
    assert job.run(PYTHONPATH=path)[0] == exits.SUPERSEDED


def test_help_names_every_exit_code(no_torch: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenure_worker", "--help"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "worker")},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    for number, words in exits.EXIT_CODES.items():
        assert f"{number:3d}  {words}" in done.stdout


def test_a_store_that_is_silent_at_the_start_is_waited_for_and_then_given_up() -> None:
    with FakeClock() as clock:
        start_s = clock.monotonic_s()

        def ask() -> str:
            if clock.monotonic_s() - start_s < 300.0:
                raise StoreSilent("no route")
            return "here"

        assert patiently(ask, clock) == "here"

        def never() -> str:
            raise StoreSilent("no route")

        with pytest.raises(Stopped) as stop:
            patiently(never, clock)
        assert stop.value.exit_code == exits.STORE_GONE
