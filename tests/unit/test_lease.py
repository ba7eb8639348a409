"""The lease on a store that loses, delays and cuts: only proof stops a holder, nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_protocol.codec import Corrupt, NewerProtocol, canonical, parse
from tenure_protocol.lease.client import (
    Applied,
    Changed,
    Confirmed,
    Deposed,
    Elsewhere,
    Lease,
    Refused,
    Silent,
    Stored,
    Superseded,
    Unsettled,
    acquire,
    change,
    first_silence_s,
    fruitless,
    read_witness,
)
from tenure_protocol.lease.machine import (
    Ask,
    Cancel,
    Claim,
    Event,
    Finish,
    Hold,
    Move,
    Release,
    Reserve,
    Revoke,
)
from tenure_protocol.records import Announced, Holder, Launch, Pointer, Witness
from tenure_protocol.store.api import Found
from tests.fake_clock import FakeClock
from tests.faulty_store import WRITE_FAULTS, FaultyStore

KEY = "witness/e/j.json"
PATIENCE_S = 60.0


@pytest.fixture
def store(clock: FakeClock) -> FaultyStore:
    return FaultyStore(clock)


def others(store: FaultyStore, event: Event) -> Witness:
    """Somebody else's change, over a path without faults."""
    stored = read_witness(store.inner, KEY)
    done = change(store.inner, KEY, "j", stored, event, store.clock)
    assert isinstance(done, Applied), done
    return done.witness


def stored(store: FaultyStore) -> Witness:
    found = read_witness(store.inner, KEY).witness
    assert found is not None
    return found


def expect(store: FaultyStore, window_s: float = 60.0) -> Witness:
    return others(store, Reserve("here", window_s, "d1", "failed"))


def take(store: FaultyStore, launch: int = 1) -> Lease | Elsewhere | Superseded | Silent:
    return acquire(store, KEY, "j", launch, 3600.0, PATIENCE_S, store.clock)


def hold_it(store: FaultyStore) -> Lease:
    expect(store)
    lease = take(store)
    assert isinstance(lease, Lease)
    return lease


def renewal(lease: Lease, move: Move | None = None) -> Hold:
    return Hold(lease.holder, lease.attempt, 10.0, None, move)


def next_move(lease: Lease, save: int = 1) -> Move:
    parent = lease.witness.pointer
    ordinal = (parent.ordinal if parent else 0) + 1
    return Move(Pointer(lease.attempt, 10 * ordinal, save, ordinal, f"{ordinal:064x}"), parent)


# ---------------------------------------------------------------------------------- holding


def test_a_renewal_is_confirmed_from_when_it_was_sent(store: FaultyStore, clock: FakeClock) -> None:
    lease = hold_it(store)
    clock.sleep(5)
    store.call_s = 2.0
    began_s = clock.now_s
    assert lease.write(renewal(lease)) == Confirmed(began_s)
    assert lease.confirmed_at_s == began_s
    assert stored(store).silence_s == 10.0


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize("kind", ["renew", "move", "release", "finish"])
def test_no_fault_of_one_write_loses_the_lease(store: FaultyStore, fault: str, kind: str) -> None:
    lease = hold_it(store)
    move = next_move(lease)
    event: Hold | Release | Finish = {
        "renew": renewal(lease),
        "move": renewal(lease, move),
        "release": Release(lease.holder, lease.attempt, 10, "x"),
        "finish": Finish(lease.holder, lease.attempt, 0, "x", {"y": 1}),
    }[kind]
    store.fail_writes([fault])
    answer = lease.write(event)
    assert isinstance(answer, Confirmed), answer
    store.land()
    now = stored(store)
    assert now.phase == {"release": "released", "finish": "finished"}.get(kind, "held")
    assert now.pointer == (move.pointer if kind == "move" else None)
    assert now.attempt == 1 and lease.witness.phase == now.phase


