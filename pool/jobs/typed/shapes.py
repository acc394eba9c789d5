"""What annotations say of values: how one goes over the wire as JSON, and comes back.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool.errors import name_of, shown

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
