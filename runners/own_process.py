"""The own-process family: workers as detached processes on this machine.

Environment and code are ours, so nothing is delivered. A process is named by its environment
(``TENURE_NAME``), which a restarted dispatcher finds again. A pid alone proves nothing, because pids
are reused; with the ticks since boot at which it started it is that process and no other.

With ``sandbox = true`` that process is a guard (:mod:`runners.guard`) and the worker runs inside
bubblewrap (:mod:`runners.sandbox`); docs/own-process.md says what this keeps out.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import tenure_worker
from runners import sandbox
from runners.grants import grant
from runners.order import RentedConfig
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
    Unreachable,
)
from tenure_protocol.codec import Corrupt
from tenure_protocol.fingerprint import IMAGE_VARIABLE, LOCK_VARIABLE, THREAD_VARIABLES
from tenure_protocol.store.api import StoreSilent, StoreUnusable
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.open import open_store
from tenure_worker import caps, wall
from tenure_worker.claim import read_spec

_LOG = logging.getLogger("tenure.runners")
_NAME = "TENURE_NAME"
_RUNNER = "TENURE_RUNNER"
_FOLDER = Path(".tenure", "workers")
_NOTE = "tenure: the process "  # begins the line that tells how a worker ended
_LAST_LINE_BYTES = 256
_WRITTEN_BEFORE_S = 60.0  # credentials end by another clock than ours
_LOCK_PATIENCE_S, _LOCK_EVERY_S = 5.0, 0.02
#: A socket's path has 107 bytes at most, and multiprocessing makes sockets in the temporary folder
#: under names of some 33: torch's data loaders send their batches by them.
_LONGEST_TMPDIR = 70
#: Of the project's folder a sandbox does not show these: the store, the deploy key, passwords.
_HIDDEN = (".tenure", ".git", ".env")
_SANDBOX_KEYS = (
    "network", "memory_gb", "cpus", "readable", "hide", "variables", "role", "trust", "sts_endpoint",
    "session_s", "deadline_s",
)  # fmt: skip


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
    disk_gb: float = Field(50.0, gt=0, allow_inf_nan=False)  # of one job's temporary folder
    sandbox: bool = False  # for code one did not write; the keys below are for it alone
    network: Literal["none", "host"] = "none"
    memory_gb: float | None = Field(None, ge=0.25, allow_inf_nan=False)  # of each process of a job
    cpus: int | None = Field(None, ge=1)  # cores of a job, those that fewest others were given
    readable: tuple[Path, ...] = ()  # what it may read besides the project, such as a data folder
    hide: tuple[str, ...] = ()  # what it may not see of the project, besides .tenure, .git and .env
    variables: tuple[str, ...] = ()  # names of environment variables that it gets
    trust: Literal["session", "full"] = "session"  # of an s3:// store, as for rented machines
    role: str = ""
    sts_endpoint: str = ""
    session_s: float = Field(12 * 3600.0, gt=0)  # how long its credentials last
    deadline_s: float = Field(60.0, gt=0)  # of asking for them

    @model_validator(mode="after")
    def _sandbox_only(self) -> OwnProcessConfig:
        if not self.sandbox and (named := sorted(self.model_fields_set & set(_SANDBOX_KEYS))):
            raise ValueError(f"{', '.join(named)}: without sandbox = true this would do nothing")
        return self

    @property
    def disk_bytes(self) -> int:
        """The cap on one job's temporary folder."""
        return max(1, int(self.disk_gb * 1e9))


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
        """One job per launch, ``slots`` launches at once.

        A worker lives as long as it likes, unless it was given credentials that end.
        """
        checked = _checked(config)
        borrows = checked.sandbox and checked.role and checked.trust == "session"
        wall_s = checked.session_s if borrows else None
        return Capacity(1, checked.slots, checked.claim_window_s, checked.cards, wall_s=wall_s)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        """Start one worker, or adopt the one that already bears the name."""
        (job,) = jobs
        at_s = self._site.clock.wall_s()
        folder = self._folder()
        with self._one_at_a_time(folder):
            leaders = _leaders(job.name)
            if not leaders:
                self._take_slot(job)
            found = leaders[0] if leaders else self._spawn(job)
        # the host for people and for the gate of the repetition: one machine or two
        handle = {"pid": found.pid, "started": _started(found.pid), "host": platform.node()}
        return Receipt((job.job_id,), self._name, job.name, "cpu", at_s, handle)

    def release(self, receipt: Receipt) -> Settlement:
        """Closed when the process is gone; SIGTERM after ``linger_s``, SIGKILL ``grace_s`` later."""
        self._reap()
        process = live_worker(receipt)
        if process is None:
            # What a killed worker started, such as its data loaders, bears its name as well.
            if left := _bearers(receipt.name):
                for orphan in left:
                    _signal(orphan, signal.SIGKILL)
                return Pending(f"sent SIGKILL to {len(left)} processes that the worker left behind")
            self._asked_s.pop(receipt.name, None)
            self._terminated_s.pop(receipt.name, None)
            _remove(self._tmp(receipt.name))
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
        if output is None or live_worker(receipt) is not None:
            return None
        end = self._end(receipt) or "is gone"
        return f"its process {end}; what it wrote is in {output.relative_to(self._site.root)}"

    def output(self, receipt: Receipt) -> Path | None:
        """The file on this machine that holds what the process wrote, if there is one."""
        path = self._log(receipt.name)
        return path if path.is_file() else None

    def _log(self, name: str) -> Path:
        return self._site.root / _FOLDER / f"{name}.log"

    def _tmp(self, name: str) -> Path:
        return self._site.root / _FOLDER / f"{name}.tmp"

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
        running = len(set(_names(live_processes(self._name, job.store))))
        if running >= self._config.slots:
            raise NoSlots(f"{running} workers of runner {self._name} run here already")

    def _spawn(self, job: Job) -> psutil.Process:
        output, scratch = self._log(job.name), self._scratch(job.name)
        try:
            command, environ, told = self._how(job, scratch)
            with output.open("ab") as log:
                child = subprocess.Popen(
                    command,
                    cwd=self._site.root,
                    env=environ,
                    stdin=subprocess.DEVNULL if told is None else subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            _remove(self._tmp(job.name))
            raise Rejected(f"cannot start {self._config.python}: {error}") from error
        except BaseException:
            _remove(self._tmp(job.name))
            raise
        self._children[child.pid] = child
        self._outputs[child.pid] = output
        if told is not None:
            assert child.stdin is not None
            with suppress(OSError), child.stdin as stdin:  # it ended at once, and says why
                stdin.write(told)
        try:
            process = psutil.Process(child.pid)
            self._until_named(process, job.name)
            return process
        except psutil.NoSuchProcess as error:
            raise ProtocolError("the worker ended before it could be looked at") from error

    def _until_named(self, process: psutil.Process, name: str) -> None:
        """Wait until everybody can find a new worker by its name.

        Popen returns when the old program's files are closed, and the kernel shows the new one's
        environment a moment later: who looks in between sees no worker, and might start another.
        """
        until_s = self._site.clock.monotonic_s() + _LOCK_PATIENCE_S
        while _alive(process) and self._site.clock.monotonic_s() < until_s:
            with suppress(psutil.AccessDenied, psutil.ZombieProcess):
                if process.environ().get(_NAME) == name:
                    return
            self._site.clock.sleep(_LOCK_EVERY_S / 10)

    def _scratch(self, name: str) -> Path:
        """A temporary folder for one launch, which goes with its bill. Raises Rejected.

        It lies beside the output, or, where that makes too long a path or the user names another
        place in $TMPDIR, there, with a link to it.
        """
        here = self._tmp(name)
        try:
            _remove(here)
            elsewhere = os.environ.get("TMPDIR")
            if not elsewhere and len(os.fsencode(here)) <= _LONGEST_TMPDIR:
                here.mkdir(mode=0o700)
                return here
            made = Path(tempfile.mkdtemp(prefix="tenure-", dir=elsewhere or None))
            here.symlink_to(made)
            return made
        except OSError as error:
            words = f"cannot make a temporary folder for the worker: {error}"
            raise Rejected(words) from error

    def _how(self, job: Job, scratch: Path) -> tuple[list[str], dict[str, str], bytes | None]:
        """The command, its environment, and what it is told on its standard input."""
        if not self._config.sandbox:
            environ = self._environ(job, scratch)
            return [self._config.python, "-m", "tenure_worker"], environ, None
        plan = self._plan(job, scratch)
        packages = [str(Path(package).parents[1]) for package in (__file__, tenure_worker.__file__)]
        found = {
            name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")
        }
        marks = {_NAME: job.name, _RUNNER: self._name, "TENURE_STORE": job.store}
        environ = {**found, "PYTHONPATH": os.pathsep.join(packages), **marks}
        return [sys.executable, "-m", "runners.guard"], environ, plan.encode()

    def _environ(self, job: Job, scratch: Path) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TENURE_") and name not in self._site.hidden
        }
        return {
            **kept, **self._set(job, job.store), "TMPDIR": str(scratch), _RUNNER: self._name
        }  # fmt: skip

    def _set(self, job: Job, store: str, until_s: float = inf) -> dict[str, str]:
        """What every worker is given, however it runs; its credentials end at ``until_s``."""
        shared = max(1, (os.cpu_count() or 1) // self._config.slots)
        threads = self._config.threads or self._config.cpus or shared
        facts = (IMAGE_VARIABLE, LOCK_VARIABLE)  # of a container that the dispatcher runs in too
        names = (*caps.VARIABLES, *facts)
        capped = {name: os.environ[name] for name in names if os.environ.get(name)}
        try:
            caps.Caps.of(capped)
        except ValueError as error:
            raise Rejected(str(error)) from error
        return {
            **{name: str(threads) for name in THREAD_VARIABLES},
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            **capped,
            "TENURE_DISK_BYTES": str(self._config.disk_bytes),
            "TENURE_STORE": store,
            "TENURE_JOB": job.job_id,
            "TENURE_LAUNCH": str(job.launch),
            "TENURE_CODE": str(self._site.root),
            _NAME: job.name,
            **self._wall(job, until_s),
        }

    def _wall(self, job: Job, until_s: float) -> dict[str, str]:
        """When the worker must have given its tenure back, where that is known.

        ``until_s`` is Unix time by another clock, after which nothing can be written.
        """
        clock = self._site.clock
        left_s = until_s - _WRITTEN_BEFORE_S - clock.wall_s()
        wall_s = min(left_s, inf if job.wall_s is None else job.wall_s)
        return {wall.VARIABLE: f"{clock.monotonic_s() + wall_s:.3f}"} if wall_s < inf else {}

    # ----------------------------------------------------------------------------- the sandbox

    def _plan(self, job: Job, scratch: Path) -> sandbox.Plan:
        """All that the guard of one launch needs. Raises a LaunchFailed, or ``OSError``."""
        config, root = self._config, self._site.root.resolve()
        if root == Path("/") or Path.home().is_relative_to(root):
            raise Rejected(
                f"the project's folder {root} holds your home folder, which a sandbox must hide; "
                "move the project into a folder of its own"
            )
        bwrap = sandbox.demand_bubblewrap()
        window, store, given, until_s = self._store(job)
        if window:
            window.prepare(scratch)
        named = (*sandbox.VARIABLES, *config.variables)
        kept = {name: os.environ[name] for name in named if name in os.environ}
        kept = {name: value for name, value in kept.items() if name not in self._site.hidden}
        inside = {"HOME": "/tmp", "TMPDIR": "/tmp", "TENURE_CODE": str(root), "TENURE_SANDBOX": "1"}
        environ = {**kept, **given, **self._set(job, store, until_s), **inside}
        folders, files = self._hidden()
        memory = None if config.memory_gb is None else int(config.memory_gb * 1e9)
        needed = sandbox.paths_of(config.python, root, environ)
        box = sandbox.Box(
            bwrap,
            config.python,
            root,
            scratch,
            (*needed, *(path.absolute() for path in self._readable())),
            folders,
            files,
            sandbox.devices(),
            window,
            config.network == "host",
            memory,
        )
        return sandbox.Plan(
            sandbox.command(box),
            environ,
            caps.Caps.of(environ).output,
            config.disk_bytes,
            str(scratch),
            memory,
            self._cores(),
        )

    def _store(self, job: Job) -> tuple[sandbox.Window | None, str, Mapping[str, str], float]:
        """What the job sees of a folder, the URL it is given, its credentials and their end."""
        kind, _, rest = job.store.partition(":")
        if kind not in ("file", "s3"):
            raise Rejected(f"a sandbox has no way to a {kind}: store; use a file: or s3:// store")
        if kind == "s3" and self._config.network == "none":
            raise Rejected(
                f"the sandbox of runner {self._name} has no network and the store is an s3:// one; "
                'set network = "host", or use a file: store'
            )
        try:
            spec = read_spec(open_store(job.store, read_only=True), job.job_id)
        except StoreSilent as error:
            raise Unreachable(f"the store did not answer: {error}", sent=False) from None
        except (StoreUnusable, Corrupt) as error:
            raise Rejected(str(error)) from None
        if kind == "file":
            folder = Path(unquote(rest.removeprefix("//"))).resolve()
            return sandbox.Window.of(folder, spec), DirectoryStore.url_of(folder), {}, inf
        config = self._config
        asked = RentedConfig(
            card="cpu", trust=config.trust, role=config.role, sts_endpoint=config.sts_endpoint,
            session_s=config.session_s, claim_window_s=config.claim_window_s,
            deadline_s=config.deadline_s,
        )  # fmt: skip
        granted = grant(job.store, spec, asked, self._site.clock)
        if granted.warning:
            _LOG.warning("job %s, launch %d: %s", job.job_id, job.launch, granted.warning)
        return None, granted.store, granted.variables, granted.until_s

    def _readable(self) -> Iterator[Path]:
        for path in self._config.readable:
            found = self._site.root / path
            if not found.exists():
                raise Rejected(f"readable: there is no {found}")
            yield found

    def _hidden(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The folders and the files of the project that a sandbox does not show."""
        root = self._site.root.resolve()
        keys = [name[5:] for name in self._site.hidden if name.startswith("file:")]
        found = [root / name for name in (*_HIDDEN, *self._config.hide, *keys)]
        found += [path for path in root.glob(".env.*") if not path.is_dir()]
        inside = [path.resolve() for path in found if path.exists()]
        inside = [path for path in inside if path != root and path.is_relative_to(root)]
        folders = tuple(path for path in inside if path.is_dir())
        files = [path for path in inside if path.is_file()]
        shown = [path for path in files if not any(map(path.is_relative_to, folders))]
        return folders, tuple(shown)

    def _cores(self) -> list[int] | None:
        """The cores of a job: those that the fewest workers of this machine were given."""
        count, every = self._config.cpus, sorted(os.sched_getaffinity(0))
        if count is None:
            return None
        if count > len(every):
            raise Rejected(f"cpus = {count}, and this machine has {len(every)} cores for us")
        given: Counter[int] = Counter()
        for process in _with_environ({}):
            with suppress(psutil.Error):
                mine = process.cpu_affinity()
                if _RUNNER in process.environ() and len(mine) < len(every):
                    given.update(mine)
        return sorted(sorted(every, key=lambda core: (given[core], core))[:count])

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


def _remove(folder: Path) -> None:
    """Remove the temporary folder of a launch, and what a link in its place leads to."""
    if folder.is_symlink():
        with suppress(OSError):
            _remove(Path(os.readlink(folder)))
            folder.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # a folder in it that its owner may not enter, say
        for path, _, _ in os.walk(folder):
            with suppress(OSError):
                Path(path).chmod(0o700)
                for row in os.scandir(path):
                    if row.is_dir(follow_symlinks=False):
                        Path(row.path).chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_LINE_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-1] if lines else ""


def live_processes(runner: str, store_url: str) -> list[psutil.Process]:
    """This machine's live workers of a runner over a store, and what they started."""
    return _with_environ({_RUNNER: runner, "TENURE_STORE": store_url})


def _names(processes: Iterable[psutil.Process]) -> Iterator[str]:
    """The launch that each serves: a worker, and whatever it started, in whatever session."""
    for process in processes:
        with suppress(psutil.Error):
            yield process.environ()[_NAME]


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


def _leaders(name: str) -> list[psutil.Process]:
    """The worker of a launch, or the guard of its sandbox: nothing inside one is told its runner."""
    found = []
    for process in _bearers(name):
        with suppress(psutil.Error):
            if _leads(process) and _RUNNER in process.environ():
                found.append((process.create_time(), process.pid, process))
    return [process for _, _, process in sorted(found)]  # torchrun's ranks lead sessions as well


def _leads(process: psutil.Process) -> bool:
    """Whether it is the worker itself, which is started in a session of its own."""
    try:
        return bool(os.getsid(process.pid) == process.pid)
    except ProcessLookupError:
        return False


def live_worker(receipt: Receipt) -> psutil.Process | None:
    """The worker of a launch while it lives: by the receipt's pid, or by the name alone."""
    pid, started = receipt.handle.get("pid"), receipt.handle.get("started")
    if not isinstance(pid, int):
        return next(iter(_leaders(receipt.name)), None)
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
