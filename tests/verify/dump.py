"""The store at the end of a run: what `final_state` says of every key of the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis

from pool.core.batches import Head
from pool.core.codec import decode_value
from pool.core.options import Options
from pool.core.record import Outcome, Record
from pool.core.schedules import ScheduleHead, parse_head
from pool.errors import PayloadEncodingError
from pool.names import Control, Names
from pool.testing import audit
from tests.verify.service import SHARED

ASTRAY_S: Final = 0.8  # two renewal periods of a campaign: it has a lease of 2 s
TOGETHER: Final = 500  # keys read in one round trip
# What a pool without nodes may have: histories and indexes of what is still to be done.
LASTING: Final = {
    *("lane", "jobs", "handlers", "payloads", "checkpoints", "due", "parked", "letters", "journal"),
    *("keepalive", "cleanup", "trials", "deaths", "kept", "result", "inbox", "unassigned"),
    *("attempts", "schedules", "scheduled", "batch", "batches"),
}


def lanes_of(client: redis.Redis, pool: str) -> list[Names]:
    """Return the names of every lane that the pool was made with."""
    count = _hash(client, Control(pool).config).get("lanes", b"1")
    return [Names(pool, number) for number in range(int(count))]


def state_of(client: redis.Redis, pool: str) -> dict[str, Any]:
    """Return jobs, outcomes, leases, claims and the auditor's findings of a pool."""
    lanes = lanes_of(client, pool)
    offset: Any = client.hmget(lanes[0].lane, "offset")
    return {
        "now_ms": int(_raw_s(client.time(), offset) * 1000),
        "jobs": {key: told for n in lanes for key, told in _jobs(client, n)},
        "outcomes": {job: told for n in lanes for job, told in _outcomes(client, n)},
        "leases": sorted({name for n in lanes for name in _leases(client, n)}),
        "claims": claims(client, pool),
        "problems": audit(client, pool),
        "workers": sorted(
            name[1:]
            for name in _hash(client, Control(pool).map_data("workers"))
            if name.startswith("=w")
        ),
        "shared": _shared(client, pool),
        "out": outgoing(client, pool),
        "batches": batches(client, pool),
    }


def outgoing(client: redis.Redis, pool: str) -> list[str]:
    """Return the messages to lanes that were not carried over."""
    return [
        f"{n.number} to {name[1:].decode()}"
        for n in lanes_of(client, pool)
        for name, _ in client.hscan_iter(n.payloads, match="\r*", count=1000)
        if b" " in name
    ]


def batches(client: redis.Redis, pool: str) -> dict[str, dict[str, Any]]:
    """Return the batches that are there."""
    found = {}
    for n in lanes_of(client, pool):
        for name in client.scan_iter(match=n.batch("*"), count=1000):
            fields: Any = client.hgetall(name)
            head = Head.parse(fields[b"head"])
            parts = sorted((int(f[2:]), text) for f, text in fields.items() if f[:2] == b"w:")
            found[name.decode().removeprefix(n.batch(""))] = {
                "nonce": head.nonce,
                "state": head.state,
                "letters": b"".join(text for _, text in parts).decode(),
                "counts": [head.succeeded, head.failed, head.cancelled, head.missing],
            }
    return found


def schedules(client: redis.Redis, pool: str) -> tuple[int, dict[str, ScheduleHead]]:
    """Return the server's clock (ms), and how each schedule stands; each lane as of one moment."""
    found, wall_ms = dict[str, ScheduleHead](), 0
    for n in lanes_of(client, pool):
        with client.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.hgetall(n.schedules)
            (seconds, micros), texts = pipe.execute()
        wall_ms = seconds * 1000 + micros // 1000
        for name, text in texts.items():
            head = parse_head(text.partition(b"\n")[0])
            if head is not None:
                found[name.decode()] = head
    return wall_ms, found


def _shared(client: redis.Redis, pool: str) -> dict[str, str]:
    items = _hash(client, Control(pool).map_data(SHARED))
    return {key[1:]: value.decode() for key, value in items.items() if key[0] == "="}


def claims(client: redis.Redis, pool: str) -> list[str]:
    """Return the identities that somebody is still to be reaped of, or is being."""
    fences = [item for n in lanes_of(client, pool) for item in _hash(client, n.cleanup).items()]
    return sorted({name for name, text in fences if text != b"done" and name != "sweeper"})


def unfinished(client: redis.Redis, pool: str) -> list[str]:
    """Return the keys of jobs that are not over, and of services that do not run."""
    told = [each for n in lanes_of(client, pool) for each in _jobs(client, n)]
    return [key for key, (_, *is_at) in told if is_at != ["running", "service"]]


