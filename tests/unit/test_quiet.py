"""What libraries print on standard output never stands in the middle of what a command says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.quiet import stdout_kept

ROOT = Path(__file__).resolve().parents[2]
#: HiGHS is told to print all it does, as it does by itself at some numbers; then the command is run.
LOUD = """
import sys
import scipy.optimize
for name in ("milp", "linprog"):
    def loud(*args, solved=getattr(scipy.optimize, name), **options):
        return solved(*args, **{**options, "options": {**(options.get("options") or {}), "disp": True}})
    setattr(scipy.optimize, name, loud)
from tenure.__main__ import main
sys.argv = ["tenure", "allocate", sys.argv[1], "--json", "--method", sys.argv[2]]
main()
"""


@pytest.mark.parametrize("method", ["mip", "greedy"])
def test_a_solver_that_prints_does_not_spoil_json(method: str) -> None:
    scenario = ROOT / "docs" / "allocate" / "kaggle.yaml"
    path = os.pathsep.join([str(ROOT), str(ROOT / "worker")])
    ended = subprocess.run(
        [sys.executable, "-c", LOUD, str(scenario), method], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert "HiGHS" in ended.stderr, "nothing was printed: this test shows nothing"
    assert json.loads(ended.stdout)["method"] == method


def test_what_is_printed_before_and_after_stays_on_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    os.write(1, b"before\n")
    with stdout_kept():
        os.write(1, b"within\n")
    os.write(1, b"after\n")
    said = capfd.readouterr()
    assert said.out == "before\nafter\n" and said.err == "within\n"


def test_a_closed_standard_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: int) -> int:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(os, "dup", closed)
    with stdout_kept():
        pass
