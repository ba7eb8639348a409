"""What ``tenure capacity`` prints, draws and refuses."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml

from tenure.capacity.scenario import KINDS, ask, schema
from tenure.errors import UsageError
from tests.tenure_command import complaint, tenure

EXAMPLES = Path(__file__).parents[2] / "examples" / "capacity"
CHOSEN = EXAMPLES / "11-9-chosen.yaml"

DEMAND = """\
kind: demand
arrivals_per_s: 10
tasks: [{share: 1, rounds: 3, model_s: 9, tool_s: 1}]
environment: {memory_gib: 2, policy: resident}
capacity: {cpu_cores: 48, memory_gib: 358, model_slots: 320}
"""
ROUTES = """\
kind: routes
deadline_s: 6
target: 0.9
services:
  - {name: a, cost_hit: 1, cost_miss: 2, success_hit: 0.5, success_miss: 0.5, time_hit_s: 1, time_miss_s: 9}
"""
RETRIES = """\
kind: retries
start: first
deadlines_s: [20]
nodes:
  first: {cost_usd: 1, seconds: 10, outcomes: [{p: 0.8, to: success}, {p: 0.2, to: again}]}
  again: {cost_usd: 1, seconds: 5, outcomes: [{p: 1, to: fail}]}
"""


def written(folder: Path, text: str, name: str = "s.yaml") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def answer(folder: Path, text: str, *options: str, name: str = "s.yaml") -> Any:
    ended = tenure("capacity", written(folder, text, name), "--json", *options)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def refusal(folder: Path, text: str, *options: str, name: str = "s.yaml") -> str:
    ended = complaint("capacity", written(folder, text, name), *options)
    assert ended.code == 2, ended
    return ended.err


# --------------------------------------------------------------------------------------- what comes back


def test_a_list_comes_back_for_a_list_and_an_object_for_one(tmp_path: Path) -> None:
    both = "- " + DEMAND.replace("\n", "\n  ").rstrip() + "\n"
    assert isinstance(answer(tmp_path, DEMAND), dict)
    told = answer(tmp_path, both + both)
    assert isinstance(told, list) and len(told) == 2 and told[0] == answer(tmp_path, DEMAND)
    assert answer(tmp_path, "[]") == []


def test_json_is_read_as_yaml_is(tmp_path: Path) -> None:
    text = json.dumps(yaml.safe_load(DEMAND))
    assert answer(tmp_path, text, name="s.json") == answer(tmp_path, DEMAND)
    tabs = json.dumps(yaml.safe_load(DEMAND), indent="\t")
    assert answer(tmp_path, tabs, name="s.json") == answer(tmp_path, DEMAND)
    assert answer(tmp_path, "\ufeff" + text, name="s.json") == answer(tmp_path, DEMAND)


#: The keys of each kind's answer, as the issue and docs/capacity.md have them.
KEYS = {
    "demand": "model_calls_per_s model_concurrency cpu_cores environments memory_gib environment_creations_per_s task_s "
    "utilisation bottleneck max_arrivals_per_s short cost_per_1000_tasks in_time_share cost_per_1000_in_time",
    "residency": "options best break_even_idle_s",
    "prewarm": "leads",
    "move": "finish_s best move_s_below_for_earliest move_s_below_for_least_total_delay",
    "window": "useful useful_share",
    "batch": "start_s finish_s completed_s",
    "longtail": "expected_remaining_s",
    "routes": "services break_even_hit",
    "buy": "break_even_tasks utilisation_at_break_even worth_it",
    "retries": "success expected_cost_usd cost_per_success deadlines paths",
    "commit": "save_s total_s redo_s",
}


@cache
def every_example() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for file in sorted(EXAMPLES.iterdir()):
        data = yaml.safe_load(file.read_text(encoding="utf-8").replace("\t", " "))
        told = json.loads(tenure("capacity", str(file), "--json").out)
        pairs = zip(data, told, strict=True) if isinstance(data, list) else [(data, told)]
        found += list(pairs)
    return found


def test_answers_have_their_keys_and_their_schema_and_every_kind_has_an_example() -> None:
    whole = schema()
    questions = jsonschema.Draft202012Validator(whole)
    pairs = every_example()
    assert {question["kind"] for question, _ in pairs} == set(KINDS)
    for question, told in pairs:
        assert questions.is_valid(question), question
        name = KINDS[question["kind"]][1].__name__
        told_by = {"$defs": whole["$defs"], "$ref": f"#/$defs/answer_{name}"}
        jsonschema.Draft202012Validator(told_by).validate(told)
        if question["kind"] in KEYS:
            assert list(told) == KEYS[question["kind"]].split()


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_page_has_every_key_of_every_kind(kind: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{kind}` \|.*$", page, re.M)
    question, answer_ = KINDS[kind]
    for name in [*question.model_fields, *(each.name for each in fields(answer_))]:
        assert name == "kind" or f"`{name}`" in row or f"`{name}?`" in row, name


def test_inner_keys_are_those_of_the_issue() -> None:
    told = {question["kind"]: each for question, each in every_example()}
    assert set(told["demand"]["utilisation"]) == {"cpu", "memory", "model"}
    assert set(told["demand"]["short"]) == {"cpu_cores", "memory_gib", "model_slots"}
    for option in told["residency"]["options"].values():
        assert set(option) == {"occupied_s", "occupied_gib_s", "delay_s", "cost_usd"}
    assert set(told["prewarm"]["leads"][0]) == {
        "lead_s", "expected_wait_s", "early_gib_s", "wasted_gib_s"
    }  # fmt: skip
    assert set(told["move"]["finish_s"]) == {"wait", "move", "spread"}
    service = told["routes"]["services"][0]
    assert set(service) == {"name", "cost_per_success_at", "in_time_at", "hit_for_target"}
    shares = ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"]
    assert list(service["cost_per_success_at"]) == list(service["in_time_at"]) == shares
    assert set(told["retries"]["deadlines"][0]) == {"deadline_s", "in_time", "cost_per_in_time"}


def test_the_schema_refuses_what_the_command_refuses(tmp_path: Path) -> None:
    told = tenure("capacity", "--schema")
    assert told.code == 0
    whole = json.loads(told.out)
    jsonschema.Draft202012Validator.check_schema(whole)
    valid = jsonschema.Draft202012Validator(whole).is_valid
    good = yaml.safe_load(DEMAND)
    assert valid(good) and valid([good, good])
    assert not valid(good | {"deadline_s": 0})
    assert not valid([good, {"kind": "zebra"}])
    assert not valid({name: value for name, value in good.items() if name != "capacity"})
    names = [name for name in whole["$defs"] if not name.startswith("answer_")]
    assert len(names) == len(set(names)) and "DemandScenario" in names


def test_for_people_there_are_tables_and_a_sentence() -> None:
    told = tenure("capacity", str(EXAMPLES / "11-8-retries.yaml")).out
    assert re.search(r"^3 +first, fix, stronger +success +0\.04704 +0\.046 +22 +no$", told, re.M)
    assert "99.7 % succeed and cost 0.0146 usd each, all attempts counted" in told
    routes = tenure("capacity", str(EXAMPLES / "11-7-routes.yaml")).out
    assert re.search(r"^0\.5 +0\.016125 +0\.0264286$", routes, re.M)
    for file in EXAMPLES.iterdir():
        ended = tenure("capacity", str(file))
        assert ended.code == 0 and ended.out and "None" not in ended.out, file


# -------------------------------------------------------------------------------------------- edge cases


def test_nothing_arrives(tmp_path: Path) -> None:
    told = answer(tmp_path, DEMAND.replace("arrivals_per_s: 10", "arrivals_per_s: 0"))
    assert set(told["utilisation"].values()) == {0}
    assert told["bottleneck"] == "memory"  # what would give out first
    assert told["max_arrivals_per_s"] == pytest.approx(358 / 60)


def test_tasks_that_need_nothing(tmp_path: Path) -> None:
    told = answer(tmp_path, DEMAND.replace("rounds: 3", "rounds: 0"))
    assert (told["bottleneck"], told["max_arrivals_per_s"], told["task_s"]) == (None, None, 0)


def test_a_platform_with_nothing(tmp_path: Path) -> None:
    text = DEMAND.replace("memory_gib: 358", "memory_gib: 0")
    told = answer(tmp_path, text)
    assert told["utilisation"]["memory"] is None
    assert (told["max_arrivals_per_s"], told["short"]["memory_gib"]) == (0, 600)
    words = tenure("capacity", written(tmp_path, text), "--timeline", "even").out
    assert "memory gives out first, there is none" in words
    assert "memory would need 600 of 0 GiB" in words


def test_two_sorts_of_tasks(tmp_path: Path) -> None:
    tasks = "[{share: 0.25, rounds: 3, model_s: 9, tool_s: 1}, {share: 0.75, rounds: 1, model_s: 2, tool_s: 2, tool_cpu_s: 6}]"
    text = re.sub(r"tasks: .*", f"tasks: {tasks}", DEMAND)
    told = answer(tmp_path, text + "deadline_s: 10\nsuccess: 0.8\nprices: {model_call: 1}\n")
    assert told["task_s"] == 0.25 * 30 + 0.75 * 4
    assert told["cpu_cores"] == 10 * (0.25 * 3 + 0.75 * 6)
    assert told["model_concurrency"] == 10 * (0.25 * 27 + 0.75 * 2)
    assert told["in_time_share"] == pytest.approx(0.8 * 0.75)
    assert told["cost_per_1000_tasks"] == pytest.approx(1000 * (0.25 * 3 + 0.75))
    assert told["cost_per_1000_in_time"] == pytest.approx(1500 / 0.6)


def test_a_preparation_that_does_not_fit_delays_the_tool(tmp_path: Path) -> None:
    text = DEMAND.replace("policy: resident", "policy: recreate, prepare_s: 11, prepare_cpu_s: 1")
    told = answer(tmp_path, text)
    assert told["task_s"] == 3 * (11 + 1)
    assert told["environments"] == 10 * 3 * (11 + 1)
    assert told["cpu_cores"] == 10 * 3 * (1 + 1)
    assert told["model_concurrency"] == 270  # the calls themselves are no longer


def test_a_deadline_may_be_met_to_the_second(tmp_path: Path) -> None:
    text = re.sub(r"model_s: 9, tool_s: 1", "model_s: 0.1, tool_s: 0.2", DEMAND)
    assert 3 * (0.1 + 0.2) > 0.9  # as floating point has it
    assert answer(tmp_path, text + "deadline_s: 0.9\n")["in_time_share"] == 1
    assert answer(tmp_path, text + "deadline_s: 0.899\n")["in_time_share"] == 0


RESIDENCY = """\
kind: residency
idle_s: 6
tool_s: 1
memory_gib: 2
pause: {save_s: 8, restore_s: 1}
recreate: {prepare_s: 2, prepare_cpu_s: 0.1}
prices: {cpu_s: 0.000014, gib_s: 0.0000045}
"""


def test_transitions_longer_than_the_wait_delay_the_tool(tmp_path: Path) -> None:
    told = answer(tmp_path, RESIDENCY.replace("idle_s: 6", "idle_s: 1"))
    delays = {name: option["delay_s"] for name, option in told["options"].items()}
    assert delays == {"keep": 0, "pause": 8, "recreate": 1}
    occupied = {name: option["occupied_s"] for name, option in told["options"].items()}
    assert occupied == {"keep": 2, "pause": 10, "recreate": 3}
    assert told["best"] == "keep"


def test_memory_for_nothing_is_kept(tmp_path: Path) -> None:
    told = answer(tmp_path, RESIDENCY.replace("gib_s: 0.0000045", "gib_s: 0"))
    assert (told["best"], told["break_even_idle_s"]) == ("keep", None)


def test_a_move_that_helps_the_newcomer_and_costs_both_more(tmp_path: Path) -> None:
    told = answer(tmp_path, "{kind: move, wait_s: 12, run_s: 20, move_s: 7, victim_extra_s: 3}")
    assert told["best"] == "move"
    assert told["finish_s"] == {"wait": 32, "move": 27, "spread": None}
    assert told["move_s_below_for_least_total_delay"] == 4.5  # 4.5 + 4.5 + 3 = 12
    none = answer(tmp_path, "{kind: move, wait_s: 12, run_s: 20}")
    assert (none["best"], none["finish_s"]["move"]) == ("wait", None)


def test_a_spread_that_is_faster_than_any_move(tmp_path: Path) -> None:
    text = "{kind: move, wait_s: 12, run_s: 20, move_s: 1, spread: {ready_s: 1, run_s: 10}}"
    told = answer(tmp_path, text)
    assert told["best"] == "spread"
    assert told["move_s_below_for_earliest"] == told["move_s_below_for_least_total_delay"] == 0


def test_empty_lists_have_empty_answers(tmp_path: Path) -> None:
    assert answer(
        tmp_path, "{kind: prewarm, prepare_s: 2, hit: 1, leads_s: [], memory_gib: 2}"
    ) == {"leads": []}
    assert answer(tmp_path, "{kind: window, prepare_s: 2, rate: 1, lifetimes_s: []}") == {
        "useful": [], "useful_share": []
    }  # fmt: skip
    assert answer(tmp_path, "{kind: batch, samples: [], workers: 2, mode: each}") == {
        "start_s": [], "finish_s": [], "completed_s": None
    }  # fmt: skip
    assert answer(tmp_path, "{kind: longtail, durations_s: [], elapsed_s: 1}") == {
        "expected_remaining_s": None
    }


def test_samples_answer_in_the_order_of_the_question(tmp_path: Path) -> None:
    text = "{kind: batch, workers: 1, mode: MODE, samples: [{arrives_s: 5, service_s: 2}, {arrives_s: 0, service_s: 1}]}"
    assert answer(tmp_path, text.replace("MODE", "each"))["start_s"] == [5, 0]
    told = answer(tmp_path, text.replace("MODE", "all_together"))
    assert told == {"start_s": [6, 5], "finish_s": [8, 6], "completed_s": 8}


def test_longer_than_all_that_was_measured(tmp_path: Path) -> None:
    assert answer(tmp_path, "{kind: longtail, durations_s: [1, 5], elapsed_s: 5}") == {
        "expected_remaining_s": None
    }


def test_services_that_never_succeed(tmp_path: Path) -> None:
    text = ROUTES.replace("success_hit: 0.5, success_miss: 0.5", "success_hit: 0, success_miss: 0")
    told = answer(tmp_path, text)
    assert set(told["services"][0]["cost_per_success_at"].values()) == {None}
    assert (told["services"][0]["hit_for_target"], told["break_even_hit"]) == (None, None)


def test_a_target_that_misses_reach_too(tmp_path: Path) -> None:
    told = answer(
        tmp_path, ROUTES.replace("time_miss_s: 9", "time_miss_s: 2").replace("0.9", "0.4")
    )
    assert told["services"][0]["hit_for_target"] == 0


@pytest.mark.parametrize(
    ("text", "tasks", "share", "worth_it"),
    [
        ("fixed_usd: 100, extra_per_task_usd: 1, api_per_task_usd: 2", 100, None, True),
        ("fixed_usd: 100, extra_per_task_usd: 2, api_per_task_usd: 2", None, None, False),
        ("fixed_usd: 100, extra_per_task_usd: 1, api_per_task_usd: 2, capacity_tasks: 80", 100, 1.25, False),
        ("fixed_usd: 100, extra_per_task_usd: 1, api_per_task_usd: 2, success_own: 0", None, None, False),
        ("fixed_usd: 100, extra_per_task_usd: 1, api_per_task_usd: 2, success_api: 0", 0, None, True),
        ("fixed_usd: 90, extra_per_task_usd: 1, api_per_task_usd: 2, success_own: 0.95, success_api: 0.5", 90 / 2.8, None, True),
    ],
)  # fmt: skip
def test_buying(
    tmp_path: Path, text: str, tasks: float | None, share: float | None, worth_it: bool
) -> None:
    told = answer(tmp_path, f"{{kind: buy, {text}}}")
    assert told == {
        "break_even_tasks": tasks if tasks is None else pytest.approx(tasks),
        "utilisation_at_break_even": share,
        "worth_it": worth_it,
    }


def test_nothing_succeeds_and_nothing_is_started(tmp_path: Path) -> None:
    told = answer(tmp_path, RETRIES.replace("to: success", "to: fail"))
    assert (told["success"], told["cost_per_success"]) == (0, None)
    assert told["deadlines"][0]["cost_per_in_time"] is None
    late = RETRIES.replace("[20]", "[9]") + "stop_if_late: true\n"
    stopped = answer(tmp_path, late)
    assert (stopped["expected_cost_usd"], stopped["success"]) == (0, 0)
    assert stopped["paths"][0]["outcome"] == "not_started"


def test_commits_whose_last_is_smaller(tmp_path: Path) -> None:
    text = "{kind: commit, requests: 11, service_s: 1, fixed_s: 2, per_item_s: 0.5, batch: 4}"
    assert answer(tmp_path, text) == {"save_s": 3 * 2 + 5.5, "total_s": 22.5, "redo_s": 4}
    assert answer(tmp_path, text.replace("11", "3"))["redo_s"] == 3
    assert answer(tmp_path, text.replace("11", "0"))["total_s"] == 0


def test_a_cache_that_never_pays(tmp_path: Path) -> None:
    text = "{kind: cache, calls: 3, prefix_tokens: 10, new_tokens: 0, prices: {input: 1, write: 2, read: 1}}"
    told = answer(tmp_path, text)
    assert told["calls_to_pay_off"] is None and told["saved_usd"] < 0
    cheap = text.replace("write: 2", "write: 0.5")
    assert answer(tmp_path, cheap)["calls_to_pay_off"] == 1
    nothing = cheap.replace("prefix_tokens: 10", "prefix_tokens: 0")
    assert answer(tmp_path, nothing)["calls_to_pay_off"] is None


# ---------------------------------------------------------------------------------------------- timeline


def test_the_timeline_in_the_json_and_for_people(tmp_path: Path) -> None:
    told = answer(tmp_path, DEMAND, "--timeline", "even")
    assert told["timeline"]["peaks"]["memory"] == {
        "mean": 600, "peak": 600, "capacity": 358, "peak_share": pytest.approx(600 / 358)
    }  # fmt: skip
    assert list(told)[: len(KEYS["demand"].split())] == KEYS["demand"].split()
    words = tenure("capacity", written(tmp_path, DEMAND), "--timeline", "burst").out
    assert re.search(r"^memory, GiB +600 +600 +358 +167\.6$", words, re.M)
    assert "10 tasks at once every 1 s" in words


def test_bursts_of_a_second_are_the_default(tmp_path: Path) -> None:
    told = answer(tmp_path, DEMAND.replace("rounds: 3", "rounds: 1"), "--timeline", "burst")
    assert (told["timeline"]["tasks_at_once"], told["timeline"]["every_s"]) == (10, 1)
    rare = answer(tmp_path, DEMAND, "--timeline", "burst", "--burst", "400")
    assert rare["timeline"]["peaks"]["cpu"] == {
        "mean": 30, "peak": 400, "capacity": 48, "peak_share": pytest.approx(400 / 48)
    }  # fmt: skip


def test_the_picture_has_a_title_axes_and_units(tmp_path: Path) -> None:
    file = tmp_path / "t.svg"
    ended = tenure(
        "capacity", str(CHOSEN), "--timeline", "burst", "--burst", "80", "--svg", str(file)
    )
    assert ended.code == 0, ended.err
    root = ElementTree.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    words = [each.text or "" for each in root.iter(f"{space}text")]
    assert (root.find(f"{space}title") is not None) and "11-9-chosen: burst arrivals" in words
    assert {
        "time since the task arrived, s",
        "time in steady state, s",
        "use, % of what is there",
    } <= set(words)
    assert {"model call", "preparation", "tool run", "all there is"} <= set(words)
    assert "cpu: 88 of 48 cores at most" in words
    bars = [each for each in root.iter(f"{space}rect") if each.find(f"{space}title") is not None]
    assert len(bars) == 9
    sizes = {float(each.get("font-size") or 14) for each in root.iter(f"{space}text")}
    assert min(sizes) >= 12
    box = [float(part) for part in str(root.get("viewBox")).split()]
    for line in root.iter(f"{space}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in str(line.get("points")).split()]
        assert all(0 <= x <= box[2] and 0 <= y <= box[3] for x, y in points)
        assert len({y for _, y in points}) > 1  # a burst is no flat line


def test_the_picture_in_the_docs_is_what_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "t.svg"
    tenure("capacity", str(CHOSEN), "--timeline", "burst", "--burst", "80", "--svg", str(file))
    kept = Path(__file__).parents[2] / "docs" / "capacity" / "chosen-burst.svg"
    assert file.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), "draw it again"


def test_the_even_picture_is_flat(tmp_path: Path) -> None:
    file = tmp_path / "t.svg"
    assert tenure("capacity", str(CHOSEN), "--timeline", "even", "--svg", str(file)).code == 0
    for line in ElementTree.parse(file).getroot().iter("{http://www.w3.org/2000/svg}polyline"):
        assert len({pair.split(",")[1] for pair in str(line.get("points")).split()}) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--svg", "x.svg"], "--svg is of a timeline; add --timeline"),
        (["--burst", "3"], "--burst is of a timeline"),
        (["--timeline", "even", "--burst", "3"], "write --timeline burst"),
    ],
)
def test_options_of_a_timeline_alone(options: list[str], words: str) -> None:
    ended = complaint("capacity", str(CHOSEN), *options)
    assert ended.code == 2 and words in ended.err


def test_what_has_no_timeline(tmp_path: Path) -> None:
    def says(text: str) -> str:
        return refusal(tmp_path, text, "--timeline", "even")

    assert "there is none in this file" in says(RETRIES)
    assert "demand: arrivals_per_s is 0" in says(DEMAND.replace("_s: 10", "_s: 0"))
    assert "whole rounds" in says(DEMAND.replace("rounds: 3", "rounds: 2.5"))
    assert "1000 at most" in says(DEMAND.replace("rounds: 3", "rounds: 1001"))
    assert "tool_cpu_s is 3 and tool_s is 0" in says(
        DEMAND.replace("tool_s: 1", "tool_s: 0, tool_cpu_s: 3")
    )
    nowhere = str(tmp_path / "none" / "t.svg")
    two = complaint(
        "capacity", str(EXAMPLES / "11-9-variants.yaml"), "--timeline", "even", "--svg", nowhere
    )
    assert "--svg draws one demand scenario and there are 5" in two.err
    gone = complaint("capacity", str(CHOSEN), "--timeline", "even", "--svg", nowhere)
    assert "t.svg: cannot be written" in gone.err and gone.code == 2


# --------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DEMAND.replace("share: 1", "share: 0.7"), "s.yaml:3: demand: tasks: the shares sum to 0.7, they must sum to 1"),
        (DEMAND.replace("share: 1", "share: 1.2"), "demand: tasks[0].share: must be at most 1, not 1.2"),
        (DEMAND.replace("model_s: 9", "model_s: -9"), "demand: tasks[0].model_s: must be at least 0, not -9"),
        (DEMAND.replace("arrivals_per_s: 10", "arrivals_per_s: .nan"), "s.yaml:2: demand: arrivals_per_s: must be a finite number"),
        (DEMAND.replace("arrivals_per_s: 10", "arrivals_per_s: .inf"), "demand: arrivals_per_s: must be a finite number"),
        (DEMAND.replace("arrivals_per_s: 10", "arrivals_per_s: 1e400"), "demand: arrivals_per_s: must be a finite number"),
        (DEMAND.replace("arrivals_per_s: 10", "arrivals_per_s: ten"), 'demand: arrivals_per_s: must be a number, not "ten"'),
        (DEMAND.replace("arrivals_per_s: 10", f"arrivals_per_s: {10**400}"), "demand: arrivals_per_s: must be a number"),
        (DEMAND.replace("arrivals_per_s", "arivals_per_s"), "demand: arivals_per_s: unknown key; did you mean 'arrivals_per_s'?"),
        (DEMAND.replace("rounds: 3,", "rounds: 3, tool_cpus: 1,"), "demand: tasks[0].tool_cpus: unknown key; did you mean 'tool_cpu_s'?"),
        (DEMAND.replace("policy: resident", "policy: residnt"), "demand: environment.policy: must be 'resident' or 'recreate'"),
        (DEMAND + "deadline_s: 0\n", "s.yaml:6: demand: deadline_s: must be greater than 0, not 0"),
        (DEMAND + "success: 1.01\n", "demand: success: must be at most 1"),
        (DEMAND.replace("[{share", "[]  # [{share"), "demand: tasks: needs at least 1 entries"),
        (DEMAND.replace("kind: demand", "kind: demmand"), "s.yaml:1: kind: there is no kind 'demmand'; did you mean 'demand'?"),
        (DEMAND.replace("kind: demand\n", ""), "kind: this key is missing, add it; known: 'amdahl', 'batch'"),
        (DEMAND.replace("kind: demand", "kind: 3"), "kind: this key must be text, not 3"),
        ("- 1\n", "s.yaml:1: scenario 1: a scenario is a section"),
        ("just words\n", "a scenario is a section"),
        ("", "s.yaml: is empty"),
        ("# nothing\n", "s.yaml: is empty"),
        ("a: [\n", "not valid YAML"),
        ("a: 1\na: 2\n", "this key stands here a second time"),
        ("[" * 700, "nested too deeply"),
        (ROUTES.replace("target: 0.9", "target: 1.9"), "routes: target: must be at most 1"),
        (ROUTES.replace("deadline_s: 6", "deadline_s: 0"), "routes: deadline_s: must be greater than 0"),
        (RETRIES.replace("p: 0.2", "p: 0.1"), "s.yaml:5: retries: nodes.first.outcomes: the probabilities sum to 0.9, they must sum to 1"),
        (RETRIES.replace("p: 0.8", "p: 1.8"), "retries: nodes.first.outcomes[0].p: must be at most 1, not 1.8"),
        (RETRIES.replace("to: fail", "to: first"), "retries: nodes.first: leads back to itself (first -> again -> first)"),
        (RETRIES.replace("to: fail", "to: again"), "retries: nodes.again: leads back to itself (again -> again)"),
        (RETRIES.replace("to: again", "to: agian"), "retries: nodes.first.outcomes[1].to: there is no node 'agian'; did you mean 'again'?"),
        (RETRIES.replace("start: first", "start: frist"), "s.yaml:2: retries: start: there is no node 'frist'; did you mean 'first'?"),
        (RETRIES.replace("[20]", "[0]"), "retries: deadlines_s[0]: must be greater than 0"),
        (RETRIES.replace("[20]", "[20, 30]") + "stop_if_late: true\n", "retries: stop_if_late: needs exactly one deadline in deadlines_s, there are 2"),
        (RETRIES.replace("seconds: 10", "seconds: -1"), "retries: nodes.first.seconds: must be at least 0"),
        (RETRIES.replace("again", "success"), "retries: nodes.success: is the name of an end"),
        ("{kind: batch, samples: [], workers: 0, mode: each}", "batch: workers: must be at least 1, not 0"),
        ("{kind: batch, samples: [], workers: 1.5, mode: each}", "batch: workers: must be a whole number"),
        ("{kind: longtail, durations_s: [1], elapsed_s: -1}", "longtail: elapsed_s: must be at least 0"),
        ("{kind: rollout}", "rollout: asks nothing; give one of stages"),
        ("{kind: amdahl, parts_s: {a: 1}, faster: {b: 2}}", "amdahl: faster.b: is no part of parts_s"),
        ("{kind: amdahl, parts_s: {a: 0}, faster: {a: 2}}", "amdahl: parts_s: all parts take 0 s"),
        ("{kind: load, environments: 1, template_mib: 1, touched_mib: 2, changed_mib: 0}", "load: touched_mib: is 2 and the template has 1 MiB"),
        ("{kind: load, environments: 1, template_mib: 3, touched_mib: 2, changed_mib: 3}", "load: changed_mib: is 3, and the tool touches 2 MiB"),
        ("{kind: call, calls: [{name: a}, {name: a}]}", "call: calls[1].name: 'a' stands twice"),
        ("{kind: call, calls: [{name: a, token_s: 1, service_s: 1}]}", "call: calls[0].service_s: stands beside token_s"),
        (ROUTES + ROUTES[ROUTES.index("  - {"):], "routes: services[1].name: 'a' stands twice"),
        ("{kind: buy, fixed_usd: 1, extra_per_task_usd: 0, api_per_task_usd: 1e-320}", "buy: the answer's break_even_tasks is larger than"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_with_scenario_and_key(
    tmp_path: Path, text: str, words: str
) -> None:
    said = refusal(tmp_path, text)
    assert words in said, said


@pytest.mark.parametrize(
    "text",
    [  # a division by what is no longer a number above 0, and a count that none can hold
        "{kind: amdahl, parts_s: {a: 1e-320}, faster: {a: 1e15}}",
        "{kind: cache, calls: 1, prefix_tokens: 1, new_tokens: 0, prices: {input: 1e-320, write: 1e15, read: 0}}",
    ],
)
def test_numbers_that_floating_point_does_not_hold(tmp_path: Path, text: str) -> None:
    assert "numbers so small or so large have no answer" in refusal(tmp_path, text)


def test_memory_that_gives_out_first_is_told_in_whole_environments(tmp_path: Path) -> None:
    told = tenure("capacity", written(tmp_path, DEMAND.replace("358", "357.6"))).out
    assert "memory gives out first, at 168 % of what is there (178 whole environments)" in told


def test_the_scenario_of_a_list_is_named(tmp_path: Path) -> None:
    bad = RETRIES.replace("p: 0.2", "p: 0.1")
    both = "".join("- " + each.replace("\n", "\n  ").rstrip() + "\n" for each in (DEMAND, bad))
    assert "s.yaml:10: scenario 2 (retries): nodes.first.outcomes: the prob" in refusal(
        tmp_path, both
    )
    other = "- " + DEMAND.replace("\n", "\n  ").rstrip() + "\n\n- 1\n"
    assert "s.yaml:7: scenario 2: a scenario is a section" in refusal(tmp_path, other)
    listed = json.dumps([yaml.safe_load(DEMAND), yaml.safe_load(bad)], indent="\t")
    assert "scenario 2 (retries): nodes.first.outcomes" in refusal(tmp_path, listed, name="s.json")
    twice = '{\n\t"kind": "move", "kind": "move"}'
    assert "not valid YAML" in refusal(tmp_path, twice, name="s.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "there is no such scenario" in complaint("capacity", str(tmp_path / "none.yaml")).err
    assert "cannot be read" in complaint("capacity", str(tmp_path)).err
    assert "a scenario is missing" in complaint("capacity").err
    (tmp_path / "latin").write_bytes(b"kind: \xff\n")
    assert "not UTF-8 text" in complaint("capacity", str(tmp_path / "latin")).err


def test_a_tree_with_too_many_paths(tmp_path: Path) -> None:
    layers = 17
    nodes = {
        f"n{n}": {
            "cost_usd": 1,
            "seconds": 1,
            "outcomes": [{"p": 0.5, "to": f"n{n + 1}" if n < layers else "success"}] * 2,
        }
        for n in range(layers + 1)
    }
    text = json.dumps({"kind": "retries", "start": "n0", "nodes": nodes})
    assert "100,000 are the most" in refusal(tmp_path, text)


def test_a_scenario_made_in_code_is_read_as_strictly() -> None:
    assert ask(yaml.safe_load(DEMAND)).answer().as_json()["task_s"] == 30
    with pytest.raises(UsageError, match="the scenario:1: demand: arivals_per_s: unknown key"):
        ask(yaml.safe_load(DEMAND.replace("arrivals_per_s", "arivals_per_s")))
