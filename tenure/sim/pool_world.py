"""One week of jobs over the pool: the product's dispatcher, lease and worker code on a virtual clock.

A job's steps take minutes here, so that a week costs about a second; its milestones, leases, notices
and the pauses of the dispatcher are longer alike. Whatever is drawn is drawn by the seed and the
thing's own name, so that every policy meets the same jobs on the same machines.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from tenure.dispatch.contract import Site
from tenure.dispatch.decide import Wait
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.plan.enlist import enlist
from tenure.sim import toy
from tenure.sim.checks import Checker, JobFacts, Worker
from tenure.sim.clock import Process, Scheduler, SimulatedClock
from tenure.sim.faults import Weather
from tenure.sim.platform import Instance
from tenure.sim.pool_cloud import Machine, PoolCloud, platform_of
from tenure.sim.pool_platforms import HOUR_S, POOL, USUAL_FLOPS_PER_S, WEEK_S, Market, drawn
from tenure.sim.pool_policies import PRODUCT, Policy, dispatcher_of
from tenure.sim.store import DirectStore, Object, Objects, SimulatedStore
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Entry, Written
from tenure_worker import exits
from tenure_worker.claim import claim
from tenure_worker.exits import Stopped
from tenure_worker.tenure import MEASURED_AFTER, Tenure

STEP_S = 240.0  # of the usual card
EVERY = 8  # steps between milestones: half an hour of the usual card
LIMIT_S = 4 * WEEK_S  # who is not done by then is counted as never done
#: The longest lease, and what is announced while steps are not measured yet.
LEASE_S = 1800.0
#: Between two rounds in which nothing was to be done; a real dispatcher makes one each second.
_LONGEST_NAP_S, _FIRST_NAP_S = 540.0, 60.0
_LEAST_NAP_S = 15.0
_NUDGE_S = 2.0
_NOWHERE = Path("/nowhere")
_STATE = "state.json"
#: What bad hosts fail with; which of them is the host's own.
FAULTS = (
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: the launch timed out and was terminated",
    "NVRM: Xid 79, the GPU has fallen off the bus",
)


@dataclass(frozen=True)
class Config:
    """One configuration of which several seeds are trained."""

    number: int
    arrives_s: float
    jobs: int
    steps: int
    memory_gib: float
    told: bool  # whether its code tells how many FLOPs a step has
    own_error: bool = False  # its code raises in the second hour
    deadline_h: float = 0.0  # from its arrival; what the planner is told
    fit: tuple[tuple[str, float], ...] = ()  # card: how much better it suits it than others

    @property
    def flops_per_step(self) -> float:
        """Of one step."""
        return STEP_S * USUAL_FLOPS_PER_S

    def step_s(self, machine: Machine) -> float:
        """How long a step takes on a machine."""
        fit = dict(self.fit).get(machine.market.card, 1.0)
        return STEP_S / (machine.host.speed * fit)


def configs_of(seed: int, pool: Sequence[Market] = POOL) -> list[Config]:
    """The load of one week: 20 to 40 jobs of 2 to 40 h on the usual card, in six to nine configurations."""
    rng = drawn(seed, "load")
    wanted = rng.randint(20, 40)
    found: list[Config] = []
    while (total := sum(config.jobs for config in found)) < wanted:
        number = len(found)
        hours = min(40.0, max(2.0, rng.lognormvariate(2.3, 0.8)))
        found.append(
            Config(
                number,
                0.0 if number == 0 else rng.uniform(0.0, 60.0) * HOUR_S,
                min(rng.randint(3, 6), wanted - total),
                round(hours * HOUR_S / STEP_S),
                memory_gib=rng.choice((8.0, 12.0, 12.0, 14.0, 20.0, 20.0, 40.0)),
                told=rng.random() < 0.75,
                fit=tuple((m.card, rng.uniform(0.85, 1.15)) for m in pool),
                deadline_h=_deadline_h(seed, number, hours),
            )
        )
    at_s = rng.uniform(0.0, 40.0) * HOUR_S
    raises = Config(len(found), at_s, 1, 150, 12.0, told=True, own_error=True)
    at_s = rng.uniform(0.0, 40.0) * HOUR_S
    too_large = Config(len(found) + 1, at_s, 1, 150, 120.0, told=True)
    return [*found, raises, too_large]


def _deadline_h(seed: int, number: int, hours: float) -> float:
    """Two to eight times what the usual card needs, and at least half a day."""
    return max(12.0, hours * drawn(seed, "deadline", number).uniform(2.0, 8.0))


@dataclass(frozen=True)
class Task:
    """One job of the world."""

    config: Config
    spec: JobSpec
    can_finish: bool


def task_of(config: Config, seed: int, pool: Sequence[Market]) -> Task:
    """The job of one seed of a configuration."""
    spec = JobSpec(
        "pool",
        "train",
        "training",
        "tenure.sim.pool_world:Training",
        {"configuration": config.number, "steps": config.steps},
        seed,
        1,
        "c",
        "d",
        EVERY,
        patience_s=2 * HOUR_S,
        max_silence_s=LEASE_S,
    )
    fits = any(config.memory_gib <= market.memory_gib for market in pool)
    return Task(config, spec, fits and not config.own_error)


class IndexedObjects(Objects):
    """The objects, with the keys of each folder together: a week has tens of thousands of them."""

    def __init__(self, scheduler: Scheduler, weather: Weather, world: PoolWorld) -> None:
        super().__init__(scheduler, weather, world)
        self._folders: dict[str, list[str]] = {}  # their keys, sorted

    def put(self, process: Process | None, key: str, body: bytes) -> Written:
        if key not in self.objects:
            insort(self._folders.setdefault(_folder(key), []), key)
        return super().put(process, key, body)

    def delete(self, process: Process | None, key: str) -> bool:
        if key in self.objects:
            self._folders[_folder(key)].remove(key)
        return super().delete(process, key)

    def list(self, prefix: str) -> list[Entry]:
        folder = _folder(prefix)
        if not folder:
            return super().list(prefix)
        found = self._folders.get(folder, [])
        rows, skewed, now_s = [], self._weather.skew_s, self._scheduler.now_s
        for key in found[bisect_left(found, prefix) :]:
            if not key.startswith(prefix):
                break
            body, etag, at_s = self.objects[key]
            age_s = self._age_s(at_s) if skewed else now_s - at_s
            rows.append(Entry(key, etag, len(body), age_s))
        return rows


def _folder(key: str) -> str:
    """The part of a key that its folder is found by; '' for a prefix that is wider than one.

    >>> _folder("witness/pool/a.json"), _folder("jobs/a/job.json"), _folder("jobs/"), _folder("pl")
    ('witness/', 'jobs/a/', '', '')
    """
    first, slash, rest = key.partition("/")
    if not slash:
        return ""
    if first != "jobs":
        return f"{first}/"
    job, slash, _ = rest.partition("/")
    return f"jobs/{job}/" if slash else ""


class PoolWorld:
    """Builds one world, runs it under one policy, and is told of everything that happens."""

    def __init__(
        self,
        seed: int,
        policy: Policy,
        configs: Sequence[Config] | None = None,
        pool: Sequence[Market] = POOL,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.policy, self.pool, self.limit_s = policy, tuple(pool), limit_s
        self.configs = list(configs_of(seed, pool) if configs is None else configs)
        self.rng = Random(f"{seed}/ids")
        self.weather = Weather(self.rng)
        self.scheduler = Scheduler(self.rng)
        self.scheduler.failed = self._crashed
        self.cloud = PoolCloud(self.scheduler, self.weather, self, seed, self.pool, limit_s)
        self.checker = Checker(self.cloud)
        self.objects = IndexedObjects(self.scheduler, self.weather, self)
        self.checker.objects = self.objects.objects
        self.tasks: dict[str, Task] = {}  # by job
        self.arrived_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.aboard: dict[Process, Machine] = {}
        self.yields = 0  # holders that were asked to yield
        self.calls = 0
        self._hash = hashlib.blake2b(digest_size=12)
        self._waiting = len(self.configs)  # to arrive
        self._napping = self._nudged = False
        for config in self.configs:
            self.scheduler.at(config.arrives_s, partial(self._arrive, config))
        self._dispatch()

    def run(self) -> str:
        """Let it happen until every job and bill is over, or the limit; the digest of all writes."""
        self.settled = self.scheduler.run(self.limit_s)
        try:
            if self.settled:
                self.checker.at_the_end(self.settled, self.scheduler.now_s)
        finally:
            self.scheduler.close()
        return self._hash.hexdigest()

    # -------------------------------------------------------------------- told by the store

    def calling(self, process: Process, call: str, key: str, body: bytes) -> None:
        """A process is about to send a request."""
        self.calls += 1
        if body:
            self.checker.sending(process, key, body)

    def wrote(self, process: Process | None, key: str, old: Object | None, body: bytes) -> None:
        """A write was applied."""
        facts = self.checker.jobs.get(key[-31:-5]) if key.startswith("witness/") else None
        before = facts.now if facts else None
        self.checker.wrote(process, key, old, body)
        if facts is None or facts.now is None:
            return
        self._hash.update(body)
        asked = facts.now.get("asked")
        self.yields += bool(asked and not (before or {}).get("asked"))
        if facts.phase in ("finished", "cancelled"):
            self.ended_s.setdefault(facts.job, self.scheduler.now_s)
        if before is None or before["phase"] != facts.phase:
            self._nudge()

    def deleted(self, process: Process | None, key: str) -> None:
        """A key was deleted."""
        self.checker.deleted(key)

    def trace(self, *words: object) -> None:
        """Nothing is kept of a single call: a week has tens of thousands."""

    def releasing(self, process: Process, instance: Instance) -> None:
        """A dispatcher asks for the end of a machine."""
        self.checker.releasing(process, instance)

    def _crashed(self, process: Process, error: BaseException) -> None:
        at = error.__traceback__
        while at and at.tb_next:
            at = at.tb_next
        where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else "?"
        words = f"{process.name}: {type(error).__name__}: {error} ({where})"
        self.checker.fail("crash", words)

    # ------------------------------------------------------------------------- the dispatcher

    def _arrive(self, config: Config) -> None:
        """A person enlists a configuration."""
        tasks = [task_of(config, seed, self.pool) for seed in range(config.jobs)]
        for task in tasks:
            job, seed = task.spec.id, task.spec.seed
            self.tasks[job] = task
            self.arrived_s[job] = self.scheduler.now_s
            word = toy.final_word(seed, config.steps)
            key = keys.witness_of(task.spec)
            self.checker.add(JobFacts(job, key, config.steps, word, config.own_error))
        clock = SimulatedClock(self.scheduler, self.scheduler.process("enlisting"), self.rng)
        rungs = [market.name for market in self.pool]
        terms: dict[str, object] = {"rungs": rungs, "priority": 0}
        if config.deadline_h:
            terms["deadline_h"] = config.deadline_h
        name = f"p{config.number}"
        store = DirectStore(self.objects)
        enlist(store, name, "pool", [task.spec for task in tasks], terms, clock)
        self._waiting -= 1
        self._nudge()

    def _nudge(self) -> None:
        """Let a dispatcher that has paused for long look again: a real one looks each second."""
        self._nudged = True
        if self._napping:
            self.scheduler.wake(self._fiber, self.scheduler.now_s + _NUDGE_S)

    def _dispatch(self) -> None:
        process = self.scheduler.process("dispatcher")
        clock = SimulatedClock(self.scheduler, process, self.rng)
        dispatcher = dispatcher_of(
            self.policy, self._path(process), self._rungs(process, clock), clock, process.name
        )

        def run() -> None:
            nap_s = _FIRST_NAP_S
            while True:
                began_s = self.scheduler.now_s
                tick = dispatcher.tick()
                self.checker.ticked(process, began_s)
                self._look_for_the_end()
                busy = any(
                    not isinstance(action, Wait) and action.job not in tick.unmade
                    for action, _ in tick.decisions
                )
                nap_s = _FIRST_NAP_S if busy else min(2.0 * nap_s, _LONGEST_NAP_S)
                self._nap(dispatcher, clock, nap_s)

        self._fiber = self.scheduler.spawn(process, run)

    def _nap(self, dispatcher: Dispatcher, clock: SimulatedClock, for_s: float) -> None:
        """Pause between two rounds, and list often enough meanwhile for every lease to be judged."""
        until_s = self.scheduler.now_s + for_s
        while (left_s := until_s - self.scheduler.now_s) > 0.0 and not self._nudged:
            held = (m.witness for m in dispatcher.world.jobs.values() if m.witness)
            leases_s = [w.silence_allowed_s for w in held if w.phase == "held"]
            gap_s = max(min(leases_s, default=LEASE_S) / 3.0 - 2.0, _LEAST_NAP_S)
            self._napping = True
            clock.sleep(min(gap_s, left_s))
            self._napping = False
            dispatcher.world.watch()
        self._nudged = False

    def _rungs(self, process: Process, clock: SimulatedClock) -> list[Rung]:
        found = []
        for market in self.pool:
            config = {"cloud": self.cloud, "process": process, "market": market}
            kind = platform_of(market, tells_quota=self.policy in PRODUCT)
            runner = kind(market.name, config, Site(_NOWHERE, clock))
            found.append(
                Rung(
                    market.name,
                    market.name,
                    runner,
                    runner.capacity(config),
                    market.card,
                    market.price_class,
                    Price(market.currency, market.per_h),
                )
            )
        return found

    def _path(self, process: Process) -> SimulatedStore:
        return SimulatedStore(self.objects, self.scheduler, self.weather, process, self)

    def _look_for_the_end(self) -> None:
        """Over when every job and bill is, and no machine is left."""
        over = not self._waiting and len(self.ended_s) == len(self.tasks)
        if over and not self.checker.open_bills:
            self.scheduler.over = not any(map(self.cloud.running, self.cloud.markets))

    # ------------------------------------------------------------------------------ workers

    def start(self, job: str, launch: int, rung: str) -> Process:
        """Start a worker's process."""
        process = self.scheduler.process(f"{rung} for {job[:6]}-{launch}")
        task = self.tasks[job]
        patience_s = task.spec.patience_s
        now_s = self.scheduler.now_s
        worker = Worker(process, job, launch, rung, now_s, STEP_S * 4.0, patience_s)
        self.checker.workers[process] = worker
        self.checker.jobs[job].workers += 1
        self.trace(process.name, "starts")
        return process

    def move_in(self, machine: Machine) -> None:
        """Start the worker of a machine whose host has started."""
        ((job, launch),) = machine.aboard
        process = self.start(job, launch, machine.rung)
        machine.processes.append(process)
        self.aboard[process] = machine
        worker = self.checker.workers[process]
        self.scheduler.spawn(process, partial(self._work, worker, self.tasks[job], machine))

    def warn(self, machine: Machine, reason: str, within_s: float) -> None:
        """Tell the worker that its machine will end."""
        for process in machine.processes:
            worker = self.checker.workers[process]
            if not process.dead and worker.ended is None:
                worker.notice, worker.told = reason, True
                machine.wall_s = min(machine.wall_s, self.scheduler.now_s + within_s)

    def _work(self, worker: Worker, task: Task, machine: Machine) -> None:
        process = worker.process
        clock = SimulatedClock(self.scheduler, process, self.rng)
        measured: Mapping[str, object] = {"card": machine.market.card, "packages": {}}
        code, reason = exits.FINISHED, ""
        try:
            with claim(worker.job, self._path(process), worker.launch, clock, measured) as tenure:
                worker.claimed = True
                tenure.finish(self._train(tenure, clock, worker, task.config, machine))
        except Stopped as stop:
            code, reason = stop.exit_code, stop.reason
        except (toy.CodeError, MemoryError, RuntimeError) as error:
            reason = str(error)  # the tenure has told the store of it
        self.trace(process.name, "ends", code, reason)
        self.checker.stopped(worker, code, reason)
        self.scheduler.kill(process)  # its courier's thread dies with it
        self.cloud.left_behind(machine)

    def _train(
        self,
        tenure: Tenure,
        clock: SimulatedClock,
        worker: Worker,
        config: Config,
        machine: Machine,
    ) -> dict[str, object]:
        """Train to the end; the result depends on every step."""
        if config.memory_gib > machine.market.memory_gib:
            worker.told = True
            self.cloud.excluded.setdefault(worker.job, set()).add(machine.rung)
            raise MemoryError(f"{config.memory_gib:.0f} GiB are needed")
        state = tenure.resume(_load) or {"step": 0, "word": tenure.spec.seed}
        flops = config.flops_per_step if config.told else None
        tenure.work(flops=flops, dtype="fp16", steps=config.steps)
        step_s, began_s = config.step_s(machine), clock.monotonic_s()
        paces = drawn(machine.host.seed, "steps")
        since = state["step"]

        def save(folder: Path) -> None:
            (folder / _STATE).write_text(json.dumps(state))

        while state["step"] < config.steps:
            if state["step"] - since < MEASURED_AFTER:
                tenure.announce("steps take minutes", LEASE_S)
            took_s = step_s * _ratio(paces)
            if took_s > 1.4 * step_s:  # it may outlast a lease of few steps, by its own fault
                worker.process.harm(self.scheduler.now_s + took_s)
            clock.sleep(took_s)
            if clock.monotonic_s() - began_s >= machine.fails_after_s:
                worker.told = True
                self.weather.counts["cuda"] += 1
                raise RuntimeError(FAULTS[machine.host.seed % len(FAULTS)])
            if config.own_error and state["step"] >= 20:
                raise toy.CodeError("a bug of the experiment")
            state["step"] += 1
            state["word"] = toy.advance(state["word"], state["step"])
            tenure.step()
            self._between_steps(worker, tenure, machine)
            if tenure.milestone_due:
                tenure.milestone(save)
        if tenure.saved_step != tenure.step_number:
            tenure.milestone(save)
        return {"word": state["word"]}

    def _between_steps(self, worker: Worker, tenure: Tenure, machine: Machine) -> None:
        self.checker.stepping(worker)
        if worker.notice:
            left_s = machine.wall_s - self.scheduler.now_s
            tenure.request_stop(worker.notice, max(left_s - 10.0, 1.0))
            worker.notice = ""


def _ratio(rng: Random) -> float:
    """The length of one step in medians: one in a hundred is over 1.2, one in a thousand over 2.6.

    As in the recorded steps of four jobs.
    """
    length = max(0.9, 1.0 + 0.05 * rng.gauss(0.0, 1.0))
    return length * rng.uniform(1.5, 4.5) if rng.random() < 0.002 else length


def _load(folder: Path) -> dict[str, int]:
    state: dict[str, int] = json.loads((folder / _STATE).read_text())
    return state
