"""One job in a small world: its bounds, the rules of one step, and the table's answers by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from tenure_protocol.lease.machine import (
    ABSENT,
    Ask,
    Cancel,
    Claim,
    Event,
    Finish,
    Hold,
    Move,
    Refused,
    Release,
    Reserve,
    Resume,
    Revoke,
    Rewind,
)
from tenure_protocol.records import FINAL, Holder, Pointer, Witness

Transition = Callable[[str, Witness | None, Event], Witness | Refused]

JOB = "job"


@dataclass(frozen=True)
class World:
    """What may happen in one exploration; every number is a total over the whole history."""

    name: str
    dispatchers: int = 1
    launches: int = 2
    workers: int = 2  # processes, twins that the platform makes of one launch included
    attempts: int = 2
    milestones: int = 1
    revokes: int = 1
    asks: int = 0  # to yield or to pause
    notices: int = 0  # SIGTERM or the platform's word: a holder releases unasked
    errors: int = 0  # exceptions of the user's code, which finish the job at any moment
    cancels: int = 0  # by an operator; a dispatcher cancels when the launches are used up
    rewinds: int = 0
    scripts: int = 0  # in local mode: processes without a launch, there from the start
    saves: int = 1  # of one milestone: 2 gives up a slow upload and saves anew
    faults: int | None = None  # None: as many as can be


@dataclass(frozen=True)
class Behaviour:
    """The clients' habits. Every default is the real one, every other value a mutant."""

    move_judged_by_pointer: bool = True  # False: by write_id
    adopts_foreign_writes: bool = True
    adopts_only_while_holding: bool = True  # False: renews after it was deposed
    remembers_all_unsettled: bool = True  # False: the last write_id only
    unknown_is_unknown: bool = True  # False: the holder takes it for Written
    unknown_stops_nobody: bool = True  # False: the holder takes it for Lost, and stops
    silence_stops_nobody: bool = True
    refusal_stops_nobody: bool = True  # False: a 412 stops the holder without a read
    holder_decides_anew: bool = True  # False: refreshes its ETag and keeps its body
    claimant_decides_anew: bool = True
    dispatcher_decides_anew: bool = True
    reserves_before_launch: bool = True  # False: the dispatcher takes Unknown for Written
    launches_late_reservations: bool = True  # False: the dispatcher takes Unknown for Lost
    launches_own_reservations_only: bool = True
    confirms_bytes_before_moving: bool = True
    drafts_after_settling: bool = True  # False: the parent is the pointer last confirmed
    parent_is_stored: bool = True  # False: the parent is the snapshot last saved
    new_save_new_name: bool = True
    attempt_in_prefix: bool = True

    @property
    def fresh_names(self) -> bool:
        """Whether a key has one content, so that an upload which lands again changes nothing."""
        return self.new_save_new_name and self.attempt_in_prefix

    @property
    def deposed_is_idle(self) -> bool:
        """Whether nothing a deposed worker still does can be told from nothing."""
        habits = (self.holder_decides_anew, self.adopts_only_while_holding, self.unknown_is_unknown)
        return self.fresh_names and all(habits)


# ---------------------------------------------------------------------------- rules of one step


def lineage(pointer: Pointer | None) -> Iterator[str]:
    """Digests of a pointer's ancestors, nearest first; "" is the beginning.

    A manifest names its parent, so a digest here is a path: the parent's digest, then its own name.

    >>> list(lineage(Pointer(2, 2, 1, 2, "/1.1/2.2")))
    ['/1.1', '']
    """
    digest = pointer.digest if pointer else ""
    while digest:
        digest = digest.rpartition("/")[0]
        yield digest


