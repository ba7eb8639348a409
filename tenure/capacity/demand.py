"""What a platform needs on average, and what gives out first (11.1.1, 11.1.2, 11.2.4, 11.5.3).

A task is some rounds of a model call and a tool run, one after another. The tool runs in an environment, which is
either kept for the whole task (``resident``, from a pool of prepared ones, 11.1) or made anew for each round while
the model is called (``recreate``, 11.2.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tenure.capacity.terms import (
    Answer,
    Number,
    Positive,
    Scenario,
    Seconds,
    Share,
    Strict,
    Usd,
    brief,
    in_time,
    missing,
    percent,
    ratio,
    sums_to_one,
)

Resource = Literal["cpu", "memory", "model"]
UNITS: dict[Resource, str] = {"cpu": "cores", "memory": "GiB", "model": "model slots"}


class Task(Strict):
    """One sort of task."""

    share: Annotated[Share, Field(description="of all tasks that arrive")] = 1.0
    rounds: Annotated[Number, Field(description="of a model call and a tool run each")]
    model_s: Annotated[Seconds, Field(description="of one model call, whole")]
    tool_s: Annotated[Seconds, Field(description="of one tool run")]
    tool_cpu_s: Annotated[
        Seconds | None, Field(description="CPU seconds of one tool run; none: one core, all of it")
    ] = None

    @property
    def cpu_s(self) -> float:
        """CPU seconds of one tool run."""
        return self.tool_s if self.tool_cpu_s is None else self.tool_cpu_s


class Environment(Strict):
    """Where the tools of a task run."""

    memory_gib: Annotated[Number, Field(description="of one environment, as long as it is there")]
    policy: Annotated[
        Literal["resident", "recreate"],
        Field(description="kept for the task, from a prepared pool; or made for each round"),
    ]
    prepare_s: Annotated[Seconds, Field(description="to make one; of no effect if resident")] = 0.0
    prepare_cpu_s: Annotated[Seconds, Field(description="CPU seconds of it")] = 0.0


class Capacity(Strict):
    """What is there."""

    cpu_cores: Number
    memory_gib: Number
    model_slots: Annotated[Number, Field(description="model calls at once")]


class Prices(Strict):
    """What is paid; what is left out costs nothing."""

    cpu_s: Annotated[Usd, Field(description="usd of a CPU second")] = 0.0
    gib_s: Annotated[Usd, Field(description="usd of a GiB for a second")] = 0.0
    model_call: Annotated[Usd, Field(description="usd of a model call")] = 0.0


@dataclass(frozen=True)
class Needs:
    """What one task takes, on average where there are several sorts."""

    task_s: float
    model_calls: float
    model_s: float  # of all its calls
    cpu_s: float  # of tools and preparations
    environment_s: float  # that an environment is there
    creations: float  # of environments


@dataclass(frozen=True)
class Demand(Answer):
    """Little's law for each resource: what arrives in a second times what each takes (11.1.2)."""

    model_calls_per_s: float
    model_concurrency: float
    cpu_cores: float
    environments: float
    memory_gib: float
    environment_creations_per_s: float
    task_s: float
    utilisation: dict[Resource, float | None]  # None: something is needed and nothing is there
    bottleneck: Resource | None  # None: no task needs anything
    max_arrivals_per_s: float | None
    short: dict[str, float]
    cost_per_1000_tasks: float | None
    in_time_share: float
    cost_per_1000_in_time: float | None

    @property
    def words(self) -> str:
        """What gives out first, and what must be added."""
        if self.bottleneck is None:
            return f"a task takes {brief(self.task_s)} s and needs nothing that is limited"
        use = self.utilisation[self.bottleneck]
        part = "there is none" if use is None else f"at {percent(use)} of what is there"
        first = f"{self.bottleneck} gives out first, {part}"
        lacks = [
            f"{brief(amount)} {UNITS[resource]}"
            for resource, amount in zip(UNITS, self.short.values(), strict=True)
            if amount
        ]
        wanted = f"; {' and '.join(lacks)} must be added at least" if lacks else ""
        full = self.utilisation["memory"]
        if self.bottleneck == "memory" and full:
            first += f" ({whole_environments(self.environments / full, 1.0)} whole environments)"
        return (
            f"a task takes {brief(self.task_s)} s; {first}, so that {brief(self.max_arrivals_per_s)} "
            f"tasks/s are the most{wanted}; {percent(self.in_time_share)} of the tasks end well and in time"
        )


def round_s(task: Task, environment: Environment) -> float:
    """Of one round: preparation overlaps the model call, and what does not fit delays the tool (11.1.1).

    >>> slow = Environment(memory_gib=2, policy="recreate", prepare_s=2.7)
    >>> round_s(Task(rounds=1, model_s=6, tool_s=1), slow), round_s(Task(rounds=1, model_s=1, tool_s=1), slow)
    (7.0, 3.7)
    """
    recreated = environment.policy == "recreate"
    before_tool_s = max(task.model_s, environment.prepare_s if recreated else 0.0)
    return before_tool_s + task.tool_s


