"""Stay or move: each rule with the sentence that `tenure why` prints, and what holds for any numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.dispatch.contract import ALL_KINDS, Capacity
from tenure.dispatch.decide import (
    AskToYield,
    BillView,
    JobView,
    NoShows,
    RungView,
    Snapshot,
    Wait,
    decide,
)
from tenure.dispatch.decide import Launch as LaunchAction
from tenure.dispatch.quality import ENOUGH, Leave, Option, Pace, Stay, Usual, judge, usual
from tenure_protocol.lease.machine import Watched
from tenure_protocol.records import Asked, Holder, Launch, Observation, Witness

WORK = "FLOPs of bf16"
COMMON = Usual(4, 100.0, 1.0, 0.9, "NVIDIA T4 at kaggle")
HOUR = 3600.0


def pace(per_s: float, **changes: object) -> Pace:
    """An attempt that was paid for an hour, nine tenths of it in steps; 7 hours of usual work are left."""
    made = Pace(
        "spot", WORK, per_s * 0.9 * HOUR, 0.9 * HOUR, HOUR + 60.0, 60.0, 500, 100.0 * 7 * HOUR
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def option(rung: str, per_s: float = 100.0, per_h: float = 1.0, **changes: object) -> Option:
    return replace(Option(rung, per_s, 0.9, 60.0, per_h, "usd"), **changes)  # type: ignore[arg-type]


def verdict(
    shown: Pace,
    common: Usual | None = COMMON,
    earlier: tuple[Option, ...] = (),
    others: tuple[Option, ...] = (option("spot"), option("demand", per_h=5.0)),
    moves: int = 0,
    here: Option | None = None,
) -> Stay | Leave:
    return judge(shown, common, here or option("spot"), earlier, others, moves)


def test_a_card_at_half_the_usual_speed_is_left() -> None:
    said = verdict(pace(50.0))
    assert isinstance(said, Leave) and said.rung == "spot"
    assert said.reason == (
        "its speed is 0.50 of the usual 100 FLOPs of bf16 a second on NVIDIA T4 at kaggle (4 seen, slow "
        "below 0.70); what is left takes 15.6 h and 15.56 usd here and 7.8 h and 7.79 usd on another "
        "machine of rung spot, 60 s of them to start"
    )


def test_a_slow_host_that_is_better_than_every_alternative_is_kept() -> None:
    dear = option("demand", 400.0, per_h=10.0)
    said = verdict(pace(50.0), others=(dear,))
    assert isinstance(said, Stay)
    assert said.reason == (
        "its speed is 0.50 of the usual 100 FLOPs of bf16 a second on NVIDIA T4 at kaggle (4 seen, slow "
        "below 0.70); nothing that can be had now is better by 15%"
    )


def test_a_host_that_is_as_fast_as_is_usual_stays_whatever_else_there_is() -> None:
    assert isinstance(verdict(pace(95.0), others=(option("demand", 1e6, per_h=0.01),)), Stay)


def test_it_is_not_judged_before_it_was_measured_nor_where_nothing_is_known() -> None:
    said = verdict(pace(1.0, steps=19))
    assert said == Stay("19 of 20 steps are measured")
    said = verdict(pace(1.0), common=None)
    assert isinstance(said, Stay) and "nothing of the kind is known to compare" in said.reason


def test_a_nearly_finished_job_stays_where_it_is() -> None:
    """The start of another machine costs more than what is left takes."""
    assert isinstance(verdict(pace(50.0, left=100.0 * 30)), Stay)


def test_it_goes_back_to_a_cheaper_rung_only_if_the_saving_beats_the_move() -> None:
    shown = pace(100.0, rung="demand")
    here = option("demand", per_h=4.0)
    said = verdict(shown, earlier=(option("spot"),), here=here, others=())
    assert isinstance(said, Leave) and said.rung == "spot"
    assert "7.8 h and 31.11 usd here and 7.8 h and 7.79 usd on rung spot" in said.reason
    slow_start = option("spot", start_s=24 * HOUR, per_h=1.0)
    assert isinstance(verdict(shown, earlier=(slow_start,), here=here, others=()), Stay)
    as_dear = option("spot", per_h=3.9)
    assert isinstance(verdict(shown, earlier=(as_dear,), here=here, others=()), Stay)


def test_between_currencies_the_order_of_the_user_decides_and_no_sum() -> None:
    shown, here = pace(100.0, rung="demand"), option("demand", per_h=4.0)
    free = option("kaggle", 50.0, per_h=1.0, currency="gpu_h")
    assert isinstance(verdict(shown, earlier=(free,), here=here, others=()), Leave)
    far_slower = replace(free, per_s=20.0)
    assert isinstance(verdict(shown, earlier=(far_slower,), here=here, others=()), Stay)
    short = replace(shown, left=100.0 * 500)  # ten minutes are left, and a start takes one
    assert isinstance(verdict(short, earlier=(free,), here=here, others=()), Stay)


@pytest.mark.parametrize("currency", ["usd", "credits"])
def test_what_is_free_is_never_left_for_what_is_not(currency: str) -> None:
    here, dear = option("own", per_h=0.0), option("demand", 1e4, per_h=0.1, currency=currency)
    said = verdict(pace(30.0, rung="own"), here=here, others=(dear,))
    assert isinstance(said, Stay)


def test_each_move_makes_the_next_one_harder() -> None:
    """Else two machines that are about as good would have it for ever."""
    almost = (option("spot", 65.0),)
    assert isinstance(verdict(pace(50.0), others=almost), Leave)
    assert isinstance(verdict(pace(50.0), others=almost, moves=1), Stay)
    assert isinstance(verdict(pace(1.0), moves=8), Leave)


def test_a_prediction_from_the_peaks_of_the_cards_says_so() -> None:
    said = verdict(pace(50.0), others=(option("demand", 300.0, per_h=2.0, predicted=True),))
    assert isinstance(said, Leave) and "on rung demand by the peaks of the cards" in said.reason


def test_what_nobody_told_is_guessed_and_called_a_guess() -> None:
    said = verdict(pace(50.0, guessed=True))
    assert isinstance(said, Leave) and "what is left, as much as it has done, takes" in said.reason


# ------------------------------------------------------------------------------------ usual


def row(speed: float, launch: int = 1, **changes: object) -> Observation:
    made = Observation("j", launch, "spot", "finished", WORK, 60.0, 1060.0, 900.0, speed * 900.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_usual_is_a_median_and_one_liar_does_not_move_it() -> None:
    rows = [row(100.0 + n, n) for n in range(ENOUGH)]
    honest = usual(rows, "T4 at kaggle")
    lied = usual([*rows, row(1e30, 99)], "T4 at kaggle")
    assert honest and lied
    assert honest.per_s == pytest.approx(103.5) and lied.per_s == pytest.approx(104.0)
    assert honest.share == pytest.approx(0.9)
    assert 0.9 >= honest.floor > 0.85, "eight that agree leave less room than the 0.7 of a few"


def test_launches_that_came_to_nothing_have_no_speed() -> None:
    assert usual([row(1.0, busy_s=0.0, done=0.0)], "") is None
    assert usual([], "") is None


speeds = st.floats(1e-6, 1e15)


@given(st.lists(speeds, min_size=1, max_size=30))
def test_the_floor_lies_below_the_median_whatever_was_seen(seen: list[float]) -> None:
    found = usual([row(speed, n) for n, speed in enumerate(seen)], "x")
    assert found and found.count == len(seen)
    assert 0.5 <= found.floor <= 0.9
    assert min(seen) <= found.per_s * 1.001 and found.per_s <= max(seen) * 1.001


@given(
    speeds,
    st.lists(st.tuples(speeds, st.floats(0, 100), st.sampled_from(["usd", "h"])), max_size=5),
    st.integers(0, 5),
    st.floats(0, 1e9),
)
def test_a_job_leaves_only_for_what_is_better_by_the_margin(
    speed: float, those: list[tuple[float, float, str]], moves: int, left_s: float
) -> None:
    others = tuple(
        option(f"r{n}", per_s, per_h, currency=currency)
        for n, (per_s, per_h, currency) in enumerate(those)
    )
    shown = pace(speed, left=speed * left_s)
    said = verdict(shown, Usual(9, speed * 3, 0.0, 0.9, "x"), (), others, moves)
    if isinstance(said, Leave):
        chosen = next(each for each in others if each.rung == said.rung)
        stay_s = left_s / shown.share
        there_s = chosen.start_s + shown.left / (chosen.per_s * chosen.share)
        if chosen.currency == "usd" and chosen.per_h > 0:
            assert chosen.per_h * there_s * 1.15 * 1.3**moves <= 1.0 * stay_s * 1.0001
        else:
            assert there_s * 1.15 * 1.3**moves <= stay_s * 1.0001


# ----------------------------------------------------------------------------- in a round


def held(**changes: object) -> JobView:
    fields: dict[str, object] = {"holder": Holder(1, "n"), "attempt": 1, "silence_s": 60.0}
    w = Witness("j", "held", "w", launch=Launch(1, "spot", 60.0), **fields)  # type: ignore[arg-type]
    options = {name: option(name) for name in ("spot", "demand")}
    view = JobView(
        "j", "e", ("spot", "demand"), kind="train", witness=w, age_s=5.0,
        watched=Watched(1000.0, 1000.0), pace=pace(50.0), usual=COMMON, options=options,
    )  # fmt: skip
    return replace(view, **changes)  # type: ignore[arg-type]


def rungs(**parked_s: float) -> dict[str, RungView]:
    capacity = Capacity(1, 1, 60.0)
    return {
        name: RungView(name, ALL_KINDS, capacity, parked_s.get(name, 0.0), "full")
        for name in ("spot", "demand")
    }


def decided(*views: JobView, **parked_s: float) -> dict[str, tuple[object, str]]:
    made = decide(Snapshot(views, (), rungs(**parked_s)), 100.0)
    return {action.job: (action, reason) for action, reason in made}


def test_a_slow_holder_is_asked_to_yield_and_told_why() -> None:
    action, reason = decided(held())["j"]
    assert action == AskToYield("j", "spot", slow=True)
    assert reason.startswith("attempt 1 renewed 5 s ago; its speed is 0.50 of the usual")


def test_a_parked_rung_and_one_that_was_left_are_no_alternative() -> None:
    assert decided(held(), spot=200.0)["j"][0] == AskToYield("j", "demand", slow=True)
    assert isinstance(decided(held(), spot=200.0, demand=200.0)["j"][0], Wait)
    both = held(left={"demand": 200.0})
    assert isinstance(decided(both, spot=200.0)["j"][0], Wait)


@pytest.mark.parametrize(
    "why",
    [
        {"excluded": {"spot": "out of memory there"}},
        {"no_shows": {"spot": NoShows(1, 5000.0)}},
    ],
)
def test_a_rung_that_the_job_cannot_use_or_that_never_started_it_is_no_alternative(
    why: dict[str, object],
) -> None:
    """A holder on the dear rung would save by going back."""
    dear = option("demand", per_h=9.0)
    shown = held(pace=pace(100.0, rung="demand"), options={"spot": option("spot"), "demand": dear})
    assert decided(shown)["j"][0] == AskToYield("j", "spot")
    assert isinstance(decided(replace(shown, **why))["j"][0], Wait)  # type: ignore[arg-type]


def test_nobody_moves_while_it_is_not_known_what_is_free() -> None:
    dear = option("demand", per_h=9.0)
    shown = held(pace=pace(100.0, rung="demand"), options={"spot": option("spot"), "demand": dear})
    made = decide(
        Snapshot((shown,), (), rungs(), unseen="the open launches cannot be read yet"), 100.0
    )
    assert isinstance(made[-1][0], Wait)


def test_who_was_asked_already_or_lost_its_lease_is_not_asked_again() -> None:
    w = held().witness
    assert w
    asked = held(witness=replace(w, asked=Asked("yield", 60.0, "d")))
    assert isinstance(decided(asked)["j"][0], Wait)
    assert isinstance(decided(held(age_s=5000.0))["j"][0], LaunchAction)
    assert isinstance(decided(held(silent="gone"))["j"][0], Wait)
    paused = decided(held(age_s=5000.0, strikes=2, not_before_s=500.0))
    assert isinstance(paused["j"][0], Wait), "a holder that is gone cannot yield"


def test_a_job_without_a_machine_goes_before_one_that_wants_a_better_one() -> None:
    waiting = JobView("k", "e", ("demand",), kind="train", order=9)
    made = decided(held(), waiting, spot=200.0)
    assert made["k"][0] == LaunchAction("k", "demand", "none")
    assert isinstance(made["j"][0], Wait), "its place has just been given to somebody"


def test_the_place_of_one_that_is_yielding_is_kept_for_it() -> None:
    w = held().witness
    assert w
    asked = replace(w, asked=Asked("yield", 60.0, "d"))
    yielding = held(witness=asked, moving_to="demand", moves=1)
    waiting = JobView("k", "e", ("demand",), kind="train", order=9)
    assert isinstance(decided(yielding, waiting)["k"][0], Wait)


def test_once_it_has_yielded_it_goes_where_it_was_to_go() -> None:
    w = Witness(
        "j", "released", "w", launch=Launch(1, "spot", 60.0), attempt=1, reason="asked to yield"
    )
    view = held(witness=w, pace=None, moving_to="demand", left={"spot": 5000.0})
    assert decided(view)["j"][0] == LaunchAction("j", "demand", "none")
    first = held(witness=w, pace=None, moving_to="demand")
    assert decided(first)["j"][0] == LaunchAction("j", "demand", "none"), (
        "it comes before the order"
    )
    stay = held(witness=w, pace=None, moving_to="demand", left={"spot": 5000.0})
    action, reason = decided(stay, demand=200.0)["j"]
    assert isinstance(action, Wait) and "rung spot was left and is passed over for 4900 s" in reason
    lone = replace(stay, rungs=("spot",))
    assert decided(lone)["j"][0] == LaunchAction("j", "spot", "none"), "there is no other rung"


@pytest.mark.parametrize(("tries", "waits"), [(0, True), (3, True), (4, False)])
def test_a_job_waits_for_its_own_slot_rather_than_going_down_the_ladder(
    tries: int, waits: bool
) -> None:
    """But not for ever: a platform may take its time over the end of a machine."""
    w = Witness("j", "released", "w", launch=Launch(1, "spot", 60.0), attempt=1, reason="notice")
    view = held(witness=w, pace=None)
    bill = BillView("j", 1, "spot", retry_at_s=500.0, tries=tries)
    made = decide(Snapshot((view,), (bill,), rungs()), 100.0)
    action, reason = made[-1]
    assert isinstance(action, Wait) is waits
    assert reason.endswith("its own slot on rung spot is being freed") is waits
    others = BillView("k", 1, "spot", tries=0)
    made = decide(Snapshot((view,), (others,), rungs()), 100.0)
    assert made[-1][0] == LaunchAction("j", "demand", "none"), "that slot is somebody else's"


def test_a_machine_on_which_somebody_lives_is_not_waited_for() -> None:
    w = Witness("j", "released", "w", launch=Launch(1, "spot", 60.0), attempt=1, reason="notice")
    mate = held(job="k", pace=None)
    bills = (
        BillView("j", 1, "spot", machine="m", beside=(("k", 1),)),
        BillView("k", 1, "spot", machine="m", beside=(("j", 1),)),
    )
    view = held(witness=w, pace=None)
    made = {a.job: a for a, _ in decide(Snapshot((view, mate), bills, rungs()), 100.0)}
    assert made["j"] == LaunchAction("j", "demand", "none")


def test_one_free_place_is_not_given_to_two_that_move() -> None:
    """Both are slow, their own rung is parked, and the other one has a single slot."""
    made = decided(held(), held(job="k", order=1), spot=200.0)
    assert made["j"][0] == AskToYield("j", "demand", slow=True)
    assert isinstance(made["k"][0], Wait)
