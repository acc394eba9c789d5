"""Converters of values to JSON and back: scalars, containers, unions.

What annotations say of values: how one goes over the wire as JSON, and comes back.

    annotation --shape_of()--> Shape   once, at registration
    value --to_wire--> JSON            where it is sent; refuses what is not of the type
    JSON --from_wire--> value          where it arrives; likewise, whoever has sent it

A shape is plain if JSON has its values itself: it only looks whether that is what it must be, and
of a number makes one of the type that is said, if that is equal (a float of 1, an int of True).
Values are taken by their exact type, so that nothing which a subclass adds is lost on the way; but
for text, numbers and containers, which JSON flattens anyway.

Why not a library: the wire must not depend on what an application happens to have installed, and
the caller must be told of a wrong type.  cattrs turns "5" into 5 and does not look at what it takes
apart; msgspec does not, either; pydantic checks both ways, but is ten megabytes that a program of
dataclasses needs for nothing else.  What is theirs is left to them: a pydantic model to pydantic, a
`Struct` to msgspec, and annotations with their constraints.  Neither is imported before an
annotation needs it, and then the application has imported it itself.

Shapes of what is one value in JSON: scalars, what becomes text, enums, literals.

Shapes of what holds others: lists, sets, dicts, classes with fields, unions.
"""

from __future__ import annotations

import enum
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import eq, or_
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

import attrs

from pool.errors import name_of, shown
from pool.jobs.typed.canonical import sorted_wires

Form: TypeAlias = Literal["null", "boolean", "number", "text", "array", "object"]
Convert: TypeAlias = Callable[[Any], Any]
FORMS: Final[Mapping[type, Form]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "text",
    list: "array",
    dict: "object",
}
ANYTHING: Final[frozenset[Form]] = frozenset(FORMS.values())


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
    kind = kind_of(value)
    if kind == expected:
        kind = f"another {kind}, of {shown(type(value).__module__)}"
    return Wrong(f"is {kind}, expected {expected}")


def kind_of(value: object) -> str:
    return "None" if value is None else name_of(type(value))


def _same(value: Any) -> Any:
    return value


ANY: Final = Shape("Any", ANYTHING, _same, _same, is_plain=True, takes_bytes=True)


# --- what JSON has itself -------------------------------------------------------------------------


def plain_of(name: str, forms: Iterable[Form], check: Convert, exact: Iterable[type] = ()) -> Shape:
    return Shape(name, frozenset(forms), check, check, is_plain=True, exact=frozenset(exact))


def _scalar(name: str, form: Form, *kinds: type) -> Shape:
    def check(value: Any) -> Any:
        if not issubclass(type(value), kinds):
            raise wrong(value, name)
        return value

    return plain_of(name, [form], check, kinds)


def _int(value: Any) -> Any:
    if not issubclass(type(value), int):
        raise wrong(value, "int")
    return int(value) if type(value) is bool else value


def _float(value: Any) -> Any:
    """Take a whole number, too: as a float, unless that would be another number."""
    kind = type(value)
    if issubclass(kind, float):
        return value
    if not issubclass(kind, int):
        raise wrong(value, "float")
    try:
        made = float(value)
    except OverflowError:
        return value
    return made if made == value else value


