"""What happens, as data: every event that a node, a map or a stream tells its observers.

Event names are noun.past_verb and never change: dashboards depend on them.  The events of an
ordinary job (`job.*`) are made only for observers that ask for them, see `JobEvents`: a log line
would cost more than the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, Protocol, TypeAlias

import attrs

__all__ = [
    "ActorCrashed",
    "AttemptFailed",
    "BatchMissing",
    "ChannelApart",
    "ClockStepped",
    "CommitRefused",
    "ControlLost",
    "CountersMended",
    "DataLost",
    "DataOlder",
    "Event",
    "EvictionEnabled",
    "HandlerLeaked",
    "HandlerOverran",
    "HookFailed",
    "IndexRestored",
    "JobAccepted",
    "JobEvents",
    "JobSettled",
    "JobStarted",
    "JobsPaused",
    "JobsResumed",
    "LaneDataLost",
    "LaneJoined",
    "LaneMissing",
    "LeaseLost",
    "LeaseResumed",
    "LoopHung",
    "LoopOverran",
    "MapDamaged",
    "MapNotFetched",
    "MapResynced",
    "MapsDamaged",
    "MapsReachable",
    "MapsUnreachable",
    "MemberCordoned",
    "MemberUncordoned",
    "MessageUnheard",
    "MessagesDropped",
    "NodeJoined",
    "NodeLeft",
    "Observer",
    "OperatorActed",
    "PasswordInClear",
    "PlanConflicted",
    "PlanFailed",
    "PlanHeld",
    "PlanTurned",
    "PolicyUnknown",
    "ReconciliationMended",
    "RecordQuarantined",
    "RunDisturbed",
    "ScheduleMissed",
    "ScheduleMoved",
    "ScheduleOverlapped",
    "ScheduleUnreadable",
    "ServiceMoved",
    "SinkBeganAnew",
    "SinkLapsed",
    "SinkMended",
    "SinkMissed",
    "SinkParked",
    "SinkParksMany",
    "SinkRemade",
    "SinkTroubled",
    "StoreRecovered",
    "StoreTroubled",
    "StreamEnded",
    "StreamMissed",
    "StreamRestarted",
    "StreamTroubled",
    "StreamsReachable",
    "StreamsUnreachable",
    "TasksCancelled",
    "TtlChanged",
    "WorkerFenced",
    "WorkerReaped",
]


class Event(attrs.AttrsInstance, Protocol):
    """What is emitted: an attrs class with a name and a level.

    One that says `is_journalled` is written into the journal of the pool, too (`Node.journal`).
    """

    event: ClassVar[str]
    level: ClassVar[str]

    @property
    def pool(self) -> str:
        """The name of the pool that it is about."""


Observer = Callable[[Event], object]


@attrs.frozen(kw_only=True)
class PoolEvent:
    """The fact that all events have: the pool they are about.  A process may work for several.

    The node or session that emits an event fills it in, see `emit_to`.
    """

    pool: str = ""


@attrs.frozen
class JobEvents:
    """An observer that is told of ordinary jobs, too: `observers=[JobEvents(count, rate=0.01)]`.

    It hears of `rate` of all jobs, by key and job id: of each of them everything, and the same ones
    at all nodes.  All other events it is told as any observer is.  Jobs cost nothing more while no
    observer of their node is one of these.  A rate is a number from 0 to 1, or the node that is
    given it says `ConfigError`.
    """

    observer: Observer
    rate: float = 1.0

    def __call__(self, event: Event) -> None:
        """Tell it of an event."""
        self.observer(event)


@attrs.frozen(kw_only=True)
class NodeJoined(PoolEvent):
    """The node is open."""

    event: ClassVar[str] = "node.joined"
    level: ClassVar[str] = "info"

    node: str
    server: str


@attrs.frozen(kw_only=True)
class PasswordInClear(PoolEvent):
    """The address sends a password over a network without TLS; said once by each node."""

    event: ClassVar[str] = "store.password_in_clear"
    level: ClassVar[str] = "warning"

    where: str
    hint: str = "use rediss://, or a network that nobody else can read"


@attrs.frozen(kw_only=True)
class PolicyUnknown(PoolEvent):
    """The server may evict jobs for all that can be seen: it does not show its maxmemory-policy."""

    event: ClassVar[str] = "store.policy_unknown"
    level: ClassVar[str] = "warning"

    server: str
    hint: str = "allow +info|memory (see `pool acl`), or make sure that it says noeviction"


@attrs.frozen(kw_only=True)
class EvictionEnabled(PoolEvent):
    """A server's maxmemory-policy was changed while the pool works: it may evict jobs from now on.
    Each node that is open says so once for each change, and goes on."""

    event: ClassVar[str] = "store.eviction_enabled"
    level: ClassVar[str] = "error"

    server: str
    policy: str
    hint: str = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"


@attrs.frozen(kw_only=True)
class NodeLeft(PoolEvent):
    """The node has closed; `abandoned` keys are left to the reapers of others."""

    event: ClassVar[str] = "node.left"
    level: ClassVar[str] = "info"

    node: str
    abandoned: int


@attrs.frozen(kw_only=True)
class LeaseLost(PoolEvent):
    """Renewals failed for so long that handlers had to be stopped."""

    event: ClassVar[str] = "lease.lost"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    node: str
    lane: int
    silent_s: float
    ttl_s: float


@attrs.frozen(kw_only=True)
class TtlChanged(PoolEvent):
    """The pool's TTL was changed; this node goes by it now."""

    event: ClassVar[str] = "ttl.changed"
    level: ClassVar[str] = "info"

    node: str
    before_s: float
    ttl_s: float


