"""Virtual time over real threads that run one at a time: the order of events is the seed's alone.

The baton passes at every store call, sleep, queue call and join. A thread that would pass it to
itself goes on without a switch, so an hour of virtual time costs what happens in it. A *process* is
what is killed, stopped, suspended and cut off together: a worker with its carrier and courier, a
dispatcher, a person at a keyboard.
"""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Generic, TypeVar

from tenure_protocol.clock import Mailbox, Task

T = TypeVar("T")
EPOCH_S = 1_800_000_000.0


class Killed(BaseException):
    """Unwinds the threads of a process that was killed."""


class Process:
    """What lives and dies together, with its own clocks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped_until_s = 0.0  # no thread of it runs before
        self.asleep_s = 0.0  # how long its machine was suspended: its monotonic clock stood still
        self.wall_offset_s = 0.0  # how far its wall clock was set off
        self.fibers: list[Fiber] = []
        self.cut_until_s = 0.0  # its own path to the store is down before
        self.crash_in = 0  # it dies at so many store calls from now; 0: it does not
        self.troubled_s = 0.0  # when it last went without an answer, or was frozen
        self.harmed_s = 0.0  # the same, where nobody else was hit
        self.confirmed: dict[str, float] = {}  # key: when it was told that a write is stored
        self.silent: dict[str, float] = {}  # kind of key: when a call first failed, until an answer
        self.sent: dict[str, float] = {}  # kind of key: when the latest call that failed was sent
        self.was_silent: dict[str, tuple[float, float]] = {}  # kind: how long, and when it ended

    def confirm(self, key: str, now_s: float) -> None:
        """It was told that a write is stored."""
        self.confirmed[key] = now_s

    def unanswered(self, key: str, sent_s: float, now_s: float) -> None:
        """A call has failed."""
        kind = key.partition("/")[0]
        self.troubled_s = now_s
        self.silent.setdefault(kind, now_s)
        self.sent[kind] = sent_s

    def answered(self, key: str, now_s: float) -> None:
        """A call has not failed."""
        kind = key.partition("/")[0]
        since_s = self.silent.pop(kind, None)
        if since_s is not None:
            self.was_silent[kind] = (self.sent[kind] - since_s, now_s)

    def harm(self, until_s: float) -> None:
        """Something hits this process alone, until a moment."""
        self.harmed_s = max(self.harmed_s, until_s)


class Fiber:
    """One thread of a process."""

    def __init__(self, process: Process, target: Callable[[], None], thread: _Thread) -> None:
        self.process = process
        self.target = target
        self.thread = thread
        self.token = 0  # a wake-up of an earlier wait carries an older one and is void
        self.done = False
        self.joiners: list[Fiber] = []


class _Thread:
    """An operating system's thread, used again for one fiber after the other."""

    def __init__(self) -> None:
        self.baton: LockType = allocate_lock()
        self.baton.acquire()
        self.work: Callable[[], None] | None = None

    def loop(self) -> None:
        while True:
            self.baton.acquire()
            work = self.work
            assert work is not None
            work()


_IDLE: list[_Thread] = []


def _thread() -> _Thread:
    if _IDLE:
        return _IDLE.pop()
    made = _Thread()
    threading.Thread(target=made.loop, name="sim", daemon=True).start()
    return made


_Event = tuple[float, float, int, Fiber | None, int, Callable[[], None] | None]


