"""``tenure allocate``: one reason for each job, and one sentence for what cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tenure.plan.allocate_scenario import read_scenario
from tests.tenure_command import complaint, tenure

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "allocate" / "kaggle.yaml"
GOOD = """\
jobs:
  - {name: a, hours: 4, deadline_h: 10, budget: {usd: 9}}
  - {name: b, hours: 2}
rungs:
  - name: cheap
    price: {per_h: 1}
    concurrency: 1
    quota: {left: 5, renews_in_h: 50}
  - {name: dear, price: {per_h: 2}}
horizon_h: 40
"""


def written(folder: Path, text: str) -> str:
    file = folder / "scenario.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def says(folder: Path, text: str) -> str:
    ended = complaint("allocate", written(folder, text))
    assert ended.code == 2, ended
    return ended.err


def test_its_json_and_its_words_tell_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    answer = json.loads(tenure("allocate", file, "--json").out)
    assert list(answer) == [
        "method", "why_method", "optimal", "cost_usd", "bound_usd", "gap", "spent", "horizon_h",
        "assignments", "unplaced", "shadow_prices", "limits",
    ]  # fmt: skip
    assert answer["method"] == "mip" and answer["optimal"] and answer["cost_usd"] == 8.0
    where = {row["job"]: row["rung"] for row in answer["assignments"]}
    assert where == {"a": "cheap", "b": "dear"}
    words = tenure("allocate", file)
    assert words.code == 0 and words.err == ""
    for row in answer["assignments"]:
        assert row["reason"] in words.out and row["job"] in words.out
    assert "the next best is dear for 8 usd" in words.out
    assert all(limit["reason"] in words.out for limit in answer["limits"] if limit["usd_per_unit"])
    assert answer["shadow_prices"]["cheap"] == pytest.approx(1.0)


def test_the_page_names_every_key(tmp_path: Path) -> None:
    answer = json.loads(tenure("allocate", written(tmp_path, GOOD), "--json").out)
    page = (EXAMPLE.parents[1] / "allocate.md").read_text(encoding="utf-8")
    keys = {*answer, *answer["assignments"][0], *answer["limits"][0]}
    schema = json.loads(tenure("allocate", "--schema").out)
    for name in ("Job", "Rung", "Quota", "Price"):
        keys |= set(schema["$defs"][name]["properties"])
    keys |= set(schema["properties"])
    missing = {key for key in keys if not re.search(rf"\b{key}\b", page)}
    assert not missing


def test_the_schema_accepts_what_the_command_accepts_and_refuses_what_it_refuses() -> None:
    schema = json.loads(tenure("allocate", "--schema").out)
    scenario = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    jsonschema.validate(scenario, schema)
    scenario["jobs"][0]["hurry"] = True
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(scenario, schema)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("hours: 2}", "hours: 2, zeal: 1}", ":3: jobs[1].zeal: unknown key; known:"),
        ("concurrency: 1", "concurency: 1", ":7: rungs[0].concurency: unknown key; did you mean"),
        ("{per_h: 1}", "{per_h: -1}", ":6: rungs[0].price.per_h: must be at least 0, not -1"),
        ("{per_h: 1}", "{per_h: .nan}", ":6: rungs[0].price.per_h: must be a finite number"),
        ("hours: 4,", "hours: .inf,", ":2: jobs[0].hours: must be a finite number"),
        ("hours: 4,", "", ":2: jobs[0]: has none of hours, hours_on and flops"),
        ("hours: 4,", "hours: 4, flops: 1e18,", ":2: jobs[0]: has hours and flops; give exactly one"),
        ("name: b", "name: a", ":3: jobs[1].name: 'a' stands on line 2 too"),
        ("name: dear", "name: cheap", ":9: rungs[1].name: 'cheap' stands on line 5 too"),
        ("{usd: 9}", "{euro: 9}", ":2: jobs[0].budget.euro: no rung is paid in 'euro'"),
        ("left: 5", "left: -5", ":8: rungs[0].quota.left: must be at least 0"),
        ("left: 5", "left: 5, unit: credits", "quota.unit: is 'credits' and rung 'cheap' is paid in"),
        ("renews_in_h: 50", "renews_in_h: 1, every_h: 0.5", "quota.every_h: has it renewed 79 times"),
        ("quota: {left: 5, renews_in_h: 50}", "quota_of: dear", "rung 'dear' has no quota; give it"),
        ("{per_h: 2}", "{currency: credits, per_h: 2}", "nothing says what 'credits' costs"),
        ("hours: 2}", "hours_on: {chaep: 2}}", "hours_on.chaep: there is no such rung; did you mean"),
        ("jobs:\n", "jobs: [\n", "not valid YAML"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    assert sentence in says(tmp_path, GOOD.replace(old, new, 1))


def test_no_jobs_no_rungs_no_section_no_file(tmp_path: Path) -> None:
    assert "rungs: needs at least 1 entries" in says(
        tmp_path, "jobs: [{name: a, hours: 1}]\nrungs: []\n"
    )
    assert "jobs: needs at least 1" in says(
        tmp_path, "jobs: []\nrungs: [{name: r, price: {per_h: 1}}]\n"
    )
    assert "rungs: this key is missing" in says(tmp_path, "jobs: [{name: a, hours: 1}]\n")
    assert "a scenario is a section" in says(tmp_path, "- 1\n")
    assert "a scenario is a section" in says(tmp_path, "")
    assert "there is no such scenario" in complaint("allocate", str(tmp_path / "none.yaml")).err
    assert "a scenario is missing" in complaint("allocate").err


def test_a_deadline_that_no_rung_can_keep_says_by_how_much(tmp_path: Path) -> None:
    text = GOOD.replace("hours: 4, deadline_h: 10", "hours: 14, deadline_h: 10")
    found = says(tmp_path, text.replace(", budget: {usd: 9}", ""))
    assert ":2: jobs[0].deadline_h: job 'a' cannot end by 10 h" in found
    assert "4 h too late" in found and "the cheapest relaxation is deadline_h: 14" in found
    fixed = text.replace(", budget: {usd: 9}", "").replace("deadline_h: 10", "deadline_h: 14")
    assert tenure("allocate", written(tmp_path, fixed)).code == 0


def test_a_budget_that_no_rung_can_keep_says_by_how_much(tmp_path: Path) -> None:
    text = GOOD.replace("{usd: 9}", "{usd: 3}").replace("left: 5", "left: 1")
    found = says(tmp_path, text)
    assert ":2: jobs[0].budget.usd: job 'a' costs 8 usd on dear" in found
    assert "5 more than the budget of 3" in found and "a budget of 8 usd" in found
    assert tenure("allocate", written(tmp_path, text.replace("{usd: 3}", "{usd: 8}"))).code == 0


def test_a_budget_of_all_that_is_too_small_together_says_by_how_much(tmp_path: Path) -> None:
    found = says(tmp_path, GOOD + "budget: {usd: 7}\n")
    assert (
        ":11: budget.usd: the cheapest way to have every job in time costs 8 usd, 1 more" in found
    )
    assert "a budget of 8 usd, or every deadline 11 h later" in found  # then the quota is renewed
    assert tenure("allocate", written(tmp_path, GOOD + "budget: {usd: 8}\n")).code == 0


def test_deadlines_that_cannot_all_be_kept_say_by_how_much(tmp_path: Path) -> None:
    text = """\
