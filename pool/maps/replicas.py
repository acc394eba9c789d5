"""The replicas of one node, or of one part without a node: one copy per map, however many hold it.

hold("flags")    the first one starts a replica and waits for its snapshot
hold("flags")    the second one shares it
release()        the last one stops it
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import attrs

from pool.errors import NotRunning
from pool.maps.commands import StoredMap
from pool.maps.follower import MapFollower
from pool.maps.replica import Replica
from pool.runtime.session import CLOSE_BUDGET_S, Session


@attrs.define(eq=False)
class _HeldReplica:
    replica: Replica
    holders: int = 0


@attrs.define(eq=False, kw_only=True)
class Maps:
    """Starts and stops replicas; the one follower reads for them all."""

    session: Session
    on_lost: Callable[[], object]  # the pool's data are gone
    follower: MapFollower = attrs.field(init=False)
    _held: dict[str, _HeldReplica] = attrs.field(init=False, factory=dict)
    _lock: anyio.Lock = attrs.field(init=False, factory=anyio.Lock)
    _is_closed: bool = attrs.field(init=False, default=False)

    @follower.default
    def _new_follower(self) -> MapFollower:
        session = self.session
        return MapFollower(
            io=session.io,
            url=session.url,
            control=session.control,
            generation=session.generation,
            settings=session.settings,
            timing=session.timing_now,
            emit=session.emit,
            care=session.supervisor,
        )

    def start(self) -> None:
        """Start reading."""
        self.follower.start()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[Replica]:
        """Hold a map's replica; it is synced when this yields.

        Raises:
            ConfigError: The name cannot be a map's.
            NotRunning: The node is closing.
            StoreFault: There are foreign data under the map's keys.
        """
        held = await self._take(name)
        try:
            await held.replica.synced()
            yield held.replica
        finally:
            with anyio.CancelScope(shield=True):
                await self._release(name, held)

    async def stop(self) -> None:
        """Stop all replicas, whoever holds them: who waits there is told `NotRunning`."""
        self._is_closed = True
        async with self._lock:
            for held in list(self._held.values()):
                await self.session.supervisor.stop(held.replica, CLOSE_BUDGET_S)

    async def aclose(self) -> None:
        """Stop reading, within a budget.  Twice is fine."""
        await self.follower.aclose(CLOSE_BUDGET_S)

    async def _take(self, name: str) -> _HeldReplica:
        async with self._lock:
            if self._is_closed:
                raise NotRunning(state="closing")
            held = self._held.get(name)
            if held is None:
                held = self._held[name] = _HeldReplica(self.new_replica(name))
                try:
                    failed = partial(self._fail, name, held)
                    await self.session.supervisor.start(held.replica, failed)
                except BaseException:
                    del self._held[name]
                    held.replica.stop()
                    raise
            held.holders += 1
            return held

    async def _release(self, name: str, held: _HeldReplica) -> None:
        async with self._lock:
            held.holders -= 1
            if not held.holders:
                self._fail(name, held)
                await self.session.supervisor.stop(held.replica, CLOSE_BUDGET_S)

    def _fail(self, name: str, held: _HeldReplica, _: Exception | None = None) -> None:
        """Its replica is not run again; its holders hear of that, and who comes gets a new one."""
        if self._held.get(name) is held:
            del self._held[name]

    def behind(self) -> set[str]:
        """Return the names of the maps whose copies here cannot be brought up to date."""
        held = {name for name, each in self._held.items() if each.replica.is_behind}
        return held | self.follower.behind()

    def new_replica(self, name: str) -> Replica:
        """Return a replica that whoever asks for it starts and stops."""
        session = self.session
        return Replica(
            name=f"map/{name}",
            stored=StoredMap(session.control, name),
            pipeline=session.pipeline,
            follower=self.follower,
            emit=session.emit,
            on_lost=lambda _: self.on_lost(),
        )
