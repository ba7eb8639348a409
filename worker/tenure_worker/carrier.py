"""The carrier: a thread that sends exactly the write the loop authorised, and none of its own."""

from __future__ import annotations

from collections.abc import Callable

from tenure_protocol.clock import Clock, Mailbox
from tenure_protocol.lease.client import Confirmed, Deposed, Lease, Silent
from tenure_protocol.lease.machine import Finish, Hold, Release

Errand = Hold | Release | Finish
Answer = Confirmed | Deposed | Silent


class Carrier:
    """One conditional write in flight at most; the loop sees the answer at its next look."""

    def __init__(self, lease: Lease, clock: Clock, wake: Callable[[], None]) -> None:
        self._lease = lease
        self._errands: Mailbox[Errand | None] = clock.mailbox(2)  # one, and the word to end
        self._answers: Mailbox[tuple[Errand, Answer]] = clock.mailbox(1)
        self._wake = wake
        self.busy = False  # set and cleared by the loop alone
        self.sent_s = 0.0  # when the errand in flight was authorised
        self._now = clock.monotonic_s
        self._task = clock.spawn(self._run, "tenure-carrier")

    def send(self, errand: Errand) -> None:
        """Take one errand. Only the loop calls this, and only while nothing is in flight."""
        assert not self.busy, "one conditional write in flight at most"
        self.busy = True
        self.sent_s = self._now()
        self._errands.put(errand)

    def answer(self, timeout_s: float = 0.0) -> tuple[Errand, Answer] | None:
        """The answer to the errand in flight, if it is there within ``timeout_s``."""
        if not self.busy:
            return None
        got = self._answers.get(timeout_s)
        if got is not None:
            self.busy = False
        return got

    def close(self) -> None:
        """Let the thread end once its errand is done."""
        self._errands.offer(None)

    def _run(self) -> None:
        while True:
            errand = self._errands.get()
            if errand is None:
                return
            try:
                answer: Answer = self._lease.write(errand)
            except Exception as error:  # a bug must not look like a silent store for ever
                answer = Silent(f"the carrier failed: {type(error).__name__}: {error}")
            self._answers.put((errand, answer))
            self._wake()
