"""The codec `msgspec`: MessagePack, typed and fast.  It needs the extra of its name.

    call     {"args": [], "kwargs": {...}}: all arguments by name
    value    as it is

What a handler's annotations say, msgspec carries out in C while it decodes.  It does not look at
types when it encodes, so whoever dispatches decodes once, and hears of what would not arrive; where
an annotation holds classes, or says nothing, what came back is compared too: see `proof.py`.  What
came back is what is sent: equal values are equal bytes, whatever types they had, and a set has its
one order (`canonical.py`).  pydantic's models travel as they do in JSON.

Who knows no annotations reads the same bytes in terms of JSON: text for a datetime, base 64 for
bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Self, Union, get_args, get_origin, get_type_hints

import attrs

from pool.errors import CodecMissing, ConfigError, name_of
from pool.jobs.typed.annotations import NOTHING, shape_of
from pool.jobs.typed.canonical import ordered
from pool.jobs.typed.converters import Shape, Wrong
from pool.jobs.typed.proof import check, check_read

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
    has_sets: bool
    is_loose: bool  # some may be given where it speaks of a list

    @classmethod
    def of(cls, problem: str, kind: Any, hints: Iterable[Any], *, has_sets: bool) -> Self:
        """Make it.

        Raises:
            ConfigError: The type is not one of msgspec's, or that is not installed.
        """
        msgspec = _package()
        if msgspec is None:
            must = "the codec 'msgspec' needs the extra: pip install 'keyed-pool[msgspec]'"
            raise ConfigError(setting="codec", problem=must)
        try:
            encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
            decoder = msgspec.msgpack.Decoder(kind, dec_hook=_from_wire)
            return cls(kind, encoder, decoder, has_sets, any(map(_is_loose, hints)))
        except (
            TypeError,
            NameError,
        ) as error:  # a name that is not there at run time, within a class
            raise ConfigError(setting="handler", problem=f"{problem}: {error}") from None

    def pack(self, value: Any) -> tuple[bytes, Any, bool]:
        """Return a value as bytes, what these are read as, and whether its own bytes are others."""
        # It does not look itself at what it takes apart.
        given = self._with_sets_ordered(value) if self.is_loose else value
        try:
            first: bytes = self.encoder.encode(given)
        except (OverflowError, NotImplementedError, UnicodeEncodeError) as error:
            raise Wrong(f"is refused by msgspec: {error}") from error
        back = self.unpack(first)
        data: bytes = self.encoder.encode(self._with_sets_ordered(back))
        return data, back, data != first

    def _with_sets_ordered(self, value: Any) -> Any:
        if not self.has_sets:
            return value
        made = _package().to_builtins(value, builtin_types=_ITS_OWN, enc_hook=_to_wire)
        return ordered(value, made)

    def unpack(self, data: bytes) -> Any:
        try:
            return self.decoder.decode(data)
        except _package().ValidationError as error:
            raise Wrong(f"is refused by msgspec: {error}") from error

    def converted(self, value: Any) -> Any:
        """Return what is there in terms of JSON as this type."""
        msgspec = _package()
        try:
            found = msgspec.convert(value, self.kind, str_keys=True, dec_hook=_from_wire)
        except msgspec.ValidationError as error:
            raise Wrong(f"is refused by msgspec: {error}") from error
        check_read(value, found)
        return found


_ITS_OWN: Final = (bytes, bytearray, memoryview, datetime)  # what MessagePack has beside JSON
_SETS: Final = frozenset({"SetType", "FrozenSetType"})
_ARRAYS: Final = frozenset({"ListType", "VarTupleType", "TupleType"})
# What msgspec takes as such or not at all: nothing of it is lost on the way.
_PLAIN: Final = frozenset(
    f"{name}Type"
    for name in (
        *("None", "Bool", "Int", "Float", "Str", "Bytes", "DateTime", "Time", "Date", "TimeDelta"),
        *("UUID", "Decimal", "Enum", "Literal", "List", "Set", "FrozenSet", "VarTuple", "Tuple"),
        *("Dict", "Union"),
    )
)


# A whole number that no float equals; keys that are one where they arrive.
_MAY_LOSE: Final = frozenset({"FloatType", "DictType"})


def _read(hint: Any) -> Any:
    """Return an annotation, or `Any` where it says nothing that could be read."""
    return Any if isinstance(hint, str) or hint in NOTHING else hint


def _parts(info: Any) -> Iterator[Any]:
    """Yield what msgspec makes of an annotation, and of all that it consists of."""
    inspected = _package().inspect
    left, seen = [info], set[int]()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, inspected.Type):
            yield each
        for name in getattr(each, "__struct_fields__", ()):
            found = getattr(each, name)
            found = found if isinstance(found, tuple) else (found,)
            left += [part for part in found if isinstance(part, (inspected.Type, inspected.Field))]


@attrs.frozen
class _Look:
    """What an annotation says."""

    unfit: str = ""  # what nobody can send
    is_unchecked: bool = False  # it has constraints that msgspec does not know
    is_compared: bool = False  # each value is read back and compared before it is sent
    may_lose: bool = False  # a value is so, too, if the first reading gives other bytes
    has_sets: bool = False  # a value may hold sets


def _look(hint: Any) -> _Look:
    package = _package()
    if package is None:
        return _Look()
    try:
        parts = list(_parts(package.inspect.type_info(hint)))
        is_unchecked = any(map(_has_constraints, (hint, *_fields_of(parts))))
    except Exception:  # noqa: BLE001 - of what cannot be looked at, such as a name within a class
        return _Look(is_compared=True, has_sets=True)
    unfit = (each.cls for each in parts if type(each).__name__ == "CustomType")
    names = [name_of(each) for each in unfit if not hasattr(each, "__pydantic_validator__")]
    names += [name for each in parts for name in _unwritten(each)]
    kinds = [type(each).__name__ for each in parts]
    has_sets = not _SETS.isdisjoint(kinds) or _is_loose(hint)
    # It writes a set where a list must be, and reads that as one: of the outermost a look tells.
    is_nested = not _ARRAYS.isdisjoint(kinds[1:])
    is_compared = (is_nested and not has_sets) or not {*kinds} - {"Metadata"} <= _PLAIN
    may_lose = not _MAY_LOSE.isdisjoint(kinds) or any(map(_has_moments, parts))
    return _Look(names[0] if names else "", is_unchecked, is_compared, may_lose, has_sets)


def _look_at(problem: str, hint: Any) -> _Look:
    """Return what an annotation says.

    Raises:
        ConfigError: It says what msgspec would not look at.
    """
    look = _look(hint)
    if look.is_unchecked:
        why = "msgspec does not check pydantic's Field: say it by msgspec.Meta, or use codec='json'"
        raise ConfigError(setting="handler", problem=f"{problem}: {why}")
    return look


def _has_moments(part: Any) -> bool:
    """Whether it is a set of datetimes, of which two may arrive as one."""
    if type(part).__name__ not in _SETS:
        return False
    return "DateTimeType" in (type(each).__name__ for each in _parts(part.item_type))


def _unwritten(part: Any) -> Iterator[str]:
    """Yield what a class needs and msgspec does not write: private attributes of attrs."""
    kind = getattr(part, "cls", None)
    if kind is not None and attrs.has(kind):
        name = name_of(get_origin(kind) or kind)
        for field in part.fields:
            if field.required and field.name.startswith("_"):
                yield f"{name}, whose private {field.name} msgspec does not write"


def _fields_of(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield the annotations of the fields of classes that msgspec reads itself."""
    for given in (getattr(part, "cls", None) for part in parts):
        kind = get_origin(given) or given
        if isinstance(kind, type) and not hasattr(kind, "__pydantic_validator__"):
            yield from get_type_hints(kind, include_extras=True).values()


