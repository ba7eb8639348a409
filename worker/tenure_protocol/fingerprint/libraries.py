"""numpy's linear algebra: how it was built, and how many threads it takes."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from tenure_protocol.codec import sha256_hex

_TOLD = ("name", "version", "openblas configuration")
_PREFIXES, _SUFFIXES = ("", "scipy_"), ("", "64_", "_64")  # how builds rename OpenBLAS's symbols


def numpy_blas() -> str | None:
    """Name, version and build of numpy's BLAS; ``None`` without numpy, which is not imported.

    Which code path it takes follows from this, the processor and ``OPENBLAS_CORETYPE``.
    """
    try:
        spec = importlib.util.find_spec("numpy")
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations)), "__config__.py")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "not told by numpy"
    return _of_config(text) or f"build {sha256_hex(text.encode())[:16]}"


def _of_config(text: str) -> str | None:
    """The words on BLAS of numpy's generated ``__config__.py``, which is read and not run.

    >>> _of_config('CONFIG = f({"deps": {"blas": {"name": "scipy-openblas", "version": "0.3"}}})')
    'scipy-openblas 0.3'
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                named = isinstance(key, ast.Constant) and key.value == "blas"
                if named and isinstance(value, ast.Dict):
                    found = dict(_texts(value))
                    return " ".join(found[name] for name in _TOLD if found.get(name)) or None
    return None


def _texts(node: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
            yield str(key.value), str(value.value)


def openblas_threads() -> int | None:
    """How many threads the OpenBLAS libraries of this process take; ``None`` where none is loaded.

    The most of them where there are several, such as numpy's and scipy's.
    """
    found = [count for path in _loaded("openblas") if (count := _asked(path)) is not None]
    return max(found, default=None)


def _loaded(word: str) -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if line.count(" ") > 4}
    return sorted(path for path in paths if word in os.path.basename(path))


def _asked(path: str) -> int | None:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            ask = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
            if ask is not None:
                ask.restype, ask.argtypes = ctypes.c_int, []
                return int(ask())
    return None
