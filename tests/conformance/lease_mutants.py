"""Guards of the lease, each removed alone, and the checks of lease_checks that notice it.

Where the simulator has the mutant already it is that one; it must be noticed here as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from tenure.dispatch import loop
from tenure_protocol.clock import Clock
from tenure_protocol.lease import client, keys, machine, watch
from tenure_protocol.lease.client import Applied, Changed, Deposed, Lease, Silent, Stored, Unsettled
from tenure_protocol.lease.machine import (
    Claim,
    Event,
    Finish,
    Hold,
    Occupied,
    Release,
    Reserve,
    Revoke,
    Vacant,
    Watched,
)
from tenure_protocol.records import FINAL, Holder, JobSpec, Witness
from tenure_protocol.store.api import Found, Outcome, Store
from tenure_protocol.store.silence import Silence
from tenure_worker import claim
from tenure_worker import tenure as worker
from tenure_worker.exits import Stopped
from tests.sim import mutants as sim
from tests.sim.mutants import Mutant, Patch, _without_guard

Remove = Callable[[Patch], None]
Answer = Applied | Changed | machine.Refused | Unsettled


# ------------------------------------------------------------------------- conditions of writes

_BLIND: ContextVar[bool] = ContextVar("_BLIND", default=False)


@contextmanager
def _blind(blind: bool) -> Iterator[None]:
    token = _BLIND.set(blind)
    try:
        yield
    finally:
        _BLIND.reset(token)


def _ignoring(patch: Patch, applies: Callable[[Event], bool]) -> None:
    """These events are written over whatever is stored."""
    real_send, real_change, real_write = client._send, client.change, Lease.write

    def send(store: Store, key: str, witness: Witness, etag: str) -> Outcome:
        if _BLIND.get():
            found = store.read(key)
            etag = found.etag if isinstance(found, Found) else ""
        return real_send(store, key, witness, etag)

    def change(
        store: Store, key: str, job: str, stored: Stored, event: Event, clock: Clock
    ) -> Answer:
        with _blind(applies(event)):
            return real_change(store, key, job, stored, event, clock)

    def write(self: Lease, event: Hold | Release | Finish) -> object:
        with _blind(applies(event)):
            return real_write(self, event)

    patch.setattr(client, "_send", send)
    patch.setattr(client, "change", change)
    patch.setattr(Lease, "write", write)


def a_claim_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Claim))


def a_renewal_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Hold) and e.move is None)


def a_move_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Hold) and e.move is not None)


def a_release_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Release))


def a_finish_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Finish))


def a_reservation_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Reserve))


def a_revocation_ignores_its_condition(patch: Patch) -> None:
    _ignoring(patch, lambda e: isinstance(e, Revoke))


# --------------------------------------------------------------------------------- write_ids


def a_write_id_is_not_fresh(patch: Patch) -> None:
    patch.setattr(Witness, "stamped", lambda self, _: replace(self, write_id="0" * 16))


def a_holder_takes_any_write_for_its_own(patch: Patch) -> None:
    class AnyId(dict[str, Witness]):
        def get(self, _: str, default: object = None) -> Witness | None:  # type: ignore[override]
            return list(self.values())[-1] if self else None

    real = Lease._look

    def look(self: Lease) -> object:
        if not isinstance(self._unsettled, AnyId):
            self._unsettled = AnyId(self._unsettled)
        return real(self)

    patch.setattr(Lease, "_look", look)


def a_holder_does_not_know_its_own_write(patch: Patch) -> None:
    real = Lease._look

    def look(self: Lease) -> object:
        self._unsettled.clear()
        return real(self)

    patch.setattr(Lease, "_look", look)


def a_change_remembers_its_last_write_id_alone(patch: Patch) -> None:
    real_send, real_change = client._send, client.change
    sent: list[str] = []

    def send(store: Store, key: str, witness: Witness, etag: str) -> Outcome:
        sent.append(witness.write_id)
        return real_send(store, key, witness, etag)

    def change(
        store: Store, key: str, job: str, stored: Stored, event: Event, clock: Clock
    ) -> Answer:
        told = real_change(store, key, job, stored, event, clock)
        return (
            Changed() if isinstance(told, Applied) and told.witness.write_id != sent[-1] else told
        )

    patch.setattr(client, "_send", send)
    patch.setattr(client, "change", change)


# ------------------------------------------------------------------------------ silence, adoption


def a_silent_answer_deposes(patch: Patch) -> None:
    real = Lease.write

    def write(self: Lease, event: Hold | Release | Finish) -> object:
        told = real(self, event)
        return Deposed(self.witness) if isinstance(told, Silent) else told

    patch.setattr(Lease, "write", write)


def an_unsettled_change_is_called_changed(patch: Patch) -> None:
    sim.unknown_is_taken_as_lost_by_the_dispatcher(patch)
    patch.setattr(client, "change", vars(loop)["change"])


def a_412_is_called_changed(patch: Patch) -> None:
    sim.a_412_is_taken_as_lost_by_the_dispatcher(patch)
    patch.setattr(client, "change", vars(loop)["change"])


def a_claim_gives_up_at_once(patch: Patch) -> None:
    patch.setattr(Silence, "failed", lambda *_: math.inf)


def a_claim_never_gives_up(patch: Patch) -> None:
    patch.setattr(Silence, "failed", lambda *_: 0.0)


def a_move_that_is_stored_is_sent_again(patch: Patch) -> None:
    patch.setattr(Lease, "_without_done_move", lambda self, event: event)


# ------------------------------------------------------------------------------ rows of the table


def _row(patch: Patch, event: type[Event], **changes: object) -> None:
    row = dataclasses.replace(machine._BY_EVENT[event], **changes)  # type: ignore[arg-type]
    patch.setitem(machine._BY_EVENT, event, row)


def a_job_held_back_is_claimed(patch: Patch) -> None:
    _without_guard(patch, Claim, machine._not_held_back)


def a_job_held_back_is_announced(patch: Patch) -> None:
    _without_guard(patch, Reserve, machine._not_held_back)


def a_pause_is_released_like_a_yield(patch: Patch) -> None:
    _row(patch, Release, produce=lambda w, e: replace(machine._released(w, e), held_back=False))


def a_yield_is_released_like_a_pause(patch: Patch) -> None:
    _row(patch, Release, produce=lambda w, e: replace(machine._released(w, e), held_back=True))


def a_launch_is_announced_after_the_end(patch: Patch) -> None:
    _row(patch, Reserve, sources=machine._BY_EVENT[Reserve].sources | FINAL)


def a_job_that_is_over_is_claimed(patch: Patch) -> None:
    _row(patch, Claim, sources=machine._BY_EVENT[Claim].sources | FINAL)
    _without_guard(patch, Claim, machine._launch_above_barrier)


def a_released_pointer_is_forgotten(patch: Patch) -> None:
    _row(patch, Release, produce=lambda w, e: replace(machine._released(w, e), pointer=None))


def a_claim_lowers_the_barrier(patch: Patch) -> None:
    _row(patch, Claim, produce=lambda w, e: replace(machine._held(w, e), barrier=0))


def a_request_outlives_its_attempt(patch: Patch) -> None:
    _row(patch, Claim, produce=lambda w, e: replace(machine._held(w, e), asked=w.asked))


def a_holder_may_be_asked_twice(patch: Patch) -> None:
    _without_guard(patch, machine.Ask, machine._asked_once)


def a_pointer_may_go_anywhere(patch: Patch) -> None:
    _without_guard(patch, Hold, machine._next_in_line)


def anybody_may_write_as_the_holder(patch: Patch) -> None:
    for event in (Hold, Release, Finish):
        _without_guard(patch, event, machine._mine)


def an_open_launch_is_replaced_without_evidence(patch: Patch) -> None:
    _without_guard(patch, Reserve, machine._evidence_for_open)


def local_mode_claims_an_announced_launch(patch: Patch) -> None:
    _without_guard(patch, Claim, machine._claimable)


# ------------------------------------------------------------------------------------- watching


def _judged(remove: Remove) -> Remove:
    """The simulator's mutant of the rule, for the watcher of the checks too."""

    def both(patch: Patch) -> None:
        remove(patch)
        patch.setattr(machine, "vacancy", client.vacancy)  # type: ignore[attr-defined]

    both.__name__ = remove.__name__
    return both


