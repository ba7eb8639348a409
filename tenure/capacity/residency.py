"""Keep an idle environment, pause it, or make it anew for the next tool run (11.2.3, 11.2.4, 11.5.3).

The same holds for a rented machine between two jobs: what is kept is paid for, what is given up is prepared again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.demand import Prices
from tenure.capacity.terms import Answer, Number, Scenario, Seconds, Strict, brief

Choice = Literal["keep", "pause", "recreate"]


class Pause(Strict):
    """Saving the state of processes, and restoring it; memory is occupied during both."""

    save_s: Seconds
    restore_s: Seconds


class Recreate(Strict):
    """Making the environment anew, where files are all that is needed."""

    prepare_s: Seconds
    prepare_cpu_s: Annotated[Seconds, Field(description="CPU seconds of it")] = 0.0


@dataclass(frozen=True)
class Option:
    """What one choice comes to, from the end of one tool run to the end of the next."""

    occupied_s: float  # with memory taken: transition, what is idle, and the tool
    occupied_gib_s: float
    delay_s: float  # of the next tool
    cost_usd: float


@dataclass(frozen=True)
class Residency(Answer):
    """The choices, and the cheapest."""

    options: dict[Choice, Option]
    best: Choice
    break_even_idle_s: float | None  # from there on recreating is cheaper; None: it never is

    @property
    def words(self) -> str:
        """Which, and from which wait on another."""
        chosen = self.options[self.best]
        if "recreate" not in self.options:
            turn = ""
        elif self.break_even_idle_s is None:
            turn = "; however long the wait is, recreating costs no less than keeping"
        else:
            turn = f"; a wait of more than {brief(self.break_even_idle_s)} s is cheaper recreated than kept"
        return (
            f"{self.best}: {brief(chosen.occupied_gib_s)} GiB s and {chosen.cost_usd:.4g} usd to the "
            f"end of the next tool, {brief(chosen.delay_s)} s late{turn}"
        )


def late_s(transition_s: float, idle_s: float) -> float:
    """How long a transition delays the next tool run, if it begins in time at best (11.2.3).

    >>> late_s(9, 9), late_s(9, 6)
    (0, 3)
    """
    return max(transition_s - idle_s, 0)


def break_even_idle_s(
    prepare_s: float, transition_usd: float, memory_usd_per_s: float
) -> float | None:
    """The wait at which keeping costs as much as recreating: ``G p_M M = P p_M M + C`` (11.5.3).

    >>> round(break_even_idle_s(2, 0.1 * 0.000014, 2 * 0.0000045), 4)
    2.1556
    """
    if memory_usd_per_s == 0:  # keeping is free
        return None
    return prepare_s + transition_usd / memory_usd_per_s


class ResidencyScenario(Scenario):
    """One wait for the model between two tool runs."""

    kind: Literal["residency"]
    idle_s: Annotated[Seconds, Field(description="the next model call")]
    tool_s: Seconds
    memory_gib: Number
    pause: Pause | None = None
    recreate: Recreate | None = None
    prices: Prices

    def answer(self) -> Residency:
        """The options that are given, each starting as late as it can without delaying the tool."""
        memory_usd_per_s = self.memory_gib * self.prices.gib_s
        transitions: dict[Choice, tuple[float, float, float]] = {  # occupied, late, other costs
            "keep": (self.idle_s, 0.0, 0.0)
        }
        if self.pause is not None:
            moved_s = self.pause.save_s + self.pause.restore_s
            transitions["pause"] = (moved_s, late_s(moved_s, self.idle_s), 0.0)
        break_even_s = None
        if self.recreate is not None:
            made_s = self.recreate.prepare_s
            cpu_usd = self.recreate.prepare_cpu_s * self.prices.cpu_s
            transitions["recreate"] = (made_s, late_s(made_s, self.idle_s), cpu_usd)
            break_even_s = break_even_idle_s(made_s, cpu_usd, memory_usd_per_s)
        options = {
            name: Option(
                occupied_s=taken_s + self.tool_s,
                occupied_gib_s=self.memory_gib * (taken_s + self.tool_s),
                delay_s=delay_s,
                cost_usd=memory_usd_per_s * (taken_s + self.tool_s) + other_usd,
            )
            for name, (taken_s, delay_s, other_usd) in transitions.items()
        }
        # of equal costs the one that is late least, then the one that changes least
        best = min(options, key=lambda name: (options[name].cost_usd, options[name].delay_s))
        return Residency(options, best, break_even_s)