JSON: Final[Mapping[Any, Shape]] = {
    None: _scalar("None", "null", type(None)),
    type(None): _scalar("None", "null", type(None)),
    bool: _scalar("bool", "boolean", bool),
    int: plain_of("int", ["number", "boolean"], _int, [int]),
    float: plain_of("float", ["number", "boolean"], _float, [float]),
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


# All of ISO 8601 that has one length: a month and a year have not.
_DURATION: Final = re.compile(
    r"(-?)P(?=\d|T)(?:(\d{1,9})W)?(?:(\d{1,10})D)?"
    r"(?:T(?=\d)(?:(\d{1,11})H)?(?:(\d{1,13})M)?(?:(\d{1,15})(?:[.,](\d{1,6}))?S)?)?",
    re.ASCII,
)


def _duration(value: timedelta) -> str:
    """Return it as in ISO 8601, exact: days and seconds, `P1DT30.500000S`."""
    size = abs(value)
    rest = f".{size.microseconds:06}" if size.microseconds else ""
    return f"{'-' * (value < timedelta())}P{size.days}DT{size.seconds}{rest}S"


def _parse_duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, *numbers, part = match.groups()
    weeks, days, hours, minutes, seconds = (int(each or 0) for each in numbers)
    micros = int((part or "").ljust(6, "0"))
    size = timedelta(days, seconds, micros, minutes=minutes, hours=hours, weeks=weeks)
    return -size if sign else size


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Wrong("has a zone whose offset is another on other days: a time alone has none")
    return _with_offset(value)


def _with_offset(value: datetime | time) -> str:
    """Return it as in ISO 8601; Python reads an offset of less than a second as none."""
    text, offset = value.isoformat(), value.utcoffset()
    if offset and offset.microseconds and type(value).fromisoformat(text).utcoffset() != offset:
        raise Wrong("has an offset of less than a second, and would arrive with none")
    return text


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


TEXTS: Final[Mapping[Any, Shape]] = {
    datetime: _text(datetime, datetime.fromisoformat, _with_offset),
    date: _text(date, date.fromisoformat, date.isoformat),
    time: _text(time, time.fromisoformat, _time),
    timedelta: _text(timedelta, _parse_duration, _duration),
    UUID: _text(UUID, UUID),
    Decimal: _text(Decimal, Decimal),
    bytes: Shape(
        "bytes", frozenset({"text"}), _to_base64, _from_base64, kind=bytes, takes_bytes=True
    ),
}


# What the text of a type is never the text of.  That of a Decimal may be nearly anything: a date as
# 20260101, say.
NEVER: Final[Mapping[type | None, frozenset[type]]] = {
    datetime: frozenset({date, time, timedelta, UUID, Decimal, bytes}),
    date: frozenset({time, timedelta, UUID, Decimal, bytes}),
    time: frozenset({date, datetime, timedelta, UUID, Decimal, bytes}),
    timedelta: frozenset({date, datetime, time, UUID, Decimal}),
    UUID: frozenset({date, datetime, time, timedelta, Decimal, bytes}),
    Decimal: frozenset({timedelta}),
}


# --- enums and literals ---------------------------------------------------------------------------


def enum_of(kind: type[enum.Enum]) -> Shape:
    """By value where all are text or whole numbers, else by name."""
    name = kind.__name__
    members = list(kind.__members__.values())
    if issubclass(kind, enum.Flag):
        wires: dict[Any, Any] = {}
    elif all(type(member.value) in (str, int) for member in members):
        wires = {member.value: member for member in members}
    else:
        wires = {member.name: member for member in members}
    wire_of = {id(member): wire for wire, member in wires.items()}
    never = 0  # bits of no member: some classes drop them, and in Python 3.11.2 all do
    if issubclass(kind, enum.Flag) and getattr(kind, "_boundary_", None) is not enum.KEEP:
        never = ~reduce(or_, (member.value for member in members), 0)

    def to_wire(value: Any) -> Any:
        if type(value) is not kind:
            raise wrong(value, name)
        return value.value if issubclass(kind, enum.Flag) else wire_of[id(value)]

    def from_wire(value: Any) -> Any:
        if type(value) in (str, int):
            if value in wires:
                return wires[value]
            try:
                if issubclass(kind, enum.Flag) and type(value) is int and not value & never:
                    return kind(value)
            except ValueError:
                pass  # as below
        raise Wrong(f"{shown(value)} is none of {name}")

    found: set[Form] = {FORMS[type(wire)] for wire in wires} or {"number"}
    return Shape(name, frozenset(found), to_wire, from_wire, kind=kind)


def literal_of(hint: Any, of: Callable[[Any], Shape]) -> Shape:
    name = "Literal" + repr(list(get_args(hint)))
    shapes: dict[Any, tuple[Any, Any]] = {}  # a value and its type -> itself and its wire
    for value in get_args(hint):
        wire = of(type(value)).to_wire(value) if isinstance(value, enum.Enum) else value
        if type(wire) is bytes:
            raise Unfit("a Literal of bytes")
        shapes[type(value), value] = value, wire
    back = {(type(wire), wire): value for value, wire in shapes.values()}
    if len(back) < len(shapes):
        raise Unfit(f"{name}: two of its values are the same in JSON")

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

    forms = frozenset(FORMS[type(wire)] for _, wire in shapes.values())
    is_plain = all(value is wire for value, wire in shapes.values())
    return Shape(name, forms, to_wire, from_wire, is_plain=is_plain)


# --- containers -----------------------------------------------------------------------------------


def _each(convert: Convert, values: Iterable[Any]) -> list[Any]:
    made: list[Any] = []
    try:
        for value in values:
            made.append(convert(value))  # noqa: PERF401 - how far it came is told
    except Wrong as error:
        raise error.within(f"[{len(made)}]") from error.__cause__
    return made


def array_of(name: str, item: Shape, takes: tuple[type, ...], makes: Convert | None) -> Shape:
    """Of any length; `makes` makes of a list what it must be, None: it stays one."""
    is_any, exact_items = item is ANY, item.exact

    def to_wire(value: Any) -> Any:
        if not issubclass(type(value), takes):
            raise wrong(value, name)
        is_list = issubclass(type(value), (list, tuple))
        if is_list and (is_any or exact_items.issuperset(map(type, value))):
            return value
        made = list(value) if is_any else _each(item.to_wire, value)
        return made if is_list else of_set(sorted_wires(made))

    def of_set(made: list[Any]) -> list[Any]:
        """Return the items of a set as they travel, if they arrive as so many."""
        plain = [str.__str__(each) if isinstance(each, str) else each for each in made]
        if any(map(eq, plain, plain[1:])) or _merge(item, made):
            raise Wrong("has two items that are one where they arrive")
        return made

    def from_wire(value: Any) -> Any:
        if type(value) is not list:
            raise wrong(value, f"a list, for {name}")
        is_fine = is_any or exact_items.issuperset(map(type, value))
        made = value if is_fine else _each(item.from_wire, value)
        if makes is None:
            return made
        try:
            _check_spread(made)
            return makes(made)
        except TypeError as error:  # of a set: it is unhashable
            raise Wrong(f"cannot be a {name}") from error

    is_plain = makes is None and item.is_plain
    exact = frozenset(takes if is_any and is_plain else ())
    return Shape(name, frozenset({"array"}), to_wire, from_wire, is_plain, exact)


def _merge(shape: Shape, wires: Collection[Any]) -> bool:
    """Whether some of these are one where they arrive: two moments of zones, each shown twice."""
    return shape.kind is datetime and len(set(map(shape.from_wire, wires))) < len(wires)


SAME_HASH_MAX: Final = 64


def _check_spread(items: Sequence[Any]) -> None:
    """Refuse what a set or a dict would take a quadratic time for.

    Numbers, and what is hashed as they are (UUIDs, decimals), can be chosen so that all have one
    hash: 13,000 whole numbers, which are a payload of 256 KiB, would hold the event loop up for
    seconds.  Text cannot: its hashes are drawn by each process.
    """
    if len(items) > SAME_HASH_MAX:
        [(_, most)] = Counter(map(hash, items)).most_common(1)
        if most > SAME_HASH_MAX:
            raise Wrong(f"has {most} items with the same hash, at most {SAME_HASH_MAX}")


def tuple_of(name: str, items: Sequence[Shape], makes: Convert, kind: type | None = None) -> Shape:
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
    if not issubclass(type(value), int):
        raise wrong(value, "int")
    return int.__repr__(value)  # of a bool or an IntEnum, too


def _number_from_key(value: Any) -> int:
    if not re.fullmatch(r"-?\d{1,4000}", value, re.ASCII):
        raise Wrong("is not the text of an int")
    return int(value)


_NUMBER_KEY: Final = Shape("int", frozenset({"text"}), _number_to_key, _number_from_key)


def mapping_of(name: str, key: Shape, value: Shape) -> Shape:
    key = _NUMBER_KEY if key is JSON[int] else key
    if key is not ANY and key.forms != {"text"}:
        raise Unfit(f"{name}: a key is text in JSON, and {key.name} is not")

    def convert(given: Any, of_key: Convert, of_value: Convert) -> dict[Any, Any]:
        pairs: list[tuple[Any, Any]] = []
        for each, item in given.items():
            try:
                made_key = of_key(each)
            except Wrong as error:
                join = ", which" if error.problem.startswith("is ") else ":"
                text = f"has the key {shown(each)!r}{join} {error.problem}"
                raise Wrong(text) from error.__cause__
            try:
                pairs.append((made_key, of_value(item)))
            except Wrong as error:
                raise error.within(f"[{shown(each)!r}]") from error.__cause__
        if of_key is key.from_wire and not key.is_plain:
            _check_spread([each for each, _ in pairs])
        made = dict(pairs)
        if len(made) != len(given):
            raise Wrong("has two keys that become one")
        return made

    def to_wire(given: Any) -> Any:
        if not issubclass(type(given), dict):
            raise wrong(given, name)
        if is_any or is_fine(given):
            return given
        made = convert(given, key.to_wire, value.to_wire)
        if _merge(key, made):
            raise Wrong("has two keys that are one where they arrive")
        return made

    def from_wire(given: Any) -> Any:
        if type(given) is not dict:
            raise wrong(given, f"a dict, for {name}")
        if is_any or is_fine(given):
            return given
        return convert(given, key.from_wire, value.from_wire)

    def is_fine(given: dict[Any, Any]) -> bool:
        return (
            is_plain
            and kinds.issuperset(map(type, given.values()))
            and texts.issuperset(map(type, given))
        )

    kinds, texts = value.exact, frozenset({str})
    is_plain = (key is ANY or key is JSON[str]) and value.is_plain
    is_any = is_plain and value is ANY  # of the keys the codec sees that they are text
    exact = frozenset({dict} if is_any else ())
    return Shape(name, frozenset({"object"}), to_wire, from_wire, is_plain, exact)


# --- classes with fields --------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Field:
    name: str  # of the attribute, and on the wire
    argument: str  # by which it is made
    shape: Shape
    is_required: bool
    is_late: bool = False  # `init=False`: set once it is made
    check: Callable[[Any, Any], object] | None = None  # of an attrs field that is set late


_UNSET: Final = object()


def record_of(kind: type, fields: Sequence[Field]) -> Shape:
    """Of a dataclass or an attrs class: its fields by name, all of them."""
    name = name_of(kind)
    known = {field.name: field for field in fields}

    def to_wire(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise wrong(value, name)
        made: dict[str, Any] = {}
        for field in fields:
            is_late = field.is_late
            item = getattr(value, field.name, _UNSET) if is_late else getattr(value, field.name)
            if item is _UNSET:
                continue
            try:
                made[field.name] = field.shape.to_wire(item)
            except Wrong as error:
                raise error.within(f".{field.name}") from error.__cause__
        return made

    def from_wire(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong(value, f"a dict, for {name}")
        made: dict[str, Any] = {}
        late: list[tuple[Field, Any]] = []
        for each, item in value.items():
            field = known.get(each)
            if field is None:
                raise Wrong(f"has the field {shown(each)!r}, which {name} does not have")
            try:
                part = field.shape.from_wire(item)
            except Wrong as error:
                raise error.within(f".{each}") from error.__cause__
            if field.is_late:
                late.append((field, part))
            else:
                made[field.argument] = part
        missing = [f.name for f in fields if f.is_required and f.argument not in made]
        if missing:
            raise Wrong(f"lacks {', '.join(missing)}: {name}")
        instance = kind(**made)
        for field, part in late:
            object.__setattr__(instance, field.name, part)  # also of a frozen class
        for field, part in late:
            if field.check is not None:
                field.check(instance, part)
        return instance

    return Shape(name, frozenset({"object"}), to_wire, from_wire, kind=kind)


def typed_dict_of(kind: Any, shapes: Mapping[str, Shape], required: frozenset[str]) -> Shape:
    name = name_of(kind)

    def convert(given: Any, *, is_back: bool) -> Any:
        if not issubclass(type(given), dict):
            raise wrong(given, f"a dict, for {name}")
        made: dict[str, Any] = {}
        for each, item in given.items():
            shape = shapes.get(each)
            if shape is None:
                raise Wrong(f"has the key {shown(each)!r}, which {name} does not have")
            try:
                made[each] = (shape.from_wire if is_back else shape.to_wire)(item)
            except Wrong as error:
                raise error.within(f"[{each!r}]") from error.__cause__
        if missing := sorted(required - made.keys()):
            raise Wrong(f"lacks {', '.join(missing)}: {name}")
        return made

    is_plain = all(shape.is_plain for shape in shapes.values())
    return Shape(
        name,
        frozenset({"object"}),
        lambda value: convert(value, is_back=False),
        lambda value: convert(value, is_back=True),
        is_plain,
    )


# --- unions ---------------------------------------------------------------------------------------


def union_of(shapes: Sequence[Shape]) -> Shape:
    """What may be several things.

    Where they cannot be told apart in JSON, as a `datetime | str` or two dataclasses, each but
    None goes as an object with one key, its name: `{"Paid": {"amount": 3}}`.
    """
    if any(shape is ANY for shape in shapes):
        return ANY
    name = " | ".join(shape.name for shape in shapes)
    plain = [shape for shape in shapes if shape.is_plain and shape.forms != {"null"}]
    if len(plain) > 1 and not all(shape.is_plain for shape in shapes):
        shapes = [union_of(plain), *(shape for shape in shapes if shape not in plain)]
    by_kind = {shape.kind: shape for shape in shapes if shape.kind is not None}
    takes_bytes = any(shape.takes_bytes for shape in shapes)

    tried = sorted(shapes, key=lambda shape: shape is JSON[float])  # an int is one, if it may be

    def fitting(value: Any) -> tuple[Shape, Any]:
        shape = by_kind.get(type(value))
        if shape is not None:
            return shape, shape.to_wire(value)
        problem = path = ""
        for shape in tried:
            try:
                return shape, shape.to_wire(value)
            except Wrong as error:
                if len(error.path) > len(path):  # the one that says most: of which item it is
                    problem, path = error.problem, error.path
        if path:
            raise Wrong(problem, path)
        raise wrong(value, name)

    if all(shape.is_plain for shape in shapes):
        exact = frozenset[type]().union(*(shape.exact for shape in shapes))
        forms = frozenset[Form]().union(*(shape.forms for shape in shapes))

        def check(value: Any) -> Any:
            return value if type(value) in exact else fitting(value)[1]

        return plain_of(name, forms, check, exact)
    if sum(len(shape.forms) for shape in shapes) == len({f for s in shapes for f in s.forms}):
        by_form = {form: shape for shape in shapes for form in shape.forms}

        def from_form(value: Any) -> Any:
            if takes_bytes and type(value) is bytes:
                return value
            form = FORMS.get(type(value))
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
