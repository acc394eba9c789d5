"""Sinks: every event to one consumer, until somebody acknowledges it; nothing is lost."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest
import redis

from pool import InvalidOption, NotRunning, Sink, StoreUnavailable, StreamEvent
from pool.actors.sink_events import (
    SinkLapsed,
    SinkMended,
    SinkMissed,
    SinkParked,
    SinkRemade,
    SinkTroubled,
)
from pool.model.stream import order
from pool.model.timing import Timing
from pool.store.server import EmbeddedServer
from pool.store.stream import Lease
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

pytestmark = pytest.mark.anyio


async def drain(sink: Sink, got: list[StreamEvent], *, ack: bool = True) -> None:
    """Take and acknowledge events until cancelled."""
    async for event in sink:
        got.append(event)
        if ack:
            await sink.ack(event)


# --- sharing ------------------------------------------------------------------------------------


async def test_consumers_share_the_events_and_acknowledge_them(bench: Bench) -> None:
    async with (
        bench.stream() as stream,
        bench.stream() as elsewhere,
        stream.sink("billing", buffer_max=2) as one,
        elsewhere.sink("billing", buffer_max=2) as other,
        anyio.create_task_group() as tasks,
    ):
        got: dict[str, list[StreamEvent]] = {"one": [], "other": []}
        tasks.start_soon(drain, one, got["one"])
        tasks.start_soon(drain, other, got["other"])
        await bench.add(stream, *range(100))
        await bench.until(lambda: len(got["one"]) + len(got["other"]) >= 100)
        await bench.until(lambda: not bench.pending())
        tasks.cancel_scope.cancel()
    assert sorted(int(e.payload) for events in got.values() for e in events) == [*range(100)]
    assert all(len(events) > 5 for events in got.values())
    assert {event.deliveries for events in got.values() for event in events} == {1}


async def test_every_sink_gets_every_event(bench: Bench) -> None:
    async with bench.stream() as stream:
        await bench.add(stream, 0, 1)
        async with stream.sink("billing") as billing, stream.sink("mail", "newest") as mail:
            await bench.add(stream, 2)
            assert await bench.take_numbers(billing, 3) == [0, 1, 2]
            assert await bench.take_numbers(mail, 1) == [2]


async def test_a_start_counts_only_for_the_first_consumer(bench: Bench) -> None:
    async with bench.stream() as stream:
        ids = await bench.add(stream, 0, 1, 2)
        async with stream.sink("billing", ids[0]) as sink:
            [event] = await bench.take(sink, 1)
            assert (event.payload, await sink.ack(event)) == (b"1", True)
        async with stream.sink("billing", "newest") as sink:
            [event] = await bench.take(sink, 1)
            assert event.payload == b"2"


async def test_an_acknowledgement_counts_once(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing") as sink:
        await bench.add(stream, *range(4))
        first, *rest = await bench.take(sink, 4)
        async with stream.sink("billing") as other:
            assert await sink.ack(first)
            assert not await sink.ack(first)
            assert not await other.ack(first)
            assert await other.ack_many(rest) == 3
            assert await other.ack_many([]) == 0
        assert bench.pending() == {}
    with pytest.raises(NotRunning):
        await sink.ack(first)


async def test_filters_acknowledge_for_all_what_nobody_wants(bench: Bench) -> None:
    def wanted(event: StreamEvent) -> bool:
        return int(event.payload) < 8

    async with (
        bench.stream() as stream,
        stream.sink("billing", pattern="eu.*", where=wanted) as sink,
    ):
        for n in range(10):
            await bench.add(stream, n, topic="us.x" if n % 2 else "eu.x")
        await bench.add(stream, 7, topic="eu.x")
        events = await bench.take(sink, 5)
        assert bench.numbers(events) == [0, 2, 4, 6, 7]
        await bench.until(lambda: len(bench.pending()) == 5)


async def test_a_function_that_raises_leaves_its_event_unacknowledged(bench: Bench) -> None:
    """It is given again, and parked in the end; the others go on."""

    def choose(event: StreamEvent) -> bool:
        if event.payload == b"0":
            raise KeyError(event.id)
        return True

    async with (
        bench.stream() as stream,
        stream.sink("billing", where=choose, grace_s=0.1, deliveries_max=2) as sink,
    ):
        bad, _ = await bench.add(stream, 0, 1)
        with pytest.raises(KeyError):
            await anext(sink)
        [event] = await bench.take(sink, 1)
        await sink.ack(event)
        with pytest.raises(KeyError), anyio.fail_after(10):
            await anext(sink)
        await bench.seen(SinkParked)
        [parked] = await sink.fetch_parked()
        assert parked.event.id == bad


async def test_several_streams_are_added_and_removed_while_it_reads(bench: Bench) -> None:
    """What of a removed stream was not handed out goes to others; the rest may be acknowledged."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        second, key = stream.sibling("second"), bench.control.stream("second")
        await bench.add(second, 100, 101)
        await bench.add(stream, 0)
        assert await bench.take_numbers(sink, 1) == [0]
        await sink.add_stream(second)
        with pytest.raises(InvalidOption):
            await sink.add_stream(second)
        [event] = await bench.take(sink, 1)
        assert (event.stream, event.payload) == ("second", b"100")
        await sink.remove_stream(second)
        await sink.remove_stream(second)
        await bench.add(stream, 1)
        assert await bench.take_numbers(sink, 1) == [1]
        async with second.sink("billing") as other:
            assert await bench.take_numbers(other, 1) == [101]
            assert next(iter(bench.pending(key=key))) == event.id
            assert await sink.ack(event)
            await sink.add_stream(second)


