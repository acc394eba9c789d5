"""The local copy of one replicated map, and those who wait for it or watch it.

    follower --Deltas, Probed--> +---------+ --changes--> watchers (callbacks)
    link -----snapshot---------> | Replica | --reached--> waiters, each with a channel of its own
                                 +---------+ --items----> readers, without waiting

What to do about a gap, a silence or a server that went back is decided in `model/rmap.py`; this
actor performs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import ClassVar, Final, TypeAlias

import anyio
import attrs

from pool.actors import observe
from pool.actors.actor import Actor
from pool.actors.follower import Follower, Lost, Rejoined, Told
from pool.errors import NotRunning, PoolError, StoreLost, StoreUnavailable, again
from pool.model.backoff import reconnect_delay
from pool.model.rmap import (
    Ask,
    Change,
    Changed,
    Copy,
    Doubted,
    Effect,
    Event,
    Fetched,
    Follow,
    ListOp,
    MapState,
    Op,
    Position,
    Probed,
    ResetOp,
    Resized,
    Resync,
    Value,
    Written,
)
from pool.store.link import Link
from pool.store.rmap import FOR_EVER, Life, StoredMap

FAULTS_MAX: Final = 4  # answers in a row that cannot be read, before it is the map that cannot

Message: TypeAlias = Told | Fetched
Watcher: TypeAlias = Callable[[Change | Resync], object]


@attrs.frozen(kw_only=True)
class MapResynced:
    event: ClassVar[str] = "map.resynced"
    level: ClassVar[str] = "warning"

    pool: str
    map: str
    reason: str
    revision: int
    revision_before: int


@attrs.frozen(kw_only=True)
class MapNotFetched:
    event: ClassVar[str] = "map.not_fetched"
    level: ClassVar[str] = "warning"

    pool: str
    map: str
    problem: str


@attrs.define(eq=False)
class _Waiter:
    """One caller's own channel: nobody else can fill it, close it, or forget to read it."""

    incarnation: str
    event: anyio.Event = attrs.field(factory=anyio.Event)
    error: PoolError | None = None
    missed: int = 0  # probes in a row that did not find the revision

    def release(self, error: PoolError | None = None) -> None:
        self.error = error
        self.event.set()


