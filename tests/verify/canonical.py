"""Equal values are equal bytes: every codec's table of values, encoded under many hash seeds.

    python -m tests.verify.canonical [--seeds 20] [--seed 1]

Each row is an annotation and several equal values of it: sets that were filled in another order,
fields that were assigned in another order, a whole number where a float is said.  Each process
encodes the whole table as arguments, as results and as states, by each codec, and prints a digest
of each.  Within a row all digests must be the same, and so they must be in all processes: each has
a hash seed of its own, drawn by `--seed`.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, Optional, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic

from pool import Handlers, Job
from pool.errors import ConfigError, PayloadEncodingError, WrongArguments

ROOT: Final = Path(__file__).parents[2]
SEEDS: Final = 20
_BAD_SHOWN: Final = 20
# In the place of a digest: the codec does not take the annotation, or not one of the values.
_CONFIG: Final = "ConfigError"
_REFUSED: Final = "refused"


class Color(enum.Enum):
    """Compared by identity, so sets of its members are in the order of addresses and hashes."""

    RED = "r"
    BLUE = "b"
    GREEN = "g"


class Word(enum.StrEnum):
    """Text, and hashed as text."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"


@dataclasses.dataclass(frozen=True)
class Tag:
    """What can be in a set, with text in it."""

    name: str
    weight: float = 0.0


@attrs.frozen
class Mark:
    """The same of attrs."""

    name: str
    words: frozenset[str] = frozenset()


class Frozen(msgspec.Struct, frozen=True):
    """The same of msgspec."""

    name: str
    words: frozenset[str] = frozenset()


