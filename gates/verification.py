"""Is what is deployed what was proved? Log, history, and each slot down to the bytes of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gates.evidence import Evidence, Unproved
from gates.head import KnownHead
from gates.slots import Deployment, demand_same, history, warrant_of
from gates.trust import Trust
from gates.warrant import BadWarrant, LogEntry, Statement, read_chain, verify
from tenure.errors import Blocked
from tenure_protocol.codec import Corrupt, Json
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord, load
from tenure_protocol.store.api import Missing, Store
from tenure_protocol.warrants import SLOTS, Slot


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: whether it holds, and the sentence for a person."""

    check: str
    ok: bool
    detail: str
    slot: Slot | None = None


@dataclass(frozen=True)
class Verification:
    """What was found of a deployment."""

    name: str
    checks: tuple[Check, ...]
    states: Mapping[Slot, list[Deployment]] = field(
        default_factory=dict
    )  # of each slot, oldest first
    statements: Mapping[Slot, Statement] = field(
        default_factory=dict
    )  # of what is in each slot now

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return bool(self.checks) and all(check.ok for check in self.checks)


class _Wrong(Exception):
    """What a check found; the message is its sentence."""


def verify_deployment(
    store: Store, name: str, trust: Trust, head: KnownHead | None = None
) -> Verification:
    """Look at everything that lets a model be live under ``name``. Raises StoreSilent alone.

    The log's head is remembered when the log holds; what cannot be looked at, because something before
    it failed, is left out.
    """
    checks: list[Check] = []
    digests: list[str] = []

    def log() -> str:
        said, found = check_log(store, trust, head)
        digests.extend(found)
        return said

    checks.append(_checked("log", log))
    known = digests if checks[0].ok else None
    states: dict[Slot, list[Deployment]] = {}
    statements: dict[Slot, Statement] = {}
    for slot in SLOTS:
        found: list[Deployment] = []

        def moves(slot: Slot = slot, found: list[Deployment] = found) -> str:
            found.extend(history(store, name, slot))
            if not found and slot == "live":
                raise _Wrong(f"nothing is deployed as {name!r}")
            return _logged(found, known)

        looked = _checked("history", moves, slot)
        if slot == "live" or found or not looked.ok:
            checks.append(looked)
        states[slot] = found
        if found:
            proofs, statement = prove(store, found[-1], trust)
            checks += proofs
            if statement is not None:
                statements[slot] = statement
    return Verification(name, tuple(checks), states, statements)


def check_log(store: Store, trust: Trust, head: KnownHead | None) -> tuple[str, list[str]]:
    """The chain of the whole log, and its end against what is remembered; in words, with the digests.

    Raises BadWarrant, Corrupt, UsageError for a file of the head that cannot be read, StoreSilent.
    """
    before = head.demand(store) if head else None
    chain = read_chain(store)
    foreign = 0
    for entry, _ in chain:
        try:
            statement = trust.verified(entry.warrant, entry.number)
        except BadWarrant:
            foreign += 1
            continue
        if (statement.place.number, statement.place.previous) != (entry.number, entry.previous):
            raise BadWarrant(
                f"entry {entry.number} of the log holds a warrant that was signed for entry "
                f"{statement.place.number} of it: it was put there again"
            )
    digests = [digest for _, digest in chain]
    said = f"{_many(len(chain), 'entry', 'entries')}, each names the one before"
    if foreign:
        said += f"; {foreign} of them by no key that is trusted here"
    if before:
        said += f"; entry {before.number} is the one last seen here"
    if head and digests and (trouble := head.remember(len(digests), digests[-1])):
        said += f"; {trouble}"
    return said, digests


