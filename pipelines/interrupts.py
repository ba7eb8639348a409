"""Ctrl-C and SIGTERM: noted by the handler, and raised only where our own code looks.

An exception that a handler raises is lost when it falls into a finalizer or a weakref's callback, whose
exceptions Python prints and ignores: SQLAlchemy has such callbacks, and Dagster calls it all the time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from tenure_protocol.clock import SYSTEM, Clock

T = TypeVar("T")

Look = Callable[[], None]  # raises Interrupted when a signal was noted
_POLL_S = 0.1
_SHELLS_BASE = 128  # what shells add to the number of the signal that ended a command


class Interrupted(KeyboardInterrupt):
    """A signal that was noted asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = _SHELLS_BASE + number  # 130 of SIGINT, 143 of SIGTERM


@contextmanager
def noting_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted instead of ending this process in the middle of things."""
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interruptible(
    work: Callable[[Look], T], at_first: Callable[[], None] | None = None, clock: Clock = SYSTEM
) -> T:
    """What ``work`` returns or raises; Interrupted when a signal came before its end.

    It runs in a thread of its own: Dagster sets handlers that raise in the main thread only. After the
    first signal, told by ``at_first``, the work ends where it looks; the second one leaves it behind.
    """
    done: list[T] = []
    failed: list[BaseException] = []
    with noting_signals() as noted:

        def look() -> None:
            if noted:
                raise Interrupted(noted[0])

        def run() -> None:
            try:
                done.append(work(look))
            except BaseException as error:
                failed.append(error)

        thread = clock.spawn(run, "tenure-chain")
        told = False
        while thread.alive() and len(noted) < 2:
            thread.join(_POLL_S)
            if noted and not told and at_first and thread.alive():
                told = True
                at_first()
        look()
    if failed:
        raise failed[0]
    return done[0]
