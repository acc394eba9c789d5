"""What a class of another library would not bring over whole is refused where it is sent."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from pool import Handlers, Job
from pool.errors import ConfigError, PayloadEncodingError, WrongArguments
from pool.jobs.handlers import Handler
from pool.jobs.typed.contract import CodecName, Encoding, result_of
from pool.jobs.typed.converters import Wrong
from pool.jobs.typed.proof import check

if TYPE_CHECKING:
    from tests.nodes import Fleet

T = TypeVar("T")
CODECS = ("json", "msgspec")


class Payment(BaseModel):
    amount: int


class Card(Payment):
    number: str


class Order(BaseModel):
    payment: Payment
    others: list[Payment] = []
    by_name: dict[str, Payment] = {}


class Login(BaseModel):
    user: str
    password: SecretStr


class Excluded(BaseModel):
    kept: int
    dropped: int = Field(default=0, exclude=True)


class Private(BaseModel):
    kept: int
    _hidden: int = 0


class OneWay(BaseModel):
    at: date

    @pydantic.field_serializer("at")
    def _shown(self, at: date) -> str:
        return at.strftime("%d/%m/%Y")


class Counts(BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def _one_more(cls, n: int) -> int:
        return n + 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    due: date
    id: UUID
    tags: set[str]
    point: tuple[int, ...]


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    first: int = Field(alias="FIRST")


class Revealed(BaseModel):
    password: SecretStr

    @pydantic.field_serializer("password")
    def _text(self, password: SecretStr) -> str:
        return password.get_secret_value()


@pydantic.dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Item(msgspec.Struct):
    n: int


class Rare(Item):
    colour: str = "blue"


class Box(msgspec.Struct):
    item: Item


@dataclasses.dataclass
class Plain:
    n: int


@dataclasses.dataclass
class Sub(Plain):
    more: int = 0


def hidden() -> Private:
    value = Private(kept=1)
    value._hidden = 9
    return value


def registered(hint: Any, codec: Any) -> Handler[..., Any]:
    async def takes(job: Job, x: Any) -> Any:
        return x

    takes.__annotations__ = {"job": Job, "x": hint, "return": hint}
    return Handlers().job("takes", codec=codec)(takes)


ARRIVES: list[tuple[Any, Any]] = [
    (Strict, Strict(due=date(2026, 1, 1), id=UUID(int=1), tags={"a"}, point=(1, 2))),
    (Aliased, Aliased(FIRST=1)),
    (Annotated[Aliased, Field(description="with a mark")], Aliased(FIRST=1)),
    (Order, Order(payment=Payment(amount=1), others=[Payment(amount=2)])),
    (Revealed, Revealed(password=SecretStr("hunter2"))),
    (Excluded, Excluded(kept=1)),
    (Private, Private(kept=1)),
    (Open, Open(n=1, more=[1, {"a": None}])),  # type: ignore[call-arg]
    (Point, Point(1, 2.5)),
    (Box, Box(Item(1))),
    (Plain, Plain(1)),
    (Any, {"a": [1, 2.5, None, True, "x"], "b": {}}),
    (Any, [(1, 2), [3]]),
]

REFUSED: list[tuple[Any, Any, str, str]] = [
    (Login, Login(user="u", password=SecretStr("hunter2")), ".password", "another SecretStr"),
    (
        Order,
        Order(payment=Card(amount=1, number="4")),
        ".payment",
        "is Card, and would arrive as P",
    ),
    (
        Order,
        Order(payment=Payment(amount=1), others=[Card(amount=1, number="4")]),
        ".others[0]",
        "is Card, and",
    ),
    (
        Order,
        Order(payment=Payment(amount=1), by_name={"a": Card(amount=1, number="4")}),
        ".by_name['a']",
        "is Card, and",
    ),
    (Payment, Card(amount=1, number="4"), "", "is Card"),
    (Payment, {"amount": 1}, "", "is dict"),
    (Payment, Payment.model_construct(), "", "refused by pydantic"),
    (Payment, Payment.model_construct(amount="x"), "", "refused by pydantic"),
    (Excluded, Excluded(kept=1, dropped=5), ".dropped", "would arrive as another int"),
    (Private, hidden(), "._hidden", "would arrive as another int"),
    (OneWay, OneWay(at=date(2026, 1, 2)), "", "refused by pydantic"),
    (Counts, Counts(n=1), ".n", "would arrive as another int"),
    (Open, Open(n=1, at=date(2026, 1, 1)), ".at", "is date, and would arrive as str"),  # type: ignore[call-arg]
    (Item, Rare(1), "", "is Rare"),
    (Box, Box(Rare(1)), ".item", "is Rare, and would arrive as Item"),
    (Plain, Sub(1), "", "is Sub"),
    (Plain, {"n": 1}, "", "is dict"),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("hint", "value"), ARRIVES, ids=lambda each: str(each)[:40])
def test_what_survives_arrives(hint: Any, value: Any, codec: str) -> None:
    handler = registered(hint, codec)
    [back], _ = handler._arguments.decode("h", handler._arguments.encode("h", (value,), {}))
    result = handler._result
    for each in (back, value if result is None else result.decode(result.encode(value))):
        check(value, each)
        if hint is not Any:
            assert type(each) is type(value)
            assert each == value


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("hint", "value", "at", "why"), REFUSED, ids=range(len(REFUSED)))
def test_what_does_not_is_refused_where_it_is_sent(
    hint: Any, value: Any, at: str, why: str, codec: str
) -> None:
    """As an argument by its caller, as a result where it is returned; secrets are not told."""
    handler = registered(hint, codec)
    with pytest.raises(WrongArguments) as refused:
        handler._arguments.encode("h", (value,), {})
    assert handler._result is not None
    with pytest.raises(PayloadEncodingError) as unusable:
        handler._result.encode(value)
    for problem in (refused.value.problem, f"{unusable.value.path} {unusable.value.problem}"):
        assert why in problem
        assert at in problem
        assert "hunter2" not in problem


@pytest.mark.parametrize("value", [{1}, date(2026, 1, 1), Item(1), {"a": [UUID(int=1)]}])
def test_where_nothing_is_said_msgspec_sends_what_arrives_as_it_is(value: Any) -> None:
    handler = registered(Any, "msgspec")
    with pytest.raises(WrongArguments, match="would arrive as"):
        handler._arguments.encode("h", (value,), {})


class Local:
    """Neither library knows it."""


@pytest.mark.parametrize("hint", [Local, list[Local], dict[str, Local | None], Callable[[], int]])
@pytest.mark.parametrize("codec", CODECS)
def test_what_nobody_can_send_is_refused_at_registration(hint: Any, codec: CodecName) -> None:
    with pytest.raises(ConfigError, match="nothing can be given for its x"):
        registered(hint, codec)

    def returns(job: Job) -> None: ...

    returns.__annotations__["return"] = hint
    with pytest.raises(ConfigError, match="it returns what nobody can be sent"):
        Handlers().job("returns", codec=codec)(returns)

    def keeps(job: Job, x: Any = None) -> None: ...

    keeps.__annotations__["x"] = hint
    Handlers().job("keeps", codec=codec)(keeps)


@attrs.define
class Kept:
    _x: int
    y: int = 2


@dataclasses.dataclass
class KeptByDataclass:
    _x: int


@attrs.define
class KeptOrNot:
    _x: int = 1
    y: int = 2


@attrs.define
class KeptOf(Generic[T]):
    _x: T


@pytest.mark.parametrize("hint", [Kept, list[Kept], Kept | None, KeptOf[int]])
def test_a_private_attribute_that_msgspec_never_writes_is_refused_at_registration(
    hint: Any,
) -> None:
    said = "Kept.*, whose private _x msgspec does not write"
    with pytest.raises(ConfigError, match=f"nothing can be given for its x: {said}"):
        registered(hint, "msgspec")

    def returns(job: Job) -> None: ...

    returns.__annotations__["return"] = hint
    with pytest.raises(ConfigError, match=f"it returns what nobody can be sent: {said}"):
        Handlers().job("returns", codec="msgspec")(returns)
    registered(hint, "json")


def test_a_private_field_of_a_dataclass_arrives() -> None:
    """These msgspec does write."""
    handler = registered(KeptByDataclass, "msgspec")
    data = handler._arguments.encode("h", (KeptByDataclass(1),), {})
    assert handler._arguments.decode("h", data) == ((KeptByDataclass(1),), {})


def test_a_private_attribute_that_differs_from_its_default_is_refused_where_it_is_sent() -> None:
    handler = registered(KeptOrNot, "msgspec")
    data = handler._arguments.encode("h", (KeptOrNot(1, 5),), {})
    assert handler._arguments.decode("h", data) == ((KeptOrNot(1, 5),), {})
    with pytest.raises(WrongArguments, match="_x"):
        handler._arguments.encode("h", (KeptOrNot(2),), {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text("abc", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("hint", ["missing", Any, "NotThere", typing.NoReturn, object])
@given(value=JSON)
def test_a_result_of_which_nothing_is_said_is_any(hint: Any, value: Any) -> None:
    def returns(job: Job): ...  # type: ignore[no-untyped-def]

    if hint != "missing":
        returns.__annotations__["return"] = hint
    result = result_of("h", returns, Encoding("msgspec"))
    assert result is not None
    assert result.decode(result.encode(value)) == value


class Word(str):
    __slots__ = ()


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (Word("a"), "a"),
        (Colour.RED, "red"),
        (True, 1.0),
        (1, 1.0),
        ((1, [2]), [1, [2]]),
        (float("nan"), float("nan")),
        ({"a": Decimal(1)}, {"a": Decimal("1.0")}),
        ({1, 2}, {2, 1}),
        (timedelta(1), timedelta(1)),
    ],
    ids=str,
)
def test_what_goes_as_its_base_is_the_same(value: Any, back: Any) -> None:
    check(value, back)


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (1, True),
        ("1", 1),
        ([1], (1,)),
        ({1}, frozenset({1})),
        ([1, True], [True, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, {"b": 1}),
        ({1: 1}, {"1": 1}),
        ([Plain(1)], [Sub(1)]),
        ({Plain}, {Sub}),
    ],
    ids=str,
)
def test_what_differs_is_found(value: Any, back: Any) -> None:
    with pytest.raises(Wrong):
        check(value, back)


def test_what_leads_back_to_itself_ends() -> None:
    mine: list[Any] = [1]
    mine.append(mine)
    other: list[Any] = [1]
    other.append(other)
    check(mine, other)


# --- the hour that a clock shows twice ----------------------------------------------------------

FOLDS = [
    datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Paris")) for fold in (0, 1)
] + [datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Paris"))]  # this hour is left out


class Moment(BaseModel):
    """A model with a moment, and moments where they are compared by their hash."""

    model_config = ConfigDict(frozen=True)

    when: datetime
    among: frozenset[datetime] = frozenset()
    of: dict[datetime, int] = {}
    pairs: frozenset[tuple[datetime, int]] = frozenset()


class Held(msgspec.Struct, frozen=True):
    """The same as a struct, also in a set of structs."""

    when: datetime
    among: frozenset[datetime] = frozenset()


@pytest.mark.parametrize("when", FOLDS)
def test_a_moment_in_the_hour_that_a_clock_shows_twice_arrives(when: datetime) -> None:
    """PEP 495: there no datetime of a zone with such an hour equals any of another zone."""
    fixed = datetime.fromisoformat(when.isoformat())
    assert fixed != when
    pairs = frozenset({(when, 2)})
    model = Moment(when=when, among=frozenset({when}), of={when: 1}, pairs=pairs)
    check(model, Moment.model_validate_json(model.model_dump_json()))
    check([model, {"k": when}], [Moment.model_validate_json(model.model_dump_json()), {"k": fixed}])
    struct = Held(when, frozenset({when}))
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(struct), type=Held)
    check(struct, back)
    check({struct, Held(FOLDS[0])}, {back, Held(FOLDS[0])})
    check([when, when], [fixed, fixed])


HOLDING: dict[str, Callable[[Any], Any]] = {
    "list": lambda when: [when],
    "tuple": lambda when: (when, 1),
    "deque": lambda when: deque([when]),
    "set": lambda when: {when},
    "frozenset in a list": lambda when: [frozenset({(when, 1)})],
    "key": lambda when: {when: [1]},
    "value": lambda when: {"k": {"l": when}},
    "named tuple": lambda when: Named(when, [when]),
    "dataclass": lambda when: Compared(when, {"k": [when]}),
    "attrs": lambda when: Defined(when, {when}),
    "struct in a set": lambda when: {Held(when)},
    "struct in a model's list": lambda when: [Moment(when=when), (Held(when),)],
}


class Named(NamedTuple):
    when: datetime
    more: list[datetime]


@dataclasses.dataclass
class Compared:
    when: datetime
    more: dict[str, list[datetime]]


@attrs.define
class Defined:
    when: datetime
    more: set[datetime]


@pytest.mark.parametrize("holder", HOLDING)
@pytest.mark.parametrize("when", FOLDS)
def test_such_a_moment_arrives_whatever_holds_it(when: datetime, holder: str) -> None:
    fixed = datetime.fromisoformat(when.isoformat())
    check(HOLDING[holder](when), HOLDING[holder](fixed))
    with pytest.raises(Wrong):
        check(HOLDING[holder](when), HOLDING[holder](fixed + timedelta(hours=1)))


@pytest.mark.parametrize("when", FOLDS)
def test_another_moment_is_still_refused(when: datetime) -> None:
    other = datetime.fromisoformat(when.isoformat()) + timedelta(hours=1)
    for mine, back in (
        (when, other),
        ({when}, {other}),
        (frozenset({Held(when)}), frozenset({Held(other)})),
        ({when: 1}, {other: 1}),
        (Moment(when=when), Moment(when=other)),
        (when, other.replace(tzinfo=None)),
    ):
        with pytest.raises(Wrong):
            check(mine, back)


@pytest.mark.anyio
async def test_a_job_that_returns_such_a_moment_is_done(fleet: Fleet) -> None:
    """Its work is done: what it returns must not be refused then."""
    handlers = Handlers()

    @handlers.job("model", attempts_max=1)
    async def model(job: Job, at: Moment) -> Moment:
        return Moment(when=at.when.astimezone(FOLDS[0].tzinfo))

    @handlers.job("struct", attempts_max=1, codec="msgspec")
    async def struct(job: Job, at: Held) -> Held:
        return Held(at.when.astimezone(FOLDS[0].tzinfo))

    node = await fleet.node(handlers)
    for when in FOLDS[:2]:
        first = await (await node.dispatch(model, "k", Moment(when=when))).result(timeout_s=20)
        second = await (await node.dispatch(struct, "k", Held(when))).result(timeout_s=20)
        assert first.when.astimezone(UTC) == second.when.astimezone(UTC) == when.astimezone(UTC)
