"""Run histories: one by its seed, or many in several processes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from random import Random

from tenure.dispatch.ladder import Price
from tenure.sim.checks import Violation
from tenure.sim.faults import Weather, draw_theme, draw_weather
from tenure.sim.world import Incident, Plan, Task, World

_SHARE = 200  # histories of one errand to a process
#: So that a seed below is the history that it was before machines took several jobs.
PACKS_EVERY = 10
#: Incidents of a theme, by how often they are drawn.
_MIXED = (
    *("store_outage", "dispatcher_outage", "worker_outage", "platform_outage") * 2,
    *("worker_crash", "worker_stop") * 4,
    *("dispatcher_crash",) * 3,
    *("human_revoke", "human_pause", "notice") * 2,
    "worker_suspend",
    "worker_hang",
    "dispatcher_stop",
    "clock_jump",
    "human_cancel",
    "human_rewind",
    "human_relaunch",
    "human_local",
)
_PEOPLE = (
    *("human_revoke", "human_pause") * 4,
    *("human_relaunch", "human_local", "human_rewind") * 2,
    *("worker_stop", "worker_hang", "human_cancel"),
)
_OUTAGES = ("store_outage", "store_outage", "dispatcher_outage", "worker_outage")
_INCIDENTS = {
    "mixed": _MIXED,
    "lossy": ("worker_crash", "worker_stop", "dispatcher_crash", "human_pause", "notice"),
    "people": _PEOPLE,
    "packs": ("worker_crash", "dispatcher_crash", "human_revoke", "worker_hang", *_MIXED),
    "platform": ("platform_outage", "worker_crash", "dispatcher_crash", "notice", "worker_hang"),
}


@dataclass(frozen=True)
class History:
    """What one seed gave."""

    seed: int
    steps: int  # calls of the store and the platform
    virtual_s: float
    faults: dict[str, int]
    violations: tuple[Violation, ...]
    ends: tuple[str, ...]  # the last phase of each job
    theme: str
    trace_hash: str
    lines: tuple[str, ...] = ()


@dataclass
class Summary:
    """What many seeds gave."""

    histories: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)

    def add(self, history: History) -> None:
        """Count one history."""
        self.histories += 1
        self.steps += history.steps
        self.faults.update(history.faults)
        self.ends.update(history.ends)
        self.violations.extend((history.seed, found) for found in history.violations)

    def merge(self, other: Summary) -> None:
        """Count what another process counted."""
        self.histories += other.histories
        self.steps += other.steps
        self.faults.update(other.faults)
        self.ends.update(other.ends)
        self.violations.extend(other.violations)


def draw_plan(rng: Random, weather: Weather, theme: str) -> Plan:
    """The jobs, dispatchers and incidents of a history."""
    packed = theme == "packs"
    several = rng.choice((2, 3, 4)) if packed else 1 if rng.random() < 0.85 else 2
    tasks = tuple(_task(rng) for _ in range(several))
    # A gap of the watch is a third of a lease, at least 3 s; a slower one needs the background watch.
    quick = any(task.steps > 20 for task in tasks)
    watching = rng.random() < 0.15
    if theme == "outages":
        incidents = _outages(rng, 20.0 if quick else 60.0)
    elif theme == "clear":
        incidents = []
    else:
        incidents = _incidents(rng, weather, _INCIDENTS[theme])
    return Plan(
        tasks,
        rungs=("spot",) if rng.random() < 0.6 else ("spot", "dear"),
        dispatchers=1 if rng.random() < 0.7 else 2,
        tick_s=rng.uniform(1.2, 2.4) if quick and not watching else rng.uniform(2.0, 6.0),
        background_watch=watching,
        window_s=rng.uniform(30.0, 50.0),
        cards=rng.choice((2, 3)) if packed else 1,
        price=Price("credits", 1.0) if packed else None,
        incidents=tuple(incidents),
    )


def _incidents(rng: Random, weather: Weather, kinds: tuple[str, ...]) -> list[Incident]:
    incidents = []
    for _ in range(rng.choice((0, 1, 2, 3, 4, 6))):
        kind = rng.choice(kinds)
        # half of what people do, they do before the worker has claimed
        early = kind.startswith("human_") and rng.random() < 0.5
        at_s = rng.uniform(0.0, 12.0 if early else min(weather.calm_s, 150.0))
        incidents.append(Incident(at_s, kind, _length_s(rng, kind, at_s, weather), rng.random()))
    return incidents


def _outages(rng: Random, lease_s: float) -> list[Incident]:
    """Outages of 0.5 to 3 leases; sometimes a dispatcher is frozen over one."""
    incidents = []
    for _ in range(rng.choice((1, 1, 2))):
        at_s = rng.uniform(5.0, 60.0)
        length_s = lease_s * rng.uniform(0.5, 3.0)
        incidents.append(Incident(at_s, rng.choice(_OUTAGES), length_s, rng.random()))
        if rng.random() < 0.25:
            frozen_s = length_s + rng.uniform(0.5, 10.0)
            incidents.append(Incident(at_s - 0.5, "dispatcher_stop", frozen_s, rng.random()))
    return incidents


def _task(rng: Random) -> Task:
    fault, rung = "", ""
    if rng.random() < 0.08:
        fault = rng.choice(("code_error", "out_of_memory", "machine_fault"))
        rung = "spot" if fault == "out_of_memory" else ""
    quick = rng.random() < 0.3  # long enough for a measured, short lease
    steps = rng.randint(26, 60) if quick else rng.randint(4, 12)
    step_s = rng.uniform(0.15, 0.6) if quick else rng.uniform(0.5, 8.0)
    every = rng.randint(8, 20) if quick else rng.randint(2, 5)
    patience_s = rng.choice((70.0, 150.0, 400.0))
    return Task(steps, step_s, every, fault, rung, patience_s, rng.choice((90.0, 150.0)))


def _length_s(rng: Random, kind: str, at_s: float, weather: Weather) -> float:
    if kind == "dispatcher_crash":
        return float(rng.randint(0, 40))  # calls
    longest_s = 400.0 if kind in ("worker_stop", "worker_suspend") else 200.0
    drawn_s = exp(rng.uniform(log(3.0), log(longest_s)))
    if kind.endswith("_outage"):
        return min(drawn_s, max(weather.calm_s - at_s, 1.0))
    return drawn_s


def run_history(seed: int, record: bool = False, theme: str = "") -> History:
    """Run one history. The same seed gives the same history, to the last write.

    ``theme`` takes the place of the one that the seed would draw.
    """
    with quiet_folder():
        return _run(seed, record, theme)


def _run(seed: int, record: bool = False, theme: str = "") -> History:
    rng = Random(seed)
    theme = theme or ("packs" if seed % PACKS_EVERY == PACKS_EVERY - 1 else draw_theme(rng))
    weather = draw_weather(rng, theme)
    world = World(rng, weather, draw_plan(rng, weather, theme), record)
    tale = world.run()
    if theme == "clear":
        world.checker.nothing_wasted()
    return History(
        seed,
        tale.steps,
        world.scheduler.now_s,
        dict(weather.counts),
        tuple(world.checker.violations),
        tuple(facts.phase for facts in world.checker.jobs.values()),
        theme,
        tale.digest,
        tuple(tale.lines),
    )


@contextmanager
def quiet_folder() -> Iterator[None]:
    """Give the workers' snapshots a folder in memory, where there is one, and clear it after."""
    memory = Path("/dev/shm")
    before = tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="tenure-sim-", dir=memory if memory.is_dir() else None)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def run_many(histories: int, seed: int, processes: int = 2) -> Summary:
    """Run ``histories`` seeds from ``seed`` on, in so many processes."""
    total = Summary()
    shares = [
        range(first, min(first + _SHARE, seed + histories))
        for first in range(seed, seed + histories, _SHARE)
    ]
    if processes <= 1 or len(shares) == 1:
        for share in shares:
            total.merge(_share(share))
        return total
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_share, shares):
            total.merge(part)
    return total


def _share(seeds: Iterable[int]) -> Summary:
    part = Summary()
    with quiet_folder():
        for seed in seeds:
            part.add(_run(seed))
    return part
