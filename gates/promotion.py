"""Did a research model pass, and which point of a grid is retrained? Pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenure_protocol.records import JudgedMetric, ModelRecord


def judge_metrics(record: ModelRecord) -> tuple[bool, tuple[str, ...]]:
    """Whether every member has finite metrics, and each judged one in the plan's direction.

    Returns the answer and a sentence for each reason against it.
    """
    judged = record.promote.judged
    reasons = [] if record.members else ["it has no members"]
    units: dict[str, set[str]] = {terms.metric: set() for terms in judged}
    for member in record.members:
        for name, metric in member.metrics.items():
            if not math.isfinite(metric.value):
                reasons.append(f"{name} of seed {member.seed} is {metric.value}")
        for terms in judged:
            found = member.metrics.get(terms.metric)
            if found is None:
                reasons.append(f"seed {member.seed} has no metric {terms.metric!r}")
                continue
            units[terms.metric].add(found.unit)
            if found.direction != terms.direction:
                reasons.append(
                    f"seed {member.seed} says {terms.metric!r} is to {found.direction}, "
                    f"the plan says {terms.direction}"
                )
    reasons += [
        f"{name!r} comes in several units: {', '.join(sorted(found))}"
        for name, found in units.items()
        if len(found) > 1
    ]
    return not reasons, tuple(reasons)


def metric_words(terms: JudgedMetric) -> str:
    """A metric's terms as people write them.

    >>> metric_words(JudgedMetric("mae", "minimize", 0.5, examples=False))
    'mae (minimize, margin 0.5, without examples)'
    """
    examples = "" if terms.examples else ", without examples"
    return f"{terms.metric} ({terms.direction}, margin {terms.margin:g}{examples})"


def judge_backtest(record: ModelRecord) -> tuple[bool, tuple[str, ...]]:
    """Whether the mean score reaches ``min_score`` and more than half of the members passed.

    Returns the answer and a sentence for each reason against it.
    """
    found = [member.backtest for member in record.members if member.backtest is not None]
    missing = [member.seed for member in record.members if member.backtest is None]
    reasons = [] if record.members else ["it has no members"]
    if missing:
        reasons.append(f"no backtest of seed {', '.join(map(str, missing))}")
    if not found:
        return False, tuple(reasons)
    mean = sum(item.score for item in found) / len(found)
    least = record.promote.min_score
    if not (math.isfinite(mean) and math.isfinite(least) and mean >= least):
        reasons.append(
            f"the mean score of the backtests is {mean:.4g}, at least {least:g} is asked"
        )
    passed = sum(item.passed for item in found)
    if 2 * passed <= len(record.members):
        reasons.append(
            f"{passed} of {len(record.members)} backtests passed, more than half is asked"
        )
    return not reasons, tuple(reasons)


def promote(records: Sequence[ModelRecord]) -> ModelRecord | None:
    """The point of a grid to retrain: among those that passed, the best mean; ties: the first.

    ``records`` are in the order of the grid. ``None`` when no point passed.
    """
    best: tuple[float, ModelRecord] | None = None
    for record in records:
        if not (judge_metrics(record)[0] and judge_backtest(record)[0]):
            continue
        terms = record.promote
        values = [member.metrics[terms.metric].value for member in record.members]
        loss = sum(values) / len(values) * (1 if terms.direction == "minimize" else -1)
        if best is None or loss < best[0]:
            best = (loss, record)
    return best[1] if best else None
