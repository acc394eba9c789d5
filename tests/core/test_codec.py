"""What goes in comes out, and what could not is refused on both sides."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pool.core.codec import (
    check_size,
    decode_call,
    decode_value,
    encode_call,
    encode_value,
    head,
    head_of,
    is_call,
    read_json,
)
from pool.core.shape import DEPTH_MAX
from pool.errors import CodecMissing, PayloadEncodingError, PayloadTooLarge

TOO_LONG = 10**4300  # 4301 digits
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
)
# Also all that must be refused, at any depth.
BAD = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, "\ud800", {1: 2}, {None: 1}, {"\udfff": 1}]),
    st.sampled_from([b"x", bytearray(b"x"), {1}, object(), decimal.Decimal(1), 1j, ...]),
    st.booleans().map(lambda is_key: {TOO_LONG: 1} if is_key else TOO_LONG),
)
ANYTHING = st.recursive(
    SCALARS | BAD,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner) | st.tuples(inner, inner),
    max_leaves=12,
)


class Level(enum.IntEnum):
    HIGH = 3


class Own(str):  # noqa: SLOT000 - as people write it
    """Text that equals nothing but itself."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class Point(NamedTuple):
    x: int
    y: int


class Custom:
    """A codec of the user's: here JSON backwards."""

    name = "backwards"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, default=lambda given: {"hex": bytes.hex(given)}).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        return json.loads(data[::-1], object_hook=self._back)

    def _back(self, found: dict[str, Any]) -> Any:
        return bytes.fromhex(found["hex"]) if found.keys() == {"hex"} else found


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@contextmanager
def typed() -> Iterator[None]:
    """Let the one error pass that users are told of, if it can be printed."""
    try:
        yield
    except PayloadEncodingError as error:
        told = str(error)
        if not told.isprintable():
            raise


def is_same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1, 1.0 and True are three values."""
    return repr(one) == repr(other)


def by_name(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return them in the order in which they are stored."""
    return dict(sorted(kwargs.items()))


# --- round trips ----------------------------------------------------------------------------


@given(VALUES)
@example(-0.0)
@example(1e308)
@example("\u2028\x00\x7f\\ud800")  # a backslash and letters, not an escape
@example(10**4299)
def test_values_come_out_as_they_went_in(value: Any) -> None:
    assert is_same(decode_value(encode_value(value)), value)


@pytest.mark.slow
@given(st.lists(VALUES).map(tuple), st.dictionaries(TEXT, VALUES))
@example((), {})
@example(({"args": [1], "kwargs": {}},), {})
@example(([],), {})
def test_calls_come_out_as_they_went_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert is_same(decode_call(encode_call(args, kwargs)), (args, by_name(kwargs)))


def test_the_order_in_which_arguments_are_named_makes_no_others() -> None:
    assert encode_call((), {"b": {"d": 1, "c": 2}, "a": 3}) == encode_call(
        (), {"a": 3, "b": {"d": 1, "c": 2}}
    )


@given(st.binary())
@example(b"")
@example(b"\x00")
@example(b"[1]")
def test_bytes_pass_untouched(data: bytes) -> None:
    assert decode_value(encode_value(data)) == data
    assert decode_call(encode_call((data,), {})) == ((data,), {})
    assert encode_call((data,), {})[1:] == data


@given(VALUES, VALUES)
@example([], b"")
@example("", b'""')
def test_no_two_values_share_their_bytes(one: Any, other: Any) -> None:
    assert is_same(one, other) or encode_value(one) != encode_value(other)


def test_the_stored_form_does_not_change() -> None:
    """Jobs outlive the version that stored them."""
    assert encode_call((), {}) == b""
    assert encode_call(("é", 1.5), {}) == '["é",1.5]'.encode()
    assert encode_call(("a",), {"n": None}) == b'{"args":["a"],"kwargs":{"n":null}}'
    assert encode_call((b"\xff",), {}) == b"\x00\xff"
    assert encode_value(None) == b"null"


