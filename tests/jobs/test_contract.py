"""What a handler takes and returns, at both ends; without a server."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import builtins
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import annotated_types
import attrs
import msgspec
import pydantic
import pytest

from pool import Depends, Handler, Handlers, Job
from pool.core.codec import encode_call, head
from pool.errors import (
    CodecMissing,
    ConfigError,
    InvalidOption,
    PayloadEncodingError,
    UnknownVersion,
    WrongArguments,
)
from pool.jobs.typed import msgpack

if TYPE_CHECKING:
    from fractions import Fraction

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    id: int
    at: datetime


class Model(pydantic.BaseModel):
    at: datetime


class Struct(msgspec.Struct):
    at: datetime


@attrs.frozen
class Backwards:
    """A codec of the user's own."""

    name: str = "backwards"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        return eval(data[::-1])  # noqa: S307 - of a test's own making


def registered(fn: Callable[..., Any], **options: Any) -> Handler[..., Any]:
    made: Handler[..., Any] = Handlers().job("h", **options)(fn)
    return made


def encoded(handler: Handler[..., Any], *args: Any, **kwargs: Any) -> bytes:
    return handler._arguments.encode("h", args, kwargs)


def decoded(handler: Handler[..., Any], data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = handler._arguments.decode("h", data)
    return tuple(args), dict(kwargs)


def refused(handler: Handler[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(WrongArguments) as caught:
        encoded(handler, *args, **kwargs)
    assert caught.value.handler == "h"
    return caught.value.problem


def client() -> object:
    return object()


def bare(job, a, b=1):  # type: ignore[no-untyped-def]
    """Without annotations."""


def plain(job: Job, to: str, n: int = 1, *, flag: bool = False) -> None: ...
def many(job: Job, *numbers: int, **names: Decimal) -> None: ...
def typed(job: Job, at: datetime, *, order: Order | None = None) -> Order: ...
def needs(job: Job, to: str, of: object = Depends(client), n: int = 1) -> None: ...
def noted(job: Job, to: str, *, of: Annotated[object, Depends(client)]) -> None: ...
def lone(job: Job, data: bytes) -> bytes: ...
def none(job: Job) -> None: ...


# --- arity and types, where it is dispatched ----------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "said"),
    [
        (bare, (), {}, "missing a required argument: 'a'"),
        (bare, (1, 2, 3), {}, "too many positional arguments"),
        (bare, (1,), {"c": 1}, "got an unexpected keyword argument 'c'"),
        (bare, (1,), {"a": 1}, "multiple values for argument 'a'"),
        (none, (1,), {}, "too many positional arguments"),
        (plain, (5,), {}, "to is int, expected str"),
        (plain, ("a", "b"), {}, "n is str, expected int"),
        (plain, ("a", 1, True), {}, "too many positional arguments"),
        (plain, ("a",), {"flag": 1}, "flag is int, expected bool"),
        (plain, (), {"to": None}, "to is None, expected str"),
        (many, (1, "2"), {}, "argument 2 is str, expected int"),
        (many, (), {"a": 1}, "a is int, expected Decimal"),
        (typed, ("2026-01-01",), {}, "at is str, expected datetime"),
        (typed, (NOW,), {"order": Order(1, "x")}, "order.at is str, expected datetime"),  # type: ignore[arg-type]
        (needs, ("a", 2), {}, "too many positional arguments"),
        (needs, ("a",), {"of": 1}, "got an unexpected keyword argument 'of'"),
        (noted, ("a",), {"of": 1}, "got an unexpected keyword argument 'of'"),
        (lone, ("a",), {}, "data is str, expected bytes"),
    ],
)
def test_what_the_handler_does_not_take_is_refused(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    assert said in refused(registered(fn), *args, **kwargs)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "data"),
    [
        (bare, (1, "b"), {}, b'[1,"b"]'),
        (bare, (), {"a": 1}, b'{"args":[],"kwargs":{"a":1}}'),
        (none, (), {}, b""),
        (plain, ("a",), {}, b'["a"]'),
        (plain, ("a", 2), {"flag": True}, b'{"args":["a",2],"kwargs":{"flag":true}}'),
        (many, (1, 2), {}, b"[1,2]"),
        (many, (), {"a": Decimal("1.0")}, b'{"args":[],"kwargs":{"a":"1.0"}}'),
        (typed, (NOW,), {}, b'["2026-01-01T00:00:00+00:00"]'),
        (needs, ("a",), {"n": 2}, b'{"args":["a"],"kwargs":{"n":2}}'),
        (noted, ("a",), {}, b'["a"]'),
        (lone, (b"\xff",), {}, b"\x00\xff"),
    ],
)
def test_what_it_takes_comes_back(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], data: bytes
) -> None:
    handler = registered(fn)
    for _ in range(2):  # the second time its types are known
        assert encoded(handler, *args, **kwargs) == data
        assert decoded(handler, data) == (args, kwargs)


