"""Readers: each event once, in order; whatever was missed is told."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest
import redis

from pool import Settings
from pool.core.ids import order
from pool.errors import InvalidOption, NotRunning
from pool.events import (
    SinkRemade,
    StreamEnded,
    StreamMissed,
    StreamRestarted,
    StreamsReachable,
    StreamsUnreachable,
    StreamTroubled,
)
from pool.redis.embedded.server import EmbeddedServer
from pool.streams import Reader, Sink, StreamEvent
from pool.streams.reader import _has_hole
from pool.testing.proxy import fault_proxy
from tests.streams.conftest import PATIENCE_S

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

pytestmark = pytest.mark.anyio

SELDOM = Settings(lease_ttl_s=600.0, op_timeout_s=1.0)  # probes every two minutes


@pytest.fixture(autouse=True)
def _probes_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the TTL alone: else there is one every 10 s, sooner than anybody gives up."""
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 600.0)


# --- its ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reader", "sink"])
async def test_who_waits_hears_that_the_connection_was_closed(bench: Bench, kind: str) -> None:
    """Whoever iterates, and whoever comes later, also where something is buffered; closing it
    afterwards is fine."""
    told: list[NotRunning] = []

    async def wait(source: Reader | Sink) -> None:
        with pytest.raises(NotRunning) as caught:
            await anext(source)
        told.append(caught.value)

    with anyio.fail_after(PATIENCE_S):
        async with AsyncExitStack() as outside, anyio.create_task_group() as waiting:
            async with bench.stream() as stream:
                sources = [
                    stream.reader() if kind == "reader" else stream.sink("billing")
                    for stream in (stream, stream.sibling("full"))
                ]
                for source in sources:
                    await outside.enter_async_context(source)
                await bench.add(stream.sibling("full"), 1, 2)
                await bench.until(lambda: len(sources[1]._buffer) == 2)
                waiting.start_soon(wait, sources[0])
                await anyio.wait_all_tasks_blocked()
            waiting.start_soon(wait, sources[0])
            waiting.start_soon(wait, sources[1])
    assert [error.state for error in told] == ["closed"] * 3


async def test_what_was_never_entered_can_be_closed(bench: Bench) -> None:
    async with bench.stream() as stream:
        for source in (stream.reader(), stream.sink("billing")):
            await source.aclose()
            await source.aclose()
            with pytest.raises(NotRunning):
                await source.__aenter__()


@pytest.mark.parametrize("kind", ["reader", "sink"])
async def test_another_stream_is_no_trouble(bench: Bench, kind: str) -> None:
    """Following other streams ends a read of ours, which is nothing that the server has done."""
    async with bench.stream() as stream:
        others = [stream.sibling(f"other{n}") for n in range(8)]
        for other in others:
            await bench.add(other, *range(20))
        source = stream.reader(buffer_max=20) if kind == "reader" else stream.sink("billing")

        async def drain() -> None:
            async for event in source:
                if isinstance(source, Sink):
                    await source.ack(event)

        async with source, anyio.create_task_group() as draining:
            draining.start_soon(drain)
            for _ in range(8):
                for other in others:
                    await source.add_stream(other)
                for other in others:
                    removed = source.remove_stream(other)
                    if removed is not None:
                        await removed
            draining.cancel_scope.cancel()
    assert not bench.all_seen(StreamsUnreachable)
    assert not bench.all_seen(StreamsReachable)


@pytest.mark.parametrize("kind", ["reader", "sink"])
async def test_a_stream_of_another_server_or_pool_is_refused(bench: Bench, kind: str) -> None:
    elsewhere = attrs.evolve(bench, pool=f"{bench.pool}-2")
    async with (
        bench.stream() as stream,
        bench.stream("of-our-own") as same,
        elsewhere.stream("of-another-pool") as foreign,
        fault_proxy(bench.url) as other_server,
        bench.stream("of-another-server", url=other_server.url) as distant,
        stream.reader() if kind == "reader" else stream.sink("billing") as source,
    ):
        for bad in (foreign, distant):
            with pytest.raises(InvalidOption, match="of another pool or server"):
                await source.add_stream(bad)
        await bench.add(same, 1)
        await source.add_stream(same)
        assert await bench.take_numbers(source, 1) == [1]


# --- where it begins ----------------------------------------------------------------------------


