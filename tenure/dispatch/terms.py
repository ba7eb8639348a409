"""What the terms of a plan say, as far as they say anything: whoever wrote the record checked it."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.plan.advise import LONGEST_H
from tenure.plan.enlist import BACKUPS


def deadline_of(enlisted_s: float, terms: Mapping[str, object]) -> float | None:
    """When a job is wanted, counted from its enlisting; what is no number is none."""
    hours = terms.get("deadline_h")
    if isinstance(hours, bool) or not isinstance(hours, (int, float)):
        return None
    return enlisted_s + 3600.0 * hours if 0 < hours <= LONGEST_H else None


def budget_of(told: object) -> dict[str, float]:
    """The budget of a plan's terms; what is no number is left out."""
    if not isinstance(told, dict):
        return {}
    return {
        str(currency): float(amount)
        for currency, amount in told.items()
        if isinstance(amount, (int, float)) and not isinstance(amount, bool)
    }


def copies_of(terms: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """By id of a backup copy its original, and why it was enlisted.

    >>> copies_of({"backups": {"b": {"of": "a", "why": "it is slow"}, "c": 7}}), copies_of({"backups": []})
    ({'b': ('a', 'it is slow')}, {})
    """
    told = terms.get(BACKUPS)
    if not isinstance(told, dict):
        return {}
    return {
        str(copy): (row["of"], str(row.get("why", "")))
        for copy, row in told.items()
        if isinstance(row, dict) and isinstance(row.get("of"), str)
    }
