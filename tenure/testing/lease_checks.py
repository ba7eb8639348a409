"""What the lease protocol does on a store: several clients of the product's own code, one witness.

``make()`` gives a fresh, empty store, as in :mod:`tenure.testing.store_checks`; a check raises
AssertionError. The paths by which a check's clients reach the store lose and hold back what the
check says, and silence is never taken for an answer, so that a store which loses answers by itself
must pass too.

Where threads race, a worker trains or a lease must really run out, time is real. Elsewhere a wait
is skipped, and the ages that the store reports grow by what was skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tenure.testing import lease_world as world
from tenure.testing import worker_checks
from tenure.testing.lease_world import (
    FAULTS,
    LEASE_S,
    LONG_S,
    PATIENCE_S,
    RACERS,
    ROUNDS,
    WINDOW_S,
    Check,
    Got,
    Make,
    Mine,
    Together,
    Watcher,
    World,
    answer,
    confirm,
    finish,
    next_move,
    release,
    renewal,
    reserve,
)
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import client
from tenure_protocol.lease.client import (
    Changed,
    Deposed,
    Elsewhere,
    Lease,
    Refused,
    Silent,
    Superseded,
)
from tenure_protocol.lease.machine import (
    Ask,
    Cancel,
    Claim,
    Event,
    Occupied,
    Resume,
    Revoke,
    Rewind,
    Vacant,
)
from tenure_worker import exits

_REVOKE = Revoke("ops", "gone")
_CANCEL = Cancel("ops", "no money")
_YIELD = Ask("yield", 30.0, "ops")
_PAUSE = Ask("pause", 30.0, "ops")


# -------------------------------------------------------------------------------- claiming


def check_an_announced_launch_is_claimed_once(make: Make) -> None:
    """Of two workers that decided from the same announcement, one holds the tenure."""
    w = World(make())
    w.event(reserve())
    announced = w.read()
    lease = w.claimed()
    held = w.witness
    assert (held.phase, held.attempt, held.launched) == ("held", 1, 1), held
    assert held.holder == lease.holder and held.holder.launch == 1, held
    twin = w.outcome(Claim(1, SYSTEM.nonce(), LEASE_S), announced)
    assert isinstance(twin, Changed), f"the second claim of one announcement is {twin}"
    assert w.witness == held, "the second claim changed the witness"


def check_a_claim_beside_a_holder_is_elsewhere(make: Make) -> None:
    """Another process of the launch sees the holder renew; another launch never judges it."""
    w = World(make())
    lease = w.held()
    w.time.meanwhile = lambda: confirm(lease, renewal(lease))
    twin = w.claim()
    assert isinstance(twin, Elsewhere), f"beside a living holder: {twin}"
    w.time.meanwhile = world.nothing
    w.time.sleep(10_000.0)  # long dead, and not for another launch to say
    other = w.claim(2)
    assert isinstance(other, Elsewhere), f"a launch judged the holder of another: {other}"
    assert w.witness == lease.witness, "a claim beside a holder changed the witness"
    confirm(lease, finish(lease))
    assert isinstance(w.claim(), Superseded), "a finished job was claimed"


def check_a_claim_past_the_barrier_is_refused(make: Make) -> None:
    """A worker of a revoked launch that comes late, after the next one was announced."""
    w = World(make())
    w.event(reserve())
    w.event(_REVOKE)
    assert isinstance(w.claim(), Superseded), "a revoked job was claimed"
    w.event(reserve())
    announced = w.witness
    assert (announced.launched, announced.barrier) == (2, 1), announced
    assert isinstance(w.claim(), Superseded), "a launch below the barrier claimed"
    assert w.witness == announced, "a refused claim changed the witness"
    assert w.claimed(2).attempt == 1, w.witness


def check_a_job_held_back_is_not_claimed(make: Make) -> None:
    """Asked to pause, the holder releases held back: until a resume nobody claims or launches."""
    w = World(make())
    lease = w.held()
    w.event(_PAUSE)
    confirm(lease, renewal(lease))
    confirm(lease, release(lease))
    paused = w.witness
    assert paused.phase == "released" and paused.held_back, f"a pause was released as {paused}"
    for launch in (1, 0):
        assert isinstance(w.claim(launch), Superseded), f"launch {launch} claimed a paused job"
    for further in (reserve(), reserve("vacant"), reserve("failed")):
        assert isinstance(w.outcome(further), Refused), f"a paused job: {further} was applied"
    assert w.witness == paused, "a refused change of a paused job changed it"
    w.event(Resume("ops"))
    w.event(reserve())
    assert w.claimed(2).attempt == 2, w.witness


def check_local_mode_leaves_an_announced_launch_alone(make: Make) -> None:
    """A script claims what nobody expects: an absent and a released witness, never a launch's."""
    w = World(make())
    first = w.claimed(0)
    confirm(first, release(first))
    second = w.claimed(0)
    assert (first.attempt, second.attempt) == (1, 2)
    confirm(second, release(second))
    w.event(reserve())
    assert isinstance(w.claim(0), Elsewhere), "local mode claimed an announced launch"
    told = w.outcome(Claim(0, SYSTEM.nonce(), LEASE_S))
    assert isinstance(told, Refused), f"local mode claims an announced launch: {told}"


