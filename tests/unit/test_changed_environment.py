"""Research that moves to another environment is warned, in log, events and pages, and never refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from assets import materialize
from assets.chain import Chain, Done
from assets.environments import Ran, environment_facts
from assets.facts import Facts, Table
from tenure.cli import grounds
from tenure.plan.file import load_plan
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.records import Manifest, Pointer, Witness
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.record_builders import MEASURED, Wish, spec
from tests.unit.test_chain import PLAN
from tests.unit.worker_world import World

Environment = dict[str, object]


def other(**fields: object) -> Environment:
    return {**copy.deepcopy(MEASURED), **fields}


NEWER = other(packages={**MEASURED["packages"], "numpy": "2.5.0"})  # type: ignore[dict-item]


# ------------------------------------------------------------------------------------ a worker


def moved(there: Environment) -> World:
    """A job whose second attempt runs in another environment than its first."""
    world = World(FakeClock())
    world.measured = MEASURED
    with world.killed() as tenure:
        world.train(tenure, until=35)
    world.clock.sleep(7200.0)
    world.measured = there
    assert world.run() == 0, "research is warned, not refused"
    return world


def test_an_attempt_in_another_environment_is_told_in_log_and_events() -> None:
    world = moved({**NEWER, "cpu_model": "another", "kernel": "6.9"})
    log = world.log()
    assert (
        "tenure: warning: the environment changed since attempt 1: packages.numpy was '2.4.6' and is "
        "'2.5.0' (numeric: another version may compute another result"
    ) in log
    assert "cpu_model was 'some cpu_model' and is 'another' (bitwise: math libraries" in log
    assert log.count("can no longer be made again bit by bit") == 1
    assert "tenure: also changed since attempt 1, and not known to matter: kernel" in log
    told = [event for event in world.events() if "environment_changed_since" in event]
    assert [event["field"] for event in told] == ["cpu_model", "packages.numpy"]
    numpy = told[1]
    assert (numpy["was"], numpy["is"], numpy["class"]) == ("2.4.6", "2.5.0", "numeric")
    assert numpy["known"] == "known" and numpy["environment_changed_since"] == "attempt 1"


def test_in_the_same_environment_nothing_is_told() -> None:
    world = moved(MEASURED)
    assert "environment" not in world.log()
    assert not [event for event in world.events() if "environment_changed_since" in event]


def test_of_many_differences_the_rest_is_counted() -> None:
    packages = {f"p{n}": "1" for n in range(30)}
    world = moved(other(packages={**MEASURED["packages"], **packages}))  # type: ignore[dict-item]
    assert world.log().count("since attempt 1: packages.p") == 20
    assert "tenure: warning: and 10 fields more" in world.log()


def test_why_tells_what_changed_since_the_attempt_before() -> None:
    world = moved(NEWER)
    assert world.witness.pointer
    last = world.manifest(world.witness.pointer)
    (line,) = grounds.moved(world.store.inner, last)
    assert line.startswith(
        "attempt 2 went on in another environment than attempt 1: packages.numpy was '2.4.6' and is"
    )
    same = moved(MEASURED)
    assert same.witness.pointer
    assert grounds.moved(same.store.inner, same.manifest(same.witness.pointer)) == []
    assert grounds.moved(same.store.inner, None) == []


# ------------------------------------------------------------------------------------ the pages


def ran(seed: int, *environments: Mapping[str, object]) -> Ran:
    job = spec(Wish(1, (seed,)), "train", seed)
    manifest = Manifest(job.id, len(environments), 5, 1, 1, {}, dict(environments[-1]))
    done = Done(job, Witness(job.id, "released", "0" * 16), manifest)
    return Ran(done, environments)


def table(facts: Facts, name: str) -> list[Mapping[str, object]]:
    found = facts[name]
    assert isinstance(found, Table)
    return list(found.rows)


def test_seeds_in_different_environments_are_a_warning_and_a_table() -> None:
    facts = environment_facts([ran(1, MEASURED), ran(2, MEASURED, NEWER), ran(3, MEASURED)])
    warning = str(facts["environment_warning"])
    assert warning.startswith(
        "the seeds of 1 of 1 points (lr=0.003) ran in environments that differ"
    )
    assert "(packages.numpy)" in warning
    (row,) = table(facts, "environment_differences")
    assert (row["field"], row["in_most"], row["here"]) == ("packages.numpy", "2.4.6", "2.5.0")
    assert (row["class"], row["known"]) == ("numeric", "known")
    rows = table(facts, "environments")
    assert [row["jobs_ended_in_it"] for row in rows] == [2, 1]
    assert [row["jobs_passed_through"] for row in rows] == [3, 1]


@pytest.mark.parametrize(
    "there",
    [
        MEASURED,
        other(kernel="6.9"),
        other(determinism={**MEASURED["determinism"], "interop_threads": 9}),  # type: ignore[dict-item]
    ],
)
def test_what_is_informative_is_no_warning(there: Environment) -> None:
    facts = environment_facts([ran(1, MEASURED), ran(2, there)])
    assert facts["environment_warning"] is None
    assert (facts["environment_differences"] is None) == (there == MEASURED)


def test_a_job_that_moved_alone_is_a_warning_too() -> None:
    assert environment_facts([ran(1, NEWER, MEASURED), ran(2, MEASURED)])["environment_warning"]


def test_the_environments_of_a_job_are_those_of_its_attempts(tmp_path: Path) -> None:
    store = MemoryStore()
    settings = load_settings(start=tmp_path, environ={})
    (tmp_path / "plan.yaml").write_text(PLAN)
    chain = Chain(store, load_plan(tmp_path / "plan.yaml", settings), settings, SYSTEM)
    job = chain.specs("training")[0]
    pointer: Pointer | None = None
    line = [(1, MEASURED), (1, MEASURED), (3, NEWER), (4, MEASURED)]
    for ordinal, (attempt, environment) in enumerate(line, 1):
        manifest = Manifest(job.id, attempt, ordinal, 1, ordinal, {}, environment, pointer)
        body = encode(manifest)
        pointer = manifest.pointer(body)
        store.create(keys.manifest(job.id, pointer), body)
    done = Done(job, Witness(job.id, "released", "0" * 16, pointer=pointer), manifest)
    assert [(m.attempt, m.fingerprint) for m in chain.attempts_of(done)] == [line[1], *line[2:]]


def test_a_run_tells_the_warning_in_its_own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**environment_facts([ran(1, MEASURED), ran(2, NEWER)]), "summary": "2 models"}
    monkeypatch.setattr(materialize, "complete", lambda *_: [])
    told: list[str] = []

    class Log:
        def warning(self, words: str) -> None:
            told.append(words)

    class Here:
        partition_key, log, dispatcher = "orbit", Log(), None
        chain = SimpleNamespace(plan=SimpleNamespace(team="vision"))

        def context(self, _plan: str) -> object:
            return self

        report = print

    monkeypatch.setattr(materialize, "_tag", lambda *_: None)
    here = Here()
    made = materialize.played(here, here, "training", lambda *_: facts)  # type: ignore[arg-type]
    assert isinstance(made, dg.MaterializeResult)
    assert told == [f"training: {facts['environment_warning']}"]
    assert set(made.metadata or {}) >= {"environments", "environment_differences"}
