"""What does ``tenure.step()`` cost, alone and inside a real training loop?

    python bench/step.py

Prints the median of one step when nothing is due (target: 2 microseconds), and a torch loop with and
without Tenure, interleaved in one run so that both meet the same machine (target: within 1 %). The
second is a ratio of medians over pairs; its quartiles say how far this machine can be trusted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tenure_protocol.records import JobSpec
from tenure_protocol.store.directory import DirectoryStore
from tenure_worker.claim import claim
from tenure_worker.tenure import Tenure

PAIRS = 40
BATCHES = 150


def loop(tenure: Tenure | None) -> Callable[[], None]:
    """A small network's training, about a millisecond a batch; the same weights every time."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data, target = torch.randn(256, 64), torch.randn(256, 1)

    def run() -> None:
        for _ in range(BATCHES):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(data), target).backward()
            optimizer.step()
            if tenure:
                tenure.step()

    return run


def seconds(run: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        spec = JobSpec("bench", "train", "training", "m:C", {}, 0, 1, "c", "d", 10**9)
        with claim(spec, store, measured={}) as tenure:
            for _ in range(50):
                tenure.step()
                time.sleep(0.001)
            costs = []
            for _ in range(300):
                start_s = time.perf_counter()
                for _ in range(1000):
                    tenure.step()
                costs.append((time.perf_counter() - start_s) * 1e3)
            print(f"tenure.step(), nothing due: median {statistics.median(costs):.3f} us")
            plain, held = loop(None), loop(tenure)
            seconds(plain), seconds(held)
            ratios = []
            for pair in range(PAIRS):
                first, second = (plain, held) if pair % 2 else (held, plain)
                one, two = seconds(first), seconds(second)
                ratios.append(two / one if pair % 2 else one / two)
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f"training with Tenure / without, {PAIRS} pairs: median {middle:.4f} "
                f"(quartiles {low:.4f} to {high:.4f}), renewing to a directory store"
            )
            tenure.finish({})


if __name__ == "__main__":
    main()
