"""Every type that an annotation may name: there and back, over JSON, and what is refused."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.core.codec import decode_value, encode_value
from pool.jobs.typed.annotations import shape_of
from pool.jobs.typed.converters import ANY, NEVER, Unfit, Wrong

T = TypeVar("T")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")
Customer = NewType("Customer", int)
NOW = datetime(2026, 3, 29, 1, 30, 0, 17, tzinfo=timezone(timedelta(hours=2)))
TINY = timezone(timedelta(microseconds=1))
DAY = date(2026, 1, 2)
ID = UUID("0190b8a6-7b1c-7d3e-8f00-0123456789ab")


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"
    CRIMSON = "r"  # noqa: PIE796 - another name of RED


class Size(enum.IntEnum):
    S = 1
    L = 3


class Odd(enum.Enum):
    PAIR = (1, 2)
    REST = None


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    item: str
    price: Decimal
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    id: UUID
    lines: list[Line] = field(default_factory=list)
    count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if len(self.lines) > 3:
            raise ValueError("too many lines")
        object.__setattr__(self, "count", len(self.lines))


@attrs.define
class Person:
    name: str
    _born: date
    tags: frozenset[str] = frozenset()


class Row(TypedDict):
    id: int
    when: NotRequired[datetime]


class Flat(TypedDict, total=False):
    id: int


class Point(NamedTuple):
    x: int
    at: datetime


@dataclass
class Tree:
    value: int
    left: Tree | None = None
    others: list[Tree] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    inside: list[T]
    first: T | None = None


class Model(pydantic.BaseModel):
    id: int = pydantic.Field(alias="ID", gt=0)
    when: datetime
    of: Model | None = None


@pydantic.dataclasses.dataclass
class Checked:
    count: Annotated[int, pydantic.Field(gt=0)]


class Struct(msgspec.Struct):
    id: int
    when: datetime
    tags: set[str] = set()


class Paid(msgspec.Struct, tag=True):
    by: str


class Due(msgspec.Struct, tag=True):
    days: int


class Paid2(msgspec.Struct, tag="Paid"):
    by: str


class Own(str):  # noqa: SLOT000 - as people write it
    """Text that equals nothing but itself."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]

# The clock shows this hour twice in both zones, so none of one equals any of the other (PEP 495).
TWICE: set[datetime] = {
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Paris")),
    datetime(2026, 10, 25, 3, 30, tzinfo=ZoneInfo("Europe/Helsinki")),
}


class DateBox(Box[date]):
    """Its fields are those of a generic class."""


@dataclass
class OtherBox(Box[V], Generic[V]):
    other: V | None = None


@attrs.define
class Two(Generic[T, V]):
    one: T
    two: list[V]


@attrs.define
class Swap(Two[V, T], Generic[T, V]):
    more: T


class Keys(TypedDict, Generic[T]):
    one: T
    two: NotRequired[list[T]]


class DateKeys(Keys[date]):
    three: int


class Pair(NamedTuple, Generic[T]):
    one: T


class DatePair(Pair[date]):
    pass


class Plain:
    pass


@dataclass
class Late:
    id: int
    status: str = field(init=False, default="new")
    since: datetime = field(init=False)


@attrs.frozen
class Frozen:
    id: int
    _status: str = attrs.field(init=False, default="new", validator=attrs.validators.max_len(8))


@dataclass
class Derived(Late):
    @property  # type: ignore[misc]
    def since(self) -> datetime:  # type: ignore[override]
        return NOW


@dataclass
class Locked:
    lock: Plain = field(init=False)


def late(value: V, **fields: Any) -> V:
    for each, item in fields.items():
        object.__setattr__(value, each, item)
    return value