def test_what_arrives_as_its_plainer_kin() -> None:
    value = {"t": (1, (2,)), "p": Point(1, 2), "l": Level.HIGH, "o": OrderedDict(a=1)}
    arrived = decode_value(encode_value(value))
    assert is_same(arrived, {"t": [1, [2]], "p": [1, 2], "l": 3, "o": {"a": 1}})


# --- refused at the sender ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1}, "set cannot be encoded"),
        (decimal.Decimal("1.5"), "Decimal cannot be encoded"),
        (datetime.date(2024, 1, 1), "date cannot be encoded"),
        (object(), "object cannot be encoded"),
        (len, "builtin_function_or_method cannot be encoded"),
        (b"x", "bytes must be the only value"),
        (bytearray(b"x"), "bytearray cannot be encoded"),
        (math.nan, "nan is not JSON"),
        (-math.inf, "-inf is not JSON"),
        ("a\ud800", "'a\\\\ud800' has a lone surrogate at offset 1"),
        ({"\udc00": 1}, "'\\\\udc00' has a lone surrogate at offset 0"),
        ({1: 2}, "a key is int, expected str"),
        ({None: 2}, "a key is NoneType, expected str"),
        pytest.param(
            TOO_LONG, "an integer with more digits than the interpreter converts", id="digits"
        ),
    ],
)
def test_a_refusal_says_where_and_why(value: Any, problem: str) -> None:
    cases: list[tuple[Callable[[], bytes], str]] = [
        (lambda: encode_call(({"a": [0, 1, 2, value]},), {}), "$.args[0].a[3]"),
        (lambda: encode_call((1,), {"b": {"c d": value}}), "$.kwargs.b['c d']"),
        (lambda: encode_call((0, value), {}), "$.args[1]"),
        (lambda: encode_value([value]), "$[0]"),
    ]
    for encode, path in cases:
        with pytest.raises(PayloadEncodingError) as caught:
            encode()
        assert (caught.value.path, caught.value.problem) == (path, problem)
        assert str(caught.value).isprintable()


def test_two_bytes_arguments_are_refused() -> None:
    with pytest.raises(PayloadEncodingError, match="only value"):
        encode_call((b"a", b"b"), {})
    with pytest.raises(PayloadEncodingError, match="only value"):
        encode_call((b"a",), {"b": 1})


def test_circles_are_called_by_their_name() -> None:
    ring: list[Any] = []
    ring.append({"again": ring})
    with pytest.raises(PayloadEncodingError) as caught:
        encode_call((ring,), {})
    assert (caught.value.path, caught.value.problem) == ("$.args[0][0].again", "circular")


def test_the_same_thing_twice_is_no_circle() -> None:
    twice = [1]
    assert decode_value(encode_value([twice, twice])) == [[1], [1]]


def test_depth_has_a_limit_on_both_sides() -> None:
    edge, beyond = nested(DEPTH_MAX), nested(DEPTH_MAX + 1)
    assert decode_value(encode_value(edge)) == edge
    with pytest.raises(PayloadEncodingError, match="deeper than 100"):
        encode_value(beyond)
    with pytest.raises(PayloadEncodingError, match="deeper than 100"):
        decode_value(json.dumps(beyond).encode())
    with pytest.raises(PayloadEncodingError, match="deeper than 100"):
        decode_value(b"[" * 200_000 + b"]" * 200_000)  # deeper than the parser's own stack
    many: list[Any] = [[]] * 1000 + ["[" * 1000]
    assert decode_value(encode_value(many)) == many


@given(ANYTHING)
def test_encoding_raises_its_own_error_only(value: Any) -> None:
    with typed():
        decode_value(encode_value(value))
    with typed():
        decode_call(encode_call((1, value), {}))
    with typed():
        decode_call(encode_call((), {"a": value}))


