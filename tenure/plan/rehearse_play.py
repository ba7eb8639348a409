"""One play of a plan: who is launched where, by the rule that the dispatcher follows.

With a deadline the rungs are those of :func:`tenure.plan.advise.advise`, and holders are moved by ``hurry``; else
the ladder is the user's. Quotas, walls, budgets, packs and pauses after early losses are taken as
:mod:`tenure.dispatch.decide` takes them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tenure.dispatch.contract import Capacity
from tenure.dispatch.decide import LEAST_WORK_S
from tenure.dispatch.packing import Filling
from tenure.dispatch.quota import past_quota, past_wall
from tenure.dispatch.rows import MOST_SECONDS
from tenure.plan.advise import Advice, Outlook, Prospect, advise, hurry
from tenure.plan.promise import lasts, promised
from tenure.plan.rehearse_script import Kind, Script
from tenure.plan.rehearse_world import Job, Luck, Play, Rung, Seat, World

#: A play that is not over after so long never is.
HORIZON_S = 365.25 * 86_400.0
_HOUR_S = 3600.0
#: So many early losses in a row cost a rung one place in the order.
_STRIKES_A_PLACE = 3
#: A moment that moves as the work goes on is looked at again no sooner.
_AGAIN_S = 300.0


class _Prospect(Prospect):
    """The same, worked out once: a play asks for it at each of hundreds of rounds."""

    @cached_property
    def takes_s(self) -> float:
        return super().takes_s

    @cached_property
    def usd(self) -> float:
        return super().usd

    @cached_property
    def safe_s(self) -> float:
        return super().safe_s


def play(script: Script, seed: int, number: int, planned: bool = True) -> Play:
    """One play of a plan. ``planned``: by the planner, where there is a deadline; else by the user's order.

    The same script, seed and number give the same play. Raises ValueError for a script without a job.
    """
    if not script.jobs:
        raise ValueError("a plan without a job has nothing to play")
    luck = Luck(script, seed, number)
    stage = _Stage(script, luck, planned)
    order = tuple(station.name for station in script.stations)
    stage.play.training_s = stage.run(script.jobs, order)
    if script.retrain is not None and math.isfinite(stage.play.training_s):
        kind = script.jobs[luck.promoted]
        pinned = script.retrain.rungs or _same_card(script, stage.where, kind)
        order = tuple(name for name in order if name in pinned and name in kind.laws)
        stage.play.retrain_s = stage.run([kind] * script.retrain.jobs, order, critical=True)
    return stage.close()


def _same_card(script: Script, where: Mapping[str, Sequence[str]], kind: Kind) -> set[str]:
    """The rungs of the card on which most seeds of a configuration ended; ties go to the first seed's."""
    cards = {station.name: station.card for station in script.stations}
    ended = [cards[name] for name in where[kind.name]]
    most = max(ended, key=ended.count)
    return {name for name, card in cards.items() if card == most}


