"""What the planner is asked about: jobs with a deadline, and what each of their rungs promises.

Made of what this dispatcher has observed; the advice itself is pure (:mod:`tenure.plan.advise`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from tenure.dispatch import decide, quality
from tenure.dispatch.copies import Stragglers
from tenure.dispatch.foretell import Foreseen
from tenure.dispatch.ladder import Rung
from tenure.dispatch.observations import Observatory
from tenure.dispatch.quality import takes_s
from tenure.dispatch.quota import past_wall
from tenure.dispatch.rows import LIKELY_DTYPES, MOST_SECONDS, WorkLeft
from tenure.dispatch.tries import Tries
from tenure.dispatch.views import JobView, RungView, Snapshot
from tenure.plan.advise import Advice, Outlook, Prospect, advise
from tenure.plan.promise import Offer, promised
from tenure_protocol.peaks import known_peak
from tenure_protocol.records import FINAL

ON_DEMAND = "on_demand"
#: Of a job whose length nobody has told.
UNKNOWN_MILESTONE_S = 1800.0
#: Of the time that a job has, what it is taken to need while nobody has told how long it is.
GUESSED_SHARE = 0.125


class Planner:
    """Asks the planner for every job that has a deadline and is not over."""

    def __init__(
        self,
        rungs: Mapping[str, Rung],
        observatory: Observatory,
        rates: Mapping[str, float],
        foreseen: Foreseen,
        stragglers: Stragglers | None = None,
    ) -> None:
        """``rates``: what one unit of a currency other than dollars is worth; 0 where not named.

        With ``stragglers`` it says of each job that is held what a backup copy would take.
        """
        self._rungs = rungs
        self._observatory = observatory
        self.rates = dict(rates)
        self._foreseen = foreseen
        self._stragglers = stragglers
        self._tries = Tries(rungs, observatory, foreseen)
        #: Of this round, by (work, dtype, rung).
        self._expected: dict[tuple[str, str | None, str], tuple[float, float] | None] = {}

    def advised(self, seen: Snapshot, now_s: float) -> Snapshot:
        """The same; its jobs with a deadline have their prospects and the planner's advice."""
        open_ones = [view for view in seen.jobs if view.deadline_s is not None and not _over(view)]
        if not open_ones:
            return seen
        self._begin(now_s)
        left = {view.job: self._observatory.left(view.job) for view in open_ones}
        prospects = {view.job: self._prospects(view, left[view.job], seen) for view in open_ones}
        outlooks = [
            Outlook(
                view.job,
                view.since_s,
                view.deadline_s or 0.0,
                prospects[view.job],
                left[view.job] is None,
                view.critical,
                _on(view, seen),
            )
            for view in open_ones
        ]
        advice = advise(outlooks, now_s)
        jobs = tuple(
            self._advised(view, prospects[view.job], advice.get(view.job), seen, now_s)
            if view.job in prospects
            else view
            for view in seen.jobs
        )
        on = {view.job: _on(view, seen) for view in open_ones}
        known = {job: told for job, told in left.items() if told is not None}
        tries = self._tries.advised([v for v in jobs if v.job in left], known, on, now_s)
        jobs = tuple(
            replace(view, advice=tries[view.job]) if view.job in tries else view for view in jobs
        )
        return replace(seen, jobs=jobs)

    def _advised(
        self,
        view: JobView,
        prospects: Sequence[Prospect],
        advice: Advice | None,
        seen: Snapshot,
        now_s: float,
    ) -> JobView:
        view = replace(view, prospects=tuple(prospects), advice=advice)
        if self._stragglers is None or view.deadline_s is None:
            return view

        def whole(rung: Rung, now: RungView, run_s: float) -> Prospect:
            made = self._prospect(rung, now, run_s, UNKNOWN_MILESTONE_S, 0.0)
            return replace(made, silence_s=self._silence_s(view, rung, seen))

        due_in_s = view.deadline_s - now_s
        usable = self._usable(view, seen)
        return self._stragglers.judged(view, _on(view, seen), usable, whole, due_in_s)

    def prospects(self, seen: Snapshot, now_s: float) -> dict[str, list[Prospect]]:
        """What each rung is expected to do with each open job whose length is known; by job."""
        self._begin(now_s)
        return {
            view.job: self._prospects(view, left, seen)
            for view in seen.jobs
            if not _over(view) and (left := self._observatory.left(view.job)) is not None
        }

    def _begin(self, now_s: float) -> None:
        self._foreseen.at(now_s)
        self._expected.clear()
        if self._stragglers is not None:
            self._stragglers.begin()

    def _usable(self, view: JobView, seen: Snapshot) -> list[tuple[Rung, RungView]]:
        found = [
            (self._rungs[name], seen.rungs[name])
            for name in view.rungs
            if name in self._rungs and not decide.excluded(view, name, seen)
        ]
        return [each for each in found if not _too_short(each[1])]

    def _prospects(self, view: JobView, left: WorkLeft | None, seen: Snapshot) -> list[Prospect]:
        usable = self._usable(view, seen)
        times = self._times(view, left, usable) if left else None
        times = times or _guessed(view, usable)
        found = [
            replace(
                self._prospect(rung, now, *each, _age_s(view, rung.name)),
                silence_s=self._silence_s(view, rung, seen),
            )
            for (rung, now), each in zip(usable, times, strict=True)
        ]
        return [each for each in found if each.takes_s <= MOST_SECONDS]

    def _times(
        self, view: JobView, left: WorkLeft, usable: Sequence[tuple[Rung, RungView]]
    ) -> list[tuple[float, float]] | None:
        """How long what is left takes on each rung, and what lies between two milestones.

        Where nobody has seen such work anywhere, as its FLOPs, the peaks of the cards and the speed of their
        platforms say. ``None`` where nobody can say it of any. Where nobody can say it of one, it is taken for a
        rung in the middle, until its first milestone tells: neither counted out nor the cheapest by ignorance.
        """
        between = self._observatory.milestone_work(view.job, left)
        paces = [self._pace(left, rung) for rung, _ in usable]
        if not any(paces):
            paces = [self._cold_pace(view, left, rung) for rung, _ in usable]
        found = []
        for pace in paces:
            milestone_s = UNKNOWN_MILESTONE_S
            if pace and between is not None:
                milestone_s = takes_s(between, *pace)
            found.append(pace and (takes_s(left.amount, *pace), milestone_s))
        known = [each for each in found if each]
        if not known:
            return None
        middle = (median(each[0] for each in known), median(each[1] for each in known))
        return [each or middle for each in found]

    def _pace(self, left: WorkLeft, rung: Rung) -> tuple[float, float] | None:
        """Speed and useful share of such work there; most jobs of a round are alike."""
        key = (left.work, left.dtype, rung.name)
        if key not in self._expected:
            self._expected[key] = self._observatory.expected(left, rung)
        return self._expected[key]

    def _cold_pace(self, view: JobView, left: WorkLeft, rung: Rung) -> tuple[float, float] | None:
        """The same before anybody has seen such work: it is in steps all the time, as far as is known."""
        place = rung.runner_name, self._observatory.card_of(rung)
        law = self._foreseen.law(place, left.work)
        return None if law is None else (law.per_s(view.cards), 1.0)

    def _silence_s(self, view: JobView, rung: Rung, seen: Snapshot) -> float:
        """How long the loss of its machine there goes unnoticed: its lease, else the first one of a launch."""
        w = view.witness
        if w is not None and w.phase == "held" and _on(view, seen) == rung.name:
            return w.silence_allowed_s
        return min(rung.capacity.window_s, self._observatory.longest_silence_s(view.job))

    def _prospect(
        self, rung: Rung, now: RungView, run_s: float, milestone_s: float, age_s: float
    ) -> Prospect:
        offer = Offer(
            rung.name,
            self._foreseen.curve(rung.name),
            now.start_s or quality.UNKNOWN_START_S,
            rung.price.usd_per_h(self.rates) if rung.price else 0.0,
            rung.price_class == ON_DEMAND,
            rung.price is None or rung.price.currency == "usd",
            rung.capacity.launches,
        )
        return promised(offer, run_s, milestone_s, age_s, now.quota.hours if now.quota else None)


