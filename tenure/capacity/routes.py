"""Which service is cheapest per success, and which is in time, by the share of cache hits (11.4.3, example 11-7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tenure.capacity.terms import (
    Answer,
    Positive,
    Scenario,
    Seconds,
    Share,
    Strict,
    Text,
    Usd,
    check_names,
    in_time,
    percent,
)

#: The shares of hits that are tabulated, by their keys.
HITS = {f"{n / 10:g}": n / 10 for n in range(11)}
_NOTHING = 1e-12  # a coefficient that is rounding, against the largest one


class Service(Strict):
    """A service whose cost, success and time differ between hits of its cache and misses."""

    name: Text
    cost_hit: Annotated[Usd, Field(description="usd of a task whose prefix is cached")]
    cost_miss: Usd
    success_hit: Share
    success_miss: Share
    time_hit_s: Seconds
    time_miss_s: Seconds


@dataclass(frozen=True)
class Route:
    """What a service comes to."""

    name: str
    cost_per_success_at: dict[str, float | None]  # by share of hits; None: nothing succeeds
    in_time_at: dict[str, float]  # share of all tasks that succeed in time
    hit_for_target: float | None  # the least share of hits; None: there is none


@dataclass(frozen=True)
class Routes(Answer):
    """Each service, in the order of the question."""

    services: list[Route]
    break_even_hit: float | None  # of the first two; None: one is cheaper at every share

    @property
    def words(self) -> str:
        """Where the first two cross, and who can keep the deadline."""
        told = []
        if len(self.services) > 1:
            first, second = (service.name for service in self.services[:2])
            told.append(
                f"{first} and {second} cost the same per success at {percent(self.break_even_hit)} of hits"
                if self.break_even_hit is not None
                else f"{first} and {second} cost the same at no share of hits"
            )
        told += [
            f"{service.name} reaches the target from {percent(service.hit_for_target)} of hits on"
            if service.hit_for_target is not None
            else f"{service.name} never reaches the target"
            for service in self.services
        ]
        return "; ".join(told)


def cost_per_success(service: Service, hit: float) -> float | None:
    """All costs over all successes, at a share of hits; None where nothing succeeds (11.4.3, 11.5.2)."""
    success = _at(hit, service.success_hit, service.success_miss)
    cost = _at(hit, service.cost_hit, service.cost_miss)
    return cost / success if success > 0 else None


def in_time_share(service: Service, hit: float, deadline_s: float) -> float:
    """Share of all tasks that succeed by the deadline: ``0.98 h`` in figure 11-41."""
    return _at(hit, *_punctual(service, deadline_s))


def hit_for_target(service: Service, deadline_s: float, target: float) -> float | None:
    """The least share of hits with ``target`` of all tasks in time; None where there is none (11.4.3).

    >>> sonnet = Service(name="B", cost_hit=0.0088, cost_miss=0.043, success_hit=0.98, success_miss=0.98,
    ...     time_hit_s=4, time_miss_s=12)
    >>> round(hit_for_target(sonnet, 6, 0.9), 4)
    0.9184
    """
    hit, miss = _punctual(service, deadline_s)
    if miss >= target:
        return 0.0
    return (target - miss) / (hit - miss) if hit >= target else None


def break_even_hit(first: Service, second: Service) -> float | None:
    """The least share of hits, of both alike, at which a success costs the same; None where there is none.

    ``C1(h) S2(h) = C2(h) S1(h)`` with all four linear in h: a quadratic, and linear where one service does not
    depend on its cache, as in example 11-7.
    """
    costs, wins = (
        _line(first.cost_hit, first.cost_miss),
        _line(second.success_hit, second.success_miss),
    )
    other = _line(second.cost_hit, second.cost_miss), _line(first.success_hit, first.success_miss)
    left, right = _product(costs, wins), _product(*other)
    equation = tuple(a - b for a, b in zip(left, right, strict=True))
    size = max(map(abs, left + right))
    for hit in _roots(equation, size):
        pair = cost_per_success(first, hit), cost_per_success(second, hit)
        if None not in pair:
            return hit
    return None


class RoutesScenario(Scenario):
    """Services for one sort of task."""

    kind: Literal["routes"]
    services: Annotated[list[Service], Field(min_length=1)]
    deadline_s: Positive
    target: Annotated[Share, Field(description="of all tasks succeed in time")]

    @model_validator(mode="after")
    def _names_differ(self) -> RoutesScenario:
        check_names("services", [service.name for service in self.services])
        return self

    def answer(self) -> Routes:
        """Each service by itself, and the first two against each other."""
        routes = [
            Route(
                service.name,
                {key: cost_per_success(service, hit) for key, hit in HITS.items()},
                {key: in_time_share(service, hit, self.deadline_s) for key, hit in HITS.items()},
                hit_for_target(service, self.deadline_s, self.target),
            )
            for service in self.services
        ]
        even = break_even_hit(*self.services[:2]) if len(self.services) > 1 else None
        return Routes(routes, even)


def _at(hit: float, value_hit: float, value_miss: float) -> float:
    return hit * value_hit + (1 - hit) * value_miss


def _punctual(service: Service, deadline_s: float) -> tuple[float, float]:
    """Success in time of a hit, and of a miss."""
    return (
        service.success_hit if in_time(service.time_hit_s, deadline_s) else 0.0,
        service.success_miss if in_time(service.time_miss_s, deadline_s) else 0.0,
    )


def _line(value_hit: float, value_miss: float) -> tuple[float, float]:
    """Constant and slope over the share of hits."""
    return value_miss, value_hit - value_miss


def _product(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float, float]:
    """Two lines multiplied: constant, linear, quadratic."""
    return a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[1] * b[1]


def _roots(equation: tuple[float, ...], size: float) -> list[float]:
    """Shares from 0 to 1 at which ``c + b h + a h^2`` is 0, the least first; 0 where it is 0 everywhere."""
    c, b, a = (0.0 if abs(each) <= _NOTHING * size else each for each in equation)
    if a == 0:
        found = [0.0] if b == c == 0 else [] if b == 0 else [-c / b]
    else:
        under = b * b - 4 * a * c
        if under < 0:
            return []
        half = -(b + math.copysign(math.sqrt(under), b)) / 2  # the root that loses no digits
        found = [half / a] + ([c / half] if half else [])
    near = [min(max(hit, 0.0), 1.0) for hit in found if -1e-9 <= hit <= 1 + 1e-9]
    return sorted(near)
