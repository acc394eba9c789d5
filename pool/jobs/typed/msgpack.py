"""The codec `msgspec`: MessagePack, typed and fast.  It needs the extra of its name.

    call     {"args": [], "kwargs": {...}}: all arguments by name
    value    as it is

What a handler's annotations say, msgspec carries out in C while it decodes.  It does not look at
types when it encodes, so whoever dispatches decodes once, and hears of what would not arrive.
pydantic's models travel as they do in JSON.

Who knows no annotations reads the same bytes in terms of JSON: text for a datetime, base 64 for
bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, Self, Union

import attrs

from pool.errors import CodecMissing, ConfigError
from pool.jobs.typed.annotations import shape_of
from pool.jobs.typed.shapes import Wrong

NAME: Final = "msgspec"


def _package() -> Any:
    try:
        import msgspec
    except ImportError:
        return None
    return msgspec


@attrs.frozen
class _Untyped:
    """As it is read without annotations."""

    name: str = NAME

    def encode(self, value: Any) -> bytes:
        """Return a call, or a value, that is in terms of JSON."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        msgspec = _package()
        if msgspec is None:
            problem = f"{len(data)} bytes made by the codec {NAME!r}, which is not installed"
            raise CodecMissing(path="$", problem=problem, codec=NAME)
        return msgspec.to_builtins(msgspec.msgpack.decode(data), str_keys=True)


MSGSPEC: Final = _Untyped()


@attrs.frozen(eq=False)
class _Typed:
    """msgspec's own, for one type."""

    kind: Any
    encoder: Any
    decoder: Any

    @classmethod
    def of(cls, problem: str, kind: Any) -> Self:
        """Make it.

        Raises:
            ConfigError: The type is not one of msgspec's, or that is not installed.
        """
        msgspec = _package()
        if msgspec is None:
            must = "the codec 'msgspec' needs the extra: pip install keyed-pool[msgspec]"
            raise ConfigError(setting="codec", problem=must)
        try:
            encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
            return cls(kind, encoder, msgspec.msgpack.Decoder(kind, dec_hook=_from_wire))
        except TypeError as error:
            raise ConfigError(setting="handler", problem=f"{problem}: {error}") from None

    def pack(self, value: Any) -> bytes:
        data: bytes = self.encoder.encode(value)
        self.unpack(data)  # it does not look itself at what it takes apart
        return data

    def unpack(self, data: bytes) -> Any:
        try:
            return self.decoder.decode(data)
        except _package().ValidationError as error:
            raise Wrong(f"is refused by msgspec: {error}") from error

    def converted(self, value: Any) -> Any:
        """Return what is there in terms of JSON as this type."""
        msgspec = _package()
        try:
            return msgspec.convert(value, self.kind, str_keys=True, dec_hook=_from_wire)
        except msgspec.ValidationError as error:
            raise Wrong(f"is refused by msgspec: {error}") from error


def _to_wire(value: Any) -> Any:
    if not hasattr(type(value), "__pydantic_validator__"):
        raise NotImplementedError(f"{type(value).__name__} cannot be encoded")
    return shape_of(type(value)).to_wire(value)


def _from_wire(kind: Any, value: Any) -> Any:
    if not hasattr(kind, "__pydantic_validator__"):
        raise NotImplementedError(f"{kind} cannot be decoded")
    return shape_of(kind).from_wire(value)


@attrs.frozen(eq=False)
class MsgspecValue:
    """Of a result or a state."""

    typed: _Typed
    name: str = NAME

    @classmethod
    def of(cls, problem: str, hint: Any) -> Self:
        """Make it; raises as `_Typed.of()`."""
        return cls(_Typed.of(problem, hint))

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes."""
        return self.typed.pack(value)

    def decode(self, data: bytes) -> Any:
        """Return the value of these bytes."""
        return self.typed.unpack(data)

    def convert(self, value: Any) -> Any:
        """Return the value of what another codec has made."""
        return self.typed.converted(value)


@attrs.frozen(eq=False)
class MsgspecCall:
    """Of the arguments of one handler."""

    signature: inspect.Signature
    typed: _Typed
    unset: Any
    name: str = NAME

    @classmethod
    def of(cls, handler: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> Self:
        """Make it; raises as `_Typed.of()`."""
        msgspec = _package()
        unset = msgspec.UNSET if msgspec is not None else None
        fields: list[Any] = []
        for each in signature.parameters.values():
            hint = Any if isinstance(hints[each.name], str) else hints[each.name]
            hint = Any if hint is each.empty else hint
            if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                problem = f"{handler}: the codec {NAME!r} gives arguments by name: not {each}"
                raise ConfigError(setting="handler", problem=problem)
            if each.default is each.empty:
                fields.append((each.name, hint))
            elif msgspec is not None:
                fields.append((each.name, Union[hint, msgspec.UnsetType], unset))  # noqa: UP007
        kind = Any
        if msgspec is not None:
            named = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            kind = msgspec.defstruct("Call", [("args", tuple[()]), ("kwargs", named)])
        return cls(signature, _Typed.of(handler, kind), unset)

    def encode(self, value: Any) -> bytes:
        """Return a call as bytes."""
        return self.typed.pack(self._by_name(value["args"], value["kwargs"]))

    def decode(self, data: bytes) -> Any:
        """Return the call of these bytes."""
        return self._call(self.typed.unpack(data))

    def convert(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return the call of what another codec has made."""
        return self._call(self.typed.converted(self._by_name(args, kwargs)))

    def _by_name(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        named = dict(self.signature.bind(*args, **kwargs).arguments)
        return {"args": (), "kwargs": named}

    def _call(self, found: Any) -> dict[str, Any]:
        given = {name: getattr(found.kwargs, name) for name in self.signature.parameters}
        given = {name: value for name, value in given.items() if value is not self.unset}
        bound = inspect.BoundArguments(self.signature, given)
        return {"args": bound.args, "kwargs": bound.kwargs}
