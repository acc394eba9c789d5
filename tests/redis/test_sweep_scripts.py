"""`sweep`, `intend`, `pull`, `quarantine`: nothing overdue is forgotten."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from pool.redis.commands.calls import Target
from pool.redis.commands.recovery import Overdue, overdue
from tests.redis.test_dispatch_script import starts

if TYPE_CHECKING:
    from pool.redis.scripts import ScriptCall
    from tests.redis.conftest import Bench

NODE, W1, W2 = Target("n1", 1), Target("w1", 1), Target("w2", 1)


def sweep(
    bench: Bench, *, holder: str = "n1.1", keys_max: int = 100
) -> tuple[int | None, bool, list[Overdue]]:
    call = bench.lane.sweep(holder, lock_s=2.0, keys_max=keys_max)
    swept = overdue(bench.run(call))
    return swept.following_ms, swept.is_ours, swept.found


def lock_of(bench: Bench) -> list[str]:
    text: bytes = bench.do("HGET", bench.names.cleanup, "sweeper")
    return text.decode().split("|")


def make_overdue(bench: Bench, *keys: str) -> None:
    for index, prefix in ((bench.names.pending, ""), (bench.names.due, "k:")):
        for key in keys:
            bench.do("ZADD", index, "XX", 1, f"{prefix}{key}")


def intend(
    bench: Bench, key: str, intent: str, *, owner: str = "w1.1", job_id: str = "", epoch: int = 0
) -> str:
    call = bench.lane.intend(key, job_id, owner, intent, again_s=1.0, epoch=epoch)
    answer: bytes = bench.run(call)
    return answer.decode()


def pull_call(bench: Bench, *handlers: str, worker: Target = W2, keys_max: int = 10) -> ScriptCall:
    return bench.lane.pull(worker, handlers, keys_max=keys_max, pending_s=10.0)


# --- sweep --------------------------------------------------------------------------------------


def test_a_sweep_lists_what_is_overdue_with_what_is_needed(bench: Bench) -> None:
    """G-05: record, handler's options and whether the owner lives come in one answer."""
    bench.put("p", "P")
    bench.put("gone", "P")
    bench.put("w", "W")
    bench.put("later", "W")
    bench.advance("free", "", bench.edge("g", "w"), targets=[W2])
    bench.put("w3", "W")
    make_overdue(bench, "p", "gone", "w", "w3")
    bench.fenced(W2)

    following, is_ours, found = sweep(bench)
    assert is_ours
    assert following == float(bench.do("ZSCORE", bench.names.due, "k:later"))
    assert {(o.index, o.key, o.owner) for o in found} == {
        ("pending", "p", "live"),
        ("pending", "gone", "live"),
        ("pending", "w", "gone"),
        ("due", "w3", "none"),
    }
    assert all(o.record == bench.record(o.key) for o in found)
    assert all(o.options.attempts_max == 5 for o in found)


def test_what_is_overdue_is_listed_once(bench: Bench) -> None:
    """Whoever comes first is told, also while another holds the lock; its holder may go on."""
    bench.put("w1", "W")
    bench.put("w2", "W")
    bench.put("later", "W")
    make_overdue(bench, "w1")
    assert [each.key for each in sweep(bench)[2]] == ["w1"]
    assert [each.key for each in sweep(bench)[2]] == ["w1"]
    lock = lock_of(bench)
    bench.do("ZADD", bench.names.due, "XX", int(lock[2]) + 1, "k:w2")
    while bench.now_ms() <= int(lock[2]) + 1:
        pass
    following, is_ours, found = sweep(bench, holder="n2.1")
    assert not is_ours
    assert [each.key for each in found] == ["w2"]
    assert following == float(bench.do("ZSCORE", bench.names.due, "k:later"))
    holder, until, through = lock_of(bench)
    assert [holder, until] == lock[:2]
    assert int(through) > int(lock[2]) + 1
    before = bench.dump()
    assert sweep(bench, holder="n3.1")[1:] == (False, [])
    assert bench.dump() == before


