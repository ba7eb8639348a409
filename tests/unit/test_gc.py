"""`tenure gc`: what is deleted lies behind the pointer and its parent, whatever else goes on meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import discard
from tenure.cli.resume import ancestors, rewind
from tenure.cli.workplace import OneJob, Workplace
from tenure.discard import Discarder, Place, behind, needed, place_of
from tenure.errors import Blocked, UsageError
from tenure.settings import load_settings
from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Resume, Revoke, Rewind
from tenure_protocol.records import Discard, Pointer, SnapshotRef, load
from tenure_protocol.store.api import Entry, Missing, Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_worker.snapshot import fetch, read_manifest
from tests.fake_clock import FakeClock
from tests.record_builders import research, retrain
from tests.tenure_command import tenure
from tests.unit.worker_world import World

STEPS = 60


def sweep(world: World, kept: dict[str, set[Place]] | None = None, **more: object) -> discard.Swept:
    found = Discarder(world.store, world.clock, "gc", kept or {}, **more)  # type: ignore[arg-type]
    return found.sweep(world.spec.id, world.spec.experiment)


def line(world: World) -> list[Pointer]:
    """The pointer and its ancestors, newest first."""
    pointer = world.witness.pointer
    return [pointer, *ancestors(world.store, world.spec.id, pointer)] if pointer else []


def has_files(world: World, pointer: Pointer) -> bool:
    prefix = keys.snapshot(world.spec.id, pointer)
    return any(not row.key.endswith("manifest.json") for row in world.store.inner.list(prefix))


def check_kept(world: World, folder: Path) -> None:
    """The pointer can be read and proved, and the whole line can be walked."""
    found = line(world)
    for number, pointer in enumerate(found[:2]):
        target = folder / f"{pointer.attempt}-{pointer.step}-{pointer.save}-{number}"
        target.mkdir(parents=True, exist_ok=True)
        fetch(world.store, world.spec.id, pointer, target)
    if found:
        assert found[-1].ordinal == 1, "every manifest is there"


def test_what_lies_behind_the_pointer_and_its_parent_goes(clock: FakeClock, tmp_path: Path) -> None:
    world = World(clock)
    with world.killed() as first:
        world.train(first, until=35)
    world.clock.sleep(4000.0)
    assert world.run() == 0
    before = line(world)
    events, log = world.events(), world.log()
    done = sweep(world)
    assert (done.milestones, done.files) == (len(before) - 2, len(before) - 2) and done.notes == []
    assert done.bytes > 0
    assert [has_files(world, each) for each in before] == [True, True] + [False] * (len(before) - 2)
    assert line(world) == before and world.events() == events and world.log() == log
    check_kept(world, tmp_path)
    assert sweep(world).files == 0, "there is nothing left"
    with pytest.raises(Corrupt, match="`tenure gc` has deleted the files of step 10 of attempt 1"):
        fetch(world.store, world.spec.id, before[-1], tmp_path)


def test_a_zombie_writes_again_and_the_next_sweep_finds_it(clock: FakeClock) -> None:
    world = World(clock)
    world.run()
    first = line(world)[-1]
    (row,) = [
        each for each in world.store.inner.list(keys.snapshot(world.spec.id, first))
        if not each.key.endswith("manifest.json")
    ]  # fmt: skip
    found = world.store.inner.read(row.key)
    assert not isinstance(found, Missing)
    sweep(world)
    assert not has_files(world, first)
    world.store.inner.create(row.key, found.body)
    again = sweep(world)
    assert (again.milestones, again.files) == (1, 1) and not has_files(world, first)


def test_a_zombie_that_writes_between_two_looks_is_swept_at_once(clock: FakeClock) -> None:
    world = World(clock)
    world.run()
    first, delete, times = line(world)[-1], world.store.inner.delete, []
    key = keys.snapshot(world.spec.id, first) + "state.json"

    def raced(name: str) -> None:
        delete(name)
        if name == key and len(times) < 2:
            times.append(name)
            world.store.inner.create(key, b"{}")

    world.store.inner.delete = raced  # type: ignore[method-assign]
    done = sweep(world)
    assert len(times) == 2 and not has_files(world, first)
    assert done.files == len(line(world)) - 2 + 2


# ------------------------------------------------------------------------------ what is needed


def test_what_records_and_other_jobs_name_stays(clock: FakeClock, tmp_path: Path) -> None:
    world = World(clock)
    world.run()
    oldest, second = line(world)[-1], line(world)[-2]
    reader = replace(world.spec, kind="evaluate", model=SnapshotRef(world.spec.id, oldest))
    world.store.inner.create(keys.job(reader.id), encode(reader))
    store = world.store.inner
    record = retrain(store, research(store))
    kept = needed(store, [world.spec.id, reader.id])
    assert kept[world.spec.id] == {place_of(oldest)}
    for member in record.members:
        for ref in member.refs():
            assert place_of(ref.pointer) in kept[ref.job]
    sweep(world, kept)
    assert has_files(world, oldest) and not has_files(world, second)


def test_a_record_that_cannot_be_read_stops_it(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    store.create(keys.model("e", "a" * 26), b"{")
    with pytest.raises(Corrupt, match="models/e/"):
        needed(store, [])


def test_a_job_whose_pointer_cannot_be_read_is_left_alone(clock: FakeClock) -> None:
    world = World(clock)
    world.run()
    pointer = line(world)[0]
    world.store.inner.delete(keys.manifest(world.spec.id, pointer))
    done = sweep(world)
    assert done.files == 0 and "nothing of job" in done.notes[0]
    assert sweep(World(clock, seed=9)).notes == [], "one without a witness has nothing"


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from("ab")), max_size=12),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_only_what_was_written_before_the_pointer_is_behind_it(
    saves: list[tuple[int, int, str]], at: tuple[int, int]
) -> None:
    rows = [
        Entry(f"p/{attempt:05d}/milestones/{10 * save}-{save}/{file}", "", 1, 0.0)
        for attempt, save, file in saves
    ]
    rows += [
        Entry("p/00001/milestones/10-1/manifest.json", "", 1, 0.0),
        Entry("p/00001/events/000001.jsonl", "", 1, 0.0),
        Entry("p/00001/milestones/10-1", "", 1, 0.0),
        Entry("p/00001/milestones/x-1/a", "", 1, 0.0),
    ]
    attempt, save = at
    found = behind(rows, "p/", Pointer(attempt, 10 * save, save, 9, ""), [(1, 10, 1)])
    gone = {row.key for each in found for row in each.files}
    for row in rows:
        parts = row.key.split("/")
        old = len(parts) == 5 - 0 and parts[-1] in ("a", "b") and parts[3] != "x-1"
        step = parts[3].partition("-")[2] if len(parts) > 3 else ""
        before = old and (int(parts[1]), int(step)) < at and (int(parts[1]), int(step)) != (1, 1)
        assert (row.key in gone) is before, row.key


# ------------------------------------------------------------------------------- beside others


class Raced:
    """A store whose listings, reads and deletions something happens before, once."""

    def __init__(self, inner: Store, before: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> object:
        call = getattr(self._inner, name)
        if name not in ("list", "read", "delete", "create"):
            return call

        def told(key: str, *more: object) -> object:
            self._before(name, key)
            return call(key, *more)

        return told


def one_job(world: World, tmp_path: Path) -> OneJob:
    place = Workplace(load_settings(start=tmp_path, environ={}), world.store.inner)
    return OneJob(place, world.spec.id, world.spec)


@pytest.mark.parametrize("call", ["create", "read", "delete"])
def test_who_takes_a_job_back_meanwhile_has_its_files_or_is_told(
    clock: FakeClock, tmp_path: Path, call: str
) -> None:
    """At the deletion's record, at the second look at the pointer, and at the first deletion."""
    world = World(clock)
    with world.killed() as tenure:
        world.train(tenure, until=55)
    target = line(world)[2]
    said: list[str] = []
    seen: list[str] = []

    def back(name: str, key: str) -> None:
        seen.append(name)
        announced = any(each == "create" for each in seen)
        if said or name != call or (call == "read" and not announced):
            return
        try:
            said.append("back")
            rewind(one_job(world, tmp_path), str(target.step), "poisoned")
        except Blocked as error:
            said.append(str(error))

    store = Raced(world.store.inner, back)
    Discarder(store, clock, "gc", {}).sweep(world.spec.id, world.spec.experiment)  # type: ignore[arg-type]
    assert said and said[0] == "back"
    if len(said) == 1:  # it was taken back, and goes on from there
        assert world.witness.pointer == target and not world.witness.held_back
        fetch(world.store, world.spec.id, target, tmp_path)
    else:
        assert f"step {target.step}" in said[1] and "tenure gc" in said[1]


