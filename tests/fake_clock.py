"""Virtual time over real threads that run one at a time.

The baton passes at every sleep, full or empty mailbox and join, always to the thread that has waited
longest; time moves only when every thread waits, to the earliest moment that one waits for. So a run
is the same each time, and an hour costs nothing.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
HORIZON_S = 300_000.0  # no test lasts so long


class _Closed(BaseException):
    """Ends the threads of a clock that is closed."""


@dataclass
class _Waiter:
    until_s: float
    ready: Callable[[], bool]
    baton: threading.Event = field(default_factory=threading.Event)


class FakeClock:
    """A Clock. The thread that makes it holds the baton; close it at the end of a test."""

    def __init__(self, wall_s: float = 1_800_000_000.0) -> None:
        self.now_s = 1000.0
        self.wall_skew_s = wall_s - self.now_s  # add to it to make the wall clock jump
        self.errors: list[BaseException] = []
        self._waiting: list[_Waiter] = []
        self._nonces = 0
        self._closed = False

    def __enter__(self) -> FakeClock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every thread that still waits, and raise what one of them died of."""
        self._closed = True
        for waiter in self._waiting:
            waiter.baton.set()
        if self.errors:
            raise self.errors[0]

    # ----------------------------------------------------------------------------- Clock

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s + self.wall_skew_s

    def sleep(self, seconds: float) -> None:
        self._wait(self.now_s + seconds, lambda: False)

    def nonce(self) -> str:
        self._nonces += 1
        return f"{self._nonces:016x}"

    def mailbox(self, size: int) -> _Mailbox[T]:
        return _Mailbox(self, size)

    def spawn(self, target: Callable[[], None], name: str) -> _Task:
        start = _Waiter(self.now_s, lambda: True)
        task = _Task(self)

        def run() -> None:
            start.baton.wait()
            try:
                if not self._closed:
                    target()
            except _Closed:
                pass
            except BaseException as error:
                self.errors.append(error)
            task.done = True
            if not self._closed:
                self._pass_on()

        self._waiting.append(start)
        threading.Thread(target=run, name=name, daemon=True).start()
        return task

    # ---------------------------------------------------------------------------- inside

    def _wait(self, until_s: float, ready: Callable[[], bool]) -> None:
        if self._closed:
            raise _Closed
        me = _Waiter(until_s, ready)
        self._waiting.append(me)
        self._pass_on()
        me.baton.wait()
        if self._closed:
            raise _Closed

    def _pass_on(self) -> None:
        for waiter in self._waiting:
            if waiter.until_s <= self.now_s or waiter.ready():
                break
        else:
            waiter = min(self._waiting, key=lambda w: w.until_s)
            if waiter.until_s > HORIZON_S:
                self._give_up(waiter.until_s)
                return
            self.now_s = waiter.until_s
        self._waiting.remove(waiter)
        waiter.baton.set()

    def _give_up(self, until_s: float) -> None:
        """Fail every thread: nothing else would ever end this test."""
        endless = until_s < math.inf
        why = "a thread waits without end" if endless else "every thread waits for another one"
        self.errors.insert(0, AssertionError(why))
        self._closed = True
        for waiter in self._waiting:
            waiter.baton.set()


class _Mailbox(deque[T]):
    def __init__(self, clock: FakeClock, size: int) -> None:
        super().__init__()
        self._clock = clock
        self._size = size

    def put(self, item: T) -> None:
        while not self.offer(item):
            self._clock._wait(math.inf, lambda: len(self) < self._size)

    def offer(self, item: T) -> bool:
        if len(self) >= self._size:
            return False
        self.append(item)
        return True

    def get(self, timeout_s: float | None = None) -> T | None:
        if not self and (timeout_s is None or timeout_s > 0):
            until_s = math.inf if timeout_s is None else self._clock.now_s + timeout_s
            self._clock._wait(until_s, lambda: bool(self))
        return self.popleft() if self else None


class _Task:
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.done = False

    def join(self, timeout_s: float | None = None) -> None:
        if not self.done:
            until_s = math.inf if timeout_s is None else self._clock.now_s + timeout_s
            self._clock._wait(until_s, lambda: self.done)

    def alive(self) -> bool:
        return not self.done
