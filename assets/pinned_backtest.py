"""The retrained models are played over history, the only backtests that count for deployment."""

from collections.abc import Sequence

import dagster as dg

from assets.chain import Done
from assets.curves import equity_picture
from assets.facts import Facts, jobs, member_table, verdict_table
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.seed_spread import seed_spread
from assets.stage import Context
from gates.evidence import deployed_member


def describe(context: Context, done: Sequence[Done]) -> Facts:
    """The equity, the generation-2 record and what every gate says of it."""
    chain = context.chain
    record = chain.second_generation()
    verdicts = chain.verdicts()
    member = deployed_member(record)
    score = member.backtest.score if member.backtest else None
    passed = sum(verdict.verdict == "PASS" for verdict in verdicts)
    return {
        "summary": (
            f"seed {member.seed}, which is to be deployed, scores "
            f"{'-' if score is None else format(score, '.4g')}; {passed} of {len(verdicts)} gates "
            "passed"
        ),
        "equity_curve": equity_picture(context, done),
        "record": record.id,
        "deployable": bool(member.backtest and member.backtest.deployable),
        "verdicts": verdict_table(verdicts),
        "members": member_table(record),
        **jobs(done),
        **launches(context, done),
    }


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[seed_spread])
def pinned_backtest(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """The retrained models, played over history in their pinned environment."""
    return played(context, tenure, "pinned_backtest", describe)
