"""What a simulated server holds at the end, for the auditor and for the checker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

import attrs

from pool.core.batches import IS_BATCH, Head
from pool.core.codec import head_of
from pool.core.options import Options
from pool.core.record import Outcome, Record
from pool.names import Control, Names, lane_of, split_pair
from pool.redis.commands.member import Opening
from pool.testing.audit import audit
from tests.verify.sim.keyspace import Keyspace, SortedSet
from tests.verify.sim.streams import Stream

REFUSED: Final = b"refused\n"  # where an outcome would stand: that dispatch never is one


class Client:
    """As much of redis-py's client as the auditor uses, on a keyspace."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._queued: list[Any] = []

    def hget(self, name: str, field: str) -> Any:
        return self._run("HGET", name, field)

    def scan_iter(self, match: str, **_: int) -> Iterator[bytes]:
        prefix = match.removesuffix("*").encode()
        return iter([key for key in list(self._keyspace.keys) if key.startswith(prefix)])

    def pipeline(self, transaction: bool) -> Client:
        assert transaction
        return Client(self._keyspace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._queued.clear()

    def execute(self) -> list[Any]:
        return list(self._queued)

    def hgetall(self, name: str) -> None:
        self._queue(_pairs, "HGETALL", name)

    def hkeys(self, name: str) -> None:
        self._queue(list, "HKEYS", name)

    def zrange(self, name: str, first: int, last: int, withscores: bool = False) -> None:
        if withscores:
            self._queue(
                lambda r: [(m, float(s)) for m, s in zip(r[::2], r[1::2], strict=True)],
                *("ZRANGE", name, first, last, "WITHSCORES"),
            )
        else:
            self._queue(list, "ZRANGE", name, first, last)

    def smembers(self, name: str) -> None:
        self._queue(set, "SMEMBERS", name)

    def xrange(self, name: str) -> None:
        self._queue(lambda r: [(i, _pairs(f)) for i, f in r], "XRANGE", name, "-", "+")

    def llen(self, name: Any) -> None:
        self._queue(int, "LLEN", name)

    def type(self, name: Any) -> None:
        self._queue(bytes, "TYPE", name)

    def _queue(self, form: Callable[[Any], Any], *words: Any) -> None:
        self._queued.append(form(self._run(*words)))

    def _run(self, *words: Any) -> Any:
        name, *args = (w if isinstance(w, bytes) else str(w).encode() for w in words)
        return self._keyspace.run(name, *args)


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def problems(keyspace: Keyspace, pool: str) -> list[str]:
    """Return what the product's own auditor says."""
    client: Any = Client(keyspace)
    return audit(client, pool)


def records(keyspace: Keyspace, pool: str, lanes: int) -> dict[str, Record | None]:
    """Return key -> record of everything that has one, of the kind that its handler is."""
    found: dict[str, Record | None] = {}
    for number in range(lanes):
        names = Names(pool, number)
        jobs = keyspace.keys.get(names.jobs.encode(), {})
        handlers = keyspace.keys.get(names.handlers.encode(), {})
        for key, text in jobs.items():
            record = Record.parse(text)
            if record is not None and (known := handlers.get(record.handler.encode())):
                record = attrs.evolve(record, kind=Options.parse(known).kind)
            found[key.decode()] = record
    return found


def parsed(texts: Mapping[bytes, bytes]) -> Iterator[tuple[str, Record]]:
    """Yield the keys and the records of what is live in a lane."""
    for key, text in texts.items():
        record = Record.parse(text)
        if record is not None:
            yield key.decode(errors="replace"), record


def messages(keyspace: Keyspace) -> set[tuple[str, int]]:
    """Return key and number of all messages of producers that lie in an inbox."""
    found = set()
    for key, texts in keyspace.keys.items():
        _, is_inbox, of = key.partition(b":inbox:")
        for text in texts if is_inbox else ():
            said = json.loads(text.split(b"|", 2)[2])
            if "seq" in said:
                found.add((of.decode(), said["seq"]))
    return found


def outgoing(keyspace: Keyspace) -> list[str]:
    """Return the messages to lanes that were not carried over."""
    return [
        f"{lane_in(key)} to {name[1:].decode()}"
        for key, fields in keyspace.keys.items()
        for name in (fields if key.endswith(b":payloads") and isinstance(fields, dict) else ())
        if name[:1] == b"\r" and b" " in name
    ]


def batches(keyspace: Keyspace) -> dict[str, dict[str, Any]]:
    """Return the batches that are there."""
    found = {}
    for key, fields in keyspace.keys.items():
        _, is_batch, batch_id = key.partition(b":batch:")
        if is_batch and isinstance(fields, dict) and b"head" in fields:
            head = Head.parse(fields[b"head"])
            words = _parts(fields, b"n:", b"\n").decode().split("\n")
            kids = {n: word[1:] for n, word in enumerate(words) if word[:1] == IS_BATCH}
            found[batch_id.decode()] = {
                "nonce": head.nonce,
                "state": head.state,
                "letters": _parts(fields, b"w:", b"").decode(),
                "kids": kids,  # members that are batches
                "counts": [head.succeeded, head.failed, head.cancelled, head.missing],
            }
    return found


def _parts(fields: dict[bytes, bytes], letter: bytes, between: bytes) -> bytes:
    parts = sorted((int(n[2:]), text) for n, text in fields.items() if n[:2] == letter)
    return between.join(text for _, text in parts)


def lane_in(name: bytes) -> str:
    """Return the lane of a key's name: one identity has a lease in each by itself."""
    return name.partition(b"}")[0].rpartition(b":")[2].decode()


def map_items(keyspace: Keyspace, pool: str, name: str) -> dict[str, Any] | None:
    """Return what a replicated map holds, lists as tuples; None: foreign values are in its place.

    A foreign field beside its strings, or in their place, is none of them.
    """
    control = Control(pool)
    strings = keyspace.keys.get(control.map_data(name).encode(), {})
    members = keyspace.keys.get(control.map_lists(name).encode(), SortedSet())
    log = keyspace.keys.get(control.map_log(name).encode(), Stream())
    if (type(strings), type(members), type(log)) != (dict, SortedSet, Stream):
        return None
    items: dict[str, Any] = {
        field.decode()[1:]: value.decode() for field, value in strings.items() if field[:1] == b"="
    }
    for _, member in members.order:
        if member[:1] == b"i":
            continue
        size, _, rest = member.removeprefix(b"l").partition(b":")
        key, value = rest[: int(size)].decode(), rest[int(size) + 19 :].decode()
        items[key] = (*items.get(key, ()), value)
    return items


def user_stream(keyspace: Keyspace, pool: str, name: str) -> Any:
    """Return what is under the name of a stream of users'."""
    return keyspace.keys.get(Control(pool).stream(name).encode())


def _claims(keyspace: Keyspace, names: Names) -> list[str]:
    """Return who is being reaped in a lane."""
    cleanup = keyspace.keys.get(names.cleanup.encode(), {})
    return [n.decode() for n, claim in cleanup.items() if claim != b"done" and n != b"sweeper"]


def claimed(keyspace: Keyspace, pool: str, lanes: int) -> set[str]:
    """Return the lanes in which somebody is being reaped."""
    return {str(n) for n in range(lanes) if _claims(keyspace, Names(pool, n))}


def _without_head(body: bytes) -> bytes:
    """Return a result without the name of its codec; all codecs of a simulation make JSON."""
    return head_of(body)[2] if body.startswith(b"\x01") else body


def final(keyspace: Keyspace, pool: str, lanes: int) -> dict[str, Any]:
    """Return what the checker wants to know of the server's last state."""
    leases: list[str] = []
    claims: list[str] = []
    outcomes: dict[str, Any] = {}
    takes: dict[str, int] = {}
    marks: dict[str, list[str]] = {}
    for number in range(lanes):
        names = Names(pool, number)
        cleanup = keyspace.keys.get(names.cleanup.encode(), {})
        done = {name for name, claim in cleanup.items() if claim == b"done"}
        claims += _claims(keyspace, names)
        for worker, text in keyspace.keys.get(names.open.encode(), {}).items():
            told = Opening.parse(text)
            if told is not None:
                takes[f"{worker.decode()}.{told.number}@{number}"] = told.takes or 0
        deaths = keyspace.keys.get(names.deaths.encode())
        dead = {name.decode() for name in deaths.scores} if deaths is not None else set()
        for job_key, record in records(keyspace, pool, lanes).items():
            last = record.marks.last if record is not None else None
            name = f"{last.process}.{last.at_ms}" if last is not None else ""
            if last is not None and name in dead and lane_of(job_key, lanes) == number:
                marks[job_key] = [f"w{last.process}@{number}"]
        keepalive = keyspace.keys.get(names.keepalive.encode())
        if keepalive is not None:
            leases += [name.decode() for name in keepalive.scores if name not in done]
    for key in list(keyspace.keys):
        _, found, job = key.partition(b":result:")
        text = keyspace.run(b"GET", key) if found else None
        if text is not None and not text.startswith(REFUSED):
            outcome = Outcome.parse(text)
            assert outcome is not None, text
            is_done = outcome.word == "done"
            body = _without_head(outcome.body).decode() if is_done else outcome.error
            job_key, job_id = split_pair(job.decode())
            outcomes[job_id] = {
                "key": job_key,
                "word": outcome.word,
                "epoch": outcome.epoch,
                "owner": f"{outcome.owner}@{lane_in(key)}" if outcome.owner else "",
                "attempt": outcome.attempt,
                "ended_ms": outcome.ended_ms,
                "cause": outcome.cause,
                "value": json.loads(body) if outcome.word == "done" and body else body,
            }
    found_records = records(keyspace, pool, lanes)
    workers = keyspace.keys.get(Control(pool).map_data("workers").encode(), {})
    return {
        "now_ms": keyspace.now_us() // 1000,
        "jobs": {k: [r.id, r.state, r.kind] for k, r in found_records.items() if r is not None},
        "outcomes": outcomes,
        "problems": problems(keyspace, pool),
        "leases": sorted(set(leases)),
        "claims": claims,
        "takes": takes,
        "marks": marks,
        "unknown": [],
        "out": outgoing(keyspace),
        "batches": batches(keyspace),
        "workers": sorted(name[1:].decode() for name in workers if name.startswith(b"=w")),
    }
