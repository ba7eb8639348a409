"""decide() is pure: each case is a snapshot and the action with the sentence that it must give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.dispatch.contract import ALL_KINDS, Capacity
from tenure.dispatch.decide import (
    FRUITLESS_BUDGET,
    BillView,
    Cancel,
    JobView,
    Launch,
    NoShows,
    ReleaseBill,
    RungView,
    Snapshot,
    TakeAway,
    Wait,
    decide,
)
from tenure_protocol.lease.machine import Watched
from tenure_protocol.records import Announced, Asked, Holder, Witness
from tenure_protocol.records import Launch as Launched

RUNG = RungView("local", ALL_KINDS, Capacity(1, 2, 60.0))
LONG = Watched(1000.0, 1000.0)


def job(witness: Witness | None = None, **changes: object) -> JobView:
    view = JobView("j", "e", ("local",), kind="train", witness=witness, watched=LONG)
    return replace(view, **changes)  # type: ignore[arg-type]


def witness(phase: str, **changes: object) -> Witness:
    fields: dict[str, object] = {"launch": Launched(1, "here", 60.0)}
    if phase == "held":
        fields |= {"holder": Holder(1, "n"), "attempt": 1, "silence_s": 9.0}
    return Witness("j", phase, "w", **{**fields, **changes})  # type: ignore[arg-type]


def one(view: JobView, bills: tuple[BillView, ...] = (), rung: RungView = RUNG) -> tuple:
    decisions = decide(Snapshot((view,), bills, {"local": rung}), 100.0)
    return decisions[-1]


def test_a_new_job_is_launched_and_says_why() -> None:
    action, reason = one(job())
    assert action == Launch("j", "local", "none")
    assert reason == "nobody has run it yet; 1 of 2 slots of rung local left"


def test_a_live_holder_is_left_alone() -> None:
    action, reason = one(job(witness("held"), age_s=5.0))
    assert (action, reason) == (Wait("j"), "attempt 1 renewed 5 s ago")


def test_a_silent_holder_is_replaced_only_after_a_gapless_watch_of_one_lease() -> None:
    silent = job(witness("held"), age_s=13.0)
    assert one(silent)[0] == Launch("j", "local", "vacant")
    assert one(replace(silent, watched=Watched(8.9, 1000.0)))[0] == Wait("j")
    assert one(replace(silent, watched=Watched(1000.0, 8.9)))[0] == Wait("j")
    assert one(replace(silent, age_s=11.9))[0] == Wait("j"), "3 s of slack for the store's clocks"


def test_an_announced_long_step_is_no_silence() -> None:
    announced = witness("held", announced=Announced("compiling", 100.0))
    assert one(job(announced, age_s=90.0))[0] == Wait("j")
    assert one(job(announced, age_s=104.0))[0] == Launch("j", "local", "vacant")


def test_a_launch_may_claim_until_its_window_is_over() -> None:
    assert one(job(witness("expected"), age_s=59.0))[0] == Wait("j")
    action, reason = one(job(witness("expected"), age_s=61.0))
    assert action == Launch("j", "local", "vacant")
    assert "did not claim within its 60 s window" in reason


def test_a_launch_known_to_have_failed_costs_no_claim_window() -> None:
    action, _ = one(job(witness("expected"), age_s=1.0, failed_launch=1))
    assert action == Launch("j", "local", "failed")


def test_a_released_job_goes_on_and_tells_its_code() -> None:
    released = witness("released", attempt=1, exit_code=10, reason="received SIGTERM")
    action, reason = one(job(released))
    assert action == Launch("j", "local", "none")
    assert "attempt 1 was released with code 10 (released): received SIGTERM" in reason


@pytest.mark.parametrize("phase", ["finished", "cancelled"])
def test_what_is_final_is_left(phase: str) -> None:
    assert one(job(witness(phase)))[0] == Wait("j")


def test_a_held_back_job_waits_for_its_operator() -> None:
    paused = witness("revoked", held_back=True, by="ann", reason="paused")
    assert one(job(paused)) == (Wait("j"), "held back by ann: paused")


def test_a_pause_is_not_forgotten_when_its_holder_dies() -> None:
    asked = witness("held", asked=Asked("pause", 60.0, "ann"))
    assert one(job(asked, age_s=5.0))[0] == Wait("j")
    action, reason = one(job(asked, age_s=13.0))
    assert action == TakeAway("j", "ann", True)
    assert reason.endswith("ann had asked it to pause")
    yielding = witness("held", asked=Asked("yield", 60.0, "ann"))
    assert one(job(yielding, age_s=13.0))[0] == Launch("j", "local", "vacant")


def test_a_request_that_is_not_obeyed_in_time_becomes_a_revocation() -> None:
    for what, held_back in (("pause", True), ("yield", False)):
        view = job(witness("held", asked=Asked(what, 60.0, "ann")), age_s=1.0)  # type: ignore[arg-type]
        assert one(replace(view, asked_for_s=69.0))[0] == Wait("j")
        action, reason = one(replace(view, asked_for_s=70.0))
        assert action == TakeAway("j", "ann", held_back)
        assert reason == f"ann had asked it to {what} 70 s ago, within 60 s"


def test_a_job_that_is_lost_early_again_and_again_is_given_a_pause() -> None:
    died = witness("released", attempt=3, exit_code=10, reason="no space left")
    action, reason = one(job(died, strikes=3, not_before_s=110.0))
    assert action == Wait("j") and "launched again in 10 s, after 3 early losses" in reason


def test_a_corrupt_job_stops_and_names_its_key() -> None:
    action, reason = one(job(broken="witness/e/j.json is corrupt: it is no JSON"))
    assert action == Wait("j")
    assert reason == "stopped: witness/e/j.json is corrupt: it is no JSON"


def test_a_silent_store_decides_nothing() -> None:
    assert one(job(witness("held"), age_s=9999.0, silent="timeout"))[0] == Wait("j")


@pytest.mark.parametrize(("age_s", "phase"), [(5.0, "expected"), (5.0, "held"), (70.0, "held")])
def test_how_the_process_of_a_launch_ended_is_said_and_decides_nothing(
    age_s: float, phase: str
) -> None:
    view = job(witness(phase), age_s=age_s)
    plain, before = one(view)
    action, reason = one(replace(view, ended="its process ended by SIGSEGV"))
    assert action == plain and reason != before
    assert reason.replace("; its process ended by SIGSEGV", "") == before


def test_a_full_ladder_and_a_parked_rung_say_so() -> None:
    full = (BillView("a", 1, "local"), BillView("b", 1, "local"))
    assert one(job(), full) == (
        Wait("j"),
        "nobody has run it yet; all 2 slots of rung local are taken",
    )
    parked = replace(RUNG, parked_until_s=112.0, parked_for="NoSlots: none left")
    assert one(job(), rung=parked)[1].endswith("rung local is parked for 12 s (NoSlots: none left)")


def test_a_lapsed_launch_is_closed_when_its_own_slot_is_needed() -> None:
    one_slot = replace(RUNG, capacity=Capacity(1, 1, 60.0))
    view = job(witness("held"), age_s=13.0)
    parked = replace(one_slot, parked_until_s=200.0)
    assert one(view, (BillView("j", 1, "local"),), parked)[0] == Wait("j"), "no slot is missing"
    action, reason = one(view, (BillView("j", 1, "local"),), one_slot)
    assert action == ReleaseBill("j", 1, "local")
    assert "its slot is needed" in reason


def test_bills_are_closed_when_nothing_can_come_of_them() -> None:
    def closes(view: JobView, launch: int) -> bool:
        bill = BillView("j", launch, "local")
        return any(
            isinstance(action, ReleaseBill)
            for action, _ in decide(Snapshot((view,), (bill,), {"local": RUNG}), 100.0)
        )

    held = job(witness("held", holder=Holder(2, "n"), launch=Launched(3, "here", 60.0)))
    assert closes(held, 1) and closes(held, 3)
    assert not closes(held, 2), "the holder's own launch is left alone"
    expected = job(witness("expected", launch=Launched(2, "here", 60.0)))
    assert closes(expected, 1)
    assert not closes(expected, 2)
    assert closes(replace(expected, failed_launch=2), 2)
    assert closes(job(witness("finished")), 1)
    assert not closes(job(witness("finished"), silent="timeout"), 1)


def test_refusals_and_unknown_rungs_end_a_job_that_can_run_nowhere() -> None:
    action, reason = one(job(excluded={"local": "refused: torch is 2.14"}))
    assert action == Cancel("j")
    assert reason == "no allowed rung (local: refused: torch is 2.14)"
    assert one(job(rungs=("other",))) == (
        Wait("j"),
        "nobody has run it yet; rung other is out: "
        "the tenure.toml of this dispatcher has no such rung",
    ), "another dispatcher may have it"
    deaf = replace(RUNG, kinds=frozenset({"train"}))
    assert "takes no backtest jobs" in one(job(kind="backtest"), rung=deaf)[1]


def test_budgets() -> None:
    died = witness("released", attempt=99, exit_code=10, reason="bang")
    assert isinstance(one(job(died, strikes=FRUITLESS_BUDGET - 1))[0], Launch)
    action, reason = one(job(died, strikes=FRUITLESS_BUDGET))
    assert action == Cancel("j") and reason.endswith("last: bang")
    assert isinstance(one(job(unclaimed=FRUITLESS_BUDGET - 1))[0], Launch)
    assert one(job(unclaimed=FRUITLESS_BUDGET))[0] == Cancel("j")
    unreadable = witness("released", attempt=2, exit_code=15, reason="manifest is corrupt")
    assert isinstance(one(job(unreadable, unreadable=1))[0], Launch), "it may be that machine's"
    action, reason = one(job(unreadable, unreadable=2))
    assert (action, reason) == (
        Cancel("j"),
        "protocol: 2 attempts in a row failed: manifest is corrupt",
    )


# ------------------------------------------------------------------------ machines that never start

LADDER = ("local", "dear")


def lapsed(now_s: float = 100.0, free: int = 2, **changes: object) -> tuple:
    """Of a job whose last launch never claimed; ``free`` slots are left on the second rung."""
    view = job(witness("expected"), age_s=61.0, rungs=LADDER, **changes)
    dear = replace(RUNG, name="dear")
    taken = tuple(BillView(f"x{n}", 1, "dear") for n in range(2 - free))
    decisions = decide(Snapshot((view,), taken, {"local": RUNG, "dear": dear}), now_s)
    return decisions[0]


def test_where_a_launch_was_never_claimed_the_next_rung_comes_first() -> None:
    assert lapsed()[0] == Launch("j", "local", "vacant"), "the count is of another dispatcher"
    once = {"local": NoShows(1, 160.0)}
    assert lapsed(no_shows=once)[0] == Launch("j", "dear", "vacant")
    assert lapsed(200.0, no_shows=once)[0] == Launch("j", "dear", "vacant"), "it stays second"
    both = once | {"dear": NoShows(1, 190.0)}
    assert lapsed(no_shows=both)[0] == Launch("j", "local", "vacant"), "no rung is better: at once"
    more = both | {"dear": NoShows(3, 190.0), "local": NoShows(2, 160.0)}
    assert lapsed(no_shows=more)[0] == Launch("j", "local", "vacant")


def test_where_a_launch_was_rejected_the_next_rung_comes_first_if_it_has_room() -> None:
    once = {"local": 1}
    assert lapsed(rejected=once)[0] == Launch("j", "dear", "vacant")
    assert lapsed(rejected=once, free=0)[0] == Launch("j", "local", "vacant")


def test_a_rung_is_passed_over_for_a_while_where_the_next_one_is_full() -> None:
    missed = {"local": NoShows(2, 160.0)}
    action, reason = lapsed(no_shows=missed, free=0)
    assert action == Wait("j")
    assert reason == (
        "launch 1 did not claim within its 60 s window; all 2 slots of rung dear are taken, rung "
        "local is passed over for 60 s (2 launches in a row never claimed it there)"
    )
    assert lapsed(160.0, no_shows=missed, free=0)[0] == Launch("j", "local", "vacant")
    out = {"dear": "refused: torch is 2.14"}
    action = lapsed(no_shows=missed, free=0, excluded=out)[0]
    assert action == Launch("j", "local", "vacant"), "there is no other rung to wait for"


def test_nobody_pays_for_a_machine_that_is_passed_over() -> None:
    """Whether the next rung is full or parked; a lapsed holder's machine is another matter."""
    bill = BillView("j", 1, "local", machine="m", beside=(("b", 1),))
    parked = replace(RUNG, name="dear", parked_until_s=500.0, parked_for="NoSlots")

    def closes(view: JobView, *others: JobView) -> list[str]:
        bills = (bill, BillView("b", 1, "local", machine="m", beside=(("j", 1),)))
        seen = Snapshot((view, *others), bills, {"local": RUNG, "dear": parked})
        return [
            why for action, why in decide(seen, 100.0) if action == ReleaseBill("j", 1, "local")
        ]

    view = job(witness("expected"), age_s=61.0, rungs=LADDER, launched_on="local")
    finished = replace(job(witness("finished")), job="b")
    assert closes(view, finished) == [
        "launch 1 did not claim within its 60 s window, and nobody waits for its machine any more"
    ]
    assert not closes(view, replace(job(witness("held")), job="b")), "somebody lives there"
    assert not closes(replace(view, launched_on=""), finished), "it is launched there again"
    silent = replace(view, witness=witness("held"), no_shows={"local": NoShows(1, 160.0)})
    assert not closes(silent, finished)


