"""The machines of one play: launched, lost, recalled and paid for, event after event. Nothing is decided here.

What a machine does is drawn by (seed, play, rung, number of its launch there), never in the order of calls:
two rules that are compared meet the same machines. Seconds in the loop, snapshots and what a loss undoes are
counted as in :func:`tenure.plan.predict.forecast`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.dispatch.decide import FRUITLESS_BUDGET, LAST_CALL_S
from tenure.dispatch.quota import Left
from tenure.dispatch.world import EARLY_S, FIRST_PAUSE_S, LONGEST_PAUSE_S
from tenure.plan.advise import Prospect
from tenure.plan.rehearse_script import RENEWED_EVERY_S, Allowance, Kind, Script, Station

if TYPE_CHECKING:
    import numpy as np

_HOUR_S = 3600.0
#: A play that is not over after so long never is.
HORIZON_S = 365.25 * 86_400.0
#: Nor is a job that so many machines in a row brought to no milestone.
MOST_FRUITLESS = 200
_BLOCK = 16  # machines of a rung drawn at once


@dataclass
class Used:
    """What one rung did in a play."""

    launches: int = 0
    lost: int = 0  # machines, before their work was done; those at a known wall are none
    paid_s: float = 0.0


@dataclass
class Parts:
    """Where the seconds of the jobs went, summed over them."""

    work_s: float = 0.0
    start_s: float = 0.0
    again_s: float = 0.0  # starts after the first, and losses until they were noticed
    twice_s: float = 0.0  # work that was lost
    save_s: float = 0.0
    wait_s: float = 0.0  # with no machine


@dataclass
class Play:
    """How one play ended; seconds from its beginning, infinite where it never does."""

    training_s: float = math.inf
    retrain_s: float = 0.0  # that the pinned retrain took, where it is played
    used: dict[str, Used] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)  # by currency
    broke: str = ""  # the first currency whose budget was spent before all was done
    stuck: str = ""  # why a job never ended
    moves: int = 0  # holders that were asked to yield so as to be on time
    parts: Parts = field(default_factory=Parts)

    @property
    def finish_s(self) -> float:
        """The end of all that is played."""
        return self.training_s + self.retrain_s


class Luck:
    """What chance has for one play: equal for every rule that is tried on it."""

    def __init__(self, script: Script, seed: int, number: int) -> None:
        import numpy as np

        self._key = (seed, number)
        self._stations = {station.name: n for n, station in enumerate(script.stations)}
        self._machines: dict[str, tuple[np.random.Generator, list[tuple[float, float, float]]]] = {}
        rng = np.random.default_rng([seed, number, 0])
        # One draw of each law holds for all machines of the play: it is what is not known of the law.
        self._laws: dict[tuple[str, str], tuple[float, float]] = {}
        for kind in {kind.name: kind for kind in script.jobs}.values():
            for name, law in kind.laws.items():
                scale = math.sqrt(
                    law.freedom / rng.chisquare(law.freedom)
                )  # Student's t, as a mixture
                off = law.log_sd(script.cards, machine=False) * scale * rng.standard_normal()
                middle = math.log(law.per_s(script.cards)) + off
                self._laws[kind.name, name] = middle, law.noise * scale
        self.promoted = int(rng.integers(0, max(1, len(script.jobs))))
        self._offsets = {
            station.name: int(rng.integers(0, station.trace.starts(script.deadline_s or 0.0)))
            for station in script.stations
            if station.trace
        }

    def offset(self, station: str) -> int:
        """The tick of a recorded market at which the play begins."""
        return self._offsets[station]

    def machine(self, station: Station, number: int) -> tuple[float, float, float]:
        """Of the n-th launch on a rung: its start, its life from the claim, and its own speed's deviate."""
        import numpy as np

        if station.name not in self._machines:
            rng = np.random.default_rng([*self._key, 1, self._stations[station.name]])
            self._machines[station.name] = rng, []
        rng, drawn = self._machines[station.name]
        while number >= len(drawn):
            starts = np.asarray(station.starts_s)[rng.integers(0, len(station.starts_s), _BLOCK)]
            lives = station.curve.ages_s(rng.standard_exponential(_BLOCK))
            noise = rng.standard_normal(_BLOCK)
            drawn += zip(starts.tolist(), lives.tolist(), noise.tolist(), strict=True)
        return drawn[number]

    def per_s(self, kind: Kind, station: str, deviate: float) -> float:
        """Units of work a second that a machine does of a job."""
        middle, noise = self._laws[kind.name, station]
        return math.exp(middle + noise * deviate)


