"""How long an observer has watched a prefix without a failed call or a gap.

A failed call, a restart or a jump of this machine's clock starts the watch anew; a gap is more than
a third of the lease in question between two good listings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from tenure_protocol.clock import Clock
from tenure_protocol.lease.machine import Watched
from tenure_protocol.store.api import Entry

JUMP_S = 2.0


@dataclass
class _Seen:
    etag: str
    since_s: float


class Watch:
    """One observer's watch of one prefix, kept in memory across its ticks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first_s: float | None = None  # monotonic time of the running watch's first good look
        self._last_s = 0.0
        # Gaps between looks as (length, time of the look after it), in order of time, each longer
        # than all after it: the newest gap above any length is found by bisection.
        self._gaps: list[tuple[float, float]] = []
        self._skew_s = clock.wall_s() - clock.monotonic_s()
        self._seen: dict[str, _Seen] = {}

    def saw(self, rows: Iterable[Entry]) -> None:
        """A listing or a read succeeded: these are all keys of the prefix and their ETags."""
        now_s = self._clock.monotonic_s()
        skew_s = self._clock.wall_s() - now_s
        if abs(skew_s - self._skew_s) > JUMP_S:
            self.broke()
        self._skew_s = skew_s
        self._note_gap(now_s)
        before, fresh = self._seen, {}
        for key, etag, _, _ in rows:
            old = before.get(key)
            fresh[key] = old if old is not None and old.etag == etag else _Seen(etag, now_s)
        self._seen = fresh

    def broke(self) -> None:
        """A call failed: whatever happened before it was not watched."""
        self._first_s = None
        self._gaps.clear()
        self._seen.clear()

    def of(self, key: str, etag: str, lease_s: float) -> Watched:
        """How this watch stands towards one body whose lease lasts ``lease_s``."""
        now_s = self._clock.monotonic_s()
        seen = self._seen.get(key)
        if seen is None or seen.etag != etag:
            return Watched(0.0, 0.0)
        return Watched(self._gapless_s(now_s, lease_s), now_s - seen.since_s)

    def _note_gap(self, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
        else:
            gap_s = now_s - self._last_s
            while self._gaps and self._gaps[-1][0] <= gap_s:
                self._gaps.pop()
            self._gaps.append((gap_s, now_s))
        self._last_s = now_s

    def _gapless_s(self, now_s: float, lease_s: float) -> float:
        """How long no gap was longer than a third of the lease, the one up to now included."""
        longest_s = lease_s / 3
        if self._first_s is None or now_s - self._last_s > longest_s:
            return 0.0
        after = bisect_left(self._gaps, -longest_s, key=lambda gap: -gap[0])
        return now_s - (self._gaps[after - 1][1] if after else self._first_s)