class Scheduler:
    """Runs the threads of one history. The thread that makes it holds the baton."""

    def __init__(self, rng: Random) -> None:
        self.now_s = 0.0
        self.over = False  # set it to end the history at the next event
        self.error: BaseException | None = None  # a bug of the simulator itself
        self.processes: list[Process] = []
        self.failed: Callable[[Process, BaseException], None] = self._broke
        self._random = rng.random
        self._rng = rng
        self._heap: list[_Event] = []
        self._count = 0
        self._closing = False
        self._limit_s = 0.0
        main = _Thread()
        self._main = Fiber(Process("main"), self._nothing, main)
        self._running = self._main

    @staticmethod
    def _nothing() -> None:
        return

    def _broke(self, process: Process, error: BaseException) -> None:
        self.error, self.over = error, True

    # ------------------------------------------------------------------------- for the world

    def process(self, name: str) -> Process:
        """A new process."""
        made = Process(name)
        self.processes.append(made)
        return made

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do ``action`` at a moment, outside every process. It must not wait."""
        self._count += 1
        heappush(self._heap, (at_s, self._random(), self._count, None, 0, action))

    def spawn(self, process: Process, target: Callable[[], None], delay_s: float = 0.0) -> Fiber:
        """Start a thread of a process."""
        fiber = Fiber(process, target, _thread())
        fiber.thread.work = lambda: self._live(fiber)
        process.fibers.append(fiber)
        self.wake(fiber, self.now_s + delay_s)
        return fiber

    def run(self, limit_s: float) -> bool:
        """Let everything happen until ``over``; false when time ran out or nothing is left."""
        self._limit_s = limit_s
        self._switch(self._main)
        if self.error is not None:
            raise self.error
        return self.over

    def kill(self, process: Process) -> None:
        """End a process between two calls: it neither releases nor closes anything."""
        process.dead = True
        for fiber in process.fibers:
            if not fiber.done and fiber is not self._running:
                self.wake(fiber, self.now_s)

    def stop(self, process: Process, seconds: float, suspend: bool) -> None:
        """Freeze a process (SIGSTOP), or suspend its machine, whose monotonic clock then stands."""
        process.stopped_until_s = max(process.stopped_until_s, self.now_s + seconds)
        if suspend:
            process.asleep_s += seconds

    def close(self) -> None:
        """Unwind every thread that is left."""
        self._closing = True
        self._heap.clear()
        for process in self.processes:
            self.kill(process)
        self._switch(self._main)

    # ----------------------------------------------------------------------------- for clocks

    @property
    def running(self) -> Fiber:
        """The thread that holds the baton."""
        return self._running

    def wake(self, fiber: Fiber, at_s: float) -> None:
        """End the wait of a thread at a moment, if it has not ended before."""
        self._count += 1
        heappush(self._heap, (at_s, self._random(), self._count, fiber, fiber.token, None))

    def wait(self, until_s: float | None) -> None:
        """Hand the baton on until ``until_s``, or until somebody wakes this thread."""
        me = self._running
        if me.process.dead:
            raise Killed
        if until_s is not None:
            self.wake(me, until_s)
        self._switch(me)
        if me.process.dead:
            raise Killed

    def breathe(self) -> None:
        """Hand the baton to whoever is ready now, in the seed's order."""
        if self._running.process.dead:
            raise Killed
        if self._heap and self._heap[0][0] <= self.now_s:
            self.wait(self.now_s)

    # --------------------------------------------------------------------------------- inside

    def _switch(self, me: Fiber) -> None:
        chosen = self._next()
        if chosen is me:
            return
        self._running = chosen
        chosen.thread.baton.release()
        me.thread.baton.acquire()

    def _next(self) -> Fiber:
        """The thread whose turn it is; what happens outside every process happens on the way."""
        heap = self._heap
        while heap and not (self.over and not self._closing):
            at_s, tie, count, fiber, token, action = heappop(heap)
            if fiber is None:
                assert action is not None
                if self._closing:
                    continue
                self.now_s = at_s
                try:
                    action()
                except BaseException as error:
                    self.error, self.over = error, True
                continue
            if token != fiber.token or fiber.done:
                continue
            process = fiber.process
            if at_s < process.stopped_until_s and not process.dead:
                heappush(heap, (process.stopped_until_s, tie, count, fiber, token, None))
                continue
            if at_s > self._limit_s and not self._closing:
                break
            self.now_s = max(at_s, self.now_s)
            fiber.token += 1
            return fiber
        return self._main

    def _live(self, fiber: Fiber) -> None:
        """What a pooled thread does for one fiber, ending with the baton handed on."""
        try:
            if not fiber.process.dead:
                fiber.target()
        except Killed:
            pass
        except BaseException as error:
            if not fiber.process.dead:
                self.failed(fiber.process, error)
        fiber.done = True
        fiber.process.fibers.remove(fiber)
        for joiner in fiber.joiners:
            self.wake(joiner, self.now_s)
        _IDLE.append(fiber.thread)
        chosen = self._next()
        self._running = chosen
        chosen.thread.baton.release()


class SimulatedClock:
    """The Clock of one process."""

    def __init__(self, scheduler: Scheduler, process: Process, rng: Random) -> None:
        self._scheduler = scheduler
        self._process = process
        self._rng = rng

    def monotonic_s(self) -> float:
        if self._process.dead:
            raise Killed
        return self._scheduler.now_s - self._process.asleep_s

    def wall_s(self) -> float:
        return EPOCH_S + self._scheduler.now_s + self._process.wall_offset_s

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(self._scheduler.now_s + max(seconds, 0.0))

    def nonce(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    def mailbox(self, size: int) -> Mailbox[T]:
        return _Mailbox(self._scheduler, size)

    def spawn(self, target: Callable[[], None], name: str) -> Task:
        return _Task(self._scheduler, self._scheduler.spawn(self._process, target))


class _Mailbox(Generic[T]):
    def __init__(self, scheduler: Scheduler, size: int) -> None:
        self._scheduler = scheduler
        self._size = size
        self._items: deque[T] = deque()
        self._waiting: list[Fiber] = []

    def put(self, item: T) -> None:
        while not self.offer(item):
            self._wait(None)

    def offer(self, item: T) -> bool:
        self._scheduler.breathe()
        if len(self._items) >= self._size:
            return False
        self._items.append(item)
        self._notify()
        return True

    def get(self, timeout_s: float | None = None) -> T | None:
        self._scheduler.breathe()
        end_s = None if timeout_s is None else self._scheduler.now_s + timeout_s
        while not self._items:
            if end_s is not None and self._scheduler.now_s >= end_s:
                return None
            self._wait(end_s)
        item = self._items.popleft()
        self._notify()
        return item

    def _wait(self, until_s: float | None) -> None:
        self._waiting.append(self._scheduler.running)
        self._scheduler.wait(until_s)

    def _notify(self) -> None:
        for fiber in self._waiting:
            self._scheduler.wake(fiber, self._scheduler.now_s)
        self._waiting.clear()


class SimulatedLock:
    """A re-entrant lock that hands the baton on while another thread has it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Fiber | None = None
        self._depth = 0
        self._waiting: list[Fiber] = []

    def __enter__(self) -> None:
        me = self._scheduler.running
        while self._owner is not None and self._owner is not me:
            self._waiting.append(me)
            self._scheduler.wait(None)
        self._owner = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        for fiber in self._waiting:
            self._scheduler.wake(fiber, self._scheduler.now_s)
        self._waiting.clear()


class _Task:
    def __init__(self, scheduler: Scheduler, fiber: Fiber) -> None:
        self._scheduler = scheduler
        self._fiber = fiber

    def join(self, timeout_s: float | None = None) -> None:
        if not self._fiber.done:
            self._fiber.joiners.append(self._scheduler.running)
            until_s = None if timeout_s is None else self._scheduler.now_s + timeout_s
            self._scheduler.wait(until_s)

    def alive(self) -> bool:
        return not self._fiber.done