class Listed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A struct that goes as a list."""

    name: str
    words: frozenset[str] = frozenset()


class Renamed(msgspec.Struct, rename="camel"):
    """A struct whose fields have other names on the wire."""

    many_words: set[str]
    the_rate: float = 0.0


class Item(pydantic.BaseModel, frozen=True):
    """The same of pydantic."""

    name: str
    words: frozenset[str] = frozenset()


class Model(pydantic.BaseModel):
    """A model whose fields may be assigned in any order."""

    first: int = 0
    words: set[str] = set()
    rate: float = 0.0


class Root(pydantic.RootModel[set[str]]):
    """A model that is a set."""


class Key(NamedTuple):
    """A tuple with names."""

    name: str
    words: frozenset[str] = frozenset()


Cents = NewType("Cents", float)


# --- the table ------------------------------------------------------------------------------------


def both_ways(items: Iterable[Any], kind: Any = set) -> list[Any]:
    """Return sets of the same items, filled in several orders."""
    listed = list(items)
    turned = [listed, listed[::-1], listed[1::2] + listed[::2]]
    return [kind(each) for each in turned]


TEXTS: Final = [f"n{n}" for n in range(40)] + ["é", "", "'", '"', "\u20ac"]


def assigned_late() -> Model:
    """Return a model whose first field was assigned last."""
    model = Model(words=set(TEXTS))
    del model.first
    model.first = 0
    return model


@attrs.frozen
class Row:
    """Equal values of one annotation."""

    name: str
    hint: Any
    values: Sequence[Any]


def leaves() -> Iterator[Row]:
    """Yield what the others are made of."""
    texts = both_ways(TEXTS)
    yield Row("set[str]", set[str], texts)
    yield Row("frozenset[str]", frozenset[str], both_ways(TEXTS, frozenset))
    yield Row("bare set", set, texts)
    yield Row("Set[str]", AbstractSet[str], texts)
    yield Row("Collection[str]", Collection[str], texts)
    yield Row("set[bytes]", set[bytes], both_ways(each.encode() for each in TEXTS))
    yield Row("set[UUID]", set[UUID], both_ways(UUID(int=7**n) for n in range(40)))
    days = [date(2026, 1, 1) + timedelta(n) for n in range(40)]
    yield Row("set[date]", set[date], both_ways(days))
    times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(40)]
    yield Row("set[datetime]", set[datetime], both_ways(times))
    yield Row("set[Decimal]", set[Decimal], both_ways(Decimal(n) / 8 for n in range(40)))
    yield Row("set[Enum]", set[Color], both_ways(Color))
    yield Row("set[StrEnum]", set[Word], both_ways(Word))
    yield Row("set[Literal]", set[Literal["a", "b", "c"]], both_ways("abc"))
    mixed: list[Any] = [*TEXTS, *range(20)]
    yield Row("set[int | str]", set[int | str], both_ways(mixed))
    yield Row("set[str | None]", set[str | None], both_ways([*TEXTS, None]))
    yield Row("set[tuple]", set[tuple[str, int]], both_ways((each, 1) for each in TEXTS))
    inner = [frozenset([each, f"{each}'", "x"]) for each in TEXTS]
    yield Row("set[frozenset]", set[frozenset[str]], both_ways(inner))
    some = frozenset(TEXTS)
    yield Row("set[NamedTuple]", set[Key], both_ways(Key(each, some) for each in TEXTS[:9]))
    yield Row("set[dataclass]", set[Tag], both_ways(Tag(each) for each in TEXTS))
    yield Row("set[attrs]", set[Mark], both_ways(Mark(each, some) for each in TEXTS[:9]))
    yield Row("set[Struct]", set[Frozen], both_ways(Frozen(each, some) for each in TEXTS[:9]))
    yield Row("set[list Struct]", set[Listed], both_ways(Listed(each, some) for each in TEXTS[:9]))
    yield Row("set[model]", set[Item], both_ways(Item(name=each, words=some) for each in TEXTS[:9]))
    yield Row("float", float, [2.0, 2])
    yield Row("float of a bool", float, [1.0, 1, True])
    yield Row("int", int, [1, True])
    yield Row("NewType of float", Cents, [Cents(5), 5.0])
    yield Row("float | None", Optional[float], [3.0, 3])  # noqa: UP045 - one of both spellings
    yield Row("float | str", float | str, [3.0, 3])
    yield Row("list[float]", list[float], [[1.0, 2.5], [1, 2.5]])
    yield Row("dict[str, float]", dict[str, float], [{"a": 1.0}, {"a": 1}])
    yield Row("dict of sets", dict[str, set[str]], [{"a": each} for each in texts])
    yield Row("dataclass of a float", Tag, [Tag("a", 1.0), Tag("a", 1)])
    yield Row("Struct", Frozen, [Frozen("a", each) for each in both_ways(TEXTS, frozenset)])
    yield Row("list Struct", Listed, [Listed("a", each) for each in both_ways(TEXTS, frozenset)])
    yield Row(
        "renamed Struct", Renamed, [Renamed(each, 1) for each in texts] + [Renamed(texts[0], 1.0)]
    )
    models = [Model(words=each, rate=0) for each in texts]
    yield Row("model", Model, [*models, assigned_late(), Model.model_construct(words=texts[1])])
    yield Row("root model", Root, [Root(each) for each in texts])
    limited = Annotated[set[str], pydantic.Field(min_length=1)]
    yield Row("Annotated by pydantic", limited, texts)
    yield Row("Annotated by msgspec", Annotated[set[str], msgspec.Meta(min_length=1)], texts)


def wrapped(row: Row) -> Iterator[Row]:
    """Yield what holds such a value."""
    hint: Any = row.hint
    values, name = row.values, row.name
    yield row

    def of(kind: str, made: Any, make: Any) -> Row:
        return Row(f"{kind} of {name}", made, [make(value) for value in values])

    yield of("list", list[hint], lambda value: [value, value])
    yield of("tuple", tuple[int, hint], lambda value: (1, value))
    yield of("dict", dict[str, hint], lambda value: {"k": value})
    yield of("Mapping", Mapping[str, hint], lambda value: {"k": value})
    yield of("None or", hint | None, lambda value: value)
    plain = dataclasses.make_dataclass("Plain", [("x", hint)])
    yield of("dataclass", plain, plain)
    of_attrs = attrs.make_class("OfAttrs", {"x": attrs.field()})
    of_attrs.__annotations__ = {"x": hint}
    attrs.resolve_types(of_attrs)
    yield of("attrs class", of_attrs, of_attrs)
    typed = TypedDict("typed", {"x": hint})  # noqa: UP013
    yield of("TypedDict", typed, lambda value: {"x": value})
    struct = msgspec.defstruct("Struct", [("x", hint)])
    yield of("Struct", struct, struct)
    model: Any = pydantic.create_model("Made", x=(hint, ...))
    yield of("model", model, lambda value: model(x=value))
    yield of("model that was not validated", model, lambda value: model.model_construct(x=value))
    of_pydantic: Any = pydantic.dataclasses.dataclass(
        dataclasses.make_dataclass("OfPydantic", [("x", hint)])
    )
    yield of("pydantic dataclass", of_pydantic, of_pydantic)
    outer: Any = pydantic.create_model("Outer", inner=(dict[str, list[model]], ...))
    yield of("model in a model", outer, lambda value: outer(inner={"k": [model(x=value)]}))


def table() -> Iterator[Row]:
    """Yield all rows; what cannot be made of an annotation at all has none."""
    for leaf in leaves():
        made = wrapped(leaf)
        while True:
            try:
                row = next(made, None)
            except (TypeError, ValueError, pydantic.errors.PydanticUserError):
                break
            if row is None:
                break
            yield row


# --- one process ----------------------------------------------------------------------------------


class Sorted:
    """A user's own codec that keeps its promise."""

    name = "sorted"

    def encode(self, value: Any) -> bytes:
        """Return JSON in which sets are sorted lists."""
        return json.dumps(value, default=self._plain, sort_keys=True).encode()

    def decode(self, data: bytes) -> Any:
        """Return what the JSON says."""
        return json.loads(data)

    @staticmethod
    def _plain(value: Any) -> Any:
        if isinstance(value, (set, frozenset)):
            return sorted(value, key=Sorted().encode)
        return repr(value) if isinstance(value, bytes) else str(value)