def test_a_job_is_not_ended_before_every_rung_had_its_turn() -> None:
    missed = {"local": NoShows(FRUITLESS_BUDGET, 160.0)}
    spent = {"unclaimed": FRUITLESS_BUDGET, "no_shows": missed}
    assert lapsed(**spent, free=0)[0] == Wait("j")
    assert lapsed(**spent)[0] == Launch("j", "dear", "vacant")
    assert lapsed(**spent, excluded={"dear": "refused"})[0] == Cancel("j")
    tried = missed | {"dear": NoShows(1, 160.0)}
    action, reason = lapsed(unclaimed=FRUITLESS_BUDGET + 1, no_shows=tried)
    assert (action, reason) == (Cancel("j"), "7 launches in a row never claimed it")


def test_priority_goes_first_and_slots_are_not_sold_twice() -> None:
    views = tuple(replace(job(), job=f"j{n}", priority=n, order=n) for n in range(4))
    decisions = {
        action.job: action for action, _ in decide(Snapshot(views, (), {"local": RUNG}), 0.0)
    }
    launched = {name for name, action in decisions.items() if isinstance(action, Launch)}
    assert launched == {"j3", "j2"}


@settings(deadline=None)  # a loaded machine is no mistake
@given(
    phases=st.lists(
        st.sampled_from([None, "expected", "held", "released", "revoked", "finished"]), max_size=6
    ),
    ages=st.lists(st.floats(0, 5000), min_size=6, max_size=6),
    bills=st.integers(0, 4),
)
def test_every_job_gets_exactly_one_action_and_no_rung_is_oversold(
    phases: list[str | None], ages: list[float], bills: int
) -> None:
    views = tuple(
        replace(job(witness(p) if p else None, age_s=ages[n]), job=f"j{n}")
        for n, p in enumerate(phases)
    )
    taken = tuple(BillView(f"x{n}", 1, "local") for n in range(bills))
    decisions = decide(Snapshot(views, taken, {"local": RUNG}), 0.0)
    per_job = [a.job for a, _ in decisions if not isinstance(a, ReleaseBill)]
    assert sorted(per_job) == sorted(view.job for view in views)
    launches = sum(isinstance(a, Launch) for a, _ in decisions)
    assert launches <= max(0, RUNG.capacity.launches - bills)
    assert all(reason for _, reason in decisions)
    assert decisions == decide(Snapshot(views, taken, {"local": RUNG}), 0.0)


