"""What launches came to, by (runner, card): seen by a dispatcher, kept in the store, shared by all.

There is one object for each (runner, card), changed by conditional replace. Whoever writes it merges in what
it has seen itself: a launch is one row, so two dispatchers that saw the same one count it once. It holds
the newest launches only. Nothing depends on it but judgements: lost, it is made again from the manifests
of the jobs, of which as many are read at each look as a round has time for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import cast

from tenure.dispatch import quality
from tenure.dispatch.ladder import Rung
from tenure.dispatch.lengths import Lengths
from tenure.dispatch.lifetimes import LifetimeBook
from tenure.dispatch.quality import Option, Pace, Usual
from tenure.dispatch.rows import (
    FLOPS_OF,
    LIKELY_DTYPES,
    MOST_ROWS,
    RUNNING,
    Place,
    WorkLeft,
    believable,
    merge,
    peak_ratio,
    shown,
    work_of,
)
from tenure.dispatch.shelves import Shelf, Shelves
from tenure.dispatch.timers import ENOUGH_DELAYS, LEAST_WINDOW_S, claim_window_s
from tenure.dispatch.world import JobMemory, World
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import (
    FINAL,
    Lifetime,
    Manifest,
    Observation,
    Observations,
    Pointer,
    Witness,
    load,
)
from tenure_protocol.store.api import Missing, Store, StoreSilent, is_key
from tenure_worker import exits
from tenure_worker.claim import read_spec
from tenure_worker.pacing import DEATH_PER_H

#: Launches that are usual: a rung that becomes slower as a whole is so after 30 of them.
_NEWEST = 60
_READS = 32  # of manifests in one look
_AGAIN_S = 60.0  # between two reads of the manifests of one attempt
_READ_EVERY_S = 600.0  # what other dispatchers have seen

#: Hours of work that the death rate of an unobserved platform is worth, against those observed.
_PRIOR_H = 20.0


@dataclass(frozen=True)
class Risks:
    """What the timers of a launch are chosen by."""

    window_s: float  # for its claim
    reason: str
    restart_s: float | None  # None: not enough of them are observed
    death_per_h: float | None
    ratios: Ratios  # of steps there to their medians; none where none were observed


@dataclass
class _Track:
    """One launch of a job, as far as this dispatcher followed it."""

    job: str
    launch: int
    attempt: int = 0
    reserved_s: float | None = None  # monotonic; None: it was announced before we looked
    claimed_s: float | None = None
    alive_s: float = 0.0  # monotonic, its last sign of life
    loaded_s: float = 0.0  # from its claim to its first step, by the first manifest that was read
    pointer: Pointer | None = None  # whose manifest was read last
    read_s: float = 0.0
    manifest: Manifest | None = None
    saved_s: float = 0.0  # monotonic, when that manifest was stored
    rung: str | None = None
    end: str = RUNNING
    taken: bool = False  # released by itself: its machine was about to go
    ended_s: float | None = None
    row: Observation | None = None  # what all this comes to, until something of it changes


@dataclass
class _Place(Shelf[Observation]):
    """The rows of one (runner, card), and what was worked out from them."""

    #: By work, and by work and the launch that is not counted; both until rows change.
    usual: dict[str, Usual | None] = field(default_factory=dict)
    others: dict[tuple[str, str, int], Usual | None] = field(default_factory=dict)
    ratios: dict[str, Ratios] = field(default_factory=dict)  # by rung, until rows change

    @cached_property
    def claimed(self) -> dict[str, list[Observation]]:
        """By rung, the rows of launches that claimed their job, the oldest first; until rows change."""
        found: dict[str, list[Observation]] = {}
        for row in self.rows.values():
            if row.start_s is not None:
                found.setdefault(row.rung, []).append(row)
        return found

    def ratios_on(self, rung: str) -> Ratios:
        """How long steps were on a rung, in medians, by its newest launches; until rows change."""
        if rung not in self.ratios:
            found = self.ratios[rung] = Ratios()
            for row in self.claimed.get(rung, [])[-_NEWEST:]:
                with suppress(ValueError):  # of somebody else's making: those of the others count
                    found.merge(Ratios.from_json(row.ratios) if row.ratios else Ratios())
        return self.ratios[rung]

    @cached_property
    def worked(self) -> set[str]:
        """The rungs of which there is work in a row; until rows change."""
        return {row.rung for row in self.rows.values() if row.done}

    def forget(self) -> None:
        """Rows have changed: whatever was worked out from them is worked out anew."""
        self.usual.clear()
        self.others.clear()
        self.ratios.clear()
        self.__dict__.pop("claimed", None)
        self.__dict__.pop("worked", None)


class Observatory:
    """What one dispatcher knows of the machines of its rungs. Called from its rounds alone."""

    def __init__(
        self, store: Store, rungs: Mapping[str, Rung], clock: Clock, name: str, world: World
    ) -> None:
        self._store = store
        self._rungs = rungs
        self._clock = clock
        self._world = world
        self.lifetimes = LifetimeBook(store, clock, name)
        self._tracks: dict[str, _Track] = {}
        self._ended: deque[_Track] = deque()  # whose last manifest has not been read yet
        self.lengths = Lengths(store, world)
        self._shelves: Shelves[Observation, Observations] = Shelves(
            store,
            clock,
            Observations,
            name,
            keys.OBSERVATIONS,
            keys.observations,
            merge,
            self._forget,
            _Place,
        )
        self._places = cast("dict[Place, _Place]", self._shelves.at)
        #: By rung, until any rows change: thousands of jobs ask for the same at every round.
        self._start_s: dict[str, float | None] = {}
        self._cards: dict[str, str] = {}
        self._read_s: float | None = None
        self._over_s: dict[str, float] = {}  # by job with a result, monotonic: when it ended
        self._asked = False  # whether the store has told once what others foretold
        self._wanted = (
            False  # an attempt that moved its pointer since the last reading is to be judged
        )
        self.troubles = self._shelves.troubles

    # ------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """Follow every job one look further. A silent store costs knowledge and nothing else."""
        now_s = self._clock.monotonic_s()
        followed = [m for m in self._world.jobs.values() if m.witness is not None and not m.broken]
        if not self._asked and any(map(_has_result, followed)):
            # What others foretold of jobs that were over before anybody here looked: nothing of those is to
            # be launched, so nothing else would ever read it. A silent store is asked again.
            self.lifetimes.read()
            self._asked = not self.lifetimes.silent
        for memory in followed:
            assert memory.witness is not None
            self._follow(memory, memory.witness, now_s)
        self._read_manifests(now_s)
        self.lengths.look()
        self.lifetimes.score()
        due = self._read_s is None or now_s - self._read_s >= _READ_EVERY_S
        if due and (self._wanted or any(map(_is_to_be_launched, followed))):
            first, self._read_s, self._wanted = self._read_s is None, now_s, False
            self._read_places(first)
            self.lifetimes.read()

    def _follow(self, memory: JobMemory, w: Witness, now_s: float) -> None:
        track = self._tracks.get(memory.job)
        launch = w.holder.launch if w.holder else w.launched
        if track is not None and track.launch != launch:
            self._end(track, _end_word(track, w), now_s)
            track = None
        if _has_result(memory):
            self._note_result(memory, now_s)
        elif w.phase in FINAL:
            self.lifetimes.forget(memory.job)
        if w.phase in FINAL or w.phase in ("released", "revoked"):
            if track is not None:
                if w.phase in ("finished", "released"):  # its own last word
                    track.alive_s = now_s - memory.age_s
                    track.taken = w.exit_code == exits.RELEASED and w.asked is None
                    if w.attempt > track.attempt:
                        track.attempt = w.attempt  # it claimed and ended between two looks
                self._end(track, _end_word(track, w), now_s)
            return
        if not launch:
            return  # local mode, or a job that was revoked before its first launch
        if track is None:
            track = self._tracks[memory.job] = _Track(memory.job, launch)
        wrote_s = now_s - memory.age_s
        if w.phase == "expected" and track.reserved_s is None:
            track.reserved_s, track.row = wrote_s, None
        if w.phase == "held" and track.attempt != w.attempt:
            track.claimed_s = track.claimed_s or wrote_s
            track.attempt, track.row = w.attempt, None
        if w.phase == "held":
            track.alive_s = wrote_s

    def _note_result(self, memory: JobMemory, now_s: float) -> None:
        """Whatever is or will be known to be foretold of it has this outcome."""
        # By the first sight of its end: an experiment without open jobs is not listed, and ages stand still.
        over_s = self._over_s.setdefault(memory.job, now_s - memory.age_s)
        self.lifetimes.finished(memory.job, over_s)

    def _end(self, track: _Track, word: str, now_s: float) -> None:
        del self._tracks[track.job]
        track.end, track.ended_s, track.row = word, now_s, None
        self._ended.append(track)

    def _read_manifests(self, now_s: float) -> None:
        """The newest manifest of attempts that have moved their pointer, the longest unread first."""
        budget = _READS
        for _ in range(len(self._ended)):
            if not budget:
                return
            track = self._ended.popleft()
            if not self._take(track, now_s):
                self._ended.append(track)
            budget -= 1
        due = [
            track
            for track in self._tracks.values()
            if self._pointer(track) not in (None, track.pointer)
            and now_s - track.read_s >= _pause_s(track)
        ]
        for track in sorted(due, key=lambda track: track.read_s)[:budget]:
            self._take(track, now_s)

    def _pointer(self, track: _Track) -> Pointer | None:
        """The stored pointer of the job, if this launch's attempt wrote it."""
        w = self._world.jobs[track.job].witness
        mine = w and w.pointer and track.attempt and w.pointer.attempt == track.attempt
        return w.pointer if w and mine else None

    def _take(self, track: _Track, now_s: float) -> bool:
        """Read what is new of one launch and keep its row; whether the store answered."""
        pointer = self._pointer(track)
        track.row = None
        try:
            if pointer is not None and pointer != track.pointer:
                key = keys.manifest(track.job, pointer)
                # A rented machine may write any pointer too, and a key that cannot be has no manifest.
                found = self._store.read(key) if is_key(key) else Missing()
                if not isinstance(found, Missing):
                    track.manifest = believable(load(Manifest, found.body, key))
                    self._wanted = True
                    track.saved_s = now_s - found.age_s
                    if track.pointer is None and track.claimed_s is not None:
                        began_s = track.saved_s - track.manifest.busy_s
                        track.loaded_s = max(0.0, began_s - track.claimed_s)
                track.pointer, track.read_s = pointer, now_s
            if track.reserved_s is None:
                self._find_beginning(track, now_s)
            memory = self._world.jobs[track.job]
            if memory.spec is None:  # of a job that was over before anybody here looked
                memory.spec = read_spec(self._store, track.job)
            if track.manifest is not None:
                self.lengths.note(track.job, memory.spec, track.manifest)
        except StoreSilent:
            return False
        except Corrupt as error:  # who resumes from it says so; it shows no work here
            self.troubles[error.key] = str(error)
            track.pointer = pointer
        self._keep(track)
        return True

    def _find_beginning(self, track: _Track, now_s: float) -> None:
        """When a launch was announced that began before this dispatcher, by the age of its intent."""
        found = self._store.read(keys.intent(track.job, track.launch))
        if not isinstance(found, Missing):
            track.reserved_s = now_s - found.age_s

    def _keep(self, track: _Track) -> None:
        row, place = self._row(track), self._place_of(track)
        if row is None or place is None:
            return
        self.lifetimes.put(place, self._lifetime(track, row))
        if self._shelves.of(place).put(row):
            self._forget(place)

    def _lifetime(self, track: _Track, row: Observation) -> Lifetime:
        """The same launch as its machine's life: until its last sign, where a row ends at a milestone."""
        spec, m = self._world.jobs[track.job].spec, track.manifest
        held_s = None
        if track.claimed_s is not None:
            held_s = max(0.0, max(track.alive_s, track.saved_s) - track.claimed_s)
        every = spec.milestone_every if spec else 1
        return Lifetime(
            row.job,
            row.launch,
            row.rung,
            "taken" if track.taken else row.end,
            spec.cards if spec else 1,
            held_s,
            track.loaded_s if m else None,
            max(1, round((m.step - m.from_step) / every)) if m else 0,
        )

    def _forget(self, place: Place) -> None:
        """Rows of a place have changed: whatever was worked out from them is worked out anew."""
        self._places[place].forget()
        self._start_s.clear()
        self._cards.clear()

    def _row(self, track: _Track) -> Observation | None:
        if track.row is not None:
            return track.row
        row = self._made_row(track)
        if track.rung is not None:  # else its intent could not be read yet
            track.row = row
        return row

    def _made_row(self, track: _Track) -> Observation | None:
        memory = self._world.jobs[track.job]
        if memory.spec is None or track.reserved_s is None:
            return None
        manifest = track.manifest
        until_s = track.saved_s if manifest else track.ended_s
        start_s = None
        if track.claimed_s is not None:
            start_s = max(0.0, track.claimed_s - track.reserved_s)
        row = Observation(
            track.job,
            track.launch,
            self._rung_of(track) or "?",
            track.end,
            work_of(memory.spec, manifest),
            start_s,
            max(0.0, until_s - track.reserved_s) if until_s is not None else 0.0,
        )
        busy_s, done = shown(memory.spec, manifest) if manifest else (0.0, 0.0)
        if manifest is None or not done:
            return row
        return replace(
            row,
            busy_s=busy_s,
            done=done,
            median_step_s=manifest.median_step_s,
            ratios=manifest.ratios,
        )

    def _rung_of(self, track: _Track) -> str | None:
        if track.rung is None:
            track.rung = self._world.rung_of(track.job, track.launch)
        return track.rung

    def _place_of(self, track: _Track) -> Place | None:
        """The runner and the card: as the worker measured it, else as the rung has it."""
        rung = self._rungs.get(self._rung_of(track) or "")
        if rung is None:
            return None
        measured = track.manifest.fingerprint.get("card") if track.manifest else None
        if isinstance(measured, str) and measured:
            return rung.runner_name, measured
        return rung.runner_name, self.card_of(rung)

    # ------------------------------------------------------------------------------- keeping

    def write(self, at_once: bool = False) -> None:
        """Write what is new, every five minutes or ``at_once``; by a replace on what was read before."""
        self.lifetimes.write(at_once)
        self._shelves.write(at_once)

    def settle(self) -> None:
        """At the end of a dispatcher: score what others foretold meanwhile, and write everything at once.

        A silent store costs knowledge and nothing else: nobody who leaves waits for it more than once.
        """
        self.lifetimes.read()
        if self.lifetimes.silent:
            return
        for job, over_s in self._over_s.items():
            self.lifetimes.finished(job, over_s)
        while self.lifetimes.score():
            pass
        for _ in range(2):  # what another has written since is read by the first, and merged
            self.write(at_once=True)

    def _read_places(self, first: bool) -> None:
        """What other dispatchers have seen; where nobody has kept anything, what the manifests tell."""
        if not self._shelves.read() and first:
            self._rebuild()

    def _rebuild(self) -> None:
        """The last attempt of every job that is over, of which its manifest and its intent tell."""
        for memory in list(self._world.jobs.values())[-MOST_ROWS:]:
            w = memory.witness
            if w and w.pointer and memory.final and w.launched:
                track = _Track(memory.job, w.launched, w.pointer.attempt)
                track.end = _end_word(track, w)
                self._ended.append(track)

    # --------------------------------------------------------------------------- judgements

    def usual(self, place: Place, work: str) -> Usual | None:
        """What is usual for one kind of work on one card of one runner."""
        kept = self._places.get(place)
        if kept is None:
            return None
        if work not in kept.usual:
            rows = [row for row in kept.rows.values() if row.work == work][-_NEWEST:]
            kept.usual[work] = quality.usual(rows, f"{place[1]} at {place[0]}")
        return kept.usual[work]

    def starts_s(self, rung: str) -> list[float]:
        """How long launches on a rung took to claim, the oldest first."""
        return [row.start_s for row in self._claimed_on(rung) if row.start_s is not None]

    def _claimed_on(self, rung: str) -> list[Observation]:
        return [row for kept in self._places.values() for row in kept.claimed.get(rung, ())]

    def start_s(self, rung: str) -> float | None:
        """The median of these; ``None`` where none was seen."""
        if rung not in self._start_s:
            starts = self.starts_s(rung)
            self._start_s[rung] = median(starts) if starts else None
        return self._start_s[rung]

    def risks(self, rung: Rung) -> Risks:
        """What the timers of a launch on a rung are chosen by, as far as it is observed."""
        starts = self.starts_s(rung.name)
        window_s, reason = claim_window_s(starts, rung.capacity.window_s)
        if window_s <= LEAST_WINDOW_S:  # whoever asks for less knows its runner
            window_s = min(window_s, rung.capacity.window_s)
        rows = self._claimed_on(rung.name)
        lost = sum(row.end == "lost" for row in rows)
        paid_h = sum(row.paid_s for row in rows) / 3600.0
        return Risks(
            window_s,
            reason,
            median(starts) if len(starts) >= ENOUGH_DELAYS else None,
            (DEATH_PER_H * _PRIOR_H + lost) / (_PRIOR_H + paid_h) if rows else None,
            self._ratios(rung.name),
        )

    def _ratios(self, rung: str) -> Ratios:
        found = Ratios()
        for kept in self._places.values():
            found.merge(kept.ratios_on(rung))
        return found

    def card_of(self, rung: Rung) -> str:
        """The card that machines of a rung have: as measured there last, else as tenure.toml says."""
        if rung.name not in self._cards:
            self._cards[rung.name] = self._measured_card(rung) or rung.card
        return self._cards[rung.name]

    def _measured_card(self, rung: Rung) -> str | None:
        for (runner, card), kept in reversed(self._places.items()):
            if runner == rung.runner_name and rung.name in kept.worked:
                return card
        return None

    def flops_left(self, job: str) -> float | None:
        """FLOPs that a job has left to do, by all its cards; ``None`` while no milestone tells them."""
        left = self.lengths.told(job)
        return left.amount if left and left.work.startswith(FLOPS_OF) else None

    def left(self, job: str) -> WorkLeft | None:
        """What a job has left to do; see :class:`Lengths`."""
        return self.lengths.left(job)

    def milestone_work(self, job: str, left: WorkLeft) -> float | None:
        """The work between two milestones of a job that has so much left; ``None`` without its spec."""
        spec = self._world.jobs[job].spec
        return spec.milestone_every * left.per_step if spec else None

    def longest_silence_s(self, job: str) -> float:
        """The longest lease that a job allows; none is known without its spec."""
        spec = self._world.jobs[job].spec
        return spec.max_silence_s if spec else math.inf

    def expected(self, left: WorkLeft, rung: Rung) -> tuple[float, float] | None:
        """Speed in steps and useful share that such work is expected to have on a rung.

        As seen there, else where most of it was seen, by the peaks of the two cards in its dtype; where that
        is not told, in the first that both have a peak in. Good enough to plan with, and to be corrected
        by the first milestone there; nobody is judged by it.
        """
        card = self.card_of(rung)
        if known := self.usual((rung.runner_name, card), left.work):
            return known.per_s, known.share
        seen = [(place, self.usual(place, left.work)) for place in self._places]
        most = max(
            ((place, usual) for place, usual in seen if usual),
            key=lambda row: (row[1].count, row[0]),
            default=None,
        )
        if most is None:
            return None
        ratios = (
            peak_ratio(card, most[0][1], dtype)
            for dtype in ([left.dtype] if left.dtype else LIKELY_DTYPES)
        )
        ratio = next((each for each in ratios if each), None)
        return (most[1].per_s * ratio, most[1].share) if ratio else None

    def pace(self, job: str) -> Pace | None:
        """What the attempt that holds a job has shown; ``None`` before its first milestone."""
        track, memory = self._tracks.get(job), self._world.jobs[job]
        if track is None or track.manifest is None or track.reserved_s is None or not memory.spec:
            return None
        row, m = self._row(track), track.manifest
        if row is None or row.busy_s <= 0 or m.attempt != track.attempt:
            return None
        each = m.flops_per_step or 1.0
        guessed = m.steps_total is None or m.steps_total < m.step
        left = float(m.step if guessed else (m.steps_total or 0) - m.step)
        return Pace(
            row.rung,
            row.work,
            row.done,
            row.busy_s,
            row.paid_s,
            (row.start_s or 0.0) + track.loaded_s,  # paid once: it tells nothing of what is left
            m.step - m.from_step,
            left * each,
            guessed,
        )

    def usual_of(self, job: str) -> Usual | None:
        """What is usual where a job runs now, itself not counted."""
        track = self._tracks.get(job)
        place = self._place_of(track) if track else None
        row = self._row(track) if track else None
        if track is None or place is None or row is None or place not in self._places:
            return None
        kept, mine = self._places[place], (job, track.launch)
        if mine not in kept.rows or kept.rows[mine].work != row.work:
            return self.usual(place, row.work)
        alone = (row.work, *mine)
        if alone not in kept.others:
            rows = kept.rows.items()
            others = [each for key, each in rows if each.work == row.work and key != mine]
            kept.others[alone] = quality.usual(others[-_NEWEST:], f"{place[1]} at {place[0]}")
        return kept.others[alone]

    def options(self, job: str, pace: Pace, rungs: Sequence[str]) -> dict[str, Option]:
        """What each of ``rungs`` is expected to do with the work of a job, where anybody can say."""
        track = self._tracks[job]
        place, common = self._place_of(track), self.usual_of(job)
        dtype = track.manifest.dtype if track.manifest else None
        found: dict[str, Option] = {}
        for name in rungs:
            rung = self._rungs.get(name)
            if rung is None or place is None:
                continue
            if name == pace.rung:  # another machine of it does what is usual there
                here = (common.per_s, common.share) if common else (pace.per_s, pace.share)
                found[name] = self._option(rung, *here)
            elif known := self.usual((rung.runner_name, self.card_of(rung)), pace.work):
                found[name] = self._option(rung, known.per_s, known.share)
            elif common and dtype and (ratio := peak_ratio(self.card_of(rung), place[1], dtype)):
                found[name] = self._option(rung, common.per_s * ratio, common.share, True)
        return found

    def _option(self, rung: Rung, per_s: float, share: float, predicted: bool = False) -> Option:
        known_s = self.start_s(rung.name)
        start_s = quality.UNKNOWN_START_S if known_s is None else known_s
        per_h, currency = (rung.price.per_h, rung.price.currency) if rung.price else (0.0, "")
        return Option(rung.name, per_s, share, start_s, per_h, currency, predicted)

    def rows(self) -> Sequence[tuple[Place, Observation]]:
        """Every row that is known, by (runner, card)."""
        return self._shelves.rows()


def _pause_s(track: _Track) -> float:
    """Between two reads of the manifests of one attempt: short while it is young, so that what it shows
    doubles from one read to the next.
    """
    return min(_AGAIN_S, track.manifest.busy_s) if track.manifest else 0.0


def _has_result(memory: JobMemory) -> bool:
    w = memory.witness
    return w is not None and w.phase == "finished" and w.exit_code == 0


def _is_to_be_launched(memory: JobMemory) -> bool:
    return memory.witness is not None and memory.witness.phase not in ("held", *FINAL)


def _end_word(track: _Track, w: Witness) -> str:
    """How a launch ended, by the witness that shows it."""
    if w.phase == "finished":
        return "finished"
    if not track.attempt:
        return "unclaimed"
    if w.phase == "released" and w.attempt == track.attempt:
        return f"released:{w.exit_code or 0}"
    if w.phase in ("revoked", "cancelled"):
        return w.phase
    return "lost"
