"""What holds in every scenario: nobody is starved, robbed or overtaken by a trick; and each guard is needed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.queue.answer import answer
from tenure.queue.fair import Fair, Rules
from tenure.queue.floor import Floor
from tenure.queue.play import Played, Row, play
from tenure.queue.policies import Name
from tenure.queue.records import Pool
from tenure.queue.scenario import Event, Scenario, TeamIn, check
from tenure.sim.queue_tricks import TRICKS, Setting, month, real_waits

HOUR = 3600.0
RULES = Rules()


def submit(
    t_s: float, team: str, job: str, duration_s: float, cards: int = 1, **more: object
) -> Event:
    return Event(
        t_s=t_s,
        team=team,
        action="submit",
        job=job,
        duration_s=duration_s,
        cards=cards,
        **more,  # type: ignore[arg-type]
    )


def does(t_s: float, team: str, action: str, job: str, **more: object) -> Event:
    return Event(t_s=t_s, team=team, action=action, job=job, **more)  # type: ignore[arg-type]


def scenario(
    cards: int, events: Sequence[Event], teams: Sequence[str] = "abc", **more: object
) -> Scenario:
    weights = {name: TeamIn() for name in teams}
    found = Scenario(
        cards=cards,
        teams=weights,
        events=sorted(events, key=lambda event: event.t_s),
        **more,  # type: ignore[arg-type]
    )
    check(found)
    return found


def ours(it: Scenario, rules: Rules = RULES) -> Fair:
    return Fair(
        Pool(it.cards), it.team_records(), it.half_life_h * HOUR, it.max_wait_h * HOUR, rules
    )


def rows(played: Played) -> dict[str, Row]:
    return {row.job: row for row in played.rows}


def used_s(played: Played, team: str, until_s: float = 1e18) -> float:
    return sum(
        s.cards * max(0.0, min(s.to_s, until_s) - s.from_s) for s in played.spells if s.team == team
    )


# ------------------------------------------------------------------------------------------- any sequence of actions


def any_events(
    chance: random.Random, teams: Sequence[str], count: int, widths: Sequence[int]
) -> list[Event]:
    """What teams may do, with no regard for what becomes of it."""
    found: list[Event] = []
    known: dict[str, list[str]] = {team: [] for team in teams}
    held: set[str] = set()
    t_s = 0.0
    for n in range(count):
        t_s += chance.choice((0.0, 0.0, 60.0, 600.0, 2 * HOUR))
        team = chance.choice(teams)
        action = chance.choice(
            ("submit", "submit", "submit", "cancel", "replace", "hold", "release")
        )
        old = chance.choice(known[team]) if known[team] else None
        if action == "release":
            old = next((job for job in known[team] if job in held), None)
        if action == "submit" or old is None:
            found.append(
                submit(
                    t_s, team, f"{team}{n}", chance.choice((30.0, 900.0, 5 * HOUR)),
                    chance.choice(widths), priority=chance.randint(-2, 2),
                )
            )  # fmt: skip
            known[team].append(f"{team}{n}")
            continue
        if action == "replace":
            job = chance.choice((old, f"{team}{n}"))
            more = {"replaces": old} if job != old else {}
            found.append(does(t_s, team, "replace", job, **more))
            if job not in known[team]:
                known[team].append(job)
            held -= {old, job}
        else:
            found.append(does(t_s, team, action, old))
            held = held | {old} if action == "hold" else held - {old}
    return found


class Looks:
    """Looks at the cards after each round of choices."""

    def __init__(self, fair: Fair) -> None:
        self.fair = fair
        self.seen = 0

    def __call__(self, now_s: float, floor: Floor, played: Sequence[Row]) -> None:
        self.seen += 1
        taken = sum(run.job.need.cards for run in floor.running.values())
        assert taken + floor.free == floor.cards and floor.free >= 0
        fits = [j for j in self.fair.line.waiting.values() if j.need.cards <= floor.free]
        waits = {row.record.tie for row in played if row.stage == "waits"}
        assert waits == set(self.fair.line.waiting), "a job is lost, or waits twice"
        if fits and all(j.need.cards == 1 for j in self.fair.line.waiting.values()):
            # Single cards are kept back for nobody but a job whose bound a longer one would break.
            assert self.fair.keeps_for is not None, f"{fits[0].job} could run at {now_s}"
        if fits:
            assert self.fair.keeps_for is not None
            assert self.fair.keeps_for != fits[0].tie


@given(seed=st.integers(0, 10**9), widths=st.sampled_from([(1,), (1, 2, 4)]))
@settings(max_examples=60, deadline=None)
def test_no_card_is_idle_while_a_job_that_fits_waits_but_for_gangs(
    seed: int, widths: tuple[int, ...]
) -> None:
    it = scenario(4, any_events(random.Random(seed), "abc", 25, widths))
    fair = ours(it)
    looks = Looks(fair)
    played = play(it, fair, looks)
    assert looks.seen
    assert all(row.stage in ("finished", "gone", "held") for row in played.rows)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_single_cards_are_never_idle_while_anybody_waits(seed: int) -> None:
    it = scenario(3, any_events(random.Random(seed), "abc", 25, (1,)), max_wait_h=87_000.0)
    fair = ours(it)

    def look(now_s: float, floor: Floor, played: Sequence[Row]) -> None:
        assert not floor.free or not fair.line.waiting

    play(it, fair, look)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_neither_the_order_of_keys_nor_of_simultaneous_events_matters(seed: int) -> None:
    chance = random.Random(seed)
    events = [
        submit(
            chance.choice((0.0, 0.0, 500.0)), team, f"{team}{n}", chance.choice((60.0, HOUR)),
            chance.choice((1, 2)), priority=chance.randint(0, 1),
        )
        for n in range(5)
        for team in "abc"
    ]  # fmt: skip
    events += [does(500.0, "a", "cancel", "a0"), does(500.0, "b", "hold", "b0")]
    events += [does(900.0, "b", "release", "b0"), does(900.0, "c", "replace", "c9", replaces="c1")]
    if any(event.t_s == 500.0 and event.job in ("a0", "b0", "c1") for event in events[:15]):
        events = events[:15]
    shuffled = chance.sample(events, len(events))
    one = scenario(3, events)
    other = scenario(3, shuffled, teams="cab")

    def told(it: Scenario) -> object:
        found = answer(it, play(it))
        found["jobs"].sort(key=lambda row: (row["job"], row["submitted_s"]))
        return found["jobs"], dict(sorted(found["teams"].items()))

    assert told(one) == told(other)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=25, deadline=None)
def test_whatever_one_team_does_another_with_demand_gets_its_share(seed: int) -> None:
    """b always has work waiting; a does anything at all. b's half of four cards is its own."""
    chance = random.Random(seed)
    horizon_h = 30
    backlog = [submit(0.0, "b", f"b{n:03d}", HOUR) for n in range(4 * horizon_h)]
    it = scenario(4, any_events(chance, "a", 40, (1, 2, 4)) + backlog, "ab", horizon_h=horizon_h)
    played = play(it)
    got = used_s(played, "b") / (4 * horizon_h * HOUR)
    # What a holds when b's turn comes ends first: its longest job, on all cards, at the horizon.
    assert got >= 0.5 - 4 * 5 * HOUR / (4 * horizon_h * HOUR)


