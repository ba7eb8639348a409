"""S3Store on a wire that cuts, delays, repeats and lies, in front of a real server.

Every verdict is compared with what the server holds, asked by another way. The table FATES says what
one fault makes of one conditional write; the rest shows that settling by ``write_id`` ends in the
truth whatever the client was told, and that nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM, SystemClock
from tenure_protocol.lease.client import (
    Applied,
    Changed,
    Confirmed,
    Deposed,
    Lease,
    Unsettled,
    acquire,
    change,
    read_witness,
)
from tenure_protocol.lease.machine import Ask, Event, Hold, Move, Reserve, Revoke
from tenure_protocol.records import Pointer, Witness
from tenure_protocol.store import s3
from tenure_protocol.store.api import (
    Found,
    Lost,
    Missing,
    Outcome,
    StoreSilent,
    Unknown,
    Written,
)
from tenure_protocol.store.s3 import S3Store
from tenure_protocol.store.settle import create_once
from tests.hostile_proxy import (
    FAULTS,
    KINDS,
    HostileProxy,
    Kind,
    Request,
    Weather,
    conditional,
    hostile_proxy,
)
from tests.seaweed import Seaweed

PAGE = "<!DOCTYPE html>"
#: The ghost 412: told as Lost, though the bytes that are stored are ours.
GHOST: Kind = "twice_second"


class Hasty(SystemClock):
    """Does not wait between tries (a stand-in for time alone; the wire and the server are real)."""

    sleep = staticmethod(lambda seconds: None)


HASTY = Hasty()


@dataclass
class Wire:
    """One store by two ways: through the proxy, and as the server itself tells."""

    proxy: HostileProxy
    store: S3Store
    truth: S3Store
    prefix: str = field(default_factory=SYSTEM.nonce)

    def key(self, name: str = "k") -> str:
        """A key of this test alone."""
        return f"{self.prefix}/{name.replace('_', '-')}"

    def body(self, key: str) -> bytes | None:
        """What the server holds."""
        found = self.truth.read(key)
        return None if isinstance(found, Missing) else found.body

    def stored(self, key: str) -> Witness:
        """The witness that the server holds."""
        found = read_witness(self.truth, key).witness
        assert found is not None
        return found

    def others(self, key: str, event: Event) -> Witness:
        """Somebody else's change, by the way without faults."""
        done = change(self.truth, key, "j", read_witness(self.truth, key), event, SYSTEM)
        assert isinstance(done, Applied), done
        return done.witness

    def hold(self, key: str) -> Lease:
        """A lease that was claimed, and lives, through the proxy."""
        self.others(key, Reserve("here", 60.0, "d1"))
        lease = acquire(self.store, key, "j", 1, 3600.0, 60.0, SYSTEM)
        assert isinstance(lease, Lease)
        self.proxy.forget()
        return lease

    def meet(self, fault: Kind, nth: int = 0) -> None:
        """The next request but ``nth`` meets the fault."""
        self.proxy.forget()
        for _ in range(nth):
            self.proxy.script("pass")
        self.proxy.script(fault)


@pytest.fixture(scope="module")
def both_ways(seaweed: Callable[[], Seaweed]) -> Iterator[Wire]:
    server = seaweed()
    prefix = f"wire-{SYSTEM.nonce()}"
    with hostile_proxy(server.port, delay_s=0.001) as proxy:
        yield Wire(proxy, S3Store(server.url(prefix, proxy.endpoint)), S3Store(server.url(prefix)))


@pytest.fixture
def wire(both_ways: Wire) -> Iterator[Wire]:
    both_ways.proxy.land()  # what an earlier test left on its way
    both_ways.proxy.forget()
    yield Wire(both_ways.proxy, both_ways.store, both_ways.truth)
    both_ways.proxy.forget()


# ------------------------------------------------------------------ one fault, one write


@dataclass(frozen=True)
class Fate:
    """What one fault makes of one conditional write whose condition holds."""

    told: tuple[type[Outcome], ...]
    stored: bool  # at once; what is late lands afterwards
    seen: int  # by the server: it says that nothing was retried


