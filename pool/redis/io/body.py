"""The body's side of the IO: what a body can do with its connection and its bell.

run      one pipeline, one deadline; scripts that the server lacks are loaded on the way.  By
         themselves replies have no numbers: a script brings back that of its call, and behind what
         is no script goes a PING with one.  A reply that nothing vouches for is given to nobody.
         So it is for one that goes alone, as an XACK: what a line says too much comes after the
         last look at it as well, and may be just what that could be told.  It costs a tenth of that
         one's server time; a script instead, which brings its number back, would cost half of it
read     a blocking read, which `interrupt()` ends by shutting its socket down; where none is under
         way that ends the next one before it begins, and harms nothing else
wait     until `ring()`; also `sleep`, with a limit

Only the connection and the bell wait.  In a thread their methods block and never suspend; on the
loop and in a simulation they do suspend, and everything here is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import anyio
import attrs

from pool.errors import AuthError, PoolError, StoreFault, StoreUnavailable, again, shown
from pool.redis.commands import plain
from pool.redis.commands.plain import Entries
from pool.redis.connection import ConnectionLost, Reply, Server, pack
from pool.redis.errors import CANNOT_SAVE, Moved, NoScript, from_words, naming
from pool.redis.scripts import Command, Script, ScriptCall, Word

# What a blocking read that moves on may take, however slowly it does: as long as the most that one
# exchange may bring (`REPLIES_BYTES_MAX`) takes over 1 MB/s.
READ_S = 600.0

OnEnd: TypeAlias = Callable[[BaseException | None], object]


@attrs.frozen
class Group:
    """As whom to read: one consumer of a group."""

    name: str
    consumer: str
    is_no_ack: bool = False


class AnyConnection(Protocol):
    """A connection that can be opened again and again; see `Connection`."""

    server: Server | None
    moved_s: float
    came_bytes: int

    def is_open(self) -> bool:
        """Say whether the connection can be used, as far as is known."""

    async def connect(self, *, timeout_s: float) -> None:
        """Open the connection."""

    async def exchange(
        self, packed: bytes, count: int, *, timeout_s: float, until_s: float | None = None
    ) -> list[Reply]:
        """Send what is packed and return its `count` replies; raises `Lost`."""

    def disown(self) -> StoreUnavailable:
        """Close the connection: a reply was another call's; return what that means to its own."""

    def shut(self) -> None:
        """End whatever waits on the connection."""

    def close(self) -> None:
        """Close the connection."""

    def end(self) -> None:
        """Close the connection for good."""

    def abandon(self) -> None:
        """Close the descriptor and leave the connection alone."""


class AnyBell(Protocol):
    """What wakes a body: rings are not counted, and one that came before the wait counts."""

    def ring(self) -> None:
        """End the present wait, or the next one."""

    async def wait(self) -> None:
        """Wait for a ring."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a ring, but no longer than that."""


class ThreadBell:
    """A bell whose waits block the thread."""

    def __init__(self) -> None:
        # A semaphore of at most one: taken means "not woken".  An Event would allocate a lock for
        # every wait, and forget a wake-up if cleared at the wrong moment.
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # another thread rang at the same moment: one wake-up is enough
                return

    async def wait(self) -> None:
        self._lock.acquire()

    async def sleep(self, seconds: float) -> None:
        self._lock.acquire(timeout=seconds)


