"""A Python without torch, for workers whose experiments need none.

A worker measures its environment before it claims, and where torch is installed it is asked: 1.7 s of
CPU, many times what the rest of a short job takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def without_torch(folder: Path) -> Path:
    """A folder for ``PYTHONPATH``, below ``folder``, on which torch cannot be imported."""
    path = folder / "without-torch"
    path.mkdir(parents=True, exist_ok=True)
    (path / "torch.py").write_text("raise ImportError('hidden from these workers')\n")
    return path


@contextmanager
def hidden_torch(folder: Path) -> Iterator[None]:
    """Whatever this process starts for the time of the block cannot import torch."""
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH")
        path = filter(None, [str(without_torch(folder)), before])
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        yield
