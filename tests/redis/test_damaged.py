"""What scripts and readers do with one damaged thing; the fuzzer in tests/fuzz does it with all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from pool.core.options import Options
from pool.core.record import Outcome, Record
from pool.core.walk import Pages
from pool.maps.commands import delta_of
from pool.maps.deltas import Position
from pool.names import pair
from pool.redis.commands.calls import Target
from pool.redis.commands.recovery import overdue, reaped

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W1, W2 = Target("w1", 1), Target("w2", 1)


def test_a_start_whose_entry_is_gone_moves_on_if_its_payload_is_not(bench: Bench) -> None:
    """G-05: its owner can never read it, and is told so when it asks for the key."""
    n = bench.names
    small, large = bench.put("small", "P"), bench.put("large", "P", payload=b"x" * 2000)
    for record in (small, large):
        bench.do("XDEL", n.stream("w1.1"), f"{record.epoch}-0")
    found = bench.owned("w1.1", "small", "large", "none")
    assert (found.starts, found.lost) == ([], {"small": small, "large": large})
    edges = [bench.edge("g", key) for key in ("small", "large")]
    answers = bench.advance("own", "w1.1", *edges, targets=[W2])
    assert answers[0] == "OK"
    assert answers[1].startswith("GRANTED w2.1")
    assert bench.outcome(small.id).word == "parked"
    letter: Any = bench.do("HGET", n.letters, pair("small", small.id))
    assert b"|malformed\nits payload is gone\n" in letter
    assert bench.audit() == []


def test_an_entry_that_starts_no_job_takes_up_no_room(bench: Bench) -> None:
    """Reconciling drops it: a worker's room is counted by its entries."""
    bench.put("k", "P")
    for fields in (("k", "other", "m", "x"), ("what", "ever"), ("k", "k", "m", "forged")):
        bench.do("XADD", bench.names.stream("w1.1"), "*", *fields)
    found = bench.owned("w1.1")
    assert [start.key for start in found.starts] == ["k"]
    assert bench.do("XLEN", bench.names.stream("w1.1")) == 1
    assert bench.audit() == []


def test_the_start_of_a_damaged_record_is_looked_for_in_pages(bench: Bench) -> None:
    """G-01: it is parked with its payload, wherever in the stream that stands."""
    for key in ("a", "b", "c", "d"):
        bench.put(key, "P")
    bench.do("HSET", bench.names.jobs, "c", "garbage")
    lane, after, told = attrs.evolve(bench.lane, pages=Pages(looked_at=1)), "-", list[str]()
    while not told or told[-1] == "LOOKED":
        before = bench.dump()
        call = lane.quarantine("c", b"garbage", "w1.1", after)
        word, _, after = bench.run(call).decode().partition(" ")
        told.append(word)
        assert word == "OK" or bench.dump() == before
    assert told == ["LOOKED", "LOOKED", "OK"]
    letters: Any = bench.do("HVALS", bench.names.letters)
    assert [text.endswith(b"\ngarbage\n\npayload") for text in letters] == [True]
    assert bench.audit() == []


@pytest.mark.parametrize("state", ["P", "R"])
def test_a_key_that_is_no_text_keeps_no_reaper_from_its_work(bench: Bench, state: str) -> None:
    """A readable record under such a key: no call can be made for it, so it is parked."""
    n, raw = bench.names, b"\xff\xfe"
    record = bench.put("good", state)
    text = bench.text("good")
    bench.do("HSET", n.jobs, raw, text)
    bench.do("SADD", n.owned("w1.1"), raw)
    bench.do("XADD", n.stream("w1.1"), f"{record.epoch}-1", "k", raw, "m", "x")
    claim = bench.fenced(W1)
    parked, is_done = set(), False
    while not is_done:
        call = bench.lane.reap(claim, reap_s=1.0)
        told = reaped(bench.run(call))
        is_done = told.is_forgotten
        for each in told.held:
            if each.record is None:
                quarantine = bench.lane.quarantine(each.key, each.text, "w1.1")
                assert bench.run(quarantine) == b"OK"
                parked.add(each.key)
            else:
                assert each.key == "good"
                bench.advance("reap", "w1.1", bench.edge("g", "good"), claim=claim.claim)
    assert parked == {"\udcff\udcfe"}
    assert bench.record("good").state == "unassigned"


def test_deadlines_that_would_never_come_are_now(bench: Bench) -> None:
    bench.put("p", "P")
    bench.put("w", "W")
    bench.do("ZADD", bench.names.pending, "inf", "p")
    bench.do("ZADD", bench.names.due, 1e300, "k:w")
    bench.do("ZADD", bench.names.keepalive, "inf", "w9.1", "-inf", "w8.1")
    bench.run(bench.lane.sweep("n1.1", lock_s=1.0, keys_max=9))
    found = overdue(bench.run(bench.lane.sweep("n1.1", lock_s=1.0, keys_max=9))).found
    assert {each.key for each in found} == {"p", "w"}
    bench.run(bench.renew_call({"n1.1": -1}))
    assert bench.do("ZSCORE", bench.names.keepalive, "w9.1") < bench.now_ms() + 3_600_000


def test_numbers_are_what_the_scripts_take_and_nothing_else() -> None:
    """`int()` takes more forms, and `isdigit()` more characters, than Redis and Lua do."""
    for odd in ("\u00b2", "\u0663", "1_0", " 1", "+1", "-1", "1e3", "9" * 17, "9" * 5000, ""):
        assert Outcome.parse(f"done|{odd}|w|1|1|\nx".encode()) is None
        assert Options.parse(f"j|{odd}|1000|60000|0|60000".encode()) == Options()
        record = f"P|j|id|h|w.1|{odd}|1|||||||||".encode()
        assert Record.parse(record) is None


def test_a_length_that_leads_back_ends() -> None:
    """A delta whose string has a negative length was read again and again, for ever."""
    for edits in (b"--4:", b"+-4:", b"--3:", b"+0:-9:", b"-1_0:x", b"- 1:x"):
        fields = {"at": b"i 1 0-0", "edits": edits}
        assert delta_of("7-0", fields).at == Position("", 7)
