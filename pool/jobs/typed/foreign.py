"""Shapes of what other libraries have made: they look at it, both ways; see also `proof.py`."""

from __future__ import annotations

import sys
from collections.abc import (
    Callable,
    Sequence,
)
from typing import Any, Union

from pool.jobs.typed.canonical import ordered
from pool.jobs.typed.converters import (
    Form,
    Shape,
    Wrong,
    wrong,
)
from pool.jobs.typed.proof import check

# --- what other libraries make --------------------------------------------------------------------


def _loaded(package: str) -> Any:
    """Return a package if the application has imported it: a class of its own says that it has."""
    return sys.modules.get(package)


def of_pydantic(hint: Any, inner: Shape) -> Shape:
    pydantic = _loaded("pydantic")
    adapter = pydantic.TypeAdapter(hint)
    as_json = _loaded("pydantic_core").to_json
    name, kind = inner.name, inner.kind if isinstance(hint, type) else None

    def to_wire(value: Any) -> Any:
        if kind is not None and type(value) is not kind:
            raise wrong(value, name)
        try:
            if kind is None:
                adapter.validate_python(value, strict=True)
            wire = dumped(value)
            back = from_wire(wire)
            check(value, back)
            # What is read is what goes: each field in its place, whatever was assigned when.
            return ordered(back, dumped(back))
        except ValueError as error:  # ValidationError and PydanticSerializationError are such
            raise _said_by("pydantic", error) from error

    def dumped(value: Any) -> Any:
        return adapter.dump_python(
            value, mode="json", by_alias=False, round_trip=True, warnings="error"
        )

    def from_wire(value: Any) -> Any:
        try:
            # As JSON, of which strict models take text for a date.
            return adapter.validate_json(as_json(value), by_name=True, by_alias=False)
        except ValueError as error:
            raise _said_by("pydantic", error) from error

    return Shape(name, inner.forms, to_wire, from_wire, kind=kind)


def of_msgspec(hint: Any, inner: Shape) -> Shape:
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
        back = from_wire(wire)
        check(value, back)  # it does not look itself at what it takes apart
        # What is read is what goes: where a field is a float, a whole number has become one.
        return ordered(back, msgspec.to_builtins(back, str_keys=True))

    return Shape(name, inner.forms, to_wire, from_wire, kind=kind)


def forms_of_struct(kind: Any) -> frozenset[Form]:
    return frozenset({"array" if kind.__struct_config__.array_like else "object"})


def is_tagged(kind: Any) -> bool:
    """Whether it is a struct that says by a tag which one it is."""
    return getattr(getattr(kind, "__struct_config__", None), "tag", None) is not None


def is_union(hints: Sequence[Any]) -> bool:
    """Whether msgspec reads one of several structs by their tags: no two have the same one."""
    try:
        _loaded("msgspec").json.Decoder(Union[tuple(hints)])  # noqa: UP007
    except TypeError:
        return False
    return True


def _said_by(package: str, error: Exception) -> Wrong:
    return Wrong(f"is refused by {package}: {' '.join(str(error).split())}")


def constrained(hint: Any) -> Callable[[Any, Shape], Shape] | None:
    """Return whose constraints stand beside a type: of which library `Field` or `Meta` are."""
    for mark in hint.__metadata__:
        home = type(mark).__module__.partition(".")[0]
        if home in ("pydantic", "annotated_types") and _loaded("pydantic"):
            return of_pydantic
        if home == "msgspec":
            return of_msgspec
    return None
