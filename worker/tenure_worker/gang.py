"""Jobs of several cards of one machine: torchrun starts a rank for each card, rank 0 holds the tenure.

The worker that was launched (``lead``) starts torchrun and waits for it. Rank 0 is a worker like any
other: it claims, renews, saves, and finishes. The others run the same ``train()`` with a
:class:`Follower`, which has a tenure's methods and none of its rights: they count steps and load what
rank 0 loads. ``save`` is called in rank 0 alone, as is customary with DistributedDataParallel.

torchrun gives each rank a session of its own, so that who kills that of the worker reaches none of them:
when the worker is gone torchrun is told to end, and when torchrun is gone so is every rank.

The ranks speak through a folder of this machine: what rank 0 claimed and resumed from, what made a rank
fail, and with which code rank 0 ended, since torchrun itself ends with 1 whatever that was.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar, cast

from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.records import JobSpec
from tenure_worker import exits
from tenure_worker.exits import Stopped, classify

S = TypeVar("S")

VARIABLE = "TENURE_GANG"  # the folder; set for ranks, and for nobody else
_LOOK_EVERY_S = 0.05
_MOST_WORDS = 2000
_EXIT = "exit"
_PR_SET_PDEATHSIG = 1  # of prctl(2)


class RankFailed(Exception):
    """An exception of another rank, told here with the exit code of its class."""

    def __init__(self, rank: int, code: int, words: str) -> None:
        super().__init__(f"rank {rank}: {words}")
        self.code = code


class Gang:
    """What the ranks of one attempt say to each other."""

    def __init__(self, folder: Path, rank: int, clock: Clock = SYSTEM) -> None:
        self._folder = folder
        self.rank = rank
        self._clock = clock

    @classmethod
    def of_environment(cls) -> Gang | None:
        """The gang this process is a rank of, if it is one; from then on it does not outlive torchrun."""
        folder = os.environ.get(VARIABLE)
        if not folder:
            return None
        _die_with_parent(signal.SIGKILL)
        return cls(Path(folder), int(os.environ["RANK"]))

    def own_folder(self) -> Path:
        """A folder for this rank's files, which goes with the gang's."""
        folder = self._folder / f"rank-{self.rank}"
        folder.mkdir(exist_ok=True)
        return folder

    def share(self, name: str, value: object) -> None:
        """Tell the others, once; a rename, so that nobody reads half of it."""
        draft = self._folder / f"{name}.{self.rank}.draft"
        draft.write_text(json.dumps(value), encoding="utf-8")
        draft.rename(self._folder / f"{name}.json")

    def heard(self, name: str) -> object | None:
        """What was told under a name, or ``None`` so far."""
        try:
            return cast(object, json.loads((self._folder / f"{name}.json").read_text("utf-8")))
        except FileNotFoundError:
            return None

    def wait_for(self, name: str) -> Mapping[str, object]:
        """What rank 0 tells; torchrun ends whoever waits for a rank 0 that is gone."""
        while (told := self.heard(name)) is None:
            self._clock.sleep(_LOOK_EVERY_S)
        assert isinstance(told, dict)
        return told

    def fail(self, error: BaseException) -> None:
        """Tell what made this rank fail, before it goes and the others lose the connection to it."""
        words = "".join(traceback.format_exception(error))[-_MOST_WORDS:]
        told = {"rank": self.rank, "code": classify(error), "words": words}
        self.share(f"failed-{self.rank}", told)

    def failure(self) -> RankFailed | None:
        """The first failure of a rank that was told, or ``None``."""
        for path in sorted(self._folder.glob("failed-*.json")):
            told = json.loads(path.read_text(encoding="utf-8"))
            return RankFailed(told["rank"], told["code"], told["words"])
        return None


def lead(spec: JobSpec) -> int:
    """Start a rank for each card of ``spec`` and wait; the code rank 0 ended with.

    Raises :class:`Stopped` where torchrun is not installed. Signals are passed on to torchrun, which
    passes them on to the ranks and gives them 30 s.
    """
    if importlib.util.find_spec("torch") is None:
        words = f"a job of {spec.cards} cards is started by torchrun, and torch is not installed"
        raise Stopped(exits.REFUSED, words)
    folder = Path(tempfile.mkdtemp(prefix="tenure-gang-"))
    command = [
        sys.executable, "-m", __name__, str(os.getpid()), "--standalone", "--nnodes=1",
        f"--nproc-per-node={spec.cards}", "--max-restarts=0", "-m", "tenure_worker", *sys.argv[1:],
    ]  # fmt: skip
    try:
        process = subprocess.Popen(command, env={**os.environ, VARIABLE: str(folder)})

        def pass_on(number: int, _: FrameType | None) -> None:
            process.send_signal(number)

        before = {n: signal.signal(n, pass_on) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        told = Gang(folder, 0).heard(_EXIT)
        if isinstance(told, int):
            return told
        print(f"tenure: rank 0 ended without a word; torchrun ended with {code}", file=sys.stderr)
        return code or exits.CODE_ERROR
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent(number: signal.Signals) -> None:
    """Ask for a signal once our parent is gone; on Linux alone."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def note_exit(code: int) -> int:
    """Rank 0's last word, for the worker that leads."""
    gang = Gang.of_environment()
    if gang and gang.rank == 0:
        gang.share(_EXIT, code)
    return code


