"""The planner of jobs with a deadline: which rungs wait, when the sure one must begin, and who moves."""

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
    Launch,
    RungView,
    Snapshot,
    Wait,
    decide,
)
from tenure.dispatch.quality import Option, Pace
from tenure.plan.advise import (
    LEAST_SAVING,
    OVERDUE,
    UNKNOWN_SHARE,
    Advice,
    Outlook,
    Prospect,
    advise,
    hurry,
    unseen,
)
from tenure_protocol.lease.machine import Watched
from tenure_protocol.records import Holder, Pointer, Witness
from tenure_protocol.records import Launch as Launched

H = 3600.0
SPOT = Prospect("spot", 10 * H, 300.0, 0.3, death_per_h=0.1)
DEAR = Prospect("dear", 5 * H, 100.0, 2.6, sure=True, slots=2)
MIDDLE = Prospect("middle", 10 * H, 100.0, 0.8, sure=True, slots=2)


def outlook(due_h: float, *prospects: Prospect, job: str = "j", since_s: float = 0.0) -> Outlook:
    return Outlook(job, since_s, due_h * H, prospects or (DEAR, SPOT))


def of(job: Outlook, now_s: float = 0.0) -> Advice:
    return advise([job], now_s)[job.job]


def test_what_is_cheap_comes_first_and_the_sure_one_waits_until_it_must() -> None:
    advice = of(outlook(40.0))
    assert advice.order == ("spot", "dear") and advice.sure == "dear"
    assert advice.latest_s == pytest.approx(40 * H - DEAR.safe_s)
    assert advice.held == {"dear": advice.latest_s}
    assert advice.reason == (
        "due in 40.0 h; spot would take 10.4 h and 3.12 USD, and 33.4 h are left until dear must begin "
        "(5.0 h, 13.07 USD)"
    )


def test_from_the_last_moment_on_the_sure_rung_comes_first() -> None:
    job = outlook(40.0)
    late = of(job, of(job).latest_s)
    assert late.order == ("dear", "spot") and not late.held and late.pressed(of(job).latest_s)
    assert late.reason == "due in 6.6 h, and dear needs 5.0 h: the last moment for it has come"
    assert of(job, of(job).latest_s - 1.0).order == ("spot", "dear")


def test_a_job_that_nothing_can_save_says_by_how_much_it_is_late() -> None:
    advice = of(outlook(4.0))
    assert advice.order[0] == "dear" and advice.late_s == pytest.approx(DEAR.takes_s - 4 * H)
    assert advice.reason == "due in 4.0 h, and the fastest rung needs 5.0 h: it will be late"
    gone = of(outlook(4.0), 6 * H)
    assert gone.reason.startswith("its deadline was 2.0 h ago, and the fastest rung needs")


def test_two_jobs_do_not_wait_for_the_same_machine() -> None:
    one = replace(DEAR, slots=1)
    found = advise([outlook(40.0, one, SPOT, job=name) for name in "ab"], 0.0)
    first, second = sorted(each.latest_s for each in found.values())
    assert second - first == pytest.approx(one.safe_s)


def test_where_the_cheap_sure_rung_is_full_the_next_one_is_counted_on() -> None:
    """Three jobs, and time for one each on the two cheaper machines."""
    jobs = [outlook(14.0, MIDDLE, DEAR, SPOT, job=name) for name in "abc"]
    found = advise(jobs, 0.0)
    assert sorted(each.sure for each in found.values()) == ["dear", "middle", "middle"]


def test_what_a_job_may_cost_rises_with_time() -> None:
    job = outlook(60.0, DEAR, MIDDLE, SPOT)
    dearer = replace(DEAR, usd_per_h=5.0)
    held = of(replace(job, prospects=(dearer, replace(MIDDLE, sure=False), SPOT))).held
    assert 0.0 < held["middle"] < held["dear"], "a small saving is not waited for as long"
    near = replace(SPOT, rung="near", usd_per_h=SPOT.usd_per_h / (1.0 - 0.9 * LEAST_SAVING))
    assert "near" not in of(replace(job, prospects=(DEAR, near, SPOT))).held


def test_a_rung_that_would_be_late_is_no_reason_to_wait() -> None:
    slow = replace(SPOT, run_s=100 * H)
    advice = of(outlook(40.0, DEAR, slow))
    assert "dear" not in advice.held


