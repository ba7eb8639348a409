"""What the planner is told by a dispatcher: deadlines by the store's ages, and prospects by what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tenure.cli.grounds import Grounds, cards_line, numbers_of
from tenure.dispatch import decide
from tenure.dispatch.history import read_history
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.planner import GUESSED_SHARE, UNKNOWN_MILESTONE_S, _on
from tenure.dispatch.views import JobView
from tenure.plan.advise import UNKNOWN_SHARE, Advice, Outlook
from tenure.plan.enlist import enlist
from tenure.plan.throughput import PRIOR_SHARE
from tenure_protocol import peaks
from tenure_protocol.lease.client import Confirmed
from tenure_protocol.lease.machine import Hold
from tenure_protocol.records import Lifetime
from tests.fake_clock import FakeClock
from tests.unit.test_dispatcher import ListingRunner
from tests.unit.test_observations import FLOPS, SILENCE_S, Pool, Worker

H = 3600.0


class Shop(Pool):
    """The pool of two rungs, with a deadline: spot is cheap, and demand is sure."""

    def __init__(self, clock: FakeClock, deadline_h: object = 40.0, count: int = 2) -> None:
        super().__init__(clock, count)
        terms: dict[str, object] = {
            "rungs": ["demand", "spot", "credits"],
            "deadline_h": deadline_h,
        }
        enlist(self.store, "p", "e", self.specs, terms, clock)
        self.dispatcher = self.shop()

    def shop(self, *, plans: bool = True, rates: dict[str, float] | None = None) -> Dispatcher:
        capacity = replace(ListingRunner.capacity({}), launches=3)
        rungs = [
            Rung("demand", "dear", ListingRunner(), capacity, "nvidia-h100", price=Price("usd", 9.0)),
            Rung("spot", "spotty", ListingRunner(), capacity, "tesla-t4", "spot", Price("usd", 0.3)),
            Rung("credits", "studio", ListingRunner(), capacity, "nvidia-l4", price=Price("credits", 1.0)),
        ]  # fmt: skip
        return Dispatcher(self.store, rungs, self.clock, plans=plans, rates=rates)

    def view(self, number: int = 0) -> JobView:
        return self.dispatcher.snapshot().view_of[self.specs[number].id]


def trained(shop: Shop) -> Worker:
    """One job has done 100 of 40,000 steps of two seconds on spot."""
    shop.tick()
    shop.tick(50.0)
    worker = Worker(shop, shop.specs[0])
    shop.tick()
    worker.train(100, 2.0, total=40_000)
    shop.tick()
    return worker


def test_a_deadline_counts_from_the_first_record_that_names_the_job(clock: FakeClock) -> None:
    shop = Shop(clock)
    born_s = clock.monotonic_s()
    clock.sleep(5 * H)
    later = {"rungs": ["demand", "spot", "credits"], "deadline_h": 30.0}
    enlist(shop.store, "p", "e", shop.specs, later, clock)
    clock.sleep(1 * H)
    shop.dispatcher = shop.shop()  # a restart learns it from the store
    shop.tick()
    assert shop.view().deadline_s == pytest.approx(born_s + 30 * H)
    assert shop.view().since_s == pytest.approx(born_s)


@pytest.mark.parametrize("told", [None, True, "8", 0, -1.0])
def test_what_is_no_deadline_is_none(clock: FakeClock, told: object) -> None:
    shop = Shop(clock, told)
    shop.tick()
    assert shop.view().deadline_s is None and shop.view().advice is None


def test_without_the_planner_the_users_order_holds(clock: FakeClock) -> None:
    shop = Shop(clock)
    shop.dispatcher = shop.shop(plans=False)
    action, _ = shop.decided(shop.tick())
    assert isinstance(action, decide.Launch) and action.rung == "demand"
    assert shop.view().advice is None and shop.view().deadline_s is not None


def test_of_a_job_that_nobody_knows_the_peaks_and_prices_tell(clock: FakeClock) -> None:
    shop = Shop(clock)
    action, reason = shop.decided(shop.tick())
    assert isinstance(action, decide.Launch) and action.rung == "credits", (
        "free as long as it lasts"
    )
    assert "due in 40.0 h" in reason
    view = shop.view(1)
    by_name = {each.rung: each for each in view.prospects}
    assert by_name["demand"].run_s < by_name["credits"].run_s < by_name["spot"].run_s
    assert by_name["credits"].run_s == pytest.approx(GUESSED_SHARE * 40 * H)
    assert view.advice and set(view.advice.held) == {"demand", "spot"}
    until_s = view.since_s + UNKNOWN_SHARE * 40 * H
    assert list(view.advice.held.values()) == pytest.approx([until_s, until_s])


def test_what_one_job_showed_is_expected_of_its_like(clock: FakeClock) -> None:
    shop = Shop(clock)
    shop.dispatcher = shop.shop(rates={"credits": 2.0})
    trained(shop)
    mine, other = shop.view(0), shop.view(1)
    assert mine.pace and mine.pace.rung == "spot"
    here = next(each for each in mine.prospects if each.rung == "spot")
    assert here.run_s == pytest.approx(39_900 * 2.0, rel=0.01) and not here.sure
    there = {each.rung: each for each in other.prospects}
    assert there["spot"].run_s == pytest.approx(40_000 * 2.0, rel=0.01)
    ratio = there["spot"].run_s / there["demand"].run_s
    assert 10 < ratio < 20, "the peaks of a T4 and of an H100 in fp16"
    assert there["credits"].usd_per_h == 2.0 and not there["credits"].sure
    assert there["demand"].sure and there["demand"].usd_per_h == 9.0


def test_a_rung_that_takes_no_such_job_is_no_prospect(clock: FakeClock) -> None:
    shop = Shop(clock)
    shop.tick()
    shop.dispatcher.world.jobs[shop.specs[1].id].excluded["spot"] = "out of memory there"
    assert [each.rung for each in shop.view(1).prospects] == ["demand", "credits"]


def test_why_has_the_planners_numbers(clock: FakeClock) -> None:
    shop = Shop(clock)
    trained(shop)
    view = shop.view(1)
    grounds = Grounds(read_history(shop.store, view.job), "spot")
    numbers = numbers_of(shop.dispatcher, view, grounds, clock)
    told = numbers["deadline"]
    assert isinstance(told, dict) and told["sure_rung"] == "demand"
    assert told["due_s"] == pytest.approx(40 * H, rel=0.01)
    assert 0 < told["latest_start_s"] < told["due_s"] and "late_s" not in told
    rows = told["rungs"]
    assert set(rows) == {"demand", "spot", "credits"}
    assert rows["demand"]["held_s"] > 0 and "held_s" not in rows["credits"]
    clock.sleep(41 * H)
    shop.tick()
    late = numbers_of(shop.dispatcher, shop.view(1), grounds, clock)["deadline"]
    assert isinstance(late, dict) and late["due_s"] < 0 < late["late_s"]


def test_what_a_lost_machine_undoes_is_counted_by_the_milestones_of_such_work(
    clock: FakeClock,
) -> None:
    shop = Shop(clock)
    shop.tick()
    assert {each.milestone_s for each in shop.view().prospects} == {UNKNOWN_MILESTONE_S}
    shop = Shop(clock)
    trained(shop)
    for number in (0, 1):  # of its like too
        spot = next(each for each in shop.view(number).prospects if each.rung == "spot")
        assert spot.milestone_s == pytest.approx(100 * 2.0, rel=0.01), "100 steps of two seconds"
        fast = next(each for each in shop.view(number).prospects if each.rung == "demand")
        ratio = fast.run_s / spot.run_s
        assert fast.milestone_s == pytest.approx(spot.milestone_s * ratio)


def test_how_long_a_loss_goes_unnoticed(clock: FakeClock) -> None:
    """Of a holder its lease, elsewhere the first lease of a launch, and never longer than a job allows."""
    shop = Shop(clock)
    shop.dispatcher = shop.shop(rates={"credits": 20.0})
    worker = trained(shop)
    hold = Hold(worker.lease.holder, 1, 500.0)
    assert isinstance(worker.lease.write(hold), Confirmed)
    shop.dispatcher = shop.shop()
    shop.tick()
    window_s = shop.dispatcher.rungs["spot"].capacity.window_s
    silences = {each.rung: each.silence_s for each in shop.view().prospects}
    assert silences == {"spot": 500.0, "demand": window_s, "credits": window_s}
    for memory in shop.dispatcher.world.jobs.values():
        assert memory.spec is not None
        memory.spec = replace(memory.spec, max_silence_s=7.0)
    assert {each.silence_s for each in shop.view(1).prospects} == {7.0}


def test_the_planner_is_told_where_a_job_is(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is launched there, and while it is held; not once it waits again."""
    asked: dict[str, str] = {}

    def noting(jobs: Iterable[Outlook], now_s: float) -> dict[str, Advice]:
        asked.update({each.job: each.on for each in jobs})
        return {}

    monkeypatch.setattr("tenure.dispatch.planner.advise", noting)
    shop = Shop(clock)  # without advice the user's order holds
    job = shop.specs[0].id
    shop.tick()
    assert asked[job] == ""
    shop.tick(50.0)
    assert asked[job] == "demand"
    worker = Worker(shop, shop.specs[0])
    shop.tick()
    assert asked[job] == "demand"
    worker.release()
    shop.tick()
    assert asked[job] == ""