def test_without_the_second_look_files_of_the_pointer_would_go(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of that guard: an operator takes the job back while the files are announced."""
    world = World(clock)
    with world.killed() as tenure:
        world.train(tenure, until=55)
    target = line(world)[2]
    world.event(Revoke("o", "poisoned", held_back=True))

    def back(name: str, key: str) -> None:
        if name == "create" and world.witness.pointer != target:
            world.event(Rewind("o", target))

    def swept() -> bool:
        store = Raced(world.store.inner, back)
        Discarder(store, clock, "gc", {}).sweep(world.spec.id, world.spec.experiment)  # type: ignore[arg-type]
        return has_files(world, target)

    looks: list[list[discard.Behind]] = []
    look = Discarder.look

    def blind(self: Discarder, job: str, experiment: str) -> tuple[list[discard.Behind], str]:
        found, wrong = look(self, job, experiment)
        looks.append(found)
        return (looks[0] if len(looks) == 2 else found), wrong

    with monkeypatch.context() as patch:
        assert swept(), "with the guard they stay"
        world.event(Resume("o"))
        patch.setattr(Discarder, "look", blind)
    another = World(clock, seed=6)
    with another.killed() as tenure:
        another.train(tenure, until=55)
    world, target = another, line(another)[2]
    world.event(Revoke("o", "poisoned", held_back=True))
    with monkeypatch.context() as patch:
        patch.setattr(Discarder, "look", blind)
        assert not swept(), "without it the pointer's own files are gone"


@dataclass
class Life:
    """What happens to one job, move by move."""

    world: World
    stack: ExitStack
    folder: Path
    #: Of whom at most the last is no zombie.
    holders: list[object] = field(default_factory=list)
    live: bool = False  # whether it is
    moves: int = 0

    def launch(self) -> None:
        """The holder falls silent, and another machine takes the job."""
        self.world.clock.sleep(4000.0)
        holder = self.stack.enter_context(self.world.killed())
        state = holder.resume(lambda folder: json.loads((folder / "state.json").read_text()))
        step = (state or {"step": 0})["step"]
        pointer = self.world.witness.pointer
        assert step == (pointer.step if pointer else 0), "it resumed from the pointer"
        self.holders.append((holder, step))
        self.live = True

    def work(self, place: int) -> None:
        """A worker trains for five steps and saves; a zombie's save moves nothing."""
        if not self.holders:
            return
        place %= len(self.holders)
        holder, step = self.holders[place]  # type: ignore[misc]
        newest = self.live and place == len(self.holders) - 1

        def save(folder: Path) -> None:
            (folder / "state.json").write_text(json.dumps({"step": step + 5, "of": place}))

        try:
            for _ in range(5):
                self.world.clock.sleep(1.0)
                holder.step()
            holder.milestone(save)
            for _ in range(3):  # until the loop has moved the pointer
                self.world.clock.sleep(20.0)
                holder.announce("waiting", 60.0)
        except SystemExit:
            assert not newest, "a holder is never told that it lost its lease"
            del self.holders[place]
            return
        self.holders[place] = (holder, step + 5)

    def take_back(self) -> None:
        """An operator takes it back to its parent, which is never deleted."""
        found = line(self.world)
        if len(found) < 2 or self.world.witness.phase not in ("held", "expected"):
            return
        self.world.event(Revoke("o", "poisoned", held_back=True))
        self.world.event(Rewind("o", found[1]))
        self.world.event(Resume("o"))
        self.live = False

    def gc(self) -> None:
        done = sweep(self.world)
        assert done.notes == []
        self.moves += 1
        check_kept(self.world, self.folder / str(self.moves))
        for pointer in line(self.world)[2:]:
            assert not has_files(self.world, pointer)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["launch", "work", "work", "zombie", "back", "gc"]), max_size=14))
