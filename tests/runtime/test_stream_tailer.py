"""The one body that reads streams: nothing is passed over, nothing piles up, nothing spins."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from pool.core.lease import Timing
from pool.core.retry import reconnect_delay
from pool.errors import PoolError, StoreFault, StoreUnavailable
from pool.redis.io.system import BodyIO, SystemIO
from pool.redis.url import Url
from pool.runtime.stream_tailer import FIRST, Brought, Reading, StreamTailer
from pool.testing.proxy import fault_proxy
from tests.servers import connect

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]

TIMING = Timing(1.0)
SELDOM = Timing(600.0)  # probes every two minutes

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _probes_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the TTL alone: else there is one every 10 s, sooner than anybody gives up."""
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 600.0)


@attrs.define(eq=False)
class Heard:
    """What the tailer told its owner, who takes nothing by itself."""

    batches: list[Brought[Reading]] = attrs.field(factory=list)
    probes: list[bool] = attrs.field(factory=list)
    troubles: list[tuple[PoolError, int]] = attrs.field(factory=list)
    backs: list[int] = attrs.field(factory=list)
    _bell: anyio.Event = attrs.field(factory=anyio.Event)

    def keep(self, where: list[Any]) -> Callable[..., None]:
        def hear(*what: Any) -> None:
            where.append(what[0] if len(what) == 1 else what)
            self._bell.set()

        return hear

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                self._bell = anyio.Event()
                await self._bell.wait()

    def numbers(self) -> list[list[int]]:
        return [
            [int(fields["n"]) for _, entries in batch.told for _, fields in entries]
            for batch in self.batches
        ]


@asynccontextmanager
async def tailing(
    url: str, *streams: str, count: int = 10, timing: Timing = TIMING, **options: Any
) -> AsyncIterator[Any]:
    heard, ends = Heard(), list[BaseException | None]()
    tailer = StreamTailer[Reading](
        name="pool-tailer",
        io=SystemIO(),
        url=Url.parse(url),
        timing=lambda: timing,
        count=count,
        on_batch=heard.keep(heard.batches),
        on_probed=heard.keep(heard.probes),
        on_trouble=heard.keep(heard.troubles),
        on_back=heard.keep(heard.backs),
        care=None,
        on_end=ends.append,
        **options,
    )
    tailer.follow([Reading(stream, FIRST) for stream in streams])
    tailer.start()
    try:
        yield tailer, heard
    finally:
        await tailer.aclose(1.0)
        await tailer.aclose(1.0)
        assert ends == [None]


async def ask(body_io: BodyIO, readings: Any, after_failures: bool) -> bool:
    """Probe the server, as an owner would; say whether that was after failures."""
    [reply] = await body_io.run([("PING",)], timeout_s=1.0)
    if isinstance(reply, PoolError):
        raise reply
    return after_failures


class Lowest(random.Random):
    """Dice that show how short a pause can be."""

    def random(self) -> float:
        return 0.0


@pytest.fixture
def client(redis_url: str) -> Any:
    with connect(redis_url) as client:
        yield client


def add(client: Any, stream: str, *numbers: int) -> None:
    for n in numbers:
        client.xadd(stream, {"n": n})


async def test_it_does_not_read_on_before_what_it_read_was_taken(
    redis_url: str, pool_name: str, client: Any
) -> None:
    stream = f"pool:{{{pool_name}}}:s"
    add(client, stream, *range(25))
    async with tailing(redis_url, stream) as (tailer, heard):
        for batches in (1, 2, 3):
            await heard.until(lambda: len(heard.batches) == batches)  # noqa: B023
            position = tailer.readings[stream].position
            assert client.xinfo_stream(stream)["entries-added"] == 25
            tailer.taken(heard.batches[-1])
            assert position != tailer.readings[stream].position == heard.batches[-1].ends[0][1]
        assert heard.numbers() == [[*range(10)], [*range(10, 20)], [*range(20, 25)]]


