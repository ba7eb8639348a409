"""What to do next, as a pure function that gives a reason for every job.

A failure class answers "was it a failure"; here it answers what that costs: no slots park a rung and
spend nothing, an unreachable platform backs off, a rejection and an attempt without a milestone spend
the job's budget, a protocol error is fatal on that rung.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from tenure.dispatch import faults
from tenure.dispatch.packing import Filling
from tenure.dispatch.quality import LEAST_STEPS, Leave, Option, Pace, judge
from tenure.dispatch.quota import ends_in_s, past_quota, past_wall, span
from tenure.dispatch.views import Action as Action
from tenure.dispatch.views import AskToYield as AskToYield
from tenure.dispatch.views import BillView as BillView
from tenure.dispatch.views import Cancel as Cancel
from tenure.dispatch.views import EnlistCopy as EnlistCopy
from tenure.dispatch.views import Evidence as Evidence
from tenure.dispatch.views import JobView as JobView
from tenure.dispatch.views import Launch as Launch
from tenure.dispatch.views import NoShows as NoShows
from tenure.dispatch.views import ReleaseBill as ReleaseBill
from tenure.dispatch.views import RungView as RungView
from tenure.dispatch.views import Snapshot as Snapshot
from tenure.dispatch.views import TakeAway as TakeAway
from tenure.dispatch.views import Wait as Wait
from tenure.plan.advise import Move, Prospect, Unseen, hurry, unseen
from tenure.plan.backup import copy
from tenure_protocol.lease.machine import Occupied, Vacant, vacancy
from tenure_protocol.records import FINAL, Witness
from tenure_worker import exits

#: Short attempts in a row without a milestone, or launches in a row without a claim, that end a job.
#: The latter only once each rung that it may run on has had its turn.
FRUITLESS_BUDGET = 6
#: A snapshot that one worker could not read may be that machine's fault; two make it the snapshot's.
UNREADABLE_BUDGET = 2
#: Rejections in a row on one rung after which the job does not go there any more.
REJECTED_BUDGET = 5
#: A job whose witness is none can neither be held nor finish; a machine that it has is ended after this.
BROKEN_GRACE_S = 600.0

#: What is left of a quota must last for a start and so much work, or nothing is launched on it.
LEAST_WORK_S = 600.0
#: So long before a quota ends its holders are asked for a last milestone.
LAST_CALL_S = 600.0
#: So many early losses in a row cost a rung as much of its place in the order as a launch never claimed.
_STRIKES_A_PLACE = 3
#: How often the end of a job's own machine is asked for before the job looks further down the ladder.
_FREEING_TRIES = 4


class _Round:
    """What one round gives away as it goes from job to job."""

    def __init__(self, snapshot: Snapshot, now_s: float) -> None:
        self.snapshot = snapshot
        self.now_s = now_s
        self.going_on: set[str] = (
            set()
        )  # jobs whose holder stays, unless a better machine can be had
        self.filling = {
            name: Filling(rung.capacity, rung.capacity.launches - snapshot.taken[name])
            for name, rung in snapshot.rungs.items()
        }
        for view in snapshot.jobs:
            if view.moving_to and view.moving_to in self.filling and _yields(view):
                room = self.filling[view.moving_to]
                if view.moving_to != (view.pace.rung if view.pace else "") and room.free > 0:
                    room.keep()  # a machine, until it has yielded: another launch is not its own

    def machines_of(self, account: str) -> int:
        """How many machines draw on one quota, those of this round among them."""
        return sum(
            rung.capacity.launches - self.filling[name].free
            for name, rung in self.snapshot.rungs.items()
            if rung.account == account
        )

    def packed(self, action: Launch, reason: str) -> tuple[Action, str]:
        """The same, with the other jobs of its machine where that takes several."""
        capacity = self.snapshot.rungs[action.rung].capacity
        if capacity.per_launch == 1:
            return action, reason
        pack = self.filling[action.rung].together(action.job)
        others = len(pack) - 1
        alone = f"with {_count(others, 'other job')}" if others else "alone"
        words = f"{reason}; {alone} on one machine of {_count(capacity.cards, 'card')}"
        if spread := self.filling[action.rung].spread(action.job):
            words = f"{words}, {spread}"
        return replace(action, pack=pack if others else ()), words


def decide(snapshot: Snapshot, now_s: float) -> list[tuple[Action, str]]:
    """One action and its reason for every job, and one for every bill that should be closed.

    ``now_s`` is monotonic. Pure: the same snapshot gives the same actions.
    """
    actions: list[tuple[Action, str]] = []
    kept: dict[str, str] = {}  # job: why the bill of a launch that is over is not closed
    for bill in snapshot.bills:
        why = bill_is_over(bill, snapshot.view_of.get(bill.job))
        others = still_aboard(bill, snapshot) if why else ()
        if others:
            kept[bill.job] = (
                f"the bill of launch {bill.launch} stays open for {_named(others)} on its machine"
            )
        elif why and now_s >= bill.retry_at_s:
            actions.append((ReleaseBill(bill.job, bill.launch, bill.rung), why))
    this = _Round(snapshot, now_s)
    for view in sorted(snapshot.jobs, key=lambda view: _turn_of(view, snapshot)):
        first, *more = _of_job(view, this)
        if (turn := snapshot.turns.get(view.job)) and isinstance(first[0], (Launch, Wait)):
            first = (first[0], f"{first[1]}; {turn.words}")
        if view.job in kept:
            first = (first[0], f"{first[1]}; {kept[view.job]}")
        actions += [first, *more]
    # The moves come last: a machine that somebody waits for is worth more to him.
    views = snapshot.view_of
    actions = [
        _copied(views[action.job], this, *_judged(views[action.job], this, reason))
        if isinstance(action, Wait) and action.job in this.going_on
        else (action, reason)
        for action, reason in actions
    ]
    return [
        this.packed(action, reason) if isinstance(action, Launch) else (action, reason)
        for action, reason in actions
    ]


def _turn_of(view: JobView, snapshot: Snapshot) -> tuple[int, int, int, str]:
    """Where teams share, the queue's order; among jobs without a place, and with one team, the plans' own."""
    turn = snapshot.turns.get(view.job)
    place = turn.place if turn else len(snapshot.turns) + 1
    return place, -view.priority, view.order, view.job


def _yields(view: JobView) -> bool:
    """Whether a holder was asked to end and has not yet."""
    w = view.witness
    return w is not None and w.phase == "held" and bool(w.asked) and _evidence(view)[0] is None


def _judged(view: JobView, this: _Round, reason: str) -> tuple[Action, str]:
    """Whether a holder stays where it is, by what it has shown and what could be had instead."""
    pace = view.pace
    if pace is None:
        return _without_milestone(view, this, reason)
    here = view.options.get(pace.rung)
    if here is None or pace.rung not in view.rungs or pace.rung not in this.snapshot.rungs:
        return Wait(view.job), reason

    def had(names: tuple[str, ...]) -> list[Option]:
        options = [view.options[name] for name in names if name in view.options]
        return [o for o in options if _can_be_had(view, o.rung, o.takes_s(pace.left), this)]

    if view.advice and (moved := _hurried(view, pace, this)):
        this.filling[moved.rung].keep()
        # A rung on which it was late is passed over for a while, as a slow one is.
        return AskToYield(view.job, moved.rung, moved.late), f"{reason}; {moved.reason}"
    ladder = _ladder(view)
    place = ladder.index(pace.rung)
    if view.advice and view.advice.pressed(this.now_s):  # from now on it is moved for no saving
        ladder, place = ladder[place:], 0
    # Its own slot is free again once it has yielded.
    parked = this.snapshot.rungs[pace.rung].parked_until_s > this.now_s
    again = [] if parked or _missed(view, pace.rung) else [here]
    others = [*again, *had(ladder[place + 1 :])]
    verdict = judge(pace, view.usual, here, had(ladder[:place]), others, view.moves)
    words = f"{reason}; {verdict.reason}"
    if not isinstance(verdict, Leave):
        return Wait(view.job), words
    if verdict.rung != pace.rung:
        this.filling[verdict.rung].keep()
    return AskToYield(view.job, verdict.rung, verdict.slow), words


def _copied(view: JobView, this: _Round, action: Action, reason: str) -> tuple[Action, str]:
    """The same, or a copy of a straggler that stays where it is: a move keeps its work and comes first."""
    if not isinstance(action, Wait) or view.rest is None or view.deadline_s is None:
        return action, reason
    fresh = [
        each
        for each in view.fresh
        if (each.sure or not view.critical) and _can_be_had(view, each.rung, each.takes_s, this)
    ]
    found = copy(view.rest, fresh, view.deadline_s, this.now_s)
    if found is None:
        return action, reason
    this.filling[found.rung].keep()
    return EnlistCopy(view.job, found.rung), f"{reason}; {found.reason}"


def _hurried(view: JobView, pace: Pace, this: _Round) -> Move | None:
    """Where a job goes on so that it is done by its deadline, where it would not be here."""
    here = _prospect(view, pace.rung)
    if here is None or pace.steps < LEAST_STEPS:
        return None  # nobody knows yet how fast its machine is
    left_s = pace.left_s
    return _moved_on(
        view, replace(here, start_s=0.0, run_s=here.run_s if left_s is None else left_s), this
    )


def _without_milestone(view: JobView, this: _Round, reason: str) -> tuple[Action, str]:
    """Whether a holder stays that has shown nothing yet, once its last moment has come.

    Only one that trains: an evaluation has its one milestone at its end, and would begin anew elsewhere.
    """
    w = view.witness
    bill = this.snapshot.bill_at.get((view.job, w.holder.launch if w and w.holder else 0))
    here = _prospect(view, bill.rung) if bill else None
    if here is None or view.kind != "train" or w is None or _has_milestone(w):
        return Wait(view.job), reason
    shown = unseen(here, view.held_for_s)
    moved = _moved_on(view, shown.here, this, shown)
    if moved is None:
        return Wait(view.job), reason
    this.filling[moved.rung].keep()
    return AskToYield(view.job, moved.rung, moved.late), f"{reason}; {moved.reason}"


def _has_milestone(w: Witness) -> bool:
    """Of the attempt that holds it; one whose numbers cannot be believed shows no pace all the same."""
    return w.pointer is not None and w.pointer.attempt == w.attempt


def _prospect(view: JobView, rung: str) -> Prospect | None:
    return next((each for each in view.prospects if each.rung == rung), None)


def _moved_on(
    view: JobView, here: Prospect, this: _Round, shown: Unseen | None = None
) -> Move | None:
    if view.advice is None or view.deadline_s is None:
        return None
    others = [
        each
        for each in view.prospects
        if each.rung != here.rung and _can_be_had(view, each.rung, each.takes_s, this)
    ]
    if view.critical and here.sure:
        others = [each for each in others if each.sure]
    return hurry(view.advice, here, others, view.deadline_s, this.now_s, view.moves, shown)


def _ladder(view: JobView) -> tuple[str, ...]:
    """The rungs of a job in the order in which they are tried: the planner's, else the user's."""
    advice = view.advice
    if advice is None:
        return view.rungs
    return (*advice.order, *(name for name in view.rungs if name not in advice.order))


def _can_be_had(view: JobView, name: str, takes_s: float, this: _Round) -> bool:
    """Whether a job could be launched on a rung at once and end there, by what is known now."""
    rung = this.snapshot.rungs.get(name)
    return (
        rung is not None
        and not this.snapshot.unseen
        and not excluded(view, name, this.snapshot)
        and rung.parked_until_s <= this.now_s
        and view.left.get(name, 0.0) <= this.now_s
        and not _missed(view, name)
        and this.filling[name].free > 0
        and view.cards <= rung.capacity.cards
        and _beyond_quota(rung, view.cards, this, takes_s) is None
    )


def still_aboard(
    bill: BillView, snapshot: Snapshot, lapsed_too: bool = False
) -> tuple[tuple[str, int], ...]:
    """The (job, launch) beside a launch of which something may come yet: its machine is theirs too.

    With ``lapsed_too`` they stay for nothing who would be launched anew if there were room.
    """
    found = []
    for job, launch in bill.beside:
        other = snapshot.bill_at.get((job, launch))
        if other is None:
            continue  # closed
        view = snapshot.view_of.get(job)
        lapsed = lapsed_too and view is not None and _lapsed(view)
        if not lapsed and not bill_is_over(other, view):
            found.append((job, launch))
    return tuple(found)


def _lapsed(view: JobView) -> bool:
    known = view.witness is not None and not view.silent and not view.broken
    return known and _evidence(view)[0] is not None


def _named(launches: tuple[tuple[str, int], ...]) -> str:
    """In words: (job, launch) of which there is one at least."""
    (job, launch), *more = launches
    others = f" and {_count(len(more), 'other job')}" if more else ""
    return f"launch {launch} of job {job}{others}"


def _count(number: int, noun: str, plural: str = "") -> str:
    """A number of things.

    >>> _count(1, "card"), _count(2, "card"), _count(2, "launch", "launches")
    ('1 card', '2 cards', '2 launches')
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def bill_is_over(bill: BillView, view: JobView | None) -> str | None:
    """Why nothing can come of a launch any more, or ``None`` while something may."""
    if view and view.broken and view.broken_for_s >= BROKEN_GRACE_S:  # nobody can hold or finish it
        return f"the job is stopped: {view.broken}"
    if view is None or view.silent or view.broken or view.witness is None:
        return None
    w = view.witness
    if w.phase == "held" and w.holder:
        return None if w.holder.launch == bill.launch else f"launch {w.holder.launch} holds the job"
    if w.phase == "expected":
        if w.launched != bill.launch:
            return f"launch {w.launched} has taken its place"
        return "its launch failed" if view.failed_launch >= bill.launch else None
    return f"the job is {w.phase}"


