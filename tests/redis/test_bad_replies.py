"""Bytes that are no reply end a connection; a reply that nobody can read, its call; no more."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import attrs
import hiredis
import pytest

from pool.core.retry import Restarts
from pool.errors import PoolError, StoreFault, StoreUnavailable
from pool.redis.commands.member import RENEW
from pool.redis.commands.plain import read
from pool.redis.io.system import BodyIO, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import ScriptCall
from pool.redis.url import Url
from tests.impatient import opened

PATIENCE_S: Final = 30.0
OP_TIMEOUT_S: Final = 1.0
FACTS: Final = b"server redis version 7.4.0 proto 2 mode standalone role master".split()
HELLO: Final = b"*%d\r\n" % len(FACTS) + b"".join(b"$%d\r\n%s\r\n" % (len(f), f) for f in FACTS)
POLICY: Final = b"$0\r\n\r\n"
PONG: Final = b"+PONG\r\n"


def pong(words: list[bytes]) -> bytes:
    """Return the reply to a PING."""
    return bulk(words[1]) if len(words) > 1 else PONG


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


# None of these is a reply.
GARBAGE: Final = {
    "no type": b"?what\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a length beyond memory": b"$9223372036854775807\r\n",
    "a length beyond numbers": b"$99999999999999999999999\r\n",
    "a negative count": b"*-5\r\n",
    "no number": b":12a\r\n",
    "a map whose key is a list": b"%1\r\n*1\r\n:1\r\n:2\r\n",
    "a nest": b"*1\r\n" * 5000,
}
# These are replies, of a server that is not itself.
STRANGE: Final = {
    "an error of ours without its facts": b"-POOLMAPFULL\r\n",
    "an error of ours with words for numbers": b"-POOLMAPFULL a b\r\n",
    "an error without a word": b"-\r\n",
    "nothing": b"$-1\r\n",
    "a list": b"*2\r\n:1\r\n$-1\r\n",
}


class Care:
    """Whoever cares finds nothing to do."""

    def __init__(self) -> None:
        self.crashes: list[BaseException] = []

    def restarts(self) -> Restarts:
        return Restarts(0, random.Random(1))

    def fell(self, _: str, error: BaseException, restarts: Restarts) -> float | None:
        self.crashes.append(error)
        return restarts.crashed(0.0)

    def rose(self, _: str, __: object) -> None:
        pass

    def began(self, _: object) -> None:
        pass


def _answers(client: socket.socket, scripts: Iterator[list[bytes]]) -> None:
    with suppress(OSError), client:
        for reply in next(scripts):
            if not client.recv(65_536):
                return
            client.sendall(reply)
        reader = hiredis.Reader()
        while packed := client.recv(65_536):
            reader.feed(packed)
            while (words := reader.gets()) is not False:
                client.sendall(pong(words))


@contextmanager
def served(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve one connection after another in a thread; yield the address."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                serve(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


@contextmanager
def answering(*connections: list[bytes]) -> Iterator[str]:
    """A server that gives these answers, connection by connection, and then behaves itself."""

    def scripts() -> Iterator[list[bytes]]:
        yield from connections
        while True:
            yield [HELLO + POLICY]

    given = scripts()
    with served(lambda client: _answers(client, given)) as url:
        yield url


async def recovered(pipeline: Pipeline) -> None:
    """Wait until calls are answered again."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            with suppress(PoolError):
                assert await pipeline.execute("PING") == b"PONG"
                return


@pytest.mark.anyio
@pytest.mark.parametrize("bad", [*GARBAGE.values(), *STRANGE.values()], ids=[*GARBAGE, *STRANGE])
async def test_at_a_greeting(bad: bytes) -> None:
    """A3: of the first connection, and of a later one."""
    with answering([bad + POLICY]) as url, pytest.raises(PoolError):
        with anyio.fail_after(PATIENCE_S):
            await Pipeline.open(SystemIO(), Url.parse(url), op_timeout_s=OP_TIMEOUT_S)
    care, lost = Care(), [HELLO + POLICY, GARBAGE["no type"]]
    with answering(lost, [bad + POLICY], [HELLO + bad]) as url:
        pipeline = await Pipeline.open(
            SystemIO(), Url.parse(url), op_timeout_s=OP_TIMEOUT_S, care=care
        )
        with pytest.raises(StoreUnavailable) as failed:
            await pipeline.execute("PING")
        assert failed.value.maybe_done
        await recovered(pipeline)
        await pipeline.aclose(1.0)
    assert not care.crashes