@attrs.define(eq=False, kw_only=True)
class Replica(Actor[Message]):
    """A replicated map with local reads.

    A copy follows the map's own history without a break, or is fetched anew (G-10); watchers are
    told either way.  It is at most two renewal periods behind a server that it can reach, and
    right after a reconnect it is as the server then was.

    While no snapshot can be had, for whatever reason, the copy stays as it is: an outage of this
    map alone.  Of one that is no absence of the server those who wait are told, as more time may
    not help them.
    """

    stored: StoredMap
    link: Link
    follower: Follower
    emit: Callable[[observe.Event], object]
    on_lost: Callable[[StoreLost], object]  # the pool's data are gone; once until they are back
    _copy: Copy = attrs.field(init=False)
    _waiters: dict[int, set[_Waiter]] = attrs.field(init=False, factory=dict)  # by revision
    _watchers: list[Watcher] = attrs.field(init=False, factory=list)
    _is_lost: bool = attrs.field(init=False, default=False)
    _is_overflowed: bool = attrs.field(init=False, default=False)

    @_copy.default
    def _nothing_yet(self) -> Copy:
        return Copy(MapState(Position(self.follower.incarnation, 0, 0)))

    # --- for everybody ------------------------------------------------------------------------

    @property
    def items(self) -> Mapping[bytes, Value]:
        """The map as of `revision`: immutable, and good to keep.  Empty before the first sync."""
        return self._copy.state.items

    @property
    def revision(self) -> int:
        """How far this copy is.  It goes back only with a `Resync`, when the server did."""
        return self._copy.state.at.revision

    @property
    def is_synced(self) -> bool:
        """Whether the map was ever here; `wait_for(0)` waits for it."""
        return self._copy.is_synced

    async def write(
        self, ops: Sequence[Op], *, repeatable: bool = False, life: Life = FOR_EVER
    ) -> Written:
        """Change the map; return when the store has it.

        The local copy follows later: `wait_for(written.revision)`.  For what is promised, for
        `repeatable` and for errors see `StoredMap.write`.
        """
        incarnation = self.follower.incarnation
        with self._noticing(incarnation):
            return await self.stored.write(
                self.link, incarnation, ops, repeatable=repeatable, life=life
            )

    async def change_list(self, op: ListOp, *, life: Life = FOR_EVER) -> Resized:
        """Change one list; see `StoredMap.change_list`."""
        incarnation = self.follower.incarnation
        with self._noticing(incarnation):
            return await self.stored.change_list(self.link, incarnation, op, life=life)

    async def reset(self, op: ResetOp) -> Resized:
        """Remove everything; see `StoredMap.reset`."""
        incarnation = self.follower.incarnation
        with self._noticing(incarnation):
            return await self.stored.reset(self.link, incarnation, op)

    @contextmanager
    def _noticing(self, incarnation: str) -> Iterator[None]:
        """Notice that the pool's data are gone, whoever is told first."""
        try:
            yield
        except StoreLost as lost:
            self._receive(Lost(incarnation, lost))
            raise

    async def wait_for(self, revision: int) -> None:
        """Wait until the local copy has reached this revision, which a write has returned.

        Raises:
            StoreLost: The server went back, or lost the pool, or two probes in a row did not find
                the revision there: it may never come.
            NotRunning: The map was closed.
        """
        self.link.check_loop()
        if self.is_synced and self.revision >= revision:
            return
        if self.state in ("stopping", "ended"):
            raise NotRunning(state=self.state)
        waiter = _Waiter(self.follower.incarnation)
        self._waiters.setdefault(revision, set()).add(waiter)
        try:
            await waiter.event.wait()
        finally:
            self._forget(revision, waiter)
        if waiter.error is not None:
            raise again(waiter.error)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` for each change from now on, and for each `Resync`; return what ends it.

        It is called on the event loop, when `items` are new already.  It must not wait or raise:
        who hands changes on to someone slow needs a limit of their own.
        """
        self._watchers.append(watcher)

        def unwatch() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return unwatch

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        self._is_overflowed = False
        self._step(Doubted("restart" if self.is_synced else "join"))

    def handle(self, message: Message) -> None:
        match message:
            case Lost(incarnation=incarnation, error=error):
                if incarnation == self.follower.incarnation:
                    self._lose(error)
            case Rejoined():
                self._is_lost = False
                self._step(Doubted("data lost"))
            case _:
                if isinstance(message, Probed):
                    self._is_lost = False  # the server holds our incarnation
                self._step(message)
        if self._is_overflowed:
            self._is_overflowed = False
            self._step(Doubted("overflow"))

    def ended(self, crash: BaseException | None) -> None:
        self.follower.unfollow(self.stored)
        error = crash if isinstance(crash, PoolError) else NotRunning(state=self.state)
        self._fail(error)

    def _receive(self, message: Message) -> None:
        """Be told from outside.  Of what finds no place, only that it was missed is kept."""
        if isinstance(message, Probed) and message.at is not None:
            self._miss(message.at.revision)
        if not self.tell(message):
            self._is_overflowed = True

    def _step(self, event: Event) -> None:
        before = self._copy.state.at
        self._copy, effects = self._copy.step(event)
        for effect in effects:
            self._perform(effect, before)

    def _perform(self, effect: Effect, before: Position) -> None:
        match effect:
            case Ask(ask=ask):
                self.spawn(self._fetch, ask)
            case Changed(changes=changes):
                for change in changes:
                    self._notify(change)
                self._reached()
            case Resync():
                self.emit(self._resynced(effect))
                if effect.is_fork:
                    self._fail_forked(before.incarnation)
                self._notify(effect)
            case Follow(at=at):
                self._is_lost = False
                self.follower.follow(self.stored, at, self._receive)
                self._reached()

    async def _fetch(self, ask: int) -> None:
        """Bring a snapshot, however long the server is away.

        Its first page comes as any other call does, and is all that there is of most maps.
        """
        link, pages = self.link, self.stored.pages(self.follower.incarnation)
        failures = faults = 0
        async with AsyncExitStack() as stack:
            while ask == self._copy.ask:
                if pages.incarnation != self.follower.incarnation:
                    pages = self.stored.pages(self.follower.incarnation)
                try:
                    if pages.is_begun and link is self.link:
                        link = await stack.enter_async_context(self.link.apart())
                    state = await pages.fetch(link)
                except StoreLost as error:
                    self._receive(Lost(pages.incarnation, error))
                except PoolError as error:
                    faults = 0 if isinstance(error, StoreUnavailable) else faults + 1
                    if faults >= FAULTS_MAX or (faults and not getattr(error, "maybe_done", False)):
                        self._fail(error)
                    if faults <= 1:
                        self.emit(self._not_fetched(error))
                else:
                    failures = 0
                    if state is not None:
                        self._receive(Fetched(ask, state))
                        return
                    continue
                failures += 1
                await anyio.sleep(reconnect_delay(failures, self.follower.seam.dice))

    def _lose(self, error: StoreLost) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._fail(error)
            self.on_lost(error)

    # --- waiters and watchers -----------------------------------------------------------------

    def _notify(self, news: Change | Resync) -> None:
        for watcher in tuple(self._watchers):  # a watcher may end itself, or add another
            watcher(news)

    def _reached(self) -> None:
        for revision in [each for each in self._waiters if each <= self.revision]:
            for waiter in self._waiters.pop(revision):
                waiter.release()

    def _fail(self, error: PoolError) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.release(attrs.evolve(error))
        self._waiters.clear()

    def _miss(self, there: int) -> None:
        """Fail those who wait for what the server does not have.

        It may have lost a write before this copy had seen it: then its history looks unbroken.
        The first probe may have been under way before the write; the second one was not, since it
        is not sent before we are here for the first, however long our mailbox is.
        """
        for revision, waiters in list(self._waiters.items()):
            for waiter in list(waiters):
                waiter.missed = waiter.missed + 1 if revision > there else 0
                if waiter.missed > 1:
                    waiter.release(StoreLost(pool=self.stored.control.pool))
                    self._forget(revision, waiter)

    def _fail_forked(self, incarnation_before: str) -> None:
        """Fail those who wait for a revision of a history that has ended."""
        ours = self._copy.state.at.incarnation
        for revision, waiters in list(self._waiters.items()):
            for waiter in list(waiters):
                if ours == incarnation_before or waiter.incarnation != ours:
                    waiter.release(StoreLost(pool=self.stored.control.pool))
                    self._forget(revision, waiter)

    def _forget(self, revision: int, waiter: _Waiter) -> None:
        waiters = self._waiters.get(revision)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[revision]

    # --- events -------------------------------------------------------------------------------

    def _resynced(self, resync: Resync) -> MapResynced:
        return MapResynced(
            pool=self.stored.control.pool,
            map=self.stored.name,
            reason=resync.reason,
            revision=resync.revision,
            revision_before=resync.revision_before,
        )

    def _not_fetched(self, error: PoolError) -> MapNotFetched:
        return MapNotFetched(
            pool=self.stored.control.pool, map=self.stored.name, problem=str(error)
        )
