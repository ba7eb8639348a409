"""The digest of the user's code: every module that a job may run is in it, and nothing else."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure_worker import code

ENTRY = "shop_plans.deep.experiment:Experiment"
FILES = {
    "shop_plans/__init__.py": "",
    "shop_plans/deep/__init__.py": "",
    "shop_plans/deep/experiment.py": "import numpy\nfrom shop_nets.mlp import build\nfrom . import beside\n"
    "from ..above import level\nclass Experiment:\n    def train(self):\n        import shop_late\n",
    "shop_plans/deep/beside.py": "from .inner.leaf import LEAF\n",
    "shop_plans/deep/inner/leaf.py": "LEAF = 1\n",
    "shop_plans/above.py": "level = 1\n",
    "shop_plans/stranger.py": "unused = 1\n",
    "src/shop_nets/__init__.py": "START = 1\n",
    "src/shop_nets/mlp.py": "from shop_nets import layers\nfrom .parts import *\ndef build(): ...\n",
    "src/shop_nets/layers.py": "HIDDEN = 16\n",
    "src/shop_nets/parts/__init__.py": "from .one import ONE\n",
    "src/shop_nets/parts/one.py": "ONE = 1\n",
    "src/shop_nets/other.py": "unused = 1\n",
    "shop_late.py": "import shop_circle\n",
    "shop_circle.py": "import shop_late\n",
}
STRANGERS = {"shop_plans/stranger.py", "src/shop_nets/other.py"}


def lay_out(root: Path) -> None:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def importable(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "path", [str(root), str(root / "src"), *sys.path])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    lay_out(tmp_path / "here")
    importable(tmp_path / "here", monkeypatch)
    yield tmp_path / "here"
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", sorted(set(FILES) - STRANGERS))
def test_an_edit_of_any_module_a_job_may_run_is_other_code(root: Path, name: str) -> None:
    before = code.code_digest(ENTRY)
    (root / name).write_text(FILES[name] + "# another word\n")
    assert code.code_digest(ENTRY) != before
    (root / name).write_text(FILES[name])
    assert code.code_digest(ENTRY) == before, "an edit that is taken back is the same code again"


@pytest.mark.parametrize("name", sorted(STRANGERS))
def test_a_module_that_nothing_imports_is_no_part_of_it(root: Path, name: str) -> None:
    before = code.code_digest(ENTRY)
    (root / name).write_text("unused = 2\n")
    assert code.code_digest(ENTRY) == before


def test_a_new_module_counts_once_it_is_imported(root: Path) -> None:
    before = code.code_digest(ENTRY)
    (root / "shop_new.py").write_text("x = 1\n")
    assert code.code_digest(ENTRY) == before
    (root / "shop_circle.py").write_text("import shop_new\n")
    imported = code.code_digest(ENTRY)
    (root / "shop_new.py").write_text("x = 22\n")
    assert len({before, imported, code.code_digest(ENTRY)}) == 3


def test_the_same_code_elsewhere_has_the_same_digest(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code.code_digest(ENTRY)
    lay_out(tmp_path / "elsewhere")
    shutil.rmtree(root)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.startswith(str(root))])
    importable(tmp_path / "elsewhere", monkeypatch)
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]
    sys.path_importer_cache.clear()
    assert code.code_digest(ENTRY) == before


def test_what_is_installed_is_the_environments(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = root / "lib" / "site-packages"
    (installed / "shop_lib").mkdir(parents=True)
    (installed / "shop_lib" / "__init__.py").write_text("VERSION = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    (root / "shop_circle.py").write_text("import shop_lib, tenure_worker, json\n")
    before = code.code_digest(ENTRY)
    (installed / "shop_lib" / "__init__.py").write_text("VERSION = 22\n")
    assert code.code_digest(ENTRY) == before


@pytest.mark.parametrize("name", ["json.decoder", "tenure_worker.code", "tenure.statistics"])
def test_the_standard_library_and_tenure_are_not_the_users_own(name: str) -> None:
    assert code._own_modules(name) == {}


@pytest.mark.parametrize(
    "text", ["def half(:\n", "import shop_nowhere.at_all\n", "from ....... import x\n", "\x00"]
)
def test_what_cannot_be_read_or_found_changes_the_digest_and_breaks_nothing(
    root: Path, text: str
) -> None:
    before = code.code_digest(ENTRY)
    (root / "shop_circle.py").write_text(text)
    assert code.code_digest(ENTRY) != before