# --------------------------------------------------------------------------- several on a machine

PAIR = replace(RUNG, capacity=Capacity(2, 2, 60.0, cards=2))


def several(*views: JobView, bills: tuple[BillView, ...] = (), rung: RungView = PAIR) -> dict:
    """Action and reason by job."""
    decisions = decide(Snapshot(views, bills, {"local": rung}), 100.0)
    return {action.job: (action, reason) for action, reason in decisions}


def test_jobs_share_a_machine_in_the_order_of_turns_and_say_so() -> None:
    views = [replace(job(), job=name, order=n) for n, name in enumerate("abc")]
    told = several(*views)
    for name in "ab":
        assert told[name] == (
            Launch(name, "local", "none", ("a", "b")),
            "nobody has run it yet; 1 of 2 slots of rung local left; "
            "with 1 other job on one machine of 2 cards",
        )
    assert told["c"] == (
        Launch("c", "local", "none"),
        "nobody has run it yet; 0 of 2 slots of rung local left; alone on one machine of 2 cards",
    )


def test_a_job_that_needs_more_cards_than_a_machine_has_is_out_in_words() -> None:
    action, reason = one(job(cards=2))
    assert action == Cancel("j")
    assert reason == "no allowed rung (local: its machine has 1 card, the job needs 2)"
    two = several(job(cards=2))
    assert two["j"][0] == Launch("j", "local", "none")


