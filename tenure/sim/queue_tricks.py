"""Seeded months of a shared pool with a team that plays a trick, and with its honest twin.

The twin has the same real work at the same times, and nothing else; the other teams do the same in both. So
what a trick gains in waiting is a paired difference. The seed's story is :data:`TRICKS`' ``placeholder``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from random import Random

from tenure.queue.play import Played
from tenure.queue.scenario import Event, Scenario, TeamIn

_HOUR_S = 3600.0
_DAY_S = 86400.0
SQUATTER, ACCOUNT = "squatter", "squatter-too"
_REAL = "real"
#: A placeholder is sent so long before the work that it is to make room for.
_EARLY_S = 12 * _HOUR_S


@dataclass(frozen=True)
class Setting:
    """A pool and how busy it is."""

    name: str
    cards: int
    others: int  # teams
    others_load: float  # of the whole pool, by all of them
    real_load: float  # of the squatter's entitlement
    mean_s: float = 4 * _HOUR_S
    days: int = 30


SETTINGS: tuple[Setting, ...] = (
    Setting("busy pool, light team", 8, 3, 1.1, 0.4),
    Setting("busy pool, full team", 8, 3, 1.0, 1.0),
    Setting("large pool, light team", 32, 4, 1.1, 0.3),
)


@dataclass(frozen=True)
class Real:
    """A piece of the squatter's real work."""

    at_s: float
    duration_s: float
    cards: int


def _lognormal(chance: Random, mean_s: float, sigma: float = 1.0) -> float:
    return max(60.0, chance.lognormvariate(log(mean_s) - sigma**2 / 2, sigma))


def _arrivals(chance: Random, per_s: float, until_s: float) -> list[float]:
    found: list[float] = []
    at_s = 0.0
    while True:
        at_s += chance.expovariate(per_s)
        if at_s >= until_s:
            return found
        found.append(round(at_s, 3))


def _work(chance: Random, card_load: float, setting: Setting) -> list[Real]:
    """Jobs of 1, 2 or 4 cards that ask for ``card_load`` cards on average."""
    sizes = [size for size in (1, 2, 4) if size * 4 <= setting.cards] or [1]
    mean_cards = sum(sizes) / len(sizes)
    per_s = card_load / (mean_cards * setting.mean_s)
    return [
        Real(at_s, round(_lognormal(chance, setting.mean_s), 3), chance.choice(sizes))
        for at_s in _arrivals(chance, per_s, setting.days * _DAY_S)
    ]


def _others(setting: Setting, seed: int) -> list[Event]:
    found = []
    for n in range(setting.others):
        chance = Random(f"{seed} other {n}")
        load = setting.cards * setting.others_load / setting.others
        for i, work in enumerate(_work(chance, load, setting)):
            found.append(_submit(work.at_s, f"other-{n}", f"other-{n}-{i}", work))
    return found


def real_work(setting: Setting, seed: int) -> list[Real]:
    """The squatter's real work of a month."""
    entitled = setting.cards / (setting.others + 1)
    return _work(Random(f"{seed} real"), entitled * setting.real_load, setting)


def _submit(
    at_s: float, team: str, job: str, work: Real, priority: int = 0, replaces: str | None = None
) -> Event:
    return Event(
        t_s=at_s,
        team=team,
        action="replace" if replaces else "submit",
        job=job,
        replaces=replaces,
        cards=work.cards,
        duration_s=work.duration_s,
        priority=priority,
    )


def _does(at_s: float, job: str, action: str, team: str = SQUATTER) -> Event:
    return Event.model_validate({"t_s": at_s, "team": team, "action": action, "job": job})


Play = Callable[[list[Real], Setting], list[Event]]


def _honest(work: list[Real], setting: Setting, priority: int = 0) -> list[Event]:
    del setting
    return [
        _submit(each.at_s, SQUATTER, f"{_REAL}-{i}", each, priority) for i, each in enumerate(work)
    ]


def _dummies(setting: Setting, every_s: float, lasts_s: float, cards: int = 1) -> list[Event]:
    count = int(setting.days * _DAY_S / every_s)
    return [
        _submit(n * every_s, SQUATTER, f"dummy-{n}", Real(0, lasts_s, cards), -10)
        for n in range(count)
    ]


def _placeholder(work: list[Real], setting: Setting) -> list[Event]:
    """The seed's: a dummy every hour, an hour long; the real job has more priority."""
    return _dummies(setting, _HOUR_S, _HOUR_S) + _honest(work, setting, 10)


