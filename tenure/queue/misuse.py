"""What counts as misuse of places in the queue, and what it costs.

Two things do: to swap a job that has cards (or has them kept for it) for another one, and to hand in again what was
just cancelled. Neither gains anything, since the newcomer's age starts anew and the cards go round; but each costs
the others a start, or the reader of the queue his trust in it. Two of them in a day are free, so a typing mistake costs
nothing but the age; each further one halves the team's weight for a day. Cancelling a job alone, editing
one that waits, and holding one and releasing it cost the age and nothing else, however often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tenure.queue.records import Penalty
from tenure.queue.share import LEAST_FACTOR as LEAST_FACTOR

DAY_S = 86400.0
FREE = 2  # a day
FACTOR = 0.5
#: A job that is given up within this of a submission of more priority has made room for it.
SWAP_S = 600.0
#: The same content handed in within this of having been taken back is a resubmission.
AGAIN_S = 3600.0

Kind = Literal["swapped", "resubmitted"]


@dataclass(frozen=True)
class Strike:
    """One misuse, as the store timed it."""

    team: str
    at_s: float
    kind: Kind
    job: str


def penalties(strikes: Iterable[Strike]) -> list[Penalty]:
    """The penalties that strikes come to, in their order.

    >>> day = [Strike("x", t * 3600.0, "swapped", f"j{t}") for t in range(4)]
    >>> [(p.from_s, p.factor) for p in penalties(day)]
    [(7200.0, 0.5), (10800.0, 0.5)]
    >>> penalties(Strike("x", n * DAY_S, "swapped", "j") for n in range(9))
    []
    """
    found = []
    of: dict[str, list[Strike]] = {}
    for strike in sorted(strikes, key=lambda s: (s.at_s, s.team, s.job, s.kind)):
        mine = of.setdefault(strike.team, [])
        mine.append(strike)
        found += after(mine)
    return found


def after(strikes: list[Strike]) -> list[Penalty]:
    """The penalty of a team's newest strike, if its free ones of the last day are used up."""
    newest = strikes[-1]
    recent = [s for s in strikes if newest.at_s - s.at_s < DAY_S]
    if len(recent) <= FREE:
        return []
    words = (
        f"{newest.job} was {newest.kind}, the {_nth(len(recent))} such change of team {newest.team} in a day "
        f"({FREE} are free): its weight is halved for a day"
    )
    return [Penalty(newest.team, newest.at_s, newest.at_s + DAY_S, FACTOR, words)]


def _nth(count: int) -> str:
    """A count as people say it.

    >>> [_nth(n) for n in (3, 11, 21)]
    ['3rd', '11th', '21st']
    """
    ending = (
        "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    )
    return f"{count}{ending}"


@dataclass(frozen=True)
class _Given:
    """A job that its team gave up."""

    at_s: float
    content: str | None  # None: it was held, and comes back as what it is
    priority: int
    had_cards: bool


class Watch:
    """Finds strikes in what teams do, in the order in which the store timed it."""

    def __init__(self) -> None:
        self.strikes: dict[str, list[Strike]] = {}
        self._given: dict[str, list[_Given]] = {}
        self._sent: dict[str, list[tuple[float, int]]] = {}

    def submitted(
        self, team: str, job: str, content: str, priority: int, now_s: float
    ) -> list[Penalty]:
        """A job was handed in. ``content`` is what tells equal work, such as a digest of its spec."""
        sent = [each for each in self._sent.get(team, []) if now_s - each[0] <= SWAP_S]
        # a plan's jobs come together, by the thousand, and are one entry here
        self._sent[team] = sent if sent[-1:] == [(now_s, priority)] else [*sent, (now_s, priority)]
        given = [each for each in self._given.get(team, []) if now_s - each.at_s <= AGAIN_S]
        kind: Kind | None = None
        for each in given:
            if each.content == content:
                kind = "resubmitted"
            elif each.had_cards and each.priority < priority and now_s - each.at_s <= SWAP_S:
                kind = kind or "swapped"
            else:
                continue
            given.remove(each)
            break
        self._given[team] = given
        return self._struck(team, job, kind, now_s)

    def given_up(
        self,
        team: str,
        job: str,
        content: str | None,
        priority: int,
        had_cards: bool,
        now_s: float,
    ) -> list[Penalty]:
        """A team took a job of its own back: cancelled it, or holds it (then without ``content``)."""
        sent = self._sent.get(team, [])
        newer = any(now_s - at_s <= SWAP_S and wanted > priority for at_s, wanted in sent)
        if had_cards and newer:
            return self._struck(team, job, "swapped", now_s)
        self._given.setdefault(team, []).append(_Given(now_s, content, priority, had_cards))
        return []

    def replaced(self, team: str, job: str, had_cards: bool, now_s: float) -> list[Penalty]:
        """A job was put in the place of another one; of a job without cards that is an edit, and free."""
        return self._struck(team, job, "swapped" if had_cards else None, now_s)

    def _struck(self, team: str, job: str, kind: Kind | None, now_s: float) -> list[Penalty]:
        if kind is None:
            return []
        mine = self.strikes.setdefault(team, [])
        mine.append(Strike(team, now_s, kind, job))
        return after(mine)
