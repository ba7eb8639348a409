"""The live side gives a model's path only when warrant, files and environment agree."""

from __future__ import annotations

import base64
import copy
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.deploy import Deployment
from gates.warrant import DeployKey
from tenure_live import Model, Refused, WrongCall, cache, load_model
from tenure_live import environment as here
from tenure_live.__main__ import main
from tenure_live.envelope import TrustedKey
from tenure_protocol import fingerprint
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import canonical, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import FileEntry, ModelRecord, environment_digest
from tenure_protocol.store.api import Found, Missing, StoreSilent
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.live_world import (
    NAME,
    SHADOW,
    SLOT,
    Said,
    file_keys,
    model,
    new_key,
    public_pem,
    put_entry,
    put_json,
    put_live,
    read_json,
    texts_of_the_same_bytes,
)
from tests.record_builders import MEASURED, REQUIRED, overwrite
from tests.trees import at, paths

WEIGHTS = "weights.bin"


class World:
    """A store with one record in it, and the key that is trusted."""

    def __init__(self, store: MemoryStore, record: ModelRecord, key: DeployKey) -> None:
        self.store, self.record, self.key = store, record, key
        self.cache = Path()

    def copy(self) -> World:
        """The same in a store of its own."""
        store = MemoryStore()
        store._objects.update(self.store._objects)
        made = World(store, self.record, self.key)
        made.cache = self.cache
        return made

    def load(self, **changes: Any) -> Model:
        how: dict[str, Any] = {
            "store": self.store, "trusted_keys": [self.key.public.pem()], "cache": self.cache,
        }  # fmt: skip
        return load_model(changes.pop("name", NAME), **{**how, **changes})

    def refused(self, words: str, **changes: Any) -> Refused:
        with pytest.raises(Refused, match=words) as caught:
            self.load(**changes)
        said = str(caught.value)
        assert "\n" not in said and said.startswith(("deployments/", "nothing is deployed"))
        return caught.value


@pytest.fixture(scope="module", autouse=True)
def _right_environment() -> Iterator[None]:
    """This process measures what the warrants demand, unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fingerprint, "measure", lambda use_torch=True, known=None: copy.deepcopy(MEASURED)
        )
        yield


@pytest.fixture(scope="module")
def made() -> World:
    store = MemoryStore()
    return World(store, model(store, REQUIRED, MEASURED), new_key())


@pytest.fixture(scope="module")
def valid(made: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with a deployment, for tests that copy it often."""
    world = made.copy()
    world.cache = tmp_path_factory.mktemp("valid") / "cache"
    for _ in range(2):
        put_live(world.store, world.record, world.key)
    return world


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    """Everything but a deployment."""
    world = made.copy()
    world.cache = tmp_path / "cache"
    return world


@pytest.fixture
def deployed(world: World) -> Deployment:
    return put_live(world.store, world.record, world.key)


# ------------------------------------------------------------------------------------ it loads


def test_it_gives_a_folder_with_the_files_of_the_warrant(
    world: World, deployed: Deployment
) -> None:
    loaded = world.load()
    assert {p.name: sha256_hex(p.read_bytes()) for p in loaded.path.iterdir()} == {
        name: entry.sha256 for name, entry in deployed.files.items()
    }
    assert (loaded.record, loaded.seed, loaded.warrant) == (world.record.id, 11, 1)
    assert (loaded.name, loaded.slot) == (NAME, "live")
    assert [d.field for d in loaded.differences] == []
    again = world.load()
    assert again == loaded


def test_what_the_deployment_step_deploys_is_loaded(world: World) -> None:
    """Nothing of it made by hand: gates/ signs, logs and moves, the live side proves and loads."""
    from gates.deploy import deploy

    done = deploy(world.store, world.record, world.key, NAME)
    loaded = world.load()
    assert (loaded.record, loaded.warrant, loaded.seed) == (done.record, done.warrant, done.seed)


def test_the_shadow_slot_is_another_one(world: World, deployed: Deployment) -> None:
    world.refused(r"deployments/vol/shadow does not exist", slot="shadow")
    put_live(world.store, world.record, world.key, slot=SHADOW)
    shadow = world.load(slot="shadow")
    assert (shadow.slot, shadow.warrant, world.load().warrant) == ("shadow", 2, 1)
    put_json(world.store, SLOT, read_json(world.store, SHADOW))
    world.refused("belongs to the shadow slot of 'vol' and was put here by hand")


