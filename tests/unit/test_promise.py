"""A rehearsal asks what the dispatcher asks: in one situation both see the same prospects, and choose alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.dispatch.contract import ALL_KINDS, Capacity
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.planner import Planner
from tenure.dispatch.quality import Pace
from tenure.dispatch.rows import WorkLeft
from tenure.dispatch.views import BillView, JobView, RungView, Snapshot
from tenure.plan.advise import Advice, Prospect
from tenure.plan.rehearse_play import _Stage
from tenure.plan.rehearse_script import Kind, Script, Station
from tenure.plan.rehearse_world import Job, Luck, Machine, Seat
from tenure.plan.survival import Curve, Life, banded, exponential
from tenure.plan.throughput import known
from tenure_protocol.records import Holder, Witness
from tenure_protocol.records import Launch as Launched
from tests.unit.test_dispatcher import ListingRunner

H = 3600.0
LOAD_S, SAVE_S, DUE_H = 30.0, 10.0, 30.0


@dataclass(frozen=True)
class Case:
    """One job, what is left of it, and the rungs it may go to."""

    stations: tuple[Station, ...]
    speeds: tuple[float, ...]
    left: float
    milestones: int  # that the machine which holds it has written; 0: nobody holds it
    now_s: float
    critical: bool


class Book:
    """What a dispatcher has seen, as far as the planner asks."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def left(self, job: str) -> WorkLeft:
        return WorkLeft("steps", None, self.case.left, 0.5)

    def milestone_work(self, job: str, left: WorkLeft) -> float:
        return KIND_EVERY

    def card_of(self, rung: Rung) -> str:
        return rung.card

    def usual(self, place: tuple[str, str], work: str) -> bool:
        return True  # no card is new, so none is tried

    def longest_silence_s(self, job: str) -> float:
        return SILENCE_S

    def expected(self, left: WorkLeft, rung: Rung) -> tuple[float, float]:
        """Speed in steps, and the share that snapshots leave."""
        n = [each.name for each in self.case.stations].index(rung.name)
        per_s = self.case.speeds[n]
        return per_s, 1.0 / (1.0 + SAVE_S * per_s / KIND_EVERY)


class Seen:
    """How long machines of a rung last."""

    def __init__(self, case: Case) -> None:
        self.curves = {each.name: each.expected for each in case.stations}

    def at(self, now_s: float) -> None:
        pass

    def curve(self, name: str) -> Curve:
        return self.curves[name]


KIND_EVERY = 1800.0
SILENCE_S = 90.0


def by_dispatcher(case: Case) -> tuple[tuple[Prospect, ...], Advice]:
    capacity = Capacity(1, 1, 600.0)
    rungs = {
        each.name: Rung(
            each.name, each.name, ListingRunner(), replace(capacity, launches=each.slots, wall_s=each.wall_s),
            price_class="on_demand" if each.on_demand else "spot", price=Price(each.currency, each.per_h),
        )
        for each in case.stations
    }  # fmt: skip
    views = {
        name: RungView(name, ALL_KINDS, rung.capacity, start_s=120.0)
        for name, rung in rungs.items()
    }
    first = case.stations[0]
    pace, witness, bills = None, None, ()
    if case.milestones:
        holder, launched = Holder(1, "n"), Launched(1, "here", 60.0)
        witness = Witness(
            "j", "held", "w", launch=launched, holder=holder, attempt=1, silence_s=SILENCE_S
        )
        bills = (BillView("j", 1, first.name),)
        paid_s = 120.0 + LOAD_S + case.milestones * (KIND_EVERY / case.speeds[0] + SAVE_S)
        pace = Pace(first.name, "steps", 1.0, 1.0, paid_s, 120.0, 1, case.left)
    view = JobView(
        "j", "e", tuple(rungs), critical=case.critical, since_s=0.0, deadline_s=DUE_H * H, pace=pace,
        witness=witness,
    )  # fmt: skip
    planner = Planner(rungs, Book(case), {}, Seen(case))  # type: ignore[arg-type]
    (advised,) = planner.advised(Snapshot((view,), bills, views), case.now_s).jobs
    assert advised.advice is not None
    return advised.prospects, advised.advice


