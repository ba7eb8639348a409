"""``tenure queue simulate``: its answer's exact shape, and one sentence for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tenure.queue.policies import NAMES
from tests.tenure_command import complaint, tenure

GOOD = """\
cards: 2
half_life_h: 24
horizon_h: 10
teams:
  red: {weight: 2}
  blue: {weight: 1}
events:
  - {t_s: 0, team: red, action: submit, job: r1, cards: 2, duration_s: 3600, priority: 0}
  - {t_s: 60, team: red, action: submit, job: r2, cards: 1, duration_s: 600}
  - {t_s: 90, team: blue, action: submit, job: b1, cards: 1, duration_s: 600}
  - {t_s: 120, team: blue, action: submit, job: b2, cards: 2, duration_s: 60}
  - {t_s: 180, team: blue, action: replace, job: b3, replaces: b2, cards: 1, duration_s: 60}
  - {t_s: 200, team: red, action: hold, job: r2}
  - {t_s: 7200, team: red, action: release, job: r2}
  - {t_s: 36000000, team: red, action: cancel, job: r2}
"""


def written(folder: Path, text: str, name: str = "scenario.yaml") -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def says(folder: Path, *changes: tuple[str, str]) -> str:
    """The sentence about a scenario with parts of it replaced."""
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    ended = complaint("queue", "simulate", written(folder, text))
    assert ended.code == 2
    return ended.err.strip()


def test_its_answer_has_exactly_these_keys_and_numbers(tmp_path: Path) -> None:
    found = json.loads(tenure("queue", "simulate", written(tmp_path, GOOD), "--json").out)
    assert list(found) == ["teams", "jobs"] and list(found["teams"]) == ["red", "blue"]
    assert found["teams"]["blue"] == {
        "jobs": 3,
        "finished": 2,
        "wait_s": {"mean": 3465.0, "median": 3465.0, "p95": 3505.5},
        "card_hours": pytest.approx(660 / 3600),
        "share": pytest.approx(660 / (660 + 7200 + 600)),
        "penalties": 0,
    }
    assert {row["job"]: row for row in found["jobs"]} == {
        "r1": row("r1", "red", 0.0, 0.0, 3600.0),
        "r2": row("r2", "red", 7200.0, 7200.0, 7800.0),  # held: its age is that of its release
        "b1": row("b1", "blue", 90.0, 3600.0, 4200.0),
        "b2": row("b2", "blue", 120.0, None, None),
        "b3": row("b3", "blue", 180.0, 3600.0, 3660.0),  # ... and of its replacement
    }


def row(job: str, team: str, *times: float | None) -> dict[str, object]:
    submitted_s, started_s, finished_s = times
    return {
        "job": job, "team": team, "submitted_s": submitted_s, "started_s": started_s,
        "finished_s": finished_s, "preemptions": 0,
    }  # fmt: skip


def test_yaml_and_json_say_the_same_under_every_policy(tmp_path: Path) -> None:
    as_yaml = written(tmp_path, GOOD)
    as_json = written(tmp_path, json.dumps(yaml.safe_load(GOOD)), "scenario.json")
    for policy in NAMES:
        first, second = (
            tenure("queue", "simulate", file, "--policy", policy, "--json")
            for file in (as_yaml, as_json)
        )
        assert first.code == second.code == 0 and first.out == second.out


EXPLOIT = """cards: 1
teams: {squatter: {}, other: {}}
events:
  - {t_s: 0, team: squatter, action: submit, job: dummy, duration_s: 7200, priority: -1}
  - {t_s: 10, team: other, action: submit, job: other-0, duration_s: 600, priority: 3}
  - {t_s: 20, team: other, action: submit, job: other-1, duration_s: 600, priority: 4}
  - {t_s: 30, team: squatter, action: submit, job: real, duration_s: 600, priority: 9}
"""


def test_each_policy_is_what_it_says(tmp_path: Path) -> None:
    """The seed's squatter on one card: its dummy, two jobs of others, and its real one."""
    starts = {}
    for policy in NAMES:
        file = written(tmp_path, EXPLOIT)
        found = json.loads(tenure("queue", "simulate", file, "--policy", policy, "--json").out)
        began = {row["job"]: row["started_s"] for row in found["jobs"]}
        starts[policy] = (began["other-0"], began["other-1"], began["real"])
    assert starts == {
        "ours": (7800.0, 7200.0, 8400.0),  # other has used less; its own priorities order its jobs
        "fifo": (7200.0, 7800.0, 8400.0),
        "fifo-backfill": (7200.0, 7800.0, 8400.0),
        "priority": (8400.0, 7800.0, 7200.0),
        "fifo-local-preemption": (
            1230.0,
            630.0,
            30.0,
        ),  # each urgent job has its lesser one's place
    }


def test_its_words_tell_what_its_json_tells(tmp_path: Path) -> None:
    words = tenure("queue", "simulate", written(tmp_path, GOOD))
    assert words.code == 0 and words.err == ""
    assert "red" in words.out and "blue" in words.out and "7.8%" in words.out


