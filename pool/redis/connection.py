"""One connection to a server: packed commands out, as many replies in, under strict deadlines.

The socket is ours, as no public name of redis-py's connections leads to theirs.  Their handshake
takes up to five round trips, each with a time-out of its own, and their `read_response` starts the
time-out again with every byte that arrives.  Ours is one round trip.

An exchange has two limits.  `timeout_s` is for a line that does not move: it begins anew whenever
the other side has taken bytes of ours, or sent some.  `until_s` is for all of it, which bytes that
come one by one cannot stretch; without it, the two are one.

Where there are several servers, every connection leads to the primary that the quorum names *now*;
`topology` asks for it, and moves the connection when that changes:

    sentinel   the server that most sentinels name; it must say itself that it is the master
    cluster    the node that has the slot of our tag; it must say itself that it has that slot

No guide and no server that hangs may use up the time of the others.  A cluster's connection serves
one hash tag, since nothing of ours ever touches two: so a primary that hangs holds up its own lanes
and no other, and the order of calls is kept as it is everywhere.
redis-py's RedisCluster would have one deadline per socket wait, not one per batch, and could not
say of a broken batch which calls of it may have been done.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import struct
import threading
from binascii import crc_hqx
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import attrs
import hiredis

from pool.errors import (
    AuthError,
    ConfigError,
    PoolError,
    StoreUnavailable,
    UnsupportedServer,
    again,
)
from pool.redis import topology
from pool.redis.errors import (
    Garbled,
    Moved,
    NoScript,
    Unanswered,
    from_host,
    from_words,
    is_doubtful,
    is_stale,
)
from pool.redis.quorum import Address, Owner
from pool.redis.scripts import Word
from pool.redis.url import Url

# bytes, int, None, a list of these, or an error as a value: a PoolError (below `BodyIO` also
# NoScript and Moved).
Reply: TypeAlias = Any

_NO_LINGER = struct.pack("ii", 1, 0)
REPLIES_BYTES_MAX = 512 * 1024 * 1024  # of one exchange, as a server's longest string
_READ_BYTES = 65_536  # one recv; a reply of any size may take several
_MINE_MIN = (7, 0)  # Redis below that lacks what our scripts and checks use
_NO = ("0", "false", "no")  # what an address may say to switch an option off
_NOT_YET = object()
_SLOTS = 16_384
KEEPS_ALL: Final = "noeviction"  # the policy of a server that evicts nothing
_LOOK_MAX_S = 2.0  # for asking the guides; then it goes by what is known
_LOOKS_MAX = 3  # in one try to connect: the primary may be replaced meanwhile


@attrs.frozen
class Server:
    """What a server says it is."""

    name: str  # "redis" or "valkey"
    version: str
    policy: str = KEEPS_ALL  # its maxmemory-policy; "": it does not tell
    where: str = ""  # its place


class ConnectionLost(Exception):
    """The connection broke during an exchange; `replies` had arrived before.

    Of what was packed `sent_bytes` had left: a command of which any byte had not is not done.
    """

    def __init__(self, error: StoreUnavailable, replies: list[Reply], sent_bytes: int = 0) -> None:
        super().__init__(str(error))
        self.error = error
        self.replies = replies
        self.sent_bytes = sent_bytes


class Connection:
    """A connection that can be opened again and again.  One thread uses it, and it blocks that.

    Only `shut()` may be called from another thread, and `abandon()` in a forked child.
    """

    def __init__(self, url: Url, name: str, clock: Callable[[], float]) -> None:
        self.server: Server | None = None  # as of the last connection
        # When the other side has last taken or sent something, greetings apart.
        self.moved_s: float = float("-inf")
        self.came_bytes: int = 0  # of replies, in the last exchange
        self._timeout_s = 0.0  # of the present exchange, as is ...
        self._until_s = 0.0
        self._ends_s = 0.0  # the present wait
        self._sent_bytes = 0
        self._url = url
        self._name = re.sub(r"[^!-~]+", "-", name)  # CLIENT LIST cannot hold other characters
        self._clock = clock
        self._socket: socket.socket | None = None
        self._poll: select.poll | None = None
        self._buffer = bytearray(_READ_BYTES)
        self._where = url.where  # for error texts
        self._stale = False
        self._moved = ""  # why it was left
        self._topology: topology.TopologyWatch | None = None
        self.slot: int = slot_of(url.tag) if url.kind == "cluster" else 0
        self.target: Owner | None = None  # the server, as the guides name it
        # Between finding the socket and shutting it down, its descriptor must not be closed:
        # the number could belong to something else by then.
        self._guard = threading.Lock()

    def is_open(self) -> bool:
        """Say whether the connection can be used, as far as can be known without a round trip.

        A server which closed it while it was idle is noticed here, before anything is sent: the
        next calls need not fail as `maybe_done`.
        """
        if self._socket is None or self._stale:
            return False
        # Nobody speaks unasked in RESP2, so what is readable on an idle connection is its end.
        # (TLS has tickets and alerts of its own; there the end is noticed by the next exchange.)
        return self._poll is None or not self._poll.poll(0)

    async def connect(self, *, timeout_s: float) -> None:
        """Open the connection, log in, choose the database, and check the server.

        Raises:
            StoreUnavailable: No connection within `timeout_s`, or the server is not ready yet.
            AuthError: It refuses the credentials.
            UnsupportedServer: It is too old, no master, or is in cluster mode and the address does
                not say so.
            ConfigError: The address cannot work.
        """
        deadline_s = self._clock() + timeout_s
        self._stale = False
        if self._url.kind in ("sentinel", "cluster"):
            await self._connect_to_primary(deadline_s)
        else:
            await self._connect_to(None, timeout_s)

    def move(self, problem: str) -> None:
        """Leave the server, which is not the primary any more; from any thread."""
        self._moved = problem
        self._stale = True
        self.shut()

    def pause(self) -> None:
        """Send nothing more there before the primary was asked for; from any thread."""
        self._stale = True

    async def _connect_to_primary(self, deadline_s: float) -> None:
        """Connect to the server that the guides name, if it says itself that it is the primary."""
        for _ in range(_LOOKS_MAX):
            self._stale, self._moved, self.target = False, "", None
            try:
                watch = self._topology = self._topology or topology.join(
                    self._url, self, _dial, self._clock
                )
                share_s = min((deadline_s - self._clock()) / 2, _LOOK_MAX_S)
                choice = await self._apart(watch.look, self.slot, share_s, discard=lambda _: None)
            except OSError as error:
                raise from_host(error, self._url.where, maybe_done=False) from None
            try:
                await self._connect_to_one_of(choice, deadline_s)
            except PoolError:
                if not self._moved:
                    raise
                continue
            if not (self._stale or watch.opposes(self.slot, self.target)):
                return
            self.close()  # it was replaced while we connected to it
        problem = f"{self._where} was replaced as the primary"
        raise StoreUnavailable(problem=problem, maybe_done=False)

    async def _connect_to_one_of(self, choice: topology.Choice, deadline_s: float) -> None:
        """Connect to the first server of a choice that says itself that it is the primary."""
        url = self._url
        waiting: list[tuple[Owner | None, Address]] = list(choice.owners)
        failed: PoolError = from_host(choice.failed, url.where_of(choice.at), maybe_done=False)
        if url.kind == "cluster" and not choice.is_agreed:
            waiting += [(None, place) for place in choice.guides]
        hinted = set[Owner]()
        while waiting:
            self.target, place = waiting.pop(0)
            try:
                slots = await self._connect_to(
                    place, (deadline_s - self._clock()) / (len(waiting) + 1)
                )
                hint = self._other_owner(slots, place)
            except PoolError as error:  # a node may also lack our user, and another have it
                failed = error
                continue
            if hint is not None:
                problem = f"{self._where} is not the primary"
                failed = StoreUnavailable(problem=problem, maybe_done=False)
                # Once more if it was asked in vain before: it may only be slower than its share.
                if hint[0] not in hinted:
                    hinted.add(hint[0])
                    waiting.insert(0, hint)
            else:
                return
        self.close()
        raise failed

    def _other_owner(self, slots: Reply, place: Address) -> tuple[Owner, Address] | None:
        """Return who has our slot, as the node of a cluster says that we are connected to.

        None: it has the slot itself, or it is no node of a cluster.
        """
        if self._url.kind != "cluster":
            return None
        try:
            ranges = topology.read_slots(slots, place)
        except Exception as error:  # noqa: BLE001 - as a greeting that is none
            raise from_host(_as_lost(error), self._where, maybe_done=False) from None
        for low, high, owner, at in ranges:
            if low <= self.slot <= high:
                if owner == self.target or (self.target is None and at == place):
                    self.target = owner
                    return None
                return owner, at
        raise StoreUnavailable(problem=f"{self._url.where} has no primary", maybe_done=False)

    async def _connect_to(self, place: Address | None, timeout_s: float) -> Reply:
        """Open the socket and say hello; of a cluster, return what the node says of the slots."""
        self.close()
        self._where = self._url.where_of(place)
        deadline_s = self._clock() + timeout_s
        try:
            found = await self._apart(
                _dial, self._url, place, deadline_s, self._clock, discard=_hang_up
            )
        except PoolError:
            raise
        except Exception as error:  # noqa: BLE001 - a name that was told us may be no name
            raise from_host(error, self._where, maybe_done=False) from None
        self._reader = hiredis.Reader(
            replyError=self._error, protocolError=Garbled, notEnoughData=_NOT_YET
        )
        with self._guard:
            self._socket = found
        self._poll = self._poll_of(found)
        try:
            return await self._greet(deadline_s - self._clock())
        except ConnectionLost as lost:
            self.close()
            raise attrs.evolve(lost.error, maybe_done=False) from None
        except AuthError as error:  # of several servers one may lack the user
            self.close()
            raise attrs.evolve(error, problem=f"{self._where}: {error.problem}") from None
        except PoolError:
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - its answer to the greeting is not one
            self.close()
            raise from_host(_as_lost(error), self._where, maybe_done=False) from None

    async def exchange(
        self, packed: bytes, count: int, *, timeout_s: float, until_s: float | None = None
    ) -> list[Reply]:
        """Send what is packed and return its `count` replies, under both limits.

        Raises:
            Lost: The connection ended or the time was up; it is closed, and since bytes may have
                reached the server, what has no reply yet may have been done.
        """
        found, reader = self._socket, self._reader
        replies: list[Reply] = []
        self._sent_bytes, self._timeout_s, self.came_bytes = 0, timeout_s, 0
        self._until_s = self._clock() + timeout_s if until_s is None else until_s
        if found is None or timeout_s <= 0:
            # Lost, or too late, before anything was sent: between two exchanges of one operation.
            late = TimeoutError() if found else ConnectionError()
            raise ConnectionLost(from_host(late, self._where, maybe_done=False), replies)
        try:
            await self._send(found, packed)
            while True:
                reply = reader.gets()
                if reply is not _NOT_YET:
                    replies.append(reply)
                    if len(replies) < count:
                        continue
                    if reader.has_data():
                        # One of them is nobody's, and all behind it are another's.
                        replies.clear()
                        raise Garbled("more replies than calls")
                    return replies
                size = await self._receive(found)
                if not size:
                    raise ConnectionError
                self.came_bytes += size
                if self.came_bytes > REPLIES_BYTES_MAX:
                    raise Garbled(f"more than {REPLIES_BYTES_MAX} bytes")
                reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - MemoryError, or whatever else a parser raises
            _discard(found)
            self.close()
            # What comes too late may have been ended by shutting the socket.
            cause = TimeoutError() if self._clock() >= self._ends_s else _as_lost(error)
            why = from_host(cause, self._where, maybe_done=self._sent_bytes > 0)
            if self._moved:
                why = attrs.evolve(why, problem=f"{self._where} was left: {self._moved}")
            raise ConnectionLost(why, replies, self._sent_bytes) from None

    def disown(self) -> StoreUnavailable:
        """Close the connection: a reply was another call's; return what that means to its own."""
        self.close()
        return from_host(Garbled("the reply to another call"), self._where, maybe_done=True)

    def shut(self) -> None:
        """End whatever waits on the socket, from another thread; the next use opens it again."""
        with self._guard:
            if self._socket is not None:
                _shut(self._socket)

    def close(self) -> None:
        """Close the connection; twice is fine."""
        with self._guard:
            found, self._socket = self._socket, None
        self._poll = None
        if found is not None:
            _hang_up(found)

    def end(self) -> None:
        """Close the connection for good; twice is fine."""
        self.close()
        if self._topology is not None:
            topology.leave(self._topology, self)
            self._topology = None

    def abandon(self) -> None:
        """Close the descriptor in a forked child: the connection is the parent's, and stays up."""
        found, self._socket, self._topology = self._socket, None, None
        if found is not None:
            found.close()

    # --- what blocks; another kind of connection has its own way to wait
    # -----------------------------

    def _poll_of(self, found: socket.socket) -> select.poll | None:
        """Return what says whether there is something to read."""
        if isinstance(found, ssl.SSLSocket) or not hasattr(select, "poll"):
            return None
        poll = select.poll()
        poll.register(found, select.POLLIN)
        return poll

    async def _apart(
        self, fn: Callable[..., Any], *args: Any, discard: Callable[[Any], object]
    ) -> Any:
        """Run what blocks for its own time; what it returns to nobody is discarded."""
        del discard  # here somebody waits to the end
        return fn(*args)

    async def _send(self, found: socket.socket, packed: bytes) -> None:
        found.settimeout(self._left_s())
        self._sent_bytes = len(packed)  # nobody tells how many, if not all
        found.sendall(packed)

    async def _receive(self, found: socket.socket) -> int:
        """Read into the buffer; 0 at the end of the connection."""
        found.settimeout(self._left_s())
        return found.recv_into(self._buffer)

    def _left_s(self) -> float:
        """Return how long the present wait of an exchange may last."""
        now_s = self._clock()
        left_s = min(self._timeout_s, self._until_s - now_s)
        if left_s <= 0:  # a socket would take that as "do not wait", or refuse it
            raise TimeoutError
        self._ends_s = now_s + left_s
        return left_s

    def _error(self, text: str) -> Exception:
        if text.startswith("NOSCRIPT"):
            return NoScript(text)
        if text.startswith("MOVED"):
            self._stale = True
            return Moved(text)
        self._stale = self._stale or is_stale(text)
        if self._topology is not None and is_doubtful(text):
            self._topology.hurry()
        return from_words(text)

    async def _greet(self, timeout_s: float) -> Reply:
        """One round trip: protocol, login, name, database, and what server this is."""
        # No local variable here holds the password: traceback reports show them.
        url, moved_s = self._url, self.moved_s
        try:
            replies = await self.exchange(*_greeting(url, self._name), timeout_s=timeout_s)
        finally:
            self.moved_s = moved_s
        slots = replies.pop() if url.kind == "cluster" else None
        *replies, memory = replies
        for reply in replies:
            if isinstance(reply, PoolError):
                raise again(reply)
        found = _check(_facts(replies[0]), memory, url)
        self.server = attrs.evolve(found, where=self._where)
        if isinstance(slots, PoolError):
            raise again(slots)
        return slots


