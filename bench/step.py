"""What does ``tenure.step()`` cost, alone and inside a real training loop?

    python bench/step.py

First the cost of one step when nothing is due: called again and again, as the target is meant, and
between the batches of a training, which leave the caches cold. Then one torch network is trained on, now without
Tenure and now with it, in pieces of some 15 ms in the order A B B A, so that a drift of the machine
meets both alike; its pieces with Tenure call ``step()`` after every batch and ``metric()`` at their
end. Of each four pieces the ratio is kept. Its median with a bootstrap interval is the answer, for
the wall clock and for the processor time of the loop's own thread. A renewal falls into few pieces,
so that a median does not see it: the ratios of the sums do, and the last one counts the processor
time of all threads, the carrier's and the courier's included.

Renewals go to a directory store and come as often as in any training there: every 3 s, half of
which the pieces without Tenure take, so that they weigh double here. Between the pieces a write
under way is waited for, outside of what is measured: it must not slow the other side's piece.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bench.instruments import stores
from bench.instruments.intervals import bootstrap, bootstrap_share, median_of, quantile
from bench.instruments.report import Report, arguments
from bench.instruments.stores import CountingStore
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec
from tenure_protocol.store.directory import DirectoryStore
from tenure_worker.claim import claim
from tenure_worker.tenure import Tenure

BATCHES = 25  # of one piece
LOOPS_S, QUICK_LOOPS_S = 80.0, 4.0
STEPS, ROUNDS, QUICK_ROUNDS = 1000, 300, 30
MANY_BATCHES, QUICK_BATCHES = 4000, 200
MOST_US, MOST_RATIO = 2.0, 1.01


@dataclass(frozen=True)
class Piece:
    """What one piece of training took, in seconds."""

    wall_s: float
    loop_s: float  # processor time of the loop's thread
    all_s: float  # of all threads of this process

    def __add__(self, other: Piece) -> Piece:
        return Piece(
            self.wall_s + other.wall_s, self.loop_s + other.loop_s, self.all_s + other.all_s
        )


class Training:
    """A small network, half a millisecond a batch on one core."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )
        self._optimizer = torch.optim.AdamW(self._net.parameters(), lr=1e-3)
        self._data, self._target = torch.randn(256, 64), torch.randn(256, 1)

    def batch(self) -> torch.Tensor:
        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self._net(self._data), self._target)
        loss.backward()
        self._optimizer.step()
        return loss

    def plain(self) -> None:
        for _ in range(BATCHES):
            loss = self.batch()
        float(loss.detach())

    def held(self, tenure: Tenure) -> None:
        for _ in range(BATCHES):
            loss = self.batch()
            tenure.step()
        tenure.metric(loss=float(loss.detach()))

    def piece(self, tenure: Tenure | None) -> Piece:
        """Train on, and say what it took."""
        began = SYSTEM.monotonic_s(), time.thread_time(), time.process_time()
        if tenure:
            self.held(tenure)
        else:
            self.plain()
        ended = SYSTEM.monotonic_s(), time.thread_time(), time.process_time()
        return Piece(*(end - begin for begin, end in zip(began, ended, strict=True)))


def idle_step_us(tenure: Tenure, rounds: int) -> list[float]:
    """Microseconds of one step, the loop around it included, over rounds of a thousand."""
    costs = []
    for _ in range(rounds):
        began_s = SYSTEM.monotonic_s()
        for _ in range(STEPS):
            tenure.step()
        costs.append((SYSTEM.monotonic_s() - began_s) / STEPS * 1e6)
    return costs


def between_batches_us(training: Training, tenure: Tenure, batches: int) -> tuple[float, float]:
    """Median microseconds of an empty call and of a step, each after every other batch."""

    def nothing() -> None:
        return

    calls: tuple[Callable[[], None], Callable[[], None]] = (nothing, tenure.step)
    costs: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * batches):
        call = calls[number % 2]
        training.batch()
        began_s = SYSTEM.monotonic_s()
        call()
        costs[number % 2].append((SYSTEM.monotonic_s() - began_s) * 1e6)
    return statistics.median(costs[0]), statistics.median(costs[1])


