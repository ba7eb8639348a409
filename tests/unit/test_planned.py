"""The seeds of a record are those that its plan fixed, as far as the store can say; else it is blocked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gates.planned import planned_seeds
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, ModelRecord, load
from tenure_protocol.store.memory import MemoryStore
from tests.readdressed import body_of
from tests.record_builders import overwrite, planned, put, research, retrain


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def record(store: MemoryStore) -> ModelRecord:
    return retrain(store, research(store))


def answer(store: MemoryStore, record: ModelRecord) -> tuple[str, str]:
    found = planned_seeds(store, record)
    assert found.gate == "seeds"
    return found.verdict, found.reason


def plans(store: MemoryStore) -> list[str]:
    return [row.key for row in store.list(keys.PLANS)]


def test_the_seeds_that_the_plan_fixed(store: MemoryStore, record: ModelRecord) -> None:
    assert answer(store, record) == (
        "PASS",
        "seeds [11, 12, 13, 14, 15] are the plan's retrain_seeds",
    )
    parent = research(store)
    assert answer(store, parent)[0] == "PASS"  # the gate of generations says what it is


def test_seeds_chosen_among_those_of_the_plan(store: MemoryStore, record: ModelRecord) -> None:
    for members in (record.members[1:], record.members[::-1]):
        seeds = tuple(member.seed for member in members)
        verdict, why = answer(store, put(store, replace(record, seeds=seeds, members=members)))
        assert verdict == "BLOCK" and f"and the record has seeds [{seeds[0]}, " in why
        assert "retrain_seeds [11, 12, 13, 14, 15] for the training of seed" in why


def test_seeds_may_be_added_and_none_left_out_after_that(
    store: MemoryStore, record: ModelRecord
) -> None:
    """Not enough seeds: two more are trained, and from then on all seven count."""
    more = retrain(store, record.parent, seeds=(*record.seeds, 16, 17))
    for key in plans(store):
        store.delete(key)
    planned(store, record, version=0)
    planned(store, more, version=1, priority=3)
    assert answer(store, more)[0] == "PASS"
    verdict, why = answer(store, record)
    assert (
        verdict == "BLOCK" and "(version 1) has retrain_seeds [11, 12, 13, 14, 15, 16, 17]" in why
    )
    planned(store, replace(record, members=record.members[:1]), version=2)  # names one of them
    assert answer(store, more)[0] == answer(store, record)[0] == "BLOCK"


def test_other_seeds_of_a_plan_that_went_on_leave_those_before_as_they_were(
    store: MemoryStore, record: ModelRecord
) -> None:
    later = retrain(store, record.parent, seeds=(21, 22, 23, 24, 25))
    planned(store, later, version=1)
    assert answer(store, record)[0] == answer(store, later)[0] == "PASS"


def test_a_rerun_stands_for_the_run_that_the_plan_names(
    store: MemoryStore, record: ModelRecord
) -> None:
    first = record.members[0]
    spec = load(JobSpec, body_of(store, keys.job(first.train.job)), "spec")
    for change, verdict in (
        ({"run": 1}, "PASS"),
        ({"run": 10**12}, "PASS"),
        ({"patience_s": 1.0}, "BLOCK"),
    ):
        again = replace(spec, **change)  # type: ignore[arg-type]
        overwrite(store, keys.job(again.id), encode(again))
        members = (replace(first, train=replace(first.train, job=again.id)), *record.members[1:])
        assert answer(store, replace(record, members=members))[0] == verdict


def test_what_cannot_be_found_out_is_a_no(store: MemoryStore, record: ModelRecord) -> None:
    (key,) = plans(store)
    body = body_of(store, key)
    for edited in (body.replace(b"[11,", b"[12,"), b"{}"):
        overwrite(store, key, edited)
        verdict, why = answer(store, record)
        assert verdict == "BLOCK" and f"{key} was edited" in why
    store.delete(key)
    verdict, why = answer(store, record)
    assert verdict == "BLOCK" and "no plan vol in the store names job" in why
    assert "deploy it through its plan" in why
    planned(store, record, retrain_seeds="all of them")
    assert "has retrain_seeds [] for" in answer(store, record)[1]
