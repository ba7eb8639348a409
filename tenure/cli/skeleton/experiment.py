"""A first experiment: predict the next value of a series from its last three.

It runs as it is, needs nothing but Python, and shows all that Tenure asks of an experiment: a class
with `train`, `evaluate` and `backtest`. Replace the series by your data and the three weights by your
model; keep the places where `tenure` is called.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tenure_worker.experiment import Backtest, Evaluation, Metric

if TYPE_CHECKING:
    from tenure_worker.tenure import Tenure

LAGS = 3
STEPS = 300
BATCH = 16
MOMENTUM = 0.8
SPLIT = 500  # the model sees the values before this place only


def series() -> list[float]:
    """900 values of a noisy, damped oscillation: the same on every machine and in every job."""
    noise = random.Random(7)
    values = [0.0, 0.0]
    while len(values) < 900:
        values.append(1.2 * values[-1] - 0.6 * values[-2] + noise.gauss(0.0, 0.3))
    return values


class Model:
    """A linear model, its optimizer and its place in the data: all that a training is made of."""

    def __init__(self, seed: int) -> None:
        # A generator of our own. The global one would be shared with every library.
        self.rng = random.Random(seed)
        self.weights = [self.rng.gauss(0.0, 0.1) for _ in range(LAGS + 1)]
        self.velocity = [0.0] * (LAGS + 1)
        self.steps = 0
        self.loss = 0.0

    def predict(self, values: Sequence[float], place: int) -> float:
        """The value at `place`, predicted from those before it."""
        inputs = [*values[place - LAGS : place], 1.0]
        return sum(w * x for w, x in zip(self.weights, inputs, strict=True))

    def step(self, values: Sequence[float], learning_rate: float) -> None:
        """One batch of gradient descent with momentum, on values before SPLIT."""
        gradient = [0.0] * (LAGS + 1)
        self.loss = 0.0
        for _ in range(BATCH):
            place = self.rng.randrange(LAGS, SPLIT)
            error = self.predict(values, place) - values[place]
            self.loss += error * error / BATCH
            for i, x in enumerate([*values[place - LAGS : place], 1.0]):
                gradient[i] += 2.0 * error * x / BATCH
        for i, slope in enumerate(gradient):
            self.velocity[i] = MOMENTUM * self.velocity[i] - learning_rate * slope
            self.weights[i] += self.velocity[i]
        self.steps += 1

    def save(self, folder: Path) -> None:
        """Write a snapshot. Whatever `load` does not find here is lost when a worker dies.

        A resume is exact only if *everything* is in it: the weights, the optimizer's state, and the
        random generator, which decides what is drawn next. With torch, save_torch and load_torch of
        tenure_worker.snapshot do this for you.
        """
        version, words, gauss = self.rng.getstate()
        state = {
            "weights": self.weights,
            "velocity": self.velocity,
            "steps": self.steps,
            "loss": self.loss,
            "rng": [version, list(words), gauss],
        }
        # JSON keeps every bit of a Python float.
        (folder / "model.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> Model:
        """Go on from what `save` wrote."""
        state = json.loads((folder / "model.json").read_text())
        self.weights, self.velocity = state["weights"], state["velocity"]
        self.steps, self.loss = state["steps"], state["loss"]
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))
        return self


class Experiment:
    """The class that the plan names."""

    # If you read files, name them, and their digest becomes part of every job's id:
    #
    #     def data_files(self):
    #         return [Path(__file__).parent / "prices.csv"]

    def train(
        self, tenure: Tenure, config: Mapping[str, object], seed: int
    ) -> Mapping[str, object]:
        """Train one model. `config` is one point of the plan's grid."""
        values, model = series(), Model(seed)
        learning_rate = float(str(config["learning_rate"]))

        # How long it is: `tenure status` tells an ETA by it, and a slow machine is left sooner. With
        # flops=... of a step and dtype="bf16", machines of different cards can be compared too.
        tenure.work(steps=STEPS)

        # Anything that is silent for long (loading data, compiling, validating) is announced first:
        #     tenure.announce("loading the data", seconds=60)

        # Where another worker left off, or nothing at the first attempt.
        tenure.resume(model.load)

        while model.steps < STEPS:
            model.step(values, learning_rate)

            # After every step. This is what proves that we are alive; it costs a microsecond.
            tenure.step()

            if model.steps % 50 == 0:
                tenure.metric(loss=model.loss)  # `tenure events JOB` shows it

            # Every `milestone_every` steps of the plan, when we are asked to stop, and at the end:
            # the files of the last milestone are the model.
            if tenure.milestone_due or model.steps == STEPS:
                tenure.milestone(model.save)

        # At most 4 KiB of JSON; anything larger is a file of the last snapshot.
        return {"loss": model.loss}

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        """Measure a trained model on values it has not seen.

        The losses are per example, always in the same order, and their mean is the metric of the same
        name: the gate compares two models example by example.
        """
        values, model = series(), Model(seed=0).load(model_dir)
        losses = [
            (model.predict(values, place) - values[place]) ** 2
            for place in range(SPLIT, len(values))
        ]
        mean = sum(losses) / len(losses)
        return Evaluation({"mse": Metric(mean, "minimize", "squared units")}, {"mse": losses})

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        """Play the model over history: here, how much better it is than 'tomorrow as today'.

        `score` is what the plan's min_score is compared with, and `passed` is your own verdict.
        Whether the model may be deployed is not said here: the gates say it.
        """
        values, model = series(), Model(seed=0).load(model_dir)
        ours = naive = 0.0
        advantage = []
        for place in range(SPLIT, len(values)):
            ours += (model.predict(values, place) - values[place]) ** 2
            naive += (values[place - 1] - values[place]) ** 2
            advantage.append(naive - ours)
        score = 1.0 - ours / naive
        return Backtest(
            score=score,
            series={"advantage": advantage},
            tables={"errors": [{"model": ours, "naive": naive}]},
            passed=score > 0.0,
            reasons=[
                f"The model's squared error is {score:.0%} below the naive one; above 0 is asked."
            ],
        )
