"""What a plan's record says that is in no job's spec; whoever wrote it checked it, and may be newer than we are."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.plan.advise import LONGEST_H


def deadline_s(enlisted_s: float, terms: Mapping[str, object]) -> float | None:
    """When a job is wanted, counted from its enlisting; what is no number is left out, as above."""
    hours = terms.get("deadline_h")
    if isinstance(hours, bool) or not isinstance(hours, (int, float)):
        return None
    return enlisted_s + 3600.0 * hours if 0 < hours <= LONGEST_H else None


def budget(told: object) -> dict[str, float]:
    """The budget of a plan's terms; what is none is left out, as whoever wrote the record checked it."""
    if not isinstance(told, dict):
        return {}
    return {
        str(currency): float(amount)
        for currency, amount in told.items()
        if isinstance(amount, (int, float)) and not isinstance(amount, bool)
    }
