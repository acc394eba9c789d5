"""The facts that `doctor` judges: a pool's lanes, members and server, in bounded pages.

    config, workers --> each lane: counters, heads of its indexes, members, claims
                    --> a walk over its records, a slice at a time (all, or as many as asked for)
                    --> the servers that hold them

Nothing is written, and no index is made for it.  No command looks at more than SLICE of what grows
without a bound, so none holds the server for more than a millisecond or two; how many records were
looked at is told.  The moments differ: what moves meanwhile may be told of once too often, so what
seems out of place is read again at the end, and told of if it still is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Final

import anyio
import attrs

from pool.core import journal
from pool.core.ids import order
from pool.core.journal import JournalEntry
from pool.core.options import Options
from pool.core.pauses import Asked
from pool.core.plans import PlanTurn, plan_and_version, plan_key, stored_turns
from pool.core.record import Record
from pool.core.schedules import StoredSchedule, parse
from pool.core.times import Cron, has_zones, times
from pool.errors import AuthError, PoolError, StoreFault, StoreLost, again, sentence
from pool.jobs.roster import WorkerEntry
from pool.jobs.scheduling import HOLD_S
from pool.names import PAUSED, Control, Names, lane_of
from pool.ops import stores
from pool.ops.inspect import Found, all_of, fields_of, pairs, unqueued, whole
from pool.ops.keyfacts import LEASE_CLOCK, KeyOwner, lease_time_ms
from pool.ops.members import MEMBERS_MAX, known_fleet, of_lane
from pool.ops.rates import is_unusual, usual_times
from pool.ops.refusals import Refusal, refusals_of
from pool.ops.stores import StreamRow
from pool.redis.commands.calls import read
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import generation_of_pool
from pool.redis.commands.pausing import LanePauses, without_hold
from pool.redis.commands.upkeep import IndexLooks
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Word

SLICE: Final = 500  # records, or members of an index, looked at by one command
RECORDS_MAX: Final = 20_000  # looked at, of all lanes, unless all are asked for
HANDLERS_MAX: Final = 500
HEADS: Final = 20  # of each index that is late, or waits: the first are named
KEPT_MAX: Final = 20_000  # records of a lane that are not plain, which are kept to be judged
INBOXES_MAX: Final = 500
SCHEDULES_MAX: Final = 1_000  # of a lane
SCHEDULES: Final = 64  # looked at by one command: each has the arguments of its jobs
_TOGETHER: Final = 100  # handlers asked for in one round trip
OVERLAPS_TOLD: Final = 100  # times in a row without a job, of one schedule
RECENT_MS: Final = 3_600_000  # of dead letters, and of the journal: what is new
NEWEST: Final = 500  # entries of a lane's journal
SECTIONS: Final = (
    *("memory", "persistence", "replication", "stats", "clients"),
    *("latencystats", "commandstats"),
)  # of what a server says of itself


@attrs.frozen(kw_only=True)
class Queue:
    """What waits unassigned for one handler."""

    handler: str
    count: int
    oldest_ms: float  # pool time of acceptance
    keys: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Late:
    """What of one index is late by more than the slack."""

    count: int = 0
    oldest_ms: float = 0.0  # how late the latest of all is
    keys: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class LaneFacts:
    """A lane at `now_ms` of pool time."""

    number: int
    now_ms: int
    ttl_ms: int
    is_lost: bool = False
    is_held: bool = False  # nobody is fenced: another server answers, since less than a TTL
    counters: Mapping[str, int] = attrs.field(factory=dict)
    jobs: int = 0
    late_starts: Late = attrs.field(factory=Late)  # in `pending`
    late_due: Late = attrs.field(factory=Late)  # in `due`
    late_batches: Late = attrs.field(factory=Late)  # likewise; its keys are their ids
    late_schedules: Late = attrs.field(factory=Late)  # in `scheduled`; its keys are their names
    unreadable_schedules: tuple[str, ...] = ()
    crons: frozenset[str] = frozenset()  # schedules that are cron expressions
    missed: Mapping[str, int] = attrs.field(factory=dict)  # times, by schedule, since it was made
    left_out: tuple[StoredSchedule, ...] = ()  # that fire, and had times left to the job before
    late_out: Mapping[int, float] = attrs.field(factory=dict)  # lane -> ms, messages not carried
    queues: tuple[Queue, ...] = ()
    unqueued: int = 0  # unassigned jobs that are in none of these
    handlers: Mapping[str, Options] = attrs.field(factory=dict)
    members: tuple[KeyOwner, ...] = ()  # nodes and workers
    late_claims: tuple[tuple[str, float], ...] = ()  # fenced, and nobody goes on: name, ms
    parked: int = 0
    parked_recently: int = 0  # within RECENT_MS
    parked_last: tuple[str, ...] = ()  # `ID KEY` of the newest
    records: tuple[tuple[str, Record], ...] = ()  # by name in `jobs`, those that are not plain
    starts: Mapping[str, Record] = attrs.field(factory=dict)  # of late starts
    unreadable: tuple[str, ...] = ()
    astray: tuple[str, ...] = ()  # names of records that no index leads to
    inboxes: Mapping[str, int] = attrs.field(factory=dict)
    looked: int = 0
    pauses: LanePauses = attrs.field(factory=LanePauses)
    recent: tuple[JournalEntry, ...] = ()  # of the journal, within RECENT_MS, the newest first
    lacking: Mapping[str, int] = attrs.field(factory=dict)  # members missing, by batch under way
    kept: int = 0  # ended jobs of which the outcomes are remembered
    unread: tuple[str, ...] = ()

    @property
    def slack_ms(self) -> int:
        """By how much something may be late before that means something."""
        return max(1000, self.ttl_ms)

    @property
    def has_new_leases(self) -> bool:
        """Whether a lease that shows as ended may be new: nobody has renewed since it was granted.

        So it is when a node comes to a pool where nobody was, until its first renewal.
        """
        silent_ms = self.now_ms - self.counters.get("seen", 0)
        left_ms = (round(1000 * m.lease_s) for m in self.members if m.lease_s is not None)
        return any(left < -self.slack_ms and left + silent_ms > self.ttl_ms + 1 for left in left_ms)


_LOOK_S: Final = 0.25
_RENEWED_S_MAX: Final = 25.0  # two of the longest periods, and the time of a call


@attrs.frozen(kw_only=True)
class ServerFacts:
    """What a server says of itself; a section that its user may not read is None."""

    of: str  # what it holds of the pool: the beginnings of those keys
    name: str
    version: str
    memory: Mapping[str, str] | None = None
    persistence: Mapping[str, str] | None = None
    replication: Mapping[str, str] | None = None
    stats: Mapping[str, str] | None = None
    clients: Mapping[str, str] | None = None
    latencystats: Mapping[str, str] | None = None
    commandstats: Mapping[str, str] | None = None
    cluster: Mapping[str, str] = attrs.field(factory=dict)  # empty: it is in none
    config: Mapping[str, str] = attrs.field(factory=dict)  # empty: nobody may ask for it, see SET
    refusals: tuple[Refusal, ...] = ()  # of calls of this pool's users; where we may ask
    open_slots: Mapping[int, str] = attrs.field(factory=dict)  # those that are being moved: how

    def sections(self) -> dict[str, Mapping[str, str] | None]:
        """Return all by their names, as a right to them is called."""
        return {name: getattr(self, name) for name in SECTIONS}


@attrs.frozen(kw_only=True)
class KeptPlan:
    """A plan that a job keeps, and how its last turn went."""

    name: str
    turn: PlanTurn


@attrs.frozen(kw_only=True)
class Overlap:
    """A schedule whose times make no jobs, as one runs under its key."""

    name: str
    key: str
    handler: str  # of the job that runs
    times: int  # without a job since it was accepted; at most OVERLAPS_TOLD are counted
    ran_s: float


@attrs.frozen(kw_only=True)
class PoolFacts:
    """A pool, as far as it was looked at."""

    pool: str
    pool_ttl_ms: int
    lanes: tuple[LaneFacts, ...]
    workers: Mapping[str, WorkerEntry]
    asked: Asked = attrs.field(factory=Asked)  # by operators
    servers: tuple[ServerFacts, ...] = ()
    plans: tuple[KeptPlan, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    usual: Mapping[str, float] = attrs.field(factory=dict)  # seconds a run, see `usual_times`
    streams: tuple[StreamRow, ...] = ()
    has_cron: bool = True  # cron expressions can be read here: there are time zones
    may_list: bool = True  # this user may look through names of keys, which leads to streams
    unread: tuple[str, ...] = ()
    away: Mapping[int, str] = attrs.field(factory=dict)  # lanes that do not answer, and why

    @property
    def looked(self) -> int:
        """How many records were looked at."""
        return sum(lane.looked for lane in self.lanes)

    @property
    def jobs(self) -> int:
        """How many there are."""
        return sum(lane.jobs for lane in self.lanes)


async def _renewed(pipeline: Pipeline, found: Found, lane: LaneFacts) -> None:
    """Wait until a renewal counts in a lane, as long as that may take after an absence: a claim of
    the time, and its confirmation two periods later (`lib/clock.lua`).
    """
    seen, key = lane.counters.get("seen", 0), Names(found.pool, lane.number).lane
    with anyio.move_on_after(min(lane.ttl_ms / 2000, _RENEWED_S_MAX) + 1.0):
        while whole(await pipeline.execute("HGET", key, "seen") or b"0") == seen:  # noqa: ASYNC110
            await anyio.sleep(_LOOK_S)


async def gather(
    pipeline: Pipeline,
    found: Found,
    *,
    records_max: int | None = RECORDS_MAX,
    has_streams: bool = False,
    is_patient: bool = False,
) -> PoolFacts:
    """Look at a pool; of its records at so many, None: at all; and at its streams, if asked for.

    `is_patient`: a lane whose leases may be new is looked at again when they must be renewed.

    Raises:
        PoolError: The server does not answer, or refuses.
    """
    unread = list[str]()
    told = await known_fleet(pipeline, found, unread)
    workers, asked = {info.id: info for info in told.workers}, told.asked
    each_max = None if records_max is None else max(SLICE, records_max // found.lanes)
    usual = await usual_times(pipeline, found.pool)
    lanes: dict[int, LaneFacts] = {}
    away: dict[int, str] = {}

    async def look(number: int) -> None:
        try:
            lane = await _Reading(pipeline, found, number, workers, usual).lane(each_max)
            if is_patient and lane.has_new_leases:
                await _renewed(pipeline, found, lane)
                lane = await _Reading(pipeline, found, number, workers, usual).lane(each_max)
            lanes[number] = lane
        except PoolError as error:
            if found.lanes == 1:
                raise
            away[number] = sentence(error)

    for first in range(0, found.lanes, 8):  # so that few slices are under way at a time
        async with anyio.create_task_group() as tasks:
            for number in range(first, min(first + 8, found.lanes)):
                tasks.start_soon(look, number)
    prefixes = [
        Control(found.pool).prefix,
        *(Names(found.pool, n).prefix for n in range(found.lanes)),
    ]
    places = {pipeline.at(prefix): prefix for prefix in reversed(prefixes)}
    servers = dict[str, ServerFacts]()

    async def ask(at: Pipeline, prefix: str) -> None:
        try:
            servers[prefix] = await server_of(at, prefix, found.pool)
        except PoolError as error:
            if found.lanes == 1:
                raise
            away.setdefault(prefixes.index(prefix) - 1, sentence(error))

    async with anyio.create_task_group() as tasks:
        for each in places.items():
            tasks.start_soon(ask, *each)
    away.pop(-1, None)  # the control keys are no lane, and were read before
    rows, may_list = await _streams(pipeline, found) if has_streams else ((), True)
    return PoolFacts(
        pool=found.pool,
        pool_ttl_ms=round(found.ttl_s * 1000),
        lanes=tuple(lanes[number] for number in sorted(lanes)),
        workers=workers,
        asked=asked,
        plans=tuple(await _plans(pipeline, found, lanes, unread)),
        overlaps=tuple(await _overlaps(pipeline, found, lanes, unread)),
        usual=usual,
        servers=distinct([servers[prefix] for prefix in places.values() if prefix in servers]),
        streams=rows,
        may_list=may_list,
        has_cron=has_zones(),
        unread=tuple(unread),
        away=away,
    )


async def _plans(
    pipeline: Pipeline, found: Found, lanes: Mapping[int, LaneFacts], unread: list[str]
) -> list[KeptPlan]:
    """Read the plans whose handlers are registered: two fields of each."""
    handlers = {handler for lane in lanes.values() for handler in lane.handlers}
    kept = list[KeptPlan]()
    for name in sorted({plan_and_version(handler)[0] for handler in handlers} - {""}):
        key = plan_key(name)
        n = Names(found.pool, lane_of(key, found.lanes))
        if n.number not in lanes:
            continue
        text, saved = await all_of(
            pipeline.at(n.prefix), unread, [("HGET", n.jobs, key), ("HGET", n.checkpoints, key)]
        )
        record = Record.parse(text) if text else None
        if record is not None and plan_and_version(record.handler)[0] == name:
            kept.append(KeptPlan(name=name, turn=stored_turns(saved or None).last))
    return kept


async def _overlaps(
    pipeline: Pipeline, found: Found, lanes: Mapping[int, LaneFacts], unread: list[str]
) -> list[Overlap]:
    """Look which schedules leave times out as a job of their key runs: one field of each."""
    overlaps = list[Overlap]()
    for stored in [each for lane in lanes.values() for each in lane.left_out][:SCHEDULES]:
        lane = lanes.get(stored.job.lane)
        if lane is None:
            continue
        n = Names(found.pool, lane.number)
        [text] = await all_of(pipeline.at(n.prefix), unread, [("HGET", n.jobs, stored.job.key)])
        record = Record.parse(text) if text else None
        if record is not None and record.state == "running":
            accepted_ms = record.accepted // 1000 - lane.counters.get("offset", 0)
            overlaps.append(
                Overlap(
                    name=stored.name,
                    key=stored.job.key,
                    handler=record.handler,
                    times=_times_left_out(stored, accepted_ms),
                    ran_s=(lane.now_ms - record.since_ms) / 1000,
                )
            )
    return overlaps


def _times_left_out(stored: StoredSchedule, after_ms: int) -> int:
    """Count the times of a schedule since its key's job was accepted, up to its next one."""
    since = takewhile(lambda at_ms: at_ms < stored.head.next_ms, times(stored.when, after_ms))
    return min(stored.head.overlapped, sum(1 for _ in islice(since, OVERLAPS_TOLD)))


