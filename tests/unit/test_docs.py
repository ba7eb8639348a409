"""The pages in docs/ say what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from tenure.cli import app, group
from tenure.docs import witness_page
from tenure_protocol.lease.machine import TABLE

DOCS = Path(__file__).parents[2] / "docs"


def documented() -> set[str]:
    text = (DOCS / "commands.md").read_text()
    return set(re.findall(r"^\| `tenure ([a-z]+)[^`]*` \|", text, re.MULTILINE))


def test_every_command_is_in_the_page_and_no_other() -> None:
    assert documented() == set(group.build(app).commands)


def test_each_row_of_the_page_has_three_cells() -> None:
    rows = [line for line in (DOCS / "commands.md").read_text().splitlines() if line[:1] == "|"]
    assert len(rows) == len(documented()) + 2
    assert all(line.count("|") == 4 for line in rows)


def test_the_page_of_the_witness_is_the_generated_one() -> None:
    page = (DOCS / "witness.md").read_text()
    assert page == witness_page(), "run `python -m tenure.docs`"
    assert all(f"| {row.event.__name__} |" in page and row.words in page for row in TABLE)


def test_the_workflow_is_one_and_may_read_only() -> None:
    text = (DOCS / "ci-github-actions.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    workflow = yaml.safe_load(block)
    assert workflow["permissions"] == {"contents": "read"}
    steps = workflow["jobs"]["gate"]["steps"]
    assert any("tenure gate check" in step.get("run", "") for step in steps)
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)


def test_the_workflow_installs_what_there_is_and_says_what_to_replace() -> None:
    text = (DOCS / "ci-github-actions.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    steps = yaml.safe_load(block)["jobs"]["gate"]["steps"]
    folders = [step["with"]["path"] for step in steps if "checkout" in step.get("uses", "")]
    assert folders == ["project", "tenure"]
    (install,) = [step["run"] for step in steps if "pip install" in step.get("run", "")]
    (cached,) = [step["with"] for step in steps if "setup-python" in step.get("uses", "")]
    ours = [*re.findall(r"\btenure/(\S+)", install), cached["cache-dependency-path"][7:]]
    assert ours == ["constraints.txt", "worker", "constraints.txt"]
    assert all((DOCS.parent / path).exists() for path in ours)
    (extra,) = re.findall(r"-e 'tenure\[(\w+)\]'", install)
    assert (
        extra
        in tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
    )
    replaced = re.findall(r"^\| (.*`.*?) \| ", text.partition("```yaml")[0], re.MULTILINE)
    names = [name.rstrip(".") for row in replaced for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) >= 6 and all(name in block for name in names), names
