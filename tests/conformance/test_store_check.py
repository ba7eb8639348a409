"""``tenure store check``, and what every command says of a store that cannot be used.

Real servers: SeaweedFS, which is safe, and localbucket, which ignores If-Match. Each complaint is one
sentence with a code of docs/commands.md, and holds no secret.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import canonical, parse
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Stored, change
from tenure_protocol.lease.machine import Reserve
from tenure_protocol.records import PROTOCOL_VERSION, JobSpec
from tenure_protocol.store import directory, probe, s3
from tenure_protocol.store.api import Found, StoreUnusable, Written
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.open import open_store
from tenure_protocol.store.s3 import S3Store
from tests.seaweed import BUCKET, Seaweed, free_port
from tests.tenure_command import complaint, tenure
from tests.unit.test_cli import Ended

CONDITIONS = [
    "create-only", "read after write", "replace on its ETag", "replace on a stale ETag",
    "replace of a missing key", "listing after write", "race of creates", "race of replaces",
]  # fmt: skip
IGNORED = {"replace on a stale ETag", "replace of a missing key", "race of replaces"}
SECRET = "hunter2hunter2"


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to run in, and no settings or credentials of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("TENURE_CONFIG", "TENURE_STORE", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class Localbucket:
    """A server that ignores If-Match on writes, and the log of what it was asked."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder / "data"
        self.log = folder / "log"
        self._port = port
        (self.folder / "bucket").mkdir(parents=True)

    def url(self, prefix: str) -> str:
        return f"s3://bucket/{prefix}?endpoint_url=http://127.0.0.1:{self._port}&region=us-east-1"

    def written(self, prefix: str) -> set[str]:
        """Every key below a prefix that it was ever asked to write."""
        asked = re.findall(rf'"PUT /bucket/{prefix}/(\S+) HTTP', self.log.read_text())
        return set(asked)

    def objects(self) -> list[Path]:
        """The files of all objects that are left."""
        return [path for path in (self.folder / "bucket").rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def localbucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Localbucket]:
    port = free_port()
    server = Localbucket(tmp_path_factory.mktemp("localbucket"), port)
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "localbucket", str(server.folder), "--port", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        end_s = SYSTEM.monotonic_s() + 240.0
        while "serving" not in server.log.read_text():
            assert process.poll() is None and SYSTEM.monotonic_s() < end_s, server.log.read_text()
            SYSTEM.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait()