async def _streams(pipeline: Pipeline, found: Found) -> tuple[tuple[StreamRow, ...], bool]:
    """Read a page of the streams, and say whether this user may."""
    try:
        return (await stores.streams(pipeline, found)).streams, True
    except AuthError:
        return (), False


async def server_of(pipeline: Pipeline, prefix: str, pool: str) -> ServerFacts:
    """Read what a server says of itself, as far as its user may."""
    replies = await pipeline.replies_to(
        [
            ("INFO", "memory"),
            ("INFO", "persistence"),
            ("INFO", "replication"),
            ("INFO", "stats"),
            ("INFO", "clients"),
            ("INFO", "latencystats"),
            ("INFO", "commandstats"),
            *([("CLUSTER", "INFO"), ("CLUSTER", "NODES")] if pipeline.is_of_cluster else ()),
            # A pool's own user has no right to it, and a refusal is counted: others alone may ask.
            *([("CONFIG", "GET", *SET)] if pipeline.is_default_user else ()),
        ]
    )
    *replies, set_to = replies if pipeline.is_default_user else [*replies, None]
    *replies, nodes = replies if pipeline.is_of_cluster else [*replies, None]
    told = [sections(reply) if isinstance(reply, bytes) else None for reply in replies]
    for reply in replies:
        if isinstance(reply, PoolError) and not isinstance(reply, AuthError | StoreFault):
            raise again(reply)
    server = pipeline.server
    return ServerFacts(
        of=prefix,
        name=server.name if server else "",
        version=server.version if server else "",
        memory=told[0],
        persistence=told[1],
        replication=told[2],
        stats=told[3],
        clients=told[4],
        latencystats=told[5],
        commandstats=told[6],
        cluster=(told[7] or {}) if pipeline.is_of_cluster else {},
        config=pairs_of(set_to) if isinstance(set_to, list) else {},
        refusals=await refusals_of(pipeline, pool),
        open_slots=open_slots(nodes) if isinstance(nodes, bytes) else {},
    )