CODECS: Final[Mapping[str, Any]] = {"json": "json", "msgspec": "msgspec", "own": Sorted()}


def encoded(row: Row, codec: Any) -> dict[str, list[bytes] | str]:
    """Return what each value of a row is encoded as, by what it is used for."""

    async def takes(job: Job, x: Any) -> Any:
        return x

    async def alone(job: Job) -> Any:
        """Take nothing, and keep a state."""

    takes.__annotations__ = {"job": Job, "x": row.hint, "return": row.hint}
    found: dict[str, list[bytes] | str] = {}
    try:
        handler = Handlers().job("takes", codec=codec)(takes)
        state = Handlers().job("alone", codec=codec, state=row.hint)(alone)
    except ConfigError:
        return dict.fromkeys(("arguments", "result", "state"), _CONFIG)
    arguments, result, kept = handler._arguments, handler._result, state._state
    found["arguments"] = [arguments.encode("takes", (value,), {}) for value in row.values]
    if result is not None:  # else it is as it is, in JSON, and nothing compares it
        found["result"] = [result.encode(value) for value in row.values]
    if kept is not None:
        found["state"] = [kept.encode(value) for value in row.values]
    return found


OF_OUR_OWN: Final = {"set[str]", "set[frozenset]", "float", "dict of sets"}  # what `Sorted` takes


def digests() -> dict[str, str]:
    """Return, for each row, codec and use, a digest of what its equal values are encoded as."""
    told: dict[str, str] = {}
    for row in table():
        for name, codec in CODECS.items():
            if name == "own" and row.name not in OF_OUR_OWN - {"float"}:
                continue
            try:
                uses = encoded(row, codec)
            except (WrongArguments, PayloadEncodingError):
                told[f"{name} | {row.name}"] = _REFUSED
                continue
            for use, datas in uses.items():
                words = [datas] if isinstance(datas, str) else [*map(_digest, datas)]
                told[f"{name} | {row.name} | {use}"] = " ".join(sorted(set(words)))
    return told


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=6).hexdigest()


# --- all processes --------------------------------------------------------------------------------


def differences(of_seeds: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Return which rows are not the same bytes everywhere."""
    seen: dict[str, set[str]] = defaultdict(set)
    for told in of_seeds.values():
        for row, words in told.items():
            seen[row].add(words)
    return [
        f"{row}: {len(words)} encodings, such as {' '.join(sorted(words)[:3])}"
        for row, words in seen.items()
        if len(words) > 1 or " " in next(iter(words))
    ]


def play(seeds: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Encode the table in so many processes; return the differences, and what was compared."""
    dice = random.Random(f"canonical/{seed}")
    drawn = [0, *dice.sample(range(1, 2**32), seeds - 1)]
    of_seeds = {each: _told_by(each) for each in drawn}
    counts = Counter(
        _REFUSED if words == _REFUSED else row.partition(" | ")[0]
        for row, words in of_seeds[0].items()
        if words != _CONFIG
    )
    return differences(of_seeds), counts


def _told_by(hash_seed: int) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.verify.canonical", "--one"]
    env = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    told: dict[str, str] = json.loads(ran.stdout)
    return told


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.canonical", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="processes, each with its own")
    parser.add_argument("--seed", type=int, default=1, help="by which the hash seeds are drawn")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        json.dump(digests(), sys.stdout)
        return 0
    found, counts = play(given.seeds, given.seed)
    of_codecs = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    sys.stdout.write(f"{given.seeds} hash seeds; rows compared: {of_codecs}\n")
    shown = found[:_BAD_SHOWN] or ["(none)"]
    sys.stdout.write("differences: " + "\n  ".join([*shown, *_left(found)]) + "\n")
    return 1 if found else 0


def _left(found: Sequence[str]) -> list[str]:
    return [f"and {len(found) - _BAD_SHOWN} more"] if len(found) > _BAD_SHOWN else []


if __name__ == "__main__":
    sys.exit(main())
