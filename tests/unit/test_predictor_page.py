"""The examples on the planner's page give what it says."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "predictor.md"


def test_every_example_gives_what_the_page_says() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.failed == 0 and found.attempted > 25
