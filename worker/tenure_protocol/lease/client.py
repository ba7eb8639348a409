"""The lease played on a store: the holder's writes, a claim, and everybody else's changes.

A conditional write without a clear answer is settled by reading and looking for *any* of our
unsettled write_ids; a read that finds nothing new settles nothing, because the write may still
land, so another conditional write on the same ETag does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease.machine import (
    Claim,
    Event,
    Finish,
    Hold,
    Occupied,
    Refused,
    Release,
    transition,
    vacancy,
)
from tenure_protocol.lease.watch import Watch
from tenure_protocol.records import FINAL, Holder, Witness
from tenure_protocol.store.api import (
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Store,
    StoreSilent,
    Unknown,
    Written,
)
from tenure_protocol.store.silence import Silence

CLAIM_WINDOW_S = 600.0  # until start delays are measured
_ROUNDS = 4  # conditional writes one call may send before it reports silence


@dataclass(frozen=True)
class Stored:
    """A witness and the ETag it was read or written under."""

    witness: Witness | None  # None: the key does not exist
    etag: str
    age_s: float = 0.0


def read_witness(store: Store, key: str) -> Stored:
    """Read a witness. Raises StoreSilent, Corrupt or NewerProtocol (both name the key)."""
    found = store.read(key)
    if isinstance(found, Missing):
        return Stored(None, "")
    return Stored(Witness.decode(found.body, key), found.etag, found.age_s)


def _send(store: Store, key: str, witness: Witness, etag: str) -> Outcome:
    body = witness.encode()
    return store.replace(key, body, etag) if etag else store.create(key, body)


# ------------------------------------------------------------------------ everybody but the holder


@dataclass(frozen=True)
class Applied:
    """The change is stored."""

    witness: Witness
    etag: str


@dataclass(frozen=True)
class Changed:
    """Somebody else wrote first; decide anew from what is there."""


@dataclass(frozen=True)
class Unsettled:
    """No usable answer: the change may have happened or may still happen."""

    reason: str
    locked: bool = False  # every try met a lock of this machine, and the body is still the same


def change(
    store: Store, key: str, job: str, stored: Stored, event: Event, clock: Clock
) -> Applied | Changed | Refused | Unsettled:
    """Apply ``event`` to the witness as it was read, in one conditional write that is settled."""
    new = transition(job, stored.witness, event)
    if isinstance(new, Refused):
        return new
    ours: dict[str, Witness] = {}
    reason, locked = "", True
    for _ in range(_ROUNDS):
        attempt = new.stamped(clock.nonce())
        ours[attempt.write_id] = attempt
        outcome = _send(store, key, attempt, stored.etag)
        if isinstance(outcome, Written):
            return Applied(attempt, outcome.etag)
        try:
            now = read_witness(store, key)
        except StoreSilent as error:
            return Unsettled(str(error))
        except Corrupt:
            return Changed()
        if now.witness and now.witness.write_id in ours:
            return Applied(ours[now.witness.write_id], now.etag)
        if now.etag != stored.etag:
            return Changed()
        reason = outcome.reason if isinstance(outcome, Unknown) else "refused, yet nothing changed"
        locked = locked and isinstance(outcome, Unknown) and outcome.locked
    return Unsettled(reason, locked)


# -------------------------------------------------------------------------------------- the holder


@dataclass(frozen=True)
class Confirmed:
    """The store holds what was asked for; ``at_s`` is when the confirmed write was sent."""

    at_s: float


@dataclass(frozen=True)
class Deposed:
    """Proof: a read that shows another holder, attempt or phase."""

    witness: Witness

    @property
    def reason(self) -> str:
        """What the witness said, in words."""
        w = self.witness
        if w.phase == "held" and w.holder:
            return f"attempt {w.attempt} of launch {w.holder.launch} holds it"
        words = f"the witness is {w.phase}"
        return f"{words} by {w.by}: {w.reason or 'no reason given'}" if w.by else words


@dataclass(frozen=True)
class Silent:
    """No usable answer. Proves nothing, stops nobody."""

    reason: str


class Lease:
    """The holder's side of the witness. One conditional write in flight at most, so one thread."""

    def __init__(
        self, store: Store, key: str, clock: Clock, witness: Witness, etag: str, at_s: float
    ) -> None:
        assert witness.phase == "held" and witness.holder, "a lease begins with a claim"
        self._store = store
        self._key = key
        self._clock = clock
        self._etag = etag
        self._unsettled: dict[str, Witness] = {}
        self.witness = witness
        self.holder: Holder = witness.holder
        self.attempt = witness.attempt
        self.confirmed_at_s = at_s

    def write(self, event: Hold | Release | Finish) -> Confirmed | Deposed | Silent:
        """Send one write of the holder and settle it.

        A move that is found stored is done; a foreign write that leaves us the holder (somebody
        asked us to yield) is adopted, and the event is decided again from what was read.
        """
        reason = "no answer"
        for _ in range(_ROUNDS):
            event = self._without_done_move(event)
            new = transition(self.witness.job, self.witness, event)
            if isinstance(new, Refused):
                raise AssertionError(f"{self._key}: {new.reason}")
            new = new.stamped(self._clock.nonce())
            self._unsettled[new.write_id] = new
            sent_s = self._clock.monotonic_s()
            outcome = _send(self._store, self._key, new, self._etag)
            if isinstance(outcome, Written):
                return self._confirmed(new, outcome.etag, sent_s)
            reason = outcome.reason if isinstance(outcome, Unknown) else "refused"
            found = self._look()
            if isinstance(found, Silent):
                return found
            seen, etag = found
            if etag == self._etag:
                continue  # nothing new: it may still land; only another write settles it
            landed = self._unsettled.get(seen.write_id)
            if landed == new or (landed and landed.phase == new.phase != "held"):
                return self._confirmed(landed, etag, sent_s)
            if self._still_mine(seen):
                self._adopt(seen, etag)
                continue
            return Deposed(seen)
        return Silent(reason)

    def read(self) -> Witness | Deposed | Silent:
        """Look without writing, and adopt what leaves us the holder."""
        found = self._look()
        if isinstance(found, Silent):
            return found
        seen, etag = found
        if not self._still_mine(seen):
            return Deposed(seen)
        if etag != self._etag:
            self._adopt(seen, etag)
        return self.witness

    def _look(self) -> tuple[Witness, str] | Silent:
        try:
            found = self._store.read(self._key)
            if isinstance(found, Missing):
                return Silent(f"{self._key} reads as missing")
            return Witness.decode(found.body, self._key), found.etag
        except (StoreSilent, Corrupt) as error:
            return Silent(str(error))

    def _without_done_move(self, event: Hold | Release | Finish) -> Hold | Release | Finish:
        if isinstance(event, Hold) and event.move and event.move.pointer == self.witness.pointer:
            return replace(event, move=None)
        return event

    def _still_mine(self, seen: Witness) -> bool:
        return seen.phase == "held" and seen.holder == self.holder and seen.attempt == self.attempt

    def _adopt(self, seen: Witness, etag: str) -> None:
        self.witness = seen
        self._etag = etag
        self._unsettled.clear()  # all others were conditioned on the ETag that is gone

    def _confirmed(self, new: Witness, etag: str, sent_s: float) -> Confirmed:
        self._adopt(new, etag)
        self.confirmed_at_s = sent_s
        return Confirmed(sent_s)


