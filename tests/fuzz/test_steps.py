"""What a caller sends takes steps in proportion to its size, whatever it is: they are counted.

A step is a line of ours, an item that a linear method of a list or a text goes over, and what it
takes to build a set or a dict: of items with the same hash each is compared with all others.  Of
all inputs the one with the most steps for its size is named.
"""

from __future__ import annotations

import datetime
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal
from uuid import UUID

import attrs
import pytest

import pool
from pool import Handlers, Job
from pool.core.codec import decode_call, decode_value, encode_call
from pool.core.followers import parse
from pool.errors import PayloadEncodingError, WrongArguments

HOME: Final = str(Path(pool.__file__).parent)
LINEAR: Final = frozenset({"count", "index", "remove", "insert", "find", "replace", "copy", "sort"})
A_BYTE: Final = 12  # steps that each byte of an input may take
FEW: Final = 3_000  # ... beside these
SIZES: Final = (40, 400, 1_500)
PRIME: Final = 2**61 - 1  # numbers are hashed modulo this
_TYPES: Final[Mapping[str, Any]] = {
    "Any": Any,
    "int": int,
    "set[int]": set[int],
    "dict[int, int]": dict[int, int],
    "frozenset[UUID]": frozenset[UUID],
    "set[Decimal]": set[Decimal],
    "dict[UUID, str]": dict[UUID, str],
    "list[datetime]": list[datetime.datetime],
    "list[timedelta]": list[datetime.timedelta],
    "bytes": bytes,
    "Decimal": Decimal,
    "Literal": Literal["a", 1],
    "union": datetime.date | str | list[int] | None,
}


@dataclass
class Line:
    text: str
    count: int = 0


TYPES: Final = {**_TYPES, "list[Line]": list[Line], "union of classes": Line | list[Line]}


# --- counting -------------------------------------------------------------------------------------


@attrs.define
class Steps:
    count: int = 0

    def on_line(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        self.count += event == "line"
        return self.on_line

    def on_call(self, _: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in LINEAR:
            of = getattr(called, "__self__", None)
            self.count += len(of) if isinstance(of, (list, str, bytes, dict, set)) else 0

    def add_built(self, value: Any) -> None:
        """Count what it took to build the sets and dicts in a value."""
        left = [value]
        while left:
            each = left.pop()
            if isinstance(each, (AbstractSet, dict)):
                self.count += sum(n * n for n in Counter(map(hash, each)).values())
            if isinstance(each, dict):
                left += each.values()
            elif isinstance(each, (list, tuple)):
                left += each


@contextmanager
def counted() -> Iterator[Steps]:
    steps = Steps()
    traced, profiled = sys.gettrace(), sys.getprofile()
    sys.settrace(steps.on_line)
    sys.setprofile(steps.on_call)
    try:
        yield steps
    finally:
        sys.settrace(traced)
        sys.setprofile(profiled)


# --- inputs ---------------------------------------------------------------------------------------


def one(value: Any) -> bytes:
    return json.dumps([value]).encode()


def inputs(n: int, dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield inputs of a size that goes with `n`, each of which is the worst for something."""
    names = [f'"{k:x}":1' for k in range(n)]
    yield "a name twice, at the end", b"[{%s}]" % ",".join([*names, names[-1]]).encode()
    yield (
        "a name twice, among kwargs",
        b'{"args":[],"kwargs":{%s}}' % ",".join([*names, names[-1]]).encode(),
    )
    yield "deep", b"[" * n
    yield "deep and whole", b"[" * n + b"]" * n
    yield "deep dicts", b'{"a":' * n + b"1" + b"}" * n
    yield "many lists", one([[]] * n)
    yield "many digits", one(10 ** min(n, 4_000))
    yield "many surrogates", b'["%s"]' % (b"\\ud800" * n)
    yield "many escapes", b'["%s"]' % (b"\\u0041" * n)
    yield "many values", b"1 " * n
    yield "numbers of one hash", one([k * PRIME for k in range(1, n)])
    yield "keys of one hash", one({str(k * PRIME): k for k in range(1, n)})
    ids = [UUID(int=k * PRIME) for k in range(1, n)]
    yield "ids of one hash", one([str(each) for each in ids])
    yield "id keys of one hash", one({str(each): "" for each in ids})
    yield "decimals of one hash", one([str(k * PRIME) for k in range(1, n)])
    yield "the last one is wrong", one([*["2026-01-01T00:00:00"] * n, "x" * n])
    yield "long durations", one(["P1DT" + "1" * n] * 3)
    yield "a long decimal", one("9" * n)
    yield "no base 64", one("A" * n + "!")
    yield "many lines", one([{"text": "x", "count": 1}] * n)
    yield "an unknown field", one([{"text": "x"}] * n + [{"text": "x", "y" * n: 1}])
    yield "many arguments", json.dumps([1] * n).encode()
    yield "a head", b"\x01" + b"a" * n
    yield "heads", b"\x01 2\n" * n
    yield "many names", json.dumps({"args": [], "kwargs": {f"a{k}": 1 for k in range(n)}}).encode()
    followers = b"t 0 0 -1 j x 1 1 1 0 2\nkih[]"
    yield "many followers", followers * n
    whole = encode_call(([1, "a", {"k": [1.5, None]}] * (n // 8),), {})
    for _ in range(4):
        yield (
            "damaged",
            bytes(dice.randrange(256) if dice.random() < 0.01 else byte for byte in whole),
        )


def readers() -> Iterator[tuple[str, Callable[[bytes], Any]]]:
    yield "decode_call", decode_call
    yield "decode_value", decode_value
    yield "followers", lambda data: [*parse(data)]
    for name, hint in TYPES.items():

        async def takes(job: Job, x: Any) -> None: ...

        takes.__annotations__ = {"job": Job, "x": hint}
        arguments = Handlers().job("takes")(takes)._arguments
        yield name, partial(arguments.decode, "takes")


@pytest.mark.parametrize(("name", "read"), list(readers()), ids=lambda each: str(each)[:20])
def test_what_is_read_takes_steps_in_proportion_to_its_size(
    name: str, read: Callable[[bytes], Any], record_property: Callable[[str, object], None]
) -> None:
    """Nothing that a caller sends keeps an event loop busy."""
    dice = random.Random(f"steps/{name}")
    worst = (0.0, "")
    for n in SIZES:
        for what, data in inputs(n, dice):
            with counted() as steps:
                try:
                    value = read(data)
                except (PayloadEncodingError, WrongArguments):
                    value = None
            steps.add_built(value)
            share = steps.count / (A_BYTE * len(data) + FEW)
            told = f"{what}, {len(data)} bytes: {steps.count} steps"
            worst = max(worst, (share, told))
    record_property("most steps", worst[1])
    assert worst[0] <= 1, worst[1]


def test_the_counter_sees_what_grows_with_the_square() -> None:
    """Else the test above would be one that cannot fail."""
    numbers = [k * PRIME for k in range(400)]
    steps = Steps()
    steps.add_built(set(numbers))
    assert steps.count == 400 * 400
    with counted() as steps:
        for number in numbers:
            numbers.count(number)
    assert steps.count >= 400 * 400
