"""The pattern of SkyPilot issue 10155: outages of one path while the training loop is healthy.

There, 25 outages of the controller's path in 19 hours cost 24 recoveries. Here a path that is down
for longer than a lease costs one only where it is the worker's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from tenure.sim.checks import Violation
from tenure.sim.faults import Weather
from tenure.sim.run import quiet_folder
from tenure.sim.world import LIMIT_S, Incident, Plan, Task, World

OutagePath = Literal["platform", "dispatcher", "store", "worker"]
OUTAGE_S = (60.0, 300.0)
_STEP_S = 1.0  # its lease is 50 s, shorter than every outage
_EVERY = 600  # steps between milestones


@dataclass(frozen=True)
class Outcome:
    """What the outages cost."""

    outages: int
    recoveries: int  # launches and attempts beyond the first
    lost_steps: int  # of work before the milestone that was stored last
    end: str  # the last phase
    violations: tuple[Violation, ...]


def outages_of(path: OutagePath, outages: int = 25, hours: float = 19.0, seed: int = 0) -> Outcome:
    """Train for ``hours`` of virtual time while one path fails ``outages`` times."""
    rng = Random(seed)
    total_s = hours * 3600.0
    slot_s = total_s / outages
    incidents = tuple(
        # picked last among the living: the worker that holds the job now
        Incident(slot_s * n + rng.uniform(60.0, slot_s - 320.0), f"{path}_outage", length_s, 0.999)
        for n in range(outages)
        for length_s in [rng.uniform(*OUTAGE_S)]
    )
    task = Task(int(total_s / _STEP_S), _STEP_S, _EVERY, patience_s=1800.0, max_silence_s=3600.0)
    plan = Plan((task,), tick_s=5.0, window_s=120.0, incidents=incidents)
    with quiet_folder():
        world = World(rng, Weather(rng, calm_s=total_s), plan)
        world.run(LIMIT_S + outages * (_EVERY * _STEP_S + OUTAGE_S[1]))
    (facts,) = world.checker.jobs.values()
    spent = max(len(facts.attempts), max(facts.reserved, default=0))
    lost = sum(
        max(0, worker.pointed_step - worker.first_step)
        for worker in facts.attempts.values()
        if worker.first_step is not None
    )
    return Outcome(
        world.weather.counts[f"{path}_outage"],
        spent - 1,
        lost,
        facts.phase,
        tuple(world.checker.violations),
    )
