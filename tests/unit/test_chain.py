"""The chain as a function of the store: jobs are finished by hand here, nothing trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assets.chain import Chain, Incomplete
from tenure.errors import Blocked
from tenure.plan.enlist import enlist, enlist_copy
from tenure.plan.file import load_plan
from tenure.settings import Settings, load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Confirmed, Lease, acquire, change, read_witness
from tenure_protocol.lease.machine import Cancel, Finish, Hold, Move
from tenure_protocol.records import JobSpec, Manifest
from tenure_protocol.store.memory import MemoryStore

PLAN = """\
name: orbit
experiment: tests.orbit.experiment:Orbit
grid: {level: [1, 2]}
seeds: [0, 1]
retrain_seeds: [7, 8]
baseline: {level: 1}
rungs: [local]
promote: {metric: loss, direction: minimize, margin: 0.5, min_score: 0.1}
"""


class Bench:
    """A plan over a memory store."""

    def __init__(self, folder: Path) -> None:
        self.settings: Settings = load_settings(start=folder, environ={})
        file = folder / "plan.yaml"
        file.write_text(PLAN)
        self.plan = load_plan(file, self.settings)
        self.store = MemoryStore()

    def chain(self) -> Chain:
        """A fresh one: nothing is remembered."""
        return Chain(self.store, self.plan, self.settings, SYSTEM)

    def enlist(self, specs: list[JobSpec]) -> None:
        enlist(self.store, "orbit", "orbit", specs, self.plan.terms(), SYSTEM)

    def finish(self, spec: JobSpec, code: int = 0, result: dict[str, object] | None = None) -> None:
        """End a job as a worker would, in local mode."""
        lease = acquire(self.store, keys.witness_of(spec), spec.id, 0, 60.0, 1.0, SYSTEM)
        assert isinstance(lease, Lease)
        if code == 0:
            manifest = Manifest(spec.id, 1, 5, 1, 1, {}, {"python": "3"})
            body = encode(manifest)
            pointer = manifest.pointer(body)
            self.store.create(keys.manifest(spec.id, pointer), body)
            move = Hold(lease.holder, 1, 60.0, None, Move(pointer, None))
            assert isinstance(lease.write(move), Confirmed)
        words = "finished" if code == 0 else "Traceback ...\nOSError: the download broke"
        assert isinstance(
            lease.write(Finish(lease.holder, 1, code, words, result or {})), Confirmed
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_stage_follows_from_the_results_before_it(bench: Bench) -> None:
    training = bench.chain().specs("training")
    assert [(s.config["level"], s.seed) for s in training] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    with pytest.raises(Incomplete) as error:
        bench.chain().specs("metrics")
    assert list(error.value.jobs) == [spec.id for spec in training]
    bench.enlist(training)
    for spec in training:
        bench.finish(spec)
    metrics = bench.chain().specs("metrics")
    assert [spec.model.job for spec in metrics if spec.model] == [spec.id for spec in training]
    assert all(spec.kind == "evaluate" and not spec.pinned for spec in metrics)
    assert metrics == bench.chain().specs("metrics"), "whoever asks gets the same jobs"


def test_a_chain_remembers_what_is_final_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = bench.chain()
    training = chain.specs("training")
    bench.enlist(training)
    with pytest.raises(Incomplete):
        chain.done("training")
    for spec in training:
        bench.finish(spec)
    done = chain.done("training")
    assert [item.spec.id for item in done] == [spec.id for spec in training]
    monkeypatch.setattr(bench.store, "read", None)
    again = chain.done("training")
    assert again == done and again is not done, "what a caller does to it stays with the caller"


def test_a_job_that_ended_otherwise_blocks_until_its_retry_has_finished(bench: Bench) -> None:
    training = bench.chain().specs("training")
    bench.enlist(training)
    for spec in training[1:]:
        bench.finish(spec)
    bench.finish(training[0], code=1)
    with pytest.raises(Blocked, match="ended with code 1: OSError: the download broke"):
        bench.chain().done("training")
    retry = replace(training[0], run=1)
    bench.enlist([retry])
    with pytest.raises(Incomplete) as error:
        bench.chain().done("training")
    assert error.value.jobs == (retry.id,)
    bench.finish(retry)
    done = bench.chain().done("training")
    assert [item.spec.id for item in done] == [retry.id, *(spec.id for spec in training[1:])]
    evaluated = bench.chain().specs("metrics")[0].model
    assert evaluated and evaluated.job == retry.id


def test_of_a_job_and_its_backup_copy_one_result_counts(bench: Bench) -> None:
    """That of the copy once the original is cancelled for it; the original's where both have finished."""
    first, second, *others = bench.chain().specs("training")
    bench.enlist([first, second, *others])
    for spec in others:
        bench.finish(spec)
    for spec in (first, second):
        enlist_copy(bench.store, "orbit", spec, "it is slow", SYSTEM)
    bench.finish(replace(first, run=1))
    with pytest.raises(Incomplete) as error:
        bench.chain().done("training")
    assert error.value.jobs == (first.id, second.id), "it may still finish: nobody has cancelled it"
    key = keys.witness_of(first)
    event = Cancel("dispatcher", "its backup copy was done sooner")
    assert isinstance(
        change(bench.store, key, first.id, read_witness(bench.store, key), event, SYSTEM), Applied
    )
    bench.finish(second)
    bench.finish(replace(second, run=1))
    done = bench.chain().done("training")
    assert [item.spec for item in done[:2]] == [replace(first, run=1), second]


def test_a_corrupt_manifest_blocks_and_is_named(bench: Bench) -> None:
    training = bench.chain().specs("training")
    bench.enlist(training)
    for spec in training:
        bench.finish(spec)
    (key,) = [row.key for row in bench.store.list(f"jobs/{training[2].id}/attempts/")]
    bench.store.delete(key)
    bench.store.create(key, b"{}")
    with pytest.raises(Blocked, match=f"{key} is corrupt"):
        bench.chain().done("training")


def test_edited_terms_change_no_job(bench: Bench, tmp_path: Path) -> None:
    before = [spec.id for spec in bench.chain().specs("training")]
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN.replace("margin: 0.5", "margin: 0.7"))
    bench.plan = load_plan(file, bench.settings)
    assert [spec.id for spec in bench.chain().specs("training")] == before


def test_an_experiment_that_cannot_be_made_is_the_plans_mistake(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.errors import UsageError
    from tests.orbit.experiment import Orbit

    def broken(self: Orbit) -> list[Path]:
        raise KeyError("no such table")

    monkeypatch.setattr(Orbit, "data_files", broken, raising=False)
    with pytest.raises(UsageError, match=r"plan.yaml:2: experiment: .*KeyError: 'no such table'"):
        bench.chain()
