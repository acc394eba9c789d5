"""Pausing and resuming, cordoning and draining: what an operator asks for from anywhere.

Paused means accepted, never granted.  What stands where:

    `workers`   !paused ...   who, since when, why: each node has a copy; written first, gone last
    each lane   paused        what all that grants asks (lib/pause.lua); of a key only its own lane

    nothing --write !paused--> asked --pause in each lane--> paused --resume in each lane--> asked
       ^                                                                                       |
       +-------------------------------- take !paused away ------------------------------------+

Dying after any step, or a lane that does not answer, leaves `asked`: some lanes grant, the others
do not.  It is told: by the report, and by `doctor`, which compares the two; and doing it again,
either way, completes it.  A resume that could not reach a lane leaves the entry with `is_over`.  Of
two at once each lane, and the entry, has the word of whoever came there later; where these differ
that is told likewise.  A late copy of a call is as a repeat.

Nodes see the entry go, or be over, and pull at once in all lanes: what waited goes on in its order.
Where that is lost on the way the next renewal tells that keys wait.  What grants asks the lane in
its own script: so a grant is before a pause, and goes on as what runs does, or behind it, and
leaves its job unassigned.  So does what takes over from the dead, retries, and comes of delays,
lines, other lanes, schedules and letters: all of that is made, and waits.  Times to begin by go on
counting.  A service that runs is not moved to a better place meanwhile; one that its worker gives
up waits.

A lane that lost its data is paused again by the step that makes it anew (join.lua), as its maker's
copy of `workers` says: before that it grants nothing, as it is not there.  Of a pool that was lost
as a whole, who makes it anew writes what was asked for first.  What remains is what the maker has
not heard of: a pause, or a resume, of the moment before, or a copy that was fetched between the two
steps.  `doctor` compares, and tells it.

A cordon is an entry alone:

    !cordon ID --the node's copy--> it takes 0 keys, which each of its renewals says anew, then its
                                    entry in `workers`, which is how others know
               --is_drain---------> it drains, as when it is told to end; as a client it stays

So no renewal opens it again, and one that does not hear goes on: who cordons waits for the entries
of the workers, and tells of those that do not say so.  A cordon's entry goes when it is taken back,
when its node leaves, or with the next one when its node is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, TypeAlias

import anyio
import attrs

from pool import checks
from pool.core.pauses import (
    HANDLERS_PAUSED_MAX,
    KEYS_PAUSED_MAX,
    REASON_MAX,
    Asked,
    Cordon,
    Pause,
    is_asked,
    parse,
)
from pool.errors import InvalidOption, NoSuchMember, PoolError, TooManyPaused, shown
from pool.jobs.roster import WorkerEntry
from pool.maps.commands import StoredMap
from pool.maps.deltas import Delete, Op, Set, Value
from pool.names import WORKERS, Control, Names, check_handler, check_key, lane_of
from pool.redis.commands.lane import Lane
from pool.redis.pipeline import Pipeline

Verb: TypeAlias = Literal["pause", "resume"]
LOOK_S, LOOK_MAX_S = 0.02, 1.0  # between two looks whether a cordon has been heard
HEARD_S: Final = 10.0  # by then it has been, or its node does not hear
_STALE_MAX: Final = 64  # entries of those who are gone, taken away at once
_MOVES_MAX: Final = 8  # handlers that a key may have had, one after another, while it is asked


@attrs.frozen(kw_only=True)
class PauseReport:
    """What became of pausing or resuming; do it again if it is not complete.

    `lanes` were to be told; `missed` names those that were not reached, and why: they go on as
    before.
    """

    pause: Pause
    lanes: int
    missed: Mapping[int, str]

    @property
    def is_complete(self) -> bool:
        """Whether every lane was reached."""
        return not self.missed


@attrs.frozen(kw_only=True)
class CordonReport:
    """Which workers are meant, and which of them have not said yet that they heard it."""

    cordon: Cordon
    workers: tuple[str, ...]
    unheard: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all have heard it."""
        return not self.unheard


@attrs.frozen
class _Entries:
    """The `workers` map at a moment."""

    asked: Asked
    workers: tuple[WorkerEntry, ...]

    def of(self, member: str) -> tuple[WorkerEntry, ...]:
        """Return a worker, or all of a node."""
        return tuple(each for each in self.workers if member in (each.id, each.node))


