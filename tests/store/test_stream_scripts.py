"""The scripts of streams and sinks: declared keys only, nothing half done, and a full server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
import redis

from pool.model.names import Control
from pool.store.commands import fields as read_fields
from pool.store.scripts import ScriptCall
from pool.store.stream import (
    StoredSink,
    StoredStream,
    mended,
    parked_of,
    probe_call,
    probed,
    taken,
)

if TYPE_CHECKING:
    from pool.store.server import EmbeddedServer
    from tests.store.conftest import Bench

ME, OTHER = "c1.1", "c2.1"
TTL_MS = 10_000


class Shop:
    """A stream with a sink on it, in which ME cleans, OTHER is stale, and something is released."""

    def __init__(self, bench: Bench, name: str = "orders") -> None:
        self.bench = bench
        self.control = Control(bench.pool)
        self.stream = StoredStream(self.control, name)
        self.sink = StoredSink(
            control=self.control,
            name="billing \N{SNOWMAN}",
            grace_ms=5_000,
            deliveries_max=3,
        )

    def open(self) -> Shop:
        self.ids = [self.bench.run(self.add(n)).decode() for n in range(12)]
        for consumer in (ME, OTHER):
            self.bench.run(self.sink.join(consumer, "", [(self.stream, "0-0")]))
        assert self.bench.run(self.sink.renew(ME, [self.stream]))[0] == 1
        self.read(ME, 4)
        self.read(OTHER, 4)
        self.bench.run(self.sink.release(ME, self.stream, self.ids[:2]))
        self.end_lease(OTHER)
        return self

    def add(self, n: int, **options: Any) -> ScriptCall:
        given: dict[str, Any] = {"length_max": 0, "ttl_ms": 0, "is_sliding": False}
        given |= {"only_if_exists": False} | options
        return self.stream.add(b"made", b"%d" % n, b"topic" if n % 2 else None, **given)

    def read(self, consumer: str, count: int) -> None:
        as_whom = ("GROUP", self.sink.name, consumer, "COUNT", count)
        self.bench.do("XREADGROUP", *as_whom, "STREAMS", self.stream.events, ">")

    def end_lease(self, consumer: str) -> None:
        self.bench.do("ZADD", self.control.sink_leases(self.sink.name), 1, consumer)

    def age(self, entry: str, consumer: str, idle_ms: int) -> None:
        self.bench.client.xclaim(
            self.stream.events, self.sink.name, consumer, 0, [entry], idle=idle_ms, justid=True
        )

    def pending(self) -> dict[str, tuple[str, int]]:
        rows: Any = self.bench.client.xpending_range(
            self.stream.events, self.sink.name, "-", "+", 10_000
        )
        return {
            row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"])
            for row in rows
        }

    def consumers(self) -> set[str]:
        rows: Any = self.bench.client.xinfo_consumers(self.stream.events, self.sink.name)
        return {row["name"].decode() for row in rows}

    def parked(self) -> list[Any]:
        # Not `xrange`: as a dict it would lose fields that appear twice.
        script = "return redis.call('XRANGE', KEYS[1], '-', '+')"
        rows: Any = self.bench.do("EVAL", script, 1, self.sink.parked)
        return [parked_of(entry.decode(), flat) for entry, flat in rows]

    def control_keys(self, *, but: str) -> list[str]:
        found = self.bench.client.scan_iter(match=f"{self.control.prefix}*", count=1000)
        return sorted({key.decode() for key in found} - {but})

    def dump(self) -> dict[str, Any]:
        """All that stands in the control keys, but for what is true of one moment only."""
        client: Any = self.bench.client
        found: dict[Any, Any] = {}
        for key in client.scan_iter(match=f"{self.control.prefix}*", count=1000):
            match client.type(key):
                case b"hash":
                    found[key] = client.hgetall(key)
                case b"zset":
                    found[key] = client.zrange(key, 0, -1, withscores=True)
                case _:
                    found[key] = client.xrange(key)
        return {"pending": self.pending(), "consumers": self.consumers(), **found}


CALLS: dict[str, Callable[[Shop], ScriptCall]] = {
    "add": lambda shop: shop.add(99, length_max=3, ttl_ms=1000),
    "probe": lambda shop: probe_call([(shop.stream, shop.ids[3])]),
    "join": lambda shop: shop.sink.join("c3.1", OTHER, [(shop.stream, "newest")]),
    "renew": lambda shop: shop.sink.renew(ME, [shop.stream]),
    "mend": lambda shop: shop.sink.mend(ME, shop.stream),
    "take": lambda shop: shop.sink.take(ME, shop.stream, 10),
    "release": lambda shop: shop.sink.release(ME, shop.stream, shop.ids[2:4]),
    "leave": lambda shop: shop.sink.leave(ME, [shop.stream]),
}


@pytest.fixture(params=["orders", "{a} *[x]?:\N{SNOWMAN}"])
def shop(request: pytest.FixtureRequest, bench: Bench) -> Shop:
    return Shop(bench, request.param).open()


@pytest.mark.parametrize("name", CALLS)
def test_a_script_touches_its_declared_keys_only(shop: Shop, name: str) -> None:
    """`bench.run` gives the calling user the call's keys and nothing else."""
    before = shop.dump()
    shop.bench.run(CALLS[name](shop))
    assert (shop.dump() == before) == (name == "probe")