FATES: dict[Kind, Fate] = {
    "pass": Fate((Written,), True, 1),
    "drop": Fate((Unknown,), False, 0),
    "lose_answer": Fate((Unknown,), True, 1),
    "cut_head": Fate((Written, Unknown), True, 1),  # half a head may hold the whole ETag
    "cut_body": Fate((Written, Unknown), True, 1),  # there is no body: the head again
    "delay_request": Fate((Written,), True, 1),
    "delay_answer": Fate((Written,), True, 1),
    "twice_first": Fate((Written,), True, 2),
    "twice_second": Fate((Lost,), True, 2),  # the ghost: settled by whoever asked
    "error_500": Fate((Unknown,), False, 0),
    "error_503": Fate((Unknown,), False, 0),
    "error_409": Fate((Unknown,), False, 0),
    "applied_500": Fate((Unknown,), True, 1),
    "html": Fate((Unknown,), False, 0),
    "redirect": Fate((Unknown,), False, 0),
    "drip": Fate((Written,), True, 1),
    "late1": Fate((Unknown,), False, 0),
    "late2": Fate((Unknown,), False, 0),
    "late3": Fate((Unknown,), False, 0),
}


def write(wire: Wire, how: str, key: str, holds: bool) -> Outcome:
    """A create or a replace whose condition holds or does not, once what it needs is there."""
    if how == "create":
        if not holds:
            assert isinstance(wire.truth.create(key, b"old"), Written)
        return wire.store.create(key, b"new")
    first = wire.truth.create(key, b"older")
    assert isinstance(first, Written)
    second = wire.truth.replace(key, b"old", first.etag)
    assert isinstance(second, Written)
    return wire.store.replace(key, b"new", second.etag if holds else first.etag)


def test_every_fault_has_its_fate() -> None:
    assert set(FATES) == set(KINDS)


@pytest.mark.parametrize("how", ["create", "replace"])
@pytest.mark.parametrize("fault", KINDS)
def test_one_fault_of_a_conditional_write(wire: Wire, fault: Kind, how: str) -> None:
    fate, key = FATES[fault], wire.key()
    before = None if how == "create" else b"old"
    wire.proxy.script(fault)
    outcome = write(wire, how, key, holds=True)
    assert isinstance(outcome, fate.told), outcome
    assert wire.body(key) == (b"new" if fate.stored else before)
    assert wire.proxy.seen_writes() == fate.seen and wire.proxy.counts == {fault: 1}
    wire.proxy.land()
    late = fault.startswith("late")
    assert wire.body(key) == (b"new" if fate.stored or late else before)
    if isinstance(outcome, Written):
        found = wire.truth.read(key)
        assert isinstance(found, Found) and found.etag == outcome.etag


@pytest.mark.parametrize("how", ["create", "replace"])
@pytest.mark.parametrize("fault", KINDS)
def test_a_write_whose_condition_does_not_hold_is_never_written(
    wire: Wire, fault: Kind, how: str
) -> None:
    key = wire.key()
    wire.proxy.script(fault)
    outcome = write(wire, how, key, holds=False)
    assert isinstance(outcome, (Lost, Unknown)), outcome
    if FATES[fault].seen == 0:
        assert isinstance(outcome, Unknown), "the server was never asked"
    wire.proxy.land()
    assert wire.body(key) == b"old"


def test_half_a_head_of_an_answer_never_makes_an_etag(wire: Wire) -> None:
    """Cut after every single byte: Python's client takes what came of a head for all of it."""
    written = 0
    for after in range(400):
        key = wire.key(str(after))
        wire.proxy.script("cut_head")
        wire.proxy.cut_after = after
        outcome = wire.store.create(key, b"body %d" % after)
        assert isinstance(outcome, (Written, Unknown)), outcome
        if isinstance(outcome, Written):
            written += 1
            found = wire.truth.read(key)
            assert isinstance(found, Found) and found.etag == outcome.etag, f"cut after {after}"
    assert written > 100, "the head is longer than all cuts"


