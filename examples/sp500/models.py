"""The two networks. Both read windows (batch, 32, features) and answer one number per window."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TCN(nn.Module):
    """Causal convolutions with residual connections; 2,769 parameters.

    Kernel 2 with dilations 1, 2, 4, 8, 16 sees exactly 32 days (Bai, Kolter and Koltun 2018,
    https://arxiv.org/abs/1803.01271).
    """

    def __init__(self, features: int, channels: int = 16) -> None:
        super().__init__()
        self.dilations = (1, 2, 4, 8, 16)
        self.enter = nn.Conv1d(features, channels, kernel_size=1)
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel_size=2, dilation=d) for d in self.dilations
        )
        self.head = nn.Linear(channels, 1)

    def forward(self, days: Tensor) -> Tensor:
        """(batch, 32, features) -> (batch,)"""
        hidden = self.enter(days.transpose(1, 2))
        for dilation, layer in zip(self.dilations, self.layers, strict=True):
            padded = nn.functional.pad(hidden, (dilation, 0))  # on the left only: causal
            hidden = hidden + torch.relu(layer(padded))
        answer: Tensor = self.head(hidden[:, :, -1])
        return answer[:, 0]


class GRU(nn.Module):
    """One layer of gated recurrent units, read after the last day; 2,329 parameters."""

    def __init__(self, features: int, hidden: int = 24) -> None:
        super().__init__()
        self.recurrent = nn.GRU(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, days: Tensor) -> Tensor:
        """(batch, 32, features) -> (batch,)"""
        states, _ = self.recurrent(days)
        answer: Tensor = self.head(states[:, -1])
        return answer[:, 0]


def build(model: str, features: int) -> nn.Module:
    """The network of that name, freshly initialised from torch's global generator."""
    if model == "tcn":
        return TCN(features)
    if model == "gru":
        return GRU(features)
    raise ValueError(f"No model {model!r} here: the example has 'tcn' and 'gru'")
