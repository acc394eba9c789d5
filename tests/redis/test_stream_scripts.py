"""The scripts of streams and sinks: declared keys only, nothing half done, and a full server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import redis

from pool.names import Control
from pool.redis.commands.plain import fields as read_fields
from pool.redis.scripts import ScriptCall
from pool.streams.commands import (
    HELD_MAX,
    ConsumerLease,
    Mended,
    StoredSink,
    StoredStream,
    Taken,
    handed,
    mended,
    parked_of,
    probe_call,
    probed,
    renewed,
    returned,
    taken,
)
from pool.streams.event import EventName

if TYPE_CHECKING:
    from pool.redis.embedded.server import EmbeddedServer
    from tests.redis.conftest import Bench

ME, OTHER = "c1.1", "c2.1"


def named(*ids: str) -> list[EventName]:
    """Name events as a consumer does that was given them before its connection broke."""
    return [(each, b"a") for each in ids]


TTL_MS = 10_000


class Shop:
    """A stream with a sink on it, in which ME cleans, OTHER is stale, and something is released."""

    def __init__(self, bench: Bench, name: str = "orders") -> None:
        self.bench = bench
        self.control = Control(bench.pool)
        self.stream = StoredStream(self.control, name)
        self.sink = StoredSink(stream=self.stream, name="billing \N{SNOWMAN}", deliveries_max=3)

    def open(self) -> Shop:
        self.ids = [self.bench.run(self.add(n)).decode() for n in range(12)]
        for consumer in (ME, OTHER):
            self.bench.run(self.sink.join(consumer, "", "0-0"))
        assert renewed(self.bench.run(self.sink.renew(ME))).is_holder
        self.read(ME, 4)
        self.read(OTHER, 4)
        self.bench.run(self.sink.release(ME, named(*self.ids[:2])))
        self.end_lease(OTHER)
        return self

    def add(self, n: int, **options: Any) -> ScriptCall:
        given: dict[str, Any] = {"length_max": 0, "ttl_ms": 0, "how": ""} | options
        return self.stream.add(b"made", b"%d" % n, b"topic" if n % 2 else None, mark="a", **given)

    def read(self, consumer: str, count: int) -> None:
        as_whom = ("GROUP", self.sink.name, consumer, "COUNT", count)
        self.bench.do("XREADGROUP", *as_whom, "STREAMS", self.stream.events, ">")

    def end_lease(self, consumer: str) -> None:
        self.bench.do("ZADD", self.sink.leases, 0, consumer)

    def hand(self, consumer: str, *ids: str, times: int = 1) -> list[bool]:
        """Note that the consumer's program was given these so often."""
        return handed(
            self.bench.run(self.sink.hand(consumer, [(each, times) for each in named(*ids)]))
        )

    def mend(self, consumer: str = ME, told: int = 0, of_life: bytes | None = None) -> Mended:
        born = self.bench.do("HGET", self.stream.meta, "born") or b""
        of_life = born if of_life is None else of_life
        return mended(self.bench.run(self.sink.mend(consumer, told, told, of_life)))

    def take(self, consumer: str, count: int, *, may_try: bool = False) -> Taken:
        return taken(self.bench.run(self.sink.take(consumer, count, may_try=may_try)))

    def release(self, consumer: str, *ids: str, is_doubtful: bool = False) -> tuple[int, int]:
        call = self.sink.release(consumer, named(*ids), is_doubtful=is_doubtful)
        did = returned(self.bench.run(call))
        return did.released, did.parked

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