@pytest.mark.parametrize("name", CALLS)
def test_foreign_data_is_refused_before_anything_is_written(shop: Shop, name: str) -> None:
    call = CALLS[name](shop)
    events = shop.stream.events
    if name == "probe":
        shop.bench.do("SET", events, "foreign")
        assert [facts.exists for facts in probed(shop.bench.run(call))] == [None]
        return
    for key in call.keys:
        others = {each: shop.bench.do("DUMP", each) for each in shop.control_keys(but=key)}
        saved = shop.bench.do("DUMP", key)
        shop.bench.do("SET", key, "foreign")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            shop.bench.run(call)
        assert {each: shop.bench.do("DUMP", each) for each in others} == others, key
        shop.bench.do("DEL", key)
        if saved is not None:
            shop.bench.do("RESTORE", key, 0, saved)


# --- what each one promises ---------------------------------------------------------------------


def test_mending_frees_parks_and_forgets_in_one_step(shop: Shop) -> None:
    """Claim first, delete after: what the stale held is released, with its count as it was."""
    poison = shop.ids[4]
    for _ in range(2):
        shop.bench.do("XCLAIM", shop.stream.events, shop.sink.name, OTHER, 0, poison)
    did = mended(shop.bench.run(shop.sink.mend(ME, shop.stream)))
    assert (did.freed, did.parked, did.forgotten, did.missed, did.is_more) == (3, 1, 1, 0, False)
    assert shop.consumers() == {ME, "-"}
    assert shop.pending() == {
        **dict.fromkeys(shop.ids[:2], ("-", 0)),
        **dict.fromkeys(shop.ids[2:4], (ME, 1)),
        **dict.fromkeys(shop.ids[5:8], ("-", 1)),
    }
    [parked] = shop.parked()
    assert (parked.event.stream, parked.event.id) == (shop.stream.name, poison)
    assert (parked.event.payload, parked.event.deliveries) == (b"4", 3)
    again = mended(shop.bench.run(shop.sink.mend(ME, shop.stream)))
    assert (again.freed, again.parked, again.forgotten) == (0, 0, 0)


def test_a_stale_consumer_with_much_is_forgotten_when_it_holds_nothing(shop: Shop) -> None:
    for n in range(200):
        shop.bench.run(shop.add(n))
    shop.read(OTHER, 200)
    steps = []
    while OTHER in shop.consumers():
        steps.append(mended(shop.bench.run(shop.sink.mend(ME, shop.stream))))
        held = sum(holder == OTHER for holder, _ in shop.pending().values())
        assert (held > 0) == (OTHER in shop.consumers())
    assert [step.freed for step in steps] == [64, 64, 64, 12]
    assert [step.is_more for step in steps] == [True, True, True, False]


def test_what_nobody_acknowledges_is_freed_from_the_living_too(shop: Shop) -> None:
    shop.age(shop.ids[2], ME, 5_001)
    did = mended(shop.bench.run(shop.sink.mend(ME, shop.stream)))
    assert did.freed == 5
    assert shop.pending()[shop.ids[2]] == ("-", 1)
    assert shop.pending()[shop.ids[3]] == (ME, 1)