def named(handler: object, key: object) -> Pause:
    """Return what is meant by the arguments of a call."""
    if handler is not None and key is not None:
        problem = "name a handler or a key, not both"
        raise InvalidOption(option="key", value=shown(key), problem=problem)
    if handler is not None:
        check_handler(handler)
    if key is not None:
        check_key(key)
    assert handler is None or isinstance(handler, str)
    assert key is None or isinstance(key, str)
    return Pause(handler=handler, key=key)


def _reason(reason: object) -> str:
    # What cannot be sent, such as half of a pair, is not worth refusing a pause for.
    return checks.text("reason", reason)[:REASON_MAX].encode(errors="replace").decode()


@attrs.frozen(kw_only=True)
class Operator:
    """Carries it out, for a node or for the command line."""

    pipeline: Pipeline
    control: Control
    generation: str
    lanes: int
    by: str  # who asks

    # --- pausing --------------------------------------------------------------------------------

    async def pauses(self) -> tuple[Pause, ...]:
        """Return what is paused, the oldest first."""
        asked = (await self._entries()).asked
        return tuple(sorted(asked.pauses.values(), key=lambda each: each.since_ms))

    async def pause(self, pause: Pause, reason: str) -> PauseReport:
        """Grant nothing of it any more; again it completes what was begun."""
        asked = (await self._entries()).asked
        standing = asked.pauses.get(pause.entry)
        if standing is None or standing.is_over:
            self._check_room(pause, asked.pauses.values())
            now_ms = await self._now_ms()
            standing = attrs.evolve(pause, since_ms=now_ms, by=self.by, reason=_reason(reason))
            await self._write(Set(standing.entry, standing.pack()))
        return await self._tell("pause", standing)

    async def resume(self, pause: Pause) -> PauseReport:
        """Grant it again, where nothing else keeps it; again it completes what was begun."""
        standing = (await self._entries()).asked.pauses.get(pause.entry, pause)
        report = await self._tell("resume", standing)
        if report.is_complete:
            await self._write(Delete(pause.entry))
        else:
            await self._write(Set(pause.entry, attrs.evolve(standing, is_over=True).pack()))
        return report

    def _check_room(self, pause: Pause, standing: Collection[Pause]) -> None:
        most = {"handler": HANDLERS_PAUSED_MAX, "key": KEYS_PAUSED_MAX}.get(pause.what)
        if most is not None and sum(each.what == pause.what for each in standing) >= most:
            raise TooManyPaused(what=pause.what, paused_max=most)

    async def _tell(self, verb: Verb, pause: Pause) -> PauseReport:
        numbers = range(self.lanes)
        if pause.what == "key":
            mine = lane_of(pause.name, self.lanes)
            numbers = range(mine, mine + 1)
        missed: dict[int, str] = {}

        async def tell(number: int) -> None:
            try:
                await self._tell_lane(verb, pause, Names(self.control.pool, number))
            except PoolError as error:
                missed[number] = str(error)

        async with anyio.create_task_group() as tasks:
            for number in numbers:
                tasks.start_soon(tell, number)
        return PauseReport(pause=pause, lanes=len(numbers), missed=dict(sorted(missed.items())))

    async def _tell_lane(self, verb: Verb, pause: Pause, names: Names) -> None:
        pipeline, handler = self.pipeline.at(names.prefix), "-"
        generation = await pipeline.execute("HGET", names.lane, "incarnation") or b""
        lane = Lane(names, generation.decode(errors="replace"))
        for _ in range(_MOVES_MAX):
            told = await pipeline.call(lane.pause(verb, pause, handler), repeatable=True)
            if told.is_full:
                most = KEYS_PAUSED_MAX if pause.what == "key" else HANDLERS_PAUSED_MAX
                raise TooManyPaused(what=pause.what, paused_max=most)
            if not told.moved_on:
                return
            handler = told.moved_on

    # --- cordons --------------------------------------------------------------------------------

    async def cordon(
        self, member: str, reason: str, *, is_drain: bool = False, wait_s: float = HEARD_S
    ) -> CordonReport:
        """Have a node, or a worker, take no keys; or give up those that it has, and leave."""
        entries = await self._entries()
        meant = self._meant(entries, member)
        standing = entries.asked.cordons.get(member)
        if standing is None or (is_drain and not standing.is_drain):
            now_ms = await self._now_ms()
            standing = Cordon(
                id=member, since_ms=now_ms, by=self.by, reason=_reason(reason), is_drain=is_drain
            )
            await self._write(Set(standing.entry, standing.pack()), *self._stale(entries))
        ids = tuple(each.id for each in meant)
        return CordonReport(
            cordon=standing,
            workers=ids,
            unheard=await self._heard(
                ids, lambda each: each.is_draining or (each.is_cordoned and not is_drain), wait_s
            ),
        )

    async def uncordon(self, member: str, *, wait_s: float = HEARD_S) -> CordonReport:
        """Have it take keys again; a drain cannot be taken back."""
        entries = await self._entries()
        standing = entries.asked.cordons.get(member)
        if standing is None:
            meant = self._meant(entries, member)
            return CordonReport(
                cordon=Cordon(id=member), workers=tuple(each.id for each in meant), unheard=()
            )
        if standing.is_drain:
            problem = "it drains, and that cannot be taken back: start another one"
            raise InvalidOption(option="member", value=member, problem=problem)
        await self._write(Delete(standing.entry), *self._stale(entries))
        left = attrs.evolve(
            entries.asked,
            cordons={id_: each for id_, each in entries.asked.cordons.items() if id_ != member},
        )
        ids = tuple(e.id for e in entries.of(member) if not left.cordon_of(e.id, e.node))
        unheard = await self._heard(ids, lambda each: not each.is_cordoned, wait_s)
        return CordonReport(cordon=standing, workers=ids, unheard=unheard)

    async def cordons(self) -> tuple[Cordon, ...]:
        """Return who is cordoned, or was told to drain, the oldest first."""
        cordons = (await self._entries()).asked.cordons
        return tuple(sorted(cordons.values(), key=lambda each: each.since_ms))

    def _meant(self, entries: _Entries, member: str) -> tuple[WorkerEntry, ...]:
        meant = entries.of(member)
        if not meant:
            raise NoSuchMember(member=member)
        return meant

    def _stale(self, entries: _Entries) -> list[Op]:
        """Return what takes the entries away of those who are no more."""
        there = {each for info in entries.workers for each in (info.id, info.node)}
        gone = [each.entry for each in entries.asked.cordons.values() if each.id not in there]
        return [Delete(entry) for entry in gone[:_STALE_MAX]]

    async def _heard(
        self, ids: Collection[str], has_heard: Callable[[WorkerEntry], bool], wait_s: float
    ) -> tuple[str, ...]:
        """Wait until the entries of workers say that they have heard; return whose do not."""
        unheard, look_s = tuple(ids), LOOK_S
        with anyio.move_on_after(wait_s):
            while unheard:
                there = {each.id: each for each in (await self._entries()).workers}
                unheard = tuple(i for i in unheard if i in there and not has_heard(there[i]))
                if unheard:
                    await anyio.sleep(look_s)
                    look_s = min(2 * look_s, LOOK_MAX_S)  # each look fetches the whole map
        return unheard

    # --- the map --------------------------------------------------------------------------------

    async def _entries(self) -> _Entries:
        stored = StoredMap(self.control, WORKERS)
        items = (await stored.snapshot(self.pipeline, self.generation)).items
        infos = [WorkerEntry.parse(text) for name, text in items.items() if not is_asked(name)]
        workers = tuple(info for info in infos if info is not None)
        return _Entries(parse(_asked(items)), workers)

    async def _write(self, *ops: Op) -> None:
        stored = StoredMap(self.control, WORKERS)
        await stored.write(self.pipeline, self.generation, ops, repeatable=True)

    async def _now_ms(self) -> int:
        now_ms: int = await self.pipeline.at(self.control.config).execute("TIME")
        return now_ms


def _asked(items: Mapping[bytes, Value]) -> list[tuple[bytes, Value]]:
    return [(name, text) for name, text in items.items() if is_asked(name)]