# --- refused at the receiver ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Expecting value at offset 0"),
        (b"NaN", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"1e999", "1e999 is beyond the range of a float"),
        (b"-1" + b"0" * 400 + b".0", "is beyond the range of a float"),
        (b'{"a":1,"b":2,"a":3}', "duplicate key 'a'"),
        (b'[{"x":{"a":1,"\\u0061":1}}]', "duplicate key 'a'"),
        (b'"\\ud800"', "'\\\\ud800' has a lone surrogate at offset 0"),
        (b'{"\\uDFFF":1}', "'\\\\udfff' has a lone surrogate at offset 0"),
        (b'"\xed\xa0\x80"', "not UTF-8 at offset 1"),
        (b'\xef\xbb\xbf"bom"', "Expecting value at offset 0"),
        (b"1" * 4301, "an integer with more digits than the interpreter converts"),
        (b"[1] [2]", "more than one value, at offset 3"),
        (b"[1,]", ""),
        (b"[1", ""),
        (b"\x02abc", "Expecting value at offset 0"),
        (b"\x01abc", "its head cannot be read"),
        (b"\x01ABC\n1", "its head cannot be read"),
        (b"\x01 0\n1", "its head cannot be read"),
        (b"\x01" + b"a" * 33 + b"\n1", "its head cannot be read"),
        (b"\x01 2\n\x01 2\n1", "a head behind a head"),
        (b"\x01abc\n1", "1 bytes made by the codec 'abc', which no handler here has"),
    ],
)
def test_foreign_bytes_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(PayloadEncodingError) as caught:
        decode_value(data)
    assert problem in caught.value.problem
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "data",
    [
        b"1",
        b"null",
        b'"a"',
        b"{}",
        b'{"args":[]}',
        b'{"args":[],"kwargs":[]}',
        b'{"args":{},"kwargs":{}}',
        b'{"args":[],"kwargs":{},"more":1}',
    ],
)
def test_what_is_no_call_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadEncodingError, match="not the arguments of a call"):
        decode_call(data)


def test_a_surrogate_pair_is_one_character() -> None:
    assert decode_value(b'"\\ud83d\\ude00"') == "\U0001f600"


@given(st.binary() | st.text('[]{}",:\\ud8eE+-.019NaInfity').map(str.encode))
def test_decoding_raises_its_own_error_only(data: bytes) -> None:
    for decode in (decode_value, decode_call):
        with typed():
            decode(data)


@given(VALUES, st.data())
def test_damaged_bytes_raise_the_same_error(value: Any, data: st.DataObject) -> None:
    good = bytearray(encode_value(value))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with typed():
        decode_call(bytes(good))


# --- size, and the user's codec -------------------------------------------------------------


def test_size_has_a_limit() -> None:
    check_size("arguments", b"x" * 10, 10)
    with pytest.raises(PayloadTooLarge) as caught:
        check_size("arguments", b"x" * 11, 10)
    error = caught.value
    assert (error.what, error.size_bytes, error.size_bytes_max) == ("arguments", 11, 10)


