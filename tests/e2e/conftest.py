"""Ladders of real processes that leave none behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.ladder import Ladder


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
