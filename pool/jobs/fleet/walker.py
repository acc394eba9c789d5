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
anew: a restarted server has another order) does its work, but nothing is counted by it.  After a
call that failed, and once where an error is what it was answered, it goes on within a TTL.  Late or
repeated calls: of `walk`, one slice is skipped by a pass that does not count then; all others find
the record changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import anyio
import anyio.lowlevel
import attrs

from pool.core import walk as model
from pool.core.options import Options
from pool.core.record import Record
from pool.core.retry import SPREAD_S
from pool.core.walk import JUDGED, SLICE, Standing
from pool.errors import PoolError, StoreFault, StoreLost, StoreUnavailable, again
from pool.events import CountersMended
from pool.jobs.context import Context, LaneState
from pool.jobs.repair import quarantine, restore, tell_restored
from pool.names import Names, out, split_pair
from pool.redis.commands.calls import read
from pool.redis.commands.recovery import Overdue
from pool.redis.commands.upkeep import Expired, IndexLooks, Recounted, Requeued, Walked

_ENDS: Final = ("", "0")  # cursors between two passes
ACT_MAX: Final = 64  # keys put right by one call: a few milliseconds of the server's time
EXPIRED: Final = 8  # ends of up to 32 answers each, by one call: a millisecond or two
BATCHES: Final = 500  # of a lane, whose deadlines are asked for by one call
IDENTITIES_MAX: Final = 500  # looked at with each slice
SUSPECTS_MAX: Final = 500  # told to the reaper with each slice
WAITING_MAX: Final = 50_000  # keys that wait; where there are more, nobody counts them
HANDLERS_MAX: Final = 1_000  # likewise names of handlers

Move: TypeAlias = Callable[[LaneState, str, Sequence[tuple[Overdue, Record]]], Awaitable[object]]


@attrs.define(eq=False)
class Pass:
    """One walk over a lane, from its beginning to its end, as far as it has come."""

    cursor: str = ""
    open_at: str = "0"
    cleanup_at: str = "0"  # empty: been through in this pass
    announced: int = 0  # how many of the workers have been looked at in passes
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
        if record.state in ("waiting", "queued") and len(self.waiting) <= WAITING_MAX:
            self.waiting.add(key)
        self.unassigned += record.state == "unassigned"


@attrs.frozen(eq=False)
class _Odd:
    """A record that is not where it says; read once, it is only a suspicion."""

    key: str
    text: bytes
    record: Record | None  # None: it cannot be worked on
    steps: tuple[model.WalkStep, ...] = ()