def check_a_claim_is_patient(make: Make) -> None:
    """A worker that comes while its path is cut claims when it is back, or gives up at last."""
    w = World(make())
    w.event(reserve())
    announced = w.witness
    path = w.path()
    path.cut = True
    assert isinstance(w.claim(path=path), Silent), "it did not give up"
    assert w.witness == announced, "it wrote over a path that is cut"
    waits = iter(range(5))

    def heal() -> None:
        path.cut = next(waits, None) is not None

    w.time.meanwhile = heal
    lease = w.claimed(path=path)
    assert lease.attempt == 1 and w.witness.holder == lease.holder, w.witness


# --------------------------------------------------------------------------------- holding


def check_a_late_renewal_overwrites_nothing(make: Make) -> None:
    """Renewals held back on the way land after somebody else's write, and are refused."""
    w = World(make())
    path = w.path()
    lease = w.held(path)
    path.faults.extend(["late"] * ROUNDS)
    _assert_silent(lease.write(renewal(lease)))
    w.event(_REVOKE)
    revoked = w.witness
    path.land()
    assert w.witness == revoked, "a late renewal overwrote a revocation"
    told = answer(lease, renewal(lease))
    assert isinstance(told, Deposed), f"a renewal on an old ETag is {told}"
    assert w.witness == revoked, "a renewal on an old ETag overwrote a revocation"


def check_a_request_is_adopted(make: Make) -> None:
    """Somebody asks the holder to yield: it learns of it by its next write, and goes on holding."""
    w = World(make())
    lease = w.held()
    w.event(_YIELD)
    move = next_move(lease)
    confirm(lease, renewal(lease, move))
    now = w.witness
    assert (now.phase, now.holder, now.attempt) == ("held", lease.holder, 1), now
    assert now.asked and now.asked.what == "yield" and now.pointer == move.pointer, now
    assert lease.witness == now, "the holder does not know what it adopted"
    assert isinstance(w.outcome(_PAUSE), Refused), "asked twice in one attempt"
    confirm(lease, release(lease))
    assert not w.witness.held_back, "a holder that was asked to yield is paused"


def check_a_pointer_moves_along_its_parent(make: Make) -> None:
    """A move names the stored pointer as its parent, counts on by one, and is of this attempt."""
    w = World(make())
    lease = w.held()
    first, other = next_move(lease), next_move(lease, save=2)
    before = w.read()
    confirm(lease, renewal(lease, first))
    moved = w.witness
    assert moved.pointer == first.pointer, moved
    assert isinstance(w.outcome(renewal(lease, other), before), Changed), "moved from an old body"
    second = next_move(lease)
    for wrong in (
        other,  # its parent is none, and there is one
        replace(second, parent=other.pointer),
        replace(second, pointer=replace(second.pointer, ordinal=3)),
        replace(second, pointer=replace(second.pointer, ordinal=1)),
        replace(second, pointer=replace(second.pointer, attempt=2)),
    ):
        told = w.outcome(renewal(lease, wrong))
        assert isinstance(told, Refused), f"the pointer may go to {wrong}: {told}"
    assert w.witness == moved, "a refused move changed the witness"
    confirm(lease, renewal(lease, second))
    assert w.witness.pointer == second.pointer, w.witness


