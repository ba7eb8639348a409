"""What Dagster loads: the chain, its gates as checks, the job, the schedule and the sensor."""

import dagster as dg

from assets.backtest import backtest
from assets.checks import CHECKS
from assets.deployment import deployment
from assets.metrics import metrics
from assets.pinned_backtest import pinned_backtest
from assets.pinned_retrain import pinned_retrain
from assets.seed_spread import seed_spread
from assets.training import training
from pipelines.jobs import chain_job
from pipelines.resources import TenureResource, store_s3
from pipelines.schedules import nightly
from pipelines.sensors import dispatch

ASSETS = [
    training,
    metrics,
    backtest,
    pinned_retrain,
    seed_spread,
    pinned_backtest,
    deployment,
]

defs = dg.Definitions(
    assets=ASSETS,
    asset_checks=CHECKS,
    jobs=[chain_job],
    schedules=[nightly],
    sensors=[dispatch],
    resources={"tenure": TenureResource(), "s3": store_s3},
    executor=dg.in_process_executor,
)
