"""Plays of a plan: they agree with the forecast, follow the dispatcher's rule, and keep what is limited."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.dispatch.contract import ALL_KINDS, Capacity
from tenure.dispatch.decide import JobView, Launch, RungView, Snapshot, decide
from tenure.errors import UsageError
from tenure.plan.predict import Overheads, forecast
from tenure.plan.rehearse import KEPT_BY, Spread, rehearse, relax
from tenure.plan.rehearse_play import _Stage, play
from tenure.plan.rehearse_script import (
    Allowance,
    Kind,
    Retrain,
    Script,
    Station,
    Trace,
    read_trace,
)
from tenure.plan.rehearse_world import Job, Luck, Rung, World, kept
from tenure.plan.survival import Curve, exponential
from tenure.plan.throughput import Throughput, known

H = 3600.0
CALM = exponential(1e-12)


def station(name: str, curve: Curve = CALM, **more: object) -> Station:
    made = Station(name, f"card-{name}", 1, (120.0,), curve, curve, load_s=30.0, save_s=10.0)
    return replace(made, **more)  # type: ignore[arg-type]


def kind(hours: float = 10.0, name: str = "k", **laws: float | Throughput) -> Kind:
    """A job of so many hours at one unit a second; laws by rung."""
    made = {
        rung: law if isinstance(law, Throughput) else known(law, 0.9) for rung, law in laws.items()
    }
    return Kind(name, hours * H, 1800.0, made)


SPOT = station("spot", exponential(0.2 / H), per_h=0.3, usd_per_h=0.3, slots=4,
               starts_s=(100.0, 200.0, 400.0), silence_s=60.0)  # fmt: skip
DEAR = station("dear", per_h=2.6, usd_per_h=2.6, slots=2, on_demand=True)


def finishes(script: Script, plays: int, planned: bool = True) -> list[float]:
    return [play(script, 1, number, planned).finish_s for number in range(plays)]


def near(values: Sequence[float], mean: float, errors: float = 4.0) -> bool:
    """Within sampling error: so many standard errors of the mean, and a little for the other side's."""
    return bool(
        abs(fmean(values) - mean) <= errors * stdev(values) / len(values) ** 0.5 + 0.002 * mean
    )


# ------------------------------------------------------------------------ against the forecast


@pytest.mark.parametrize(
    ("rung", "law"),
    [
        (SPOT, known(1.0, 0.9)),
        (replace(SPOT, curve=CALM), known(1.0, 0.9, noise=0.2)),
        (replace(SPOT, curve=exponential(0.1 / H, 4 * H), wall_s=4 * H), known(1.0, 0.9)),
    ],
    ids=["losses", "speeds", "a wall"],
)
def test_one_job_on_one_rung_agrees_with_the_forecast(rung: Station, law: Throughput) -> None:
    script = Script((kind(spot=law),), (rung,))
    told = rehearse(script, 400, seed=3)
    overheads = Overheads(rung.starts_s, rung.load_s, rung.save_s, 1800.0, rung.silence_s)
    said = forecast(10 * H, law, rung.curve, overheads, draws=20_000, seed=5)
    assert near([each.finish_s for each in told.plays], said.mean_s)
    assert near([each.used["spot"].paid_s / H for each in told.plays], said.paid_h)
    assert fmean(each.used["spot"].launches for each in told.plays) == pytest.approx(
        said.machines, rel=0.05
    )
    phases = told.phases
    assert phases is not None
    assert phases.part == pytest.approx(said.phases.part, abs=0.01)
    assert phases.restart_s == pytest.approx(said.phases.restart_s, rel=0.12, abs=1.0)
    assert phases.checkpoint_s == pytest.approx(said.phases.checkpoint_s, rel=0.05)


