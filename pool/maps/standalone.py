"""What a replicated map needs that is used without a node: a pipeline, and whoever keeps actors.

It joins nothing, renews nothing and reaps nothing: it is no member of the pool, and the pool need
not have any.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

import anyio

from pool.core.lease import Timing
from pool.core.retry import reconnect_delay
from pool.errors import NotRunning, PoolError
from pool.events import DataLost, Observer
from pool.maps.replicas import Maps
from pool.redis.io.system import IO
from pool.redis.url import Url
from pool.runtime.pool_config import check_ttl, open_pool
from pool.runtime.session import Session, open_session
from pool.settings import Settings


class Standalone:
    """`async with Standalone(...) as standalone`: then `standalone.maps` holds maps of that
    pool."""

    maps: Maps

    def __init__(
        self,
        pool: str,
        url: str | Url,
        *,
        settings: Settings | None,
        observers: Sequence[Observer],
        _io: IO | None = None,  # of a simulation
    ) -> None:
        self._opening_session = open_session(Url.parse(url), pool, settings, observers, _io)
        self._stack = AsyncExitStack()
        self._is_opening = False

    async def __aenter__(self) -> Self:
        session = await self._stack.enter_async_context(self._opening_session)
        try:
            await self._open(session)
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self.maps.stop()
                await self.maps.aclose()
        finally:
            await self._stack.__aexit__(kind, error, traceback)

    async def _open(self, session: Session) -> None:
        self._session = session
        made = await open_pool(session, any_lanes=True)
        check_ttl(session, made)
        session.generation, session.timing = made.generation, Timing(made.ttl_ms / 1000)
        self.maps = Maps(session=session, on_lost=self._on_lost)
        self.maps.start()

    def _on_lost(self) -> None:
        if not self._is_opening:
            self._is_opening = True
            with suppress(NotRunning):  # it ends just now
                self._session.supervisor.errand("refound", self._open_again)

    async def _open_again(self) -> None:
        """Make the pool anew, however long that takes, or learn who has."""
        session, failures = self._session, 0
        while self._is_opening:
            try:
                made = await open_pool(session, any_lanes=True)
            except PoolError:  # the follower says that the store is away
                failures += 1
                await anyio.sleep(reconnect_delay(failures, session.io.dice))
            else:
                self._is_opening = False
                if made.generation != session.generation:
                    session.emit(DataLost(pool=session.pool, generation=session.generation))
                session.generation, session.timing = made.generation, Timing(made.ttl_ms / 1000)
                self.maps.follower.rejoin(made.generation)