def by_rehearsal(case: Case) -> tuple[tuple[Prospect, ...], Advice]:
    laws = {
        each.name: known(speed, 0.9) for each, speed in zip(case.stations, case.speeds, strict=True)
    }
    before = case.left + case.milestones * KIND_EVERY
    kind = Kind("k", before, KIND_EVERY, laws)
    script = Script((kind,), case.stations, deadline_s=DUE_H * H)
    stage = _Stage(script, Luck(script, 0, 0), planned=True)
    job = Job(0, kind, before)
    stage.jobs, stage._order = [job], tuple(each.name for each in case.stations)
    stage._critical, stage.now_s = case.critical, case.now_s
    if case.milestones:
        per_s = case.speeds[0]
        rung = stage.rungs[case.stations[0].name]
        shown_s = LOAD_S + case.milestones * (KIND_EVERY / per_s + SAVE_S)
        claimed_s = case.now_s - shown_s - 0.5
        machine = Machine(rung, claimed_s - 120.0, claimed_s, case.now_s + 99 * H, walled=False)
        job.seat = Seat(job, machine, per_s, 0.0, case.now_s + 9 * H)
    return tuple(stage._prospects(job)), stage._advised()["0"]


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    if draw(st.booleans()):
        return exponential(draw(st.floats(0.001, 1.0)) / H)
    old_last = [Life(900.0 + n, True) for n in range(20)] + [
        Life(40 * H + n, True) for n in range(20)
    ]
    return banded(old_last)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    stations, speeds = [], []
    for n in range(draw(st.integers(1, 3))):
        curve = draw(curves())
        price = draw(st.floats(0.1, 5.0))
        currency = draw(st.sampled_from(["usd", "usd", "credits"]))
        stations.append(
            Station(
                f"r{n}", "card", draw(st.integers(1, 3)), (120.0,), curve, curve, currency, price,
                price if currency == "usd" else 0.0, draw(st.booleans()), LOAD_S, SAVE_S,
                silence_s=SILENCE_S,
            )
        )  # fmt: skip
        speeds.append(draw(st.floats(0.3, 3.0)))
    return Case(
        tuple(stations), tuple(speeds), draw(st.floats(600.0, 20 * H)), draw(st.sampled_from([0, 0, 1, 5])),
        draw(st.floats(20.0, 35.0)) * H, draw(st.booleans()),
    )  # fmt: skip


def ranked(advice: Advice, prospects: tuple[Prospect, ...]) -> list[float]:
    usd = {each.rung: each.usd for each in prospects}
    return [usd[name] for name in advice.order]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_rehearsal_and_the_dispatcher_expect_the_same_and_choose_the_same(case: Case) -> None:
    theirs, advice = by_dispatcher(case)
    ours, told = by_rehearsal(case)
    for one, other in zip(theirs, ours, strict=True):
        assert (one.rung, one.sure, one.slots) == (other.rung, other.sure, other.slots)
        for name in ("run_s", "start_s", "usd_per_h", "death_per_h", "milestone_s", "silence_s"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6), name
    if told.order != advice.order:  # only rungs that cost the same may change places
        assert ranked(told, ours) == pytest.approx(ranked(advice, theirs), rel=1e-6)
        return
    assert told.sure == advice.sure and set(told.held) == set(advice.held)
    assert told.latest_s == pytest.approx(advice.latest_s, rel=1e-6)


def test_an_old_machine_is_expected_to_last() -> None:
    """Half of them die young: who holds one that has become old need not fear that any more."""
    curve = banded(
        [Life(900.0 + n, True) for n in range(20)] + [Life(40 * H + n, True) for n in range(20)]
    )
    station = Station("spot", "card", 1, (120.0,), curve, curve, load_s=LOAD_S, save_s=SAVE_S)
    case = Case((station,), (1.0,), 5 * H, 5, 12 * H, False)
    (held,), _ = by_rehearsal(case)
    (fresh,), _ = by_rehearsal(replace(case, milestones=0))
    assert held.death_per_h < 0.5 * fresh.death_per_h
