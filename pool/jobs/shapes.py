"""What annotations say of values: how one goes over the wire as JSON, and comes back.

    annotation --shape_of()--> Shape   once, at registration
    value --to_wire--> JSON            where it is sent; refuses what is not of the type
    JSON --from_wire--> value          where it arrives; likewise, whoever has sent it

A shape is plain if both return what they are given: it only looks whether that is what it must be.
Values are taken by their exact type, so that nothing which a subclass adds is lost on the way; but
for text, numbers and containers, which JSON flattens anyway.

Why not a library: the wire must not depend on what an application happens to have installed, and
the caller must be told of a wrong type.  cattrs turns "5" into 5 and does not look at what it takes
apart; msgspec does not, either; pydantic checks both ways, but is ten megabytes that a program of
dataclasses needs for nothing else.  What is theirs is left to them: a pydantic model to pydantic, a
`Struct` to msgspec, and annotations with their constraints.  Neither is imported before an
annotation needs it, and then the application has imported it itself.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import sys
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import attrs

from pool.errors import name_of, shown

Form: TypeAlias = Literal["null", "boolean", "number", "text", "array", "object"]
Convert: TypeAlias = Callable[[Any], Any]
_FORMS: Final[Mapping[type, Form]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "text",
    list: "array",
    dict: "object",
}
ANYTHING: Final[frozenset[Form]] = frozenset(_FORMS.values())


class Wrong(Exception):
    """A value is not what its annotation says: where in it, and why."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem = problem
        self.path = path
        super().__init__(path, problem)

    def within(self, step: str) -> Wrong:
        """Return it as it is told of what the value is a part of."""
        return Wrong(self.problem, step + self.path)


class Unfit(Exception):
    """No value of this type can go over the wire: said where it is registered."""


@attrs.frozen(eq=False)
class Shape:
    """How the values of one annotation travel."""

    name: str  # as errors call it
    forms: frozenset[Form]  # what they are in JSON
    to_wire: Convert
    from_wire: Convert
    is_plain: bool = False
    exact: frozenset[type] = frozenset()  # of plain ones: nothing in such a value must be looked at
    kind: type | None = None  # whose very instances it is for
    takes_bytes: bool = False  # alone, as they are


def wrong(value: object, expected: str) -> Wrong:
    """Say that a value is of another type."""
    return Wrong(f"is {_kind_of(value)}, expected {expected}")


def _kind_of(value: object) -> str:
    return "None" if value is None else name_of(type(value))


def _same(value: Any) -> Any:
    return value


ANY: Final = Shape("Any", ANYTHING, _same, _same, is_plain=True, takes_bytes=True)


# --- what JSON has itself -------------------------------------------------------------------------


def _plain(name: str, forms: Iterable[Form], check: Convert, exact: Iterable[type] = ()) -> Shape:
    return Shape(name, frozenset(forms), check, check, is_plain=True, exact=frozenset(exact))


def _scalar(name: str, form: Form, *kinds: type) -> Shape:
    def check(value: Any) -> Any:
        if not issubclass(type(value), kinds):
            raise wrong(value, name)
        return value

    return _plain(name, [form], check, kinds)


_JSON: Final[Mapping[Any, Shape]] = {
    None: _scalar("None", "null", type(None)),
    type(None): _scalar("None", "null", type(None)),
    bool: _scalar("bool", "boolean", bool),
    int: attrs.evolve(_scalar("int", "number", int), forms=frozenset({"number", "boolean"})),
    float: attrs.evolve(
        _scalar("float", "number", float, int), forms=frozenset({"number", "boolean"})
    ),
    str: _scalar("str", "text", str),
}


# --- what becomes text ----------------------------------------------------------------------------


def _text(kind: type, parse: Convert, show: Convert = str) -> Shape:
    name = kind.__name__

    def to_wire(value: Any) -> str:
        if type(value) is not kind:
            raise wrong(value, name)
        text: str = show(value)
        return text

    def from_wire(value: Any) -> Any:
        if type(value) is not str:
            raise wrong(value, f"the text of a {name}")
        try:
            return parse(value)
        except (ValueError, ArithmeticError) as error:
            raise Wrong(f"{shown(value)!r} is not the text of a {name}") from error

    return Shape(name, frozenset({"text"}), to_wire, from_wire, kind=kind)