def test_who_polls_is_told_of_a_new_model_and_keeps_the_old(
    world: World, deployed: Deployment
) -> None:
    loaded = world.load()
    assert not loaded.stale()
    put_live(world.store, world.record, world.key)
    assert loaded.stale() and loaded.path.is_dir()
    assert not world.load().stale()
    overwrite(world.store, SLOT, b"half a ")
    assert loaded.stale()
    world.store.delete(SLOT)
    assert loaded.stale()
    world.refused("nothing is deployed there")


def test_a_silent_store_has_an_exception_of_its_own(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = world.load()

    def silent(key: str) -> Found:
        raise StoreSilent(f"{key} could not be read")

    monkeypatch.setattr(world.store, "read", silent)
    with pytest.raises(StoreSilent):
        world.load()
    with pytest.raises(StoreSilent):
        loaded.stale()
    assert (loaded.path / WEIGHTS).is_file()


# ------------------------------------------------------------------------------------- forged


def flipped(body: bytes, at: int = 0) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def test_one_byte_of_the_weights(world: World, deployed: Deployment) -> None:
    key = file_keys(deployed)[WEIGHTS]
    found = world.store.read(key)
    assert isinstance(found, Found)
    overwrite(world.store, key, flipped(found.body, 3))
    world.refused(rf"the bytes of {key} are not those of the warrant")
    overwrite(world.store, key, found.body + b"\0")
    world.refused("are not those of the warrant")
    world.store.delete(key)
    world.refused("weights.bin is not in the store")
    assert not list(world.cache.iterdir()), "nothing half-fetched stays"


def test_a_self_made_key(world: World) -> None:
    put_live(world.store, world.record, new_key())
    world.refused("not signed by a key that is trusted here")


def test_a_private_key_and_what_is_none_are_not_trusted(world: World, deployed: Deployment) -> None:
    secret = world.key.signer.private_bytes
    exchange = base64.b64encode(bytes.fromhex("302a300506032b656e032100") + b"x" * 32)  # X25519
    for pem, words in (
        (secret, "is a private key"),
        (
            b"-----BEGIN PUBLIC KEY-----\n" + exchange + b"\n-----END PUBLIC KEY-----",
            "holds no ed25519",
        ),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "holds no ed25519"),
        (b"hello", "holds no ed25519"),
        (Path("gone.pub"), "cannot be read"),
    ):
        with pytest.raises(WrongCall, match=words) as caught:
            world.load(trusted_keys=[pem])
        assert "MC4" not in str(caught.value)
    with pytest.raises(WrongCall, match="no trusted key"):
        world.load(trusted_keys=[])
    with pytest.raises(WrongCall, match="are lists"):
        world.load(trusted_keys=world.key.public.pem())


def test_a_key_is_named_as_gates_name_it(world: World) -> None:
    assert TrustedKey.of(world.key.public.pem()).id == world.key.public.key.keyid


def test_a_revoked_key(world: World, deployed: Deployment) -> None:
    name = TrustedKey.of(world.key.public.pem()).id
    assert world.load(revoked_keys={name: 1}).warrant == 1
    world.refused("which is revoked: none of its warrants", revoked_keys={name: 0})
    put_live(world.store, world.record, world.key)
    world.refused(r"its warrant 2 .* is revoked: warrants up to 1", revoked_keys={name: 1})
    other = new_key()
    assert world.load(trusted_keys=[other.public.pem(), world.key.public.pem()]).warrant == 2
    world.refused("not signed by a key", trusted_keys=[other.public.pem()])


def test_a_number_that_the_log_does_not_have(world: World, deployed: Deployment) -> None:
    for number in (7, 0, -1, 10**9):
        put_json(world.store, SLOT, {**read_json(world.store, SLOT), "warrant": number})
        world.refused(f"the warrant {number} that it names is not in the log")


def moved_to(world: World, number: int, entry: Said) -> None:
    """An entry of the log under another number's key, and a deployment that names it there."""
    body = canonical(entry)
    overwrite(world.store, keys.warrant(number), body)
    live = {**read_json(world.store, SLOT), "warrant": number, "warrant_digest": sha256_hex(body)}
    put_json(world.store, SLOT, live)


