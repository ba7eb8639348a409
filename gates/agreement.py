"""What a record says beyond the digests it names, against what the store and its own numbers say.

The digests bind the objects of a record to each other; the checks here bind the statements that a
digest does not cover: who passed what, which environments were measured, and which of several runs of
one spec is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gates.evidence import Evidence, Unproved, attempt, losses_of, same_json
from gates.promotion import judge_backtest, judge_metrics
from tenure_protocol.codec import canonical, plain, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    BacktestValue,
    JobSpec,
    Manifest,
    Member,
    ModelRecord,
    SnapshotRef,
    environment_digest,
)
from tenure_protocol.store.api import Missing
from tenure_worker.stages import BACKTEST_FILE, EVALUATION_FILE


def disagreements(evidence: Evidence, record: ModelRecord) -> list[str]:
    """Where a record, of either generation, says something else than what it rests on."""
    problems = _judgements(record) + _environments(evidence, record) + _cards(evidence, record)
    for member in record.members:
        for item in _of_member(evidence, member):
            problems.append(f"seed {member.seed}: {item}")
    return problems


def _judgements(record: ModelRecord) -> list[str]:
    """The flags and reasons of a record follow from its numbers, so they may say nothing else."""
    metrics, why_not = judge_metrics(record)
    tested, nor = judge_backtest(record)
    said = (record.passed_metrics, record.passed_backtest, list(record.reasons))
    found = (metrics, tested, [*why_not, *nor])
    names = ("passed_metrics", "passed_backtest", "reasons")
    return [
        f"record {record.id} says {name} {ours!r}, its own numbers say {theirs!r}"
        for name, ours, theirs in zip(names, said, found, strict=True)
        if ours != theirs
    ]


def _environments(evidence: Evidence, record: ModelRecord) -> list[str]:
    """What is held is what its name says, and is named by a member."""
    named = {digest for member in record.members for digest in member.measured}
    named |= {member.requires for member in record.members if member.requires is not None}
    problems = [
        f"record {record.id} holds the environment {digest}, which no member names"
        for digest in sorted(set(record.environments) - named)
    ]
    for digest in sorted(named):
        problems += attempt(evidence.environment, record, digest)[1]
    return problems


def _cards(evidence: Evidence, record: ModelRecord) -> list[str]:
    """Every training and reading job took the same number of cards: it decides how sums are split."""
    before, _ = attempt(evidence.parent) if record.generation == 2 else (None, [])
    taken: dict[int, str] = {}
    for member in (*record.members, *(before.members if before else ())):
        for ref in member.refs():
            spec, _ = attempt(evidence.spec, ref.job)
            if spec is not None:
                taken.setdefault(spec.cards, spec.id)
    if len(taken) < 2:
        return []
    said = ", ".join(f"{cards} in job {job}" for cards, job in sorted(taken.items()))
    return [f"its jobs took different numbers of cards: {said}"]


def _of_member(evidence: Evidence, member: Member) -> Iterator[str]:
    for ref in member.refs():
        yield from attempt(_place, evidence, ref)[1]
        yield from attempt(_witness, evidence, ref)[1]
        yield from attempt(_passed_over, evidence, ref)[1]
    yield from attempt(_measured, evidence, member)[1]
    yield from _flag(evidence, member)
    if member.evaluation is not None:
        yield from attempt(_losses, evidence, member, member.evaluation)[1]
        yield from attempt(_evaluated, evidence, member, member.evaluation)[1]
    if member.backtest_job is not None:
        yield from attempt(_backtested, evidence, member, member.backtest_job)[1]


def _place(evidence: Evidence, ref: SnapshotRef) -> None:
    """Every manifest of a line is of the place it lies at, and the line begins at its first snapshot.

    A line cut short would hide what an earlier attempt measured. Raises Unproved.
    """
    pointer = ref.pointer
    for manifest in evidence.chain(ref):
        place = (manifest.attempt, manifest.step, manifest.save, manifest.ordinal)
        if place != (pointer.attempt, pointer.step, pointer.save, pointer.ordinal):
            raise Unproved(
                f"{keys.manifest(ref.job, pointer)} says it is snapshot {place} (attempt, step, save "
                "and place in the line), and is named as another"
            )
        if manifest.parent is None:
            if manifest.ordinal != 1:
                raise Unproved(
                    f"the line of snapshots of job {ref.job} is cut: number {manifest.ordinal} names "
                    "none before it"
                )
            return
        if manifest.parent.ordinal != manifest.ordinal - 1:
            raise Unproved(
                f"the line of snapshots of job {ref.job} leaves some out between "
                f"{manifest.parent.ordinal} and {manifest.ordinal}"
            )
        pointer = manifest.parent


def _witness(evidence: Evidence, ref: SnapshotRef) -> None:
    spec = evidence.spec(ref.job)
    named = evidence.witness(spec).job
    if named != ref.job:
        raise Unproved(f"{keys.witness_of(spec)} is the witness of job {named}")


def _passed_over(evidence: Evidence, ref: SnapshotRef) -> None:
    """A later run of a spec counts only where no earlier one finished well. Raises Unproved."""
    spec = evidence.spec(ref.job)
    for run in range(spec.run):
        other = replace(spec, run=run)
        found, _ = attempt(evidence.witness, other)
        if found is not None and found.phase == "finished" and found.exit_code == 0:
            raise Unproved(
                f"job {ref.job} is run {spec.run} of its spec, and run {run} (job {other.id}) "
                "finished well before: which of two results counts is not chosen afterwards"
            )


def _measured(evidence: Evidence, member: Member) -> None:
    """The environments a member names are those of its line of snapshots, in their order."""
    line: list[Manifest] = list(evidence.chain(member.train))[::-1]
    found = tuple(dict.fromkeys(environment_digest(each.fingerprint) for each in line))
    if set(member.measured) - set(found):
        raise Unproved("it names an environment that no snapshot of its training measured")
    if set(found) - set(member.measured):
        raise Unproved("it leaves out an environment that a snapshot of its training measured")
    if member.measured != found:
        raise Unproved("its measured environments are not in the order of its snapshots")


def _flag(evidence: Evidence, member: Member) -> Iterator[str]:
    """The deployable flag is that of a passed, pinned backtest of generation 2, and of no other."""
    if member.backtest_job is None:
        if member.backtest is not None:
            yield "it has the verdict of a backtest and names no job of it"
        return
    if member.backtest is None:
        yield "it names a backtest job and leaves its verdict out"
        return
    spec, _ = attempt(evidence.spec, member.backtest_job.job)
    if spec is None:
        return
    earned = member.backtest.passed and spec.pinned and spec.generation == 2
    if member.backtest.deployable is not earned:
        yield (
            f"its deployable flag is {member.backtest.deployable}, and its backtest (passed "
            f"{member.backtest.passed}, pinned {spec.pinned}, generation {spec.generation}) makes "
            f"it {earned}"
        )


def _losses(evidence: Evidence, member: Member, ref: SnapshotRef) -> None:
    held = losses_of(evidence.manifest(ref).files)
    if left_out := sorted(set(held) - set(member.losses)):
        raise Unproved(f"the record leaves out its losses of {', '.join(left_out)}")
    for name, entry in member.losses.items():
        if evidence.losses(member, name).nbytes != entry.size:
            raise Unproved(
                f"its losses of {name} have another size than its evaluation's manifest says"
            )


def _evaluated(evidence: Evidence, member: Member, ref: SnapshotRef) -> None:
    """The metrics are those of the file in the evaluation's snapshot, which its digest covers."""
    written = _file(evidence, ref, EVALUATION_FILE)
    if not same_json(written.get("metrics"), plain(member.metrics)):
        raise Unproved(
            f"its metrics are not those of {EVALUATION_FILE} in its evaluation's snapshot"
        )


