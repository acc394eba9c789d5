"""The one body that reads streams, beside the loop: signals, map logs, and the streams of users.

    stream A --+                           (one batch is under way at a time)
    stream B --+-> XREAD from each reading's own position --> one hop --> on_batch(Brought)
    a probe -----> now and then, and after every reconnect ->    "    --> on_probed(answer)
                                                                            |
    the next read  <----------------------- taken(batch) <-----------------+

Reading and probing share one connection and one order: what was read before a probe is handed over
before it.  The body does not read on before `taken()`: a loop that hangs, or a slow reader, fills
no memory, as what it does not read waits in Redis.  It asks for as many entries as should weigh no
more than `READ_BYTES_MAX`, and for half as many after a read that failed: its reply is lost, and
over a line that breaks now and then only what is small enough comes through.  A read that moves on
is only slow.

Who writes what: the loop writes the readings and their positions, says what is taken, and may ask
for a probe before what it was brought is read again; the body only reads that, and says what is
under way and that it has probed.  A position moves in `taken()`, so whatever ends
before that (the connection, the body, the loop, its actor) leads to reading the same again, never
to reading on behind it.  A late `taken()`, of a batch that was given up, moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from pool.core.lease import Timing
from pool.core.retry import Reconnects, reconnect_delay
from pool.errors import PoolError, StoreUnavailable
from pool.redis.io.system import IO, BodyIO, Care, Group, RunningBody
from pool.redis.reads import Portion
from pool.redis.url import Url

FIRST: Final = "0-0"
_BLOCK_MIN_S: Final = 0.001  # what Redis counts in

Fields: TypeAlias = dict[str, bytes]
StreamEntry: TypeAlias = tuple[str, Fields]


@attrs.define(eq=False)
class Reading:
    """Where the body is in one stream.  Following anew replaces it, so that nothing read for the
    old one is taken for the new one's."""

    stream: str
    position: str
    is_off: bool = attrs.field(default=False, kw_only=True)  # it would fail the read of them all


R = TypeVar("R", bound=Reading)


@attrs.frozen(eq=False)
class Brought(Generic[R]):
    """What one read brought: of each stream the entries, as `StreamTailer.decode` made them."""

    told: Sequence[tuple[R, Any]]
    ends: Sequence[tuple[R, str]] = attrs.field(repr=False)
    group: Group | None = None  # as whom it was read
    link: object | None = None  # what `link` returned when the read began


def _as_they_are(_: Reading, entries: list[StreamEntry]) -> object:
    return entries


