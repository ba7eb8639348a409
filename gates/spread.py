"""Is the retrain as good as its parent, over seeds and over examples, by the terms fixed before?

Of several metrics each must pass each check at its full level: an intersection-union test (Berger
1982), which no number of metrics makes easier. The guards' levels are not shared among the metrics
either: that gains an equal model one point of a hundred at four metrics, and lets three times the
spread pass twice as often (docs/spread.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gates.evidence import Evidence, Unproved
from gates.promotion import judge_metrics
from gates.verdict import Verdict, judged
from tenure.statistics import (
    POWER,
    Finding,
    non_inferiority,
    oriented,
    paired_examples,
    variance_guard,
    worst_seed_bound,
)
from tenure_protocol.records import JudgedMetric, ModelRecord

Values = NDArray[np.float64]

#: Losses must average to the metric up to a constant; rounding may use this share of the margin.
SCALE_SLACK = 0.01


@dataclass(frozen=True)
class _Metric:
    """One metric of the terms, and how it is judged."""

    terms: JudgedMetric
    alpha: float
    wanted: float  # chance with which an equal model is to pass in this metric


def spread(evidence: Evidence) -> list[Verdict]:
    """Four verdicts: the mean, the variance, the worst seed, and the paired examples.

    Each is about every metric of the terms; one that does not pass comes first in its sentence.
    """
    record = evidence.record
    gates: dict[str, Callable[[ModelRecord, _Metric], Finding | None]] = {
        "spread_mean": lambda before, one: non_inferiority(
            *_values(before, record, one.terms), one.terms.margin, one.alpha, one.wanted
        ),
        "spread_variance": lambda before, one: variance_guard(*_values(before, record, one.terms)),
        "spread_worst_seed": lambda before, one: worst_seed_bound(
            *_values(before, record, one.terms), one.terms.margin
        ),
        "spread_examples": lambda before, one: _examples(evidence, before, one),
    }
    try:
        before = evidence.parent()
    except Unproved:
        why = "there is no parent whose seeds it could be compared with"
        return [judged(gate, [why], "") for gate in gates]
    try:
        _demand_comparable(before, record)
    except Unproved as error:
        return [judged(gate, [f"{before.promote.metric}: {error}"], "") for gate in gates]
    return [_verdict(gate, before, judge) for gate, judge in gates.items()]


def _verdict(
    gate: str, before: ModelRecord, judge: Callable[[ModelRecord, _Metric], Finding | None]
) -> Verdict:
    """What one check says of every metric: the worst answer, and a sentence of each."""
    judged_metrics = before.promote.judged
    # all of them pass together with POWER at least, whatever they have to do with each other
    wanted = 1 - (1 - POWER) / len(judged_metrics)
    said = []
    for terms in judged_metrics:
        one = _Metric(terms, before.promote.alpha, wanted)
        said.append(_one(gate, before, one, judge))
    worst = min(said, key=lambda item: _SEVERITY.index(item.verdict))
    ordered = sorted(said, key=lambda item: _SEVERITY.index(item.verdict))
    numbers = dict(said[0].numbers)
    for terms, item in zip(judged_metrics[1:], said[1:], strict=True):
        numbers |= {f"{terms.metric}.{name}": value for name, value in item.numbers.items()}
    return Verdict(gate, worst.verdict, "; ".join(item.reason for item in ordered), numbers)


_SEVERITY = ("BLOCK", "NOT_ENOUGH_SEEDS", "PASS")


def _one(
    gate: str,
    before: ModelRecord,
    one: _Metric,
    judge: Callable[[ModelRecord, _Metric], Finding | None],
) -> Verdict:
    metric, unit = one.terms.metric, _unit(before, one.terms.metric)
    try:
        found = judge(before, one)
    except (Unproved, ValueError) as why:
        return judged(gate, [f"{metric}: {why}"], "")
    head = f"{metric} ({one.terms.direction}, in {unit})"
    if found is None:
        return Verdict(gate, "PASS", f"{head}: the plan says that it has no per-example losses")
    return Verdict(
        gate,
        found.outcome,
        f"{head}: {found.reason}",
        {**found.numbers, "metric": metric, "unit": unit},
    )


def _demand_comparable(before: ModelRecord, record: ModelRecord) -> None:
    """Both have every metric of the parent's terms, finite, one unit, as directed. Raises Unproved."""
    retrain = replace(record, promote=before.promote)
    for who, side in (("the parent", before), ("the retrain", retrain)):
        passed, reasons = judge_metrics(side)
        if not passed:
            raise Unproved(f"{who} cannot be compared: {'; '.join(reasons)}")


def _values(before: ModelRecord, record: ModelRecord, terms: JudgedMetric) -> tuple[Values, Values]:
    """The metric of every member of both, as losses. Raises Unproved."""
    ours, theirs = _unit(record, terms.metric), _unit(before, terms.metric)
    if ours != theirs:
        raise Unproved(f"the parent measured in {theirs!r}, the retrain in {ours!r}")
    values = [
        oriented([member.metrics[terms.metric].value for member in side.members], terms.direction)
        for side in (before, record)
    ]
    return values[0], values[1]


def _examples(evidence: Evidence, before: ModelRecord, one: _Metric) -> Finding | None:
    """``None`` where the terms, fixed beforehand, say that there are no losses to judge."""
    terms = one.terms
    values = np.concatenate(_values(before, evidence.record, terms))
    if not terms.examples:
        return None
    sides = [
        [evidence.losses(member, terms.metric) for member in side.members]
        for side in (before, evidence.record)
    ]
    losses = [row for side in sides for row in side]
    if any(not len(row) or not np.all(np.isfinite(row)) for row in losses):
        raise Unproved("the per-example losses are empty or not finite")
    offsets = values - np.array([row.mean() for row in losses])
    if float(np.ptp(offsets)) > SCALE_SLACK * terms.margin:
        raise Unproved(
            "the per-example losses do not average to the metric (up to one constant and the sign), "
            "so the margin says nothing about them"
        )
    return paired_examples(sides[0], sides[1], terms.margin, one.alpha)


def _unit(record: ModelRecord, metric: str) -> str:
    found = [m.metrics[metric].unit for m in record.members if metric in m.metrics]
    return found[0] if found else "no unit"
