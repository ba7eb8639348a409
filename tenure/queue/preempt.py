"""What taking cards away costs, from whom they are taken, and what has to be kept free instead.

A victim loses the work since its last milestone and the time it takes to go on again; the newcomer gains
the time that it would have waited. Both are card-seconds, so they can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Victim:
    """A running job as preemption sees it."""

    job: str
    team: str
    cards: int
    lost_s: float  # since its last milestone, and its restart
    yields_in_s: float = 0.0  # from being asked until its cards are free
    preemptions: int = 0
    tie: str = ""

    @property
    def price(self) -> float:
        """Card-seconds that are lost; each earlier preemption makes the next one dearer."""
        return self.lost_s * self.cards * (1 + self.preemptions)


def cheapest(victims: Sequence[Victim], cards: int) -> tuple[Victim, ...]:
    """Victims that give ``cards`` together for little lost work; empty where they cannot.

    Taken by price per card, and then those left out again that turn out not to be needed.

    >>> a, b, c = Victim("a", "x", 2, 60.0), Victim("b", "x", 2, 10.0), Victim("c", "x", 4, 20.0)
    >>> [v.job for v in cheapest([a, b, c], 4)]
    ['c']
    >>> cheapest([a, b], 5)
    ()
    """
    taken: list[Victim] = []
    found = 0
    for each in sorted(victims, key=lambda v: (v.price / v.cards, v.tie, v.job)):
        if found >= cards:
            break
        taken.append(each)
        found += each.cards
    if found < cards:
        return ()
    for each in sorted(taken, key=lambda v: (-v.price, v.tie, v.job)):
        if found - each.cards >= cards:
            taken.remove(each)
            found -= each.cards
    return tuple(taken)


def worth_it(victims: Sequence[Victim], cards: int, saved_s: float) -> bool:
    """Whether the newcomer gains more card-seconds of waiting than its victims lose of work.

    >>> worth_it([Victim("a", "x", 1, 60.0)], cards=1, saved_s=61.0)
    True
    >>> worth_it([Victim("a", "x", 1, 60.0)], cards=1, saved_s=60.0)
    False
    """
    return bool(victims) and saved_s * cards > sum(each.price for each in victims)


def kept_free(cards: int, may_wait_s: float, running: Sequence[Victim], free: int) -> int:
    """Cards to keep free for jobs that need ``cards`` and may wait ``may_wait_s`` at most.

    Cards that their holders yield in that time need not be kept: where all of them do, none are.

    >>> save = [Victim("offline", "x", 8, 0.0, yields_in_s=30.0)]
    >>> kept_free(4, 2.0, save, free=4), kept_free(4, 60.0, save, free=4)
    (4, 0)
    """
    yielding = sum(each.cards for each in running if each.yields_in_s <= may_wait_s)
    return min(free, max(0, cards - yielding))