def test_types_that_are_known_are_not_looked_at_again_and_others_are() -> None:
    handler = registered(plain)
    encoded(handler, "a", 1)
    assert handler._arguments.fine == {(str, int)}
    assert refused(handler, "a", "b")
    encoded(handler, "a", flag=True)
    assert handler._arguments.fine == {(str, int)}
    # Of these, the type does not say all.
    for fn, args in ((typed, (NOW,)), (many, (1, 2))):
        again = registered(fn)
        encoded(again, *args)
        assert (again._arguments.fine == {(int, int)}) == (fn is many)


def test_what_is_fast_for_good_values_refuses_bad_ones_of_the_same_types() -> None:
    for fn in (bare, plain):
        handler = registered(fn)
        good = ("a", 1)
        for value in (good, ("b", 2)):
            assert encoded(handler, *value) == encode_call(value, {})
        assert (str, int) in handler._arguments.flat
        with pytest.raises(PayloadEncodingError, match="lone surrogate") as caught:
            encoded(handler, "\ud800", 1)
        assert caught.value.path == "$.args[0]"
        with pytest.raises(PayloadEncodingError, match="more digits"):
            encoded(handler, "a", 10**5000)


def test_so_many_types_are_remembered_and_no_more() -> None:
    def mixed(job: Job, *values: str | float | None) -> None: ...

    handler = registered(mixed)
    for at in range(100):
        encoded(handler, *[1.0] * at)
    assert len(handler._arguments.fine) == 64
    assert len(handler._arguments.flat) < 65
    untyped = registered(builtins.print)
    for at in range(100):
        encoded(untyped, *[1] * at)
    assert len(untyped._arguments.flat) == 64
    assert refused(handler, *[1] * 99, b"x")


def test_what_is_wrong_deep_inside_is_refused_without_overflow() -> None:
    def tree(job: Job, value: list[Any], more: dict[str, Any]) -> None: ...

    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(PayloadEncodingError, match=r"deeper|circular"):
        encoded(registered(tree), ring, {})

    @dataclass
    class Ring:
        of: Any

    class Node(msgspec.Struct):
        of: Any = None

    def linked(job: Job, value: Node) -> None: ...

    linked.__annotations__["value"] = Node
    node = Node()
    node.of = node
    with pytest.raises((WrongArguments, PayloadEncodingError)):
        encoded(registered(linked), node)


@dataclass
class Chain:
    of: Chain | None = None


def chained(job: Job, chain: Chain) -> None: ...


def test_what_is_made_of_itself_is_refused() -> None:
    chain = Chain()
    chain.of = chain
    assert refused(registered(chained), chain) == "chain is deeper than 100"


@attrs.define
class Sly:
    """Whose own code fails when it is looked at."""

    id: int

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no id today")


def sly(job: Job, value: Sly) -> None: ...


def test_what_the_values_own_code_raises_is_told() -> None:
    assert refused(registered(sly), Sly(1)) == "value is refused: RuntimeError: no id today"


# --- where it arrives ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "data", "said"),
    [
        (plain, b"", "missing a required argument: 'to'"),
        (plain, b"[1]", "to is int, expected str"),
        (plain, b'["a","b"]', "n is str, expected int"),
        (plain, b'{"args":["a"],"kwargs":{"more":1}}', "unexpected keyword argument 'more'"),
        (typed, b"[5]", "at is int, expected the text of a datetime"),
        (typed, b'["soon"]', "at 'soon' is not the text of a datetime"),
        (needs, b'{"args":["a"],"kwargs":{"of":1}}', "unexpected keyword argument 'of'"),
        (lone, b"[5]", "data is int, expected bytes"),
    ],
)
def test_what_another_program_has_sent_is_looked_at(
    fn: Callable[..., Any], data: bytes, said: str
) -> None:
    with pytest.raises(WrongArguments) as caught:
        decoded(registered(fn), data)
    assert said in caught.value.problem


