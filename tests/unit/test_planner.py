"""What the planner is told by a dispatcher: deadlines by the store's ages, and prospects by what was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.cli.grounds import Grounds, numbers_of
from tenure.dispatch import decide
from tenure.dispatch.history import read_history
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.planner import GUESSED_SHARE, UNKNOWN_MILESTONE_S
from tenure.dispatch.views import JobView
from tenure.plan.advise import UNKNOWN_SHARE
from tenure.plan.enlist import enlist
from tests.fake_clock import FakeClock
from tests.unit.test_dispatcher import ListingRunner
from tests.unit.test_observations import Pool, Worker

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
