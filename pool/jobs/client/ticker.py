"""Tickers: each tick comes to one node of the fleet, whichever asks first when its time has come.

    asleep --its time--> ask (tick.lua) --mine--> the program --next--> done, asleep
                              |
                              +--another's, or too early--> asleep until the next one

Nobody holds a ticker: who had the last tick asks at once, all others a little later, so that it
mostly stays where it is; who leaves or dies asks no more, and the next tick is another node's.
Dying with a tick loses it, and the next one tells; so does a call whose answer was lost, unless its
repeat gets it: a repeat has the token of its first try.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

import anyio
import attrs

from pool import checks
from pool.core.retry import TICK_RETRY_S, refused_delay
from pool.errors import NotRunning, PoolError, StoreLost
from pool.jobs.client.job_client import JobClient
from pool.names import check_schedule, lane_of
from pool.redis.commands.schedules import TickTold

EVERY_S_MIN: Final = 0.1
EVERY_S_MAX: Final = 86_400.0
_LATER_S: Final = 0.25  # by so much at most who did not have the last one lets who had it ask first
_LATER_SHARE: Final = 0.1  # of the period, likewise


@attrs.frozen(kw_only=True)
class TickInfo:
    """One tick.  `number` rises by one with each period, in the whole fleet.

    `missed` is how many there were since the latest one that nobody had: no node was there, or had
    time.  `was_done` is False if whoever had the one before this has not come back from it: it
    died, or still works on it.
    """

    number: int
    missed: int
    was_done: bool


@attrs.define(eq=False)
class Ticker:
    """A ticker of the fleet; `Node.ticker` makes it.

        async with node.ticker("prices", every_s=5) as ticks:
            async for tick in ticks: ...

    Each tick comes to one of all nodes that wait for it.  It is not kept: while all are busy or
    away, ticks are missed, which the next one tells.  Two nodes may work on two ticks at once, if
    one takes longer than the period.
    """

    name: str
    every_s: float
    _opened: Callable[[], JobClient] = attrs.field(repr=False)
    _is_open: bool = attrs.field(init=False, default=False, repr=False)
    _done_ms: int = attrs.field(init=False, default=0, repr=False)
    _refusals: int = attrs.field(init=False, default=0, repr=False)

    async def __aenter__(self) -> Self:
        self._opened()
        self._is_open = True
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._is_open = False
        if kind is None and self._done_ms:  # else its last tick came to no good end
            await self._ask(self._opened(), is_leaving=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TickInfo:
        """Return the next tick that is ours.

        Raises:
            NotRunning: The ticker is not entered, or its node has left.
        """
        while True:
            client = self._opened()
            if not self._is_open:
                raise NotRunning(state="closed")
            context, had_last = client.context, self._done_ms != 0
            told = await self._ask(client)
            if told is None:
                await anyio.sleep(refused_delay(self._refusals, TICK_RETRY_S))
                continue
            if told.at_ms:
                self._done_ms = told.at_ms
                every_ms = round(self.every_s * 1000)
                return TickInfo(
                    number=told.at_ms // every_ms, missed=told.missed, was_done=told.was_done
                )
            self._done_ms = 0
            later_s = 0.0
            if not had_last:
                later_s = context.io.dice.uniform(0, min(_LATER_S, _LATER_SHARE * self.every_s))
            await anyio.sleep(told.next_s + later_s)

    async def _ask(self, client: JobClient, *, is_leaving: bool = False) -> TickTold | None:
        """Ask for a tick, or just say that the last one is done; None: there was no answer."""
        context = client.context
        state = context.lanes[lane_of(self.name, len(context.lanes))]
        call = state.lane.tick(
            self.name,
            "" if is_leaving else context.ids.next(),
            every_s=self.every_s,
            done_ms=self._done_ms,
            expects=state.time.expects(context.io.clock()),
        )
        try:
            told: TickTold = await context.pipeline.call(call, repeatable=True)
        except NotRunning:
            raise
        except PoolError as error:
            if isinstance(error, StoreLost):
                context.on_data_lost(state.number)
            context.trouble("tick", state.number, error)
            self._refusals += 1
            return None
        self._refusals = 0
        return told


def make_ticker(opened: Callable[[], JobClient], name: str, every_s: float) -> Ticker:
    """Describe a ticker; see `Node.ticker`."""
    check_schedule(name)
    every_s = checks.seconds("every_s", every_s, EVERY_S_MIN, EVERY_S_MAX)
    return Ticker(name, every_s, opened)
