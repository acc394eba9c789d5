"""What a part needs that is used without a node: a store, a link, and a house for its actors.

It joins nothing, renews nothing and reaps nothing: it is no member of the pool, and the pool need
not have any.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from pool.actors.context import Context
from pool.actors.house import House
from pool.actors.maps import CLOSE_BUDGET_S, Maps
from pool.actors.membership import found
from pool.actors.observe import DataLost, Event, Observer, emit_to
from pool.actors.supervisor import Supervisor
from pool.errors import PoolError
from pool.model.backoff import reconnect_delay
from pool.model.names import Control, check_pool
from pool.settings import Settings
from pool.store.link import Link
from pool.store.seam import Seam, Threads
from pool.store.server import EmbeddedServer, find_server
from pool.store.url import Url


class Alone:
    """`async with Alone(...) as alone`: then `alone.context`, `alone.maps` and the supervisor."""

    context: Context
    supervisor: Supervisor
    maps: Maps

    def __init__(
        self,
        pool: str,
        url: str,
        *,
        settings: Settings | None,
        observers: Sequence[Observer],
        seam: Seam | None = None,
    ) -> None:
        check_pool(pool)
        self._pool = pool
        self._url = Url.parse(url)
        self._settings = settings or Settings()
        self._observers = tuple(observers)
        self._seam: Seam = seam or Threads()
        self._server: EmbeddedServer | None = None
        self._link: Link | None = None
        self._is_refounding = False

    async def __aenter__(self) -> Self:
        self._house = await House.open()
        try:
            await self._open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close()
            await self._house.abandon()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.maps.stop()
            await self._close()
        await self._house.leave(kind, error, traceback)

    async def _open(self) -> None:
        settings, seam = self._settings, self._seam
        url, self._server = await serve(self._url)
        self._link = await Link.open(seam, url, op_timeout_s=settings.op_timeout_s)
        self.context = context = Context(
            pool=self._pool,
            url=url,
            settings=settings,
            seam=seam,
            loop=seam.loop(),
            link=self._link,
            control=Control(self._pool),
            ids=seam.ids,
            node_id="",
            incarnation="",
            emit=self._emit,
        )
        context.incarnation = (await found(context, any_lanes=True)).incarnation
        self.supervisor = Supervisor(
            tasks=self._house.actors,
            log_context=copy_context(),
            emit=self._emit,
            dice=seam.dice,
            restarts_max=settings.restarts_max,
        )
        self.maps = Maps(
            context=context,
            supervisor=self.supervisor,
            on_lost=self._on_lost,
            on_end=self._on_reader_end,
        )
        self.maps.start()

    async def _close(self) -> None:
        if hasattr(self, "maps"):
            await self.maps.aclose()
            self.context.loop.close()
        self._house.close()
        if self._link is not None:
            await self._link.aclose(CLOSE_BUDGET_S)
        if self._server is not None:
            await anyio.to_thread.run_sync(self._server.stop)
        await anyio.lowlevel.checkpoint()  # timers that were taken back end here, not after us

    def _emit(self, event: Event) -> None:
        emit_to(self._observers, event)

    def _on_lost(self) -> None:
        if not self._is_refounding:
            self._is_refounding = True
            self._house.actors.start_soon(self._refound)

    async def _refound(self) -> None:
        """Make the pool anew, however long that takes, or learn who has."""
        failures = 0
        while self._is_refounding:
            try:
                made = await found(self.context, any_lanes=True)
            except PoolError:  # the follower says that the store is away
                failures += 1
                await anyio.sleep(reconnect_delay(failures, self._seam.dice))
            else:
                self._is_refounding = False
                self.context.incarnation = made.incarnation
                self._emit(DataLost(pool=self._pool, incarnation=made.incarnation))
                self.maps.follower.rejoin(made.incarnation)

    def _on_reader_end(self, error: BaseException | None) -> None:
        if error is not None:
            self._house.actors.start_soon(_raise, error)


async def serve(url: Url) -> tuple[Url, EmbeddedServer | None]:
    """Return where the store is, after starting it for an `embedded://` address.

    Raises:
        NoServer: No server program was found.
    """
    if url.kind != "embedded":
        return url, None
    server = await anyio.to_thread.run_sync(_start_server, url)
    return Url.parse(server.url), server


def _start_server(url: Url) -> EmbeddedServer:
    directory = Path(url.path) if url.path else None
    return EmbeddedServer.start(find_server("path"), directory=directory)


async def _raise(error: BaseException) -> None:
    raise error