@attrs.define(eq=False, kw_only=True)
class Walker:
    """Belongs to the sweeper; one task for each lane."""

    context: Context
    move: Move  # recovers what nobody owns
    carry: Callable[[int, int], object]  # what a lane has for another
    mend_schedules: Callable[[LaneState], Awaitable[None]]
    tend: Callable[[int, str], object]  # a batch of a lane
    on_suspects: Callable[[int, Sequence[str]], object]  # lane and owners without a lease
    _faults: set[str] = attrs.field(init=False, factory=set)  # told since a pass began
    _troubled_in: set[int] = attrs.field(init=False, factory=set)  # lanes; by their last slices

    async def run(self, number: int) -> None:
        """Walk over a lane, for ever."""
        mine, clock = Pass(), self.context.io.clock
        rest_s = model.rest_s(self.context.timing.ttl_s)
        # A fleet that starts has better things to do.
        pause_s = self.context.io.dice.uniform(rest_s / 2, rest_s)
        while True:
            await anyio.sleep(pause_s)
            began_s = clock()
            try:
                pause_s = await self.look(self.context.lanes[number], mine)
            except PoolError as error:
                mine.is_whole, pause_s = False, self.context.timing.ttl_s
                if isinstance(error, StoreLost):
                    self.context.on_data_lost(number)
                elif not isinstance(error, StoreUnavailable):  # renewals tell of that
                    self._troubled(number, error)
            pause_s = max(0.0, pause_s - (clock() - began_s))

    async def look(self, state: LaneState, mine: Pass) -> float:
        """Take the next slice and judge it; return how long to pause."""
        context, ttl_s = self.context, self.context.timing.ttl_s
        rest_s, slack_s = model.rest_s(ttl_s), max(1.0, ttl_s / 2)
        pipeline = context.pipeline.at(state.lane.names.prefix)
        connections = pipeline.connections
        announced: list[str] = []
        if mine.cursor in _ENDS:
            mine.open_at, mine.cleanup_at = mine.open_at or "0", mine.cleanup_at or "0"
            announced = self._announced(state, mine)
        call = state.lane.walk(
            state.node.name,
            hold_s=rest_s + slack_s,
            at=(mine.cursor, mine.open_at, mine.cleanup_at),
            keys_max=SLICE,
            names_max=IDENTITIES_MAX,
            found=mine.found,
            announced=announced,
        )
        told: Walked = await pipeline.call(call)
        state.tell_time(told.now_ms, context.io.clock())
        if told.held_s:
            mine.is_whole = False
            return told.held_s + context.io.dice.uniform(0.0, SPREAD_S)
        if not told.is_continued or pipeline.connections != mine.connections:
            mine.is_whole = False
        if mine.cursor in _ENDS or not told.is_continued:
            self._begin(mine, told, connections)
        mine.cursor = told.cursor
        # Once in a pass is enough; where one has too few slices, the next goes on.
        mine.open_at = told.open_at.removeprefix("0")
        mine.cleanup_at = told.cleanup_at.removeprefix("0")
        self._suspect(state, told.suspects)
        was_troubled = state.number in self._troubled_in
        self._troubled_in.discard(state.number)
        flat = told.flat
        for i in range(0, len(flat), 2 * JUDGED):
            await self._judge(state, mine, flat[i : i + 2 * JUDGED])
            await anyio.lowlevel.checkpoint()
        if mine.cursor in _ENDS:
            if mine.is_whole and pipeline.connections == mine.connections:
                await self._end(state, mine, told)
            mine.found = 0
            if told.out:
                await self._carry(state)
            await self.mend_schedules(state)
            if told.batches:
                await self._tend(state)
        await self._expire(state)
        pause_s = model.pause_s(told.records, len(context.lanes), ttl_s)
        # An error in place of an answer may come once only: that must not cost a whole rest.
        is_new = state.number in self._troubled_in and not was_troubled
        return min(pause_s, ttl_s) if is_new else pause_s

    async def _carry(self, state: LaneState) -> None:
        """Have carried over what the lane has for others, though nothing in `due` says so."""
        lanes = range(len(self.context.lanes))
        payloads = state.lane.names.payloads
        heads = await self.context.pipeline.execute("HMGET", payloads, *map(out, lanes))
        for to, head in zip(lanes, heads, strict=True):
            first_and_next = (head or b"").split(b" ")[:2]
            if len({*first_and_next}) == 2:
                self.carry(state.number, to)

    async def _tend(self, state: LaneState) -> None:
        """Have those batches looked after that nothing in `due` leads to."""
        names, pipeline, first = state.lane.names, self.context.pipeline, 0
        while page := await pipeline.execute("ZRANGE", names.batches, first, first + BATCHES - 1):
            first += BATCHES
            leads = await pipeline.execute("ZMSCORE", names.due, *(b"b:" + each for each in page))
            for each, lead in zip(page, leads, strict=True):
                if lead is None:
                    self.tend(state.number, each.decode(errors="replace"))

    async def _expire(self, state: LaneState) -> None:
        """End the answers and the dead letters that were kept for long enough, a page at a time."""
        items: list[str] = []
        while True:
            call = state.lane.expire(items, items_max=EXPIRED)
            told: Expired = await self.context.pipeline.call(call, repeatable=True)
            if not told.letters and (not told.items or told.items == items):
                return
            items = told.items

    def _begin(self, mine: Pass, told: Walked, connections: int) -> None:
        """Begin to count.  Where another walker stood, it is no whole pass."""
        mine.is_whole = told.is_from_start
        mine.changes, mine.connections, mine.found = told.changes, connections, 0
        mine.unassigned = 0
        self._faults.clear()
        mine.waiting.clear()
        mine.handlers.clear()

    # --- judging ------------------------------------------------------------------------------

    async def _judge(self, state: LaneState, mine: Pass, flat: Sequence[bytes]) -> None:
        """Look records up and judge them; next to no object is made for a sound one."""
        keys, texts = flat[::2], flat[1::2]
        queued = [key for key in keys if key[:1] == b"\t"]
        if queued:
            await self._requeue(state, mine, queued)
        records = list(map(read, keys, texts))
        for key, record in zip(keys, records, strict=True):
            if record is not None:
                mine.count(key, record)
        missing, standings = await self._look_up(state.lane.names, keys, records)
        odd = []
        for at, record in enumerate(records):
            if record is None:
                odd.append(_Odd(keys[at].decode(errors="surrogateescape"), texts[at], None))
            elif at in missing or standings.get(record.owner, "live") in ("done", "adrift"):
                owner = standings.get(record.owner, "none")
                steps = model.steps(record, owner, is_missing=at in missing)
                odd.append(_Odd(keys[at].decode(), texts[at], record, steps))
        if odd:
            raw = [each.key.encode(errors="surrogateescape") for each in odd]
            jobs = state.lane.names.jobs
            again = await self.context.pipeline.execute("HMGET", jobs, *raw)
            still = [each for each, text in zip(odd, again, strict=True) if text == each.text]
            mine.found += len(still)
            await self._act(state, still)

    async def _requeue(self, state: LaneState, mine: Pass, names: Sequence[bytes]) -> None:
        """Look after who is queued, and after the lines; a script mends what is wrong."""
        items = []
        for name in names:
            with suppress(UnicodeDecodeError):
                items.append(split_pair(name[1:].decode()))
        for i in range(0, len(items), ACT_MAX):
            call = state.lane.requeue(items[i : i + ACT_MAX])
            told: list[Requeued] = await self.context.pipeline.call(call, repeatable=True)
            wrong = [
                item[0]
                for item, each in zip(items[i:], told, strict=False)
                if each is not Requeued.SOUND
            ]
            mine.found += len(wrong)
            if wrong:
                self.context.on_due(state.number, 0.0)
                tell_restored(self.context, state, "queue", wrong)

    async def _look_up(
        self, names: Names, keys: Sequence[bytes], records: Sequence[Record | None]
    ) -> tuple[set[int], dict[str, Standing]]:
        """Ask whether each record stands where it says, and for its owner: one command an index.

        Returns the places of those that an index lacks, and how each owner stands.
        """
        owners: dict[str, Standing] = {
            record.owner: "live" for record in records if record is not None and record.owner
        }
        looks = IndexLooks.of(names, keys, records)
        commands = looks.commands
        if owners:
            commands += [("ZMSCORE", names.keepalive, *owners), ("HMGET", names.cleanup, *owners)]
        replies = await self.context.pipeline.replies_to(commands)
        for reply in replies:
            if isinstance(reply, StoreFault):
                # As of a key of another type: nobody can say what it lacks.
                self._troubled(names.number, reply)
            elif isinstance(reply, PoolError):
                raise again(reply)
        if owners:
            leases, claims = replies[-2:]
            if not (isinstance(leases, PoolError) or isinstance(claims, PoolError)):
                for owner, lease, claim in zip(list(owners), leases, claims, strict=True):
                    owners[owner] = model.standing(owner, lease is not None, claim)
        return looks.missing(replies), owners

    # --- acting -------------------------------------------------------------------------------

    async def _act(self, state: LaneState, odd: Sequence[_Odd]) -> None:
        """Put right what is out of place; each script looks whether it still is."""
        strays: dict[str, list[tuple[str, bytes, Record]]] = defaultdict(list)
        recover: dict[str, list[_Odd]] = defaultdict(list)
        suspects: dict[str, None] = {}
        for each in odd:
            record = each.record
            if record is None:
                await quarantine(self.context, state, each.key, each.text)
                continue
            for step in each.steps:
                match step:
                    case "restore":
                        strays[record.owner].append((each.key, each.text, record))
                    case "recover":
                        recover[record.owner].append(each)
                    case "suspect":
                        suspects[record.owner] = None
        options = await self._options(state, [each.record for each in odd if each.record])
        for owner, seen in strays.items():
            for i in range(0, len(seen), ACT_MAX):
                some = seen[i : i + ACT_MAX]
                await self._alone(state, restore(self.context, state, owner, some, options))
        self._suspect(state, list(suspects))
        for owner, group in recover.items():
            for i in range(0, len(group), ACT_MAX):
                found = group[i : i + ACT_MAX]
                await self._alone(state, self._recover(state, owner, found, options))

    async def _options(self, state: LaneState, records: Sequence[Record]) -> dict[str, Options]:
        names = list({record.handler for record in records})
        if not names:
            return {}
        texts = await self.context.pipeline.execute("HMGET", state.lane.names.handlers, *names)
        return {name: Options.parse(text or b"") for name, text in zip(names, texts, strict=True)}

    async def _recover(
        self,
        state: LaneState,
        owner: str,
        group: Sequence[_Odd],
        options: dict[str, Options],
    ) -> None:
        overdue = [
            (
                Overdue(
                    index="due",
                    key=each.key,
                    text=each.text,
                    record=each.record,
                    owner="gone" if owner else "none",
                    options=options[each.record.handler],
                ),
                each.record,
            )
            for each in group
            if each.record is not None
        ]
        await self.move(state, owner, overdue)
        index = "owner" if owner else "unassigned"
        tell_restored(self.context, state, index, [each.key for each in group])

    async def _alone(self, state: LaneState, step: Awaitable[object]) -> None:
        """Do one step; what only it touches (a key of the wrong type) must not stop the others."""
        try:
            await step
        except StoreFault as error:
            self._troubled(state.number, error)

    # --- owners -------------------------------------------------------------------------------

    def _announced(self, state: LaneState, mine: Pass) -> list[str]:
        """Return the next of those who are announced as workers here."""
        known = self.context.candidates.workers.values()
        names = [each.name_in(state.number) for each in known if each.is_in(state.number)]
        first, mine.announced = mine.announced, mine.announced + IDENTITIES_MAX
        if mine.announced >= len(names):
            mine.announced = 0
        return names[first : first + IDENTITIES_MAX]

    def _suspect(self, state: LaneState, names: Sequence[str]) -> None:
        if names:
            self.on_suspects(state.number, names[:SUSPECTS_MAX])

    # --- counting -----------------------------------------------------------------------------

    async def _end(self, state: LaneState, mine: Pass, told: Walked) -> None:
        """Note what a whole pass found, if that differs from what is noted."""
        is_right = (mine.unassigned, len(mine.waiting)) == (told.unassigned, told.waiting)
        if is_right and mine.found == told.astray == 0:
            return
        names, pipeline = state.lane.names, self.context.pipeline
        registered = await pipeline.execute("HKEYS", names.handlers)
        handlers = mine.handlers | {name.decode(errors="replace") for name in registered}
        if len(handlers) > HANDLERS_MAX:  # then only the pass itself is noted
            handlers, mine.changes = set(), ""
        counted = len(mine.waiting) if len(mine.waiting) <= WAITING_MAX else -1
        call = state.lane.recount(
            sorted(handlers), changes=mine.changes, found=mine.found, counted=counted
        )
        counts: Recounted = await pipeline.call(call)
        before, after = counts.before, counts.after
        if before != after:
            self.context.emit(CountersMended(lane=state.number, before=before, after=after))

    # --- telling ------------------------------------------------------------------------------

    def _troubled(self, lane: int, error: PoolError) -> None:
        self._troubled_in.add(lane)
        problem = str(error)  # what is in the way of one record is in that of many
        if problem not in self._faults:
            self._faults.add(problem)
            self.context.trouble("walk", lane, error)
