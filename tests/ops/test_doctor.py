"""`pool doctor`: each row of its table by itself, what it reads, and its exit codes.

A planted pool with many troubles at once is in tests/ops/test_doctor_planted.py.
"""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs
import pytest

from pool import Handlers, Job
from pool.core.ailing import Ails
from pool.core.crash_marks import Marks
from pool.core.journal import JournalEntry
from pool.core.options import Options
from pool.core.pauses import Asked, Cordon, Pause, parse
from pool.core.plans import PlanTurn
from pool.core.record import pack_more
from pool.jobs.roster import WorkerEntry
from pool.names import Names
from pool.ops import inspect
from pool.ops.checkup import (
    SLICE,
    KeptPlan,
    LaneFacts,
    Late,
    Overlap,
    PoolFacts,
    Queue,
    ServerFacts,
    distinct,
    gather,
    sections,
)
from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main
from pool.ops.cli.doctor import diagnose, finding_lines, lines
from pool.ops.doctor import RULES, examine
from pool.ops.findings import Finding
from pool.ops.refusals import Refusal
from pool.ops.stores import SinkRow, StreamRow
from pool.redis.commands.pausing import LanePauses
from pool.redis.connection import slot_of
from pool.redis.url import Url
from pool.schedules import Every
from tests.ops.facts import BUSY, MARKED, NOW_MS, TOSSED, TTL_MS, owner, record, worker

if TYPE_CHECKING:
    from tests.nodes import Fleet

# What servers said, as they were recorded: valkey 9.1, and redis 7.2 with a replica.
MEMORY = b"# Memory\r\nused_memory:1000000\r\nmaxmemory:4000000\r\nmaxmemory_policy:noeviction\r\n"
PERSISTENCE = (
    b"# Persistence\r\nloading:0\r\nrdb_last_bgsave_status:ok\r\naof_enabled:1\r\n"
    b"aof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n"
)
REPLICATION = (
    b"# Replication\r\nrole:master\r\nconnected_slaves:2\r\nmin_slaves_good_slaves:2\r\n"
    b"slave0:ip=10.0.0.2,port=6379,state=online,offset=14,lag=1\r\nmaster_repl_offset:14\r\n"
)


STATS = (
    b"# Stats\r\nrejected_connections:0\r\nclient_output_buffer_limit_disconnections:0\r\n"
    b"acl_access_denied_cmd:0\r\n"
)
CLIENTS = b"# Clients\r\nconnected_clients:9\r\nmaxclients:10000\r\n"
LATENCIES = (
    b"# Latencystats\r\n"
    b"latency_percentiles_usec_evalsha:p50=90.111,p99=501.759,p99.9=1007.615\r\n"
    b"latency_percentiles_usec_client|setinfo:p50=1.003,p99=8.031,p99.9=8.031\r\n"
)
COMMANDS = (
    b"# Commandstats\r\n"
    b"cmdstat_evalsha:calls=11000,usec=990000,usec_per_call=90.00,rejected_calls=0\r\n"
    b"cmdstat_keys:calls=1000,usec=9,usec_per_call=0.01\r\n"
    b"cmdstat_flushall:calls=999,usec=9,usec_per_call=0.01\r\n"
    b"cmdstat_xread:calls=11000,usec=9,usec_per_call=0.01\r\n"
)


def server(
    memory: bytes = MEMORY, persistence: bytes = PERSISTENCE, replication: bytes = REPLICATION
) -> ServerFacts:
    return ServerFacts(
        of="pool:{p}:",
        name="redis",
        version="7.2.4",
        memory=sections(memory),
        persistence=sections(persistence),
        replication=sections(replication),
        stats=sections(STATS),
        clients=sections(CLIENTS),
        latencystats=sections(LATENCIES),
        commandstats=sections(COMMANDS),
    )


def facts(*records: Any, **changes: Any) -> PoolFacts:
    """Return a sound pool, but for what is changed: fields of the pool, of its lane or server."""
    lane: dict[str, Any] = {"number": 0, "now_ms": NOW_MS, "ttl_ms": TTL_MS, "jobs": 3}
    lane |= {"handlers": {"h": Options()}, "members": (owner(),), "looked": 3}
    lane |= {"records": tuple((f"k{i}", each) for i, each in enumerate(records))}
    given: dict[str, Any] = {"pool": "p", "pool_ttl_ms": TTL_MS, "workers": {"wA": worker()}}
    given |= {"servers": (server(),)}
    names = {each.name for each in attrs.fields(LaneFacts)}
    lane |= {name: changes.pop(name) for name in names & changes.keys()}
    return PoolFacts(lanes=(LaneFacts(**lane),), **{**given, **changes})


