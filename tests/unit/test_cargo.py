"""What travels: the same bytes from every checkout, verified where they arrive, cut and gone on with."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import cargo
from tenure.dispatch.contract import Job, Rejected, Unreachable
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt, NeverWritten, encode
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, load
from tenure_protocol.store.api import Found, Missing, StoreSilent, Written
from tenure_protocol.store.memory import MemoryStore
from tenure_worker import cargo as arrived
from tenure_worker import code, exits
from tenure_worker.exits import Stopped
from tests.fake_clock import FakeClock
from tests.unit.test_code import ENTRY as SHOP
from tests.unit.test_code import importable, lay_out
from tests.unit.worker_world import World

ENTRY = "hauled.experiment:Hauled"
EXPERIMENT = """
from pathlib import Path
class Hauled:
    def data_files(self):
        return [Path("prices/a.csv"), Path(__file__).parent / "b.bin"]
    def train(self, tenure, config, seed): ...
    def evaluate(self, tenure, config, model_dir): ...
    def backtest(self, tenure, config, model_dir): ...
"""


def forget(*prefixes: str) -> None:
    for name in [name for name in sys.modules if name.startswith(prefixes)]:
        del sys.modules[name]
    sys.path_importer_cache.clear()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "project"
    files = {
        "hauled/__init__.py": "",
        "hauled/experiment.py": EXPERIMENT,
        "hauled/b.bin": "b" * 1000,
        "prices/a.csv": "1,2,3\n" * 500,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(root)
    yield root
    forget("hauled")


def spec_of(root: Path, **fields: object) -> JobSpec:
    code.add_code_path(root)
    return JobSpec(
        **{  # type: ignore[arg-type]
            "experiment": "hauled",
            "kind": "train",
            "stage": "training",
            "entry_point": ENTRY,
            "config": {},
            "seed": 1,
            "generation": 1,
            "code": code.code_digest(ENTRY),
            "data": code.data_digest(code.load_experiment(ENTRY)),
            "milestone_every": 10,
            **fields,
        }
    )


def fetched(store: MemoryStore, digest: str, folder: Path) -> list[str]:
    return arrived.fetch_code(store, digest, folder)


# --------------------------------------------------------------------------------------- code


def test_code_unpacked_elsewhere_has_the_same_digest_and_nothing_else_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages above the entry point, modules of another folder, and a folder inside of its own."""
    root = tmp_path / "here"
    lay_out(root)
    (root / "shop_plans/deep/lib/shop_inner").mkdir(parents=True)
    (root / "shop_plans/deep/lib/shop_inner/__init__.py").write_text("X = 1\n")
    with (root / "shop_plans/deep/beside.py").open("a") as file:
        file.write("import shop_inner\n")
    monkeypatch.setattr(sys, "path", [str(root / "shop_plans/deep/lib"), *sys.path])
    importable(root, monkeypatch)
    own = code.own_code(SHOP)
    assert own.paths == ("here", "here/shop_plans/deep/lib")
    store = MemoryStore()
    cargo._put(store, keys.code(own.digest), cargo.bundle(own))
    there = tmp_path / "there"
    paths = fetched(store, own.digest, there)
    monkeypatch.setattr(
        sys, "path", [*paths, *(p for p in sys.path if not p.startswith(str(root)))]
    )
    forget("shop_")
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # this process imports it, a machine does not
    again = code.own_code(SHOP)
    assert again.digest == own.digest
    assert arrived.strangers(there, [file.path for file in again.files]) == []
    (there / "beside").mkdir()
    (there / "beside" / "torch.py").write_text("raise SystemExit\n")
    found = arrived.strangers(there, [file.path for file in again.files])
    assert found == ["beside/torch.py"]
    forget("shop_")