async def test_a_reader_begins_where_it_was_told(bench: Bench) -> None:
    async with bench.stream() as stream:
        ids = await bench.add(stream, 0, 1)
        bench.put(2, "99999999999998-5")
        bench.put(3, "99999999999999-0")
        later = 99999999999998
        for start, expected in (
            ("oldest", [0, 1, 2, 3]),
            (ids[0], [1, 2, 3]),
            (later, [2, 3]),
            (later + 1, [3]),
            (datetime.fromtimestamp(later / 1000, UTC), [2, 3]),
            (0, [0, 1, 2, 3]),
            ("newest", []),
        ):
            async with stream.reader(start) as reader:
                assert await bench.take_numbers(reader, len(expected)) == expected
                await bench.add(stream, 9)
                assert await bench.take_numbers(reader, 1) == [9]
                [last] = bench.client.xrevrange(bench.key, count=1)
                await stream.remove(last[0].decode())
        assert bench.events == []


async def test_newest_is_decided_once(bench: Bench) -> None:
    """What is added while the connection is down is not passed over."""
    async with (
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        bench.stream() as writer,
    ):
        await bench.add(writer, 0)
        async with stream.reader("newest") as reader:
            await proxy.refuse()
            await bench.add(writer, 1)
            await proxy.listen()
            assert await bench.take_numbers(reader, 1) == [1]


async def test_a_program_goes_on_where_it_was(bench: Bench) -> None:
    """The position is that of the last event given; what lies in the buffer was not."""
    async with bench.stream() as stream:
        ids = await bench.add(stream, *range(10))
        position = "oldest"
        read: list[int] = []
        for _ in range(5):
            async with stream.reader(position) as reader:
                read += await bench.take_numbers(reader, 2)
                position = reader.position(stream)
                assert position == ids[len(read) - 1]
        assert read == [*range(10)]
        assert bench.events == []


# --- what it takes ------------------------------------------------------------------------------


async def test_topics_patterns_and_functions_choose_events(bench: Bench) -> None:
    async with bench.stream() as stream:
        topics = ["eu.books", "eu.toys", "us.books", "EU.books", None, "a.b"]
        for n, topic in enumerate(topics):
            await bench.add(stream, n, topic=topic)
        cases: list[tuple[dict[str, Any], list[int]]] = [
            ({}, [0, 1, 2, 3, 4, 5]),
            ({"topics": {"eu.books", "us.books"}}, [0, 2]),
            ({"topics": []}, []),
            ({"pattern": "eu.*"}, [0, 1]),
            ({"pattern": "?.?"}, [5]),
            ({"pattern": "[u][su].books"}, [2]),
            ({"pattern": "*"}, [0, 1, 2, 3, 5]),
            ({"where": lambda event: int(event.payload) % 2}, [1, 3, 5]),
            ({"pattern": "*.books", "topics": ["eu.books", "eu.toys"]}, [0]),
            ({"pattern": "eu.*", "where": lambda event: event.topic != "eu.books"}, [1]),
        ]
        for options, expected in cases:
            async with stream.reader(**options) as reader:
                assert await bench.take_numbers(reader, len(expected)) == expected, options
                [last] = await bench.add(stream, 6, topic="a.b")
                if not expected:
                    await bench.until(lambda: reader._tailer.readings[bench.key].position == last)  # noqa: B023
                await stream.remove(last)


async def test_a_position_moves_over_what_is_not_wanted(bench: Bench) -> None:
    async with bench.stream() as stream:
        await bench.add(stream, 0, topic="wanted")
        *_, last = await bench.add(stream, *range(1, 50), topic="other")
        async with (
            stream.reader(topics=["wanted"]) as reader,
            anyio.create_task_group() as tasks,
        ):
            assert await bench.take_numbers(reader, 1) == [0]
            tasks.start_soon(anext, reader)
            await bench.until(lambda: reader.position(stream) == last)
            await bench.add(stream, 50, topic="wanted")


async def test_a_function_that_raises_passes_one_event_over(bench: Bench) -> None:
    """What it raises comes out of the iteration, and iterating again goes on."""

    def choose(event: StreamEvent) -> bool:
        if event.payload == b"1":
            raise KeyError(event.id)
        return True

    async with bench.stream() as stream:
        ids = await bench.add(stream, 0, 1, 2)
        async with stream.reader(where=choose) as reader:
            assert await bench.take_numbers(reader, 1) == [0]
            with pytest.raises(KeyError, match=ids[1]):
                await anext(reader)
            assert reader.position(stream) == ids[1]
            assert await bench.take_numbers(reader, 1) == [2]


# --- several streams ----------------------------------------------------------------------------


