"""Which rungs a job with a deadline may use now: the cheapest that are on time, and the sure one in time.

Pure. The dispatcher asks it at each round for every job whose plan has ``deadline_h``. The rule is that
of *Can't Be Late* (NSDI 24) turned to whole jobs: as long as what is left could still be done on a sure rung
before the deadline, a job takes what is cheap and waits for it; from that moment on it goes to the sure
rung. Nobody computes a sum over two currencies: a price in quota hours or credits counts for what it is
worth in dollars (:mod:`tenure.plan.shadow`), which is nothing while it would be left over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf

#: Ten years: a longer deadline or horizon is a slip of the keyboard, not a plan.
LONGEST_H = 87_600.0
#: A forecast is taken to be wrong by so much.
SAFETY = 1.3
#: Starts that a job keeps time for beside the one that the sure rung needs: the next launch may never claim.
SPARE_STARTS = 2.0
#: Milestones kept before the last moment while a rung is used that may be lost.
RESERVED_MILESTONES = 2.0
#: A rung is cheap where it saves at least this share of what the sure one would take.
LEAST_SAVING = 0.1
#: A holder on a rung that may be lost stays after the last moment if it is lost before its end with less than this.
RISK_ALLOWED = 0.05
#: A holder that is late moves for a rung where it is done so many times as soon, and more after each move.
SOONER, SOONER_GROWTH = 1.15, 1.3
#: How fast what a job may cost rises: 1 is evenly, 2 is fast at first. Of 0.5, 1 and 2 the last cost least on four weeks of the pool.
PATIENCE = 2.0
#: While nobody knows how long a job is, a rung is held no longer than for this share of its time.
UNKNOWN_SHARE = 0.1
#: A milestone is overdue once a machine has had so many times as long as one takes there.
OVERDUE = 2.0
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Prospect:
    """What one rung is expected to do with what is left of a job."""

    rung: str
    run_s: float  # for what is left, once started, if nothing is lost
    start_s: float
    usd_per_h: float  # of its machine; what is paid otherwise at its worth in dollars
    death_per_h: float = 0.0  # machines lost per hour of one
    milestone_s: float = 1800.0  # of work between two milestones: half of it is lost with a machine
    sure: bool = False  # on demand: it is there when it is needed, and not taken away
    slots: int = 1  # machines that it can be at one time
    silence_s: float = 0.0  # how long the loss of a machine may go unnoticed

    @property
    def takes_s(self) -> float:
        """Expected seconds from a launch to the end, with what losses cost.

        Each of ``death_per_h * run`` losses costs a start and half of the time between two milestones.

        >>> Prospect("spot", 36000.0, 300.0, 0.3, death_per_h=0.1, milestone_s=1800.0).takes_s
        37500.0
        """
        losses = self.death_per_h * self.run_s / _HOUR_S
        return self.start_s + self.run_s + losses * (self.start_s + self.milestone_s / 2.0)

    @property
    def usd(self) -> float:
        """Expected dollars to the end."""
        return self.usd_per_h * self.takes_s / _HOUR_S

    @property
    def safe_s(self) -> float:
        """Time to keep for it: the forecast with its safety, and starts that fail."""
        return SAFETY * self.takes_s + SPARE_STARTS * self.start_s

    @property
    def reserve_s(self) -> float:
        """Time to keep while it is used for a loss that is noticed late, whatever is recorded of it.

        A machine that is lost just before the last moment is missed after its lease; another start may fail, and
        what was done since the last milestone is done again, which is known a milestone later. 0 for a sure rung.

        >>> Prospect("spot", 36000.0, 300.0, 0.3, milestone_s=1800.0, silence_s=600.0).reserve_s
        4500.0
        >>> Prospect("dear", 36000.0, 300.0, 3.0, milestone_s=1800.0, silence_s=600.0, sure=True).reserve_s
        0.0
        """
        if self.sure:
            return 0.0
        return (
            self.silence_s + self.start_s + RESERVED_MILESTONES * min(self.milestone_s, self.run_s)
        )


@dataclass(frozen=True)
class Outlook:
    """A job with a deadline, and what each of its rungs is expected to do with what is left."""

    job: str
    since_s: float  # monotonic; when it was enlisted
    deadline_s: float  # monotonic
    prospects: Sequence[Prospect]  # in the user's order
    guessed: bool = False  # how much is left is not known yet
    critical: bool = False  # sure rungs come first, whatever the others save
    on: str = ""  # the rung that it is on, or launched for; '' where it waits


@dataclass(frozen=True)
class Advice:
    """The order in which a job's rungs are tried, which of them wait, and why."""

    order: tuple[str, ...]
    #: Rungs that are not used yet, because what is cheaper may still come: monotonic, until then.
    held: Mapping[str, float]
    latest_s: float  # monotonic: the last moment to start on the sure rung
    sure: str  # that rung; '' where the ladder has none
    late_s: float  # how much too late even the fastest rung would be, if it began now; 0: on time
    reason: str

    def pressed(self, now_s: float) -> bool:
        """Whether the last moment has come."""
        return now_s >= self.latest_s


