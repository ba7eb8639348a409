"""The machines that the emulated platforms rent out: real processes of this machine, in sessions of their own.

An emulation: a machine is a folder and a process group. Its ``python3`` is this suite's own interpreter with all
that is installed there, but torch unless ``Machines.torch`` is set; its ``nvidia-smi`` is a script that names the
card it pretends to have, and nothing else of a card is there. Not verified against any service: what a real image brings along.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.without_torch import without_torch

_STOP_GRACE_S = 5.0


@dataclass(eq=False)
class Machine:
    """One rented machine."""

    id: str
    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None  # when its main process ended or was ended

    @property
    def alive(self) -> bool:
        """Whether its main process still runs."""
        if self.process.poll() is None:
            return True
        if self.ended_s is None:
            self.ended_s = time.monotonic()
        return False

    @property
    def exit_code(self) -> int | None:
        """Exit code of its main process, negative for a signal; ``None`` while it runs."""
        return self.process.poll()

    @property
    def billed_s(self) -> float:
        """Seconds it has been rented for."""
        return (time.monotonic() if self.alive else self.ended_s or self.began_s) - self.began_s

    def output(self) -> str:
        """What it printed."""
        return (self.folder / "output.txt").read_text(errors="replace")


class Machines:
    """A rack of them below one folder; ``close`` ends whatever still runs."""

    def __init__(self, folder: Path, card: str = "cpu", cards: int = 1) -> None:
        self._folder = folder
        self.card, self.cards = card, cards
        self.torch = False
        self.all: list[Machine] = []
        self._lock = threading.Lock()

    def start(
        self, ident: str, name: str, argv: Sequence[str], environ: Mapping[str, str]
    ) -> Machine:
        """A new machine that runs ``argv`` with nothing but ``environ`` around it."""
        with self._lock:
            folder = self._folder / f"machine-{len(self.all):04d}"
            (folder / "bin").mkdir(parents=True)
            (folder / "tmp").mkdir()
            self._tool(folder, "python3", f'exec {shlex.quote(sys.executable)} "$@"')
            if self.card != "cpu":
                lines = " ".join(shlex.quote(self.card) for _ in range(self.cards))
                self._tool(folder, "nvidia-smi", f"printf '%s\\n' {lines}")
            around = {
                "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
                "HOME": str(folder),
                "TMPDIR": str(folder / "tmp"),
                "LANG": "C.UTF-8",
                **({} if self.torch else {"PYTHONPATH": str(without_torch(folder))}),
                **environ,
            }
            with (folder / "output.txt").open("wb") as output:
                process = subprocess.Popen(
                    list(argv),
                    cwd=folder,
                    env=around,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            machine = Machine(ident, name, process, folder)
            self.all.append(machine)
            return machine

    @staticmethod
    def _tool(folder: Path, name: str, line: str) -> None:
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def end(self, machine: Machine, grace_s: float = _STOP_GRACE_S) -> None:
        """SIGTERM to its main process and that one's group, SIGKILL to all of it after ``grace_s``; returns at once, as platforms do."""
        self._signal(machine, signal.SIGTERM)

        def kill() -> None:
            with suppress(subprocess.TimeoutExpired):
                machine.process.wait(grace_s)
            self._all(machine, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()

    def vanish(self, machine: Machine) -> None:
        """The machine is gone from one moment to the next: SIGKILL to all of it."""
        self._all(machine, signal.SIGKILL)
        machine.process.wait()

    def freeze(self, machine: Machine) -> None:
        """SIGSTOP to all of it."""
        self._all(machine, signal.SIGSTOP)

    @property
    def running(self) -> list[Machine]:
        """Those whose main process still runs."""
        return [machine for machine in self.all if machine.alive]

    def all_end(self, for_s: float = 60.0) -> bool:
        """Whether all have ended, within the seconds that a platform gives them after SIGTERM."""
        end_s = time.monotonic() + for_s
        while self.running and time.monotonic() < end_s:
            time.sleep(0.05)
        return not self.running

    def close(self) -> None:
        """End everything."""
        self._signal_all(self.all, signal.SIGKILL)
        for machine in self.all:
            machine.process.wait()

    def _all(self, machine: Machine, number: int) -> None:
        self._signal_all([machine], number)

    @staticmethod
    def _signal_all(machines: Sequence[Machine], number: int) -> None:
        """Signal what runs on machines, in whatever session: its home is the machine's folder."""
        homes = {str(machine.folder) for machine in machines}
        for _ in range(2):  # what was just being started is there the second time
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if process.environ().get("HOME") in homes:
                        process.send_signal(number)

    @staticmethod
    def _signal(machine: Machine, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(machine.process.pid, number)
