"""Does a store keep its conditions? Asked in scratch keys, before the store is used a first time.

A store that ignores a condition answers every write with success, so nothing short of trying tells it
from one that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, NewerProtocol, encode
from tenure_protocol.records import PROTOCOL_VERSION, load
from tenure_protocol.store.api import (
    Found,
    Lost,
    Missing,
    Outcome,
    Store,
    StoreSilent,
    StoreUnusable,
    Unknown,
    Written,
    shown,
)
from tenure_protocol.store.settle import create_once

KEY = "store/probe.json"
RACERS = 16
ROUNDS = 2
_TRIES = 3


@dataclass(frozen=True)
class Check:
    """One condition, whether the store keeps it, and what was seen."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class ProbeRecord:
    """The verdict that is remembered; a store is probed in full only once."""

    safe: bool
    checks: tuple[Check, ...]
    at_s: float  # Unix time by the prober's clock, for people
    protocol: int = PROTOCOL_VERSION


def safe(checks: tuple[Check, ...]) -> bool:
    """Whether the store may be used."""
    return all(check.ok for check in checks)


def probe(store: Store, clock: Clock) -> tuple[Check, ...]:
    """Try every condition in scratch keys and remove them.

    Raises StoreSilent when reads fail, and for a store that is full: what it keeps cannot be told.

    A check that failed and had no answer to one of its writes proves nothing: it is repeated, as long
    as the store can be read. One that answers reads and never a write does not keep the condition.
    """
    asked = _Asked(store)
    prefix = f"scratch/{clock.nonce()}/"

    def check(name: str, ask: Callable[[_Asked, str], Check]) -> Check:
        for count in range(_TRIES):
            asked.unanswered, asked.full = False, ""
            found = ask(asked, f"{prefix}{name}-{count}")
            if asked.full and asked.unanswered and not found.ok:
                raise StoreSilent(f"the store {shown(store.url)} takes no writes: {asked.full}")
            if found.ok or not asked.unanswered:
                break
            store.read(KEY)
        return found

    try:
        return (
            check("create", _create_twice),
            check("read", _read_back),
            check("fresh", _fresh),
            check("stale", _stale),
            check("missing", _missing),
            check("list", _listed),
            check("create-race", partial(_race, clock=clock)),
            check("replace-race", partial(_replace_race, clock=clock)),
        )
    finally:
        for key in asked.keys:
            try:
                store.delete(key)
            except StoreSilent:
                continue  # scratch keys are in nobody's way


class _Asked:
    """The store, with a note of every key that was written and of writes without an answer."""

    def __init__(self, store: Store) -> None:
        self.read = store.read
        self.list = store.list
        self.unanswered = False
        self.full = ""  # why a write found no room
        self.keys: set[str] = set()
        self._store = store

    def create(self, key: str, body: bytes) -> Outcome:
        """As the store's."""
        self.keys.add(key)
        return self._noted(self._store.create(key, body))

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        """As the store's."""
        self.keys.add(key)
        return self._noted(self._store.replace(key, body, etag))

    def _noted(self, outcome: Outcome) -> Outcome:
        self.unanswered = self.unanswered or isinstance(outcome, Unknown)
        if isinstance(outcome, Unknown) and outcome.full:
            self.full = outcome.reason
        return outcome


def demand_safe(store: Store, clock: Clock) -> None:
    """Probe a store at its first use and remember the verdict.

    Raises StoreUnusable that names the conditions it does not keep, or StoreSilent.
    """
    found = store.read(KEY)
    if isinstance(found, Found):
        try:
            checks = load(ProbeRecord, found.body, KEY).checks
        except NewerProtocol as error:
            raise StoreUnusable(str(error)) from error
        except Corrupt as error:
            raise StoreUnusable(f"{error}; remove it, and the store is probed again") from error
    else:
        checks = probe(store, clock)
        record = ProbeRecord(safe(checks), checks, clock.wall_s())
        if safe(checks):  # an unsafe one is probed again, it may have been mended
            create_once(store, KEY, encode(record), clock)
    if not safe(checks):
        broken = "; ".join(f"{c.name} ({c.detail})" for c in checks if not c.ok)
        raise StoreUnusable(
            f"the store {shown(store.url)} does not keep its conditions: {broken}; "
            "two workers could both win, so it is refused"
        )


# ------------------------------------------------------------------------------------ checks


