"""The numbers that scenarios are made of, with their bounds, and what every scenario and every answer can do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tenure.bad_input import KeyPath, MistakeAt, dotted
from tenure.errors import UsageError

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

#: Of every number of a scenario: products of three of them still fit a double.
MOST = 1e15
MOST_COUNT = 1_000_000_000
#: Sums of shares and of probabilities: 0.333333 three times is 1.
SUM_OFF_BY = 1e-5
#: Times that are equal but for rounding: 3 x (0.1 + 0.2) s keeps a deadline of 0.9 s.
_ROUNDING = 1e-9


def _whole(value: object) -> object:
    """3.0 is a count, as programs write it; 3.5 is left as it is, and refused."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(ge=0, le=MOST)]
Seconds = Number
Usd = Number
Positive = Annotated[float, Field(gt=0, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MOST_COUNT)]
Several = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MOST_COUNT)]
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    """A section of a scenario: unknown keys, text for a number, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Answer:
    """What comes back: the fields are the keys of the JSON object, in this order."""

    @property
    def words(self) -> str:
        """The answer in a sentence, with its numbers."""
        raise NotImplementedError

    def as_json(self) -> dict[str, JsonValue]:
        """The fields. Raises :class:`UsageError` where a number left what floating point holds."""
        whole: dict[str, JsonValue] = asdict(self)
        _check_finite(whole, ())
        return whole


class Scenario(Strict):
    """One question, of one kind."""

    def answer(self) -> Answer:
        """Its answer; pure, and the same each time."""
        raise NotImplementedError


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``; 0 of 0 is 0, and what is no number is None.

    >>> ratio(1, 4), ratio(0, 0), ratio(1, 0)
    (0.25, 0.0, None)
    """
    if whole > 0:
        return part / whole
    return 0.0 if part == 0 else None


def in_time(seconds: float, deadline_s: float) -> bool:
    """Whether what takes ``seconds`` keeps the deadline; it may end at the deadline itself.

    >>> in_time(3 * (0.1 + 0.2), 0.9), in_time(0.9001, 0.9)
    (True, False)
    """
    return seconds <= deadline_s + _ROUNDING * max(seconds, deadline_s)


def missing(need: float, there: float) -> float:
    """What must be added, at least: 0 where there is enough, but for rounding.

    >>> missing(600, 358), missing(0.1 + 0.2, 0.3)
    (242, 0.0)
    """
    return 0.0 if in_time(need, there) else need - there


def sums_to_one(values: Sequence[float]) -> bool:
    """Whether shares or probabilities are all of it.

    >>> sums_to_one([0.333333] * 3), sums_to_one([0.5, 0.4])
    (True, False)
    """
    return abs(math.fsum(values) - 1) <= SUM_OFF_BY


def check_names(key: str, names: Sequence[str]) -> None:
    """Refuse a name that two entries of a list have; answers are found by it."""
    for n, name in enumerate(names):
        if name in names[:n]:
            raise MistakeAt((key, n, "name"), f"{name!r} stands twice; rename one of them")


def brief(value: float | None) -> str:
    """A number in a sentence: four digits, and no sign of what has none.

    >>> brief(5.96667), brief(19555.2), brief(None), brief(2414222.2)
    ('5.967', '19,560', 'none', '2,414,000')
    """
    if value is None:
        return "none"
    if value == 0 or not 1e3 <= abs(value) < 1e12:
        return f"{value:.4g}"
    return f"{float(f'{value:.4g}'):,.0f}"


def percent(share: float | None) -> str:
    """A share in a sentence.

    >>> percent(0.8437), percent(None)
    ('84.4 %', 'without bound')
    """
    return "without bound" if share is None else f"{100 * share:.3g} %"


def _check_finite(value: object, path: KeyPath) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(
            f"the answer's {dotted(path)} is larger than a floating-point number; "
            "give numbers in larger units"
        )
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_finite(inner, (*path, name))
    elif isinstance(value, (list, tuple)):
        for n, inner in enumerate(value):
            _check_finite(inner, (*path, n))
