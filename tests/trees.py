"""JSON trees: where every value lies, so that a test may change any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Path_ = tuple[str | int, ...]


def paths(value: object, path: Path_ = ()) -> Iterator[Path_]:
    """Where every value lies, the whole first."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, item in items:
        yield from paths(item, (*path, name))


def at(value: object, path: Path_) -> Any:
    """What lies there."""
    for part in path:
        value = value[part]  # type: ignore[index]
    return value