def _too_short(rung: RungView) -> bool:
    """Whether a launch there ends before it has begun."""
    return past_wall(rung.start_s, rung.capacity.wall_s) is not None


def _on(view: JobView, seen: Snapshot) -> str:
    """The rung of the launch that holds a job, or that may claim it; '' where it waits for one."""
    w = view.witness
    if w is None or w.phase not in ("held", "expected"):
        return ""
    bill = seen.bill_at.get((view.job, w.holder.launch if w.holder else w.launched))
    return bill.rung if bill else ""


def _age_s(view: JobView, rung: str) -> float:
    """How old the machine is that a job holds on a rung; 0: it would get a new one."""
    pace = view.pace
    return max(0.0, pace.paid_s - pace.start_s) if pace and pace.rung == rung else 0.0


def _guessed(view: JobView, usable: Sequence[tuple[Rung, RungView]]) -> list[tuple[float, float]]:
    """How long a job of unknown length takes on each rung: an eighth of its time on the middle one.

    By the peaks of the cards, in the first format in which most of them have one; a card without one
    is taken for the middle one.
    """
    tops = [[known_peak(rung.card, dtype) for rung, _ in usable] for dtype in LIKELY_DTYPES]
    known = max(tops, key=lambda row: sum(each is not None for each in row))
    peaks = [each.flops_per_s for each in known if each]
    middle = median(peaks) if peaks else 1.0
    whole_s = GUESSED_SHARE * ((view.deadline_s or 0.0) - view.since_s)
    return [
        (whole_s * (middle / each.flops_per_s if each else 1.0), UNKNOWN_MILESTONE_S)
        for each in known
    ]


def _over(view: JobView) -> bool:
    return view.broken is not None or (view.witness is not None and view.witness.phase in FINAL)