@pytest.mark.filterwarnings("ignore:tzname")  # half a Last-Modified, in botocore
@pytest.mark.parametrize("call", ["read", "list", "range"])
def test_half_a_head_is_no_shorter_body(wire: Wire, call: str) -> None:
    key = wire.key()
    assert isinstance(wire.store.create(key, b"body"), Written)
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: _body_of(wire.store.read(key)),
        "list": lambda: [row.size for row in wire.store.list(key)],
        "range": lambda: wire.store.read_range(key, 1, 2),
    }
    truth = {"read": b"body", "list": [4], "range": b"od"}[call]
    silent = 0
    for after in range(0, 400, 3):
        wire.proxy.script("cut_head")
        wire.proxy.cut_after = after
        try:
            assert calls[call]() == truth, f"cut after {after} bytes"
        except StoreSilent:
            silent += 1
    assert silent > 50


def _body_of(found: Found | Missing) -> bytes | None:
    return None if isinstance(found, Missing) else found.body


@pytest.mark.parametrize("fault", ["delay_request", "delay_answer", "drip"])
def test_the_total_deadline_ends_a_call_that_drips(
    wire: Wire, fault: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire.store, "deadline_s", 0.2)
    monkeypatch.setattr(wire.proxy, "delay_s", 0.02 if fault == "drip" else 2.0)
    key = wire.key()
    wire.proxy.script(fault)
    outcome = wire.store.create(key, b"mine")
    assert isinstance(outcome, Unknown) and "no answer within" in outcome.reason
    wire.proxy.script(fault)
    with pytest.raises(StoreSilent, match="no answer in"):
        wire.store.read(key)
    wire.proxy.script(fault)
    with pytest.raises(StoreSilent, match="no answer in"):
        list(wire.store.list(key))
    monkeypatch.undo()
    assert create_once(wire.store, key, b"mine", SYSTEM), "it lands, or is written now: ours"
    assert wire.body(key) == b"mine"


# ------------------------------------------------------------------------ one fault, one read

READS: dict[str, Callable[[S3Store, str, Path], object]] = {
    "read": lambda store, key, _: _body_of(store.read(key)),
    "list": lambda store, key, _: [(row.key, row.size) for row in store.list(key)],
    "range": lambda store, key, _: store.read_range(key, 2, 3),
    "file": lambda store, key, folder: (
        store.get_file(key, folder / "got") and (folder / "got").read_bytes()
    ),
}


@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
@pytest.mark.parametrize(
    ("call", "nth"), [("read", 0), ("list", 0), ("range", 0), *(("file", n) for n in range(3))]
)
def test_no_fault_makes_a_read_lie(
    wire: Wire, call: str, there: bool, nth: int, tmp_path: Path
) -> None:
    """Of each request that a read is made of: it tells the truth, or that it does not know."""
    key = wire.key()
    if there:
        assert isinstance(wire.truth.create(key, b"content"), Written)
    truth = READS[call](wire.truth, key, tmp_path)
    for fault in FAULTS:
        wire.meet(fault, nth)
        try:
            assert READS[call](wire.store, key, tmp_path) == truth, fault
        except StoreSilent as error:
            assert wire.proxy.counts[fault] == 1, error
            assert PAGE not in str(error) and "http" not in str(error)
        wire.proxy.land()


