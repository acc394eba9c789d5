"""Room is a free slot, and nothing overtakes what waits for one (DESIGN 13.7)."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.record import Start
from pool.redis import pipeline as pipelines
from pool.redis.commands.edges import Pulled
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from tests.redis.conftest import W1, W2, Bench
from tests.redis.test_dispatch_script import starts


def keys_of(found: list[Start]) -> list[str]:
    return [start.key for start in found]


def full(bench: Bench, slots: int) -> None:
    """Have W1 take as many keys as it has already, and W2 none."""
    bench.take(W1, slots)
    bench.take(W2, 0)


def queued(bench: Bench) -> list[str]:
    found: list[bytes] = bench.do("ZRANGE", bench.names.unassigned("h"), 0, -1)
    return [key.decode() for key in found]


def settle(bench: Bench, key: str) -> None:
    (status,) = bench.advance("own", W1.name, bench.edge("d", key))
    assert status == "OK"


def test_who_comes_joins_the_queue_whose_head_gets_the_slot(bench: Bench) -> None:
    """A dispatch overtook what was unassigned whenever a slot was free before it was pulled."""
    full(bench, 1)
    bench.dispatch(*(bench.admission(key, unassigned=True) for key in ("a", "b", "c")))
    assert (keys_of(starts(bench, W1)), queued(bench)) == (["a"], ["b", "c"])
    settle(bench, "a")
    assert bench.dispatch(bench.admission("d")) == ["OK unassigned"]
    assert (keys_of(starts(bench, W1)), queued(bench)) == (["b"], ["c", "d"])
    assert bench.audit() == []


def test_a_batch_takes_no_more_than_the_slots_and_in_order(bench: Bench) -> None:
    full(bench, 3)
    bench.put("old", "U")
    bench.take(W1, 0)
    bench.dispatch(bench.admission("older", unassigned=True))
    bench.take(W1, 3)
    answers = bench.dispatch(*(bench.admission(f"k{n}", unassigned=True) for n in range(5)))
    assert keys_of(starts(bench, W1)) == ["old", "older", "k0"]
    assert queued(bench) == ["k1", "k2", "k3", "k4"]
    assert answers == ["OK unassigned"] * 5
    assert bench.counter("unassigned") == 4
    assert bench.audit() == []


def test_a_repeat_of_what_was_given_the_slot_says_who_has_it(bench: Bench) -> None:
    """A call's own later items see what its earlier ones did."""
    full(bench, 1)
    bench.take(W1, 0)
    first = bench.admission("a", unassigned=True)
    bench.dispatch(first)
    bench.take(W1, 1)
    answers = bench.dispatch(bench.admission("b"), first)
    assert answers == ["OK unassigned", "OK w1.1"]
    assert bench.audit() == []


@pytest.mark.parametrize("junk", ["not a record", None])
def test_what_is_no_job_is_taken_out_of_the_queue(bench: Bench, junk: str | None) -> None:
    full(bench, 1)
    bench.put("good", "U") if junk is None else None
    bench.do("ZADD", bench.names.unassigned("h"), 1, "nobody")
    bench.do("HINCRBY", bench.names.lane, "unassigned", 1)
    if junk is not None:
        bench.do("HSET", bench.names.jobs, "nobody", junk)
    bench.dispatch(bench.admission("new"))
    assert "nobody" not in queued(bench)
    assert len(starts(bench, W1)) == 1