async def test_what_was_given_up_is_read_again_and_taken_only_once(
    redis_url: str, pool_name: str, client: Any
) -> None:
    """A crash between reading and taking passes nothing over; a late word moves nothing."""
    stream = f"pool:{{{pool_name}}}:s"
    add(client, stream, *range(15))
    async with tailing(redis_url, stream) as (tailer, heard):
        await heard.until(lambda: len(heard.batches) == 1)
        tailer.read_on()
        await heard.until(lambda: len(heard.batches) == 2)
        first, second = heard.batches
        tailer.taken(first)
        assert tailer.readings[stream].position == FIRST
        tailer.taken(second)
        tailer.taken(second)
        await heard.until(lambda: len(heard.batches) == 3)
        tailer.taken(heard.batches[2])
        assert heard.numbers() == [[*range(10)], [*range(10)], [*range(10, 15)]]


async def test_who_asks_for_a_probe_first_is_brought_the_same_again_behind_it(
    redis_url: str, pool_name: str, client: Any
) -> None:
    """Once; a late word, about a batch that is not under way any more, asks for nothing."""
    stream = f"pool:{{{pool_name}}}:s"
    add(client, stream, *range(15))
    async with tailing(redis_url, stream, probe=ask, timing=SELDOM) as (tailer, heard):
        await heard.until(lambda: len(heard.batches) == 1)
        tailer.probe_first(heard.batches[0])
        await heard.until(lambda: heard.probes)
        assert len(heard.batches) == 1
        tailer.taken()
        await heard.until(lambda: len(heard.batches) == 2)
        tailer.probe_first(heard.batches[0])
        tailer.taken(heard.batches[1])
        await heard.until(lambda: len(heard.batches) == 3)
        assert heard.numbers() == [[*range(10)], [*range(10)], [*range(10, 15)]]
        assert heard.probes == [False]


async def test_a_read_that_the_server_refuses_is_repeated_slowly(
    redis_url: str, pool_name: str, client: Any
) -> None:
    """A key of another type does not change in a round trip: nothing spins on it."""
    stream, good = f"pool:{{{pool_name}}}:s", f"pool:{{{pool_name}}}:good"
    client.set(stream, "of another type")
    clock = SystemIO.clock

    async with tailing(redis_url, stream, probe=ask, timing=SELDOM) as (tailer, heard):
        began_s = clock()
        for tries in range(1, 4):
            await heard.until(lambda: len(heard.troubles) == tries)  # noqa: B023
            await heard.until(lambda: len(heard.probes) == tries)  # noqa: B023
            tailer.taken()
        assert clock() - began_s >= 3 * reconnect_delay(3, Lowest())
        assert all(isinstance(error, StoreFault) for error, _ in heard.troubles)
        client.delete(stream)
        add(client, good, 1)
        tailer.follow([Reading(good, FIRST)])
        await heard.until(lambda: len(heard.probes) > 3 or len(heard.batches) == 1)
        if not heard.batches:
            tailer.taken()
        await heard.until(lambda: len(heard.batches) == 1)


async def test_after_a_lost_connection_it_probes_before_it_reads_on(
    redis_url: str, pool_name: str, client: Any
) -> None:
    """Another server may answer: whoever follows a history must look before reading."""
    stream = f"pool:{{{pool_name}}}:s"

    async with (
        fault_proxy(redis_url) as proxy,
        tailing(proxy.url, stream, probe=ask, timing=SELDOM) as (tailer, heard),
    ):
        add(client, stream, 1)
        await heard.until(lambda: len(heard.batches) == 1)
        await proxy.refuse()
        tailer.taken(heard.batches[0])
        await heard.until(lambda: len(heard.troubles) >= 2)
        assert [failures for _, failures in heard.troubles[:2]] == [0, 1]
        assert isinstance(heard.troubles[0][0], StoreUnavailable)
        add(client, stream, 2)
        await proxy.listen()
        await heard.until(lambda: heard.probes == [True])
        assert len(heard.batches) == 1
        assert len(heard.backs) == 1
        tailer.taken()
        await heard.until(lambda: len(heard.batches) == 2)
        tailer.taken(heard.batches[1])
        assert heard.numbers() == [[1], [2]]