def broken_step(before: Witness | None, event: Event, after: Witness) -> str | None:
    """Which invariant of DESIGN section 5 one applied write breaks, or ``None``.

    >>> gone = Witness("job", "cancelled", "")
    >>> broken_step(gone, Revoke("me", ""), Witness("job", "revoked", ""))
    '4: a cancelled job was changed'
    """
    now = before or Witness(JOB, "revoked", "", seq=0)
    if now.phase in FINAL:
        return f"4: a {now.phase} job was changed"
    grew = after.attempt > now.attempt
    if after.attempt < now.attempt or (after.holder not in (None, now.holder) and not grew):
        return f"1: attempt {now.attempt} was followed by attempt {after.attempt}"
    holder = (now.holder, now.attempt)
    if isinstance(event, Hold | Release | Finish) and holder != (event.holder, event.attempt):
        return "5: a worker that is not the holder changed the witness"
    if after.pointer != now.pointer and (why := _broken_pointer(now, event, after)):
        return why
    if after.barrier < now.barrier or after.launched < now.launched:
        return "1: a barrier or a launch number went back"
    return _broken_claim(now, event, after) or _broken_word(now, event, after)


def _broken_pointer(now: Witness, event: Event, after: Witness) -> str | None:
    stored = now.pointer.digest if now.pointer else ""
    if isinstance(event, Rewind):
        went_back = (after.pointer.digest if after.pointer else "") in lineage(now.pointer)
        return None if went_back else "2: a rewind to what is no ancestor"
    if not isinstance(event, Hold) or after.pointer is None:
        return "3: the pointer changed, and not by its holder"
    if next(lineage(after.pointer)) != stored:
        return "2: the manifest's parent is not the pointer that was stored"
    if after.pointer.ordinal != (now.pointer.ordinal if now.pointer else 0) + 1:
        return "2: the ordinal is not the next"
    if after.pointer.attempt != now.attempt:
        return "3: the pointer moved to another attempt's snapshot"
    return None


def _broken_claim(now: Witness, event: Event, after: Witness) -> str | None:
    """An open launch or a holder is passed over on evidence only: claims are bounded."""
    if isinstance(event, Reserve) and after.launched != now.launched + 1:
        return "8: a reservation announced no new launch"
    taken = now.phase in ("expected", "held")
    if isinstance(event, Reserve) and taken and event.evidence != "vacant":
        return f"8: a job that is {now.phase} was passed over without evidence"
    if isinstance(event, Claim):
        if now.barrier and event.launch <= now.barrier:
            return f"5: launch {event.launch} claimed beyond barrier {now.barrier}"
        if now.holder and not event.vacant:
            return "8: a claim over a holder that nobody found vacant"
        if now.holder and event.launch not in (0, now.holder.launch):
            return "8: a launch judged another launch's holder"
        if now.phase == "expected" and not event.launch:
            return "8: a script took the place of a launch that may still claim"
        if after.asked:
            return "6: what was asked of one attempt was asked of the next"
    return None


def _broken_word(now: Witness, event: Event, after: Witness) -> str | None:
    """What an operator said stands: held back is held back, and an attempt is asked once."""
    if isinstance(event, Reserve | Claim) and now.held_back:
        return "7: a job that is held back was started"
    if isinstance(event, Ask) and now.asked:
        return "6: an attempt was asked twice"
    paused = now.asked is not None and now.asked.what == "pause"
    if isinstance(event, Release) and paused and not after.held_back:
        return "7: a job that was asked to pause is not held back"
    return None


# ------------------------------------------------------------------------- bodies and the table

REFUSED = -1


class Facts(NamedTuple):
    """A stored body in the numbers the search needs."""

    phase: str = ABSENT
    launched: int = 0
    barrier: int = 0
    attempt: int = 0
    slot: int = -1  # the process that holds it, -1: nobody
    holder_launch: int = 0
    pointer: int = 0
    ordinal: int = 0
    asked: bool = False
    held_back: bool = False
    by: int = -1  # the dispatcher that recognises its reservation, -1: nobody


