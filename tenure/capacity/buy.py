"""Own it, or pay by use (11.4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Positive, Scenario, Share, Usd, brief, percent


@dataclass(frozen=True)
class Buy(Answer):
    """From how many tasks on owning is cheaper per success, and whether it can do so many."""

    break_even_tasks: float | None  # None: owning never is
    utilisation_at_break_even: float | None  # None: no capacity is given, or there is no break-even
    worth_it: bool  # there is a number of tasks, within the capacity, at which owning is cheaper

    @property
    def words(self) -> str:
        """What to do."""
        if self.break_even_tasks is None:
            return "owning it is cheaper at no number of tasks"
        share = self.utilisation_at_break_even
        part = "" if share is None else f", {percent(share)} of what it can do"
        verdict = "worth it above that" if self.worth_it else "more than it can do, so not worth it"
        return f"both cost the same at {brief(self.break_even_tasks)} tasks{part}: {verdict}"


def break_even_tasks(
    fixed_usd: float,
    extra_per_task_usd: float,
    api_per_task_usd: float,
    success_own: float,
    success_api: float,
) -> float | None:
    """``N = F / (c p_own / p_api - v)``, ``F / (c - v)`` where both succeed alike; None if never (11.4.4).

    Per success owning costs ``(F + N v) / (N p_own)`` and paying by use ``c / p_api``.

    >>> round(break_even_tasks(4 * 720 * 6.79, 0, 0.0081, 1, 1) / 1e6, 3)
    2.414
    >>> break_even_tasks(100, 2, 1, 1, 1) is None
    True
    """
    if success_own == 0:
        return None
    if success_api == 0:  # a success by use costs more than any sum
        return 0.0
    saved_usd = api_per_task_usd * success_own / success_api - extra_per_task_usd
    return fixed_usd / saved_usd if saved_usd > 0 else None


class BuyScenario(Scenario):
    """A period's fixed costs against a price per task."""

    kind: Literal["buy"]
    fixed_usd: Annotated[Usd, Field(description="of owning, for the period")]
    extra_per_task_usd: Annotated[Usd, Field(description="of owning, for each task")]
    api_per_task_usd: Annotated[Usd, Field(description="of paying by use")]
    success_own: Share = 1.0
    success_api: Share = 1.0
    capacity_tasks: Annotated[
        Positive | None, Field(description="what is owned can do in the period; none: all")
    ] = None

    def answer(self) -> Buy:
        """Worth it where the break-even lies below the capacity."""
        tasks = break_even_tasks(
            self.fixed_usd,
            self.extra_per_task_usd,
            self.api_per_task_usd,
            self.success_own,
            self.success_api,
        )
        if tasks is None:
            return Buy(None, None, False)
        if self.capacity_tasks is None:
            return Buy(tasks, None, True)
        return Buy(tasks, tasks / self.capacity_tasks, tasks < self.capacity_tasks)