def _has_constraints(hint: Any) -> bool:
    """Whether pydantic is to check it, or a part of it."""
    marks = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return any(map(_is_constraint, marks)) or any(map(_has_constraints, get_args(hint)))


def _is_constraint(mark: Any) -> bool:
    home = type(mark).__module__.partition(".")[0]
    # A `Field` may just describe.
    return home == "annotated_types" or (home == "pydantic" and getattr(mark, "metadata", True))


def _is_loose(hint: Any) -> bool:
    """Whether a set may be given where msgspec itself speaks of a list."""
    origin = get_origin(hint) or hint
    return origin is Collection or origin is Iterable or any(map(_is_loose, get_args(hint)))


# What goes as its base does, whatever its own methods say.
_BASES: Final[dict[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: b"".join([value]),
}


def _to_wire(value: Any) -> Any:
    kind: Any = type(value)
    for base, plain in _BASES.items():
        if issubclass(kind, base):
            return plain(value)
    if not hasattr(kind, "__pydantic_validator__"):
        raise NotImplementedError(f"{kind.__name__} cannot be encoded")
    return _model(kind).to_wire(value)


def _from_wire(kind: Any, value: Any) -> Any:
    if not hasattr(kind, "__pydantic_validator__"):
        raise NotImplementedError(f"{kind} cannot be decoded")
    return _model(kind).from_wire(value)


def _is_astray(value: Any, takes_sets: bool) -> bool:
    """Whether it is a set where a list must be."""
    return not takes_sets and issubclass(type(value), (set, frozenset))


@lru_cache(256)
def _model(kind: Any) -> Shape:
    return shape_of(kind)


@attrs.frozen(eq=False)
class MsgspecValue:
    """Of a result or a state."""

    typed: _Typed
    is_compared: bool
    may_lose: bool
    name: str = NAME

    @classmethod
    def of(cls, problem: str, hint: Any) -> Self:
        """Make it; raises as `_Typed.of()`."""
        hint = _read(hint)
        look = _look_at(problem, hint)
        if look.unfit:
            raise ConfigError(setting="handler", problem=f"{problem}: {look.unfit}")
        typed = _Typed.of(problem, hint, [hint], has_sets=look.has_sets)
        return cls(typed, look.is_compared, look.may_lose)

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes."""
        data, back, is_other = self.typed.pack(value)
        is_compared = self.is_compared or (is_other and self.may_lose)
        if is_compared or _is_astray(value, self.typed.has_sets):
            check(value, back)
        return data

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
    looks: Mapping[str, _Look]
    hints: Mapping[str, Any]
    name: str = NAME

    @classmethod
    def of(cls, handler: str, signature: inspect.Signature, hints: Mapping[str, Any]) -> Self:
        """Make it; raises as `_Typed.of()`."""
        msgspec = _package()
        unset = msgspec.UNSET if msgspec is not None else None
        fields: list[Any] = []
        looks: dict[str, _Look] = {}
        for each in signature.parameters.values():
            hint = _read(hints[each.name])
            look = looks[each.name] = _look_at(f"{handler}: its {each.name}", hint)
            if look.unfit and each.default is each.empty:
                problem = f"{handler}: nothing can be given for its {each.name}: {look.unfit}"
                raise ConfigError(setting="handler", problem=problem)
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
        has_sets = any(look.has_sets for look in looks.values())
        typed = _Typed.of(handler, kind, hints.values(), has_sets=has_sets)
        return cls(signature, typed, unset, looks, hints)

    def encode(self, value: Any) -> bytes:
        """Return a call as bytes."""
        call = self._by_name(value["args"], value["kwargs"])
        data, back, is_other = self.typed.pack(call)
        for name, given in call["kwargs"].items():
            look = self.looks[name]
            is_compared = look.is_compared or (is_other and look.may_lose)
            if is_compared or _is_astray(given, look.has_sets):
                try:
                    check(given, getattr(back.kwargs, name))
                except Wrong as error:
                    raise Wrong(error.problem, f" has {name}{error.path}, which") from None
        return data

    def decode(self, data: bytes) -> Any:
        """Return the call of these bytes."""
        return self._call(self.typed.unpack(data))

    def convert(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return the call of what another codec has made."""
        return self._call(self.typed.converted(self._by_name(args, kwargs)))

    def check_behind(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that lacks its first argument, in terms of JSON, for what else is in it."""
        call = self._by_name((None, *args), kwargs)["kwargs"]
        first = next(iter(call))
        fields = [
            (first, Any),
            *((each, hint) for each, hint in self.hints.items() if each in call),
        ]
        kind = _package().defstruct("Behind", dict(reversed(fields)).items())
        attrs.evolve(self.typed, kind=kind).converted(call)

    def _by_name(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        named = dict(self.signature.bind(*args, **kwargs).arguments)
        return {"args": (), "kwargs": named}

    def _call(self, found: Any) -> dict[str, Any]:
        given = {name: getattr(found.kwargs, name) for name in self.signature.parameters}
        given = {name: value for name, value in given.items() if value is not self.unset}
        bound = inspect.BoundArguments(self.signature, given)
        return {"args": bound.args, "kwargs": bound.kwargs}