def _of_job(view: JobView, this: _Round) -> list[tuple[Action, str]]:
    snapshot, now_s = this.snapshot, this.now_s
    w = view.witness
    final = w is not None and w.phase in FINAL
    if not (view.broken or view.silent or final) and (needless := _other_is_done(view, snapshot)):
        return [(Cancel(view.job), needless)]
    if nothing := _nothing_to_do(view):
        return [(Wait(view.job), nothing)]
    evidence, why = _evidence(view)
    if w and w.phase == "held" and w.asked and (refused := _disobeyed(view, w, evidence, why)):
        return [(TakeAway(view.job, w.asked.by, w.asked.what == "pause"), refused)]
    if evidence is None:
        if w and w.phase == "held" and not w.asked:
            if ends := _must_end(view, w, this):
                return [(AskToYield(view.job, ""), f"{why}; {ends}")]
            if view.pace or view.rest or (view.advice and view.advice.pressed(now_s)):
                this.going_on.add(view.job)
        return [(Wait(view.job), why)]
    if evidence == "vacant" and w and w.phase == "expected" and w.launch and view.launched_on:
        before = view.no_shows.get(view.launched_on)
        this_one = NoShows.one_more(before, view.age_s, w.launch.window_s, now_s)
        view = replace(view, no_shows={**view.no_shows, view.launched_on: this_one})
    if over := _over(view, snapshot):
        return [(Cancel(view.job), over)]
    if view.not_before_s > now_s:
        pause = f"launched again in {view.not_before_s - now_s:.0f} s"
        return [(Wait(view.job), f"{why}; {pause}, after {view.strikes} early losses in a row")]
    rung, wait, missing = _rung(view, this)
    due = f"; {view.advice.reason}" if view.advice else ""
    if rung is None:
        wait += due
        ends = "its slot is needed" if missing == "room" else ""
        if missing == "patience" and w and w.phase == "expected":
            ends = "nobody waits for its machine any more"
        closed = _close_own(view, snapshot, now_s, f"{why}, and {ends}") if ends else []
        return [(Wait(view.job), f"{why}; {wait}"), *closed]
    filling = this.filling[rung]
    filling.take(view.job, view.cards, view.work)
    left = f"{filling.free} of {snapshot.rungs[rung].capacity.launches} slots of rung {rung} left"
    return [(Launch(view.job, rung, evidence), f"{why}; {left}{due}")]


