"""Acknowledgements of events: what waits together travels together.

    ack(event) --nothing of its stream is under way--> sent at once, alone
         |                                                |
         +--else: waits --------(its reply came)----------+--> all that wait, in one call

So one task that acknowledges waits for nobody, and a hundred that do so at once share a call; there
is no timer.  A call's error is the error of each that was in it: it may be done, or not.

A server that lost data may give the id of a lost event to another one.  It can only lose data while
connections to it break.  So an event that was read before the present connection was made is named
by its mark, too, which costs a look at the event.  All others are named by their ids, in a call
that goes out on this connection or not at all; if it does not, it is made again, with marks.

    is acknowledged ...           the connection breaks ...
    with the id, on its link      before it is sent: again, with the mark.  Later: the outcome is
                                  unknown, and the caller's next try has another link
    with the mark                 it may be repeated on any connection: a second one does nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import attrs

from pool.errors import PoolError, StoreUnavailable, again
from pool.redis.io.system import Loop, Reply, Waiter
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Command
from pool.streams.commands import StoredSink
from pool.streams.event import EventName, StreamEvent, name_of

ACKS_MAX: Final = 256  # in one call


OnDone: TypeAlias = Callable[[Sequence[EventName], bool], object]


def link_of(pipeline: Pipeline, events: Iterable[StreamEvent]) -> object | None:
    """Return the present connection if all events were read since it was made, else None."""
    link = None if pipeline.is_of_cluster else pipeline.link
    return link if all(event.link is link for event in events) else None


@attrs.define(eq=False)
class Acks:
    """The acknowledgements of one sink in one stream."""

    pipeline: Pipeline
    of: StoredSink
    consumer: Callable[[], str]
    op_timeout_s: float
    on_done: OnDone  # True: some were not pending, and may have been lost
    _waiting: dict[EventName, tuple[StreamEvent, list[Waiter]]] = attrs.field(
        init=False, factory=dict
    )
    _is_under_way: bool = attrs.field(init=False, default=False)

    async def ack(self, loop: Loop, event: StreamEvent) -> bool:
        """Acknowledge an event; return whether it was not yet.  Cancelling does not take it back.

        Raises:
            StoreUnavailable, NotRunning, and what else its call may be answered.
        """
        waiter = loop.waiter()
        self._waiting.setdefault(name_of(event), (event, []))[1].append(waiter)
        if not self._is_under_way:
            self._send()
        reply = await waiter.wait()
        if isinstance(reply, PoolError):
            raise again(reply)
        return bool(reply)

    async def ack_many(self, loop: Loop, events: Sequence[StreamEvent]) -> int:
        """Acknowledge events; return how many were not yet.  Errors as for `ack()`.

        It is one call for all that were read on the present connection, and for each `ACKS_MAX`
        of the others.
        """
        done, left = 0, {name_of(event): event for event in events}
        while left:
            is_all = link_of(self.pipeline, left.values()) is not None
            names = list(left) if is_all else list(left)[:ACKS_MAX]
            waiter = loop.waiter()
            self._ask({name: left.pop(name) for name in names}, waiter.take, is_counted=True)
            reply = await waiter.wait()
            if isinstance(reply, PoolError):
                raise again(reply)
            done += reply if isinstance(reply, int) else sum(map(bool, reply))
        return done

    def send(self, events: Sequence[StreamEvent], on_reply: Callable[[Reply], object]) -> None:
        """Acknowledge events without waiting."""
        self._ask({name_of(event): event for event in events}, on_reply, is_counted=True)

    def _send(self) -> None:
        names = list(self._waiting)[:ACKS_MAX]
        taken = {name: self._waiting.pop(name) for name in names}
        waiters = [several for _, several in taken.values()]
        self._is_under_way = True
        self._ask(
            {name: event for name, (event, _) in taken.items()}, partial(self._on_reply, waiters)
        )

    def _ask(
        self,
        events: Mapping[EventName, StreamEvent],
        on_reply: Callable[[Reply], object],
        *,
        is_counted: bool = False,
        until_s: float | None = None,
    ) -> None:
        now_s = self.pipeline.io.clock()
        until_s = now_s + self.op_timeout_s if until_s is None else until_s
        link = link_of(self.pipeline, events.values())
        if link is not None and (is_counted or len(events) == 1):
            call: Command = self.of.ack([event_id for event_id, _ in events])
        else:
            names = [(event_id, mark if link is None else b"") for event_id, mark in events]
            call = self.of.ack_each(self.consumer(), names)
        ask_again = partial(self._ask, events, on_reply, is_counted=is_counted, until_s=until_s)
        answer = partial(self._answered, list(events), ask_again, on_reply, link)
        try:
            self.pipeline.send(call, answer, timeout_s=max(0.0, until_s - now_s), link=link)
        except PoolError as error:
            on_reply(error)

    def _answered(
        self,
        names: Sequence[EventName],
        ask_again: Callable[[], object],
        on_reply: Callable[[Reply], object],
        link: object | None,
        reply: Reply,
    ) -> None:
        is_unsent = isinstance(reply, StoreUnavailable) and not reply.maybe_done
        if is_unsent and link is not None and link is not self.pipeline.link:
            ask_again()
            return
        if not isinstance(reply, PoolError):
            count = reply if isinstance(reply, int) else sum(reply)
            self.on_done(names, link is None and count < len(names))
        on_reply(reply)

    def _on_reply(self, waiters: Sequence[list[Waiter]], reply: Reply) -> None:
        self._is_under_way = False
        if self._waiting:
            self._send()
        told = [reply] if isinstance(reply, int) else reply
        for at, several in enumerate(waiters):
            for nth, waiter in enumerate(several):
                # Of who asks for the same event, the first one has acknowledged it.
                waiter.take(reply if isinstance(reply, PoolError) else told[at] and nth == 0)
