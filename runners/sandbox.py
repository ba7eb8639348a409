"""A worker of code that one did not write, in bubblewrap: what it may see, as a command line.

Nothing of this machine is there but what is named here: the system's programs and libraries, the
interpreter and what it imports, the project's folder, all of it for reading only; a ``/tmp`` of its own;
and of a ``file:`` store its own job. :func:`command` is pure. What a sandbox cannot count (output, disk)
the guard outside counts (:mod:`runners.guard`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.dispatch.contract import Rejected, Unreachable
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec

INSTALL = "install version 0.8 or later (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap)"
_DEADLINE_S = 30.0
_TMP = Path("/tmp")
#: Begins a path that the guard opens, link by link, and hands over as a descriptor.
PIN = "pinned:"
#: Programs and libraries. Links where the system has merged them into /usr.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: Of /etc what names, locales, certificates and the loader need; no passwords, no keys.
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "group", "gai.conf", "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "localtime", "mime.types", "nsswitch.conf", "OpenCL", "os-release",
    "passwd", "pki/ca-trust", "pki/tls/certs", "protocols", "resolv.conf", "services", "ssl/certs",
    "ssl/openssl.cnf", "timezone", "vulkan",
)  # fmt: skip
_DEVICES = ("nvidia", "dri", "kfd")  # what a card is reached by: names below /dev begin so
#: What a worker gets of the environment, besides what the runner sets.
VARIABLES = (
    "PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
_ASK = """
import importlib.util, json, sys
named = ["tenure_worker", "tenure_protocol"]
found = [importlib.util.find_spec(name) for name in named]
print(json.dumps({
    "missing": [name for name, spec in zip(named, found) if spec is None],
    "paths": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, sys.executable,
              *sys.path[1:], *(p for s in found if s for p in s.submodule_search_locations or [])],
}))
"""


@dataclass(frozen=True)
class Window:
    """What of a ``file:`` store one job may see and change, by paths below its folder."""

    folder: Path
    reads: tuple[str, ...]
    model: str | None  # the snapshot that an evaluate or backtest job is about
    writes: tuple[str, ...]  # folders
    lock: str  # the one lock file that is shared with others: that of the job's witness

    @classmethod
    def of(cls, folder: Path, spec: JobSpec) -> Window:
        """The window of one job's worker."""
        witness = keys.witness_of(spec)
        about = spec.model
        model = keys.snapshot(about.job, about.pointer).rstrip("/") if about else None
        writes = (
            keys.attempts(spec.id).rstrip("/"),
            keys.refusals(spec.id).rstrip("/"),
            witness.rpartition("/")[0],  # a witness is replaced by a rename, which needs its folder
        )
        lock = hashlib.sha256(witness.encode()).hexdigest()[:3]  # as DirectoryStore names it
        reads = ("store/probe.json", keys.job(spec.id))
        return cls(folder, reads, model, writes, f".locks/{lock}")

    def prepare(self, scratch: Path) -> None:
        """Make the folders that are bound into the sandbox. Raises ``OSError``."""
        for write in self.writes:
            (self.folder / write).mkdir(parents=True, exist_ok=True)
        (self.folder / self.lock).parent.mkdir(exist_ok=True)
        (self.folder / self.lock).touch()
        for own in _OWN_STORE_FOLDERS:
            (scratch / f"store{own}").mkdir(exist_ok=True)

    def binds(self, scratch: Path) -> list[str]:
        """Options of bubblewrap: the folder is empty but for what this job needs of it."""
        folder = self.folder
        found = ["--tmpfs", str(folder)]
        for read in self.reads:
            found += _bind("--ro-bind-try", folder / read)
        if self.model:
            # Another job wrote it, and could have put a link to anywhere in its place.
            model = str(folder / self.model)
            found += ["--ro-bind-fd", f"{PIN}{model}", model]
        for write in self.writes:
            found += _bind("--bind", folder / write)
        for own in _OWN_STORE_FOLDERS:
            found += ["--bind", str(scratch / f"store{own}"), str(folder / own)]
        return [*found, *_bind("--bind", folder / self.lock), "--remount-ro", str(folder)]


#: Others' drafts and locks are nothing to a job: it gets folders of its own for both, but one lock.
_OWN_STORE_FOLDERS = (".temp", ".locks")


@dataclass(frozen=True)
class Box:
    """Everything that one sandbox is made from."""

    bwrap: str
    python: str
    root: Path  # of the project; the working directory
    scratch: Path  # becomes /tmp
    readable: tuple[Path, ...] = ()  # besides the root and the system
    hidden_folders: tuple[Path, ...] = ()
    hidden_files: tuple[Path, ...] = ()
    devices: tuple[str, ...] = ()
    window: Window | None = None
    network: bool = False
    shared_memory: int | None = None  # bytes of /dev/shm; None: half of this machine's memory