def test_what_a_law_does_not_know_is_shared_by_the_machines_of_a_play() -> None:
    unsure = Throughput(
        0.0, 0.9, (4.0, 0.0, 0.0), 0.1, 1e6, 3, ""
    )  # 0.2 of log s, 0.1 of a machine
    script = Script((kind(spot=unsure),), (replace(SPOT, curve=CALM),))
    logs = [[], []]  # type: list[list[float]]
    for number in range(400):
        luck = Luck(script, 0, number)
        for n in range(2):
            deviate = luck.machine(script.stations[0], n)[2]
            logs[n].append(math.log(luck.per_s(script.jobs[0], "spot", deviate)))
    assert stdev(logs[0]) == pytest.approx(math.hypot(0.2, 0.1), rel=0.1)
    within = [a - b for a, b in zip(*logs, strict=True)]
    assert stdev(within) == pytest.approx(0.1 * 2**0.5, rel=0.12)


# -------------------------------------------------------------------------------- by hand


def test_a_known_wall_takes_a_last_milestone_and_goes_on() -> None:
    """10 h of work, of which a machine of 4 h does 4 h less loading and its snapshots."""
    rung = station("spot", exponential(1e-12, 4 * H), wall_s=4 * H)
    whole_s, saved_s = kept(4 * H - 30.0, 1800.0, 10.0, told=True)
    assert whole_s + saved_s == pytest.approx(4 * H - 30.0)
    rest_s = 10 * H - 2 * whole_s
    last_s = 120.0 + 30.0 + rest_s + math.ceil(rest_s / 1800.0) * 10.0
    script = Script((kind(spot=1.0),), (rung,))
    one = play(script, 0, 0)
    assert one.finish_s == pytest.approx(2 * (120.0 + 4 * H) + last_s)
    assert (one.used["spot"].launches, one.used["spot"].lost) == (3, 0)
    assert one.parts.twice_s == pytest.approx(0.0, abs=1e-6)


def test_a_recorded_market_says_when_there_is_a_machine_and_when_it_is_lost() -> None:
    """Two hours without, four with, an hour without, and then for good."""
    trace = Trace(H, (0, 0, 1, 1, 1, 1, 0, *[1] * 43))
    rung = station("spot", trace=trace, silence_s=60.0)
    script = Script((kind(6.0, spot=1.0),), (rung,), deadline_s=50 * H)
    one = play(script, 0, 0, planned=False)
    done_s, _ = kept(4 * H - 150.0, 1800.0, 10.0, told=False)
    rest_s = 6 * H - done_s
    last_s = 120.0 + 30.0 + rest_s + math.ceil(rest_s / 1800.0) * 10.0
    assert one.finish_s == pytest.approx(7 * H + last_s)
    assert (one.used["spot"].launches, one.used["spot"].lost) == (2, 1)
    assert one.used["spot"].paid_s == pytest.approx(4 * H + 60.0 + last_s)


def test_a_market_that_has_fewer_machines_loses_some_and_not_all() -> None:
    trace = Trace(H, (3, 3, 1, *[1] * 60))
    rung = station("spot", trace=trace, slots=3)
    script = Script((kind(5.0, spot=1.0),) * 3, (rung,), deadline_s=63 * H)
    one = play(script, 0, 0, planned=False)
    assert one.used["spot"].lost == 2 and one.used["spot"].launches == 5


def test_a_market_that_never_has_a_machine_is_never_done() -> None:
    rung = station("spot", trace=Trace(60.0, (0, 0)))
    one = play(Script((kind(spot=1.0),), (rung,)), 0, 0)
    assert math.isinf(one.finish_s) and one.spent == {"usd": 0.0}
    assert one.stuck == "no rung of its ladder could be had any more"


def test_a_pack_is_one_machine_and_paid_once() -> None:
    rung = station("pack", cards=4, per_launch=4, per_h=4.0)
    one = play(Script((kind(pack=1.0),) * 4, (rung,)), 0, 0)
    assert one.used["pack"].launches == 1
    alone = play(Script((kind(pack=1.0),), (rung,)), 0, 0)
    assert one.spent == alone.spent and one.finish_s == alone.finish_s