_DURATION: Final = re.compile(r"(-?)P(\d{1,10})DT(\d{1,5})(?:\.(\d{6}))?S", re.ASCII)


def _duration(value: timedelta) -> str:
    """Return it as in ISO 8601, exact: days and seconds, `P1DT30.500000S`."""
    size = abs(value)
    rest = f".{size.microseconds:06}" if size.microseconds else ""
    return f"{'-' * (value < timedelta())}P{size.days}DT{size.seconds}{rest}S"


def _parse_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, days, seconds, micros = match.groups()
    size = timedelta(int(days), int(seconds), int(micros or 0))
    return -size if sign else size


def _to_base64(value: Any) -> Any:
    if not issubclass(type(value), bytes):
        raise wrong(value, "bytes")
    return b64encode(value).decode()


def _from_base64(value: Any) -> bytes:
    if type(value) is bytes:  # the only argument, or a whole result
        return value
    if type(value) is not str:
        raise wrong(value, "bytes, or their text in base 64")
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise Wrong(f"{shown(value)!r} is not base 64") from error


_TEXTS: Final[Mapping[Any, Shape]] = {
    datetime: _text(datetime, datetime.fromisoformat, datetime.isoformat),
    date: _text(date, date.fromisoformat, date.isoformat),
    time: _text(time, time.fromisoformat, time.isoformat),
    timedelta: _text(timedelta, _parse_duration, _duration),
    UUID: _text(UUID, UUID),
    Decimal: _text(Decimal, Decimal),
    bytes: Shape(
        "bytes", frozenset({"text"}), _to_base64, _from_base64, kind=bytes, takes_bytes=True
    ),
}


# --- enums and literals ---------------------------------------------------------------------------


def _enum(kind: type[enum.Enum]) -> Shape:
    """By value where all are text or whole numbers, else by name."""
    name = kind.__name__
    members = list(kind.__members__.values())
    if issubclass(kind, enum.Flag):
        wires: dict[Any, Any] = {}
    elif all(type(member.value) in (str, int) for member in members):
        wires = {member.value: member for member in members}
    else:
        wires = {member.name: member for member in members}
    of = {id(member): wire for wire, member in wires.items()}

    def to_wire(value: Any) -> Any:
        if type(value) is not kind:
            raise wrong(value, name)
        return value.value if issubclass(kind, enum.Flag) else of[id(value)]

    def from_wire(value: Any) -> Any:
        if type(value) in (str, int):
            if value in wires:
                return wires[value]
            try:
                if issubclass(kind, enum.Flag) and type(value) is int:
                    return kind(value)
            except ValueError:
                pass  # as below
        raise Wrong(f"{shown(value)} is none of {name}")

    found: set[Form] = {_FORMS[type(wire)] for wire in wires} or {"number"}
    return Shape(name, frozenset(found), to_wire, from_wire, kind=kind)


def _literal(hint: Any, look: _Look) -> Shape:
    name = "Literal" + repr(list(get_args(hint)))
    shapes: dict[Any, tuple[Any, Any]] = {}  # a value and its type -> itself and its wire
    for value in get_args(hint):
        wire = look.of(type(value)).to_wire(value) if isinstance(value, enum.Enum) else value
        if type(wire) is bytes:
            raise Unfit("a Literal of bytes")
        shapes[type(value), value] = value, wire
    back = {(type(wire), wire): value for value, wire in shapes.values()}

    def to_wire(value: Any) -> Any:
        try:
            return shapes[type(value), value][1]
        except (KeyError, TypeError):
            raise Wrong(f"{shown(value)} is not {name}") from None

    def from_wire(value: Any) -> Any:
        try:
            return back[type(value), value]
        except (KeyError, TypeError):
            raise Wrong(f"{shown(value)} is not {name}") from None

    forms = frozenset(_FORMS[type(wire)] for _, wire in shapes.values())
    is_plain = all(value is wire for value, wire in shapes.values())
    return Shape(name, forms, to_wire, from_wire, is_plain=is_plain)