class Bodies:
    """Bodies, pointers and events by small numbers, and the table's answers, asked for once each."""

    def __init__(self, table: Transition, behaviour: Behaviour) -> None:
        self._table = table
        self._prefixed = behaviour.attempt_in_prefix
        self._body: dict[Witness | None, int] = {None: 0}
        self._bodies: list[Witness | None] = [None]
        self.facts = [Facts()]
        self._pointer: dict[Pointer | None, int] = {None: 0}
        self._pointers: list[Pointer | None] = [None]
        self._events: list[Event] = []
        self._answers: dict[tuple[int, int], tuple[int, str | None]] = {}
        # An event's number by its few parameters; built once each.
        self.reserve = cache(self._reserve)
        self.claim = cache(self._claim)
        self.hold = cache(self._hold)
        self.release = cache(self._release)
        self.finish = cache(self._finish)
        self.rewind = cache(self._rewind)
        self.said = cache(self._said)
        self.save = cache(self._save)
        self.parent = cache(self._parent)
        self.place = cache(self._place)
        self.nameless = cache(self._nameless)
        self.deposed_may_write = cache(self._deposed_may_write)
        self.strays = cache(self._strays)

    def ask(self, body: int, event: int) -> tuple[int, str | None]:
        """The body an event makes of this one and which invariant that breaks; or REFUSED, and why."""
        answer = self._answers.get((body, event))
        if answer is None:
            new = self._table(JOB, self._bodies[body], self._events[event])
            if isinstance(new, Refused):
                answer = (REFUSED, new.reason)
            else:
                answer = (self._intern(new), self.overwrites(body, event, new))
            self._answers[(body, event)] = answer
        return answer

    def overwrites(self, body: int, event: int, new: int | Witness) -> str | None:
        """Which invariant a body breaks that replaces this one, whatever it was decided from."""
        after = self._bodies[new] if isinstance(new, int) else new
        assert after is not None
        return broken_step(self._bodies[body], self._events[event], after)

    def _add(self, event: Event) -> int:
        self._events.append(event)
        return len(self._events) - 1

    def _reserve(self, dispatcher: int, evidence: Literal["none", "vacant"]) -> int:
        return self._add(Reserve("runner", 1.0, f"d{dispatcher}", evidence))

    def _claim(self, launch: int, slot: int, vacant: bool) -> int:
        return self._add(Claim(launch, f"p{slot}", 1.0, vacant))

    def _hold(self, launch: int, slot: int, attempt: int, pointer: int) -> int:
        to = self._pointers[pointer]
        move = Move(to, self._pointers[self.parent(pointer)]) if to else None
        return self._add(Hold(Holder(launch, f"p{slot}"), attempt, 1.0, None, move))

    def _release(self, launch: int, slot: int, attempt: int) -> int:
        return self._add(Release(Holder(launch, f"p{slot}"), attempt, 10, "released"))

    def _finish(self, launch: int, slot: int, attempt: int, code: int) -> int:
        return self._add(Finish(Holder(launch, f"p{slot}"), attempt, code, "finished", {}))

    def _rewind(self, pointer: int) -> int:
        return self._add(Rewind("operator", self._pointers[pointer]))

    def _said(self, words: str) -> int:
        by = "operator"
        events: dict[str, Event] = {
            "asks to yield": Ask("yield", 1.0, by),
            "asks to pause": Ask("pause", 1.0, by),
            "revokes": Revoke(by, "revoked"),
            "revokes and holds back": Revoke(by, "paused", held_back=True),
            "resumes": Resume(by),
            "cancels": Cancel(by, "cancelled"),
        }
        return self._add(events[words])

    def _save(self, attempt: int, parent: int, ordinal: int, save: int, content: int) -> int:
        """A pointer to a new snapshot, whose manifest names this parent."""
        above = self._pointers[parent]
        digest = f"{above.digest if above else ''}/{attempt}.{ordinal}.{save}.{content}"
        return self._intern_pointer(Pointer(attempt, ordinal, save, ordinal, digest))

    def _parent(self, pointer: int) -> int:
        digest = next(lineage(self._pointers[pointer]), "")
        return next((n for n, p in enumerate(self._pointers) if p and p.digest == digest), 0)

    def of(self, pointer: int) -> Pointer:
        """The pointer of this number, which is not that of the beginning."""
        found = self._pointers[pointer]
        assert found is not None
        return found

    def ancestors(self, pointer: int) -> Iterator[int]:
        """The pointers that an operator may rewind this one to, the beginning excepted."""
        while pointer := self.parent(pointer):
            yield pointer

    def content(self, pointer: int) -> int:
        """The how-manieth save of its milestone a snapshot is, whatever its name says."""
        return int(self.of(pointer).digest.rpartition(".")[2])

    def _place(self, pointer: int) -> tuple[tuple[int, ...], int]:
        """The key a snapshot is stored under, and its content."""
        p = self.of(pointer)
        return (p.attempt if self._prefixed else 0, p.step, p.save), pointer

    def _nameless(self, body: int) -> int:
        w = self._bodies[body]
        return self._intern(replace(w, by="-")) if w and w.phase == "expected" else body

    def _deposed_may_write(self, body: int, launch: int, slot: int, attempt: int) -> str | None:
        """Which invariant breaks because the table takes any write of one that is not the holder."""
        events = (
            self.hold(launch, slot, attempt, 0),
            self.release(launch, slot, attempt),
            self.finish(launch, slot, attempt, 0),
        )
        answers = [self.ask(body, event) for event in events]
        return next((why for new, why in answers if new != REFUSED), None)

    def _strays(self, body: int) -> str | None:
        """Which invariant breaks because the table takes a pointer that does not go on from here."""
        f = self.facts[body]
        other = self.save(f.attempt, 0, f.ordinal + 7, 9, 9)
        strays = (
            self.save(f.attempt, other, f.ordinal + 1, 9, 9),
            self.save(f.attempt, f.pointer, f.ordinal + 2, 9, 9),
            self.save(f.attempt - 1, f.pointer, f.ordinal + 1, 9, 9),
        )
        if f.phase == "held":
            events = [self.hold(f.holder_launch, f.slot, f.attempt, stray) for stray in strays]
        else:
            events = [self.rewind(stray) for stray in strays]
        answers = [self.ask(body, event) for event in events]
        return next((why for new, why in answers if new != REFUSED), None)

    def _intern(self, w: Witness) -> int:
        w = replace(w, seq=1, write_id="", result=None)
        number = self._body.setdefault(w, len(self._bodies))
        if number < len(self._bodies):
            return number
        self._bodies.append(w)
        named = w.phase == "expected" and w.by is not None and w.by.startswith("d")
        self.facts.append(
            Facts(
                w.phase,
                w.launched,
                w.barrier,
                w.attempt,
                int(w.holder.nonce[1:]) if w.holder else -1,
                w.holder.launch if w.holder else 0,
                self._intern_pointer(w.pointer),
                w.pointer.ordinal if w.pointer else 0,
                w.asked is not None,
                w.held_back,
                int(w.by[1:]) if named and w.by else -1,
            )
        )
        return number

    def _intern_pointer(self, pointer: Pointer | None) -> int:
        number = self._pointer.setdefault(pointer, len(self._pointers))
        if number == len(self._pointers):
            self._pointers.append(pointer)
        return number

    def words(self, body: int) -> str:
        """A stored body in a few words."""
        w = self._bodies[body]
        if w is None:
            return "absent"
        parts = [f"{w.phase}, launch {w.launched}, attempt {w.attempt}"]
        parts += [f"holder {w.holder.nonce} of launch {w.holder.launch}"] if w.holder else []
        parts += [f"pointer {w.pointer.digest}"] if w.pointer else []
        parts += [f"barrier {w.barrier}"] if w.barrier else []
        parts += [f"asked to {w.asked.what}"] if w.asked else []
        return ", ".join(parts + (["held back"] if w.held_back else []))