def test_jobs_of_unequal_length_share_machines_as_the_dispatcher_packs_them() -> None:
    rung = station("pack", cards=2, per_launch=2, slots=2, per_h=1.0)
    jobs = tuple(kind(hours, f"{hours:g} h", pack=1.0) for hours in (9.0, 1.0, 8.0, 2.0))
    one = play(Script(jobs, (rung,)), 0, 0)
    assert one.used["pack"].paid_s / H == pytest.approx(9.0 + 2.0, abs=0.3), "9 with 8, 2 with 1"


# ------------------------------------------------------------------------------- quotas


def test_a_quota_is_not_overdrawn_and_goes_on_when_it_is_renewed() -> None:
    """Eight hours for two machines: a last milestone ten minutes before their end, and no machine is lost."""
    rung = station("week", account="q", slots=2)
    once = {"q": Allowance(8.0, 0.0, None)}
    script = Script((kind(10.0, week=1.0),) * 2, (rung,), quotas=once)
    spent = play(script, 0, 0)
    assert math.isinf(spent.finish_s) and spent.used["week"].lost == 0
    assert 7.6 < spent.used["week"].paid_s / H < 8.0
    renewed = replace(script, quotas={"q": Allowance(8.0, 30.0, 100 * H)})
    one = play(renewed, 0, 0)
    assert 106 * H < one.finish_s < 107 * H and one.used["week"].lost == 0
    assert one.parts.twice_s == pytest.approx(0.0, abs=1e-6)


def test_a_balance_buys_hours_by_the_price_of_each_rung() -> None:
    rung = station("week", account="q", draws_per_h=2.0)
    script = Script((kind(10.0, week=1.0),), (rung,), quotas={"q": Allowance(8.0, 0.0, None)})
    assert 3.6 < play(script, 0, 0).used["week"].paid_s / H < 4.0


def test_two_rungs_of_one_runner_draw_on_one_quota() -> None:
    rungs = tuple(station(name, account="q") for name in ("a", "b"))
    script = Script((kind(10.0, a=1.0, b=1.0),) * 2, rungs, quotas={"q": Allowance(8.0, 0.0)})
    used = play(script, 0, 0).used
    assert 7.6 < (used["a"].paid_s + used["b"].paid_s) / H < 8.0
    assert min(used["a"].paid_s, used["b"].paid_s) > 3 * H


def test_nothing_is_launched_that_a_quota_would_not_bring_to_a_milestone() -> None:
    rung = station("week", account="q")
    script = Script((kind(5.0, week=1.0),), (rung,), quotas={"q": Allowance(0.1, 0.0, None)})
    one = play(script, 0, 0)
    assert one.used["week"].launches == 0 and math.isinf(one.finish_s)


def test_a_rung_whose_quota_does_not_last_is_not_the_sure_one() -> None:
    """Due in 20 h: the quota's rung is on demand, and has 3 h of the 10 that are needed."""
    short = station("week", account="q", on_demand=True, currency="h")
    dear = replace(DEAR, slots=1)
    job = kind(10.0, week=1.0, dear=1.0)
    script = Script((job,), (dear, short), deadline_s=20 * H, quotas={"q": Allowance(3.0, 0.0)})
    one = play(script, 0, 0)
    assert one.finish_s <= 20 * H
    assert one.used["week"].launches == 1 and one.used["dear"].launches == 1


# -------------------------------------------------------------------------------- the rule


def test_by_the_users_order_the_first_rung_is_filled_and_then_the_next() -> None:
    script = Script((kind(spot=1.0, dear=2.0),) * 5, (DEAR, replace(SPOT, curve=CALM)))
    one = play(script, 0, 0)
    assert one.used["dear"].launches == 2 and one.used["spot"].launches == 3


