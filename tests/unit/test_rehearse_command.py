"""``tenure rehearse PLAN`` on a real store folder: what it plays, what it says, and how it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tenure.dispatch.contract import Quota, Unreachable
from tenure.dispatch.registry import build_rungs
from tenure.dispatch.rehearsal import Hints, prepare
from tenure.plan.enlist import enlist
from tenure.plan.file import load_plan
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Hold, Move
from tenure_protocol.records import (
    JobSpec,
    Lifetime,
    Lifetimes,
    Manifest,
    Observation,
    Observations,
)
from tenure_protocol.store.api import Written
from tenure_protocol.store.directory import DirectoryStore
from tests.tenure_command import complaint, tenure
from tests.unit.test_cli import CLAIM, FINISH, HOLDER, RESERVE, ROOT, Shop, spec

T4, A100 = "Tesla T4", "NVIDIA A100-SXM4-40GB"
FLOPS, STEPS, STEP_S = 1e13, 9_000, 2.0
WORK = "FLOPs of fp16"
H = 3600.0

SETTINGS = """\
[runners.cloud]
kind = "own_process"
slots = 3
[runners.sure]
kind = "own_process"
slots = 2
[rungs.dear]
runner = "sure"
card = "a100"
price_class = "on_demand"
price = {currency = "usd", per_h = 2.0}
[rungs.spot]
runner = "cloud"
card = "t4"
price_class = "spot"
price = {currency = "usd", per_h = 0.3}
"""
PLAN = """\
name: first
experiment: experiments.first:Experiment
grid:
  lr: [0.1, 0.2]
seeds: [0, 1, 2]
retrain_seeds: [10, 11]
baseline: {lr: 0.1}
rungs: [dear, spot]
milestone_every: 300
promote: {metric: loss, direction: minimize, margin: 0.1, min_score: 0.5}
"""
HINT = ("--step-s", "spot=2", "--step-s", "dear=0.5", "--steps", "9000")


class Folder:
    """A project's folder with its store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shop = Shop(DirectoryStore(root / ".tenure" / "store"))
        (root / "tenure.toml").write_text(SETTINGS)
        self.plan()

    def plan(self, more: str = "", **changed: str) -> str:
        text = PLAN
        for old, new in changed.items():
            assert f"{old}:" in text
            text = "\n".join(
                f"{old}: {new}" if line.startswith(f"{old}:") else line
                for line in text.splitlines()
            )
        (self.root / "plan.yaml").write_text(f"{text}\n{more}\n")
        return "plan.yaml"

    def trained(self, lr: float, seed: int = 0, name: str = "first", **told: object) -> JobSpec:
        """A job that has a result, and the manifest of its last milestone."""
        job = spec(seed, config={"lr": lr}, milestone_every=300)
        enlist(self.shop.store, name, "first", [job], {"rungs": ["spot"]}, SYSTEM)
        manifest = Manifest(
            job.id, 1, STEPS, 1, 1, {}, {"card": T4}, None, STEP_S, STEPS * STEP_S, 0, FLOPS,
            "fp16", STEPS,
        )  # fmt: skip
        body = encode(replace(manifest, **told))  # type: ignore[arg-type]
        pointer = manifest.pointer(body)
        assert isinstance(self.shop.store.create(keys.manifest(job.id, pointer), body), Written)
        moved = Hold(HOLDER, 1, 30.0, move=Move(pointer, None))
        self.shop.apply(job, RESERVE, CLAIM, moved, FINISH)
        return job

    def observed(self, runner: str, rung: str, card: str, step_s: float, lives_h: float) -> None:
        """Forty launches on a rung: a start of two minutes, a speed, and lives that end early or late."""
        rng = Random(7)
        rows, lifetimes = [], []
        for n in range(40):
            held_s, lost = rng.expovariate(1 / (lives_h * H)), True
            if held_s > 5 * H:
                held_s, lost = 5 * H, False
            steps = max(40, int(held_s / step_s))
            end, busy_s = "lost" if lost else "finished", steps * step_s
            job = f"{n:026d}".translate(str.maketrans("0123456789", "abcdefghij"))
            rows.append(
                Observation(
                    job, 1, rung, end, WORK, 120.0, 120.0 + busy_s, busy_s, steps * FLOPS, step_s
                )
            )
            lifetimes.append(Lifetime(job, 1, rung, end, held_s=held_s, load_s=30.0, milestones=3))
        record = Observations(runner, card, "d", tuple(rows), "w")
        self.shop.put(keys.observations(runner, card), encode(record))
        lives = Lifetimes(runner, card, "d", tuple(lifetimes), "w")
        self.shop.put(keys.lifetimes(runner, card), encode(lives))

    def play(self, *args: str) -> dict[str, Any]:
        ended = tenure("rehearse", "plan.yaml", "--plays", "30", "--json", *args)
        assert ended.code == 0 and ended.err == "", ended
        found: dict[str, Any] = json.loads(ended.out)
        return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.chdir(tmp_path)
    for name in ("TENURE_CONFIG", "TENURE_STORE"):
        monkeypatch.delenv(name, raising=False)
    yield Folder(tmp_path)