@contextmanager
def page(status: int, body: bytes, **headers: str) -> Iterator[str]:
    """The address of a web server that is no S3 and answers everything alike."""

    class Page(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "text/html", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("kind", ["directory", "seaweedfs"])
def test_a_safe_store_is_accepted(
    kind: str, tmp_path: Path, seaweed: Callable[[], Seaweed]
) -> None:
    url = f"file:{tmp_path}/store" if kind == "directory" else seaweed().url("checked")
    ended = tenure("store", "check", url, "--json")
    assert ended.code == 0 and ended.err == ""
    assert list(ended.json) == ["url", "safe", "checks"]
    assert ended.json["url"] == url and ended.json["safe"] is True
    checks = ended.json["checks"]
    assert isinstance(checks, list)
    assert [list(each) for each in checks] == [["name", "ok", "detail"]] * len(CONDITIONS)
    assert [each["name"] for each in checks] == CONDITIONS
    assert all(each["ok"] is True and each["detail"] for each in checks)
    assert list(open_store(url).list("")) == [], "a scratch key is left"
    plain = tenure("store", "check", url)
    assert plain.code == 0 and all(name in plain.out for name in CONDITIONS)


def test_the_installed_command_does_the_same(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("tenure")
    done = subprocess.run(
        [script, "store", "check", "file:store", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and Ended(0, done.stdout, "").json["safe"] is True
    assert (tmp_path / "store").is_dir()


def test_a_server_that_ignores_if_match_is_refused_by_name(
    localbucket: Localbucket, seaweed: Callable[[], Seaweed]
) -> None:
    seaweed()  # for credentials; this server asks for none in particular
    ended = tenure("store", "check", localbucket.url("checked"), "--json")
    assert ended.code == 1 and ended.json["safe"] is False
    checks = ended.json["checks"]
    assert isinstance(checks, list)
    assert {each["name"] for each in checks if not each["ok"]} == IGNORED
    assert all(name in ended.err for name in IGNORED) and "Traceback" not in ended.err
    assert localbucket.written("checked") and localbucket.objects() == []


def test_the_first_use_of_such_a_server_writes_scratch_keys_alone(
    localbucket: Localbucket, seaweed: Callable[[], Seaweed], monkeypatch: pytest.MonkeyPatch
) -> None:
    seaweed()
    url = localbucket.url("used")
    with pytest.raises(StoreUnusable, match="does not keep its conditions") as refused:
        probe.demand_safe(S3Store(url), SYSTEM)
    assert all(name in str(refused.value) for name in IGNORED)
    monkeypatch.setenv("TENURE_STORE", url)
    for command in (["status"], ["dispatch", "--once"], ["why", "aa"]):
        ended = complaint(*command)
        assert ended.code == 2 and "replace on a stale ETag" in ended.err
    written = localbucket.written("used")
    assert written and all(key.startswith("scratch/") for key in written), written
    assert localbucket.objects() == []


# ------------------------------------------------------------------------------- addresses

#: Address (with SERVER for the real one), changes of the environment, exit code, words.
BAD: dict[str, tuple[str, dict[str, str | None], int, str]] = {
    "scheme": (f"ftp://me:{SECRET}@host/x", {}, 2, "unknown kind of store 'ftp'"),
    "no bucket": ("s3://?SERVER", {}, 2, "no bucket is named"),
    "not there": ("s3://not-there/p?SERVER", {}, 2, "s3://not-there/p: there is no such bucket"),
    "no name": ("s3://Bad_Bucket!/p?SERVER", {}, 2, "'Bad_Bucket!' is no name of a bucket"),
    "bracket": ("s3://[bucket/p?SERVER", {}, 2, "'s3://[bucket/p' cannot be read"),
    "dots": (f"s3://{BUCKET}/a/../b?SERVER", {}, 2, "the prefix 'a/../b'"),
    "empty part": (f"s3://{BUCKET}/a//b?SERVER", {}, 2, "the prefix 'a//b'"),
    "option": (f"s3://{BUCKET}/p?secret_key={SECRET}", {}, 2, "unknown option 'secret_key'"),
    "password": (f"s3://me:{SECRET}/x@{BUCKET}/p?SERVER", {}, 2, "AWS_SECRET_ACCESS_KEY"),
    "endpoint's password": (
        f"s3://{BUCKET}/p?endpoint_url=http://me:{SECRET}@127.0.0.1:9", {}, 2, "AWS_ACCESS_KEY_ID",
    ),
    "no address": (f"s3://{BUCKET}/p?endpoint_url=nowhere", {}, 2, "Invalid endpoint: nowhere"),
    "wrong key": (
        f"s3://{BUCKET}/p?SERVER",
        {"AWS_ACCESS_KEY_ID": "stranger", "AWS_SECRET_ACCESS_KEY": SECRET},
        2, "the access key is not known there; check AWS_ACCESS_KEY_ID",
    ),
    "wrong secret": (
        f"s3://{BUCKET}/p?SERVER", {"AWS_SECRET_ACCESS_KEY": SECRET},
        2, "the secret key does not fit the access key",
    ),
    "no credentials": (
        f"s3://{BUCKET}/p?SERVER", {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        2, "needs credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "half of them": (
        f"s3://{BUCKET}/p?SERVER", {"AWS_SECRET_ACCESS_KEY": None}, 2, "AWS_SECRET_ACCESS_KEY",
    ),
    "a line's end": (
        f"s3://{BUCKET}/p?SERVER", {"AWS_ACCESS_KEY_ID": "test\n"}, 2, "such as a line's end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_store_that_cannot_be_used_is_one_sentence(
    case: str, seaweed: Callable[[], Seaweed], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, environment, code, words = BAD[case]
    url = url.replace("SERVER", f"endpoint_url={seaweed().endpoint}&region=us-east-1")
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("TENURE_STORE", url)
    commands = [["store", "check", url], ["status"]]
    if case == "a line's end":
        commands.pop()  # boto3 tries nine times to send what cannot be sent
    for command in commands:
        ended = complaint(*command)
        assert ended.code == code and words in ended.err, ended.err
        assert SECRET not in ended.err


def test_where_nobody_listens_is_out_of_reach(seaweed: Callable[[], Seaweed]) -> None:
    seaweed()
    url = f"s3://{BUCKET}/p?endpoint_url=http://127.0.0.1:{free_port()}&region=us-east-1"
    ended = complaint("store", "check", url)
    assert ended.code == 3
    assert f"s3://{BUCKET}/p does not answer at http://127.0.0.1:" in ended.err


def test_where_somebody_listens_and_says_nothing_is_out_of_reach(
    seaweed: Callable[[], Seaweed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen server takes every connection; its client would wait nine times a minute."""
    seaweed()
    monkeypatch.setattr(S3Store, "deadline_s", 1.0)
    monkeypatch.setattr(s3, "_BULK_READ_S", 3.0)
    monkeypatch.setattr(s3, "_BULK_ATTEMPTS", 1)
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        address = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        url = f"s3://{BUCKET}/p?endpoint_url={address}&region=us-east-1"
        ended = complaint("store", "check", url)
    assert ended.code == 3
    assert f"s3://{BUCKET}/p does not answer at {address} within 1 s" in ended.err


WELL_FORMED = b"<html><body>It works!</body></html>"
PAGES: dict[str, tuple[int, bytes, dict[str, str], int, str]] = {
    "a page": (200, WELL_FORMED, {}, 2, "is no S3 server"),
    "nothing": (200, b"", {}, 2, "is no S3 server"),
    "not found": (404, WELL_FORMED, {}, 2, "answers 404 and a page"),
    "forbidden": (403, WELL_FORMED, {}, 2, "answers 403 and a page"),
    "not allowed": (405, b"", {"Content-Type": "text/plain"}, 2, "refuses to list it (405)"),
    "elsewhere": (301, WELL_FORMED, {"Location": "/login"}, 2, "sends elsewhere by a redirect"),
    "for a while": (307, b"", {"Location": "/login"}, 2, "sends elsewhere by a redirect"),
    "no XML": (200, b"<html><br>It works!</html>", {}, 3, "and a page, not as S3"),
}


@pytest.mark.parametrize("case", PAGES)
def test_an_endpoint_that_is_no_s3_server_is_named(
    case: str, seaweed: Callable[[], Seaweed]
) -> None:
    status, body, headers, code, words = PAGES[case]
    seaweed()
    with page(status, body, **headers) as address:
        ended = complaint(
            "store", "check", f"s3://{BUCKET}/p?endpoint_url={address}&region=us-east-1"
        )
    assert ended.code == code and address in ended.err and words in ended.err, ended.err


# --------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_folder_of_the_network_is_refused_by_the_mount_table(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is a fake: this machine has no network file system. Names with spaces included."""
    folder = tmp_path / "far away"
    (folder / "local").mkdir(parents=True)
    table = tmp_path / "mounts"
    written = str(folder).replace(" ", "\\040")
    table.write_text(
        "overlay / overlay rw 0 0\n"
        f"server:/export {written} {kind} rw,relatime 0 0\n"
        f"tmpfs {written}/local tmpfs rw 0 0\n"
        f"server:/other {written}-beside nfs rw 0 0\n"
    )
    monkeypatch.setattr(directory, "_MOUNTS", table)
    for url in (f"file:{folder}/store", f"file:{folder}/deeper/and/deeper"):
        monkeypatch.setenv("TENURE_STORE", url)
        for ended in (complaint("store", "check", url), complaint("status")):
            assert ended.code == 2 and f"network file system ({kind})" in ended.err
            assert url.removeprefix("file:") in ended.err and "s3://" in ended.err
    assert list(folder.iterdir()) == [folder / "local"], "something was written there"
    assert tenure("store", "check", f"file:{folder}/local/store").code == 0
    assert tenure("store", "check", f"file:{tmp_path}/near").code == 0


def test_a_folder_that_may_not_be_written_is_named(read_only: Path) -> None:
    ended = complaint("store", "check", f"file:{read_only}/store")
    assert ended.code == 2 and f"{read_only}/store cannot be written" in ended.err


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that this user may not write: for root that takes a file system of its own."""
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    options = ["-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    mounted = False
    try:
        (folder / "probe").touch()
    except OSError:
        pass
    else:
        (folder / "probe").unlink()
        mount = subprocess.run(["mount", *options], capture_output=True, check=False)
        mounted = not mount.returncode
        if not mounted:
            pytest.skip("this user may write everything and mount nothing")
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def enlisted(store: DirectoryStore | S3Store) -> JobSpec:
    """A job of a plan, with a witness that expects its first launch."""
    spec = JobSpec("first", "train", "training", "m:C", {}, 0, 1, "code", "data", 50)
    enlist(store, "first", "first", [spec], {"rungs": ["local"], "priority": 0}, SYSTEM)
    key = keys.witness_of(spec)
    event = Reserve("here", 600.0, "dispatcher-1")
    done = change(store, key, spec.id, Stored(None, ""), event, SYSTEM)
    assert isinstance(done, Applied)
    return spec


def test_what_killed_processes_and_editors_leave_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    spec = enlisted(store)
    monkeypatch.setenv("TENURE_STORE", store.url)
    before, objects = tenure("status", "--json"), [row.key for row in store.list("")]
    assert before.code == 0 and before.err == ""
    witness = tmp_path / "store" / keys.witness_of(spec)
    left = [
        witness.with_name(f"{witness.name}~"),
        witness.with_name(f".{witness.name}.swp"),
        witness.with_name(f"#{witness.name}#"),
        tmp_path / "store" / ".temp" / "1-0123456789abcdef",
        tmp_path / "store" / "plans" / "first" / ".DS_Store",
        tmp_path / "store" / "unsettled" / "a job-1~",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"{")
    after = tenure("status", "--json")
    assert (after.code, after.out, after.err) == (0, before.out, "")
    assert [row.key for row in DirectoryStore(tmp_path / "store").list("")] == objects
    assert tenure("store", "check", store.url).code == 0
    assert tenure("cancel", spec.id).code == 0
    assert all(path.exists() for path in left), "somebody else's file was removed"


def test_what_a_killed_upload_left_is_no_object(
    tmp_path: Path, seaweed: Callable[[], Seaweed]
) -> None:
    store = S3Store(seaweed().url("killed-upload"))
    for _ in range(2):
        store._call("create_multipart_upload", Key="killed-upload/files/f")
    assert list(store.list("")) == [] and store.get_file("files/f", tmp_path / "got") is False
    (tmp_path / "f").write_bytes(b"whole")
    store.put_file("files/f", tmp_path / "f")
    assert [(row.key, row.size) for row in store.list("")] == [("files/f", 5)]


# ------------------------------------------------------------------------- names, versions


@pytest.mark.parametrize("name", ["../../etc", "a/b", "ä", "a b", "a\nb", "%2e%2e", "*", "", "-x"])
def test_a_job_with_odd_characters_is_no_job(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_STORE", f"file:{tmp_path}/store")
    for command in ("why", "log", "events", "revoke", "cancel", "pause", "resume", "retry"):
        ended = tenure(command, "--", name)
        assert ended.code == 2 and ended.out == "" and "Traceback" not in ended.err
        assert repr(name) in ended.err and "no job's id" in ended.err
    ended = tenure("status", f"--plan={name}")
    assert ended.code == (2 if name else 0) and "Traceback" not in ended.err


def newer(store: DirectoryStore, key: str) -> None:
    """Rewrite an object as a Tenure of the future would."""
    found = store.read(key)
    assert isinstance(found, Found)
    body = canonical({**parse(found.body, key), "protocol": 9, "unheard_of": True})
    assert isinstance(store.replace(key, body, found.etag), Written)


def test_a_newer_witness_is_refused_with_both_versions_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    spec = enlisted(store)
    key = keys.witness_of(spec)
    newer(store, key)
    monkeypatch.setenv("TENURE_STORE", store.url)
    before = store.read(key)
    said = []
    rows = tenure("status", "--json").json["jobs"]
    assert isinstance(rows, list) and rows[0]["phase"] == "stopped"
    said.append(rows[0]["reason"])
    said.append(tenure("why", spec.id).out)
    for command in ("revoke", "cancel", "pause", "resume", "retry"):
        ended = complaint(command, spec.id)
        assert ended.code == 1
        said.append(ended.err)
    said.append(tenure("dispatch", "--once").out)
    for words in said:
        assert key in words and "protocol 9" in words, words
        assert f"speaks {PROTOCOL_VERSION}" in words and "upgrade" in words
    now = store.read(key)
    assert isinstance(before, Found) and isinstance(now, Found) and now.etag == before.etag


def test_a_newer_verdict_of_the_probe_is_refused_with_both_versions_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    probe.demand_safe(store, SYSTEM)
    newer(store, probe.KEY)
    monkeypatch.setenv("TENURE_STORE", store.url)
    ended = complaint("status")
    assert ended.code == 2 and probe.KEY in ended.err and "protocol 9" in ended.err
    assert f"speaks {PROTOCOL_VERSION}" in ended.err and "remove it" not in ended.err
