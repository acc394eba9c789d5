"""`dispatch`: accepting a job is granting it, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pool.core.options import Options
from pool.core.record import Start
from pool.names import pair
from pool.redis.commands.calls import Target

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W1, W2 = Target("w1", 1), Target("w2", 1)

ODD_KEYS = [
    "k:k:x",
    "a|b|c",
    "a,b c.1",
    "ключ-鍵-🔑",
    "e\u0301",
    "{tag}",
    "*?[x]\\",
    " ",
    "x" * 512,
    "unassigned:h",
]


def starts(bench: Bench, worker: Target) -> list[Start]:
    return list(bench.owned(worker.name).starts)


def test_a_dispatch_is_the_grant(bench: Bench) -> None:
    """G-01, G-05: record, index and the worker's entry are there when the call returns."""
    assert bench.dispatch(bench.admission("k", id="j1", payload=b"\x00\xff|")) == ["OK w1.1"]

    record = bench.record("k")
    assert (record.state, record.owner, record.id) == ("pending", "w1.1", "j1")
    (start,) = starts(bench, W1)
    assert (start.key, start.epoch, start.payload) == ("k", record.epoch, b"\x00\xff|")
    assert (start.attempt, start.kind, start.accepted) == (1, "job", record.epoch)
    assert bench.audit() == []


@pytest.mark.parametrize("stamp", [2**53, 2**53 - 1, 10**16 - 1, "junk"])
def test_a_stamp_that_is_none_stops_nobody(bench: Bench, stamp: object) -> None:
    """B6: beyond what numbers hold exactly two starts had one id, and later ones were refused."""
    bench.do("HSET", bench.names.lane, "stamp", stamp)
    for key in "abc":
        assert bench.dispatch(bench.admission(key)) == ["OK w1.1"]
    epochs = [bench.record(key).epoch for key in "abc"]
    assert epochs == sorted({*epochs})
    assert epochs[-1] < 2 * 10**15  # what the server's clock says
    assert bench.audit() == []


def test_the_first_open_target_with_room_gets_the_job(bench: Bench) -> None:
    """A detour, never a refusal: what the dispatcher believes of its targets may be old."""
    bench.take(W1, 1)
    gone = Target("w1", 2)  # another number than the one in `open`
    stranger = Target("w9", 1)
    targets = [stranger, gone, W1, W2]
    items = [bench.admission(f"k{i}", ranked=[1, 2, 3, 4]) for i in range(3)]
    assert bench.dispatch(*items, targets=targets) == ["OK w1.1", "OK w2.1", "OK w2.1"]
    assert bench.dispatch(bench.admission("k3", ranked=[4, 3]), targets=targets) == ["OK w2.1"]
    assert bench.audit() == []


def test_room_counts_started_and_unstarted_keys(bench: Bench) -> None:
    """What a worker may hold is bounded by what it said in `open`, to the key."""
    bench.put("running", "R")
    bench.put("pending", "P")
    bench.take(W1, 3)
    items = [bench.admission("third"), bench.admission("fourth")]
    assert bench.dispatch(*items) == ["OK w1.1", "NOROOM"]


def test_without_room_a_job_is_refused_unless_it_may_wait(bench: Bench) -> None:
    """G-09: NOROOM writes nothing; with the flag the job is accepted and waits, visibly."""
    before = bench.dump()
    assert bench.dispatch(bench.admission("k", ranked=[])) == ["NOROOM"]
    assert bench.dump() == before

    assert bench.dispatch(bench.admission("k", ranked=[], unassigned=True)) == ["OK unassigned"]
    assert bench.record("k").state == "unassigned"
    assert bench.counter("unassigned") == 1
    assert bench.audit() == []


def test_a_delayed_job_waits_in_due(bench: Bench) -> None:
    """G-05: a job without an owner is reachable from its deadline."""
    now_ms = bench.now_ms()
    assert bench.dispatch(bench.admission("k:1", delay_s=5.0)) == ["OK -"]
    assert bench.record("k:1").state == "waiting"
    due_ms = bench.do("ZSCORE", bench.names.due, "k:k:1")
    assert now_ms + 5_000 <= float(due_ms) <= bench.now_ms() + 5_000
    assert bench.counter("waiting") == 1
    assert bench.audit() == []


