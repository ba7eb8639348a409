"""What unit tests may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_clock import FakeClock


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """Virtual time, whose threads end with the test."""
    with FakeClock() as made:
        yield made