@attrs.frozen(kw_only=True)
class ClockStepped(PoolEvent):
    """A lane's server has another time than it should have; the lane goes on by the one before."""

    event: ClassVar[str] = "clock.stepped"
    level: ClassVar[str] = "warning"

    node: str
    lane: int
    step_s: float  # above 0: forward


@attrs.frozen(kw_only=True)
class LeaseResumed(PoolEvent):
    """A renewal succeeded: what was stopped goes on, as far as nobody took it."""

    event: ClassVar[str] = "lease.resumed"
    level: ClassVar[str] = "info"
    is_journalled: ClassVar[bool] = True

    node: str
    lane: int


@attrs.frozen(kw_only=True)
class JobsPaused(PoolEvent):
    """The pool, a handler or a key was paused: its jobs are accepted and wait.  Each node says so,
    and one that joins says so of what is paused then."""

    event: ClassVar[str] = "pause.began"
    level: ClassVar[str] = "warning"

    what: str  # pool, handler or key
    name: str  # of the handler, or the key; - for the pool
    by: str
    reason: str


@attrs.frozen(kw_only=True)
class JobsResumed(PoolEvent):
    """It was resumed; what waited goes on."""

    event: ClassVar[str] = "pause.ended"
    level: ClassVar[str] = "info"

    what: str
    name: str


@attrs.frozen(kw_only=True)
class MemberCordoned(PoolEvent):
    """An operator has this worker take no keys; with `drains` it gives up those that it has, and
    leaves."""

    event: ClassVar[str] = "member.cordoned"
    level: ClassVar[str] = "warning"

    worker: str
    drains: bool
    by: str
    reason: str


@attrs.frozen(kw_only=True)
class MemberUncordoned(PoolEvent):
    """This worker takes keys again."""

    event: ClassVar[str] = "member.uncordoned"
    level: ClassVar[str] = "info"

    worker: str


@attrs.frozen(kw_only=True)
class WorkerFenced(PoolEvent):
    """Others took this worker's keys over; it joins again under another number."""

    event: ClassVar[str] = "worker.fenced"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    worker: str
    lane: int


@attrs.frozen(kw_only=True)
class HandlerLeaked(PoolEvent):
    """A handler was told to end, its thread goes on: so does its job elsewhere, a slot is lost."""

    event: ClassVar[str] = "handler.leaked"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    key: str
    handler: str
    epoch: int
    why: str  # stop, timeout, release
    hint: str = "its thread cannot be ended: let it wait for less long at a time"


