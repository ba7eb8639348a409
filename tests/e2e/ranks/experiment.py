"""Data-parallel training of a line by gloo: the sum over ranks of what each one contributed is the state."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.synchronize import Event
from pathlib import Path

from tenure_protocol.clock import SYSTEM
from tenure_worker.experiment import Backtest, Evaluation
from tenure_worker.tenure import Tenure

STATE, RANKS = "state.json", "ranks"


def _serve(up: Event) -> None:
    up.set()
    SYSTEM.sleep(600.0)


def _hold(until: Path, for_s: float) -> None:
    end_s = SYSTEM.monotonic_s() + for_s
    while SYSTEM.monotonic_s() < end_s and not until.exists():
        SYSTEM.sleep(0.05)


class Ranks:
    """config: steps, pause_s, fail_at (step at which rank 1 raises), forks (each rank starts a
    helper), until (a file: before it is there, steps past the first milestone last 3 s)."""

    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        import torch
        import torch.distributed as dist

        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", timeout=timedelta(seconds=300))
        if "note" in config:  # for the test: which process is which rank
            folder = Path(str(config["note"]))
            (folder / f"{tenure.attempt}-{rank}").write_text(str(os.getpid()))
        if "forks" in config:
            context = multiprocessing.get_context("fork")
            up = (
                context.Event()
            )  # a signal that comes before Python is up in a fork is lost by Python
            helper = context.Process(target=_serve, args=(up,))
            helper.start()
            assert up.wait(60.0)
            helper.terminate()
            helper.join(60.0)
            if helper.exitcode != -signal.SIGTERM:
                helper.kill()
                raise ValueError(f"rank {rank} cannot end what it forked")
        state = tenure.resume(lambda folder: json.loads((folder / STATE).read_text()))
        total = float(state["total"]) if state else 0.0

        def save(folder: Path) -> None:
            assert rank == 0, "only rank 0 saves"
            (folder / STATE).write_text(
                json.dumps({"total": total, "ranks": dist.get_world_size()})
            )

        while tenure.step_number < int(str(config["steps"])):
            if rank == 1 and tenure.step_number == config.get("fail_at"):
                raise ValueError("rank 1 cannot go on")
            share = torch.tensor([float(rank + 1)])
            dist.all_reduce(share)
            total += float(share)
            SYSTEM.sleep(float(str(config.get("pause_s", 0.0))))
            if "until" in config and tenure.step_number >= tenure.spec.milestone_every:
                _hold(Path(str(config["until"])), 3.0)
            tenure.step()
            if tenure.milestone_due:
                tenure.milestone(save)
        dist.destroy_process_group()
        return {"total": total}

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        raise NotImplementedError

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        raise NotImplementedError
