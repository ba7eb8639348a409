"""The formulas against a platform with queues: exact where arrivals are even, and what they leave out where not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("simpy", reason="the discrete-event model needs simpy (the extra dev)")

from bench.capacity import at, example
from bench.instruments.platform_model import BOTH, Platform
from tenure.capacity.demand import DemandScenario, demand
from tenure.capacity.scenario import ask


def close(asked: DemandScenario, share: float) -> None:
    """Every number that formula and model both tell."""
    told = demand(asked)
    seen = Platform(asked, "even", watch_s=84.0, warm_s=63.0).play()
    for key, of in BOTH.items():
        assert of(seen) == pytest.approx(getattr(told, key), rel=share), key


@pytest.mark.parametrize("policy", ["resident", "recreate"])
@pytest.mark.parametrize("rate", [2.0, 10.0])
def test_even_arrivals_are_as_the_formulas_say(policy: str, rate: float) -> None:
    chosen = example("11-9-chosen")
    environment = chosen.environment.model_copy(update={"policy": policy})
    there = chosen.capacity.model_copy(update={"memory_gib": 480.0})
    update: dict[str, Any] = {"environment": environment, "capacity": there}
    close(at(chosen.model_copy(update=update), rate), 0.01)


def test_preparation_that_does_not_fit_delays_the_tool_in_the_model_too() -> None:
    chosen = example("11-9-chosen")
    slow = chosen.environment.model_copy(update={"prepare_s": 7.0})
    close(at(chosen.model_copy(update={"environment": slow}), 4.0), 0.01)


def test_several_sorts_of_tasks_in_turn() -> None:
    asked = ask(
        {
            "kind": "demand",
            "arrivals_per_s": 4,
            "tasks": [
                {"share": 0.25, "rounds": 3, "model_s": 6, "tool_s": 1},
                {"share": 0.75, "rounds": 1, "model_s": 2, "tool_s": 2, "tool_cpu_s": 4},
            ],
            "environment": {"memory_gib": 2, "policy": "resident"},
            "capacity": {"cpu_cores": 100, "memory_gib": 500, "model_slots": 100},
            "deadline_s": 10,
        }
    )
    assert isinstance(asked, DemandScenario)
    close(asked, 0.01)


def test_a_platform_too_small_completes_the_most_that_may_arrive() -> None:
    asked = example("11-1-environments")
    told = demand(asked)
    seen = Platform(asked, "even", watch_s=2 * told.task_s, warm_s=3 * told.task_s).play()
    assert seen.completed_per_s == pytest.approx(told.max_arrivals_per_s, rel=0.01)
    assert seen.completed_per_s < told.environment_creations_per_s  # fewer than arrive
    assert seen.task_s > told.task_s  # the others wait


def test_random_arrivals_wait_as_no_formula_here_says() -> None:
    chosen = example("11-9-chosen")
    told = demand(at(chosen, 10.5))
    seen = Platform(at(chosen, 10.5), "poisson", watch_s=150.0, warm_s=100.0, seed=1).play()
    assert seen.task_s > 1.005 * told.task_s
    free = Platform(at(chosen, 10.5), "poisson", 150.0, 100.0, seed=1, limited=False).play()
    # without limits nothing waits and Little's law holds, but more is used at once
    assert free.task_s == pytest.approx(told.task_s)
    assert free.cpu_cores == pytest.approx(told.cpu_cores, rel=0.1)
    assert free.peaks["cpu"] > 1.2 * told.cpu_cores


def test_the_model_wants_what_is_limited() -> None:
    """With more slots than are needed nothing waits; with too few something does."""
    chosen = at(example("11-9-chosen"), 4.0)
    few = chosen.capacity.model_copy(update={"model_slots": 60.0})
    tight = chosen.model_copy(update={"capacity": few})
    waits = Platform(tight, "even", watch_s=42.0, warm_s=63.0).play()
    free = Platform(chosen, "even", watch_s=42.0, warm_s=63.0).play()
    assert waits.task_s > 1.05 * free.task_s
    assert waits.peaks["model"] == 60