def test_with_time_the_planner_waits_for_the_cheap_rung_and_costs_less() -> None:
    jobs = (kind(spot=1.0, dear=2.0),) * 6
    script = Script(jobs, (DEAR, SPOT), deadline_s=60 * H)
    planned, order = (rehearse(script, 30, 0, each) for each in (True, False))
    assert planned.on_time == order.on_time == 1.0
    assert planned.cost["usd"].mean < 0.6 * order.cost["usd"].mean
    assert planned.finish_h.mean > order.finish_h.mean


def test_a_holder_that_would_be_late_is_moved_to_the_sure_rung() -> None:
    deadly = replace(SPOT, curve=exponential(0.5 / H), expected=exponential(0.5 / H), slots=1)
    script = Script((kind(spot=1.0, dear=2.0),), (DEAR, deadly), deadline_s=10.5 * H)
    told = rehearse(script, 100, 0)
    assert told.moves > 0.2
    assert (
        told.on_time is not None and told.on_time >= 0.95
    )  # who has shown no milestone is not moved
    assert rehearse(script, 100, 0, planned=False).moves == 0
    stays = Script((kind(spot=1.0),), (deadly,), deadline_s=10.5 * H)
    alone = rehearse(stays, 100, 0).on_time
    assert alone is not None and alone < 0.7, "without a sure rung it is late at times"


def test_the_machine_that_a_holder_moves_to_is_kept_for_it() -> None:
    """Ten jobs want the one sure machine: nobody is launched there between a holder's wish and its move."""
    slow = replace(
        SPOT, curve=exponential(0.3 / H), expected=exponential(0.3 / H), slots=10, save_s=900.0
    )
    jobs = (kind(8.0, spot=1.0, dear=4.0),) * 10
    script = Script(jobs, (replace(DEAR, slots=1), slow), deadline_s=14 * H)
    kept_at: list[int] = []
    launched = World.launch

    def watched(world: World, rung: Rung, jobs: Sequence[Job]) -> None:
        kept_at.append(rung.kept)
        assert len(rung.bills) + rung.kept < rung.station.slots
        launched(world, rung, jobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "launch", watched)
        told = rehearse(script, 12, 0)
    assert told.moves > 0 and kept_at and max(kept_at) == 0 and told.never == 0.0


def test_early_losses_make_pauses_and_end_a_job() -> None:
    doomed = replace(SPOT, curve=exponential(60.0 / H), silence_s=0.0)
    one = play(Script((kind(spot=1.0),), (doomed,)), 0, 0)
    assert math.isinf(one.finish_s) and one.used["spot"].launches == 6
    assert one.stuck == "6 attempts in a row were lost early, without a milestone"
    assert one.parts.wait_s == pytest.approx(5.0 + 10.0 + 20.0 + 40.0)


def test_a_rung_that_only_loses_gives_its_place_to_the_next() -> None:
    doomed = replace(SPOT, curve=exponential(60.0 / H))
    one = play(Script((kind(spot=1.0, dear=1.0),), (doomed, DEAR)), 0, 0)
    assert math.isfinite(one.finish_s)
    assert one.used["spot"].launches == 3 and one.used["dear"].launches == 1


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 99), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.floats(12, 80)
)
def test_no_rung_ever_has_more_machines_than_slots(
    seed: int, jobs: int, cheap: int, sure: int, due_h: float
) -> None:
    spot = replace(SPOT, slots=cheap, curve=exponential(0.3 / H), expected=exponential(0.3 / H))
    dear = replace(DEAR, slots=sure)
    script = Script((kind(8.0, spot=1.0, dear=3.0),) * jobs, (dear, spot), deadline_s=due_h * H)
    launched = World.launch

    def watched(world: World, rung: Rung, jobs: Sequence[Job]) -> None:
        assert rung.free + rung.kept >= 0
        launched(world, rung, jobs)
        assert len(rung.bills) <= rung.station.slots and rung.kept >= 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "launch", watched)
        one = play(script, seed, 0)
    assert math.isfinite(one.finish_s)
    done = one.parts.work_s
    assert 8 * H * jobs / 3 <= done * (1 + 1e-9) and done <= 8 * H * jobs * (1 + 1e-9)


