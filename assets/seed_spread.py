"""Is the retrain as good as its parent? Asked of the seeds of both, by the terms fixed before."""

from collections.abc import Sequence

import dagster as dg

from assets.chain import Done
from assets.facts import Cell, Facts, Table, jobs, member_table, verdict_table
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.pinned_retrain import pinned_retrain
from assets.stage import Context
from gates.verdict import Verdict
from tenure_protocol.records import JudgedMetric

#: What a page tells of each metric: the verdict, its number, and the column.
_TOLD = (
    ("spread_mean", "reference_mean", "parent_mean"),
    ("spread_mean", "new_mean", "retrain_mean"),
    ("spread_mean", "worse_by", "worse_by"),
    ("spread_mean", "p", "mean_p"),
    ("spread_variance", "reference_sd", "parent_sd"),
    ("spread_variance", "new_sd", "retrain_sd"),
    ("spread_variance", "p", "variance_p"),
    ("spread_worst_seed", "worst", "worst_seed"),
    ("spread_worst_seed", "bound", "worst_seed_bound"),
    ("spread_examples", "worse_by", "examples_worse_by"),
    ("spread_examples", "upper_bound", "examples_upper_bound"),
)


def metric_table(metrics: Sequence[JudgedMetric], verdicts: Sequence[Verdict]) -> Table:
    """A row for each judged metric, the promoted one first: its terms, and the numbers of its gates.

    Empty where a gate had nothing to compute. All are losses: larger is worse, whatever the direction.
    """
    numbers = {verdict.gate: verdict.numbers for verdict in verdicts}
    rows: list[dict[str, Cell]] = []
    for place, terms in enumerate(metrics):
        prefix = f"{terms.metric}." if place else ""
        told = {column: numbers.get(gate, {}).get(prefix + name) for gate, name, column in _TOLD}
        unit = numbers.get("spread_mean", {}).get(f"{prefix}unit")
        rows.append(
            {
                "metric": terms.metric,
                "direction": terms.direction,
                "unit": unit,
                "margin": terms.margin,
                **told,
            }
        )
    return Table(rows)


def describe(context: Context, done: Sequence[Done]) -> Facts:
    """The four verdicts over seeds and examples, and the seeds of both generations."""
    chain = context.chain
    verdicts = chain.spread()
    passed = sum(verdict.verdict == "PASS" for verdict in verdicts)
    mean = next((v for v in verdicts if v.gate == "spread_mean"), verdicts[0])
    return {
        "summary": f"{passed} of {len(verdicts)} passed; {mean.reason}",
        "verdicts": verdict_table(verdicts),
        "margin": chain.plan.promote.margin,
        "metrics": metric_table(chain.promoted().promote.judged, verdicts),
        "parent_seeds": member_table(chain.promoted()),
        "retrain_seeds": member_table(chain.retrained(with_backtests=False)),
        **jobs(done),
        **launches(context, done),
    }


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[pinned_retrain])
def seed_spread(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """The retrained models, evaluated and compared with their parent."""
    return played(context, tenure, "seed_spread", describe)
