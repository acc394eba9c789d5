"""Who waits for jobs to start or to end, and how they hear of it.

    wait() --> looks of a lane --batch--> look.lua: registers our node with each record
       ^                                     |
       |<-- record, outcome, or neither <----+
       |<-- signal: started, ended <-------------- whoever starts or settles the job

A server closes the connection if an outcome is larger than its limit for answers.  After that each
job of this look is looked at alone, over a separate connection.  If only that one look fails, the
callers who wait for its job get StoreUnavailable.

A signal may be lost, and a record remembers so many nodes only: whatever happens, what is waited
for is asked again every ASK_AGAIN_S.  One answer tells all who wait for the same job, each once.

A handler that waits tells the worker of the job it waits for: "this job waits for that one, by way
of this".  A node whose handler waits in its turn passes that on, and where it comes back to the
first, none of them would ever end: that wait fails.  Nothing of it is stored, since who waits for
whom is known for sure only where it waits.  It is said when the other is seen to run, and again
whenever it is asked again: of two waits that come together one is always the later to be told.  So
it is mostly the wait that closes the circle which fails.  A node passes the same on once in
ASK_AGAIN_S, so that circles further on do not keep it busy.  Not seen: a way that leads over a job
that is queued behind another key's, and slots that all wait for jobs which need one.

A batch ends when all its members have, so who waits for one waits for each of them:

    a member waits for us      told by its own message, whose origin bears the batch's nonce
    over others, or batches    nothing has ended for ASK_AGAIN_S: we look which members run, and
                               tell each, as of a job; a message that comes to us goes on to these

So a batch whose members end costs nothing more, and one that stands still one look in ASK_AGAIN_S.
Of so many members `MEMBERS_TOLD` are told; those in a circle stay, and come to be among them.

A handler may wait with another node of its process, as a blocking client is one: what is for it is
handed on to that, by way of its loop.

Only `wait` adds and removes those who wait, in its caller's task; only this actor answers them.
After a crash everything that somebody waits for is asked anew; when the actor ends for good, all
are told that the node is closed.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import anyio
import attrs

from pool.core.record import Outcome, Record
from pool.errors import (
    DeadlockRisk,
    JobLost,
    NotRunning,
    OutcomeExpired,
    PoolError,
    StartFailed,
    StoreLost,
    again,
    was_cut,
)
from pool.jobs.context import Context, Seen
from pool.names import pair, split_pair
from pool.redis.commands.talk import Missing, More
from pool.redis.errors import CLOSED
from pool.redis.io.system import Reply, Waiter
from pool.redis.scripts import ScriptCall
from pool.runtime.actor import Actor

BATCH_MAX: Final = 256  # jobs looked at in one call
ASK_AGAIN_S: Final = 5.0
LAST_LOOK_S: Final = 0.1  # before the time of one who waits for a start is up
MEMBERS_TOLD: Final = 256  # that run, of a batch which a handler waits for
WAITS_MAX: Final = 10_000  # of other handlers, passed on in ASK_AGAIN_S


@attrs.define(eq=False)
class Waiting:
    """One caller who waits for a job to start, or to end."""

    key: str
    job_id: str
    seen: Seen | None = None
    origin: str = ""  # the job (key and id) whose handler waits, if it is one
    for_end: bool = True
    asks_once: bool = False  # he is told how it is when it has been looked at
    is_started: bool = False
    record: Record | None = None  # as it was when it was looked at last
    answer: Outcome | PoolError | None = None
    waiter: Waiter | None = None  # while he waits

    @property
    def job(self) -> str:
        """Key and id."""
        return pair(self.key, self.job_id)

    def end(self, answer: Outcome | PoolError) -> None:
        """Answer, once."""
        if self.answer is None:
            self.wake()  # first: if that was interrupted, he is answered anew
            self.answer = answer

    def wake(self) -> None:
        """Have him look at what has changed of it."""
        if self.waiter is not None:
            self.waiter.take(None)


@attrs.define(eq=False)
class BatchWaiting:
    """A handler that waits for a batch."""

    origin: str  # the job (key and id) whose handler waits; empty: it is none
    nonce: str = ""  # of the batch, once that is known
    running: Mapping[str, tuple[int, str]] = attrs.field(factory=dict)  # member -> lane, owner
    ended: int = -1  # of its members, when it was looked at last
    tells_s: float = 0.0  # when they are told who waits, unless more have ended by then
    is_circle: bool = False  # one of its members waits for this job
    bell: anyio.Event | None = None

    def end(self) -> None:
        """Have it told so."""
        self.is_circle = True
        if self.bell is not None:
            self.bell.set()

    def has(self, job: str) -> bool:
        """Whether a job (key and id) is a member, as far as it is known here."""
        job_id = split_pair(job)[1]
        return job in self.running or bool(self.nonce and job_id.startswith(f"{self.nonce}."))


# --- messages -----------------------------------------------------------------------------------


@attrs.frozen
class _Looked:
    lane: int
    asked: Sequence[tuple[str, str]]
    asked_s: float
    generation: str  # of the lane's data, which has answered
    frees: bool  # the dead had to give up their places to us
    reply: Reply


@attrs.frozen
class _AskAgain:
    pass


@attrs.frozen
class WaitsFor:
    """The handler of `origin` waits for `via`, which waits for ... `job`: key and id each."""

    origin: str
    via: str
    job: str


Message: TypeAlias = _Looked | _AskAgain | WaitsFor


@attrs.define(eq=False)
class _Lane:
    looks: dict[tuple[str, str], None] = attrs.field(factory=dict)  # not asked yet, in order
    is_looking: bool = False
    alone: set[tuple[str, str]] = attrs.field(factory=set)  # whose look may end the connection
    is_crowded: bool = False  # there was no place for us among those who are told


@attrs.define(eq=False, kw_only=True)
class Waiters(Actor[Message]):
    """Registers with the jobs that somebody waits for, and tells what becomes of them."""

    inbox_max: int = 65_536
    context: Context
    # Has the worker (lane, name there) that runs a job hear who waits for it.
    tell_wait: Callable[[int, str, WaitsFor], object] = attrs.field(default=lambda *_: None)
    # Of who waits for what ends of a batch; each looks for itself, and asks again if none rings.
    _bells: dict[str, set[anyio.Event]] = attrs.field(init=False, factory=dict)
    _origins: dict[str, list[Waiting]] = attrs.field(init=False, factory=dict)  # of handlers
    _for_batches: dict[str, list[BatchWaiting]] = attrs.field(init=False, factory=dict)  # likewise
    _passed_on: dict[WaitsFor, None] = attrs.field(init=False, factory=dict)  # of late
    # By number, made as they are asked for.
    _lanes: dict[int, _Lane] = attrs.field(init=False, factory=partial(defaultdict, _Lane))
    _waiting: dict[str, list[Waiting]] = attrs.field(init=False, factory=dict)  # by key and id
    _is_asking: bool = attrs.field(init=False, default=False)

    # --- for the node -------------------------------------------------------------------------

    async def wait(self, waiting: Waiting, limit_s: float | None) -> None:
        """Wait until a job has started or ended; the caller sets the time limit.

        Raises:
            TimeoutError: `limit_s` is 0, and by what the store says now it has not.
        """
        if self.state in ("stopping", "ended"):
            waiting.answer = NotRunning(state="closed")
            return
        waiting.asks_once = limit_s == 0
        present = self._waiting.setdefault(waiting.job, [])
        present.append(waiting)
        if waiting.origin:
            self._origins.setdefault(waiting.origin, []).append(waiting)
        forget: Callable[[], object] = int  # there is nothing to take back yet
        try:
            look = partial(self._look, waiting.key, waiting.job_id)
            look()
            self._ask_again_later()
            if limit_s and not waiting.for_end:
                # Why it waits is told when the time is up, and shall be true by then.
                forget = self.context.loop.later(limit_s - min(limit_s / 4, LAST_LOOK_S), look)
            while waiting.answer is None and (waiting.for_end or not waiting.is_started):
                if waiting.asks_once and waiting.record is not None:
                    raise TimeoutError
                waiting.waiter = self.context.loop.waiter()
                await waiting.waiter.wait()
        finally:
            forget()
            present.remove(waiting)
            if not present:
                self._waiting.pop(waiting.job, None)
            if waiting.origin:
                mine = self._origins[waiting.origin]
                mine.remove(waiting)
                if not mine:
                    del self._origins[waiting.origin]

    @contextmanager
    def bell(self, batch_id: str) -> Iterator[anyio.Event]:
        """Give an event that is set when whoever waits for a batch is to look at it again.

        Raises:
            NotRunning: The node has left.
        """
        if self.state in ("stopping", "ended"):
            raise NotRunning(state="closed")
        bell = anyio.Event()
        self._bells.setdefault(batch_id, set()).add(bell)
        try:
            yield bell
        finally:
            mine = self._bells[batch_id]
            mine.remove(bell)
            if not mine:
                del self._bells[batch_id]

    @contextmanager
    def for_batch(self, origin: str) -> Iterator[BatchWaiting]:
        """Note that a handler waits for a batch; it is told if that is in vain."""
        waiting = BatchWaiting(origin)
        present = self._for_batches.setdefault(origin, []) if origin else []
        present.append(waiting)
        self._ask_again_later()
        try:
            yield waiting
        finally:
            present.remove(waiting)
            if origin and not present:
                del self._for_batches[origin]

    def tell_members(self, waiting: BatchWaiting) -> None:
        """Have the members of a batch that run hear who waits for them."""
        for member, (lane, owner) in waiting.running.items():
            self.tell_wait(lane, owner, WaitsFor(waiting.origin, member, member))

    def _ring_bells(self, *batch_ids: str) -> None:
        for batch_id in batch_ids:
            for bell in self._bells.get(batch_id, ()):
                bell.set()

    def on_signal(self, fields: dict[str, bytes]) -> None:
        """Take a reply from the node's own stream."""
        job = fields.get("i", b"").decode(errors="replace")
        match fields.get("t"):
            case b"started":
                self.on_started(job)
            case b"ended":
                outcome = Outcome.parse(fields.get("o", b""))
                if outcome is not None:
                    self.on_ended(job, outcome)
                elif job in self._waiting:
                    self._look(*split_pair(job))
            case b"batch":
                self._ring_bells(job)
            case b"waits":
                words = (fields.get(name, b"").decode(errors="replace") for name in "ovj")
                self.put(WaitsFor(*words))
            case b"remade":
                self.look_again()  # somebody deleted our signals; see `renew.lua`

    def on_started(self, job: str) -> None:
        """A job (key and id) that somebody may wait for has started."""
        for waiting in self._waiting.get(job, ()):
            waiting.is_started = True
            if not waiting.for_end:
                waiting.wake()

    def on_ended(self, job: str, answer: Outcome | PoolError) -> None:
        """A job (key and id) that somebody may wait for has ended."""
        for waiting in self._waiting.get(job, ()):
            waiting.end(answer)

    def lose(self, lane: int) -> None:
        """A lane's data are gone: who waits there can be told nothing else."""
        for job, (waiting, *_) in list(self._waiting.items()):
            if self.context.lane_of(waiting.key).number == lane:
                self.on_ended(job, StoreLost(pool=self.context.pool))
        self._ring_bells(*self._bells)

    def look_again(self) -> None:
        """Ask how everything is that somebody waits for, and register anew."""
        for waitings in self._waiting.values():
            for waiting in waitings[:1]:
                self._look(waiting.key, waiting.job_id)
        self._ring_bells(*self._bells)

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        _HERE[id(self)] = self
        for lane in self._lanes.values():
            lane.is_looking = False
        self.look_again()

    def handle(self, message: Message) -> None:
        match message:
            case _Looked(lane):
                self._lanes[lane].is_looking = False
                self._on_looked(message)
                self._send_looks(lane)
            case _AskAgain():
                self._is_asking = False
                self._passed_on.clear()
                self.look_again()
                self._ask_again_later()
            case WaitsFor():
                self._on_wait(message)

    def ended(self, crash: BaseException | None) -> None:
        if crash is not None:
            return  # it will be run again
        _HERE.pop(id(self), None)
        for lane in self._lanes.values():
            lane.looks.clear()
        for job in list(self._waiting):
            self.on_ended(job, NotRunning(state="closed"))
        self._ring_bells(*self._bells)  # who looks now finds that the node is closed

    def _look(self, key: str, job_id: str) -> None:
        number = self.context.lane_of(key).number
        self._lanes[number].looks[key, job_id] = None
        self.attempt(self._send_looks, number)

    def _send_looks(self, number: int) -> None:
        lane = self._lanes[number]
        if lane.is_looking or not lane.looks:
            return
        asked: list[tuple[str, str]] = []
        while lane.looks and not asked:
            some = list(islice(lane.looks, BATCH_MAX))
            for each in some:
                del lane.looks[each]
            asked = [each for each in some if self._waits(*each)]
        if not asked:
            return
        alone = [each for each in asked if each in lane.alone]
        if alone:
            lane.looks.update(dict.fromkeys(each for each in asked if each != alone[0]))
            asked = alone[:1]
        lane.is_looking = True
        state, frees, lanes = self.context.lanes[number], lane.is_crowded, len(self.context.lanes)
        call = state.lane.look(asked, node=state.node.name, frees=frees, lines=lanes)
        asked_s, lane.is_crowded = self.context.io.clock(), False
        generation = state.lane.generation

        def told(reply: Reply) -> _Looked:
            return _Looked(number, asked, asked_s, generation, frees, reply)

        if alone:
            self.spawn(self._look_alone, call, state.lane.names.lane, told)
            return
        try:
            self.context.pipeline.send(call, lambda reply: self.deliver(told(reply)))
        except PoolError as error:
            self.put(told(error))

    async def _look_alone(
        self, call: ScriptCall, lane: str, told: Callable[[Reply], _Looked]
    ) -> None:
        pipeline = self.context.pipeline
        try:
            reply = await pipeline.call(call, repeatable=True)
        except PoolError as error:
            reply = error
            if was_cut(error):
                try:
                    await pipeline.execute("HGET", lane, "incarnation")
                except PoolError as other:  # what is small is not answered either
                    reply = other
        self.put(told(reply))

    def _waits(self, key: str, job_id: str) -> bool:
        """Whether somebody still waits for what becomes of it: it may have been told meanwhile."""
        return any(waiting.answer is None for waiting in self._waiting.get(pair(key, job_id), ()))

    def _on_looked(self, looked: _Looked) -> None:
        reply, state = looked.reply, self.context.lanes[looked.lane]
        lane = self._lanes[looked.lane]
        if isinstance(reply, PoolError):
            if isinstance(reply, StoreLost):
                self.context.on_data_lost(looked.lane)
            elif was_cut(reply):
                self.context.trouble("look", looked.lane, reply)
                for asked in looked.asked:
                    self.on_ended(pair(*asked), again(reply))
            elif CLOSED in getattr(reply, "problem", ""):
                still = {each for each in lane.alone if self._waits(*each)}
                lane.alone = still.union(looked.asked)
            return  # they are asked again
        lane.alone.difference_update(looked.asked)
        for (key, job_id), found in zip(looked.asked, reply, strict=True):
            job = pair(key, job_id)
            match found:
                case Record():
                    if state.node.name not in found.waiters and not looked.frees:
                        lane.is_crowded = True  # at once, and so that we fit
                        self._look(key, job_id)
                    seen = state.seen(looked.asked_s, found.accepted, generation=looked.generation)
                    self._on_record(job, found, seen)
                case Outcome() as outcome:
                    self.on_ended(job, outcome)
                case More():
                    lane.looks[key, job_id] = None  # `handle` asks for it next
                case Missing():
                    for waiting in self._waiting.get(job, ()):
                        lost = self.missing(key, job_id, waiting.seen, found, looked.generation)
                        waiting.end(lost)

    def missing(
        self, key: str, job_id: str, seen: Seen | None, missing: Missing, generation: str
    ) -> JobLost | OutcomeExpired:
        """Return what it means that neither a job nor its outcome is there."""
        now_s, known_s = self.context.io.clock(), self.context.settings.known_s
        if seen is not None and seen.is_lost(missing, now_s, known_s, generation):
            return JobLost(key=key, job_id=job_id)
        return OutcomeExpired(key=key, job_id=job_id)

    def _on_record(self, job: str, record: Record, seen: Seen | None) -> None:
        """Note how a job is; whoever starts or ends it tells us."""
        if record.state == "running":
            self.on_started(job)
        for waiting in self._waiting.get(job, ()):
            waiting.seen, waiting.record = seen, record
            if waiting.asks_once:
                waiting.wake()
            if waiting.origin:
                self._suspect(waiting, record)
            if record.state == "waiting" and record.error and not waiting.for_end:
                error = record.error
                job_id = waiting.job_id
                waiting.end(StartFailed(key=waiting.key, job_id=job_id, last_error=error))

    def _suspect(self, waiting: Waiting, record: Record) -> None:
        """A handler waits for it: that may be in vain."""
        if record.state == "queued" and split_pair(waiting.origin)[0] == waiting.key:
            waiting.end(DeadlockRisk(key=waiting.key, job_id=waiting.job_id))  # behind its own job
        elif record.state == "running" and waiting.for_end:
            wait = WaitsFor(waiting.origin, waiting.job, waiting.job)
            self.tell_wait(self.context.lane_of(waiting.key).number, record.owner, wait)

    def _on_wait(self, wait: WaitsFor) -> None:
        """Somebody waits for a job of ours: end that if it is itself, else pass it on."""
        if not self._knows(wait.job):
            for ref in _HERE.valuerefs():
                other = ref()
                if other is None or other.context.pool != self.context.pool:
                    continue
                if other._knows(wait.job):
                    other.context.loop.post(other.put, wait)
            return
        if wait.job == wait.origin:
            for waiting in self._origins.get(wait.origin, ()):
                if waiting.job == wait.via and waiting.for_end:
                    waiting.end(DeadlockRisk(key=waiting.key, job_id=waiting.job_id))
            for of_batch in self._for_batches.get(wait.origin, ()):
                if of_batch.has(wait.via):
                    of_batch.end()
            return
        for waiting in self._origins.get(wait.job, ()):
            owner = waiting.record.owner if waiting.record is not None else ""
            if waiting.for_end and owner:
                lane = self.context.lane_of(waiting.key).number
                self._pass_on(attrs.evolve(wait, job=waiting.job), lane, owner)
        for of_batch in self._for_batches.get(wait.job, ()):
            if of_batch.has(wait.origin):
                of_batch.end()
                continue
            for member, (lane, owner) in of_batch.running.items():
                self._pass_on(attrs.evolve(wait, job=member), lane, owner)

    def _knows(self, job: str) -> bool:
        """Whether the handler of a job waits here."""
        return job in self._origins or job in self._for_batches

    def _pass_on(self, wait: WaitsFor, lane: int, owner: str) -> None:
        if wait not in self._passed_on and len(self._passed_on) < WAITS_MAX:
            self._passed_on[wait] = None
            self.tell_wait(lane, owner, wait)

    def _ask_again_later(self) -> None:
        if not self._is_asking and (self._waiting or self._for_batches):
            self._is_asking = True
            self.context.loop.later(ASK_AGAIN_S, lambda: self.put(_AskAgain()))


# Those of this process that run, in whichever thread; who was thrown away never ended.
_HERE: Final[weakref.WeakValueDictionary[int, Waiters]] = weakref.WeakValueDictionary()
