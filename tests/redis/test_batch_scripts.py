"""Batches, script by script: what is counted, what is told late or twice, and what settles them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from pool.core.batches import CHUNK, IS_BATCH, Head, member_id, member_of, noted
from pool.core.followers import Follows
from pool.core.record import Outcome, pack_more
from pool.redis.commands.batches import (
    Added,
    BatchGone,
    BatchHas,
    BatchLooked,
    BatchSealedAt,
    Opened,
    OtherMember,
    Settled,
    Stirred,
    Tended,
    added,
    batch_looked,
    mustered,
    opened,
    sealed,
    tended,
)
from pool.redis.commands.channel import incoming_of, outgoing_of
from pool.redis.commands.letters import Made, replayed
from pool.redis.commands.recovery import overdue
from pool.redis.commands.talk import Missing, looked
from pool.redis.commands.upkeep import expired
from tests.redis.conftest import GENERATION, NODE, W1, Bench

ID = "nightly"


@pytest.fixture
def there(bench: Bench) -> Iterator[Bench]:
    """Yield lane 1 of the same pool, where the batch is."""
    other = Bench(bench.client, bench.pool, 1)
    yield other.join()
    other.close()


def make(bench: Bench, *keys: str, nonce: str = "b1", **options: Any) -> None:
    given = {"least": None, "keep_s": 100.0, "open_s": 100.0} | options
    said = opened(bench.run(bench.lane.batch_open(ID, nonce, **given)))
    assert said == Opened(nonce, True, "open", 0)
    if keys:
        assert add(bench, 0, *keys, nonce=nonce) == Added("." * len(keys))


def add(bench: Bench, first: int, *keys: str, nonce: str = "b1") -> object:
    return added(bench.run(bench.lane.batch_add(ID, nonce, first, keys)))


def seal(bench: Bench, members: int, nonce: str = "b1", cause: str = "") -> object:
    return sealed(bench.run(bench.lane.batch_seal(ID, nonce, members, check_s=60.0, cause=cause)))


def ends(bench: Bench, *items: tuple[int, str], nonce: str = "b1") -> object:
    return sealed(bench.run(bench.lane.batch_ends(ID, nonce, items)))


def look(bench: Bench, **options: Any) -> BatchLooked:
    found = batch_looked(bench.run(bench.lane.batch_look(ID, **options)))
    assert found is not None
    return found


def head(bench: Bench) -> Head:
    return look(bench).head


def counts(bench: Bench) -> tuple[int, int, int, int]:
    found = head(bench)
    return found.succeeded, found.failed, found.cancelled, found.missing


def tend(bench: Bench, since: int = 0) -> Any:
    return tended(bench.run(bench.lane.batch_tend(ID, since, hold_s=5.0, check_s=60.0)))


def member(bench: Bench, index: int, key: str) -> None:
    """Have a member run in this lane; the batch is in lane 1."""
    more = pack_more(batch=member_of(ID, "b1", 1, index))
    item = bench.admission(key, id=member_id("b1", index), more=more)
    assert bench.dispatch(item) == [f"OK {W1.name}"]
    bench.advance("own", W1.name, bench.edge("a", key))


def end(bench: Bench, key: str, letter: str, **words: Any) -> None:
    edge = bench.edge(letter, key, **words)
    assert bench.advance("own", W1.name, edge) == ["OK - 0"], "there is something to be carried"


def carry(bench: Bench, there: Bench) -> Stirred:
    told = outgoing_of(bench.run(bench.lane.outgoing(there.number, hold_s=5.0)))
    call = there.lane.incoming(bench.number, told.root, told.messages)
    done = incoming_of(there.run(call))
    again = incoming_of(there.run(call))
    assert isinstance(done, Stirred)
    assert again == Stirred(), "a repeat counts nothing"
    bench.run(bench.lane.outgoing(there.number, hold_s=5.0, taken=told.messages, root=told.root))
    return done


# --- from a member's end to the batch's ---------------------------------------------------------


def test_the_step_that_ends_a_member_writes_to_the_batch(bench: Bench, there: Bench) -> None:
    make(there, "a", "b", "c", "d")
    for index, key in enumerate("abcd"):
        member(bench, index, key)
    assert seal(there, 4) == Stirred()
    end(bench, "a", "d", x=b"1")
    end(bench, "b", "x", x="parked", y="error")
    assert (bench.counter("outgoing"), counts(there)) == (2, (0, 0, 0, 0))
    assert bench.audit() == []
    carry(bench, there)
    assert counts(there) == (1, 1, 0, 0)
    end(bench, "c", "c", x="stopped")
    carry(bench, there)
    assert not head(there).is_settled
    end(bench, "d", "d", x=b"4")
    carry(bench, there)
    assert (counts(there), head(there).state) == ((2, 1, 1, 0), "failed")
    told = [(each.index, each.end, each.key) for each in look(there).ended]
    ended = [
        (0, "succeeded", "a"),
        (1, "failed", "b"),
        (2, "cancelled", "c"),
        (3, "succeeded", "d"),
    ]
    assert told == ended
    assert look(there, since=1, members_max=2).ended[0].index == 1
    assert there.audit() == []


def test_jobs_of_no_batch_write_nothing_more(bench: Bench) -> None:
    for more in ("", pack_more(digest="bf")):
        bench.dispatch(bench.admission("k", more=more))
        bench.advance("own", W1.name, bench.edge("a", "k"))
        assert bench.advance("own", W1.name, bench.edge("d", "k", x=b"1")) == ["OK"]
    assert bench.counter("outgoing") == 0


def test_a_late_end_of_a_batch_of_before_counts_nothing(bench: Bench, there: Bench) -> None:
    make(there, "a")
    member(bench, 0, "a")
    end(bench, "a", "d", x=b"1")
    there.do("DEL", there.names.batch(ID))
    assert opened(there.run(open_call(there, "b2"))) == Opened("b2", True, "open", 0)
    assert add(there, 0, "a", nonce="b2") == Added(".")
    carry(bench, there)
    assert counts(there) == (0, 0, 0, 0)


def open_call(bench: Bench, nonce: str) -> Any:
    return bench.lane.batch_open(ID, nonce, least=None, keep_s=100.0, open_s=100.0)


def test_where_the_batch_is_something_else_the_channel_goes_on(bench: Bench, there: Bench) -> None:
    there.do("SET", there.names.batch(ID), "mine")
    assert opened(there.run(open_call(there, "b1"))) is None
    member(bench, 0, "a")
    end(bench, "a", "d", x=b"1")
    carry(bench, there)
    assert bench.counter("outgoing") == 0
    assert there.do("GET", there.names.batch(ID)) == b"mine"
    there.do("DEL", there.names.batch(ID))


# --- adding and sealing -------------------------------------------------------------------------


def test_who_comes_again_adds_the_same_and_nothing_twice(bench: Bench) -> None:
    make(bench, "a", "b")
    assert opened(bench.run(open_call(bench, "b2"))) == Opened("b1", False, "open", 2)
    assert ends(bench, (0, "s")) == Stirred()
    assert add(bench, 0, "a", "b", "c") == Added("s..")
    assert add(bench, 1, "x") == OtherMember(1, "b")
    assert add(bench, 9, "x") == OtherMember(3, ""), "those between have not come"
    assert add(bench, 0, "a", nonce="b2") == BatchGone()
    assert seal(bench, 3) == Stirred()
    assert seal(bench, 3) == Stirred(), "a repeat"
    assert add(bench, 2, "c") == Added("."), "likewise"
    assert add(bench, 3, "d") == BatchSealedAt(3)
    assert seal(bench, 4) == BatchSealedAt(3)
    assert bench.audit() == []


def test_members_are_known_by_their_calls(bench: Bench) -> None:
    """Key, handler and payload: whichever differs, nothing is noted; and keys are told without."""
    words = [noted(f"k {n}", "charge", b"[%d]" % n) for n in range(3)]
    make(bench, *words)
    others = (
        noted("k", "charge", b"[1]"),
        noted("k 1", "refund", b"[1]"),
        noted("k 1", "charge", b"[7]"),
        IS_BATCH + "k 1",
    )
    for other in others:
        assert add(bench, 0, words[0], other, "new") == OtherMember(1, words[1])
    ends(bench, (2, "f"))
    assert add(bench, 2, noted("k 2", "charge", b"[]")) == OtherMember(2, words[2]), "it has ended"
    assert add(bench, 0, *words) == Added("..f")
    assert [each.key for each in look(bench).ended] == ["k 2"]
    assert look(bench, what="open").open == [(0, "k 0"), (1, "k 1")]
    assert (head(bench).members, bench.audit()) == (3, [])


def test_who_opens_one_that_is_there_is_told_what_it_is_within(bench: Bench) -> None:
    """And what was said first stands."""
    make(bench, parent=member_of("outer", "b0", 0, 3))
    given: dict[str, Any] = {"least": None, "keep_s": 100.0, "open_s": 100.0}
    for parent in ("", member_of("other", "b0", 0, 3)):
        call = bench.lane.batch_open(ID, "b2", parent=parent, **given)
        assert opened(bench.run(call)) == Opened("b1", False, "open", 0, "3/0/b0/outer")
    assert look(bench).parent == "3/0/b0/outer"
    seal(bench, 0)
    said = opened(bench.run(open_call(bench, "b2")))
    assert said == Opened("b1", False, "done", 0, "3/0/b0/outer")


def test_members_stand_in_chunks(bench: Bench) -> None:
    keys = [f"k{n}" for n in range(2 * CHUNK + 3)]
    make(bench, *keys[:10])
    assert add(bench, 10, *keys[10:]) == Added("." * (len(keys) - 10))
    assert add(bench, 0, *keys) == Added("." * len(keys))
    last = len(keys) - 1
    ends(bench, (last, "s"), (0, "m"), (CHUNK, "f"), (last, "f"), (len(keys), "s"))
    assert [each.index for each in look(bench).ended] == [last, 0, CHUNK]
    assert [each.key for each in look(bench).ended] == [keys[last], "k0", keys[CHUNK]]
    page = look(bench, what="open", since=CHUNK - 1, members_max=2)
    assert (list(page.open), page.follows) == (
        [(CHUNK - 1, keys[CHUNK - 1]), (CHUNK + 1, keys[CHUNK + 1])],
        CHUNK + 2,
    )
    everyone = [n for n in range(len(keys)) if n not in (last, 0, CHUNK)]
    ends(bench, *[(n, "s") for n in everyone])
    pages = [look(bench, since=n, members_max=100).ended for n in range(0, len(keys), 100)]
    assert [each.index for page in pages for each in page] == [last, 0, CHUNK, *everyone]
    assert bench.audit() == []


def test_one_look_reads_the_keys_of_so_many_chunks_at_most(bench: Bench) -> None:
    """However members end: else one call would read all keys of a large batch."""
    make(bench, *(f"k{n}" for n in range(20 * CHUNK)))
    ended = [n * CHUNK + n for n in reversed(range(20))]
    ends(bench, *[(n, "s") for n in ended])
    pages = [look(bench, since=0).ended, look(bench, since=16).ended]
    assert [len(page) for page in pages] == [16, 4]
    assert [(each.index, each.key) for page in pages for each in page] == [
        (n, f"k{n}") for n in ended
    ]
    left = {n * CHUNK + 100 for n in range(20)}
    ends(bench, *[(n, "s") for n in range(20 * CHUNK) if n not in left])
    page = look(bench, what="open")
    assert (len(page.open), page.follows) == (16, 16 * CHUNK)
    page = look(bench, what="open", since=16 * CHUNK)
    assert (len(page.open), page.follows) == (4, None)


def test_a_batch_has_so_many_members_at_most(bench: Bench) -> None:
    make(bench, "a")
    call = bench.lane.batch_add(ID, "b1", 1, ["b", "c"])
    at = call.script.args.index("members_max")
    args = list(call.args)
    args[at] = 2
    assert added(bench.run(attrs.evolve(call, args=args))) == BatchHas(1)
    assert head(bench).members == 1


@pytest.mark.parametrize(
    ("least", "state"), [(None, "failed"), (1, "done"), (0, "done"), (3, "failed")]
)
def test_so_many_must_succeed(bench: Bench, least: int | None, state: str) -> None:
    make(bench, "a", "b", least=least)
    ends(bench, (0, "s"), (1, "f"))
    assert not head(bench).is_settled, "it may get more"
    seal(bench, 2)
    assert (head(bench).state, bench.audit()) == (state, [])
    assert ends(bench, (1, "s")) == Stirred(), "it is over"
    assert seal(bench, -1, cause="late") == Settled()
    assert counts(bench) == (1, 1, 0, 0)


def test_one_without_members_settles_when_it_is_sealed(bench: Bench) -> None:
    make(bench)
    seal(bench, 0)
    assert (head(bench).state, bench.audit()) == ("done", [])


# --- what follows -------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["s", "f"])
def test_what_follows_is_released_as_it_settles(bench: Bench, there: Bench, word: str) -> None:
    facts: dict[str, Any] = {
        "handler": "h",
        "kind": "job",
        "lane": 0,
        "call": b"[null]",
        "place": 1,
    }
    then = Follows(when="then", key="t", id="of-t", **facts)
    otherwise = Follows(when="otherwise", key="o", id="of-o", **facts)
    make(there, "a", followers=then.pack() + otherwise.pack())
    seal(there, 1)
    assert ends(there, (0, word)) == Stirred(has_due=True)
    assert ends(there, (0, word)) == Stirred()
    assert there.counter("outgoing") == 1
    carry(there, bench)
    key = "t" if word == "s" else "o"
    [told] = json.loads(bench.do("HGET", bench.names.payloads, key))
    if word == "s":
        assert told == {"expected": 1, "succeeded": 1, "failed": 0, "cancelled": 0, "missing": 0}
    else:
        assert told == "failed: 0 of 1 succeeded"
    assert f"of-{key}" in look(there).released
    assert bench.audit() == there.audit() == []


def test_a_batch_within_another_counts_there(bench: Bench, there: Bench) -> None:
    make(there, IS_BATCH + "inner")
    seal(there, 1)
    parent = member_of(ID, "b1", 1, 0)
    given: dict[str, Any] = {"least": None, "keep_s": 9.0, "open_s": 9.0, "parent": parent}
    bench.run(bench.lane.batch_open("inner", "b7", **given))
    bench.run(bench.lane.batch_seal("inner", "b7", 0, check_s=9.0))
    assert carry(bench, there) == Stirred()
    assert head(there).state == "done"
    assert bench.audit() == there.audit() == []


def test_who_looks_is_told_what_ends(bench: Bench) -> None:
    make(bench, "a", "b")
    look(bench, node="n1.1")
    look(bench, node="n2.1")
    look(bench, node="n1.1")
    assert ends(bench, (0, "s")) == Stirred(waits=((["n1.1", "n2.1"], ID),))
    for n in range(20):
        look(bench, node=f"m{n}.1")
    said = ends(bench, (1, "s"))
    assert isinstance(said, Stirred)
    [(names, _)] = said.waits
    assert names == [f"m{n}.1" for n in range(4, 20)], "who has been there longest gives way"


# --- what is looked after -----------------------------------------------------------------------


def due_ms(bench: Bench) -> int:
    return int(bench.do("ZSCORE", bench.names.due, f"b:{ID}") or 0)


def test_one_that_its_maker_has_left_is_sealed(bench: Bench) -> None:
    make(bench, "a", open_s=0.001)
    made_ms = bench.now_ms()
    while bench.now_ms() <= made_ms + 1:
        pass
    found = overdue(bench.run(bench.lane.sweep(NODE.name, lock_s=1.0, keys_max=10)))
    assert list(found.batches) == [ID]
    told = tend(bench)
    assert isinstance(told, Tended)
    assert (told.members, told.follows, head(bench).state) == ([(0, "a")], None, "sealed")
    assert head(bench).cause == "its maker has left it open"
    assert due_ms(bench) > bench.now_ms() + 50_000, "when it is looked at again"
    assert ends(bench, (0, "m")) == Stirred()
    assert (head(bench).state, bench.audit()) == ("failed", [])


def test_new_members_keep_it_open(bench: Bench) -> None:
    make(bench, "a", open_s=50.0)
    bench.do("HSET", bench.names.lane, "offset", 0)
    before = head(bench).sealed_ms
    bench.do("ZADD", bench.names.due, 1, f"b:{ID}")
    assert tend(bench) == "OPEN"
    assert due_ms(bench) == before
    assert add(bench, 1, "b") == Added(".")
    assert head(bench).sealed_ms >= before


def test_a_page_after_another_is_told(bench: Bench) -> None:
    lane = attrs.evolve(bench.lane, pages=attrs.evolve(bench.lane.pages, mustered=2))
    make(bench, "a", "b", "c")
    seal(bench, 3)
    first = tended(bench.run(lane.batch_tend(ID, 0, hold_s=5.0, check_s=60.0)))
    assert isinstance(first, Tended)
    assert (first.members, first.follows) == ([(0, "a"), (1, "b")], 2)
    assert due_ms(bench) < bench.now_ms() + 10_000, "who turns the pages may die"
    last = tended(bench.run(lane.batch_tend(ID, 2, hold_s=5.0, check_s=60.0)))
    assert isinstance(last, Tended)
    assert (last.members, last.follows) == ([(2, "c")], None)


def test_one_that_is_cancelled_is_looked_after_until_it_has_settled(bench: Bench) -> None:
    make(bench, "a")
    assert seal(bench, -1, cause="enough | of\nit") == Stirred()
    assert due_ms(bench) <= bench.now_ms()
    told = tend(bench)
    assert isinstance(told, Tended)
    assert (told.is_cancelling, told.cause) == (True, "enough   of it")
    assert due_ms(bench) < bench.now_ms() + 10_000
    ends(bench, (0, "s"))
    assert head(bench).state == "cancelled", "though all have succeeded"
    assert bench.audit() == []


def test_one_that_has_settled_is_forgotten_in_time(bench: Bench) -> None:
    make(bench, "a", keep_s=0.001)
    seal(bench, 1)
    ends(bench, (0, "s"))
    assert bench.counter("batches") == 1
    while tend(bench) == "SETTLED":
        assert bench.counter("batches") == 1
    assert tend(bench) == "GONE"
    assert batch_looked(bench.run(bench.lane.batch_look(ID))) is None
    assert ends(bench, (0, "f")) == seal(bench, 1) == BatchGone()
    assert (bench.counter("batches"), bench.audit()) == (0, [])
    make(bench, "b", nonce="b2")
    seal(bench, 1, nonce="b2")
    ends(bench, (0, "s"), nonce="b2")
    assert tend(bench) == "SETTLED"


def muster(bench: Bench, *jobs: tuple[str, str]) -> Sequence[str]:
    return mustered(bench.run(bench.lane.muster(jobs, missing_s=60.0)))


def test_each_member_says_how_it_is(bench: Bench) -> None:
    """And what never came is refused from then on: it cannot be counted missing, and run."""
    for index, key in enumerate(("run", "done", "parked", "stopped")):
        member(bench, index, key)
    end(bench, "done", "d", x=b"1")
    end(bench, "parked", "x", x="parked", y="error")
    end(bench, "stopped", "c", x="stopped")
    names = ("run", "done", "parked", "stopped", "never")
    jobs = [(key, member_id("b1", index)) for index, key in enumerate(names)]
    assert muster(bench, *jobs) == ["R", "s", "f", "c", "m"]
    assert muster(bench, *jobs) == ["R", "s", "f", "c", "m"]
    late = bench.admission("never", id=jobs[-1][1], more=pack_more(batch=member_of(ID, "b1", 1, 4)))
    assert bench.dispatch(late) == ["ENDED"]
    assert bench.text("never") is None
    assert isinstance(looked(bench.run(bench.lane.look([jobs[-1]])))[0], Missing)
    assert bench.audit() == []


def pass_s(bench: Bench, seconds: float) -> None:
    """Let time pass for what is remembered, and have ended what is over."""
    kept: Any = bench.client.zrange(bench.names.kept, 0, -1, withscores=True)
    for item, until_ms in kept:
        bench.do("ZADD", bench.names.kept, until_ms - 1000 * seconds, item)
    items = list[str]()
    while items := expired(bench.run(bench.lane.expire(items, items_max=9))).items:
        pass


def test_each_who_is_told_that_one_is_missing_is_told_so_for_as_long(bench: Bench) -> None:
    """Whatever it was refused for before, and however little time was left of that."""
    job = ("k", member_id("b1", 1))

    def dispatch() -> str:
        more = pack_more(batch=member_of(ID, "b1", 1, 1))
        [said] = bench.dispatch(bench.admission("k", id=job[1], more=more), refused_s=30.0)
        return said.split()[0]

    member(bench, 0, "k")
    assert dispatch() == "EXISTS"
    pass_s(bench, 29.0)
    assert muster(bench, job) == ["m"]
    end(bench, "k", "d", x=b"1")
    for others in ([("never", "b1.2")], [], [("never", "b1.2")]):
        pass_s(bench, 59.0)
        assert dispatch() == "ENDED"
        assert {*muster(bench, job, *others)} == {"m"}
    assert isinstance(looked(bench.run(bench.lane.look([job])))[0], Missing)
    pass_s(bench, 61.0)
    assert (bench.client.exists(bench.names.kept), bench.counter("results")) == (0, 0)
    assert dispatch() == "OK"
    assert muster(bench, job) == ["P"]
    assert bench.audit() == []


def test_a_member_that_found_no_room_may_come_again(bench: Bench) -> None:
    """While former calls with it may be under way, too: whoever adds it waits for room."""

    def dispatch(room: int, policy: str) -> str:
        more = pack_more(batch=member_of(ID, "b1", 1, 0))
        item = bench.admission("k", id=member_id("b1", 0), more=more, policy=policy)
        [said] = bench.dispatch(item, queued_jobs_max=room, refused_s=30.0)
        return said

    bench.dispatch(bench.admission("other"))
    assert dispatch(1, "") == "FULL 1"
    bench.dispatch(bench.admission("k"))
    assert dispatch(2, "q5") == "FULL 2"
    assert dispatch(9, "q5").startswith("QUEUED")


def test_one_that_is_queued_is_there(bench: Bench) -> None:
    member(bench, 0, "k")
    item = bench.admission("k", id=member_id("b1", 1), policy="q5")
    assert bench.dispatch(item)[0].startswith("QUEUED")
    assert muster(bench, ("k", member_id("b1", 0)), ("k", member_id("b1", 1))) == ["R", "Q"]


def test_a_replay_is_no_member(bench: Bench, there: Bench) -> None:
    """It never reopens what has settled."""
    make(there, "k")
    member(bench, 0, "k")
    seal(there, 1)
    end(bench, "k", "x", x="parked", y="error")
    carry(bench, there)
    assert head(there).state == "failed"
    call = bench.lane.replay(
        "k", member_id("b1", 0), "anew", "h", [W1], pending_s=9.0, queued_jobs_max=9
    )
    bench.do("HSET", bench.names.handlers, "h", "j")
    assert replayed(bench.run(call)) == Made("anew", "h")
    bench.advance("own", W1.name, bench.edge("a", "k"))
    assert bench.advance("own", W1.name, bench.edge("d", "k", x=b"1")) == ["OK"]
    assert isinstance(bench.outcome("anew"), Outcome)
    assert muster(bench, ("k", member_id("b1", 0))) == ["f"], "what it was replayed as is not it"
    assert (counts(there), there.audit()) == ((0, 1, 0, 0), [])


def test_a_lane_of_other_data_refuses(bench: Bench) -> None:
    make(bench, "a")
    bench.do("HSET", bench.names.lane, "incarnation", "other")
    lane, jobs = bench.lane, [("a", "b1.0")]
    calls = [
        open_call(bench, "b1"),
        lane.batch_add(ID, "b1", 1, ["b"]),
        lane.batch_seal(ID, "b1", 1, check_s=9.0),
        lane.batch_ends(ID, "b1", [(0, "s")]),
        lane.batch_tend(ID, 0, hold_s=9.0, check_s=9.0),
        lane.batch_look(ID, node="n"),
        lane.muster(jobs, missing_s=9.0),
    ]
    for call in calls:
        assert "POOLDATALOST" in bench.refused(call)
    bench.do("HSET", bench.names.lane, "incarnation", GENERATION)
