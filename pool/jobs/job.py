"""What a handler is given: its job, the messages for it, and the ways to end it on purpose."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, overload

import anyio
import attrs

from pool import checks
from pool.core.codec import Codec, check_size, decode_value, encode_message
from pool.core.headroom import check_headroom
from pool.core.lease import Timing
from pool.core.record import Kind, Progress
from pool.core.schedules import time_of
from pool.errors import InvalidOption, PayloadEncodingError, PoolError
from pool.jobs.blocking import Blocking
from pool.jobs.keeper import Keeper, Step
from pool.redis.commands.talk import NO_MESSAGE, InboxPage, Message, MessageId, number_in

if TYPE_CHECKING:  # they make what makes jobs
    from pool.jobs.followers import Follower
    from pool.jobs.node import Node
    from pool.jobs.shields import Shields

# The job (key and id) whose handler runs in this context; what it starts there inherits it.
RUNNING: ContextVar[str] = ContextVar("pool_running", default="")


R = TypeVar("R")
A = TypeVarTuple("A")
PROGRESS_MAX: Final = 10**15  # floats are exact up to here
_STANDING_BYTES_MAX: Final = 64 * 1024  # of messages that are answered together, at least one
PROGRESS_PARTS: Final = 3  # how much is done, of how much, and a note


class Retry(Exception):
    """Raise in a handler: this attempt failed, run the job again.

    `after_s`, 0 to 365 days, replaces the backoff; the attempt counts.

    Raises:
        InvalidOption: `after_s` is out of bounds.
    """

    after_s: float | None = None  # of a subclass whose __init__ is its own alone
    cause: str = ""

    def __init__(self, *, after_s: float | None = None, cause: str = "") -> None:
        self.after_s = checks.seconds("after_s", after_s, or_none=True)
        self.cause = checks.as_text(cause)
        super().__init__(self.cause)


class Cancel(Exception):
    """Raise in a handler: end the job as cancelled; `result()` raises `JobCancelled`."""

    cause: str = ""

    def __init__(self, cause: str = "") -> None:
        self.cause = checks.as_text(cause)
        super().__init__(self.cause)


class Park(Exception):
    """Raise in a handler: give the job up without another attempt; it becomes a dead letter."""

    cause: str = ""

    def __init__(self, cause: str = "") -> None:
        self.cause = checks.as_text(cause)
        super().__init__(self.cause)


ReadInbox = Callable[[MessageId], Awaitable[InboxPage]]  # of those behind a message
KNOWN_MAX: Final = 1024  # messages that an inbox remembers, to drop the repeats of their signals


class Inbox:
    """The unhandled messages of one running job, in the order in which they were accepted (G-07).

    Redis holds them; a signal only wakes.  A signal that continues what is known is taken as it
    is; whenever one may be missing, the list is read instead, a page whenever nothing is left of
    the one before.  Until the last page has been read every signal is for what it will bring.

    A server that lost data goes back to an earlier list, and may give numbers anew from there.  So
    a message is known by its number and its request.  If a signal is of an unknown message with a
    number that is not higher than the newest, or behind one that we do not know, the list is read
    from its beginning, and what is known of it is dropped.
    """

    def __init__(self, *, is_behind: bool, after: MessageId = NO_MESSAGE) -> None:
        self._queue: deque[Message] = deque()
        self._after = after  # what came up to this one was handled, and may not be gone yet
        self._last = after  # the newest that was queued
        self._known: OrderedDict[MessageId, None] = OrderedDict()  # the newest that were queued
        self._is_behind = is_behind
        self._is_reading = False
        self._bell: anyio.Event | None = None
        self._is_asked = False
        self.is_unheard: bool = False  # something came, and nobody ever asked for anything

    def offer(self, message: MessageId, before: int, payload: bytes | None) -> None:
        """Take a signal: a message was accepted behind number `before` (0: behind none)."""
        if message in self._known:
            return
        self.is_unheard = not self._is_asked
        last = number_in(self._last)
        is_next = number_in(message) > last and before in (0, last)
        if not is_next and (number_in(message) <= last or before < last):
            self._last = self._after  # the list may be an earlier one: read all of it
        if payload is None or not is_next or self._is_behind or self._is_reading:
            self.fall_behind()
            return
        self._note(message, payload)
        self._ring()

    def fall_behind(self) -> None:
        """Have the list read before anything else is delivered."""
        self._is_behind = True
        self._ring()

    @property
    def is_unread(self) -> bool:
        """Whether nothing was ever queued: whoever learns of messages must have them read."""
        return self._last == self._after

    async def next(self, read: ReadInbox) -> Message:
        """Return the next message, waiting for it."""
        self._is_asked, self.is_unheard = True, False
        while not self._queue:
            if self._is_behind:
                await self._read(read)
            else:
                self._bell = anyio.Event()
                await self._bell.wait()
        return self._queue.popleft()

    async def next_at_once(self, read: ReadInbox) -> Message | None:
        """Return the next message, or None where none is known of."""
        self._is_asked, self.is_unheard = True, False
        while self._is_behind and not self._queue:
            await self._read(read)
        return self._queue.popleft() if self._queue else None

    async def _read(self, read: ReadInbox) -> None:
        self._is_behind, self._is_reading = False, True
        try:
            page = await read(self._last)
        except BaseException:
            self._is_behind = True
            raise
        finally:
            self._is_reading = False
        self._is_behind = self._is_behind or page.has_more
        for message, payload in page.messages:
            if message not in self._known:
                self._note(message, payload)
            self._last = message

    def _note(self, message: MessageId, payload: bytes) -> None:
        self._queue.append((message, payload))
        self._last = message
        self._known[message] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.set()


@attrs.frozen(eq=False, kw_only=True)
class Host:
    """Who runs jobs, as these reach it: made once for all of one worker's.

    `run` is what it knows the job by.
    """

    node: Node
    node_id: str
    state_bytes_max: int
    timing: Callable[[], Timing]
    shields: Shields
    inbox: Callable[[Any], Inbox]
    read_inbox: Callable[[Any, MessageId], Awaitable[InboxPage]]
    on_handled: Callable[[Any, MessageId], object]
    keeper: Callable[[Any], Keeper]
    blocking: Callable[[Job], Blocking]
    on_unheard: Callable[[Job], object]


@attrs.define(eq=False)
class Job:
    """One run of a job, as its handler sees it."""

    key: str
    id: str
    handler: str
    kind: Kind
    epoch: int  # the fencing token: rises with every owner; give it to external systems (G-03)
    attempt: int  # 1 is the first
    worker: str
    # This run follows one that may have ended without handing over: its process died, it failed, or
    # ran too long.  `state` is what was saved last, or handed over before that.
    is_recovered: bool
    _host: Host = attrs.field(repr=False)
    _run: Any = attrs.field(repr=False)
    _state: bytes | None = attrs.field(repr=False)
    _is_stated: bool = attrs.field(repr=False)
    _state_as: Codec | None = attrs.field(repr=False)  # None: JSON, or bytes
    resources: Any = attrs.field(repr=False, default=None)  # what its handlers' lifespan yielded
    _stop_cause: str = attrs.field(init=False, repr=False, default="")
    _is_listening: bool = attrs.field(init=False, default=False)
    _in_hand: MessageId = attrs.field(init=False, default=NO_MESSAGE)  # which is being handled
    _is_deaf: bool = attrs.field(init=False, repr=False, default=False)  # and has said so
    followers: tuple[Follower, ...] = attrs.field(init=False, repr=False, default=())  # `then()`'s
    _packed: bytes = attrs.field(init=False, repr=False, default=b"")  # the same

    @property
    def node(self) -> Node:
        """The node that runs it: to dispatch, wait and notify from here."""
        return self._host.node

    @property
    def node_id(self) -> str:
        """Its id."""
        return self._host.node_id

    def _keeper(self) -> Keeper:
        return self._host.keeper(self._run)

    def _blocking(self) -> Blocking:
        return self._host.blocking(self)

    @property
    def state(self) -> Any:
        """What was saved last or handed over, or what was assigned here since; None: nothing.

        Each look returns a new copy: what is changed in it counts once it is assigned, or saved.
        Assign to it what the next owner shall find: it is encoded at once (strict JSON or bytes, or
        as `Handlers.job(state=...)` says; at most `Settings.state_bytes_max`) and sent with the
        hand-off.  A crash or a failed attempt loses what was assigned since the last one; see
        `save()`.

        Raises:
            PayloadEncodingError: The value cannot be encoded, or is not of the handler's type.
            PayloadTooLarge: It is larger than the limit.
        """
        if self._state is None:
            return None
        codec = self._state_as
        return decode_value(self._state) if codec is None else codec.decode(self._state)

    @state.setter
    def state(self, value: Any) -> None:
        self._state, self._is_stated = self._encoded(value), True

    def _encoded(self, value: Any) -> bytes:
        codec = self._state_as
        encoded = encode_message(value) if codec is None else codec.encode(value)
        check_size("state", encoded, self._host.state_bytes_max)
        return encoded

    async def save(self, state: Any) -> None:
        """Store a state that survives whatever happens next; return once it, or a later one, is.

        All messages that `notifications()` has given out are part of it, also the one in hand: the
        same step removes them, so that none is applied twice.  So apply a message, then save; where
        another task takes the messages, apply each before anything is awaited.  What was saved is
        `state` in the next run, on whichever node (G-02: only the owner's counts).

        Args:
            state: As for `state`.

        Raises:
            PayloadEncodingError: The value cannot be encoded.
            PayloadTooLarge: It is larger than the limit.
            StorageFull: The server has no room.  It is tried again while this run goes on, and
                meanwhile no message is removed.
            NotOwner: The job is another's by now.
        """
        await self._store(self._encoded(state))

    async def _store(self, encoded: bytes) -> None:
        """Store what is encoded already, of whatever size: the pool's own has bounds of its own."""
        number = self._save(encoded)
        await self._keeper().wait_stored(number)

    def save_soon(self, state: Any) -> None:
        """Likewise, without waiting: of several only the newest is sent, with one call under way.

        A crash loses what was not stored yet, and delivers again the messages of that; whoever
        wants to know waits with `save()`.  From a thread: `anyio.from_thread.run_sync()`.

        Raises:
            PayloadEncodingError: The value cannot be encoded.
            PayloadTooLarge: It is larger than the limit.
            NotOwner: The job is another's by now.
            WrongLoop: It was called from a thread.
        """
        self._save(self._encoded(state))

    async def _keep_assigned(self) -> None:
        """Store what was assigned if the end of this run does not: nobody has told it to end.

        The message in hand is not part of it, and comes again.  Dying before leaves what was saved
        last, as without this.  What the store refuses is lost: the failure itself is told.
        """
        if self._is_stated and not getattr(self._run, "why", ""):
            keeper = self._keeper()
            if self._state is not None and not keeper.has_saved(self._state):
                with suppress(PoolError):
                    await keeper.wait_stored(keeper.save(self._state, NO_MESSAGE))

    def _save(self, encoded: bytes) -> int:
        number = self._keeper().save(encoded, self._in_hand)
        self._state, self._is_stated, self._in_hand = encoded, True, NO_MESSAGE
        return number

    @overload
    async def once(self, name: str, fn: Callable[[Step], Awaitable[R]]) -> R: ...
    @overload
    async def once(self, name: str, fn: Callable[[], Awaitable[R]]) -> R: ...
    @overload
    async def once(self, name: str, fn: Callable[[Step], R]) -> R: ...
    @overload
    async def once(self, name: str, fn: Callable[[], R]) -> R: ...
    async def once(self, name: str, fn: Callable[..., Any]) -> Any:
        """Return the result that this step of the job stored first, or call `fn` for it.

        At every later attempt, on whichever node, `fn` is not called again once its result is
        stored.  It may be called again if the process dies between what it did and that: give
        `step.key`, which is the same then, to whoever can recognise it.  Nothing else makes an
        effect elsewhere happen once.

        If it raises, nothing is stored, and the next who asks calls it again.  Who asks for a step
        that is under way waits for it.  The results are there until the job is done or cancelled; a
        parked one keeps them.

        Args:
            name: Of the step, 1 to 128 bytes; the job's own.
            fn: Called with a `Step` if it cannot be called without arguments.  A plain function
                runs in a worker thread.  From a plain handler:
                `anyio.from_thread.run(job.once, "charge", charge)`.

        Raises:
            InvalidOption: The name cannot be used, or `fn` cannot be called.
            TooManySteps: The job has `Settings.steps_max` steps.
            PayloadEncodingError: The result cannot be encoded.
            PayloadTooLarge: It is larger than `Settings.result_bytes_max`, or all of them together
                than `Settings.steps_bytes_max`.
            NotOwner: The job is another's by now; the result was not stored.
        """
        return await self._keeper().once(name, fn)

    async def run_blocking(
        self,
        fn: Callable[[*A], R],
        *args: *A,
        process: bool = False,
        memory_bytes: int | None = None,
    ) -> R:
        """Call a plain function beside the event loop, in a thread or in a process of its own.

        A worker calls as many at once as it has slots; others wait.  A *thread* cannot be ended.
        When the handler is told to end, this waits for it; `anyio.from_thread.check_cancelled()`
        within `fn` raises then.  If it goes on for the stop budget, it is leaked, as that of a
        plain handler: its job is settled, and what comes of this attempt is nobody's.

        A *process* is killed at once, with all that it has started, when the handler is told to end
        or this call is cancelled, and ends if ours does.  It is a new one for each call: Python
        starts, and imports the module of `fn`.  `fn` is imported there by name, from a module; one
        of the program's own file needs its `if __name__ == "__main__"` there.  Arguments and result
        travel as those of jobs do: strict JSON, or one `bytes`, up to 256 MiB.  What it prints goes
        where we print.

        Args:
            fn: What is called.
            args: With what; others by `functools.partial`, which only a thread can take.
            process: In a process.
            memory_bytes: Of a process, on Linux: how much memory (address space, RLIMIT_AS) it may
                have, 64 MiB or more; libraries reserve more than they use.

        Raises:
            InvalidOption: The function is none, or cannot be imported by name; or a number is out
                of bounds.
            PayloadEncodingError: An argument or the result of a process cannot be encoded.
            PayloadTooLarge: The arguments of a process are larger than 256 MiB.
            ProcessFailed: The function raised in its process.
            ProcessDied: Its process ended without an answer.
            OutOfMemory: It wanted more memory than it may have.
            NotOwner: The job is another's by now.
        """
        if not checks.flag("process", process) and memory_bytes is not None:
            must = "None: a thread has no memory of its own"
            raise checks.option("memory_bytes", memory_bytes, must)
        way = self._blocking()
        value: R = await (
            way.in_process(fn, args, memory_bytes) if process else way.in_thread(fn, args)
        )
        return value

    async def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the job is: `status()` tells everybody, also when it has failed or ended.

        However often it is said, the newest goes out once a second, and the last at the end;
        nothing is waited for.

        Args:
            done: How much is done, from 0 to 10**15, in whatever is counted.
            total: Of how much; None: nobody knows.
            note: A few words, of which 200 characters are kept.

        Raises:
            InvalidOption: A number is out of bounds, or the note is no text.
        """
        self._note(done, total, note)

    def _note(self, done: float, total: float | None = None, note: str = "") -> None:
        low, high = 0, PROGRESS_MAX
        done = checks.number("done", done, low, high)
        if total is not None:
            total = checks.number("total", total, low, high)
        said = Progress(done=done, total=total, note=checks.text("note", note))
        self._keeper().note(said.pack())

    def _say(self, said: Any) -> None:
        """Note how far it is in the words of a generator."""
        kind = type(said)
        if kind is tuple and 1 <= len(said) <= PROGRESS_PARTS:
            self._note(*said)
        elif kind is Progress:
            self._note(said.done, said.total, said.note)
        elif said is not None:
            self._note(said)

    def then(self, *followers: Follower) -> None:
        """Have jobs follow this one if this run of it succeeds; see `Follower`.

        They are accepted in the step that stores its result.  A run that fails leaves none of its
        own; those that the dispatcher gave stay.

        Raises:
            InvalidOption: This run has added too many (256, with their own), or too many one after
                another, or something else is among them.
            InvalidKey, ConfigError, PayloadEncodingError, WrongArguments: One cannot be dispatched.
            PayloadTooLarge: All that were added are larger than `Settings.payload_bytes_max`.
            NotRunning: The node has closed.
        """
        self._packed = self.node._pack_followers(self, followers, self._packed)
        self.followers = (*self.followers, *followers)

    @property
    def scheduled_for(self) -> datetime | None:
        """The time for which a schedule made the job, in UTC; None if none did.

        That is the nominal time: jitter and lateness are not in it.
        """
        return time_of(self.id)

    @property
    def stop_cause(self) -> str:
        """Why the job was asked to stop, in the words of who asked.

        Empty while nobody has; also where it is cancelled here for another reason, and goes on: it
        is handed over, its time is up, or its lease was lost.
        """
        return self._stop_cause

    def notifications(self) -> AsyncIterator[Any]:
        """Iterate over the messages sent with `notify()`, in order, at least once each (G-07).

        A message counts as handled when the next one is asked for, by this loop or a later one;
        one that was not is delivered again to the next owner.  One loop at a time.
        """
        return _Notifications(self)

    async def _next_message(self) -> Any:
        check_headroom()
        if self._is_listening:
            problem = "one loop over them at a time"
            raise InvalidOption(option="notifications", value="a second loop", problem=problem)
        host, run = self._host, self._run
        if self._in_hand:
            host.on_handled(run, self._in_hand)
            self._in_hand = NO_MESSAGE
        self._is_listening = True
        try:
            message_id, payload = await host.inbox(run).next(partial(host.read_inbox, run))
        finally:
            self._is_listening = False
        try:
            message = decode_value(payload)
        except PayloadEncodingError:
            # Not from `notify()`.  It fails this attempt, and shall not fail every other one.
            host.on_handled(run, message_id)
            raise
        self._in_hand = message_id
        return message

    async def _standing(self, within_s: float, at_most: int) -> list[tuple[MessageId, Any]]:
        """Return the messages that stand in the inbox, with their ids; wait so long for the first.

        They stay there until a state is saved, which holds them: so nothing is lost of what is
        answered together.  Of what cannot be read, None is returned.
        """
        inbox, read = self._host.inbox(self._run), partial(self._host.read_inbox, self._run)
        standing, size = list[tuple[MessageId, Any]](), 0
        found = await inbox.next_at_once(read)
        if found is None:
            with anyio.move_on_after(within_s):
                found = await inbox.next(read)
        while found is not None:
            self._in_hand, payload = found
            message = None
            with suppress(PayloadEncodingError):  # not from `notify()`
                message = decode_value(payload)
            standing.append((self._in_hand, message))
            size += len(payload)
            if len(standing) == at_most or size > _STANDING_BYTES_MAX:
                break
            found = await inbox.next_at_once(read)
        return standing

    def _note_unheard(self) -> None:
        """Tell, once, that nobody here takes messages; for objects without `notify()`."""
        if not self._is_deaf:
            self._is_deaf = True
            self._host.on_unheard(self)

    def ending(self) -> anyio.CancelScope:
        """Return a scope for clean-up that must await: shielded, within the stop budget."""
        deadline_s = anyio.current_time() + self._host.timing().stop_budget_s
        return anyio.CancelScope(shield=True, deadline=deadline_s)

    def _checkpoint(self) -> bytes | None:
        """Return what the next owner shall find, None to leave it as it is."""
        return self._state if self._is_stated else None


@attrs.frozen
class _Notifications(AsyncIterator[Any]):
    """Not an async generator: a handler may leave its loop at any time; nothing is left open."""

    _job: Job

    def __aiter__(self) -> _Notifications:
        return self

    async def __anext__(self) -> Any:
        return await self._job._next_message()