def prove(
    store: Store, deployment: Deployment, trust: Trust
) -> tuple[list[Check], Statement | None]:
    """The warrant of what is in a slot, its signature, its key, the record, and the files' bytes.

    What needs something that failed is left out. Returns the warrant too, where it is believed.
    Raises StoreSilent alone.
    """
    slot, checks = deployment.slot, []

    def logged() -> str:
        entries.append(warrant_of(store, deployment))
        return f"warrant {deployment.warrant} is in the log"

    def signed() -> str:
        key = verify(entries[0].warrant, trust.keys).key
        return f"by the key {key[:16]}, which is trusted here"

    def unrevoked() -> str:
        statement = trust.verified(entries[0].warrant, deployment.warrant)
        statements.append(statement)
        last = trust.revoked.get(statement.key)
        return f"the key {statement.key[:16]} is " + (
            "not revoked" if last is None else f"revoked after its warrant {last}"
        )

    def same() -> str:
        demand_same(statements[0], deployment, entries[0])
        return (
            f"record {deployment.record}, seed {deployment.seed}, is {deployment.name!r} by warrant "
            f"{deployment.warrant}"
        )

    def recorded() -> str:
        records.append(_record(store, deployment))
        return f"record {deployment.record}, its parent and the line of its snapshots are untouched"

    def files() -> str:
        evidence = Evidence(store, records[0])
        for name, file in deployment.files.items():
            evidence.verify_bytes(deployment.model, name, file)
        total = sum(file.size for file in deployment.files.values())
        return f"{_many(total, 'byte')} in {_many(len(deployment.files), 'file')} as warranted"

    entries: list[LogEntry] = []
    statements: list[Statement] = []
    records: list[ModelRecord] = []
    for what, look in (
        ("warrant", logged),
        ("signature", signed),
        ("revocation", unrevoked),
        ("slot", same),
        ("record", recorded),
        ("files", files),
    ):
        checks.append(_checked(what, look, slot))
        if not checks[-1].ok:
            return checks, None
    return checks, statements[0]


def _record(store: Store, deployment: Deployment) -> ModelRecord:
    """The record that the warrant names, its parent and its line in the store. Raises Unproved."""
    key = keys.model(deployment.experiment, deployment.record)
    stored = store.read(key)
    if isinstance(stored, Missing):
        raise Unproved(f"{key}, whose model this is, is not in the store")
    record = load(ModelRecord, stored.body, key)
    if record.id != deployment.record:
        raise Unproved(f"{key} was edited: its content has the id {record.id}")
    evidence = Evidence(store, record)
    member = next((one for one in record.members if one.seed == deployment.seed), None)
    if member is None or (member.train, member.files) != (deployment.model, deployment.files):
        raise Unproved(f"{key} has another model of seed {deployment.seed} than is deployed")
    if record.parent is not None:
        evidence.parent()
    for _ in evidence.chain(member.train):
        pass
    return record


def _logged(states: list[Deployment], digests: list[str] | None) -> str:
    """Every state names an entry that is in the log, by number and digest. Raises _Wrong."""
    back = sum(state.what == "rollback" for state in states)
    said = f"{_many(len(states), 'move')}, {_many(back, 'rollback')} among them"
    if digests is None:
        return said
    for state in states:
        inside = 1 <= state.warrant <= len(digests)
        if not inside or digests[state.warrant - 1] != state.warrant_digest:
            raise _Wrong(
                f"move {state.move} names warrant {state.warrant}, and the log has "
                + ("another one of this number" if inside else f"{len(digests)} entries")
            )
    return f"{said}, each by a warrant that is in the log"


def _many(count: int, one: str, several: str = "") -> str:
    """
    >>> _many(1, "move"), _many(2, "entry", "entries")
    ('1 move', '2 entries')
    """
    return f"{count} {one if count == 1 else several or one + 's'}"


def _checked(check: str, look: Callable[[], str], slot: Slot | None = None) -> Check:
    try:
        return Check(check, True, look(), slot)
    except (_Wrong, BadWarrant, Blocked, Unproved, Corrupt) as error:
        return Check(check, False, str(error), slot)


def answer(found: Verification) -> dict[str, Json]:
    """What ``tenure verify --json`` prints."""
    return {
        "name": found.name,
        "ok": found.ok,
        "checks": [
            {"slot": item.slot, "check": item.check, "ok": item.ok, "detail": item.detail}
            for item in found.checks
        ],
        "slots": {slot: _row(states[-1]) for slot, states in found.states.items() if states},
        "keys": {slot: statement.key for slot, statement in found.statements.items()},
        "history": [_row(state) for states in found.states.values() for state in states],
    }


def _row(state: Deployment) -> dict[str, Json]:
    return {
        "slot": state.slot,
        "move": state.move,
        "what": state.what,
        "from": state.replaced,
        "to": state.warrant,
        "record": state.record,
        "seed": state.seed,
        "by": state.by,
        "reason": state.reason,
        "at_s": state.at_s,
    }