def _other_is_done(view: JobView, seen: Snapshot) -> str | None:
    """Why a job ends whose copy, or whose original, has made it needless; ``None`` where it goes on.

    What an operator cancelled, he did not want copied. An original that a dispatcher gave up is what its copy is for.
    """
    copied = seen.view_of.get(view.copied_as)
    if copied is not None and _finished(copied):
        return f"its backup copy, job {copied.job}, was done sooner"
    original = seen.view_of.get(view.copy_of)
    if original is None:
        return None
    if _finished(original):
        return f"job {original.job}, whose backup copy it is, was done sooner"
    w = original.witness
    if w is not None and w.phase == "cancelled" and (w.by or "").startswith("operator"):
        return f"job {original.job}, whose backup copy it is, was cancelled by {w.by}: {w.reason or 'no reason given'}"
    return None


def _finished(view: JobView) -> bool:
    w = view.witness
    return w is not None and w.phase == "finished" and w.exit_code == 0


def _nothing_to_do(view: JobView) -> str | None:
    """Why a job is left alone whatever else there is, or ``None``."""
    w = view.witness
    if view.broken:
        return f"stopped: {view.broken}"
    if view.silent:
        return f"unknown: {view.silent}"
    if w and w.phase in FINAL:
        return f"it is {w.phase}"
    if w and w.held_back:
        return f"held back by {w.by or 'an operator'}: {w.reason or 'paused'}"
    return None


