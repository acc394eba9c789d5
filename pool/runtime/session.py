"""What a map or a stream needs of the world: a node's, or a pipeline of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from pool import checks
from pool.core.ids import Ids
from pool.core.lease import TTL_DEFAULT_S, Timing
from pool.events import Event, Observer
from pool.names import Control, check_pool
from pool.redis.embedded.server import EmbeddedServer, find_server
from pool.redis.io.system import IO, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.runtime.eviction import check_policy
from pool.runtime.observers import check_observers, emit_to
from pool.runtime.supervisor import Supervisor
from pool.runtime.task_scope import TaskScope
from pool.settings import Settings

CLOSE_BUDGET_S: Final = 5.0  # for each thread and actor, after the grace


@attrs.define(eq=False, kw_only=True)
class Session:
    """A way to one pool in one store."""

    url: Url  # where the pool's control keys are; for those of a lane see `Url.at`
    settings: Settings
    io: IO
    pipeline: Pipeline
    control: Control
    ids: Ids
    emit: Callable[[Event], object]
    supervisor: Supervisor
    generation: str = ""  # the pool's, as of when it was found
    timing: Timing = attrs.field()  # by the TTL that counts now: ask at the moment of use

    @timing.default
    def _first_timing(self) -> Timing:
        return Timing(self.settings.lease_ttl_s or TTL_DEFAULT_S)

    def check_loop(self) -> None:
        """Refuse a call on another event loop than this is of; see `Pipeline.check_caller`."""
        self.pipeline.check_caller()

    def timing_now(self) -> Timing:
        """Return the times as they are now; for parts that know nothing else of us."""
        return self.timing

    @property
    def pool(self) -> str:
        """Its name."""
        return self.control.pool


def check_settings(given: object) -> Settings:
    """Take settings; None stands for the defaults."""
    if given is None:
        return Settings()
    return checks.instance("settings", given, Settings, refuse=checks.setting)


def open_session(
    url: Url,
    pool: str,
    settings: Settings | None,
    observers: Sequence[Observer],
    io: IO | None,
) -> AbstractAsyncContextManager[Session]:
    """Open a pipeline of one's own; closed at the end, and with it a server of one's own.

    What crashes too often ends the block that is entered, with the cause.

    Raises:
        ConfigError: At once: the pool's name, the address or something else cannot be used.
        StoreUnavailable, AuthError, UnsupportedServer, NoServer: As for a node.
    """
    check_pool(pool)
    told, checked = check_observers(observers), check_settings(settings)
    return _opening_session(url, pool, checked, told, io or SystemIO())


@asynccontextmanager
async def _opening_session(
    url: Url, pool: str, settings: Settings, told: Sequence[Observer], io: IO
) -> AsyncIterator[Session]:
    address, server = await serve(url)
    control = Control(pool)
    address = address.at(control.prefix)
    try:
        async with _in_task_scope(
            await TaskScope.open(io, settings, partial(emit_to, told, pool=pool))
        ) as supervisor:
            pipeline = await Pipeline.open(
                io,
                address,
                op_timeout_s=settings.op_timeout_s,
                longest_s=settings.longest_s,
                care=supervisor,
            )
            try:
                check_policy(pipeline)
                yield Session(
                    url=address,
                    settings=settings,
                    io=io,
                    pipeline=pipeline,
                    control=control,
                    ids=io.ids,
                    emit=supervisor.emit,
                    supervisor=supervisor,
                )
            finally:
                with anyio.CancelScope(shield=True):
                    await pipeline.aclose(CLOSE_BUDGET_S)
                    await anyio.lowlevel.checkpoint()  # timers that were taken back end here
    finally:
        if server is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(server.stop)


@asynccontextmanager
async def _in_task_scope(task_scope: TaskScope) -> AsyncIterator[Supervisor]:
    try:
        yield task_scope.supervisor
    except BaseException as error:
        await task_scope.leave(type(error), error, error.__traceback__)
        raise
    await task_scope.leave(None, None, None)


async def serve(url: Url) -> tuple[Url, EmbeddedServer | None]:
    """Return where the store is, after starting it for an `embedded://` address.

    Raises:
        NoServer: No server program was found.
    """
    if url.kind != "embedded":
        return url, None
    directory = Path(url.path) if url.path else None
    start = partial(EmbeddedServer.start, find_server("path"), directory=directory)
    made: list[EmbeddedServer] = []
    failed: list[Exception] = []

    async def make() -> None:
        try:
            made.append(await anyio.to_thread.run_sync(start))
        except Exception as error:  # noqa: BLE001 - raised below, and not in a group
            failed.append(error)

    try:
        # In a group: whoever cancels our task waits until it is known what there is to be stopped.
        async with anyio.create_task_group() as making:
            making.start_soon(make)
        if failed:
            raise failed[0]
        return Url.parse(made[0].url), made[0]
    except BaseException:
        for server in made:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(server.stop)
        raise
    finally:
        failed.clear()  # their tracebacks lead back here