def test_what_was_listed_to_who_died_is_anybodys_when_the_lock_ends(bench: Bench) -> None:
    bench.put("w", "W")
    make_overdue(bench, "w")
    assert sweep(bench)[2]
    swept = overdue(bench.run(bench.lane.sweep("n2.1", lock_s=2.0, keys_max=9)))
    assert (swept.is_ours, swept.found) == (False, [])
    _, until, _ = lock_of(bench)
    assert swept.left_ms == int(until)
    now_ms = bench.now_ms()
    bench.do("HSET", bench.names.cleanup, "sweeper", f"n1.1|{now_ms}|{now_ms}")
    assert [each.key for each in sweep(bench, holder="n2.1")[2]] == ["w"]
    assert not bench.audit()


def test_a_full_page_makes_the_lock_ours(bench: Bench) -> None:
    """Its pages need one who turns them.  The lock ends when it would have ended."""
    for i in range(5):
        bench.put(f"w{i}", "W")
    assert sweep(bench)[1]
    _, until, through = lock_of(bench)
    for i in range(5):
        bench.do("ZADD", bench.names.due, "XX", int(through), f"k:w{i}")
    while bench.now_ms() <= int(through):
        pass  # what is due in this very millisecond would be listed again
    _, is_ours, found = sweep(bench, holder="n2.1", keys_max=3)
    assert is_ours
    assert len(found) == 3
    assert lock_of(bench)[:2] == ["n2.1", until]
    assert not sweep(bench, holder="n1.1", keys_max=3)[1]


def test_a_clock_that_went_back_does_not_stop_the_sweep(bench: Bench) -> None:
    """G-05: a lock that would end in an hour is of before the step: it is nobody's."""
    until_ms = bench.now_ms() + 3_600_000
    bench.do("HSET", bench.names.cleanup, "sweeper", f"n2.1|{until_ms}|{until_ms - 2_000}")
    assert sweep(bench)[1]


def test_a_sweep_takes_a_bounded_bite(bench: Bench) -> None:
    """What is left is due now: the caller comes back at once."""
    for i in range(5):
        bench.put(f"w{i}", "W")
    make_overdue(bench, *(f"w{i}" for i in range(5)))
    following, _, found = sweep(bench, keys_max=3)
    assert len(found) == 3
    assert following is not None
    assert following <= bench.now_ms()


def test_a_sweep_drops_what_no_record_confirms(bench: Bench) -> None:
    """G-05: an orphan in an index is removed, and never taken for somebody's deadline."""
    bench.put("r", "R")
    for index, member in (
        (bench.names.pending, "nobody"),
        (bench.names.pending, "r"),
        (bench.names.due, "k:nobody"),
        (bench.names.due, "k:r"),
    ):
        bench.do("ZADD", index, 1, member)
    assert sweep(bench)[2] == []
    assert bench.record("r").state == "running"
    assert bench.audit() == []


def test_a_sweep_leaves_deadlines_alone_that_it_does_not_know(bench: Bench) -> None:
    """A newer version's entry is neither removed nor taken for a job's."""
    bench.put("x", "R")
    bench.do("ZADD", bench.names.due, 1, "r:x")
    assert sweep(bench)[2] == []
    assert bench.do("ZSCORE", bench.names.due, "r:x") is not None


def test_a_sweep_reports_an_unreadable_record(bench: Bench) -> None:
    """G-05: it is parked with its bytes, and no counter drifts."""
    bench.put("w", "W")
    make_overdue(bench, "w")
    bench.do("HSET", bench.names.jobs, "w", "W|j|garbage")
    _, _, (found,) = sweep(bench)
    assert (found.key, found.record, found.text) == ("w", None, b"W|j|garbage")
    assert bench.run(bench.lane.quarantine("w", found.text, "")) == b"OK"
    assert bench.counter("waiting") == 0
    assert bench.audit() == []