def check_a_move_without_an_answer_is_stored_once(make: Make) -> None:
    """It was stored, its answer lost; somebody may even have written since. It is not sent again."""
    store = make()
    for number, asked in enumerate((False, True)):
        w = World(store, number)
        path = w.path()
        lease = w.held(path)
        move = next_move(lease)
        path.faults.append("lost_answer")
        path.mute_reads = 1
        _assert_silent(lease.write(renewal(lease, move)))
        if asked:
            w.event(_YIELD)
        for _ in range(2):
            confirm(lease, renewal(lease, move))
        now = w.witness
        assert now.pointer == move.pointer, f"the move was lost: {now}"
        assert (now.asked is not None) == asked and now.holder == lease.holder, now
        confirm(lease, renewal(lease, next_move(lease)))


def check_a_verdict_is_what_is_stored(make: Make) -> None:
    """Whatever becomes of one write, everybody is told what the store holds, then and later."""
    store = make()
    for number, fault in enumerate(FAULTS):
        w = World(store, number)
        path = w.path()
        path.faults.append(fault)
        assert w.event(reserve(), path) == w.witness, f"{fault}: of the announcement"
        path.faults.append(fault)
        lease = w.claimed(path=path)
        assert lease.attempt == 1 and lease.witness == w.witness, f"{fault}: of the claim"
        move = next_move(lease)
        for mine in (renewal(lease), renewal(lease, move), release(lease)):
            path.faults.append(fault)
            confirm(lease, mine)
            assert lease.witness == w.witness, f"{fault}: of {mine}"
        given_back = w.witness
        assert (given_back.phase, given_back.pointer) == ("released", move.pointer), given_back
        path.faults.append(fault)
        lease = w.claimed(path=path)
        assert lease.attempt == 2 and lease.witness == w.witness, f"{fault}: of the second claim"
        path.faults.append(fault)
        confirm(lease, finish(lease))
        over = w.witness
        assert over.phase == "finished" and lease.witness == over, f"{fault}: of the end"
        path.land()
        assert w.witness == over, f"{fault}: a write of long ago changed the end"


def check_any_unsettled_write_is_recognised(make: Make) -> None:
    """A write without an answer lands after later ones were sent on the same ETag: it is ours."""
    store = make()
    ends: tuple[Callable[[Lease], Mine], ...] = (finish, release)
    for number, end in enumerate(ends):
        w = World(store, number)
        path = w.path()
        path.faults.append("overtaken")
        assert w.event(reserve(), path) == w.witness and w.witness.launched == 1
        lease = w.claimed(path=path)
        path.faults.extend(["late", "lost_request"])  # one each of two calls
        path.mute_reads = 2
        _assert_silent(lease.write(end(lease)))
        _assert_silent(lease.write(end(lease)))
        path.land()
        confirm(lease, end(lease))
        assert lease.witness == w.witness, "told of another end than the stored one"


def check_silence_proves_nothing(make: Make) -> None:
    """Without an answer a holder neither loses its tenure nor believes a write to be done."""
    w = World(make())
    path = w.path()
    lease = w.held(path)
    move = next_move(lease)
    held = w.read()
    for cut in (True, False):  # nothing passes; then only the writes never arrive
        path.cut = cut
        for _ in range(3):
            path.faults.extend([] if cut else ["lost_request"] * ROUNDS)
            _assert_silent(lease.write(renewal(lease, move)))
            path.faults.extend([] if cut else ["lost_request"] * ROUNDS)
            other = client.change(path, w.key, w.job, held, _REVOKE, w.time)
            assert isinstance(other, client.Unsettled), f"without an answer: {other}"
    path.cut = True
    _assert_silent(lease.read())
    path.cut = False
    path.faults.clear()
    assert w.read().etag == held.etag, "something was written that never arrived"
    confirm(lease, renewal(lease, move))
    assert w.witness.pointer == move.pointer and w.witness == lease.witness, w.witness


