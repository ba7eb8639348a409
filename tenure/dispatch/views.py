"""What a decision is made from, and what it may be: plain facts of one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from tenure.dispatch.contract import Capacity, JobKind
from tenure.dispatch.faults import Fault
from tenure.dispatch.quality import Option, Pace, Usual
from tenure.dispatch.quota import Left
from tenure.plan.advise import Advice, Prospect
from tenure.plan.backup import Rest
from tenure_protocol.lease.machine import Watched
from tenure_protocol.records import Witness

#: How many claim windows long a rung is passed over on which a launch was never claimed.
PASSED_OVER = 2.0

Evidence = Literal["none", "vacant", "failed"]


@dataclass(frozen=True)
class NoShows:
    """Launches of one job in a row on one rung that were made and never claimed it."""

    count: int
    until_s: float  # monotonic; so long only rungs with fewer of them are tried

    @classmethod
    def one_more(
        cls, before: NoShows | None, age_s: float, window_s: float, now_s: float
    ) -> NoShows:
        """With the launch that was announced ``age_s`` ago and had ``window_s`` to claim."""
        lapsed_at_s = now_s - max(0.0, age_s - window_s)
        return cls((before.count if before else 0) + 1, lapsed_at_s + PASSED_OVER * window_s)


@dataclass(frozen=True)
class JobView:
    """One job as a dispatcher sees it now."""

    job: str
    experiment: str
    rungs: tuple[str, ...]  # in the user's order of preference
    priority: int = 0
    order: int = 0  # place in its plan
    plan: str = ""
    kind: JobKind | None = None  # None: its spec has not been read yet
    cards: int = 1  # that it needs, all of one machine
    critical: bool = False  # of the second generation: what is to be deployed hangs on it
    work: float | None = None  # FLOPs left, by all its cards together; None: unknown
    witness: Witness | None = None
    etag: str = ""  # of the body that was decided from
    age_s: float = 0.0
    watched: Watched = Watched(0.0, 0.0)
    silent: str | None = None  # the store did not answer for its prefix
    broken: str | None = None  # a corrupt object, named with its key
    broken_for_s: float = 0.0  # how long its witness has been none; 0 where something else is
    failed_launch: int = 0  # newest launch known to have failed or refused
    excluded: Mapping[str, str] = field(default_factory=dict)  # rung: why this job cannot run there
    rejections: int = 0
    unclaimed: int = 0  # launches in a row that never claimed within their window, on any rung
    no_shows: Mapping[str, NoShows] = field(default_factory=dict)  # by rung, of launches before
    rejected: Mapping[str, int] = field(default_factory=dict)  # launches in a row, by rung
    launched_on: str = ""  # the rung of a launch whose claim window is over
    strikes: int = 0  # attempts in a row that were lost early, without a milestone
    strikes_on: Mapping[str, int] = field(default_factory=dict)  # these, by rung
    not_before_s: float = 0.0  # monotonic; when it may be launched again
    held_for_s: float = 0.0  # how long the attempt that holds it has had it, at the least
    asked_for_s: float = 0.0  # how long ago the holder was first seen to be asked
    unreadable: int = 0  # attempts in a row that could not read their snapshot
    #: Faults of machines since its last milestone, by their words.
    faults: Mapping[str, tuple[Fault, ...]] = field(default_factory=dict)
    ended: str = ""  # how the process of its open launch ended, where its runner knows that it did
    pace: Pace | None = None  # what the attempt that holds it has shown, where it may be judged
    usual: Usual | None = None  # of such work on that card of that runner
    options: Mapping[str, Option] = field(default_factory=dict)  # by rung, where something is known
    moves: int = 0  # how often it was asked to yield for a better machine
    moving_to: str = ""  # the rung where it goes on once it has yielded
    #: Rungs that it was taken from: monotonic, passed over until then.
    left: Mapping[str, float] = field(default_factory=dict)
    since_s: float = 0.0  # monotonic; when it was enlisted, by the store
    deadline_s: float | None = None  # monotonic; when its plan wants it done
    prospects: tuple[Prospect, ...] = ()  # what is left of it, on each rung where anybody can say
    advice: Advice | None = None  # of the planner, where there is a deadline
    copy_of: str = ""  # the job whose backup copy it is
    copied_as: str = ""  # the job that is its backup copy
    rest: Rest | None = None  # of a straggler where it runs, where a copy is thought of
    fresh: tuple[Prospect, ...] = ()  # the whole job on the other rungs: what a copy would take


@dataclass(frozen=True)
class BillView:
    """One launch whose bill is not known to be closed."""

    job: str
    launch: int
    rung: str
    retry_at_s: float = 0.0  # monotonic; when release may be asked again
    tries: int = 0  # how often it was asked
    machine: str = ""  # the name it shares with the launches beside it; '' while not known
    beside: tuple[tuple[str, int], ...] = ()  # (job, launch) of the others on the same machine


@dataclass(frozen=True)
class RungView:
    """One step of the ladder now."""

    name: str
    kinds: frozenset[JobKind]
    capacity: Capacity
    parked_until_s: float = 0.0  # monotonic
    parked_for: str = ""
    currency: str = ""  # that it costs something in; '' where it is free
    account: str = ""  # whose quota it draws on: its runner
    quota: Left | None = None  # what is left there; None: nothing is known to end
    awaited: str = ""  # why nothing is launched until the platform has told its quota
    start_s: float = 0.0  # from a launch to its claim, as observed; 0: unknown


@dataclass(frozen=True)
class Turn:
    """A job's place where several teams share the rungs."""

    place: int  # 1 goes next
    team: str  # '' where no team has submitted it
    words: str