def test_a_late_warrant_of_a_revoked_key_under_an_early_number(world: World) -> None:
    """The number that a revocation goes by is that of the place for which it was signed."""
    put_live(world.store, world.record, new_key())
    put_live(world.store, world.record, world.key)
    revoked = {TrustedKey.of(world.key.public.pem()).id: 1}
    world.refused("which is revoked", revoked_keys=revoked)
    entry = read_json(world.store, keys.warrant(2))
    moved_to(world, 1, entry)
    world.refused("says that it is entry 2", revoked_keys=revoked)
    moved_to(world, 1, {**entry, "number": 1})
    world.refused("signed for another place", revoked_keys=revoked)
    entry.pop("previous")
    moved_to(world, 2, entry)
    world.refused("signed for another place")


def test_a_deployment_replayed_under_another_name(world: World, deployed: Deployment) -> None:
    other = keys.deployment("prod")
    put_json(world.store, other, read_json(world.store, SLOT))
    world.refused("belongs to the live slot of 'vol'", name="prod")
    put_json(world.store, other, {**read_json(world.store, SLOT), "name": "prod"})
    world.refused("its warrant lets record .* be deployed as 'vol', not .* as 'prod'", name="prod")


def test_the_warrant_of_another_model(world: World, deployed: Deployment) -> None:
    """Each thing that a warrant speaks of, in a deployment that names something else."""
    stored = read_json(world.store, SLOT)
    member = world.record.members[1]
    other: dict[str, tuple[object, str]] = {
        "record": ("a" * 26, "lets record .* be deployed"),
        "experiment": ("other", "about the experiment 'vol', not 'other'"),
        "seed": (12, "about the seed 11, not 12"),
        "files": ({WEIGHTS: {"sha256": "0" * 64, "size": 1}}, "about other files"),
        "model": (
            {"job": member.train.job, "pointer": stored["model"]["pointer"]},
            "about the snapshot",
        ),
    }
    for name, (value, words) in other.items():
        put_json(world.store, SLOT, {**stored, name: value})
        world.refused(words)
    more = {**stored["files"], "extra.bin": {"sha256": "0" * 64, "size": 1}}
    put_json(world.store, SLOT, {**stored, "files": more})
    world.refused("about other files")


def test_an_entry_that_is_cut_or_none(world: World, deployed: Deployment) -> None:
    key = keys.warrant(1)
    found = world.store.read(key)
    assert isinstance(found, Found)
    for body in (found.body[:-20], flipped(found.body, 40), b""):
        overwrite(world.store, key, body)
        world.refused("their digests differ")
    for body, words in (
        ({"number": 1, "envelope": "%%"}, "holds no envelope"),
        ({"number": 1}, "lacks the field 'envelope'"),
        ({"number": 1, "envelope": "", "protocol": 99}, "upgrade this side"),
        ({"number": 1, "envelope": "", "protocol": 0}, "protocol is 0, they count from 1"),
        ({"number": 1, "envelope": base64.b64encode(b"[]").decode()}, "no DSSE envelope"),
    ):
        put_entry(world.store, 1, body)
        world.refused(words)


def test_another_type_of_payload_is_not_read(world: World, deployed: Deployment) -> None:
    entry = read_json(world.store, keys.warrant(1))
    body = json.loads(base64.b64decode(entry["envelope"]))
    body["payloadType"] = "text/plain"
    text = base64.b64encode(json.dumps(body).encode()).decode()
    put_entry(world.store, 1, {**entry, "envelope": text})
    world.refused("payload is 'text/plain'")


def test_a_signature_has_one_text(world: World, deployed: Deployment) -> None:
    """64 bytes end in a letter of which four bits say nothing: sixteen texts decode to one signature."""
    entry = read_json(world.store, keys.warrant(1))
    body = json.loads(base64.b64decode(entry["envelope"]))
    for other in texts_of_the_same_bytes(body["signatures"][0]["sig"]):
        signatures = [{**body["signatures"][0], "sig": other}]
        put_entry(
            world.store, 1, {**entry, "envelope": as_base64({**body, "signatures": signatures})}
        )
        world.refused("not in the form that encoding gives")


