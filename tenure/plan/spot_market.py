"""How long spot machines of a market last, learnt from the market's own history up to now.

A market is up or down; how soon that changes depends on how long it has been so (its *age*; up-times are
not memoryless) and on its *level*, the mean availability of the last days with old ticks weighing less
(half as much a day later). Both are cut into a few bins, which makes the market a Markov chain: what a
dynamic program needs. Hazards are counts of changes per step, shrunk towards what six markets showed in
2023 (:data:`EXPOSURE`, :data:`CHANGES`) as far as the market's own history is short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenure.plan.deadline import Bools, Floats, Ints, Market

STEP_S = 600.0  # the step that the prior's counts are for
LEVEL_HALF_LIFE_S = 24 * 3600.0
FIRST_LEVEL = 0.6  # before the first tick

#: Of the prior, per side (up, down), age and level: steps seen there, and how many ended in a change. From
#: the six one-machine series of February 2023, every third tick of 195 s; `python bench/spot.py --prior`.
AGES_S = (600.0, 1200.0, 2400.0, 4800.0, 10800.0, 28800.0)  # upper ends; the last bin is open
LEVELS = (0.15, 0.4, 0.65, 0.88)
EXPOSURE = (
    (
        (82, 464, 372, 283, 119),
        (47, 324, 282, 230, 93),
        (57, 405, 431, 362, 149),
        (40, 431, 633, 547, 251),
        (17, 460, 983, 982, 546),
        (2, 321, 1480, 1633, 1250),
        (0, 14, 484, 2255, 7844),
    ),
    (
        (71, 452, 355, 303, 138),
        (52, 327, 267, 236, 98),
        (64, 533, 395, 310, 84),
        (117, 816, 586, 383, 93),
        (228, 1433, 947, 464, 60),
        (522, 1858, 1155, 178, 3),
        (2354, 1270, 287, 2, 0),
    ),
)
CHANGES = (
    (
        (33, 139, 88, 58, 26),
        (9, 99, 49, 39, 16),
        (16, 92, 56, 41, 12),
        (9, 65, 43, 38, 8),
        (3, 35, 49, 45, 13),
        (1, 20, 40, 49, 18),
        (0, 0, 20, 40, 46),
    ),
    (
        (19, 125, 90, 73, 32),
        (17, 49, 59, 60, 49),
        (6, 52, 47, 57, 13),
        (5, 51, 48, 41, 14),
        (11, 77, 61, 34, 10),
        (6, 70, 54, 14, 1),
        (25, 35, 12, 1, 0),
    ),
)

# Chosen on the 2023 series cut into 24 pieces (docs/spot.md); the result moves little with any of them.
_SMOOTH_STEPS = (
    30.0  # steps that the product of an age's and a level's hazard counts for in the prior
)
_OWN_CHANGES = 5.0  # changes that the prior counts for beside the market's own, per age
_OWN_AGE_CHANGES = 3.0  # the same for the hazards without levels
_LEVELLED_SHARE = 0.25  # weight of the hazards with levels in the geometric mean of the two
_DOUBT_CHANGES = 10.0  # of the correlation of two markets
_LEAST, _MOST = 1e-4, 0.95  # of a hazard per step


@dataclass(frozen=True)
class Bins:
    """How finely ages and levels are cut: upper ends of all bins but the last, from those of the prior."""

    ages_s: tuple[float, ...] = AGES_S
    levels: tuple[float, ...] = LEVELS

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sides (up first), ages, levels."""
        return 2, len(self.ages_s) + 1, len(self.levels) + 1

    @property
    def states(self) -> int:
        return math.prod(self.shape)

    def prior(self) -> Floats:
        """Hazards per :data:`STEP_S` of the prior in these bins, of :attr:`shape`."""
        steps = self._merged(np.asarray(EXPOSURE, dtype=float))
        changes = self._merged(np.asarray(CHANGES, dtype=float))
        by_age = changes.sum(2, keepdims=True) / steps.sum(2, keepdims=True)
        by_level = changes.sum(1, keepdims=True) / (steps * by_age).sum(1, keepdims=True)
        product = np.clip(by_age * by_level, _LEAST, 0.9)
        return np.asarray((changes + _SMOOTH_STEPS * product) / (steps + _SMOOTH_STEPS))

    def _merged(self, counts: Floats) -> Floats:
        age = np.searchsorted(self.ages_s, (*AGES_S, math.inf))
        level = np.searchsorted(self.levels, (*LEVELS, 1.0))
        merged = np.zeros(self.shape)
        for i, j in enumerate(age):
            for k, m in enumerate(level):
                merged[:, j, m] += counts[:, i, k]
        return merged


