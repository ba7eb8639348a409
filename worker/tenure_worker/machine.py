"""``python -m tenure_worker.machine``: the jobs of one rented machine, from their links to its end.

``$TENURE_START`` is a packet of stage 0 (``runners.stage_zero``): links to one *envelope* per job, which
holds all that a worker needs, and what was promised of the machine. Each job is a process of its own, in
a session, a folder and with a share of the cards of its own; the end of one does not end the others, but
if one cannot be started none may run.

What is in an envelope lies on this machine's disk, readable for its user alone, so that a container that
is restarted on the same disk goes on after the links have expired. A job's environment has neither the
packet nor the platform's own keys; code that runs as the same user can still look for them, since no
container has a wall inside it.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import IO

from tenure_protocol.clock import SYSTEM
from tenure_protocol.fingerprint import THREAD_VARIABLES
from tenure_worker import exits, links, wall

GRACE_S = 25.0  # between SIGTERM and SIGKILL: a last milestone and its pointer
LINK_S = 120.0  # for one link to open
INSTALL_S = 3600.0  # for pip
MOST_OUTPUT_BYTES = 64 << 20  # of one job
_LOOK_EVERY_S = 0.1
_LINE_BYTES = 1 << 16
_DRAIN_S = 5.0
_MARK = "TENURE_CHILD"
_SWEEPS = 5
_NEEDED = ("TENURE_STORE", "TENURE_JOB", "TENURE_LAUNCH")


class CannotStart(Exception):
    """No job of this machine may run; ``code`` is the exit code that says why."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True)