def queue(handler: str, waited_s: float) -> tuple[Queue, ...]:
    return (Queue(handler=handler, count=7, oldest_ms=NOW_MS - 1000 * waited_s, keys=("a", "b")),)


def asked(*entries: Pause | Cordon) -> Asked:
    return parse((each.entry, each.pack()) for each in entries)


ALL = Pause(by="me", reason="a test")


def paused(pause: Pause | None, stands: LanePauses | None = None) -> PoolFacts:
    """Return a pool where that is asked for, and stands in its lane, unless that has another."""
    if stands is None and pause is not None:
        keys = (pause.key,) if pause.key else ()
        names = (pause.handler,) if pause.handler else ()
        stands = LanePauses(pause.what == "pool", names, keys, len(keys))
    entries = asked(*([] if pause is None else [pause]))
    return facts(asked=entries, pauses=stands, queues=queue("h", 70))


def late(**owner_changes: Any) -> dict[str, Any]:
    return {
        "late_starts": Late(count=1, oldest_ms=20_000.0, keys=("k",)),
        "starts": {"k": record("pending")},
        "members": (owner(**owner_changes),),
    }


LONG = Options(timeout_s=1.0, progress_timeout_s=1.0)
OLD = {"since_ms": NOW_MS - 60_000, "accepted": (NOW_MS - 900_000) * 1000}


def node(**ails: int) -> dict[str, Any]:
    return {"members": (owner("n1.1", info=None, ails=Ails(**ails), takes=10**9),)}


def siblings(*nodes: str, kept: int = 3, **changes: Any) -> dict[str, WorkerEntry]:
    """Return a worker each of the children of one parent; the first one is settled."""
    facts = {"siblings": f"9/{kept}", **changes}
    made = [worker(f"w{node}", node=node, **facts) for node in nodes]
    return {each.id: each for each in (attrs.evolve(made[0], is_settled=True), *made[1:])}


def noted(edge: str, count: int, ago_s: float = 1.0, **more: Any) -> dict[str, Any]:
    at = datetime.fromtimestamp(NOW_MS / 1000 - ago_s, UTC)
    facts: dict[str, Any] = {"position": "", "at": at, "lane": 0, "owner": "n1"}
    facts["detail"] = "error=oh"
    return {"recent": tuple(JournalEntry(edge=edge, **facts, **more) for _ in range(count))}


def sinks(**changes: Any) -> dict[str, Any]:
    sink: dict[str, Any] = {"name": "s", "consumers": 1, "lag": 0, "held": 0, "parked": 0}
    row = SinkRow(**{**sink, "silent_s": 1.0, **changes})
    return {"streams": (StreamRow(name="orders", length=9, added=9, sinks=(row,)),)}


def told(**texts: str) -> PoolFacts:
    """Return a pool whose server says this, `NAME__FIELD` by section."""
    changes: dict[str, Any] = {}
    for name, text in texts.items():
        section, _, field = name.partition("__")
        changes.setdefault(section, {})[field] = text
    return facts(servers=(attrs.evolve(server(), **changes),))


LEFT_BY_A = pack_more(left="wA")
[ENTRY] = noted("data.older", 1)["recent"]
OLDER = tuple(attrs.evolve(ENTRY, detail=f"older_s={s}") for s in (0.504, 8.608, 1.0))