# ------------------------------------------------------------------------------ properties


def test_equal_seeds_give_equal_plays_and_more_plays_begin_with_fewer() -> None:
    script = Script(
        (kind(spot=known(1.0, 0.9, 0.1), dear=2.0),) * 4, (DEAR, SPOT), deadline_s=30 * H
    )
    few, many = rehearse(script, 5, 7), rehearse(script, 9, 7)
    assert few.plays == many.plays[:5] == rehearse(script, 5, 7).plays
    assert few.plays != rehearse(script, 5, 8).plays


def test_two_rules_meet_the_same_machines() -> None:
    script = Script((kind(spot=1.0),) * 3, (SPOT,), deadline_s=200 * H)
    one, two = Luck(script, 3, 4), Luck(script, 3, 4)
    ahead = [one.machine(SPOT, n) for n in range(40)]
    assert two.machine(SPOT, 39) == ahead[39] and two.machine(SPOT, 0) == ahead[0]
    assert len(set(ahead)) == 40


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 5), st.none() | st.floats(8, 60))
def test_free_rungs_cost_nothing(seed: int, jobs: int, due_h: float | None) -> None:
    free = [replace(each, per_h=0.0, usd_per_h=0.0) for each in (DEAR, SPOT)]
    due_s = None if due_h is None else due_h * H
    told = rehearse(
        Script((kind(spot=1.0, dear=2.0),) * jobs, tuple(free), deadline_s=due_s), 3, seed
    )
    assert told.cost == {"usd": Spread(0.0, 0.0, 0.0, 0.0)}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.floats(3, 60), st.floats(1.0, 3.0), st.booleans())
def test_more_time_never_lowers_the_chance_to_be_on_time(
    seed: int, due_h: float, times: float, planned: bool
) -> None:
    """By the planner where a sure rung has a machine for each job, as it promises; by the order always."""
    jobs = (kind(spot=1.0, dear=2.0),) * 2
    script = Script(jobs, (DEAR, SPOT) if planned else (SPOT, DEAR), deadline_s=due_h * H)
    later = replace(script, deadline_s=times * due_h * H)
    first, second = (rehearse(each, 8, seed, planned).on_time for each in (script, later))
    assert first is not None and second is not None and second >= first
    if planned and due_h > 5.2:  # 5 h on the sure rung, a start and ten snapshots
        assert first == 1.0, "never later than the deadline, where the sure rung is sure"


# --------------------------------------------------------------------- limits and ways out


def test_a_budget_stops_what_it_pays_for_and_the_way_out_is_told() -> None:
    script = Script((kind(spot=1.0),) * 4, (SPOT,), budget={"usd": 6.0})
    told = rehearse(script, 40, 0)
    assert told.budget_kept == 0.0 and told.never == 1.0
    assert all(6.0 <= each.spent["usd"] < 6.2 and each.broke == "usd" for each in told.plays)
    way_out = relax(told, 0)
    assert way_out is not None and way_out.what == "budget.usd" and way_out.enough is not None
    assert (
        way_out.short > 0
        and "no play is done before the budget of 6 usd is spent" in way_out.reason
    )
    enough = rehearse(replace(script, budget={"usd": way_out.enough + 1e-6}), 40, 0)
    assert enough.budget_kept is not None and enough.budget_kept >= KEPT_BY
    assert relax(enough, 0) is None


def test_a_spent_currency_leaves_the_other_rungs() -> None:
    free = replace(DEAR, per_h=0.0, usd_per_h=0.0, slots=1)
    script = Script((kind(spot=1.0, dear=1.0),) * 4, (SPOT, free), budget={"usd": 3.0})
    told = rehearse(script, 10, 0)
    assert told.never == 0.0 and told.budget_kept == 0.0
    assert all(3.0 <= each.spent["usd"] < 3.2 for each in told.plays)


