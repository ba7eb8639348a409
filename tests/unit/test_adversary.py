"""Who can write the store, and holds no deploy key, gets no model deployed: one sentence per attack.

And the same for whatever hypothesis does to any stored object of a valid deployment, in place or with
every id and digest that follows from it made anew, as far as an attacker can make it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gates import objects as objects_of_gates
from gates.check import check_record
from gates.deploy import deploy
from gates.slots import proved
from gates.trust import Trust
from gates.verdict import deployable
from gates.warrant import BadWarrant, DeployKey, append, make_key, read_log
from tenure.errors import Blocked
from tenure_protocol.codec import Corrupt, Json, canonical, encode, sha256_hex
from tenure_protocol.fingerprint import FIELD_CLASSES
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, Manifest, Member, ModelRecord, Witness, load
from tenure_protocol.store.memory import MemoryStore
from tests.readdressed import Objects, body_of, kind_of, readdressed, snapshot_of, store_of
from tests.record_builders import (
    EXPERIMENT,
    MEASURED,
    REQUIRED,
    RESEARCH,
    TERMS,
    losses_of,
    overwrite,
    put,
    research,
    retrain,
)
from tests.trees import Path_, at, paths

#: Seeds of jobs that the valid record and its parent do not have.
NEW, OLD = (21, 22, 23, 24, 25), (6, 7, 8, 9, 10)

Attack = Callable[[MemoryStore, ModelRecord, ModelRecord], ModelRecord]


def first(record: ModelRecord, **changes: object) -> ModelRecord:
    """The record with another first member, which is the one to be deployed."""
    member: Member = replace(record.members[0], **changes)  # type: ignore[arg-type]
    return replace(record, members=(member, *record.members[1:]))


def one_byte_of_the_weights(store: MemoryStore, _: ModelRecord, good: ModelRecord) -> ModelRecord:
    ref = good.members[0].train
    key = keys.snapshot(ref.job, ref.pointer) + "weights.bin"
    overwrite(store, key, body_of(store, key)[:-1] + b"!")
    return good


def cherry_picked(store: MemoryStore, _: ModelRecord, good: ModelRecord) -> ModelRecord:
    """The backtest ran twice, and the record shows the second."""
    ref = good.members[0].backtest_job
    assert ref is not None
    spec = load(JobSpec, body_of(store, keys.job(ref.job)), "spec")
    again = replace(spec, run=1)
    for row in list(store.list(f"jobs/{spec.id}/")):
        body = body_of(store, row.key).replace(spec.id.encode(), again.id.encode())
        store.create(row.key.replace(spec.id, again.id), body)
    overwrite(store, keys.job(again.id), encode(again))
    prefix = f"jobs/{again.id}/attempts/00001/milestones/"
    old = body_of(store, f"{prefix}10-1/manifest.json")
    last = body_of(store, f"{prefix}20-1/manifest.json")
    was = json.loads(last)["parent"]["digest"]
    last = last.replace(was.encode(), sha256_hex(old).encode())
    overwrite(store, f"{prefix}20-1/manifest.json", last)
    pointer = replace(ref.pointer, digest=sha256_hex(last))
    witness = Witness.decode(body_of(store, keys.witness_of(spec)), "witness")
    store.create(keys.witness_of(again), replace(witness, job=again.id, pointer=pointer).encode())
    return put(store, first(good, backtest_job=replace(ref, job=again.id, pointer=pointer)))


def overwritten(store: MemoryStore, _: ModelRecord, good: ModelRecord) -> ModelRecord:
    overwrite(store, keys.model(EXPERIMENT, good.id), encode(replace(good, code="code2")))
    return good


#: Attack, the gate that answers it, and words that no other attack is answered with.
ATTACKS: dict[str, tuple[Attack, str, str]] = {
    "generation 1": (
        lambda store, parent, good: parent,
        "generation",
        "this is a generation-1 (research) model",
    ),
    "a forged generation": (
        lambda store, parent, good: put(store, replace(parent, generation=2, parent=parent.id)),
        "lineage",
        "a training of the parent is passed off as a retrain",
    ),
    "a generation there is not": (
        lambda store, parent, good: put(store, replace(good, generation=3)),
        "generation",
        "the record claims generation 3",
    ),
    "a parent that failed": (
        lambda store, parent, good: retrain(store, research(store, score=0.1, seeds=OLD)),
        "parent",
        "did not pass its backtest (the mean score",
    ),
    "a failed parent whose flag was set": (
        lambda store, parent, good: retrain(
            store,
            put(
                store,
                replace(research(store, score=0.1, seeds=OLD), passed_backtest=True, reasons=()),
            ),
        ),
        "parent",
        "says it passed its backtest, its numbers do not",
    ),
    "a parent of generation 2": (
        lambda store, parent, good: retrain(store, good, seeds=(21, 22, 23, 24, 25)),
        "parent",
        "is of generation 2, not 1",
    ),
    "no parent": (
        lambda store, parent, good: retrain(store, None),
        "parent",
        "the record names no parent",
    ),
    "another config": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, config={"lr": 0.1}),
        "lineage",
        "its config is",
    ),
    "another code": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, code="code2"),
        "lineage",
        "its code is",
    ),
    "other data": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, data="data2"),
        "lineage",
        "its data is",
    ),
    "seeds of the parent": (
        lambda store, parent, good: retrain(store, parent, seeds=(11, 12, 13, 14, 1)),
        "lineage",
        "shares the seeds 1 with its parent",
    ),
    "a margin edited after the retrain": (
        lambda store, parent, good: put(store, replace(good, promote=replace(TERMS, margin=0.5))),
        "lineage",
        "promote.margin was 0.05 when the parent was promoted and is 0.5 now",
    ),
    "unpinned": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, requires=None),
        "pinned",
        "was not pinned: its job required no environment",
    ),
    "measured elsewhere": (
        lambda store, parent, good: retrain(
            store, parent, seeds=NEW, measured={**MEASURED, "card": "another card"}
        ),
        "measured",
        "ran elsewhere: card is 'another card'",
    ),
    "an unpinned backtest": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, backtest_requires=None),
        "pinned",
        "the backtest of seed 21 was not pinned",
    ),
    "a backtest without the flag": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, deployable=False),
        "backtest",
        "does not bear the deployable flag",
    ),
    "a backtest of another model": (
        lambda store, parent, good: put(
            store, first(good, backtest_job=good.members[1].backtest_job)
        ),
        "backtest",
        "its backtest is of another model",
    ),
    "a backtest that failed": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, passed=False),
        "backtest",
        "did not pass: no reason given",
    ),
    "a score below": (
        lambda store, parent, good: retrain(store, parent, seeds=NEW, score=0.4),
        "score",
        "the score is 0.4, at least 0.5 is asked",
    ),
    "worse than the parent": (
        lambda store, parent, good: retrain(
            store, parent, seeds=NEW, losses=lambda s: losses_of(s, 0.2)
        ),
        "spread_mean",
        "not proved to be not worse",
    ),
    "one byte of the weights": (one_byte_of_the_weights, "integrity", "the bytes of jobs/"),
    "weights of another seed": (
        lambda store, parent, good: put(store, first(good, files=good.members[1].files)),
        "integrity",
        "are not those of its manifest: weights.bin",
    ),
    "a record that is not stored": (
        lambda store, parent, good: replace(good, experiment="other"),
        "integrity",
        "the record, whose content has this id, is not in the store",
    ),
    "a record overwritten under its own id": (
        overwritten,
        "integrity",
        "does not hold this record",
    ),
    "the second of two backtests": (
        cherry_picked,
        "integrity",
        "which of two results counts is not chosen afterwards",
    ),
}


def reasons(store: MemoryStore, record: ModelRecord) -> dict[str, str]:
    verdicts = check_record(store, record)
    assert not deployable(verdicts)
    return {item.gate: item.reason for item in verdicts if item.verdict != "PASS"}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, str]]:
    found = {}
    for name, (attack, _, _) in ATTACKS.items():
        store = MemoryStore()
        parent = research(store)
        found[name] = reasons(store, attack(store, parent, retrain(store, parent)))
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_has_a_sentence_of_its_own(
    name: str, answers: dict[str, dict[str, str]]
) -> None:
    _, gate, words = ATTACKS[name]
    assert words in answers[name][gate]
    sentences = {other: answers[other].get(ATTACKS[other][1]) for other in ATTACKS if other != name}
    assert answers[name][gate] not in sentences.values()


@pytest.mark.parametrize("field", sorted(name for name in FIELD_CLASSES if "." not in name))
def test_each_field_of_the_environment(field: str) -> None:
    """Pinned, and measured otherwise: named with both values, or informative and let pass."""
    store = MemoryStore()
    other = copy.deepcopy(MEASURED)
    value = other[field]
    path = field
    if isinstance(value, dict):
        inner = sorted(name for name in value if name not in ("interop_threads", "tenure"))[0]
        path, value[inner] = f"{field}.{inner}", "elsewhere"
    else:
        other[field] = "elsewhere"
    record = retrain(store, research(store), measured=other)
    if FIELD_CLASSES[field] == "informative":
        assert deployable(check_record(store, record))
        return
    said = reasons(store, record)
    assert {"measured"} <= set(said) <= {"measured", "repetition"}  # which measures it as well
    assert f"ran elsewhere: {path} is 'elsewhere' where " in said["measured"]


# ------------------------------------------------------------------------------ the warrant


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeployKey:
    return make_key(tmp_path_factory.mktemp("keys") / "deploy.pem")


def test_what_a_warrant_is_not_for(key: DeployKey, tmp_path: Path) -> None:
    store = MemoryStore()
    parent = research(store)
    good, other = retrain(store, parent), retrain(store, parent, seeds=(31, 32, 33, 34, 35))
    done, second = deploy(store, good, key, "vol"), deploy(store, other, key, "other")
    own = make_key(tmp_path / "own.pem")
    forged = deploy(store, good, own, "own")
    attacks = {
        "another name": replace(done, name="live"),
        "another record": replace(done, record=other.id),
        "another model": replace(
            done, warrant=second.warrant, warrant_digest=second.warrant_digest
        ),
        "a key of one's own": forged,
        "no such warrant": replace(done, warrant=9),
        "another entry": replace(done, warrant=second.warrant),
    }
    said = []
    for deployment in attacks.values():
        with pytest.raises(BadWarrant) as why:
            proved(store, deployment, Trust.only(key.public))
        said.append(str(why.value))
    assert len(set(said)) == len(attacks)


def test_a_record_replayed_under_another_experiment(key: DeployKey) -> None:
    store = MemoryStore()
    good = retrain(store, research(store))
    replayed = put(store, replace(good, experiment="other"))
    said = reasons(store, replayed)
    assert "its experiment is 'vol', the record says 'other'" in said["jobs"]
    with pytest.raises(Blocked):
        deploy(store, replayed, key, "other")


def test_a_log_cut_and_a_log_in_another_order() -> None:
    def logged() -> MemoryStore:
        store = MemoryStore()
        for text in (b"a", b"b", b"c"):
            append(store, lambda _, text=text: text)  # type: ignore[misc]
        return store

    cut, mixed = logged(), logged()
    cut.delete(keys.warrant(2))
    with pytest.raises(BadWarrant, match="lacks entry 2"):
        read_log(cut)
    bodies = [body_of(mixed, keys.warrant(number)) for number in (1, 2)]
    for number, body in zip((2, 1), bodies, strict=True):
        overwrite(mixed, keys.warrant(number), body)
    with pytest.raises(BadWarrant, match="does not follow the one before"):
        read_log(mixed)


# ------------------------------------------------------------------------ any field at all


#: What may change with nothing being refused, and why. By the last key, or ``key kind:path``.
HARMLESS = {
    # of the job's spec: how it is run, not what it computes; each is covered by the job's id
    "spec:stage": "a name of the stage in the plan; the kind says what the job does",
    "spec:milestone_every": "how often it saves",
    "spec:patience_s": "how long it waits for the store",
    "spec:max_silence_s": "how long it may be silent",
    "spec:run": "a rerun counts, unless an earlier run finished well; that is refused",
    # of the witness: the course of the lease; the pointer, phase and result are what counts
    "witness:write_id": "a nonce of the write",
    "witness:seq": "counts writes",
    "witness:attempt": "the pointer has its own",
    "witness:barrier": "of launches",
    "witness:silence_s": "of the lease that is over",
    "witness:held_back": "of a job that is over",
    "witness:launch": "of a job that is over",
    "witness:asked": "of a job that is over",
    "witness:by": "for people",
    "witness:reason": "for people",
    "witness:result": "beside metrics, score, passed and reasons: free words of the experiment",
    # of the manifest: how long things took
    "manifest:median_step_s": "a time",
    "manifest:busy_s": "a time",
    "manifest:from_step": "a count for the speed",
    "manifest:flops_per_step": "for the speed",
    "manifest:dtype": "for the speed",
    "manifest:steps_total": "for the time left",
    "manifest:ratios": "for the lease",
    "manifest:fingerprint": "of a parent, whose environment is no requirement, and beside what is required",
}


_STORE = MemoryStore()
_PARENT = research(_STORE)
_GOOD = retrain(_STORE, _PARENT)
_VALID = snapshot_of(_STORE)
_RESULTS = [
    ref
    for member in (*_GOOD.members, *_PARENT.members)
    for ref in (member.evaluation, member.backtest_job)
]
#: Manifests whose files are read. The weights of seeds that are not deployed, and those of earlier
#: milestones, are not: they go nowhere, and may be terabytes.
_READ = {
    keys.manifest(ref.job, ref.pointer)
    for ref in (_GOOD.members[0].train, *_RESULTS)
    if ref is not None
}


def _like(part: str | int) -> str:
    return part if isinstance(part, str) else "#"


def changed(value: Json, path: Path_, how: str) -> Json:
    """Another value of ``path``; the same one where ``how`` does not fit it."""
    other = copy.deepcopy(value)
    here = at(other, path)
    if how == "add" and isinstance(here, dict):
        here["more"] = "mutated"
    elif how == "add" and isinstance(here, list):
        here.append(copy.deepcopy(here[-1]) if here else "mutated")
    elif how == "swap" and isinstance(here, list) and len(here) > 1:
        here[0], here[-1] = here[-1], here[0]
    elif path:
        place = at(other, path[:-1])
        last = path[-1]
        if how == "drop":
            del place[last]  # type: ignore[union-attr,arg-type]
        elif how == "retype":
            place[last] = [here] if not isinstance(here, list) else {"was": here}  # type: ignore[index,call-overload]
        elif how == "leaf":
            place[last] = (  # type: ignore[index,call-overload]
                not here
                if isinstance(here, bool)
                else here + 1
                if isinstance(here, (int, float))
                else here + "x"
                if isinstance(here, str)
                else None
            )
    return other


HOWS = ("leaf", "drop", "add", "swap", "retype")


def as_required(measured: Json) -> bool:
    """Whether every field of the requirement was measured as required; others are for people."""

    def same(required: object, found: object) -> bool:
        if not isinstance(required, dict):
            return canonical(required) == canonical(found)
        return isinstance(found, dict) and all(
            name in found and same(item, found[name]) for name, item in required.items()
        )

    return same(REQUIRED, measured)


def harmless(key: str, path: Path_, before: Json, after: Json) -> bool:
    kind = kind_of(key)
    types = {"spec": JobSpec, "witness": Witness, "manifest": Manifest, "record": ModelRecord}
    try:
        if load(types[kind], canonical(before), key) == load(types[kind], canonical(after), key):
            return True  # a default that is left out reads as the same object, of the same id
    except Corrupt:
        return False
    if kind == "record":
        return False
    assert isinstance(before, dict) and isinstance(after, dict)
    names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    if kind == "witness" and names == {"result"}:
        one, two = before.get("result"), after.get("result")
        if not isinstance(one, dict) or not isinstance(two, dict):
            return not ({"metrics", "score"} & set(one if isinstance(one, dict) else {}))
        counts = ("metrics", "score", "passed", "reasons")
        return all(one.get(name) == two.get(name) for name in counts)
    if kind == "manifest" and names == {"files"}:
        return key not in _READ
    if kind == "manifest" and names == {"fingerprint"}:
        return before["fingerprint"] == RESEARCH or as_required(after.get("fingerprint"))
    return all(f"{kind}:{name}" in HARMLESS for name in names)


#: One object is changed at a time, and what the others hold is decoded once for all examples.
_decoded = lru_cache(maxsize=4096)(load)


@pytest.fixture(scope="module")
def decoded_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects_of_gates, "load", _decoded)
        yield


def accepted(objects: Objects, record: str) -> bool:
    """Whether a record of this id may be deployed, by what the store holds now."""
    store = store_of(objects)
    body = objects.get(keys.model(EXPERIMENT, record))
    if body is None:
        return False
    try:
        found = load(ModelRecord, body, record)
    except Corrupt:
        return False
    return deployable(check_record(store, found))


def newest(objects: Objects) -> list[str]:
    """Ids of all records there are but the parent: the retrain, mutated or re-addressed."""
    return [
        Path(key).stem
        for key, body in objects.items()
        if key.startswith("models/") and body != _VALID[keys.model(EXPERIMENT, _PARENT.id)]
    ]


def attack(key: str, path: Path_, how: str, everywhere: bool) -> bool:
    """Whether what was changed is accepted, and was not harmless."""
    before = json.loads(_VALID[key])
    after = changed(before, path, how)
    if canonical(after) == canonical(before):
        return False
    body = canonical(after)
    objects = readdressed(_VALID, key, body) if everywhere else {**_VALID, key: body}
    if not any(accepted(objects, record) for record in newest(objects)):
        return False
    return not harmless(key, path, before, after)


#: Every place by its shape: an index of a list is like any other, and so is a job of its kind.
CASES: dict[tuple[object, ...], list[tuple[str, Path_]]] = {}
for _key in sorted(_VALID):
    if kind_of(_key) != "file":
        _value = json.loads(_VALID[_key])
        for _path in paths(_value):
            _shape = (kind_of(_key), _value.get("generation"), *map(_like, _path))
            CASES.setdefault(_shape, []).append((_key, _path))


@given(
    st.sampled_from(list(CASES.values())).flatmap(st.sampled_from),
    st.sampled_from(HOWS),
    st.booleans(),
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_object_of_a_valid_model_can_be_changed(
    decoded_once: None, case: tuple[str, Path_], how: str, everywhere: bool
) -> None:
    key, path = case
    assert not attack(key, path, how, everywhere), (key, path, how)