@pytest.mark.parametrize("faults", [["ghost"] * 3, ["lost_answer"] * 3, ["lost_request"] * 3])
def test_a_move_that_landed_is_not_sent_twice(store: FaultyStore, faults: list[str]) -> None:
    lease = hold_it(store)
    move = next_move(lease)
    store.fail_writes(faults)
    assert isinstance(lease.write(renewal(lease, move)), Confirmed)
    assert stored(store).pointer == move.pointer
    assert isinstance(lease.write(renewal(lease, move)), Confirmed)  # asked again, done already
    pointers = [Witness.decode(body, KEY).pointer for body in store.bodies(KEY)]
    assert [p.ordinal for p in pointers if p] == sorted(p.ordinal for p in pointers if p)


def test_an_older_unsettled_write_that_lands_is_known(store: FaultyStore) -> None:
    """Trace 3: a renewal delayed, a move on the same ETag; the renewal lands; the move gets 412."""
    lease = hold_it(store)
    store.reads.extend(["silent"])
    store.fail_writes(["late2"])  # lands at the second operation after: between write and read
    assert isinstance(lease.write(renewal(lease)), Silent)
    move = next_move(lease)
    store.land()
    assert isinstance(lease.write(renewal(lease, move)), Confirmed)
    assert stored(store).pointer == move.pointer


def test_a_store_without_an_answer_proves_nothing(store: FaultyStore) -> None:
    lease = hold_it(store)
    store.silent = lambda key: True
    for _ in range(5):
        assert isinstance(lease.write(renewal(lease)), Silent)
        assert isinstance(lease.read(), Silent)
    store.heal()
    assert isinstance(lease.write(renewal(lease)), Confirmed)


def test_requests_that_never_arrive_are_silence(store: FaultyStore) -> None:
    lease = hold_it(store)
    store.fail_writes(["lost_request"] * 100)
    answer = lease.write(renewal(lease))
    assert isinstance(answer, Silent) and "lost" in answer.reason
    assert len(store.writes) >= 90, "one call sends a bounded number of writes"


def test_a_witness_that_reads_as_missing_or_corrupt_proves_nothing(store: FaultyStore) -> None:
    lease = hold_it(store)
    body = store.inner._objects.pop(KEY)
    assert isinstance(lease.write(renewal(lease)), Silent)
    store.inner._objects[KEY] = (b"{", 0.0)
    answer = lease.write(renewal(lease))
    assert isinstance(answer, Silent) and KEY in answer.reason
    store.inner._objects[KEY] = body
    assert isinstance(lease.write(renewal(lease)), Confirmed)


# ----------------------------------------------------------------------- adoption and proof


@pytest.mark.parametrize("fault", ["ok", "lost_request", "lost_answer", "ghost", "late1", "late3"])
def test_somebody_asking_is_adopted(store: FaultyStore, fault: str) -> None:
    """Trace 6: a foreign write that leaves us the holder deposes nobody."""
    lease = hold_it(store)
    others(store, Ask("pause", 30.0, "ops"))
    move = next_move(lease)
    store.fail_writes([fault])
    assert isinstance(lease.write(renewal(lease, move)), Confirmed)
    now = stored(store)
    assert now.asked and now.asked.what == "pause" and now.pointer == move.pointer
    assert lease.witness.asked == now.asked
    assert isinstance(lease.write(Release(lease.holder, 1, 10, "asked")), Confirmed)
    assert stored(store).held_back


def test_asking_between_a_lost_answer_and_the_read_is_adopted(store: FaultyStore) -> None:
    """Our move landed, its answer was lost, and somebody asked on top of it."""
    lease = hold_it(store)
    move = next_move(lease)
    store.fail_writes(["lost_answer"])
    store.reads.append("silent")
    assert isinstance(lease.write(renewal(lease, move)), Silent)
    others(store, Ask("yield", 30.0, "ops"))
    assert isinstance(lease.write(renewal(lease, move)), Confirmed)
    assert stored(store).pointer == move.pointer and stored(store).asked
    moved = [Witness.decode(body, KEY).pointer for body in store.bodies(KEY)]
    assert {p for p in moved if p} == {move.pointer}