# --- intend -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["P", "R"])
def test_an_intent_is_written_and_its_owner_told(bench: Bench, state: str) -> None:
    """G-05: the record says it, the sweeper comes back for it, and the owner hears of it."""
    put = bench.put("k", state)
    assert intend(bench, "k", "sby | the\nuser") == f"OK {put.id} {state} {put.epoch}"
    record = bench.record("k")
    assert record.intent == "sby   the user"
    assert bench.do("ZSCORE", bench.names.due, "k:k") is not None
    told = bench.entries(bench.names.signal("w1.1"))[-1]
    assert told == {
        "t": "intent",
        "k": "k",
        "e": str(put.epoch),
        "d": "sby   the user",
    }
    assert bench.audit() == []


def test_the_first_stop_stands_and_outranks_a_timeout(bench: Bench) -> None:
    """A job that was to be stopped must not run again because it also timed out."""
    bench.put("k", "R")
    for given, stands in (
        ("t", "t"),
        ("t", "t"),
        ("sone", "sone"),
        ("stwo", "sone"),
        ("t", "sone"),
    ):
        intend(bench, "k", given)
        assert bench.record("k").intent == stands
    told = [(e["edge"], e["detail"]) for e in bench.journal()]
    assert told == [("timed_out", ""), ("stop", "one")]


def test_telling_again_writes_no_intent(bench: Bench) -> None:
    """The sweeper's reminder: a new deadline and a signal, nothing else."""
    bench.put("k", "P")
    make_overdue(bench, "k")
    record = bench.record("k")
    assert intend(bench, "k", "").startswith("OK ")
    assert bench.record("k") == record
    assert float(bench.do("ZSCORE", bench.names.pending, "k")) > bench.now_ms()
    assert bench.audit() == []


def test_an_intent_for_another_owner_or_job_is_refused(bench: Bench) -> None:
    """G-02: the caller read something old; it is told what is, and nothing is written."""
    put = bench.put("k", "R")
    waiting = bench.put("w", "W")
    before = bench.dump()
    moved = f"MOVED_ON w1.1 {put.id} {put.epoch} h"
    assert intend(bench, "k", "sx", owner="w2.1") == moved
    assert intend(bench, "k", "sx", owner="") == moved
    assert intend(bench, "k", "t", epoch=put.epoch - 1) == moved  # of the attempt before
    assert intend(bench, "w", "sx") == f"MOVED_ON - {waiting.id} {waiting.epoch} h"
    assert intend(bench, "w", "sx", owner="") == f"MOVED_ON - {waiting.id} {waiting.epoch} h"
    assert intend(bench, "k", "sx", job_id="another") == "NOJOB"
    assert intend(bench, "nothing", "sx") == "NOJOB"
    assert bench.dump() == before
    assert intend(bench, "k", "t", epoch=put.epoch).startswith("OK ")
    bench.do("HSET", bench.names.jobs, "bad", "garbage")
    assert intend(bench, "bad", "sx") == "MALFORMED"


def test_a_stream_that_nobody_reads_is_not_brought_back(bench: Bench) -> None:
    """Signals are written to streams that exist: a reaped owner gets none."""
    bench.put("k", "R")
    bench.do("DEL", bench.names.signal("w1.1"))
    assert intend(bench, "k", "sx").startswith("OK ")
    assert not bench.do("EXISTS", bench.names.signal("w1.1"))


# --- pull ---------------------------------------------------------------------------------------


def test_a_worker_pulls_the_oldest_of_what_it_knows(bench: Bench) -> None:
    """G-05: across its handlers, in the order accepted; what it does not know stays."""
    for key, handler in (("a", "h"), ("b", "other"), ("c", "third"), ("d", "h")):
        bench.dispatch(
            bench.admission(key, handler=handler, ranked=[], unassigned=True, allow_unknown=True)
        )
    assert bench.run(pull_call(bench, "h", "other", keys_max=2)) == [2, 2]
    assert [bench.record(key).state for key in "abcd"] == [
        "pending",
        "pending",
        "unassigned",
        "unassigned",
    ]
    assert bench.run(pull_call(bench, "h", "other")) == [1, 1]
    assert bench.counter("unassigned") == 1
    assert bench.audit() == []