async def test_streams_are_added_and_removed_while_it_reads(bench: Bench) -> None:
    async with bench.stream() as first:
        second, third = first.sibling("second"), first.sibling("third")
        await bench.add(second, *range(100, 103))
        async with first.reader() as reader:
            await bench.add(first, 0)
            assert await bench.take_numbers(reader, 1) == [0]
            await reader.add_stream(second)
            await reader.add_stream(third, "newest")
            assert await bench.take_numbers(reader, 3) == [100, 101, 102]
            await bench.add(third, 200)
            assert await bench.take_numbers(reader, 1) == [200]
            with pytest.raises(InvalidOption):
                await reader.add_stream(second)
            await bench.add(second, 103)
            await bench.until(lambda: len(reader._buffer) == 1)
            reader.remove_stream(second)
            reader.remove_stream(second)
            with pytest.raises(InvalidOption):
                reader.position(second)
            await bench.add(second, 104)
            await bench.add(first, 1)
            assert await bench.take_numbers(reader, 1) == [1]
            await reader.add_stream(second, "newest")
            await bench.add(second, 105)
            assert await bench.take_numbers(reader, 1) == [105]


async def test_a_reader_of_nothing_waits(bench: Bench) -> None:
    async with bench.stream() as stream, stream.reader() as reader:
        reader.remove_stream(stream)
        with anyio.move_on_after(0.05) as scope:
            await anext(reader)
        assert scope.cancelled_caught
        await reader.add_stream(stream)
        await bench.add(stream, 1)
        assert await bench.take_numbers(reader, 1) == [1]


@pytest.mark.parametrize("buffer_max", [1, 2, 7, 100])
async def test_a_slow_program_costs_no_memory_and_loses_nothing(
    bench: Bench, buffer_max: int
) -> None:
    """Back-pressure: what is not read waits in Redis."""
    async with bench.stream() as stream:
        await bench.add(stream, *range(300))
        async with stream.reader(buffer_max=buffer_max) as reader:
            seen = []
            for n in range(300):
                [event] = await bench.take(reader, 1)
                seen.append(int(event.payload))
                assert len(reader._buffer) <= buffer_max
                if n % 20 == 0:
                    await anyio.wait_all_tasks_blocked()
                    assert len(reader._buffer) <= buffer_max
            assert seen == [*range(300)]


async def test_two_tasks_may_share_a_reader(bench: Bench) -> None:
    async with bench.stream() as stream, stream.reader() as reader:
        got: list[int] = []

        async def iterate() -> None:
            async for event in reader:
                got.append(int(event.payload))
                if len(got) == 100:
                    tasks.cancel_scope.cancel()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(iterate)
                tasks.start_soon(iterate)
                await anyio.wait_all_tasks_blocked()
                await bench.add(stream, *range(100))
        assert got == [*range(100)]


# --- faults of the network ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "cut mid-reply", "slices", "half-open", "deaf", "mute"])
async def test_no_gap_and_no_repeat_whatever_the_network_does(bench: Bench, fault: str) -> None:
    async with (
        bench.stream() as writer,
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        stream.reader(buffer_max=50) as reader,
    ):
        read: list[int] = []
        for start in range(0, 200, 20):
            match fault:
                case "cut":
                    await proxy.cut()
                case "cut mid-reply":
                    proxy.cut_after_bytes = 137
                case "slices":
                    proxy.slice_bytes = 1
                case "half-open":
                    proxy.go_silent()
                case "deaf":
                    proxy.drop_requests = True
                case "mute":
                    proxy.drop_replies = True
            await bench.add(writer, *range(start, start + 20))
            if fault in ("half-open", "deaf", "mute"):
                if start % 40:
                    continue
                await bench.seen(StreamsUnreachable, len(bench.all_seen(StreamsUnreachable)) + 1)
                await proxy.heal()
                proxy.drop_requests = proxy.drop_replies = False
            read += await bench.take_numbers(reader, start + 20 - len(read))
        await proxy.heal()
        await bench.add(writer, 200)
        read += await bench.take_numbers(reader, 201 - len(read))
        assert read == [*range(201)]
        assert not bench.all_seen(StreamRestarted)
        assert not bench.all_seen(StreamMissed)


async def test_a_lost_server_is_told_once_and_its_return_too(bench: Bench) -> None:
    async with (
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        stream.reader() as reader,
    ):
        await bench.add(stream, 0)
        assert await bench.take_numbers(reader, 1) == [0]
        await proxy.refuse()
        await bench.seen(StreamsUnreachable)
        await proxy.listen()
        await bench.seen(StreamsReachable)
        assert len(bench.all_seen(StreamsUnreachable)) == 1


