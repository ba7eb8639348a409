"""Any field of a warrant, a log entry or a slot, on the gates' side: never accepted, or never read.

``tests/unit/test_live.py`` has the twin for where a model serves, ``test_adversary.py`` that of records.
"""

from __future__ import annotations

import base64
import copy
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gates.deploy import deploy
from gates.slots import current, proved
from gates.trust import Trust
from gates.verification import Verification, verify_deployment
from gates.warrant import BadWarrant, DeployKey, make_key
from tenure_protocol.codec import Corrupt, canonical, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.store.memory import MemoryStore
from tests.readdressed import Objects, body_of, snapshot_of, store_of
from tests.record_builders import overwrite, research, retrain
from tests.trees import Path_, at, paths

NAME, NUMBER = "vol", 2
SLOT, ENTRY, MOVE = keys.deployment(NAME), keys.warrant(NUMBER), keys.moved(NAME, "live", 2)

#: Of a state: words of the deployer for people, and nonces. What a state says of the moves before it is
#: read by the history, and of the slot's newest one nobody else can know.
UNREAD_OF_SLOT = {"at_s", "write_id", "by", "reason", "what", "rolled_back", "replaced"}
#: What the warrant says nothing of, and `tenure verify` finds by the moves before and after.
READ_BY_THE_HISTORY = {"move", "before", "slot"}
#: Of an entry: the clock of the signer, a nonce.
UNREAD_OF_ENTRY = {"at_s", "write_id"}


@cache
def key() -> DeployKey:
    with TemporaryDirectory() as folder:
        return make_key(Path(folder) / "deploy.pem")


@cache
def valid() -> Objects:
    """A name whose second warrant is live."""
    store = MemoryStore()
    parent = research(store)
    deploy(store, retrain(store, parent), key(), NAME)
    deploy(store, retrain(store, parent, seeds=(31, 32, 33, 34, 35)), key(), NAME)
    return snapshot_of(store)


def read_json(objects: Objects, name: str) -> dict[str, Any]:
    found = json.loads(objects[name])
    assert isinstance(found, dict)
    return found


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**9), st.text(max_size=6), st.just({}), st.just([]),
    st.sampled_from(["0" * 64, "a" * 26, "../x", NAME, "live", "shadow"]),
)  # fmt: skip
WHERE = ("slot", "slot and history", "entry", "entry and its digest", "envelope", "payload")


def mutated(where: str, pick: int, value: object, how: str) -> tuple[Objects, Path_] | None:
    """The store after one field was changed, and which; ``None`` where nothing changed."""
    objects = dict(valid())
    entry = read_json(objects, ENTRY)
    envelope = json.loads(base64.b64decode(entry["envelope"]))
    tree = copy.deepcopy(
        {"slot": read_json(objects, SLOT), "slot and history": read_json(objects, SLOT),
         "envelope": envelope, "payload": json.loads(base64.b64decode(envelope["payload"]))}.get(where, entry)
    )  # fmt: skip
    before = canonical(tree)
    rows = [*paths(tree)][1:]  # not the whole
    path = rows[pick % len(rows)]
    parent, last = at(tree, path[:-1]), path[-1]
    if how == "drop":
        del parent[last]
    elif how == "flip" and isinstance(parent[last], str) and parent[last]:
        text, n = parent[last], pick % len(parent[last])
        parent[last] = text[:n] + ("b" if text[n] == "a" else "a") + text[n + 1 :]
    else:
        parent[last] = value
    if canonical(tree) == before:
        return None
    if where.startswith("slot"):
        objects[SLOT] = canonical(tree)
        if where == "slot and history":
            objects[MOVE] = objects[SLOT]
        return objects, path
    if where == "payload":
        envelope["payload"] = base64.b64encode(canonical(tree)).decode()
        tree = envelope
    if where in ("envelope", "payload"):
        entry["envelope"] = base64.b64encode(canonical(tree)).decode()
        tree = entry
    objects[ENTRY] = canonical(tree)
    if where != "entry":  # as who may write the store would: the slot names what is there now
        state = {**read_json(objects, SLOT), "warrant_digest": sha256_hex(objects[ENTRY])}
        objects[SLOT] = objects[MOVE] = canonical(state)
    return objects, path


def unread(where: str, path: Path_, objects: Objects) -> bool:
    """Whether the field is one of which nothing depends; a default that is left out is the same field."""
    if where.startswith("slot"):
        return path[0] in UNREAD_OF_SLOT or same_state(objects)
    if where == "entry and its digest":
        return path[0] in UNREAD_OF_ENTRY or path == ("protocol",)
    return False


def same_state(objects: Objects) -> bool:
    stored = store_of(objects), store_of(valid())
    return current(stored[0], NAME) == current(stored[1], NAME)


def accepted(objects: Objects) -> tuple[bool, Verification | None]:
    """What ``proved`` and ``tenure verify`` say; the second only where the first believes it."""
    store, trust = store_of(objects), Trust.only(key().public)
    try:
        state = current(store, NAME)
        assert state is not None
        proved(store, state, trust)
    except (BadWarrant, Corrupt, ValueError):
        return False, None
    return True, verify_deployment(store, NAME, trust)


def test_what_is_not_changed_is_accepted() -> None:
    believed, verification = accepted(valid())
    assert believed and verification is not None and verification.ok, verification


@given(
    st.sampled_from(WHERE),
    st.integers(0, 10**6),
    VALUES,
    st.sampled_from(("value", "drop", "flip")),
)
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_field_can_be_changed(where: str, pick: int, value: object, how: str) -> None:
    done = mutated(where, pick, value, how)
    if done is None:
        return
    objects, path = done
    believed, verification = accepted(objects)
    if not believed or verification is None:
        return
    by_history = where.startswith("slot") and path[0] in READ_BY_THE_HISTORY
    by_record = where.startswith("slot") and path[0] == "files" and path[-1] == "size"
    assert by_history or by_record or unread(where, path, objects), (where, path, value, how)
    if not verification.ok:
        return
    assert unread(where, path, objects), (where, path, value, how)
    ours, theirs = (current(store_of(each), NAME) for each in (objects, valid()))
    assert ours is not None and theirs is not None
    same = ("record", "experiment", "seed", "model", "files", "warrant", "name", "slot")
    assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]
    assert verification.statements["live"].predicate == place_predicate()


@cache
def place_predicate() -> object:
    verification = accepted(valid())[1]
    assert verification is not None
    return verification.statements["live"].predicate


def test_an_older_entry_cannot_be_changed_either() -> None:
    """A later warrant was signed behind it."""
    objects = dict(valid())
    first = keys.warrant(1)
    entry = {**read_json(objects, first), "at_s": 1.0}
    store = store_of(objects)
    overwrite(store, first, canonical(entry))
    found = verify_deployment(store, NAME, Trust.only(key().public))
    assert not found.ok and "does not follow the one before" in found.checks[0].detail
    assert body_of(store, ENTRY) == objects[ENTRY]
