"""A job with a deadline on spot machines: the rules of a tick, and the policies that are simple.

Availability comes in ticks. In a tick a job is idle, on the sure (on-demand) rung, or on a machine of
one spot market, and pays for the whole tick where it runs. The restart overhead starts anew at each
start and each change of machine; progress in a tick is its length less what is left of the overhead. A
tick in which spot is gone ends that machine; what it did before is kept (a snapshot was written). With
these rules greedy and Uniform Progress come within 0.2 % of the published means (docs/spot.md).

Many windows of one trace are played at once: arrays have one entry per window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

IDLE, SURE, FIRST_MARKET = 0, 1, 2  # modes; FIRST_MARKET + j is a machine of market j
_HOUR_S = 3600.0
EPSILON_S = 1e-6  # below any tick: what is less is rounding


@dataclass(frozen=True)
class Terms:
    """What a job needs, until when, and what its rungs cost. Raises ValueError in words."""

    task_h: float
    deadline_h: float
    overhead_h: float
    on_demand_usd_per_h: float
    spot_usd_per_h: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = "above 0" if name in ("task_h", "deadline_h") else "0 or more"
            if not math.isfinite(value) or value < 0 or (least == "above 0" and value == 0):
                raise ValueError(f"{name} is {value:g}; it must be a finite number, {least}")
        short_h = self.task_h + self.overhead_h - self.deadline_h
        if short_h > 1e-9:
            raise ValueError(
                f"deadline_h is too short by {short_h:.4g} h: {self.task_h:g} h of work and one start of "
                f"{self.overhead_h:g} h do not fit into {self.deadline_h:g} h even on demand; the cheapest "
                f"relaxation is a deadline of {self.task_h + self.overhead_h:g} h"
            )

    @property
    def task_s(self) -> float:
        return self.task_h * _HOUR_S

    @property
    def deadline_s(self) -> float:
        return self.deadline_h * _HOUR_S

    @property
    def overhead_s(self) -> float:
        return self.overhead_h * _HOUR_S

    @property
    def on_demand_usd(self) -> float:
        """What the task costs on demand without any overhead: what a saving is a share of."""
        return self.task_h * self.on_demand_usd_per_h

    def ticks(self, gap_s: float) -> int:
        """How many ticks of a trace a window must have.

        >>> Terms(48, 52, 0.2, 3.06, 0.9731).ticks(600)
        312
        """
        return math.ceil(self.deadline_s / gap_s - 1e-9)


@dataclass(frozen=True)
class Market:
    """One spot market: whether a machine was there, tick by tick."""

    name: str
    gap_s: float
    there: Bools


@dataclass(frozen=True)
class View:
    """What a policy sees before a tick: the windows that still run (n of them), and the markets now.

    ``tick`` counts from the start of the trace. ``there`` has one entry per market. A machine whose
    market is gone has ended already: its windows are idle.
    """

    tick: int
    gap_s: float
    terms: Terms
    there: Bools
    elapsed_s: Floats
    work_s: Floats  # left
    mode: Ints
    overhead_s: Floats  # left of the start of the machine that runs

    @property
    def left_s(self) -> Floats:
        return self.terms.deadline_s - self.elapsed_s

    def overhead_of(self, mode: int) -> Floats:
        """What of the overhead lies before the next progress in ``mode``: none of it in idleness."""
        if mode == IDLE:
            return np.zeros_like(self.work_s)
        return np.where(self.mode == mode, self.overhead_s, self.terms.overhead_s)

    def progress_of(self, mode: int) -> Floats:
        """Work done in this tick in ``mode``."""
        if mode == IDLE:
            return np.zeros_like(self.work_s)
        rest_s = np.maximum(self.gap_s - self.overhead_of(mode), 0.0)
        return np.minimum(rest_s, self.work_s)

    def safe(self, mode: int) -> Bools:
        """Where ``mode`` in this tick cannot make the job late, whatever the markets do next.

        The sure rung always may run. Anything else may run if it finishes the work, or if after the tick
        the work left and one whole overhead still fit into the time left: the sure rung can be started
        then. By induction no job is late that could start the sure rung at its first tick.
        """
        if mode == SURE:
            return np.ones(len(self.work_s), dtype=bool)
        work_s = self.work_s - self.progress_of(mode)
        fits = work_s + self.terms.overhead_s <= self.left_s - self.gap_s + EPSILON_S
        in_time = self.overhead_of(mode) + self.work_s <= self.left_s + EPSILON_S
        return np.asarray(fits | ((work_s <= EPSILON_S) & in_time))


class Policy(Protocol):
    """Chooses the mode of each window for the tick ahead."""

    def choose(self, view: View) -> Ints: ...


@dataclass(frozen=True)
class OnDemand:
    """The sure rung from the first tick on."""

    def choose(self, view: View) -> Ints:
        return np.full(len(view.work_s), SURE, dtype=np.int64)


def must_be_sure(view: View) -> Bools:
    """Whether the next tick is too late to start the sure rung: the last moment of the simple policies."""
    return np.asarray(view.left_s - view.gap_s < view.work_s + view.terms.overhead_s - EPSILON_S)


def _stay_or_first(view: View) -> Ints:
    """The market of a window's own machine, else the first market that is there, else idleness."""
    first = FIRST_MARKET + int(np.argmax(view.there)) if view.there.any() else IDLE
    return np.where(view.mode >= FIRST_MARKET, view.mode, first).astype(np.int64)


