"""When to begin preparing what will probably be needed (11.2.4, 11.5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Number, Scenario, Seconds, Share, brief


@dataclass(frozen=True)
class Lead:
    """What beginning so early comes to, on average over right and wrong predictions."""

    lead_s: float
    expected_wait_s: float  # after the call
    early_gib_s: float  # ready and waiting, where the prediction was right
    wasted_gib_s: float  # until the call, where it was wrong


@dataclass(frozen=True)
class Prewarm(Answer):
    """One row for each lead, in the order of the question."""

    leads: list[Lead]

    @property
    def words(self) -> str:
        """The lead that waits least, and of those the shortest."""
        if not self.leads:
            return "no lead is asked for"
        best = min(self.leads, key=lambda lead: (lead.expected_wait_s, lead.lead_s))
        return (
            f"a lead of {brief(best.lead_s)} s waits least, {brief(best.expected_wait_s)} s on average; "
            f"it has {brief(best.early_gib_s)} GiB s ready too early and {brief(best.wasted_gib_s)} in vain"
        )


def expected_wait_s(prepare_s: float, lead_s: float, hit: float) -> float:
    """``E[W] = h max(P - L, 0) + (1 - h) P = P - h min(P, L)`` (11.2.4).

    >>> [expected_wait_s(2, lead_s, 0.75) for lead_s in (0, 1, 2, 3)]
    [2.0, 1.25, 0.5, 0.5]
    """
    return prepare_s - hit * min(prepare_s, lead_s)


def early_gib_s(prepare_s: float, lead_s: float, hit: float, memory_gib: float) -> float:
    """Ready and waiting for the call, of right predictions: ``h M max(L - P, 0)`` (11.2.4).

    >>> early_gib_s(2, 3, 0.75, 2)
    1.5
    """
    return hit * memory_gib * max(lead_s - prepare_s, 0.0)


def wasted_gib_s(lead_s: float, hit: float, memory_gib: float) -> float:
    """Of wrong predictions, from the beginning to the call, which cancels it: ``(1 - h) M L`` (figure 11-23).

    >>> wasted_gib_s(2, 0.75, 2)
    1.0
    """
    return (1 - hit) * memory_gib * lead_s


class PrewarmScenario(Scenario):
    """A preparation that may begin before it is known to be needed."""

    kind: Literal["prewarm"]
    prepare_s: Seconds
    hit: Annotated[Share, Field(description="how often the right one is prepared")]
    leads_s: Annotated[list[Seconds], Field(description="how long before the call it begins")]
    memory_gib: Number

    def answer(self) -> Prewarm:
        """Each lead by itself."""
        return Prewarm(
            [
                Lead(
                    lead_s,
                    expected_wait_s(self.prepare_s, lead_s, self.hit),
                    early_gib_s(self.prepare_s, lead_s, self.hit, self.memory_gib),
                    wasted_gib_s(lead_s, self.hit, self.memory_gib),
                )
                for lead_s in self.leads_s
            ]
        )