CALLS: dict[str, Callable[[Shop], Any]] = {
    "add": lambda shop: shop.add(99, length_max=3, ttl_ms=1000),
    "add once": lambda shop: shop.add(99, length_max=3, once_id=b"x", window_ms=1000, ttl_ms=1000),
    "ack": lambda shop: shop.sink.ack_each(ME, named(shop.ids[2], shop.ids[4])),
    "probe": lambda shop: probe_call([(shop.stream, shop.ids[3])]),
    "join": lambda shop: shop.sink.join("c3.1", OTHER, "newest"),
    "renew": lambda shop: shop.sink.renew(ME),
    "mend": lambda shop: shop.sink.mend(ME, 0, 0, b""),
    "take": lambda shop: shop.sink.take(ME, 10, may_try=True),
    "hand": lambda shop: shop.sink.hand(ME, [*zip(named(*shop.ids[2:4]), (1, 2), strict=True)]),
    "held": lambda shop: shop.sink.held(ME, ""),
    "release": lambda shop: shop.sink.release(ME, named(*shop.ids[2:4])),
    "leave": lambda shop: shop.sink.leave(ME),
}
READ_ONLY = {"probe", "held"}


@pytest.fixture(params=["orders", "{a} *[x]?:\N{SNOWMAN}"])
def shop(request: pytest.FixtureRequest, bench: Bench) -> Shop:
    return Shop(bench, request.param).open()


@pytest.mark.parametrize("name", CALLS)
def test_a_script_touches_its_declared_keys_only(shop: Shop, name: str) -> None:
    """`bench.run` gives the calling user the call's keys and nothing else."""
    before = shop.dump()
    shop.bench.run(CALLS[name](shop))
    assert (shop.dump() == before) == (name in READ_ONLY)


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
    """Claim first, delete after: what the stale held is doubtful, with its count as it was."""
    poison, once = shop.ids[4:6]
    assert shop.hand(OTHER, poison, times=3) == shop.hand(OTHER, once) == [True]
    did = shop.mend()
    assert (did.freed, did.parked, did.forgotten, did.missed, did.is_more) == (3, 1, 1, 0, False)
    assert shop.consumers() == {ME, "-", "?"}
    assert shop.pending() == {
        **dict.fromkeys(shop.ids[:2], ("-", 0)),
        **dict.fromkeys(shop.ids[2:4], (ME, 1)),
        once: ("?", 1000),
        **dict.fromkeys(shop.ids[6:8], ("?", 1)),
    }
    [parked] = shop.parked()
    assert (parked.event.stream, parked.event.id) == (shop.stream.name, poison)
    assert (parked.event.payload, parked.event.deliveries) == (b"4", 3)
    again = shop.mend()
    assert (again.freed, again.parked, again.forgotten) == (0, 0, 0)


@pytest.mark.parametrize("call", ["ack one", "ack", "hand", "release"])
def test_another_event_of_the_same_id_is_left_alone(shop: Shop, call: str) -> None:
    """G6: a server that lost data gives ids anew; marks tell the two apart."""
    entry, beside = shop.ids[2:4]
    before = shop.pending()
    other = (entry, b"of a lost event")
    match call:
        case "ack one":
            assert shop.bench.run(shop.sink.ack_each(ME, [other])) == [False]
        case "ack":
            assert shop.bench.run(shop.sink.ack_each(ME, [other, (beside, b"a")])) == [False, True]
            del before[beside]
        case "hand":
            assert shop.bench.run(shop.sink.hand(ME, [(other, 9)])) == [False]
        case "release":
            assert returned(shop.bench.run(shop.sink.release(ME, [other]))).released == 0
    assert shop.pending() == before
    assert shop.bench.run(shop.sink.ack_each(ME, [(entry, b"a")])) == [True]


def test_a_stale_consumer_with_much_is_forgotten_when_it_holds_nothing(shop: Shop) -> None:
    for n in range(200):
        shop.bench.run(shop.add(n))
    shop.read(OTHER, 200)
    steps = []
    while OTHER in shop.consumers():
        steps.append(shop.mend())
        held = sum(holder == OTHER for holder, _ in shop.pending().values())
        assert (held > 0) == (OTHER in shop.consumers())
    assert [step.freed for step in steps] == [64, 64, 64, 12]
    assert [step.is_more for step in steps] == [True, True, True, False]


