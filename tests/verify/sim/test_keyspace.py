"""The simulated server does what a real one does: the same calls, the same answers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from pool.core.options import Options
from pool.maps import commands
from pool.maps import deltas as model
from pool.names import Control, Names, split_pair
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import IS_NODE, Target
from pool.redis.commands.edges import AdvanceGuard
from pool.redis.commands.lane import Lane
from pool.redis.commands.upkeep import RECONCILE
from pool.redis.scripts import ScriptCall
from pool.streams.commands import StoredSink, StoredStream, probe_call
from tests.edges import WireEdge
from tests.verify.sim.keyspace import Keyspace
from tests.verify.sim.scripting import Scripts
from tests.verify.sim.streams import CommandError

POOL = "alike"
STEPS = 400
SEEDS = 6
TTL_S = 60.0  # nothing ends by itself while a test runs
_FIXED_US = 1_700_000_000_000_000


class _Both:
    """One call after another on both, at the same time: the real server's."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client = client
        self.names = Names(f"{POOL}{seed}", 0)
        self.keyspace = Keyspace(lambda: self.now_us, random.Random(seed))
        self.keyspace.run_id = client.info("server")["run_id"].encode()
        self.now_us = _FIXED_US
        self.scripts = Scripts()

    def call(self, call: ScriptCall) -> Any:
        """Run a script on both; return what the real one said."""
        # `redis.call('TIME')` is the one thing that must differ: it is made to say the same.
        fixed = _at(call.script.source, self.now_us)
        real = self._real(fixed, call)
        ours = self._ours(fixed, call)
        assert _ordered(call, ours) == _ordered(call, real), f"{call.script.name} {call.args}"
        return real

    def _real(self, source: str, call: ScriptCall) -> Any:
        try:
            return self.client.eval(source, len(call.keys), *call.keys, *call.args)
        except redis.ResponseError as error:
            return str(error).partition(" script:")[0]

    def _ours(self, source: str, call: ScriptCall) -> Any:
        sha = self.scripts.load(source.encode())
        keys = [key.encode() for key in call.keys]
        args = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in call.args]
        try:
            return self.scripts.run(self.keyspace, sha, keys, args)
        except CommandError as error:
            return str(error)

    def _do(self, *words: Any) -> Any:
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    def command(self, *words: bytes) -> Any:
        """Run a plain command on both; return what the real one said."""
        real: Any
        try:
            real = self._do(*words)
        except redis.ResponseError as error:
            real = f"{type(error).__name__} {error}".removeprefix("ResponseError ")
        try:
            ours = self.keyspace.run(words[0], *words[1:])
        except CommandError as error:
            ours = str(error).removeprefix("ERR ")
        assert _timeless(words, ours) == _timeless(words, real), words
        return real

    def compare(self, prefix: str) -> None:
        """Everything that is stored must be the same."""
        for raw in self.client.scan_iter(match=f"{prefix}*", count=1000):
            kind: Any = self.client.type(raw)
            real: Any
            ours: Any
            if kind == b"stream":
                real = self._do("XRANGE", raw, "-", "+")
                ours = self.keyspace.run(b"XRANGE", raw, b"-", b"+")
                if b":map-log:" in raw:  # trimmed by whole nodes, which are sized otherwise here
                    least = min(len(real), len(ours))
                    real, ours = real[-least:], ours[-least:]
            elif kind == b"zset":
                real = self._do("ZRANGE", raw, 0, -1, "WITHSCORES")
                ours = self.keyspace.run(b"ZRANGE", raw, b"0", b"-1", b"WITHSCORES")
                if real and isinstance(real[0], list | tuple):
                    real = [p for m, s in real for p in (m, b"%.17g" % float(s))]
            elif kind == b"hash":
                real = self.client.hgetall(raw)
                ours = dict(_pairs(self.keyspace.run(b"HGETALL", raw)))
            elif kind == b"set":
                real = self.client.smembers(raw)
                ours = set(self.keyspace.run(b"SMEMBERS", raw))
            elif kind == b"list":
                real = self.client.lrange(raw, 0, -1)
                ours = self.keyspace.run(b"LRANGE", raw, b"0", b"-1")
            else:
                real, ours = self.client.get(raw), self.keyspace.run(b"GET", raw)
            if b":journal" not in raw and b":signal" not in raw:  # their ids are the real time
                assert ours == real, raw


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _ordered(call: ScriptCall, reply: Any) -> Any:
    """Leave out in which order a hash, or a set, stands: of a map's page, of what is owned."""
    if call.script is RECONCILE and isinstance(reply, list):
        return [*reply[:2], sorted(reply[2]), *reply[3:]]
    if call.script is not commands.PAGE or not isinstance(reply, list):
        return reply
    return [*reply[:4], sorted(_pairs(reply[4])), *reply[5:]]


