"""A service: it takes notifications, and carries its state from one node to the next.

It prints:

    started on node one
    node one drains, node two goes on
    4 prices from 1.06 to 1.09, seen by 2 owners
"""

from __future__ import annotations

from typing import Any

import anyio

from pool import Handlers, Job, Node

handlers = Handlers()


@handlers.service("ticker")
async def ticker(job: Job, symbol: str) -> dict[str, Any]:
    """Collect the prices of a symbol; the price None ends it."""
    state = job.state or {"symbol": symbol, "owners": 0, "prices": []}
    state["owners"] += 1
    try:
        async for price in job.notifications():
            if price is None:
                break  # a service that returns is done, and what it returns is its result
            state["prices"].append(price)
    finally:
        job.state = state  # what the next owner finds, if there is one
    return dict(state)


async def main() -> None:
    async with Node("market", "embedded://", handlers=handlers, label="one") as one:
        ref = await one.dispatch(ticker, "eur-usd", "eur-usd")
        await ref.started(timeout_s=10)
        print("started on node one")
        await one.notify("eur-usd", 1.08)
        await one.notify("eur-usd", 1.06)
        # Here a second node in this process; `one.url` leads to the same server from any other.
        async with Node("market", one.url, handlers=handlers, label="two"):
            await one.drain()  # services are handed over at once; the node stays, as a client
            print("node one drains, node two goes on")
            for price in (1.09, 1.07, None):
                await one.notify("eur-usd", price)
            end = await ref.result(timeout_s=10)
    prices = end["prices"]
    seen = f"{len(prices)} prices from {min(prices)} to {max(prices)}"
    print(f"{seen}, seen by {end['owners']} owners")


if __name__ == "__main__":
    anyio.run(main)
