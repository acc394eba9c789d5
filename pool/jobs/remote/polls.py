r"""Open polls: their workers' streams are read, and their leases renewed, for all of them at once.

    open --> waits --starts, signals: rung--> closing --> gone
               |  \--another poll of the worker; this node closes; its lease is gone: over
               +--every renewal period, if it holds nothing: renewed, in bulk

One body a lane reads the streams and signals of all workers that poll here, and of those that did a
while ago: who polls again is followed already.  It only wakes: a poll that begins looks at what
stands there, so what was read while none was open, or is read twice, changes nothing.  A worker
that has jobs is not renewed here: it must beat itself, or a client that hangs would keep them.

Who writes: a desk belongs to its poll, which takes it away; rings, leases and what starts came are
the actor's.  After a crash of the actor desks stand as they did, and streams are read on.  This
process dies: see `workers.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import anyio
import attrs

from pool.core.record import Start
from pool.errors import NotRunning, PoolError, StoreLost, StoreUnavailable
from pool.jobs.context import Context
from pool.jobs.listener import READ_MAX, LaneBatch, LaneTailers
from pool.jobs.remote.claims import WorkerClaim
from pool.jobs.remote.leases import NAMES_MAX, LaneLease, Leases
from pool.names import PAUSED
from pool.redis.commands.edges import Pulled
from pool.redis.commands.pausing import LanePauses, is_held_back
from pool.runtime.actor import Actor
from pool.runtime.stream_tailer import Fields

LINGER_S: Final = 30.0  # for so long a worker that does not poll here is followed
GATHER_S: Final = 0.01  # in which new workers gather: a read that is blocked is ended for them
CLOSE_S: Final = 2.0  # for polls to end when the node closes
_NEWS: Final = (b"message", b"intent")


@attrs.frozen
class _FollowDue:
    """Workers came that are not followed yet."""


Message: TypeAlias = LaneBatch | _FollowDue


@attrs.define(eq=False)
class Desk:
    """One open poll."""

    claim: WorkerClaim
    keys: frozenset[str]  # of the jobs that the worker holds
    wants: int  # so many more
    is_waiting: bool = False
    is_closing: bool = False
    is_over: bool = False  # another one took over, or this gateway closes
    takes: dict[int, int] = attrs.field(factory=dict)  # by lane: where it was opened
    said: dict[int, LaneLease] = attrs.field(factory=dict)  # by lane: its last renewal
    gone: set[int] = attrs.field(factory=set)  # lanes in which its lease is
    busy: set[int] = attrs.field(factory=set)  # where another gateway has handed jobs out
    starts: dict[int, dict[str, Start]] = attrs.field(factory=lambda: defaultdict(dict))
    told: set[object] = attrs.field(factory=set)  # what the poll before has told that it is lost
    bell: anyio.Event = attrs.field(factory=anyio.Event)

    def bring(self, lane: int, starts: Sequence[Start]) -> None:
        """Take starts: they may have come before."""
        for start in starts:
            if start.key not in self.keys:
                known = self.starts[lane].get(start.key)
                if known is None or known.epoch < start.epoch:
                    self.starts[lane][start.key] = start

    @property
    def came(self) -> int:
        """How many starts have."""
        return sum(map(len, self.starts.values()))


@attrs.define(eq=False, kw_only=True)
class OpenPolls(Actor[Message]):
    """Keeps the open polls of one gateway."""

    inbox_max: int = 4096
    context: Context
    is_closed: Callable[[WorkerClaim], bool]  # it shall take nothing any more
    look_at: Callable[[Desk], object]  # once a period
    leases: Leases = attrs.field(init=False)
    _desks: dict[str, Desk] = attrs.field(init=False, factory=dict)  # by worker
    _followed: dict[str, tuple[WorkerClaim, float]] = attrs.field(init=False, factory=dict)
    # By worker that is followed: what was told it, and does not end its polls again.  A hint.
    _told: dict[str, set[object]] = attrs.field(init=False, factory=dict)
    _places: list[dict[str, tuple[str, bool]]] = attrs.field(
        init=False, factory=list
    )  # by lane and stream: whose it is, and whether it is that of signals
    _tailers: LaneTailers = attrs.field(init=False)
    _is_following: bool = attrs.field(init=False, default=False)
    _is_closing: bool = attrs.field(init=False, default=False)
    _empty: anyio.Event = attrs.field(init=False, factory=anyio.Event)

    @leases.default
    def _(self) -> Leases:
        return Leases(self.context, self.spawn, lambda: self.state != "running" or self.is_crashed)

    @_tailers.default
    def _(self) -> LaneTailers:
        return LaneTailers(name="remote", context=self.context, deliver=self.deliver)

    # --- for polls ----------------------------------------------------------------------------

    def open(self, claim: WorkerClaim, keys: frozenset[str], wants: int) -> Desk:
        """Begin a poll; one of the same worker that is open is over.

        Raises:
            NotRunning: The node closes.
        """
        self.check_open()
        former = self._desks.get(claim.id)
        if former is not None:
            former.is_over = True
            former.bell.set()
        desk = self._desks[claim.id] = Desk(claim, keys, wants)
        desk.told = self._told.setdefault(claim.id, desk.told)
        is_new = claim.id not in self._followed
        self._followed[claim.id] = claim, self.context.io.clock() + LINGER_S
        if is_new and not self._is_following:
            self._is_following = True
            self.context.loop.later(GATHER_S, partial(self.put, _FollowDue()))
        return desk

    def check_open(self) -> None:
        """Refuse what comes while the node closes.

        Raises:
            NotRunning: It does.
        """
        if self._is_closing or self.state == "ended":
            raise NotRunning(state="closing")

    async def wait(self, desk: Desk, until_s: float) -> None:
        """Return when there is news for a poll, or its time is up."""
        desk.is_waiting = True
        try:
            if not (desk.is_over or desk.came):
                with anyio.move_on_after(max(0.0, until_s - self.context.io.clock())):
                    await desk.bell.wait()
        finally:
            desk.is_waiting = False

    def leave(self, desk: Desk) -> None:
        """End a poll.  Twice is fine."""
        desk.is_waiting = False
        if self._desks.get(desk.claim.id) is desk:
            del self._desks[desk.claim.id]
            self._followed[desk.claim.id] = desk.claim, self.context.io.clock() + LINGER_S
            if not self._desks:
                self._empty.set()

    def takes(self, claim: WorkerClaim, lane: int) -> int:
        """Return how many keys a worker takes by the poll that it has open here."""
        desk = self._desks.get(claim.id)
        return desk.takes.get(lane, 0) if desk is not None and not desk.is_closing else 0

    def is_latest(self, desk: Desk) -> bool:
        """Say whether no other poll of its worker has taken over."""
        return self._desks.get(desk.claim.id) is desk

    def forget(self, claim: WorkerClaim) -> None:
        """Follow a worker no more: it has left."""
        self._followed.pop(claim.id, None)
        self._told.pop(claim.id, None)
        desk = self._desks.get(claim.id)
        if desk is not None:
            desk.is_over = True
            desk.bell.set()

    # --- for the node -------------------------------------------------------------------------

    async def close(self) -> None:
        """Have all polls end, and wait for that."""
        self._is_closing = True
        for desk in self._desks.values():
            desk.is_over = True
            desk.bell.set()
        with anyio.move_on_after(CLOSE_S):
            while self._desks:
                self._empty = anyio.Event()
                await self._empty.wait()

    async def aclose(self, budget_s: float) -> None:
        """Stop reading; twice is fine."""
        await self._tailers.aclose(budget_s)

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        self.leases.begin()
        self._is_following = False
        self._follow()
        self._tailers.read_on()
        self.spawn(self._renew_on)

    def ended(self, crash: BaseException | None) -> None:  # noqa: ARG002 - its base's signature
        self.leases.give_up()

    def handle(self, message: Message) -> None:
        match message:
            case LaneBatch():
                self._tailers.route(message, self._route)
            case _FollowDue():
                self._is_following = False
                self._follow()

    def _route(self, lane: int, stream: str, entries: Sequence[tuple[str, Fields]]) -> bool:
        worker_id, is_signals = self._places[lane].get(stream, ("", False))
        desk = self._desks.get(worker_id)
        if desk is None:
            return False  # whoever polls next looks at what stands there
        if not is_signals:
            found = (Start.parse(entry_id, fields) for entry_id, fields in entries)
            desk.bring(lane, [start for start in found if start is not None])
            is_news = desk.came > 0
        else:
            is_news = any(
                fields.get("t") in _NEWS
                and fields.get("k", b"").decode(errors="replace") in desk.keys
                for _, fields in entries
            )
        if is_news:
            desk.bell.set()
        return is_signals

    # --- whose streams are read ---------------------------------------------------------------

    def _follow(self) -> None:
        now_s = self.context.io.clock()
        for worker_id, (_, until_s) in list(self._followed.items()):
            if until_s < now_s and worker_id not in self._desks:
                del self._followed[worker_id]
                self._told.pop(worker_id, None)
        self._places = [{} for _ in self.context.lanes]
        for state in self.context.lanes:
            places, names = self._places[state.number], state.lane.names
            for claim, _ in self._followed.values():
                if claim.lanes[state.number]:
                    places[names.stream(claim.name)] = claim.id, False
                    places[names.signal(claim.name)] = claim.id, True
            known = self._tailers.readings(state).keys()
            if known != places.keys():
                self._tailers.follow(state, places, at_once=not places.keys() <= known)

    # --- the period ---------------------------------------------------------------------------

    async def _renew_on(self) -> None:
        """Renew those that wait and hold nothing; look after all polls."""
        while True:
            await anyio.sleep(self.context.timing.renew_s)
            async with anyio.create_task_group() as tasks:
                for state in self.context.lanes:
                    tasks.start_soon(self._renew_lane, state.number)
            for desk in list(self._desks.values()):
                if desk.takes and self.is_closed(desk.claim):
                    desk.is_over = True
                    desk.bell.set()
                self.look_at(desk)
            self._follow()

    def _idle(self, lane: int) -> list[Desk]:
        return [d for d in self._desks.values() if d.is_waiting and not d.keys and lane in d.takes]

    async def _renew_lane(self, lane: int) -> None:
        desks, unassigned = self._idle(lane), 0
        for at in range(0, len(desks), NAMES_MAX):
            # As it is now: one that has been closed meanwhile must not be opened again.
            some = {d.claim.name: d for d in desks[at : at + NAMES_MAX] if d.is_waiting}
            try:
                told = await self.leases.renew(lane, {n: d.takes[lane] for n, d in some.items()})
            except PoolError as error:
                if not isinstance(error, (StoreUnavailable, StoreLost)):
                    self.context.trouble("renew", lane, error)
                return  # its lease lasts until a later one
            for name, desk in some.items():
                self._take(desk, lane, told[name])
                unassigned = told[name].unassigned
        if unassigned:
            await self._pull(lane, unassigned)

    def _take(self, desk: Desk, lane: int, said: LaneLease) -> None:
        if said.is_gone:
            desk.gone.add(lane)
            desk.bell.set()
        elif said.keys and desk.is_waiting:
            # Another gateway has handed jobs out: from here on their worker has to beat itself.
            desk.busy.add(lane)
            desk.is_over = True
            desk.bell.set()
        else:
            desk.said[lane] = said

    async def _pull(self, lane: int, left: int) -> None:
        """Have those that wait given what nobody has; of the same handlers until none is."""
        alike: dict[frozenset[str], list[Desk]] = defaultdict(list)
        for desk in self._idle(lane):
            alike[frozenset(desk.claim.handlers)].append(desk)
        for desks in alike.values():
            if not await self.has_waiting(desks[0].claim, lane):
                continue
            for desk in desks:
                if left <= 0:
                    return
                if not desk.is_waiting or desk.came >= desk.wants:
                    continue
                pulled = await self.pull(desk.claim, lane, desk.wants - desk.came)
                if pulled is None:
                    return
                left = pulled.left
                if not pulled.granted:
                    break

    async def pull(self, claim: WorkerClaim, lane: int, keys_max: int) -> Pulled | None:
        """Have a worker that is open given unassigned keys; None: it could not be asked."""
        state = self.context.lanes[lane]
        opened = state.door.opened
        call = state.lane.pull(
            claim.target,
            claim.handlers,
            keys_max=min(keys_max, READ_MAX),
            pending_s=self.context.timing.pending_timeout_s,
        )
        try:
            pulled: Pulled = await self.context.pipeline.call(call)
        except PoolError:
            return None  # what it says of the worker, or the lane, the next renewal says
        if pulled.granted or state.door.opened == opened:  # else a renewal has told since
            self.context.tell_unassigned(lane, pulled.left if pulled.granted else 0)
        return pulled

    async def has_waiting(self, claim: WorkerClaim, lane: int) -> bool:
        """Say whether a pull would be given a key; the lane counts those of all handlers.

        The worker is open already: what becomes unassigned later is granted to it directly.
        """
        n, handlers = self.context.lanes[lane].lane.names, list(claim.handlers)
        heads = [("ZRANGE", n.unassigned(name), 0, 0, "WITHSCORES") for name in handlers]
        try:
            paused, *found = await self.context.pipeline.execute_all(
                [("HGET", n.lane, PAUSED), *heads]
            )
        except PoolError:
            return True  # the pull fails alike, or passes over a key of another type
        pauses = LanePauses.of({PAUSED: paused or b""})
        return not pauses.is_all and any(
            head and not is_held_back(float(head[1])) and handler not in pauses.handlers
            for handler, head in zip(handlers, found, strict=True)
        )
