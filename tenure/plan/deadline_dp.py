"""Ours: a dynamic program over time left, work left, mode and market, solved anew as the market is learnt.

With n steps left and slack s (time left less work left, the overhead of a start that is under way counted
as work), running keeps s, an idle step costs one step of it, and a start costs one overhead. So the table
of expected cost to go is over (n, market state, mode, s), and every choice is a shift along s. The table
does not depend on when a window began: one table serves all windows of a trace until the next refit.

Choices are the table's, with two rules of ours around it. *Never late*: :meth:`View.safe` is judged before
each tick in exact seconds, whatever the table says. *Doubt*: where the table sees nearly no difference, the
choice of Uniform Progress stands; a model that is a little wrong is often sure about nothing there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tenure.plan.deadline import (
    EPSILON_S,
    FIRST_MARKET,
    IDLE,
    SURE,
    Bools,
    Floats,
    Ints,
    Market,
    Terms,
    UniformProgress,
    View,
    there_of,
)
from tenure.plan.spot_market import COARSE, FINE, Chain, History, correlation

Table = NDArray[np.float32]

REFIT_S = 8 * 3600.0
UNITS = 5  # of slack in a step: 120 s where it is 600 s, so that 720 s of overhead are whole units
MOST_SLACK_STEPS, MOST_STEPS = (
    140,
    450,
)  # of the table, so that a solution takes well under a second
DOUBT = (
    0.15  # of what a step on spot saves: a smaller difference leaves the choice to Uniform Progress
)
LATE_USD = (
    20.0  # in the table only: what a state that cannot start the sure rung in time costs beyond it
)
_HOUR_S = 3600.0
_NEVER = np.float32(1e9)


class World(Protocol):
    """The markets that a table is for: how many states, where each market is up, and one step ahead."""

    @property
    def up(self) -> Bools:
        """Shape (markets, states)."""
        ...

    def ahead(self, values: Table, out: Table) -> None:
        """Expected values after a step: ``values`` and ``out`` are (states, columns)."""
        ...


class OneMarket:
    """The world of one market, ``steps`` steps of its chain at a time."""

    def __init__(self, chain: Chain, steps: int) -> None:
        matrix = np.linalg.matrix_power(chain.matrix, steps)
        self._matrix = sparse.csr_matrix(matrix.astype(np.float32))
        self.up = (np.arange(len(matrix)) < len(matrix) // 2)[None, :]

    def ahead(self, values: Table, out: Table) -> None:
        out[:] = self._matrix @ values


class TwoMarkets:
    """The world of two: states are pairs, the first market's slower.

    Changes of the same way meet more often than by chance: with hazards g and h and correlation c both
    happen with g h + c sqrt(g (1 - g) h (1 - h)), at most min(g, h). Each chain alone stays as it is.
    """

    def __init__(self, first: Chain, second: Chain, together: float) -> None:
        self._a, self._b = (each.matrix.astype(np.float32) for each in (first, second))
        self._sizes = len(first.hazard), len(second.hazard)
        ups = [np.arange(size) < size // 2 for size in self._sizes]
        self.up = np.array(
            [np.repeat(ups[0], self._sizes[1]), np.tile(ups[1], self._sizes[0])], dtype=bool
        )
        g, h = first.hazard[:, None], second.hazard[None, :]
        same = ups[0][:, None] == ups[1][None, :]
        more = np.minimum(together * np.sqrt(g * (1 - g) * h * (1 - h)), np.minimum(g, h) - g * h)
        self._more = np.where(same, more, 0.0).astype(np.float32)[:, :, None]
        self._swing = [(c.flips - c.stays).astype(np.float32) for c in (first, second)]

    def ahead(self, values: Table, out: Table) -> None:
        m, n = self._sizes
        cube = values.reshape(m, n, -1)
        out[:] = self._both(self._a, self._b, cube).reshape(out.shape)
        if self._more.any():
            swung = self._both(self._swing[0], self._swing[1], cube)
            out += (self._more * swung).reshape(out.shape)

    def _both(self, a: Table, b: Table, cube: Table) -> Table:
        moved = np.matmul(b, cube)
        done = a @ moved.reshape(self._sizes[0], -1)
        return np.asarray(done.reshape(cube.shape))


@dataclass(frozen=True)
class Shape:
    """The table's grid: ``step_s`` a step, ``unit_s`` of slack, ``starts`` units of overhead."""

    step_s: float
    steps: int
    starts: int
    slacks: int

    @property
    def unit_s(self) -> float:
        return self.step_s / UNITS

    @classmethod
    def of(cls, terms: Terms, step_s: float) -> Shape:
        """The grid of a job; an overhead that is no whole number of units is rounded, in the table only."""
        unit_s = step_s / UNITS
        starts = round(terms.overhead_s / unit_s)
        slack = math.ceil((terms.deadline_s - terms.task_s) / unit_s)
        slacks = max(slack, UNITS + 2 * starts) + 2
        return cls(step_s, math.ceil(terms.deadline_s / step_s), starts, slacks)