ROWS: list[tuple[str, PoolFacts, str, str]] = [
    ("data-lost", facts(is_lost=True), "lane 0 has no data", "INFO persistence"),
    ("cannot-be-read", facts(unread=("pool:{p}:x: WRONGTYPE",)), "WRONGTYPE", "TYPE 'pool:{p}:x'"),
    ("cannot-be-read", facts(unread=("the map of workers: ERR",)), "ERR", "redis-cli PING"),
    (
        "data-older",
        facts(recent=OLDER),
        "came back with older data: older_s=8.608",
        "pool events",
    ),
    (
        "lane-away",
        facts(away={3: "TRYAGAIN"}),
        "lane 3 does not answer: TRYAGAIN",
        "redis-cli PING",
    ),
    ("unreadable-records", facts(unreadable=("k",)), "1 records cannot be read", "--fix --yes"),
    ("astray", facts(astray=("k", "l")), "2 jobs stand where", "--fix --yes"),
    ("ttl-apart", facts(pool_ttl_ms=5_000), "the pool's TTL, 5 s", "pool ttl 5"),
    ("nobody-here", facts(members=(), workers={}), "and 3 jobs are", "pool run"),
    (
        "dead-not-reaped",
        facts(members=(owner(lease_s=-11.0),)),
        "they own 2 jobs",
        "pool doctor --fix --yes",
    ),
    ("claim-held", facts(late_claims=(("wX.1", 20_000.0),)), "1 dead members", "--fix --yes"),
    ("loop-hangs", facts(members=(owner(takes=None),)), "(pid 41 on alpha) hangs", "kill -9 41"),
    ("parts-down", facts(**node(down=2)), "2 parts of node n1", "pool nodes"),
    ("parts-crash", facts(**noted("actor.crashed", 3)), "n1 crash again", "pool events"),
    ("leases-lost", facts(**noted("lease.lost", 3)), "n1 has lost its leases 3 t", "pool events"),
    ("renewals-fail", facts(**node(failed=4)), "4 renewals of node n1", "pool nodes"),
    ("loop-lag", facts(**node(lag_ms=400)), "node n1 is late, by 400 ms", "pool nodes"),
    ("loop-busy", facts(**node(busy=80)), "node n1 was at work at 80 of 100 looks", "pool nodes"),
    (
        "processes-missing",
        facts(workers=siblings("n1", "n2")),
        "of 3 processes of the parent 9 on alpha 2 take part",
        "pool nodes",
    ),
    ("collector-pauses", facts(**node(pause_ms=900)), "n1 up for 900 ms", "pool nodes"),
    ("copies-behind", facts(**node(copies=2)), "2 copies of maps at node n1", "pool nodes"),
    ("clock-stepped", facts(**noted("clock", 1)), "lane 0 was set", "pool events"),
    ("clock-stepped", facts(counters={"behind": 1}), "is behind", "pool events"),
    (
        "drain-late",
        facts(asked=asked(Cordon(id="n1", is_drain=True, since_ms=NOW_MS - 700_000))),
        "12 min ago, and has 2 jobs yet",
        "pool jobs --owner wA",
    ),
    ("batch-lacks", facts(lacking={"b1": 2, "b2": 5}), "2 batches under", "pool batches show b2"),
    ("results-kept", facts(counters={"results": 60 * 2**20}, kept=9), "60 MiB are kept", "rates"),
    ("sink-behind", facts(**sinks(lag=5, waits_s=90.0)), "5 events wait", "pool streams orders"),
    (
        "sink-behind",
        facts(**sinks(lag=5, waits_s=90.0, silent_s=80.0)),
        "and no consumer is there",
        "pool streams orders",
    ),
    ("consumers-stale", facts(**sinks(held=3, silent_s=80.0)), "3 events are held", "streams"),
    ("sink-parked", facts(**sinks(parked=2)), "2 events were given up", "pool streams orders"),
    ("paused", paused(ALL), "the whole pool is paused, by me: a test; 7 jobs wait", "pool resume"),
    ("paused", paused(Pause(handler="h")), "handler h is", "pool resume --handler h"),
    ("paused", paused(Pause(key="b")), "1 jobs wait", "pool resume --key b"),
    ("half-paused", paused(ALL, LanePauses()), "in 0 of 1 lanes", "pool pause --yes"),
    ("half-paused", paused(None, LanePauses(handlers=("h",))), "1 of 1", "resume --handler h"),
    ("half-paused", paused(Pause(key="a", is_over=True)), "1 of 1", "pool resume --key a"),
    ("cordoned", facts(asked=asked(Cordon(id="n1"))), "n1 is cordoned", "pool uncordon n1"),
    ("cordoned", facts(asked=asked(Cordon(id="x", is_drain=True))), "is no more", "pool status"),
    (
        "cordoned-off",
        facts(asked=asked(Cordon(id="wA", by="me", reason="a look")), queues=queue("h", 1)),
        "all 1 workers that have it are cordoned, by me: a look",
        "pool uncordon wA",
    ),
    ("no-such-handler", facts(unqueued=2), "2 jobs wait", "pool run"),
    (
        "no-such-handler",
        facts(record("unassigned", handler="typo"), unqueued=1),
        "registered (typo)",
        "pool run",
    ),
    (
        "nobody-reads",
        facts(record("waiting", more=LEFT_BY_A)),
        "1 jobs have arguments that none",
        "pool why k0",
    ),
    ("no-worker", facts(queues=queue("x", 5)), "'x', which no worker has", "pool run"),
    ("backlog", facts(queues=queue("h", 70)), "of 1 workers that have it 1 take jobs, 4", "run"),
    (
        "backlog",
        facts(queues=queue("h", 70), members=(owner(takes=0),)),
        "0 take jobs",
        "pool why a",
    ),
    ("start-late", facts(**late()), "wA.1, which is live", "pool why k"),
    ("start-late", facts(**late(takes=0)), "which is closed", "pool why k"),
    ("start-at-hung", facts(**late(takes=None)), "which is hung", "kill -9 41"),
    ("start-at-dead", facts(**late(claim="x|1|1|0")), "which is fenced", "--fix --yes"),
    ("due-late", facts(late_due=Late(count=9, oldest_ms=20_000.0, keys=("k",))), "9", "--fix"),
    ("not-carried", facts(late_out={3: 20_000.0}, counters={"outgoing": 4}), "4 mess", "--fix"),
    ("batch-late", facts(late_batches=Late(count=2, oldest_ms=20_000.0)), "2 batches", "--fix"),
    (
        "schedule-late",
        facts(late_schedules=Late(count=2, oldest_ms=20_000.0, keys=("s",))),
        "2 schedules are due",
        "--fix",
    ),
    (
        "schedule-late",
        facts(
            late_schedules=Late(count=2, oldest_ms=20_000.0, keys=("s",)),
            crons=frozenset({"s"}),
            has_cron=False,
        ),
        "2 schedules are due",
        "pip install 'keyed-pool[schedules]'",
    ),
    (
        "schedule-unreadable",
        facts(unreadable_schedules=("no name",)),
        "1 schedules cannot be read",
        "redis-cli HDEL 'pool:{p:0}:schedules' 'no name'",
    ),
    (
        "schedule-unreadable",
        facts(unreadable_schedules=("odd",)),
        "1 schedules cannot be read",
        "pool schedules remove odd",
    ),
    (
        "schedule-missed",
        facts(missed={"a": 2, "b": 7}),
        "2 schedules have had times without a job since they were made, the most 7",
        "pool schedules show b",
    ),
    (
        "plan-held",
        facts(plans=(KeptPlan(name="p1", turn=PlanTurn(held=3, held_keys=("k",))),)),
        "plan p1 would stop 3",
        "pool plans show p1",
    ),
    (
        "plan-failing",
        facts(plans=(KeptPlan(name="p1", turn=PlanTurn(problem="it is on fire")),)),
        "plan p1: it is on fire",
        "pool plans show p1",
    ),
    ("too-long", facts(record("running", **OLD), handlers={"h": LONG}), "timeout_s", "pool why k0"),
    (
        "runs-long",
        facts(record("running", since_ms=NOW_MS - 61_000), usual={"h": 6.0}),
        "'h' run, one for 61.0 s, and 99 of 100 take 6.0 s at most",
        "pool why k0",
    ),
    (
        "runs-long",
        facts(record("running", since_ms=NOW_MS - 86_401_000)),
        "nothing says how long is usual",
        "pool why k0",
    ),
    (
        "schedule-overlaps",
        facts(overlaps=(Overlap(name="s", key="k", handler="h", times=3, ran_s=7.0),)),
        "schedule 's' has made no job 3 times in a row: the one of its key has run for 7.0 s",
        "pool why k",
    ),
    ("no-progress", facts(record("running", **OLD), handlers={"h": LONG}), "progress", "why k0"),
    (
        "stopping",
        facts(record("running", intent="sno")),
        "told to end, and have not: wA.1",
        "pool why k0",
    ),
    (
        "failing",
        facts(record("waiting", attempt=4, error="ValueError: no")),
        "'h' fail again and again, at attempt 4: ValueError: no",
        "pool why k0",
    ),
    (
        "failing",
        facts(record("waiting", attempt=4, error="E"), **noted("retried", 3, handler="h")),
        "at attempt 4, 3 failures within 5 min: E",
        "pool why k0",
    ),
    ("suspects", facts(record("running", marks=MARKED)), "1 jobs were aboard", "pool why k0"),
    ("suspects", facts(record("running", marks=TOSSED)), "in 40 rounds", "pool why k0"),
    ("queued-long", facts(record("queued", **OLD)), "stood behind", "pool why k0"),
    ("inbox", facts(inboxes={"k": 120, "l": 3}), "1 jobs have 100 messages", "pool why k"),
    ("parked", facts(parked=5, parked_recently=2, parked_last=("i k",)), "5 dead", "parked list"),
    ("retrying", facts(record("waiting", attempt=2)), "1 jobs wait", "pool why k0"),
    ("handing-over", facts(members=(owner(info=worker(is_draining=True)),)), "leaves", ""),
    (
        "server-evicts",
        facts(servers=(server(MEMORY.replace(b"noeviction", b"allkeys-lru")),)),
        "allkeys-lru",
        "maxmemory-policy noeviction",
    ),
    (
        "server-memory",
        facts(servers=(server(MEMORY.replace(b"y:1000000", b"y:3300000")),)),
        "3 of 4 MiB are used, 82 %",
        "CONFIG SET maxmemory 8000000",
    ),
    (
        "server-no-limit",
        facts(servers=(server(MEMORY.replace(b"maxmemory:4000000", b"maxmemory:0")),)),
        "maxmemory is not set",
        "CONFIG SET maxmemory",
    ),
    (
        "server-cannot-save",
        facts(servers=(server(persistence=PERSISTENCE.replace(b"status:ok", b"status:err", 1)),)),
        "rdb_last_bgsave_status",
        "INFO persistence",
    ),
    (
        "server-no-log",
        facts(servers=(server(persistence=PERSISTENCE.replace(b"enabled:1", b"enabled:0")),)),
        "no append-only file",
        "appendonly yes",
    ),
    (
        "server-min-replicas",
        facts(servers=(server(replication=REPLICATION.replace(b"min_slaves", b"no_slaves")),)),
        "1 replicas",
        "min-replicas-to-write 1",
    ),
    (
        "server-last-replica",
        told(replication__min_slaves_good_slaves="1"),
        "not 0 and 1 replicas are there: the loss of one stops",
        "INFO replication",
    ),
    (
        "server-last-replica",
        facts(servers=(attrs.evolve(server(), config={"min-replicas-to-write": "2"}),)),
        "is 2 and 2 replicas are there: the loss of one stops",
        "INFO replication",
    ),
    (
        "server-writes-refused",
        told(replication__min_slaves_good_slaves="0"),
        "all writes are refused",
        "INFO replication",
    ),
    (
        "server-lag",
        facts(servers=(server(replication=REPLICATION.replace(b"lag=1", b"lag=6")),)),
        "by up to 6 s",
        "INFO replication",
    ),
    (
        "server-versions",
        facts(servers=(server(), attrs.evolve(server(), version="7.0.1"))),
        "2 versions: redis 7.0.1, redis 7.2.4",
        "",
    ),
    (
        "server-slow",
        told(latencystats__latency_percentiles_usec_keys="p50=9.9,p99=80216.063,p99.9=90000.1"),
        "keys 80 ms",
        "SLOWLOG",
    ),
    (
        "server-clients",
        told(clients__connected_clients="81", clients__maxclients="100"),
        "81 of 100",
        "maxclients 200",
    ),
    ("server-turned-away", told(stats__rejected_connections="3"), "3 connections", "INFO clients"),
    (
        "server-buffers",
        told(stats__client_output_buffer_limit_disconnections="2"),
        "2 connections were cut off",
        "CLIENT LIST",
    ),
    (
        "server-buffers",
        told(clients__client_recent_max_output_buffer="40000000"),
        "38 MiB for one",
        "CLIENT LIST",
    ),
    (
        "server-small-buffers",
        facts(
            servers=(
                attrs.evolve(
                    server(),
                    config={
                        "client-output-buffer-limit": "normal 32768 0 0 slave 268435456 67108864 60"
                    },
                ),
            )
        ),
        "normal clients is 32,768 bytes",
        "client-output-buffer-limit 'normal 0 0 0'",
    ),
    (
        "cluster-slots",
        told(cluster__cluster_state="fail", cluster__cluster_slots_ok="10923"),
        "5461 slots of the cluster are served by nobody (its state is fail)",
        "CLUSTER NODES",
    ),
    (
        "cluster-coverage",
        facts(
            servers=(
                attrs.evolve(
                    server(),
                    cluster={"cluster_state": "ok"},
                    config={"cluster-require-full-coverage": "yes"},
                ),
            )
        ),
        "one slot that nobody serves stops all",
        "cluster-require-full-coverage no",
    ),
    (
        "cluster-slot-open",
        facts(
            servers=(
                attrs.evolve(server(), open_slots={slot_of(Names("p", 0).prefix): "MIGRATING"}),
            )
        ),
        "of lane 0, is MIGRATING",
        "--cluster fix",
    ),
    (
        "rights-refused",
        facts(
            servers=(
                attrs.evolve(
                    server(),
                    refusals=(Refusal(user="ann", objects=("info",), count=7, ago_s=61.0),),
                ),
            )
        ),
        "user 'ann' has no right to 'info': 7 calls were refused, the last 61.0 s ago",
        "pool acl p",
    ),
    (
        "rights-refused",
        facts(
            servers=(
                attrs.evolve(
                    server(),
                    refusals=(Refusal(user="ann", objects=("info", "scan"), count=2, ago_s=1.0),),
                ),
            )
        ),
        "user 'ann' has no right to 'info', 'scan'",
        "pool acl p --operator",
    ),
    ("rights", facts(may_list=False), "streams and their sinks", "--operator"),
    (
        "rights",
        facts(servers=(attrs.evolve(server(), persistence=None),)),
        "for persistence",
        "pool acl p",
    ),
]