# Annotation, a value, and what it is in JSON.
PLAIN: list[tuple[Any, Any, Any]] = [
    (Any, {"a": [1]}, {"a": [1]}),
    (object, None, None),
    (None, None, None),
    (bool, True, True),
    (int, -(10**30), -(10**30)),
    (float, 0.1, 0.1),
    (float, 2, 2.0),
    (float, 2**53 + 1, 2**53 + 1),
    (float, 10**400, 10**400),
    (int, True, 1),
    (float | int, True, 1),
    (str, "é", "é"),
    (list, [1, "a"], [1, "a"]),
    (list[int], [1, 2], [1, 2]),
    (dict, {"a": 1}, {"a": 1}),
    (dict[str, list[float]], {"a": [0.5]}, {"a": [0.5]}),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (Sequence[str], ["a"], ["a"]),
    (Iterable[int], [1], [1]),
    (int | str | None, None, None),
    (Optional[list[str]], ["a"], ["a"]),  # noqa: UP045 - as older programs write it
    (Union[int, list[int]], [1], [1]),  # noqa: UP007
    (Literal["a", 1] | None, 1, 1),
    (Customer, 7, 7),
    (Annotated[int, "in cents"], 7, 7),
    (Flat, {"id": 1}, {"id": 1}),
]
TYPED: list[tuple[Any, Any, Any]] = [
    (datetime, NOW, "2026-03-29T01:30:00.000017+02:00"),
    (datetime, datetime(2026, 1, 1), "2026-01-01T00:00:00"),  # noqa: DTZ001 - it stays naive
    (date, date(2026, 1, 2), "2026-01-02"),
    (time, time(1, 2, 3, tzinfo=UTC), "01:02:03+00:00"),
    (timedelta, timedelta(days=1, seconds=30, microseconds=5), "P1DT30.000005S"),
    (timedelta, -timedelta(seconds=1), "-P0DT1S"),
    (UUID, ID, str(ID)),
    (Decimal, Decimal("1.10"), "1.10"),
    (bytes, b"\xff\x00", "/wA="),
    (Color, Color.BLUE, "b"),
    (Color, Color.CRIMSON, "r"),
    (Size, Size.L, 3),
    (Odd, Odd.PAIR, "PAIR"),
    (Odd, Odd.REST, "REST"),
    (Right, Right.READ | Right.WRITE, 3),
    (Literal["a", Color.RED], Color.RED, "r"),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (tuple[datetime, ...], (NOW,), [NOW.isoformat()]),
    (tuple[()], (), []),
    (tuple, (1, "a"), [1, "a"]),
    (set[int], {3, 1, 2}, [1, 2, 3]),
    (frozenset[UUID], frozenset({ID}), [str(ID)]),
    (AbstractSet[str], {"b", "a"}, ["a", "b"]),
    (list[bytes], [b"a"], ["YQ=="]),
    (dict[UUID, date], {ID: date(2026, 1, 2)}, {str(ID): "2026-01-02"}),
    (dict[int, str], {-1: "a", 10: "b"}, {"-1": "a", "10": "b"}),
    (Line, Line("a", Decimal(1)), {"item": "a", "price": "1", "at": None}),
    (Order, Order(id=ID, lines=[]), {"id": str(ID), "lines": [], "count": 0}),
    (
        Order,
        Order(id=ID, lines=[Line("a", Decimal("0.5"), NOW)]),
        {
            "id": str(ID),
            "lines": [{"item": "a", "price": "0.5", "at": NOW.isoformat()}],
            "count": 1,
        },
    ),
    (
        Late,
        late(Late(7), status="paid", since=NOW),
        {"id": 7, "status": "paid", "since": NOW.isoformat()},
    ),
    (Frozen, late(Frozen(7), _status="paid"), {"id": 7, "_status": "paid"}),
    (
        Person,
        Person("A", date(1815, 12, 10), frozenset(["b", "a"])),
        {"name": "A", "_born": "1815-12-10", "tags": ["a", "b"]},
    ),
    (Row, {"id": 1}, {"id": 1}),
    (Row, {"id": 1, "when": NOW}, {"id": 1, "when": NOW.isoformat()}),
    (Point, Point(1, NOW), [1, NOW.isoformat()]),
    (
        Tree,
        Tree(1, Tree(2), [Tree(3)]),
        {
            "value": 1,
            "left": {"value": 2, "left": None, "others": []},
            "others": [{"value": 3, "left": None, "others": []}],
        },
    ),
    (Box[date], Box([date(2026, 1, 2)]), {"inside": ["2026-01-02"], "first": None}),
    (DateBox, DateBox([DAY], DAY), {"inside": ["2026-01-02"], "first": "2026-01-02"}),
    (
        OtherBox[date],
        OtherBox([DAY], other=DAY),
        {"inside": ["2026-01-02"], "first": None, "other": "2026-01-02"},
    ),
    (
        Swap[date, int],
        Swap(1, [DAY], DAY),
        {"one": 1, "two": ["2026-01-02"], "more": "2026-01-02"},
    ),
    (
        DateKeys,
        {"one": DAY, "two": [DAY], "three": 3},
        {"one": "2026-01-02", "two": ["2026-01-02"], "three": 3},
    ),
    (DatePair, DatePair(DAY), ["2026-01-02"]),
    (Model, Model(ID=1, when=NOW), {"id": 1, "when": NOW.isoformat(), "of": None}),
    (Checked, Checked(2), {"count": 2}),
    (Pet, Dog(kind="dog"), {"kind": "dog"}),
    (Annotated[int, pydantic.Field(gt=0)], 3, 3),
    (Struct, Struct(1, NOW, {"a"}), {"id": 1, "when": NOW.isoformat(), "tags": ["a"]}),
    (Annotated[int, msgspec.Meta(gt=0)], 3, 3),
    (datetime | None, None, None),
    (datetime | int, NOW, NOW.isoformat()),
    (datetime | int | float, 2, 2),
    # What cannot be told apart in JSON goes with its name; None never does.
    (datetime | str, "a", {"str": "a"}),
    (datetime | str, NOW, {"datetime": NOW.isoformat()}),
    (Line | Box[int] | None, None, None),
    (Line | Person, Line("a", Decimal(1)), {"Line": {"item": "a", "price": "1", "at": None}}),
    (Model | Struct, Struct(1, NOW), {"Struct": {"id": 1, "when": NOW.isoformat(), "tags": []}}),
    (dict[str, int] | Checked, {"count": 2}, {"dict[str, int]": {"count": 2}}),
    # By msgspec's own tags.
    (Paid | Due | None, Due(3), {"type": "Due", "days": 3}),
    (Paid | Due | None, None, None),
    (list[Paid | Due | int], [Paid("a"), 5], [{"type": "Paid", "by": "a"}, 5]),
    (Paid | Due | Line, Paid("a"), {"Paid | Due": {"type": "Paid", "by": "a"}}),
    (Paid | Paid2, Paid("a"), {"Paid": {"type": "Paid", "by": "a"}}),
]


