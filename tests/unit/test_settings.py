"""``tenure.toml``: exact defaults, the search for the file, and every mistake named by its place."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.bad_input import KeyPath
from tenure.errors import UsageError
from tenure.settings import load_settings
from tenure.toml_lines import key_lines

RUNG = """
[rungs.local]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "usd", per_h = 0}
"""

# Word for word from INTERFACES.
DOCUMENTED = """
[store]
url = "file:.tenure/store"        # relative to this file
[runners.here]
kind = "own_process"              # a name from the registry or the entry-point group
slots = 2                         # further keys: the runner's own config model
[rungs.local]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "usd", per_h = 0}
[teams.me]
weight = 1
[gates]
deploy_key = "env:TENURE_DEPLOY_KEY"
[plans]
paths = ["examples/*/plan.yaml", "plans/*.yaml"]
[dagster]
home = ".tenure/dagster"
port = 3000
"""


def write(folder: Path, text: str, name: str = "tenure.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    return file


def complaint(folder: Path, text: str, **environ: str) -> str:
    file = write(folder, text)
    with pytest.raises(UsageError) as raised:
        load_settings(start=folder, environ=environ)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence.replace(str(file), "tenure.toml")


# ------------------------------------------------------------------------------- defaults


def test_without_a_file_the_defaults_are_those_documented(tmp_path: Path) -> None:
    bare = load_settings(start=tmp_path, environ={})
    assert bare.root == tmp_path and bare.file is None
    write(tmp_path, DOCUMENTED)
    written = load_settings(start=tmp_path, environ={})
    assert written.file == tmp_path / "tenure.toml"
    assert bare.model_dump(exclude={"file"}) == written.model_dump(exclude={"file"})


def test_the_defaults_in_words(tmp_path: Path) -> None:
    found = load_settings(start=tmp_path, environ={})
    assert found.store_url == f"file:{tmp_path}/.tenure/store"
    assert found.runners["here"].kind == "own_process"
    assert found.runners["here"].extra == {"slots": 2}
    assert found.rungs["local"].price.per_h == 0
    assert found.teams["me"].weight == 1
    assert found.gates.deploy_key == "env:TENURE_DEPLOY_KEY"
    assert found.plans.paths == ["examples/*/plan.yaml", "plans/*.yaml"]
    assert found.dagster.home == tmp_path / ".tenure/dagster"
    assert found.dagster.port == 3000


def test_an_empty_file_changes_only_the_root(tmp_path: Path) -> None:
    write(tmp_path, "")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = load_settings(start=below, environ={})
    assert found.root == tmp_path
    assert found.store_url == f"file:{tmp_path}/.tenure/store"


def test_a_section_that_is_written_replaces_its_defaults_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, "[teams.vision]\nweight = 2.5\n")
    found = load_settings(start=tmp_path, environ={})
    assert list(found.teams) == ["vision"]
    assert list(found.rungs) == ["local"]


# ------------------------------------------------------------------------------- the search


def test_the_search_goes_config_environment_folder_parents(tmp_path: Path) -> None:
    def port(number: int) -> str:
        return f"[dagster]\nport = {number}\n"

    start = tmp_path / "here" / "below"
    start.mkdir(parents=True)
    named = write(tmp_path / "named", port(1), "settings.toml")
    from_environment = write(tmp_path / "environment", port(2), "other.toml")
    write(tmp_path / "here", port(4))
    environ = {"TENURE_CONFIG": str(from_environment)}

    def found(config: Path | None, environ: dict[str, str]) -> int:
        return load_settings(config, start, environ).dagster.port

    assert found(named, environ) == 1
    assert found(None, environ) == 2
    assert found(None, {}) == 4
    assert found(None, {"TENURE_CONFIG": ""}) == 4
    write(start, port(3))
    assert found(None, {}) == 3
    assert found(Path("../../named/settings.toml"), {}) == 1
    assert load_settings(Path("../../named/settings.toml"), start, {}).root == tmp_path / "named"


@pytest.mark.parametrize("source", ["--config", "$TENURE_CONFIG"])
def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path, source: str) -> None:
    by_flag = source == "--config"
    with pytest.raises(UsageError, match=r"gone\.toml.*no such file") as raised:
        load_settings(
            Path("gone.toml") if by_flag else None,
            tmp_path,
            {} if by_flag else {"TENURE_CONFIG": "gone.toml"},
        )
    assert str(raised.value).startswith(source)


# ------------------------------------------------------------------------------- the store


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("file:data", "file:{root}/data"),
        ("file:./a/../data", "file:{root}/data"),
        ("file:/srv/data", "file:/srv/data"),
        ("file:///srv/data", "file:/srv/data"),
        ("memory:", "memory:"),
        ("s3://bucket/prefix?endpoint_url=x", "s3://bucket/prefix?endpoint_url=x"),
    ],
)
def test_store_addresses(tmp_path: Path, written: str, meant: str) -> None:
    write(tmp_path, f'[store]\nurl = "{written}"\n')
    below = tmp_path / "below"
    below.mkdir()
    expected = meant.format(root=tmp_path)
    assert load_settings(start=below, environ={}).store_url == expected
    write(tmp_path, "[store]\nurl = 'memory:'\n")
    # Relative to the same folder, wherever the command runs: not another store per folder.
    assert load_settings(start=below, environ={"TENURE_STORE": written}).store_url == expected
    assert load_settings(start=below, environ={"TENURE_STORE": ""}).store_url == "memory:"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("store", "write 'file:store'"),
        ("flie:x", "did you mean 'file'?"),
        ("s3:///prefix", "no bucket"),
        ("s3:bucket", "no bucket"),
        ("file:", "no folder"),
        ("file://host/x", "another host"),
    ],
)
def test_store_addresses_that_are_none(tmp_path: Path, url: str, hint: str) -> None:
    sentence = complaint(tmp_path, f'# first\n[store]\nurl = "{url}"\n')
    assert sentence.startswith("tenure.toml:3: store.url: ") and hint in sentence
    sentence = complaint(tmp_path, "", TENURE_STORE=url)
    assert sentence.startswith("$TENURE_STORE is ") and hint in sentence


# ------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "begins", "says"),
    [
        ("[rung.local]\n", "tenure.toml:1: rung: ", "did you mean 'rungs'?"),
        ("[store]\nurll = 'memory:'\n", "tenure.toml:2: store.urll: ", "did you mean 'url'?"),
        ("[store]\nurl = 3\n", "tenure.toml:2: store.url: ", "must be text, not 3"),
        ("[store]\nurl = ''\n", "tenure.toml:2: store.url: ", "must not be empty"),
        ("store = 1\n", "tenure.toml:1: store: ", "must be a section"),
        ("[dagster]\n\nprot = 1\n", "tenure.toml:3: dagster.prot: ", "did you mean 'port'?"),
        ("[dagster]\nport = '3000'\n", "tenure.toml:2: dagster.port: ", "whole number"),
        ("[dagster]\nport = true\n", "tenure.toml:2: dagster.port: ", "whole number"),
        ("[dagster]\nport = 65536\n", "tenure.toml:2: dagster.port: ", "at most 65535"),
        ("[dagster]\nport = 0\n", "tenure.toml:2: dagster.port: ", "at least 1"),
        ("[dagster]\nhome = 1\n", "tenure.toml:2: dagster.home: ", "path of a folder"),
        ("[plans]\npaths = 'x'\n", "tenure.toml:2: plans.paths: ", "must be a list"),
        ("[plans]\npaths = [\n'x',\n 2]\n", "tenure.toml:4: plans.paths[1]: ", "must be text"),
        ("[teams.me]\nweight = 0\n", "tenure.toml:2: teams.me.weight: ", "greater than 0"),
        ("[teams.me]\nweight = nan\n", "tenure.toml:2: teams.me.weight: ", "finite"),
        ("[teams]\nme = 1\n", "tenure.toml:2: teams.me: ", "must be a section"),
        ("[teams.'My Team']\n", "tenure.toml:1: teams.My Team: ", "must be 1 to 63 of a-z"),
        ("[runners.here]\nslots = 2\n", "tenure.toml:1: runners.here.kind: ", "missing"),
        ("[runners.here]\nkidn = 'x'\n", "tenure.toml:2: runners.here.kidn: ", "'kind'"),
        ("[runners.big]\nkind = 'x'\n", "tenure.toml:1: runners: ", "[rungs.NAME]"),
        ("[rungs]\n", "tenure.toml:1: rungs: ", "no rung"),
        ("[a\n", "tenure.toml:1: ", "not valid TOML"),
        ("[store]\nurl = 'a'\nurl = 'b'\n", "tenure.toml:3: ", "not valid TOML"),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path: Path, text: str, begins: str, says: str) -> None:
    sentence = complaint(tmp_path, text)
    assert sentence.startswith(begins) and says in sentence, sentence


@pytest.mark.parametrize(
    ("old", "new", "begins", "says"),
    [
        ('"here"', '"her"', "tenure.toml:3: rungs.local.runner: ", "did you mean 'here'?"),
        ("per_h = 0", "per_h = -0.1", "tenure.toml:6: rungs.local.price.per_h: ", "at least 0"),
        ("per_h = 0", "per_h = inf", "tenure.toml:6: rungs.local.price.per_h: ", "finite"),
        ('currency = "usd", ', "", "tenure.toml:6: rungs.local.price.currency: ", "missing"),
        (", per_h = 0", "", "tenure.toml:6: rungs.local.price.per_h: ", "missing"),
        ("per_h", "perh", "tenure.toml:6: rungs.local.price.perh: ", "did you mean 'per_h'?"),
        ("card", "crad", "tenure.toml:4: rungs.local.crad: ", "did you mean 'card'?"),
        ('card = "cpu"\n', "", "tenure.toml:2: rungs.local.card: ", "missing"),
        ('"cpu"', '"a/b"', "tenure.toml:4: rungs.local.card: ", "must be 1 to 63"),
        ('price = {currency = "usd", per_h = 0}', "price = 0", "tenure.toml:6: rungs", "section"),
    ],
)
def test_mistakes_in_a_rung(tmp_path: Path, old: str, new: str, begins: str, says: str) -> None:
    assert old in RUNG
    sentence = complaint(tmp_path, RUNG.replace(old, new))
    assert sentence.startswith(begins) and says in sentence, sentence


def test_the_first_mistake_in_the_file_is_told_and_the_others_are_counted(tmp_path: Path) -> None:
    sentence = complaint(tmp_path, "[dagster]\nprt = 1\n[store]\nurl = 3\n[gates]\nx = 1\n")
    assert sentence.startswith("tenure.toml:2: dagster.prt: ")
    assert sentence.endswith("(and 2 more)")


def test_a_key_pasted_into_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    sentence = complaint(tmp_path, "[gates]\ndeploy_key = 'c2VjcmV0'\n")
    assert sentence.startswith("tenure.toml:2: gates.deploy_key: ")
    assert "env:TENURE_DEPLOY_KEY" in sentence and "c2VjcmV0" not in sentence


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "tenure.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"tenure\.toml: not UTF-8"):
        load_settings(start=tmp_path, environ={})


def test_a_mistake_found_later_has_its_place_too(tmp_path: Path) -> None:
    write(tmp_path, "[runners.here]\nkind = 'own_process'\nslotz = 3\n")
    found = load_settings(start=tmp_path, environ={})
    error = found.error(("runners", "here", "slotz"), "unknown key")
    assert str(error) == f"{tmp_path}/tenure.toml:3: runners.here.slotz: unknown key"
    defaults = load_settings(start=tmp_path.parent, environ={})
    assert "the built-in defaults" in str(defaults.error(("store",), "odd"))


# ------------------------------------------------------------------------------- lines


def test_lines_of_every_form_of_key() -> None:
    text = "\n".join(
        [
            "# a = 0",  # 1
            "a = 1",
            "b.c . \"d e\" = '''",  # 3
            "x = 1 # ''",
            "'''",
            's = "# [x] \\" ="',  # 6
            "[t.'u v']",
            "list = [ # one",  # 8
            "  {k = 1}, # two",
            '  """',  # 10
            '[no]""""", [',
            "  2]",  # 12
            "]",
            "[[rows]]",  # 14
            "x = 1979-05-27 07:32:00",
            "[rows.sub]",  # 16
            "y = 1",
            "[[rows]]",  # 18
            "x = 2",
        ]
    )
    tomllib.loads(text)
    expected: dict[KeyPath, int] = {
        ("a",): 2,
        ("b", "c", "d e"): 3,
        ("s",): 6,
        ("t", "u v"): 7,
        ("t", "u v", "list"): 8,
        ("t", "u v", "list", 0, "k"): 9,
        ("t", "u v", "list", 1): 10,
        ("t", "u v", "list", 2, 0): 12,
        ("rows",): 14,
        ("rows", 0, "x"): 15,
        ("rows", 0, "sub", "y"): 17,
        ("rows", 1): 18,
        ("rows", 1, "x"): 19,
    }
    lines = key_lines(text)
    assert {path: lines[path] for path in expected} == expected
    assert key_lines(text.replace("\n", "\r\n")) == lines