def snapshot(client: redis.Redis, pool: str) -> dict[str, int]:
    """Return the lanes' counters and the number of records, read at one moment."""
    lanes = lanes_of(client, pool)
    with client.pipeline(transaction=True) as pipe:
        for n in lanes:
            pipe.hgetall(n.lane)
            pipe.hlen(n.jobs)
        found = pipe.execute()
    counters: Counter[str] = Counter()
    for lane, live in zip(found[::2], found[1::2], strict=True):
        counters["live"] += live
        counters.update({k.decode(): int(v) for k, v in lane.items() if v.isdigit()})
    return dict(counters)


def leases(client: redis.Redis, pool: str) -> tuple[float, dict[str, float]]:
    """Return pool time, and until when each identity has its lease; both in seconds.

    Of the fenced there is none: their entries say by when their reaper must have gone on.  The
    first lane stands for all: the same process renews them all at once.  While the server's clock
    has stepped, and nobody has taken that back, nothing can be said of any.
    """
    n = Names(pool, 0)
    with client.pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.hmget(n.lane, "offset", "seen")
        pipe.zrange(n.keepalive, 0, -1, withscores=True)
        pipe.hkeys(n.cleanup)
        time, lane, ends, fenced = pipe.execute()
    now_s, seen_s = _raw_s(time, lane), int(lane[1] or 0) / 1000
    if not 0.0 <= now_s - seen_s <= ASTRAY_S:
        return now_s, {}
    return now_s, {name.decode(): end_ms / 1000 for name, end_ms in ends if name not in fenced}


def left_behind(client: redis.Redis, pool: str) -> list[str]:
    """Return the keys that a pool without nodes should not have."""
    prefixes = tuple(n.prefix for n in lanes_of(client, pool))
    keys = (key.decode() for key in client.scan_iter(match="*", count=1000))
    return sorted(
        key
        for key in keys
        if not key.startswith(Control(pool).prefix) and _kind(key, prefixes) not in LASTING
    )


def _kind(key: str, prefixes: tuple[str, ...]) -> str:
    """Return what a lane's key is; the whole of one that is no lane's."""
    mine = next((prefix for prefix in prefixes if key.startswith(prefix)), "")
    return key.removeprefix(mine).partition(":")[0] if mine else key


def _jobs(client: redis.Redis, n: Names) -> Iterable[tuple[str, list[str]]]:
    """Yield key, and id, state and kind of its job: as its handler is registered.

    A record that was made before that, as behind a loss of data, calls what it is for a job.
    """
    kinds = {name: Options.parse(text).kind for name, text in _hash(client, n.handlers).items()}
    for key, text in _hash(client, n.jobs).items():
        record = Record.parse(text)
        if record is None:
            yield key, ["", "unreadable", "job"]
        else:
            yield key, [record.id, record.state, kinds.get(record.handler, record.kind)]


def _outcomes(client: redis.Redis, n: Names) -> Iterable[tuple[str, dict[str, Any]]]:
    names = list(client.scan_iter(match=n.prefix + "result:*", count=1000))
    for at in range(0, len(names), TOGETHER):
        some = names[at : at + TOGETHER]
        texts: Any = client.mget(some)
        for name, text in zip(some, texts, strict=True):
            outcome = Outcome.parse(text) if text is not None else None
            if outcome is not None:
                job, _, key = name.decode().removeprefix(n.prefix + "result:").partition(" ")
                yield job, {"key": key, **_outcome(outcome)}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    value: Any = None
    if outcome.word == "done":
        try:
            value = decode_value(outcome.body)
        except PayloadEncodingError as error:
            value = str(error)
    return {
        "word": outcome.word,
        "epoch": outcome.epoch,
        "owner": outcome.owner,
        "attempt": outcome.attempt,
        "ended_ms": outcome.ended_ms,
        "cause": outcome.cause,
        "value": value,
    }


def _leases(client: redis.Redis, n: Names) -> list[str]:
    done = {name for name, text in _hash(client, n.cleanup).items() if text == b"done"}
    leases: Any = client.zrange(n.keepalive, 0, -1)
    return sorted({name.decode() for name in leases} - done)


def _hash(client: redis.Redis, name: str) -> dict[str, bytes]:
    found: Any = client.hgetall(name)
    return {key.decode(errors="replace"): value for key, value in found.items()}


def _raw_s(time: tuple[int, int], lane: Sequence[bytes | None]) -> float:
    """Return pool time as a lane has it that nobody knows to be astray."""
    return time[0] + time[1] / 1e6 + int(lane[0] or 0) / 1000