def test_a_critical_job_goes_to_sure_rungs_the_cheapest_first() -> None:
    """A pinned retrain: what spot would save is not looked at."""
    advice = of(replace(outlook(60.0, DEAR, SPOT, MIDDLE), critical=True))
    assert advice.order == ("middle", "dear", "spot")
    assert advice.held["spot"] == advice.latest_s and "middle" not in advice.held
    assert of(replace(outlook(60.0, SPOT), critical=True)).held == {}, "there is no other"


def test_of_an_unknown_length_nothing_is_held_for_long() -> None:
    advice = of(replace(outlook(40.0), guessed=True))
    assert advice.held == {"dear": pytest.approx(UNKNOWN_SHARE * 40 * H)}


def test_without_prospects_there_is_no_advice() -> None:
    assert advise([Outlook("j", 0.0, 40 * H, ())], 0.0) == {}


def test_without_a_sure_rung_the_others_have_to_do() -> None:
    assert of(outlook(40.0, SPOT)).sure == "spot"


prospects = st.builds(
    Prospect,
    st.sampled_from(["a", "b", "c", "d"]),
    st.floats(60.0, 1e6),
    st.floats(0.0, 1e4),
    st.floats(0.0, 50.0),
    st.floats(0.0, 2.0),
    st.floats(60.0, 7200.0),
    st.booleans(),
    st.integers(1, 4),
    st.floats(0.0, 3600.0),
)
ladders = st.lists(prospects, min_size=1, max_size=4, unique_by=lambda each: each.rung)
outlooks = st.lists(
    st.builds(
        Outlook,
        st.sampled_from("jklmn"),
        st.floats(-1e6, 0.0),
        st.floats(1.0, 1e6),
        ladders,
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "a", "b", "c", "d"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each.job,
)


@given(outlooks, st.floats(0.0, 1e6))
def test_advice_is_never_to_wait_too_long(jobs: list[Outlook], now_s: float) -> None:
    """Every rung is in the order once; none is held beyond the last moment; then the sure one is first."""
    found = advise(jobs, now_s)
    for job in jobs:
        advice = found[job.job]
        assert sorted(advice.order) == sorted(each.rung for each in job.prospects)
        assert all(now_s < until_s <= advice.latest_s for until_s in advice.held.values())
        assert set(advice.order) - advice.held.keys(), "one rung at least may be used"
        sure = next(each for each in job.prospects if each.rung == advice.sure)
        assert advice.latest_s <= job.deadline_s - sure.safe_s + 1e-6
        here = next((each for each in job.prospects if each.rung == job.on), None)
        if here and sure.sure:  # what is kept is enough for a loss that is noticed late
            begins_s = job.deadline_s - sure.takes_s - here.reserve_s
            assert advice.latest_s <= begins_s + 1e-6
        if advice.pressed(now_s):
            assert advice.order[0] == advice.sure


@given(outlooks)
def test_a_machine_is_counted_on_by_one_job_at_a_time(jobs: list[Outlook]) -> None:
    """No more jobs than machines are to be on a sure rung at any moment, counted from their last ones."""
    shared = {each.rung: each for job in jobs for each in job.prospects}
    jobs = [replace(job, prospects=[shared[each.rung] for each in job.prospects]) for job in jobs]
    spans: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        advice = advise(jobs, 0.0)[job.job]
        length_s = shared[advice.sure].safe_s
        spans.setdefault(advice.sure, []).append((advice.latest_s, advice.latest_s + length_s))
    for rung, rows in spans.items():
        for at_s, _ in rows:
            beside = sum(since <= at_s < until - 1e-6 for since, until in rows)
            assert beside <= shared[rung].slots


# ----------------------------------------------------------------------- a loss noticed late

SHORT = replace(DEAR, run_s=1 * H)  # 0.3 h and two starts are kept for it anyway
RISKY = replace(SPOT, run_s=2 * H, silence_s=900.0)  # a lease, a start and two milestones: 4800 s


def test_while_a_rung_is_used_that_may_be_lost_time_is_kept_for_a_loss_noticed_late() -> None:
    job = outlook(20.0, SHORT, RISKY)
    latest_s = of(job).latest_s
    assert latest_s == pytest.approx(20 * H - SHORT.takes_s - RISKY.reserve_s)
    assert RISKY.reserve_s == 900.0 + 300.0 + 2 * 1800.0
    assert of(replace(job, on="spot")).latest_s == latest_s
    on_sure = of(replace(job, on="dear")).latest_s
    assert on_sure == pytest.approx(20 * H - SHORT.safe_s), "nothing can be lost there"
    calm = replace(job, prospects=(SHORT, replace(RISKY, death_per_h=0.0)))
    assert of(calm).latest_s == latest_s, "whatever is recorded of it"


def test_a_rung_that_could_not_be_left_in_time_is_not_begun() -> None:
    """Another one, whose milestones are closer, still is."""
    coarse = replace(RISKY, rung="coarse", usd_per_h=0.1, milestone_s=2 * H)
    job = outlook(20.0, SHORT, RISKY, coarse)
    assert of(job).order == ("coarse", "spot", "dear")
    now_s = 20 * H - SHORT.takes_s - coarse.reserve_s + 60.0
    advice = of(job, now_s)
    assert advice.order == ("spot", "dear", "coarse") and not advice.pressed(now_s)
    assert advice.held["coarse"] == advice.latest_s and "spot" not in advice.held
    assert of(replace(job, on="coarse"), now_s).pressed(now_s), "who is there leaves"


def test_without_a_sure_rung_nothing_is_kept_for_it() -> None:
    job = outlook(20.0, RISKY)
    assert of(job).latest_s == pytest.approx(20 * H - RISKY.safe_s)


# ------------------------------------------------------------------------------------- moves


def test_a_holder_that_is_late_where_it_is_goes_where_it_is_not() -> None:
    job, here = outlook(8.0), replace(SPOT, start_s=0.0)
    now_s = of(job).latest_s
    move = hurry(of(job, now_s), here, [DEAR], job.deadline_s, now_s)
    assert move and move.rung == "dear"
    assert move.reason == (
        "it needs 10.2 h here and is due in 6.6 h; dear needs 5.0 h and 13.07 USD"
    )
    assert hurry(of(job, now_s), here, [], job.deadline_s, now_s) is None
    slower = replace(DEAR, run_s=9.9 * H)
    assert hurry(of(job, now_s), here, [slower], job.deadline_s, now_s) is None
    before_s = now_s - 1.0
    assert hurry(of(job, before_s), here, [DEAR], job.deadline_s, before_s) is None


def test_of_several_in_time_the_cheapest_is_taken_and_of_none_the_soonest() -> None:
    here = replace(SPOT, run_s=50 * H, start_s=0.0)
    pressed = of(outlook(5.0))
    move = hurry(pressed, here, [DEAR, MIDDLE], 12 * H, 0.0)
    assert move and move.rung == "middle"
    move = hurry(pressed, here, [DEAR, MIDDLE], 2 * H, 0.0)
    assert move and move.rung == "dear"


def test_after_the_last_moment_a_machine_that_may_be_lost_is_left_for_a_sure_one() -> None:
    job = outlook(7.0, DEAR, SPOT)
    here = replace(SPOT, start_s=0.0, run_s=6 * H)
    now_s = of(job).latest_s + 60.0
    move = hurry(
        of(job, now_s), here, [DEAR, replace(SPOT, rung="other", run_s=3 * H)], 8.5 * H, now_s
    )
    assert move and move.rung == "dear" and "lost before its end here with 45%" in move.reason
    assert hurry(of(job, now_s), replace(here, sure=True), [DEAR], 8.5 * H, now_s) is None
    assert hurry(of(job, now_s), replace(here, death_per_h=0.001), [DEAR], 8.5 * H, now_s) is None
    assert hurry(of(job, 0.0), here, [DEAR], 8.5 * H, 0.0) is None, "there is time yet"


# ----------------------------------------------------------------------------- in the dispatcher

LONG = Watched(1000.0, 1000.0)
RUNGS = {
    name: RungView(name, ALL_KINDS, Capacity(1, 2, 60.0), currency="usd")
    for name in ("dear", "spot")
}


def view(advice: Advice | None, **changes: object) -> JobView:
    made = JobView(
        "j", "e", ("dear", "spot"), kind="train", watched=LONG, deadline_s=40 * H, advice=advice
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def decided(view: JobView, now_s: float = 0.0, bills: tuple[BillView, ...] = ()) -> tuple:
    return decide(Snapshot((view,), bills, RUNGS), now_s)[-1]


def test_the_dispatcher_follows_the_order_and_says_why() -> None:
    action, reason = decided(view(of(outlook(40.0))))
    assert action == Launch("j", "spot", "none")
    assert "due in 40.0 h; spot would take 10.4 h" in reason
    assert decided(view(None))[0] == Launch("j", "dear", "none"), "else the user's order"


def test_a_held_rung_is_waited_with() -> None:
    full = tuple(BillView(f"o{n}", 1, "spot") for n in range(2))
    action, reason = decided(view(of(outlook(40.0))), bills=full)
    assert action == Wait("j")
    assert "rung dear is not needed for 33.4 h yet" in reason and "due in 40.0 h" in reason
    now_s = of(outlook(40.0)).latest_s
    action, reason = decided(view(of(outlook(40.0), now_s)), now_s, full)
    assert action == Launch("j", "dear", "none") and "the last moment" in reason


def held(advice: Advice | None, rung: str, left_h: float = 10.0) -> JobView:
    w = Witness(
        "j",
        "held",
        "w",
        launch=Launched(1, "here", 60.0),
        holder=Holder(1, "n"),
        attempt=1,
        silence_s=9.0,
    )
    pace = Pace(rung, "FLOPs of fp16", 3600.0, 3600.0, 3700.0, 100.0, 1000, left_h * H)
    options = {
        "dear": Option("dear", 2.0, 1.0, 100.0, 2.6, "usd"),
        "spot": Option("spot", 1.0, 1.0, 300.0, 0.3, "usd"),
    }
    prospects = (DEAR, SPOT)
    return view(advice, witness=w, pace=pace, options=options, prospects=prospects)


def test_a_holder_that_will_be_late_is_asked_to_yield() -> None:
    bills = (BillView("j", 1, "spot"),)
    now_s = of(outlook(8.0)).latest_s
    late = replace(held(of(outlook(8.0), now_s), "spot"), deadline_s=8 * H)
    action, reason = decided(late, now_s, bills)
    assert action == AskToYield("j", "dear", slow=True), "the rung is passed over for a while"
    assert "it needs 10.2 h here and is due in 6.6 h; dear needs 5.0 h" in reason
    assert decided(held(of(outlook(40.0)), "spot"), bills=bills)[0] == Wait("j")


def test_a_saving_moves_nobody_after_the_last_moment() -> None:
    bills = (BillView("j", 1, "dear"),)
    job = replace(held(of(outlook(40.0)), "dear"), deadline_s=40 * H)
    assert decided(job, bills=bills)[0] == AskToYield("j", "spot"), (
        "the planner's order, not the user's"
    )
    now_s = of(outlook(40.0)).latest_s
    pressed = replace(job, advice=of(outlook(40.0), now_s))
    assert decided(pressed, now_s, bills)[0] == Wait("j")


def test_nor_to_a_rung_that_the_last_moment_has_put_first() -> None:
    """The rungs before one's own are those that save, but for the last moment, which puts the sure one first."""
    bills = (BillView("j", 1, "spot"),)
    now_s = of(outlook(8.0)).latest_s
    calm, pressed = of(outlook(40.0)), of(outlook(8.0), now_s)
    assert calm.order[0] == "spot" and pressed.order[0] == "dear" and pressed.pressed(now_s)
    job = held(pressed, "spot", left_h=4.0)  # it will be in time
    cheap = replace(job.options["dear"], per_h=0.05)
    lasting = replace(SPOT, death_per_h=0.0)
    job = replace(job, prospects=(DEAR, lasting), options={**job.options, "dear": cheap})
    job = replace(job, deadline_s=8 * H)
    assert decided(job, now_s, bills)[0] == Wait("j")
    assert decided(replace(job, advice=replace(calm, order=pressed.order)), now_s, bills)[0] == (
        AskToYield("j", "dear")
    ), "the saving is there"


def test_a_slow_rung_is_not_taken_for_what_the_rest_costs_elsewhere() -> None:
    """Free, and never on time: most of the job would be done on the sure rung all the same."""
    free = Prospect("free", 1000 * H, 0.0, 0.0)
    middle = Prospect("mid", 10 * H, 0.0, 0.5)
    assert of(outlook(40.0, free, middle, DEAR)).order[0] == "mid"
    assert of(outlook(40.0, replace(free, run_s=45 * H), middle, DEAR)).order[0] == "free"


def test_a_sure_rung_that_is_too_late_is_not_called_the_last_moment() -> None:
    fast = replace(SPOT, run_s=2 * H)
    advice = of(outlook(4.0, DEAR, fast))
    assert advice.reason == "due in 4.0 h, and dear needs 5.0 h: spot may be in time"


def test_nobody_bounces_between_two_machines_that_are_slower_than_any_was() -> None:
    """What the other rung promises is believed less after each move."""
    job, here = outlook(5.0), replace(MIDDLE, run_s=7.2 * H, start_s=0.0)
    other = replace(MIDDLE, rung="other", run_s=5.5 * H)
    moves = 0
    while hurry(of(job), here, [other], 5 * H, 0.0, moves):
        moves += 1
    assert moves == 1


def test_a_young_attempt_is_not_hurried_and_a_critical_one_stays_on_sure_rungs() -> None:
    bills = (BillView("j", 1, "spot"),)
    now_s = of(outlook(8.0)).latest_s
    late = replace(held(of(outlook(8.0), now_s), "spot"), deadline_s=8 * H)
    assert late.pace is not None
    young = replace(late, pace=replace(late.pace, steps=5))
    assert decided(young, now_s, bills)[0] == Wait("j")
    sure_here = replace(late, prospects=(replace(DEAR, sure=False), replace(SPOT, sure=True)))
    assert decided(sure_here, now_s, bills)[0] == AskToYield("j", "dear", slow=True)
    assert decided(replace(sure_here, critical=True), now_s, bills)[0] == Wait("j")


# ------------------------------------------------------------------------- no milestone yet


def silent(due_h: float, held_h: float, now_s: float, **changes: object) -> JobView:
    """A holder on spot that has shown nothing for so many hours."""
    job = replace(held(of(outlook(due_h), now_s), "spot"), pace=None, deadline_s=due_h * H)
    return replace(job, held_for_s=held_h * H, **changes)  # type: ignore[arg-type]


SPOT_BILL = (BillView("j", 1, "spot"),)


def test_a_holder_without_a_milestone_that_will_be_late_is_asked_to_yield() -> None:
    now_s = of(outlook(8.0)).latest_s
    action, reason = decided(silent(8.0, 0.4, now_s), now_s, SPOT_BILL)
    assert action == AskToYield("j", "dear", slow=True)
    assert "it has no milestone after 24 min; it needs 9.8 h here and is due in 6.6 h" in reason
    before_s = now_s - 1.0
    assert decided(silent(8.0, 0.4, before_s), before_s, SPOT_BILL)[0] == Wait("j"), "not pressed"


def test_one_that_is_in_time_is_left_alone_until_its_milestone_is_overdue() -> None:
    """As fast as its rung it would be done: it is moved for no risk, and for lateness that it has shown."""
    now_s, rows = 7 * H, (DEAR, replace(SPOT, run_s=2.5 * H))
    advice = Advice(("dear", "spot"), {}, 6 * H, "dear", 0.0, "")
    near = replace(silent(20.0, 0.9, now_s), prospects=rows, advice=advice)
    assert decided(near, now_s, SPOT_BILL)[0] == Wait("j")
    over = replace(near, held_for_s=2.5 * H)
    action, reason = decided(over, now_s, SPOT_BILL)
    assert action == AskToYield("j", "dear", slow=True)
    assert "it has no milestone after 2.5 h, and one takes 30 min there; it needs 12.8 h" in reason


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "evaluate"},
        {"kind": None},
        {"prospects": (DEAR,)},
        {"advice": None},
    ],
)
def test_one_that_cannot_be_judged_is_left_alone(changes: dict[str, object]) -> None:
    now_s = of(outlook(8.0)).latest_s
    job = replace(silent(8.0, 4.0, now_s), **changes)  # type: ignore[arg-type]
    assert decided(job, now_s, SPOT_BILL)[0] == Wait("j")
    assert decided(silent(8.0, 4.0, now_s), now_s, ())[0] == Wait("j"), "nobody knows where it is"


