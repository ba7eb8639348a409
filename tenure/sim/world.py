"""One seeded history: jobs, dispatchers, workers, people and a platform over one store.

The lease, the worker and the dispatcher are the product's own code, unmodified. Everything here
only decides, by the seed, what happens to them and when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tenure.dispatch.contract import Site
from tenure.dispatch.execution import Execution
from tenure.dispatch.ladder import Price
from tenure.dispatch.loop import Dispatcher, Rung
from tenure.plan.enlist import enlist
from tenure.sim import toy
from tenure.sim.checks import Checker, JobFacts, Worker
from tenure.sim.clock import Killed, Process, Scheduler, SimulatedClock, SimulatedLock
from tenure.sim.faults import Weather
from tenure.sim.platform import Cloud, Instance, SimulatedPlatform
from tenure.sim.store import DirectStore, Object, Objects, SimulatedStore
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import change, read_witness
from tenure_protocol.lease.machine import Ask, Event, Resume, Revoke, Rewind
from tenure_protocol.records import JobSpec, Manifest, Pointer, Witness, load
from tenure_protocol.store.api import Missing, StoreSilent
from tenure_worker import exits
from tenure_worker.claim import claim
from tenure_worker.exits import Stopped
from tenure_worker.tenure import Tenure

LIMIT_S = 6000.0  # from the last fault to the end of every job, at most
_MEASURED: dict[str, object] = {"card": "cpu", "packages": {"numpy": "2.4"}}
_CARETAKER_S = 20.0
_NOWHERE = Path("/nowhere")  # nothing of a project is needed


@dataclass(frozen=True)
class Task:
    """One job of a history."""

    steps: int
    step_s: float
    every: int  # steps between milestones
    fault: str = ""  # how its code or a machine fails half way
    fault_rung: str = ""  # where; '' anywhere
    patience_s: float = 200.0
    max_silence_s: float = 150.0


@dataclass(frozen=True)
class Incident:
    """Something that happens at a moment."""

    at_s: float
    kind: str
    length_s: float = 0.0
    pick: float = 0.0  # which victim


@dataclass(frozen=True)
class Plan:
    """Everything a history is made of besides the weather."""

    tasks: tuple[Task, ...]
    rungs: tuple[str, ...] = ("spot",)
    dispatchers: int = 1
    tick_s: float = 4.0
    window_s: float = 40.0
    cards: int = 1  # of one machine, which takes so many jobs
    price: Price | None = None
    background_watch: bool = False
    incidents: tuple[Incident, ...] = ()


@dataclass
class Tale:
    """What came of a history."""

    steps: int = 0
    lines: list[str] = field(default_factory=list)
    digest: str = ""


class World:
    """Builds a history, runs it, and is told of everything that happens."""

    def __init__(self, rng: Random, weather: Weather, plan: Plan, record: bool = False) -> None:
        self.rng = rng
        self.weather = weather
        self.plan = plan
        self.scheduler = Scheduler(rng)
        self.scheduler.failed = self._crashed
        self.cloud = Cloud(self.scheduler, weather, self)
        self.checker = Checker(self.cloud)
        self.objects = Objects(self.scheduler, weather, self)
        self.checker.objects = self.objects.objects
        self.tale = Tale()
        self._record = record
        self._hash = hashlib.blake2b(digest_size=12)
        self._dispatchers: list[Process] = []
        self._born = 0
        self.specs: list[JobSpec] = []
        self._by_job: dict[str, Task] = {}
        self._enlist()
        for number in range(plan.dispatchers):
            self._dispatch(number, 1)
        for incident in plan.incidents:
            self._schedule(incident)

    # -------------------------------------------------------------------------------- the end

    def run(self, limit_s: float = LIMIT_S) -> Tale:
        """Let it happen until everything has ended, or ``limit_s`` after the last fault."""
        settled = self.scheduler.run(self.weather.calm_s + limit_s)
        try:
            self.checker.at_the_end(settled, self.scheduler.now_s)
        finally:
            self.scheduler.close()
        self.tale.digest = self._hash.hexdigest()
        return self.tale

    def _look_for_the_end(self) -> None:
        """Over when every job and bill is, and nobody still wants to write."""
        jobs = self.checker.jobs.values()
        if self.checker.open_bills or any(f.phase not in ("finished", "cancelled") for f in jobs):
            return
        alive = [
            w
            for w in self.checker.workers.values()
            if not w.process.dead and w.ended is None and not w.hung
        ]
        self.scheduler.over = self.scheduler.over or not alive

    # -------------------------------------------------------------------- told by the store

    def calling(self, process: Process, call: str, key: str, body: bytes) -> None:
        """A process is about to send a request; it may die first."""
        self.tale.steps += 1
        if process.crash_in:
            process.crash_in -= 1
            if not process.crash_in:
                self.trace(process.name, "dies before", call, key)
                self.scheduler.kill(process)
        if process.dead:
            raise Killed
        if body:
            self.checker.sending(process, key, body)

    def wrote(self, process: Process | None, key: str, old: Object | None, body: bytes) -> None:
        """A write was applied."""
        self.checker.wrote(process, key, old, body)
        self._hash.update(body)
        if self._record and key.startswith("witness/"):
            self.tale.lines.append(f"{self.scheduler.now_s:10.3f}   stored {body.decode().strip()}")

    def deleted(self, process: Process | None, key: str) -> None:
        """A key was deleted."""
        self.checker.deleted(key)

    def trace(self, *words: object) -> None:
        """Something happened: it becomes part of the hash of this history."""
        line = f"{self.scheduler.now_s:10.3f} {' '.join(map(str, words))}"
        self._hash.update(line.encode())
        if self._record:
            self.tale.lines.append(line)

    def _crashed(self, process: Process, error: BaseException) -> None:
        self.trace(process.name, "crashed", type(error).__name__, error)
        self.checker.fail(
            "crash", f"{process.name}: {type(error).__name__}: {error} {_place(error)}"
        )

    # ------------------------------------------------------------------------- dispatchers

    def _enlist(self) -> None:
        for number, task in enumerate(self.plan.tasks):
            spec = JobSpec(
                "sim",
                "train",
                "training",
                "tenure.sim.toy:Toy",
                {"steps": task.steps},
                number,
                1,
                "c",
                "d",
                task.every,
                patience_s=task.patience_s,
                max_silence_s=task.max_silence_s,
            )
            self.specs.append(spec)
            job = spec.id
            self._by_job[job] = task
            word = toy.final_word(number, task.steps)
            own = task.fault == "code_error"
            self.checker.add(JobFacts(job, keys.witness_of(spec), task.steps, word, own))
        clock = SimulatedClock(self.scheduler, self.scheduler.process("enlisting"), self.rng)
        terms: dict[str, object] = {"rungs": list(self.plan.rungs), "priority": 0}
        enlist(DirectStore(self.objects), "p", "sim", self.specs, terms, clock)

    def _dispatch(self, number: int, incarnation: int, delay_s: float = 0.0) -> None:
        process = self.scheduler.process(f"d{number}.{incarnation}")
        process.cut_until_s = self.weather.dispatchers_out_until_s
        self._dispatchers.append(process)
        clock = SimulatedClock(self.scheduler, process, self.rng)
        store = self._path(process)

        def run() -> None:
            dispatcher = Dispatcher(store, self._rungs(process, clock), clock, process.name)
            if self.plan.background_watch:
                # Its lock must hand the baton on, or two threads of one dispatcher would hang.
                dispatcher.world.__dict__["_lock"] = SimulatedLock(self.scheduler)
                dispatcher.keep_watching()
            try:
                while True:
                    began_s = self.scheduler.now_s
                    dispatcher.tick()
                    self.checker.ticked(process, began_s)
                    self._look_for_the_end()
                    clock.sleep(self.plan.tick_s)
            finally:
                if (
                    process.dead and not self.scheduler.over
                ):  # it is started again, and knows nothing
                    self._dispatchers.remove(process)
                    self._dispatch(number, incarnation + 1, 1.0 + 40.0 * self.rng.random())

        self.scheduler.spawn(process, run, delay_s)

    def _rungs(self, process: Process, clock: SimulatedClock) -> list[Rung]:
        config: dict[str, object] = {
            "cloud": self.cloud,
            "process": process,
            "window_s": self.plan.window_s,
            "cards": self.plan.cards,
        }
        site = Site(_NOWHERE, clock)
        capacity = SimulatedPlatform.capacity(config)
        return [
            Rung(
                name,
                name,
                SimulatedPlatform(name, config, site),
                capacity,
                price=self.plan.price,
            )
            for name in self.plan.rungs
        ]

    def _path(self, process: Process) -> SimulatedStore:
        return SimulatedStore(self.objects, self.scheduler, self.weather, process, self)

    # ------------------------------------------------------------------------------ workers

    def start(self, job: str, launch: int, rung: str) -> Process:
        """Start a worker's process; the platform's doing, or a person's."""
        self._born += 1
        process = self.scheduler.process(f"w{self._born}")
        task = self._by_job[job]
        worker = Worker(
            process, job, launch, rung, self.scheduler.now_s, task.step_s, task.patience_s
        )
        self.checker.workers[process] = worker
        self.checker.jobs[job].workers += 1
        self.trace(process.name, "starts for launch", launch, rung)
        self.scheduler.spawn(process, lambda: self._work(worker, task))
        return process

    def releasing(self, process: Process, instance: Instance) -> None:
        """A dispatcher asks for the end of a machine."""
        self.checker.releasing(process, instance)

    def _work(self, worker: Worker, task: Task) -> None:
        process = worker.process
        clock = SimulatedClock(self.scheduler, process, self.rng)
        fault = task.fault if task.fault_rung in ("", worker.rung) else ""
        code = exits.FINISHED
        reason = ""
        try:
            with claim(worker.job, self._path(process), worker.launch, clock, _MEASURED) as tenure:
                worker.claimed = True
                tenure.finish(
                    toy.train(
                        tenure,
                        clock,
                        task.steps,
                        task.step_s,
                        fault and self._fails(worker, fault),
                        lambda tenure: self._between_steps(worker, tenure),
                    )
                )
        except Stopped as stop:
            code, reason = stop.exit_code, stop.reason
        except (toy.CodeError, MemoryError, OSError):
            if not fault:
                raise
        self.trace(process.name, "ends", code, reason)
        self.checker.stopped(worker, code, reason)
        self.scheduler.kill(process)  # its courier's thread dies with it

    def _fails(self, worker: Worker, fault: str) -> str:
        """An injected failure of the code or the machine; a machine fails once only."""
        if fault == "machine_fault" and worker.launch > 1:
            return ""
        self.weather.counts[fault] += 1
        worker.told = worker.told or fault != "code_error"
        if fault == "out_of_memory":
            self.cloud.excluded.setdefault(worker.job, set()).add(worker.rung)
        return fault

    def _between_steps(self, worker: Worker, tenure: Tenure) -> None:
        self.checker.stepping(worker)
        if worker.first_step is None:
            worker.first_step = tenure.step_number - 1
        if worker.notice:
            tenure.request_stop(worker.notice, 20.0)
            worker.notice = ""
        if worker.hung:
            self.scheduler.wait(None)

    # ---------------------------------------------------------------------------- incidents

    def _schedule(self, incident: Incident) -> None:
        kind = incident.kind
        chosen: Callable[[Incident], bool]
        act: dict[str, Callable[[Incident], bool]] = {
            "store_outage": self._store_outage,
            "dispatcher_outage": self._dispatcher_outage,
            "platform_outage": self._platform_outage,
            "dispatcher_crash": self._dispatcher_crash,
            "dispatcher_stop": self._dispatcher_stop,
            "clock_jump": self._clock_jump,
        }
        if kind.startswith("worker_") or kind == "notice":
            chosen = self._hit_worker
        elif kind.startswith("human_"):
            chosen = self._human
        else:
            chosen = act[kind]

        def happen() -> None:
            if chosen(incident):
                self.weather.counts[kind] += 1
                self.trace(kind, f"{incident.length_s:.1f}")

        self.scheduler.at(incident.at_s, happen)

    def _store_outage(self, incident: Incident) -> bool:
        self.weather.store_out_until_s = self.scheduler.now_s + incident.length_s
        return True

    def _dispatcher_outage(self, incident: Incident) -> bool:
        until_s = self.scheduler.now_s + incident.length_s
        self.weather.dispatchers_out_until_s = until_s
        for process in self._dispatchers:
            process.cut_until_s = until_s
        return True

    def _platform_outage(self, incident: Incident) -> bool:
        self.weather.platform_out_until_s = self.scheduler.now_s + incident.length_s
        return True

    def _dispatcher_crash(self, incident: Incident) -> bool:
        alive = self._dispatchers
        alive[int(incident.pick * len(alive))].crash_in = 1 + int(incident.length_s)
        return True

    def _dispatcher_stop(self, incident: Incident) -> bool:
        alive = self._dispatchers
        self._freeze(alive[int(incident.pick * len(alive))], incident)
        return True

    def _freeze(self, process: Process, incident: Incident) -> None:
        suspend = incident.kind == "worker_suspend" or incident.pick * 8 % 1 < 0.3
        self.scheduler.stop(process, incident.length_s, suspend)
        process.harm(self.scheduler.now_s + incident.length_s)
        process.troubled_s = process.harmed_s

    def _clock_jump(self, incident: Incident) -> bool:
        alive = [*self._dispatchers, *(w.process for w in self._alive())]
        by_s = (incident.pick * 97 % 1 - 0.5) * 20_000.0
        alive[int(incident.pick * len(alive))].wall_offset_s += by_s
        return True

    def _alive(self) -> list[Worker]:
        return [w for w in self.checker.workers.values() if not w.process.dead and w.ended is None]

    def _hit_worker(self, incident: Incident) -> bool:
        alive = self._alive()
        if not alive:
            return False
        worker = alive[int(incident.pick * len(alive))]
        process = worker.process
        if incident.kind == "worker_crash":
            self.trace(process.name, "is killed")
            self.scheduler.kill(process)
        elif incident.kind == "worker_outage":
            process.cut_until_s = self.scheduler.now_s + incident.length_s
            process.harm(process.cut_until_s)
        elif incident.kind == "worker_hang":
            worker.hung = True
        elif incident.kind == "notice":
            worker.notice, worker.told = "the platform takes the machine back", True
        else:
            self._freeze(process, incident)
        return True

    # ------------------------------------------------------------------------------- people

    def _human(self, incident: Incident) -> bool:
        job = self.specs[int(incident.pick * len(self.specs))].id
        process = self.scheduler.process(f"human at {incident.at_s:.0f}")
        self.checker.people.add(process)
        if incident.kind in ("human_relaunch", "human_local"):
            launches = [n for j, n in self.cloud.accepted if j == job]
            if incident.kind == "human_relaunch" and not launches:
                return False
            self.start(job, max(launches) if incident.kind == "human_relaunch" else 0, "by hand")
            return True
        self.scheduler.spawn(process, lambda: self._order(process, incident.kind, job))
        if incident.kind in ("human_pause", "human_revoke"):
            caretaker = self.scheduler.process("caretaker")
            self.checker.people.add(caretaker)
            delay_s = incident.length_s
            self.scheduler.spawn(caretaker, lambda: self._resume(caretaker, job), delay_s)
        return True

    def _order(self, process: Process, kind: str, job: str) -> None:
        """What a person orders, once."""
        clock = SimulatedClock(self.scheduler, process, self.rng)
        store = self._path(process)
        execution = Execution(store, {}, clock, "operator")
        if kind == "human_revoke":
            execution.revoke(job, "an impatient person", held_back=self.rng.random() < 0.2)
        elif kind == "human_cancel":
            execution.cancel(job, "no longer wanted")
        else:
            events = {"human_pause": _pause, "human_rewind": self._rewind}
            self._change(process, job, events[kind])

    def _change(
        self, process: Process, job: str, decide: Callable[[Witness], Event | None]
    ) -> None:
        clock = SimulatedClock(self.scheduler, process, self.rng)
        store = self._path(process)
        key = self.checker.jobs[job].key
        try:
            stored = read_witness(store, key)
        except StoreSilent:
            return
        event = decide(stored.witness) if stored.witness else None
        if event is not None:
            change(store, key, job, stored, event, clock)

    def _rewind(self, w: Witness) -> Event | None:
        """Point a revoked job at the parent of its last snapshot."""
        if w.phase != "revoked" or w.pointer is None:
            return None
        found = self.objects.read(keys.manifest(w.job, w.pointer))
        if isinstance(found, Missing):
            return None
        parent: Pointer | None = load(Manifest, found.body, "manifest").parent
        return Rewind("operator", parent)

    def _resume(self, process: Process, job: str) -> None:
        """Somebody looks after what was paused, until the job is over."""
        clock = SimulatedClock(self.scheduler, process, self.rng)
        while self.checker.jobs[job].phase not in ("finished", "cancelled"):
            if (self.checker.jobs[job].now or {}).get("held_back"):
                self.weather.counts["human_resume"] += 1
                self._change(process, job, lambda w: Resume("operator") if w.held_back else None)
            clock.sleep(_CARETAKER_S)


def _pause(w: Witness) -> Event | None:
    if w.phase == "held":
        return Ask("pause", 20.0, "operator")
    if w.phase in ("finished", "cancelled", "revoked"):
        return None
    return Revoke("operator", "paused", held_back=True)


def _place(error: BaseException) -> str:
    """Where an exception came from, the last three frames."""
    trace = error.__traceback__
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(frames[-4:]))
