"""How long steps last beside the median step: a small histogram of step / median.

A lease is as long as K median steps, so all that K is learnt from is how often a step lasts longer
than so many medians. The bins are 4 % wide and end at 1,000 medians: a job of any length fits into
178 numbers, and those of many workers are added. A step during which its worker was written off is
*censored*: nobody knows how long it would have lasted, only that it had lasted so long. Leaving such
steps out would make every lease that was too short look right (Kaplan and Meier 1958).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH = 1.04  # upper edge of a bin / lower edge
MOST = 1000.0  # medians; what lasted longer counts as this
MOST_STEPS = 2**53  # of one bin: a whole number that every reader of JSON keeps
_PER_LOG = 1 / math.log(WIDTH)
_LAST = math.ceil(math.log(MOST) * _PER_LOG)


def _bin(ratio: float) -> int:
    """Bin 0 holds what is no longer than the median, bin b what lies below ``WIDTH ** b``."""
    if ratio <= 1.0:
        return 0
    return min(int(math.log(ratio) * _PER_LOG) + 1, _LAST)


def upper_edge(index: int) -> float:
    """The ratio that no step of a bin reaches, but for those of the last bin.

    >>> upper_edge(0), round(upper_edge(18), 3)
    (1.0, 2.026)
    """
    return WIDTH**index


class Ratios:
    """Counts of step / median, of one attempt, a job, or a platform.

    >>> seen = Ratios()
    >>> for ratio in (0.9, 1.0, 1.1, 3.5):
    ...     seen.add(ratio)
    >>> seen.total, seen.exceeding(2), seen.exceeding(4)
    (4, 1.0, 0.0)
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._cut: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ratios):
            return NotImplemented
        return self._seen == other._seen and self._cut == other._cut

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Ratios({self.to_json()})"

    @property
    def total(self) -> int:
        """How many steps are in it, censored ones too."""
        return sum(self._seen.values()) + sum(self._cut.values())

    @property
    def censored(self) -> int:
        """How many of them ended a lease: how long they lasted is not known."""
        return sum(self._cut.values())

    def add(self, ratio: float, count: int = 1) -> None:
        """``count`` steps that lasted ``ratio`` medians each. Raises ValueError for no ratio."""
        _put(self._seen, _bin(_checked(ratio)), count)

    def censor(self, ratio: float, count: int = 1) -> None:
        """Steps that had lasted ``ratio`` medians when their worker was written off."""
        _put(self._cut, _bin(_checked(ratio)), count)

    def add_many(self, durations: Sequence[float], median: float) -> None:
        """Steps of these durations, in the unit of ``median``.

        The training loop calls it: 64 steps take some ten microseconds. Without a median above 0 there is nothing to learn
        (a clock that stood still), and nothing is counted.
        """
        if not median > 0.0:
            return
        seen, log = self._seen, math.log
        short = 0
        for duration in durations:
            if duration <= median:
                short += 1
            else:
                index = int(log(duration / median) * _PER_LOG) + 1
                if index > _LAST:
                    index = _LAST
                seen[index] = seen.get(index, 0) + 1
        if short:
            seen[0] = seen.get(0, 0) + short

    def merge(self, other: Ratios) -> None:
        """Add all steps of another histogram to this one.

        >>> both, more = Ratios(), Ratios()
        >>> both.add(1.5), more.add(2.5), more.censor(9)
        (None, None, None)
        >>> both.merge(more)
        >>> both.total, both.censored
        (3, 1)
        """
        for mine, theirs in ((self._seen, other._seen), (self._cut, other._cut)):
            for index, count in list(theirs.items()):
                _put(mine, index, count)

    def masses(self) -> tuple[dict[int, float], float, int]:
        """Steps by bin, with the censored ones handed on to the longer steps that were seen.

        This is the estimate of Kaplan and Meier as Efron (1967) reads it: a censored step is as
        likely as any longer one to have become one of those. The second number is what could be
        handed to nobody, because no longer step was seen; the third is its bin, the last that was
        censored. All masses add up to :attr:`total`.

        >>> it = Ratios()
        >>> it.add(1.0, 8), it.censor(3.0), it.add(5.0)
        (None, None, None)
        >>> masses, left, _ = it.masses()
        >>> {round(upper_edge(index)): mass for index, mass in masses.items()}, left
        ({1: 8.0, 5: 2.0}, 0.0)
        """
        masses: dict[int, float] = {}
        at_risk = left = float(self.total)  # ``left``: the estimated number that last longer
        for index in sorted(self._seen.keys() | self._cut.keys()):
            seen = self._seen.get(index, 0)
            if seen:
                masses[index] = left * seen / at_risk
                left -= masses[index]
            at_risk -= seen + self._cut.get(index, 0)
        if not self._cut or max(self._seen, default=-1) > max(self._cut):
            return masses, 0.0, 0  # what is left here is an error of rounding
        return masses, left, max(self._cut)

    def exceeding(self, k: float) -> float:
        """How many steps were longer than ``k`` medians, at least 1.

        Rounded up to a whole bin: a step of the bin that ``k`` lies in counts as longer. So do
        censored steps, as :meth:`masses` hands them on, and all that were handed to nobody.
        """
        if not k >= 1.0:
            raise ValueError(f"k is {k}; it counts median steps, so it is at least 1")
        first = max(_bin(k), 1)
        masses, left, _ = self.masses()
        return sum(mass for index, mass in sorted(masses.items()) if index >= first) + left

    def to_json(self) -> dict[str, object]:
        """Plain JSON, the same for equal counts; only bins that are not empty, at most 2 x 178.

        >>> it = Ratios()
        >>> it.add(1.1, 3), it.censor(50)
        (None, None)
        >>> it.to_json()
        {'steps': {'3': 3}, 'censored': {'100': 1}}
        """
        return {"steps": _plain(self._seen), "censored": _plain(self._cut)}

    @classmethod
    def from_json(cls, value: object) -> Ratios:
        """The histogram of :meth:`to_json`. Raises ValueError, one sentence, for anything else."""
        if not isinstance(value, Mapping) or value.keys() != {"steps", "censored"}:
            raise ValueError("step ratios must have the keys 'steps' and 'censored', and no other")
        made = cls()
        made._seen = _counts("steps", value["steps"])
        made._cut = _counts("censored", value["censored"])
        return made


def _checked(ratio: float) -> float:
    if not (math.isfinite(ratio) and ratio >= 0.0):
        raise ValueError(f"a step of {ratio} medians; it must be a finite number, 0 or more")
    return ratio


def _put(counts: dict[int, int], index: int, count: int) -> None:
    if count < 1:
        raise ValueError(f"{count} steps cannot be added; at least 1 can")
    counts[index] = min(counts.get(index, 0) + count, MOST_STEPS)


def _plain(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(index): counts[index] for index in sorted(counts)}


def _counts(name: str, value: object) -> dict[int, int]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} of step ratios must map bins to counts, not {value!r:.40}")
    counts: dict[int, int] = {}
    for key, count in value.items():
        if key not in _KEYS:
            raise ValueError(f"{name} of step ratios has the bin {key!r:.40}; 0 to {_LAST} exist")
        if type(count) is not int or not 1 <= count <= MOST_STEPS:
            raise ValueError(
                f"{name} of step ratios has {count!r:.40} in bin {key}; "
                f"it must be a whole number from 1 to {MOST_STEPS}"
            )
        counts[_KEYS[key]] = count
    return counts


_KEYS = {str(index): index for index in range(_LAST + 1)}
