"""Ctrl-C and SIGTERM end the chain wherever they fall, and are never lost."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable

import pytest

from pipelines.interrupts import Interrupted, Look, interruptible
from tenure_protocol.clock import SYSTEM

BOTH = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
LOOKS = 200


class Dropped:
    """Something that can be referred to weakly."""


def within_a_weakref(number: signal.Signals) -> None:
    """Send a signal in a callback that swallows whatever is raised in it."""

    def collected(_: weakref.ref[Dropped]) -> None:
        send(number)

    held = [Dropped()]
    reference = weakref.ref(held[0], collected)
    held.clear()
    assert reference() is None


class _Finalized:
    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        send(self.number)


def within_a_finalizer(number: signal.Signals) -> None:
    """Send a signal in a ``__del__``, which swallows whatever is raised in it."""
    _Finalized(number)


def send(number: signal.Signals) -> None:
    """A signal to this process, and time for its handler to run before this returns."""
    os.kill(os.getpid(), number)
    SYSTEM.sleep(0.05)


@pytest.mark.parametrize("swallowing", [within_a_weakref, within_a_finalizer])
@pytest.mark.parametrize(("number", "code"), BOTH)
def test_a_signal_that_falls_into_a_callback_still_ends_the_work(
    number: signal.Signals, code: int, swallowing: Callable[[signal.Signals], None]
) -> None:
    looks = []

    def work(look: Look) -> str:
        swallowing(number)
        for _ in range(LOOKS):
            looks.append(look)
            look()
            SYSTEM.sleep(0.01)
        return "it went on to its end"

    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name) as end:
        interruptible(work)
    assert end.value.exit_code == code and len(looks) < LOOKS
    assert signal.getsignal(number) is before


def test_the_second_signal_leaves_work_behind_that_never_looks() -> None:
    release, told = threading.Event(), []

    def at_first() -> None:
        told.append("ending")
        os.kill(os.getpid(), signal.SIGINT)

    def work(_: Look) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        release.wait()

    try:
        with pytest.raises(Interrupted):
            interruptible(work, at_first)
        assert told == ["ending"]
    finally:
        release.set()


def test_a_signal_in_the_last_moment_is_not_lost() -> None:
    with pytest.raises(Interrupted):
        interruptible(lambda _: send(signal.SIGINT))


def test_without_a_signal_what_the_work_returns_or_raises_comes_out() -> None:
    assert interruptible(lambda _: "result") == "result"

    def fails(_: Look) -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        interruptible(fails)