def test_the_open_launches_of_one_machine_take_one_slot() -> None:
    taken = (
        BillView("a", 1, "local", machine="m", beside=(("b", 1),)),
        BillView("b", 1, "local", machine="m", beside=(("a", 1),)),
    )
    assert "0 of 2 slots of rung local left" in several(job(), bills=taken)["j"][1]
    apart = tuple(replace(bill, machine=bill.job) for bill in taken)
    assert several(job(), bills=apart)["j"][0] == Wait("j")


def test_a_machine_ends_when_every_launch_on_it_is_over() -> None:
    a, b = replace(job(witness("finished")), job="a"), replace(job(witness("held")), job="b")
    bills = (
        BillView("a", 1, "local", machine="m", beside=(("b", 1),)),
        BillView("b", 1, "local", machine="m", beside=(("a", 1),)),
    )
    words = "it is finished; the bill of launch 1 stays open for launch 1 of job b on its machine"
    assert several(a, b, bills=bills)["a"] == (Wait("a"), words)
    for why, other in {
        "silent": replace(b, silent="timeout"),
        "broken": replace(b, broken="it is no JSON"),
        "may still claim": replace(b, witness=witness("expected"), age_s=1.0),
    }.items():
        decisions = decide(Snapshot((a, other), bills, {"local": PAIR}), 100.0)
        assert not any(isinstance(action, ReleaseBill) for action, _ in decisions), why
    unknown = decide(Snapshot((a,), bills, {"local": PAIR}), 100.0)
    assert not any(isinstance(action, ReleaseBill) for action, _ in unknown), "of no plan we know"
    for w in (witness("finished"), witness("held", holder=Holder(2, "n"))):
        decisions = decide(Snapshot((a, replace(b, witness=w)), bills, {"local": PAIR}), 100.0)
        ended = {action for action, _ in decisions if isinstance(action, ReleaseBill)}
        assert ended == {ReleaseBill("a", 1, "local"), ReleaseBill("b", 1, "local")}
    closed = decide(Snapshot((a, b), bills[:1], {"local": PAIR}), 100.0)
    assert closed[0][0] == ReleaseBill("a", 1, "local"), "the other one is closed already"


