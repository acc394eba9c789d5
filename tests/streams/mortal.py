"""A process that may die after any of its commands: nothing of it reaches the server then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from pool.errors import StoreUnavailable
from pool.redis.io.system import Body, BodyIO, Entries, Group, Reply, RunningBody, SystemIO
from pool.redis.scripts import Command, ScriptCall
from pool.redis.url import Url


@attrs.define(eq=False)
class Life:
    """How many more commands reach the server.  The last one does; its answer reaches nobody."""

    left: int
    steps: list[str] = attrs.field(factory=list)

    def spend(self, what: str) -> None:
        self.steps.append(what)
        self.left -= 1


@attrs.define(eq=False)
class MortalBodyIO:
    """A port of a process that may die: each command is a step of its own."""

    port: BodyIO
    life: Life

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)

    async def connect(self, *, timeout_s: float) -> None:
        self._check()
        await self.port.connect(timeout_s=timeout_s)

    @property
    def moved_s(self) -> float:
        return self.port.moved_s

    async def run(
        self, calls: Sequence[Command], *, timeout_s: float, longest_s: float | None = None
    ) -> list[Reply]:
        replies: list[Reply] = []
        for call in calls:
            if self.life.left <= 0:
                replies.append(StoreUnavailable(problem="dead", maybe_done=False))
                continue
            self.life.spend(call.script.name if isinstance(call, ScriptCall) else str(call[0]))
            [reply] = await self.port.run([call], timeout_s=timeout_s, longest_s=longest_s)
            is_last = self.life.left == 0
            replies.append(StoreUnavailable(problem="dead", maybe_done=True) if is_last else reply)
        return replies

    async def read(
        self,
        positions: Mapping[str, str],
        *,
        block_s: float,
        timeout_s: float,
        count: int,
        group: Group | None = None,
    ) -> Entries:
        self._check()
        # A read that brings nothing is no step: it changes nothing.
        block_s = min(block_s, 0.02)
        entries = await self.port.read(
            positions, block_s=block_s, timeout_s=timeout_s, count=count, group=group
        )
        if entries and any(found for _, found in entries):
            self.life.spend("read")
        self._check()
        return entries

    def _check(self) -> None:
        if self.life.left <= 0:
            raise StoreUnavailable(problem="dead", maybe_done=True)


class MortalIO(SystemIO):
    """The world of that process."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def start(self, name: str, url: Url, body: Body, **options: Any) -> RunningBody:
        life = self._life
        return super().start(name, url, lambda port: body(MortalBodyIO(port, life)), **options)