@attrs.define(eq=False, kw_only=True)
class StreamTailer(Generic[R]):
    """Reads any number of streams from their own positions.

    All but `_body` and what it calls belongs to the event loop's thread; callbacks run on the
    loop, but `decode` and `probe`, which run in the body.
    """

    name: str
    io: IO
    url: Url
    timing: Callable[[], Timing]
    count: int  # entries of one stream in one read, at most
    portion: Portion = attrs.field(init=False, factory=Portion)
    on_batch: Callable[[Brought[R]], object]  # someone must call `taken()` for it
    care: Care | None  # None: a crash ends it
    on_trouble: Callable[[PoolError, int], object]  # a read failed, after so many before it
    # Reading again, after so many failures; 0: after a crash of ours.
    on_back: Callable[[int], object] = lambda _: None
    decode: Callable[[R, list[StreamEntry]], object] = _as_they_are
    probe: Callable[[BodyIO, Sequence[R], bool], Awaitable[Any]] | None = (
        None  # True: after failures
    )
    on_probed: Callable[[Any], object] = lambda _: None
    on_end: Callable[[BaseException | None], object] = lambda _: None  # for good; None: closed
    # After a failed read, begin each stream again: for streams from which readers remove entries.
    is_read_anew: bool = False
    link: Callable[[], object | None] = lambda: None  # the connection by which answers will go
    _readings: Mapping[str, R] = attrs.field(init=False, factory=dict)  # by stream
    _running_body: RunningBody | None = attrs.field(init=False, default=None)
    group: Group | None = None  # as a consumer of which group; may be changed
    _has_lost_none: bool = attrs.field(
        init=False, default=False
    )  # of a group's entries; the body's
    _under_way: Brought[R] | None = attrs.field(init=False, default=None)
    _is_taken: bool = attrs.field(init=False, default=True)
    _reads: int = attrs.field(init=False, default=0)  # that were begun; the body's
    _is_asked: bool = attrs.field(init=False, default=False)  # to probe before it reads on
    _has_begun: bool = attrs.field(init=False, default=False)  # before: what follows is a restart
    _failed: Exception | None = attrs.field(init=False, default=None)  # by a callback of ours
    _reconnects: Reconnects = attrs.field(init=False, factory=Reconnects)

    # --- on the loop --------------------------------------------------------------------------

    @property
    def readings(self) -> Mapping[str, R]:
        """What is read, by stream."""
        return self._readings

    @property
    def is_started(self) -> bool:
        """Whether it reads, or has read and was closed or crashed too often."""
        return self._running_body is not None

    def start(self) -> None:
        """Start reading; streams may be followed before."""
        assert self._running_body is None
        self._under_way, self._is_taken = None, True
        self._running_body = self.io.start(
            self.name,
            self.url,
            self._body,
            care=self.care,
            on_end=self.on_end,
        )

    async def aclose(self, budget_s: float) -> None:
        """Stop reading, within the budget.  Twice is fine."""
        if self._running_body is not None:
            await self._running_body.aclose(budget_s)

    def follow(self, readings: Sequence[R], *, at_once: bool = True) -> None:
        """Read these streams from now on, and no others.

        With `at_once` a blocked read is ended (and its connection with it); without, it takes new
        ones up when it returns.
        """
        self._readings = {reading.stream: reading for reading in readings}
        if self._running_body is not None:
            self._running_body.wake()
            if at_once:
                self._running_body.interrupt()

    def follows(self, reading: Reading) -> bool:
        """Say whether what was read for this is still wanted."""
        return self._readings.get(reading.stream) is reading

    def taken(self, batch: Brought[R] | None = None) -> None:
        """Read on, behind this batch; without one, after what the probe brought."""
        if batch is not self._under_way:
            return
        for reading, end in batch.ends if batch is not None else ():
            if self.follows(reading):  # else nobody took what was read for it
                reading.position = end
        self.read_on()

    def waits_for(self, batch: Brought[R]) -> bool:
        """Say whether this batch is still to be taken: it was not given up meanwhile."""
        return batch is self._under_way

    @property
    def read_number(self) -> int:
        """The number of the read whose answer may be on its way; 0: there is none."""
        return self._reads if self._is_taken else 0

    def under_way(self, reading: Reading) -> Any:
        """Return what the batch that is under way has brought for this; empty: nothing."""
        told = () if self._under_way is None else self._under_way.told
        return next((brought for each, brought in told if each is reading), ())

    def read_on(self) -> None:
        """Forget what is under way: whoever was to take it does not any more.  It is read again."""
        self._under_way = None
        self._is_taken = True
        if self._running_body is not None:
            self._running_body.wake()

    def probe_first(self, batch: Brought[R]) -> None:
        """Forget this batch, if it is under way: it is read again, after a probe."""
        if batch is self._under_way:
            self._is_asked = True
            self.read_on()

    def _begin_anew(self, error: PoolError, failures: int) -> None:
        """Go back to the first entry of each stream, and tell of the failure.

        The server may have lost data: its next entries then have ids that lie before our positions.
        """
        for reading in self._readings.values():
            reading.position = FIRST
        self.read_on()
        self.on_trouble(error, failures)

    def _tell(self, callback: Callable[..., object], *what: object) -> None:
        """Call whoever is to hear; what he raises ends the body, and it is read again."""
        try:
            callback(*what)
        except Exception as error:  # noqa: BLE001 - the body raises it
            self._failed = error
            self.read_on()

    # --- beside the loop ----------------------------------------------------------------------

    async def _body(self, body_io: BodyIO) -> None:
        probe_s = self.io.clock() + self.timing().renew_s
        failures = 0  # since the connection was last known to be good
        await self._resume(body_io)
        while not body_io.closing:
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            readings = tuple(self._readings.values())
            if not self._is_taken or not readings:
                await body_io.wait()
                continue
            left_s = probe_s - self.io.clock() if self.probe is not None else math.inf
            answer, batch = None, None
            try:
                if self.probe is not None and (self._is_asked or failures or left_s <= 0):
                    answer = await self.probe(body_io, readings, failures > 0)
                    self._is_asked = False
                    probe_s = self.io.clock() + self.timing().renew_s
                else:
                    self._reads += 1
                    batch = await self._read(body_io, readings, left_s)
            except PoolError as error:
                failures = await self._pause(body_io, failures, error)
                continue
            if failures:
                body_io.post(self._tell, self.on_back, failures)
                failures = 0
            if not self._hand_over(body_io, batch, answer):
                return

    async def _resume(self, body_io: BodyIO) -> None:
        """Connect again after a crash of ours.

        The crash was told, and closed the connection: that is no outage.  Another server may answer
        now, so there is a probe before anything is read.
        """
        is_first, self._has_begun = not self._has_begun, True
        if is_first or not self._readings or self.is_read_anew:  # which tells of no such outage
            return
        try:
            await body_io.connect(timeout_s=self.timing().socket_timeout_s)
        except PoolError:
            return  # the next read tells
        self._is_asked = True
        body_io.post(self._tell, self.on_back, 0)

    async def _read(self, body_io: BodyIO, readings: Sequence[R], left_s: float) -> Brought[R]:
        by_stream = {reading.stream: reading for reading in readings if not reading.is_off}
        group = self.group
        is_new = group is not None and (self._has_lost_none or group.is_no_ack)
        positions = {s: ">" if is_new else reading.position for s, reading in by_stream.items()}
        timing = self.timing()
        block_s = max(_BLOCK_MIN_S, min(timing.block_s, left_s))
        if not by_stream:  # all of them are off, until a probe says otherwise
            await body_io.sleep(block_s)
            return Brought((), ())
        self._has_lost_none = False
        timeout_s, link = timing.socket_timeout_s, self.link()
        count = self.portion.of(self.count, len(positions))
        try:
            got = await body_io.read(
                positions, block_s=block_s, timeout_s=timeout_s, count=count, group=group
            )
        except StoreUnavailable:  # it may have been more than the line can carry
            self.portion.failed(self.count, len(positions))
            raise
        got = [(stream, entries) for stream, entries in got if entries]
        self.portion.came(sum(len(entries) for _, entries in got), body_io.came_bytes)
        # New entries came: the reply was not lost.  None of those given to us lie behind our
        # position: no earlier reply was.  All else is doubtful, as is a read that was interrupted.
        self._has_lost_none = is_new == bool(got)
        told: list[tuple[R, Any]] = []
        ends: list[tuple[R, str]] = []
        for stream, entries in got:
            reading = by_stream[stream]
            told.append((reading, self.decode(reading, entries)))
            ends.append((reading, entries[-1][0]))
        return Brought(told, ends, group, link)

    def _hand_over(self, body_io: BodyIO, batch: Brought[R] | None, answer: Any) -> bool:
        """Have the loop take what was read, or the probe's answer; False if there is no loop."""
        if batch is not None and not batch.told:
            return True
        self._under_way, self._is_taken = batch, False
        if batch is not None:
            return body_io.post(self._tell, self.on_batch, batch)
        return body_io.post(self._tell, self.on_probed, answer)

    async def _pause(self, body_io: BodyIO, failures: int, error: PoolError) -> int:
        if body_io.closing:
            return failures
        readings = self._readings
        if self.is_read_anew:
            self._under_way, self._is_taken = None, False  # until the loop has set the positions
            body_io.post(self._tell, self._begin_anew, error, failures)
        else:
            body_io.post(self._tell, self.on_trouble, error, failures)
        is_fault = not isinstance(error, StoreUnavailable)
        now_s = self.io.clock()
        pause_s = reconnect_delay(failures, self.io.dice, is_fault=is_fault)
        until_s = now_s + max(pause_s, self._reconnects.pause_s(now_s))
        # Something else to read is worth a try at once; the word that a probe's answer was taken,
        # which may come late, is not.
        while readings is self._readings and not body_io.closing:
            left_s = until_s - self.io.clock()
            if left_s <= 0:
                break
            await body_io.sleep(left_s)
        return failures + 1
