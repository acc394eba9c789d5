"""A payment that is made once, or given back when it is cancelled, whatever dies in between.

It prints:

    order-1: charge 1, parcel 2, asked for again
    order-2: cancelled (sold out: 3 was given back by 5)
    order-3: cancelled (changed my mind)
    order-1 was charged 1 time
"""

import json
import sys
from functools import partial
from urllib.request import urlopen

import anyio

from pool import Cancel, Handlers, Job, Node, Step
from pool.errors import JobCancelled

PROVIDER = __file__.replace("payments.py", "providers/payments.py")
handlers = Handlers(attempts_max=10, backoff_s=0.02, backoff_max_s=0.1)


def ask(port: int, what: str, order: str, step: Step) -> int:
    """Have the provider do something; who asks again under the same key is told the same again."""
    call = json.dumps([step.key, what, order]).encode()
    with urlopen(f"http://127.0.0.1:{port}", call, timeout=5) as answer:
        return int(answer.read())


@handlers.job("once")
async def once(job: Job, port: int, what: str) -> int:
    return await job.once(what, partial(ask, port, what, job.key))


@handlers.job("pay")
async def pay(job: Job, port: int, packing_s: float = 0.0) -> str:
    try:
        charge = await once(job, port, "charge")
        await anyio.sleep(packing_s)
        if not (parcel := await once(job, port, "ship")):
            raise Cancel(f"sold out: {charge} was given back by {await once(job, port, 'refund')}")
        return f"charge {charge}, parcel {parcel}{', asked for again' * (job.attempt > 1)}"
    finally:
        with job.ending():
            if job.stop_cause:  # who asked for that waits until we have ended
                await once(job, port, "refund")


async def cancel(node: Node, order: str, port: int) -> str:
    """Stop a payment, unless it is made; return what became of it.  It may be called again."""
    ref = await node.job(order, idempotency_key=order)
    await ref.stop("changed my mind")
    if (status := await ref.status()).state != "done":  # and if its worker could not refund it:
        via = node.options(idempotency_key=f"cancel {order}")
        await (await via.dispatch(once, order, port, "refund")).result(timeout_s=30)
    return f"{status.state} ({status.cause})"


async def main() -> None:
    provider = await anyio.open_process([sys.executable, PROVIDER], stderr=None)
    async with provider, Node("shop", "embedded://", handlers=handlers, observers=()) as node:
        assert provider.stdout is not None
        port = int(await provider.stdout.receive())
        for order in ("order-1", "order-2"):
            ref = await node.options(idempotency_key=order).dispatch(pay, order, port)
            try:
                print(f"{order}: {await ref.result(timeout_s=30)}")
            except JobCancelled as error:
                print(f"{order}: cancelled ({error.cause})")
        await node.options(idempotency_key="order-3").dispatch(pay, "order-3", port, 60.0)
        print("order-3:", await cancel(node, "order-3", port))
        print("order-1 was charged", ask(port, "charges", "order-1", Step(name="", key="")), "time")
        provider.terminate()


if __name__ == "__main__":
    anyio.run(main)