def test_after_gc_every_job_can_go_on_and_be_proved(
    tmp_path_factory: pytest.TempPathFactory, moves: list[str]
) -> None:
    with FakeClock() as clock, ExitStack() as stack:
        life = Life(World(clock), stack, tmp_path_factory.mktemp("life"))
        life.launch()
        for move in moves:
            match move:
                case "launch":
                    life.launch()
                case "work":
                    life.work(-1)
                case "zombie":
                    life.work(0)
                case "back":
                    life.take_back()
                case _:
                    life.gc()
        life.gc()
        life.launch()  # and whoever comes next resumes
        life.work(-1)
        life.gc()


# -------------------------------------------------------------------------------- the archive


def test_an_archive_has_every_byte_before_it_goes(clock: FakeClock, tmp_path: Path) -> None:
    world = World(clock)
    world.run()
    archive, old = MemoryStore(clock, "cold"), line(world)[2:]
    bodies = {
        row.key: world.store.inner.read(row.key)
        for each in old
        for row in world.store.inner.list(keys.snapshot(world.spec.id, each))
    }
    done = sweep(world, archive=archive, shown_as="s3://cold")
    assert done.files == len(old)
    for key, found in bodies.items():
        kept = archive.read(key)
        assert not isinstance(kept, Missing) and not isinstance(found, Missing)
        assert kept.body == found.body
    fetch(archive, world.spec.id, old[0], tmp_path)
    with pytest.raises(Corrupt, match="a copy is in s3://cold"):
        fetch(world.store, world.spec.id, old[0], tmp_path)


