"""Completing a stage: enlist its jobs, step the dispatcher, follow the witnesses to the end.

Idempotent: the id of a job is its spec, so a stage that is run again after a crash attaches to what is
there, and one whose jobs are all finished returns at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assets.chain import Chain, Done, Incomplete
from gates.head import KnownHead
from gates.trust import Trust
from gates.warrant import DeployKey
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.errors import Blocked
from tenure.plan.enlist import enlist
from tenure.plan.submit import Desk
from tenure_protocol.clock import Clock
from tenure_protocol.store.api import Store

Report = Callable[[str, list[str], Tick], None]  # stage, ids of its jobs, what the dispatcher did


@dataclass(frozen=True)
class Context:
    """What every stage works with."""

    store: Store
    chain: Chain
    dispatcher: Dispatcher
    clock: Clock
    report: Report | None = None
    deploy_key: Callable[[], DeployKey] | None = None  # called by the last stage alone
    trust: Callable[[], Trust] | None = None  # whose warrants are believed: public keys alone
    deploy_store: Callable[[], Store] | None = None  # as the last stage alone may write it
    desk: Callable[[str], Desk | None] | None = (
        None  # where a team submits; None: there is one alone
    )
    head: KnownHead | None = None  # what this machine remembers of the log of warrants


def enlist_stage(context: Context, stage: str) -> list[str]:
    """Enlist the jobs of a stage, each as the newest of its retries; returns their ids in order.

    A retry whose command died between its spec and its plan record is thus taken up as well.

    Raises :class:`~assets.chain.Incomplete` while an earlier stage is open, ``Blocked`` when one ended
    against it.
    """
    specs = context.chain.newest_runs(stage)
    plan = context.chain.plan
    desk = context.desk(plan.team) if context.desk else None
    return enlist(context.store, plan.name, plan.name, specs, plan.terms(), context.clock, desk)


def complete(context: Context, stage: str) -> list[Done]:
    """Bring every job of a stage to its end; returns the finished ones in order.

    Raises ``Blocked`` with one sentence when a job ended otherwise or is stopped by a corrupt object.
    """
    ids = enlist_stage(context, stage)
    while True:
        _follow(context, stage, ids)
        try:
            return context.chain.done(stage)
        except Incomplete as error:  # a retry of a job that ended otherwise is under way
            ids = list(error.jobs)


def _follow(context: Context, stage: str, ids: list[str]) -> None:
    report = context.report

    def tell(tick: Tick) -> None:
        if report:
            report(stage, ids, tick)

    context.dispatcher.follow(ids, report=tell)
    jobs = context.dispatcher.world.jobs
    broken = [memory.broken for job in ids if (memory := jobs.get(job)) and memory.broken]
    if broken:
        raise Blocked(f"{stage}: {broken[0]}")