# --- annotations --------------------------------------------------------------------------------


def test_the_registry_refuses_what_nothing_can_be_given_for() -> None:
    def opens(job: Job, file: Callable[[], int]) -> None: ...
    def returns(job: Job) -> complex: ...

    with pytest.raises(ConfigError, match="h: nothing can be given for its file"):
        registered(opens)
    with pytest.raises(ConfigError, match="h: it returns what nobody can be sent: complex"):
        registered(returns)


def test_a_default_that_cannot_travel_may_stay_one() -> None:
    def opens(job: Job, n: int = 1, file: Callable[[], int] = lambda: 1) -> None: ...

    handler = registered(opens)
    assert decoded(handler, encoded(handler, 2)) == ((2,), {})
    assert "file cannot be given: nothing goes over the wire as" in refused(handler, 2, lambda: 2)


def test_what_only_checkers_import_is_taken_as_json_has_it_and_nothing_else() -> None:
    def counts(job: Job, share: Fraction) -> Fraction: ...

    handler = registered(counts)
    assert decoded(handler, encoded(handler, "1/2")) == (("1/2",), {})
    assert "its annotation 'Fraction' cannot be read" in refused(handler, Decimal(1))


def test_decorated_functions_methods_partials_and_objects_have_their_annotations() -> None:
    def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return inner

    class Mailer:
        def send(self, job: Job, at: datetime) -> None: ...
        def __call__(self, job: Job, at: datetime) -> None: ...

    def three(n: int, job: Job, at: datetime) -> None: ...

    for fn in (traced(typed), Mailer().send, Mailer(), functools.partial(three, 1)):
        handler = registered(fn)
        assert decoded(handler, encoded(handler, NOW)) == ((NOW,), {})
        assert "expected datetime" in refused(handler, "x")


def test_a_builtin_without_a_signature_takes_anything() -> None:
    handler = registered(builtins.print)
    assert decoded(handler, encoded(handler, 1, "a", end="")) == ((1, "a"), {"end": ""})


# --- results ------------------------------------------------------------------------------------


def test_a_result_by_annotation_comes_back() -> None:
    result = registered(typed)._result
    assert result is not None
    data = result.encode(Order(1, NOW))
    assert data == b'{"id":1,"at":"2026-01-01T00:00:00+00:00"}'
    assert result.decode(data) == Order(1, NOW)
    with pytest.raises(PayloadEncodingError, match="is dict, expected Order"):
        result.encode({"id": 1})
    with pytest.raises(
        PayloadEncodingError, match="is int, expected the text of a datetime"
    ) as caught:
        result.decode(b'{"id":1,"at":5}')
    assert caught.value.path == "$.at"


def test_a_plain_result_has_nothing_to_do_with_all_this() -> None:
    def many_types(job: Job) -> dict[str, list[int]] | None: ...
    def nothing(job: Job): ...  # type: ignore[no-untyped-def]

    for fn in (plain, none, many_types, nothing):
        assert registered(fn)._result is None


# --- codecs -------------------------------------------------------------------------------------


def test_bytes_are_one_value_and_no_other() -> None:
    def data(job: Job, data: bytes) -> bytes: ...

    handler = registered(data, codec="bytes")
    assert encoded(handler, b"\xff") == b"\x00\xff"
    assert decoded(handler, b"\x00\xff") == ((b"\xff",), {})
    assert refused(handler, "a") == "it takes one bytes value and no other"
    with pytest.raises(WrongArguments, match="one bytes value"):
        decoded(handler, b'["YQ=="]')


