"""What stands in Redis about one key, read at a moment; nothing is changed, no key is searched for.

    lane, record, line, attempts --> owner, handler, queue, followers --> the workers it may go to

Some round trips and a copy of the `workers` map.  They are not one transaction: who moves meanwhile
may be told of with one foot here and one there; ask again.  A job that has ended is looked for
among the newest outcomes, as no index leads from a key to them: `looked` of `of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.ailing import WELL, Ails
from pool.core.followers import Followed, parse
from pool.core.ids import member_name
from pool.core.journal import JournalEntry
from pool.core.options import Options
from pool.core.pauses import Asked, Cordon, Pause
from pool.core.placement import Candidates
from pool.core.record import Attempt, Outcome, Record, attempts
from pool.errors import PoolError
from pool.jobs.client.journal import latest
from pool.jobs.roster import Roster, WorkerEntry
from pool.maps.commands import StoredMap
from pool.names import (
    PAUSED,
    WORKERS,
    Control,
    Names,
    followers,
    key_hash,
    lane_of,
    line,
    paused_key,
    queued,
    split_pair,
)
from pool.ops.inspect import Found, all_of, fields_of, outcomes, whole
from pool.ops.rates import usual_times
from pool.redis.commands.member import Opening, generation_of_pool
from pool.redis.commands.pausing import LanePauses
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline

LIFE_SHOWN: Final = 20  # entries of the journal
LINE_SHOWN: Final = 20  # jobs behind the live one of which more than the number is told
RANKED: Final = 8  # workers that are asked whether they have room, the first in rank
LOOKED_MAX: Final = 20_000  # members of `parked` and of `kept` that are looked at, the newest
_LOOKED_AT_ONCE: Final = 250  # of either: a member of `kept` has up to 32 jobs
_ENDED_MAX: Final = 16  # ended jobs of one key of which the last is looked for

# closed: it takes none; silent: its lease has ended; gone: it is no member any more.
Standing: TypeAlias = Literal[
    "live", "closed", "cordoned", "draining", "hung", "silent", "fenced", "gone"
]


@attrs.frozen(kw_only=True)
class KeyOwner:
    """The worker that a record names, or one that may get the key.

    `lease_s` is what is left of its lease, negative once that has ended; None: it has none.
    `takes` is how many jobs it takes, None while its event loop hangs; `running` and `pending` are
    those that it has in this lane.
    """

    name: str  # in the lane: `id.n`
    info: WorkerEntry | None
    lease_s: float | None = None
    claim: str = ""  # of who takes over from it: it is fenced
    is_open: bool = False
    takes: int | None = 0
    running: int = 0
    pending: int = 0
    ails: Ails = WELL  # of a node, as it says

    @property
    def standing(self) -> Standing:
        """How it stands."""
        if self.claim:
            return "gone" if self.claim == "done" else "fenced"
        if self.lease_s is None:
            return "gone"
        if self.lease_s < 0:
            return "silent"
        if self.info is not None and self.info.is_draining:
            return "draining"
        if self.info is not None and self.info.is_cordoned:
            return "cordoned"
        if self.is_open and self.takes is None:
            return "hung"
        return "live" if self.is_open and self.takes else "closed"

    @property
    def room(self) -> int:
        """How many jobs more it takes, by what this lane knows."""
        return max(0, (self.takes or 0) - self.running - self.pending)


@attrs.frozen(kw_only=True)
class KeyFacts:
    """All that is known of a key, or of one of its jobs, at `now_ms` of pool time."""

    pool: str
    key: str
    job_id: str  # that was asked for, or found; empty: none is known
    now_ms: int
    ttl_ms: int
    is_lost: bool = False  # the lane has no data, or not those of this pool
    is_unreadable: bool = False
    record: Record | None = None
    ended: Outcome | None = None
    due_ms: int = 0  # when somebody comes for it; 0: nobody needs to
    pending_ms: int = 0  # by when its start must be acknowledged; 0: it is not pending
    line: tuple[tuple[str, Record | None], ...] = ()  # the ids behind its live job
    line_length: int = 0
    messages: int = 0
    history: tuple[Attempt, ...] = ()
    life: tuple[JournalEntry, ...] = ()  # the latest of what its lane's journal has of the key
    options: Options | None = None  # None: no node ever registered the handler here
    owner: KeyOwner | None = None
    live_id: str = ""  # of the key's live job, if another one was asked for
    trial: str = ""  # the suspect that its owner began last
    position: int = 0  # in its queue, from 1 on; 0: it stands in none
    queue_length: int = 0
    followers: tuple[Followed, ...] = ()
    workers: tuple[WorkerEntry, ...] = ()  # all of the fleet
    paused: Pause | None = None  # what keeps it from being given to a worker
    cordoned: Cordon | None = None  # of those who know its handler, if all of them are
    ranked: tuple[KeyOwner, ...] = ()  # of those who know the handler the first, best first
    usual_s: float | None = None  # a run of its handler, see `usual_times`; None: not known
    looked: int = 0
    of: int = 0
    unread: tuple[str, ...] = ()

    @property
    def slack_ms(self) -> int:
        """By how much something may be late before that means something."""
        return max(1000, self.ttl_ms)


async def read(pipeline: Pipeline, found: Found, key: str, job_id: str = "") -> KeyFacts:
    """Read a key, or the job of that id.

    Raises:
        PoolError: The server does not answer, or refuses.
    """
    n, unread = Names(found.pool, lane_of(key, found.lanes)), list[str]()
    at = pipeline.at(n.prefix)
    now_ms, line_text, messages, failed = await all_of(
        at,
        unread,
        [
            ("TIME",),
            ("HGET", n.payloads, line(key)),
            ("LLEN", n.inbox(key)),
            ("HGET", n.attempts, key),
        ],
    )
    generation, offset, ttl = await fields_of(at, unread, n.lane, ["incarnation", "offset", "ttl"])
    names = [key, queued(key, job_id)] if job_id else [key]
    texts = await fields_of(at, unread, n.jobs, names)
    due, pending = await _scores(at, unread, n, key)
    live = Record.parse(texts[0]) if texts[0] is not None else None
    mine, text = live, texts[0]
    if job_id and not (live is not None and live.id == job_id):
        text = texts[1]
        mine = Record.parse(text) if text is not None else None
    ids = tuple((line_text or b"").decode(errors="replace").split())
    life: tuple[JournalEntry, ...] = ()
    try:
        life = await latest(pipeline, found.pool, found.lanes, key, LIFE_SHOWN)
    except PoolError as error:
        unread.append(f"{n.journal}: {error}")
    facts = KeyFacts(
        pool=found.pool,
        key=key,
        job_id=mine.id if mine is not None else job_id,
        now_ms=now_ms + whole(offset or b"0"),
        ttl_ms=whole(ttl or b"0") or round(found.ttl_s * 1000),
        is_lost=generation_of_pool((generation or b"").decode(errors="replace"))
        != found.generation,
        is_unreadable=(text is not None and mine is None) or any(n.jobs in each for each in unread),
        record=mine,
        live_id=live.id if live is not None and live is not mine else "",
        messages=messages or 0,
        due_ms=due,
        pending_ms=pending,
        line=tuple((each, None) for each in ids[:LINE_SHOWN]),
        line_length=len(ids),
        history=_history(failed, mine),
        life=life,
        unread=tuple(unread),
    )
    if facts.is_lost or facts.is_unreadable:
        return facts
    if mine is None:
        return await _ended(pipeline, found, n, facts)
    return await _live(pipeline, found, n, facts, mine)


@attrs.frozen
class FleetFacts:
    """The `workers` map: who works, and what operators have asked for."""

    workers: tuple[WorkerEntry, ...] = ()
    asked: Asked = attrs.field(factory=Asked)


async def fleet(pipeline: Pipeline, found: Found) -> FleetFacts:
    """Fetch the `workers` map: O(fleet), in pages, as it is for every node that joins.

    Raises:
        PoolError: It cannot be read.
    """
    state = await StoredMap(Control(found.pool), WORKERS).snapshot(pipeline, found.generation)
    roster = Roster()
    roster.update(state.items)
    roster.hear()
    return FleetFacts(roster.workers, roster.asked)


# --- parts ------------------------------------------------------------------------------------


async def _scores(pipeline: Pipeline, unread: list[str], n: Names, key: str) -> tuple[int, int]:
    due, pending = await all_of(
        pipeline, unread, [("ZMSCORE", n.due, f"k:{key}"), ("ZMSCORE", n.pending, key)]
    )
    return _score(due), _score(pending)


def _score(reply: Reply) -> int:
    return int(float(reply[0])) if reply and reply[0] is not None else 0


def _history(text: bytes | None, record: Record | None) -> tuple[Attempt, ...]:
    job_id, _, told = (text or b"").decode(errors="replace").partition("\t")
    return attempts(told) if record is not None and job_id == record.id else ()


async def _live(
    pipeline: Pipeline, found: Found, n: Names, facts: KeyFacts, record: Record
) -> KeyFacts:
    at, unread = pipeline.at(n.prefix), list(facts.unread)
    pair_of = followers(facts.key, record.id)
    options, trial, text, rank, length, *held = await all_of(
        at,
        unread,
        [
            ("HGET", n.handlers, record.handler),
            ("HGET", n.trials, record.owner),
            ("HGET", n.payloads, pair_of),
            ("ZRANK", n.unassigned(record.handler), facts.key),
            ("ZCARD", n.unassigned(record.handler)),
            ("HMGET", n.lane, PAUSED, paused_key(facts.key)),
        ],
    )
    names_paused = (PAUSED, paused_key(facts.key))
    lane_pauses = LanePauses.of(
        {name: text for name, text in zip(names_paused, held[0] or (), strict=False) if text}
    )
    ids = [each for each, _ in facts.line]
    behind = await fields_of(at, unread, n.jobs, [queued(facts.key, each) for each in ids])
    parsed = [Record.parse(each) if each is not None else None for each in behind]
    position, of = (rank + 1, length) if type(rank) is int else (0, 0)
    if record.state == "queued":
        position, of = (ids.index(record.id) + 1 if record.id in ids else 0), facts.line_length
    told = FleetFacts()
    try:
        told = await fleet(pipeline, found)
    except PoolError as error:
        unread.append(f"the map of workers: {error}")
    workers = told.workers
    places = Candidates(info.candidate for info in workers)
    by_id = {info.id: info for info in workers}
    chosen = places.ranked(key_hash(facts.key), record.handler, RANKED)
    ranked = [by_id[each] for each in chosen if by_id[each].candidate.is_in(n.number)]
    names = [info.candidate.name_in(n.number) for info in ranked]
    standing = await owners(
        at, unread, n, [*filter(None, [record.owner]), *names], by_id, facts.now_ms
    )
    usual = await usual_times(pipeline, found.pool) if record.state == "running" else {}
    return attrs.evolve(
        facts,
        usual_s=usual.get(record.handler),
        options=Options.parse(options) if options is not None else None,
        trial=(trial or b"").decode(errors="replace"),
        followers=tuple(parse(text or b"")),
        position=position,
        queue_length=of,
        line=tuple(zip(ids, parsed, strict=True)),
        workers=workers,
        owner=standing[0] if record.owner else None,
        ranked=tuple(standing[1:] if record.owner else standing),
        paused=_paused(told.asked, lane_pauses, facts.key, record.handler),
        cordoned=told.asked.cordon_of_all(
            [(w.id, w.node) for w in workers if record.handler in w.handlers]
        ),
        unread=tuple(unread),
    )


def _paused(asked: Asked, lane: LanePauses, key: str, handler: str) -> Pause | None:
    """Return what keeps the job from being granted: what its lane says, and who asked for that."""
    for each in (Pause(key=key), Pause(handler=handler), Pause()):
        if lane.has(each):
            standing = asked.pauses.get(each.entry)
            return standing if standing is not None and standing.name == each.name else each
    return None


LEASE_CLOCK: Final = ("seen", "lease")  # fields of `lane`


def lease_time_ms(now_ms: int, seen: bytes | None, lease: bytes | None) -> int:
    """Return the lease time of a lane at `now_ms` of pool time, by what its `LEASE_CLOCK` says.

    Here it goes on when nobody renews any more, see `lib/lease.lua`: of nodes that are all dead the
    leases show as ended.
    """
    lease_ms = whole(lease or b"0")
    return lease_ms + max(0, now_ms - whole(seen or b"0")) if lease_ms else now_ms


async def owners(
    pipeline: Pipeline,
    unread: list[str],
    n: Names,
    names: Sequence[str],
    by_id: dict[str, WorkerEntry],
    now_ms: int,
) -> list[KeyOwner]:
    """Read how workers stand in a lane, by their names there, in one round trip."""
    if not names:
        return []
    ids = [name.rpartition(".")[0] for name in names]
    clock, leases, claims, opens, *sizes = await all_of(
        pipeline,
        unread,
        [
            ("HMGET", n.lane, *LEASE_CLOCK),
            ("ZMSCORE", n.keepalive, *names),
            ("HMGET", n.cleanup, *names),
            ("HMGET", n.open, *ids),
            *(("SCARD", n.owned(name)) for name in names),
            *(("XLEN", n.stream(name)) for name in names),
        ],
    )
    nothing = [None] * len(names)
    lease_now_ms = lease_time_ms(now_ms, *(clock or (None, None)))
    found = []
    for i, (name, lease, claim, text) in enumerate(
        zip(names, leases or nothing, claims or nothing, opens or nothing, strict=True)
    ):
        opening = Opening.parse(text) if text is not None else None
        is_open = opening is not None and member_name(ids[i], opening.number) == name
        found.append(
            KeyOwner(
                name=name,
                info=by_id.get(ids[i]),
                lease_s=None if lease is None else round((float(lease) - lease_now_ms) / 1000, 3),
                claim=(claim or b"").decode(errors="replace"),
                is_open=is_open,
                takes=opening.takes if is_open and opening is not None else 0,
                running=sizes[i],
                pending=sizes[len(names) + i],
                ails=opening.ails if is_open and opening is not None else WELL,
            )
        )
    return found


async def _ended(pipeline: Pipeline, found: Found, n: Names, facts: KeyFacts) -> KeyFacts:
    """Look for how the key's last job ended, or the one that was asked for."""
    ids, looked, of = [facts.job_id], 0, 0
    if not facts.job_id:
        ids, looked, of = await _find_ids(pipeline.at(n.prefix), n, facts.key)
    told = await outcomes(pipeline, found, [(facts.key, each) for each in ids])
    known = [(job_id, each) for job_id, each in zip(ids, told, strict=True)]
    ended = [(each.ended_ms, i) for i, (_, each) in enumerate(known) if isinstance(each, Outcome)]
    if not ended:
        return attrs.evolve(facts, looked=looked, of=of)
    job_id, outcome = known[max(ended)[1]]
    assert isinstance(outcome, Outcome)
    history = outcome.attempts if outcome.word == "parked" else ()
    return attrs.evolve(facts, job_id=job_id, ended=outcome, history=history, looked=looked, of=of)