def _at(source: str, now_us: int) -> str:
    """Have a script run at a time; what it adds to a stream is of that time, too."""
    seconds, micros = divmod(now_us, 1_000_000)
    source = re.sub(
        r"('XADD', [\w\[\]]+, (?:'NOMKSTREAM', )?|words\[at \+ 5\] = )'\*'",
        rf"\1'{now_us // 1000}-*'",
        source,
    )
    return source.replace("redis.call('TIME')", f"{{'{seconds}', '{micros}'}}")


def _client(url: str) -> redis.Redis:
    client = redis.Redis.from_url(url, protocol=2)
    for name in list(client.response_callbacks):
        if name[0] in "XZPH" and name != "HGETALL":  # what the server says, as it says it
            client.response_callbacks.pop(name)
    return client


# What of an answer tells how long ago something was, or is counted in a way of the server's own.
_TIMED = frozenset({b"idle", b"inactive", b"radix-tree-keys", b"radix-tree-nodes"})
_COUNTED = frozenset({b"entries-read", b"lag"})


def _timeless(words: Sequence[bytes], reply: Any) -> Any:
    """Return an answer without its times."""
    if words[0] == b"XPENDING" and len(words) > 3 and isinstance(reply, list):
        return [[*each[:2], each[3]] for each in reply]
    if words[0] == b"XINFO" and isinstance(reply, list):
        rows = [reply] if words[1] == b"STREAM" else reply
        return [{k: v for k, v in _pairs(r) if k not in _TIMED | _COUNTED} for r in rows]
    return reply


@pytest.mark.parametrize("seed", range(SEEDS))
def test_scripts_answer_and_leave_the_same(redis_url: str, seed: int) -> None:
    """Random calls of the lane's scripts on both; every answer and all data are compared."""
    dice = random.Random(seed)
    with _client(redis_url) as client:
        both = _Both(client, seed)
        for raw in client.scan_iter(match=f"{both.names.prefix}*"):
            client.delete(raw)
        lane = Lane(both.names, "inc.1")
        node, workers = Target("n1", 1), [Target("w1", 1), Target("w2", 1)]
        client.hset(lane.names.lane, "incarnation", lane.generation)
        both.keyspace.run(
            b"HSET", lane.names.lane.encode(), b"incarnation", lane.generation.encode()
        )
        both.call(
            lane.join(
                node,
                dict.fromkeys(workers, 3),
                {"h": Options(), "s": Options(kind="service")},
                is_new=True,
                not_after_ms=both.now_us // 1000 + 1000,
                pool_ttl_ms=round(1000 * TTL_S),
                stale="",
            )
        )
        jobs: dict[str, str] = {}
        for step in range(STEPS):
            both.now_us += dice.choice((0, 1, 1000, 300_000))
            both.call(_random_call(dice, both, lane, node, workers, jobs, step))
        both.compare(both.names.prefix)