# --- containers -----------------------------------------------------------------------------------


def _each(convert: Convert, values: Iterable[Any]) -> list[Any]:
    made: list[Any] = []
    try:
        for value in values:
            made.append(convert(value))
    except Wrong as error:
        raise error.within(f"[{len(made)}]") from error.__cause__
    return made


def _array(name: str, item: Shape, takes: tuple[type, ...], makes: Convert | None) -> Shape:
    """Of any length; `makes` makes of a list what it must be, None: it stays one."""
    is_any = item is ANY

    def to_wire(value: Any) -> Any:
        if not issubclass(type(value), takes):
            raise wrong(value, name)
        if is_any:
            return value if issubclass(type(value), (list, tuple)) else _sorted(list(value))
        made = _each(item.to_wire, value)
        if issubclass(type(value), (list, tuple)):
            return value if item.is_plain else made
        return _sorted(made)

    def from_wire(value: Any) -> Any:
        if type(value) is not list:
            raise wrong(value, f"a list, for {name}")
        made = value if is_any else _each(item.from_wire, value)
        try:
            return made if makes is None else makes(made)
        except TypeError as error:  # of a set: it is unhashable
            raise Wrong(f"cannot be a {name}") from error

    is_plain = makes is None and item.is_plain
    exact = frozenset(takes if is_any and is_plain else ())
    return Shape(name, frozenset({"array"}), to_wire, from_wire, is_plain, exact)


def _sorted(wires: list[Any]) -> list[Any]:
    """A set has no order, and the same arguments must be the same bytes."""
    return sorted(wires, key=lambda wire: json.dumps(wire, default=str))


def _tuple(name: str, items: Sequence[Shape], makes: Convert, kind: type | None = None) -> Shape:
    count = len(items)

    def convert(value: Any, ways: Sequence[Convert]) -> list[Any]:
        if len(value) != count:
            raise Wrong(f"has {len(value)} items, expected {count}")
        made: list[Any] = []
        try:
            for way, each in zip(ways, value, strict=True):
                made.append(way(each))
        except Wrong as error:
            raise error.within(f"[{len(made)}]") from error.__cause__
        return made

    there = [item.to_wire for item in items]
    back = [item.from_wire for item in items]

    def to_wire(value: Any) -> list[Any]:
        if type(value) is not (kind or tuple):
            raise wrong(value, name)
        return convert(value, there)

    def from_wire(value: Any) -> Any:
        if type(value) is not list:
            raise wrong(value, f"a list, for {name}")
        return makes(convert(value, back))

    return Shape(name, frozenset({"array"}), to_wire, from_wire, kind=kind)


def _number_to_key(value: Any) -> str:
    if type(value) is not int:
        raise wrong(value, "int")
    return str(value)


def _number_from_key(value: Any) -> int:
    if not re.fullmatch(r"-?\d{1,4000}", value, re.ASCII):
        raise Wrong(f"{shown(value)!r} is not the text of an int")
    return int(value)


_NUMBER_KEY: Final = Shape("int", frozenset({"text"}), _number_to_key, _number_from_key)


def _mapping(name: str, key: Shape, value: Shape) -> Shape:
    key = _NUMBER_KEY if key is _JSON[int] else key
    if key is not ANY and key.forms != {"text"}:
        raise Unfit(f"{name}: a key is text in JSON, and {key.name} is not")

    def convert(given: Any, of_key: Convert, of_value: Convert) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for each, item in given.items():
            try:
                made[of_key(each)] = of_value(item)
            except Wrong as error:
                raise error.within(f"[{shown(each)!r}]") from error.__cause__
        if len(made) != len(given):
            raise Wrong("has two keys that are one on the wire")
        return made

    def to_wire(given: Any) -> Any:
        if not issubclass(type(given), dict):
            raise wrong(given, name)
        if is_any:
            return given
        made = convert(given, key.to_wire, value.to_wire)
        return given if is_plain else made

    def from_wire(given: Any) -> Any:
        if type(given) is not dict:
            raise wrong(given, f"a dict, for {name}")
        return given if is_any else convert(given, key.from_wire, value.from_wire)

    is_plain = (key is ANY or key is _JSON[str]) and value.is_plain
    is_any = is_plain and value is ANY  # of the keys the codec sees that they are text
    exact = frozenset({dict} if is_any else ())
    return Shape(name, frozenset({"object"}), to_wire, from_wire, is_plain, exact)


