"""How long a store has given no answer, as far as calls that were made can tell.

Time in which nobody asked proves nothing: a process that was stopped for an hour, or whose step
took one, must ask anew before it gives up. So silence lasts from the end of the first call that
failed to the *start* of the latest; one failed call alone lasts 0 seconds, however long, and so does
one that follows on a gap of more than a minute without any.
"""

from __future__ import annotations

_GAP_S = 60.0


class Silence:
    """One caller's record of calls without an answer; another thread may read ``lasted_s``."""

    def __init__(self) -> None:
        self.lasted_s = 0.0
        self.reason = ""
        self._since_s: float | None = None
        self._latest_s = 0.0  # when the latest call had failed

    def failed(self, sent_s: float, now_s: float, reason: str) -> float:
        """A call sent at ``sent_s`` has failed by ``now_s``; returns the seconds of silence."""
        if self._since_s is None or sent_s - self._latest_s > _GAP_S:
            self._since_s = now_s
        self._latest_s = now_s
        self.reason = reason
        self.lasted_s = max(sent_s - self._since_s, 0.0)
        return self.lasted_s

    def ended(self) -> None:
        """A call was answered."""
        self._since_s, self.lasted_s, self.reason = None, 0.0, ""
