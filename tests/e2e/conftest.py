"""Ladders of real processes that leave none behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.ladder import Ladder
from tests.without_torch import hidden_torch

collect_ignore = ["bucket_asset.py"]  # it has no doctest, and imports what one test alone needs


@pytest.fixture(scope="module", autouse=True)
def _workers_have_no_torch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Unless a module says ``NEEDS_TORCH = True``, or a test of it asks for ``with_torch``."""
    if getattr(request.module, "NEEDS_TORCH", False):
        yield
        return
    with hidden_torch(tmp_path_factory.mktemp("hidden")):
        yield


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test starts finds torch."""
    monkeypatch.delenv("PYTHONPATH")


@pytest.fixture
def make_ladder() -> Iterator[Callable[..., Ladder]]:
    """``make_ladder(folder, slots=4, **runner_config)``; every worker has ended after the test."""
    made: list[Ladder] = []

    def make(folder: Path, slots: int = 4, **config: object) -> Ladder:
        made.append(Ladder(folder, slots, **config))
        return made[-1]

    yield make
    for ladder in made:
        ladder.close()