@pytest.mark.anyio
@pytest.mark.parametrize("bad", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_in_a_batch_loses_what_has_no_reply_yet(bad: bytes) -> None:
    care = Care()
    with answering([HELLO + POLICY, PONG + bad + PONG]) as url:
        pipeline = await Pipeline.open(
            SystemIO(), Url.parse(url), op_timeout_s=OP_TIMEOUT_S, care=care
        )
        with anyio.fail_after(PATIENCE_S):
            first, second, third = await pipeline.replies_to([("PING",)] * 3)
        for lost in (first, second, third):  # nothing vouches for the first
            assert isinstance(lost, StoreUnavailable)
            assert lost.maybe_done
        await recovered(pipeline)
        await pipeline.aclose(1.0)
    assert not care.crashes


@pytest.mark.anyio
@pytest.mark.parametrize("bad", STRANGE.values(), ids=STRANGE)
async def test_a_strange_reply_is_its_calls_alone(bad: bytes) -> None:
    care = Care()
    ours = b"*2\r\n$1\r\n1\r\n" + bad if bad[:1] != b"-" else bad
    with answering([HELLO + POLICY, b"+sha\r\n" + PONG + ours + PONG + bulk(b"2")]) as url:
        pipeline = await Pipeline.open(
            SystemIO(), Url.parse(url), op_timeout_s=OP_TIMEOUT_S, care=care
        )
        keys = ["{t}"] * len(RENEW.keys)
        call = RENEW(keys, ["0"] * len(RENEW.args))
        with anyio.fail_after(PATIENCE_S):
            first, strange, last = await pipeline.replies_to([("PING",), call, ("PING",)])
        assert (first, last) == (b"PONG", b"PONG")
        assert isinstance(strange, StoreFault)
        assert strange.maybe_done  # it does not say that nothing was done
        assert pipeline.connections == 1
        await pipeline.aclose(1.0)
    assert not care.crashes


@pytest.mark.anyio
@pytest.mark.parametrize("bad", [*GARBAGE.values(), *STRANGE.values()], ids=[*GARBAGE, *STRANGE])
async def test_at_a_blocking_read(bad: bytes) -> None:
    """It fails, or says that there is nothing; the next one reads on another connection."""
    care, told, done = Care(), list[object](), anyio.Event()

    async def body(body_io: BodyIO) -> None:
        for _ in range(2):
            try:
                read = await body_io.read(
                    {"s": "0-0"}, block_s=0.1, timeout_s=OP_TIMEOUT_S, count=1
                )
                told.append(read)
            except PoolError as error:
                told.append(error)
        body_io.post(done.set)
        await body_io.wait()

    entry = b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nn\r\n$1\r\n1\r\n"
    again = [HELLO + POLICY, entry]
    with answering([HELLO + POLICY, bad, entry], again) as url:
        beside = SystemIO().start("pool-test", Url.parse(url), body, care=care)
        with anyio.fail_after(PATIENCE_S):
            await done.wait()
        assert await beside.aclose(1.0)
    assert told[0] == [] or isinstance(told[0], PoolError)
    assert not care.crashes


def test_what_was_read_before_is_no_reply_to_a_read() -> None:
    """C4: blocking reads carry no number; their positions only rise."""
    told = [[b"s", [[b"5-1", [b"n", b"1"]]]]]

    def words(position: str) -> tuple[str, ...]:
        return ("XREAD", "COUNT", "1", "BLOCK", "1", "STREAMS", "s", position)

    assert read(words("5-0"), told) == [("s", [("5-1", {"n": b"1"})])]
    for position in ("5-1", "6-0"):
        with pytest.raises(ValueError, match="not asked for"):
            read(words(position), told)


@pytest.mark.anyio
async def test_no_mutated_reply_ends_a_link() -> None:
    """Fuzz: bytes of good replies are changed, dropped and doubled, wherever they stand."""
    dice = random.Random(11)

    def damaged(reply: bytes) -> bytes:
        found = bytearray(reply)
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(found))
            match dice.randrange(3):
                case 0:
                    found[at] = dice.randrange(256)
                case 1:
                    del found[at]
                case _:
                    found[at:at] = found[at : at + dice.randint(1, 8)]
        return bytes(found)

    care = Care()
    connections = [
        [damaged(HELLO + POLICY)] if n % 2 else [HELLO + POLICY, damaged(PONG + PONG + b":17\r\n")]
        for n in range(60)
    ]
    with answering([HELLO + POLICY], *connections) as url:
        pipeline = await opened(url, op_timeout_s=0.2, care=care)
        with anyio.fail_after(4 * PATIENCE_S):
            for _ in connections:
                replies = await pipeline.replies_to([("PING",)] * 3)
                assert len(replies) == 3
                beside: Any = pipeline._running_body
                beside.body_io.connection.shut()  # the next one
        await recovered(pipeline)
        await pipeline.aclose(1.0)
    assert not care.crashes


