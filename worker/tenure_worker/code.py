"""The experiment's code and data: found by import path, named by digest."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import cast

from tenure_protocol.codec import short_id
from tenure_worker.experiment import Experiment

_SKIP = {"__pycache__", ".git", ".venv", "node_modules"}
#: Folders that hold what is installed, which is the environment's and not the user's own.
INSTALLED_IN = frozenset({"site-packages", "dist-packages"})
#: Folders of a bundle of code: the working directory of a job, and modules that may not lie in it.
MAIN, BESIDE = "here", "beside"
_TENURE = {"tenure", "tenure_protocol", "tenure_worker"}  # its version is part of the environment


class BadEntryPoint(Exception):
    """An entry point that names no experiment; says what is wrong and what to do."""


def add_code_path(path: Path) -> None:
    """Let entry points be imported from ``path``."""
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))


@dataclass(frozen=True)
class OwnFile:
    """One file of the user's own code, and its place in a bundle (see :class:`OwnCode`)."""

    place: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class OwnCode:
    """The user's code that a job may run: its digest, and how it is laid out elsewhere.

    Unpacked by ``place``, with the folders ``paths`` searched in this order, it has the same digest.
    """

    digest: str
    files: tuple[OwnFile, ...]  # by place
    paths: tuple[str, ...]


def code_digest(entry_point: str) -> str:
    """Digest of the user's code that a job may run, the same wherever it lies.

    That is every ``.py`` file in the folder that holds the entry point's module, and every module of
    the user's own that these name in an import, and those in theirs. The standard library and what is
    installed in ``site-packages`` is not the user's own: its versions are part of the environment.
    Raises :class:`BadEntryPoint`.
    """
    return own_code(entry_point).digest


def own_code(entry_point: str, trusted: bool = True) -> OwnCode:
    """The files that :func:`code_digest` covers. Raises :class:`BadEntryPoint`.

    Packages above the entry point are imported to find it, unless they are not ``trusted``.
    """
    module, _, _ = entry_point.partition(":")
    folder = module_folder(entry_point, trusted)
    package = module.rpartition(".")[0]
    home = PurePosixPath(MAIN, *package.split(".")) if package else PurePosixPath(MAIN)
    importlib.invalidate_caches()
    rows, open_ends = set(), {module}
    files: dict[str, OwnFile] = {}
    paths = dict.fromkeys((MAIN,))
    for path in folder.rglob("*.py"):
        inside = path.relative_to(folder).with_suffix("")
        if not _SKIP.intersection(inside.parts):
            source = _source(path)
            place = f"{home / inside.as_posix()}.py"
            files[place] = OwnFile(place, path, source.sha256)
            rows.add(f"{source.sha256}  {inside.as_posix()}.py\n")
            open_ends |= source.imports(".".join(filter(None, (package, *inside.parts))))
    found: dict[str, Path] = {}
    while open_ends:
        for name, path in _own_modules(open_ends.pop()).items():
            if name not in found:
                found[name] = path
                open_ends |= _source(path).imports(name)
    for name, path in found.items():
        if path.is_relative_to(folder):
            place = (home / path.relative_to(folder).as_posix()).as_posix()
            paths |= _import_path(name, place)
            continue
        own = OwnFile(_place(name, path, home), path, _source(path).sha256)
        files[own.place] = own
        paths |= dict.fromkeys((own.place.partition("/")[0],))
        rows.add(f"{own.sha256}  {name}\n")
    ordered = tuple(files[place] for place in sorted(files))
    return OwnCode(short_id("".join(sorted(rows)).encode()), ordered, tuple(paths))


def _place(name: str, path: Path, home: PurePosixPath) -> str:
    """Where a module goes that lies outside of the entry point's folder: by its name.

    Below ``BESIDE`` where it would come to lie in that folder, all of which is the entry point's own.
    """
    inside = name.replace(".", "/") + ("/__init__.py" if path.stem == "__init__" else ".py")
    main = PurePosixPath(MAIN, inside)
    return f"{BESIDE}/{inside}" if main.is_relative_to(home) else main.as_posix()


def _import_path(name: str, place: str) -> dict[str, None]:
    """The folder that must be searched for a file at ``place`` to be the module ``name``."""
    parts = PurePosixPath(place.removesuffix("/__init__.py").removesuffix(".py")).parts
    names = tuple(name.split("."))
    return {"/".join(parts[: -len(names)]): None} if parts[-len(names) :] == names else {}