age_alone_without_the_watch = _judged(sim.age_alone_without_the_watch)
watch_alone_without_the_age = _judged(sim.watch_alone_without_the_age)
claim_window_equal_to_the_lease = _judged(sim.claim_window_equal_to_the_lease)


def nobody_is_ever_vacant(patch: Patch) -> None:
    sim._judge_by(patch, lambda *_: Occupied("never"))
    patch.setattr(machine, "vacancy", lambda *_: Occupied("never"))


def an_announcement_is_not_waited_for(patch: Patch) -> None:
    real = machine.vacancy

    def judge(w: Witness, age_s: float, watched: Watched) -> Vacant | Occupied:
        return real(replace(w, announced=None), age_s, watched)

    patch.setattr(machine, "vacancy", judge)


def a_failed_call_does_not_break_the_watch(patch: Patch) -> None:
    patch.setattr(watch.Watch, "broke", lambda self: None)


def a_moved_pointer_does_not_show_in_a_listing(patch: Patch) -> None:
    real = Witness.residue.fget  # type: ignore[attr-defined]
    patch.setattr(Witness, "residue", property(lambda self: 1 if real(self) == 2 else real(self)))


def a_length_says_nothing(patch: Patch) -> None:
    patch.setattr(Witness, "residue", property(lambda self: 0))


