"""Looks after batches: seals those that were left, finds members that were lost, forgets old ones.

    b:ID is due --sweep--> batch_tend: open    --> sealed when its maker has been away for long
                                       sealed  --> a page of members that have not ended --+
                                       settled --> forgotten when it is time               |
        +--- next page, or when it is due again <--- batch_ends <--- muster, in their lanes <-+
                                                                     stop, if it is cancelled

A member's end comes over the channel (`lua/lib/channel.lua`), and hardly ever is one found here:
its lane has lost its data, its maker died between noting and dispatching it, or was refused.
`muster` says of each how it is; of one that is not there it makes sure that it never will be, so a
dispatch that comes late is refused.  Both ways a member counts once.

Whoever sweeps tends, on a task of its own.  Two that do are harmless, and so is a late call: the
letter of a member decides.  Dying leaves `b:ID` where the last page has put it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio
import attrs

from pool.core.batches import CHECK_S, ENDS, IS_BATCH, SETTLED_ENDS, check_s, member_id
from pool.errors import NoSuchJob, PoolError, StoreLost
from pool.events import BatchMissing
from pool.jobs.context import Context, LaneState
from pool.names import lane_of
from pool.redis.commands.batches import BatchLooked, Stirred, Tended
from pool.redis.scripts import ScriptCall

HOLD_S: Final = 5.0  # then another one goes on
PAUSE_S: Final = 0.05  # between two pages
STOPS: Final = 32  # members asked to stop at once
_MISSING: Final = next(word for word, end in ENDS.items() if end == "missing")


@attrs.define(eq=False, kw_only=True)
class Caretaker:
    """Belongs to the sweeper."""

    context: Context
    spawn: Callable[..., object]
    stop: Callable[[str, str, str], Awaitable[object]]  # key, job id, cause
    on_stirred: Callable[[int, Stirred], object]
    _under_way: set[tuple[int, str]] = attrs.field(init=False, factory=set)

    def tend(self, lane: int, batch_id: str) -> None:
        """Look after a batch, unless that is being done."""
        if (lane, batch_id) not in self._under_way:
            self._under_way.add((lane, batch_id))
            self.spawn(self._tend, self.context.lanes[lane], batch_id)

    async def _tend(self, state: LaneState, batch_id: str) -> None:
        try:
            await self._all(state, batch_id)
        finally:
            self._under_way.discard((state.number, batch_id))

    async def _all(self, state: LaneState, batch_id: str) -> None:
        since: int | None = 0
        while since is not None:
            call = state.lane.batch_tend(batch_id, since, hold_s=HOLD_S, check_s=check_s(since))
            told: Tended | str | None = await self._ask(state, call)
            if not isinstance(told, Tended):
                return
            self.on_stirred(state.number, told.stirred)
            if told.members:
                await self._page(state, batch_id, told)
            since = told.follows
            if since is not None:
                await anyio.sleep(PAUSE_S)
            elif told.is_cancelling and told.members:
                self.context.on_due(state.number, HOLD_S)

    async def _page(self, state: LaneState, batch_id: str, told: Tended) -> None:
        """Look after some members."""
        ends, live = list[tuple[int, str]](), list[tuple[str, str]]()
        shares = defaultdict[int, list[tuple[int, str]]](list)
        clock, asked_s = self.context.io.clock, self.context.io.clock()
        for index, key in told.members:
            of = key.removeprefix(IS_BATCH)
            shares[lane_of(of, len(self.context.lanes))].append((index, key))
        for number, share in shares.items():
            there = self.context.lanes[number]
            jobs = [(n, key, member_id(told.nonce, n)) for n, key in share if key[:1] != IS_BATCH]
            for index, key in share:
                if key[:1] == IS_BATCH:
                    await self._batch(there, key.removeprefix(IS_BATCH), index, told, ends)
            words = await self._muster(there, [(key, job_id) for _, key, job_id in jobs])
            for (index, key, job_id), word in zip(jobs, words, strict=False):
                if word in ENDS:
                    ends.append((index, word))
                else:
                    live.append((key, job_id))
        # Later, what was missing may have begun (`client/batches.py`): the next look asks anew.
        if ends and clock() <= asked_s + self.context.settings.longest_s:
            call = state.lane.batch_ends(batch_id, told.nonce, ends)
            counted = await self._ask(state, call)
            if isinstance(counted, Stirred):
                self.on_stirred(state.number, counted)
                missing = sum(word == _MISSING for _, word in ends)
                if missing:
                    event = BatchMissing(batch=batch_id, lane=state.number, members=missing)
                    self.context.emit(event)
        if told.is_cancelling:
            await self._stop(live, told.cause)

    async def _muster(self, there: LaneState, jobs: Sequence[tuple[str, str]]) -> Sequence[str]:
        if not jobs or not there.lane.generation:  # else it is still being joined
            return ()
        missing_s = self.context.settings.missing_s
        expects = there.time.expects(self.context.io.clock())
        call = there.lane.muster(jobs, missing_s=missing_s, expects=expects)
        words: Sequence[str] | None = await self._ask(there, call)
        return words or ()

    async def _batch(
        self, there: LaneState, batch_id: str, index: int, told: Tended, ends: list[tuple[int, str]]
    ) -> None:
        """Look after a member that is itself a batch."""
        if not there.lane.generation:
            return
        try:
            call = there.lane.batch_look(batch_id, members_max=0)
            found: BatchLooked | None = await self.context.pipeline.call(call, repeatable=True)
        except PoolError as error:
            self._troubled(there, error)
            return
        if found is None:
            ends.append((index, "m"))
        elif found.head.is_settled:
            ends.append((index, SETTLED_ENDS[found.head.state]))
        elif told.is_cancelling:
            cancel = there.lane.batch_seal(batch_id, "", -1, cause=told.cause, check_s=CHECK_S)
            if isinstance(done := await self._ask(there, cancel), Stirred):
                self.on_stirred(there.number, done)
                self.context.on_due(there.number, 0.0)

    async def _stop(self, jobs: Sequence[tuple[str, str]], cause: str) -> None:
        async def stop(key: str, job_id: str) -> None:
            try:
                await self.stop(key, job_id, cause)
            except NoSuchJob:
                return  # it has ended by itself
            except PoolError as error:
                self._troubled(self.context.lane_of(key), error)

        for i in range(0, len(jobs), STOPS):
            async with anyio.create_task_group() as tasks:
                for job in jobs[i : i + STOPS]:
                    tasks.start_soon(stop, *job)

    async def _ask(self, state: LaneState, call: ScriptCall) -> Any:
        """Return the answer of a lane; None: there was none."""
        try:
            return await self.context.pipeline.call(call, repeatable=True)
        except PoolError as error:
            self._troubled(state, error)
            return None

    def _troubled(self, state: LaneState, error: PoolError) -> None:
        if isinstance(error, StoreLost):
            self.context.on_data_lost(state.number)
        self.context.trouble("tend a batch", state.number, error)
