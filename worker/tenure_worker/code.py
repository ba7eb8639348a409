"""The experiment's code and data: found by import path, named by digest."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from tenure_protocol.codec import short_id
from tenure_worker.experiment import Experiment

_SKIP = {"__pycache__", ".git", ".venv", "node_modules"}


class BadEntryPoint(Exception):
    """An entry point that names no experiment; says what is wrong and what to do."""


def add_code_path(path: Path) -> None:
    """Let entry points be imported from ``path``."""
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))


def code_digest(entry_point: str) -> str:
    """Digest of every ``.py`` file in the folder that holds the entry point's module.

    Raises :class:`BadEntryPoint`.
    """
    folder = module_folder(entry_point)
    rows = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not _SKIP.intersection(Path(name).parts):
            rows.append(f"{_sha256(path)}  {name}\n")
    return short_id("".join(rows).encode())


def module_folder(entry_point: str) -> Path:
    """The folder that holds the entry point's module. Raises :class:`BadEntryPoint`."""
    module, _, _ = entry_point.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # whatever the packages above it raise while they are imported
        words = f"{type(error).__name__}: {error}"
        raise BadEntryPoint(f"the module {module!r} cannot be imported ({words})") from error
    if spec is None or spec.origin is None:
        raise BadEntryPoint(
            f"there is no module {module!r}; check the spelling of {entry_point!r} "
            "and that the folder above it is where tenure.toml stands"
        )
    return Path(spec.origin).parent


def load_experiment(entry_point: str) -> Experiment:
    """Import and instantiate ``module:Class``. Raises :class:`BadEntryPoint`."""
    module_name, _, name = entry_point.partition(":")
    module_folder(entry_point)
    module = importlib.import_module(module_name)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise BadEntryPoint(f"the module {module_name!r} has no class {name!r}")
    for method in ("train", "evaluate", "backtest"):
        if not callable(getattr(found, method, None)):
            raise BadEntryPoint(f"the class {entry_point!r} has no method {method}()")
    return cast(Experiment, found())


def data_digest(experiment: Experiment) -> str:
    """Digest of the bytes of the files the experiment names; raises ``OSError``."""
    name_files = getattr(experiment, "data_files", None)
    files = cast(Callable[[], Sequence[Path]], name_files)() if callable(name_files) else []
    rows = [f"{_sha256(Path(path))}  {Path(path).name}\n" for path in files]
    return short_id("".join(rows).encode())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