def test_a_module_without_a_package_keeps_its_digest_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that lies in the folder of such an entry point is its own, so the others go beside it."""
    files = {
        "a/lone_entry.py": "import lone_other.part\nclass E: ...\n",
        "b/lone_other/part.py": "X = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), *before])
    own = code.own_code("lone_entry:E")
    assert [f.place for f in own.files] == ["beside/lone_other/part.py", "here/lone_entry.py"]
    store = MemoryStore()
    cargo._put(store, keys.code(own.digest), cargo.bundle(own))
    monkeypatch.setattr(sys, "path", [*fetched(store, own.digest, tmp_path / "c"), *before])
    forget("lone_")
    assert code.code_digest("lone_entry:E") == own.digest
    forget("lone_")


def test_the_same_content_is_the_same_bytes(root: Path, tmp_path: Path) -> None:
    first = cargo.bundle(code.own_code(spec_of(root).entry_point))
    for path in root.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert cargo.bundle(code.own_code(ENTRY)) == first
    assert len({cargo.wheel(tmp_path).read_bytes() for _ in range(2)}) == 1


def test_what_the_store_has_needs_no_checkout_and_what_it_lacks_does(
    root: Path, tmp_path: Path
) -> None:
    store, spec = MemoryStore(), spec_of(root)
    cargo.publish(store, spec, root, SYSTEM)
    before = sorted((row.key, row.etag) for row in store.list(""))
    (root / "hauled/experiment.py").write_text(EXPERIMENT + "# other words\n")
    (root / "prices/a.csv").write_text("other numbers\n")
    cargo.publish(store, spec, root, SYSTEM)
    assert sorted((row.key, row.etag) for row in store.list("")) == before
    with pytest.raises(Rejected, match="enlist the plan again, or check out the code") as caught:
        cargo.publish(MemoryStore(), spec, root, SYSTEM)
    assert spec.code in str(caught.value)
    now = replace(spec, code=code.code_digest(ENTRY))
    with pytest.raises(Rejected, match=r"the data of hauled\.experiment:Hauled changed"):
        cargo.publish(MemoryStore(), now, root, SYSTEM)


def test_an_entry_point_that_is_gone_is_said(root: Path) -> None:
    spec = spec_of(root, entry_point="hauled.nowhere:Hauled", code="x")
    with pytest.raises(Rejected, match=r"hauled\.nowhere"):
        cargo.publish(MemoryStore(), spec, root, SYSTEM)


def tar_of(*members: tuple[str, bytes, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, body, kind in members:
            entry = tarfile.TarInfo(name)
            entry.type = getattr(tarfile, kind)
            entry.linkname = "/etc/passwd" if kind in ("SYMTYPE", "LNKTYPE") else ""
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return made.getvalue()


GOOD = ("paths", b"here\n", "REGTYPE")


@pytest.mark.parametrize(
    "body",
    [
        tar_of(GOOD, ("../outside.py", b"x", "REGTYPE")),
        tar_of(GOOD, ("here/../../outside.py", b"x", "REGTYPE")),
        tar_of(GOOD, ("/tmp/outside.py", b"x", "REGTYPE")),
        tar_of(GOOD, ("here/link.py", b"", "SYMTYPE")),
        tar_of(GOOD, ("here/link.py", b"", "LNKTYPE")),
        tar_of(GOOD, ("here/pipe", b"", "FIFOTYPE")),
        tar_of(("paths", b"here\n../outside\n", "REGTYPE")),
        tar_of(("paths", b"/\n", "REGTYPE")),
        tar_of(("here/a.py", b"x", "REGTYPE")),
        tar_of(GOOD, ("here/a.py", b"x", "REGTYPE"))[:700],
        b"no tar at all",
        b"",
    ],
)
def test_a_hostile_or_broken_bundle_is_refused(body: bytes, tmp_path: Path) -> None:
    store = MemoryStore()
    cargo._put(store, keys.code("x"), body)
    with pytest.raises((arrived.BadBundle, OSError)):
        fetched(store, "x", tmp_path / "in" / "here")
    assert not list(tmp_path.rglob("outside*")) and not Path("/tmp/outside.py").exists()


def test_a_bundle_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(arrived.BadBundle, match=r"the store has no code/x\.tar"):
        fetched(MemoryStore(), "x", tmp_path / "there")


# --------------------------------------------------------------------------------------- data


def test_data_is_an_index_and_its_contents(root: Path) -> None:
    store, spec, told = MemoryStore(), spec_of(root), []
    cargo.publish(store, spec, root, SYSTEM, lambda done, total: told.append((done, total)))
    index = arrived.read_index(store, spec.data)
    assert [(row.name, row.place) for row in index.files] == [
        ("a.csv", "prices/a.csv"),
        ("b.bin", "hauled/b.bin"),
    ]
    assert index.digest == spec.data and told[-1] == (4000, 4000)
    for row in index.files:
        found = store.read(keys.data(row.sha256))
        assert isinstance(found, Found) and found.body == (root / row.place).read_bytes()


def test_a_content_that_is_there_is_not_sent_again_and_a_torn_one_is(root: Path) -> None:
    spec, sent = spec_of(root), []

    class Counting(MemoryStore):
        def put_file(self, key: str, path: Path, progress: object = None) -> None:
            sent.append(key)
            super().put_file(key, path)

    store = Counting()
    digest = code.file_sha256(root / "prices/a.csv")
    cargo._put(store, keys.data(digest), (root / "prices/a.csv").read_bytes())
    sent.clear()
    cargo.publish(store, spec, root, SYSTEM)
    assert keys.data(digest) not in sent and len(sent) == 2
    cargo._put(store, keys.data(digest), b"torn")
    cargo.publish(store, spec, root, SYSTEM)
    assert cargo._size(store, keys.data(digest)) == (root / "prices/a.csv").stat().st_size


def test_a_link_to_a_big_disk_is_below_the_root_and_a_file_elsewhere_is_not(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (root / "prices/a.csv").rename(tmp_path / "disk" / "a.csv")
    (root / "prices/a.csv").symlink_to(tmp_path / "disk" / "a.csv")
    cargo.publish(MemoryStore(), spec_of(root), root, SYSTEM)
    text = EXPERIMENT.replace('"prices/a.csv"', repr(str(tmp_path / "disk" / "a.csv")))
    (root / "hauled/experiment.py").write_text(text)
    forget("hauled")
    with pytest.raises(Rejected, match="put it, or a link to it, below") as caught:
        cargo.publish(MemoryStore(), spec_of(root), root, SYSTEM)
    assert str(tmp_path / "disk" / "a.csv") in str(caught.value)


def test_what_a_package_brings_comes_with_the_lock() -> None:
    from examples.sp500 import data

    class OfThePackage:
        def data_files(self) -> list[Path]:
            return [data.data_file(index) for index in data.INDEXES]

    rows = [cargo._row(path, Path(__file__).parents[2]) for path in OfThePackage().data_files()]
    index = arrived.DataIndex(tuple(rows))
    assert [row.place for row in rows] == [arrived.INSTALLED] * 2 and index.contents == {}
    assert index.digest == code.data_digest(OfThePackage())  # type: ignore[arg-type]


def test_a_file_that_changes_while_it_is_sent_is_never_taken_for_whole(root: Path) -> None:
    spec = spec_of(root)
    digest = code.file_sha256(root / "prices/a.csv")

    class Changing(MemoryStore):
        def put_file(self, key: str, path: Path, progress: object = None) -> None:
            super().put_file(key, path)
            if key == keys.data(digest):
                (root / "prices/a.csv").write_text("9,9,9\n" * 500)

    store = Changing()
    with pytest.raises(Rejected, match="changed while it was uploaded"):
        cargo.publish(store, spec, root, SYSTEM)
    assert isinstance(store.read(keys.data_index(spec.data)), Missing)
    assert cargo._size(store, keys.data(digest)) == 0, "not the size that any reader asks for"


def test_a_silent_store_is_unreachable(root: Path) -> None:
    class Silent(MemoryStore):
        def list(self, prefix: str) -> Iterator[object]:  # type: ignore[override]
            raise StoreSilent("no route")

    with pytest.raises(Unreachable, match="no route") as caught:
        cargo.publish(Silent(), spec_of(root), root, SYSTEM)
    assert not caught.value.sent


@given(st.text(max_size=20))
def test_a_safe_place_stays_below_its_folder(place: str) -> None:
    inside = os.path.normpath(os.path.join("/top/folder", place)).startswith("/top/folder/")
    assert not arrived.safe(place) or inside


@pytest.mark.parametrize(
    "row",
    [
        {"place": "../x"},
        {"place": "/x"},
        {"sha256": "../../x"},
        {"place": "x/y"},
        {"place": "y/xx"},
        {"size": -1},
        {"size": "1"},
    ],
)
def test_an_index_that_is_off_is_corrupt(row: dict[str, object]) -> None:
    good = {"sha256": "a" * 64, "name": "x", "size": 1, "place": "x"}
    store = MemoryStore()
    store.create(
        keys.data_index("d"), json.dumps({"files": [{**good, **row}], "protocol": 1}).encode()
    )
    with pytest.raises(Corrupt):
        arrived.read_index(store, "d")
    with pytest.raises((ValueError, TypeError, Corrupt)):  # by itself, whatever the digest says
        load(arrived.DataIndex, encode(arrived.DataIndex(())).replace(
            b"[]", json.dumps([{**good, **row}]).encode()
        ), "d")  # fmt: skip


def test_an_index_of_other_rows_is_corrupt_and_a_missing_one_is_said() -> None:
    store = MemoryStore()
    index = arrived.DataIndex((arrived.DataFile("a" * 64, "x", 1, "x"),))
    store.create(keys.data_index("other"), encode(index))
    with pytest.raises(Corrupt, match=index.digest):
        arrived.read_index(store, "other")
    with pytest.raises(NeverWritten):
        arrived.read_index(store, index.digest)
    assert arrived.read_index(store, arrived.NO_DATA).files == ()


# ----------------------------------------------------------------------------------- fetching

BODY = bytes(range(256)) * 20_000
SHA256 = hashlib.sha256(BODY).hexdigest()


class Cut(MemoryStore):
    """Falls silent after ``left`` answers, and notes what was asked for."""

    def __init__(self, left: int | None = None) -> None:
        super().__init__()
        self.left = left
        self.starts: list[int] = []

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        if self.left == 0:
            raise StoreSilent("cut")
        if self.left is not None:
            self.left -= 1
        self.starts.append(start)
        return super().read_range(key, start, length)


def holding(store: MemoryStore, body: bytes = BODY) -> MemoryStore:
    cargo._put(store, keys.data(SHA256), body)
    return store


def fetcher(store: MemoryStore, cache: Path, told: list[int] | None = None) -> arrived.Fetcher:
    heard = told if told is not None else []
    return arrived.Fetcher(store, cache, SYSTEM, lambda done, _: heard.append(done))


def test_data_that_is_cut_in_the_middle_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store, told = Cut(1), list[int]()
    holding(store)
    target = tmp_path / "work" / "deep" / "file"
    with pytest.raises(StoreSilent):
        fetcher(store, tmp_path / "cache", told).put(SHA256, len(BODY), target)
    assert not target.exists()
    store.left = None
    fetcher(store, tmp_path / "cache", told).put(SHA256, len(BODY), target)
    assert target.read_bytes() == BODY
    assert len(store.starts) == len(set(store.starts)) and store.starts[1] == 1 << 20
    assert told[-1] == len(BODY) and len(set(told)) > 2


def test_a_content_is_fetched_once_by_all_attempts_of_a_machine(tmp_path: Path) -> None:
    store = holding(Cut())
    assert isinstance(store, Cut)
    fetcher(store, tmp_path / "cache").put(SHA256, len(BODY), tmp_path / "one")
    asked = len(store.starts)  # as many parts as this machine's speed makes of it
    fetcher(store, tmp_path / "cache").put(SHA256, len(BODY), tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == BODY and len(store.starts) == asked
    held = tmp_path / "cache" / SHA256
    assert held.stat().st_mode & 0o777 == 0o400, "of the jobs of a machine none writes to it"
    held.unlink()
    held.write_bytes(b"spoiled")
    fetcher(store, tmp_path / "cache").put(SHA256, len(BODY), tmp_path / "three")
    assert (tmp_path / "three").read_bytes() == BODY
    assert store.starts[asked] == 0, "it is fetched anew, from its beginning"


def test_two_jobs_of_one_machine_fetch_a_content_once(tmp_path: Path) -> None:
    store = holding(Cut())
    assert isinstance(store, Cut)

    def job(name: str) -> None:
        fetcher(store, tmp_path / "cache").put(SHA256, len(BODY), tmp_path / name)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(job, ["one", "two"]))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == BODY
    assert len(store.starts) == len(set(store.starts))


def test_a_spoiled_beginning_on_this_disk_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    for spoiled in (b"spoiled", b"x" * (len(BODY) + 1)):
        (tmp_path / "cache" / f"{SHA256}.part").write_bytes(spoiled)
        store = holding(Cut())
        fetcher(store, tmp_path / "cache").put(SHA256, len(BODY), tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == BODY
        (tmp_path / "cache" / SHA256).unlink()


@pytest.mark.parametrize("stored", [BODY[:-1], BODY[:-1] + b"!", b"", None])
def test_what_is_not_its_name_is_corrupt(stored: bytes | None, tmp_path: Path) -> None:
    store = MemoryStore() if stored is None else holding(MemoryStore(), stored)
    with pytest.raises(Corrupt, match=SHA256):
        fetcher(store, tmp_path / "cache").put(SHA256, len(BODY), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_files_go_where_the_experiment_looks_and_never_outside(tmp_path: Path) -> None:
    store, work = holding(MemoryStore()), tmp_path / "work"
    work.mkdir()
    index = arrived.DataIndex(tuple(arrived.DataFile(SHA256, "a", len(BODY), p) for p in ("x/a",)))
    got = fetcher(store, tmp_path / "cache")
    arrived.place_data(index, work, got)
    assert (work / "x" / "a").read_bytes() == BODY
    for named, put in [
        (work / "y" / "a", True),
        (Path("z/a"), True),
        (tmp_path / "outside" / "a", False),
        (Path("../outside/a"), False),
        (work / "y" / "another name", False),
    ]:
        arrived.place_named(index, work, [named], got)
        assert (work / named).exists() is put, named
    arrived.place_named(index, work, [], got)


def index_of(*places: str, sha256: str = SHA256, size: int = len(BODY)) -> arrived.DataIndex:
    rows = (arrived.DataFile(sha256, place.rpartition("/")[2], size, place) for place in places)
    return arrived.DataIndex(tuple(rows))


def test_what_one_job_writes_into_its_data_no_other_reads(tmp_path: Path) -> None:
    """In place, as a database, a memory map or an HDF5 file is written."""
    got, index = fetcher(holding(MemoryStore()), tmp_path / "cache"), index_of("data/a", "b")
    for job in ("one", "two"):
        arrived.place_data(index, tmp_path / job, got)
    with (tmp_path / "one" / "data" / "a").open("r+b") as file:
        file.write(b"mine")
    for other in ("one/b", "two/data/a", "two/b", f"cache/{SHA256}"):
        assert (tmp_path / other).read_bytes() == BODY, other
    arrived.place_data(index, tmp_path / "three", got)
    assert (tmp_path / "three" / "data" / "a").read_bytes() == BODY
    assert {path.name for path in (tmp_path / "one").rglob("*")} == {"data", "a", "b"}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("helper.py", "puts the data file helper.py at helper.py, which is there already"),
        ("shop/helper.py", "at shop/helper.py, which is there already with other content"),
        ("shop", "at shop, which is there already"),
        ("dangling", "at dangling, which is there already"),
        ("helper.py/x", "at helper.py/x, as if a file of the code were a folder"),
        ("helper.py/deep/x", "at helper.py/deep/x, as if a file of the code were a folder"),
    ],
)
def test_no_index_puts_data_over_the_code(place: str, words: str, tmp_path: Path) -> None:
    """Its digest covers contents and names alone; the code was verified before it came."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("helper.py", "shop/helper.py"):
        (tmp_path / name).write_text("SAFE = 1\n")
    got = fetcher(holding(MemoryStore()), tmp_path / "cache")
    with pytest.raises(Corrupt, match=words) as caught:
        arrived.place_data(index_of("fine", place), tmp_path, got)
    assert caught.value.key == keys.data_index(index_of("fine", place).digest)
    for name in ("helper.py", "shop/helper.py"):
        assert (tmp_path / name).read_text() == "SAFE = 1\n"
    assert (tmp_path / "fine").read_bytes() == BODY


