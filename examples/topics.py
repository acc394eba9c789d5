"""Readers choose by topic: exactly, by pattern, or with a function of their own.

It prints:

    books: eu.books 3, us.books 5
    europe: eu.books 3, eu.toys 4
    large: us.books 5, us.toys 6
"""

from __future__ import annotations

import anyio

from pool import Stream
from pool.streams import StreamEvent

SALES = {"eu.books": 3, "eu.toys": 4, "us.books": 5, "us.toys": 6}


def is_large(event: StreamEvent) -> bool:
    return int(event.payload) > 4


async def main() -> None:
    # Without a node: a stream on a connection of its own.
    async with Stream.open("embedded://", "sales", pool="shop", observers=()) as sales:
        for topic, amount in SALES.items():
            await sales.add("sold", str(amount), topic=topic)
        for name, reader in (
            ("books", sales.reader(topics={"eu.books", "us.books"})),
            ("europe", sales.reader(pattern="eu.*")),
            ("large", sales.reader(where=is_large)),
        ):
            async with reader:
                events = [await anext(reader) for _ in range(2)]
            print(f"{name}: {', '.join(f'{e.topic} {e.payload.decode()}' for e in events)}")


if __name__ == "__main__":
    anyio.run(main)
