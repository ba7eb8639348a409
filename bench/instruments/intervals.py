"""How sure a measured number is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % bootstrap interval."""

    middle: float
    low: float
    high: float

    def words(self, digits: int) -> str:
        """The number and the interval for people."""
        return f"{self.middle:.{digits}f} (95 %: {self.low:.{digits}f} to {self.high:.{digits}f})"

    def numbers(self, name: str) -> dict[str, float]:
        """The same for JSON."""
        return {name: self.middle, f"{name}_low": self.low, f"{name}_high": self.high}


def median_of(ratios: Values) -> Values:
    """The median of each row."""
    return np.asarray(np.median(ratios, axis=-1))


def mean_of(values: Values) -> Values:
    """The mean of each row."""
    return np.asarray(values.mean(axis=-1))


def bootstrap(
    samples: Sequence[float] | Values,
    statistic: Callable[[Values], Values],
    rounds: int = 2000,
) -> Interval:
    """``statistic`` of the samples, and its percentile interval over redrawn samples.

    The seed is fixed: the same samples give the same interval. Efron and Tibshirani, *An
    Introduction to the Bootstrap*, chapter 13.
    """
    values = np.asarray(samples, dtype=np.float64)
    rng = np.random.default_rng(0)
    drawn = statistic(values[rng.integers(0, len(values), (rounds, len(values)))])
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(statistic(values)), float(low), float(high))


def bootstrap_share(
    parts: Sequence[float], wholes: Sequence[float], rounds: int = 2000
) -> Interval:
    """The ratio of two sums over pairs, and its interval over redrawn pairs."""
    above, below = np.asarray(parts), np.asarray(wholes)
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(above), (rounds, len(above)))
    drawn = above[rows].sum(axis=-1) / below[rows].sum(axis=-1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(above.sum() / below.sum()), float(low), float(high))


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of all lie."""
    return float(np.quantile(np.asarray(values), share))
