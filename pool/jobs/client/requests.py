"""Calls about a key whose owner the caller does not know: notify and stop.

The record is the truth; a script verifies whose it is and answers MOVED_ON with the present owner,
so a stale guess costs one more round trip and nothing else.  However often it is tried, a request
has one deadline, and as long again for each answer that came late over a slow line.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs

from pool.core.record import CAUSE_CHARS_MAX, one_line
from pool.errors import (
    InboxFull,
    NoSuchJob,
    NotRunning,
    PoolError,
    StoreError,
    StoreFault,
    StoreUnavailable,
    again,
    unchanged,
    unsure,
)
from pool.jobs.context import Context, LaneState
from pool.jobs.settlement import TellWaiters, outcome_ttl_ms, tell_all
from pool.names import queued
from pool.redis.commands.edges import Advanced, CancelEdge, EdgeStatus
from pool.redis.commands.talk import (
    Behind,
    InboxHas,
    IntendSaid,
    LookedAt,
    MovedOn,
    Noted,
    NotifySaid,
    NotNoted,
)
from pool.redis.io.system import Reply
from pool.redis.scripts import ScriptCall

OWNERS_MAX: Final = 10_000  # owners remembered, by key
NO_JOB: Final = "-"  # the id of none: the script only looks
TRIES_MAX: Final = 16  # a key that moves faster than this is not reached


@attrs.define(eq=False)
class _Limit:
    """How long a request may go on.  After an answer that came later it has as long again as the
    line stands still, from when that has moved; see `Pipeline`."""

    clock: Callable[[], float]
    moved_s: Callable[[], float]
    op_timeout_s: float
    deadline_s: float
    until_s: float

    def left_s(self) -> float:
        return max(0.0, self.deadline_s - self.clock())

    def go_on(self) -> None:
        if self.deadline_s <= self.clock():
            goes_s = min(self.moved_s() + self.op_timeout_s, self.until_s)
            self.deadline_s = max(self.deadline_s, goes_s)


@attrs.define(eq=False, kw_only=True)
class Requests:
    """Sends them for one node, and remembers who owned what."""

    context: Context
    tell_waiters: TellWaiters
    # key -> owner and job id
    _owners: OrderedDict[str, tuple[str, str]] = attrs.field(init=False, factory=OrderedDict)

    async def notify(self, key: str, payload: bytes) -> tuple[str, int]:
        """Put a message into the inbox of the key's job; return which, and the message's number.

        Numbers rise in the order in which messages are accepted, from one job to the next as well.

        Which job that is, is learned before anything is written: what is repeated is for that one,
        and is looked for in its inbox.  If it is not there any more, the message may have been
        handled, and nothing that a repeat is told says that it was not.

        Raises:
            NoSuchJob: The key has no live job.
            InboxFull: `Settings.messages_max` messages are unhandled.
            StoreUnavailable: No answer in time.
        """
        settings, state = self.context.settings, self.context.lane_of(key)
        request, limit = self.context.ids.next(), self._limit(state)
        (owner, job_id), doubted = self._owners.get(key, ("", NO_JOB)), ""  # the job it was sent to
        since, skip, tries = state.stamp, 0, 0  # what it is looked for among, a page at a time
        while tries < TRIES_MAX:
            tries += not skip
            named = f"!{request}" if doubted else request  # it may be there already: have it look
            only_looks = job_id == NO_JOB
            call = state.lane.notify(
                key,
                owner,
                named,
                b"" if only_looks else payload,
                messages_max=settings.messages_max,
                job_id=job_id,
                skip=skip,
                since=since,
                expects=state.time.expects(self.context.io.clock()),
            )
            failed: PoolError
            # One that has looked at some before would not see what its own first copy has done.
            is_sure = only_looks or (bool(doubted) and not skip)
            try:
                told: NotifySaid = await self._call(call, limit, is_sure=is_sure)
            except (StoreUnavailable, StoreFault) as error:
                if only_looks:
                    raise unchanged(error) from None
                is_new = not doubted or skip
                if is_new and error.maybe_done and limit.left_s() > 0:
                    doubted, skip = job_id, 0
                    continue
                raise (unsure(error) if doubted else error) from None
            except (StoreError, NotRunning) as error:  # of this try: nothing was written
                raise (unsure(error) if doubted else error) from None
            else:
                match told:
                    case Noted(number=number):
                        self._remember(key, owner, job_id)
                        return job_id, number
                    case LookedAt(further) if further > skip and limit.left_s() > 0:
                        skip = further
                        continue
                    case LookedAt():
                        failed = StoreUnavailable(
                            problem="time is up while its message was looked for", maybe_done=True
                        )
                    case MovedOn(owner, job_id):
                        skip = 0
                        if doubted in ("", job_id):
                            continue
                        failed = NoSuchJob(key=key, job_id=doubted)
                    case NotNoted.NO_JOB:
                        self._owners.pop(key, None)
                        failed = NoSuchJob(key=key)
                    case InboxHas(messages):
                        failed = InboxFull(
                            key=key, messages=messages, messages_max=settings.messages_max
                        )
                    case NotNoted.UNREADABLE:
                        failed = _unreadable(key)
            raise unsure(failed) if doubted else again(failed)
        raise StoreFault(problem=f"{key!r} moved {TRIES_MAX} times while it was notified")

    async def stop(self, key: str, job_id: str, cause: str) -> str:
        """Write the intent to stop, or end the job at once if nobody owns it; return its id.

        Which job it is for is learned before anything is changed: a second try must not end the
        next job of the key, nor say that there is none, because the first one was carried out.

        Raises:
            NoSuchJob: There is no such live job.
            StoreUnavailable: No answer in time.
        """
        settings, state = self.context.settings, self.context.lane_of(key)
        cause = one_line(cause, CAUSE_CHARS_MAX)
        owner = self._owners.get(key, ("", ""))[0] if job_id else ""  # of nobody: it only looks
        limit, was_live, was_sent = self._limit(state), False, False
        for _ in range(TRIES_MAX):
            call = state.lane.intend(
                key, job_id, owner, "s" + cause, again_s=self.context.timing.stop_budget_s
            )
            try:
                intended: IntendSaid = await self._call(call, limit, is_sure=True)
            except (StoreUnavailable, StoreFault) as error:  # a former try may be done all the same
                if not (owner or was_sent):
                    raise unchanged(error) from None
                raise (unsure(error) if was_sent else error) from None
            except (StoreError, NotRunning) as error:  # of this try: nothing was written
                raise (unsure(error) if was_sent else error) from None
            was_sent = was_sent or bool(owner)
            match intended:
                case Noted(noted_id):
                    self._remember(key, owner, job_id)
                    return noted_id
                case NotNoted.NO_JOB if was_live:
                    return job_id  # it has ended since, as it should
                case NotNoted.NO_JOB:
                    self._owners.pop(key, None)
                    raise NoSuchJob(key=key, job_id=job_id)
                case MovedOn() | Behind() as found:
                    was_live, owner, job_id = True, found.owner, found.job_id
                    if not owner:
                        name = queued(key, job_id) if isinstance(found, Behind) else key
                        ttl_ms = outcome_ttl_ms(settings)
                        edge = CancelEdge(name, found.epoch, job_id, ttl_ms, found.handler, cause)
                        try:
                            if await self._cancel(state.number, edge, limit):
                                return job_id
                        except (StoreError, NotRunning) as error:
                            raise (unsure(error) if was_sent else error) from None
                case NotNoted.UNREADABLE:
                    raise _unreadable(key)
        raise StoreFault(problem=f"{key!r} moved {TRIES_MAX} times while it was stopped")

    async def _cancel(self, lane: int, edge: CancelEdge, limit: _Limit) -> bool:
        state, pending_s = self.context.lanes[lane], self.context.timing.pending_timeout_s
        expects = state.time.expects(self.context.io.clock())
        call = state.lane.advance("free", "", [edge], pending_s=pending_s, expects=expects)
        advanced: Advanced = await self._call(call, limit, is_sure=True)
        tell_all(self.context, self.tell_waiters, lane, [edge], advanced.told)
        return advanced.told[0].status in (EdgeStatus.DONE, EdgeStatus.REPEAT)

    def _limit(self, state: LaneState) -> _Limit:
        clock, settings = self.context.io.clock, self.context.settings
        moved_s = partial(self.context.pipeline.moved_s, state.lane.names.lane)
        now_s, op_s = clock(), settings.op_timeout_s
        return _Limit(clock, moved_s, op_s, now_s + op_s, now_s + settings.longest_s)

    async def _call(self, call: ScriptCall, limit: _Limit, *, is_sure: bool) -> Reply:
        reply = await self.context.pipeline.call(
            call, repeatable=is_sure, timeout_s=limit.left_s(), until_s=limit.until_s
        )
        limit.go_on()
        return reply

    def _remember(self, key: str, owner: str, job_id: str) -> None:
        self._owners[key] = owner, job_id
        self._owners.move_to_end(key)
        if len(self._owners) > OWNERS_MAX:
            self._owners.popitem(last=False)


def _unreadable(key: str) -> StoreFault:
    return StoreFault(problem=f"the record of {key!r} cannot be read", maybe_done=False)