@pytest.mark.parametrize(("state", "where"), [("P", "w1.1"), ("R", "w1.1"), ("W", "-"), ("U", "-")])
def test_a_live_key_is_refused_or_attached_to(bench: Bench, state: str, where: str) -> None:
    """G-02: one key, one live job; neither answer writes."""
    live = bench.put("k", state)
    before = bench.dump()
    items = [bench.admission("k"), bench.admission("k", policy="b", handler="other")]
    facts = f"{state} {where} {live.id} h j"
    assert bench.dispatch(*items) == [f"EXISTS {facts}", f"ATTACHED {facts}"]
    assert bench.dump() == before


@pytest.mark.parametrize(
    ("state", "answer"),
    [("P", "OK w1.1"), ("R", "OK w1.1"), ("W", "OK -"), ("U", "OK unassigned")],
)
def test_a_repeat_gets_the_first_answer(bench: Bench, state: str, answer: str) -> None:
    """G-01: a caller whose answer was lost may ask again with the same job id."""
    live = bench.put("k", state)
    before = bench.dump()
    assert bench.dispatch(bench.admission("k", id=live.id)) == [answer]
    assert bench.dump() == before


def test_a_repeat_of_an_ended_job_never_runs_it_again(bench: Bench) -> None:
    """G-04: the outcome stands, also when the key has another live job by now."""
    live = bench.put("k", "P")
    bench.advance("own", W1.name, bench.edge("d", "k"))
    assert bench.dispatch(bench.admission("k", id=live.id)) == ["ENDED"]
    bench.put("k", "P")
    assert bench.dispatch(bench.admission("k", id=live.id)) == ["ENDED"]
    assert bench.audit() == []


def test_who_is_refused_while_a_former_call_may_come_is_refused_for_good(bench: Bench) -> None:
    """G-04: told "no", the caller goes on; the late copy then finds room, and may not run it."""
    full = bench.admission("new", handler="none", ranked=())
    late = [bench.admission("k"), bench.admission("k", policy="b"), full]
    live = bench.put("k", "P")
    said = [f"EXISTS P w1.1 {live.id} h j", f"ATTACHED P w1.1 {live.id} h j", "UNKNOWN"]
    before = bench.dump()
    assert bench.dispatch(*late) == said
    assert bench.dump() == before  # what was sent but once is not remembered
    assert bench.dispatch(*late, refused_s=30.0) == said
    bench.advance("own", W1.name, bench.edge("d", "k"))
    bench.dispatch(bench.admission("other", handler="none", allow_unknown=True))
    before = bench.dump()
    assert bench.dispatch(*late) == bench.dispatch(*late, refused_s=30.0) == said
    assert bench.dump() == before
    kept: Any = bench.client.zrange(bench.names.kept, 0, 0, withscores=True)
    [(ids, until_ms)] = kept
    assert 0 < until_ms - bench.now_ms() <= 30_000
    assert pair("k", late[0].id) in [line.partition(" ")[2] for line in ids.decode().split("\n")]
    assert bench.audit() == []


def test_a_full_pool_refuses_one_beyond_its_limit(bench: Bench) -> None:
    """G-09: pending, unassigned and waiting jobs count; running ones do not."""
    for key, state in (("p", "P"), ("r", "R"), ("w", "W"), ("u", "U")):  # who comes joins a queue
        bench.put(key, state)
    items = [bench.admission("edge"), bench.admission("beyond")]
    assert bench.dispatch(*items, queued_jobs_max=4) == ["OK unassigned", "FULL 4"]
    assert bench.text("beyond") is None
    assert bench.audit() == []


def test_a_handler_nobody_registered_is_unknown(bench: Bench) -> None:
    """G-09: a misspelt name is refused at once, unless the caller knows better."""
    unknown = bench.admission("k", handler="thumbnial")
    before = bench.dump()
    assert bench.dispatch(unknown) == ["UNKNOWN"]
    assert bench.dump() == before
    assert bench.dispatch(bench.admission("k", handler="new", allow_unknown=True)) == ["OK w1.1"]


def test_an_unreadable_record_disturbs_only_its_own_item(bench: Bench) -> None:
    """A malformed record is answered, not raised: the rest of the batch is accepted."""
    bench.do("HSET", bench.names.jobs, "bad", "P|j|garbage")
    items = [bench.admission(key) for key in ("k1", "bad", "k2")]
    assert bench.dispatch(*items) == ["OK w1.1", "MALFORMED", "OK w1.1"]


