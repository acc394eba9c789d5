"""The object form: for code that manages start and stop itself.

It prints:

    lobby: opened
    lobby: ann says hello
    lobby: bob says hi
    lobby: closed
"""

from __future__ import annotations

from typing import Any

import anyio

from pool import Handlers, Job, Node


class Rooms:
    """Chat rooms, one per key.  Many keys share the object; pool calls it on the event loop."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        self.is_quiet = anyio.Event()

    async def start(self, job: Job) -> None:
        """Open the room, and return: it is open until `stop`."""
        self.lines[job.key] = []
        print(f"{job.key}: opened")

    async def stop(self, key: str) -> None:
        """Close it: it was stopped, or goes to another worker."""
        del self.lines[key]
        print(f"{key}: closed")

    async def notify(self, key: str, payload: Any) -> None:
        """Take one message; the next one comes when this returns."""
        if payload is None:
            self.is_quiet.set()
        else:
            self.lines[key].append(payload)
            print(f"{key}: {payload}")


async def main() -> None:
    rooms = Rooms()
    handlers = Handlers()
    room = handlers.runner("room", rooms)
    async with Node("chat", "embedded://", handlers=handlers) as node:
        ref = await node.dispatch(room, "lobby")
        for line in ("ann says hello", "bob says hi", None):
            await node.notify("lobby", line)
        await rooms.is_quiet.wait()
        await ref.stop(cause="the evening is over", timeout_s=10)


if __name__ == "__main__":
    anyio.run(main)
