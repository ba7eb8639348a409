"""A pure-Python "training" whose end state depends on every step, so that a wrong resume shows.

config: steps (100), pause_s per step (0), files (1) and file_bytes (200) of each snapshot, and
``fails`` for the ways a job may end otherwise: raise, memory, exit, no_milestone, no_result, big.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tenure_protocol.clock import SYSTEM
from tenure_worker.experiment import Backtest, Evaluation, Metric
from tenure_worker.tenure import Tenure

STATE = "state.json"


def advance(word: int, step: int) -> int:
    """One step of the toy's training: a different number for every history."""
    digest = hashlib.sha256(f"{word}/{step}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def final_word(seed: int, steps: int) -> int:
    """What an uninterrupted training of ``steps`` steps ends with."""
    word = seed
    for step in range(1, steps + 1):
        word = advance(word, step)
    return word


class Toy:
    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        steps, pause_s = int(str(config.get("steps", 100))), float(str(config.get("pause_s", 0)))
        fails = config.get("fails")
        state = tenure.resume(_load) or {"step": 0, "word": seed}

        def save(folder: Path) -> None:
            (folder / STATE).write_text(json.dumps(state))
            for n in range(1, int(str(config.get("files", 1)))):
                content = f"{state['word']}-{n} ".encode() * int(str(config.get("file_bytes", 200)))
                (folder / "parts").mkdir(exist_ok=True)
                (folder / "parts" / f"{n}.bin").write_bytes(content)

        while state["step"] < steps:
            state["step"] += 1
            state["word"] = advance(state["word"], state["step"])
            if pause_s:
                SYSTEM.sleep(pause_s)
            tenure.step()
            tenure.metric(word=state["word"])
            if fails and state["step"] * 2 >= steps:
                _fail(str(fails))
            if tenure.milestone_due:
                tenure.milestone(save)
        print(f"trained to step {state['step']}")
        if tenure.saved_step != tenure.step_number and fails != "no_milestone":
            tenure.milestone(save)
        if fails == "no_result":
            return None  # type: ignore[return-value]
        return {"word": state["word"], **({"big": "x" * 5000} if fails == "big" else {})}

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        word = _load(model_dir)["word"]
        losses = [advance(word, n) / 2**48 for n in range(50)]
        mean = sum(losses) / len(losses)
        return Evaluation({"loss": Metric(mean, "minimize", "1")}, {"loss": losses})

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        word = _load(model_dir)["word"]
        equity = [1.0]
        for n in range(20):
            equity.append(equity[-1] * (1 + (advance(word, n) / 2**48 - 0.4) / 50))
        score = equity[-1] - 1
        return Backtest(
            score,
            {"equity": equity, "day": [f"day {n}" for n in range(21)]},
            {"years": [{"year": 1, "return": score}]},
            score > 0,
            (f"the return is {score:.3f}, it must be above 0",),
        )


def _load(folder: Path) -> dict[str, int]:
    state: dict[str, int] = json.loads((folder / STATE).read_text())
    return state


def _fail(how: str) -> None:
    if how == "raise":
        raise KeyError("a bug of the experiment")
    if how == "memory":
        raise MemoryError
    if how == "exit":
        sys.exit(0)
