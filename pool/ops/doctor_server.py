"""What is wrong with the servers that hold a pool, by what they say of themselves.

A counter that a server keeps since it started tells that something has been, not that it is: such a
row is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pool.names import Control, Names
from pool.ops.checkup import PoolFacts, ServerFacts
from pool.ops.findings import Rule, Spot
from pool.ops.why import span
from pool.redis.acl import OPERATING
from pool.redis.connection import slot_of
from pool.redis.reads import READ_BYTES_MAX

MEMORY_SHARE: Final = 0.8  # of its limit
CLIENTS_SHARE: Final = 0.8  # likewise
SLOW_MS: Final = 50.0
CALLS_MIN: Final = 1_000  # of a command, before anything is said of it
OBJECTS_TOLD: Final = 3
BUFFER_BYTES: Final = 32 * 1024 * 1024
SLOTS: Final = 16_384
# What waits by itself, and is no slower for that.
WAITING: Final = frozenset({"xread", "xreadgroup", "wait", "waitaof", "blpop", "brpop", "blmove"})


def _rights(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        missing = [name for name, section in server.sections().items() if section is None]
        if missing:
            yield Spot(
                says=f"this user may not ask the server for {', '.join(missing)}: nothing is "
                "known of that",
                count=len(missing),
                where=(server.of,),
                command=f"pool acl {facts.pool}",
            )
    if not facts.may_list:
        yield Spot(
            says="this user may not list the names of keys: streams and their sinks were not "
            "looked at",
            command=f"pool acl {facts.pool} --operator",
        )


def _denied(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        for refusal in server.refusals:
            objects = ", ".join(map(repr, refusal.objects[:OBJECTS_TOLD]))
            yield Spot(
                says=f"user {refusal.user!r} has no right to {objects}: {refusal.count} calls were "
                f"refused, the last {span(refusal.ago_s)} ago",
                count=refusal.count,
                where=(server.of,),
                command=f"pool acl {facts.pool}{_operating(refusal.objects)}",
            )


def _operating(objects: Sequence[str]) -> str:
    """Return the option by which `pool acl` prints the rights that only operators have."""
    return "" if OPERATING.isdisjoint(objects) else " --operator"


def _versions(facts: PoolFacts) -> Iterator[Spot]:
    by_version: dict[str, list[str]] = {}
    for server in facts.servers:
        by_version.setdefault(f"{server.name} {server.version}", []).append(server.of)
    if len(by_version) > 1:
        yield Spot(
            says=f"the servers of this pool are of {len(by_version)} versions: "
            f"{', '.join(sorted(by_version))}",
            count=len(by_version),
            where=tuple(each for places in by_version.values() for each in places),
        )


def _words(text: str | None) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in (text or "").split(","))


def _slow(facts: PoolFacts) -> Iterator[Spot]:
    begins = "latency_percentiles_usec_"
    for server in facts.servers:
        slow = dict[str, float]()
        for name, text in (server.latencystats or {}).items():
            command = name.removeprefix(begins)
            calls = _number(_words((server.commandstats or {}).get(f"cmdstat_{command}")), "calls")
            if calls and calls >= CALLS_MIN and command.partition("|")[0] not in WAITING:
                told = _words(text)
                slow[command] = (_number(told, "p99") or 0.0) / 1000
        slow = {command: ms for command, ms in slow.items() if ms >= SLOW_MS}
        if slow:
            names = sorted(slow, key=lambda each: -slow[each])
            yield Spot(
                says="of these commands one in a hundred has kept the server for long since it "
                f"started: {', '.join(f'{each} {slow[each]:.0f} ms' for each in names[:5])}",
                count=len(slow),
                where=(server.of,),
                command="redis-cli SLOWLOG GET 10",
            )


def _clients(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        there, most = (_number(server.clients, n) for n in ("connected_clients", "maxclients"))
        if there is not None and most and there > CLIENTS_SHARE * most:
            yield Spot(
                says=f"{there:.0f} of {most:.0f} connections are taken: further nodes are refused",
                count=int(there),
                where=(server.of,),
                command=f"redis-cli CONFIG SET maxclients {2 * most:.0f}",
            )


def _turned_away(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        refused = _number(server.stats, "rejected_connections")
        if refused:
            yield Spot(
                says=f"{refused:.0f} connections were turned away since it started: it had too "
                "many, or stood still until their clients had gone",
                count=int(refused),
                where=(server.of,),
                command="redis-cli INFO clients",
            )


def _buffers(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        cut = _number(server.stats, "client_output_buffer_limit_disconnections") or 0
        most = _number(server.clients, "client_recent_max_output_buffer") or 0
        if cut or most >= BUFFER_BYTES:
            yield Spot(
                says=f"replies pile up in it: {most / 2**20:.0f} MiB for one connection of late, "
                f"and {cut:.0f} connections were cut off for that since it started",
                count=max(1, int(cut)),
                where=(server.of,),
                command="redis-cli CLIENT LIST",
            )


def _small_buffers(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        words = server.config.get("client-output-buffer-limit", "").split()
        hard = dict(zip(words[::4], words[1::4], strict=False)).get("normal", "0")
        if hard.isdecimal() and 0 < int(hard) < READ_BYTES_MAX:
            yield Spot(
                says=f"client-output-buffer-limit of normal clients is {int(hard):,} bytes: "
                "instead of a larger answer, as a payload or a result, the connection is ended",
                where=(server.of,),
                command="redis-cli CONFIG SET client-output-buffer-limit 'normal 0 0 0'",
            )


def _slots(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        state, well = (
            server.cluster.get("cluster_state"),
            _number(server.cluster, "cluster_slots_ok"),
        )
        if state is None:
            continue
        missing = SLOTS - int(well if well is not None else SLOTS)
        if state != "ok" or missing:
            yield Spot(
                says=f"{missing} slots of the cluster are served by nobody (its state is {state})",
                count=max(1, missing),
                where=(server.of,),
                command="redis-cli CLUSTER NODES",
            )


def _open_slots(facts: PoolFacts) -> Iterator[Spot]:
    numbers = sorted({*facts.away, *(lane.number for lane in facts.lanes)})
    ours = {slot_of(Names(facts.pool, n).prefix): f"lane {n}" for n in numbers}
    ours[slot_of(Control(facts.pool).prefix)] = "the control keys"
    for server in facts.servers:
        for slot, how in sorted(server.open_slots.items()):
            if slot in ours:
                yield Spot(
                    says=f"slot {slot}, of {ours[slot]}, is {how}",
                    where=(server.of,),
                    command="redis-cli --cluster fix HOST:PORT",
                )


def _coverage(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        if server.cluster and server.config.get("cluster-require-full-coverage") == "yes":
            yield Spot(
                says="cluster-require-full-coverage is yes: one slot that nobody serves stops all "
                "lanes",
                where=(server.of,),
                command="redis-cli CONFIG SET cluster-require-full-coverage no",
            )


def _number(section: object, name: str) -> float | None:
    text = section.get(name, "") if isinstance(section, dict) else ""
    try:
        return float(text)
    except ValueError:
        return None


def _policy(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        policy = (server.memory or {}).get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            yield Spot(
                says=f"maxmemory-policy is {policy}: it may evict jobs",
                where=(server.of,),
                command="redis-cli CONFIG SET maxmemory-policy noeviction",
            )


def _memory(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        used, most = (_number(server.memory, name) for name in ("used_memory", "maxmemory"))
        if used is not None and most and used > MEMORY_SHARE * most:
            yield Spot(
                says=f"{used / 2**20:.0f} of {most / 2**20:.0f} MiB are used, "
                f"{100 * used / most:.0f} %: dispatches are refused when it is full",
                where=(server.of,),
                command=f"redis-cli CONFIG SET maxmemory {2 * most:.0f}",
            )


def _unlimited(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        if _number(server.memory, "maxmemory") == 0:
            yield Spot(
                says="maxmemory is not set: the system kills the server when it is full",
                where=(server.of,),
                command="redis-cli CONFIG SET maxmemory 2gb",
            )


def _failed_saves(facts: PoolFacts) -> Iterator[Spot]:
    names = ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status")
    for server in facts.servers:
        failed = [each for each in names if (server.persistence or {}).get(each, "ok") != "ok"]
        if failed:
            yield Spot(
                says=f"the server could not write its data: {', '.join(failed)}",
                count=len(failed),
                where=(server.of,),
                command="redis-cli INFO persistence",
            )


def _persistence(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        if (server.persistence or {}).get("aof_enabled") == "0":
            yield Spot(
                says="there is no append-only file: what was accepted since the last snapshot is "
                "lost when the server ends",
                where=(server.of,),
                command="redis-cli CONFIG SET appendonly yes",
            )


def _replicas(server: ServerFacts) -> list[dict[str, str]]:
    told = [text for name, text in (server.replication or {}).items() if name.startswith("slave")]
    parts = [dict(word.partition("=")[::2] for word in text.split(",")) for text in told]
    return [each for each in parts if "lag" in each]


def _min_replicas(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        if _replicas(server) and "min_slaves_good_slaves" not in (server.replication or {}):
            yield Spot(
                says=f"it has {len(_replicas(server))} replicas and min-replicas-to-write is 0: a "
                "primary that is cut off goes on accepting what will be lost",
                where=(server.of,),
                command="redis-cli CONFIG SET min-replicas-to-write 1",
            )


def _replicas_beyond(server: ServerFacts) -> float | None:
    """Return how many replicas are there beyond min-replicas-to-write; None: it is 0, or untold."""
    good = _number(server.replication, "min_slaves_good_slaves")  # told where it is not 0
    # Without the right to read the setting: the count of good replicas is told only above 0.
    least = _number(server.config, "min-replicas-to-write")
    return None if good is None else good - (1 if least is None else least)


def refuses_writes(server: ServerFacts) -> bool:
    """Say whether fewer replicas are there than it must have to take a write."""
    beyond = _replicas_beyond(server)
    return beyond is not None and beyond < 0


def _replicas_told(server: ServerFacts, says: str) -> Spot:
    least = _number(server.config, "min-replicas-to-write")
    least_text = "not 0" if least is None else f"{least:.0f}"
    good = _number(server.replication, "min_slaves_good_slaves") or 0
    return Spot(
        says=f"min-replicas-to-write is {least_text} and {good:.0f} replicas are there: {says}",
        where=(server.of,),
        command="redis-cli INFO replication",
    )


def _writes_refused(facts: PoolFacts) -> Iterator[Spot]:
    for server in filter(refuses_writes, facts.servers):
        yield _replicas_told(server, "all writes are refused, renewals of leases too")


def _last_replica(facts: PoolFacts) -> Iterator[Spot]:
    for server in facts.servers:
        if _replicas_beyond(server) == 0:
            yield _replicas_told(server, "the loss of one stops all writes")


def _lag(facts: PoolFacts) -> Iterator[Spot]:
    ttl_s = max((lane.ttl_ms for lane in facts.lanes), default=10_000) / 1000
    for server in facts.servers:
        late = [
            each
            for each in _replicas(server)
            if each.get("state") != "online" or float(each["lag"] or 0) > ttl_s / 2
        ]
        if late:
            yield Spot(
                says=f"{len(late)} replicas are behind, by up to "
                f"{max(float(each['lag'] or 0) for each in late):.0f} s, or not connected",
                count=len(late),
                where=tuple(f"{each.get('ip')}:{each.get('port')}" for each in late),
                command="redis-cli INFO replication",
            )


SERVER_RULES: Final = (
    Rule(
        "server-evicts",
        "error",
        "the server's maxmemory-policy",
        "any but noeviction",
        "Set it, in its configuration file too.",
        _policy,
    ),
    Rule(
        "server-memory",
        "error",
        "the server's memory beside its limit",
        "over 80 %",
        "Find out what fills it (a backlog, results, dead letters), or give it more.",
        _memory,
    ),
    Rule(
        "server-no-limit",
        "note",
        "the server's maxmemory",
        "not set",
        "Set it, so that a full server refuses instead of being killed.",
        _unlimited,
    ),
    Rule(
        "server-cannot-save",
        "error",
        "how the server's last writes of its data ended",
        "any but ok",
        "Its disk is full, or it may not fork: see its log.",
        _failed_saves,
    ),
    Rule(
        "server-no-log",
        "note",
        "the server's append-only file",
        "not there",
        "Decide what `accepted` is to survive; see the page about durability.",
        _persistence,
    ),
    Rule(
        "server-min-replicas",
        "warning",
        "replicas, and min-replicas-to-write",
        "there are some, and it is 0",
        "With two replicas or more set it to 1, and min-replicas-max-lag below half of the TTL. "
        "With one replica decide: then the loss of any server stops writes.",
        _min_replicas,
    ),
    Rule(
        "server-writes-refused",
        "error",
        "min-replicas-to-write, and the replicas that are there",
        "fewer replicas than it asks for",
        "Bring a replica back, or add one. If none can be had, lower min-replicas-to-write: "
        "what is accepted then is lost with that server.",
        _writes_refused,
    ),
    Rule(
        "server-last-replica",
        "warning",
        "min-replicas-to-write, and the replicas that are there",
        "no more replicas than it asks for, and not fewer",
        "Add a replica, so that one more is there than min-replicas-to-write asks for; or accept "
        "that the loss of one server stops writes until it is back.",
        _last_replica,
    ),
    Rule(
        "server-lag",
        "warning",
        "replicas",
        "behind by more than half of the TTL, or not connected",
        "What they lack is lost in a failover: look at that replica and its line.",
        _lag,
    ),
    Rule(
        "server-versions",
        "note",
        "what the servers of the pool are",
        "they differ",
        "Fine while they are replaced one by one; else bring them to one version.",
        _versions,
    ),
    Rule(
        "server-slow",
        "note",
        "how long the server took over each command, since it started",
        "one in a hundred of any takes over 50 ms, of 1,000 at least; those that wait are left out",
        "It does one thing at a time: all wait meanwhile. If the scripts are slow, its machine is; "
        "if another command is, somebody else's is. `CONFIG RESETSTAT` counts anew.",
        _slow,
    ),
    Rule(
        "server-clients",
        "warning",
        "the server's connections beside `maxclients`",
        "over 80 %",
        "Give it a higher limit, and more file descriptors; a node needs four, and one more for "
        "each further lane.",
        _clients,
    ),
    Rule(
        "server-turned-away",
        "note",
        "connections that the server has refused since it started",
        "any",
        "It had too many at some time, or stood still for so long that clients gave up. "
        "`CONFIG RESETSTAT` counts anew.",
        _turned_away,
    ),
    Rule(
        "server-buffers",
        "note",
        "replies that wait in the server for who does not read them",
        "32 MiB for one connection, or one was cut off since it started",
        "A reader is too slow, or asks for more than client-output-buffer-limit allows: the list "
        "of clients names it, by `omem`.",
        _buffers,
    ),
    Rule(
        "server-small-buffers",
        "warning",
        "the server's client-output-buffer-limit of normal clients, where this user may ask for it",
        f"its hard limit is under {READ_BYTES_MAX // 1024} KiB, which a node may ask for at once",
        "Raise it, or set it to 0, in the server's configuration file too. Arguments and states "
        "that cannot be delivered end as dead letters; messages and results wait in the server.",
        _small_buffers,
    ),
    Rule(
        "cluster-slots",
        "error",
        "the cluster's own word, where the server is in one",
        "its state is not ok, or slots are served by nobody",
        "A primary is gone and no replica took its place: bring it back, or have another take over "
        "by `CLUSTER FAILOVER TAKEOVER`.",
        _slots,
    ),
    Rule(
        "cluster-coverage",
        "warning",
        "cluster-require-full-coverage, asked for as the server's default user",
        "yes",
        "Set it to no on every node, in its configuration file too.",
        _coverage,
    ),
    Rule(
        "cluster-slot-open",
        "warning",
        "the pool's slots, where the server is in a cluster",
        "one is MIGRATING or IMPORTING",
        "While a slot moves, its lane waits. If nobody moves it any more, end the move: all its "
        "keys to one node, then `CLUSTER SETSLOT SLOT NODE ID` on both. Never STABLE: keys that "
        "have moved would be lost.",
        _open_slots,
    ),
    Rule(
        "rights-refused",
        "note",
        "the server's ACL LOG, asked for as its default user",
        "a call of a user of this pool within the last hour",
        "Give that user the rules that `pool acl` prints.",
        _denied,
    ),
    Rule(
        "rights",
        "note",
        "what this user may ask the server for",
        "a section of INFO, or SCAN, is refused",
        "Give the user the rules that `pool acl` prints.",
        _rights,
    ),
)
