"""The one blocking reader of map logs: one `Tail` that feeds many replicas.

    log of map A --\
    log of map B ----> XREAD from each reader's own position --> one hop --> receive(Deltas)
    meta of A, B ----> once per renewal period, and after every reconnect --> receive(Probed)

What was read before a probe is delivered before it.  A loop that hangs fills no memory: the log
waits in Redis, and what is trimmed there shows as a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import attrs

from pool.actors.observe import Event
from pool.actors.tail import Batch, Reading, StreamEntry, Tail
from pool.errors import PoolError, StoreLost, again
from pool.model.names import Control
from pool.model.rmap import Deltas, Position, Probed
from pool.model.timing import Timing
from pool.settings import Settings
from pool.store.rmap import StoredMap, delta_of, entry_of, expire_calls, probe_call, probed, strings
from pool.store.seam import Care, Port, Seam
from pool.store.url import Url

READ_MAX = 256  # deltas of one map in one read; at 64 KiB each that is 16 MiB


@attrs.frozen
class Lost:
    """The server does not hold the pool of this incarnation any more."""

    incarnation: str
    error: StoreLost


@attrs.frozen
class Rejoined:
    """The pool is there again, in the same incarnation or in another."""


Told: TypeAlias = Deltas | Probed | Lost | Rejoined
Receive: TypeAlias = Callable[[Told], object]


@attrs.frozen(kw_only=True)
class MapsUnreachable:
    event: ClassVar[str] = "maps.unreachable"
    level: ClassVar[str] = "warning"

    pool: str
    problem: str


@attrs.frozen(kw_only=True)
class MapsReachable:
    event: ClassVar[str] = "maps.reachable"
    level: ClassVar[str] = "info"

    pool: str
    failures: int  # tries in between


@attrs.define(eq=False)
class _Reading(Reading):
    """One log; its position is the entry of the delta that was delivered last."""

    stored: StoredMap
    receive: Receive


@attrs.define(eq=False, kw_only=True)
class Follower:
    """Reads the logs of all maps that a node follows, and probes them.

    All but `_probe` belongs to the event loop's thread.
    """

    seam: Seam
    url: Url
    control: Control
    incarnation: str
    settings: Settings
    timing: Callable[[], Timing]
    emit: Callable[[Event], object]
    care: Care | None  # None: a crash ends it
    _tail: Tail[_Reading] = attrs.field(init=False)

    @_tail.default
    def _new_tail(self) -> Tail[_Reading]:
        return Tail(
            name="pool-maps",
            seam=self.seam,
            url=self.url,
            timing=self.timing,
            count=READ_MAX,
            decode=_deltas,
            on_batch=self._on_batch,
            probe=self._probe,
            on_probed=self._on_probed,
            on_trouble=self._on_trouble,
            on_back=self._on_back,
            care=self.care,
        )

    def start(self) -> None:
        """Start reading; maps may be followed before."""
        self._tail.start()

    async def aclose(self, budget_s: float) -> None:
        """Stop reading, within the budget.  Twice is fine."""
        await self._tail.aclose(budget_s)

    def follow(self, stored: StoredMap, at: Position, receive: Receive) -> None:
        """Read this map's log from behind `at`; what is on its way from elsewhere is dropped."""
        reading = _Reading(stored.log, entry_of(at), stored, receive)
        self._tail.follow([*{**self._readings, stored.log: reading}.values()])

    def unfollow(self, stored: StoredMap) -> None:
        """Read this map's log no more.  Twice is fine."""
        if stored.log in self._readings:
            self._tail.follow([r for r in self._readings.values() if r.stored.log != stored.log])

    def rejoin(self, incarnation: str) -> None:
        """Go on in this incarnation, after a loss: all replicas fetch their maps anew."""
        self.incarnation = incarnation
        for reading in list(self._readings.values()):
            reading.receive(Rejoined())

    @property
    def _readings(self) -> Mapping[str, _Reading]:
        return self._tail.readings

    def _on_batch(self, batch: Batch[_Reading]) -> None:
        self._deliver(batch.told)
        self._tail.taken(batch)

    def _on_probed(self, told: Sequence[tuple[_Reading, Told]]) -> None:
        self._deliver(told)
        self._tail.taken()

    def _deliver(self, told: Sequence[tuple[_Reading, Told]]) -> None:
        for reading, message in told:
            if self._tail.follows(reading):
                reading.receive(message)

    def _on_trouble(self, error: PoolError, failures: int) -> None:
        if not failures:
            self.emit(MapsUnreachable(pool=self.control.pool, problem=str(error)))

    def _on_back(self, failures: int) -> None:
        self.emit(MapsReachable(pool=self.control.pool, failures=failures))

    # --- beside the loop ----------------------------------------------------------------------

    async def _probe(
        self, port: Port, readings: Sequence[_Reading], is_fresh: bool
    ) -> list[tuple[_Reading, Told]]:
        incarnation = self.incarnation
        call = probe_call(self.control, incarnation, [reading.stored for reading in readings])
        [reply] = await port.run([call], timeout_s=self.settings.op_timeout_s)
        if isinstance(reply, StoreLost):
            lost = Lost(incarnation, StoreLost(pool=self.control.pool))
            return [(reading, lost) for reading in readings]
        if isinstance(reply, PoolError):
            raise again(reply)
        ended = expire_calls(self.control, incarnation, reply)
        if ended:  # of whatever map of the pool; what fails is found again by the next probe
            await port.run(ended, timeout_s=self.settings.op_timeout_s)
        found = probed(incarnation, reply)
        held = strings(reply)
        return [
            (reading, Probed(at, is_fresh, count))
            for reading, at, count in zip(readings, found, held, strict=True)
        ]


def _deltas(_: _Reading, entries: list[StreamEntry]) -> Deltas:
    return Deltas(tuple(delta_of(*entry) for entry in entries))