def test_many_queues_are_pulled_as_one(bench: Bench) -> None:
    """Twelve handlers in a drawn order, a few keys at a time."""
    handlers = [f"h{n}" for n in range(12)]
    dice = random.Random(12)
    bench.take(W2, 60)
    keys = [f"k{n:02}" for n in range(60)]
    for key in keys:
        one = bench.admission(
            key, handler=dice.choice(handlers), ranked=[], unassigned=True, allow_unknown=True
        )
        bench.dispatch(one)
    pulled: list[str] = []
    for keys_max in (1, 2, 5, 3, 20, 40):
        bench.run(pull_call(bench, *handlers, keys_max=keys_max))
        pulled = [start.key for start in starts(bench, W2)]
        assert pulled == keys[: len(pulled)]
    assert pulled == keys
    assert bench.audit() == []


def test_a_worker_pulls_no_more_than_it_has_room_for(bench: Bench) -> None:
    """Room is what `open` says; a closed worker pulls nothing."""
    for i in range(4):
        bench.put(f"u{i}", "U")
    bench.take(W2, 3)
    assert bench.run(pull_call(bench, "h")) == [1, 3]
    assert bench.run(pull_call(bench, "h")) == [1, 0]
    bench.take(W1, 0)
    assert bench.run(pull_call(bench, "h", worker=W1)) == [1, 0]
    assert bench.audit() == []


def test_who_is_gone_pulls_nothing(bench: Bench) -> None:
    """G-02: fenced or unregistered: refused."""
    bench.put("u", "U")
    bench.fenced(W2)
    assert bench.refused(pull_call(bench, "h")) == "POOLGONE w2.1"
    assert bench.refused(pull_call(bench, "h", worker=Target("w9", 1))) == "POOLGONE w9.1"


def test_a_pull_passes_by_what_cannot_be_granted(bench: Bench) -> None:
    """G-05: what has no record is dropped; what has one is the walk's to find, and counted on."""
    for key in ("bad", "orphan", "empty", "good"):
        bench.put(key, "U", payload=b"x" * (2000 if key == "good" else 3))
    bench.do("HSET", bench.names.jobs, "bad", "U|garbage")
    bench.do("HDEL", bench.names.jobs, "orphan")
    bench.do("HDEL", bench.names.payloads, "orphan", "empty")
    assert bench.run(pull_call(bench, "h")) == [1, 1]
    assert bench.record("good").owner == "w2.1"
    assert bench.run(bench.lane.quarantine("bad", b"U|garbage")) == b"OK"
    empty = bench.record("empty")
    assert bench.advance("free", "", bench.edge("g", "empty"), targets=[W2]) == ["OK"]
    assert bench.outcome(empty.id).cause == "malformed"
    assert bench.counter("unassigned") == 0
    assert bench.audit() == []


# --- quarantine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", "a|b", "\udcff\udcfe"])
@pytest.mark.parametrize("state", ["P", "R"])
def test_an_unreadable_record_is_parked_with_all_it_had(bench: Bench, state: str, key: str) -> None:
    """G-01: its bytes are kept, the key is free again, and nothing of it reaches the next job."""
    n, raw = bench.names, key.encode(errors="surrogateescape")
    is_text = raw.isascii()
    if is_text:
        bench.put(key, state, payload=b"x" * 2000)
        bench.run(bench.lane.notify(key, "w1.1", "r", b"m", messages_max=5))
    else:
        bench.do("HSET", n.payloads, raw, b"x" * 2000)
        bench.do("SADD", n.owned("w1.1"), raw)
    bench.do("HSET", n.checkpoints, raw, "a checkpoint")
    bench.do("HSET", n.jobs, raw, b"garbage")
    assert bench.run(bench.lane.quarantine(key, b"garbage", "w1.1")) == b"OK"

    job_id, letter = bench.do("HRANDFIELD", n.letters, 1, "WITHVALUES")
    assert letter.partition(b"\n")[2] == b"garbage\n\n" + b"x" * 2000
    assert bench.do("ZSCORE", n.parked, job_id) is not None
    assert bench.counter("parked") == 1
    assert bench.audit() == []
    if is_text:
        assert not bench.do("EXISTS", n.inbox(key))
        assert bench.put(key, "P").state == "pending"