def coarseness(terms: Terms, step_s: float, least: int) -> int:
    """How many of a chain's steps to put into one of the table's, so that the table stays small."""
    slack = (terms.deadline_s - terms.task_s) / step_s / MOST_SLACK_STEPS
    return max(least, math.ceil(slack - 1e-9), math.ceil(terms.deadline_s / step_s / MOST_STEPS))


def solve(world: World, shape: Shape, terms: Terms) -> Table:
    """Expected dollars to go *after* the choice of a step: (steps + 1, states, modes, slacks).

    Modes are IDLE, SURE and the markets; entry [n, k, mode, i] is for n steps left before the step, the
    market in state k during it, and i units of slack after it. A market that goes ends its machine.
    """
    markets, states = world.up.shape
    modes, size, q, d = FIRST_MARKET + markets, shape.slacks, UNITS, shape.starts
    after = np.zeros((shape.steps + 1, states, modes, size), np.float32)
    value = np.zeros((states, modes, size), np.float32)  # before the step with fewer left
    hours = shape.step_s / _HOUR_S
    sure_usd = np.float32(terms.on_demand_usd_per_h * hours)
    spot_usd = np.float32(terms.spot_usd_per_h * hours)
    paid = [np.where(up, spot_usd, _NEVER).astype(np.float32)[:, None] for up in world.up]
    short = np.arange(d)
    rate = np.float32(terms.on_demand_usd_per_h / _HOUR_S * shape.unit_s)
    # After the first step on spot what is left of its overhead is forgotten where the machine goes.
    least = d + q - max(0, q - d)
    fresh = np.empty((states, size), np.float32)  # the best choice of who runs on nothing
    for n in range(1, shape.steps + 1):
        ahead = after[n]
        world.ahead(value.reshape(states, -1), ahead.reshape(states, -1))
        ahead[:, SURE:, q * (n - 1) :] = 0  # done within this step
        runs = [ahead[:, SURE] + sure_usd]
        runs += [ahead[:, FIRST_MARKET + j] + paid[j] for j in range(markets)]
        fresh[:, d:] = runs[0][:, : size - d]
        fresh[:, :d] = rate * np.maximum(q * n - short, 0) + np.float32(LATE_USD)
        np.minimum(fresh[:, q + d :], ahead[:, IDLE, d : size - q], out=fresh[:, q + d :])
        for run in runs[1:]:
            np.minimum(fresh[:, least:], run[:, least - d : size - d], out=fresh[:, least:])
        value[:, IDLE] = fresh
        np.minimum(fresh, runs[0], out=value[:, SURE])
        for j, run in enumerate(runs[1:], FIRST_MARKET):
            value[:, j] = fresh
            safe = min(d, q * (n - 1))  # a machine that finishes now needs no slack
            np.minimum(fresh[:, safe:], run[:, safe:], out=value[:, j, safe:])
        value[:, SURE:, q * n :] = 0
    return after


@dataclass
class Plan:
    """A table and the markets it is for, in its order."""

    table: Table
    shape: Shape
    slots: tuple[int, ...]
    histories: Sequence[History]

    def to_go_usd(self, view: View, slots: Ints, mode: Ints, slack_s: Floats) -> Floats:
        """The table's value of being in slot mode ``mode`` with ``slack_s`` after this step."""
        bounds = self.table.shape
        state = np.zeros(len(slack_s), dtype=np.int64)
        for slot in range(slots.shape[1]):
            states = np.array([history.state[view.tick] for history in self.histories])
            size = self.histories[0].size
            state = state * size + states[slots[:, slot]]
        n = view.left_s / self.shape.step_s
        low = np.clip(np.floor(n + 1e-9).astype(np.int64), 1, bounds[0] - 1)
        high = np.minimum(low + 1, bounds[0] - 1)
        above = np.clip(n - low, 0.0, 1.0)
        at = np.clip(slack_s / self.shape.unit_s, 0.0, bounds[3] - 1.0)
        i = np.minimum(at.astype(np.int64), bounds[3] - 2)
        part = at - i
        ends = [
            self.table[m, state, mode, i] * (1 - part) + self.table[m, state, mode, i + 1] * part
            for m in (low, high)
        ]
        return np.asarray(ends[0] * (1 - above) + ends[1] * above)


