"""The one blocking reader of map logs: a body beside the loop that feeds many replicas.

    log of map A --\
    log of map B ----> XREAD from each reader's own position --> one hop --> receive(Deltas)
    meta of A, B ----> once per renewal period, and after every reconnect --> receive(Probed)

Reading and probing share one connection and one order: what was read before a probe is delivered
before it.  The next read waits until the loop has taken the last one, so that a loop that hangs
fills no memory: the log waits in Redis, and what is trimmed there shows as a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import attrs

from pool.actors.observe import Event
from pool.errors import PoolError, StoreLost
from pool.model.backoff import reconnect_delay
from pool.model.names import Control
from pool.model.rmap import Deltas, Position, Probed
from pool.settings import Settings
from pool.store.rmap import StoredMap, delta_of, entry_of, probe_call, probed
from pool.store.seam import Beside, Port, Seam
from pool.store.url import Url

READ_MAX = 256  # deltas of one map in one read; at 64 KiB each that is 16 MiB
_BLOCK_MIN_S = 0.001  # what Redis counts in


@attrs.frozen
class Lost:
    """The server does not hold the pool of this incarnation any more."""

    incarnation: str
    error: StoreLost


@attrs.frozen
class Rejoined:
    """The pool has another incarnation from now on."""


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
class _Reading:
    """Where the reader is in one log.  Following anew replaces it, so that nothing read for the
    old one is delivered, and the thread's last word on it moves nothing."""

    stored: StoredMap
    position: str
    receive: Receive


@attrs.define(eq=False, kw_only=True)
class Follower:
    """Reads the logs of all maps that a node follows, and probes them.

    All but the body belongs to the event loop's thread.
    """

    seam: Seam
    url: Url
    control: Control
    incarnation: str
    settings: Settings
    emit: Callable[[Event], object]
    on_end: Callable[[BaseException | None], object]  # the body ended; without an error: closed
    _readings: dict[str, _Reading] = attrs.field(init=False, factory=dict)  # by name of the log
    _beside: Beside | None = attrs.field(init=False, default=None)
    _is_delivered: bool = attrs.field(init=False, default=True)

    def start(self) -> None:
        """Start reading, or start again after the body failed; maps may be followed before."""
        assert self._beside is None
        self._beside = self.seam.start(
            "pool-maps",
            self.url,
            self._body,
            socket_timeout_s=self.settings.socket_timeout_s,
            on_end=self._ended,
        )

    async def aclose(self, budget_s: float) -> None:
        """Stop reading, within the budget.  Twice is fine."""
        if self._beside is not None:
            await self._beside.aclose(budget_s)

    def follow(self, stored: StoredMap, at: Position, receive: Receive) -> None:
        """Read this map's log from behind `at`; what is on its way from elsewhere is dropped."""
        self._readings[stored.log] = _Reading(stored, entry_of(at), receive)
        self._look_again()

    def unfollow(self, stored: StoredMap) -> None:
        """Read this map's log no more.  Twice is fine."""
        if self._readings.pop(stored.log, None) is not None:
            self._look_again()

    def rejoin(self, incarnation: str) -> None:
        """Go on in another incarnation of the pool: all replicas fetch their maps anew."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            for reading in list(self._readings.values()):
                reading.receive(Rejoined())

    def _look_again(self) -> None:
        if self._beside is not None:
            self._beside.wake()
            self._beside.interrupt()

    def _ended(self, error: BaseException | None) -> None:
        self._beside = None
        self.on_end(error)

    def _deliver(self, told: Sequence[tuple[_Reading, Told]]) -> None:
        for reading, message in told:
            if self._readings.get(reading.stored.log) is reading:
                reading.receive(message)
        self._is_delivered = True
        if self._beside is not None:
            self._beside.wake()

    # --- beside the loop ----------------------------------------------------------------------

    async def _body(self, port: Port) -> None:
        probe_s = self.seam.clock() + self.settings.renew_s
        failures = 0  # since the connection was last known to be good
        while not port.closing:
            readings = list(self._readings.values())
            if not readings:
                await port.wait()
                continue
            left_s = probe_s - self.seam.clock()
            try:
                if failures or left_s <= 0:
                    told = await self._probe(port, readings, is_fresh=failures > 0)
                    probe_s = self.seam.clock() + self.settings.renew_s
                    if failures:
                        back = MapsReachable(pool=self.control.pool, failures=failures)
                        port.post(self.emit, back)
                        failures = 0
                else:
                    told = await self._read(port, readings, left_s)
            except PoolError as error:
                failures = await self._pause(port, failures, error)
            else:
                if told and not await self._hand_over(port, told):
                    return

    async def _read(
        self, port: Port, readings: Sequence[_Reading], left_s: float
    ) -> list[tuple[_Reading, Told]]:
        by_log = {reading.stored.log: reading for reading in readings}
        positions = {log: reading.position for log, reading in by_log.items()}
        block_s = max(_BLOCK_MIN_S, min(self.settings.block_s, left_s))
        told: list[tuple[_Reading, Told]] = []
        for log, entries in await port.read(positions, block_s=block_s, count=READ_MAX):
            reading = by_log[log]
            reading.position = entries[-1][0]
            told.append((reading, Deltas(tuple(delta_of(*entry) for entry in entries))))
        return told

    async def _probe(
        self, port: Port, readings: Sequence[_Reading], *, is_fresh: bool
    ) -> list[tuple[_Reading, Told]]:
        incarnation = self.incarnation
        call = probe_call(self.control, incarnation, [reading.stored for reading in readings])
        [reply] = await port.run([call], timeout_s=self.settings.op_timeout_s)
        if isinstance(reply, StoreLost):
            lost = Lost(incarnation, StoreLost(pool=self.control.pool))
            return [(reading, lost) for reading in readings]
        if isinstance(reply, PoolError):
            raise reply
        found = probed(incarnation, reply)
        return [(r, Probed(at, is_fresh)) for r, at in zip(readings, found, strict=True)]

    async def _pause(self, port: Port, failures: int, error: PoolError) -> int:
        if not failures and not port.closing:
            port.post(self.emit, MapsUnreachable(pool=self.control.pool, problem=str(error)))
        await port.sleep(reconnect_delay(failures, self.seam.dice))
        return failures + 1

    async def _hand_over(self, port: Port, told: Sequence[tuple[_Reading, Told]]) -> bool:
        """Deliver on the loop; False if there is no loop any more."""
        self._is_delivered = False
        if not port.post(self._deliver, told):
            return False
        while not self._is_delivered and not port.closing:
            await port.wait()
        return True
