"""A small network over time whose sums are large enough to be split over threads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tenure_worker.experiment import Backtest, Evaluation
from tenure_worker.snapshot import load_torch, save_torch
from tenure_worker.tenure import Tenure

MODEL = "model.safetensors"
STEPS, EVERY = 6, 2
BATCH, CHANNELS, DAYS = 64, 32, 128


class Repeat:
    """Config: ``noise``: "seeded" draws it from the global generator, "entropy" from a fresh one."""

    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        import numpy as np
        import torch
        from safetensors.torch import load_file, save_file

        network = torch.nn.Sequential(
            torch.nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Conv1d(CHANNELS, 1, 3, padding=1),
        )
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
        inputs = torch.linspace(-1, 1, BATCH * CHANNELS * DAYS).reshape(BATCH, CHANNELS, DAYS).sin()
        targets = inputs.sum(1, keepdim=True).cos()

        def save(folder: Path) -> None:
            save_file(network.state_dict(), folder / MODEL)
            save_torch(folder, optimizer=optimizer)

        def load(folder: Path) -> None:
            network.load_state_dict(load_file(folder / MODEL))
            optimizer.load_state_dict(load_torch(folder)["optimizer"])  # type: ignore[arg-type]

        tenure.resume(load)
        fresh = np.random.default_rng()  # nobody seeds it: the worker cannot
        while tenure.step_number < STEPS:
            noise = torch.from_numpy(np.random.normal(0, 0.01, inputs.shape).astype("float32"))
            if config["noise"] == "entropy" and tenure.step_number >= EVERY:
                noise += float(fresh.normal(0, 0.01))
            loss = (network(inputs + noise) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tenure.step()
            if tenure.milestone_due:
                tenure.milestone(save)
        return {"loss": loss.item()}

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        raise NotImplementedError("trainings are compared here, not what they are worth")

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        raise NotImplementedError("trainings are compared here, not what they are worth")
