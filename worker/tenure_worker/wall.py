"""The known end of a machine, or of its credentials: a last milestone is asked for in time.

Whoever starts a worker and knows when it will be ended says so in ``$TENURE_WALL_AT_S``, by this
machine's monotonic clock, which all its processes share. A worker that is only told by SIGTERM has as
long as the platform gives it; one that knows the wall takes as long as its own saves take.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Protocol

from tenure_protocol.clock import Clock, Task
from tenure_worker.tenure import STOP_GRACE_S

VARIABLE = "TENURE_WALL_AT_S"
LOOK_EVERY_S = 1.0  # at how long saves and uploads take
_SAVES = 4.0  # a save may take so many times as long as the last one
_STEPS = 2.0  # the loop comes to a boundary when its step is over
_MOST_OF_SESSION = 0.25  # what is given up for the last milestone, whatever saves take


class Guarded(Protocol):
    """The side of a tenure that the wall speaks to, from a thread of its own."""

    save_s: float | None  # how long the last save took
    in_transit: bool  # whether a snapshot is being uploaded

    @property
    def median_step_s(self) -> float:
        """How long a step takes."""

    def request_stop(self, reason: str, within_s: float) -> None:
        """Ask for one last milestone; safe in any thread."""


def ahead_s(session_s: float, save_s: float | None, upload_s: float, step_s: float) -> float:
    """How long before the wall a last milestone is asked for.

    A session that is short beside its saves is worked in for three quarters: else no step would ever
    be made there.

    >>> ahead_s(43_000.0, None, 0.0, 0.5)
    21.0
    >>> ahead_s(43_000.0, 30.0, 200.0, 0.5)
    321.0
    >>> ahead_s(43_000.0, 3600.0, 7200.0, 0.5)
    10750.0
    """
    takes_s = _SAVES * (save_s or 0.0) + upload_s
    return min(max(STOP_GRACE_S, takes_s) + _STEPS * step_s, _MOST_OF_SESSION * max(session_s, 0.0))


class Wall:
    """The wall of this process, and how long what must be done before it takes."""

    def __init__(self, at_s: float, clock: Clock) -> None:
        self._at_s = at_s
        self._clock = clock
        self._sent_s: float | None = None  # since when a snapshot is on its way
        self._upload_s = 0.0  # how long the last one was

    @classmethod
    def of(cls, environ: Mapping[str, str], clock: Clock) -> Wall:
        """The wall that the environment tells of. Raises ``ValueError`` in one sentence."""
        text = environ.get(VARIABLE)
        try:
            at_s = float(text) if text else inf
            if text and not isfinite(at_s):
                raise ValueError
        except ValueError:
            words = f"${VARIABLE} is {str(text)[:40]!r}; it must be seconds of the monotonic clock"
            raise ValueError(words) from None
        return cls(at_s, clock)

    def guards(self, tenure: Guarded) -> Task | None:
        """From here on ``tenure`` is asked to stop in time; ``None`` where no end is known."""
        if self._at_s == inf:
            return None
        session_s = self._at_s - self._clock.monotonic_s()
        return self._clock.spawn(lambda: self._run(tenure, session_s), "tenure-wall")

    def _run(self, tenure: Guarded, session_s: float) -> None:
        while (rest_s := self._rest_s(tenure, session_s)) > 0:
            self._clock.sleep(min(rest_s, LOOK_EVERY_S))
        left_s = max(0.0, self._at_s - self._clock.monotonic_s())
        tenure.request_stop(f"the known end of its machine is {left_s:.0f} s away", left_s)

    def _rest_s(self, tenure: Guarded, session_s: float) -> float:
        """How long the loop may still go on."""
        now_s = self._clock.monotonic_s()
        upload_s = self._upload(tenure, now_s)
        early_s = ahead_s(session_s, tenure.save_s, upload_s, tenure.median_step_s)
        return self._at_s - now_s - early_s

    def _upload(self, tenure: Guarded, now_s: float) -> float:
        """How long an upload takes: the last one, or the one under way where that is longer."""
        if tenure.in_transit:
            self._sent_s = now_s if self._sent_s is None else self._sent_s
            return max(self._upload_s, now_s - self._sent_s)
        if self._sent_s is not None:
            self._upload_s, self._sent_s = now_s - self._sent_s, None
        return self._upload_s