DEPOSING: list[tuple[list[Event], str]] = [
    ([Revoke("ops", "poison")], "revoked by ops: poison"),
    ([Cancel("ops", "budget")], "cancelled by ops: budget"),
    ([Reserve("there", 60.0, "d2", "vacant")], "expected"),
    ([Reserve("there", 60.0, "d2", "vacant"), Claim(2, "other", 60.0)], "attempt 2 of launch 2"),
    ([Claim(1, "twin", 60.0, vacant=True)], "attempt 2 of launch 1"),
]


@pytest.mark.parametrize(("events", "words"), DEPOSING)
@pytest.mark.parametrize("fault", ["ok", *WRITE_FAULTS])
def test_proof_deposes(store: FaultyStore, events: list[Event], words: str, fault: str) -> None:
    lease = hold_it(store)
    for event in events:
        others(store, event)
    before = stored(store)
    store.fail_writes([fault])
    answer = lease.write(renewal(lease, next_move(lease)))
    assert isinstance(answer, Deposed), answer
    assert words in answer.reason
    store.land()
    assert stored(store) == before, "a deposed worker's write changed something"
    assert isinstance(lease.read(), Deposed)


def test_our_own_release_that_landed_is_not_held_again(store: FaultyStore) -> None:
    lease = hold_it(store)
    store.fail_writes(["lost_answer"])
    store.reads.append("silent")
    assert isinstance(lease.write(Release(lease.holder, 1, 10, "SIGTERM")), Silent)
    assert isinstance(lease.write(renewal(lease)), Deposed)
    assert isinstance(lease.read(), Deposed)
    assert stored(store).phase == "released"


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_histories_of_a_holder(data: st.DataObject) -> None:
    """Any faults in any order, with people asking in between: one line, and no lease lost."""
    with FakeClock() as clock:
        store = FaultyStore(clock)
        lease = hold_it(store)
        deposed = asked = False
        for _ in range(data.draw(st.integers(1, 12))):
            store.fail_writes(
                data.draw(st.lists(st.sampled_from(["ok", *WRITE_FAULTS]), max_size=5))
            )
            store.reads.extend(data.draw(st.lists(st.sampled_from(["ok", "silent"]), max_size=3)))
            what = data.draw(st.sampled_from(["renew", "move", "move", "ask", "read", "revoke"]))
            if what == "ask" and not asked and not deposed:
                asked = others(store, Ask("yield", 9.0, "ops")).asked is not None
            elif what == "revoke" and not deposed and data.draw(st.booleans()):
                others(store, Revoke("ops", "why"))
                deposed = True
            elif what == "read":
                seen = lease.read()
                assert deposed or not isinstance(seen, Deposed)
            else:
                move = next_move(lease, data.draw(st.integers(1, 9))) if what == "move" else None
                for _ in range(20):
                    answer = lease.write(renewal(lease, move))
                    assert deposed or not isinstance(answer, Deposed)
                    if isinstance(answer, Confirmed):
                        assert move is None or lease.witness.pointer == move.pointer
                        break
                    if isinstance(answer, Deposed):
                        break
                else:
                    raise AssertionError("twenty silent writes, with five faults at most")
        store.heal()
        answer = lease.write(renewal(lease))
        assert isinstance(answer, Deposed if deposed else Confirmed)
        store.land()
        line = [Witness.decode(body, KEY).pointer for body in store.bodies(KEY)]
        ordinals = [p.ordinal if p else 0 for p in line]
        assert all(b - a in (0, 1) for a, b in pairwise(ordinals))
        assert len({p for p in line if p}) == max(ordinals, default=0), (
            "two pointers of one ordinal"
        )


# --------------------------------------------------------------------------------- claiming


@pytest.mark.parametrize("fault", ["ok", *WRITE_FAULTS])
def test_a_claim_is_recognised_however_it_lands(store: FaultyStore, fault: str) -> None:
    expect(store)
    store.fail_writes([fault])
    lease = take(store)
    assert isinstance(lease, Lease)
    store.land()
    assert stored(store).holder == lease.holder and stored(store).attempt == lease.attempt == 1
    assert isinstance(lease.write(renewal(lease)), Confirmed)