@dataclass(frozen=True)
class _Source:
    """One file: the digest of its bytes, and what it imports as (level, module, names)."""

    sha256: str
    is_package: bool
    statements: tuple[tuple[int, str, tuple[str, ...]], ...]

    def imports(self, name: str) -> set[str]:
        """Absolute names of what the file may import, were it the module ``name``."""
        parts = name.removesuffix(".__init__").split(".")
        found = set()
        for level, module, names in self.statements:
            keep = len(parts) - level + (self.is_package and level > 0)
            base = parts[: max(keep, 0)] if level else []
            stem = ".".join([*base, *filter(None, [module])])
            found |= {stem} | {f"{stem}.{each}" if stem else each for each in names}
        return found - {""}


def _source(path: Path) -> _Source:
    stat = path.stat()
    return _read_source(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read_source(path: Path, _mtime_ns: int, _size: int) -> _Source:
    """A sensor asks for the digest at each tick: a file that did not change is not parsed again."""
    body = path.read_bytes()
    statements: list[tuple[int, str, tuple[str, ...]]] = []
    try:
        tree = ast.parse(body)
    except (SyntaxError, ValueError):
        tree = ast.Module([], [])  # whoever imports it will say so
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            statements += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names if alias.name != "*")
            statements.append((node.level, node.module or "", names))
    return _Source(hashlib.sha256(body).hexdigest(), path.stem == "__init__", tuple(statements))


def _own_modules(name: str) -> dict[str, Path]:
    """The user's own files that importing ``name`` runs: the module, and the packages above it."""
    top, *rest = name.split(".")
    if top in sys.stdlib_module_names or top in _TENURE:
        return {}
    try:
        spec = importlib.util.find_spec(top)  # imports nothing, since nothing is above it
    except (ImportError, ValueError):
        return {}
    if spec is None:
        return {}
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    origin = Path(spec.origin) if spec.has_location and spec.origin else None
    if any(INSTALLED_IN.intersection(path.parts) for path in (*places, *filter(None, [origin]))):
        return {}
    found = {top: origin} if origin and origin.suffix == ".py" else {}
    for part in rest:
        top = f"{top}.{part}"
        here = [place / part for place in places]
        for path in here:
            file = next(
                (f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()), None
            )
            if file:
                found[top] = file
                break
        places = here
    return found


def _untouched_spec(module: str) -> ModuleSpec | None:
    """Where a module lies, as far as this can be told without running what is above it."""
    path: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def module_folder(entry_point: str, trusted: bool = True) -> Path:
    """The folder that holds the entry point's module. Raises :class:`BadEntryPoint`."""
    module, _, _ = entry_point.partition(":")
    try:
        spec = importlib.util.find_spec(module) if trusted else _untouched_spec(module)
    except Exception as error:  # whatever the packages above it raise while they are imported
        words = f"{type(error).__name__}: {error}"
        raise BadEntryPoint(f"the module {module!r} cannot be imported ({words})") from error
    if spec is None or spec.origin is None:
        raise BadEntryPoint(
            f"there is no module {module!r}; check the spelling of {entry_point!r} "
            "and that the folder above it is where tenure.toml stands"
        )
    return Path(spec.origin).parent


def load_experiment(entry_point: str) -> Experiment:
    """Import and instantiate ``module:Class``. Raises :class:`BadEntryPoint`."""
    module_name, _, name = entry_point.partition(":")
    module_folder(entry_point)
    module = importlib.import_module(module_name)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        raise BadEntryPoint(f"the module {module_name!r} has no class {name!r}")
    for method in ("train", "evaluate", "backtest"):
        if not callable(getattr(found, method, None)):
            raise BadEntryPoint(f"the class {entry_point!r} has no method {method}()")
    return cast(Experiment, found())


def data_files(experiment: Experiment) -> list[Path]:
    """The files the experiment names, in its order; none where it has no ``data_files()``."""
    name_files = getattr(experiment, "data_files", None)
    files = cast(Callable[[], Sequence[Path]], name_files)() if callable(name_files) else []
    return [Path(path) for path in files]


def data_digest(experiment: Experiment) -> str:
    """Digest of the bytes of the files the experiment names; raises ``OSError``."""
    rows = [f"{file_sha256(path)}  {path.name}\n" for path in data_files(experiment)]
    return short_id("".join(rows).encode())


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; raises ``OSError``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
