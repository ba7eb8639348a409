"""A "training" in pure Python whose snapshots and events carry the pid that wrote them.

Its state depends on every step, so the final number proves that a job which changed hands is the
uninterrupted one, and the pids tell whether two processes ever wrote for one attempt.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

from tenure_protocol.clock import SYSTEM
from tenure_worker.experiment import Backtest, Evaluation, Metric
from tenure_worker.tenure import Tenure

STATE = "orbit.json"
EXAMPLES = 40


def advance(state: int, step: int) -> int:
    """The next state; depends on the step so that a repeated step cannot go unseen."""
    return (state * 6364136223846793005 + 1442695040888963407 + step) % 2**63


def uninterrupted(seed: int, steps: int) -> int:
    """Where a run ends that nothing ever disturbed."""
    state = seed
    for step in range(1, steps + 1):
        state = advance(state, step)
    return state


def let_go(until: Path, *seeds: int) -> None:
    """Let the jobs with these seeds, which ``until`` holds, go on to their ends."""
    until.mkdir(exist_ok=True)
    for seed in seeds:
        (until / str(seed)).touch()


def number(config: Mapping[str, object], key: str, default: float) -> float:
    """A number of the config."""
    return float(str(config.get(key, default)))


class Orbit:
    """Config: ``steps`` (100), ``pause_s`` per step (0), ``level`` (1) and ``noise`` (0.01) of the
    loss, ``score`` (0.5) of the backtest, ``padding`` bytes (0) of a snapshot.

    ``until`` names a folder: a job is held before its last step, alive and renewing, until a file
    with its seed for a name is there (:func:`let_go`), however slow the test that looks for it is.
    """

    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        steps, pause_s = number(config, "steps", 100), number(config, "pause_s", 0)
        padding = "x" * int(number(config, "padding", 0))
        resumed = tenure.resume(lambda folder: json.loads((folder / STATE).read_text()))
        state, beats = (int(resumed["state"]), int(resumed["beats"])) if resumed else (seed, 0)
        held = Path(str(config["until"])) / str(seed) if "until" in config else None

        def save(folder: Path) -> None:
            record = {
                "state": state, "beats": beats, "seed": seed, "pid": os.getpid(), "padding": padding
            }  # fmt: skip
            (folder / STATE).write_text(json.dumps(record))

        while (step := tenure.step_number - beats) < steps:
            if step == steps - 1 and held and not held.exists() and not tenure.stopping:
                SYSTEM.sleep(0.1)
                beats += 1
                tenure.step()  # so that it lives
                continue
            SYSTEM.sleep(pause_s)
            state = advance(state, step + 1)
            tenure.step()
            tenure.metric(loss=1.0 / tenure.step_number, pid=os.getpid())
            if tenure.milestone_due:
                tenure.milestone(save)
        if tenure.saved_step != tenure.step_number:
            tenure.milestone(save)
        return {"state": state}

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        draw = random.Random(json.loads((model_dir / STATE).read_text())["seed"])
        level = number(config, "level", 1) + draw.gauss(0, number(config, "noise", 0.01))
        same_for_all = random.Random(7)
        losses = [level + same_for_all.gauss(0, 0.1) for _ in range(EXAMPLES)]
        loss = sum(losses) / len(losses)
        return Evaluation({"loss": Metric(loss, "minimize", "nats")}, {"loss": losses})

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        draw = random.Random(json.loads((model_dir / STATE).read_text())["state"])
        equity = [1.0]
        for _ in range(30):
            equity.append(equity[-1] * (1 + draw.gauss(0.001, 0.01)))
        score = number(config, "score", 0.5)
        return Backtest(
            score=score,
            series={"equity": equity},
            tables={"figures": [{"what": "last equity", "value": equity[-1]}]},
            passed=score > 0,
            reasons=(f"the score is {score}, it must be above 0",),
        )