def command(box: Box) -> list[str]:
    """The command line of one sandboxed worker; the guard adds ``--info-fd``.

    ``--die-with-parent`` is meant: its parent is the guard, which outlives the dispatcher, and with
    whose end everything in the sandbox ends, whatever it calls itself.
    """
    namespaces = [
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        *([] if box.network else ["--unshare-net"]),
    ]  # fmt: skip
    rights = ["--disable-userns", "--cap-drop", "ALL", "--new-session", "--die-with-parent"]
    shm = ["--size", str(box.shared_memory)] if box.shared_memory else []
    devices = [word for name in box.devices for word in ("--dev-bind-try", name, name)]
    places = [
        "--proc", "/proc", "--dev", "/dev", *shm, "--tmpfs", "/dev/shm", *devices,
        *_bind("--bind", box.scratch, _TMP), "--symlink", "/tmp", "/var/tmp",
    ]  # fmt: skip
    for path in _outermost((*box.readable, box.root)):
        places += _bind("--ro-bind", path)
    closed: list[str] = []
    for folder in box.hidden_folders:
        places += ["--tmpfs", str(folder)]
        closed += ["--remount-ro", str(folder)]
    for file in box.hidden_files:
        places += _bind("--ro-bind", Path(os.devnull), file)
    if box.window:
        places += box.window.binds(box.scratch)
    # Who is root outside could set the kernel's parameters under /proc/sys without any capability.
    closed += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    start = ["--chdir", str(box.root), "--", box.python, "-m", "tenure_worker"]
    return [box.bwrap, *namespaces, *rights, *_system(), *places, *closed, *start]


def _system() -> list[str]:
    found: list[str] = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            found += ["--symlink", os.readlink(path), str(path)]
        else:
            found += _bind("--ro-bind-try", path)
    for name in _ETC:
        found += _bind("--ro-bind-try", Path("/etc", name))
    return [*found, *_bind("--ro-bind-try", Path("/sys/devices/system"))]


def _bind(option: str, source: Path, target: Path | None = None) -> list[str]:
    return [option, str(source), str(target or source)]


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Paths that lie in no other of them nor in the system, shorter ones first.

    >>> [str(path) for path in _outermost(map(Path, ["/a/b/c", "/usr/lib/x", "/a/b", "/a/d"]))]
    ['/a/b', '/a/d']
    """
    kept: list[Path] = []
    for path in sorted(set(paths), key=lambda path: (len(path.parts), path)):
        if not any(path.is_relative_to(other) for other in (*map(Path, _SYSTEM), *kept)):
            kept.append(path)
    return kept


def devices() -> tuple[str, ...]:
    """The devices of this machine's cards."""
    return tuple(f"/dev/{name}" for name in sorted(os.listdir("/dev")) if name.startswith(_DEVICES))


# ------------------------------------------------------------------------------ what is asked first


def demand_bubblewrap() -> str:
    """The path of ``bwrap``, which can make a sandbox here. Raises a LaunchFailed."""
    found = shutil.which("bwrap")
    if found is None:
        raise Rejected(f"sandbox = true needs the program bwrap, which is not here; {INSTALL}")
    words = [found, "--unshare-user", "--unshare-pid", "--unshare-net", "--disable-userns"]
    done = _ran([*words, "--ro-bind", "/", "/", "--proc", "/proc", "true"], None)
    if done.returncode:
        said = " ".join(done.stderr.split())[:300] or f"it ended with {done.returncode}"
        raise Rejected(
            f"bubblewrap cannot make a sandbox here ({said}); allow unprivileged user namespaces on "
            "this machine, or leave sandbox = true away for code that you trust"
        )
    return found


def paths_of(python: str, root: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders that an interpreter needs for reading. Raises a LaunchFailed."""
    try:
        done = _ran([python, "-c", _ASK], environ, root)
    except OSError as error:
        raise Rejected(f"cannot start {python}: {error}") from error
    try:
        told = json.loads(done.stdout)
        missing, paths = list(told["missing"]), [Path(path) for path in told["paths"]]
    except (ValueError, KeyError, TypeError):
        words = " ".join(done.stderr.split())[-300:]
        raise Rejected(f"{python} does not tell where its libraries lie: {words}") from None
    if missing:
        raise Rejected(f"{python} does not find {missing[0]}; install the worker's wheel there")
    everything = {Path("/"), Path.home(), *Path.home().parents, _TMP}
    return tuple(path for path in _linked(paths) if path.is_absolute() and path not in everything)


def _linked(paths: Iterable[Path]) -> list[Path]:
    """Those that exist, and the prefix of the interpreter that a link of a venv leads to."""
    found = []
    for path in paths:
        if not path.exists():
            continue
        found.append(path if path.is_dir() else path.parent)
        while path.is_symlink():
            path = path.parent / os.readlink(path)
            found.append(path.parent)
    return [Path(os.path.abspath(path)) for path in found]


def _ran(
    words: Sequence[str], environ: Mapping[str, str] | None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            list(words), env=None if environ is None else dict(environ), cwd=folder, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        late = f"{words[0]} did not answer within {_DEADLINE_S:g} s"
        raise Unreachable(late, sent=False) from None


# ------------------------------------------------------------------------------- for the guard


@dataclass(frozen=True)
class Plan:
    """What the guard is told on its standard input: credentials are never in a command line."""

    command: list[str]
    environ: dict[str, str]
    output_bytes: int
    disk_bytes: int
    scratch: str
    memory_bytes: int | None
    cores: list[int] | None

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> Plan:
        """What :meth:`encode` gave."""
        return cls(**json.loads(body))
