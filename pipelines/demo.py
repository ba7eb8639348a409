"""``tenure demo``: the example's plan with a worker killed and another stopped on the way.

The demo has a home of its own, ``.tenure/demo``, with its own store, deploy key and settings, which
it empties at its beginning. The faults are real signals to real processes.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import typer
from rich.console import Console

from pipelines.command import Watching, show
from pipelines.extras import demand_dagster
from runners.own_process import OwnProcessRunner, live_processes
from tenure.cli.own_name import own_name
from tenure.deploy_key import write_key
from tenure.dispatch.contract import Receipt
from tenure.dispatch.loop import Dispatcher, Tick, receipt_of
from tenure.errors import Blocked, UsageError
from tenure.plan.file import load_plan
from tenure.settings import absolute_store_url, load_settings
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import Pointer, Witness
from tenure_protocol.store.api import Store, StoreSilent
from tenure_worker.exits import EXIT_CODES, LEASE_LOST
from tenure_worker.snapshot import read_manifest

PLAN = Path("examples/sp500/plan.yaml")
STAGE = "training"  # where the faults happen
RUNNER = "here"
STORE = "file:store"
END_S = 20.0  # for processes that were sent SIGKILL
MILESTONES = 3  # of a job, before its worker is harmed: in mid-run, with something to resume from

AFTERWARDS = (
    "The demo's workers that still run go on to their ends, a stopped one is woken; the same command "
    "ends what is left of them and begins anew."
)

SETTINGS = """\
# Written by `tenure demo`. Look around with: tenure status --config {file}
[store]
url = "{store}"
[runners.{runner}]
kind = "own_process"
slots = 2
linger_s = 120         # the stopped worker is to be woken and to end by itself: no signal
grace_s = 120          # hurries it, however slow this machine is
[rungs.local]
runner = "{runner}"
card = "cpu"
price_class = "on_demand"
price = {{currency = "usd", per_h = 0}}
[gates]
deploy_key = "file:deploy_key.pem"
[plans]
paths = ["{plan}"]
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
    """Empty the demo's home, make its key and its settings; returns the settings' path."""
    end_workers(home)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    write_key(home / "deploy_key.pem")
    file = home / "tenure.toml"
    plan = checkout() / PLAN
    file.write_text(SETTINGS.format(file=file, plan=plan, store=STORE, runner=RUNNER))
    return file


def end_workers(home: Path) -> None:
    """End the workers of an earlier demo of this home, stopped ones too.

    The new demo's launches bear the same names, so that it would take such a worker for its own.
    Raises Blocked when one does not end.
    """
    found = live_processes(RUNNER, absolute_store_url(STORE, home.absolute()))
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(found, timeout=END_S)
    if left:
        raise Blocked(
            f"the worker {left[0].pid} of an earlier demo in {home} does not end, even by SIGKILL"
        )


