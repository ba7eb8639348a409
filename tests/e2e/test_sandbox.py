"""Own processes in a real bubblewrap: what code that one did not write can reach, and how it ends.

The code of these jobs is in their configuration: Python that is executed in the worker itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from runners.own_process import _bearers
from tenure.dispatch.contract import Job, Receipt, Rejected
from tenure.testing import runner_checks
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import Pointer, SnapshotRef
from tenure_protocol.store.api import Missing, Written
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.s3 import S3Store
from tenure_worker import exits
from tests import seaweed_iam as iam
from tests.e2e.strangers import DEADLINE_S, STAYS, Place, made


def _works() -> str | None:
    """Why bubblewrap cannot be tried here."""
    if shutil.which("bwrap") is None:
        return "the program bwrap is not installed"
    words = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/"]
    done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    return f"bubblewrap is forbidden here: {done.stderr.strip()}" if done.returncode else None


pytestmark = pytest.mark.skipif(bool(WHY := _works()), reason=WHY or "")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with made(tmp_path, monkeypatch) as place:
        yield place


def test_a_job_finishes_inside_and_leaves_nothing(place: Place) -> None:
    spec, receipt = place.launch("print('hello'); found['here'] = 1")
    assert place.over(receipt) == 0, place.output()
    w = place.witness(spec)
    assert (w.phase, w.result) == ("finished", {"here": 1}) and w.pointer
    assert "hello" in place.output() and "hello" in place.log(spec)
    runner_checks.until_closed(place.receipts[0][0], receipt)
    left = {path.name for path in (place.root / ".tenure" / "workers").iterdir()}
    assert left == {f"{receipt.name}.log", "here.lock"}


@pytest.mark.parametrize("check", runner_checks.ALL, ids=lambda check: check.__name__)
def test_contract(place: Place, check: runner_checks.Check) -> None:
    numbers = iter(range(100))

    def job() -> Job:
        spec = place.enlist(STAYS, next(numbers))
        return Job(spec.id, "train", 1, f"tenure-{SYSTEM.nonce()}", place.store.url)

    check(place.runner, job)


# ------------------------------------------------------------------------- what is out of reach

#: Every one succeeds without a sandbox, or its refusal inside would prove nothing.
TRIES = """
import ctypes, os, shutil, socket, subprocess, tempfile
libc = ctypes.CDLL(None, use_errno=True)

def called(answer):
    if answer:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def connect(kind, where):
    with socket.socket(kind) as one:
        one.settimeout(5)
        one.connect(where)

def write(path, mode="a"):
    open(path, mode).close()

def rewrite(path):
    body = open(path).read()
    open(path, "w").write(body)

