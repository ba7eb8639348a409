"""Every trained model is evaluated, and the points of the grid are compared."""

import statistics
from collections.abc import Mapping, Sequence

import dagster as dg

from assets.chain import Done
from assets.environments import environments
from assets.facts import Cell, Facts, Table, jobs, point_words
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.stage import Context
from assets.training import training
from gates import promotion
from tenure_protocol.records import MetricValue, ModelRecord


def describe(context: Context, done: Sequence[Done]) -> Facts:
    """Mean and spread of every metric at every point, beside the plan's baseline."""
    chain = context.chain
    records = chain.evaluated()
    metric = chain.plan.promote.metric
    rows = metric_rows(records, chain.plan.baseline)
    promoted = [row for row in rows if row["metric"] == metric]
    return {
        "summary": "; ".join(f"{row['point']}: {metric} {_spread(row)}" for row in promoted),
        "promoted_metric": Table(promoted),
        "metrics": Table(rows),
        "points": Table([_judgement(record) for record in records]),
        **jobs(done),
        **environments(chain, chain.done("training")),
        **launches(context, done),
    }


def metric_rows(
    records: Sequence[ModelRecord], baseline: Mapping[str, object]
) -> list[dict[str, Cell]]:
    """A row for every metric and point; the difference is to the baseline's mean, in its unit."""
    base = next((record for record in records if record.config == baseline), None)
    rows: list[dict[str, Cell]] = []
    for name in dict.fromkeys(n for r in records for m in r.members for n in m.metrics):
        reference = _mean(_values(base, name)) if base else None
        for record in records:
            values = _values(record, name)
            mean = _mean(values)
            rows.append(
                {
                    "metric": name,
                    "point": point_words(record.config),
                    "mean": mean,
                    "sd": statistics.stdev(v.value for v in values) if len(values) > 1 else None,
                    "seeds": len(values),
                    "difference_to_baseline": (
                        mean - reference if mean is not None and reference is not None else None
                    ),
                    "unit": values[0].unit if values else None,
                    "direction": values[0].direction if values else None,
                }
            )
    return rows


def _values(record: ModelRecord, name: str) -> list[MetricValue]:
    return [member.metrics[name] for member in record.members if name in member.metrics]


def _mean(values: Sequence[MetricValue]) -> float | None:
    return statistics.fmean(value.value for value in values) if values else None


def _spread(row: Mapping[str, Cell]) -> str:
    mean, sd = row["mean"], row["sd"]
    shown = f"{mean:.6g}" if isinstance(mean, float) else "-"
    return f"{shown} ± {sd:.2g}" if isinstance(sd, float) else shown


def _judgement(record: ModelRecord) -> dict[str, Cell]:
    passed, reasons = promotion.judge_metrics(record)
    return {
        "point": point_words(record.config),
        "passed": passed,
        "reasons": "; ".join(reasons) or "-",
    }


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[training])
def metrics(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """Every research model, evaluated: metrics and per-example losses."""
    return played(context, tenure, "metrics", describe)
