"""Streams on a real server, what their library told of them, and what consumers were given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import attrs
import pytest

from pool import Settings, Stream
from pool.names import Control
from pool.streams import Reader, Sink, StreamEvent
from tests.servers import connect

PATIENCE_S = 30.0
LOOK_AGAIN_S = 0.01
SETTINGS = Settings(lease_ttl_s=2.0, op_timeout_s=2.0)

E = TypeVar("E")


@attrs.define(eq=False)
class Bench:
    """One pool on one server, a plain client beside it, and all that was emitted."""

    url: str
    pool: str
    client: Any
    settings: Settings = SETTINGS
    events: list[Any] = attrs.field(factory=list)
    _bell: anyio.Event | None = None

    @asynccontextmanager
    async def stream(
        self,
        name: str = "orders",
        *,
        url: str = "",
        settings: Settings | None = None,
        **options: Any,
    ) -> AsyncIterator[Stream]:
        """Open a stream on a pipeline of its own, as another process would."""
        opened = Stream.open(
            url or self.url,
            name,
            pool=self.pool,
            settings=settings or self.settings,
            observers=(self._note,),
            **options,
        )
        async with opened as stream:
            yield stream

    def _note(self, event: Any) -> None:
        self.events.append(event)
        if self._bell is not None:
            self._bell.set()

    @property
    def control(self) -> Control:
        return Control(self.pool)

    @property
    def key(self) -> str:
        """The events of the stream that tests use when one is enough."""
        return self.control.stream("orders")

    def all_seen(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def seen(self, kind: type[E], times: int = 1) -> E:
        with anyio.fail_after(PATIENCE_S):
            while len(self.all_seen(kind)) < times:
                self._bell = anyio.Event()
                await self._bell.wait()
        return self.all_seen(kind)[-1]

    async def until(self, is_so: Callable[[], object | Awaitable[object]]) -> None:
        """Look again until it is so: for what only the server knows."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                answer = is_so()
                if isinstance(answer, Awaitable):
                    answer = await answer
                if answer:
                    return
                await anyio.sleep(LOOK_AGAIN_S)

    # --- short forms ---

    async def take(self, source: Reader | Sink, count: int) -> list[StreamEvent]:
        """Return the next events."""
        events: list[StreamEvent] = []
        with anyio.fail_after(PATIENCE_S):
            while len(events) < count:
                events.append(await anext(source))
        return events

    async def take_numbers(self, source: Reader | Sink, count: int) -> list[int]:
        return [int(event.payload) for event in await self.take(source, count)]

    @staticmethod
    def numbers(events: list[StreamEvent]) -> list[int]:
        return [int(event.payload) for event in events]

    async def add(self, stream: Stream, *numbers: int, topic: str | None = None) -> list[str]:
        """Add events that carry these numbers; return their ids."""
        ids = [await stream.add("counted", str(n), topic=topic) for n in numbers]
        return [each for each in ids if each is not None]

    # --- the server's side ---

    def put(self, number: int, entry_id: str = "*", *, client: Any = None) -> str:
        """Add an event as the script does, with an id of the server's clock or any other."""
        client = client or self.client
        n = client.hincrby(self.control.stream_meta("orders"), "n", 1)
        fields = {"n": n, "e": "counted", "p": number}
        entry: bytes = client.xadd(self.key, fields, id=entry_id)
        return entry.decode()

    def pending(self, sink: str = "billing", key: str = "") -> dict[str, tuple[str, int]]:
        """What is given and not acknowledged: id -> consumer, deliveries."""
        rows = self.client.xpending_range(key or self.key, sink, "-", "+", 10_000)
        return {
            row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"])
            for row in rows
        }

    def consumers(self, sink: str = "billing", key: str = "") -> set[str]:
        rows = self.client.xinfo_consumers(key or self.key, sink)
        return {row["name"].decode() for row in rows} - {"-", "?"}

    def state(self, sink: str = "billing") -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.client.hgetall(self.control.sink("orders", sink))
        return found

    def end_lease(self, consumer: str | bytes, sink: str = "billing") -> None:
        self.client.zadd(self.control.sink_leases("orders", sink), {consumer: 0})

    def end_time(self, consumer: str, sink: str = "billing") -> None:
        """End the lease of one that has died, if there is one, and its time as the cleaner."""
        self.client.zadd(self.control.sink_leases("orders", sink), {consumer: 0}, xx=True)
        holder = self.state(sink).get(b"holder", b"")
        if holder.startswith(f"{consumer}|".encode()):
            self.client.hset(self.control.sink("orders", sink), "holder", f"{consumer}|0")

    async def renewed(self, consumer: str, sink: str = "billing", stream: str = "orders") -> None:
        """Wait for a renewal of its lease."""
        leases = self.control.sink_leases(stream, sink)
        before = self.client.zscore(leases, consumer)
        await self.until(lambda: self.client.zscore(leases, consumer) not in (None, before))

    def keys(self) -> list[str]:
        return sorted(k.decode() for k in self.client.scan_iter(match=f"pool:{{{self.pool}}}*"))


@pytest.fixture
def bench(redis_url: str, pool_name: str) -> Iterator[Bench]:
    with connect(redis_url) as client:
        yield Bench(redis_url, pool_name, client)