@attrs.frozen(kw_only=True)
class HandlerOverran(PoolEvent):
    """A handler has not ended although its lease has."""

    event: ClassVar[str] = "handler.overran"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    key: str
    handler: str
    epoch: int


@attrs.frozen(kw_only=True)
class HookFailed(PoolEvent):
    """A hook of `Handlers.on()` raised, or 1,000 were under way; the job is not touched by it."""

    event: ClassVar[str] = "hook.failed"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    key: str
    handler: str
    what: str
    problem: str


@attrs.frozen(kw_only=True)
class LoopHung(PoolEvent):
    """The event loop has not answered; `stack` is where it stands."""

    event: ClassVar[str] = "loop.hung"
    level: ClassVar[str] = "error"

    node: str
    hung_s: float
    stack: str


@attrs.frozen(kw_only=True)
class LoopOverran(PoolEvent):
    """The event loop has not answered for a TTL, and `on_overrun="exit"` ends the process.

    `handler` and `key` are of the job that blocks it, empty if the loop is in no handler; `stack`
    is where it stands. All `keys` jobs of the process begin elsewhere when its leases have ended.
    """

    event: ClassVar[str] = "loop.overran"
    level: ClassVar[str] = "error"

    node: str
    hung_s: float
    handler: str
    key: str
    keys: int
    stack: str


@attrs.frozen(kw_only=True)
class CommitRefused(PoolEvent):
    """What a handler did came too late: the job is not ours any more (G-02)."""

    event: ClassVar[str] = "commit.refused"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    key: str
    job_id: str
    handler: str
    epoch: int
    answer: str


@attrs.frozen(kw_only=True)
class AttemptFailed(PoolEvent):
    """An attempt of a job failed; `follows` says what comes next."""

    event: ClassVar[str] = "attempt.failed"
    level: ClassVar[str] = "warning"

    key: str
    handler: str
    attempt: int
    error: str
    follows: str
    traceback: str = ""


@attrs.frozen(kw_only=True)
class MessagesDropped(PoolEvent):
    """A job ended with messages that it had not handled, and the next one of its key gets none."""

    event: ClassVar[str] = "messages.dropped"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    key: str
    job_id: str
    messages: int


@attrs.frozen(kw_only=True)
class MessageUnheard(PoolEvent):
    """Messages came that nobody is given: the object has no `notify()`, or the job ended and its
    handler had never asked for any.  Once a run.
    """

    event: ClassVar[str] = "message.unheard"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    key: str
    handler: str
    epoch: int


@attrs.frozen(kw_only=True)
class RunDisturbed(PoolEvent):
    """A stranger, maybe a job that had ended, cancelled the task that ran this one; it runs again.

    In a task that nobody else knows, as the same attempt.
    """

    event: ClassVar[str] = "run.disturbed"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    key: str
    handler: str
    epoch: int


@attrs.frozen(kw_only=True)
class WorkerReaped(PoolEvent):
    """This node took over what a fenced identity owned in a lane."""

    event: ClassVar[str] = "worker.reaped"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    identity: str
    lane: int
    keys: int
    by: str


@attrs.frozen(kw_only=True)
class RecordQuarantined(PoolEvent):
    """A record that cannot be worked on was parked as it is."""

    event: ClassVar[str] = "record.quarantined"
    level: ClassVar[str] = "error"

    key: str


@attrs.frozen(kw_only=True)
class IndexRestored(PoolEvent):
    """Jobs were found that no index led to; `index` is where, or `owner`: it was gone for good."""

    event: ClassVar[str] = "index.restored"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    lane: int
    index: str
    keys: int
    key: str  # one of them


@attrs.frozen(kw_only=True)
class CountersMended(PoolEvent):
    """A lane counted other numbers of unassigned and waiting jobs than it had."""

    event: ClassVar[str] = "counters.mended"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    lane: int
    before: tuple[int, int]
    after: tuple[int, int]


