"""A reader catches up after an outage: nothing is passed over, and nothing comes twice.

It prints:

    before the outage: 0 1 2
    while the network was away, 3 to 9 were added
    after it: 3 4 5 6 7 8 9
    started again from its stored position: 10
"""

from __future__ import annotations

import anyio

from pool import Stream
from pool.streams import Reader
from pool.testing import EmbeddedServer, fault_proxy, find_server


async def read(reader: Reader, count: int) -> str:
    return " ".join([(await anext(reader)).payload.decode() for _ in range(count)])


async def main() -> None:
    with EmbeddedServer.start(find_server("path")) as server:
        async with (
            fault_proxy(server.url) as network,  # between the reader and the server
            Stream.open(server.url, "ticks", observers=()) as ticks,
            Stream.open(network.url, "ticks", observers=()) as seen,
        ):
            async with seen.reader() as reader:
                for n in range(3):
                    await ticks.add("tick", str(n))
                print("before the outage:", await read(reader, 3))
                await network.refuse()
                for n in range(3, 10):
                    await ticks.add("tick", str(n))
                print("while the network was away, 3 to 9 were added")
                await network.listen()
                print("after it:", await read(reader, 7))
                position = reader.position(seen)  # a program keeps it with what it has done
            await ticks.add("tick", "10")
            async with seen.reader(position) as reader:
                print("started again from its stored position:", await read(reader, 1))


if __name__ == "__main__":
    anyio.run(main)