tries = {
    "read a file of the home": lambda: open(HOME_FILE).close(),
    "read another user's file in /tmp": lambda: open(TMP_FILE).close(),
    "read what is hidden by its name": lambda: open(ROOT + "/private/words").close(),
    "read the deploy key": lambda: open(ROOT + "/keys/deploy.pem").close(),
    "read the history": lambda: open(ROOT + "/.git/config").close(),
    "read another job": lambda: open(OTHER).close(),
    "read the witness of another experiment": lambda: open(NEIGHBOUR).close(),
    "read another worker's output": lambda: open(ROOT + "/.tenure/workers/other.log").close(),
    "write into the project": lambda: write(ROOT + "/stranger/planted.py"),
    "change the project's code": lambda: rewrite(ROOT + "/stranger/experiment.py"),
    "change the own spec": lambda: rewrite(JOB),
    "remove the own spec": lambda: (shutil.copy(JOB, JOB + ".x"), os.replace(JOB + ".x", JOB)),
    "make an object elsewhere": lambda: os.makedirs(STORE + "/deployments/x", exist_ok=True),
    "remove the shared lock": lambda: (os.unlink(LOCK), write(LOCK)),
    "write into the system's folder": lambda: write("/usr/lib/tenure-test") or
        os.unlink("/usr/lib/tenure-test"),
    "write at the root": lambda: write("/tenure-test") or os.unlink("/tenure-test"),
    "set a parameter of the kernel": lambda: rewrite("/proc/sys/vm/swappiness"),
    "signal the dispatcher": lambda: os.kill(DISPATCHER, 0),
    "read the dispatcher's environment": lambda: open(f"/proc/{DISPATCHER}/environ").close(),
    "connect to this machine": lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)),
    "connect to an abstract socket": lambda: connect(socket.AF_UNIX, "\\0" + ABSTRACT),
    "mount": lambda: called(libc.mount(b"none", MOUNT.encode(), b"tmpfs", 0, None))
        or called(libc.umount(MOUNT.encode())),
    "make a device": lambda: os.mknod(MOUNT + "/device", 0o20600, os.makedev(1, 3)),
}
found.update({name: refused(act) for name, act in tries.items()})
"""
ROOT_ONLY = {
    "write into the system's folder", "write at the root", "set a parameter of the kernel", "mount",
    "make a device",
}  # fmt: skip


@dataclass
class Planted:
    """What lies around, and a server that listens."""

    values: dict[str, object]
    near: str  # the same as Python


@pytest.fixture
def planted(place: Place, tmp_path: Path) -> Iterator[Planted]:
    root = place.root
    for name in ("private/words", "keys/deploy.pem", ".git/config", ".tenure/workers/other.log"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    other = place.enlist("1", 77)
    neighbour = "witness/neighbours/j.json"
    place.store.create(neighbour, b"{}")
    home_file = Path.home() / f".tenure-test-{SYSTEM.nonce()}"
    home_file.write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "words").write_text("secret")
    abstract = f"tenure-{SYSTEM.nonce()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{abstract}")
        unix.listen()
        store = place.root / ".tenure" / "store"
        values = {
            "HOME": str(Path.home()), "HOME_FILE": str(home_file), "ROOT": str(root),
            "TMP_FILE": str(tmp_path / "elsewhere" / "words"), "STORE": str(store),
            "OTHER": str(store / keys.job(other.id)), "NEIGHBOUR": str(store / neighbour),
            "DISPATCHER": os.getpid(), "PORT": server.getsockname()[1], "ABSTRACT": abstract,
            "MOUNT": str(tmp_path / "elsewhere"),
        }  # fmt: skip
        near = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        near += textwrap.dedent("""
        import hashlib
        JOB = f"{STORE}/jobs/{tenure.spec.id}/job.json"
        name = hashlib.sha256(f"witness/strangers/{tenure.spec.id}.json".encode()).hexdigest()[:3]
        LOCK = f"{STORE}/.locks/{name}"
        """)
        yield Planted(values, near)
    home_file.unlink()


def test_nothing_but_its_own_is_in_reach(place: Place, planted: Planted) -> None:
    program = planted.near + TRIES
    control = place.result(program, sandbox=False)
    (place.root / "stranger" / "planted.py").unlink()
    privileged = set() if os.geteuid() == 0 else ROOT_ONLY
    assert {name for name, words in control.items() if words} <= privileged
    inside = place.result(program, hide=["private"])
    assert inside.keys() == control.keys()
    assert not {name for name, words in inside.items() if not words}


def test_what_it_sees(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    words = 'it\'s "quoted"\n$(touch x) `touch y` \\ \u00e9 ' + "z" * (60 << 10)
    for name in ("WORDS", "MY_KEY", "SECRET_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, words)
    (place.root / ".env").write_text("secret")
    seen = place.result(
        """
        import hashlib, os, resource, tempfile
        found["environ"] = sorted(os.environ)
        found["words"] = hashlib.sha256(os.environ["WORDS"].encode()).hexdigest()
        found["env file"] = refused(lambda: open(".env"))
        found["processes"] = len([name for name in os.listdir("/proc") if name.isdigit()])
        found["status"] = [line for line in open("/proc/self/status")
                           if line.startswith(("CapBnd", "CapEff", "NoNewPrivs"))]
        found["temporary"] = os.path.dirname(tempfile.mkdtemp())
        found["open files"] = sorted({os.readlink(f"/proc/self/fd/{n}").partition(":")[0]
                                      for n in range(64) if os.path.islink(f"/proc/self/fd/{n}")})
        found["cores"] = len(os.sched_getaffinity(0))
        found["terminal"] = refused(lambda: open("/dev/tty"))
        code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"
        found["unshare"] = __import__("subprocess").call([__import__("sys").executable, "-c", code])
        """,
        variables=["WORDS", "MY_KEY"],
        cpus=1,
    )
    environ = seen["environ"]
    assert isinstance(environ, list) and {"WORDS", "TENURE_STORE", "PATH"} <= set(environ)
    assert not {"MY_KEY", "SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "TENURE_RUNNER"} & set(environ)
    assert seen["words"] == hashlib.sha256(words.encode()).hexdigest()
    assert (
        seen["env file"] == "Permission denied" and seen["processes"] == 2
    )  # the worker, and what reaps for it
    zero = "0000000000000000\n"
    assert seen["status"] == [f"CapEff:\t{zero}", f"CapBnd:\t{zero}", "NoNewPrivs:\t1\n"]
    assert seen["temporary"] == "/tmp" and seen["cores"] == 1
    assert seen["open files"] == ["/dev/null", "pipe"]
    assert seen["terminal"] and seen["unshare"] == 1  # no user namespace of its own


def test_an_evaluation_sees_the_model_that_it_is_about(place: Place) -> None:
    trained, receipt = place.launch("found['loss'] = 0.5")
    assert place.over(receipt) == 0, place.output()
    pointer = place.witness(trained).pointer
    assert pointer
    spec, receipt = place.launch("", model=SnapshotRef(trained.id, pointer))
    assert place.over(receipt) == 0, place.output()
    assert place.witness(spec).phase == "finished"


def test_a_link_in_the_place_of_a_model_opens_nothing(place: Place, tmp_path: Path) -> None:
    """The job that left it is a stranger's as well, and its evaluation would be handed any folder."""
    (tmp_path / "elsewhere").mkdir()
    trained, receipt = place.launch(
        f"""
        import os
        folder = os.environ["TENURE_STORE"].removeprefix("file:")
        milestones = f"{{folder}}/jobs/{{tenure.spec.id}}/attempts/00001/milestones"
        os.makedirs(milestones)
        os.symlink({str(tmp_path / "elsewhere")!r}, f"{{milestones}}/9-9")
        """
    )
    assert place.over(receipt) == 0, place.output()
    planted = Pointer(attempt=1, step=9, save=9, ordinal=1, digest="0" * 64)
    spec, receipt = place.launch("", model=SnapshotRef(trained.id, planted))
    assert place.over(receipt) == exits.REFUSED
    assert "the model of this job is no folder of the store" in place.output()
    assert place.witness(spec).phase == "expected"