# --- histories that are not ours any more -------------------------------------------------------


async def test_a_length_cap_that_overtakes_a_reader_is_told(bench: Bench) -> None:
    """Never silently: the event says how many, and the next one in line that there was a gap."""
    async with bench.stream(length_max=10) as stream:
        await bench.add(stream, *range(5))
        async with stream.reader(buffer_max=4) as reader:
            assert await bench.take_numbers(reader, 1) == [0]
            await bench.until(lambda: len(reader._buffer) >= 3)
            await bench.add(stream, *range(5, 60))
            events = [await anext(reader)]
            while int(events[-1].payload) < 59:
                events.append(await anext(reader))
            [missed] = bench.all_seen(StreamMissed)
            first = next(event for event in events if event.after)
            assert (int(first.payload), first.after) == (50, "missed")
            assert missed.events == 50 - int(events[events.index(first) - 1].payload) - 1
            assert [event.after for event in events].count("missed") == 1


async def test_a_cap_that_overtook_a_stored_position_is_told(bench: Bench) -> None:
    async with bench.stream(length_max=10) as stream:
        first, *_ = await bench.add(stream, *range(10))
        async with stream.reader(first) as reader:
            assert await bench.take_numbers(reader, 1) == [1]
        await bench.add(stream, 10)  # takes `first` itself: nothing behind it is lost
        async with stream.reader(first) as reader:
            [event] = await bench.take(reader, 1)
        assert (event.payload, event.after, bench.events) == (b"1", "", [])
        await bench.add(stream, *range(11, 25))
        async with stream.reader(first) as reader:
            [event] = await bench.take(reader, 1)
        assert (event.payload, event.after) == (b"15", "missed")
        [missed] = bench.all_seen(StreamMissed)
        assert (missed.events, missed.behind) == (0, first)


@pytest.mark.parametrize("loss", ["flushed", "deleted", "destroyed", "expired"])
async def test_a_stream_that_begins_again_is_read_from_its_beginning(
    bench: Bench, loss: str
) -> None:
    """Not silence for ever, even if its new ids lie behind our position."""
    async with bench.stream() as stream, stream.reader() as reader:
        bench.put(0, "99999999999999-7")
        assert await bench.take_numbers(reader, 1) == [0]
        match loss:
            case "flushed":
                bench.client.delete(*bench.keys())
            case "deleted":
                bench.client.delete(bench.key)
            case "destroyed":
                await stream.destroy()
            case "expired":
                bench.client.pexpire(bench.key, 1)
        kind = StreamEnded if loss == "destroyed" else StreamRestarted
        await bench.seen(kind)
        ids = await bench.add(stream, 1, 2)
        events = await bench.take(reader, 2)
        assert [event.id for event in events] == ids
        assert [event.after for event in events] == ["restarted", ""]
        assert reader.position(stream) == ids[1]
        told = [*bench.all_seen(StreamRestarted), *bench.all_seen(StreamEnded)]
        assert [type(each) for each in told] == [kind]


async def test_a_stream_made_again_before_anyone_looked_is_read_whole_and_once(
    bench: Bench,
) -> None:
    """Its ids go on behind our position; the numbers begin again, so nothing was missed."""
    async with bench.stream() as stream, stream.reader() as reader:
        await bench.add(stream, *range(5))
        assert await bench.take_numbers(reader, 5) == [*range(5)]
        with bench.client.pipeline(transaction=True) as pipe:
            pipe.delete(*bench.keys())
            pipe.xadd(bench.key, {"n": 1, "e": "counted", "p": 10})
            pipe.xadd(bench.key, {"n": 2, "e": "counted", "p": 11})
            pipe.hset(bench.control.stream_meta("orders"), "n", 2)
            pipe.execute()
        events = await bench.take(reader, 2)
        assert [(event.payload, event.after) for event in events] == [
            (b"10", "restarted"),
            (b"11", ""),
        ]
        # A probe finds nothing that would have to be read again.
        await bench.until(lambda: reader._tailer.readings[bench.key].added == 2)
        await bench.add(stream, 12)
        [event] = await bench.take(reader, 1)
        assert event.payload == b"12"
        assert len(bench.all_seen(StreamRestarted)) == 1


