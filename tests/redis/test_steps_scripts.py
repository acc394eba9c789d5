"""`advance`: what a job stores while it goes on, its state and what its steps returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from pool.core.record import (
    STATES,
    Outcome,
    Progress,
    letters_steps,
    more_of,
    parse_steps,
    state_of,
    steps_name,
)
from pool.redis.commands.calls import Target
from tests.redis.conftest import W1, W2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pool.redis.embedded.server import EmbeddedServer
    from tests.edges import WireEdge
    from tests.redis.conftest import Bench

ENDS = {"d": False, "c": False, "x": True}  # whether steps outlast it


@pytest.fixture
def full(server_to_fill: EmbeddedServer, bench: Bench) -> Iterator[Bench]:
    """Yield a lane on a server that may be filled."""
    with redis.Redis.from_url(server_to_fill.url, protocol=2) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        own_bench = type(bench)(client, bench.pool).join()
        yield own_bench
        client.config_set("maxmemory", 0)
        own_bench.close()


def own(bench: Bench, *edges: WireEdge, source: Target = W1) -> list[str]:
    return bench.advance("own", source.name, *edges, targets=[W2])


def step(bench: Bench, name: str, result: bytes, key: str = "k") -> WireEdge:
    return bench.edge("t", key, x=name, y=result)


def steps_of(bench: Bench, field: str = steps_name("k")) -> dict[str, bytes] | None:
    text = bench.do("HGET", bench.names.checkpoints, field)
    return None if text is None else parse_steps(text)


def state(bench: Bench, key: str = "k") -> bytes:
    return state_of(bench.do("HGET", bench.names.checkpoints, key) or b"")


def tell(bench: Bench, count: int, key: str = "k") -> list[int]:
    """Put messages into an inbox; return their ids."""
    call = bench.lane.notify
    told = [bench.run(call(key, W1.name, f"r{n}", b"m", messages_max=9999)) for n in range(count)]
    return [int(bytes(answer).split()[1]) for answer in told]


# --- steps ----------------------------------------------------------------------------------


def test_the_first_result_of_a_step_stands(bench: Bench) -> None:
    """A repeat of the write is told so; another result is answered with the one that stands."""
    bench.put("k", "R")
    odd = b"\x00a\n1\nb|\xff "
    assert own(bench, step(bench, "one", b"1"), step(bench, "two", odd)) == ["OK", "OK"]
    assert own(bench, step(bench, "one", b"1")) == ["OK"]
    assert own(bench, step(bench, "one", b"2"), step(bench, "three", b"")) == ["STANDS 1", "OK"]
    call = bench.advance_call("own", W1.name, step(bench, "two", b"x"))
    assert bench.run(call)[1] == b"STANDS " + odd
    assert steps_of(bench) == {"one": b"1", "two": odd, "three": b""}
    assert "s" in bench.record("k").flags
    assert bench.audit() == []


@pytest.mark.parametrize("letter", ["g", "w"])
def test_steps_go_along_wherever_the_job_goes(bench: Bench, letter: str) -> None:
    bench.put("k", "R")
    own(bench, step(bench, "one", b"1"))
    own(bench, bench.edge(letter, "k"))
    assert "s" in bench.record("k").flags
    if letter == "g":
        (fields,) = bench.entries(bench.names.stream(W2.name))
        assert "s" in fields["m"].split("|")[4]
        assert own(bench, step(bench, "one", b"2"), source=W2) == ["STANDS 1"]
    assert steps_of(bench) == {"one": b"1"}
    assert bench.audit() == []


@pytest.mark.parametrize("letter", ENDS)
def test_steps_end_with_the_job_unless_it_is_parked(bench: Bench, letter: str) -> None:
    put = bench.put("k", "R")
    own(bench, step(bench, "one", b"1"))
    own(bench, bench.edge(letter, "k"))
    assert (steps_of(bench, letters_steps(put.id, "k")) is not None) is ENDS[letter]
    # The key's next job has none of them.
    bench.put("k", "R")
    assert own(bench, step(bench, "one", b"2")) == ["OK"]
    assert steps_of(bench) == {"one": b"2"}
    assert bench.audit() == []


def test_steps_of_a_dead_letter_go_with_it(bench: Bench) -> None:
    """When it has been kept for long enough, and another one comes."""
    put = bench.put("k", "R")
    own(bench, step(bench, "one", b"1"), bench.edge("x", "k"))
    bench.do("ZADD", bench.names.parked, 1, f"{put.id} k")
    bench.put("l", "R")
    own(bench, bench.edge("x", "l"))
    assert steps_of(bench, letters_steps(put.id, "k")) is None
    assert bench.audit() == []


def test_steps_that_cannot_be_read_are_left_alone(bench: Bench) -> None:
    bench.put("k", "R")
    own(bench, step(bench, "one", b"1"))
    field = steps_name("k")
    for damaged in (b"one", b"one\nx\n1", b"one\n17\n1"):
        bench.do("HSET", bench.names.checkpoints, field, damaged)
        assert own(bench, step(bench, "two", b"2"), step(bench, "one", b"1")) == ["MALFORMED"] * 2
        assert bench.do("HGET", bench.names.checkpoints, field) == damaged
        assert parse_steps(damaged) is None


# --- states ---------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["P", "R"])
def test_a_save_removes_the_messages_that_it_holds(bench: Bench, letter: str) -> None:
    """State and messages change in one step: in no crash is one applied twice, or lost."""
    bench.put("k", letter)
    ids = tell(bench, 3)
    bench.do("LPUSH", bench.names.inbox("k"), "garbage")
    assert own(bench, bench.edge("v", "k", x=b"s1", y=ids[1])) == ["OK"]
    assert (state(bench), bench.do("LLEN", bench.names.inbox("k"))) == (b"s1", 1)
    assert own(bench, bench.edge("v", "k", x=b"s2", y=0, z=2)) == ["OK"]
    assert (state(bench), bench.do("LLEN", bench.names.inbox("k"))) == (b"s2", 1)
    assert "b" in bench.record("k").flags
    assert bench.audit() == []


def test_a_save_removes_however_many(bench: Bench) -> None:
    """More than `seen` takes out in one call: here it must be all or nothing."""
    bench.put("k", "R")
    ids = tell(bench, 1203)
    assert own(bench, bench.edge("v", "k", y=ids[1200])) == ["OK"]
    left = [each.decode() for each in bench.do("LRANGE", bench.names.inbox("k"), 0, -1)]
    assert [int(each.split("|")[0]) for each in left] == ids[1201:]


def test_a_late_copy_of_a_save_puts_nothing_back(bench: Bench) -> None:
    """Of one epoch the highest number stands; another owner's numbers begin anew."""
    bench.put("k", "R")
    late = bench.edge("v", "k", x=b"s10", z=10)
    assert own(bench, late) == ["OK"]
    assert own(bench, bench.edge("v", "k", x=b"s11", z=11)) == ["OK"]
    assert own(bench, late) == ["REPEAT saved"]
    assert state(bench) == b"s11"
    own(bench, bench.edge("g", "k"))
    assert state(bench) == b"s11"
    assert own(bench, late) == ["FENCED"]
    assert own(bench, bench.edge("v", "k", x=b"s1", z=1), source=W2) == ["OK"]
    assert state(bench) == b"s1"