def check_a_revoked_holder_never_writes_again(make: Make) -> None:
    """Revoked or cancelled, it is told so by every write and every read, and changes nothing."""
    store = make()
    ends: tuple[Event, ...] = (_REVOKE, _CANCEL)
    for number, end in enumerate(ends):
        w = World(store, number)
        lease = w.held()
        confirm(lease, renewal(lease, next_move(lease)))
        w.event(end)
        ended = w.read()
        _assert_deposed(w, lease)
        assert w.read().etag == ended.etag, f"a deposed holder wrote after {end}"


def check_a_successor_is_never_overwritten(make: Make) -> None:
    """A holder judged vacant comes back: the next attempt's witness is none of its business."""
    w = World(make())
    lease = w.held()
    w.event(reserve("vacant"))
    successor = w.claimed(2)
    assert successor.attempt == 2, successor.witness
    _assert_deposed(w, lease)
    assert w.witness == successor.witness, "a deposed holder wrote over its successor"
    confirm(successor, renewal(successor, next_move(successor)))


def check_the_end_is_final(make: Make) -> None:
    """Finished and cancelled: no event leads on, from the end itself or from what was read before."""
    store = make()
    for number, finished in enumerate((True, False)):
        w = World(store, number)
        lease = w.held()
        before = w.read()
        if finished:
            confirm(lease, finish(lease))
        else:
            w.event(_CANCEL)
        over = w.read()
        for event in _every_event(lease):
            told = w.outcome(event)
            assert isinstance(told, Refused), f"after the end: {event} is {told}"
            late = w.outcome(event, before)
            assert isinstance(late, Changed | Refused), f"decided before the end: {event} is {late}"
        for launch in (0, 1, 2):
            assert isinstance(w.claim(launch), Superseded), "a job that is over was claimed"
        assert w.read().etag == over.etag, "the end was changed"


def check_a_released_lease_keeps_its_numbers(make: Make) -> None:
    """Attempt, barrier, launch and pointer outlive a release; the next attempt is one more."""
    w = World(make())
    w.event(reserve())
    w.event(_REVOKE)
    w.event(reserve())
    first = w.claimed(2)
    w.event(_YIELD)
    move = next_move(first)
    confirm(first, renewal(first, move))
    confirm(first, release(first))
    kept = (1, 2, move.pointer)
    now = w.witness
    assert (now.barrier, now.launched, now.pointer) == kept and now.attempt == 1, now
    assert now.holder is None and now.exit_code == exits.RELEASED, now
    second = w.claimed(2)
    now = second.witness
    assert (now.barrier, now.launched, now.pointer) == kept and now.attempt == 2, now
    assert now.asked is None, "what was asked of one attempt was asked of the next"
    assert second.holder != first.holder, "two processes have one nonce"
    confirm(second, release(second))
    w.event(reserve())
    third = w.claimed(3)
    assert third.attempt == 3 and third.witness.pointer == move.pointer, third.witness


# ------------------------------------------------------------------- announcing and watching


def check_an_open_launch_is_replaced_on_evidence(make: Make) -> None:
    """At once when it is known to have failed, else when its window is over; a holder if vacant."""
    w = World(make())
    w.event(reserve())
    watcher = Watcher(w)
    assert isinstance(w.outcome(reserve()), Refused), "an open launch was passed over"
    w.time.sleep(WINDOW_S - 10)
    told = watcher.look()
    assert isinstance(told, Occupied), f"10 s before the claim window ends: {told}"
    w.time.sleep(20)
    told = watcher.watch(LONG_S)
    assert isinstance(told, Vacant), f"10 s after the claim window: {told}"
    w.event(reserve("vacant"))
    assert w.event(reserve("failed")).launched == 3, w.witness
    lease = w.claimed(1)  # above the barrier, and it came after all
    assert lease.attempt == 1 and lease.holder.launch == 1, lease.witness
    for further in (reserve(), reserve("failed")):
        assert isinstance(w.outcome(further), Refused), f"a holder was passed over by {further}"
    assert w.event(reserve("vacant")).launched == 4, w.witness


