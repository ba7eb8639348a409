"""Real dispatchers, real workers and a real S3 server, and a seeded scheduler of what befalls them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import psutil

from tenure.__main__ import main
from tenure.errors import StoreOutOfReach
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import FINAL, Holder, JobSpec, SettlementRecord, Witness, load
from tenure_protocol.store.api import Found
from tenure_protocol.store.s3 import S3Store
from tests.e2e.ladder import Ladder, bears, send
from tests.seaweed import Seaweed

SLOTS = 5
RUNNER: dict[str, object] = {
    "threads": 1, "claim_window_s": 10.0, "linger_s": 2.0, "grace_s": 5.0
}  # fmt: skip
TENURE = "from tenure.__main__ import main; main()"
#: Before any of it: no program can do anything about Ctrl-C while Python itself starts.
BEGIN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); open({begun!r}, 'w').close(); "
)
DOOMED = "from tests.e2e.chaos_world import doomed; doomed({part!r}, {count}, {after})"
#: The lease of these jobs, so that a lost worker costs seconds and not the minute that S3 asks for.
LEASE_S = 10.0
_EVERY_S = 0.1
_LOOK_EVERY_S = 0.4
_HANG_S = 300.0  # a guard against waiting for ever; nothing is timed by it


def doomed(part: str, count: int, after: bool) -> None:
    """``tenure`` in a process that kills itself at its ``count``-th write to a key with ``part``."""
    left = itertools.count(count, -1)

    def deadly(write: Callable[..., object]) -> Callable[..., object]:
        def run(store: S3Store, key: str, *rest: object) -> object:
            last = part in key and next(left) == 1
            if last and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            outcome = write(store, key, *rest)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome

        return run

    for name in ("create", "replace", "delete"):
        setattr(S3Store, name, deadly(getattr(S3Store, name)))
    main()


class Command:
    """A ``tenure`` command as a terminal starts it: in a process group of its own."""

    def __init__(self, folder: Path, name: str, *args: str, start: str = TENURE) -> None:
        environ = {k: text for k, text in os.environ.items() if not k.startswith("TENURE_")}
        self.name = name
        self.log = folder / f"{name}.txt"
        self._begun = folder / f"{name}.begun"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", BEGIN.format(begun=str(self._begun)) + start, *args],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    @property
    def code(self) -> int | None:
        """Its exit code, ``None`` while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """What a terminal does with Ctrl-C: the signal goes to the whole process group."""
        if self.code is None:
            os.killpg(self._process.pid, number)

    def interrupt(self, again_s: float | None = None) -> None:
        """Ctrl-C, perhaps once more ``again_s`` later; it ends by itself and without a traceback."""
        while self.code is None and not self._begun.exists():
            SYSTEM.sleep(0.01)
        self.send(signal.SIGINT)
        if again_s is not None:
            SYSTEM.sleep(again_s)
            self.send(signal.SIGINT)
        code = self.wait()
        assert code in (130, -signal.SIGINT), f"{self.name} ended with {code}"  # 130 to a shell
        assert "Traceback" not in self.log.read_text(), self.name

    def wait(self, for_s: float = 240.0) -> int:
        """Its exit code, once it ends."""
        return self._process.wait(for_s)

    def end(self) -> None:
        """No such process afterwards."""
        self.send(signal.SIGKILL)
        self.wait()


