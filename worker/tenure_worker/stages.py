"""What a worker does for each kind of job, around the user's three methods."""

from __future__ import annotations

import array
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from tenure_protocol.codec import canonical, plain
from tenure_protocol.records import Direction, MetricValue, check_name
from tenure_worker.experiment import Backtest, Evaluation, Experiment
from tenure_worker.tenure import Tenure

EVALUATION_FILE = "evaluation.json"
BACKTEST_FILE = "backtest.json"
LOSSES_FOLDER = "losses"


def run(tenure: Tenure, experiment: Experiment) -> Mapping[str, object]:
    """Do the job's work and return its result. Raises what the experiment raises."""
    stages = {"train": _train, "evaluate": _evaluate, "backtest": _backtest}
    if tenure.spec.kind not in stages:
        raise ValueError(f"this worker does not know how to do a job of kind {tenure.spec.kind}")
    return stages[tenure.spec.kind](tenure, experiment)


def _train(tenure: Tenure, experiment: Experiment) -> Mapping[str, object]:
    result = experiment.train(tenure, tenure.spec.config, tenure.spec.seed)
    if tenure.saved_step != tenure.step_number or tenure.saved_step == 0:
        raise ValueError(
            f"train() returned {_unsaved(tenure.step_number, tenure.saved_step)}, because the files "
            "of the last milestone are the model"
        )
    if not isinstance(result, Mapping):
        raise TypeError(f"train() returned {type(result).__name__}, not a dict of JSON values")
    return result


def _unsaved(step: int, saved_step: int) -> str:
    """What is missing for a model, and what to call.

    >>> _unsaved(7, 0)
    'at step 7 without any milestone; call tenure.milestone(save) after the last step'
    """
    save = "tenure.milestone(save) after the last step"
    if step == 0:
        return f"and never called tenure.step(); call it after every step of training, and {save}"
    if saved_step == 0:
        return f"at step {step} without any milestone; call {save}"
    return f"at step {step} and its last milestone is of step {saved_step}; call {save}"


def _evaluate(tenure: Tenure, experiment: Experiment) -> Mapping[str, object]:
    found = experiment.evaluate(tenure, tenure.spec.config, _model(tenure))
    if not isinstance(found, Evaluation):
        raise TypeError(f"evaluate() returned {type(found).__name__}, not an Evaluation")
    for name in (*found.metrics, *found.losses):
        check_name(name, "metric")
    for name, metric in found.metrics.items():
        if not math.isfinite(metric.value):
            raise ValueError(f"the metric {name} is {metric.value}")
        if metric.direction not in get_args(Direction):
            raise ValueError(f"the direction of the metric {name} is {metric.direction!r}")
    metrics = {
        name: plain(MetricValue(float(metric.value), metric.direction, metric.unit))
        for name, metric in found.metrics.items()
    }
    counts = {name: len(losses) for name, losses in found.losses.items()}

    def save(folder: Path) -> None:
        (folder / EVALUATION_FILE).write_bytes(canonical({"metrics": metrics, "examples": counts}))
        for name, losses in found.losses.items():
            path = folder / LOSSES_FOLDER / f"{name}.f64"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(_little_endian(losses))

    tenure.milestone(save)
    return {"metrics": metrics}


def _backtest(tenure: Tenure, experiment: Experiment) -> Mapping[str, object]:
    found = experiment.backtest(tenure, tenure.spec.config, _model(tenure))
    if not isinstance(found, Backtest):
        raise TypeError(f"backtest() returned {type(found).__name__}, not a Backtest")
    if not math.isfinite(found.score):
        raise ValueError(f"the score of the backtest is {found.score}")
    verdict = {
        "score": float(found.score),
        "passed": bool(found.passed),
        "reasons": [str(reason) for reason in found.reasons],
    }
    whole = {**verdict, "series": found.series, "tables": found.tables}

    def save(folder: Path) -> None:
        text = json.dumps(whole, default=_number, allow_nan=False)
        (folder / BACKTEST_FILE).write_text(text, encoding="utf-8")

    tenure.milestone(save)
    return verdict


def _model(tenure: Tenure) -> Path:
    folder = tenure.folder / "model"
    folder.mkdir()
    tenure.fetch_model(folder)
    return folder


def _little_endian(losses: object) -> bytes:
    numbers = array.array("d", (float(loss) for loss in losses))  # type: ignore[attr-defined]
    if any(not math.isfinite(number) for number in numbers):
        raise ValueError("a per-example loss is no finite number")
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _number(value: object) -> object:
    """Numbers and arrays of numpy, torch and pandas as JSON values."""
    if isinstance(value, Mapping):
        return dict(value)
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else float(value)  # type: ignore[arg-type]
