"""A replicated map as people use it: local reads, writes of one round trip, and changes to watch.

    set() --script--> store --delta--> follower --> replica --> get(), items() ...
                                                       |
                                                       +--> each watch: a buffer of its own
                                                       +--> each waiter: a channel of its own

Nobody here can hold up anybody else: a watch that is not read forgets what it holds and says so
later, and a waiter is released by its own channel or by its own cancellation.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeAlias, overload

import attrs

from pool import checks
from pool.errors import (
    ConfigError,
    InvalidOption,
    NotRunning,
    StoreLost,
    WrongValue,
    shown,
    unsure,
)
from pool.events import Observer
from pool.maps import deltas as model
from pool.maps.commands import OPS_MAX, MapLife
from pool.maps.deltas import Position
from pool.maps.replica import Replica
from pool.maps.standalone import Standalone
from pool.maps.watch import WATCH_MAX, V, Watch, reader_of, text_of
from pool.names import WORKERS, check_map
from pool.redis.url import Url
from pool.runtime.observers import log_observer
from pool.settings import Settings

BUFFER_MAX: Final = 1_000_000  # changes in one watch
WHOLE_MAX: Final = 2**53 - 1  # what `increment` counts to, on both sides of 0

_WHOLE: Final = re.compile(rb"-?[0-9]{1,4000}")  # leading zeroes are fine; `int()` reads 4,300

ReplicaHolder: TypeAlias = Callable[[], AbstractAsyncContextManager[Replica]]


@attrs.frozen
class Written(Generic[V]):
    """The answer to a write: where the map was after it, and what it found.

    Of a list it tells how many items there were, and not which.
    """

    at: Position
    is_met: bool  # whether its condition held; if not, nothing was written
    previous: V | None  # the string that was there
    size_before: int = 0  # the items of the list that was there

    @property
    def revision(self) -> int:
        """The map's revision after it."""
        return self.at.revision


@attrs.frozen
class Counted:
    """The answer to `increment`."""

    at: Position
    previous: int | None
    value: int

    @property
    def revision(self) -> int:
        """The map's revision after it."""
        return self.at.revision


@attrs.frozen
class Resized:
    """The answer to a write of a list, or of the whole map.

    It tells how many items there were, and not which: a list is not shipped to change it.
    """

    at: Position
    is_met: bool  # whether anything changed, or for a reset, whether its condition held
    size_before: int
    size: int

    @property
    def revision(self) -> int:
        """The map's revision after it."""
        return self.at.revision


