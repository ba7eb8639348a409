"""A month of a shared pool, made like the public traces: what a queue is measured on.

Durations are lognormal with a heavy tail, arrivals follow the hours of a day and the days of a week, team sizes follow
a power law, and gangs are powers of two, mostly of one card (Jeon et al. 2019, Philly; Hu et al. 2021, Helios;
Weng et al. 2022, MLaaS). Nothing is read from a trace: the numbers below are ours, in the shape that those report.
"""

from __future__ import annotations

from math import cos, log, pi
from random import Random

from tenure.queue.play import Played
from tenure.queue.scenario import Event, Scenario, TeamIn

_HOUR_S = 3600.0
_DAY_S = 86400.0
_GANGS = ((1, 0.62), (2, 0.14), (4, 0.12), (8, 0.09), (16, 0.03))
_SIGMA = 1.6
_MOST_S = 3 * _DAY_S


def month(
    seed: int,
    jobs: int = 10_000,
    cards: int = 128,
    teams: int = 20,
    load: float = 0.95,
    days: int = 30,
) -> Scenario:
    """``load`` is what is asked for, over what the pool could do in ``days``; on the average, not at noon."""
    chance = Random(seed)
    sizes = [1 / (n + 1) for n in range(teams)]  # of teams, by a power law
    gangs, parts = zip(*[(size, part) for size, part in _GANGS if size <= cards], strict=True)
    drawn = []
    for n in range(jobs):
        lasts_s = min(_MOST_S, chance.lognormvariate(log(_HOUR_S), _SIGMA))
        drawn.append((n, max(60.0, lasts_s), chance.choices(gangs, parts)[0]))
    scale = load * cards * days * _DAY_S / sum(lasts_s * size for _, lasts_s, size in drawn)
    times = sorted(_instant(chance, days) for _ in range(jobs))
    events = []
    for at_s, (n, lasts_s, size) in zip(times, drawn, strict=True):
        team = chance.choices(range(teams), sizes)[0]
        events.append(
            Event(
                t_s=round(at_s, 3),
                team=f"team-{team:02d}",
                action="submit",
                job=f"job-{n:05d}",
                cards=size,
                duration_s=round(min(_MOST_S, lasts_s * scale), 3),
                priority=chance.choice((0, 0, 0, 1, 5)),
            )
        )
    named = {f"team-{n:02d}": TeamIn(weight=1.0) for n in range(teams)}
    return Scenario(cards=cards, teams=named, events=events)


def _instant(chance: Random, days: int) -> float:
    """By rejection: three times as many in the afternoon as at night, half as many on the last two days of a week."""
    while True:
        at_s = chance.random() * days * _DAY_S
        day, hour = divmod(at_s / _HOUR_S, 24)
        busy = (1 - 0.5 * cos((hour - 3) * pi / 12)) / 1.5 * (0.5 if day % 7 >= 5 else 1.0)
        if chance.random() < busy:
            return at_s


def jain(values: list[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has everything (Jain, Chiu, Hawe 1984).

    >>> jain([2.0, 2.0]), jain([1.0, 0.0])
    (1.0, 0.5)
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def service(played: Played) -> dict[str, float]:
    """Per team, the part of the time in the queue and on cards that was work: 1 where nobody waited."""
    lasts_s: dict[str, float] = {}
    stays_s: dict[str, float] = {}
    length_s = {(row.job, row.team): 0.0 for row in played.rows}
    for spell in played.spells:
        length_s[spell.job, spell.team] += spell.to_s - spell.from_s
    for row in played.rows:
        if row.finished_s is None:
            continue
        lasts_s[row.team] = lasts_s.get(row.team, 0.0) + length_s[row.job, row.team]
        stays_s[row.team] = stays_s.get(row.team, 0.0) + row.finished_s - row.submitted_s
    return {team: lasts_s[team] / stays_s[team] for team in sorted(lasts_s)}
