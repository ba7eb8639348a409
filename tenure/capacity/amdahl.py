"""What making a part faster does to the whole (11.3.3, 11.4.4, 11.5.3); the law itself is in tenure.plan.amdahl."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tenure.bad_input import MistakeAt, did_you_mean
from tenure.capacity.terms import Answer, Positive, Scenario, Seconds, Text, brief, percent
from tenure.plan.amdahl import speedup


@dataclass(frozen=True)
class Faster:
    """One part made faster, all others as they are."""

    name: str
    part: float  # of the whole
    factor: float
    total_s: float
    speedup: float
    saved_share: float  # of the whole's time
    least_s: float  # with the part at no time at all
    most_speedup: float | None  # then; None: the part is all there is


@dataclass(frozen=True)
class Amdahl(Answer):
    """Each part by itself, in the order of the question, and all of them together."""

    total_s: float
    parts: list[Faster]
    together_s: float
    together_speedup: float

    @property
    def words(self) -> str:
        """The part that is worth most."""
        best = max(self.parts, key=lambda part: part.speedup)
        return (
            f"{brief(best.factor)} times as fast, {best.name} ({percent(best.part)} of the time) helps most: "
            f"{brief(best.total_s)} instead of {brief(self.total_s)} s, {brief(best.speedup)} times as fast"
        )


class AmdahlScenario(Scenario):
    """Parts that follow one another, some of which could be faster."""

    kind: Literal["amdahl"]
    parts_s: Annotated[dict[Text, Seconds], Field(min_length=1, description="by name")]
    faster: Annotated[
        dict[Text, Positive], Field(min_length=1, description="by name: how many times as fast")
    ]

    @model_validator(mode="after")
    def _names_parts(self) -> AmdahlScenario:
        for name in self.faster:
            if name not in self.parts_s:
                hint = did_you_mean(name, self.parts_s)
                raise MistakeAt(("faster", name), f"is no part of parts_s; {hint}")
        if not any(self.parts_s.values()):
            raise MistakeAt(("parts_s",), "all parts take 0 s, so none can be faster")
        return self

    def answer(self) -> Amdahl:
        """``S = 1 / ((1 - f) + f / s)`` (11.5.3)."""
        total_s = math.fsum(self.parts_s.values())
        rows = []
        for name, factor in self.faster.items():
            part = min(self.parts_s[name] / total_s, 1.0)
            gain, most = speedup(part, factor), speedup(part, math.inf)
            least_s = math.fsum(each for other, each in self.parts_s.items() if other != name)
            rows.append(
                Faster(
                    name,
                    part,
                    factor,
                    total_s / gain,
                    gain,
                    1 - 1 / gain,
                    least_s,
                    most if math.isfinite(most) and least_s > 0 else None,
                )
            )
        together_s = math.fsum(
            each / self.faster.get(name, 1.0) for name, each in self.parts_s.items()
        )
        return Amdahl(total_s, rows, together_s, total_s / together_s)