def needs(task: Task, environment: Environment) -> Needs:
    """What one task takes (11.1.1, 11.2.4).

    Resident: an environment for ``R (model_s + tool_s)``, made once. Recreated: for ``R (prepare_s + tool_s)``,
    made R times at ``prepare_cpu_s`` each.

    >>> job = Task(rounds=3, model_s=9, tool_s=1)
    >>> kept = Environment(memory_gib=2, policy="resident")
    >>> made = Environment(memory_gib=2, policy="recreate", prepare_s=2, prepare_cpu_s=0.1)
    >>> needs(job, kept).environment_s, needs(job, made).environment_s, round(needs(job, made).cpu_s, 9)
    (30.0, 9.0, 3.3)
    """
    task_s = task.rounds * round_s(task, environment)
    tools_cpu_s = task.rounds * task.cpu_s
    if environment.policy == "resident":
        return Needs(task_s, task.rounds, task.rounds * task.model_s, tools_cpu_s, task_s, 1.0)
    return Needs(
        task_s,
        task.rounds,
        task.rounds * task.model_s,
        tools_cpu_s + task.rounds * environment.prepare_cpu_s,
        task.rounds * (environment.prepare_s + task.tool_s),
        task.rounds,
    )


class DemandScenario(Scenario):
    """Tasks that arrive steadily, and a platform for them."""

    kind: Literal["demand"]
    arrivals_per_s: Annotated[Number, Field(description="tasks of all sorts")]
    tasks: Annotated[list[Task], Field(min_length=1)]
    environment: Environment
    capacity: Capacity
    prices: Annotated[Prices | None, Field(description="none: no costs are told")] = None
    deadline_s: Annotated[Positive | None, Field(description="of a task; none: never late")] = None
    success: Annotated[Share, Field(description="of the tasks end well")] = 1.0

    @field_validator("tasks")
    @classmethod
    def _all_tasks(cls, tasks: list[Task]) -> list[Task]:
        shares = [task.share for task in tasks]
        if not sums_to_one(shares):
            raise ValueError(f"the shares sum to {math.fsum(shares):.6g}, they must sum to 1")
        return tasks

    def mean(self) -> Needs:
        """What a task takes on average."""
        each = [(task.share, needs(task, self.environment)) for task in self.tasks]
        return Needs(
            *(
                math.fsum(share * getattr(taken, name) for share, taken in each)
                for name in Needs.__dataclass_fields__
            )
        )

    def answer(self) -> Demand:
        """All of it on average; what arrives at once is ``--timeline burst``."""
        return demand(self)


def demand(asked: DemandScenario) -> Demand:
    """Needs, utilisation, the most that may arrive, and costs (11.1.2, 11.5.3).

    ``max_arrivals_per_s`` is the least of ``capacity / need per task``. The share in time is ``success`` times the
    share of the tasks whose own path, without queues, keeps the deadline; costs per success in time divide all
    costs by it (11.5.2).
    """
    mean, rate = asked.mean(), asked.arrivals_per_s
    gib_s = mean.environment_s * asked.environment.memory_gib
    per_task: dict[Resource, float] = {"cpu": mean.cpu_s, "memory": gib_s, "model": mean.model_s}
    there: dict[Resource, float] = {
        "cpu": asked.capacity.cpu_cores,
        "memory": asked.capacity.memory_gib,
        "model": asked.capacity.model_slots,
    }
    most = {name: there[name] / need for name, need in per_task.items() if need > 0}
    bottleneck = min(most, key=lambda name: most[name], default=None)
    needed = {name: rate * need for name, need in per_task.items()}
    cost = _cost(asked.prices, mean, gib_s)
    punctual = asked.success * math.fsum(
        task.share
        for task in asked.tasks
        if asked.deadline_s is None
        or in_time(needs(task, asked.environment).task_s, asked.deadline_s)
    )
    return Demand(
        model_calls_per_s=rate * mean.model_calls,
        model_concurrency=needed["model"],
        cpu_cores=needed["cpu"],
        environments=rate * mean.environment_s,
        memory_gib=needed["memory"],
        environment_creations_per_s=rate * mean.creations,
        task_s=mean.task_s,
        utilisation={name: ratio(needed[name], there[name]) for name in per_task},
        bottleneck=bottleneck,
        max_arrivals_per_s=None if bottleneck is None else most[bottleneck],
        short={
            "cpu_cores": missing(needed["cpu"], there["cpu"]),
            "memory_gib": missing(needed["memory"], there["memory"]),
            "model_slots": missing(needed["model"], there["model"]),
        },
        cost_per_1000_tasks=cost,
        in_time_share=punctual,
        cost_per_1000_in_time=None if cost is None or punctual == 0 else cost / punctual,
    )


def whole_environments(memory_gib: float, each_gib: float) -> int | None:
    """How many environments fit whole; None where they take no memory (example 11-1).

    >>> whole_environments(384e9 / 2**30, 2)
    178
    """
    return None if each_gib == 0 else math.floor(memory_gib / each_gib * (1 + 1e-12))


def _cost(prices: Prices | None, mean: Needs, gib_s: float) -> float | None:
    """Of a thousand tasks, in usd (11.5.3)."""
    if prices is None:
        return None
    model = mean.model_calls * prices.model_call
    return 1000 * (model + mean.cpu_s * prices.cpu_s + gib_s * prices.gib_s)