@pytest.fixture
def seen(folder: Folder) -> Folder:
    """Both configurations have a result, and both rungs have been used."""
    folder.trained(0.1)
    folder.trained(0.2)
    folder.observed("cloud", "spot", T4, STEP_S, 3.0)
    folder.observed("sure", "dear", A100, 0.5, 1000.0)
    return folder


# --------------------------------------------------------------------------- what was observed


def test_what_the_store_knows_is_played(seen: Folder) -> None:
    """A job is five hours on spot and 1.25 on dear; a machine of spot lasts three hours."""
    told = seen.play()
    assert told["jobs"] == {"training": 6} and told["assumed"] == []
    assert told["rule"] == "order" and told["order"] is None and told["on_time"] is None
    rows = {row["rung"]: row for row in told["rungs"]}
    assert (rows["spot"]["card"], rows["dear"]["card"]) == (T4, A100)
    assert rows["dear"]["launches"] >= 2 and rows["spot"]["losses"] > 1
    assert rows["dear"]["share"] + rows["spot"]["share"] == pytest.approx(1.0)
    cost = 2.0 * rows["dear"]["hours"] + 0.3 * rows["spot"]["hours"]
    assert told["cost"]["usd"]["mean"] == pytest.approx(cost)
    finish = told["finish_h"]
    assert finish["p10"] <= finish["p50"] <= finish["p90"] and 2.5 < finish["mean"] < 12
    work_h = told["phases_h"]["compute"]
    assert 6 * 1.25 < work_h < 6 * 5


def test_with_a_deadline_both_rules_are_told(seen: Folder) -> None:
    seen.plan("deadline_h: 30")
    told = seen.play()
    assert told["rule"] == "planner" and told["on_time"] > 0.9
    assert told["cost"]["usd"]["mean"] < 0.8 * told["order"]["cost"]["usd"]["mean"]
    (seen.root / "tenure.toml").write_text(f"{SETTINGS}[planner]\nenabled = false\n")
    off = seen.play()
    assert off["rule"] == "order" and off["order"] is None
    assert off["cost"] == told["order"]["cost"] and off["on_time"] == told["order"]["on_time"]


def test_a_point_that_nobody_has_seen_is_as_long_as_the_longest(folder: Folder) -> None:
    folder.trained(0.1)
    folder.observed("cloud", "spot", T4, STEP_S, 3.0)
    told = folder.play()
    assert any("1 of 2 points of the grid have not been seen" in each for each in told["assumed"])
    assert any(
        "rung dear does FLOPs of fp16 4.8 times as fast as on Tesla T4, by peaks" in each
        for each in told["assumed"]
    )
    assert any("no start on rung dear has been seen" in each for each in told["assumed"])


def test_jobs_of_another_plan_with_the_same_configuration_tell_too(folder: Folder) -> None:
    folder.trained(0.1, name="other")
    folder.observed("cloud", "spot", T4, STEP_S, 3.0)
    assert folder.play()["phases_h"]["compute"] > 5


def test_a_job_that_told_no_length_was_as_long_as_it_took(folder: Folder) -> None:
    job = folder.trained(0.1, flops_per_step=None, dtype=None, steps_total=None)
    other = spec(1, config={"lr": 0.2}, milestone_every=300)
    assert job.id != other.id
    refused = complaint(
        "rehearse", "plan.yaml"
    )  # steps of a configuration that nobody has measured
    assert "no rung can run its jobs (dear: nobody can say how fast" in refused.err


def test_the_answer_is_the_same_each_time_and_another_by_another_seed(seen: Folder) -> None:
    assert seen.play() == seen.play()
    assert seen.play()["finish_h"] != seen.play("--seed", "1")["finish_h"]


def test_nothing_is_written_into_the_store(seen: Folder) -> None:
    seen.play()  # the first use of a store probes it
    before = sorted(row.key for row in seen.shop.store.list(""))
    seen.play()
    assert sorted(row.key for row in seen.shop.store.list("")) == before


# --------------------------------------------------------------------------------- what is said


