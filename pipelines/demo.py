"""``tenure demo``: the example's plan over two rungs, with a worker killed, another stopped and a third slowed.

The demo has a home of its own, ``.tenure/demo``, with its own store, deploy key, plan and settings, which
it empties at its beginning. The faults are real signals to real processes. Both rungs are processes of
this machine; a machine that degrades is simulated by letting its process run for a part of the time only.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import psutil
import typer
from rich.console import Console
from rich.markup import escape

from pipelines.command import Watching, show
from pipelines.extras import demand_dagster
from runners.own_process import OwnProcessRunner, live_processes
from tenure.cli.own_name import own_name
from tenure.deploy_key import write_key
from tenure.dispatch.contract import Receipt
from tenure.dispatch.decide import AskToYield
from tenure.dispatch.loop import Dispatcher, Tick, receipt_of
from tenure.dispatch.rows import work_of
from tenure.errors import Blocked, UsageError
from tenure.plan.file import load_plan
from tenure.settings import absolute_store_url, load_settings
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import FINAL, Pointer, Witness
from tenure_protocol.store.api import Store, StoreSilent
from tenure_worker.exits import EXIT_CODES, LEASE_LOST
from tenure_worker.snapshot import read_manifest

PLAN = Path("examples/sp500/plan.yaml")
STAGE = "training"  # where the faults happen
#: Rungs in the plan's order, each with a runner of its name: what is usual is known by runner.
STEADY, SPOT = "steady", "spot"
STORE = "file:store"
END_S = 20.0  # for processes that were sent SIGKILL
MILESTONES = 3  # of a job, before its worker is harmed: in mid-run, with something to resume from
#: What a degraded machine has left. Its neighbours may have to share a core at any time, so that a half
#: might pass for usual; and it is judged late enough that the jobs beside it are done.
PART = 0.15
_WINDOW_S = 0.04  # that it runs at a time
#: So many jobs may still wait when a machine degrades: it is among the last, so that when it is judged
#: nobody waits for the preferred rung any more.
QUEUE = 1
#: A machine that was silent for this part of its lease runs freely until it renews: it is to be found
#: slow, not dead.
_NEARLY_SILENT = 0.8

AFTERWARDS = (
    "The demo's workers that still run go on to their ends, a stopped one is woken; the same command "
    "ends what is left of them and begins anew."
)

SETTINGS = """\
# Written by `tenure demo`. Look around with: tenure status --config {file}
[store]
url = "{store}"
[runners.{steady}]
kind = "own_process"
slots = 1
threads = 1            # as on the other rung: a pinned environment counts them
linger_s = 120         # the stopped worker is to be woken and to end by itself: no signal
grace_s = 120          # hurries it, however slow this machine is
[runners.{spot}]
kind = "own_process"
slots = 2
threads = 1
linger_s = 120
grace_s = 120
[rungs.{steady}]
runner = "{steady}"
card = "cpu"
price_class = "on_demand"
price = {{currency = "usd", per_h = 0}}
[rungs.{spot}]
runner = "{spot}"
card = "cpu"
price_class = "spot"
price = {{currency = "usd", per_h = 0}}
[gates]
deploy_key = "file:deploy_key.pem"
[plans]
paths = ["plan.yaml"]
[dagster]
home = "dagster"
"""


def checkout() -> Path:
    """The folder of the checkout this is installed from."""
    found = importlib.util.find_spec("examples.sp500.experiment")
    if found is None or found.origin is None:
        raise UsageError("the example is not here; run the demo in a checkout, with `make demo`")
    return Path(found.origin).parents[2]


def prepare(home: Path) -> Path:
    """Empty the demo's home, make its key, its plan and its settings; returns the settings' path."""
    end_workers(home)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    write_key(home / "deploy_key.pem")
    (home / "plan.yaml").write_text(on_both_rungs((checkout() / PLAN).read_text("utf-8")), "utf-8")
    file = home / "tenure.toml"
    file.write_text(SETTINGS.format(file=file, store=STORE, steady=STEADY, spot=SPOT))
    return file


def on_both_rungs(plan: str) -> str:
    """The text of the example's plan with the rungs of the demo.

    >>> on_both_rungs("name: a\\n# where\\nrungs: [local]\\n")
    'name: a\\n# where\\nrungs: [steady, spot]\\n'
    """
    changed, count = re.subn(r"^rungs:.*$", f"rungs: [{STEADY}, {SPOT}]", plan, flags=re.MULTILINE)
    if count != 1:
        raise UsageError(f"{PLAN} has {count} lines that begin with 'rungs:'; the demo needs one")
    return changed


def end_workers(home: Path) -> None:
    """End the workers of an earlier demo of this home, stopped ones too.

    The new demo's launches bear the same names, so that it would take such a worker for its own.
    Raises Blocked when one does not end.
    """
    url = absolute_store_url(STORE, home.absolute())
    found = [process for name in (STEADY, SPOT) for process in live_processes(name, url)]
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(found, timeout=END_S)
    if left:
        raise Blocked(
            f"the worker {left[0].pid} of an earlier demo in {home} does not end, even by SIGKILL"
        )


def demo() -> None:
    """Play the example from data to deployment over two rungs, killing a worker, stopping a second, slowing a third.

    Takes two to four minutes and a home of its own, .tenure/demo, which it empties first. Exit
    code 0: deployed, and nothing was mixed; 1: not so, with the reasons.
    """
    demand_dagster("demo")
    from tenure.dispatch.registry import build_dispatcher, open_settings_store

    console = Console()
    home = Path(".tenure") / "demo"
    file = prepare(home)
    settings = load_settings(file, environ={})  # $TENURE_STORE is not for the demo
    plan = load_plan(home / "plan.yaml", settings, check_import=True)
    store = open_settings_store(settings)
    dispatcher = build_dispatcher(settings, store)

    def teller(mark: str) -> Callable[[str], None]:
        return lambda words: console.print(f"{mark}  {escape(words)}", soft_wrap=True)

    faults = Faults(store, teller("[yellow]fault[/]"))
    moves = Moves(teller("[cyan]moved[/]"))

    def report(stage: str, jobs: list[str], tick: Tick) -> None:
        moves(dispatcher, tick)
        faults(dispatcher, stage, jobs)

    try:
        with Watching(console, AFTERWARDS) as watching:
            outcome = watching.run(settings, plan, report, dispatcher)
    finally:
        faults.end()
    show(outcome, console)
    problems = faults.problems(lambda job: dispatcher.world.jobs[job].witness, moves.asked)
    for problem in problems:
        console.print(f"[red]not as promised[/]  {problem}", soft_wrap=True)
    if not problems:
        console.print(
            "All three harmed jobs finished in a later attempt, each on one line of snapshots; the woken "
            f"worker saw that it had lost its lease, changed nothing and ended with code {LEASE_LOST}; the "
            "job on the slowed machine was moved before its end.",
            soft_wrap=True,
        )
    console.print(f"Look around: {own_name()} status --config {file}", soft_wrap=True)
    if outcome.exit_code or problems:
        raise typer.Exit(outcome.exit_code or 1)


@dataclass
class _Victim:
    """A job whose worker is harmed."""

    job: str
    launch: int
    attempt: int
    pointer: Pointer | None
    rung: str
    receipt: Receipt
    process: psutil.Process  # psutil knows it from a later one with the same pid


class SimulatedSlowMachine:
    """Lets a process run for a part of the time only, by SIGSTOP and SIGCONT in turn, until it is repaired."""

    def __init__(self, process: psutil.Process, part: float, clock: Clock = SYSTEM) -> None:
        self._process = process
        self._pause = 1.0 / part - 1.0  # seconds stopped for each one that it ran
        self._clock = clock
        self._lock = Lock()
        self.over = False  # repaired, or the process has ended
        self.eased = False  # runs freely for now
        clock.spawn(self._run, "demo-slow-machine")

    def repair(self) -> None:
        """It runs freely from now on, whatever it is doing."""
        with self._lock:
            self.over = True
            with suppress(psutil.NoSuchProcess):
                self._process.send_signal(signal.SIGCONT)

    def _run(self) -> None:
        while True:
            began_s = self._clock.monotonic_s()
            self._clock.sleep(_WINDOW_S)
            if self.eased:
                continue
            # what it really ran counts, since a busy machine lets this thread oversleep
            ran_s = self._clock.monotonic_s() - began_s
            if not self._signal(signal.SIGSTOP):
                return
            self._clock.sleep(ran_s * self._pause)
            if not self._signal(signal.SIGCONT):
                return

    def _signal(self, number: signal.Signals) -> bool:
        with self._lock:
            if self.over:
                return False
            try:
                self._process.send_signal(number)
            except psutil.NoSuchProcess:
                self.over = True
            return not self.over


class Moves:
    """Tells of every holder that the dispatcher asks to yield for another machine, and where its job goes on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.asked: dict[str, int] = {}  # by job: how often
        self._on_its_way: dict[str, int] = {}  # by job: the attempt that was asked

    def __call__(self, dispatcher: Dispatcher, tick: Tick) -> None:
        """What one round of the dispatcher did."""
        for action, reason in tick.decisions:
            memory = dispatcher.world.jobs.get(action.job)
            # a request that was lost to a renewal of the holder is decided again
            if not isinstance(action, AskToYield) or memory is None or memory.witness is None:
                continue
            if memory.moves > self.asked.get(action.job, 0):
                self.asked[action.job] = memory.moves
                self._on_its_way[action.job] = memory.witness.attempt
                self._say(
                    f"job {action.job[:8]} is asked to go on elsewhere in attempt "
                    f"{memory.witness.attempt}: {reason}"
                )
        for job, attempt in list(self._on_its_way.items()):
            self._tell_arrival(dispatcher, job, attempt)

    def _tell_arrival(self, dispatcher: Dispatcher, job: str, attempt: int) -> None:
        w = dispatcher.world.jobs[job].witness
        if w is None or (w.phase in ("held", "expected") and w.attempt <= attempt):
            return
        rung = dispatcher.world.rung_of(job, w.holder.launch) if w.holder else None
        if w.phase == "held" and rung:
            del self._on_its_way[job]
            step = w.pointer.step if w.pointer else 0
            self._say(
                f"job {job[:8]} goes on in attempt {w.attempt} on rung {rung}, from step {step}"
            )
        elif w.phase in FINAL:
            del self._on_its_way[job]
            self._say(f"job {job[:8]} is {w.phase}")


