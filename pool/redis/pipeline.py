"""The pipeline: one connection, which sends everything that waits as one batch.

    send() -> queue --(a batch)--> body: connect, one pipeline --> on_reply, on_reply ...

There are no timers on the way: a call made on an idle pipeline goes out in the loop's next turn,
and what is asked while a batch is under way forms the next one.  So batches grow with the load by
themselves, up to a number of calls and of bytes.

    waits ----------> written in part ----> written ----------> answered
      | time is up       | time is up, lost    | time is up, lost
      not done           not done, if lost     maybe done

Time is what passes while the line stands still: a call's begins anew whenever the other side has
taken bytes of ours or sent some, on this connection, since the call was made.  A slow line makes
calls slow.  That a connection was made, or that the system took what we wrote, is no progress.
What only drips has another limit, `longest_s`, for all of it.

What is large waits aside, by script, and the scripts take turns; a small call never waits for more
than one batch of that.  Of one script, calls keep their order: once a large one waits, those made
later wait behind it, as do those of scripts that go by what it left (`Script.behind`).  How many
bytes may wait aside is bounded; an empty pipeline takes any call.

Deadlines are kept beside the body, which may hang in a name look-up or wait for a server that does
not answer: every call is answered when its time is up, whatever happens.  One loop timer per
pipeline is enough for that; in a busy pipeline it fires about once per time-out.

What is too large for one answer is fetched part by part over a connection of its own, which all
who do so at the time share (`apart()`): nobody's renewal or dispatch stands behind it.  So is what
the server has ended CUTS_MAX connections for, as it does where an answer is over its limit.

In a cluster a pipeline has others beside it, made when they are first needed: one for each hash
tag, with a connection to the primary that has it.  Calls are passed on by their first key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from operator import length_hint
from typing import Any

import anyio
import attrs

from pool.core.headroom import check_headroom
from pool.core.retry import CALL_RETRY_CAP_S, CALL_RETRY_S, connect_delay
from pool.errors import (
    AuthError,
    NotRunning,
    PartEnded,
    PoolError,
    StoreError,
    StoreFault,
    StoreUnavailable,
    again,
    cut,
    unsure,
)
from pool.names import hash_tag
from pool.redis.connection import Reply, Server
from pool.redis.errors import CLOSED
from pool.redis.io.body import READ_S
from pool.redis.io.loops import door
from pool.redis.io.system import IO, BodyIO, RunningBody, Waiter
from pool.redis.io.task import Care, Guard
from pool.redis.reads import Reads
from pool.redis.scripts import Command, Script, ScriptCall, Word
from pool.redis.url import Url

OnReply = Callable[[Reply], object]

QUEUED_MAX = 10_000  # calls that may wait for the connection; more would only be late
BATCH_MAX = 1_000  # calls in one pipeline: at 10 us each the first waits 10 ms for the last
BATCH_BYTES_MAX = 256 * 1024  # in one pipeline, or one call: at 1 MB/s what is small waits 0.3 s
LARGE_BYTES = 32 * 1024  # of one call that waits aside
WAITING_BYTES_MAX = 64 * 1024 * 1024  # of what waits aside
WORD_BYTES = 40  # of a call for each of its arguments: what keys, frames and objects come to
_LONGEST = 7.5  # times `op_timeout_s`, unless told otherwise: as with the default settings
CUTS_MAX = 2  # connections that end in a row before a call is sent where it ends nobody else's
_TOO_LONG = "the calls before it took too long"
LATE = f"not sent: {_TOO_LONG}"  # the problem of a call whose time was up before its turn
_GIVE_UP_S = 0.2  # for closing a pipeline that could not be opened
_LATE_S = 0.05  # a timer that fires later than this was held up by the loop, and so were replies


@attrs.define(eq=False)
class _Call:
    command: Command
    on_reply: OnReply
    asked_s: float
    deadline_s: float
    until_s: float  # when it is over, however the line moves
    size: int  # about, in bytes
    link: object | None = None  # sent on this connection, or not at all
    is_sent: bool = False  # or about to be: the body has it
    is_answered: bool = False
    is_put_off: bool = False

    def is_overdue(self, now_s: float) -> bool:
        """Whether its time is up; if the loop hung meanwhile it has a turn more, once.

        Its reply may lie in the socket since long.  What was not sent is not sent so late: it may
        be the second try of what nobody remembers any more.
        """
        if self.deadline_s > now_s:
            return False
        if self.is_put_off or not self.is_sent or now_s < self.deadline_s + _LATE_S:
            return True
        self.is_put_off, self.deadline_s = True, now_s + _LATE_S
        return False


class Pipeline:
    """Calls to the store from the event loop.  Make one with `open()`."""

    def __init__(
        self,
        io: IO,
        url: Url,
        *,
        op_timeout_s: float,
        longest_s: float | None = None,
        queued_max: int,
        name: str,
        care: Care | None,
        is_here: Callable[[], object] | None = None,  # of the pipeline that this one is made beside
    ) -> None:
        self.server: Server | None = None
        self.connections: int = 0  # made so far: a change means that the server was away
        self.link: object | None = None  # the present connection, or the last one
        self.reads: Reads = Reads()  # for whoever asks for what may be large
        self.pages: Reads = Reads()  # of maps: what they weigh says nothing of the others
        self.io = io
        self._url = url
        self._where = url.where
        self._is_of_cluster = url.kind == "cluster"
        self._others: dict[str, Pipeline] = {}  # by hash tag
        self._apart: Pipeline | None = None
        self._apart_users = 0
        self._op_timeout_s = op_timeout_s
        self._longest_s = _LONGEST * op_timeout_s if longest_s is None else longest_s
        # Half of a call's time: what can be repeated after a lost reply must have time left for it.
        self._reply_s = op_timeout_s / 2
        self._queued_max = queued_max
        self._queue: deque[_Call] = deque()
        self._aside: dict[Script | None, deque[_Call]] = {}  # none of them empty; in turn
        self._aside_bytes = 0
        self._body_io: BodyIO | None = None
        self._flying: Sequence[_Call] = ()  # what the body took last
        self._is_idle = False  # the body waits: it must be woken
        self._is_closing = False
        self._trouble = "the connection is being made"  # why calls wait, for error texts
        self._timer_s = float("inf")
        self._cancel_timer: Callable[[], object] | None = None
        self._name = name
        self._care = care
        self._guard = Guard(f"{name}/reply", care)
        self._door = is_here or door()
        self._loop = io.loop(care)
        self._opened = self._loop.waiter()
        self._is_opened = False
        self._drained = anyio.Event()
        self._running_body: RunningBody

    @property
    def is_of_cluster(self) -> bool:
        """Whether the server is one of a cluster."""
        return self._is_of_cluster

    @property
    def is_default_user(self) -> bool:
        """Whether it logs in as no user of its own, whom the server may allow more."""
        return self._url.username in ("", "default")

    @classmethod
    async def open(
        cls,
        io: IO,
        url: Url,
        *,
        op_timeout_s: float,
        longest_s: float | None = None,
        name: str = "pool-pipeline",
        queued_max: int = QUEUED_MAX,
        care: Care | None = None,
    ) -> Pipeline:
        """Connect to the server and check it; `op_timeout_s` is the deadline of this and all calls.

        A call may be given another one.  A longer one helps while it waits or repeats: a server
        whose line has stood still for half of that after sending has lost its connection.  A line
        that moves has `longest_s` for each call.

        Raises:
            StoreUnavailable: No connection within `op_timeout_s`.
            AuthError: The server refuses the credentials.
            UnsupportedServer: It is too old, no master, or is in cluster mode and the address does
                not say so.
            ConfigError: The address cannot work.
        """
        pipeline = cls(
            io,
            url,
            op_timeout_s=op_timeout_s,
            longest_s=longest_s,
            queued_max=queued_max,
            name=name,
            care=care,
        )
        pipeline._start()
        failed: Reply = StoreUnavailable(
            problem=f"{url.where} did not answer within {op_timeout_s:g} s", maybe_done=False
        )
        try:
            with anyio.move_on_after(op_timeout_s):
                failed = await pipeline._opened.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await pipeline.aclose(_GIVE_UP_S)
            raise
        if failed is not None:
            await pipeline.aclose(_GIVE_UP_S)
            raise again(failed)
        return pipeline

    def check_loop(self) -> None:
        """Refuse whoever is not on our event loop; for what is kept beside us.

        Raises:
            WrongLoop: It is another one, or none.
            NotRunning: This process is a fork of the one that opened it.
        """
        if self._running_body.state == "forked":
            raise NotRunning(state="forked")
        self._door()

    def check_caller(self) -> None:
        """Likewise, for what may be called from a stack that is nearly exhausted.

        Raises:
            WrongLoop, NotRunning: As `check_loop()`.
            RecursionError: It is.
        """
        check_headroom()
        self.check_loop()

    @property
    def is_unwoken(self) -> bool:
        """Whether calls wait, and nobody has woken the body: whoever should was interrupted.

        Ours, or that of a pipeline beside us.
        """
        return next(self._unwoken(), None) is not None

    def look(self) -> None:
        """Wake each body of which that is so; told as a crash of it."""
        for pipeline in self._unwoken():
            pipeline._guard.tell(PartEnded(part=pipeline._name, problem="nobody woke it"))
            pipeline._ring()

    def _unwoken(self) -> Iterator[Pipeline]:
        for each in (self, *self._siblings()):
            if each._is_idle and (each._queue or each._aside):
                yield each

    def _siblings(self) -> Iterable[Pipeline]:
        return *self._others.values(), *filter(None, [self._apart])

    def _start(self) -> None:
        self._running_body = self.io.start(
            self._name, self._url, self._work, care=self._care, on_end=self._on_end
        )

    def at(self, key: str) -> Pipeline:
        """Return the pipeline to where this key lives: this one, unless it leads to a cluster.

        Raises:
            NotRunning: It is closed, and was never used for that place.
        """
        tag = hash_tag(key) if self._is_of_cluster else ""
        if tag in ("", self._url.tag):
            return self
        pipeline = self._others.get(tag)
        if pipeline is None:
            self._check_open()
            self._others[tag] = pipeline = self._another(self._url.at(key), tag, self._longest_s)
        return pipeline

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[Pipeline]:
        """Give a pipeline to the same place that has a connection of its own, while somebody uses
        it.

        A call may take as long there as a read of that size.

        Raises:
            NotRunning: It is closed.
        """
        if self._apart is None:
            self._check_open()
            self._apart = self._another(self._url, "apart", max(READ_S, self._longest_s))
        pipeline = self._apart
        self._apart_users += 1
        try:
            yield pipeline
        finally:
            self._apart_users -= 1
            if not self._apart_users:
                self._apart = None
                with anyio.CancelScope(shield=True):
                    await pipeline.aclose(_GIVE_UP_S)

    def _another(self, url: Url, name: str, longest_s: float) -> Pipeline:
        pipeline = Pipeline(
            self.io,
            url,
            op_timeout_s=self._op_timeout_s,
            longest_s=longest_s,
            queued_max=self._queued_max,
            name=f"{self._name}-{name}",
            care=self._care,
            is_here=self._door,  # a callback of asyncio's, which may be where we are, has none
        )
        pipeline._start()  # what is called meanwhile waits for its connection
        return pipeline

    def moved_s(self, key: str = "") -> float:
        """Return when the line to where this key lives has last moved."""
        body_io = (self.at(key) if key else self)._body_io
        return body_io.moved_s if body_io is not None else float("-inf")

    async def call(
        self,
        call: ScriptCall,
        *,
        repeatable: bool = False,
        timeout_s: float | None = None,
        until_s: float | None = None,
    ) -> Reply:
        """Run a script and return what its reader makes of the reply.

        `repeatable` says that doing it twice is as good as once (it carries a request id, or only
        reads): then it is sent again after a failure, until its time is up.  Cancelling the caller
        does not take the call back.  `timeout_s` is for a line that stands still, `until_s` for all
        of it, by the IO's clock.

        Raises:
            StoreUnavailable: Its time is up, the connection was lost, or too much waits already;
                `maybe_done` says if it may have been done, or may still be.
            StorageFull, AuthError, StoreLost, Gone: What the server answered.
            StoreFault: It answered what nobody expects, or can read.
            NotRunning: The pipeline is closed, or this process is a fork of the one that opened it.
        """
        check_headroom()
        timeout_s = self._op_timeout_s if timeout_s is None else timeout_s
        return await self._repeat(call, timeout_s, until_s, is_repeatable=repeatable)

    async def execute(self, *command: Word, repeatable: bool = False) -> Reply:
        """Run one plain command; `repeatable` and errors as for `call()`."""
        check_headroom()
        return await self._repeat(command, self._op_timeout_s, None, is_repeatable=repeatable)

    async def execute_all(self, commands: Iterable[Command]) -> list[Reply]:
        """Run plain commands in one round trip, in their order; raises the first error of them."""
        replies = await self.replies_to(commands)
        for reply in replies:
            if isinstance(reply, PoolError):
                raise again(reply)
        return replies

    async def replies_to(self, commands: Iterable[Command]) -> list[Reply]:
        """Run plain commands in one round trip, in their order; a reply may be a PoolError."""
        waiters, pipelines = [], dict[Pipeline, None]()
        try:
            for command in commands:
                waiters.append(self._loop.waiter())
                pipeline = self._of(command)
                pipeline._enqueue(command, waiters[-1].take, self._op_timeout_s, is_bounded=True)
                pipelines[pipeline] = None
        finally:  # also what stands before one that is refused, which nobody waits for
            for pipeline in pipelines:
                pipeline._ring()
        return [await waiter.wait() for waiter in waiters]

    def send(
        self,
        command: Command,
        on_reply: OnReply,
        *,
        timeout_s: float | None = None,
        until_s: float | None = None,
        link: object | None = None,
    ) -> None:
        """Send a command without waiting; `on_reply` gets its reply on the event loop, once.

        With a `link` it goes out on that connection only.  If there is another one by then, the
        reply is StoreUnavailable, and nothing was done: that server may have lost data.  Not in a
        cluster, where what was refused as moved is sent to another server.

        A reply is a value or an instance of PoolError.  What `on_reply` raises is told as a crash.
        For parts of ours, each of which bounds by itself how many bytes it has under way.

        Raises:
            StoreUnavailable: `queued_max` calls wait already; nothing was sent.
            NotRunning: The pipeline is closed, or this process is a fork of the one that opened it.
        """
        pipeline = self._of(command)
        timeout_s = self._op_timeout_s if timeout_s is None else timeout_s
        assert link is None or not self._is_of_cluster
        pipeline._enqueue(command, on_reply, timeout_s, until_s, link=link)
        pipeline._ring()

    async def aclose(self, budget_s: float) -> None:
        """Close; calls made before may still be answered within the budget.  Twice is fine.

        What has no answer by then gets StoreUnavailable.
        """
        self._is_closing = True
        async with anyio.create_task_group() as closing:
            for pipeline in self._siblings():
                closing.start_soon(pipeline.aclose, budget_s)
            await self._aclose(budget_s)

    async def _aclose(self, budget_s: float) -> None:
        started_s = self.io.clock()
        if self._running_body.state == "running" and self._waiting():
            with anyio.move_on_after(budget_s, shield=True):
                await self._drained.wait()
        await self._running_body.aclose(max(0.0, budget_s - (self.io.clock() - started_s)))
        self._give_up("the pipeline was closed")
        self._loop.close()

    # --- on the event loop --------------------------------------------------------------------

    def _of(self, command: Command) -> Pipeline:
        """Return the pipeline by which a command goes."""
        if self._is_of_cluster and (key := _key_of(command)):
            return self.at(key)
        return self

    def _check_open(self) -> None:
        state = self._running_body.state
        if self._is_closing or state != "running":
            raise NotRunning(state="closed" if state != "forked" else state)
        self._door()

    def _enqueue(
        self,
        command: Command,
        on_reply: OnReply,
        timeout_s: float,
        until_s: float | None = None,
        *,
        is_bounded: bool = False,
        link: object | None = None,
    ) -> None:
        self._check_open()
        if len(self._queue) >= self._queued_max:
            raise self._too_many(f"{self._queued_max} calls")
        now_s = self.io.clock()
        script, words = _parts(command)
        size = sum(map(length_hint, words)) + WORD_BYTES * len(words)
        longest_s = now_s + self._longest_s
        until_s = longest_s if until_s is None else min(until_s, longest_s)
        deadline_s = now_s + timeout_s
        call = _Call(command, on_reply, now_s, deadline_s, until_s, size, link)
        if deadline_s < self._timer_s:
            self._arm(deadline_s, timeout_s)  # first: whatever happens then, it is looked at
        if size > LARGE_BYTES or script in self._aside:
            self._put_aside(script, call, is_bounded=is_bounded)
        else:
            self._queue.append(call)

    def _put_aside(self, script: Script | None, call: _Call, *, is_bounded: bool) -> None:
        is_large = is_bounded and call.size > LARGE_BYTES
        if is_large and self._aside and self._aside_bytes + call.size > WAITING_BYTES_MAX:
            raise self._too_many(f"{self._aside_bytes} bytes")
        if len(self._aside.get(script, ())) >= self._queued_max:
            raise self._too_many(f"{self._queued_max} calls")
        self._aside.setdefault(script, deque()).append(call)
        self._aside_bytes += call.size

    def _too_many(self, waiting: str) -> StoreUnavailable:
        return StoreUnavailable(problem=f"not sent: {waiting} wait already", maybe_done=False)

    def _ring(self) -> None:
        if self._is_idle:
            self._running_body.wake()
            self._is_idle = False  # last: if that was interrupted, the next ring does it

    def _once(
        self, command: Command, timeout_s: float, until_s: float | None
    ) -> Coroutine[Any, Any, Reply]:
        """Send; to be awaited.  What is too much to wait is refused before that."""
        waiter, pipeline = self._loop.waiter(), self._of(command)
        pipeline._enqueue(command, waiter.take, timeout_s, until_s, is_bounded=True)
        pipeline._ring()
        return _answer_of(waiter)

    async def _once_apart(self, command: Command, timeout_s: float, until_s: float | None) -> Reply:
        """Send over a connection of its own, as the server may end it instead of an answer."""
        async with self._of(command).apart() as line:
            return await line._once(command, timeout_s, until_s)

    async def _repeat(
        self, command: Command, timeout_s: float, until_s: float | None, *, is_repeatable: bool
    ) -> Reply:
        now_s = self.io.clock()
        deadline_s, longest_s = now_s + timeout_s, now_s + self._longest_s
        until_s = longest_s if until_s is None else min(until_s, longest_s)
        was_sent, pause_s, cuts = False, CALL_RETRY_S, 0
        said: StoreUnavailable | None = None
        while True:
            left_s = deadline_s - self.io.clock()
            try_s = min(left_s, self._op_timeout_s) if is_repeatable else left_s
            try:
                once = self._once if cuts < CUTS_MAX else self._once_apart
                answer = once(command, try_s, until_s)
            except (StoreUnavailable, NotRunning) as error:  # too much waits, or it was closed
                raise (unsure(error) if was_sent else error) from None
            try:
                return await answer
            except StoreUnavailable as error:
                cuts = cuts + 1 if CLOSED in error.problem else 0
                if said is None or error.problem != LATE:  # else the try before says why
                    said = cut(error, cuts) if cuts > CUTS_MAX else error
                rest_s = self.io.dice.uniform(0.0, pause_s)
                is_final = error.maybe_done and not is_repeatable
                if is_final or self.io.clock() + rest_s >= deadline_s:
                    raise (unsure(said) if was_sent else said) from None
                was_sent = was_sent or error.maybe_done
            except (StoreError, NotRunning) as error:  # of this try alone
                raise (unsure(error) if was_sent else error) from None
            await anyio.sleep(rest_s)
            pause_s = min(2 * pause_s, CALL_RETRY_CAP_S)

    def _arm(self, deadline_s: float, delay_s: float) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer, self._timer_s = None, float("inf")
        self._cancel_timer = self._loop.later(delay_s, self._on_timer)
        self._timer_s = deadline_s

    def _on_timer(self) -> None:
        """Answer what is overdue; come back for the earliest of the others."""
        self._cancel_timer, self._timer_s = None, float("inf")
        self.look()
        now_s = self.io.clock()
        overdue = [c for c in self._unanswered() if self._is_overdue(c, now_s)]
        if overdue:
            late = set(overdue)
            self._queue = deque(call for call in self._queue if call not in late)
            for script, calls in list(self._aside.items()):
                self._leave_aside(script, deque(call for call in calls if call not in late))
        for call in overdue:
            self._answer(call, self._lost(call, self._trouble))
        # Whoever was answered may have asked anew, for a shorter time.
        deadlines = [call.deadline_s for call in self._unanswered()]
        if deadlines:
            self._arm(min(deadlines), max(0.0, min(deadlines) - now_s))
        self._note_drained()

    def _is_overdue(self, call: _Call, now_s: float) -> bool:
        """Whether its time is up, as far as the line stood still."""
        if call.deadline_s <= now_s and (moved_s := self.moved_s()) > call.asked_s:
            call.deadline_s = max(call.deadline_s, min(moved_s + self._op_timeout_s, call.until_s))
        return call.is_overdue(now_s)

    def _lost(self, call: _Call, why: str) -> StoreUnavailable:
        if call.is_sent:
            return StoreUnavailable(
                problem=f"{self._where} did not answer in time", maybe_done=True
            )
        return StoreUnavailable(problem=f"not sent: {why}", maybe_done=False)

    def _waiting(self) -> bool:
        return bool(self._queue or self._aside) or any(not c.is_answered for c in self._flying)

    def _unanswered(self) -> Iterator[_Call]:
        flying = (call for call in self._flying if not call.is_answered)
        return chain(flying, self._queue, *self._aside.values())

    def _unsent(self) -> list[_Call]:
        """Take all that waits."""
        unsent = [*chain(self._queue, *self._aside.values())]
        self._queue.clear()
        self._aside.clear()
        self._aside_bytes = 0
        return unsent

    def _leave_aside(self, script: Script | None, calls: deque[_Call]) -> None:
        """Have these wait, and nobody else of that script; it is its turn after all others."""
        self._aside_bytes -= sum(call.size for call in self._aside.pop(script))
        if calls:
            self._aside[script] = calls
            self._aside_bytes += sum(call.size for call in calls)

    def _note_drained(self) -> None:
        if self._is_closing and not self._waiting():
            self._drained.set()

    def _deliver(self, batch: Sequence[_Call], replies: Sequence[Reply]) -> None:
        for call, reply in zip(batch, replies, strict=True):
            self._answer(call, reply)
        self._note_drained()

    def _answer(self, call: _Call, reply: Reply) -> None:
        """Answer once; who raises at his answer keeps nobody else from theirs."""
        if not call.is_answered:
            call.is_answered = True
            try:
                call.on_reply(reply)
            except Exception as error:  # noqa: BLE001 - told, whatever it is
                self._guard.tell(error)

    def _give_up(self, why: str, error: Callable[[_Call], PoolError] | None = None) -> None:
        """Answer everything that waits."""
        for call in (*self._flying, *self._unsent()):
            self._answer(call, self._lost(call, why) if error is None else error(call))
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer, self._timer_s = None, float("inf")

    def _on_connected(self, server: Server | None) -> None:
        self.server = server
        self.connections += 1
        self._settle_open(None)

    def _settle_open(self, error: PoolError | None) -> None:
        if not self._is_opened:
            self._is_opened = True
            self._opened.take(error)

    def _on_refused(self, error: PoolError) -> None:
        self._settle_open(error)
        if isinstance(error, AuthError):
            # No use in waiting: the same credentials will be refused again.
            for call in self._unsent():
                self._answer(call, attrs.evolve(error))

    def _on_end(self, error: BaseException | None) -> None:
        if error is not None:
            problem = f"the pipeline failed: {type(error).__name__}: {error}"
            self._settle_open(StoreFault(problem=problem, maybe_done=False))
            self._give_up("", lambda call: StoreFault(problem=problem, maybe_done=call.is_sent))

    def _expire(self, overdue: Sequence[_Call]) -> None:
        for call in overdue:
            self._answer(call, self._lost(call, self._trouble))
        self._note_drained()

    # --- the body -----------------------------------------------------------------------------

    async def _work(self, body_io: BodyIO) -> None:
        self._body_io = body_io
        if self._flying:  # of a life before this one, which has crashed
            body_io.post(self._expire, self._flying)
        self._flying, self._is_idle = (), False
        failures = 0
        await self._connect(body_io)  # at once: open() waits for it
        while not body_io.closing:
            if not (self._queue or self._aside):
                await self._rest(body_io)
            elif body_io.is_connected() or await self._connect(body_io):
                failures = 0
                if not await self._run_batch(body_io):
                    return
            else:
                failures += 1
                pause_s = connect_delay(failures, self.io.dice, call_s=self._op_timeout_s)
                await body_io.sleep(pause_s)

    async def _rest(self, body_io: BodyIO) -> None:
        self._is_idle = True
        await body_io.wait()
        self._is_idle = False

    async def _connect(self, body_io: BodyIO) -> bool:
        try:
            await body_io.connect(timeout_s=self._op_timeout_s)
        except PoolError as error:
            self._trouble = str(getattr(error, "problem", error))
            body_io.post(self._on_refused, error)
            return False
        self._trouble = _TOO_LONG
        self.link = object()
        return body_io.post(self._on_connected, body_io.server)

    async def _run_batch(self, body_io: BodyIO) -> bool:
        batch, overdue = self._take()
        if overdue:
            body_io.post(self._expire, overdue)
        if not batch:
            return True
        replies = await body_io.run(
            [call.command for call in batch], timeout_s=self._reply_s, longest_s=self._longest_s
        )
        return body_io.post(self._deliver, batch, replies)

    def _take(self) -> tuple[Sequence[_Call], Sequence[_Call]]:
        """Return what to send now, and what it is too late to send."""
        batch: list[_Call] = []
        overdue: list[_Call] = []
        now_s, left = self.io.clock(), BATCH_BYTES_MAX
        while self._queue and len(batch) < BATCH_MAX and left > 0:
            call = self._queue.popleft()
            if call.deadline_s <= now_s and self._is_overdue(call, now_s):
                overdue.append(call)
            elif call.link is not None and call.link is not self.link:
                overdue.append(call)  # the server may have lost data since it was made
            else:
                call.is_sent = True
                batch.append(call)
                left -= call.size
        if self._aside:
            self._take_aside(batch, overdue, now_s, left)
        self._flying = batch
        return batch, overdue

    def _take_aside(
        self, batch: list[_Call], overdue: list[_Call], now_s: float, left: int
    ) -> None:
        """Take of what waits aside as much as there is room for, but one call in any case."""
        is_first = True
        while self._aside and len(batch) < 2 * BATCH_MAX:
            script, calls = next(iter(self._aside.items()))
            if calls[0].size > left and not is_first:
                return
            call = calls.popleft()
            del self._aside[script]
            if calls:
                self._aside[script] = calls  # behind all others
            self._aside_bytes -= call.size
            is_other = call.link is not None and call.link is not self.link
            if is_other or self._is_overdue(call, now_s):
                overdue.append(call)
                continue
            call.is_sent, is_first = True, False
            batch.append(call)
            left -= call.size


async def _answer_of(waiter: Waiter) -> Reply:
    reply = await waiter.wait()
    if isinstance(reply, PoolError):
        raise again(reply)
    return reply


def _parts(command: Command) -> tuple[Script | None, Sequence[Word]]:
    """Return whose turn it takes, and what may be large."""
    if type(command) is ScriptCall:
        return command.script.behind or command.script, command.args
    return None, command  # type: ignore[return-value]


def _key_of(command: Command) -> str:
    """Return the key that says where a command goes; "" for one that has none, as PING."""
    if isinstance(command, ScriptCall):
        return command.keys[0]
    return str(command[1]) if len(command) > 1 else ""