def check_vacancy_needs_both_age_and_watch(make: Make) -> None:
    """A silent holder is vacant once the body is old and was watched for a lease, and not before."""
    w = World(make())
    w.held()
    w.time.sleep(100.0)  # nobody looked
    told = Watcher(w).watch(LEASE_S - 5)
    assert isinstance(told, Occupied), f"old, but not watched for a lease: {told}"
    told = Watcher(w).watch(LONG_S)
    assert isinstance(told, Vacant), f"old, and watched for a lease: {told}"


def check_a_watched_holder_has_its_whole_lease(make: Make) -> None:
    """A long watch shortens nothing: what counts besides is the age of this very body."""
    w = World(make())
    lease = w.held()
    watcher = Watcher(w)
    for _ in range(4):
        told = watcher.watch(LEASE_S - 5)
        assert isinstance(told, Occupied), f"within its lease: {told}"
        confirm(lease, renewal(lease))
    confirm(lease, renewal(lease, announced_s=5 * LEASE_S))
    told = watcher.watch(3 * LEASE_S)
    assert isinstance(told, Occupied), f"within what it announced: {told}"
    told = watcher.watch(LONG_S)
    assert isinstance(told, Vacant), f"beyond what it announced: {told}"


def check_a_failed_listing_starts_the_watch_anew(make: Make) -> None:
    """The dispatcher's own path was cut for a moment: what it saw before does not count."""

    def fail(w: World, watcher: Watcher) -> None:
        watcher.path.cut = True
        watcher.look()
        watcher.path.cut = False

    _assert_watched_anew(World(make()), fail)


def check_a_gap_starts_the_watch_anew(make: Make) -> None:
    """Two good listings more than a third of a lease apart are not one watch."""
    _assert_watched_anew(World(make()), lambda w, _: w.time.sleep(LEASE_S / 3 + 1))


def check_a_listing_tells_what_happened(make: Make) -> None:
    """The residue of the length tells phase and moved pointer; a new ETag alone is a renewal."""
    store = make()
    w = World(store)
    w.event(reserve())
    before = w.row()
    assert before.size % 8 == 0, f"expected is listed with residue {before.size % 8}"
    lease = w.claimed()

    def told(residue: int, mine: Mine | None = None, event: Event | None = None) -> None:
        nonlocal before
        if mine:
            confirm(lease, mine)
        if event:
            w.event(event)
        row = w.row()
        what = f"{event or mine or 'the claim'}"
        assert row.size % 8 == residue, f"{what} is listed with residue {row.size % 8}"
        assert row.etag != before.etag, f"{what} cannot be seen in a listing"
        before = row

    told(1)
    told(1, renewal(lease))
    told(2, renewal(lease, next_move(lease)))
    told(2, renewal(lease))
    told(1, renewal(lease, next_move(lease)))
    told(3, renewal(lease, announced_s=90.0))
    told(1, renewal(lease))
    told(4, release(lease))
    told(6, event=_REVOKE)
    told(7, event=_CANCEL)
    w = World(store, 1)
    lease = w.held()
    told(5, finish(lease))


# ------------------------------------------------------------------------- many at one time


def check_sixteen_dispatchers_make_one_launch(make: Make) -> None:
    """They all know that the last launch failed, and decided from one body: one announces the next."""
    w = World(make())
    w.event(reserve())
    before = w.read()

    def run(n: int) -> object:
        mine = reserve("failed", by=f"dispatcher-{n}")
        return client.change(w.inner, w.key, w.job, before, mine, SYSTEM)

    told = world.at_once(run)
    now = w.witness
    assert now.launched == 2, f"{now.launched - 1} launches were announced in place of one"
    won = [f"dispatcher-{n}" for n, one in told.items() if isinstance(one, client.Applied)]
    open_ = [f"dispatcher-{n}" for n, one in told.items() if isinstance(one, client.Unsettled)]
    assert won == [now.by] or (not won and now.by in open_), f"{won} won, {now.by} is stored"
    assert w.claimed(2).attempt == 1, w.witness