class Faults:
    """Kills one worker in mid-run, stops another until its lease is gone and wakes it, and slows a third."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self.killed: _Victim | None = None
        self.stopped: _Victim | None = None
        self.slowed: _Victim | None = None
        self.woken = False
        self._slow: SimulatedSlowMachine | None = None
        self._ended = False
        self._asleep: psutil.Process | None = None
        self.exit_code: int | None = None  # of the woken worker

    def __call__(self, dispatcher: Dispatcher, stage: str, jobs: Sequence[str]) -> None:
        """One look at the jobs of a stage; harms at most one worker of those that run, and one that begins."""
        if self._ended:
            return
        if self.slowed is None and stage == STAGE:
            self._degrade(dispatcher, jobs)
        elif self.slowed and self._slow:
            self._keep_slow(dispatcher, self.slowed, self._slow)
        if stage == STAGE and self.killed is None:
            self.killed = self._harm(dispatcher, jobs, signal.SIGKILL, "killed (SIGKILL)")
        elif stage == STAGE and self.stopped is None:
            self.stopped = self._harm(dispatcher, jobs, signal.SIGSTOP, "stopped (SIGSTOP)")
        elif self.stopped and not self.woken:
            self._wake_when_deposed(dispatcher, self.stopped)
        elif self.stopped and self.exit_code is None:
            self._take_exit_code(dispatcher, self.stopped)

    def end(self) -> None:
        """Harm nobody any more, wake the stopped worker if it still sleeps, and repair the slow machine."""
        self._ended = True
        if self._slow:
            self._slow.repair()
        if self._asleep and not self.woken:
            with suppress(psutil.NoSuchProcess):
                self._asleep.send_signal(signal.SIGCONT)

    def _harm(
        self, dispatcher: Dispatcher, jobs: Sequence[str], number: signal.Signals, words: str
    ) -> _Victim | None:
        for job in jobs:
            memory = dispatcher.world.jobs.get(job)
            stored = dispatcher.world.read(memory) if memory else None
            victim = _victim(dispatcher, stored.witness) if stored and stored.witness else None
            if victim is None or victim.pointer is None or job in self._harmed():
                continue
            if victim.pointer.ordinal < MILESTONES:
                continue
            if number == signal.SIGSTOP:
                self._asleep = victim.process  # noted first: the demo may be left in between
            try:
                victim.process.send_signal(number)
            except psutil.NoSuchProcess:
                continue  # it has ended since the witness was read
            self._say(
                f"the worker of job {job[:8]} is {words} in attempt {victim.attempt}, "
                f"on rung {victim.rung}, at step {victim.pointer.step} or later"
            )
            return victim
        return None

    def _harmed(self) -> set[str]:
        return {each.job for each in (self.killed, self.stopped, self.slowed) if each}

    def _degrade(self, dispatcher: Dispatcher, jobs: Sequence[str]) -> None:
        """Let the machine of a launch on the rung SPOT degrade while it loads what it needs.

        An attempt is judged from its first milestone on, and these trainings are short: so it is slow from
        its beginning.
        """
        if sum(_waits(dispatcher, job) for job in jobs) > QUEUE:
            return
        for job in jobs:
            memory = dispatcher.world.jobs.get(job)
            w = memory.witness if memory else None
            victim = _victim(dispatcher, w) if w and w.pointer is None else None
            if victim is None or victim.rung != SPOT or job in self._harmed():
                continue
            if _has_peers(dispatcher, job):
                self.slowed = victim
                self._slow = SimulatedSlowMachine(victim.process, PART)
                if self._ended:  # the demo was left in between
                    self._slow.repair()
                self._say(
                    f"the machine of job {job[:8]} on rung {SPOT} degrades: its process gets {PART:.0%} "
                    f"of the time (SIGSTOP and SIGCONT in turn) in attempt {victim.attempt}"
                )
                return

    def _keep_slow(
        self, dispatcher: Dispatcher, victim: _Victim, machine: SimulatedSlowMachine
    ) -> None:
        """Nobody cares for a machine that its job has left: then its process may end in peace."""
        memory = dispatcher.world.jobs[victim.job]
        w = memory.witness
        if w is None or w.phase != "held" or w.attempt != victim.attempt:
            machine.repair()
            self._slow = None
        else:
            machine.eased = nearly_over(memory.age_s, w.silence_allowed_s)

    def _wake_when_deposed(self, dispatcher: Dispatcher, victim: _Victim) -> None:
        memory = dispatcher.world.jobs[victim.job]
        w = memory.witness
        if w is None or (w.phase == "held" and w.attempt == victim.attempt):
            return
        if w.phase == "expected":
            return  # the lease is gone, but nobody has taken its place yet
        self.woken = True
        now = f"job {victim.job[:8]} is in attempt {w.attempt} now"
        try:
            victim.process.send_signal(signal.SIGCONT)
            self._say(f"{now}: its first worker is woken")
        except psutil.NoSuchProcess:
            self._say(f"{now}: its first worker was ended by somebody else meanwhile")

    def _take_exit_code(self, dispatcher: Dispatcher, victim: _Victim) -> None:
        for rung in dispatcher.rungs.values():
            if isinstance(rung.runner, OwnProcessRunner):
                code = rung.runner.exit_code(victim.receipt)
                if code is not None:
                    self.exit_code = code
                    words = EXIT_CODES.get(code, "not a worker's own code")
                    self._say(f"the woken worker ended with code {code} ({words})")

    def problems(
        self, witnesses: Callable[[str], Witness | None], moved: Collection[str]
    ) -> list[str]:
        """What did not go as promised; empty when all three jobs finished and nothing was mixed.

        ``moved`` are the jobs that were asked to go on elsewhere.
        """
        victims = {"killed": self.killed, "stopped": self.stopped, "slowed": self.slowed}
        found = []
        for word, victim in victims.items():
            if victim is None:
                found.append(f"the stage ended before a worker could be {word}")
                continue
            w = witnesses(victim.job)
            if w is None or w.phase != "finished" or w.exit_code != 0 or w.pointer is None:
                found.append(f"job {victim.job} is not finished")
            elif w.attempt <= victim.attempt:
                found.append(f"job {victim.job} ended where it was harmed")
            else:
                found += self._mixed(victim, w.pointer)
        if self.slowed and self.slowed.job not in moved:
            found.append(f"job {self.slowed.job} was not asked to leave its slow machine")
        if self.stopped and self.exit_code != LEASE_LOST:
            found.append(f"the woken worker ended with code {self.exit_code}, not {LEASE_LOST}")
        return found

    def _mixed(self, victim: _Victim, pointer: Pointer) -> list[str]:
        """Walk the line of pointers back to the harmed attempt; once a later one took over, no older one returns."""
        newest = pointer.attempt
        at: Pointer | None = pointer
        try:
            while at is not None:
                if at.attempt > newest:
                    return [f"job {victim.job}: attempt {newest} wrote after attempt {at.attempt}"]
                newest = at.attempt
                at = read_manifest(self._store, victim.job, at).parent
        except (Corrupt, StoreSilent) as error:
            return [str(error)]
        if newest > victim.attempt:
            return [f"job {victim.job}: attempt {newest} began anew, not from a milestone"]
        return []


def nearly_over(age_s: float, lease_s: float) -> bool:
    """Whether a holder that was silent for so long must be let run, lest its lease runs out.

    >>> nearly_over(30.0, 60.0), nearly_over(50.0, 60.0)
    (False, True)
    """
    return age_s > _NEARLY_SILENT * lease_s


def _victim(dispatcher: Dispatcher, w: Witness) -> _Victim | None:
    """The live holder of a job, if its process is known."""
    if w.phase != "held" or w.holder is None:
        return None
    bill = dispatcher.world.bills.get((w.job, w.holder.launch))
    made = bill.receipt if bill else None
    pid = made.handle.get("pid") if made else None
    if made is None or not isinstance(pid, int):
        return None
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return _Victim(
        w.job, w.holder.launch, w.attempt, w.pointer, made.rung, receipt_of(made), process
    )


def _waits(dispatcher: Dispatcher, job: str) -> bool:
    """Whether a job has no machine, and still needs one."""
    memory = dispatcher.world.jobs.get(job)
    return (
        memory is None or memory.witness is None or memory.witness.phase in ("released", "revoked")
    )


def _has_peers(dispatcher: Dispatcher, job: str) -> bool:
    """Whether other jobs of its configuration run on the rung SPOT or did: then its speed can be compared."""
    world = dispatcher.world
    spec = world.jobs[job].spec
    if spec is None:
        return False
    work = work_of(spec, None)
    peers = {
        row.job
        for (runner, _), row in dispatcher.observatory.rows()
        if runner == SPOT and row.work == work and row.done
    }
    for bill in world.bills.values():
        other = world.jobs.get(bill.job)
        if bill.rung == SPOT and other and other.spec and work_of(other.spec, None) == work:
            peers.add(bill.job)
    return bool(peers - {job})
