"""When a batch is done, checked one by one as it arrives or all together (11.3.2, 11.3.4)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from tenure.capacity.terms import Answer, Scenario, Seconds, Several, Strict, brief


class Sample(Strict):
    """One thing to be checked."""

    arrives_s: Seconds
    service_s: Seconds


class Span(NamedTuple):
    """From when to when something is served."""

    start_s: float
    finish_s: float


@dataclass(frozen=True)
class Batch(Answer):
    """In the order of the samples."""

    start_s: list[float]
    finish_s: list[float]
    completed_s: float | None  # None: there is no sample

    @property
    def words(self) -> str:
        """When it is over."""
        if self.completed_s is None:
            return "the batch is empty"
        return (
            f"{len(self.finish_s)} samples, the last of them done after {brief(self.completed_s)} s"
        )


def first_come(jobs: Sequence[tuple[float, float]], workers: int) -> list[Span]:
    """Serve (arrival, service) pairs with ``workers``, whoever came first; of equal arrivals in their order.

    Seconds. The last one ends at ``max(a + s)`` at the earliest (11.3.4), which many workers reach.

    >>> [span.start_s for span in first_come([(0, 10), (10, 10), (20, 10)], 1)]
    [0, 10, 20]
    >>> spans = first_come([(0, 1)] * 80, 48)
    >>> sum(span.start_s for span in spans) / 80, max(span.finish_s for span in spans)
    (0.4, 2)
    """
    free_s: list[float] = [0.0] * min(workers, len(jobs))
    found: list[Span] = [Span(0.0, 0.0)] * len(jobs)
    for n in sorted(range(len(jobs)), key=lambda n: jobs[n][0]):
        arrives_s, service_s = jobs[n]
        start_s = max(arrives_s, free_s[0])
        found[n] = Span(start_s, start_s + service_s)
        heapq.heapreplace(free_s, found[n].finish_s)
    return found


class BatchScenario(Scenario):
    """Samples that arrive one after another, and workers that check them."""

    kind: Literal["batch"]
    samples: list[Sample]
    workers: Several
    mode: Annotated[
        Literal["each", "all_together"],
        Field(description="each as it arrives, or all when the last has arrived"),
    ]

    def answer(self) -> Batch:
        """First come, first served; all together means that none starts before the last arrival."""
        together_s = max((sample.arrives_s for sample in self.samples), default=0.0)
        # all that waits for the last is queued in the order of its arrival
        order = sorted(range(len(self.samples)), key=lambda n: self.samples[n].arrives_s)
        jobs = [
            (
                together_s if self.mode == "all_together" else self.samples[n].arrives_s,
                self.samples[n].service_s,
            )
            for n in order
        ]
        spans = dict(zip(order, first_come(jobs, self.workers), strict=True))
        start_s = [spans[n].start_s for n in range(len(spans))]
        finish_s = [spans[n].finish_s for n in range(len(spans))]
        return Batch(start_s, finish_s, max(finish_s, default=None))
