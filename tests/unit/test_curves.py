"""A picture that cannot be drawn costs a sentence, never the stage whose jobs are all finished."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from assets import curves
from assets.curves import Curve
from assets.facts import Picture
from assets.materialize import materialized

LINE = [Curve("lr=0.1, seed 1", "lr=0.1", [1, 2], [0.5, 0.25])]
WORDS = "loss over 1 trainings"
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed, although another test may have imported it."""
    for name in [*sys.modules, "matplotlib"]:
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)


def test_where_matplotlib_is_missing_a_sentence_stands_for_the_picture(
    without_matplotlib: None,
) -> None:
    found = curves._picture(LINE, "step", "loss", WORDS)
    assert isinstance(found, str) and "\n" not in found
    assert "matplotlib cannot be imported" in found and WORDS in found
    shown = materialized({"summary": "done", "loss_curve": found}, ["job"]).metadata
    assert shown is not None and shown["loss_curve"].value == found  # type: ignore[union-attr]


def test_where_it_is_installed_the_picture_is_drawn() -> None:
    found = curves._picture(LINE, "step", "loss", WORDS)
    assert isinstance(found, Picture) and found.png.startswith(b"\x89PNG") and found.words == WORDS


def test_the_extra_that_a_chain_needs_brings_matplotlib() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["dagster"]
    assert any(requirement.startswith("matplotlib") for requirement in extra)
