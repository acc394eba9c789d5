"""What a reader and a sink have in common: a bounded buffer between a `StreamTailer` and `async
for`.

    tailer --Brought--> push() --> buffer --> next() --> the program
         <--taken-- _look_for_room() <------+

The tailer reads on when half of the buffer is free, and what it may read then is no more than that
half: so the buffer is never fuller than it may be, and never runs dry while the server has more.
Of bytes it holds `BUFFER_BYTES_MAX`, and beyond half of that no more than one read may bring.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.lowlevel
import attrs

from pool import checks
from pool.errors import InvalidOption, NotRunning
from pool.runtime.session import Session
from pool.runtime.stream_tailer import Brought, Reading, StreamTailer
from pool.streams.commands import StoredStream

BUFFER_MAX: Final = 100_000
BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024  # of payloads
STREAMS_MAX: Final = 64  # of one reader or sink
_TURNS_MAX: Final = 32  # events handed out before others on the loop get a turn

I = TypeVar("I")  # noqa: E741
R = TypeVar("R", bound=Reading)


@attrs.frozen(kw_only=True, eq=False)
class EventSource:
    """What a reader or a sink may be told to read: a `Stream`."""

    _stored: StoredStream
    _session: Session


def stored_of(given: object, session: Session) -> StoredStream:
    """Return which stream is meant.

    Raises:
        InvalidOption: It is none, or one of another pool or server than the session's.
    """
    if not issubclass(type(given), EventSource):
        raise checks.option("stream", given, "a Stream")
    stream: Any = given
    stored: StoredStream = stream._stored
    if stream._session.pool != session.pool or stream._session.url.place != session.url.place:
        problem = "it is of another pool or server: make it by sibling()"
        raise InvalidOption(option="stream", value=stored.name, problem=problem)
    return stored


def check_may_read(stored: StoredStream, known: Collection[str]) -> None:
    """Raise InvalidOption if a stream is read already, or as many are as may be.

    `known` holds the keys of those that are read.
    """
    problem = f"it reads {STREAMS_MAX} streams, which is the most"
    if stored.events in known:
        problem = "it is read already"
    elif len(known) < STREAMS_MAX:
        return
    raise InvalidOption(option="stream", value=stored.name, problem=problem)


@attrs.define(eq=False, kw_only=True)
class EventBuffer(Generic[I, R]):
    """The buffer, and the back-pressure that it means for a tailer.  Everything is on the loop."""

    buffer_max: int
    tailer: StreamTailer[R]
    size_of: Callable[[I], int]  # what an item weighs, in bytes
    _bytes: int = attrs.field(init=False, default=0)  # of all items
    _items: deque[I] = attrs.field(init=False, factory=deque)
    _batch: Brought[R] | None = attrs.field(init=False, default=None)  # pushed, and not yet `taken`
    _bell: anyio.Event | None = attrs.field(init=False, default=None)
    _turns: int = attrs.field(init=False, default=0)
    _is_over: bool = attrs.field(init=False, default=False)
    _error: BaseException | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.buffer_max = checks.count("buffer_max", self.buffer_max, 1, BUFFER_MAX)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[I]:
        return iter(self._items)

    def fit(self, streams: int) -> None:
        """Let the tailer read so much at a time that it fits, from so many streams."""
        self.tailer.count = max(1, (self.buffer_max - self._half) // max(1, streams))

    @property
    def room(self) -> int:
        """How many events may be pushed beside what the tailer may bring; one, if there is nothing.

        The one may be too much by one: it must not wait for ever behind a tailer that waits too.
        """
        reserved = 0 if self._batch is not None else self.buffer_max - self._half
        room = self.buffer_max - len(self) - reserved if self._is_light else 0
        return max(room, 0 if self._items else 1)

    @property
    def _half(self) -> int:
        return self.buffer_max // 2

    @property
    def _is_light(self) -> bool:
        return self._bytes <= BUFFER_BYTES_MAX // 2

    def push(
        self, items: Iterable[I], batch: Brought[R] | None = None, *, is_first: bool = False
    ) -> None:
        """Add items, behind the others or in front of them; those of a batch come with it."""
        items = list(items)
        self._bytes += sum(map(self.size_of, items))
        if is_first:
            self._items.extendleft(reversed(items))
        else:
            self._items.extend(items)
        if batch is not None:
            self._batch = batch
        self._look_for_room()
        self.ring()

    def drop(self, is_wanted: Callable[[I], bool] = lambda _: False) -> list[I]:
        """Take out all items but those wanted; return what was taken out."""
        dropped = [item for item in self._items if not is_wanted(item)]
        self._items = deque(item for item in self._items if is_wanted(item))
        self._bytes -= sum(map(self.size_of, dropped))
        self._look_for_room()
        return dropped

    def forget_batch(self) -> None:
        """What was pushed last is no longer to be taken; the tailer goes on without it."""
        self._batch = None
        self.tailer.read_on()

    def end(self, error: BaseException | None = None) -> None:
        """Bring no more; whoever iterates is told, after what is buffered if there is an error."""
        self._is_over, self._error = True, self._error or error
        self.ring()

    def ring(self) -> None:
        if self._bell is not None:
            self._bell.set()

    async def next(self) -> I:
        """Return the oldest item, waiting for one.

        Raises:
            StopAsyncIteration: It has ended.
        """
        if self._turns >= _TURNS_MAX:
            await anyio.lowlevel.checkpoint()
            self._turns = 0
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise StopAsyncIteration
            if self._bell is None or self._bell.is_set():
                self._bell = anyio.Event()
            await self._bell.wait()
            self._turns = 0
        self._turns += 1
        item = self._items.popleft()
        self._bytes -= self.size_of(item)
        self._look_for_room()
        return item

    def _look_for_room(self) -> None:
        if self._batch is not None and self._is_light and len(self._items) <= self._half:
            batch, self._batch = self._batch, None
            self.tailer.taken(batch)


class BufferedReader(ABC):
    """What a reader and a sink do alike: they are open for a time, and fail as one."""

    _session: Session
    _state: str  # new, open, closed
    _buffer: EventBuffer[Any, Any]

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @abstractmethod
    async def aclose(self) -> None:
        """Read no more."""

    def _check_open(self, *, may_be_closed: bool = False) -> None:
        self._session.check_loop()
        if self._state != "open" and not (may_be_closed and self._state == "closed"):
            raise NotRunning(state=self._state)

    def _on_failed(self, error: Exception) -> None:
        self._buffer.end(error)