async def test_a_new_stream_of_which_the_beginning_was_missed_is_read_again(bench: Bench) -> None:
    """The server's clock went back and forth: only the numbers show it."""
    async with bench.stream() as stream, stream.reader() as reader:
        await bench.add(stream, *range(5))
        assert await bench.take_numbers(reader, 5) == [*range(5)]
        with bench.client.pipeline(transaction=True) as pipe:
            pipe.delete(*bench.keys())
            pipe.xadd(bench.key, {"n": 1, "e": "counted", "p": 10}, id="5-1")
            pipe.xadd(bench.key, {"n": 2, "e": "counted", "p": 11})
            pipe.hset(bench.control.stream_meta("orders"), "n", 2)
            pipe.execute()
        assert await bench.take_numbers(reader, 1) == [11]
        events = await bench.take(reader, 2)
        assert [(event.payload, event.after) for event in events] == [
            (b"10", "restarted"),
            (b"11", ""),
        ]


@pytest.mark.parametrize("place", ["1004-0", "1003-5"])
async def test_a_stream_that_went_back_and_came_as_far_again_is_read_anew(
    bench: Bench, own_server: EmbeddedServer, place: str
) -> None:
    """With its clock behind it gives the same ids and numbers again, or as many behind ours."""
    url = own_server.url
    meta = bench.control.stream_meta("orders")
    with redis.Redis.from_url(url) as client:
        async with bench.stream(url=url) as stream, stream.reader() as reader:
            for n in range(4):
                bench.put(n, f"100{n}-0", client=client)
            older = client.dump(bench.key)
            bench.put(4, "1004-0", client=client)
            assert await bench.take_numbers(reader, 5) == [*range(5)]
            with client.pipeline(transaction=True) as pipe:
                pipe.restore(bench.key, 0, older, replace=True)
                pipe.hset(meta, "n", 6)
                fields = {"e": "counted", "p": 10, "m": "other"}
                pipe.xadd(bench.key, {"n": 5, **fields}, id=place)
                pipe.xadd(bench.key, {"n": 6, **fields}, id="2000-0")
                pipe.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                pipe.execute()
            events = await bench.take(reader, 6)
    assert bench.numbers(events) == [0, 1, 2, 3, 10, 10]
    assert [event.after for event in events] == ["restarted", *[""] * 5]


async def test_a_position_from_before_a_loss_begins_anew(bench: Bench) -> None:
    async with bench.stream() as stream:
        await bench.add(stream, 1)
        async with stream.reader("99999999999999-0") as reader:
            [event] = await bench.take(reader, 1)
            assert (event.payload, event.after) == (b"1", "restarted")
        async with stream.reader(99999999999999) as reader:  # a time to come is no position
            await bench.add(stream, 2)
            with anyio.move_on_after(0.5) as scope:
                await anext(reader)
            assert scope.cancelled_caught
        assert len(bench.all_seen(StreamRestarted)) == 1


async def test_a_restart_without_data_is_told_and_read_on(
    bench: Bench, own_server: EmbeddedServer
) -> None:
    async with bench.stream(url=own_server.url) as stream, stream.reader() as reader:
        with redis.Redis.from_url(own_server.url) as client:
            bench.put(0, "99999999999999-7", client=client)
            assert await bench.take_numbers(reader, 1) == [0]
            client.flushall()
        own_server.kill()
        own_server.restart()
        await bench.seen(StreamRestarted)
        await bench.seen(StreamsReachable)
        await bench.until(lambda: stream.add("counted", "1"))
        [event] = await bench.take(reader, 1)
        assert (event.payload, event.after) == (b"1", "restarted")


async def test_a_restart_with_data_is_no_news(bench: Bench, own_server: EmbeddedServer) -> None:
    async with bench.stream(url=own_server.url) as stream, stream.reader() as reader:
        await bench.add(stream, 0)
        assert await bench.take_numbers(reader, 1) == [0]
        own_server.kill()
        await bench.seen(StreamsUnreachable)
        own_server.restart()
        await bench.seen(StreamsReachable)
        await bench.add(stream, 1)
        [event] = await bench.take(reader, 1)
        assert (event.payload, event.after) == (b"1", "")
        assert bench.all_seen(StreamRestarted) == []


