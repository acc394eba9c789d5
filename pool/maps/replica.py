"""The local copy of one replicated map, and those who wait for it or watch it.

    follower --Deltas, Probed--> +---------+ --changes--> watchers (callbacks)
    pipeline -snapshot---------> | Replica | --reached--> waiters, each with a channel of its own
                                 +---------+ --items----> readers, without waiting

What to do about a gap, a silence or a server that went back is decided in `maps/deltas.py`; this
actor performs it.

A position is of one generation of the pool, and no order of generations tells which are past.  So
of what this copy does not follow now only the server can say whether it is lost: the generation
that a wait is for is asked for when the wait begins, at each probe, and when the copy is whole.

    followed, held by the server    this copy answers, and what the server's history has
    followed, told to be lost       denied: lost.  Held: it was put back, and the owner rejoins it
    another, of whatever process    denied: lost.  Held: ours is what was lost; this copy goes there

Only a denial of after the wait has begun counts: a loss that is told late is none of what was
written since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final, TypeAlias

import anyio
import attrs

from pool import events
from pool.core.retry import reconnect_delay
from pool.errors import NotRunning, PoolError, StoreLost, StoreUnavailable, again
from pool.events import MapDamaged, MapNotFetched, MapResynced
from pool.maps.commands import ASKED_MAX, DELTAS_MAX, FOR_EVER, MapLife, StoredMap
from pool.maps.deltas import (
    Ask,
    Copy,
    Doubted,
    Effect,
    Event,
    Fetched,
    Follow,
    History,
    KeyChange,
    KeysChanged,
    ListOp,
    MapState,
    Odd,
    Op,
    Position,
    Probed,
    ResetOp,
    ResizeResult,
    Resync,
    Value,
    WriteResult,
)
from pool.maps.follower import HistoryLost, MapFollower, News, Rejoined
from pool.redis.pipeline import Pipeline
from pool.runtime.actor import Actor

FAULTS_MAX: Final = 4  # answers in a row that cannot be read, before it is the map that cannot


@attrs.define(eq=False)
class _Waiter:
    """One caller's own channel: nobody else can fill it, close it, or forget to read it."""

    at: Position
    event: anyio.Event = attrs.field(factory=anyio.Event)
    error: PoolError | None = None

    def release(self, error: PoolError | None = None) -> None:
        self.error = error
        self.event.set()


@attrs.frozen(eq=False)
class _Watching:
    """One watcher; it is told of the end of the copy, which no change comes behind."""

    hear: Watcher
    end: Callable[[], object]


@attrs.frozen
class _Found:
    """The server said what its history has of what we wait for; None if it could not say."""

    asked: tuple[_Waiter, ...]
    ours: Position  # where this copy was when it asked, which was asked for too
    history: History | None


@attrs.frozen
class _Sought:
    """Whether the server holds the pool of this generation; None if it could not say."""

    asked: tuple[_Waiter, ...]  # for positions of it
    generation: str
    followed: str  # the generation that was followed when the server was asked
    is_there: bool | None