def pairs_of(flat: Sequence[bytes]) -> dict[str, str]:
    """Return what CONFIG GET tells."""
    return {name: value.decode(errors="replace") for name, value in pairs(flat).items()}


def open_slots(nodes: bytes) -> dict[int, str]:
    """Return of CLUSTER NODES which slots its own node is moving, and how."""
    mine = next((line for line in nodes.decode().splitlines() if "myself" in line), "")
    found = re.findall(r"\[(\d+)-([<>])-(\w+)\]", mine)
    return {
        int(slot): f"{'MIGRATING to' if way == '>' else 'IMPORTING from'} {node}"
        for slot, way, node in found
    }


# What the server's configuration is asked for, where anybody may: INFO does not tell it.
SET: Final = (
    "min-replicas-to-write",
    "cluster-require-full-coverage",
    "client-output-buffer-limit",
)


def distinct(servers: Sequence[ServerFacts]) -> tuple[ServerFacts, ...]:
    """Return each server once, however many lanes of a cluster it holds, by the id of its data."""
    by_id = dict[str, list[ServerFacts]]()
    for each in servers:
        by_id.setdefault((each.replication or {}).get("master_replid", each.of), []).append(each)
    return tuple(
        attrs.evolve(those[0], of=" ".join(sorted(each.of for each in those)))
        for those in by_id.values()
    )


