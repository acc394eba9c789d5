"""An order as a chain of jobs: charge, ship, tell; and a refund where a stage of it fails.

Each stage is accepted in the very step that ends the one before it, so whichever process dies, no
order is charged and then forgotten.  It prints

    o-1: done order, done ship, done tell
    o-2: done order, parked ship, done refund
    told o-1: parcel of o-1
    refunded o-2: parked: failed: ValueError: out of stock
"""

import anyio

from pool import Follower, Handlers, Job, JobRef, Node
from pool.listing import Stage

handlers = Handlers()
said: list[str] = []
ENDED = {"done", "parked", "cancelled"}


@handlers.job("charge")
async def charge(_: Job, cents: int) -> int:
    return cents  # here the provider is asked, with job.once()


@handlers.job("ship", attempts_max=1)
async def ship(_: Job, paid: int, order: str) -> str:
    if paid > 1000:
        raise ValueError("out of stock")
    return f"parcel of {order}"


@handlers.job("tell")
async def tell(_: Job, parcel: str, order: str) -> None:
    said.append(f"told {order}: {parcel}")


@handlers.job("refund")
async def refund(_: Job, why: str, order: str) -> None:
    said.append(f"refunded {order}: {why}")


async def order(node: Node, name: str, cents: int) -> JobRef[int]:
    """Dispatch an order; keys are its own, so all of its jobs are found by them."""
    back = Follower(refund, f"{name}/refund", name).options(takes_result=True)
    told = Follower(tell, f"{name}/tell", name).options(takes_result=True)
    sent = Follower(ship, f"{name}/ship", name)
    sent = sent.options(takes_result=True, then=told, otherwise=back)
    return await node.options(then=sent, job_id=name).dispatch(charge, f"{name}/order", cents)


async def ended(ref: JobRef[int]) -> list[Stage]:
    """Wait until no stage is to come any more."""
    while True:
        stages = await ref.stages()
        if {stage.state for stage in stages} <= ENDED:
            return stages
        await anyio.sleep(0.02)


async def main() -> None:
    async with Node("shop", "embedded://", handlers=handlers) as node:
        for name, cents in (("o-1", 500), ("o-2", 5000)):
            stages = await ended(await order(node, name, cents))
            words = [f"{stage.state} {stage.key.partition('/')[2]}" for stage in stages]
            print(f"{name}: {', '.join(words)}")
    print("\n".join(said))


if __name__ == "__main__":
    anyio.run(main)