def test_two_contents_of_one_place_are_refused_and_one_of_two_rows_is_not(tmp_path: Path) -> None:
    store, other = holding(MemoryStore()), hashlib.sha256(b"x").hexdigest()
    cargo._put(store, keys.data(other), b"x")
    got, twice = fetcher(store, tmp_path / "cache"), index_of("a", "a")
    arrived.place_data(twice, tmp_path / "work", got)
    arrived.place_data(twice, tmp_path / "work", got)  # the store was silent in between
    assert (tmp_path / "work" / "a").read_bytes() == BODY
    two = arrived.DataIndex((*twice.files, *index_of("a", sha256=other, size=1).files))
    with pytest.raises(Corrupt, match="at a, which is there already with other content"):
        arrived.place_data(two, tmp_path / "work", got)


def test_placing_goes_on_after_a_silence(tmp_path: Path) -> None:
    store, body = Cut(), b"second"
    second = hashlib.sha256(body).hexdigest()
    holding(store)
    cargo._put(store, keys.data(second), body)
    rows = (*index_of("a").files, *index_of("b", sha256=second, size=len(body)).files)
    got = fetcher(store, tmp_path / "cache")
    store.left = 3
    with pytest.raises(StoreSilent):
        arrived.place_data(arrived.DataIndex(rows), tmp_path / "work", got)
    assert (tmp_path / "work" / "a").exists()
    store.left = None
    arrived.place_data(arrived.DataIndex(rows), tmp_path / "work", got)
    assert (tmp_path / "work" / "b").read_bytes() == body


