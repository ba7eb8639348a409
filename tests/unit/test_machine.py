"""The table of transitions: every row, every guard, every history; vacancy and the watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenure_protocol.lease import machine
from tenure_protocol.lease.machine import (
    SLACK_S,
    TABLE,
    Ask,
    Cancel,
    Claim,
    Event,
    Finish,
    Hold,
    Move,
    Occupied,
    Refused,
    Release,
    Reserve,
    Resume,
    Revoke,
    Rewind,
    Row,
    Vacant,
    Watched,
    transition,
    vacancy,
)
from tenure_protocol.lease.watch import Watch
from tenure_protocol.records import (
    FINAL,
    Announced,
    Asked,
    Holder,
    Launch,
    Phase,
    Pointer,
    Witness,
)
from tenure_protocol.store.api import Entry
from tests.fake_clock import FakeClock

ME = Holder(3, "me")
POINTER = Pointer(1, 40, 2, 2, "ab" * 32)
NEXT = Pointer(2, 50, 1, 3, "cd" * 32)
LAUNCH = Launch(3, "here", 60.0)


def witness(phase: Phase, **changes: object) -> Witness:
    """A job at its second attempt and third launch, with a pointer of the first attempt."""
    start = Witness(
        "j",
        phase,
        "w",
        seq=9,
        launch=LAUNCH,
        barrier=1,
        attempt=2,
        holder=ME if phase == "held" else None,
        silence_s=30.0,
        pointer=POINTER,
    )
    return replace(start, **changes)  # type: ignore[arg-type]


HOLD = Hold(ME, 2, 12.0)
MOVE = replace(HOLD, move=Move(NEXT, POINTER))
EVENTS: dict[type[Event], Event] = {
    Reserve: Reserve("there", 90.0, "d2", "vacant"),
    Claim: Claim(3, "new", 60.0, vacant=True),
    Hold: HOLD,
    Release: Release(ME, 2, 10, "SIGTERM"),
    Finish: Finish(ME, 2, 0, "finished", {"x": 1}),
    Ask: Ask("yield", 30.0, "d1"),
    Revoke: Revoke("ops", "poison"),
    Resume: Resume("ops"),
    Rewind: Rewind("ops", None),
    Cancel: Cancel("ops", "no rung"),
}
PHASES = (machine.ABSENT, *get_args(Phase))


def from_phase(phase: str, event: type[Event]) -> Witness | None:
    if phase == machine.ABSENT:
        return None
    return witness(phase, held_back=event is Resume)  # type: ignore[arg-type]


def applied(now: Witness | None, event: Event) -> Witness:
    new = transition("j", now, event)
    assert isinstance(new, Witness), new
    return new


def refused(now: Witness | None, event: Event) -> str:
    new = transition("j", now, event)
    assert isinstance(new, Refused), new
    return new.reason


# ------------------------------------------------------------------------------------ rows


def test_every_event_has_one_row() -> None:
    assert [row.event for row in TABLE] == list(get_args(Event))
    assert set(EVENTS) == set(get_args(Event))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.event.__name__)
@pytest.mark.parametrize("phase", PHASES)
def test_a_row_leads_from_its_sources_and_from_nowhere_else(row: Row, phase: str) -> None:
    event = EVENTS[row.event]
    now = from_phase(phase, row.event)
    if phase == machine.ABSENT and row.event is Claim:
        event = replace(event, launch=0)  # type: ignore[type-var]  # local mode
    new = transition("j", now, event)
    if phase not in row.sources:
        assert isinstance(new, Refused) and phase in new.reason
        return
    assert isinstance(new, Witness), new
    assert new.phase == (phase if row.target == "same" else row.target)
    assert new.seq == (now.seq if now else 0) + 1
    assert new.write_id == "" and new.job == "j"


@pytest.mark.parametrize("phase", sorted(FINAL))
@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda e: type(e).__name__)
def test_nothing_leads_from_a_final_phase(phase: str, event: Event) -> None:
    assert "it is over" in refused(witness(phase, held_back=True), event)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.event.__name__)
def test_what_a_row_does_not_name_is_carried_on(row: Row) -> None:
    """Launch, barrier, attempt, asked and pointer; and who held it is gone with the hold."""
    names = {
        Reserve: {"launch"},
        Claim: {"attempt", "asked"},
        Hold: {"pointer"},
        Ask: {"asked"},
        Revoke: {"barrier"},
        Rewind: {"pointer"},
    }.get(row.event, set())
    asked = None if row.event is Ask else Asked("yield", 5.0, "d9")
    for phase in row.sources - {machine.ABSENT}:
        now = witness(phase, asked=asked, held_back=row.event is Resume)  # type: ignore[arg-type]
        event = MOVE if row.event is Hold else EVENTS[row.event]
        new = applied(now, event)
        for field in {"launch", "barrier", "attempt", "asked", "pointer"} - names:
            assert getattr(new, field) == getattr(now, field), field
        for field in names:
            assert getattr(new, field) != getattr(now, field), field


def test_reserve_announces_the_next_launch() -> None:
    new = applied(witness("released", exit_code=10, reason="SIGTERM"), EVENTS[Reserve])
    assert new.launch == Launch(4, "there", 90.0) and new.by == "d2"
    assert new.exit_code is None and new.reason is None and new.holder is None
    assert applied(None, Reserve("here", 60.0, "d")).launched == 1


def test_claim_takes_the_next_attempt_and_asks_nothing() -> None:
    now = witness("released", asked=Asked("yield", 5.0, "d"), exit_code=10, reason="x")
    new = applied(now, Claim(3, "new", 60.0))
    assert new.holder == Holder(3, "new") and new.attempt == 3 and new.silence_s == 60.0
    assert new.asked is None and new.exit_code is None and new.reason is None
    local = applied(None, Claim(0, "n", 60.0))
    assert local.holder == Holder(0, "n") and local.attempt == 1 and local.launch is None


def test_hold_renews_moves_and_announces() -> None:
    now = witness("held", announced=Announced("evaluating", 90.0))
    assert applied(now, HOLD).announced is None
    assert applied(now, HOLD).silence_s == 12.0
    assert applied(now, replace(HOLD, announced=Announced("a", 5.0))).announced == Announced(
        "a", 5.0
    )
    assert applied(now, MOVE).pointer == NEXT


@pytest.mark.parametrize(("asked", "held_back"), [(None, False), ("yield", False), ("pause", True)])
def test_release_after_a_pause_is_held_back(asked: str | None, held_back: bool) -> None:
    now = witness("held", asked=Asked(asked, 5.0, "ops") if asked else None)  # type: ignore[arg-type]
    new = applied(now, EVENTS[Release])
    assert new.held_back is held_back
    assert (new.exit_code, new.reason, new.holder, new.announced) == (10, "SIGTERM", None, None)


def test_finish_keeps_the_result() -> None:
    new = applied(witness("held"), EVENTS[Finish])
    assert (new.result, new.exit_code, new.pointer) == ({"x": 1}, 0, POINTER)


def test_revoke_bars_every_launch_so_far() -> None:
    new = applied(witness("held"), Revoke("ops", "poison", held_back=True))
    assert (new.barrier, new.held_back, new.by, new.holder) == (3, True, "ops", None)
    assert applied(None, Revoke("ops", "never")).barrier == 0


def test_resume_and_rewind() -> None:
    assert not applied(witness("revoked", held_back=True), Resume("ops")).held_back
    older = replace(POINTER, ordinal=1)
    assert applied(witness("revoked"), Rewind("ops", older)).pointer == older
    assert applied(witness("revoked"), Rewind("ops", None)).pointer is None


# ---------------------------------------------------------------------------------- guards
# One case per guard and reason: refused with the guard, let through once it is removed.

GUARDED: list[tuple[str, Witness | None, Event]] = [
    ("_not_held_back", witness("released", held_back=True), Reserve("here", 9.0, "d")),
    ("_not_held_back", witness("revoked", held_back=True), Reserve("here", 9.0, "d", "failed")),
    ("_not_held_back", witness("released", held_back=True), Claim(3, "n", 9.0)),
    ("_evidence_for_open", witness("expected"), Reserve("here", 9.0, "d")),
    ("_evidence_for_open", witness("held"), Reserve("here", 9.0, "d")),
    ("_evidence_for_open", witness("held"), Reserve("here", 9.0, "d", "failed")),
    ("_held_back", witness("revoked"), Resume("ops")),
    ("_launch_above_barrier", witness("expected", barrier=3), Claim(3, "n", 9.0)),
    ("_launch_above_barrier", witness("expected", barrier=2), Claim(1, "n", 9.0)),
    ("_launch_above_barrier", witness("released", barrier=1), Claim(0, "n", 9.0)),
    ("_claimable", witness("held"), Claim(3, "n", 9.0)),
    ("_claimable", witness("held"), Claim(2, "n", 9.0, vacant=True)),
    ("_claimable", witness("held", holder=Holder(0, "x")), Claim(3, "n", 9.0, vacant=True)),
    ("_claimable", witness("expected", barrier=0), Claim(0, "n", 9.0)),
    ("_mine", witness("held", holder=Holder(3, "other")), HOLD),
    ("_mine", witness("held", holder=Holder(2, "me")), HOLD),
    ("_mine", witness("held", attempt=3), HOLD),
    ("_mine", witness("held", attempt=3), EVENTS[Release]),
    ("_mine", witness("held", attempt=3), EVENTS[Finish]),
    ("_next_in_line", witness("held"), replace(HOLD, move=Move(NEXT, None))),
    ("_next_in_line", witness("held", pointer=None), MOVE),
    ("_next_in_line", witness("held", pointer=replace(POINTER, digest="0")), MOVE),
    ("_next_in_line", witness("held"), replace(HOLD, move=Move(replace(NEXT, ordinal=4), POINTER))),
    ("_next_in_line", witness("held"), replace(HOLD, move=Move(replace(NEXT, attempt=1), POINTER))),
    ("_asked_once", witness("held", asked=Asked("yield", 9.0, "d")), Ask("pause", 9.0, "ops")),
    ("_ancestor", witness("revoked"), Rewind("ops", POINTER)),
    ("_ancestor", witness("revoked"), Rewind("ops", NEXT)),
    ("_ancestor", witness("revoked", pointer=None), Rewind("ops", POINTER)),
]  # fmt: skip


@pytest.mark.parametrize(("guard", "now", "event"), GUARDED)
def test_a_guard_refuses_and_no_other_does(
    guard: str, now: Witness, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(now, event)
    row = machine._BY_EVENT[type(event)]
    left = tuple(g for g in row.guards if g.__name__ != guard)
    assert len(left) < len(row.guards), "the row has no such guard"
    monkeypatch.setitem(machine._BY_EVENT, type(event), replace(row, guards=left))
    applied(now, event)  # the mutant lets it through: the case above is the guard's own


def test_every_guard_of_every_row_has_a_case() -> None:
    cases = {(type(event), guard) for guard, _, event in GUARDED}
    assert cases == {(row.event, guard.__name__) for row in TABLE for guard in row.guards}


def test_a_launch_nobody_announced_cannot_claim_an_absent_witness() -> None:
    assert "announced" in refused(None, Claim(1, "n", 9.0))


def test_the_words_of_a_refusal_name_who_is_there() -> None:
    assert refused(witness("held"), Claim(3, "n", 9.0)) == "attempt 2 holds it"
    assert "launch 3" in refused(witness("held"), Claim(2, "n", 9.0, vacant=True))
    assert refused(witness("expected"), Reserve("h", 9.0, "d")) == "launch 3 may still claim"
    assert "paused" in refused(witness("released", held_back=True), Claim(3, "n", 9.0))


def test_the_diagram_names_every_row() -> None:
    drawn = machine.diagram()
    for row in TABLE:
        for source in row.sources:
            assert (
                f"{source} --> {source if row.target == 'same' else row.target}: {row.event.__name__}"
                in drawn
            )


# ------------------------------------------------------------------------------- histories

holders = st.integers(0, 4)


class Histories(RuleBasedStateMachine):
    """Any events in any order, most of them sent by somebody who is mistaken."""

    @initialize()
    def begin(self) -> None:
        self.now: Witness | None = None
        self.line: list[Pointer] = []
        self.nonces = 0

    def send(self, event: Event) -> Witness | None:
        old, new = self.now, transition("j", self.now, event)
        if isinstance(new, Refused):
            assert new.reason
            return None
        self.check(old, new, event)
        self.now = new.stamped(f"w{new.seq}")
        return self.now

    @staticmethod
    def check(old: Witness | None, new: Witness, event: Event) -> None:
        before = old or Witness("j", "revoked", "", seq=0)
        assert before.phase not in FINAL, "a final phase was left"
        assert new.seq == before.seq + 1
        assert new.attempt == before.attempt + isinstance(event, Claim), (
            "attempts increase by claims"
        )
        assert new.launched == before.launched + isinstance(event, Reserve), "launches by reserving"
        assert new.barrier >= before.barrier, "the barrier never falls"
        if isinstance(event, Claim):
            assert event.launch > before.barrier or event.launch == before.barrier == 0
            assert old is None or old.phase in ("expected", "held", "released")
            assert not before.held_back
        if isinstance(event, Reserve):
            assert not before.held_back
        if new.pointer != before.pointer:
            if isinstance(event, Rewind):
                assert (new.pointer.ordinal if new.pointer else 0) < before.pointer.ordinal  # type: ignore[union-attr]
            else:
                assert isinstance(event, Hold) and event.move and new.pointer
                assert event.holder == before.holder and event.attempt == before.attempt
                assert event.move.parent == before.pointer
                assert new.pointer.ordinal == (before.pointer.ordinal if before.pointer else 0) + 1
                assert new.pointer.attempt == before.attempt
        if new.phase == "held" and not isinstance(event, Claim):
            assert (new.holder, new.attempt) == (before.holder, before.attempt)

    @rule(evidence=st.sampled_from(["none", "vacant", "failed"]))
    def reserve(self, evidence: str) -> None:
        self.send(Reserve("here", 60.0, "d", evidence))  # type: ignore[arg-type]

    @rule(launch=holders, vacant=st.booleans())
    def claim(self, launch: int, vacant: bool) -> None:
        self.nonces += 1
        self.send(Claim(launch, f"n{self.nonces}", 60.0, vacant))

    def _holder(self, right: bool) -> tuple[Holder, int]:
        if self.now and self.now.holder and right:
            return self.now.holder, self.now.attempt
        return Holder(1, "n1"), 1

    @rule(
        right=st.booleans(),
        move=st.sampled_from(["none", "next", "orphan", "skip"]),
        long=st.booleans(),
    )
    def hold(self, right: bool, move: str, long: bool) -> None:
        holder, attempt = self._holder(right)
        parent = self.now.pointer if self.now else None
        ordinal = (parent.ordinal if parent else 0) + 1
        step = len(self.line)
        moves = {
            "none": None,
            "next": Move(Pointer(attempt, step, step, ordinal, "d"), parent),
            "orphan": Move(
                Pointer(attempt, step, step, ordinal, "d"), self.line[0] if self.line else POINTER
            ),
            "skip": Move(Pointer(attempt, step, step, ordinal + 1, "d"), parent),
        }
        new = self.send(
            Hold(holder, attempt, 20.0, Announced("x", 50.0) if long else None, moves[move])
        )
        if new and new.pointer != parent and new.pointer:
            self.line.append(new.pointer)

    @rule(right=st.booleans())
    def release(self, right: bool) -> None:
        self.send(Release(*self._holder(right), 10, "SIGTERM"))

    @rule(right=st.booleans(), really=st.integers(0, 3))
    def finish(self, right: bool, really: int) -> None:
        if not really:
            self.send(Finish(*self._holder(right), 0, "finished", {}))

    @rule(what=st.sampled_from(["yield", "pause"]))
    def ask(self, what: str) -> None:
        self.send(Ask(what, 10.0, "ops"))  # type: ignore[arg-type]

    @rule(held_back=st.booleans())
    def revoke(self, held_back: bool) -> None:
        self.send(Revoke("ops", "why", held_back))

    @rule()
    def resume(self) -> None:
        self.send(Resume("ops"))

    @rule(back=st.integers(0, 3))
    def rewind(self, back: int) -> None:
        pointer = self.line[-1 - back] if back < len(self.line) else None
        self.send(Rewind("ops", pointer))

    @rule(really=st.integers(0, 5))
    def cancel(self, really: int) -> None:
        if not really:
            self.send(Cancel("ops", "why"))

    @invariant()
    def stored_bodies_are_whole(self) -> None:
        if self.now:
            body = self.now.encode()
            assert Witness.decode(body, "k") == self.now and len(body) % 8 == self.now.residue
            assert (self.now.phase == "held") == (self.now.holder is not None)
            assert self.now.held_back <= (self.now.phase in ("released", "revoked"))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# --------------------------------------------------------------------------------- vacancy

LONG = Watched(1e6, 1e6)


@pytest.mark.parametrize(
    ("phase", "changes", "age_s", "watched", "vacant"),
    [
        ("expected", {}, 60.0, LONG, False),
        ("expected", {}, 60.1, Watched(0.0, 0.0), True),
        ("held", {}, 30.0 + SLACK_S, LONG, False),
        ("held", {}, 30.1 + SLACK_S, LONG, True),
        ("held", {}, 30.1 + SLACK_S, Watched(30.0, 30.0), True),
        ("held", {}, 1e9, Watched(29.9, 1e6), False),
        ("held", {}, 1e9, Watched(1e6, 29.9), False),
        ("held", {}, 1e9, Watched(0.0, 0.0), False),
        ("held", {"announced": Announced("x", 90.0)}, 90.0 + SLACK_S, LONG, False),
        ("held", {"announced": Announced("x", 90.0)}, 90.1 + SLACK_S, LONG, True),
        ("held", {"announced": Announced("x", 90.0)}, 1e9, Watched(89.0, 1e6), False),
        ("held", {"announced": Announced("x", 5.0)}, 30.0 + SLACK_S, LONG, False),
        ("released", {}, 0.0, Watched(0.0, 0.0), True),
        ("revoked", {"reason": "poison"}, 0.0, Watched(0.0, 0.0), True),
        ("finished", {}, 0.0, Watched(0.0, 0.0), True),
    ],
)
def test_vacancy(
    phase: Phase, changes: dict[str, object], age_s: float, watched: Watched, vacant: bool
) -> None:
    found = vacancy(witness(phase, **changes), age_s, watched)
    assert isinstance(found, Vacant if vacant else Occupied), found
    assert found.reason


def test_vacancy_says_the_numbers() -> None:
    assert "41 s" in vacancy(witness("held"), 30 + 41, LONG).reason
    assert "our own watch is 12 of 30 s" in vacancy(witness("held"), 99, Watched(12, 50)).reason
    assert "20 s more" in vacancy(witness("expected"), 40, LONG).reason


# ----------------------------------------------------------------------------------- watch

KEY = "witness/e/j.json"


def look(watched: Watch, etag: str = "e1") -> None:
    watched.saw([Entry(KEY, etag, 0, 0.0), Entry("witness/e/other.json", "x", 0, 0.0)])


def watch_for(clock: FakeClock, watched: Watch, seconds: float, every_s: float = 5.0) -> None:
    for _ in range(int(seconds / every_s)):
        clock.sleep(every_s)
        look(watched)


def test_a_watch_grows_with_good_looks(clock: FakeClock) -> None:
    watched = Watch(clock)
    assert watched.of(KEY, "e1", 30.0) == Watched(0.0, 0.0)
    look(watched)
    watch_for(clock, watched, 30.0)
    assert watched.of(KEY, "e1", 30.0) == Watched(30.0, 30.0)
    assert watched.of("witness/e/unseen.json", "e1", 30.0) == Watched(0.0, 0.0)


def test_another_etag_is_another_watch(clock: FakeClock) -> None:
    watched = Watch(clock)
    look(watched)
    watch_for(clock, watched, 30.0)
    assert watched.of(KEY, "e2", 30.0) == Watched(0.0, 0.0)
    look(watched, "e2")
    clock.sleep(5.0)
    assert watched.of(KEY, "e2", 30.0).unchanged_s == 5.0
    assert watched.of("witness/e/other.json", "x", 30.0).unchanged_s == 35.0


def test_a_key_that_went_and_came_is_watched_anew(clock: FakeClock) -> None:
    watched = Watch(clock)
    look(watched)
    watch_for(clock, watched, 30.0)
    watched.saw([])
    look(watched)
    assert watched.of(KEY, "e1", 30.0).unchanged_s == 0.0


def fail(clock: FakeClock, watched: Watch) -> None:
    watched.broke()
    look(watched)


def jump(clock: FakeClock, watched: Watch) -> None:
    clock.wall_skew_s += 3600.0
    look(watched)


def jump_back(clock: FakeClock, watched: Watch) -> None:
    clock.wall_skew_s -= 3.0
    look(watched)


def gap(clock: FakeClock, watched: Watch) -> None:
    clock.sleep(10.1)  # more than a third of the lease
    look(watched)


@pytest.mark.parametrize("event", [fail, jump, jump_back, gap])
def test_a_failed_call_a_clock_jump_and_a_gap_start_it_anew(
    clock: FakeClock, event: Callable[[FakeClock, Watch], None]
) -> None:
    watched = Watch(clock)
    look(watched)
    watch_for(clock, watched, 60.0)
    assert isinstance(vacancy(witness("held"), 99.0, watched.of(KEY, "e1", 30.0)), Vacant)
    event(clock, watched)
    assert watched.of(KEY, "e1", 30.0).gapless_s == 0.0
    assert isinstance(vacancy(witness("held"), 99.0, watched.of(KEY, "e1", 30.0)), Occupied)
    watch_for(clock, watched, 25.0)
    assert isinstance(vacancy(witness("held"), 99.0, watched.of(KEY, "e1", 30.0)), Occupied)
    watch_for(clock, watched, 5.0)
    assert isinstance(vacancy(witness("held"), 99.0, watched.of(KEY, "e1", 30.0)), Vacant)


def test_a_gap_now_counts_too(clock: FakeClock) -> None:
    watched = Watch(clock)
    look(watched)
    watch_for(clock, watched, 60.0)
    clock.sleep(10.1)
    assert watched.of(KEY, "e1", 30.0).gapless_s == 0.0


def test_a_gap_is_measured_by_the_lease_in_question(clock: FakeClock) -> None:
    watched = Watch(clock)
    look(watched)
    watch_for(clock, watched, 60.0, every_s=12.0)
    assert watched.of(KEY, "e1", 30.0).gapless_s == 0.0
    assert watched.of(KEY, "e1", 36.0).gapless_s == 60.0


def test_a_small_drift_of_the_clocks_is_no_jump(clock: FakeClock) -> None:
    watched = Watch(clock)
    look(watched)
    for _ in range(20):
        clock.wall_skew_s += 1.0
        watch_for(clock, watched, 5.0)
    assert watched.of(KEY, "e1", 30.0).gapless_s >= 30.0


def test_frequent_looks_still_watch_an_hour(clock: FakeClock) -> None:
    watched = Watch(clock)
    look(watched)
    for _ in range(40_000):
        clock.now_s += 0.1
        watched.saw([Entry(KEY, "e1", 0, 0.0)])
    found = watched.of(KEY, "e1", 3600.0)
    assert found.gapless_s >= 3600.0 and found.unchanged_s > 3600.0
    assert len(watched._gaps) < 100, "a watch of weeks stays small"


@given(
    gaps_s=st.lists(st.floats(0.1, 30.0), max_size=30),
    since_s=st.floats(0.0, 12.0),
    lease_s=st.floats(1.0, 90.0),
)
def test_a_watch_is_what_a_walk_back_over_its_looks_says(
    gaps_s: list[float], since_s: float, lease_s: float
) -> None:
    with FakeClock() as clock:
        watched = Watch(clock)
        looks_s = [clock.monotonic_s()]
        watched.saw([Entry(KEY, "e1", 0, 0.0)])
        for gap_s in gaps_s:
            clock.now_s += gap_s
            watched.saw([Entry(KEY, "e1", 0, 0.0)])
            looks_s.append(clock.monotonic_s())
        clock.now_s += since_s
        at_s = now_s = clock.monotonic_s()
        for look_s in reversed(looks_s):
            if at_s - look_s > lease_s / 3:
                break
            at_s = look_s
        assert watched.of(KEY, "e1", lease_s).gapless_s == now_s - at_s
