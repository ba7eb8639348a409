"""The machines of the pool, and the five platforms that rent them out, behind the Runner contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import ClassVar, Protocol, cast

from tenure.dispatch.contract import (
    ALL_KINDS,
    Bounded,
    Capacity,
    Closed,
    Job,
    NoSlots,
    Pending,
    Quota,
    Receipt,
    Settlement,
    Site,
    Unreachable,
)
from tenure.sim.clock import EPOCH_S, Process, Scheduler
from tenure.sim.faults import Weather
from tenure.sim.platform import Cloud, Instance, Starter
from tenure.sim.pool_platforms import HOUR_S, Host, Market, Season, host_of

_WARNED_S = 900.0  # before a known wall a worker is asked to stop: as much as a notice gives
_CALL_S = 1.0  # of a platform's API


@dataclass(kw_only=True)
class Machine(Instance):
    """One machine, with what it costs and what will become of it."""

    name: str
    market: Market
    host: Host
    slot: int
    ordered_s: float
    began_s: float | None = None  # when its host had started
    ended_s: float | None = None
    closed_s: float | None = None  # when the platform first called it closed
    paid_when_closed_s: float = 0.0
    told_wall_s: float = inf  # how long its launch may live, as the dispatcher told its runner
    wall_s: float = inf
    fails_after_s: float = inf

    def charged_s(self, now_s: float) -> float:
        """Seconds that are charged for so far."""
        since_s = self.ordered_s if self.market.billed_from_order else self.began_s
        if since_s is None:
            return 0.0
        return max(0.0, (now_s if self.ended_s is None else self.ended_s) - since_s)


class Tenants(Starter, Protocol):
    """What the cloud asks of the world."""

    def move_in(self, machine: Machine) -> None:
        """Start the worker of a machine whose host has started."""

    def warn(self, machine: Machine, reason: str, within_s: float) -> None:
        """Tell the worker that its machine will end."""


class PoolCloud(Cloud):
    """Every machine of one world."""

    def __init__(
        self,
        scheduler: Scheduler,
        weather: Weather,
        tenants: Tenants,
        seed: int,
        pool: Sequence[Market],
        until_s: float,
    ) -> None:
        super().__init__(scheduler, weather, tenants)
        self.machines: dict[str, Machine] = {}  # by name, as ``instances``
        self.markets = {market.name: market for market in pool}
        self.seasons = {market.name: Season.of(seed, market, until_s) for market in pool}
        self._tenants = tenants
        self._seed = seed
        self._slots: dict[str, list[Machine | None]] = {m.name: [None] * m.slots for m in pool}
        self._ordered: dict[tuple[str, int], int] = {}  # (rung, slot): launches so far
        self._of: dict[str, list[Machine]] = {market.name: [] for market in pool}
        self._alive: dict[str, list[Machine]] = {market.name: [] for market in pool}  # or were
        for market in pool:
            for at_s, _ in self.seasons[market.name].closed if market.lives_h else ():
                scheduler.at(at_s, partial(self._take_back_all, market.name))

    # ------------------------------------------------------------------------------- renting

    def refusal(self, market: Market) -> str:
        """Why nothing can be had there now, or ''."""
        now_s = self.scheduler.now_s
        if not self.seasons[market.name].is_open(now_s):
            return "there is no instance available now"
        if market.grant is not None and self.left_s(market, now_s) < HOUR_S / 10.0:
            return f"the {market.grant.hours:.0f} h of this account are used up"
        if None not in self._slots[market.name]:
            return f"all {market.slots} machines of this account are in use"
        return ""

    def order(self, market: Market, ordered: Job) -> Machine:
        """Rent the machine that the seed has for this slot's next launch."""
        now_s = self.scheduler.now_s
        slot = self._slots[market.name].index(None)
        number = self._ordered.get((market.name, slot), 0) + 1
        self._ordered[market.name, slot] = number
        host = host_of(self._seed, market, slot, number)
        bad = self.seasons[market.name].is_bad(now_s)
        machine = Machine(
            ((ordered.job_id, ordered.launch),),
            market.name,
            name=ordered.name,
            market=market,
            host=host,
            slot=slot,
            ordered_s=now_s,
            told_wall_s=inf if ordered.wall_s is None else ordered.wall_s,
            fails_after_s=host.in_cluster_s if bad else host.fails_after_s,
        )
        self._slots[market.name][slot] = machine
        self._of[market.name].append(machine)
        self._alive[market.name].append(machine)
        self.machines[machine.name] = self.instances[machine.name] = machine
        if host.starts:
            self.scheduler.at(now_s + host.start_s, partial(self._begin, machine))
        return machine

    def _begin(self, machine: Machine) -> None:
        if machine.ended:
            return
        market, host, now_s = machine.market, machine.host, self.scheduler.now_s
        machine.began_s = now_s
        self._tenants.move_in(machine)
        self._later(machine, host.lives_s, host.notice_s, "the platform takes the machine back")
        lives_s = min(market.wall_h * HOUR_S or inf, machine.told_wall_s)
        if lives_s < inf:
            machine.wall_s = now_s + lives_s
            words = f"the wall of {lives_s / HOUR_S:.1f} h is near"
            self._later(machine, lives_s, _WARNED_S, words)
        if host.sleeps_after_s < inf:
            self.scheduler.at(now_s + host.sleeps_after_s, partial(self._suspend, machine))
        if market.grant is not None:
            self._watch_grant(market)

    def _later(self, machine: Machine, after_s: float, notice_s: float, reason: str) -> None:
        """End a machine so many seconds from now, with a notice before it if there is one."""
        if after_s == inf:
            return
        now_s = self.scheduler.now_s
        self.scheduler.at(now_s + after_s, partial(self.end, machine))
        if notice_s:
            warn = partial(self._tenants.warn, machine, reason, min(notice_s, after_s))
            self.scheduler.at(now_s + max(0.0, after_s - notice_s), warn)

    def _take_back_all(self, rung: str) -> None:
        """A market has nothing more to give, and wants its machines."""
        for machine in self._of[rung]:
            if machine.began_s is not None and not machine.ended:
                reason = "the platform takes all machines back"
                self._later(machine, machine.host.notice_s, machine.host.notice_s, reason)

    def _suspend(self, machine: Machine) -> None:
        for process in [] if machine.ended else machine.processes:
            if not process.dead:
                self.weather.counts["sleeps"] += 1
                self.scheduler.stop(process, machine.host.sleeps_for_s, suspend=True)
                process.harm(self.scheduler.now_s + machine.host.sleeps_for_s)
                process.troubled_s = process.harmed_s

    # -------------------------------------------------------------------------------- ending

    def end(self, instance: Instance) -> None:
        """A machine ends, and its slot is free."""
        machine = cast(Machine, instance)
        if machine.ended:
            return
        super().end(machine)
        machine.ended_s = self.scheduler.now_s
        self._slots[machine.market.name][machine.slot] = None

    def left_behind(self, machine: Machine) -> None:
        """The process of a machine has ended: so does the machine, where it is made so."""
        if machine.market.ends_itself:
            self.end(machine)

    def close(self, machine: Machine) -> Settlement:
        """A dispatcher asks for the end of a machine."""
        market, now_s, seen = machine.market, self.scheduler.now_s, not machine.ended
        machine.asked += 1
        if not machine.ended and market.grant is not None and market.wall_h:
            # Nothing ends a notebook's session from outside.
            if machine.began_s is None:
                return Pending("it is queued")
            return Bounded(EPOCH_S + machine.wall_s, "its session ends at its wall")
        if not machine.ended and machine.host.slow_release and machine.asked == 1:
            return Pending("it is being ended")
        if not machine.ended and machine.host.lies and not machine.lied:
            machine.lied = True
            self.weather.counts["lies"] += 1
        else:
            self.end(machine)
        paid_s = machine.charged_s(now_s)
        if machine.closed_s is None:
            machine.closed_s, machine.paid_when_closed_s = now_s, paid_s
        return Closed("it is gone", paid_s if market.tells_paid else None, seen)

    def running(self, rung: str) -> list[Machine]:
        """What still runs there."""
        found = self._alive[rung] = [each for each in self._alive[rung] if not each.ended]
        return list(found)

    # -------------------------------------------------------------------------------- grants

    def left_s(self, market: Market, now_s: float) -> float:
        """What is left of the grant of now."""
        assert market.grant is not None
        since_s, _ = self.seasons[market.name].period(market.grant, now_s)
        used_s = sum(
            max(0.0, (now_s if m.ended_s is None else m.ended_s) - max(m.began_s, since_s))
            for m in self._of[market.name]
            if m.began_s is not None
        )
        return market.grant.hours * HOUR_S - used_s

    def _watch_grant(self, market: Market) -> None:
        """End what runs as soon as the grant is spent."""
        assert market.grant is not None
        now_s = self.scheduler.now_s
        working = [m for m in self.running(market.name) if m.began_s is not None]
        left_s = self.left_s(market, now_s)
        if left_s <= 1.0:
            for machine in working:
                self.weather.counts["grant_spent"] += 1
                self.end(machine)
        elif working:
            _, renews_s = self.seasons[market.name].period(market.grant, now_s)
            at_s = min(now_s + left_s / len(working), renews_s) + 0.5
            self.scheduler.at(at_s, partial(self._watch_grant, market))


