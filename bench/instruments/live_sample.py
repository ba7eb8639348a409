"""One process that loads a deployed model and, beside it, only reads the same files; times as JSON.

Everything it imports before its first time is the standard library, or torch where the process that
serves has it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tenure_protocol.clock import SYSTEM

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[T, float]:
    began_s = SYSTEM.monotonic_s()
    found = call()
    return found, SYSTEM.monotonic_s() - began_s


def read(path: Path) -> None:
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256").hexdigest()


def main(name: str, store: str, key: str, cache: str, stored: str, torch: str, files: str) -> None:
    """``stored`` is the key of the model's one file in the store."""
    if torch == "torch":
        importlib.import_module("torch")
    took: dict[str, float] = {}
    _, took["import_s"] = timed(lambda: importlib.import_module("tenure_live"))
    from tenure_live import load_model

    def load() -> Path:
        return load_model(name, store=store, trusted_keys=[Path(key)], cache=Path(cache)).path

    path, took["load_s"] = timed(load)
    _, took["again_s"] = timed(load)
    file = next(path.iterdir())

    def fetch() -> None:
        from tenure_protocol.store.open import open_store

        copy = Path(cache) / "copy"
        open_store(store, read_only=True).get_file(stored, copy)
        read(copy)

    _, took["read_s"] = timed(fetch if files == "fetched" else lambda: read(file))
    print(json.dumps(took))


if __name__ == "__main__":
    main(*sys.argv[1:])
