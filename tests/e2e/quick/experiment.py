"""An experiment of a tenth of a second whose seeds differ a little, so that a fair margin passes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

from tenure_protocol.clock import SYSTEM
from tenure_worker.experiment import Backtest, Evaluation, Metric
from tenure_worker.tenure import Tenure

EXAMPLES = 60
SEED_SPREAD = 0.01  # standard deviation of the loss over seeds
FILE = "model.json"


class Quick:
    """config: level (the loss it comes to), steps (12), pause_s (0), and at the last step it may wait
    until a file is there (the test's word that it has seen enough)."""

    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        steps, pause_s = int(str(config.get("steps", 12))), float(str(config.get("pause_s", 0)))
        level = float(str(config["level"])) + random.Random(seed).gauss(0, SEED_SPREAD)
        state = tenure.resume(lambda folder: json.loads((folder / FILE).read_text()))
        step = int(state["step"]) if state else 0

        def save(folder: Path) -> None:
            (folder / FILE).write_text(json.dumps({"step": step, "level": level, "seed": seed}))

        while step < steps:
            step += 1
            SYSTEM.sleep(pause_s)
            while step == steps and "until" in config and not Path(str(config["until"])).exists():
                SYSTEM.sleep(0.1)
                tenure.step()
            tenure.step()
            tenure.metric(loss=level + 1 / step)
            if tenure.milestone_due or step == steps:
                tenure.milestone(save)
        return {"train_loss": level}

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        model = json.loads((model_dir / FILE).read_text())
        own = random.Random(model["seed"])
        losses = [
            model["level"] + random.Random(n).gauss(0, 0.1) + own.gauss(0, 0.001)
            for n in range(EXAMPLES)
        ]
        mean = sum(losses) / EXAMPLES
        return Evaluation({"loss": Metric(mean, "minimize", "nats")}, {"loss": losses})

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        model = json.loads((model_dir / FILE).read_text())
        score = 1.0 - model["level"]
        equity = [1.0 + score * day / 100 for day in range(50)]
        return Backtest(
            score,
            {"equity": equity, "buy_and_hold": [1.0 + day / 200 for day in range(50)]},
            {"years": [{"year": 1, "return": equity[-1] - 1}]},
            score > 0,
            (f"the score is {score:.3f}, it must be above 0",),
        )