def test_a_holder_renews_while_its_data_comes_and_leaves_when_asked() -> None:
    """A fetch of an hour: the lease is renewed under an announcement; SIGTERM ends it at once."""
    with FakeClock() as clock:
        world = World(clock)

        def slow(told: Callable[[int, int], None]) -> str:
            for n in range(60):
                clock.sleep(60.0)
                told(n, 60)
                if n:
                    assert world.age_s < 600.0
            return "here"

        with pytest.raises(Stopped) as stop, world.claimed() as tenure:
            assert tenure.fetching("fetching the data", slow) == "here"
            announced = world.witness.announced
            assert announced is not None and announced.reason == "fetching the data"
            tenure.request_stop("received SIGTERM")
            before_s = clock.monotonic_s()
            tenure.fetching("fetching the data", slow)
        assert stop.value.exit_code == exits.RELEASED
        assert clock.monotonic_s() - before_s < 90.0
        assert world.witness.phase == "released" and world.witness.reason == "received SIGTERM"


def test_a_silent_store_is_asked_again_until_patience_is_lost() -> None:
    with FakeClock() as clock:
        world, asked = World(clock), list[int]()

        def silent(_: object) -> None:
            asked.append(1)
            if len(asked) < 5:
                raise StoreSilent("cut")

        with pytest.raises(Stopped) as stop, world.claimed() as tenure:
            tenure.fetching("fetching the data", silent)
            assert len(asked) == 5
            tenure.fetching("x", lambda _: (_ for _ in ()).throw(Corrupt("bad", "data/x")))
        assert stop.value.exit_code == exits.PROTOCOL