def is_free(view: JobView) -> bool:
    """Whether nobody holds the tenure of a job, nor is expected to: it wants a launch, unless it is over."""
    return _evidence(view)[0] is not None


def _evidence(view: JobView) -> tuple[Evidence | None, str]:
    """Whether the tenure is free, by what evidence, and in words."""
    w = view.witness
    if w is None:
        return "none", "nobody has run it yet"
    if w.phase in ("released", "revoked"):
        words = exits.EXIT_CODES.get(w.exit_code or 0, "?")
        code = f" with code {w.exit_code} ({words})" if w.exit_code else ""
        return "none", f"attempt {w.attempt} was {w.phase}{code}: {w.reason or 'no reason given'}"
    if w.phase == "expected" and view.failed_launch >= w.launched:
        return "failed", f"launch {w.launched} is known to have failed"
    judged = vacancy(w, view.age_s, view.watched)
    ended = f"; {view.ended}" if view.ended else ""
    if isinstance(judged, Occupied):
        return None, judged.reason + ended
    assert isinstance(judged, Vacant)
    return "vacant", judged.reason + ended


def _disobeyed(view: JobView, w: Witness, evidence: Evidence | None, why: str) -> str | None:
    """Why a holder that was asked to yield or to pause is waited for no longer, or ``None``.

    It reads the request at its next renewal, at most a lease away, and has ``within_s`` from then.
    """
    assert w.asked
    wish = f"{w.asked.by} had asked it to {w.asked.what}"
    if evidence == "vacant" and w.asked.what == "pause":
        return f"{why}; {wish}"
    if view.asked_for_s > w.asked.within_s + w.silence_allowed_s:
        return f"{wish} {view.asked_for_s:.0f} s ago, within {w.asked.within_s:.0f} s"
    return None


