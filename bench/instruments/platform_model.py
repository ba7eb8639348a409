"""The chapter's platform as a discrete-event model: what the formulas of tenure.capacity leave out is queues.

Tasks take model slots, CPU cores and memory, first come first served for each, and wait for what is not free. An
environment that is made anew for each round is begun so that it would be ready when the model call ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import simpy

from tenure.capacity.demand import DemandScenario, Environment, Task
from tenure.capacity.terms import in_time

Arrivals = Literal["even", "poisson"]
Steps = Iterator[simpy.Event]
_INSTANT_S = 1e-6
_MICRO = 1_000_000  # amounts are whole millionths, which add up without rounding


@dataclass(frozen=True)
class Observed:
    """Means over the time that was watched, and what happened to the tasks that arrived in it."""

    tasks: int
    cpu_cores: float
    environments: float
    model_concurrency: float
    model_calls_per_s: float
    environment_creations_per_s: float
    completed_per_s: float
    task_s: float
    task_p95_s: float
    in_time_share: float  # of those that arrived, times `success`
    peaks: dict[str, float]


@dataclass
class _Meter:
    """How much of something is in use, over the time that is watched."""

    world: simpy.Environment
    from_s: float
    to_s: float
    level: float = 0.0
    peak: float = 0.0
    area: float = 0.0
    since_s: float = 0.0

    def add(self, amount: float) -> None:
        """So much more, or less, from now on."""
        self._to(self.world.now)
        self.level += amount

    def mean(self) -> float:
        """Over the time that is watched; it is over."""
        self._to(self.to_s)
        return self.area / (self.to_s - self.from_s)

    def _to(self, now_s: float) -> None:
        begun_s, ended_s = max(self.since_s, self.from_s), min(now_s, self.to_s)
        self.area += self.level * max(ended_s - begun_s, 0.0)
        if ended_s - begun_s > _INSTANT_S:  # what happens in one instant is played one by one
            self.peak = max(self.peak, self.level)
        self.since_s = now_s


@dataclass
class Platform:
    """One history of a scenario."""

    asked: DemandScenario
    arrivals: Arrivals
    watch_s: float
    warm_s: float  # of arrivals before what is watched
    seed: int = 0
    limited: bool = True  # False: as if there were enough of everything
    world: simpy.Environment = field(default_factory=simpy.Environment)
    took_s: list[float] = field(default_factory=list)
    ended: int = 0
    calls: int = 0
    made: int = 0

    def __post_init__(self) -> None:
        until_s = self.warm_s + self.watch_s
        self.chance = random.Random(self.seed)
        self.meters = {
            name: _Meter(self.world, self.warm_s, until_s)
            for name in ("cpu", "environments", "model")
        }
        there = self.asked.capacity
        self.cores = self._pool(there.cpu_cores)
        self.memory = self._pool(there.memory_gib)
        self.slots = self._pool(there.model_slots)

    def play(self) -> Observed:
        """All tasks that arrive by the end of the watch, to their ends."""
        self.world.process(self._arrive())
        self.world.run()
        done = sorted(self.took_s)
        deadline_s = self.asked.deadline_s
        punctual = sum(deadline_s is None or in_time(each, deadline_s) for each in done)
        return Observed(
            tasks=len(done),
            cpu_cores=self.meters["cpu"].mean(),
            environments=self.meters["environments"].mean(),
            model_concurrency=self.meters["model"].mean(),
            model_calls_per_s=self.calls / self.watch_s,
            environment_creations_per_s=self.made / self.watch_s,
            completed_per_s=self.ended / self.watch_s,
            task_s=sum(done) / len(done),
            task_p95_s=done[int(0.95 * (len(done) - 1))],
            in_time_share=self.asked.success * punctual / len(done),
            peaks={name: meter.peak for name, meter in self.meters.items()},
        )

    def _pool(self, amount: float) -> simpy.Container:
        size = max(int(amount * _MICRO), 1) if self.limited else 10**18
        return simpy.Container(self.world, size, size)

    def _watched(self) -> bool:
        return self.warm_s <= self.world.now < self.warm_s + self.watch_s

    def _arrive(self) -> Steps:
        """Tasks by their shares: in turn where arrivals are even, drawn where they are not."""
        owed = [0.0] * len(self.asked.tasks)
        rate, n = self.asked.arrivals_per_s, 0
        while self.world.now < self.warm_s + self.watch_s:
            if self.arrivals == "even":
                owed = [a + task.share for a, task in zip(owed, self.asked.tasks, strict=True)]
                pick = max(range(len(owed)), key=lambda i: owed[i])
                owed[pick] -= 1
                n += 1
                wait_s = n / rate - self.world.now
            else:
                shares = [task.share for task in self.asked.tasks]
                pick = self.chance.choices(range(len(shares)), shares)[0]
                wait_s = self.chance.expovariate(rate)
            self.world.process(self._task(self.asked.tasks[pick]))
            yield self.world.timeout(max(wait_s, 0.0))

    def _task(self, task: Task) -> Steps:
        began_s, counts = self.world.now, self._watched()
        environment = self.asked.environment
        resident = environment.policy == "resident"
        if resident:
            yield from self._open(environment)
        for _ in range(int(task.rounds)):
            yield self.slots.get(_MICRO)
            self.calls += self._watched()
            ready = None
            if not resident:
                late_s = max(task.model_s - environment.prepare_s, 0.0)
                ready = self.world.process(self._prepare(environment, late_s))
            yield from self._hold("model", task.model_s, 1.0)
            yield self.slots.put(_MICRO)
            if ready is not None:
                yield ready
            cores = task.cpu_s / task.tool_s if task.tool_s else 0.0
            yield from self._compute(cores, task.tool_s)
            if not resident:
                yield from self._close(environment)
        if resident:
            yield from self._close(environment)
        self.ended += self._watched()
        if counts:
            self.took_s.append(self.world.now - began_s)

    def _prepare(self, environment: Environment, after_s: float) -> Steps:
        yield self.world.timeout(after_s)
        yield from self._open(environment)
        spread = environment.prepare_s
        yield from self._compute(environment.prepare_cpu_s / spread if spread else 0.0, spread)

    def _open(self, environment: Environment) -> Steps:
        if environment.memory_gib:
            yield self.memory.get(int(environment.memory_gib * _MICRO))
        self.made += self._watched()
        self.meters["environments"].add(1)

    def _close(self, environment: Environment) -> Steps:
        self.meters["environments"].add(-1)
        if environment.memory_gib:
            yield self.memory.put(int(environment.memory_gib * _MICRO))

    def _compute(self, cores: float, seconds: float) -> Steps:
        amount = int(cores * _MICRO)
        if amount:
            yield self.cores.get(amount)
        yield from self._hold("cpu", seconds, cores)
        if amount:
            yield self.cores.put(amount)

    def _hold(self, what: str, seconds: float, amount: float) -> Steps:
        self.meters[what].add(amount)
        yield self.world.timeout(seconds)
        self.meters[what].add(-amount)


#: What formula and model both tell, by the name of the formula's key.
BOTH: dict[str, Callable[[Observed], float]] = {
    "model_calls_per_s": lambda seen: seen.model_calls_per_s,
    "model_concurrency": lambda seen: seen.model_concurrency,
    "cpu_cores": lambda seen: seen.cpu_cores,
    "environments": lambda seen: seen.environments,
    "environment_creations_per_s": lambda seen: seen.environment_creations_per_s,
    "task_s": lambda seen: seen.task_s,
    "in_time_share": lambda seen: seen.in_time_share,
}