class ConnectionIO:
    """A body's IO on a connection and a bell."""

    def __init__(
        self,
        connection: AnyConnection,
        bell: AnyBell,
        post: Callable[..., bool],
        clock: Callable[[], float],
    ) -> None:
        self.closing = False
        self.connection = connection
        self.post = post
        self.ring: Callable[[], None] = bell.ring
        self._bell = bell
        self._clock = clock
        self._guard = threading.Lock()  # of these two: whoever interrupts may be another thread
        self._interrupted = False
        self._is_reading = False
        self._is_good = False  # the connection was open when it was last used
        self._loaded: set[str] = set()  # scripts that this connection's server is known to have
        self._number = 0  # of the last call that has one

    @property
    def server(self) -> Server | None:
        return self.connection.server

    @property
    def moved_s(self) -> float:
        return self.connection.moved_s

    @property
    def came_bytes(self) -> int:
        return self.connection.came_bytes

    def is_connected(self) -> bool:
        return self.connection.is_open()

    def interrupt(self) -> None:
        with self._guard:
            self._interrupted = True
            if self._is_reading or self.closing:
                self.connection.shut()

    async def wait(self) -> None:
        if not self.closing:
            await self._bell.wait()

    async def sleep(self, seconds: float) -> None:
        if not self.closing:
            await self._bell.sleep(max(seconds, 0.0))

    async def pause(self, seconds: float) -> None:
        """Wait, whatever rings meanwhile; ends early on close."""
        until_s = self._clock() + seconds
        while not self.closing and (left_s := until_s - self._clock()) > 0:
            await self._bell.sleep(left_s)

    async def connect(self, *, timeout_s: float) -> None:
        self._loaded.clear()
        await self.connection.connect(timeout_s=timeout_s)
        self._is_good = True

    async def run(
        self, calls: Sequence[Command], *, timeout_s: float, longest_s: float | None = None
    ) -> list[Reply]:
        until_s = self._clock() + (timeout_s if longest_s is None else longest_s)
        replies = await self._run(calls, timeout_s, until_s)
        return list(map(_read, calls, replies))

    async def _run(self, calls: Sequence[Command], timeout_s: float, until_s: float) -> list[Reply]:
        replies = await self._try(calls, timeout_s, until_s)
        refused = [i for i, reply in enumerate(replies) if type(reply) in (NoScript, Moved)]
        if not refused:
            return replies
        # Someone flushed the scripts, or the keys have gone to another node of a cluster.  What
        # was refused for that has not been done, so it may be sent again, whatever it is.
        self._loaded.clear()
        again = await self._try([calls[i] for i in refused], timeout_s, until_s)
        for i, reply in zip(refused, again, strict=True):
            replies[i] = _final(reply)
        return replies

    async def read(
        self,
        positions: Mapping[str, str],
        *,
        block_s: float,
        timeout_s: float,
        count: int,
        group: Group | None = None,
    ) -> Entries:
        # Longer than the block, or every quiet read would look like a lost connection; and a block
        # of 0 would mean for ever.
        assert 0.001 <= block_s < timeout_s
        with self._guard:
            self._is_reading, self._interrupted = not self._interrupted, False
        if not self._is_reading:
            return []
        words: tuple[Word, ...] = ("XREAD",)
        if group is not None:
            words = ("XREADGROUP", "GROUP", group.name, group.consumer)
            words += ("NOACK",) if group.is_no_ack else ()
        words += ("COUNT", count, "BLOCK", int(block_s * 1000), "STREAMS")
        try:
            if not self.connection.is_open() and not self._interrupted:
                if self._is_good:
                    # It broke while nobody read: whoever follows something must hear of it, since
                    # another server may answer next.
                    raise StoreUnavailable(problem="the connection was closed", maybe_done=False)
                await self.connect(timeout_s=timeout_s)
            if self._interrupted:
                return []
            words = (*words, *positions.keys(), *positions.values())
            until_s = self._clock() + max(READ_S, timeout_s)
            [reply] = await self.connection.exchange(
                pack(words), 1, timeout_s=timeout_s, until_s=until_s
            )
        except (ConnectionLost, StoreUnavailable) as error:
            self._is_good = False
            if self._interrupted:
                return []
            raise (error.error if isinstance(error, ConnectionLost) else error) from None
        finally:
            with self._guard:
                if self._interrupted:  # also one whose answer had come: the socket is shut
                    self._is_good = False
                self._interrupted = self._is_reading = False
        found = _read(words, _final(reply))
        if isinstance(found, PoolError):
            raise again(found)
        entries: Entries = found
        return entries

    async def _try(self, calls: Sequence[Command], timeout_s: float, until_s: float) -> list[Reply]:
        if not self.connection.is_open():
            try:
                await self.connect(timeout_s=min(timeout_s, until_s - self._clock()))
            except PoolError as error:
                return [_copy(error) for _ in calls]
        return await self._send(calls, timeout_s, until_s)

    async def _send(
        self, calls: Sequence[Command], timeout_s: float, until_s: float
    ) -> list[Reply]:
        """Run the calls, after loading those of their scripts that this connection has not seen.

        Loading first, in the same pipeline, keeps the calls of a batch in their order: a call that
        comes back for NOSCRIPT would be overtaken by those behind it.
        """
        scripts = self._unseen(calls)
        packed = [pack(("SCRIPT", "LOAD", script.numbered)) for script in scripts]
        unfit: dict[int, StoreFault] = {}
        numbers: list[bytes | None] = []
        for i, call in enumerate(calls):
            number: bytes | None = None
            try:
                if isinstance(call, ScriptCall):
                    number = self._next()
                    packed.append(pack(call.numbered(number)))
                else:
                    packed.append(pack(call))
            except (TypeError, ValueError) as error:
                # One bad argument must not fail its neighbours, nor end the body.
                unfit[i] = StoreFault(problem=f"cannot be sent: {error}", maybe_done=False)
                number = None
                packed.append(_PING)
            numbers.append(number)
        if numbers[-1] is None:
            last = self._next()
            numbers.append(last)
            packed.append(pack(("PING", last)))
        failed: PoolError | None = None
        left = len(packed)  # for the server, as far as is known
        try:
            got = await self.connection.exchange(
                b"".join(packed),
                len(packed),
                timeout_s=min(timeout_s, until_s - self._clock()),
                until_s=until_s,
            )
        except ConnectionLost as lost:
            got, failed = lost.replies, lost.error
            left = _begun(packed, lost.sent_bytes)
        loads, replies = got[: len(scripts)], got[len(scripts) :]
        sure, is_ours = _vouched(numbers, replies, len(calls))
        if sure < len(calls) and is_ours and failed is None:
            is_ours = await self._confirms(replies[-1], timeout_s, until_s)
            sure = len(calls) if is_ours else sure
        if not is_ours:
            failed = self.connection.disown()
        replies = replies[:sure]
        replies += [_copy(failed) for _ in calls[sure:]]
        for i in range(max(sure, left - len(scripts)), len(calls)):
            replies[i] = attrs.evolve(replies[i], maybe_done=False)  # of half a command nothing
        refused = {s: r for s, r in zip(scripts, loads, strict=False) if isinstance(r, PoolError)}
        for i, call in enumerate(calls) if refused else ():
            # An ACL may reserve SCRIPT LOAD for an installer: only what lacks its script fails.
            if isinstance(call, ScriptCall) and type(replies[i]) is NoScript:
                replies[i] = _copy(refused.get(call.script, replies[i]))
        for i, fault in unfit.items():
            replies[i] = fault
        return replies

    def _next(self) -> bytes:
        self._number += 1
        return b"%d" % self._number

    async def _confirms(self, last: Reply, timeout_s: float, until_s: float) -> bool:
        """Say whether it was the last reply: an error that the server raised has no number."""
        number = self._next()
        try:
            left_s = min(timeout_s, until_s - self._clock())
            [reply] = await self.connection.exchange(
                pack(("PING", number)), 1, timeout_s=left_s, until_s=until_s
            )
        except ConnectionLost:
            return False
        return reply == number or _says_as(reply, last)

    def _unseen(self, calls: Sequence[Command]) -> list[Script]:
        seen = self._loaded
        new = [c.script for c in calls if type(c) is ScriptCall and c.script.sha not in seen]
        seen.update(script.sha for script in new)
        return list(dict.fromkeys(new))  # no set: its order would be another one in each process


