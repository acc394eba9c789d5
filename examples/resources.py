"""What handlers share for as long as their node is open, and what each attempt is given.

It prints:

    opened the connection pool of shop
    order-1: begins, writes, commits
    stored order-1 (2 rows)
    order-2: begins, rolls back: sold out
    closed the connection pool
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from pool import Depends, Handlers, Job, Node
from pool.errors import JobParked


class Connections:
    """Stands for what a database driver has."""

    rows = 0


class Transaction:
    def __init__(self, of: Connections) -> None:
        self.of, self.said = of, ["begins"]

    def write(self, rows: int) -> None:
        self.of.rows += rows
        self.said.append("writes")


@asynccontextmanager
async def lifespan(node: Node) -> AsyncIterator[Connections]:
    print(f"opened the connection pool of {node.pool}")
    yield Connections()
    print("closed the connection pool")


async def transaction(
    job: Job, connections: Connections = Depends(lifespan)
) -> AsyncIterator[Transaction]:
    made = Transaction(connections)
    try:
        yield made
    except BaseException as error:
        print(f"{job.key}: {', '.join(made.said)}, rolls back: {error}")
        raise
    print(f"{job.key}: {', '.join(made.said)}, commits")


handlers = Handlers(lifespan=lifespan)


@handlers.job("store", attempts_max=1)
async def store(job: Job, rows: int, *, transaction: Transaction = Depends(transaction)) -> str:
    if not rows:
        raise ValueError("sold out")
    transaction.write(rows)
    return f"stored {job.key} ({transaction.of.rows} rows)"


async def main() -> None:
    async with Node("shop", "embedded://", handlers=handlers, observers=()) as node:
        print(await (await node.dispatch(store, "order-1", 2)).result())
        with suppress(JobParked):
            await (await node.dispatch(store, "order-2", 0)).result()


if __name__ == "__main__":
    anyio.run(main)