@attrs.frozen(kw_only=True)
class OperatorActed(PoolEvent):
    """Somebody has asked for something over HTTP: written before it is done, whatever comes of it.

    Dispatches are told once a second, for each handler of each caller: `count` jobs, and one key.
    """

    event: ClassVar[str] = "operator.acted"
    level: ClassVar[str] = "info"
    is_journalled: ClassVar[bool] = True

    by: str
    action: str
    count: int | None = None
    detail: str = ""
    key: str = ""
    job_id: str = ""
    handler: str = ""


@attrs.frozen(kw_only=True)
class ServiceMoved(PoolEvent):
    """A service was handed to the worker that is first for it now."""

    event: ClassVar[str] = "service.moved"
    level: ClassVar[str] = "info"

    key: str
    target: str


@attrs.frozen(kw_only=True)
class DataLost(PoolEvent):
    """The server came back without the pool's data; the node joins anew."""

    event: ClassVar[str] = "data.lost"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    generation: str


@attrs.frozen(kw_only=True)
class DataOlder(PoolEvent):
    """The server of a lane came back with older data: a failover, or a restart with its disk.

    Told by the first node that renews there, and by each other one that had seen newer data than
    those before it. `older_s` is the time between the newest entry of these data and the newest one
    that the node has seen: what was accepted or ended in between is lost. The longest counts.
    """

    event: ClassVar[str] = "data.older"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    lane: int
    older_s: float


@attrs.frozen(kw_only=True)
class ControlLost(PoolEvent):
    """The control keys are gone, the lanes are not: the pool goes on as it was made."""

    event: ClassVar[str] = "control.lost"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    generation: str


@attrs.frozen(kw_only=True)
class LaneDataLost(PoolEvent):
    """The data of one lane are gone, the pool's are not; its jobs are lost, it is joined anew."""

    event: ClassVar[str] = "lane.lost"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    lane: int
    generation: str


@attrs.frozen(kw_only=True)
class LaneMissing(PoolEvent):
    """A lane could not be joined with the others; it goes on being tried."""

    event: ClassVar[str] = "lane.missing"
    level: ClassVar[str] = "warning"

    node: str
    lane: int
    problem: str


@attrs.frozen(kw_only=True)
class LaneJoined(PoolEvent):
    """A lane that was missing has been joined."""

    event: ClassVar[str] = "lane.joined"
    level: ClassVar[str] = "info"

    node: str
    lane: int


@attrs.frozen(kw_only=True)
class ScheduleMissed(PoolEvent):
    """Times of a schedule have passed for which there is no job: nobody could fire it then, and its
    misfire policy or its window keeps them from being fired now; or it was paused or removed before
    their jitter was over.  At most 1,000 are counted.
    """

    event: ClassVar[str] = "schedule.missed"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    schedule: str
    lane: int
    missed: int


@attrs.frozen(kw_only=True)
class ScheduleMoved(PoolEvent):
    """The code of a service has an interval with another `start` than the pool had, so it begins
    anew.  If that happens at each start of the service, as with `start=datetime.now(UTC)`, and more
    often than the interval, the schedule never fires: give a fixed moment, or none.
    """

    event: ClassVar[str] = "schedule.moved"
    level: ClassVar[str] = "warning"

    schedule: str
    lane: int


@attrs.frozen(kw_only=True)
class ScheduleOverlapped(PoolEvent):
    """So many times of a schedule made no job: its key had one, and `if_exists` puts that before
    them.  Give it less to do, a longer interval, or `if_exists="queue"`.
    """

    event: ClassVar[str] = "schedule.overlapped"
    level: ClassVar[str] = "warning"

    schedule: str
    lane: int
    overlapped: int


@attrs.frozen(kw_only=True)
class ScheduleUnreadable(PoolEvent):
    """A schedule cannot be read, so it is not fired any more: somebody else has written there, or a
    newer version.  Make it anew, or remove it.
    """

    event: ClassVar[str] = "schedule.unreadable"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    schedule: str
    lane: int