async def test_a_foreign_key_is_told_and_does_not_spin(bench: Bench) -> None:
    async with bench.stream() as stream, stream.reader() as reader:
        await bench.add(stream, 0)
        assert await bench.take_numbers(reader, 1) == [0]
        bench.client.delete(bench.key)
        bench.client.set(bench.key, "foreign")
        troubled = await bench.seen(StreamTroubled)
        assert (troubled.stream, troubled.key, troubled.found) == ("orders", bench.key, "string")
        calls = int(bench.client.info("stats")["total_error_replies"])
        other = stream.sibling("other")
        await bench.add(other, *range(100))  # round trips, of which a circle would take as many
        assert int(bench.client.info("stats")["total_error_replies"]) - calls < 10
        bench.client.delete(bench.key)
        await bench.add(stream, 1)
        assert await bench.take_numbers(reader, 1) == [1]


@pytest.mark.parametrize("of", ["events", "meta"])
async def test_a_foreign_key_fails_its_own_stream_alone(bench: Bench, of: str) -> None:
    """G8: the others are read on, and the key is named; a stream that is free again is read."""
    async with bench.stream() as stream, stream.reader() as reader:
        other = stream.sibling("other")
        await reader.add_stream(other)
        await bench.add(stream, 0)
        assert await bench.take_numbers(reader, 1) == [0]
        key = getattr(stream._stored, of)
        bench.client.delete(bench.key, stream._stored.meta)
        bench.client.set(key, "foreign")
        troubled = await bench.seen(StreamTroubled)
        assert (troubled.stream, troubled.key, troubled.found) == ("orders", key, "string")
        await bench.add(other, 1)
        assert await bench.take_numbers(reader, 1) == [1]
        reader.position(stream)
        with pytest.raises(InvalidOption):
            await reader.add_stream(stream)
        bench.client.delete(key)
        await bench.add(stream, 2)
        [event] = await bench.take(reader, 1)
        assert (event.payload, event.after) == (b"2", "restarted")
        assert len(bench.all_seen(StreamTroubled)) == 1


async def test_an_event_that_comes_while_its_stream_is_aside_is_read_later(bench: Bench) -> None:
    """A read that was under way brings it, and it is left there."""
    async with bench.stream() as stream, stream.reader() as reader:
        await bench.add(stream, 0)
        assert await bench.take_numbers(reader, 1) == [0]
        bench.client.set(stream._stored.meta, "foreign")
        await bench.seen(StreamTroubled)
        bench.client.delete(stream._stored.meta)
        await bench.add(stream, 1, 2)
        assert await bench.take_numbers(reader, 2) == [1, 2]


async def test_damaged_facts_about_one_stream_do_not_hide_the_others(bench: Bench) -> None:
    async with bench.stream() as stream, stream.reader() as reader:
        await bench.add(stream, 0)
        bench.client.hset(stream._stored.meta, mapping={"trimmed": "?", "n": "many"})
        assert await bench.take_numbers(reader, 1) == [0]
        probed = reader._tailer.readings[bench.key]
        await bench.until(lambda: probed.added == 1)
        await bench.add(stream, 1)
        assert await bench.take_numbers(reader, 1) == [1]


async def test_foreign_entries_do_not_end_the_reading(bench: Bench) -> None:
    async with bench.stream() as stream, stream.reader() as reader:
        bench.client.xadd(bench.key, {b"\xff": b"\xff", "e": b"\xff", "t": b"\xff", "n": b"x"})
        await bench.add(stream, 1)
        foreign, ours = await bench.take(reader, 2)
        assert (foreign.event, foreign.topic, foreign.payload) == ("\\xff", "\\xff", b"")
        assert ours.payload == b"1"


async def test_a_reader_lives_once(bench: Bench) -> None:
    async with bench.stream() as stream:
        reader: Reader = stream.reader()
        async with reader:
            with pytest.raises(NotRunning):
                await reader.__aenter__()
        with pytest.raises(StopAsyncIteration):
            await anext(reader)
        with pytest.raises(NotRunning):
            await reader.add_stream(stream)
        await reader.aclose()


async def test_a_stream_that_a_sink_has_made_anew_is_another_one(bench: Bench) -> None:
    """G7: whoever makes it, its readers are told that what they had not read is gone."""
    async with (
        bench.stream() as stream,
        stream.sink("billing"),
        stream.reader(buffer_max=2) as reader,
    ):
        await bench.add(stream, *range(30))
        assert await bench.take_numbers(reader, 4) == [0, 1, 2, 3]
        bench.client.delete(bench.key)
        await bench.seen(SinkRemade)
        await bench.add(stream, 100, 101)
        events = await bench.take(reader, 2)
        while bench.numbers(events[-1:]) != [101]:  # one that it had read before comes first
            events += await bench.take(reader, 1)
        assert [event.after for event in events if event.payload == b"100"] == ["restarted"]
        assert (await bench.seen(StreamRestarted)).stream == "orders"