def paired(
    training: Training, tenure: Tenure, store: CountingStore, for_s: float
) -> list[tuple[Piece, Piece]]:
    """Pairs of (without, with), each the sum of two pieces in the order A B B A or B A A B."""
    pairs: list[tuple[Piece, Piece]] = []
    end_s = SYSTEM.monotonic_s() + for_s
    while SYSTEM.monotonic_s() < end_s:
        outer, inner = (None, tenure) if len(pairs) % 2 else (tenure, None)
        pieces = []
        for who in (outer, inner, inner, outer):
            while store.writing:
                SYSTEM.sleep(0.001)
            pieces.append(training.piece(who))
        outside, inside = pieces[0] + pieces[3], pieces[1] + pieces[2]
        pairs.append((inside, outside) if outer else (outside, inside))
    return pairs


def tell(pairs: list[tuple[Piece, Piece]], renewals: int, report: Report) -> None:
    spent_s = sum(held.wall_s for _, held in pairs)
    report.line(
        "renewals within the measured loops",
        f"{renewals} in {spent_s:.0f} s of training with Tenure, {len(pairs)} times A B B A of "
        f"{BATCHES} batches",
        renewals=renewals, held_s=spent_s, pairs=len(pairs),
    )  # fmt: skip
    for name, what in (("wall_s", "wall clock"), ("loop_s", "processor time of the loop's thread")):
        ratios = np.array([getattr(held, name) / getattr(plain, name) for plain, held in pairs])
        median = bootstrap(ratios, median_of)
        report.line(
            f"with Tenure / without, {what}",
            f"median {median.words(4)}",
            f"at most {MOST_RATIO}",
            **median.numbers("ratio"),
        )
    for name, what in (
        ("wall_s", "wall clock, all renewals included"),
        ("all_s", "processor time of all threads, all renewals included"),
    ):
        share = bootstrap_share(
            [getattr(held, name) for _, held in pairs],
            [getattr(plain, name) for plain, _ in pairs],
        )
        report.line(
            f"with Tenure / without, {what}",
            f"ratio of the sums {share.words(4)}",
            f"at most {MOST_RATIO}",
            **share.numbers("ratio"),
        )


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("step", options)
    torch.set_num_threads(1)
    with stores.folder() as folder:
        store = CountingStore(DirectoryStore(folder))
        spec = JobSpec("bench", "train", "training", "m:C", {}, 0, 1, "c", "d", 10**9)
        witness = keys.witness_of(spec)
        training = Training()
        with claim(spec, store, measured={}) as tenure:
            for _ in range(4):  # beyond the steps over which the lease is measured
                training.piece(None), training.piece(tenure)
            costs = idle_step_us(tenure, QUICK_ROUNDS if report.quick else ROUNDS)
            median_us = statistics.median(costs)
            report.line(
                "tenure.step() when nothing is due",
                f"median {median_us:.3f} us, 99 % below {quantile(costs, 0.99):.3f} us",
                f"at most {MOST_US:g} us",
                median_us=median_us, p99_us=quantile(costs, 0.99),
            )  # fmt: skip
            empty_us, step_us = between_batches_us(
                training, tenure, QUICK_BATCHES if report.quick else MANY_BATCHES
            )
            report.line(
                "tenure.step() between two batches",
                f"median {step_us - empty_us:.2f} us beyond an empty call",
                median_us=step_us - empty_us,
            )  # fmt: skip
            store.calls.clear()
            pairs = paired(training, tenure, store, QUICK_LOOPS_S if report.quick else LOOPS_S)
            renewals = sum(call.key == witness for call in store.of("write"))
            assert renewals, "no renewal fell into the measured loops"
            tell(pairs, renewals, report)
            tenure.finish({})
    report.end()


if __name__ == "__main__":
    main()
