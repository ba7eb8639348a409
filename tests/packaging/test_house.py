"""The house is tidy, and each rule that says so really fires: every check has a planted mutant.

After TigerBeetle's tidy test: what a reviewer would say twice is said here once.
"""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("pipelines", "assets", "gates", "runners", "worker", "tenure", "examples")
MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 100  # rarely over 70, says STYLE; never over this
SHAPELESS = {"utils", "util", "common", "misc", "helpers", "helper"}
SKIPPED_FOLDERS = {".git", ".venv", ".tenure", "__pycache__", "build", "dist", ".hypothesis"}
SKIPPED_FOLDERS |= {".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache"}

# Spelled in two halves, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b")
PRIVATE_PATH = re.compile(r"(?<![\w.~}])/(?:wo" + r"rk|ro" + r"ot|home/\w+|tmp/pro" + r"be)/")
REGISTRY = re.compile(
    r"\b(?:pypi\.o" + r"rg|pythonhosted\.o" + r"rg|registry\.npm" + r"js\.org|npmjs\.o" + r"rg"
    r"|deb\.debian\.o" + r"rg|index-u" + r"rl|find-li" + r"nks)\b"
)


def files_of(root: Path) -> list[Path]:
    """What is, or is about to be, in the repository; where there is none, what lies there."""
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode == 0:
            names = dict.fromkeys(name for name in listed.stdout.split("\0") if name)
            return [root / name for name in names if (root / name).is_file()]
    return [
        file
        for file in sorted(root.rglob("*"))
        if file.is_file() and not SKIPPED_FOLDERS & set(file.relative_to(root).parts)
    ]


def text_of(file: Path) -> str:
    """The text of a file; nothing for a picture or an archive."""
    body = file.read_bytes()
    return "" if b"\0" in body else body.decode("utf-8", errors="replace")


def product_code(root: Path) -> Iterable[Path]:
    for file in files_of(root):
        if file.suffix == ".py" and file.relative_to(root).parts[0] in PRODUCT:
            yield file


def machine_name() -> str | None:
    """This machine's name, where it could be mistaken for no ordinary word."""
    name = socket.gethostname()
    return name if len(name) >= 6 and any(char.isdigit() for char in name) else None


# ------------------------------------------------------------------------------- checks


def check_file_lengths(root: Path) -> list[str]:
    found = []
    for file in product_code(root):
        lines = text_of(file).count("\n")
        if lines > MAX_FILE_LINES:
            found.append(f"{file}: {lines} lines, the limit is {MAX_FILE_LINES}; split it")
    return found


def check_function_lengths(root: Path) -> list[str]:
    found = []
    for file in product_code(root):
        for node in ast.walk(ast.parse(text_of(file))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{file}:{node.lineno}: {node.name} has {lines} lines")
    return found


def check_module_names(root: Path) -> list[str]:
    return [
        f"{file}: say what it holds"
        for file in product_code(root)
        if SHAPELESS & {file.stem, *file.relative_to(root).parts[:-1]}
    ]


def check_texts(root: Path) -> list[str]:
    """No unfinished notes, no paths or names of somebody's machine, no registry's address."""
    patterns = {"is unfinished": UNFINISHED, "is a path of one machine": PRIVATE_PATH}
    patterns["is a registry's address or option"] = REGISTRY
    if name := machine_name():
        patterns["is this machine's name"] = re.compile(re.escape(name))
    found = []
    for file in files_of(root):
        for number, line in enumerate(text_of(file).split("\n"), 1):
            for what, pattern in patterns.items():
                if match := pattern.search(line):
                    found.append(f"{file}:{number}: {match.group()!r} {what}")
    return found


def check_decisions(root: Path) -> list[str]:
    folder = root / "docs" / "decisions"
    files = [file for file in files_of(root) if file.parent == folder]
    named = [re.fullmatch(r"(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md", file.name) for file in files]
    found = [
        f"{file}: is named NNNN-title.md"
        for file, match in zip(files, named, strict=True)
        if not match
    ]
    numbers = Counter(match.group(1) for match in named if match)
    return found + [
        f"{folder}: {n} is used {count} times" for n, count in numbers.items() if count > 1
    ]


def check_constraints(root: Path) -> list[str]:
    """Every line pins one package exactly, in order, by version alone."""
    lines = (root / "constraints.txt").read_text().splitlines()
    found = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]
    if lines != sorted(lines, key=str.lower):
        found.append("constraints.txt is not sorted")
    if "torch==2.13.0" not in lines:
        found.append("constraints.txt must pin torch==2.13.0, without a local version")
    return found


