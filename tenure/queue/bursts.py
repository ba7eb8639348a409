"""Bursts of short calls over many machines: power-of-k choices over a view that is always a little old.

Pure; entropy is an argument. Section 11.3.2 of the chapter on resources is what this answers. What a
scheduler knows of the machines' load is gathered now and then, so if it always took the least loaded one,
a burst would rush to a single machine. Three measures against that: each call looks at ``k`` machines
drawn at random and takes the least loaded of them (power of k choices, Mitzenmacher 2001); the view is
corrected by what this scheduler has placed since it was gathered; and the machine itself has the last
word, which is why no scheduler needs to be right.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tenure.errors import UsageError


@dataclass(frozen=True)
class Served:
    """When each call began and ended, in the order of the calls."""

    begun_s: tuple[float, ...]
    ended_s: tuple[float, ...]
    waited_s: tuple[float, ...]

    @property
    def mean_wait_s(self) -> float:
        """0 where there was no call."""
        return sum(self.waited_s) / len(self.waited_s) if self.waited_s else 0.0

    @property
    def done_s(self) -> float:
        """When the last one had ended."""
        return max(self.ended_s, default=0.0)


def serve(arrive_s: Sequence[float], lasts_s: Sequence[float], cores: int) -> Served:
    """Calls on ``cores`` cores, first come first served, one core each.

    The total of the work says how long the cores are busy; when the calls come says how long they wait.

    >>> serve([0.0] * 80, [1.0] * 80, 48).mean_wait_s
    0.4
    """
    if cores < 1:
        raise UsageError(f"{cores} cores serve nobody; give at least 1")
    if len(arrive_s) != len(lasts_s):
        raise UsageError(f"{len(arrive_s)} calls arrive and {len(lasts_s)} lengths are given")
    free_s = [0.0] * cores
    begun: dict[int, float] = {}
    for n in sorted(range(len(arrive_s)), key=lambda n: (arrive_s[n], n)):
        begun[n] = max(arrive_s[n], heapq.heappop(free_s))
        heapq.heappush(free_s, begun[n] + lasts_s[n])
    order = range(len(arrive_s))
    return Served(
        tuple(begun[n] for n in order),
        tuple(begun[n] + lasts_s[n] for n in order),
        tuple(begun[n] - arrive_s[n] for n in order),
    )


@dataclass(frozen=True)
class Load:
    """What one machine has taken on, of what it can: in whatever unit its room is counted."""

    taken: float
    room: float

    @property
    def share(self) -> float:
        """
        >>> Load(3, 4).share, Load(1, 0).share
        (0.75, inf)
        """
        return self.taken / self.room if self.room > 0 else float("inf")


@dataclass
class View:
    """One scheduler's sight of the machines: as gathered at ``at_s``, and what it has done since.

    Everything in it may be lost or made anew at any time: the machines' own admission keeps the limits.
    """

    loads: Mapping[str, Load] = field(default_factory=dict)  # by name, in its order
    at_s: float = float("-inf")
    own: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # (placed at, amount)
    full: dict[str, float] = field(default_factory=dict)  # machine: when it refused

    def gathered(self, loads: Mapping[str, Load], at_s: float) -> None:
        """A newer sight, true at ``at_s``: what was placed or refused before is in it."""
        if at_s < self.at_s:
            return  # two aggregators; an older sight teaches nothing
        self.loads, self.at_s = {name: loads[name] for name in sorted(loads)}, at_s
        self.own = {
            name: left
            for name, rows in self.own.items()
            if (left := [row for row in rows if row[0] >= at_s])
        }
        self.full = {name: when_s for name, when_s in self.full.items() if when_s >= at_s}

    def placed(self, machine: str, amount: float, now_s: float) -> None:
        """This scheduler has just given a machine so much more."""
        self.own.setdefault(machine, []).append((now_s, amount))

    def refused(self, machine: str, now_s: float) -> None:
        """The machine itself has just said that it has no room."""
        self.full[machine] = now_s

    def load(self, machine: str) -> Load:
        """As gathered, with what this scheduler has placed since."""
        seen = self.loads[machine]
        return Load(seen.taken + sum(amount for _, amount in self.own.get(machine, ())), seen.room)

    def choose(self, k: int, draw: Random) -> str | None:
        """The least loaded of ``k`` machines drawn among those that have not refused since the view.

        ``None`` once all have. Ties go to the first drawn, so equal machines share by chance.

        >>> view = View()
        >>> view.gathered({"a": Load(0, 4), "b": Load(3, 4)}, 0.0)
        >>> view.choose(2, Random(0))
        'a'
        >>> view.placed("a", 4, 1.0)
        >>> view.choose(2, Random(0))
        'b'
        """
        open_ones = [name for name in self.loads if name not in self.full]
        if not open_ones:
            return None
        drawn = draw.sample(open_ones, min(max(1, k), len(open_ones)))
        return min(drawn, key=lambda name: self.load(name).share)


@dataclass(frozen=True)
class Sent:
    """Where a call went, and who had refused it before."""

    machine: str | None  # None: every machine has refused, so there is room nowhere
    refusals: tuple[str, ...] = ()


def send(
    view: View,
    amount: float,
    k: int,
    draw: Random,
    now_s: float,
    admits: Callable[[str, float], bool],
) -> Sent:
    """Find a machine that admits a call, asking at most each of them once.

    Work conserving: it comes back without a machine only when every one has refused since the view was
    gathered. ``admits(machine, amount)`` is the machine's own answer, which alone keeps it within its
    room.
    """
    refusals: list[str] = []
    while (name := view.choose(k, draw)) is not None:
        if admits(name, amount):
            view.placed(name, amount, now_s)
            return Sent(name, tuple(refusals))
        view.refused(name, now_s)
        refusals.append(name)
    return Sent(None, tuple(refusals))