def _as_lost(error: Exception) -> Exception:
    """Return what it means for the connection: all but the host's own errors come of garbage."""
    if isinstance(error, OSError | Unanswered):
        return error
    return Garbled(f"{type(error).__name__}: {error}")


def _greeting(url: Url, name: str) -> tuple[bytes, int]:
    login = ("AUTH", url.username or "default", url.password) if url.password else ()
    packed = [pack(("HELLO", 2, *login, "SETNAME", name))]
    if url.db:
        packed.append(pack(("SELECT", url.db)))
    packed.append(pack(("INFO", "memory")))
    if url.kind == "cluster":
        packed.append(pack(("CLUSTER", "SLOTS")))
    return b"".join(packed), len(packed)


def pack(words: tuple[Word, ...]) -> bytes:
    """Return a command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


def _shut(found: socket.socket) -> None:
    # An error means that the other side was faster.  Not SSLSocket.shutdown: that takes the TLS
    # state from under the thread that reads.
    with suppress(OSError):
        socket.socket.shutdown(found, socket.SHUT_RDWR)


def _discard(found: socket.socket) -> None:
    """Have a socket, when it is closed, send nothing more of what the system still holds of it: on
    a slow line that would be in the way of what is sent instead."""
    with suppress(OSError, AttributeError):  # closed, or a simulated one
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _hang_up(found: socket.socket) -> None:
    _shut(found)
    found.close()


def _dial(
    url: Url, place: Address | None, deadline_s: float, clock: Callable[[], float]
) -> socket.socket:
    """Open a socket to a place, or to where the address leads; it does not block any more."""
    host, port = place or (url.hosts[0] if url.hosts else ("", 0))
    context = _tls(url) if url.kind == "tls" else None  # first: its files may be unusable
    if url.kind == "unix":
        found = _reach([(socket.AF_UNIX, url.path)], deadline_s, clock)
    else:
        found = _reach(_addresses(host, port), deadline_s, clock)
    try:
        if url.kind != "unix":
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if context is not None:
            found.settimeout(_left_s(deadline_s, clock))
            found = context.wrap_socket(found, server_hostname=host)
    except BaseException:
        found.close()
        raise
    found.setblocking(False)
    return found


def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the addresses of a place, each with its family."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _reach(
    addresses: list[tuple[int, Any]], deadline_s: float, clock: Callable[[], float]
) -> socket.socket:
    """Return a socket to the first address that takes it.

    Each has an even share of the time that is left: one that drops packets must not use up all.
    """
    for i, (family, address) in enumerate(addresses, 1):
        share_s = _left_s(deadline_s, clock) / (len(addresses) - i + 1)
        try:
            return _connect(family, address, share_s)
        except OSError:
            if i == len(addresses):
                raise
    raise AssertionError("a name has at least one address, or cannot be looked up")


def _connect(family: int, address: Any, timeout_s: float) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.settimeout(timeout_s)
        found.connect(address)
    except BaseException:
        found.close()
        raise
    return found


def _left_s(deadline_s: float, clock: Callable[[], float]) -> float:
    left_s = deadline_s - clock()
    if left_s <= 0:  # a socket would take that as "do not wait", or refuse it
        raise TimeoutError
    return left_s


def slot_of(tag: str) -> int:
    """Return the slot of a hash tag, as Redis' cluster specification has it."""
    inside = tag.partition("{")[2].partition("}")[0]
    return crc_hqx(inside.encode(), 0) % _SLOTS


