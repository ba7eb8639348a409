"""``tenure doctor``: one row for each thing, and one that is wrong hides no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.cli.doctor import examine
from tenure.settings import load_settings
from tests.tenure_command import tenure

SETTINGS = """\
[store]
url = "file:store"
[runners.here]
kind = "own_process"
slots = 3
[runners.there]
kind = "own_proces"
[runners.odd]
kind = "own_process"
slots = 0
[rungs.local]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "usd", per_h = 0}
"""


def findings(folder: Path, text: str) -> dict[str, list[tuple[bool, str]]]:
    (folder / "tenure.toml").write_text(text)
    found: dict[str, list[tuple[bool, str]]] = {}
    for one in examine(load_settings(folder / "tenure.toml")):
        found.setdefault(one.about, []).append((one.ok, one.detail))
    return found


def test_every_runner_has_its_own_row(tmp_path: Path) -> None:
    found = findings(tmp_path, SETTINGS)
    assert found["runner here"] == [(True, "own_process, 3 at once; rungs local")]
    (there,), (odd,) = found["runner there"], found["runner odd"]
    assert not there[0] and "own_process" in there[1]  # did you mean
    assert not odd[0] and "slots" in odd[1]
    assert found["store"] == [(True, f"file:{tmp_path / 'store'} keeps every condition")]


def test_a_store_that_cannot_be_used_hides_no_runner(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    found = findings(tmp_path, SETTINGS)
    assert not found["store"][0][0] and found["runner here"][0][0]


@pytest.mark.parametrize("broken", [True, False])
def test_the_command_says_so_by_its_exit_code(tmp_path: Path, broken: bool) -> None:
    text = (
        SETTINGS
        if broken
        else SETTINGS.partition("[runners.there]")[0] + SETTINGS[SETTINGS.index("[rungs.local]") :]
    )
    (tmp_path / "tenure.toml").write_text(text)
    ended = tenure("doctor", "--json", "--config", str(tmp_path / "tenure.toml"))
    assert ended.code == (1 if broken else 0), ended.err
    said = json.loads(ended.out)
    assert said["ok"] is not broken
    assert {row["about"] for row in said["checks"]} >= {"settings", "store", "runner here"}
    assert ("runner there, runner odd" in ended.err) is broken
