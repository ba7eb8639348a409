"""The dispatch sensor: steps the dispatcher, moves every plan on, and asks for runs of what is done.

Whatever it does follows from the store. Its cursor says how many stages of each plan were finished at
the last tick, and decides only whether a run of somebody else's gets a tick's time to show a stage
first; Dagster's storage can be deleted, and the next ticks ask for everything again.
"""

import base64
import binascii
import json
import os
from collections.abc import Iterable, Mapping
from itertools import islice

import dagster as dg

from assets.materialize import experiments
from assets.stage import Context
from assets.standing import jobs_digest
from assets.team import TEAM
from gates import deploy
from gates.warrant import BadWarrant, read_log
from pipelines.jobs import chain_job
from pipelines.plays import Play, step
from pipelines.resources import TenureResource, Workshop
from tenure.errors import StoreOutOfReach, UsageError
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.store.api import StoreSilent

TICK_S = 20.0
MOST_TICK_S = 45.0  # Dagster cuts a tick off after 60 s
MOST_TROUBLES = 10  # told one by one: a store that does not answer has one for each of many jobs
REQUESTED_BY = "tenure/requested_by"
_PARTITION = "dagster/partition"
_RUN_KEY = "dagster/run_key"
_RUNNING = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


@dg.sensor(
    job=chain_job,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Steps the dispatcher, enlists the next stages, and requests runs of finished ones.",
)
def dispatch(context: dg.SensorEvaluationContext, tenure: TenureResource) -> dg.SensorResult:
    """One tick: at most ``$TENURE_TICK_S`` seconds, less when nothing is open."""
    try:
        for_s = tick_seconds(os.environ)
        workshop = tenure.workshop()
        names = enlisted_plans(workshop)
    except (UsageError, StoreOutOfReach, StoreSilent) as error:
        return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
    workshop.dispatcher.keep_watching()
    plays, said = playing(workshop, names)
    tick = step(workshop.dispatcher, plays, for_s, workshop.clock)
    for play in plays:
        play.tell_blocked()
    said += [play.waits_for(tick) for play in plays]
    said += together(tick.troubles)
    if news := workshop.news(said):
        context.log.info("\n".join(news))  # one event, however many plans and jobs it is about
    before: dict[str, int] = json.loads(context.cursor) if context.cursor else {}
    requests = [
        request
        for play in plays
        for request in run_requests(context.instance, play, before.get(play.name, 0))
    ]
    shown = set(context.instance.get_dynamic_partitions(str(experiments.name)))
    fresh = [play.name for play in plays if play.name not in shown]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[experiments.build_add_request(fresh)] if fresh else [],
        skip_reason=None if requests else "; ".join(said) or "no plan is enlisted in the store",
        cursor=json.dumps({play.name: len(play.standing.finished) for play in plays}),
    )


def tick_seconds(environ: Mapping[str, str]) -> float:
    """How long one tick may step the dispatcher. Raises UsageError.

    >>> tick_seconds({}), tick_seconds({"TENURE_TICK_S": "3"})
    (20.0, 3.0)
    """
    text = environ.get("TENURE_TICK_S", "")
    try:
        seconds = float(text) if text else TICK_S
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_TICK_S:
        raise UsageError(
            f"$TENURE_TICK_S is {text!r}; it must be seconds from 0 to {MOST_TICK_S:g}, because "
            "Dagster cuts a tick off after 60"
        )
    return seconds


def together(troubles: Mapping[str, str]) -> list[str]:
    """What is wrong with which keys: the first in words, and how many others there are.

    >>> together({"plans/a": "no JSON"}), together({str(n): "silent" for n in range(12)})[9:]
    (['plans/a: no JSON'], ['9: silent', '2 more keys have troubles; `tenure status` names them'])
    """
    said = [f"{key}: {trouble}" for key, trouble in islice(troubles.items(), MOST_TROUBLES)]
    more = len(troubles) - len(said)
    return [*said, f"{more} more keys have troubles; `tenure status` names them"] if more else said


def enlisted_plans(workshop: Workshop) -> list[str]:
    """Names of the plans that the store has records of. Raises StoreSilent."""
    rows = workshop.store.list(keys.PLANS)
    return list(dict.fromkeys(row.key.removeprefix(keys.PLANS).partition("/")[0] for row in rows))


def playing(workshop: Workshop, names: Iterable[str]) -> tuple[list[Play], list[str]]:
    """The plans that are enlisted and have a file, and a sentence for each that cannot be played."""
    try:
        plans = workshop.plans()
    except UsageError as error:
        return [], [str(error)]  # jobs that are enlisted still run to their ends
    found, troubles = [], []
    for name in names:
        if name not in plans:
            troubles.append(f"{name} is in the store and has no plan file")
            continue
        try:
            found.append(workshop.play(plans[name]))
        except (UsageError, StoreOutOfReach) as error:
            troubles.append(str(error))
    return found, troubles


def run_requests(
    instance: dg.DagsterInstance, play: Play, finished_before: int
) -> list[dg.RunRequest]:
    """A run for every finished stage that Dagster does not show yet, once per set of jobs.

    While a run that somebody else began for this experiment lasts, a stage that was just finished is
    left to it for one tick.
    """
    running = dg.RunsFilter(statuses=_RUNNING, tags={_PARTITION: play.name})
    others = any(REQUESTED_BY not in run.tags for run in instance.get_runs(running, limit=100))
    stages = dict(play.standing.finished)
    if play.standing.blocked and play.standing.stage and play.standing.jobs:
        stages[play.standing.stage] = play.standing.jobs  # a job failed: its run says so, in red
    found = []
    for position, (stage, jobs) in enumerate(stages.items()):
        digest = jobs_digest(jobs)
        if (others and position >= finished_before) or _shown(instance, stage, play.name) == digest:
            continue
        if stage == "deployment" and not _may_deploy(play.context, jobs[0]):
            continue
        run_key = f"{play.name}/{stage}/{digest}"
        if instance.get_runs_count(dg.RunsFilter(tags={_RUN_KEY: run_key})):
            continue  # Dagster would leave it out too, and say nothing of what is waited for
        found.append(
            dg.RunRequest(
                run_key=run_key,
                partition_key=play.name,
                asset_selection=[dg.AssetKey(stage)],
                tags={REQUESTED_BY: "dispatch", TEAM: play.context.chain.plan.team},
            )
        )
    return found


def _shown(instance: dg.DagsterInstance, stage: str, partition: str) -> str | None:
    """The digest of the jobs that Dagster shows as materialized, if any."""
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(stage), asset_partitions=[partition])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        made = record.asset_materialization
        return (made.tags or {}).get("dagster/data_version") if made else None
    return None


def _may_deploy(context: Context, record: str) -> bool:
    """Unattended, a record that was deployed once and replaced since is never put back."""
    try:
        current = deploy.current(context.store, context.chain.plan.name)
        if current is None or current.record == record:
            return True
        return all(_record_of(entry.warrant) != record for entry in read_log(context.store))
    except (BadWarrant, Corrupt, StoreSilent):
        return True  # the stage itself says what is wrong


def _record_of(envelope: bytes) -> object:
    """Which record a warrant names, unverified: it only keeps a run from being requested."""
    try:
        return json.loads(base64.b64decode(json.loads(envelope)["payload"]))["predicate"]["record"]
    except (ValueError, KeyError, TypeError, binascii.Error):
        return None