@pytest.mark.parametrize(
    "workers",
    [
        siblings("n1", "n2", "n3"),
        siblings("n1", "n2", is_draining=True),
        {"wA": worker(siblings="9/3")},  # it has just begun
        {"wA": worker(siblings="x/9", is_settled=True)},  # somebody else wrote it
        siblings("n1", kept=1),
    ],
)
def test_processes_that_are_there_or_leave_are_not_missing(workers: Any) -> None:
    assert "processes-missing" not in {each.rule for each in examine(facts(workers=workers))}


def of_rule(found: list[Finding], rule: str) -> list[Finding]:
    return [each for each in found if each.rule == rule]


@pytest.mark.parametrize(("rule", "given", "words", "command"), ROWS)
def test_each_row_finds_its_trouble_and_names_what_mends_it(
    rule: str, given: PoolFacts, words: str, command: str
) -> None:
    [finding] = of_rule(examine(given), rule)
    assert words in finding.says
    assert command in finding.command
    assert finding.advice
    assert finding.count > 0
    json.dumps(attrs.asdict(finding))


def test_every_row_has_been_seen_and_each_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(set(names)) == sorted(names)
    assert sorted({row[0] for row in ROWS}) == sorted(names)


def test_of_a_sound_pool_nothing_is_found() -> None:
    assert examine(facts(record("running"), record("unassigned"))) == []


