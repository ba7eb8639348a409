"""The job that plays the whole chain for one experiment."""

import dagster as dg

from assets.materialize import GROUP

CHAIN = "chain"

# In process: a step of its own costs 2.7 s to start, and every one would import this location again.
chain_job = dg.define_asset_job(
    CHAIN,
    selection=dg.AssetSelection.groups(GROUP),
    executor_def=dg.in_process_executor,
    description="From training to deployment; run again, it attaches to what is there.",
)
