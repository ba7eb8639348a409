"""A spot market of known law: semi-Markov, with up-times that are not memoryless and a level that drifts."""

from __future__ import annotations

import numpy as np

from tenure.plan.deadline import Market


def semi_markov(
    seed: int, ticks: int, up_h: float, down_h: float, gap_s: float = 600.0, name: str = "made"
) -> Market:
    """Up- and down-times are Weibull of shape 0.6, so that the young die first; means in hours.

    Every two days the mean up-time is multiplied by a factor between 1/3 and 3.
    """
    rng = np.random.default_rng(seed)
    there: list[bool] = []
    up, factor, season = bool(rng.integers(2)), 1.0, -1
    while len(there) < ticks:
        now = int(len(there) * gap_s // (48 * 3600))
        if now != season:
            season, factor = now, float(np.exp(rng.uniform(-np.log(3), np.log(3))))
        mean_s = 3600 * (up_h * factor if up else down_h)
        lasts = max(1, round(mean_s * rng.weibull(0.6) / 1.505 / gap_s))
        there += [up] * lasts
        up = not up
    return Market(name, gap_s, np.array(there[:ticks], dtype=bool))