def test_a_flood_does_not_take_anothers_share() -> None:
    flood = [submit(0.0, "a", f"a{n:04d}", HOUR, priority=10**6) for n in range(800)]
    steady = [submit(0.0, "b", f"b{n:03d}", HOUR) for n in range(200)]
    it = scenario(4, flood + steady, "ab", horizon_h=60)
    played = play(it)
    assert used_s(played, "b") == pytest.approx(120 * HOUR, rel=0.02)
    # The same of jobs that are all overdue: what the bound starts is within the entitlement too.
    it = scenario(4, flood + steady, "ab", horizon_h=60, max_wait_h=1.0)
    assert used_s(play(it), "b") == pytest.approx(120 * HOUR, rel=0.05)


# ------------------------------------------------------------------------------------------------- the bound


def gang_and_trickle() -> Scenario:
    """A gang of all cards of a team that has used much, and small jobs of another without an end."""
    before = [submit(0.0, "a", f"used{n}", 100 * HOUR, 2) for n in range(2)]
    gang = [submit(101 * HOUR, "a", "gang", HOUR, 4)]
    small = [submit(99 * HOUR + n * 600.0, "b", f"b{n:04d}", HOUR) for n in range(450)]
    return scenario(4, before + gang + small, "ab", max_wait_h=24.0)


