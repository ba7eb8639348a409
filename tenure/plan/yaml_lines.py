"""Strict YAML: values by the core schema of YAML 1.2, with the line of every key.

PyYAML by itself follows YAML 1.1, where ``1e-3`` is text, ``no`` is false and ``1:30`` is 90; a
grid of learning rates would silently become a grid of strings. It also lets a second key of the
same name win. Here numbers are numbers, and a duplicate key is an error.
"""

from __future__ import annotations

import re

import yaml

from tenure.bad_input import KeyPath, Place
from tenure.errors import UsageError

Yaml = None | bool | int | float | str | list["Yaml"] | dict[str, "Yaml"]

_TAG = "tag:yaml.org,2002:"
_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?(?:\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
        "-+.0123456789",
    ),
)


class _CoreLoader(yaml.SafeLoader):
    """A loader that resolves plain scalars by the core schema only."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML's own attribute, replaced for this class)


for _kind, _pattern, _first in _RESOLVERS:
    _CoreLoader.add_implicit_resolver(
        _TAG + _kind,
        re.compile(f"(?:{_pattern})$"),
        list(_first) + ([""] if _kind == "null" else []),
    )


def parse(text: str, file: str) -> tuple[Yaml, Place]:
    """The value of a YAML document and the place of each of its keys; raises :class:`UsageError`."""
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{file}{line}: not valid YAML: {error.problem or error}") from None
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{file}: not valid YAML: {reason}") from None
    lines: dict[KeyPath, int] = {}
    place = Place(file, lines)
    if node is None:
        return None, place
    return _Builder(place, lines).value(node, ()), place


class _Builder:
    def __init__(self, place: Place, lines: dict[KeyPath, int]) -> None:
        self._place = place
        self._lines = lines
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Yaml:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if any(node is outer for outer in self._open):
            raise self._place.error(path, "an alias points to what it stands in; write it out")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(entry, (*path, i)) for i, entry in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Yaml]:
        found: dict[str, Yaml] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                self._lines[*path, "?"] = line
                raise self._place.error((*path, "?"), "a key must be text; put it in quotes")
            key = str(key_node.value)
            inner = (*path, key)
            if key in found:
                first = self._lines[inner]
                self._lines[inner] = line
                raise self._place.error(
                    inner, f"this key stands here a second time, first on line {first}; remove one"
                )
            self._lines[inner] = line
            found[key] = self.value(value_node, inner)
        return found

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Yaml:
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            digits = text.lower()
            return int(digits, {"0o": 8, "0x": 16}.get(digits[:2], 10))
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        raise self._place.error(path, f"the tag {node.tag!r} has no meaning here; remove it")
