"""Every history of small worlds breaks no rule; every guard, once removed, does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import cast

import pytest

from tenure.sim import exhaustive
from tenure.sim.exhaustive import WORLDS, Report, Violation, explore
from tenure.sim.small_actors import REAL
from tenure.sim.small_world import Behaviour, Transition, World
from tenure_protocol.lease import machine
from tenure_protocol.lease.machine import (
    Ask,
    Cancel,
    Claim,
    Event,
    Finish,
    Hold,
    Release,
    Reserve,
    Resume,
    Revoke,
    Rewind,
    Row,
)
from tenure_protocol.records import Launch, Witness

# ------------------------------------------------------------------------- the real table, complete

#: (states, edges). A change of the table or of the model changes them: look at what, then update.
GOLDEN = {
    "small": (56_371, 601_497),
    "two-dispatchers": (147_204, 1_963_706),
    "asked": (464_066, 5_750_675),
    "scripted": (43_724, 203_210),
    "operated": (182_816, 800_434),
    "large": (496_177, 2_139_127),
}


def found(report: Report) -> str:
    return "\n".join("\n  ".join((v.rule, *v.trace)) for v in report.violations)


def test_the_small_world_is_complete_and_breaks_no_rule() -> None:
    report = explore(WORLDS["small"])
    assert report.complete and not report.violations, found(report)
    assert (report.states, report.edges) == GOLDEN["small"]


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(set(WORLDS) - {"small"}))
def test_larger_worlds_break_no_rule(name: str) -> None:
    report = explore(WORLDS[name])
    assert report.complete and not report.violations, found(report)
    assert (report.states, report.edges) == GOLDEN[name]


def test_every_world_has_golden_numbers() -> None:
    assert set(GOLDEN) == set(WORLDS)


def test_the_same_world_is_explored_the_same_way() -> None:
    world = World("again", revokes=0, faults=1)
    assert explore(world) == explore(world)


def test_a_fault_budget_only_leaves_histories_out() -> None:
    worlds = [World("budget", revokes=0, faults=n) for n in (0, 1, 2, 3)]
    edges = [explore(world).edges for world in worlds]
    assert edges == sorted(set(edges))


# ------------------------------------------------------------------------------------------ mutants


def mutated(event: type[Event], change: Callable[[Row], Row]) -> Transition:
    """The real ``transition`` over a table with one row changed."""
    rows = {**machine._BY_EVENT, event: change(machine._BY_EVENT[event])}
    names = {**vars(machine), "_BY_EVENT": rows}
    return cast(Transition, FunctionType(machine.transition.__code__, names))


def without_guard(event: type[Event], guard: str) -> Transition:
    def change(row: Row) -> Row:
        kept = tuple(g for g in row.guards if g.__name__ != guard)
        assert len(kept) == len(row.guards) - 1, f"{event.__name__} has no guard {guard}"
        return replace(row, guards=kept)

    return mutated(event, change)


def unless(event: type[Event], guard: str, excuse: Callable[[Witness, Event], bool]) -> Transition:
    """A guard with one of its conditions removed: it no longer speaks where ``excuse`` holds."""

    def change(row: Row) -> Row:
        def weak(g: Callable[..., str | None]) -> Callable[..., str | None]:
            return lambda w, e: None if excuse(w, e) else g(w, e)

        return replace(row, guards=tuple(weak(g) if g.__name__ == guard else g for g in row.guards))

    return mutated(event, change)


def sources(event: type[Event], plus: str = "", minus: str = "") -> Transition:
    def change(row: Row) -> Row:
        assert set(minus.split()) <= row.sources and not set(plus.split()) & row.sources
        return replace(row, sources=(row.sources | set(plus.split())) - set(minus.split()))

    return mutated(event, change)


def effect(event: type[Event], spoil: Callable[[Witness, Witness], Witness]) -> Transition:
    """A row whose result is spoilt: ``spoil(before, after)``."""

    def change(row: Row) -> Row:
        return replace(row, produce=lambda w, e: spoil(w, row.produce(w, e)))

    return mutated(event, change)


@dataclass(frozen=True)
class Mutant:
    """One guard or habit removed, the least world that shows it, and the invariant that breaks."""

    rule: str  # the first characters of the rule
    world: World
    table: Transition = machine.transition
    habits: Behaviour = REAL


BARE = World("bare", revokes=0)
REVOKED = World("revoked", revokes=1)
ASKED = World("asked", revokes=0, asks=1)
ENDS = World("ends", revokes=1, faults=1)  # explored to the end: liveness needs every state
NOTICED = World("noticed", revokes=0, notices=1, faults=1)
PAUSED = World("paused", revokes=0, asks=1, faults=1)
SCRIPT = World("script", scripts=1, workers=3, revokes=1, notices=1)
REWOUND = World("rewound", rewinds=1)
TWO = World("two", dispatchers=2, revokes=0)


def _launch(e: Event) -> int:
    assert isinstance(e, Claim)
    return e.launch


def _moves(e: Event) -> machine.Move | None:
    return e.move if isinstance(e, Hold) else None


def _relaunch(w: Witness, new: Witness) -> Witness:
    return replace(new, launch=Launch(max(w.launched, 1), "runner", 1.0))


GUARDS = {
    "reserve: held back": Mutant("7", REVOKED, without_guard(Reserve, "_not_held_back")),
    "reserve: evidence": Mutant("8", BARE, without_guard(Reserve, "_evidence_for_open")),
    "reserve: evidence over expected": Mutant(
        "8", BARE, unless(Reserve, "_evidence_for_open", lambda w, e: w.phase == "expected")
    ),
    "reserve: evidence over held": Mutant(
        "8", BARE, unless(Reserve, "_evidence_for_open", lambda w, e: w.phase == "held")
    ),
    "claim: held back": Mutant("7", ASKED, without_guard(Claim, "_not_held_back")),
    "claim: barrier": Mutant("5", REVOKED, without_guard(Claim, "_launch_above_barrier")),
    "claim: barrier for scripts": Mutant(
        "5", SCRIPT, unless(Claim, "_launch_above_barrier", lambda w, e: _launch(e) == 0)
    ),
    "claim: claimable": Mutant("8", BARE, without_guard(Claim, "_claimable")),
    "claim: a script waits for a launch": Mutant(
        "8", SCRIPT, unless(Claim, "_claimable", lambda w, e: w.phase == "expected")
    ),
    "claim: vacant": Mutant(
        "8", BARE,
        unless(Claim, "_claimable", lambda w, e: isinstance(e, Claim) and not e.vacant),
    ),
    "claim: another launch's holder": Mutant(
        "8", BARE, unless(Claim, "_claimable", lambda w, e: isinstance(e, Claim) and e.vacant)
    ),
    "renew: mine": Mutant("5", BARE, without_guard(Hold, "_mine")),
    "release: mine": Mutant("5", BARE, without_guard(Release, "_mine")),
    "finish: mine": Mutant("5", BARE, without_guard(Finish, "_mine")),
    "move: next in line": Mutant("2", BARE, without_guard(Hold, "_next_in_line")),
    "move: parent": Mutant(
        "2", BARE,
        unless(
            Hold, "_next_in_line",
            lambda w, e: (m := _moves(e)) is not None and m.parent != w.pointer,
        ),
    ),
    "move: ordinal": Mutant(
        "2", BARE,
        unless(
            Hold, "_next_in_line",
            lambda w, e: (m := _moves(e)) is not None
            and m.parent == w.pointer and m.pointer.attempt == w.attempt,
        ),
    ),
    "move: own attempt": Mutant(
        "3", BARE,
        unless(
            Hold, "_next_in_line",
            lambda w, e: (m := _moves(e)) is not None
            and m.parent == w.pointer and m.pointer.attempt != w.attempt,
        ),
    ),
    "ask: once": Mutant("6", World("asks", revokes=0, asks=2), without_guard(Ask, "_asked_once")),
    "rewind: ancestor": Mutant("2", REWOUND, without_guard(Rewind, "_ancestor")),
}  # fmt: skip

PHASES = {
    **{
        f"{event.__name__.lower()} from {phase}": Mutant("4", world, sources(event, plus=phase))
        for event, phase, world in (
            (Reserve, "finished", BARE),
            (Claim, "finished", BARE),
            (Revoke, "finished", REVOKED),
            (Cancel, "finished", World("used up", launches=1, workers=1, attempts=1, revokes=0)),
            (Reserve, "cancelled", World("called off", cancels=1, revokes=0)),
            (Claim, "cancelled", World("called off", cancels=1, revokes=0)),
            (Revoke, "cancelled", World("called off", cancels=1)),
        )
    },
    **{
        f"no {event.__name__.lower()} from {phase}": Mutant(
            rule, world, sources(event, minus=phase)
        )
        for rule, event, phase, world in (
            ("7", Reserve, "absent", ENDS),
            ("7", Reserve, "expected", ENDS),
            ("7", Reserve, "held", ENDS),
            ("7", Reserve, "released", NOTICED),
            ("7", Reserve, "revoked", ENDS),
            ("7", Claim, "expected", ENDS),
            ("7", Cancel, "expected", ENDS),
            ("7", Cancel, "held", ENDS),
            ("7", Cancel, "released", NOTICED),
            ("7", Cancel, "revoked", ENDS),
            ("7", Resume, "revoked", ENDS),
            ("7", Resume, "released", PAUSED),
            ("6", Hold, "held", BARE),
            ("6", Release, "held", ASKED),
            ("6", Finish, "held", BARE),
        )
    },
}

EFFECTS = {
    "a claim keeps the attempt": Mutant(
        "1", BARE, effect(Claim, lambda w, new: replace(new, attempt=max(w.attempt, 1)))
    ),
    "a claim restarts the attempts": Mutant(
        "1", BARE, effect(Claim, lambda w, new: replace(new, attempt=1))
    ),
    "a reservation restarts the attempts": Mutant(
        "1", BARE, effect(Reserve, lambda w, new: replace(new, attempt=0))
    ),
    "a reservation repeats the launch": Mutant("8", BARE, effect(Reserve, _relaunch)),
    "a reservation forgets the barrier": Mutant(
        "1", REVOKED, effect(Reserve, lambda w, new: replace(new, barrier=0))
    ),
    "a reservation forgets the pointer": Mutant(
        "3", BARE, effect(Reserve, lambda w, new: replace(new, pointer=None))
    ),
    "a claim forgets the pointer": Mutant(
        "3", BARE, effect(Claim, lambda w, new: replace(new, pointer=None))
    ),
    "a revocation sets no barrier": Mutant(
        "5", REVOKED, effect(Revoke, lambda w, new: replace(new, barrier=w.barrier))
    ),
    "a pause is not held back": Mutant(
        "7", ASKED, effect(Release, lambda w, new: replace(new, held_back=False))
    ),
    "a claim is asked what the last was": Mutant(
        "6", ASKED, effect(Claim, lambda w, new: replace(new, asked=w.asked))
    ),
}

HABITS = {
    "a pending move judged by write_id": Mutant("6", BARE, habits=Behaviour(move_judged_by_pointer=False)),
    "a foreign write deposes": Mutant("6", ASKED, habits=Behaviour(adopts_foreign_writes=False)),
    "renews after it was deposed": Mutant("6", BARE, habits=Behaviour(adopts_only_while_holding=False)),
    "remembers the last write_id only": Mutant("6", BARE, habits=Behaviour(remembers_all_unsettled=False)),
    "Unknown is Written to the holder": Mutant("5", BARE, habits=Behaviour(unknown_is_unknown=False)),
    "Unknown is Lost to the holder": Mutant("6", BARE, habits=Behaviour(unknown_stops_nobody=False)),
    "silence stops the holder": Mutant("6", BARE, habits=Behaviour(silence_stops_nobody=False)),
    "a 412 stops the holder": Mutant("6", BARE, habits=Behaviour(refusal_stops_nobody=False)),
    "the holder refreshes its ETag blindly": Mutant("1", BARE, habits=Behaviour(holder_decides_anew=False)),
    "a claim refreshes its ETag blindly": Mutant("1", REVOKED, habits=Behaviour(claimant_decides_anew=False)),
    "a reservation refreshes its ETag blindly": Mutant(
        "1", REVOKED, habits=Behaviour(dispatcher_decides_anew=False)
    ),
    "Unknown is Written to a dispatcher": Mutant("8", BARE, habits=Behaviour(reserves_before_launch=False)),
    "launches what another reserved": Mutant(
        "8", TWO, habits=Behaviour(launches_own_reservations_only=False)
    ),
    "moves before the bytes are confirmed": Mutant(
        "3", BARE, habits=Behaviour(confirms_bytes_before_moving=False)
    ),
    "the parent is the last confirmed": Mutant("6", BARE, habits=Behaviour(drafts_after_settling=False)),
    "the parent is the last saved": Mutant(
        "6", World("line", milestones=2, revokes=0),
        habits=Behaviour(drafts_after_settling=False, parent_is_stored=False),
    ),
    "a new save under the old name": Mutant(
        "3", World("saves", saves=2, revokes=0), habits=Behaviour(new_save_new_name=False)
    ),
    "no attempt in the prefix": Mutant("3", BARE, habits=Behaviour(attempt_in_prefix=False)),
}  # fmt: skip

MUTANTS = GUARDS | PHASES | EFFECTS | HABITS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    report = explore(mutant.world, mutant.table, mutant.habits, first_only=True)
    assert report.violations, f"{report.states} states, nothing found"
    assert report.violations[0].rule.startswith(mutant.rule), found(report)
    assert report.violations[0].trace


# ------------------------------------------------------------------------- what safety cannot catch

#: Each is explored to the end and must break no rule: if it does one day, it belongs above.
DECLARED = {
    "claim from revoked: every launch so far is behind the barrier that revoking set": Mutant(
        "", ENDS, sources(Claim, plus="revoked")
    ),
    "renew from released: the holder is cleared, so it is nobody's": Mutant(
        "", NOTICED, sources(Hold, plus="released")
    ),
    "release from revoked: likewise": Mutant("", ENDS, sources(Release, plus="revoked")),
    "finish from expected: likewise": Mutant("", ENDS, sources(Finish, plus="expected")),
    "renew: mine by the attempt alone: no two claims have the same": Mutant(
        "", ENDS, unless(Hold, "_mine", lambda w, e: isinstance(e, Hold) and w.attempt == e.attempt)
    ),
    "renew: mine by the holder alone: a nonce is new per process, which holds once": Mutant(
        "", ENDS, unless(Hold, "_mine", lambda w, e: isinstance(e, Hold) and w.holder == e.holder)
    ),
    "resume: held back: resuming what is not changes only who said so": Mutant(
        "", ENDS, without_guard(Resume, "_held_back")
    ),
    "Unknown is Lost to a dispatcher: an expected that nobody makes wastes a claim window": Mutant(
        "", ENDS, habits=Behaviour(launches_late_reservations=False)
    ),
}

#: No part of this model, and who catches them.
ELSEWHERE = {
    "renewals sent by the carrier or the courier": "the clock is the adversary's: the simulator",
    "vacancy by age alone, without the gapless watch": "the clock is the adversary's: the simulator",
    "a lease or a claim window that is too short": "the clock is the adversary's: the simulator",
    "a worker that works on after Lost": "it changes nothing stored; the economy rules see the waste",
    "a platform's status taken for death": "a vacancy may be declared at any moment here anyway",
    "the manifest written before the files": "nobody here reads a snapshot that no pointer names",
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_mutant_breaks_no_rule_here(name: str) -> None:
    mutant = DECLARED[name]
    report = explore(mutant.world, mutant.table, mutant.habits)
    assert report.complete and not report.violations, found(report)


def test_every_guard_of_the_table_has_a_mutant() -> None:
    removed = {
        (event, guard.__name__)
        for table in (mutant.table for mutant in (GUARDS | DECLARED).values())
        if isinstance(table, FunctionType)
        for event, row in table.__globals__["_BY_EVENT"].items()
        for guard in machine._BY_EVENT[event].guards
        if guard not in row.guards
    }
    assert removed == {(row.event, g.__name__) for row in machine.TABLE for g in row.guards}


def test_every_habit_has_a_mutant() -> None:
    spoilt = {
        habit
        for mutant in (HABITS | DECLARED).values()
        for habit, kept in vars(mutant.habits).items()
        if not kept
    }
    assert spoilt == set(vars(REAL))


# ------------------------------------------------------------------------------------ the command


def test_the_command_prints_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WORLDS, "small", World("small", launches=1, workers=1, revokes=0))
    report = explore(WORLDS["small"])
    assert exhaustive.main([]) == 0
    assert f"{report.states} states, {report.edges} edges" in capsys.readouterr().out
    assert exhaustive.main(["--world", "small", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["states"], printed["violations"]) == (report.states, [])


def test_the_command_prints_a_trace_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Report(
        WORLDS["small"], 1, 0, 0, True, (Violation("4: over", ("p0 finishes", "p0 fails")),)
    )
    monkeypatch.setattr(exhaustive, "explore", lambda world: bad)
    assert exhaustive.main([]) == 1
    assert "4: over\n  p0 finishes\n  p0 fails" in capsys.readouterr().out
