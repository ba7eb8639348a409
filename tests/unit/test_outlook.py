"""What a person is told who only looks: nobody runs yet, a disk is full, a process crashed, a job is over."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from assets.standing import count
from runners.own_process import OwnProcessRunner
from tenure.cli import dispatch, group, outlook
from tenure.dispatch.contract import Site
from tenure.dispatch.loop import Dispatcher, Rung
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Cancel
from tenure_protocol.records import Asked, Observations, Witness, load
from tenure_protocol.store import directory
from tenure_protocol.store.api import Found
from tenure_protocol.store.directory import DirectoryStore
from tests.tenure_command import complaint, tenure
from tests.unit.test_cli import CLAIM, CODE_ERROR, FINISH, RESERVE, Shop, spec


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A store in an empty folder, which is the one that commands run in."""
    monkeypatch.chdir(tmp_path)
    for name in ("TENURE_CONFIG", "TENURE_STORE"):
        monkeypatch.delenv(name, raising=False)
    yield Shop(DirectoryStore(tmp_path / ".tenure" / "store"))


def reasons() -> list[str]:
    return [row["reason"] for row in json.loads(tenure("status", "--json").out)["jobs"]]


# --------------------------------------------------------------------------- nobody runs


def test_a_look_tells_what_would_be_launched_and_that_nobody_does_it(shop: Shop) -> None:
    jobs = shop.enlist(*(spec(seed) for seed in range(4)))
    said = reasons()
    for reason in said[:2]:
        assert reason.startswith("a dispatcher would launch it next on rung local: nobody has run")
    for reason in said[2:]:
        assert reason == "nobody has run it yet; all 2 slots of rung local go to jobs before it"
    hint = "2 jobs could be launched now, and no dispatcher has launched anything yet"
    ended = tenure("status")
    assert hint in ended.err and "`tenure dispatch` or `tenure run PLAN`" in ended.err
    assert hint in tenure("why", jobs[0]).out and hint not in tenure("why", jobs[3]).out


def test_a_look_tells_which_slots_are_taken(shop: Shop) -> None:
    shop.enlist(*(spec(seed) for seed in range(3)))
    shop.apply(spec(0), RESERVE, CLAIM)
    shop.launched(spec(0))
    assert reasons()[2].endswith(
        "1 of 2 slots of rung local are taken, and the other 1 go to jobs before it"
    )
    said = tenure("status").err
    assert "1 job could be launched now, and the last open launch is" in said
    assert "if no dispatcher runs" in said
    shop.apply(spec(1), RESERVE, CLAIM)
    shop.launched(spec(1))
    assert reasons()[2].endswith("all 2 slots of rung local are taken")
    assert tenure("status").err == ""