def advise(jobs: Iterable[Outlook], now_s: float) -> dict[str, Advice]:
    """What each job may use now, by its id. A job of which nothing is known gets no advice.

    Sure rungs have few machines, so last moments are counted backwards from the deadlines, each rung's
    jobs on its machines: two that need the same one do not both wait for the same moment.
    """
    known = [job for job in jobs if job.prospects]
    last = _last_moments(known, now_s)
    return {job.job: _advice(job, *last[job.job], now_s) for job in known}


def _last_moments(jobs: Sequence[Outlook], now_s: float) -> dict[str, tuple[Prospect, float]]:
    """Where each job goes when it must, and when at the latest, counted backwards.

    The job with the latest deadline gets the end of a machine's time, and so on. Each takes the cheapest
    sure rung that still has time for it, else the one where its last moment passed least long ago. Without a sure
    rung in its ladder the others have to do.

    >>> rung = Prospect("dear", 3600.0, 0.0, 3.0, sure=True, slots=1)
    >>> jobs = [Outlook(name, 0.0, 36000.0, [rung]) for name in "ab"]
    >>> {job: round(at_s) for job, (_, at_s) in _last_moments(jobs, 0.0).items()}
    {'b': 31320, 'a': 26640}
    """
    free_until: dict[str, list[float]] = {}
    found: dict[str, tuple[Prospect, float]] = {}
    for job in sorted(jobs, key=lambda job: (job.deadline_s, job.job), reverse=True):
        choices = []
        for rung in [each for each in job.prospects if each.sure] or job.prospects:
            machines = free_until.setdefault(rung.rung, [inf] * max(1, rung.slots))
            begins_s = min(job.deadline_s, max(machines)) - rung.safe_s
            choices.append((rung, begins_s))
        in_time = [each for each in choices if each[1] >= now_s]
        if in_time:
            rung, begins_s = min(in_time, key=lambda each: (each[0].usd, -each[1]))
        else:
            rung, begins_s = max(choices, key=lambda each: each[1])
        machines = free_until[rung.rung]
        machines[machines.index(max(machines))] = begins_s
        found[job.job] = rung, begins_s
    return found


def _reserve_s(job: Outlook, sure: Prospect) -> float:
    """What is kept before the last moment: for the rung that a job is on, else for the one that needs least.

    Nothing where there is no sure rung to go to.

    >>> dear = Prospect("dear", 3600.0, 60.0, 3.0, sure=True)
    >>> spot, other = (Prospect(name, 7200.0, 60.0, 0.3, milestone_s=s) for name, s in (("a", 600.0), ("b", 900.0)))
    >>> [_reserve_s(Outlook("j", 0.0, 9e4, (spot, other, dear), on=on), dear) for on in ("", "a", "b", "dear")]
    [1260.0, 1260.0, 1860.0, 0.0]
    """
    if not sure.sure:
        return 0.0
    here = [each for each in job.prospects if each.rung == job.on]
    unsure = here or [each for each in job.prospects if not each.sure]
    return min((each.reserve_s for each in unsure), default=0.0)


def _latest_s(begins_s: float, sure: Prospect, reserve_s: float) -> float:
    """The last moment, where what is left begins at ``begins_s`` with the time that the forecast's safety keeps.

    That time serves for a loss that is noticed late too: a forecast that is wrong by all of its safety and a loss
    at the last moment do not come together.

    >>> dear = Prospect("dear", 36000.0, 0.0, 3.0, sure=True)  # of which 10800 s are kept
    >>> _latest_s(50000.0, dear, 4500.0), _latest_s(50000.0, dear, 11800.0)
    (50000.0, 49000.0)
    """
    kept_s = sure.safe_s - sure.takes_s
    return begins_s - max(0.0, reserve_s - kept_s)


