"""One lane's scripts as named operations: what goes in, what comes out; no I/O of its own.

Every operation is one script call, built here and sent by whoever has a connection; the functions
beside them read the replies.  All times given are seconds, all times returned server milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from pool.core import lifecycle
from pool.core.digits import number_or
from pool.core.ids import member_name
from pool.core.pages import PAGES, Pages
from pool.core.pooltime import NOTHING_TOLD, Told
from pool.core.record import KIND_LETTERS, Kind, Options
from pool.names import Names
from pool.redis.commands.replies import (
    RENEWAL_HEAD,
    Claim,
    admitted,
    changed,
    claims,
    done,
    expired,
    forgotten,
    holdings,
    intended,
    joined,
    left,
    looked,
    messages,
    moved,
    notified,
    overdue,
    owned,
    pool_config,
    pulled,
    quarantined,
    recounted,
    renewal,
    restored,
    walked,
)
from pool.redis.scripts import Script, ScriptCall, Word

_JOB_KEYS: Final = ("jobs", "pending", "due")

DISPATCH: Final = Script.load(
    "dispatch",
    keys=("lane", "open", "jobs", "pending", "due", "payloads", "handlers", "kept", "*rest"),
    args=(
        "incarnation",
        "pending_ms",
        "queued_jobs_max",
        "refused_ms",
        "expects",
        "target_count",
        "*items",
    ),
    reads=admitted,
)
ADVANCE: Final = Script.load(
    "advance",
    keys=(
        "lane",
        "keepalive",
        "cleanup",
        "open",
        *_JOB_KEYS,
        "payloads",
        "checkpoints",
        "parked",
        "letters",
        "journal",
        "source_owned",
        "source_stream",
        "trials",
        "kept",
        "*rest",
    ),
    args=(
        "incarnation",
        "guard",
        "source",
        "claim",
        "pending_ms",
        "reap_ms",
        "parked_ms",
        "says",
        "expects",
        "target_count",
        "*items",
    ),
    reads=moved,
)
PULL: Final = Script.load(
    "pull",
    keys=(
        "lane",
        "keepalive",
        "cleanup",
        "open",
        "jobs",
        "pending",
        "payloads",
        "stream",
        "owned",
        "*unassigned",
    ),
    args=(
        "incarnation",
        "pending_ms",
        "keys_max",
        "ahead",
        "says",
        "target_count",
        "id",
        "number",
    ),
    reads=pulled,
    behind=ADVANCE,  # which frees the slots that it looks for
)
JOIN: Final = Script.load(
    "join",
    keys=("lane", "keepalive", "cleanup", "open", "handlers", "*signals"),
    args=(
        "incarnation",
        "known",
        "stale",
        "not_after_ms",
        "pool_ttl_ms",
        "node",
        "identity_count",
        "*handlers",
    ),
    reads=joined,
)
RENEW: Final = Script.load(
    "renew",
    keys=(
        "lane",
        "keepalive",
        "cleanup",
        "open",
        "handlers",
        "pending",
        "due",
        "journal",
        "*owned",
    ),
    args=(
        "incarnation",
        "seq",
        "term",
        "down",
        "expected_ms",
        "since_ms",
        "turn",
        "off_ms",
        "who",
        "identity_count",
        "*handlers",
    ),
    reads=renewal,
)
FENCE: Final = Script.load(
    "fence",
    keys=("lane", "keepalive", "cleanup", "open", "journal", "jobs", "trials", "thawed"),
    args=("incarnation", "reap_ms", "holder", "claims_max", "known_ms", "latest_ms", "*suspects"),
    reads=claims,
)
REAP: Final = Script.load(
    "reap",
    keys=(
        "lane",
        "keepalive",
        "cleanup",
        "jobs",
        "handlers",
        "owned",
        "stream",
        "signal",
        "thawed",
        "trials",
    ),
    args=("incarnation", "identity", "claim", "reap_ms", "keys_max", "deaths", "after"),
    reads=holdings,
)
FORGET: Final = Script.load(
    "forget",
    keys=("lane", "keepalive", "cleanup", "*rest"),
    args=("incarnation", "*items"),
    reads=forgotten,
)
SWEEP: Final = Script.load(
    "sweep",
    keys=(
        "lane",
        "keepalive",
        "cleanup",
        "jobs",
        "pending",
        "due",
        "handlers",
        "thawed",
        "open",
    ),
    args=("incarnation", "holder", "lock_ms", "keys_max", "skip"),
    reads=overdue,
)
INTEND: Final = Script.load(
    "intend",
    keys=("lane", "jobs", "pending", "due", "journal", "signal"),
    args=("incarnation", "key", "id", "owner", "epoch", "intent", "again_ms"),
    reads=intended,
)
LOOK: Final = Script.load(
    "look",
    keys=("lane", "jobs", "thawed", "*rest"),
    args=("incarnation", "node", "bytes_max", "*items"),
    reads=looked,
)
NOTIFY: Final = Script.load(
    "notify",
    keys=("lane", "jobs", "inbox", "signal"),
    args=(
        *("incarnation", "key", "owner", "messages_max", "request", "payload", "id"),
        *("skip", "looked_max", "since"),
    ),
    reads=notified,
)
INBOX: Final = Script.load(
    "inbox",
    keys=("lane", "inbox"),
    args=("incarnation", "after", "messages_max", "bytes_max"),
    reads=messages,
)
RECONCILE: Final = Script.load(
    "reconcile",
    keys=("lane", "jobs", "owned", "stream"),
    args=("incarnation", "worker", "at", "after", "names_max", "*items"),
    reads=owned,
)
THAW: Final = Script.load(
    "thaw", keys=("lane", "thawed"), args=("incarnation", "known_ms", "*names"), reads=done
)
LEAVE: Final = Script.load(
    "leave",
    keys=("lane", "keepalive", "cleanup", "open", "*rest"),
    args=("incarnation", "*items"),
    reads=left,
)
WALK: Final = Script.load(
    "walk",
    keys=("lane", "keepalive", "cleanup", "open", "jobs"),
    args=(
        "incarnation",
        "holder",
        "hold_ms",
        "cursor",
        "open_at",
        "cleanup_at",
        "keys_max",
        "names_max",
        "found",
        "*announced",
    ),
    reads=walked,
)
RECOUNT: Final = Script.load(
    "recount",
    keys=("lane", "*unassigned"),
    args=("incarnation", "changes", "found", "counted"),
    reads=recounted,
)
RESTORE: Final = Script.load(
    "restore",
    keys=("lane", "cleanup", *_JOB_KEYS, "owned"),
    args=("incarnation", "owner", "pending_ms", "*items"),
    reads=restored,
)
EXPIRE: Final = Script.load(
    "expire",
    keys=("lane", "kept", "*results"),
    args=("incarnation", "items_max", "*items"),
    reads=expired,
)
SIGNAL: Final = Script.load(
    "signal", keys=("lane", "signal"), args=("incarnation", "*fields"), reads=done
)
QUARANTINE: Final = Script.load(
    "quarantine",
    keys=(
        "lane",
        *_JOB_KEYS,
        "payloads",
        "checkpoints",
        "inbox",
        "parked",
        "letters",
        "journal",
        "holders_owned",
        "holders_stream",
    ),
    args=("incarnation", "key", "text", "after", "looked_max"),
    reads=quarantined,
)

IS_NODE: Final = -1  # in the place of how many keys a worker takes
_HUNG: Final = "-"  # likewise: none, and what it has not acknowledged by its time may be taken


# --- what goes in -------------------------------------------------------------------------------


@attrs.frozen
class Target:
    """A worker that a key may be granted to."""

    id: str
    number: int

    @property
    def name(self) -> str:
        """Its name in the lane."""
        return member_name(self.id, self.number)


@attrs.define(eq=False, kw_only=True)
class Admission:
    """One job to accept; `ranked` are places in the call's list of targets, counted from 1.

    Not frozen only because that costs time; the dispatcher fills the last two in for each try.
    """

    key: str
    id: str
    handler: str
    kind: Kind | None  # None: as the handler was registered
    payload: bytes
    delay_s: float = 0.0
    attach: bool = False
    allow_unknown: bool = False
    unassigned: bool = False
    ranked: Sequence[int] = ()

    @property
    def flags(self) -> str:
        """The letters that `dispatch` takes."""
        return f"{'a' * self.attach}{'k' * self.allow_unknown}{'u' * self.unassigned}"


@attrs.define(eq=False)
class Edge:
    """One change of one job, as `advance` takes it.  Not frozen only because that costs time."""

    letter: str
    key: str
    epoch: int
    id: str
    ttl_ms: int = 0
    x: Word = b""
    y: Word = b""
    z: Word = b""
    handler: str = ""

    def is_past(self, epoch: int, job_id: str) -> bool:
        """Whether a run had come by then, or this is its own end; not if one was misread."""
        return self.epoch > epoch or (self.epoch == epoch and self.id == job_id)


Guard: TypeAlias = Literal["own", "reap", "free"]


def ranking(places: Iterable[int]) -> str:
    """Return places in a call's list of targets as the scripts take them."""
    return ",".join(map(str, places))