@pytest.mark.parametrize(
    "given",
    [
        facts(members=(owner(lease_s=-9.0),)),  # within a TTL
        facts(members=(owner(lease_s=-11.0),), is_held=True),
        facts(queues=queue("h", 50)),
        facts(
            record("waiting", more=LEFT_BY_A),
            workers={"wA": worker("wA"), "wB": worker("wB")},
        ),
        facts(record("running", since_ms=NOW_MS - 2_000), handlers={"h": LONG}),
        facts(record("running", since_ms=NOW_MS - 59_000), usual={"h": 1.0}),
        facts(record("running", since_ms=NOW_MS - 79_000), usual={"h": 8.0}),
        facts(record("running", since_ms=NOW_MS - 86_399_000)),
        facts(record("running", since_ms=NOW_MS - 86_401_000, kind="service"), usual={"h": 1.0}),
        facts(record("running", since_ms=NOW_MS - 90_000_000, more=f"p{NOW_MS - 9}/1/2/")),
        facts(overlaps=(Overlap(name="s", key="k", handler="h", times=2, ran_s=7.0),)),
        facts(record("queued", accepted=(NOW_MS - 599_000) * 1000)),
        facts(record("running", marks=Marks(1))),
        facts(inboxes={"k": 99}),
        facts(servers=(server(MEMORY.replace(b"y:1000000", b"y:3200000")),)),
        facts(servers=(server(replication=REPLICATION.replace(b"lag=1", b"lag=5")),)),
        facts(servers=(server(replication=b"role:master\r\nconnected_slaves:0\r\n"),)),
        facts(**noted("actor.crashed", 2)),
        facts(**noted("actor.crashed", 3, ago_s=301.0)),
        facts(**noted("clock", 1, ago_s=301.0)),
        facts(**sinks(lag=5, waits_s=59.0, held=3, silent_s=59.0)),
        facts(counters={"results": 50 * 2**20}),
        told(latencystats__latency_percentiles_usec_xread="p50=9.9,p99=80216.063"),
        told(latencystats__latency_percentiles_usec_evalsha="p50=9.9,p99=40216.063"),
        told(latencystats__latency_percentiles_usec_flushall="p50=9.9,p99=80216.063"),
        told(clients__connected_clients="80", clients__maxclients="100"),
        told(stats__rejected_connections="0", stats__acl_access_denied_cmd="7"),
        told(cluster__cluster_state="ok", cluster__cluster_slots_ok="16384"),
    ],
)
def test_up_to_its_threshold_nothing_is_found(given: PoolFacts) -> None:
    assert examine(given) == []