# ------------------------------------------------------------------------------- what is there


@dataclass(eq=False)
class Job:
    """One job of a stage."""

    number: int
    kind: Kind
    left: float  # work that no milestone holds
    seat: Seat | None = None
    over: bool = False
    never: str = ""
    idle_s: float = 0.0  # since when it has no machine
    launched: bool = False
    moving_to: str = ""
    moves: int = 0  # that it was asked for so as to be on time
    not_before_s: float = 0.0
    strikes: int = 0
    strikes_on: dict[str, int] = field(default_factory=dict)
    fruitless: int = 0
    #: What each rung is expected to do, and for which work left, budgets spent and age of its machine that was.
    told: tuple[tuple[float, int, float], list[Prospect]] | None = None


@dataclass(eq=False)
class Machine:
    """One launch."""

    rung: Rung
    launched_s: float
    claimed_s: float
    dies_s: float
    walled: bool  # it dies at a known wall
    seats: list[Seat] = field(default_factory=list)
    dead: bool = False


@dataclass(eq=False)
class Seat:
    """One job on one machine."""

    job: Job
    machine: Machine
    per_s: float
    saving_s: float  # of snapshots, if it is done here
    done_s: float  # when that would be
    leaves_s: float | None = None  # asked to yield: when its last milestone is written


@dataclass(eq=False)
class Rung:
    """What a play has of one rung."""

    station: Station
    bills: list[Machine] = field(default_factory=list)  # open ones: they take slots
    alive: list[Machine] = field(default_factory=list)
    kept: int = 0  # slots left for jobs that move here
    available: float = math.inf  # of a recorded market, now
    tick: int = 0
    used: Used = field(default_factory=Used)

    @property
    def free(self) -> int:
        """Machines that can be had now."""
        free = min(self.station.slots - len(self.bills), self.available - len(self.alive))
        return int(free) - self.kept


@dataclass(eq=False)
class Account:
    """What is left of a quota."""

    allowance: Allowance
    left: float
    renews_s: float | None
    rate_per_h: float = 0.0  # of the machines that are there
    machines: int = 0
    counted_s: float = 0.0
    version: int = 0

    def count(self, now_s: float) -> None:
        """Take what the machines took since it was last counted."""
        self.left = max(0.0, self.left - self.rate_per_h * (now_s - self.counted_s) / _HOUR_S)
        self.counted_s = now_s


