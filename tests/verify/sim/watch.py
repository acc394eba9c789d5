"""What really happened, as only the server and the nodes' own leases can tell it.

The server's side is read off its keys as they are written: a grant is an entry in a worker's
stream, a settlement is the writing of an outcome.  The nodes' side is when they believed that their
lease was good.  Handlers and the driver write the rest of the history themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from pool.core.crash_marks import Marks
from pool.core.lease import Timing
from pool.core.record import Record, more_of
from pool.core.times import When
from pool.errors import PoolError
from pool.jobs.fleet.keepalive import KeepAlive
from pool.jobs.fleet.membership import Membership
from pool.jobs.job import Inbox
from pool.jobs.run import Run
from pool.jobs.worker.executor import Executor
from pool.jobs.worker.outbox import Outbox
from pool.jobs.worker.reconcile import Reconciliation
from pool.jobs.worker.worker import Worker
from pool.names import Control, key_of, queued, split_pair
from pool.redis.commands.admission import DISPATCH
from pool.redis.commands.channel import INCOMING
from pool.redis.commands.edges import ADVANCE
from pool.redis.commands.lane import SCRIPTS
from pool.redis.commands.letters import REPLAY
from pool.redis.commands.member import RENEW
from pool.redis.commands.recovery import FENCE, REAP, SWEEP
from pool.redis.commands.schedules import SCHEDULE, TICK
from pool.redis.commands.talk import NOTIFY, InboxPage, MessageId, number_in
from pool.redis.commands.upkeep import Owned
from tests.verify.history import Event, Recorder
from tests.verify.sim import reading
from tests.verify.sim.chains import carried
from tests.verify.sim.faults import POOL
from tests.verify.sim.planned import accepted
from tests.verify.sim.programs import Programs, token_of
from tests.verify.sim.server import Server
from tests.verify.sim.streams import parse_id
from tests.verify.sim.timetable import triggered, watch_changes
from tests.verify.sim.world import Process, World

STORE: Final = "server"
_TOKEN: Final = re.compile(rb'"(t\d+\.\d+)"')  # in a payload
_SEQ: Final = re.compile(rb'"seq":(\d+)')  # likewise
_SCRIPTS: Final = {script.sha.encode(): script for script in SCRIPTS}


_STREAM: Final = Control(POOL).stream("").encode()
_PARKED: Final = re.compile(rb".*:sink-parked:\d+:([a-z0-9]+):(.*)")


def _name(key: bytes) -> str:
    return key.removeprefix(_STREAM).decode()


def _token(fields: Sequence[bytes]) -> str:
    return token_of(dict(zip(fields[::2], fields[1::2], strict=False)).get(b"p", b""))


@attrs.define(eq=False)
class Watch:
    """Writes the history of one world."""

    world: World
    server: Server
    events: list[Event] = attrs.field(factory=list)
    seen: set[str] = attrs.field(factory=set)  # abnormal things that no event of the history tells
    key_of: dict[str, str] = attrs.field(factory=dict)  # job id -> key
    remade: set[str] = attrs.field(factory=set)  # ids of jobs that letters were made
    made_of: dict[tuple[str, str], str] = attrs.field(factory=dict)  # letter -> job id
    token_of: dict[tuple[str, str], str] = attrs.field(factory=dict)  # key, job id -> of its call
    settled: dict[str, str] = attrs.field(factory=dict)  # job id -> word
    changes: set[bytes] = attrs.field(factory=set)  # tokens of changes of schedules, and of ticks
    # Schedules: when each is due, as it was written; what the server's clock said to those who were
    # about to change one, and since when changes of `EDITED` are under way.
    whens: dict[str, When] = attrs.field(factory=dict)
    walls: list[tuple[float, int]] = attrs.field(factory=list)
    edits: dict[int, float] = attrs.field(factory=dict)
    planned: dict[str, list[Any]] = attrs.field(factory=dict)  # job id -> key, version
    problems: list[str] = attrs.field(factory=list)  # what no invariant speaks of
    judge_grant: Callable[[str, int, str, str], str] = lambda *_: ""  # in its very step
    _uses: int = 0
    _messages: set[tuple[str, bytes]] = attrs.field(factory=set)  # lane, and as it was told
    # What was last seen of maps.
    _truths: dict[str, dict[str, Any] | None] = attrs.field(factory=dict)
    _copies: dict[tuple[str, str], bool] = attrs.field(factory=dict)
    _store: Recorder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._store = self.recorder(STORE)
        self.server.on_call = self._on_call
        self.server.keyspace.on_append = self._on_append
        self.server.keyspace.on_set = self._on_set
        self.server.keyspace.on_give = self._on_give
        self.server.keyspace.on_ack = self._on_ack
        self.server.keyspace.on_drop = self._on_drop

    def recorder(self, p: str) -> Recorder:
        """Return what one process writes with."""
        return Recorder(p, self.events.append, lambda: self.world.now_s)

    # --- the server's side ---

    def _on_append(self, key: bytes, entry_id: bytes, fields: Sequence[bytes]) -> None:
        if key.startswith(_STREAM):
            self._store("added", key=_name(key), stream_id=entry_id.decode(), idem=_token(fields))
            return
        if parked := _PARKED.match(key):
            facts = dict(zip(fields[::2], fields[1::2], strict=False))
            self._store(
                "parked",
                key=parked[1].decode(),
                idem=_token(fields),
                stream_id=facts.get(b"i", b"").decode(),
                extra={"sink": parked[2].decode()},
            )
            return
        prefix, found, worker = key.partition(b":stream:")
        if found:
            facts = dict(zip(fields[::2], fields[1::2], strict=True))
            job_id, handler, *_ = facts[b"m"].decode().split("|")
            job_key = facts[b"k"].decode()
            self.key_of[job_id] = job_key
            epoch = int(entry_id.partition(b"-")[0])
            number = int(reading.lane_in(prefix))
            if wrong := self.judge_grant(worker.decode(), number, job_key, handler):
                self.problems.append(wrong)
            self._store(
                "own",
                key=job_key,
                job=job_id,
                epoch=epoch,
                nonce=f"{worker.decode()}@{reading.lane_in(prefix)}",
            )

    def _on_give(self, key: bytes, group: bytes, consumer: bytes, entry_id: bytes) -> None:
        self._of_group("gave", key, group, entry_id, consumer.decode())

    def _on_ack(self, key: bytes, group: bytes, entry_id: bytes) -> None:
        self._of_group("acked", key, group, entry_id, "")

    def _of_group(self, f: str, key: bytes, group: bytes, entry_id: bytes, consumer: str) -> None:
        self._store(
            f,
            key=_name(key),
            stream_id=entry_id.decode(),
            idem=self._token_at(key, entry_id),
            nonce=consumer,
            extra={"sink": group.decode()},
        )

    def _token_at(self, key: bytes, entry_id: bytes) -> str:
        """Return which event has an id in the stream as it is now; "" for a foreign event.

        After the server went back to older data, an id may name another event than the newest one
        that was added under it.
        """
        return _token(self.server.keyspace.keys[key].ever_added.get(parse_id(entry_id, 0), ()))

    def _on_drop(self, key: bytes, ids: Sequence[bytes]) -> None:
        for each in ids if key.startswith(_STREAM) else ():
            token = self._token_at(key, each)
            self._store("dropped", key=_name(key), stream_id=each.decode(), idem=token)

    def look_at_maps(self, programs: Programs) -> None:
        """Write what has changed since: what a map is, and whether a copy is that."""
        for name in programs.maps:
            truth = reading.map_items(self.server.keyspace, POOL, name)
            if name not in self._truths or self._truths[name] != truth:
                self._truths[name] = truth
                self._store("truth", "info" if truth is None else "ok", key=name)
            for process, items in programs.copies(name) if truth is not None else ():
                is_same = items == truth
                if self._copies.get((process, name)) is not is_same:
                    self._copies[process, name] = is_same
                    extra = {} if is_same else {"has": items, "truth": truth}
                    said: Any = "ok" if is_same else "fail"
                    self._store("copy", said, p=process, key=name, extra=extra)

    def _on_set(self, key: bytes, value: bytes) -> None:
        prefix, found, job = key.partition(b":result:")
        if found and not value.startswith(reading.REFUSED):
            job_key, job_id = split_pair(job.decode())
            head, _, body = value.decode(errors="replace").partition("\n")
            word, epoch, owner, attempt, _, more, cause = head.split("|")
            if more_of(more, "replayed"):
                return  # the outcome is as it was, and names what its letter became
            self.settled.setdefault(job_id, word)
            self._store(
                "commit",
                key=job_key,
                job=job_id,
                epoch=int(epoch),
                attempt=int(attempt),
                nonce=f"{owner}@{reading.lane_in(prefix)}" if owner else "",
                result="first",
                extra={"word": word, "cause": cause, "body": body[:40]},
            )

    def _on_call(
        self,
        process: Process,
        sha: bytes,
        keys: Sequence[bytes],
        args: Sequence[bytes],
        reply: Any,
    ) -> None:
        script = _SCRIPTS.get(sha)
        lane = reading.lane_in(keys[0]) if keys else ""
        if script is ADVANCE:
            self._on_advance(lane, args, reply)
            fenced = self.server.keyspace.keys.get(keys[2]) or {}
            if args[1] == b"own" and isinstance(reply, list) and args[2] in fenced:
                self.problems.append(f"I3: {args[2].decode()} was fenced, and was still obeyed")
        elif script is DISPATCH:
            items = _items(args, 5)
            for item in items:
                job_key, job = item[0].decode(), item[1].decode()
                self.key_of.setdefault(job, job_key)
                if found := _TOKEN.search(item[7]):
                    self.token_of[job_key, job] = found[1].decode()
            for item, said in zip(items, reply, strict=True) if isinstance(reply, list) else ():
                is_taken = said.startswith((b"OK", b"QUEUED"))
                if is_taken and (facts := triggered(item)):
                    self._accept(facts)
                if is_taken and (of_plan := accepted(item)):
                    self.planned[of_plan[0]["job"]] = of_plan[1]
                    self._accept(of_plan[0])
            if isinstance(reply, list) and b"ENDED" in reply:
                self.seen.add("dispatch repeated after its end")
        elif script is REPLAY and isinstance(reply, bytes) and reply[:3] == b"OK ":
            key, letter = args[5].decode(), args[6].decode()
            made = reply.split(b" ")[1].decode()
            is_new = made == args[7].decode() and made not in self.remade
            before = self.made_of.get((key, letter), made)
            if before != made and not is_new:
                self.problems.append(f"the letter of {letter} was made {before} and {made}")
            self.made_of[key, letter] = made
            if is_new:
                self.remade.add(made)
                self.key_of[made] = key
                self._store("replayed", key=key, job=made, extra={"of": letter})
        elif script is INCOMING and isinstance(reply, bytes) and reply[:2] == b"OK":
            self._on_incoming(keys, args)
        elif script is SCHEDULE and isinstance(reply, list):
            watch_changes(self, keys, args, reply)
        elif script is TICK and isinstance(reply, list) and reply[0] != b"0":
            if args[3] not in self.changes:
                self.changes.add(args[3])
                extra = {"number": int(reply[0]) // int(args[4]), "missed": int(reply[1])}
                self._store("ticked", p=process.name, key=args[2].decode(), extra=extra)
        elif script is NOTIFY and isinstance(reply, bytes) and reply[:3] == b"OK ":
            # Who asked again may be told of the message that is there: each is told once.
            if (lane, reply) not in self._messages and (found := _SEQ.search(args[5])):
                self._messages.add((lane, reply))
                extra = {"seq": int(found[1])}
                self._store("message", key=args[1].decode(), job=args[6].decode(), extra=extra)
        elif script is RENEW and isinstance(reply, list) and args[10] != b"0":
            first_s, last_s = int(args[10]) / 1000, int(args[11]) / 1000
            self._store("vain", extra={"lane": lane, "first_s": first_s, "last_s": last_s})
        elif script is FENCE and isinstance(reply, list):
            for name, claim in zip(reply[1::2], reply[2::2], strict=True):
                holder, fence, *_ = claim.decode().split("|")
                facts = {"fence": int(fence), "holder": holder, "by": process.name}
                self._store("lock", nonce=f"{name.decode()}@{lane}", extra=facts)
        elif script is SWEEP and isinstance(reply, list):
            if len(reply) > 3:
                self.seen.add("sweep found something overdue")
            if reply[2]:
                self.seen.add("sweeper's lock was held")
        elif script is REAP and not isinstance(reply, list):
            self.seen.add("reaper's claim was taken over")
        elif script is REAP:
            self._use_claim(lane, args[1].decode(), args[2].decode())
        if script is REAP and isinstance(reply, list) and reply[-1] == b"FORGOTTEN":
            self._store("reap", nonce=f"{args[1].decode()}@{lane}", extra={"by": process.name})

    def record_store(self, f: str, **facts: Any) -> None:
        """Write what the store did."""
        self._store(f, **facts)

    def _on_incoming(self, keys: Sequence[bytes], args: Sequence[bytes]) -> None:
        """Write that jobs were accepted which follow others, or which schedules made; each once, as
        others' dispatches; or that a schedule's job was left out.
        """
        for text in args[5::2]:
            if text[:2] == b"e ":
                continue  # a member of a batch has ended: see `batching.py`
            if text[:2] == b"o ":
                continue  # the schedule's lane is told that
            facts = carried(text)
            if facts["idem"] == facts["job"] and not self._is_there(keys, facts):
                if (facts["key"], facts["job"]) not in self.token_of:
                    self._store("overlap", key=facts["key"], job=facts["job"])
                continue
            self._accept(facts)

    def _accept(self, facts: dict[str, Any]) -> None:
        """Write that a job was accepted that no producer has told of; once."""
        key, job = facts["key"], facts["job"]
        if (key, job) not in self.token_of:
            self.key_of.setdefault(job, key)
            self.token_of[key, job] = facts["idem"]
            self._store("dispatch", "invoke", **{**facts, "job": ""})
            self._store("dispatch", **facts)

    def _is_there(self, keys: Sequence[bytes], facts: dict[str, Any]) -> bool:
        """Say whether a job has a record, live or in line."""
        jobs = self.server.keyspace.keys.get(keys[1]) or {}
        live = Record.parse(jobs.get(facts["key"].encode(), b""))
        name = queued(facts["key"], facts["job"]).encode()
        return (live is not None and live.id == facts["job"]) or name in jobs

    def _use_claim(self, lane: str, dead: str, claim: str) -> None:
        """Write that a claim was good enough for a call: none of an older one may be, after it."""
        self._uses += 1
        extra = {"dead": f"{dead}@{lane}", "fence": int(claim.split("|")[1])}
        self._store("requeue", job=f"use {self._uses}", extra=extra)

    def _on_advance(self, lane: str, args: Sequence[bytes], reply: Any) -> None:
        guard, source, claim = (arg.decode() for arg in args[1:4])
        if not isinstance(reply, list):
            if guard == "own":
                self._store("commit", "fail", nonce=f"{source}@{lane}", err="GONE")
            return
        if guard == "reap":
            self._use_claim(lane, source, claim)
        for item, status in zip(_items(args, 11), reply[1:], strict=True):
            edge, name, epoch, job = (word.decode() for word in item[:4])
            key = key_of(name)
            word = status.decode().partition(" ")[0]
            facts: dict[str, Any] = {"key": key, "job": job, "epoch": int(epoch)}
            facts["nonce"] = f"{source}@{lane}"
            if guard == "own" and edge in "dcxw":
                if word == "REPEAT":
                    self._store("commit", result="repeat", **facts)
                elif word in ("SETTLED", "FENCED", "REFUSED"):
                    self._store("commit", "fail", err=word, **facts)
            elif guard == "reap" and word in ("GRANTED", "UNASSIGNED", "OK"):
                extra = {"dead": f"{source}@{lane}", "fence": int(claim.split("|")[1])}
                held_s, marks = _held_by_coin_s(edge, item), item[6].decode().partition("=")[2]
                extra |= {"coin_s": held_s} if held_s else {}
                extra["alone"] = Marks.parse(marks).is_tried
                del facts["nonce"]
                self._store("requeue", extra=extra, **facts)
            if (guard, edge, word) == ("own", "a", "OK"):
                self._store("ack", **facts)
            if word == "STOPPED":
                self.seen.add("a start was stopped by its acknowledgement")
            if word == "TIMEDOUT":
                self.seen.add("a timed out attempt was not settled")


def _held_by_coin_s(edge: str, item: Sequence[bytes]) -> float:
    """Return for how long a coin holds a job with this edge."""
    coin = Marks.parse(item[6].decode().partition("=")[2]).round if edge == "w" else None
    return int(item[5]) / 1000 if coin is not None and coin.is_held else 0.0


def _items(args: Sequence[bytes], counted: int) -> list[Sequence[bytes]]:
    first = counted + 1 + 2 * int(args[counted])
    return [args[at : at + 8] for at in range(first, len(args), 8)]


# --- the nodes' side ----------------------------------------------------------------------------


def watch_leases(tell: Callable[[Any, str, str, float, Timing], None]) -> Callable[[], None]:
    """Call `tell(IO, f, identity, asked, granted)` for what nodes join and renew.

    Returns what ends it.
    """
    answered, joined = KeepAlive._on_answer, Membership._join

    def on_answer(self: KeepAlive, answer: Any) -> None:
        plan, asked_s = answer.round.plan, answer.round.asked_s
        for of, names, reply in zip(plan.states, plan.takes, answer.replies, strict=False):
            if not isinstance(reply, PoolError):
                told = reply
                timing = Timing(told.ttl.ms / 1000)
                for name, count in zip(names, told.counts, strict=True):
                    if count >= 0:
                        tell(self.context.io, "renew", f"{name}@{of.number}", asked_s, timing)
        answered(self, answer)

    async def join(self: Membership, state: Any, workers: Any, **options: Any) -> None:
        asked_s = self.context.io.clock()
        names = [worker.target(state.number).name for worker in workers.values()]
        await joined(self, state, workers, **options)
        for name in names:
            timing = state.lease.timing
            tell(self.context.io, "join", f"{name}@{state.number}", asked_s, timing)

    KeepAlive._on_answer = on_answer  # type: ignore[method-assign]
    Membership._join = join  # type: ignore[method-assign]

    def end() -> None:
        KeepAlive._on_answer = answered  # type: ignore[method-assign]
        Membership._join = joined  # type: ignore[method-assign]

    return end


def watch_rare(seen: set[str]) -> Callable[[], None]:
    """Note what nodes met that neither they nor the server tell; return what ends it."""
    offered, may, mended = Inbox.offer, Executor._may_start, Worker._mend
    read_inbox = Worker._read_inbox

    async def read(self: Worker, run: Run, after: MessageId) -> InboxPage:
        page = await read_inbox(self, run, after)
        if after and page.has_more:
            seen.add("one of several pages of an inbox")
        return page

    def offer(self: Inbox, message: MessageId, before: int, payload: bytes | None) -> None:
        is_lost = before > number_in(self._last)
        if is_lost and not self._is_behind and not self._is_reading:
            seen.add("message behind one whose signal was lost")
        offered(self, message, before, payload)

    def may_start(self: Executor, run: Run) -> bool:
        if self.context.busy.get(run.key) not in (None, run):
            seen.add("key back before its former handler ended")
        return may(self, run)

    def mend(
        self: Worker, number: int, box: Outbox, theirs: Owned, known: Sequence[Run]
    ) -> Reconciliation:
        for start in theirs.starts:
            run = self.runs.get(start.key)
            is_known = run is not None and run.start.epoch >= start.epoch
            if not is_known and self._memory.latest.get(start.key, 0) > start.epoch:
                seen.add("older grant came back after lost data")
        mending = mended(self, number, box, theirs, known)
        audit = self._lanes[number].audit
        if mending.is_needed and audit is not None and (audit.counts.total() or not audit.is_over):
            seen.add("one of several pages of a reconciliation mended something")
        return mending

    Inbox.offer = offer  # type: ignore[method-assign]
    Executor._may_start = may_start  # type: ignore[method-assign]
    Worker._mend = mend  # type: ignore[method-assign]
    Worker._read_inbox = read  # type: ignore[method-assign]

    def end() -> None:
        Inbox.offer = offered  # type: ignore[method-assign]
        Executor._may_start = may  # type: ignore[method-assign]
        Worker._mend = mended  # type: ignore[method-assign]
        Worker._read_inbox = read_inbox  # type: ignore[method-assign]

    return end