def over_the_wire(wire: Any) -> Any:
    return decode_value(encode_value(wire))


def name(case: object) -> str:
    if isinstance(case, str) and " " in case:
        return case[:40]
    return getattr(case, "__name__", type(case).__name__)


@pytest.mark.parametrize(("hint", "value", "wire"), PLAIN, ids=name)
def test_what_json_has_itself_stays_as_it_is(hint: Any, value: Any, wire: Any) -> None:
    shape = shape_of(hint)
    assert shape.is_plain
    made = shape.to_wire(value)
    assert (made, repr(made)) == (wire, repr(wire))
    assert value == wire
    assert shape.from_wire(over_the_wire(made)) == value


@pytest.mark.parametrize(("hint", "value", "wire"), TYPED, ids=name)
def test_each_type_comes_back_as_it_went(hint: Any, value: Any, wire: Any) -> None:
    shape = shape_of(hint)
    sent = over_the_wire(shape.to_wire(value))
    assert sent == wire
    back = shape.from_wire(sent)
    assert back == value
    assert type(back) is type(value)
    assert not shape.is_plain


TEXTS_OF: dict[Any, st.SearchStrategy[Any]] = {
    datetime: st.datetimes() | st.datetimes(timezones=st.just(UTC)),
    date: st.dates(),
    time: st.times() | st.times(timezones=st.just(UTC)),
    timedelta: st.timedeltas(),
    UUID: st.uuids(),
    Decimal: st.decimals(),
}


@pytest.mark.slow
@given(st.data(), st.sampled_from([(one, each) for one, some in NEVER.items() for each in some]))
def test_what_is_never_the_text_of_another_type_is_refused_as_one(
    data: st.DataObject, pair: tuple[Any, Any]
) -> None:
    one, other = pair
    text = shape_of(one).to_wire(data.draw(TEXTS_OF[one]))
    with pytest.raises(Wrong):
        shape_of(other).from_wire(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("P1D", timedelta(1)),
        ("PT30S", timedelta(seconds=30)),
        ("-PT30.5S", -timedelta(seconds=30.5)),
        ("P1W2DT3H4M5,25S", timedelta(9, hours=3, minutes=4, seconds=5.25)),
        ("P999999999DT86399.999999S", timedelta.max),
        ("-P999999999D", timedelta.min),
    ],
)
def test_a_duration_is_read_as_others_write_it(text: str, value: timedelta) -> None:
    assert shape_of(timedelta).from_wire(text) == value


