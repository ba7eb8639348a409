"""Bursts of calls in virtual time: machines, schedulers with old views, and who waits for how long.

Pure and seeded. A machine takes a call only while it has room for one more, running or in its own queue;
schedulers see its load as it was when it was last gathered (:mod:`tenure.queue.bursts`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from tenure.errors import UsageError
from tenure.queue.bursts import Load, View, send


@dataclass(frozen=True)
class Burst:
    """What comes, and onto what."""

    calls: int
    machines: int
    cores: int  # of one machine
    lasts_s: float = 1.0  # one call, on one core
    within_s: float = 0.0  # the calls come evenly within this time; 0: all at once
    room: int | None = (
        None  # calls that a machine admits, running and queued; None: twice its cores
    )
    schedulers: int = 1  # the calls go round them
    gathered_every_s: float = 1.0  # how old a view gets
    k: int = 2
    corrects: bool = True  # whether a scheduler counts what it has placed since

    def __post_init__(self) -> None:
        counts = (self.calls, self.machines, self.cores, self.schedulers, self.k)
        if min(counts) < 1 or min(self.lasts_s, self.gathered_every_s) <= 0 or self.within_s < 0:
            raise UsageError("a burst needs at least one call, machine, core, scheduler and choice")


@dataclass(frozen=True)
class Played:
    """What became of a burst."""

    waits_s: tuple[float, ...]  # from a call's arrival to its first second on a core
    done_s: float
    refusals: int  # times that a machine said no
    held: int  # times that a call found room nowhere and waited with its scheduler
    most: int  # calls on one machine at once, running and queued

    @property
    def mean_wait_s(self) -> float:
        """Of all calls."""
        return sum(self.waits_s) / len(self.waits_s)

    def wait_s(self, share: float) -> float:
        """The wait that ``share`` of the calls do not exceed."""
        ranked = sorted(self.waits_s)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


_Kind = Literal["end", "gather", "call"]
_TURN: dict[_Kind, int] = {"end": 0, "gather": 1, "call": 2}  # at one time, in this order


@dataclass
class _Host:
    """One machine: it admits what it has room for and runs one call a core."""

    cores: int
    room: int
    running: int = 0
    queue: deque[int] = field(default_factory=deque)

    @property
    def aboard(self) -> int:
        return self.running + len(self.queue)


class _Play:
    def __init__(self, burst: Burst, seed: int) -> None:
        self.burst, self.draw = burst, Random(seed)
        room = burst.room or 2 * burst.cores
        self.hosts = {f"m{n:04d}": _Host(burst.cores, room) for n in range(burst.machines)}
        self.views = [View() for _ in range(burst.schedulers)]
        self.held: list[deque[int]] = [deque() for _ in self.views]
        self.arrived_s = [n * burst.within_s / burst.calls for n in range(burst.calls)]
        self.begun_s: dict[int, float] = {}
        self.events: list[tuple[float, int, int, _Kind, str]] = []
        self.refusals = self.holds = self.most = self.ended = 0
        self.now_s = 0.0

    def at(self, when_s: float, kind: _Kind, call: int = 0, host: str = "") -> None:
        heapq.heappush(self.events, (when_s, _TURN[kind], call, kind, host))

    def play(self) -> Played:
        self.at(0.0, "gather")
        for call, when_s in enumerate(self.arrived_s):
            self.at(when_s, "call", call)
        while self.ended < self.burst.calls:
            self.now_s, _, call, kind, host = heapq.heappop(self.events)
            if kind == "call":
                self.place(call)
            elif kind == "end":
                self.end(host)
            else:
                self.gather()
        waits = tuple(self.begun_s[n] - self.arrived_s[n] for n in range(self.burst.calls))
        return Played(waits, self.now_s, self.refusals, self.holds, self.most)

    def gather(self) -> None:
        loads = {name: Load(host.aboard, host.room) for name, host in self.hosts.items()}
        self.at(self.now_s + self.burst.gathered_every_s, "gather")
        for view, held in zip(self.views, self.held, strict=True):
            view.own, view.full = {}, {}  # all of it was before this moment
            view.gathered(loads, self.now_s)
            for _ in range(len(held)):
                self.place(held.popleft())

    def place(self, call: int) -> None:
        n = call % len(self.views)
        sent = send(self.views[n], 1, self.burst.k, self.draw, self.now_s, self.admits)
        self.refusals += len(sent.refusals)
        if not self.burst.corrects:
            self.views[n].own.clear()
        if sent.machine is None:
            self.holds += 1
            self.held[n].append(call)
            return
        host = self.hosts[sent.machine]
        host.queue.append(call)
        self.most = max(self.most, host.aboard)
        self.start(sent.machine)

    def admits(self, name: str, amount: float) -> bool:
        host = self.hosts[name]
        return host.aboard + amount <= host.room

    def start(self, name: str) -> None:
        host = self.hosts[name]
        while host.queue and host.running < host.cores:
            call = host.queue.popleft()
            host.running += 1
            self.begun_s[call] = self.now_s
            self.at(self.now_s + self.burst.lasts_s, "end", call, name)

    def end(self, name: str) -> None:
        self.hosts[name].running -= 1
        self.ended += 1
        self.start(name)


def play(burst: Burst, seed: int) -> Played:
    """One burst; the same seed gives the same.

    >>> played = play(Burst(calls=80, machines=1, cores=48), seed=0)
    >>> played.mean_wait_s, played.done_s
    (0.4, 2.0)
    """
    return _Play(burst, seed).play()


def compare(burst: Burst, ks: Sequence[int], seeds: Sequence[int]) -> dict[int, list[Played]]:
    """The same bursts by each number of choices."""
    return {k: [play(replace(burst, k=k), seed) for seed in seeds] for k in ks}
