"""The program of a rented machine, from its line of shell to its last request: real processes.

The machines are folders of this one (``tests.emulators.machines``); links are a plain HTTP server's, and
those of a real S3 server where their expiry matters.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest

from runners import cargo, stage_zero
from tenure.dispatch.contract import Job
from tenure_protocol import fingerprint
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.fingerprint import cards as card_module
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Reserve
from tenure_protocol.records import JobSpec, Refusal, Witness, load
from tenure_protocol.store.api import Found, Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.s3 import S3Store
from tenure_worker import code, exits, links, machine
from tests import until as waiting
from tests.emulators.machines import Machine, Machines
from tests.processes import end
from tests.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed
from tests.without_torch import without_torch

DEADLINE_S = 240.0
until = partial(waiting.until, for_s=DEADLINE_S)
ENTRY = "machined.experiment:Machined"
EXPERIMENT = """
import hashlib, os, time
from pathlib import Path
import tenure_worker

class Machined:
    def data_files(self):
        return [Path("prices/a.csv")]

    def train(self, tenure, config, seed):
        tenure.resume(lambda folder: None)
        print("x" * 79 + "\\n", end="", flush=True)
        for _ in range(config.get("lines", 0)):
            os.write(1, b"y" * 79 + b"\\n")
        def save(folder):
            (folder / "model").write_text("m")
        while tenure.step_number < config["steps"]:
            time.sleep(config.get("pause_s", 0))
            tenure.step()
            if tenure.milestone_due:
                tenure.milestone(save)
        tenure.milestone(save)
        return {
            "worker": tenure_worker.__file__,
            "here": os.getcwd(),
            "data": Path("prices/a.csv").read_text(),
            "cards": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "hostile": hashlib.sha256(os.environ["HOSTILE"].encode()).hexdigest(),
            "names": sorted(n for n in os.environ if n.startswith(("RUNPOD", "TENURE_START"))),
            "code": __file__,
        }

    def evaluate(self, tenure, config, model_dir): ...
    def backtest(self, tenure, config, model_dir): ...
"""
HOSTILE = "'\"$(touch /nowhere)`id`\\\n\r\t;|&<>%{}" + "é" + "z" * 65_536


class Links:
    """A plain HTTP server of bodies; ``closed`` answers as a store does after a link's expiry."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.closed = False
        self.failing = 0  # so many answers of 503 first
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                outer.asked.append((self.command, self.path, dict(self.headers), body))
                found = outer.bodies.get(self.path)
                status = 403 if outer.closed else 404 if found is None else 200
                if moved := outer.moved.get(self.path):
                    status = 302
                if outer.failing:
                    outer.failing -= 1
                    status = 503
                self.send_response(status)
                if moved:
                    self.send_header("Location", moved)
                self.send_header("Content-Length", str(len(found or b"")))
                self.end_headers()
                self.wfile.write(found or b"")

            do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, body: bytes) -> str:
        path = f"/{hashlib.sha256(body).hexdigest()[:12]}?X-Amz-Signature=s1gnature"
        self.bodies[path] = body
        return self.url(path)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"


@dataclass
class Yard:
    """A project, its jobs in a store, and machines to run them."""

    store: Store
    root: Path
    machines: Machines
    links: Links
    no_torch: Path
    wheel: Path
    specs: list[JobSpec] = field(default_factory=list)

    def enlist(self, **config: object) -> JobSpec:
        spec = JobSpec(
            experiment="machined", kind="train", stage="training", entry_point=ENTRY,
            config={"steps": 5, **config}, seed=len(self.specs), generation=1,
            code=code.code_digest(ENTRY), data=code.data_digest(code.load_experiment(ENTRY)),
            milestone_every=100,
        )  # fmt: skip
        self.store.create(keys.job(spec.id), encode(spec))
        key = keys.witness_of(spec)
        done = change(
            self.store,
            key,
            spec.id,
            read_witness(self.store, key),
            Reserve("r", 600.0, "d"),
            SYSTEM,
        )
        assert isinstance(done, Applied)
        self.specs.append(spec)
        cargo.publish(self.store, spec, self.root, SYSTEM)
        return spec

    def witness(self, spec: JobSpec) -> Witness:
        found = read_witness(self.store, keys.witness_of(spec)).witness
        assert found is not None
        return found

    def refusals(self, spec: JobSpec) -> list[str]:
        rows = [self.store.read(row.key) for row in self.store.list(keys.refusals(spec.id))]
        return [load(Refusal, r.body, "r").reason for r in rows if isinstance(r, Found)]

    def variables(self, spec: JobSpec) -> dict[str, str]:
        return {
            "TENURE_STORE": self.store.url, "TENURE_JOB": spec.id, "TENURE_LAUNCH": "1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "PYTHONPATH": str(self.no_torch), "HOSTILE": HOSTILE,
        }  # fmt: skip

    def envelope(self, spec: JobSpec, **more: str) -> str:
        body = json.dumps({"variables": {**self.variables(spec), **more}}).encode()
        return self.links.add(body)

    def packet(self, envelopes: Sequence[tuple[str, int]], **how: object) -> str:
        body = self.wheel.read_bytes()
        wheel = (self.links.add(body), hashlib.sha256(body).hexdigest(), self.wheel.name)
        return stage_zero.packet(
            **{"wheel": wheel, "envelopes": envelopes, "card": "cpu", **how}  # type: ignore[arg-type]
        )

    def start(self, packet: str, **around: str) -> Machine:
        shell = stage_zero.shell(stage_zero.program())
        number = str(len(self.machines.all))
        return self.machines.start(
            number, number, ["sh", "-c", shell], {"TENURE_START": packet, **around}
        )


