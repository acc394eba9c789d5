"""What the store does for each operation: commands, bytes on the wire, bytes kept.

Every call is built as the library builds it and sent by hand, so that batches are as large as they
are meant to be.  Which calls a node makes, and when, is `node_costs.py`'s.

    dispatch -> read -> settle          a life, straight from pending
    dispatch -> read -> start -> settle or retry -> promote
    dispatch unassigned -> pull         a backlog
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs

from benchmarks.budget import Figure
from benchmarks.desk import Cost, Desk
from pool.core.options import Options
from pool.core.record import Record
from pool.maps.commands import LIST, WRITE, StoredMap, probe_call
from pool.names import Control, Names
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import IS_NODE, Target
from pool.redis.commands.edges import (
    AcknowledgeEdge,
    AdvanceGuard,
    CancelEdge,
    DoneEdge,
    Edge,
    GrantEdge,
    SeenEdge,
    WaitEdge,
)
from pool.redis.commands.lane import Lane
from pool.redis.commands.recovery import fenced
from pool.redis.connection import Reply
from pool.redis.scripts import Command, ScriptCall, Word
from pool.streams.commands import StoredSink, StoredStream

POOL: Final = "budgets"
GENERATION: Final = "8z4k0qv1xt0.1"
NODE: Final = Target("n8z4k0qv1xt0", 1)
WORKERS: Final = tuple(Target(f"w8z4k0qv1xt{n:x}", 1) for n in range(1, 11))
WORKER: Final = WORKERS[0]
HANDLER: Final = "thumbnail"
PAYLOAD: Final = b"x" * 100
BATCHES: Final = (1, 32)
BACKLOG: Final = 256
TAKEN: Final = 64  # keys in one batch of a reaper
IDLE_SINKS: Final = 10
KEPT: Final = 2_000  # jobs over which memory is averaged: enough that the structures' own is little
ROOM: Final = 10_000
TTL_S: Final = 10.0
TTL_MS: Final = 30_000
ITEMS: Final = 100  # of a map, and of a list in it
EVENT: Final = (b"thumbnail.made", PAYLOAD)


_JUDGED: Final = ("dispatch", "advance")  # scripts that answer with a status per job
_GOOD: Final = (b"OK", b"GRANTED", b"UNASSIGNED")


@attrs.define
class Costs:
    """Figures, as they come in."""

    figures: dict[str, Figure] = attrs.field(factory=dict)
    server_us: dict[str, float] = attrs.field(factory=dict)

    def note(self, name: str, cost: Cost, per: int, what: str) -> None:
        """Note what an operation cost, for each of so many items."""
        for part, value, unit in (
            ("commands", cost.commands, "commands"),
            ("sent", cost.sent_bytes, "bytes"),
            ("received", cost.received_bytes, "bytes"),
        ):
            self.figures[f"{name}.{part}"] = Figure(value=value / per, unit=unit, what=what)
        self.server_us[name] = cost.server_us / per


@attrs.define
class _LaneBench:
    """One lane with a node and its workers in it."""

    desk: Desk
    names: Names = attrs.field(init=False, factory=lambda: Names(POOL, 0))
    lane: Lane = attrs.field(init=False)
    _jobs: int = 0
    _renewals: int = 0

    def __attrs_post_init__(self) -> None:
        self.lane = Lane(self.names, GENERATION)
        self.desk.do("FLUSHALL")
        self.desk.do("HSET", self.names.lane, "incarnation", GENERATION)
        self.join(WORKERS[:1])

    def join(self, workers: Sequence[Target], *, is_new: bool = True) -> None:
        call = self.lane.join(
            NODE,
            dict.fromkeys(workers, ROOM),
            {HANDLER: Options()},
            is_new=is_new,
            not_after_ms=10**15,
            pool_ttl_ms=round(1000 * TTL_S),
        )
        self.desk.run(call)

    # --- what is sent -----------------------------------------------------------------------------

    def dispatch(self, count: int, *, unassigned: bool = False) -> ScriptCall:
        items = []
        for _ in range(count):
            self._jobs += 1
            items.append(
                Admission(
                    key=f"tenant-{self._jobs:08d}",
                    id=f"8z4k0qv1xt{self._jobs:04x}",
                    handler=HANDLER,
                    kind="job",
                    payload=PAYLOAD,
                    unassigned=unassigned,
                    ranked=() if unassigned else (1,),
                )
            )
        targets = () if unassigned else (WORKER,)
        return self.lane.dispatch(items, targets, pending_s=TTL_S, queued_jobs_max=1_000_000)

    def read(self, *, behind: str = "0-0") -> Command:
        return ("XREAD", "COUNT", 1000, "STREAMS", self.names.stream(WORKER.name), behind)

    def records(self) -> dict[str, Record]:
        flat = self.desk.do("HGETALL", self.names.jobs)
        parsed = {k.decode(): Record.parse(v) for k, v in zip(flat[::2], flat[1::2], strict=True)}
        return {key: record for key, record in parsed.items() if record is not None}

    def renewal(self, workers: Sequence[Target], *, handlers: int = 0) -> ScriptCall:
        self._renewals += 1
        takes = {NODE.name: IS_NODE} | {worker.name: ROOM for worker in workers}
        known = {f"{HANDLER}-{n}": Options() for n in range(handlers)}
        return self.lane.renew(takes, known, seq=self._renewals, term=0)

    def edges(self, kind: type[Edge], **facts: Any) -> list[Edge]:
        """Return one edge for every job there is."""
        return [
            kind(key, record.epoch, record.id, TTL_MS, HANDLER, **facts)
            for key, record in sorted(self.records().items())
        ]

    def advance(
        self,
        edges: Sequence[Edge],
        guard: AdvanceGuard = "own",
        source: str = WORKER.name,
        claim: str = "",
    ) -> ScriptCall:
        targets = (WORKERS[1],) if guard == "reap" else (WORKER,) if guard == "free" else ()
        return self.lane.advance(
            guard, source, edges, pending_s=TTL_S, targets=targets, claim=claim
        )

    # --- doing it ---------------------------------------------------------------------------------

    def run(self, *calls: Command) -> Cost:
        """Run calls; every status in their replies must be a good one."""
        cost, replies = self.desk.run(*calls)
        for call, reply in zip(calls, replies, strict=True):
            _check(call, reply)
        return cost

    def bytes_kept(self) -> int:
        """Return what the lane's keys take in the server's memory."""
        keys = self.desk.do("KEYS", f"{self.names.prefix}*")
        return sum(self.desk.do("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys)


def _check(call: Command, reply: Reply) -> None:
    if isinstance(call, ScriptCall) and call.script.name in _JUDGED:
        statuses = reply[1:] if call.script.name == "advance" else reply
        bad = [status for status in statuses if status.split(b" ")[0] not in _GOOD]
        assert not bad, f"{call.script.name} answered {bad[:3]}"


def store_costs(desk: Desk) -> Costs:
    """Measure everything on an empty server; afterwards it is empty again."""
    costs = Costs()
    for measure in (_lives, _detours, _backlog, _takeover, _talk, _renewals, _maps, _streams):
        measure(desk, costs)
    _memory(desk, costs)
    desk.do("FLUSHALL")
    return costs


# --- jobs -----------------------------------------------------------------------------------------


def _lives(desk: Desk, costs: Costs) -> None:
    for n in BATCHES:
        in_batch = f"per job, {n} in a call" if n > 1 else "of one job"
        bench = _LaneBench(desk)
        bench.run(bench.dispatch(1))  # the structures are there already, as in a pool that works
        bench.run(bench.advance(bench.edges(DoneEdge, result=b"null")))

        admitted = bench.run(bench.dispatch(n))
        costs.note(f"dispatch.{n}", admitted, n, f"a dispatch that grants, {in_batch}")
        read = bench.run(bench.read())
        costs.note(f"read.{n}", read, n, f"the blocking read that brings a start, {in_batch}")
        settled = bench.run(bench.advance(bench.edges(DoneEdge, result=b"null")))
        costs.note(
            f"settle.{n}", settled, n, f"a success of a job that was not acknowledged, {in_batch}"
        )
        life = admitted + read + settled
        costs.note(f"life.{n}", life, n, f"a whole life: dispatch, read and settle, {in_batch}")

        bench.run(bench.dispatch(n))
        acknowledged = bench.run(bench.advance(bench.edges(AcknowledgeEdge)))
        costs.note(f"start.{n}", acknowledged, n, f"the acknowledgement of a start, {in_batch}")
        settled = bench.run(bench.advance(bench.edges(DoneEdge, result=b"null")))
        costs.note(
            f"settle_running.{n}", settled, n, f"a success of an acknowledged job, {in_batch}"
        )


def _detours(desk: Desk, costs: Costs) -> None:
    bench, n = _LaneBench(desk), 32
    bench.run(bench.dispatch(n))
    bench.run(bench.advance(bench.edges(AcknowledgeEdge)))
    failed = bench.edges(WaitEdge, attempt=2, error="ValueError: no such picture")
    retried = bench.run(bench.advance(failed))
    costs.note(f"retry.{n}", retried, n, f"a failure with attempts left, per job, {n} in a call")
    swept = bench.run(bench.lane.sweep(NODE.name, lock_s=1.0, keys_max=256))
    again = bench.run(bench.advance(bench.edges(GrantEdge, ranked="1"), "free", ""))
    costs.note(
        f"promote.{n}", swept + again, n, "finding what is due and granting it, per job, 32 in all"
    )
    released = bench.run(
        bench.lane.advance(
            "own", WORKER.name, bench.edges(GrantEdge), pending_s=TTL_S, targets=(WORKER,)
        )
    )
    costs.note(
        f"release.{n}", released, n, f"giving a start back unstarted, per job, {n} in a call"
    )


def _backlog(desk: Desk, costs: Costs) -> None:
    bench = _LaneBench(desk)
    queued = bench.run(bench.dispatch(BACKLOG, unassigned=True))
    costs.note(
        f"queue.{BACKLOG}", queued, BACKLOG, f"a dispatch without a worker, {BACKLOG} in a call"
    )
    call = bench.lane.pull(WORKER, [HANDLER], keys_max=BACKLOG, pending_s=TTL_S)
    pulled = bench.run(call)
    assert desk.do("XLEN", bench.names.stream(WORKER.name)) == BACKLOG
    costs.note(
        f"pull.{BACKLOG}", pulled, BACKLOG, f"taking from a backlog, per job, {BACKLOG} in a call"
    )
    nothing = bench.run(call)
    costs.note("pull.0", nothing, 1, "asking for work when there is none")


def _takeover(desk: Desk, costs: Costs) -> None:
    bench = _LaneBench(desk)
    bench.join(WORKERS[1:2], is_new=False)
    bench.run(bench.dispatch(TAKEN))
    bench.run(bench.advance(bench.edges(AcknowledgeEdge)))
    bench.run(bench.renewal(WORKERS[1:2]))
    # As if this server had answered renewals for long: nobody is held.
    desk.do("HSET", bench.names.lane, "lease", 1000, "hold", 0)
    desk.do("ZADD", bench.names.keepalive, 1, WORKER.name)
    cost, [reply] = desk.run(bench.lane.fence(NODE.name, reap_s=1.0, claims_max=10))
    [claim] = fenced(reply).claims
    assert claim.identity == WORKER.name
    granted = bench.edges(GrantEdge, ranked="1", mark="1")
    reaped = bench.run(
        bench.lane.reap(claim, reap_s=1.0),
        bench.advance(granted, "reap", WORKER.name, claim=claim.claim),
    )
    what = f"fencing a dead worker and moving its running jobs, per job, {TAKEN} of them"
    costs.note(f"takeover.{TAKEN}", cost + reaped, TAKEN, what)


def _talk(desk: Desk, costs: Costs) -> None:
    bench, names = _LaneBench(desk), Names(POOL, 0)
    bench.run(bench.dispatch(2))
    bench.run(bench.advance(bench.edges(AcknowledgeEdge)))
    [(key, record), _] = sorted(bench.records().items())

    def notify(request: str) -> ScriptCall:
        return bench.lane.notify(key, WORKER.name, request, PAYLOAD, messages_max=1000)

    bench.run(notify("8z4k0qv1xtff00"))
    costs.note("notify", bench.run(notify("8z4k0qv1xtff01")), 1, "a notification of a running job")
    desk.do("LPOP", names.inbox(key))
    [message] = desk.do("LRANGE", names.inbox(key), 0, -1)
    handled = "|".join(message.decode().split("|")[:2])
    seen = bench.run(bench.advance([SeenEdge(key, record.epoch, record.id, message=handled)]))
    costs.note("notify.handled", seen, 1, "taking a handled notification out of the inbox")
    looked = bench.run(bench.lane.look([(key, record.id)], node=NODE.name))
    costs.note("look", looked, 1, "asking for a job, and to be told of its end")
    asked = bench.run(
        bench.lane.intend(key, record.id, WORKER.name, "sno longer needed", again_s=2.5)
    )
    costs.note("stop", asked, 1, "asking a running job to stop")
    ended = bench.run(
        bench.advance([CancelEdge(key, record.epoch, record.id, TTL_MS, HANDLER, "stopped")])
    )
    costs.note("stop.ended", ended, 1, "settling a stopped job")


def _renewals(desk: Desk, costs: Costs) -> None:
    bench = _LaneBench(desk)
    bench.join(WORKERS[1:], is_new=False)
    for count, whose in ((1, "1 worker"), (10, "10 workers")):
        bench.run(bench.renewal(WORKERS[:count]))
        call = bench.renewal(WORKERS[:count])
        costs.note(f"renew.{count}", bench.run(call), 1, f"one renewal of a node with {whose}")
    bench.run(bench.renewal(WORKERS[:1], handlers=10))
    call = bench.renewal(WORKERS[:1], handlers=10)
    what = "one renewal of a node with 1 worker that says which 10 handlers it knows"
    costs.note("renew.handlers", bench.run(call), 1, what)


# --- maps and streams -----------------------------------------------------------------------------


def _maps(desk: Desk, costs: Costs) -> None:
    desk.do("FLUSHALL")
    control = Control(POOL)
    stored = StoredMap(control, "prices")
    desk.do("HSET", control.config, "incarnation", GENERATION)
    limits: tuple[Word, ...] = (GENERATION, stored.name, "0" * 16, 100_000, "")

    def write(n: int) -> ScriptCall:
        return WRITE(stored.keys(), (*limits, "set", f"key-{n:04d}", PAYLOAD))

    def append(n: int) -> ScriptCall:
        return LIST(stored.keys(), (*limits, "append", "list", b"%04d" % n))

    for n in range(ITEMS):
        desk.run(write(n), append(n))
    written, [reply] = desk.run(write(7))
    costs.note("map.set", written, 1, f"a write to a map of {ITEMS} keys")
    behind = f"{int(reply.split()[0]) - 1}-0"
    delta = desk.run(("XREAD", "COUNT", 256, "STREAMS", stored.log, behind))[0]
    costs.note("map.delta", delta, 1, "the delta of one write, to one copy")
    costs.note(
        "map.append", desk.run(append(ITEMS))[0], 1, f"an append to a list of {ITEMS} values"
    )
    probe = desk.run(probe_call(control, GENERATION, [stored]))[0]
    costs.note("map.probe", probe, 1, "asking where one map is, as each node does every period")


def _streams(desk: Desk, costs: Costs) -> None:
    desk.do("FLUSHALL")
    control, n = Control(POOL), 32
    stream = StoredStream(control, "events")
    sink = StoredSink(stream=stream, name="mailer", deliveries_max=10)
    event, payload = EVENT

    def add(length_max: int) -> ScriptCall:
        return stream.add(
            event,
            payload,
            None,
            mark="0123abcd",
            length_max=length_max,
            ttl_ms=0,
            how="",
        )

    desk.run(sink.join("c1", "", "0-0"), add(0))
    costs.note("stream.add", desk.run(add(0))[0], 1, "an event added to a stream")
    costs.note(
        "stream.add_capped",
        desk.run(add(1000))[0],
        1,
        "an event added to a stream with a length cap",
    )
    for number in range(IDLE_SINKS):
        desk.do("XGROUP", "CREATE", stream.events, f"idle-{number}", "0")
    desk.run(add(1))
    at_cap = desk.run(add(1))[0]
    costs.note(
        "stream.add_at_cap", at_cap, 1, "an event that takes another one, which 10 sinks miss"
    )
    for number in range(IDLE_SINKS):
        desk.do("XGROUP", "DESTROY", stream.events, f"idle-{number}")
    desk.do("XTRIM", stream.events, "MAXLEN", 0)
    desk.run(*(add(0) for _ in range(n)))
    words = ("XREADGROUP", "GROUP", sink.name, "c1", "COUNT", n, "STREAMS", stream.events, ">")
    read, [[[_, entries]]] = desk.run(words)
    acked = desk.run(sink.ack([entry.decode() for entry, _ in entries]))[0]
    costs.note(f"sink.{n}", read + acked, n, f"taking and acknowledging an event, {n} at a time")
    desk.run(*(add(0) for _ in range(n)))
    _, [[[_, entries]]] = desk.run(words)
    each = desk.run(sink.ack_each("c1", [(entry.decode(), b"") for entry, _ in entries]))[0]
    costs.note(f"sink.ack_{n}", each, n, f"acknowledging an event, where {n} wait at once")
    costs.note("sink.renew", desk.run(sink.renew("c1"))[0], 1, "a consumer's renewal")


# --- memory ---------------------------------------------------------------------------------------


def _memory(desk: Desk, costs: Costs) -> None:
    kind = server_kind(desk)
    for name, what, steps in _states():
        bench = _LaneBench(desk)
        before = bench.bytes_kept()
        for step in steps:
            bench.run(step(bench))
        costs.figures[f"memory.{name}"] = Figure(
            value=(bench.bytes_kept() - before) / KEPT,
            unit="bytes",
            what=f"server memory of {what}: 15-byte key, 100 bytes of payload, MEMORY USAGE",
            server=kind,
        )


def _states() -> Iterator[tuple[str, str, tuple[Callable[[_LaneBench], ScriptCall], ...]]]:
    def dispatch(bench: _LaneBench) -> ScriptCall:
        return bench.dispatch(KEPT)

    def acknowledge(bench: _LaneBench) -> ScriptCall:
        return bench.advance(bench.edges(AcknowledgeEdge))

    def settle(bench: _LaneBench) -> ScriptCall:
        return bench.advance(bench.edges(DoneEdge, result=b"null"))

    yield "pending", "a job in its worker's stream", (dispatch,)
    yield "unassigned", "a job without a worker", (lambda b: b.dispatch(KEPT, unassigned=True),)
    yield "running", "a running job", (dispatch, acknowledge)
    yield "ended", "an ended job, until its outcome expires", (dispatch, settle)


def server_kind(desk: Desk) -> str:
    """Return what memory figures hang on: which server, its major version, its allocator."""
    text = desk.do("INFO").decode()
    facts: dict[str, str] = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    name = facts.get("server_name", "redis")
    version = facts.get(f"{name}_version", facts["redis_version"])
    return f"{name} {version.partition('.')[0]} {facts['mem_allocator'].partition('-')[0]}"
