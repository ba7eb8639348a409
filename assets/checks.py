"""Gates as blocking asset checks: within one run a check that fails stops every later stage.

Across separate runs the chain itself does, by raising Blocked.
"""

from collections.abc import Callable, Sequence

import dagster as dg

from assets import verdicts
from assets.backtest import backtest
from assets.deployment import deployment, warranted
from assets.materialize import Opener, checked, in_words
from assets.metrics import metrics
from assets.pinned_backtest import pinned_backtest
from assets.pinned_retrain import pinned_retrain
from assets.seed_spread import seed_spread
from assets.stage import Context
from gates.verdict import Verdict


def _judge(
    context: dg.AssetCheckExecutionContext,
    tenure: Opener,
    ask: Callable[[Context], Sequence[Verdict]],
) -> dg.AssetCheckResult:
    with in_words():
        return checked(ask(tenure.context(context.partition_key)))


@dg.asset_check(asset=metrics, blocking=True)
def metrics_pass(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """Some point of the grid has finite metrics, in the plan's direction, for every seed."""
    return _judge(context, tenure, lambda ours: [verdicts.research_metrics(ours.chain)])


@dg.asset_check(asset=backtest, blocking=True)
def a_point_passes(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """Some point of the grid passed its backtests and can be retrained."""
    return _judge(context, tenure, lambda ours: [verdicts.research_backtest(ours.chain)])


@dg.asset_check(asset=pinned_retrain, blocking=True)
def same_bits_again(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """The training of the seed to be deployed, done twice, gave the same bits."""
    return _judge(context, tenure, lambda ours: [ours.chain.repetition()])


@dg.asset_check(asset=seed_spread, blocking=True)
def not_worse_than_parent(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """The retrain is proved to be less than the margin worse than its parent."""
    return _judge(context, tenure, lambda ours: ours.chain.spread())


@dg.asset_check(asset=pinned_backtest, blocking=True)
def deployable(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """The model to be deployed passed its own pinned backtest, with the score asked for."""
    return _judge(context, tenure, lambda ours: verdicts.pinned_backtest(ours.chain))


@dg.asset_check(asset=pinned_backtest, blocking=True)
def every_gate(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """What `tenure gate check` says of the generation-2 record."""
    return _judge(context, tenure, lambda ours: ours.chain.verdicts())


@dg.asset_check(asset=deployment, blocking=True)
def warrant(
    context: dg.AssetCheckExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.AssetCheckResult:
    """What is current is this plan's model, and its warrant proves it."""
    return _judge(context, tenure, lambda ours: [warranted(ours)])


CHECKS = [
    metrics_pass,
    a_point_passes,
    same_bits_again,
    not_worse_than_parent,
    deployable,
    every_gate,
    warrant,
]
