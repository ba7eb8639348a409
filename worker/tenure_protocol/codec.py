"""Strict JSON for frozen dataclasses: canonical bytes out, a sentence in when something is off.

Standard library only, because the wheel travels to machines that may have no package index. It
knows exactly the shapes that :mod:`tenure_protocol.records` uses: dataclasses, ``Literal``,
optional fields, ``tuple[X, ...]``, ``dict[str, X]``, scalars and plain JSON.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import ClassVar, TypeVar

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
R = TypeVar("R")


class Corrupt(Exception):
    """A stored object that cannot be what its key says. ``key`` names it."""

    _says: ClassVar[str] = "is corrupt: "

    def __init__(self, problem: str, key: str = "?") -> None:
        super().__init__(f"{key} {self._says}{problem}")
        self.problem = problem
        self.key = key


class NeverWritten(Corrupt):
    """An object that has to be there and is not."""

    _says: ClassVar[str] = "is missing: "


class NewerProtocol(Corrupt):
    """A stored object written by a newer Tenure than this one; nothing is wrong with it."""

    _says: ClassVar[str] = ""

    def __init__(self, found: int, known: int, key: str = "?") -> None:
        super().__init__(
            f"speaks protocol {found}, this Tenure speaks {known}; upgrade this side", key
        )
        self.found = found


#: Made once: json.dumps makes one for every call that asks for anything but its defaults.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def canonical(value: object) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces and no NaN: equal values give equal bytes.

    >>> canonical({"b": 1, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    """
    return _CANONICAL.encode(value).encode()


def sha256_hex(body: bytes) -> str:
    """Lowercase hexadecimal SHA-256 of ``body``."""
    return hashlib.sha256(body).hexdigest()


def short_id(body: bytes) -> str:
    """First 26 characters of the lowercase base32 of SHA-256: 130 bits, safe in keys and names.

    >>> short_id(b"")
    '4oymiquy7qobjgx36tejs35zeq'
    """
    return base64.b32encode(hashlib.sha256(body).digest()).decode().lower()[:26]


def plain(value: object) -> Json:
    """A dataclass as JSON values; fields that are ``None`` are left out.

    A field declared as a float is written as one, so that ``30`` and ``30.0`` give one id.
    Raises ``ValueError`` for NaN and infinity, ``TypeError`` for what has no JSON form.
    """
    if value is None or isinstance(value, (str, int)):  # bool is an int; most values are these
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no JSON form")
        return value
    kind: type = type(value)
    if shape := _shape(kind):
        return {
            field.name: plain(float(item) if field.is_float else item)
            for field in shape.fields
            if (item := getattr(value, field.name)) is not None
        }
    if isinstance(value, (dict, Mapping)):  # in this order: asking for a Mapping alone is slow
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_base64(text: object, key: str = "?") -> bytes:
    """The bytes of standard base64 (RFC 4648 section 4), in the one form that encoding them gives.

    The last letter before ``=`` has bits that say nothing. Whoever ignores them, as Python's decoder does,
    believes several texts for one signature. Raises :class:`Corrupt`.

    >>> from_base64("YQ==")
    b'a'
    """
    try:
        found = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError) as error:
        raise Corrupt(f"it holds no base64 ({error})", key) from error
    if base64.b64encode(found).decode() != text:
        raise Corrupt("its base64 is not in the form that encoding gives", key)
    return found


def encode(record: object) -> bytes:
    """Canonical JSON bytes of a record."""
    return canonical(plain(record))


def parse(body: bytes, key: str = "?") -> dict[str, Json]:
    """The JSON object in ``body``; :class:`Corrupt` when it is none or names a key twice."""

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for name, item in pairs:
            if name in found:
                raise Corrupt(f"the key {name!r} stands twice", key)
            found[name] = item
        return found

    def refuse(word: str) -> Json:
        raise Corrupt(f"{word} is no number", key)

    def finite(digits: str) -> Json:
        number = float(digits)
        return number if math.isfinite(number) else refuse(digits)

    try:
        text = body.decode()
        value = json.loads(
            text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite
        )
        if "\\u" in text:  # an escaped half of a pair decodes, and could never be written again
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, a number of 4,300 digits
        raise Corrupt(f"it is no JSON ({error})", key) from error
    if not isinstance(value, dict):
        raise Corrupt(f"it holds {type(value).__name__} where an object belongs", key)
    return value


def decode(kind: type[R], value: object, key: str = "?") -> R:
    """Build ``kind`` (a dataclass) from JSON values; :class:`Corrupt` names the field that is off."""
    return typing.cast(R, _build(kind, value, "", key))


@dataclasses.dataclass(frozen=True)
class _Field:
    """What is known of one field of a dataclass before any value is seen."""

    name: str
    hint: object
    needed: bool
    is_float: bool
    fits: frozenset[type]  # JSON values of exactly these types are taken as they are


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The fields of a dataclass, in their order."""

    fields: tuple[_Field, ...]
    names: frozenset[str]


@functools.cache
def _shape(kind: type) -> _Shape | None:
    """Worked out once for a dataclass; ``None`` for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    hints = typing.get_type_hints(kind)
    fields = tuple(
        _Field(
            field.name,
            hint := hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            hint in (float, float | None),
            _fitting(hint),
        )
        for field in dataclasses.fields(kind)
    )
    return _Shape(fields, frozenset(field.name for field in fields))


def _fitting(hint: object) -> frozenset[type]:
    """The types of JSON values in which nothing can be wrong for a field.

    >>> sorted(kind.__name__ for kind in _fitting(int | None)), _fitting(tuple[int, ...])
    (['NoneType', 'int'], frozenset())
    """
    if hint is object or hint == Json:
        return frozenset({type(None), bool, int, float, str, list, dict})
    args = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return frozenset({type(None), bool, int, float, str} & set(args))


def _build(kind: object, value: object, where: str, key: str) -> object:
    if isinstance(kind, type) and (shape := _shape(kind)):
        return _build_dataclass(kind, shape, value, where, key)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is object or kind == Json:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        (inner,) = (arg for arg in args if arg is not type(None))
        return _build(inner, value, where, key)
    if origin is typing.Literal:
        if value not in args:
            raise Corrupt(
                f"{where or 'it'} is {value!r}, not one of {', '.join(map(str, args))}", key
            )
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_build(args[0], item, f"{where}[{n}]", key) for n, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {n: _build(args[1], item, f"{where}.{n}", key) for n, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise Corrupt(f"{where or 'it'} is too large for a float", key) from error
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    name = getattr(kind, "__name__", str(kind))
    raise Corrupt(f"{where or 'it'} is {value!r}, not {name}", key)


def _build_dataclass(kind: type, shape: _Shape, value: object, where: str, key: str) -> object:
    if not isinstance(value, dict):
        raise Corrupt(f"{where or 'it'} is {value!r}, not an object", key)
    if not value.keys() <= shape.names:
        unknown = min(value.keys() - shape.names)
        raise Corrupt(f"it has the unknown field {_join(where, unknown)!r}", key)
    built = {}
    for field in shape.fields:
        name = field.name
        if name in value:
            item = value[name]
            if type(item) not in field.fits:
                item = _build(field.hint, item, _join(where, name), key)
            built[name] = item
        elif field.needed:
            raise Corrupt(f"it lacks the field {_join(where, name)!r}", key)
    try:
        return kind(**built)
    except ValueError as error:
        raise Corrupt(f"{where + ': ' if where else ''}{error}", key) from error


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