def test_hints_stand_for_what_nobody_has_seen(folder: Folder) -> None:
    told = folder.play(*HINT)
    assert told["phases_h"]["compute"] > 6 * 1.25 * 0.9
    by_peaks = folder.play("--step-s", "0.5", "--steps", "9000")
    assert any("rung spot is 0.208 times as fast as dear" in each for each in by_peaks["assumed"])
    work = folder.play("--work", "9e16", "--steps", "9000")
    assert any("35 % (assumed, nothing was measured here) of a peak" in a for a in work["assumed"])
    coarse = folder.play("--work", "9e16")
    assert any("a milestone is written every 30 min" in each for each in coarse["assumed"])


def test_a_hint_goes_before_what_was_seen(seen: Folder) -> None:
    longer = seen.play("--step-s", "dear=0.5", "--step-s", "spot=2", "--steps", "90000")
    assert longer["phases_h"]["compute"] > 5 * seen.play()["phases_h"]["compute"]


def test_a_trace_takes_the_place_of_the_lives(seen: Folder) -> None:
    market = seen.root / "market.json"
    market.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [0] * 500}))
    told = seen.play("--trace", f"spot={market}")
    rows = {row["rung"]: row for row in told["rungs"]}
    assert rows["spot"]["launches"] == 0 and rows["dear"]["share"] == pytest.approx(1.0)
    market.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [3] * 500}))
    rows = {row["rung"]: row for row in seen.play("--trace", f"spot={market}")["rungs"]}
    assert rows["spot"]["launches"] > 0 and rows["spot"]["losses"] == 0


def test_the_retrain_is_played_on_request(seen: Folder) -> None:
    seen.plan("pin: {card: 'NVIDIA A100-SXM4-40GB'}")
    alone, told = seen.play(), seen.play("--retrain")
    assert told["jobs"] == {"training": 6, "pinned_retrain": 3}
    launches = [{r["rung"]: r["launches"] for r in each["rungs"]} for each in (alone, told)]
    assert launches[1]["spot"] == launches[0]["spot"]
    assert launches[1]["dear"] == pytest.approx(launches[0]["dear"] + 3, abs=0.2)
    assert told["finish_h"]["mean"] > alone["finish_h"]["mean"] + 2
    seen.plan("pin: {card: 'NVIDIA H100'}")
    refused = complaint("rehearse", "plan.yaml", "--retrain")
    assert "pin: no rung of the plan has the card 'NVIDIA H100' for the retrain" in refused.err


def test_the_words_have_the_numbers_of_the_json(seen: Folder) -> None:
    seen.plan("deadline_h: 30\nbudget: {usd: 90}")
    told = seen.play()
    ended = tenure("rehearse", "plan.yaml", "--plays", "30", "--faster", "4")
    assert ended.code == 0 and ended.err == ""
    for rule, each in (("the planner", told), ("the user's order", told["order"])):
        cells = "  ".join(f"{each['finish_h'][key]:.2f}" for key in ("mean", "p10", "p50", "p90"))
        row = next(
            line
            for line in ended.out.splitlines()
            if line.startswith(f"{rule} ") and "finish" in line
        )
        assert row.split()[-4:] == cells.split()
    assert f"P(on time) {told['on_time']:.2f} (sd " in ended.out and "due in 30 h" in ended.out
    assert "P(all is done within the budget of 90 usd) 1.00" in ended.out
    assert "4 times as fast makes the whole" in ended.out
    faster = told["faster"]
    f = faster["part"]
    assert faster["times"] == 2.0 and faster["speedup"] == pytest.approx(1 / ((1 - f) + f / 2))
    assert (
        faster["most"] == pytest.approx(1 / (1 - f))
        and "a faster card shortens" in faster["reason"]
    )
    hours = told["phases_h"]
    assert f == pytest.approx(hours["compute"] / sum(hours.values()))