class World:
    """Machines, markets, quotas and budgets; and the jobs of the stage that is played.

    Accounts, markets, budgets and the numbers of launches go on from stage to stage.
    """

    def __init__(self, script: Script, luck: Luck) -> None:
        self.script, self.luck = script, luck
        self.now_s = 0.0
        self.play = Play()
        self.rungs = {s.name: Rung(s) for s in script.stations}
        self.jobs: list[Job] = []
        self.broke: set[str] = set()  # currencies whose budget is spent
        self.dirty = False  # something can be decided that could not before
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._accounts = {
            name: Account(each, each.left, each.renews_in_s) for name, each in script.quotas.items()
        }
        self._pushed = 0
        self._settled = dict.fromkeys((s.currency for s in script.stations), 0.0)
        self._budget_versions = dict.fromkeys(script.budget, 0)
        for rung in self.rungs.values():
            if rung.station.trace is not None:
                rung.tick = luck.offset(rung.station.name)
                rung.available = rung.station.trace.at(rung.tick)
                self._await_tick(rung)
        for account in self._accounts.values():
            self._await_renewal(account)

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        """Something happens at a time."""
        if math.isfinite(at_s):
            self._pushed += 1
            heapq.heappush(self.events, (at_s, self._pushed, what))

    # ------------------------------------------------------------------------------ machines

    def launch(self, rung: Rung, jobs: Sequence[Job]) -> None:
        """One machine for these jobs."""
        station = rung.station
        start_s, life_s, deviate = self.luck.machine(station, rung.used.launches)
        rung.used.launches += 1
        if station.trace is not None:  # the market says when it is gone
            life_s = math.inf if station.wall_s is None else station.wall_s
        claimed_s = self.now_s + start_s
        walled = station.wall_s is not None and life_s >= station.wall_s * (1 - 1e-12)
        machine = Machine(rung, self.now_s, claimed_s, claimed_s + life_s, walled)
        for job in jobs:
            self._board(machine, job, self.luck.per_s(job.kind, station.name, deviate))
        rung.bills.append(machine)
        rung.alive.append(machine)
        account = self._accounts.get(station.account)
        if account is not None:
            account.count(self.now_s)
            account.rate_per_h += station.draws_per_h
            account.machines += 1
            self._await_end(account)
        self._await_budget(station)
        self.at(machine.dies_s, lambda: self._die(machine, machine.walled))

    def _board(self, machine: Machine, job: Job, per_s: float) -> None:
        station = machine.rung.station
        left_s, interval_s = job.left / per_s, job.kind.every / per_s
        saves = max(1, math.ceil(left_s / interval_s - 1e-9))  # one of them at the end
        saving_s = saves * station.save_s
        done_s = machine.claimed_s + station.load_s + left_s + saving_s
        seat = Seat(job, machine, per_s, saving_s, done_s)
        machine.seats.append(seat)
        self.play.parts.wait_s += self.now_s - job.idle_s
        job.seat = seat
        if done_s <= machine.dies_s:
            self.at(done_s, lambda: self._done(seat))

    def _done(self, seat: Seat) -> None:
        machine, job = seat.machine, seat.job
        if machine.dead or seat not in machine.seats:
            return
        station, parts = machine.rung.station, self.play.parts
        parts.work_s += job.left / seat.per_s
        parts.save_s += seat.saving_s
        self._note_start(job, machine.claimed_s - machine.launched_s + station.load_s)
        job.left, job.over = 0.0, True
        self.unkeep(job)
        self._leave(seat)

    def _die(self, machine: Machine, told: bool) -> None:
        """A machine ends that still had work: at a known wall after a last milestone, else unseen."""
        if machine.dead:
            return
        machine.dead = True
        rung, station = machine.rung, machine.rung.station
        rung.alive.remove(machine)
        silent_s = 0.0 if told else station.silence_s
        rung.used.lost += not told
        seats = list(machine.seats)
        for seat in seats:
            self._interrupt(seat, told, silent_s)

        def noticed() -> None:
            self._bill_ends(machine)
            for seat in seats:
                self._vacate(seat)

        if silent_s > 0:
            self.at(self.now_s + silent_s, noticed)
        else:
            noticed()

    def recall(self, machine: Machine) -> None:
        """Ask all holders of a machine for a last milestone."""
        for seat in list(machine.seats):
            self.ask_to_yield(seat)

    def ask_to_yield(self, seat: Seat) -> None:
        """A last milestone, and its job goes on elsewhere, unless it is done or lost before."""
        if seat.leaves_s is not None:
            return
        station = seat.machine.rung.station
        began_s = seat.machine.claimed_s + station.load_s
        working = self.now_s > began_s
        seat.leaves_s = self.now_s + station.save_s if working else max(self.now_s, began_s)

        def leaves() -> None:
            if seat.machine.dead or seat not in seat.machine.seats:
                return
            self._interrupt(seat, True, 0.0)
            self._leave(seat)
            self._vacate(seat)

        self.at(seat.leaves_s, leaves)

    def _leave(self, seat: Seat) -> None:
        """A machine ends by itself with the last of its jobs."""
        machine = seat.machine
        machine.seats.remove(seat)
        if not machine.seats:
            machine.dead = True
            machine.rung.alive.remove(machine)
            self._bill_ends(machine)

    def _vacate(self, seat: Seat) -> None:
        job = seat.job
        job.seat, job.idle_s = None, self.now_s
        self.dirty = True

    def _interrupt(self, seat: Seat, told: bool, silent_s: float) -> None:
        """What of a job's work a milestone holds when its machine ends, and what has to be done again."""
        job, machine, station = seat.job, seat.machine, seat.machine.rung.station
        life_s = max(0.0, self.now_s - machine.claimed_s)
        usable_s = max(0.0, life_s - station.load_s)
        left_s = job.left / seat.per_s
        kept_s, saved_s = kept(usable_s, job.kind.every / seat.per_s, station.save_s, told)
        kept_s = min(kept_s, left_s)
        parts = self.play.parts
        parts.work_s += kept_s
        parts.save_s += saved_s
        parts.twice_s += max(0.0, usable_s - kept_s - saved_s)
        parts.again_s += silent_s
        started_s = min(machine.claimed_s, self.now_s) - machine.launched_s
        self._note_start(job, started_s + min(station.load_s, life_s))
        job.left = max(0.0, job.left - kept_s * seat.per_s)
        if kept_s > 0:
            job.strikes = job.fruitless = 0
            job.strikes_on.clear()
        else:
            self._fruitless(job, station.name, told or life_s >= EARLY_S)

    def _fruitless(self, job: Job, rung: str, long: bool) -> None:
        job.fruitless += 1
        if not long:
            job.strikes += 1
            job.strikes_on[rung] = job.strikes_on.get(rung, 0) + 1
        if job.strikes > 1:
            pause_s = min(FIRST_PAUSE_S * 2.0 ** (job.strikes - 2), LONGEST_PAUSE_S)
            job.not_before_s = self.now_s + pause_s
        if job.fruitless >= MOST_FRUITLESS:
            job.never = f"{job.fruitless} machines in a row were gone before a milestone"
        elif job.strikes >= FRUITLESS_BUDGET and len(job.strikes_on) == len(job.kind.laws):
            job.never = f"{job.strikes} attempts in a row were lost early, without a milestone"
        if job.never:
            job.over = True
            self.unkeep(job)

    def unkeep(self, job: Job) -> None:
        """A job needs the machine no more that was kept for it."""
        if job.moving_to:
            self.rungs[job.moving_to].kept -= 1
            job.moving_to = ""

    def _note_start(self, job: Job, took_s: float) -> None:
        if job.launched:
            self.play.parts.again_s += took_s
        else:
            self.play.parts.start_s += took_s
        job.launched = True

    def _bill_ends(self, machine: Machine) -> None:
        rung, station = machine.rung, machine.rung.station
        rung.bills.remove(machine)
        paid_s = self.now_s - machine.launched_s
        rung.used.paid_s += paid_s
        self._settled[station.currency] += station.per_h * paid_s / _HOUR_S
        account = self._accounts.get(station.account)
        if account is not None:
            account.count(self.now_s)
            account.rate_per_h -= station.draws_per_h
            account.machines -= 1
            self._await_end(account)
        self._await_budget(station)
        self.dirty = True

    # ----------------------------------------------------------------- markets and quotas

    def _await_tick(self, rung: Rung) -> None:
        trace = rung.station.trace
        assert trace is not None
        following = trace.next_change(rung.tick)
        if following is None:
            return

        def change() -> None:
            rung.tick, rung.available = following, trace.at(following)
            while len(rung.alive) > rung.available:
                self._die(rung.alive[-1], told=False)  # the newest: nobody knows which it would be
            self.dirty = True
            self._await_tick(rung)

        began = self.luck.offset(rung.station.name)
        self.at((following - began) * trace.tick_s, change)

    def _await_renewal(self, account: Account) -> None:
        if account.renews_s is None:
            return

        def renew() -> None:
            account.count(self.now_s)
            account.left = account.allowance.granted
            account.renews_s = self.now_s + RENEWED_EVERY_S
            self.dirty = True
            self._await_end(account)
            self._await_renewal(account)

        self.at(account.renews_s, renew)

    def left(self, station: Station) -> Left | None:
        """What is left of a rung's quota now; ``None`` where none is known."""
        account = self._accounts.get(station.account)
        if account is None or station.draws_per_h <= 0:
            return None
        account.count(self.now_s)
        hours = account.left / station.draws_per_h
        return Left(hours, account.renews_s, f"{hours:.1f} h are left", 0.0)

    def machines_of(self, station: Station) -> int:
        """How many machines draw on a rung's quota."""
        account = self._accounts.get(station.account)
        return account.machines if account else 0

    def _await_end(self, account: Account) -> None:
        """The last call of a quota, if the machines that draw on it go on."""
        account.version += 1
        if account.machines == 0 or account.rate_per_h <= 0:
            return
        version, ends_s = account.version, account.left / account.rate_per_h * _HOUR_S
        if account.renews_s is not None and account.renews_s <= self.now_s + ends_s:
            return

        def last_call() -> None:
            if account.version != version:
                return
            for rung in self.rungs.values():
                if self._accounts.get(rung.station.account) is account:
                    for machine in list(rung.alive):
                        self.recall(machine)

        self.at(self.now_s + max(0.0, ends_s - LAST_CALL_S), last_call)

    # ------------------------------------------------------------------------------- budgets

    def _await_budget(self, station: Station) -> None:
        """When what runs now in a rung's currency has spent the budget."""
        currency = station.currency
        amount = self.script.budget.get(currency)
        if amount is None or currency in self.broke or station.per_h <= 0:
            return
        self._budget_versions[currency] += 1
        version = self._budget_versions[currency]
        rungs = [r for r in self.rungs.values() if r.station.currency == currency]
        rate = math.fsum(len(rung.bills) * rung.station.per_h for rung in rungs)
        left = amount - self._spent(currency, rungs)
        if rate <= 0 and left > 0:
            return

        def spent() -> None:
            if self._budget_versions[currency] != version:
                return
            self.broke.add(currency)
            for rung in rungs:
                for machine in list(rung.alive) if rung.station.per_h > 0 else ():
                    self.recall(machine)
            self.dirty = True

        self.at(self.now_s + (max(0.0, left) / rate * _HOUR_S if rate > 0 else 0.0), spent)

    def _spent(self, currency: str, rungs: Iterable[Rung]) -> float:
        running = math.fsum(
            rung.station.per_h * (self.now_s - machine.launched_s) / _HOUR_S
            for rung in rungs
            for machine in rung.bills
        )
        return self._settled[currency] + running

    def close(self) -> Play:
        """How the play was, with what is open settled at its end."""
        for rung in self.rungs.values():
            for machine in list(rung.bills):
                self._bill_ends(machine)
            self.play.used[rung.station.name] = rung.used
        self.play.spent = dict(self._settled)
        self.play.broke = min(self.broke, default="")
        return self.play


