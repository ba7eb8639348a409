"""The pages in docs/ say what the code does."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup

from gates import junit
from gates.verdict import Verdict
from tenure.cli import app, group
from tenure.docs import witness_page
from tenure.errors import StoreOutOfReach
from tenure_protocol.lease.machine import TABLE

DOCS = Path(__file__).parents[2] / "docs"


def documented() -> list[str]:
    """The command of each row; one with commands of its own may have several rows."""
    text = (DOCS / "commands.md").read_text()
    return re.findall(r"^\| `tenure ([a-z]+)[^`]*` \|", text, re.MULTILINE)


def test_every_command_is_in_the_page_and_no_other() -> None:
    assert set(documented()) == set(group.build(app).commands)


def test_each_row_of_the_page_has_three_cells() -> None:
    rows = [line for line in (DOCS / "commands.md").read_text().splitlines() if line[:1] == "|"]
    assert len(rows) == len(documented()) + 2
    assert all(line.count("|") == 4 for line in rows)


def test_the_page_of_the_witness_is_the_generated_one() -> None:
    page = (DOCS / "witness.md").read_text()
    assert page == witness_page(), "run `python -m tenure.docs`"
    assert all(f"| {row.event.__name__} |" in page and row.words in page for row in TABLE)


WORKFLOW = DOCS / "ci" / "github-gate.yml"
GITLAB = DOCS / "ci" / "gitlab-gate.yml"


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    steps = yaml.safe_load(workflow.read_text())["jobs"]["gate"]["steps"]
    assert isinstance(steps, list)
    return steps


def test_the_workflow_may_read_only_and_pins_its_actions() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert "pull_request_target" not in WORKFLOW.read_text()
    used = re.findall(r"uses: (\S+)  # v\d+\.\d+\.\d+$", WORKFLOW.read_text(), re.MULTILINE)
    assert used == [step["uses"] for step in steps_of(WORKFLOW) if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)
    secret = [step for step in steps_of(WORKFLOW) if "secrets." in str(step)]
    assert [step["name"] for step in secret] == ["May it be deployed?"]
    assert "secrets." not in str(workflow["jobs"]["gate"]["env"])


@pytest.mark.parametrize("workflow", [WORKFLOW, GITLAB])
def test_every_command_of_a_workflow_is_one_of_ours(workflow: Path, tmp_path: Path) -> None:
    lines = re.findall(r"\btenure (?=[a-z])(.*)", workflow.read_text())
    commands = [shlex.split(line.partition("|")[0]) for line in lines if line.startswith("gate ")]
    assert commands
    for arguments in commands:
        found = group.build(app)
        context = found.make_context("tenure", list(arguments), resilient_parsing=False)
        name, command, rest = found.resolve_command(context, arguments)
        assert name == "gate" and command is not None
        inner = command.make_context(name, rest, parent=context)
        sub = inner.command
        assert isinstance(sub, TyperGroup)
        _, check, last = sub.resolve_command(inner, rest)
        assert check is not None
        assert check.make_context("check", last, parent=inner).params["report"] == Path("gate.xml")


def test_gitlab_shows_the_report() -> None:
    gate = yaml.safe_load(GITLAB.read_text())["gate"]
    assert gate["artifacts"]["reports"] == {"junit": "gate.xml"}
    assert gate["artifacts"]["when"] == "always"
    assert gate["retry"]["exit_codes"] == StoreOutOfReach.exit_code


def test_the_workflow_shows_every_sentence_at_the_commit(tmp_path: Path) -> None:
    (show,) = [step for step in steps_of(WORKFLOW) if step.get("shell") == "python"]
    verdicts = [
        Verdict("score", "PASS", "enough"),
        Verdict("parent", "BLOCK", "50 % | <b>\n::error::not a command of ours"),
    ]
    (tmp_path / "gate.xml").write_bytes(junit.of_verdicts("plan.yaml", None, verdicts, 0, 1))
    summary = tmp_path / "summary.md"
    done = subprocess.run(
        [sys.executable, "-c", show["run"]],
        cwd=tmp_path,
        env={"GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "::error title=parent: BLOCK::50 %25 | <b>%0A::error::not a command of ours\n"
    )
    assert summary.read_text().splitlines()[2:] == [
        "| score | PASS |  |",
        "| parent | BLOCK | 50 % &#124; &lt;b> ::error::not a command of ours |",
    ]


def test_the_workflow_installs_what_there_is_and_says_what_to_replace() -> None:
    text, block = (DOCS / "ci-github-actions.md").read_text(), WORKFLOW.read_text()
    assert "(ci/github-gate.yml)" in text and "(ci/gitlab-gate.yml)" in text
    steps = steps_of(WORKFLOW)
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
    replaced = re.findall(
        r"^\| (.*`.*?) \| ", text.partition("The workflow is a file")[0], re.MULTILINE
    )
    names = [name.rstrip(".") for row in replaced for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) >= 6 and all(name in block for name in names), names