def test_pipes_and_links_in_the_store_stop_nobody_who_reads_it(place: Place) -> None:
    """A job may write in its experiment's folder of witnesses, which every dispatcher lists."""
    spec, receipt = place.launch(
        """
        import os
        folder = os.environ["TENURE_STORE"].removeprefix("file:")
        for where in ("witness/strangers", f"jobs/{tenure.spec.id}/attempts/00001"):
            os.makedirs(f"{folder}/{where}", exist_ok=True)
            os.mkfifo(f"{folder}/{where}/pipe.json")
            os.symlink("/dev/zero", f"{folder}/{where}/zeros.json")
            os.symlink("/etc/passwd", f"{folder}/{where}/link.json")
        """
    )
    assert place.over(receipt) == 0, place.output()
    store = DirectoryStore(place.root / ".tenure" / "store")
    for where in ("witness/strangers", f"jobs/{spec.id}/attempts/00001"):
        assert not [row for row in store.list(where) if row.key.startswith(f"{where}/pipe")]
        for name in ("pipe", "zeros", "link"):
            key = f"{where}/{name}.json"
            assert store.read(key) == store.read_range(key, 0, 1) == Missing()
            assert not store.get_file(key, place.root / "got")
            assert not isinstance(store.replace(key, b"x", "y"), Written)


