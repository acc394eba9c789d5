"""Sinks: every event to one consumer, until somebody acknowledges it; nothing is lost."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import redis

from pool.core.ids import order
from pool.core.lease import Timing
from pool.errors import InvalidOption, NotRunning, StoreUnavailable
from pool.events import (
    SinkLapsed,
    SinkMended,
    SinkMissed,
    SinkParked,
    SinkParksMany,
    SinkRemade,
    SinkTroubled,
)
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import ScriptCall
from pool.streams import Sink, StreamEvent
from pool.streams.commands import HAND, TAKE, ConsumerLease
from pool.testing.proxy import fault_proxy
from tests.impatient import limit
from tests.streams.mortal import Life, MortalIO

if TYPE_CHECKING:
    from tests.stopwatch import Stopwatch
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


async def test_acknowledgements_that_wait_together_travel_together(bench: Bench) -> None:
    """Each is answered for itself, whatever the others of its call come to."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        await bench.add(stream, *range(100))
        events = await bench.take(sink, 100)
        async with stream.sink("billing") as other:
            assert await other.ack(events[7])
        answers: dict[int, bool] = {}

        async def ack(n: int) -> None:
            answers[n] = await sink.ack(events[n % 100])

        before = calls_of(bench, "evalsha")
        async with anyio.create_task_group() as tasks:
            for n in range(103):  # three of them twice
                tasks.start_soon(ack, n)
        assert calls_of(bench, "evalsha") - before <= 4  # a renewal may be among them
        assert answers.pop(7) is False
        twice = [answers.pop(n) + answers.pop(n % 100) for n in range(100, 103)]
        assert twice == [1, 1, 1]
        assert {*answers.values()} == {True}
        assert bench.pending() == {}


async def test_an_acknowledgement_that_fails_is_told_to_each_who_waited(bench: Bench) -> None:
    async with (
        bench.stream() as writer,
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url) as stream,
        stream.sink("billing") as sink,
    ):
        await bench.add(writer, *range(5))
        events = await bench.take(sink, 5)
        proxy.go_silent()
        failed: list[StoreUnavailable] = []

        async def ack(event: StreamEvent) -> None:
            with pytest.raises(StoreUnavailable) as unknown:
                await sink.ack(event)
            failed.append(unknown.value)

        async with anyio.create_task_group() as tasks:
            for event in events:
                tasks.start_soon(ack, event)
        assert len({id(each) for each in failed}) == 5
        await proxy.heal()


def calls_of(bench: Bench, command: str) -> int:
    found: Any = bench.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return int(found["calls"])


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
        with pytest.raises(KeyError), anyio.fail_after(30):
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
            assert len(sink._buffer) <= buffer_max
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
            with anyio.CancelScope() as scope, anyio.fail_after(30):
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
        with anyio.move_on_after(3 * Timing(2.0).renew_s) as scope:
            await anext(idle)
        assert scope.cancelled_caught
        assert [*bench.pending().values()] == [(name, 1000)]


