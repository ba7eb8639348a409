"""One sentence for what is wrong in a file somebody wrote: file, line, dotted key, and what to do.

Shared by ``tenure.toml`` and plans: both are read into pydantic models that refuse unknown keys.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tenure.errors import UsageError

KeyPath = tuple[str | int, ...]

_PLAIN = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a section of keys and values",
    "model_type": "must be a section of keys and values",
    "model_attributes_type": "must be a section of keys and values",
}
_BOUNDS = {
    "greater_than": ("gt", "must be greater than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
}
_SHOWN_CHARS = 60
_LONG = 1e12  # a bound from here on is told as 1e+30 and not with all its digits


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: its closest neighbour, else all that is known.

    >>> did_you_mean("grdi", ["seeds", "grid"])
    "did you mean 'grid'?"
    >>> did_you_mean("zebra", ["seeds", "grid"])
    "known: 'grid', 'seeds'"
    >>> did_you_mean("zebra", [])
    'there are none'
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(repr(name) for name in names) if names else "there are none"


class MistakeAt(ValueError):
    """What a validator of a whole section raises: the key below the section that is wrong, and a sentence."""

    def __init__(self, path: KeyPath, sentence: str) -> None:
        super().__init__(f"{dotted(path)}: {sentence}")
        self.path = path
        self.sentence = sentence


@dataclass(frozen=True)
class Place:
    """A file, and the line of every key in it; what a mistake is reported against."""

    file: str
    lines: Mapping[KeyPath, int]
    within: str = ""  # which of the things in the file it is, such as "scenario 2 (demand)"

    def line(self, path: KeyPath) -> int:
        """The line of a key, or of the closest section that holds it where the key is missing."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return self.lines.get((), 1) if self.within else 1

    def part(self, path: KeyPath, within: str) -> Place:
        """The place of one of the things in the file, whose keys are told from there on."""
        inner = {
            each[len(path) :]: line
            for each, line in self.lines.items()
            if each[: len(path)] == path
        }
        return Place(self.file, inner, within)

    def error(self, path: KeyPath, sentence: str) -> UsageError:
        """``FILE:LINE: dotted.key: sentence``; without a key where ``path`` is empty."""
        told = [each for each in (self.within, dotted(path)) if each]
        return UsageError(": ".join([f"{self.file}:{self.line(path)}", *told, sentence]))

    def first_mistake(self, error: ValidationError, model: type[BaseModel]) -> UsageError:
        """The mistake that stands first in the file, and how many more there are."""
        found = {self._mistake(detail, model) for detail in error.errors(include_url=False)}
        path, sentence = min(found, key=lambda one: (self.line(one[0]), dotted(one[0])))
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return self.error(path, sentence + more)

    def _mistake(self, detail: ErrorDetails, model: type[BaseModel]) -> tuple[KeyPath, str]:
        # pydantic adds '[key]' to a location where the key is wrong and not its value
        path = tuple(part for part in detail["loc"] if part != "[key]")
        valid = _keys_at(model, path[:-1])
        if detail["type"] == "missing":
            # A key written wrongly is missing too: one mistake, reported where it is written.
            name = str(path[-1])
            stray = difflib.get_close_matches(name, self._strays(path, valid), n=1, cutoff=0.6)
            if stray:
                return (*path[:-1], stray[0]), f"unknown key; did you mean {name!r}?"
            return path, "this key is missing, add it"
        if detail["type"] == "extra_forbidden":
            return path, "unknown key; " + did_you_mean(str(path[-1]), valid)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, MistakeAt):
            return (*path, *cause.path), cause.sentence
        return path, _sentence(detail)

    def _strays(self, path: KeyPath, valid: list[str]) -> list[str]:
        """Names that stand in the file beside ``path`` and that the model does not know."""
        return [
            str(other[-1])
            for other in self.lines
            if len(other) == len(path) and other[:-1] == path[:-1] and other[-1] not in valid
        ]


def dotted(path: KeyPath) -> str:
    """A key as people write it.

    >>> dotted(("grid", "lr", 0))
    'grid.lr[0]'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(value: object) -> str:
    """A value in an error message: on one line, cut where it is long.

    >>> shown({"lr": 0.1})
    '{"lr": 0.1}'
    """
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _sentence(detail: ErrorDetails) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "literal_error":
        return f"must be {context['expected']}, not {shown(value)}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        limit = context[bound]
        plain = int(limit) if limit == int(limit) and abs(limit) < _LONG else f"{limit:g}"
        return f"{words} {plain}, not {shown(value)}"
    if kind == "too_short":
        return f"needs at least {context['min_length']} entries, it has {context['actual_length']}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "value_error":
        return str(context["error"])
    if kind in _PLAIN:
        return f"{_PLAIN[kind]}, not {shown(value)}"
    return detail["msg"]


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys a model knows under ``path``; none where the file is free to choose them."""
    here: object = model
    for part in path:
        here = _model_or_mapping(here)
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(str(part))
            here = field.annotation if field else None
        elif get_origin(here) in (dict, list, tuple):
            here = get_args(here)[-1]
        else:
            return []
    here = _model_or_mapping(here)
    return list(here.model_fields) if isinstance(here, type) and issubclass(here, BaseModel) else []


def _model_or_mapping(annotation: object) -> object:
    """``X`` of ``Annotated[X, ...]`` and of ``X | None``."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation


def read_text(file: Path, what: str) -> str:
    """The text of a file somebody named; a :class:`UsageError` in words when it is not there."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{file}: there is no such {what}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
