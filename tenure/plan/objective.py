"""What a plan is chosen by: J = w_T T + w_C C + w_R (1 - R), the least of it within the limits.

T (expected time) and C (expected cost) have units and R (a chance) has none, so T and C are made
dimensionless first: T by the deadline where there is one, else by the fastest option; C by the budget
where there is one, else by the cheapest option that costs anything. So a J of 0.5 w_T + 0.5 w_C is a plan
that takes half of both limits. R is the chance to be done by the deadline, work between snapshots counted
as lost with each machine (:mod:`tenure.plan.predict`); without a deadline, the chance to lose no work.
Weights are normalised to a sum of 1. Sums are in one currency: prices of others are turned into it before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tenure.errors import UsageError
from tenure.plan.predict import Forecast


@dataclass(frozen=True)
class Weights:
    """How much time, money and certainty count; any scale, not negative and not all 0.

    >>> Weights(2, 1, 1).normalised
    (0.5, 0.25, 0.25)
    """

    time: float = 1.0
    cost: float = 1.0
    reliability: float = 1.0

    def __post_init__(self) -> None:
        for name in ("time", "cost", "reliability"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(
                    f"the weight of {name} is {value}; weights are finite numbers, 0 or more"
                )
        if self.time + self.cost + self.reliability <= 0:
            raise UsageError(
                "the weights of time, cost and reliability are all 0, so every plan would be as good as any "
                "other; give one of them a number above 0"
            )

    @property
    def normalised(self) -> tuple[float, float, float]:
        """Of time, cost and reliability, with a sum of 1."""
        total = self.time + self.cost + self.reliability
        return self.time / total, self.cost / total, self.reliability / total


@dataclass(frozen=True)
class Limits:
    """What no plan may exceed; ``None`` where there is no limit. Resources are named by whoever asks."""

    deadline_s: float | None = None  # T <= T_max, of the expected time
    budget: float | None = None  # C <= C_max, of the expected cost
    least_on_time: float = 0.0  # R is at least this
    resources: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise UsageError(f"the deadline is in {self.deadline_s:g} s; it must lie ahead")
        if self.budget is not None and not self.budget >= 0:
            raise UsageError(f"the budget is {self.budget:g}; it must be 0 or more")
        if not 0 <= self.least_on_time < 1:
            raise UsageError(
                f"the chance to be on time is to be at least {self.least_on_time:g}; it lies from 0 to "
                "below 1, since nothing on rented machines is certain"
            )
        for name, most in self.resources.items():
            if not most >= 0:
                raise UsageError(f"there are {most:g} {name}; a limit is 0 or more")


@dataclass(frozen=True)
class Option:
    """One way to run what is to be planned: T, C and R as predicted, and what it takes of each resource."""

    name: str
    time_s: float
    cost: float
    reliability: float
    takes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if math.isnan(self.time_s) or self.time_s < 0 or math.isnan(self.cost) or self.cost < 0:
            raise ValueError(f"{self.name}: time and cost are numbers, 0 or more")
        if not 0 <= self.reliability <= 1:
            raise ValueError(f"{self.name}: a reliability of {self.reliability}; it is a chance")


def option(
    name: str,
    found: Forecast,
    per_h: float,
    deadline_s: float | None = None,
    takes: Mapping[str, float] | None = None,
) -> Option:
    """A forecast as an option: T its mean, C its paid hours at ``per_h``, R by the deadline if there is one."""
    if not (math.isfinite(per_h) and per_h >= 0):
        raise ValueError(
            f"{name}: a price of {per_h} per hour; it must be a finite number, 0 or more"
        )
    reliability = found.unscathed if deadline_s is None else found.on_time(deadline_s)
    cost = found.paid_h * per_h if per_h else 0.0
    return Option(name, found.mean_s, cost, reliability, takes or {})


class Infeasible(UsageError):
    """No option keeps the limits: by how much, and the cheapest relaxation; the numbers stand beside."""

    def __init__(self, sentence: str, over: Mapping[str, float], relaxation: str) -> None:
        super().__init__(sentence)
        self.over = dict(over)  # by limit: how much the option that comes closest is over it
        self.relaxation = relaxation  # the limit to relax, if one alone


@dataclass(frozen=True)
class Choice:
    """The option of least J, J of every one that keeps the limits, and why."""

    option: Option
    j: float
    scores: Mapping[str, float]
    refused: Mapping[str, str]  # options that exceed a limit, and which
    reason: str


def scales(options: Sequence[Option], limits: Limits) -> tuple[float, float]:
    """What T and C are divided by: the limits, else the fastest and the cheapest that costs anything."""
    times = [each.time_s for each in options if 0 < each.time_s < math.inf]
    costs = [each.cost for each in options if 0 < each.cost < math.inf]
    time = limits.deadline_s or min(times, default=1.0)
    return time, limits.budget or min(costs, default=1.0)


def j(each: Option, weights: Weights, time_scale_s: float, cost_scale: float) -> float:
    """J of one option, of dimensionless parts.

    >>> j(Option("a", 3600.0, 2.0, 0.9), Weights(1, 1, 2), time_scale_s=7200.0, cost_scale=4.0)
    0.3
    """
    w_time, w_cost, w_rel = weights.normalised
    late = w_time * each.time_s / time_scale_s if w_time else 0.0
    dear = w_cost * each.cost / cost_scale if w_cost else 0.0
    return late + dear + w_rel * (1 - each.reliability)


def choose(options: Sequence[Option], weights: Weights, limits: Limits | None = None) -> Choice:
    """The option of least J within the limits; ties go to the cheaper, then to the first.

    Raises :class:`Infeasible` where none keeps them, which says by how much and what is the cheapest way
    out, and ValueError where there are no options.

    >>> slow, fast = Option("slow", 7200.0, 1.0, 0.99), Option("fast", 3600.0, 3.0, 0.99)
    >>> choose([slow, fast], Weights(1, 1, 1)).option.name
    'slow'
    >>> choose([slow, fast], Weights(1, 1, 1), Limits(deadline_s=5000.0)).option.name
    'fast'
    >>> choose([slow, fast], Weights(), Limits(deadline_s=5000.0, budget=2.0))
    Traceback (most recent call last):
    ...
    tenure.plan.objective.Infeasible: no plan keeps a deadline of 1.4 h and a budget of 2: the cheapest way out is to extend the deadline by 0.6 h, for slow (2.0 h, 1); or to raise the budget by 1, for fast (1.0 h, 3)
    """
    limits = limits or Limits()
    if not options:
        raise ValueError("there is no option to choose from: no rung is allowed, or none is known")
    refused = {each.name: said for each in options if (said := _over_words(each, limits))}
    kept = [each for each in options if each.name not in refused]
    if not kept:
        raise _infeasible(options, limits)
    time, cost = scales(options, limits)
    scores = {each.name: j(each, weights, time, cost) for each in kept}
    found = min(kept, key=lambda each: (scores[each.name], each.cost))
    others = sorted((score, name) for name, score in scores.items() if name != found.name)
    w_time, w_cost, w_rel = weights.normalised
    reason = (
        f"{found.name}: J {scores[found.name]:.3g} = {w_time:.2f} x {found.time_s / time:.2f} (time) "
        f"+ {w_cost:.2f} x {found.cost / cost:.2f} (cost) + {w_rel:.2f} x {1 - found.reliability:.2f} (risk)"
        + (
            f"; next is {others[0][1]} with {others[0][0]:.3g}"
            if others
            else "; nothing else is allowed"
        )
    )
    return Choice(found, scores[found.name], scores, refused, reason)


# ------------------------------------------------------------------------------- internals


def _over(each: Option, limits: Limits) -> dict[str, float]:
    """By how much an option exceeds each limit, in the limit's unit."""
    over: dict[str, float] = {}
    if limits.deadline_s is not None and each.time_s > limits.deadline_s:
        over["deadline_s"] = each.time_s - limits.deadline_s
    if limits.budget is not None and each.cost > limits.budget:
        over["budget"] = each.cost - limits.budget
    if each.reliability < limits.least_on_time:
        over["least_on_time"] = limits.least_on_time - each.reliability
    for name, most in limits.resources.items():
        if (more := each.takes.get(name, 0.0) - most) > 0:
            over[name] = more
    return over


