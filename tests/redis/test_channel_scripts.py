"""Followers, and the channel that carries them from lane to lane, script by script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from pool.core.followers import Follows, released
from pool.core.record import Record, pack_more
from pool.names import followers, out, pair, queued
from pool.redis.commands.channel import (
    ChannelMessage,
    OutgoingPage,
    StandsElsewhere,
    incoming_of,
    outgoing_of,
)
from pool.redis.commands.letters import Made, replayed
from pool.redis.commands.recovery import overdue
from pool.redis.commands.upkeep import expired
from tests.redis.conftest import GENERATION, NODE, PENDING_S, W1, Bench

LARGE = b"[" + b'"' + b"x" * 2000 + b'"]'


@pytest.fixture
def there(bench: Bench) -> Iterator[Bench]:
    """Yield lane 1 of the same pool."""
    other = Bench(bench.client, bench.pool, 1)
    yield other.join()
    other.close()


def follows(key: str = "f", when: Any = "then", **changes: Any) -> Follows:
    given: dict[str, Any] = {"id": f"of-{key}", "handler": "h", "kind": "job"}
    given |= {"lane": 1, "call": b"[1]", "when": when, "key": key}
    return Follows(**given | changes)


def put(bench: Bench, key: str, *followers: Follows, state: str = "R") -> Record:
    """Make a job that these follow."""
    text = b"".join(each.pack() for each in followers)
    more = pack_more(followers=len(b"payload"))
    item = bench.admission(key, payload=b"payload" + text, more=more)
    if state == "U":
        item = attrs.evolve(item, ranked=(), unassigned=True)
    assert bench.dispatch(item) == ["OK unassigned" if state == "U" else f"OK {W1.name}"]
    if state == "R":
        bench.advance("own", W1.name, bench.edge("a", key))
    return bench.record(key)


def end(bench: Bench, key: str, letter: str = "d", **words: Any) -> None:
    edge = bench.edge(letter, key, **words)
    source = bench.record(key).owner
    assert bench.advance("own" if source else "free", source, edge) == ["OK - 0"]


def tell(bench: Bench, to: int = 1, **options: Any) -> OutgoingPage:
    return outgoing_of(bench.run(bench.lane.outgoing(to, hold_s=5.0, **options)))


def take(bench: Bench, told: OutgoingPage, origin: int = 0) -> str:
    """Return where it stands, if it has done nothing."""
    done = incoming_of(bench.run(bench.lane.incoming(origin, told.root, told.messages)))
    return done.name if isinstance(done, StandsElsewhere) else ""


def carry(bench: Bench, there: Bench) -> Sequence[ChannelMessage]:
    """Carry over what a lane has for another, once."""
    told = tell(bench, there.number)
    assert take(there, told, bench.number) == ""
    left = tell(bench, there.number, taken=told.messages, root=told.root)
    assert left.count <= told.count - len(told.messages)
    return told.messages


def payload_of(bench: Bench, key: str) -> Any:
    return json.loads(bench.do("HGET", bench.names.payloads, key))


# --- the way from a settlement to the follower --------------------------------------------------


def test_what_follows_is_released_as_its_predecessor_ends(bench: Bench, there: Bench) -> None:
    """G-01: in the step that ends it; each step of the way leaves all of it where it is found."""
    record = put(bench, "k", follows("f"), follows("g", "otherwise"))
    assert bench.audit() == []
    end(bench, "k", x=b'"result"')
    assert bench.counter("outgoing") == 1
    assert bench.audit() == []
    [due] = overdue(bench.run(bench.lane.sweep(NODE.name, lock_s=1.0, keys_max=10))).outgoing
    assert due == 1
    told = tell(bench)
    assert [each.key for each in told.messages] == ["f"]
    assert bench.do("ZSCORE", bench.names.due, "o:1") > bench.now_ms(), "others need not come"
    assert take(there, told) == ""
    job = there.record("f")
    assert (job.id, job.state, job.handler) == ("of-f", "waiting", "h")
    assert there.do("HGET", there.names.payloads, "f") == b"[1]"
    assert bench.audit() == there.audit() == []
    assert tell(bench, taken=told.messages, root=told.root).count == 0
    assert not bench.do("ZSCORE", bench.names.due, "o:1")
    outcome = bench.outcome(record.id)
    assert released(outcome.more) == [("f", "of-f")]
    assert bench.do("HKEYS", bench.names.payloads) == [out(1).encode()]
    assert bench.audit() == []


def test_one_lane_carries_to_itself_the_same_way(bench: Bench) -> None:
    put(bench, "k", follows("k", lane=0))
    end(bench, "k")
    carry(bench, bench)
    assert bench.record("k").id == "of-k"
    assert bench.audit() == []


@pytest.mark.parametrize("letter", ["c", "x"])
@pytest.mark.parametrize("state", ["P", "R", "U"])
def test_who_ends_otherwise_says_why(bench: Bench, there: Bench, letter: str, state: str) -> None:
    place = len(b'{"args":[')
    call = b'{"args":[null,2],"kwargs":{}}'
    put(bench, "k", follows("f"), follows("g", "otherwise", call=call, place=place), state=state)
    end(bench, "k", letter, x='a "cause" \\', y="an error")
    carry(bench, there)
    assert there.text("f") is None
    why = {"c": 'cancelled: a "cause" \\', "x": 'parked: a "cause" \\: an error'}[letter]
    assert payload_of(there, "g") == {"args": [why, 2], "kwargs": {}}
    assert bench.audit() == there.audit() == []


@pytest.mark.parametrize(
    ("call", "result", "arrives"),
    [
        (b"[null]", b'{"a":1}', b'[{"a":1}]'),
        (b"[null]", b"\x00raw", b"\x00raw"),
        (b"\x01 2\n[null]", b"\x00raw", b"\x01 2\n\x00raw"),
        (b"\x01 2\n[null]", b"3", b"\x01 2\n[3]"),
        (b'[null,"b"]', b"3", b'[3,"b"]'),
        (b"[null]", LARGE, b"[" + LARGE + b"]"),
    ],
)
def test_the_result_goes_along(
    bench: Bench, there: Bench, call: bytes, result: bytes, arrives: bytes
) -> None:
    nested = follows("n").pack()
    put(bench, "k", follows("f", call=call, place=call.index(b"null"), followers=nested))
    end(bench, "k", x=result)
    carry(bench, there)
    assert there.do("HGET", there.names.payloads, "f") == arrives
    assert there.do("HGET", there.names.payloads, followers("f", "of-f")) == nested
    assert there.record("f").more == f"f{len(arrives)}"
    assert there.audit() == []


@pytest.mark.parametrize(
    ("call", "result"), [(b'[null,"b"]', b"\x00raw"), (b"[null]", b"\x01codec\nraw")]
)
def test_what_is_no_json_cannot_stand_in_a_call(
    bench: Bench, there: Bench, call: bytes, result: bytes
) -> None:
    put(bench, "k", follows("f", call=call, place=1))
    end(bench, "k", x=result)
    carry(bench, there)
    assert there.do("HGET", there.names.payloads, "f").startswith(b"bytes cannot stand")


def test_a_run_adds_followers_of_its_own(bench: Bench, there: Bench) -> None:
    bench.put("plain", "R")
    end(bench, "plain", x=b"1", y=follows("f").pack())
    put(bench, "k", follows("g"))
    end(bench, "k", x=b"1", y=follows("h").pack())
    assert [each.key for each in carry(bench, there)] == ["f", "g", "h"]


def test_who_is_queued_has_followers_too(bench: Bench, there: Bench) -> None:
    bench.put("k", "R")
    more = pack_more(followers=len(b"payload"))
    text = follows("f", "otherwise").pack()
    item = bench.admission("k", payload=b"payload" + text, more=more, policy="q9")
    assert bench.dispatch(item) == ["QUEUED 0"]
    assert bench.audit() == []
    edge = bench.edge("c", queued("k", item.id))
    assert bench.advance("free", "", edge) == ["OK - 0"]
    carry(bench, there)
    assert there.record("f").id == "of-f"
    assert bench.audit() == []


# --- whom nothing refuses -----------------------------------------------------------------------


def test_behind_a_live_job_it_stands_in_line(bench: Bench, there: Bench) -> None:
    """However many there are, and however full the lane is."""
    live = there.put("f", "R")
    for number in range(3):
        put(bench, f"k{number}", follows("f", id=f"of-{number}"))
        end(bench, f"k{number}")
    carry(bench, there)
    names = [queued("f", f"of-{number}") for number in range(3)]
    assert [there.record(name).state for name in names] == ["queued"] * 3
    assert there.audit() == []
    assert live.id == there.record("f").id
    there.advance("own", W1.name, there.edge("d", "f"))
    assert there.record("f").id == "of-0", "first come, first run"
    assert there.audit() == []


def test_behind_what_cannot_be_read_it_waits_until_that_is_parked(
    bench: Bench, there: Bench
) -> None:
    there.put("f", "U")
    there.do("HSET", there.names.jobs, "f", "garbage")
    put(bench, "k", follows("f"))
    end(bench, "k")
    carry(bench, there)
    assert there.run(there.lane.quarantine("f", b"garbage")) == b"OK"
    assert there.record("f").id == "of-f"


def test_a_handler_that_nobody_has_is_waited_for(bench: Bench, there: Bench) -> None:
    put(bench, "k", follows("f", handler="unheard", kind=None))
    end(bench, "k")
    carry(bench, there)
    assert (there.record("f").handler, there.record("f").kind) == ("unheard", "job")


def test_what_cannot_be_read_is_a_dead_letter(bench: Bench, there: Bench) -> None:
    put(bench, "k", follows("f"))
    end(bench, "k")
    name = f"{out(1)} 0"
    whole = bench.do("HGET", bench.names.payloads, name)
    bench.do("HSET", bench.names.payloads, name, whole[:16] + b"something\nelse")
    carry(bench, there)
    [letter] = there.do("HVALS", there.names.letters)
    assert letter.endswith(b"something\nelse")
    assert there.counter("parked") == 1
    assert there.audit() == bench.audit() == []


# --- repeats, late copies, lost data ------------------------------------------------------------


def test_a_repeat_or_a_late_copy_does_nothing(bench: Bench, there: Bench) -> None:
    """Whoever carries beside, dies, or comes late: each message is carried out once."""
    for number in range(3):
        put(bench, f"k{number}", follows(f"f{number}"))
    end(bench, "k0")
    end(bench, "k1")
    late = tell(bench)
    assert take(there, late) == ""
    there.advance("free", "", there.edge("c", "f0"))  # its outcome will be forgotten
    there.do("DEL", there.names.result("f0", "of-f0"))
    end(bench, "k2")
    later = tell(bench)
    assert [each.key for each in later.messages] == ["f0", "f1", "f2"], "nothing was forgotten"
    assert take(there, later) == ""
    assert there.text("f0") is None, "it stands behind what it has carried out"
    assert there.record("f2").id == "of-f2"
    before = there.dump()
    assert take(there, late) == later.messages[-1].name
    assert take(there, later) == ""
    assert there.dump() == before
    assert tell(bench, taken=late.messages, root=late.root).count == 1
    before = bench.dump()
    assert tell(bench, taken=late.messages, root=late.root).count == 1, "they are gone"
    assert tell(bench, root=late.root, anew="other").root == late.messages[-1].name
    assert _but_due(bench.dump()) == _but_due(before)
    assert bench.audit() == []


def test_who_is_overtaken_by_another_one_takes_no_data_for_lost(bench: Bench, there: Bench) -> None:
    """Two carry at once: the one that was told less finds B ahead of all it knows of."""
    for number in range(3):
        put(bench, f"k{number}", follows(f"f{number}"))
    end(bench, "k0")
    less = tell(bench)
    end(bench, "k1")
    more = tell(bench)
    assert take(there, more) == ""
    stands = take(there, less)
    assert stands == more.messages[-1].name
    end(bench, "k2")
    before = bench.dump()
    told = tell(bench, root=less.root, anew=stands)
    assert (told.root, told.is_anew, told.count) == (less.root, False, 3)
    assert _but_due(bench.dump()) == _but_due(before), "nor in the journal"
    assert take(there, told) == "", "and goes on behind the other one"
    assert there.record("f2").id == "of-f2"
    assert bench.audit() == there.audit() == []


def _but_due(dump: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in dump.items() if not name.endswith(":due")}


@pytest.mark.parametrize("whose", ["A's", "B's"])
@pytest.mark.parametrize("back", ["wiped", "behind"])
def test_lost_data_begin_the_pair_anew(bench: Bench, there: Bench, whose: str, back: str) -> None:
    """Of what is still there everything is carried over, and what is there twice is not done so."""
    saved = {"A's": bench, "B's": there}[whose]
    put(bench, "k", follows("f"))
    end(bench, "k")
    carry(bench, there)
    for number in range(2):
        put(bench, f"k{number}", follows(f"f{number}"))
        end(bench, f"k{number}")
    before = saved.save()
    carry(bench, there)
    if back == "behind":
        saved.restore(before)
    else:
        for name in saved.key_names():
            saved.do("DEL", name)
        saved.join()
    put(bench, "anew", follows("anew"))
    end(bench, "anew")
    told = tell(bench)
    stands = take(there, told)
    is_wiped = (whose, back) == ("A's", "wiped")
    if stands:
        assert take(there, told) == stands, "nothing was done"
        assert tell(bench, root="of before", anew=stands).root == told.root, "it has moved on"
        told = tell(bench, root=told.root, anew=stands)
        assert (told.root, told.is_anew) == (stands, True)
        assert take(there, told) == ""
        assert bench.journal()[-1]["edge"] == "channel"
    else:
        assert not is_wiped
    assert tell(bench, taken=told.messages, root=told.root).count == 0
    assert there.record("anew").id == "of-anew"
    has_others = (whose, back) != ("B's", "wiped") and whose != "B's"
    for number in range(2) if has_others else ():
        assert there.record(f"f{number}").id == f"of-f{number}"
    assert bench.audit() == there.audit() == []


def test_another_message_in_the_place_of_one_that_was_lost_is_carried_over(
    bench: Bench, there: Bench
) -> None:
    """A failover of A: it writes something else under the number that B has had."""
    put(bench, "k", follows("f"))
    put(bench, "o", follows("g"))
    before = bench.save()
    end(bench, "k")
    had = carry(bench, there)
    bench.restore(before)
    end(bench, "o")
    told = tell(bench, taken=had)
    assert told.count == 1, "it is not the one that was carried over"
    stands = take(there, told)
    assert stands, "no name stands for two messages"
    told = tell(bench, root=told.root, anew=stands)
    assert take(there, told) == ""
    assert there.record("g").id == "of-g"
    end(bench, "k")
    told = tell(bench, taken=told.messages, root=told.root)
    assert take(there, told) == "", "and the other one again: it is there"
    assert there.record("f").id == "of-f"
    assert bench.audit() == there.audit() == []


def test_what_was_accepted_before_is_known_by_its_id(bench: Bench, there: Bench) -> None:
    """Live, queued, over or parked: where a name was lost nothing is done twice."""
    keys = ("live", "queued", "over", "parked")
    for key in keys:
        put(bench, f"k-{key}", follows(key))
        end(bench, f"k-{key}")
    there.put("queued", "R")
    carry(bench, there)
    for key, letter in (("over", "c"), ("parked", "x")):
        there.advance("free", "", there.edge(letter, key))
    there.do("DEL", there.names.result("parked", "of-parked"))
    position = b"\x0b0"
    there.do("HDEL", there.names.payloads, position)
    stands = tell(bench).root
    for key in keys:
        put(bench, f"k-{key}", follows(key))
        end(bench, f"k-{key}")
    told = tell(bench)
    assert take(there, told) == "-"
    told = tell(bench, root=stands, anew="-")
    before = _but_position(there)
    assert take(there, told) == ""
    assert _but_position(there) == before


def _but_position(bench: Bench) -> Any:
    dump = bench.dump()
    dump[bench.names.payloads].pop(b"\x0b0", None)
    dump[bench.names.lane].pop(b"stamp", None)
    return dump


def test_pages_are_bounded_and_the_next_follows(bench: Bench, there: Bench) -> None:
    lane = attrs.evolve(bench.lane, pages=attrs.evolve(bench.lane.pages, carried=2))
    for number in range(5):
        put(bench, f"k{number}", follows(f"f{number}"))
        end(bench, f"k{number}")
    told = outgoing_of(bench.run(lane.outgoing(1, hold_s=5.0)))
    counts = []
    while told.messages:
        assert take(there, told) == ""
        counts.append((told.count, len(told.messages)))
        call = lane.outgoing(1, hold_s=5.0, taken=told.messages, root=told.root)
        told = outgoing_of(bench.run(call))
    assert counts == [(5, 2), (3, 2), (1, 1)]
    small = attrs.evolve(bench.lane.pages, carried_bytes=1)
    put(bench, "k", follows("f"), follows("g"))
    end(bench, "k")
    call = attrs.evolve(bench.lane, pages=small).outgoing(1, hold_s=5.0)
    assert len(outgoing_of(bench.run(call)).messages) == 1, "one alone may be larger"


def test_what_somebody_took_out_is_passed_over(bench: Bench, there: Bench) -> None:
    for number in range(4):
        put(bench, f"k{number}", follows(f"f{number}"))
        end(bench, f"k{number}")
    for number in (0, 2):
        bench.do("HDEL", bench.names.payloads, f"{out(1)} {number}")
    assert any("is gone" in problem for problem in bench.audit())
    assert [each.key for each in carry(bench, there)] == ["f1"]
    assert [each.key for each in carry(bench, there)] == ["f3"]
    assert bench.audit() == there.audit() == []


# --- dead letters -------------------------------------------------------------------------------


def test_a_parked_job_keeps_those_who_follow_its_replay(bench: Bench, there: Bench) -> None:
    record = put(bench, "k", follows("f"))
    assert bench.advance("own", W1.name, bench.edge("x", "k")) == ["OK"]
    assert tell(bench).count == 0
    assert bench.audit() == []
    call = bench.lane.replay(
        "k", record.id, "anew", "h", [W1], pending_s=PENDING_S, queued_jobs_max=9
    )
    assert replayed(bench.run(call)) == Made("anew", "h")
    assert bench.audit() == []
    end(bench, "k")
    assert [each.key for each in carry(bench, there)] == ["f"]
    assert bench.audit() == []


def test_once_somebody_has_followed_a_parked_job_nobody_follows_its_replay(
    bench: Bench, there: Bench
) -> None:
    record = put(bench, "k", follows("f"), follows("g", "otherwise"))
    end(bench, "k", "x")
    assert [each.key for each in carry(bench, there)] == ["g"]
    call = bench.lane.replay(
        "k", record.id, "anew", "h", [W1], pending_s=PENDING_S, queued_jobs_max=9
    )
    assert replayed(bench.run(call)) == Made("anew", "h")
    assert bench.advance("own", W1.name, bench.edge("d", "k")) == ["OK"]
    assert bench.audit() == []


@pytest.mark.parametrize("how", ["discard", "too old", "too many", "made room"])
def test_with_the_letter_go_its_followers(bench: Bench, how: str) -> None:
    record = put(bench, "k", follows("f"))
    bench.advance("own", W1.name, bench.edge("x", "k"))
    if how == "discard":
        bench.run(bench.lane.letter("discard", "k", record.id))
    elif how == "made room":
        bench.do("ZADD", bench.names.parked, 1, pair("k", record.id))
        bench.put("o", "R")
        bench.advance("own", W1.name, bench.edge("x", "o"))
    else:
        keeps = attrs.evolve(bench.lane.keeps, parked_max=0 if how == "too many" else 9)
        if how == "too old":
            bench.do("ZADD", bench.names.parked, 1, pair("k", record.id))
        expired(bench.run(attrs.evolve(bench.lane, keeps=keeps).expire([], items_max=9)))
    assert not bench.do("HEXISTS", bench.names.payloads, followers("k", record.id))
    assert bench.audit() == []


def test_who_follows_a_record_that_cannot_be_read_follows_otherwise(
    bench: Bench, there: Bench
) -> None:
    put(bench, "k", follows("f"), follows("g", "otherwise", call=b"[null]", place=1))
    text = bench.text("k")
    assert text is not None
    garbled = text.replace(b"R|j|", b"?|j|", 1)
    bench.do("HSET", bench.names.jobs, "k", garbled)
    assert bench.run(bench.lane.quarantine("k", garbled, W1.name)) == b"OK"
    carry(bench, there)
    assert payload_of(there, "g") == ["parked: malformed"]
    assert bench.audit() == there.audit() == []


# --- the auditor --------------------------------------------------------------------------------


def test_the_auditor_finds_whom_nobody_released(bench: Bench) -> None:
    """A finished stage whose followers were never announced is told."""
    record = put(bench, "k", follows("f"))
    bench.do("HSET", bench.names.payloads, followers("gone", "id"), follows("g").pack())
    bench.do("HDEL", bench.names.payloads, followers("k", record.id))
    said = "\n".join(bench.audit())
    assert "'id gone': has ended, and its followers were never released" in said
    assert f"'{record.id} k': its followers are gone" in said


def test_the_auditor_finds_messages_that_nobody_comes_for(bench: Bench) -> None:
    put(bench, "k", follows("f"))
    end(bench, "k")
    bench.do("ZREM", bench.names.due, "o:1")
    bench.do("HSET", bench.names.payloads, f"{out(2)} 7", "message")
    said = "\n".join(bench.audit())
    assert "1 messages to lane 1, of which `due` says otherwise" in said
    assert "message 2 7: nobody knows of it" in said


def test_jobs_without_followers_have_nothing_of_it(bench: Bench) -> None:
    bench.put("k", "R")
    bench.advance("own", W1.name, bench.edge("d", "k"))
    names = bench.do("HKEYS", bench.names.payloads) + bench.do("HKEYS", bench.names.lane)
    assert not [name for name in names if name[:1] in b"\r\x0b\x0c" or name == b"outgoing"]


def test_what_is_asked_of_other_data_is_refused(bench: Bench, there: Bench) -> None:
    """G-10: neither end goes by what is not its own."""
    other = attrs.evolve(bench.lane, generation=GENERATION + "9")
    assert "POOLDATALOST" in bench.refused(other.outgoing(1, hold_s=5.0))
    other = attrs.evolve(there.lane, generation=GENERATION + "9")
    message = ChannelMessage(name="n", text=b"")
    assert "POOLDATALOST" in there.refused(other.incoming(0, "-", [message]))