def test_a_server_of_many_lanes_is_told_of_once() -> None:
    """As in a cluster, where each lane is asked by itself."""
    replids = {"a": "1", "b": "2", "c": "1"}
    asked_of = [
        attrs.evolve(server(), of=of, replication={"master_replid": replid})
        for of, replid in replids.items()
    ]
    unknown = [attrs.evolve(server(), of=of, replication=None) for of in "de"]
    assert [each.of for each in distinct([*asked_of, *unknown])] == ["a c", "b", "d", "e"]


def test_the_worst_comes_first() -> None:
    given = facts(record("waiting", attempt=2), parked=1, is_lost=True)
    assert [each.severity for each in examine(given)] == ["error", "warning", "note"]


# --- what it reads -------------------------------------------------------------------------------

handlers = Handlers()


@handlers.job("stay")
async def stay(job: Job) -> None:
    await anyio.sleep_forever()


async def found(fleet: Fleet, **more: Any) -> dict[str, Finding]:
    told = await diagnose(fleet.pool, Url.parse(fleet.url), **more)
    found = [each for each in told.findings if each.severity != "note"]
    return {each.rule: each for each in found if each.rule not in BUSY}


@pytest.mark.anyio
async def test_a_pool_at_work_is_well_and_all_its_jobs_are_looked_at(fleet: Fleet) -> None:
    node = await fleet.node(handlers, capacity=2)
    ref = await node.dispatch(stay, "k")
    await ref.started(timeout_s=30)
    await node.options(if_exists="queue").dispatch(stay, "k")
    await node.options(delay_s=600.0).dispatch(stay, "later")
    told = await diagnose(fleet.pool, Url.parse(fleet.url))
    assert (told.is_well, told.looked, told.jobs, told.workers) == (True, 3, 3, 1)
    assert told.pool in next(lines(told))
    await node.stop_all(timeout_s=30)