# --------------------------------------------------------------------------------------- card


@pytest.mark.parametrize(
    ("promised", "measured", "cards", "words"),
    [
        ("NVIDIA T4", {"card": "NVIDIA L4", "cards": 1}, 1, "has NVIDIA L4, NVIDIA T4 was"),
        ("NVIDIA T4", {"card": "Tesla T4", "cards": 1}, 1, None),
        ("NVIDIA L40S", {"card": "NVIDIA L40", "cards": 1}, 1, "NVIDIA L40S was promised"),
        ("NVIDIA T4", {"card": "cpu", "gpu": "none: no driver"}, 1, "none: no driver"),
        ("NVIDIA T4", {"card": "NVIDIA L4 + NVIDIA T4", "cards": 2}, 2, "was promised"),
        ("NVIDIA T4", {"card": "NVIDIA T4", "cards": 1}, 2, "shows 1 of NVIDIA T4"),
        ("cpu", {"card": "NVIDIA T4", "cards": 1}, 1, None),
        ("", {"card": "NVIDIA T4", "cards": 1}, 1, None),
    ],
)
def test_a_card_that_was_not_promised_is_said(
    promised: str, measured: dict[str, object], cards: int, words: str | None
) -> None:
    said = arrived.wrong_card(promised, cards, measured)
    assert said is None if words is None else said is not None and words in said


