"""What a record says beyond digests: each statement that its own evidence does not bear is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from gates.check import check_record
from gates.verdict import deployable
from tenure_protocol.codec import canonical
from tenure_protocol.lease import keys
from tenure_protocol.records import Member, ModelRecord, SnapshotRef, load
from tenure_protocol.store.memory import MemoryStore
from tests.readdressed import Objects, readdressed, snapshot_of, store_of
from tests.record_builders import EXPERIMENT, METRIC, put, research, retrain

_STORE = MemoryStore()
_PARENT = research(_STORE)
_GOOD = retrain(_STORE, _PARENT)
_VALID = snapshot_of(_STORE)
_FIRST, _SECOND = _GOOD.members[:2]
assert _FIRST.evaluation and _FIRST.backtest_job and _SECOND.backtest


def said(store: MemoryStore, record: ModelRecord, gate: str) -> str:
    verdicts = check_record(store, record)
    assert not deployable(verdicts)
    return next(item.reason for item in verdicts if item.gate == gate)


def second(**changes: object) -> ModelRecord:
    """The record with another second member, which no other gate looks at alone."""
    member: Member = replace(_SECOND, **changes)  # type: ignore[arg-type]
    return replace(_GOOD, members=(_FIRST, member, *_GOOD.members[2:]))


RECORDS = {
    "a flag against its numbers": (
        replace(_GOOD, passed_metrics=False),
        "says passed_metrics False, its own numbers say True",
    ),
    "a reason that is none": (replace(_GOOD, reasons=("x",)), "says reasons ['x']"),
    "an environment of nobody": (
        replace(_GOOD, environments={**_GOOD.environments, "a" * 26: {}}),
        f"holds the environment {'a' * 26}, which no member names",
    ),
    "an environment that was not measured": (
        second(measured=(*_SECOND.measured, str(_SECOND.requires))),
        "seed 12: it names an environment that no snapshot of its training measured",
    ),
    "an environment twice": (second(measured=_SECOND.measured * 2), "are not in the order of"),
    "a flag taken away": (
        second(backtest=replace(_SECOND.backtest, deployable=False)),
        "seed 12: its deployable flag is False, and its backtest (passed True, pinned True",
    ),
    "a verdict without a job": (
        second(backtest_job=None),
        "verdict of a backtest and names no job",
    ),
    "a job without a verdict": (
        second(backtest=None),
        "names a backtest job and leaves its verdict",
    ),
    "losses left out": (second(losses={}), "the record leaves out its losses of qlike"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_it_rests_on(name: str) -> None:
    record, words = RECORDS[name]
    store = store_of(_VALID)
    assert words in said(store, put(store, record), "integrity")


def test_a_research_model_never_bears_the_flag() -> None:
    store = MemoryStore()
    record = retrain(store, research(store, deployable=True))
    words = "of the parent: seed 1: its deployable flag is True, and its backtest"
    assert words in said(store, record, "integrity")


# ------------------------------------------- one stored object, and all that follows made anew


def manifest(ref: SnapshotRef) -> str:
    return keys.manifest(ref.job, ref.pointer)


def file(ref: SnapshotRef, name: str) -> str:
    return keys.snapshot(ref.job, ref.pointer) + name


def forged(key: str, edit: Callable[[dict[str, Any]], object]) -> Objects:
    value = json.loads(_VALID[key])
    edit(value)
    return readdressed(_VALID, key, canonical(value))


def retrained(objects: Objects) -> ModelRecord:
    found = [
        load(ModelRecord, body, key) for key, body in objects.items() if key.startswith("models/")
    ]
    (record,) = [record for record in found if record.generation == 2]
    return record


def _renumbered() -> Objects:
    """As if a snapshot between the two had been left out."""
    found = dict(_VALID)
    while stale := [key for key, body in found.items() if b'"ordinal":2' in body]:
        key = stale[0]
        found = readdressed(found, key, found[key].replace(b'"ordinal":2', b'"ordinal":3'))
    return found


_SPEC = keys.job(_FIRST.evaluation.job)
_BACKTEST = file(_FIRST.backtest_job, "backtest.json")
_EVALUATION = file(_FIRST.evaluation, "evaluation.json")
_LENGTH = len(_VALID[_EVALUATION])
_AGAIN = cast(SnapshotRef, _FIRST.repetition)
OBJECTS: dict[str, tuple[Callable[[], Objects], str, str]] = {
    "a parent without one of its seeds": (
        lambda: forged(keys.model(EXPERIMENT, _PARENT.id), lambda r: r["members"].pop()),
        "parent",
        "its members are not those of its seeds, in their order",
    ),
    "an environment of the parent that was edited": (
        lambda: forged(
            keys.model(EXPERIMENT, _PARENT.id),
            lambda r: next(iter(r["environments"].values())).update(card="other"),
        ),
        "integrity",
        "was edited: its content has another digest",
    ),
    "a parent that leaves out what it measured": (
        lambda: forged(
            keys.model(EXPERIMENT, _PARENT.id), lambda r: r["members"][1]["measured"].clear()
        ),
        "integrity",
        "seed 2: it leaves out an environment that a snapshot of its training measured",
    ),
    "a snapshot of another step": (
        lambda: forged(manifest(_FIRST.train), lambda m: m.update(step=21)),
        "integrity",
        "says it is snapshot (1, 21, 1, 2)",
    ),
    "a line cut short": (
        lambda: forged(manifest(_FIRST.train), lambda m: m.pop("parent")),
        "integrity",
        "is cut: number 2 names none before it",
    ),
    "a line with a gap": (_renumbered, "integrity", "leaves some out between 1 and 3"),
    "a witness of another job": (
        lambda: forged(
            keys.witness(EXPERIMENT, _FIRST.train.job), lambda w: w.update(job=_SECOND.train.job)
        ),
        "integrity",
        f"is the witness of job {_SECOND.train.job}",
    ),
    "other cards": (
        lambda: forged(keys.job(_SECOND.train.job), lambda s: s.update(cards=2)),
        "integrity",
        "took different numbers of cards: 1 in job ",
    ),
    "a repetition whose line is cut short": (
        lambda: forged(manifest(_AGAIN), lambda m: m.pop("parent")),
        "integrity",
        f"the line of snapshots of job {_AGAIN.job} is cut: number 2 names none before it",
    ),
    "a repetition with the witness of another job": (
        lambda: forged(
            keys.witness(EXPERIMENT, _AGAIN.job), lambda w: w.update(job=_SECOND.train.job)
        ),
        "integrity",
        f"{keys.witness(EXPERIMENT, _AGAIN.job)} is the witness of job {_SECOND.train.job}",
    ),
    "a repetition on other cards": (
        lambda: forged(keys.job(_AGAIN.job), lambda s: s.update(cards=2)),
        "integrity",
        "took different numbers of cards: 1 in job ",
    ),
    "an evaluation with another seed": (
        lambda: forged(_SPEC, lambda s: s.update(seed=12)),
        "jobs",
        "its seed is 12, the record says 11",
    ),
    "an evaluation of another parent": (
        lambda: forged(_SPEC, lambda s: s.update(parent="b" * 26)),
        "jobs",
        f"its parent is '{'b' * 26}', the record says",
    ),
    "an evaluation that was not pinned": (
        lambda: forged(_SPEC, lambda s: s.pop("requires")),
        "pinned",
        "the evaluation of seed 11 was not pinned",
    ),
    "an evaluation pinned to something else": (
        lambda: forged(_SPEC, lambda s: s["requires"].update(card="other")),
        "pinned",
        "the evaluation of seed 11 required another environment",
    ),
    "an evaluation measured elsewhere": (
        lambda: forged(
            manifest(_FIRST.evaluation), lambda m: m["fingerprint"].update(card="other")
        ),
        "measured",
        "seed 11 ran elsewhere: card is 'other'",
    ),
    "an earlier backtest attempt elsewhere": (
        lambda: forged(
            keys.manifest(_FIRST.backtest_job.job, replace(_FIRST.backtest_job.pointer, step=10)),
            lambda m: m["fingerprint"].update(card="other"),
        ),
        "measured",
        "seed 11 ran elsewhere: card is 'other'",
    ),
    "another size of the losses": (
        lambda: forged(
            manifest(_FIRST.evaluation), lambda m: m["files"][f"losses/{METRIC}.f64"].update(size=8)
        ),
        "integrity",
        "are not those of its evaluation's manifest",
    ),
    "another size of the verdict": (
        lambda: forged(
            manifest(_FIRST.backtest_job), lambda m: m["files"]["backtest.json"].update(size=8)
        ),
        "integrity",
        f"the bytes of {_BACKTEST} are not those that its manifest names",
    ),
    "a verdict that is missing": (
        lambda: {key: body for key, body in _VALID.items() if key != _BACKTEST},
        "integrity",
        f"{_BACKTEST} is missing: a job of its kind writes it",
    ),
    "metrics that are no JSON": (
        lambda: readdressed(_VALID, _EVALUATION, b"{" * _LENGTH),
        "integrity",
        f"{_EVALUATION} is no JSON",
    ),
    "metrics that are no object": (
        lambda: readdressed(_VALID, _EVALUATION, b"[]".ljust(_LENGTH)),
        "integrity",
        f"{_EVALUATION} holds no JSON object",
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_forged_object_is_named(name: str) -> None:
    make, gate, words = OBJECTS[name]
    objects = make()
    assert words in said(store_of(objects), retrained(objects), gate)


def test_losses_of_another_size_in_record_and_manifest() -> None:
    entry = replace(_FIRST.losses[METRIC], size=8)
    objects = forged(
        manifest(_FIRST.evaluation), lambda m: m["files"][f"losses/{METRIC}.f64"].update(size=8)
    )
    record = retrained(objects)
    store = store_of(objects)
    first = replace(record.members[0], losses={METRIC: entry})
    record = put(store, replace(record, members=(first, *record.members[1:])))
    assert "have another size than its evaluation's manifest says" in said(
        store, record, "integrity"
    )


def test_a_score_edited_in_record_and_witness_is_not_that_of_the_snapshot() -> None:
    """The witness is no part of any digest; the files of the snapshot are."""
    assert _FIRST.backtest_job and _FIRST.evaluation and _FIRST.backtest
    objects = forged(
        keys.witness(EXPERIMENT, _FIRST.backtest_job.job), lambda w: w["result"].update(score=9.0)
    )
    store = store_of(objects)
    first = replace(_FIRST, backtest=replace(_FIRST.backtest, score=9.0))
    record = put(store, replace(_GOOD, members=(first, *_GOOD.members[1:])))
    words = "seed 11: its score is 9.0 in the record and 0.8 in backtest.json"
    assert words in said(store, record, "integrity")


def test_metrics_edited_in_record_and_witness_are_not_those_of_the_snapshot() -> None:
    assert _FIRST.evaluation
    objects = forged(
        keys.witness(EXPERIMENT, _FIRST.evaluation.job),
        lambda w: w["result"]["metrics"][METRIC].update(unit="bits"),
    )
    store = store_of(objects)
    first = replace(_FIRST, metrics={METRIC: replace(_FIRST.metrics[METRIC], unit="bits")})
    record = put(store, replace(_GOOD, members=(first, *_GOOD.members[1:])))
    assert "its metrics are not those of evaluation.json" in said(store, record, "integrity")


def test_the_later_of_two_repetitions_is_not_chosen() -> None:
    store = MemoryStore()
    parent = research(store)
    assert deployable(check_record(store, retrain(store, parent)))
    later = retrain(store, parent, again={"run": 1})
    assert later.members[0].repetition != _AGAIN
    assert "which of two results counts is not chosen afterwards" in said(store, later, "integrity")