def test_a_lapsed_job_gets_the_slot_of_its_machine_unless_somebody_lives_there() -> None:
    lapsed = replace(job(witness("held"), age_s=13.0), job="a")
    bills = (
        BillView("a", 1, "local", machine="m", beside=(("b", 1),)),
        BillView("b", 1, "local", machine="m", beside=(("a", 1),)),
    )
    one_slot = replace(PAIR, capacity=Capacity(2, 1, 60.0, cards=2))

    def ends(other: JobView) -> bool:
        decisions = decide(Snapshot((lapsed, other), bills, {"local": one_slot}), 100.0)
        return any(isinstance(action, ReleaseBill) for action, _ in decisions)

    beside = replace(lapsed, job="b")
    assert ends(beside), "none of the two lives"
    assert not ends(replace(beside, age_s=5.0))
    assert not ends(replace(beside, silent="timeout"))
    assert ends(replace(beside, witness=witness("finished")))


@settings(deadline=None)  # a loaded machine is no mistake
@given(
    needs=st.lists(st.integers(1, 4), max_size=10),
    bills=st.integers(0, 4),
    per_launch=st.integers(1, 4),
    cards=st.integers(1, 4),
)
def test_no_machine_is_overfull_and_the_launches_of_one_agree(
    needs: list[int], bills: int, per_launch: int, cards: int
) -> None:
    views = [replace(job(cards=need), job=f"j{n}", order=n) for n, need in enumerate(needs)]
    taken = tuple(BillView(f"x{n}", 1, "local", machine=f"m{n // 2}") for n in range(bills))
    rung = replace(RUNG, capacity=Capacity(per_launch, 3, 60.0, cards=cards))
    told = several(*views, bills=taken, rung=rung)
    assert set(told) == {view.job for view in views}
    packs = {
        action.pack or (action.job,) for action, _ in told.values() if isinstance(action, Launch)
    }
    aboard = [name for pack in packs for name in pack]
    assert len(aboard) == len(set(aboard)), "every job in one pack at most"
    assert len(packs) <= 3 - (bills + 1) // 2
    for pack in packs:
        assert len(pack) <= per_launch
        assert sum(needs[int(name[1:])] for name in pack) <= cards
        assert list(pack) == sorted(pack, key=lambda name: int(name[1:]))
        assert all(told[name][0].pack == (pack if len(pack) > 1 else ()) for name in pack)