@pytest.mark.parametrize("state", ["W", "P"])
def test_what_comes_back_joins_the_queue_where_it_was_accepted(bench: Bench, state: str) -> None:
    """A retry that is due, and a start that is given back, overtake nobody; nor are they."""
    bench.take(W2, 0)
    full(bench, 0)
    bench.put("first", "U")
    bench.take(W1, 2 if state == "P" else 0)
    if state == "P":
        bench.take(W1, 1)
        bench.dispatch(bench.admission("second"))
        assert keys_of(starts(bench, W1)) == ["first"]
        bench.take(W1, 2)
        bench.dispatch(bench.admission("third"))
        assert keys_of(starts(bench, W1)) == ["first", "second"]
    else:
        bench.put("second", "W")
        bench.dispatch(bench.admission("third", unassigned=True))
    bench.take(W2, 1)
    source, guard = (W1.name, "own") if state == "P" else ("", "free")
    edge = bench.edge("g", "second")
    [answer] = bench.run(bench.advance_call(guard, source, edge, targets=[W2]))[1:]  # type: ignore[arg-type]
    if state == "P":
        assert answer.startswith(b"GRANTED w2.1 ")
        assert queued(bench) == ["third"]
    else:
        assert answer == b"UNASSIGNED"
        assert keys_of(starts(bench, W2)) == ["first"]
        assert queued(bench) == ["second", "third"]
    assert bench.audit() == []


def test_what_ran_already_does_not_wait_in_line(bench: Bench) -> None:
    """A service that moves, or whose worker died, had a slot before those who wait."""
    full(bench, 1)
    bench.put("served", "R")
    bench.dispatch(bench.admission("waits", unassigned=True))
    bench.take(W2, 1)
    [answer] = bench.advance("own", W1.name, bench.edge("g", "served"), targets=[W2])
    assert answer.startswith(f"GRANTED {W2.name} ")
    assert queued(bench) == ["waits"]
    assert bench.audit() == []


def pull(bench: Bench, **changes: Any) -> list[Any]:
    given: dict[str, Any] = {"keys_max": 100, "pending_s": 10.0}
    answer: list[Any] = bench.run(bench.lane.pull(W1, ["h"], **given | changes))
    return answer


def test_a_pull_brings_what_there_are_slots_for_and_what_is_held_ahead(bench: Bench) -> None:
    bench.take(W1, 2)
    bench.take(W2, 0)
    for n in range(12):
        bench.put(f"k{n:02}", "U")
    assert pull(bench) == [10, 2]
    assert pull(bench) == [10, 0]
    assert pull(bench, ahead=3) == [7, 3]
    assert pull(bench, ahead=3) == [7, 0]
    bench.take(W1, 0)
    assert pull(bench, ahead=9) == [7, 0]
    assert bench.audit() == []


def test_a_worker_says_with_a_message_how_many_it_takes(bench: Bench) -> None:
    """Its slots are shared by all lanes; a later renewal, or a hang, has the last word."""
    bench.run(bench.renew_call({"w1.1": 5}, seq=7))
    bench.put("k", "U")
    assert pull(bench, says="0|7")[:2] == [1, 0]
    assert bench.opening("w1") == "1|0|7"
    assert pull(bench, says="9|6")[:2] == [1, 0]
    assert bench.opening("w1") == "1|0|7"
    stamp = bench.record("k").accepted
    assert pull(bench, says="-", keys_max=1) == [1, 0, b"0"]
    bench.put("later", "U")
    later = bench.record("later").accepted
    assert stamp < later
    assert pull(bench, says="1|8") == [1, 1, str(later).encode()]
    bench.run(bench.renew_call({"w1.1": 5}, seq=9, is_hung=True))
    pull(bench, says="5|9")
    assert bench.opening("w1") == "1|-|9"
    assert bench.audit() == []


@pytest.mark.anyio
async def test_a_pull_does_not_overtake_the_ends_that_free_its_slots(
    bench: Bench, redis_url: str
) -> None:
    """What is large waits aside in a pipeline: the pull behind it found all slots taken."""
    full(bench, 10)
    bench.take(W1, 10)
    bench.dispatch(*(bench.admission(f"k{n}", unassigned=True) for n in range(20)))
    large = b"x" * (pipelines.LARGE_BYTES // 10)
    edges = [bench.edge("d", start.key, x=large) for start in starts(bench, W1)]
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=5.0)
    said: list[Any] = []
    pipeline.send(bench.advance_call("own", W1.name, *edges), said.append)
    pipeline.send(bench.lane.pull(W1, ["h"], keys_max=100, pending_s=1.0), said.append)
    await pipeline.execute("PING")
    await pipeline.aclose(5.0)
    assert said[1] == Pulled(left=0, granted=10, oldest=0)