def _must_end(view: JobView, w: Witness, this: _Round) -> str | None:
    """Why a holder must not go on where it is, or ``None``.

    Its plan has nothing left to pay that rung with, or what is left of its quota lasts for little more
    than a last milestone.
    """
    snapshot = this.snapshot
    bill = snapshot.bill_at.get((view.job, w.holder.launch if w.holder else 0))
    rung = snapshot.rungs.get(bill.rung) if bill else None
    if rung is None:
        return None
    if rung.currency and (spent := snapshot.spent.get((view.plan, rung.currency))):
        return spent
    ends_s = ends_in_s(rung.quota, this.machines_of(rung.account), snapshot.unix_s)
    if rung.quota is None or ends_s is None or ends_s > LAST_CALL_S:
        return None
    return f"the quota of rung {rung.name} ends in {span(ends_s)} ({rung.quota.reason})"


def _beyond_quota(
    rung: RungView, cards: int, this: _Round, work_s: float = LEAST_WORK_S
) -> str | None:
    """Why a launch on a rung would not come to a milestone, or ``None``.

    A worker that is told its wall takes its last milestone before it, so it is the start, and some work
    to make that worth it, that there must be time for.
    """
    if rung.awaited:
        return rung.awaited
    need_s, machines = rung.start_s + work_s, this.machines_of(rung.account)
    if not this.filling[rung.name].opens(cards):
        machines -= 1  # it goes onto one of these
    return past_wall(rung.start_s, rung.capacity.wall_s) or past_quota(
        need_s, rung.quota, machines, this.snapshot.unix_s
    )


