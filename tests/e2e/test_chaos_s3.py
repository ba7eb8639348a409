"""Real workers and real dispatchers over a real S3 server, and everything of it fails."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease.machine import SLACK_S
from tenure_protocol.records import JobSpec
from tenure_protocol.store import s3
from tenure_protocol.store.api import DEADLINE_S, StoreSilent, shortest_lease_s
from tenure_protocol.store.open import open_store
from tenure_worker.claim import patiently
from tests.e2e.chaos_world import DOOMED, LEASE_S, Chaos, Project, check_bills
from tests.e2e.test_chaos import CONFIG, check_finished
from tests.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed, running


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seaweed]:
    """A server that this test alone may end."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with running(tmp_path / "seaweed") as server:
        yield server
        server.kill()  # SIGTERM takes it up to 20 s where clients have just been killed


def chaos(folder: Path, server: Seaweed, rounds: int, longest_pause_s: float, seed: int) -> None:
    """So many faults, and then every job is what an undisturbed one is."""
    with Project(folder / "project", server.url("chaos")) as project:
        world = Chaos(project, server, CONFIG, seed)
        with world.told():
            world.play(rounds, longest_pause_s)
            finish(project, world.specs)


def test_ten_rounds_of_chaos(tmp_path: Path, server: Seaweed) -> None:
    chaos(tmp_path, server, 10, longest_pause_s=2.0, seed=1)


@pytest.mark.soak
def test_two_hundred_rounds_of_chaos(tmp_path: Path, server: Seaweed) -> None:
    chaos(tmp_path, server, 200, longest_pause_s=4.0, seed=2)


# ------------------------------------------------------------------------ one fault, on purpose

#: Where a dispatcher may die while it launches: it has reserved, opened the bill, said what it means
#: to do; it has started the worker, and told where it is.
POINTS = [
    ("witness/", True), ("unsettled/", True), ("/intent", True), ("/receipt", False), ("/receipt", True)
]  # fmt: skip


def test_a_dispatcher_that_dies_at_any_point_of_a_launch(tmp_path: Path, server: Seaweed) -> None:
    with Project(tmp_path / "project", server.url("points"), claim_window_s=30.0) as project:
        specs = project.ladder.orbits(len(POINTS), CONFIG, max_silence_s=60.0)
        for part, after in POINTS:
            start = DOOMED.format(part=part, count=1, after=after)
            assert project.start("dispatch", start=start).wait() == -signal.SIGKILL
        finish(project, specs)
        assert project.launches() == {spec.id: 1 for spec in specs}, "no worker was started twice"


def test_a_store_that_answers_nothing_for_longer_than_a_lease_deposes_nobody(
    tmp_path: Path, server: Seaweed
) -> None:
    """Nor does it end a dispatcher, and Ctrl-C ends one that waits for it.

    The lease is one that a plan may ask for: under a shorter one, a single call that hangs while the
    server starts again lasts longer than a watch of everybody else.
    """
    lease_s = shortest_lease_s(DEADLINE_S["s3"])
    with Project(tmp_path / "project", server.url("silent")) as project:
        slow = {**CONFIG, "pause_s": 0.1}
        specs = project.ladder.orbits(4, slow, max_silence_s=lease_s)
        dispatcher, other = project.start("dispatch"), project.start("dispatch")
        project.wait(lambda: held(project) == 4, "four workers in mid-training")
        project.wait(lambda: dispatcher.log.read_text() and other.log.read_text(), "both at work")
        server.freeze()
        SYSTEM.sleep(lease_s + SLACK_S + 1.0)
        other.interrupt()
        server.kill()  # what was asked in the silence is never answered: everybody must ask anew
        server.start()
        assert dispatcher.code is None
        finish(project, specs)
        assert {w.attempt for w in project.done().values()} == {1}


def test_a_server_that_is_killed_in_mid_upload(tmp_path: Path, server: Seaweed) -> None:
    with Project(tmp_path / "project", server.url("upload")) as project:
        config = {**CONFIG, "padding": 48 << 20}
        specs = project.ladder.orbits(1, config, every=60, max_silence_s=LEASE_S)
        project.start("dispatch")
        project.wait(server.uploads, "an upload in parts")
        server.kill()
        server.start()
        finish(project, specs)
        assert server.uploads() == []