def sections(text: bytes) -> dict[str, str]:
    """Return the facts of a recorded INFO."""
    return dict(re.findall(r"^([\w|]+):([^\r\n]*)", text.decode(errors="replace"), re.MULTILINE))


# --- one lane ---------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Reading:
    """One lane as it is read."""

    _all: Pipeline
    _found: Found
    _number: int
    _workers: dict[str, WorkerEntry]
    _usual: Mapping[str, float]
    _names: Names = attrs.field(init=False)
    _pipeline: Pipeline = attrs.field(init=False)
    _unread: list[str] = attrs.field(init=False, factory=list)
    _now_ms: int = attrs.field(init=False, default=0)
    _offset_ms: int = attrs.field(init=False, default=0)  # of pool time to the server's clock

    def __attrs_post_init__(self) -> None:
        self._names = Names(self._found.pool, self._number)
        self._pipeline = self._all.at(self._names.prefix)

    async def lane(self, records_max: int | None) -> LaneFacts:
        n = self._names
        now_ms, flat, jobs, parked, newest = await self._ask(
            *(("TIME",), ("HGETALL", n.lane), ("HLEN", n.jobs), ("ZCARD", n.parked)),
            ("XREVRANGE", n.journal, "+", "-", "COUNT", NEWEST),
        )
        told = pairs(flat)
        self._offset_ms = whole(told.get("offset", b"0"))
        self._now_ms = now_ms + self._offset_ms
        ttl_ms = whole(told.get("ttl", b"0")) or round(self._found.ttl_s * 1000)
        facts = LaneFacts(
            number=self._number,
            now_ms=self._now_ms,
            ttl_ms=ttl_ms,
            is_lost=generation_of_pool(told.get("incarnation", b"").decode(errors="replace"))
            != self._found.generation,
            is_held=whole(told.get("hold", b"0"))
            > lease_time_ms(self._now_ms, *map(told.get, LEASE_CLOCK)),
            counters={n: whole(v) for n, v in told.items() if not n.startswith(PAUSED)},
            pauses=LanePauses.of(told),
            jobs=jobs,
            parked=parked,
            recent=tuple(
                journal.parse(raw, self._number)
                for raw in newest
                if order(raw[0])[0] > now_ms - RECENT_MS
            ),
        )
        members = await of_lane(self._pipeline, self._unread, n, self._workers, self._now_ms)
        facts = attrs.evolve(
            facts,
            members=members,
            late_claims=await self._claims(members, facts.slack_ms),
            **await self._heads(facts.slack_ms, facts.counters.get("unassigned", 0)),
            **await self._letters(parked),
        )
        facts = attrs.evolve(facts, **await self._schedules(facts.slack_ms))
        facts = attrs.evolve(facts, **await self._ended(told))
        facts = attrs.evolve(facts, **await self._walk(facts, records_max))
        starts = await fields_of(self._pipeline, self._unread, n.jobs, facts.late_starts.keys)
        parsed = {
            key: record
            for key, text in zip(facts.late_starts.keys, starts, strict=True)
            if text is not None and (record := Record.parse(text)) is not None
        }
        return attrs.evolve(facts, starts=parsed, unread=tuple(self._unread))

    async def _ask(self, *commands: tuple[Word, ...]) -> list[Reply]:
        replies: list[Reply] = await all_of(self._pipeline, self._unread, commands)
        return replies

    async def _claims(
        self, members: Sequence[KeyOwner], slack_ms: int
    ) -> tuple[tuple[str, float], ...]:
        """Return who was fenced, and by when its reaper should have gone on."""
        late = [
            (each.name, -1000 * each.lease_s)
            for each in members
            if each.claim and each.lease_s is not None and -1000 * each.lease_s > slack_ms
        ]
        known, cursor = {each.name for each in members}, "0"
        while len(late) < MEMBERS_MAX:  # whose place in `keepalive` is gone
            [reply] = await self._ask(
                ("HSCAN", self._names.cleanup, cursor, "COUNT", SLICE),
            )
            cursor, flat = reply or ("0", [])
            for name, claim in pairs(flat).items():
                if claim != b"done" and name != "sweeper" and name not in known:
                    scores = await self._ask(("ZMSCORE", self._names.keepalive, name))
                    if scores[0] and scores[0][0] is None:
                        late.append((name, 0.0))
            if not cursor.strip("0"):
                break
        return tuple(late)

    async def _heads(self, slack_ms: int, unassigned: int) -> dict[str, Any]:
        """Read what is late in `pending` and `due`, and what waits for each handler."""
        n, until = self._names, self._now_ms - slack_ms
        starts, start_count, due, due_count, names = await self._ask(
            ("ZRANGE", n.pending, 0, HEADS - 1, "WITHSCORES"),
            ("ZCOUNT", n.pending, "-inf", until),
            ("ZRANGE", n.due, 0, SLICE - 1, "WITHSCORES"),
            ("ZCOUNT", n.due, "-inf", until),
            ("HKEYS", n.handlers),
        )
        outs = {
            whole(member[2:]): self._now_ms - float(score)
            for member, score in zip(due[::2], due[1::2], strict=True)
            if member[:2] == b"o:"
        }

        def first(kind: bytes) -> list[bytes]:
            found = [
                (member[2:], score)
                for member, score in zip(due[::2], due[1::2], strict=True)
                if member[:2] == kind
            ]
            return [word for pair in found[:HEADS] for word in pair]

        handlers = sorted(name.decode(errors="replace") for name in names)[:HANDLERS_MAX]
        texts = await fields_of(self._pipeline, self._unread, n.handlers, handlers)
        queues, is_all = await self._queues(handlers), len(names) < HANDLERS_MAX
        counts = [queue.count for queue in queues]
        return {
            "late_starts": self._late(starts, start_count, slack_ms),
            "late_due": self._late(first(b"k:"), due_count, slack_ms),
            "late_batches": self._late(first(b"b:"), HEADS, slack_ms),
            "late_out": {to: late_ms for to, late_ms in outs.items() if late_ms > slack_ms},
            "handlers": {
                name: Options.parse(text or b"") for name, text in zip(handlers, texts, strict=True)
            },
            "queues": queues,
            "unqueued": await unqueued(self._pipeline, n, handlers, counts, unassigned)
            if is_all
            else 0,
        }

    def _late(
        self, flat: Sequence[bytes], count: int, slack_ms: float, now_ms: int | None = None
    ) -> Late:
        now_ms = self._now_ms if now_ms is None else now_ms
        late = [
            (key, now_ms - float(score)) for key, score in zip(flat[::2], flat[1::2], strict=True)
        ]
        late = [(key, late_ms) for key, late_ms in late if late_ms > slack_ms]
        keys = tuple(key.decode(errors="surrogateescape") for key, _ in late)
        oldest_ms = max((late_ms for _, late_ms in late), default=0.0)
        # Beyond those that were looked at there may be members of another kind.
        count = count if len(keys) >= HEADS else len(keys)
        return Late(count=count, oldest_ms=oldest_ms, keys=keys)

    async def _queues(self, handlers: Sequence[str]) -> tuple[Queue, ...]:
        names = [self._names.unassigned(handler) for handler in handlers]
        found = list[Queue]()
        for at in range(0, len(names), _TOGETHER):
            some = names[at : at + _TOGETHER]
            counts = await self._ask(*(("ZCARD", name) for name in some))
            waiting = [i for i, count in enumerate(counts) if count]
            heads = await self._ask(
                *(("ZRANGE", some[i], 0, HEADS - 1, "WITHSCORES") for i in waiting)
            )
            for i, head in zip(waiting, heads, strict=True):
                found.append(
                    Queue(
                        handler=handlers[at + i],
                        count=int(str(counts[i])),
                        oldest_ms=without_hold(float(head[1])) / 1000 if head else self._now_ms,
                        keys=tuple(key.decode(errors="surrogateescape") for key in head[::2]),
                    )
                )
        return tuple(found)

    async def _letters(self, parked: int) -> dict[str, Any]:
        if not parked:
            return {}
        n = self._names
        recently, last = await self._ask(
            ("ZCOUNT", n.parked, self._now_ms - RECENT_MS, "+inf"),
            ("ZRANGE", n.parked, -HEADS, -1),
        )
        names = tuple(name.decode(errors="surrogateescape") for name in reversed(last))
        return {"parked_recently": recently, "parked_last": names}

    async def _ended(self, told: Mapping[str, bytes]) -> dict[str, Any]:
        """Read how many outcomes are remembered, and which batches under way lack members."""
        n = self._names
        kept, newest = await self._ask(
            ("ZCARD", n.kept), ("ZRANGE", n.batches, 0, HEADS - 1, "REV")
        )
        lane = Lane(n, told.get("incarnation", b"").decode(errors="replace"))
        lacking = dict[str, int]()
        for raw in newest:
            batch_id = raw.decode(errors="replace")
            try:
                looked = await self._pipeline.call(
                    lane.batch_look(batch_id, members_max=0), repeatable=True
                )
            except StoreFault as error:
                self._unread.append(f"{n.batch(batch_id)}: {error.problem}")
                continue
            except StoreLost:
                break  # which is told by itself
            if looked is not None and looked.head.missing and not looked.head.is_settled:
                lacking[batch_id] = looked.head.missing
        return {"kept": kept, "lacking": lacking}

    async def _schedules(self, slack_ms: int) -> dict[str, Any]:
        """Read which schedules are late, cannot be read, and have missed times."""
        n, late_ms = self._names, slack_ms + 1000 * HOLD_S
        wall_ms = self._now_ms - self._offset_ms  # by which schedules go
        heads, count = await self._ask(
            ("ZRANGE", n.scheduled, 0, HEADS - 1, "WITHSCORES"),
            ("ZCOUNT", n.scheduled, "-inf", wall_ms - late_ms),
        )
        missed, unreadable, cursor, looked = dict[str, int](), list[str](), "0", 0
        crons, left_out = set[str](), list[StoredSchedule]()
        while looked < SCHEDULES_MAX:
            [reply] = await self._ask(("HSCAN", n.schedules, cursor, "COUNT", SCHEDULES))
            cursor, flat = reply or ("0", [])
            looked += len(flat) // 2
            for raw, text in zip(flat[::2], flat[1::2], strict=True):
                name = raw.decode(errors="surrogateescape")
                stored = parse(name, text)
                if stored is None:
                    unreadable.append(name)
                    continue
                if isinstance(stored.when, Cron):
                    crons.add(name)
                if jobless := stored.head.missed + stored.head.overlapped:
                    missed[name] = jobless
                if stored.head.overlapped and stored.job.is_left_out and not stored.head.is_paused:
                    left_out.append(stored)
            if not cursor.strip("0"):
                break
        return {
            "late_schedules": self._late(heads, count, late_ms, wall_ms),
            "unreadable_schedules": tuple(unreadable),
            "missed": missed,
            "left_out": tuple(left_out),
            "crons": frozenset(crons),
        }

    # --- the walk ---

    async def _walk(self, facts: LaneFacts, records_max: int | None) -> dict[str, Any]:
        """Walk over the records, keep those that are not plain, and look where each should stand.

        What seems out of place, or cannot be read, is read again when the walk has ended.
        """
        standing = {each.name: each.standing for each in facts.members}
        cursor, looked, kept = "0", 0, dict[str, Record]()
        odd, spoilt = dict[bytes, bytes](), dict[bytes, bytes]()
        while True:
            [reply] = await self._ask(("HSCAN", self._names.jobs, cursor, "COUNT", SLICE))
            cursor, flat = reply or ("0", [])
            names: list[bytes] = flat[::2]
            texts: list[bytes] = flat[1::2]
            looked += len(names)
            parsed = list(map(read, names, texts))
            for name, text, record in zip(names, texts, parsed, strict=True):
                if record is None:
                    spoilt[name] = text
                elif len(kept) < KEPT_MAX and not (
                    _is_plain(record, facts, standing)
                    and not is_unusual(record, self._usual, self._now_ms)
                ):
                    kept[name.decode()] = record
            for name in await self._missing(names, parsed):
                odd[name] = texts[names.index(name)]
            if not cursor.strip("0") or (records_max is not None and looked >= records_max):
                break
        messages = [key for key, record in kept.items() if "i" in record.flags][:INBOXES_MAX]
        lengths = await self._ask(*(("LLEN", self._names.inbox(key)) for key in messages))
        return {
            "records": tuple(kept.items()),
            "unreadable": await self._still(spoilt),
            "astray": await self._still(odd),
            "inboxes": dict(zip(messages, lengths, strict=True)),
            "looked": looked,
        }

    async def _still(self, seen: Mapping[bytes, bytes]) -> tuple[str, ...]:
        """Return those of which the record is the same as before, and no index has it by now."""
        found = list[str]()
        items = list(seen.items())
        for at in range(0, len(items), SLICE):
            names = [name for name, _ in items[at : at + SLICE]]
            texts = await fields_of(self._pipeline, self._unread, self._names.jobs, names)
            same = [
                name
                for name, text, (_, before) in zip(names, texts, items[at:], strict=False)
                if text == before
            ]
            parsed = [read(name, seen[name]) for name in same]
            missing = set(await self._missing(same, parsed))
            found += [
                name.decode(errors="surrogateescape")
                for name, record in zip(same, parsed, strict=True)
                if record is None or name in missing
            ]
        return tuple(found)

    async def _missing(
        self, names: Sequence[bytes], records: Sequence[Record | None]
    ) -> list[bytes]:
        """Return the names of the records that an index lacks which should have them."""
        looks = IndexLooks.of(self._names, names, records)
        replies = await self._ask(*looks.commands)
        return [names[at] for at in sorted(looks.missing(replies))]


def _is_plain(record: Record, facts: LaneFacts, standing: Mapping[str, str]) -> bool:
    """Say whether no rule can have anything to say of a record by itself."""
    if record.state == "queued" or record.intent or record.marks.deaths or record.attempt > 1:
        return False
    if record.error or set(record.flags) & set("ihn"):
        return False
    if record.owner and standing.get(record.owner, "gone") != "live":
        return False
    options = facts.handlers.get(record.handler)
    if options is None and len(facts.handlers) < HANDLERS_MAX:
        return False  # nobody ever registered it
    return record.state != "running" or options is None or options.limit_s is None