def test_the_only_bytes_are_untouched_by_their_name_too() -> None:
    def data(job: Job, data: bytes) -> bytes: ...
    def last(job: Job, a: int = 1, *, data: bytes = b"") -> None: ...

    options: dict[str, Any]
    for fn, options in ((data, {}), (data, {"codec": "bytes"}), (bare, {})):
        handler = registered(fn, **options)
        name = next(iter(handler._arguments.signature.parameters))
        assert encoded(handler, **{name: b"\xff"}) == encoded(handler, b"\xff") == b"\x00\xff"
    assert encoded(registered(last), data=b"\xff") == b'{"args":[],"kwargs":{"data":"/w=="}}'


class HexBytes(bytes):
    pass


def test_bytes_of_a_subclass_are_the_same_argument() -> None:
    def data(job: Job, data: bytes) -> bytes: ...

    options: dict[str, Any]
    for options in ({}, {"codec": "bytes"}):
        handler = registered(data, **options)
        assert encoded(handler, HexBytes(b"x")) == encoded(handler, b"x")
        assert encoded(handler, data=HexBytes(b"x")) == encoded(handler, b"x")


def test_a_codec_of_ones_own_gets_values_as_they_are() -> None:
    def takes(job: Job, a: Any, b: int = 1) -> Any: ...

    handler = registered(takes, codec=Backwards())
    data = encoded(handler, (1, 2), b=3)
    assert data == b"\x01backwards\n" + repr({"args": [(1, 2)], "kwargs": {"b": 3}}).encode()[::-1]
    assert decoded(handler, data) == (((1, 2),), {"b": 3})
    assert "missing" in refused(handler)
    assert decoded(handler, b"[1]") == ((1,), {})  # of before it had one
    result = handler._result
    assert result is not None
    assert result.decode(result.encode({1, 2})) == {1, 2}
    for value in (None, b"secret"):
        assert result.encode(value).startswith(b"\x01backwards\n")
        assert result.decode(result.encode(value)) == value
        assert encoded(handler, value).startswith(b"\x01backwards\n")
    assert result.decode(b"null") is None  # of before it had one


