"""`look`, `notify`, `reconcile`, `found`: what others may know and say of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import redis

from pool.core.record import Outcome, Record
from pool.core.walk import Pages
from pool.names import Control
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import Edge
from pool.redis.commands.member import OPEN_POOL, PoolConfig, pool_config
from pool.redis.commands.talk import NO_MESSAGE, Missing, More, inbox_page, looked, number_in

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W1, W2 = Target("w1", 1), Target("w2", 1)


def notify(
    bench: Bench,
    key: str,
    *,
    owner: str = "w1.1",
    request: str = "r1",
    payload: bytes = b"m",
    messages_max: int = 3,
    job_id: str = "",
) -> str:
    call = bench.lane.notify(key, owner, request, payload, messages_max=messages_max, job_id=job_id)
    answer: bytes = bench.run(call)
    return answer.decode()


def signals(bench: Bench, identity: str) -> list[dict[bytes, bytes]]:
    entries: Any = bench.client.xrange(bench.names.signal(identity))
    return [fields for _, fields in entries if fields[b"t"] != b"joined"]


# --- look ---------------------------------------------------------------------------------------


def test_a_look_tells_of_live_ended_and_unknown_jobs(bench: Bench) -> None:
    """A waiter learns how its job is, by key or by id, also when the key has another one."""
    ended = bench.put("k", "P")
    bench.advance("own", "w1.1", bench.edge("d", "k"))
    live = bench.put("k", "R")
    assert bench.look("k") == live
    assert bench.look("k", live.id) == live
    outcome = bench.look("k", ended.id)
    assert isinstance(outcome, Outcome)
    assert (outcome.word, outcome.body) == ("done", b"result")
    stamp = live.epoch  # the last that the lane gave
    for unknown in (bench.look("k", "unknown"), bench.look("nothing")):
        assert isinstance(unknown, Missing)
        assert unknown.stamp == stamp
        assert unknown.now_ms >= stamp // 1000
    bench.do("HSET", bench.names.jobs, "bad", "garbage")
    items = [("bad", ""), ("k", ""), ("bad", "other"), ("k", ended.id)]
    first, second, third, fourth = looked(bench.run(bench.lane.look(items)))
    assert second == live
    assert isinstance(first, Missing)
    assert isinstance(third, Missing)
    assert fourth == outcome, "what its key has now is another one's"


def test_a_look_tells_outcomes_up_to_so_many_bytes(bench: Bench) -> None:
    """All of a batch at once would take a slow line longer than a call may take."""
    for key in ("a", "b", "c"):
        bench.put(key, "P")
    ids = {key: bench.record(key).id for key in ("a", "b", "c")}
    for key in ids:
        bench.advance("own", "w1.1", bench.edge("d", key, x=b"r" * 1000))
    live = bench.put("live", "R")
    items = [*ids.items(), ("live", live.id), ("none", "j")]

    found = looked(bench.run(bench.lane.look(items, node="n1.1")))
    assert [type(each) for each in found] == [Outcome, Outcome, Outcome, Record, Missing]
    for outcome_bytes, lines in ((1, 1), (1500, 1), (4000, 4)):
        lane = attrs.evolve(bench.lane, pages=Pages(outcome_bytes=outcome_bytes))
        found = looked(bench.run(lane.look(items, node="n1.1", lines=lines)))
        assert [type(each) for each in found] == [Outcome, More, More, Record, More]
    lane = attrs.evolve(bench.lane, pages=Pages(outcome_bytes=2500))
    found = looked(bench.run(lane.look(items, node="n1.1")))
    assert [type(each) for each in found] == [Outcome, Outcome, More, Record, More]


def test_looking_writes_nothing_and_waiting_registers_once(bench: Bench) -> None:
    """At most 16 nodes are told; who is not registered asks again."""
    bench.put("k", "R")
    before = bench.dump()
    bench.look("k")
    assert bench.dump() == before
    for i in range(20):
        for _ in range(2):
            bench.look("k", node=f"n{i}.1")
    assert bench.record("k").waiters == tuple(f"n{i}.1" for i in range(16))
    assert bench.audit() == []


def test_a_name_that_begins_like_another_is_another(bench: Bench) -> None:
    """`n1.1` is not registered because `n1.11` is."""
    bench.put("k", "R")
    bench.look("k", node="n1.11")
    bench.look("k", node="n1.1")
    assert bench.record("k").waiters == ("n1.11", "n1.1")


def test_an_outcome_of_another_type_fails_its_own_look_alone(bench: Bench) -> None:
    bench.put("k", "R")
    bench.do("RPUSH", bench.names.result("nothing", "j"), "of another type")
    call = bench.lane.look([("k", ""), ("nothing", "j")], node="n1.1")
    live, other = bench.run(call)
    assert (live.split(b"|")[0], other[:1]) == (b"R", b"?")


def test_the_dead_give_up_their_places_among_the_waiters(bench: Bench) -> None:
    """Sixteen are told of a job's end: not those who cannot hear it, where others ask."""
    bench.put("k", "R")
    bench.end_lease("w2.1")
    fenced = bench.fenced(W2)
    names = [f"x{n}.1" for n in range(14)]
    for name in names:
        bench.do("ZADD", bench.names.keepalive, bench.now_ms() + 60_000, name)
    for name in (*names, "w2.1", "gone.1"):
        bench.look("k", node=name)

    def ask(node: str, *, frees: bool) -> tuple[str, ...]:
        [found] = looked(bench.run(bench.lane.look([("k", "")], node=node, frees=frees)))
        assert isinstance(found, Record)
        return found.waiters

    full = (*names, "w2.1", "gone.1")
    assert ask("n1.1", frees=False) == full
    assert ask("x1.1", frees=True) == full  # it has one
    assert ask("n1.1", frees=True) == (*names, "n1.1")
    assert ask("w1.1", frees=False) == (*names, "n1.1", "w1.1")
    assert ask("n2.1", frees=True) == (*names, "n1.1", "w1.1")  # all of these live
    bench.do("ZADD", bench.names.keepalive, bench.now_ms() - 1, "x5.1")
    assert "x5.1" not in ask("n2.1", frees=True)
    assert ask("n2.1", frees=True)[-1] == "n2.1"
    assert fenced.identity == "w2.1"


