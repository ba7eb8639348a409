"""Is the retrain as good as its parent, over seeds and over examples, by the terms fixed before?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gates.evidence import Evidence, Unproved
from gates.promotion import judge_metrics
from gates.verdict import Verdict, judged
from tenure.statistics import (
    Finding,
    non_inferiority,
    oriented,
    paired_examples,
    variance_guard,
    worst_seed_bound,
)
from tenure_protocol.records import ModelRecord

Values = NDArray[np.float64]

#: Losses must average to the metric up to a constant; rounding may use this share of the margin.
SCALE_SLACK = 0.01


def spread(evidence: Evidence) -> list[Verdict]:
    """Four verdicts: the mean, the variance, the worst seed, and the paired examples."""
    record = evidence.record
    gates: dict[str, Callable[[ModelRecord], Finding]] = {
        "spread_mean": lambda before: non_inferiority(
            *_values(before, record), before.promote.margin, before.promote.alpha
        ),
        "spread_variance": lambda before: variance_guard(*_values(before, record)),
        "spread_worst_seed": lambda before: worst_seed_bound(
            *_values(before, record), before.promote.margin
        ),
        "spread_examples": lambda before: _examples(evidence, before),
    }
    return [_verdict(gate, evidence, judge) for gate, judge in gates.items()]


def _verdict(gate: str, evidence: Evidence, judge: Callable[[ModelRecord], Finding]) -> Verdict:
    try:
        before = evidence.parent()
    except Unproved:
        return judged(gate, ["there is no parent whose seeds it could be compared with"], "")
    metric, unit = before.promote.metric, _unit(before)
    try:
        found = judge(before)
    except (Unproved, ValueError) as why:
        return judged(gate, [f"{metric}: {why}"], "")
    return Verdict(
        gate,
        found.outcome,
        f"{metric} ({before.promote.direction}, in {unit}): {found.reason}",
        {**found.numbers, "metric": metric, "unit": unit},
    )


def _values(before: ModelRecord, record: ModelRecord) -> tuple[Values, Values]:
    """The metric of every member of both, as losses. Raises Unproved."""
    terms = before.promote
    for who, side in (("the parent", before), ("the retrain", record)):
        passed, reasons = judge_metrics(side)
        if not passed:
            raise Unproved(f"{who} cannot be compared: {'; '.join(reasons)}")
        if any(terms.metric not in member.metrics for member in side.members):
            raise Unproved(f"{who} has members without it")
    if _unit(before) != _unit(record):
        raise Unproved(
            f"the parent measured in {_unit(before)!r}, the retrain in {_unit(record)!r}"
        )
    values = [
        oriented([member.metrics[terms.metric].value for member in side.members], terms.direction)
        for side in (before, record)
    ]
    return values[0], values[1]


def _examples(evidence: Evidence, before: ModelRecord) -> Finding:
    terms = before.promote
    sides = [
        [evidence.losses(member, terms.metric) for member in side.members]
        for side in (before, evidence.record)
    ]
    metrics = np.concatenate(_values(before, evidence.record))
    losses = [row for side in sides for row in side]
    if any(not len(row) or not np.all(np.isfinite(row)) for row in losses):
        raise Unproved("the per-example losses are empty or not finite")
    offsets = metrics - np.array([row.mean() for row in losses])
    if float(np.ptp(offsets)) > SCALE_SLACK * terms.margin:
        raise Unproved(
            "the per-example losses do not average to the metric (up to one constant and the sign), "
            "so the margin says nothing about them"
        )
    return paired_examples(sides[0], sides[1], terms.margin, terms.alpha)


def _unit(record: ModelRecord) -> str:
    found = [m.metrics[record.promote.metric].unit for m in record.members
             if record.promote.metric in m.metrics]  # fmt: skip
    return found[0] if found else "no unit"
