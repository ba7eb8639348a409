"""The nightly schedule enlists plans; the sensor does the rest."""

import dagster as dg

from assets.materialize import experiments
from assets.stage import enlist_stage
from pipelines.jobs import chain_job
from pipelines.resources import TenureResource
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure_protocol.codec import Corrupt


@dg.schedule(
    cron_schedule="0 2 * * *",
    target=chain_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Enlists every plan with `nightly: true`; unchanged code and data enlist nothing.",
)
def nightly(context: dg.ScheduleEvaluationContext, tenure: TenureResource) -> dg.SkipReason:
    """Enlist the trainings of every nightly plan, and make a partition for it."""
    try:
        workshop = tenure.workshop()
        plans = [plan for plan in workshop.plans().values() if plan.nightly]
    except (UsageError, StoreOutOfReach) as error:
        return dg.SkipReason(str(error))
    said, enlisted = [], []
    for plan in plans:
        try:
            jobs = enlist_stage(workshop.context_of(plan, fresh=True), "training")
        except (UsageError, StoreOutOfReach, Blocked, Corrupt) as error:
            said.append(f"{plan.name}: {error}")  # one broken plan stops no other
            continue
        enlisted.append(plan.name)
        said.append(f"{plan.name}: {len(jobs)} trainings are enlisted")
    if enlisted:
        context.instance.add_dynamic_partitions(_name(), enlisted)
    return dg.SkipReason("; ".join(said) or "no plan has nightly: true")


def _name() -> str:
    assert experiments.name is not None
    return experiments.name
