"""`tenure init` in an empty folder gives a plan that trains as it is, through the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.cli.skeleton import experiment
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.store.api import Found
from tenure_protocol.store.directory import DirectoryStore
from tenure_worker.snapshot import fetch
from tests import tenure_command as here
from tests.until import until

COMMAND = [sys.executable, "-m", "tenure"]


def tenure(folder: Path, *args: str, code: int = 0) -> str:
    """Run a command in a process of its own and return what it printed."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TENURE_")}
    done = subprocess.run(
        [*COMMAND, *args], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


def status(folder: Path) -> dict[str, dict[str, object]]:
    """What the command says, in this process: it is asked again and again."""
    ended = here.tenure("status", "--json", "--config", str(folder / "tenure.toml"))
    assert ended.code == 0, ended
    return {row["job"]: row for row in json.loads(ended.out)["jobs"]}


@pytest.fixture
def enlisted(tmp_path: Path) -> list[str]:
    """A fresh folder of a user's own with the five training jobs of the skeleton's plan."""
    tenure(tmp_path, "init")
    jobs: list[str] = json.loads(tenure(tmp_path, "enlist", "plans/first.yaml", "--json"))["jobs"]
    assert len(set(jobs)) == 5
    return jobs


def last_state(folder: Path, job: str) -> dict[str, object]:
    store = DirectoryStore(folder / ".tenure" / "store")
    witness = read_witness(store, keys.witness("first", job)).witness
    assert witness is not None and witness.pointer is not None
    target = folder / f"model-{witness.pointer.attempt}-{job}"
    target.mkdir()
    fetch(store, job, witness.pointer, target)
    state: dict[str, object] = json.loads((target / "model.json").read_text())
    return state


def test_the_skeleton_trains_as_it_is(tmp_path: Path, enlisted: list[str]) -> None:
    again = json.loads(tenure(tmp_path, "enlist", "plans/first.yaml", "--json"))["jobs"]
    assert again == enlisted
    said = tenure(tmp_path, "dispatch", "--until-done", "--for-s", "120")
    assert all(job[:10] in said for job in enlisted)
    rows = status(tmp_path)
    assert list(rows) == enlisted
    for job in enlisted:
        assert rows[job]["phase"] == "finished" and rows[job]["step"] == 300
        assert rows[job]["rung"] == "local" and rows[job]["attempt"] == 1
    assert tenure(tmp_path, "events", enlisted[0], "--json").count('"loss"') == 6
    assert '{"loss": ' in tenure(tmp_path, "why", enlisted[0])
    # a second run of the same spec, once the plan is over, is the same training to the last bit
    rerun = tenure(tmp_path, "retry", enlisted[0]).strip()
    tenure(tmp_path, "dispatch", "--until-done", "--for-s", "60")
    assert last_state(tmp_path, rerun) == last_state(tmp_path, enlisted[0])


def hold(folder: Path) -> None:
    """Make the skeleton's training go on for minutes until :func:`let_go`, so that it is met in the middle.

    Its steps stay far below its lease, so that nobody takes it for lost meanwhile.
    """
    file = folder / "experiments" / "first.py"
    step = "            tenure.step()\n"
    assert step in file.read_text()
    held = f"time.sleep(0 if Path({str(folder / 'go')!r}).exists() else HELD_S)".replace(
        "HELD_S", "0.02 if model.steps < 100 else 1.0"
    )
    file.write_text(file.read_text().replace(step, f"{step}            {held}\n"))
    file.write_text(file.read_text().replace("import random\n", "import random\nimport time\n"))
    settings = folder / "tenure.toml"  # a release then sends SIGTERM at once, in mid-training
    settings.write_text(settings.read_text().replace("slots = 2", "slots = 2\nlinger_s = 0.2"))


def let_go(folder: Path) -> None:
    (folder / "go").touch()


def held_jobs(folder: Path, keep: int) -> list[str]:
    """The first ``keep`` jobs of a plan that is held; the others are cancelled."""
    tenure(folder, "init")
    hold(folder)
    jobs: list[str] = json.loads(tenure(folder, "enlist", "plans/first.yaml", "--json"))["jobs"]
    for other in jobs[keep:]:
        tenure(folder, "cancel", other)
    return jobs[:keep]


def dispatching(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, "dispatch", *args], cwd=folder, stdout=subprocess.DEVNULL)


def uninterrupted(seed: int) -> list[float]:
    """The weights of the skeleton's training, computed here in one go."""
    values, model = experiment.series(), experiment.Model(seed)
    while model.steps < experiment.STEPS:
        model.step(values, learning_rate=0.01)
    return model.weights


def test_a_live_job_that_is_released_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    (job,) = held_jobs(tmp_path, keep=1)
    dispatcher = dispatching(tmp_path)
    try:
        wait_for_step(tmp_path, job, 50)
        tenure(tmp_path, "release", job, code=2)  # no terminal to ask on
        tenure(tmp_path, "release", job, "--yes")
        let_go(tmp_path)
        tenure(tmp_path, "status", "--plan", "first", "--watch")  # until every job is over
    finally:
        dispatcher.send_signal(signal.SIGINT)
        assert dispatcher.wait(timeout=240) == 130
    row = status(tmp_path)[job]
    assert row["phase"] == "finished" and row["step"] == 300 and row["attempt"] == 2
    assert last_state(tmp_path, job)["weights"] == uninterrupted(seed=0)


def wait_for_step(folder: Path, job: str, step: int) -> None:
    def reached() -> bool:
        now = status(folder)[job]["step"]
        return isinstance(now, int) and now >= step

    until(reached, every_s=0.2)


def test_a_corrupt_manifest_stops_its_job_alone(tmp_path: Path) -> None:
    bad, good = held_jobs(tmp_path, keep=2)
    dispatcher = dispatching(tmp_path, "--until-done")
    try:
        wait_for_step(tmp_path, bad, 50)
        tenure(tmp_path, "pause", bad)
        until(lambda: status(tmp_path)[bad]["phase"] != "held", every_s=0.2)
        key = cut_manifest(tmp_path, bad)
        tenure(tmp_path, "resume", bad)
        let_go(tmp_path)
        assert dispatcher.wait(timeout=180) == 1, "a job ended without a result"
    finally:
        dispatcher.kill()
    rows = status(tmp_path)
    assert rows[bad]["phase"] == "cancelled" and key in str(rows[bad]["reason"])
    assert rows[good]["phase"] == "finished"


def cut_manifest(folder: Path, job: str) -> str:
    """Take the end off the manifest that the pointer names; its key."""
    store = DirectoryStore(folder / ".tenure" / "store")
    witness = read_witness(store, keys.witness("first", job)).witness
    assert witness is not None and witness.pointer is not None
    key = keys.manifest(job, witness.pointer)
    found = store.read(key)
    assert isinstance(found, Found)
    store.replace(key, found.body[:-20], found.etag)
    return key
