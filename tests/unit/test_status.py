"""Progress and the time that is left in ``tenure status``, and the numbers behind ``tenure why``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.cli import grounds, why
from tenure.cli.grounds import Grounds, numbers_of
from tenure.cli.status import Overview, Progress
from tenure.cli.workplace import Workplace
from tenure.dispatch.contract import Quota, Unreachable
from tenure.dispatch.decide import Action, ReleaseBill
from tenure.dispatch.history import launch_rows, read_history, read_observations
from tenure.dispatch.ladder import Rung
from tenure.dispatch.ledger import read_ledger
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.quality import Pace
from tenure.dispatch.registry import build_dispatcher
from tenure.dispatch.rows import work_of
from tenure.dispatch.timers import milestone_interval_s
from tenure.plan.enlist import enlist
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Claim, Finish, Hold, Move, Release, Reserve
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import (
    JobSpec,
    LedgerEntry,
    Lifetime,
    Lifetimes,
    Manifest,
    Observation,
    Observations,
    Refusal,
    SettlementRecord,
)
from tenure_protocol.store.api import Entry, Found, Missing
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_worker.pacing import DEATH_PER_H, RESTART_S
from tests.tenure_command import tenure
from tests.unit.test_cli import CLAIM, HOLDER, RESERVE, TERMS, Shop, spec
from tests.unit.test_dispatcher import ListingRunner
from tests.unit.test_outlook import shop

__all__ = ["shop"]  # a fixture
FLOPS = 1e9  # of a step
ROOT = Path(".tenure/store")  # of the folder that a test runs in
PRICED = """\
[runners.here]
kind = "own_process"
slots = 2
[rungs.local]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "usd", per_h = 2.0}
"""


def milestone(shop: Shop, job: JobSpec, step: int = 100, **told: object) -> Manifest:
    """A milestone of the attempt that holds the job: two steps a second since its beginning."""
    old = shop.apply(job).pointer
    facts: dict[str, object] = {
        "busy_s": step / 2, "median_step_s": 0.5, "steps_total": 400,
        "flops_per_step": FLOPS, "dtype": "fp32",
    }  # fmt: skip
    made = Manifest(job.id, 1, step, 1, (old.ordinal if old else 0) + 1, {}, {"card": "cpu"}, old)
    made = replace(made, **(facts | told))  # type: ignore[arg-type]
    pointer = made.pointer(encode(made))
    shop.put(keys.manifest(job.id, pointer), encode(made))
    shop.apply(job, Hold(HOLDER, 1, 30.0, move=Move(pointer, old)))
    return made


def held(shop: Shop, job: JobSpec, step: int = 100, **told: object) -> Manifest:
    """A job that is enlisted, launched, claimed and has a milestone."""
    shop.enlist(job)
    shop.apply(job, RESERVE)
    shop.launched(job)
    shop.apply(job, CLAIM)
    return milestone(shop, job, step, **told)


def row(job: JobSpec) -> dict[str, object]:
    rows = json.loads(tenure("status", "--json").out)["jobs"]
    return next(each for each in rows if each["job"] == job.id)


def asked(job: JobSpec) -> dict[str, object]:
    found: dict[str, object] = json.loads(tenure("why", job.id, "--json").out)
    return found


# ----------------------------------------------------------------------------------- status


def test_status_tells_how_far_a_job_is_and_when_it_ends(shop: Shop) -> None:
    held(shop, spec())
    found = row(spec())
    assert (found["step"], found["steps_total"]) == (100, 400)
    assert found["eta_s"] == pytest.approx(150.0), "300 steps, two a second"
    line = next(line for line in tenure("status").out.splitlines() if spec().id[:8] in line)
    assert "100 of 400" in line and "2 min" in line


@pytest.mark.parametrize(
    "told",
    [
        {"steps_total": None},
        {"steps_total": 50},  # it is past the end that was told
        {"busy_s": 0.0},
        {"from_step": 100},  # no step of this attempt is measured
    ],
)
def test_what_nobody_knows_is_not_invented(shop: Shop, told: Mapping[str, object]) -> None:
    held(shop, spec(), **told)
    found = row(spec())
    assert (found["step"], found["steps_total"], found["eta_s"]) == (100, None, None)
    (line,) = (line for line in tenure("status").out.splitlines() if spec().id[:8] in line)
    assert " of " not in line.split(" attempt")[0]


def test_a_job_that_tells_no_length_ends_when_its_like_did(shop: Shop) -> None:
    """Two of its configuration held machines for 50 and 300 s, and it has for 100: one says 200 more."""
    others = [spec(1), spec(2)]
    shop.enlist(*others)
    held(shop, spec(), steps_total=None)
    assert (row(spec())["eta_s"], row(spec())["eta_by"]) == (None, None)
    lives = [
        Lifetime(others[0].id, 1, "local", "finished", held_s=50.0),
        Lifetime(others[1].id, 1, "local", "lost", held_s=120.0),
        Lifetime(others[1].id, 2, "local", "finished", held_s=180.0),
        Lifetime(spec().id, 1, "local", "running", held_s=100.0),
    ]
    shop.put(
        keys.lifetimes("here", "cpu"), encode(Lifetimes("here", "cpu", "d", tuple(lives), "w"))
    )
    found = row(spec())
    assert (found["eta_s"], found["eta_by"]) == (pytest.approx(200.0, abs=5.0), "likes")
    assert row(others[0])["eta_s"] is None, "it is not held"


def test_a_job_that_nobody_works_on_has_no_end_in_sight(shop: Shop) -> None:
    held(shop, spec())
    assert row(spec())["eta_s"] is not None
    shop.apply(spec(), Release(HOLDER, 1, 10, "asked to yield"))
    assert (row(spec())["phase"], row(spec())["eta_s"]) == ("released", None)


def test_a_job_that_is_stopped_has_no_end_in_sight(shop: Shop) -> None:
    """What its attempt has shown is remembered, and is no promise any more."""
    held(shop, spec())
    seen, _ = overview(shop)
    assert [each.eta_s for each in seen.look()[0]] == [pytest.approx(150.0)]
    shop.put(keys.witness_of(spec()), b"no JSON")
    assert [(each.phase, each.eta_s, each.steps_total) for each in seen.look()[0]] == [
        ("stopped", None, None)
    ]


def test_the_attempt_before_says_nothing_of_the_speed_of_this_one(shop: Shop) -> None:
    held(shop, spec())
    shop.apply(spec(), Release(HOLDER, 1, 10, "asked to yield"), RESERVE)
    shop.launched(spec(), 2)
    shop.apply(spec(), Claim(2, "another", 30.0))
    found = row(spec())
    assert (found["phase"], found["attempt"], found["step"]) == ("held", 2, 100)
    assert (found["steps_total"], found["eta_s"]) == (None, None)


def test_an_evaluation_has_no_steps_to_count(shop: Shop) -> None:
    job = spec(kind="evaluate")
    held(shop, job)
    assert row(job)["eta_s"] is None


def test_without_flops_steps_are_what_is_left(shop: Shop) -> None:
    held(shop, spec(), flops_per_step=None, dtype=None)
    assert row(spec())["steps_total"] == 400
    assert row(spec())["eta_s"] == pytest.approx(150.0)


class Counting(DirectoryStore):
    """A directory store that remembers which keys were read and listed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: list[str] = []

    def read(self, key: str) -> Found | Missing:
        self.calls.append(f"read {key}")
        return super().read(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        self.calls.append(f"list {prefix}")
        return super().list(prefix)

    def taken(self) -> list[str]:
        calls, self.calls = self.calls, []
        return sorted(calls)


def overview(shop: Shop) -> tuple[Overview, Counting]:
    store = Counting(ROOT)
    return Overview(Workplace(load_settings(None), store)), store


def test_progress_costs_the_store_nothing_beside_the_look(shop: Shop) -> None:
    """What is read for 40 jobs is what a dispatcher's look reads, and the rung of each as before."""
    jobs = [spec(seed) for seed in range(40)]
    for job in jobs:
        held(shop, job)
    seen, store = overview(shop)
    store.taken()
    plain = Counting(ROOT)
    settings = load_settings(None)
    dispatcher = build_dispatcher(settings, plain)
    for look in range(3):
        rows, troubles = seen.look()
        plain.taken()
        dispatcher.look()
        expected = plain.taken()
        extra = list(store.taken())
        for call in expected:
            extra.remove(call)
        assert [call for call in extra if "manifest" in call or "observations" in call] == []
        told = [each for each in rows if each.eta_s is not None]
        assert len(told) == (32 if look == 0 else 40), (
            "as many manifests as a look reads, and no more"
        )
        assert not troubles


def test_a_pointer_that_moved_since_the_manifest_was_read_changes_no_total(shop: Shop) -> None:
    held(shop, spec())
    seen, store = overview(shop)
    assert [(each.step, each.steps_total) for each in seen.look()[0]] == [(100, 400)]
    milestone(shop, spec(), 200)
    store.taken()
    (found,) = seen.look()[0]
    assert (found.step, found.steps_total, found.eta_s) == (200, 400, pytest.approx(150.0))
    assert not [call for call in store.taken() if call.endswith("manifest.json")], "once a minute"


@given(
    st.integers(1, 10**7), st.integers(0, 10**6), st.integers(0, 10**7),
    st.floats(1e3, 1e18), st.floats(1e-3, 1e7), st.floats(0.0, 1e7),
)  # fmt: skip
def test_what_is_left_adds_up(
    steps: int, began_at: int, more: int, flops: float, busy_s: float, idle_s: float
) -> None:
    step = began_at + steps
    pace = Pace("r", "w", steps * flops, busy_s, busy_s + idle_s, 0.0, steps, more * flops)
    found = Progress.of(pace, step)
    assert found.steps_total == step + more
    assert found.eta_s == pytest.approx(more * busy_s / steps / pace.share)
    assert Progress.of(replace(pace, guessed=True), step) == Progress()
    assert replace(pace, busy_s=0.0).left_s is None


# --------------------------------------------------------------------------------------- why


def test_why_has_a_word_for_every_action() -> None:
    assert set(why._WORDS) == set(get_args(Action)) - {ReleaseBill}


def seen_elsewhere(shop: Shop, job: JobSpec, manifest: Manifest, per_s: float, count: int) -> None:
    """Other launches that did the same work at ``per_s`` steps a second, kept by a dispatcher."""
    rows = tuple(
        Observation(
            f"other-{n}", 1, "local", "finished", work_of(job, manifest), start_s=5.0,
            paid_s=105.0, busy_s=100.0, done=100.0 * per_s * FLOPS,
        )
        for n in range(count)
    )  # fmt: skip
    shop.put(keys.observations("here", "cpu"), encode(Observations("here", "cpu", "d", rows, "w")))


def test_why_holds_the_numbers_of_the_verdict(shop: Shop) -> None:
    Path("tenure.toml").write_text(PRICED)
    manifest = held(shop, spec())
    seen_elsewhere(shop, spec(), manifest, 2.5, 3)
    found = asked(spec())
    numbers = found["numbers"]
    assert isinstance(numbers, dict)
    assert numbers["speed_per_s"] == pytest.approx(2 * FLOPS)
    assert numbers["usual_speed_per_s"] == pytest.approx(2.5 * FLOPS)
    assert numbers["speed_of_usual"] == pytest.approx(0.8)
    assert (numbers["floor"], numbers["seen"]) == (0.7, 3)
    assert numbers["useful_share"] == 1.0 and numbers["usual_useful_share"] == 1.0
    assert numbers["left"] == pytest.approx(300 * FLOPS) and numbers["left_guessed"] is False
    assert numbers["eta_s"] == numbers["left_s"] == pytest.approx(150.0)
    assert (numbers["step"], numbers["steps_total"]) == (100, 400)
    assert (numbers["silence_s"], numbers["median_step_s"], numbers["silence_steps"]) == (
        30,
        0.5,
        60,
    )
    assert (numbers["rung"], numbers["price_per_h"], numbers["currency"]) == ("local", 2.0, "usd")
    assert numbers["claim_window_s"] == 60.0
    assert numbers["claim_window_reason"].startswith("only 4 start delays are known, 20 are needed")
    assert numbers["options"]["local"]["per_s"] == pytest.approx(2.5 * FLOPS)
    assert "its speed is 0.80 of the usual" in str(found["reason"])
    plain = tenure("why", spec().id).out
    assert "    speed_of_usual = 0.8\n" in plain and "    options.local.per_h = 2\n" in plain


def test_why_tells_how_far_milestones_are_best_apart(shop: Shop) -> None:
    calm = Ratios()
    calm.add_many([1.0, 1.01, 1.02, 1.03] * 500, median=1.01)
    held(shop, spec(), ratios=calm.to_json(), save_s=2.0)
    found = asked(spec())
    best = milestone_interval_s(calm, 2.0, 0.5, RESTART_S, DEATH_PER_H)
    told = found["numbers"]["milestones"]  # type: ignore[index]
    assert told["best_s"] == pytest.approx(best.interval_s, rel=1e-3) and told["best_k"] == best.k
    assert told["best_steps"] == round(best.interval_s / 0.5)
    assert (told["every_steps"], told["every_s"]) == (
        spec().milestone_every,
        spec().milestone_every * 0.5,
    )
    assert (told["save_s"], told["restart_s"]) == (2.0, RESTART_S)
    assert told["death_per_h"] == pytest.approx(DEATH_PER_H, rel=1e-3), "an hour is seen, of none"
    words = f"one in {told['best_steps']} ({best.interval_s:.0f} s) would cost least: {best.reason}"
    assert words in str(found["reason"])
    assert "    milestones.best_k = 2\n" in tenure("why", spec().id).out


@pytest.mark.parametrize("save_s", [None, -1.0, 1e20])
def test_why_says_nothing_of_milestones_that_nobody_can_judge(
    shop: Shop, save_s: float | None
) -> None:
    held(shop, spec(), ratios={"steps": {"0": 500}, "censored": {}}, save_s=save_s)
    found = asked(spec())
    assert "milestones" not in found["numbers"]  # type: ignore[operator]
    assert "would cost least" not in str(found["reason"])


def test_why_a_slow_job_is_to_yield(shop: Shop) -> None:
    manifest = held(shop, spec(), steps_total=100_000)
    seen_elsewhere(shop, spec(), manifest, 20.0, 3)
    found = asked(spec())
    assert found["action"] == "yield"
    said = "now: a dispatcher would ask it to yield and go on on rung local: "
    assert said in str(found["reason"]) and "its speed is 0.10 of the usual" in str(found["reason"])
    assert "a dispatcher would ask it to yield" in str(row(spec())["reason"])


def settle(shop: Shop, job: JobSpec, launch: int, paid_s: float, why: str) -> None:
    """What a dispatcher writes when it closes a bill."""
    record = SettlementRecord(job.id, launch, "closed", why, 1000.0 * launch)
    shop.put(keys.settlement(job.id, launch, 1), encode(record))
    entry = LedgerEntry(
        job.id, launch, "first", "here", "local", f"m-{launch}", "cpu", "on_demand", "usd", 2.0,
        paid_s, 1.0, 2.0 * paid_s / 3600, "closed", 1000.0 * launch,
    )  # fmt: skip
    shop.put(keys.ledger("dispatcher-1", job.id, launch, "closed"), encode(entry))
    shop.store.delete(keys.unsettled(job.id, launch))


def test_why_tells_what_became_of_every_launch(shop: Shop) -> None:
    Path("tenure.toml").write_text(PRICED)
    job = spec()
    shop.enlist(job)
    shop.apply(job, RESERVE)
    shop.launched(job, 1)
    shop.put(keys.refusal(job.id, 1, "n"), encode(Refusal(job.id, 1, "another torch")))
    settle(shop, job, 1, 1800.0, "its launch failed")
    shop.apply(job, Reserve("here", 60.0, "dispatcher-1", "failed"))
    shop.launched(job, 2)
    found = asked(job)
    first, second = found["history"]  # type: ignore[misc]
    assert (first["launch"], first["rung"], first["end"]) == (1, "local", "refused")
    assert first["reason"] == "nobody has run it yet; 1 of 2 slots left"
    assert (first["bill"], first["bill_reason"]) == ("closed", "its launch failed")
    assert (first["amount"], first["currency"], first["paid_s"]) == (1.0, "usd", 1800.0)
    assert (second["bill"], second["amount"], second["end"]) == ("open", None, None)
    numbers = found["numbers"]
    assert isinstance(numbers, dict) and numbers["paid"] == {"usd": 1.0}
    assert numbers["running"]["usd"] > 1.0, "its intent is as old as Unix time"
    lines = tenure("why", job.id).out
    assert "launch 1 on rung local by dispatcher-1: nobody has run it yet" in lines
    assert "refused; its bill is closed, 1.0000 usd for 30 min of its machine" in lines
    assert "how it ended was not observed; its bill is open, no cost is noted" in lines


def test_the_ledger_of_one_job_is_read_and_no_other(shop: Shop) -> None:
    for seed in range(5):
        settle(shop, spec(seed), 1, 60.0, "over")
    store = Counting(ROOT)
    entries, troubles = read_ledger(store, [spec(2).id])
    assert [each.job for each in entries] == [spec(2).id] and not troubles
    assert len(store.taken()) == 2, "one listing and one read"
    shop.put(keys.ledger("other", spec(2).id, 2, "closed"), b"no JSON")
    entries, (trouble,) = read_ledger(shop.store, [spec(2).id])
    assert len(entries) == 1 and "ledger/other" in trouble


def test_why_tells_the_budget_and_what_is_spent_of_it(shop: Shop) -> None:
    Path("tenure.toml").write_text(PRICED)
    enlist(
        shop.store, "first", "first", [spec(0), spec(1)], {**TERMS, "budget": {"usd": 3.0}}, SYSTEM
    )
    settle(shop, spec(1), 1, 3600.0, "over")
    numbers = asked(spec(0))["numbers"]
    assert isinstance(numbers, dict)
    assert numbers["budget"] == {"usd": {"amount": 3.0, "settled": 2.0, "running": 0.0}}
    settle(shop, spec(1), 2, 3600.0, "over")
    found = asked(spec(0))
    assert "the budget of plan first is spent: 4.00 of 3.00 usd" in str(found["reason"])


class Telling(ListingRunner):
    """A platform that tells its quota, or fails to."""

    left: Quota | None = Quota(26.5, 30.0, None)

    def quota(self) -> Quota | None:
        if self.left is None:
            raise Unreachable("no route", sent=False)
        return self.left


@pytest.mark.parametrize(("left", "hours"), [(Quota(26.5, 30.0, None), 3.5), (None, None)])
def test_why_tells_a_quota_where_the_platform_does(left: Quota | None, hours: float | None) -> None:
    store = MemoryStore()
    enlist(store, "first", "first", [spec()], TERMS, SYSTEM)
    runner = Telling()
    runner.left = left
    rung = Rung("local", "here", runner, Telling.capacity({}))
    dispatcher = Dispatcher(store, [rung], SYSTEM)
    grounds.look(dispatcher, spec().id, SYSTEM)
    (view,) = dispatcher.snapshot().jobs
    found = Grounds.of(store, dispatcher, view, read_history(store, view.job), "local", SYSTEM)
    numbers = numbers_of(dispatcher, view, found, SYSTEM)
    if hours is None:
        assert "quota" not in numbers
    else:
        quota = numbers["quota"]
        assert isinstance(quota, dict) and quota["local"]["left_h"] == pytest.approx(hours)
        assert "of 30 h were left" in quota["local"]["reason"]


def test_a_platform_that_hangs_does_not_keep_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of its quota, and everything else is told."""
    monkeypatch.setattr(grounds, "QUOTA_WAIT_S", 0.2)
    release: list[bool] = []

    class Hanging(Telling):
        def quota(self) -> Quota | None:
            while not release:
                SYSTEM.sleep(0.02)
            return None

    store = MemoryStore()
    enlist(store, "first", "first", [spec()], TERMS, SYSTEM)
    dispatcher = Dispatcher(store, [Rung("local", "here", Hanging(), Hanging.capacity({}))], SYSTEM)
    try:
        tick = grounds.look(dispatcher, spec().id, SYSTEM)
        (view,) = dispatcher.snapshot().jobs
        found = Grounds.of(store, dispatcher, view, read_history(store, view.job), "local", SYSTEM)
    finally:
        release.append(True)
    assert "is not told yet" in tick.reason(view.job)
    assert (
        found.quota == {} and numbers_of(dispatcher, view, found, SYSTEM)["claim_window_s"] == 60.0
    )


def test_of_a_job_that_is_over_no_platform_is_asked(shop: Shop) -> None:
    job, asked_s = spec(), []

    class Asked(Telling):
        def quota(self) -> Quota | None:
            asked_s.append(SYSTEM.monotonic_s())
            return super().quota()

    held(shop, job)
    for over in (False, True):
        if over:
            shop.apply(job, Finish(HOLDER, 1, 0, "finished", {}))
            shop.store.delete(keys.unsettled(job.id, 1))  # its machine is gone
        asked_s.clear()
        rung = Rung("local", "here", Asked(), Asked.capacity({}))
        dispatcher = Dispatcher(shop.store, [rung], SYSTEM)
        grounds.look(dispatcher, job.id, SYSTEM)
        (view,) = dispatcher.snapshot().jobs
        found = Grounds.of(
            shop.store, dispatcher, view, read_history(shop.store, job.id), "local", SYSTEM
        )
        numbers = numbers_of(dispatcher, view, found, SYSTEM)
        assert bool(asked_s) == ("claim_window_s" in numbers) == ("quota" in numbers) == (not over)
        assert (numbers["rung"], numbers["steps_total"]) == ("local", 400)


# ----------------------------------------------------------------------------- launch by launch


def observation(launch: int, end: str, job: JobSpec) -> Observation:
    return Observation(job.id, launch, "local", end, "FLOPs of fp32", 5.0, 105.0, 50.0, 100 * FLOPS)


@pytest.mark.parametrize(
    ("phase", "ends"),
    [("held", ["lost", "running"]), ("finished", ["lost", "finished"]), ("released", ["lost", "released:10"])],
)  # fmt: skip
def test_the_witness_has_the_last_word_on_how_a_launch_ended(
    shop: Shop, phase: str, ends: list[str]
) -> None:
    """The observations are of a dispatcher that was gone before anything ended."""
    job = spec()
    held(shop, job)
    shop.apply(job, Release(HOLDER, 1, 10, "asked"), RESERVE)
    shop.launched(job, 2)
    w = shop.apply(job)
    holder = None
    if phase == "held":
        holder = replace(HOLDER, launch=2)
    w = replace(w, phase=phase, holder=holder, exit_code={"released": 10, "finished": 0}.get(phase))  # type: ignore[arg-type]
    rows = (observation(1, "running", job), observation(2, "running", job))
    shop.put(keys.observations("here", "cpu"), encode(Observations("here", "cpu", "d", rows, "w")))
    history = read_history(shop.store, job.id)
    found = launch_rows(history, [], read_observations(shop.store), w)
    assert [each.end for each in found] == ends
    assert [each.per_s for each in found] == [2 * FLOPS, 2 * FLOPS]
    assert [each.card for each in found] == ["cpu", "cpu"]


def test_what_a_dispatcher_knows_goes_before_what_it_has_written(shop: Shop) -> None:
    job = spec()
    stored = Observations("here", "cpu", "d", (observation(1, "running", job),), "w")
    shop.put(keys.observations("here", "cpu"), encode(stored))
    shop.put(keys.observations("here", "broken"), b"no JSON")
    place = ("here", "cpu")
    found = read_observations(shop.store, [(place, observation(1, "finished", job))])
    assert [(each.launch, each.end) for each in found[place]] == [(1, "finished")]
    assert list(found) == [place]