class Packet:
    """What stage 0 was given."""

    links: tuple[str, ...]  # one envelope per job
    cards: tuple[int, ...]  # of each job
    card: str  # the promised one: official name, "cpu", or "" for no promise
    lock: tuple[str, str] | None  # link, SHA-256
    end: Mapping[str, object] | None
    hide: frozenset[str]
    session_s: float | None  # how long the machine lives
    most_output_bytes: int

    @classmethod
    def parse(cls, text: str) -> Packet:
        """Read the packet. Raises :class:`CannotStart`."""
        try:
            told = json.loads(base64.b64decode(text, validate=True))
            rows = [row if isinstance(row, dict) else {"url": row} for row in told["envelopes"]]
            end, lock = told.get("end"), told.get("lock")
            return cls(
                tuple(str(row["url"]) for row in rows),
                tuple(int(row.get("cards", 1)) for row in rows),
                str(told.get("card") or ""),
                (str(lock["url"]), str(lock["sha256"])) if lock else None,
                dict(end) if end else None,
                frozenset(map(str, told.get("hide") or ())),
                float(told["session_s"]) if told.get("session_s") else None,
                int(told.get("most_output_bytes") or MOST_OUTPUT_BYTES),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            words = "$TENURE_START is not set or holds no packet"
            raise CannotStart(exits.USAGE, words) from None


class Child:
    """A process in a session of its own, whose output goes to ours up to a cap.

    What it starts may take a session of its own in turn, as the ranks of torchrun do; all of it bears the
    child's mark in its environment.
    """

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        label: str,
        most_bytes: int,
    ) -> None:
        self.code: int | None = None
        self._mark = f"{_MARK}={SYSTEM.nonce()}".encode()
        self._process = subprocess.Popen(
            list(argv),
            cwd=folder,
            env={**environ, _MARK: self._mark.decode().partition("=")[2]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pump = SYSTEM.spawn(
            lambda: _pump(self._process.stdout, label, most_bytes),  # type: ignore[arg-type]
            f"tenure-output {label}",
        )

    def over(self) -> bool:
        """Whether it has ended; what it left behind, in whatever session, ends with it."""
        if self.code is None:
            how = os.WEXITED | os.WNOWAIT | os.WNOHANG  # not reaped: its number stays its own
            if os.waitid(os.P_PID, self._process.pid, how) is None:
                return False
            self.kill()
            code = self._process.wait()
            self.code = code if code >= 0 else 128 - code
            self._pump.join(_DRAIN_S)
        return True

    def terminate(self) -> None:
        """SIGTERM to the process alone: its own children serve its last milestone."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to its whole session, and to all that bears its mark."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for _ in range(_SWEEPS):  # who was being started in the first one is there in the next
                if not _kill_marked(self._mark):
                    return


def _kill_marked(mark: bytes) -> bool:
    """SIGKILL to every process with ``mark`` in its environment; whether there was any."""
    found = False
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it is gone, a zombie, or another user's
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
                found = True
    return found


_OUTPUT = threading.Lock()


def _pump(pipe: IO[bytes], label: str, most_bytes: int) -> None:
    """Copy output line by line, at most ``most_bytes`` of it; the rest is read and thrown away."""
    left = most_bytes
    for line in iter(lambda: pipe.readline(_LINE_BYTES), b""):
        if left <= 0:
            continue
        left -= len(line)
        _write(label.encode() + line)
        if left <= 0:
            words = f"the output is cut here, after {most_bytes} bytes; the job goes on"
            _write(f"\n{label}tenure: {words}\n".encode())


def _write(line: bytes) -> None:
    with _OUTPUT, suppress(OSError, ValueError):  # nobody reads any more
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def say(words: str) -> None:
    """A line of this machine's own."""
    _write(f"{words}\n".encode("utf-8", "replace"))


class Machine:
    """The jobs of one packet."""

    def __init__(self, packet: Packet, folder: Path, environ: Mapping[str, str]) -> None:
        self._packet = packet
        self._folder = folder
        secret = packet.hide | _named_in(packet.end)
        self._around = {
            name: value
            for name, value in environ.items()
            if not name.startswith("TENURE_") and name not in secret
        }
        self._visible = environ.get("CUDA_VISIBLE_DEVICES")
        self._children: list[Child] = []
        self._kill_at_s: float | None = None  # set by the first SIGTERM
        session_s = packet.session_s
        self._wall_s = SYSTEM.monotonic_s() + max(session_s - GRACE_S, 0.0) if session_s else inf
        self._refusal: str | None = None  # why the workers are to refuse, and say so in the store

    def run(self) -> int:
        """Start every job and wait for all; the first exit code that is not 0, or 0."""
        _make_private(self._folder)
        envelopes = [self._envelope(n, link) for n, link in enumerate(self._packet.links)]
        self._install()
        shares = self._shares()
        self._goes_on()
        if self._refusal:
            say(f"tenure: {self._refusal}")
        jobs = [self._environ(each, shares[n]) for n, each in enumerate(envelopes)]
        started: list[Child] = []
        try:
            for n, environ in enumerate(jobs):
                started.append(self._start_worker(n, environ))
        except OSError as error:
            self.stop()
            self._wait(started)
            words = f"job {n + 1} of {len(jobs)} could not be started ({error}), so none runs"
            raise CannotStart(exits.REFUSED, words) from error
        self._wait(started)
        return next((child.code for child in started if child.code), 0)

    def stop(self, *_: object) -> None:
        """Pass SIGTERM on; whoever lives ``GRACE_S`` seconds later is killed. A signal handler."""
        if self._kill_at_s is None:
            self._kill_at_s = SYSTEM.monotonic_s() + GRACE_S
        for child in self._children:
            child.terminate()

    # ------------------------------------------------------------------------------- envelopes

    def _envelope(self, n: int, link: str) -> dict[str, str]:
        """The variables of one job, from the disk or by its link."""
        path = self._folder / f"envelope-{n}.json"
        which = f"the envelope of job {n + 1} of {len(self._packet.links)}"
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            body = self._fetched(link, which)
            _write_private(path, body)
        try:
            told = json.loads(body)["variables"]
            variables = {str(name): str(value) for name, value in dict(told).items()}
            for name in _NEEDED:
                variables[name]
        except (ValueError, KeyError, TypeError):
            path.unlink()
            words = f"{which} holds no variables of a worker, so none runs"
            raise CannotStart(exits.PROTOCOL, words) from None
        return variables

    def _fetched(self, link: str, which: str) -> bytes:
        def nap(seconds: float) -> None:
            self._goes_on()
            SYSTEM.sleep(seconds)

        try:
            body = links.fetch(link, LINK_S, SYSTEM.monotonic_s, nap)
        except (links.Closed, links.Silent) as error:
            words = f"the link to {which} {error}, so none runs; launch the job again"
            raise CannotStart(exits.STORE_GONE, words) from None
        self._goes_on()
        return body

    def _goes_on(self) -> None:
        if self._kill_at_s is not None:
            raise CannotStart(exits.RELEASED, "received SIGTERM before any job was started")

    # --------------------------------------------------------------------------- installation

    def _install(self) -> None:
        """Install the lock, and boto3 where it is missing. Raises :class:`CannotStart`."""
        if self._packet.lock:
            link, sha256 = self._packet.lock
            body = self._fetched(link, "the lock of the environment")
            path = self._folder / "lock.txt"
            _write_private(path, body)
            if hashlib.sha256(body).hexdigest() != sha256:
                self._refusal = "the lock of the environment has another digest than was promised"
            elif code := self._pip("-r", str(path)):
                self._refusal = (
                    f"the lock of the environment could not be installed (pip ended with {code}; "
                    "its words are in the machine's output)"
                )
        importlib.invalidate_caches()
        if importlib.util.find_spec("boto3") is None and (code := self._pip("boto3>=1.36")):
            words = f"boto3, which the store needs, could not be installed (pip ended with {code})"
            raise CannotStart(exits.REFUSED, words)

    def _pip(self, *what: str) -> int:
        """``pip install`` into the machine's own Python, which nobody else uses."""
        say(f"tenure: pip install {' '.join(what)}")
        flags = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
        environ = {"PIP_ROOT_USER_ACTION": "ignore", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        child = Child(
            [sys.executable, "-m", "pip", "install", *flags, *what],
            self._folder,
            {**self._around, **environ},
            "",
            self._packet.most_output_bytes,
        )
        self._children.append(child)
        self._wait([child], INSTALL_S)
        self._goes_on()
        assert child.code is not None
        return child.code

    # ------------------------------------------------------------------------------- workers

    def _shares(self) -> list[str | None]:
        """``CUDA_VISIBLE_DEVICES`` of each job, in order; ``None`` leaves it as it is."""
        if self._packet.card == "cpu":
            return ["" for _ in self._packet.links]  # promised no card: it shall see none
        if not self._packet.card:
            return [None for _ in self._packet.links]
        needed = sum(self._packet.cards)
        every = self._visible.split(",") if self._visible else [str(n) for n in range(needed)]
        if len(every) < needed:
            self._refusal = (
                f"the jobs of this machine need {needed} cards and it shows {len(every)}"
            )
        shares: list[str | None] = []
        for count in self._packet.cards:
            mine, every = every[:count], every[count:]
            shares.append(",".join(mine))
        return shares

    def _environ(self, variables: Mapping[str, str], visible: str | None) -> dict[str, str]:
        """All that a worker sees: what is around it, its envelope, and its share of the machine."""
        wheel = str(Path(__file__).parents[1])
        python_path = [wheel, variables.get("PYTHONPATH", self._around.get("PYTHONPATH", ""))]
        threads = str(max(1, (os.cpu_count() or 1) // len(self._packet.links)))
        found = {
            "PYTHONHASHSEED": "0",
            **(dict.fromkeys(THREAD_VARIABLES, threads) if len(self._packet.links) > 1 else {}),
            **self._around,
            "PYTHONUNBUFFERED": "1",
            **variables,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, python_path))),
            "TENURE_FETCH": "1",
            "TENURE_CARD": self._packet.card,
            "TENURE_HOME": str(self._folder.parents[1]),
        }
        if self._wall_s < inf:
            found[wall.VARIABLE] = f"{self._wall_s:.3f}"  # else they would hear of it by SIGTERM
        if visible is not None:
            found["CUDA_VISIBLE_DEVICES"] = visible
        if self._refusal:
            found["TENURE_REFUSE"] = self._refusal
        return found

    def _start_worker(self, n: int, environ: Mapping[str, str]) -> Child:
        folder = self._folder / f"job-{n}"
        folder.mkdir(exist_ok=True)
        several = len(self._packet.links) > 1
        child = Child(
            [sys.executable, "-P", "-m", "tenure_worker"],
            folder,
            environ,
            f"{environ['TENURE_JOB'][:8]}: " if several else "",
            self._packet.most_output_bytes,
        )
        self._children.append(child)
        if self._kill_at_s is not None:  # the signal came between two starts
            child.terminate()
        return child

    def _wait(self, children: Sequence[Child], within_s: float | None = None) -> None:
        """Until all have ended: of themselves, for SIGTERM, or because a time is over."""
        until_s = None if within_s is None else SYSTEM.monotonic_s() + within_s
        while left := [child for child in children if not child.over()]:
            now_s = SYSTEM.monotonic_s()
            if self._kill_at_s is None and now_s >= self._wall_s:
                say("tenure: the session of this machine is over")
                self.stop()
            limits_s = [at_s for at_s in (until_s, self._kill_at_s) if at_s is not None]
            if limits_s and now_s >= min(limits_s):
                for child in left:
                    child.kill()
            SYSTEM.sleep(_LOOK_EVERY_S)


def _named_in(end: Mapping[str, object] | None) -> frozenset[str]:
    """Variables that the request for the machine's end uses: no job needs them."""
    words = json.dumps(end).split("${")[1:] if end else []
    return frozenset(word.partition("}")[0] for word in words)


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def _write_private(path: Path, body: bytes) -> None:
    """Write a file that only this user may read, whole or not at all."""
    handle, part = tempfile.mkstemp(dir=path.parent)  # 0600
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _home(environ: Mapping[str, str]) -> Path:
    told = environ.get("TENURE_HOME")
    return Path(told) if told else Path(environ.get("HOME") or tempfile.gettempdir()) / ".tenure"


def main() -> int:
    """Run the machine; returns its exit code, of the workers' public table."""
    start = os.environ.get("TENURE_START", "")
    end: Mapping[str, object] | None = None
    try:
        packet = Packet.parse(start)
        end = packet.end
        name = hashlib.sha256(start.encode()).hexdigest()[:16]  # a restart has the same packet
        machine = Machine(packet, _home(os.environ) / "machines" / name, os.environ)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, machine.stop)
        return machine.run()
    except CannotStart as error:
        say(f"tenure: {exits.EXIT_CODES[error.code]}: {error}")
        return error.code
    except OSError as error:
        say(f"tenure: this machine cannot be used: {error}")
        return exits.REFUSED
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if end:
            links.end_machine(end, os.environ, say, SYSTEM.sleep)


if __name__ == "__main__":
    sys.exit(main())