async def test_what_waits_in_a_buffer_is_not_delivered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: however slow the program is, nothing is given twice, or up, that it has not seen."""
    clock, passed_s = SystemIO.clock, 0.0
    monkeypatch.setattr(SystemIO, "clock", staticmethod(lambda: clock() + passed_s))
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 0.1)
    # No call's time is up because the clock was set on while it was under way.
    settings = attrs.evolve(bench.settings, lease_ttl_s=3600.0, op_timeout_s=60.0)
    async with (
        bench.stream(settings=settings) as stream,
        stream.sink("billing", grace_s=60.0, deliveries_max=1) as sink,
    ):
        await bench.add(stream, *range(60))
        got = []
        for _ in range(60):
            [event] = await bench.take(sink, 1)
            passed_s += 4.2  # all of them together take four times the grace
            assert await sink.ack(event)
            got.append(event)
            if len(got) == 30:
                sink._hands.pace()  # as with the next renewal, if there was none yet
                # What has waited for half a grace was given back.
                assert all(item.got_s > SystemIO.clock() - 30.0 for item in sink._buffer)
        assert sorted(bench.numbers(got)) == [*range(60)]
        assert {event.deliveries for event in got} == {1}
        assert not bench.all_seen(SinkParked)


async def test_one_that_is_fast_again_holds_more_again(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing", grace_s=2) as sink:
        await bench.add(stream, *range(60))
        await bench.until(lambda: sink._buffer.buffer_max < 50)  # nobody takes any
        with anyio.fail_after(30):
            while sink._buffer.buffer_max < 100:
                await bench.add(stream, *range(20))
                for _ in range(20):
                    await sink.ack(*await bench.take(sink, 1))


async def test_mass_parking_is_told_loudly_and_once(bench: Bench) -> None:
    async with (
        bench.stream() as stream,
        stream.sink("billing", grace_s=0.1, deliveries_max=1) as sink,
    ):
        for _ in range(2):
            await bench.add(stream, *range(7))
            await bench.take(sink, 7)
            await bench.until(lambda: not bench.pending())
        await bench.until(lambda: sum(e.events for e in bench.all_seen(SinkParked)) == 14)
        assert [many.sink for many in bench.all_seen(SinkParksMany)] == ["billing"]


async def test_suspects_come_one_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a dead consumer held one is in hand, and nobody has the next before it is done."""
    monkeypatch.setattr(
        "pool.streams.sink_hands.LIVED_S", 60.0
    )  # that it lives is not all that counts
    async with bench.stream() as stream:
        bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
        await bench.add(stream, *range(12))
        bench.client.xreadgroup("billing", "dead.1", {bench.key: ">"}, count=12)
        async with stream.sink("billing", grace_s=60) as sink:
            for left in range(12, 0, -1):
                [event] = await bench.take(sink, 1)
                assert len(sink._buffer) == 0
                holders = Counter(name for name, _ in bench.pending().values())
                assert holders == Counter({sink.consumer: 1, "?": left - 1})
                # Noted before it was handed out; a reader that looks for lost replies adds ones.
                assert bench.pending()[event.id][1] // 1000 == 1
                await sink.ack(event)


async def test_a_suspect_that_is_read_before_it_is_said_to_be_one_waits_for_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is taken is pending under our name at once: our own pending entries bring it too."""
    real, late = Pipeline.send, list[Any]()

    def send(self: Pipeline, command: Any, on_reply: Any, **options: Any) -> None:
        if isinstance(command, ScriptCall) and command.script is TAKE and not late:
            real(self, command, lambda reply: late.append((on_reply, reply)), **options)
        else:
            real(self, command, on_reply, **options)

    monkeypatch.setattr(Pipeline, "send", send)
    async with bench.stream() as stream:
        bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
        await bench.add(stream, *range(3))
        bench.client.xreadgroup("billing", "dead.1", {bench.key: ">"}, count=3)
        async with stream.sink("billing", grace_s=60) as sink:
            await bench.until(lambda: late)  # taken, and not told yet
            tailer = sink._tailer
            tailer._has_lost_none = False  # as after a read that was interrupted
            assert tailer._running_body is not None
            tailer._running_body.interrupt()
            await bench.until(lambda: tailer._under_way is not None or len(sink._buffer))
            assert len(sink._buffer) == 0
            [(on_reply, reply)] = late
            on_reply(reply)
            [event] = await bench.take(sink, 1)
            name, times = bench.pending()[event.id]
            assert (name, times // 1000) == (sink.consumer, 1)  # noted, and handed out once
            assert len(sink._buffer) == 0
            await sink.ack(event)
            assert len(await bench.take(sink, 2)) == 2


async def test_suspects_that_live_for_a_moment_do_not_hold_up_the_others(bench: Bench) -> None:
    async with bench.stream() as stream:
        bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
        await bench.add(stream, *range(12))
        bench.client.xreadgroup("billing", "dead.1", {bench.key: ">"}, count=12)
        async with stream.sink("billing", grace_s=60) as sink:
            events = await bench.take(sink, 12)  # none is acknowledged
            assert sorted(bench.numbers(events)) == [*range(12)]
            assert await sink.ack_many(events) == 12


async def test_a_suspect_that_was_in_hand_before_is_alone_for_longer(bench: Bench) -> None:
    """What ends its program after a while takes no innocents along, time and again."""
    async with bench.stream() as stream:
        bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
        ids = await bench.add(stream, *range(12))
        bench.client.xreadgroup("billing", "dead.1", {bench.key: ">"}, count=12)
        bench.client.xclaim(bench.key, "billing", "dead.1", 0, ids[:1], retrycount=5000)
        async with stream.sink("billing", grace_s=60) as sink:
            [event] = await bench.take(sink, 1)
            assert (event.id, event.deliveries) == (ids[0], 6)
            for _ in range(3):  # longer than what was never in hand would be alone
                await bench.renewed(sink.consumer)
            assert Counter(name for name, _ in bench.pending().values())["?"] == 11
            assert await sink.ack(event)
            assert len(await bench.take(sink, 11)) == 11


async def test_what_an_answer_that_was_lost_gave_us_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pending under our name, and we know nothing of it."""
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 0.4)
    settings = attrs.evolve(bench.settings, lease_ttl_s=60.0, op_timeout_s=10.0)
    async with (
        bench.stream() as writer,
        fault_proxy(bench.url) as proxy,
        bench.stream(url=proxy.url, settings=settings) as stream,
        stream.sink("billing", grace_s=600) as sink,
    ):
        [source] = sink._sources.values()
        await bench.add(writer, 0)
        [known] = await bench.take(sink, 1)
        entry = bench.put(1)
        with anyio.fail_after(30):
            [lost] = await bench.take(sink, 1)
        assert lost.id == entry
        await bench.until(lambda: bench.pending()[entry][1] == 1000)
        source.hands.pop(entry)  # as if the answer that brought it had been lost
        before, pipeline = sink.consumer, stream._session.pipeline
        limit(pipeline, op_timeout_s=0.3)  # for what is not answered
        proxy.drop_replies = True
        await bench.until(lambda: source.is_doubted)
        limit(pipeline, op_timeout_s=settings.op_timeout_s)
        await proxy.heal()
        [again] = await bench.take(sink, 1)
        assert (again.id, again.deliveries, sink.consumer) == (entry, 2, before)
        assert await sink.ack_many([known, again]) == 2


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
        other = attrs.evolve(parked, event=attrs.evolve(event, mark=b"of a lost event"))
        assert await sink.drop_parked(other) == 0
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


