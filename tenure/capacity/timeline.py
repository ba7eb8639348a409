"""The schedule of a demand scenario in steady state, and the most that is used at once (11.1, 11.3.2, 11.5.3).

Tasks that arrive every ``1 / rate`` seconds, or ``burst`` of them together every ``burst / rate`` seconds, use a
resource periodically: the use of one task, laid over itself at each period. It is folded into one period and added
up there, which is exact. Nothing waits: a peak above what is there says that something would have to.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tenure.capacity.batch import first_come
from tenure.capacity.demand import UNITS, DemandScenario, Environment, Resource, Task
from tenure.capacity.terms import Answer, brief, missing
from tenure.errors import UsageError

Arrivals = Literal["even", "burst"]
What = Literal["model", "prepare", "tool"]
MOST_ROUNDS = 1000
#: Periods are compared to so many decimals of one: 0.1 s ten times is 1 s.
_DECIMALS = 9


@dataclass(frozen=True)
class Phase:
    """One part of a task's way, in seconds since it arrived."""

    task: int  # in the order of the scenario, from 1
    round: int  # from 1
    what: What
    from_s: float
    to_s: float
    at_once: float  # how many tasks are in it on average
    cpu_cores: float  # that all of them use on average


@dataclass(frozen=True)
class Peak:
    """Of one resource, in its unit."""

    mean: float
    peak: float
    capacity: float
    peak_share: float | None  # of the capacity; None: there is none


@dataclass(frozen=True)
class Timeline(Answer):
    """What a task does when, and what all of them use."""

    arrivals: Arrivals
    tasks_at_once: int
    every_s: float
    phases: list[Phase]
    peaks: dict[Resource, Peak]
    environments_peak: float
    tool_wait_s: (
        float | None
    )  # mean, of a burst's tools that start together; None: not one sort of task, or even
    tools_done_s: float | None  # after they could all start

    @property
    def words(self) -> str:
        """Whether it fits."""
        over = [name for name, peak in self.peaks.items() if missing(peak.peak, peak.capacity)]
        fits = "all of it fits, so nothing waits"
        if over:
            peaks = ((name, self.peaks[name]) for name in over)
            fits = "; ".join(
                f"{name} would need {brief(peak.peak)} of {brief(peak.capacity)} {UNITS[name]}"
                for name, peak in peaks
            )
        waits = ""
        if self.tool_wait_s is not None and self.tools_done_s is not None:
            waits = (
                f"; {self.tasks_at_once} tools at once wait {brief(self.tool_wait_s)} s on average, and the "
                f"last ends after {brief(self.tools_done_s)} s"
            )
        how = (
            "a task" if self.tasks_at_once == 1 else f"{self.tasks_at_once} tasks at once"
        ) + f" every {brief(self.every_s)} s"
        return f"{how}: {fits}{waits}"


@dataclass(frozen=True)
class Use:
    """So much of something from one moment of a task to another."""

    from_s: float
    to_s: float
    amount: float


class Folded:
    """The use of tasks that arrive ``weight`` at a time each ``period_s``, over one period."""

    def __init__(self, uses: Sequence[Use], period_s: float, weight: float = 1.0) -> None:
        """Seconds; amounts in the unit of the resource.

        >>> tool = Folded([Use(9, 10, 1)], period_s=0.1)
        >>> tool.peak, tool.mean
        (10.0, 10.0)
        >>> burst = Folded([Use(9, 10, 1)], period_s=8, weight=80)
        >>> burst.peak, burst.mean, burst.at(1.5), burst.at(2.5)
        (80.0, 10.0, 80.0, 0.0)
        """
        self.period_s = period_s
        steps: dict[float, float] = {0.0: 0.0}
        base, self.mean = 0.0, 0.0
        for use in uses:
            length = (use.to_s - use.from_s) / period_s
            self.mean += weight * use.amount * length
            whole = math.floor(length + 10**-_DECIMALS)
            base += weight * use.amount * whole
            # both from their own moments, so that one's end and another's start are one number
            start, end = self._part(use.from_s), self._part(use.to_s)
            if start != end:
                steps[start] = steps.get(start, 0.0) + weight * use.amount
                if end > 0.0:
                    steps[end] = steps.get(end, 0.0) - weight * use.amount
                if 0.0 < end < start:  # it goes on into the next period
                    base += weight * use.amount
        self._starts = sorted(steps)
        self._levels: list[float] = []
        level = base
        for start in self._starts:
            level += steps[start]
            self._levels.append(round(level, _DECIMALS))
        self.peak = max(self._levels)

    def at(self, when_s: float) -> float:
        """The use at a moment; the first arrival of a period is at its beginning."""
        return self._levels[bisect.bisect_right(self._starts, self._part(when_s)) - 1]

    def _part(self, when_s: float) -> float:
        """Where in its period a moment lies, from 0 to below 1."""
        return round(when_s / self.period_s % 1.0, _DECIMALS) % 1.0

    def changes_s(self, until_s: float) -> Iterator[float]:
        """The moments at which the use changes, from 0 on."""
        n = 0
        while n * self.period_s < until_s:
            for start in self._starts:
                yield (n + start) * self.period_s
            n += 1


def phases(task: Task, environment: Environment, number: int, rate: float) -> Iterator[Phase]:
    """What one task does when; preparation ends with the model call where it fits into it (11.5.3)."""
    recreated = environment.policy == "recreate"
    prepare_s = environment.prepare_s if recreated else 0.0
    at_s = 0.0
    for n in range(1, round(task.rounds) + 1):
        tool_s = at_s + max(task.model_s, prepare_s)
        model = (at_s, at_s + task.model_s)
        yield Phase(number, n, "model", *model, rate * task.model_s, 0.0)
        if recreated:
            cores = rate * environment.prepare_cpu_s
            yield Phase(number, n, "prepare", tool_s - prepare_s, tool_s, rate * prepare_s, cores)
        at_s = tool_s + task.tool_s
        yield Phase(number, n, "tool", tool_s, at_s, rate * task.tool_s, rate * task.cpu_s)