@given(
    st.lists(st.sampled_from(["ok", *WRITE_FAULTS]), max_size=12),
    st.lists(st.sampled_from(["ok", "silent"]), max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_a_claim_under_many_faults_ends_held_once(writes: list[str], reads: list[str]) -> None:
    with FakeClock() as clock:
        store = FaultyStore(clock)
        expect(store)
        store.fail_writes(writes)
        store.reads.extend(reads)
        lease = take(store)
        assert isinstance(lease, Lease), lease
        store.land()
        assert stored(store).holder == lease.holder
        assert stored(store).attempt == 1, "one worker claimed twice"
        store.heal()
        assert isinstance(lease.write(renewal(lease)), Confirmed)


def test_two_claimers_one_winner(store: FaultyStore, clock: FakeClock) -> None:
    """A platform that created the same launch twice."""
    expect(store)
    store.call_s = 0.01  # the baton passes at every call
    got: list[object] = []
    tasks = [clock.spawn(lambda: got.append(take(store)), f"claimer-{n}") for n in range(3)]

    def renew() -> None:
        while len(got) < 3:
            for lease in [found for found in got if isinstance(found, Lease)]:
                lease.write(renewal(lease))
            clock.sleep(1.0)

    renewing = clock.spawn(renew, "renewing")
    for task in [*tasks, renewing]:
        task.join()
    winners = [lease for lease in got if isinstance(lease, Lease)]
    assert len(winners) == 1 and all(isinstance(g, Lease | Elsewhere) for g in got)
    assert stored(store).attempt == 1 and stored(store).holder == winners[0].holder


def test_a_holder_of_another_launch_is_never_judged(store: FaultyStore, clock: FakeClock) -> None:
    hold_it(store)
    clock.sleep(10_000)  # long dead, and not ours to say
    got = take(store, launch=2)
    assert isinstance(got, Elsewhere) and "launch 1" in got.reason
    assert stored(store).attempt == 1


def test_a_restart_on_the_same_launch_waits_out_its_predecessor(
    store: FaultyStore, clock: FakeClock
) -> None:
    first = hold_it(store)
    first.write(renewal(first))  # a lease of 10 s, and then it is killed
    began_s = clock.now_s
    second = take(store)
    assert isinstance(second, Lease) and second.attempt == 2
    assert clock.now_s - began_s > 10.0, "claimed before the lease had run out"
    assert isinstance(first.write(renewal(first)), Deposed)


def test_a_restart_finds_its_predecessor_alive(store: FaultyStore, clock: FakeClock) -> None:
    first = hold_it(store)
    first.write(renewal(first))

    def renew() -> None:
        for _ in range(20):
            clock.sleep(3.0)
            first.write(renewal(first))

    clock.spawn(renew, "alive")
    got = take(store)
    assert isinstance(got, Elsewhere) and "alive" in got.reason
    assert stored(store).attempt == 1


def test_a_failed_call_starts_the_claimers_watch_anew(store: FaultyStore, clock: FakeClock) -> None:
    first = hold_it(store)
    first.write(renewal(first))
    clock.sleep(1000.0)  # by age alone it is dead
    store.reads.extend(["ok", "ok", "ok", "silent"])
    began_s = clock.now_s
    assert isinstance(take(store), Lease)
    assert clock.now_s - began_s > 12.0, "it did not watch a whole lease after the failed call"


def test_an_announced_silence_is_waited_out(store: FaultyStore, clock: FakeClock) -> None:
    first = hold_it(store)
    first.write(replace(renewal(first), announced=Announced("evaluating", 300.0)))
    began_s = clock.now_s
    assert isinstance(take(store), Lease)
    assert clock.now_s - began_s > 300.0


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([Revoke("ops", "why")], "revoked"),
        ([Cancel("ops", "no money")], "cancelled: no money"),
        ([Revoke("ops", "why"), Reserve("here", 9.0, "d")], "may no longer claim"),
    ],
)
def test_a_launch_that_is_over_is_superseded(
    store: FaultyStore, events: list[Event], words: str
) -> None:
    """Trace 2 among them: revoked, expected(2), and then the late worker of launch 1 comes."""
    expect(store)
    for event in events:
        others(store, event)
    got = take(store)
    assert isinstance(got, Superseded) and words in got.reason


