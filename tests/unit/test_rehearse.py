"""``tenure rehearse lease``: every step is judged by what was known before it, and bad files end in one sentence."""

from __future__ import annotations

import csv
import json
import os
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.cli.rehearse import FIXED, Rehearsal, Step, read_series, rehearse_lease
from tenure_protocol.patience import MOST_K, best_k
from tenure_protocol.ratios import Ratios
from tests.tenure_command import complaint, tenure

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("TENURE_TRACES") or ROOT.parent / "shared" / "data") / "step-times"
HEADER = ["", "worker", "gpu", "time", "batch_time_norm"]
Series = dict[str, list[Step]]


def written(folder: Path, rows: list[list[object]], header: list[str] = HEADER) -> Path:
    file = folder / "steps.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([header, *rows])
    return file


def rows_of(series: Series) -> list[list[object]]:
    rows = [
        [i, name, 25, step.time_s, 1000 * step.duration_s]
        for name, steps in series.items()
        for i, step in enumerate(steps)
    ]
    random.Random(1).shuffle(rows)
    return rows


def even(workers: int, steps: int, seed: int = 0) -> Series:
    """Steps of about 0.4 s, some workers faster than others, recorded every 10 s."""
    rng = random.Random(seed)
    return {
        f"w{w}": [Step(10.0 * i, 0.4 * (1 + w / 4) * rng.gauss(1, 0.02)) for i in range(steps)]
        for w in range(workers)
    }


# --------------------------------------------------------------------------- what is computed


def plainly(series: Series, restart_s: float, death_per_h: float) -> Rehearsal:
    """The same rehearsal without any running state: for each step all that came before it, anew."""
    durations = {name: [step.duration_s for step in steps] for name, steps in series.items()}

    def median(name: str, i: int) -> float:
        return statistics.median(durations[name][i - 20 : i])

    known: dict[tuple[str, int], int] = {}  # the K that judged a step

    def k_at(time_s: float) -> int:
        seen = Ratios()
        medians = []
        for name, steps in series.items():
            before = [i for i, step in enumerate(steps) if step.time_s < time_s]
            if len(before) < 20:
                continue
            first = statistics.median(durations[name][:20])
            medians.append(median(name, before[-1]) if before[-1] >= 20 else first)
            for i in before:
                ratio = durations[name][i] / (median(name, i) if i >= 20 else first)
                if i >= 20 and ratio > known[name, i]:
                    seen.censor(known[name, i])
                else:
                    seen.add(ratio)
        if not medians:
            return MOST_K
        return best_k(seen, statistics.fmean(medians), restart_s, death_per_h).k

    order = sorted(
        (s.time_s, name, i) for name, steps in series.items() for i, s in enumerate(steps)
    )
    for time_s, name, i in order:
        if i >= 20:
            known[name, i] = k_at(time_s)

    def cost(ks: dict[tuple[str, int], int]) -> float:
        of_workers = []
        for name, steps in series.items():
            judged = range(20, len(steps))
            false = sum(durations[name][i] > ks[name, i] * median(name, i) for i in judged)
            hours = sum(durations[name][20:]) / 3600
            mean_k = sum(ks[name, i] for i in judged) / len(judged)
            step_s = statistics.median(durations[name][20:])
            of_workers.append(false / hours * restart_s + death_per_h * mean_k * step_s)
        return statistics.fmean(of_workers)

    return Rehearsal(
        k=k_at(order[-1][0] + 1),
        first_k=known[min(known, key=lambda it: series[it[0]][it[1]].time_s)],
        mean_k=sum(known.values()) / len(known),
        judged=len(known),
        false_write_offs=sum(
            durations[name][i] > k * median(name, i) for (name, i), k in known.items()
        ),
        cost_s_per_h=cost(known),
        fixed={k: cost(dict.fromkeys(known, k)) for k in FIXED},
        fixed_false={},
        reason="",
    )


@st.composite
def some_series(draw: st.DrawFn) -> Series:
    """A few workers with a few odd steps; times that tie, and workers that begin late."""
    rng = random.Random(draw(st.integers(0, 10_000)))
    series: Series = {}
    for w in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, 15))
        length = draw(st.integers(21, 40))
        durations = [0.3 * rng.gauss(1, 0.03) for _ in range(length)]
        for at in draw(st.lists(st.integers(0, length - 1), max_size=4)):
            durations[at] *= draw(st.floats(1.0, 70.0))
        series[str(w)] = [Step(float(start + i), d) for i, d in enumerate(durations)]
    return series


@settings(max_examples=25, deadline=None)
@given(some_series(), st.floats(1, 2_000), st.floats(0.001, 5))
def test_every_step_is_judged_by_what_was_known_before_it(
    series: Series, restart_s: float, death_per_h: float
) -> None:
    told = rehearse_lease(series, restart_s, death_per_h)
    expected = plainly(series, restart_s, death_per_h)
    assert told.k == expected.k and told.first_k == expected.first_k
    assert told.judged == expected.judged
    assert told.mean_k == pytest.approx(expected.mean_k)
    assert told.false_write_offs == expected.false_write_offs
    assert told.cost_s_per_h == pytest.approx(expected.cost_s_per_h)
    assert told.fixed == pytest.approx(expected.fixed)