async def test_what_was_missed_is_told_though_an_answer_was_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: it is told until somebody has said that he told it."""
    lost: list[int] = []
    as_it_is = Sink._on_mended

    def lose_the_first(self: Sink, source: Any, consumer: str, reply: Any) -> None:
        if reply.missed and not lost:
            lost.append(reply.missed)
            source.is_mending = False
            return
        as_it_is(self, source, consumer, reply)

    monkeypatch.setattr(Sink, "_on_mended", lose_the_first)
    async with bench.stream(length_max=5) as stream, stream.sink("billing", buffer_max=1) as sink:
        await bench.add(stream, *range(3))
        await bench.take(sink, 1)
        await bench.add(stream, *range(3, 15))
        assert (await bench.seen(SinkMissed)).events >= lost[0] > 0
        for _ in range(3):
            await bench.renewed(sink.consumer)
        told = sum(each.events for each in bench.all_seen(SinkMissed))
        missed = int(bench.client.hget(stream._stored.meta, "missed:billing").partition(b"|")[0])
        assert told == missed


async def test_an_event_with_very_many_fields_stops_no_cleaning(bench: Bench) -> None:
    """G8: it is freed, given and parked like any other, and so are those around it."""
    async with bench.stream() as stream:
        bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
        await bench.add(stream, 0)
        fields = {f"f{n}": "v" for n in range(4_100)}
        large = bench.client.xadd(bench.key, {**fields, "p": "7"}).decode()
        await bench.add(stream, 1)
        bench.client.xreadgroup("billing", "dead.1", {bench.key: ">"}, count=3)
        async with stream.sink("billing", grace_s=60, deliveries_max=1) as sink:
            for _ in range(3):
                [event] = await bench.take(sink, 1)
                if event.id != large:
                    await sink.ack(event)
            [source] = sink._sources.values()
            source.hands[large].handed_s -= 60  # it alone is late, however slow the machine is
            sink._hands._end_grace()
            await bench.seen(SinkParked)
            [parked] = await sink.fetch_parked()
            assert (parked.event.id, parked.event.payload) == (large, b"7")
            await bench.until(lambda: bench.consumers() == {sink.consumer})
            assert bench.pending() == {}


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
            assert len(stays._buffer) <= 2  # one that was read, and one that was taken
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
            assert {event.deliveries for event in events} == {1}  # nobody was given them before
            await bench.until(lambda: bench.consumers() == {sink.consumer})
            assert bench.pending() == {}
    assert sum(mended.freed for mended in bench.all_seen(SinkMended)) == 150


async def test_sinks_of_one_name_on_different_streams_leave_each_other_alone(bench: Bench) -> None:
    """G10: whoever reads a stream cleans it; nobody else's lease or events are theirs to judge."""
    key = bench.control.stream("payments")
    async with (
        bench.stream() as orders,
        bench.stream("payments") as payments,
        orders.sink("billing") as one,
        payments.sink("billing") as other,
    ):
        await bench.add(payments, 1)
        [event] = await bench.take(other, 1)
        leases = bench.client.zrange(bench.control.sink_leases("orders", "billing"), 0, -1)
        assert [name.decode() for name in leases] == [one.consumer]
        for _ in range(3):
            bench.end_lease(other.consumer)  # in a sink of another stream
            await bench.renewed(one.consumer)
        assert bench.consumers() == {one.consumer}
        assert bench.pending(key=key) == {event.id: (other.consumer, 1000)}
        assert await other.ack(event)
        assert not bench.all_seen(SinkLapsed)


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
        state = bench.control.sink("orders", "billing")
        holders = set()
        leases = bench.control.sink_leases("orders", "billing")
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
        await bench.until(lambda: len(sink._buffer) == 10)
        proxy.go_silent()
        lapsed = await bench.seen(SinkLapsed)
        assert (lapsed.consumer, lapsed.dropped) == (before, 10)
        await proxy.heal()
        events = await bench.take(sink, 10)
        assert sink.consumer != before
        assert sorted(bench.numbers(events)) == [*range(10)]
        assert await sink.ack_many(events) == 10
        await bench.until(lambda: bench.consumers() == {sink.consumer})


