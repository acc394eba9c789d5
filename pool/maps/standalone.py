"""What a replicated map needs that is used without a node: a link, and whoever keeps actors.

It joins nothing, renews nothing and reaps nothing: it is no member of the pool, and the pool need
not have any.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

import anyio

from pool.core.retry import reconnect_delay
from pool.core.timing import Timing
from pool.errors import NotRunning, PoolError
from pool.events import DataLost, Observer
from pool.maps.replicas import Maps
from pool.redis.io.system import Seam
from pool.redis.url import Url
from pool.runtime.pool_config import check_ttl, found
from pool.runtime.session import Access, accessing
from pool.settings import Settings


class Alone:
    """`async with Alone(...) as alone`: then `alone.maps` holds maps of that pool."""

    maps: Maps

    def __init__(
        self,
        pool: str,
        url: str | Url,
        *,
        settings: Settings | None,
        observers: Sequence[Observer],
        seam: Seam | None = None,
    ) -> None:
        self._accessing = accessing(Url.parse(url), pool, settings, observers, seam)
        self._stack = AsyncExitStack()
        self._is_refounding = False

    async def __aenter__(self) -> Self:
        access = await self._stack.enter_async_context(self._accessing)
        try:
            await self._open(access)
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

    async def _open(self, access: Access) -> None:
        self._access = access
        made = await found(access, any_lanes=True)
        check_ttl(access, made.ttl_ms)
        access.incarnation, access.timing = made.incarnation, Timing(made.ttl_ms / 1000)
        self.maps = Maps(access=access, on_lost=self._on_lost)
        self.maps.start()

    def _on_lost(self) -> None:
        if not self._is_refounding:
            self._is_refounding = True
            with suppress(NotRunning):  # it ends just now
                self._access.supervisor.errand("refound", self._refound)

    async def _refound(self) -> None:
        """Make the pool anew, however long that takes, or learn who has."""
        access, failures = self._access, 0
        while self._is_refounding:
            try:
                made = await found(access, any_lanes=True)
            except PoolError:  # the follower says that the store is away
                failures += 1
                await anyio.sleep(reconnect_delay(failures, access.seam.dice))
            else:
                self._is_refounding = False
                if made.incarnation != access.incarnation:
                    access.emit(DataLost(pool=access.pool, incarnation=access.incarnation))
                access.incarnation, access.timing = made.incarnation, Timing(made.ttl_ms / 1000)
                self.maps.follower.rejoin(made.incarnation)
