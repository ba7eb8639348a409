"""Every point of the grid is trained with every seed."""

from collections.abc import Sequence

import dagster as dg

from assets.chain import Done
from assets.curves import loss_picture
from assets.environments import environments
from assets.facts import Facts, jobs
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.stage import Context


def describe(context: Context, done: Sequence[Done]) -> Facts:
    """The jobs and their loss over the steps."""
    plan = context.chain.plan
    return {
        "summary": f"{len(done)} models: {len(plan.points())} x {len(plan.seeds)} points and seeds",
        "loss_curve": loss_picture(context, done),
        **jobs(done),
        **environments(context.chain, done),
        **launches(context, done),
    }


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"})
def training(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """Every point of the grid, trained with every seed: the research models."""
    return played(context, tenure, "training", describe)