async def test_a_foreign_value_where_events_are_parked_is_told_once(bench: Bench) -> None:
    """Whoever joins and renews meets nothing of it."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        [source] = sink._sources.values()
        bench.client.set(source.of.parked, "foreign")
        told = await bench.seen(SinkTroubled)
        assert (told.stream, told.key) == ("orders", source.of.parked)
        for _ in range(5):
            await bench.renewed(sink.consumer)
        assert len(bench.all_seen(SinkTroubled)) == 1
        bench.client.delete(source.of.parked)
        await bench.until(lambda: not source.trouble)
        bench.client.set(source.of.parked, "foreign again")
        await bench.seen(SinkTroubled, 2)


async def test_what_a_cap_took_is_told_once_though_its_group_is_destroyed(bench: Bench) -> None:
    async with bench.stream() as stream, bench.stream(length_max=5) as capped:
        async with stream.sink("billing") as sink:
            await bench.add(stream, *range(4))
            await sink.ack_many(await bench.take(sink, 4))
            await bench.until(lambda: order(cursor(bench)) > (0, 0))
            await bench.renewed(sink.consumer)
            await bench.renewed(sink.consumer)
        await bench.add(capped, *range(4, 16))  # of what the group was not given, seven are taken
        for n in range(2):
            bench.client.xgroup_destroy(bench.key, "billing")
            await bench.add(capped, 16 + n)
            async with stream.sink("billing", buffer_max=1) as sink:
                await bench.take(sink, 1)
        async with stream.sink("billing", buffer_max=1) as sink:
            await bench.renewed(sink.consumer)
            await bench.renewed(sink.consumer)
        assert sum(event.events for event in bench.all_seen(SinkMissed)) == 9


async def test_what_a_cap_took_while_there_was_no_group_is_told(bench: Bench) -> None:
    """The group was destroyed, and is made again when what it was not given is gone."""
    async with bench.stream() as stream:
        async with stream.sink("billing") as sink:
            await bench.add(stream, *range(4))
            await sink.ack_many(await bench.take(sink, 4))
            await bench.until(lambda: order(cursor(bench)) > (0, 0))
            await bench.renewed(sink.consumer)
            await bench.renewed(sink.consumer)
        bench.client.xgroup_destroy(bench.key, "billing")
        async with bench.stream(length_max=5) as capped:
            await bench.add(capped, *range(4, 16))
        async with stream.sink("billing") as sink:
            assert await bench.take_numbers(sink, 5) == [*range(11, 16)]
            assert (await bench.seen(SinkMissed)).events == 7


async def test_a_foreign_key_fails_its_own_stream_alone(bench: Bench) -> None:
    """G8: whichever key it is, its name is told, and the other stream goes on."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        other = stream.sibling("other")
        await sink.add_stream(other)
        [source] = [each for each in sink._sources.values() if each.name == "orders"]
        for n, key in enumerate((source.of.parked, source.of.state, stream._stored.meta)):
            bench.client.delete(key)
            bench.client.set(key, "foreign")
            troubled = await bench.seen(SinkTroubled, n + 1)
            assert (troubled.stream, troubled.key) == ("orders", key)
            await bench.add(other, n)
            [event] = await bench.take(sink, 1)
            assert event.payload == str(n).encode()
            assert await sink.ack(event)
            bench.client.delete(key)
            await bench.until(lambda: source.joined_as and not source.trouble)


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
async def test_a_stream_that_is_added_again_gives_nothing_that_is_in_hand(
    bench: Bench, pause_s: float
) -> None:
    """G6: what its handlers have is theirs within its grace, as if nothing had been."""
    async with bench.stream() as stream, stream.sink("billing", grace_s=60) as sink:
        second = stream.sibling("second")
        await sink.add_stream(second)
        await bench.add(second, *range(20))
        had = await bench.take(sink, 5)
        for _ in range(3):
            await sink.remove_stream(second)
            await anyio.sleep(pause_s)
            await sink.add_stream(second)
        rest = await bench.take(sink, 15)
        assert sorted(bench.numbers([*had, *rest])) == [*range(20)]
        assert await sink.ack_many([*had, *rest]) == 20
        await bench.add(second, 20)
        assert await bench.take_numbers(sink, 1) == [20]  # and nothing else came meanwhile