def demo() -> None:
    """Play the example from data to deployment, killing one worker and stopping another on the way.

    Takes two to four minutes and a home of its own, .tenure/demo, which it empties first. Exit
    code 0: deployed, and nothing was mixed; 1: not so, with the reasons.
    """
    demand_dagster("demo")
    from tenure.dispatch.registry import build_dispatcher, open_settings_store

    console = Console()
    file = prepare(Path(".tenure") / "demo")
    settings = load_settings(file, environ={})  # $TENURE_STORE is not for the demo
    plan = load_plan(checkout() / PLAN, settings, check_import=True)
    store = open_settings_store(settings)
    dispatcher = build_dispatcher(settings, store)
    faults = Faults(store, lambda words: console.print(f"[yellow]fault[/]  {words}"))

    def report(stage: str, jobs: list[str], _: Tick) -> None:
        faults(dispatcher, stage, jobs)

    try:
        with Watching(console, AFTERWARDS) as watching:
            outcome = watching.run(settings, plan, report, dispatcher)
    finally:
        faults.end()
    show(outcome, console)
    problems = faults.problems(lambda job: dispatcher.world.jobs[job].witness)
    for problem in problems:
        console.print(f"[red]not as promised[/]  {problem}", soft_wrap=True)
    if not problems:
        console.print(
            "Both harmed jobs finished in a second attempt, each on one line of snapshots; the woken "
            f"worker saw that it had lost its lease, changed nothing and ended with code {LEASE_LOST}."
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
    pointer: Pointer
    receipt: Receipt
    process: psutil.Process  # psutil knows it from a later one with the same pid


class Faults:
    """Kills one worker in mid-run, stops another until its lease is gone, and wakes it."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self.killed: _Victim | None = None
        self.stopped: _Victim | None = None
        self.woken = False
        self._ended = False
        self._asleep: psutil.Process | None = None
        self.exit_code: int | None = None  # of the woken worker

    def __call__(self, dispatcher: Dispatcher, stage: str, jobs: Sequence[str]) -> None:
        """One look at the jobs of a stage; harms at most one worker."""
        if self._ended:
            return
        if stage == STAGE and self.killed is None:
            self.killed = self._harm(dispatcher, jobs, signal.SIGKILL, "killed (SIGKILL)")
        elif stage == STAGE and self.stopped is None:
            self.stopped = self._harm(dispatcher, jobs, signal.SIGSTOP, "stopped (SIGSTOP)")
        elif self.stopped and not self.woken:
            self._wake_when_deposed(dispatcher, self.stopped)
        elif self.stopped and self.exit_code is None:
            self._take_exit_code(dispatcher, self.stopped)

    def end(self) -> None:
        """Harm nobody any more, and wake the stopped worker if it still sleeps."""
        self._ended = True
        if self._asleep and not self.woken:
            with suppress(psutil.NoSuchProcess):
                self._asleep.send_signal(signal.SIGCONT)

    def _harm(
        self, dispatcher: Dispatcher, jobs: Sequence[str], number: signal.Signals, words: str
    ) -> _Victim | None:
        for job in jobs:
            memory = dispatcher.world.jobs.get(job)
            stored = dispatcher.world.read(memory) if memory else None
            victim = self._victim(dispatcher, stored.witness) if stored and stored.witness else None
            if victim is None or (self.killed and job == self.killed.job):
                continue
            if number == signal.SIGSTOP:
                self._asleep = victim.process  # noted first: the demo may be left in between
            try:
                victim.process.send_signal(number)
            except psutil.NoSuchProcess:
                continue  # it has ended since the witness was read
            self._say(
                f"the worker of job {job[:8]} is {words} in attempt {victim.attempt}, "
                f"at step {victim.pointer.step} or later"
            )
            return victim
        return None

    def _victim(self, dispatcher: Dispatcher, w: Witness) -> _Victim | None:
        """The live holder of a job in mid-run, if its process is known."""
        if w.phase != "held" or w.holder is None or w.pointer is None:
            return None
        bill = dispatcher.world.bills.get((w.job, w.holder.launch))
        made = bill.receipt if bill else None
        pid = made.handle.get("pid") if made else None
        if w.pointer.ordinal < MILESTONES or made is None or not isinstance(pid, int):
            return None
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return None
        return _Victim(w.job, w.holder.launch, w.attempt, w.pointer, receipt_of(made), process)

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

    def problems(self, witnesses: Callable[[str], Witness | None]) -> list[str]:
        """What did not go as promised; empty when both jobs finished and nothing was mixed."""
        if self.killed is None or self.stopped is None:
            return ["the stage ended before a worker could be harmed"]
        found = []
        for victim in (self.killed, self.stopped):
            w = witnesses(victim.job)
            if w is None or w.phase != "finished" or w.exit_code != 0 or w.pointer is None:
                found.append(f"job {victim.job} is not finished")
            elif w.attempt < 2:
                found.append(f"job {victim.job} was not taken over")
            else:
                found += self._mixed(victim, w.pointer)
        if self.exit_code != LEASE_LOST:
            found.append(f"the woken worker ended with code {self.exit_code}, not {LEASE_LOST}")
        return found

    def _mixed(self, victim: _Victim, pointer: Pointer) -> list[str]:
        """Walk the line of pointers back: once a later attempt took over, no older one returns."""
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
        return []