def test_a_gang_starts_by_the_bound_however_many_small_jobs_come() -> None:
    it = gang_and_trickle()
    gang = rows(play(it))["gang"]
    assert gang.started_s is not None
    assert gang.started_s - gang.submitted_s <= 24 * HOUR
    late = rows(play(it, ours(it, Rules(bounds_waiting=False))))["gang"]
    assert late.started_s is None or late.started_s - late.submitted_s > 24 * HOUR


def test_a_teams_own_priorities_starve_none_of_its_jobs_beyond_the_bound() -> None:
    low = [submit(0.0, "a", "low", HOUR, priority=-5)]
    high = [submit(n * 1800.0, "a", f"high{n:03d}", HOUR, priority=5) for n in range(300)]
    it = scenario(1, low + high, "a", max_wait_h=24.0, horizon_h=100.0)
    found = rows(play(it))["low"]
    assert found.started_s is not None and found.started_s <= 24 * HOUR
    without = rows(play(it, ours(it, Rules(bounds_waiting=False))))["low"]
    assert without.started_s is None


@given(seed=st.integers(0, 10**9))
@settings(max_examples=12, deadline=None)
def test_no_job_waits_beyond_the_bound_whatever_another_team_does(seed: int) -> None:
    """a, b and c ask for 60 % of what they are entitled to in a bound's time, in gangs no wider than that.

    z asks for everything, all the time. The longest job is an eighth of the bound.
    """
    chance = random.Random(seed)
    events = [
        submit(0.0, "z", f"z{n:03d}", chance.choice((HOUR, 3 * HOUR)), chance.choice((1, 2, 8)))
        for n in range(120)
    ]
    for team in "abc":
        left_s, n = 2 * 24 * HOUR * 0.6, 0
        while left_s > 0:
            wide, lasts_s = chance.choice((1, 1, 2)), chance.choice((600.0, HOUR, 3 * HOUR))
            at_s = chance.choice((0.0, chance.uniform(0.0, 24 * HOUR)))
            events.append(
                submit(at_s, team, f"{team}{n}", lasts_s, wide, priority=chance.randint(0, 3))
            )
            left_s, n = left_s - wide * lasts_s, n + 1
    it = scenario(8, events, "abcz", max_wait_h=24.0, horizon_h=72.0)
    for row in play(it).rows:
        if row.team != "z":
            assert row.started_s is not None and row.started_s - row.submitted_s <= 24 * HOUR


def test_the_bound_gives_a_team_no_more_than_its_entitlement() -> None:
    """a lets hundreds of jobs grow old; b and c come later, have used less, and get what is theirs."""
    old = [submit(0.0, "a", f"a{n:03d}", 2 * HOUR) for n in range(300)]
    later = [
        submit(20 * HOUR, team, f"{team}{n:03d}", 2 * HOUR) for team in "bc" for n in range(90)
    ]
    it = scenario(6, old + later, max_wait_h=5.0, horizon_h=50.0)

    def after_s(rules: Rules) -> float:
        played = play(it, ours(it, rules))
        return used_s(played, "a", 50 * HOUR) - used_s(played, "a", 22 * HOUR)

    entitled_s = 6 / 3 * 28 * HOUR
    assert 0.9 * entitled_s <= after_s(RULES) <= 1.2 * entitled_s
    assert after_s(Rules(takes_back=False)) <= 1.2 * entitled_s
    assert after_s(Rules(takes_back=False, limits_overdue=False)) > 2 * entitled_s


# ------------------------------------------------------------------------------------- no place is inherited


@pytest.mark.parametrize("way", ["its end", "cancel", "replace", "hold"])
def test_cards_that_a_team_gives_back_go_to_the_others_first(way: str) -> None:
    """A job sent while a placeholder of its team runs does not get the placeholder's card."""
    lasts_s = 600.0 if way == "its end" else 9 * HOUR
    events = [submit(0.0, "a", "dummy", lasts_s)]
    events += [submit(1.0, team, f"{team}{n}", 10 * HOUR) for n in range(2) for team in "bcd"]
    if way == "replace":
        events.append(does(500.0, "a", "replace", "real", replaces="dummy", duration_s=60.0))
    else:
        events.append(submit(500.0, "a", "real", 60.0, priority=9))
    if way in ("cancel", "hold"):
        events.append(does(500.0, "a", way, "dummy"))
    it = scenario(4, events, "abcd", half_life_h=1000.0)
    teams = {**it.teams, "a": TeamIn(weight=0.5)}  # a card is more than its share at any time
    it = it.model_copy(update={"teams": teams})
    freed_s = 600.0 if way == "its end" else 500.0
    guarded = rows(play(it))["real"]
    assert guarded.started_s is not None and guarded.started_s > freed_s
    # Without the rule it would: its team has used the least.
    without = rows(play(it, ours(it, Rules(own_cards_go_round=False))))["real"]
    assert without.started_s == freed_s


