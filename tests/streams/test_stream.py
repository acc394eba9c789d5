"""Streams: what is added is kept as it is, and goes only where somebody asked for that."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis

from pool import Node, PoolError, Stream
from pool.errors import (
    ConfigError,
    InvalidOption,
    NotRunning,
    PayloadTooLarge,
    StorageFull,
    StoreFault,
    StoreLost,
    StoreUnavailable,
)
from pool.events import SinkBeganAnew, SinkRemade, StreamEnded, StreamMissed, StreamRestarted
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.reads import READ_BYTES_MAX
from pool.streams.event import EVENT_BYTES_MAX, TOPIC_BYTES_MAX
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

pytestmark = pytest.mark.anyio

AWKWARD = ["=", ",", "a\0b", "line\nbreak", "\N{SNOWMAN}", "{tag}:*?[x]", " ", "x" * 256]


async def test_any_bytes_and_any_text_come_back_as_they_were(bench: Bench) -> None:
    payloads = [b"", b"\0\xff\r\n", bytes(range(256)), "\N{SNOWMAN}".encode()]
    async with bench.stream("\N{SNOWMAN} {s}:*") as stream:
        for text, payload in zip(AWKWARD, payloads * 2, strict=True):
            await stream.add(text, payload, topic=text)
        await stream.add("text", "\N{SNOWMAN}")
        async with stream.reader() as reader:
            events = await bench.take(reader, len(AWKWARD) + 1)
        assert [event.event for event in events[:-1]] == AWKWARD
        assert [event.topic for event in events] == [*AWKWARD, None]
        assert [event.payload for event in events[:-1]] == payloads * 2
        assert events[-1].payload == "\N{SNOWMAN}".encode()
        assert {event.stream for event in events} == {stream.name}


async def test_what_cannot_be_added_is_refused_before_anything_is_sent(bench: Bench) -> None:
    async with bench.stream() as stream:
        bad: list[Any] = ["", None, 3, b"bytes", "\ud800"]
        for name in bad:
            with pytest.raises(InvalidOption):
                await stream.add(name, b"")
            if name is not None:
                with pytest.raises(InvalidOption):
                    await stream.add("e", b"", topic=name)
        for payload in (None, 3, ["x"], "\ud800"):
            with pytest.raises(InvalidOption):
                await stream.add("e", payload)  # type: ignore[arg-type]
        edge = stream._session.settings.payload_bytes_max
        with pytest.raises(PayloadTooLarge):
            await stream.add("e", b"x" * (edge + 1))
        with pytest.raises(PayloadTooLarge):
            await stream.add("e" * (EVENT_BYTES_MAX + 1), b"")
        with pytest.raises(PayloadTooLarge):
            await stream.add("e", b"", topic="t" * (TOPIC_BYTES_MAX + 1))
        assert bench.keys() == []
        assert await stream.add("e" * EVENT_BYTES_MAX, b"x" * edge, topic="t" * TOPIC_BYTES_MAX)


async def test_arguments_out_of_bounds_are_refused(bench: Bench) -> None:
    for name in ("", "a\nb", "x" * 129, "\ud800", 3):
        with pytest.raises(ConfigError):
            async with bench.stream(name):  # type: ignore[arg-type]
                pass
    for options in (
        {"length_max": 0},
        {"length_max": 1.5},
        {"ttl_s": 0},
        {"ttl_s": float("nan")},
        {"is_sliding": True},
    ):
        with pytest.raises(InvalidOption):
            async with bench.stream(**options):
                pass
    async with bench.stream() as stream:
        for start in ("new", "1-", "-1", True, -1, 1.5, datetime(2020, 1, 1)):  # noqa: DTZ001
            with pytest.raises(InvalidOption):
                stream.reader(start)  # type: ignore[arg-type]
        wrong: list[dict[str, Any]] = [{"topics": "abc"}, {"topics": [1]}, {"pattern": 1}]
        for given in (*wrong, {"where": 1}, {"buffer_max": 0}, {"buffer_max": 100_001}):
            with pytest.raises(InvalidOption):
                stream.reader(**given)
            with pytest.raises(InvalidOption):
                stream.sink("s", **given)
        wrong = [{"grace_s": 0.09}, {"deliveries_max": 0}, {"deliveries_max": 1.5}]
        for given in wrong:
            with pytest.raises(InvalidOption):
                stream.sink("s", **given)
        with pytest.raises(ConfigError):
            stream.sink("a\nb")
        with pytest.raises(InvalidOption):
            await stream.remove("no id")


async def test_a_stream_is_added_to_only_if_it_exists_when_that_is_asked(bench: Bench) -> None:
    async with bench.stream() as stream:
        assert await stream.add("e", b"", only_if_exists=True) is None
        assert bench.keys() == []
        [first] = await bench.add(stream, 1)
        await stream.remove(first)  # an empty stream exists
        assert await stream.add("e", b"", only_if_exists=True) is not None
        assert await stream.destroy()
        assert await stream.add("e", b"", only_if_exists=True) is None


async def test_events_are_removed_and_streams_destroyed(bench: Bench) -> None:
    async with bench.stream() as stream:
        ids = await bench.add(stream, 0, 1, 2)
        assert await stream.remove(ids[1], ids[1], "1-1") == 1
        assert await stream.remove() == 0
        assert await stream.fetch_length() == 2
        async with stream.reader() as reader:
            assert await bench.take_numbers(reader, 2) == [0, 2]
        assert await stream.destroy()
        assert not await stream.destroy()
        left = bench.control.stream_meta("orders")  # for who asks why it is not there
        assert (await stream.fetch_length(), bench.keys()) == (0, [left])
        assert 0 < bench.client.pttl(left) <= 600_000


async def test_a_length_cap_keeps_the_newest_and_is_never_a_default(bench: Bench) -> None:
    async with bench.stream() as stream, bench.stream(length_max=10) as capped:
        await bench.add(stream, *range(40))
        assert await stream.fetch_length() == 40
        await bench.add(capped, 40)
        assert await stream.fetch_length() == 25  # a cap that was lowered takes 16 at a time
        await bench.add(capped, 41, 42)
        assert await stream.fetch_length() == 10
        for n in range(43, 60):
            await bench.add(capped, n)
            assert await stream.fetch_length() == 10
        async with stream.reader() as reader:
            assert await bench.take_numbers(reader, 10) == [*range(50, 60)]


@pytest.mark.parametrize("is_sliding", [False, True])
async def test_a_ttl_ends_the_whole_stream(bench: Bench, *, is_sliding: bool) -> None:
    """Counted from when it was made, or from its last event; what says so goes soon after it."""
    async with bench.stream(ttl_s=60.0, is_sliding=is_sliding) as stream:
        await bench.add(stream, 1)
        keys = bench.keys()
        assert len(keys) == 2
        for key in keys:
            bench.client.pexpire(key, 30_000)
        await bench.add(stream, 2)
        left_ms = [bench.client.pttl(key) for key in keys]
        assert all((ms > 30_000) == is_sliding for ms in left_ms), left_ms
    async with bench.stream("short", ttl_s=0.05, is_sliding=is_sliding) as short:
        await bench.add(short, 1)
        await bench.until(lambda: len(bench.keys()) == 3)
        assert 0 < bench.client.pttl(bench.control.stream_meta("short")) <= 600_000


async def test_an_end_at_a_time_ends_the_whole_stream(bench: Bench) -> None:
    """However often it is added to; behind it nothing is added, and nobody is told of a loss."""
    ends_ms = 1000 * (bench.client.time()[0] + 3600)
    at = datetime.fromtimestamp(ends_ms / 1000, UTC)
    async with (
        bench.stream(ends_at=at) as stream,
        stream.reader() as reader,
        stream.sink("billing") as sink,
    ):
        await bench.add(stream, 1, 2)
        assert bench.client.pexpiretime(bench.key) == ends_ms
        assert await bench.take_numbers(reader, 2) == [1, 2]
        late = stream.sibling("orders", ends_at=bench.client.time()[0] * 1000)
        assert await late.add("counted", "3") is None
        assert await stream.fetch_length() == 2
        now_ms = 1000 * bench.client.time()[0]
        bench.client.pexpireat(stream._stored.meta, now_ms + 600_000)
        bench.client.delete(bench.key)  # as its time is up
        await bench.seen(StreamEnded)
        assert (await bench.seen(SinkBeganAnew)).sink == "billing"
        assert not bench.all_seen(SinkRemade)
        assert not bench.all_seen(StreamRestarted)
        await bench.add(stream, 4)
        assert 4 in await bench.take_numbers(sink, 3)
        assert await bench.take_numbers(reader, 1) == [4]


def has_cursor(bench: Bench, sink: str) -> bool:
    return bench.state(sink).get(b"cursor", b"0-0") != b"0-0"


@pytest.mark.parametrize("how", ["destroyed", "another sink"])
async def test_a_planned_end_is_told_as_one(bench: Bench, how: str) -> None:
    """G9: nothing of it is an error, whoever makes the stream again."""
    async with bench.stream() as stream, AsyncExitStack() as stack:
        names = ["billing", "mail"] if how == "another sink" else ["billing"]
        sinks = [await stack.enter_async_context(stream.sink(name)) for name in names]
        await bench.add(stream, 1)
        for sink in sinks:
            await sink.ack(*await bench.take(sink, 1))
        for name in names:
            await bench.until(partial(has_cursor, bench, name))
        await stream.destroy()
        await bench.add(stream, 2)
        await bench.seen(SinkBeganAnew, len(sinks))
        for sink in sinks:
            assert await bench.take_numbers(sink, 1) == [2]
        assert not bench.all_seen(SinkRemade)


# --- once ---------------------------------------------------------------------------------------


async def test_an_event_with_an_id_of_its_callers_is_added_once(bench: Bench) -> None:
    async with bench.stream() as stream, bench.stream() as elsewhere:
        first = await stream.add("paid", "1", once_id="invoice-1")
        assert await elsewhere.add("paid", "1", once_id="invoice-1") == first
        assert await stream.add("paid", "2", once_id="invoice-2") != first
        assert await stream.add("paid", "1", once_id="invoice-1", only_if_exists=True) == first
        assert await stream.fetch_length() == 2
        for bad in ("", "x" * 257, 7):
            with pytest.raises(PoolError):
                await stream.add("paid", "1", once_id=bad)  # type: ignore[arg-type]
        async with stream.reader() as reader:
            assert await bench.take_numbers(reader, 2) == [1, 2]


async def test_a_try_whose_answer_was_lost_is_no_second_event(bench: Bench) -> None:
    """It is tried again by itself, and by whoever calls again."""
    async with fault_proxy(bench.url) as proxy, bench.stream(url=proxy.url) as stream:
        await bench.add(stream, 1)
        proxy.drop_replies = True
        with pytest.raises(StoreUnavailable):
            await stream.add("counted", "2", once_id="second")
        await proxy.heal()
        again = await stream.add("counted", "2", once_id="second")
        async with stream.reader() as reader:
            events = await bench.take(reader, 2)
        assert [event.id for event in events][1] == again
        assert await stream.fetch_length() == 2


@pytest.mark.parametrize("asked_s", [(1, 600), (600, 1), (600, 600)])
async def test_an_id_is_remembered_for_the_longest_time_that_anybody_asked_for(
    bench: Bench, asked_s: tuple[float, float]
) -> None:
    meta = bench.control.stream_meta("orders")
    async with bench.stream() as stream:
        first = await stream.add("paid", "1", once_id="x", once_for_s=asked_s[0])
        for passed_s in (0, 50, 50):
            bench.client.hincrby(meta, "seen", -1_000 * passed_s)
            assert await stream.add("paid", "2", once_id="x", once_for_s=asked_s[1]) == first
        for n in range(10):
            bench.client.hincrby(meta, "seen", -50_000)
            await stream.add("paid", "3", once_id=f"another-{n}", once_for_s=1)
        assert await stream.add("paid", "1", once_id="x", once_for_s=1) == first
        for n in range(5):
            bench.client.hincrby(meta, "seen", -50_000)
            await stream.add("paid", "3", once_id=f"later-{n}", once_for_s=1)
        assert await stream.add("paid", "1", once_id="x", once_for_s=1) != first


async def test_a_stream_made_anew_remembers_nothing_of_the_last_one(bench: Bench) -> None:
    async with bench.stream() as stream:
        await stream.add("paid", "1", once_id="x")
        bench.client.delete(bench.key)
        await bench.add(stream, 0)
        second = await stream.add("paid", "1", once_id="x")
        assert await stream.add("paid", "1", once_id="x") == second
        assert bench.client.xlen(bench.key) == 2
        await stream.destroy()
        # Not by its id: what is made anew within a millisecond may have the same.
        assert await stream.add("paid", "1", once_id="x")
        assert bench.client.xlen(bench.key) == 1


# --- all of it ----------------------------------------------------------------------------------


async def test_a_snapshot_is_all_events_at_one_position(bench: Bench) -> None:
    """In pages; what is added meanwhile is not in it, and a reader goes on there."""
    async with bench.stream() as stream:
        assert [each async for each in await stream.snapshot()] == []
        ids = await bench.add(stream, *range(200))
        snapshot = await stream.snapshot()
        assert snapshot.position == ids[-1]
        events = [await anext(snapshot) for _ in range(20)]
        await bench.add(stream, 200)
        await stream.remove(ids[150])  # by hand: no loss
        events += [each async for each in snapshot]
        assert bench.numbers(events) == [n for n in range(200) if n != 150]
        assert {event.after for event in events} == {""}
        async with stream.reader(snapshot.position) as reader:
            assert await bench.take_numbers(reader, 1) == [200]
        assert [e.id async for e in await stream.snapshot(ids[198])][:1] == ids[199:]
        assert not bench.all_seen(StreamMissed)


async def test_a_snapshot_holds_a_page_and_no_more(bench: Bench) -> None:
    async with bench.stream() as stream:
        for n in range(60):
            await stream.add("counted", str(n).ljust(100_000))
        snapshot, held, got = await stream.snapshot(), [0], []
        async for event in snapshot:
            got.append(int(event.payload))
            held.append(len(snapshot._page))
        assert got == [*range(60)]
        assert max(held[20:]) <= READ_BYTES_MAX // 100_000


async def test_what_a_cap_takes_from_a_snapshot_is_told(bench: Bench) -> None:
    async with bench.stream() as stream, bench.stream(length_max=10) as capped:
        await bench.add(stream, *range(100))
        snapshot = await stream.snapshot()
        assert int((await anext(snapshot)).payload) == 0
        for n in range(100, 107):
            await bench.add(capped, n)
        events = [each async for each in snapshot]
        assert (events[-1].payload, snapshot.position) == (b"99", events[-1].id)
        [at] = [n for n, event in enumerate(events) if event.after == "missed"]
        assert int(events[at].payload) - int(events[at - 1].payload) > 1
        missed = int(events[at].payload) - int(events[at - 1].payload) - 1
        assert [(e.stream, e.events) for e in bench.all_seen(StreamMissed)] == [("orders", missed)]


async def test_what_a_cap_takes_of_all_that_is_left_of_a_snapshot_is_told(bench: Bench) -> None:
    async with bench.stream() as stream, bench.stream(length_max=1) as capped:
        await bench.add(stream, *range(100))
        snapshot = await stream.snapshot()
        assert int((await anext(snapshot)).payload) == 0
        await bench.add(capped, *range(100, 110))
        read = 1 + len([each async for each in snapshot])
        assert [event.events for event in bench.all_seen(StreamMissed)] == [100 - read]


@pytest.mark.parametrize("added", [0, 1, 250])
@pytest.mark.parametrize("harm", ["deleted", "destroyed", "went back"])
async def test_a_snapshot_of_a_stream_that_was_lost_says_so(
    bench: Bench, harm: str, added: int
) -> None:
    """Also where it has begun anew, or went back and has grown since: never as if it were whole."""
    keys = (bench.key, bench.control.stream_meta("orders"))
    async with bench.stream() as stream:
        await bench.add(stream, *range(10))
        copies = [bench.client.dump(key) for key in keys]
        await bench.add(stream, *range(10, 200))
        snapshot = await stream.snapshot()
        await anext(snapshot)
        if harm == "destroyed":
            await stream.destroy()
        else:
            bench.client.delete(*keys[: 1 if harm == "deleted" else 2])
        if harm == "went back":
            for key, copy in zip(keys, copies, strict=True):
                bench.client.restore(key, 0, copy)
        await bench.add(stream, *range(1_000, 1_000 + added))
        with pytest.raises(StoreLost):
            _ = [each async for each in snapshot]


async def test_a_snapshot_of_a_stream_that_was_made_by_hand_says_so_too(bench: Bench) -> None:
    """Its events have no numbers, and its life no name: what is made by our scripts has both."""
    async with bench.stream() as stream:
        for n in range(200):
            bench.client.xadd(bench.key, {"e": "counted", "p": n})
        snapshot = await stream.snapshot()
        await anext(snapshot)
        bench.client.delete(bench.key)
        await bench.add(stream, *range(201))
        with pytest.raises(StoreLost):
            _ = [each async for each in snapshot]


async def test_a_snapshot_from_the_newest_event_on_is_empty(bench: Bench) -> None:
    async with bench.stream() as stream:
        ids = await bench.add(stream, 0, 1)
        snapshot = await stream.snapshot("newest")
        await bench.add(stream, 2)
        assert [each async for each in snapshot] == []
        assert snapshot.position == ids[-1]
        async with stream.reader(snapshot.position) as reader:
            assert await bench.take_numbers(reader, 1) == [2]


async def test_foreign_data_is_told_and_left_alone(bench: Bench) -> None:
    bench.client.set(bench.key, "of another type")
    async with bench.stream() as stream:
        for call in (stream.add("e", b""), stream.fetch_length(), stream.remove("1-1")):
            with pytest.raises(StoreFault) as raised:
                await call
            assert bench.key in raised.value.problem
            assert "TYPE, and rename or delete" in raised.value.problem
    assert bench.client.get(bench.key) == b"of another type"


async def test_after_an_unknown_outcome_a_repeat_may_add_twice(bench: Bench) -> None:
    """At least once by the caller's own repeat, and the error says so."""
    async with fault_proxy(bench.url) as proxy, bench.stream(url=proxy.url) as stream:
        await bench.add(stream, 1)
        proxy.drop_replies = True
        with pytest.raises(StoreUnavailable) as unknown:
            await stream.add("counted", "2")
        assert unknown.value.maybe_done
        await proxy.heal()
        await bench.add(stream, 2)
        async with stream.reader() as reader:
            assert await bench.take_numbers(reader, 3) == [1, 2, 2]


