"""The six verbs of an execution and the two of a runner, with everything they may answer.

Four of the six verbs have one implementation (:mod:`tenure.dispatch.execution`), because the store
answers them; only ``launch`` and ``release`` differ from platform to platform. A runner imports
this module and nothing else of the core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from tenure_protocol.clock import Clock

JobId = str
JobKind = str
ALL_KINDS: frozenset[JobKind] = frozenset({"train", "evaluate", "backtest", "dataset"})


@dataclass(frozen=True)
class Environment:
    """The fingerprint a worker must measure before it may claim."""

    fields: Mapping[str, object]


@dataclass(frozen=True)
class Job:
    """One launch of one job: what to run, not how."""

    job_id: JobId
    kind: JobKind
    launch: int
    name: str  # unique to this launch; the platform is asked for it after a failure
    store: str  # URL
    cards: int = 1
    requires: Environment | None = None
    window_s: float = 0.0  # how long its claim is waited for, which grows where none came in time
    wall_s: float | None = None  # how long it may live: what is left of a quota; None: not known


@dataclass(frozen=True)
class Receipt:
    """Facts of one launch, as the platform told them."""

    jobs: tuple[JobId, ...]
    runner: str
    name: str
    card: str
    at_s: float  # Unix time, for people
    handle: Mapping[str, object] = field(default_factory=dict)  # empty: find it by name


@dataclass(frozen=True)
class Slice:
    """A part of a growing text. ``next`` is an opaque cursor, not a byte offset."""

    records: tuple[str, ...]
    next: str
    incomplete: bool = False  # a chunk is missing: what follows it is held back
    end: bool = False
    gap: str = ""  # which one is missing, and how many are held back, in words
    over: bool = False  # whether the job is: only a zombie could still fill a gap


# ------------------------------------------------------------------------------------ status


@dataclass(frozen=True)
class Running:
    """The lease holds."""

    attempt: int
    launch: int


@dataclass(frozen=True)
class Vacant:
    """Nobody holds the tenure."""

    reason: str


@dataclass(frozen=True)
class Finished:
    """The job is over: it finished with this code, or was cancelled (code ``None``)."""

    exit_code: int | None
    reason: str


@dataclass(frozen=True)
class Unknown:
    """The store is silent or unreadable, or our own watch is too short to judge."""

    reason: str


JobState = Running | Vacant | Finished | Unknown

# ------------------------------------------------------------------------------------ revoke


@dataclass(frozen=True)
class Revoked:
    """The tenure was taken away; the slot may be given on."""


@dataclass(frozen=True)
class Renewed:
    """The witness changed under us: ask again, or leave it."""


@dataclass(frozen=True)
class AlreadyFinal:
    """The job had finished or been cancelled before."""


@dataclass(frozen=True)
class Unwritten:
    """Not known to be written: the slot must not be given away."""

    reason: str


Revocation = Revoked | Renewed | AlreadyFinal | Unwritten

# ----------------------------------------------------------------------------------- release


@dataclass(frozen=True)
class Closed:
    """The bill is closed: the resource is gone, or there was none."""

    reason: str
    paid_s: float | None = None  # seconds billed, where the platform tells; 0 where there was none
    seen: bool = (
        False  # whether it was there when it was asked for: then it is paid for, receipt or not
    )


@dataclass(frozen=True)
class Pending:
    """The end was requested and is not confirmed; ask again."""

    reason: str
    seen: bool = True  # whether the platform has said that there is something to end


@dataclass(frozen=True)
class Bounded:
    """Nothing can be done; the platform itself ends it at ``until_s`` (Unix time)."""

    until_s: float
    reason: str


Settlement = Closed | Pending | Bounded

# ---------------------------------------------------------------------------------- failures


class LaunchFailed(Exception):
    """A launch did not succeed."""


class NoSlots(LaunchFailed):
    """No free place now: the rung is parked, no budget is spent."""


class Unreachable(LaunchFailed):
    """The platform did not answer: the rung backs off. ``sent``: it may have launched all the same."""

    def __init__(self, reason: str, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class Rejected(LaunchFailed):
    """The platform refused: budget is spent."""


class ProtocolError(LaunchFailed):
    """The platform answered what must not happen: fatal there."""


class SpawnedElsewhere(NoSlots):
    """Another executor has taken the job already."""


# ------------------------------------------------------------------------------------ runner


@dataclass(frozen=True)
class Capacity:
    """What a configuration of a runner can take, in packs: a launch is one machine.

    Jobs of one launch together need at most ``cards`` cards, and there are at most ``per_launch`` of
    them: a machine of four cards takes four jobs of one card, or one of four.
    """

    per_launch: int  # jobs in one launch: platforms that hand out cards in packs take several
    launches: int  # launches at once
    window_s: float  # claim window until start delays are measured
    cards: int = 1  # of one machine
    card: str = ""  # the official name of the card it promises; empty where it promises none
    wall_s: float | None = None  # how long a launch lives at most; None: no end is known


@dataclass(frozen=True)
class Site:
    """Where a runner runs: the project's folder, the clock, variables workers must not see, the store."""

    root: Path
    clock: Clock
    hidden: frozenset[str] = frozenset()
    store: str = ""  # URL of the settings' store, for a runner that speaks through it