@attrs.frozen(kw_only=True)
class BatchMissing(PoolEvent):
    """Members of a batch are not there and never will be: their lane lost its data, or who was to
    dispatch them died.
    """

    event: ClassVar[str] = "members.missing"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    batch: str
    lane: int
    members: int


@attrs.frozen(kw_only=True)
class PlanTurned(PoolEvent):
    """A turn of a plan has started, stopped or replaced jobs."""

    event: ClassVar[str] = "plan.turned"
    level: ClassVar[str] = "info"

    plan: str
    turn: int
    epoch: int
    wanted: int
    kept: int
    started: int
    stopped: int
    replaced: int
    stopping: int


@attrs.frozen(kw_only=True)
class PlanHeld(PoolEvent):
    """A plan's answer would stop all its jobs, or too many: nothing is changed until that is
    confirmed.  Told once for the same stops.
    """

    event: ClassVar[str] = "plan.held"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    plan: str
    stops: int
    wanted: int
    token: str
    hint: str = "`pool plans diff` says what; `pool plans confirm` lets it"


@attrs.frozen(kw_only=True)
class PlanFailed(PoolEvent):
    """A plan's producer has failed, hangs, or said what cannot be; or a job could not be started.
    The jobs there are go on.  Told once until it is something else.
    """

    event: ClassVar[str] = "plan.failed"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    plan: str
    problem: str


@attrs.frozen(kw_only=True)
class PlanConflicted(PoolEvent):
    """A plan names a key that has a job of somebody else's, which goes on.  Of a turn the first 20
    are told.
    """

    event: ClassVar[str] = "plan.conflicted"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    plan: str
    key: str


@attrs.frozen(kw_only=True)
class ChannelApart(PoolEvent):
    """Where a lane stands with what another one has for it is not as that one has it: the data of
    one of them were lost, or went back in a failover.  It goes on from there; followers that
    were under way may be lost, or come once more if their outcomes are forgotten.
    """

    event: ClassVar[str] = "channel.apart"
    level: ClassVar[str] = "warning"

    lane: int
    to: int


@attrs.frozen(kw_only=True)
class StoreTroubled(PoolEvent):
    """A background call failed; it is repeated.  Its repeats: see `runtime/observers.py`."""

    event: ClassVar[str] = "store.troubled"
    level: ClassVar[str] = "warning"

    during: str
    problem: str
    lane: int | None  # None: about the whole pool
    failures: int = 1  # since the trouble began, in whatever lane the server has


@attrs.frozen(kw_only=True)
class StoreRecovered(PoolEvent):
    """A trouble that was told is over."""

    event: ClassVar[str] = "store.recovered"
    level: ClassVar[str] = "info"

    lane: int | None  # the last one that was answered again
    down_s: float
    failures: int
    during: str = ""  # "": an outage


@attrs.frozen(kw_only=True)
class ActorCrashed(PoolEvent):
    """An actor raised; it is restarted, or ends the node."""

    event: ClassVar[str] = "actor.crashed"
    level: ClassVar[str] = "error"
    is_journalled: ClassVar[bool] = True

    actor: str
    error: str
    restarts: int


@attrs.frozen(kw_only=True)
class TasksCancelled(PoolEvent):
    """All tasks of the event loop were cancelled, as many programs do at their end and as asyncio
    does on `sys.exit()` in a task. If the node is not left next, its own tasks begin again."""

    event: ClassVar[str] = "tasks.cancelled"
    level: ClassVar[str] = "info"


@attrs.frozen(kw_only=True)
class ReconciliationMended(PoolEvent):
    """What Redis says this worker owns differed from what it does, and was mended."""

    event: ClassVar[str] = "reconciliation.mended"
    level: ClassVar[str] = "warning"
    is_journalled: ClassVar[bool] = True

    worker: str
    adopted: int
    resent: int
    released: int
    cancelled: int


@attrs.frozen(kw_only=True)
class StreamsUnreachable(PoolEvent):
    """Reading failed; it is tried again."""

    event: ClassVar[str] = "streams.unreachable"
    level: ClassVar[str] = "warning"

    reader: str
    problem: str