def test_the_cost_of_a_fixed_k_by_hand() -> None:
    # 30 judged steps of 1 s, one of 4.5 s: 34.5 s of training
    steps = [Step(float(i), 1.0) for i in range(51)]
    steps[40] = Step(40.0, 4.5)
    told = rehearse_lease({"only": steps}, restart_s=100, death_per_h=0.2)
    assert told.judged == 31
    assert told.fixed[4] == pytest.approx(100 * 3600 / 34.5 + 0.2 * 4 * 1.0)
    assert told.fixed[5] == pytest.approx(0.2 * 5 * 1.0)
    assert told.best_fixed == 5
    assert told.fixed_false[4] == 1 and told.fixed_false[5] == 0


def test_workers_are_judged_separately_and_their_costs_averaged() -> None:
    slow = [Step(float(i), 3.0) for i in range(40)]
    fast = [Step(float(i), 1.0) for i in range(40)]
    told = rehearse_lease({"slow": slow, "fast": fast}, restart_s=300, death_per_h=0.05)
    assert told.fixed[10] == pytest.approx(0.05 * 10 * 2.0)
    assert told.fixed_false[2] == 0  # three times the other's step, and yet no longer than its own


def test_first_steps_are_learnt_from_and_not_judged() -> None:
    slow_start = [Step(float(i), 30.0 if i == 3 else 1.0) for i in range(60)]
    plain = [Step(float(i), 1.0) for i in range(60)]
    told = rehearse_lease({"a": slow_start}, 300, 0.05)
    assert told.judged == 40 and told.fixed_false[2] == 0
    assert told.k > 30 > rehearse_lease({"a": plain}, 300, 0.05).k


def test_a_file_of_one_worker_is_judged_by_50_until_it_has_steps() -> None:
    late = even(2, 60)
    late["w1"] = [Step(step.time_s + 200, step.duration_s) for step in late["w1"]]
    assert rehearse_lease(even(1, 60), 300, 0.05).first_k < MOST_K
    told = rehearse_lease({"a": [Step(1.0, 0.4)] * 60}, 300, 0.05)  # nothing lies before any
    assert told.first_k == MOST_K and told.mean_k == MOST_K
    assert rehearse_lease(late, 300, 0.05).judged == 80


# -------------------------------------------------------------------------- what it reaches


def test_even_steps_cost_no_more_than_the_best_fixed_k() -> None:
    told = rehearse_lease(even(10, 250), 300, 0.05)
    assert told.false_write_offs == 0
    assert told.cost_s_per_h <= 1.05 * told.fixed[told.best_fixed]


def test_a_stall_that_grows_is_outrun() -> None:
    series = even(10, 300)
    for i, factor in enumerate((1.8, 1.8, 2.0, 2.0, 2.4, 1.7)):
        time_s, duration_s = series["w6"][180 + i]
        series["w6"][180 + i] = Step(time_s, duration_s * factor)
    told = rehearse_lease(series, 300, 0.05)
    assert told.best_fixed == 3 and told.false_write_offs == 0
    assert told.cost_s_per_h <= 1.05 * told.fixed[3]


def test_a_law_that_was_wrong_once_is_not_wrong_for_long() -> None:
    rng = random.Random(5)
    series = {
        name: [Step(t, d * (rng.uniform(2, 6) if rng.random() < 1 / 200 else 1)) for t, d in steps]
        for name, steps in even(10, 600).items()
    }
    told = rehearse_lease(series, 300, 0.05)
    assert told.fixed_false[2] > 20
    assert told.false_write_offs <= 2


@pytest.mark.parametrize(
    ("name", "most"),
    # job_4: its longest step, 4.54 medians, lies just below 5, and nothing tells that beforehand
    [("job_1.csv", 1.05), ("job_2.csv", 1.05), ("job_4.csv", 1.45)],
)
def test_recorded_steps(name: str, most: float) -> None:
    if not (TRACES / name).is_file():
        pytest.skip(f"there is no {name} under $TENURE_TRACES")
    ended = tenure("rehearse", "lease", "--steps", str(TRACES / name), "--json")
    answer = json.loads(ended.out)
    assert ended.code == 0
    assert answer["cost_s_per_h"] <= most * min(answer["fixed"].values())


# ------------------------------------------------------------------------------- the command