def test_a_full_disk_is_told_by_every_look(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = shop.enlist(spec())
    room = os.statvfs(".")
    monkeypatch.setattr(outlook.os, "statvfs", lambda path: room)
    assert "No space left" not in tenure("status").err
    full = os.statvfs_result([0 if n in (3, 4) else number for n, number in enumerate(room)])
    monkeypatch.setattr(outlook.os, "statvfs", lambda path: full)
    assert "is full (No space left on device): nothing is launched" in tenure("status").err
    assert "No space left on device" in tenure("why", job).out


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, no byte finds room in a directory store, as on a full disk."""

    def write(path: Path, body: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(directory, "_write_through", write)


def test_a_launch_that_could_not_be_written_is_no_launch(
    shop: Shop, fill: Callable[[], None]
) -> None:
    shop.enlist(spec())
    assert tenure("status").code == 0
    fill()
    ended = tenure("dispatch", "--once")
    assert "not launched on local: " in ended.out and "No space left on device" in ended.out
    assert "launch on local" not in ended.out


@pytest.mark.parametrize("args", [("status",), ("dispatch", "--once"), ("store", "check")])
def test_the_first_use_of_a_full_store_is_one_sentence(
    shop: Shop, fill: Callable[[], None], args: tuple[str, ...]
) -> None:
    fill()
    ended = complaint(*args)
    assert ended.code == 3 and "No space left on device" in ended.err
    assert "win" not in ended.err and "Unknown(" not in ended.err and len(ended.err) < 300


# --------------------------------------------------------------------------- how jobs ended


def test_a_job_that_ended_otherwise_is_no_finished_one(shop: Shop) -> None:
    jobs = shop.enlist(*(spec(seed) for seed in range(4)))
    shop.apply(spec(0), RESERVE, CLAIM, FINISH)
    shop.apply(spec(1), RESERVE, CLAIM, CODE_ERROR)
    shop.apply(spec(2), Cancel("somebody", "of no use"))
    dispatcher = Dispatcher(shop.store, [], SYSTEM)
    dispatcher.look()
    assert count(dispatcher, jobs).words() == "1 of 4 jobs finished, 2 ended otherwise"
    rows = json.loads(tenure("status", "--json").out)["jobs"]
    assert [row["exit_code"] for row in rows] == [0, 1, None, None]


@pytest.mark.parametrize("how", ["code", "cancelled", "stopped"])
def test_until_done_answers_no_for_a_job_without_a_result(shop: Shop, how: str) -> None:
    job = spec(1)
    shop.enlist(spec(0), job)
    shop.apply(spec(0), RESERVE, CLAIM, FINISH)
    if how == "stopped":
        shop.put(f"witness/first/{job.id}.json", b"{")
    else:
        events = [RESERVE, CLAIM, CODE_ERROR] if how == "code" else [Cancel("x", "no")]
        shop.apply(job, *events)  # type: ignore[arg-type]
    ended = tenure("dispatch", "--until-done", "--for-s", "9")
    assert ended.code == 1 and job.id in ended.err and "`tenure retry JOB`" in ended.err
    assert "1 of 2 jobs" in ended.err and spec(0).id not in ended.err
    assert tenure("retry", job.id).code == 0
    shop.apply(spec(1, run=1), RESERVE, CLAIM, FINISH)
    assert tenure("dispatch", "--until-done", "--for-s", "9").code == 0, "its retry has a result"


def _seen_to_finish(shop: Shop, monkeypatch: pytest.MonkeyPatch, end: BaseException | None) -> None:
    """A job that a dispatcher finds running finishes in its first pause; ``end`` falls into the next one."""
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM)
    shop.launched(spec())
    pauses = iter([lambda: shop.apply(spec(), FINISH), lambda: _raise(end)])

    def pause(clock: object, seconds: float) -> None:
        if seconds == dispatch._EVERY_S:
            next(pauses, lambda: None)()

    monkeypatch.setattr(type(SYSTEM), "sleep", pause)


def _raise(end: BaseException | None) -> None:
    if end is not None:
        raise end


def _ends_kept(shop: Shop) -> list[str]:
    found = [shop.store.read(row.key) for row in shop.store.list(keys.OBSERVATIONS)]
    rows = [load(Observations, each.body, "").rows for each in found if isinstance(each, Found)]
    return [row.end for row in itertools.chain(*rows)]


def test_who_dispatches_until_done_keeps_what_he_saw(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _seen_to_finish(shop, monkeypatch, None)
    assert tenure("dispatch", "--until-done").code == 0
    assert _ends_kept(shop) == ["finished"]


def test_ctrl_c_keeps_what_a_dispatcher_saw(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    _seen_to_finish(shop, monkeypatch, KeyboardInterrupt())
    with suppress(KeyboardInterrupt):
        tenure("dispatch")
    assert _ends_kept(shop) == ["finished"]


# --------------------------------------------------------------------------- enlisting again


def test_enlisting_again_tells_what_became_of_the_jobs(shop: Shop) -> None:
    assert tenure("init").code == 0
    said = tenure("enlist", "plans/first.yaml").out
    assert "5 jobs of training are enlisted: 5 new; `tenure dispatch` runs what is open" in said
    jobs = json.loads(tenure("enlist", "plans/first.yaml", "--json").out)["jobs"]
    assert tenure("cancel", jobs[0], "--reason", "the code changed").code == 0
    said = tenure("enlist", "plans/first.yaml").out
    assert "are enlisted: 4 open, 1 over without a result; `tenure dispatch`" in said
    assert f"`tenure retry {jobs[0]}` runs that job again" in said and "the code changed" in said
    assert tenure("retry", jobs[0]).code == 0
    assert ": 5 open; " in tenure("enlist", "plans/first.yaml").out
    for job in jobs[1:]:
        tenure("cancel", job)
    found = json.loads(tenure("enlist", "plans/first.yaml", "--json").out)
    assert (found["new"], len(found["open"]), found["over"]) == ([], 1, jobs[1:])


# --------------------------------------------------------------------------- crashes


@pytest.mark.parametrize(
    ("ends", "words"),
    [("sys.exit(5)", "ended with exit code 5"), ("os.kill(os.getpid(), 11)", "ended by SIGSEGV")],
)
def test_a_crash_before_the_claim_is_told_everywhere(
    shop: Shop, tmp_path: Path, ends: str, words: str
) -> None:
    """Also by a process that did not start it, and by the dispatcher that gives the job up."""
    (job,) = shop.enlist(spec())
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport os, sys\nprint('no such module')\n{ends}\n")
    python.chmod(0o755)
    (tmp_path / "tenure.toml").write_text(
        f'[runners.here]\nkind = "own_process"\npython = "{python}"\nclaim_window_s = 600\n'
    )
    config = {"python": str(python), "claim_window_s": 600}
    runner = OwnProcessRunner("here", config, Site(tmp_path, SYSTEM))
    rung = Rung("local", "here", runner, runner.capacity(config))
    dispatcher = Dispatcher(shop.store, [rung], SYSTEM)
    until_s = SYSTEM.monotonic_s() + 240
    while words not in dispatcher.tick().reason(job):
        assert SYSTEM.monotonic_s() < until_s
        SYSTEM.sleep(0.05)
    (output,) = (tmp_path / ".tenure" / "workers").glob("*.log")
    where = f"what it wrote is in .tenure/workers/{output.name}"
    for said in (reasons()[0], tenure("why", job).out, dispatcher.look().reason(job)):
        assert words in said and where in said
    log = tenure("log", job)
    assert log.out.startswith("no such module\n") and words in log.out and output.name in log.err
    dispatcher.world.jobs[job].unclaimed = 6
    shop.put(f"witness/first/{job}.json", replaced_window(shop.apply(spec())).encode())
    ended = dispatcher.tick().reason(job)
    assert "launches in a row never claimed it; last: its process " + words in ended


def replaced_window(w: Witness) -> Witness:
    """As it would stand once its claim window is over."""
    raw = json.loads(w.encode())
    raw["launch"]["window_s"] = 0.0
    return Witness.decode(json.dumps(raw).encode(), "witness")


# --------------------------------------------------------------------------- sentences


def test_every_line_of_help_is_a_sentence() -> None:
    for target in group.CORE.values():
        assert not group.summary(target).startswith("("), target


def test_the_reason_of_a_pause_is_kept_for_a_live_job(shop: Shop) -> None:
    shop.enlist(spec(0), spec(1))
    for job in (spec(0), spec(1)):
        shop.apply(job, RESERVE, CLAIM)
    assert tenure("pause", spec(0).id, "--reason", "lunch").code == 0
    asked = shop.apply(spec(0)).asked
    assert isinstance(asked, Asked) and asked.by.startswith("operator")
    assert asked.by.endswith("(lunch)")
    assert tenure("pause", spec(1).id).code == 0
    asked = shop.apply(spec(1)).asked
    assert isinstance(asked, Asked) and "(" not in asked.by


def test_what_cannot_be_done_is_a_sentence(shop: Shop, tmp_path: Path) -> None:
    shop.enlist(spec(0), spec(1))
    shop.apply(spec(0), RESERVE, CLAIM)
    shop.apply(spec(1), RESERVE, CLAIM, FINISH)
    held = complaint("resume", spec(0).id)
    assert "it is held, and only a job that is released or revoked can be resumed" in held.err
    for order in ("pause", "revoke", "cancel", "resume"):
        over = complaint(order, spec(1).id)
        assert "it is finished; it is over, so nothing about it can be changed" in over.err
        assert f"no {order}" not in over.err
    (tmp_path / "a-file").write_text("")
    said = complaint("store", "check", f"file:{tmp_path / 'a-file'}")
    assert said.code == 2 and "a file stands in its way" in said.err
    assert "permission" not in said.err


@pytest.mark.parametrize("args", [("status",), ("status", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_one_sentence(shop: Shop, args: tuple[str, ...]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    script = "import sys; from tenure.__main__ import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, *args],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "tenure: standard output cannot be written: No space left on device\n"


def test_a_reader_that_went_away_is_no_trouble(shop: Shop) -> None:
    shop.enlist(spec())
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", "from tenure.__main__ import main; main()", "status"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert "Traceback" not in done.stderr and "cannot be written" not in done.stderr
