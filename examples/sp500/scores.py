"""QLIKE, and how sure a difference of two of them is."""

from __future__ import annotations

import numpy as np

from examples.sp500.data import Floats

BLOCK_DAYS = 20
BOOTSTRAP_DRAWS = 2_000
BOOTSTRAP_SEED = 20_110_103


def qlike(actual_log_variance: Floats, forecast_log_variance: Floats) -> Floats:
    """QLIKE of every day: ``r - ln r - 1`` with ``r = actual / forecast`` variance; 0 is perfect.

    The loss that stays honest when the variance is only seen through a noisy proxy such as a range
    (Patton 2011, https://doi.org/10.1016/j.jeconom.2010.03.034).

    >>> qlike(np.array([0.0]), np.array([0.0]))
    array([0.])
    """
    log_ratio = actual_log_variance - forecast_log_variance
    return np.asarray(np.exp(log_ratio) - log_ratio - 1.0, dtype=np.float64)


def block_bootstrap_t(gains: Floats) -> float:
    """Mean of the daily ``gains`` over its standard error from a circular block bootstrap.

    Losses of neighbouring days are alike, so days are drawn in runs of 20 (Politis and Romano 1992).
    The seed is fixed: the same losses always give the same verdict. 0 if nothing varies.

    >>> bool(block_bootstrap_t(np.sin(np.arange(400.0)) + 0.5) > 2)
    True
    """
    days = len(gains)
    if days < 2 * BLOCK_DAYS:
        raise ValueError(f"{days} days are too few for blocks of {BLOCK_DAYS}: need two blocks")
    blocks = -(-days // BLOCK_DAYS)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    starts = rng.integers(0, days, size=(BOOTSTRAP_DRAWS, blocks))
    drawn = (starts[:, :, None] + np.arange(BLOCK_DAYS)).reshape(BOOTSTRAP_DRAWS, -1)[:, :days]
    error = float(gains[drawn % days].mean(axis=1).std(ddof=1))
    return float(gains.mean()) / error if error > 0 else 0.0
