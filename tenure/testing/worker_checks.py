"""What a worker's process does with its lease on a store: the worker's side of the lease checks.

Time is real here. Checks are as in :mod:`tenure.testing.lease_checks`, which runs these too.
"""

from __future__ import annotations

from tenure.testing import lease_world as world
from tenure.testing.lease_world import Check, Make, World, reserve
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Ask, Revoke
from tenure_protocol.records import Pointer
from tenure_worker import exits
from tenure_worker.tenure import Tenure

_REVOKE = Revoke("ops", "gone")
_SHORT_S = 2.4  # a lease after whose writes without an answer the next follows soon


def check_a_whole_life(make: Make) -> None:
    """Expected, held, moved, released, expected, held, finished: nothing of it is done twice."""
    w = World(make())
    resumed: list[bytes | None] = []

    def train(tenure: Tenure, to: int) -> None:
        resumed.append(tenure.resume(world.load))
        while tenure.step_number < to:
            tenure.step()
        tenure.milestone(world.save(b"state of step %d" % to))

    assert w.event(reserve()).phase == "expected"
    code = w.worker(1, lambda tenure: train(tenure, 5))
    assert code == exits.RELEASED, f"the first ended with {exits.EXIT_CODES[code]}"
    middle = w.witness
    assert middle.attempt == 1 and middle.pointer and middle.pointer.ordinal == 1, middle
    # A release without an answer is not insisted on: the lease runs out by itself.
    assert middle.phase == "released" or (middle.phase == "held" and w.store.unanswered), middle
    assert w.event(reserve("vacant")).phase == "expected"

    def complete(tenure: Tenure) -> None:
        train(tenure, 10)
        tenure.finish({"loss": 0.5})

    code = w.worker(2, complete)
    assert code == exits.FINISHED, f"the second ended with {exits.EXIT_CODES[code]}"
    assert resumed == [None, b"state of step 5"], f"the attempts resumed from {resumed}"
    over = w.witness
    assert (over.phase, over.attempt, over.launched) == ("finished", 2, 2), over
    assert over.result == {"loss": 0.5} and over.exit_code == exits.FINISHED, over
    last = over.pointer
    assert last and (last.attempt, last.step, last.ordinal) == (2, 10, 2), over
    assert w.fetch(last) == (middle.pointer, b"state of step 10"), "the line is broken"
    assert w.fetch(middle.pointer) == (None, b"state of step 5"), "the first snapshot changed"
    assert w.worker(2, complete) == exits.SUPERSEDED, "a finished job was worked on"


def check_a_worker_is_told_why_it_may_not_start(make: Make) -> None:
    """Exit codes 12 and 13: somebody else holds the job; this launch has nothing to do any more."""
    w = World(make())
    w.held()
    began: list[Tenure] = []
    codes = [w.worker(2, began.append)]
    w.event(_REVOKE)
    codes.append(w.worker(1, began.append))
    w.event(reserve())
    codes.append(w.worker(1, began.append))
    assert codes == [exits.ELSEWHERE, exits.SUPERSEDED, exits.SUPERSEDED], f"it ended with {codes}"
    assert not began and w.witness.attempt == 1, "it began to work"


def check_a_silent_store_stops_no_worker(make: Make) -> None:
    """Nothing passes for a while; the worker goes on, and finishes when its path is back."""
    w = World(make())
    path = w.path()

    def work(tenure: Tenure) -> None:
        path.cut = True
        for _ in range(3):
            tenure.announce("nobody hears this", 1.0)
            tenure.step()
        path.cut = False
        tenure.milestone(world.save(b"after the silence"))
        tenure.finish({})

    w.event(reserve(window_s=_SHORT_S))
    code = w.worker(1, work, path)
    assert code == exits.FINISHED, f"it ended with {exits.EXIT_CODES[code]}"
    over = w.witness
    assert over.phase == "finished" and over.attempt == 1 and over.pointer, over
    assert w.fetch(over.pointer) == (None, b"after the silence")