@dataclass(frozen=True)
class Greedy:
    """Spot whenever it is there, idle else; from the last moment on the sure rung to the end."""

    def choose(self, view: View) -> Ints:
        sure = (view.mode == SURE) | must_be_sure(view)
        return np.where(sure, SURE, _stay_or_first(view)).astype(np.int64)


@dataclass(frozen=True)
class UniformProgress:
    """Keep to the straight line from no work at the start to all of it at the deadline.

    With C0 the work, R0 the time, d the overhead and t elapsed: ahead of the line (done >= t C0 / R0) spot
    or idle; behind it spot if it is there, else the sure rung; back from the sure rung only to spot, and
    only if (t + 2 d) C0 / R0 < done; from the last moment on the sure rung. Source: "Can't Be Late",
    NSDI 2024.
    """

    def choose(self, view: View) -> Ints:
        terms = view.terms
        slope = terms.task_s / terms.deadline_s
        done_s = terms.task_s - view.work_s
        spot = _stay_or_first(view)
        ahead = done_s >= view.elapsed_s * slope
        far_ahead = (view.elapsed_s + 2 * terms.overhead_s) * slope < done_s
        wanted = np.where((spot == IDLE) & ~ahead, SURE, spot)
        from_sure = np.where(far_ahead & (spot != IDLE), spot, SURE)
        mode = np.where(view.mode == SURE, from_sure, wanted)
        return np.where(must_be_sure(view), SURE, mode).astype(np.int64)


@dataclass(frozen=True)
class Played:
    """What came of each window: dollars, seconds until the work was done, and starts of a machine."""

    cost_usd: Floats
    finish_s: Floats
    moves: Ints
    terms: Terms

    @property
    def late(self) -> Bools:
        return np.asarray(self.finish_s > self.terms.deadline_s + EPSILON_S)


def replay(
    markets: Sequence[Market], starts: Sequence[int], terms: Terms, policy: Policy
) -> Played:
    """Play a policy on the windows that begin at the ticks ``starts``; all markets have one tick length.

    Raises ValueError where a window reaches beyond the shortest trace, or starts before its first tick.
    """
    gap_s = markets[0].gap_s
    there = there_of(markets)
    n, ticks = len(starts), terms.ticks(gap_s)
    begin = np.asarray(starts, dtype=np.int64)
    if n and (begin.min() < 0 or begin.max() + ticks > there.shape[1]):
        raise ValueError(f"a window of {ticks} ticks does not lie in {there.shape[1]} ticks")
    state = _State.fresh(n, terms)
    for tick in sorted({t for s in set(starts) for t in range(s, s + ticks)}):
        now = np.flatnonzero((begin <= tick) & (tick < begin + ticks) & (state.work_s > EPSILON_S))
        if len(now):
            elapsed_s = (tick - begin[now]).astype(np.float64) * gap_s
            state.step(now, elapsed_s, tick, gap_s, there[:, tick], policy)
    return Played(state.cost_usd, state.finish_s, state.moves, terms)


def there_of(markets: Sequence[Market]) -> Bools:
    """Availability of all markets, shape (markets, ticks of the shortest). ValueError for unlike ticks."""
    if len({market.gap_s for market in markets}) != 1:
        raise ValueError("the markets have ticks of different length")
    length = min(len(market.there) for market in markets)
    return np.array([market.there[:length] for market in markets], dtype=bool)


@dataclass
class _State:
    terms: Terms
    work_s: Floats
    overhead_s: Floats
    mode: Ints
    cost_usd: Floats
    finish_s: Floats
    moves: Ints

    @classmethod
    def fresh(cls, n: int, terms: Terms) -> _State:
        return cls(
            terms=terms,
            work_s=np.full(n, terms.task_s),
            overhead_s=np.zeros(n),
            mode=np.full(n, IDLE, dtype=np.int64),
            cost_usd=np.zeros(n),
            finish_s=np.full(n, math.inf),
            moves=np.zeros(n, dtype=np.int64),
        )

    def step(
        self, now: Ints, elapsed_s: Floats, tick: int, gap_s: float, there: Bools, policy: Policy
    ) -> None:
        """One tick of the windows ``now``."""
        mode = self.mode[now]
        on_spot = mode >= FIRST_MARKET
        gone = on_spot & ~there[np.maximum(mode - FIRST_MARKET, 0)]
        mode = np.where(gone, IDLE, mode)
        left_s = np.where(mode == IDLE, 0.0, self.overhead_s[now])
        view = View(tick, gap_s, self.terms, there, elapsed_s, self.work_s[now], mode, left_s)
        chosen = policy.choose(view)
        runs = chosen != IDLE
        fresh = runs & (chosen != mode)
        overhead_s = np.where(fresh, self.terms.overhead_s, left_s)
        progress_s = np.where(runs, np.minimum(np.maximum(gap_s - overhead_s, 0), view.work_s), 0.0)
        price = np.where(chosen == SURE, self.terms.on_demand_usd_per_h, self.terms.spot_usd_per_h)
        self.cost_usd[now] += np.where(runs, price * gap_s / _HOUR_S, 0.0)
        self.work_s[now] -= progress_s
        ended = runs & (self.work_s[now] <= EPSILON_S)
        self.finish_s[now[ended]] = (elapsed_s + overhead_s + progress_s)[ended]
        self.overhead_s[now] = np.where(runs, np.maximum(overhead_s - gap_s, 0.0), 0.0)
        self.mode[now] = chosen
        self.moves[now] += fresh
