"""What a user writes: a class with ``train``, ``evaluate`` and ``backtest``, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from tenure_worker.tenure import Tenure


@dataclass(frozen=True)
class Metric:
    """One number of an evaluation, with the direction that is better and its unit."""

    value: float
    direction: Literal["minimize", "maximize"]
    unit: str


@dataclass(frozen=True)
class Evaluation:
    """Metrics by name, and per-example losses by metric name, always in the same order of examples.

    The losses let a gate compare two models example by example, which removes the noise of a finite
    test set that both share.
    """

    metrics: Mapping[str, Metric]
    losses: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Backtest:
    """What a model would have done.

    ``score`` is what ``promote.min_score`` is compared with; ``passed`` is the experiment's own
    verdict with a sentence per criterion in ``reasons``. Whether the model may be deployed is not
    the experiment's to say: the stage sets it, on the pinned path alone.
    """

    score: float
    series: Mapping[str, Sequence[float | str]]
    tables: Mapping[str, Sequence[Mapping[str, object]]]
    passed: bool
    reasons: Sequence[str] = ()


class Experiment(Protocol):
    """The interface of a plan's ``experiment: module:Class``."""

    def train(
        self, tenure: Tenure, config: Mapping[str, object], seed: int
    ) -> Mapping[str, object]:
        """Train; the files of the last milestone are the model. Returns JSON of at most 4 KiB."""

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        """Measure the model in ``model_dir``."""

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        """Play the model in ``model_dir`` over history."""


class WithData(Protocol):
    """An experiment that names the files it reads; their digest becomes part of every job's id."""

    def data_files(self) -> Sequence[Path]:
        """Files whose bytes the results depend on."""
