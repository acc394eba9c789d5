"""The simulated server and the network to it: where every fault of the store's side happens.

    connection --request--> (delay, lost) --> server: command after command --reply--> (delay, lost)

Both are bytes, which the product's own connection writes and reads.  A connection ends for the
client when it gives up, but what it had sent still arrives: an operation that timed out may be
applied later.  The server's clock is its own, and can be stepped.  Everything that it does for the
pool is seen by `on_call`, in the order in which it happened.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
import hiredis

from pool.redis.scripts import NUMBERED_HEAD, NUMBERED_TAIL
from tests.verify.sim.keyspace import Keyspace, grows
from tests.verify.sim.scripting import OOM, Scripts
from tests.verify.sim.streams import CommandError, Read
from tests.verify.sim.world import Process, Thread, Timer, World

PIECE_S: Final = 0.02  # of a line's time: what it carries in that arrives together
EPOCH_US: Final = 1_700_000_000_000_000  # the server's clock when the world begins
SCRIPTS: Final = Scripts()  # compiled scripts outlive a world; what a server has loaded does not

Words: TypeAlias = Sequence[bytes]
OnCall: TypeAlias = Callable[[Process, bytes, Words, Words, Any], object]


# What it says of itself; a greeting counts as no command.
_GREETED: Final[dict[bytes, Any]] = {
    b"HELLO": b"server simulated version 7.2 mode standalone role master".split(),
    b"INFO": b"maxmemory_policy:noeviction",
}


_HEAD: Final = NUMBERED_HEAD.encode()
_TAIL: Final = NUMBERED_TAIL.encode()


def _numbered(reply: Any, number: bytes) -> Any:
    """Return what a script tells with the number of its call, as `NUMBERED_TAIL` does."""
    match reply:
        case bytes():
            return number + b" " + reply
        case list():
            return [*reply, number]
    return [number, reply]


def resp(reply: Any) -> bytes:
    """Return a reply as it goes over a connection."""
    match reply:
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
        case None:
            return b"$-1\r\n"
        case list():
            return b"*%d\r\n%b" % (len(reply), b"".join(map(resp, reply)))
        case CommandError():
            return b"-%b\r\n" % str(reply).encode()
        case _:
            raise AssertionError(reply)


class Network(Protocol):
    """What becomes of bytes on their way; the fault driver decides."""

    def request_s(self, process: Process) -> float | None:
        """Return how long a request takes, None when it never arrives."""

    def reply_s(self, process: Process) -> float | None:
        """Return how long a reply takes, None when it never arrives."""

    def bytes_per_s(self, process: Process) -> float:
        """Return what one connection carries, each way; 0: all at once."""

    def is_reset(self, process: Process) -> bool:
        """Say whether the connection is reset instead of carrying this request."""

    def split(self, process: Process, count: int) -> int:
        """Return how many commands of a pipeline arrive before the others get lost."""

    def before(self, process: Process, words: Words) -> bool:
        """Be told of a command that is about to be carried out; False: it is not."""

    def after(self, process: Process, words: Words, reply: Any) -> None:
        """Be told of a command that was carried out, and how it was answered."""

    def garbled(self, process: Process, replies: list[bytes]) -> Arriving:
        """Return what arrives of some replies."""


@attrs.frozen
class Arriving:
    """What arrives of some replies."""

    data: bytes
    is_end: bool = False  # the connection ends behind it
    late: bytes = b""  # comes when nobody asks any more
    late_s: float = 0.0


@attrs.define(eq=False)
class RemoteConnection:
    """One connection, as both ends see it."""

    thread: Thread
    is_open: bool = True
    generation: int = 0
    blocked: _Blocked | None = None
    has_read: bool = False  # it carries blocking reads
    ticket: int | None = None  # the wait of its thread for an answer
    inbox: bytearray = attrs.field(factory=bytearray)  # what has arrived, and was not read

    @property
    def process(self) -> Process:
        return self.thread.process

    def poll(self, _: int) -> bool:
        """Say whether there is something to read; its end counts."""
        return bool(self.inbox) or not self.is_open

    def wake(self) -> None:
        """End the wait for something to read."""
        if self.ticket is not None:
            self.thread.resume(self.ticket, None)


@attrs.define(eq=False)
class _Blocked:
    asked: Read
    answer: Callable[[Any], object]
    timer: Timer


class Server:
    """One server of the simulated world; where they are apart, the one of the control keys.

    Those of the lanes are servers of their own then, with connections, scripts and troubles of
    their own.  Their keys lie in one keyspace, in which no two of them have any in common.
    """

    def __init__(self, world: World, dice: random.Random, first: Server | None = None) -> None:
        self.world = world
        self.lanes: dict[str, Server] = {}  # by hash tag
        self.is_apart = False
        self.is_full = False  # its memory is up
        self._dice = dice
        self._first = first or self
        self.keyspace: Keyspace = first.keyspace if first else Keyspace(self.now_us, dice)
        self.network: Network
        self.on_call: OnCall = lambda *_: None
        self.clock_step_us = 0
        self.calls = 0
        self.is_up = True
        self.generation = 0  # connections of older ones are dead, even those that nobody holds
        self._runs = 0  # how often it was started, or another one took its place
        self._stalled_until_s = 0.0
        self._loaded: dict[bytes, None] = {}
        # Sha of a numbered script -> that of the script itself.  It is of this world alone: the
        # first one played would else not know scripts that all later ones know.
        self._plain: dict[bytes, bytes] = first._plain if first else {}
        self._connections: dict[RemoteConnection, None] = {}
        self._blocked: dict[_Blocked, None] = {}

    def at(self, tag: str) -> Server:
        """Return the server of a hash tag."""
        if not self.is_apart or not tag.partition(":")[2].count(":"):
            return self
        if tag not in self.lanes:
            self.lanes[tag] = lane = Server(self.world, self._dice, self)
            lane.network, lane.on_call = self.network, self.on_call
        return self.lanes[tag]

    @property
    def all(self) -> list[Server]:
        """All servers there are."""
        return [self, *self.lanes.values()]

    def now_us(self) -> int:
        """Return the server's own time."""
        return EPOCH_US + self.clock_step_us + round(self.world.now_s * 1_000_000)

    # --- faults ---

    def stop(self) -> None:
        """Be gone: every connection is closed, nothing answers."""
        self.is_up = False
        self.cut_all()
        self._loaded.clear()
        self._blocked.clear()

    def start(self) -> None:
        """Be there again, with the data as they are; scripts were not kept."""
        self.is_up = True
        self.be_another()

    def be_another(self) -> None:
        """Say from now on that this is another server than before."""
        self._runs += 1

    def cut_all(self) -> None:
        """Close every connection; what is under way on them does not arrive."""
        for connection in list(self._connections):
            self.drop(connection)
        self.generation += 1

    def stall(self, seconds: float) -> None:
        """Answer nobody for a while; what comes meanwhile waits."""
        self._stalled_until_s = self.world.now_s + seconds

    def go_on(self) -> None:
        """Answer again."""
        self._stalled_until_s = min(self._stalled_until_s, self.world.now_s)

    def flush_scripts(self) -> None:
        """Forget all scripts, as SCRIPT FLUSH does."""
        self._loaded.clear()

    def drop(self, connection: RemoteConnection) -> None:
        """Close a connection: its client notices."""
        connection.is_open = False
        self._forget(connection)
        connection.wake()

    # --- connections ---

    def connect(self, thread: Thread) -> RemoteConnection:
        """Accept a connection."""
        connection = RemoteConnection(thread, generation=self.generation)
        self._connections[connection] = None
        return connection

    def close(self, connection: RemoteConnection) -> None:
        """The client has closed; what it sent before may still be on its way."""
        connection.is_open = False
        self._forget(connection)

    def _forget(self, connection: RemoteConnection) -> None:
        self._connections.pop(connection, None)
        if connection.blocked is not None:
            connection.blocked.timer.cancel()
            self._blocked.pop(connection.blocked, None)
            connection.blocked = None

    def hang_up(self, process: Process) -> None:
        """A process is gone; what it had sent still arrives."""
        for server in self.all:
            for connection in [each for each in server._connections if each.process is process]:
                server.close(connection)

    def send(self, connection: RemoteConnection, packed: bytes) -> None:
        """Carry a pipeline to the server."""
        process = connection.process
        if self.network.is_reset(process):
            self.drop(connection)
            return
        reader = hiredis.Reader()
        reader.feed(packed)
        commands: list[Words] = []
        while (words := reader.gets()) is not False:
            commands.append(words)
        if not commands:
            return  # of the first one only a part
        whole = self.network.split(process, len(commands))
        delay_s = self.network.request_s(process)
        if delay_s is not None:
            self.world.after(delay_s, self._arrive, connection, commands[:whole])

    def _arrive(self, connection: RemoteConnection, commands: Sequence[Words]) -> None:
        if connection.generation < self.generation or not self.is_up:
            return
        if self.world.now_s < self._stalled_until_s:
            self.world.at(self._stalled_until_s, self._arrive, connection, commands)
            return
        process = connection.process
        replies = []
        for sent in commands:
            words, number = self._unnumbered(sent)  # only now: it may load what the next one runs
            if words[0] in _GREETED:
                replies.append(_GREETED[words[0]])
                continue
            if not self.network.before(process, words):
                break
            if words[0] in (b"XREAD", b"XREADGROUP"):
                self._read(connection, words)
                return
            reply = self._run(process, words)
            # What a script returns has its number, an error of its own too; what is raised not.
            is_raised = isinstance(reply, CommandError) and not str(reply).startswith("POOL")
            replies.append(reply if number is None or is_raised else _numbered(reply, number))
            self.network.after(process, words, reply)
        self._wake()
        if len(replies) == len(commands):
            self._reply(connection, replies)

    def _unnumbered(self, words: Words) -> tuple[Words, bytes | None]:
        """Take the number off a command: whoever looks on sees the script, and its arguments."""
        if words[0] == b"EVALSHA" and words[1] in self._plain:
            return [words[0], self._plain[words[1]], *words[2:-1]], words[-1]
        return words, None

    def _reply(self, connection: RemoteConnection, replies: list[Any]) -> None:
        delay_s = self.network.reply_s(connection.process)
        if delay_s is not None:
            arriving = self.network.garbled(connection.process, list(map(resp, replies)))
            self._carry(connection, arriving, delay_s)

    def _carry(self, connection: RemoteConnection, arriving: Arriving, delay_s: float) -> None:
        """Have it arrive piece by piece, as the line carries it."""
        rate = self.network.bytes_per_s(connection.process)
        size = max(1, int(rate * PIECE_S)) if rate else len(arriving.data)
        first, rest = arriving.data[:size], arriving.data[size:]
        if not rest:
            self.world.after(delay_s, self._deliver, connection, arriving)
            return
        self.world.after(delay_s, self._deliver, connection, Arriving(first))
        after = attrs.evolve(arriving, data=rest)
        self.world.after(delay_s, self._carry, connection, after, PIECE_S)

    def _deliver(self, connection: RemoteConnection, arriving: Arriving) -> None:
        if not connection.is_open:
            return
        connection.inbox += arriving.data
        connection.wake()
        if arriving.is_end:
            self.drop(connection)
        elif arriving.late:
            self.world.after(arriving.late_s, self._say, connection, arriving.late)

    def _say(self, connection: RemoteConnection, late: bytes) -> None:
        """Say what nobody has asked for.  Who waits tells it from his own by its number; only what
        a blocking read is told has none."""
        if connection.is_open and not (connection.has_read and connection.ticket is not None):
            connection.inbox += late
            connection.wake()

    def _run(self, process: Process, words: Words) -> Any:
        self._first.calls += 1
        self.keyspace.run_id = b"run%d" % self._runs
        name = words[0]
        try:
            if name == b"EVALSHA":
                sha, count = words[1], int(words[2])
                if sha not in self._loaded:
                    raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
                keys, args = words[3 : 3 + count], words[3 + count :]
                try:
                    is_full = self.is_full
                    reply = SCRIPTS.run(self.keyspace, sha, keys, args, is_full=is_full)
                except CommandError as error:
                    self.on_call(process, sha, keys, args, error)
                    raise
                self.on_call(process, sha, keys, args, reply)
                return reply
            if name == b"SCRIPT":
                numbered = hashlib.sha1(words[2]).hexdigest().encode()
                sha = SCRIPTS.load(words[2].removeprefix(_HEAD).removesuffix(_TAIL))
                self._plain[numbered] = sha
                self._loaded[sha] = None
                return numbered
            if self.is_full and grows(name.upper(), words[1:]):
                raise CommandError(OOM)
            return self.keyspace.run(name, *words[1:])
        except CommandError as error:
            return error

    # --- blocking reads ---

    def _read(self, connection: RemoteConnection, words: Words) -> None:
        connection.has_read = True
        asked = Read.of(words)
        found = self._found(asked)
        if found is not None:
            self._reply(connection, [found])
            return
        if not connection.is_open:
            return  # its end came right behind

        def wake(reply: Any) -> None:
            blocked.timer.cancel()
            self._blocked.pop(blocked, None)
            connection.blocked = None
            self._reply(connection, [reply])

        assert asked.block_ms, "a read of ours always waits, and never for ever"
        timer = self.world.after(asked.block_ms / 1000, wake, None)
        blocked = _Blocked(asked, wake, timer)
        connection.blocked = blocked
        self._blocked[blocked] = None

    def _found(self, asked: Read) -> Any:
        try:
            return self.keyspace.read(asked)
        except CommandError as error:
            return error

    def _wake(self) -> None:
        appended = self.keyspace.appended
        if not appended:
            return
        for blocked in list(self._blocked):
            if any(key in appended for key, _ in blocked.asked.positions):
                found = self._found(blocked.asked)
                if found is not None:
                    blocked.answer(found)
        appended.clear()