def ended(one: Machine) -> int:
    """Exit code of a machine; the test fails with what it printed if it never ends."""
    try:
        return one.process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(one.output()) from None


def workers_of(*specs: JobSpec) -> list[psutil.Process]:
    """A worker is in a session of its own: a machine that is gone may leave one."""
    mine, found = {spec.id for spec in specs}, []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TENURE_JOB") in mine:
                found.append(process)
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("project")
    for name, text in {
        "machined/__init__.py": "",
        "machined/experiment.py": EXPERIMENT,
        "prices/a.csv": "1,2,3\n",
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(root), *sys.path])
        patch.chdir(root)
        yield root
    for name in [name for name in sys.modules if name.startswith("machined")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cargo.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def yard(tmp_path: Path, project: Path, wheel: Path) -> Iterator[Yard]:
    store = DirectoryStore(tmp_path / "store")
    made = Yard(
        store, project, Machines(tmp_path / "rack"), Links(), without_torch(tmp_path), wheel
    )
    yield made
    made.machines.close()
    made.links.server.shutdown()
    end(workers_of(*made.specs))


# ------------------------------------------------------------------------------- the whole way


def test_two_jobs_of_one_machine_go_all_the_way_over_a_real_s3(
    yard: Yard, seaweed: Callable[[], Seaweed], tmp_path: Path
) -> None:
    """Packet, stage 0, wheel, envelopes, code, data, two cards, two results, and the machine's end."""
    yard.store = S3Store(seaweed().url(f"machine-{SYSTEM.nonce()}"))
    yard.machines = Machines(tmp_path / "cards", "NVIDIA T4", 2)
    specs = [yard.enlist(), yard.enlist(fails_never=True)]
    yard.links.bodies["/graphql?pod=p%20d"] = b"{}"
    end = {
        "method": "POST", "url": yard.links.url("/graphql?pod=${RUNPOD_POD_ID}"),
        "headers": {"Authorization": "Bearer ${RUNPOD_API_KEY}"}, "body": {"id": "${RUNPOD_POD_ID}"},
    }  # fmt: skip
    jobs = [Job(spec.id, "train", 1, "tenure-x", yard.store.url) for spec in specs]
    written = [
        cargo.write_envelope(yard.store, job, yard.variables(spec), SYSTEM)
        for job, spec in zip(jobs, specs, strict=True)
    ]
    published = cargo.publish_wheel(yard.store, SYSTEM)
    link = {key: yard.store.presign(key, "GET", 300) for key in (published.key, *written)}
    packet = stage_zero.packet(
        wheel=(str(link[published.key]), published.sha256, published.file),
        envelopes=[(str(link[key]), 1) for key in written],
        card="NVIDIA T4", end=end, hide=["RUNPOD_SECRET"], session_s=600.0,
    )  # fmt: skip
    around = {"RUNPOD_POD_ID": "p d", "RUNPOD_API_KEY": "k3y", "RUNPOD_SECRET": "s3cret"}
    one = yard.start(packet, **around)
    assert ended(one) == 0, one.output()
    wheel_file = one.folder / ".tenure" / published.file
    for n, spec in enumerate(specs):
        w = yard.witness(spec)
        assert (w.phase, w.exit_code) == ("finished", 0), one.output()
        assert w.result is not None
        folder = one.folder / ".tenure/machines"
        assert str(w.result["worker"]).startswith(str(wheel_file)), "not the one of this checkout"
        assert str(w.result["here"]).startswith(str(folder))
        assert w.result["code"] == f"{w.result['here']}/machined/experiment.py"
        assert w.result["data"] == "1,2,3\n" and w.result["cards"] == str(n)
        assert w.result["hostile"] == hashlib.sha256(HOSTILE.encode()).hexdigest()
        assert w.result["names"] == [], "the platform's keys and the packet are not the job's"
        assert f"{spec.id[:8]}: {'x' * 79}\n" in one.output()
    method, path, headers, body = yard.links.asked[-1]
    assert (method, path, headers["Authorization"]) == ("POST", "/graphql?pod=p%20d", "Bearer k3y")
    assert json.loads(body) == {"id": "p d"} and len(yard.links.asked) == 1
    assert all(word not in one.output() for word in ("k3y", "s3cret", SECRET_KEY, "Signature"))
    private = [one.folder / ".tenure", *(one.folder / ".tenure/machines").glob("*")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)
    kept = list((one.folder / ".tenure/machines").glob("*/envelope-*.json"))
    assert len(kept) == 2 and all(path.stat().st_mode & 0o077 == 0 for path in kept)


def test_a_link_that_expired_is_one_sentence(yard: Yard, seaweed: Callable[[], Seaweed]) -> None:
    """The wheel's at stage 0, an envelope's a step later: the machine ends itself, and nothing runs."""
    store = S3Store(seaweed().url(f"machine-{SYSTEM.nonce()}"))
    store.put_file("code/wheel", yard.wheel)
    old = str(store.presign("code/wheel", "GET", 1))

    def expired() -> bool:
        try:
            urllib.request.urlopen(old).close()
        except HTTPError as error:
            return error.code == 403
        return False

    until(expired)
    spec = yard.enlist()
    yard.links.bodies["/end"] = b"{}"
    end = {"method": "DELETE", "url": yard.links.url("/end")}
    stale = (old, "0" * 64, yard.wheel.name)
    for packet, what in (
        (yard.packet([(yard.envelope(spec), 1)], wheel=stale, end=end), "the worker's wheel"),
        (yard.packet([(yard.envelope(spec), 1), (old, 1)], end=end), "the envelope of job 2 of 2"),
    ):
        yard.links.asked.clear()
        one = yard.start(packet)
        assert ended(one) == exits.STORE_GONE, one.output()
        (line,) = one.output().splitlines()
        assert f"the link to {what} has expired or opens nothing (403)" in line
        assert yard.links.asked[-1][:2] == ("DELETE", "/end")
    assert yard.witness(spec).phase == "expected"


def test_a_wheel_of_another_digest_is_not_run(yard: Yard, tmp_path: Path) -> None:
    evil = tmp_path / "evil.whl"
    with zipfile.ZipFile(evil, "w") as archive:
        archive.writestr("tenure_worker/__init__.py", "")
        archive.writestr("tenure_worker/machine.py", "print('evil was run')")
    link = yard.links.add(evil.read_bytes())
    one = yard.start(yard.packet([], wheel=(link, "0" * 64, yard.wheel.name)))
    assert ended(one) == exits.PROTOCOL
    assert one.output() == (
        "tenure: the worker's wheel has another digest than was promised; nothing of it was run\n"
    )
    assert not list(one.folder.rglob("*.whl*"))


def test_one_job_that_cannot_start_is_all_of_them(yard: Yard) -> None:
    """A link that opens nothing; an envelope without variables; a process that cannot be made."""
    good, bad = yard.enlist(steps=100_000, pause_s=0.01), yard.enlist()
    too_large = "x" * 140_000  # Linux takes 128 KiB
    cases = [
        (
            yard.links.url("/nowhere"),
            exits.STORE_GONE,
            "envelope of job 2 of 2 has expired or opens",
        ),
        (yard.links.add(b"{}"), exits.PROTOCOL, "envelope of job 2 of 2 holds no variables"),
        (yard.envelope(bad, LARGE=too_large), exits.REFUSED, "job 2 of 2 could not be started"),
    ]
    for link, exit_code, words in cases:
        one = yard.start(yard.packet([(yard.envelope(good), 1), (link, 1)]))
        assert ended(one) == exit_code, one.output()
        assert words in one.output() and "so none runs" in one.output()
        assert "Traceback" not in one.output()
        assert workers_of(good) == []
    # The first may have claimed before the second could not be started: then it has given it back.
    assert yard.witness(good).phase in ("expected", "released")
    assert yard.witness(bad).phase == "expected"


def test_sigterm_releases_every_job_and_a_restart_needs_no_link(yard: Yard, tmp_path: Path) -> None:
    specs = [yard.enlist(steps=20_000, pause_s=0.01, n=n) for n in range(2)]
    packet = yard.packet([(yard.envelope(spec), 1) for spec in specs])
    home = tmp_path / "disk"
    home.mkdir()
    one = yard.start(packet, HOME=str(home))
    until(lambda: one.output().count("x" * 79) == 2)  # each trains
    yard.machines.end(one, DEADLINE_S)
    assert ended(one) == exits.RELEASED, one.output()
    for spec in specs:
        w = yard.witness(spec)
        assert (w.phase, w.reason) == ("released", "received SIGTERM") and w.pointer
    yard.links.closed = True
    asked = len(yard.links.asked)
    again = yard.start(packet, HOME=str(home))
    until(lambda: again.output().count("x" * 79) == 2)
    assert len(yard.links.asked) == asked
    assert all(yard.witness(spec).attempt == 2 for spec in specs)
    yard.machines.end(again, DEADLINE_S)
    assert ended(again) == exits.RELEASED


def test_a_machine_ends_with_its_session(yard: Yard) -> None:
    """Without a step boundary before the wall: by SIGTERM."""
    spec = yard.enlist(steps=100_000, pause_s=30.0)
    packet = yard.packet([(yard.envelope(spec), 1)], session_s=machine.GRACE_S + 3.0)
    one = yard.start(packet)
    until(lambda: "the session of this machine is over" in one.output())
    yard.machines.end(one, DEADLINE_S)  # it has a grace of 25 s, which nobody needs to see


def test_a_job_saves_before_the_wall_of_its_machine_and_goes_on_on_another(yard: Yard) -> None:
    """A step takes 0.02 s at least, so that the first machine can never make all of them."""
    spec = yard.enlist(steps=450, pause_s=0.02)
    session_s = machine.GRACE_S + 8.0
    one = yard.start(yard.packet([(yard.envelope(spec), 1)], session_s=session_s))
    assert ended(one) == exits.RELEASED, one.output()
    w = yard.witness(spec)
    assert w.phase == "released" and "the known end of its machine" in (w.reason or "")
    assert w.pointer and 0 < w.pointer.step < 450, "no milestone was due before"
    done = change(
        yard.store,
        keys.witness_of(spec),
        spec.id,
        read_witness(yard.store, keys.witness_of(spec)),
        Reserve("elsewhere", 600.0, "d"),
        SYSTEM,
    )
    assert isinstance(done, Applied)
    again = yard.start(yard.packet([(yard.envelope(spec, TENURE_LAUNCH="2"), 1)]))
    assert ended(again) == 0, again.output()
    w = yard.witness(spec)
    assert (w.phase, w.attempt) == ("finished", 2)
    assert w.pointer and w.pointer.step == 450


def test_a_job_that_prints_for_ever_is_cut_and_lives_on(yard: Yard) -> None:
    loud, calm = yard.enlist(lines=5_000), yard.enlist(steps=6)
    envelopes = [(yard.envelope(spec), 1) for spec in (loud, calm)]
    one = yard.start(yard.packet(envelopes, most_output_bytes=20_000))
    assert ended(one) == 0, one.output()[-2000:]
    assert [yard.witness(spec).phase for spec in (loud, calm)] == ["finished"] * 2
    cut = [line for line in one.output().splitlines() if "is cut here" in line]
    assert len(cut) == 1 and cut[0].startswith(loud.id[:8])
    assert len(one.output()) < 30_000


def test_another_card_than_promised_is_refused_in_words(yard: Yard, tmp_path: Path) -> None:
    yard.machines = Machines(tmp_path / "cards", "NVIDIA L4", 1)
    spec = yard.enlist()
    one = yard.start(yard.packet([(yard.envelope(spec), 1)], card="NVIDIA T4"))
    assert ended(one) == exits.REFUSED, one.output()
    assert yard.refusals(spec) == ["this machine has NVIDIA L4, NVIDIA T4 was promised"]
    assert yard.witness(spec).phase == "expected"


def test_fewer_cards_than_the_jobs_need_are_refused_in_words(yard: Yard) -> None:
    spec = yard.enlist()
    packet = yard.packet([(yard.envelope(spec), 2)], card="NVIDIA T4")
    one = yard.start(packet, CUDA_VISIBLE_DEVICES="GPU-aa", HOME="/proc/nowhere")
    assert ended(one) == exits.REFUSED, one.output()
    (home,) = (one.folder / "tmp").glob("tenure-*")  # where $HOME takes nothing
    assert home.stat().st_mode & 0o077 == 0 and (home / yard.wheel.name).exists()
    assert yard.refusals(spec) == ["the jobs of this machine need 2 cards and it shows 1"]


def test_the_lock_is_installed_or_every_job_refused(yard: Yard, tmp_path: Path) -> None:
    tiny, site = tmp_path / "tiny_lock-1.0-py3-none-any.whl", tmp_path / "site"
    with zipfile.ZipFile(tiny, "w") as archive:
        archive.writestr("torch.py", "raise ImportError('of the lock')\n")
        archive.writestr("tiny_lock-1.0.dist-info/METADATA", "Name: tiny-lock\nVersion: 1.0\n")
        archive.writestr("tiny_lock-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_lock-1.0.dist-info/RECORD", "")
    offline = f"--no-index\ntiny-lock @ {tiny.as_uri()}\n".encode()
    absent = b"--no-index\nno-such-package-anywhere==1.0\n"
    around = {"PIP_TARGET": str(site), "PIP_NO_CACHE_DIR": "1"}  # not into the suite's own
    good, bad = yard.enlist(), yard.enlist()

    def packet(spec: JobSpec, lock: bytes) -> str:
        link = (yard.links.add(lock), hashlib.sha256(lock).hexdigest())
        return yard.packet([(yard.envelope(spec, PYTHONPATH=str(site)), 1)], lock=link)

    one = yard.start(packet(good, offline), **around)
    assert ended(one) == 0, one.output()
    assert yard.witness(good).phase == "finished" and (site / "torch.py").exists()
    one = yard.start(packet(bad, absent), **around)
    assert ended(one) == exits.REFUSED, one.output()
    (reason,) = yard.refusals(bad)
    assert "the lock of the environment could not be installed (pip ended with 1" in reason
    assert "no-such-package-anywhere" in one.output(), "pip's own words are in the output"


def test_code_that_is_not_what_was_enlisted_is_refused_before_any_of_it_runs(
    yard: Yard, tmp_path: Path
) -> None:
    """Whoever writes to the store may not choose what a machine runs."""
    spec, own = yard.enlist(), code.own_code(ENTRY)
    for name, words in (
        ("here/machined/__init__.py", "changed since the job was enlisted"),
        ("here/torch.py", "'here/torch.py', which the code of the job never names"),
    ):
        evil = tmp_path / "evil.py"
        evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        sha256 = hashlib.sha256(evil.read_bytes()).hexdigest()
        files = [file for file in own.files if file.place != name]
        bad = code.OwnCode(own.digest, (*files, code.OwnFile(name, evil, sha256)), own.paths)
        cargo._put(yard.store, keys.code(spec.code), cargo.bundle(bad))
        one = yard.start(yard.packet([(yard.envelope(spec), 1)]))
        assert ended(one) == exits.REFUSED, one.output()
        assert any(words in reason for reason in yard.refusals(spec))
    assert yard.witness(spec).phase == "expected" and not (tmp_path / "ran").exists()


# ------------------------------------------------------------------------------- its own parts


def made(folder: Path, visible: str | None = None, **told: object) -> machine.Machine:
    packet = {"envelopes": [], "card": "cpu", **told}
    text = base64.b64encode(json.dumps(packet).encode()).decode()
    environ = {"PATH": os.environ["PATH"], "SECRET": "s"}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    return machine.Machine(machine.Packet.parse(text), folder / "machines" / "x", environ)


@pytest.mark.parametrize(
    ("card", "cards", "visible", "shares"),
    [
        ("NVIDIA T4", [1, 2, 1], None, ["0", "1,2", "3"]),
        ("NVIDIA T4", [1, 1], "GPU-aa,GPU-bb,GPU-cc", ["GPU-aa", "GPU-bb"]),
        ("cpu", [1, 1], "0,1", ["", ""]),
        ("", [1, 1], None, [None, None]),
    ],
)
def test_cards_are_shared_in_order(
    card: str, cards: list[int], visible: str | None, shares: list[str | None], tmp_path: Path
) -> None:
    envelopes = [{"url": "http://x", "cards": count} for count in cards]
    one = made(tmp_path, visible, card=card, envelopes=envelopes)
    assert one._shares() == shares


def test_what_ignores_sigterm_is_killed_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "GRACE_S", 0.3)
    one, note = made(tmp_path), tmp_path / "pid"

    def child(script: str) -> machine.Child:
        found = machine.Child(["sh", "-c", script], tmp_path, os.environ, "", 1000)
        one._children.append(found)
        return found

    stubborn = child(f"trap '' TERM; echo > {note}; while true; do sleep 1; done")
    until(note.exists)
    one.stop()
    one._wait([stubborn])
    assert stubborn.code == 128 + 9
    note.unlink()
    one = made(tmp_path)  # that nobody has told to stop
    leaving = child(f"sleep 600 & echo $! > {note}; exit 3")
    one._wait([leaving])
    assert leaving.code == 3
    until(lambda: not psutil.pid_exists(int(note.read_text())) or zombie(int(note.read_text())))


