"""From what a dispatcher has seen to what the planner asks for: speeds, lives, starts, overheads.

Observations tell speeds and starts, lifetimes (:mod:`tenure.dispatch.lifetimes`) how long machines lasted and
on how many cards; both are rows by (runner, card). Pure functions of them; what was not seen comes from a
like rung, from the datasheet, or from an assumption that is named in the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tenure.dispatch.quality import LEAST_STEPS, UNKNOWN_START_S
from tenure.dispatch.rows import FLOPS_OF, MOST_SECONDS, Place
from tenure.plan import survival, throughput
from tenure.plan.predict import Overheads
from tenure.plan.survival import Curve, Life
from tenure.plan.throughput import ColdStart, Speed, Throughput
from tenure_protocol import peaks
from tenure_protocol.records import Lifetime, Observation

NEWEST = 100  # launches of a rung: a market changes, and so does what is learnt of it
#: A machine that ended by itself so near to its known wall ended there.
AT_WALL = 0.95
UNKNOWN_SAVE_S = 10.0  # of a snapshot, until one is observed
#: Ends that are the market's doing; every other one is ours, or the job's, and censors the life.
_LOSSES = ("lost", "taken")


@dataclass(frozen=True)
class Foresight:
    """What one dispatcher knows, for the planner; ``rows`` of its observatory and of its lifetimes."""

    observed: Sequence[tuple[Place, Observation]]
    lifetimes: Sequence[tuple[Place, Lifetime]]

    # --------------------------------------------------------------------------- survival

    def lives(self, rung: str, wall_s: float | None = None) -> list[Life]:
        """How long the newest machines of a rung lasted; unclaimed ones had no life."""
        rows = [
            row
            for _, row in self.lifetimes
            if row.rung == rung and row.held_s is not None and row.held_s <= MOST_SECONDS
        ]
        return [life(row, wall_s) for row in rows[-NEWEST:]]

    def curve(self, rung: str, wall_s: float | None = None, like: Iterable[str] = ()) -> Curve:
        """The survival curve of a rung; ``like`` names rungs to borrow from while it has few ends.

        Where nobody has seen it or any of those, a loss in 20 hours is assumed.
        """
        others = [each for name in like if name != rung for each in self.lives(name)]
        prior = survival.curve(others, where="like rungs") if others else None
        mine = self.lives(rung, wall_s)
        if not mine and prior is None:
            prior = survival.exponential(survival.DEATH_PER_H / 3600.0)
        return survival.curve(mine, prior, wall_s, f"rung {rung}")

    def bands(self, rung: str, wall_s: float | None = None) -> Curve:
        """The same as rates by age, for intervals by age."""
        mine = self.lives(rung, wall_s)
        assumed = None if mine else survival.exponential(survival.DEATH_PER_H / 3600.0)
        return survival.banded(mine, assumed, wall_s, f"rung {rung}")

    # ------------------------------------------------------------------------- throughput

    def speeds(self, place: Place, work: str) -> list[Speed]:
        """What machines of one (runner, card) did of one kind of work, by their number of cards."""
        cards = self._cards()
        rows = [row for at, row in self.observed if at == place and row.work == work]
        return [
            Speed(cards.get((row.job, row.launch), 1), row.done / row.busy_s)
            for row in rows[-NEWEST:]
            if shows_speed(row)
        ]

    def law(self, place: Place, work: str) -> Throughput:
        """The throughput of a kind of work on one (runner, card), held to a cold start where there is one.

        Raises ValueError where nothing is known.
        """
        what = f"{work} on {place[1]} at {place[0]}"
        return throughput.fit(self.speeds(place, work), self.cold_start(place, work), what)

    def cold_start(self, place: Place, work: str) -> ColdStart | None:
        """By the card's datasheet and the speed that the platform, else any platform, was measured at.

        ``None`` for a card without a peak, and for work in steps: nobody says in which dtype those are.
        """
        dtype = work.removeprefix(FLOPS_OF)
        peak = peaks.known_peak(place[1], dtype) if dtype != work else None
        if peak is None:
            return None
        found = throughput.measured_share(self.shares(dtype, place[0]) or self.shares(dtype))
        if found is None:
            return throughput.cold_start(peak.flops_per_s)
        return throughput.cold_start(peak.flops_per_s, *found)

    def shares(self, dtype: str, runner: str | None = None) -> list[float]:
        """Speeds as shares of the card's peak in a dtype: of one runner's machines, or of all."""
        cards = self._cards()
        found = []
        for (at, card), row in self.observed:
            peak = peaks.known_peak(card, dtype) if row.work == f"{FLOPS_OF}{dtype}" else None
            if peak and shows_speed(row) and runner in (None, at):
                number = cards.get((row.job, row.launch), 1)
                found.append(row.done / row.busy_s / number / peak.flops_per_s)
        return found[-NEWEST:]

    def _cards(self) -> Mapping[tuple[str, int], int]:
        return {(row.job, row.launch): row.cards for _, row in self.lifetimes}

    # -------------------------------------------------------------------------- overheads

    def starts_s(self, rung: str) -> tuple[float, ...]:
        """From launch to claim, as seen on a rung; one that is assumed where none was."""
        seen = [
            row.start_s for _, row in self.observed if row.rung == rung and row.start_s is not None
        ]
        return tuple(seen[-NEWEST:]) or (UNKNOWN_START_S,)

    def load_s(self, rung: str) -> float:
        """The median from claim to first step; 0 where nobody saw one."""
        seen = [
            row.load_s for _, row in self.lifetimes if row.rung == rung and row.load_s is not None
        ]
        return median(seen[-NEWEST:]) if seen else 0.0

    def save_s(self, rung: str) -> float:
        """What a milestone costs the loop: the time outside steps over the milestones written, the median.

        An upper estimate: evaluations between two milestones are in it.
        """
        lifetimes = {(row.job, row.launch): row for _, row in self.lifetimes if row.rung == rung}
        found = []
        for _, row in self.observed:
            lifetime = lifetimes.get((row.job, row.launch))
            if lifetime is None or not lifetime.milestones or not shows_speed(row):
                continue
            idle = row.paid_s - (row.start_s or 0.0) - (lifetime.load_s or 0.0) - row.busy_s
            found.append(max(idle, 0.0) / lifetime.milestones)
        return median(found[-NEWEST:]) if found else UNKNOWN_SAVE_S

    def overheads(
        self, rung: str, interval_s: float, silence_s: float = 0.0, notice_s: float = 0.0
    ) -> Overheads:
        """All of it for one rung, with the interval that its jobs take milestones at."""
        return Overheads(
            self.starts_s(rung),
            self.load_s(rung),
            self.save_s(rung),
            interval_s,
            silence_s,
            notice_s,
        )


def life(row: Lifetime, wall_s: float | None = None) -> Life:
    """A row as a life: lost where the market took it before its wall, else right-censored.

    >>> life(Lifetime("j", 1, "r", "lost", held_s=50.0)).lost
    True
    >>> life(Lifetime("j", 1, "r", "taken", held_s=42_000.0), wall_s=43_200.0).lost
    False
    """
    age_s = row.held_s or 0.0
    walled = wall_s is not None and age_s >= AT_WALL * wall_s
    return Life(age_s, row.end in _LOSSES and not walled)


def shows_speed(row: Observation) -> bool:
    """Whether a launch has done steps enough to say how fast its machine is."""
    if row.busy_s <= 0 or row.done <= 0:
        return False
    return not row.median_step_s or row.busy_s >= LEAST_STEPS * row.median_step_s