def test_what_is_handed_over_takes_the_place_of_what_was_saved(bench: Bench) -> None:
    bench.put("k", "R")
    own(bench, bench.edge("v", "k", x=b"1.1|saved"))
    assert state(bench) == b"1.1|saved"
    own(bench, bench.edge("g", "k", z=b"=9.9|handed"))
    assert state(bench) == b"9.9|handed"


# --- how far it is --------------------------------------------------------------------------


@pytest.mark.parametrize("letter", [*ENDS, "g", "w"])
def test_what_a_job_said_last_stays_in_its_record_and_its_outcome(
    bench: Bench, letter: str
) -> None:
    put = bench.put("k", "R")
    for text in (Progress(done=1, total=2).pack(), Progress(done=2, note="a,b|c/d\n").pack()):
        assert own(bench, bench.edge("n", "k", x=text)) == ["OK"]
    own(bench, bench.edge(letter, "k"))
    if letter in ENDS:
        outcome = bench.look("k", put.id)
        assert isinstance(outcome, Outcome)
        said = outcome.progress
    else:
        said = Progress.parse(more_of(bench.record("k").more, "progress"))
    assert said is not None
    assert (said.done, said.total, said.note) == (2, None, "a,b¦c/d")
    assert abs(said.at_ms - bench.now_ms()) < 60_000
    assert bench.audit() == []