def test_a_paused_job_is_not_claimed(store: FaultyStore) -> None:
    lease = hold_it(store)
    others(store, Ask("pause", 9.0, "ops"))
    lease.write(renewal(lease))
    lease.write(Release(lease.holder, 1, 10, "asked"))
    got = take(store)
    assert isinstance(got, Superseded) and "paused" in got.reason


def test_a_finished_job_is_not_claimed(store: FaultyStore) -> None:
    lease = hold_it(store)
    lease.write(Finish(lease.holder, 1, 0, "finished", {}))
    got = take(store)
    assert isinstance(got, Superseded) and "finished" in got.reason


def test_an_older_launch_above_the_barrier_may_still_claim(store: FaultyStore) -> None:
    expect(store)
    expect(store)
    lease = take(store, launch=1)
    assert isinstance(lease, Lease) and lease.holder.launch == 1


def test_a_claim_outlasts_a_silent_store_up_to_its_patience(
    store: FaultyStore, clock: FakeClock
) -> None:
    expect(store)
    store.silent = lambda key: True

    def heal() -> None:
        clock.sleep(PATIENCE_S - 5)
        store.heal()

    clock.spawn(heal, "heal")
    assert isinstance(take(store), Lease)


@pytest.mark.parametrize("how", ["reads", "writes", "missing"])
def test_a_claim_loses_its_patience(store: FaultyStore, clock: FakeClock, how: str) -> None:
    if how != "missing":
        expect(store)
    if how == "reads":
        store.silent = lambda key: True
    if how == "writes":
        store.fail_writes(["lost_request"] * 100_000)
    began_s = clock.now_s
    assert isinstance(take(store), Silent)
    assert PATIENCE_S < clock.now_s - began_s < 2 * PATIENCE_S
    assert len(store.calls) < 2000, "a silent store was hammered"


def test_patience_counts_from_the_last_answer(store: FaultyStore, clock: FakeClock) -> None:
    """A long watch of a predecessor, then one failed call: that is no silent store."""
    first = hold_it(store)
    first.write(replace(renewal(first), announced=Announced("evaluating", 300.0)))

    def hiccup() -> None:
        clock.sleep(200.0)
        store.reads.append("silent")

    clock.spawn(hiccup, "hiccup")
    assert isinstance(take(store), Lease)


def test_a_witness_that_comes_late_is_waited_for(store: FaultyStore, clock: FakeClock) -> None:
    def announce() -> None:
        clock.sleep(5.0)
        expect(store)

    clock.spawn(announce, "dispatcher")
    assert isinstance(take(store), Lease)


# ------------------------------------------------------------------------------- local mode


def test_local_mode_claims_an_absent_and_a_released_witness(store: FaultyStore) -> None:
    lease = take(store, launch=0)
    assert isinstance(lease, Lease) and lease.holder.launch == 0 and lease.attempt == 1
    lease.write(Release(lease.holder, 1, 10, "x"))
    again = take(store, launch=0)
    assert isinstance(again, Lease) and again.attempt == 2


def test_local_mode_leaves_an_expected_launch_alone(store: FaultyStore) -> None:
    expect(store)
    got = take(store, launch=0)
    assert isinstance(got, Elsewhere) and "launch 1 is expected" in got.reason


def test_local_mode_watches_any_holder(store: FaultyStore, clock: FakeClock) -> None:
    first = hold_it(store)
    first.write(renewal(first))
    began_s = clock.now_s
    lease = take(store, launch=0)
    assert isinstance(lease, Lease) and lease.attempt == 2
    assert clock.now_s - began_s > 10.0


def test_two_local_claimers_of_an_absent_witness(store: FaultyStore, clock: FakeClock) -> None:
    store.call_s = 0.01
    first = take(store, launch=0)
    assert isinstance(first, Lease)

    def renew() -> None:
        for _ in range(100):
            first.write(renewal(first))
            clock.sleep(2.0)

    clock.spawn(renew, "alive")
    assert isinstance(take(store, launch=0), Elsewhere)