class _Stage(World):
    """The rounds of a dispatcher over the machines of a play."""

    def __init__(self, script: Script, luck: Luck, planned: bool) -> None:
        super().__init__(script, luck)
        self._planned = planned and script.deadline_s is not None
        self._order: tuple[str, ...] = ()
        self._since_s = 0.0
        self._wakes_s = math.inf
        self._critical = False
        self._restless = False  # a holder would go on elsewhere, and nothing can be had there
        self._expected: dict[tuple[str, float, int], list[Prospect]] = {}
        #: By kind of job, in the order of the plan: the rung on which each ended.
        self.where: dict[str, list[str]] = {}

    def run(
        self, kinds: Sequence[Kind], order: tuple[str, ...], *, critical: bool = False
    ) -> float:
        """Play the jobs of a stage on these rungs; how long it took, infinite where it never ends.

        ``critical``: what is to be deployed hangs on it, so that sure rungs come first.
        """
        self._critical = critical
        self.jobs = [Job(n, kind, kind.amount, idle_s=self.now_s) for n, kind in enumerate(kinds)]
        self._order, self._since_s, self._wakes_s = order, self.now_s, math.inf
        self._expected.clear()  # another stage has other rungs
        self._decide()
        while self.events and not all(job.over for job in self.jobs):
            at_s = self.events[0][0]
            if at_s - self._since_s > HORIZON_S:
                break
            self.now_s = max(self.now_s, at_s)
            while self.events and self.events[0][0] <= at_s:
                heapq.heappop(self.events)[2]()
            if self.dirty:
                self._decide()
        stuck = [job for job in self.jobs if job.never or not job.over]
        if stuck:
            self.play.stuck = stuck[0].never or "no rung of its ladder could be had any more"
            return math.inf
        for job in self.jobs:
            assert job.seat is not None
            name = job.seat.machine.rung.station.name
            self.where.setdefault(job.kind.name, []).append(name)
        return self.now_s - self._since_s

    # -------------------------------------------------------------------------------- a round

    def _decide(self) -> None:
        self.dirty = False
        waiting = [job for job in self.jobs if not job.over and job.seat is None]
        if not waiting and not (self._planned and (self._restless or self.now_s >= self._wakes_s)):
            return
        self._wakes_s, self._restless = math.inf, False
        advice = self._advised()
        fillings: dict[str, Filling] = {}
        taken: dict[str, list[Job]] = {}
        for job in waiting:
            if job.not_before_s > self.now_s:
                self._wake(job.not_before_s)
                continue
            found = self._rung(job, advice.get(str(job.number)), fillings)
            if found is None:
                continue
            self.unkeep(job)
            fillings[found.station.name].take(str(job.number), self.script.cards, job.left)
            taken.setdefault(found.station.name, []).append(job)
        for name, jobs in taken.items():
            by_name = {str(job.number): job for job in jobs}
            for machine in fillings[name].machines:
                self.launch(self.rungs[name], [by_name[each.job] for each in machine])
        if self._planned:
            self._hurry(advice)
        self._sleep()

    def _advised(self) -> dict[str, Advice]:
        if not self._planned:
            return {}
        outlooks = [
            Outlook(
                str(job.number),
                self._since_s,
                self._due_s,
                self._prospects(job),
                critical=self._critical,
                on=job.seat.machine.rung.station.name if job.seat else "",
            )
            for job in self.jobs
            if not job.over
        ]
        return advise(outlooks, self.now_s)

    @property
    def _due_s(self) -> float:
        return self._since_s + (self.script.deadline_s or math.inf)

    def _rung(self, job: Job, advice: Advice | None, fillings: dict[str, Filling]) -> Rung | None:
        """The first rung of the ladder that has room, as :mod:`tenure.dispatch.decide` goes down it."""
        usable = self._usable(job)
        if not usable:
            why = (
                f"the budget of {', '.join(sorted(self.broke))} is spent" if self.broke else "none"
            )
            job.never, job.over = f"no rung of its ladder is left: {why}", True
            self.unkeep(job)
            return None
        if advice is not None:
            rest = [name for name in usable if name not in advice.order]
            ladder = [*(name for name in advice.order if name in usable), *rest]
            self._wake(advice.latest_s)
        else:
            ladder = usable
        ladder.sort(key=lambda name: self._turn(job, name))
        for name in ladder:
            held_s = advice.held.get(name, 0.0) if advice else 0.0
            if held_s > self.now_s and name != job.moving_to:
                self._wake(held_s)
                continue
            rung = self.rungs[name]
            if name not in fillings:
                station = rung.station
                capacity = Capacity(station.per_launch, station.slots, 0.0, station.cards)
                fillings[name] = Filling(capacity, rung.free)
            filling = fillings[name]
            own = name == job.moving_to and filling.free >= 0
            room = filling.has_room(self.script.cards) or own
            if room and self._lasts(rung, fillings, LEAST_WORK_S):
                if own:
                    filling.free += 1  # the machine that was kept for it
                return rung
        return None

    def _turn(self, job: Job, name: str) -> tuple[bool, int]:
        return name != job.moving_to, job.strikes_on.get(name, 0) // _STRIKES_A_PLACE

    def _usable(self, job: Job) -> list[str]:
        return [
            name
            for name in self._order
            if name in job.kind.laws
            and not (
                self.rungs[name].station.per_h > 0
                and self.rungs[name].station.currency in self.broke
            )
        ]

    def _lasts(self, rung: Rung, fillings: Mapping[str, Filling], work_s: float) -> bool:
        """Whether a launch comes to a milestone before its wall, or the end of what it draws on."""
        station = rung.station
        if past_wall(station.start_s, station.wall_s):
            return False
        left = self.left(station)
        if left is None:
            return True
        machines = self.machines_of(station) + sum(
            self.rungs[name].free - filling.free  # those of this round draw on it as well
            for name, filling in fillings.items()
            if self.rungs[name].station.account == station.account
        )
        filling = fillings.get(station.name)
        if filling is not None and not filling.opens(self.script.cards):
            machines -= 1  # it goes onto one of these
        return past_quota(station.start_s + work_s, left, machines, self.now_s) is None

    # -------------------------------------------------------------------------------- holders

    def _hurry(self, advice: Mapping[str, Advice]) -> None:
        """Ask holders to yield that would be late, or lost, where they are."""
        for job in self.jobs:
            seat, told = job.seat, advice.get(str(job.number))
            if job.over or seat is None or seat.machine.dead or told is None:
                continue
            if not told.pressed(self.now_s):
                self._wake(max(told.latest_s, self.now_s + _AGAIN_S))
                continue
            if seat.leaves_s is None:
                self._move(job, seat, told)

    def _move(self, job: Job, seat: Seat, told: Advice) -> None:
        station = seat.machine.rung.station
        elsewhere = [each for each in self._prospects(job) if each.rung != station.name]
        others = [each for each in elsewhere if self._can_be_had(each)]
        here = next((p for p in self._prospects(job) if p.rung == station.name), None)
        left, _ = self._shown(job)
        self._restless = True  # looked at again as soon as a machine is free
        if not others or here is None:
            return
        if left >= job.left:  # it has shown nothing yet, and is not judged
            self._wake(self._next_milestone_s(seat))
            return
        run_s = left / seat.per_s * _drag(job.kind, seat.per_s, station.save_s)
        here = replace(here, start_s=0.0, run_s=run_s)
        if self._critical and here.sure:
            others = [each for each in others if each.sure]
        moved = hurry(told, here, others, self._due_s, self.now_s, job.moves)
        if moved is None:
            if not here.sure:
                self._wake(self._next_milestone_s(seat))
            return
        self.rungs[moved.rung].kept += 1
        job.moving_to = moved.rung
        self.play.moves += 1
        job.moves += 1
        self.ask_to_yield(seat)

    def _can_be_had(self, prospect: Prospect) -> bool:
        rung = self.rungs[prospect.rung]
        return rung.free > 0 and self._lasts(rung, {}, prospect.takes_s)

    def _next_milestone_s(self, seat: Seat) -> float:
        station, every_s = seat.machine.rung.station, seat.job.kind.every / seat.per_s
        cycle_s = every_s + station.save_s
        began_s = seat.machine.claimed_s + station.load_s
        if not math.isfinite(cycle_s):
            return math.inf
        number = max(0, math.floor((self.now_s - began_s) / cycle_s)) + 1
        return max(began_s + number * cycle_s, self.now_s + _AGAIN_S)

    # ------------------------------------------------------------------------------ prospects

    def _shown(self, job: Job) -> tuple[float, float]:
        """Work left by the last milestone, as the dispatcher knows it, and how old the machine was then.

        0 s where its machine, if it has any, has shown no milestone yet.
        """
        seat = job.seat
        if seat is None or seat.machine.dead:
            return job.left, 0.0
        station = seat.machine.rung.station
        cycle_s = job.kind.every / seat.per_s + station.save_s
        usable_s = self.now_s - seat.machine.claimed_s - station.load_s
        if not math.isfinite(cycle_s) or usable_s < cycle_s:
            return job.left, 0.0
        count = math.floor(usable_s / cycle_s)
        return max(0.0, job.left - count * job.kind.every), station.load_s + count * cycle_s

    def _prospects(self, job: Job) -> list[Prospect]:
        """What each rung is expected to do with what is left, as the dispatcher's planner puts it."""
        (left, age_s), broke = self._shown(job), len(self.broke)
        if job.told is None or job.told[0] != (left, broke, age_s):
            key = job.kind.name, left, broke  # jobs that have not begun have the same
            if key not in self._expected:
                names = [name for name in self._usable(job) if not self._too_short(name)]
                found = [self._prospect(job.kind, name, left) for name in names]
                self._expected[key] = [each for each in found if each.takes_s <= MOST_SECONDS]
            job.told = (left, broke, age_s), self._with_age(job, self._expected[key], left, age_s)
        if not self.script.quotas:
            return job.told[1]
        return [self._as_it_lasts(each) for each in job.told[1]]

    def _with_age(
        self, job: Job, prospects: list[Prospect], left: float, age_s: float
    ) -> list[Prospect]:
        """The same where its own machine, of this age, is one of them."""
        if not age_s or job.seat is None:
            return prospects
        held = job.seat.machine.rung.station.name
        return [
            self._prospect(job.kind, held, left, age_s) if each.rung == held else each
            for each in prospects
        ]

    def _too_short(self, name: str) -> bool:
        station = self.rungs[name].station
        return past_wall(station.start_s, station.wall_s) is not None

    def _prospect(self, kind: Kind, name: str, left: float, age_s: float = 0.0) -> Prospect:
        station = self.rungs[name].station
        per_s = kind.laws[name].per_s(self.script.cards)
        drag = _drag(kind, per_s, station.save_s)
        between = kind.every if math.isfinite(kind.every) else kind.amount
        milestone_s = between / per_s * drag
        found = promised(station.offer, left / per_s * drag, milestone_s, age_s)
        return _Prospect(**{**vars(found), "silence_s": station.silence_s})

    def _as_it_lasts(self, each: Prospect) -> Prospect:
        """A rung is as sure as what pays for it lasts, which changes from round to round."""
        station = self.rungs[each.rung].station
        left = self.left(station)
        sure = station.on_demand and lasts(
            station.currency == "usd", each.run_s, None if left is None else left.hours
        )
        return each if sure == each.sure else replace(each, sure=sure)

    # ---------------------------------------------------------------------------------- wakes

    def _wake(self, at_s: float) -> None:
        if at_s > self.now_s:
            self._wakes_s = min(self._wakes_s, at_s)

    def _sleep(self) -> None:
        at_s = self._wakes_s

        def wake() -> None:
            if self._wakes_s == at_s:  # no round since has set another time
                self.dirty = True

        self.at(at_s, wake)


def _drag(kind: Kind, per_s: float, save_s: float) -> float:
    """How many times as long the loop takes with its snapshots."""
    return 1.0 + save_s * per_s / kind.every