KEYS = st.text("ab.'\"# \\=[]é", min_size=1, max_size=4)
SCALARS = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.floats(0.5, 2),
    st.text("a#]}\",'= \\\n", max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4)


def toml(value: object) -> str:
    """A TOML value, lists broken over lines."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"\n  {toml(entry)}, # ]" for entry in value) + "\n]"
    return json.dumps(value)


@settings(deadline=None)
@given(DOCUMENTS)
def test_the_line_of_every_key_of_any_document(document: dict[str, dict[str, object]]) -> None:
    rows: list[str] = []
    expected: dict[KeyPath, int] = {}

    for section, entries in document.items():
        rows.append(f"[{json.dumps(section)}]")
        expected[section,] = len(rows)
        for key, value in entries.items():
            expected[section, key] = len(rows) + 1
            rows += f"{json.dumps(key)} = {toml(value)}".split("\n")
    text = "\n".join(rows)
    if json.loads(json.dumps(tomllib.loads(text))) != document:
        raise AssertionError("the test writes TOML wrongly")
    lines = key_lines(text)
    assert {path: lines[path] for path in expected} == expected

    def paths(value: object, path: KeyPath) -> set[KeyPath]:
        inner = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        return {path}.union(*(paths(entry, (*path, key)) for key, entry in inner))

    assert set(lines) == paths(document, ()) - {()}


# -------------------------------------------------------------------------------- planner

CREDITS = """
[runners.here]
kind = "own_process"
[rungs.studio]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "credits", per_h = 1}
[planner]
"""


def test_the_planner_is_on_and_knows_what_a_currency_is_worth(tmp_path: Path) -> None:
    assert load_settings(start=tmp_path, environ={}).planner.enabled
    write(tmp_path, CREDITS + "enabled = false\nrates = {credits = 0.5}")
    found = load_settings(start=tmp_path, environ={}).planner
    assert not found.enabled and found.rates == {"credits": 0.5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rates = {usd = 1}", "a dollar is worth a dollar"),
        ("rates = {tokens = 1}", "no rung is paid in it; other currencies of the rungs: credits"),
        ("rates = {credits = -1}", "must be at least 0"),
        ("rates = {credits = nan}", "finite"),
        ("enabled = 1", "must be true or false"),
    ],
)
def test_what_the_planner_is_told_is_checked(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in complaint(tmp_path, CREDITS + text)
