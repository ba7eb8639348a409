"""Was the environment pinned, and is what the workers measured what was required?"""

from __future__ import annotations

from gates.evidence import Evidence, Unproved, attempt
from gates.verdict import Verdict, judged
from tenure_protocol.fingerprint import compare, missing_from_pin, refusing
from tenure_protocol.records import Member, environment_digest


def pinned(evidence: Evidence) -> Verdict:
    """Every member's training and backtest required an environment, and required all of it."""
    problems = []
    for member in evidence.record.members:
        who = f"seed {member.seed}"
        if member.requires is None:
            problems.append(
                f"the training of {who} was not pinned: its job required no environment, so "
                "nobody can say what its numbers depend on"
            )
            continue
        required, missing = attempt(evidence.environment, evidence.record, member.requires)
        problems += missing
        if required is not None and (loose := missing_from_pin(required)):
            problems.append(f"the pin of {who} leaves open: {', '.join(loose)}")
        problems += attempt(_backtest_is_pinned, evidence, member)[1]
    count = len(evidence.record.members)
    return judged("pinned", problems, f"the environment of all {count} members was required")


def measured(evidence: Evidence) -> Verdict:
    """Each environment that an attempt measured equals the required one, field by field."""
    problems: list[str] = []
    looked_at = 0
    for member in evidence.record.members:
        if member.requires is None:
            problems.append(f"seed {member.seed}: nothing was required, so nothing can be equal")
            continue
        found, missing = attempt(_differences, evidence, member)
        problems += missing
        if found is not None:
            looked_at += found[0]
            problems += found[1]
    numbers: dict[str, float | str] = {"environments": float(looked_at)}
    return judged(
        "measured", problems, f"{looked_at} measured environments equal the required one", numbers
    )


def _backtest_is_pinned(evidence: Evidence, member: Member) -> None:
    if member.backtest_job is None:
        return  # the gate of the backtest says so
    spec = evidence.spec(member.backtest_job.job)
    if spec.requires is None:
        raise Unproved(f"the backtest of seed {member.seed} was not pinned")
    if environment_digest(spec.requires) != member.requires:
        raise Unproved(f"the backtest of seed {member.seed} required another environment")


def _differences(evidence: Evidence, member: Member) -> tuple[int, list[str]]:
    """How many environments were compared, and in which fields they differ. Raises Unproved."""
    assert member.requires is not None
    required = evidence.environment(evidence.record, member.requires)
    if not member.measured:
        raise Unproved(f"seed {member.seed}: no environment was measured")
    seen = {name: evidence.environment(evidence.record, name) for name in member.measured}
    problems = []
    for manifest in evidence.chain(member.train):
        digest = environment_digest(manifest.fingerprint)
        if digest not in seen:
            problems.append(
                f"seed {member.seed}: attempt {manifest.attempt} measured an environment that the "
                "record leaves out"
            )
            seen[digest] = manifest.fingerprint
    if member.backtest_job is not None:
        fingerprint = evidence.manifest(member.backtest_job).fingerprint
        seen.setdefault(environment_digest(fingerprint), fingerprint)
    problems += [
        f"seed {member.seed} ran elsewhere: {difference.sentence()}"
        for environment in seen.values()
        for difference in refusing(compare(required, environment))
    ]
    return len(seen), problems