# ------------------------------------------------------------------------------------ the worker


def a_worker_does_not_heed_a_request(patch: Patch) -> None:
    patch.setattr(worker.Tenure, "request_stop", lambda self, reason, within_s=0.0: None)


def a_worker_starts_from_the_beginning(patch: Patch) -> None:
    patch.setattr(worker.Tenure, "resume", lambda self, load: None)


def a_worker_begins_before_it_holds_the_job(patch: Patch) -> None:
    real = claim._acquired

    def acquired(spec: JobSpec, store: Store, launch: int, clock: Clock) -> Lease:
        try:
            return real(spec, store, launch, clock)
        except Stopped:
            now = client.read_witness(store, keys.witness_of(spec))
            assert now.witness
            nobody = Holder(launch, clock.nonce())
            held = replace(now.witness, phase="held", holder=nobody)
            return Lease(store, keys.witness_of(spec), clock, held, now.etag, 0.0)

    patch.setattr(claim, "_acquired", acquired)


#: Which checks must fail without each guard.
CAUGHT_BY: dict[Remove, tuple[str, ...]] = {
    a_claim_ignores_its_condition: (
        "check_an_announced_launch_is_claimed_once",
        "check_the_end_is_final",
        "check_sixteen_local_claims_give_one_holder",
    ),
    a_renewal_ignores_its_condition: (
        "check_a_late_renewal_overwrites_nothing",
        "check_a_revoked_holder_never_writes_again",
        "check_a_job_held_back_is_not_claimed",
        "check_a_worker_stops_on_proof",
    ),
    a_move_ignores_its_condition: (
        "check_a_pointer_moves_along_its_parent",
        "check_a_request_is_adopted",
        "check_a_successor_is_never_overwritten",
        "check_a_deposed_workers_snapshot_changes_nothing",
    ),
    a_release_ignores_its_condition: (
        "check_a_revoked_holder_never_writes_again",
        "check_the_end_is_final",
    ),
    a_finish_ignores_its_condition: (
        "check_a_revoked_holder_never_writes_again",
        "check_the_end_is_final",
    ),
    a_reservation_ignores_its_condition: (
        "check_sixteen_dispatchers_make_one_launch",
        "check_the_end_is_final",
    ),
    a_revocation_ignores_its_condition: ("check_the_end_is_final",),
    a_write_id_is_not_fresh: (
        "check_an_announced_launch_is_claimed_once",
        "check_a_verdict_is_what_is_stored",
        "check_a_successor_is_never_overwritten",
        "check_sixteen_dispatchers_make_one_launch",
        "check_sixteen_local_claims_give_one_holder",
    ),
    a_holder_takes_any_write_for_its_own: (
        "check_a_verdict_is_what_is_stored",
        "check_a_revoked_holder_never_writes_again",
        "check_a_worker_stops_on_proof",
    ),
    a_holder_does_not_know_its_own_write: (
        "check_a_verdict_is_what_is_stored",
        "check_any_unsettled_write_is_recognised",
    ),
    a_change_remembers_its_last_write_id_alone: (
        "check_a_verdict_is_what_is_stored",
        "check_any_unsettled_write_is_recognised",
    ),
    sim.only_the_last_write_id_is_remembered: (
        "check_a_verdict_is_what_is_stored",
        "check_any_unsettled_write_is_recognised",
    ),
    sim.unknown_is_taken_as_written_by_the_dispatcher: ("check_a_verdict_is_what_is_stored",),
    sim.unknown_is_taken_as_written_by_the_holder: (
        "check_silence_proves_nothing",
        "check_a_verdict_is_what_is_stored",
    ),
    a_silent_answer_deposes: (
        "check_silence_proves_nothing",
        "check_a_silent_store_stops_no_worker",
    ),
    an_unsettled_change_is_called_changed: ("check_silence_proves_nothing",),
    a_412_is_called_changed: ("check_a_verdict_is_what_is_stored",),
    sim.silence_stops_a_worker: ("check_a_silent_store_stops_no_worker",),
    a_claim_gives_up_at_once: ("check_a_claim_is_patient",),
    a_claim_never_gives_up: ("check_a_claim_is_patient",),
    a_move_that_is_stored_is_sent_again: ("check_a_move_without_an_answer_is_stored_once",),
    sim.adoption_by_write_id_alone: (
        "check_a_request_is_adopted",
        "check_a_move_without_an_answer_is_stored_once",
        "check_a_worker_stops_on_proof",
    ),
    sim.an_etag_is_refreshed_blindly: ("check_a_successor_is_never_overwritten",),
    a_job_held_back_is_claimed: ("check_a_job_held_back_is_not_claimed",),
    a_job_held_back_is_announced: ("check_a_job_held_back_is_not_claimed",),
    a_pause_is_released_like_a_yield: (
        "check_a_job_held_back_is_not_claimed",
        "check_a_worker_stops_on_proof",
    ),
    a_yield_is_released_like_a_pause: (
        "check_a_request_is_adopted",
        "check_a_released_lease_keeps_its_numbers",
    ),
    a_launch_is_announced_after_the_end: ("check_the_end_is_final",),
    a_job_that_is_over_is_claimed: (
        "check_the_end_is_final",
        "check_a_claim_beside_a_holder_is_elsewhere",
        "check_a_whole_life",
    ),
    sim.finished_is_not_final_for_a_person: ("check_the_end_is_final",),
    a_released_pointer_is_forgotten: (
        "check_a_released_lease_keeps_its_numbers",
        "check_a_whole_life",
    ),
    a_claim_lowers_the_barrier: ("check_a_released_lease_keeps_its_numbers",),
    a_request_outlives_its_attempt: ("check_a_released_lease_keeps_its_numbers",),
    sim.an_attempt_is_not_counted: (
        "check_a_released_lease_keeps_its_numbers",
        "check_local_mode_leaves_an_announced_launch_alone",
        "check_a_whole_life",
    ),
    a_holder_may_be_asked_twice: ("check_a_request_is_adopted",),
    a_pointer_may_go_anywhere: ("check_a_pointer_moves_along_its_parent",),
    anybody_may_write_as_the_holder: ("check_a_successor_is_never_overwritten",),
    sim.the_barrier_is_ignored: (
        "check_a_claim_past_the_barrier_is_refused",
        "check_a_worker_is_told_why_it_may_not_start",
    ),
    sim.a_revoked_job_is_claimed: (
        "check_a_claim_past_the_barrier_is_refused",
        "check_a_worker_is_told_why_it_may_not_start",
    ),
    an_open_launch_is_replaced_without_evidence: ("check_an_open_launch_is_replaced_on_evidence",),
    local_mode_claims_an_announced_launch: ("check_local_mode_leaves_an_announced_launch_alone",),
    sim.a_launch_judges_the_holder_of_another: (
        "check_a_claim_beside_a_holder_is_elsewhere",
        "check_a_worker_is_told_why_it_may_not_start",
    ),
    sim.own_launch_is_claimed_without_a_watch: (
        "check_a_claim_beside_a_holder_is_elsewhere",
        "check_a_dead_holder_is_succeeded",
    ),
    age_alone_without_the_watch: ("check_vacancy_needs_both_age_and_watch",),
    watch_alone_without_the_age: ("check_a_watched_holder_has_its_whole_lease",),
    claim_window_equal_to_the_lease: ("check_an_open_launch_is_replaced_on_evidence",),
    nobody_is_ever_vacant: (
        "check_vacancy_needs_both_age_and_watch",
        "check_an_open_launch_is_replaced_on_evidence",
    ),
    an_announcement_is_not_waited_for: ("check_a_watched_holder_has_its_whole_lease",),
    a_failed_call_does_not_break_the_watch: ("check_a_failed_listing_starts_the_watch_anew",),
    sim.a_gap_does_not_break_the_watch: ("check_a_gap_starts_the_watch_anew",),
    a_moved_pointer_does_not_show_in_a_listing: ("check_a_listing_tells_what_happened",),
    a_length_says_nothing: ("check_a_listing_tells_what_happened",),
    a_worker_does_not_heed_a_request: ("check_a_worker_stops_on_proof",),
    sim.a_deposed_worker_works_on: ("check_a_worker_stops_on_proof",),
    a_worker_begins_before_it_holds_the_job: ("check_a_worker_is_told_why_it_may_not_start",),
    a_worker_starts_from_the_beginning: ("check_a_whole_life",),
    sim.finish_without_the_last_pointer: (
        "check_a_whole_life",
        "check_a_pointer_follows_its_bytes",
    ),
    sim.the_pointer_before_the_upload_is_confirmed: ("check_a_pointer_follows_its_bytes",),
    sim.the_manifest_before_the_bytes: ("check_a_pointer_follows_its_bytes",),
    sim.no_attempt_in_the_prefix: ("check_a_deposed_workers_snapshot_changes_nothing",),
    sim.a_new_save_under_the_old_name: ("check_a_deposed_workers_snapshot_changes_nothing",),
}
MUTANTS = tuple(Mutant(remove.__name__, remove, checks, "") for remove, checks in CAUGHT_BY.items())
