"""The codec: canonical bytes, exact shapes, and one exception whatever the bytes are."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_protocol.codec import (
    Corrupt,
    canonical,
    decode,
    encode,
    from_base64,
    parse,
    plain,
    short_id,
)
from tests.unit.records_strategies import json_values, manifests, objects, specs, witnesses


@dataclass(frozen=True)
class Inner:
    name: str
    weight: float = 0.0


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    count: int
    inner: Inner
    many: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict)
    maybe: int | None = None
    share: float | None = None
    flag: bool = False
    free: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is never negative")


GOOD = Outer(
    "a", 3, Inner("x", 1.5), (Inner("y"),), {"z": Inner("z", 2.0)}, 4, 0.5, True, {"k": [1]}
)


@given(objects)
def test_canonical_bytes_come_back(value: dict[str, object]) -> None:
    body = canonical(value)
    assert parse(body) == value
    assert canonical(parse(body)) == body


@given(objects)
def test_canonical_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical(backwards) == canonical(value)


def test_a_record_comes_back() -> None:
    assert decode(Outer, parse(encode(GOOD))) == GOOD


def by_definition(value: object) -> object:
    """What ``plain`` says of a value, without anything worked out before."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        items = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {
            name: by_definition(float(item) if hints[name] in (float, float | None) else item)
            for name, item in items.items()
            if item is not None
        }
    if isinstance(value, Mapping):
        return {name: by_definition(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [by_definition(item) for item in value]
    return value


@given(specs | witnesses() | manifests)
def test_records_are_written_by_their_definition_and_come_back(record: object) -> None:
    body = encode(record)
    assert body == canonical(by_definition(record))
    assert decode(type(record), parse(body)) == record


def test_an_unknown_field_is_named_before_one_that_is_off() -> None:
    with pytest.raises(Corrupt, match="unknown field 'aside'"):
        decode(Outer, {"kind": "c", "zone": 1, "aside": 1}, "k")


def test_what_json_cannot_be_is_named_even_where_most_values_fit() -> None:
    """A field of free JSON takes any; one of a kind takes exactly that kind."""
    for wrong in (True, 1.0, "1", [1], {"a": 1}):
        with pytest.raises(Corrupt, match="count"):
            decode(Outer, {"kind": "a", "count": wrong, "inner": {"name": "x"}}, "k")


def test_absent_and_null_are_the_default_of_an_optional_field() -> None:
    value = parse(encode(GOOD))
    del value["maybe"]
    value["share"] = None
    found = decode(Outer, value)
    assert found.maybe is None and found.share is None


def test_a_whole_number_in_a_float_field_is_written_as_a_float() -> None:
    assert encode(Inner("x", 2)) == encode(Inner("x", 2.0)) == b'{"name":"x","weight":2.0}'
    assert b'"share":3.0' in encode(Outer("a", 1, Inner("x"), share=3))
    assert b'"count":1,' in encode(Outer("a", 1, Inner("x")))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"kind": "c"}, "kind"),
        ({"kind": ["a"]}, "kind"),
        ({"count": 1.0}, "count"),
        ({"count": True}, "count"),
        ({"count": "1"}, "count"),
        ({"count": None}, "count"),
        ({"count": -1}, "count is never negative"),
        ({"inner": []}, "inner"),
        ({"inner": {}}, "inner.name"),
        ({"inner": {"name": 1}}, "inner.name"),
        ({"inner": {"name": "x", "weight": "heavy"}}, "inner.weight"),
        ({"inner": {"name": "x", "weight": True}}, "inner.weight"),
        ({"inner": {"name": "x", "other": 1}}, "inner.other"),
        ({"many": {}}, "many"),
        ({"many": [{"name": "x"}, {"name": None}]}, "many[1].name"),
        ({"by_name": {"q": {"name": 2}}}, "by_name.q.name"),
        ({"maybe": "x"}, "maybe"),
        ({"flag": 1}, "flag"),
        ({"free": []}, "free"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_corrupt_names_the_key_and_the_field(change: dict[str, object], where: str) -> None:
    value = {**json.loads(encode(GOOD)), **change}
    with pytest.raises(Corrupt) as caught:
        decode(Outer, value, "some/key.json")
    assert where in str(caught.value) and str(caught.value).startswith("some/key.json is corrupt: ")
    assert caught.value.key == "some/key.json"


def test_a_float_field_too_large_for_a_float_is_corrupt() -> None:
    value = {**json.loads(encode(GOOD)), "share": 10**400}
    with pytest.raises(Corrupt, match="share"):
        decode(Outer, value, "k")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b'{"a":1',
        b'{"a":1}x',
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":-1e999}',
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        rb'{"a":"\ud800"}',
        rb'{"\udfff":1}',
        b'{"a":' + b"1" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00" * 20,
    ],
)
def test_what_is_no_json_object_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt, match="some/key"):
        parse(body, "some/key")


def test_an_escaped_whole_pair_is_fine() -> None:
    assert parse(rb'{"a":"\ud83d\ude00"}') == {"a": "\N{GRINNING FACE}"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_nan_has_no_json_form(value: object) -> None:
    with pytest.raises(ValueError):
        plain(value)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", 1j, object(), Outer])
def test_what_has_no_json_form_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        plain(value)


@given(st.integers(0, 2**32), json_values)
@settings(max_examples=200)
def test_any_damage_is_corrupt_or_a_record(seed: int, free: object) -> None:
    draw = random.Random(seed)
    body = bytearray(encode(Outer("b", 1, Inner("ä\x01"), (), {}, 2, 1e10, True, {"f": free})))
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(body))
        if draw.random() < 0.3:
            del body[at:]
            body.append(draw.randrange(256))
        else:
            body[at] = draw.randrange(256)
    try:
        found = decode(Outer, parse(bytes(body), "the/key"), "the/key")
    except Corrupt as error:
        assert "the/key" in str(error)
    else:
        assert decode(Outer, parse(encode(found))) == found


def test_ids_are_base32_of_sha256() -> None:
    assert short_id(b"abc") == "xj4bnp4pahh6uqkbidpf3lrceo"


@given(st.binary(max_size=70))
def test_only_the_one_text_of_base64_is_read(body: bytes) -> None:
    text = base64.b64encode(body).decode()
    assert from_base64(text) == body
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = len(text.rstrip("=")) - 1
    others = {text[:last] + one + text[last + 1 :] for one in letters} if body else set()
    others |= {text + "\n", text + "=", text.replace("+", "-").replace("/", "_"), text + "A"}
    for other in others - {text}:
        try:
            found = from_base64(other, "the/key")
        except Corrupt as error:
            assert "the/key" in str(error)
        else:
            assert found != body


@pytest.mark.parametrize("value", [None, 1, b"YQ==", ["YQ=="], "\ud800", "ä"])
def test_what_is_no_base64(value: object) -> None:
    with pytest.raises(Corrupt):
        from_base64(value)
