"""How fast something grows with its size."""

from __future__ import annotations

import math
from collections.abc import Sequence


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the size that values grow with: the slope of a line through their logarithms.

    1 is linear, and what has a fixed part grows slower than the rest of it. At least two sizes.

    >>> round(exponent([100, 1_000, 10_000], [2.0, 20.0, 200.0]), 3)
    1.0
    >>> round(exponent([100, 1_000, 10_000], [1.0, 100.0, 10_000.0]), 3)
    2.0
    """
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)