def test_taking_counts_a_delivery_and_giving_back_takes_it_off(shop: Shop) -> None:
    got = taken(shop.bench.run(shop.sink.take(ME, shop.stream, 1)))
    assert [(entry, deliveries) for entry, _, deliveries in got] == [(shop.ids[0], 1)]
    assert got[0][1] == {"n": b"1", "e": b"made", "p": b"0"}
    shop.bench.run(shop.sink.mend(ME, shop.stream))
    got = taken(shop.bench.run(shop.sink.take(ME, shop.stream, 10)))
    assert [deliveries for _, _, deliveries in got] == [1, 2, 2, 2, 2]
    assert shop.bench.run(shop.sink.release(ME, shop.stream, [e for e, _, _ in got])) == 5
    released = [times for holder, times in shop.pending().values() if holder == "-"]
    assert released == [0, 1, 1, 1, 1]
    assert shop.bench.run(shop.sink.release(OTHER, shop.stream, shop.ids[2:4])) == 0
    assert shop.pending()[shop.ids[2]] == (ME, 1)


def test_only_the_holder_of_the_lock_cleans(shop: Shop) -> None:
    for consumer in (OTHER, "c9.9"):
        before = shop.dump()
        assert mended(shop.bench.run(shop.sink.mend(consumer, shop.stream))).freed == -1
        assert shop.dump() == before
    state = shop.control.sink(shop.sink.name)
    shop.bench.do("HSET", state, "holder", f"{ME}|1")
    assert mended(shop.bench.run(shop.sink.mend(ME, shop.stream))).freed == -1
    shop.bench.run(shop.sink.join(OTHER, "", [(shop.stream, "0-0")]))
    assert shop.bench.run(shop.sink.renew(OTHER, [shop.stream]))[0] == 1
    assert shop.bench.run(shop.sink.renew(ME, [shop.stream]))[0] == 0
    # A lock that was written before the server's clock went back does not last for ever.
    far = shop.bench.now_ms() + 10 * TTL_MS
    shop.bench.do("HSET", state, "holder", f"dead.1|{far}")
    assert shop.bench.run(shop.sink.renew(ME, [shop.stream]))[0] == 1


def test_who_has_no_lease_gets_nothing(shop: Shop) -> None:
    for call in (
        shop.sink.renew("c9.9", [shop.stream]),
        shop.sink.take("c9.9", shop.stream, 10),
    ):
        before = shop.dump()
        with pytest.raises(redis.ResponseError, match=r"POOLGONE c9\.9"):
            shop.bench.run(call)
        assert shop.dump() == before


def test_in_a_quiet_time_nothing_is_cleaned(shop: Shop) -> None:
    state = shop.control.sink(shop.sink.name)
    shop.bench.do("HSET", state, "seen", shop.bench.now_ms() - TTL_MS)
    before = shop.pending()
    assert mended(shop.bench.run(shop.sink.mend(ME, shop.stream))).freed == 0
    assert (shop.pending(), OTHER in shop.consumers()) == (before, True)
    # When it is over, leases count again, and the grace only from then on.
    shop.age(shop.ids[2], ME, 60_000)
    shop.bench.do("HSET", state, "seen", shop.bench.now_ms(), "quiet", shop.bench.now_ms() - 1)
    assert mended(shop.bench.run(shop.sink.mend(ME, shop.stream))).freed == 4
    assert shop.pending()[shop.ids[2]] == (ME, 1)
    shop.bench.do("HSET", state, "quiet", shop.bench.now_ms() - 5_001)
    assert mended(shop.bench.run(shop.sink.mend(ME, shop.stream))).freed == 1


def test_a_clock_that_went_back_stretches_no_lease(shop: Shop) -> None:
    leases, state = shop.control.sink_leases(shop.sink.name), shop.control.sink(shop.sink.name)
    now = shop.bench.now_ms()
    shop.bench.do("ZADD", leases, now + 3_600_000, OTHER)
    shop.bench.do("HSET", state, "seen", now + 3_600_000)
    shop.bench.run(shop.sink.renew(ME, [shop.stream]))
    assert float(shop.bench.do("ZSCORE", leases, OTHER)) <= shop.bench.now_ms() + TTL_MS