def test_a_milestone_that_tells_nothing_is_a_milestone_all_the_same() -> None:
    now_s = of(outlook(8.0)).latest_s
    job = silent(8.0, 4.0, now_s)
    assert job.witness is not None
    told = replace(job.witness, pointer=Pointer(1, 100, 1, 1, "0" * 64))
    assert decided(replace(job, witness=told), now_s, SPOT_BILL)[0] == Wait("j")
    older = replace(told, attempt=2)
    assert decided(replace(job, witness=older), now_s, SPOT_BILL)[0] == AskToYield(
        "j", "dear", True
    )


@given(
    st.builds(replace, st.just(SPOT), run_s=st.floats(60.0, 1e6), milestone_s=st.floats(60.0, 1e5)),
    st.floats(0.0, 1e6),
)
def test_who_shows_nothing_for_longer_has_no_less_before_it(here: Prospect, held_s: float) -> None:
    """From when its milestone is overdue on; until then it is believed to work."""
    shown = unseen(here, held_s)
    first_s = min(here.milestone_s, here.run_s)
    assert shown.overdue == (held_s > OVERDUE * first_s) and shown.here.start_s == 0.0
    assert shown.here.run_s >= 0.0
    if shown.overdue:
        assert shown.here.run_s >= here.run_s * (1 - 1e-9)
        assert unseen(here, 2 * held_s).here.run_s >= shown.here.run_s * (1 - 1e-9)
    else:
        assert shown.here.run_s <= here.run_s
