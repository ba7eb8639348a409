"""A whole plan, played on virtual time: real chain, dispatcher and worker code, one machine that dies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from assets.chain import STAGES, Chain
from tenure.cli.workplace import Workplace
from tenure.dispatch.decide import Launch
from tenure.dispatch.foretell import DRAWN_EVERY_S
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.plan.enlist import enlist
from tenure.plan.file import Plan, load_plan
from tenure.settings import load_settings
from tenure_protocol import fingerprint
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Lease, acquire
from tenure_protocol.store.memory import MemoryStore
from tenure_worker import stages
from tenure_worker.claim import read_spec
from tenure_worker.tenure import Tenure
from tests.fake_clock import FakeClock
from tests.orbit import experiment
from tests.orbit.told import ToldOrbit
from tests.unit.test_dispatcher import ListingRunner

SETTINGS = """\
[runners.here]
kind = "own_process"
slots = 4
[rungs.local]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "usd", per_h = 3.6}
[rungs.spare]
runner = "here"
card = "cpu"
price_class = "spot"
price = {currency = "credits", per_h = 7.2}
"""
PLAN = """\
name: NAME
experiment: tests.orbit.told:ToldOrbit
grid: {level: [1.0, 1.3], pause_s: [2.0], steps: [40], noise: [0.02]}
seeds: [0, 1, 2]
retrain_seeds: [7, 8, 9]
baseline: {level: 1.0, pause_s: 2.0, steps: 40, noise: 0.02}
milestone_every: 10
deadline_h: 1
rungs: [local, spare]
promote: {metric: loss, direction: minimize, margin: 0.5, min_score: 0.1}
"""
DIES_AT = 28  # the step at which the first machine of the first job dies
START_S = 20.0  # of a machine


class Killed(BaseException):
    """The machine is gone: nothing of the worker runs on."""


class Mortal(ToldOrbit):
    """The training on a machine that dies."""

    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        step = tenure.step

        def fatal() -> None:
            step()
            if tenure.step_number == DIES_AT:
                raise Killed

        tenure.step = fatal  # type: ignore[method-assign]
        return super().train(tenure, config, seed)


class Play:
    """One plan in a store in memory. The clock's holder calls ``to``."""

    def __init__(
        self, folder: Path, clock: FakeClock, patch: pytest.MonkeyPatch, name: str = "orbit"
    ) -> None:
        (folder / "tenure.toml").write_text(SETTINGS)
        file = folder / "plan.yaml"
        file.write_text(PLAN.replace("NAME", name))
        self.clock = clock
        settings = load_settings(folder / "tenure.toml", environ={})
        self.plan: Plan = load_plan(file, settings)
        self.place = Workplace(settings, MemoryStore(clock))
        patch.setattr(experiment, "SYSTEM", clock)  # its steps take virtual seconds
        self.measured = fingerprint.measure()
        capacity = replace(ListingRunner.capacity({}), launches=3)
        self.rungs = [
            Rung("local", "here", ListingRunner(), capacity, "cpu", "on_demand", Price("usd", 3.6)),
            Rung("spare", "here", ListingRunner(), capacity, "cpu", "spot", Price("credits", 7.2)),
        ]  # fmt: skip
        self.dispatcher = Dispatcher(self.store, self.rungs, clock, "d1")
        self.seen: set[tuple[str, int]] = set()
        self.dies = True

    @property
    def store(self) -> MemoryStore:
        store = self.place.store
        assert isinstance(store, MemoryStore)
        return store

    def chain(self) -> Chain:
        return Chain(self.store, self.plan, self.place.settings, self.clock)

    def to(self, stage: str) -> None:
        """Play every stage up to this one, to its end, with all bills closed."""
        for each in STAGES[: STAGES.index(stage) + 1]:
            if each == "pinned_retrain":
                self.clock.sleep(
                    DRAWN_EVERY_S
                )  # what was seen so far is what the retrain is foretold by
            if each != "deployment":
                self._stage(each)
        assert self.dispatcher.drain(600.0, 2.0)
        if stage == "deployment":
            self.chain().second_generation()  # writes its record

    def enlist(self, stage: str) -> list[str]:
        specs = self.chain().specs(stage)
        name = self.plan.name
        return enlist(self.store, name, name, specs, self.plan.terms(), self.clock)

    def _stage(self, stage: str) -> None:
        jobs = self.enlist(stage)
        for _ in range(2000):
            self.round()
            world = self.dispatcher.world.jobs
            if all(world[job].final for job in jobs):
                return
            self.clock.sleep(2.0)
        raise AssertionError(f"{stage} does not end: {self.dispatcher.look().decisions}")

    def round(self) -> None:
        """A tick, and a machine for every launch that it made."""
        tick = self.dispatcher.tick()
        for action, _ in tick.decisions:
            w = self.dispatcher.world.jobs[action.job].witness
            launch = (action.job, w.launched if w else 0)
            if isinstance(action, Launch) and launch not in self.seen:
                self.seen.add(launch)
                self.clock.spawn(lambda one=launch: self._work(*one), f"worker {launch}")  # type: ignore[misc]

    def _work(self, job: str, launch: int) -> None:
        self.clock.sleep(START_S)
        spec = read_spec(self.store, job)
        key = keys.witness_of(spec)
        silence_s, patience_s = spec.max_silence_s, spec.patience_s
        lease = acquire(self.store, key, job, launch, silence_s, patience_s, self.clock)
        if not isinstance(lease, Lease):
            return
        own = {"code": spec.code, "data": spec.data}
        measured = {**self.measured, **own, **(spec.requires or {})}  # as a worker sets itself up
        tenure = Tenure(spec, self.store, lease, self.clock, measured)
        dies, self.dies = self.dies, False
        try:
            user = Mortal() if dies else ToldOrbit()
            result = stages.run(tenure, user)
        except Killed:
            shutil.rmtree(tenure.folder, ignore_errors=True)
            return
        with tenure:
            tenure.finish(result)
