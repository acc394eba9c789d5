"""One stream, two sinks: every order is billed once and mailed once, by whoever has time.

It prints:

    billing: 6 orders, by 2 consumers
    mail: 6 orders, by 1 consumer
"""

from __future__ import annotations

import anyio

from pool import Node, Stream
from pool.streams import Sink

ORDERS = 6
done: dict[str, list[tuple[str, bytes]]] = {"billing": [], "mail": []}


async def consume(stream: Stream, name: str, all_done: anyio.Event) -> None:
    """Be one consumer of a sink; others of that name share the events with it."""
    async with stream.sink(name, buffer_max=1) as sink:
        async for order in sink:
            await work(sink)
            done[name].append((sink.consumer, order.payload))
            await sink.ack(order)  # until here another one would be given it if we died
            if all(len({order for _, order in each}) == ORDERS for each in done.values()):
                all_done.set()


async def work(sink: Sink) -> None:
    """Take long enough for the other consumer to have its share."""
    colleagues = {consumer for consumer, _ in done[sink.name]}
    await anyio.sleep(0.2 if sink.consumer in colleagues else 0.05)


async def main() -> None:
    async with Node("shop", "embedded://", observers=()) as node:
        orders, all_done = node.stream("orders"), anyio.Event()
        async with anyio.create_task_group() as tasks:
            for name in ("billing", "billing", "mail"):
                tasks.start_soon(consume, orders, name, all_done)
            for number in range(ORDERS):
                await orders.add("ordered", f"order {number}")
            await all_done.wait()
            tasks.cancel_scope.cancel()
        for name, events in done.items():
            consumers = len({consumer for consumer, _ in events})
            print(f"{name}: {len(events)} orders, by {consumers} consumer{'s'[: consumers - 1]}")


if __name__ == "__main__":
    anyio.run(main)