def test_penalties_are_told_in_words(tmp_path: Path) -> None:
    events = [
        {"t_s": n * 100, "team": "red", "action": "submit", "job": f"d{n}", "duration_s": 90}
        for n in range(4)
    ]
    events += [
        {"t_s": n * 100 + 50, "team": "red", "action": "replace", "job": f"r{n}", "replaces": f"d{n}", "duration_s": 1}
        for n in range(4)
    ]  # fmt: skip
    scenario = {"cards": 1, "teams": {"red": {}}, "events": sorted(events, key=lambda e: e["t_s"])}
    file = written(tmp_path, json.dumps(scenario))
    found = json.loads(tenure("queue", "simulate", file, "--json").out)
    assert found["teams"]["red"]["penalties"] == 2
    words = tenure("queue", "simulate", file).out
    assert "the 3rd such change of team red in a day (2 are free): its weight is halved" in words


def test_its_schema_accepts_what_it_accepts() -> None:
    schema = json.loads(tenure("queue", "simulate", "--schema").out)
    jsonschema.validate(yaml.safe_load(GOOD), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"cards": 0, "teams": {"a": {}}}, schema)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("cards: 2\nhalf", "card: 2\nhalf"), ":1: card: unknown key; did you mean 'cards'?"),
        (("team: blue, action: submit, job: b1", "team: bleu, action: submit, job: b1"),
         ":10: events[2].team: there is no team 'bleu'; did you mean 'blue'?"),
        (("weight: 1}", "weight: 0}"), ":6: teams.blue.weight: must be greater than 0, not 0"),
        (("weight: 1}", "weight: -1}"), ":6: teams.blue.weight: must be greater than 0, not -1"),
        (("weight: 1}", "wieght: 1}"), "teams.blue.wieght: unknown key; did you mean 'weight'?"),
        (("job: b1, cards: 1", "job: b1, cards: 3"),
         ":10: events[2].cards: 'b1' asks for 3 cards at once and the pool has 2; 2 would fit"),
        (("team: blue, action: replace, job: b3", "team: red, action: replace, job: b3"),
         "events[4].replaces: 'b2' is a job of team 'blue', and 'red' cannot replace it; a team changes its own jobs only"),
        (("t_s: 180", "t_s: 18"),
         "events[4].t_s: 18 s comes after 120 s, and time does not run backwards; put the events in the order of their times"),
        (("job: b3, replaces: b2", "job: b2, replaces: b2"), "events[4].replaces: 'b2' replaces 'b2': a cycle; replace a job by a new one"),
        (("replaces: b2", "replaces: b9"), "events[4].replaces: no job 'b9' was submitted before; submit it first"),
        (("action: hold, job: r2", "action: hold, job: r3"), "events[5].job: no job 'r3' was submitted before; submit it first"),
        (("action: hold, job: r2", "action: cancel, job: r2"), "events[6].job: 'r2' is not held; hold it first"),
        (("action: release", "action: relase"), "events[6].action: must be 'submit', 'cancel', 'replace', 'hold' or 'release', not"),
        (("job: b1, cards: 1, duration_s: 600", "job: b1, cards: 1"), "events[2].duration_s: this key is missing, add it"),
        (("job: b1, cards: 1, duration_s: 600", "job: r1, cards: 1, duration_s: 600"),
         "events[2].job: 'r1' was submitted by event 0 already; give this one another name, or cancel that one first"),
        (("job: b1, cards: 1", "job: b1, replaces: r1, cards: 1"), "belongs to `replace`; use that action, or leave it out"),
        (("duration_s: 600}\n  - {t_s: 90", "duration_s: .inf}\n  - {t_s: 90"), "must be a finite number"),
        (("cards: 2\nhalf", "cards: 2.5\nhalf"), ":1: cards: must be a whole number"),
        (("blue: {weight: 1}", "blue: {weight: 1, part_of: green}"),
         "teams: team 'blue' is part of 'green', and there is no such team"),
        (("job: b1, cards: 1", "job: b1, budget_card_h: 0.1, cards: 1"),
         "'b1' needs 0.1667 card-hours and its budget is 0.1; raise the budget or shorten the job"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    said = says(tmp_path, change)
    assert sentence in said, said


def test_a_job_that_is_nearly_named_is_named(tmp_path: Path) -> None:
    long = ("job: b1, cards: 1", "job: nightly-blue-sweep, cards: 1")
    wrong = ("replaces: b2", "replaces: nightly-blue-swep")
    assert "did you mean 'nightly-blue-sweep'?" in says(tmp_path, long, wrong)


def test_a_longer_cycle_of_replaces_is_named(tmp_path: Path) -> None:
    end = "  - {t_s: 200, team: red, action: hold"
    more = "  - {t_s: 190, team: blue, action: replace, job: b2, replaces: b3, duration_s: 1}\n"
    assert "'b2' replaces 'b3' replaces 'b2': a cycle" in says(tmp_path, (end, more + end))


def test_bad_json_gets_the_lines_too(tmp_path: Path) -> None:
    file = written(tmp_path, '{"cards": 1,\n "teams": {"a": {}},\n "evnts": []}', "s.json")
    said = complaint("queue", "simulate", file)
    assert said.code == 2 and "s.json:3: evnts: unknown key; did you mean 'events'?" in said.err
    twice = written(tmp_path, '{"cards": 1,\n "cards": 2, "teams": {"a": {}}}', "t.json")
    assert "a second time" in complaint("queue", "simulate", twice).err


def test_a_wrong_policy_lists_them_and_no_file_says_so() -> None:
    assert (
        "there is no 'fif'; did you mean 'fifo'?"
        in complaint("queue", "simulate", "x", "--policy", "fif").err
    )
    assert "a scenario is missing" in complaint("queue", "simulate").err
    assert "there is no such scenario" in complaint("queue", "simulate", "/nowhere.yaml").err
