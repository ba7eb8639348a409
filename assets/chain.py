"""The chain as a pure function of the store: which jobs a stage has, and what they add up to.

training -> metrics -> backtest -> pinned_retrain -> seed_spread -> pinned_backtest -> deployment.
Nothing here knows Dagster or keeps state: a stage's jobs follow from the results of the stages before
it, so whoever asks, whenever, gets the same jobs, and deleting Dagster's storage loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from gates import promotion
from gates.check import check_record
from gates.evidence import Evidence, losses_of
from gates.planned import of_plan
from gates.repetition import repetition
from gates.spread import spread
from gates.verdict import Verdict, deployable
from tenure.errors import Blocked, StoreOutOfReach
from tenure.plan import pinning
from tenure.plan.file import Plan
from tenure.settings import Settings
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, decode, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import (
    BacktestValue,
    JobSpec,
    JudgedMetric,
    Manifest,
    Member,
    MetricValue,
    ModelRecord,
    Pointer,
    Promote,
    SnapshotRef,
    Witness,
    environment_digest,
)
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_worker import code
from tenure_worker.snapshot import read_manifest

STAGES = (
    "training",
    "metrics",
    "backtest",
    "pinned_retrain",
    "seed_spread",
    "pinned_backtest",
    "deployment",
)

#: The stage in the spec of the deployed seed's second training, which the stage pinned_retrain holds as
#: well. Retries count ``run`` up, so that by its run alone it could be taken for one of the first's.
REPETITION = "repetition"
_Seed = tuple[Member, dict[str, dict[str, object]]]  # a member, and the environments it refers to


class Incomplete(Exception):
    """A stage whose jobs are not all finished yet; ``jobs`` are the open ones."""

    def __init__(self, stage: str, jobs: Sequence[str]) -> None:
        super().__init__(f"{len(jobs)} jobs of {stage} are not finished")
        self.jobs = tuple(jobs)


@dataclass(frozen=True)
class Done:
    """A job that finished well, and the snapshot its pointer names."""

    spec: JobSpec
    witness: Witness
    manifest: Manifest

    @property
    def ref(self) -> SnapshotRef:
        """Its last snapshot."""
        assert self.witness.pointer is not None
        return SnapshotRef(self.spec.id, self.witness.pointer)


class Chain:
    """One plan over one store. Reads only, but for the model records of finished stages.

    With ``keep_records`` false it writes none of these either.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        settings: Settings,
        clock: Clock,
        *,
        keep_records: bool = True,
    ) -> None:
        self._store = store
        self._keep_records = keep_records
        self._plan = plan
        self._clock = clock
        # What has ended can be remembered: it is final. A run of the chain asks for it thousands of times.
        self._final: dict[str, Done] = {}
        self._all_done: dict[str, list[Done]] = {}  # by stage
        self._members: dict[tuple[str, str, str], _Seed] = {}  # by training, evaluation, backtest
        self._first: list[ModelRecord] | None = None  # those of the first generation, kept
        self._spread: tuple[ModelRecord, list[Verdict]] | None = None
        self._manifests: dict[str, Manifest] = {}  # by digest
        self._repeated: tuple[ModelRecord, Verdict] | None = None
        code.add_code_path(settings.root)
        try:
            self._code = code.code_digest(plan.experiment)
            self._data = code.data_digest(code.load_experiment(plan.experiment))
        except code.BadEntryPoint as error:
            raise plan.error(("experiment",), str(error)) from error
        except Exception as error:  # the user's __init__ or data_files()
            words = f"{plan.experiment} cannot be used: {type(error).__name__}: {error}"
            raise plan.error(("experiment",), words) from error
        promote = plan.promote
        self._promote = Promote(
            promote.metric,
            promote.direction,
            promote.margin,
            promote.min_score,
            promote.alpha,
            also=tuple(
                JudgedMetric(other.metric, other.direction, other.margin, other.examples)
                for other in promote.also
            )
            or None,
        )

    @property
    def plan(self) -> Plan:
        """The plan it plays."""
        return self._plan

    @property
    def store(self) -> Store:
        """The store it reads."""
        return self._store

    # ------------------------------------------------------------------------------- job specs

    def specs(self, stage: str) -> list[JobSpec]:
        """The jobs of a stage. Raises :class:`Incomplete` or :class:`Blocked` of an earlier one."""
        match stage:
            case "training":
                return [
                    self._spec("train", stage, point, seed, 1)
                    for point in self._plan.points()
                    for seed in self._plan.seeds
                ]
            case "metrics":
                return [self._of_model("evaluate", stage, done) for done in self.done("training")]
            case "backtest":
                self._demand_metrics()
                return [self._of_model("backtest", stage, done) for done in self.done("training")]
            case "pinned_retrain":
                trainings = self._retrain_specs()
                return [*trainings, replace(trainings[0], stage=REPETITION)]
            case "seed_spread":
                self._demand("pinned_retrain", [self.repetition()])
                return [self._of_model("evaluate", stage, done) for done in self._retrains()]
            case "pinned_backtest":
                self._demand("seed_spread", self.spread())
                return [self._of_model("backtest", stage, done) for done in self._retrains()]
            case "deployment":
                self.second_generation()
                return []
        raise ValueError(f"{stage!r} is no stage; there are {', '.join(STAGES)}")

    def _spec(
        self,
        kind: Literal["train", "evaluate", "backtest"],
        stage: str,
        config: Mapping[str, object],
        seed: int,
        generation: int,
        *,
        parent: str | None = None,
        model: SnapshotRef | None = None,
        requires: dict[str, object] | None = None,
    ) -> JobSpec:
        plan = self._plan
        return JobSpec(
            experiment=plan.name,
            kind=kind,
            stage=stage,
            entry_point=plan.experiment,
            config=dict(config),
            seed=seed,
            generation=generation,
            code=self._code,
            data=self._data,
            milestone_every=plan.milestone_every,
            parent=parent,
            model=model,
            requires=requires,
            cards=plan.cards,
            patience_s=plan.patience_s,
            max_silence_s=plan.max_silence_s,
        )

    def _of_model(
        self, kind: Literal["evaluate", "backtest"], stage: str, trained: Done
    ) -> JobSpec:
        """A job that reads a trained model, in the environment its training was pinned to."""
        spec = trained.spec
        return self._spec(
            kind,
            stage,
            spec.config,
            spec.seed,
            spec.generation,
            parent=spec.parent,
            model=trained.ref,
            requires=spec.requires,
        )

    def _retrain_specs(self) -> list[JobSpec]:
        parent = self.promoted()
        requires = pinning.requirement(self._plan, parent)
        return [
            self._spec(
                "train", "pinned_retrain", parent.config, seed, 2,
                parent=parent.id, requires=requires,
            )
            for seed in self._plan.retrain_seeds
        ]  # fmt: skip

    # --------------------------------------------------------------------------------- results

    def done(self, stage: str) -> list[Done]:
        """The finished jobs of a stage, in order.

        Raises :class:`Incomplete` while some are open and :class:`Blocked` when one ended otherwise.
        """
        if stage not in self._all_done:
            self._all_done[stage] = self._collect(stage, self.specs(stage))
        return list(self._all_done[stage])

    def _collect(self, stage: str, specs: Sequence[JobSpec]) -> list[Done]:
        found, still_open, failed = [], [], []
        for spec in specs:
            newest, done = self._newest_run(spec)
            if isinstance(done, Done):
                self._final[newest.id] = done
                found.append(done)
            elif done is None:
                still_open.append(newest.id)
            else:
                failed.append(done)
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise Blocked(f"{stage}: {failed[0]}{more}")
        if still_open:
            raise Incomplete(stage, still_open)
        return found

    def newest_runs(self, stage: str) -> list[JobSpec]:
        """The specs of a stage's jobs, each as the newest of its retries. Raises as ``specs``."""
        return [self._newest_run(spec)[0] for spec in self.specs(stage)]

    def _newest_run(self, spec: JobSpec) -> tuple[JobSpec, Done | str | None]:
        """A job as its newest retry, and what became of it."""
        while True:
            done = self._final.get(spec.id) or self._done(spec)
            if not isinstance(done, str):
                return spec, done
            retry = replace(spec, run=spec.run + 1)
            if not self._enlisted(retry):
                return spec, done
            spec = retry

    def _enlisted(self, spec: JobSpec) -> bool:
        try:
            return not isinstance(self._store.read(keys.job(spec.id)), Missing)
        except StoreSilent as error:
            raise StoreOutOfReach(str(error)) from error

    def _done(self, spec: JobSpec) -> Done | str | None:
        """A finished job; a sentence for one that ended otherwise; ``None`` for an open one."""
        key = keys.witness_of(spec)
        try:
            witness = read_witness(self._store, key).witness
            if witness is None or witness.phase not in ("finished", "cancelled"):
                return None
            words = f"job {spec.id} ({spec.kind}, seed {spec.seed}, {spec.config})"
            if witness.phase == "cancelled":
                return f"{words} was cancelled by {witness.by}: {witness.reason}"
            if witness.exit_code != 0 or witness.pointer is None:
                last = (witness.reason or "").strip().splitlines()
                return f"{words} ended with code {witness.exit_code}: {last[-1] if last else '?'}"
            return Done(spec, witness, self._manifest(spec.id, witness.pointer))
        except Corrupt as error:
            return str(error)
        except StoreSilent as error:
            raise StoreOutOfReach(str(error)) from error

    def _manifest(self, job: str, pointer: Pointer) -> Manifest:
        if pointer.digest not in self._manifests:
            self._manifests[pointer.digest] = read_manifest(self._store, job, pointer)
        return self._manifests[pointer.digest]

    def evaluations(self, generation: int) -> dict[str, Done]:
        """The finished evaluate jobs of a generation, by the train job they read."""
        return self._by_model("metrics" if generation == 1 else "seed_spread")

    def backtests(self, generation: int) -> dict[str, Done]:
        """The finished backtest jobs of a generation, by the train job they read."""
        return self._by_model("backtest" if generation == 1 else "pinned_backtest")

    def _by_model(self, stage: str) -> dict[str, Done]:
        return {done.spec.model.job: done for done in self.done(stage) if done.spec.model}

    # --------------------------------------------------------------------------------- records

    def differences(self, record: ModelRecord) -> list[str]:
        """What this plan as it stands makes otherwise than a generation-2 record of its name."""
        plan = self._plan
        made = {
            "entry point": record.entry_point,
            "code": record.code,
            "data": record.data,
            "seeds": list(record.seeds),
            **_terms(record.promote),
        }
        now = {
            "entry point": plan.experiment,
            "code": self._code,
            "data": self._data,
            "seeds": plan.retrain_seeds,
            **_terms(self._promote),
        }
        found = [
            f"{name} {made[name]!r} instead of {now[name]!r}"
            for name in made
            if made[name] != now[name]
        ]
        if record.config not in plan.points():
            found.append(f"config {record.config!r}, which is no point of the plan's grid")
        return found

    def evaluated(self) -> list[ModelRecord]:
        """One record per point of the grid as its metrics alone make it; not written."""
        evaluations, trained = self.evaluations(1), self.done("training")
        return [
            self._judged(
                self._record(
                    point,
                    1,
                    [self._member(d, evaluations, {}) for d in trained if d.spec.config == point],
                )
            )
            for point in self._plan.points()
        ]

    def first_generation(self) -> list[ModelRecord]:
        """One record per point of the grid, with its verdicts; written to the store if kept."""
        if self._first is not None:
            return list(self._first)
        evaluations, backtests = self.evaluations(1), self.backtests(1)
        trained = self.done("training")
        records = []
        for point in self._plan.points():
            members = [
                self._member(done, evaluations, backtests)
                for done in trained
                if done.spec.config == point
            ]
            records.append(self._judged(self._record(point, 1, members)))
        for record in records:
            self._keep(record)
        self._first = list(records)
        return records

    def promoted(self) -> ModelRecord:
        """The generation-1 record to retrain. Raises :class:`Blocked` with every point's reasons."""
        records = self.first_generation()
        best = promotion.promote(records)
        if best is None:
            reasons = "; ".join(f"{r.config}: {', '.join(r.reasons)}" for r in records)
            raise Blocked(f"backtest: no point of the grid passed ({reasons})")
        return best

    def retrained(self, with_backtests: bool) -> ModelRecord:
        """The generation-2 record, before or after its backtests."""
        evaluations = self.evaluations(2)
        return self._retrained(evaluations, self.backtests(2) if with_backtests else {})

    def _retrained(
        self, evaluations: Mapping[str, Done], backtests: Mapping[str, Done]
    ) -> ModelRecord:
        parent = self.promoted()
        *trained, repeated = self.done("pinned_retrain")
        members = [self._member(done, evaluations, backtests) for done in trained]
        first, environments = members[0]
        members[0] = replace(first, repetition=repeated.ref), environments
        return self._record(parent.config, 2, members, parent.id)

    def _retrains(self) -> list[Done]:
        """The trainings of generation 2, one for each seed: all but the repetition."""
        return self.done("pinned_retrain")[:-1]

    def second_generation(self) -> ModelRecord:
        """The finished generation-2 record; written to the store if kept."""
        record = self._judged(self.retrained(with_backtests=True))
        self._keep(record)
        return record

    def spread(self) -> list[Verdict]:
        """The verdicts of the seed_spread stage; as with the repetition, once is enough."""
        record = self.retrained(with_backtests=False)
        if self._spread is not None and self._spread[0] == record:
            return list(self._spread[1])
        verdicts = spread(Evidence(self._store, record))
        if all(verdict.numbers for verdict in verdicts):
            self._spread = record, list(verdicts)
        return verdicts

    def repetition(self) -> Verdict:
        """Whether the training of the seed to be deployed gave the same bits twice.

        What was compared never changes, so that once is enough: where bits differ, files are read whole.
        """
        record = self._retrained({}, {})
        if self._repeated is not None and self._repeated[0] == record:
            return self._repeated[1]
        verdict = repetition(Evidence(self._store, record))
        if verdict.numbers:  # else something could not be read, and may be put right
            self._repeated = record, verdict
        return verdict

    def verdicts(self) -> list[Verdict]:
        """Every gate's verdict on the generation-2 record."""
        record = self.second_generation()
        return [*check_record(self._store, record), of_plan(record)]

    def _demand_metrics(self) -> None:
        records = self.evaluated()
        if not any(record.passed_metrics for record in records):
            reasons = "; ".join(
                f"{record.config}: {', '.join(promotion.judge_metrics(record)[1])}"
                for record in records
            )
            raise Blocked(f"metrics: no point of the grid passed ({reasons})")

    def _demand(self, stage: str, verdicts: Sequence[Verdict]) -> None:
        if not deployable(verdicts):
            against = [f"{v.gate}: {v.reason}" for v in verdicts if v.verdict != "PASS"]
            raise Blocked(f"{stage}: {'; '.join(against)}")

    def _record(
        self,
        config: dict[str, object],
        generation: int,
        members: Sequence[_Seed],
        parent: str | None = None,
    ) -> ModelRecord:
        plan = self._plan
        environments: dict[str, dict[str, object]] = {}
        for _, found in members:
            environments.update(found)
        return ModelRecord(
            experiment=plan.name,
            generation=generation,
            entry_point=plan.experiment,
            config=config,
            code=self._code,
            data=self._data,
            seeds=tuple(member.seed for member, _ in members),
            members=tuple(member for member, _ in members),
            environments=environments,
            promote=self._promote,
            parent=parent,
        )

    def _member(
        self, trained: Done, evaluations: Mapping[str, Done], backtests: Mapping[str, Done]
    ) -> _Seed:
        """One seed's part of a record, and the environments it refers to by digest."""
        evaluation = evaluations.get(trained.spec.id)
        tested = backtests.get(trained.spec.id)
        key = (
            trained.spec.id,
            evaluation.spec.id if evaluation else "",
            tested.spec.id if tested else "",
        )
        if key not in self._members:
            self._members[key] = self._made_member(trained, evaluation, tested)
        return self._members[key]

    def _made_member(self, trained: Done, evaluation: Done | None, tested: Done | None) -> _Seed:
        environments: dict[str, dict[str, object]] = {}

        def named(environment: dict[str, object]) -> str:
            digest = environment_digest(environment)
            environments[digest] = environment
            return digest

        measured = []
        for manifest in self._line(trained):
            digest = named(manifest.fingerprint)
            if digest not in measured:
                measured.append(digest)
        requires = trained.spec.requires
        member = Member(
            seed=trained.spec.seed,
            train=trained.ref,
            files=trained.manifest.files,
            requires=named(requires) if requires is not None else None,
            measured=tuple(measured),
            evaluation=evaluation.ref if evaluation else None,
            metrics=_metrics(evaluation) if evaluation else {},
            losses=losses_of(evaluation.manifest.files) if evaluation else {},
            backtest_job=tested.ref if tested else None,
            backtest=_backtest(tested) if tested else None,
        )
        return member, environments

    def attempts_of(self, done: Done) -> list[Manifest]:
        """The last manifest of each attempt on a job's line, in order.

        Raises Blocked for a corrupt one, StoreOutOfReach.
        """
        if done.manifest.attempt == 1:  # there was none before
            return [done.manifest]
        last = {manifest.attempt: manifest for manifest in self._line(done)}
        return [last[attempt] for attempt in sorted(last)]

    def _line(self, trained: Done) -> list[Manifest]:
        """Every manifest of the pointer line, the first milestone first."""
        line = [trained.manifest]
        while line[-1].parent is not None:
            try:
                line.append(self._manifest(trained.spec.id, line[-1].parent))
            except Corrupt as error:
                raise Blocked(str(error)) from error
            except StoreSilent as error:
                raise StoreOutOfReach(str(error)) from error
        return line[::-1]

    def _judged(self, record: ModelRecord) -> ModelRecord:
        metrics, why_metrics = promotion.judge_metrics(record)
        tested, why_tested = promotion.judge_backtest(record)
        return replace(
            record,
            passed_metrics=metrics,
            passed_backtest=tested,
            reasons=(*why_metrics, *why_tested),
        )

    def _keep(self, record: ModelRecord) -> None:
        """Records are content-addressed, so writing one again changes nothing."""
        if not self._keep_records:
            return
        key = keys.model(record.experiment, record.id)
        try:
            if not create_once(self._store, key, encode(record), self._clock):
                raise Blocked(f"{key} holds something else than the record of its digest")
        except StoreSilent as error:
            raise StoreOutOfReach(str(error)) from error


def _terms(promote: Promote) -> dict[str, object]:
    terms = {f"promote.{field.name}": getattr(promote, field.name) for field in fields(promote)}
    return terms | {"promote.also": [promotion.metric_words(one) for one in promote.also or ()]}


def _metrics(evaluation: Done) -> dict[str, MetricValue]:
    found = (evaluation.witness.result or {}).get("metrics")
    key = keys.witness_of(evaluation.spec)
    return decode(dict[str, MetricValue], found, key)


def _backtest(tested: Done) -> BacktestValue:
    """The user's verdict; whether it may be deployed is passed *and* pinned, said here alone."""
    found = tested.witness.result or {}
    value = decode(
        BacktestValue,
        {**found, "deployable": bool(found.get("passed")) and tested.spec.pinned},
        keys.witness_of(tested.spec),
    )
    return replace(value, deployable=value.deployable and tested.spec.generation == 2)
