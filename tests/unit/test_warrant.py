"""Only the deploy key makes a warrant, and no warrant proves anything but what it says."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.check import check_record
from gates.deploy import deploy
from gates.slots import Deployment, current, proved
from gates.trust import Trust
from gates.verdict import Verdict
from gates.warrant import (
    BadWarrant,
    DeployKey,
    PublicKey,
    append,
    load_deploy_key,
    make_key,
    read_log,
    sign,
    verify,
)
from tenure.errors import Blocked, UsageError
from tenure_protocol.clock import SystemClock
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord, load
from tenure_protocol.store.api import Found, Lost, Outcome, StoreSilent, Unknown
from tenure_protocol.store.memory import MemoryStore
from tests.live_world import texts_of_the_same_bytes
from tests.record_builders import losses_of, overwrite, research, retrain


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeployKey:
    return make_key(tmp_path_factory.mktemp("keys") / "deploy.pem")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def record(store: MemoryStore) -> ModelRecord:
    return retrain(store, research(store))


def signed(store: MemoryStore, record: ModelRecord, key: DeployKey) -> bytes:
    return sign(record, record.members[0], check_record(store, record), key)


# ------------------------------------------------------------------------------------ keys


def test_a_key_is_private_and_comes_back(tmp_path: Path) -> None:
    made = make_key(tmp_path / "keys" / "deploy.pem")
    path = tmp_path / "keys" / "deploy.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = load_deploy_key("file:keys/deploy.pem", root=tmp_path)
    assert loaded.public == made.public
    assert PublicKey.from_pem(path.with_name("deploy.pem.pub").read_bytes()) == made.public
    by_variable = load_deploy_key("env:K", environ={"K": path.read_text()})
    assert by_variable.public == made.public
    with pytest.raises(UsageError, match="never overwritten"):
        make_key(path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deploy.pem"
    make_key(path)
    path.chmod(0o640)
    with pytest.raises(UsageError, match=r"can be read by others \(mode 0640\)"):
        load_deploy_key(f"file:{path}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("env:NOT_SET", r"\$NOT_SET, which is not set"),
        ("env:WRONG", "no unencrypted private key"),
        ("file:gone.pem", "there is no deploy key at"),
        ("vault:x", "must be env:NAME or file:PATH"),
    ],
)
def test_keys_that_are_none(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_deploy_key(source, root=tmp_path, environ={"WRONG": "secret words"})


def test_a_key_is_never_shown(key: DeployKey) -> None:
    assert key.signer.private_bytes.decode() not in repr(key)
    with pytest.raises(UsageError) as error:
        load_deploy_key("env:WRONG", environ={"WRONG": "secret words"})
    assert "secret words" not in str(error.value)


# -------------------------------------------------------------------------------- envelope


def test_a_warrant_says_what_was_proved(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    statement = verify(signed(store, record, key), [key.public])
    member = record.members[0]
    assert statement.subject == {name: entry.sha256 for name, entry in member.files.items()}
    assert (statement.record, statement.deployment) == (record.id, "vol")
    assert statement.predicate["parent"] == record.parent
    assert statement.predicate["environment"] == member.requires
    gates = statement.predicate["gates"]
    assert isinstance(gates, list) and len(gates) == 14


def test_a_blocked_model_gets_no_warrant(store: MemoryStore, key: DeployKey) -> None:
    parent = research(store)
    with pytest.raises(Blocked, match="generation-1"):
        sign(parent, parent.members[0], check_record(store, parent), key)
    with pytest.raises(Blocked, match="no gate was asked"):
        sign(parent, parent.members[0], [], key)


def test_never_the_best_seed(store: MemoryStore, record: ModelRecord, key: DeployKey) -> None:
    with pytest.raises(Blocked, match="never the best"):
        sign(record, record.members[2], check_record(store, record), key)


def test_a_self_made_key_proves_nothing(
    store: MemoryStore, record: ModelRecord, key: DeployKey, tmp_path: Path
) -> None:
    own = make_key(tmp_path / "own.pem")
    with pytest.raises(BadWarrant, match="not signed by a key that is trusted"):
        verify(signed(store, record, own), [key.public])
    with pytest.raises(BadWarrant, match="no public key"):
        verify(signed(store, record, key), [])


@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_no_bit_of_a_warrant_can_be_changed(position: int, bit: int) -> None:
    """What verifies after the change says exactly what was signed."""
    body, key = _ENVELOPE()
    index = position % len(body)
    changed = body[:index] + bytes([body[index] ^ (1 << bit)]) + body[index + 1 :]
    before = verify(body, [key.public])
    try:
        after = verify(changed, [key.public])
    except BadWarrant:
        return
    assert after == before


def _once(make: Callable[[], tuple[bytes, DeployKey]]) -> Callable[[], tuple[bytes, DeployKey]]:
    kept: list[tuple[bytes, DeployKey]] = []

    def get() -> tuple[bytes, DeployKey]:
        if not kept:
            kept.append(make())
        return kept[0]

    return get


def _make_envelope() -> tuple[bytes, DeployKey]:
    from securesystemslib.signer import CryptoSigner

    store, key = MemoryStore(), DeployKey(CryptoSigner.generate_ed25519())
    record = retrain(store, research(store))
    return signed(store, record, key), key


_ENVELOPE = _once(_make_envelope)


def test_another_payload_under_the_signature(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    envelope = json.loads(signed(store, record, key))
    payload = base64.b64decode(envelope["payload"]).replace(record.id.encode(), b"a" * 26)
    envelope["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(BadWarrant, match="not signed"):
        verify(json.dumps(envelope).encode(), [key.public])


def test_a_signature_has_one_text(store: MemoryStore, record: ModelRecord, key: DeployKey) -> None:
    envelope = json.loads(signed(store, record, key))
    (row,) = envelope["signatures"]
    for other in texts_of_the_same_bytes(row["sig"]):
        changed = {**envelope, "signatures": [{**row, "sig": other}]}
        with pytest.raises(BadWarrant, match="not in the form that encoding gives"):
            verify(json.dumps(changed).encode(), [key.public])


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"payload": 1}', b"\xff"])
def test_what_is_no_envelope(key: DeployKey, body: bytes) -> None:
    with pytest.raises(BadWarrant, match="no DSSE envelope"):
        verify(body, [key.public])


# ------------------------------------------------------------------------------------- log


def test_the_log_is_a_chain(store: MemoryStore) -> None:
    assert [append(store, lambda _, text=text: text)[0] for text in (b"a", b"b", b"c")] == [1, 2, 3]
    assert [entry.warrant for entry in read_log(store)] == [b"a", b"b", b"c"]


def test_an_entry_taken_out_is_missed(store: MemoryStore) -> None:
    for text in (b"a", b"b", b"c"):
        append(store, lambda _, text=text: text)
    store.delete(keys.warrant(2))
    with pytest.raises(BadWarrant, match="lacks entry 2"):
        read_log(store)
    with pytest.raises(BadWarrant, match="gap"):
        append(store, lambda _: b"d")


def test_entries_in_another_order_are_found(store: MemoryStore) -> None:
    for text in (b"a", b"b", b"c"):
        append(store, lambda _, text=text: text)
    bodies = [store.read(keys.warrant(number)) for number in (2, 3)]
    for number, found in zip((3, 2), bodies, strict=True):
        assert isinstance(found, Found)
        overwrite(store, keys.warrant(number), found.body)
    with pytest.raises(BadWarrant, match="entry 2 of the log"):
        read_log(store)


# ---------------------------------------------------------------------------------- deploy


def test_deploy_moves_current_and_proves_it(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    assert current(store, "vol") is None
    done = deploy(store, record, key, "vol")
    assert current(store, "vol") == done
    assert (done.seed, done.warrant, done.replaced) == (11, 1, None)
    assert proved(store, done, Trust.only(key.public)).record == record.id


def test_deploying_again_changes_nothing(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    done = deploy(store, record, key, "vol")
    assert deploy(store, record, key, "vol") == done
    assert len(read_log(store)) == 1


def test_a_blocked_record_moves_nothing(store: MemoryStore, key: DeployKey) -> None:
    with pytest.raises(Blocked, match="only a generation-2 retrain"):
        deploy(store, research(store), key, "vol")
    assert current(store, "vol") is None
    assert read_log(store) == []


def test_a_name_that_no_key_can_hold(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    with pytest.raises(UsageError, match="the deployment's name"):
        deploy(store, record, key, "../current")


def test_a_warrant_holds_for_one_name_and_one_model(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    done = deploy(store, record, key, "vol")
    with pytest.raises(BadWarrant, match=r"not .* as 'live'"):
        proved(store, replace(done, name="live"), Trust.only(key.public))
    other = record.members[1]
    with pytest.raises(BadWarrant, match="about other files"):
        proved(store, replace(done, files=other.files), Trust.only(key.public))
    with pytest.raises(BadWarrant, match="is not the warrant"):
        proved(store, replace(done, warrant_digest="0"), Trust.only(key.public))
    with pytest.raises(BadWarrant, match="not in the log"):
        proved(store, replace(done, warrant=7), Trust.only(key.public))


def test_a_forged_current_is_replaced_by_a_proved_one(
    store: MemoryStore, record: ModelRecord, key: DeployKey, tmp_path: Path
) -> None:
    deploy(store, record, make_key(tmp_path / "own.pem"), "vol")
    done = deploy(store, record, key, "vol")
    assert (done.warrant, done.replaced) == (2, 1)
    proved(store, done, Trust.only(key.public))


def test_two_models_in_turn(store: MemoryStore, record: ModelRecord, key: DeployKey) -> None:
    deploy(store, record, key, "vol")
    parent = load_parent(store, record)
    better = retrain(
        store, parent, seeds=(31, 32, 33, 34, 35), losses=lambda seed: losses_of(seed, -0.1)
    )
    done = deploy(store, better, key, "vol")
    assert (done.replaced, done.warrant) == (1, 2)


def load_parent(store: MemoryStore, record: ModelRecord) -> ModelRecord:
    assert record.parent is not None
    key = keys.model(record.experiment, record.parent)
    found = store.read(key)
    assert isinstance(found, Found)
    return load(ModelRecord, found.body, key)


class NoWaiting(SystemClock):
    """The real clock, whose sleep takes no time."""

    sleep = staticmethod(lambda seconds: None)


class Hostile(MemoryStore):
    """Does what ``plan`` says with each conditional write of a deployment, then behaves."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: list[Callable[[Callable[[], Outcome]], Outcome]] = []

    def _through(self, key: str, write: Callable[[], Outcome]) -> Outcome:
        if key.startswith("deployments/") and self.plan:
            return self.plan.pop(0)(write)
        return write()

    def create(self, key: str, body: bytes) -> Outcome:
        return self._through(key, lambda: super(Hostile, self).create(key, body))

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._through(key, lambda: super(Hostile, self).replace(key, body, etag))


