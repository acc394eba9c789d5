"""The auditor: is every job of a pool where its record says, and nothing where no record is?

    state       its one index                     its payload
    pending     `pending`, and stream:OWNER       in the stream's entry
                under the id EPOCH-0
    running     owned:OWNER                       in `payloads`
    waiting     `due`                             in `payloads`
    unassigned  unassigned:HANDLER                in `payloads`
    queued      the line behind its key           in `payloads`, under its own name

A payload with flag p stays in `payloads` in every state.  Flags b, d and i say that the key stands
in `checkpoints`, `due` and its inbox; the lane's counters are the sizes of what they count.

A job that has followers has them beside it until it has ended, or as long as its dead letter waits
to be replayed; then they are messages to their lanes.  So followers of nobody are those of a job
that has ended and whose followers were never released; and of messages that nobody comes for in
`due` nobody would ever hear.

A schedule stands in `scheduled` by its own time unless it is paused, and somebody comes for the
first of them: s: in `due`.

A key that is paused stands last in its handler's line, and no other one does; see `lib/pause.lua`.

Of a batch each count is that of its members' letters, and settled is what is sealed and has none
left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import redis

from pool.core.batches import ENDS, NOT_ENDED, Head
from pool.core.ids import member_name
from pool.core.lifecycle import OWNED
from pool.core.record import MORE, Record, Start, more_of, steps_name
from pool.core.schedules import parse_head
from pool.names import (
    FOLLOWERS,
    IN,
    LINE,
    OUT,
    PAUSED,
    QUEUED,
    Control,
    Names,
    key_of,
    pair,
    queued,
    split_pair,
)
from pool.redis.commands.member import Opening, generation_of_pool
from pool.redis.commands.pausing import LanePauses, is_held_back

_SCAN_COUNT = 1000
# Of each key, by what its name begins with; see docs/reference/redis.md.
LANE_TYPES: Final = {
    "hash": "lane open handlers jobs payloads cleanup letters blobs trials attempts schedules "
    "tickers rates batch",
    "zset": "keepalive pending due parked deaths scheduled kept batches unassigned",
    "stream": "journal rated signal stream",
    "list": "inbox",
    "set": "owned",
    "string": "result",
}
CONTROL_TYPES: Final = {
    "hash": "config maps map-data sink stream-meta stream-once",
    "zset": "map-due map-lists sink-leases stream-once-ends",
    "stream": "map-log sink-parked stream",
}


def audit(client: redis.Redis, pool: str) -> list[str]:
    """Return what is wrong with a pool's data, in words; an empty list means it is sound (G-05).

    It only reads, but reads everything: for tests and for support, not for a monitor.  A pool at
    work may be audited: each lane is read in one transaction, and what is reported was seen twice,
    for what begins between the listing of keys and their reading looks lost once.

    Args:
        client: A client that returns bytes (`decode_responses=False`, as it is by default).
        pool: The pool's name.
    """
    problems = list(_problems(client, pool))
    if problems:
        again = set(_problems(client, pool))
        problems = [problem for problem in problems if problem in again]
    return problems


def _problems(client: redis.Redis, pool: str) -> Iterator[str]:
    control, before_number = Control(pool), Names(pool, 0).prefix.rpartition("0")[0]
    foreign = list(_foreign(client, control.prefix, _listed(client, control.prefix), CONTROL_TYPES))
    yield from foreign
    made_as: Any = None
    if not any(problem.startswith(f"{control.config} ") for problem in foreign):
        made_as = client.hget(control.config, "incarnation")
    keys: dict[int, list[str]] = {}
    for key in _listed(client, before_number):
        number = key.removeprefix(before_number).partition("}")[0]
        keys.setdefault(int(number), []).append(key)
    for lane_number in sorted(keys):
        names = Names(pool, lane_number)
        foreign = list(_foreign(client, names.prefix, keys[lane_number], LANE_TYPES))
        yield from (f"lane {lane_number}: {problem}" for problem in foreign)
        if foreign:
            continue  # nothing else of the lane can be judged
        lane = _Lane.read(client, names, keys[lane_number])
        for problem in lane.problems():
            yield f"lane {lane_number}: {problem}"
        mine = generation_of_pool(lane.lane.get("incarnation", ""))
        if made_as is not None and mine != made_as.decode():
            yield f"lane {lane_number}: not of the generation in `config`"


def _listed(client: redis.Redis, prefix: str) -> list[str]:
    # A pool's name holds nothing that means something in a pattern.
    return [_text(key) for key in client.scan_iter(match=f"{prefix}*", count=_SCAN_COUNT)]


def _foreign(
    client: redis.Redis, prefix: str, keys: Sequence[str], types: Mapping[str, str]
) -> Iterator[str]:
    """Say which keys somebody else wrote: under no name of ours, or of another type."""
    wanted = {word: kind for kind, words in types.items() for word in words.split()}
    with client.pipeline(transaction=True) as pipe:
        for key in keys:
            pipe.type(key.encode(errors="surrogateescape"))
        found = [_text(kind) for kind in pipe.execute()]
    for key, kind in zip(keys, found, strict=True):
        word = key.removeprefix(prefix).partition(":")[0]
        if word not in wanted:
            yield f"{key} is no key of a pool: somebody else wrote where pool's data belong"
        elif kind not in (wanted[word], "none"):  # it may be gone by now
            yield (
                f"{key} holds a {kind} instead of a {wanted[word]}: somebody else wrote where "
                "pool's data belong"
            )


@attrs.frozen(kw_only=True)
class _Lane:
    """All of one lane, at one moment.  Streams, sets and lists by the part of their name."""

    lane: dict[str, str]
    keepalive: dict[str, float]
    cleanup: dict[str, str]
    open: dict[str, str]
    jobs: dict[str, bytes]
    pending: dict[str, float]
    due: dict[str, float]
    payloads: set[str]
    followers: set[str]  # of whom, each by id and key
    outs: dict[str, str]  # messages to lanes, and which there are of each
    lines: dict[str, str]  # who is queued, by key
    checkpoints: set[str]
    parked: set[str]
    letters: dict[str, str]
    unassigned: dict[str, dict[str, float]]
    owned: dict[str, set[str]]
    streams: dict[str, dict[str, dict[str, bytes]]]
    inboxes: dict[str, int]
    schedules: dict[str, bytes]
    scheduled: dict[str, float]
    batches: dict[str, dict[str, str]]
    listed: set[str]  # in `batches`

    @classmethod
    def read(cls, client: redis.Redis, n: Names, keys: list[str]) -> _Lane:
        def parts(prefix: str) -> list[str]:
            return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]

        handlers, workers = parts(n.unassigned("")), parts(n.owned(""))
        streams, inboxes = parts(n.stream("")), parts(n.inbox(""))
        batches = parts(n.batch(""))
        with client.pipeline(transaction=True) as pipe:
            for name in (n.lane, n.cleanup, n.open, n.jobs, n.payloads):
                pipe.hgetall(name)
            for name in (n.keepalive, n.pending, n.due, *map(n.unassigned, handlers)):
                pipe.zrange(name, 0, -1, withscores=True)
            pipe.hkeys(n.checkpoints)
            pipe.hgetall(n.letters)
            pipe.zrange(n.parked, 0, -1)
            pipe.hgetall(n.schedules)
            pipe.zrange(n.scheduled, 0, -1, withscores=True)
            for worker in workers:
                pipe.smembers(n.owned(worker))
            for worker in streams:
                pipe.xrange(n.stream(worker))
            for key in inboxes:
                # As bytes: a name that is not UTF-8 is somebody else's, but it was listed.
                pipe.llen(n.inbox(key).encode(errors="surrogateescape"))
            pipe.zrange(n.batches, 0, -1)
            for batch_id in batches:
                pipe.hgetall(n.batch(batch_id))
            replies = iter(pipe.execute())
        lane, cleanup, opened = (_texts(next(replies)) for _ in range(3))
        jobs = {_text(key): text for key, text in next(replies).items()}
        payloads = _texts(next(replies))
        keepalive, pending, due = (_scores(next(replies)) for _ in range(3))
        unassigned = {handler: _scores(next(replies)) for handler in handlers}
        checkpoints = set(map(_text, next(replies)))
        letters = _texts(next(replies))
        parked = set(map(_text, next(replies)))
        schedules = {_text(name): text for name, text in next(replies).items()}
        return cls(
            schedules=schedules,
            scheduled=_scores(next(replies)),
            lane=lane,
            keepalive=keepalive,
            cleanup=cleanup,
            open=opened,
            jobs=jobs,
            pending=pending,
            due=due,
            payloads={name for name in payloads if name[:1] not in (LINE, OUT, IN, FOLLOWERS)},
            followers={name[1:] for name in payloads if name[:1] == FOLLOWERS},
            outs={name[1:]: text for name, text in payloads.items() if name[:1] == OUT},
            lines={name[1:]: ids for name, ids in payloads.items() if name[:1] == LINE},
            checkpoints=checkpoints,
            parked=parked,
            letters=letters,
            unassigned=unassigned,
            owned={worker: set(map(_text, next(replies))) for worker in workers},
            streams={worker: _entries(next(replies)) for worker in streams},
            inboxes={key: next(replies) for key in inboxes},
            listed=set(map(_text, next(replies))),
            batches={batch_id: _texts(next(replies)) for batch_id in batches},
        )

    def problems(self) -> Iterator[str]:
        records = {key: Record.parse(text) for key, text in self.jobs.items()}
        yield from self._of_lines(records)
        epochs: dict[int, str] = {}
        for key, record in records.items():
            if record is None:
                yield f"{key!r}: its record cannot be read"
                continue
            for problem in self._of_record(key, record):
                yield f"{key!r} ({record.state}): {problem}"
            if record.epoch in epochs:
                yield f"{key!r}: has the epoch of {epochs[record.epoch]!r}"
            epochs[record.epoch] = key
        yield from self._of_followers(records)
        yield from self._of_messages()
        yield from self._of_schedules()
        yield from self._of_batches()
        yield from self._of_pauses()
        yield from self._of_indexes(records)
        yield from self._of_identities()
        yield from self._of_counters(records)

    def _of_record(self, key: str, record: Record) -> Iterator[str]:
        if (record.owner != "") != (record.state in OWNED):
            yield f"its owner is {record.owner!r}"
        if record.epoch > int(self.lane.get("stamp", "0")):
            yield f"its epoch {record.epoch} is above the lane's stamp"
        match record.state:
            case "pending":
                if key not in self.pending:
                    yield "not in `pending`"
                yield from self._of_entry(key, record)
            case "running":
                if key not in self.owned.get(record.owner, ()):
                    yield f"not in owned:{record.owner}"
                if record.owner not in self.keepalive:
                    yield f"no lease of {record.owner} will ever end"
                elif self.cleanup.get(record.owner) == "done":
                    yield f"{record.owner} counts as reaped"
            case "waiting":
                if f"k:{key}" not in self.due:
                    yield "not in `due`"
            case "unassigned":
                if key not in self.unassigned.get(record.handler, ()):
                    yield f"not in unassigned:{record.handler}"
        if (record.state == "queued") != (key[:1] == QUEUED):
            yield "stands where it does not belong"
        is_apart = record.state != "pending" or "p" in record.flags
        if is_apart != (key in self.payloads):
            yield "its payload is not in `payloads`" if is_apart else "its payload is there twice"
        if ("d" in record.flags) != (f"k:{key}" in self.due):
            yield f"flags {record.flags!r} do not say whether it is in `due`"
        if ("b" in record.flags) != (key in self.checkpoints):
            yield f"flags {record.flags!r} do not say whether it has a checkpoint"
        if ("s" in record.flags) != (steps_name(key) in self.checkpoints):
            yield f"flags {record.flags!r} do not say whether it has steps"
        if "i" not in record.flags and key in self.inboxes:
            yield f"flags {record.flags!r} do not say that it has messages"

    def _of_lines(self, records: dict[str, Record | None]) -> Iterator[str]:
        """Look at who is queued: in a line behind a live job, or about to end."""
        named = set()
        for key, text in self.lines.items():
            live = records.get(key)
            if key not in records or (live is not None and "n" not in live.flags):
                yield f"{key!r}: somebody is queued behind it, and it does not know"
            named |= {queued(key, job_id) for job_id in text.split(" ")}
        for name, record in records.items():
            if record is not None and record.state == "queued":
                if name != queued(key_of(name), record.id):
                    yield f"{name!r}: is of {record.id}"
                if (name in named) != (record.intent == ""):
                    yield f"{name!r}: its intent {record.intent!r} does not say if it is in line"
                if record.intent and f"k:{name}" not in self.due:
                    yield f"{name!r}: nobody comes to end it"
        for name in named - set(records):
            yield f"{name!r}: in line without a record"

    def _of_followers(self, records: dict[str, Record | None]) -> Iterator[str]:
        having = {
            pair(key_of(name), r.id) for name, r in records.items() if r and _has_more(r.more)
        }
        having |= {
            job for job, text in self.letters.items() if _has_more("".join(text.split("|", 6)[5:6]))
        }
        for job in having - self.followers:
            yield f"{job!r}: its followers are gone"
        unreadable = {key for key, record in records.items() if record is None}
        for job in self.followers - having:
            if split_pair(job)[0] not in unreadable:
                yield f"{job!r}: has ended, and its followers were never released"

    def _of_messages(self) -> Iterator[str]:
        there = set[str]()
        for to, text in self.outs.items():
            if " " in to:
                continue
            first, next_ = map(int, text.split(" ")[:2])
            there |= {f"{to} {number}" for number in range(first, next_)}
            if (first < next_) != (f"o:{to}" in self.due):
                yield f"{next_ - first} messages to lane {to}, of which `due` says otherwise"
        for message in there ^ {name for name in self.outs if " " in name}:
            yield f"message {message}: {'is gone' if message in there else 'nobody knows of it'}"
        if (counted := int(self.lane.get("outgoing", "0"))) != len(there):
            yield f"counts {counted} messages to lanes, has {len(there)}"

    def _of_schedules(self) -> Iterator[str]:
        for name, text in self.schedules.items():
            head = parse_head(text.partition(b"\n")[0])
            if head is None:
                yield f"schedule {name!r} cannot be read"
            elif self.scheduled.get(name) != (None if head.is_paused else head.due_ms):
                yield f"schedule {name!r}: `scheduled` does not say when it is due"
        for name in set(self.scheduled) - set(self.schedules):
            yield f"schedule {name!r} is due, and is none"
        if bool(self.scheduled) != ("s:" in self.due):
            yield "`due` does not say whether there are schedules"

    def _of_batches(self) -> Iterator[str]:
        for batch_id in self.listed ^ set(self.batches):
            yield f"batch {batch_id}: only one of `batches` and its own key has it"
        for batch_id in {member[2:] for member in self.due if member[:2] == "b:"} ^ self.listed:
            yield f"batch {batch_id}: only one of `batches` and `due` has it"
        if (counted := int(self.lane.get("batches", "0"))) != len(self.listed):
            yield f"counts {counted} batches, has {len(self.listed)}"
        for batch_id, fields in self.batches.items():
            try:
                head = Head.parse(fields["head"].encode())
            except (KeyError, ValueError):
                yield f"batch {batch_id}: its head cannot be read"
                continue
            words, keys, order = (_joined(fields, letter) for letter in "wne")
            letters = "".join(words)
            if not len(letters) == sum(map(_lines, keys)) == head.members:
                yield f"batch {batch_id}: does not say of each of {head.members} members how it is"
            counts = (head.succeeded, head.failed, head.cancelled, head.missing)
            if counts != tuple(map(letters.count, ENDS)):
                yield f"batch {batch_id}: counts {counts}, and its members say otherwise"
            ended = [int(index) for part in order for index in part.split()]
            if sorted(ended) != [n for n, each in enumerate(letters) if each != NOT_ENDED]:
                yield f"batch {batch_id}: its list of who has ended is another"
            left = head.members - head.ended
            if head.is_settled != (left == 0 and head.state != "open"):
                yield f"batch {batch_id}: is {head.state}, and {left} have not ended"

    def _of_pauses(self) -> Iterator[str]:
        pauses = LanePauses.of({name: text.encode() for name, text in self.lane.items()})
        if self.lane.get(PAUSED, "|") == "|" and PAUSED in self.lane:
            yield "says that something is paused, and nothing is"
        if pauses.count != len(pauses.keys):
            yield f"counts {pauses.count} paused keys, has {len(pauses.keys)}"
        for handler, keys in self.unassigned.items():
            for key, score in keys.items():
                if is_held_back(score) and key not in pauses.keys:
                    yield f"{key!r}: stands last in unassigned:{handler}, and is not paused"

    def _of_entry(self, key: str, record: Record) -> Iterator[str]:
        entry_id = f"{record.epoch}-0"
        fields = self.streams.get(record.owner, {}).get(entry_id)
        start = Start.parse(entry_id, fields) if fields is not None else None
        if start is None or start.key != key:
            yield f"no entry {entry_id} in stream:{record.owner}"
            return
        said = (start.id, start.handler, start.kind, start.attempt, start.marks, start.accepted)
        meant = (record.id, record.handler, record.kind, record.attempt, record.marks)
        # How far it is may have been said since.
        more = _but_progress(start.more), _but_progress(record.more)
        if said != (*meant, record.accepted) or more[0] != more[1]:
            yield "its entry does not say the same"
        if (start.payload is None) != ("p" in record.flags):
            yield "its payload is not where flag p says"

    def _of_indexes(self, records: dict[str, Record | None]) -> Iterator[str]:
        """Look for what no record confirms; a record that cannot be read may own anything."""

        def is_not(key: str, state: str, **facts: object) -> bool:
            record = records.get(key)
            wrong = record is not None and (
                record.state != state
                or any(getattr(record, name) != value for name, value in facts.items())
            )
            return key not in records or wrong

        for key in self.pending:
            if is_not(key, "pending"):
                yield f"{key!r}: in `pending`, but is not"
        for member in self.due:
            if member[:2] in ("o:", "b:", "s:"):
                continue  # see `_of_messages`, `_of_batches`, `_of_schedules`
            if member.removeprefix("k:") not in records or not member.startswith("k:"):
                yield f"{member!r}: in `due` without a record"
        for handler, keys in self.unassigned.items():
            for key in keys:
                if is_not(key, "unassigned", handler=handler):
                    yield f"{key!r}: in unassigned:{handler}, but is not"
        for worker, owned in self.owned.items():
            for key in owned:
                if is_not(key, "running", owner=worker):
                    yield f"{key!r}: in owned:{worker}, but is not"
        for worker, entries in self.streams.items():
            for entry_id, fields in entries.items():
                epoch, key = int(entry_id.partition("-")[0]), _text(fields.get("k", b""))
                if is_not(key, "pending", owner=worker, epoch=epoch):
                    yield f"{key!r}: entry {entry_id} in stream:{worker} starts no job"
        for name, keys_of in (
            ("payloads", self.payloads),
            ("checkpoints", {name for name in self.checkpoints if name[:1] != "\n"}),
            ("inbox", set(self.inboxes)),
        ):
            yield from (f"{key!r}: {name} without a record" for key in keys_of - set(records))
        for name in self.checkpoints:
            mark, _, of = name.rpartition("\n")
            if mark == "" and name != of and of not in records:
                yield f"{of!r}: steps without a record"
            if mark and of not in self.letters:
                yield f"{of!r}: steps without a dead letter"
        for job in self.parked ^ set(self.letters):
            yield f"{job!r}: only one of `parked` and `letters` has it"

    def _of_identities(self) -> Iterator[str]:
        for identity in self.cleanup:
            # The sweeper's lock is a field there too, and ends by itself.
            if identity not in self.keepalive and identity != "sweeper":
                yield f"{identity}: fenced, but nothing wakes a successor of its reaper"
        for worker, text in self.open.items():
            told = Opening.parse(text.encode(errors="surrogateescape"))
            if told is None:
                yield f"{worker}: `open` says {text!r}"
                continue
            identity = member_name(worker, told.number)
            if identity in self.cleanup or identity not in self.keepalive:
                yield f"{identity}: in `open`, but is not a worker any more"

    def _of_counters(self, records: dict[str, Record | None]) -> Iterator[str]:
        unassigned = sum(map(len, self.unassigned.values()))
        states = [record.state for record in records.values() if record]
        waiting = states.count("waiting") + states.count("queued")
        for name, size in (("unassigned", unassigned), ("waiting", waiting)):
            if (counted := int(self.lane.get(name, "0"))) != size:
                yield f"counts {counted} {name} keys, has {size}"


def _joined(fields: dict[str, str], letter: str) -> list[str]:
    """Return the parts of a batch that have this letter, in order."""
    numbers = sorted(int(name[2:]) for name in fields if name[:2] == f"{letter}:")
    return [fields[f"{letter}:{number}"] for number in numbers]


def _lines(text: str) -> int:
    return len(text.split("\n"))


def _has_more(more: str) -> bool:
    """Say whether there are followers beside it: those that were released have names."""
    return more_of(more, "followers").isdecimal()


def _but_progress(more: str) -> list[str]:
    return [each for each in more.split(",") if each and each[0] != MORE["progress"]]


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _texts(reply: dict[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in reply.items()}


def _scores(reply: Any) -> dict[str, float]:
    return {_text(member): float(score) for member, score in reply}


def _entries(reply: Any) -> dict[str, dict[str, bytes]]:
    return {_text(entry_id): _fields(fields) for entry_id, fields in reply}


def _fields(reply: Any) -> dict[str, bytes]:
    # A pipeline of redis-py's cluster leaves them as they came: name, value, name, value ...
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): value for name, value in pairs}
