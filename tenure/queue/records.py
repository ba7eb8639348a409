"""What the queue is decided from, and what it answers: plain records, compared and replayed as they are.

A decision is a pure function of these records and of the time, so two dispatchers that read the same
records come to the same one. Times are seconds of one clock, the store's; nothing here reads a clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

#: A half-life of use, and a bound on waiting, where nobody says another one.
HALF_LIFE_S = 7 * 86400.0
MAX_WAIT_S = 7 * 86400.0
#: How long a job is taken to be where nobody knows it; settled to the second once it ends.
UNKNOWN_S = 3600.0


@dataclass(frozen=True)
class Need:
    """What a job takes while it runs. ``cards`` start together or not at all."""

    cards: int = 1
    cpus: float = 0.0
    memory_gib: float = 0.0
    #: FLOPs that one of its cards delivers, over those of the pool's reference card.
    speed: float = 1.0


@dataclass(frozen=True)
class Pool:
    """What there is to share. ``reference_cards`` is the sum of speeds; None: each card counts as 1."""

    cards: int
    cpus: float = 0.0
    memory_gib: float = 0.0
    reference_cards: float | None = None

    @property
    def size(self) -> float:
        """Cards, each weighed by the FLOPs that it delivers."""
        return float(self.cards) if self.reference_cards is None else self.reference_cards


@dataclass(frozen=True)
class Team:
    """Who shares. ``prefix`` says whose a store key is; ``part_of`` makes it an account of another team."""

    name: str
    weight: float = 1.0
    prefix: str = ""
    part_of: str | None = None


@dataclass(frozen=True)
class Submission:
    """One job in the queue, as the store timed it. Its age begins at ``submitted_s`` and is never inherited."""

    job: str
    team: str
    submitted_s: float
    need: Need = Need()
    duration_s: float | None = None  # expected; None: nobody knows
    priority: int = 0  # among the jobs of its team, and nowhere else
    plan: str = ""
    deadline_s: float | None = None  # of the same clock
    budget_card_s: float | None = None  # the most that it may use
    may_wait_s: float | None = None  # a job that may not wait longer than this
    milestone_s: float = 600.0  # between its milestones: a preempted job goes on from the last
    restart_s: float = 60.0  # what going on again costs it
    held: bool = False

    @property
    def expected_s(self) -> float:
        """How long it is taken to be."""
        return UNKNOWN_S if self.duration_s is None else self.duration_s

    @cached_property
    def tie(self) -> str:
        """What decides between submissions of one instant: a digest, so that no name comes first by design.

        >>> Submission("a", "x", 0.0).tie == Submission("a", "x", 0.0).tie
        True
        """
        text = f"{self.submitted_s!r}\n{self.team}\n{self.job}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Hold:
    """What a team had, or has: a run, or cards that were kept idle for it until it could start."""

    team: str
    job: str
    from_s: float
    to_s: float | None  # None: it has it still
    need: Need = Need()
    expected_s: float | None = None  # of the whole hold; None: nobody knows
    kind: Literal["run", "reserve"] = "run"
    #: Since when the team has had these cards without a break; none: since ``from_s``.
    since_s: float | None = None
    #: It was started because its wait came to the bound, and draws on what its team may start so.
    overdue: bool = False


@dataclass(frozen=True)
class Penalty:
    """A team's weight is multiplied by ``factor`` for a while, and why."""

    team: str
    from_s: float
    until_s: float
    factor: float
    reason: str


@dataclass(frozen=True)
class State:
    """All that the order of a pool is decided from."""

    pool: Pool
    teams: tuple[Team, ...]
    waiting: tuple[Submission, ...]
    holds: tuple[Hold, ...] = ()
    penalties: tuple[Penalty, ...] = ()
    half_life_s: float = HALF_LIFE_S
    max_wait_s: float = MAX_WAIT_S


Verdict = Literal["next", "waits", "held", "refused"]


@dataclass(frozen=True)
class Decision:
    """Where one waiting job stands, and why: place 1 goes next. Held and refused jobs have no place."""

    job: str
    team: str
    verdict: Verdict
    place: int | None
    reason: str
    numbers: dict[str, float] = field(default_factory=dict, compare=False)