async def test_a_stream_that_is_added_again_is_not_left_behind_its_join(bench: Bench) -> None:
    """A tick comes between: what was removed is given up once nothing of it is in hand."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        second = stream.sibling("second")
        await sink.add_stream(second)
        before = sink.consumer
        for _ in range(5):
            await sink.remove_stream(second)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sink.add_stream, second)
                await anyio.lowlevel.checkpoint()  # it waits for its join
                sink._tick()
        await bench.renewed(before)
        await bench.renewed(before, stream="second")
        assert (sink.consumer, bench.all_seen(SinkLapsed)) == (before, [])


async def test_a_lone_consumer_that_is_started_again_and_again_gets_what_is_pending(
    bench: Bench,
) -> None:
    """G6: each life is far shorter than a TTL, and none leaves in order."""
    async with bench.stream() as stream:
        await bench.add(stream, 0)
        got: list[StreamEvent] = []
        quick = attrs.evolve(bench.settings, lease_ttl_s=1.0)
        for _ in range(60):
            life = Life(10**6)
            async with (
                bench.stream(_io=MortalIO(life), settings=quick) as mortal,
                mortal.sink("billing") as sink,
            ):
                with anyio.move_on_after(0.15):
                    got.append(await anext(sink))
                life.left = 0
                sink._state = "closed"  # as one that is killed: nothing is said
                await sink._tailer.aclose(1.0)
                sink._loop.close()
            if len(got) > 1:
                break
        # A life may end when it is noted that it has it in hand, or before, or before it has.
        assert len({event.id for event in got}) == 1
        assert len(got) == 2
        assert 1 <= got[0].deliveries <= got[1].deliveries


async def test_one_that_was_cleaned_while_it_lived_joins_again(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing") as sink:
        before = sink.consumer
        await bench.add(stream, 1)
        [first] = await bench.take(sink, 1)
        bench.client.zrem(bench.control.sink_leases("orders", "billing"), before)
        await bench.seen(SinkLapsed)
        [again] = await bench.take(sink, 1)
        assert (again.id, again.deliveries) == (first.id, 2)
        assert await sink.ack(again)
        await bench.until(lambda: bench.consumers() == {sink.consumer})
        assert sink.consumer != before
        # A renewal of the name before says nothing of this one, however late its answer comes.
        [source] = sink._sources.values()
        sink._on_renewed(source, before, float("inf"), ConsumerLease(False, 1000, 0, 0))
        assert source.renewed_s < float("inf")


@pytest.mark.parametrize("step_s", [-3600, -10, 10, 3600])
async def test_a_step_of_the_clock_ends_no_lease_and_no_grace(bench: Bench, step_s: int) -> None:
    """A sink's time goes on by renewals, and the grace by the clock of who has the event."""
    state = bench.control.sink("orders", "billing")
    async with bench.stream() as stream, stream.sink("billing", grace_s=60) as sink:
        await bench.add(stream, 1)
        [event] = await bench.take(sink, 1)
        before = sink.consumer
        for _ in range(5):
            seen = int(bench.client.hget(state, "seen"))
            bench.client.hset(state, "seen", seen - 1000 * step_s)
            await bench.renewed(before)
        assert (sink.consumer, bench.all_seen(SinkLapsed)) == (before, [])
        assert not bench.all_seen(SinkMended)
        assert await sink.ack(event)


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
                    bench.control.sink("orders", "billing"),
                    bench.control.sink_leases("orders", "billing"),
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
    name = bench.control.sink("orders", "billing")
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
    assert bench.client.hexists(name, "cursor")