_PING = pack(("PING",))
_ANOTHERS = object()  # what a reply says to whom it is not for


def _begun(packed: Sequence[bytes], sent_bytes: int) -> int:
    """Return how many commands had left as a whole when so many bytes had."""
    for i, each in enumerate(packed):
        sent_bytes -= len(each)
        if sent_bytes < 0:
            return i
    return len(packed)


def _vouched(numbers: Sequence[bytes | None], replies: list[Reply], count: int) -> tuple[int, bool]:
    """Return how many replies are surely those of their calls, and if none is another's.

    What has a number loses it.  What has none is vouched for by the next that has one: replies come
    in the order of their calls.
    """
    sure = 0
    for i, (number, reply) in enumerate(zip(numbers, replies, strict=False)):
        if i == count:  # of the PING behind them all
            is_ours = reply == number or _says_as(reply, replies[i - 1])
            return (count if is_ours else sure), is_ours
        if number is None or isinstance(reply, Exception):
            continue
        replies[i] = _own(reply, number)
        if replies[i] is _ANOTHERS:
            return sure, False
        sure = i + 1
    return sure, True


def _own(reply: Reply, number: bytes) -> Reply:
    """Return what a reply with this number says; see `NUMBERED_TAIL`."""
    if type(reply) is bytes:
        said, _, text = reply.partition(b" ")
        return text if said == number else _ANOTHERS
    if type(reply) is list and reply:
        if reply[-1] == number:
            del reply[-1]
            return reply
        if len(reply) == 2 and reply[0] == number:
            return reply[1]
    return _ANOTHERS