def _said(outcome: Outcome) -> str:
    return {Written: "it was written", Lost: "it was refused"}.get(type(outcome), repr(outcome))


def _create_twice(store: _Asked, key: str) -> Check:
    first, second = store.create(key, b"one"), store.create(key, b"two")
    ok = isinstance(first, Written) and isinstance(second, Lost)
    return Check("create-only", ok, f"first {_said(first)}, second {_said(second)}")


def _read_back(store: _Asked, key: str) -> Check:
    outcome = store.create(key, b"body")
    found = store.read(key)
    ok = (
        isinstance(outcome, Written)
        and isinstance(found, Found)
        and (found.body, found.etag) == (b"body", outcome.etag)
    )
    age = f", {found.age_s:.0f} s old" if isinstance(found, Found) else ""
    return Check("read after write", ok, f"the bytes and their ETag came back{age}" if ok else
                 f"wrote {_said(outcome)}, read {found!r}")  # fmt: skip


def _fresh(store: _Asked, key: str) -> Check:
    first = store.create(key, b"one")
    if not isinstance(first, Written):
        return Check("replace on its ETag", False, f"the create before it: {_said(first)}")
    outcome = store.replace(key, b"two", first.etag)
    hint = ""
    if isinstance(outcome, Lost) and isinstance(
        store.replace(key, b"two", first.etag.strip('"')), Written
    ):
        hint = ", though without its quotes it is taken: add etags=unquoted to the URL"
    return Check("replace on its ETag", isinstance(outcome, Written), _said(outcome) + hint)


def _stale(store: _Asked, key: str) -> Check:
    first = store.create(key, b"one")
    if not isinstance(first, Written):
        return Check("replace on a stale ETag", False, f"the create before it: {_said(first)}")
    store.replace(key, b"two", first.etag)
    outcome = store.replace(key, b"three", first.etag)
    found = store.read(key)
    ok = isinstance(outcome, Lost) and isinstance(found, Found) and found.body == b"two"
    return Check("replace on a stale ETag", ok, _said(outcome))


def _missing(store: _Asked, key: str) -> Check:
    outcome = store.replace(key, b"one", '"d41d8cd98f00b204e9800998ecf8427e"')
    ok = isinstance(outcome, Lost) and isinstance(store.read(key), Missing)
    return Check("replace of a missing key", ok, _said(outcome))


def _listed(store: _Asked, key: str) -> Check:
    one = f"{key}/one"
    outcome = store.create(one, b"body")
    rows = [row for row in store.list(f"{key}/") if row.key == one]
    ok = isinstance(outcome, Written) and len(rows) == 1 and rows[0].etag == outcome.etag
    words = "the new key is in the next listing, with its ETag" if ok else f"it lists {rows}"
    return Check("listing after write", ok, words)


def _race(store: _Asked, key: str, clock: Clock) -> Check:
    winners = [_winners(clock, partial(store.create, f"{key}-{n}")) for n in range(ROUNDS)]
    return _one_each(store, "race of creates", winners)


def _replace_race(store: _Asked, key: str, clock: Clock) -> Check:
    winners = []
    for one in (f"{key}-{n}" for n in range(ROUNDS)):
        first = store.create(one, b"start")
        if not isinstance(first, Written):
            return Check("race of replaces", False, f"the create before it: {_said(first)}")
        winners.append(_winners(clock, partial(store.replace, one, etag=first.etag)))
    return _one_each(store, "race of replaces", winners)


def _one_each(store: _Asked, name: str, winners: list[int]) -> Check:
    if max(winners) > 1:
        store.unanswered = False  # it is proof, whoever else had no answer
    # Nobody may have won in a round whose every answer was unknown; two winners never may.
    return Check(name, max(winners) == 1, f"{RACERS} at once, winners by round: {winners}")


def _winners(clock: Clock, write: Callable[[bytes], Outcome]) -> int:
    """How many of sixteen simultaneous writers were told that they won."""
    outcomes: list[Outcome | Exception] = []

    def run(n: int) -> None:
        try:
            outcomes.append(write(b"%d" % n))
        except Exception as error:
            outcomes.append(error)

    tasks = [clock.spawn(partial(run, n), "tenure-probe") for n in range(RACERS)]
    for task in tasks:
        task.join()
    return sum(isinstance(outcome, Written) for outcome in outcomes)
