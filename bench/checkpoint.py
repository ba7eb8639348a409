"""What does a 200 MB snapshot cost a training loop?

    python bench/checkpoint.py

A torch network whose weights are 200 MB, most of them an embedding table, is trained on in pieces of
equal work, on one core, in the order A B B A: B begins with ``tenure.milestone(save)``, A does not,
and both call ``tenure.step()``. B's piece is long enough for the upload to end within it, so that all
it disturbs is measured; nothing else differs. The extra seconds of one snapshot are what B takes
beyond A: writing the files in the loop, and whatever hashing and uploading beside it takes from the
training. On this machine the server itself is among that.

An overhead in percent depends on the interval. CheckFreq (Mohan et al., FAST 2021) turns that round:
it takes the shortest interval that keeps the overhead at 3.5 %. So does the last line: the extra
seconds / 3.5 %, or the upload's time where that is longer, because the next snapshot waits for it.
The measured percentage is that of the measured interval, which is much shorter than anybody's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.instruments import stores
from bench.instruments.intervals import bootstrap, median_of
from bench.instruments.report import Report, arguments
from bench.instruments.stores import CountingStore
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec
from tenure_worker.claim import claim
from tenure_worker.snapshot import MANIFEST, save_torch
from tenure_worker.tenure import Tenure

#: What CheckFreq keeps its overhead at.
CHECKFREQ = 0.035
WIDTH = 64
ROWS, QUICK_ROWS = 200_000_000 // 4 // WIDTH, 20_000
PAIRS, QUICK_PAIRS = 8, 2
SHORTEST_S, QUICK_SHORTEST_S = 4.0, 0.5
#: A piece lasts this many uploads, as timed by a first one.
UPLOADS = 1.5
LONGEST_S = 15.0


class Training:
    """An embedding table and a small head; each batch looks up a few thousand rows."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(0)
        self._table = torch.nn.EmbeddingBag(rows, WIDTH, mode="mean", sparse=True)
        self._head = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )
        self._net = torch.nn.ModuleList([self._table, self._head])
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.1)
        self._rows, self._target = torch.randint(rows, (256, 8)), torch.randn(256, 1)
        self.save_s: list[float] = []

    @property
    def megabytes(self) -> float:
        sizes: list[int] = [weights.numel() * 4 for weights in self._net.parameters()]
        return sum(sizes) / 1e6

    def batches(self, count: int, tenure: Tenure) -> None:
        for _ in range(count):
            self._optimizer.zero_grad()
            answer = self._head(self._table(self._rows))
            torch.nn.functional.mse_loss(answer, self._target).backward()
            self._optimizer.step()
            tenure.step()

    def save(self, folder: Path) -> None:
        began_s = SYSTEM.monotonic_s()
        save_torch(folder, net=self._net)
        self.save_s.append(SYSTEM.monotonic_s() - began_s)


@dataclass
class Costs:
    """What the snapshots of one store cost, in seconds."""

    plain_s: list[float]  # of pieces without one
    saved_s: list[float]  # of pieces with one, in pairs with the former
    save_s: list[float]  # writing its files, in the loop
    milestone_s: list[float]  # the whole call, in the loop
    upload_s: list[float]  # from the end of the call until the manifest is stored
    late: int  # uploads that had not ended with their piece


def seconds(run: Callable[[], None]) -> float:
    began_s = SYSTEM.monotonic_s()
    run()
    return SYSTEM.monotonic_s() - began_s


class Uploads:
    """What became of each snapshot: its manifest is stored last, and then the pointer moves."""

    def __init__(self, store: CountingStore, witness: str) -> None:
        self._store = store
        self._witness = witness

    def ended_s(self) -> list[float]:
        """When the manifest of each snapshot so far was stored."""
        return [c.ended_s for c in self._store.of("write") if c.key.endswith(f"/{MANIFEST}")]

    def pointers(self) -> int:
        """How many snapshots the witness was written behind."""
        renewed_s = max(c.began_s for c in self._store.of("write") if c.key == self._witness)
        return sum(ended_s < renewed_s for ended_s in self.ended_s())