# --- the operations -----------------------------------------------------------------------------


def incarnation_of_pool(lanes: str) -> str:
    """Return the pool's incarnation of which a lane's is."""
    return lanes.rpartition(".")[0]


def new_incarnation(drawn: str, lanes: int) -> str:
    """Return a pool's incarnation: of how many lanes it is stands in it, and so in each lane."""
    return f"{drawn}.{lanes}"


def lanes_of_pool(incarnation: str) -> int:
    """Return how many lanes the pool of this incarnation has; 0 if it does not say."""
    return number_or(0, incarnation.rpartition(".")[2], digits_max=3)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@attrs.frozen
class Lane:
    """Builds the script calls of one lane; `incarnation` is its own, as joining told it."""

    names: Names
    incarnation: str
    parked_s: float = 30 * 86_400.0  # how long dead letters are kept
    pages: Pages = PAGES

    def dispatch(
        self,
        items: Sequence[Admission],
        targets: Sequence[Target],
        *,
        pending_s: float,
        queued_jobs_max: int,
        refused_s: float = 0.0,
        expects: str = "0",
    ) -> ScriptCall:
        """Accept jobs; one status per item, see `dispatch.lua`."""
        n = self.names
        keys = [n.lane, n.open, n.jobs, n.pending, n.due, n.payloads, n.handlers, n.kept]
        args: list[Word] = [self.incarnation, _ms(pending_s), queued_jobs_max]
        args += (_ms(refused_s) if refused_s else 0, expects)
        self._add_targets(keys, args, targets)
        for item in items:
            keys += (n.result(item.id), n.unassigned(item.handler))
            args += (
                item.key,
                item.id,
                item.handler,
                KIND_LETTERS[item.kind] if item.kind else "?",
                item.flags,
                math.ceil(item.delay_s * 1000) if item.delay_s else 0,
                ranking(item.ranked),
                item.payload,
            )
        return DISPATCH(keys, args, parts=len(items))

    def advance(
        self,
        guard: Guard,
        source: str,
        edges: Sequence[Edge],
        *,
        pending_s: float,
        targets: Sequence[Target] = (),
        claim: str = "",
        reap_s: float = 1.0,
        says: str = "",
        expects: str = "0",
    ) -> ScriptCall:
        """Change jobs; the number of unassigned keys, then one status per edge."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.jobs, n.pending, n.due, n.payloads]
        keys += (n.checkpoints, n.parked, n.letters, n.journal, n.owned(source), n.stream(source))
        keys += (n.trials, n.kept)
        args: list[Word] = [self.incarnation, guard, source, claim, _ms(pending_s), _ms(reap_s)]
        args += (_ms(self.parked_s), says, expects)
        self._add_targets(keys, args, targets)
        for edge in edges:
            match edge.letter:
                case lifecycle.DONE:
                    assert edge.ttl_ms > 0  # the server refuses any other, in the middle of a batch
                    keys += (n.result(edge.id), n.inbox(edge.key))
                case lifecycle.SEEN:
                    keys.append(n.inbox(edge.key))
                case lifecycle.CANCEL | lifecycle.PARK | lifecycle.WAIT | lifecycle.GRANT:
                    assert edge.ttl_ms > 0
                    keys += (n.result(edge.id), n.inbox(edge.key), n.unassigned(edge.handler))
            args += (edge.letter, edge.key, edge.epoch, edge.id, edge.ttl_ms)
            args += (edge.x, edge.y, edge.z)
        return ADVANCE(keys, args, parts=1 + len(edges))

    def pull(
        self,
        worker: Target,
        handlers: Iterable[str],
        *,
        keys_max: int,
        pending_s: float,
        ahead: int = 0,
        says: str = "",
    ) -> ScriptCall:
        """Grant a worker the oldest unassigned keys; read the reply with `pulled()`."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.jobs, n.pending, n.payloads]
        keys += (n.stream(worker.name), n.owned(worker.name), *map(n.unassigned, handlers))
        args: list[Word] = [self.incarnation, _ms(pending_s), keys_max, ahead, says]
        return PULL(keys, [*args, 1, worker.id, worker.number])

    def join(
        self,
        node: Target,
        workers: Mapping[Target, int],
        handlers: Mapping[str, Options],
        *,
        is_new: bool,
        not_after_ms: int,
        pool_ttl_ms: int,
        pool: str = "",
        stale: str = "",
    ) -> ScriptCall:
        """Register workers (with the number of keys each takes) and, when new, the node.

        `pool` is the pool's incarnation, by default the one of which the lane's is; if the lane's
        own is not known yet, the reply tells it.  `pool_ttl_ms` counts if nobody has ever joined
        this lane.  Read the reply with `joined()`.
        """
        n = self.names
        takes = {**workers, node: IS_NODE} if is_new else workers
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.handlers]
        keys += (*(n.signal(who.name) for who in takes), n.signal(node.name))
        pool = pool or incarnation_of_pool(self.incarnation)
        args: list[Word] = [pool, self.incarnation, stale, not_after_ms, pool_ttl_ms, node.name]
        args.append(len(takes))
        for who, number in takes.items():
            args += (who.id, who.number, number)
        for name, options in handlers.items():
            args += (name, options.pack())
        return JOIN(keys, args)

    def renew(
        self,
        takes: Mapping[str, int],
        handlers: Mapping[str, Options] | None = None,
        *,
        seq: int,
        term: int,
        is_hung: bool = False,
        down: int = 0,
        told: Told = NOTHING_TOLD,
        who: str = "",
    ) -> ScriptCall:
        """Renew leases, and say how many keys each worker takes; read the reply with `renewal()`.

        Args:
            takes: How many keys each worker takes, by its name in the lane; `IS_NODE` for the node.
            handlers: What the workers know.
            seq: A higher number than that of any renewal asked for before.
            term: Number of the change of TTL that the node goes by.
            is_hung: The event loop hangs: nobody takes anything.
            down: How many parts of the node are down.
            told: What the node knows of pool time.
            who: The node's id.
        """
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.handlers, n.pending, n.due, n.journal]
        keys += (*map(n.owned, takes), *map(n.signal, takes))
        args: list[Word] = [self.incarnation, seq, term, down, told.expected_ms, told.since_ms]
        args += (told.turn, told.off_ms, who, len(takes))
        for name, number in takes.items():
            args += (name, _HUNG if is_hung and number != IS_NODE else number)
        for handler, options in (handlers or {}).items():
            args += (handler, options.pack())
        return RENEW(keys, args, parts=RENEWAL_HEAD + len(takes))

    def fence(
        self,
        holder: str,
        *,
        reap_s: float,
        claims_max: int,
        known_s: float = 600.0,
        latest_ms: int = 0,
        suspects: Sequence[str] = (),
    ) -> ScriptCall:
        """Claim identities whose lease has ended; read the reply with `claims()`."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.journal, n.jobs, n.trials, n.thawed]
        args: list[Word] = [self.incarnation, _ms(reap_s), holder, claims_max, _ms(known_s)]
        args.append(latest_ms)
        return FENCE(keys, [*args, *suspects])

    def reap(self, claim: Claim, *, reap_s: float, deaths: int = 0, after: int = 0) -> ScriptCall:
        """Read the next keys of a fenced identity; read the reply with `holdings()`.

        The starts up to `after` are left out: they were read before and could not be moved.
        """
        n, who = self.names, claim.identity
        keys = [n.lane, n.keepalive, n.cleanup, n.jobs, n.handlers]
        keys += (n.owned(who), n.stream(who), n.signal(who), n.thawed, n.trials)
        args = (self.incarnation, who, claim.claim, _ms(reap_s), self.pages.moved, deaths)
        return REAP(keys, (*args, str(after)))

    def forget(self, claims: Sequence[Claim]) -> ScriptCall:
        """Forget those fenced who own nothing; one status each, see `forget.lua`."""
        n = self.names
        keys, args = [n.lane, n.keepalive, n.cleanup], [self.incarnation]
        for claim in claims:
            who = claim.identity
            keys += (n.owned(who), n.stream(who), n.signal(who))
            args += (who, claim.claim)
        return FORGET(keys, args, parts=len(claims))

    def sweep(self, holder: str, *, lock_s: float, keys_max: int, skip: int = 0) -> ScriptCall:
        """List what is overdue and take the sweeper's lock; read the reply with `overdue()`."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.jobs, n.pending, n.due, n.handlers]
        keys += (n.thawed, n.open)
        return SWEEP(keys, (self.incarnation, holder, _ms(lock_s), keys_max, skip))

    def intend(
        self, key: str, job_id: str, owner: str, intent: str, *, again_s: float, epoch: int = 0
    ) -> ScriptCall:
        """Write an intent into a record and signal its owner; see `intend.lua`.

        With an epoch it is for that run alone.
        """
        n = self.names
        keys = (n.lane, n.jobs, n.pending, n.due, n.journal, n.signal(owner or "-"))
        run = epoch or ""
        return INTEND(keys, (self.incarnation, key, job_id, owner, run, intent, _ms(again_s)))

    def look(
        self,
        items: Sequence[tuple[str, str]],
        *,
        node: str = "",
        frees: bool = False,
        lines: int = 1,
    ) -> ScriptCall:
        """Tell how jobs are (key, job id), and register `node` to be told; see `looked()`.

        With `frees` the dead give up their places, where there is none left.  What is told at once
        is bounded in bytes, for `lines` that share them.
        """
        n = self.names
        keys = [n.lane, n.jobs, n.thawed, *(n.result(job_id or "-") for _, job_id in items)]
        if frees:
            keys += (n.keepalive, n.cleanup)
        bytes_max = self.pages.outcome_bytes // lines or 1
        args: list[Word] = [self.incarnation, node, bytes_max]
        args += (part for item in items for part in item)
        return LOOK(keys, args, parts=len(items))

    def notify(
        self,
        key: str,
        owner: str,
        request: str,
        payload: bytes,
        *,
        messages_max: int,
        job_id: str = "",
        skip: int = 0,
        since: int = 0,
    ) -> ScriptCall:
        """Put a message into a job's inbox and wake its owner; see `notify.lua`."""
        n = self.names
        keys = (n.lane, n.jobs, n.inbox(key), n.signal(owner or "-"))
        args = (self.incarnation, key, owner, messages_max, request, payload, job_id)
        return NOTIFY(keys, (*args, skip, self.pages.looked_at, str(since)))

    def inbox(self, key: str, after: int) -> ScriptCall:
        """Read the messages behind one, a page of them; read the reply with `messages()`."""
        n, pages = self.names, self.pages
        args = (self.incarnation, str(after), pages.messages, pages.message_bytes)
        return INBOX((n.lane, n.inbox(key)), args)

    def reconcile(
        self,
        worker: str,
        items: Iterable[tuple[bytes, str]] = (),
        *,
        at: str = "0",
        after: str = "0",
    ) -> ScriptCall:
        """Read a page of what a worker owns; read the reply with `owned()`, see `reconcile.lua`."""
        n = self.names
        keys = (n.lane, n.jobs, n.owned(worker), n.stream(worker))
        args: list[Word] = [self.incarnation, worker, at, after, self.pages.listed]
        for item in items:
            args += item
        return RECONCILE(keys, args)

    def thaw(self, identities: Iterable[str], *, known_s: float) -> ScriptCall:
        """Say that identities which were fenced were frozen, not killed; see `thaw.lua`."""
        n = self.names
        return THAW((n.lane, n.thawed), (self.incarnation, _ms(known_s), *identities))

    def leave(self, identities: Sequence[Target]) -> ScriptCall:
        """Forget identities that own nothing; one status each, see `leave.lua`."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open]
        args: list[Word] = [self.incarnation]
        for who in identities:
            keys += (n.owned(who.name), n.stream(who.name), n.signal(who.name))
            args += (who.id, who.number)
        return LEAVE(keys, args, parts=len(identities))

    def expire(self, items: Sequence[str], *, items_max: int) -> ScriptCall:
        """End answers whose time is up; returns of which further ones it is.

        An item is what the reply told: the ids of some jobs, with spaces between.
        """
        n = self.names
        keys = [n.lane, n.kept]
        for item in items:
            keys += map(n.result, item.split())
        return EXPIRE(keys, (self.incarnation, items_max, *items))

    def signal(self, node: str, fields: Sequence[Word]) -> ScriptCall:
        """Write to a node's signals though the server is full; elsewhere a plain XADD does."""
        n = self.names
        return SIGNAL((n.lane, n.signal(node)), (self.incarnation, *fields))

    def change_ttl(self, ttl_ms: int) -> ScriptCall:
        """Have the lane go by another TTL; see `ttl.lua`."""
        return TTL((self.names.lane, self.names.journal), (self.incarnation, ttl_ms))

    def walk(
        self,
        holder: str,
        *,
        hold_s: float,
        at: tuple[str, str, str],
        keys_max: int,
        names_max: int,
        found: int = 0,
        announced: Iterable[str] = (),
    ) -> ScriptCall:
        """Hold the walk over the records, and take the next slice; read it with `walked()`."""
        n = self.names
        keys = (n.lane, n.keepalive, n.cleanup, n.open, n.jobs)
        args: list[Word] = [self.incarnation, holder, _ms(hold_s), *at]
        return WALK(keys, [*args, keys_max, names_max, found, *announced])

    def recount(
        self, handlers: Iterable[str], *, changes: str, found: int, counted: int
    ) -> ScriptCall:
        """End a pass of the walk; read the reply with `recounted()`."""
        keys = [self.names.lane, *map(self.names.unassigned, handlers)]
        return RECOUNT(keys, (self.incarnation, changes, found, counted))

    def restore(
        self, owner: str, items: Iterable[tuple[str, bytes, float]], *, pending_s: float
    ) -> ScriptCall:
        """Put keys (with their records and limits) back where they stand; one status each."""
        n = self.names
        keys = (n.lane, n.cleanup, n.jobs, n.pending, n.due, n.owned(owner or "-"))
        args: list[Word] = [self.incarnation, owner, _ms(pending_s)]
        for key, text, limit_s in items:
            args += (key, text, _ms(limit_s) if limit_s else 0)
        return RESTORE(keys, args, parts=(len(args) - 3) // 3)

    def quarantine(self, key: str, text: bytes, holder: str = "", after: str = "-") -> ScriptCall:
        """Park a record that cannot be read, if it still is what was seen.

        Its start is looked for in the holder's stream, behind the entry `after`.
        """
        n = self.names
        raw = key.encode(errors="surrogateescape")
        # What is not UTF-8 is nobody's job key; the inbox of no key takes its place.
        inbox = n.inbox(key if raw == key.encode(errors="replace") else "")
        keys = [n.lane, n.jobs, n.pending, n.due, n.payloads, n.checkpoints, inbox]
        keys += (n.parked, n.letters, n.journal, n.owned(holder or "-"), n.stream(holder or "-"))
        args = (self.incarnation, raw, text, after, self.pages.looked_at)
        return QUARANTINE(keys, args)

    def _add_targets(self, keys: list[str], args: list[Word], targets: Sequence[Target]) -> None:
        args.append(len(targets))
        for target in targets:
            keys += (self.names.stream(target.name), self.names.owned(target.name))
            args += (target.id, target.number)


# --- the pool -----------------------------------------------------------------------------------

PROTOCOL: Final = 3  # of what stands in Redis; raised when older nodes could not work beside it

OPEN_POOL: Final = Script.load(
    "open_pool",
    keys=("config",),
    args=("protocol", "lanes", "incarnation", "ttl_ms"),
    reads=pool_config,
)
TTL: Final = Script.load(
    "ttl", keys=("lane", "journal"), args=("incarnation", "wanted_ms"), reads=changed
)