class Follower:
    """A rank that holds nothing: the methods of a tenure as far as ``train()`` calls them."""

    def __init__(self, spec: JobSpec, gang: Gang) -> None:
        self.spec = spec
        self.step_number = 0
        self.saved_step = 0
        self.stopping = False  # rank 0 knows, and ends the others
        self._gang = gang
        self.attempt = int(str(gang.wait_for("claimed")["attempt"]))
        self.folder = gang.own_folder()

    def step(self) -> None:
        """Count a step."""
        self.step_number += 1

    @property
    def milestone_due(self) -> bool:
        """As in rank 0, unless that was asked to stop."""
        due = self.step_number % self.spec.milestone_every == 0
        return due and self.step_number != self.saved_step

    def milestone(self, save: Callable[[Path], object]) -> None:
        """Rank 0 saves; here the step is noted."""
        self.saved_step = self.step_number

    def resume(self, load: Callable[[Path], S]) -> S | None:
        """Load what rank 0 resumes from."""
        told = self._gang.wait_for("resume")
        if told["folder"] is None:
            return None
        state = load(Path(str(told["folder"])))
        self.step_number = self.saved_step = int(str(told["step"]))
        return state

    def announce(self, reason: str, seconds: float) -> None:
        """Rank 0 announces."""

    def metric(self, **values: float | int | str | bool | None) -> None:
        """Rank 0 records."""

    def log(self, text: str) -> None:
        """What a rank prints is in the output of its machine; the job's log is rank 0's."""
        print(text)

    def finish(self, result: Mapping[str, object]) -> None:
        """Rank 0 finishes."""


def follow(spec: JobSpec, gang: Gang, train: Callable[[Follower], object]) -> int:
    """Run ``train`` beside rank 0; the exit code of this rank.

    SIGTERM ends a rank once rank 0 has ended, and not before: its last milestone may need all of them.
    SIGINT is for rank 0 alone. What the experiment forks obeys both.
    """
    owner = os.getpid()

    def asked(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child of the experiment, such as a loader's worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGTERM:
            SYSTEM.spawn(end, "tenure-rank-end")

    def end() -> None:
        while gang.heard(_EXIT) is None:
            SYSTEM.sleep(_LOOK_EVERY_S)
        os._exit(exits.RELEASED)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    follower = Follower(spec, gang)
    try:
        train(follower)
        return exits.FINISHED
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        gang.fail(error)
        return exits.CODE_ERROR


def _torchrun() -> None:
    """torchrun, which is told to end once the worker is gone whose id is the first argument."""
    worker = int(sys.argv.pop(1))
    _die_with_parent(signal.SIGTERM)
    if os.getppid() == worker:  # or it was gone before we asked
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _torchrun()