def test_whole_numbers_of_each_kind_are_keys() -> None:
    shape = shape_of(dict[int, str])
    assert shape.to_wire({Size.L: "a", True: "b"}) == {"3": "a", "1": "b"}
    assert shape.from_wire({"3": "a"}) == {3: "a"}


AWARE = st.datetimes(timezones=st.just(UTC))
LINES = st.builds(
    Line, st.text(st.characters(exclude_categories=["Cs"])), st.decimals(allow_nan=False), AWARE
)
POINTS = st.builds(Point, st.integers(), AWARE)
ANY_OF: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (datetime, st.datetimes() | AWARE),
    (timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False)),
    (time, st.times()),
    (date, st.dates()),
    (UUID, st.uuids()),
    (bytes, st.binary()),
    (dict[int, float], st.dictionaries(st.integers(), st.floats(-1e9, 1e9))),
    (set[int | UUID], st.sets(st.integers() | st.uuids())),
    (tuple[Color, Right], st.tuples(st.sampled_from(Color), st.sampled_from(Right))),
    (Order, st.builds(Order, id=st.uuids(), lines=st.lists(LINES, max_size=3))),
    (list[Line | Point | None], st.lists(st.none() | LINES | POINTS)),
    (Struct, st.builds(Struct, st.integers(-(2**63), 2**63), AWARE, st.just({"b", "a"}))),
    (
        Box[Line | datetime],
        st.builds(Box[Line | datetime], st.lists(LINES | AWARE), st.none() | AWARE),
    ),
]


@pytest.mark.parametrize(("hint", "values"), ANY_OF, ids=name)
def test_any_value_of_a_type_comes_back(hint: Any, values: st.SearchStrategy[Any]) -> None:
    shape = shape_of(hint)

    @settings(max_examples=40, deadline=None)
    @given(values)
    def comes_back(value: Any) -> None:
        assert shape.from_wire(over_the_wire(shape.to_wire(value))) == value

    comes_back()


def test_equal_sets_are_equal_bytes() -> None:
    """Else a repeated dispatch would be one with other arguments."""
    shape = shape_of(set[str])
    some = {f"n{i}" for i in range(50)}
    other = set[str]()
    other.update(sorted(some, reverse=True))
    assert shape.to_wire(some) == sorted(some)
    assert encode_value(shape.to_wire(some)) == encode_value(shape.to_wire(other))


class Later(datetime):
    pass


@dataclass
class Special(Line):
    more: int = 0


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

