"""A real `tenure run` that is sent real signals in mid-training, in the thread of Dagster's run too."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.chain_run import run_chain
from pipelines.interrupts import Interrupted
from runners.own_process import live_processes
from tenure_protocol.clock import SYSTEM
from tests.e2e.test_dagster import PLAN, Place
from tests.e2e.test_init import COMMAND
from tests.processes import end
from tests.until import until

HELD = PLAN.replace("{level: [0.5]}", "{level: [0.5], until: [/nonexistent]}")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A plan whose trainings never end; its workers have ended after the test."""
    made = Place.make(tmp_path / "held", HELD)
    yield made
    end(live_processes("here", made.settings.store_url))


def started(place: Place) -> subprocess.Popen[str]:
    """`tenure run` once its trainings are enlisted and waited for."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TENURE_")}
    process = subprocess.Popen(
        [*COMMAND, "run", "plan.yaml"], cwd=place.folder, env=environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("training: 0 of 3"):
            return process
    process.wait()
    raise AssertionError(f"it ended with {process.returncode} before any training")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_a_sentence_and_its_code(
    place: Place, number: signal.Signals, code: int
) -> None:
    process = started(place)
    try:
        until(lambda: live_processes("here", place.settings.store_url))
        process.send_signal(number)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, said
    assert "Interrupted. Workers that run go on to their ends" in said
    assert "Traceback" not in said and "ignored in" not in said and "Error" not in said
    assert live_processes("here", place.settings.store_url)  # they do go on


def test_a_signal_within_a_callback_ends_a_run_in_dagster(place: Place) -> None:
    """A callback swallows what a handler raises in it, Dagster's handlers too."""
    reports: list[str] = []

    def report(stage: str, *_: object) -> None:
        if not reports:
            held = [type("Dropped", (), {})()]
            reference = weakref.ref(held[0], lambda _: interrupt())
            held.clear()
            assert reference() is None
        reports.append(stage)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        SYSTEM.sleep(0.1)

    with pytest.raises(Interrupted):
        run_chain(place.settings, place.plan, report)
    assert reports == ["training"]


WITHOUT = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            return None
        return super().find_spec(name, path, target)
sys.meta_path = [Without if finder is PathFinder else finder for finder in sys.meta_path]
from tenure.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("args", "missing"),
    [
        (["run", "plan.yaml"], "dagster"),
        (["demo"], "dagster"),
        (["up"], "dagster"),
        (["up"], "dagster_webserver"),
    ],
)
def test_without_its_packages_a_command_names_the_extra(
    tmp_path: Path, args: list[str], missing: str
) -> None:
    place = Place.make(tmp_path / "bare")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("MISSING", repr({missing})), *args],
        cwd=place.folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == "", done
    assert re.fullmatch(
        rf"tenure: `tenure {args[0]}` needs the extra dagster \({missing} .*'\.\[dagster\]'\n",
        done.stderr,
    )


AT_IMPORT = """
import os, signal, sys
class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == NAME:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
from tenure.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tenure.cli", -signal.SIGINT),
        ("typer.main", -signal.SIGINT),
        ("tenure.cli.plain", -signal.SIGINT),
        ("tenure.cli.status", 130),
        ("tenure.dispatch.loop", 130),
    ],
)
def test_an_interrupt_while_a_command_is_imported_prints_no_traceback(
    tmp_path: Path, name: str, code: int
) -> None:
    place = Place.make(tmp_path / "early")
    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT.replace("NAME", repr(name)), "status"],
        cwd=place.folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_an_interrupt_once_a_command_is_over_prints_no_traceback(tmp_path: Path) -> None:
    """As a second Ctrl-C does, while connections are closed at the exit."""
    place = Place.make(tmp_path / "late")
    late = "import atexit\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\nmain()\n"
    code = AT_IMPORT.replace("NAME", "'nothing'").replace("main()\n", late)
    done = subprocess.run(
        [sys.executable, "-c", code, "status"],
        cwd=place.folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_where_interrupts_are_ignored_the_command_ignores_them_too(tmp_path: Path) -> None:
    """As under nohup: neither while it is imported nor later."""
    place = Place.make(tmp_path / "nohup")
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    for name in ("tenure.cli", "tenure.cli.status"):
        done = subprocess.run(
            [sys.executable, "-c", ignoring + AT_IMPORT.replace("NAME", repr(name)), "status"],
            cwd=place.folder, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