def _random_call(
    dice: random.Random,
    both: _Both,
    lane: Lane,
    node: Target,
    workers: list[Target],
    jobs: dict[str, str],
    step: int,
) -> ScriptCall:
    key, worker = f"k{dice.randrange(8)}", dice.choice(workers)
    text = both.keyspace.run(b"HGET", both.names.jobs.encode(), key.encode())
    record = (text or b"").decode().split("|")
    match dice.choice(("dispatch", "edge", "edge", "edge", "renew", "pull", "other", "dead")):
        case "dispatch":
            is_named = dice.random() < 0.4
            item = Admission(
                key=key,
                id=f"n{dice.randrange(3)}" if is_named else f"j{step}",
                more=f"d{dice.randrange(2)},w90000" if is_named else "",
                handler=dice.choice("hs"),
                kind=None,
                payload=b"p" * dice.choice((1, 2000)),
                delay_s=dice.choice((0.0, 0.0, 0.0, 1.5)),
                unassigned=dice.random() < 0.5,
            )
            item.ranked = () if item.delay_s else dice.choice(((1,), (2,), (1, 2), ()))
            return lane.dispatch([item], workers, pending_s=TTL_S, queued_jobs_max=20)
        case "edge" if len(record) > 5:
            letter = dice.choice("aaalsdcxwg")
            x: Any = {"l": 500, "s": 10**18, "w": 700, "g": dice.choice(("1", "2 1", ""))}.get(
                letter, "because"
            )
            y: Any = {"w": 2, "g": dice.choice(("", "r", "1"))}.get(letter, "")
            z: Any = {"g": dice.choice((b"", b"=state")), "w": "failed"}.get(letter, b"")
            if letter in "xw" and dice.random() < 0.5:
                y, z = (f"{y}\n{{}}", z) if letter == "x" else (y, f"{z}\n{{}}")
            edge = WireEdge(key, int(record[5]), record[2], 60_000, record[3], letter, x, y, z)
            owner = record[4]
            guard: AdvanceGuard = "own" if owner else "free"
            return lane.advance(guard, owner, [edge], pending_s=TTL_S, targets=workers)
        case "dead":
            held: Any = both.keyspace.keys.get(both.names.letters.encode(), {})
            some = [split_pair(name.decode()) for name in held] or [(key, "none")]
            of_key, job_id = dice.choice(some)
            room: Any = {"pending_s": TTL_S, "queued_jobs_max": 20}
            return dice.choice(
                (
                    lane.letters(found_max=2),
                    lane.letters(("1", "none k"), handler="h", prefix="k1"),
                    lane.letter(dice.choice(("edit", "discard")), of_key, job_id, b"other"),
                    lane.replay(of_key, job_id, f"a{step}", dice.choice("hs"), workers, **room),
                    lane.expire([], items_max=3),
                )
            )
        case "pull":
            return lane.pull(worker, ["h", "s"], keys_max=4, pending_s=TTL_S)
        case "other":
            owner = record[4] if len(record) > 5 else ""
            return dice.choice(
                (
                    lane.notify(key, owner, f"r{step}", b"note", messages_max=5),
                    lane.intend(key, "", owner, dice.choice(("t", "sstop", "")), again_s=1.0),
                    lane.look([(key, f"j{step - 1}")], node="n1.1"),
                    lane.reconcile(worker.name, [(key.encode(), ""), (b"k1", f"{step}-0")]),
                    lane.inbox(key, ""),
                    lane.sweep("n1.1", lock_s=1.0, keys_max=10),
                )
            )
        case _:
            takes = {worker.name: dice.randrange(9) for worker in workers} | {node.name: IS_NODE}
            is_hung = dice.random() < 0.2
            return lane.renew(takes, seq=step + dice.randrange(9), term=0, is_hung=is_hung)


_IDS = tuple(b"%d-%d" % (ms, seq) for ms in range(1, 6) for seq in range(3))


