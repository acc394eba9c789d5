"""Walks over all records of a lane and puts right what no index leads to (G-05).

    rest --walk.lua: hold, slice--> judge 200 at a time --> suspicion --read again--> act --> pause
      ^          |                                                                           |
      |          +-- another node holds it: come back when its hold ends                     |
      +---------------- recount.lua, after a pass without a break <---- last slice ----------+

Records are the truth: what an index lost (a hand's DEL, a defect of ours) is made again from them.
A slice, its look-ups and the second reading are different moments, so a record is out of place
only if it reads the same before and after an index lacked it; the scripts that act compare once
more.  One node walks at a time (SetIfNotExists with an expiry, in `lane`).

Dying after any step: the hold ends, another node goes on at the cursor, and what was seen and not
acted upon is seen in the next pass.  A pass with a break in it (another walker, a connection made
anew: a restarted server has another order) does its work, but nothing is counted by it.  Late or
repeated calls: of `walk`, one slice is skipped by a pass that does not count then; all others find
the record changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import anyio
import anyio.lowlevel
import attrs

from pool.actors.context import Context, LaneState
from pool.actors.observe import CountersMended, StoreTroubled
from pool.actors.quarantine import quarantine
from pool.actors.restoring import restore, tell_restored
from pool.errors import PoolError, StoreFault, StoreLost, StoreUnavailable
from pool.model import walk as model
from pool.model.job import Options, Record
from pool.model.names import Names
from pool.model.walk import JUDGED, SLICE, Standing
from pool.store.answers import Overdue, Walked, read, recounted, walked
from pool.store.scripts import Word

SPREAD_S: Final = 0.3  # so that not all nodes ask in the same millisecond
ACT_MAX: Final = 64  # keys put right by one call: a few milliseconds of the server's time
IDENTITIES_MAX: Final = 500  # looked at with each slice
SUSPECTS_MAX: Final = 500  # told to the reaper with each slice
WAITING_MAX: Final = 50_000  # keys that wait; where there are more, nobody counts them
HANDLERS_MAX: Final = 1_000  # likewise names of handlers

Move: TypeAlias = Callable[[LaneState, str, Sequence[tuple[Overdue, Record]]], Awaitable[object]]


@attrs.define(eq=False)
class _Pass:
    """One walk over a lane, from its beginning to its end, as far as it has come."""

    cursor: str = ""
    open_at: str = "0"
    cleanup_at: str = "0"
    changes: str = ""  # as it began
    connections: int = 0  # likewise
    is_whole: bool = False  # it began at the beginning and has no break
    found: int = 0
    unassigned: int = 0
    waiting: set[bytes] = attrs.field(factory=set)  # a slice may bring a key twice
    handlers: set[str] = attrs.field(factory=set)

    def count(self, key: bytes, record: Record) -> None:
        if len(self.handlers) <= HANDLERS_MAX:
            self.handlers.add(record.handler)
        if record.state == "waiting" and len(self.waiting) <= WAITING_MAX:
            self.waiting.add(key)
        self.unassigned += record.state == "unassigned"


@attrs.define(eq=False)
class _Seen:
    """A record of a slice; what does not hold still is only a suspicion."""

    key: bytes
    text: bytes
    record: Record | None  # None: it cannot be worked on
    missing: list[str] = attrs.field(factory=list)  # indexes that lack it
    owner: Standing = "none"

    @property
    def is_odd(self) -> bool:
        return self.record is None or bool(
            model.steps(self.record, self.owner, is_missing=bool(self.missing))
        )

    @property
    def name(self) -> str:
        return self.key.decode(errors="surrogateescape")


@attrs.define(eq=False, kw_only=True)
class Walker:
    """Belongs to the sweeper; one task for each lane."""

    context: Context
    move: Move  # recovers what nobody owns
    on_suspects: Callable[[int, Sequence[str]], object]  # lane and owners without a lease

    async def run(self, number: int) -> None:
        """Walk over a lane, for ever."""
        mine = _Pass()
        uniform, rest_s = self.context.seam.dice.uniform, model.rest_s(self.context.timing.ttl_s)
        pause_s = uniform(rest_s / 2, rest_s)  # a fleet that starts has better things to do
        while True:
            await anyio.sleep(pause_s)
            state = self.context.lanes[number]
            try:
                pause_s = await self._look(state, mine)
            except PoolError as error:
                mine.is_whole, pause_s = False, self.context.timing.ttl_s
                if isinstance(error, StoreLost):
                    self.context.on_data_lost()
                elif not isinstance(error, StoreUnavailable):  # renewals tell of that
                    self._troubled(error)
            pause_s += uniform(0.0, min(SPREAD_S, pause_s / 10))

    async def _look(self, state: LaneState, mine: _Pass) -> float:
        """Take the next slice and judge it; return how long to pause."""
        context, ttl_s = self.context, self.context.timing.ttl_s
        rest_s, slack_s = model.rest_s(ttl_s), max(1.0, ttl_s / 2)
        link = context.link.at(state.lane.names.prefix)
        connections = link.connections
        call = state.lane.walk(
            state.node.name,
            hold_s=rest_s + slack_s,
            at=(mine.cursor, mine.open_at, mine.cleanup_at),
            keys_max=SLICE,
            names_max=IDENTITIES_MAX,
            found=mine.found,
        )
        told = walked(await link.call(call.script, call.keys, call.args))
        state.tell_time(told.now_ms, context.seam.clock())
        if told.held_s:
            mine.is_whole = False
            return told.held_s
        if not told.is_continued or link.connections != mine.connections:
            mine.is_whole = False
        if mine.cursor in ("", "0") or not told.is_continued:
            self._begin(mine, told, connections)
            await self._suspect_announced(state)
        mine.cursor, mine.open_at, mine.cleanup_at = told.cursor, told.open_at, told.cleanup_at
        self._suspect(state, told.suspects)
        flat = told.flat
        for i in range(0, len(flat), 2 * JUDGED):
            await self._judge(state, mine, flat[i : i + 2 * JUDGED])
            await anyio.lowlevel.checkpoint()
        if mine.cursor == "0":
            if mine.is_whole and link.connections == mine.connections:
                await self._end(state, mine, told)
            mine.found = 0
        return model.pause_s(told.records, len(context.lanes), ttl_s)

    def _begin(self, mine: _Pass, told: Walked, connections: int) -> None:
        """Begin to count.  Where another walker stood, it is no whole pass."""
        mine.is_whole = told.is_from_start
        mine.changes, mine.connections, mine.found = told.changes, connections, 0
        mine.unassigned = 0
        mine.waiting.clear()
        mine.handlers.clear()

    # --- judging ------------------------------------------------------------------------------

    async def _judge(self, state: LaneState, mine: _Pass, flat: Sequence[bytes]) -> None:
        seen = [
            _Seen(key, text, read(key, text))
            for key, text in zip(flat[::2], flat[1::2], strict=True)
        ]
        for each in seen:
            if each.record is not None:
                mine.count(each.key, each.record)
        await self._look_up(state.lane.names, [each for each in seen if each.record is not None])
        odd = [each for each in seen if each.is_odd]
        if odd:
            texts = await self.context.link.execute(
                "HMGET", state.lane.names.jobs, *(each.key for each in odd)
            )
            still = [each for each, text in zip(odd, texts, strict=True) if text == each.text]
            mine.found += len(still)
            await self._act(state, still)

    async def _look_up(self, names: Names, seen: Sequence[_Seen]) -> None:
        """Ask whether each record stands where it says, and for its owner: one command an index."""
        wanted: dict[tuple[str, ...], list[tuple[_Seen, str, bytes]]] = defaultdict(list)
        owned: dict[str, list[_Seen]] = defaultdict(list)
        for each in seen:
            record, key = each.record, each.key
            assert record is not None
            if record.owner:
                owned[record.owner].append(each)
            for index in model.indexes(record):
                match index:
                    case "pending":
                        head, member = ("ZMSCORE", names.pending), key
                    case "owned":
                        head, member = ("SMISMEMBER", names.owned(record.owner)), key
                    case "unassigned":
                        head, member = ("ZMSCORE", names.unassigned(record.handler)), key
                    case _:
                        head, member = ("ZMSCORE", names.due), b"k:" + key
                wanted[head].append((each, index, member))
        commands: list[tuple[Word, ...]] = [
            (*head, *(member for _, _, member in asked)) for head, asked in wanted.items()
        ]
        if owned:
            commands += [("ZMSCORE", names.keepalive, *owned), ("HMGET", names.cleanup, *owned)]
        replies = await self.context.link.replies_to(commands)
        for asked, reply in zip(wanted.values(), replies, strict=False):
            if isinstance(reply, StoreFault):
                self._troubled(reply)  # a key of another type: nobody can say what is missing
                continue
            if isinstance(reply, PoolError):
                raise reply
            for (each, index, _), found in zip(asked, reply, strict=True):
                if found is None or (found == 0 and index == "owned"):
                    each.missing.append(index)
        if owned:
            for reply in replies[-2:]:
                if isinstance(reply, PoolError):
                    raise reply
            for (owner, theirs), lease, claim in zip(owned.items(), *replies[-2:], strict=True):
                for each in theirs:
                    each.owner = model.standing(owner, lease is not None, claim)

    # --- acting -------------------------------------------------------------------------------

    async def _act(self, state: LaneState, odd: Sequence[_Seen]) -> None:
        """Put right what is out of place; each script looks whether it still is."""
        strays: dict[str, list[tuple[_Seen, Record]]] = defaultdict(list)
        recover: dict[str, list[tuple[_Seen, Record]]] = defaultdict(list)
        suspects: dict[str, None] = {}
        for each in odd:
            record = each.record
            if record is None:
                await quarantine(self.context, state, each.name, each.text)
                continue
            for step in model.steps(record, each.owner, is_missing=bool(each.missing)):
                match step:
                    case "restore":
                        strays[record.owner].append((each, record))
                    case "recover":
                        recover[record.owner].append((each, record))
                    case "suspect":
                        suspects[record.owner] = None
        options = await self._options(state, [each.record for each in odd if each.record])
        for owner, group in strays.items():
            for i in range(0, len(group), ACT_MAX):
                some = [(each.name, each.text, record) for each, record in group[i : i + ACT_MAX]]
                await self._alone(restore(self.context, state, owner, some, options))
        self._suspect(state, list(suspects))
        for owner, group in recover.items():
            for i in range(0, len(group), ACT_MAX):
                found = group[i : i + ACT_MAX]
                await self._alone(self._recover(state, owner, found, options))

    async def _options(self, state: LaneState, records: Sequence[Record]) -> dict[str, Options]:
        names = list({record.handler for record in records})
        if not names:
            return {}
        texts = await self.context.link.execute("HMGET", state.lane.names.handlers, *names)
        return {name: Options.parse(text or b"") for name, text in zip(names, texts, strict=True)}

    async def _recover(
        self,
        state: LaneState,
        owner: str,
        group: Sequence[tuple[_Seen, Record]],
        options: dict[str, Options],
    ) -> None:
        overdue = [
            (
                Overdue(
                    index="due",
                    key=each.name,
                    text=each.text,
                    record=record,
                    owner="gone" if owner else "none",
                    options=options[record.handler],
                ),
                record,
            )
            for each, record in group
        ]
        await self.move(state, owner, overdue)
        index = "owner" if owner else "unassigned"
        tell_restored(self.context, state, index, [each.name for each, _ in group])

    async def _alone(self, step: Awaitable[object]) -> None:
        """Do one step; what only it touches (a key of the wrong type) must not stop the others."""
        try:
            await step
        except StoreFault as error:
            self._troubled(error)

    # --- owners -------------------------------------------------------------------------------

    async def _suspect_announced(self, state: LaneState) -> None:
        """Have those who are announced as workers, and have no lease, looked after."""
        known = self.context.candidates.workers.values()
        names = [c.name_in(state.number) for c in known if c.is_in(state.number)]
        for i in range(0, len(names), IDENTITIES_MAX):
            some = names[i : i + IDENTITIES_MAX]
            leases = await self.context.link.execute("ZMSCORE", state.lane.names.keepalive, *some)
            missing = [name for name, lease in zip(some, leases, strict=True) if lease is None]
            self._suspect(state, missing)

    def _suspect(self, state: LaneState, names: Sequence[str]) -> None:
        if names:
            self.on_suspects(state.number, names[:SUSPECTS_MAX])

    # --- counting -----------------------------------------------------------------------------

    async def _end(self, state: LaneState, mine: _Pass, told: Walked) -> None:
        """Note what a whole pass found, if that differs from what is noted."""
        is_right = (mine.unassigned, len(mine.waiting)) == (told.unassigned, told.waiting)
        if (is_right and mine.found == told.astray == 0) or len(mine.handlers) > HANDLERS_MAX:
            return
        names, link = state.lane.names, self.context.link
        registered = await link.execute("HKEYS", names.handlers)
        handlers = mine.handlers | {name.decode(errors="replace") for name in registered}
        counted = len(mine.waiting) if len(mine.waiting) <= WAITING_MAX else -1
        call = state.lane.recount(
            sorted(handlers), changes=mine.changes, found=mine.found, counted=counted
        )
        before, after = recounted(await link.call(call.script, call.keys, call.args))
        if before != after:
            self.context.emit(CountersMended(lane=state.number, before=before, after=after))

    # --- telling ------------------------------------------------------------------------------

    def _troubled(self, error: PoolError) -> None:
        self.context.emit(StoreTroubled(during="walk", problem=str(error)))
