"""Handlers put together: a part with a prefix, middleware around all, a hook, a line per job.

It prints:

    dispatching billing.charge for order-1
    order-1: began, tenant acme
    order-1: ended
    charged 12 for acme
    order-2 was parked after attempt 1
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import anyio
import attrs

from pool import Handlers, Job, JobRef, Node
from pool.errors import JobParked
from pool.middleware import Happened, Outgoing

tenant: ContextVar[str] = ContextVar("tenant")
billing = Handlers(attempts_max=1)  # unless a handler says otherwise
handlers = Handlers(log_jobs="debug")
handlers.include(billing, prefix="billing.")


@handlers.around_dispatch
async def send_tenant(
    outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[JobRef[Any]]]
) -> JobRef[Any]:
    if outgoing.key == "order-1":
        print(f"dispatching {outgoing.handler} for {outgoing.key}")
    kwargs = {**outgoing.kwargs, "of": tenant.get()}
    return await call_next(attrs.evolve(outgoing, kwargs=kwargs))


@billing.around_run
async def told(job: Job, call_next: Callable[[], Awaitable[Any]]) -> Any:
    value = await call_next()
    print(f"{job.key}: ended")
    return value


@billing.job("charge")
async def charge(job: Job, amount: int, of: str = "") -> str:
    if amount < 0:
        raise ValueError("nothing to charge")
    print(f"{job.key}: began, tenant {of}")
    return f"charged {amount} for {of}"


@handlers.on("parked")
async def call_somebody(happened: Happened) -> None:
    print(f"{happened.key} was parked after attempt {happened.attempt}")


async def main() -> None:
    tenant.set("acme")
    async with Node("shop", "embedded://", handlers=handlers, observers=()) as node:
        print(await (await node.dispatch(charge, "order-1", 12)).result())
        with suppress(JobParked):
            await (await node.dispatch(charge, "order-2", -1)).result()
        await anyio.sleep(0.1)  # nobody waits for hooks


if __name__ == "__main__":
    anyio.run(main)
