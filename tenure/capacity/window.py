"""What is left of a borrowed machine's life for work (11.3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Number, Scenario, Seconds, brief, percent, ratio


@dataclass(frozen=True)
class Window(Answer):
    """In the order of the lifetimes."""

    useful: list[float]  # rate x seconds of work
    useful_share: list[float]  # of the lifetime

    @property
    def words(self) -> str:
        """The least and the most useful of them."""
        if not self.useful_share:
            return "no lifetime is asked for"
        low, high = min(self.useful_share), max(self.useful_share)
        return (
            f"{percent(low)} to {percent(high)} of a life is work, {brief(sum(self.useful))} in all"
        )


def useful_s(lifetime_s: float, prepare_s: float) -> float:
    """``max(L - T0, 0)`` (11.3.3).

    >>> useful_s(20, 8), useful_s(5, 8)
    (12, 0.0)
    """
    return max(lifetime_s - prepare_s, 0.0)


class WindowScenario(Scenario):
    """Machines that are there for a while, and must be prepared first."""

    kind: Literal["window"]
    prepare_s: Annotated[Seconds, Field(description="from getting it to the first work")]
    rate: Annotated[Number, Field(description="work per second, in any unit")] = 1.0
    lifetimes_s: list[Seconds]

    def answer(self) -> Window:
        """Each lifetime by itself."""
        seconds = [useful_s(lifetime_s, self.prepare_s) for lifetime_s in self.lifetimes_s]
        return Window(
            [self.rate * each for each in seconds],
            [
                ratio(each, life) or 0.0
                for each, life in zip(seconds, self.lifetimes_s, strict=True)
            ],
        )