def test_a_delivery_is_a_hand_out_and_nothing_else(shop: Shop) -> None:
    """However often an event is given and given back: it counts what was in a program's hands."""
    first, second = shop.ids[:2]
    for _ in range(5):
        got = shop.take(ME, 1)
        assert [(each.id, each.times, each.is_doubtful) for each in got.events] == [
            (first, 0, False)
        ]
        assert got.events[0].fields == {"n": b"1", "m": b"a", "e": b"made", "p": b"0"}
        assert shop.release(ME, first) == (1, 0)
    shop.take(ME, 2)
    for times in (1, 2, 1):  # said twice it counts once, and it never falls
        assert shop.hand(ME, first, times=times) == [True]
    assert shop.release(ME, first, second) == (2, 0)
    assert [each.times for each in shop.take(ME, 2).events] == [2, 0]
    assert shop.hand(ME, first, times=3) == [True]
    assert shop.release(ME, first, second) == (1, 1)
    assert [each.event.id for each in shop.parked()] == [first]


def test_what_is_not_the_callers_any_more_is_left_alone(shop: Shop) -> None:
    before = shop.dump()
    assert shop.release(OTHER, *shop.ids[2:4]) == (0, 0)
    assert shop.hand(OTHER, *shop.ids[2:4]) == [False, False]
    assert shop.release(ME, "9-9") == (0, 0)
    assert shop.dump() == before


def test_doubtful_events_are_taken_one_at_a_time_and_by_who_asks_for_one(shop: Shop) -> None:
    shop.hand(OTHER, shop.ids[4])
    shop.mend()
    assert [each.id for each in shop.take(ME, 10).events] == shop.ids[:2]
    assert shop.take(ME, 10) == Taken(0, 0, [])
    got = shop.take(ME, 10, may_try=True)
    assert (got.doubtful, got.released) == (1, 0)
    assert [(each.id, each.times, each.is_doubtful) for each in got.events] == [
        (shop.ids[4], 1, True)
    ]
    # Untried it goes back to the doubtful, and was not handed out; tried it is as good as any.
    assert shop.release(ME, shop.ids[4], is_doubtful=True) == (1, 0)
    assert shop.pending()[shop.ids[4]] == ("?", 1001)
    assert shop.take(ME, 1, may_try=True).events[0].times == 1
    assert shop.hand(ME, shop.ids[4], times=2) == [True]
    assert shop.release(ME, shop.ids[4]) == (1, 0)
    assert shop.pending()[shop.ids[4]] == ("-", 2000)


def test_what_is_held_is_told_in_pages(shop: Shop) -> None:
    for n in range(1_200):
        shop.bench.run(shop.add(n))
    shop.read(ME, 1_200)
    mine = [each for each, (holder, _) in shop.pending().items() if holder == ME]
    pages, after = list[str](), ""
    while page := [each.decode() for each in shop.bench.run(shop.sink.held(ME, after))]:
        assert len(page) <= HELD_MAX
        pages, after = [*pages, *page], page[-1]
    assert len(pages) == 1_202
    assert set(mine) <= set(pages)


def test_only_the_holder_of_the_lock_cleans(shop: Shop) -> None:
    for consumer in (OTHER, "c9.9"):
        before = shop.dump()
        assert shop.mend(consumer).freed == -1
        assert shop.dump() == before
    now = int(shop.bench.do("HGET", shop.sink.state, "now"))
    shop.bench.do("HSET", shop.sink.state, "holder", f"{ME}|{now}")
    assert shop.mend().freed == -1
    shop.bench.run(shop.sink.join(OTHER, "", "0-0"))
    assert renewed(shop.bench.run(shop.sink.renew(OTHER))).is_holder
    assert not renewed(shop.bench.run(shop.sink.renew(ME))).is_holder
    # One that ends later than anybody can ask for is nobody's.
    for foreign in (f"dead.1|{now + 10 * TTL_MS}", "dead.1|", "|", "dead.1|99999999999999999999"):
        shop.bench.do("HSET", shop.sink.state, "holder", foreign)
        assert renewed(shop.bench.run(shop.sink.renew(ME))).is_holder


