"""Every guard that needs a clock has a mutant, and some seeded history notices it."""

from __future__ import annotations

import pytest

from tenure.sim.run import run_history
from tests.sim.mutants import MUTANTS, Mutant

SEARCHED = 1500
#: A seed that finds the mutant. Where the code has changed since, the search finds another.
SEEDS: dict[str, int] = {
    "age_alone_without_the_watch": 14,
    "watch_alone_without_the_age": 0,
    "a_gap_does_not_break_the_watch": 433,
    "neither_a_gap_nor_a_failed_call_breaks_the_watch": 14,
    "claim_window_equal_to_the_lease": 6,
    "own_launch_is_claimed_without_a_watch": 15,
    "the_carrier_renews_by_itself": 2,
    "the_courier_renews": 2,
    "silence_stops_a_worker": 5,
    "time_in_which_nobody_asked_counts_as_silence": 63,
    "one_silent_read_before_the_claim_stops_a_worker": 20,
    "a_lapsed_lease_stops_a_worker": 302,
    "a_deposed_worker_works_on": 32,
    "unknown_is_taken_as_lost_by_the_dispatcher": 123,
    "a_412_is_taken_as_lost_by_the_dispatcher": 6,
    "unknown_is_taken_as_written_by_the_dispatcher": 33,
    "unknown_is_taken_as_written_by_the_holder": 8,
    "only_the_last_write_id_is_remembered": 141,
    "adoption_by_write_id_alone": 5,
    "an_etag_is_refreshed_blindly": 118,
    "a_reservation_without_an_answer_is_forgotten": 123,
    "no_answer_from_the_platform_is_taken_as_failure": 74,
    "a_protocol_error_is_taken_as_failure": 14,
    "a_machine_ends_with_the_first_of_its_jobs": 0,
    "bills_of_another_dispatcher_are_not_looked_for": 0,
    "a_new_save_under_the_old_name": 0,
    "no_attempt_in_the_prefix": 2,
    "the_manifest_before_the_bytes": 0,
    "the_pointer_before_the_upload_is_confirmed": 0,
    "a_save_before_the_last_pointer_is_settled": 0,
    "finish_without_the_last_pointer": 0,
    "the_barrier_is_ignored": 45,
    "held_back_is_ignored_by_the_dispatcher": 24,
    "a_revoked_job_is_claimed": 4,
    "an_attempt_is_not_counted": 2,
    "finished_is_not_final_for_a_person": 114,
    "a_launch_judges_the_holder_of_another": 15,
    "no_slots_spends_the_budget_of_a_job": 21,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_history_notices_the_missing_guard(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.remove(monkeypatch)
    for seed in (SEEDS[mutant.name], *range(SEARCHED)):
        found = run_history(seed, theme=mutant.theme).violations
        if found:
            rules = {violation.invariant for violation in found}
            assert any(rule.startswith(mutant.caught_by) for rule in rules), found
            return
    raise AssertionError(f"{SEARCHED} histories do not miss the guard")


def test_every_mutant_has_its_seed() -> None:
    assert set(SEEDS) == {mutant.name for mutant in MUTANTS}
