"""Traces of spot markets, and the windows to play on them: JSON that somebody wrote, refused in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tenure.bad_input import did_you_mean, shown
from tenure.errors import UsageError
from tenure.plan.deadline import Market
from tenure.plan.traces import read_counts, read_json

WINDOWS = 100
_MOST_GAP_S = 86_400.0


def read_trace(file: Path) -> Market:
    """A trace ``{"metadata": {"gap_seconds": s}, "data": [instances per tick]}``; its name is the file's stem."""
    gap_s, counts = read_counts(file)
    if gap_s > _MOST_GAP_S:
        raise UsageError(
            f"{file}: metadata.gap_seconds is {shown(gap_s)}; give the length of a tick in seconds, "
            f"more than 0 and at most {_MOST_GAP_S:g}"
        )
    return Market(file.stem, gap_s, np.array([count > 0 for count in counts], dtype=bool))


def read_windows(file: Path, names: Sequence[str]) -> dict[str, list[int]]:
    """The start ticks of each series named in a windows file ``{"series": [tick, ...]}``."""
    whole = read_json(file, "windows file")
    if not isinstance(whole, dict):
        raise UsageError(f"{file}: a windows file maps the name of a series to its start ticks")
    starts: dict[str, list[int]] = {}
    for name in names:
        if name not in whole:
            raise UsageError(
                f"{file}: there are no windows for the series {name!r}; "
                + did_you_mean(name, map(str, whole))
            )
        ticks = whole[name]
        good = isinstance(ticks, list) and all(
            isinstance(tick, int) and not isinstance(tick, bool) and tick >= 0 for tick in ticks
        )
        if not good or not ticks:
            raise UsageError(
                f"{file}: {name}: {shown(ticks)} is no list of start ticks, whole numbers from 0 on"
            )
        starts[name] = list(ticks)
    return starts


def check_windows(name: str, starts: Sequence[int], ticks: int, length: int) -> None:
    """UsageError where a window of ``ticks`` reaches beyond a trace of ``length``."""
    last = max(starts)
    if last + ticks > length:
        raise UsageError(
            f"{name}: the window that starts at tick {last} needs {ticks} ticks and the trace has "
            f"{length}; start at tick {max(0, length - ticks)} at the latest, or shorten --deadline-h"
        )


def even_starts(length: int, ticks: int) -> list[int]:
    """100 starts evenly spaced over those that leave ``ticks`` in a trace of ``length``, both ends in it.

    >>> starts = even_starts(1000, 10)
    >>> len(starts), starts[:3], starts[-1]
    (100, [0, 10, 20], 990)
    """
    last = length - ticks
    return [round(i * last / (WINDOWS - 1)) for i in range(WINDOWS)]


def common_starts(windows: Mapping[str, list[int]], file: Path) -> list[int]:
    """The starts of several markets of one job, in the first's order; UsageError where none is common."""
    first, *others = windows.values()
    common = [tick for tick in first if all(tick in other for other in others)]
    if not common:
        raise UsageError(f"{file}: the series have no start tick in common; give them some")
    return common
