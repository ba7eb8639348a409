"""Traces that somebody recorded: JSON, refused in one sentence where it is none of a spot market."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tenure.bad_input import read_text, shown
from tenure.errors import UsageError


def read_json(file: Path, what: str) -> object:
    """What a file holds. Raises UsageError; ``what`` names it."""
    try:
        whole: object = json.loads(read_text(file, what))
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{file}:{error.lineno}: this is no JSON ({error.msg}); export the {what} again"
        ) from None
    except RecursionError:
        raise UsageError(f"{file}: its JSON is nested too deeply for a {what}") from None
    return whole


def read_counts(file: Path) -> tuple[float, list[float]]:
    """The length of a tick in seconds, above 0, and how many machines there were in each, 0 or more.

    Of ``{"metadata": {"gap_seconds": s}, "data": [instances per tick]}``. Raises UsageError.
    """
    whole = read_json(file, "trace")
    if not isinstance(whole, dict) or not isinstance(whole.get("metadata"), dict):
        raise UsageError(
            f"{file}: a trace is an object with the keys metadata and data; export it so"
        )
    gap_s, data = whole["metadata"].get("gap_seconds"), whole.get("data")
    if not _is_number(gap_s) or gap_s <= 0:
        raise UsageError(
            f"{file}: metadata.gap_seconds is {shown(gap_s)}; it must be the seconds of a tick, above 0"
        )
    if not isinstance(data, list) or not data:
        raise UsageError(
            f"{file}: data is missing or empty, or data is no list of counts; give the instances of each tick"
        )
    for tick, count in enumerate(data):
        if count is None:
            raise UsageError(
                f"{file}: data has a gap at tick {tick}; fill it in or cut the trace there"
            )
        if not _is_number(count) or count < 0:
            raise bad_count(file, tick, count)
    return float(gap_s), data


def bad_count(file: Path, tick: int, count: object) -> UsageError:
    """What is wrong with the count of one tick."""
    return UsageError(
        f"{file}: data[{tick}] is {shown(count)}; instances are a whole number, 0 or more"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
