"""Does ``module:Class`` name an experiment? Asked by importing it, in this process.

An import runs the user's code, so whatever it raises is answered in one sentence. Two checkouts may
each have a module of one name: what an import here leaves behind is taken back, so that the second
is not given the module of the first.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

METHODS = ("train", "evaluate", "backtest")
_OURS = frozenset({"tenure", "tenure_protocol", "tenure_worker"})


def check_experiment(entry_point: str, folders: Sequence[Path]) -> str | None:
    """What is wrong with an entry point, in one sentence; ``None`` when nothing is.

    ``folders`` come first on ``sys.path`` while the module is imported.
    """
    module_name, class_name = entry_point.split(":")
    with _import_path(folders):
        try:
            module = importlib.import_module(module_name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a script without a main guard may even exit
            return f"cannot import {module_name!r}: {_in_words(error, module_name, folders)}"
        found = getattr(module, class_name, None)
    where = getattr(module, "__file__", None) or module_name
    if found is None:
        return f"{where} has no class {class_name!r}; correct the name after the colon"
    if not isinstance(found, type):
        return f"{class_name!r} of {where} is no class; an experiment is a class"
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if missing:
        return f"class {class_name!r} of {where} has no method {' and no '.join(missing)}; add it"
    return None


def _in_words(error: BaseException, module_name: str, folders: Sequence[Path]) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in _and_parents(module_name):
        looked = " and ".join(str(folder) for folder in dict.fromkeys(folders))
        return f"there is no such module in {looked}, nor installed; correct the name or add it"
    text = (str(error).splitlines() or [""])[0]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):
        return said  # names file and line by itself
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if any(Path(frame.filename).is_relative_to(folder) for folder in folders):
            return f"{said} ({frame.filename}:{frame.lineno})"
    return said


def _and_parents(module_name: str) -> list[str]:
    parts = module_name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


@contextmanager
def _import_path(folders: Sequence[Path]) -> Iterator[None]:
    """Put ``folders`` first on ``sys.path``, and take back afterwards what was imported from them."""
    paths = [str(folder) for folder in folders]
    path_before, loaded_before = list(sys.path), set(_tops())
    sys.path[:0] = paths
    importlib.invalidate_caches()
    displaced = _unload([top for top in loaded_before if _is_another(top, paths)])
    try:
        yield
    finally:
        sys.path[:] = path_before
        # What is installed stays loaded: importing torch a second time breaks it.
        new = [top for top in _tops() if top not in loaded_before and _lies_in(top, paths)]
        _unload([*new, *{name.partition(".")[0] for name in displaced}])
        sys.modules.update(displaced)


def _is_another(top: str, paths: list[str]) -> bool:
    """Whether a loaded module is not the one of that name in the folders, and so hides it."""
    if top in sys.stdlib_module_names or top in _OURS:
        return False
    here = PathFinder.find_spec(top, paths)
    # A folder without __init__.py (no origin) hides nothing.
    return here is not None and here.origin is not None and here.origin != _origin(top)


def _lies_in(top: str, paths: list[str]) -> bool:
    here = PathFinder.find_spec(top, paths)
    return here is not None and here.origin == _origin(top)


def _origin(top: str) -> str | None:
    spec: ModuleSpec | None = getattr(sys.modules[top], "__spec__", None)
    return spec.origin if spec else None


def _tops() -> list[str]:
    """Top-level names of what is loaded."""
    return [name for name in list(sys.modules) if "." not in name]


def _unload(tops: Sequence[str]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in names}