# --- notify -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["P", "R", "W", "U"])
def test_a_message_is_kept_in_order_and_its_owner_told(bench: Bench, state: str) -> None:
    """G-07: inbox, id and signal are one step; without an owner the message waits."""
    owner = bench.put("k", state).owner
    ids = [notify(bench, "k", owner=owner, request=f"r{i}").split()[1] for i in range(3)]
    assert ids == sorted(ids, key=int)
    inbox = bench.client.lrange(bench.names.inbox("k"), 0, -1)
    assert inbox == [f"{ids[i]}|r{i}|m".encode() for i in range(3)]
    assert "i" in bench.record("k").flags
    if owner:
        told = signals(bench, owner)
        assert [fields[b"i"].decode() for fields in told] == [f"{ids[i]}|r{i}" for i in range(3)]
        assert [fields[b"b"].decode() for fields in told] == ["0", *ids[:2]]
    assert bench.audit() == []


@pytest.mark.parametrize(("size", "is_inline"), [(1024, True), (1025, False)])
def test_a_large_message_is_read_from_the_inbox(
    bench: Bench, size: int, *, is_inline: bool
) -> None:
    """A signal carries up to 1 KB; it only wakes, the inbox is the truth."""
    bench.put("k", "R")
    notify(bench, "k", payload=b"x" * size)
    (told,) = signals(bench, "w1.1")
    assert (b"p" in told) == is_inline


def test_an_inbox_is_read_in_pages(bench: Bench) -> None:
    """G-07: so many messages, or so many bytes, in order; a larger one alone."""
    bench.put("k", "R")
    sizes = (10, 10, 10, 300, 10)
    ids = [
        int(notify(bench, "k", payload=b"x" * size, messages_max=9).split()[1]) for size in sizes
    ]
    bench.do("LPUSH", bench.names.inbox("k"), "none of ours")

    def page(after: int, **pages: int) -> tuple[bool, list[int]]:
        lane = attrs.evolve(bench.lane, pages=Pages(**pages))
        found = inbox_page(bench.run(lane.inbox("k", str(after or NO_MESSAGE))))
        assert all(payload.strip(b"x") == b"" for _, payload in found.messages)
        return found.has_more, [ids.index(number_in(message)) for message, _ in found.messages]

    assert page(0) == (False, [0, 1, 2, 3, 4])
    assert page(ids[1]) == (False, [2, 3, 4])
    assert page(ids[4]) == (False, [])
    assert page(0, messages=2) == (True, [0, 1])
    assert page(ids[1], messages=3) == (False, [2, 3, 4])
    assert page(0, messages=5) == (False, [0, 1, 2, 3, 4])
    assert page(0, message_bytes=400) == (True, [0, 1, 2])
    bench.advance("own", "w1.1", bench.edge("s", "k", x=ids[2]))
    assert page(ids[2], message_bytes=100) == (True, [3])
    assert page(ids[3], message_bytes=100) == (False, [4])