def kept(usable_s: float, interval_s: float, save_s: float, told: bool) -> tuple[float, float]:
    """Training seconds that milestones hold after so much time in the loop, and seconds of saving.

    A machine that is told of its end takes a last snapshot just in time.

    >>> kept(1000.0, 300.0, 10.0, told=False)
    (900.0, 30.0)
    >>> kept(1000.0, 300.0, 10.0, told=True)
    (960.0, 40.0)
    """
    if not told:
        done_s, saved_s, whole_s = _loop(usable_s, interval_s, save_s)
        return whole_s, saved_s
    if usable_s < save_s:
        return 0.0, 0.0
    done_s, saved_s, _ = _loop(usable_s - save_s, interval_s, save_s)
    return done_s, saved_s + save_s


def _loop(usable_s: float, interval_s: float, save_s: float) -> tuple[float, float, float]:
    """Seconds trained, seconds of saving, and seconds that whole intervals hold."""
    if not math.isfinite(interval_s):
        return usable_s, 0.0, 0.0
    cycle_s = interval_s + save_s
    number = math.floor(usable_s / cycle_s)
    rest_s = usable_s - number * cycle_s
    trained_s = number * interval_s + min(rest_s, interval_s)
    return trained_s, number * save_s + max(0.0, rest_s - interval_s), number * interval_s