def test_early_losses_on_one_rung_end_no_job_that_has_another_to_try() -> None:
    """A cluster of bad hosts is no fault of the job's."""
    rungs = {name: replace(RUNG, name=name) for name in ("spot", "demand")}
    released = witness("released", attempt=9, reason="machine fault: x")
    lost = job(released, rungs=("spot", "demand"), strikes=9, strikes_on={"spot": 9})
    ((action, _),) = decide(Snapshot((lost,), (), rungs), 100.0)
    assert action == Launch("j", "demand", "none"), "it also comes after the one that lost nothing"
    both = replace(lost, strikes_on={"spot": 6, "demand": 3})
    ((action, reason),) = decide(Snapshot((both,), (), rungs), 100.0)
    assert action == Cancel("j") and reason.startswith("9 attempts in a row were lost early")
    few = replace(lost, strikes=2, strikes_on={"spot": 2})
    ((action, _),) = decide(Snapshot((few,), (), rungs), 100.0)
    assert action == Launch("j", "spot", "none"), "two losses change no order"


def test_a_holder_that_was_to_move_and_is_gone_gets_one_place() -> None:
    rungs = {name: replace(RUNG, name=name) for name in ("spot", "demand")}
    held = witness("held", asked=Asked("yield", 60.0, "d"))
    gone = job(held, rungs=("spot", "demand"), age_s=5000.0, moving_to="demand")
    ((action, reason),) = decide(Snapshot((gone,), (), rungs), 100.0)
    assert action == Launch("j", "demand", "vacant")
    assert reason.endswith("1 of 2 slots of rung demand left")