# Annotation, what is sent, and what the refusal says.
NOT_SENT: list[tuple[Any, Any, str]] = [
    (int, "5", "is str, expected int"),
    (int, 5.0, "is float, expected int"),
    (str, 5, "is int, expected str"),
    (str, None, "is None, expected str"),
    (bool, 1, "is int, expected bool"),
    (None, 0, "is int, expected None"),
    (list[int], [1, "2"], "[1] is str, expected int"),
    (list[int], (1,), "is tuple, expected list[int]"),
    (Sequence[str], "abc", "is str, expected Sequence[str]"),
    (dict[str, int], {"a": None}, "['a'] is None, expected int"),
    (dict[int, str], {"1": "a"}, "has the key '1', which is str, expected int"),
    (datetime, "2026-01-01", "is str, expected datetime"),
    (datetime, date(2026, 1, 1), "is date, expected datetime"),
    (datetime, Later(2026, 1, 1), "is Later, expected datetime"),
    (datetime, NOW.replace(tzinfo=TINY), "has an offset of less than a second"),
    (time, time(tzinfo=TINY), "has an offset of less than a second"),
    (date, NOW, "is datetime, expected date"),
    (Decimal, 1.5, "is float, expected Decimal"),
    (UUID, str(ID), "is str, expected UUID"),
    (bytes, "a", "is str, expected bytes"),
    (Color, "r", "is str, expected Color"),
    (Literal["a", 1], True, "True is not Literal['a', 1]"),
    (Literal["a"], [], "<list> is not Literal['a']"),
    (tuple[int, str], (1,), "has 1 items, expected 2"),
    (tuple[int, str], (1, 2), "[1] is int, expected str"),
    (tuple[int, ...], [1], "is list, expected tuple[int, ...]"),
    (set[int], [1], "is list, expected set[int]"),
    (Line, {"item": "a"}, "is dict, expected Line"),
    (Line, Special("a", Decimal(1)), "is Special, expected Line"),
    (Line, Line("a", 1.5), ".price is float, expected Decimal"),  # type: ignore[arg-type]
    (Order, Order(id=ID, lines=[Line(1, Decimal(1))]), ".lines[0].item is int, expected str"),  # type: ignore[arg-type]
    (Row, {}, "lacks id: Row"),
    (Row, {"id": 1, "more": 2}, "has the key 'more', which Row does not have"),
    (Row, {"id": 1, "when": "now"}, "['when'] is str, expected datetime"),
    (Point, (1, NOW), "is tuple, expected Point"),
    (DateBox, DateBox(["a"]), "inside[0] is str, expected date"),  # type: ignore[list-item]
    (DateKeys, {"one": 1, "three": 3}, "['one'] is int, expected date"),
    (set[str], {Own("a"), Own("a")}, "has two items that are one where they arrive"),
    (set, {Own("a"), Own("a")}, "has two items that are one where they arrive"),
    (set[datetime], TWICE, "has two items that are one where they arrive"),
    (dict[datetime, int], dict.fromkeys(TWICE, 1), "has two keys that are one where they arrive"),
    (Paid | Due, Paid2("a"), "is Paid2, expected Paid | Due"),
    (Paid | Due, {"type": "Due", "days": 1}, "is dict, expected Paid | Due"),
    (int | None, "a", "is str, expected int | None"),
    (Line | Person, 1, "is int, expected Line | Person"),
    (dict[int, str], {"a": "b"}, "has the key 'a', which is str, expected int"),
    (list[int] | None, [1, "a"], "[1] is str, expected int"),
    (dict[str, list[Decimal]] | str, {"a": [1]}, "['a'][0] is int, expected Decimal"),
    (UUID, type("UUID", (), {"__module__": "app.ids"})(), "is another UUID, of app.ids, expected"),
    (Model, {"id": 1}, "is dict, expected Model"),
    (Model, Model.model_construct(id="x", when=NOW, of=None), "is refused by pydantic: "),
    (Annotated[int, pydantic.Field(gt=0)], 0, "is refused by pydantic: "),
    (Annotated[int, pydantic.Field(gt=0)], "3", "is refused by pydantic: "),
    (Struct, Struct("1", NOW), "is refused by msgspec: "),  # type: ignore[arg-type]
    (Struct, {"id": 1}, "is dict, expected Struct"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, "is refused by msgspec: "),
    ("Missing", object(), "is object, and its annotation 'Missing' cannot be read"),
]
# Annotation, what stands in JSON, and what the refusal says.
NOT_TAKEN: list[tuple[Any, Any, str]] = [
    (int, "5", "is str, expected int"),
    (list[int], [1, None], "[1] is None, expected int"),
    (datetime, 5, "is int, expected the text of a datetime"),
    (datetime, "soon", "'soon' is not the text of a datetime"),
    (timedelta, "P1M", "'P1M' is not the text of a timedelta"),
    (timedelta, "PT", "'PT' is not the text of a timedelta"),
    (timedelta, "PT0.0000001S", "'PT0.0000001S' is not the text of a timedelta"),
    (timedelta, "P9999999999DT0S", "'P9999999999DT0S' is not the text of a timedelta"),
    (Decimal, "one", "'one' is not the text of a Decimal"),
    (bytes, "a", "'a' is not base 64"),
    (bytes, 5, "is int, expected bytes, or their text in base 64"),
    (Color, "x", "x is none of Color"),
    (Color, [], "<list> is none of Color"),
    (Size, True, "True is none of Size"),
    (Right, 8, "8 is none of Right"),
    (tuple[int, str], [1], "has 1 items, expected 2"),
    (tuple[int, str], {"0": 1}, "is dict, expected a list, for tuple[int, str]"),
    (dict[int, str], {"a": "b"}, "has the key 'a', which is not the text of an int"),
    (dict[Decimal, int], {"1": 1, "1.0": 2}, "has two keys that become one"),
    (Line, [], "is list, expected a dict, for Line"),
    (Line, {"item": "a"}, "lacks price: Line"),
    (Line, {"item": "a", "price": "1", "m": 1}, "has the field 'm', which Line does not have"),
    (Line, {"item": "a", "price": 1}, ".price is int, expected the text of a Decimal"),
    (Person, {"name": "a"}, "lacks _born: Person"),
    (datetime | int, [], "is list, expected datetime | int"),
    (Line | Person, {"Line": {}}, "['Line'] lacks item, price: Line"),
    (Line | Person, {"Other": {}}, "is dict, expected one of Line | Person, by its name"),
    (Model, {"id": -1, "when": "2026-01-01"}, "is refused by pydantic: "),
    (Struct, {"id": 1}, "is refused by msgspec: "),
]