FINE = Bins()
COARSE = Bins((1200.0, 10800.0), (0.4, 0.88))  # where the chains of two markets are multiplied


@dataclass(frozen=True)
class Chain:
    """A market as a Markov chain over states (side, age, level), up ones first.

    ``hazard``, shape (states,), is the chance of a change per step; ``stays`` and ``flips``, shape
    (states, states), where the state goes given that there was none, or one.
    """

    hazard: Floats
    stays: Floats
    flips: Floats

    @property
    def matrix(self) -> Floats:
        """Transitions of one step; rows sum to 1."""
        hazard = self.hazard[:, None]
        return np.asarray((1 - hazard) * self.stays + hazard * self.flips)


class History:
    """A market's past in bins. Nothing after a tick is used for what is asked at that tick.

    ``step_s`` is the step that hazards are counted in: whole ticks, near :data:`STEP_S`.
    """

    def __init__(self, market: Market, bins: Bins) -> None:
        self._there = market.there
        self._bins = bins
        gap_s = market.gap_s
        self.every = max(1, round(STEP_S / gap_s))  # ticks in a step
        self.step_s = self.every * gap_s
        age_s = _ages(market.there) * gap_s
        keep = 0.5 ** (gap_s / LEVEL_HALF_LIFE_S)
        self.level = _levels(market.there, keep)
        age = np.searchsorted(bins.ages_s, age_s - 0.5 * min(gap_s, STEP_S), side="left")
        level = np.searchsorted(bins.levels, self.level)
        side = np.where(market.there, 0, 1)
        self.state: Ints = np.ravel_multi_index((side, age, level), bins.shape)
        self._prior = 1 - (1 - bins.prior()) ** (self.step_s / STEP_S)

    @property
    def size(self) -> int:
        """How many states the chain has."""
        return self._bins.states

    def chain(self, tick: int, steps: int = 1) -> Chain:
        """The market as it has been in the ticks before ``tick``; ``steps`` of its steps are one."""
        stays, flips = _moves(self._bins, self.step_s * steps)
        return Chain(1 - (1 - self._hazards(tick).ravel()) ** steps, stays, flips)

    def recency(self, tick: int) -> Floats:
        """Weights of the ticks before ``tick``: half as much a half-life earlier."""
        ago_s = np.arange(tick, 0, -1) * (self.step_s / self.every)
        return np.asarray(0.5 ** (ago_s / LEVEL_HALF_LIFE_S))

    def changes(self, tick: int) -> NDArray[np.int8]:
        """Per step before ``tick``: 1 where the market came up, -1 where it went, else 0."""
        there = self._there[: tick : self.every]
        changed = there[1:] != there[:-1]
        return np.where(changed, np.where(there[1:], 1, -1), 0).astype(np.int8)

    def _hazards(self, tick: int) -> Floats:
        """Shape of the bins. The geometric mean of two estimates, with levels and without.

        With: the prior's hazards, all levels of an age times (changes seen + c) / (changes foretold + c).
        Without: changes over steps of an age, shrunk to the prior's profile over ages at the side's rate.
        """
        shape, prior = self._bins.shape, self._prior
        there, state = self._there[: tick : self.every], self.state[: tick : self.every]
        size, changed = self._bins.states, there[1:] != there[:-1]
        steps = np.bincount(state[:-1], minlength=size).reshape(shape)
        changes = np.bincount(state[:-1], weights=changed, minlength=size).reshape(shape)
        seen, foretold = changes.sum(2), (steps * prior).sum(2)
        levelled = prior * ((seen + _OWN_CHANGES) / (foretold + _OWN_CHANGES))[:, :, None]
        profile, spent = prior.mean(2), steps.sum(2)
        rate = (seen.sum(1) + _OWN_CHANGES) / ((spent * profile).sum(1) + _OWN_CHANGES)
        expected = profile * rate[:, None]
        plain = (seen + _OWN_AGE_CHANGES) / (spent + _OWN_AGE_CHANGES / expected)
        mean = levelled**_LEVELLED_SHARE * plain[:, :, None] ** (1 - _LEVELLED_SHARE)
        return np.asarray(np.clip(mean, _LEAST, _MOST))