def test_a_backlog_keeps_its_teams_cards() -> None:
    """Jobs that waited before their team's cards began to run do follow one another on them."""
    mine = [submit(0.0, "a", f"a{n}", 600.0) for n in range(6)]
    used = [submit(0.0, "b", f"b{n}", 50 * HOUR) for n in range(3)]
    later = [submit(10.0, "b", f"c{n}", 50 * HOUR) for n in range(3)]
    it = scenario(4, mine + used + later, "ab")
    found = rows(play(it))
    starts = sorted(found[f"a{n}"].started_s or 0.0 for n in range(6))
    assert starts[-1] < 2 * HOUR


def test_a_card_that_nobody_else_wants_stays_with_its_team() -> None:
    it = scenario(1, [submit(0.0, "a", "a0", 100.0), submit(50.0, "a", "a1", 100.0)], "ab")
    assert rows(play(it))["a1"].started_s == 100.0


def test_age_begins_anew_with_every_change() -> None:
    busy = [submit(0.0, "b", "b0", 1000.0)]
    mine = [submit(0.0, "a", f"a{n}", 10.0) for n in range(5)]
    changes = [
        does(100.0, "a", "replace", "a0"),
        does(200.0, "a", "replace", "new", replaces="a1"),
        does(300.0, "a", "hold", "a2"),
        does(400.0, "a", "release", "a2"),
        does(500.0, "a", "cancel", "a3"),
        submit(600.0, "a", "a3", 10.0),
    ]
    it = scenario(1, busy + mine + changes, "ab")
    found = rows(play(it))
    want = {"a0": 100.0, "new": 200.0, "a2": 400.0, "a3": 600.0, "a4": 0.0}
    assert {job: found[job].submitted_s for job in want} == want
    order = sorted(want, key=lambda job: found[job].started_s or 0.0)
    assert order == ["a4", "a0", "new", "a2", "a3"]


def test_what_was_swapped_is_punished_and_what_honest_teams_do_is_not() -> None:
    busy = [submit(0.0, "b", f"b{n}", HOUR) for n in range(40)]
    swaps = [submit(n * 4 * HOUR, "a", f"d{n}", 4 * HOUR, priority=-1) for n in range(5)]
    swaps += [
        does(
            n * 4 * HOUR + 2 * HOUR, "a", "replace", f"r{n}",
            replaces=f"d{n}", duration_s=60.0, priority=5,
        )
        for n in range(5)
    ]  # fmt: skip
    it = scenario(2, busy + swaps, "ab")
    found = answer(it, play(it))
    assert found["teams"]["a"]["penalties"] >= 1 and found["teams"]["b"]["penalties"] == 0
    assert answer(it, play(it, ours(it, Rules(punishes=False))))["teams"]["a"]["penalties"] == 0
    honest = [
        submit(0.0, "a", "a0", HOUR),
        does(60.0, "a", "cancel", "a0"),
        submit(90.0, "a", "a1", HOUR),
    ]
    honest += [does(95.0, "a", "replace", "a1", cards=2)]
    it = scenario(2, busy + honest, "ab")
    assert play(it).penalties == []


# ------------------------------------------------------------------------------------------------ what is charged


def test_jobs_that_start_together_are_shared_by_weight() -> None:
    events = [submit(0.0, team, f"{team}{n}", HOUR) for team in "ab" for n in range(16)]

    def shared(a: float, b: float, rules: Rules) -> tuple[int, int]:
        teams = {"a": TeamIn(weight=a), "b": TeamIn(weight=b)}
        it = Scenario(cards=16, teams=teams, events=events)
        first = [row.team for row in play(it, ours(it, rules)).rows if row.started_s == 0.0]
        return first.count("a"), first.count("b")

    for rules in (RULES, Rules(takes_back=False)):
        assert (shared(7.0, 1.0, rules), shared(1.0, 7.0, rules)) == ((14, 2), (2, 14))
    lottery = Rules(takes_back=False, charges_ahead=False)  # by digests, whatever the weights
    assert shared(7.0, 1.0, lottery) == shared(1.0, 7.0, lottery)


