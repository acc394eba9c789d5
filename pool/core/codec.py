"""Arguments, results, states and messages as bytes: strict JSON, or bytes as they are.

The first byte says what follows:

    (no byte)   a call without arguments
    00          one `bytes` value, untouched
    01          a head, `01 NAME VERSION 0a`: made by the codec of this name, from arguments of this
                version; without a name the rest is as above and below, ` VERSION` is left out if 1
    [ { " ...   JSON; a call is `["17.png"]`, or `{"args": ["17.png"], "kwargs": {"size": 64}}`

Strict means that whatever is accepted arrives as the same value on every machine: no NaN or
infinity, no duplicate keys, no keys but text, no lone surrogates, no depth beyond `DEPTH_MAX`, no
integer beyond the interpreter's own limit of digits (4300 unless it is changed for the whole
process).  Two things arrive as their plainer kin: a tuple as a list, and an instance of a subclass
(an `IntEnum`, a `defaultdict`, a numpy `float64`) as its base.

The receiver refuses what the sender would have refused: Redis may hold anybody's bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol

from pool.core.shape import DEPTH_MAX, SCALARS, has_text_keys, is_encodable, to_json
from pool.errors import CodecMissing, PayloadEncodingError, PayloadTooLarge, name_of, shown

_PATH_CHARS_MAX: Final = 200  # to what is wrong in a value
_BYTES: Final = b"\x00"
_NOT_AMONG: Final = b"bytes cannot stand among other arguments"  # `lua/lib/channel.lua` says so
HEADED: Final = b"\x01"
_CALL: Final = frozenset({"args", "kwargs"})
CODEC_NAME: Final = r"[a-z0-9_.-]{1,32}"
VERSION_MAX: Final = 999_999
_HEAD: Final = re.compile(rf"\x01({CODEC_NAME}|)(?: ([1-9]\d{{0,5}}))?\n".encode())


class Codec(Protocol):
    """A user's own encoding, the same on every node of the pool: `@handlers.job(codec=...)`.

    For a call it is given `{"args": [...], "kwargs": {...}}`, else the value itself, `bytes` and
    None as any other.  A call without arguments has nothing to encode.  What the codec raises
    reaches the caller as the cause of a `PayloadEncodingError`.

    Equal calls must be equal bytes, in every process: an idempotency key, `attach`, a batch and a
    plan compare bytes.  A codec that cannot promise that (it encrypts with a nonce, or writes sets
    in the order of their hashes) says so by an attribute `is_canonical = False`.  All that compares
    then refuses the calls of its handlers, instead of taking each for another one.
    """

    @property
    def name(self) -> str:
        """What is stored with what it makes: 1 to 32 of `a-z 0-9 _ . -`."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the value of these bytes."""
        ...


# --- calls and values -----------------------------------------------------------------------


def encode_call(args: Sequence[Any], kwargs: dict[str, Any], codec: Codec | None = None) -> bytes:
    """Return a job's arguments as bytes; without a codec one `bytes` argument passes untouched.

    Raises:
        PayloadEncodingError: Something in them cannot be encoded; `path` says where it is.
    """
    if not kwargs:
        if not args:
            return b""
        if codec is None and len(args) == 1 and issubclass(type(args[0]), bytes):
            return b"".join((_BYTES, args[0]))
    elif len(kwargs) > 1:  # whoever names them in another order gives the same arguments
        kwargs = dict(sorted(kwargs.items()))
    if codec is not None:
        return _encode_custom({"args": list(args), "kwargs": kwargs}, codec)
    value: Any
    value, path = ({"args": args, "kwargs": kwargs}, "$") if kwargs else (args, "$.args")
    return _encode_given(value, path)


