"""Launches in time: which jobs go together, on which of a rung's places, from when to when.

A place is one of as many launches as a rung may have at once. The launches of a place follow each other
without a gap, except that a quota may run out: then its place waits for the renewal, and a job that was
running goes on from its last milestone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tenure.plan.allocate_model import SLACK, TOLERANCE, Problem

Runs = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Launch:
    """A machine with its jobs, paid for until the longest of them has ended."""

    rung: int
    place: int  # of the rung, from 0
    jobs: tuple[int, ...]
    hours: float  # the longest of its jobs
    runs: Runs  # from when to when it works, in hours from now; together `hours`

    def until_h(self, worked_h: float) -> float:
        """When it has worked so many hours.

        >>> Launch(0, 0, (0,), 5.0, ((0.0, 2.0), (10.0, 13.0))).until_h(4.0)
        12.0
        """
        left_h = worked_h
        for from_h, to_h in self.runs:
            if left_h <= to_h - from_h + SLACK:
                return min(from_h + left_h, to_h)
            left_h -= to_h - from_h
        return self.runs[-1][1]


def timeline(lengths_h: Sequence[float], used_h: Sequence[tuple[float, float]]) -> list[Runs]:
    """When each launch of a place runs, in turn; ``used_h`` are starts of windows and hours worked in them.

    >>> timeline([3.0, 2.0], [(0.0, 4.0), (24.0, 1.0)])
    [((0.0, 3.0),), ((3.0, 4.0), (24.0, 25.0))]
    """
    found: list[Runs] = []
    stretches = [(from_h, from_h + hours) for from_h, hours in used_h if hours > SLACK]
    at, now_h = 0, stretches[0][0] if stretches else 0.0
    for length_h in lengths_h:
        left_h, runs = length_h, list[tuple[float, float]]()
        while left_h > SLACK / 10 and at < len(stretches):
            end_h = stretches[at][1]
            step_h = min(left_h, end_h - now_h)
            if step_h > 0:
                runs.append((now_h, now_h + step_h))
            left_h -= step_h
            now_h += step_h
            if now_h >= end_h - SLACK / 100:
                at += 1
                now_h = stretches[at][0] if at < len(stretches) else now_h
        if left_h > 0 and runs:  # what rounding left over
            runs[-1] = (runs[-1][0], runs[-1][1] + left_h)
            now_h = max(now_h, runs[-1][1])
        found.append(tuple(runs) or ((now_h, now_h + length_h),))
    return found


def taken(problem: Problem, launches: Sequence[Launch]) -> dict[str, list[float]]:
    """What launches take of each quota, by the name of its rung and window."""
    found = {it.name: [0.0] * len(it.windows) for it in problem.accounts}
    for launch in launches:
        account = problem.account_of.get(launch.rung)
        if account is None:
            continue
        for n, window in enumerate(account.windows):
            for from_h, to_h in launch.runs:
                inside_h = min(to_h, window.to_h) - max(from_h, window.from_h)
                found[account.name][n] += max(0.0, inside_h) * account.rate(launch.rung)
    return found


def cost_shares(problem: Problem, launch: Launch) -> list[float]:
    """Each job's part of what its launch costs, in the currency of the rung: by card-hours."""
    price = problem.rungs[launch.rung].price.per_h * launch.hours
    parts = [
        problem.jobs[job].cards * float(problem.launch_h[job, launch.rung]) for job in launch.jobs
    ]
    return [price * part / sum(parts) for part in parts]


def violations(problem: Problem, launches: Sequence[Launch]) -> list[str]:
    """Everything that an allocation breaks, in words; nothing, if it is right.

    Asserted on every answer before anybody sees it.
    """
    found: list[str] = []
    for launch in launches:
        found += _of_launch(problem, launch)
    seen = Counter(job for launch in launches for job in launch.jobs)
    found += [f"job {job} is placed {count} times" for job, count in seen.items() if count > 1]
    found += _of_places(problem, launches)
    for name, used in taken(problem, launches).items():
        windows = next(it.windows for it in problem.accounts if it.name == name)
        for window, amount in zip(windows, used, strict=True):
            if amount > window.amount + TOLERANCE:
                found.append(f"quota {name} has {window.amount:g} and {amount:g} are used")
    spent = amounts(problem, launches)
    for currency, most in problem.scenario.budget.items():
        if spent.get(currency, 0.0) > most + TOLERANCE:
            found.append(f"{spent[currency]:g} {currency} are spent of {most:g}")
    return found


def amounts(problem: Problem, launches: Sequence[Launch]) -> dict[str, float]:
    """What is spent, by currency."""
    found: dict[str, float] = {}
    for launch in launches:
        price = problem.rungs[launch.rung].price
        found[price.currency] = found.get(price.currency, 0.0) + price.per_h * launch.hours
    return found


def _of_launch(problem: Problem, launch: Launch) -> list[str]:
    rung = problem.rungs[launch.rung]
    found = []
    if sum(problem.jobs[job].cards for job in launch.jobs) > rung.cards:
        found.append(f"a launch on {rung.name} has too few cards")
    if len(launch.jobs) > (rung.per_launch or rung.cards):
        found.append(f"a launch on {rung.name} has too many jobs")
    if rung.concurrency is not None and not launch.place < rung.concurrency:
        found.append(f"{rung.name} has too many launches at once")
    worked_h = sum(to_h - from_h for from_h, to_h in launch.runs)
    if abs(worked_h - launch.hours) > TOLERANCE:
        found.append(f"a launch on {rung.name} works {worked_h:g} h of {launch.hours:g}")
    for job, amount in zip(launch.jobs, cost_shares(problem, launch), strict=True):
        hours = float(problem.launch_h[job, launch.rung])
        it = problem.jobs[job]
        if not hours <= launch.hours + SLACK:
            found.append(f"job {it.name} takes {hours:g} h on a launch of {launch.hours:g} h")
        elif launch.until_h(hours) > problem.due_h[job] + TOLERANCE:
            found.append(f"job {it.name} ends after {problem.due_h[job]:g} h")
        if amount > it.budget.get(rung.price.currency, amount) + TOLERANCE:
            found.append(f"job {it.name} costs {amount:g} {rung.price.currency}")
    return found


def _of_places(problem: Problem, launches: Sequence[Launch]) -> list[str]:
    """Launches that are on one place of one rung at one time."""
    runs = sorted(
        (launch.rung, launch.place, from_h, to_h)
        for launch in launches
        for from_h, to_h in launch.runs
    )
    return [
        f"two launches are on place {place} of {problem.rungs[rung].name} at {from_h:g} h"
        for (rung, place, _, to_h), (rung_2, place_2, from_h, _) in pairwise(runs)
        if (rung, place) == (rung_2, place_2) and from_h < to_h - TOLERANCE
    ]
