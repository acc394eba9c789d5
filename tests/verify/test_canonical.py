"""The short form of `python -m tests.verify.canonical`, and what stays apart on purpose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypedDict

import pytest

from pool import Handlers, Job
from pool.errors import WrongArguments
from tests.verify.canonical import Word, differences, digests, play

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EAST = NOON.astimezone(timezone(timedelta(hours=2)))


def test_equal_values_are_equal_bytes_under_every_hash_seed() -> None:
    """V1: in every codec, type and process."""
    found, counts = play(seeds=3, seed=7)
    assert found == []
    # The table must not shrink to what is refused.
    assert counts["json"] > 1_400
    assert counts["msgspec"] > 1_400
    assert counts["own"] > 8
    assert counts["refused"] < 50


def test_a_difference_between_processes_or_values_is_one() -> None:
    assert differences({1: {"a": "x"}, 2: {"a": "x"}}) == []
    assert len(differences({1: {"a": "x"}, 2: {"a": "y"}})) == 1
    assert len(differences({1: {"a": "x y"}, 2: {"a": "x y"}})) == 1
    told = digests()
    assert any(word == "refused" for word in told.values())


class Named(TypedDict):
    a: int
    b: int


APART: list[tuple[Any, Any, Any]] = [
    (Any, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (dict[str, int], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Named, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Any, 1, 1.0),
    (Any, 1, True),
    (int | float, 1, 1.0),
    (float, 0.0, -0.0),
    (Decimal, Decimal("1.0"), Decimal("1.00")),
    (datetime, NOON, EAST),
    (Word | str, Word.YES, "yes"),
]


@pytest.mark.parametrize(("hint", "one", "other"), APART, ids=lambda each: str(each)[:30])
def test_what_a_handler_can_tell_apart_stays_apart(hint: Any, one: Any, other: Any) -> None:
    """As docs/how-to/types.md says: it arrives as it is."""

    async def takes(job: Job, x: Any) -> None: ...

    takes.__annotations__ = {"job": Job, "x": hint}
    arguments = Handlers().job("takes")(takes)._arguments
    assert one == other
    datas = [arguments.encode("takes", (value,), {}) for value in (one, other)]
    assert datas[0] != datas[1]
    [back] = arguments.decode("takes", datas[1])[0]
    assert repr(back) == repr(other)


def test_of_one_instant_msgspec_keeps_no_offset() -> None:
    async def takes(job: Job, x: datetime) -> None: ...

    arguments = Handlers().job("takes", codec="msgspec")(takes)._arguments
    one, other = (arguments.encode("takes", (value,), {}) for value in (NOON, EAST))
    assert one == other


@pytest.mark.parametrize(
    "hint", [list[str], list[list[str]], dict[str, list[str]], tuple[str, ...]]
)
@pytest.mark.parametrize("codec", ["json", "msgspec"])
def test_a_set_is_no_list(hint: Any, codec: Any) -> None:
    """It would arrive in the order of its hashes."""

    async def takes(job: Job, x: Any) -> None: ...

    takes.__annotations__ = {"job": Job, "x": hint}
    arguments = Handlers().job("takes", codec=codec)(takes)._arguments
    some = {"a", "b"}
    for value in (some, [some], {"k": some}):
        with pytest.raises(WrongArguments):
            arguments.encode("takes", (value,), {})
