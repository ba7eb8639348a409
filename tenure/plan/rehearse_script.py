"""What a rehearsal plays: jobs, rungs as they behave, quotas, and recorded markets. Plain values.

Amounts of work are in the unit of their throughput law: FLOPs of a dtype, or steps of a configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tenure.plan.promise import Offer
from tenure.plan.survival import Curve
from tenure.plan.throughput import Throughput
from tenure.plan.traces import bad_count, read_counts

_HOUR_S = 3600.0
#: A platform that renews a quota does so every week, as far as is known of any.
RENEWED_EVERY_S = 7 * 24 * _HOUR_S


@dataclass(frozen=True)
class Trace:
    """How many instances a market had, tick by tick."""

    tick_s: float
    counts: tuple[int, ...]

    @property
    def length_s(self) -> float:
        """From its first tick to the end of its last."""
        return self.tick_s * len(self.counts)

    def at(self, tick: int) -> int:
        """Instances available in a tick; after the last one it begins anew."""
        return self.counts[tick % len(self.counts)]

    def next_change(self, tick: int) -> int | None:
        """The first later tick with another count; ``None`` where there is none.

        >>> Trace(60.0, (1, 1, 0)).next_change(0), Trace(60.0, (1, 1, 0)).next_change(2)
        (2, 3)
        >>> Trace(60.0, (1, 1)).next_change(0) is None
        True
        """
        here = self.at(tick)
        ahead = range(tick + 1, tick + len(self.counts) + 1)
        return next((each for each in ahead if self.at(each) != here), None)

    def losses_per_h(self) -> float:
        """Instances that went, per hour of an instance; 0 where none was ever there."""
        gone = sum(
            max(0, a - b)
            for a, b in zip(self.counts, (*self.counts[1:], self.counts[-1]), strict=True)
        )
        there_h = sum(self.counts) * self.tick_s / _HOUR_S
        return gone / there_h if there_h else 0.0

    def starts(self, needed_s: float) -> int:
        """How many first ticks leave so much time; all of them where the trace is not so long."""
        fitting = len(self.counts) - math.ceil(needed_s / self.tick_s) + 1
        return fitting if fitting >= 1 else len(self.counts)


def read_trace(file: Path) -> Trace:
    """A trace of spot instances: ``{metadata: {gap_seconds}, data: [instances per tick]}``.

    Raises UsageError, one sentence, for a trace with gaps, negative counts, or none at all.
    """
    tick_s, data = read_counts(file)
    for tick, count in enumerate(data):
        if count != int(count):
            raise bad_count(file, tick, count)
    return Trace(tick_s, tuple(map(int, data)))


@dataclass(frozen=True)
class Station:
    """One rung as it is played."""

    name: str
    card: str
    slots: int
    starts_s: tuple[float, ...]  # from launch to claim, as seen
    curve: Curve  # of lives from their claim, with the wall where one is known
    expected: Curve  # the same as the dispatcher expects them: of a recorded market it knows a rate
    currency: str = "usd"
    per_h: float = 0.0  # of a machine, in ``currency``
    usd_per_h: float = 0.0  # what that is worth
    on_demand: bool = False
    load_s: float = 0.0  # from the claim to the first step
    save_s: float = 0.0  # the loop stands still for a snapshot
    silence_s: float = 0.0  # until a loss is noticed
    wall_s: float | None = None
    cards: int = 1
    per_launch: int = 1  # jobs on one machine
    account: str = ""  # of its quota; '' where none is known
    draws_per_h: float = 1.0  # of that account, by one machine
    trace: Trace | None = None

    @cached_property
    def offer(self) -> Offer:
        """What the planner knows of it."""
        return Offer(
            self.name, self.expected, self.start_s, self.usd_per_h, self.on_demand, self.currency == "usd", self.slots
        )  # fmt: skip

    @cached_property
    def start_s(self) -> float:
        """The median start."""
        ranked = sorted(self.starts_s)
        middle = len(ranked) // 2
        return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


@dataclass(frozen=True)
class Kind:
    """Jobs of one configuration: how much there is to do, and how fast each rung does it."""

    name: str
    amount: float
    every: float  # of work between two milestones; infinite where only the last one is written
    laws: Mapping[str, Throughput]  # by rung; where none is, nobody can say how fast it is
    excluded: Mapping[str, str] = field(default_factory=dict)  # rung: why it cannot run there

    def __post_init__(self) -> None:
        if not (math.isfinite(self.amount) and self.amount > 0 and self.every > 0):
            raise ValueError("the work of a job, and of a milestone, is above 0")


@dataclass(frozen=True)
class Allowance:
    """What is left of a quota at the beginning."""

    left: float  # in its unit
    granted: float  # at each renewal
    renews_in_s: float | None = None  # None: not known, and it never is


@dataclass(frozen=True)
class Retrain:
    """The pinned training after the grid: so many jobs of the promoted point, on cards of one kind."""

    jobs: int  # seeds, and the first of them once more
    rungs: tuple[str, ...] = ()  # (): on the card on which most seeds of the point ended


@dataclass(frozen=True)
class Script:
    """A plan as it is played."""

    jobs: tuple[Kind, ...]  # in the order of the plan
    stations: tuple[Station, ...]  # in the user's order
    cards: int = 1  # that each job needs
    deadline_s: float | None = None
    budget: Mapping[str, float] = field(default_factory=dict)  # by currency
    quotas: Mapping[str, Allowance] = field(default_factory=dict)  # by account
    retrain: Retrain | None = None
