"""``tenure rehearse spot``: its answer on made and on recorded traces, and one sentence for bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.spot_market import semi_markov
from tests.tenure_command import complaint, tenure

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("TENURE_TRACES") or ROOT.parent / "shared" / "data") / "spot-traces"
SERIES_2022 = TRACES / "availability" / "1-node" / "aws-10-26-2022"
WINDOWS = TRACES / "windows-2022.json"
recorded = pytest.mark.skipif(not WINDOWS.exists(), reason=f"no spot traces at {TRACES}")

#: Means in dollars that were published, greedy and Uniform Progress, 100 windows.
PUBLISHED = {
    52: {
        "us-west-2a_k80_1": (72.71, 65.39),
        "us-west-2a_k80_8": (133.24, 125.34),
        "us-west-2a_v100_1": (119.37, 107.04),
        "us-west-2a_v100_8": (144.03, 141.86),
    },
    60: {
        "us-west-2a_k80_1": (48.65, 53.10),
        "us-west-2a_k80_8": (112.44, 99.13),
        "us-west-2a_v100_1": (104.68, 83.72),
        "us-west-2a_v100_8": (138.37, 131.66),
    },
    70: {
        "us-west-2a_k80_1": (48.65, 50.15),
        "us-west-2a_k80_8": (97.36, 85.98),
        "us-west-2a_v100_1": (91.78, 72.97),
        "us-west-2a_v100_8": (135.48, 121.92),
    },
}
Row = dict[str, float]


def written(file: Path, data: object, gap_s: object = 600) -> str:
    file.write_text(json.dumps({"metadata": {"gap_seconds": gap_s}, "data": data}))
    return str(file)


def made(folder: Path, name: str, seed: int, ticks: int = 500) -> str:
    market = semi_markov(seed, ticks, 2, 1)
    return written(folder / f"{name}.json", market.there.astype(int).tolist())


def answer(*args: str) -> dict[str, Row]:
    """The rows by name, ``overall`` among them."""
    ended = tenure("rehearse", "spot", *args, "--json")
    assert ended.code == 0, ended
    whole = json.loads(ended.out)
    assert set(whole) == {"series", "overall"}
    rows = {row["name"]: row for row in [*whole["series"], {**whole["overall"], "name": "overall"}]}
    keys = {"name", "runs", "mean_cost_usd", "saving", "late_runs", "mean_moves"}
    assert all(set(row) == keys for row in rows.values())
    return rows


JOB = ("--task-h", "8", "--deadline-h", "10")


def test_the_answer_is_the_mean_of_the_series(tmp_path: Path) -> None:
    files = [made(tmp_path, name, seed) for seed, name in enumerate("ab")]
    for policy in ("ours", "uniform-progress", "greedy", "on-demand"):
        rows = answer("--trace", *files, *JOB, "--policy", policy)
        assert list(rows) == ["a", "b", "overall"]
        assert rows["overall"]["runs"] == 200 and rows["overall"]["late_runs"] == 0
        mean = (rows["a"]["mean_cost_usd"] + rows["b"]["mean_cost_usd"]) / 2
        assert rows["overall"]["mean_cost_usd"] == pytest.approx(mean)
        assert rows["overall"]["saving"] == pytest.approx(1 - mean / (8 * 3.06))


def test_traces_may_be_repeated_or_listed(tmp_path: Path) -> None:
    a, b = (made(tmp_path, name, seed) for seed, name in enumerate("ab"))
    greedy = (*JOB, "--policy", "greedy")
    assert answer("--trace", a, "--trace", b, *greedy) == answer("--trace", a, b, *greedy)


def test_a_series_costs_the_same_beside_others_and_in_another_order(tmp_path: Path) -> None:
    a, b = (made(tmp_path, name, seed) for seed, name in enumerate("ab"))
    assert answer("--trace", a, *JOB)["a"] == answer("--trace", b, a, *JOB)["a"]


def test_markets_are_one_job(tmp_path: Path) -> None:
    a, b = made(tmp_path, "a", 1, ticks=300), made(tmp_path, "b", 2, ticks=400)
    windows = tmp_path / "windows.json"
    windows.write_text(json.dumps({"a": [0, 50, 100], "b": [100, 200, 50]}))
    rows = answer("--trace", a, b, *JOB, "--markets", "--windows", str(windows))
    assert list(rows) == ["a+b", "overall"] and rows["a+b"]["runs"] == 2
    even = answer("--trace", a, b, *JOB, "--markets", "--policy", "uniform-progress")
    assert even["a+b"]["runs"] == 100


def test_the_table_for_people(tmp_path: Path) -> None:
    ended = tenure("rehearse", "spot", "--trace", made(tmp_path, "a", 1), *JOB)
    header, row = ended.out.splitlines()
    assert header.split() == ["series", "runs", "mean", "$", "saving", "late", "mean", "moves"]
    assert row.split()[:2] == ["a", "100"]


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--task-h", "nan"), "--task-h is nan"),
        (("--task-h", "-3"), "--task-h is -3; it must be a finite number, more than 0"),
        (("--deadline-h", "inf"), "--deadline-h is inf"),
        (("--spot", "-1"), "--spot is -1; it must be a finite number, 0 or more"),
        (("--on-demand", "nan"), "--on-demand is nan"),
        (("--overhead-h", "-0.1"), "--overhead-h is -0.1"),
        (("--task-h", "9", "--deadline-h", "8"), "too short by 1.2 h"),
        (("--task-h", "9", "--deadline-h", "8"), "the cheapest relaxation is a deadline of 9.2 h"),
        (
            ("--task-h", "8", "--deadline-h", "8.1"),
            "longer than the slack of 0.1 h between --task-h and --deadline-h by 0.1 h",
        ),
        (("--deadline-h", "900"), "the trace lasts 83.33 h and --deadline-h is 900"),
    ],
)
def test_bad_terms(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    ended = complaint("rehearse", "spot", "--trace", made(tmp_path, "a", 1), *options)
    assert ended.code == 2 and words in ended.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "this is no JSON"),
        ("[1]", "a trace is an object with the keys metadata and data"),
        ('{"data": [1]}', "with the keys metadata and data"),
        ('{"metadata": {}, "data": [1]}', "metadata.gap_seconds is null"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "metadata.gap_seconds is 0"),
        ('{"metadata": {"gap_seconds": NaN}, "data": [1]}', "metadata.gap_seconds is NaN"),
        ('{"metadata": {"gap_seconds": 600}}', "data is no list of counts"),
        ('{"metadata": {"gap_seconds": 600}, "data": []}', "data is no list of counts"),
        ('{"metadata": {"gap_seconds": 600}, "data": [1, null]}', "data has a gap at tick 1"),
        ('{"metadata": {"gap_seconds": 600}, "data": [1, -2]}', "data[1] is -2"),
        ('{"metadata": {"gap_seconds": 600}, "data": [1, "x"]}', 'data[1] is "x"'),
        ('{"metadata": {"gap_seconds": 600}, "data": [true]}', "data[0] is true"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    ended = complaint("rehearse", "spot", "--trace", str(file))
    assert ended.code == 2 and words in ended.err and str(file) in ended.err


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ({"b": [1]}, "there are no windows for the series 'a'; known: 'b'"),
        ([1], "a windows file maps"),
        ({"a": []}, "is no list of start ticks"),
        ({"a": [1.5]}, "is no list of start ticks"),
        ({"a": [-1]}, "is no list of start ticks"),
        ({"a": [3, 499]}, "a: the window that starts at tick 499 needs 60 ticks"),
    ],
)
def test_bad_windows(tmp_path: Path, windows: object, words: str) -> None:
    file = tmp_path / "windows.json"
    file.write_text(json.dumps(windows))
    trace = made(tmp_path, "a", 1)
    ended = complaint("rehearse", "spot", "--trace", trace, *JOB, "--windows", str(file))
    assert ended.code == 2 and words in ended.err


def test_bad_companies(tmp_path: Path) -> None:
    a = made(tmp_path, "a", 1)
    other = tmp_path / "other"
    other.mkdir()
    again = written(other / "a.json", [1] * 500)
    slow = written(other / "slow.json", [1] * 500, 900)
    spot = ("rehearse", "spot", "--trace")
    assert "two traces are named 'a'" in complaint(*spot, a, again, *JOB).err
    assert "'a' last 600 s" in complaint(*spot, a, slow, *JOB, "--markets").err
    assert "there is no such trace" in complaint(*spot, str(tmp_path / "no.json"), *JOB).err
    none = tenure("rehearse", "spot", *JOB)
    assert none.code == 2 and "--trace" in none.err
    windows = tmp_path / "windows.json"
    windows.write_text(json.dumps({"a": [1], "b": [2]}))
    b = made(tmp_path, "b", 2)
    options = (*JOB, "--markets", "--windows", str(windows))
    assert "no start tick in common" in complaint(*spot, a, b, *options).err


def test_spot_dearer_than_on_demand_is_allowed(tmp_path: Path) -> None:
    rows = answer("--trace", made(tmp_path, "a", 1), *JOB, "--spot", "9")
    assert rows["a"]["saving"] < 0 and rows["a"]["mean_moves"] == 1


# ---------------------------------------------------------------------------------- recorded traces


@recorded
@pytest.mark.parametrize("deadline_h", [52, 60, 70])
def test_baselines_come_within_2_percent_of_what_was_published(deadline_h: int) -> None:
    files = sorted(map(str, SERIES_2022.glob("*.json")))
    options = ("--windows", str(WINDOWS), "--deadline-h", str(deadline_h))
    for which, policy in enumerate(("greedy", "uniform-progress")):
        rows = answer("--trace", *files, *options, "--policy", policy)
        for name, means in PUBLISHED[deadline_h].items():
            assert rows[name]["mean_cost_usd"] == pytest.approx(means[which], rel=0.002)
            assert rows[name]["late_runs"] == 0


@recorded
def test_ours_on_some_recorded_windows(tmp_path: Path) -> None:
    windows = tmp_path / "windows.json"
    some = {
        name: sorted(set(ticks))[::8] for name, ticks in json.loads(WINDOWS.read_text()).items()
    }
    windows.write_text(json.dumps(some))
    files = [str(SERIES_2022 / f"us-west-2a_{card}.json") for card in ("v100_1",)]
    uniform, ours = (
        answer("--trace", *files, "--windows", str(windows), "--policy", policy)
        for policy in ("uniform-progress", "ours")
    )
    assert ours["overall"]["late_runs"] == 0
    assert ours["overall"]["saving"] > uniform["overall"]["saving"] + 0.03