@pytest.mark.parametrize("how", ["killed", "asked", "ended"])
def test_nothing_of_a_job_lives_on_in_a_session_of_its_own(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun's ranks are: whoever kills the session of the worker alone reaches none of them."""
    monkeypatch.setattr(machine, "GRACE_S", 0.3)
    one, note = made(tmp_path), tmp_path / "pids"
    deep = f"trap '' TERM; echo $$ >> {note}; while true; do sleep 1; done"
    script = 'setsid sh -c "$DEEP" & setsid sh -c \'setsid sh -c "$DEEP" & exit\' & '
    script += f"until test $(grep -c . {note}) = 2; do sleep 0.05; done; "
    script += "exit 0" if how == "ended" else "sleep 600"
    other = machine.Child(["sleep", "600"], tmp_path, os.environ, "", 1000)
    child = machine.Child(["sh", "-c", script], tmp_path, {**os.environ, "DEEP": deep}, "", 1000)
    one._children.append(child)
    until(lambda: note.exists() and len(note.read_text().split()) == 2)
    if how == "killed":
        os.kill(child._process.pid, signal.SIGKILL)
    elif how == "asked":
        one.stop()
    one._wait([child])
    until(lambda: all(zombie(int(pid)) for pid in note.read_text().split()))
    assert not other.over(), "the job beside it has another mark"
    other.kill()
    until(other.over)


def zombie(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_a_store_that_cannot_be_spoken_to_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, asked = made(tmp_path), list[str]()

    def pip(*what: str) -> int:
        asked.extend(what)
        return 1

    monkeypatch.setattr(one, "_pip", pip)
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(machine.CannotStart, match="boto3, which the store needs") as caught:
        one._install()
    assert caught.value.code == exits.REFUSED and asked == ["boto3>=1.36"]


# ------------------------------------------------------------------------------------- stage 0


def test_the_shell_holds_nothing_that_needs_quoting(yard: Yard) -> None:
    program = stage_zero.program()
    ast.parse(program, feature_version=(3, 8))
    shell = stage_zero.shell(program)
    packet = yard.packet([("http://x/'\"$(", 1)], card="NVIDIA 'T4'", hide=["A\n"])
    assert re.fullmatch(r"[A-Za-z0-9+/=| _-]+", shell) and len(shell) <= 4048, len(shell)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packet)
    odd = stage_zero.shell(
        "import os\nprint('\\'\"$(x)`', \"é\", os.getpid())\nraise SystemExit(7)\n"
    )
    with subprocess.Popen(["sh", "-c", odd], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.read() == f"'\"$(x)` é {process.pid}\n"
    assert process.returncode == 7, "the shell has become the program: signals reach it"


OURS = "import sys\nprint('ours')\n"
THEIRS = "print('theirs, with our rights')\n"


def run_as_ours(shell: str, folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", shell], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def place_of(shell: str) -> Path:
    path = Path(shell.rpartition(" ")[2])
    assert path.parent.parent == Path("/tmp") and path.name == "start"
    return path.parent


@pytest.fixture
def places() -> Iterator[list[Path]]:
    made: list[Path] = []
    yield made
    for path in made:
        if path.is_symlink() or path.is_file():
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("how", ["of another user", "open", "group", "link", "file", "nothing"])
def test_nothing_that_another_user_put_there_is_run(
    how: str, tmp_path: Path, places: list[Path]
) -> None:
    """On a machine of several users, who reads our command line may be at the place before us."""
    shell = stage_zero.shell(OURS)
    place = place_of(shell)
    places.append(place)
    theirs = tmp_path / "theirs" if how == "link" else place
    if how == "file":
        place.write_text(THEIRS)
    elif how != "nothing":
        theirs.mkdir(mode=0o700)
        (theirs / "start").write_text(THEIRS)
        theirs.chmod({"open": 0o777, "group": 0o770}.get(how, 0o700))
    if how == "link":
        place.symlink_to(theirs)
    if how == "of another user":
        if os.geteuid():
            pytest.skip("only root can give a folder to another user")
        os.chown(theirs, 12345, 12345)
    code_, said, errors = run_as_ours(shell, tmp_path)
    if how == "nothing":
        assert (code_, said, errors) == (0, "ours\n", "") and not place.exists()
        return
    assert (code_, said) == (0, ""), "it says so, and the shell becomes nothing"
    (line,) = errors.splitlines()
    assert line.startswith(f"tenure: nothing was run, since {place} cannot be used: ")
    assert how in ("link", "file") or (theirs / "start").read_text() == THEIRS


def test_a_restart_finds_its_own_place_and_each_line_has_another(
    tmp_path: Path, places: list[Path]
) -> None:
    shell = stage_zero.shell(OURS)
    place = place_of(shell)
    places.append(place)
    place.mkdir(mode=0o700)
    (place / "start").write_text("half of")
    for _ in range(2):
        assert run_as_ours(shell, tmp_path) == (0, "ours\n", "")
        assert not place.exists()
    assert place_of(stage_zero.shell(OURS)) != place


def test_no_module_is_imported_from_where_the_shell_happens_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as /tmp, or a folder that somebody named in $PYTHONPATH and anybody may write to."""
    for name in ("base64", "zlib", "json", "hashlib", "os", "shutil", "urllib", "tempfile", "stat"):
        (tmp_path / f"{name}.py").write_text(THEIRS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("TENURE_START", raising=False)
    code_, said, errors = run_as_ours(stage_zero.shell(stage_zero.program()), tmp_path)
    assert (code_, said) == (exits.USAGE, "") and "$TENURE_START is not set" in errors


def test_the_home_of_somebody_else_is_none(yard: Yard, tmp_path: Path) -> None:
    """$HOME may be a folder for all; what is in .tenure there decides what we run."""
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    for how in ("folder", "link"):
        home = tmp_path / how
        (home / ".tenure").parent.mkdir()
        theirs = home / "theirs" if how == "link" else home / ".tenure"
        theirs.mkdir()
        if how == "link":
            (home / ".tenure").symlink_to(theirs)
        os.chown(home / ".tenure", 12345, 12345, follow_symlinks=False)
        one = yard.start(yard.packet([(yard.links.url("/nowhere"), 1)]), HOME=str(home))
        assert ended(one) == exits.STORE_GONE, one.output()
        assert list(theirs.iterdir()) == []


def old_python() -> str | None:
    """A Python 3.8 that starts: what bears the name may be a shim without one."""
    for place in os.environ["PATH"].split(os.pathsep):
        found = Path(place) / "python3.8"
        if found.exists():
            done = subprocess.run([found, "-V"], check=False, capture_output=True, text=True)
            if done.stdout.startswith("Python 3.8"):
                return str(found)
    return None


@pytest.mark.parametrize("old", [True, False])
def test_a_python_that_is_too_old_says_so_in_one_line(yard: Yard, old: bool) -> None:
    """A real Python 3.8 where this machine has one; and ours that says it were one."""
    head, python = "", sys.executable
    if old:
        python = old_python() or pytest.skip("there is no Python 3.8 here")
    else:
        head = "import sys\nsys.version_info = (3, 8, 1)\n"
    yard.links.bodies["/end"] = b""
    packet = yard.packet([], end={"method": "DELETE", "url": yard.links.url("/end")})
    done = subprocess.run(
        [python, "-c", head + stage_zero.program()], env={"TENURE_START": packet},
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == exits.REFUSED
    assert done.stderr == (
        "tenure: this machine has Python 3.8, 3.11 or newer is needed; choose another image\n"
    )
    assert yard.links.asked[-1][:2] == ("DELETE", "/end"), "or it would start anew for ever"


@pytest.mark.parametrize("packet", ["", "!", base64.b64encode(b"[]").decode()])
def test_no_packet_is_usage(packet: str) -> None:
    for argv in (["-c", stage_zero.program()], ["-m", "tenure_worker.machine"]):
        done = subprocess.run(
            [sys.executable, *argv], env={"TENURE_START": packet},
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == exits.USAGE, done.stderr
        assert "$TENURE_START is not set or holds no packet" in done.stdout + done.stderr


def test_a_link_is_tried_again_until_it_opens(yard: Yard) -> None:
    waited: list[float] = []
    link = yard.links.add(b"body")
    yard.links.failing = 3
    assert links.fetch(link, 120.0, lambda: sum(waited), waited.append) == b"body"
    assert [s for s in waited if s] == [0.5, 1.0, 2.0]  # 0 while an answer is waited for
    yard.links.failing = 1_000
    waited.clear()
    with pytest.raises(links.Silent, match="answered 503 for 120 s") as caught:
        links.fetch(link, 120.0, lambda: sum(waited), waited.append)
    assert sum(waited) <= 120.0 and max(waited) == 15.0
    assert "s1gnature" not in str(caught.value)
    yard.links.server.shutdown()
    yard.links.server.server_close()
    with pytest.raises(links.Silent, match="gave no answer"):
        links.fetch(link, 120.0, lambda: sum(waited), waited.append)


class Slow:
    """A server that sends its next answer a byte at a time, for some seconds, or without an end."""

    def __init__(self) -> None:
        self.asked = 0
        self.drips: list[tuple[bytes, bytes]] = []  # of each answer: at once, and then byte by byte
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/x?X-Amz-Signature=s1gnature"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                one = self.listening.accept()[0]
                threading.Thread(target=self.answer, args=(one,), daemon=True).start()

    def answer(self, one: socket.socket) -> None:
        with one, suppress(OSError):
            one.recv(65536)
            at_once, drip = self.drips[min(self.asked, len(self.drips) - 1)]
            self.asked += 1
            one.sendall(at_once)
            for byte in drip:
                one.sendall(bytes([byte]))
                SYSTEM.sleep(0.05)
            if drip == b"":
                one.shutdown(socket.SHUT_WR)
                one.recv(1)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.listening.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
#: Ten seconds of an answer that would be whole and good at their end.
DRIPS = {
    "body": (HEAD % 200, b"x" * 200),
    "header": (b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 176 + b"\r\nContent-Length: 0\r\n\r\n"),
    "status": (b"", b"HTTP/1.1 200 " + b"x" * 180 + b"\r\nContent-Length: 0\r\n\r\n"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 32 + b"0\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", DRIPS)
def test_a_link_that_drips_is_given_up_at_the_deadline(slow: Slow, what: str) -> None:
    slow.drips = [DRIPS[what]]
    with pytest.raises(links.Silent, match="gave no whole answer for 1 s") as caught:
        links.fetch(slow.url, 1.0, SYSTEM.monotonic_s, SYSTEM.sleep)
    assert slow.asked == 1 and "s1gnature" not in str(caught.value)


def test_sigterm_reaches_a_machine_whose_link_drips(yard: Yard, slow: Slow) -> None:
    slow.drips = [(HEAD % 20_000, b"x" * 20_000)]
    one = yard.start(yard.packet([(slow.url, 1)]))
    until(lambda: slow.asked == 1)
    yard.machines.end(one, DEADLINE_S)
    assert ended(one) == exits.RELEASED, one.output()
    assert "received SIGTERM before any job was started" in one.output()


@pytest.mark.parametrize("head", [HEAD % (1 << 40), b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_link_that_opens_more_than_anything_of_ours_is_closed(
    slow: Slow, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MOST_BYTES", 1 << 20)
    slow.drips = [(head + b"x" * (2 << 20), b"x" * 10_000)]
    with pytest.raises(links.Closed, match="opens more than 1 MiB, which nothing of ours has"):
        links.fetch(slow.url, 60.0, SYSTEM.monotonic_s, SYSTEM.sleep)
    assert slow.asked == 1


def test_half_an_answer_is_none(slow: Slow) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbo"
    halves = [HEAD % 4 + b"bo", HEAD % 4, chunked, b"HTTP/1.1 20", b"", HEAD % 4 + b"body"]
    slow.drips = [(half, b"") for half in halves]
    waited: list[float] = []
    body = links.fetch(slow.url, 120.0, lambda: sum(waited), waited.append)
    assert (body, slow.asked) == (b"body", len(halves))


def test_a_platform_that_drips_does_not_keep_a_machine_from_its_end(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "READ_S", 0.3)
    slow.drips = [DRIPS["body"]]
    said: list[str] = []
    assert not links.end_machine({"url": slow.url}, {}, said.append, lambda _: None)
    assert slow.asked == links.TRIES and "gave no answer (TimeoutError)" in said.pop()


def test_the_machines_own_end_is_tried_three_times_and_tells_no_key(yard: Yard) -> None:
    said: list[str] = []
    environ = {"KEY": "k3y", "BAD": "k3y\r\nX: y"}

    def end(header: str, path: str = "/end") -> bool:
        request = {"url": yard.links.url(path), "method": "POST", "headers": {"K": header}}
        return links.end_machine(request, environ, said.append, lambda _: None)

    yard.links.bodies["/end"] = b""
    yard.links.failing = 2
    assert end("${KEY}") and len(yard.links.asked) == 3 and said == []
    yard.links.failing = 3
    assert not end("${KEY}") and "the platform answered 503" in said.pop()
    assert not end("${NOT_SET}") and "$NOT_SET is not set" in said.pop()
    assert not end("${BAD}") and "k3y" not in said.pop()
    assert not end("${KEY}", "/nowhere") and "answered 404" in said.pop()
    yard.links.moved["/old"] = yard.links.url("/end")
    asked = len(yard.links.asked)
    assert not end("${KEY}", "/old") and "answered 302" in said.pop()
    assert {path for _, path, *_ in yard.links.asked[asked:]} == {"/old"}, (
        "the key is for one address"
    )


# ------------------------------------------------------------------------------- nvidia-smi


def smi(folder: Path, text: str, patch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


WHOLE = "printf 'NVIDIA L4, 580.1, GPU-aa, 8.9\\nNVIDIA T4, 580.1, GPU-bb, 7.5\\n'"
OLD = 'case "$*" in *compute_cap*) echo no such field; exit 2;; esac; echo Tesla T4, 440.33, GPU-aa'


@pytest.mark.parametrize(
    ("text", "visible", "card", "cards", "driver", "capability"),
    [
        (WHOLE, None, "NVIDIA L4 + NVIDIA T4", 2, "580.1", "7.5 + 8.9"),
        (WHOLE, "1", "NVIDIA T4", 1, "580.1", "7.5"),
        (WHOLE, "GPU-b", "NVIDIA T4", 1, "580.1", "7.5"),
        (WHOLE, "0,9,1", "NVIDIA L4", 1, "580.1", "8.9"),
        (WHOLE, "", "cpu", 0, None, None),
        (OLD, None, "Tesla T4", 1, "440.33", None),
        ("echo NVIDIA T4; echo NVIDIA T4", None, "NVIDIA T4", 2, None, None),
        ("echo NVIDIA-SMI has failed; exit 9", None, "cpu", 0, None, None),
        ("", None, "cpu", 0, None, None),
    ],
)
def test_nvidia_smi_is_asked_where_nothing_else_tells(
    text: str, visible: str | None, card: str, cards: int, driver: str | None,
    capability: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    smi(tmp_path, text, monkeypatch)
    monkeypatch.setattr(card_module, "_from_nvml", lambda: ({}, "no NVIDIA driver answered"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found: Mapping[str, object] = fingerprint.measure(use_torch=False)
    assert (found["card"], found["cards"]) == (card, cards)
    assert (found["driver"], found["compute_capability"]) == (driver, capability)


def test_an_nvidia_smi_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, "exec sleep 600", monkeypatch)
    monkeypatch.setattr(card_module, "_SMI_S", 0.2)
    monkeypatch.setattr(card_module, "_from_nvml", lambda: ({}, "no NVIDIA driver answered"))
    found = fingerprint.measure(use_torch=False)
    assert (found["card"], found["gpu"]) == ("cpu", "none: no NVIDIA driver answered")