class PoolPlatform:
    """A Runner of one rung."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self._cloud = cast(PoolCloud, config["cloud"])
        self._process = cast(Process, config["process"])
        self._market = cast(Market, config["market"])

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        market = cast(Market, config["market"])
        wall_s = market.wall_h * HOUR_S or None
        return Capacity(1, market.slots, market.window_s, card=market.card, wall_s=wall_s)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        (job,), cloud, market = jobs, self._cloud, self._market
        self._travel("launch", job.name)
        launched = (job.job_id, job.launch)
        if reason := cloud.refusal(market):
            cloud.weather.counts["no_slots"] += 1
            cloud.failed.add(launched)
            raise NoSlots(reason)
        cloud.accepted.add(launched)
        machine = cloud.order(market, job)
        cloud.starter.trace(self._process.name, "launch", job.name, market.name, machine.slot)
        if machine.host.cut:
            cloud.weather.counts["cut"] += 1
            raise Unreachable("the connection was cut after the request", sent=True)
        return self._receipt(machine)

    def _receipt(self, machine: Machine) -> Receipt:
        jobs = tuple(job for job, _ in machine.aboard)
        at_s = EPOCH_S + machine.ordered_s
        handle = {"name": machine.name}
        market = machine.market
        return Receipt(jobs, market.platform, machine.name, market.card, at_s, handle)

    def release(self, receipt: Receipt) -> Settlement:
        cloud = self._cloud
        self._travel("release", receipt.name)
        machine = cloud.machines.get(receipt.name)
        if machine is None:
            return Closed("there is none of this name", 0.0)
        cloud.starter.releasing(self._process, machine)
        return cloud.close(machine)

    def _travel(self, call: str, name: str) -> None:
        cloud = self._cloud
        cloud.starter.calling(self._process, call, name, b"")
        cloud.scheduler.wait(cloud.scheduler.now_s + _CALL_S)


class GrantedPlatform(PoolPlatform):
    """One that tells what is left of its hours."""

    def quota(self) -> Quota | None:
        """What is left, at once and without spending anything."""
        market, cloud = self._market, self._cloud
        assert market.grant is not None
        now_s = cloud.scheduler.now_s
        used_h = market.grant.hours - cloud.left_s(market, now_s) / HOUR_S
        _, renews_s = cloud.seasons[market.name].period(market.grant, now_s)
        return Quota(min(used_h, market.grant.hours), market.grant.hours, EPOCH_S + renews_s)


class ListedPlatform(PoolPlatform):
    """One that tells what it still runs."""

    def running(self, prefix: str) -> Sequence[Receipt]:
        """A receipt for each machine that is not gone."""
        found = self._cloud.running(self._market.name)
        return [self._receipt(m) for m in found if m.name.startswith(prefix)]


def platform_of(market: Market, tells_quota: bool) -> type[PoolPlatform]:
    """The runner class of a market, and whether its dispatcher asks what is left of its hours."""
    if market.grant is not None and tells_quota:
        return GrantedPlatform
    return ListedPlatform if market.tells_running else PoolPlatform
