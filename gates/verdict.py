"""What a gate says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Answer = Literal["PASS", "BLOCK", "NOT_ENOUGH_SEEDS"]

_SHOWN_PROBLEMS = 3


@dataclass(frozen=True)
class Verdict:
    """One gate's answer, the sentence for a person, and the numbers it was made from."""

    gate: str
    verdict: Answer
    reason: str
    numbers: dict[str, float | str] = field(default_factory=dict)


def deployable(verdicts: Iterable[Verdict]) -> bool:
    """Whether every gate passed; no gate at all proves nothing.

    >>> deployable([])
    False
    >>> deployable([Verdict("score", "PASS", "0.5 of at least 0.4")])
    True
    """
    found = list(verdicts)
    return bool(found) and all(item.verdict == "PASS" for item in found)


def judged(
    gate: str,
    problems: Sequence[str],
    passed: str,
    numbers: Mapping[str, float | str] | None = None,
) -> Verdict:
    """BLOCK with the problems (the first three in words), or PASS with ``passed``.

    >>> judged("score", ["a", "b", "c", "d"], "").reason
    'a; b; c; and 1 more'
    """
    if not problems:
        return Verdict(gate, "PASS", passed, dict(numbers or {}))
    distinct = list(dict.fromkeys(problems))
    more = len(distinct) - _SHOWN_PROBLEMS
    shown = distinct[:_SHOWN_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    return Verdict(gate, "BLOCK", "; ".join(shown), dict(numbers or {}))