async def test_a_cursor_beyond_its_stream_passes_nothing_over(bench: Bench) -> None:
    """The stream is another one than that where it was noted."""
    async with bench.stream() as stream:
        await bench.add(stream, 0, 1)
        bench.client.hset(bench.control.sink("orders", "billing"), "cursor", "9999999999999-0")
        async with stream.sink("billing") as sink:
            assert await bench.take_numbers(sink, 2) == [0, 1]


def cursor(bench: Bench) -> str:
    text: Any = bench.client.hget(bench.control.sink("orders", "billing"), "cursor")
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


async def test_leaving_a_dead_server_is_bounded(bench: Bench, watch: Stopwatch) -> None:
    """However much is buffered: what cannot be given back is freed by whoever cleans next."""
    async with bench.stream() as writer, fault_proxy(bench.url) as proxy:
        async with bench.stream(url=proxy.url) as stream:
            async with stream.sink("billing", buffer_max=1000) as sink:
                await bench.add(writer, *range(300))
                await bench.until(lambda: len(sink._buffer) == 300)
                proxy.go_silent()
                watch.restart()
            assert watch.took_s() < 4 * bench.settings.op_timeout_s
            await proxy.heal()
        async with writer.sink("billing", buffer_max=1000) as other:
            numbers = []
            for _ in range(300):  # doubtful ones: each comes when the one before is acknowledged
                [event] = await bench.take(other, 1)
                numbers.append(int(event.payload))
                await other.ack(event)
            assert sorted(numbers) == [*range(300)]


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
        assert bench.client.exists(bench.control.sink_leases("orders", "billing")) == 0
        assert bench.client.hget(bench.control.sink("orders", "billing"), "holder") is None
        with pytest.raises(StopAsyncIteration):
            await anext(sink)


