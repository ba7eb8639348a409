"""Wait for the machine, move away who holds it, or spread over several (11.3.1, example 11-3; 11.3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Scenario, Seconds, Strict, brief

Way = Literal["wait", "move", "spread"]


class Spread(Strict):
    """The same job in another configuration, over several machines."""

    ready_s: Seconds
    run_s: Seconds


@dataclass(frozen=True)
class Move(Answer):
    """When the newcomer ends by each way, and up to which move that way is the better one."""

    finish_s: dict[Way, float | None]  # None: not to be had
    best: Way
    move_s_below_for_earliest: float
    move_s_below_for_least_total_delay: float

    @property
    def words(self) -> str:
        """Which, and by how much."""
        others = [end for way, end in self.finish_s.items() if way != self.best and end is not None]
        chosen_s = self.finish_s[self.best] or 0.0
        ahead = f", {brief(min(others) - chosen_s)} s before the next" if others else ""
        return (
            f"{self.best}: it ends after {brief(chosen_s)} s{ahead}; a move is the earliest below "
            f"{brief(self.move_s_below_for_earliest)} s, and delays both least below "
            f"{brief(self.move_s_below_for_least_total_delay)} s"
        )


def least_delay_s(wait_s: float, run_s: float, spread: Spread | None) -> float:
    """How much later than at once the newcomer ends without a move.

    >>> least_delay_s(12, 20, Spread(ready_s=1, run_s=32))
    12
    """
    return min(wait_s, wait_s if spread is None else spread.ready_s + spread.run_s - run_s)


class MoveScenario(Scenario):
    """A newcomer that needs what somebody else holds."""

    kind: Literal["move"]
    wait_s: Annotated[Seconds, Field(description="until the other one has ended")]
    run_s: Annotated[Seconds, Field(description="of the newcomer, in one place")]
    move_s: Annotated[
        Seconds | None, Field(description="to move the other one; none: it cannot be moved")
    ] = None
    spread: Spread | None = None
    victim_extra_s: Annotated[
        Seconds, Field(description="that a move costs the other one beside the move itself")
    ] = 0.0

    def answer(self) -> Move:
        """``T_wait + T_run``, ``T_move + T_run``, ``T_ready + T_run`` of the spread; of equal ones the first.

        A move delays the newcomer by ``T_move`` and the victim by ``T_move + victim_extra_s``, waiting the
        newcomer alone by ``T_wait``; so moving delays both together less below half of the difference.
        """
        finish_s: dict[Way, float | None] = {
            "wait": self.wait_s + self.run_s,
            "move": None if self.move_s is None else self.move_s + self.run_s,
            "spread": None if self.spread is None else self.spread.ready_s + self.spread.run_s,
        }
        ends = {way: end for way, end in finish_s.items() if end is not None}
        without_s = least_delay_s(self.wait_s, self.run_s, self.spread)
        return Move(
            finish_s,
            min(ends, key=lambda way: ends[way]),
            max(without_s, 0.0),
            max((without_s - self.victim_extra_s) / 2, 0.0),
        )