def test_local_mode_respects_a_revocation(store: FaultyStore) -> None:
    others(store, Revoke("ops", "not here"))
    assert isinstance(take(store, launch=0), Superseded)


# ----------------------------------------------------------------------------- first lease


def test_the_first_lease_is_the_claim_window_and_doubles_without_a_milestone() -> None:
    w = Witness("j", "expected", "w", launch=Launch(1, "here", 60.0))
    assert (fruitless(None), fruitless(w)) == (0, 0)
    assert first_silence_s(w, 3600.0) == 60.0
    assert first_silence_s(replace(w, attempt=2), 3600.0) == 240.0
    moved = replace(w, attempt=5, pointer=Pointer(4, 1, 1, 1, "d"))
    assert fruitless(moved) == 1 and first_silence_s(moved, 3600.0) == 120.0
    assert first_silence_s(replace(w, attempt=50), 3600.0) == 3600.0
    assert first_silence_s(None, 3600.0) == 600.0


# --------------------------------------------------------------------- everybody else's changes


@pytest.mark.parametrize("fault", ["ok", *WRITE_FAULTS])
def test_a_change_is_settled(store: FaultyStore, fault: str) -> None:
    store.fail_writes([fault])
    done = change(store, KEY, "j", Stored(None, ""), Reserve("here", 9.0, "d"), store.clock)
    assert isinstance(done, Applied)
    store.land()
    found = store.inner.read(KEY)
    assert isinstance(found, Found)
    assert (stored(store).write_id, found.etag) == (done.witness.write_id, done.etag)
    assert stored(store).launched == 1


def test_a_change_on_an_old_etag_is_changed(store: FaultyStore) -> None:
    expect(store)
    old = read_witness(store, KEY)
    hold = take(store)
    assert isinstance(hold, Lease)
    assert change(store, KEY, "j", old, Revoke("ops", "x"), store.clock) == Changed()
    assert stored(store).phase == "held"


def test_a_change_the_table_has_not_is_refused_without_a_write(store: FaultyStore) -> None:
    expect(store)
    now = read_witness(store, KEY)
    calls = len(store.calls)
    assert isinstance(change(store, KEY, "j", now, Reserve("h", 9.0, "d"), store.clock), Refused)
    assert len(store.calls) == calls


def test_a_change_without_an_answer_is_unsettled(store: FaultyStore) -> None:
    expect(store)
    now = read_witness(store, KEY)
    store.fail_writes(["lost_request"] * 100)
    assert isinstance(change(store, KEY, "j", now, Revoke("o", "x"), store.clock), Unsettled)
    store.heal()
    store.silent = lambda key: True
    assert isinstance(change(store, KEY, "j", now, Revoke("o", "x"), store.clock), Unsettled)


def test_two_dispatchers_reserve_one_launch(store: FaultyStore) -> None:
    nothing = read_witness(store, KEY)
    first = change(store, KEY, "j", nothing, Reserve("a", 9.0, "d1"), store.clock)
    second = change(store, KEY, "j", nothing, Reserve("b", 9.0, "d2"), store.clock)
    assert isinstance(first, Applied) and second == Changed()
    assert stored(store).launch == Launch(1, "a", 9.0)


def test_corrupt_and_newer_witnesses_are_named(store: FaultyStore) -> None:
    expect(store)
    body = parse(stored(store).encode())
    store.inner._objects[KEY] = (canonical({**body, "protocol": 9}), 0.0)
    with pytest.raises(NewerProtocol, match=KEY):
        take(store)
    store.inner._objects[KEY] = (b"not a witness", 0.0)
    with pytest.raises(Corrupt, match=KEY):
        take(store)


def test_holders_differ_by_nonce(store: FaultyStore) -> None:
    first = hold_it(store)
    assert first.holder == Holder(1, first.holder.nonce) and first.holder.nonce
    first.write(Release(first.holder, 1, 10, "x"))
    second = take(store)
    assert isinstance(second, Lease) and second.holder.nonce != first.holder.nonce