def check_a_worker_stops_on_proof(make: Make) -> None:
    """Revoked, its next write is its last; asked to pause, it saves once more and releases."""
    store = make()
    w = World(store)
    went_on: list[str] = []

    def revoked(tenure: Tenure) -> None:
        w.event(_REVOKE)
        _tell(tenure)
        went_on.append("a revoked worker")

    w.event(reserve(window_s=_SHORT_S))
    code = w.worker(1, revoked)
    assert code == exits.LEASE_LOST and not went_on, f"{went_on} went on, and ended with {code}"
    assert w.witness.phase == "revoked", w.witness
    w = World(store, 1)

    def asked(tenure: Tenure) -> None:
        tenure.step()
        w.event(Ask("pause", 30.0, "ops"))
        _tell(tenure)
        if tenure.milestone_due:
            tenure.milestone(world.save(b"the last"))
        went_on.append("a worker asked to pause")

    w.event(reserve(window_s=_SHORT_S))
    code = w.worker(1, asked)
    assert code == exits.RELEASED and not went_on, f"{went_on} went on, and ended with {code}"
    now = w.witness
    assert now.pointer and w.fetch(now.pointer) == (None, b"the last"), now
    assert (now.phase == "released" and now.held_back) or w.store.unanswered, now


def check_a_pointer_follows_its_bytes(make: Make) -> None:
    """No manifest before every file is confirmed, no moved pointer before the manifest is."""
    w = World(make())
    path = w.path()
    milestones = keys.attempt(w.job, 1) + "milestones/"

    def work(tenure: Tenure) -> None:
        path.lost_uploads = 1
        with path.held_uploads():
            tenure.milestone(world.save(b"content"))
            world.until(lambda: path.uploads > 0, meanwhile=tenure.step)
            found = world.patiently(lambda: list(w.store.list(milestones)))
            assert not found, f"while its file is under way: {found}"
            assert not w.witness.pointer, "the pointer moved while a file was under way"
        tenure.finish({})

    w.event(reserve(window_s=_SHORT_S))
    code = w.worker(1, work, path)
    assert code == exits.FINISHED, f"it ended with {exits.EXIT_CODES[code]}"
    last = w.witness.pointer
    assert last and w.fetch(last) == (None, b"content"), w.witness


def check_a_deposed_workers_snapshot_changes_nothing(make: Make) -> None:
    """Its upload lands when its successor has finished, under the same step and save number."""
    w = World(make(), longest_s=60.0)
    path = w.path()
    firsts: list[Pointer] = []

    def moved(tenure: Tenure, content: bytes) -> Pointer:
        before = w.witness.pointer
        tenure.step()
        tenure.milestone(world.save(content))
        world.until(lambda: w.witness.pointer != before, meanwhile=tenure.step)
        now = w.witness.pointer
        assert now
        return now

    def outlive(tenure: Tenure) -> None:
        firsts.append(moved(tenure, b"first"))
        while tenure.step_number < 500:
            tenure.step()
        with path.held_uploads():
            tenure.milestone(world.save(b"first, too late"))
            w.event(_REVOKE)
            w.event(reserve())
            assert w.worker(2, succeed) == exits.FINISHED
        tenure.finish({})

    def succeed(tenure: Tenure) -> None:
        moved(tenure, b"second")
        while tenure.step_number < 500:
            tenure.step()
        tenure.milestone(world.save(b"second, the last"))
        tenure.finish({})

    w.event(reserve())
    code = w.worker(1, outlive, path)
    assert code == exits.LEASE_LOST, f"a deposed worker ended with {exits.EXIT_CODES[code]}"
    over = w.witness
    last = over.pointer
    assert over.phase == "finished" and last and last.attempt == over.attempt == 2, over
    late = keys.save(w.job, 1, last.step, last.save)
    assert any(world.patiently(lambda: list(w.store.list(late)))), "nothing came late"
    parent, content = w.fetch(last)
    assert content == b"second, the last" and parent, content
    assert w.fetch(parent) == (firsts[0], b"second"), "the line is broken"
    assert w.fetch(firsts[0]) == (None, b"first"), "the first snapshot changed"


def all_checks() -> dict[str, Check]:
    """Every check of this module, by name."""
    return {name: found for name, found in globals().items() if name.startswith("check_")}


def _tell(tenure: Tenure) -> None:
    """Let the worker write until it knows that it has been asked to stop, or learns of its end."""
    for _ in range(20):
        if tenure.stopping:
            return
        tenure.announce("a check", 1.0)
