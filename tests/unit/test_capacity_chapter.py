"""Every worked example of the chapter, to the precision that the chapter prints; the section is in the test's name.

The scenarios are the files of examples/capacity, as a user runs them; docs/capacity.md lists them. Where the
chapter's number is not that of its own formula, the test says so.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tenure.capacity.batch import first_come
from tenure.capacity.demand import whole_environments
from tests.tenure_command import tenure

EXAMPLES = Path(__file__).parents[2] / "examples" / "capacity"


@cache
def asked(name: str, *options: str) -> Any:
    """What the command answers to one of the files."""
    (file,) = EXAMPLES.glob(f"{name}.*")
    ended = tenure("capacity", str(file), "--json", *options)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def printed(value: float, text: str) -> None:
    """A number to the digits that the chapter prints."""
    digits = len(text.partition(".")[2])
    assert f"{value:.{digits}f}" == text


# ------------------------------------------------------------------------------------------------- 11.1


def test_11_1_1_one_task() -> None:
    told = asked("11-1-environments")[0]
    assert told["task_s"] == 30
    assert told["cpu_cores"] / 10 == 3  # CPU seconds of a task
    assert told["memory_gib"] / 10 == 60  # GiB s of a task


def test_11_1_2_demand_on_average() -> None:
    told = asked("11-1-environments")[0]
    assert told["model_calls_per_s"] == 30
    assert told["environment_creations_per_s"] == 10
    assert (told["cpu_cores"], told["memory_gib"], told["model_concurrency"]) == (30, 600, 270)
    assert told["environments"] == 300


def test_example_11_1_memory_gives_out_first() -> None:
    told = asked("11-1-environments")[0]
    printed(100 * told["utilisation"]["cpu"], "62.5")
    printed(100 * told["utilisation"]["model"], "84")
    printed(100 * told["utilisation"]["memory"], "168")
    assert told["bottleneck"] == "memory"
    assert told["short"] == {"cpu_cores": 0, "memory_gib": 242, "model_slots": 0}
    assert 48 - told["cpu_cores"] == 18  # cores are idle


def test_example_11_1_prints_5_9_tasks_for_whole_environments_of_384_gb() -> None:
    told = asked("11-1-environments")[0]
    # 358 GiB are 179 environments: the chapter's 178 and its 5.9 tasks/s are of 384 GB, which are 357.6 GiB.
    assert whole_environments(358, 2) == 179
    whole = whole_environments(384e9 / 2**30, 2)
    assert whole == 178
    printed(whole / told["task_s"], "5.9")
    printed(told["max_arrivals_per_s"], "5.97")  # of 358 GiB, as its formula has it


def test_11_1_2_slower_model_calls() -> None:
    told = asked("11-1-environments")[1]
    assert (told["task_s"], told["memory_gib"], told["model_concurrency"]) == (39, 780, 360)
    assert told["cpu_cores"] == 30
    assert told["utilisation"]["model"] > 1
    assert told["short"]["model_slots"] == 40


# ------------------------------------------------------------------------------------------------- 11.2


def test_example_11_2_templates() -> None:
    told = asked("11-2-templates")[0]
    assert told["per_environment_mib"] == {
        "copied": 2052, "on_demand": 516, "shared": 132, "shared_hot": 388
    }  # fmt: skip
    for way, text in {
        "copied": "200",
        "on_demand": "50",
        "shared": "13",
        "shared_hot": "38",
    }.items():
        printed(told["total_gib"][way], text)
    printed(told["saved_gib"]["on_demand"], "150")
    assert told["template_gib"] == 2


def test_11_2_2_times_over_a_link() -> None:
    told = asked("11-2-templates")[0]
    printed(told["link_gib_per_s"], "2.91")
    printed(told["cold_s"], "0.86")
    printed(told["warm_s"], "0.17")
    printed(told["cold_s"] - told["warm_s"], "0.69")
    printed(told["late_s"], "0.34")


def test_11_2_4_cold_preparation() -> None:
    told = asked("11-2-templates")[0]
    printed(told["template_s"], "0.69")
    printed(told["cold_prepare_s"], "2.7")


def test_11_2_3_sandboxes_of_one_job() -> None:
    tb = asked("11-2-templates")[1]["total_gib"]["copied"] * 2**30 / 1e12
    printed(tb, "70")
    assert tb > 250 / 4  # more than a quarter of the block's memory


def test_11_2_3_nine_seconds_are_too_short_to_pause_two_gib() -> None:
    told = asked("11.2.3-pause")[0]
    assert told["options"]["keep"]["occupied_gib_s"] == 18
    assert told["options"]["pause"] == told["options"]["keep"]
    assert told["options"]["pause"]["delay_s"] == 0
    assert told["best"] == "keep"  # nothing is gained


def test_11_2_3_half_a_gib_is_free_for_six_seconds() -> None:
    told = asked("11.2.3-pause")[1]
    assert 9 - told["options"]["pause"]["occupied_s"] == 6
    assert told["options"]["pause"]["delay_s"] == 0
    assert told["best"] == "pause"


def test_11_2_3_two_hours_are_800_times_the_transition() -> None:
    told = asked("11.2.3-pause")[2]["options"]["pause"]
    assert told["occupied_s"] == 9
    assert round((7200 - 9) / told["occupied_s"], -1) == 800


def test_11_2_4_an_environment_for_each_round() -> None:
    told = asked("11.2.4-recreate")[0]
    assert told["task_s"] == 30
    assert (told["memory_gib"] / 10, told["memory_gib"]) == (18, 180)
    assert told["environment_creations_per_s"] == 30
    assert told["cpu_cores"] == pytest.approx(33)
    assert asked("11-1-environments")[0]["memory_gib"] - told["memory_gib"] == 420
    printed(100 * told["utilisation"]["memory"], "50")  # about half of the machine


def test_11_2_4_preparing_on_a_guess() -> None:
    leads = asked("11.2.4-recreate")[1]["leads"]
    assert [lead["expected_wait_s"] for lead in leads] == [2, 1.25, 0.5, 0.5]
    assert [lead["early_gib_s"] for lead in leads] == [0, 0, 0, 1.5]
    # figure 11-23: 2 GiB from 2 s to 4 s, in one of four cases
    assert leads[2]["wasted_gib_s"] == 0.25 * 2 * 2


# ------------------------------------------------------------------------------------------------- 11.3


def test_example_11_3_move() -> None:
    told = asked("11-3-move")[0]
    assert told["finish_s"] == {"wait": 32, "move": 24, "spread": 33}
    assert told["best"] == "move"
    assert told["move_s_below_for_earliest"] == 12
    assert told["move_s_below_for_least_total_delay"] == 6


def test_11_3_1_a_move_as_long_as_the_wait() -> None:
    told = asked("11-3-move")[1]
    assert told["finish_s"]["move"] == told["finish_s"]["wait"] == 32
    assert told["best"] == "wait"  # of equal ones the one that disturbs nobody


def test_11_3_2_ten_runs_one_by_one_and_at_once() -> None:
    one_by_one, at_once = asked("11.3.2-bursts")[:2]
    assert one_by_one["start_s"] == list(range(10))  # none waits
    assert at_once["start_s"] == list(range(10))
    assert sum(at_once["start_s"]) / 10 == 4.5
    assert one_by_one["completed_s"] == at_once["completed_s"] == 10


def test_11_3_2_a_burst_of_80() -> None:
    one_machine, two_machines = asked("11.3.2-bursts")[2:]
    assert one_machine["start_s"].count(0) == 48
    assert sum(one_machine["start_s"]) / 80 == 0.4
    assert (one_machine["completed_s"], two_machines["completed_s"]) == (2, 1)
    timeline = asked("11-9-chosen", "--timeline", "burst", "--burst", "80")["timeline"]
    assert (timeline["tool_wait_s"], timeline["tools_done_s"]) == (0.4, 2)


def test_11_3_2_the_burst_fits_beside_180_gib() -> None:
    left_gib = 358 - asked("11.2.4-recreate")[0]["memory_gib"]
    assert left_gib == 178
    assert whole_environments(left_gib, 2) >= 80  # type: ignore[operator]


def test_11_3_3_one_iteration() -> None:
    told = asked("11-4-rollout")[0]["iteration"]
    assert told["iteration_s"] == 85
    assert told["faster"][0]["iteration_s"] == 65
    printed(told["faster"][0]["speedup"], "1.3")
    printed(told["most_speedup"], "1.9")


def test_example_11_4_weights() -> None:
    told = asked("11-4-rollout")[0]["weights"]
    printed(told["one_s"], "2.62")
    printed(told["total_gb"], "98.3")
    printed(told["all_s"], "3.93")
    assert told["limited_by"] == "sender"


def test_11_3_3_windows() -> None:
    told = asked("11-4-rollout")[1]
    assert told == {"useful": [12, 0], "useful_share": [0.6, 0]}


def test_11_3_3_cut_prefixes() -> None:
    assert asked("11-4-rollout")[0]["prefixes"] == {
        "reused_tokens": 2000, "regenerated_tokens": 3000
    }  # fmt: skip


def test_11_3_3_expansion() -> None:
    told = asked("11-4-rollout")[0]["expansion"]
    printed(told["usd_per_h"], "116")
    printed(told["pays_above"], "1.38")
    slow, fast = told["throughput"]
    printed(slow["cost_factor"], "1.15")
    printed(fast["cost_factor"], "0.86")
    assert (slow["pays"], fast["pays"]) == (False, True)


def test_11_3_4_each_and_all_together() -> None:
    each, together = asked("11.3.4-verification")[:2]
    assert (each["completed_s"], together["completed_s"]) == (30, 50)
    assert together["start_s"] == [20, 30, 40]


def test_11_3_4_long_tail() -> None:
    assert asked("11.3.4-verification")[2] == {"expected_remaining_s": 90}
    assert (9 * 1 + 100) / 10 == 10.9  # whose difference to 10 would be 0.9


def test_11_3_4_what_putting_off_costs_those_who_wait() -> None:
    many, few = asked("11.3.4-verification")[3]["postponed"]
    assert (many["net_card_s"], many["pays"]) == (68, False)
    assert (few["net_card_s"], few["pays"]) == (-28, True)


def test_11_3_4_latest_starts() -> None:
    told = asked("11.3.4-verification")[3]["filler"]
    assert told == {"work_start_s": 20, "prepare_start_s": 15}


# ------------------------------------------------------------------------------------------------- 11.4


def test_11_4_1_fewer_sessions_make_calls_faster() -> None:
    usual, fast = asked("11.4.3-queues")[1]["calls"]
    printed(usual["total_s"], "9.0")
    printed(fast["total_s"], "6.0")
    resident = asked("11-9-variants")[2]
    assert (resident["task_s"], resident["memory_gib"]) == (21, 420)
    assert asked("11-9-variants")[3]["memory_gib"] == 180


def test_example_11_5_reasoning() -> None:
    much, little = asked("11-5-reasoning")["calls"]
    printed(much["cost_usd"], "0.032")
    printed(little["cost_usd"], "0.023")
    printed(100 * little["saved_share"], "28")
    parts = {name: round(value, 9) for name, value in much["parts_usd"].items() if value}
    assert parts == {"input": 0.02, "reasoning": 0.01, "output": 0.002}
    assert little["parts_usd"]["reasoning"] == pytest.approx(0.001)


def test_11_4_1_retries_eat_up_what_shorter_reasoning_saves() -> None:
    much, little = asked("11-5-reasoning")["calls"]
    printed(100 * (much["cost_usd"] - little["cost_usd"]), "0.90")
    printed(100 * (little["with_retries_usd"] - little["cost_usd"]), "0.96")
    printed(100 * (little["with_retries_usd"] - much["cost_usd"]), "0.06")
    assert asked("11-5-reasoning")["cheapest"] == "reasoning 1000"


def test_example_11_6_cache() -> None:
    told = asked("11-6-cache")[0]
    printed(told["all_calls_usd"]["without_cache"], "0.20")
    printed(told["all_calls_usd"]["with_cache"], "0.0744")
    printed(told["first_call_usd"]["with_cache"], "0.024")
    printed(told["later_call_usd"]["with_cache"], "0.0056")
    printed(
        told["later_call_usd"]["without_cache"] - told["later_call_usd"]["with_cache"], "0.0144"
    )
    assert told["calls_to_pay_off"] == 2
    assert asked("11-6-cache")[1]["saved_usd"] > 0


def test_11_4_2_hits_by_request_and_by_token() -> None:
    short, long = asked("11-6-cache")
    assert (short["request_hit_share"], short["token_hit_share"]) == (0.5, 0.1)
    assert (long["request_hit_share"], long["token_hit_share"]) == (0.5, 0.9)


def test_11_4_3_a_longer_queue_for_a_cached_prefix() -> None:
    told = asked("11.4.3-queues")[0]
    a, b = told["calls"]
    assert a["before_output_s"] == pytest.approx(0.3)
    assert b["before_output_s"] == pytest.approx(0.57)
    assert told["earliest"] == "A"
    assert told["first_queue_s_at_most"] == pytest.approx(0.47)


def test_11_4_3_concurrency_and_cards() -> None:
    usual, fast = asked("11.4.3-queues")[2]["calls"]
    assert (usual["concurrent_calls"], fast["concurrent_calls"]) == (270, 180)
    assert (usual["card_s"], fast["card_s"]) == (1.125, 1.5)
    assert (fast["replicas"], fast["cards"]) == (12, 48)


def test_example_11_7_costs_of_calls() -> None:
    costs = [call["cost_usd"] for call in asked("11-7-routes")[0]["calls"]]
    for cost, text in zip(costs, ("0.0129", "0.0088", "0.0430"), strict=True):
        printed(cost, text)


def test_example_11_7_routes() -> None:
    told = asked("11-7-routes")[1]
    a, b = told["services"]
    printed(a["cost_per_success_at"]["1"], "0.0161")
    printed(100 * told["break_even_hit"], "79.5")
    printed(b["cost_per_success_at"]["0.5"], "0.0264")
    assert b["cost_per_success_at"]["0.5"] > a["cost_per_success_at"]["0.5"]
    printed(100 * b["hit_for_target"], "91.8")
    assert a["hit_for_target"] is None
    assert set(a["in_time_at"].values()) == {0}
    assert b["in_time_at"]["1"] == pytest.approx(0.98)


def test_11_4_4_buying() -> None:
    told = asked("11.4.4-buy")[0]
    printed(told["break_even_tasks"] / 1e6, "2.41")
    printed(100 * told["utilisation_at_break_even"], "78.6")
    assert told["utilisation_at_break_even"] == pytest.approx(6.79 / 8.64, rel=1e-4)
    assert told["worth_it"] is True
    printed(4 * 720 * 6.79, "19555.2")
    printed(3 * 1.125 * 8.64 / 3600, "0.0081")
    printed(32 * 2_592_000 / 27 / 1e6, "3.072")
    assert (round(1e6 * 0.0081), round(3e6 * 0.0081)) == (8100, 24300)


def test_11_4_4_faster_decoding() -> None:
    before, after = asked("11.4.4-buy")[1]["calls"]
    printed(before["usd_per_million_output_tokens"], "6.0")
    printed(after["usd_per_million_output_tokens"], "4.1")
    told = asked("11.4.4-buy")[2]
    (decode,) = told["parts"]
    printed(1000 * decode["total_s"], "17.4")
    printed(decode["speedup"], "1.46")
    printed(100 * decode["part"], "63")
    printed(100 * decode["saved_share"], "31")
    printed(1000 * decode["least_s"], "9.4")


def test_11_4_4_what_the_fast_service_costs_more() -> None:
    usual, fast = asked("11.4.3-queues")[2]["calls"]
    assert fast["card_s"] - usual["card_s"] == 0.375
    printed(fast["cost_usd"] - usual["cost_usd"], "0.00071")
    printed(30 * (fast["cost_usd"] - usual["cost_usd"]), "0.021")


# ------------------------------------------------------------------------------------------------- 11.5


@pytest.mark.parametrize(
    ("row", "save_s", "total_s", "redo_s"), [(0, 1.0, 21.0, 0.2), (1, 0.28, 20.28, 2.0)]
)
def test_11_5_1_table_of_commits(row: int, save_s: float, total_s: float, redo_s: float) -> None:
    told = asked("11.5.1-commit")[row]
    assert told == pytest.approx({"save_s": save_s, "total_s": total_s, "redo_s": redo_s})


def test_11_5_1_ten_at_a_time_save() -> None:
    each, ten = asked("11.5.1-commit")
    printed(each["total_s"] - ten["total_s"], "0.72")


#: The table of 11.5.2: path, outcome, probability, usd, seconds, in time.
TREE = [
    (["first"], "success", "0.80000", "0.010", 10, True),
    (["first", "fix"], "success", "0.07200", "0.016", 14, True),
    (["first", "fix", "stronger"], "success", "0.04704", "0.046", 22, False),
    (["first", "fix", "stronger"], "fail", "0.00096", "0.046", 22, False),
    (["first", "stronger"], "success", "0.07840", "0.040", 18, True),
    (["first", "stronger"], "fail", "0.00160", "0.040", 18, False),
]


@pytest.mark.parametrize("row", range(6))
def test_11_5_2_table_of_six_paths(row: int) -> None:
    paths = asked("11-8-retries")[0]["paths"]
    assert len(paths) == 6
    names, outcome, p, cost_usd, seconds, punctual = TREE[row]
    assert (paths[row]["path"], paths[row]["outcome"]) == (names, outcome)
    printed(paths[row]["p"], p)
    printed(paths[row]["cost_usd"], cost_usd)
    assert (paths[row]["seconds"], paths[row]["in_time"]) == (seconds, [punctual])


def test_example_11_8_a_success_with_all_attempts_counted() -> None:
    told = asked("11-8-retries")[0]
    printed(told["success"], "0.99744")  # footnote 19
    printed(1000 * told["success"], "997")
    printed(told["expected_cost_usd"], "0.01456")
    printed(1000 * told["expected_cost_usd"], "14.6")
    printed(told["cost_per_success"], "0.0146")
    (deadline,) = told["deadlines"]
    printed(deadline["in_time"], "0.9504")
    printed(1000 * deadline["in_time"], "950")
    printed(deadline["cost_per_in_time"], "0.0153")
    fixed = [path for path in told["paths"] if "fix" in path["path"]]
    printed(1000 * sum(path["p"] for path in fixed), "120")
    stronger = [path for path in told["paths"] if "stronger" in path["path"]]
    printed(1000 * sum(path["p"] for path in stronger), "128")
    late = [
        path for path in told["paths"] if path["outcome"] == "success" and not path["in_time"][0]
    ]
    printed(100 * sum(path["p"] for path in late), "4.7")


def test_11_5_2_the_first_attempt_alone() -> None:
    told = asked("11-8-retries")[1]
    printed(told["cost_per_success"], "0.0125")
    assert told["success"] == 0.8


def test_11_5_2_fewer_attempts_where_they_would_be_late() -> None:
    told = asked("11-8-retries")[2]
    assert told["success"] == pytest.approx(0.9504)  # those in time, and no others
    assert told["deadlines"][0]["in_time"] == pytest.approx(0.9504)
    assert told["expected_cost_usd"] == pytest.approx(0.010 + 0.12 * 0.006 + 0.08 * 0.030)


def test_11_5_2_five_of_ten_for_a_dollar() -> None:
    assert asked("11-8-retries")[3]["cost_per_success"] == 0.2


def test_11_5_2_a_model_too_fast_for_its_environment() -> None:
    in_time, late = asked("11-8-retries")[4]["leads"]
    assert in_time["expected_wait_s"] == 0
    printed(late["expected_wait_s"], "1.7")


#: The table of 11.5.3: seconds, CPU s and GiB s of a task, GiB, usd of a thousand tasks, share in time.
VARIANTS = [
    (30, 3.0, 60, 600, "6.68", 0.0),
    (30, 3.3, 18, 180, "6.49", 0.0),
    (21, 3.0, 42, 420, "8.72", 0.95),
    (21, 3.3, 18, 180, "8.61", 0.95),
]


@pytest.mark.parametrize("row", range(4))
def test_11_5_3_table_of_four_variants(row: int) -> None:
    told = asked("11-9-variants")[row]
    task_s, cpu_s, gib_s, gib, usd, share = VARIANTS[row]
    assert told["task_s"] == task_s
    assert told["cpu_cores"] / 10 == pytest.approx(cpu_s)
    assert told["memory_gib"] / 10 == pytest.approx(gib_s)
    assert told["memory_gib"] == pytest.approx(gib)
    printed(told["cost_per_1000_tasks"], usd)
    assert told["in_time_share"] == share


def test_example_11_9_costs_in_time() -> None:
    slow, _, resident, recreated, chosen = asked("11-9-variants")
    assert slow["cost_per_1000_in_time"] is None
    printed(recreated["cost_per_1000_in_time"], "9.07")
    printed(resident["cost_per_1000_in_time"], "9.18")
    less = 1 - recreated["cost_per_1000_in_time"] / resident["cost_per_1000_in_time"]
    printed(100 * less, "1.2")
    assert 1000 * 3 * 0.002829166667 / recreated["cost_per_1000_tasks"] > 0.98  # the model's part
    printed(recreated["cost_per_1000_tasks"] / 1000, "0.0086147")
    assert chosen == asked("11-9-chosen")


def test_example_11_9_what_must_be_bought() -> None:
    _, _, resident, recreated, chosen = asked("11-9-variants")
    assert resident["short"]["memory_gib"] == 62  # 420 of 358 GiB
    assert (recreated["short"]["memory_gib"], recreated["short"]["model_slots"]) == (0, 20)
    assert recreated["bottleneck"] == "model"
    assert set(chosen["short"].values()) == {0}
    assert chosen["cpu_cores"] == pytest.approx(33)
    assert chosen["environments"] == 90


def test_example_11_9_the_schedule() -> None:
    told = asked("11-9-chosen", "--timeline", "even")["timeline"]
    rows = {what: [p for p in told["phases"] if p["what"] == what] for what in ("prepare", "tool")}
    spans = {what: [(p["from_s"], p["to_s"]) for p in each] for what, each in rows.items()}
    assert spans["prepare"] == [(4, 6), (11, 13), (18, 20)]
    assert spans["tool"] == [(6, 7), (13, 14), (20, 21)]
    assert [p["cpu_cores"] for p in rows["tool"]] == [10, 10, 10]
    assert [p["cpu_cores"] for p in rows["prepare"]] == pytest.approx([1, 1, 1])
    assert [p["at_once"] for p in told["phases"] if p["what"] == "model"] == [60, 60, 60]
    assert told["environments_peak"] == 90
    peaks = {name: peak["peak"] for name, peak in told["peaks"].items()}
    assert peaks == pytest.approx({"cpu": 33, "memory": 180, "model": 180})
    assert told["peaks"]["model"]["capacity"] == 192


def test_11_5_3_faster_tools_do_not_help() -> None:
    tools, model = asked("11.5.3-limits")[0]["parts"]
    assert tools["total_s"] == pytest.approx(28.5)
    assert tools["least_s"] == 27
    printed(tools["speedup"], "1.05")
    printed(model["speedup"], "1.82")


def test_11_5_3_when_to_keep_an_environment_after_all() -> None:
    six, two = asked("11.5.3-limits")[1:3]
    printed(six["break_even_idle_s"], "2.16")
    assert (six["best"], two["best"]) == ("recreate", "keep")
    gap_usd = (
        six["options"]["recreate"]["cost_usd"] - 2 * 1 * 0.0000045
    )  # without the tool's second
    printed(gap_usd, "0.0000194")


def test_11_5_3_a_repair_fits_into_25_seconds() -> None:
    told = asked("11.5.3-limits")[3]
    at_24, at_25 = told["deadlines"]
    assert at_24["in_time"] == 0.95
    assert at_25["in_time"] == pytest.approx(0.95 + 0.05 * 0.6)
    assert told["paths"][1]["seconds"] == 25


# -------------------------------------------------------------------------------------------- the files


def test_every_file_is_used_above_and_listed_in_the_docs() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    page = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text(encoding="utf-8")
    files = sorted(EXAMPLES.iterdir())
    assert len(files) >= 18
    for file in files:
        assert f'"{file.stem}"' in here, file
        assert f"examples/capacity/{file.name}" in page, file


def test_a_batch_is_never_over_before_its_longest_sample_11_3_4() -> None:
    samples = [(0.0, 10.0), (3.0, 4.0), (9.0, 5.0)]
    ends = [max(span.finish_s for span in first_come(samples, workers)) for workers in (3, 2, 1)]
    assert ends[0] == max(arrives + service for arrives, service in samples)
    assert ends == sorted(ends)