# --- whether it followed in order -----------------------------------------------------------


def test_who_follows_a_run_that_handed_nothing_over_is_told(bench: Bench) -> None:
    """Flag r: a failure, or an owner that is gone; a hand-over takes it away again."""
    bench.put("k", "R")
    own(bench, bench.edge("g", "k", y="f", x="1"))
    assert "r" not in bench.record("k").flags
    own(bench, bench.edge("w", "k"), source=W2)
    assert "r" in bench.record("k").flags
    bench.advance("free", "", bench.edge("g", "k"), targets=[W2])
    assert "r" in bench.record("k").flags
    own(bench, bench.edge("a", "k"), source=W2)
    own(bench, bench.edge("g", "k", y="f"), source=W2)
    assert "r" not in bench.record("k").flags


@pytest.mark.parametrize("letter", ["P", "R"])
def test_a_run_whose_owner_died_is_followed_by_one_that_is_told(bench: Bench, letter: str) -> None:
    """One that had to be acknowledged first, and was not, had never begun."""
    bench.put("k", letter)
    bench.end_lease(W1.name)
    (claim,) = bench.fence()
    edge = bench.edge("g", "k", y="r")
    bench.advance("reap", W1.name, edge, targets=[W2], claim=claim.claim)
    assert "r" in bench.record("k").flags


def test_what_never_began_is_followed_by_a_first_run(bench: Bench) -> None:
    bench.put("k", "P")
    own(bench, bench.edge("g", "k", y="a"))  # given back before its turn came
    assert "r" not in bench.record("k").flags
    bench.end_lease(W2.name)
    (claim,) = bench.fence()
    bench.advance("reap", W2.name, bench.edge("g", "k"), targets=[W1], claim=claim.claim)
    assert "r" not in bench.record("k").flags


# --- who may --------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", ["v", "t"])
@pytest.mark.parametrize("state", STATES)
def test_only_who_runs_it_stores(bench: Bench, state: str, letter: str) -> None:
    """G-02: a former owner's state or result is refused, and nothing is written."""
    bench.put("k", state)
    edge = bench.edge(letter, "k")
    edge.epoch -= 1
    before = bench.dump()
    guard, source = ("own", W1.name) if state in "PR" else ("free", "")
    (answer,) = bench.advance(guard, source, edge)  # type: ignore[arg-type]
    assert answer in ("FENCED", f"OWNED {W1.name}")
    assert bench.dump() == before


def test_a_full_server_saves_nothing_and_takes_what_has_happened(full: Bench) -> None:
    """A refused save leaves state and messages as they are, and the rest of its batch is done."""
    full.put("k", "R")
    full.put("other", "R")
    ids = tell(full, 2)
    own(full, full.edge("v", "k", x=b"s1", y=ids[0]))
    save = full.edge("v", "k", x=b"s2", y=ids[1], z=2)
    full.client.config_set("maxmemory", 1)
    assert own(full, save, step(full, "one", b"1"), full.edge("d", "other")) == ["FULL", "OK", "OK"]
    assert (state(full), full.do("LLEN", full.names.inbox("k"))) == (b"s1", 1)
    assert steps_of(full) == {"one": b"1"}
    full.client.config_set("maxmemory", 0)
    assert own(full, save) == ["OK"]
    assert (state(full), full.do("EXISTS", full.names.inbox("k"))) == (b"s2", 0)
    assert full.audit() == []
