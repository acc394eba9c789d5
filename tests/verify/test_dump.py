"""What the store is said to hold at the end of a campaign."""

from __future__ import annotations

import anyio
import pytest

from pool import Handlers, Job, Node
from tests.servers import connect
from tests.verify import dump

pytestmark = pytest.mark.anyio


async def test_a_job_is_of_the_kind_that_its_handler_is_registered_as(
    redis_url: str, pool_name: str
) -> None:
    """Dispatched before anybody had registered it, as behind a loss, a service looks like a job."""
    handlers, begun = Handlers(), anyio.Event()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with Node(pool_name, redis_url) as client:
        ref = await client.options(allow_unknown=True).dispatch("serve", "k")
        with connect(redis_url) as store:
            jobs = dump.state_of(store, pool_name)["jobs"]
            assert jobs == {"k": [ref.job_id, "unassigned", "job"]}
            async with Node(pool_name, redis_url, handlers=handlers):
                with anyio.fail_after(10):
                    await begun.wait()
                    while dump.unfinished(store, pool_name):  # noqa: ASYNC110 - it is acknowledged
                        await anyio.sleep(0.01)
                jobs = dump.state_of(store, pool_name)["jobs"]
            assert jobs == {"k": [ref.job_id, "running", "service"]}