def landed(write: Callable[[], Outcome]) -> Outcome:
    write()
    return Unknown("the connection was cut after the write")


def lost_on_the_way(write: Callable[[], Outcome]) -> Outcome:
    return Unknown("the connection was cut before the write")


@pytest.mark.parametrize("faults", [[landed], [lost_on_the_way], [lost_on_the_way, landed]])
def test_an_unknown_outcome_is_settled(
    key: DeployKey, faults: list[Callable[[Callable[[], Outcome]], Outcome]]
) -> None:
    store = Hostile()
    record = retrain(store, research(store))
    store.plan = list(faults)
    done = deploy(store, record, key, "vol")
    assert current(store, "vol") == done
    assert done.replaced is None  # not itself: a write that landed is recognised, not repeated
    assert len(read_log(store)) == 1


def test_a_race_ends_with_the_later_warrant(key: DeployKey) -> None:
    store = Hostile()
    parent = research(store)
    record = retrain(store, parent)
    other = retrain(store, parent, seeds=(31, 32, 33, 34, 35))
    won: list[Deployment] = []

    def another_first(write: Callable[[], Outcome]) -> Outcome:
        won.append(deploy(store, other, key, "vol"))  # logged later, moved earlier
        return write()

    store.plan = [another_first]
    with pytest.raises(Blocked, match="by the later warrant 2"):
        deploy(store, record, key, "vol")
    assert current(store, "vol") == won[0]


def test_a_store_that_never_answers_is_said(key: DeployKey) -> None:
    store = Hostile()
    record = retrain(store, research(store))
    store.plan = [lambda write: Lost()] * 50
    with pytest.raises(StoreSilent, match="do the same again"):
        deploy(store, record, key, "vol", NoWaiting())


def test_verdicts_are_in_the_warrant_with_their_numbers(
    store: MemoryStore, record: ModelRecord, key: DeployKey
) -> None:
    statement = verify(signed(store, record, key), [key.public])
    gates = statement.predicate["gates"]
    assert isinstance(gates, list)
    kept = {g["gate"]: g for g in gates if isinstance(g, dict)}
    verdicts: list[Verdict] = check_record(store, record)
    mean = next(v for v in verdicts if v.gate == "spread_mean")
    assert kept["spread_mean"]["numbers"] == json.loads(encode(mean))["numbers"]
