"""The own-process family: workers as detached processes on this machine.

Environment and code are ours, so nothing is delivered. A process is named by its environment
(``TENURE_NAME``), which a restarted dispatcher finds again. A pid alone proves nothing, because pids
are reused; with the ticks since boot at which it started it is that process and no other.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenure.dispatch.contract import (
    ALL_KINDS,
    Capacity,
    Closed,
    Job,
    JobKind,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Rejected,
    Settlement,
    Site,
)

_NAME = "TENURE_NAME"
_RUNNER = "TENURE_RUNNER"
_FOLDER = Path(".tenure", "workers")
_NOTE = "tenure: the process "  # begins the line that tells how a worker ended
_LAST_LINE_BYTES = 256
_LOCK_PATIENCE_S, _LOCK_EVERY_S = 5.0, 0.02
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class OwnProcessConfig(BaseModel):
    """Further keys of a ``[runners.<name>]`` section with ``kind = "own_process"``."""

    model_config = ConfigDict(extra="forbid")

    slots: int = Field(2, ge=1, le=4096)  # workers at once
    cards: int = Field(1, ge=1, le=16)  # that one job may ask for, each with a process of its own
    python: str = sys.executable
    threads: int | None = Field(None, ge=1)  # per worker; None: this machine's cores / slots
    claim_window_s: float = Field(60.0, gt=0)  # a local process starts in seconds
    linger_s: float = Field(3.0, ge=0)  # for a worker that ends by itself, before SIGTERM
    grace_s: float = Field(30.0, ge=0)  # between SIGTERM and SIGKILL


class OwnProcessRunner:
    """Starts ``python -m tenure_worker`` in a session of its own."""

    JOB_KINDS: ClassVar[frozenset[JobKind]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self._name = name
        self._config = _checked(config)
        self._site = site
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._exit_codes: dict[int, int] = {}  # of children that ended, by pid
        self._outputs: dict[int, Path] = {}  # of children, by pid
        self._asked_s: dict[str, float] = {}  # when each release was first asked for
        self._terminated_s: dict[str, float] = {}  # when SIGTERM was sent

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        """One job per launch, ``slots`` launches at once."""
        checked = _checked(config)
        return Capacity(1, checked.slots, checked.claim_window_s, checked.cards)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        """Start one worker, or adopt the one that already bears the name."""
        (job,) = jobs
        at_s = self._site.clock.wall_s()
        folder = self._folder()
        with self._one_at_a_time(folder):
            leaders = [process for process in _bearers(job.name) if _leads(process)]
            if not leaders:
                self._take_slot(job)
            found = leaders[0] if leaders else self._spawn(job)
        handle = {"pid": found.pid, "started": _started(found.pid)}
        return Receipt((job.job_id,), self._name, job.name, "cpu", at_s, handle)

    def release(self, receipt: Receipt) -> Settlement:
        """Closed when the process is gone; SIGTERM after ``linger_s``, SIGKILL ``grace_s`` later."""
        self._reap()
        process = _worker(receipt)
        if process is None:
            # What a killed worker started, such as its data loaders, bears its name as well.
            if left := _bearers(receipt.name):
                for orphan in left:
                    _signal(orphan, signal.SIGKILL)
                return Pending(f"sent SIGKILL to {len(left)} processes that the worker left behind")
            self._asked_s.pop(receipt.name, None)
            self._terminated_s.pop(receipt.name, None)
            end = self._end(receipt)
            return Closed(f"the process is gone; it {end}" if end else "the process is gone")
        now_s = self._site.clock.monotonic_s()
        if now_s - self._asked_s.setdefault(receipt.name, now_s) < self._config.linger_s:
            return Pending(f"process {process.pid} is ending by itself")
        if receipt.name not in self._terminated_s:
            self._terminated_s[receipt.name] = now_s
            _signal(process, signal.SIGTERM)
        elif now_s - self._terminated_s[receipt.name] >= self._config.grace_s:
            _signal(process, signal.SIGKILL)
            return Pending(f"sent SIGKILL to process {process.pid}")
        return Pending(f"sent SIGTERM to process {process.pid}, which has not ended yet")

    def exit_code(self, receipt: Receipt) -> int | None:
        """Exit code of a worker that this process started; ``None`` while it runs or if unknown."""
        self._reap()
        pid = receipt.handle.get("pid")
        return self._exit_codes.get(pid) if isinstance(pid, int) else None

    def ended(self, receipt: Receipt) -> str | None:
        """How the process of a launch ended and where its output is; ``None`` while it runs.

        Without its output on this machine nothing is said: it may run on another one.
        """
        self._reap()
        output = self.output(receipt)
        if output is None or _worker(receipt) is not None:
            return None
        end = self._end(receipt) or "is gone"
        return f"its process {end}; what it wrote is in {output.relative_to(self._site.root)}"

    def output(self, receipt: Receipt) -> Path | None:
        """The file on this machine that holds what the process wrote, if there is one."""
        path = self._log(receipt.name)
        return path if path.is_file() else None

    def _log(self, name: str) -> Path:
        return self._site.root / _FOLDER / f"{name}.log"

    def _end(self, receipt: Receipt) -> str | None:
        """The end that whoever started the process has noted in its output, unless all was well."""
        output = self.output(receipt)
        try:
            last = _last_line(output) if output else ""
        except OSError:
            return None
        return last.removeprefix(_NOTE) if last.startswith(_NOTE) else None

    def _folder(self) -> Path:
        folder = self._site.root / _FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Rejected(f"cannot make {folder}: {error.strerror}") from error
        return folder

    @contextmanager
    def _one_at_a_time(self, folder: Path) -> Iterator[None]:
        """One launch at a time, whichever dispatcher's; one that is frozen in its own blocks nobody.

        Raises NoSlots.
        """
        clock = self._site.clock
        until_s = clock.monotonic_s() + _LOCK_PATIENCE_S
        with (folder / f"{self._name}.lock").open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if clock.monotonic_s() >= until_s:
                        raise NoSlots(
                            "another dispatcher has been in a launch here for "
                            f"{_LOCK_PATIENCE_S:g} s"
                        ) from None
                clock.sleep(_LOCK_EVERY_S)
            yield

    def _take_slot(self, job: Job) -> None:
        """Dispatchers learn of each other's launches late; this machine knows. Raises NoSlots."""
        running = sum(_leads(process) for process in live_processes(self._name, job.store))
        if running >= self._config.slots:
            raise NoSlots(f"{running} workers of runner {self._name} run here already")

    def _spawn(self, job: Job) -> psutil.Process:
        output = self._log(job.name)
        try:
            with output.open("ab") as log:
                child = subprocess.Popen(
                    [self._config.python, "-m", "tenure_worker"],
                    cwd=self._site.root,
                    env=self._environ(job),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise Rejected(f"cannot start {self._config.python}: {error}") from error
        self._children[child.pid] = child
        self._outputs[child.pid] = output
        try:
            return psutil.Process(child.pid)
        except psutil.NoSuchProcess as error:
            raise ProtocolError("the worker ended before it could be looked at") from error

    def _environ(self, job: Job) -> dict[str, str]:
        threads = self._config.threads or max(1, (os.cpu_count() or 1) // self._config.slots)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TENURE_") and name not in self._site.hidden
        }
        return {
            **kept,
            **{name: str(threads) for name in _THREADS},
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "TENURE_STORE": job.store,
            "TENURE_JOB": job.job_id,
            "TENURE_LAUNCH": str(job.launch),
            "TENURE_CODE": str(self._site.root),
            _NAME: job.name,
            _RUNNER: self._name,
        }

    def _reap(self) -> None:
        """Take the exit status of children that ended, so that no zombie stays.

        Nobody but their parent is told it, so it is noted in their output for everybody else.
        """
        for pid, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[pid]
                self._exit_codes[pid] = code
                output = self._outputs.pop(pid)
                if code and output.is_file():
                    _note_end(output, code)


def _checked(config: Mapping[str, object]) -> OwnProcessConfig:
    try:
        return OwnProcessConfig.model_validate(dict(config))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()
        )
        raise ValueError(f"own_process: {problems}") from error