def test_what_cannot_be_copied_is_not_deleted(clock: FakeClock) -> None:
    world = World(clock)
    world.run()
    spoilt, fine = line(world)[3], line(world)[2]
    key = keys.snapshot(world.spec.id, spoilt) + "state.json"
    world.store.inner.delete(key)
    world.store.inner.create(key, b"another")
    archive = MemoryStore(clock, "cold")
    done = sweep(world, archive=archive)
    assert has_files(world, spoilt) and not has_files(world, fine)
    assert len(done.notes) == 1 and key in done.notes[0]
    assert isinstance(archive.read(key), Missing)
    deleted = {row.key for row in world.store.inner.list(keys.discarded(world.spec.id))}
    assert keys.discard(world.spec.id, spoilt.attempt, spoilt.step, spoilt.save) not in deleted


# -------------------------------------------------------------------------------- the command


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Iterator[World]:
    """A finished job in the store of a folder, as a command finds it."""
    monkeypatch.chdir(tmp_path)
    world = World(clock)
    world.run()
    store = DirectoryStore(tmp_path / ".tenure" / "store")
    for row in world.store.inner.list(""):
        found = world.store.inner.read(row.key)
        assert not isinstance(found, Missing)
        store.create(row.key, found.body)
    world.store.inner = store  # type: ignore[assignment]
    yield world


def stored(world: World) -> set[str]:
    """Every key but what a probe of the store leaves."""
    return {row.key for row in world.store.inner.list("") if not row.key.startswith("store/")}


def test_nothing_is_deleted_until_a_person_says_so(shop: World, tmp_path: Path) -> None:
    before = stored(shop)
    found = len(line(shop)) - 2
    ended = tenure("gc", "--archive", f"file:{tmp_path}/cold")
    assert ended.code == 0 and f"{found} files of {found} milestones" in ended.out
    assert "--yes does it" in ended.out and not (tmp_path / "cold").exists()
    assert stored(shop) == before
    told = json.loads(tenure("gc", "--json").out)
    assert (told["deleted"], told["files"], told["jobs"][0]["job"]) == (False, found, shop.spec.id)
    ended = tenure("gc", "--yes", "--archive", f"file:{tmp_path}/cold")
    assert ended.code == 0 and ended.out.splitlines()[-1].startswith(
        "deleted after a copy to file:"
    )
    gone = before - stored(shop)
    assert len(gone) == found and not any(key.endswith("manifest.json") for key in gone)
    assert {row.key for row in DirectoryStore(tmp_path / "cold").list("")} > gone
    record = next(iter(shop.store.inner.list(keys.discarded(shop.spec.id))))
    body = shop.store.inner.read(record.key)
    assert not isinstance(body, Missing)
    assert "cold" in str(load(Discard, body.body, record.key).archive)
    assert tenure("gc", "--yes").out.startswith("no file lies behind")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--archive", "ftp://x"), "--archive: the store URL"),
        (("--plan", "none"), "no plan 'none' has been enlisted"),
    ],
)
def test_bad_input_is_a_sentence(shop: World, args: tuple[str, ...], words: str) -> None:
    ended = tenure("gc", *args)
    assert ended.code == UsageError.exit_code and words in ended.err


def test_the_store_itself_is_no_archive(shop: World) -> None:
    ended = tenure("gc", "--yes", "--archive", shop.store.inner.url)
    assert ended.code == UsageError.exit_code and "is the store itself" in ended.err
    assert all(has_files(shop, each) for each in line(shop))


def test_a_step_whose_files_are_gone_is_no_way_back(clock: FakeClock, tmp_path: Path) -> None:
    world = World(clock)
    with world.killed() as holder:
        world.train(holder, until=55)
    found, before = line(world), world.witness
    sweep(world)
    with pytest.raises(Blocked, match=f"cannot go on from step {found[2].step}: `tenure gc`"):
        rewind(one_job(world, tmp_path), str(found[2].step), "poisoned")
    assert world.witness == before, "it is not taken from its holder for that"
    rewind(one_job(world, tmp_path), str(found[1].step), "poisoned")
    assert world.witness.pointer == found[1]
    assert read_manifest(world.store, world.spec.id, found[1]).step == found[1].step