def uses(asked: DemandScenario, task: Task) -> dict[Resource, list[Use]]:
    """What one task uses when; ``memory`` counts environments."""
    environment = asked.environment
    found: dict[Resource, list[Use]] = {"cpu": [], "memory": [], "model": []}
    prepare_cores = _cores(environment.prepare_cpu_s, environment.prepare_s, "prepare")
    tool_cores = _cores(task.cpu_s, task.tool_s, "tool")
    begun_s = ended_s = 0.0
    for phase in phases(task, environment, 1, 1.0):
        ended_s = phase.to_s
        if phase.what == "model":
            found["model"].append(Use(phase.from_s, phase.to_s, 1.0))
            begun_s = phase.to_s
        elif phase.what == "prepare":
            found["cpu"].append(Use(phase.from_s, phase.to_s, prepare_cores))
            begun_s = phase.from_s
        else:
            found["cpu"].append(Use(phase.from_s, phase.to_s, tool_cores))
            if environment.policy == "recreate":
                found["memory"].append(Use(begun_s, phase.to_s, 1.0))
    if environment.policy == "resident":
        found["memory"].append(Use(0.0, ended_s, 1.0))
    return found


def folded(asked: DemandScenario, at_once: int) -> dict[Resource, list[Folded]]:
    """One for each sort of task that arrives, evenly among themselves; ``memory`` counts environments."""
    found: dict[Resource, list[Folded]] = {"cpu": [], "memory": [], "model": []}
    for task in asked.tasks:
        rate = asked.arrivals_per_s * task.share
        if rate > 0:
            for name, each in uses(asked, task).items():
                weight = at_once * task.share if at_once > 1 else 1.0
                found[name].append(Folded(each, weight / rate, weight))
    return found


def timeline(asked: DemandScenario, arrivals: Arrivals, burst: int | None = None) -> Timeline:
    """The steady state. Raises :class:`UsageError` for tasks that have none that could be drawn.

    Even: each sort of task arrives evenly. The peak is exact for one sort; for several it is the sum of theirs,
    which they come near to at some time and never exceed. Burst: ``burst`` tasks together, all sorts by their
    shares; by default as many as arrive in a second.
    """
    check(asked)
    rate = asked.arrivals_per_s
    at_once = 1
    if arrivals == "burst":
        at_once = max(1, round(rate)) if burst is None else burst
    rows = [
        phase
        for n, task in enumerate(asked.tasks, 1)
        for phase in phases(task, asked.environment, n, rate * task.share)
    ]
    layers = folded(asked, at_once)
    sizes = {"cpu": 1.0, "memory": asked.environment.memory_gib, "model": 1.0}
    there = asked.capacity
    capacity = {"cpu": there.cpu_cores, "memory": there.memory_gib, "model": there.model_slots}
    peaks = {}
    for name, each in layers.items():
        peak = sizes[name] * sum(layer.peak for layer in each)
        mean = sizes[name] * sum(layer.mean for layer in each)
        share = peak / capacity[name] if capacity[name] else None
        peaks[name] = Peak(mean, peak, capacity[name], share)
    wait_s, done_s = _tools(asked, at_once) if arrivals == "burst" else (None, None)
    environments = sum(layer.peak for layer in layers["memory"])
    return Timeline(arrivals, at_once, at_once / rate, rows, peaks, environments, wait_s, done_s)


def check(asked: DemandScenario) -> None:
    """Refuse what has no timeline, with a sentence."""
    if asked.arrivals_per_s == 0:
        raise UsageError("arrivals_per_s is 0, so there is no timeline; give a rate")
    for n, task in enumerate(asked.tasks):
        if not float(task.rounds).is_integer():
            raise UsageError(
                f"tasks[{n}].rounds is {task.rounds:g}; a timeline needs whole rounds, so write two tasks"
            )
    total = sum(task.rounds for task in asked.tasks)
    if total > MOST_ROUNDS:
        raise UsageError(f"the tasks have {total:g} rounds; a timeline shows {MOST_ROUNDS} at most")
    for task in asked.tasks:
        _cores(task.cpu_s, task.tool_s, "tool")
    if asked.environment.policy == "recreate":
        _cores(asked.environment.prepare_cpu_s, asked.environment.prepare_s, "prepare")


def _cores(cpu_s: float, seconds: float, what: What) -> float:
    """How many cores a run keeps busy, evenly over its time (11.5.3)."""
    if seconds > 0:
        return cpu_s / seconds
    if cpu_s > 0:
        raise UsageError(
            f"{what}_cpu_s is {cpu_s:g} and {what}_s is 0; work takes time, so give {what}_s"
        )
    return 0.0


def _tools(asked: DemandScenario, at_once: int) -> tuple[float | None, float | None]:
    """Mean wait, and the end of the last, of tools that could all start at once on free cores (11.3.2)."""
    task = asked.tasks[0]
    cores = _cores(task.cpu_s, task.tool_s, "tool")
    if len(asked.tasks) > 1 or not task.rounds or cores == 0:
        return None, None
    workers = math.floor(asked.capacity.cpu_cores / cores + 1e-9)
    if workers == 0:
        return None, None
    spans = first_come([(0.0, task.tool_s)] * at_once, workers)
    return sum(span.start_s for span in spans) / at_once, max(span.finish_s for span in spans)