@settings(max_examples=30)
@given(st.lists(VALUES).map(tuple), st.dictionaries(TEXT, VALUES), VALUES)
def test_a_codec_may_be_given(args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
    codec = Custom()
    assert is_same(decode_call(encode_call(args, kwargs, codec), codec), (args, by_name(kwargs)))
    assert is_same(decode_value(encode_value(value, codec), codec), value)


def test_a_codec_does_not_hide_what_was_stored_before_it() -> None:
    assert decode_call(encode_call((1,), {"a": 2}), Custom()) == ((1,), {"a": 2})
    assert decode_call(encode_call((b"x",), {}), Custom()) == ((b"x",), {})


def test_two_keys_of_one_text_are_refused() -> None:
    """They would be a key twice, which nobody reads."""
    assert encode_value({Own("a"): 1, Own("b"): 2}) == b'{"a":1,"b":2}'
    twice = {Own("a"): 1, Own("a"): 2}
    with pytest.raises(PayloadEncodingError, match="two of its keys are 'a' on the wire"):
        encode_value([twice])
    with pytest.raises(PayloadEncodingError, match="two of its keys are 'a' on the wire"):
        encode_call((), {"k": [twice]})


def test_json_of_somebody_is_read_as_strictly_as_what_is_stored() -> None:
    assert read_json(' {"a": [1]}\n') == {"a": [1]}
    for text, said in (
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ("[NaN]", "NaN is not JSON"),
        ("[1] [2]", "more than one value"),
        ("", "Expecting value"),
        ('["\udcff"]', "a lone surrogate at offset 2"),
        ("[" * 101 + "]" * 101, "deeper than 100"),
    ):
        with pytest.raises(PayloadEncodingError) as caught:
            read_json(text)
        assert said in caught.value.problem


@pytest.mark.parametrize("value", [None, b"", b"secret", True, []])
def test_a_codec_is_given_every_value_also_bytes_and_none(value: Any) -> None:
    codec = Custom()
    call, result = encode_call((value,), {}, codec), encode_value(value, codec)
    for data in (call, result):
        assert head_of(data)[0] == "backwards"
        assert b"secret" not in data
    assert decode_call(call, codec) == ((value,), {})
    assert is_same(decode_value(result, codec), value)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("nobody shall read it")


def test_what_a_codec_raises_may_be_unprintable() -> None:
    codec: Any = Custom()
    codec.encode = codec.decode = lambda _: (_ for _ in ()).throw(Mute())
    said = "the codec raised Mute: its text cannot be had"
    for call in (lambda: encode_value(1, codec), lambda: decode_value(b"\x01backwards\n1", codec)):
        with pytest.raises(PayloadEncodingError, match=said) as caught:
            call()
        assert "mend the codec" in str(caught.value)
        assert "strict JSON" not in str(caught.value)


@pytest.mark.parametrize("made", ["text", None, 5, [1]])
def test_a_codec_that_returns_no_bytes_is_named_as_such(made: Any) -> None:
    codec: Any = Custom()
    codec.encode = {1: made}.get
    kind = "None" if made is None else type(made).__name__
    with pytest.raises(PayloadEncodingError, match=f"codec returned {kind}, expected bytes"):
        encode_value(1, codec)
    codec.encode = {1: memoryview(b"1")}.get
    assert decode_value(encode_value(1, codec), codec) == 1


def test_what_a_codec_raises_is_the_cause() -> None:
    with pytest.raises(PayloadEncodingError, match="TypeError") as caught:
        encode_value(object(), Custom())
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(PayloadEncodingError, match="JSONDecodeError"):
        decode_value(b"\x01backwards\nabc", Custom())


def test_a_codec_is_stored_by_name_and_one_of_another_name_does_not_try() -> None:
    assert encode_value([1], Custom()) == b"\x01backwards\n]1["
    assert head_of(encode_value([1], Custom())) == ("backwards", 1, b"]1[")
    with pytest.raises(CodecMissing, match="3 bytes made by the codec 'other'") as caught:
        decode_call(b"\x01other\n]1[", Custom())
    assert caught.value.codec == "other"


def test_a_version_stands_before_what_is_as_always() -> None:
    for data in (b"", b"[1]", b"\x00\xff"):
        later = head(version=2) + data
        assert later == b"\x01 2\n" + data
        assert head_of(later) == ("", 2, data)
        assert decode_call(later) == decode_call(data)
    assert head() == b""
    assert head_of(b"[1]") == ("", 1, b"[1]")
    assert head_of(head("a", 17) + b"x") == ("a", 17, b"x")


def test_what_a_codec_has_made_counts_as_a_call_where_the_codec_is_not() -> None:
    """Whoever fetches it cannot look into it."""
    assert is_call(b"\x01other\n]1[")
    assert is_call(b"\x01 2\n[1]")
    assert not is_call(b"\x01other")
    assert not is_call(b"\x01 2\n{}")