async def _find_ids(pipeline: Pipeline, n: Names, key: str) -> tuple[list[str], int, int]:
    """Return ids of ended jobs of a key, the newest first, how many were looked at, of how many."""
    found, looked, total = dict[str, None](), 0, 0
    for name in (n.parked, n.kept):
        [size] = await all_of(pipeline, [], [("ZCARD", name)])
        total += size
        for last in range(0, min(size, LOOKED_MAX), _LOOKED_AT_ONCE):
            [members] = await all_of(
                pipeline, [], [("ZRANGE", name, -last - _LOOKED_AT_ONCE, -last - 1)]
            )
            looked += len(members)
            found.update((job_id, None) for job_id in _ids_of(members, key, is_kept=name == n.kept))
            if len(found) >= _ENDED_MAX:
                break
    return list(found)[:_ENDED_MAX], looked, total


def _ids_of(members: Sequence[bytes], key: str, *, is_kept: bool) -> list[str]:
    wanted, found = f" {key}".encode(), list[str]()
    for member in reversed(members):
        if wanted not in member:
            continue
        for each in reversed(member.split(b"\n")):
            text = each.partition(b" ")[2] if is_kept else each  # behind how long it is
            of, job_id = split_pair(text.decode(errors="replace"))
            if of == key:
                found.append(job_id)
    return found
