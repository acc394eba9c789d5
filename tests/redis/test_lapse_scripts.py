"""Jobs that must begin in time, as the scripts keep them: in each state, and whoever asks."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.options import Options
from pool.core.record import Outcome, Record, begin_by_ms, ends_ms
from pool.names import queued
from pool.redis.commands.letters import Made, replayed
from pool.redis.commands.recovery import overdue
from pool.redis.commands.upkeep import restored
from tests.redis.conftest import W1, W2, Bench

LONG = "x60000,s30000"
SHORT = "x60,s30"


def put(bench: Bench, key: str, state: str, more: str = LONG, **changes: Any) -> Record:
    """Make a job in a state (P, U, W or Q), whose time to begin is limited."""
    given: dict[str, Any] = {"more": more, **changes}
    if state == "U":
        given |= {"ranked": (), "unassigned": True}
    elif state == "W":
        given.setdefault("delay_s", 10.0)
    elif state == "Q":
        bench.put(key, "R")
        given["policy"] = "q9"
    item = bench.admission(key, **given)
    (status,) = bench.dispatch(item)
    assert status.startswith(("OK", "QUEUED")), status
    return bench.record(queued(key, item.id) if state == "Q" else key)


def due(bench: Bench, key: str) -> int:
    return int(bench.do("ZSCORE", bench.names.due, f"k:{key}") or 0)


def too_late(bench: Bench, key: str) -> None:
    """Have it be over by now, as its record and its index say."""
    text = bench.text(key)
    assert text is not None
    parts = text.decode().split("|")
    now_ms = bench.now_ms()
    parts[15] = ",".join(
        f"{each.partition('/')[0]}/{now_ms - 1}" if "/" in each else each
        for each in parts[15].split(",")
    )
    bench.do("HSET", bench.names.jobs, key, "|".join(parts))
    bench.do("ZADD", bench.names.due, now_ms - 1, f"k:{key}")


def listed(bench: Bench) -> list[tuple[str, str]]:
    found = overdue(bench.run(bench.lane.sweep("n1.1", lock_s=1.0, keys_max=100))).found
    return [(each.key, each.owner) for each in found if each.index == "due"]


# --- by when -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", "PUWQ")
def test_it_stands_in_due_by_the_first_of_its_ends(bench: Bench, state: str) -> None:
    """G-05: wherever it waits, somebody comes for it in time."""
    before_ms = bench.now_ms()
    record = put(bench, "k", state)
    after_ms = bench.now_ms()
    name = queued("k", record.id) if state == "Q" else "k"
    expires, start = ends_ms(record.more, "expires"), ends_ms(record.more, "start")
    assert before_ms + 60_000 <= expires <= after_ms + 60_000
    waits_for_worker = state in "PU"
    assert bool(start) == waits_for_worker, "the wait for a worker has not begun"
    assert ("a" in record.flags) == waits_for_worker
    if waits_for_worker:
        assert before_ms + 30_000 <= start <= after_ms + 30_000
    wanted = {"W": record.since_ms, "Q": expires}.get(state, start)
    assert due(bench, name) == wanted
    assert bench.audit() == []


def test_a_delay_ends_before_its_job_expires_and_no_later(bench: Bench) -> None:
    record = put(bench, "k", "W", "x60000", delay_s=90.0)
    assert due(bench, "k") == ends_ms(record.more, "expires") < record.since_ms


def test_its_handlers_options_hold_where_its_caller_does_not_know_them(bench: Bench) -> None:
    options = Options(expires_s=50.0, start_timeout_s=20.0, policy="q3")
    bench.do("HSET", bench.names.handlers, "timed", options.pack())
    assert bench.dispatch(bench.admission("a", handler="timed", kind=None)) == ["OK w1.1"]
    assert bench.record("a").more.startswith("x50000/")
    assert ",s20000/" in bench.record("a").more
    told = bench.admission("b", handler="timed", kind=None, more="x70000")
    assert bench.dispatch(told) == ["OK w1.1"]
    assert bench.record("b").more.startswith("x70000/")
    assert bench.dispatch(bench.admission("c", handler="timed")) == ["OK w1.1"]
    assert bench.record("c").more == "", "its caller knows better"
    bench.do("HSET", bench.names.handlers, "plain", Options(policy="q3").pack())
    assert bench.dispatch(bench.admission("d", handler="plain", kind=None)) == ["OK w1.1"]
    assert bench.record("d").more == ""


def test_a_service_is_not_told_when_to_begin(bench: Bench) -> None:
    bench.do("HSET", bench.names.handlers, "hold", Options(kind="service").pack())
    for more in ("x60000", "s60000"):
        item = bench.admission("k", handler="hold", kind=None, more=more)
        assert bench.dispatch(item) == ["SERVICE"]
    assert bench.text("k") is None


# --- it begins, or does not ----------------------------------------------------------------------


def test_what_has_begun_is_too_late_no_more(bench: Bench) -> None:
    """And so it is between its attempts, where only the wait for a worker counts again."""
    put(bench, "k", "P")
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["OK -"]
    record = bench.record("k")
    assert (record.state, record.more, record.flags) == ("running", "x60000,s30000", "")
    assert due(bench, "k") == 0
    assert bench.advance("own", W1.name, bench.edge("w", "k", x=1)) == ["OK"]
    assert due(bench, "k") == bench.record("k").since_ms
    assert begin_by_ms(bench.record("k").more) == 0
    bench.advance("free", "", bench.edge("g", "k"), targets=[W2])
    record = bench.record("k")
    assert ends_ms(record.more, "expires") == 0
    assert ends_ms(record.more, "start") == due(bench, "k") > bench.now_ms()
    assert bench.audit() == []


def test_what_had_begun_waits_for_a_worker_anew_at_a_hand_over(bench: Bench) -> None:
    put(bench, "k", "P")
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["OK -"]
    bench.advance("own", W1.name, bench.edge("g", "k"), targets=[W2])
    record = bench.record("k")
    assert (record.state, ends_ms(record.more, "expires")) == ("pending", 0)
    assert ends_ms(record.more, "start") == due(bench, "k") > bench.now_ms()
    assert bench.advance("own", W2.name, bench.edge("a", "k"))[0].startswith("OK")
    assert begin_by_ms(bench.record("k").more) == 0
    assert bench.audit() == []


def test_what_is_too_late_does_not_begin(bench: Bench) -> None:
    """Whatever its worker asks, and whenever: the record stays for who ends it."""
    put(bench, "k", "P")
    too_late(bench, "k")
    before = bench.dump()
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["LATE"]
    assert bench.dump() == before
    assert listed(bench) == [("k", "live")]


def test_who_comes_too_early_takes_nothing_from_a_worker_that_lives(bench: Bench) -> None:
    """G-02."""
    put(bench, "k", "P")
    for edge in ("c", "x", "w", "g"):
        assert bench.advance("free", W1.name, bench.edge(edge, "k"))[0] == "OWNED w1.1"
    bench.do("ZADD", bench.names.due, 1, "k:k")
    assert listed(bench) == []
    assert due(bench, "k") == begin_by_ms(bench.record("k").more), "it is put back"
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["OK -"]
    too_late(bench, "k")
    assert bench.advance("free", W1.name, bench.edge("c", "k")) == ["OWNED w1.1"], "it runs"


@pytest.mark.parametrize("state", "PUWQ")
def test_what_is_too_late_is_ended_wherever_it_waits(bench: Bench, state: str) -> None:
    record = put(bench, "k", state)
    name = queued("k", record.id) if state == "Q" else "k"
    too_late(bench, name)
    assert listed(bench) == [(name, "live" if state == "P" else "none")]
    edge = bench.edge("c", name, x="not started in time")
    assert bench.advance("free", record.owner, edge)[0].startswith("OK")
    outcome = bench.outcome(record.id)
    assert (outcome.word, outcome.cause) == ("cancelled", "not started in time")
    assert due(bench, name) == 0
    if state == "P":
        assert bench.advance("own", W1.name, bench.edge("a", "k", epoch=record.epoch, id=record.id))
        assert bench.do("XLEN", bench.names.stream(W1.name)) == 0
    assert bench.audit() == []


@pytest.mark.parametrize("state", "PU")
def test_an_attempt_that_no_worker_began_waits_for_the_next(bench: Bench, state: str) -> None:
    record = put(bench, "k", state)
    too_late(bench, "k")
    edge = bench.edge("w", "k", x=500, y=2, z='late\n{"type":"timed out"}')
    assert bench.advance("free", record.owner, edge) == ["OK"]
    after = bench.record("k")
    assert (after.state, after.attempt, after.owner) == ("waiting", 2, "")
    assert after.epoch > record.epoch
    assert "a" not in after.flags
    assert ends_ms(after.more, "start") == 0
    assert ends_ms(after.more, "expires") > 0, "it never began"
    assert due(bench, "k") == ends_ms(after.more, "expires") < after.since_ms
    late = ["REPEAT failed"] if state == "P" else ["FENCED"]  # who had it is told that it stands
    assert bench.advance("free", record.owner, edge) == late, "a late copy"
    assert bench.audit() == []


def test_its_wait_for_a_worker_goes_on_from_one_to_the_next(bench: Bench) -> None:
    """Given back, or pulled by another: it has no longer for that."""
    put(bench, "k", "P")
    by = begin_by_ms(bench.record("k").more)
    assert bench.advance("own", W1.name, bench.edge("g", "k", x="")) == ["UNASSIGNED"]
    assert (begin_by_ms(bench.record("k").more), due(bench, "k")) == (by, by)
    bench.run(bench.lane.pull(W2, ["h"], keys_max=5, pending_s=9.0))
    record = bench.record("k")
    assert (record.state, begin_by_ms(record.more), due(bench, "k")) == ("pending", by, by)
    assert "a" in record.flags
    (fields,) = bench.entries(bench.names.stream(W2.name))
    assert fields["m"].split("|")[4] == record.flags, "its worker knows that it has to ask"
    assert bench.audit() == []


# --- beside it -----------------------------------------------------------------------------------


def test_who_has_its_turn_too_late_is_due_at_once(bench: Bench) -> None:
    record = put(bench, "k", "Q")
    too_late(bench, queued("k", record.id))
    bench.advance("own", W1.name, bench.edge("d", "k"))
    assert bench.record("k").id == record.id
    assert ("k", "none") in listed(bench)
    assert 0 < begin_by_ms(bench.record("k").more) < bench.now_ms()


def test_a_replay_may_take_as_long_as_its_first_one(bench: Bench) -> None:
    record = put(bench, "k", "P")
    too_late(bench, "k")
    edge = bench.edge("x", "k", x="timed out", y="late")
    assert bench.advance("free", W1.name, edge) == ["OK"]
    call = bench.lane.replay("k", record.id, "anew", "h", [W1], pending_s=9.0, queued_jobs_max=9)
    before_ms = bench.now_ms()
    assert replayed(bench.run(call)) == Made("anew", "h")
    again = bench.record("k")
    assert ends_ms(again.more, "expires") >= before_ms + 60_000
    assert due(bench, "k") == ends_ms(again.more, "start") >= before_ms + 30_000
    assert "a" in again.flags
    assert bench.audit() == []


@pytest.mark.parametrize("state", "PUW")
def test_its_place_in_due_is_found_again(bench: Bench, state: str) -> None:
    record = put(bench, "k", state)
    by = due(bench, "k")
    bench.do("DEL", bench.names.due)
    if state == "U":  # granted anew, or left where it is
        bench.advance("free", "", bench.edge("g", "k", x=""))
    else:
        text = bench.text("k")
        assert text is not None
        call = bench.lane.restore(record.owner, [("k", text, 0.0)], pending_s=9.0)
        [told] = restored(bench.run(call))
        assert told.indexes == ("due",)
    assert due(bench, "k") == by
    assert bench.audit() == []


def test_a_stop_goes_before_it(bench: Bench) -> None:
    """Who asked for it is told so, whatever the time is."""
    record = put(bench, "k", "P")
    bench.run(bench.lane.intend("k", record.id, W1.name, "sas asked", again_s=5.0))
    too_late(bench, "k")
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["STOPPED as asked"]
    bench.advance("own", W1.name, bench.edge("c", "k", x="as asked"))
    outcome = bench.look("k", record.id)
    assert isinstance(outcome, Outcome)
    assert outcome.cause == "as asked"
    assert bench.audit() == []
