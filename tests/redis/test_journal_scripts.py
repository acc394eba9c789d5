"""The journal, as scripts write it: with the edge itself, bounded, and in nobody's way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pool.core.journal import EDGES
from pool.redis.commands.journal import following
from pool.redis.commands.member import renewal
from tests.redis.conftest import W1, W2

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

ENTRIES_MAX, NODE, ENTRY_BYTES_MAX = 10_000, 100, 1_200


def edges_of(bench: Bench) -> list[tuple[str, str]]:
    told = [(entry["edge"], entry["key"]) for entry in bench.journal()]
    assert {edge for edge, _ in told} <= {*EDGES}, "the table of words lacks one"
    return told


def test_an_edge_and_its_entry_are_one_step_and_a_repeat_has_none(bench: Bench) -> None:
    """Whoever dies behind it, both are there; a copy that comes late finds another epoch."""
    bench.put("k", "R")
    call = bench.edge("w", "k", z="no luck")
    assert bench.advance("own", "w1.1", call) == ["OK"]
    [entry] = bench.journal()
    assert (entry["edge"], entry["key"], entry["handler"]) == ("retried", "k", "h")
    assert (entry["owner"], entry["attempt"], entry["detail"]) == ("w1.1", "1", "no luck")
    assert bench.advance("own", "w1.1", call) == ["FENCED"]
    assert len(bench.journal()) == 1


@pytest.mark.parametrize(("guard", "edge"), [("own", "released"), ("reap", "taken_over")])
def test_a_key_that_is_given_up_and_one_that_is_taken_are_told_apart(
    bench: Bench, guard: Any, edge: str
) -> None:
    bench.put("k", "R")
    claim = bench.fenced(W1).claim if guard == "reap" else ""
    edge_of_it = bench.edge("g", "k", y="m")
    answers = bench.advance(guard, "w1.1", edge_of_it, targets=[W2], claim=claim)
    assert answers[0].startswith("GRANTED w2.1")
    entry = bench.journal()[-1]
    assert (entry["edge"], entry["owner"], entry["detail"]) == (edge, "w1.1", "a crash mark")


def test_it_is_bounded_in_entries_and_in_bytes(bench: Bench) -> None:
    long = ("e" * 40, "k" * 512, "i" * 128, "h" * 128, "w" * 40, "9" * 16, "9" * 4, "d" * 5000)
    for _ in range(41):
        bench.run(bench.lane.note([long] * 250))
    size = bench.do("XLEN", bench.names.journal)
    assert ENTRIES_MAX <= size <= ENTRIES_MAX + NODE
    assert sum(map(len, bench.journal()[-1].values())) <= ENTRY_BYTES_MAX
    memory = bench.do("MEMORY", "USAGE", bench.names.journal, "SAMPLES", "0")
    assert memory < (ENTRIES_MAX + NODE) * (ENTRY_BYTES_MAX + 100)


def test_what_stands_in_its_place_keeps_no_job_from_its_end(bench: Bench) -> None:
    bench.put("k", "R")
    bench.do("SET", bench.names.journal, "somebody else's")
    assert bench.advance("own", "w1.1", bench.edge("x", "k")) == ["OK"]
    assert bench.do("GET", bench.names.journal) == b"somebody else's"
    assert renewal(bench.run(bench.renew_call({"w1.1": 10}))).counts == (0,)
    bench.do("DEL", bench.names.journal)
    assert bench.audit() == []


def test_a_stream_that_takes_no_more_entries_keeps_no_job_from_its_end(bench: Bench) -> None:
    bench.put("k", "R")
    bench.do("XADD", bench.names.journal, f"{2**64 - 1}-{2**64 - 1}", "edge", "x")
    assert bench.advance("own", "w1.1", bench.edge("w", "k")) == ["OK"]
    assert bench.audit() == []


# --- all edges, on request ----------------------------------------------------------------------


def life(bench: Bench, key: str, handler: str = "h") -> None:
    """Have a job accepted, begun and done."""
    item = bench.admission(key, handler=handler)
    call = bench.lane.dispatch(
        [item], [W1], pending_s=10, queued_jobs_max=1000, is_followed=is_followed(bench)
    )
    assert bench.run(call) == [b"OK w1.1"]
    for letter in "ad":
        assert bench.advance("own", "w1.1", bench.edge(letter, key))[0][:2] == "OK"


def is_followed(bench: Bench) -> bool:
    return renewal(bench.run(bench.renew_call({"w1.1": 10}))).is_followed


def follow(bench: Bench, *, keys: Any = (), handlers: Any = (), for_s: float = 60) -> Any:
    return following(bench.run(bench.lane.follow(keys, handlers, for_s=for_s)))


def test_nothing_is_noted_of_ordinary_jobs(bench: Bench) -> None:
    life(bench, "k")
    assert bench.do("EXISTS", bench.names.journal) == 0


@pytest.mark.parametrize("what", [{"keys": ["k"]}, {"handlers": ["h"]}])
def test_all_edges_are_noted_of_what_was_named_and_of_nothing_else(bench: Bench, what: Any) -> None:
    follow(bench, **what)
    life(bench, "k")
    life(bench, "kk", "other")
    assert edges_of(bench) == [("accepted", "k"), ("started", "k"), ("done", "k")]
    assert bench.journal()[0]["owner"] == "w1.1"
    assert ", began " in bench.journal()[-1]["detail"]


def test_it_ends_by_itself_and_when_it_is_told_to(bench: Bench) -> None:
    told = follow(bench, keys=["k"], handlers=["h"])
    assert (told.left_s, told.keys, told.handlers) == (60.0, ("k",), ("h",))
    shown = following(bench.run(bench.lane.followed()))
    assert 0 < shown.left_s <= 60
    assert is_followed(bench)
    bench.do("HSET", bench.names.lane, "follow", f"{bench.now_ms() - 1}\nkk\nhh\n")
    assert following(bench.run(bench.lane.followed())).left_s == 0
    bench.put("k", "R")
    bench.advance("own", "w1.1", bench.edge("d", "k"))
    assert bench.journal() == []
    is_followed(bench)  # this renewal forgets it
    assert not is_followed(bench)
    assert bench.do("HEXISTS", bench.names.lane, "follow") == 0
    follow(bench, keys=["k"])
    assert follow(bench).left_s == 0
    assert not is_followed(bench)


@pytest.mark.parametrize("text", ["", "x", "99999999999999999999\nkk\n", "5", "\n"])
def test_what_somebody_else_wrote_there_follows_nothing(bench: Bench, text: str) -> None:
    bench.do("HSET", bench.names.lane, "follow", text)
    bench.put("k", "R")
    assert bench.advance("own", "w1.1", bench.edge("d", "k")) == ["OK"]
    assert bench.journal() == []
    assert following(bench.run(bench.lane.followed())).left_s == 0