def test_its_json_and_its_words_tell_the_same(tmp_path: Path) -> None:
    series = even(3, 100)
    file = written(tmp_path, rows_of(series))
    options = ("--steps", str(file), "--restart-s", "200", "--death-per-h", "0.1")
    answer = json.loads(tenure("rehearse", "lease", *options, "--json").out)
    told = rehearse_lease(read_series(file), 200, 0.1)
    assert list(answer) == ["k", "cost_s_per_h", "fixed"]
    assert list(answer["fixed"]) == [str(k) for k in range(2, 51)]
    assert answer["k"] == told.k and answer["cost_s_per_h"] == told.cost_s_per_h
    assert answer["fixed"]["50"] == told.fixed[50]
    words = tenure("rehearse", "lease", *options)
    assert words.code == 0 and words.err == ""
    assert f"the best fixed K, known only afterwards, is {told.best_fixed} (" in words.out
    assert f"{told.judged} steps of 3 workers were judged" in words.out


def test_rows_may_come_in_any_order(tmp_path: Path) -> None:
    series = even(3, 60)
    found = read_series(written(tmp_path, rows_of(series)))
    assert found.keys() == series.keys()
    for name, steps in series.items():
        assert [step.time_s for step in found[name]] == [step.time_s for step in steps]
        durations = [step.duration_s for step in found[name]]
        assert durations == pytest.approx([step.duration_s for step in steps])


def test_nobody_dies_and_restarts_are_free(tmp_path: Path) -> None:
    file = str(written(tmp_path, rows_of(even(1, 40))))
    undying = tenure("rehearse", "lease", "--steps", file, "--death-per-h", "0", "--json")
    assert json.loads(undying.out)["cost_s_per_h"] == 0
    free = tenure("rehearse", "lease", "--steps", file, "--restart-s", "0", "--json")
    assert json.loads(free.out)["k"] == 2
    assert tenure("rehearse", "lease", "--steps", file, "--death-per-h", "0").code == 0


GOOD: list[list[object]] = [[i, "a", 25, 10 * i, 400] for i in range(40)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([7, "a", 25, 70, "fast"], ":9: batch_time_norm is 'fast'; it must be a finite number"),
        ([7, "a", 25, 70, "nan"], ":9: batch_time_norm is 'nan'"),
        ([7, "a", 25, 70, "-1"], ":9: batch_time_norm is '-1'"),
        ([7, "a", 25, 70, "inf"], ":9: batch_time_norm is 'inf'"),
        ([7, "a", 25, 70, 0], ":9: batch_time_norm is 0; a step takes from 0.001 to 1e+09 ms"),
        ([7, "a", 25, 70, "1e-320"], ":9: batch_time_norm is 9.99989e-321; a step takes from"),
        ([7, "a", 25, 70, "1e300"], ":9: batch_time_norm is 1e+300; a step takes from"),
        ([7, "a", 25, 70, ""], ":9: batch_time_norm is missing"),
        ([7, "a", 25, 70], ":9: batch_time_norm is missing"),
        ([7, "a", 25, "-5", 400], ":9: time is '-5'"),
        ([7, "a", 25, "nan", 400], ":9: time is 'nan'"),
        ([7, "", 25, 70, 400], ":9: the worker is missing"),
        ([7, "b", 25, 70, 400], "worker 'b' has 1 steps"),
    ],
)
def test_a_bad_row_is_one_sentence(tmp_path: Path, row: list[object], says: str) -> None:
    rows = [*GOOD[:7], row, *GOOD[8:]]
    ended = complaint("rehearse", "lease", "--steps", str(written(tmp_path, rows)))
    assert ended.code == 2 and says in ended.err, ended.err


def test_a_bad_file_is_one_sentence(tmp_path: Path) -> None:
    def says(file: Path) -> str:
        ended = complaint("rehearse", "lease", "--steps", str(file))
        assert ended.code == 2
        return ended.err

    assert "there is no such file of step times" in says(tmp_path / "none.csv")
    assert str(tmp_path) in says(tmp_path)
    assert "there is no step in it" in says(written(tmp_path, []))
    typo = [*HEADER[:4], "batch_time_nrm"]
    told = says(written(tmp_path, GOOD, typo))
    assert "the column 'batch_time_norm' is missing; did you mean 'batch_time_nrm'?" in told
    assert "worker 'a' has 20 steps" in says(written(tmp_path, GOOD[:20]))
    assert "at least 21" in says(written(tmp_path, GOOD[:20]))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80" * 50)
    assert str(binary) in says(binary)
    empty = tmp_path / "empty.csv"
    empty.touch()
    assert "the column 'worker' is missing" in says(empty)
    huge = tmp_path / "huge.csv"
    huge.write_text(",worker,gpu,time,batch_time_norm\n1,a,25,1," + "9" * 200_000 + "\n")
    assert "it cannot be read as CSV" in says(huge)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--restart-s", "-1"),
        ("--restart-s", "nan"),
        ("--death-per-h", "inf"),
        ("--restart-s", "1e300"),
    ],
)
def test_a_bad_option_is_one_sentence(tmp_path: Path, option: str, value: str) -> None:
    file = str(written(tmp_path, GOOD))
    ended = complaint("rehearse", "lease", "--steps", file, option, value)
    assert ended.code == 2
    assert f"{option} is {float(value)}; it must be a number from 0 to 1e+09" in ended.err
