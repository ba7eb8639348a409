"""Plans: the grid in the order of the file, and every mistake named by file, line and key."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.bad_input import KeyPath
from tenure.errors import UsageError
from tenure.plan.experiment import check_experiment
from tenure.plan.file import Plan, load_plan, load_plans
from tenure.plan.yaml_lines import parse
from tenure.settings import Settings, load_settings

PLAN = """\
name: sp500
experiment: experiment:Experiment
grid:
  lr: [1e-3, 3e-4]
  model:
    - lstm
    - transformer
seeds: [1, 2, 3]
retrain_seeds: [11, 12]
baseline: {lr: 0.001, model: lstm}
rungs: [local]
promote:
  metric: loss
  direction: minimize
  margin: 0.01
  min_score: 0.5
"""

EXPERIMENT = """\
class Experiment:
    def train(self, tenure, config, seed): ...
    def evaluate(self, tenure, config, model_dir): ...
    def backtest(self, tenure, config, model_dir): ...
"""


def settings_in(folder: Path, text: str = "") -> Settings:
    (folder / "tenure.toml").write_text(text)
    return load_settings(start=folder, environ={})


def read(folder: Path, text: str, *, check_import: bool = False) -> Plan:
    file = folder / "plan.yaml"
    file.write_text(text)
    return load_plan(file, settings_in(folder), check_import=check_import)


def complaint(folder: Path, text: str, *, check_import: bool = False) -> str:
    with pytest.raises(UsageError) as raised:
        read(folder, text, check_import=check_import)
    sentence = str(raised.value)
    assert "\n" not in sentence and "Traceback" not in sentence
    return sentence.replace(str(folder / "plan.yaml"), "plan.yaml")


def changed(old: str, new: str) -> str:
    assert PLAN.count(old) == 1, old
    return PLAN.replace(old, new)


# ------------------------------------------------------------------------------- good plans


def test_a_plan_and_its_defaults(tmp_path: Path) -> None:
    plan = read(tmp_path, PLAN)
    assert plan.name == "sp500" and plan.file == tmp_path / "plan.yaml"
    assert plan.milestone_every == 100
    assert (plan.team, plan.priority, plan.deadline_h, plan.budget) == ("me", 0, None, {})
    assert (plan.nightly, plan.cards) == (False, 1)
    assert (plan.patience_s, plan.max_silence_s) == (1800, 3600)
    assert plan.promote.alpha == 0.05 and plan.promote.margin == 0.01
    assert plan.points() == [
        {"lr": 0.001, "model": "lstm"},
        {"lr": 0.001, "model": "transformer"},
        {"lr": 0.0003, "model": "lstm"},
        {"lr": 0.0003, "model": "transformer"},
    ]


def test_terms_are_json_and_hold_nothing_of_a_job_spec(tmp_path: Path) -> None:
    terms = read(tmp_path, PLAN + "budget: {usd: 12}\ndeadline_h: 60\n").terms()
    assert json.loads(json.dumps(terms)) == terms
    assert terms["budget"] == {"usd": 12} and terms["deadline_h"] == 60
    assert terms["rungs"] == ["local"] and terms["retrain_seeds"] == [11, 12]
    assert terms["promote"] == {
        "metric": "loss",
        "direction": "minimize",
        "margin": 0.01,
        "min_score": 0.5,
        "alpha": 0.05,
    }
    in_specs = {"name", "experiment", "grid", "seeds", "milestone_every", "patience_s", "cards"}
    assert not in_specs & set(terms)


def test_without_a_grid_there_is_one_point_and_it_is_the_baseline(tmp_path: Path) -> None:
    lines = PLAN.splitlines(keepends=True)
    text = "".join(lines[:2] + lines[7:9] + lines[10:])
    for plan in (read(tmp_path, text), read(tmp_path, text + "grid: {}\nbaseline: {}\n")):
        assert plan.points() == [{}] and plan.baseline == {}


def test_the_baseline_takes_the_form_the_grid_writes(tmp_path: Path) -> None:
    text = changed("lr: [1e-3, 3e-4]", "lr: [1.0, 2]").replace("lr: 0.001", "lr: 1")
    baseline = read(tmp_path, text).baseline
    assert list(baseline) == ["lr", "model"] and json.dumps(baseline["lr"]) == "1.0"


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text("ab1:#-' ", max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.just("k"), inner)),
    max_leaves=3,
)
AXES = st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps)
GRIDS = st.dictionaries(st.text("abc", min_size=1, max_size=3), AXES, max_size=3)


@settings(deadline=None)
@given(GRIDS, st.randoms(use_true_random=False))
def test_points_are_the_cartesian_product(grid: dict[str, list[object]], random: object) -> None:
    baseline = {key: axis[-1] for key, axis in grid.items()}
    plan = Plan.model_validate({**MINIMAL, "grid": grid, "baseline": baseline})
    points = plan.points()
    assert len(points) == len({json.dumps(point) for point in points})
    assert [list(p.values()) for p in points] == [
        list(v) for v in itertools.product(*grid.values())
    ]
    assert all(list(point) == list(grid) for point in points)
    assert plan.baseline == points[-1]


MINIMAL: dict[str, object] = {
    **yaml.safe_load(PLAN),
    "grid": {},
    "baseline": {},
}


# ------------------------------------------------------------------------------- YAML


def test_plain_values_follow_yaml_1_2_and_not_1_1() -> None:
    text = "[1e-3, 5E2, .5, -1, 007, 0x1F, 0o17, yes, no, on, 1:30, 2024-01-01, ~, true, 1_0, '1']"
    value, _ = parse(text, "x.yaml")
    assert value == [
        0.001, 500.0, 0.5, -1, 7, 31, 15, "yes", "no", "on", "1:30", "2024-01-01", None, True,
        "1_0", "1",
    ]  # fmt: skip


KEYS = st.text("abc:# '\"-é", min_size=1, max_size=4)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-999, 999),
    st.floats(allow_nan=False),
    st.text("ab1:#-' \n\"eyno.", max_size=6),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None)
@given(TREES)
def test_json_is_read_as_itself(tree: object) -> None:
    if tree in (float("inf"), float("-inf")):
        return
    text = json.dumps(tree, indent=1)
    if "Infinity" in text:
        return
    value, _ = parse(text, "x.yaml")
    assert json.dumps(value) == json.dumps(tree)


@settings(deadline=None)
@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=5))
def test_each_key_has_its_line(document: dict[str, object]) -> None:
    rows: list[str] = []
    expected: dict[KeyPath, int] = {}
    for key, value in document.items():
        expected[key,] = len(rows) + 1
        rows += (json.dumps(key) + ": " + json.dumps(value, indent=2)).split("\n")
    rows = [row if row[0] == '"' else "  " + row for row in rows]
    _, place = parse("\n".join(rows), "x.yaml")
    assert {path: place.line(path) for path in expected} == expected


@pytest.mark.parametrize(
    ("text", "begins", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: a: ", "second time, first on line 1"),
        ("a:\n  b: 1\n  b: 2\n", "x.yaml:3: a.b: ", "second time, first on line 2"),
        ("a: [1\n", "x.yaml:2: ", "not valid YAML"),
        ("a: 1\n\tb: 2\n", "x.yaml:2: ", "not valid YAML"),
        ("a: *x\n", "x.yaml:1: ", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: ", "not valid YAML"),
        ("a: \x07\n", "x.yaml: ", "not valid YAML"),
        ("a: 1\n2: 3\n", "x.yaml:2: ?: ", "must be text"),
        ("a:\n- [1]\n- {[1]: 2}\n", "x.yaml:3: a[1].?: ", "must be text"),
        ("a: !!python/object:os.system x\n", "x.yaml:1: a: ", "tag"),
        ("a: &x\n  b: *x\n", "x.yaml:2: a.b: ", "alias"),
    ],
)
def test_yaml_that_is_refused(text: str, begins: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, "x.yaml")
    sentence = str(raised.value)
    assert sentence.startswith(begins) and says in sentence, sentence


# ------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("name: sp500", "name: SP500", "name", "must be 1 to 63 of a-z"),
        ("name: sp500", "name: 500", "name", "must be text, not 500"),
        ("name: sp500", "name: " + "a" * 64, "name", "must be 1 to 63"),
        ("experiment:Exp", "experiment.Exp", "experiment", "'module:Class'"),
        ("experiment:Exp", "path/experiment:Exp", "experiment", "'module:Class'"),
        ("[1, 2, 3]", "[1]", "seeds", "at least 2 entries, it has 1"),
        ("[1, 2, 3]", "[1, 2, 1]", "seeds", "holds 1 twice"),
        ("seeds: [1, 2, 3]", "seeds: 3", "seeds", "must be a list, not 3"),
        ("[1, 2, 3]", "[1, -2]", "seeds[1]", "at least 0, not -2"),
        ("[1, 2, 3]", "[1, 4294967296]", "seeds[1]", "at most 4294967295"),
        ("[1, 2, 3]", "[1, 2.5]", "seeds[1]", "whole number"),
        ("[1, 2, 3]", "[1, true]", "seeds[1]", "whole number, not true"),
        ("[11, 12]", "[11]", "retrain_seeds", "at least 2"),
        ("[11, 12]", "[11, 11]", "retrain_seeds", "twice"),
        ("[11, 12]", "[3, 11, 2]", "retrain_seeds", "shares 2, 3 with seeds"),
        ("{lr: 0.001, model: lstm}", "{lr: 0.002, model: lstm}", "baseline", "grid has [0.001,"),
        ("{lr: 0.001, model: lstm}", "{lr: 0.001}", "baseline", "'model' is missing"),
        ("{lr: 0.001, model: lstm}", "{lr: 0.001, modle: lstm}", "baseline", "mean 'model'?"),
        ("{lr: 0.001, model: lstm}", "{}", "baseline", "missing or empty, and is needed"),
        ("{lr: 0.001, model: lstm}", "{lr: '0.001', model: lstm}", "baseline", 'lr is "0.001"'),
        ("[local]", "[]", "rungs", "at least 1"),
        ("[local]", "[local, local]", "rungs", "twice"),
        ("[local]", "[locla]", "rungs[0]", "did you mean 'local'? known: 'local'"),
        ("[local]", "[local, cloud]", "rungs[1]", "known: 'local'"),
        ("rungs:", "rung:", "rung", "did you mean 'rungs'?"),
        ("seeds: [1,", "seds: [1,", "seds", "did you mean 'seeds'?"),
    ],
)
def test_mistakes_name_file_line_and_key(
    tmp_path: Path, old: str, new: str, key: str, says: str
) -> None:
    sentence = complaint(tmp_path, changed(old, new))
    line = next(n for n, row in enumerate(changed(old, new).splitlines(), 1) if new in row)
    assert sentence.startswith(f"plan.yaml:{line}: {key}: "), sentence
    assert says in sentence, sentence


@pytest.mark.parametrize(
    ("line", "key", "says"),
    [
        ("margin: 0", "promote.margin", "in the unit of the metric"),
        ("margin: -0.5", "promote.margin", "is -0.5 and must be positive"),
        ("margin: .nan", "promote.margin", "finite"),
        ("margin: 1%", "promote.margin", "must be a number"),
        ("margn: 0.01", "promote.margn", "did you mean 'margin'?"),
    ],
)
def test_mistakes_in_the_margin(tmp_path: Path, line: str, key: str, says: str) -> None:
    sentence = complaint(tmp_path, changed("margin: 0.01", line))
    assert sentence.startswith(f"plan.yaml:15: {key}: ") and says in sentence, sentence


ALSO = "{metric: mae, direction: minimize, margin: 0.1}"


def test_other_metrics_are_read_and_are_terms(tmp_path: Path) -> None:
    text = changed("  min_score: 0.5\n", f"  min_score: 0.5\n  also: [{ALSO}]\n")
    plan = read(tmp_path, text)
    (other,) = plan.promote.also
    assert (other.metric, other.direction, other.margin, other.examples) == (
        "mae", "minimize", 0.1, True,
    )  # fmt: skip
    terms = plan.terms()["promote"]
    assert isinstance(terms, dict) and terms["also"] == [other.model_dump()]


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("direction: minimize, ", "", "also[0].direction", "this key is missing, add it"),
        ("minimize", "down", "also[0].direction", "must be 'minimize' or 'maximize'"),
        (", margin: 0.1", "", "also[0].margin", "this key is missing, add it"),
        ("0.1", "0", "also[0].margin", "is 0 and must be positive, in the unit of the metric"),
        ("0.1", "-2", "also[0].margin", "is -2 and must be positive"),
        ("0.1", ".nan", "also[0].margin", "must be a finite number"),
        ("margin", "margn", "also[0].margn", "unknown key; did you mean 'margin'?"),
        ("0.1", "0.1, examples: 1", "also[0].examples", "must be true or false"),
        ("mae", "loss", "also", 'holds "loss", which is judged already'),
        (ALSO, f"{ALSO}, {ALSO}", "also", 'holds "mae", which is judged already'),
        (f"[{ALSO}]", ALSO, "also", "must be a list"),
    ],
)
def test_mistakes_in_other_metrics(tmp_path: Path, old: str, new: str, key: str, says: str) -> None:
    line = f"  also: [{ALSO}]\n"
    assert old in line
    text = changed("  min_score: 0.5\n", f"  min_score: 0.5\n{line.replace(old, new)}")
    sentence = complaint(tmp_path, text)
    assert sentence.startswith(f"plan.yaml:17: promote.{key}: ") and says in sentence, sentence


@pytest.mark.parametrize(
    ("more", "key", "says"),
    [
        ("milestone_every: 0", "milestone_every", "at least 1"),
        ("milestone_every: 1.5", "milestone_every", "whole number"),
        ("deadline_h: 0", "deadline_h", "greater than 0"),
        ("deadline_h: soon", "deadline_h", "must be a number"),
        ("patience_s: 0", "patience_s", "greater than 0"),
        ("max_silence_s: -1", "max_silence_s", "greater than 0"),
        ("max_silence_s: 8.9", "max_silence_s", "at least 9 on this store"),
        ("cards: 0", "cards", "at least 1"),
        ("priority: high", "priority", "whole number"),
        ("nightly: yes", "nightly", 'must be true or false, not "yes"'),
        ("team: mee", "team", "did you mean 'me'?"),
        ("budget: {usd: -1}", "budget.usd", "at least 0"),
        ("budget: {uds: 5}", "budget.uds", "did you mean 'usd'? known: 'usd'"),
        ("budget: 5", "budget", "must be a section"),
        ("deadline: 5", "deadline", "did you mean 'deadline_h'?"),
    ],
)
def test_mistakes_in_the_keys_that_have_defaults(
    tmp_path: Path, more: str, key: str, says: str
) -> None:
    sentence = complaint(tmp_path, PLAN + more + "\n")
    assert sentence.startswith(f"plan.yaml:17: {key}: ") and says in sentence, sentence


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "says"),
    [
        ("lr: [1e-3, 3e-4]", "lr: []", 4, "grid.lr", "at least 1"),
        ("lr: [1e-3, 3e-4]", "lr: 1e-3", 4, "grid.lr", "must be a list, not 0.001"),
        ("lr: [1e-3, 3e-4]", "lr: [1, 1.0]", 3, "grid", "lr holds 1.0 twice"),
        ("lr: [1e-3, 3e-4]", "lr: [.inf]", 3, "grid", "lr holds [Infinity], which JSON"),
        ("    - lstm\n", "    - lstm\n    - lstm\n", 3, "grid", "twice"),
        ("direction: minimize", "direction: down", 14, "promote.direction", "'minimize' or 'max"),
        ("  direction: minimize\n", "", 12, "promote.direction", "missing"),
        ("  margin: 0.01\n", "", 12, "promote.margin", "missing"),
        ("  min_score: 0.5\n", "", 12, "promote.min_score", "missing"),
        ("  min_score: 0.5\n", "  min_score: 1\n  alpha: 0.5\n", 17, "promote.alpha", "less than"),
        ("  metric: loss\n", "  metric: ''\n", 13, "promote.metric", "empty"),
        ("rungs: [local]\n", "", 1, "rungs", "missing"),
    ],
)
def test_mistakes_in_sections(
    tmp_path: Path, old: str, new: str, line: int, key: str, says: str
) -> None:
    sentence = complaint(tmp_path, changed(old, new))
    assert sentence.startswith(f"plan.yaml:{line}: {key}: ") and says in sentence, sentence


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "text\n"])
def test_a_plan_that_is_no_section(tmp_path: Path, text: str) -> None:
    assert complaint(tmp_path, text).startswith("plan.yaml:1: a plan is a section")


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.yaml: there is no such plan"):
        load_plan(tmp_path / "gone.yaml", settings_in(tmp_path))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(UsageError, match=r"folder\.yaml: cannot be read"):
        load_plan(tmp_path / "folder.yaml", settings_in(tmp_path))


@settings(deadline=None)
@example("grid", {":": [None, False]})
@given(st.sampled_from(sorted(Plan.model_fields)), TREES)
def test_whatever_stands_at_a_key_is_taken_or_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, key: str, tree: object
) -> None:
    folder = tmp_path_factory.mktemp("plan", numbered=True)
    data = {**MINIMAL, key: tree}
    if key == "grid" and isinstance(tree, dict):  # of more than one point it needs a baseline too
        data["baseline"] = {
            name: axis[0] for name, axis in tree.items() if isinstance(axis, list) and axis
        }
    text = json.dumps(data).replace("Infinity", ".inf")
    try:
        plan = read(folder, text)
    except UsageError as error:
        assert f"plan.yaml:1: {key}" in str(error) and "\n" not in str(error)
    else:
        json.dumps(plan.terms())


def test_the_default_team_must_exist_too(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    others = settings_in(tmp_path, "[teams.vision]\n")
    with pytest.raises(UsageError, match=r"plan\.yaml:1: team: there is no team 'me'; known: 'vis"):
        load_plan(tmp_path / "plan.yaml", others)


def test_a_long_axis_is_checked_in_time(tmp_path: Path) -> None:
    values = list(range(20_000))
    text = changed("lr: [1e-3, 3e-4]", f"lr: {values}").replace("lr: 0.001", "lr: 19999")
    assert len(read(tmp_path, text).points()) == 40_000


# ------------------------------------------------------------------------------- experiments


def test_the_experiment_is_imported_on_request_from_the_root_as_on_a_worker(
    tmp_path: Path,
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (below / "plan.yaml").write_text(PLAN)
    (below / "experiment.py").write_text(EXPERIMENT)
    found = settings_in(tmp_path)
    load_plan(below / "plan.yaml", found)  # not looked at unless asked
    with pytest.raises(UsageError, match=r"plan\.yaml:2: experiment: .*no such module in "):
        load_plan(below / "plan.yaml", found, check_import=True)
    (below / "plan.yaml").write_text(changed("experiment:Exp", "below.experiment:Exp"))
    load_plan(below / "plan.yaml", found, check_import=True)
    assert "below" not in sys.modules and "below.experiment" not in sys.modules


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to"),
        ("x = 1\n\nraise ValueError('first\\nsecond')\n", "ValueError: first ("),
        ("def f(:\n", "SyntaxError: "),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("x = 1\n", "has no class 'Experiment'"),
        ("def Experiment(): ...\n", "is no class"),
        (EXPERIMENT.replace("def evaluate", "def evalute"), "has no method evaluate; add it"),
        ("class Experiment:\n    train = 1\n", "no method train and no evaluate and no backtest"),
    ],
)
def test_an_experiment_that_is_none_is_one_sentence(tmp_path: Path, module: str, says: str) -> None:
    (tmp_path / "experiment.py").write_text(module)
    before, path_before = dict(sys.modules), list(sys.path)
    sentence = complaint(tmp_path, PLAN, check_import=True)
    assert sentence.startswith("plan.yaml:2: experiment: ") and says in sentence, sentence
    assert sys.path == path_before
    assert sys.modules.get("experiment") is before.get("experiment")


def test_an_error_of_the_users_code_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "experiment.py").write_text("import helper_of_it\n")
    (tmp_path / "helper_of_it.py").write_text("\n\nimport json\njson.loads('{')\n")
    sentence = complaint(tmp_path, PLAN, check_import=True)
    assert sentence.endswith(f"({tmp_path}/helper_of_it.py:4)")
    assert "helper_of_it" not in sys.modules


def test_two_checkouts_may_each_have_a_module_of_one_name(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, text in ((good, EXPERIMENT), (bad, "class Other: ...\n")):
        folder.mkdir()
        (folder / "experiment.py").write_text("import sibling\n" + text)
        (folder / "sibling.py").write_text("")
    for _ in range(2):
        assert check_experiment("experiment:Experiment", [good, tmp_path]) is None
        reason = check_experiment("experiment:Experiment", [bad, tmp_path])
        assert reason is not None and str(bad) in reason
    assert "sibling" not in sys.modules


def test_a_module_that_is_loaded_already_neither_hides_the_plans_nor_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "experiment.py").write_text("class Other: ...\n")
    (tmp_path / "experiment.py").write_text(EXPERIMENT)
    monkeypatch.syspath_prepend(str(other))
    import experiment  # type: ignore[import-not-found]

    try:
        assert check_experiment("experiment:Experiment", [tmp_path]) is None
        assert sys.modules["experiment"] is experiment
    finally:
        del sys.modules["experiment"]


def test_what_is_installed_is_not_imported_twice(tmp_path: Path) -> None:
    before = sys.modules["yaml"]
    reason = check_experiment("yaml:YAMLError", [tmp_path])
    assert reason is not None and "no method train" in reason
    assert sys.modules["yaml"] is before


# ------------------------------------------------------------------------------- many plans


def test_plans_are_found_by_the_globs_of_the_settings(tmp_path: Path) -> None:
    found = settings_in(tmp_path, "[plans]\npaths = ['b/*.yaml', '**/plan.yaml', 'none/*']\n")
    assert load_plans(found) == []
    for folder, file, name in (
        ("b", "x.yaml", "x"),
        ("a", "plan.yaml", "a"),
        ("b", "plan.yaml", "b"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / file).write_text(changed("sp500", name))
    (tmp_path / "b" / "folder.yaml").mkdir()
    # Once each, though two globs find b/plan.yaml.
    assert [plan.name for plan in load_plans(found)] == ["b", "x", "a"]


def test_two_plans_of_one_name_are_refused(tmp_path: Path) -> None:
    found = settings_in(tmp_path, "[plans]\npaths = ['*.yaml']\n")
    for file in ("one.yaml", "two.yaml"):
        (tmp_path / file).write_text("# a comment\n" + PLAN)
    with pytest.raises(UsageError) as raised:
        load_plans(found)
    sentence = str(raised.value)
    assert f"{tmp_path}/two.yaml:2: name: " in sentence and f"{tmp_path}/one.yaml" in sentence
