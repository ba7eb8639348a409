"""Is a fault the machine's, or the job's own?

A CUDA or I/O error may be either. A bad machine fails when it fails; what is wrong with the code or its
data comes back at the same step, whatever machine does it. So the same error at one step on two rungs
is the job's own, and so is one that came three times: nobody pays for a fourth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

#: The same error so often since the last milestone is the job's own wherever it came.
MOST_TIMES = 3


class Fault(NamedTuple):
    """One machine's fault: where it was, and after how many steps; ``None``: nobody told."""

    rung: str
    step: int | None


def own(faults: Mapping[str, Sequence[Fault]]) -> str | None:
    """Which fault since the last milestone is the job's own, or ``None``. ``faults`` are by their words.

    On one rung alone it may be the rung's, however often it comes: the early losses are counted elsewhere.

    >>> own({"CUDA error": [Fault("a", 7), Fault("a", 7), Fault("b", 9)]})
    'the same failure 3 times without a milestone, on the rungs a and b: CUDA error'
    >>> own({"CUDA error": [Fault("a", 7), Fault("b", 7)]})
    'the same failure at step 7 on the rungs a and b: CUDA error'
    >>> own({"CUDA error": [Fault("a", 7), Fault("b", 9)]}), own({"CUDA error": [Fault("a", 7)] * 9})
    (None, None)
    """
    for words, seen in faults.items():
        rungs = sorted({fault.rung for fault in seen})
        if len(rungs) < 2:
            continue
        on = " and ".join(rungs)
        alike = [
            (a, b) for a, b in combinations(seen, 2) if a.rung != b.rung and _at_one_step(a, b)
        ]
        if alike:
            step = alike[0][0].step
            at = "" if step is None or alike[0][1].step is None else f" at step {step}"
            return f"the same failure{at} on the rungs {on}: {words}"
        if len(seen) >= MOST_TIMES:
            return f"the same failure {len(seen)} times without a milestone, on the rungs {on}: {words}"
    return None


def _at_one_step(a: Fault, b: Fault) -> bool:
    return a.step is None or b.step is None or a.step == b.step