def check_sixteen_local_claims_give_one_holder(make: Make) -> None:
    """They all saw that nobody holds the job; one does then, and the others say so and end."""
    w = World(make())
    path = Together(w.inner, w.time)

    def run(_: int) -> Got:
        got = client.acquire(path, w.key, w.job, 0, 12.0, PATIENCE_S, SYSTEM)
        if isinstance(got, Lease):
            confirm(got, finish(got))
        return got

    told = world.at_once(run)
    holders = [got for got in told.values() if isinstance(got, Lease)]
    assert len(holders) == 1, f"{len(holders)} of {RACERS} claims hold the job"
    others = [got for got in told.values() if isinstance(got, Elsewhere | Superseded)]
    assert len(others) == RACERS - 1, f"{told}"
    now = w.witness
    assert (now.phase, now.attempt) == ("finished", 1) and holders[0].witness == now, now


def check_a_dead_holder_is_succeeded(make: Make) -> None:
    """In real time, by the ages of this store: no sooner than its lease runs out, but then.

    Its successor is the same launch, started twice by a platform.
    """
    w = World(make())
    w.event(reserve(window_s=0.6))
    announced = w.read()

    def acquired() -> Lease:
        got = client.acquire(w.inner, w.key, w.job, 1, 60.0, PATIENCE_S, SYSTEM)
        assert isinstance(got, Lease), f"a worker of the announced launch is told {got}"
        return got

    lease = acquired()
    assert lease.witness.silence_s == 0.6, lease.witness
    twin = w.outcome(Claim(1, SYSTEM.nonce(), LEASE_S), announced)
    assert isinstance(twin, Changed), f"both of one launch hold the job: {twin}"
    successor = acquired()
    silent_s = SYSTEM.monotonic_s() - lease.confirmed_at_s
    assert silent_s > 0.6, f"the holder had {silent_s:.1f} s of its lease of 0.6 s"
    assert successor.attempt == 2, successor.witness
    _assert_deposed(w, lease)
    assert w.witness == successor.witness, "the dead holder wrote over its successor"


def all_checks() -> dict[str, Check]:
    """Every check of the lease by name, those of the worker's side included."""
    own = {name: found for name, found in globals().items() if name.startswith("check_")}
    return own | worker_checks.all_checks()


# ---------------------------------------------------------------------------------- inside


def _assert_silent(told: object) -> None:
    assert isinstance(told, Silent), f"a holder without an answer was told {told}"


def _assert_deposed(w: World, lease: Lease) -> None:
    """A former holder is told so, whatever it does, and may not decide anew from what is stored."""
    for mine in (
        renewal(lease),
        renewal(lease, next_move(lease)),
        release(lease),
        finish(lease),
    ):
        told = answer(lease, mine)
        assert isinstance(told, Deposed), f"a former holder's {mine} is {told}"
        anew = w.outcome(mine)
        assert isinstance(anew, Refused), f"decided anew, a former holder's {mine} is {anew}"
    read = world.seen(lease)
    assert isinstance(read, Deposed), f"a former holder reads {read}"


def _assert_watched_anew(w: World, interrupt: Callable[[World, Watcher], None]) -> None:
    """A holder falls silent; its watcher is interrupted when that was almost a lease ago."""
    w.held()
    watcher = Watcher(w)
    watcher.watch(LEASE_S - 5)
    interrupt(w, watcher)
    told = watcher.watch(LEASE_S - 5)
    assert isinstance(told, Occupied), f"interrupted within the last lease: {told}"
    told = watcher.watch(LONG_S)
    assert isinstance(told, Vacant), f"long after the interruption: {told}"


def _every_event(lease: Lease) -> tuple[Event, ...]:
    return (
        reserve("vacant"),
        Claim(1, SYSTEM.nonce(), LEASE_S, vacant=True),
        renewal(lease),
        release(lease),
        finish(lease),
        _YIELD,
        _REVOKE,
        Resume("ops"),
        Rewind("ops", None),
        _CANCEL,
    )
