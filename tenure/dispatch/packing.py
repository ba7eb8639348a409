"""Which jobs go onto one machine, where a launch is a machine of several cards.

A machine is paid for whole, until its longest job has ended, so a job takes a place on one that this
round already fills before it opens another, and jobs of about equal work go together. Machines of
earlier rounds take nobody on: their launch has been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from math import fsum, inf, isfinite

from tenure.dispatch.contract import Capacity

#: Sets of jobs that need different numbers of cards are tried out up to this size: at most some
#: thousand sets of neighbours, some milliseconds.
EXACT_JOBS = 11


@dataclass(frozen=True)
class Sized:
    """A job that has a place."""

    job: str
    turn: int  # the first is 0
    cards: int
    work: float | None = None  # FLOPs left, by all its cards together; None: unknown

    @property
    def lasts(self) -> float | None:
        """How long it keeps each of its cards, in the unit of ``work``."""
        return None if self.work is None else self.work / self.cards


@dataclass
class _Machine:
    """One machine of a rung as a round fills it, in the order of turns."""

    aboard: list[Sized] = field(default_factory=list)

    @property
    def cards(self) -> int:
        """How many cards are taken."""
        return sum(each.cards for each in self.aboard)


Machines = tuple[tuple[Sized, ...], ...]


class Filling:
    """The machines of one rung that a round may still fill."""

    def __init__(self, capacity: Capacity, free: int) -> None:
        self.free = free  # machines that nobody has yet; below 0 where others have launched as well
        self._first_fit: list[_Machine] = []
        self._with_room: list[_Machine] = []  # of these, so that full ones are not looked at again
        self._taken: set[str] = set()
        self._made: Machines | None = None  # None: somebody came since
        self._of: dict[str, tuple[Sized, ...]] = {}
        self._capacity = capacity

    def has_room(self, cards: int) -> bool:
        """Whether a job of so many cards can be launched here."""
        return not self.opens(cards) or (self.free > 0 and cards <= self._capacity.cards)

    def opens(self, cards: int) -> bool:
        """Whether a job of so many cards would need a machine that nobody has yet."""
        return self._open(cards) is None

    def take(self, job: str, cards: int, work: float | None = None) -> None:
        """Give a job a place: on the first machine that has room, else on one of its own.

        ``work`` is what the job has left to do, in FLOPs (over the peak of its dtype, where dtypes
        differ); ``None``, or what can be no amount: unknown. Which machine it goes onto is settled
        when the round is over (:func:`distributed`); that there is one is settled here. Who has a place
        keeps it.
        """
        if job in self._taken:
            return
        assert self.has_room(cards), f"no room for {job}"
        limit = self._capacity
        machine = self._open(cards)
        if machine is None:
            machine = _Machine()
            self._first_fit.append(machine)
            self._with_room.append(machine)
            self.free -= 1
        known = work is not None and isfinite(work) and work >= 0
        machine.aboard.append(Sized(job, len(self._taken), cards, work if known else None))
        self._taken.add(job)
        self._made, self._of = None, {}
        assert machine.cards <= limit.cards and len(machine.aboard) <= max(1, limit.per_launch)
        if machine.cards == limit.cards or len(machine.aboard) >= limit.per_launch:
            self._with_room.remove(machine)

    def keep(self) -> None:
        """Leave one machine to a job that is launched in a later round: nobody may go with it now."""
        assert self.free > 0, "no machine to keep"
        self.free -= 1

    @property
    def machines(self) -> Machines:
        """Who goes together, each machine and all of them in the order of turns."""
        if self._made is None:
            turns = tuple(tuple(machine.aboard) for machine in self._first_fit)
            limit = self._capacity
            self._made = distributed(turns, limit.cards, max(1, limit.per_launch))
        return self._made

    def together(self, job: str) -> tuple[str, ...]:
        """The jobs of the machine that this one goes onto, itself among them."""
        return tuple(each.job for each in self._beside(job))

    def spread(self, job: str) -> str:
        """How equal the work on a job's machine is, in words; empty where that says nothing."""
        works = [each.lasts for each in self._beside(job)]
        known = [work for work in works if work is not None]
        if len(works) < 2 or not known:
            return ""
        unknown = f", {len(works) - len(known)} unknown" if len(known) < len(works) else ""
        return f"work left per card {min(known):.3g} to {max(known):.3g} FLOPs{unknown}"

    def _beside(self, job: str) -> tuple[Sized, ...]:
        if not self._of:
            self._of = {each.job: machine for machine in self.machines for each in machine}
        return self._of[job]

    def _open(self, cards: int) -> _Machine | None:
        limit_cards = self._capacity.cards
        return next((it for it in self._with_room if it.cards + cards <= limit_cards), None)


def paid(machines: Machines) -> float:
    """What is paid for machines, in the unit of work: the longest known job of each.

    >>> a, b, c = Sized("a", 0, 1, 9.0), Sized("b", 1, 1, 4.0), Sized("c", 2, 2, 4.0)
    >>> paid(((a, b), (c,)))
    11.0
    """
    return fsum(max(each.lasts or 0.0 for each in machine) for machine in machines)