def test_what_was_handled_and_stands_there_is_passed_over(bench: Bench) -> None:
    """However much it is; and it is taken out in parts, as no script is as long as an inbox."""
    bench.put("k", "R")
    first = int(notify(bench, "k").split()[1])
    name, count = bench.names.inbox("k"), 2_500
    bench.do("RPUSH", name, *(f"{first + n}|r|m" for n in range(1, count)))
    page = inbox_page(bench.run(bench.lane.inbox("k", f"{first + 1_899}|r")))
    assert page.messages[0] == (f"{first + 1_900}|r", b"m")
    bench.do("RPUSH", bench.names.inbox("junk"), *["none of ours"] * 1_100)
    page = inbox_page(bench.run(bench.lane.inbox("junk", "")))
    assert (page.has_more, page.messages) == (True, [])
    handled = bench.edge("s", "k", x=f"{first + count - 1}|r")
    answers = [bench.advance("own", "w1.1", handled)[0] for _ in range(6)]
    assert answers == ["MORE"] * 4 + ["OK"] * 2
    assert bench.do("EXISTS", name) == 0
    large = [f"{first + n}|r|{'x' * 600_000}" for n in range(5)]
    bench.do("RPUSH", name, *large)
    handled = bench.edge("s", "k", x=f"{first + 4}|r")
    answers = [bench.advance("own", "w1.1", handled)[0] for _ in range(3)]
    assert answers == ["MORE", "MORE", "OK"]


@pytest.mark.parametrize("edge", ["s", "v"])
def test_a_message_of_before_a_loss_takes_no_other_one_out(bench: Bench, edge: str) -> None:
    """G-07: its number may be given again, and lower ones; each message stays until it is named."""
    bench.put("k", "R")
    name = bench.names.inbox("k")
    messages = ["500|new|m", "600|other|m", "700|last|m"]
    bench.do("RPUSH", name, *messages)

    def edge_for(message: str, number: int) -> Edge:
        if edge == "s":
            return bench.edge("s", "k", x=message)
        return bench.edge("v", "k", x=b"state", y=message, z=number)

    for number, message in enumerate(("650|gone", "600|gone", "500|gone", "900|gone"), start=1):
        assert bench.advance("own", "w1.1", edge_for(message, number)) == ["OK"]
        page = inbox_page(bench.run(bench.lane.inbox("k", message)))
        assert [found for found, _ in page.messages] == ["500|new", "600|other", "700|last"]
    assert bench.advance("own", "w1.1", edge_for("600|other", 9)) == ["OK"]
    assert bench.do("LRANGE", name, 0, -1) == [b"700|last|m"]


def test_a_repeat_looks_for_its_message_a_page_at_a_time(bench: Bench) -> None:
    """G-07: it is found wherever it stands, and if it is not there it is accepted."""
    bench.put("k", "R")
    lane = attrs.evolve(bench.lane, pages=Pages(looked_at=3))
    ids = [notify(bench, "k", request=f"r{n}", messages_max=99).split()[1] for n in range(10)]

    def again(request: str, skip: int = 0, since: int = 0) -> str:
        named = f"!{request}"
        call = lane.notify("k", "w1.1", named, b"m", messages_max=99, skip=skip, since=since)
        answer: bytes = bench.run(call)
        return answer.decode()

    assert again("r7") == f"OK {ids[7]}"
    assert again("r2") == "LOOKED 3"
    notify(bench, "k", request="meanwhile", messages_max=99)
    assert again("r2", skip=3) == "LOOKED 6"
    assert again("r2", skip=6) == f"OK {ids[2]}"
    assert again("other", skip=9, since=int(ids[0])) == f"OK {bench.stamp()}"
    assert again("another", since=bench.stamp()) == f"OK {bench.stamp()}"
    assert again("yet another", skip=100) == f"OK {bench.stamp()}"
    assert bench.do("LLEN", bench.names.inbox("k")) == 14


def test_a_repeated_message_is_accepted_once(bench: Bench) -> None:
    """G-07: asked again under the same request id, an unhandled message gets the same answer."""
    bench.put("k", "R")
    first = notify(bench, "k", request="r1")
    notify(bench, "k", request="r2")
    before = bench.dump()
    assert notify(bench, "k", request="!r1") == first
    assert bench.dump() == before
    assert notify(bench, "k", request="!r3").startswith("OK ")


def test_a_full_inbox_refuses_one_beyond_its_limit(bench: Bench) -> None:
    """G-09: refused, never dropped; a repeat of what is inside is still answered."""
    bench.put("k", "R")
    for i in range(3):
        assert notify(bench, "k", request=f"r{i}").startswith("OK ")
    before = bench.dump()
    assert notify(bench, "k", request="r3") == "INBOX 3"
    assert notify(bench, "k", request="!r0").startswith("OK ")
    assert bench.dump() == before


