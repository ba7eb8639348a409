"""Everybody's next steps in a small world: processes, dispatchers, operators, and what is on its way.

The actors follow lease/client.py and dispatch/loop.py. A conditional write is applied, applied without
an answer, lost, or delayed past its sender's death. Anyone may crash, a vacancy may be declared at any
moment (so the clock is the adversary's), the platform may create a launch twice, an upload may land late.

What keeps the world small, and why nothing is missed:

* ``write_id``s are fresh, so an ETag that is stale never becomes current again. What an actor remembers
  is therefore one bit, a decision on a current ETag is a decision on the body stored now, and every
  delayed write is dead as soon as any write lands.
* An actor may ask the table for more than its client would (an impatient claim, a reservation without
  evidence): the table must refuse, so that the client alone is not what keeps the invariants.
* A silent read leaves an actor where it was. A deposed worker is one state, since its writes are dead and
  its keys are its own. A dispatcher's name is forgotten once it can recognise nothing by it.
* Announcements and silences are numbers for the clock, which is the adversary's, and stay constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from tenure.sim.small_world import REFUSED, Behaviour, Bodies, Transition, World
from tenure_protocol.lease.machine import ABSENT
from tenure_protocol.records import FINAL

# A process: (GONE,), (DEPOSED, launch, attempt), (CLAIMING, launch, barred, proposal) or
# (HOLDING, launch, attempt, etag, mode, draft, confirmed, known); its place in the tuple is its nonce.
# ``known`` is the body it takes for stored where a mutant's ETag does not say so, otherwise 0.
Process = tuple[int, ...]
GONE, CLAIMING, HOLDING, DEPOSED = range(4)
# What a holder's ETag is: that of the body stored now; of one that somebody else replaced; of one that
# an older unsettled write of its own replaced; LAST + kind: that the last one replaced.
CURRENT, STALE, OLDER, LAST = range(4)
# What a holder writes; once it releases or finishes it writes nothing else.
RENEW, MOVE, RELEASE, FINISH, FAIL = range(5)
KINDS = ("renews", "moves the pointer", "releases", "finishes", "fails")
# A dispatcher: IDLE, SENT (a reservation without an answer), n > 0 (it has reserved launch n and goes
# on to make it), or -2 - n (mutant: proposal n is sent again whatever is stored).
IDLE, SENT = 0, -1
# What is left of the world's numbers.
REVOKES, ASKS, NOTICES, ERRORS, CANCELS, REWINDS, FAULTS = range(7)

# A conditional write on its way: body, event, its holder's slot or -1, whether it is the last, kind.
Sent = tuple[int, int, int, int, int]
Upload = tuple[tuple[int, ...], int]  # a key, and what is or will be stored under it
Budget = tuple[int, ...]
Label = tuple[str, str, str]

REAL = Behaviour()


class State(NamedTuple):
    """All that the future depends on."""

    body: int
    processes: tuple[Process, ...]
    dispatchers: tuple[int, ...]
    sent: tuple[Sent, ...]  # each on the current ETag: any landing kills all others
    stored: tuple[Upload, ...]
    late: tuple[Upload, ...]  # uploads that may still land
    left: Budget


class Step(NamedTuple):
    """One edge. ``free`` is False for faults and for what only an adversary or an operator does."""

    label: Label
    to: State
    free: bool = True
    why: str | None = None  # the invariant it breaks


class Actors:
    """Everybody's next steps from a state, and the rules that hold in it."""

    def __init__(self, world: World, table: Transition, habits: Behaviour) -> None:
        self.world = world
        self.habits = habits
        self.bodies = Bodies(table, habits)
        self._proposals: list[
            tuple[int, int]
        ] = []  # (body, event) of mutants that do not decide anew

    def start(self) -> State:
        """Nothing stored; scripts in local mode are there already."""
        w = self.world
        faults = -1 if w.faults is None else w.faults
        left = (w.revokes, w.asks, w.notices, w.errors, w.cancels, w.rewinds, faults)
        scripts = ((CLAIMING, 0, 0, 0),) * w.scripts
        return State(0, scripts, (IDLE,) * w.dispatchers, (), (), (), left)

    def steps(self, s: State) -> list[Step]:
        """Every edge out of a state."""
        out: list[Step] = []
        for slot, process in enumerate(s.processes):
            if process[0] == CLAIMING:
                self._claiming(s, slot, out)
            elif process[0] == HOLDING:
                self._holding(s, slot, out)
            elif process[0] == DEPOSED:
                why = self._stopped_by_proof(s, slot)
                out.append(Step((f"p{slot}", "stops", "deposed"), self._gone(s, slot), True, why))
        for d in range(len(s.dispatchers)):
            self._dispatcher(s, d, out)
        self._operator(s, out)
        self._network(s, out)
        return out

    # ------------------------------------------------------------------------- rules of a state

    def broken(self, s: State) -> str | None:
        """Which invariant a state breaks, or ``None``."""
        f = self.bodies.facts[s.body]
        if f.pointer and self.bodies.place(f.pointer) not in s.stored:
            return "3: the pointer names bytes that the store does not hold"
        for slot, p in enumerate(s.processes):
            believes = p[7] if p[0] == HOLDING and self.habits.holder_decides_anew else 0
            if believes and p[3] == CURRENT and believes != s.body:
                return "5: a holder takes for stored what is not"
            not_holder = p[0] in (HOLDING, DEPOSED) and (f.slot, f.attempt) != (slot, p[2])
            if not_holder and (why := self.bodies.deposed_may_write(s.body, p[1], slot, p[2])):
                return why
            if p[0] == CLAIMING and p[1] > f.launched:
                return "8: a launch was made that the store does not know"
        making = [n for n in s.dispatchers if n > 0]
        if len(set(making)) < len(making):
            return "8: two dispatchers make the same launch"
        return self.bodies.strays(s.body) if f.phase in ("held", "revoked") else None

    def over(self, s: State) -> bool:
        """Whether the job has ended."""
        return self.bodies.facts[s.body].phase in FINAL

    def roomy(self, s: State) -> bool:
        """Whether one more launch, process and attempt are left, so that it need not be cancelled."""
        f, w = self.bodies.facts[s.body], self.world
        room = f.launched < w.launches and f.attempt < w.attempts and f.phase != "cancelled"
        return room and len(s.processes) + sum(n > 0 for n in s.dispatchers) < w.workers

    def _stopped_by_proof(self, s: State, slot: int) -> str | None:
        """A holder that stops as deposed has been deposed, and not by its own write."""
        p, f = s.processes[slot], self.bodies.facts[s.body]
        mine = (f.slot, f.attempt) == (slot, p[2]) or (p[0] == HOLDING and p[3] >= OLDER)
        return "6: a worker stopped without proof" if mine else None

    def _vacant(self, s: State) -> bool:
        """Whether the job is vacant in truth: nobody lives that holds it or may claim it."""
        f = self.bodies.facts[s.body]
        if f.phase == "held":
            return s.processes[f.slot][0] == GONE
        if f.phase != "expected":
            return True
        coming = any(p[0] == CLAIMING and p[1] > f.barrier for p in s.processes)
        making = any(n > 0 or (n and f.by == d) for d, n in enumerate(s.dispatchers))
        return not coming and not making

    # ------------------------------------------------------------------------ what a write becomes

    def _paid(self, s: State) -> State | None:
        """The state after one more fault, or ``None`` when no more may happen."""
        return s if s.left[FAULTS] < 0 else self._spent(s, FAULTS)

    def _spent(self, s: State, what: int) -> State | None:
        left = s.left
        if not left[what]:
            return None
        return s._replace(left=(*left[:what], left[what] - 1, *left[what + 1 :]))

    def _became(self, s: State, slot: int, process: Process) -> State:
        processes = s.processes
        return s._replace(processes=(*processes[:slot], process, *processes[slot + 1 :]))

    def _turned(self, s: State, d: int, to: int) -> State:
        dispatchers = s.dispatchers
        return s._replace(dispatchers=(*dispatchers[:d], to, *dispatchers[d + 1 :]))

    def _gone(self, s: State, slot: int) -> State:
        """A process ends; its writes on their way stay, and nobody waits for them."""
        sent = s.sent
        if any(w[2] == slot for w in sent):
            sent = _set((w[0], w[1], -1, 0, 0) if w[2] == slot else w for w in sent)
        return self._tidy(self._became(s, slot, (GONE,))._replace(sent=sent))

    def _forgotten(self, s: State, d: int) -> State:
        """A dispatcher that crashed, or made its launch, recognises no reservation any more."""
        facts, nameless = self.bodies.facts, self.bodies.nameless
        body = nameless(s.body) if facts[s.body].by == d else s.body
        sent = s.sent
        if any(facts[w[0]].by == d for w in sent):
            sent = _set((nameless(w[0]), *w[1:]) if facts[w[0]].by == d else w for w in sent)
        return self._turned(s, d, IDLE)._replace(body=body, sent=sent)

    def _landed(self, s: State, body: int, writer: int = -1, etag: int = STALE) -> State:
        """A write is applied: every ETag but its own writer's is stale, all other writes are dead."""
        f = self.bodies.facts[body]
        processes = list(s.processes)
        for slot, p in enumerate(processes):
            if p[0] == HOLDING:
                tag = etag if slot == writer else STALE
                mine = (f.slot, f.attempt) == (slot, p[2])
                if tag == STALE and not mine and self.habits.deposed_is_idle:
                    processes[slot] = (DEPOSED, p[1], p[2])
                else:
                    keeps = tag != CURRENT and self.habits.holder_decides_anew is False
                    known = (p[7] or s.body) if keeps else 0
                    processes[slot] = (*p[:3], tag, *p[4:7], known)
            elif p[0] == CLAIMING and f.phase == "revoked" and f.launched:
                processes[slot] = (CLAIMING, p[1], 1, p[3])
        mine_or_any = self.habits.launches_own_reservations_only
        dispatchers = tuple(
            IDLE if n == SENT and (f.by < 0 or (mine_or_any and f.by != d)) else n
            for d, n in enumerate(s.dispatchers)
        )
        new = State(body, tuple(processes), dispatchers, (), s.stored, s.late, s.left)
        return self._tidy(new)

    def _tidy(self, s: State) -> State:
        """Forget bytes that nothing refers to, and uploads of what is there already."""
        if not s.stored and not s.late:
            return s
        facts = self.bodies.facts
        named = {facts[s.body].pointer, *(p[5] for p in s.processes if p[0] == HOLDING)}
        named |= {facts[w[0]].pointer for w in s.sent}
        if self.world.rewinds:
            named |= set(self.bodies.ancestors(facts[s.body].pointer))
        places = {self.bodies.place(n)[0] for n in named if n}
        stored = tuple(b for b in s.stored if b[0] in places)
        late = s.late
        if self.habits.fresh_names:
            late = tuple(b for b in late if b[0] in places and b not in stored)
        return s._replace(stored=stored, late=late)

    def _write(
        self, out: list[Step], who: str, act: str, free: bool, event: int, why: str | None,
        body: int, yes: State, mute: State | None, owner: int = -1, kind: int = RENEW,
    ) -> None:  # fmt: skip
        """A conditional write's ends: answered (from ``yes``), or not (from ``mute``)."""
        to = self._landed(yes, body, owner, CURRENT)
        out.append(Step((who, act, "applied"), to, free, why))
        mute = self._paid(mute) if mute else None
        if mute is None:
            return
        to = self._landed(mute, body, owner, LAST + kind)
        out.append(Step((who, act, "applied, the answer lost"), to, False, why))
        flying = _set((*mute.sent, (body, event, owner, int(owner >= 0), kind)))
        out.append(Step((who, act, "delayed"), mute._replace(sent=flying), False))
        if owner >= 0 or self.habits != REAL:  # others find what they left, and ask again
            out.append(Step((who, act, "lost"), mute, False))

    # -------------------------------------------------------------------------------- a process

    def _claiming(self, s: State, slot: int, out: list[Step]) -> None:
        f, who = self.bodies.facts[s.body], f"p{slot}"
        _, launch, barred, proposal = s.processes[slot]
        if broke := self._paid(s):
            out.append(Step((who, "crashes", ""), self._gone(broke, slot), False))
        if f.slot == slot:
            holder = (HOLDING, launch, f.attempt, CURRENT, RENEW, 0, 0, 0)
            out.append(Step((who, "finds its claim stored", ""), self._became(s, slot, holder)))
            return
        if proposal:
            body, event = self._proposals[proposal]
            why = self.bodies.overwrites(s.body, event, body)
            out.append(Step((who, "claims again", "blindly"), self._landed(s, body), False, why))
        refused = f.phase != ABSENT
        for vacant in (False, True) if f.phase == "held" else (False,):
            event = self.bodies.claim(launch, slot, vacant)
            body, why = self.bodies.ask(s.body, event)
            if body == REFUSED:
                continue
            refused = refused and vacant
            if f.attempt == self.world.attempts:
                refused = True  # the world ends here
                continue
            wrong = vacant and not self._vacant(s)
            base = self._paid(s) if wrong else s
            if base is None:
                continue
            if barred:
                why = why or "5: a process whose launch was revoked claimed"
            attempt = self.bodies.facts[body].attempt
            holder = (HOLDING, launch, attempt, CURRENT, RENEW, 0, 0, 0)
            mute = base
            if not self.habits.claimant_decides_anew:
                mute = self._became(base, slot, (CLAIMING, launch, barred, self._keep(body, event)))
            yes = self._became(base, slot, holder)
            act = "claims what it found vacant" if vacant else "claims"
            self._write(out, who, act, not wrong, event, why, body, yes, mute, slot)
        if refused:
            out.append(Step((who, "leaves", "nothing to claim"), self._gone(s, slot)))

    def _holding(self, s: State, slot: int, out: list[Step]) -> None:
        who, p, habits = f"p{slot}", s.processes[slot], self.habits
        if broke := self._paid(s):
            out.append(Step((who, "crashes", ""), self._gone(broke, slot), False))
            if not habits.silence_stops_nobody:
                why = self._stopped_by_proof(s, slot)
                out.append(Step((who, "stops", "silence"), self._gone(broke, slot), False, why))
        f = self.bodies.facts[s.body]
        self._uploads(s, slot, out)
        if (f.slot, f.attempt) == (slot, p[2]):
            self._drafts(s, slot, out)
        if p[4] == RELEASE:
            out.append(Step((who, "leaves", "without an answer"), self._gone(s, slot)))
        if p[3] != CURRENT:
            self._look(s, slot, out)
            if p[3] >= LAST:
                again = self._became(s, slot, (*p[:3], OLDER, *p[4:]))
                out.append(Step((who, "writes again", "lost"), again, False))
            return
        for kind, base, free in self._kinds(s, slot):
            self._hold(base, slot, kind, free, out)

    def _kinds(self, s: State, slot: int) -> list[tuple[int, State, bool]]:
        """What a holder with a current ETag may write."""
        _, _, _, _, mode, draft, confirmed, known = s.processes[slot]
        f = self.bodies.facts[known or s.body]
        if mode != RENEW:
            return [(mode, s, True)]
        kinds = [(MOVE if draft and confirmed else RENEW, s, True)]
        if not draft and f.ordinal >= self.world.milestones:
            kinds.append((FINISH, s, True))
        if f.asked:
            kinds.append((RELEASE, s, True))
        elif noticed := self._spent(s, NOTICES):
            kinds.append((RELEASE, noticed, False))
        if erred := self._spent(s, ERRORS):
            kinds.append((FAIL, erred, False))
        return kinds

    def _hold(self, s: State, slot: int, kind: int, free: bool, out: list[Step]) -> None:
        p, who, act, habits = s.processes[slot], f"p{slot}", KINDS[kind], self.habits
        _, launch, attempt, _, mode, draft, _, known = p
        basis = known or s.body
        if kind in (RENEW, MOVE):
            done = habits.move_judged_by_pointer and self.bodies.facts[basis].pointer == draft
            event = self.bodies.hold(launch, slot, attempt, 0 if done or kind == RENEW else draft)
        elif kind == RELEASE:
            event = self.bodies.release(launch, slot, attempt)
        else:
            event = self.bodies.finish(launch, slot, attempt, int(kind == FAIL))
        body, why = self.bodies.ask(basis, event)
        if body == REFUSED:
            said = f"6: the client asks for what the table refuses ({why})"
            out.append(Step((who, act, "refused"), s, False, said))
            return
        if basis != s.body:
            why = self.bodies.overwrites(s.body, event, body)
        sent = tuple((*w[:3], 0, RENEW) if w[2] == slot else w for w in s.sent)
        mute = self._became(s, slot, (*p[:4], mode if kind <= MOVE else kind, *p[5:]))
        mute = mute._replace(sent=_set(sent))
        yes = self._confirmed(s, slot, kind)
        if not habits.unknown_is_unknown:
            mute = self._confirmed(mute, slot, kind)
            if mute.processes[slot][0] == HOLDING:
                mute = self._became(mute, slot, (*mute.processes[slot][:7], body))
        if not habits.unknown_stops_nobody and (broke := self._paid(s)):
            proof = self._stopped_by_proof(s, slot)
            out.append(Step((who, act, "no answer: stops"), self._gone(broke, slot), False, proof))
        self._write(out, who, act, free, event, why, body, yes, mute, slot, kind)

    def _confirmed(self, s: State, slot: int, kind: int) -> State:
        """What a holder is once it takes a write of this kind for stored."""
        if kind in (RELEASE, FINISH, FAIL):
            return self._gone(s, slot)
        p = s.processes[slot]
        snapshot = (0, 0) if kind == MOVE else p[5:7]
        return self._became(s, slot, (*p[:3], CURRENT, p[4], *snapshot, 0))

    def _look(self, s: State, slot: int, out: list[Step]) -> None:
        """A holder was refused and reads: its own write, somebody's that leaves it the holder, or proof."""
        who, p, habits = f"p{slot}", s.processes[slot], self.habits
        f, etag = self.bodies.facts[s.body], p[3]
        still_mine = (f.slot, f.attempt) == (slot, p[2])
        if habits.refusal_stops_nobody and etag >= LAST:
            to = self._confirmed(s, slot, etag - LAST)
            out.append(Step((who, "reads", f"it {KINDS[etag - LAST]} as asked"), to))
            return
        ended = etag == OLDER and not still_mine and habits.remembers_all_unsettled
        if habits.refusal_stops_nobody and ended:
            out.append(Step((who, "reads", "an older write ended it"), self._gone(s, slot)))
            return
        adopts = still_mine and (etag == OLDER or habits.adopts_foreign_writes)
        if habits.refusal_stops_nobody and (adopts or not habits.adopts_only_while_holding):
            to = self._became(s, slot, (*p[:3], CURRENT, *p[4:7], 0))
            out.append(Step((who, "reads", "goes on from there"), to))
            return
        if not habits.holder_decides_anew:
            out.append(
                Step(
                    (who, "refreshes", "its ETag only"),
                    self._became(s, slot, (*p[:3], CURRENT, *p[4:])),
                )
            )
            return
        why = self._stopped_by_proof(s, slot)
        out.append(Step((who, "stops", "deposed"), self._gone(s, slot), True, why))

    def _drafts(self, s: State, slot: int, out: list[Step]) -> None:
        """The loop saves a milestone, whose manifest names the pointer that is stored."""
        p, habits, bodies = s.processes[slot], self.habits, self.bodies
        f, draft, attempt = bodies.facts[s.body], p[5], p[2]
        if p[4] != RENEW:
            return
        new, last = 0, self.world.milestones
        if not draft:
            new = bodies.save(attempt, f.pointer, f.ordinal + 1, 0, 0) if f.ordinal < last else 0
        else:
            old, parent = bodies.of(draft), bodies.parent(draft)
            content = bodies.content(draft) + 1
            save = old.save + habits.new_save_new_name
            if not p[6] and content < self.world.saves:
                new = bodies.save(attempt, parent, old.ordinal, save, content)
            elif p[6] and not habits.parent_is_stored and old.ordinal < last:
                new = bodies.save(attempt, draft, old.ordinal + 1, 0, 0)
            elif p[6] and not habits.drafts_after_settling and content < 2:
                new = bodies.save(attempt, parent, old.ordinal, save, content)
        if new:
            confirmed = int(not habits.confirms_bytes_before_moving)
            to = self._became(s, slot, (*p[:5], new, confirmed, p[7]))
            words = f"snapshot {bodies.of(new).digest}"
            out.append(Step((f"p{slot}", "saves", words), self._tidy(to)))

    def _uploads(self, s: State, slot: int, out: list[Step]) -> None:
        """The courier sends the draft's bytes, the manifest last, until the store confirms them."""
        p, who = s.processes[slot], f"p{slot}"
        if not p[5] or p[6]:
            return
        upload = self.bodies.place(p[5])
        there = _put(s.stored, upload)
        done = self._became(s, slot, (*p[:6], 1, p[7]))._replace(stored=there)
        out.append(Step((who, "uploads", "confirmed"), self._tidy(done)))
        if broke := self._paid(s):
            silent = self._tidy(broke._replace(stored=there))
            out.append(Step((who, "uploads", "the answer lost"), silent, False))
            late = self._tidy(broke._replace(late=_set_uploads((*s.late, upload))))
            out.append(Step((who, "uploads", "delayed"), late, False))

    # ------------------------------------------------------------------------------ a dispatcher

    def _dispatcher(self, s: State, d: int, out: list[Step]) -> None:
        who, n, f = f"d{d}", s.dispatchers[d], self.bodies.facts[s.body]
        if n != IDLE and (broke := self._paid(s)):
            out.append(Step((who, "crashes", ""), self._forgotten(broke, d), False))
        if n > 0:
            self._makes(s, d, n, out)
            return
        expects = f.by == d or (not self.habits.launches_own_reservations_only and f.by >= 0)
        if n != IDLE and expects:
            out.append(Step((who, "finds its reservation", ""), self._turned(s, d, f.launched)))
        if n < SENT and not expects:
            body, event = self._proposals[-2 - n]
            why = self.bodies.overwrites(s.body, event, body)
            out.append(Step((who, "reserves again", "blindly"), self._landed(s, body), False, why))
        if f.launched == self.world.launches:
            return
        self._reserves(s, d, "none", out)
        if f.phase in ("expected", "held"):
            self._reserves(s, d, "vacant", out)

    def _reserves(
        self, s: State, d: int, evidence: Literal["none", "vacant"], out: list[Step]
    ) -> None:
        habits, event = self.habits, self.bodies.reserve(d, evidence)
        body, why = self.bodies.ask(s.body, event)
        wrong = evidence == "vacant" and not self._vacant(s)
        base = self._paid(s) if wrong else s
        if body == REFUSED or base is None:
            return
        number = self.bodies.facts[body].launched
        unsettled = SENT if habits.launches_late_reservations else IDLE
        if not habits.reserves_before_launch:
            unsettled = number
        if not habits.dispatcher_decides_anew:
            unsettled = -2 - self._keep(body, event)
        act = f"reserves launch {number}" + (" as vacant" if evidence == "vacant" else "")
        yes, mute = self._turned(base, d, number), self._turned(base, d, unsettled)
        self._write(out, f"d{d}", act, not wrong, event, why, body, yes, mute)

    def _makes(self, s: State, d: int, n: int, out: list[Step]) -> None:
        """Intent, then the platform: a process, two of them, or no room for any."""
        room = self.world.workers - len(s.processes)
        after, one = self._forgotten(s, d), (CLAIMING, n, 0, 0)
        if not room:
            out.append(Step((f"d{d}", f"makes launch {n}", "no slots"), after))
            return
        made = after._replace(processes=(*s.processes, one))
        out.append(Step((f"d{d}", f"makes launch {n}", f"p{len(s.processes)}"), made))
        if room > 1 and (broke := self._paid(after)):
            twins = broke._replace(processes=(*s.processes, one, one))
            out.append(Step((f"d{d}", f"makes launch {n}", "created twice"), twins, False))

    def _keep(self, body: int, event: int) -> int:
        if (body, event) not in self._proposals:
            self._proposals.append((body, event))
        return self._proposals.index((body, event))

    # ------------------------------------------------------------------ everybody else, the network

    def _operator(self, s: State, out: list[Step]) -> None:
        """Single writes by an operator, or by a dispatcher that needs no answer."""
        f, bodies = self.bodies.facts[s.body], self.bodies
        said = bodies.said
        if asked := self._spent(s, ASKS):
            self._says(s, asked, "asks to yield", said("asks to yield"), False, out)
            self._says(s, asked, "asks to pause", said("asks to pause"), False, out)
        if revoked := self._spent(s, REVOKES):
            for words in ("revokes", "revokes and holds back"):
                self._says(s, revoked, words, said(words), False, out)
        self._says(s, s, "resumes", said("resumes"), f.held_back, out)
        if rewound := self._spent(s, REWINDS):
            for to in {f.pointer, bodies.parent(f.pointer)}:
                self._says(s, rewound, "rewinds", bodies.rewind(to), False, out)
        used_up = f.launched == self.world.launches and not f.held_back
        if used_up and self._vacant(s):
            self._says(s, s, "cancels", said("cancels"), True, out)
        elif used_up and f.phase in ("expected", "held"):
            self._says(
                s, self._paid(s), "cancels what it takes for vacant", said("cancels"), False, out
            )
        if cancelled := self._spent(s, CANCELS):
            self._says(s, cancelled, "cancels", said("cancels"), False, out)

    def _says(
        self, s: State, paid: State | None, act: str, event: int, free: bool, out: list[Step]
    ) -> None:
        body, why = self.bodies.ask(s.body, event)
        if body == REFUSED or paid is None:
            return
        out.append(Step(("operator", act, "applied"), self._landed(paid, body), free, why))
        if broke := self._paid(paid):
            flying = _set((*s.sent, (body, event, -1, 0, RENEW)))
            out.append(Step(("operator", act, "delayed"), broke._replace(sent=flying), False))

    def _network(self, s: State, out: list[Step]) -> None:
        """What was delayed lands, on the ETag it was decided from."""
        for body, event, owner, last, kind in s.sent:
            why = self.bodies.ask(s.body, event)[1]
            to = self._landed(s, body, owner, LAST + kind if last else OLDER)
            out.append(Step(("a delayed write", "lands", self.bodies.words(body)), to, False, why))
        for upload in s.late:
            late = tuple(u for u in s.late if u != upload)
            to = self._tidy(s._replace(stored=_put(s.stored, upload), late=late))
            out.append(Step(("a delayed upload", "lands", str(upload[0])), to, False))


def _set(sent: Iterable[Sent]) -> tuple[Sent, ...]:
    return tuple(sorted(set(sent)))


def _set_uploads(uploads: Iterable[Upload]) -> tuple[Upload, ...]:
    return tuple(sorted(set(uploads)))


def _put(stored: tuple[Upload, ...], upload: Upload) -> tuple[Upload, ...]:
    return tuple(sorted((upload, *(u for u in stored if u[0] != upload[0]))))
