"""How often to write down what is done: what it costs, and what a failure repeats (11.5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Count, Scenario, Seconds, Several, brief


@dataclass(frozen=True)
class Commit(Answer):
    """Seconds of saving, of all of it without a failure, and of work that one failure repeats at most."""

    save_s: float
    total_s: float
    redo_s: float

    @property
    def words(self) -> str:
        """What it comes to."""
        return (
            f"{brief(self.total_s)} s without a failure, {brief(self.save_s)} s of them saving; "
            f"a failure just before a commit repeats {brief(self.redo_s)} s"
        )


def save_s(requests: int, batch: int, fixed_s: float, per_item_s: float) -> float:
    """``ceil(n / b) fixed + n per_item``: a last commit may be smaller than the others (11.5.1).

    >>> round(save_s(100, 10, 0.008, 0.002), 9), round(save_s(11, 10, 0.008, 0.002), 9)
    (0.28, 0.038)
    """
    return -(-requests // batch) * fixed_s + requests * per_item_s


class CommitScenario(Scenario):
    """Requests one after another, which stand still while a batch of them is written down."""

    kind: Literal["commit"]
    requests: Count
    service_s: Annotated[Seconds, Field(description="of one request")]
    fixed_s: Annotated[Seconds, Field(description="of one commit, however much it holds")]
    per_item_s: Annotated[Seconds, Field(description="of one request's data in it")]
    batch: Annotated[Several, Field(description="requests of one commit")]

    def answer(self) -> Commit:
        """The table of 11.5.1."""
        saving_s = save_s(self.requests, self.batch, self.fixed_s, self.per_item_s)
        return Commit(
            saving_s,
            self.requests * self.service_s + saving_s,
            min(self.batch, self.requests) * self.service_s,
        )
