"""Guards of the product, each removed alone. What the simulator must notice is named beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tenure.dispatch import decide, loop
from tenure.dispatch import world as dispatch_world
from tenure.dispatch.contract import LaunchFailed, ProtocolError
from tenure_protocol.lease import client, keys, machine, watch
from tenure_protocol.lease.client import Changed, Confirmed, Deposed, Lease, Silent, Unsettled
from tenure_protocol.lease.machine import Hold, Occupied, Refused, Vacant, Watched, transition
from tenure_protocol.records import FileEntry, Witness
from tenure_protocol.store.api import StoreSilent, Unknown, Written
from tenure_worker import carrier, claim, courier, snapshot
from tenure_worker import tenure as worker

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    name: str
    remove: Callable[[Patch], None]
    caught_by: tuple[str, ...]  # beginnings of the rules that may notice it
    theme: str  # of the histories that look for it; '' for all


MUTANTS: list[Mutant] = []


def mutant(
    *caught_by: str, theme: str = ""
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def note(remove: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append(Mutant(remove.__name__, remove, caught_by, theme))
        return remove

    return note


def _judge_by(patch: Patch, judge: Callable[[Witness, float, Watched], Vacant | Occupied]) -> None:
    patch.setattr(decide, "vacancy", judge)
    patch.setattr(client, "vacancy", judge)


def _without_guard(patch: Patch, event: type, guard: Callable[..., object]) -> None:
    row = machine._BY_EVENT[event]
    assert guard in row.guards
    rest = tuple(g for g in row.guards if g is not guard)
    patch.setitem(machine._BY_EVENT, event, dataclasses.replace(row, guards=rest))


# ------------------------------------------------------------------------------------- timers


@mutant("E3", theme="outages")
def age_alone_without_the_watch(patch: Patch) -> None:
    real = machine.vacancy
    always = Watched(math.inf, math.inf)
    _judge_by(patch, lambda w, age_s, _: real(w, age_s, always))


@mutant("E3", "8 evidence")
def watch_alone_without_the_age(patch: Patch) -> None:
    real = machine.vacancy

    def judge(w: Witness, age_s: float, watched: Watched) -> Vacant | Occupied:
        if w.phase != "held":
            return real(w, age_s, watched)
        return real(w, math.inf, replace(watched, unchanged_s=watched.gapless_s))

    _judge_by(patch, judge)


def _gaps_ignored(patch: Patch) -> None:
    real = watch.Watch.of

    def of(self: watch.Watch, key: str, etag: str, lease_s: float) -> Watched:
        found = real(self, key, etag, lease_s)
        return replace(found, gapless_s=found.unchanged_s)

    patch.setattr(watch.Watch, "of", of)


@mutant("E3", theme="outages")
def a_gap_does_not_break_the_watch(patch: Patch) -> None:
    _gaps_ignored(patch)


@mutant("E3", theme="outages")
def neither_a_gap_nor_a_failed_call_breaks_the_watch(patch: Patch) -> None:
    # A failed call alone is no guard of its own here: as long as it lasts, it is a gap.
    _gaps_ignored(patch)
    patch.setattr(watch.Watch, "broke", lambda self: None)


@mutant("8 evidence")
def claim_window_equal_to_the_lease(patch: Patch) -> None:
    real = machine.vacancy

    def judge(w: Witness, age_s: float, watched: Watched) -> Vacant | Occupied:
        if w.phase == "expected" and age_s > 9.0:
            return Vacant("the lease of the claim ran out")
        return real(w, age_s, watched)

    _judge_by(patch, judge)


@mutant("E3")
def own_launch_is_claimed_without_a_watch(patch: Patch) -> None:
    real = client._judge

    def judge(*args: object, **named: object) -> object:
        found = real(*args, **named)  # type: ignore[arg-type]
        return True if found is None else found

    patch.setattr(client, "_judge", judge)


# --------------------------------------------------------------------------- who renews, who stops


@mutant("7 ends", "E3")
def the_carrier_renews_by_itself(patch: Patch) -> None:
    def run(self: carrier.Carrier) -> None:
        last: carrier.Errand | None = None
        while True:
            errand = self._errands.get(5.0) if last else self._errands.get()
            if errand is None:
                if self._lease.witness.phase != "held" or last is None:
                    return
                self._lease.write(last)
                continue
            answer = self._lease.write(errand)
            last = replace(errand, move=None) if isinstance(errand, Hold) else None
            self._answers.put((errand, answer))
            self._wake()

    patch.setattr(carrier.Carrier, "_run", run)


@mutant("7 ends", "E3", "crash", "E2", "6")
def the_courier_renews(patch: Patch) -> None:
    start = worker.Tenure.__init__

    def init(self: worker.Tenure, *args: object) -> None:
        start(self, *args)  # type: ignore[arg-type]
        lease, clock = self._lease, self._clock

        def renew() -> None:
            while not self._courier._closed and lease.witness.phase == "held":
                clock.sleep(5.0)
                lease.write(Hold(lease.holder, lease.attempt, lease.witness.silence_s))

        clock.spawn(renew, "courier-renewals")

    patch.setattr(worker.Tenure, "__init__", init)


@mutant("6 only proof")
def silence_stops_a_worker(patch: Patch) -> None:
    real = worker.Tenure._handle

    def handle(self: worker.Tenure, errand: object, answer: object) -> None:
        if isinstance(answer, Silent):
            self._stop_now(11, "no confirmed write")
        real(self, errand, answer)  # type: ignore[arg-type]

    patch.setattr(worker.Tenure, "_handle", handle)


@mutant("6 only proof")
def time_in_which_nobody_asked_counts_as_silence(patch: Patch) -> None:
    real = worker.Tenure._lose_patience

    def lose(self: worker.Tenure) -> None:
        for silence in (self._unanswered, self._courier.silence):
            if silence._since_s is not None:
                silence.lasted_s = self._now() - silence._since_s
        real(self)

    patch.setattr(worker.Tenure, "_lose_patience", lose)


@mutant("6 only proof")
def one_silent_read_before_the_claim_stops_a_worker(patch: Patch) -> None:
    real = claim.patiently
    patch.setattr(claim, "patiently", lambda ask, clock, *_: real(ask, clock, 0.0))


@mutant("6 only proof", theme="outages")
def a_lapsed_lease_stops_a_worker(patch: Patch) -> None:
    real = worker.Tenure._look

    def look(self: worker.Tenure, now_s: float) -> None:
        if now_s - self._confirmed_s > self._silence_s:
            self._stop_now(11, "no confirmed write for a lease")
        real(self, now_s)

    patch.setattr(worker.Tenure, "_look", look)


@mutant("E2", "6 only proof", theme="people")
def a_deposed_worker_works_on(patch: Patch) -> None:
    real = worker.Tenure._handle

    def handle(self: worker.Tenure, errand: object, answer: object) -> None:
        if isinstance(answer, Deposed):
            answer = Silent(answer.reason)
        real(self, errand, answer)  # type: ignore[arg-type]

    patch.setattr(worker.Tenure, "_handle", handle)


# -------------------------------------------------------------------------- settling of writes


@mutant("E1", theme="lossy")
def unknown_is_taken_as_lost_by_the_dispatcher(patch: Patch) -> None:
    real = client.change

    def change(*args: object) -> object:
        outcome = real(*args)  # type: ignore[arg-type]
        return Changed() if isinstance(outcome, Unsettled) else outcome

    patch.setattr(loop, "change", change)


@mutant("E1")
def a_412_is_taken_as_lost_by_the_dispatcher(patch: Patch) -> None:
    def change(
        store: object, key: str, job: str, stored: client.Stored, event: object, clock: object
    ) -> object:
        new = transition(job, stored.witness, event)  # type: ignore[arg-type]
        if isinstance(new, Refused):
            return new
        new = new.stamped(clock.nonce())  # type: ignore[attr-defined]
        outcome = client._send(store, key, new, stored.etag)  # type: ignore[arg-type]
        if isinstance(outcome, Written):
            return client.Applied(new, outcome.etag)
        return Changed()

    patch.setattr(loop, "change", change)


@mutant("E1", "6", "7")
def unknown_is_taken_as_written_by_the_dispatcher(patch: Patch) -> None:
    real = client._send

    def send(store: object, key: str, witness: Witness, etag: str) -> object:
        outcome = real(store, key, witness, etag)  # type: ignore[arg-type]
        if isinstance(outcome, Unknown) and witness.phase == "expected":
            return Written("?")
        return outcome

    patch.setattr(client, "_send", send)


@mutant("1", "2", "3", "6", "7", "E3", "crash")
def unknown_is_taken_as_written_by_the_holder(patch: Patch) -> None:
    def write(self: Lease, event: Hold) -> object:
        new = transition(self.witness.job, self.witness, event)
        assert not isinstance(new, Refused), new
        new = new.stamped(self._clock.nonce())
        sent_s = self._clock.monotonic_s()
        outcome = client._send(self._store, self._key, new, self._etag)
        if isinstance(outcome, Unknown):
            self.witness = new
            return Confirmed(sent_s)
        if isinstance(outcome, Written):
            return self._confirmed(new, outcome.etag, sent_s)
        found = self._look()
        if isinstance(found, Silent):
            return found
        if self._still_mine(found[0]):
            self._adopt(*found)
            return Silent("again")
        return Deposed(found[0])

    patch.setattr(Lease, "write", write)


@mutant("6 only proof", "7", theme="lossy")
def only_the_last_write_id_is_remembered(patch: Patch) -> None:
    class Last(dict[str, Witness]):
        def __setitem__(self, name: str, witness: Witness) -> None:
            self.clear()
            super().__setitem__(name, witness)

    start = Lease.__init__

    def init(self: Lease, *args: object) -> None:
        start(self, *args)  # type: ignore[arg-type]
        self._unsettled = Last()

    patch.setattr(Lease, "__init__", init)


@mutant("6 only proof")
def adoption_by_write_id_alone(patch: Patch) -> None:
    patch.setattr(Lease, "_still_mine", lambda self, seen: False)


@mutant("1", "5", "E2", "7")
def an_etag_is_refreshed_blindly(patch: Patch) -> None:
    def still_mine(self: Lease, seen: Witness) -> bool:
        return seen.phase == "held"

    def adopt(self: Lease, seen: Witness, etag: str) -> None:
        self._etag = etag
        self._unsettled.clear()
        if seen.holder == self.holder:
            self.witness = seen

    patch.setattr(Lease, "_still_mine", still_mine)
    patch.setattr(Lease, "_adopt", adopt)


@mutant("E1", theme="lossy")
def a_reservation_without_an_answer_is_forgotten(patch: Patch) -> None:
    patch.setattr(loop.Dispatcher, "_make_pending", lambda self: None)


@mutant("8 evidence")
def no_answer_from_the_platform_is_taken_as_failure(patch: Patch) -> None:
    real = loop.Dispatcher._failed

    def failed(
        self: loop.Dispatcher, memory: object, rung: object, launch: int, error: object
    ) -> None:
        error.sent = False  # type: ignore[attr-defined]
        real(self, memory, rung, launch, error)  # type: ignore[arg-type]

    patch.setattr(loop.Dispatcher, "_failed", failed)


@mutant("8 evidence", theme="platform")
def a_protocol_error_is_taken_as_failure(patch: Patch) -> None:
    real = loop.Dispatcher._failed

    def failed(
        self: loop.Dispatcher,
        memory: dispatch_world.JobMemory,
        rung: loop.Rung,
        launch: int,
        error: LaunchFailed,
    ) -> None:
        real(self, memory, rung, launch, error)
        if isinstance(error, ProtocolError):
            memory.failed_launch = max(memory.failed_launch, launch)

    patch.setattr(loop.Dispatcher, "_failed", failed)


@mutant("E3", theme="packs")
def a_machine_ends_with_the_first_of_its_jobs(patch: Patch) -> None:
    def nobody(*_: object, **__: object) -> tuple[()]:
        return ()

    patch.setattr(decide, "still_aboard", nobody)


@mutant("E5")
def bills_of_another_dispatcher_are_not_looked_for(patch: Patch) -> None:
    def blind(self: dispatch_world.World) -> None:
        self.bills_seen = True

    patch.setattr(dispatch_world.World, "_observe_bills", blind)


# ------------------------------------------------------------------------------------ snapshots


@mutant("5 one content", "3 bytes confirmed")
def a_new_save_under_the_old_name(patch: Patch) -> None:
    patch.setattr(
        keys, "save", lambda job, attempt, step, save: f"{keys.attempt(job, attempt)}last/"
    )


@mutant("5 one", "crash")
def no_attempt_in_the_prefix(patch: Patch) -> None:
    patch.setattr(keys, "attempt", lambda job, attempt: f"jobs/{job}/attempts/00001/")


@mutant("3 manifest last", "3 bytes confirmed")
def the_manifest_before_the_bytes(patch: Patch) -> None:
    def deliver(self: courier.Courier, parcel: courier.Parcel) -> None:
        draft = parcel.manifest
        prefix = keys.save(draft.job, draft.attempt, draft.step, draft.save)
        files: dict[str, FileEntry] = snapshot.entries(parcel.folder, prefix)
        manifest = replace(draft, files=files)
        body = courier.encode(manifest)
        chunk = courier.Chunk(prefix + snapshot.MANIFEST, body)
        self._insist(lambda: self._put_chunk(chunk))
        for name in files:
            path = parcel.folder / name
            self._insist(lambda name=name, path=path: self._store.put_file(prefix + name, path))
        move = courier.Move(manifest.pointer(body), manifest.parent)
        self._reports.put(courier.Delivered(move, files))

    patch.setattr(courier.Courier, "_deliver", deliver)


@mutant("3 manifest last", "3 bytes confirmed")
def the_pointer_before_the_upload_is_confirmed(patch: Patch) -> None:
    def insist(self: courier.Courier, upload: Callable[[], None]) -> None:
        try:
            upload()
        except StoreSilent:
            return

    patch.setattr(courier.Courier, "_insist", insist)


@mutant("2 one line", "3 last", "crash")
def a_save_before_the_last_pointer_is_settled(patch: Patch) -> None:
    real = worker.Tenure._take_answers

    def take(self: worker.Tenure) -> None:
        real(self)
        if self._move:
            self.in_transit = False

    _without_guard(patch, Hold, machine._next_in_line)
    patch.setattr(worker.Tenure, "_take_answers", take)


@mutant("3 last pointer")
def finish_without_the_last_pointer(patch: Patch) -> None:
    def finish(self: worker.Tenure, result: dict[str, object]) -> None:
        self._end(0, "finished", result)

    patch.setattr(worker.Tenure, "finish", finish)


# ------------------------------------------------------------------------------ rows of the table


@mutant("5 barrier", theme="people")
def the_barrier_is_ignored(patch: Patch) -> None:
    _without_guard(patch, machine.Claim, machine._launch_above_barrier)


@mutant("row")
def held_back_is_ignored_by_the_dispatcher(patch: Patch) -> None:
    _without_guard(patch, machine.Reserve, machine._not_held_back)
    real = loop.Dispatcher.snapshot

    def snap(self: loop.Dispatcher) -> decide.Snapshot:
        found = real(self)
        views = tuple(
            replace(v, witness=replace(v.witness, held_back=False)) if v.witness else v
            for v in found.jobs
        )
        return replace(found, jobs=views)

    patch.setattr(loop.Dispatcher, "snapshot", snap)


@mutant("row", "5 barrier", theme="people")
def a_revoked_job_is_claimed(patch: Patch) -> None:
    row = machine._BY_EVENT[machine.Claim]
    _without_guard(patch, machine.Claim, machine._launch_above_barrier)
    row = machine._BY_EVENT[machine.Claim]
    wider = dataclasses.replace(row, sources=row.sources | {"revoked"})
    patch.setitem(machine._BY_EVENT, machine.Claim, wider)


@mutant("1 attempts")
def an_attempt_is_not_counted(patch: Patch) -> None:
    row = machine._BY_EVENT[machine.Claim]

    def held(w: Witness, e: machine.Claim) -> Witness:
        return replace(machine._held(w, e), attempt=max(w.attempt, 1))

    patch.setitem(machine._BY_EVENT, machine.Claim, dataclasses.replace(row, produce=held))


@mutant("4 final", "7")
def finished_is_not_final_for_a_person(patch: Patch) -> None:
    for event in (machine.Revoke, machine.Cancel):
        row = machine._BY_EVENT[event]
        wider = dataclasses.replace(row, sources=row.sources | {"finished"})
        patch.setitem(machine._BY_EVENT, event, wider)
    from tenure.dispatch import execution

    patch.setattr(execution, "FINAL", frozenset({"cancelled"}))


@mutant("E3", "row")
def a_launch_judges_the_holder_of_another(patch: Patch) -> None:
    _without_guard(patch, machine.Claim, machine._claimable)
    patch.setattr(client, "_judge", lambda *args, **named: True)


@mutant("7 ends")
def no_slots_spends_the_budget_of_a_job(patch: Patch) -> None:
    patch.setattr(decide, "FRUITLESS_BUDGET", 1)
