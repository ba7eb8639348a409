"""Seeded histories: the protocol's own code under a hostile store, platform and clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from tenure.cli import sim as command
from tenure.sim import run
from tenure.sim.checks import Violation
from tenure.sim.faults import KINDS, THEMES
from tenure.sim.run import Summary, run_history, run_many
from tenure.sim.scenario import OutagePath, outages_of

PATHS: tuple[OutagePath, ...] = ("platform", "dispatcher", "store", "worker")


def _assert_none_broken(summary: Summary) -> None:
    told = [f"tenure sim --replay {seed}: {found}" for seed, found in summary.violations]
    assert not told, "\n".join(told)


@pytest.mark.parametrize(
    "share", [0, 1, *(pytest.param(share, marks=pytest.mark.soak) for share in (2, 3))]
)
def test_no_history_breaks_an_invariant(share: int) -> None:
    summary = run_many(500, 500 * share, processes=1)
    _assert_none_broken(summary)
    assert summary.histories == 500
    assert summary.ends["finished"] > 20 * summary.ends["cancelled"] / 3
    assert set(summary.ends) == {"finished", "cancelled"}
    rare = {"protocol_error", "worker_suspend"}
    assert set(KINDS) - rare <= set(summary.faults), set(KINDS) - set(summary.faults)


@pytest.mark.parametrize("theme", THEMES)
def test_the_same_seed_is_the_same_history(theme: str) -> None:
    for seed in range(5):
        first, again = run_history(seed, theme=theme), run_history(seed, theme=theme)
        assert first == again
        assert first.trace_hash == run_history(seed, record=True, theme=theme).trace_hash
        assert first.theme == theme
    assert run_history(1, theme=theme).trace_hash != run_history(2, theme=theme).trace_hash


def test_the_same_seed_is_the_same_history_in_another_process() -> None:
    code = (
        "from tenure.sim.run import run_history\n"
        "print([run_history(seed).trace_hash for seed in range(12)])"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for salt in ("0", "7")
    }
    assert len(hashes) == 1
    assert repr(run_history(3).trace_hash) in hashes.pop()


def test_processes_share_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SHARE", 20)  # three shares, the last of them a small one
    alone, together = run_many(45, 50, processes=1), run_many(45, 50, processes=2)
    assert alone.histories == 45
    assert alone == together


@pytest.mark.parametrize("path", PATHS)
def test_outages_while_the_loop_is_healthy(path: OutagePath) -> None:
    _check_outages(path, outages=3, hours=2.0)


def _check_outages(path: OutagePath, outages: int, hours: float) -> None:
    outcome = outages_of(path, outages, hours)
    assert outcome.violations == ()
    assert (outcome.outages, outcome.end, outcome.lost_steps) == (outages, "finished", 0)
    if path == "worker":
        assert outcome.recoveries <= outages
    else:
        assert outcome.recoveries == 0


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(command.sim)
    return app


def test_the_command_prints_what_happened() -> None:
    app = _app()
    options = ["--histories", "20", "--seed", "7", "--processes", "1", "--json"]
    got = CliRunner().invoke(app, options)
    assert got.exit_code == 0, got.output
    told = json.loads(got.stdout)
    assert told["histories"] == 20 and told["steps"] > 1000 and told["violations"] == []
    assert sum(told["faults"].values()) > 20
    words = CliRunner().invoke(app, ["--replay", "7"])
    assert "starts for launch" in words.stdout and run_history(7).trace_hash in words.stdout


def test_the_command_names_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Summary(histories=3, violations=[(41, Violation("4 final", 1.0, "it was over"))])
    monkeypatch.setattr(command, "run_many", lambda *_: broken)
    app = _app()
    got = CliRunner().invoke(app, ["--json"])
    assert got.exit_code != 0
    (found,) = json.loads(got.stdout)["violations"]
    assert found["invariant"] == "4 final" and found["replay"] == "tenure sim --replay 41"
    assert "1 broken invariants" in str(got.exception)


@pytest.mark.soak
def test_a_hundred_thousand_histories() -> None:
    summary = run_many(100_000, 1_000_000)
    _assert_none_broken(summary)
    assert set(KINDS) <= set(summary.faults)
    print(summary.histories, "histories,", summary.steps, "steps", summary.ends, summary.faults)


@pytest.mark.soak
@pytest.mark.parametrize("path", PATHS)
def test_nineteen_hours_of_outages(path: OutagePath) -> None:
    _check_outages(path, outages=25, hours=19.0)