@pytest.mark.anyio
async def test_what_an_index_lost_and_what_cannot_be_read_is_found_and_put_right(
    fleet: Fleet,
) -> None:
    """G-05, told before a walk comes by; mended by being a node, and by nothing else."""
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    await node.options(delay_s=600.0).dispatch(stay, "lost")
    await fleet.leave(node)
    fleet.client.zrem(fleet.names.due, "k:lost")
    fleet.client.hset(fleet.names.jobs, "spoilt", "no record")
    told = await found(fleet)
    assert (told["astray"].keys, told["unreadable-records"].keys) == (("lost",), ("spoilt",))
    dry = await diagnose(fleet.pool, Url.parse(fleet.url), is_fix=True)
    assert dry.is_dry
    assert "would mend" in "\n".join(lines(dry))
    assert fleet.client.zscore(fleet.names.due, "k:lost") is None
    mended = await diagnose(fleet.pool, Url.parse(fleet.url), is_fix=True, is_sure=True)
    assert {each.rule for each in mended.mended} == {"astray", "unreadable-records"}
    assert fleet.client.zscore(fleet.names.due, "k:lost") is not None
    assert set(await found(fleet)) == {"parked", "nobody-here"}  # the spoilt one is a letter now


@pytest.mark.anyio
async def test_a_lane_by_itself_is_told_of_and_the_others_are_looked_at(fleet: Fleet) -> None:
    node = await fleet.node(handlers, lanes=3, lease_ttl_s=1.0)
    await node.options(delay_s=600.0).dispatch(stay, "k")
    fleet.client.hset(fleet.names.lane, "ttl", 7000)
    told = await diagnose(fleet.pool, Url.parse(fleet.url))
    [apart] = of_rule(told.findings, "ttl-apart")
    assert (apart.where, apart.command, told.lanes) == (("lane 0",), "pool ttl 1", 3)
    told = await diagnose(fleet.pool, Url.parse(fleet.url), is_fix=True, is_sure=True)
    assert [each.rule for each in told.mended] == ["ttl-apart"]
    await node.stop_all(timeout_s=30)


@pytest.mark.anyio
async def test_schedules_and_plans_in_trouble_are_told_of(fleet: Fleet) -> None:
    fleet.is_audited = False
    mine, wanted = Handlers(), ["a", "b"]
    mine.include(handlers)
    mine.plan("feeds", "stay", every_s=3600.0)(lambda _: list(wanted))
    node = await fleet.node(mine)
    with anyio.fail_after(60):
        while "feeds" not in await node.plans():  # noqa: ASYNC110 - it comes by itself
            await anyio.sleep(0.01)
    await node.plan("feeds").apply(60)
    await node.schedule("often", Every(3600), stay, "k")
    assert set(await found(fleet)) == set()
    wanted.clear()
    await node.plan("feeds").apply(60)
    names = fleet.names
    fleet.client.hset(names.schedules, "odd", "this is no schedule")
    told = await found(fleet)
    assert set(told) == {"plan-held", "schedule-unreadable"}
    assert sorted(told["plan-held"].keys) == ["a", "b"]
    assert told["schedule-unreadable"].keys == ("odd",)
    wanted.append("a\n")
    await node.plan("feeds").apply(60)
    assert "POOLKEY" in (await found(fleet))["plan-failing"].says
    await fleet.leave(node)
    text: Any = fleet.client.hget(names.schedules, "often")
    line, _, rest = text.decode().partition("\n")
    *words, _, token = line.split(" ")
    fleet.client.hset(names.schedules, "often", f"{' '.join([*words, '3', token])}\n{rest}")
    fleet.client.zadd(names.scheduled, {"often": 1.0})
    told = {each.rule: each for each in (await diagnose(fleet.pool, Url.parse(fleet.url))).findings}
    assert (told["schedule-late"].keys, told["schedule-late"].fix) == (("often",), "recover")
    assert (told["schedule-missed"].keys, told["schedule-missed"].count) == (("often",), 1)