def test_a_picture_is_drawn_where_matplotlib_is(
    seen: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    seen.plan("deadline_h: 30\nbudget: {usd: 90}")
    picture = seen.root / "told.png"
    seen.play("--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5_000
    refused = tenure("rehearse", "plan.yaml", "--plays", "3", "--plot", "nowhere/told.png")
    assert refused.code == 2 and "--plot nowhere/told.png cannot be written" in refused.err
    picture.unlink()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    without = tenure("rehearse", "plan.yaml", "--plays", "3", "--plot", str(picture))
    assert without.code == 0 and not picture.exists()
    assert "is not drawn: matplotlib is missing" in without.err


# -------------------------------------------------------------------------------- the answer is no


def test_a_deadline_that_no_play_keeps_ends_with_1_and_a_way_out(seen: Folder) -> None:
    seen.plan("deadline_h: 1")
    ended = tenure("rehearse", "plan.yaml", "--plays", "20", "--json")
    assert ended.code == 1
    told = json.loads(ended.out)
    way_out = told["relaxation"]
    assert way_out["what"] == "deadline_h" and way_out["asked"] == 1 and way_out["short"] > 0
    assert ended.err == f"tenure: {way_out['reason']}\n"
    seen.plan(f"deadline_h: {way_out['enough']}")
    assert tenure("rehearse", "plan.yaml", "--plays", "20").code == 0


def test_a_budget_that_no_play_keeps_ends_with_1_and_a_way_out(seen: Folder) -> None:
    seen.plan("budget: {usd: 1}")
    ended = tenure("rehearse", "plan.yaml", "--plays", "20", "--json")
    told = json.loads(ended.out)
    assert ended.code == 1 and told["budget_kept"] == 0 and told["never"] == 1
    assert told["finish_h"] == {"mean": None, "p10": None, "p50": None, "p90": None}
    assert told["relaxation"]["what"] == "budget.usd" and told["relaxation"]["enough"] > 1


# -------------------------------------------------------------------------------------- quotas


def with_quota(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    from runners.own_process import OwnProcessRunner

    def quota(self: OwnProcessRunner) -> object:
        if self._name != "cloud":
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(OwnProcessRunner, "quota", quota, raising=False)


def test_what_a_platform_has_left_is_played(seen: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.plan(rungs="[spot, dear]")
    before = {row["rung"]: row["hours"] for row in seen.play()["rungs"]}
    with_quota(monkeypatch, Quota(26.0, 30.0))
    after = {row["rung"]: row["hours"] for row in seen.play()["rungs"]}
    assert after["spot"] <= 4.0 < before["spot"] and after["dear"] > before["dear"]


def test_a_platform_that_does_not_tell_is_named(
    seen: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_quota(monkeypatch, Unreachable("no route"))
    told = seen.play()
    assert told["assumed"] == ["the quota of runner cloud is not known (no route): none is played"]


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("plan.yaml",),
            "say --step-s SECONDS --steps N (on the plan's first rung), or --work FLOPS",
        ),
        (("nowhere.yaml",), "nowhere.yaml: there is no such plan"),
        (("laese",), "no such rehearsal; did you mean 'lease'?"),
        (("plan.yaml", "--plays", "0"), "--plays 0; there are 1 to"),
        (("plan.yaml", "--seed", "-1"), "--seed -1; it counts from 0"),
        (("plan.yaml", "--faster", "0"), "--faster 0; a card is so many times as fast"),
        (("plan.yaml", "--steps", "0", "--step-s", "1"), "--steps 0; a job has at least 1"),
        (("plan.yaml", "--steps", "5"), "--steps needs --step-s"),
        (("plan.yaml", "--step-s", "1"), "--step-s needs --steps"),
        (("plan.yaml", "--step-s", "nan", "--steps", "5"), "is no number of seconds above 0"),
        (
            ("plan.yaml", "--step-s", "sopt=1", "--steps", "5"),
            "no rung 'sopt'; did you mean 'spot'?",
        ),
        (("plan.yaml", "--work", "-1"), "--work -1; a job has a number of FLOPs above 0"),
        (("plan.yaml", "--work", "1", "--step-s", "1", "--steps", "5"), "say the same twice"),
        (("plan.yaml", "--work", "1e17", "--dtype", "fp7"), "--dtype 'fp7' is none of fp64"),
        (("plan.yaml", *HINT, "--trace", "spot"), "--trace spot: write RUNG=FILE"),
        (("plan.yaml", *HINT, "--trace", "sopt=x"), "no rung 'sopt'; did you mean 'spot'?"),
        (("plan.yaml", *HINT, "--trace", "spot=no.json"), "no.json: there is no such trace"),
    ],
)
def test_bad_input_is_one_sentence(folder: Folder, args: tuple[str, ...], says: str) -> None:
    ended = complaint("rehearse", *args)
    assert ended.code == 2 and says in ended.err, ended.err


def test_a_rung_that_the_settings_do_not_have_is_named_with_its_line(folder: Folder) -> None:
    folder.plan(rungs="[dear, sopt]")
    ended = complaint("rehearse", "plan.yaml", *HINT)
    assert (
        ended.code == 2 and "rungs[1]: there is no rung 'sopt'; did you mean 'spot'?" in ended.err
    )


def test_where_no_rung_can_run_it_the_declaration_is_named(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runners.own_process import OwnProcessRunner

    folder.plan("cards: 2")
    ended = complaint("rehearse", "plan.yaml", *HINT)
    assert ended.code == 2
    assert (
        "dear: a job needs 2 cards, and a machine of its runner sure has 1 (capacity.cards)"
        in ended.err
    )
    folder.plan()
    monkeypatch.setattr(OwnProcessRunner, "JOB_KINDS", frozenset({"backtest"}))
    ended = complaint("rehearse", "plan.yaml", *HINT)
    assert "spot: its runner cloud takes no train jobs (JOB_KINDS: backtest)" in ended.err


def test_a_rung_of_unknown_speed_is_left_out_and_named(folder: Folder) -> None:
    settings = SETTINGS.replace('"t4"', '"some-card"')
    (folder.root / "tenure.toml").write_text(settings)
    told = folder.play("--step-s", "dear=0.5", "--steps", "9000")
    assert told["excluded"] == {"spot": "nobody can say how fast it does this work"}
    assert [row["rung"] for row in told["rungs"]] == ["dear"]


# ------------------------------------------------------------------------------------ the group


def test_the_other_rehearsals_keep_their_names(folder: Folder) -> None:
    shown = tenure("rehearse", "--help")
    assert shown.code == 0 and "\n  plan " in shown.out and "\n  lease " in shown.out
    assert tenure("rehearse", "plan", "plan.yaml", *HINT, "--plays", "2").code == 0
    assert tenure("rehearse", "--plays", "2", "plan.yaml", *HINT).code == 0
    lease = complaint("rehearse", "lease", "--steps", "no.csv")
    assert "no.csv: there is no such file of step times" in lease.err
    assert tenure("rehearse").code == 2


# ------------------------------------------------------------------------------------- the page


PAGE = ROOT / "docs" / "rehearse.md"


def test_the_example_on_the_page_gives_what_it_says(folder: Folder) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    files = {"toml": "tenure.toml", "yaml": "plan.yaml", "json": "market.json"}
    for language, name in files.items():
        (text,) = [body for kind, body in blocks if kind == language]
        (folder.root / name).write_text(text)
    (console,) = [body for kind, body in blocks if kind == "console"]
    command, _, said = console.partition("\n")
    ended = tenure(*shlex.split(command.removeprefix("$ tenure ")))
    assert ended.code == 0 and ended.out == said


def test_the_page_names_every_key_of_the_answer(seen: Folder) -> None:
    seen.plan("deadline_h: 30")
    told = seen.play()
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {key for line in rows for key in re.findall(r"`(\w+)`", line)}
    nested = [told, told["finish_h"], told["phases_h"], told["faster"], told["rungs"][0]]
    seen.plan("deadline_h: 1")
    late = json.loads(tenure("rehearse", "plan.yaml", "--plays", "5", "--json").out)
    for each in (*nested, late["relaxation"]):
        assert set(each) <= named, set(each) - named
    assert set(told["order"]) == {
        "finish_h", "cost", "on_time", "budget_kept", "never", "moves", "rungs", "phases_h",
        "wait_h", "faster",
    }  # fmt: skip


def test_a_loss_is_noticed_after_the_lease_of_the_steps_that_were_seen(seen: Folder) -> None:
    """Fifty steps of two seconds on spot, where nobody told how they vary; the store's least on the other."""
    settings = load_settings(start=seen.root, environ={})
    plan = load_plan(seen.root / "plan.yaml", settings)
    rungs = build_rungs(settings, only=plan.rungs)
    made = prepare(plan, rungs, seen.shop.store, SYSTEM, Hints(), {}, {}).script.stations
    silent_s = {each.name: each.silence_s for each in made}
    assert silent_s == {"dear": 50 * 0.5 + 3.0, "spot": 50 * 2.0 + 3.0}
    assert {each.name: each.start_s for each in made} == {"dear": 120.0, "spot": 120.0}
    assert {each.name: each.load_s for each in made} == {"dear": 30.0, "spot": 30.0}


RECORDED = Path(os.environ.get("TENURE_TRACES") or ROOT.parent / "shared" / "data") / "spot-traces"


def test_a_recorded_market_is_played(seen: Folder) -> None:
    """The twin of the test above that makes its own market."""
    file = RECORDED / "availability/1-node/aws-02-15-2023/us-west-2a_v100_1.json"
    if not file.is_file():
        pytest.skip(f"there is no {file.name} under $TENURE_TRACES")
    seen.plan(rungs="[spot]")
    told = seen.play("--trace", f"spot={file}")
    (row,) = told["rungs"]
    assert told["never"] == 0 and row["losses"] > 0 and told["wait_h"] > 6