def test_only_what_was_seen_is_parked(bench: Bench) -> None:
    """G-01: a record that was mended or replaced meanwhile is left alone."""
    bench.do("HSET", bench.names.jobs, "bad", "garbage")
    before = bench.dump()
    for key, seen in (("bad", b"other garbage"), ("nothing", b"garbage")):
        assert bench.run(bench.lane.quarantine(key, seen, "w1.1")) == b"MOVED_ON"
    assert bench.dump() == before


# --- a start whose worker hangs -------------------------------------------------------------------


def hang(bench: Bench, *, is_hung: bool = True) -> None:
    bench.run(bench.renew_call({"w1.1": 10}, is_hung=is_hung))


def test_a_start_behind_a_hung_loop_is_taken_back_once_its_time_has_passed(bench: Bench) -> None:
    """13.6: its late acknowledgement is refused, whoever has the key by then."""
    bench.put("k", "P")
    hang(bench)
    edge = bench.edge("g", "k", x="1,2", y="")
    ack = bench.edge("a", "k")
    assert bench.advance("free", "w1.1", edge, targets=[W1, W2]) == ["OWNED w1.1"]
    assert sweep(bench)[2] == []
    bench.do("ZADD", bench.names.pending, 1, "k")
    [found] = sweep(bench)[2]
    assert (found.index, found.owner) == ("pending", "hung")
    [answer] = bench.advance("free", "w1.1", edge, targets=[W1, W2])
    assert answer.startswith("GRANTED w2.1")
    assert bench.advance("own", "w1.1", ack) == ["FENCED"]
    assert bench.do("XLEN", bench.names.stream("w1.1")) == 0
    assert bench.audit() == []


@pytest.mark.parametrize("says", ["open", "draining", "under another number", "deleted"])
def test_of_a_worker_that_does_not_hang_nothing_is_taken_back(bench: Bench, says: str) -> None:
    """G-02: one that drains has begun what it has not acknowledged yet, maybe."""
    bench.put("k", "P")
    bench.do("ZADD", bench.names.pending, 1, "k")
    hang(bench)
    match says:
        case "open":
            hang(bench, is_hung=False)
        case "draining":
            bench.take(W1, 0)
        case "under another number":
            bench.do("HSET", bench.names.open, "w1", "2|-|9")
        case _:
            bench.do("DEL", bench.names.open)
    [found] = sweep(bench)[2]
    assert found.owner == "live"
    edge = bench.edge("g", "k")
    assert bench.advance("free", "w1.1", edge, targets=[W2]) == ["OWNED w1.1"]


def test_of_a_hung_worker_nothing_is_taken_that_it_has_acknowledged(bench: Bench) -> None:
    """G-06 names it: keys held by a hung loop."""
    bench.put("k", "R")
    hang(bench)
    edge = bench.edge("g", "k")
    assert bench.advance("free", "w1.1", edge, targets=[W2]) == ["OWNED w1.1"]


def test_a_stop_does_not_keep_a_start_from_being_taken_back(bench: Bench) -> None:
    """13.6: who asks its worker again and again does not give it more time."""
    put = bench.put("k", "P")
    hang(bench)
    bench.do("ZADD", bench.names.pending, "XX", "INCR", -9500, "k")
    by = bench.do("ZSCORE", bench.names.pending, "k")
    for _ in range(2):
        intend(bench, "k", "sby the user")
        assert bench.do("ZSCORE", bench.names.pending, "k") == by
    bench.do("ZADD", bench.names.pending, 1, "k")
    edge = bench.edge("g", "k", x="1", y="")
    assert bench.advance("free", "w1.1", edge, targets=[W2]) == ["OK"]
    assert bench.outcome(put.id).word == "cancelled"
    assert bench.audit() == []
