"""The object form: for code that manages start and stop itself.

It prints:

    lobby: opened, about the weather
    lobby: ann says hello
    lobby: bob says hi
    lobby: closed after 2 lines
"""

from __future__ import annotations

from typing import Any

import anyio

from pool import Depends, Handlers, Job, Node

handlers = Handlers()
quiet: list[anyio.Event] = []


def bell() -> anyio.Event:
    """Rings when all has been said."""
    return quiet[0]


class Room:
    """A chat room, one for each key, made with what it depends on."""

    def __init__(self, bell: anyio.Event = Depends(bell)) -> None:
        self.bell = bell
        self.lines: list[str] = []

    async def start(self, job: Job, topic: str) -> None:
        """Open the room, and return: it is open until `stop`."""
        self.lines = job.state or []
        print(f"{job.key}: opened, about {topic}")

    async def notify(self, job: Job, line: Any) -> None:
        """Take one message; the next one comes when this returns."""
        if line is None:
            self.bell.set()
        else:
            self.lines.append(line)
            print(f"{job.key}: {line}")

    async def stop(self, job: Job) -> None:
        """Close it: it was stopped, or goes to another worker, who finds this state."""
        job.state = self.lines
        print(f"{job.key}: closed after {len(self.lines)} lines")


room = handlers.service("room")(Room)


async def main() -> None:
    quiet.append(anyio.Event())
    async with Node("chat", "embedded://", handlers=handlers) as node:
        ref = await node.dispatch(room, "lobby", "the weather")
        for line in ("ann says hello", "bob says hi", None):
            await node.notify("lobby", line)
        await quiet[0].wait()
        await ref.stop(cause="the evening is over", timeout_s=10)


if __name__ == "__main__":
    anyio.run(main)
