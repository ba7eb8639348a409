"""Shares, order, misuse and the price of preemption: the pure parts of the queue."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.queue.fair import Fair
from tenure.queue.floor import Floor
from tenure.queue.misuse import DAY_S, Strike, Watch, penalties
from tenure.queue.preempt import Victim, cheapest, kept_free, worth_it
from tenure.queue.rank import order, overdue_debt, standing
from tenure.queue.records import Hold, Need, Penalty, Pool, State, Submission, Team
from tenure.queue.share import Account, charge, charges, decayed, rate

HOUR = 3600.0
TEAMS = (Team("a", 3.0), Team("b", 1.0), Team("b2", part_of="b"))
POOL = Pool(8)


# ---------------------------------------------------------------------------------------------- use that decays


def test_use_decays_as_its_integral_says() -> None:
    half_life_s, now_s = 500.0, 1000.0
    steps = 100_000
    width_s = 300.0 / steps
    by_hand = sum(
        3.0 * 0.5 ** ((now_s - (200.0 + (n + 0.5) * width_s)) / half_life_s) * width_s
        for n in range(steps)
    )
    assert decayed(3.0, 200.0, 500.0, now_s, half_life_s) == pytest.approx(by_hand, rel=1e-9)


@given(
    cuts=st.lists(st.floats(0.0, 1e5), min_size=0, max_size=6),
    half_life_s=st.floats(10.0, 1e6),
    later_s=st.floats(0.0, 1e6),
)
@settings(max_examples=60, deadline=None)
def test_it_does_not_matter_how_often_anybody_looks(
    cuts: list[float], half_life_s: float, later_s: float
) -> None:
    """A use in pieces weighs what it weighs whole."""
    edges = [0.0, *sorted(cuts), 1e5]
    now_s = 1e5 + later_s
    pieces = sum(decayed(2.0, low, high, now_s, half_life_s) for low, high in pairwise(edges))
    whole = decayed(2.0, 0.0, 1e5, now_s, half_life_s)
    assert pieces == pytest.approx(whole, rel=1e-6, abs=1e-6)


def test_a_hold_is_charged_at_its_start_and_settled_to_the_second() -> None:
    hold = Hold("a", "j", 0.0, None, Need(2), expected_s=7200.0)
    assert charge(hold, POOL, 0.0, 1e12) == pytest.approx(2 * 7200)
    assert charge(hold, POOL, 3600.0, 1e12) == pytest.approx(2 * 7200)
    cancelled = replace(hold, to_s=61.0)
    assert charge(cancelled, POOL, 3600.0, 1e12) == pytest.approx(2 * 61)
    kept = Hold("a", "j", 0.0, None, Need(2), kind="reserve")
    assert charge(kept, POOL, 100.0, 1e12) == pytest.approx(
        200
    )  # from its start, with nothing ahead
    assert charge(replace(kept, to_s=100.0), POOL, 500.0, 1e12) == pytest.approx(200)


def test_the_dominant_resource_is_charged_and_cards_by_what_they_deliver() -> None:
    pool = Pool(cards=8, cpus=64.0, memory_gib=512.0, reference_cards=6.0)
    assert rate(Need(cards=1, cpus=32.0), pool) == pytest.approx(3.0)  # half the CPUs
    assert rate(Need(cards=1, memory_gib=512.0), pool) == pytest.approx(6.0)
    assert rate(Need(cards=4, speed=0.5), pool) == pytest.approx(2.0)


ACCOUNTS = st.lists(
    st.tuples(st.floats(0.0, 5e4), st.floats(1.0, 5e4), st.floats(0.1, 8.0), st.floats(0.2, 1.0)),
    min_size=1,
    max_size=8,
)


@given(
    holds=ACCOUNTS,
    half_life_s=st.floats(100.0, 1e6),
    looks=st.lists(st.floats(0.0, 1e5), max_size=5),
)
@settings(max_examples=80, deadline=None)
def test_an_account_that_is_kept_up_says_what_the_records_say(
    holds: list[tuple[float, float, float, float]], half_life_s: float, looks: list[float]
) -> None:
    changes: list[tuple[float, int, str]] = []
    records = []
    for n, (from_s, lasts_s, _, part) in enumerate(holds):
        changes += [(from_s, 1, f"j{n}"), (from_s + lasts_s * part, 0, f"j{n}")]
        need = Need(n + 1)
        records.append(Hold("a", f"j{n}", from_s, from_s + lasts_s * part, need, lasts_s))
    account = Account(half_life_s)
    seen = sorted([*changes, *((at, 2, "") for at in looks)])
    for at_s, kind, job in seen:
        n = int(job[1:] or 0)
        if kind == 1:
            account.begin(job, float(n + 1), at_s, holds[n][1])
        elif kind == 0:
            account.end(job, at_s)
        else:
            known = [replace(r, to_s=r.to_s if (r.to_s or 0) <= at_s else None) for r in records]
            begun = [r for r in known if r.from_s <= at_s]
            want = charges(begun, [Team("a")], Pool(100), at_s, half_life_s)["a"]
            assert account.charged(at_s) == pytest.approx(want, rel=1e-7, abs=1e-3)


# ------------------------------------------------------------------------------------------------------- the order


def waiting(count: int, team: str, at_s: float = 0.0, **more: object) -> list[Submission]:
    return [
        Submission(f"{team}{n}", team, at_s, duration_s=HOUR, **more)  # type: ignore[arg-type]
        for n in range(count)
    ]


def test_jobs_that_start_together_are_shared_out_by_weight() -> None:
    state = State(POOL, TEAMS, tuple(waiting(20, "a") + waiting(20, "b")))
    first = [said.team for said in order(state, 0.0, limit=8)]
    assert first.count("a") == 6 and first.count("b") == 2


def test_who_has_used_less_goes_first_until_it_is_forgotten() -> None:
    used = Hold("a", "old", 0.0, 10 * HOUR, Need(8))
    jobs = (Submission("a1", "a", 0.0), Submission("b1", "b", 5.0))
    state = State(POOL, TEAMS, jobs, (used,), half_life_s=10 * HOUR, max_wait_s=1e9)
    assert [said.job for said in order(state, 10 * HOUR)] == ["b1", "a1"]
    # Long after, both are at nothing that counts against the job each is about to run.
    assert order(state, 10 * HOUR)[0].reason.startswith("team b is charged 0 card-hours")


def test_an_account_draws_on_its_teams_share() -> None:
    used = Hold("b2", "old", 0.0, HOUR, Need(8))
    jobs = (Submission("a1", "a", 9.0), Submission("b1", "b", 5.0))
    state = State(POOL, TEAMS, jobs, (used,))
    assert [said.job for said in order(state, HOUR)] == ["a1", "b1"]


def test_priority_orders_a_teams_own_jobs_and_nothing_else() -> None:
    mine = [Submission(f"a{n}", "a", float(n), priority=n) for n in range(3)]
    other = Submission("b0", "b", -1.0)
    plain = State(POOL, (Team("a"), Team("b")), (*mine, other))
    loud = replace(plain, waiting=(*(replace(j, priority=j.priority + 10**6) for j in mine), other))
    for state in (plain, loud):
        said = [each.job for each in order(state, 10.0)]
        assert said[0] == "b0" and said[1:] == ["a2", "a1", "a0"]


def test_a_deadline_orders_a_teams_own_jobs_of_one_priority() -> None:
    late = Submission("late", "a", 0.0, duration_s=10.0)
    due = Submission("due", "a", 5.0, duration_s=10.0, deadline_s=100.0)
    state = State(POOL, TEAMS, (late, due))
    assert [said.job for said in order(state, 6.0)] == ["due", "late"]


def test_what_can_never_start_is_refused_in_words() -> None:
    jobs = (
        Submission("wide", "a", 0.0, Need(9)),
        Submission("dear", "a", 0.0, Need(2), duration_s=HOUR, budget_card_s=HOUR),
        Submission("whose", "c", 0.0),
        Submission("kept", "a", 0.0, held=True),
    )
    said = {each.job: each for each in order(State(POOL, TEAMS, jobs), 0.0)}
    assert said["wide"].reason == "asks for 9 cards at once and the pool has 8; 8 would fit"
    assert "needs 2 card-hours and its budget is 1" in said["dear"].reason
    assert said["whose"].reason == "there is no team 'c'; known: a, b"
    assert [said[job].verdict for job in ("wide", "dear", "whose", "kept")] == ["refused"] * 3 + [
        "held"
    ]
    assert all(each.place is None for each in said.values())


def test_an_overdue_job_goes_first_as_far_as_its_teams_entitlement_reaches() -> None:
    used = Hold("b", "old", 0.0, 90 * HOUR, Need(8))
    old = [Submission(f"b{n}", "b", 0.0, duration_s=50 * HOUR) for n in range(5)]
    new = [Submission(f"a{n}", "a", 95 * HOUR, duration_s=HOUR) for n in range(3)]
    state = State(POOL, TEAMS, (*old, *new), (used,), max_wait_s=100 * HOUR)
    said = [each.team for each in order(state, 100 * HOUR)]
    # b is entitled to 2 of 8 cards: two jobs; the others wait for b's turn.
    assert said == ["b"] * 2 + ["a"] * 3 + ["b"] * 3
    assert "it has waited 100.0 h and the bound is 100 h" in order(state, 100 * HOUR)[0].reason
    wide = tuple(replace(job, need=Need(4)) for job in old)  # a gang wider than that goes on credit
    state = replace(state, waiting=(*wide, *new))
    assert [each.team for each in order(state, 100 * HOUR)] == ["b"] + ["a"] * 3 + ["b"] * 4
    owed = Hold("b", "credit", 95 * HOUR, 96 * HOUR, Need(8), 50 * HOUR, overdue=True)
    said = [each.team for each in order(replace(state, holds=(used, owed)), 98 * HOUR)]
    assert said == ["a"] * 3 + ["b"] * 5
    said = [each.team for each in order(replace(state, holds=(used, owed)), 99 * HOUR)]
    assert said == ["b"] + ["a"] * 3 + ["b"] * 4  # 8 card-hours are paid off by 2 cards in 4 h


def test_a_job_near_the_bound_goes_before_its_teams_own_priorities() -> None:
    jobs = (Submission("low", "a", 0.0, priority=-9), Submission("high", "a", 50.0, priority=9))
    state = State(Pool(1), (Team("a"), Team("b")), jobs, max_wait_s=100.0)
    assert [said.job for said in order(state, 87.0)] == ["high", "low"]
    assert [said.job for said in order(state, 87.5)] == ["low", "high"]


def test_the_debt_of_overdue_starts_is_paid_off_at_the_speed_of_the_entitlement() -> None:
    first = Hold("b", "1", 0.0, None, Need(8), 100.0, overdue=True)
    second = Hold("b", "2", 300.0, 350.0, Need(2), 100.0, overdue=True)
    assert overdue_debt([second, first], POOL, 0.25, 300.0) == pytest.approx(800 - 600 + 100)
    assert overdue_debt([second, first], POOL, 0.25, 1000.0) == 0.0


def test_a_penalty_lowers_a_weight_for_a_while_and_says_so() -> None:
    penalty = Penalty("a", 0.0, 100.0, 0.5, "swaps")
    jobs = (Submission("a1", "a", 0.0), Submission("b1", "b", 5.0))
    holds = (Hold("a", "x", 0.0, 10.0, Need(2)), Hold("b", "y", 0.0, 10.0, Need(1)))
    teams = (Team("a", 3.0), Team("b", 1.0))
    state = State(POOL, teams, jobs, holds, (penalty,))
    assert [said.job for said in order(state, 200.0)] == ["a1", "b1"]
    assert [said.job for said in order(state, 50.0)] == ["b1", "a1"]
    assert "its weight is 3 without its penalties" in order(state, 50.0)[1].reason


STATES = st.integers(0, 10**9)


def drawn(seed: int) -> State:
    chance = random.Random(seed)
    teams = tuple(
        Team(f"t{n}", chance.choice((1.0, 2.0, 3.0))) for n in range(chance.randint(1, 4))
    )
    names = [team.name for team in teams]
    jobs = tuple(
        Submission(
            f"j{n}",
            chance.choice(names),
            chance.choice((0.0, 10.0, 20.0, 5000.0)),
            Need(chance.choice((1, 2, 4))),
            chance.choice((60.0, HOUR)),
            chance.randint(0, 2),
        )
        for n in range(chance.randint(0, 12))
    )
    holds = tuple(
        Hold(chance.choice(names), f"h{n}", 0.0, chance.choice((500.0, None)), Need(1), 9000.0)
        for n in range(chance.randint(0, 5))
    )
    return State(POOL, teams, jobs, holds, max_wait_s=7000.0)


@given(seed=STATES)
@settings(max_examples=80, deadline=None)
def test_two_dispatchers_that_read_the_same_records_agree(seed: int) -> None:
    """In whatever order they read them; every job has one place."""
    state = drawn(seed)
    chance = random.Random(seed + 1)

    def other(records: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(chance.sample(records, len(records)))

    again = replace(
        state,
        teams=other(state.teams),  # type: ignore[arg-type]
        waiting=other(state.waiting),  # type: ignore[arg-type]
        holds=other(state.holds),  # type: ignore[arg-type]
    )
    said = order(state, 7005.0)
    assert said == order(again, 7005.0)
    assert sorted(each.place or 0 for each in said) == list(range(1, len(state.waiting) + 1))
    assert standing(state, 7005.0) == standing(again, 7005.0)


@given(seed=STATES)
@settings(max_examples=60, deadline=None)
def test_the_queue_that_is_kept_starts_jobs_in_the_order_of_the_records(seed: int) -> None:
    """Where all fit at once: the incremental queue and the pure order are one policy."""
    state = replace(drawn(seed), holds=(), max_wait_s=1e9)
    fair = Fair(POOL, state.teams)
    floor = Floor(1000)
    for job in state.waiting:
        fair.add(job, job.submitted_s)
    started = []
    for pick in fair.round(6000.0, floor):
        floor.start(pick.job, 6000.0, fair.started(pick, 6000.0))
        started.append(pick.job.job)
    assert started == [said.job for said in order(state, 6000.0)]


# ------------------------------------------------------------------------------------------------------- misuse


def test_swapping_jobs_that_have_cards_is_punished_from_the_third_time_in_a_day() -> None:
    watch = Watch()
    found = [watch.replaced("x", f"j{n}", had_cards=True, now_s=n * HOUR) for n in range(4)]
    assert [len(each) for each in found] == [0, 0, 1, 1]
    assert found[2][0].reason == (
        "j2 was swapped, the 3rd such change of team x in a day (2 are free): "
        "its weight is halved for a day"
    )
    assert found[2] == penalties(watch.strikes["x"])[:1]
    assert found[2][0].until_s - found[2][0].from_s == DAY_S


def test_making_room_for_a_job_of_more_priority_is_a_swap_whichever_comes_first() -> None:
    for before in (True, False):
        watch = Watch()
        for n in range(3):
            at_s = n * HOUR
            if before:
                watch.submitted("x", f"r{n}", f"real {n}", 10, at_s)
                watch.given_up("x", f"d{n}", f"dummy {n}", 0, True, at_s + 60)
            else:
                watch.given_up("x", f"d{n}", f"dummy {n}", 0, True, at_s)
                watch.submitted("x", f"r{n}", f"real {n}", 10, at_s + 60)
        assert len(watch.strikes["x"]) == 3 and len(penalties(watch.strikes["x"])) == 1


def test_handing_in_again_what_was_cancelled_is_found() -> None:
    watch = Watch()
    for n in range(3):
        watch.given_up("x", f"j{n}", "same", 0, False, n * 100.0)
        watch.submitted("x", f"j{n + 1}", "same", 0, n * 100.0 + 1)
    assert [strike.kind for strike in watch.strikes["x"]] == ["resubmitted"] * 3


def test_honest_work_is_not_punished() -> None:
    watch = Watch()
    for n in range(
        50
    ):  # early stopping: running trials are cancelled, others of their priority follow
        watch.given_up("x", f"trial-{n}", f"trial {n}", 0, True, n * 60.0)
        watch.submitted("x", f"trial-{n + 50}", f"trial {n + 50}", 0, n * 60.0 + 1)
        watch.replaced("x", f"trial-{n + 50}", had_cards=False, now_s=n * 60.0 + 2)  # an edit
        watch.given_up("x", f"trial-{n + 50}", None, 0, False, n * 60.0 + 3)  # held
    assert watch.strikes == {}
    assert penalties([Strike("x", 0.0, "swapped", "one")]) == []


# ------------------------------------------------------------------------------------------------ preemption's price


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.floats(1.0, 1e4), st.integers(0, 2)), min_size=1, max_size=7
    ),
    st.integers(1, 10),
)
@settings(max_examples=80, deadline=None)
def test_victims_suffice_and_none_of_them_is_needless(
    parts: list[tuple[int, float, int]], cards: int
) -> None:
    victims = [Victim(f"v{n}", "x", c, lost, preemptions=p) for n, (c, lost, p) in enumerate(parts)]
    found = cheapest(victims, cards)
    if sum(v.cards for v in victims) < cards:
        assert found == ()
        return
    total = sum(v.cards for v in found)
    assert total >= cards
    assert all(total - v.cards < cards for v in found)


def test_cards_are_taken_only_where_that_gains_more_than_it_loses() -> None:
    fresh, spent = Victim("a", "x", 2, 30.0), Victim("b", "x", 2, 500.0)
    assert cheapest([spent, fresh], 2) == (fresh,)
    assert worth_it((fresh,), 2, 31.0) and not worth_it((fresh,), 2, 30.0)
    again = replace(fresh, preemptions=1)
    assert not worth_it((again,), 2, 59.0)  # the second time is dearer
    assert not worth_it((), 2, 1e9)


def test_where_no_victim_yields_in_time_cards_are_kept_free() -> None:
    """Section 11.3.2: an online call may wait 2 s, and saving an offline job takes 30 s."""
    offline = [Victim("offline", "x", 6, 0.0, yields_in_s=30.0), Victim("quick", "x", 1, 0.0, 1.0)]
    assert kept_free(4, 2.0, offline, free=8) == 3
    assert kept_free(4, 30.0, offline, free=8) == 0
    assert kept_free(4, 2.0, offline, free=1) == 1