@pytest.mark.parametrize(("before", "then"), [(5, 12), (30, 12), (5, 8)])
async def test_what_a_cap_took_of_a_streams_new_life_is_told(
    bench: Bench, before: int, then: int
) -> None:
    """However many events its last life had: it is not that one's numbers that go on.

    Not even where the first that is left of the new one has the number that would come next.
    """
    async with bench.stream() as stream, bench.stream(length_max=5) as capped:
        await bench.add(stream, *range(before))
        async with stream.reader(buffer_max=1) as reader:
            assert await bench.take_numbers(reader, 2) == [0, 1]
            await bench.until(lambda: len(reader._buffer))  # and reads no further
            bench.client.delete(bench.key)
            await bench.add(capped, *range(200, 200 + then))
            assert await bench.take_numbers(reader, 1) == [2]
            events = await bench.take(reader, 5)
            while len(events) < 10 and not any(event.after == "restarted" for event in events[:-4]):
                events += await bench.take(reader, 1)
    again = next(n for n, event in enumerate(events) if event.after == "restarted")
    assert bench.numbers(events[again:]) == [*range(195 + then, 200 + then)]
    assert [event.after for event in events[again + 1 :]] == [""] * 4
    assert [each.events for each in bench.all_seen(StreamMissed)] == [then - 5]
    assert len(bench.all_seen(StreamRestarted)) == 1


@pytest.mark.parametrize("then", [8, 12])
async def test_a_reader_that_was_there_before_its_stream_knows_the_streams_life(
    bench: Bench, then: int
) -> None:
    """What it has read is of the life that ended, not of the one that its next probe finds."""
    async with (
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url, settings=SELDOM) as stream,
        bench.stream(length_max=5) as capped,
        stream.reader(buffer_max=1) as reader,
    ):
        await bench.add(capped, *range(5))
        assert await bench.take_numbers(reader, 2) == [0, 1]
        await bench.until(lambda: len(reader._buffer))  # and reads no further
        bench.client.delete(bench.key)
        await bench.add(capped, *range(200, 200 + then))
        await proxy.cut()  # a probe comes before what is read next
        assert await bench.take_numbers(reader, 1) == [2]
        events = await bench.take(reader, 5)
    assert bench.numbers(events) == [*range(195 + then, 200 + then)]
    assert [event.after for event in events] == ["restarted", *[""] * 4]
    assert [each.events for each in bench.all_seen(StreamMissed)] == [then - 5]
    assert len(bench.all_seen(StreamRestarted)) == 1


async def test_a_life_that_ended_while_its_first_event_was_under_way_is_not_the_next_one(
    bench: Bench,
) -> None:
    """A first event says that the life is a new one, and not which: who asks then, asks late."""
    async with bench.stream(settings=SELDOM) as stream, bench.stream(length_max=5) as capped:
        await bench.add(stream, 0, 1)
        async with stream.reader(buffer_max=1) as reader:
            await bench.until(lambda: len(reader._buffer))
            on_batch, held = reader._tailer.on_batch, list[Any]()
            assert await bench.take_numbers(reader, 1) == [0]
            await bench.until(lambda: len(reader._buffer))  # and reads no further
            reader._tailer.on_batch = held.append
            bench.client.delete(bench.key)
            await bench.add(stream, 100)
            assert await bench.take_numbers(reader, 1) == [1]
            await bench.until(lambda: held)
            bench.client.delete(bench.key)
            await bench.add(capped, *range(200, 206))
            reader._tailer.on_batch = on_batch
            on_batch(held[0])
            events = await bench.take(reader, 5)
    assert bench.numbers(events) == [*range(201, 206)]
    assert [event.after for event in events] == ["restarted", *[""] * 4]
    assert [each.events for each in bench.all_seen(StreamMissed)] == [1]
    assert len(bench.all_seen(StreamRestarted)) == 1


async def test_a_reader_that_waits_for_a_time_to_come_is_not_sent_back(bench: Bench) -> None:
    """What a stream that was not there yet is given before that time is nothing it has read."""
    async with bench.stream() as stream, stream.reader(99999999999999) as reader:
        await bench.add(stream, 0)
        await bench.until(lambda: reader._tailer.readings[bench.key].added == 1)  # as of a probe
        bench.put(1, "99999999999999-0")
        [event] = await bench.take(reader, 1)
    assert (event.payload, event.after) == (b"1", "")
    assert not bench.all_seen(StreamRestarted)