def _advice(job: Outlook, sure: Prospect, begins_s: float, now_s: float) -> Advice:
    """``begins_s`` is when what is left must begin on the sure rung, with nothing in reserve."""
    left_s = job.deadline_s - now_s
    fastest = min(job.prospects, key=lambda each: each.takes_s)
    late_s = max(0.0, fastest.takes_s - left_s)
    latest_s = _latest_s(begins_s, sure, _reserve_s(job, sure))
    if now_s >= latest_s:
        return _pressed(job, sure, latest_s, late_s, now_s)
    order = sorted(
        job.prospects,
        key=lambda each: (
            job.critical and not each.sure,
            _usd_to_the_end(each, sure, left_s, latest_s - now_s),
            each.takes_s,
        ),
    )
    # What nobody could leave in time is not begun: other rungs may be left later.
    in_time = [
        each for each in order if not sure.sure or _latest_s(begins_s, sure, each.reserve_s) > now_s
    ]
    job = replace(job, prospects=in_time)
    held = {
        each.rung: until_s
        for each in in_time
        if (until_s := _held(each, sure, job, latest_s)) > now_s
    } | {each.rung: latest_s for each in order if each not in in_time}
    order.sort(key=lambda each: each not in in_time)
    words = f"due in {hours(left_s)}"
    if held:
        best = order[0]
        words += (
            f"; {best.rung} would take {hours(best.takes_s)} and {best.usd:.2f} USD, and "
            f"{hours(latest_s - now_s)} are left until {sure.rung} must begin "
            f"({hours(sure.takes_s)}, {sure.usd:.2f} USD)"
        )
    return Advice(tuple(each.rung for each in order), held, latest_s, sure.rung, late_s, words)


def _usd_to_the_end(each: Prospect, sure: Prospect, left_s: float, until_s: float) -> float:
    """What a job costs that begins on a rung; one that is late there is finished on the sure one.

    >>> slow = Prospect("free", 1000 * 3600.0, 0.0, 0.0)
    >>> sure = Prospect("dear", 5 * 3600.0, 0.0, 4.0, sure=True)
    >>> round(_usd_to_the_end(slow, sure, 40 * 3600.0, 30 * 3600.0), 1)
    19.4
    """
    if each.takes_s <= left_s:
        return each.usd
    part = min(1.0, max(0.0, until_s) / each.takes_s)
    return part * each.usd + (1.0 - part) * sure.usd


def _held(each: Prospect, sure: Prospect, job: Outlook, latest_s: float) -> float:
    """Until when a rung is not used: what a job may cost rises from the cheapest way to the sure one.

    It rises with the square root of the time from the enlisting to the last moment: a job waits long
    for a large saving, and not at all for a small one.

    >>> cheap, sure = Prospect("spot", 36000.0, 0.0, 0.3), Prospect("dear", 36000.0, 0.0, 1.3, sure=True)
    >>> middle = Prospect("middle", 36000.0, 0.0, 0.8)
    >>> job = Outlook("j", 1000.0, 90000.0, (cheap, middle, sure))
    >>> [round(_held(each, sure, job, 41000.0)) for each in job.prospects]
    [1000, 11000, 41000]
    """
    if job.critical and sure.sure and not each.sure:
        return latest_s
    on_time = [
        rung.usd
        for rung in job.prospects
        if rung.takes_s <= job.deadline_s - job.since_s and (rung.sure or not job.critical)
    ]
    least = min(on_time, default=sure.usd)
    span_s, extra = max(0.0, latest_s - job.since_s), each.usd - least
    if extra <= LEAST_SAVING * each.usd:
        return job.since_s
    share = 1.0 if each.usd >= sure.usd else extra / (sure.usd - least)
    until_s = min(latest_s, job.since_s + float(share**PATIENCE) * span_s)
    if job.guessed:
        until_s = min(until_s, job.since_s + UNKNOWN_SHARE * (job.deadline_s - job.since_s))
    return until_s


def _pressed(job: Outlook, sure: Prospect, latest_s: float, late_s: float, now_s: float) -> Advice:
    """The last moment has come: the sure rung, then what is soonest done."""
    left_s = job.deadline_s - now_s
    rest = [each for each in job.prospects if each.rung != sure.rung]
    rest.sort(key=lambda each: (not each.sure, each.takes_s))
    if sure.takes_s > left_s:  # it is no help any more: the soonest first
        rest.sort(key=lambda each: each.takes_s)
    order = (sure.rung, *(each.rung for each in rest))
    due = f"due in {hours(left_s)}" if left_s > 0 else f"its deadline was {hours(-left_s)} ago"
    if late_s > 0:
        words = f"{due}, and the fastest rung needs {hours(left_s + late_s)}: it will be late"
    elif sure.takes_s > left_s:
        words = f"{due}, and {sure.rung} needs {hours(sure.takes_s)}: {order[1]} may be in time"
    else:
        words = (
            f"{due}, and {sure.rung} needs {hours(sure.takes_s)}: the last moment for it has come"
        )
    return Advice(order, {}, latest_s, sure.rung, late_s, words)