# --------------------------------------------------------------------------------------- the claim


@dataclass(frozen=True)
class Elsewhere:
    """Somebody else holds it."""

    reason: str


@dataclass(frozen=True)
class Superseded:
    """This launch has nothing to do any more."""

    reason: str


def acquire(
    store: Store,
    key: str,
    job: str,
    launch: int,
    longest_s: float,
    patience_s: float,
    clock: Clock,
) -> Lease | Elsewhere | Superseded | Silent:
    """Claim the tenure for a worker of ``launch`` (0: local mode).

    A holder of another launch is never judged. One of our own launch (a platform that restarts the
    same input), or any in local mode, is watched by the vacancy rule, and claimed when vacant.
    The lease until the first step is the claim window, doubled for every attempt in a row that was
    written off before it moved the pointer, at most ``longest_s``. Raises Corrupt or NewerProtocol.
    """
    nonce = clock.nonce()
    start_s = clock.monotonic_s()
    watch = Watch(clock)
    pause_s = 0.5
    sent_s = start_s
    silence = Silence()

    def lost(asked_s: float, reason: str) -> Silent | None:
        """No usable answer to what was asked at ``asked_s``: after too long of them, give up."""
        if silence.failed(asked_s, clock.monotonic_s(), reason) > patience_s:
            return Silent(reason)
        clock.sleep(pause_s)
        return None

    while True:
        asked_s = clock.monotonic_s()
        try:
            stored = read_witness(store, key)
            watch.saw([Entry(key, stored.etag, 0, stored.age_s)] if stored.etag else [])
        except StoreSilent as error:
            watch.broke()
            if given_up := lost(asked_s, str(error)):
                return given_up
            continue
        witness, vacant = stored.witness, False
        if witness and witness.holder == Holder(launch, nonce):
            return Lease(store, key, clock, witness, stored.etag, sent_s)  # our claim landed late
        if witness and witness.phase == "expected" and not launch:
            return Elsewhere(f"launch {witness.launched} is expected to claim it")
        if witness and witness.phase == "held" and witness.holder:
            judged = _judge(witness, stored, watch, launch, key, first_s=start_s, clock=clock)
            if isinstance(judged, Elsewhere):
                return judged
            if judged is None:
                silence.ended()
                clock.sleep(min(5.0, witness.silence_allowed_s / 6))
                continue
            vacant = True
        if witness is None and launch:
            if given_up := lost(asked_s, f"{key} reads as missing"):
                return given_up
            continue  # a dispatcher writes it before it launches anybody
        event = Claim(launch, nonce, first_silence_s(witness, longest_s), vacant)
        sent_s = clock.monotonic_s()
        outcome = change(store, key, job, stored, event, clock)
        if isinstance(outcome, Applied):
            return Lease(store, key, clock, outcome.witness, outcome.etag, sent_s)
        if isinstance(outcome, Refused):
            return Superseded(_why_over(witness) or outcome.reason)
        if isinstance(outcome, Unsettled):
            if given_up := lost(sent_s, outcome.reason):
                return given_up
        else:
            silence.ended()
            clock.sleep(0.05)