@pytest.mark.parametrize("why", ["made by hand", "not allowed", "never allowed"])
async def test_a_reader_that_is_told_nothing_of_a_streams_life_reads_it(
    bench: Bench, own_server: EmbeddedServer, why: str
) -> None:
    """Nobody has made it by our scripts, or we may not ask: that keeps nobody from reading it."""
    url = own_server.url
    with redis.Redis.from_url(url) as client:
        if why == "never allowed":
            client.execute_command("ACL", "SETUSER", "default", "-xinfo")
        async with bench.stream(url=url) as stream, stream.reader() as reader:
            if why == "not allowed":
                client.execute_command("ACL", "SETUSER", "default", "-xinfo")
            for n in range(3):
                client.xadd(bench.key, {"n": n + 1, "e": "counted", "p": n})
            assert await bench.take_numbers(reader, 3) == [0, 1, 2]
    assert not bench.all_seen(StreamRestarted)


async def test_what_stands_beside_a_stream_to_come_says_nothing_of_its_life(bench: Bench) -> None:
    """A probe finds a foreign value before there is anything to read, which is gone by then."""
    async with bench.stream() as stream, stream.reader() as reader:
        on_probed, found = reader._tailer.on_probed, list[bool | None]()

        def heard(answers: Any) -> None:
            found.extend(facts.exists for _, facts in answers)
            on_probed(answers)

        reader._tailer.on_probed = heard
        bench.client.set(bench.control.stream_meta("orders"), "foreign")
        await bench.until(lambda: None in found)
        bench.client.delete(bench.control.stream_meta("orders"))
        await bench.add(stream, 0, 1, 2)
        assert await bench.take_numbers(reader, 3) == [0, 1, 2]
        await bench.until(lambda: reader._tailer.readings[bench.key].added == 3)  # as of a probe
        found.clear()
        await bench.until(lambda: found)
        assert not len(reader._buffer)
    assert not bench.all_seen(StreamRestarted)


async def test_a_reader_is_closed_by_who_is_cancelled_too(bench: Bench) -> None:
    async with bench.stream() as stream, stream.reader() as reader:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await reader.aclose()
        assert not scope.cancelled_caught
        assert reader._tailer._running_body is not None
        assert reader._tailer._running_body.state != "running"


@pytest.mark.parametrize(
    ("before", "numbers", "has_hole"),
    [(2, [3, 4, 5], False), (2, [3, 5], True), (2, [4], True), (None, [4, 5], False)],
)
def test_numbers_in_a_row_leave_no_hole(
    before: int | None, numbers: list[int], *, has_hole: bool
) -> None:
    """Whether a length cap took something is asked only if there is one: it costs a call."""
    cursor: Any = SimpleNamespace(number=before)
    entries = [(f"{number}-0", {"n": b"%d" % number}) for number in numbers]
    assert _has_hole(cursor, entries) == has_hole


async def test_a_new_life_that_begins_behind_our_position_is_read_whole(bench: Bench) -> None:
    """Its first ids were generated in the very millisecond of our last one: we are past them."""
    async with bench.stream() as stream:
        await bench.add(stream, *range(4))
        meta = stream._stored.meta
        async with stream.reader(buffer_max=1) as reader:
            assert await bench.take_numbers(reader, 2) == [0, 1]
            await bench.until(lambda: len(reader._buffer))  # and reads no further
            [position] = [each.position for each in reader._tailer.readings.values()]
            newest = bench.client.xrevrange(bench.key, count=1)[0][0].decode()
            with bench.client.pipeline(transaction=True) as pipe:
                pipe.delete(bench.key, meta)
                pipe.hset(meta, mapping={"born": "7.7", "n": 5})
                for n in range(1, 3):
                    pipe.xadd(bench.key, {"n": n, "e": "counted", "p": 100 + n}, id=f"1-{n}")
                later = int(newest.partition("-")[0]) + 1
                for n in range(3, 6):
                    fields = {"n": n, "e": "counted", "p": 100 + n}
                    pipe.xadd(bench.key, fields, id=f"{later}-{n}")
                pipe.execute()
            assert order(position) < (later, 0)
            assert await bench.take_numbers(reader, 1) == [2]
            events = await bench.take(reader, 5)
    assert bench.numbers(events) == [101, 102, 103, 104, 105]
    assert [event.after for event in events] == ["restarted", *[""] * 4]
