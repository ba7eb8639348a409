"""The model that passed every gate is signed for and made current."""

from datetime import UTC, datetime

import dagster as dg

from assets.facts import Cell, Facts, Table
from assets.launches import experiment_costs
from assets.materialize import GROUP, Opener, experiments, in_words, materialized
from assets.pinned_backtest import pinned_backtest
from assets.stage import Context
from gates import deploy as gate
from gates.planned import of_plan
from gates.slots import Deployment, history, proved
from gates.trust import Trust
from gates.verdict import Verdict, judged
from gates.warrant import BadWarrant, DeployKey, Statement
from tenure.errors import Blocked, UsageError
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.store.api import Store, StoreSilent
from tenure_protocol.warrants import SLOTS


def deploy(context: Context) -> Deployment:
    """Ask every gate again, sign the warrant and move the deployment of the plan's name.

    Raises Blocked with every reason, or UsageError without a deploy key.
    """
    record, name = context.chain.second_generation(), context.chain.plan.name
    notifier = context.dispatcher.notifier
    try:
        done = gate.deploy(
            context.deploy_store() if context.deploy_store else context.store,
            record,
            _key(context),
            name,
            context.clock,
            trust=_trust(context),
            head=context.head,
            by="tenure run",
            beside=[of_plan(record)],
        )
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
    """Whether what is live now is the plan's model, proved by a warrant of a key trusted here."""
    name, record = context.chain.plan.name, context.chain.second_generation()
    try:
        current = gate.current(context.store, name)
        if current is None:
            return judged("warrant", [f"nothing is deployed as {name!r}"], "")
        if current.record != record.id:
            said = f"{name!r} is record {current.record}, not {record.id} of this plan"
            return judged("warrant", [said], "")
        proved(context.store, current, _trust(context))
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
        "deployed_at": _time(deployed.at_s),
    }


def deployment_facts(store: Store, name: str, trust: Trust) -> Facts:
    """What is in each slot by whose key, what was in them, and what the live warrant says of its gates.

    A sentence in place of what cannot be told: what was deployed is deployed.
    """
    slots, moves, facts = [], [], Facts()
    for slot in SLOTS:
        try:
            states = history(store, name, slot)
        except (Blocked, Corrupt, StoreSilent) as error:
            facts[f"{slot}_trouble"] = str(error)
            continue
        moves += [_move(state) for state in states]
        if not states:
            continue
        said, warrant = _warrant(store, states[-1], trust)
        slots.append(
            {**_slot(states[-1]), "key": warrant.key if warrant else "-", "warranted": said}
        )
        if slot == "live" and warrant:
            facts["key"] = warrant.key
            facts["gates"] = Table(_gates(warrant))
    return {"slots": Table(slots), "history": Table(moves), **facts}


def _warrant(store: Store, state: Deployment, trust: Trust) -> tuple[str, Statement | None]:
    try:
        return "yes", proved(store, state, trust)
    except (BadWarrant, StoreSilent) as error:
        return f"no: {error}", None


def _slot(state: Deployment) -> dict[str, Cell]:
    return {
        "slot": state.slot,
        "record": state.record,
        "seed": state.seed,
        "warrant": state.warrant,
        "since": _time(state.at_s),
    }


def _move(state: Deployment) -> dict[str, Cell]:
    return {
        "slot": state.slot,
        "move": state.move,
        "what": state.what,
        "from": "-" if state.replaced is None else str(state.replaced),
        "to": str(state.warrant),
        "record": state.record,
        "at": _time(state.at_s),
        "by": state.by or "-",
        "reason": state.reason or "-",
    }


def _gates(warrant: Statement) -> list[dict[str, Cell]]:
    said = warrant.predicate.get("gates")
    return [
        {name: str(gate.get(name)) for name in ("gate", "verdict", "reason")}
        for gate in (said if isinstance(said, list) else [])
        if isinstance(gate, dict)
    ]


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


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


def _trust(context: Context) -> Trust:
    if context.trust is None:
        raise UsageError("this process was told of no trusted key, so it can believe no warrant")
    return context.trust()


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[pinned_backtest])
def deployment(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """The model that is live, and the warrant that allows it."""
    with in_words():
        ours = tenure.context(context.partition_key)
        deployed = deploy(ours)
        page = deployment_facts(ours.store, deployed.name, _trust(ours))
    facts = {**describe(deployed), **page, **experiment_costs(ours)}
    return materialized(facts, [deployed.record])