@pytest.mark.parametrize("nth", [0, 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_upload_that_returns_is_there(wire: Wire, fault: Kind, nth: int, tmp_path: Path) -> None:
    """Even where another file of the same length was there before."""
    key, file = wire.key(), tmp_path / "file"
    assert isinstance(wire.truth.create(key, b"before"), Written)
    file.write_bytes(b"behind")
    wire.meet(fault, nth)
    try:
        wire.store.put_file(key, file)
    except StoreSilent:
        assert wire.proxy.counts[fault] == 1
    else:
        assert wire.body(key) == b"behind"


#: What a client that tries again survives by itself.
PASSING: tuple[Kind, ...] = (
    "drop", "lose_answer", "delay_request", "delay_answer", "twice_first", "twice_second",
    "error_500", "applied_500", "late1",
)  # fmt: skip


@pytest.mark.parametrize("fault", PASSING)
def test_the_bulk_client_tries_again(wire: Wire, fault: Kind, tmp_path: Path) -> None:
    """Each request of an upload, a download, a range and a deletion in turn."""
    key, file = wire.key(), tmp_path / "file"
    file.write_bytes(b"content" * 100)
    calls: tuple[tuple[Callable[[], object], object], ...] = (
        (lambda: wire.store.put_file(key, file), None),
        (lambda: wire.store.get_file(key, tmp_path / "got"), True),
        (lambda: wire.store.read_range(key, 7, 7), b"content"),
        (lambda: wire.store.delete(key), None),
    )
    for call, answer in calls:
        for nth in range(3):
            wire.meet(fault, nth)
            assert call() == answer
            wire.proxy.land()
            if wire.proxy.counts[fault] == 0:
                break  # it has no further request
        assert nth, "not one request met the fault"
    assert (tmp_path / "got").read_bytes() == file.read_bytes()
    assert wire.body(key) is None


def test_a_page_in_place_of_a_deletion_is_not_noticed(wire: Wire) -> None:
    """Known: what is deleted (temp, scratch, ``unsettled/``) is in nobody's way and listed again."""
    key = wire.key()
    assert isinstance(wire.truth.create(key, b"x"), Written)
    wire.proxy.script("html")
    wire.store.delete(key)
    assert wire.body(key) == b"x"
    assert [row.key for row in wire.store.list(key)] == [key]


@pytest.mark.parametrize("fault", ["drop", "cut_body", "error_500", "lose_answer"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_progress_never_goes_back(
    wire: Wire, way: str, fault: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is sent or fetched again is not counted again."""
    monkeypatch.setattr(s3, "_TELL_EVERY_S", 0.0005)
    key, file = wire.key(), tmp_path / "file"
    size = 9 << 20  # two parts
    file.write_bytes(bytes(range(256)) * (size >> 8))
    if way == "down":
        wire.truth.put_file(key, file)
    seen: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        seen.append((done, total))

    def part(request: Request) -> bool:
        return request.method == ("PUT" if way == "up" else "GET")

    if way == "up" and fault == "cut_body":
        fault = "error_503"  # the answer to an upload has no body
    wire.proxy.script(fault, fault, only=part)
    if way == "up":
        wire.store.put_file(key, file, tell)
    else:
        assert wire.store.get_file(key, tmp_path / "got", tell)
        assert (tmp_path / "got").read_bytes() == file.read_bytes()
    assert wire.proxy.counts[fault] == 2
    assert seen == sorted(seen) and seen[-1] == (size, size)
    found = wire.truth.read_range(key, size - 2, 2)
    assert found == b"\xfe\xff"


# -------------------------------------------------------------------------------- settling


@pytest.mark.parametrize("fault", KINDS)
def test_create_once_ends_in_the_truth(wire: Wire, fault: Kind) -> None:
    mine, theirs = wire.key("mine"), wire.key("theirs")
    wire.truth.create(theirs, b"theirs")
    for key, body, verdict in ((mine, b"mine", True), (theirs, b"mine", False)):
        wire.proxy.script(fault)
        assert create_once(wire.store, key, b"mine", HASTY) is verdict
        wire.proxy.land()
        assert wire.body(key) == (b"mine" if verdict else b"theirs"), body
        wire.proxy.script(fault)
        assert create_once(wire.store, key, b"mine", HASTY) is verdict, "asked once more"


@pytest.mark.parametrize("fault", KINDS)
def test_a_change_ends_in_the_truth(wire: Wire, fault: Kind) -> None:
    key = wire.key()
    first = read_witness(wire.truth, key)
    wire.proxy.script(fault)
    done = change(wire.store, key, "j", first, Reserve("here", 60.0, "d1"), HASTY)
    wire.proxy.land()
    assert isinstance(done, Applied), done
    assert wire.stored(key) == done.witness
    wire.proxy.script(fault)
    late = change(wire.store, key, "j", first, Reserve("here", 60.0, "d2"), HASTY)
    assert late == Changed(), "somebody else wrote first"
    wire.proxy.land()
    assert wire.stored(key) == done.witness


@pytest.mark.parametrize("fault", KINDS)
def test_a_claim_ends_in_the_truth(wire: Wire, fault: Kind) -> None:
    key = wire.key()
    wire.others(key, Reserve("here", 60.0, "d1"))
    wire.proxy.script(fault, only=conditional)
    lease = acquire(wire.store, key, "j", 1, 3600.0, 60.0, HASTY)
    wire.proxy.land()
    assert isinstance(lease, Lease), lease
    now = wire.stored(key)
    assert now.holder == lease.holder and now.attempt == lease.attempt == 1


def renewal(lease: Lease, move: Move | None = None) -> Hold:
    return Hold(lease.holder, lease.attempt, 60.0, None, move)


def next_move(lease: Lease) -> Move:
    parent = lease.witness.pointer
    ordinal = (parent.ordinal if parent else 0) + 1
    return Move(Pointer(lease.attempt, 10 * ordinal, 1, ordinal, f"{ordinal:064x}"), parent)


@pytest.mark.parametrize("fault", KINDS)
def test_no_fault_of_one_write_loses_the_lease(wire: Wire, fault: Kind) -> None:
    key = wire.key()
    lease = wire.hold(key)
    for event in (renewal(lease), renewal(lease, next_move(lease))):
        wire.proxy.script(fault, only=conditional)
        assert isinstance(lease.write(event), Confirmed)
        wire.proxy.land()
        assert wire.stored(key).holder == lease.holder
        assert wire.stored(key).pointer == (event.move.pointer if event.move else None)
    wire.others(key, Ask("yield", 60.0, "ops"))
    wire.proxy.script(fault, only=conditional)
    assert isinstance(lease.write(renewal(lease)), Confirmed)
    wire.proxy.land()
    assert wire.stored(key).asked, "adopted, not overwritten"
    wire.others(key, Revoke("ops", "poison"))
    wire.proxy.script(fault, only=conditional)
    answer = lease.write(renewal(lease))
    wire.proxy.land()
    assert isinstance(answer, Deposed) and answer.witness == wire.stored(key)


# ------------------------------------------------------------------------------- ghost 412

ROUNDS = [50, pytest.param(500, marks=pytest.mark.soak)]
LOST_ANSWERS = ["lose_answer", GHOST]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("fault", LOST_ANSWERS)
def test_no_lost_answer_loses_a_lease(wire: Wire, fault: Kind, rounds: int) -> None:
    """Each write of a holder that renews and moves its pointer is applied, and its answer lost."""
    key = wire.key()
    lease = wire.hold(key)
    for n in range(rounds):
        move = next_move(lease) if n % 2 else None
        wire.proxy.script(fault, only=conditional)
        said = lease.write(renewal(lease, move))
        now = read_witness(wire.truth, key)
        assert isinstance(said, Confirmed), f"round {n}: {said}"
        assert now.witness == lease.witness and now.etag == lease._etag
        assert not move or lease.witness.pointer == move.pointer
    assert wire.proxy.counts[fault] == rounds
    assert lease.witness.pointer and lease.witness.pointer.ordinal == rounds // 2
    seen = wire.proxy.seen_writes()
    assert seen == rounds * (2 if fault == GHOST else 1), "a write was sent again"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("fault", LOST_ANSWERS)
def test_no_lost_answer_makes_a_wrong_verdict_of_a_change(
    wire: Wire, fault: Kind, rounds: int
) -> None:
    """A dispatcher's reservations; in every fifth round another one writes before it."""
    key = wire.key()
    for n in range(rounds):
        stored, rival = read_witness(wire.truth, key), n % 5 == 4
        event = Reserve("here", 60.0, "d1", "failed")
        if rival:
            theirs = wire.others(key, Reserve("there", 60.0, "d2", "failed"))
        wire.proxy.script(fault, only=conditional)
        said = change(wire.store, key, "j", stored, event, SYSTEM)
        if rival:
            assert said == Changed() and wire.stored(key) == theirs, f"round {n}: {said}"
        else:
            assert isinstance(said, Applied), f"round {n}: {said}"
            assert read_witness(wire.truth, key).etag == said.etag
            assert wire.stored(key) == said.witness
    assert wire.proxy.counts[fault] == rounds and wire.stored(key).launched == rounds


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("fault", LOST_ANSWERS)
def test_no_lost_answer_makes_a_wrong_verdict_of_a_create(
    wire: Wire, fault: Kind, rounds: int
) -> None:
    """In every fifth round the key is another's already."""
    for n in range(rounds):
        key, body, rival = wire.key(str(n)), b"mine %d" % n, n % 5 == 4
        if rival:
            assert isinstance(wire.truth.create(key, b"theirs"), Written)
        wire.proxy.script(fault, only=conditional)
        said = create_once(wire.store, key, body, HASTY)
        assert said is not rival, f"round {n}: {said}"
        assert wire.body(key) == (b"theirs" if rival else body)
    assert wire.proxy.counts[fault] == rounds


# --------------------------------------------------------------------------------- weather

STORM: Mapping[Kind, float] = dict.fromkeys(FAULTS, 0.4 / len(FAULTS))
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lease_in_a_storm(wire: Wire, seed: int) -> None:
    """Four requests in ten meet a fault, reads and writes alike: one line, and no lease lost."""
    key = wire.key()
    lease = wire.hold(key)
    wire.proxy.weather = Weather(seed, STORM)
    for n in range(30):
        move = next_move(lease) if n % 2 else None
        for _ in range(50):
            said = lease.write(renewal(lease, move))
            assert not isinstance(said, Deposed), f"round {n}: {said.reason}"
            if isinstance(said, Confirmed):
                break
        else:
            raise AssertionError("fifty writes without an answer")
        now = wire.stored(key)
        assert now.holder == lease.holder and now.pointer == lease.witness.pointer
        assert not move or now.pointer == move.pointer
        if n == 10:
            wire.others(key, Ask("yield", 60.0, "ops"))
    assert sum(wire.proxy.counts[fault] for fault in FAULTS) > 10
    assert wire.stored(key).asked
    wire.others(key, Revoke("ops", "over"))
    for _ in range(50):
        said = lease.write(renewal(lease))
        assert not isinstance(said, Confirmed), "confirmed after its revocation"
        if isinstance(said, Deposed):
            break
    assert isinstance(said, Deposed)
    wire.proxy.land()
    assert wire.stored(key).phase == "revoked"


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_and_creates_in_a_storm(wire: Wire, seed: int) -> None:
    """What was said to be applied is stored; what was not said may be, and is found afterwards."""
    key = wire.key()
    wire.proxy.weather = Weather(seed, STORM)
    applied = 0
    for n in range(30):
        stored = read_witness(wire.truth, key)
        launched = stored.witness.launched if stored.witness else 0
        event = Reserve("here", 60.0, f"d{n}", "failed")
        said = change(wire.store, key, "j", stored, event, HASTY)
        assert not isinstance(said, Changed), "nobody else writes"
        if isinstance(said, Applied):
            applied += 1
            assert wire.stored(key) == said.witness
        else:
            assert isinstance(said, Unsettled)
            wire.proxy.land()
            now = read_witness(wire.truth, key).witness
            assert now is None or now.launched in (launched, launched + 1)
        once = wire.key(f"once-{n}")
        try:
            assert create_once(wire.store, once, b"mine", HASTY), "nobody else creates it"
            assert wire.body(once) == b"mine"
        except StoreSilent:
            wire.proxy.land()
            assert wire.body(once) in (None, b"mine")
    assert applied > 15


def test_the_same_seed_draws_the_same_weather() -> None:
    request = Request(b"GET / HTTP/1.1\r\n\r\n", b"")
    one, two, three = (
        [weather(request) for _ in range(200)]
        for weather in (Weather(5, STORM), Weather(5, STORM), Weather(6, STORM))
    )
    assert one == two != three and set(one) > {"pass", "drop", "lose_answer"}