def test_the_host_s_network_is_there_when_it_is_asked_for(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        seen = place.result(
            f"import socket; found['no'] = refused(lambda: socket.create_connection(('127.0.0.1', {port})))",
            network="host",
        )
    assert seen == {"no": None}


def test_a_folder_that_is_named_may_be_read_and_not_written(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    (data / "rows").write_text("rows")
    seen = place.result(
        f"""
        found["read"] = open({str(data / "rows")!r}).read()
        found["write"] = refused(lambda: open({str(data / "rows")!r}, "a"))
        """,
        readable=[str(data)],
    )
    assert seen == {"read": "rows", "write": "Read-only file system"}


@pytest.mark.parametrize("name", ['it\'s "my" project\n$(x)', "-p --bind \\ é"])
def test_a_folder_of_any_name_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: Place
) -> None:
    moved = tmp_path / name
    place.root.rename(moved)
    linked = tmp_path / "linked"
    linked.symlink_to(moved)
    place.root = linked  # by a link, too
    place.store = DirectoryStore(linked / ".tenure" / "store")
    monkeypatch.syspath_prepend(str(moved))
    assert place.result("found['here'] = 1") == {"here": 1}


# ------------------------------------------------------------------------------------- how it ends


def test_memory_beyond_the_cap_is_out_of_memory(place: Place) -> None:
    code, w = place.run("bytearray(400 << 20)", memory_gb=0.4)
    assert (code, w.phase, w.exit_code) == (exits.OUT_OF_MEMORY, "released", exits.OUT_OF_MEMORY)
    assert place.result("bytearray(400 << 20)", memory_gb=1) == {}


def test_a_write_into_the_project_is_the_code_s_own_fault(place: Place) -> None:
    """It would fail on every machine: nobody is to try the next one."""
    code, w = place.run("open('rows.csv', 'w')")
    assert (code, w.phase, w.exit_code) == (exits.CODE_ERROR, "finished", exits.CODE_ERROR)
    assert w.reason and "Read-only file system: 'rows.csv'" in w.reason


FILL = """
import time
with open("/tmp/ballast", "wb") as file:
    file.write(b"x" * (3 << 20))
"""


def test_a_full_disk_ends_the_job_in_a_sentence(place: Place) -> None:
    code, w = place.run(FILL + STAYS, disk_gb=0.002)
    assert (code, w.phase, w.exit_code) == (exits.CODE_ERROR, "finished", exits.CODE_ERROR)
    assert w.reason and w.reason.startswith("the job wrote ")
    assert w.reason.endswith("B to its disk, at most 2 MB are allowed")


def test_a_job_that_turns_the_worker_s_own_watch_off_is_killed_from_outside(place: Place) -> None:
    turned_off = "tenure.overspent = tenure.end_without_boundary = lambda words: None\n"
    code, w = place.run(turned_off + FILL + FILL.replace("ballast", "more") + STAYS, disk_gb=0.002)
    assert code == exits.CODE_ERROR and w.phase == "held"  # it told nobody
    assert "B to its disk, at most 2 MB are allowed" in place.output()


def test_output_without_end_is_cut_and_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_OUTPUT_BYTES", "100000")
    monkeypatch.setenv("TENURE_LOG_BYTES", "50000")
    spec, receipt = place.launch(
        """
        import subprocess
        for n in range(3000):
            print("x" * 99)
        subprocess.run("yes | head -c 9000000", shell=True, check=True)
        """
    )
    assert place.over(receipt) == 0, place.output()
    assert place.output().endswith(
        "\ntenure: the output is cut at 100000 bytes; what is printed from here on is not kept\n"
    )
    assert len(place.output()) < 100_200
    log = place.log(spec)
    assert log.count("tenure: the log is cut at 50000 bytes; what the job prints from here") == 1
    assert 49_000 < len(log) < 50_200


def test_sigterm_gives_a_last_milestone(place: Place) -> None:
    spec, receipt = place.launch("found['here'] = 1\nprint('ready')\n" + STAYS)
    place.until(lambda: "ready" in place.output())
    runner = place.receipts[-1][0]
    runner_checks.until_closed(runner, receipt)
    w = place.witness(spec)
    assert (w.phase, w.exit_code) == ("released", exits.RELEASED) and w.pointer
    assert w.reason and "SIGTERM" in w.reason


def alive(marker: str) -> list[int]:
    """Processes of this machine with a word in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


CHILD = """
import os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep MARKER; :"], start_new_session=True, env={})
print("started")
"""


def test_release_ends_it_and_all_that_it_started(place: Place) -> None:
    marker = f"600.{os.getpid()}1"
    stubborn = CHILD.replace("MARKER", marker) + "import time\ntime.sleep(600)"
    _, receipt = place.launch(stubborn, grace_s=0.0)
    place.until(lambda: "started" in place.output() and alive(marker))
    runner_checks.until_closed(place.receipts[-1][0], receipt)
    assert not _bearers(receipt.name)
    place.until(lambda: not alive(marker))


def test_with_the_guard_all_of_it_ends(place: Place) -> None:
    marker = f"600.{os.getpid()}2"
    _, receipt = place.launch(CHILD.replace("MARKER", marker) + STAYS)
    place.until(lambda: "started" in place.output() and alive(marker))
    os.kill(int(str(receipt.handle["pid"])), signal.SIGKILL)
    place.until(lambda: not _bearers(receipt.name) and not alive(marker))


def test_what_a_finished_job_left_running_ends_with_it(place: Place) -> None:
    marker = f"600.{os.getpid()}3"
    code, w = place.run(CHILD.replace("MARKER", marker))
    assert code == 0 and w.phase == "finished", place.output()
    place.until(lambda: not alive(marker))


DISPATCHER = """
import os, signal, sys
from pathlib import Path
from runners.own_process import OwnProcessRunner
from tenure.dispatch.contract import Job, Site
from tenure_protocol.clock import SYSTEM
root, job, name, store = sys.argv[1:]
runner = OwnProcessRunner("here", {"sandbox": True, "threads": 1}, Site(Path(root), SYSTEM))
runner.launch([Job(job, "train", 1, name, store)])
os.killpg(0, signal.SIGKILL)
"""


def test_a_worker_outlives_its_dispatcher(place: Place) -> None:
    spec = place.enlist(
        """
        import os, time
        while not os.path.exists("go"):
            time.sleep(0.02)
            step()
        """
    )
    name = f"tenure-{SYSTEM.nonce()}"
    runner = place.runner()
    place.receipts.append((runner, Receipt((spec.id,), "here", name, "cpu", 0.0)))
    done = subprocess.run(
        [sys.executable, "-c", DISPATCHER, str(place.root), spec.id, name, place.store.url],
        start_new_session=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    place.until(lambda: place.witness(spec).phase == "held")
    (place.root / "go").touch()
    place.until(lambda: place.witness(spec).phase == "finished")


# ---------------------------------------------------------------------------------- a bucket


def test_a_job_of_a_bucket_gets_credentials_of_its_own(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", iam.OPERATOR[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", iam.OPERATOR[1])
    with iam.running(tmp_path / "iam" / "data") as server:
        place.store = S3Store(server.url("boxed"))
        where = {"network": "host", "role": iam.ROLE, "session_s": 1800.0}
        seen = place.result(
            """
            import os
            from tenure_protocol.store.open import open_store
            found["key"] = os.environ["AWS_ACCESS_KEY_ID"]
            found["token"] = bool(os.environ["AWS_SESSION_TOKEN"])
            store = open_store(os.environ["TENURE_STORE"])
            found["other"] = str(store.create("deployments/x/current", b"mine"))
            """,
            **where,
        )
        assert seen["key"] != iam.OPERATOR[0] and seen["token"]
        assert not str(seen["other"]).startswith("Written")
        assert isinstance(place.store.read("deployments/x/current"), Missing)
        assert "no role is configured" in rejected(place, network="host")


# ----------------------------------------------------------------------------------- bad input


def rejected(place: Place, url: str | None = None, **config: object) -> str:
    """Why a launch is refused; it leaves nothing behind."""
    spec = place.enlist(f"{config} {url}")
    job = Job(spec.id, "train", 1, f"tenure-{SYSTEM.nonce()}", url or place.store.url)
    with pytest.raises(Rejected) as caught:
        place.runner(**config).launch([job])
    assert "\n" not in str(caught.value)
    assert not os.path.lexists(place.root / ".tenure" / "workers" / f"{job.name}.tmp")
    return str(caught.value)


def test_a_sandbox_that_cannot_be_is_rejected(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cpus = 4096, and this machine" in rejected(place, cpus=4096)
    assert "readable: there is no /not here" in rejected(place, readable=["/not here"])


def test_stores_that_a_sandbox_has_no_way_to(place: Place) -> None:
    assert 'set network = "host"' in rejected(place, "s3://b/p?endpoint_url=http://127.0.0.1:9")
    assert "no way to a memory: store" in rejected(place, "memory:x")


def test_without_bubblewrap_it_says_what_to_install(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert "apt-get install bubblewrap" in rejected(place, cpus=1)
    (programs / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions, you see' >&2\nexit 1\n"
    )
    (programs / "bwrap").chmod(0o755)
    assert "(bwrap: No permissions, you see)" in rejected(place)


def test_a_project_that_is_the_home_is_rejected(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(place.root / "stranger"))
    assert "holds your home folder" in rejected(place)