# ------------------------------------------------------------------------------ wheel and lock


def test_pip_takes_the_wheel_and_it_holds_the_worker_alone(tmp_path: Path) -> None:
    path = cargo.wheel(tmp_path)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
            "--no-deps", "--no-index", "--target", tmp_path / "site", path,
        ],
        check=True, timeout=120,
    )  # fmt: skip
    names = {p.name for p in (tmp_path / "site").iterdir() if ".dist-info" not in p.name}
    assert names == {"tenure_protocol", "tenure_worker", "tenure_live"}
    for module in ("tenure_worker.machine", "tenure_worker.__main__"):
        program = f"import sys, {module} as m; print(m.__file__); print(*sys.modules)"
        where, modules = subprocess.run(
            [sys.executable, "-P", "-S", "-c", program],
            env={"PYTHONPATH": str(path)}, check=True, capture_output=True, text=True, timeout=300,
        ).stdout.splitlines()  # fmt: skip
        assert where.startswith(str(path)), "importable as it is, without an installation"
        assert not {"boto3", "torch", "tenure"} & set(modules.split())


def test_the_wheel_is_what_hatchling_would_build() -> None:
    """The same files and the same requirements as ``worker/pyproject.toml`` says."""
    import tomllib

    worker = Path(__file__).parents[2] / "worker"
    about = tomllib.loads((worker / "pyproject.toml").read_text())["project"]
    here = {
        path.relative_to(worker).as_posix()
        for package in cargo.PACKAGES
        for path in (worker / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    store = MemoryStore()
    published = cargo.publish_wheel(store, SYSTEM)
    assert published == cargo.publish_wheel(store, SYSTEM)
    assert published.key == f"code/{published.sha256}/{published.file}"
    found = store.read(published.key)
    assert isinstance(found, Found)
    with zipfile.ZipFile(io.BytesIO(found.body)) as archive:
        names = archive.namelist()
        info = f"tenure_worker-{about['version']}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        assert archive.testzip() is None
    assert {name for name in names if not name.startswith(info)} == here
    assert f"Version: {about['version']}\n" in metadata and "Requires-Python: >=3.11" in metadata
    assert {line for line in metadata.splitlines() if line.startswith("Requires-Dist")} == {
        f"Requires-Dist: {row}; extra == '{extra}'"
        for extra, rows in about["optional-dependencies"].items()
        for row in rows
    }


def test_a_lock_is_published_under_its_digest(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "lock.txt").write_text("numpy==2.4.0\n")
    lock = cargo.publish_lock(store, tmp_path / "lock.txt", SYSTEM)
    found = store.read(lock.key)
    assert isinstance(found, Found) and found.body == b"numpy==2.4.0\n"
    assert lock.key == f"code/{hashlib.sha256(found.body).hexdigest()}.lock"
    with pytest.raises(Rejected, match=r"nowhere\.txt"):
        cargo.publish_lock(store, tmp_path / "nowhere.txt", SYSTEM)


# ----------------------------------------------------------------------------------- envelopes


def test_an_envelope_is_written_once_and_another_try_takes_another_name() -> None:
    store, job = MemoryStore(), Job("j" * 26, "train", 3, "tenure-x", "memory:")
    hostile = {"A": "'\"$(rm)`\n\\\r\t", "B": "x" * 65_536, "C": ""}
    first = cargo.write_envelope(store, job, hostile, SYSTEM)
    assert first == f"jobs/{job.job_id}/launches/00003/envelope.json"
    assert cargo.write_envelope(store, job, hostile, SYSTEM) == first, (
        "the very same: a lost answer"
    )
    second = cargo.write_envelope(store, job, {"A": "other"}, SYSTEM)
    assert second == f"jobs/{job.job_id}/launches/00003/envelope-2.json"
    found = store.read(first)
    assert isinstance(found, Found) and json.loads(found.body) == {"variables": hostile}
    assert isinstance(store.create(f"{first}x", b""), Written)
    for name, value in (("", "x"), ("A=B", "x"), ("A", "x\0y")):
        with pytest.raises(Rejected, match="no process can have"):
            cargo.write_envelope(store, job, {name: value}, SYSTEM)
