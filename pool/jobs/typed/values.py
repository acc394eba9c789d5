"""Shapes of what is one value in JSON: scalars, what becomes text, enums, literals."""

from __future__ import annotations

import enum
import re
from base64 import b64decode, b64encode
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
)
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any, Final, get_args
from uuid import UUID

from pool.errors import shown
from pool.jobs.typed.shapes import (
    FORMS,
    Convert,
    Form,
    Shape,
    Unfit,
    Wrong,
    wrong,
)

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