async def test_what_could_not_be_noted_is_noted_with_the_next_tick(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was acknowledged before is not: that would cost a call."""
    real, refused = Pipeline.send, list[Any]()

    def send(self: Pipeline, command: Any, on_reply: Any, **options: Any) -> None:
        if isinstance(command, ScriptCall) and command.script is HAND and not refused:
            refused.append(command)
            on_reply(StoreUnavailable(problem="lost", maybe_done=True))
        else:
            real(self, command, on_reply, **options)

    async with bench.stream() as stream, stream.sink("billing", grace_s=60) as sink:
        monkeypatch.setattr(Pipeline, "send", send)
        await bench.add(stream, 0)
        [event] = await bench.take(sink, 1)
        await bench.until(lambda: bench.pending()[event.id][1] // 1000 == 1)
        assert refused
        monkeypatch.setattr("pool.streams.sink_hands.NOTED_S", 60.0)
        await bench.add(stream, 1)
        [event] = await bench.take(sink, 1)
        [source] = sink._sources.values()
        assert [*source.fresh] == [event.id]
        await sink.ack(event)
        assert not source.fresh


async def test_a_ttl_that_has_changed_leaves_one_timer(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing") as sink:
        [source] = sink._sources.values()
        cancelled, cancel = list[int](), sink._cancel_tick

        def noted() -> None:
            cancelled.append(1)
            cancel()

        sink._cancel_tick = noted
        told = ConsumerLease(is_holder=False, ttl_ms=60_000, released=0, doubtful=0)
        sink._on_renewed(source, sink.consumer, sink._session.io.clock(), told)
        assert cancelled == [1]
        assert sink._timing.ttl_ms == 60_000


async def test_a_closed_sink_has_no_timer_under_way(bench: Bench) -> None:
    """That of what was in hand would come a grace later."""
    async with bench.stream() as stream:
        async with stream.sink("billing", grace_s=60) as sink:
            await bench.add(stream, 0)
            await bench.take(sink, 1)
            loop: Any = sink._loop
            assert loop.timers
        await bench.until(lambda: not loop.timers)


async def test_what_is_on_its_way_to_the_program_is_not_unknown(bench: Bench) -> None:
    """Given back by who looks twice meanwhile, it would be in two hands: read, not yet buffered."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        [source] = sink._sources.values()
        source.is_taking = True  # so what is read waits
        [entry_id] = await bench.add(stream, 0)
        await bench.until(lambda: sink._held is not None)
        for _ in range(2):
            sink._hands._on_held(source, sink.consumer, frozenset(), [entry_id])
            assert not source.unknown
        source.is_taking = False
        sink._take_held()
        [event] = await bench.take(sink, 1)
        assert await sink.ack(event)


async def test_what_a_read_gives_us_long_after_its_connection_broke_is_found(bench: Bench) -> None:
    """The network may bring the read to the server when all that was doubtful is settled."""
    async with bench.stream() as stream, stream.sink("billing") as sink:
        [source] = sink._sources.values()
        await bench.add(stream, 0)
        [event] = await bench.take(sink, 1)
        assert await sink.ack(event)
        await bench.until(lambda: not source.is_doubted)
        entry_id = read_as(bench, sink.consumer, 1, 2)
        events = await bench.take(
            sink, 2
        )  # the newer one first: nothing behind it tells of the other
        assert sorted(event.payload for event in events) == [b"1", b"2"]
        assert entry_id in {event.id for event in events}
        assert await sink.ack_many(events) == 2


async def test_what_a_read_may_still_bring_is_not_given_back(bench: Bench) -> None:
    """Over a slow line that takes longer than from one look to the next."""
    settings = attrs.evolve(bench.settings, lease_ttl_s=60.0)  # so one read waits all the time
    async with bench.stream(settings=settings) as stream, stream.sink("billing") as sink:
        [source] = sink._sources.values()
        await bench.until(lambda: sink._tailer.read_number > 1)  # the first one asks what is ours
        entry_id = read_as(bench, sink.consumer, 0)
        for _ in range(3):
            sink._hands._on_held(source, sink.consumer, frozenset(), [entry_id])
            assert source.unknown == {entry_id}
        await sink._session.pipeline.execute("PING")
        assert bench.pending()[entry_id][0] == sink.consumer
        sink._tailer._reads += 1  # as if that read were over, and had not brought it
        sink._hands._on_held(source, sink.consumer, frozenset(), [entry_id])
        [event] = await bench.take(sink, 1)
        assert event.id == entry_id


def read_as(bench: Bench, consumer: str, *numbers: int) -> str:
    """Add events, and read the first one under a consumer's name before anybody can."""
    last = bench.client.hincrby(bench.control.stream_meta("orders"), "n", len(numbers))
    with bench.client.pipeline(transaction=True) as step:
        for n, number in enumerate(numbers, last - len(numbers) + 1):
            step.xadd(bench.key, {"n": n, "e": "counted", "p": number})
        step.xreadgroup("billing", consumer, {bench.key: ">"}, count=1)
        entry_id: bytes = step.execute()[0]
    return entry_id.decode()


async def test_a_suspect_that_is_being_noted_is_not_unknown(bench: Bench) -> None:
    async with bench.stream() as stream, stream.sink("billing") as sink:
        [source] = sink._sources.values()
        await bench.add(stream, 0)
        await bench.until(lambda: len(sink._buffer))
        item = await sink._buffer.next()  # as who iterates takes it, before the note of it
        source.position = item.event.id  # and the batch is done with
        item.is_doubtful, sink._calls.trial = True, item
        for _ in range(2):
            sink._hands._on_held(source, sink.consumer, frozenset(), [item.event.id])
            assert not source.unknown
        assert await sink._hands.hand_out(item)