# --- classes with fields --------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Field:
    name: str  # of the attribute, and on the wire
    argument: str  # by which it is made
    shape: Shape
    is_required: bool


def _record(kind: type, fields: Sequence[_Field]) -> Shape:
    """Of a dataclass or an attrs class: its fields by name, all of them."""
    name = name_of(kind)
    known = {field.name: field for field in fields}

    def to_wire(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise wrong(value, name)
        made: dict[str, Any] = {}
        for field in fields:
            try:
                made[field.name] = field.shape.to_wire(getattr(value, field.name))
            except Wrong as error:
                raise error.within(f".{field.name}") from error.__cause__
        return made

    def from_wire(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong(value, f"a dict, for {name}")
        made: dict[str, Any] = {}
        for each, item in value.items():
            field = known.get(each)
            if field is None:
                raise Wrong(f"has no field {shown(each)!r}: {name}")
            try:
                made[field.argument] = field.shape.from_wire(item)
            except Wrong as error:
                raise error.within(f".{each}") from error.__cause__
        missing = [f.name for f in fields if f.is_required and f.argument not in made]
        if missing:
            raise Wrong(f"lacks {', '.join(missing)}: {name}")
        return kind(**made)

    return Shape(name, frozenset({"object"}), to_wire, from_wire, kind=kind)


def _typed_dict(kind: Any, shapes: Mapping[str, Shape], required: frozenset[str]) -> Shape:
    name = name_of(kind)

    def convert(given: Any, *, is_back: bool) -> Any:
        if not issubclass(type(given), dict):
            raise wrong(given, f"a dict, for {name}")
        made: dict[str, Any] = {}
        for each, item in given.items():
            shape = shapes.get(each)
            if shape is None:
                raise Wrong(f"has no key {shown(each)!r}: {name}")
            try:
                made[each] = (shape.from_wire if is_back else shape.to_wire)(item)
            except Wrong as error:
                raise error.within(f"[{each!r}]") from error.__cause__
        if missing := sorted(required - made.keys()):
            raise Wrong(f"lacks {', '.join(missing)}: {name}")
        return given if is_plain else made

    is_plain = all(shape.is_plain for shape in shapes.values())
    return Shape(
        name,
        frozenset({"object"}),
        lambda value: convert(value, is_back=False),
        lambda value: convert(value, is_back=True),
        is_plain,
    )


# --- unions ---------------------------------------------------------------------------------------


def _union(shapes: Sequence[Shape]) -> Shape:
    """What may be several things.

    Where they cannot be told apart in JSON, as a `datetime | str` or two dataclasses, each but
    None goes as an object with one key, its name: `{"Paid": {"amount": 3}}`.
    """
    if any(shape is ANY for shape in shapes):
        return ANY
    name = " | ".join(shape.name for shape in shapes)
    by_kind = {shape.kind: shape for shape in shapes if shape.kind is not None}
    takes_bytes = any(shape.takes_bytes for shape in shapes)

    def fitting(value: Any) -> tuple[Shape, Any]:
        shape = by_kind.get(type(value))
        if shape is not None:
            return shape, shape.to_wire(value)
        for shape in shapes:
            try:
                return shape, shape.to_wire(value)
            except Wrong as error:
                found = error if error.path else None
        raise found or wrong(value, name)

    if all(shape.is_plain for shape in shapes):
        exact = frozenset[type]().union(*(shape.exact for shape in shapes))
        forms = frozenset[Form]().union(*(shape.forms for shape in shapes))

        def check(value: Any) -> Any:
            if type(value) not in exact:
                fitting(value)
            return value

        return _plain(name, forms, check, exact)
    if sum(len(shape.forms) for shape in shapes) == len({f for s in shapes for f in s.forms}):
        by_form = {form: shape for shape in shapes for form in shape.forms}

        def from_form(value: Any) -> Any:
            if takes_bytes and type(value) is bytes:
                return value
            form = _FORMS.get(type(value))
            if form not in by_form:
                raise wrong(value, name)
            return by_form[form].from_wire(value)

        return Shape(
            name,
            frozenset(by_form),
            lambda value: fitting(value)[1],
            from_form,
            takes_bytes=takes_bytes,
        )
    return _tagged(name, shapes, fitting, takes_bytes=takes_bytes)


def _tagged(
    name: str,
    shapes: Sequence[Shape],
    fitting: Callable[[Any], tuple[Shape, Any]],
    *,
    takes_bytes: bool,
) -> Shape:
    by_name = {shape.name: shape for shape in shapes}
    if len(by_name) < len(shapes):
        raise Unfit(f"{name}: two of them have one name")
    none = by_name.get("None")

    def to_wire(value: Any) -> Any:
        shape, wire = fitting(value)
        return None if shape is none else {shape.name: wire}

    def from_wire(value: Any) -> Any:
        if takes_bytes and type(value) is bytes:
            return value
        if value is None and none is not None:
            return None
        if type(value) is dict and len(value) == 1:
            [(tag, wire)] = value.items()
            if tag in by_name:
                try:
                    return by_name[tag].from_wire(wire)
                except Wrong as error:
                    raise error.within(f"[{tag!r}]") from error.__cause__
        raise wrong(value, f"one of {name}, by its name")

    forms: set[Form] = {"object", "null"} if none is not None else {"object"}
    return Shape(name, frozenset(forms), to_wire, from_wire, takes_bytes=takes_bytes)


# --- what other libraries make --------------------------------------------------------------------


def _loaded(package: str) -> Any:
    """Return a package if the application has imported it: a class of its own says that it has."""
    return sys.modules.get(package)


def _of_pydantic(hint: Any, inner: Shape) -> Shape:
    pydantic = _loaded("pydantic")
    adapter = pydantic.TypeAdapter(hint)
    name, kind = inner.name, inner.kind if isinstance(hint, type) else None
    by_name = {"by_name": True, "by_alias": False} if kind is not None else {}

    def to_wire(value: Any) -> Any:
        if kind is not None and type(value) is not kind:
            raise wrong(value, name)
        try:
            if kind is None:
                adapter.validate_python(value, strict=True)
            return adapter.dump_python(value, mode="json", round_trip=True, warnings="error")
        except ValueError as error:  # ValidationError and PydanticSerializationError are such
            raise _said_by("pydantic", error) from error

    def from_wire(value: Any) -> Any:
        try:
            return adapter.validate_python(value, **by_name)
        except ValueError as error:
            raise _said_by("pydantic", error) from error

    return Shape(name, inner.forms, to_wire, from_wire, kind=kind)


def _of_msgspec(hint: Any, inner: Shape) -> Shape:
    msgspec = _loaded("msgspec")
    name, kind = inner.name, inner.kind if isinstance(hint, type) else None

    def from_wire(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint, str_keys=True)
        except msgspec.ValidationError as error:
            raise _said_by("msgspec", error) from error

    def to_wire(value: Any) -> Any:
        if kind is not None and type(value) is not kind:
            raise wrong(value, name)
        try:
            wire = msgspec.to_builtins(value, str_keys=True)
        except (TypeError, ValueError) as error:
            raise _said_by("msgspec", error) from error
        from_wire(wire)  # it does not look itself at what it takes apart
        return wire

    return Shape(name, inner.forms, to_wire, from_wire, kind=kind)


def _forms_of_struct(kind: Any) -> frozenset[Form]:
    return frozenset({"array" if kind.__struct_config__.array_like else "object"})


def _said_by(package: str, error: Exception) -> Wrong:
    return Wrong(f"is refused by {package}: {' '.join(str(error).split())}")


def _constrained(hint: Any) -> Callable[[Any, Shape], Shape] | None:
    """Return whose constraints stand beside a type: of which library `Field` or `Meta` are."""
    for mark in hint.__metadata__:
        home = type(mark).__module__.partition(".")[0]
        if home in ("pydantic", "annotated_types") and _loaded("pydantic"):
            return _of_pydantic
        if home == "msgspec":
            return _of_msgspec
    return None


# --- from annotations -----------------------------------------------------------------------------

_LISTS: Final = (list, Sequence, MutableSequence, Collection, Iterable)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)
_NOTHING: Final = (Any, object, inspect.Parameter.empty, typing.NoReturn, typing.Never)
_GENERATORS: Final = (AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterator)


@attrs.define(eq=False)
class _Look:
    """The shapes of one annotation, and of what it is made of."""

    made: dict[Any, Shape] = attrs.field(factory=dict)

    def of(self, hint: Any) -> Shape:
        """Return the shape of an annotation.

        Raises:
            Unfit: There is none.
        """
        if hint in _NOTHING:
            return ANY
        try:
            known = _JSON.get(hint) or _TEXTS.get(hint) or self.made.get(hint)
        except TypeError:  # it is unhashable, as a Literal of a list would be
            known = None
        return known if known is not None else self._made_of(hint)

    def _made_of(self, hint: Any) -> Shape:
        if isinstance(hint, (str, typing.ForwardRef)):
            return unread(str(getattr(hint, "__forward_arg__", hint)))
        if isinstance(hint, TypeVar):
            return self.of(hint.__bound__) if hint.__bound__ is not None else ANY
        if hasattr(hint, "__supertype__"):
            return self.of(hint.__supertype__)
        if type(hint).__name__ == "TypeAliasType":
            return self._of_named(hint)
        origin, args = get_origin(hint), get_args(hint)
        if origin is typing.Annotated:
            of, inner = _constrained(hint), self.of(args[0])
            return inner if of is None else of(hint, inner)
        if origin in (typing.Union, types.UnionType):
            return _union([self.of(each) for each in args])
        if origin is Literal:
            return _literal(hint, self)
        if origin in (typing.Required, typing.NotRequired):
            return self.of(args[0])
        return self._of_class(hint, origin or hint, args)

    def _of_class(self, hint: Any, kind: Any, args: tuple[Any, ...]) -> Shape:
        name = _called(hint)
        if kind in _LISTS:
            takes = (
                (list, tuple, frozenset, set) if kind in (Collection, Iterable) else (list, tuple)
            )
            return _array(name, self._arg(args, 0), (list,) if kind is list else takes, None)
        if kind in _MAPPINGS:
            return _mapping(name, self._arg(args, 0), self._arg(args, 1))
        if kind in (set, frozenset, AbstractSet):
            makes = set if kind is AbstractSet else kind
            takes = (set, frozenset) if kind is AbstractSet else (kind,)
            return _array(name, self._arg(args, 0), takes, makes)
        if kind is tuple:
            if not args or args[-1] is ...:
                return _array(name, self._arg(args, 0), (tuple,), tuple)
            return _tuple(name, [self.of(each) for each in args if each != ()], tuple)
        if not isinstance(kind, type):
            raise Unfit(name)
        if issubclass(kind, enum.Enum):
            return _enum(kind)
        return self._of_fields(hint, kind)

    def _arg(self, args: tuple[Any, ...], at: int) -> Shape:
        return self.of(args[at]) if len(args) > at else ANY

    def _of_named(self, hint: Any) -> Shape:
        """`type X = ...`, which may name itself."""
        self.made[hint] = self._later(hint, str(hint), ANYTHING)
        shape = self.of(hint.__value__)
        self.made[hint] = shape
        return shape

    def _later(self, hint: Any, name: str, forms: frozenset[Form]) -> Shape:
        """Stand for what is being made, and is made of itself."""
        return Shape(
            name,
            forms,
            lambda value: self.made[hint].to_wire(value),
            lambda value: self.made[hint].from_wire(value),
            kind=hint if isinstance(hint, type) else None,
        )

    def _of_fields(self, hint: Any, kind: type) -> Shape:
        own: Any = kind
        if hasattr(kind, "__pydantic_validator__"):
            return _of_pydantic(hint, self._later(hint, name_of(kind), frozenset({"object"})))
        if hasattr(kind, "__struct_config__"):
            return _of_msgspec(hint, self._later(hint, name_of(kind), _forms_of_struct(kind)))
        is_dict = typing.is_typeddict(kind)
        if not (is_dict or dataclasses.is_dataclass(kind) or attrs.has(kind)):
            if not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
                raise Unfit(_called(hint))
        form: Form = "array" if issubclass(kind, tuple) else "object"
        self.made[hint] = self._later(hint, name_of(kind), frozenset({form}))
        hints = self._hints(hint, kind)
        if is_dict:
            shape = _typed_dict(
                kind, {k: self.of(each) for k, each in hints.items()}, _required(own, hints)
            )
        elif issubclass(kind, tuple):
            items = [self.of(hints.get(field, Any)) for field in own._fields]
            shape = _tuple(name_of(kind), items, own._make, kind)
        else:
            shape = _record(kind, [*self._fields(kind, hints)])
        self.made[hint] = shape
        return shape

    def _fields(self, kind: Any, hints: Mapping[str, Any]) -> Iterable[_Field]:
        if attrs.has(kind):
            for field in attrs.fields(kind):
                if field.init:
                    shape = self.of(hints.get(field.name, Any))
                    yield _Field(
                        field.name, field.alias or field.name, shape, field.default is attrs.NOTHING
                    )
            return
        for name in kind.__dataclass_fields__:
            each = kind.__dataclass_fields__[name]
            if isinstance(each.type, dataclasses.InitVar) or str(each.type).startswith("InitVar"):
                raise Unfit(f"{name_of(kind)}: its {name} is gone once it is made (InitVar)")
        for field in dataclasses.fields(kind):
            if field.init:
                is_required = (
                    field.default is dataclasses.MISSING
                    and field.default_factory is dataclasses.MISSING
                )
                shape = self.of(hints.get(field.name, Any))
                yield _Field(field.name, field.name, shape, is_required)

    def _hints(self, hint: Any, kind: type) -> dict[str, Any]:
        """Return the annotations of its fields; of a generic class with what stands for its types."""
        try:
            hints = get_type_hints(kind, include_extras=True)
        except NameError as error:
            raise Unfit(f"{name_of(kind)}: {error.name!r} is not there at run time") from error
        stands = dict(zip(getattr(kind, "__parameters__", ()), get_args(hint), strict=False))
        if not stands:
            return hints
        return {name: _with(each, stands) for name, each in hints.items()}


def _with(hint: Any, stands: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return stands.get(hint, hint)
    needs = getattr(hint, "__parameters__", ())
    return hint[tuple(stands.get(each, each) for each in needs)] if needs else hint


def _required(kind: Any, hints: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of a TypedDict that must be there.

    Where annotations are texts, as `from __future__ import annotations` makes them, the class
    itself does not know of `NotRequired`.
    """
    told = {name: get_origin(hint) for name, hint in hints.items()}
    return frozenset(
        name
        for name, word in told.items()
        if word is typing.Required
        or (word is not typing.NotRequired and name in kind.__required_keys__)
    )


def _called(hint: Any) -> str:
    """Return an annotation as people write it, short."""
    if isinstance(hint, type) and not get_args(hint):
        return name_of(hint)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(hint))
    return shown(text)


def unread(text: str) -> Shape:
    """Return the shape of an annotation that cannot be read: anything that JSON has itself."""

    def to_wire(value: Any) -> Any:
        kind = type(value)
        if kind in _FORMS or issubclass(kind, (str, int, float, list, dict, tuple, bytes)):
            return value
        what = (
            f"is {_kind_of(value)}, and its annotation {shown(text)!r} cannot be read at run time"
        )
        raise Wrong(f"{what}: import it there, in the module itself")

    return attrs.evolve(ANY, name=text, to_wire=to_wire, exact=frozenset({*_FORMS, tuple, bytes}))


def shape_of(hint: Any) -> Shape:
    """Return how the values of an annotation travel.

    Raises:
        Unfit: They cannot.
    """
    return _Look().of(hint)


def awaited(hint: Any) -> Any:
    """Return the type of what comes of a call: of what is awaited of that, of a generator any."""
    origin = get_origin(hint) or hint
    if origin in (Awaitable, Coroutine):
        return (get_args(hint) or (Any,))[-1]
    return Any if origin in _GENERATORS else hint