class ReplicatedMap(Generic[V]):
    """A small map that every node of a fleet holds a copy of: feature flags, routes, settings.

    `async with node.map("flags") as flags`, or without a node
    `async with ReplicatedMap.open(url, "flags") as flags`.

    Reads are local, wait for nothing, and cost O(1).  The copy follows the map's own history
    without a break, or is fetched anew (G-10); it is at most two renewal periods behind a server
    that it can reach, and usually a millisecond.  A write is one round trip and one revision: it
    is compared, applied and logged in one step, and only what it changes is shipped.  After a
    write, `wait_for(written.at)` waits until this copy has it.

    A key is text or bytes, of at most 512 bytes, and is read as text; a value is a string of at
    most 64 KiB, or a list of such strings.  Any bytes may be in either: what is not UTF-8 is read
    as text with `surrogateescape`, or as it is with `values=bytes`.  One map holds at most 100,000
    strings and list items together (a list's own key counts nothing); use a database for more.
    """

    def __init__(self, name: str, values: type[V], life: MapLife, held: ReplicaHolder) -> None:
        check_map(name)
        if name == WORKERS:
            raise ConfigError(setting="map", problem=f"{name!r} is the pool's own")
        if values is not str and values is not bytes:
            raise checks.option("values", values, "the type str or bytes")
        self.name = name
        self._values = values
        self._value_of = reader_of(values)
        self._life = life
        self._held = held
        self._stack = AsyncExitStack()
        self._replica: Replica | None = None
        self._phase: Literal["new", "open", "closed"] = "new"
        self._watches: list[Watch[V]] = []

    @overload
    @classmethod
    def open(
        cls,
        url: str,
        name: str,
        *,
        pool: str = "default",
        ttl_s: float | None = None,
        is_sliding: bool = False,
        expires_at: float | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (log_observer,),
    ) -> ReplicatedMap[str]: ...

    @overload
    @classmethod
    def open(
        cls,
        url: str,
        name: str,
        *,
        values: type[V],
        pool: str = "default",
        ttl_s: float | None = None,
        is_sliding: bool = False,
        expires_at: float | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (log_observer,),
    ) -> ReplicatedMap[V]: ...

    @classmethod
    def open(
        cls,
        url: str,
        name: str,
        *,
        values: Any = str,
        pool: str = "default",
        ttl_s: float | None = None,
        is_sliding: bool = False,
        expires_at: float | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (log_observer,),
    ) -> ReplicatedMap[Any]:
        """Describe a map that is used without a node; enter it to use it.

        Args:
            url: Where its Redis is, as for `Node`.
            name: The map's, 1 to 128 bytes in UTF-8.
            values: What values are read as, `str` or `bytes`.
            pool: The pool whose map it is: a node of that pool has the same one as `node.map()`.
            ttl_s: How long the map lives, in seconds, at least 1, from the first write into an
                empty map on; later ones do not move that.  None: as whoever wrote before has said.
            is_sliding: Count `ttl_s` from the latest write that changed something instead.
            expires_at: Instead of `ttl_s`: when the map ends, in seconds since 1970, as
                `datetime.timestamp()` returns.  Each write says it anew: what is left until then,
                by the server's clock, is what the map has to live by the pool's own time.
            settings: Those of the pipeline and the renewal period count.
            observers: Called with every event, plainly; the default writes log lines.

        Raises:
            ConfigError: A name or the address cannot be used.
            InvalidOption: A value is out of bounds.
        """
        life = MapLife(ttl_s, is_sliding, expires_at)
        address = Url.parse(url)  # `url` itself, with a password in it, is not kept
        session = Standalone(pool, address, settings=settings, observers=observers)

        @asynccontextmanager
        async def held() -> AsyncIterator[Replica]:
            async with session as standalone, standalone.maps.hold(name) as replica:
                yield replica

        return ReplicatedMap(name, values, life, held)

    async def __aenter__(self) -> Self:
        """Join the map: one snapshot.

        Raises:
            NotRunning: It was opened before, or its node is not open.
            StoreUnavailable, AuthError, UnsupportedServer, NoServer: As for a node.
            StoreFault: There are foreign data under the map's keys.
        """
        if self._state != "new":
            raise NotRunning(state=self._state)
        self._replica = await self._stack.enter_async_context(self._held())
        self._phase = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._replica is not None:
            self._replica.pipeline.check_loop()
        self._phase = "closed"
        for watch in self._watches:
            watch.close()
        await self._stack.__aexit__(kind, error, traceback)

    # --- local reads --------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """How far this copy is.  It goes back only with a `Resync`, when the server did."""
        return self._open.revision

    @property
    def at(self) -> Position:
        """Where in the map's history this copy is: another copy can `wait_for()` that."""
        return self._open.at

    def get(self, key: str | bytes, default: V | None = None) -> V | None:
        """Return the string of a key.

        Raises:
            WrongValue: It holds a list; see `get_list()`.
        """
        value = self._open.items.get(_bytes("key", key))
        if value is None:
            return default
        if isinstance(value, tuple):
            raise WrongValue(problem=f"{_shown(key)} holds a list, not a string")
        text: V = self._value_of(value)
        return text

    def get_list(self, key: str | bytes) -> tuple[V, ...]:
        """Return the list of a key, empty if there is none.

        Raises:
            WrongValue: It holds a string.
        """
        value = self._open.items.get(_bytes("key", key), ())
        if isinstance(value, bytes):
            raise WrongValue(problem=f"{_shown(key)} holds a string, not a list")
        texts: tuple[V, ...] = self._value_of(value)
        return texts

    def get_int(self, key: str | bytes, default: int = 0) -> int:
        """Return the whole number of a key.

        Raises:
            WrongValue: It holds something else, or one beyond 2^53 - 1 on either side of 0.
        """
        value = self._open.items.get(_bytes("key", key))
        if value is None:
            return default
        if isinstance(value, tuple) or not _WHOLE.fullmatch(value) or abs(int(value)) > WHOLE_MAX:
            raise WrongValue(problem=f"{_shown(key)} holds no whole number up to 2^53 - 1")
        return int(value)

    def __getitem__(self, key: str | bytes) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return issubclass(type(key), (str, bytes)) and _bytes("key", key) in self._open.items

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def __len__(self) -> int:
        return len(self._open.items)

    def __repr__(self) -> str:
        size = f", {len(self)} keys at revision {self.revision}" if self._state == "open" else ""
        return f"<ReplicatedMap {self.name!r}, {self._state}{size}>"

    def keys(self) -> Iterator[str]:
        """Iterate over the keys as of now, whatever is written meanwhile."""
        return map(text_of, self._open.items)

    def values(self) -> Iterator[V | tuple[V, ...]]:
        """Iterate over the values (strings, and lists as tuples) as of now."""
        return map(self._value_of, self._open.items.values())

    def items(self) -> Iterator[tuple[str, V | tuple[V, ...]]]:
        """Iterate over keys and values (strings, and lists as tuples) as of now."""
        items = self._open.items
        return ((text_of(key), self._value_of(value)) for key, value in items.items())

    def snapshot(self) -> dict[str, V | tuple[V, ...]]:
        """Return everything as of `revision`.  O(keys), without waiting."""
        return dict(self.items())

    def watch(self, buffer_max: int = WATCH_MAX) -> Watch[V]:
        """Return the changes from now on; make it before you read what they start from.

        Raises:
            InvalidOption: `buffer_max` is not 1 to 1,000,000.
        """
        buffer_max = checks.count("buffer_max", buffer_max, 1, BUFFER_MAX)
        self._watches = [each for each in self._watches if not each.is_closed]
        self._open.pipeline.check_caller()
        watch = Watch(self._open, self._values, buffer_max)
        self._watches.append(watch)
        return watch

    async def wait_for(self, at: Position) -> None:
        """Wait until this copy has a write: the `at` that it, anybody's, was answered.

        A position may come from another process, as text: see `Position`.  What is so long past
        that the map's log does not have it any more is taken for done.  What was written behind a
        loss that this copy has not heard of yet is waited for through that loss.

        Raises:
            InvalidOption: It is no position.
            StoreLost: The server does not have the write: it went back since, or lost its data.
            StoreFault: The map cannot be read.
            NotRunning: The map was closed.
        """
        replica = self._open
        if type(at) is not Position or not at.is_well_formed:
            raise checks.option("at", at, "a Position, as writes return")
        await replica.wait_for(at)

    # --- writes -------------------------------------------------------------------------------
    #
    # All of them may raise:
    #   StoreUnavailable   no answer in time; `maybe_done` says whether it may have been written
    #   StoreLost          the server lost the pool's data; the copy is being fetched anew
    #   NotRunning         the map is not open
    # and those that set or append:
    #   StorageFull, MapFull, PayloadTooLarge, InvalidOption             nothing was written

    async def set(self, key: str | bytes, value: V) -> Written[V]:
        """Give a key this string, whatever it had."""
        return await self._write(model.Set(_bytes("key", key), _bytes("value", value)))

    async def set_and_wait(self, key: str | bytes, value: V) -> Written[V]:
        """As `set()`, and wait until this copy has it; bound it with a timeout of your own.

        Others have it at about the same time; nobody is waited for but this copy.

        Raises:
            StoreLost: Also if the server went back before the write came here.
        """
        written = await self.set(key, value)
        try:
            await self.wait_for(written.at)
        except StoreLost as lost:
            raise unsure(lost) from None
        return written

    async def update(self, values: Mapping[str, V] | Mapping[bytes, V]) -> Position:
        """Set up to 256 keys as one revision; return where the map is then, or this copy if there
        are none.

        Raises:
            InvalidOption: There are more, or a key is there twice, as text and as bytes.
        """
        replica = self._open
        ops = [model.Set(key, value, is_told=False) for key, value in _pairs("values", values)]
        return (await replica.write(ops, life=self._life)).at if ops else self.at

    async def set_if_not_exists(self, key: str | bytes, value: V) -> Written[V]:
        """Give a key this string if it has nothing."""
        return await self._write(model.SetIfNotExists(_bytes("key", key), _bytes("value", value)))

    async def compare_and_set(self, key: str | bytes, expected: V, value: V) -> Written[V]:
        """Give a key this string if it has the expected one."""
        return await self._write(
            model.CompareAndSet(
                _bytes("key", key), _bytes("expected", expected), _bytes("value", value)
            )
        )

    async def delete(self, key: str | bytes) -> Written[V]:
        """Remove a key; `previous` says which string, `size_before` of how long a list it was."""
        return await self._write(model.Delete(_bytes("key", key)))

    async def compare_and_delete(self, key: str | bytes, expected: V) -> Written[V]:
        """Remove a key if it has the expected string."""
        return await self._write(
            model.CompareAndDelete(_bytes("key", key), _bytes("expected", expected))
        )

    async def increment(self, key: str | bytes, by: int = 1) -> Counted:
        """Add to the whole number of a key; an absent one counts as 0.

        Raises:
            WrongValue: It holds something else, or it or the sum is beyond 2^53 - 1 on either side.
            InvalidOption: `by` is not a whole number within that.
        """
        by = checks.count("by", by, -WHOLE_MAX, WHOLE_MAX)
        written = await self._open.write([model.Increment(_bytes("key", key), by)], life=self._life)
        [outcome] = written.outcomes
        previous = None if outcome.previous is None else int(outcome.previous)
        return Counted(written.at, previous, (previous or 0) + by)

    async def append(self, key: str | bytes, *values: V) -> Resized:
        """Append 1 to 256 strings to the list of a key.  O(log items); the list is not rewritten.

        Raises:
            WrongValue: The key holds a string.
        """
        return await self._change_list("append", key, values)

    async def append_unique(self, key: str | bytes, *values: V) -> Resized:
        """As `append()`, but only what the list does not have."""
        return await self._change_list("append_unique", key, values)

    async def remove(self, key: str | bytes, *values: V) -> Resized:
        """Remove strings from the list of a key, wherever they stand in it.

        A list that has no items left is no key any more.

        Raises:
            WrongValue: The key holds a string.
        """
        return await self._change_list("remove", key, values)

    async def reset(self) -> Resized:
        """Remove all keys, as one revision."""
        return _resized(await self._open.reset(model.ResetOp()))

    async def compare_and_reset(self, expected: Mapping[str, V]) -> Resized:
        """Remove all keys if these, at most 256, have the expected strings.

        Raises:
            InvalidOption: There are more.
        """
        pairs = tuple(_pairs("expected", expected))
        return _resized(await self._open.reset(model.ResetOp("reset", pairs)))

    async def destroy(self) -> Resized:
        """Remove all keys, and all that the server holds of the map; its log a minute later.

        Whoever holds it sees an empty map, and may write to it: then it lives again.
        """
        return _resized(await self._open.reset(model.ResetOp("destroy")))

    # --- inside -------------------------------------------------------------------------------

    @property
    def _state(self) -> Literal["new", "open", "closed"]:
        """A map that outlives its node is closed with it: nobody would tell it of changes."""
        is_over = self._replica is not None and self._replica.is_closed
        return "closed" if is_over else self._phase

    @property
    def _open(self) -> Replica:
        if self._replica is None or self._state != "open":
            raise NotRunning(state=self._state)
        return self._replica

    async def _write(self, op: model.Op) -> Written[V]:
        written = await self._open.write([op], life=self._life)
        [outcome] = written.outcomes
        previous = self._value_of(outcome.previous)
        return Written(written.at, outcome.is_met, previous, outcome.size_before)

    async def _change_list(
        self,
        kind: Literal["append", "append_unique", "remove"],
        key: str | bytes,
        values: tuple[V, ...],
    ) -> Resized:
        packed = tuple(_bytes("values", value, n) for n, value in enumerate(values))
        op = model.ListOp(kind, _bytes("key", key), packed)
        return _resized(await self._open.change_list(op, life=self._life))


def _resized(resized: model.ResizeResult) -> Resized:
    return Resized(resized.at, resized.is_met, resized.size_before, resized.size)


def _pairs(what: str, given: object) -> list[tuple[bytes, bytes]]:
    pairs = checks.mapping(what, given).items()
    found: dict[bytes, bytes] = {}
    for n, (given_key, value) in enumerate(islice(pairs, OPS_MAX + 1)):
        key = _bytes(f"{what}: key", given_key, n)
        if key in found:  # which of them is meant, nobody knows
            raise checks.option(what, given_key, "a key that is there once, as text or as bytes")
        found[key] = _bytes(f"{what}: value", value, n)
    if len(found) > OPS_MAX:
        raise InvalidOption(option=what, value=f"over {OPS_MAX}", problem=f"at most {OPS_MAX}")
    return [*found.items()]


def _bytes(what: str, given: object, index: int | None = None) -> bytes:
    if type(given) is bytes:
        return given
    name = what if index is None else f"{what}[{index}]"
    return checks.utf8(name, given, or_bytes=True, errors="surrogateescape")


def _shown(key: str | bytes) -> str:
    return shown(key) if type(key) is bytes else repr(shown(key))