@pytest.mark.anyio
async def test_jobs_that_come_and_go_have_a_handler(fleet: Fleet) -> None:
    """How many there are and how long the queues are is read at two moments."""
    fleet.is_audited = False
    await fleet.node(handlers)
    names, over = fleet.names, threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            for number in (1, -1):
                with fleet.client.pipeline(transaction=True) as pipe:
                    pipe.hincrby(names.lane, "unassigned", number)
                    if number > 0:
                        pipe.zadd(names.unassigned("stay"), {"k": 1.0})
                    else:
                        pipe.zrem(names.unassigned("stay"), "k")
                    pipe.execute()

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(come_and_go)
        try:
            async with inspect.opened(fleet.pool, Url.parse(fleet.url)) as (pipeline, known):
                for _ in range(100):
                    assert "no-such-handler" not in await found(fleet)
                    assert "" not in (await inspect.view(pipeline, known)).waiting_for
        finally:
            over.set()
        await anyio.to_thread.run_sync(going.result)


@pytest.mark.anyio
async def test_no_command_looks_at_more_than_a_page(fleet: Fleet, redis_url: str) -> None:
    """So that a pool of a million jobs is looked at as gently as one of a thousand."""
    fleet.is_audited = False
    node = await fleet.node(handlers)
    await node.options(delay_s=600.0).dispatch(stay, "k")
    names = fleet.names
    text: Any = fleet.client.hget(names.jobs, "k")
    keys = [f"k{i}" for i in range(1499)]
    fleet.client.zadd(names.due, {f"k:{key}": 1e15 for key in keys})
    fleet.client.hset(names.jobs, mapping={key: text for key in keys})  # noqa: C420 - its type
    asked: list[tuple[Any, ...]] = []

    class Spy:
        def __init__(self, pipeline: Any) -> None:
            self._pipeline = pipeline
            self.server = pipeline.server

        def at(self, _: str) -> Spy:
            return self

        async def replies_to(self, commands: Any) -> Any:
            commands = list(commands)
            asked.extend(commands)
            return await self._pipeline.replies_to(commands)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pipeline, name)

    wiring = fleet.wiring(node)
    pipeline: Any = Spy(wiring.context.pipeline)
    pool = await inspect.find(wiring.context.pipeline, fleet.pool)
    assert pool is not None
    told = await gather(pipeline, pool, records_max=1000)
    assert told.jobs == 1500
    assert 1000 <= told.looked < 1500
    told = await gather(pipeline, pool, records_max=None)
    assert told.looked >= 1500
    for command in asked:
        match command:
            case ("HSCAN", _, _, "COUNT", count):
                assert count <= SLICE
            case ("ZRANGE", _, first, last, *_):
                assert 0 <= last - first < 2_000
            case ("XREVRANGE", *_, "COUNT", count):
                assert count <= SLICE
            case ("HGETALL", name):
                assert name in (fleet.names.lane, fleet.names.rates)  # both bounded
            case ("ZMSCORE" | "HMGET" | "SMISMEMBER", _, *members):
                assert len(members) <= 2 * SLICE
            case (word, *_):
                assert word in (
                    *("TIME", "HLEN", "ZCARD", "SCARD", "XLEN", "LLEN", "ZCOUNT", "HKEYS", "INFO"),
                )


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_command_exits_by_what_it_found(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--pool", fleet.pool, "--url", fleet.url]

    async def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await anyio.to_thread.run_sync(main, ["doctor", *words])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert (await run(*where))[0] == USAGE  # no node has ever joined
    node = await fleet.node(handlers)
    code, said = await run(*where, "--json")
    told = json.loads(said)
    assert (code, told["ok"], told["v"]) == (OK, True, 1)
    await node.options(allow_unknown=True).dispatch("typo", "k")
    code, said = await run(*where)
    assert code == FINDING
    assert "no-such-handler" in said
    assert "(typo)" in said
    code, said = await run(*where, "--fix")
    assert "nothing that --fix could mend" in said
    assert (await run(*where, "--yes"))[0] == USAGE
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, said = await run("--pool", fleet.pool, "--url", f"redis://127.0.0.1:{port}")
    assert code == UNREACHABLE
    await node.stop("k", timeout_s=30)


def test_the_inbox_finding_counts_jobs_and_not_their_messages() -> None:
    """One job with 150 messages is one key, and no "149 more"."""
    [found] = [each for each in examine(facts(inboxes={"k": 150})) if each.rule == "inbox"]
    assert (found.count, found.keys) == (1, ("k",))
    assert "        keys    k" in finding_lines(found)
