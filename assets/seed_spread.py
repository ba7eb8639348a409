"""Is the retrain as good as its parent? Asked of the seeds of both, by the terms fixed before."""

from collections.abc import Sequence

import dagster as dg

from assets.chain import Done
from assets.facts import Facts, jobs, member_table, verdict_table
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.pinned_retrain import pinned_retrain
from assets.stage import Context


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