def predicate(name: str, value: object) -> Callable[[Said], None]:
    return lambda said: said["predicate"].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: said.__setitem__("_type", "other"), "no warrant of this version"),
        (lambda said: said.__setitem__("predicateType", "other"), "no warrant of this version"),
        (lambda said: said["subject"].append(said["subject"][0]), "names a file twice"),
        (lambda said: said.pop("subject"), "lacks 'subject'"),
        (lambda said: said["predicate"].pop("train"), "lacks 'train'"),
        (lambda said: said["predicate"].pop("log"), "lacks 'log'; if an older Tenure"),
        (lambda said: said["predicate"].pop("environments"), "an older Tenure signed it"),
        (predicate("environments", {}), "which it does not hold"),
        (predicate("environments", {"x": {}}), "which it does not hold"),
        (predicate("environment", None), "which it does not hold"),
        (predicate("seed", 11.0), "about the seed 11.0, not 11"),
        (predicate("deployment", "prod"), "be deployed as 'prod', not"),
    ],
)
def test_a_trusted_key_signed_something_else(
    world: World, change: Callable[[Said], None], words: str
) -> None:
    put_live(world.store, world.record, world.key, change=change)
    world.refused(words)


def test_an_environment_that_is_not_the_one_it_is_called(world: World) -> None:
    def weaken(said: Said) -> None:
        name = said["predicate"]["environment"]
        said["predicate"]["environments"][name].pop("torch")

    put_live(world.store, world.record, world.key, change=weaken)
    world.refused("holds as .* is another one")


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "a/../../evil", ".hidden", "a//b", "a\\b", "", "a/", "con\0", "-rf"],
)
def test_names_that_lead_elsewhere_are_refused_whoever_signed_them(world: World, name: str) -> None:
    files = {name: FileEntry("0" * 64, 1), WEIGHTS: world.record.members[0].files[WEIGHTS]}
    put_live(world.store, world.record, world.key, files=files)
    world.refused("which no snapshot can hold")
    assert not world.cache.exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "names no file"),
        ({"a": FileEntry("0" * 64, 1), "a/b": FileEntry("0" * 64, 1)}, "as a file and as a folder"),
        ({"a": FileEntry("../../../etc/passwd", 1)}, "which no snapshot can hold"),
        ({"a": FileEntry("0" * 64, -1)}, "which no snapshot can hold"),
    ],
)
def test_files_that_are_no_model(world: World, files: dict[str, FileEntry], words: str) -> None:
    put_live(world.store, world.record, world.key, files=files)
    world.refused(words)


# ------------------------------------------------------------------- any field, by hypothesis

#: Nobody's word but the deployer's own, told to people: the loader gives none of it out.
NOT_READ = {
    (name,)
    for name in (
        "at_s",
        "write_id",
        "replaced",
        "what",
        "move",
        "rolled_back",
        "before",
        "by",
        "reason",
    )
}


def changed(tree: Said, path: tuple[str | int, ...], value: object, drop: bool) -> Said:
    tree = copy.deepcopy(tree)
    place: Any = tree
    for part in path[:-1]:
        place = place[part]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return tree


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**9), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.just({}), st.just([]), st.sampled_from(["0" * 64, "a" * 26, "../x", "vol"]),
)  # fmt: skip
CASES = st.tuples(
    st.sampled_from(["deployment", "entry", "entry and its digest", "envelope and all digests"]),
    st.integers(0, 10**6),
    VALUES,
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=1000)
@given(case=CASES)
def test_no_field_can_be_changed(valid: World, case: tuple[str, int, object, bool, bool]) -> None:
    """Whatever is changed: nothing loads, or what nobody reads was changed and the same model loads."""
    what, where, value, drop, flip = case
    world = valid.copy()
    loaded = world.load()
    deployed, entry = read_json(world.store, SLOT), read_json(world.store, keys.warrant(2))
    envelope = json.loads(base64.b64decode(entry["envelope"]))
    tree = {"deployment": deployed, "envelope and all digests": envelope}.get(what, entry)
    rows = [*paths(tree)][1:]  # not the whole
    path = rows[where % len(rows)]
    before = at(tree, path)
    if flip and isinstance(before, str) and before:
        place = where % len(before)
        value = before[:place] + ("b" if before[place] == "a" else "a") + before[place + 1 :]
    mutated = copy.deepcopy(tree)
    if drop:
        del at(mutated, path[:-1])[path[-1]]
    else:
        at(mutated, path[:-1])[path[-1]] = value
    if what == "deployment":
        put_json(world.store, SLOT, mutated)
    elif what == "entry":
        put_json(world.store, keys.warrant(2), mutated)
    elif what == "entry and its digest":
        put_entry(world.store, 2, mutated)
    else:
        put_entry(world.store, 2, {**entry, "envelope": as_base64(mutated)})
    try:
        after = world.load()
    except Refused:
        return
    same = not drop and type(value) is type(before) and value == before
    unread = what != "entry" and (path in NOT_READ or (path == ("protocol",) and drop))
    assert same or unread, (what, path, value)
    assert (after.path, after.record, after.seed) == (loaded.path, loaded.record, loaded.seed)


