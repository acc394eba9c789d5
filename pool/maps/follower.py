"""The blocking readers of map logs: a `StreamTailer` for each few maps, which feeds their replicas.

    log of map A --\
    log of map B ----> XREAD from each reader's own position --> one hop --> receive(Deltas)
    where A, B are --> once per renewal period, and after every reconnect --> receive(Probed)

What was read before a probe is delivered before it.  A loop that hangs fills no memory: the log
waits in Redis, and what is trimmed there shows as a gap.

Each delta ends a blocked read, and the next one names all its logs anew: 1.2 us of the server's
time for each of them.  So one Tail reads a few maps, and a process that follows many has several
connections: what a write costs does not hang on how many maps its followers follow.

A log that cannot be read fails the whole read.  The probe after that says which it is; it is left
out of the reads until a probe finds it well again, and its map's replica is told.

Probes also end maps whose time is up: the server hands each to one process, and
they are asked for until none is left.  They say what time should have passed (see rmap_probe.lua).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import anyio
import attrs

from pool.core.lease import Timing
from pool.errors import PoolError, StoreLost, again
from pool.events import Event, MapsDamaged, MapsReachable, MapsUnreachable
from pool.maps.commands import (
    ENDED_MAX,
    StoredMap,
    damaged,
    delta_of,
    entry_of,
    expire_calls,
    probe_call,
    probed,
)
from pool.maps.deltas import Deltas, Position, Probed
from pool.names import Control
from pool.redis.io.system import IO, BodyIO, Care
from pool.redis.url import Url
from pool.runtime.stream_tailer import Brought, Reading, StreamEntry, StreamTailer
from pool.settings import Settings

READ_MAX = 256  # deltas of one map in one read; at 64 KiB each that is 16 MiB
MAPS_MAX = 8  # that one connection reads


@attrs.frozen
class HistoryLost:
    """The server does not hold the pool of this generation any more."""

    generation: str
    error: StoreLost


@attrs.frozen
class Rejoined:
    """The pool is there again, in the same generation or in another."""


News: TypeAlias = Deltas | Probed | HistoryLost | Rejoined
Receive: TypeAlias = Callable[[News], object]


@attrs.define(eq=False, kw_only=True)
class _Reading(Reading):
    """One log; its position is the entry of the delta that was delivered last."""

    stored: StoredMap
    receive: Receive
    heard_s: float  # when its log was read, or looked at, last


@attrs.frozen
class _Answer:
    """What a probe brought: of each map, and which of the keys that all share are damaged."""

    told: Sequence[tuple[_Reading, News]]
    damaged: frozenset[str] | None = None  # None: that is not known


@attrs.define(eq=False, kw_only=True)
class MapFollower:
    """Reads the logs of all maps that a node follows, and probes them.

    All but `_probe` belongs to the event loop's thread.
    """

    io: IO
    url: Url
    control: Control
    generation: str
    settings: Settings
    timing: Callable[[], Timing]
    emit: Callable[[Event], object]
    care: Care | None  # None: a crash ends it
    _tailers: list[StreamTailer[_Reading]] = attrs.field(init=False)
    _is_started: bool = attrs.field(init=False, default=False)
    # The maps' time as the server said last, and when that was by our own clock.
    _noted: tuple[int, float] | None = attrs.field(init=False, default=None)
    _damaged: frozenset[str] = attrs.field(init=False, default=frozenset())  # of what all share

    @_tailers.default
    def _first_tailer(self) -> list[StreamTailer[_Reading]]:
        return [self._new_tailer()]

    def _new_tailer(self) -> StreamTailer[_Reading]:
        tailer: StreamTailer[_Reading] = StreamTailer(
            name="pool-maps",
            io=self.io,
            url=self.url,
            timing=self.timing,
            count=READ_MAX,
            decode=_deltas,
            on_batch=lambda batch: self._on_batch(tailer, batch),
            probe=self._probe,
            on_probed=lambda told: self._on_probed(tailer, told),
            on_trouble=self._on_trouble,
            on_back=self._on_back,
            care=self.care,
        )
        return tailer

    def start(self) -> None:
        """Start reading; maps may be followed before."""
        self._is_started = True
        for tailer in self._tailers:
            tailer.start()

    async def aclose(self, budget_s: float) -> None:
        """Stop reading, within the budget.  Twice is fine."""
        async with anyio.create_task_group() as tasks:
            for tailer in self._tailers:
                tasks.start_soon(tailer.aclose, budget_s)

    def follow(self, stored: StoredMap, at: Position, receive: Receive) -> None:
        """Read this map's log from behind `at`; what is on its way from elsewhere is dropped."""
        heard_s = self.io.clock()
        reading = _Reading(
            stored.log, entry_of(at), stored=stored, receive=receive, heard_s=heard_s
        )
        tailer = self._tailer_of(stored) or self._tailer_with_room()
        tailer.follow([*{**tailer.readings, stored.log: reading}.values()])

    def unfollow(self, stored: StoredMap) -> None:
        """Read this map's log no more.  Twice is fine."""
        tailer = self._tailer_of(stored)
        if tailer is not None:  # one without maps waits for others, without a connection
            tailer.follow([each for each in tailer.readings.values() if each.stored != stored])

    def _tailer_of(self, stored: StoredMap) -> StreamTailer[_Reading] | None:
        return next((tailer for tailer in self._tailers if stored.log in tailer.readings), None)

    def _tailer_with_room(self) -> StreamTailer[_Reading]:
        for tailer in self._tailers:
            if len(tailer.readings) < MAPS_MAX:
                return tailer
        self._tailers.append(self._new_tailer())
        if self._is_started:
            self._tailers[-1].start()
        return self._tailers[-1]

    def rejoin(self, generation: str) -> None:
        """Go on in this generation, after a loss: all replicas fetch their maps anew."""
        self.generation = generation
        for reading in list(self._readings.values()):
            reading.receive(Rejoined())

    def behind(self) -> set[str]:
        """Return the maps of which nothing has been heard for a TTL."""
        since_s = self.io.clock() - self.timing().ttl_s
        readings = self._readings.values()
        return {each.stored.name for each in readings if each.heard_s < since_s}

    @property
    def _readings(self) -> Mapping[str, _Reading]:
        return {
            log: reading for tailer in self._tailers for log, reading in tailer.readings.items()
        }

    def _on_batch(self, tailer: StreamTailer[_Reading], batch: Brought[_Reading]) -> None:
        self._deliver(tailer, batch.told)
        tailer.taken(batch)

    def _on_probed(self, tailer: StreamTailer[_Reading], answer: _Answer) -> None:
        if answer.damaged is not None:
            for key in sorted(answer.damaged - self._damaged):
                self.emit(MapsDamaged(pool=self.control.pool, key=key))
            self._damaged = answer.damaged
        self._deliver(tailer, answer.told)
        tailer.taken()

    def _deliver(
        self, tailer: StreamTailer[_Reading], told: Sequence[tuple[_Reading, News]]
    ) -> None:
        now_s = self.io.clock()
        for reading, message in told:
            if tailer.follows(reading):
                reading.heard_s = now_s
                if isinstance(message, Probed):
                    reading.is_off = message.damaged == reading.stream
                reading.receive(message)

    def _on_trouble(self, error: PoolError, failures: int) -> None:
        if not failures:
            self.emit(MapsUnreachable(pool=self.control.pool, problem=str(error)))

    def _on_back(self, failures: int) -> None:
        if failures:
            self.emit(MapsReachable(pool=self.control.pool, failures=failures))

    # --- beside the loop ----------------------------------------------------------------------

    async def _probe(
        self, body_io: BodyIO, readings: Sequence[_Reading], is_fresh: bool
    ) -> _Answer:
        generation, maps = self.generation, [reading.stored for reading in readings]
        timeout_s = self.settings.op_timeout_s
        told: list[News] = []
        foreign: frozenset[str] = frozenset()
        logs = is_fresh or any(reading.is_off for reading in readings)
        ended_count = ENDED_MAX
        while ended_count == ENDED_MAX:  # there may be more, of whatever maps of the pool
            expected_ms = self._expected_ms()
            call = probe_call(self.control, generation, maps, expected_ms=expected_ms, logs=logs)
            [reply] = await body_io.run([call], timeout_s=timeout_s)
            if isinstance(reply, StoreLost):
                self._noted = None
                lost = HistoryLost(generation, StoreLost(pool=self.control.pool))
                return _Answer([(reading, lost) for reading in readings])
            if isinstance(reply, PoolError):
                raise again(reply)
            if reply.now_ms:
                self._noted = reply.now_ms, self.io.clock()
            told = told or [
                attrs.evolve(each, is_fresh=is_fresh) for each in probed(generation, maps, reply)
            ]
            foreign = damaged(self.control, reply)
            ended = expire_calls(self.io, self.control, generation, reply.ended)
            if ended:  # what fails here is handed to somebody again
                await body_io.run(ended, timeout_s=timeout_s)
            ended_count = len(reply.ended)
        return _Answer([*zip(readings, told, strict=True)], foreign)

    def _expected_ms(self) -> int:
        """Return what the maps' time should be by our own clock; 0: we have heard of none."""
        noted = self._noted
        return 0 if noted is None else noted[0] + round((self.io.clock() - noted[1]) * 1000)


def _deltas(_: _Reading, entries: list[StreamEntry]) -> Deltas:
    return Deltas(tuple(delta_of(*entry) for entry in entries))
