"""Which part of a job's time a faster card would shorten, and by how much at most (Amdahl 1967)."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: What a card computes; the rest waits for something else.
_WORDS = {
    "start_s": "starting machines",
    "restart_s": "restarts and lost work",
    "checkpoint_s": "snapshots",
    "data_s": "waiting for data",
}


def speedup(part: float, factor: float) -> float:
    """S = 1 / ((1 - f) + f / s): the whole, where a part f of it becomes s times as fast.

    >>> round(speedup(0.75, 2), 3), speedup(1.0, 4), speedup(0.5, float("inf"))
    (1.6, 4.0, 2.0)
    """
    if not 0 <= part <= 1:
        raise ValueError(f"the part that becomes faster is {part}; it lies from 0 to 1")
    if not factor > 0:
        raise ValueError(f"a card {factor} times as fast; it must be a number above 0")
    left = (1 - part) + part / factor
    return 1 / left if left > 0 else math.inf


@dataclass(frozen=True)
class Phases:
    """Where the seconds of a job go, from its first launch to its end, or of many jobs together."""

    compute_s: float
    start_s: float = 0.0  # from a launch to its claim, and loading
    restart_s: float = 0.0  # the same again after each loss, and work done twice
    checkpoint_s: float = 0.0  # the loop stands still while a snapshot is taken
    data_s: float = 0.0  # in steps, but waiting for data: 0 where nobody measured it

    def __post_init__(self) -> None:
        if not all(math.isfinite(each) and each >= 0 for each in self._all()):
            raise ValueError("the phases of a job are finite seconds, 0 or more")
        if self.total_s <= 0:
            raise ValueError("the phases of a job are all 0 s, so no part of it can be told")

    def _all(self) -> tuple[float, ...]:
        return self.compute_s, self.start_s, self.restart_s, self.checkpoint_s, self.data_s

    @property
    def total_s(self) -> float:
        """All of it."""
        return math.fsum(self._all())

    @property
    def part(self) -> float:
        """f: the part of the time that a faster card shortens; the rest it leaves as it is."""
        return self.compute_s / self.total_s

    def speedup(self, factor: float) -> float:
        """How many times as fast the whole is on a card ``factor`` times as fast."""
        return speedup(self.part, factor)

    @property
    def most(self) -> float:
        """What no card exceeds: 1 / (1 - f)."""
        return speedup(self.part, math.inf)

    def words(self, factor: float) -> str:
        """A sentence for ``rehearse``.

        >>> print(Phases(7200, start_s=600, checkpoint_s=200).words(3))
        a faster card shortens 90 % of the time: 3 times as fast makes the whole 2.50 times as fast, no card more than 10.0; of the rest most is starting machines (600 s)
        """
        rest = {name: getattr(self, name) for name in _WORDS}
        most = max(rest, key=lambda name: rest[name])
        tail = f"; of the rest most is {_WORDS[most]} ({rest[most]:.0f} s)" if rest[most] else ""
        bound = f"no card more than {self.most:.1f}" if math.isfinite(self.most) else "nothing else"
        return (
            f"a faster card shortens {100 * self.part:.0f} % of the time: {factor:.3g} times as fast makes "
            f"the whole {self.speedup(factor):.2f} times as fast, {bound}{tail}"
        )
