"""What any job may write: its log, its events, its output and its disk.

A job that prints for ever, or fills the disk, is somebody's mistake and must not become everybody's.
The journal counts log and events itself; a thread of the worker looks at the rest, since a job that
prints in an endless loop never comes to a step boundary.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tenure_protocol.clock import Clock, Task

LOOK_EVERY_S = 0.5  # at the size of the output
MEASURE_EVERY_S = 2.0  # the disk, whose every file is looked at
GRACE_S = 30.0  # for a step boundary to come, once the disk is over its cap
_IDLE_SHARE = 10  # a measurement that takes long is followed by a pause so many times as long
_MIB = 1 << 20


@dataclass(frozen=True)
class Caps:
    """How many bytes each attempt of a job may write."""

    log: int = 64 * _MIB
    events: int = 64 * _MIB
    output: int = 64 * _MIB  # of a worker whose standard output is a file
    disk: int | None = None  # of the worker's temporary folder; None: nobody measures

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Caps:
        """The caps that variables of the environment set. Raises ``ValueError`` in one sentence.

        >>> Caps.of({"TENURE_LOG_BYTES": "1000"}).log
        1000
        """
        found: dict[str, int] = {}
        for variable, field in VARIABLES.items():
            text = environ.get(variable)
            if not text:
                continue
            if not text.isascii() or not text.isdecimal() or int(text) < 1:
                raise ValueError(f"${variable} is {text[:40]!r}; it must be a number of bytes")
            found[field] = int(text)
        return cls(**found)


VARIABLES: Mapping[str, str] = {
    "TENURE_LOG_BYTES": "log",
    "TENURE_EVENT_BYTES": "events",
    "TENURE_OUTPUT_BYTES": "output",
    "TENURE_DISK_BYTES": "disk",
}


def size(count: int) -> str:
    """Bytes in words, binary.

    >>> size(64 << 20), size(1000)
    ('64 MiB', '1000 bytes')
    """
    return f"{count // _MIB} MiB" if count and not count % _MIB else f"{count} bytes"


def gigabytes(count: float) -> str:
    """Bytes of a disk in words, decimal.

    >>> gigabytes(51_234_000_000), gigabytes(50e9), gigabytes(2_500_000)
    ('51.2 GB', '50 GB', '2.5 MB')
    """
    scale, unit = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{count / scale:.1f}".removesuffix(".0") + f" {unit}"


def overspent(used: int, most: int) -> str:
    """Why a job that wrote too much to its disk ends, in one sentence."""
    return f"the job wrote {gigabytes(used)} to its disk, at most {gigabytes(most)} are allowed"


def disk_use(folder: str) -> int:
    """Bytes that the files below ``folder`` take on its disk; links are not followed.

    A file of two names counts once. What vanishes while this looks, or may not be read, is left out.
    """
    total, seen, folders = 0, set[tuple[int, int]](), [folder]
    while folders:
        try:
            rows = os.scandir(folders.pop())
        except OSError:
            continue
        with rows:
            for row in rows:
                try:
                    found = row.stat(follow_symlinks=False)
                except OSError:
                    continue
                if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    folders.append(row.path)
    return total


class Spender(Protocol):
    """The side of a tenure that the watch speaks to, from a thread of its own."""

    def overspent(self, words: str) -> None:
        """End the job at the next step boundary."""

    def end_without_boundary(self, words: str) -> None:
        """End the job and this process now: no boundary came."""


class Watch:
    """The thread that looks at what a worker writes."""

    def __init__(self, caps: Caps, clock: Clock, folder: str | None = None) -> None:
        self._caps = caps
        self._clock = clock
        self._folder = folder or tempfile.gettempdir()
        self._files = _outputs((1, 2))
        self._spender: Spender | None = None
        self._measure_s = 0.0
        self._told_s: float | None = None  # when the job was told that it is over
        self._words = ""

    def start(self) -> Task:
        """Look until the process ends."""
        return self._clock.spawn(self._run, "tenure-caps")

    def holds(self, spender: Spender) -> None:
        """From here on this process holds a tenure, and its disk is measured."""
        self._spender = spender

    def look(self) -> None:
        """Look once."""
        for file in self._files:
            file.look(self._caps.output)
        if self._spender is not None and self._caps.disk is not None:
            self._look_at_disk(self._spender, self._caps.disk)

    def _run(self) -> None:
        while True:
            self._clock.sleep(LOOK_EVERY_S)
            self.look()

    def _look_at_disk(self, spender: Spender, most: int) -> None:
        now_s = self._clock.monotonic_s()
        if self._told_s is not None:
            if now_s - self._told_s >= GRACE_S:
                spender.end_without_boundary(self._words)
            return
        if now_s < self._measure_s:
            return
        used = disk_use(self._folder)
        done_s = self._clock.monotonic_s()
        self._measure_s = done_s + max(MEASURE_EVERY_S, _IDLE_SHARE * (done_s - now_s))
        if used > most:
            self._words = overspent(used, most)
            self._told_s = done_s
            spender.overspent(self._words)


class _Output:
    """A regular file that standard output or error of this process goes to."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = tuple(numbers)
        self._file = os.dup(self._numbers[0])  # ours, after those are turned away; not inherited
        # Else its writers go on at offsets of their own, beyond whatever it is cut to.
        self._appends = bool(fcntl.fcntl(self._file, fcntl.F_GETFL) & os.O_APPEND)
        self._allowed: int | None = None  # once it is cut

    def look(self, most: int) -> None:
        """Cut the file if it is above ``most`` bytes, and again whenever it has grown since.

        It grows on by what the job started: their output is turned away by nobody but themselves.
        """
        if os.fstat(self._file).st_size <= (most if self._allowed is None else self._allowed):
            return
        try:
            if self._allowed is None:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for number in self._numbers:
                    os.dup2(nowhere, number)  # what C code prints goes there as well
                os.close(nowhere)
            elif not self._appends:
                return
            words = f"\ntenure: the output is cut at {size(most)}; what is printed from here on "
            said = f"{words}is not kept\n".encode()
            self._allowed = most + len(said)
            if self._appends:
                os.ftruncate(self._file, most)
            os.write(self._file, said)
        except OSError:
            return  # a full disk: it is looked at again


def _outputs(numbers: Iterable[int]) -> list[_Output]:
    """The regular files behind descriptors of this process, each once."""
    found: dict[tuple[int, int], list[int]] = {}
    for number in numbers:
        try:
            behind = os.fstat(number)
        except OSError:
            continue  # closed
        if stat.S_ISREG(behind.st_mode):
            found.setdefault((behind.st_dev, behind.st_ino), []).append(number)
    return [_Output(numbers) for numbers in found.values()]
