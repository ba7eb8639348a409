"""How long something that has run for a while still takes (11.3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Scenario, Seconds, brief


@dataclass(frozen=True)
class LongTail(Answer):
    """What is to be expected."""

    expected_remaining_s: float | None  # None: nothing that was measured took so long

    @property
    def words(self) -> str:
        """That, in words."""
        if self.expected_remaining_s is None:
            return "nothing that was measured took so long, so nothing is known of the rest"
        return f"{brief(self.expected_remaining_s)} s are left, going by those that took longer"


def expected_remaining_s(durations_s: Sequence[float], elapsed_s: float) -> float | None:
    """``E[S - e | S > e]`` over what was measured; None where nothing of it took longer (11.3.4).

    >>> expected_remaining_s([1] * 9 + [100], 10), expected_remaining_s([1, 2], 2)
    (90.0, None)
    """
    left_s = [duration_s - elapsed_s for duration_s in durations_s if duration_s > elapsed_s]
    return math.fsum(left_s) / len(left_s) if left_s else None


class LongTailScenario(Scenario):
    """One that is still running, and how long its like took."""

    kind: Literal["longtail"]
    durations_s: Annotated[list[Seconds], Field(description="whole, as measured")]
    elapsed_s: Seconds

    def answer(self) -> LongTail:
        """The mean over those that were not over by then."""
        return LongTail(expected_remaining_s(self.durations_s, self.elapsed_s))
