"""From annotations to shapes; what cannot be read at run time is unchecked."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
import typing
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
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import attrs

from pool.errors import name_of, shown
from pool.jobs.typed.converters import (
    ANY,
    ANYTHING,
    FORMS,
    JSON,
    TEXTS,
    Field,
    Form,
    Shape,
    Unfit,
    Wrong,
    array_of,
    enum_of,
    kind_of,
    literal_of,
    mapping_of,
    record_of,
    tuple_of,
    typed_dict_of,
    union_of,
)
from pool.jobs.typed.foreign import (
    constrained,
    forms_of_struct,
    is_tagged,
    is_union,
    of_msgspec,
    of_pydantic,
)

# --- from annotations -----------------------------------------------------------------------------

_LISTS: Final = (list, Sequence, MutableSequence, Collection, Iterable)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)
NOTHING: Final = (Any, object, inspect.Parameter.empty, typing.NoReturn, typing.Never)
_QUALIFIERS: Final = (  # of a TypedDict's keys; one has come with Python 3.13
    *(typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required)),
)
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
        if hint in NOTHING:
            return ANY
        try:
            known = JSON.get(hint) or TEXTS.get(hint) or self.made.get(hint)
        except TypeError:  # it is unhashable, as a Literal of a list would be
            known = None
        return known if known is not None else self._made_of(hint)

    def _made_of(self, hint: Any) -> Shape:
        if getattr(hint, "__unpacked__", False) or get_origin(hint) is typing.Unpack:
            raise Unfit(f"{_called(hint)}: an unpacked type stands for any number of others")
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
            of, inner = constrained(hint), self.of(args[0])
            return inner if of is None else of(hint, inner)
        if origin in (typing.Union, types.UnionType):
            return union_of(self._of_union(args))
        if origin is Literal:
            return literal_of(hint, self.of)
        if origin in _QUALIFIERS:
            return self.of(args[0])
        if type(origin).__name__ == "TypeAliasType":
            stands = dict(zip(origin.__type_params__, args, strict=False))
            return self.of(_with(origin.__value__, stands))
        return self._of_class(hint, origin or hint, args)

    def _of_union(self, args: Sequence[Any]) -> list[Shape]:
        """Return the shapes of a union; structs that msgspec tells apart by their tags are one."""
        tagged = [each for each in args if is_tagged(get_origin(each) or each)]
        if len(tagged) < 2 or not is_union(tagged):
            return [self.of(each) for each in args]
        shapes = [self.of(each) for each in tagged]
        name = " | ".join(shape.name for shape in shapes)
        inner = attrs.evolve(shapes[0], name=name, kind=None)
        one = of_msgspec(typing.Union[tuple(tagged)], inner)  # noqa: UP007
        return [one, *(self.of(each) for each in args if each not in tagged)]

    def _of_class(self, hint: Any, kind: Any, args: tuple[Any, ...]) -> Shape:
        name = _called(hint)
        if kind in _LISTS:
            takes: tuple[type, ...] = (list,) if kind is list else (list, tuple)
            takes = (*takes, set, frozenset) if kind in (Collection, Iterable) else takes
            return array_of(name, self._arg(args, 0), takes, None)
        if kind in _MAPPINGS:
            return mapping_of(name, self._arg(args, 0), self._arg(args, 1))
        if kind in (set, frozenset, AbstractSet):
            makes = set if kind is AbstractSet else kind
            takes = (set, frozenset) if makes is not kind else (kind,)
            return array_of(name, self._arg(args, 0), takes, makes)
        if kind is tuple:
            if not args or args[-1] is ...:
                return array_of(name, self._arg(args, 0), (tuple,), tuple)
            return tuple_of(name, [self.of(each) for each in args if each != ()], tuple)
        if not isinstance(kind, type):
            raise Unfit(name)
        if issubclass(kind, enum.Enum):
            return enum_of(kind)
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
            lambda value: self.made[hint].to_wire(value),  # noqa: PLW0108 - not yet there
            lambda value: self.made[hint].from_wire(value),  # noqa: PLW0108
            kind=hint if isinstance(hint, type) else None,
        )

    def _of_fields(self, hint: Any, kind: type) -> Shape:
        own: Any = kind
        if hasattr(kind, "__pydantic_validator__"):
            forms: frozenset[Form] = frozenset({"object"})
            if getattr(kind, "__pydantic_root_model__", False):  # it goes as what is in it
                forms = self.of(own.__pydantic_fields__["root"].annotation).forms
            return of_pydantic(hint, self._later(hint, name_of(kind), forms))
        if hasattr(kind, "__struct_config__"):
            return of_msgspec(hint, self._later(hint, name_of(kind), forms_of_struct(kind)))
        is_dict = typing.is_typeddict(kind)
        is_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
        if not (is_dict or is_tuple or dataclasses.is_dataclass(kind) or attrs.has(kind)):
            raise Unfit(_called(hint))
        form: Form = "array" if is_tuple else "object"
        self.made[hint] = self._later(hint, name_of(kind), frozenset({form}))
        hints = self._hints(hint, kind)
        if is_dict:
            shapes = {name: self.of(each) for name, each in hints.items()}
            shape = typed_dict_of(kind, shapes, _required(own, hints))
        elif is_tuple:
            items = [self.of(hints.get(field, Any)) for field in own._fields]
            shape = tuple_of(name_of(kind), items, own._make, kind)
        else:
            shape = record_of(kind, [*self._fields(kind, hints)])
        self.made[hint] = shape
        return shape

    def _fields(self, kind: Any, hints: Mapping[str, Any]) -> Iterable[Field]:
        if attrs.has(kind):
            for attribute in attrs.fields(kind):
                name, shape = attribute.name, self.of(hints.get(attribute.name, Any))
                if attribute.init:
                    is_required = attribute.default is attrs.NOTHING
                    yield Field(name, attribute.alias or name, shape, is_required)
                else:
                    yield _late(kind, name, shape, _validator(attribute))
            return
        for name in kind.__dataclass_fields__:
            each = kind.__dataclass_fields__[name]
            if isinstance(each.type, dataclasses.InitVar) or str(each.type).startswith("InitVar"):
                raise Unfit(f"{name_of(kind)}: its {name} is gone once it is made (InitVar)")
        for field in dataclasses.fields(kind):
            shape = self.of(hints.get(field.name, Any))
            if field.init:
                is_required = (
                    field.default is dataclasses.MISSING
                    and field.default_factory is dataclasses.MISSING
                )
                yield Field(field.name, field.name, shape, is_required)
            else:
                yield _late(kind, field.name, shape)

    def _hints(self, hint: Any, kind: type) -> dict[str, Any]:
        """Return the annotations of its fields, with what stands for the types of a generic."""
        try:
            hints = get_type_hints(kind, include_extras=True)
        except NameError as error:
            raise Unfit(f"{name_of(kind)}: {error.name!r} is not there at run time") from error
        if typing.is_typeddict(kind):
            return _keys(kind, get_args(hint))
        found: dict[Any, Mapping[Any, Any]] = {}
        _note_stands(kind, get_args(hint), found)
        owners = {
            name: base for base in reversed(kind.__mro__) for name in inspect.get_annotations(base)
        }
        return {name: _with(each, found.get(owners[name], {})) for name, each in hints.items()}


def _late(
    kind: type, name: str, shape: Shape, check: Callable[[Any, Any], object] | None = None
) -> Field:
    """Return a field that `__init__` does not take."""
    known = inspect.getattr_static(kind, name, None)
    if isinstance(known, property) and known.fset is None:
        raise Unfit(f"{name_of(kind)}: its {name} is a property that cannot be set")
    return Field(name, name, shape, is_required=False, is_late=True, check=check)


def _validator(attribute: Any) -> Callable[[Any, Any], object] | None:
    validator = attribute.validator
    if validator is None:
        return None
    return lambda instance, value: validator(instance, attribute, value)


def _stands(kind: Any, args: Sequence[Any]) -> dict[Any, Any]:
    """Return what stands for the type variables of a generic class."""
    needs = getattr(kind, "__parameters__", ())
    if args and any(isinstance(each, typing.TypeVarTuple) for each in needs):
        raise Unfit(f"{name_of(kind)}: one of its type variables stands for any number of types")
    return dict(zip(needs, args, strict=False))


def _bases(kind: Any, stands: Mapping[Any, Any]) -> Iterable[tuple[Any, list[Any]]]:
    """Yield the bases of a class as it names them, each with its type arguments."""
    for base in kind.__dict__.get("__orig_bases__", kind.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and origin is not typing.Generic:
            yield origin, [_with(each, stands) for each in get_args(base)]


def _note_stands(kind: Any, args: Sequence[Any], found: dict[Any, Mapping[Any, Any]]) -> None:
    """Note what stands for the type variables of a class, and of each that it inherits from."""
    stands = _stands(kind, args)
    if stands or kind not in found:
        found[kind] = stands
    for base, its_args in _bases(kind, stands):
        _note_stands(base, its_args, found)


def _keys(kind: Any, args: Sequence[Any]) -> dict[str, Any]:
    """Return the annotations of a TypedDict, which has those of its bases as its own."""
    stands = _stands(kind, args)
    hints = get_type_hints(kind, include_extras=True)
    made = {name: _with(each, stands) for name, each in hints.items()}
    for base, its_args in _bases(kind, stands):
        if typing.is_typeddict(base):
            inherited = _keys(base, its_args)
            for name, each in get_type_hints(base, include_extras=True).items():
                if each == hints[name]:
                    made[name] = inherited[name]
    return made


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
    if type(hint).__module__ not in ("typing", "types", "collections.abc"):
        return shown(hint)  # whose repr is its own
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(hint))
    return shown(text)


def unread(text: str) -> Shape:
    """Return the shape of an annotation that cannot be read: anything that JSON has itself."""

    def to_wire(value: Any) -> Any:
        kind = type(value)
        if kind in FORMS or issubclass(kind, (str, int, float, list, dict, tuple, bytes)):
            return value
        what = f"is {kind_of(value)}, and its annotation {shown(text)!r} cannot be read"
        raise Wrong(f"{what}: at run time the module must have it")

    return attrs.evolve(ANY, name=text, to_wire=to_wire, exact=frozenset({*FORMS, tuple, bytes}))


def ungiven(text: str) -> Shape:
    """Return the shape of what nobody can be sent, and has its default for good."""

    def refuse(_: Any) -> Any:
        raise Wrong(f"cannot be given: nothing goes over the wire as {text}")

    return Shape(text, ANYTHING, refuse, refuse)


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
