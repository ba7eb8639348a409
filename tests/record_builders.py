"""Model records with everything in the store that they refer to, as the stages leave them.

``build`` makes a valid record of either generation; its keywords make one thing wrong at a time, so
that a test of a gate is the valid case and one word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gates.promotion import judge_backtest, judge_metrics
from tenure_protocol.codec import canonical, encode, plain
from tenure_protocol.fingerprint import FIELD_CLASSES, PINNED_DETERMINISM, pin
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    BacktestValue,
    Direction,
    FileEntry,
    JobSpec,
    Manifest,
    Member,
    MetricValue,
    ModelRecord,
    PlanRecord,
    Pointer,
    Promote,
    SnapshotRef,
    Witness,
    environment_digest,
    sha256_hex,
    short_id,
)
from tenure_protocol.store.api import Lost, Store

EXPERIMENT = "vol"
METRIC = "qlike"
EXAMPLES = 200
SEEDS = (1, 2, 3, 4, 5)
RETRAIN_SEEDS = (11, 12, 13, 14, 15)
TERMS = Promote(metric=METRIC, direction="minimize", margin=0.05, min_score=0.5)

_PLAIN = {name: f"some {name}" for name in FIELD_CLASSES if "." not in name}
#: What a worker measures after it has set the switches of a pinned job.
MEASURED: dict[str, object] = {
    **_PLAIN,
    "torch": "2.13.0+cpu git abc",
    "packages": {"numpy": "2.4.6", "tenure": "0.1.0 (editable)", "torch": "2.13.0+cpu"},
    "builds": {"numpy": "ab12", "tenure": "editable", "torch": "cd34"},
    "instruction_sets": {"avx2": True, "avx512f": True},
    "determinism": {**PINNED_DETERMINISM, "interop_threads": 2},
}
REQUIRED = pin(MEASURED)
RESEARCH: dict[str, object] = {**MEASURED, "cpu_model": "another processor"}

Losses = Callable[[int], NDArray[np.float64]]


def losses_of(seed: int, shift: float = 0.0) -> NDArray[np.float64]:
    """Losses over the same examples: their own difficulty, a seed's effect, and noise."""
    rng = np.random.default_rng(seed)
    hard = np.sin(np.arange(EXAMPLES, dtype=np.float64)) ** 2
    own = rng.normal(0, 0.01)
    return np.asarray(hard + own + shift + rng.normal(0, 0.02, EXAMPLES), dtype=np.float64)


@dataclass(frozen=True)
class Other:
    """One more metric of every member; without ``kept`` its losses are not in the snapshot."""

    direction: Direction
    unit: str
    losses: Losses
    kept: bool = True


@dataclass(frozen=True)
class Wish:
    """How one record is to be; the defaults make a valid one."""

    generation: int
    seeds: tuple[int, ...]
    parent: str | None = None
    config: Mapping[str, object] = field(default_factory=lambda: {"lr": 0.003})
    code: str = "code1"
    data: str = "data1"
    terms: Promote = TERMS
    requires: Mapping[str, object] | None = None
    measured: Mapping[str, object] = field(default_factory=lambda: MEASURED)
    backtest_requires: Mapping[str, object] | None = None
    losses: Losses = losses_of
    others: Mapping[str, Other] = field(default_factory=dict)
    score: float = 0.8
    passed: bool = True
    deployable: bool = True
    again: Mapping[str, object] = field(default_factory=dict)  # of the repetition's spec


def research(store: Store, **changes: object) -> ModelRecord:
    """A generation-1 record, stored with all it refers to."""
    wish = Wish(1, SEEDS, measured=RESEARCH, deployable=False)
    return build(store, replace(wish, **changes))  # type: ignore[arg-type]


def retrain(store: Store, parent: ModelRecord | str | None, **changes: object) -> ModelRecord:
    """A generation-2 record of ``parent`` (or of an id), stored with all it refers to."""
    name = parent.id if isinstance(parent, ModelRecord) else parent
    wish = Wish(
        2, RETRAIN_SEEDS, name, requires=REQUIRED, backtest_requires=REQUIRED, losses=losses_of
    )
    return build(store, replace(wish, **changes))  # type: ignore[arg-type]


def build(store: Store, wish: Wish) -> ModelRecord:
    """Write jobs, witnesses, snapshots and files; then the record, under its id."""
    record = ModelRecord(
        experiment=EXPERIMENT,
        generation=wish.generation,
        entry_point="examples.vol:Vol",
        config=dict(wish.config),
        code=wish.code,
        data=wish.data,
        seeds=wish.seeds,
        members=_members(store, wish),
        environments={
            environment_digest(item): dict(item)
            for item in (wish.requires, wish.measured)
            if item is not None
        },
        promote=wish.terms,
        parent=wish.parent,
    )
    if wish.generation == 2:
        planned(store, record)
    metrics, why_not = judge_metrics(record)
    backtest, nor = judge_backtest(record)
    return put(
        store,
        replace(record, passed_metrics=metrics, passed_backtest=backtest, reasons=(*why_not, *nor)),
    )


def planned(store: Store, record: ModelRecord, version: int = 0, **terms: object) -> str:
    """The version of a plan that names a record's trainings and fixes its seeds; returns its key."""
    jobs = tuple(member.train.job for member in record.members)
    fixed = {"retrain_seeds": list(record.seeds), **terms}
    body = encode(PlanRecord(record.experiment, record.experiment, jobs, fixed, version))
    key = keys.plan(record.experiment, short_id(body))
    store.create(key, body)
    return key


