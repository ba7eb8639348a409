"""Was the environment pinned, and is what the workers measured what was required?"""

from __future__ import annotations

from collections import Counter

from gates.agreement import pinned_alike
from gates.evidence import Evidence, Unproved, attempt, deployed_member
from gates.verdict import Verdict, judged
from tenure_protocol.fingerprint import (
    Difference,
    changes,
    compare,
    missing_from_pin,
    refusing,
    telling,
)
from tenure_protocol.records import Member, SnapshotRef, environment_digest

_TOLD = 3


def pinned(evidence: Evidence) -> Verdict:
    """Every member's training, evaluation and backtest required an environment, and all of it."""
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
        for what, ref in (("evaluation", member.evaluation), ("backtest", member.backtest_job)):
            if ref is not None:  # of one that is missing, its own gate says so
                problems += attempt(_reader_is_pinned, evidence, member, ref, what)[1]
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
    said, beside = since_parent(evidence)
    numbers: dict[str, float | str] = {"environments": float(looked_at), **beside}
    return judged(
        "measured",
        problems,
        f"{looked_at} measured environments equal the required one; {said}",
        numbers,
    )


def since_parent(evidence: Evidence) -> tuple[str, dict[str, float | str]]:
    """In what the deployed member's environment is not its parent's, each field with its class.

    Of the parent's environments the nearest, since its seeds may have run in several. A warning: a pin
    may rightly be another machine than the research had (docs/decisions/0009), and who reads the
    verdict is to know. Returns a clause and the numbers; ``parent_`` counts the fields of each class.
    """
    found, missing = attempt(_nearest, evidence)
    if found is None:
        return f"nobody can say in what they are another than the parent's: {missing[0]}", {}
    count = Counter(item.kind for item in found)
    numbers: dict[str, float | str] = {
        f"parent_{kind}": float(count[kind]) for kind in ("bitwise", "numeric", "informative")
    }
    numbers["parent_differs_in"] = ", ".join(item.field for item in found)
    switches = [item for item in found if item.field.startswith("determinism.")]
    told = [item for item in telling(refusing(found)) if item not in switches]
    more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    switched = f"{len(switches)} switches that a pin sets" if switches else ""
    if not told:
        return f"the parent ran in the same{switched and f' but for {switched}'}", numbers
    words = "; ".join(item.change() for item in told[:_TOLD])
    also = f", and in {switched}" if switched else ""
    return f"warning: the parent ran in another one{also}: {words}{more}", numbers


def _nearest(evidence: Evidence) -> tuple[Difference, ...]:
    """The differences from that environment of the parent that has the fewest. Raises Unproved."""
    member = deployed_member(evidence.record)
    before = evidence.parent()
    names = list(dict.fromkeys(name for one in before.members for name in one.measured))
    if not names or not member.measured:
        raise Unproved("no environment of it, or of its parent, was measured")
    ours = evidence.environment(evidence.record, member.measured[-1])
    found = [changes(evidence.environment(before, name), ours) for name in names]
    return min(found, key=lambda items: len(refusing(items)))


def _reader_is_pinned(evidence: Evidence, member: Member, ref: SnapshotRef, what: str) -> None:
    """A job that reads a model ran in what its training required. Raises Unproved."""
    pinned_alike(evidence.spec(ref.job), member, what)


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
    for ref in (member.evaluation, member.backtest_job):
        for manifest in evidence.chain(ref) if ref is not None else ():
            seen.setdefault(environment_digest(manifest.fingerprint), manifest.fingerprint)
    problems += [
        f"seed {member.seed} ran elsewhere: {difference.sentence()}"
        for environment in seen.values()
        for difference in refusing(compare(required, environment))
    ]
    return len(seen), problems
