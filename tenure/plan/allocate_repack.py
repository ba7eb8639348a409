"""Jobs that change places on the launches of one rung, so that less of what is paid for stands idle.

A launch is paid for until the longest of its jobs has ended. When all launches of a rung have their times,
jobs of equal cards may change places: the longest come together, and the launches behind them get shorter.
And who found no time is put in the place of those who cost less elsewhere. Nothing here gets
longer, so no launch begins later than before; :meth:`tenure.plan.allocate_floor.Floor.open` still has
the last word on every launch.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tenure.plan.allocate_floor import Draft

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NEAR = 24  # launches, next in length, with which one changes jobs


@dataclass(frozen=True)
class Rates:
    """Of one rung, by job: hours there, when it has to have ended, its cards, and what it costs elsewhere."""

    hours: Sequence[float]
    due_h: Sequence[float]
    cards: Sequence[int]
    elsewhere_usd: Sequence[float]


def exchange(drafts: Sequence[Draft], rates: Rates) -> bool:
    """Let jobs change places until the longest are together, as far as deadlines allow; whether any did."""
    hours = rates.hours
    order = sorted(drafts, key=lambda it: -it.hours)
    for draft in order:
        draft.jobs.sort(key=lambda job: -hours[job])
    changed = False
    for n, long in enumerate(order):
        for at in range(len(long.jobs) - 1, 0, -1):
            small = long.jobs[at]
            for short in order[n + 1 : n + 1 + NEAR]:
                if hours[short.jobs[0]] <= hours[small]:
                    continue
                found = _larger(long, short, small, rates)
                if found is not None:
                    other = short.jobs[found]
                    short.jobs[found], long.jobs[at] = small, other
                    short.jobs.sort(key=lambda job: -hours[job])
                    changed = True
                    break
        long.jobs.sort(key=lambda job: -hours[job])
    return changed


def _larger(long: Draft, short: Draft, small: int, rates: Rates) -> int | None:
    """Which job of a shorter launch may change places with a smaller one of a longer launch."""
    hours, due_h = rates.hours, rates.due_h
    if short.until_h(hours[small]) > due_h[small]:
        return None
    for at, job in enumerate(short.jobs):
        if hours[job] <= hours[small]:
            return None
        if rates.cards[job] == rates.cards[small] and long.until_h(hours[job]) <= due_h[job]:
            return at
    return None


def trade(drafts: Sequence[Draft], late: Sequence[int], rates: Rates) -> list[int]:
    """Put those who found no time in the place of others who cost less elsewhere; return who is out now.

    What the launch costs is paid whoever is on it. Those who cost most elsewhere come first. Who is put out
    may put out somebody else.
    """
    table = _Table(drafts, rates)
    queue = [(-rates.elsewhere_usd[job], job) for job in late]
    heapq.heapify(queue)
    out = []
    while queue:
        _, job = heapq.heappop(queue)
        freed = table.replace(job)
        if freed is None:
            out.append(job)
            continue
        for each in freed:
            heapq.heappush(queue, (-rates.elsewhere_usd[each], each))
    return out


class _Table:
    """Of each launch: when it begins, how long it lasts, and what it costs elsewhere to free some of its cards."""

    def __init__(self, drafts: Sequence[Draft], rates: Rates) -> None:
        # Those that wait for a quota on their way are left as they are.
        self._drafts = [it for it in drafts if len(it.runs) == 1]
        self._rates = rates
        self._from_h = np.array([it.runs[0][0] for it in self._drafts])
        self._hours = np.array([it.hours for it in self._drafts])
        self._usd: dict[int, Floats] = {}  # by cards to free
        self._who: dict[int, list[list[int]]] = {}

    def replace(self, job: int) -> list[int] | None:
        """Put a job where that costs least; return who has to go, or None where nobody costs less elsewhere."""
        rates = self._rates
        cards, hours = rates.cards[job], rates.hours[job]
        if not self._drafts:
            return None
        if cards not in self._usd:
            found = [self._cheapest(draft, cards) for draft in self._drafts]
            self._usd[cards] = np.array([usd for usd, _ in found])
            self._who[cards] = [who for _, who in found]
        can = (self._hours >= hours) & (self._from_h + hours <= rates.due_h[job])
        usd = np.where(can, self._usd[cards], np.inf)
        at = int(usd.argmin())
        if not usd[at] < rates.elsewhere_usd[job] * (1 - 1e-9):
            return None
        draft, freed = self._drafts[at], self._who[cards][at]
        draft.jobs[:] = [each for each in draft.jobs if each not in freed] + [job]
        draft.cards += sum(rates.cards[each] for each in freed) - cards
        draft.room += len(freed) - 1
        for known in self._usd:
            self._usd[known][at], self._who[known][at] = self._cheapest(draft, known)
        return freed

    def _cheapest(self, draft: Draft, cards: int) -> tuple[float, list[int]]:
        """What they cost elsewhere who have to go so that so many cards are free, and who: cheap cards first."""
        rates = self._rates
        usd_of, of = rates.elsewhere_usd, rates.cards
        free, usd, who = draft.cards, 0.0, list[int]()
        for job in sorted(draft.jobs, key=lambda each: usd_of[each] / of[each]):
            if free >= cards and (who or draft.room):
                break
            free, usd = free + of[job], usd + usd_of[job]
            who.append(job)
        return (usd, who) if free >= cards and (who or draft.room) else (np.inf, [])
