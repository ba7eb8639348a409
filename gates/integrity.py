"""Is the record what the store holds, and are its jobs, snapshots and files what it says?"""

from __future__ import annotations

from gates.agreement import disagreements, unlike
from gates.evidence import Evidence, Unproved, attempt, deployed_member, losses_file, same_json
from gates.verdict import Verdict, judged
from tenure_protocol.codec import plain
from tenure_protocol.records import (
    JobSpec,
    Member,
    ModelRecord,
    environment_digest,
)

_TRAININGS = ("train", "repetition")


def integrity(evidence: Evidence) -> Verdict:
    """Record, witnesses, manifests and files agree by digest, down to the bytes to be deployed.

    And to those of the repetition: a job whose files are not what it said has repeated nothing.
    """
    problems = attempt(evidence.stored)[1]
    snapshots = 0
    for who, record in _generations(evidence):
        for member in record.members:
            for ref in member.refs():
                snapshots += 1
                problems += [who + item for item in attempt(evidence.finished, ref)[1]]
            problems += [who + item for item in _files(evidence, member)]
        problems += [who + item for item in disagreements(evidence, record)]
    problems += attempt(_bytes, evidence)[1]
    numbers: dict[str, float | str] = {"snapshots": float(snapshots)}
    return judged("integrity", problems, f"{snapshots} snapshots agree with the store", numbers)


def jobs(evidence: Evidence) -> Verdict:
    """The immutable specs of the jobs, and their results, say what the record says of them."""
    problems: list[str] = []
    count = 0
    for who, record in _generations(evidence):
        for member in record.members:
            for kind, ref in member.jobs():
                if ref is None:
                    problems.append(f"{who}seed {member.seed} has no {kind} job")
                    continue
                count += 1
                spec, missing = attempt(evidence.spec, ref.job)
                problems += [who + item for item in missing]
                if spec is not None:
                    found = _contradictions(kind, spec, record, member)
                    found += attempt(_same_result, evidence, kind, spec, member)[1]
                    problems += [f"{who}{kind} job {spec.id}: {item}" for item in found]
    return judged("jobs", problems, f"{count} job specs agree with the record")


def _generations(evidence: Evidence) -> list[tuple[str, ModelRecord]]:
    """The record and, where it can be read, its parent; with how a sentence begins."""
    before, _ = attempt(evidence.parent)
    return [("", evidence.record)] + ([("of the parent: ", before)] if before else [])


def _files(evidence: Evidence, member: Member) -> list[str]:
    manifest, problems = attempt(evidence.manifest, member.train)
    if manifest is not None and manifest.files != member.files:
        names = sorted({*manifest.files, *member.files})
        other = [n for n in names if manifest.files.get(n) != member.files.get(n)]
        problems.append(
            f"the files of seed {member.seed} are not those of its manifest: {', '.join(other)}"
        )
    if member.evaluation is None or not member.losses:
        return problems
    evaluated, missing = attempt(evidence.manifest, member.evaluation)
    if evaluated is None:
        return problems + missing
    return problems + [
        f"the losses {name!r} of seed {member.seed} are not those of its evaluation's manifest"
        for name, entry in member.losses.items()
        if evaluated.files.get(losses_file(name)) != entry
    ]


def _bytes(evidence: Evidence) -> None:
    member = deployed_member(evidence.record)
    if not member.files:
        raise Unproved(f"seed {member.seed}, which is to be deployed, has no files")
    for name, entry in member.files.items():
        evidence.verify_bytes(member.train, name, entry)
    if member.repetition is not None:
        for name, entry in evidence.manifest(member.repetition).files.items():
            evidence.verify_bytes(member.repetition, name, entry, "its manifest")


def _same_result(evidence: Evidence, kind: str, spec: JobSpec, member: Member) -> None:
    """The numbers a job finished with are those of the record. Raises Unproved."""
    if kind in _TRAININGS:
        return
    result = evidence.witness(spec).result or {}
    if kind == "evaluate" and not same_json(result.get("metrics"), plain(member.metrics)):
        raise Unproved(f"it finished with other metrics than the record has for seed {member.seed}")
    if kind == "backtest" and member.backtest is not None:
        for name, ours, theirs in unlike(member.backtest, result):
            raise Unproved(f"its {name} is {theirs!r}, the record says {ours!r}")


def _contradictions(kind: str, spec: JobSpec, record: ModelRecord, member: Member) -> list[str]:
    """Where a spec and what the record says of it differ, in words."""
    expected: dict[str, object] = {
        "kind": "train" if kind in _TRAININGS else kind,
        "experiment": record.experiment,
        "generation": record.generation,
        "entry_point": record.entry_point,
        "config": record.config,
        "code": record.code,
        "data": record.data,
        "seed": member.seed,
        "parent": record.parent,
    }
    found = [
        f"its {name} is {getattr(spec, name)!r}, the record says {value!r}"
        for name, value in expected.items()
        if not same_json(plain(getattr(spec, name)), plain(value))
    ]
    if kind not in _TRAININGS and spec.model != member.train:
        found.append(f"it is about another model than that of seed {member.seed}")
    if kind in _TRAININGS:
        required = environment_digest(spec.requires) if spec.requires is not None else None
        if required != member.requires:
            found.append(
                f"it requires the environment {required}, the record says {member.requires}"
            )
    return found