def as_base64(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


# -------------------------------------------------------------------------------------- cache


def test_a_poisoned_cache_is_found_and_fetched_anew(
    world: World, deployed: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    path = world.load().path
    good = (path / WEIGHTS).read_bytes()

    def other_bytes() -> None:
        (path / WEIGHTS).chmod(0o600)
        (path / WEIGHTS).write_bytes(flipped(good, 2))

    def a_link_to_the_right_bytes() -> None:
        (world.cache / "elsewhere").write_bytes(good)
        (path / WEIGHTS).unlink()
        (path / WEIGHTS).symlink_to(world.cache / "elsewhere")

    def a_file_more() -> None:
        (path / "sitecustomize.py").write_text("")

    def a_folder_that_is_a_link() -> None:
        (path / "more").symlink_to("/")

    def a_file_less() -> None:
        (path / WEIGHTS).unlink()

    def a_link_in_its_place() -> None:
        path.rename(world.cache / "moved")
        path.symlink_to(world.cache / "moved")

    def a_pipe() -> None:
        (path / WEIGHTS).unlink()
        os.mkfifo(path / WEIGHTS)

    for poison in (
        other_bytes, a_link_to_the_right_bytes, a_file_more, a_folder_that_is_a_link, a_file_less,
        a_link_in_its_place, a_pipe,
    ):  # fmt: skip
        caplog.clear()
        poison()
        loaded = world.load()
        assert loaded.path == path and not path.is_symlink()
        assert [p.name for p in path.iterdir()] == [WEIGHTS], poison.__name__
        assert not (path / WEIGHTS).is_symlink() and (path / WEIGHTS).read_bytes() == good
        assert "it is fetched again" in caplog.text, poison.__name__


def test_a_pipe_is_no_empty_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    found = [cache._digest(tmp_path / name, 0) for name in ("pipe", "file", "gone")]
    assert found == [None, sha256_hex(b""), None]


def test_a_good_cache_is_not_fetched_again(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.load()
    monkeypatch.setattr(world.store, "get_file", None)
    assert world.load().path == first.path


def test_a_cache_that_others_can_write_is_refused(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cache.mkdir()
    world.cache.chmod(0o777)
    with pytest.raises(WrongCall, match=r"this user alone can write.* chmod 700"):
        world.load()
    world.cache.chmod(0o755)
    world.load()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(WrongCall, match="this user alone can write"):
        world.load()


def test_a_cache_that_is_a_file(world: World, deployed: Deployment) -> None:
    world.cache.write_text("")
    with pytest.raises(WrongCall, match="cannot be used"):
        world.load()


def test_builds_are_digested_once_and_kept_for_this_user_alone(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def measure(use_torch: bool, known: dict[str, str]) -> dict[str, object]:
        given.append(dict(known))
        known["1-2-3-4-5"] = "build"
        known[f"1-2-3-4-{SYSTEM.wall_s() * 1e9:.0f}"] = "of a RECORD that was just written"
        known["no mark"] = "build"
        return copy.deepcopy(MEASURED)

    monkeypatch.setattr(fingerprint, "measure", measure)
    world.load()
    world.load()
    world.cache.chmod(0o777)
    with pytest.raises(WrongCall):
        world.load()
    world.cache.chmod(0o700)
    (world.cache / "builds.json").write_text('{"1-2-3-4-5": 1, ')
    world.load()
    assert given == [{}, {"1-2-3-4-5": "build"}, {}, {}]


def test_who_only_loads_imports_no_other_record_and_no_store_it_does_not_open() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    program = "import sys, tenure_live; print([n for n in sys.modules if n.startswith('tenure_')])"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for module in ("records", "store.s3", "store.memory", "store.directory"):
        assert f"'tenure_protocol.{module}'" not in done.stdout
    assert "'tenure_protocol.snapshots'" in done.stdout


def test_two_that_fetch_at_once_end_with_one_folder(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_get = world.store.get_file
    inner: list[Model] = []

    def slow(key: str, path: Path) -> bool:
        if not inner:
            monkeypatch.setattr(world.store, "get_file", plain_get)
            inner.append(world.load())
        return plain_get(key, path)

    monkeypatch.setattr(world.store, "get_file", slow)
    assert world.load() == inner[0]
    assert {p.name for p in world.cache.iterdir() if p.is_dir()} == {inner[0].path.name}


def test_what_a_killed_process_left_is_removed_after_a_day(
    world: World, deployed: Deployment
) -> None:
    old, young = world.cache / ".new-old", world.cache / ".new-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"x")
    os.utime(old, (1, SYSTEM.wall_s() - 90_000))
    world.cache.chmod(0o700)
    world.load()
    assert young.is_dir() and not old.exists()


# -------------------------------------------------------------------------------- environment


def measured(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    found = {**copy.deepcopy(MEASURED), **changes}
    monkeypatch.setattr(fingerprint, "measure", lambda use_torch=True, known=None: found)


def packages(**changes: str | None) -> dict[str, str]:
    found = {**MEASURED["packages"], **changes}  # type: ignore[dict-item]
    return {name: version for name, version in found.items() if version is not None}


@pytest.mark.parametrize("name", [n for n in REQUIRED if not isinstance(REQUIRED[n], Mapping)])
def test_each_field_of_the_environment_counts(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    measured(monkeypatch, **{name: "another"})
    error = world.refused(rf"not the environment that the warrant demands: {name} is 'another'")
    assert [item.field for item in error.differences] == [name]
    assert not world.cache.exists(), "nothing is fetched for a model that may not be used"


def test_a_changed_environment_under_warn(
    world: World,
    deployed: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    measured(monkeypatch, packages=packages(numpy="2.5"), kernel="another")
    world.refused(r"packages.numpy is '2.5' where '2.4.6' is required")
    with caplog.at_level(logging.WARNING, "tenure_live"):
        loaded = world.load(environment="warn")
    assert [item.field for item in loaded.differences] == ["packages.numpy"]
    assert "packages.numpy is '2.5'" in caplog.text
    with pytest.raises(WrongCall, match="no policy 'ignore'"):
        world.load(environment="ignore")


def test_fields_that_an_operator_has_judged(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, packages=packages(numpy=None))
    world.refused("packages.numpy is nothing")
    for allow in (["packages.numpy"], ["packages"]):
        assert [d.field for d in world.load(allow=allow).differences] == ["packages.numpy"]
    world.refused("packages.numpy is nothing", allow=["packages.num"])
    with pytest.raises(WrongCall, match="are lists"):
        world.load(allow="packages")


def in_an_environment(**fields: object) -> Callable[[Said], None]:
    """The statement with a requirement that has these fields beside the usual ones."""
    required = {**REQUIRED, **fields}
    name = environment_digest(required)

    def change(said: Said) -> None:
        said["predicate"] |= {"environment": name, "environments": {name: required}}

    return change


def test_what_the_warrant_says_nothing_of_is_told_and_refuses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: dict[str, object] = {
        "packages": {**REQUIRED["packages"], "server": None},  # type: ignore[dict-item]
        "builds": {"numpy": "abc", "server": None},
    }
    put_live(world.store, world.record, world.key, change=in_an_environment(**tables))
    measured(monkeypatch, packages=packages(server="1"), builds={"numpy": "abc", "server": "def"})
    for pinned in (False, True):
        beside = [d.field for d in world.load(pin=pinned).differences]
        assert beside == ["builds.server", "packages.server"]


def test_another_version_is_another_build_and_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = in_an_environment(builds={"numpy": "abc", "torch": "abc"})
    put_live(world.store, world.record, world.key, change=change)
    measured(monkeypatch, packages=packages(numpy="2.5"), builds={"numpy": "def", "torch": "def"})
    error = world.refused("demands: builds.torch .*; packages.numpy is '2.5'")
    assert "builds.numpy" not in str(error) and len(error.differences) == 3
    world.refused("demands: builds.torch is 'def'", allow=["packages.numpy"])
    world.refused("packages.numpy is '2.5'", allow=["builds"])
    world.load(allow=["packages"])


def test_many_differences_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    put_live(world.store, world.record, world.key)
    measured(monkeypatch, card="x", cuda="x", cudnn="x", driver="x", python="x", torch="x")
    error = world.refused("driver is 'x' .*; and 2 more; ")
    assert len(error.differences) == 6 and "python" not in str(error)


def switches(**changes: object) -> dict[str, object]:
    return {**MEASURED["determinism"], **changes}  # type: ignore[dict-item]


def test_what_a_process_chooses_counts_when_it_is_pinned(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[Mapping[str, object]] = []
    monkeypatch.setattr(fingerprint, "apply_determinism", applied.append)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    measured(monkeypatch, determinism=switches(threads=8, pythonhashseed="7"))
    loaded = world.load()
    assert [d.field for d in loaded.differences] == [
        "determinism.pythonhashseed", "determinism.threads",
    ]  # fmt: skip
    assert applied == []
    error = world.refused("start this process with .*PYTHONHASHSEED=0", pin=True)
    assert [d.field for d in error.differences] == [d.field for d in loaded.differences]
    assert applied == [REQUIRED]


def test_digits_count_always_where_they_are_taken(
    world: World, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, determinism=switches(float32_matmul_precision="medium"))
    world.refused("float32_matmul_precision is 'medium'.*load with pin=True")
    measured(monkeypatch, determinism=switches(allow_tf32=True))
    world.refused("allow_tf32 is True")
    put_live(world.store, world.record, world.key, change=in_an_environment(card="cpu"))
    measured(monkeypatch, determinism=switches(allow_tf32=True), card="cpu")
    world.load()


def test_torch_is_imported_for_a_warrant_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def measure(use_torch: bool, known: object) -> dict[str, object]:
        asked.append(use_torch)
        return {}

    monkeypatch.setattr(fingerprint, "measure", measure)
    for loaded, there, wanted in (
        (False, True, "none: torch is not installed"),
        (False, True, "2.13.0 git abc"),
        (True, True, "none: torch is not installed"),
        (False, False, "none: torch is not installed"),
    ):
        monkeypatch.setattr(here, "_loaded", lambda found=loaded: found)
        monkeypatch.setattr(here, "_installed", lambda found=there: found)
        here.differences({"torch": wanted}, False, (), {})
    assert asked == [False, True, True, True]


# ------------------------------------------------------------------------------------ command


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out.strip(), err.strip()


def test_the_command_prints_the_path_and_nothing_else(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = DirectoryStore(tmp_path / "store")
    for key, (body, _) in world.store._objects.items():
        store.create(key, body)
    key = public_pem(tmp_path, world.key)
    how = ["--store", store.url, "--key", str(key), "--cache", str(tmp_path / "c")]
    assert told([NAME, *how], capsys)[::2] == (
        1, "tenure: nothing is deployed there: deployments/vol/current does not exist; deploy a model, "
        "or correct the name",
    )  # fmt: skip
    put_live(store, world.record, world.key)
    code, out, err = told([NAME, *how], capsys)
    assert (code, err) == (0, "") and Path(out, WEIGHTS).is_file()
    named = TrustedKey.of(key.read_bytes()).id
    assert told([NAME, *how, "--revoked", f"{named}=0"], capsys)[0] == 1
    assert told([NAME, *how, "--revoked", named], capsys)[0] == 2
    assert told(["../x", *how], capsys)[0] == 2
    assert told([NAME, "--store", f"file:{tmp_path}/none", "--key", str(key)], capsys)[0] == 2
    measured(monkeypatch, python="CPython 4.0")
    assert told([NAME, *how], capsys)[0] == 1
    assert told([NAME, *how, "--allow", "python"], capsys)[0] == 0
    assert told([NAME, *how, "--environment", "warn"], capsys)[0] == 0
    entry = tmp_path / "store" / keys.warrant(1)
    entry.chmod(0)
    if os.geteuid():
        assert told([NAME, *how], capsys)[0] == 3
    assert isinstance(store.read(SHADOW), Missing)
    with pytest.raises(SystemExit) as ended:
        main([NAME, "--key", str(key), "--store", ""])
    assert ended.value.code == 2