async def test_a_full_server_refuses_events_and_writes_nothing(
    bench: Bench, own_server: EmbeddedServer
) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        async with bench.stream(url=own_server.url) as stream:
            await bench.add(stream, 1)
            client.config_set("maxmemory", 1)
            before = client.xrange(bench.key)
            with pytest.raises(StorageFull):
                await bench.add(stream, 2)
            assert client.xrange(bench.key) == before
            client.config_set("maxmemory", 0)
            await bench.add(stream, 2)


async def test_a_node_has_streams_on_its_own_connection(bench: Bench) -> None:
    node = Node(bench.pool, bench.url, settings=bench.settings, observers=())
    with pytest.raises(NotRunning):
        node.stream("orders")
    async with node, bench.stream() as same:
        clients = len(bench.client.client_list())
        stream = node.stream("orders", length_max=5)
        await bench.add(stream, *range(7))
        # One that was made anew meanwhile may be there twice, for a moment.
        await bench.until(lambda: len(bench.client.client_list()) <= clients)
        async with same.reader() as reader, stream.sink("billing") as sink:
            assert await bench.take_numbers(reader, 5) == [2, 3, 4, 5, 6]
            assert await bench.take_numbers(sink, 5) == [2, 3, 4, 5, 6]
    with pytest.raises(NotRunning):
        await stream.add("e", b"")


