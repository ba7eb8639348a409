"""Several dispatchers on one store in virtual time: nothing is launched twice, whatever befalls them.

The world and its rules are those of ``bench/dispatchers.py``, which plays 10,000 ticks over 1,000 jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.instruments.rivals import RUNGS, Broken, Story, Weather, World
from tenure.dispatch import billing, loop
from tenure.dispatch.contract import Closed, Pending
from tenure.dispatch.decide import BillView
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.world import World as Seen
from tenure_protocol.lease import client
from tenure_protocol.lease.client import Stored
from tenure_protocol.records import Witness
from tenure_protocol.store.api import Found, Outcome, Store, StoreSilent
from tests.fake_clock import FakeClock

Patch = pytest.MonkeyPatch
#: Each call may be the last one of its dispatcher, or last longer than a lease.
HOSTILE = replace(Weather(), freeze=1 / 200, kill=1 / 150, silent=1 / 100)


def history(
    seed: int,
    jobs: int = 60,
    slots: int = 8,
    ticks: int = 150,
    dispatchers: int = 2,
    weather: Weather | None = None,
) -> Story:
    """A history of so many ticks of each dispatcher. Raises AssertionError where a rule is broken."""
    with FakeClock() as clock:
        return World(seed, jobs, slots, clock, weather, dispatchers).play(ticks)


def test_two_dispatchers_launch_nothing_twice_in_300_ticks() -> None:
    story = history(1)
    assert story.ticks == 300
    assert story.launches > 4 * story.slots and story.races > 0, "they did compete"
    phases = story.phases
    assert min(phases["released"], phases["finished"], phases["expected"], phases["held"]) > 0
    assert set(story.ends) <= {"finished", "cancelled"} and sum(story.ends.values()) == 60
    assert all(story.most[rung] <= 2 * story.slots for rung in RUNGS)


@pytest.mark.parametrize("seed", range(2, 5))
def test_three_dispatchers_of_which_one_dies_or_freezes_all_the_time(seed: int) -> None:
    story = history(seed, jobs=24, slots=4, ticks=50, dispatchers=3, weather=HOSTILE)
    assert story.kills > 3
    assert sum(story.ends.values()) == 24
    assert all(story.most[rung] <= 3 * story.slots for rung in RUNGS)


def test_the_same_seed_is_the_same_history() -> None:
    assert history(5, jobs=12, slots=3, ticks=20) == history(5, jobs=12, slots=3, ticks=20)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_histories_of_two_and_three(seed: int) -> None:
    hostile = HOSTILE if seed % 2 else None
    history(seed, jobs=60, slots=8, ticks=150, dispatchers=2 + seed % 3 // 2, weather=hostile)


# ------------------------------------------------------------------------------------- mutants


def a_reservation_without_its_condition(patch: Patch) -> None:
    """Whatever stands there is written over."""
    real = client._send

    def send(store: Store, key: str, witness: Witness, etag: str) -> Outcome:
        try:
            found = store.read(key) if witness.phase == "expected" else None
        except StoreSilent:  # which no write raises
            found = None
        return real(store, key, witness, found.etag if isinstance(found, Found) else etag)

    patch.setattr(client, "_send", send)


def an_intent_that_is_not_create_only(patch: Patch) -> None:
    """One that is there already counts as written."""
    real = loop.create_once

    def create(store: Store, key: str, *rest: Any) -> bool:
        return real(store, key, *rest) or key.endswith("/intent.json")

    patch.setattr(loop, "create_once", create)


def a_decision_that_holds_for_any_body(patch: Patch) -> None:
    """What was decided about one body is written over the next one."""

    def reread(self: Dispatcher, memory: Any) -> Stored | None:
        return self.world.read(memory)

    patch.setattr(Dispatcher, "_reread", reread)


def bills_of_others_take_no_slots(patch: Patch) -> None:
    real = Seen.bill_views

    def views(self: Seen) -> tuple[BillView, ...]:
        return tuple(v for v in real(self) if (b := self.bills.get((v.job, v.launch))) and b.mine)  # type: ignore[attr-defined]

    def keep(self: Dispatcher, bill: Any, *rest: Any) -> None:
        bill.mine = True
        real_keep(self, bill, *rest)

    real_keep = Dispatcher._keep_receipt
    patch.setattr("tenure.dispatch.world.Bill.mine", False, raising=False)
    patch.setattr(Dispatcher, "_keep_receipt", keep)
    patch.setattr(Seen, "bill_views", views)


def a_launch_without_a_receipt_is_not_looked_for(patch: Patch) -> None:
    real = billing.Billing._settle

    def settle(self: billing.Billing, bill: Any, aboard: Any) -> Any:
        if bill.intent and not any(each.receipt for each in aboard):
            return Closed("nothing is known of it")
        return real(self, bill, aboard)

    patch.setattr(billing.Billing, "_settle", settle)


def a_bill_is_opened_after_the_launch_alone(patch: Patch) -> None:
    """Whoever dies between the launch and its receipt leaves a machine that nobody finds."""
    real = loop.create_once

    def create(store: Store, key: str, *rest: Any) -> bool:
        if key.startswith("unsettled/") and not isinstance(_of(store, key, "receipt"), Found):
            return True
        return real(store, key, *rest)

    patch.setattr(loop, "create_once", create)


def _of(store: Store, unsettled: str, what: str) -> object:
    job, _, number = unsettled.removeprefix("unsettled/").rpartition("-")
    return store.read(f"jobs/{job}/launches/{number}/{what}.json")


def a_bill_is_forgotten_before_its_cost_is_noted(patch: Patch) -> None:
    """Whoever dies between the two leaves a launch that cost something and has no entry."""
    record, note = billing.Billing._record, billing.Billing._note_cost

    def late(self: billing.Billing, bill: Any, settlement: Any, reason: str) -> None:
        record(self, bill, settlement, reason)
        if not isinstance(settlement, Pending):
            note(self, bill, settlement)

    patch.setattr(billing.Billing, "_note_cost", lambda self, bill, settlement: None)
    patch.setattr(billing.Billing, "_record", late)


#: What the referee says, and a seed that finds it. Where the code has changed since, the search finds another.
MUTANTS: Mapping[Callable[[Patch], None], tuple[str, int]] = {
    a_reservation_without_its_condition: ("reserved twice|passes over|reserved by|goes from", 1),
    an_intent_that_is_not_create_only: ("whose intent is of", 2),
    a_decision_that_holds_for_any_body: ("passes over|goes from|reserved", 17),
    bills_of_others_take_no_slots: ("takes slot", 1),
    a_launch_without_a_receipt_is_not_looked_for: ("without a bill|without their cost", 6),
    a_bill_is_opened_after_the_launch_alone: ("without a bill|without their cost", 1),
    a_bill_is_forgotten_before_its_cost_is_noted: ("without their cost", 1),
}
SEARCHED = 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_history_notices_the_missing_guard(
    mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    words, found_by = MUTANTS[mutant]
    for seed in (found_by, *range(SEARCHED)):
        try:
            history(seed, jobs=24, slots=4, ticks=50, weather=HOSTILE)
        except (AssertionError, Broken) as error:
            assert re.search(words, str(error)), error
            return
    raise AssertionError(f"{SEARCHED} histories do not miss the guard")