def test_an_upload_that_failed_leaves_no_parts_behind(
    tmp_path: Path, server: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage longer than boto3's patience, after which the courier sends the same file again."""
    monkeypatch.setattr(s3, "_BULK_ATTEMPTS", 1)
    store, file = open_store(server.url("parts")), tmp_path / "file"
    file.write_bytes(bytes(48 << 20))

    def kill(done: int, _: int) -> None:
        if done:
            server.kill()

    with pytest.raises(StoreSilent):
        store.put_file("jobs/j/file", file, kill)
    server.start()
    assert server.uploads() == ["parts/jobs/j/file"]
    patiently(lambda: store.put_file("jobs/j/file", file))
    assert server.uploads() == []


# ------------------------------------------------------------------------------------ Ctrl-C


def test_ctrl_c_of_dispatch_at_any_moment_starts_nothing_twice(
    tmp_path: Path, server: Seaweed
) -> None:
    rng = random.Random(4)
    # a claim window and a lease that none misses on a slow machine: nobody here is ever lost
    with Project(tmp_path / "project", server.url("ctrl-c"), claim_window_s=30.0) as project:
        specs = project.ladder.orbits(6, CONFIG, max_silence_s=60.0)
        for count in range(6):
            command = project.start("dispatch")
            project.wait(
                lambda told=command.log: told.read_text() or project.all_over(),  # type: ignore[misc]
                "the first decision that is told, if any is left",
            )
            SYSTEM.sleep(rng.uniform(0.0, 1.0))
            command.interrupt(again_s=rng.uniform(0.0, 0.05) if count % 2 else None)
        finish(project, specs)
        assert {w.attempt for w in project.done().values()} == {1}
        assert project.launches() == {spec.id: 1 for spec in specs}


PLAN = """\
name: quick
experiment: tests.e2e.quick.experiment:Quick
grid: {level: [0.5], pause_s: [0.1], until: [UNTIL]}
seeds: [1, 2, 3]
retrain_seeds: [11, 14, 15]
milestone_every: 3
rungs: [local]
promote: {metric: loss, direction: minimize, margin: 0.2, min_score: 0.1}
"""


def test_ctrl_c_of_run_leaves_the_workers_and_run_again_attaches(
    tmp_path: Path, server: Seaweed
) -> None:
    with Project(tmp_path / "project", server.url("run"), claim_window_s=60.0) as project:
        enough = project.folder / "enough"  # until it is there, no job can end
        (project.folder / "plan.yaml").write_text(PLAN.replace("UNTIL", str(enough)))
        project.start("run", "plan.yaml")
        project.wait(lambda: held(project) == 3, "three workers in mid-training")
        project.interrupt()
        workers = set(project.workers())
        assert len(workers) == 3, "they are none of the terminal's"
        again = project.start("run", "plan.yaml")
        project.wait(lambda: "training: " in again.log.read_text(), "the second run attaches")
        again.interrupt(again_s=0.05)
        assert set(project.workers()) == workers, "nor are they the second run's"
        enough.touch()
        third = project.start("run", "plan.yaml")
        project.wait(lambda: "metrics: " in third.log.read_text(), "the third run goes on")
        third.interrupt()
        project.start("dispatch")
        settle(project)
        assert len(project.done()) > 3, "the third run has enlisted what comes after training"
        assert {(w.phase, w.attempt) for w in project.done().values()} == {("finished", 1)}
        assert project.launches() == dict.fromkeys(project.done(), 1)


def held(project: Project) -> int:
    """How many jobs have a holder that has moved its pointer."""
    return sum(w.phase == "held" and w.pointer is not None for w in project.done().values())


def settle(project: Project) -> None:
    """The end: every job is final, every bill is closed and no worker is left; Ctrl-C."""
    project.wait(project.all_over, "the end of all jobs and bills")
    project.wait(lambda: not project.workers(), "the end of all workers")
    project.interrupt()
    check_bills(project)


def finish(project: Project, specs: list[JobSpec]) -> None:
    """A dispatcher that none of this has harmed brings everything to its end; then look at it."""
    if not any(command.code is None for command in project.commands):
        project.start("dispatch")
    settle(project)
    check_finished(project.ladder, specs, project.done())
