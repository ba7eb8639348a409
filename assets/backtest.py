"""Every research model is played over history, and one point of the grid is promoted."""

from collections.abc import Sequence

import dagster as dg

from assets import verdicts
from assets.chain import Done
from assets.curves import equity_picture
from assets.facts import Cell, Facts, Table, jobs, point_words
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.metrics import metrics
from assets.stage import Context
from tenure_protocol.records import ModelRecord


def describe(context: Context, done: Sequence[Done]) -> Facts:
    """The equity of every backtest, the records of the points, and which one is promoted."""
    chain = context.chain
    records = chain.first_generation()
    return {
        "summary": verdicts.research_backtest(chain).reason,
        "equity_curve": equity_picture(context, done),
        "points": Table([_point(record) for record in records]),
        **jobs(done),
        **launches(context, done),
    }


def _point(record: ModelRecord) -> dict[str, Cell]:
    scores = [member.backtest.score for member in record.members if member.backtest]
    return {
        "point": point_words(record.config),
        "record": record.id,
        "mean_score": sum(scores) / len(scores) if scores else None,
        "passed": record.passed_metrics and record.passed_backtest,
        "reasons": "; ".join(record.reasons) or "-",
    }


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[metrics])
def backtest(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """Every research model, played over history. Nothing here is deployable."""
    return played(context, tenure, "backtest", describe)
