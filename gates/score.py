"""Does the very model that would be deployed have its own backtest, allowed to count, and its score?"""

from __future__ import annotations

import math

from gates.evidence import Evidence, Unproved, attempt, deployed_member
from gates.verdict import Verdict, judged


def backtest(evidence: Evidence) -> Verdict:
    """A backtest of this model, on the pinned path, that passed by the experiment's own criteria."""
    member, problems = attempt(deployed_member, evidence.record)
    if member is None:
        return judged("backtest", problems, "")
    who = f"seed {member.seed}, which is to be deployed,"
    if member.backtest is None or member.backtest_job is None:
        return judged("backtest", [f"{who} has no backtest of its own"], "")
    problems += attempt(_is_of, evidence)[1]
    if not member.backtest.passed:
        why = "; ".join(member.backtest.reasons) or "no reason given"
        problems.append(f"the backtest of {who} did not pass: {why}")
    if not member.backtest.deployable:
        problems.append(f"the backtest of {who} does not bear the deployable flag")
    return judged("backtest", problems, f"{who} passed its own pinned backtest")


def score(evidence: Evidence) -> Verdict:
    """The score of that backtest reaches what the plan asked before the retrain."""
    member, problems = attempt(deployed_member, evidence.record)
    if member is None:
        return judged("score", problems, "")
    least = _least(evidence)
    if member.backtest is None:
        return judged("score", ["there is no backtest that could have a score"], "")
    found = member.backtest.score
    numbers: dict[str, float | str] = {"score": found, "min_score": least, "seed": member.seed}
    said = f"the score is {found:.4g}, at least {least:g} is asked"
    reached = math.isfinite(found) and math.isfinite(least) and found >= least
    return judged("score", [] if reached else [said], said, numbers)


def _least(evidence: Evidence) -> float:
    """The parent's terms are the ones that were fixed before; without a parent the record's own."""
    before, _ = attempt(evidence.parent)
    return (before or evidence.record).promote.min_score


def _is_of(evidence: Evidence) -> None:
    member = deployed_member(evidence.record)
    assert member.backtest_job is not None
    spec = evidence.spec(member.backtest_job.job)
    if spec.kind != "backtest":
        raise Unproved(f"job {spec.id}, named as its backtest, is of kind {spec.kind}")
    if spec.model != member.train:
        raise Unproved("its backtest is of another model")
    if spec.generation != 2 or spec.requires is None:
        raise Unproved("its backtest did not run on the pinned path of generation 2")
