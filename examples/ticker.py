"""A service: it takes notifications, and carries its state from one node to the next.

    eur-usd on its 1st owner
    handed over, to its 2nd owner
    seen by all owners: 4 prices from 1.07 to 1.10
"""

from __future__ import annotations

from typing import Any

import anyio

from pool import Handlers, Job, Node

handlers = Handlers()


@handlers.service("ticker")
async def ticker(job: Job, symbol: str) -> dict[str, Any]:
    """Keep the extremes of a price; the price None ends it."""
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
    # This node has no handlers: a client.  Its server is the one that the other two use.
    async with Node("market", "embedded://") as client:
        async with Node("market", client.url, handlers=handlers, label="one"):
            ref = await client.options(allow_unknown=True).dispatch(ticker, "eur-usd", "eur-usd")
            await ref.started(timeout_s=10)
            print("eur-usd on its 1st owner")
            await client.notify("eur-usd", 1.08)
            await client.notify("eur-usd", 1.07)
        # Its node has left, and the key has no owner now.  Messages wait for the next one.
        await client.notify("eur-usd", 1.10)
        async with Node("market", client.url, handlers=handlers, label="two"):
            await client.notify("eur-usd", 1.09)
            await client.notify("eur-usd", None)
            end = await ref.result(timeout_s=10)
    prices = end["prices"]
    print(f"handed over, to its {end['owners']}nd owner")
    print(f"seen by all owners: {len(prices)} prices from {min(prices):.2f} to {max(prices):.2f}")


if __name__ == "__main__":
    anyio.run(main)
