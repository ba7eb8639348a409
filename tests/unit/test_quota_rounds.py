"""A quota in the rounds of a dispatcher: who waits for it, who is told of its end, who leaves in time."""

from __future__ import annotations

import pytest

from tenure.dispatch.contract import ALL_KINDS, Capacity, Quota
from tenure.dispatch.decide import (
    LAST_CALL_S,
    LEAST_WORK_S,
    JobView,
    RungView,
    Snapshot,
    Wait,
    decide,
)
from tenure.dispatch.ladder import Rung
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.quota import READ_EVERY_S
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.lease.machine import Hold
from tenure_protocol.records import Witness
from tests.fake_clock import FakeClock
from tests.unit.test_packing import MachineRunner, Park

HOUR_S = 3600.0


class GrantedRunner(MachineRunner):
    """Machines of two cards, of an account with hours."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Quota | Exception | None = None

    def quota(self) -> Quota | None:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


class Granted(Park):
    """A park whose machines draw on a quota of 30 hours."""

    def __init__(self, clock: FakeClock, left_h: float, jobs: int = 2, machines: int = 2) -> None:
        self.grant = GrantedRunner()
        super().__init__(jobs=jobs, machines=machines, clock=clock)
        self.runner = self.grant
        self.tell(left_h)
        self.dispatcher = self.another()

    def tell(self, left_h: float, renews_in_s: float | None = None) -> None:
        at_s = None if renews_in_s is None else self.clock.wall_s() + renews_in_s
        self.grant.told = Quota(30.0 - left_h, 30.0, at_s)

    def another(self) -> Dispatcher:
        rung = Rung("pairs", "here", self.grant, self.capacity)
        return Dispatcher(self.store, [rung], self.clock)

    def witness(self, number: int) -> Witness:
        found = read_witness(self.store, keys.witness_of(self.specs[number])).witness
        assert found is not None
        return found

    def go(self, seconds: float = 2.0) -> str:
        """Rounds of a second; the last reason of the first job."""
        until_s = self.clock.monotonic_s() + seconds
        while True:
            tick = self.dispatcher.tick()
            if self.clock.monotonic_s() >= until_s:
                return tick.reason(self.jobs[0])
            self.clock.sleep(1.0)


def test_nothing_is_launched_before_the_first_word_of_a_quota(clock: FakeClock) -> None:
    park = Granted(clock, left_h=20.0)
    assert "was asked for 0 s ago and is not told yet" in park.dispatcher.tick().reason(
        park.jobs[0]
    )
    assert park.runner.machines == []
    park.go()
    assert [len(machine) for machine in park.runner.machines] == [2]


def test_a_launch_that_would_not_come_to_a_milestone_waits_for_the_renewal(
    clock: FakeClock,
) -> None:
    park = Granted(clock, left_h=(LEAST_WORK_S - 60) / HOUR_S)
    words = park.go()
    assert "rung pairs is passed over: its next milestone is 10 min away" in words
    assert "the quota ends in 9 min with 1 machine" in words and park.runner.machines == []
    park.tell(30.0)
    park.go(READ_EVERY_S)
    assert len(park.runner.machines) == 1


def test_a_quota_that_is_a_lie_is_named_and_nothing_launched(clock: FakeClock) -> None:
    park = Granted(clock, left_h=1.0)
    park.grant.told = Quota(-5.0, 30.0)
    park.go()
    trouble = park.dispatcher.tick().troubles["the quota of runner here"]
    assert "-5 of 30 h are said to be used, which cannot be" in trouble
    assert park.runner.machines == []


def test_the_machines_of_one_round_share_what_is_left(clock: FakeClock) -> None:
    park = Granted(clock, left_h=1.5 * LEAST_WORK_S / HOUR_S, jobs=4)
    park.go()
    assert [len(machine) for machine in park.runner.machines] == [2], "not for two machines"


def test_a_launch_is_told_when_its_quota_ends(clock: FakeClock) -> None:
    park = Granted(clock, left_h=2.0)
    park.go()
    (machine,) = park.runner.machines
    assert [job.wall_s for job in machine] == [pytest.approx(2 * HOUR_S, abs=5)] * 2
    later = Granted(clock, left_h=2.0)
    later.tell(2.0, renews_in_s=HOUR_S)
    later.go()
    assert later.runner.machines[0][0].wall_s is None, "it is renewed before it ends"


def test_holders_are_asked_to_yield_before_their_quota_ends(clock: FakeClock) -> None:
    park = Granted(clock, left_h=2.0)
    park.go()
    lease = park.claim(0)
    park.tell((LAST_CALL_S - 30) / HOUR_S)
    for _ in range(4):
        lease.write(Hold(lease.holder, 1, 100.0))
        park.go(READ_EVERY_S / 5)
    assert park.witness(0).asked is None
    lease.write(Hold(lease.holder, 1, 100.0))
    park.go(READ_EVERY_S / 4)
    asked = park.witness(0).asked
    assert asked is not None and asked.what == "yield"


def test_jobs_of_about_equal_work_go_together(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    park = Park(jobs=4, clock=clock)
    works = dict(zip(park.jobs, [9e18, 1e18, 8e18, 2e18], strict=True))
    monkeypatch.setattr(park.dispatcher.observatory, "flops_left", works.get)
    tick = park.dispatcher.tick()
    made = [{job.job_id for job in machine} for machine in park.runner.machines]
    assert made == [{park.jobs[0], park.jobs[2]}, {park.jobs[1], park.jobs[3]}]
    assert "work left per card 8e+18 to 9e+18 FLOPs" in tick.reason(park.jobs[0])


def test_the_first_word_of_a_quota_is_waited_for_and_not_walked_past() -> None:
    """It is a second away, and the next rung of the ladder may be dear."""
    capacity = Capacity(1, 2, 60.0)
    waiting = RungView(
        "free", ALL_KINDS, capacity, awaited="the quota of kaggle was asked for 1 s ago"
    )
    dear = RungView("dear", ALL_KINDS, capacity)
    view = JobView("j", "e", ("free", "dear"), kind="train")
    ((action, reason),) = decide(Snapshot((view,), (), {"free": waiting, "dear": dear}), 100.0)
    assert isinstance(action, Wait)
    assert reason.endswith("rung free: the quota of kaggle was asked for 1 s ago")
