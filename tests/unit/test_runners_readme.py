"""The numbers of runners/README.md are those of the code, and no provider has more of its own than all share."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from runners import platforms
from runners.rented import RentedRunner

RUNNERS = Path(__file__).resolve().parents[2] / "runners"
PAGE = (RUNNERS / "README.md").read_text()
PROVIDERS = sorted(path.stem for path in (RUNNERS / "providers").glob("[a-z]*.py"))
_NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)  # fmt: skip


def lines_of_code(text: str) -> int:
    """Lines that are neither blank nor comments nor docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    rows = text.splitlines()
    return sum(bool(rows[number - 1].strip()) for number in code - docstrings)


def counted(name: str) -> int:
    return lines_of_code((RUNNERS / f"{name}.py").read_text())


def rows() -> dict[tuple[str, ...], int]:
    """The rows of the last two tables: the names of modules, and the lines they are said to have."""
    found = re.findall(r"^\| (`[^|]+`) \| (\d+) \|$", PAGE.partition("## Private and")[2], re.M)
    return {tuple(re.findall(r"`(\w+)`", names)): int(lines) for names, lines in found}


def test_what_is_counted() -> None:
    text = '"""Doc\n\nstring."""\n\n# comment\nA = """x\n\ny"""  # code\n\ndef f():\n    "doc"\n    return (\n        1\n    )\n'
    assert lines_of_code(text) == 2 + 1 + 3


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    said = rows()
    assert {name for names in said if len(names) == 1 for name in names} == set(PROVIDERS)
    real = {
        names: counted(f"providers/{names[0]}") if len(names) == 1 else sum(map(counted, names))
        for names in said
    }
    assert said == real, "runners/README.md: put in the numbers on the right"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_has_less_code_than_what_it_shares(provider: str) -> None:
    launching = next(lines for names, lines in rows().items() if "rented" in names)
    assert counted(f"providers/{provider}") < launching


def test_each_kind_has_a_row() -> None:
    made = {kind.PLATFORM.KIND: kind for kind in vars(platforms).values()
            if isinstance(kind, type) and issubclass(kind, RentedRunner) and "PLATFORM" in vars(kind)}  # fmt: skip
    assert sorted(made) == PROVIDERS
    table = PAGE.partition("## The five")[2].partition("## Private")[0]
    for kind, runner in made.items():
        (row,) = re.findall(rf"^\| `{kind}` \| ([^|]+) \|", table, re.M)
        kinds = len([card for card in runner.PLATFORM.Config.CARDS if card != "cpu"])
        assert f"{kinds} kinds" in row or "kinds" not in row
        assert ("or none" in row) is ("cpu" in runner.PLATFORM.Config.CARDS)
