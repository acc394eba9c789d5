"""A payment that is made once, whatever dies in between; its provider is another process.

It prints:

    order-1: charge 1, parcel 2
    order-2: charge 3, parcel 4, asked for again
    order-3: cancelled (sold out: charge 5 was given back by refund 7)
    order-2 was charged 1 time
"""

import json
import sys
from functools import partial
from urllib.request import urlopen

import anyio

from pool import Cancel, Handlers, Job, Node, Step
from pool.errors import JobCancelled

PROVIDER = __file__.replace("payments.py", "providers/payments.py")
handlers = Handlers()


def ask(port: int, what: str, order: str, step: Step) -> int:
    """Have the provider do something; who asks again under the same key is told the same again."""
    call = json.dumps([step.key, what, order]).encode()
    with urlopen(f"http://127.0.0.1:{port}", call, timeout=5) as answer:
        return int(answer.read())


@handlers.job("pay", attempts_max=10, backoff_s=0.02, backoff_max_s=0.1)
async def pay(job: Job, port: int) -> str:
    charge = await job.once("charge", partial(ask, port, "charge", job.key))
    if not (parcel := await job.once("ship", partial(ask, port, "ship", job.key))):
        refund = await job.once("refund", partial(ask, port, "refund", job.key))
        raise Cancel(f"sold out: charge {charge} was given back by refund {refund}")
    return f"charge {charge}, parcel {parcel}{', asked for again' * (job.attempt > 1)}"


async def main() -> None:
    async with (
        await anyio.open_process([sys.executable, PROVIDER], stderr=None) as provider,
        Node("shop", "embedded://", handlers=handlers, observers=()) as node,
    ):
        assert provider.stdout is not None
        port = int(await provider.stdout.receive())
        for order in ("order-1", "order-2", "order-3"):
            ref = await node.options(idempotency_key=order).dispatch(pay, order, port)
            try:
                print(f"{order}: {await ref.result(timeout_s=30)}")
            except JobCancelled as error:
                print(f"{order}: cancelled ({error.cause})")
        print("order-2 was charged", ask(port, "count", "order-2", Step(name="", key="")), "time")
        provider.terminate()


if __name__ == "__main__":
    anyio.run(main)
