"""The same training twice by real workers on this machine: equal bits, or the tensor that is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from assets.chain import REPETITION
from assets.repetition_command import compared
from gates.evidence import Evidence
from gates.objects import Objects
from gates.repetition import repetition
from tenure.plan.enlist import enlist
from tenure_protocol import fingerprint
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import (
    JobSpec,
    Manifest,
    Member,
    ModelRecord,
    Promote,
    SnapshotRef,
    environment_digest,
)
from tenure_protocol.store.open import open_store
from tenure_worker import code
from tenure_worker.snapshot import read_manifest
from tests.e2e.ladder import Ladder
from tests.e2e.repeat.experiment import EVERY, MODEL, STEPS

REPEAT = "tests.e2e.repeat.experiment:Repeat"
NEEDS_TORCH = True
SEED = 100


def spec(noise: str, **changes: object) -> JobSpec:
    digest, data = code.code_digest(REPEAT), code.data_digest(object())  # type: ignore[arg-type]
    made = JobSpec(
        "repeat", "train", "training", REPEAT, {"noise": noise}, SEED, 1, digest, data, EVERY
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def play(ladder: Ladder, specs: Sequence[JobSpec]) -> list[tuple[SnapshotRef, Manifest]]:
    """Run the jobs to their ends; what each finished with."""
    enlist(ladder.store, "repeat", "repeat", specs, {"rungs": ["local"]}, SYSTEM)
    ladder.dispatcher.follow([each.id for each in specs])
    found = []
    for each in specs:
        w = read_witness(ladder.store, keys.witness_of(each)).witness
        assert w is not None and w.pointer is not None and w.exit_code == 0, w
        found.append(
            (SnapshotRef(each.id, w.pointer), read_manifest(ladder.store, each.id, w.pointer))
        )
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file:{tmp_path_factory.mktemp('repeat') / 'store'}"


@pytest.fixture(scope="module")
def research(
    url: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[SnapshotRef, Manifest]]:
    """The same research training with one and with two threads; by their number."""
    found = {}
    for threads in (1, 2):
        ladder = Ladder(tmp_path_factory.mktemp("ladder"), url=url, threads=threads)
        try:
            found[threads] = play(ladder, [spec("seeded", run=threads)])[0]
        finally:
            ladder.close()
    return found


@pytest.fixture
def ladder(url: str, tmp_path: Path, make_ladder: Callable[..., Ladder]) -> Ladder:
    return make_ladder(tmp_path, url=url, slots=2)


def test_another_number_of_threads_is_found_and_named(
    url: str, research: dict[int, tuple[SnapshotRef, Manifest]]
) -> None:
    jobs = [research[threads][0].job for threads in (1, 2)]
    found, environments = compared(Objects(open_store(url)), *jobs)
    assert found.difference is not None, "two threads gave the bits of one: take a larger network"
    assert found.details["step"] == EVERY and found.details["file"] == MODEL
    assert str(found.details["tensor"]).startswith("tensor ")
    assert f"{found.details['tensor']} of {MODEL} has digest" in found.sentence()
    assert "on one machine" in found.where
    assert any(
        f"determinism.threads was 1 in job {jobs[0]} and 2 in job {jobs[1]}" in words
        for words in environments
    )


@pytest.mark.parametrize("noise", ["seeded", "entropy"])
def test_a_pinned_job_twice(
    ladder: Ladder, research: dict[int, tuple[SnapshotRef, Manifest]], noise: str
) -> None:
    """Equal to the last bit; or, where something draws from entropy, the first tensor that is not."""
    requires = fingerprint.pin(research[1][1].fingerprint)
    model = spec(noise, stage="pinned_retrain", generation=2, requires=requires, parent="p" * 26)
    (ours, first), (theirs, again) = play(ladder, [model, replace(model, stage=REPETITION)])
    pinned, measured = environment_digest(requires), environment_digest(first.fingerprint)
    member = Member(SEED, ours, first.files, (measured,), pinned, repetition=theirs)
    terms = Promote("loss", "minimize", 1.0, 0.0)
    record = ModelRecord(
        "repeat", 2, REPEAT, model.config, model.code, model.data, (SEED,), (member,),
        {pinned: requires, measured: first.fingerprint}, terms, model.parent,
    )  # fmt: skip
    verdict = repetition(Evidence(ladder.store, record))
    if noise == "seeded":
        assert verdict.verdict == "PASS", verdict.reason
        assert f"{STEPS // EVERY} milestones, 2 files in the last" in verdict.reason
        assert first.files == again.files
        return
    assert verdict.verdict == "BLOCK"
    assert (verdict.numbers["step"], verdict.numbers["file"]) == (2 * EVERY, MODEL)
    assert verdict.numbers["equal_milestones"] == 1
    assert verdict.reason.startswith(f"milestone of step {2 * EVERY}: tensor ")
    assert "they ran on one machine" in verdict.reason