def test_cards_kept_for_a_gang_are_charged_to_its_team_even_if_it_is_cancelled() -> None:
    """A gang that is cancelled shortly before it starts has cost the others their cards, and its team its turn."""
    events = [submit(0.0, "b", "long", 10 * HOUR, 3)]
    events += [submit(0.0, "b", "short", 60.0, 1), submit(1.0, "c", "c-long", 20 * HOUR, 1)]
    events += [submit(0.5, "a", "gang", HOUR, 4), does(9 * HOUR, "a", "cancel", "gang")]
    it = scenario(4, events, "abc")
    charged: dict[bool, float] = {}
    for charges in (True, False):
        fair = ours(it, Rules(charges_reserves=charges, takes_back=False))
        play(it, fair)
        charged[charges] = fair.charged("a", 21 * HOUR)
    assert charged[False] == 0.0
    assert charged[True] > 8 * HOUR * 0.9  # one card for nine hours, and it decays slowly


def test_cards_are_taken_back_for_a_team_below_its_share_from_one_beyond_it() -> None:
    events = [submit(0.0, "b", f"b{n}", 20 * HOUR, milestone_s=600.0) for n in range(4)]
    events.append(submit(HOUR, "a", "a0", HOUR))
    it = scenario(4, events, "ab")
    found = rows(play(it))
    assert found["a0"].started_s == HOUR
    victims = [row for row in found.values() if row.preemptions]
    assert len(victims) == 1 and victims[0].team == "b"
    # It goes on from its last milestone, and what it lost and the restart are what it ends later by.
    assert victims[0].finished_s == pytest.approx(HOUR + HOUR + 60 + 19 * HOUR)
    kept = rows(play(it, ours(it, Rules(takes_back=False))))
    assert kept["a0"].started_s == 20 * HOUR
    # Not where it would gain less than the victim loses, nor below the victim's own share.
    soon = [event.model_copy(update={"duration_s": HOUR + 30.0}) for event in events[:4]]
    assert rows(play(scenario(4, [*soon, events[4]], "ab")))["a0"].started_s == HOUR + 30.0
    wide = [submit(0.0, "b", f"b{n}", 20 * HOUR, 2) for n in range(2)]
    alone = scenario(4, [*wide, submit(HOUR, "a", "a0", HOUR, 3)], "ab")
    assert rows(play(alone))["a0"].started_s == 20 * HOUR


def test_a_job_goes_before_a_lesser_one_of_its_team_only_where_nobody_else_waits() -> None:
    events = [submit(0.0, "a", "low", 10 * HOUR), submit(HOUR, "a", "high", HOUR, priority=5)]
    found = rows(play(scenario(1, events, "ab")))
    assert found["high"].started_s == HOUR and found["low"].preemptions == 1
    other = [*events, submit(1800.0, "b", "other", HOUR)]
    found = rows(play(scenario(1, other, "ab")))
    assert found["low"].preemptions == 0 and found["other"].started_s == 10 * HOUR


# ------------------------------------------------------------------------------------------------------ the tricks


SHORT = Setting("a short month", cards=8, others=3, others_load=1.1, real_load=0.4, days=10)


@cache
def waited_s(trick: str | None, policy: Name) -> tuple[float, int]:
    """Mean seconds that the squatter's real work waited, and how many pieces of it there are."""
    waits = [
        wait for seed in range(3) for wait in real_waits(play(month(SHORT, seed, trick), policy))
    ]
    return sum(waits) / len(waits), len(waits)


@pytest.mark.parametrize("trick", sorted(set(TRICKS) - {"many tiny dummies"}))
def test_a_trick_gains_nothing_over_an_honest_twin(trick: str) -> None:
    """Of ten; the table of docs/queue.md has 200 months of each, tiny dummies too (bench/queue_tricks.py)."""
    (honest_s, twin), (tricky_s, squatter) = waited_s(None, "ours"), waited_s(trick, "ours")
    assert twin == squatter > 50  # the same work, all of it started
    assert tricky_s >= honest_s * 0.98


def test_the_seeds_squatter_gains_much_where_places_are_inherited() -> None:
    honest_s, _ = waited_s(None, "fifo-local-preemption")
    tricky_s, _ = waited_s("placeholder", "fifo-local-preemption")
    assert tricky_s < honest_s / 2
