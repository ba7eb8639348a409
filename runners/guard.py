"""``python -m runners.guard``: the process outside of a sandbox that starts it and stands for it.

It is what the runner knows as the worker: it bears the name, takes the signals, and ends with the
worker's exit code. What a hostile job could turn off inside is counted here: its output, which comes
through a pipe, and its disk. With the guard everything in the sandbox ends, even by SIGKILL.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from runners.sandbox import PIN, Plan
from tenure_protocol.clock import SYSTEM
from tenure_worker import caps, exits

_LOOK_EVERY_S = 0.1
_DRAIN_S = 5.0
_BLOCK = 1 << 16
#: Above its cap the job is given the time in which a worker ends itself, which tells the store why.
_OVER_S = caps.GRACE_S + 60.0
_FAR_OVER = 2
#: Processes and threads: since Linux 5.14 those of the sandbox, before of the user. Root has no limit.
_TASKS = 4096


class Guard:
    """One sandbox, from its start to its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self._inside: int | None = None  # the sandbox's first process, leader of its session
        self._signals: list[int] = []  # not passed on yet
        self._measure_s = 0.0
        self._over_since_s: float | None = None

    def run(self) -> int:
        """Start the sandbox and wait for its end; the worker's exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._signals.append(number))
        self._limit()
        try:
            (name, *words), pinned = _pinned(self._plan.command)
        except OSError as error:
            _say(f"the model of this job is no folder of the store ({error}), so it does not start")
            return exits.REFUSED
        read, write = os.pipe()
        process = self._process = subprocess.Popen(
            [name, "--info-fd", str(write), *words],
            env=self._plan.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write, *pinned),
            start_new_session=True,  # a signal to our group must reach it through us alone
        )
        for descriptor in (write, *pinned):
            os.close(descriptor)
        assert process.stdout is not None
        output = process.stdout
        pump = SYSTEM.spawn(lambda: _pump(output, self._plan.output_bytes), "tenure-output")
        self._inside = _told_pid(read)
        while process.poll() is None:
            self._pass_on()
            self._look_at_disk()
            SYSTEM.sleep(_LOOK_EVERY_S)
        pump.join(_DRAIN_S)
        code = process.returncode
        return code if code >= 0 else 128 - code

    def _limit(self) -> None:
        """Limits of our own, which what we start inherits."""
        if self._plan.cores:
            os.sched_setaffinity(0, self._plan.cores)
        if (most := self._plan.memory_bytes) is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, most_tasks = resource.getrlimit(resource.RLIMIT_NPROC)
        if not 0 <= most_tasks <= _TASKS:
            resource.setrlimit(resource.RLIMIT_NPROC, (_TASKS, _TASKS))

    def _pass_on(self) -> None:
        """Give what was asked of us to the worker and what it started."""
        while self._signals and self._inside is not None:
            try:
                os.killpg(self._inside, self._signals[0])
            except ProcessLookupError:
                return  # not yet the leader of a group, or over
            self._signals.pop(0)

    def _look_at_disk(self) -> None:
        now_s = SYSTEM.monotonic_s()
        if now_s < self._measure_s:
            return
        used, most = caps.disk_use(self._plan.scratch), self._plan.disk_bytes
        done_s = SYSTEM.monotonic_s()
        self._measure_s = done_s + max(caps.MEASURE_EVERY_S, 10 * (done_s - now_s))
        if used <= most:
            self._over_since_s = None
            return
        if self._over_since_s is None:
            self._over_since_s = done_s
        if used > _FAR_OVER * most or done_s - self._over_since_s >= _OVER_S:
            self._end(caps.overspent(used, most))

    def _end(self, why: str) -> None:
        """Kill everything inside, and end as a job that failed by its own code."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        _say(why)
        os._exit(exits.CODE_ERROR)


def _pinned(command: Sequence[str]) -> tuple[list[str], list[int]]:
    """The command with descriptors for the paths that no link may lead away from. Raises ``OSError``."""
    words, opened = list(command), list[int]()
    for n, word in enumerate(words):
        if word.startswith(PIN) and words[n - 1] == "--ro-bind-fd":
            opened.append(_folder(word.removeprefix(PIN)))
            words[n] = str(opened[-1])
    return words, opened


def _folder(path: str) -> int:
    """Open a folder, in whose absolute path is no link. Raises ``OSError``."""
    how = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open("/", how)
    for name in path.strip("/").split("/"):
        try:
            inside = os.open(name, how, dir_fd=here)
        finally:
            os.close(here)
        here = inside
    return here


def _told_pid(descriptor: int) -> int | None:
    """What bubblewrap tells on ``--info-fd``: ``None`` if it ended before."""
    with os.fdopen(descriptor, "rb") as told:
        try:
            return int(json.loads(told.read())["child-pid"])
        except (ValueError, KeyError, TypeError):
            return None


def _pump(pipe: IO[bytes], most: int) -> None:
    """Copy at most ``most`` bytes of output, say that it is cut, and read on for nobody."""
    left = most  # -1: it is cut
    while block := os.read(pipe.fileno(), _BLOCK):
        if left >= len(block):
            _write(block)
            left -= len(block)
        elif left >= 0:
            _write(block[:left])
            left = -1
            words = f"the output is cut at {caps.size(most)}; what is printed from here on is not"
            _say(f"{words} kept")


def _say(words: str) -> None:
    _write(f"\ntenure: {words}\n".encode())


def _write(body: bytes) -> None:
    with suppress(OSError):  # a full disk
        while body:
            body = body[os.write(1, body) :]


def main() -> int:
    """Read the plan from standard input and do it."""
    return Guard(Plan.decode(sys.stdin.buffer.read())).run()


if __name__ == "__main__":
    sys.exit(main())