def distributed(turns: Machines, cards: int, per_launch: int) -> Machines:
    """The same jobs on no more machines of ``cards`` cards, so that the least is paid for them.

    Each job has cards of its own from the start, so the round is over with its longest job whatever is
    done here. What is left to choose is when each machine ends: its makespan is that of its longest
    job, and all its cards are paid for until then. So the smallest makespan means the smallest sum of
    the machines' longest jobs.

    Where all jobs need the same number of cards, a machine takes some ``m`` of them, and the longest
    ``m`` go together, then the next ``m``, and so on. That is the least: whatever is done, the first
    k - 1 machines hold at most m (k - 1) jobs, so one of the m (k - 1) + 1 longest is on the k-th or a
    later one (in order of their longest), which lasts at least as long as the shortest of those.

    Jobs of different numbers of cards are tried out up to ``EXACT_JOBS`` of them. More of them are
    taken in order of length, each by the first machine with room. Where the cards alone limit a
    machine this pays at most twice the least: when it opens its k-th machine (k > 1), any two of the k
    hold jobs of over ``cards`` cards that last at least as long, so whoever has only these jobs needs
    over k / 2 machines, and that at every length. Where this needs more machines than there are, the
    jobs are taken in order of their cards, or else stay where first-fit put them.

    Jobs of unknown work come last, in the order of turns, and are not counted. Nothing is changed
    that does not pay: among equals the jobs stay where first-fit put them.

    >>> a, b, c, d = (Sized(j, n, 1, w) for n, (j, w) in enumerate(zip("abcd", (9., 1., 8., 2.))))
    >>> [[each.job for each in machine] for machine in distributed(((a, b), (c, d)), 2, 2)]
    [['a', 'c'], ['b', 'd']]
    """
    jobs = sorted((each for machine in turns for each in machine), key=lambda each: each.turn)
    known = [each for each in jobs if each.lasts is not None]
    if len(turns) < 2 or not known:
        return turns
    by_length = [*_longest_first(known), *(each for each in jobs if each.lasts is None)]
    found = [turns, _first_fit(by_length, cards, per_launch)]
    if len({each.cards for each in jobs}) > 1:
        by_cards = sorted(by_length, key=lambda each: -each.cards)  # needs the fewest machines
        found.append(_first_fit(by_cards, cards, per_launch))
        if len(jobs) == len(known) <= EXACT_JOBS:
            found.append(_tried_out(by_length, cards, per_launch, len(turns)))
    allowed = [machines for machines in found if len(machines) <= len(turns)]
    return _in_turn(min(allowed, key=paid))


def _longest_first(jobs: Sequence[Sized]) -> list[Sized]:
    return sorted(jobs, key=lambda each: (-(each.lasts or 0.0), each.turn))


def _in_turn(machines: Machines) -> Machines:
    """Each machine, and all of them, in the order of turns."""
    inside = [tuple(sorted(machine, key=lambda each: each.turn)) for machine in machines]
    return tuple(sorted(inside, key=lambda machine: machine[0].turn))


def _first_fit(jobs: Sequence[Sized], cards: int, per_launch: int) -> Machines:
    """Each job in turn goes onto the first machine with room."""
    made: list[list[Sized]] = []
    room: dict[int, int] = {}  # by number of the machine, where anybody fits: cards that are free
    least = min(each.cards for each in jobs)
    for each in jobs:
        at = next((n for n, left in room.items() if left >= each.cards), len(made))
        if at == len(made):
            made.append([])
            room[at] = cards
        made[at].append(each)
        room[at] -= each.cards
        if room[at] < least or len(made[at]) == per_launch:
            del room[at]
    return tuple(map(tuple, made))


def _tried_out(jobs: Sequence[Sized], cards: int, per_launch: int, most: int) -> Machines:
    """The cheapest of all ways to put ``jobs``, longest first, onto at most ``most`` machines.

    The longest job that has no machine opens one, which is paid for by its length alone. So only sets
    of neighbours that take in nobody else need a look: a job more costs nothing there, and the others
    need no more without it.
    """

    @cache
    def cheapest(left: int, machines: int) -> tuple[float, tuple[int, ...]]:
        """The price, and the machines, of the jobs whose bits are set in ``left``."""
        if not left:
            return 0.0, ()
        first = (left & -left).bit_length() - 1
        if not machines:
            return inf, ()
        others = [n for n in range(first + 1, len(jobs)) if left >> n & 1]
        fits = _fullest([jobs[n].cards for n in others], cards - jobs[first].cards, per_launch - 1)
        best: tuple[float, tuple[int, ...]] = (inf, ())
        for chosen in fits:
            taken = 1 << first | sum(1 << others[n] for n in chosen)
            price, rest = cheapest(left & ~taken, machines - 1)
            price += jobs[first].lasts or 0.0
            if price < best[0]:
                best = (price, (taken, *rest))
        return best

    price, made = cheapest((1 << len(jobs)) - 1, most)
    assert price < inf, "first-fit has found a way"
    return tuple(tuple(each for n, each in enumerate(jobs) if taken >> n & 1) for taken in made)


def _fullest(needs: Sequence[int], cards: int, most: int) -> list[tuple[int, ...]]:
    """The sets of ``needs``, by their numbers, that fit into ``cards`` and leave room for no other.

    >>> _fullest([1, 2, 2, 1], 2, 3)
    [(1,), (2,), (0, 3)]
    >>> _fullest([3], 2, 3)
    [()]
    """

    def takes(chosen: Sequence[int]) -> bool:
        return len(chosen) <= most and sum(needs[n] for n in chosen) <= cards

    def is_full(chosen: tuple[int, ...]) -> bool:
        rest = (n for n in range(len(needs)) if n not in chosen)
        return not any(takes((*chosen, n)) for n in rest)

    sizes = range(min(most, cards, len(needs)) + 1)
    every = (chosen for size in sizes for chosen in combinations(range(len(needs)), size))
    return [chosen for chosen in every if takes(chosen) and is_full(chosen)]
