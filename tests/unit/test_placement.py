"""Gangs, fragments, and the three ways to start; then bursts. Worked examples are exact."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import UsageError
from tenure.queue import placement
from tenure.queue.burst_play import Burst, play
from tenure.queue.bursts import Load, View, send, serve
from tenure.queue.placement import (
    Gang,
    Machine,
    Moves,
    NoPlace,
    Part,
    Placed,
    Running,
    Size,
    Spread,
    Spreads,
    Waits,
    fill,
    fits_ever,
    fragmentation,
    place,
    ways,
)

# ------------------------------------------------------------------ the chapter's worked examples

H100, A100 = "H100 SXM", "A100"
NODES = [
    Machine("node-1", Size(8, 112), Size(4, 8), H100),
    Machine("node-2", Size(8, 128), Size(4, 32), A100),
]
JOB = Gang("new", (Part(Size(4, 16), H100),))
#: The same job over both nodes, two cards and four cores a piece.
OVER_BOTH = Spread(Gang("new", (Part(Size(2, 4), H100), Part(Size(2, 4), A100))), 1.0, 32.0)


def running(move_s: float) -> list[Running]:
    """On node 1: four cards and 96 cores by a job that ends in 12 s, 8 cores by a task that can move."""
    return [
        Running("big", Part(Size(4, 96), H100), "node-1", 12.0),
        Running("task", Part(Size(0, 8)), "node-1", 12.0, move_s),
    ]


def test_11_3_1_four_free_cards_and_enough_cores_are_on_no_one_node() -> None:
    assert sum(node.free.cards for node in NODES if node.card == H100) == 4
    assert sum(node.free.cpus for node in NODES) >= 16
    assert isinstance(place(JOB, NODES), NoPlace)
    assert fragmentation([NODES[0]], {JOB.parts[0]: 1.0}) == 1.0
    assert fragmentation([NODES[0].without(Size(0, 8))], {JOB.parts[0]: 1.0}) == 0.0


def test_11_3_1_wait_32_s_move_24_s_spread_33_s() -> None:
    found = ways(JOB, NODES, running(move_s=4.0), 20.0, OVER_BOTH)
    assert [(type(way), way.finishes_s) for way in found] == [
        (Moves, 24.0),
        (Waits, 32.0),
        (Spreads, 33.0),
    ]
    assert isinstance(found[0], Moves)
    assert found[0].moved == (("task", "node-1", "node-2"),)
    assert found[0].placed.on == ("node-1",)
    assert found[0].reason == (
        "move task from node-1 to node-2 in 4 s, then 20 s: finished in 24 s"
    )


def test_11_3_1_a_move_of_12_s_is_equal_to_waiting_and_nobody_is_moved_for_nothing() -> None:
    found = ways(JOB, NODES, running(move_s=12.0), 20.0, OVER_BOTH)
    assert [(type(way), way.finishes_s) for way in found] == [
        (Waits, 32.0),
        (Moves, 32.0),
        (Spreads, 33.0),
    ]


def test_11_3_2_ten_calls_at_once_on_one_core_wait_four_and_a_half_seconds_on_average() -> None:
    at_once = serve([0.0] * 10, [1.0] * 10, 1)
    assert at_once.waited_s == tuple(map(float, range(10)))
    assert (at_once.mean_wait_s, at_once.done_s) == (4.5, 10.0)
    evenly = serve([float(n) for n in range(10)], [1.0] * 10, 1)
    assert (evenly.mean_wait_s, evenly.done_s) == (0.0, 10.0)


def test_11_3_2_80_calls_on_48_cores_wait_0_4_s_and_are_done_in_2_s() -> None:
    burst = serve([0.0] * 80, [1.0] * 80, 48)
    assert burst.waited_s.count(0.0) == 48
    assert (burst.mean_wait_s, burst.done_s) == (0.4, 2.0)
    assert serve([0.0] * 80, [1.0] * 80, 96).done_s == 1.0
    on_one = play(Burst(calls=80, machines=1, cores=48), seed=0)
    assert (on_one.mean_wait_s, on_one.done_s) == (0.4, 2.0)


# --------------------------------------------------------------------------------------- properties

SIZES = st.builds(Size, st.integers(0, 4), st.integers(0, 8), st.integers(0, 4))
KINDS = st.sampled_from(["", "a", "b"])


@st.composite
def pools(draw: st.DrawFn) -> list[Machine]:
    found = []
    for n in range(draw(st.integers(1, 4))):
        whole = draw(SIZES)
        free = Size(*(draw(st.integers(0, int(each))) for each in whole.each))
        found.append(Machine(f"m{n}", whole, free, draw(st.sampled_from(["a", "b"]))))
    return found


PARTS = st.builds(Part, SIZES, KINDS)
GANGS = st.lists(PARTS, min_size=1, max_size=3).map(tuple)
QUEUES = st.lists(GANGS, max_size=5).map(
    lambda rows: [Gang(f"j{n}", parts) for n, parts in enumerate(rows)]
)


def used(queue: list[Gang], places: tuple[Placed | NoPlace, ...]) -> dict[str, Size]:
    found: dict[str, Size] = {}
    for gang, at in zip(queue, places, strict=True):
        if isinstance(at, Placed):
            for part, name in zip(gang.parts, at.on, strict=True):
                found[name] = found.get(name, Size()) + part.needs
    return found


@given(QUEUES, pools())
def test_a_gang_is_never_placed_in_part_and_no_machine_is_over_its_capacity(
    queue: list[Gang], machines: list[Machine]
) -> None:
    filled = fill(queue, machines)
    of = {each.name: each for each in machines}
    for gang, at in zip(queue, filled.places, strict=True):
        assert at.job == gang.job
        if isinstance(at, Placed):
            assert len(at.on) == len(gang.parts)
            pairs = zip(gang.parts, at.on, strict=True)
            assert all(not part.card or of[name].card == part.card for part, name in pairs)
    taken = used(queue, filled.places)
    for machine in filled.machines:
        before = of[machine.name].free
        assert taken.get(machine.name, Size()).within(before)
        assert machine.free == before - taken.get(machine.name, Size())


def possible(gang: Gang, machines: list[Machine]) -> bool:
    """Every way tried, by brute force."""
    for on in product(range(len(machines)), repeat=len(gang.parts)):
        now = list(machines)
        for part, n in zip(gang.parts, on, strict=True):
            if not now[n].takes(part):
                break
            now[n] = now[n].with_part(part)
        else:
            return True
    return False


@given(GANGS, pools())
def test_a_place_is_found_wherever_there_is_one(
    parts: tuple[Part, ...], machines: list[Machine]
) -> None:
    gang = Gang("j", parts)
    assert isinstance(place(gang, machines), Placed) == possible(gang, machines)


@given(QUEUES, pools())
def test_nobody_waits_beside_room_that_he_could_use(
    queue: list[Gang], machines: list[Machine]
) -> None:
    filled = fill(queue, machines)
    for gang, at in zip(queue, filled.places, strict=True):
        assert isinstance(at, Placed) or not possible(gang, list(filled.machines))


@given(QUEUES, pools(), st.randoms(use_true_random=False))
def test_the_order_in_which_machines_are_named_decides_nothing(
    queue: list[Gang], machines: list[Machine], draw: random.Random
) -> None:
    shuffled = draw.sample(machines, len(machines))
    assert fill(queue, machines) == fill(queue, shuffled)


@given(GANGS, pools(), st.lists(st.integers(0, 3), max_size=3), st.randoms(use_true_random=False))
def test_no_way_to_start_takes_more_than_there_is_when_it_starts(
    parts: tuple[Part, ...], machines: list[Machine], holders: list[int], draw: random.Random
) -> None:
    on_them = [
        Running(f"r{n}", Part(each.whole - each.free), each.name, 10.0 * n, 3.0 if n % 2 else None)
        for n, at in enumerate(holders)
        for each in [machines[at % len(machines)]]
        if holders.index(at) == n
        and all(h % len(machines) != at % len(machines) for h in holders[:n])
    ]
    gang = Gang("j", parts)
    found = ways(gang, machines, on_them, 20.0)
    assert found == ways(gang, draw.sample(machines, len(machines)), on_them[::-1], 20.0)
    assert [way.finishes_s for way in found] == sorted(way.finishes_s for way in found)
    for way in found:
        now = {each.name: each for each in machines}
        if isinstance(way, Moves):
            for job, here, to in way.moved:
                moved = next(each for each in on_them if each.job == job)
                assert here != to and moved.move_s is not None
                now[to] = now[to].with_part(moved.part)  # while its old place is still taken
            for job, here, _ in way.moved:
                moved = next(each for each in on_them if each.job == job)
                now[here] = now[here].without(moved.part.needs)
        elif isinstance(way, Waits):
            for each in on_them:
                if each.ends_in_s <= way.starts_s:
                    now[each.machine] = now[each.machine].without(each.part.needs)
        for part, name in zip(gang.parts, way.placed.on, strict=True):
            now[name] = now[name].with_part(part)  # asserts that there is room


@given(st.integers(1, 4), st.integers(0, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_call_comes_back_only_when_there_is_room_nowhere(
    machines: int, calls: int, k: int, draw: random.Random
) -> None:
    room = {f"m{n}": draw.randint(0, 2) for n in range(machines)}
    view = View()
    # old, and wrong in every way
    view.gathered({name: Load(draw.randint(0, 3), 2) for name in room}, 0.0)

    def admits(name: str, amount: float) -> bool:
        if room[name] < amount:
            return False
        room[name] -= int(amount)
        return True

    for n in range(calls):
        total = sum(room.values())
        sent = send(view, 1, k, draw, 1.0 + n, admits)
        assert (sent.machine is not None) == (total > 0)
        assert sum(room.values()) == total - (sent.machine is not None)
        assert len(set(sent.refusals)) == len(sent.refusals)


@settings(max_examples=30)
@given(
    st.builds(
        Burst,
        calls=st.integers(1, 40),
        machines=st.integers(1, 5),
        cores=st.integers(1, 4),
        schedulers=st.integers(1, 3),
        k=st.integers(1, 6),
        corrects=st.booleans(),
        room=st.none() | st.integers(4, 5),
    ),
    st.integers(0, 9),
)
def test_every_call_of_a_burst_is_served_and_no_machine_takes_more_than_its_room(
    burst: Burst, seed: int
) -> None:
    played = play(burst, seed)
    assert len(played.waits_s) == burst.calls
    assert played.most <= (burst.room or 2 * burst.cores)
    assert played == play(burst, seed)


# ---------------------------------------------------------------------------------- one thing each


def test_best_fit_leaves_the_large_free_piece_whole() -> None:
    pool = [
        Machine("empty", Size(8, 64), Size(8, 64)),
        Machine("half", Size(8, 64), Size(2, 64)),
    ]
    assert place(Gang("small", (Part(Size(2, 2)),)), pool).on == ("half",)  # type: ignore[union-attr]
    filled = fill([Gang("small", (Part(Size(2, 2)),)), Gang("large", (Part(Size(8, 8)),))], pool)
    assert all(isinstance(each, Placed) for each in filled.places)


def test_the_dominant_resource_decides_and_not_the_cards_alone() -> None:
    pool = [
        Machine("few-cards", Size(8, 64), Size(1, 64)),
        Machine("few-cores", Size(8, 64), Size(8, 34)),
    ]
    of_cores = Gang("c", (Part(Size(1, 32)),))  # half of the cores, an eighth of the cards
    assert place(of_cores, pool).on == ("few-cores",)  # type: ignore[union-attr]


def test_tenths_of_a_core_add_up() -> None:
    pool = [Machine("one", Size(3, 0.3), Size(3, 0.3))]
    found = place(Gang("j", (Part(Size(1, 0.1)),) * 3), pool)
    assert isinstance(found, Placed)


def test_a_gang_that_can_never_start_is_told_what_would() -> None:
    pool = [Machine(name, Size(8, 64), Size(), "H100") for name in "ab"]
    unequal = Gang("j", (Part(Size(8)), Part(Size(6)), Part(Size(4))))
    assert (refused := fits_ever(unequal, pool)) is not None
    assert refused.reason == (
        "3 parts are more than the whole pool has room for: its 2 largest fit"
    )
    other = fits_ever(Gang("j", (Part(Size(1), "B200"),)), pool)
    assert other is not None and other.reason == "the pool has no B200: it has H100"
    assert fits_ever(Gang("j", (Part(Size(8)),) * 2), pool) is None


def test_a_search_that_gave_up_says_so_and_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MOST_TRIES", 3)
    pool = [Machine(f"m{n}", Size(4, n + 4), Size(4, n + 4)) for n in range(4)]
    gang = Gang("j", tuple(Part(Size(3, n)) for n in range(5)))
    found = place(gang, pool)
    assert isinstance(found, NoPlace) and found.given_up
    assert found.reason == "no place found for its 5 parts in 3 tries"
    assert fits_ever(gang, pool) is None


def test_nobody_is_moved_into_room_that_is_not_free_today() -> None:
    """It would take two moves in a row, of which the second makes room for the first."""
    pool = [
        Machine("a", Size(2), Size(0), "fast"),
        Machine("b", Size(2), Size(1)),
        Machine("c", Size(1), Size(1)),
    ]
    on_them = [
        Running("x", Part(Size(2)), "a", float("inf"), 1.0),
        Running("y", Part(Size(1)), "b", float("inf"), 1.0),
    ]
    assert ways(Gang("j", (Part(Size(2), "fast"),)), pool, on_them, 20.0) == ()


def test_what_is_kept_for_a_gang_is_what_it_starts_on() -> None:
    pool = [Machine("a", Size(2), Size(1)), Machine("b", Size(2), Size(2))]
    on_it = [Running("r", Part(Size(1)), "a", 60.0)]
    found = placement.kept_free(Gang("j", (Part(Size(2)),) * 2), pool, on_it)
    assert found == (60.0, {"a": Size(2), "b": Size(2)})
    never = [Running("r", Part(Size(1)), "a", float("inf"))]
    assert placement.kept_free(Gang("j", (Part(Size(2)),) * 2), pool, never) is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Size(-1), "is no amount"),
        (lambda: Size(0, float("nan")), "is no amount"),
        (lambda: Machine("m", Size(1), Size(2)), "2 cards free of 1 card"),
        (lambda: Gang("j", ()), "has no part"),
        (lambda: place(Gang("j", (Part(Size()),)), [Machine("m", Size(), Size())] * 2), "two machines"),
        (lambda: fill([Gang("j", (Part(Size()),))] * 2, []), "in the queue twice"),
        (lambda: serve([0.0], [1.0], 0), "0 cores serve nobody"),
        (lambda: serve([0.0], [], 1), "0 lengths"),
        (lambda: Burst(0, 1, 1), "at least one call"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(make: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()  # type: ignore[operator]


def test_an_older_sight_teaches_nothing_and_a_newer_one_forgets_what_is_in_it() -> None:
    view = View()
    view.gathered({"a": Load(0, 4)}, 10.0)
    view.placed("a", 1, 11.0)
    view.placed("a", 1, 13.0)
    view.refused("a", 13.0)
    view.gathered({"a": Load(4, 4)}, 9.0)
    assert view.load("a") == Load(2, 4)
    view.gathered({"a": Load(1, 4)}, 12.0)
    assert view.load("a") == Load(2, 4)  # what came after the sight is added to it
    assert view.choose(1, random.Random(0)) is None
    view.gathered({"a": Load(2, 4)}, 14.0)
    assert view.choose(1, random.Random(0)) == "a"


def test_without_its_own_placements_a_scheduler_sends_a_burst_to_one_machine() -> None:
    """What the correction is for: every machine is looked at, and one has a call less than the others."""
    most = {}
    for corrects in (True, False):
        view, rooms = View(), dict.fromkeys("abcd", 0)
        view.gathered({"a": Load(0, 8), "b": Load(1, 8), "c": Load(1, 8), "d": Load(1, 8)}, 0.0)
        for _ in range(5):
            sent = send(view, 1, 4, random.Random(0), 1.0, lambda _name, _amount: True)
            assert sent.machine is not None
            rooms[sent.machine] += 1
            if not corrects:
                view.own.clear()
        most[corrects] = max(rooms.values())
    assert most == {True: 2, False: 5}