def put(store: Store, record: ModelRecord) -> ModelRecord:
    """Store a record under its id."""
    store.create(keys.model(record.experiment, record.id), encode(record))
    return record


def _members(store: Store, wish: Wish) -> tuple[Member, ...]:
    """One for each seed; of generation 2 the first, which would be deployed, has its repetition."""
    first, *others = (_member(store, wish, seed) for seed in wish.seeds)
    if wish.generation == 2:
        training = spec(wish, "train", first.seed, requires=wish.requires)
        again = replace(training, **{"stage": "repetition", **wish.again})  # type: ignore[arg-type]
        repeated, _ = snapshot(store, again, weights_of(wish, first.seed), wish.measured)
        first = replace(first, repetition=repeated)
    return first, *others


def weights_of(wish: Wish, seed: int) -> dict[str, bytes]:
    """The files of a trained model."""
    return {"weights.bin": f"weights of {wish.generation}/{seed}".encode()}


def _member(store: Store, wish: Wish, seed: int) -> Member:
    train = spec(wish, "train", seed, requires=wish.requires)
    trained, files = snapshot(store, train, weights_of(wish, seed), wish.measured)
    losses = wish.losses(seed)
    kept = {METRIC: losses} | {n: o.losses(seed) for n, o in wish.others.items() if o.kept}
    metrics = {METRIC: MetricValue(float(losses.mean()), "minimize", "nats")}
    for name, other in wish.others.items():
        mean = float(other.losses(seed).mean())
        value = mean if other.direction == "minimize" else -mean
        metrics[name] = MetricValue(value, other.direction, other.unit)
    evaluation, evaluated = snapshot(
        store,
        spec(wish, "evaluate", seed, model=trained, requires=wish.requires),
        {
            "evaluation.json": canonical({"metrics": plain(metrics)}),
            **{f"losses/{name}.f64": row.astype("<f8").tobytes() for name, row in kept.items()},
        },
        wish.measured,
        {"metrics": plain(metrics)},
    )
    verdict = {"score": wish.score, "passed": wish.passed, "reasons": []}
    backtest, _ = snapshot(
        store,
        spec(wish, "backtest", seed, model=trained, requires=wish.backtest_requires),
        {"backtest.json": canonical(verdict)},
        wish.measured,
        verdict,
    )
    return Member(
        seed=seed,
        train=trained,
        files=files,
        requires=environment_digest(wish.requires) if wish.requires is not None else None,
        measured=(environment_digest(wish.measured),),
        evaluation=evaluation,
        metrics=metrics,
        losses={name: evaluated[f"losses/{name}.f64"] for name in kept},
        backtest_job=backtest,
        backtest=BacktestValue(wish.score, wish.passed, wish.deployable),
    )


def spec(
    wish: Wish,
    kind: str,
    seed: int,
    model: SnapshotRef | None = None,
    requires: Mapping[str, object] | None = None,
) -> JobSpec:
    """The spec of one job of a record."""
    return JobSpec(
        experiment=EXPERIMENT,
        kind=kind,  # type: ignore[arg-type]
        stage={"train": "training", "evaluate": "metrics", "backtest": "backtest"}[kind],
        entry_point="examples.vol:Vol",
        config=dict(wish.config),
        seed=seed,
        generation=wish.generation,
        code=wish.code,
        data=wish.data,
        milestone_every=10,
        parent=wish.parent,
        model=model,
        requires=dict(requires) if requires is not None else None,
    )


def snapshot(
    store: Store,
    job: JobSpec,
    bodies: Mapping[str, bytes],
    measured: Mapping[str, object],
    result: Mapping[str, object] | None = None,
) -> tuple[SnapshotRef, dict[str, FileEntry]]:
    """A finished job with two milestones, of which the last holds ``bodies``."""
    store.create(keys.job(job.id), encode(job))
    first = _milestone(store, job, 10, 1, {}, measured, None)
    last = _milestone(store, job, 20, 2, bodies, measured, first)
    witness = Witness(
        job=job.id,
        phase="finished",
        write_id="0" * 16,
        attempt=1,
        pointer=last,
        exit_code=0,
        result=dict(result or {}),
    )
    store.create(keys.witness_of(job), witness.encode())
    return SnapshotRef(job.id, last), _entries(bodies)


def _milestone(
    store: Store,
    job: JobSpec,
    step: int,
    ordinal: int,
    bodies: Mapping[str, bytes],
    measured: Mapping[str, object],
    parent: Pointer | None,
) -> Pointer:
    manifest = Manifest(
        job=job.id,
        attempt=1,
        step=step,
        save=1,
        ordinal=ordinal,
        files=_entries(bodies),
        fingerprint=dict(measured),
        parent=parent,
    )
    body = encode(manifest)
    pointer = manifest.pointer(body)
    for name, content in bodies.items():
        store.create(keys.snapshot(job.id, pointer) + name, content)
    store.create(keys.manifest(job.id, pointer), body)
    return pointer


def _entries(bodies: Mapping[str, bytes]) -> dict[str, FileEntry]:
    return {name: FileEntry(sha256_hex(body), len(body)) for name, body in bodies.items()}


def overwrite(store: Store, key: str, body: bytes) -> None:
    """What only an enemy does: put other bytes under a key that has one content for ever."""
    if isinstance(store.create(key, body), Lost):
        found = store.read(key)
        assert hasattr(found, "etag")
        store.replace(key, body, found.etag)