@dataclass(frozen=True)
class Move:
    """The holder is asked to yield, so that the job is on time."""

    rung: str
    reason: str
    late: bool = False  # where it is; else only at risk


@dataclass(frozen=True)
class Unseen:
    """What is left of a job on a machine that has shown no milestone yet."""

    here: Prospect
    overdue: bool  # one was due long ago
    reason: str


def unseen(expected: Prospect, held_s: float) -> Unseen:
    """What is left where a machine has had a job for so long, and nobody has seen a milestone of it.

    Until one is overdue the machine is taken to be as fast as is expected of its rung, and to have worked all the
    time: what it did is in the milestone that it takes when it is asked to yield. From then on it is known to be
    slower: in ``held_s`` it has not done what should have taken ``milestone_s``, so all of it takes
    ``held_s / milestone_s`` times as long at the least; and of what it did nothing is counted, since nobody saw any.

    >>> spot = Prospect("spot", 36000.0, 300.0, 0.3, milestone_s=1800.0)
    >>> unseen(spot, 1800.0).here.takes_s, unseen(spot, 7200.0).here.takes_s
    (34200.0, 144000.0)
    """
    first_s = min(expected.milestone_s, expected.run_s)
    overdue = held_s > OVERDUE * first_s
    if overdue and first_s > 0:
        left_s = expected.run_s * held_s / first_s
    else:
        left_s = max(0.0, expected.run_s - held_s)
    words = f"it has no milestone after {hours(held_s)}"
    words += f", and one takes {hours(first_s)} there" if overdue else ""
    return Unseen(replace(expected, start_s=0.0, run_s=left_s), overdue, words)


def hurry(
    advice: Advice,
    here: Prospect,
    others: Sequence[Prospect],
    deadline_s: float,
    now_s: float,
    moves: int = 0,
    shown: Unseen | None = None,
) -> Move | None:
    """Where a running job goes on so as not to be late, or ``None``: it stays.

    ``here`` is what is left where it runs, with no start; ``others`` can be had now. Until the last moment
    it stays, since what it does on a cheap machine need not be done on the sure one. Then it leaves a machine on
    which it would be late for one that is clearly sooner, the cheapest that is in time if there is one; and one that
    may be lost before its end for a sure one. What is clear grows with the ``moves`` that it has behind it: a
    machine may be slower than any was before. ``shown`` is of one that has no milestone yet: where that is
    overdue it is late, and it is not moved for a risk alone, since its first milestone is near.
    """
    if not advice.pressed(now_s):
        return None
    left_s = deadline_s - now_s
    late = here.takes_s > left_s or (shown is not None and shown.overdue)
    lost = 1.0 - exp(-here.death_per_h * here.run_s / _HOUR_S)
    at_risk = not here.sure and lost > RISK_ALLOWED and shown is None
    if not late and not at_risk:
        return None
    if late:
        sooner = SOONER * SOONER_GROWTH**moves
        others = [each for each in others if sooner * each.takes_s <= here.takes_s]
    else:
        others = [each for each in others if each.sure and each.takes_s <= left_s]
    if not others:
        return None
    best = min(
        others,
        key=lambda each: (
            each.takes_s > left_s,
            each.usd if each.takes_s <= left_s else each.takes_s,
        ),
    )
    why = (
        f"it needs {hours(here.takes_s)} here and is due in {hours(left_s)}"
        if late
        else f"it is due in {hours(left_s)}, and is lost before its end here with {lost:.0%}"
    )
    why = f"{shown.reason}; {why}" if shown else why
    words = f"{why}; {best.rung} needs {hours(best.takes_s)} and {best.usd:.2f} USD"
    return Move(best.rung, words, late)


def hours(seconds: float) -> str:
    """A time in words.

    >>> hours(5400.0), hours(900.0), hours(20.0)
    ('1.5 h', '15 min', '20 s')
    """
    if abs(seconds) >= _HOUR_S:
        return f"{seconds / _HOUR_S:.1f} h"
    return f"{seconds / 60:.0f} min" if abs(seconds) >= 120 else f"{seconds:.0f} s"
