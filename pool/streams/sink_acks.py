"""Acknowledgements of single events: what waits together travels together.

    ack(event) --nothing of its stream is under way--> sent at once, alone
         |                                                |
         +--else: waits --------(its reply came)----------+--> all that wait, in one call

So one task that acknowledges waits for nobody, and a hundred that do so at once share a call; there
is no timer.  A call's error is the error of each that was in it: it may be done, or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs

from pool.errors import PoolError, again
from pool.redis.io.system import Loop, Reply, Waiter
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Command

ACKS_MAX: Final = 256  # in one call


@attrs.define(eq=False)
class Acks:
    """The single acknowledgements of one sink in one stream."""

    pipeline: Pipeline
    call_for: Callable[[Sequence[str]], Command]  # one event: XACK; several: `sink_ack`
    on_done: Callable[[Sequence[str]], object]
    _waiting: dict[str, list[Waiter]] = attrs.field(init=False, factory=dict)  # by event's id
    _is_under_way: bool = attrs.field(init=False, default=False)

    async def ack(self, loop: Loop, event_id: str) -> bool:
        """Acknowledge an event; return whether it was not yet.  Cancelling does not take it back.

        Raises:
            StoreUnavailable, NotRunning, and what else its call may be answered.
        """
        waiter = loop.waiter()
        self._waiting.setdefault(event_id, []).append(waiter)
        if not self._is_under_way:
            self._send()
        reply = await waiter.wait()
        if isinstance(reply, PoolError):
            raise again(reply)
        return bool(reply)

    def _send(self) -> None:
        ids = list(self._waiting)[:ACKS_MAX]
        waiters = {event_id: self._waiting.pop(event_id) for event_id in ids}
        self._is_under_way = True
        try:
            self.pipeline.send(self.call_for(ids), partial(self._on_reply, waiters))
        except PoolError as error:
            self._on_reply(waiters, error)

    def _on_reply(self, waiters: dict[str, list[Waiter]], reply: Reply) -> None:
        self._is_under_way = False
        if not isinstance(reply, PoolError):
            self.on_done(list(waiters))
        if self._waiting:
            self._send()
        told = reply if isinstance(reply, list) else [reply]
        for at, several in enumerate(waiters.values()):
            for nth, waiter in enumerate(several):
                # Of who asks for the same event, the first one has acknowledged it.
                waiter.take(reply if isinstance(reply, PoolError) else told[at] and nth == 0)
