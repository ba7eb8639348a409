"""One rung of real processes over a store, for tests with real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import psutil

from runners.own_process import OwnProcessRunner
from tenure.dispatch.billing import receipt_of
from tenure.dispatch.contract import Job, Site
from tenure.dispatch.loop import Dispatcher, Rung
from tenure.dispatch.world import Bill
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.records import JobSpec, Manifest, Pointer
from tenure_protocol.store.api import Found
from tenure_protocol.store.open import open_store
from tenure_worker import code
from tenure_worker.snapshot import read_manifest
from tests.orbit.experiment import STATE

CHECKOUT = Path(__file__).resolve().parents[2]
ORBIT = "tests.orbit.experiment:Orbit"


class Ladder:
    """A store, one own-process rung and a dispatcher over them."""

    def __init__(
        self, folder: Path, slots: int = 4, url: str | None = None, **config: object
    ) -> None:
        """``url`` names the store; without it, it is a folder below ``folder``."""
        self.store = open_store(url or f"file:{folder / 'store'}")
        self._config: dict[str, object] = {
            "slots": slots, "threads": 1, "claim_window_s": 20.0, "grace_s": 5.0, **config
        }  # fmt: skip
        self.runner = OwnProcessRunner("here", self._config, Site(CHECKOUT, SYSTEM))
        self.dispatcher = self.another()

    def close(self) -> None:
        """End every worker that is left, as after a test that failed half-way."""
        for child in self.runner._children.values():
            child.kill()
            child.wait()
        for bill in self.dispatcher.world.bills.values():
            if bill.receipt:  # its temporary folder goes with it
                self.runner.release(receipt_of(bill.receipt))

    def another(self) -> Dispatcher:
        """A further dispatcher, as after a restart."""
        capacity = OwnProcessRunner.capacity(self._config)
        return Dispatcher(self.store, [Rung("local", "here", self.runner, capacity)], SYSTEM)

    def orbits(
        self,
        count: int,
        config: dict[str, object],
        every: int = 20,
        first: int = 0,
        max_silence_s: float = 3600.0,
    ) -> list[JobSpec]:
        """Enlist ``count`` trainings of the orbit, with the seeds from ``first`` up."""
        digest, data = code.code_digest(ORBIT), code.data_digest(object())  # type: ignore[arg-type]
        specs = [
            JobSpec(
                "orbits", "train", "training", ORBIT, config, seed, 1, digest, data, every,
                max_silence_s=max_silence_s,
            )
            for seed in range(first, first + count)
        ]  # fmt: skip
        enlist(self.store, "orbits", "orbits", specs, {"rungs": ["local"]}, SYSTEM)
        return specs

    def runner_job(self, spec: JobSpec, launch: int, name: str) -> Job:
        """What the dispatcher would hand to the runner."""
        return Job(spec.id, spec.kind, launch, name, self.store.url)

    def running(self) -> list[tuple[Bill, int]]:
        """Open bills whose receipt names a process that is alive and that launch's, with its pid."""
        found = []
        for bill in self.dispatcher.world.bills.values():
            pid = bill.receipt.handle.get("pid") if bill.receipt else None
            if (
                bill.receipt
                and isinstance(pid, int)
                and bears(pid, "TENURE_NAME", bill.receipt.name)
            ):
                found.append((bill, pid))
        return found


def bears(pid: int, variable: str, text: str) -> bool:
    """Whether a process is alive and was started with ``text`` in a variable of its environment."""
    try:
        environ: dict[str, str] = psutil.Process(pid).environ()
        return environ.get(variable) == text
    except psutil.Error:  # it is gone, or a zombie
        return False


def send(pid: int, number: signal.Signals) -> None:
    """A real signal to a real process that may just have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def pointer_line(ladder: Ladder, job: str, pointer: Pointer) -> list[Manifest]:
    """Every manifest from the pointer back to the first, following the parents they name."""
    line = [read_manifest(ladder.store, job, pointer)]
    while line[-1].parent is not None:
        line.append(read_manifest(ladder.store, job, line[-1].parent))
    return line[::-1]


def check_one_line(ladder: Ladder, job: str, pointer: Pointer) -> None:
    """Ordinals and attempts of the pointer line grow by the rules, from 1 to the pointer."""
    line = pointer_line(ladder, job, pointer)
    assert [m.ordinal for m in line] == list(range(1, pointer.ordinal + 1))
    attempts = [m.attempt for m in line]
    assert attempts == sorted(attempts)
    assert [m.step for m in line] == sorted({m.step for m in line})


def writers(ladder: Ladder, job: str) -> dict[str, set[int]]:
    """By attempt, the processes whose pids stand in its snapshots and events."""
    found: dict[str, set[int]] = {}
    for row in ladder.store.list(f"jobs/{job}/attempts/"):
        if not row.key.endswith((STATE, ".jsonl")):
            continue
        body = ladder.store.read(row.key)
        assert isinstance(body, Found)
        pids = {json.loads(line)["pid"] for line in body.body.splitlines()}
        found.setdefault(row.key.split("/")[3], set()).update(pids)
    return found
