"""Bad input that only shows while a job runs, or when a node opens: D8, D28, D31, D35."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, Node
from pool.errors import DeadlockRisk, JobParked, StoreUnavailable, WrongProtocol
from pool.redis.commands.member import PROTOCOL

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio


async def test_a_handler_that_waits_for_its_own_job_is_told_so(fleet: Fleet) -> None:
    """D31: it would wait until its time is up; another job's result it may wait for."""
    mine = Handlers()
    nodes: list[Node] = []

    @mine.job("other")
    async def other(job: Job) -> int:
        return 7

    @mine.job("own", attempts_max=1)
    async def own(job: Job, key: str) -> Any:
        node = nodes[0].options(if_exists="attach")
        assert await (await node.dispatch(other, "other")).result() == 7
        ref = await node.dispatch("own", key, key)
        assert ref.job_id == job.id
        return await ref.result()

    nodes.append(await fleet.node(mine))
    ref = await nodes[0].dispatch(own, "k", "k")
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=30)
    assert DeadlockRisk.code in parked.value.last_error
    assert (await ref.status()).state == "parked"


async def test_a_job_for_a_handler_that_is_not_there_waits_visibly(fleet: Fleet) -> None:
    """D8: granted to nobody, counted, and done once somebody knows the handler."""
    mine, late = Handlers(), Handlers()

    @mine.job("here")
    async def here(job: Job) -> None: ...

    @late.job("late")
    async def done(job: Job) -> int:
        return 1

    node = await fleet.node(mine)
    ref = await node.options(allow_unknown=True).dispatch("late", "k")
    assert (await ref.status()).state == "unassigned"
    await fleet.node(late)
    assert await ref.result(timeout_s=30) == 1


async def test_a_server_that_is_still_loading_is_not_ready_yet(a_fleet: Fleet) -> None:
    """D28: the words are those of Redis; the call may be repeated, and nothing was done."""

    async def loading(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream):
                while True:
                    calls = (await stream.receive()).count(b"*")
                    answer = b"-LOADING Redis is loading the dataset in memory\r\n"
                    await stream.send(answer * calls)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, loading)
        async with a_fleet.running():
            with pytest.raises(StoreUnavailable, match="LOADING") as refused:
                await a_fleet.node(url=f"redis://127.0.0.1:{port}", op_timeout_s=0.5)
            assert (refused.value.retryable, refused.value.maybe_done) == (True, False)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", [str(PROTOCOL + 1), "0", "x", "1e999", "9" * 5000, "\u00b2"])
async def test_a_pool_of_another_protocol_is_refused_before_anything_is_read(
    fleet: Fleet, protocol: str
) -> None:
    """D35: what newer nodes wrote is left to them; junk in its place is as foreign."""
    await fleet.leave(await fleet.node())
    fleet.client.hset(fleet.control.config, "protocol", protocol)
    before = fleet.client.hgetall(fleet.control.config)
    with pytest.raises(WrongProtocol, match="POOLPROTOCOL"):
        await fleet.node()
    assert fleet.client.hgetall(fleet.control.config) == before
    fleet.client.hset(fleet.control.config, "protocol", PROTOCOL)
    await fleet.node()
