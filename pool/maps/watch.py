"""The changes of a replicated map, for one reader who may be slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar

import anyio
import attrs

from pool.maps import deltas as model
from pool.maps.deltas import Resync
from pool.maps.replica import Replica

WATCH_MAX: Final = 4096  # changes that are kept for a reader who is slow
WATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # of these; one of any size is kept

V = TypeVar("V", bound=str | bytes)


@attrs.frozen
class Change(Generic[V]):
    """What one revision did to one key: a string, a list as a tuple, or None for absent."""

    revision: int
    key: str
    old: V | tuple[V, ...] | None
    new: V | tuple[V, ...] | None


class Watch(Generic[V]):
    """The changes of a map from when it was made, for one reader: `async for change in watch`.

    It ends when it, its map, or that map's node is closed.  A reader that is more than `buffer_max`
    changes behind, or than 16 MiB of them, loses those, and is told a `Resync` instead: then the
    map itself says how things are.
    """

    def __init__(self, replica: Replica, values: type[V], buffer_max: int) -> None:
        self._replica = replica
        self._value_of = reader_of(values)
        self._buffer: deque[model.KeyChange | Resync] = deque()
        self._buffer_max = buffer_max
        self._bytes = 0  # of what is in the buffer
        self._revision = replica.revision  # of the last change that was read
        self._is_behind = False
        self._is_forked = False  # the server went back among what was not kept
        self.is_closed: bool = False
        self._bell = anyio.Event()
        self._unwatch = replica.watch(self._hear, self._end)

    def close(self) -> None:
        """Hear no more; what was heard already can still be read.  Twice is fine.

        Raises:
            WrongLoop: On another event loop than the map's, or on none.
            NotRunning: This process is a fork of the map's.
        """
        self._replica.pipeline.check_caller()
        self._end()

    def _end(self) -> None:
        self._unwatch()
        self.is_closed = True
        self._bell.set()

    def __enter__(self) -> Self:
        self._replica.pipeline.check_caller()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[V] | Resync:
        self._replica.pipeline.check_caller()
        while not self._buffer and not self._is_behind:
            if self.is_closed:
                raise StopAsyncIteration
            if self._bell.is_set():
                self._bell = anyio.Event()
            await self._bell.wait()
        if self._is_behind:
            before, self._revision = self._revision, self._replica.revision
            resync = Resync("overflow", self._revision, before, self._is_forked)
            self._is_behind = self._is_forked = False
            return resync
        news = self._buffer.popleft()
        self._revision = news.revision
        if isinstance(news, Resync):
            return news
        self._bytes -= news.size
        old, new = self._value_of(news.old), self._value_of(news.new)
        return Change(news.revision, text_of(news.key), old, new)

    def _hear(self, news: model.KeyChange | Resync) -> None:
        self._buffer.append(news)
        if isinstance(news, model.KeyChange):
            self._bytes += news.size
        held = len(self._buffer)
        is_heavy = self._bytes > WATCH_BYTES_MAX and held > 1
        if self._is_behind or is_heavy or held > self._buffer_max:
            self._is_behind = True
            self._is_forked |= any(isinstance(e, Resync) and e.is_fork for e in self._buffer)
            self._buffer.clear()
            self._bytes = 0
        self._bell.set()


def text_of(given: bytes) -> str:
    """Return a key or value as people see it."""
    return given.decode("utf-8", "surrogateescape")


def reader_of(values: type[V]) -> Callable[[model.Value | None], Any]:
    """Return what turns stored values into those that people see."""
    if values is bytes:
        return lambda value: value

    def read(value: model.Value | None) -> Any:
        if value is None:
            return None
        return text_of(value) if isinstance(value, bytes) else tuple(map(text_of, value))

    return read
