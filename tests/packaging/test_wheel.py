"""The wheel that travels: three packages, no dependencies, and it imports where nothing else is."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tenure_protocol import fingerprint
from tenure_protocol.store.directory import DirectoryStore
from tests.live_world import model, new_key, public_pem, put_live

ROOT = Path(__file__).parents[2]
HEAVY = ("dagster", "torch", "boto3", "numpy", "pydantic", "yaml", "cryptography")
PACKAGES = {"tenure_protocol", "tenure_worker", "tenure_live"}

IMPORT_ALL = """
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1].split(","):
    importlib.import_module(name)
importable = []
for name in sys.argv[2].split(","):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    importable.append(name)
files = [getattr(sys.modules[name], "__file__", None) for name in sys.argv[1].split(",")]
tops = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"importable": importable, "files": files, "tops": tops}))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = ROOT / "worker"
    # No isolation: the build takes hatchling from here and asks no registry.
    run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source,
        cwd=folder,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds this wheel and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    interpreter = folder / "venv" / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", interpreter, "--disable-pip-version-check",
        "install", "--quiet", "--no-deps", "--no-index", wheel,
        cwd=folder,
    )  # fmt: skip
    return interpreter


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def metadata_of(wheel: Path) -> tuple[str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = Parser().parsestr(archive.read(name).decode())
    return headers["Name"], headers.get_all("Requires-Dist") or []


def modules_in(wheel: Path) -> list[str]:
    found = [name for name in names_in(wheel) if name.endswith(".py")]
    return [re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".") for name in found]


def test_it_holds_the_three_packages_whole_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.partition("/")[0] for name in names} == PACKAGES
    here = {
        file.relative_to(ROOT / "worker").as_posix()
        for package in PACKAGES
        for file in (ROOT / "worker" / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == here
    assert wheel.stat().st_size < 300_000


def test_it_requires_nothing(wheel: Path) -> None:
    name, requires = metadata_of(wheel)
    assert name == "tenure-worker"
    assert [line for line in requires if "extra ==" not in line] == []
    assert {re.split(r"[ ;<>=]", line)[0] for line in requires} == {"boto3", "cryptography"}


def test_every_module_imports_where_nothing_else_is_installed(wheel: Path, python: Path) -> None:
    modules = modules_in(wheel)
    assert set(modules) > PACKAGES
    answer = json.loads(
        run(python, "-I", "-c", IMPORT_ALL, ",".join(modules), ",".join(HEAVY), cwd=python.parent)
    )
    assert answer["importable"] == []
    installed = python.parents[1]
    assert all(Path(file).is_relative_to(installed) for file in answer["files"])
    assert set(answer["tops"]) - set(sys.stdlib_module_names) == PACKAGES


def test_the_worker_says_how_it_is_started(python: Path) -> None:
    text = run(python, "-I", "-m", "tenure_worker", "--help", cwd=python.parent)
    assert "tenure_worker" in text


MEASURE = (
    "import json; from tenure_protocol import fingerprint; print(json.dumps(fingerprint.measure()))"
)
#: What cryptography is made of; beside the wheel it is all that a loader needs.
SIGNATURES = ("cryptography", "cffi", "_cffi_backend", "pycparser")


def test_the_loader_runs_from_the_wheel_alone(python: Path, tmp_path: Path) -> None:
    """In an environment of its own, over a store on disk, up to a path; and without cryptography."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in SIGNATURES:
        if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None:
            origin = Path(spec.origin)
            found = origin.parent if origin.name == "__init__.py" else origin
            (libraries / found.name).symlink_to(found)

    def there(*command: str, with_libraries: bool = True) -> subprocess.CompletedProcess[str]:
        path = str(libraries) if with_libraries else ""
        return subprocess.run(
            [str(python), "-P", *command],
            cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "HOME": str(tmp_path)},
            check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    measured = json.loads(there("-c", MEASURE).stdout)
    assert measured["packages"].keys() == {"tenure-worker"}
    required = fingerprint.pin(measured)
    # A requirement must name packages, and those of this environment are Tenure's own.
    required |= {
        table: {"pip": "none of that here"} for table in ("packages", "builds") if table in measured
    }
    store = DirectoryStore(tmp_path / "store")
    key = new_key()
    pinned = {**measured, **required}
    deployed = put_live(store, model(store, required, pinned), key)
    loader = (
        "-m", "tenure_live", "vol", "--store", store.url, "--key", str(public_pem(tmp_path, key)),
    )  # fmt: skip
    bare = there(*loader, with_libraries=False)
    assert (bare.returncode, bare.stdout) == (2, "") and "tenure-worker[live]" in bare.stderr
    other = there(*loader)
    assert other.returncode == 1 and "packages.pip is nothing" in other.stderr
    done = there(*loader, "--allow", "packages.pip")
    assert (done.returncode, done.stderr) == (0, "")
    (name,) = deployed.files
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path / ".cache" / "tenure-live")
    assert hashlib.sha256((path / name).read_bytes()).hexdigest() == deployed.files[name].sha256