def test_the_least_deadline_that_is_kept_is_told_where_none_is() -> None:
    script = Script(
        (kind(spot=1.0, dear=2.0),) * 4, (DEAR, replace(SPOT, slots=1)), deadline_s=4 * H
    )
    told = rehearse(script, 20, 0)
    assert told.on_time == 0.0
    way_out = relax(told, 0)
    assert way_out is not None and way_out.what == "deadline_h" and way_out.enough is not None
    best_h = min(each.finish_s for each in told.plays) / H
    assert way_out.short == pytest.approx(best_h - 4.0)
    assert f"{way_out.short:.3g} h late" in way_out.reason
    kept_by = [
        rehearse(replace(script, deadline_s=due_h * H), 20, 0).on_time
        for due_h in (way_out.enough, 0.8 * way_out.enough)
    ]
    assert kept_by[0] is not None and kept_by[0] >= KEPT_BY
    assert kept_by[1] is not None and kept_by[1] < KEPT_BY
    assert way_out.cost["usd"].mean > 0


def test_a_plan_that_keeps_its_limits_needs_no_way_out() -> None:
    script = Script((kind(spot=1.0, dear=2.0),), (DEAR, SPOT), deadline_s=40 * H)
    assert relax(rehearse(script, 10, 0), 0) is None


def test_a_play_that_never_ends_has_no_later_deadline() -> None:
    doomed = replace(SPOT, curve=exponential(60.0 / H))
    script = Script((kind(spot=1.0),), (doomed,), deadline_s=40 * H)
    way_out = relax(rehearse(script, 5, 0), 0)
    assert way_out is not None and way_out.enough is None and math.isinf(way_out.short)
    assert "lost early" in way_out.reason


# ------------------------------------------------------------------------------- retrain


def test_the_retrain_runs_on_the_card_it_is_pinned_to_and_has_a_deadline_of_its_own() -> None:
    jobs = (kind(spot=1.0, dear=2.0),) * 3
    script = Script(jobs, (DEAR, replace(SPOT, slots=3)), deadline_s=40 * H)
    pinned = replace(script, retrain=Retrain(11, ("dear",)))
    one, two = play(script, 0, 0), play(pinned, 0, 0)
    assert two.training_s == one.training_s and one.retrain_s == 0.0
    more = two.used["dear"].launches - one.used["dear"].launches
    assert more == 11 and two.used["spot"] == one.used["spot"]
    assert two.retrain_s > 6 * 5 * H, "eleven jobs of five hours on two machines"
    assert two.finish_s == two.training_s + two.retrain_s
    assert rehearse(pinned, 3, 0).on_time == 1.0 and two.finish_s > 40 * H


def test_unpinned_it_runs_where_most_seeds_of_the_point_ended() -> None:
    script = Script((kind(spot=1.0, dear=2.0),) * 4, (DEAR, replace(SPOT, slots=4)),
                    deadline_s=60 * H, retrain=Retrain(3))  # fmt: skip
    one = play(script, 0, 0)
    without = play(replace(script, retrain=None), 0, 0)
    assert without.used["dear"].launches == 0
    assert (
        one.used["dear"].launches == 0
        and one.used["spot"].launches >= 3 + without.used["spot"].launches
    )


# -------------------------------------------------------------------------------- traces


def written(folder: Path, trace: object) -> Path:
    file = folder / "market.json"
    file.write_text(trace if isinstance(trace, str) else json.dumps(trace))
    return file


