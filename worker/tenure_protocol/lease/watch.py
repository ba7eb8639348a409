"""How long an observer has watched a prefix without a failed call or a gap.

A failed call, a restart or a jump of this machine's clock starts the watch anew; a gap is more than
a third of the lease in question between two good listings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenure_protocol.clock import Clock
from tenure_protocol.lease.machine import Watched
from tenure_protocol.store.api import Entry

#: Wall and monotonic clocks may drift apart this much between two looks before it is a jump.
JUMP_S = 2.0
_MANY = 20_000  # looks kept


@dataclass
class _Seen:
    etag: str
    since_s: float


class Watch:
    """One observer's watch of one prefix, kept in memory across its ticks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks_s: list[float] = []  # monotonic times of the good looks of the running watch
        self._skew_s = clock.wall_s() - clock.monotonic_s()
        self._seen: dict[str, _Seen] = {}

    def saw(self, rows: Iterable[Entry]) -> None:
        """A listing or a read succeeded: these are all keys of the prefix and their ETags."""
        now_s = self._clock.monotonic_s()
        skew_s = self._clock.wall_s() - now_s
        if abs(skew_s - self._skew_s) > JUMP_S:
            self.broke()
        self._skew_s = skew_s
        self._looks_s.append(now_s)
        self._thin()
        fresh: dict[str, _Seen] = {}
        for row in rows:
            old = self._seen.get(row.key)
            fresh[row.key] = old if old and old.etag == row.etag else _Seen(row.etag, now_s)
        self._seen = fresh

    def broke(self) -> None:
        """A call failed: whatever happened before it was not watched."""
        self._looks_s.clear()
        self._seen.clear()

    def of(self, key: str, etag: str, lease_s: float) -> Watched:
        """How this watch stands towards one body whose lease lasts ``lease_s``."""
        now_s = self._clock.monotonic_s()
        seen = self._seen.get(key)
        if seen is None or seen.etag != etag:
            return Watched(0.0, 0.0)
        return Watched(self._gapless_s(now_s, lease_s), now_s - seen.since_s)

    def _gapless_s(self, now_s: float, lease_s: float) -> float:
        since_s = now_s
        for look_s in reversed(self._looks_s):
            if since_s - look_s > lease_s / 3 or now_s - since_s >= lease_s:
                break  # a gap, or as long a watch as anybody asks for
            since_s = look_s
        return now_s - since_s

    def _thin(self) -> None:
        # Thinned, not dropped: a lease of an hour needs a watch of an hour, however often we look.
        if len(self._looks_s) > _MANY:
            self._looks_s[: _MANY // 2] = self._looks_s[: _MANY // 2 : 2]