def _says_as(reply: Reply, last: Reply) -> bool:
    """Say whether an error answers a PING, though it has no number.

    A server that loads its data says nothing else.  A user may lack the right to PING.  A server
    that cannot save to its disk answers reads, and refuses PING as if it were a write.
    """
    if isinstance(reply, AuthError) and "'ping'" in reply.problem:
        return True
    if isinstance(reply, StoreUnavailable) and CANNOT_SAVE in reply.problem:
        return True
    return isinstance(reply, PoolError) and type(reply) is type(last)


def _final(reply: Reply) -> Reply:
    """Return what a reply means that nothing more is done about."""
    match reply:
        case NoScript():
            return StoreFault(problem=str(reply))
        case Moved():
            return from_words(str(reply))
        case _:
            return reply


def _read(call: Command, reply: Reply) -> Reply:
    """Return what a reply says.  One that cannot be read is that call's fault and nobody else's:
    whatever a parser raises ends here."""
    if isinstance(reply, Exception):
        if not isinstance(reply, StoreFault):
            return reply
        return naming(reply, call.keys if isinstance(call, ScriptCall) else plain.keys(call))
    try:
        return call.read(reply) if isinstance(call, ScriptCall) else plain.read(call, reply)
    except Exception as error:  # noqa: BLE001
        name = call.script.name if isinstance(call, ScriptCall) else str(call[0])
        problem = f"the reply to {name} cannot be read: {type(error).__name__}: {error}"
        return StoreFault(problem=shown(problem))


def _copy(error: Any) -> Any:
    """Return an error of its own for each call: raising one grows its traceback."""
    return attrs.evolve(error) if isinstance(error, PoolError) else error


class Handle:
    """The loop's side of one running body, as far as it does not matter what runs it."""

    body_io: ConnectionIO

    def __init__(self, on_end: OnEnd | None) -> None:
        self.state: Literal["running", "ended", "forked"] = "running"
        self._on_end = on_end
        self._over = anyio.Event()

    def wake(self) -> None:
        self.body_io.ring()

    def interrupt(self) -> None:
        self.body_io.interrupt()

    def end(self) -> None:
        """Have the body end, soon, also when nobody waits for that."""
        if self.state == "running":
            self.body_io.closing = True
            self.body_io.ring()
            self.body_io.interrupt()

    async def aclose(self, budget_s: float) -> bool:
        self.end()
        if self.state == "running":
            with anyio.move_on_after(budget_s, shield=True):
                await self._over.wait()
        return self.state != "running"

    def die(self) -> None:
        """Be the copy in a forked child: nothing runs, and the connection is the parent's."""
        self.state = "forked"
        self.body_io.closing = True
        self.body_io.connection.abandon()

    def _end(self, error: BaseException | None) -> None:
        """The body has ended: the last that the loop hears of it."""
        self.state = "ended"
        self._over.set()
        if self._on_end is not None:
            self._on_end(error)
