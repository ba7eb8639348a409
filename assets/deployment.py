"""The model that passed every gate is signed for and made current."""

from datetime import UTC, datetime

import dagster as dg

from assets.facts import Facts, Table
from assets.launches import experiment_costs
from assets.materialize import GROUP, Opener, experiments, in_words, materialized
from assets.pinned_backtest import pinned_backtest
from assets.stage import Context
from gates import deploy as gate
from gates.deploy import Deployment
from gates.verdict import Verdict, judged
from gates.warrant import BadWarrant, DeployKey
from tenure.errors import Blocked, UsageError
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys


def deploy(context: Context) -> Deployment:
    """Ask every gate again, sign the warrant and move the deployment of the plan's name.

    Raises Blocked with every reason, or UsageError without a deploy key.
    """
    record, name = context.chain.second_generation(), context.chain.plan.name
    notifier = context.dispatcher.notifier
    try:
        done = gate.deploy(context.store, record, _key(context), name, context.clock)
    except Blocked as error:
        if notifier:
            notifier.blocked(name, str(error))
            notifier.close()
        raise
    if notifier:
        notifier.deployed(name, done.record, done.seed, done.warrant)
        notifier.close()  # the process of this stage ends with it
    return done


def warranted(context: Context) -> Verdict:
    """Whether what is current now is the plan's model, proved by a warrant of our own key."""
    name, record = context.chain.plan.name, context.chain.second_generation()
    try:
        current = gate.current(context.store, name)
        if current is None:
            return judged("warrant", [f"nothing is deployed as {name!r}"], "")
        if current.record != record.id:
            said = f"{name!r} is record {current.record}, not {record.id} of this plan"
            return judged("warrant", [said], "")
        gate.proved(context.store, current, [_key(context).public])
    except (BadWarrant, Corrupt) as error:
        return judged("warrant", [str(error)], "")
    said = f"{name!r} is record {current.record}, seed {current.seed}, by warrant {current.warrant}"
    return judged("warrant", [], said)


def describe(deployed: Deployment) -> Facts:
    """Where the model and its warrant lie."""
    return {
        "summary": (
            f"record {deployed.record}, seed {deployed.seed}, by warrant {deployed.warrant}"
        ),
        "record": deployed.record,
        "seed": deployed.seed,
        "warrant": deployed.warrant,
        "keys": Table([{"what": what, "key": key} for what, key in places(deployed).items()]),
        "files": Table(
            [
                {"file": name, "sha256": entry.sha256, "bytes": entry.size}
                for name, entry in deployed.files.items()
            ]
        ),
        "deployed_at": datetime.fromtimestamp(deployed.at_s, UTC).isoformat(timespec="seconds"),
    }


def places(deployed: Deployment) -> dict[str, str]:
    """The store's keys of everything that belongs to a deployment."""
    return {
        "deployment": keys.deployment(deployed.name),
        "warrant": keys.warrant(deployed.warrant),
        "model": keys.snapshot(deployed.model.job, deployed.model.pointer),
        "record": keys.model(deployed.experiment, deployed.record),
    }


def _key(context: Context) -> DeployKey:
    if context.deploy_key is None:
        raise UsageError("this process was given no deploy key, so it can deploy nothing")
    return context.deploy_key()


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[pinned_backtest])
def deployment(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """The model that is live, and the warrant that allows it."""
    with in_words():
        ours = tenure.context(context.partition_key)
        deployed = deploy(ours)
    return materialized({**describe(deployed), **experiment_costs(ours)}, [deployed.record])