def _stream_command(dice: random.Random, keys: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return some command of streams and their groups."""
    key, some_id = dice.choice(keys), dice.choice(_IDS)
    group, consumer = dice.choice((b"g", b"h")), dice.choice((b"c", b"d"))
    ids = tuple(dice.sample(_IDS, dice.randint(1, 3)))
    count, start = b"%d" % dice.randint(1, 3), dice.choice((b"0", b"$", some_id))
    low, high = (
        dice.choice((b"-", some_id, b"(" + some_id, b"3")),
        dice.choice((b"+", some_id, b"(" + some_id, b"3")),
    )
    trim = dice.choice((b"MAXLEN", b"MINID")), b"=", count
    read = b"COUNT", count, b"STREAMS", key, dice.choice((b">", b"0", some_id))
    return dice.choice(
        (
            (b"XADD", key, dice.choice((b"%d-*" % dice.randint(1, 6), some_id)), b"f", count),
            (b"XADD", key, b"NOMKSTREAM", *trim, b"6-*", b"f", b"v"),
            (b"XDEL", key, *ids),
            (b"XTRIM", key, *trim),
            (b"XRANGE", key, low, high, b"COUNT", count),
            (b"XREVRANGE", key, high, low, b"COUNT", count),
            (b"XREAD", b"COUNT", count, b"STREAMS", key, some_id),
            (b"XGROUP", b"CREATE", key, group, start, b"MKSTREAM"),
            (b"XGROUP", b"CREATE", key, group, start),
            (b"XGROUP", b"CREATECONSUMER", key, group, consumer),
            *(2 * ((b"XREADGROUP", b"GROUP", group, consumer, *read),)),
            (b"XREADGROUP", b"GROUP", group, consumer, b"NOACK", *read),
            (b"XACK", key, group, *ids),
            (b"XPENDING", key, group),
            (b"XPENDING", key, group, low, high, count),
            (b"XPENDING", key, group, b"IDLE", b"0", b"-", b"+", count, consumer),
            (b"XCLAIM", key, group, consumer, b"0", *ids),
            (b"XCLAIM", key, group, consumer, b"0", *ids, b"RETRYCOUNT", b"7", b"JUSTID"),
            (b"XCLAIM", key, group, consumer, b"0", some_id, b"FORCE"),
            (b"XAUTOCLAIM", key, group, consumer, b"0", some_id, b"COUNT", count),
            (b"XINFO", b"STREAM", key),
            (b"XINFO", b"GROUPS", key),
            (b"XINFO", b"CONSUMERS", key, group),
            dice.choice(
                (
                    (b"XGROUP", b"DELCONSUMER", key, group, consumer),
                    (b"XGROUP", b"SETID", key, group, some_id),
                    (b"XGROUP", b"DESTROY", key, group),
                    (b"DEL", key),
                    (b"XLEN", key),
                )
            ),
        )
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_streams_and_groups_answer_the_same(redis_url: str, seed: int) -> None:
    """Random commands of streams and their groups, each on both."""
    dice = random.Random(seed)
    with _client(redis_url) as client:
        both = _Both(client, seed)
        keys = [f"{both.names.prefix}stream{i}".encode() for i in range(2)]
        client.delete(*keys)
        for _ in range(3 * STEPS):
            both.command(*_stream_command(dice, keys))


def _hash_command(dice: random.Random, keys: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return some command that no script of the lanes needs."""
    key, field = dice.choice(keys), b"%d" % dice.randrange(3)
    end_ms = b"%d" % (4_000_000_000_000 + dice.randrange(3))
    zset, low, high = keys[0] + b"z", b"[" + field, dice.choice((b"+", b"(2"))
    condition = dice.choice(((), (b"NX",), (b"XX",), (b"GT",), (b"LT",)))
    return dice.choice(
        (
            (b"HSETNX", key, field, b"1"),
            (b"HINCRBY", key, field, b"2"),
            (b"HSTRLEN", key, field),
            (b"HDEL", key, field),
            (b"PEXPIREAT", key, end_ms, *condition),
            (b"PEXPIRETIME", key),
            (b"PERSIST", key),
            (b"ZADD", zset, b"0", field),
            (b"ZRANGEBYLEX", zset, low, high, b"LIMIT", b"0", b"1"),
        )
    )


def test_hashes_and_ends_answer_the_same(redis_url: str) -> None:
    """Random commands, each on both."""
    dice = random.Random(1)
    with _client(redis_url) as client:
        both = _Both(client, 1)
        keys = [f"{both.names.prefix}hash{i}".encode() for i in range(2)]
        client.delete(*keys, keys[0] + b"z")
        for _ in range(STEPS):
            both.command(*_hash_command(dice, keys))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_maps_and_sinks_answer_and_leave_the_same(redis_url: str, seed: int) -> None:
    """Random calls of the scripts of maps, streams and sinks, as `test_scripts_answer_...`."""
    dice = random.Random(f"data/{seed}")
    with _client(redis_url) as client:
        both = _Both(client, seed)
        control = Control(both.names.pool)
        for raw in client.scan_iter(match=f"{control.prefix}*"):
            client.delete(raw)
        both.command(b"HSET", control.config.encode(), b"incarnation", b"i", b"ttl", b"60000")
        maps = [commands.StoredMap(control, f"m{number}") for number in range(2)]
        streams = [StoredStream(control, f"e{number}") for number in range(2)]
        for _ in range(STEPS):
            both.now_us += dice.choice((0, 1, 1000, 300_000))
            both.call(_random_map_call(dice, control, maps))
            both.call(_random_sink_call(dice, both, streams))
        both.compare(control.prefix)


def _random_map_call(
    dice: random.Random, control: Control, maps: Sequence[commands.StoredMap]
) -> ScriptCall:
    stored, key = dice.choice(maps), b"k%d" % dice.randrange(4)
    value = b"%d" % dice.randrange(3)
    life = dice.choice(
        (commands.FOR_EVER, commands.FOR_EVER, commands.MapLife(2.0), commands.MapLife(2.0, True))
    )
    head = ("i", stored.name, f"{dice.getrandbits(64):016x}", 9, life.word())
    match dice.choice(("write", "write", "list", "list", "reset", "snapshot", "probe")):
        case "write":
            ops: list[model.Op] = [
                model.Set(key, value),
                model.SetIfNotExists(key, value),
                model.CompareAndSet(key, b"1", value),
                model.Delete(key),
                model.CompareAndDelete(key, value),
                model.Increment(b"n", dice.randrange(9)),
            ]
            chosen = commands._words(dice.sample(ops, dice.randint(1, 2)))
            return commands.WRITE(stored.keys(), (*head, *chosen))
        case "list":
            kind = dice.choice(("append", "append_unique", "remove"))
            values = (value, b"%d" % dice.randrange(3))[: dice.randint(1, 2)]
            return commands.LIST(stored.keys(), (*head, kind, b"list", *values))
        case "reset":
            kinds: list[Any] = ["expire", "expire", "reset", "destroy"]
            return commands.RESET(stored.keys(), ("i", stored.name, "n", dice.choice(kinds)))
        case "snapshot":
            keys = (control.config, control.maps, stored.data, stored.lists, stored.log)
            reached = dice.choice(("", "1"))
            return commands.PAGE(keys, ("i", "n", 100_000, reached, "0", "[l"))
        case _:
            return commands.probe_call(control, "i", maps)


def _random_sink_call(
    dice: random.Random, both: _Both, streams: Sequence[StoredStream]
) -> ScriptCall:
    stored, consumer = dice.choice(streams), dice.choice(("c.1", "c.2", "d.1"))
    sink = StoredSink(stream=stored, name=dice.choice(("s", "t")), deliveries_max=2)
    group, events = sink.name.encode(), stored.events.encode()
    stream = both.keyspace.keys.get(events)
    ids = [b"%d-%d" % each for each in ([*stream.entries] if stream is not None else [])[-6:]]
    some = [each.decode() for each in dice.sample(ids, min(len(ids), 3))]
    if stream is not None and group in stream.groups and dice.random() < 0.4:
        both.command(
            *(b"XREADGROUP", b"GROUP", group, consumer.encode(), b"COUNT", b"3"),
            *(b"STREAMS", events, dice.choice((b">", b">", b"0"))),
        )
    if dice.random() < 0.1:
        both.command(b"XACK", events, group, *(ids or [b"1-1"])[:2])
    if dice.random() < 0.02:
        both.command(*dice.choice(((b"DEL", events), (b"XGROUP", b"DESTROY", events, group))))
    match dice.choice(("add", "add", "add", "join", "renew", "renew", "mend", "take", "other")):
        case "add":
            cap = dice.choice((0, 0, 5))
            how = "x" if dice.random() < 0.1 else ""
            topic = dice.choice((None, b"t"))
            return stored.add(b"e", b"p", topic, length_max=cap, ttl_ms=0, how=how, mark="a")
        case "join":
            return sink.join(consumer, dice.choice(("", "d.1")), dice.choice(("0-0", "newest")))
        case "renew":
            return sink.renew(consumer)
        case "mend":
            return sink.mend(consumer, dice.randrange(3), dice.randrange(3), b"")
        case "take":
            return sink.take(consumer, 2, may_try=dice.random() < 0.5)
        case _:
            return dice.choice(
                (
                    sink.hand(consumer, [((each, b"a"), dice.randint(1, 3)) for each in some]),
                    sink.release(
                        consumer, [(e, b"a") for e in some], is_doubtful=dice.random() < 0.5
                    ),
                    sink.held(consumer, ""),
                    sink.leave(consumer),
                    probe_call([(each, dice.choice(("newest", "0-0"))) for each in streams]),
                )
            )


def test_an_unknown_command_is_refused() -> None:
    """A script that begins to use another command must not pass unnoticed."""
    keyspace = Keyspace(lambda: _FIXED_US, random.Random(1))
    with pytest.raises(CommandError, match="unknown command"):
        keyspace.run(b"GETDEL", b"k")
