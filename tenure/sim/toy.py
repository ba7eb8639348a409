"""A training in virtual time whose result depends on every step, so that a wrong resume shows."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from tenure_protocol.clock import Clock
from tenure_worker.tenure import Tenure

_STATE = "state.json"


class CodeError(Exception):
    """A bug of the experiment."""


def advance(word: int, step: int) -> int:
    """One step: a different number for every history."""
    digest = hashlib.blake2b(f"{word}/{step}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def final_word(seed: int, steps: int) -> int:
    """What an uninterrupted training ends with."""
    word = seed
    for step in range(1, steps + 1):
        word = advance(word, step)
    return word


def train(
    tenure: Tenure,
    clock: Clock,
    steps: int,
    step_s: float,
    fault: str,
    each_step: Callable[[Tenure], None],
) -> dict[str, object]:
    """Train to ``steps``; ``fault`` is how the code or its machine fails half way, if it does.

    ``each_step`` is called between the steps.
    """
    state = tenure.resume(_load) or {"step": 0, "word": tenure.spec.seed}

    def save(folder: Path) -> None:
        # No two saves have the same bytes, as those of a training that is not bitwise.
        (folder / _STATE).write_text(json.dumps({**state, "salt": clock.nonce()}))

    while state["step"] < steps:
        state["step"] += 1
        state["word"] = advance(state["word"], state["step"])
        clock.sleep(step_s)
        tenure.step()
        each_step(tenure)
        if fault and 2 * state["step"] >= steps:
            _fail(fault)
        if tenure.milestone_due:
            tenure.metric(word=state["word"])
            tenure.milestone(save)
    if tenure.saved_step != tenure.step_number:
        tenure.milestone(save)
    return {"word": state["word"]}


def _load(folder: Path) -> dict[str, int]:
    state: dict[str, int] = json.loads((folder / _STATE).read_text())
    del state["salt"]
    return state


def _fail(fault: str) -> None:
    if fault == "out_of_memory":
        raise MemoryError
    if fault == "machine_fault":
        raise OSError(errno.EIO, "the disk failed")
    raise CodeError("a bug of the experiment")