def fruitless(witness: Witness | None) -> int:
    """How many attempts in a row, the newest included, have not moved the pointer yet."""
    if witness is None:
        return 0
    return witness.attempt - (witness.pointer.attempt if witness.pointer else 0)


def first_silence_s(witness: Witness | None, longest_s: float) -> float:
    """The lease of a fresh claim, before its first step."""
    launch = witness.launch if witness else None
    window_s = (launch.first_silence_s or launch.window_s) if launch else CLAIM_WINDOW_S
    return min(window_s * 2.0 ** min(fruitless(witness), 6), longest_s)


def _why_over(witness: Witness | None) -> str | None:
    if witness and witness.phase in FINAL:
        return f"the job is {witness.phase}: {witness.reason or 'done'}"
    return None


def _judge(
    witness: Witness,
    stored: Stored,
    watch: Watch,
    launch: int,
    key: str,
    first_s: float,
    clock: Clock,
) -> bool | Elsewhere | None:
    """True: vacant; None: watch on; Elsewhere: alive or not ours to judge."""
    assert witness.holder
    held_by = witness.holder.launch
    if launch and held_by != launch:
        return Elsewhere(f"attempt {witness.attempt} of launch {held_by} holds it")
    lease_s = witness.silence_allowed_s
    watched = watch.of(key, stored.etag, lease_s)
    renewed_since = stored.age_s < clock.monotonic_s() - first_s - 1.0
    if renewed_since:
        return Elsewhere(f"attempt {witness.attempt} of launch {held_by} is alive")
    judged = vacancy(witness, stored.age_s, watched)
    return None if isinstance(judged, Occupied) else True


__all__ = [
    "Applied",
    "Changed",
    "Confirmed",
    "Deposed",
    "Elsewhere",
    "Found",
    "Lease",
    "Lost",
    "Refused",
    "Silent",
    "Stored",
    "Superseded",
    "Unsettled",
    "acquire",
    "change",
    "read_witness",
]