def decode_call(data: bytes, codec: Codec | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a job.

    Raises:
        PayloadEncodingError: The bytes are not what `encode_call()` makes.
        CodecMissing: Another codec than this one made them.
    """
    if data[:1] == HEADED:
        name, _, rest = head_of(data)
        data = data if name else rest
    if not data:
        return (), {}
    if data == _NOT_AMONG:
        _refuse("its first argument is bytes, or what a codec made: these stand alone or nowhere")
    call = decode_value(data, codec)
    if isinstance(call, list):
        return tuple(call), {}
    if isinstance(call, bytes):
        return (call,), {}
    if isinstance(call, dict) and call.keys() == _CALL:
        args, kwargs = call["args"], call["kwargs"]
        if isinstance(args, (list, tuple)) and isinstance(kwargs, dict) and has_text_keys(kwargs):
            return tuple(args), kwargs
    raise PayloadEncodingError(path="$", problem="not the arguments of a call")


def is_call(data: object) -> bool:
    """Say whether this is what `encode_call()` makes, as far as that can be seen without codec."""
    try:
        return isinstance(data, bytes) and decode_call(data) is not None
    except CodecMissing:
        return True
    except PayloadEncodingError:
        return False


def encode_value(value: Any, codec: Codec | None = None) -> bytes:
    """Return a result, a state or a message as bytes; without a codec `bytes` passes untouched.

    Raises:
        PayloadEncodingError: Something in it cannot be encoded; `path` says where it is.
    """
    if codec is not None:
        return _encode_custom(value, codec)
    if value is None:
        return b"null"  # what most handlers return
    if issubclass(type(value), bytes):
        return b"".join((_BYTES, value))
    return _encode_json(value)


def encode_message(value: Any) -> bytes:
    """Return what a caller sends as bytes, like `encode_value()`.

    Raises:
        PayloadEncodingError: Also for what the value's own code raises; of a handler's result that
            is a failed attempt.
    """
    return encode_value(value) if issubclass(type(value), bytes) else _encode_given(value)


def decode_value(data: bytes, codec: Codec | None = None) -> Any:
    """Return the value that `encode_value()` was given.

    Raises:
        PayloadEncodingError: The bytes are not what `encode_value()` makes.
        CodecMissing: Another codec than this one made them.
    """
    match data[:1]:
        case b"\x00":
            return data[1:]
        case b"\x01":
            name, _, rest = head_of(data)
            if name:
                return _decode_custom(name, rest, codec)
            if rest[:1] == HEADED:
                _refuse("a head behind a head")
            return decode_value(rest)
        case _:
            return _decode_json(data)


def read_json(text: str) -> Any:
    """Return the value that somebody has written as JSON, by the rules of what is stored.

    Raises:
        PayloadEncodingError: It is no strict JSON: it has a key twice, say.
    """
    try:
        return _decode_json(text.strip().encode())
    except UnicodeEncodeError as error:
        _refuse(f"a lone surrogate at offset {error.start}", error)


def head_of(data: bytes) -> tuple[str, int, bytes]:
    """Return by which codec something was made (empty: the usual way), its version, and the rest.

    Raises:
        PayloadEncodingError: Its head cannot be read.
    """
    if data[:1] != HEADED:
        return "", 1, data
    match = _HEAD.match(data)
    if match is None:
        _refuse("its head cannot be read")
    return match[1].decode(), int(match[2] or 1), data[match.end() :]


def head(codec: str = "", version: int = 1) -> bytes:
    """Return what stands before what a codec has made, or before arguments of a later version."""
    if not codec and version == 1:
        return b""
    return f"\x01{codec}{f' {version}' if version > 1 else ''}\n".encode()


def check_size(what: str, data: bytes, size_bytes_max: int) -> None:
    """Refuse what is larger than the pool takes, before it is sent.

    Raises:
        PayloadTooLarge: With both sizes.
    """
    if len(data) > size_bytes_max:
        raise PayloadTooLarge(what=what, size_bytes=len(data), size_bytes_max=size_bytes_max)


# --- the user's codec -----------------------------------------------------------------------


def _encode_custom(value: Any, codec: Codec) -> bytes:
    try:
        stem = head(codec.name)
        made: Any = codec.encode(value)
    except Exception as error:
        raise _codec_fault(error) from error
    if not issubclass(type(made), (bytes, bytearray, memoryview)):
        kind = "None" if made is None else name_of(type(made))
        raise PayloadEncodingError(path="$", problem=f"the codec returned {kind}, expected bytes")
    return b"".join((stem, made))


def _decode_custom(name: str, data: bytes, codec: Codec | None) -> Any:
    if codec is None or codec.name != name:
        problem = f"{len(data)} bytes made by the codec {name!r}, which no handler here has"
        raise CodecMissing(path="$", problem=problem, codec=name)
    try:
        return codec.decode(data)
    except PayloadEncodingError:
        raise
    except Exception as error:
        raise _codec_fault(error) from error


def _codec_fault(error: Exception) -> PayloadEncodingError:
    try:
        text = shown(str(error))
    except Exception:  # noqa: BLE001 - its text is the codec's own, too
        text = "its text cannot be had"
    problem = f"the codec raised {name_of(type(error))}: {text}"
    return PayloadEncodingError(path="$", problem=problem)


# --- encoding -------------------------------------------------------------------------------


def _encode_given(value: Any, path: str = "$") -> bytes:
    try:
        return _encode_json(value, path)
    except PayloadEncodingError:
        raise
    except Exception as error:  # of the caller's own code
        problem = f"{name_of(type(error))} was raised by it"
        raise PayloadEncodingError(path=path, problem=problem) from error


def _encode_json(value: Any, path: str = "$") -> bytes:
    problem = "cannot be encoded"
    if type(value) in SCALARS or is_encodable(value, DEPTH_MAX):
        try:
            return to_json(value).encode()  # into UTF-8: fails for lone surrogates
        except ValueError as error:  # UnicodeEncodeError is one
            problem = shown(str(error))
    # Looking for the place costs more than encoding, so it is done only now.
    path, problem = next(_faults(value, path, ()), (path, problem))
    if len(path) > _PATH_CHARS_MAX:
        half = _PATH_CHARS_MAX // 2
        path = f"{path[:half]}...{path[-half:]}"
    raise PayloadEncodingError(path=path, problem=problem)


# --- decoding -------------------------------------------------------------------------------


def _decode_json(data: bytes) -> Any:
    try:
        text = data.decode()
        value, end = _from_json(text)
    except UnicodeDecodeError as error:
        _refuse(f"not UTF-8 at offset {error.start}", error)
    except json.JSONDecodeError as error:
        _refuse(f"{error.msg} at offset {error.pos}", error)
    except ValueError as error:
        _refuse("an integer with more digits than the interpreter converts", error)
    except RecursionError as error:
        _refuse(f"deeper than {DEPTH_MAX}", error)
    if end != len(text):
        _refuse(f"more than one value, at offset {end}")
    # Few brackets cannot nest deeply, and without escapes UTF-8 cannot spell a surrogate.
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX and not is_encodable(value, DEPTH_MAX):
        _refuse(f"deeper than {DEPTH_MAX}")
    if b"\\u" in data:
        _encode_json(value)
    return value


def _refuse(problem: str, cause: Exception | None = None) -> NoReturn:
    raise PayloadEncodingError(path="$", problem=problem) from cause


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # Not `count()` of each name: of 30,000 that would take a minute.
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        _refuse(f"duplicate key {shown(twice)!r}")
    return value


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        _refuse(f"{shown(text)} is beyond the range of a float")
    return value


def _constant(text: str) -> NoReturn:
    _refuse(f"{text} is not JSON")


_from_json = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_constant=_constant
).raw_decode


# --- finding the fault ----------------------------------------------------------------------


def _faults(value: Any, path: str, within: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Yield where in the value something is refused, and why; `within` are the ids around it."""
    match value:
        case None | bool():
            return
        case str():
            yield from _text_faults(value, path)
        case int():
            try:
                int.__repr__(value)
            except ValueError:
                yield path, "an integer with more digits than the interpreter converts"
        case float():
            if not math.isfinite(value):
                yield path, f"{float.__float__(value)!r} is not JSON"
        case dict() | list() | tuple() if id(value) in within:
            yield path, "circular"
        case dict() | list() | tuple() if len(within) == DEPTH_MAX:
            yield path, f"deeper than {DEPTH_MAX}"
        case dict():
            texts = [str.__str__(key) for key in value if isinstance(key, str)]
            if len({*texts}) < len(texts):
                [(twice, _)] = Counter(texts).most_common(1)
                yield path, f"two of its keys are {shown(twice)!r} on the wire"
            for key, item in value.items():
                if not isinstance(key, str):
                    yield path, f"a key is {name_of(type(key))}, expected str"
                    continue
                yield from _text_faults(key, path)
                yield from _faults(item, f"{path}{_step(key)}", (*within, id(value)))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _faults(item, f"{path}[{index}]", (*within, id(value)))
        case bytes():
            yield path, "bytes must be the only value"
        case _:
            yield path, f"{name_of(type(value))} cannot be encoded"


def _text_faults(text: str, path: str) -> Iterator[tuple[str, str]]:
    try:
        str.encode(text)
    except UnicodeEncodeError as error:
        yield path, f"{shown(str.__str__(text))!r} has a lone surrogate at offset {error.start}"


def _step(key: str) -> str:
    plain = str.__str__(key)
    text = shown(plain)
    return f".{text}" if text == plain and text.isidentifier() else f"[{text!r}]"