def test_who_has_no_lease_gets_nothing(shop: Shop) -> None:
    for call in (shop.sink.renew("c9.9"), shop.sink.take("c9.9", 10, may_try=True)):
        before = shop.dump()
        with pytest.raises(redis.ResponseError, match=r"POOLGONE c9\.9"):
            shop.bench.run(call)
        assert shop.dump() == before


def test_two_renewals_within_a_millisecond_take_no_time(shop: Shop) -> None:
    def renewed_at() -> tuple[int, int]:
        shop.bench.run(shop.sink.renew(ME))
        now, seen = shop.bench.do("HMGET", shop.sink.state, "now", "seen")
        return int(now), int(seen)

    passed, before = set[int](), renewed_at()
    while 0 not in passed:
        now, seen = renewed_at()
        assert now - before[0] == seen - before[1]
        passed.add(seen - before[1])
        before = now, seen


def test_a_sinks_time_is_the_time_in_which_somebody_renews(shop: Shop) -> None:
    """An outage or a step of the clock, either way, is a fifth of a TTL."""
    state = shop.sink.state

    def renewed_at(seen: int) -> int:
        had = int(shop.bench.do("HGET", state, "now"))
        shop.bench.do("HSET", state, "seen", seen)
        shop.bench.run(shop.sink.renew(ME))
        return int(shop.bench.do("HGET", state, "now")) - had

    server_ms = shop.bench.now_ms()
    for step_ms in (-3_600_000, -TTL_MS, TTL_MS, 3_600_000):
        assert renewed_at(server_ms - step_ms) == TTL_MS // 5
    assert 1_000 <= renewed_at(shop.bench.now_ms() - 1_000) <= TTL_MS // 2
    shop.bench.run(shop.sink.join(OTHER, "", "0-0"))
    for _ in range(3):
        renewed_at(server_ms - 86_400_000)
        assert OTHER in {each.decode() for each in shop.bench.do("ZRANGE", shop.sink.leases, 0, -1)}
        assert shop.mend().forgotten == 0
    for _ in range(3):
        renewed_at(server_ms - 86_400_000)
    assert shop.mend().forgotten == 1


