"""Stored records: they come back equal, damage is named, a job's id never changes."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_protocol import records
from tenure_protocol.codec import Corrupt, NewerProtocol, canonical, encode, parse
from tenure_protocol.records import (
    PROTOCOL_VERSION,
    Announced,
    BacktestValue,
    FileEntry,
    Holder,
    Intent,
    JobSpec,
    Launch,
    LaunchReceipt,
    Manifest,
    Member,
    MetricValue,
    ModelRecord,
    PlanRecord,
    Pointer,
    Promote,
    Refusal,
    SettlementRecord,
    SnapshotRef,
    Witness,
    load,
    sha256_hex,
)
from tests.unit.records_strategies import manifests, specs, witnesses

POINTER = Pointer(2, 30, 1, 3, "ab" * 32)
SPEC = JobSpec(
    experiment="sp500-vol",
    kind="train",
    stage="training",
    entry_point="examples.sp500.experiment:Volatility",
    config={"model": "gru", "lr": 0.001, "layers": [32, 16], "name": "día"},
    seed=7,
    generation=1,
    code="c" * 26,
    data="d" * 26,
    milestone_every=50,
)
#: A job's id is part of every key it ever wrote: this line may never change within protocol 1.
GOLDEN_ID = "jgtrdlpbbfjfb72pbtobegsx6i"
GOLDEN_BODY = (
    '{"cards":1,"code":"cccccccccccccccccccccccccc","config":{"layers":[32,16],"lr":0.001,'
    '"model":"gru","name":"día"},"data":"dddddddddddddddddddddddddd",'
    '"entry_point":"examples.sp500.experiment:Volatility","experiment":"sp500-vol","generation":1,'
    '"kind":"train","max_silence_s":3600.0,"milestone_every":50,"patience_s":1800.0,"protocol":1,'
    '"run":0,"seed":7,"stage":"training"}'
).encode()


def held(**changes: object) -> Witness:
    start = Witness(
        "j", "held", "w", launch=Launch(1, "here", 60.0), attempt=1, holder=Holder(1, "n")
    )
    return replace(start, **changes)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ round trips


@given(specs)
def test_job_spec_comes_back_with_its_id(spec: JobSpec) -> None:
    found = load(JobSpec, encode(spec), "k")
    assert found == spec
    assert found.id == spec.id


@given(witnesses())
def test_witness_comes_back_and_its_length_speaks(witness: Witness) -> None:
    body = witness.encode()
    assert Witness.decode(body, "k") == witness
    assert len(body) % 8 == witness.residue
    assert body == encode(witness) + b" " * (len(body) - len(encode(witness)))


@given(manifests)
def test_manifest_comes_back(manifest: Manifest) -> None:
    body = encode(manifest)
    assert load(Manifest, body, "k") == manifest
    assert manifest.pointer(body).digest == sha256_hex(body)


OTHERS = [
    Intent("j", 1, "here", "local", "cpu", "tenure-j-1", "d1", 1.5),
    LaunchReceipt("j", 1, "here", "local", "tenure-j-1", "cpu", 1.5, {"pid": 17}),
    SettlementRecord("j", 1, "pending", "still there", 2.5, 60.0),
    SettlementRecord("j", 1, "closed", "gone", 2.5),
    Refusal("j", 0, "the environment differs", ("one", "two")),
    PlanRecord("p", "e", ("a" * 26, "b" * 26), {"team": "me", "budget": {"usd": 3}}, 2),
    ModelRecord(
        "e",
        2,
        "m:C",
        {"a": 1},
        "c",
        "d",
        (1, 2),
        (
            Member(
                1,
                SnapshotRef("j", POINTER),
                {"model.pt": FileEntry("ab", 3)},
                ("env", "other"),
                "env",
                SnapshotRef("k", POINTER),
                {"loss": MetricValue(0.5, "minimize", "1")},
                {"loss": FileEntry("cd", 8)},
                SnapshotRef("l", POINTER),
                BacktestValue(1.0, True, False, ("fine",)),
            ),
            Member(2, SnapshotRef("m", POINTER), {}, ()),
        ),
        {"env": {"card": "cpu"}},
        Promote("loss", "minimize", 0.1, 0.0),
        "parent",
        True,
        False,
        ("because",),
    ),
]


@pytest.mark.parametrize("record", OTHERS, ids=lambda r: type(r).__name__)
def test_other_records_come_back(record: object) -> None:
    assert load(type(record), encode(record), "k") == record


# ----------------------------------------------------------------------------------- the id


def test_the_golden_id() -> None:
    assert encode(SPEC) == GOLDEN_BODY
    assert SPEC.id == GOLDEN_ID


def test_the_id_is_of_the_spec_and_of_nothing_else() -> None:
    assert replace(SPEC, config=dict(reversed(SPEC.config.items()))).id == GOLDEN_ID
    assert replace(SPEC, patience_s=1800, max_silence_s=3600).id == GOLDEN_ID
    ids = {GOLDEN_ID}
    for change in (
        {"run": 1},
        {"seed": 8},
        {"generation": 2},
        {"code": "e"},
        {"data": "e"},
        {"milestone_every": 51},
        {"config": {**SPEC.config, "lr": 0.002}},
        {"requires": {}},
        {"parent": "p"},
        {"model": SnapshotRef("j", POINTER)},
        {"cards": 2},
        {"patience_s": 1.0},
        {"max_silence_s": 1.0},
        {"stage": "other"},
        {"kind": "evaluate"},
        {"entry_point": "m:C"},
        {"experiment": "other"},
    ):
        ids.add(replace(SPEC, **change).id)  # type: ignore[arg-type]
    assert len(ids) == 18


# -------------------------------------------------------------------------------- residues


def test_a_residue_for_each_phase() -> None:
    launch = Launch(1, "here", 60.0)
    by_phase = {
        phase: Witness("j", phase, "w", launch=launch).residue
        for phase in get_args(records.Phase)
        if phase != "held"
    }
    assert by_phase == {"expected": 0, "released": 4, "finished": 5, "revoked": 6, "cancelled": 7}
    assert held().residue == 1
    assert held(pointer=replace(POINTER, ordinal=1)).residue == 2
    assert held(pointer=replace(POINTER, ordinal=2)).residue == 1
    assert held(announced=Announced("evaluating", 90.0)).residue == 3


@given(witnesses(), st.text(max_size=30))
def test_a_renewal_alone_never_changes_the_residue(witness: Witness, write_id: str) -> None:
    renewed = replace(witness, write_id=write_id, seq=witness.seq + 1)
    assert len(renewed.encode()) % 8 == len(witness.encode()) % 8


# ------------------------------------------------------------------------------ what is off


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experiment": "Bad Name"}, "experiment"),
        ({"experiment": "../up"}, "experiment"),
        ({"experiment": ""}, "experiment"),
        ({"experiment": "x" * 64}, "experiment"),
        ({"stage": "a/b"}, "stage"),
        ({"milestone_every": 0}, "milestone_every"),
        ({"generation": 3}, "generation"),
        ({"run": -1}, "run"),
        ({"cards": 0}, "cards"),
        ({"patience_s": 0.0}, "patience_s"),
        ({"max_silence_s": -1.0}, "max_silence_s"),
    ],
)
def test_a_spec_that_cannot_be(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SPEC, **changes)  # type: ignore[arg-type]
    body = canonical({**parse(encode(SPEC)), **changes})
    with pytest.raises(Corrupt, match=words) as caught:
        load(JobSpec, body, "jobs/x/job.json")
    assert "jobs/x/job.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "released"},
        {"holder": None},
        {"attempt": -1},
        {"barrier": -1},
        {"phase": "expected", "holder": None, "launch": None},
        {"phase": "revoked", "holder": None, "announced": Announced("x", 1.0)},
        {"phase": "expected"},
    ],
)
def test_a_witness_that_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        held(**changes)


@given(st.sampled_from(["spec", "witness", "manifest"]), st.data(), st.integers(0, 2**32))
@settings(max_examples=300)
def test_damage_is_corrupt_and_names_the_key(kind: str, data: st.DataObject, seed: int) -> None:
    record: object = data.draw({"spec": specs, "witness": witnesses(), "manifest": manifests}[kind])
    body = bytearray(record.encode() if isinstance(record, Witness) else encode(record))
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(body))
        body[at] ^= 1 << draw.randrange(8)
        if draw.random() < 0.2 and at:
            del body[at:]
    try:
        found = load(type(record), bytes(body), "the/key.json")
    except Corrupt as error:  # a damaged version may also read as a newer one
        newer = isinstance(error, NewerProtocol)
        assert str(error).startswith(f"the/key.json {'speaks' if newer else 'is corrupt: '}")
        assert error.key == "the/key.json"
    else:  # damage inside a string or a number can still read as a record
        assert load(type(record), encode(found), "k") == found


def test_every_missing_field_is_named() -> None:
    for record in (SPEC, held(), Manifest("j", 1, 2, 3, 4, {}, {})):
        whole = parse(encode(record))
        for field in fields(record):  # type: ignore[arg-type]
            less = {name: item for name, item in whole.items() if name != field.name}
            try:
                load(type(record), canonical(less), "k")
            except Corrupt as error:
                assert repr(field.name) in str(error) or field.name in ("holder",)


@pytest.mark.parametrize("record", [SPEC, held(), Manifest("j", 1, 2, 3, 4, {}, {})])
def test_a_newer_protocol_names_both_versions(record: object) -> None:
    body = canonical({**parse(encode(record)), "protocol": 7, "unheard_of": 1})
    with pytest.raises(NewerProtocol) as caught:
        load(type(record), body, "the/key")
    words = str(caught.value)
    assert "the/key" in words and "protocol 7" in words and f"speaks {PROTOCOL_VERSION}" in words
    assert caught.value.found == 7


@pytest.mark.parametrize("protocol", [0, -1, True, "1", 1.0, None])
def test_a_protocol_that_never_was_is_corrupt(protocol: object) -> None:
    body = canonical({**parse(encode(SPEC)), "protocol": protocol})
    with pytest.raises(Corrupt, match="protocol"):
        load(JobSpec, body, "k")
