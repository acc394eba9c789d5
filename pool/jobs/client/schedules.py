"""Schedules and tickers as their callers have them.

Tickers: each tick comes to one node of the fleet, whichever asks first when its time has come.

    asleep --its time--> ask (tick.lua) --mine--> the program --next--> done, asleep
                              |
                              +--another's, or too early--> asleep until the next one

Nobody holds a ticker: who had the last tick asks at once, all others a little later, so that it
mostly stays where it is; who leaves or dies asks no more, and the next tick is another node's.
Dying with a tick loses it, and the next one tells; so does a call whose answer was lost, unless its
repeat gets it: a repeat has the token of its first try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Final, Self

import anyio
import attrs

from pool import checks
from pool.core.codec import head_of
from pool.core.ids import is_number
from pool.core.record import digest_of, more_of, pack_more, without_more
from pool.core.retry import TICK_RETRY_S, refused_delay
from pool.core.schedules import PLACEHOLDER, TRIGGERED, ScheduledJob, StoredSchedule, parse, unread
from pool.core.times import When, check_when, moment, times
from pool.errors import (
    ConfigError,
    NoSuchSchedule,
    NotRunning,
    PayloadEncodingError,
    PoolError,
    StoreLost,
    UnknownHandler,
    UsageError,
    again,
    sentence,
)
from pool.jobs.client.dispatcher import Accepted
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.listing import Gaps, gaps_of
from pool.jobs.client.options import DispatchOptions, known_id
from pool.jobs.client.ref import JobRef
from pool.jobs.handlers import Handler, Handlers
from pool.jobs.scheduling import (
    FoundSchedule,
    Judge,
    JudgedChange,
    WantedSchedule,
    change,
    change_of,
    check_misfire,
    fetch,
    keep,
    resumed,
    stopped,
    wall_ms,
)
from pool.names import check_key, check_schedule, lane_of
from pool.redis.commands.admission import Admission
from pool.redis.commands.schedules import ScheduleChange, TickTold

COUNT_MAX: Final = 1000  # schedules in one page, about
NEXT_MAX: Final = 1000  # times told at once


@attrs.frozen(kw_only=True)
class Schedule:
    """A schedule as it stands.  Times are UTC.

    `fired` counts the jobs that its times have made; `missed` the times that made none as nobody
    could fire them (see `Cron`), or as it was paused before their jitter was over; `overlapped`
    those that made none as their key had a job that `if_exists` puts before them.  `args` and
    `kwargs` are as the handler takes them, if this node has it, else in terms of JSON; None where
    they cannot be read.  `payload_bytes` is their size as stored, and `codec` the name of what made
    them, empty for JSON and bytes.
    """

    name: str
    when: When
    handler: str
    key: str
    is_paused: bool
    next_at: datetime | None  # None: it is paused
    last_at: datetime | None  # the nominal time of the latest job; None: there was none
    fired: int
    missed: int
    overlapped: int
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    payload_bytes: int = 0
    codec: str = ""


@attrs.frozen(kw_only=True)
class ScheduleList:
    """Some schedules, and where to go on: empty, that was all.

    `unread` names the lanes that were left out, and why: see `Gaps`.
    """

    schedules: tuple[Schedule, ...]
    cursor: str
    unread: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class Schedules:
    """The schedules of a pool: `node.schedules`.  `Node.schedule()` makes them."""

    _opened: Callable[[], JobClient] = attrs.field(repr=False)  # raises where it is not open

    async def list(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cursor: str = "",
        count: int = 100,
        gaps: Gaps | None = None,
    ) -> ScheduleList:
        """Return a page of schedules, in no order.

        A page is bounded work: with a filter it may have found nothing, and lead on.

        Args:
            handler: Those of this handler only; empty: of any.
            prefix: Those whose names begin so.
            cursor: Of the page before; empty for the first one.
            count: How many to look at, about, 1 to 1,000.
            gaps: Leave out lanes that do not answer, and note them here; None: they are an error.

        Raises:
            InvalidOption: An argument cannot be used.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        checks.text("handler", handler)
        checks.text("prefix", prefix)
        count = checks.count("count", count, 1, COUNT_MAX)
        client = self._opened()
        lanes = client.context.lanes
        number, at = _place(cursor, len(lanes))
        names = [state.lane.names for state in lanes]
        known = await gaps_of(gaps, client.context.pipeline, names)
        following, flat = "0", list[bytes]()
        if number not in known.errors:
            with known.reading(number):
                following, flat = await client.context.pipeline.execute(
                    "HSCAN", names[number].schedules, at, "COUNT", count
                )
        at, number = (following, number) if following.strip("0") else ("0", number + 1)
        found = []
        for raw, text in zip(flat[::2], flat[1::2], strict=True):
            stored = _legible(raw, text)
            is_meant = stored is not None and stored.name.startswith(prefix)
            if stored is not None and is_meant and handler in ("", stored.job.handler):
                found.append(_told(client, stored))
        return ScheduleList(
            schedules=tuple(found),
            cursor=f"{number}.{at}" if number < len(lanes) else "",
            unread=known.unread,
        )

    async def show(self, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            NoSuchSchedule: There is none.
            ConfigError: None can be called so.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_schedule(name)
        client = self._opened()
        return _told(client, _stored(name, await fetch(client.context, name)))

    async def next_times(self, name: str, count: int = 5) -> tuple[datetime, ...]:
        """Return when a schedule is due next, as if it were not paused; at most 1,000 times.

        Of a paused one those that are to come: empty if its only time is over.

        Raises:
            InvalidOption: `count` is none.
            ConfigError: Also if this machine does not have its time zone, but for the first of its
                times.
            NoSuchSchedule, ConfigError, StoreUnavailable, StoreLost, NotRunning: As for `show()`.
        """
        count = checks.count("count", count, 1, NEXT_MAX)
        check_schedule(name)
        context = self._opened().context
        stored = _stored(name, await fetch(context, name))
        try:
            if stored.head.is_paused:
                resuming = resumed(stored, await wall_ms(context, name), "")
                if resuming is None:
                    return ()
                stored = resuming
            first_ms = stored.head.next_ms
            following = list(islice(times(stored.when, first_ms), count - 1))
        except ConfigError as error:
            raise unread(name, error) from None
        return (moment(first_ms), *map(moment, following))

    async def pause(self, name: str) -> None:
        """Fire a schedule no more, until it is resumed.  Twice is fine.

        A time that has come and was not fired yet, as its jitter is not over, is missed.

        Raises:
            NoSuchSchedule, ConfigError, StoreUnavailable, StoreLost, NotRunning: As for `show()`.
        """

        def judge(found: FoundSchedule, now_ms: int, token: str) -> JudgedChange | None:
            stored = _stored(name, found)
            if stored.head.is_paused:
                return None
            head, firing = stopped(stored, now_ms, token)
            paused = attrs.evolve(stored, head=attrs.evolve(head, is_paused=True))
            return JudgedChange(change=change_of(found, paused), firing=firing)

        await self._change(name, judge)

    async def resume(self, name: str) -> None:
        """Fire a paused schedule again, from now on; twice is fine.

        What came due meanwhile was not missed, and is not fired.

        Raises:
            InvalidOption: Its only time is over: remove it.
            ConfigError: Also if this machine does not have its time zone.
            NoSuchSchedule, ConfigError, StoreUnavailable, StoreLost, NotRunning: As for `show()`.
        """

        def judge(found: FoundSchedule, now_ms: int, token: str) -> JudgedChange | None:
            stored = _stored(name, found)
            if not stored.head.is_paused:
                return None
            try:
                anew = resumed(stored, now_ms, token)
            except ConfigError as error:
                raise unread(name, error) from None
            if anew is None:
                problem = "a schedule that has a time to come: remove it, or give it another `when`"
                raise checks.option("name", name, problem)
            return JudgedChange(change=change_of(found, anew))

        await self._change(name, judge)

    async def trigger(self, name: str, *, idempotency_key: str | None = None) -> JobRef[Any]:
        """Dispatch the job of a schedule now, beside its times, also of a paused one; return it.

        Its options decide about a key with a live job, as for any dispatch: with `reject` it is
        refused, with `attach` the live one is returned.  `Schedule.fired` does not count it.
        With `idempotency_key`, any text of 1 to 256 bytes, it may be repeated: it answers the same
        job, until its outcome is forgotten.  Jobs are known by their key: after the schedule was
        given another one, the repeat makes a job of that.

        Raises:
            InvalidOption: `idempotency_key` cannot be one.
            NoSuchSchedule, ConfigError: As for `show()`.
            JobExists, JobStopping, ArgumentsDiffer, QueueFull, PoolFull: As for `dispatch()`.
            IdempotencyConflict: The schedule's handler, arguments or followers were changed since
                the call that is repeated.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_schedule(name)
        known = known_id(None, idempotency_key)
        client = self._opened()
        job = _stored(name, await fetch(client.context, name)).job
        job_id = f"{name}{TRIGGERED}{known or client.context.ids.next()}"
        more, payload = job.made(job_id)
        if known:
            digest = digest_of(job.handler, job.call, job.followers)
            more = ",".join(filter(None, (more, pack_more(digest=digest))))
        admission = Admission(
            job.key,
            job_id,
            job.handler,
            job.kind,
            payload,
            job.delay_ms / 1000,
            job.policy,
            allow_unknown=True,  # that was asked when the schedule was made
            more=more,
        )
        [pending] = client.dispatcher.admit([admission])
        answer = await pending.wait()
        if isinstance(answer, Accepted):
            return JobRef[Any](answer.key, answer.job_id, answer.handler, client, answer.seen)
        raise again(answer)

    async def remove(self, name: str) -> None:
        """Take a schedule away; jobs that it has made stay.

        A time that has come and was not fired yet is missed, as for `pause()`.  A schedule that
        stands in the code of a service comes back when that starts again.

        Raises:
            NoSuchSchedule, ConfigError, StoreUnavailable, StoreLost, NotRunning: As for `show()`.
        """
        seen = list[FoundSchedule]()

        def judge(found: FoundSchedule, now_ms: int, token: str) -> JudgedChange | None:
            if not found.line:
                if seen:
                    return None  # a call of before has been there
                raise NoSuchSchedule(schedule=name)
            seen.append(found)
            change = ScheduleChange(name=name, seen=found.line, head="", due_ms=None)
            stored = found.stored
            firing = stopped(stored, now_ms, token)[1] if stored is not None else None
            return JudgedChange(change=change, firing=firing)

        await self._change(name, judge)

    async def _change(self, name: str, judge: Judge) -> None:
        check_schedule(name)
        await change(self._opened().context, name, judge)


# --- making them ----------------------------------------------------------------------------


async def schedule(
    client: JobClient,
    name: str,
    when: When,
    call: tuple[Handler[Any, Any] | str, str, tuple[Any, ...], dict[str, Any]],
    options: DispatchOptions,
) -> None:
    """Make a schedule, or change the one of this name; see `Node.schedule`."""
    wanted, is_known = _wanted(client, name, when, call, options)
    if not is_known:
        job, context = wanted.job, client.context
        names = context.lanes[job.lane].lane.names
        if await context.pipeline.execute("HGET", names.handlers, job.handler) is None:
            error = UnknownHandler(handler=job.handler)
            deadline_s = context.io.clock() + context.settings.op_timeout_s
            raise await client.explained(error, deadline_s)
    await keep(client.context, wanted)


def of_code(client: JobClient, handlers: Handlers) -> list[WantedSchedule]:
    """Return the schedules that stand in the code.

    Raises:
        ConfigError: Two have the same name, or one cannot be dispatched so.
    """
    for problem in wrong_in_code(handlers):
        raise again(problem)
    found = list[WantedSchedule]()
    for name, coded in handlers._scheduled():
        call = coded.handler, coded.key or name, coded.args, dict(coded.kwargs)
        options = DispatchOptions(**coded.options)
        try:
            found.append(_wanted(client, name, coded.when, call, options)[0])
        except UsageError as error:  # of what only an open node knows: its limits, its handlers
            raise _of_schedule(name, error) from error
    return found


def wrong_in_code(handlers: Handlers) -> Iterator[ConfigError]:
    """Yield why schedules of the code cannot be kept, as far as no server is needed to know."""
    names = set[str]()
    for name, coded in handlers._scheduled():
        if name in names:
            problem = f"{name!r} is there twice: name one"
            yield ConfigError(setting="schedule", problem=problem)
        names.add(name)
        try:
            check_schedule(name)
            check_key(coded.key or name)
            _ = DispatchOptions(**coded.options).known
            handler = coded.handler
            handler._arguments.encode(handler.name, coded.args, dict(coded.kwargs))
        except UsageError as error:
            yield _of_schedule(name, error)


def _of_schedule(name: str, error: UsageError) -> ConfigError:
    problem = f"schedule {name!r}: {sentence(error)}"
    return ConfigError(setting="schedule", problem=problem)


def _wanted(
    client: JobClient,
    name: str,
    when: When,
    call: tuple[Handler[Any, Any] | str, str, tuple[Any, ...], dict[str, Any]],
    options: DispatchOptions,
) -> tuple[WantedSchedule, bool]:
    """Return a schedule as it is stored, and whether its handler is known, or need not be."""
    check_schedule(name)
    check_when(when)
    for option in ("job_id", "idempotency_key"):
        if getattr(options, option) is not None:
            must = "None: each job of a schedule has an id of its own"
            raise checks.option(option, getattr(options, option), must)
    handler, key, args, kwargs = call
    admitting = client.admitting(handler, options)
    made = admitting.admission(key, args, kwargs, job_id=PLACEHOLDER)
    payload, size = made.payload, more_of(made.more, "followers")
    at = int(size) if size else len(payload)
    job = ScheduledJob(
        lane=lane_of(made.key, len(client.context.lanes)),
        key=made.key,
        handler=made.handler,
        kind=made.kind,
        delay_ms=round(1000 * made.delay_s),
        policy=made.policy,
        more=without_more(made.more, "followers"),
        call=payload[:at],
        followers=payload[at:],
    )
    check_misfire(when, job)
    return WantedSchedule(name=name, when=when, job=job), made.allow_unknown


# --- reading --------------------------------------------------------------------------------


def _stored(name: str, found: FoundSchedule) -> StoredSchedule:
    if found.stored is None:
        raise NoSuchSchedule(schedule=name)
    return found.stored


def _legible(raw: bytes, text: bytes) -> StoredSchedule | None:
    try:
        return parse(raw.decode(), text)
    except UnicodeDecodeError:
        return None


def _told(client: JobClient, stored: StoredSchedule) -> Schedule:
    head, job = stored.head, stored.job
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    codec = ""
    with suppress(PayloadEncodingError):
        codec, _, _ = head_of(job.call)
        args, kwargs = client.read_call(job.handler, job.call)
    return Schedule(
        name=stored.name,
        when=stored.when,
        handler=job.handler,
        key=job.key,
        is_paused=head.is_paused,
        next_at=None if head.is_paused else moment(head.next_ms),
        last_at=moment(head.last_ms) if head.last_ms else None,
        fired=head.fired,
        missed=head.missed,
        overlapped=head.overlapped,
        args=None if args is None else tuple(args),
        kwargs=None if kwargs is None else dict(kwargs),
        payload_bytes=len(job.call),
        codec=codec,
    )


def _place(cursor: object, lanes: int) -> tuple[int, str]:
    text = checks.text("cursor", cursor)
    if not text:
        return 0, "0"
    number, _, at = text.partition(".")
    if not (is_number(number) and checks.is_scan_place(at)):
        raise checks.cursor_error(text)
    return checks.cursor_lane(text, int(number), lanes), at


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