def test_a_trace_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    file = written(tmp_path, {"metadata": {"gap_seconds": 195}, "data": [0, 2, 1.0]})
    assert read_trace(file) == Trace(195.0, (0, 2, 1))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([1, None, 2], "data has a gap at tick 1"),
        ([1, -1], "data[1] is -1; instances are a whole number, 0 or more"),
        ([1, 0.5], "data[1] is 0.5"),
        ([1, True], "data[1] is true"),
        ([1, "2"], 'data[1] is "2"'),
        ([], "data is missing or empty"),
        (None, "data is missing or empty"),
    ],
)
def test_a_bad_trace_is_one_sentence(tmp_path: Path, data: object, says: str) -> None:
    file = written(tmp_path, {"metadata": {"gap_seconds": 60}, "data": data})
    with pytest.raises(UsageError) as raised:
        read_trace(file)
    assert str(raised.value).startswith(f"{file}: {says}")


@pytest.mark.parametrize("trace", ["[1, 2", [1], {"data": [1]}, {"metadata": {}, "data": [1]},
                                   {"metadata": {"gap_seconds": 0}, "data": [1]},
                                   {"metadata": {"gap_seconds": float("nan")}, "data": [1]},
                                   '{"metadata": {"gap_seconds": 60}, "data": [NaN]}',
                                   '{"metadata": {"gap_seconds": 60}, "data": [Infinity]}'])  # fmt: skip
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, trace: object) -> None:
    with pytest.raises(UsageError):
        read_trace(written(tmp_path, trace))


def test_a_play_begins_at_a_tick_that_leaves_its_time() -> None:
    trace = Trace(H, tuple([1] * 30))
    assert trace.starts(10 * H) == 21 and trace.starts(40 * H) == 30
    script = Script((kind(5.0, spot=1.0),), (station("spot", trace=trace),), deadline_s=10 * H)
    begins = {Luck(script, 0, number).offset("spot") for number in range(300)}
    assert begins == set(range(21))


# --------------------------------------------------------------------- against the dispatcher


