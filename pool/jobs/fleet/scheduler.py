"""Fires what is due of a lane's schedules, and keeps those that this node's code has.

    s: is due --sweep--> the next page (schedule.lua) --judge (core/schedules.py)--> fired, carried
                              ^                                                        |
                              +------------------- that, and the next page ------------+

Whoever sweeps the lane fires, on a task of its own, a page after the other, those due first first.
Each look puts s: off by `HOLD_S`; who dies, or fails, is followed then.  Two that fire at once are
harmless, and so is a call that comes late: each change names what it was judged by.  What nobody
here can read (a cron expression in a zone that is not here) is passed over, and left to other
nodes: s: is due at once again, for whoever sweeps next, and we come for the others only.  What
nobody can read is told, and fires no more.

What the code has is compared with the lane when a worker comes, and when the lane's data are not
those of then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import anyio
import anyio.lowlevel
import attrs

from pool.core.retry import KEEPING_RETRY_S, refused_delay
from pool.core.schedules import Firing, StoredSchedule, fire, parse, parse_head, unread
from pool.core.times import EVERY_S_MIN, At, is_moved
from pool.errors import ConfigError, InvalidOption, PoolError, StoreLost, UsageError
from pool.events import ScheduleMoved, ScheduleUnreadable
from pool.jobs.context import Context, LaneState
from pool.jobs.repair import tell_restored
from pool.jobs.scheduling import (
    HOLD_S,
    WantedSchedule,
    as_registered,
    keep,
    tell_uncounted,
)
from pool.names import lane_of
from pool.redis.commands.schedules import ScheduleChange, SchedulePage

SCANNED: Final = 64  # schedules that one call of the walk looks at
PASS_S: Final = 0.001  # then another one may come for what was passed over


@attrs.define(eq=False, kw_only=True)
class Scheduler:
    """Belongs to the sweeper."""

    context: Context
    spawn: Callable[..., object]
    carry: Callable[[int, int], object]
    _under_way: dict[int, bool] = attrs.field(init=False, factory=dict)  # lane -> asked for since
    _coded: dict[str, WantedSchedule] = attrs.field(init=False, factory=dict)
    _version: int = attrs.field(init=False, default=0)  # of what the code has
    # Lane -> by which of these, and in which data, all stand there.
    _kept: dict[int, tuple[int, str]] = attrs.field(init=False, factory=dict)
    _keeping: set[int] = attrs.field(init=False, factory=set)

    # --- firing -------------------------------------------------------------------------------

    def fire(self, lane: int) -> None:
        """Fire what is due in a lane, unless that is being done."""
        is_under_way = lane in self._under_way
        self._under_way[lane] = is_under_way
        if not is_under_way:
            self.spawn(self._fire, self.context.lanes[lane])

    async def _fire(self, state: LaneState) -> None:
        lane = state.number
        try:
            is_asked = True
            while is_asked:
                self._under_way[lane] = False
                await self._fire_due(state)
                is_asked = self._under_way[lane]
        except PoolError as error:
            if isinstance(error, StoreLost):
                self.context.on_data_lost(lane)
            self.context.trouble("fire schedules", lane, error)
            self.context.on_due(lane, HOLD_S)
        finally:
            del self._under_way[lane]

    async def _fire_due(self, state: LaneState) -> None:
        """Fire page after page."""
        changes, firings, skip = list[ScheduleChange](), list[Firing](), 0
        while True:
            hold_s = PASS_S if skip else HOLD_S
            expects = state.time.expects(self.context.io.clock())
            call = state.lane.schedule(
                changes, hold_s=hold_s, is_firing=True, skip=skip, expects=expects
            )
            page: SchedulePage = await self.context.pipeline.call(call, repeatable=True)
            self._tell(state, changes, firings, page)
            if not page.due:
                break
            changes, firings = [], []
            found = await self._parsed(state, page)
            for (name, text), stored in zip(page.due, found, strict=True):
                change, firing = self._judge(state, name, text, stored, page.wall_ms)
                if change is None or firing is None:
                    skip += 1
                else:
                    changes.append(change)
                    firings.append(firing)
                    if firing.missed:  # counting them may take a tenth of a second
                        await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        if page.next_s is not None:
            self.context.on_due(state.number, page.next_s)

    async def _parsed(self, state: LaneState, page: SchedulePage) -> list[StoredSchedule | None]:
        """Return those that are due; with the policies of their handlers, where several times are
        late: of one time the lane of its job decides.
        """
        found = [parse(name.decode(errors="surrogateescape"), text) for name, text in page.due]
        since_ms = page.wall_ms - round(1000 * EVERY_S_MIN)
        late = {each.name: each for each in found if each and each.head.next_ms <= since_ms}
        jobs = await as_registered(self.context, state, [each.job for each in late.values()])
        for each, job in zip([*late.values()], jobs, strict=True):
            late[each.name] = attrs.evolve(each, job=job)
        return [each and late.get(each.name, each) for each in found]

    def _judge(
        self,
        state: LaneState,
        raw: bytes,
        text: bytes,
        stored: StoredSchedule | None,
        now_ms: int,
    ) -> tuple[ScheduleChange | None, Firing | None]:
        """Return what is to be done about one that is due; nothing: another node may know."""
        name, line = raw.decode(errors="surrogateescape"), text.partition(b"\n")[0]
        if stored is None or stored.head.is_paused:
            if stored is None:
                self.context.emit(ScheduleUnreadable(schedule=name, lane=state.number))
            stopped = ScheduleChange(name=raw, seen=line, head=line, due_ms=None)
            return stopped, Firing(times=(), head=None)
        try:
            firing = fire(stored, now_ms, self.context.ids.next())
        except ConfigError as error:
            told = unread(name, error)
            self.context.trouble("fire schedules", state.number, told)
            return None, None
        head = firing.head
        change = ScheduleChange(
            name=raw,
            seen=line,
            head=head.pack() if head is not None else "",
            due_ms=head.due_ms if head is not None else None,
            messages=firing.messages(stored, now_ms),
        )
        return change, firing

    async def mend(self, state: LaneState) -> None:
        """Put schedules back that their index has lost, and have somebody come for them."""
        names, pipeline = state.lane.names, self.context.pipeline
        at, is_there = "", False
        while at != "0":
            told = await pipeline.execute("HSCAN", names.schedules, at or "0", "COUNT", SCANNED)
            at, flat = told
            if flat:
                is_there = True
                await self._mend(state, flat[::2], flat[1::2])
        if is_there:
            self.fire(state.number)

    async def _mend(self, state: LaneState, names: Sequence[bytes], texts: Sequence[bytes]) -> None:
        scores = await self.context.pipeline.execute("ZMSCORE", state.lane.names.scheduled, *names)
        changes = []
        for name, text, score in zip(names, texts, scores, strict=True):
            line = text.partition(b"\n")[0]
            head = parse_head(line)
            if score is None and head is not None and not head.is_paused:
                change = ScheduleChange(name=name, seen=line, head=line, due_ms=head.due_ms)
                changes.append(change)
        if changes:
            call = state.lane.schedule(changes, hold_s=HOLD_S)
            page: SchedulePage = await self.context.pipeline.call(call, repeatable=True)
            done = [each.name for each, ok in zip(changes, page.done, strict=True) if ok]
            told = [name.decode(errors="replace") for name in done if isinstance(name, bytes)]
            if told:
                tell_restored(self.context, state, "scheduled", told)

    def _tell(
        self,
        state: LaneState,
        changes: Sequence[ScheduleChange],
        firings: Sequence[Firing],
        page: SchedulePage,
    ) -> None:
        """Have carried over what was fired, and tell of what was missed."""
        for change, firing, is_done in zip(changes, firings, page.done, strict=True):
            if not is_done:
                continue
            for to in {lane for lane, _ in change.messages}:
                self.carry(state.number, to)
            name = change.name if isinstance(change.name, str) else change.name.decode()
            tell_uncounted(self.context, state.number, name, firing)

    # --- what the code has --------------------------------------------------------------------

    async def keep(self, wanted: Sequence[WantedSchedule]) -> None:
        """Store these, and again whenever their lane has lost its data.

        Returns when each lane was tried once, so that they are there for whoever opens the node.
        A lane that fails is tried again on a task of its own.
        """
        if wanted:
            self._coded |= {each.name: each for each in wanted}
            self._version += 1
            async with anyio.create_task_group() as tasks:
                for state in self.context.lanes:
                    tasks.start_soon(self._keep_once, state)
            for state in self.context.lanes:
                self.look(state)

    def look(self, state: LaneState) -> None:
        """Store what the code has, unless it stands in these data of the lane."""
        if self._coded and self._has_to_keep(state) and state.number not in self._keeping:
            self._keeping.add(state.number)
            self.spawn(self._keep, state)

    def _has_to_keep(self, state: LaneState) -> bool:
        generation = state.lane.generation
        return bool(generation) and self._kept.get(state.number) != (self._version, generation)

    async def _keep(self, state: LaneState) -> None:
        refusals = 0
        try:
            while self._has_to_keep(state):
                if not await self._keep_once(state):
                    refusals += 1
                    await anyio.sleep(refused_delay(refusals, KEEPING_RETRY_S))
        finally:
            self._keeping.discard(state.number)

    async def _keep_once(self, state: LaneState) -> bool:
        """Store what the code has in a lane; return whether all stands there."""
        if not self._has_to_keep(state):
            return True
        lane, lanes = state.number, len(self.context.lanes)
        stands = self._version, state.lane.generation
        in_lane = [each for each in self._coded.values() if lane_of(each.name, lanes) == lane]
        are_kept = await self._keep_all(lane, in_lane)
        if are_kept:
            self._kept[lane] = stands
        return are_kept

    async def _keep_all(self, lane: int, wanted: Sequence[WantedSchedule]) -> bool:
        """Store these; return whether all stand there.  One that cannot be keeps none waiting."""
        are_kept = True
        for each in wanted:
            try:
                before = await keep(self.context, each)
                if before is not None and is_moved(before, each.when):
                    self.context.emit(ScheduleMoved(schedule=each.name, lane=lane))
            except PoolError as error:
                if isinstance(error, InvalidOption) and isinstance(each.when, At):
                    continue  # its only time is over: it was fired, or nobody had it here by then
                self.context.trouble("keep schedules", lane, error)
                are_kept = False
                if not isinstance(error, UsageError):
                    break
        return are_kept