@attrs.frozen(kw_only=True)
class StreamsReachable(PoolEvent):
    """Reading goes on, after so many failures."""

    event: ClassVar[str] = "streams.reachable"
    level: ClassVar[str] = "info"

    reader: str
    failures: int


@attrs.frozen(kw_only=True)
class MapsUnreachable(PoolEvent):
    """The server of this process's maps does not answer; their copies stay as they were."""

    event: ClassVar[str] = "maps.unreachable"
    level: ClassVar[str] = "warning"

    problem: str


@attrs.frozen(kw_only=True)
class MapsReachable(PoolEvent):
    """It answers again, and the copies catch up."""

    event: ClassVar[str] = "maps.reachable"
    level: ClassVar[str] = "info"

    failures: int  # tries in between


@attrs.frozen(kw_only=True)
class StreamMissed(PoolEvent):
    """A length cap took events of a stream before a reader read them; 0: nobody knows how many, as
    it was while the reader was not there."""

    event: ClassVar[str] = "stream.missed"
    level: ClassVar[str] = "error"

    stream: str
    behind: str
    events: int


@attrs.frozen(kw_only=True)
class StreamRestarted(PoolEvent):
    """A stream was deleted, or its server lost data: what there is of it now is read from its
    beginning."""

    event: ClassVar[str] = "stream.restarted"
    level: ClassVar[str] = "error"

    stream: str
    position: str  # where the reader was
    last_id: str  # where the stream is


@attrs.frozen(kw_only=True)
class StreamEnded(PoolEvent):
    """A stream has ended as was asked for, destroyed or by its time: what there is of it now is
    read from its beginning."""

    event: ClassVar[str] = "stream.ended"
    level: ClassVar[str] = "info"

    stream: str
    position: str  # where the reader was


@attrs.frozen(kw_only=True)
class StreamTroubled(PoolEvent):
    """A foreign value stands in a key's place: its stream is not read before that is gone, the
    reader's others are."""

    event: ClassVar[str] = "stream.troubled"
    level: ClassVar[str] = "error"

    stream: str
    key: str
    found: str  # what it is


@attrs.frozen(kw_only=True)
class MapResynced(PoolEvent):
    """A copy could not go on from where it was, and was fetched anew."""

    event: ClassVar[str] = "map.resynced"
    level: ClassVar[str] = "warning"

    map: str
    reason: str
    revision: int
    revision_before: int


@attrs.frozen(kw_only=True)
class MapNotFetched(PoolEvent):
    """A copy could not be fetched; it is tried again."""

    event: ClassVar[str] = "map.not_fetched"
    level: ClassVar[str] = "warning"

    map: str
    problem: str


@attrs.frozen(kw_only=True)
class MapDamaged(PoolEvent):
    """Another hand was at one of the map's keys; once until it is well again."""

    event: ClassVar[str] = "map.damaged"
    level: ClassVar[str] = "error"

    map: str
    key: str


@attrs.frozen(kw_only=True)
class MapsDamaged(PoolEvent):
    """Another hand was at a key that all maps of the pool share; once until it is well again.

    Meanwhile maps may end late.  At `maps` it also fails the writes to maps with an end, and what
    joins them or destroys a map: delete the value, and all goes on.
    """

    event: ClassVar[str] = "maps.damaged"
    level: ClassVar[str] = "error"

    key: str


@attrs.frozen(kw_only=True)
class SinkMended(PoolEvent):
    """Events of stale consumers, or unacknowledged for too long, were freed for others.

    Those that a consumer may have died of are given one at a time.
    """

    event: ClassVar[str] = "sink.mended"
    level: ClassVar[str] = "warning"

    sink: str
    stream: str
    freed: int
    forgotten: int  # consumers


@attrs.frozen(kw_only=True)
class SinkParked(PoolEvent):
    """Events were given up after too many deliveries; they wait among the parked."""

    event: ClassVar[str] = "sink.parked"
    level: ClassVar[str] = "error"

    sink: str
    stream: str
    events: int