horizon_h: 9
jobs:
  - {name: a, hours: 4, deadline_h: 8}
  - {name: b, hours: 4, deadline_h: 9}
  - {name: c, hours: 3, deadline_h: 9}
rungs: [{name: only, price: {per_h: 1}, concurrency: 1}]
"""
    found = says(tmp_path, text)
    assert (
        ":3: jobs[0].deadline_h: the 3 deadlines, the first of them 8 h, cannot all be kept"
        in found
    )
    late = re.search(r"every deadline ([\d.]+) h later", found)
    assert late and float(late[1]) == pytest.approx(2.0, abs=0.011)
    eased = text.replace("deadline_h: 8", "deadline_h: 11").replace(": 9", ": 11.01")
    assert tenure("allocate", written(tmp_path, eased)).code == 0


def test_a_job_without_any_place_is_named_with_what_excludes_each_rung(tmp_path: Path) -> None:
    text = GOOD.replace("hours: 2}", "hours: 2, environment: h100, cards: 1}")
    ended = tenure("allocate", written(tmp_path, text), "--json")
    assert ended.code == 1 and "1 of 2 jobs have no place; the first is b" in ended.err
    (row,) = json.loads(ended.out)["unplaced"]
    assert row["job"] == "b" and set(row["excluded"]) == {"cheap", "dear"}
    assert row["excluded"]["cheap"] == "cannot prove environment h100 (it proves: none)"
    words = tenure("allocate", written(tmp_path, text))
    assert "b has no place: no rung takes it: cheap cannot prove environment h100" in words.out


@pytest.mark.parametrize(
    ("job", "rung", "why"),
    [
        ("kind: backtest", "kinds: [train]", "takes no backtest jobs, only train"),
        ("critical: true", "spot: true", "is spot, and the job is critical"),
        ("cards: 4", "cards: 2", "a launch has 2 cards, the job needs 4"),
        ("milestone_h: 2", "wall_h: 1.5", "its milestones are 2 h apart, and a launch lives 1.5 h"),
        ("milestone_h: 20", "hazard_per_h: 60", "never end there, so often are its machines lost"),
        ("cards: 1", "quota: {left: 3}", "takes 30 h, and the quota has 3 h until its horizon"),
    ],
)
def test_each_way_to_be_excluded_has_its_words(
    tmp_path: Path, job: str, rung: str, why: str
) -> None:
    text = f"jobs: [{{name: a, hours: 30, {job}}}]\nrungs: [{{name: r, price: {{per_h: 1}}, {rung}}}]\n"
    ended = tenure("allocate", written(tmp_path, text), "--json")
    assert ended.code == 1
    (row,) = json.loads(ended.out)["unplaced"]
    assert why in row["excluded"]["r"] and row["excluded"]["r"] in row["reason"]


def test_who_is_left_out_for_want_of_room_is_told(tmp_path: Path) -> None:
    text = """\