@dataclass
class Ours:
    """The policy of the module's docstring, for one market or several.

    Of several markets the table looks at two at a time, chosen anew at every refit: those of which at
    least one was there most often lately. A window on a third market keeps it until it goes or another
    choice is cheaper, and is valued as if it were the first of the two.
    """

    markets: Sequence[Market]
    terms: Terms
    _plan: Plan | None = field(default=None, repr=False)
    _epoch: int = -1

    def __post_init__(self) -> None:
        bins = FINE if len(self.markets) == 1 else COARSE
        self._histories = [History(market, bins) for market in self.markets]
        self._there = there_of(self.markets)

    def choose(self, view: View) -> Ints:
        if self.terms.spot_usd_per_h >= self.terms.on_demand_usd_per_h:
            return np.full(len(view.work_s), SURE, dtype=np.int64)
        plan = self._planned(view)
        slots = self._slots(plan, view)
        modes = [np.full(len(view.work_s), IDLE), np.full(len(view.work_s), SURE)]
        modes += [FIRST_MARKET + slots[:, slot] for slot in range(slots.shape[1])]
        costs = np.array([self._cost_usd(plan, view, slots, i, m) for i, m in enumerate(modes)])
        preferred = _preferred(view, np.array(modes))
        saves = self.terms.on_demand_usd_per_h - self.terms.spot_usd_per_h
        costs -= preferred * DOUBT * saves * plan.shape.step_s / _HOUR_S
        best = np.argmin(costs, axis=0)
        return np.asarray(np.array(modes)[best, np.arange(len(best))], dtype=np.int64)

    def _cost_usd(self, plan: Plan, view: View, slots: Ints, slot: int, mode: Ints) -> Floats:
        """Dollars to the end if this step is spent in ``mode``; infinite where that is not to be had."""
        step_s = plan.shape.step_s
        cost = np.full(len(mode), math.inf)
        for each in np.unique(mode).tolist():
            here = mode == each
            if each >= FIRST_MARKET and not view.there[each - FIRST_MARKET]:
                continue
            ends = view.work_s - view.progress_of(each) <= EPSILON_S
            used_s = step_s if each == IDLE else view.overhead_of(each)
            slack_s = view.left_s - view.work_s - used_s
            columns = np.full(len(mode), slot, dtype=np.int64)
            to_go = np.where(
                ends & (each != IDLE), 0.0, plan.to_go_usd(view, slots, columns, slack_s)
            )
            price = (0.0, self.terms.on_demand_usd_per_h, self.terms.spot_usd_per_h)[
                min(each, FIRST_MARKET)
            ]
            usd = price * step_s / _HOUR_S + to_go
            cost = np.where(here & view.safe(each), usd, cost)
        return cost

    def _slots(self, plan: Plan, view: View) -> Ints:
        """Which market stands in which place of the table, per window."""
        slots = np.tile(np.array(plan.slots, dtype=np.int64), (len(view.work_s), 1))
        own = view.mode - FIRST_MARKET
        stranger = (own >= 0) & ~np.isin(own, plan.slots)
        if stranger.any():
            slots[stranger, 1] = slots[stranger, 0]
            slots[stranger, 0] = own[stranger]
        return slots

    def _planned(self, view: View) -> Plan:
        every = max(1, round(REFIT_S / view.gap_s))
        epoch = view.tick // every
        if self._plan is None or epoch != self._epoch:
            self._plan, self._epoch = self._fitted(epoch * every), epoch
        return self._plan

    def _fitted(self, tick: int) -> Plan:
        """The table from what the markets did before ``tick``."""
        first = self._histories[0]
        steps = coarseness(self.terms, first.step_s, 1 if len(self.markets) == 1 else 2)
        shape = Shape.of(self.terms, steps * first.step_s)
        if len(self.markets) == 1:
            world: World = OneMarket(first.chain(tick), steps)
            return Plan(solve(world, shape, self.terms), shape, (0,), self._histories)
        a, b = self._pair(tick)
        pair = self._histories[a], self._histories[b]
        together = correlation(pair[0].changes(tick), pair[1].changes(tick))
        world = TwoMarkets(pair[0].chain(tick, steps), pair[1].chain(tick, steps), together)
        return Plan(solve(world, shape, self.terms), shape, (a, b), self._histories)

    def _pair(self, tick: int) -> tuple[int, int]:
        """The two markets of which at least one was there most often lately, the better one first."""
        if len(self.markets) == 2:
            return 0, 1
        weights = self._histories[0].recency(tick)
        there = self._there[:, :tick]

        def score(pair: tuple[int, int]) -> float:
            return float(weights @ (there[pair[0]] | there[pair[1]]))

        a, b = max(itertools.combinations(range(len(self.markets)), 2), key=score)
        return (a, b) if weights @ there[a] >= weights @ there[b] else (b, a)


def _preferred(view: View, modes: Ints) -> Bools:
    """Which of the modes, per window, Uniform Progress would take: any market where it takes one."""
    wanted = UniformProgress().choose(view)
    on_spot = wanted >= FIRST_MARKET
    any_market = on_spot & (view.mode < FIRST_MARKET)
    return np.asarray(np.where(any_market, modes >= FIRST_MARKET, modes == wanted))
