"""A job to call a handler with, without a pool.

assert await thumbnail(make_job("img-17"), "17.png", size=64) == "17.png@64"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, NoReturn

import anyio

from pool.core.codec import encode_value
from pool.core.lease import Timing
from pool.core.record import Kind
from pool.errors import NotRunning
from pool.jobs.blocking import Blocking
from pool.jobs.handlers import Handler
from pool.jobs.job import Host, Inbox, Job
from pool.jobs.keeper import Keeper
from pool.jobs.node import Node
from pool.jobs.shields import Shields
from pool.names import check_key
from pool.redis.commands.edges import Changed, Edge, EdgeStatus, SaveEdge, StepEdge
from pool.redis.commands.talk import InboxPage
from pool.settings import Settings


class _NoNode(Node):
    """The node of a job that was given none: each use says how to give it one."""

    def _check_open(self) -> NoReturn:
        raise NotRunning(state="of make_job()")

    @property
    def _open_wiring(self) -> NoReturn:
        raise NotRunning(state="of make_job()")


def make_job(
    key: str,
    *,
    handler: str | Handler[..., Any] = "test",
    kind: Kind = "job",
    attempt: int = 1,
    epoch: int = 1,
    state: Any = None,
    steps: Mapping[str, Any] | None = None,
    is_recovered: bool = False,
    notifications: Iterable[Any] = (),
    node: Node | None = None,
    resources: Any = None,
) -> Job:
    """Return a job as a handler would see it; what it saves goes nowhere.

    Args:
        key: The job's key.
        handler: What `Handlers.job()` returned, whose types the state is of, or just a name.
        kind: job or service.
        attempt: Which attempt this is, from 1.
        epoch: Its fencing token.
        state: What a former owner saved or handed over; None: nothing.
        steps: What its steps returned at an earlier attempt, by name.
        is_recovered: Whether that one ended without handing over.
        node: What it dispatches with: an open node; with None that is `NotRunning`.
        resources: What the lifespan of its handlers would have yielded.
        notifications: Messages that wait in its inbox; behind them it waits for ever.

    Raises:
        InvalidKey: No job can have this key.
        PayloadEncodingError: The state, a result or a message cannot be encoded.
    """
    check_key(key)
    state_as = handler._state if isinstance(handler, Handler) else None
    encode = encode_value if state_as is None else state_as.encode
    messages = [(f"{n}|test", encode_value(each)) for n, each in enumerate(notifications, start=1)]

    async def read_inbox() -> InboxPage:
        return InboxPage(False, messages)

    def store(edge: Edge) -> None:
        if isinstance(edge, (SaveEdge, StepEdge)):
            keeper.on_answer(edge, Changed(EdgeStatus.DONE, ""))

    keeper = Keeper(
        pool="test",
        key=key,
        id="test-1",
        epoch=epoch,
        settings=Settings(),
        check_here=lambda: None,
        later=lambda *_: None,
        send=store,
        results={name: encode_value(result) for name, result in (steps or {}).items()},
    )
    timing = Timing()
    blocking, inbox = Blocking(anyio.CapacityLimiter(1)), Inbox(is_behind=bool(messages))
    host = Host(
        node=node or _NoNode("test", "embedded://", observers=()),
        node_id="test",
        state_bytes_max=65_536,
        timing=lambda: timing,
        shields=Shields(lambda: timing, monotonic),
        inbox=lambda _: inbox,
        read_inbox=lambda *_: read_inbox(),
        on_handled=lambda *_: None,
        keeper=lambda _: keeper,
        blocking=lambda _: blocking,
        on_unheard=lambda _: None,
    )
    return Job(
        key=key,
        id="test-1",
        handler=handler.name if isinstance(handler, Handler) else handler,
        kind=kind,
        epoch=epoch,
        attempt=attempt,
        worker="test.1",
        is_recovered=is_recovered,
        host=host,
        run=None,
        state=None if state is None else encode(state),
        is_stated=False,
        state_as=state_as,
        resources=resources,
    )