def test_who_has_not_got_the_codec_says_which() -> None:
    coded, other = registered(bare, codec=Backwards()), registered(bare)
    with pytest.raises(CodecMissing, match="made by the codec 'backwards'") as caught:
        decoded(other, encoded(coded, 1))
    assert caught.value.codec == "backwards"


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        (5, "is not one of json, msgspec, bytes"),
        (Backwards("json"), "nor a Codec with a name of its own"),
        (Backwards("A b"), "nor a Codec with a name of its own, 1 to 32 of a-z 0-9 _ . -"),
        (Backwards("a" * 33), "nor a Codec with a name of its own"),
        (type("Half", (), {"name": "half", "encode": bytes})(), "lacks encode() or decode()"),
    ],
)
def test_what_is_no_codec_is_refused(codec: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registered(bare, codec=codec)
    assert said in str(caught.value)


# --- msgspec ------------------------------------------------------------------------------------


def packed(
    job: Job,
    order: Order,
    struct: Struct,
    model: Model,
    *,
    ids: set[UUID] = frozenset(),  # type: ignore[assignment]
) -> dict[str, Order]: ...


def test_msgspec_carries_typed_values() -> None:
    handler = registered(packed, codec="msgspec")
    args = Order(1, NOW), Struct(NOW), Model(at=NOW)
    data = encoded(handler, *args, ids={UUID(int=1)})
    assert data.startswith(b"\x01msgspec\n")
    assert len(data) < len(encoded(registered(packed), *args, ids={UUID(int=1)}))
    found, named = decoded(handler, data)
    assert [*found, named.pop("ids")] == [*args, {UUID(int=1)}]
    assert not named
    assert decoded(handler, encoded(handler, *args))[0] == args
    result = handler._result
    assert result is not None
    assert result.decode(result.encode({"a": Order(1, NOW)})) == {"a": Order(1, NOW)}
    with pytest.raises(PayloadEncodingError, match="refused by msgspec"):
        result.encode({"a": 5})


def test_msgspec_refuses_what_would_not_arrive() -> None:
    def takes(job: Job, n: int, *, at: datetime = NOW) -> None: ...

    handler = registered(takes, codec="msgspec")
    assert "missing a required argument: 'n'" in refused(handler)
    assert "refused by msgspec: Expected `int`, got `str`" in refused(handler, "5")
    assert "`$.kwargs.at`" in refused(handler, 5, at=7)
    assert "refused by msgspec: object cannot be encoded" in refused(handler, object())
    assert "refused by msgspec: can't serialize ints" in refused(handler, 2**64)
    assert "refused by msgspec: 'utf-8' codec can't encode" in refused(handler, "\ud800")
    with pytest.raises(PayloadEncodingError, match="the codec raised"):
        decoded(handler, b"\x01msgspec\n\xc1")
    with pytest.raises(WrongArguments, match="Expected `object`, got `int`"):
        decoded(handler, b"\x01msgspec\n\xff")


def test_msgspec_looks_at_bytes_and_none_as_at_all_else() -> None:
    """Its results of these are readable without it; arguments are the same by name or place."""

    def counts(job: Job, n: int) -> int: ...

    handler = registered(counts, codec="msgspec")
    assert "got `bytes`" in refused(handler, b"5")
    result, blob = handler._result, registered(lone, codec="msgspec")
    assert result is not None
    for value in (None, b"5"):
        with pytest.raises(PayloadEncodingError, match="refused by msgspec"):
            result.encode(value)
    assert encoded(blob, b"\xff") == encoded(blob, data=b"\xff")
    assert decoded(blob, encoded(blob, b"\xff")) == ((b"\xff",), {})
    assert blob._result is not None
    assert blob._result.encode(b"\xff") == b"\x00\xff"
    nothing = registered(none, codec="msgspec")._result
    assert nothing is not None
    assert nothing.encode(None) == b"null"


class Numbers(msgspec.Struct):
    low: float


class Own(str):  # noqa: SLOT000 - as people write it
    """Text that equals nothing but itself."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


TWICE: list[datetime] = [  # in an hour that the clock shows twice none equals any other zone's
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Paris")),
    datetime(2026, 10, 25, 3, 30, tzinfo=ZoneInfo("Europe/Helsinki")),
]


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (float, 2**53 + 1, "n, which is int, and would arrive as float"),
        (list[float], [1, 2**53 + 1], "n[1], which"),
        (Numbers, Numbers(2**53 + 1), "n.low, which"),
        (set[datetime], set(TWICE), "n, which would arrive as another set"),
        (dict[datetime, int], dict.fromkeys(TWICE, 1), "n, which"),
        (dict[str, int], {Own("a"): 1, Own("a"): 2}, "n, which"),
    ],
)
def test_msgspec_refuses_what_would_be_less_where_it_arrives(
    hint: Any, value: Any, said: str
) -> None:
    def takes(job: Job, n: Any) -> Any: ...

    takes.__annotations__ |= {"n": hint, "return": hint}
    handler = registered(takes, codec="msgspec")
    assert f"it has {said}" in refused(handler, value)
    assert handler._result is not None
    with pytest.raises(PayloadEncodingError, match="would arrive as"):
        handler._result.encode(value)


def test_msgspec_takes_whole_numbers_that_are_floats() -> None:
    def takes(job: Job, n: list[float], *, at: set[datetime] = frozenset()) -> None: ...  # type: ignore[assignment]

    handler = registered(takes, codec="msgspec")
    data = encoded(handler, [1, 2**53], at={NOW, TWICE[0]})
    assert decoded(handler, data)[0] == ([1.0, 2.0**53],)


class Level(int):
    def __int__(self) -> int:
        return -1


class Word(str):  # noqa: SLOT000 - as people write it
    def __str__(self) -> str:
        return "another"


class Share(float):
    pass


class Blob(bytes):
    pass


@pytest.mark.parametrize("hint", [Any, None])
@pytest.mark.parametrize("value", [Word("a"), Level(3), Share(1.5), Blob(b"a")])
def test_msgspec_sends_what_is_of_a_subclass_as_its_base_does(value: Any, hint: Any) -> None:
    def takes(job: Job, n: Any) -> Any: ...

    base = type(value).__base__
    takes.__annotations__ |= {"n": hint or base, "return": hint or base}
    handler = registered(takes, codec="msgspec")
    [found], _ = decoded(handler, encoded(handler, value))
    assert type(found) is base
    assert encoded(handler, value) == encoded(handler, found)


class Renamed(msgspec.Struct, rename="camel", tag=True):
    by_whom: str
    is_low: float = 0.0


class Part(TypedDict, total=False):
    low: float


@dataclass
class Low:
    low: float = 0.0


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (float, 2**53 + 1, ".n is int, and would arrive as float"),
        (list[Low], [{"low": 2**53 + 1}], ".n[0].low is int"),
        (dict[str, Low], {"a": {"low": 1, "other": 2}}, ".n['a'] has the key 'other', which Low "),
        (Renamed, {"type": "Renamed", "byWhom": "a", "isLow": 2**53 + 1}, ".n.is_low is int"),
        (Renamed, {"type": "Renamed", "byWhom": "a", "by_whom": "b"}, ".n has the key 'by_whom'"),
        (Part, {"low": 1, "other": 2}, ".n has keys which would be lost"),
        (Low, {"low": 1}, ""),
        (Renamed, {"type": "Renamed", "byWhom": "a"}, ""),
        (dict[float, Low], {"1": {"low": 2}}, ""),
        (Model, {"at": "2026-01-01T00:00:00Z", "other": 1}, ""),  # as pydantic has it
    ],
)
def test_what_msgspec_would_drop_or_round_of_json_is_refused(
    hint: Any, value: Any, said: str
) -> None:
    """As it comes from who has no handler."""

    def takes(job: Job, n: Any) -> None: ...

    takes.__annotations__ |= {"n": hint}
    handler = registered(takes, codec="msgspec")
    if not said:
        decoded(handler, encode_call((value,), {}))
        return
    with pytest.raises(WrongArguments, match=re.escape(said)):
        decoded(handler, encode_call((value,), {}))


class Paid(msgspec.Struct, tag=True):
    by: str


class Due(msgspec.Struct, tag=True):
    within: timedelta


def test_durations_and_tagged_structs_are_the_same_by_each_codec() -> None:
    def takes(job: Job, bill: Paid | Due, limit: timedelta) -> Due | Paid | None: ...

    fast, strict = registered(takes, codec="msgspec"), registered(takes)
    limit = timedelta(seconds=30.5)
    for sender, receiver in ((fast, strict), (strict, fast)):
        for bill in (Paid("a"), Due(-timedelta(3))):
            data = encoded(sender, bill, limit)
            found, named = decoded(receiver, data)
            assert receiver._arguments.signature.bind(*found, **named).args == (bill, limit)
            assert sender._result is not None
            assert receiver._result is not None
            assert receiver._result.decode(sender._result.encode(bill)) == bill


def test_one_codec_reads_what_the_other_has_made() -> None:
    """As while a fleet is deployed that changes it."""

    def takes(job: Job, at: datetime, n: int = 1, *, data: bytes = b"") -> Order: ...

    fast, strict = registered(takes, codec="msgspec"), registered(takes)
    for sender, receiver in ((fast, strict), (strict, fast)):
        for args, kwargs in (((NOW,), {}), ((NOW, 2), {"data": b"\xff"})):
            found, named = decoded(receiver, encoded(sender, *args, **kwargs))
            bound = receiver._arguments.signature.bind(*found, **named).arguments
            assert bound == receiver._arguments.signature.bind(*args, **kwargs).arguments
        assert sender._result is not None
        assert receiver._result is not None
        assert receiver._result.decode(sender._result.encode(Order(1, NOW))) == Order(1, NOW)


def test_msgspec_takes_arguments_by_name_and_types_that_it_knows() -> None:
    def first(job: Job, a: int, /) -> None: ...
    def mixed(job: Job, value: Order | Struct) -> None: ...

    @attrs.frozen
    class Private:
        _born: int

    def hidden(job: Job, who: list[Any]) -> None: ...

    hidden.__annotations__["who"] = list[Private]
    with pytest.raises(ConfigError, match="Private, whose private _born msgspec does not write"):
        registered(hidden, codec="msgspec")
    for fn in (many, first):
        with pytest.raises(ConfigError, match="gives arguments by name"):
            registered(fn, codec="msgspec")
    with pytest.raises(ConfigError, match="h: "):
        registered(mixed, codec="msgspec")

    @dataclass
    class Hidden:
        who: Fraction  # which is there for a type checker only

    @dataclass
    class Bound:
        n: Annotated[int, pydantic.Field(gt=0)]

    hidden.__annotations__["who"] = Hidden
    with pytest.raises(ConfigError, match="'Fraction' is not defined"):
        registered(hidden, codec="msgspec")

    def bounded(job: Job, who: Any = None) -> None: ...

    for hint in (
        Bound,
        list[Bound],
        Bound.__annotations__["n"],
        Annotated[int, annotated_types.Gt(0)],
    ):
        for unchecked in (hidden, bounded):
            unchecked.__annotations__["who"] = hint
            with pytest.raises(ConfigError, match="its who: msgspec does not check pydantic's F"):
                registered(unchecked, codec="msgspec")


def test_without_msgspec_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(registered(bare, codec="msgspec"), 1)
    monkeypatch.setattr(msgpack, "_package", lambda: None)
    with pytest.raises(ConfigError, match=r"pip install 'keyed-pool\[msgspec\]'"):
        registered(bare, codec="msgspec")
    with pytest.raises(CodecMissing, match="'msgspec', which is not installed"):
        decoded(registered(bare), data)


def test_neither_is_imported_before_an_annotation_needs_it() -> None:
    code = """
import sys
from pool import Handlers, Job
from datetime import datetime
handlers = Handlers()
@handlers.job("a")
def a(job: Job, at: datetime) -> list[datetime]: return [at]
a._arguments.encode("a", (datetime(2026, 1, 1),), {})
assert not {"msgspec", "pydantic"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- versions -----------------------------------------------------------------------------------


def renamed(version: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of 1 the only one was the id; 2 had a text beside it."""
    if version == 1:
        args = (*args, "2026-01-01T00:00:00+00:00")
    return [{"id": args[0], "at": args[1]}], kwargs


def takes_order(job: Job, order: Order) -> Order: ...


def test_arguments_of_an_earlier_version_become_the_present_ones() -> None:
    first, second = registered(bare), registered(bare, version=2, upcast=renamed)
    third = registered(takes_order, version=3, upcast=renamed)
    for data in (
        encoded(first, 7),
        encoded(second, 7, "2026-01-01T00:00:00+00:00"),
        encoded(third, Order(7, NOW)),
    ):
        assert decoded(third, data) == ((Order(7, NOW),), {})
    assert encoded(third, Order(7, NOW)).startswith(b"\x01 3\n[{")


@pytest.mark.parametrize("codec", ["json", "msgspec", Backwards()])
def test_each_codec_tells_the_version(codec: Any) -> None:
    def before(job: Job, n: int) -> None: ...
    def after(job: Job, m: int, unit: str) -> None: ...

    def upcast(version: int, args: Any, kwargs: Mapping[str, Any]) -> Any:
        assert version == 4
        return (), {"m": kwargs["n"], "unit": "cm"}

    old = registered(before, codec=codec, version=4, upcast=upcast)
    new = registered(after, codec=codec, version=5, upcast=upcast)
    data = encoded(old, n=3)
    args, kwargs = decoded(new, data)
    assert new._arguments.signature.bind(*args, **kwargs).arguments == {"m": 3, "unit": "cm"}
    with pytest.raises(UnknownVersion) as caught:
        decoded(old, encoded(new, 3, "cm"))
    assert (caught.value.version, caught.value.known) == (5, 4)


def test_an_empty_call_and_bytes_have_a_version_too() -> None:
    handler = registered(none, version=2, upcast=lambda *_: ((), {}))
    assert encoded(handler) == head(version=2)
    assert decoded(handler, head(version=2)) == ((), {})
    assert decoded(handler, b"[1]") == ((), {})
    data = registered(lone, version=2, codec="bytes", upcast=lambda *_: ((b"new",), {}))
    assert encoded(data, b"x") == b"\x01 2\n\x00x"
    assert decoded(data, b"\x00x") == ((b"new",), {})


@pytest.mark.parametrize(
    ("upcast", "said"),
    [
        (lambda *_: 1 / 0, "those of version 1 were not made new ones of: ZeroDivisionError"),
        (lambda *_: None, "upcast() returned None, which is not (args, kwargs)"),
        (lambda *_: ((5,), {}), "order is int, expected a dict, for Order"),
        (lambda *_: ((), {}), "missing a required argument: 'order'"),
    ],
)
def test_what_an_upcaster_does_wrong_is_told(upcast: Any, said: str) -> None:
    handler = registered(takes_order, version=2, upcast=upcast)
    with pytest.raises(WrongArguments) as caught:
        decoded(handler, b"[1]")
    assert said in caught.value.problem


def test_a_version_has_an_upcaster_and_bounds() -> None:
    with pytest.raises(ConfigError, match="2 needs upcast="):
        registered(bare, version=2)
    with pytest.raises(ConfigError, match="there is none before version 1"):
        registered(bare, upcast=renamed)

    async def later(version: int, args: Any, kwargs: Any) -> Any: ...

    for wrong in (5, later):
        with pytest.raises(ConfigError, match="not a plain function"):
            registered(bare, version=2, upcast=wrong)
    for version in (0, 1_000_000, "2", True):
        with pytest.raises(InvalidOption):
            registered(bare, version=version, upcast=renamed)


# --- names that are taken -------------------------------------------------------------------------


def named(job: Job, **more: int) -> None: ...


def apart(job: Job, /, **more: int) -> None: ...


NAMED: Any = named


def depends(task: Job, *, of: int = Depends(int), **more: int) -> None: ...


class Runs:
    def __init__(self, of: int = Depends(int)) -> None: ...

    def run(self, job: Job, **more: int) -> None: ...


class Lives:
    def start(self, job: Job, **more: int) -> None: ...

    def stop(self, job: Job) -> None: ...


def wrapping(fn: Any) -> Any:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        *((named, "job"), (depends, "task"), (depends, "of"), (wrapping(named), "job")),
        *((Runs, "self"), (Runs, "job"), (Runs, "of"), (Runs().run, "self"), (Runs().run, "job")),
        *((Lives, "self"), (Lives, "job"), (functools.partial(named), "job")),
    ],
)
@pytest.mark.parametrize("codec", ["json", Backwards()])
def test_a_name_that_its_function_has_itself_is_no_argument(fn: Any, name: str, codec: Any) -> None:
    """V5: it would be given twice, and burn all attempts."""
    kind = Handlers().service if fn is Lives else Handlers().job
    handler = kind("takes", codec=codec)(fn)
    with pytest.raises(WrongArguments, match=name):
        encoded(handler, **{name: 1})
    with pytest.raises(WrongArguments, match=name):
        decoded(handler, encode_call((), {name: 1}))
    assert decoded(handler, encoded(handler, other=1)) == ((), {"other": 1})


def test_a_name_that_only_a_position_has_is_free() -> None:
    handler = registered(apart)
    assert decoded(handler, encoded(handler, job=1)) == ((), {"job": 1})


# --- codecs that make other bytes each time -------------------------------------------------------


class Nonce(Backwards):
    """It says nothing of its nonce; a second look shows it."""

    def encode(self, value: Any) -> bytes:
        return next(NUMBERS) + super().encode(value)

    def decode(self, data: bytes) -> Any:
        return super().decode(data[8:])


class Declared(Backwards):
    is_canonical = False


NUMBERS = (number.to_bytes(8, "big") for number in itertools.count())


@pytest.mark.parametrize("codec", [Nonce(), Declared()])
def test_what_would_be_compared_is_refused_of_a_codec_that_cannot_be(codec: Any) -> None:
    handler = Handlers().job("takes", codec=codec)(NAMED)
    arguments = handler._arguments
    data = arguments.encode("takes", (), {"a": 1})
    with pytest.raises(InvalidOption, match="equal bytes"):
        arguments.check_canonical(data, "takes", (), {"a": 1})
    one_way = Handlers().job("takes", codec=Backwards())(NAMED)._arguments
    one_way.check_canonical(one_way.encode("takes", (), {"a": 1}), "takes", (), {"a": 1})


def test_a_handler_that_attaches_has_no_codec_that_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="equal bytes"):
        Handlers().job("takes", codec=Declared(), if_exists="attach")(NAMED)
    Handlers().job("takes", codec=Backwards(), if_exists="attach")(NAMED)