@dataclass(frozen=True)
class Snapshot:
    """Everything a decision depends on."""

    jobs: tuple[JobView, ...]
    bills: tuple[BillView, ...]
    rungs: Mapping[str, RungView]
    unseen: str = ""  # why bills may be missing from it: then nobody knows how many slots are free
    spent: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (plan, currency): in words
    unix_s: float = 0.0  # now, as renewals of quotas count
    #: By job, where several teams share; without any, plans go by their own priorities.
    turns: Mapping[str, Turn] = field(default_factory=dict)

    @cached_property
    def bills_of(self) -> Mapping[str, list[BillView]]:
        """The open bills by job: thousands of jobs may wait beside thousands of bills."""
        found: dict[str, list[BillView]] = {}
        for bill in self.bills:
            found.setdefault(bill.job, []).append(bill)
        return found

    @cached_property
    def taken(self) -> Counter[str]:
        """How many slots of each rung the open bills take: as many as there are machines."""
        machines = {
            (bill.rung, bill.machine or f"launch {bill.launch} of {bill.job}")
            for bill in self.bills
        }
        return Counter(rung for rung, _ in machines)

    @cached_property
    def bill_at(self) -> Mapping[tuple[str, int], BillView]:
        """The open bills by (job, launch)."""
        return {(bill.job, bill.launch): bill for bill in self.bills}

    @cached_property
    def view_of(self) -> Mapping[str, JobView]:
        """The jobs by their ids."""
        return {view.job: view for view in self.jobs}


@dataclass(frozen=True)
class Launch:
    """Reserve the next launch of a job on a rung, and make it."""

    job: str
    rung: str
    evidence: Evidence
    pack: tuple[str, ...] = ()  # the jobs of one machine in the order of turns; (): it alone


@dataclass(frozen=True)
class Cancel:
    """End a job without a result."""

    job: str


@dataclass(frozen=True)
class AskToYield:
    """Ask the holder of a job to yield, after a last milestone."""

    job: str
    rung: str  # where; '' where it may not go on
    slow: bool = False  # the machine that it leaves is slower than is usual there


@dataclass(frozen=True)
class EnlistCopy:
    """Enlist a backup copy of a job that goes on: the next run of its spec."""

    job: str
    rung: str  # where it is expected to begin


@dataclass(frozen=True)
class TakeAway:
    """Revoke a job whose holder did not do what it was asked; a pause is held back."""

    job: str
    by: str
    held_back: bool


@dataclass(frozen=True)
class ReleaseBill:
    """Ask the platform to close the bill of a launch that has nothing to do any more.

    It ends the machine, and with it the bills of all that were launched on it.
    """

    job: str
    launch: int
    rung: str


@dataclass(frozen=True)
class Wait:
    """Nothing to do for this job now."""

    job: str


Action = Launch | Cancel | AskToYield | EnlistCopy | TakeAway | ReleaseBill | Wait