def _over(view: JobView, snapshot: Snapshot) -> str | None:
    """Why the job must end without a result, or ``None``."""
    w = view.witness
    if view.unreadable >= UNREADABLE_BUDGET:
        return f"protocol: {view.unreadable} attempts in a row failed: {w.reason if w else '?'}"
    if view.strikes >= FRUITLESS_BUDGET and not _untried(view, view.strikes_on, snapshot):
        last = (w and w.reason) or view.ended or "no reason given"
        return (
            f"{view.strikes} attempts in a row were lost early, without a milestone; last: {last}"
        )
    if fault := faults.own(view.faults):
        return fault
    if view.unclaimed >= FRUITLESS_BUDGET and not _untried(view, view.no_shows, snapshot):
        last = f"; last: {view.ended}" if view.ended else ""
        return f"{view.unclaimed} launches in a row never claimed it{last}"
    if any(name not in snapshot.rungs for name in view.rungs):
        return None  # a dispatcher that has those rungs may still run it
    out = {name: excluded(view, name, snapshot) for name in view.rungs}
    if all(out.values()):
        reasons = "; ".join(f"{name}: {why}" for name, why in out.items())
        return f"no allowed rung ({reasons or 'its plan names none'})"
    return None


def _untried(view: JobView, tried: Collection[str], snapshot: Snapshot) -> list[str]:
    """The rungs that may be good where those tried were not, if there are several to choose from."""
    usable = [name for name in view.rungs if not excluded(view, name, snapshot)]
    return [name for name in usable if name not in tried] if len(usable) > 1 else []


def excluded(view: JobView, name: str, snapshot: Snapshot) -> str | None:
    """Why a job can never run on a rung, or ``None``."""
    rung = snapshot.rungs.get(name)
    if rung is None:
        return "the tenure.toml of this dispatcher has no such rung"
    if view.kind is not None and view.kind not in rung.kinds:
        return f"its runner takes no {view.kind} jobs"
    if rung.currency and (spent := snapshot.spent.get((view.plan, rung.currency))):
        return spent
    cards = rung.capacity.cards
    if view.cards > cards:
        return f"its machine has {_count(cards, 'card')}, the job needs {view.cards}"
    return view.excluded.get(name)


_Missing = Literal["", "room", "patience"]


