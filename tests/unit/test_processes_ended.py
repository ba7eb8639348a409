"""The tests' own way to end what is left: a process that has just ended is no trouble."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.processes import end


def test_one_that_ended_meanwhile_is_no_trouble_and_the_others_end() -> None:
    made = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in "ab"
    ]
    listed = [psutil.Process(each.pid) for each in made]
    made[0].kill()
    made[0].wait()
    end(listed)
    assert not any(each.is_running() for each in listed)