Message: TypeAlias = News | Fetched | _Found | _Sought
Watcher: TypeAlias = Callable[[KeyChange | Resync], object]


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
    pipeline: Pipeline
    follower: MapFollower
    emit: Callable[[events.Event], object]
    on_lost: Callable[[StoreLost], object]  # the pool's data are gone; once until they are back
    _copy: Copy = attrs.field(init=False)
    _passed: dict[int, str] = attrs.field(
        init=False, factory=dict
    )  # by revision, the latest stamps
    _waiters: dict[int, set[_Waiter]] = attrs.field(init=False, factory=dict)  # by revision
    _is_asking: bool = attrs.field(init=False, default=False)  # the server, for what we wait for
    _sought: set[str] = attrs.field(init=False, factory=set)  # generations it is asked for
    _damaged: str = attrs.field(init=False, default="")  # which key was told of
    _is_failing: bool = attrs.field(init=False, default=False)  # it cannot be fetched
    _watchers: list[_Watching] = attrs.field(init=False, factory=list)
    _is_lost: bool = attrs.field(init=False, default=False)
    _is_overflowed: bool = attrs.field(init=False, default=False)

    @_copy.default
    def _nothing_yet(self) -> Copy:
        return Copy(MapState(Position(self.follower.generation, 0)))

    # --- for everybody ------------------------------------------------------------------------

    @property
    def items(self) -> Mapping[bytes, Value]:
        """The map as of `revision`: immutable, and good to keep.  Empty before the first sync."""
        return self._copy.state.items

    @property
    def revision(self) -> int:
        """How far this copy is.  It goes back only with a `Resync`, when the server did."""
        return self.at.revision

    @property
    def at(self) -> Position:
        """Where in the map's history this copy is."""
        return self._copy.state.at

    @property
    def is_synced(self) -> bool:
        """Whether the map was ever here; `synced()` waits for it."""
        return self._copy.is_synced

    @property
    def is_behind(self) -> bool:
        """Whether it cannot be brought up to date, as its map cannot be fetched."""
        return self._is_failing

    @property
    def is_closed(self) -> bool:
        """Whether it follows its map no more, and never will again."""
        return self.state in ("stopping", "ended")

    async def write(
        self, ops: Sequence[Op], *, repeatable: bool = False, life: MapLife = FOR_EVER
    ) -> WriteResult:
        """Change the map; return when the store has it.

        The local copy follows later: `wait_for(written.at)`.  For what is promised, for
        `repeatable` and for errors see `StoredMap.write`.
        """
        generation = self.follower.generation
        with self._noticing(generation):
            return await self.stored.write(
                self.pipeline, generation, ops, repeatable=repeatable, life=life
            )

    async def change_list(self, op: ListOp, *, life: MapLife = FOR_EVER) -> ResizeResult:
        """Change one list; see `StoredMap.change_list`."""
        generation = self.follower.generation
        with self._noticing(generation):
            return await self.stored.change_list(self.pipeline, generation, op, life=life)

    async def reset(self, op: ResetOp) -> ResizeResult:
        """Remove everything; see `StoredMap.reset`."""
        generation = self.follower.generation
        with self._noticing(generation):
            return await self.stored.reset(self.pipeline, generation, op)

    @contextmanager
    def _noticing(self, generation: str) -> Iterator[None]:
        """Notice that the pool's data are gone, whoever is told first."""
        self.pipeline.check_caller()
        try:
            yield
        except StoreLost as lost:
            self._receive(HistoryLost(generation, lost))
            raise

    async def synced(self) -> None:
        """Wait until the map is here.

        Raises:
            StoreFault, StoreLost, NotRunning: As for `wait_for()`.
        """
        await self._wait(Position(self.follower.generation, 0))

    async def wait_for(self, at: Position) -> None:
        """Wait until the local copy has this write, which somebody has made.

        Raises:
            StoreLost: The server does not have it: it went back since, or lost the pool.
            StoreFault: The map cannot be read.
            NotRunning: The map was closed.
        """
        await self._wait(at)

    async def _wait(self, at: Position) -> None:
        self.pipeline.check_caller()
        if self._has_passed(at):
            return
        if self.is_closed:
            raise NotRunning(state="closed")
        waiter = _Waiter(at)
        self._waiters.setdefault(at.revision, set()).add(waiter)
        try:
            self._judge()
            await waiter.event.wait()
        finally:
            self._forget(waiter)
        if waiter.error is not None:
            raise again(waiter.error)

    def _has_passed(self, at: Position) -> bool:
        if not self.is_synced or at.generation != self.at.generation:
            return False
        return at.revision == 0 or self._passed.get(at.revision) == at.stamp

    def watch(
        self, watcher: Watcher, on_end: Callable[[], object] = lambda: None
    ) -> Callable[[], None]:
        """Call `watcher` for each change from now on, and for each `Resync`; return what ends it.

        `on_end` is called when this copy has ended, after the last of them.
        It is called on the event loop, when `items` are new already.  It must not wait or raise:
        who hands changes on to someone slow needs a limit of their own.
        """
        watching = _Watching(watcher, on_end)
        self._watchers.append(watching)

        def unwatch() -> None:
            if watching in self._watchers:
                self._watchers.remove(watching)

        return unwatch

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        self._is_overflowed = self._is_asking = False
        self._sought.clear()
        self._step(Doubted("restart" if self.is_synced else "join"))

    def handle(self, message: Message) -> None:
        match message:
            case HistoryLost(generation=generation, error=error):
                self._lose(generation, error)
                self._seek()
            case Rejoined():
                self._is_lost = False
                self._step(Doubted("data lost"))
                self._seek()
            case _Found():
                self._found(message)
            case _Sought():
                self._answered(message)
            case Probed():
                self._is_lost = False  # the server holds our generation
                self._damage(message.damaged)
                self._step(message)
                self._judge()
                self._ask_for([each for each in self._waiting() if self._is_missed(each, message)])
            case _:
                self._step(message)
        if self._is_overflowed:
            self._is_overflowed = False
            self._step(Doubted("overflow"))

    def ended(self, crash: BaseException | None) -> None:
        self.follower.unfollow(self.stored)
        state = "closed" if self.is_closed else self.state
        self._fail(crash if isinstance(crash, PoolError) else NotRunning(state=state))
        if self.is_closed:
            for watching in tuple(self._watchers):
                watching.end()

    def _receive(self, message: Message) -> None:
        """Be told from outside.  Of what finds no place, only that it was missed is kept."""
        if not self.tell(message):
            self._is_overflowed = True

    def _step(self, event: Event) -> None:
        self._copy, effects = self._copy.step(event)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Ask(ask=ask):
                self.spawn(self._fetch, ask)
            case KeysChanged(changes=changes, passed=passed):
                self._passed |= {at.revision: at.stamp for at in passed}
                for old in list(self._passed)[: len(self._passed) - DELTAS_MAX]:
                    del self._passed[old]
                for change in changes:
                    self._notify(change)
                self._judge()
            case Resync():
                self.emit(self._resynced(effect))
                self._notify(effect)
            case Odd():
                self._damage(self.stored.data)
            case Follow(at=at):
                self._is_lost = False
                self.follower.follow(self.stored, at, self._receive)
                self._passed = {at.revision: at.stamp}  # of what led here the server's log tells
                self._judge()

    async def _fetch(self, ask: int) -> None:
        """Bring a snapshot, however long the server is away.

        Its first page comes as any other call does, and is all that there is of most maps.
        """
        pipeline, pages = self.pipeline, self.stored.pages(self.follower.generation)
        failures = faults = 0
        async with AsyncExitStack() as stack:
            while ask == self._copy.ask:
                if pages.generation != self.follower.generation:
                    pages = self.stored.pages(self.follower.generation)
                try:
                    if pages.is_begun and pipeline is self.pipeline:
                        pipeline = await stack.enter_async_context(self.pipeline.apart())
                    state = await pages.fetch(pipeline)
                except StoreLost as error:
                    self._receive(HistoryLost(pages.generation, error))
                except PoolError as error:
                    faults = 0 if isinstance(error, StoreUnavailable) else faults + 1
                    if faults >= FAULTS_MAX or (faults and not getattr(error, "maybe_done", False)):
                        self._fail(error)
                    if faults == 1 or (failures and not faults):  # one lost page is no news
                        self.emit(self._not_fetched(error))
                else:
                    failures, self._is_failing = 0, False
                    if state is not None:
                        self._receive(Fetched(ask, state, await self._is_ours_there(state.at)))
                        return
                    continue
                failures, self._is_failing = failures + 1, True
                await anyio.sleep(reconnect_delay(failures, self.follower.io.dice))

    async def _is_ours_there(self, theirs: Position) -> bool | None:
        """Ask whether the history that a snapshot is of has our position; None: nobody can say."""
        ours = self.at
        if not self.is_synced or ours == theirs or ours.generation != theirs.generation:
            return None
        try:
            history = await self.stored.find(self.pipeline, ours.generation, [ours.revision])
        except PoolError:
            return None
        return history.has(ours)

    def _lose(self, generation: str, error: StoreLost) -> None:
        if generation == self.follower.generation and not self._is_lost:
            self._is_lost = True
            self.on_lost(error)
            self._seek()  # now for what was followed, too

    # --- waiters and watchers -----------------------------------------------------------------

    def _notify(self, news: KeyChange | Resync) -> None:
        for watching in tuple(self._watchers):  # a watcher may end itself, or add another
            watching.hear(news)

    def _waiting(self) -> list[_Waiter]:
        return [waiter for waiters in self._waiters.values() for waiter in waiters]

    def _judge(self) -> None:
        """Answer who waits for what we have come to, or ask the server where we cannot know."""
        doubtful = []
        for revision in [each for each in self._waiters if each <= self.revision]:
            for waiter in list(self._waiters[revision]):
                if self._has_passed(waiter.at):
                    self._answer(waiter)
                elif self.is_synced and waiter.at.generation == self.at.generation:
                    doubtful.append(waiter)
        self._ask_for(doubtful)
        self._seek()

    def _is_missed(self, waiter: _Waiter, probed: Probed) -> bool:
        """Say whether the server may have lost a write before this copy had seen it.

        Then its history looks unbroken.  The probe may have been under way before the write, so it
        is no answer, only a reason to ask.
        """
        return probed.at is not None and waiter.at.revision > probed.at.revision

    def _ask_for(self, doubtful: Sequence[_Waiter]) -> None:
        if doubtful and not self._is_asking and self.state == "running":
            self._is_asking = True
            self.spawn(self._find, tuple(doubtful[:ASKED_MAX]))

    def _seek(self) -> None:
        """Ask the server for each generation that is waited for, and not followed or told lost."""
        if self.state != "running":
            return
        known = set() if self._is_lost else {self.follower.generation}
        doubtful: dict[str, list[_Waiter]] = {}
        for waiter in self._waiting():
            if waiter.at.generation not in known | self._sought:
                doubtful.setdefault(waiter.at.generation, []).append(waiter)
        for generation, asked in doubtful.items():
            self._sought.add(generation)
            self.spawn(self._ask_whether_there, generation, tuple(asked))

    async def _ask_whether_there(self, generation: str, asked: tuple[_Waiter, ...]) -> None:
        followed, is_there = self.follower.generation, None
        try:
            await self.stored.find(self.pipeline, generation, [])
            is_there = True
        except StoreLost:
            is_there = False
        except PoolError:
            is_there = None  # the next probe asks again
        self.put(_Sought(asked, generation, followed, is_there))

    def _answered(self, sought: _Sought) -> None:
        self._sought.discard(sought.generation)
        if sought.is_there and sought.generation != sought.followed:
            self._lose(sought.followed, StoreLost(pool=self.stored.control.pool))
        elif sought.is_there is False:
            for waiter in sought.asked:
                if not waiter.event.is_set():
                    self._answer(waiter, is_lost=True)
            self._seek()  # for who came meanwhile

    async def _find(self, asked: tuple[_Waiter, ...]) -> None:
        ours = self.at
        generation, history = ours.generation, None
        try:
            revisions = sorted({ours.revision, *(waiter.at.revision for waiter in asked)})
            history = await self.stored.find(self.pipeline, generation, revisions)
        except StoreLost as error:
            self._receive(HistoryLost(generation, error))
        except PoolError:
            history = None  # the next probe asks again
        self.put(_Found(asked, ours, history))

    def _found(self, found: _Found) -> None:
        """Answer those whose writes were lost; the others as soon as this copy has come as far.

        It has where the server's history is known to have what this copy is, too: else it is along
        another one, which the server has lost, or behind the log, and a snapshot must come first.
        """
        self._is_asking = False
        if found.history is None:
            return
        is_ours_there = found.history.proves(found.ours)
        reached = found.ours.revision if is_ours_there and self._has_passed(found.ours) else -1
        has_ended = found.history.revision == 0 and not self.items  # nothing leads there any more
        for waiter in found.asked:
            at = waiter.at
            if at.generation != self.at.generation or waiter.event.is_set():
                continue
            if not found.history.has(at):
                self._answer(waiter, is_lost=True)
            elif at.revision <= reached or has_ended:
                self._answer(waiter)
        if is_ours_there:
            self._judge()
        elif self._has_passed(found.ours) and self._copy.reason is None and not has_ended:
            self._step(Doubted("drift"))  # and judge when the snapshot is here

    def _answer(self, waiter: _Waiter, *, is_lost: bool = False) -> None:
        waiter.release(StoreLost(pool=self.stored.control.pool) if is_lost else None)
        self._forget(waiter)

    def _fail(self, error: PoolError) -> None:
        for waiter in self._waiting():
            waiter.release(attrs.evolve(error))
        self._waiters.clear()

    def _forget(self, waiter: _Waiter) -> None:
        waiters = self._waiters.get(waiter.at.revision)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[waiter.at.revision]

    # --- events -------------------------------------------------------------------------------

    def _damage(self, key: str) -> None:
        """Tell once that a key of ours holds what is none of ours."""
        if key and key != self._damaged:
            control = self.stored.control
            self.emit(MapDamaged(pool=control.pool, map=self.stored.name, key=key))
        self._damaged = key or (self._damaged if self._copy.is_odd_told else "")

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