def test_a_rung_with_too_few_cards_or_too_short_a_wall_is_no_prospect(clock: FakeClock) -> None:
    shop = Shop(clock)
    world = shop.dispatcher.world
    shop.tick()
    for memory in world.jobs.values():
        assert memory.spec is not None
        memory.spec = replace(memory.spec, cards=4)
        memory.over = None
    assert shop.view(1).prospects == () and shop.view(1).advice is None
    shop = Shop(clock)
    shop.dispatcher = shop.shop(rates={"credits": 2.0})
    trained(shop)
    rung = shop.dispatcher.rungs["spot"]
    short = replace(rung, capacity=replace(rung.capacity, wall_s=10.0))
    shop.dispatcher.rungs["spot"] = short  # type: ignore[index]
    assert "spot" not in {each.rung for each in shop.view(1).prospects}, "it takes 50 s to start"


def test_a_spent_budget_takes_its_rungs_out(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(clock)
    shop.tick()
    monkeypatch.setattr(shop.dispatcher.spending, "spent", lambda: {("p", "usd"): "it is spent"})
    assert [each.rung for each in shop.view(1).prospects] == ["credits"]


def test_a_card_without_a_peak_is_foreseen_in_the_middle(clock: FakeClock) -> None:
    """It is held like any dear rung, and not launched at once because nobody knows it."""
    shop = Shop(clock)
    rung = shop.dispatcher.rungs["demand"]
    shop.dispatcher.rungs["demand"] = replace(rung, card="acme-9000")  # type: ignore[index]
    trained(shop)
    view = shop.view(1)
    times = {each.rung: each.run_s for each in view.prospects}
    assert times["demand"] == pytest.approx((times["spot"] + times["credits"]) / 2)
    assert view.advice and "demand" in view.advice.held


def test_a_new_dispatcher_knows_how_long_jobs_are(clock: FakeClock) -> None:
    """Of a job that waits with a milestone, and of its like: from the manifest under the witness."""
    shop = Shop(clock)
    trained(shop).release()
    shop.tick()
    told = [shop.dispatcher.observatory.left(spec.id) for spec in shop.specs]
    shop.dispatcher = shop.shop()
    shop.dispatcher.look()
    again = [shop.dispatcher.observatory.left(spec.id) for spec in shop.specs]
    assert again == told and told[0] and told[1] and told[0].amount < told[1].amount


def test_work_that_nobody_has_seen_is_as_long_as_its_flops_say(clock: FakeClock) -> None:
    """What was observed is lost, and a milestone is left: no guess by the deadline, but a cold start."""
    shop = Shop(clock)
    trained(shop).release()
    shop.tick()
    shop.dispatcher = shop.shop()
    shop.dispatcher.look()
    assert shop.dispatcher.observatory.usual(("spotty", "Tesla T4"), "FLOPs of fp16") is None
    by_name = {each.rung: each for each in shop.view(1).prospects}
    for name, card in (("spot", "tesla-t4"), ("demand", "nvidia-h100"), ("credits", "nvidia-l4")):
        peak = peaks.known_peak(card, "fp16")
        assert peak is not None
        run_s = 40_000 * FLOPS / (PRIOR_SHARE * peak.flops_per_s)
        assert by_name[name].run_s == pytest.approx(run_s, rel=0.01)


def test_how_long_a_holder_has_had_its_job(clock: FakeClock) -> None:
    """By the claim that was seen, else by the launch, which may have claimed as late as its window ended."""
    shop = Shop(clock)
    shop.tick()
    shop.tick(50.0)
    worker = Worker(shop, shop.specs[0])
    shop.tick(10.0)
    clock.sleep(7_000.0)
    assert isinstance(worker.lease.write(Hold(worker.lease.holder, 1, SILENCE_S)), Confirmed)
    shop.tick()
    assert shop.view().held_for_s == pytest.approx(7_000.0, abs=1.0)
    w = shop.dispatcher.world.jobs[shop.specs[0].id].witness
    assert w and w.launch
    shop.dispatcher = shop.shop()
    shop.tick()
    assert shop.view().held_for_s == pytest.approx(7_060.0 - w.launch.window_s, abs=1.0)
    assert shop.view(1).held_for_s == 0.0, "nobody holds it"


def test_a_holder_that_claimed_late_has_not_had_its_job_since_its_launch(clock: FakeClock) -> None:
    shop = Shop(clock)
    shop.tick()
    clock.sleep(5_000.0)  # nobody looked, so nobody judged its window
    Worker(shop, shop.specs[0])
    shop.tick()
    assert shop.view().held_for_s == pytest.approx(0.0, abs=1.0)


def test_one_lie_moves_nobody_elses_last_moment(clock: FakeClock) -> None:
    """Of three jobs of a configuration the middle total counts; a total below what was done is none."""
    shop = Shop(clock, count=4)
    shop.tick()
    shop.tick(50.0)
    workers = [Worker(shop, spec) for spec in shop.specs[:3]]
    shop.tick()
    for worker, total in zip(workers, (40_000, 41_000, 1_000_000), strict=True):
        worker.train(100, 2.0, total=total)
    shop.tick()
    left = shop.dispatcher.observatory.left(shop.specs[3].id)
    assert left is not None and left.amount / left.per_step == 41_000
    workers[1].train(100, 2.0, total=150)
    shop.tick(120.0)
    left = shop.dispatcher.observatory.left(shop.specs[1].id)
    assert left is not None and left.amount / left.per_step == 40_900, "as it said before"


@pytest.mark.parametrize("hours", [10**400, 1e308, 1e6])
def test_a_deadline_beyond_ten_years_is_none(clock: FakeClock, hours: object) -> None:
    shop = Shop(clock, hours)
    shop.tick()
    assert shop.view().deadline_s is None


@pytest.mark.parametrize("wall_s", [0.0, -1.0, 1e-300])
def test_a_wall_that_cannot_be_ends_no_round(clock: FakeClock, wall_s: float) -> None:
    shop = Shop(clock)
    rung = shop.dispatcher.rungs["spot"]
    odd = replace(rung, capacity=replace(rung.capacity, wall_s=wall_s))
    shop.dispatcher.rungs["spot"] = odd  # type: ignore[index]
    trained_elsewhere = shop.tick()
    assert "the planner" not in trained_elsewhere.troubles


def test_numbers_that_no_machine_can_have_end_no_round(clock: FakeClock) -> None:
    shop = Shop(clock)
    worker = trained(shop)
    worker.train(100, 2.0, flops=5e-324, total=40_000)
    shop.tick(120.0)
    book = shop.dispatcher.observatory.lifetimes
    for number in range(2):
        book.put(("spotty", "Tesla T4"), Lifetime(f"x{number}", 1, "spot", "lost", held_s=1e308))
    clock.sleep(700.0)
    tick = shop.tick()
    assert "the planner" not in tick.troubles and shop.view(1).advice is not None


def test_a_planner_that_fails_leaves_the_users_order_and_says_so(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("tenure.dispatch.planner.advise", broken)
    shop = Shop(clock)
    tick = shop.tick()
    action, _ = shop.decided(tick)
    assert isinstance(action, decide.Launch) and action.rung == "demand"
    assert tick.troubles["the planner"] == (
        "it failed, and the order of the plan holds: ZeroDivisionError: float division by zero"
    )


# --------------------------------------------------------------------------- what is tried


class Fair(Shop):
    """Three rungs of one price class: such work was seen on the first of them."""

    def shop(self, *, plans: bool = True, rates: dict[str, float] | None = None) -> Dispatcher:
        capacity = replace(ListingRunner.capacity({}), launches=4)
        rungs = [
            Rung("seen", "one", ListingRunner(), capacity, "tesla-t4", price=Price("usd", 0.35)),
            Rung(
                "new", "two", ListingRunner(), capacity, "nvidia-l4", price=Price("usd", self.new)
            ),
        ]
        return Dispatcher(self.store, rungs, self.clock, plans=plans, rates=rates)

    new = 0.9

    def fair(self, new: float, count: int = 6) -> Fair:
        """Again, with the terms of these rungs, and one job a tenth done on the first one."""
        self.new = new
        terms: dict[str, object] = {"rungs": ["seen", "new"], "deadline_h": 200.0}
        enlist(self.store, "p", "e", self.specs, terms, self.clock)
        self.dispatcher = self.shop()
        self.dispatcher.world.observe()
        for memory in list(self.dispatcher.world.jobs.values())[1:]:
            memory.not_before_s = self.clock.monotonic_s() + 2_000.0  # they come later
        trained(self)
        return self

    def advices(self) -> list[Advice]:
        views = [self.view(number) for number in range(1, len(self.specs))]
        return [view.advice for view in views if view.advice is not None]


def test_a_rung_that_nobody_knows_is_probed_by_one_job_where_that_is_worth_its_price(
    clock: FakeClock,
) -> None:
    shop = Fair(clock, 200.0, 6).fair(new=1.25)
    first, *others = shop.advices()
    assert first.order[0] == "new" and "new" not in first.held
    assert "it probes rung new: what is left costs" in first.reason
    assert "worth its" in first.reason
    assert {each.order[0] for each in others} == {"seen"}
    dear = Fair(clock, 200.0, 6).fair(new=40.0)
    assert {each.order[0] for each in dear.advices()} == {"seen"}, "its answer is worth nothing"


def test_nobody_probes_where_one_is_already(clock: FakeClock) -> None:
    shop = Fair(clock, 200.0, 6).fair(new=1.25)
    clock.sleep(2_001.0)
    shop.tick()
    on = {view.job: _on(view, seen) for seen in [shop.dispatcher.snapshot()] for view in seen.jobs}
    assert sorted(on.values()).count("new") == 1
    assert "seen" in {each.order[0] for each in shop.advices()}


def test_a_probe_that_would_come_too_late_is_none(clock: FakeClock) -> None:
    shop = Fair(clock, 200.0, 6).fair(new=1.25)
    tries = shop.dispatcher._sight._planner._tries
    view = shop.view(1)
    assert view.advice is not None
    left = shop.dispatcher.observatory.left(view.job)
    assert left is not None
    here = next(each for each in view.prospects if each.rung == "new")
    most_s = view.advice.latest_s - here.start_s - here.milestone_s - here.reserve_s
    plain = replace(view, advice=replace(view.advice, order=("seen", "new")))
    for now_s, probed in ((most_s - 1.0, True), (most_s + 1.0, False)):
        found = tries.advised([plain], {view.job: left}, {view.job: ""}, now_s)
        assert (view.job in found) is probed
    critical = replace(plain, critical=True)
    assert tries.advised([critical], {view.job: left}, {view.job: ""}, most_s - 1.0) == {}
    other = replace(plain, job="other")
    on = {view.job: "", "other": "new"}
    lefts = {view.job: left, "other": left}
    assert tries.advised([plain, other], lefts, on, most_s - 1.0) == {}, "one is there already"


def test_among_like_rungs_each_job_has_a_draw_of_its_own_until_all_are_known(
    clock: FakeClock,
) -> None:
    """As cheap as the one that is known, as far as its peak says: some go there, the same ones each time."""
    shop = Fair(clock, 200.0, 40).fair(new=0.66)
    before = [each.order for each in shop.advices()]
    tried = [each for each in shop.advices() if "it is tried" in each.reason]
    assert before == [each.order for each in shop.advices()], "a draw is by the job's id"
    firsts = [order[0] for order in before]
    assert 3 <= firsts.count("new") <= 36 and firsts.count("seen") >= 3 and tried
    tries, views = shop.dispatcher._sight._planner._tries, [shop.view(n) for n in range(1, 40)]
    drawn = [tries._draw(view, {"seen"}, {"seen": [], "new": []}) for view in views]
    assert {each.order[0] for each in drawn if each} == {"seen", "new"}
    assert not any(tries._draw(view, {"seen", "new"}, {"seen": [], "new": []}) for view in views)
    rung = shop.dispatcher.rungs["new"]
    shop.dispatcher.rungs["new"] = replace(rung, price_class="spot")  # type: ignore[index]
    assert not any(tries._draw(view, {"seen"}, {"seen": [], "new": []}) for view in views)


def test_why_tells_how_many_cards_would_pay_for_a_job_that_runs_on_several(
    clock: FakeClock,
) -> None:
    shop = Shop(clock)
    trained(shop)
    assert cards_line(shop.dispatcher, shop.view(), "spot", clock) == "", "one that runs on one"
    for name, rung in list(shop.dispatcher.rungs.items()):
        wider = replace(rung, capacity=replace(rung.capacity, cards=4))
        shop.dispatcher.rungs[name] = wider  # type: ignore[index]
    assert cards_line(shop.dispatcher, shop.view(), "spot", clock) == "", "whatever the machine has"
    two = replace(shop.view(), cards=2)
    pressed = replace(two, deadline_s=clock.monotonic_s() + 15 * H)  # it needs 22 h on two
    told = cards_line(shop.dispatcher, pressed, "spot", clock)
    assert "cards: 2 cards take 22.2 h" in told and "breaks a limit that 4 cards take" in told, told
    assert told.endswith("`cards: 4` in its plan is for jobs that are enlisted later")
    calm = cards_line(shop.dispatcher, two, "spot", clock)
    assert (calm.startswith("cards: 2 cards take") and "plan" not in calm) or "J falls" in calm
    assert cards_line(shop.dispatcher, replace(two, pace=None), "spot", clock) == ""
    assert cards_line(shop.dispatcher, two, "gone", clock) == ""