@runtime_checkable
class Runner(Protocol):
    """A platform plug-in: two verbs, two declarations."""

    JOB_KINDS: ClassVar[frozenset[JobKind]]

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        """Check the configuration; ``ValueError`` with one sentence per problem."""

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        """How many jobs one launch takes, and how many launches there may be at once."""

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        """Launch; a second launch under the same name adopts. Raises a :class:`LaunchFailed`."""

    def release(self, receipt: Receipt) -> Settlement:
        """Close the bill of a launch; a receipt without a handle is looked for by its name."""


@runtime_checkable
class KnowsEnds(Protocol):
    """A runner that sees its processes from here, for the words that people read."""

    def ended(self, receipt: Receipt) -> str | None:
        """How the process of a launch ended and where its output is; ``None`` while it runs."""

    def output(self, receipt: Receipt) -> Path | None:
        """The file on this machine that holds what the process wrote, if there is one."""


@runtime_checkable
class ListsItsOwn(Protocol):
    """A runner whose platform tells what it still runs for us."""

    def running(self, prefix: str) -> Sequence[Receipt]:
        """A receipt for everything that still costs money and whose name begins with ``prefix``.

        Their ``jobs`` are empty, since a platform knows names alone. Raises a :class:`LaunchFailed`.
        """


#: Two clocks differ, and a platform may take a while to count a new week.
RENEWAL_SLACK_S = 900.0


@dataclass(frozen=True)
class Quota:
    """What is left of a quota, or of a balance, as the platform tells it."""

    used: float  # 0 of a balance
    granted: float
    renews_at_s: float | None = None  # Unix time; None: it does not tell
    unit: str = "h"  # of machines; else a currency, as a rung's price names it

    @property
    def left(self) -> float:
        """What is left, in ``unit``; nothing where the numbers are none that can be.

        >>> Quota(26.5, 30.0).left, Quota(31.0, 30.0).left, Quota(-1.0, 30.0).left
        (3.5, 0.0, 0.0)
        """
        possible = isfinite(self.used) and isfinite(self.granted) and self.used >= 0
        return max(0.0, self.granted - self.used) if possible else 0.0

    def doubt(self, now_s: float) -> str | None:
        """What cannot be in what the platform tells, and how it is taken; ``now_s`` is Unix time.

        >>> Quota(-1.0, 30.0).doubt(0.0)
        '-1 of 30 h are said to be used, which cannot be: nothing counts as left'
        >>> Quota(31.0, 30.0).doubt(0.0)
        '31 of 30 h are said to be used: nothing counts as left'
        """
        said = f"{self.used:g} of {self.granted:g} {self.unit} are said to be used"
        if not (isfinite(self.used) and isfinite(self.granted)) or min(self.used, self.granted) < 0:
            return f"{said}, which cannot be: nothing counts as left"
        if self.used > self.granted:
            return f"{said}: nothing counts as left"
        renews_s = now_s if self.renews_at_s is None else self.renews_at_s
        if not isfinite(renews_s):
            return "its renewal is said to be at no time: it counts as unknown"
        if renews_s < now_s - RENEWAL_SLACK_S:
            ago = f"{(now_s - renews_s) / 3600:.1f} h ago"
            return f"its renewal is said to be {ago}: when it renews counts as unknown"
        return None


@runtime_checkable
class TellsQuota(Protocol):
    """A runner whose platform tells what is left of a quota. The call spends nothing."""

    def quota(self) -> Quota | None:
        """What is left, or ``None`` where this account has none. Raises a :class:`LaunchFailed`."""


@runtime_checkable
class ChecksItself(Protocol):
    """A runner that can look at its own configuration without spending anything."""

    def examine(self) -> Sequence[tuple[str, str | None]]:
        """What was looked at, and what is wrong with it (``None``: nothing). Raises nothing."""
