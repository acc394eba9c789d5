"""Shapes of what holds others: lists, sets, dicts, classes with fields, unions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from operator import eq
from typing import Any, Final

import attrs

from pool.errors import name_of, shown
from pool.jobs.typed.canonical import sorted_wires
from pool.jobs.typed.shapes import (
    ANY,
    FORMS,
    Convert,
    Form,
    Shape,
    Unfit,
    Wrong,
    wrong,
)
from pool.jobs.typed.values import JSON, plain_of

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
