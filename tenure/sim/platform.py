"""A platform that promises nothing, behind the Runner contract.

It has no room, does not answer, answers and forgets, starts late, twice or never, and says of a
launch that was to be ended whatever it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, cast

from tenure.dispatch.contract import (
    ALL_KINDS,
    Bounded,
    Capacity,
    Closed,
    Job,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Rejected,
    Settlement,
    Site,
    Unreachable,
)
from tenure.sim.clock import EPOCH_S, Process, Scheduler
from tenure.sim.faults import Weather

_RELEASE_FAULTS = ("release_pending", "release_pending", "release_bounded", "release_lie")


class Starter(Protocol):
    """What the platform asks of the world."""

    def start(self, job: str, launch: int, rung: str) -> Process:
        """Start a worker's process."""

    def releasing(self, process: Process, instance: Instance) -> None:
        """A dispatcher asks for the end of a machine."""

    def calling(self, process: Process, call: str, key: str, body: bytes) -> None:
        """A process is about to send a request."""

    def trace(self, *words: object) -> None:
        """Something happened."""


@dataclass
class Instance:
    """One machine as the platform knows it."""

    aboard: tuple[tuple[str, int], ...]  # (job, launch)
    rung: str
    processes: list[Process] = field(default_factory=list)
    ended: bool = False
    asked: int = 0  # how often its release was asked for
    says_pending: int = 0  # to so many of these it answers Pending
    lied: bool = False  # it called this launch closed and let it run
    until_s: float | None = None  # it is Bounded, and ends then


class Cloud:
    """The machines behind every rung, whoever asks for them."""

    def __init__(self, scheduler: Scheduler, weather: Weather, starter: Starter) -> None:
        self.scheduler = scheduler
        self.weather = weather
        self.starter = starter
        self.instances: dict[str, Instance] = {}
        self.failed: set[tuple[str, int]] = set()  # launches that it said it did not make
        self.accepted: set[tuple[str, int]] = set()
        self.rejections: dict[str, int] = {}
        self.excluded: dict[str, set[str]] = {}  # job: rungs it failed on for good

    def start(self, instance: Instance, delay_s: float, ghost: bool = False) -> None:
        """Start its workers later. A ghost is one the platform does not know of."""

        def begin() -> None:
            if instance.ended and not ghost:
                return
            for job, launch in instance.aboard:
                process = self.starter.start(job, launch, instance.rung)
                if not ghost:
                    instance.processes.append(process)

        self.scheduler.at(self.scheduler.now_s + delay_s, begin)

    def end(self, instance: Instance) -> None:
        """End what the platform knows of a launch."""
        instance.ended = True
        for process in instance.processes:
            if not process.dead:
                self.scheduler.kill(process)


class SimulatedPlatform:
    """A Runner. One per dispatcher and rung, over one cloud."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self._name = name
        self._cloud = cast(Cloud, config["cloud"])
        self._process = cast(Process, config["process"])
        self._window_s = cast(float, config["window_s"])

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        cards = cast(int, config["cards"])
        return Capacity(cards, 2, cast(float, config["window_s"]), cards=cards)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        cloud, name = self._cloud, jobs[0].name
        self._travel("launch", name)
        launched = tuple((job.job_id, job.launch) for job in jobs)
        fault = ""
        if cloud.weather.strikes(cloud.weather.launch, cloud.scheduler.now_s):
            fault = cloud.weather.draw(cloud.weather.launch_kinds)
            if fault == "rejected" and cloud.weather.rng.random() < 0.1:
                cloud.weather.counts["protocol_error"] += 1
                fault = "protocol_error"
        cloud.starter.trace(self._process.name, "launch", name, fault)
        self._refuse(fault, launched)
        cloud.accepted.update(launched)
        if name not in cloud.instances:
            self._begin(Instance(launched, self._name), name, fault)
        if fault == "unreachable_sent":
            raise Unreachable("the connection was cut after the request", sent=True)
        at_s = EPOCH_S + cloud.scheduler.now_s
        together = tuple(job.job_id for job in jobs)
        return Receipt(together, self._name, name, "cpu", at_s, {"name": name})

    def _refuse(self, fault: str, launched: tuple[tuple[str, int], ...]) -> None:
        cloud = self._cloud
        if cloud.scheduler.now_s < cloud.weather.platform_out_until_s:
            cloud.failed.update(launched)
            raise Unreachable("the platform's path is down")
        if fault == "unreachable_sent" and cloud.weather.rng.random() < 0.5:
            raise Unreachable("the connection was cut before the request arrived", sent=True)
        refusals: dict[str, Callable[[str], Exception]] = {
            "no_slots": NoSlots,
            "unreachable": Unreachable,
            "rejected": Rejected,
            "protocol_error": ProtocolError,
        }
        if fault in refusals:
            if fault != "protocol_error":  # of which nobody can know what was done
                cloud.failed.update(launched)
            for job, _ in launched:
                if fault == "rejected":
                    cloud.rejections[job] = cloud.rejections.get(job, 0) + 1
                if fault == "protocol_error":
                    cloud.excluded.setdefault(job, set()).add(self._name)
            raise refusals[fault](f"the platform answered {fault}")

    def _begin(self, instance: Instance, name: str, fault: str) -> None:
        cloud, rng = self._cloud, self._cloud.weather.rng
        cloud.instances[name] = instance
        if fault == "never_started":
            return
        delay_s = rng.uniform(0.5, 8.0)
        if fault == "late_start":
            delay_s = rng.uniform(0.5, 2.5) * self._window_s
        cloud.start(instance, delay_s)
        if fault == "launched_twice":
            cloud.start(instance, delay_s + rng.uniform(0.0, 3.0), ghost=rng.random() < 0.5)
        elif fault == "restarted":
            cloud.start(instance, delay_s + rng.uniform(10.0, 100.0))

    def release(self, receipt: Receipt) -> Settlement:
        cloud, rng = self._cloud, self._cloud.weather.rng
        self._travel("release", receipt.name)
        now_s = cloud.scheduler.now_s
        cloud.starter.trace(self._process.name, "release", receipt.name)
        if now_s < cloud.weather.platform_out_until_s:
            raise Unreachable("the platform's path is down")
        instance = cloud.instances.setdefault(receipt.name, Instance((), self._name, ended=True))
        cloud.starter.releasing(self._process, instance)
        instance.asked += 1
        if instance.asked == 1 and cloud.weather.strikes(cloud.weather.release, now_s):
            fault = cloud.weather.draw(_RELEASE_FAULTS)
            if fault == "release_lie":
                instance.lied = True
                return Closed("it says so, and the worker goes on")
            if fault == "release_bounded":
                instance.until_s = now_s + rng.uniform(5.0, 60.0)
                cloud.scheduler.at(instance.until_s, lambda: cloud.end(instance))
            else:
                instance.says_pending = 1 + int(3 * rng.random())
        if instance.until_s is not None and now_s < instance.until_s:
            return Bounded(EPOCH_S + instance.until_s, "its queue ends it")
        if instance.asked <= instance.says_pending:
            if rng.random() < 0.5:
                cloud.end(instance)
            return Pending("it is being ended")
        cloud.end(instance)
        return Closed("it is gone")

    def _travel(self, call: str, name: str) -> None:
        cloud = self._cloud
        cloud.starter.calling(self._process, call, name, b"")
        cloud.scheduler.wait(cloud.scheduler.now_s + 0.1 + cloud.weather.rng.random())
