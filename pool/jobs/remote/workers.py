"""Workers that poll, as Python calls: a gateway runs for them the scripts that a worker runs.

A polling worker is one of the fleet like any other: an identity `W.1` in each lane, with a lease,
`stream:W.1`, `owned:W.1`, `signal:W.1` and an entry in `workers`.  All that is true of it stands
there, or is brought by each request (`claims.py`), so any gateway serves any of them, and one that
dies loses nothing.  No script and no kind of state is made for it.

    register   join.lua in each lane, then `workers`
    poll       renew.lua says how many keys it takes --> what it was granted is read, or waited for
               --> renew.lua says 0 --> advance.lua acknowledges --> answer
    heartbeat  renew.lua says 0, or what the poll that is open here said
    complete, fail, release, save    advance.lua
    leave      renew.lua says 0 --> advance.lua gives all back --> leave.lua

States of a worker, by what stands there: none -> registered (closed) <-> open -> fenced, or left.
Of a job: granted -> acknowledged (handed out) -> ended, or given back, or another's.

Who may write: of `open` the request with the highest number, which is pool time (`leases.py`); of a
record only whoever names its owner and epoch, once.  A gateway writes of a worker only what a
request of its client asks for; but while a poll of one that holds nothing waits, it renews it.

Gateway, client or server dies after ...
    join.lua             the lease ends, and the reaper forgets it
    the entry            likewise; whoever reaps takes the entry out.  Its client registers again
    it was opened        it stays open until its next request, or its lease's end.  What it is
                         granted the next poll hands out, at any gateway, or a beat gives back
    it was closed        what was granted before that likewise
    the acknowledgement  it is the worker's by its record, and the next poll or beat does not name
                         it: handed out again, under the same claim
    the answer was sent  its client runs it, and beats; or its lease ends, and it is reaped as of
                         any worker that died
    an end               the repeated request is told its own outcome
    leave.lua, in part   the other lanes' leases end by themselves
    anything: a server   as for every worker: what it lost is lost.  A lane that lost its data says
                         so (`register_again`): its jobs are `lost`, those of others may be ended

A late or repeated request: a poll looks at what stands there, so twice the same is the same answer;
a beat renews once more; an end is refused, or told its own outcome; `leave` again finds nothing.  A
save has its client's number, of which the highest stands; progress has none, and the last is shown.
What a request does not name it does not give away, whatever room its client has: it may be older
than the answer that its client runs by.  That one is told what it has, and gives it back.  What it
saw granted goes back only if it is granted still: another request may have handed it out since.

Time limits: whoever gives a run up that has had its time (fail, release, leave) has used an attempt
up, by one rule (`KnownRun.has_had_its_time`).  The gateway that told its client so had a pool time
from before that answer; the one that judges asks for it after the request: it is no earlier.
Progress takes it back only if it came before that was told, however late it is written down.
Two gateways at once, with clocks that differ: neither decides by its own (G-08).  The later of two
numbers counts; a copy of before opens and closes nothing.  Two polls of one worker: at one gateway
the later takes over, and the former is answered at once; at two both may bring the same claim, and
what the second acknowledges is acknowledged already.  A poll that holds nothing ends as soon as its
renewal is told that jobs were handed out elsewhere, and brings them: from there on the client must
beat.

Lease: `expires_in_s` is the end of the shortest lease granted, less the margin, from when the
request came; its client counts from when it sent that, so it stops before others may begin (G-03).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import anyio
import attrs

from pool import checks
from pool.core.ids import POLLER, SEED_BYTES, Ids, number_or
from pool.core.lease import Timing
from pool.core.options import Options
from pool.core.placement import CAPACITY_MAX, WEIGHT_MAX, WEIGHT_MIN
from pool.core.record import Start
from pool.errors import (
    ConfigError,
    DuplicateHandler,
    NotRunning,
    PoolError,
    StoreLost,
    WorkerGone,
    WrongClaim,
    again,
)
from pool.jobs.context import Context
from pool.jobs.handlers import NAMES_BYTES_MAX
from pool.jobs.remote.claims import (
    NUMBER,
    Beat,
    EndedJob,
    Failure,
    HandedOut,
    HandlerOffer,
    HeldJob,
    JobClaim,
    Lost,
    Polled,
    Registration,
    WorkerClaim,
)
from pool.jobs.remote.ending import Endings
from pool.jobs.remote.polls import Desk, OpenPolls
from pool.jobs.remote.visit import Handing, Moving, Room, Visit, claim_of, start_of
from pool.jobs.roster import REMOTE, SHUTDOWN_KEY, WorkerEntry
from pool.jobs.settlement import TellWaiters
from pool.maps.deltas import Delete, Set
from pool.maps.replica import Replica
from pool.names import check_handler, check_label, lane_of
from pool.redis.commands.calls import Target
from pool.redis.commands.member import Left, Registered

WAIT_MAX_S: Final = 30.0  # for which a poll waits
HELD_MAX: Final = CAPACITY_MAX  # jobs that one request names
HOST_CHARS_MAX: Final = 255
LEAVES_MAX: Final = 100  # times that a leaving worker is looked at anew, as it was granted more


@attrs.define(eq=False, kw_only=True)
class RemoteWorkers:
    """The polling workers' door at one node: see above.  `Wiring.remote_workers()` makes it."""

    context: Context
    replica: Replica  # of `workers`
    tell_waiters: TellWaiters
    suspect: Callable[[int, Sequence[str]], object]  # lane and names without a lease
    waiting: OpenPolls = attrs.field(init=False)
    _endings: Endings = attrs.field(init=False)
    _handing: Handing = attrs.field(init=False)
    _moving: Moving = attrs.field(init=False)
    _announcing: set[str] = attrs.field(init=False, factory=set)  # workers

    def __attrs_post_init__(self) -> None:
        context = self.context
        self.waiting = OpenPolls(
            name="remote",
            context=context,
            is_closed=lambda claim: any(self._standing(claim)),
            look_at=self._look_at,
        )
        self._endings = Endings(context, self.tell_waiters, self.waiting.leases)
        self._handing = Handing(context, self._endings, self.tell_waiters)
        self._moving = Moving(context)

    async def prepare(self) -> None:
        """Learn what pool time is, in each lane that answers; it is started."""

        async def ask(lane: int) -> None:
            try:
                await self.waiting.leases.ask(lane)
            except PoolError as error:
                self.context.trouble("renew", lane, error)

        async with anyio.create_task_group() as tasks:
            for state in self.context.lanes:
                tasks.start_soon(ask, state.number)

    # --- who it is ----------------------------------------------------------------------------

    async def register(
        self,
        handlers: Sequence[HandlerOffer],
        *,
        capacity: int,
        weight: float = 1.0,
        label: str = "",
        version: str = "",
        host: str = "",
        pid: int = 0,
    ) -> Registration:
        """Have a worker join; return once the fleet knows it.  It takes nothing before it polls.

        Args:
            handlers: What it runs: 1 or more.
            capacity: How many jobs it has at once, 1 to 10,000.
            weight: Its share of the keys, relative to others, 0.001 to 1000.
            label: A human name; the worker that has it next gets the same keys.
            version: Shown to people.
            host: Where its process is, at most 255 characters; shown to people, as is `pid`.
            pid: Which one it is there.

        Raises:
            ConfigError, DuplicateHandler: An argument cannot be used.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `Node.dispatch()`; what has
                joined leaves by itself, when its lease ends.
        """
        self.waiting.check_open()
        options = _offered(handlers)
        checks.count("capacity", capacity, 1, CAPACITY_MAX, refuse=checks.setting)
        checks.number("weight", weight, WEIGHT_MIN, WEIGHT_MAX, refuse=checks.setting)
        check_label(label)
        check_label(version, "version")
        host = checks.utf8("host", host).decode()[:HOST_CHARS_MAX]
        checks.count("pid", pid, 0, 2**53, refuse=checks.setting)
        # An id with a beginning of its own: by that deaths are told apart, process by process.
        worker_id = Ids(self.context.io.dice.randbytes(SEED_BYTES)).next(POLLER)
        asked_s = self.context.io.clock()
        joined = await self._join(worker_id, options)
        claim = WorkerClaim(
            id=worker_id,
            pool=self.context.pool,
            generation=self.context.generation,
            since_ms=max(each.now_ms for each in joined.values()),
            lanes=tuple(state.number in joined for state in self.context.lanes),
            capacity=capacity,
            handlers=options,
            weight=weight,
            label=label,
            version=version,
            host=host,
            pid=pid,
        )
        written = await self.replica.write([Set(claim.id.encode(), self._entry(claim))])
        with anyio.move_on_after(self.context.settings.op_timeout_s):
            await self.replica.wait_for(written.at)
        timing = Timing(min(each.ttl.ms for each in joined.values()) / 1000)
        left_s = asked_s + timing.ttl_s - timing.margin_s - self.context.io.clock()
        return Registration(
            claim=claim, heartbeat_s=self.heartbeat_s, expires_in_s=max(0.0, left_s)
        )

    async def _join(self, worker_id: str, options: dict[str, Options]) -> dict[int, Registered]:
        """Join the lanes that answer; at least one."""
        joined, errors = dict[int, Registered](), dict[int, PoolError]()

        async def join(lane: int) -> None:
            state, context = self.context.lanes[lane], self.context
            until_s = context.io.clock() + context.settings.op_timeout_s
            call = state.lane.join(
                state.node,
                {Target(worker_id, NUMBER): 0},
                options,
                pool=context.generation,
                is_new=False,
                not_after_ms=round(state.clock_ms + 1000 * (until_s - state.clock_at_s)),
                pool_ttl_ms=context.timing.ttl_ms,
            )
            try:
                joined[lane] = await context.pipeline.call(call, repeatable=True)
                self.waiting.leases.hear(lane, joined[lane].now_ms)
            except PoolError as error:
                if isinstance(error, StoreLost):
                    context.on_data_lost(lane)
                errors[lane] = error

        async with anyio.create_task_group() as tasks:
            for state in self.context.lanes:
                if state.lane.generation:
                    tasks.start_soon(join, state.number)
        if not joined:
            raise again(next(iter(errors.values()), NotRunning(state="opening")))
        return joined

    async def leave(self, claim: WorkerClaim) -> int:
        """Give back what a worker has, and forget it; return how many jobs were given back.

        Again it finds nothing, and says 0.

        Raises:
            WrongClaim: It is none of this pool's.
            StoreUnavailable, StoreFault, NotRunning: Some of it may be done: repeat it.
        """
        self._check_claim(claim)
        self.waiting.forget(claim)
        released, error = 0, None
        for lane in (lane for lane, has in enumerate(claim.lanes) if has):
            try:
                released += await self._leave_lane(claim, lane)
            except PoolError as failed:
                error = failed
        entry = self.replica.items.get(claim.id.encode())
        if entry is not None:
            await self.replica.write([Delete(claim.id.encode())], repeatable=True)
        if error is not None:
            raise again(error)
        return released

    async def _leave_lane(self, claim: WorkerClaim, lane: int) -> int:
        """Give all back, until nothing more was granted; there it is closed first."""
        released, state = 0, self.context.lanes[lane]
        for _ in range(LEAVES_MAX):
            visit = self._visit(claim, (), only=lane)
            try:
                await visit.renew(0)
            except (WorkerGone, StoreLost):
                return released
            jobs = [claim_of(claim, lane, each) for each in visit.starts[lane].values()]
            items = [(job, self._endings.given_back(job)) for job in jobs]
            jobs = [claim_of(claim, lane, start_of(*each)) for each in visit.forgotten[lane]]
            ended = await self.release(claim, [(job, None) for job in jobs])
            released += sum(each.outcome is not None for each in ended)
            released += await self._endings.give_back(claim, lane, items)
            told_left: list[Left] = await self.context.pipeline.call(
                state.lane.leave([claim.target]), repeatable=True
            )
            if told_left[0].in_peace or not told_left[0].keys:
                break
        return released

    # --- polls and beats ----------------------------------------------------------------------

    async def poll(
        self,
        claim: WorkerClaim,
        held: Sequence[HeldJob] = (),
        *,
        jobs_max: int = 1,
        wait_s: float = 0.0,
    ) -> Polled:
        """Renew a worker, and hand it jobs, as soon as there are some; or the time is up.

        What is told of what it holds, and what of it is lost, ends the waiting, too; but what was
        told by the poll before does not.  Cancelled it hands out nothing, or what the next poll
        hands out again.

        Args:
            claim: Who polls.
            held: All jobs that were handed out to it and of which no end was answered yet.
            jobs_max: How many more it takes, 0 to 10,000; never more than its capacity allows.
                What it has and does not name comes in any case.
            wait_s: 0 to 30 s; if it holds anything it is answered within `heartbeat_s`.

        Raises:
            WorkerGone: It has no lease any more, or the pool lost its data: register again.
            WrongClaim, InvalidOption: An argument cannot be used.
            StoreUnavailable, StoreLost, StoreFault, NotRunning: Nothing was handed out.
        """
        checks.count("jobs_max", jobs_max, 0, CAPACITY_MAX)
        checks.seconds("wait_s", wait_s, 0.0, WAIT_MAX_S)
        self.waiting.check_open()
        visit = self._visit(claim, held)
        wants = (
            0
            if visit.lacking or any(self._standing(claim))
            else max(0, min(jobs_max, claim.capacity - len(visit.beats)))
        )
        desk = self.waiting.open(claim, frozenset(visit.beats), wants)
        try:
            desk.takes, desk.said = visit.takes, visit.said
            await visit.renew(wants)
            await visit.time_out()
            await self._tell(visit)
            has_news = visit.has_news(desk.told)
            if visit.gone:
                desk.wants = wants = 0
                await self._close(visit)
            if wants:
                await self._pull(visit, desk)
            if not (has_news or visit.started or (wants and visit.count)):
                until_s = visit.arrived_s + wait_s
                if visit.beats or visit.count:  # it hears at once of what has had its time
                    ends_s = self.context.io.clock() + visit.limit_in_s()
                    until_s = min(until_s, visit.arrived_s + self.heartbeat_s, ends_s)
                await self.waiting.wait(desk, until_s)
                await self._waited(visit, desk)
            jobs = await self._take(visit, desk)
        finally:
            is_latest = self.waiting.is_latest(desk)
            self.waiting.leave(desk)
            if is_latest and any(desk.takes.values()):
                self._close_later(claim, desk)
        return await self._answer(visit, jobs)

    async def _pull(self, visit: Visit, desk: Desk) -> None:
        """Have it given what nobody has, lane by lane, until it has enough."""
        for lane, said in list(visit.said.items()):
            left = desk.wants - visit.count
            if not said.unassigned or left <= 0:
                continue
            if await self.waiting.has_waiting(visit.claim, lane):
                await self.waiting.pull(visit.claim, lane, left)
                await visit.read_starts(lane)

    async def _waited(self, visit: Visit, desk: Desk) -> None:
        for lane in desk.gone:
            visit.lose(lane, "expired")
        if visit.beats or visit.count or desk.busy:
            await visit.compare(desk.busy)
            await visit.time_out()
            await self._tell(visit)

    async def _tell(self, visit: Visit) -> None:
        """Learn what there is to be told of what it holds."""
        is_draining, _ = self._standing(visit.claim)
        visit.tell(is_draining=is_draining, moves=await self._moving.of(visit))
        await visit.read_messages()

    async def _take(self, visit: Visit, desk: Desk) -> list[HandedOut]:
        """Close it, and hand out what it was granted until then, as far as it wants it."""
        if not self.waiting.is_latest(desk):
            return []  # whoever took over closes it, and hands them out
        for lane, starts in desk.starts.items():
            known = {key for key, _ in visit.forgotten[lane]}  # acknowledged, though it came late
            if lane in visit.said:
                visit.starts[lane] |= {key: starts[key] for key in starts.keys() - known}
        if any(desk.takes.values()):
            desk.is_closing = True
            await self._close(visit)
        visit.lacking = self._lacking(visit.claim)  # it may have come back meanwhile
        room = Room()
        jobs = await self._hand_again(visit, room)
        jobs += await self._hand_out(visit, desk.wants - len(jobs), room)
        await visit.give_back()
        return jobs

    async def _hand_again(self, visit: Visit, room: Room) -> list[HandedOut]:
        """Hand out what it has, and does not name: whoever takes no more gives it back."""
        jobs = list[HandedOut]()
        for lane in [] if visit.registers_again else list(visit.said):
            jobs += await self._handing.again(visit.claim, lane, visit.forgotten[lane], room)
        return jobs

    async def _hand_out(self, visit: Visit, wants: int, room: Room) -> list[HandedOut]:
        jobs, chosen = list[HandedOut](), defaultdict[int, list[Start]](list)
        wants = 0 if visit.registers_again else max(0, wants)
        for lane, start in self._startable(visit)[:wants]:
            chosen[lane].append(start)
            del visit.starts[lane][start.key]
        for lane, starts in chosen.items():
            jobs += await self._handing.hand_out(visit.claim, lane, starts, room)
        return jobs

    def _startable(self, visit: Visit) -> list[tuple[int, Start]]:
        """Return what may begin, the oldest first.

        Of those that are suspected of a death one at a time, when it is the oldest, and it alone:
        the next death has one culprit then.
        """
        found = [
            (lane, start) for lane in visit.said for start in visit.starts.get(lane, {}).values()
        ]
        found.sort(key=lambda each: each[1].accepted)
        if found and found[0][1].marks.deaths and not visit.is_trying():
            return found[:1]
        return [each for each in found if not each[1].marks.deaths]

    async def _close(self, visit: Visit) -> None:
        """Have it take nothing more, and read what it was granted by then."""
        async with anyio.create_task_group() as tasks:
            for lane in list(visit.said):
                tasks.start_soon(self._close_in, visit, lane)

    async def _close_in(self, visit: Visit, lane: int) -> None:
        try:
            said = await self.waiting.leases.say(lane, visit.claim.name, 0)
            if said.is_gone:
                visit.lose(lane, "expired")
                return
            visit.said[lane], visit.takes[lane] = said, 0
            await visit.read_starts(lane)
        except StoreLost:
            visit.lose(lane, "lost")
        except PoolError as error:
            visit.errors[lane] = error  # what it was granted there the next poll hands out

    def _close_later(self, claim: WorkerClaim, desk: Desk) -> None:
        """Close what a poll that was cancelled, or failed, has left open."""
        lanes = list(desk.takes)

        async def close() -> None:
            for lane in lanes:
                if not self.waiting.takes(claim, lane):
                    try:
                        await self.waiting.leases.say(lane, claim.name, 0)
                    except PoolError:
                        return  # its next request closes it, or its lease ends

        try:
            self.context.supervisor.errand("remote/closing", close)
        except NotRunning:
            return  # likewise

    async def heartbeat(self, claim: WorkerClaim, held: Sequence[HeldJob] = ()) -> Polled:
        """Renew a worker that has jobs; while a poll of its is open elsewhere, that is closed.

        Raises:
            WorkerGone, WrongClaim, StoreUnavailable, StoreLost, StoreFault, NotRunning: As `poll`.
        """
        self.waiting.check_open()
        visit = self._visit(claim, held)
        await visit.renew(0)
        await visit.time_out()
        await self._tell(visit)
        jobs = await self._hand_again(visit, Room())
        if not any(visit.takes.values()):
            await visit.give_back()
        return await self._answer(visit, jobs)

    async def _answer(self, visit: Visit, jobs: Sequence[HandedOut]) -> Polled:
        claim = visit.claim
        is_draining, is_cordoned = self._standing(claim)
        if not visit.lanes:
            raise WorkerGone(worker=claim.id)
        for lane in visit.gone:
            self.suspect(lane, (claim.name,))
        has_closed = not any(visit.takes.values()) and not visit.errors
        self._announce(claim, visit.gone, has_closed=has_closed)
        return Polled(
            jobs=jobs,
            stop=[each for each in visit.stop if each.job.key not in visit.lost],
            messages=[each for each in visit.messages if each.job.key not in visit.lost],
            lost=[*visit.former, *visit.lost.values()],
            is_draining=is_draining,
            is_cordoned=is_cordoned,
            register_again=visit.registers_again,
            heartbeat_s=self.heartbeat_s,
            expires_in_s=visit.expires_in_s(),
        )

    # --- ends ---------------------------------------------------------------------------------

    async def complete(
        self, claim: WorkerClaim, items: Sequence[tuple[JobClaim, Any]]
    ) -> list[EndedJob]:
        """Settle jobs, each with its result; one answer each, in their order.

        A result is what strict JSON has, or `bytes` alone.  Repeated: "repeated", and the first
        result stands.

        Raises:
            WrongClaim: A job is none of this worker's; nothing was done.
            StoreUnavailable, NotRunning: Some may be settled: repeat it.
        """
        self._check(claim, [job for job, _ in items])
        made = ((job, partial(self._endings.done, claim, job, value)) for job, value in items)
        return await self._endings.made(made, claim)

    async def fail(self, claim: WorkerClaim, items: Sequence[Failure]) -> list[EndedJob]:
        """Say that attempts failed: each is retried, or parked.

        Raises:
            WrongClaim, StoreUnavailable, NotRunning: As `complete`.
            InvalidOption: A delay is out of bounds.
        """
        self._check(claim, [each.job for each in items])
        for each in items:
            checks.seconds("delay_s", each.delay_s, or_none=True)
        runs = await self._endings.runs(claim, [each.job for each in items])
        made = (
            (each.job, partial(self._endings.failed, claim, each, run))
            for each, run in zip(items, runs, strict=True)
        )
        return await self._endings.made(made, claim)

    async def release(
        self, claim: WorkerClaim, items: Sequence[tuple[JobClaim, Any]]
    ) -> list[EndedJob]:
        """Give jobs to other workers, with a state or None: their attempts are not counted.

        One that was asked to stop ends by it: "cancelled".  One that has had its time has used an
        attempt up, whatever its client calls that: "retried", or "parked".

        Raises:
            WrongClaim, StoreUnavailable, NotRunning: As `complete`.
        """
        self._check(claim, [job for job, _ in items])
        runs = await self._endings.runs(claim, [job for job, _ in items], limited=True)
        made = (
            (job, partial(self._endings.given_up, claim, job, state, run))
            for (job, state), run in zip(items, runs, strict=True)
        )
        return await self._endings.made(made, claim)

    async def save(
        self, claim: WorkerClaim, job: JobClaim, state: Any, *, number: int, seen: int = 0
    ) -> EndedJob:
        """Store a job's state, and take out the messages up to `seen`, in one step.

        Its client numbers its saves, 1 to 2**53, from `HandedOut.saves` on: each has a higher
        number than the one before, and its repeats have the same.  So a copy that comes late, at
        whichever gateway, changes nothing: "repeated", a later state is stored.

        Raises:
            WrongClaim, StoreUnavailable, NotRunning: As `complete`.
            InvalidOption: `number` is none, or `seen` is no message's id.
        """
        self._check(claim, [job])
        checks.count("number", number, 1, 2**53)
        checks.count("seen", seen, 0, 2**53)
        make = partial(self._endings.saved, job, state, number, seen)
        return (await self._endings.made([(job, make)], claim))[0]

    # --- claims -------------------------------------------------------------------------------

    def _visit(self, claim: WorkerClaim, held: Iterable[HeldJob], only: int | None = None) -> Visit:
        told = [each if isinstance(each, Beat) else Beat(each) for each in held]
        self._check(claim, [beat.job for beat in told])
        told.sort(key=lambda beat: beat.job.epoch)
        beats = {beat.job.key: beat for beat in told}  # of one key the latest
        visit = Visit(
            context=self.context,
            leases=self.waiting.leases,
            endings=self._endings,
            claim=claim,
            beats=beats,
            arrived_s=self.context.io.clock(),
            open_takes=partial(self.waiting.takes, claim),
            only=only,
        )
        visit.lacking = self._lacking(claim)
        visit.former = [Lost(b.job, "moved") for b in told if beats[b.job.key].job != b.job]
        return visit

    def _check_claim(self, claim: WorkerClaim) -> None:
        context = self.context
        if claim.pool != context.pool or len(claim.lanes) != len(context.lanes):
            raise WrongClaim(problem="it is of another pool")
        if claim.generation != context.generation:
            raise WorkerGone(worker=claim.id)  # the pool has lost its data since

    def _check(self, claim: WorkerClaim, jobs: Sequence[JobClaim]) -> None:
        self._check_claim(claim)
        if len(jobs) > HELD_MAX:
            raise WrongClaim(problem=f"{len(jobs)} jobs are named, at most {HELD_MAX} may be")
        count = len(self.context.lanes)
        for job in jobs:
            if job.worker != claim.id:
                raise WrongClaim(problem="a job is another worker's")
            if lane_of(job.key, count) != job.lane or not claim.lanes[job.lane]:
                raise WrongClaim(problem="a job is of another lane")

    # --- what the fleet is told -----------------------------------------------------------------

    @property
    def heartbeat_s(self) -> float:
        """How often a worker that has jobs is to be heard."""
        return self.context.timing.renew_s

    def _standing(self, claim: WorkerClaim) -> tuple[bool, bool]:
        """Say whether a worker is to drain, and whether it is cordoned."""
        cordon = self.context.roster.asked.cordon_of(claim.id, REMOTE)
        text = self.replica.items.get(SHUTDOWN_KEY)
        is_shut = number_or(0, text) > claim.since_ms if isinstance(text, bytes) else False
        is_draining = is_shut or (cordon is not None and cordon.is_drain)
        return is_draining, cordon is not None

    def _lacking(self, claim: WorkerClaim) -> set[int]:
        """Return the lanes in which it is missing, and that answer by now."""
        now_s = self.context.io.clock()
        return {
            state.number
            for state in self.context.lanes
            if not claim.lanes[state.number]
            and state.lane.generation
            and state.lease.is_good(now_s)
        }

    def _entry(
        self, claim: WorkerClaim, gone: Iterable[int] = (), *, has_closed: bool = True
    ) -> bytes:
        is_draining, is_cordoned = self._standing(claim)
        return WorkerEntry(
            id=claim.id,
            node=REMOTE,
            handlers=tuple(claim.handlers),
            capacity=claim.capacity,
            weight=claim.weight,
            label=claim.label,
            version=claim.version,
            is_draining=is_draining and has_closed,
            is_cordoned=is_cordoned and has_closed,
            numbers=tuple(
                NUMBER if has and lane not in gone else 0 for lane, has in enumerate(claim.lanes)
            ),
            host=claim.host,
            pid=claim.pid,
        ).pack()

    def _look_at(self, desk: Desk) -> None:
        if not desk.gone and not any(self._standing(desk.claim)):
            self._announce(desk.claim, (), has_closed=True)

    def _announce(self, claim: WorkerClaim, gone: Iterable[int], *, has_closed: bool) -> None:
        """Write its entry where it is missing, or is another; of each worker one at a time."""
        entry = self._entry(claim, gone, has_closed=has_closed)
        if self.replica.items.get(claim.id.encode()) == entry or claim.id in self._announcing:
            return
        self._announcing.add(claim.id)

        async def write() -> None:
            try:
                await self.replica.write([Set(claim.id.encode(), entry)], repeatable=True)
            except PoolError as error:
                self.context.trouble("join", None, error)  # its next request says it again

        try:
            over = partial(self._announcing.discard, claim.id)
            self.context.supervisor.errand("remote/announcing", write, over)
        except NotRunning:
            self._announcing.discard(claim.id)


def _offered(handlers: Sequence[HandlerOffer]) -> dict[str, Options]:
    options = dict[str, Options]()
    for offer in handlers:
        check_handler(offer.name)
        if offer.name in options:
            raise DuplicateHandler(handler=offer.name, where="this worker")
        options[offer.name] = offer.options
    if not options:
        raise ConfigError(setting="handlers", problem="there are none: a worker needs at least one")
    names_bytes = sum(len(name) + len('"",') for name in options)
    if names_bytes > NAMES_BYTES_MAX:
        problem = f"their names take {names_bytes:,} bytes, at most {NAMES_BYTES_MAX:,}"
        raise ConfigError(setting="handlers", problem=problem)
    return options