def _backtested(evidence: Evidence, member: Member, ref: SnapshotRef) -> None:
    if member.backtest is None:
        return
    for name, ours, theirs in unlike(member.backtest, _file(evidence, ref, BACKTEST_FILE)):
        raise Unproved(
            f"its {name} is {ours!r} in the record and {theirs!r} in {BACKTEST_FILE} of its "
            "backtest's snapshot"
        )


def unlike(
    claimed: BacktestValue, said: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """What the user's backtest said otherwise than a record claims: name, claimed, said."""
    ours = plain(claimed)
    assert isinstance(ours, dict)
    for name in ("score", "passed", "reasons"):
        if not same_json(said.get(name), ours[name]):
            yield name, ours[name], said.get(name)


def _file(evidence: Evidence, ref: SnapshotRef, name: str) -> dict[str, object]:
    """A JSON file of a snapshot, its digest checked. Raises Unproved."""
    key = keys.snapshot(ref.job, ref.pointer) + name
    entry = evidence.manifest(ref).files.get(name)
    found = evidence.store.read(key)
    if entry is None or isinstance(found, Missing):
        raise Unproved(f"{key} is missing: a job of its kind writes it")
    if (sha256_hex(found.body), len(found.body)) != (entry.sha256, entry.size):
        raise Unproved(f"the bytes of {key} are not those that its manifest names")
    try:
        value = json.loads(found.body)
        canonical(value)
    except (ValueError, RecursionError) as error:
        raise Unproved(f"{key} is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise Unproved(f"{key} holds no JSON object")
    return value


def pinned_alike(spec: JobSpec, member: Member, what: str) -> None:
    """Raises Unproved unless a job that reads a model required what its training required."""
    if spec.requires is None:
        raise Unproved(f"the {what} of seed {member.seed} was not pinned")
    if environment_digest(spec.requires) != member.requires:
        raise Unproved(f"the {what} of seed {member.seed} required another environment")
