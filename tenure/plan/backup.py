"""Whether a straggler is worth a second copy: a job of its own, from the beginning, on another rung.

Pure. How long jobs of its configuration took says what is left of one that has run for so long: E[S - e | S > e] of
their survival curve, the straggler itself counted as one that has reached its age. Under a deadline being
sooner is worth something where it makes the job on time, and nothing elsewhere; so nothing is paid for a copy that
would be late as well, or while the original may yet be in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.plan.advise import SOONER, Prospect, hours
from tenure.plan.survival import Life, curve

#: Jobs that finished before anybody is called a straggler by them.
LEAST_LENGTHS = 3
#: A job that is on time with this chance has no copy.
LIKELY = 0.5


@dataclass(frozen=True)
class Rest:
    """What is expected to be left of a running job where it is, and its chance to be on time there."""

    left_s: float
    on_time: float
    reason: str


@dataclass(frozen=True)
class Copy:
    """A copy is worth its price on a rung, and why."""

    rung: str
    reason: str


def left_by_lengths(took_s: Sequence[float], age_s: float, due_in_s: float) -> Rest | None:
    """By how long finished jobs took, in seconds on its rung; ``None`` where too few have finished.

    >>> left_by_lengths([3600.0, 3700.0], 7200.0, 60.0)
    >>> found = left_by_lengths([3400.0, 3500.0, 3600.0, 3700.0], 14400.0, 1800.0)
    >>> found is not None and found.left_s > 3600.0 and found.on_time < 0.5
    True
    """
    if len(took_s) < LEAST_LENGTHS:
        return None
    seen = [Life(each, True) for each in took_s]
    lasts = curve([*seen, Life(age_s, False)], where="jobs of its configuration")
    left_s = lasts.remaining_s(age_s)
    on_time = 1.0 - lasts.given(age_s + max(0.0, due_in_s), age_s)
    words = (
        f"{len(took_s)} jobs of its configuration took {hours(min(took_s))} to {hours(max(took_s))}, and it has run for "
        f"{hours(age_s)}: {hours(left_s)} are left of it"
    )
    return Rest(left_s, on_time, words)


def left_by_pace(left_s: float, due_in_s: float) -> Rest:
    """By what it has shown itself, where it tells how long it is.

    >>> left_by_pace(7200.0, 3600.0)
    Rest(left_s=7200.0, on_time=0.0, reason='2.0 h are left of it at its pace')
    """
    words = f"{hours(left_s)} are left of it at its pace"
    return Rest(left_s, float(left_s <= due_in_s), words)


def copy(left: Rest, fresh: Sequence[Prospect], deadline_s: float, now_s: float) -> Copy | None:
    """Where a copy begins now, or ``None``: it is not worth its price, or there is time yet.

    ``fresh`` is the whole job on other rungs that can be had now. A copy is made where it is on time and the original
    most likely is not, on the cheapest such rung; as late as it can be, with what is kept for any launch, since
    until then the original may end.
    """
    due_in_s = deadline_s - now_s
    if left.on_time >= LIKELY:
        return None
    in_time = [
        each for each in fresh if each.takes_s <= due_in_s and SOONER * each.takes_s <= left.left_s
    ]
    if not in_time:
        return None
    best = min(in_time, key=lambda each: (each.usd, each.takes_s, each.rung))
    kept_s = max(best.safe_s, best.takes_s + best.reserve_s)
    if due_in_s > kept_s:
        return None
    return Copy(
        best.rung,
        f"{left.reason}, it is due in {hours(due_in_s)} and on time with {left.on_time:.0%}; a copy from the beginning "
        f"takes {hours(best.takes_s)} and {best.usd:.2f} USD on {best.rung}",
    )