# --- a server that echoes, but for what is damaged on the way -----------------------------------

TOKENS: Final = (b"one!!", b"two!!", b"three")
ECHOED: Final = [b"$%d\r\n%s\r\n" % (len(token), token) for token in TOKENS]
WHOLE: Final = b"".join(ECHOED)
STRAYS: Final = (PONG, b":1\r\n", ECHOED[0], ECHOED[2])


@attrs.define
class Echoes:
    """What becomes of the next echoes."""

    data: bytes = b""
    is_end: bool = False  # the connection ends behind them
    client: socket.socket | None = None

    def serve(self, client: socket.socket) -> None:
        reader = hiredis.Reader()
        self.client = client
        with suppress(OSError), client:
            while packed := client.recv(65_536):
                reader.feed(packed)
                while (words := reader.gets()) is not False:
                    match words[0]:
                        case b"HELLO":
                            client.sendall(HELLO)
                        case b"INFO":
                            client.sendall(POLICY)
                        case b"ECHO" if words[1] == TOKENS[-1]:
                            client.sendall(self.data)
                            if self.is_end:
                                return
                        case b"PING":
                            client.sendall(pong(words))


@contextmanager
def echoing() -> Iterator[tuple[str, Echoes]]:
    echoes = Echoes()
    with served(echoes.serve) as url:
        yield url, echoes


def damages() -> Iterator[tuple[bytes, bool]]:
    """Yield what may arrive instead, and whether the connection ends behind it."""
    for at in range(len(WHOLE)):
        yield from ((WHOLE[:at], is_end) for is_end in (False, True))
        yield WHOLE[:at] + WHOLE[at + 1 :], False
        for byte in b"$*:-+_0\r\n":
            yield WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :], False
    for at in range(len(ECHOED) + 1):
        for stray in STRAYS:
            yield b"".join([*ECHOED[:at], stray, *ECHOED[at:]]), False


@pytest.mark.anyio
async def test_whatever_byte_is_damaged_nobody_is_given_anothers_reply() -> None:
    """Own reply or an error, within its time; what is damaged itself nobody can know.  Then the
    pipeline works again."""
    care = Care()
    with echoing() as (url, echoes):
        pipeline = await opened(url, op_timeout_s=0.1, care=care)
        for echoes.data, echoes.is_end in damages():
            with anyio.fail_after(PATIENCE_S):
                replies = await pipeline.replies_to([("ECHO", token) for token in TOKENS])
            for token, reply in zip(TOKENS, replies, strict=True):
                others = {each for each in TOKENS if each != token}
                assert isinstance(reply, PoolError) or reply not in others, echoes.data
            await recovered(pipeline)
        await pipeline.aclose(1.0)
    assert not care.crashes


@pytest.mark.anyio
@pytest.mark.parametrize("late", [*STRAYS, *GARBAGE.values(), b"$5\r\nhal"])
async def test_what_is_said_unasked_answers_nobody(late: bytes) -> None:
    """Of an idle connection: the next call goes over another one, and is surely its own."""
    care = Care()
    with echoing() as (url, echoes):
        pipeline = await Pipeline.open(
            SystemIO(), Url.parse(url), op_timeout_s=OP_TIMEOUT_S, care=care
        )
        assert await pipeline.execute("PING") == b"PONG"
        assert echoes.client is not None
        echoes.client.sendall(late)
        connection: Any = pipeline._running_body.body_io.connection  # type: ignore[attr-defined]
        with anyio.fail_after(PATIENCE_S):
            await anyio.wait_readable(connection._socket)
        assert await pipeline.execute("PING") == b"PONG"
        assert pipeline.connections == 2
        await pipeline.aclose(1.0)
    assert not care.crashes


