"""Jobs that change places on a rung's launches: less is paid, and no limit is broken on the way."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.plan import allocate_greedy
from tenure.plan.allocate import allocate
from tenure.plan.allocate_floor import Floor, Purse
from tenure.plan.allocate_model import Problem
from tenure.plan.allocate_repack import Rates, exchange, trade
from tenure.plan.allocate_scenario import Job, Price, Quota, Rung, Scenario


def floor_of(hours: list[float], dues: list[float], cards: list[int] | None = None) -> Floor:
    """One rung with launches of four cards."""
    jobs = [
        Job(name=f"j{n}", hours=h, deadline_h=due, cards=(cards or [1] * len(hours))[n])
        for n, (h, due) in enumerate(zip(hours, dues, strict=True))
    ]
    rung = Rung(name="r", price=Price(per_h=1.0), cards=4)
    problem = Problem(Scenario(horizon_h=1000.0, jobs=jobs, rungs=[rung]))
    return Floor(problem, 0, Purse.of(problem))


def rates(floor: Floor, elsewhere: list[float]) -> Rates:
    problem = floor.problem
    return Rates(floor.hours, problem.due_h, [it.cards for it in problem.jobs], elsewhere)


def paid_h(floor: Floor) -> float:
    return sum(it.hours for it in floor.launches())


def test_the_longest_come_together_and_the_next_launch_ends_sooner() -> None:
    floor = floor_of([10, 6, 6, 6, 9, 9, 9, 5], [100.0] * 8)
    assert floor.open([0, 1, 2, 3]) and floor.open([4, 5, 6, 7])
    assert paid_h(floor) == 19
    assert exchange(list(floor.drafts.values()), rates(floor, [1.0] * 8))
    floor.shorten()
    assert paid_h(floor) == 16
    assert sorted(sorted(it.jobs) for it in floor.launches()) == [[0, 4, 5, 6], [1, 2, 3, 7]]


def test_nobody_changes_to_a_launch_that_ends_after_its_deadline() -> None:
    """The long launch begins at hour 20, and those of nine hours are due by then."""
    floor = floor_of([10, 6, 6, 6, 9, 9, 9, 5], [100.0] * 4 + [25.0] * 4)
    assert floor.open([0, 1, 2, 3]) and floor.open([4, 5, 6, 7])
    long = floor.drafts[0]
    long.runs = ((20.0, 30.0),)
    assert not exchange(list(floor.drafts.values()), rates(floor, [1.0] * 8))
    assert long.jobs == [0, 1, 2, 3]


def test_only_jobs_of_as_many_cards_change_places() -> None:
    floor = floor_of([10, 6, 9, 5, 5], [100.0] * 5, [2, 2, 3, 1, 1])
    assert floor.open([0, 1]) and floor.open([2, 3])
    exchange(list(floor.drafts.values()), rates(floor, [1.0] * 5))
    for draft in floor.drafts.values():
        assert sum(floor.problem.jobs[job].cards for job in draft.jobs) <= 4


def test_who_is_late_takes_the_place_of_who_costs_less_elsewhere() -> None:
    floor = floor_of([5, 5, 5, 5, 4, 5], [100.0] * 6)
    assert floor.open([0, 1, 2, 3])
    elsewhere = [9.0, 2.0, 9.0, 3.0, 6.0, 1.0]
    out = trade(list(floor.drafts.values()), [4, 5], rates(floor, elsewhere))
    assert sorted(out) == [1, 5]
    assert sorted(floor.drafts[0].jobs) == [0, 2, 3, 4]


def test_a_large_job_frees_as_many_cards_as_it_needs_and_those_left_over_are_used_again() -> None:
    floor = floor_of([5, 5, 5, 5], [100.0] * 4, [3, 1, 2, 2])
    assert floor.open([0, 1])
    draft = floor.drafts[0]
    out = trade([draft], [2, 3], rates(floor, [1.0, 0.5, 5.0, 4.0]))
    assert sorted(out) == [0, 1] and sorted(draft.jobs) == [2, 3] and draft.cards == 0


def test_who_is_due_before_a_launch_would_have_done_it_stays_out() -> None:
    floor = floor_of([5, 5], [100.0, 5.0])
    assert floor.open([0])
    floor.drafts[0].runs = ((1.0, 6.0),)
    floor.drafts[0].cards = 0
    assert trade(list(floor.drafts.values()), [1], rates(floor, [1.0, 9.0])) == [1]


def test_a_launch_with_too_many_cards_or_jobs_is_not_opened() -> None:
    assert not floor_of([1, 1], [9.0] * 2, [3, 2]).open([0, 1])
    jobs = [Job(name=name, hours=1.0) for name in "abc"]
    rung = Rung(name="r", price=Price(per_h=1.0), cards=4, per_launch=2)
    problem = Problem(Scenario(jobs=jobs, rungs=[rung]))
    assert not Floor(problem, 0, Purse.of(problem)).open([0, 1, 2])


def test_a_launch_that_got_shorter_gives_its_quota_back() -> None:
    jobs = [Job(name=name, hours=hours) for name, hours in (("a", 5.0), ("b", 3.0))]
    rung = Rung(name="r", price=Price(per_h=1.0), cards=4, quota=Quota(left=10.0))
    problem = Problem(Scenario(jobs=jobs, rungs=[rung]))
    purse = Purse.of(problem)
    floor = Floor(problem, 0, purse)
    assert floor.open([0, 1])
    assert purse.quota["r"] == [pytest.approx(5.0)]
    floor.drafts[0].jobs = [1]
    floor.shorten()
    assert purse.quota["r"] == [pytest.approx(7.0)] and floor.launches()[0].runs == ((0.0, 3.0),)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 20), st.floats(20, 200), st.sampled_from([1, 1, 2])), min_size=4, max_size=24),
       st.randoms(use_true_random=False))  # fmt: skip
def test_changing_places_never_costs_more_and_never_makes_late(
    drawn: list[tuple[float, float, int]], rng: random.Random
) -> None:
    hours, dues, cards = (list(each) for each in zip(*drawn, strict=True))
    floor = floor_of(hours, dues, cards)
    order = list(range(len(hours)))
    rng.shuffle(order)
    placed = [job for job in order if floor.open([job]) or True]
    floor.clear()
    group: list[int] = []
    for job in placed:
        if sum(cards[it] for it in [*group, job]) > 4:
            floor.open(group)
            group = []
        group.append(job)
    floor.open(group)
    before = paid_h(floor)
    jobs = sorted(job for it in floor.launches() for job in it.jobs)
    exchange(list(floor.drafts.values()), rates(floor, [1.0] * len(hours)))
    floor.shorten()
    assert paid_h(floor) <= before + 1e-9
    assert sorted(job for it in floor.launches() for job in it.jobs) == jobs
    for launch in floor.launches():
        assert sum(cards[job] for job in launch.jobs) <= 4
        assert all(launch.until_h(floor.hours[job]) <= dues[job] + 1e-6 for job in launch.jobs)


def packed(seed: int) -> Scenario:
    """400 jobs of one, two or four cards; the cheap hours have two windows, and half of the jobs are due in the first."""
    rng = random.Random(seed)
    jobs = [
        Job(
            name=f"j{n}", hours=0.5 * 20 ** rng.random(), cards=rng.choice([1, 1, 1, 2, 4]),
            deadline_h=rng.choice([50.0, 150.0]),
        )
        for n in range(400)
    ]  # fmt: skip
    free = Quota(left=100.0, renews_in_h=60.0, granted=150.0)
    rungs = [
        Rung(name="sure", price=Price(per_h=4.0), cards=4),
        Rung(name="free", price=Price(per_h=0.0), cards=4, concurrency=8, quota=free),
        Rung(name="cheap", price=Price(per_h=2.0), cards=4, concurrency=3),
    ]
    return Scenario(horizon_h=150.0, jobs=jobs, rungs=rungs)


def gap(scenario: Scenario) -> float:
    found = allocate(scenario, "greedy")
    assert found.gap is not None and not found.left
    return found.gap


def test_trading_places_brings_packs_nearer_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gap(packed(1))
    monkeypatch.setattr(allocate_greedy, "trade", lambda _, late, __: list(late))
    assert found < 0.1 < gap(packed(1))


@pytest.mark.parametrize("seed", [0, 2])
def test_packs_are_put_together_within_the_window_in_which_they_must_begin(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those that could wait for the renewal use up what is there before it, and the rest of it is left over."""
    found = gap(packed(seed))

    def by_deadline(
        filling: allocate_greedy._Filling, _rung: int, jobs: list[int], classes: int
    ) -> list[list[int]]:
        due_h = filling._problem.due_h
        part = sorted(jobs, key=due_h.__getitem__)
        return allocate_greedy._cut([due_h[job] for job in part], part, classes)

    monkeypatch.setattr(allocate_greedy._Filling, "_parts", by_deadline)
    assert found < 0.12 and gap(packed(seed)) > found + 0.02