def _ages(there: Bools) -> Ints:
    """How many ticks each tick's side has lasted, itself included.

    >>> _ages(np.array([True, True, False, True])).tolist()
    [1, 2, 1, 1]
    """
    index = np.arange(len(there))
    begins = np.concatenate(([True], there[1:] != there[:-1]))
    return np.asarray(index - np.maximum.accumulate(np.where(begins, index, 0)) + 1)


def _levels(there: Bools, keep: float) -> Floats:
    """The exponentially weighted mean availability up to each tick, itself included."""
    level, levels = FIRST_LEVEL, np.empty(len(there))
    for i, up in enumerate(there.tolist()):
        level = keep * level + (1 - keep) * up
        levels[i] = level
    return levels


def _moves(bins: Bins, step_s: float) -> tuple[Floats, Floats]:
    """Where a state goes in a step without a change of side and with one; two matrices, rows sum to 1.

    A bin is left at the pace at which its middle moves: of an age bin one width takes width / step_s
    steps, and the level moves towards 1 while up, and towards 0 while down.
    """
    _, ages, levels = bins.shape
    starts = (0.0, *bins.ages_s[:-1])
    on = [min(1.0, step_s / (end - start)) for start, end in zip(starts, bins.ages_s, strict=True)]
    ageing = np.zeros((ages, ages))
    for i, share in enumerate((*on, 0.0)):
        ageing[i, i] += 1 - share
        ageing[i, min(i + 1, ages - 1)] += share
    young = np.zeros((ages, ages))
    young[:, 0] = 1.0
    pace = 1 - 0.5 ** (step_s / LEVEL_HALF_LIFE_S)
    drift = [_drift(bins.levels, pace, towards) for towards in (1, 0)]  # of a tick up, and down
    half = ages * levels
    stays, flips = np.zeros((2 * half, 2 * half)), np.zeros((2 * half, 2 * half))
    for side in (0, 1):
        here = slice(side * half, (side + 1) * half)
        other = slice((1 - side) * half, (2 - side) * half)
        stays[here, here] = np.kron(ageing, drift[side])
        flips[here, other] = np.kron(young, drift[1 - side])
    return stays, flips


def _drift(levels: Sequence[float], pace: float, towards: int) -> Floats:
    """How the level's bin moves in one step.

    >>> _drift((0.5,), 0.1, 1).round(2).tolist()
    [[0.85, 0.15], [0.0, 1.0]]
    """
    edges = np.array([0.0, *levels, 1.0])
    n = len(edges) - 1
    moved = np.eye(n)
    for i in range(n):
        middle, width = (edges[i] + edges[i + 1]) / 2, edges[i + 1] - edges[i]
        to = i + 1 if towards else i - 1
        if 0 <= to < n:
            share = min(1.0, pace * abs(towards - middle) / width)
            moved[i, i], moved[i, to] = 1 - share, share
    return moved


def correlation(first: Ints | NDArray[np.int8], second: Ints | NDArray[np.int8]) -> float:
    """How often two markets change the same way in the same step beyond chance, per change of either, in [0, 1].

    Of two that are one it is 1 less what chance alone would show. Ten changes of doubt are added, so that a
    chance meeting in a short history counts for little.

    >>> ups = np.array([0, 1, 0, -1] * 50)
    >>> round(correlation(ups, ups), 2), correlation(ups, np.roll(ups, 1))
    (0.68, 0.0)
    """
    together = float(((first == second) & (first != 0)).sum())
    count = float((first != 0).sum()), float((second != 0).sum())
    # Changes of the same way, were they independent: half of those that meet.
    chance = count[0] * count[1] / (2 * max(1, len(first)))
    scale = math.sqrt(count[0] * count[1]) + _DOUBT_CHANGES
    return min(1.0, max(0.0, (together - chance) / scale))
