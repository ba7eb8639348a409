"""One training as an object that can be stopped after any step and continued to the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from examples.sp500 import models
from examples.sp500.data import FEATURES, FIRST_ROW, Floats, Standardisation, Table, windows
from tenure_worker.snapshot import load_torch, save_torch

BATCH = 256
WARM_UP_STEPS = 50
WEIGHT_DECAY = 1e-2
MAX_GRADIENT_NORM = 1.0
MODEL_FILE = "model.safetensors"


@dataclass(frozen=True)
class Settings:
    """What a training depends on besides its seed and the data."""

    model: str
    epochs: int
    learning_rate: float


class State(TypedDict):
    """What a snapshot holds besides the weights; ``save_torch`` adds the global generators."""

    optimizer: dict[str, object]
    schedule: dict[str, object]
    order: Tensor
    permutation: Tensor
    steps: int
    loss_sum: float
    epoch_loss: float


def make_deterministic() -> None:
    """One thread and deterministic kernels: the same bits on every run of the same build.

    One thread, because two change the TCN's weights (the sums are split elsewhere) and save
    nothing at this size: two processes of one thread each use two cores better.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


class Training:
    """Model, optimizer, schedule, order of the examples and place in it.

    All of these are in a snapshot, with the states of the random generators: a milestone may fall
    anywhere in an epoch, and what follows must be what would have followed.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        inputs: NDArray[np.float32],
        targets: NDArray[np.float32],
        scale: Standardisation,
    ) -> None:
        make_deterministic()
        torch.manual_seed(seed)  # the one global generator that is drawn from: initial weights
        self.inputs, self.targets = torch.from_numpy(inputs), torch.from_numpy(targets)
        self.target_mean, self.target_sd = scale.target_mean, scale.target_sd
        self.batches = math.ceil(len(inputs) / BATCH)
        self.total_steps = settings.epochs * self.batches
        self.model = models.build(settings.model, inputs.shape[2])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.order = torch.Generator().manual_seed(seed)
        self.permutation = torch.randperm(len(inputs), generator=self.order)
        self.steps = 0
        self.loss_sum = 0.0  # of the epoch so far
        self.epoch_loss = math.nan  # of the last whole epoch

    @property
    def done(self) -> bool:
        """Whether every epoch is complete."""
        return self.steps >= self.total_steps

    @property
    def epoch(self) -> int:
        """Whole epochs so far."""
        return self.steps // self.batches

    @property
    def epoch_ended(self) -> bool:
        """Whether the last step was the last of its epoch."""
        return self.steps > 0 and self.steps % self.batches == 0

    def step(self) -> None:
        """One batch: QLIKE of the predicted log variance, clipped, AdamW, the next rate."""
        at = self.steps % self.batches
        chosen = self.permutation[at * BATCH : (at + 1) * BATCH]
        predicted = self.target_mean + self.target_sd * self.model(self.inputs[chosen])
        log_ratio = self.targets[chosen] - predicted
        loss = (log_ratio.exp() - log_ratio - 1.0).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.schedule.step()
        self.steps += 1
        self.loss_sum += loss.item()
        if self.epoch_ended:
            self.epoch_loss, self.loss_sum = self.loss_sum / self.batches, 0.0
            self.permutation = torch.randperm(len(self.inputs), generator=self.order)

    def save(self, folder: Path) -> None:
        """Write the weights (the model, once training is done) and all that resuming needs."""
        save_file(self.model.state_dict(), folder / MODEL_FILE)
        save_torch(
            folder,
            optimizer=self.optimizer,
            schedule=self.schedule,
            order=self.order,
            permutation=self.permutation,
            steps=self.steps,
            loss_sum=self.loss_sum,
            epoch_loss=self.epoch_loss,
        )

    def load(self, folder: Path) -> Training:
        """Continue from what ``save`` wrote."""
        state = cast(State, load_torch(folder))
        self.model.load_state_dict(load_file(folder / MODEL_FILE))
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.order.set_state(state["order"])
        self.permutation = state["permutation"]
        self.steps = state["steps"]
        self.loss_sum, self.epoch_loss = state["loss_sum"], state["epoch_loss"]
        return self

    def _rate(self, step: int) -> float:
        """Share of the learning rate at ``step``: linear warm-up under a cosine."""
        cosine = 0.5 * (1.0 + math.cos(math.pi * step / self.total_steps))
        return min(1.0, (step + 1) / WARM_UP_STEPS) * cosine


class Network:
    """A trained network, read back from the files of its last snapshot."""

    def __init__(self, model: str, model_dir: Path, scale: Standardisation) -> None:
        make_deterministic()
        self.scale = scale
        self.network = models.build(model, len(FEATURES))
        self.network.load_state_dict(load_file(model_dir / MODEL_FILE))
        self.network.eval()

    def predict(self, source: Table) -> Floats:
        """Log variance predicted at the close of every row (days,), NaN where history is short."""
        rows = np.arange(FIRST_ROW, len(source.dates), dtype=np.int64)
        # Every batch is full: another batch size may take another kernel, and then the number of
        # later days would change the last bit of earlier answers.
        padded = np.pad(rows, (0, -len(rows) % BATCH), mode="edge").reshape(-1, BATCH)
        with torch.no_grad():
            answers = [self._answer(windows(source, part, self.scale)) for part in padded]
        out = np.full(len(source.dates), np.nan)
        out[rows] = np.concatenate(answers)[: len(rows)]
        return out

    def _answer(self, inputs: NDArray[np.float32]) -> Floats:
        answer = self.network(torch.from_numpy(inputs)).numpy().astype(np.float64)
        return np.asarray(self.scale.target_mean + self.scale.target_sd * answer)
