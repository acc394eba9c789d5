"""What a consumer of a sink asks in the background, and how it gives back what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from pool.errors import Gone, NotRunning, PoolError, StoreUnavailable
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Command, ScriptCall
from pool.streams.commands import BATCH_MAX, GivenBack
from pool.streams.event import EventName, name_of
from pool.streams.foreign import look_for_foreign
from pool.streams.sink_source import Item, Source
from pool.streams.sink_told import SinkTold


@attrs.define(eq=False, kw_only=True)
class SinkCalls:
    """The calls of one consumer; nobody waits for them."""

    pipeline: Pipeline
    told: SinkTold
    is_no_ack: bool
    consumer: Callable[[], str]  # its name now
    on_gone: Callable[[], object]  # its lease was ended
    on_stop: Callable[[Source], object]  # one stream's calls are refused: the others go on
    on_freed: Callable[[], object]  # something may wait for whoever has room
    trial: Item | Source | None = None  # a doubtful event that it has, or asks for

    def send(
        self,
        call: Command,
        on_reply: Callable[[Reply], object],
        source: Source | None = None,
        on_error: Callable[[], object] = lambda: None,
    ) -> None:
        """Send a call in the background; what fails is told, and the next tick tries again."""

        def answer(reply: Reply) -> None:
            if not isinstance(reply, PoolError):
                on_reply(reply)
                return
            if source is not None:
                source.is_mending = source.is_taking = False
                source.is_doubted = True  # it may be done all the same
                if self.trial is source:
                    self.trial = None
            on_error()
            self.refused(reply, source)

        try:
            self.pipeline.send(call, answer)
        except PoolError as error:
            answer(error)

    def refused(self, error: PoolError, source: Source | None = None) -> None:
        if isinstance(error, Gone):
            if error.identity == self.consumer():
                self.on_gone()
        elif not isinstance(error, StoreUnavailable | NotRunning):
            if source is None:
                self.told.troubled(None, error, {})
            else:
                told = partial(self._tell_once, source, error)
                look_for_foreign(self.pipeline, source.of.kinds, told)
                self.on_stop(source)

    def _tell_once(self, source: Source, error: PoolError, found: dict[str, str]) -> None:
        """Joining works where only what is parked is in the way: it is no end of a trouble."""
        trouble = (type(error).__name__, *sorted(found))
        if trouble != source.trouble:
            source.trouble = trouble
            self.told.troubled(source, error, found)

    def release(self, items: Sequence[Item], *, is_late: bool = False) -> None:
        for source, call in self.returns(items):
            self.send(call, partial(self._on_released, source, is_late), source)

    def _on_released(self, source: Source, is_late: bool, reply: Reply) -> None:
        did: GivenBack = reply
        source.trouble = ()
        if did.released and is_late:
            self.told.freed(source, did.released)
        source.has_released = source.has_released or did.released > 0
        self.on_freed()

    def returns(self, items: Iterable[Item]) -> list[tuple[Source, ScriptCall]]:
        """Return the calls that give back what is ours of these."""
        by_source: dict[tuple[Source, bool], list[EventName]] = {}
        for item in items:
            if self.trial is item:
                self.trial = None
            if item.consumer == self.consumer():
                by_source.setdefault((item.source, item.is_doubtful), []).append(
                    name_of(item.event)
                )
        return [
            (source, call)
            for (source, is_doubtful), names in by_source.items()
            for call in self.releases(source, names, is_doubtful=is_doubtful)
        ]

    def releases(
        self, source: Source, names: Sequence[EventName], *, is_doubtful: bool
    ) -> list[ScriptCall]:
        if self.is_no_ack:
            return []
        chunks = [names[at : at + BATCH_MAX] for at in range(0, len(names), BATCH_MAX)]
        return [
            source.of.release(self.consumer(), chunk, is_doubtful=is_doubtful) for chunk in chunks
        ]

    async def finish(self, calls: Iterable[tuple[Source, ScriptCall]]) -> None:
        """Do these as far as they can be done: whoever cleans next does the rest otherwise."""
        for source, call in calls:
            try:
                await self.pipeline.call(call, repeatable=True)
            except PoolError as error:
                self.refused(error, source)
                if isinstance(error, StoreUnavailable):
                    return
