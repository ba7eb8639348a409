"""Where a job goes in a pool of machines: a gang starts whole or not at all, and fragments are measured.

Pure. A machine has cards of one kind, processor cores and memory; a job is a *gang* of parts that must all
be there at once, each part on one machine. Section 11.3.1 of the chapter on resources is what this answers:
enough free cards in the pool prove nothing, since each part needs its cards *and* its cores on one machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import inf, isfinite

from tenure.errors import UsageError

#: Places that are tried for one gang of unequal parts before it counts as one without a place; equal
#: parts need no search.
MOST_TRIES = 20_000


@dataclass(frozen=True)
class Size:
    """An amount of each resource of a machine."""

    cards: int = 0
    cpus: float = 0.0
    memory_gb: float = 0.0

    def __post_init__(self) -> None:
        if not all(isfinite(each) and each >= 0 for each in self.each):
            raise UsageError(f"{self.words} is no amount; cards, cpus and memory_gb are at least 0")

    @property
    def each(self) -> tuple[float, float, float]:
        """Cards, cores, GB: what is compared."""
        return self.cards, self.cpus, self.memory_gb

    def __add__(self, other: Size) -> Size:
        pairs = zip(self.each, other.each, strict=True)
        cards, cpus, memory_gb = (_exact(one) + _exact(two) for one, two in pairs)
        return Size(int(cards), float(cpus), float(memory_gb))

    def __sub__(self, other: Size) -> Size:
        pairs = zip(self.each, other.each, strict=True)
        cards, cpus, memory_gb = (_exact(one) - _exact(two) for one, two in pairs)
        return Size(int(cards), float(cpus), float(memory_gb))

    def within(self, other: Size) -> bool:
        """Whether this is no more than ``other`` of anything.

        >>> Size(4, 16).within(Size(4, 8)), Size(4, 8).within(Size(4, 8))
        (False, True)
        """
        return all(one <= two for one, two in zip(self.each, other.each, strict=True))

    @property
    def words(self) -> str:
        """
        >>> Size(4, 16).words, Size(1, 0.5, 2).words
        ('4 cards and 16 cores', '1 card, 0.5 cores and 2 GB')
        """
        found = [f"{self.cards} card{'' if self.cards == 1 else 's'}"] if self.cards else []
        found += [f"{self.cpus:g} core{'' if self.cpus == 1 else 's'}"] if self.cpus else []
        found += [f"{self.memory_gb:g} GB"] if self.memory_gb else []
        return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found) or (
            "nothing"
        )


def _exact(number: float) -> Fraction:
    """A number as people write it: sums of tenths of a core come back to what they were made from."""
    return Fraction(str(number))


@dataclass(frozen=True)
class Machine:
    """One machine of a pool: what it has, and what nobody has taken of it.

    Invariant: ``free`` is within ``whole``.
    """

    name: str
    whole: Size
    free: Size
    card: str = ""  # the kind of its cards

    def __post_init__(self) -> None:
        if not self.free.within(self.whole):
            raise UsageError(f"machine {self.name}: {self.free.words} free of {self.whole.words}")

    def takes(self, part: Part) -> bool:
        """Whether a part could start here now."""
        kind = not part.card or part.card == self.card
        return kind and part.needs.within(self.free)

    def with_part(self, part: Part) -> Machine:
        """The same with the part on it."""
        assert self.takes(part), f"{self.name} has no room for {part.needs.words}"
        return replace(self, free=self.free - part.needs)

    def without(self, needs: Size) -> Machine:
        """The same once something has gone from it."""
        return replace(self, free=self.free + needs)


@dataclass(frozen=True)
class Part:
    """What must be on one machine together; ``card``: the kind of its cards, '' where any will do."""

    needs: Size
    card: str = ""

    @property
    def words(self) -> str:
        """
        >>> Part(Size(4, 16), "H100").words
        '4 cards and 16 cores (H100)'
        """
        return self.needs.words + (f" ({self.card})" if self.card else "")


@dataclass(frozen=True)
class Gang:
    """A job: its parts start at one time, or none of them does."""

    job: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UsageError(f"job {self.job} has no part, so there is nothing to place")


@dataclass(frozen=True)
class Placed:
    """A machine for every part, in the order of the parts."""

    job: str
    on: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class NoPlace:
    """No part starts."""

    job: str
    reason: str
    given_up: bool = (
        False  # no place was found in ``MOST_TRIES``, which does not prove that there is none
    )


def fits_ever(gang: Gang, machines: Iterable[Machine]) -> NoPlace | None:
    """Why a gang can never start in this pool, or ``None``; the reason tells the size that would fit.

    >>> pool = [Machine("a", Size(8, 64), Size()), Machine("b", Size(8, 64), Size())]
    >>> fits_ever(Gang("j", (Part(Size(8, 8)),) * 3), pool).reason
    '3 parts of 8 cards and 8 cores are more than the whole pool has room for: 2 such parts fit'
    >>> fits_ever(Gang("j", (Part(Size(9)),)), pool).reason
    'no machine has 9 cards: the largest has 8 cards and 64 cores'
    """
    empty = [replace(each, free=each.whole) for each in machines]
    for part in gang.parts:
        kinds = [each for each in empty if not part.card or each.card == part.card]
        if not kinds:
            has = (
                ", ".join(sorted({each.card or "cards of no name" for each in empty})) or "nothing"
            )
            return NoPlace(gang.job, f"the pool has no {part.card}: it has {has}")
        if not any(part.needs.within(each.whole) for each in kinds):
            largest = max(kinds, key=lambda each: (each.whole.each, each.name)).whole
            words = f"no machine has {part.words}: the largest has {largest.words}"
            return NoPlace(gang.job, words)
    found = place(gang, empty)
    if isinstance(found, Placed) or found.given_up:
        return None
    same = len(set(gang.parts)) == 1
    most = _most_alike(gang.parts[0], empty) if same else _most_first(gang, empty)
    what = f"{len(gang.parts)} parts" + (f" of {gang.parts[0].words}" if same else "")
    fit = f"{most} such part{'' if most == 1 else 's'} fit" if same else f"its {most} largest fit"
    return NoPlace(gang.job, f"{what} are more than the whole pool has room for: {fit}")


def _most_alike(part: Part, machines: Sequence[Machine]) -> int:
    return sum(_times(part, each) for each in machines)


def _most_first(gang: Gang, machines: Sequence[Machine]) -> int:
    """How many of the largest parts would find places together."""
    parts = _largest_first(gang.parts, machines)
    for most in range(len(parts) - 1, 0, -1):
        some = Gang(gang.job, tuple(gang.parts[n] for n in parts[:most]))
        if isinstance(place(some, machines), Placed):
            return most
    return 0


def _times(part: Part, machine: Machine) -> int:
    """How many such parts a machine takes."""
    if not machine.takes(part):
        return 0
    pairs = zip(machine.free.each, part.needs.each, strict=True)
    return min((int(_exact(free) / _exact(need)) for free, need in pairs if need), default=1 << 30)


def place(gang: Gang, machines: Iterable[Machine]) -> Placed | NoPlace:
    """A machine for every part of a gang, or none for any.

    Best fit by the dominant resource: a part goes where the least is left of that resource of which it
    takes the largest share of a machine (dominant as in DRF, Ghodsi et al. 2011), so that large free
    pieces stay whole; then where the least is left of the others; then by name. If the parts are equal
    this finds a way wherever there is one, because a machine takes as many of them whatever went
    elsewhere. Unequal parts are searched, the largest first, best fit first, up to ``MOST_TRIES``.

    >>> one = Machine("one", Size(8, 112), Size(4, 8), "H100")
    >>> two = Machine("two", Size(8, 128), Size(4, 32), "A100")
    >>> print(place(Gang("j", (Part(Size(4, 16), "H100"),)), [one, two]).reason)
    4 of 4 free cards (H100) are on machines that lack cores: no machine has 4 cards and 16 cores (H100) free
    >>> place(Gang("j", (Part(Size(4, 16)),)), [one, two]).on
    ('two',)
    """
    pool = sorted(machines, key=lambda each: each.name)
    names = Counter(each.name for each in pool)
    if twice := [name for name, count in names.items() if count > 1]:
        raise UsageError(f"two machines are called {twice[0]}; each needs a name of its own")
    search = _Search(gang, pool)
    found = search.found()
    if found is None:
        words = search.words if search.given_up else _no_room(gang, pool)
        return NoPlace(gang.job, words, search.given_up)
    machines_of = {each.name for each in found}
    where = ", ".join(sorted(machines_of))
    words = f"{gang.parts[0].words} on {where}"
    if len(gang.parts) > 1:
        words = f"all {len(gang.parts)} parts on {where}"
    return Placed(gang.job, tuple(each.name for each in found), f"{words}: best fit")


class _Search:
    """Depth first over the parts, largest first; each machine state is tried once a level."""

    def __init__(self, gang: Gang, pool: Sequence[Machine]) -> None:
        self._parts = gang.parts
        self._order = _largest_first(gang.parts, pool)
        self._whole = _largest(pool)
        self._machines = {each.name: each for each in pool}
        self._left = MOST_TRIES
        self._alike = len(set(gang.parts)) == 1
        self.words = f"no place found for its {len(gang.parts)} parts in {MOST_TRIES} tries"

    @property
    def given_up(self) -> bool:
        return self._left < 0

    def found(self) -> tuple[Machine, ...] | None:
        if self._alike:
            total = sum(_times(self._parts[0], each) for each in self._machines.values())
            if total < len(self._parts):
                return None
        chosen = self._from(0)
        return None if chosen is None else tuple(chosen[n] for n in range(len(self._parts)))

    def _from(self, level: int) -> dict[int, Machine] | None:
        if level == len(self._order):
            return {}
        part = self._parts[self._order[level]]
        tried: set[tuple[Size, str]] = set()
        for machine in _best_first(part, self._machines.values(), self._whole):
            state = (machine.free, machine.card)
            if state in tried:
                continue  # it would fare as the other did
            tried.add(state)
            self._left -= 1
            if self._left < 0 and not self._alike:
                return None
            self._machines[machine.name] = machine.with_part(part)
            rest = self._from(level + 1)
            self._machines[machine.name] = machine
            if rest is not None:
                return {**rest, self._order[level]: machine}
            if self._alike:
                return None
        return None


def _largest(pool: Iterable[Machine]) -> Size:
    """The most of each resource that one machine has: what shares are of."""
    wholes = [each.whole for each in pool]
    if not wholes:
        return Size()
    return Size(
        max(each.cards for each in wholes),
        max(each.cpus for each in wholes),
        max(each.memory_gb for each in wholes),
    )


def shares(needs: Size, whole: Size) -> tuple[float, float, float]:
    """The share of each resource; 0 of what there is none of and none is needed.

    >>> shares(Size(4, 16), Size(8, 128))
    (0.5, 0.125, 0.0)
    """
    cards, cpus, memory_gb = (
        need / most if most else (0.0 if not need else inf)
        for need, most in zip(needs.each, whole.each, strict=True)
    )
    return cards, cpus, memory_gb


def _largest_first(parts: Sequence[Part], pool: Iterable[Machine]) -> list[int]:
    """The numbers of the parts, by their dominant share."""
    whole = _largest(pool)

    def smallness(n: int) -> tuple[float, list[float], str, int]:
        each = shares(parts[n].needs, whole)
        return -max(each), [-one for one in each], parts[n].card, n

    return sorted(range(len(parts)), key=smallness)


def _best_first(part: Part, machines: Iterable[Machine], whole: Size) -> Iterator[Machine]:
    """The machines that take a part: least left of its dominant resource first."""
    needs = shares(part.needs, whole)
    dominant = max(range(len(needs)), key=lambda n: needs[n])

    def left(machine: Machine) -> tuple[float, float, str]:
        after = shares(machine.free - part.needs, whole)
        return after[dominant], sum(after), machine.name

    yield from sorted((each for each in machines if each.takes(part)), key=left)


def _no_room(gang: Gang, pool: Sequence[Machine]) -> str:
    """Why a gang has no place now: too few cards, or cards that lack what must be beside them."""
    for part in gang.parts:
        if any(each.takes(part) for each in pool):
            continue
        kinds = [each for each in pool if not part.card or each.card == part.card]
        cards = sum(each.free.cards for each in kinds)
        lost = stranded(part, kinds)
        words = f"no machine has {part.words} free"
        if lost and cards >= part.needs.cards:
            lacks = _lacking(part, kinds)
            kind = f" ({part.card})" if part.card else ""
            on = f"on machines that lack {lacks}" if lacks else "spread over too many machines"
            return f"{lost} of {cards} free cards{kind} are {on}: {words}"
        return words
    return f"{len(gang.parts)} parts must start together, and there is room for some of them only"


def _lacking(part: Part, kinds: Sequence[Machine]) -> str:
    """What is missing beside the cards, on machines that have enough of those."""
    names = ("", "cores", "memory")
    enough = [each for each in kinds if each.free.cards >= part.needs.cards]
    missing = {
        names[n] for each in enough for n in (1, 2) if each.free.each[n] < part.needs.each[n]
    }
    return " and ".join(sorted(missing))


def stranded(part: Part, machines: Iterable[Machine]) -> int:
    """Free cards that no part of this shape could use: of each machine those that are over.

    The measure is that of "Beware of Fragmentation" (Weng et al., ATC 2023) for one shape: of a machine
    with room for ``n`` such parts, what is free beyond the cards of these ``n``.

    >>> one = Machine("one", Size(8, 112), Size(4, 8), "H100")
    >>> stranded(Part(Size(4, 16), "H100"), [one]), stranded(Part(Size(4, 8), "H100"), [one])
    (4, 0)
    """
    return sum(
        each.free.cards - min(_times(part, each), _most_by_cards(part, each)) * part.needs.cards
        for each in machines
    )


def _most_by_cards(part: Part, machine: Machine) -> int:
    return machine.free.cards // part.needs.cards if part.needs.cards else 0


def fragmentation(machines: Sequence[Machine], demand: Mapping[Part, float]) -> float:
    """The share of the free cards that are of no use to the next job, in 0 to 1; 0 where none is free.

    ``demand`` says how likely the next part is of each shape; the weights need not sum to 1.

    >>> one = Machine("one", Size(8, 112), Size(4, 8))
    >>> fragmentation([one], {Part(Size(4, 16)): 1.0, Part(Size(1, 1)): 3.0})
    0.25
    """
    free = sum(each.free.cards for each in machines)
    total = sum(demand.values())
    if not free or not total:
        return 0.0
    shapes = sorted(demand.items(), key=lambda each: (each[0].words, each[1]))
    return sum(weight * stranded(part, machines) for part, weight in shapes) / (free * total)


@dataclass(frozen=True)
class Filled:
    """What a round placed, why the others wait, and the pool afterwards."""

    places: tuple[Placed | NoPlace, ...]  # one for each gang, in the order of the queue
    machines: tuple[Machine, ...]


def fill(queue: Sequence[Gang], machines: Iterable[Machine]) -> Filled:
    """Place the gangs of a queue in its order; whoever has no place lets those behind him by.

    Work conserving: what is left takes none of those that wait, since room only shrinks in a round.
    Who must not be passed any more gets machines kept for him (:func:`kept_free`).

    >>> pool = [Machine("a", Size(2, 8), Size(2, 8))]
    >>> filled = fill([Gang("x", (Part(Size(2)),) * 2), Gang("y", (Part(Size(1)),))], pool)
    >>> [type(each).__name__ for each in filled.places]
    ['NoPlace', 'Placed']
    """
    jobs = Counter(gang.job for gang in queue)
    if twice := [job for job, count in jobs.items() if count > 1]:
        raise UsageError(f"job {twice[0]} is in the queue twice")
    now = {each.name: each for each in machines}
    places: list[Placed | NoPlace] = []
    for gang in queue:
        found = place(gang, now.values())
        if isinstance(found, Placed):
            for part, name in zip(gang.parts, found.on, strict=True):
                now[name] = now[name].with_part(part)
        places.append(found)
    return Filled(tuple(places), tuple(now[name] for name in sorted(now)))


# --------------------------------------------------------------------- wait, move another, spread


@dataclass(frozen=True)
class Running:
    """A part that runs: when it will have ended, and what it takes to move it."""

    job: str
    part: Part
    machine: str
    ends_in_s: float  # from now; inf where nobody knows
    move_s: float | None = None  # to be running elsewhere; None: it cannot be moved


@dataclass(frozen=True)
class Spread:
    """Another configuration of the same job, over several machines."""

    gang: Gang
    ready_s: float  # until it can begin
    run_s: float


@dataclass(frozen=True)
class Waits:
    """It starts where somebody ends; at once where there is room."""

    placed: Placed
    starts_s: float
    finishes_s: float
    reason: str


@dataclass(frozen=True)
class Moves:
    """It starts when others have been moved out of its way: (job, from, to)."""

    placed: Placed
    moved: tuple[tuple[str, str, str], ...]
    finishes_s: float
    reason: str


@dataclass(frozen=True)
class Spreads:
    """It starts in pieces over several machines."""

    placed: Placed
    finishes_s: float
    reason: str


#: Others that are moved for one job at most: each is delayed by its own move.
MOST_MOVED = 2


def ways(
    gang: Gang,
    machines: Sequence[Machine],
    running: Sequence[Running],
    run_s: float,
    spread: Spread | None = None,
) -> tuple[Waits | Moves | Spreads, ...]:
    """Every way in which a job could start, the one that finishes first at the head.

    ``run_s`` is how long the job takes on one machine. As in section 11.3.1: waiting finishes after
    ``wait + run``, moving others after ``move + run``, spreading after ``ready + run`` of that
    configuration. Among equals waiting comes first and moving last, since a move delays somebody else.
    Empty: nothing is known that would let it start.
    """
    found: list[Waits | Moves | Spreads] = []
    if waits := _waiting(gang, machines, running, run_s):
        found.append(waits)
    if spread and isinstance(placed := place(spread.gang, machines), Placed):
        ends_s = spread.ready_s + spread.run_s
        words = f"spread over {len(set(placed.on))} machines: ready in {spread.ready_s:g} s"
        words = f"{words}, then {spread.run_s:g} s: finished in {ends_s:g} s"
        found.append(Spreads(placed, ends_s, words))
    if moves := _moving(gang, machines, running, run_s):
        found.append(moves)
    return tuple(sorted(found, key=lambda way: way.finishes_s))  # stable


def _waiting(
    gang: Gang, machines: Sequence[Machine], running: Sequence[Running], run_s: float
) -> Waits | None:
    found = earliest(gang, machines, running)
    if found is None:
        return None
    starts_s, placed = found
    ends_s = starts_s + run_s
    words = f"wait {starts_s:g} s, then {run_s:g} s: finished in {ends_s:g} s"
    return Waits(placed, starts_s, ends_s, words)


def earliest(
    gang: Gang, machines: Sequence[Machine], running: Sequence[Running]
) -> tuple[float, Placed] | None:
    """When a gang can start if nobody else begins, and where; ``None`` where no known end makes room.

    >>> one = Machine("one", Size(2), Size(1))
    >>> on_it = [Running("r", Part(Size(1)), "one", 12.0)]
    >>> earliest(Gang("j", (Part(Size(2)),)), [one], on_it)[0]
    12.0
    """
    now = {each.name: each for each in machines}
    placed = place(gang, now.values())
    if isinstance(placed, Placed):
        return 0.0, placed
    ends = sorted((each for each in running if isfinite(each.ends_in_s)), key=_by_end)
    for n, each in enumerate(ends):
        now[each.machine] = now[each.machine].without(each.part.needs)
        if n + 1 < len(ends) and ends[n + 1].ends_in_s == each.ends_in_s:
            continue
        placed = place(gang, now.values())
        if isinstance(placed, Placed):
            return max(0.0, each.ends_in_s), placed
    return None


def _by_end(each: Running) -> tuple[float, str, str]:
    return each.ends_in_s, each.job, each.machine


def kept_free(
    gang: Gang, machines: Sequence[Machine], running: Sequence[Running]
) -> tuple[float, Mapping[str, Size]] | None:
    """When a gang that may be passed no more starts, and what is kept of each machine until then.

    Who is certain to have ended by then may still go before it (backfilling, as EASY does it).
    ``None`` where nothing that is known to end makes room: then nothing can be kept to any purpose.
    """
    found = earliest(gang, machines, running)
    if found is None:
        return None
    starts_s, placed = found
    kept: dict[str, Size] = {}
    for part, name in zip(gang.parts, placed.on, strict=True):
        kept[name] = kept.get(name, Size()) + part.needs
    return starts_s, kept


def _moving(
    gang: Gang, machines: Sequence[Machine], running: Sequence[Running], run_s: float
) -> Moves | None:
    """The fastest move of one other, or of ``MOST_MOVED`` one after the other, that makes room."""
    if isinstance(place(gang, machines), Placed):
        return None  # there is nobody in its way
    movable = sorted((each for each in running if each.move_s is not None), key=_by_end)
    best: Moves | None = None
    for moved in _sets(movable):
        move_s = sum(each.move_s or 0.0 for each in moved)
        if best and move_s + run_s >= best.finishes_s:
            continue
        if (found := _moved(gang, machines, moved)) is None:
            continue
        placed, to = found
        ends_s = move_s + run_s
        who = " and ".join(f"{each.job} from {each.machine} to {on}" for each, on in to)
        words = f"move {who} in {move_s:g} s, then {run_s:g} s: finished in {ends_s:g} s"
        rows = tuple((each.job, each.machine, on) for each, on in to)
        best = Moves(placed, rows, ends_s, words)
    return best


def _sets(movable: Sequence[Running]) -> Iterator[tuple[Running, ...]]:
    for size in range(1, MOST_MOVED + 1):
        yield from combinations(movable, size)


def _moved(
    gang: Gang, machines: Sequence[Machine], moved: Sequence[Running]
) -> tuple[Placed, list[tuple[Running, str]]] | None:
    """Where everybody goes: each one moved to another machine, and the gang into what is free then."""
    now = {each.name: each for each in machines}
    for each in moved:
        now[each.machine] = now[each.machine].without(each.part.needs)
    placed = place(gang, now.values())
    if not isinstance(placed, Placed):
        return None
    for part, name in zip(gang.parts, placed.on, strict=True):
        now[name] = now[name].with_part(part)
    to: list[tuple[Running, str]] = []
    for each in moved:
        # it goes while its old place is still taken, so it needs room that is free today
        others = [now[m.name] for m in machines if m.name != each.machine and m.takes(each.part)]
        alone = place(Gang(each.job, (each.part,)), others)
        if not isinstance(alone, Placed):
            return None
        (name,) = alone.on
        now[name] = now[name].with_part(each.part)
        to.append((each, name))
    return placed, to
