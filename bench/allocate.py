"""How long does the greedy allocation of many jobs take, and how far is it above the least?

    python bench/allocate.py
    python bench/allocate.py --jobs 2000 --rungs 20

10,000 jobs on 50 rungs, seeded. Three kinds of worlds: every launch has one card and jobs take to some
cards more than to others; the same where all jobs scale alike, so that most rungs are equally good for
most jobs; and launches of up to four cards, paid for whole, for jobs of one, two or four. The bound is that
of the relaxation, in which jobs are split and launches are never partly empty: no allocation is cheaper.
Seconds are those of `allocate` as a whole, without reading a file; gaps do not depend on the machine.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from bench.instruments.report import Report, arguments
from tenure.plan.allocate import Allocation, allocate
from tenure.plan.allocate_scenario import Job, Price, Quota, Rung, Scenario

JOBS, RUNGS, SEEDS = 10_000, 50, 5


def one_card(seed: int, jobs: int, rungs: int) -> Scenario:
    """Work that takes to some cards more than to others, by family."""
    return _world(random.Random(seed), jobs, rungs, affinity=0.3, packs=False)


def alike(seed: int, jobs: int, rungs: int) -> Scenario:
    """All jobs take the same time per unit of work on a rung."""
    return _world(random.Random(seed), jobs, rungs, affinity=0.0, packs=False)


def packs(seed: int, jobs: int, rungs: int) -> Scenario:
    """Launches of 1, 2 or 4 cards, jobs of 1, 2 or 4."""
    return _world(random.Random(seed), jobs, rungs, affinity=0.3, packs=True)


WORLDS: dict[str, Callable[[int, int, int], Scenario]] = {
    "one card, affinities": one_card,
    "one card, all alike": alike,
    "packs": packs,
}


def _world(rng: random.Random, jobs: int, rungs: int, affinity: float, packs: bool) -> Scenario:
    found = [_rung(rng, n, jobs / JOBS * RUNGS / rungs, packs) for n in range(rungs)]
    families = [[rng.lognormvariate(0, affinity) for _ in found] for _ in range(40)]
    return Scenario(
        horizon_h=168.0,
        rungs=found,
        jobs=[_job(rng, n, found, rng.choice(families), affinity, packs) for n in range(jobs)],
    )


def _rung(rng: random.Random, n: int, scale: float, packs: bool) -> Rung:
    """Every eighth or so is free and has a quota; four in ten are spot; the first is sure and has no limit."""
    speed = 0.3 * 8 ** rng.random()
    sure, spot, free = n == 0, rng.random() < 0.4 and n > 0, rng.random() < 0.15 and n > 0
    cards = 4 if sure and packs else rng.choice([1, 2, 4, 4]) if packs else 1
    price = cards * speed * (1.2 if sure else rng.uniform(0.4, 1.1) * (0.35 if spot else 1.0))
    quota = Quota(
        left=rng.uniform(10, 200), renews_in_h=rng.uniform(10, 160), granted=rng.uniform(30, 300)
    )
    places = max(1, round(rng.choice([4, 8, 16, 24, 40]) * scale * (1 if packs else 3)))
    return Rung(
        name=f"r{n}",
        price=Price(per_h=0.0 if free else price),
        speed=speed,
        spot=spot,
        hazard_per_h=rng.uniform(0.01, 0.2) if spot else 0.0,
        start_h=rng.choice([0.05, 0.1, 0.2]),
        cards=cards,
        concurrency=None if sure or rng.random() < 0.1 else places,
        quota=quota if free else None,
        wall_h=rng.choice([None, None, 12.0, 24.0]),
        kinds=["train", "evaluate", "backtest"] if sure or rng.random() < 0.7 else ["train"],
        environments=["pinned"] if sure or rng.random() < 0.5 else [],
    )


def _job(
    rng: random.Random, n: int, rungs: list[Rung], family: list[float], affinity: float, packs: bool
) -> Job:
    """From half an hour to 20 h; seven in ten have a deadline, one in seven is critical, one in ten pinned."""
    work_h = 0.5 * 40 ** rng.random()
    noise = [factor * rng.lognormvariate(0, affinity / 3) for factor in family]
    return Job(
        name=f"j{n}",
        hours_on={it.name: work_h / it.speed * f for it, f in zip(rungs, noise, strict=True)},
        kind=rng.choices(["train", "evaluate", "backtest"], [6, 2, 2])[0],  # type: ignore[arg-type]
        deadline_h=rng.choice([None, None, 48.0, 72.0, 96.0, 120.0, 24 + 140 * rng.random()]),
        critical=rng.random() < 0.15,
        environment="pinned" if rng.random() < 0.1 else None,
        cards=rng.choices([1, 2, 4], [8, 1, 1])[0] if packs else 1,
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rungs", type=int, default=RUNGS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    report = Report("allocate", asked)
    jobs, rungs = (600, 12) if report.quick else (asked.jobs, asked.rungs)
    seeds = 1 if report.quick else asked.seeds
    allocate(one_card(0, 50, 5), "greedy")  # imports are no part of what is measured
    for name, world in WORLDS.items():
        _measure(report, name, [world(seed, jobs, rungs) for seed in range(seeds)])
    report.end()


def _measure(report: Report, name: str, worlds: list[Scenario]) -> None:
    took_s, cpu_s, gaps = [], [], []
    left = 0
    for scenario in worlds:
        begun_s, cpu_begun_s = time.perf_counter(), time.process_time()
        found: Allocation = allocate(scenario, "greedy")
        took_s.append(time.perf_counter() - begun_s)
        cpu_s.append(time.process_time() - cpu_begun_s)
        gaps.append(found.gap or 0.0)
        left += len(found.left)
    report.line(
        name,
        f"{statistics.median(took_s):.2f} s ({min(took_s):.2f} to {max(took_s):.2f}), of the processor "
        f"{statistics.median(cpu_s):.2f} s; above the bound {statistics.median(gaps):.2%} "
        f"({min(gaps):.2%} to {max(gaps):.2%}); {left} jobs without a place",
        "2 s, 3 %",
        seconds=took_s,
        cpu_s=cpu_s,
        gaps=gaps,
        left=left,
    )


if __name__ == "__main__":
    main()