def test_a_message_for_another_owner_or_no_job_is_refused(bench: Bench) -> None:
    """G-02, G-09: the caller is told who owns the key now, and tries again."""
    bench.put("k", "R")
    bench.put("w", "W")
    bench.do("HSET", bench.names.jobs, "bad", "garbage")
    before = bench.dump()
    job_id, waits = bench.record("k").id, bench.record("w").id
    assert notify(bench, "k", owner="w2.1") == f"MOVED_ON w1.1 {job_id}"
    assert notify(bench, "k", owner="") == f"MOVED_ON w1.1 {job_id}"
    assert notify(bench, "w", owner="w1.1") == f"MOVED_ON - {waits}"
    for other in ("another", "-"):
        assert notify(bench, "k", job_id=other) == f"MOVED_ON w1.1 {job_id}"
        assert notify(bench, "w", owner="", job_id=other) == f"MOVED_ON - {waits}"
    assert notify(bench, "nothing") == "NOJOB"
    assert notify(bench, "bad") == "MALFORMED"
    assert bench.dump() == before


# --- reconcile ----------------------------------------------------------------------------------


def test_a_worker_reads_all_it_owns_at_one_moment(bench: Bench) -> None:
    """G-05: running keys with their records, unstarted ones with their entries.

    A member that no record confirms is dropped: it would look like a lost job for ever.
    """
    running, pending = bench.put("r", "R"), bench.put("p", "P")
    bench.put("u", "U")
    bench.do("XADD", bench.names.stream("w1.1"), "9999999999999999-0", "not", "a start")
    bench.do("SADD", bench.names.owned("w1.1"), "nobody's")
    found = bench.owned("w1.1")
    assert found.running == {"r": running}
    assert not bench.do("SISMEMBER", bench.names.owned("w1.1"), "nobody's")
    assert [(start.key, start.epoch) for start in found.starts] == [("p", pending.epoch)]
    empty = bench.owned("w2.1")
    assert (empty.running, list(empty.starts)) == ({}, [])


def test_records_survive_the_way_through_python(bench: Bench) -> None:
    """What scripts write, the model reads: every field of a job that has been through much."""
    bench.put("k", "R")
    bench.advance("own", "w1.1", bench.edge("w", "k", y=3, z="ошибка"))
    bench.advance("free", "", bench.edge("g", "k", y="r"), targets=[W1])
    bench.advance("own", "w1.1", bench.edge("a", "k"))
    bench.advance(
        "own", "w1.1", bench.edge("g", "k", y="=5.0.0.0.0.0,.0.1.0.,.1.", z=b"=\x00"), targets=[W1]
    )
    bench.look("k", node="n1.1")
    record = bench.record("k")
    assert isinstance(record, Record)
    assert (record.attempt, record.marks.deaths, record.requeues) == (3, 5, 0)
    assert (record.error, record.waiters, set(record.flags)) == ("ошибка", ("n1.1",), set("rb"))
    assert 0 < record.accepted < record.epoch
    assert bench.audit() == []


# --- found --------------------------------------------------------------------------------------


def found(client: redis.Redis, pool: str, generation: str, *, lanes: int = 1) -> Any:
    call = OPEN_POOL([Control(pool).config], [1, lanes, generation, 10_000, 0])
    words = ("EVAL", call.script.source, *call.words()[2:])
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def test_the_first_to_join_decides_for_all(redis_url: str, pool_name: str) -> None:
    """One generation and one number of lanes, whoever comes later."""
    with redis.Redis.from_url(redis_url) as client:
        first = pool_config(found(client, pool_name, "inc-a", lanes=4))
        second = pool_config(found(client, pool_name, "inc-b", lanes=8))
    assert isinstance(first, PoolConfig)
    assert (first.protocol, first.lanes, first.generation) == (1, 4, "inc-a")
    assert (second.lanes, second.generation) == (4, "inc-a")
    assert second.now_ms >= first.now_ms
    assert (first.wrote, second.wrote) == (True, False)


def test_of_all_who_saw_the_data_vanish_one_makes_the_pool_anew(
    redis_url: str, pool_name: str
) -> None:
    """G-01: what one of them made stands, however many noticed and however late."""
    with redis.Redis.from_url(redis_url) as client:
        found(client, pool_name, "inc-a")
        client.delete(Control(pool_name).config)
        found(client, pool_name, "inc-b")
        late = pool_config(found(client, pool_name, "inc-c"))
    assert late.generation == "inc-b"
