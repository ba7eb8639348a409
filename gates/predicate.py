"""What a warrant says of a model: every gate, where it comes from, and what it was computed in."""

from __future__ import annotations

from collections.abc import Sequence

from gates.bom import bill_of_materials
from gates.verdict import Verdict
from tenure_protocol.codec import Json, plain
from tenure_protocol.records import Member, ModelRecord, SnapshotRef

PROMISE = "bitwise reproducible on the same device class, build and software versions"


def predicate(
    record: ModelRecord, member: Member, verdicts: Sequence[Verdict], name: str
) -> dict[str, Json]:
    """The predicate of the warrant of one member under the deployment ``name``, as plain JSON.

    ``environments`` are all fingerprints of the record by digest; ``environment`` is the digest of the
    one that the member's jobs required, which is what the live side compares itself with.
    """
    environment = record.environments.get(member.requires or "", {})
    said: dict[str, object] = {
        "deployment": name,
        "record": record.id,
        "parent": record.parent,
        "experiment": record.experiment,
        "generation": record.generation,
        "entry_point": record.entry_point,
        "config": record.config,
        "code": record.code,
        "data": record.data,
        "seed": member.seed,
        "train": member.train,
        "environment": member.requires,
        "environments": record.environments,
        "lineage": lineage(record),
        "terms": record.promote,
        "gates": list(verdicts),
        "bom": bill_of_materials(
            name=name,
            record=record.id,
            seed=member.seed,
            config=record.config,
            code=record.code,
            data=record.data,
            files=member.files,
            environment=environment,
        ),
        "promise": PROMISE,
    }
    found = plain(said)
    assert isinstance(found, dict)
    return found


def lineage(record: ModelRecord) -> dict[str, object]:
    """The parent and, for each seed, its jobs with the last pointer of their lines.

    A manifest names the pointer before it by digest, so the digest of the last one is that of the line.
    """
    return {
        "parent": record.parent,
        "members": [
            {
                "seed": member.seed,
                "jobs": {
                    kind: _line(ref)
                    for kind, ref in (
                        ("train", member.train),
                        ("evaluate", member.evaluation),
                        ("backtest", member.backtest_job),
                        ("repetition", member.repetition),
                    )
                    if ref is not None
                },
                "measured": member.measured,
            }
            for member in record.members
        ],
    }


def _line(ref: SnapshotRef) -> dict[str, object]:
    pointer = ref.pointer
    return {
        "job": ref.job,
        "attempt": pointer.attempt,
        "step": pointer.step,
        "ordinal": pointer.ordinal,
        "line": pointer.digest,
    }