def _tls(url: Url) -> ssl.SSLContext:
    """Return what a handshake needs; files that cannot be used are refused before it, since in it
    they would look like the server's fault."""
    given = dict(url.options)
    ca, certificate, key = (given.get(f"ssl_{of}") for of in ("ca_certs", "certfile", "keyfile"))
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = given.get("ssl_check_hostname", "").lower() not in _NO
    named = ""
    try:
        if ca is not None:
            named = f"ssl_ca_certs={ca}"
            context.load_verify_locations(ca)
        if key is not None and certificate is None:
            raise ConfigError(setting="url", problem="ssl_keyfile needs ssl_certfile beside it")
        if certificate is not None:
            named = f"ssl_certfile={certificate}" + (f", ssl_keyfile={key}" if key else "")
            # A key with a passphrase would ask for it at the terminal.
            context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its key may need a passphrase"
        problem = f"{named} cannot be used: {why}"
        raise ConfigError(setting="url", problem=problem) from None
    return context


def _facts(hello: Reply) -> dict[str, str]:
    """Return HELLO's answer (name, value, name, value ...) as a dict of texts."""
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in hello]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _check(facts: dict[str, str], memory: Reply, url: Url) -> Server:
    server = Server(facts["server"], facts["version"])
    called = f"{server.name} {server.version}"
    if tuple(int(n) for n in re.findall(r"\d+", server.version)[:2]) < _MINE_MIN:
        raise UnsupportedServer(problem=f"{called} is older than Redis 7.0")
    is_cluster = url.kind == "cluster"
    if facts["mode"] != ("cluster" if is_cluster else "standalone"):
        raise UnsupportedServer(
            problem=f"{called} runs in {facts['mode']} mode and the address is {url.scheme}://"
        )
    # What a node of a cluster is, its slots say: a replica may be asked for them.
    if facts["role"] != "master" and url.kind == "sentinel":
        raise StoreUnavailable(
            problem=f"whom the sentinels named is a {facts['role']} by now", maybe_done=False
        )
    if facts["role"] != "master" and not is_cluster:
        raise UnsupportedServer(problem=f"{called} is a {facts['role']}, not a master")
    # An ACL may forbid INFO; then `doctor` and the operator have to know.
    return attrs.evolve(server, policy=policy_of(memory))


def policy_of(memory: Reply) -> str:
    """Return the maxmemory-policy that INFO tells; "" if it does not."""
    text = memory.decode() if isinstance(memory, bytes) else ""
    policy = re.search(r"^maxmemory_policy:(\S+)", text, re.MULTILINE)
    return policy[1] if policy else ""