def test_joining_twice_renews_and_a_group_is_made_once(shop: Shop) -> None:
    other = StoredStream(shop.control, "second")
    starts = [(shop.stream, "newest"), (other, "0-0")]
    assert shop.bench.run(shop.sink.join(ME, "", starts)) == [0, 1]
    assert shop.bench.run(shop.sink.join(ME, "", starts)) == [0, 0]
    assert shop.pending()[shop.ids[2]] == (ME, 1)
    both = [shop.stream.events.encode(), other.events.encode()]  # the cleaner is told of them
    assert shop.bench.run(shop.sink.renew(ME, [shop.stream, other])) == [1, TTL_MS, both, 2, 0]
    shop.bench.do("XGROUP", "DESTROY", other.events, shop.sink.name)
    assert shop.bench.run(shop.sink.renew(ME, [shop.stream, other])) == [1, TTL_MS, both, 2, -1]
    assert mended(shop.bench.run(shop.sink.mend(ME, other))).freed == -2
    assert shop.bench.run(shop.sink.renew(ME, [shop.stream])) == [1, TTL_MS, [both[0]], 2]


def test_leaving_forgets_where_nothing_is_held(shop: Shop) -> None:
    assert shop.bench.run(shop.sink.leave(ME, [shop.stream])) == 1
    assert ME in shop.consumers()
    shop.bench.do(*shop.sink.ack(shop.stream, shop.ids[2:4]))
    assert shop.bench.run(shop.sink.leave(ME, [shop.stream])) == 0
    assert ME not in shop.consumers()
    assert shop.bench.do("HGET", shop.control.sink(shop.sink.name), "holder") is None


def test_foreign_fields_of_an_event_cannot_pass_for_the_sinks_own(shop: Shop) -> None:
    """What is parked keeps the event's own fields, also those that are called like ours."""
    fields = ("s", "x", "i", "9-9", "d", "z", "r", "y", b"\xff", b"\xff", "p", "body")
    entry = shop.bench.do("XADD", shop.stream.events, "*", *fields).decode()
    shop.read(OTHER, 100)
    for _ in range(3):
        shop.bench.do("XCLAIM", shop.stream.events, shop.sink.name, OTHER, 0, entry)
    shop.bench.run(shop.sink.mend(ME, shop.stream))
    [parked] = shop.parked()
    assert (parked.event.stream, parked.event.id) == (shop.stream.name, entry)
    assert (parked.event.payload, parked.event.event) == (b"body", "")
    assert read_fields([b"\xff", b"v"]) == {"\\xff": b"v"}


def test_consumers_are_deleted_in_one_place_and_groups_begin_at_the_end_in_one() -> None:
    """`XGROUP DELCONSUMER` and `$` lose events in silence wherever they are not reviewed."""
    lua = files("pool.store") / "lua"
    texts = {
        path.name: re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", path.read_text("utf-8"), flags=re.DOTALL)
        for folder in (lua, lua / "lib")
        for path in folder.iterdir()
        if path.name.endswith(".lua")
    }
    assert [name for name in texts if "DELCONSUMER" in texts[name]] == ["group.lua"]
    assert [name for name in texts if "'$'" in texts[name]] == ["sink_join.lua"]
    assert [name for name in texts if "'XGROUP', 'CREATE'" in texts[name]] == ["sink_join.lua"]
    for python in (files("pool.store"), files("pool.actors")):
        for path in python.iterdir():
            if path.name.endswith(".py"):
                text = path.read_text("utf-8")
                assert "DELCONSUMER" not in text, path
                assert not re.search(r"""(?<!b)["'][$]["']""", text), path


# --- a full server ------------------------------------------------------------------------------


@pytest.fixture
def full(server_to_fill: EmbeddedServer, bench: Bench) -> Iterator[Shop]:
    with redis.Redis.from_url(server_to_fill.url, protocol=2) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        own = type(bench)(client, bench.pool)
        yield Shop(own).open()
        client.config_set("maxmemory", 0)
        own.close()


@pytest.mark.parametrize("name", CALLS)
def test_on_a_full_server_only_adding_is_refused(full: Shop, name: str) -> None:
    """Consumers keep their leases, acknowledge, clean and park, so that events can be trimmed."""
    if name == "mend":
        for _ in range(3):
            full.bench.do("XCLAIM", full.stream.events, full.sink.name, OTHER, 0, full.ids[4])
    call, before = CALLS[name](full), full.dump()
    full.bench.load(call)
    full.bench.client.config_set("maxmemory", 1)
    if name == "add":
        with pytest.raises(redis.ResponseError, match="command not allowed"):
            full.bench.run(call)
        assert full.dump() == before
        return
    full.bench.run(call)
    assert full.bench.do(*full.sink.ack(full.stream, full.ids[3:4])) == 1
    if name == "mend":
        assert len(full.parked()) == 1
