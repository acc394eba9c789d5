"""Figures of a day, script by script: what a minute holds, and what closes it."""

from __future__ import annotations

from typing import Any

import pytest

from pool.ops.rates import counts_in
from pool.redis.commands.journal import FIELDS_MAX, MINUTES_MAX, TEXT_BYTES_MAX, FigureCalls
from tests.redis.conftest import Bench

MEGABYTE = 1024 * 1024


def rate(bench: Bench, **counts: int) -> Any:
    return rated(bench, {name.replace("_", " "): n for name, n in counts.items()})


def rated(bench: Bench, counts: dict[str, int]) -> Any:
    return bench.run(FigureCalls(bench.names, bench.lane.generation).rate(counts))


def going(bench: Bench) -> dict[str, str]:
    flat = bench.do("HGETALL", bench.names.rates)
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {k.decode(): v.decode() for k, v in pairs}


def age(bench: Bench, minutes: int = 1) -> int:
    """Have the minute under way be one of before; return its number."""
    at = int(going(bench)["at"]) - minutes
    bench.do("HSET", bench.names.rates, "at", at)
    return at


def entries(bench: Bench) -> list[dict[str, str]]:
    found: Any = bench.client.xrange(bench.names.rated)
    return [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in found]


def test_counts_of_one_minute_add_up_and_are_one_entry_when_it_is_over(bench: Bench) -> None:
    """Of many nodes the first of the next minute closes it, and its own counts are the next's."""
    assert rate(bench, d_pay=2, s_pay=3) == 1
    assert rate(bench, d_pay=5, d_ship=1) == 1
    assert {k: v for k, v in going(bench).items() if k != "at"} == {
        "d pay": "7",
        "s pay": "3",
        "d ship": "1",
    }
    at = age(bench)
    for _ in range(2):
        assert rate(bench, d_pay=1) == 1
    assert entries(bench) == [{"at": str(at), "of": "pay d=7,s=3\nship d=1"}]
    assert going(bench) == {"at": going(bench)["at"], "d pay": "2"}


def test_a_call_without_counts_only_closes(bench: Bench) -> None:
    rate(bench, d_pay=2)
    age(bench)
    rated(bench, {})
    assert len(entries(bench)) == 1
    assert going(bench) == {}


def test_what_does_not_fit_is_told_together_and_no_number_is_cut(bench: Bench) -> None:
    """All counts are there, under whatever name; an entry is never longer than its bound."""
    counts = {f"{what} handler-number-{n}": 100 + n for n in range(60) for what in ("d", "f.Bad")}
    rated(bench, counts)
    age(bench)
    rate(bench, d_pay=1)
    [entry] = entries(bench)
    assert len(entry["of"]) <= TEXT_BYTES_MAX
    told = list(counts_in(entry["of"]))
    assert sum(n for _, what, n in told if what == "d") == sum(range(100, 160))
    assert sum(n for _, what, n in told if what[0] == "f") == sum(range(100, 160))
    handlers = [handler for handler, _, _ in told]
    assert handlers[0] == "handler-number-59"  # who has most to tell is told of by name
    assert handlers[-1] == "~"


def test_even_what_is_told_together_keeps_to_its_bound(bench: Bench) -> None:
    counts = {f"d {'h' * 100}{n}": 10**15 for n in range(9)}
    counts |= {f"{letter}{n} {'h' * 100}0": 10**15 for letter in "wt" for n in "0123456789abcdefgh"}
    rated(bench, counts)
    age(bench)
    rate(bench, d_pay=1)
    [entry] = entries(bench)
    assert len(entry["of"]) <= TEXT_BYTES_MAX
    assert {n % 10**15 for _, _, n in counts_in(entry["of"])} == {0}  # none was cut


def test_a_day_takes_less_than_a_megabyte(bench: Bench) -> None:
    """With the longest entries there can be, and older ones go."""
    longest = "".join(chr(33 + n % 90) for n in range(TEXT_BYTES_MAX))
    pipe = bench.client.pipeline(transaction=False)
    for n in range(MINUTES_MAX + 50):
        pipe.xadd(bench.names.rated, {"at": 29_000_000 + n, "of": longest})
    pipe.execute()
    rate(bench, d_pay=1)
    age(bench)
    rate(bench, d_pay=1)
    assert bench.client.xlen(bench.names.rated) == MINUTES_MAX
    used: Any = bench.client.memory_usage(bench.names.rated, samples=0)
    assert used < MEGABYTE


def test_the_minute_under_way_is_bounded_too(bench: Bench) -> None:
    for first in range(0, FIELDS_MAX + 1000, 500):
        rated(bench, {f"d h{n}": 1 for n in range(first, first + 500)})
    assert len(going(bench)) <= FIELDS_MAX + 2
    assert int(going(bench)["d ~"]) >= 999
    assert sum(int(n) for f, n in going(bench).items() if f != "at") == FIELDS_MAX + 1000
    age(bench)
    rate(bench, d_pay=1)
    [entry] = entries(bench)
    assert sum(n for _, _, n in counts_in(entry["of"])) == FIELDS_MAX + 1000


@pytest.mark.parametrize("key", ["rates", "rated"])
def test_something_else_in_its_place_stops_the_figures_and_nothing_else(
    bench: Bench, key: str
) -> None:
    place = getattr(bench.names, key)
    bench.do("SET", place, "another hand's")
    before = bench.dump()
    assert rate(bench, d_pay=1) == 0
    assert bench.dump() == before


def test_foreign_fields_count_as_nothing(bench: Bench) -> None:
    rate(bench, d_pay=1)
    bench.do("HSET", bench.names.rates, "d pay", "much", "nonsense", "x", "d odd odd", "3")
    rate(bench, d_pay=2)
    assert going(bench)["d pay"] == "2"
    age(bench)
    rate(bench, d_pay=1)
    assert entries(bench)[0]["of"] == "pay d=2"


def test_the_wrong_data_are_refused(bench: Bench) -> None:
    call = FigureCalls(bench.names, "another").rate({"d pay": 1})
    assert bench.refused(call).startswith("POOLDATALOST")