CHECKS: list[Callable[[Path], list[str]]] = [
    check_file_lengths,
    check_function_lengths,
    check_module_names,
    check_texts,
    check_decisions,
    check_constraints,
]

MUTANTS: list[tuple[Callable[[Path], list[str]], str, str]] = [
    (check_file_lengths, "tenure/long.py", "x = 1\n" * (MAX_FILE_LINES + 1)),
    (check_function_lengths, "gates/long.py", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
    (check_module_names, "worker/tenure_worker/utils.py", ""),
    (check_module_names, "tenure/common/thing.py", ""),
    (check_texts, "README.md", "run it in /wo" + "rk/main\n"),
    (check_texts, "tenure/a.py", 'HOME = "/ro' + 'ot/x"\n'),
    (check_texts, "docs/a.md", "from https://pypi.o" + "rg/simple\n"),
    (check_texts, "tenure/a.py", "x = 1  # TO" + "DO later\n"),
    (check_decisions, "docs/decisions/0001-again.md", ""),
    (check_decisions, "docs/decisions/first.md", ""),
    (check_constraints, "constraints.txt", "torch==2.13.0+cpu\n"),
    (check_constraints, "constraints.txt", "torch==2.13.0\nabc==1\n"),
    (check_constraints, "constraints.txt", "torch @ file:///x\n"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_house_is_tidy(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


def tidy_house(root: Path) -> None:
    for name, text in {
        "constraints.txt": "abc==1\ntorch==2.13.0\n",
        "docs/decisions/0001-a.md": "A path /workspace/x, and work/main.\n",
        "tenure/a.py": "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize("check", CHECKS)
def test_a_tidy_house_passes(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    tidy_house(tmp_path)
    assert check(tmp_path) == []


@pytest.mark.parametrize(("check", "name", "text"), MUTANTS)
def test_each_check_fires(
    check: Callable[[Path], list[str]], name: str, text: str, tmp_path: Path
) -> None:
    tidy_house(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    assert check(tmp_path)


# ------------------------------------------------------------------------------- the ban on clocks

CLOCKS = """\
import datetime
import os
import random
import secrets
import threading
import time
import uuid
from datetime import date
from time import sleep

print(time.time(), time.monotonic(), time.perf_counter(), time.time_ns(), time.monotonic_ns())
time.sleep(1)
sleep(1)
print(datetime.datetime.now(), datetime.datetime.utcnow(), date.today())
print(random.random(), random.randint(1, 2), random.choice([1]), random.uniform(0, 1))
random.shuffle([])
print(uuid.uuid1(), uuid.uuid4(), os.urandom(1))
print(secrets.token_hex(), secrets.token_bytes(), secrets.token_urlsafe())
threading.Timer(1, print)
"""


def banned(code: str, name: str) -> list[str]:
    done = subprocess.run(
        [
            sys.executable, "-m", "ruff", "check", "--quiet", "--output-format", "concise",
            "--no-cache", "--select", "TID251,TID253", "--stdin-filename", name, "-",
        ],
        cwd=ROOT,
        input=code,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if "TID25" in line]


def test_real_clocks_and_entropy_are_banned_and_the_replacement_named() -> None:
    for name in ("tenure/snippet.py", "worker/tenure_worker/snippet.py", "gates/snippet.py"):
        found = banned(CLOCKS, name)
        said = "\n".join(found)
        for api in (
            "time.time", "time.monotonic", "time.perf_counter", "time.sleep", "time.time_ns",
            "time.monotonic_ns", "datetime.datetime.now", "datetime.datetime.utcnow",
            "datetime.date.today", "random.random", "random.randint", "random.choice",
            "random.shuffle", "random.uniform", "uuid.uuid1", "uuid.uuid4", "secrets.token_hex",
            "secrets.token_bytes", "secrets.token_urlsafe", "os.urandom", "threading.Timer",
        ):  # fmt: skip
            assert f"`{api}` is banned" in said, api
        assert all("tenure_protocol.clock: SYSTEM." in line for line in found)


def test_the_clock_itself_and_the_tests_may() -> None:
    assert banned(CLOCKS, "worker/tenure_protocol/clock.py") == []
    assert banned(CLOCKS, "tests/unit/snippet.py") == []


def test_heavy_libraries_are_imported_inside_functions() -> None:
    assert len(banned("import torch\nfrom boto3 import client\n", "worker/tenure_worker/x.py")) == 2
    assert banned("def f():\n    import torch\n", "worker/tenure_worker/x.py") == []


# ------------------------------------------------------------------------------- the arrows

PACKAGES = {
    "pipelines": (),
    "assets": (),
    "gates": (),
    "runners": (),
    "tenure": ("dispatch/__init__.py", "dispatch/contract.py", "dispatch/loop.py"),
    "tenure_worker": (),
    "tenure_live": ("envelope.py", "loader.py"),
    "tenure_protocol": (
        "store/__init__.py", "lease/__init__.py", "records.py", "clock.py", "codec.py",
    ),
}  # fmt: skip

GOOD = [
    ("pipelines", "assets"), ("pipelines", "gates"), ("pipelines", "tenure.dispatch.loop"),
    ("assets", "gates"), ("assets", "runners"), ("assets", "dagster"), ("assets", "tenure_worker"),
    ("gates", "tenure.dispatch.loop"), ("gates", "tenure_protocol.records"),
    ("runners", "tenure.dispatch.contract"), ("runners", "tenure_worker"), ("runners", "modal"),
    ("tenure", "tenure_worker"), ("tenure_worker", "tenure_protocol"),
    ("tenure.dispatch.contract", "tenure.dispatch.loop"), ("tenure_protocol.store", "boto3"),
    ("tenure_live", "tenure_protocol"), ("tenure_live.envelope", "cryptography"), ("tenure", "tenure_live"),
]  # fmt: skip

BAD = [
    ("assets", "pipelines"), ("gates", "assets"), ("gates", "runners"), ("runners", "gates"),
    ("gates", "dagster"), ("gates", "pipelines"), ("runners", "assets"), ("runners", "dagster"),
    ("runners", "tenure.dispatch.loop"), ("tenure", "runners"), ("tenure", "gates"),
    ("tenure", "assets"), ("tenure", "pipelines"), ("tenure", "dagster"), ("tenure", "modal"),
    ("tenure_worker", "tenure"), ("tenure_worker", "gates"), ("tenure_worker", "pydantic"),
    ("tenure_protocol", "tenure_worker"), ("tenure_protocol", "tenure"),
    ("tenure_protocol.store", "torch"), ("gates", "tests"), ("tenure", "examples"),
    ("tenure_live", "tenure_worker"), ("tenure_live", "gates"), ("tenure_live.loader", "cryptography"),
    ("tenure_live.envelope", "securesystemslib"), ("tenure_worker", "tenure_live"),
]  # fmt: skip


def plant(root: Path, importer: str, imported: str) -> None:
    """Add an import inside a function, the form that hides best, to a module of a planted house."""
    module = root / importer.replace(".", "/")
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    file.write_text(file.read_text() + f"def f():\n    import {imported}\n")


def broken_arrows(root: Path) -> list[str]:
    done = subprocess.run(
        [
            sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
            "--no-cache",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "COLUMNS": "200"},
    )  # fmt: skip
    broken = re.findall(r"^(.+?) BROKEN\b", done.stdout, re.MULTILINE)
    assert done.returncode == (1 if broken else 0), done.stdout + done.stderr
    assert broken or "0 broken" in done.stdout, done.stdout + done.stderr
    return broken


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package, modules in PACKAGES.items():
        for name in ("__init__.py", *modules):
            file = tmp_path / package / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
    for importer, imported in GOOD:
        plant(tmp_path, importer, imported)
    return tmp_path


def test_the_arrows_that_are_meant_are_let_through(planted: Path) -> None:
    assert broken_arrows(planted) == []


@pytest.mark.parametrize(("importer", "imported"), BAD)
def test_an_arrow_that_is_not_meant_is_found(planted: Path, importer: str, imported: str) -> None:
    plant(planted, importer, imported)
    assert broken_arrows(planted)


# ------------------------------------------------------------------------------- the two projects


def project(file: str) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / file).read_text())["project"]
    return found


def test_the_two_projects_have_one_version() -> None:
    import tenure

    core, worker = project("pyproject.toml"), project("worker/pyproject.toml")
    assert core["version"] == worker["version"] == tenure.__version__ == version("tenure")
    assert f"tenure-worker=={worker['version']}" in str(core["dependencies"])
    assert worker["dependencies"] == []
    assert f"[{core['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_what_reaches_the_core_from_outside_exists() -> None:
    for group in ("tenure.commands", "tenure.runners"):
        points = [p for p in entry_points(group=group) if p.dist and p.dist.name == "tenure"]
        assert points, f"no entry points in {group}; run `make install` again"
        for point in points:
            point.load()