def test_a_job_is_of_the_kind_that_its_handler_was_registered_as(bench: Bench) -> None:
    """A client that has no code of the handler need not know what kind it is."""
    for name, text in (("svc", Options(kind="service").pack()), ("odd", "?")):
        bench.do("HSET", bench.names.handlers, name, text)
    items = [
        bench.admission(f"k {name}", handler=name, kind=None, allow_unknown=True)
        for name in ("svc", "h", "odd", "new")
    ]
    assert bench.dispatch(*items) == ["OK w1.1"] * 4
    kinds = [bench.record(item.key).kind for item in items]
    assert kinds == ["service", "job", "job", "job"]


def test_a_key_twice_in_one_batch_is_accepted_once(bench: Bench) -> None:
    """G-02: items see what the items before them did."""
    first, second = bench.dispatch(bench.admission("k", id="j1"), bench.admission("k", id="j2"))
    assert (first, second) == ("OK w1.1", "EXISTS P w1.1 j1 h j")
    assert bench.audit() == []


@pytest.mark.parametrize(("size", "is_inline"), [(0, True), (1024, True), (1025, False)])
@pytest.mark.parametrize("state", ["P", "U", "W"])
def test_a_payload_is_in_exactly_one_place(
    bench: Bench, state: str, size: int, *, is_inline: bool
) -> None:
    """G-01: up to 1 KB it travels in the entry, larger ones stay apart until the job ends."""
    payload = b"x" * size
    record = bench.put("k", state, payload=payload)
    assert ("p" in record.flags) != is_inline
    if state == "P" and is_inline:
        assert [start.payload for start in starts(bench, W1)] == [payload]
    else:
        assert bench.do("HGET", bench.names.payloads, "k") == payload
    assert bench.audit() == []


@pytest.mark.parametrize("key", ODD_KEYS)
def test_any_key_lives_its_whole_life(bench: Bench, key: str) -> None:
    """What stands in a key means nothing to us: it is never taken for a name or a field."""
    record = bench.put(key, "P", payload=b"p")
    (start,) = starts(bench, W1)
    assert start.key == key
    for edges in (
        [bench.edge("a", key)],
        [bench.edge("l", key)],
    ):
        (status,) = bench.advance("own", W1.name, *edges)
        assert status.startswith("OK")
        assert bench.audit() == []
    assert bench.run(bench.lane.notify(key, W1.name, "r1", b"m", messages_max=1))[:3] == b"OK "
    assert bench.audit() == []
    assert bench.advance("own", W1.name, bench.edge("g", key, x="")) == ["UNASSIGNED"]
    assert bench.audit() == []
    pull = bench.lane.pull(W1, ["h"], keys_max=1, pending_s=1.0)
    assert bench.run(pull) == [0, 1]
    assert bench.audit() == []
    assert bench.advance("own", W1.name, bench.edge("w", key)) == ["OK"]
    assert bench.audit() == []
    assert bench.advance("free", "", bench.edge("x", key)) == ["OK"]
    assert bench.audit() == []
    assert bench.outcome(record.id).word == "parked"
    assert bench.do("HEXISTS", bench.names.letters, pair(key, record.id))


def test_epochs_rise_even_when_the_clock_falls(bench: Bench) -> None:
    """G-02: the last number is kept with the data, so a server that is set back repeats none."""
    ahead = bench.now_ms() * 1000 + 3_600_000_000
    bench.do("HSET", bench.names.lane, "stamp", ahead)
    bench.dispatch(bench.admission("k1"), bench.admission("k2"))
    assert [bench.record("k1").epoch, bench.record("k2").epoch] == [ahead + 1, ahead + 2]
    bench.advance("own", W1.name, bench.edge("d", "k1"))
    assert bench.put("k1", "P").epoch == ahead + 3
    assert bench.audit() == []


def test_data_of_another_generation_refuse(bench: Bench) -> None:
    """G-01: after a loss of data nobody writes into the new pool as if it were the old one."""
    call = bench.dispatch_call(bench.admission("k"))
    bench.do("HSET", bench.names.lane, "incarnation", "inc-2")
    assert bench.refused(call) == f"POOLDATALOST {bench.names.lane}"
