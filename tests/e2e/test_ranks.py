"""Jobs of two cards: torchrun starts two real gloo processes, and rank 0 alone holds the tenure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import JobSpec, Witness
from tenure_worker import code, exits
from tests.e2e.ladder import Ladder, bears, check_one_line

ENTRY = "tests.e2e.ranks.experiment:Ranks"
NEEDS_TORCH = True
STEPS, EVERY = 30, 10
TOTAL = STEPS * (1.0 + 2.0)

Make = Callable[..., Ladder]


def job(ladder: Ladder, **config: object) -> str:
    digest, data = code.code_digest(ENTRY), code.data_digest(object())  # type: ignore[arg-type]
    spec = JobSpec(
        "ranks", "train", "training", ENTRY, {"steps": STEPS, **config}, 0, 1, digest, data, EVERY,
        cards=2,
    )  # fmt: skip
    enlist(ladder.store, "ranks", "ranks", [spec], {"rungs": ["local"]}, SYSTEM)
    return spec.id


def spec_of(ladder: Ladder, ident: str) -> JobSpec:
    spec = ladder.dispatcher.world.jobs[ident].spec
    assert spec
    return spec


def followed(ladder: Ladder, ident: str) -> Witness:
    ended = ladder.dispatcher.follow([ident], every_s=0.2, for_s=400.0)
    assert ladder.dispatcher.drain(240.0)
    return ended[ident]


def held(folder: Path) -> dict[str, object]:
    """A training whose last steps take seconds each until the folder has a file ``go``."""
    return {"note": str(folder), "until": str(folder / "go")}


def pid_of(folder: Path, ladder: Ladder, attempt: int, rank: int) -> int:
    """The process of a rank, once it has joined the others."""
    path = folder / f"{attempt}-{rank}"
    end_s = time.monotonic() + 240.0
    while not path.is_file():
        assert time.monotonic() < end_s, "the rank never began"
        ladder.dispatcher.tick()
        time.sleep(0.1)
    return int(path.read_text())


def test_two_ranks_train_and_one_holds(tmp_path: Path, make_ladder: Make) -> None:
    """And what a rank forks obeys it: a worker of a pool is ended by SIGTERM, and waited for without an end."""
    ladder = make_ladder(tmp_path, cards=2, claim_window_s=120.0)
    w = followed(ladder, job(ladder, forks=True))
    assert w.phase == "finished" and w.exit_code == 0, w
    assert w.result == {"total": TOTAL} and w.attempt == 1
    assert w.pointer
    check_one_line(ladder, w.job, w.pointer)


def test_a_rank_that_is_killed_costs_what_followed_the_last_milestone(
    tmp_path: Path, make_ladder: Make
) -> None:
    ladder = make_ladder(tmp_path, slots=2, cards=2, claim_window_s=120.0)
    ident = job(ladder, **held(tmp_path))
    victim = pid_of(tmp_path, ladder, 1, 1)
    ladder.runner._take_slot(ladder.runner_job(spec_of(ladder, ident), 9, "another"))  # one is free
    while not (w := ladder.dispatcher.world.jobs[ident].witness) or not w.pointer:
        ladder.dispatcher.tick()
        time.sleep(0.05)
    os.kill(victim, signal.SIGKILL)
    (tmp_path / "go").touch()
    w = followed(ladder, ident)
    assert w.phase == "finished" and w.result == {"total": TOTAL}, w
    assert w.attempt == 2 and w.pointer
    check_one_line(ladder, w.job, w.pointer)


def test_an_exception_of_another_rank_ends_the_job_in_its_words(
    tmp_path: Path, make_ladder: Make
) -> None:
    ladder = make_ladder(tmp_path, cards=2, claim_window_s=120.0)
    w = followed(ladder, job(ladder, fail_at=12))
    assert w.phase == "finished" and w.exit_code == exits.CODE_ERROR
    assert w.attempt == 1, "it is the job's own fault, and no reason to try again"
    assert w.reason and "rank 1" in w.reason and "rank 1 cannot go on" in w.reason


def test_sigterm_gives_one_last_milestone_and_leaves_no_rank(
    tmp_path: Path, make_ladder: Make
) -> None:
    ladder = make_ladder(tmp_path, cards=2, claim_window_s=120.0)
    ident = job(ladder, **held(tmp_path))
    pids = [pid_of(tmp_path, ladder, 1, rank) for rank in (0, 1)]
    (bill,) = ladder.dispatcher.world.bills.values()
    assert bill.receipt
    leader = int(str(bill.receipt.handle["pid"]))
    os.kill(leader, signal.SIGTERM)
    (child,) = ladder.runner._children.values()
    assert child.wait(120) == exits.RELEASED
    (tmp_path / "go").touch()
    assert not any(bears(pid, "TENURE_JOB", ident) for pid in pids)
    w = followed(ladder, ident)
    assert w.phase == "finished" and w.attempt == 2 and w.result == {"total": TOTAL}


@pytest.mark.parametrize("whole_session", [False, True])
def test_no_rank_outlives_the_worker_that_was_launched(
    tmp_path: Path, make_ladder: Make, whole_session: bool
) -> None:
    """Each rank is in a session of its own. The worker alone may be killed by a kernel out of memory,
    torchrun with it by whoever ends its session; the one leaves time for a last milestone."""
    ladder = make_ladder(tmp_path, cards=2, claim_window_s=120.0)
    ident = job(ladder, pause_s=0.1, note=str(tmp_path), steps=100_000)
    pids = [pid_of(tmp_path, ladder, 1, rank) for rank in (0, 1)]
    (bill,) = ladder.dispatcher.world.bills.values()
    assert bill.receipt
    leader = int(str(bill.receipt.handle["pid"]))
    assert all(os.getsid(pid) != leader for pid in pids), "or this would show nothing"
    (os.killpg if whole_session else os.kill)(leader, signal.SIGKILL)
    end_s = time.monotonic() + 240.0
    while any(bears(pid, "TENURE_JOB", ident) for pid in pids):
        assert time.monotonic() < end_s, "a rank lives on"
        time.sleep(0.05)
    if not whole_session:
        w = read_witness(ladder.store, keys.witness("ranks", ident)).witness
        assert w and (w.phase, w.reason) == ("released", "received SIGTERM") and w.pointer, w


def test_more_cards_than_the_rung_has_is_no_allowed_rung(tmp_path: Path, make_ladder: Make) -> None:
    ladder = make_ladder(tmp_path, cards=1)
    w = followed(ladder, job(ladder))
    assert w.phase == "cancelled" and w.reason and "2" in w.reason and "card" in w.reason


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