def test_short_lives_add_up_until_what_the_first_one_held_is_freed(shop: Shop) -> None:
    """G6: a lone consumer that is started again and again is not alone with its leases for ever."""
    freed = 0
    for n in range(8):
        now = shop.bench.now_ms()  # the one before died long ago
        shop.bench.do("HSET", shop.sink.state, "seen", now - 3 * TTL_MS // 4)
        shop.bench.run(shop.sink.join(f"c{n + 3}.1", "", "0-0"))
        shop.bench.run(shop.sink.renew(f"c{n + 3}.1"))
        freed += max(0, shop.mend(f"c{n + 3}.1").freed)
    assert freed == 6
    assert [each.id for each in shop.take("c10.1", 99).events] == shop.ids[:2]
    assert {holder for holder, _ in shop.pending().values()} == {"c10.1", "?"}


def test_joining_twice_renews_and_a_group_is_made_once(shop: Shop) -> None:
    second = attrs.evolve(shop.sink, stream=StoredStream(shop.control, "second"))
    assert shop.bench.run(shop.sink.join(ME, "", "newest")) == 0
    assert [shop.bench.run(second.join(ME, "", "0-0")) for _ in range(2)] == [1, 0]
    assert shop.pending()[shop.ids[2]] == (ME, 1)
    assert renewed(shop.bench.run(shop.sink.renew(ME))) == ConsumerLease(True, TTL_MS, 2, 0)
    assert renewed(shop.bench.run(second.renew(ME))) == ConsumerLease(True, TTL_MS, 0, 0)
    shop.bench.do("XGROUP", "DESTROY", second.stream.events, second.name)
    assert renewed(shop.bench.run(second.renew(ME))) == ConsumerLease(True, TTL_MS, -1, 0)
    assert mended(shop.bench.run(second.mend(ME, 0, 0, b""))).freed == -2
    shop.mend()
    assert renewed(shop.bench.run(shop.sink.renew(ME))) == ConsumerLease(True, TTL_MS, 2, 4)


def test_a_sink_cleans_its_own_stream_only(shop: Shop) -> None:
    """Who reads one stream of a sink knows nothing of who reads another of the same name."""
    second = attrs.evolve(shop.sink, stream=StoredStream(shop.control, "second"))
    shop.bench.run(second.join(OTHER, "", "0-0"))
    second_keys = {second.state, second.leases, second.stream.events, second.parked}
    before = {key: shop.bench.do("DUMP", key) for key in second_keys}
    assert shop.mend().forgotten == 1
    assert {key: shop.bench.do("DUMP", key) for key in second_keys} == before
    assert renewed(shop.bench.run(second.renew(OTHER))).is_holder


def test_leaving_forgets_where_nothing_is_held(shop: Shop) -> None:
    assert shop.bench.run(shop.sink.leave(ME)) == 1
    assert ME in shop.consumers()
    shop.bench.do(*shop.sink.ack(shop.ids[2:4]))
    assert shop.bench.run(shop.sink.leave(ME)) == 0
    assert ME not in shop.consumers()
    assert shop.bench.do("HGET", shop.sink.state, "holder") is None


def test_what_a_cap_took_is_counted_until_it_was_told(shop: Shop) -> None:
    shop.bench.run(shop.add(99, length_max=1))
    gone = shop.mend()  # four that were given to nobody, and four of the stale one
    assert (gone.freed, gone.missed, gone.told) == (0, 8, 0)
    assert (shop.mend().missed, shop.mend(told=8).told, shop.mend().told) == (8, 8, 8)
    since = shop.bench.do("HGET", shop.stream.meta, f"missed:{shop.sink.name}").split(b"|")[1:]
    assert len(since) == 2
    assert shop.take(ME, 10).events == []  # the two that were released
    assert (shop.mend().missed, shop.mend().told) == (10, 8)
    # What no group had been given is counted apart from what was pending.
    told = shop.bench.do("HGET", shop.stream.meta, f"missed:{shop.sink.name}").split(b"|")
    assert told == [b"10", *since]
    # What somebody has told of another life of the stream says nothing of this one.
    assert shop.mend(told=10, of_life=b"1.2").told == 8


def test_of_a_group_whose_cursor_a_cap_took_at_least_all_are_told(shop: Shop) -> None:
    """Which event was the first that was not acknowledged nobody can say: it was told as one."""
    bench, sink = shop.bench, shop.sink
    bench.run(sink.join(ME, "", "0-0"))
    ids = [bench.run(shop.add(n)).decode() for n in range(4)]
    shop.read(ME, 4)
    shop.mend()
    bench.do("XACK", shop.stream.events, sink.name, *ids[:2])
    for n in range(4, 16):
        bench.run(shop.add(n, length_max=5))
    before = shop.mend().missed  # 2 and 3 are in hand and gone, 4 to 10 were never given
    bench.do("XGROUP", "DESTROY", shop.stream.events, sink.name)
    bench.run(sink.join(ME, ME, "0-0"))
    assert before + 2 <= shop.mend().missed <= 28 - 5  # and none twice


def test_of_a_foreign_event_with_very_many_fields_ours_are_kept(shop: Shop) -> None:
    fields = [f"f{n}" for n in range(30_000)]
    entry = shop.bench.do("XADD", shop.stream.events, "*", *fields, "p", "body").decode()
    shop.read(OTHER, 100)
    shop.hand(OTHER, entry, times=3)
    assert shop.mend().parked == 1
    [parked] = shop.parked()
    assert (parked.event.id, parked.event.payload) == (entry, b"body")


def test_foreign_fields_of_an_event_cannot_pass_for_the_sinks_own(shop: Shop) -> None:
    """What is parked keeps the event's own fields, also those that are called like ours."""
    fields = ("s", "x", "i", "9-9", "d", "z", "r", "y", b"\xff", b"\xff", "p", "body")
    entry = shop.bench.do("XADD", shop.stream.events, "*", *fields).decode()
    shop.read(OTHER, 100)
    shop.hand(OTHER, entry, times=3)
    shop.mend()
    [parked] = shop.parked()
    assert (parked.event.stream, parked.event.id) == (shop.stream.name, entry)
    assert (parked.event.payload, parked.event.event) == (b"body", "")
    assert read_fields([b"\xff", b"v"]) == {"\\xff": b"v"}


def test_nothing_looks_at_all_that_is_pending() -> None:
    """G10: what is pending is looked at by its holder, and so many; `IDLE` would scan all of it."""
    lua = files("pool.redis") / "lua"
    calls = [
        call
        for folder in (lua, lua / "lib")
        for path in folder.iterdir()
        if path.name.endswith(".lua")
        for call in re.findall(r"'(?:XPENDING|XAUTOCLAIM)'[^\n]*", path.read_text("utf-8"))
    ]
    summary = re.compile(r"'XPENDING', events, group\)")
    of_one = re.compile(r"'XPENDING', events, group, [^()]+(\([^()]*\))?[^()]*, consumer\)")
    page = re.compile(r"'XPENDING', events, group, '-', '\+', [^,()]+, name\)")
    assert len(calls) >= 6
    for call in calls:
        assert any(form.match(call) for form in (summary, of_one, page)) or "after ==" in call, call


def test_consumers_are_deleted_in_one_place_and_groups_begin_at_the_end_in_one() -> None:
    """`XGROUP DELCONSUMER` and `$` lose events in silence wherever they are not reviewed."""
    lua = files("pool.redis") / "lua"
    texts = {
        path.name: re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", path.read_text("utf-8"), flags=re.DOTALL)
        for folder in (lua, lua / "lib")
        for path in folder.iterdir()
        if path.name.endswith(".lua")
    }
    assert [name for name in texts if "DELCONSUMER" in texts[name]] == ["group.lua"]
    assert [name for name in texts if "'$'" in texts[name]] == ["sink_join.lua"]
    assert [name for name in texts if "'XGROUP', 'CREATE'" in texts[name]] == ["sink_join.lua"]
    for python in (files("pool.redis"), files("pool.jobs")):
        for path in python.iterdir():
            if path.name.endswith(".py"):
                text = path.read_text("utf-8")
                assert "DELCONSUMER" not in text, path
                # ... but for b"$", which begins a line of redis, and ("$", a place in JSON.
                assert not re.search(r"""(?<!b|\()["'][$]["']""", text), path


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
        full.hand(OTHER, full.ids[4], times=3)
    call, before = CALLS[name](full), full.dump()
    full.bench.load(call)
    full.bench.client.config_set("maxmemory", 1)
    if name in ("add", "add once"):
        with pytest.raises(redis.ResponseError, match="command not allowed"):
            full.bench.run(call)
        assert full.dump() == before
        return
    full.bench.run(call)
    assert full.bench.do(*full.sink.ack(full.ids[3:4])) == 1
    if name == "mend":
        assert len(full.parked()) == 1


def test_a_lease_without_time_is_no_answer_to_a_renewal() -> None:
    assert renewed([0, 1, 0, 0]).ttl_ms == 1
    for ttl_ms in (0, -1):
        with pytest.raises(ValueError, match=str(ttl_ms)):
            renewed([0, ttl_ms, 0, 0])