@pytest.mark.parametrize(("hint", "value", "said"), NOT_SENT, ids=name)
def test_what_is_not_of_the_type_is_not_sent(hint: Any, value: Any, said: str) -> None:
    with pytest.raises(Wrong) as caught:
        shape_of(hint).to_wire(value)
    assert said in f"{caught.value.path} {caught.value.problem}".strip()


@pytest.mark.parametrize(("hint", "wire", "said"), NOT_TAKEN, ids=name)
def test_what_cannot_be_of_the_type_is_not_taken(hint: Any, wire: Any, said: str) -> None:
    with pytest.raises(Wrong) as caught:
        shape_of(hint).from_wire(wire)
    assert said in f"{caught.value.path} {caught.value.problem}".strip()


def test_what_a_class_refuses_itself_is_its_own_error() -> None:
    line = {"item": "a", "price": "1", "at": None}
    with pytest.raises(ValueError, match="too many lines"):
        shape_of(Order).from_wire({"id": str(ID), "lines": [line] * 4})


def test_a_field_that_is_set_late_may_be_missing_and_is_checked() -> None:
    """It has its default if its sender does not know it."""
    assert shape_of(Frozen).from_wire({"id": 7}) == Frozen(7)
    with pytest.raises(ValueError, match="must be <= 8"):
        shape_of(Frozen).from_wire({"id": 7, "_status": "a" * 9})
    without = shape_of(Late).from_wire(shape_of(Late).to_wire(Late(7)))
    assert (without.status, hasattr(without, "since")) == ("new", False)
    with pytest.raises(Wrong) as caught:
        shape_of(Late).from_wire({"id": 7, "status": 5})
    assert caught.value.path == ".status"


@dataclass
class Gone:
    seed: InitVar[int]
    value: int = 0


@dataclass
class Many(Generic[*Ts]):
    items: tuple[*Ts]


@dataclass
class Unknown:
    value: Missing  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Plain, "Plain"),
        (list[Plain], "Plain"),
        (complex, "complex"),
        (dict[float, int], "a key is text in JSON, and float is not"),
        (dict[Line, int], "a key is text in JSON, and Line is not"),
        (Gone, "its seed is gone once it is made"),
        (Unknown, "Unknown: 'Missing' is not there at run time"),
        (Derived, "Derived: its since is a property that cannot be set"),
        (Locked, "Plain"),
        (typing.Callable[[], int], "Callable"),
        (Literal[b"a"], "Literal"),
        (Literal[Color.RED, "r"], "two of its values are the same in JSON"),
        (Literal[Size.S, 1], "two of its values are the same in JSON"),
        (tuple[int, *tuple[str, ...]], r"\*tuple\[str, ...\]: an unpacked type"),
        (Many[int, str], "Many: one of its type variables"),
    ],
    ids=name,
)
def test_what_cannot_go_over_the_wire_is_said_at_once(hint: Any, said: str) -> None:
    with pytest.raises(Unfit, match=said):
        shape_of(hint)


def test_what_cannot_be_read_lets_pass_what_json_has() -> None:
    shape = shape_of("Missing")
    for value in (None, 1, "a", [1], {"a": 1}, (1,), b"a"):
        assert shape.to_wire(value) is value
        assert shape.from_wire(value) is value
    assert shape_of(T) is ANY
    assert shape_of(typing.Never) is ANY