jobs: [{name: a, hours: 8}, {name: b, hours: 9}, {name: c, hours: 2}]
rungs: [{name: kaggle, price: {currency: hours, per_h: 1}, quota: {left: 11}}]
"""
    ended = tenure("allocate", written(tmp_path, text), "--json")
    answer = json.loads(ended.out)
    assert ended.code == 1 and len(answer["assignments"]) == 2  # as many as there can be
    (row,) = answer["unplaced"]
    assert "there is no room for it beside the others: kaggle would take" in row["reason"]


def test_a_critical_job_is_left_out_last(tmp_path: Path) -> None:
    text = """\
jobs: [{name: a, hours: 8, critical: true}, {name: b, hours: 4}, {name: c, hours: 4}]
rungs: [{name: kaggle, price: {currency: hours, per_h: 1}, quota: {left: 9}}]
"""
    answer = json.loads(tenure("allocate", written(tmp_path, text), "--json").out)
    assert [row["job"] for row in answer["assignments"]] == ["a"]
    either = json.loads(
        tenure("allocate", written(tmp_path, text.replace("true", "false")), "--json").out
    )
    assert [row["job"] for row in either["assignments"]] == ["b", "c"]


def test_flops_and_hours_by_rung(tmp_path: Path) -> None:
    text = """\
jobs: [{name: f, flops: 7.2e18, cards: 2}, {name: h, hours_on: {slow: 7}}]
rungs:
  - {name: fast, price: {per_h: 1}, cards: 2, flops_per_s: 1.0e+15, speed: 0.5}
  - {name: slow, price: {per_h: 0.1}}
"""
    answer = json.loads(tenure("allocate", written(tmp_path, text), "--json").out)
    assert {row["job"]: row["hours"] for row in answer["assignments"]} == {"f": 2.0, "h": 7.0}
    assert read_scenario(Path(written(tmp_path, text))).until_h == 168.0