@pytest.mark.parametrize("buffer_max", [1, 2, 10])
async def test_a_slow_consumer_holds_no_more_than_it_may(bench: Bench, buffer_max: int) -> None:
    async with bench.stream() as stream, stream.sink("billing", buffer_max=buffer_max) as sink:
        await bench.add(stream, *range(50))
        for _ in range(50):
            [event] = await bench.take(sink, 1)
            await anyio.wait_all_tasks_blocked()
            assert len(sink._feed) <= buffer_max
            assert len(bench.pending()) <= 1 + 2 * buffer_max
            assert await sink.ack(event)


# --- at most once -------------------------------------------------------------------------------


async def test_without_acknowledgements_an_event_is_gone_when_it_was_read(bench: Bench) -> None:
    async with bench.stream() as stream:
        async with stream.sink("billing", no_ack=True) as sink:
            await bench.add(stream, *range(3))
            events = await bench.take(sink, 3)
            assert bench.pending() == {}
            with pytest.raises(InvalidOption):
                await sink.ack(events[0])
        async with stream.sink("billing", no_ack=True) as sink:
            await bench.add(stream, 3)
            assert await bench.take_numbers(sink, 1) == [3]


# --- what nobody acknowledges -------------------------------------------------------------------


async def test_an_unacknowledged_event_is_given_to_another_after_the_grace(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing", grace_s=0.3) as holder:
        await bench.add(stream, 1)
        [event] = await bench.take(holder, 1)
        async with stream.sink("billing", grace_s=0.3) as other:
            with anyio.CancelScope() as scope, anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    again: list[StreamEvent] = []
                    tasks.start_soon(drain, holder, again)
                    tasks.start_soon(drain, other, again)
                    await bench.until(lambda: again)
                    scope.cancel()
            assert again == [attrs.evolve(event, deliveries=2)]
            assert not await holder.ack(event)  # the other one has


async def test_a_lone_consumer_gets_its_own_again(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing", grace_s=0.2) as sink:
        await bench.add(stream, 1)
        deliveries = [(await bench.take(sink, 1))[0].deliveries for _ in range(3)]
        assert deliveries == [1, 2, 3]


async def test_what_is_within_its_grace_is_left_alone(bench: Bench) -> None:
    async with (
        bench.stream() as stream,
        stream.sink("billing", grace_s=60) as holder,
        stream.sink("billing", grace_s=60) as other,
    ):
        await bench.add(stream, 1)
        sinks = {holder.consumer: holder, other.consumer: other}
        await bench.until(bench.pending)
        [(name, _)] = bench.pending().values()
        await bench.take(sinks.pop(name), 1)
        [idle] = sinks.values()
        with anyio.move_on_after(3 * Timing(1.0).renew_s) as scope:
            await anext(idle)
        assert scope.cancelled_caught
        assert [*bench.pending().values()] == [(name, 1)]


async def test_an_event_delivered_too_often_is_parked_with_its_origin(bench: Bench) -> None:
    async with (
        bench.stream() as stream,
        stream.sink("billing", grace_s=0.1, deliveries_max=2) as sink,
    ):
        entry = await stream.add("poison", b"\0\xff", topic="t=1")
        assert [(await bench.take(sink, 1))[0].deliveries for _ in range(2)] == [1, 2]
        assert (await bench.seen(SinkParked)).events == 1
        assert bench.pending() == {}
        [parked] = await sink.fetch_parked()
        event = parked.event
        assert (event.stream, event.id, event.event) == ("orders", entry, "poison")
        assert (event.payload, event.topic, event.deliveries) == (b"\0\xff", "t=1", 2)
        assert parked.reason == "not acknowledged in time"
        await stream.add(event.event, event.payload, topic=event.topic)
        assert await sink.drop_parked(parked) == 1
        assert await sink.drop_parked(parked) == await sink.drop_parked() == 0
        [again] = await bench.take(sink, 1)
        assert (again.event, again.deliveries) == ("poison", 1)


async def test_a_cap_that_takes_what_was_not_acknowledged_is_told(bench: Bench) -> None:
    """Both what was held by somebody and what nobody had been given yet; each once."""

    def missed() -> int:
        return sum(event.events for event in bench.all_seen(SinkMissed))

    async with bench.stream(length_max=5) as stream:
        async with stream.sink("billing", buffer_max=2) as sink:
            await bench.add(stream, 0, 1, 2)
            await bench.take(sink, 1)
            await bench.add(stream, *range(3, 15))
            await bench.seen(SinkMissed)
        async with stream.sink("billing") as sink:
            rest = await bench.take(sink, 5)
            assert bench.numbers(rest) == [10, 11, 12, 13, 14]
            await sink.ack_many(rest)
            await bench.until(lambda: missed() >= 10)
            await bench.until(lambda: bench.consumers() == {sink.consumer})
        assert missed() == 10


# --- consumers that come and go -----------------------------------------------------------------


async def test_one_that_leaves_gives_back_what_it_did_not_hand_out(bench: Bench) -> None:
    """At once, and it counts as no delivery; what was handed out follows with the next cleaning."""
    async with bench.stream() as stream, stream.sink("billing", buffer_max=1) as stays:
        await bench.take(stays, 0)
        async with stream.sink("billing", buffer_max=50) as leaves:
            gone = leaves.consumer
            await bench.add(stream, *range(40))
            [handed_out] = await bench.take(leaves, 1)
            await bench.until(lambda: len(bench.pending()) > 5)
        got = []
        for _ in range(40):
            [event] = await bench.take(stays, 1)
            got.append(event)
            await stays.ack(event)
            assert len(stays._feed) <= 2  # one that was read, and one that was taken
        assert sorted(bench.numbers(got)) == [*range(40)]
        again = {e.id for e in got if e.deliveries > 1}
        assert again == {handed_out.id}
        await bench.until(lambda: gone not in bench.consumers())
        assert bench.pending() == {}


async def test_a_stale_consumer_is_cleaned_without_losing_what_it_held(bench: Bench) -> None:
    """Its lease has ended: what it held is freed first, and only then its name forgotten."""
    async with bench.stream() as stream:
        bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
        ids = await bench.add(stream, *range(150))
        for name in ("without-lease", "with-ended-lease"):
            bench.client.xreadgroup("billing", name, {bench.key: ">"}, count=75)
        bench.end_lease("with-ended-lease")
        async with stream.sink("billing", buffer_max=10) as sink:
            events = []
            for _ in range(150):
                [event] = await bench.take(sink, 1)
                events.append(event)
                await sink.ack(event)
            assert sorted(event.id for event in events) == sorted(ids)
            assert {event.deliveries for event in events} == {2}
            await bench.until(lambda: bench.consumers() == {sink.consumer})
            assert bench.pending() == {}
    assert sum(mended.freed for mended in bench.all_seen(SinkMended)) == 150


async def test_one_that_cleans_cleans_streams_too_that_it_does_not_read(bench: Bench) -> None:
    """Consumers of one sink may read different streams; none of them is left behind."""
    other = bench.control.stream("payments")
    async with bench.stream() as orders, bench.stream("payments") as payments:
        async with orders.sink("billing"):  # the first to come cleans
            [entry_id] = await bench.add(payments, 1)
            bench.client.xgroup_create(other, "billing", id="0")
            bench.client.xreadgroup("billing", "dead", {other: ">"})
            async with payments.sink("billing"):  # its stream is known from now on
                await bench.until(lambda: other.encode() in str(bench.state()).encode())
            bench.client.xgroup_createconsumer(other, "billing", "dead")
            await bench.until(lambda: "dead" not in bench.consumers(key=other))
            assert bench.pending(key=other)[entry_id][0] == "-"
        async with payments.sink("billing") as again:
            assert await bench.take_numbers(again, 1) == [1]


async def test_one_of_five_cleans(bench: Bench) -> None:
    async with bench.stream() as stream, anyio.create_task_group() as tasks:
        sinks = [stream.sink("billing") for _ in range(5)]
        done = anyio.Event()

        async def consume(sink: Sink, entered: anyio.Event) -> None:
            async with sink:
                entered.set()
                await done.wait()

        for sink in sinks:
            entered = anyio.Event()
            tasks.start_soon(consume, sink, entered)
            await entered.wait()
        state = bench.control.sink("billing")
        holders = set()
        leases = bench.control.sink_leases("billing")
        for _ in range(5):  # renewals of all of them
            seen = dict(bench.client.zrange(leases, 0, -1, withscores=True))

            def have_renewed(seen: dict[bytes, float] = seen) -> bool:
                holders.add(bench.client.hget(state, "holder").partition(b"|")[0].decode())
                now = dict(bench.client.zrange(leases, 0, -1, withscores=True))
                return all(now[name] > score for name, score in seen.items())

            await bench.until(have_renewed)
        assert len(holders) == 1
        assert holders <= {sink.consumer for sink in sinks}
        calls = bench.client.info("commandstats")
        assert calls
        # The cleaner dies: another one has its lock within a TTL.
        bench.client.hset(state, "holder", "dead.1|1")
        await bench.until(
            lambda: bench.client.hget(state, "holder").partition(b"|")[0] != b"dead.1"
        )
        done.set()


async def test_a_consumer_without_answers_drops_what_it_holds_and_comes_back(bench: Bench) -> None:
    """Its lease may have ended: what it buffered may be somebody else's by now."""
    async with (
        bench.stream() as writer,
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        stream.sink("billing") as sink,
    ):
        before = sink.consumer
        await bench.add(writer, *range(10))
        await bench.until(lambda: len(sink._feed) == 10)
        proxy.go_silent()
        lapsed = await bench.seen(SinkLapsed)
        assert (lapsed.consumer, lapsed.dropped) == (before, 10)
        await proxy.heal()
        events = await bench.take(sink, 10)
        assert sink.consumer != before
        assert sorted(bench.numbers(events)) == [*range(10)]
        assert await sink.ack_many(events) == 10
        await bench.until(lambda: bench.consumers() == {sink.consumer})


async def test_one_that_was_cleaned_while_it_lived_joins_again(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing") as sink:
        before = sink.consumer
        await bench.add(stream, 1)
        [first] = await bench.take(sink, 1)
        bench.client.zrem(bench.control.sink_leases("billing"), before)
        await bench.seen(SinkLapsed)
        [again] = await bench.take(sink, 1)
        assert (again.id, again.deliveries) == (first.id, 2)
        assert await sink.ack(again)
        await bench.until(lambda: bench.consumers() == {sink.consumer})
        assert sink.consumer != before
        # A renewal of the name before says nothing of this one, however late its answer comes.
        late = Lease(is_holder=False, ttl_ms=1000, keys=[], waiting=[])
        sink._on_renewed(before, float("inf"), [], late)
        assert sink._asked_s < float("inf")


async def test_after_a_clock_step_nobody_is_cleaned_for_one_ttl(bench: Bench) -> None:
    """All leases seem to have ended, and all events to be overdue: no time means anything."""
    state, leases = bench.control.sink("billing"), bench.control.sink_leases("billing")

    def now_ms() -> int:
        seconds, us = bench.client.time()
        return int(seconds * 1000 + us // 1000)

    async with bench.stream() as stream:
        await bench.add(stream, 1)
        bench.client.xgroup_create(bench.key, "billing", "0")
        bench.client.xreadgroup("billing", "slow.1", {bench.key: ">"})
        stepped_ms = now_ms()
        bench.client.zadd(leases, {"slow.1": stepped_ms - 1})
        bench.client.hset(state, "seen", stepped_ms - 3_600_000)
        async with stream.sink("billing", grace_s=0.5) as sink:
            quiet_ms = int(bench.client.hget(state, "quiet"))
            assert quiet_ms >= stepped_ms + 1000 * 1.0
            bench.client.zadd(leases, {"slow.1": quiet_ms + 60_000})  # it renews in time
            [event] = await bench.take(sink, 1)  # in the end the grace counts
            assert event.deliveries == 2
            assert now_ms() >= quiet_ms + 500
            assert "slow.1" in bench.consumers()


# --- faults of the network ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "cut mid-reply", "slices", "half-open", "mute"])
async def test_nothing_is_lost_whatever_the_network_does(bench: Bench, fault: str) -> None:
    """Every event is acknowledged; again only what was given again."""
    async with (
        bench.stream() as writer,
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        stream.sink("billing", buffer_max=10) as sink,
    ):
        got: list[StreamEvent] = []

        async def consume() -> None:
            async for event in sink:
                got.append(event)
                with suppress(StoreUnavailable):  # acknowledged below, once the network is healed
                    await sink.ack(event)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            for start in range(0, 100, 10):
                match fault:
                    case "cut":
                        await proxy.cut()
                    case "cut mid-reply":
                        proxy.cut_after_bytes = 137
                    case "slices":
                        proxy.slice_bytes = 1
                    case "half-open" if start == 50:
                        proxy.go_silent()
                    case "mute" if start == 50:
                        proxy.drop_replies = True
                await bench.add(writer, *range(start, start + 10))
                if start == 50 and fault in ("half-open", "mute"):
                    await bench.seen(SinkLapsed)
                    await proxy.heal()
                    continue
                await bench.until(lambda: len({e.id for e in got}) == start + 10)  # noqa: B023
            await bench.until(lambda: len({e.id for e in got}) == 100)
            tasks.cancel_scope.cancel()
        await proxy.heal()
        await sink.ack_many(got)
        again: list[StreamEvent] = []
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain, sink, again)
                await bench.until(lambda: not bench.pending())
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert {int(event.payload) for event in got} == {*range(100)}
        counts = Counter(event.id for event in got)
        if fault == "slices":
            assert max(counts.values()) == 1


async def test_entries_of_a_lost_reply_come_soon_and_not_after_the_grace(bench: Bench) -> None:
    """The server has given them to us, and the reply never arrived: we ask for what is ours."""
    async with (
        bench.stream() as writer,
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        stream.sink("billing", grace_s=600) as sink,
    ):
        await bench.add(writer, 0)
        [first] = await bench.take(sink, 1)
        await sink.ack(first)
        proxy.drop_replies = True
        await bench.add(writer, 1, 2)
        await bench.until(bench.pending)
        proxy.drop_replies = False
        await proxy.cut()
        assert sorted(await bench.take_numbers(sink, 2)) == [1, 2]


# --- loss of the data ---------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["flushed", "deleted", "group destroyed", "state deleted"])
async def test_a_sink_heals_after_its_data_are_gone(bench: Bench, loss: str) -> None:
    """Loudly, from the oldest event or where it was, and without a hot loop."""
    async with bench.stream() as stream, stream.sink("billing", "newest") as sink:
        await bench.add(stream, 0)
        [event] = await bench.take(sink, 1)
        await sink.ack(event)
        before = int(bench.client.info("stats")["total_error_replies"])
        match loss:
            case "flushed":
                bench.client.delete(*bench.keys())
            case "deleted":
                bench.client.delete(bench.key)
            case "group destroyed":
                await bench.until(lambda: order(cursor(bench)) >= order(event.id))
                bench.client.xgroup_destroy(bench.key, "billing")
            case "state deleted":
                bench.client.delete(
                    bench.control.sink("billing"), bench.control.sink_leases("billing")
                )
        await bench.add(stream, 1)
        events = await bench.take(sink, 1)
        assert bench.numbers(events) == [1]
        assert await sink.ack_many(events) == 1
        if loss != "state deleted":
            assert (await bench.seen(SinkRemade)).stream == "orders"
        assert int(bench.client.info("stats")["total_error_replies"]) - before < 20
        await bench.until(lambda: bench.consumers() == {sink.consumer})


@pytest.mark.parametrize("who", ["it lives", "the next one"])
async def test_a_group_that_was_destroyed_goes_on_from_its_cursor(bench: Bench, who: str) -> None:
    """C6: what was acknowledged is not given again; what was not is, though it was given."""
    name = bench.control.sink("billing")
    async with bench.stream() as stream:
        async with stream.sink("billing") as sink:
            await bench.add(stream, *range(4))
            events = await bench.take(sink, 4)
            await sink.ack_many([events[0], events[1], events[3]])
            upto = events[1].id
            await bench.until(lambda: order(cursor(bench)) >= order(upto))
            if who == "it lives":
                bench.client.xgroup_destroy(bench.key, "billing")
                await bench.add(stream, 4)
                assert sorted(await bench.take_numbers(sink, 3)) == [2, 3, 4]
                assert (await bench.seen(SinkRemade)).stream == "orders"
                return
        bench.client.xgroup_destroy(bench.key, "billing")
        async with stream.sink("billing", "newest") as sink:
            assert sorted(await bench.take_numbers(sink, 2)) == [2, 3]
    assert bench.client.hexists(name, f"c:{bench.key}")


async def test_a_cursor_beyond_its_stream_passes_nothing_over(bench: Bench) -> None:
    """The stream is another one than that where it was noted."""
    async with bench.stream() as stream:
        await bench.add(stream, 0, 1)
        bench.client.hset(bench.control.sink("billing"), f"c:{bench.key}", "9999999999999-0")
        async with stream.sink("billing") as sink:
            assert await bench.take_numbers(sink, 2) == [0, 1]


def cursor(bench: Bench) -> str:
    text: Any = bench.client.hget(bench.control.sink("billing"), f"c:{bench.key}")
    return text.decode() if text else "0-0"


async def test_a_sink_survives_a_restart_without_data(
    bench: Bench, own_server: EmbeddedServer
) -> None:
    async with bench.stream(url=own_server.url) as stream, stream.sink("billing") as sink:
        await bench.add(stream, 0)
        assert await bench.take_numbers(sink, 1) == [0]
        with redis.Redis.from_url(own_server.url) as client:
            client.flushall()
        own_server.kill()
        own_server.restart()
        await bench.seen(SinkRemade)
        await bench.add(stream, 1)
        [event] = await bench.take(sink, 1)
        assert (event.payload, await sink.ack(event)) == (b"1", True)


async def test_a_sink_of_a_stream_that_is_no_stream_says_so(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing") as sink:
        bench.client.delete(bench.key)
        bench.client.set(bench.key, "foreign")
        await bench.seen(SinkTroubled)
        before = int(bench.client.info("stats")["total_error_replies"])
        other = stream.sibling("other")
        await bench.add(other, *range(100))  # round trips, of which a circle would take as many
        assert int(bench.client.info("stats")["total_error_replies"]) - before < 20
        bench.client.delete(bench.key)
        await bench.add(stream, 1)
        assert await bench.take_numbers(sink, 1) == [1]


async def test_leaving_a_dead_server_is_bounded(bench: Bench) -> None:
    """However much is buffered: what cannot be given back is freed by whoever cleans next."""
    async with bench.stream() as writer, fault_proxy(bench.url) as proxy:
        async with bench.stream(url=proxy.url) as stream:
            async with stream.sink("billing", buffer_max=1000) as sink:
                await bench.add(writer, *range(300))
                await bench.until(lambda: len(sink._feed) == 300)
                proxy.go_silent()
                began_s = anyio.current_time()
            assert anyio.current_time() - began_s < 4 * bench.settings.op_timeout_s
            await proxy.heal()
        async with writer.sink("billing", buffer_max=1000) as other:
            events = await bench.take(other, 300)
            assert sorted(bench.numbers(events)) == [*range(300)]


async def test_a_closed_sink_leaves_nothing_but_what_others_need(bench: Bench) -> None:
    async with bench.stream() as stream:
        async with stream.sink("billing") as sink:
            await bench.add(stream, 1)
            [event] = await bench.take(sink, 1)
            await sink.ack(event)
            await sink.aclose()
            await sink.aclose()
        sink._tick()  # as one that a renewal's answer has armed while it was closing
        await bench.add(stream, 2, 3)  # what it asked, and what came of that, is done before
        assert bench.consumers() == set()
        assert bench.client.exists(bench.control.sink_leases("billing")) == 0
        assert bench.client.hget(bench.control.sink("billing"), "holder") is None
        with pytest.raises(StopAsyncIteration):
            await anext(sink)
