"""Seeded weeks of a pool of five platforms, run under three policies in the same worlds.

A week is checked while it runs by the rules of :mod:`tenure.sim.checks`, and at its end for what must
be true of the whole: whoever can finish did, no machine is left, and the ledger says what was charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tenure.dispatch.ledger import read_ledger
from tenure.sim.pool_cloud import Machine
from tenure.sim.pool_platforms import HOUR_S, POOL, Market
from tenure.sim.pool_policies import POLICIES, PRODUCT, Policy
from tenure.sim.pool_world import LIMIT_S, Config, PoolWorld, Task
from tenure.sim.run import quiet_folder
from tenure.sim.store import DirectStore
from tenure_worker import exits

#: What a machine's ledger entry may differ by: a release travels, and its settlement is written after it.
_ROUNDING_S = 30.0
_SHARE = 4  # seeds of one errand to a process


@dataclass(frozen=True)
class Week:
    """What came of one seed under one policy. Money is what the platforms charged."""

    seed: int
    policy: Policy
    jobs: int
    can_finish: int
    usd: float
    credits: float
    quota_h: float
    paid_h: float  # hours of machines that cost dollars
    flops: float  # of the jobs that finished
    hours: dict[str, float]  # job: from its arrival to its end, of those that can finish and did
    not_done: dict[str, str]  # job: how it stands, of those that can finish and did not
    launches: int  # machines
    yields: int  # holders that were asked to yield
    unknown_usd: float  # of it for machines that had been called closed, or were never seen
    span_h: float
    calls: int  # of the store and the platforms
    digest: str
    due: int  # jobs that can finish and have a deadline
    late_h: dict[str, float]  # job: from its deadline to its end, of those that missed it
    broken: tuple[str, ...]  # invariants

    @property
    def finished(self) -> int:
        """Of those that can."""
        return len(self.hours)


def run_week(
    seed: int,
    policy: Policy,
    configs: Sequence[Config] | None = None,
    pool: Sequence[Market] = POOL,
    limit_s: float = LIMIT_S,
) -> Week:
    """Run one world under one policy. The same arguments give the same week, to the last write."""
    with quiet_folder():
        world = PoolWorld(seed, policy, configs, pool, limit_s)
        digest = world.run()
    return _told(world, seed, digest)


def _told(world: PoolWorld, seed: int, digest: str) -> Week:
    checker, now_s = world.checker, world.scheduler.now_s
    hours, not_done = {}, {}
    for job, task in world.tasks.items():
        if not task.can_finish:
            continue
        if _finished(world, job):
            hours[job] = (world.ended_s[job] - world.arrived_s[job]) / HOUR_S
        else:
            facts = checker.jobs[job]
            not_done[job] = f"{facts.phase}: {(facts.now or {}).get('reason')}"
    machines = list(world.cloud.machines.values())
    broken = [f"{v.invariant} at {v.at_s:.0f} s: {v.detail}" for v in checker.violations]
    broken += _wrong_ends(world, not_done)
    broken += _left_running(world, machines)
    broken += _wrong_ledger(world, machines) if world.settled else []
    sums = {market.currency: 0.0 for market in world.pool} | dict.fromkeys(_CURRENCIES, 0.0)
    for machine in machines:
        sums[machine.market.currency] += _charge(machine, machine.charged_s(now_s))
    return Week(
        seed,
        world.policy,
        len(world.tasks),
        sum(task.can_finish for task in world.tasks.values()),
        sums["usd"],
        sums["credits"],
        sums["quota_h"],
        sum(m.charged_s(now_s) for m in machines if m.market.currency == "usd") / HOUR_S,
        sum(_flops(world.tasks[job]) for job in hours),
        hours,
        not_done,
        len(machines),
        world.yields,
        sum(_unknown(machine, now_s) for machine in machines),
        now_s / HOUR_S,
        world.calls,
        digest,
        sum(t.can_finish and t.config.deadline_h > 0 for t in world.tasks.values()),
        _late_h(world, hours, now_s / HOUR_S),
        tuple(broken),
    )


def _late_h(world: PoolWorld, hours: dict[str, float], now_h: float) -> dict[str, float]:
    """Of jobs that can finish; one that did not is late up to now."""
    found = {}
    for job, task in world.tasks.items():
        if not task.can_finish or not task.config.deadline_h:
            continue
        took_h = hours.get(job, now_h - world.arrived_s[job] / HOUR_S)
        if took_h > task.config.deadline_h:
            found[job] = took_h - task.config.deadline_h
    return found


_CURRENCIES = ("usd", "credits", "quota_h")


def _finished(world: PoolWorld, job: str) -> bool:
    facts = world.checker.jobs[job]
    return facts.phase == "finished" and (facts.now or {})["exit_code"] == exits.FINISHED


def _flops(task: Task) -> float:
    return task.config.flops_per_step * task.config.steps


def _charge(machine: Machine, seconds: float) -> float:
    return machine.market.per_h * seconds / HOUR_S


def _unknown(machine: Machine, now_s: float) -> float:
    """Dollars charged after the platform had called a machine closed, or for one that was never seen."""
    if machine.market.currency != "usd":
        return 0.0
    charged_s = machine.charged_s(now_s)
    if machine.host.cut and machine.began_s is None:
        return _charge(machine, charged_s)
    return _charge(machine, charged_s - machine.paid_when_closed_s) if machine.lied else 0.0


# ------------------------------------------------------------------------ what must be true


def _wrong_ends(world: PoolWorld, not_done: dict[str, str]) -> Iterator[str]:
    """Every job that can finish does, under our own policy; the others end for the right reason."""
    if world.policy in PRODUCT:
        for job, how in not_done.items():
            yield f"job {job} can finish and did not: {how}"
    for job, task in world.tasks.items():
        facts = world.checker.jobs[job]
        if task.can_finish or facts.phase not in ("finished", "cancelled"):
            continue  # of the last the checker tells
        reason = str((facts.now or {}).get("reason"))
        want = "a bug of the experiment" if task.config.own_error else "MemoryError: "
        if want not in reason:
            yield f"job {job} cannot finish, and ended for another reason: {facts.phase}: {reason}"
    if world.policy in PRODUCT and not world.settled:
        yield f"something is still open after {world.scheduler.now_s / HOUR_S:.0f} h"


def _left_running(world: PoolWorld, machines: Iterable[Machine]) -> Iterator[str]:
    """No machine is left when every job is over."""
    for machine in machines:
        if world.settled and not machine.ended:
            yield f"machine {machine.name} of rung {machine.rung} runs on"


def _wrong_ledger(world: PoolWorld, machines: Iterable[Machine]) -> Iterator[str]:
    """The ledger has what was charged; where a platform does not tell, what was seen of it.

    Of a machine that was taken back unseen, that is until it was found gone; of one that was called
    closed and ran on, until then.
    """
    entries, troubles = read_ledger(DirectStore(world.objects))
    yield from troubles
    noted: dict[str, float] = {}
    for entry in entries:
        noted[entry.name] = noted.get(entry.name, 0.0) + entry.paid_s * entry.share
    for machine in machines:
        if machine.closed_s is None:
            yield f"machine {machine.name} of rung {machine.rung} was never closed"
            continue
        seen_s = machine.paid_when_closed_s
        if not machine.market.tells_paid:
            seen_s = machine.closed_s - machine.ordered_s
        told_s = noted.pop(machine.name, 0.0)
        if abs(told_s - seen_s) > _ROUNDING_S:
            yield (
                f"the ledger of {machine.name} of rung {machine.rung} has {told_s:.0f} s, and not "
                f"{seen_s:.0f} s"
            )
    for name, paid_s in noted.items():
        yield f"the ledger has {paid_s:.0f} s of {name}, which never was"


# ------------------------------------------------------------------------------ many weeks


def run_weeks(
    seeds: Sequence[int],
    processes: int = 1,
    policies: Sequence[Policy] = POLICIES,
    limit_s: float = LIMIT_S,
) -> Iterator[Week]:
    """The weeks of these seeds, each under every policy, in order."""
    share = partial(_share, tuple(policies), limit_s)
    shares = [seeds[first : first + _SHARE] for first in range(0, len(seeds), _SHARE)]
    if processes <= 1:
        for each in shares:
            yield from share(each)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        for part in executor.map(share, shares):
            yield from part


def _share(policies: Sequence[Policy], limit_s: float, seeds: Iterable[int]) -> list[Week]:
    return [run_week(seed, p, limit_s=limit_s) for seed in seeds for p in policies]
