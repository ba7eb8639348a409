"""Sixteen real processes claim one job at once, again and again: one winner each time.

The processes live through all rounds and start each at a barrier. In most rounds each claims for a
launch of its own (late workers of earlier launches, none of them barred); in every twentieth all claim
for the same one, as when a platform starts one input sixteen times.
"""

from __future__ import annotations

import multiprocessing
import os
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import (
    Applied,
    Confirmed,
    Lease,
    acquire,
    change,
    read_witness,
)
from tenure_protocol.lease.machine import Hold, Release, Reserve
from tenure_protocol.records import Holder, Witness
from tenure_protocol.store import directory
from tenure_protocol.store.api import Store
from tenure_protocol.store.open import open_store
from tests.seaweed import Seaweed

RACERS = 16
TWINS_EVERY = 20
JOB = "contested"
KEY = keys.witness("race", JOB)
LEASE_S = 20.0  # nobody waits for it to end
RENEW_S = 0.2
WAIT_S = 120.0


@dataclass(frozen=True)
class Won:
    """What a winner read of its own claim."""

    holder: Holder
    attempt: int
    write_id: str


@dataclass(frozen=True)
class Beaten:
    """What a loser was told."""

    verdict: str
    reason: str


def racer(url: str, environ: Mapping[str, str], start: Barrier, pipe: Connection) -> None:
    """One worker process: claims for the launch it is told, holds until told, releases."""
    os.environ.update(environ)  # of the test, not of when the first racer was ever forked
    if "preempted" in url:
        _lose_the_processor_between_compare_and_rename()
    store = open_store(url)
    pipe.send("ready")
    while (launch := pipe.recv()) is not None:
        start.wait(WAIT_S)
        got = acquire(store, KEY, JOB, launch, LEASE_S, WAIT_S, SYSTEM)
        if isinstance(got, Lease):
            pipe.send(Won(got.holder, got.attempt, got.witness.write_id))
            pipe.send(_hold(got, pipe))
        else:
            pipe.send(Beaten(type(got).__name__, got.reason))


def _lose_the_processor_between_compare_and_rename() -> None:
    """Widen the moment in which a directory store's lock alone decides: by itself it is too short."""

    def utime(path: Path) -> None:
        SYSTEM.sleep(0.002)
        os.utime(path)

    vars(directory)["os"] = types.SimpleNamespace(**{**vars(os), "utime": utime})


def _hold(lease: Lease, pipe: Connection) -> bool:
    """Keep the lease until the word to release comes; whether every write was confirmed."""
    renew = pipe.recv()
    confirmed = True
    while renew and not pipe.poll(RENEW_S):
        said = lease.write(Hold(lease.holder, lease.attempt, LEASE_S))
        confirmed = confirmed and isinstance(said, Confirmed)
    pipe.recv()
    said = lease.write(Release(lease.holder, lease.attempt, 10, "the round is over"))
    return confirmed and isinstance(said, Confirmed)


@contextmanager
def racers(url: str) -> Iterator[list[Connection]]:
    """Sixteen processes, forked from one that has imported everything and has no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "boto3"])
    start = context.Barrier(RACERS)
    environ = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    ours: list[Connection] = []
    processes = []
    for _ in range(RACERS):
        here, there = context.Pipe()
        process = context.Process(target=racer, args=(url, environ, start, there), daemon=True)
        process.start()
        there.close()
        ours.append(here)
        processes.append(process)
    try:
        assert [_heard(pipe) for pipe in ours] == ["ready"] * RACERS
        yield ours
        for pipe in ours:
            pipe.send(None)
        for process in processes:
            process.join(WAIT_S)
        assert [process.exitcode for process in processes] == [0] * RACERS
    finally:
        for process in processes:
            process.kill()
            process.join()


def _heard(pipe: Connection) -> object:
    assert pipe.poll(WAIT_S), "a racer says nothing"
    return pipe.recv()


def stored(store: Store) -> Witness:
    found = read_witness(store, KEY).witness
    assert found is not None
    return found


def reserve(store: Store) -> int:
    """What a dispatcher writes before a launch; the launch's number."""
    event = Reserve("here", 60.0, "dispatcher", "failed")
    done = change(store, KEY, JOB, read_witness(store, KEY), event, SYSTEM)
    assert isinstance(done, Applied), done
    return done.witness.launched


def play(store: Store, pipes: list[Connection], twins: bool) -> None:
    """One round: a reservation, sixteen claims, one winner, a release."""
    launched = reserve(store)
    before = stored(store)
    for number, pipe in enumerate(pipes):
        pipe.send(launched if twins else launched - number)
    told: dict[int, object] = {}
    while len(told) < RACERS:
        waiting = {pipe: number for number, pipe in enumerate(pipes) if number not in told}
        ready = wait(waiting, WAIT_S)
        assert ready, f"{len(waiting)} racers say nothing"
        for number in [number for pipe, number in waiting.items() if pipe in ready]:
            told[number] = pipes[number].recv()
            if isinstance(told[number], Won):
                pipes[number].send(twins)  # a holder is seen to live by its twins when it renews
    winners = {number: won for number, won in told.items() if isinstance(won, Won)}
    assert len(winners) == 1, f"{len(winners)} of {RACERS} won: {told}"
    ((number, won),) = winners.items()
    assert won.attempt == before.attempt + 1
    losers = [said for said in told.values() if isinstance(said, Beaten)]
    assert {said.verdict for said in losers} <= {"Elsewhere", "Superseded"}, losers
    now = stored(store)
    assert (now.phase, now.holder, now.attempt) == ("held", won.holder, won.attempt)
    assert twins or now.write_id == won.write_id, "a loser changed the witness"
    pipes[number].send("release")
    assert _heard(pipes[number]) is True, "the winner lost a write of its own"
    after = stored(store)
    assert (after.phase, after.attempt, after.launched) == ("released", won.attempt, launched)


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["directory", "preempted", "seaweedfs"])
def test_one_winner_each_time(
    kind: str, rounds: int, tmp_path: Path, seaweed: Callable[[], Seaweed]
) -> None:
    url = seaweed().url(f"race-{rounds}") if kind == "seaweedfs" else f"file:{tmp_path}/{kind}"
    store = open_store(url)
    for _ in range(RACERS - 1):
        reserve(store)
    with racers(url) as pipes:
        for number in range(1, rounds + 1):
            play(store, pipes, twins=number % TWINS_EVERY == 0)
    assert stored(store).attempt == rounds
    assert stored(store).launched == rounds + RACERS - 1