# --- a reply between a call and its own ---------------------------------------------------------


Shape: TypeAlias = Callable[[bytes, bytes], bytes]
SHAPES: Final[dict[str, Shape]] = {  # of what a script tells, with the number of its call
    "in a text": lambda number, word: bulk(number + b" " + word),
    "behind a list": lambda number, word: b"*2\r\n" + bulk(word) + bulk(number),
    "beside it": lambda number, word: b"*2\r\n" + bulk(number) + bulk(word),
}


class Shifting:
    """A server that says something of its own before a reply; all others are late by one."""

    def __init__(self, stray: bytes, at: int, shape: Shape) -> None:
        self.stray, self.at, self.shape, self.calls = stray, at, shape, 0
        self.numbers: list[bytes] = []
        self.is_late = False

    def serve(self, client: socket.socket) -> None:
        reader, late = hiredis.Reader(), list[bytes]()
        with suppress(OSError), client:
            while packed := client.recv(65_536):
                reader.feed(packed)
                told = late
                while (words := reader.gets()) is not False:
                    told += self.replies(words)
                late = [told.pop()] if self.is_late else []
                client.sendall(b"".join(told))

    def replies(self, words: list[bytes]) -> list[bytes]:
        match words[0]:
            case b"HELLO":
                self.is_late = False
                return [HELLO]
            case b"INFO":
                return [POLICY]
            case b"SCRIPT":
                return [bulk(b"sha")]
            case b"PING":
                told = pong(words)
            case _:
                told = self.shape(words[-1], words[-2])
                self.numbers.append(words[-1])
        self.calls += 1
        stray = self.stray
        if stray == b"last" and self.numbers[:-1]:
            stray = self.shape(self.numbers[-2], b"another's")
        self.is_late = self.is_late or self.calls == self.at
        return [stray, told] if self.calls == self.at else [told]


@contextmanager
def shifting(stray: bytes, at: int, shape: Shape) -> Iterator[str]:
    with served(Shifting(stray, at, shape).serve) as url:
        yield url


SHIFTS: Final = {
    "a text": b"$9\r\nanother's\r\n",
    "no number": b"*1\r\n$9\r\nanother's\r\n",
    "an error": b"-LOADING of another\r\n",
    "an error of ours": b"-POOLGONE w1.1\r\n",
    "what a call before was told": b"last",
}


@pytest.mark.anyio
@pytest.mark.parametrize("stray", SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", [1, 3])
async def test_a_reply_between_a_call_and_its_own_answers_nobody(
    stray: bytes, shape: Shape, count: int
) -> None:
    """C4: there are as many replies as calls, and what is left over comes too late to be seen."""
    care = Care()
    script = attrs.evolve(RENEW, reads=lambda reply: reply[0] if type(reply) is list else reply)
    for at in range(2, 2 + count):
        with shifting(stray, at, shape) as url:
            pipeline = await Pipeline.open(
                SystemIO(), Url.parse(url), op_timeout_s=OP_TIMEOUT_S, care=care
            )

            def call(word: str) -> ScriptCall:
                return script(["{t}"] * len(RENEW.keys), ["0"] * (len(RENEW.args) - 1) + [word])

            with anyio.fail_after(PATIENCE_S):
                assert await pipeline.call(call("first")) == b"first"
                words = [f"word {n}" for n in range(count)]
                told: list[Any] = [None] * count
                done = anyio.Event()

                def tell(n: int, reply: Any, told: list[Any], done: anyio.Event) -> None:
                    told[n] = reply
                    if n == count - 1:
                        done.set()

                for n, word in enumerate(words):
                    pipeline.send(call(word), partial(tell, n, told=told, done=done))
                await done.wait()
            for word, reply in zip(words, told, strict=True):
                assert reply == word.encode() or isinstance(reply, StoreUnavailable), reply
                assert not isinstance(reply, StoreUnavailable) or reply.maybe_done
            assert isinstance(told[-1], StoreUnavailable)
            with anyio.fail_after(PATIENCE_S):
                assert await pipeline.call(call("later")) == b"later"
            assert pipeline.connections == 2
            await pipeline.aclose(1.0)
    assert not care.crashes