@attrs.frozen(kw_only=True)
class SinkParksMany(PoolEvent):
    """More than a few events were given up within a minute: look at their handler, not at them."""

    event: ClassVar[str] = "sink.parks_many"
    level: ClassVar[str] = "error"

    sink: str
    events: int  # within the last minute, as this consumer told
    since_s: float = 60.0


@attrs.frozen(kw_only=True)
class SinkMissed(PoolEvent):
    """A length cap took events that were not acknowledged yet."""

    event: ClassVar[str] = "sink.missed"
    level: ClassVar[str] = "error"

    sink: str
    stream: str
    events: int


@attrs.frozen(kw_only=True)
class SinkRemade(PoolEvent):
    """The group was gone (key deleted, FLUSHALL, data lost, or it alone was destroyed) and was made
    again: from its cursor where that is known and the stream is the same, or else from the oldest
    event."""

    event: ClassVar[str] = "sink.remade"
    level: ClassVar[str] = "error"

    sink: str
    stream: str


@attrs.frozen(kw_only=True)
class SinkBeganAnew(PoolEvent):
    """The stream had ended as was asked for (destroyed, or its time was up): so had its group."""

    event: ClassVar[str] = "sink.began_anew"
    level: ClassVar[str] = "info"

    sink: str
    stream: str


@attrs.frozen(kw_only=True)
class SinkLapsed(PoolEvent):
    """A consumer's lease could not be confirmed, or was ended; it joins under another name."""

    event: ClassVar[str] = "sink.lapsed"
    level: ClassVar[str] = "warning"

    sink: str
    consumer: str
    dropped: int  # buffered events; they are given again, to somebody


@attrs.frozen(kw_only=True)
class SinkTroubled(PoolEvent):
    """A background call of a sink was refused; it is repeated.

    Where a foreign value is in the way, `key` names it; the sink's other streams go on.
    """

    event: ClassVar[str] = "sink.troubled"
    level: ClassVar[str] = "warning"

    sink: str
    stream: str  # "" if it is not about one
    key: str  # "" if it is not about one
    problem: str


# --- of ordinary jobs, for `JobEvents` --------------------------------------------------------


@attrs.frozen(kw_only=True)
class JobAccepted(PoolEvent):
    """A job that this node dispatched is recorded; told again of a dispatch that is repeated.

    Not of what no node dispatches: followers, and the firings of schedules.
    """

    event: ClassVar[str] = "job.accepted"
    level: ClassVar[str] = "debug"

    handler: str
    key: str
    job_id: str
    took_s: float  # since it was sent


@attrs.frozen(kw_only=True)
class JobStarted(PoolEvent):
    """A handler is called.

    `is_again` is true where it was called for this job before: in a retry, after a take-over by
    another worker (under a new epoch), or where it goes on after an outage (under the same one).
    """

    event: ClassVar[str] = "job.started"
    level: ClassVar[str] = "debug"

    handler: str
    key: str
    job_id: str
    attempt: int
    epoch: int
    worker: str
    waited_s: float  # since the job was accepted, in pool time
    is_again: bool  # it had begun before, in whatever attempt, and wherever


JobEnd: TypeAlias = Literal["done", "cancelled", "parked", "retried", "moved"]


@attrs.frozen(kw_only=True)
class JobSettled(PoolEvent):
    """A run of a job has ended here, and the store knows how: `outcome`.

    What is retried has another attempt to come; what is moved goes on at another worker, as the
    same attempt. What ends where no worker has it (stopped, expired or superseded before it began,
    or given up when its worker died) is told by who ended it, with no `worker`, `attempt` 0, and
    no times.
    """

    event: ClassVar[str] = "job.settled"
    level: ClassVar[str] = "debug"

    handler: str
    key: str
    job_id: str
    attempt: int
    epoch: int
    worker: str
    outcome: JobEnd
    waited_s: float  # from its acceptance to its start, in pool time
    ran_s: float  # 0 where its handler was not called
    took_s: float  # from the handler's end until the store knew of it
