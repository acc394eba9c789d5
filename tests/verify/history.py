"""The history of one run: who did what when, as events that any process can append to a file.

All processes of one machine share a monotonic clock, so that the order of `t` is the real one; in
simulation `t` is virtual.  Every process writes a file of its own, one line an event with a single
`write` in append mode: what was written before a SIGKILL stays.  In simulation a list takes them.

    f         by           what it says (type ok unless given); fields beside key, job, epoch, ...
    dispatch  producer     (this, result, cancel, notify: extra within_s of the invoke says within
                           what it must return; who cancelled its own call says info, CANCELLED)
                           invoke before the call, then ok (job), fail (err; nothing was done) or
                           info (err; unknown).  idem: the call's own token, carried in the payload.
                           extra: digest, kind job|service, attempts_max, delay_s, poison
    follow    producer     idem is to follow: key.  extra: of (idem of its predecessor), when
                           (then: that is done, otherwise)
    fire      store        schedule `key` was fired.  extra: jobs (their ids), to (their key), next
                           (its next time before, and now), fired, missed (what it counts more),
                           paused, every_ms (between two of its times), wall_ms
    schedule  store        it was changed otherwise.  extra: late_ms (of one that is gone: how long
                           it had been due), paused.  info, of a look at it: look (its next time,
                           fired, missed), every_ms, wall_ms
    overlap   store        the job of a firing was left out: its key had a live one
    batch     producer     invoke, then ok (nonce): it is open: key.  extra: then (idem of who is
                           to follow it), least (how many of its members must succeed for that)
    again     producer     another one than who dispatched member idem adds it to its batch once
                           more: key.  extra: lane (of the batch, which notes who was refused)
    ticker    program      invoke: it waits for the ticks of `key`; ok: no more.  extra: every_s
    tick      program      one is its.  extra: number, missed, done (was_done)
    ticked    store        process p has been given one: key.  extra: number, missed
    answer    program      what the producer of plan `key` says.  extra: wanted {key: version of its
                           arguments}, mistake (empty: it is none)
    confirm   program      somebody confirms whatever plan `key` means
    result    producer     ok (result), fail (err POOLPARKED | POOLCANCELLED | ...), info (unknown)
    cancel    producer     invoke, then ok: the job has ended, fail: nothing was done, or info
    notify    producer     invoke, then ok | fail | info.  extra: seq, rising per key
    message   store        it was put into the inbox of a job.  extra: seq
    join      node         nonce, an owner's identity that this process has now.  extra: worker
                           (bool: it takes jobs)
    own       store        a grant: key, epoch, nonce
    ack       store        its owner has acknowledged the start: key, epoch, nonce
    start     handler      nonce, attempt, idem.  extra: run (number in this process), digest, kind,
                           timeout_s; outlives: a service that goes on when the store is away
    note      handler      a message was handled.  extra: run, seq
    step      handler      invoke: its function begins; ok: its result is told.  extra: run, step,
                           skey (of invoke: `step.key`)
    state     handler      ok: it is saved; info: a run begins with it.  extra: run, heard [seq of
                           each message in it]
    end       handler      ok: it returns now; fail: err error|retry|cancelled|park|timeout.
                           extra: run, after_s
    effect    handler      ok: the fenced resource took it; fail: a higher epoch was there before
    disown    node         the node gave the key's epoch up, or knows that it lost it
    renew     node         a confirmed renewal: nonce.  extra: asked (t), until (t; own deadline)
    vain      store        a renewal says that its caller had asked in vain before.  extra: lane,
                           first_s, last_s (ago: its first try began, its last one failed)
    lease     driver       the server's account of a renewal: nonce.  extra: asked (t; when it was
                           renewed, or a moment before), until (t; it ends then, or a moment later)
    commit    store, node  ok: settled, result first | repeat.  extra: word, cause, body.  fail:
                           refused
    requeue   store        a reaper moved a job.  extra: dead (identity), fence
    lock      store        a reaper's claim: nonce (the dead identity).  extra: fence, holder, by
                           (its process; of a reap likewise)
    reap      node         nothing is left of identity nonce.  extra: keys
    event     node         any other event of the product.  extra: event, and its facts
    boot      driver       process p begins; it shall take jobs
    health    driver       extra: state (of the node), dead [its parts that do not run]
    members   node         extra: workers (ids in its copy of the map), shared (its copy of the
                           shared map)
    map       node         a write into the shared map: invoke, ok, fail or info.  key.  extra:
                           value (of a set), revision (ok).  Key `total`: 1 was added
    seen      node         a change of it came: key.  extra: revision, value.  info: it begins anew
    moved     node         the line that its calls take has carried something.  extra: lane (empty:
                           it is for all); told at most each MOVED_S
    put       program      a write into a map, key MAP/KEY, idem its value: invoke, ok, fail, info.
                           extra: wait (for the own copy); ok: r(evision); waited: copy (how far it
                           was then), got (what it had)
    await     program      it waits for another's `put`: key, idem as there.  invoke; ok: got (what
                           its copy had then); fail: it is told that it is lost; info
    saw       program      a watcher was told of a change: key MAP.  extra: w (its number),
                           r(evision), k(ey), old, new.  info: it begins (anew): why, items, r as of
                           now, at as of what it was told
    truth     store        map `key` has changed since the last look; info: it cannot be read
    copy      store        ok: the copy of map `key` in p is what the map is; fail: not any more
    add       program      an event, idem in its payload, into stream `key`: invoke, ok (stream_id)
    read      program      a reader got an event.  extra: reader (its number), after.  info: it
                           begins behind `start`
    consumer  program      ok: a consumer of a sink on streams `key` begins; info: it ends.  extra:
                           sink, max (deliveries)
    given     program      its handler has an event: idem, nonce (the consumer).  extra: sink,
                           grace_s
    done      program      it acknowledges: invoke, ok (result: whether it was the first), info
    added, gave, acked, parked, dropped  store   an event is in its stream; waits under a name
                           (nonce); is acknowledged; is given up; is trimmed.  extra: sink
    leave     driver       invoke: told to leave (extra grace_s); ok: it has ended in peace
    exit      driver       process p has ended; result: its exit code
    stall     driver       threads waited for a processor.  extra: waited {process, or `server`: s}
    snapshot  driver       extra: the lane's counters, and `live`: how many records there are
    fault     driver       invoke: it is in effect; ok: it is over.  extra: id, kind, does, target
                           (node name, empty: all), lane (empty: all; `control`: none), weight
                           (how many faults this counts for); of a loss since: as of when the
                           data are; of a clock step_s; by: the job whose deed it is
    ttl       driver       the TTL of a lane is another one.  extra: lane, before_s, s
    heal      driver       no fault is in effect any more
    final_state  driver    extra: see `final` below

`p` is NODE/BOOT, a process; `nonce` is what Redis knows an owner by.  What a fault `does` decides
what it may excuse:

    crash     its process ended without leaving           leave  it was told to leave
    pause     its process, or its event loop, stood still, or had far too little of the processor
    stubborn  a handler did not end when it was cancelled
    cut       it could not reach the server, or not hear it, or only very slowly
    store     the server was away, frozen, restarted or refused
    drop      connections or scripts were taken away, the server stayed
    clock     a clock jumped                              loss   the server lost data
    full      the server's memory was up: it took nothing new, and that excuses nothing else
    load      it made work, and excuses nothing
    data      a key of one map or stream (`of`) was taken away, or foreign: it excuses nothing else

extra of final_state: drained (bool), now_ms (server time at t), jobs {key: [job id, state, kind]},
outcomes {job id: {key, word, epoch, owner, attempt, ended_ms, cause, value}}, problems [of the
auditor], leases [identities in keepalive], live [identities that living processes have], unknown
[keys of the pool that nobody can explain], claims [identities in cleanup that are not done],
workers [ids in the map's truth], takes {identity: how many keys it takes}, working [identities of
workers that live], refused [what the server would not let the pool's user do], shared {key: value
of the shared map}, maps {name: what it holds}, out [messages to lanes that are under way], batches
{id: {nonce, state, letters of its members, counts}}, plan {wanted, there: key -> version, parked}.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

TOTAL: Final = (
    "total"  # key of the shared map that everybody adds to; each name has its own besides
)

CONTROL: Final = "control"  # where the lane of a fault stands: the control keys, and no lane

Type: TypeAlias = Literal["invoke", "ok", "fail", "info"]


@attrs.frozen(kw_only=True)
class Event:
    """One thing that happened."""

    n: int  # rises in each process
    t: float  # seconds
    p: str
    type: Type
    f: str
    key: str = ""
    job: str = ""
    idem: str = ""
    attempt: int = 0
    epoch: int = 0
    nonce: str = ""
    stream_id: str = ""
    result: Any = None
    err: str = ""
    extra: dict[str, Any] = attrs.field(factory=dict)

    @property
    def node(self) -> str:
        """The name without the boot."""
        return self.p.partition("/")[0]

    def line(self) -> str:
        """Return it as JSON; what has its default is left out."""
        facts = {name: value for name in _NAMES if (value := getattr(self, name)) not in _EMPTY}
        return json.dumps(facts, separators=(",", ":"), sort_keys=True)

    @classmethod
    def parse(cls, line: str | bytes) -> Event:
        """Return what `line()` wrote."""
        facts = json.loads(line)
        facts.setdefault("n", 0)
        facts.setdefault("t", 0.0)
        facts.setdefault("p", "")
        return cls(**facts)


_NAMES = tuple(field.name for field in attrs.fields(Event))
_EMPTY: tuple[Any, ...] = ("", None, {})  # 0 == False: numbers are written whatever they are

MOVED_S: Final = 0.05  # at most so often it is told that a line has moved
Sink: TypeAlias = Callable[[Event], object]


@attrs.define(eq=False)
class Recorder:
    """What one process writes its events with."""

    p: str
    sink: Sink
    clock: Callable[[], float]
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def __call__(self, f: str, type_: Type = "ok", /, **fields: Any) -> Event:
        """Append an event that happens now, and return it; `p` and `t` may be given."""
        facts = {"t": self.clock(), "p": self.p, **fields}
        event = Event(n=next(self._numbers), type=type_, f=f, **facts)
        self.sink(event)
        return event


def file_sink(path: Path) -> Sink:
    """Return what appends each event to a file as one line, in one `write`."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return lambda event: os.write(fd, event.line().encode() + b"\n")