rungs_drawn = st.lists(
    st.tuples(
        st.integers(1, 3),  # slots
        st.sampled_from([(1, 1), (2, 2), (4, 2)]),  # cards of a machine, jobs on it
        st.booleans(),  # on demand
        st.sampled_from([0.0, 0.3, 2.0]),  # price
        st.sampled_from([None, 0.05, 0.4, 5.0, 60.0]),  # hours left of its quota
        st.sampled_from([0.5, 1.0, 3.0]),  # speed
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(rungs_drawn, st.integers(1, 7), st.sampled_from([1, 2]), st.none() | st.floats(2, 60))
def test_the_first_round_is_that_of_the_dispatcher(
    drawn: list[tuple[int, tuple[int, int], bool, float, float | None, float]],
    count: int,
    cards: int,
    due_h: float | None,
) -> None:
    """Every launch of a play's first moment is one that :func:`tenure.dispatch.decide.decide` makes, packs too."""
    stations, quotas, speeds = [], {}, {}
    for n, (slots, (per_machine, per_launch), sure, price, left_h, speed) in enumerate(drawn):
        if per_machine < cards:
            continue
        name = f"r{n}"
        if left_h is not None:
            quotas[name] = Allowance(left_h, 0.0)
        stations.append(
            station(
                name, slots=slots, cards=per_machine, per_launch=per_launch, on_demand=sure,
                per_h=price, usd_per_h=price, account=name if left_h is not None else "",
            )
        )  # fmt: skip
        speeds[name] = known(speed, 0.9)
    if not stations:
        return
    script = Script(
        (kind(5.0, **speeds),) * count,
        tuple(stations),
        cards,
        None if due_h is None else due_h * H,
        quotas=quotas,
    )
    played: list[tuple[str, tuple[str, ...]]] = []
    decided: list[set[tuple[str, tuple[str, ...]]]] = []
    launched, rounds = World.launch, _Stage._decide

    def watched(world: World, rung: Rung, jobs: Sequence[Job]) -> None:
        if world.now_s == 0.0:
            played.append((rung.station.name, tuple(str(job.number) for job in jobs)))
        launched(world, rung, jobs)

    def first_round(stage: _Stage) -> None:
        if not decided:
            decided.append(_by_the_dispatcher(stage))
        rounds(stage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "launch", watched)
        patch.setattr(_Stage, "_decide", first_round)
        play(script, 0, 0)
    assert set(played) == decided[0]


def _by_the_dispatcher(stage: _Stage) -> set[tuple[str, tuple[str, ...]]]:
    """What the dispatcher's own decision is, as (rung, jobs of one machine), from the same facts."""
    script, advice = stage.script, stage._advised()
    names = tuple(each.name for each in script.stations)
    views = tuple(
        JobView(
            str(job.number), "e", names, order=job.number, kind="train", cards=script.cards,
            work=job.left, prospects=tuple(stage._prospects(job)), advice=advice.get(str(job.number)),
        )
        for job in stage.jobs
    )  # fmt: skip
    rungs = {
        each.name: RungView(
            each.name,
            ALL_KINDS,
            Capacity(each.per_launch, each.slots, 0.0, each.cards, wall_s=each.wall_s),
            account=each.account or each.name,
            quota=stage.left(each),
            start_s=each.start_s,
        )
        for each in script.stations
    }
    actions = decide(Snapshot(views, (), rungs), 0.0)
    return {
        (action.rung, action.pack or (action.job,))
        for action, _ in actions
        if isinstance(action, Launch)
    }


# ------------------------------------------------------------------------------ small guards


@pytest.mark.parametrize(("left_h", "sure"), [(3.0, False), (11.0, True), (None, False)])
def test_a_rung_of_another_currency_is_sure_as_long_as_its_quota_lasts(
    left_h: float | None, sure: bool
) -> None:
    """Credits that no platform tells are used, and not counted on."""
    rung = station("week", account="q", on_demand=True, currency="credits")
    quotas = {} if left_h is None else {"q": Allowance(left_h, 0.0)}
    script = Script((kind(10.0, week=1.0),), (rung,), deadline_s=20 * H, quotas=quotas)
    stage = _Stage(script, Luck(script, 0, 0), True)
    stage._order = ("week",)
    (prospect,) = stage._prospects(Job(0, script.jobs[0], script.jobs[0].amount))
    assert prospect.sure is sure


def test_no_machine_is_started_that_would_end_before_its_start() -> None:
    rung = station("spot", exponential(1e-12, 60.0), wall_s=60.0)
    one = play(Script((kind(spot=1.0),), (rung,)), 0, 0)
    assert one.used["spot"].launches == 0 and math.isinf(one.finish_s)


def test_a_job_that_no_machine_brings_to_a_milestone_never_ends() -> None:
    rung = station("spot", exponential(1e-12, 200.0), wall_s=200.0, load_s=300.0)
    one = play(Script((kind(spot=1.0),), (rung,)), 0, 0)
    assert one.stuck == "200 machines in a row were gone before a milestone"
    assert one.used["spot"].launches == 200


def test_who_is_done_before_it_moves_gives_the_kept_machine_back() -> None:
    script = Script((kind(1.0, spot=1.0, dear=2.0),), (DEAR, replace(SPOT, curve=CALM)))
    world = World(script, Luck(script, 0, 0))
    job = Job(0, script.jobs[0], script.jobs[0].amount)
    world.launch(world.rungs["spot"], [job])
    world.rungs["dear"].kept, job.moving_to = 1, "dear"
    while not job.over:
        world.now_s = world.events[0][0]
        world.events.pop(0)[2]()
    assert world.rungs["dear"].kept == 0 and job.moving_to == ""


def test_a_wall_on_the_way_costs_the_prospect_another_start() -> None:
    walled = station("spot", exponential(1e-12, 4 * H), wall_s=4 * H, save_s=0.0)
    script = Script((kind(10.0, spot=1.0),), (walled,), deadline_s=20 * H)
    stage = _Stage(script, Luck(script, 0, 0), True)
    stage._order = ("spot",)
    (prospect,) = stage._prospects(Job(0, script.jobs[0], script.jobs[0].amount))
    assert prospect.run_s == pytest.approx(10 * H + 2 * 120.0)
