"""Sees to it that an event is told once, although several dispatchers see it and any of them may die.

Two create-only keys for each notice: ``...claim-<k>.json``, which holds the notice and is written
before it is sent by whoever sends it, and ``...sent.json``, written after an address took it. A claim
that is as old as ``TAKE_OVER_S``, by the store's clock, and was followed by nothing is taken over with
the next number. So an event is told once where nobody dies, and never silently lost: who dies after
sending and before saying so makes it be told twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tenure.notify.addresses import Address
from tenure.notify.notices import NEWS_S, Notice
from tenure.notify.send import Letter, Send, Tone
from tenure.settings import NoticeKind
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, encode, short_id
from tenure_protocol.records import PROTOCOL_VERSION, load
from tenure_protocol.store.api import Entry, Missing, Store, StoreSilent, is_key
from tenure_protocol.store.settle import create_once

NOTICES = "notices/"
#: A claim of this age that nothing followed is another's. A claim is worked on for less: see below.
TAKE_OVER_S = 600.0
MOST_CLAIMS = 3
#: Tries of one claim, each of 35 s at most, and the pauses before the second and the third.
TRIES = 3
_PAUSES_S = (20.0, 60.0)
#: A store that is silent for so long is not waited for: a notice twice is better than none.
UNCLAIMED_S = 600.0
_STORE_PAUSE_S = 30.0
#: Of one kind and one plan. Reasons that differ in more than numbers could be thousands.
MOST_OF_A_KIND = 20

_KEY = re.compile(
    r"(?P<kind>[a-z]+)-(?P<event>[a-z0-9]+)-(?P<n>\d+)\.(claim-(?P<claim>\d+)|sent)\.json"
)
_CLAIM = re.compile(r"(?P<stem>.+)\.claim-(?P<claim>\d+)\.json")
_TONES: Mapping[str, Tone] = {
    "done": "success", "deployed": "success", "blocked": "failure",
    "stuck": "warning", "budget": "warning", "quota": "warning",
}  # fmt: skip


def folder(about: str) -> str:
    """Prefix of all notices about a plan (or ``runner=NAME``, ``store=all``).

    >>> folder("p"), folder("a name/that no key can hold")
    ('notices/p/', 'notices/x=xajy67oao26gsq5jrwfbeexo4o/')
    """
    made = f"{NOTICES}{about}/"
    return (
        made
        if is_key(f"{made}k") and "/" not in about
        else f"{NOTICES}x={short_id(about.encode())}/"
    )


@dataclass(frozen=True)
class Claim:
    """What both keys of a notice hold: all that another one needs to send it."""

    kind: NoticeKind
    about: str
    event: str
    line: str
    by: str  # a dispatcher
    at_s: float  # Unix time by its clock, for people
    write_id: str
    again_s: float | None = None
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Told:
    """What the store says about one event: the newest of its notices, and how far that is."""

    number: int = 0  # 1, 2, ... of those that are told again; 0: none yet
    claims: int = 0
    claim_age_s: float = 0.0  # of the newest
    sent_age_s: float | None = None  # None: not known to have been sent


def told(rows: Iterable[Entry], kind: str, event: str) -> tuple[Told, int]:
    """The state of an event by the listing of its folder; and how many others of its kind there are.

    >>> rows = [Entry(f"notices/p/stuck-a-{k}.json", "", 0, 9.0) for k in ("1.claim-1", "1.sent")]
    >>> told(rows, "stuck", "a"), told(rows, "stuck", "b")
    ((Told(number=1, claims=1, claim_age_s=9.0, sent_age_s=9.0), 0), (Told(number=0, claims=0, claim_age_s=0.0, sent_age_s=None), 1))
    """
    found, others = Told(), set()
    parsed = [(_KEY.fullmatch(row.key.rpartition("/")[2]), row.age_s) for row in rows]
    for match, age_s in sorted(
        ((match, age_s) for match, age_s in parsed if match and match["kind"] == kind),
        key=lambda one: (int(one[0]["n"]), int(one[0]["claim"] or 0)),
    ):
        if match["event"] != event:
            others.add(match["event"])
            continue
        number, claim = int(match["n"]), int(match["claim"] or 0)
        if number > found.number:
            found = Told(number)
        if claim:
            found = Told(number, claim, age_s, found.sent_age_s)
        else:
            found = Told(number, found.claims, found.claim_age_s, age_s)
    return found, len(others)


@dataclass
class _Pending:
    """A notice on its way."""

    notice: Notice
    left: list[Address]  # that have not taken it
    since_s: float
    due_s: float = 0.0
    claimed_s: float | None = None  # when we claimed it
    number: int = 0
    tries: int = 0  # of this claim
    claims: int = 0  # of ours that nobody took
    taken: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # by what may be shown of an address

    @property
    def stem(self) -> str:
        """What its keys begin with."""
        notice = self.notice
        return f"{folder(notice.about)}{notice.kind}-{notice.key}-{self.number}"


class Post:
    """Claims, sends, records; for one thread. Time is what the clock says when it is called."""

    def __init__(
        self, store: Store, clock: Clock, name: str, addresses: Sequence[Address], send: Send
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._addresses = tuple(addresses)
        self._send = send
        self._pending: dict[tuple[str, str, str], _Pending] = {}
        self._settled: dict[tuple[str, str, str], float] = {}  # until when, monotonic
        self.troubles: dict[str, str] = {}  # what is wrong with the sending, for people

    def take(self, notices: Iterable[Notice]) -> None:
        """Notices that are to be told, unless somebody has done so."""
        now_s = self._clock.monotonic_s()
        for notice in notices:
            name = notice.about, notice.kind, notice.key
            if now_s < self._settled.get(name, -math.inf):
                continue
            if name not in self._pending:
                self._pending[name] = _Pending(notice, list(self._addresses), now_s)
            elif self._pending[name].claimed_s is None:  # its newest words
                self._pending[name].notice = notice

    def work(self, last: bool = False) -> None:
        """One round: claim what is due, send it in one batch, record what was taken.

        At the ``last`` one an address that does not take it is not waited for.
        """
        now_s = self._clock.monotonic_s()
        due = [
            each
            for each in self._pending.values()
            if each.due_s <= now_s or (last and each.taken)  # which only lacks its record
        ]
        ours = [each for each in due if self._claimed(each)]
        self._deliver(ours)
        for each in ours:
            self._after(each, last)

    def unsent(self) -> list[Notice]:
        """Notices that somebody claimed and did not send, whose claim may be taken over.

        Some are told only once by who knows of them, such as that a model was deployed.
        """
        found = []
        try:
            rows = {row.key: row.age_s for row in self._store.list(NOTICES)}
            for key, age_s in rows.items():
                match = _CLAIM.fullmatch(key)
                if match is None or f"{match['stem']}.sent.json" in rows:
                    continue
                if f"{match['stem']}.claim-{int(match['claim']) + 1}.json" in rows:
                    continue
                if TAKE_OVER_S <= age_s <= NEWS_S and (notice := self._read(key)):
                    found.append(notice)
        except StoreSilent as error:
            self.troubles[NOTICES] = f"notices cannot be looked through: {error}"
        return found

    def _read(self, key: str) -> Notice | None:
        """The notice of a claim. Raises StoreSilent."""
        body = self._store.read(key)
        if isinstance(body, Missing):
            return None
        try:
            claim = load(Claim, body.body, key)
        except Corrupt as error:
            self.troubles[key] = str(error)
            return None
        return Notice(claim.kind, claim.about, claim.event, claim.line, claim.again_s)

    @property
    def next_s(self) -> float:
        """When there is something to do next, monotonic; infinite where nothing waits."""
        return min((each.due_s for each in self._pending.values()), default=math.inf)

    @property
    def busy(self) -> bool:
        """Whether something can be done now, rather than after a pause."""
        return self.next_s <= self._clock.monotonic_s()

    # -------------------------------------------------------------------------- one notice

    def _claimed(self, each: _Pending) -> bool:
        """Whether it is ours to send now."""
        now_s = self._clock.monotonic_s()
        if each.claimed_s is not None:
            # Frozen for long, we may have been taken for dead, and another one has sent it.
            if now_s - each.claimed_s < TAKE_OVER_S:
                return True
            each.claimed_s, each.tries = None, 0
        try:
            ours = self._claim(each)
            self.troubles.pop(NOTICES, None)
            return ours
        except StoreSilent as error:
            self.troubles[NOTICES] = f"notices cannot be claimed: {error}"
            if now_s - each.since_s < UNCLAIMED_S:
                each.due_s = now_s + _STORE_PAUSE_S
                return False
            each.number = each.number or 1
            each.claimed_s = now_s
            return True

    def _claim(self, each: _Pending) -> bool:
        """Create the next claim, if it is time for one. Raises StoreSilent."""
        notice, now_s = each.notice, self._clock.monotonic_s()
        seen, others = told(self._store.list(folder(notice.about)), notice.kind, notice.key)
        if seen.sent_age_s is not None:
            wait_s = math.inf if notice.again_s is None else notice.again_s - seen.sent_age_s
            if wait_s > 0:
                self._settle(each, wait_s)
                return False
            seen = Told(seen.number)
            each.number = seen.number + 1
        elif seen.claims:
            each.number = seen.number
            if seen.claim_age_s < TAKE_OVER_S:
                each.due_s = now_s + TAKE_OVER_S - seen.claim_age_s + 1.0
                return False
            if seen.claims >= MOST_CLAIMS:
                self._settle(each, notice.again_s or math.inf)
                return False
        else:
            each.number = 1
            if others >= MOST_OF_A_KIND:
                self.troubles[f"{folder(notice.about)}{notice.kind}"] = (
                    f"{others} notices of this kind have been sent about {notice.about}; further "
                    "ones are not"
                )
                self._settle(each, math.inf)
                return False
        key = f"{each.stem}.claim-{seen.claims + 1}.json"
        if not create_once(self._store, key, self._body(each), self._clock):
            each.due_s = now_s + TAKE_OVER_S + 1.0  # another one was first
            return False
        each.claimed_s = self._clock.monotonic_s()
        return True

    def _deliver(self, ours: Sequence[_Pending]) -> None:
        batch = [(each, address) for each in ours for address in each.left]
        letters = [
            (address, Letter(f"Tenure: {each.notice.kind}", each.notice.line, _TONES[each.notice.kind]))
            for each, address in batch
        ]  # fmt: skip
        answers = self._send(letters) if letters else []
        failed: dict[str, str] = {}
        for (each, address), words in zip(batch, answers, strict=True):
            if words:
                failed[address.shown] = words
                continue
            each.left.remove(address)
            each.taken += 1
        for address in {address for _, address in batch}:
            key = f"notify {address.shown}"
            if address.shown in failed:
                self.troubles[key] = (
                    f"a notice did not go to {address.shown}: {failed[address.shown]}"
                )
            else:
                self.troubles.pop(key, None)

    def _after(self, each: _Pending, last: bool) -> None:
        """What comes after a try: the record of it, another one, or another claim."""
        each.tries += 1
        now_s = self._clock.monotonic_s()
        if each.left and each.tries < TRIES and not (last and each.taken):
            each.due_s = now_s + _PAUSES_S[each.tries - 1]
            return
        if not each.taken:
            assert each.claimed_s is not None
            each.claims += 1
            if each.claims >= MOST_CLAIMS:
                self._settle(each, each.notice.again_s or math.inf)
                return
            # Nobody took it. In another dispatcher's network it may be better: it may claim it then.
            each.due_s, each.tries = each.claimed_s + TAKE_OVER_S + 1.0, 0
            each.claimed_s = None
            return
        try:
            create_once(self._store, f"{each.stem}.sent.json", self._body(each), self._clock)
        except StoreSilent as error:
            self.troubles[NOTICES] = f"it cannot be noted that a notice was sent: {error}"
            each.left.clear()
            each.due_s = now_s + _STORE_PAUSE_S
            if now_s - each.since_s < 2 * UNCLAIMED_S:
                return
        self._settle(each, each.notice.again_s or math.inf)

    def _settle(self, each: _Pending, for_s: float) -> None:
        name = each.notice.about, each.notice.kind, each.notice.key
        self._pending.pop(name, None)
        self._settled[name] = self._clock.monotonic_s() + for_s

    def _body(self, each: _Pending) -> bytes:
        notice = each.notice
        return encode(
            Claim(
                notice.kind,
                notice.about,
                notice.key,
                notice.line,
                self._name,
                self._clock.wall_s(),
                self._clock.nonce(),
                notice.again_s,
            )
        )
