"""What a pool looks like from outside: read straight from Redis, changing nothing.

Every command is O(1), or bounded by a limit below; no key is searched for.  The commands are not
one transaction, so that counts which change meanwhile may be off by the few jobs that moved.  What
cannot be read is named, and the rest is shown: a key of another type, a lane that does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import attrs

from pool.core.ids import number_or
from pool.core.lifecycle import State
from pool.core.record import Outcome, Record
from pool.errors import ConfigError, PoolError, StoreFault, again
from pool.names import PAUSED, Control, Names, lane_of
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import PROTOCOL, check_protocol
from pool.redis.commands.talk import Looked, More
from pool.redis.io.system import Reply, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Word
from pool.redis.url import Url
from pool.settings import Settings

HANDLERS_MAX: Final = 200  # whose backlogs are looked at
_UNQUEUED_TRIES: Final = 5
_COUNTS: Final = frozenset({"HLEN", "ZCARD", "SCARD", "XLEN"})
_LOOKS: Final = 128  # jobs asked for in one call
# Fields of `lane` that are not counters of what happened.
FACTS: Final = {
    *(
        "stamp",
        "seen",
        "lease",
        "hold",
        "ttl",
        "term",
        "behind",
        "incarnation",
        "unassigned",
        "waiting",
    ),
    *("walk", "astray", "offset", "turn", "begun", "run", "silences", "claim", "paced", "reached"),
    *("results", "follow", "paused", "paused_at"),
}


@attrs.frozen(kw_only=True)
class Found:
    """How a pool was made."""

    pool: str
    protocol: int
    lanes: int
    generation: str
    ttl_s: float

    async def lane(self, pipeline: Pipeline, number: int) -> Lane:
        """Return what builds the calls of one lane."""
        names = Names(self.pool, number)
        told = await pipeline.execute("HGET", names.lane, "incarnation")
        return Lane(names, (told or b"").decode(errors="replace"))


@attrs.frozen(kw_only=True)
class Oldest:
    """The job that has waited longest for its start."""

    key: str
    state: State
    handler: str
    owner: str
    age_s: float  # since it was accepted


@attrs.frozen(kw_only=True)
class View:
    """A pool at one moment."""

    states: dict[str, int]  # jobs by state
    waiting_for: dict[str, int]  # unassigned jobs, by handler; "": of those never registered
    oldest: Oldest | None
    overdue_s: float  # by how much the most overdue start, retry or limit is late; 0: none is
    astray: int  # jobs that the last walk over all of them found where no index led to them
    parked: int
    counters: dict[str, int]
    ttl_s: float  # the longest that a lane goes by
    pool_ttl_s: float = 0.0
    lanes_apart: tuple[int, ...] = ()  # that go by another TTL than the pool's
    unread: tuple[str, ...] = ()  # lanes that did not answer and keys of another type, and why


@asynccontextmanager
async def opened(pool: str, url: Url) -> AsyncIterator[tuple[Pipeline, Found]]:
    """Open a line to a pool that is to be looked at, and not founded by that.

    Raises:
        StoreUnavailable, AuthError, UnsupportedServer: The server cannot be asked.
        WrongProtocol: The pool was made by an incompatible version of this library.
        ConfigError: There is no such pool, or the address cannot work.
    """
    at = url.at(Control(pool).prefix)
    pipeline = await Pipeline.open(SystemIO(), at, op_timeout_s=Settings().op_timeout_s)
    try:
        found = await find(pipeline, pool)
        if found is None:
            problem = f"this server has no pool {pool!r}: no node has ever joined it"
            raise ConfigError(setting="pool", problem=problem)
        yield pipeline, found
    finally:
        await pipeline.aclose(1.0)


async def find(pipeline: Pipeline, pool: str) -> Found | None:
    """Return how the pool was made, or None if this server has none of that name.

    Raises:
        WrongProtocol: It was made by an incompatible version of this library.
    """
    control = Control(pool)
    fields = await pipeline.execute(
        "HMGET", control.config, "protocol", "lanes", "incarnation", "ttl"
    )
    protocol, lanes, generation, ttl = fields
    if protocol is not None:
        check_protocol(pool, number_or(-1, protocol))
    if None in (protocol, lanes, generation):
        return None
    if not whole(lanes):
        return None  # of another hand
    return Found(
        pool=pool,
        protocol=PROTOCOL,
        lanes=whole(lanes),
        generation=generation.decode(errors="replace"),
        ttl_s=whole(ttl or b"") / 1000,
    )


async def view(pipeline: Pipeline, found: Found) -> View:
    """Return what the pool looks like now.

    Raises:
        PoolError: No lane can be asked.
    """
    views: dict[int, View] = {}
    troubles: dict[int, PoolError] = {}

    async def look(number: int) -> None:
        try:
            views[number] = await _lane(pipeline, Names(found.pool, number))
        except PoolError as error:
            troubles[number] = error

    async with anyio.create_task_group() as tasks:
        for number in range(found.lanes):
            tasks.start_soon(look, number)
    if not views:
        raise again(troubles[min(troubles)])
    lanes = [views[number] for number in sorted(views)]
    unread = [f"lane {number}: {error}" for number, error in sorted(troubles.items())]
    states: Counter[str] = Counter()
    waiting_for: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    for lane in lanes:
        states.update(lane.states)
        waiting_for.update(lane.waiting_for)
        counters.update(lane.counters)
    oldest = [lane.oldest for lane in lanes if lane.oldest is not None]
    return View(
        states=dict(states),
        waiting_for=dict(waiting_for),
        oldest=max(oldest, key=lambda each: each.age_s, default=None),
        overdue_s=max(lane.overdue_s for lane in lanes),
        astray=sum(lane.astray for lane in lanes),
        parked=sum(lane.parked for lane in lanes),
        counters=dict(counters),
        ttl_s=max(lane.ttl_s for lane in lanes),
        pool_ttl_s=found.ttl_s,
        lanes_apart=tuple(
            number for number in sorted(views) if views[number].ttl_s not in (0, found.ttl_s)
        ),
        unread=(*unread, *(each for lane in lanes for each in lane.unread)),
    )


async def outcomes(
    pipeline: Pipeline, found: Found, jobs: Sequence[tuple[str, str]]
) -> list[Outcome | Record | None]:
    """Return how these jobs (key, id) are or ended, in their order; None: nothing is known."""
    answers: dict[tuple[str, str], Looked] = {}
    for number in range(found.lanes):
        mine = [job for job in jobs if lane_of(job[0], found.lanes) == number]
        while mine:
            some = mine[:_LOOKS]
            call = (await found.lane(pipeline, number)).look(some)
            reply = await pipeline.call(call, repeatable=True)
            answers.update(zip(some, reply, strict=True))
            mine = [job for job in some if type(answers[job]) is More] + mine[_LOOKS:]
    told = [answers[job] for job in jobs]
    return [each if isinstance(each, Outcome | Record) else None for each in told]


# --- one lane -------------------------------------------------------------------------------


async def _lane(pipeline: Pipeline, n: Names) -> View:
    pipeline = pipeline.at(n.prefix)  # its clock, above all: TIME has no key
    unread: list[str] = []
    now_ms, fields, total, pending, parked, names, heads = await all_of(
        pipeline,
        unread,
        [
            ("TIME",),
            ("HGETALL", n.lane),
            ("HLEN", n.jobs),
            ("ZCARD", n.pending),
            ("ZCARD", n.parked),
            ("HKEYS", n.handlers),
            ("ZRANGE", n.pending, 0, 0, "WITHSCORES"),
        ],
    )
    [due] = await all_of(pipeline, unread, [("ZRANGE", n.due, 0, 0, "WITHSCORES")])
    facts = pairs(fields)
    now_ms += whole(facts.get("offset", b"0"))  # pool time
    waiting, unassigned = (whole(facts.get(name, b"0")) for name in ("waiting", "unassigned"))
    handlers = sorted(name.decode(errors="replace") for name in names)[:HANDLERS_MAX]
    backlogs = await all_of(pipeline, unread, [("ZCARD", n.unassigned(name)) for name in handlers])
    firsts = await all_of(
        pipeline, [], [("ZRANGE", n.unassigned(name), 0, 0) for name in handlers if unassigned]
    )
    is_all = len(names) <= HANDLERS_MAX
    left = await unqueued(pipeline, n, handlers, backlogs, unassigned) if is_all else 0
    late_ms = [now_ms - float(head[1]) for head in (heads, due) if head]
    return View(
        states={
            "pending": pending,
            "running": max(0, total - pending - waiting - unassigned),
            "waiting": waiting,
            "unassigned": unassigned,
        },
        waiting_for=_backlogs(handlers, backlogs, left),
        oldest=await _oldest(
            pipeline, n, [head[0] for head in (heads, *firsts) if head], now_ms, unread
        ),
        overdue_s=max(0.0, *late_ms, 0.0) / 1000,
        astray=whole(facts.get("astray", b"0")),
        parked=parked,
        counters={
            name: whole(v)
            for name, v in facts.items()
            if name not in FACTS and not name.startswith(PAUSED)
        },
        ttl_s=whole(facts.get("ttl", b"0")) / 1000,
        unread=tuple(unread),
    )


def _backlogs(handlers: Sequence[str], counts: Sequence[int], left: int) -> dict[str, int]:
    """Return the unassigned jobs by handler; what is left over waits for unregistered names."""
    found = {handler: n for handler, n in zip(handlers, counts, strict=True) if n}
    return {**found, "": left} if left > 0 else found


async def unqueued(
    pipeline: Pipeline, n: Names, handlers: Sequence[str], counts: Sequence[int], unassigned: int
) -> int:
    """Return how many unassigned jobs are in no queue of these handlers.

    `counts` and `unassigned` are of two moments, between which jobs come and go. So where they
    differ both are read once more, in one round trip, the number before and behind the queues,
    until it stands still meanwhile; if it never does, nothing is said.
    """
    if unassigned <= sum(counts):
        return 0
    number = ("HGET", n.lane, "unassigned")
    queues = [("ZCARD", n.unassigned(name)) for name in handlers]
    for _ in range(_UNQUEUED_TRIES):
        before, *now, behind = await all_of(pipeline, [], [number, *queues, number])
        if before == behind:
            return max(0, whole(before or b"0") - sum(now))
    return 0


async def _oldest(
    pipeline: Pipeline, n: Names, keys: Sequence[bytes], now_ms: int, unread: list[str]
) -> Oldest | None:
    """Return the oldest of the jobs at the heads of the queues."""
    texts = await fields_of(pipeline, unread, n.jobs, keys)
    records = [
        (key.decode(errors="replace"), record)
        for key, text in zip(keys, texts, strict=True)
        if text is not None and (record := Record.parse(text)) is not None
    ]
    if not records:
        return None
    key, record = min(records, key=lambda each: each[1].accepted)
    return Oldest(
        key=key,
        state=record.state,
        handler=record.handler,
        owner=record.owner,
        age_s=round(max(0.0, now_ms / 1000 - record.accepted / 1e6), 3),
    )


async def all_of(
    pipeline: Pipeline, unread: list[str], commands: Sequence[tuple[Word, ...]]
) -> list[Reply]:
    """Run commands in one round trip; what is of another type is empty, and noted in `unread`."""
    replies = await pipeline.replies_to(commands)
    for i, (command, reply) in enumerate(zip(commands, replies, strict=True)):
        if isinstance(reply, StoreFault):
            unread.append(f"{command[1]!s}: {reply.problem}")
            replies[i] = 0 if command[0] in _COUNTS else []
        elif isinstance(reply, PoolError):
            raise again(reply)
    return replies


async def fields_of(
    pipeline: Pipeline, unread: list[str], name: str, fields: Sequence[Word]
) -> Sequence[bytes | None]:
    """Return some fields of a hash, in their order."""
    [texts] = await all_of(pipeline, unread, [("HMGET", name, *fields)]) if fields else [[]]
    return texts or [None] * len(fields)


def pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {k.decode(errors="replace"): v for k, v in zip(flat[::2], flat[1::2], strict=True)}


def whole(text: bytes) -> int:
    """Return a number as the scripts write it; what else stands there counts as none."""
    found = number_or(0, text.removeprefix(b"-"))
    return -found if text.startswith(b"-") else found
