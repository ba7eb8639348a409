"""The own-process runner with real processes. Its worker is any program that reads its environment."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runners import own_process
from runners.own_process import OwnProcessRunner
from tenure.dispatch.contract import Capacity, Closed, Job, NoSlots, Receipt, Rejected, Site
from tenure.dispatch.loop import launch_name
from tenure.testing import runner_checks
from tenure_protocol.clock import SYSTEM, Mailbox

Make = Callable[..., OwnProcessRunner]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Runners whose "python" is a script that stays until it is told to end."""
    made: list[OwnProcessRunner] = []
    script = tmp_path / "python"
    script.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import os, signal, sys, time
        if os.environ.get("STUBBORN"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        names = [name for name in os.environ if name.startswith("TENURE") or name == "MY_KEY"]
        print(" ".join(sorted(names)), *sys.argv[1:], flush=True)
        time.sleep(600)
        """)
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)

    def build(**config: object) -> OwnProcessRunner:
        settings: dict[str, object] = {
            "python": str(script), "linger_s": 0.0, "grace_s": 0.0, **config
        }  # fmt: skip
        runner = OwnProcessRunner("here", settings, Site(tmp_path, SYSTEM, frozenset({"MY_KEY"})))
        made.append(runner)
        return runner

    yield build
    for runner in made:
        for child in runner._children.values():
            child.kill()
            child.wait()


def job(name: str = "one", number: int = 1) -> Job:
    # a store of this process: another's tests at the same time have slots of their own
    return Job("j", "train", number, f"{name}-{SYSTEM.nonce()}", f"memory:{os.getpid()}")


@pytest.mark.parametrize("check", runner_checks.ALL, ids=lambda check: check.__name__)
def test_contract(make: Make, check: runner_checks.Check) -> None:
    check(make, job)


def test_a_launched_twice_name_is_adopted_even_by_another_dispatcher(make: Make) -> None:
    one = job()
    first = make().launch([one])
    assert make().launch([one]).handle == first.handle


def test_dispatchers_that_do_not_know_of_each_other_share_the_slots(make: Make) -> None:
    first, second = make(slots=2), make(slots=2)
    one, other = job(), job()
    receipts = [first.launch([one]), second.launch([other])]
    with pytest.raises(NoSlots, match="2 workers of runner here"):
        second.launch([job()])
    assert second.launch([one]).handle == receipts[0].handle, "adopting takes no slot"
    elsewhere = Job("j", "train", 1, f"two-{SYSTEM.nonce()}", "file:/another/store")
    assert first.launch([elsewhere]).handle, "another store's dispatchers have slots of their own"
    while not isinstance(first.release(receipts[0]), Closed):
        SYSTEM.sleep(0.02)
    assert second.launch([job()]).handle


def test_a_launch_returns_when_everybody_can_see_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after exec a process has no environment yet: who looks then must not find nobody."""
    real, blind, one = psutil.Process.environ, [5], job()

    def environ(process: psutil.Process) -> dict[str, str]:
        found: dict[str, str] = real(process)
        if found.get("TENURE_NAME") == one.name and blind[0]:
            blind[0] -= 1
            return {}
        return found

    monkeypatch.setattr(psutil.Process, "environ", environ)
    runner = make(slots=1)
    runner.launch([one])
    assert blind == [0]
    with pytest.raises(NoSlots):
        make(slots=1).launch([job()])


def test_a_dispatcher_that_is_frozen_in_its_launch_blocks_no_other(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_process, "_LOCK_PATIENCE_S", 0.2)
    runner = make()
    said: Mailbox[object] = SYSTEM.mailbox(1)
    runner.launch([job()])

    def launch() -> None:
        try:
            said.put(runner.launch([job()]))
        except NoSlots as error:
            said.put(str(error))

    with (tmp_path / ".tenure" / "workers" / "here.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        SYSTEM.spawn(launch, "the-other-dispatcher")
        assert said.get(20.0) == "another dispatcher has been in a launch here for 0.2 s"
    assert runner.launch([job()]).handle


def test_the_same_job_of_another_store_is_another_launch() -> None:
    assert launch_name("file:/a", "j", 1) != launch_name("file:/b", "j", 1)


def test_release_terminates_then_kills(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUBBORN", "1")
    runner = make(grace_s=0.3)
    receipt = runner.launch([job()])
    log = next((runner._site.root / ".tenure" / "workers").glob("*.log"))
    while not log.read_text():
        SYSTEM.sleep(0.02)
    assert "SIGTERM" in runner.release(receipt).reason
    SYSTEM.sleep(0.4)
    assert "SIGKILL" in runner.release(receipt).reason
    runner_checks.until_closed(runner, receipt)


def test_a_worker_that_ends_by_itself_is_not_signalled(make: Make) -> None:
    runner = make(linger_s=60.0)
    receipt = runner.launch([job()])
    assert "by itself" in runner.release(receipt).reason
    pid = receipt.handle["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    runner_checks.until_closed(runner, receipt)


def test_what_a_killed_worker_left_behind_is_ended_too(make: Make, tmp_path: Path) -> None:
    script = tmp_path / "parent"
    script.write_text(
        f"#!{sys.executable}\nimport subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    script.chmod(0o755)
    runner = make(python=str(script))
    receipt = runner.launch([job()])
    log = next((runner._site.root / ".tenure" / "workers").glob("*.log"))
    while not log.read_text():
        SYSTEM.sleep(0.02)
    child = psutil.Process(int(log.read_text()))
    pid = receipt.handle["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    runner_checks.until_closed(runner, receipt)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_worker_that_hides_its_name_is_still_known_by_its_start(make: Make) -> None:
    """setproctitle overwrites the environment's memory; the pid and its start time remain."""
    runner = make(linger_s=60.0)
    receipt = runner.launch([job()])
    renamed = Receipt(receipt.jobs, "here", "another-name", "cpu", 0.0, receipt.handle)
    assert "by itself" in runner.release(renamed).reason


def test_a_release_that_was_called_off_is_not_held_against_the_worker(make: Make) -> None:
    runner = make(linger_s=0.05, grace_s=0.1)
    receipt = runner.launch([job()])
    runner.release(receipt)
    SYSTEM.sleep(0.3)
    assert "SIGTERM" in runner.release(receipt).reason, "its grace begins with SIGTERM"


def test_a_folder_that_cannot_be_made_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ".tenure").write_text("a file is in the way")
    runner = OwnProcessRunner("here", {}, Site(tmp_path, SYSTEM))
    with pytest.raises(Rejected):
        runner.launch([job()])


def test_a_reused_pid_is_nobody(make: Make) -> None:
    runner = make()
    stranger = Receipt(("j",), "here", "a-name-nobody-bears", "cpu", 0.0, {"pid": os.getpid()})
    assert "gone" in runner.release(stranger).reason


def test_workers_see_neither_the_deploy_key_nor_the_dispatchers_variables(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setenv("TENURE_DEPLOY_KEY", "secret")
    monkeypatch.setenv("TENURE_CONFIG", "x")
    runner = make()
    runner.launch([job()])
    log = next((runner._site.root / ".tenure" / "workers").glob("*.log"))
    while not log.read_text():
        SYSTEM.sleep(0.02)
    assert log.read_text().split() == [
        "TENURE_CODE", "TENURE_DISK_BYTES", "TENURE_JOB", "TENURE_LAUNCH", "TENURE_NAME",
        "TENURE_RUNNER", "TENURE_STORE", "-m", "tenure_worker",
    ]  # fmt: skip


def test_bad_configuration_is_one_sentence() -> None:
    assert OwnProcessRunner.capacity({}) == Capacity(1, 2, 60.0)
    with pytest.raises(ValueError, match="own_process: slots: input should be greater"):
        OwnProcessRunner.capacity({"slots": 0})
    with pytest.raises(ValueError, match="own_process: slot: extra inputs are not permitted"):
        OwnProcessRunner.capacity({"slot": 1})
    with pytest.raises(ValueError, match="cpus, network: without sandbox = true this would do not"):
        OwnProcessRunner.capacity({"network": "none", "cpus": 1})
    with pytest.raises(ValueError, match="network: input should be 'none' or 'host'"):
        OwnProcessRunner.capacity({"sandbox": True, "network": "some"})


def test_a_python_that_is_not_there_is_rejected(make: Make) -> None:
    with pytest.raises(Rejected, match="No such file"):
        make(python="/nowhere/python").launch([job()])


# ------------------------------------------------------------------------------- its own disk


def folder_of(runner: OwnProcessRunner, receipt: Receipt) -> Path:
    return runner._site.root / ".tenure" / "workers" / f"{receipt.name}.tmp"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this machine has for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


WRITES = """
import os, pathlib, tempfile, time
folder = pathlib.Path(tempfile.mkdtemp(prefix="tenure-"))
(folder / "snapshot").write_bytes(b"x" * 10000)
(folder / "closed").mkdir()
(folder / "closed" / "file").touch()
(folder / "closed").chmod(0)
os.symlink(os.environ["OUTSIDE"], folder / "link")
print(folder, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("place", ["here", "too long a path", "the user's"])
def test_what_a_killed_worker_left_on_the_disk_goes_with_its_bill(
    make: Make, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    script = tmp_path / "writes"
    script.write_text(f"#!{sys.executable}\n{WRITES}")
    script.chmod(0o755)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    monkeypatch.setenv("OUTSIDE", str(tmp_path / "outside"))
    monkeypatch.setattr(own_process, "_LONGEST_TMPDIR", 0 if place == "too long a path" else 999)
    if place == "the user's":
        monkeypatch.setenv("TMPDIR", str(scratch))
    runner = make(python=str(script))
    receipt = runner.launch([job()])
    log = runner.output(receipt)
    assert log
    while not log.read_text().endswith("\n"):
        SYSTEM.sleep(0.02)
    written = Path(log.read_text().strip())
    assert (written / "snapshot").exists()
    folder = folder_of(runner, receipt)
    assert written.is_relative_to(folder.resolve())
    assert written.is_relative_to(scratch) is (place != "here")
    os.kill(int(str(receipt.handle["pid"])), signal.SIGKILL)
    runner_checks.until_closed(runner, receipt)
    assert not os.path.lexists(folder) and not written.parent.exists()
    assert (tmp_path / "outside" / "kept").exists() and not list(scratch.iterdir())


def test_a_temporary_folder_that_cannot_be_made_is_rejected(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(Rejected, match="cannot make a temporary folder for the worker"):
        make().launch([job()])


def test_a_python_that_does_not_start_leaves_no_folder(make: Make, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="cannot start"):
        make(python=str(tmp_path)).launch([job()])
    assert not list((tmp_path / ".tenure" / "workers").glob("*.tmp"))


@pytest.mark.parametrize("text", ["64MB", "0", "-1", "\u0663"])
def test_a_cap_that_is_no_number_of_bytes_is_rejected(
    make: Make, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("TENURE_LOG_BYTES", text)
    with pytest.raises(Rejected, match=r"\$TENURE_LOG_BYTES is '.*'; it must be a number of bytes"):
        make().launch([job()])