def read(path: Path) -> list[Event]:
    """Return the events of one file in its order; a last line that was cut off is left out."""
    lines = path.read_bytes().split(b"\n")
    return [Event.parse(line) for line in lines[:-1] if line]


def merged(*histories: Iterable[Event]) -> list[Event]:
    """Return all events by time; those of one moment stay in the order given."""
    return sorted(itertools.chain(*histories), key=attrgetter("t"))


def digest(events: Iterable[Event]) -> str:
    """Return a digest that is the same exactly if all events are."""
    made = hashlib.sha256()
    for event in events:
        made.update(event.line().encode() + b"\n")
    return made.hexdigest()


def digest_of(spec: Mapping[str, Any]) -> str:
    """Return what stands for a payload in the history."""
    return hashlib.sha1(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


@attrs.define(eq=False)
class FencedResource:
    """An external resource that job effects go to: it refuses an epoch below one it has seen."""

    _seen: dict[str, int] = attrs.field(factory=dict)

    def takes(self, key: str, epoch: int) -> bool:
        """Say whether the effect is taken, and remember its epoch."""
        taken = epoch >= self._seen.get(key, 0)
        if taken:
            self._seen[key] = epoch
        return taken


def fenced(effects: Iterable[Event]) -> Iterator[Event]:
    """Yield effects in the order in which they reached the resource, with its answer as type.

    The resource of a black-box run is one file that all processes append to: the order of its
    lines is the order of arrival, and no lock is there that a frozen process could hold.
    """
    resource = FencedResource()
    for effect in effects:
        taken = resource.takes(effect.key, effect.epoch)
        yield attrs.evolve(effect, type="ok" if taken else "fail")
