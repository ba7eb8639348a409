"""The only place that knows the real time, sleeps, starts threads or draws entropy.

Everything else takes a :class:`Clock`. The simulator passes its own, which runs threads one at a
time and hands the baton over at every call below, so that the order of events is the seed's.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

T = TypeVar("T")


class Mailbox(Protocol[T]):
    """A bounded queue between two threads."""

    def put(self, item: T) -> None:
        """Add an item, waiting while the box is full."""

    def offer(self, item: T) -> bool:
        """Add an item if there is room; say whether it was taken."""

    def get(self, timeout_s: float | None = None) -> T | None:
        """Take the oldest item; ``None`` when nothing came within ``timeout_s`` seconds."""


class Task(Protocol):
    """A thread that was started by :meth:`Clock.spawn`."""

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread ends, at most ``timeout_s`` seconds."""

    def alive(self) -> bool:
        """Whether the thread still runs."""


class Clock(Protocol):
    """Time, waiting, threads and entropy."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall_s(self) -> float:
        """Seconds since the Unix epoch by this machine; may jump. For people and jump detection."""

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""

    def nonce(self) -> str:
        """Sixteen lowercase hexadecimal digits nobody has drawn before."""

    def mailbox(self, size: int) -> Mailbox[T]:
        """A new bounded queue for ``size`` items."""

    def spawn(self, target: Callable[[], None], name: str) -> Task:
        """Start ``target`` in a daemon thread."""


class _SystemMailbox(Generic[T]):
    def __init__(self, size: int) -> None:
        self._queue: queue.Queue[T] = queue.Queue(size)

    def put(self, item: T) -> None:
        self._queue.put(item)

    def offer(self, item: T) -> bool:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def get(self, timeout_s: float | None = None) -> T | None:
        try:
            if timeout_s is not None and timeout_s <= 0:
                return self._queue.get_nowait()
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None


class _SystemTask:
    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def alive(self) -> bool:
        return self._thread.is_alive()


class SystemClock:
    """The real clock."""

    #: bound directly, because the loop's side of a worker calls it at every step
    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

    def nonce(self) -> str:
        return secrets.token_hex(8)

    def mailbox(self, size: int) -> Mailbox[T]:
        return _SystemMailbox(size)

    def spawn(self, target: Callable[[], None], name: str) -> Task:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return _SystemTask(thread)


SYSTEM: Clock = SystemClock()


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How a call ended that was made beside its caller."""

    value: T | None = None
    error: BaseException | None = None

    def result(self) -> T:
        """What it returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


def beside(clock: Clock, call: Callable[[], T], name: str) -> Mailbox[Ended[T]]:
    """Run a call in a thread of its own; the box will hold how it ended.

    For calls that may hang: who waits may give up, or do something else meanwhile. A library that
    exits the process ends its call alone.
    """
    box: Mailbox[Ended[T]] = clock.mailbox(1)

    def run() -> None:
        try:
            box.put(Ended(call()))
        except BaseException as error:
            box.put(Ended(error=error))

    clock.spawn(run, name)
    return box