def _rung(view: JobView, this: _Round) -> tuple[str | None, str, _Missing]:
    """The first rung of the ladder that has room; or why none has, and what is missing there.

    The one that it moves to comes first. One on which launches of this job were rejected or never claimed
    comes after those with fewer of them. The latter is passed over for a while as long as there are such, since each try costs a
    window: nobody knows whether its machines start at all.
    """
    snapshot, now_s = this.snapshot, this.now_s
    if snapshot.unseen:
        return None, snapshot.unseen, ""
    usable: list[str] = []
    waits: list[str] = []
    missing: _Missing = ""
    for name in view.rungs:
        if why := excluded(view, name, snapshot):
            waits.append(f"rung {name} is out: {why}")
        else:
            usable.append(name)
    fewest = min((_missed(view, name) for name in usable), default=0)

    def turn(name: str) -> tuple[bool, int]:
        missed = _missed(view, name) + view.rejected.get(name, 0)
        return name != view.moving_to, missed + view.strikes_on.get(name, 0) // _STRIKES_A_PLACE

    lefts = {name: until_s for name in usable if (until_s := view.left.get(name, 0.0)) > now_s}
    held = view.advice.held if view.advice else {}
    for name in sorted(sorted(usable, key=_ladder(view).index), key=turn):
        rung, missed = snapshot.rungs[name], view.no_shows.get(name)
        if held.get(name, 0.0) > now_s and name != view.moving_to:
            waits.append(f"rung {name} is not needed for {span(held[name] - now_s)} yet")
        elif name in lefts and len(lefts) < len(usable):
            waits.append(f"rung {name} was left and is passed over for {lefts[name] - now_s:.0f} s")
        elif rung.parked_until_s > now_s:
            waits.append(
                f"rung {name} is parked for {rung.parked_until_s - now_s:.0f} s ({rung.parked_for})"
            )
        elif missed and missed.count > fewest and missed.until_s > now_s:
            missing = missing or "patience"
            waits.append(
                f"rung {name} is passed over for {missed.until_s - now_s:.0f} s "
                f"({_count(missed.count, 'launch', 'launches')} in a row never claimed it there)"
            )
        elif rung.awaited:  # the answer is a second away, and the next rung may be dear
            return None, f"rung {name}: {rung.awaited}", ""
        elif short := _beyond_quota(rung, view.cards, this):
            waits.append(f"rung {name} is passed over: {short}")
        elif not this.filling[name].has_room(view.cards):
            if _is_freed(view, name, snapshot):
                return None, f"its own slot on rung {name} is being freed", ""
            waits.append(_no_room(rung, snapshot))
            missing = "room"
        else:
            return name, "", ""
    return None, ", ".join(waits), missing


def _is_freed(view: JobView, name: str, snapshot: Snapshot) -> bool:
    """Whether a machine that the job had there is about to end: that is no reason to go down the ladder."""
    return any(
        bill.rung == name
        and bill.tries < _FREEING_TRIES
        and bill_is_over(bill, view)
        and not still_aboard(bill, snapshot)
        for bill in snapshot.bills_of.get(view.job, ())
    )


def _missed(view: JobView, name: str) -> int:
    missed = view.no_shows.get(name)
    return missed.count if missed else 0


def _no_room(rung: RungView, snapshot: Snapshot) -> str:
    """Who has the slots: launches that are there, or jobs whose turn comes first in this round."""
    slots = rung.capacity.launches
    there = min(slots, snapshot.taken[rung.name])
    if there == slots:
        return f"all {slots} slots of rung {rung.name} are taken"
    free = f"{there} of {slots} slots of rung {rung.name} are taken, and the other {slots - there}"
    return f"{free if there else f'all {slots} slots of rung {rung.name}'} go to jobs before it"


def _close_own(
    view: JobView, snapshot: Snapshot, now_s: float, why: str
) -> list[tuple[Action, str]]:
    """A job that waits for the very slot its own lapsed launch still occupies gets it closed.

    So is a launch that never claimed while its rung is passed over: it would be paid for all that time.
    Unless somebody else lives on that machine.
    """
    return [
        (ReleaseBill(bill.job, bill.launch, bill.rung), why)
        for bill in snapshot.bills_of.get(view.job, ())
        if now_s >= bill.retry_at_s
        and not bill_is_over(bill, view)
        and not still_aboard(bill, snapshot, lapsed_too=True)
    ]