class Pieces:
    """Pieces of training of equal work, without and with a snapshot."""

    def __init__(self, training: Training, tenure: Tenure, uploads: Uploads) -> None:
        self._training = training
        self._tenure = tenure
        self._uploads = uploads
        self.costs = Costs([], [], [], [], [], 0)

    def snapshot(self) -> float:
        """Save one, train until its pointer has moved; returns the seconds of its upload."""
        before = len(self._uploads.ended_s())
        self._tenure.milestone(self._training.save)
        handed_s = SYSTEM.monotonic_s()
        return self._uploaded(before, handed_s)

    def _uploaded(self, before: int, handed_s: float) -> float:
        while self._uploads.pointers() <= before:
            self._training.batches(20, self._tenure)
        return self._uploads.ended_s()[before] - handed_s

    def plain(self, batches: int) -> None:
        run_s = seconds(lambda: self._training.batches(batches, self._tenure))
        self.costs.plain_s.append(run_s)

    def saved(self, batches: int) -> None:
        """What is left of the upload at the end of the piece is waited for, and counted as late."""
        before = len(self._uploads.ended_s())
        began_s = SYSTEM.monotonic_s()
        self._tenure.milestone(self._training.save)
        handed_s = SYSTEM.monotonic_s()
        self._training.batches(batches, self._tenure)
        ended_s = SYSTEM.monotonic_s()
        self.costs.saved_s.append(ended_s - began_s)
        self.costs.milestone_s.append(handed_s - began_s)
        self.costs.late += len(self._uploads.ended_s()) == before
        self.costs.upload_s.append(self._uploaded(before, handed_s))


def measure(training: Training, store: CountingStore, quick: bool) -> Costs:
    """Pairs of pieces in the order A B B A, their size by a first upload."""
    spec = JobSpec("bench", "train", "training", "m:C", {}, 0, 1, "c", "d", 10**9)
    with claim(spec, store, measured={}) as tenure:
        pieces = Pieces(training, tenure, Uploads(store, keys.witness_of(spec)))
        training.batches(50, tenure)
        batch_s = seconds(lambda: training.batches(200, tenure)) / 200
        wanted_s = max(UPLOADS * pieces.snapshot(), QUICK_SHORTEST_S if quick else SHORTEST_S)
        batches = math.ceil(min(wanted_s, LONGEST_S) / batch_s)
        training.save_s = pieces.costs.save_s  # the first was for the size of a piece
        for pair in range(QUICK_PAIRS if quick else PAIRS):
            order = (pieces.plain, pieces.saved)
            for piece in order if pair % 2 == 0 else reversed(order):
                piece(batches)
        tenure.finish({})
    return pieces.costs


def tell(name: str, megabytes: float, costs: Costs, report: Report) -> None:
    pairs = list(zip(costs.plain_s, costs.saved_s, strict=True))
    extra = bootstrap([saved - plain for plain, saved in pairs], median_of)
    share = bootstrap([saved / plain - 1 for plain, saved in pairs], median_of)
    plain_s = statistics.median(costs.plain_s)
    save_s, upload_s = statistics.median(costs.save_s), statistics.median(costs.upload_s)
    milestone_s = statistics.median(costs.milestone_s)
    report.line(
        f"{name}, one snapshot",
        f"{megabytes:.0f} MB take {extra.words(2)} s of the loop's time; save() itself "
        f"{save_s:.2f} s, the whole call of milestone() {milestone_s:.2f} s; "
        f"the upload behind it {upload_s:.1f} s",
        megabytes=megabytes, save_s=save_s, milestone_s=milestone_s, upload_s=upload_s,
        **extra.numbers("extra_s"),
    )  # fmt: skip
    report.line(
        f"{name}, overhead at the measured interval",
        f"one in {plain_s:.1f} s of training: {100 * share.middle:.1f} % "
        f"(95 %: {100 * share.low:.1f} to {100 * share.high:.1f}), {len(pairs)} pairs; "
        f"{costs.late} uploads ended after their piece",
        interval_s=plain_s, pairs=len(pairs), uploads_late=costs.late,
        **share.numbers("overhead"),
    )  # fmt: skip
    shortest_s = max(extra.middle / CHECKFREQ, upload_s)
    longest_s = max(extra.high / CHECKFREQ, upload_s)
    report.line(
        f"{name}, shortest interval with an overhead of {100 * CHECKFREQ:g} % at most",
        f"{shortest_s:.0f} s; by the upper end of the extra seconds {longest_s:.0f} s",
        f"CheckFreq keeps {100 * CHECKFREQ:g} %",
        shortest_interval_s=shortest_s, shortest_interval_s_high=longest_s,
    )  # fmt: skip


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("checkpoint", options)
    torch.set_num_threads(1)
    training = Training(QUICK_ROWS if report.quick else ROWS)
    with closing(stores.each()) as each:
        for name, store in each:
            costs = measure(training, CountingStore(store), report.quick)
            tell(name, training.megabytes, costs, report)
    report.end()


if __name__ == "__main__":
    main()