def _note_end(output: Path, code: int) -> None:
    """Add how a process ended to what it wrote."""
    try:
        words = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    except ValueError:  # a signal without a name, such as a real-time one
        words = f"by signal {-code}"
    try:
        with output.open("ab") as file:
            file.write(f"\n{_NOTE}ended {words}\n".encode())
    except OSError:
        return  # a full disk: the exit status is a help and no more


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_LINE_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-1] if lines else ""


def live_processes(runner: str, store_url: str) -> list[psutil.Process]:
    """This machine's live workers of a runner over a store, and what they started."""
    return _with_environ({_RUNNER: runner, "TENURE_STORE": store_url})


def _bearers(name: str) -> list[psutil.Process]:
    """The live processes whose environment bears the name: a worker and what it started."""
    return _with_environ({_NAME: name})


def _with_environ(variables: Mapping[str, str]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if variables.items() <= process.environ().items() and _alive(process):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _leads(process: psutil.Process) -> bool:
    """Whether it is the worker itself, which is started in a session of its own."""
    try:
        return bool(os.getsid(process.pid) == process.pid)
    except ProcessLookupError:
        return False


def _worker(receipt: Receipt) -> psutil.Process | None:
    """The worker of a launch while it lives: by the receipt's pid, or by the name alone."""
    pid, started = receipt.handle.get("pid"), receipt.handle.get("started")
    if not isinstance(pid, int):
        return next((process for process in _bearers(receipt.name) if _leads(process)), None)
    try:
        process = psutil.Process(pid)
        return process if _started(pid) == started and _alive(process) else None
    except psutil.NoSuchProcess:
        return None


def _started(pid: int) -> str | None:
    """When a process started, in a count that no change of the clock moves where there is one."""
    try:
        # Field 22 of proc(5), ticks since boot; the name before it may hold spaces and brackets.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.NoSuchProcess:
        return None


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    """Signal the worker's whole session; it is the leader of one of its own."""
    try:
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except (ProcessLookupError, psutil.NoSuchProcess, PermissionError):
        return