def _over_words(each: Option, limits: Limits) -> str:
    return ", ".join(_relax_words(name, by) for name, by in _over(each, limits).items())


def _relax_words(name: str, by: float) -> str:
    if name == "deadline_s":
        return f"extend the deadline by {by / 3600:.1f} h" if math.isfinite(by) else "wait for ever"
    if name == "budget":
        return f"raise the budget by {by:.3g}"
    if name == "least_on_time":
        return f"accept a chance to be on time that is lower by {by:.2f}"
    return f"find {by:g} more {name}"


def _relative(name: str, by: float, limits: Limits) -> float:
    if name == "least_on_time":
        return by
    limit = {"deadline_s": limits.deadline_s, "budget": limits.budget}.get(name)
    scale = limits.resources.get(name) if limit is None else limit
    return by / scale if scale else math.inf


def _infeasible(options: Sequence[Option], limits: Limits) -> Infeasible:
    """Of what each option would need, the least; and the least of every limit that alone would do."""
    needs = [(each, _over(each, limits)) for each in options]

    def size(over: Mapping[str, float]) -> float:
        return sum(_relative(name, by, limits) for name, by in over.items())

    best, over = min(needs, key=lambda need: (size(need[1]), len(need[1]), need[0].cost))
    said = f"{_joined(over)}, for {_option_words(best)}"
    ways = [
        f"or to {_relax_words(name, by)}, for {_option_words(each)}"
        for name, (each, by) in _alone(needs).items()
        if [name] != list(over) and math.isfinite(by)
    ]
    sentence = f"no plan keeps {_limit_words(limits)}: the cheapest way out is to {said}"
    return Infeasible(
        "; ".join([sentence, *ways]), over, next(iter(over)) if len(over) == 1 else ""
    )


def _alone(needs: Sequence[tuple[Option, dict[str, float]]]) -> dict[str, tuple[Option, float]]:
    """By limit that alone would do if it were relaxed: the option that needs least of it, and how much."""
    found: dict[str, tuple[Option, float]] = {}
    for each, over in needs:
        if len(over) != 1:
            continue
        ((name, by),) = over.items()
        if name not in found or by < found[name][1]:
            found[name] = each, by
    return found


def _joined(over: Mapping[str, float]) -> str:
    return " and to ".join(_relax_words(name, by) for name, by in over.items())


def _option_words(each: Option) -> str:
    hours = f"{each.time_s / 3600:.1f} h" if math.isfinite(each.time_s) else "never done"
    return f"{each.name} ({hours}, {each.cost:.3g})"


def _limit_words(limits: Limits) -> str:
    said = []
    if limits.deadline_s is not None:
        said.append(f"a deadline of {limits.deadline_s / 3600:.1f} h")
    if limits.budget is not None:
        said.append(f"a budget of {limits.budget:.3g}")
    if limits.least_on_time:
        said.append(f"a chance of {limits.least_on_time:.2f} to be on time")
    said += [f"{most:g} {name}" for name, most in limits.resources.items()]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