def _swap(work: list[Real], setting: Setting) -> list[Event]:
    """The same, and each real job replaces the dummy of its hour by name."""
    found = _dummies(setting, _HOUR_S, _HOUR_S)
    used: set[int] = set()
    for i, each in enumerate(work):
        n = int(each.at_s / _HOUR_S)
        place = f"dummy-{n}" if n not in used and each.at_s > n * _HOUR_S else None
        used.add(n)
        found.append(_submit(each.at_s, SQUATTER, f"{_REAL}-{i}", each, 10, place))
    return found


def _tiny(work: list[Real], setting: Setting) -> list[Event]:
    """Dummies of five minutes, without a gap."""
    return _dummies(setting, 300.0, 300.0) + _honest(work, setting, 10)


def _split(work: list[Real], setting: Setting) -> list[Event]:
    """Each job in four parts of a quarter of its time, all at once."""
    del setting
    return [
        _submit(
            each.at_s, SQUATTER, f"{_REAL}-{i}-{part}", Real(0, each.duration_s / 4, each.cards)
        )
        for i, each in enumerate(work)
        for part in range(4)
    ]


def _fillers(work: list[Real], setting: Setting) -> list[Event]:
    """Two cards' worth of week-long fillers of low priority, that the real work is to push aside."""
    return _dummies(setting, _DAY_S, 7 * _DAY_S) + _honest(work, setting, 10)


def _resubmitted(work: list[Real], setting: Setting) -> list[Event]:
    """A placeholder of the same shape half a day early, cancelled when the real job is sent."""
    found = []
    for i, each in enumerate(work):
        found.append(_submit(max(0.0, each.at_s - _EARLY_S), SQUATTER, f"early-{i}", each))
        found.append(_does(each.at_s, f"early-{i}", "cancel"))
    return found + _honest(work, setting)


def _edited(work: list[Real], setting: Setting) -> list[Event]:
    """The same, edited into the real job instead."""
    del setting
    found = []
    for i, each in enumerate(work):
        found.append(_submit(max(0.0, each.at_s - _EARLY_S), SQUATTER, f"early-{i}", each))
        found.append(_submit(each.at_s, SQUATTER, f"{_REAL}-{i}", each, replaces=f"early-{i}"))
    return found


def _held(work: list[Real], setting: Setting) -> list[Event]:
    """Sent half a day early and held until it is wanted."""
    del setting
    found = []
    for i, each in enumerate(work):
        early_s = max(0.0, each.at_s - _EARLY_S)
        found.append(_submit(early_s, SQUATTER, f"{_REAL}-{i}", each))
        found.append(_does(early_s, f"{_REAL}-{i}", "hold"))
        found.append(_does(each.at_s, f"{_REAL}-{i}", "release"))
    return found


def _inflated(work: list[Real], setting: Setting) -> list[Event]:
    """Everything has the highest priority."""
    return _honest(work, setting, 1_000_000)


def _accounts(work: list[Real], setting: Setting) -> list[Event]:
    """Two accounts by turns, and the other one's dummies."""
    found = []
    for i, each in enumerate(work):
        team = (SQUATTER, ACCOUNT)[i % 2]
        found.append(_submit(each.at_s, team, f"{_REAL}-{i}", each, 10))
    for dummy in _dummies(setting, _HOUR_S, _HOUR_S):
        found.append(dummy.model_copy(update={"team": ACCOUNT}))
    return found


TRICKS: Mapping[str, Play] = {
    "placeholder": _placeholder,
    "placeholder, replaced by name": _swap,
    "many tiny dummies": _tiny,
    "splitting": _split,
    "long low-priority fillers": _fillers,
    "cancel and resubmit": _resubmitted,
    "edit": _edited,
    "hold and release": _held,
    "priority inflation": _inflated,
    "two accounts": _accounts,
}


def month(setting: Setting, seed: int, trick: str | None) -> Scenario:
    """A month with a trick; None: with the honest twin."""
    work = real_work(setting, seed)
    mine = _honest(work, setting) if trick is None else TRICKS[trick](work, setting)
    events = sorted(_others(setting, seed) + mine, key=lambda event: event.t_s)
    teams = {f"other-{n}": TeamIn(weight=1.0) for n in range(setting.others)}
    teams[SQUATTER] = TeamIn(weight=1.0)
    teams[ACCOUNT] = TeamIn(part_of=SQUATTER)
    return Scenario(cards=setting.cards, half_life_h=168.0, teams=teams, events=events)


def real_waits(played: Played) -> list[float]:
    """Seconds that each piece of real work waited: one that was split, until its last part started."""
    found: dict[str, float] = {}
    for row in played.rows:
        if row.job.startswith(_REAL) and row.started_s is not None:
            piece = "-".join(row.job.split("-")[:2])
            found[piece] = max(found.get(piece, 0.0), row.started_s - row.submitted_s)
    return list(found.values())