async def test_a_stream_on_a_server_of_its_own(bench: Bench) -> None:
    async with Stream.open("embedded://", "orders", observers=()) as stream:
        await bench.add(stream, 1)
        other = stream.sibling("other", length_max=1)
        await bench.add(other, 2, 3)
        async with stream.reader() as reader:
            await reader.add_stream(other)
            assert sorted(await bench.take_numbers(reader, 2)) == [1, 3]


async def test_a_closed_stream_refuses(bench: Bench) -> None:
    async with bench.stream() as stream:
        reader, sink = stream.reader(), stream.sink("billing")
        for unopened in (reader, sink):
            with pytest.raises(NotRunning):
                await anext(unopened)
    with pytest.raises(NotRunning):
        await stream.add("e", b"")
    for unopened in (reader, sink):
        with pytest.raises(NotRunning):
            async with unopened:
                pass


async def test_an_event_knows_when_it_was_added(bench: Bench) -> None:
    async with bench.stream() as stream:
        before_s, _ = bench.client.time()
        await bench.add(stream, 1)
        async with stream.reader() as reader:
            [event] = await bench.take(reader, 1)
        assert 0 <= event.time_ms // 1000 - before_s <= 5
        assert datetime.fromtimestamp(event.time_ms / 1000, UTC).tzinfo is UTC


async def test_leaving_while_others_wait_ends_their_iteration(bench: Bench) -> None:
    async with bench.stream() as stream:
        for source in (stream.reader(), stream.sink("billing")):
            ended = anyio.Event()

            async def iterate(source: Any, ended: anyio.Event) -> None:
                async for _ in source:
                    raise AssertionError
                ended.set()

            async with anyio.create_task_group() as tasks:
                async with source:
                    tasks.start_soon(iterate, source, ended)
                    await anyio.wait_all_tasks_blocked()
                with anyio.fail_after(30):
                    await ended.wait()
            await source.aclose()