class Project:
    """A folder with a tenure.toml over a store; its commands, and the workers they start."""

    def __init__(self, folder: Path, url: str, **config: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        runner = {**RUNNER, **config}
        lines = [
            "[store]", f'url = "{url}"', "[runners.here]", 'kind = "own_process"',
            f"slots = {SLOTS}", *(f"{key} = {value}" for key, value in runner.items()),
        ]  # fmt: skip
        (folder / "tenure.toml").write_text("\n".join(lines))
        self.ladder = Ladder(folder, SLOTS, url, **runner)
        self.commands: list[Command] = []

    def __enter__(self) -> Project:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for command in self.commands:
            command.end()
            if error:
                print(f"---- {command.name} ended with {command.code}; its last words:")
                print(command.log.read_text()[-3000:])
        for pid in self.workers():
            send(pid, signal.SIGKILL)

    def start(self, *args: str, start: str = TENURE) -> Command:
        """A command over this folder's tenure.toml."""
        name = f"{len(self.commands)}-{args[0]}"
        command = Command(self.folder, name, *args, start=start)
        self.commands.append(command)
        return command

    def workers(self) -> list[int]:
        """Every live process that was started as a worker on this store."""
        return [pid for pid in psutil.pids() if bears(pid, "TENURE_STORE", self.ladder.store.url)]

    def look(self) -> None:
        """See what the store says now; a silent one is seen as it was before."""
        self.ladder.dispatcher.world.observe()

    def launches(self) -> dict[str, int]:
        """By job, how many workers were started for it: each has a log of its own."""
        logs = (self.folder / ".tenure" / "workers").glob("*.log")
        return dict(Counter(log.stem.split("-")[2] for log in logs))

    def wait(self, ready: Callable[[], object], what: str) -> None:
        """Look until it is so, as long as some command goes on."""
        end_s = SYSTEM.monotonic_s() + _HANG_S
        self.look()
        while not ready():
            assert SYSTEM.monotonic_s() < end_s, f"{what}: not in {_HANG_S:.0f} s"
            assert any(command.code is None for command in self.commands), what
            SYSTEM.sleep(_EVERY_S)
            self.look()

    def all_over(self) -> bool:
        """Whether every job is final and every bill is closed, by listings that were answered."""
        world = self.ladder.dispatcher.world
        over = all(job.final for job in world.jobs.values())
        return world.whole and over and not world.bills

    def done(self) -> dict[str, Witness]:
        """Witnesses by job, as they were last seen."""
        jobs = self.ladder.dispatcher.world.jobs.values()
        return {memory.job: memory.witness for memory in jobs if memory.witness}

    def interrupt(self) -> None:
        """Ctrl-C to every command that runs; and nothing here has ever met a bug."""
        for command in self.commands:
            if command.code is None:
                command.interrupt()
        logs = [*self.folder.glob("*.txt"), *self.folder.glob(".tenure/workers/*.log")]
        assert [log.name for log in logs if "Traceback" in log.read_text()] == []


def check_bills(project: Project) -> None:
    """Every launch that was ever meant was settled to its end."""
    store = project.ladder.store
    left = [row.key for row in store.list(keys.UNSETTLED)]
    assert left == [], f"open bills: {left}"
    for job in project.done():
        closed: dict[str, bool] = {}
        for row in store.list(f"jobs/{job}/launches/"):
            launch, _, name = row.key.removeprefix(f"jobs/{job}/launches/").partition("/")
            closed.setdefault(launch, False)
            if name.startswith("settlement-"):
                found = store.read(row.key)
                assert isinstance(found, Found)
                record = load(SettlementRecord, found.body, row.key)
                closed[launch] = closed[launch] or record.outcome == "closed"
        assert closed and all(closed.values()), f"{job}: {closed}"


@dataclass
class History:
    """What one job's witness was seen to be, checked as it grows."""

    seq: int = 0
    attempt: int = 0
    holders: dict[int, Holder] = field(default_factory=dict)  # by attempt

    def saw(self, w: Witness) -> None:
        """A later look: nothing goes back, and an attempt has one holder."""
        assert w.seq >= self.seq, "the witness went back"
        assert w.attempt >= self.attempt, "an attempt number went back"
        self.seq, self.attempt = w.seq, w.attempt
        if w.holder:
            held = self.holders.setdefault(w.attempt, w.holder)
            assert held == w.holder, f"attempt {w.attempt} changed hands"


@dataclass
class _Dispatcher:
    """A place for one dispatcher, which is filled again whenever it falls vacant."""

    command: Command
    doom: str = ""  # where the process that fills it will kill itself
    stopped: bool = False


class Chaos:
    """Faults in a world of real processes, drawn from a seed."""

    def __init__(self, project: Project, server: Seaweed, config: dict[str, object], seed: int):
        self.project = project
        self.specs: list[JobSpec] = []
        self.actions: list[str] = []
        self._server = server
        self._config = config
        self._seed = seed
        self._rng = random.Random(seed)
        self._up = True
        self._picky = True  # only a worker that holds its job will do
        self._stopped: set[int] = set()  # workers
        self._later: list[tuple[float, str, Callable[[], None]]] = []
        self._dispatchers: list[_Dispatcher] = []
        self._histories: dict[str, History] = {}
        self._look_s = 0.0
        self._began_s = SYSTEM.monotonic_s()

    # ------------------------------------------------------------------------------ the play

    @contextmanager
    def told(self) -> Iterator[None]:
        """A failure is told with its seed and everything that was done."""
        try:
            yield
        except BaseException:
            print(f"seed {self._seed}; what was done, by seconds since the beginning:")
            print("\n".join(self.actions))
            raise

    def play(self, rounds: int, longest_pause_s: float) -> None:
        """Every kind of fault about equally often, in the seed's order; then peace to the end."""
        self._dispatchers = [_Dispatcher(self._dispatch()) for _ in range(2)]
        deck = (list(self.KINDS) * rounds)[:rounds]
        self._rng.shuffle(deck)
        for kind in deck:
            self._picky = self._rng.random() < 0.8
            self._until(partial(self.KINDS[kind], self), f"nothing to {kind}")
            self._go_on(self._rng.uniform(0.2, longest_pause_s))
        self._make_peace()
        self.project.wait(self._all_over, "the end of all jobs and bills after the last fault")

    def _go_on(self, seconds: float) -> None:
        end_s = SYSTEM.monotonic_s() + seconds
        self._until(lambda: SYSTEM.monotonic_s() >= end_s, "the end of a pause")

    def _until(self, ready: Callable[[], object], what: str) -> None:
        end_s = SYSTEM.monotonic_s() + _HANG_S
        while not ready():
            assert SYSTEM.monotonic_s() < end_s, what
            self._tend()
            SYSTEM.sleep(_EVERY_S)

    def _tend(self) -> None:
        """What a world does by itself: faults pass, supervisors restart, people enlist."""
        now_s = SYSTEM.monotonic_s()
        due = [entry for entry in self._later if entry[0] <= now_s]
        self._later = [entry for entry in self._later if entry[0] > now_s]
        for _, words, undo in due:
            self._say(f"  {words}")
            undo()
        self._supervise()
        if self._up and now_s >= self._look_s:
            self.project.look()
            self._note()
            self._enlist()
            self._look_s = SYSTEM.monotonic_s() + _LOOK_EVERY_S

    def _say(self, words: str) -> None:
        self.actions.append(f"{SYSTEM.monotonic_s() - self._began_s:7.1f}  {words}")

    def _note(self) -> None:
        for job, memory in self.project.ladder.dispatcher.world.jobs.items():
            if memory.witness:
                self._histories.setdefault(job, History()).saw(memory.witness)

    def _enlist(self) -> None:
        """Keep more jobs open than there are slots."""
        over = sum(w.phase in FINAL for w in self.project.done().values())
        if len(self.specs) - over > 6:
            return
        count = len(self.specs)
        try:
            self.specs += self.project.ladder.orbits(
                3, self._config, first=count, max_silence_s=LEASE_S
            )
        except StoreOutOfReach:
            return  # idempotent: the same jobs are enlisted at the next look

    def _all_over(self) -> bool:
        self._supervise()
        self._note()
        return self.project.all_over()

    def _make_peace(self) -> None:
        """Every fault that lasts is undone."""
        for _, words, undo in self._later:
            self._say(f"  {words}, for good")
            undo()
        self._later = []

    # ------------------------------------------------------------------------------- workers

    def _worker(self) -> tuple[int, str, str] | None:
        """A live worker by its receipt in the store: pid, the launch's name, and words."""
        found = []
        for bill, pid in self.project.ladder.running():
            w = self.project.ladder.dispatcher.world.jobs[bill.job].witness
            holds = w and w.holder and w.holder.launch == bill.launch
            if bill.receipt and pid not in self._stopped and (holds or not self._picky):
                words = f"the worker of launch {bill.launch} of {bill.job[:6]}"
                words += f" (attempt {w.attempt})" if w and holds else ""
                found.append((pid, bill.receipt.name, words))
        return self._rng.choice(sorted(found)) if found else None

    def _kill_worker(self) -> bool:
        return self._signal_worker(signal.SIGKILL, "kill")

    def _end_worker(self) -> bool:
        return self._signal_worker(signal.SIGTERM, "end (SIGTERM)")

    def _signal_worker(self, number: signal.Signals, verb: str) -> bool:
        worker = self._worker()
        if worker:
            self._say(f"{verb} {worker[2]}")
            send(worker[0], number)
        return worker is not None

    def _stop_worker(self) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        pid, name, words = worker
        seconds = self._rng.uniform(0.5, 2.2 * LEASE_S)
        self._say(f"stop {words} for {seconds:.1f} s")
        self._stopped.add(pid)
        send(pid, signal.SIGSTOP)
        self._undo(seconds, f"wake {words}", partial(self._wake_worker, pid, name))
        return True

    def _wake_worker(self, pid: int, name: str) -> None:
        self._stopped.discard(pid)
        if bears(pid, "TENURE_NAME", name):  # the pid of one that was killed may be anybody's
            send(pid, signal.SIGCONT)

    def _undo(self, after_s: float, words: str, undo: Callable[[], None]) -> None:
        self._later.append((SYSTEM.monotonic_s() + after_s, words, undo))

    # --------------------------------------------------------------------------- dispatchers

    def _dispatch(self, start: str = TENURE) -> Command:
        return self.project.start("dispatch", start=start)

    def _supervise(self) -> None:
        """A dispatcher that ended is started anew; none may have ended but by our hand."""
        for place in self._dispatchers:
            code = place.command.code
            if code is None:
                continue
            if code == -signal.SIGKILL and place.doom:
                self._say(f"  {place.command.name} has killed itself {place.doom}")
            else:  # it began in an outage, says so and no more: a supervisor tries again
                told = place.command.log.read_text()
                assert code == 3 and told.count("\n") == 1, f"{place.command.name}: {code}"
                self._say(f"  {place.command.name} found no store")
            place.command, place.doom = self._dispatch(), ""

    def _place(self) -> _Dispatcher | None:
        found = [place for place in self._dispatchers if not place.stopped]
        return self._rng.choice(found) if found else None

    def _kill_dispatcher(self) -> bool:
        """Its successor dies as well, by its own hand, at one of its first writes."""
        place = self._place()
        if place is None:
            return False
        part, count = self._rng.choice(("", "jobs/", "witness/")), self._rng.randint(1, 6)
        after = self._rng.random() < 0.5
        place.doom = f"{'after' if after else 'before'} write {count} to {part or 'any key'}"
        self._say(f"kill {place.command.name}; its successor dies {place.doom}")
        place.command.end()
        place.command = self._dispatch(DOOMED.format(part=part, count=count, after=after))
        return True

    def _stop_dispatcher(self) -> bool:
        place = self._place()
        if place is None or place.doom:
            return False
        seconds = self._rng.uniform(0.5, 2.2 * LEASE_S)
        self._say(f"stop {place.command.name} for {seconds:.1f} s")
        place.stopped = True
        place.command.send(signal.SIGSTOP)
        self._undo(seconds, f"wake {place.command.name}", partial(self._wake_dispatcher, place))
        return True

    def _wake_dispatcher(self, place: _Dispatcher) -> None:
        place.stopped = False
        place.command.send(signal.SIGCONT)

    # -------------------------------------------------------------------------------- server

    def _kill_server(self) -> bool:
        return self._take_down(self._server.kill, "kill the server")

    def _restart_server(self) -> bool:
        return self._take_down(self._server.stop, "end the server (SIGTERM)")

    def _take_down(self, fault: Callable[[], None], words: str) -> bool:
        if not self._up:
            return False
        seconds = self._rng.uniform(0.0, 3.0)
        self._say(f"{words} for {seconds:.1f} s")
        self._up = False
        fault()
        self._undo(seconds, "start the server", self._start_server)
        return True

    def _start_server(self) -> None:
        self._server.start()
        self._up = True

    def _freeze_server(self) -> bool:
        if not self._up:
            return False
        seconds = self._rng.uniform(0.5, 4.0)
        self._say(f"stop the server for {seconds:.1f} s")
        self._up = False
        self._server.freeze()
        self._undo(seconds, "wake the server", self._thaw_server)
        return True

    def _thaw_server(self) -> None:
        self._server.thaw()
        self._up = True

    #: What may befall them; each says whether there was something that it could be done to.
    KINDS: ClassVar[Mapping[str, Callable[[Chaos], bool]]] = {
        "kill a worker": _kill_worker,
        "stop a worker": _stop_worker,
        "end a worker": _end_worker,
        "kill a dispatcher": _kill_dispatcher,
        "stop a dispatcher": _stop_dispatcher,
        "kill the server": _kill_server,
        "restart the server": _restart_server,
        "stop the server": _freeze_server,
    }
