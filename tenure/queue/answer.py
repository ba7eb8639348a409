"""What a played scenario comes to: per team and per job, as ``tenure queue simulate --json`` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from tenure.queue.play import Played
from tenure.queue.scenario import Scenario

_HOUR_S = 3600.0


class Waits(TypedDict):
    """Of the jobs that started, in seconds; None where none did."""

    mean: float | None
    median: float | None
    p95: float | None


class TeamAnswer(TypedDict):
    """One team. ``share`` is its part of all card-hours that were used; ``penalties`` counts them."""

    jobs: int
    finished: int
    wait_s: Waits
    card_hours: float
    share: float
    penalties: int


class JobAnswer(TypedDict):
    """One submission; a time that never came is None."""

    job: str
    team: str
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    preemptions: int


class Answer(TypedDict):
    """The whole answer."""

    teams: dict[str, TeamAnswer]
    jobs: list[JobAnswer]


def quantile(values: Sequence[float], part: float) -> float:
    """Between the two nearest values, in proportion (the usual definition, as numpy's).

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(values)
    at = (len(ordered) - 1) * part
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def waits(values: Sequence[float]) -> Waits:
    """Mean, median and 95th percentile.

    >>> waits([])
    {'mean': None, 'median': None, 'p95': None}
    """
    if not values:
        return {"mean": None, "median": None, "p95": None}
    return {
        "mean": sum(values) / len(values),
        "median": quantile(values, 0.5),
        "p95": quantile(values, 0.95),
    }


def answer(scenario: Scenario, played: Played) -> Answer:
    """The answer in plain values."""
    whole = {name: team.part_of or name for name, team in scenario.teams.items()}
    used_s = dict.fromkeys(scenario.teams, 0.0)
    for spell in played.spells:
        used_s[spell.team] += spell.cards * (spell.to_s - spell.from_s)
    total_s = sum(used_s[name] for name in sorted(used_s))
    teams: dict[str, TeamAnswer] = {}
    for name in scenario.teams:
        rows = [row for row in played.rows if row.team == name]
        waited = [row.started_s - row.submitted_s for row in rows if row.started_s is not None]
        teams[name] = {
            "jobs": len(rows),
            "finished": sum(row.finished_s is not None for row in rows),
            "wait_s": waits(waited),
            "card_hours": used_s[name] / _HOUR_S,
            "share": used_s[name] / total_s if total_s else 0.0,
            "penalties": sum(each.team == whole[name] for each in played.penalties),
        }
    jobs: list[JobAnswer] = [
        {
            "job": row.job,
            "team": row.team,
            "submitted_s": row.submitted_s,
            "started_s": row.started_s,
            "finished_s": row.finished_s,
            "preemptions": row.preemptions,
        }
        for row in played.rows
    ]
    return {"teams": teams, "jobs": jobs}
