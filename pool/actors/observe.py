"""What happens in a node, as data: one emit, many readers (logs, metrics, spans, tests).

Event names are noun.past_verb and never change: dashboards depend on them.  There is no event for
an ordinary job: that is counted in the lane, and a log line would cost more than the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar, Final, Protocol

import attrs
import structlog

from pool import checks
from pool.store.hush import Hush
from pool.store.scribe import Scribe


class Event(attrs.AttrsInstance, Protocol):
    """What is emitted: an attrs class with a name and a level."""

    event: ClassVar[str]
    level: ClassVar[str]


Observer = Callable[[Event], object]


@attrs.frozen(kw_only=True)
class NodeJoined:
    """The node is open."""

    event: ClassVar[str] = "node.joined"
    level: ClassVar[str] = "info"

    pool: str
    node: str
    server: str


@attrs.frozen(kw_only=True)
class PasswordInClear:
    """The address sends a password over a network without TLS; said once by each node."""

    event: ClassVar[str] = "store.password_in_clear"
    level: ClassVar[str] = "warning"

    where: str
    hint: str = "use rediss://, or a network that nobody else can read"


@attrs.frozen(kw_only=True)
class PolicyUnknown:
    """The server may evict jobs for all that can be seen: it does not show its maxmemory-policy."""

    event: ClassVar[str] = "store.policy_unknown"
    level: ClassVar[str] = "warning"

    server: str
    hint: str = "allow +info|memory (see `pool acl`), or make sure that it says noeviction"


@attrs.frozen(kw_only=True)
class NodeLeft:
    """The node has closed; `abandoned` keys are left to the reapers of others."""

    event: ClassVar[str] = "node.left"
    level: ClassVar[str] = "info"

    pool: str
    node: str
    abandoned: int


@attrs.frozen(kw_only=True)
class LeaseLost:
    """Renewals failed for so long that handlers had to be stopped."""

    event: ClassVar[str] = "lease.lost"
    level: ClassVar[str] = "warning"

    node: str
    lane: int
    silent_s: float
    ttl_s: float


@attrs.frozen(kw_only=True)
class TtlChanged:
    """The pool's TTL was changed; this node goes by it now."""

    event: ClassVar[str] = "ttl.changed"
    level: ClassVar[str] = "info"

    node: str
    before_s: float
    ttl_s: float


@attrs.frozen(kw_only=True)
class ClockStepped:
    """A lane's server has another time than it should have; the lane goes on by the one before."""

    event: ClassVar[str] = "clock.stepped"
    level: ClassVar[str] = "warning"

    node: str
    lane: int
    step_s: float  # above 0: forward


@attrs.frozen(kw_only=True)
class LeaseResumed:
    """A renewal succeeded: what was stopped goes on, as far as nobody took it."""

    event: ClassVar[str] = "lease.resumed"
    level: ClassVar[str] = "info"

    node: str
    lane: int


@attrs.frozen(kw_only=True)
class WorkerFenced:
    """Others took this worker's keys over; it joins again under another number."""

    event: ClassVar[str] = "worker.fenced"
    level: ClassVar[str] = "warning"

    worker: str
    lane: int


@attrs.frozen(kw_only=True)
class HandlerOverran:
    """A handler has not ended although its lease has."""

    event: ClassVar[str] = "handler.overran"
    level: ClassVar[str] = "error"

    key: str
    handler: str
    epoch: int


@attrs.frozen(kw_only=True)
class LoopHung:
    """The event loop has not answered; `stack` is where it stands."""

    event: ClassVar[str] = "loop.hung"
    level: ClassVar[str] = "error"

    node: str
    hung_s: float
    stack: str


@attrs.frozen(kw_only=True)
class CommitRefused:
    """What a handler did came too late: the job is not ours any more (G-02)."""

    event: ClassVar[str] = "commit.refused"
    level: ClassVar[str] = "warning"

    key: str
    epoch: int
    answer: str


@attrs.frozen(kw_only=True)
class AttemptFailed:
    """An attempt of a job failed; `follows` says what comes next."""

    event: ClassVar[str] = "attempt.failed"
    level: ClassVar[str] = "warning"

    key: str
    handler: str
    attempt: int
    error: str
    follows: str


@attrs.frozen(kw_only=True)
class MessageUnheard:
    """Messages came that nobody is given: the object has no `notify()`, or the job ended and its
    handler had never asked for any.  Once a run.
    """

    event: ClassVar[str] = "message.unheard"
    level: ClassVar[str] = "warning"

    key: str
    handler: str
    epoch: int


@attrs.frozen(kw_only=True)
class RunDisturbed:
    """A stranger, maybe a job that had ended, cancelled the task that ran this one; it runs again.

    In a task that nobody else knows, as the same attempt.
    """

    event: ClassVar[str] = "run.disturbed"
    level: ClassVar[str] = "warning"

    key: str
    handler: str
    epoch: int


@attrs.frozen(kw_only=True)
class WorkerReaped:
    """This node took over what a fenced identity owned in a lane."""

    event: ClassVar[str] = "worker.reaped"
    level: ClassVar[str] = "warning"

    identity: str
    lane: int
    keys: int
    by: str


@attrs.frozen(kw_only=True)
class RecordQuarantined:
    """A record that cannot be worked on was parked as it is."""

    event: ClassVar[str] = "record.quarantined"
    level: ClassVar[str] = "error"

    key: str


@attrs.frozen(kw_only=True)
class IndexRestored:
    """Jobs were found that no index led to; `index` is where, or `owner`: it was gone for good."""

    event: ClassVar[str] = "index.restored"
    level: ClassVar[str] = "error"

    lane: int
    index: str
    keys: int
    key: str  # one of them


@attrs.frozen(kw_only=True)
class CountersMended:
    """A lane counted other numbers of unassigned and waiting jobs than it had."""

    event: ClassVar[str] = "counters.mended"
    level: ClassVar[str] = "warning"

    lane: int
    before: tuple[int, int]
    after: tuple[int, int]


@attrs.frozen(kw_only=True)
class ServiceMoved:
    """A service was handed to the worker that is first for it now."""

    event: ClassVar[str] = "service.moved"
    level: ClassVar[str] = "info"

    key: str
    target: str


@attrs.frozen(kw_only=True)
class DataLost:
    """The server came back without the pool's data; the node joins anew."""

    event: ClassVar[str] = "data.lost"
    level: ClassVar[str] = "error"

    pool: str
    incarnation: str


@attrs.frozen(kw_only=True)
class ControlLost:
    """The control keys are gone, the lanes are not: the pool goes on as it was made."""

    event: ClassVar[str] = "control.lost"
    level: ClassVar[str] = "error"

    pool: str
    incarnation: str


@attrs.frozen(kw_only=True)
class LaneDataLost:
    """The data of one lane are gone, the pool's are not; its jobs are lost, it is joined anew."""

    event: ClassVar[str] = "lane.lost"
    level: ClassVar[str] = "error"

    pool: str
    lane: int
    incarnation: str


@attrs.frozen(kw_only=True)
class LaneMissing:
    """A lane could not be joined with the others; it goes on being tried."""

    event: ClassVar[str] = "lane.missing"
    level: ClassVar[str] = "warning"

    node: str
    lane: int
    problem: str


@attrs.frozen(kw_only=True)
class LaneJoined:
    """A lane that was missing has been joined."""

    event: ClassVar[str] = "lane.joined"
    level: ClassVar[str] = "info"

    node: str
    lane: int


@attrs.frozen(kw_only=True)
class StoreTroubled:
    """A background call failed; it is repeated.  How often that is told: see `outages`."""

    event: ClassVar[str] = "store.troubled"
    level: ClassVar[str] = "warning"

    during: str
    problem: str
    lane: int | None  # None: about the whole pool
    failures: int = 1  # since the trouble began, in whatever lane the server has


@attrs.frozen(kw_only=True)
class StoreRecovered:
    """A trouble that was told is over."""

    event: ClassVar[str] = "store.recovered"
    level: ClassVar[str] = "info"

    lane: int | None  # the last one that was answered again
    down_s: float
    failures: int
    during: str = ""  # "": an outage


@attrs.frozen(kw_only=True)
class ActorCrashed:
    """An actor raised; it is restarted, or ends the node."""

    event: ClassVar[str] = "actor.crashed"
    level: ClassVar[str] = "error"

    actor: str
    error: str
    restarts: int


@attrs.frozen(kw_only=True)
class ReconciliationMended:
    """What Redis says this worker owns differed from what it does, and was mended."""

    event: ClassVar[str] = "reconciliation.mended"
    level: ClassVar[str] = "warning"

    worker: str
    adopted: int
    resent: int
    released: int
    cancelled: int


_log = structlog.get_logger("pool")
_scribe = Scribe(lambda lines: _log.warning("log.dropped", lines=lines))
_hush = Hush(_scribe.write)


def check_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return them; refuse what cannot be called plainly: a coroutine would never run."""
    refuse = checks.setting
    found = checks.several("observers", observers, "plain functions", refuse=refuse)
    return tuple(checks.plain_function("observers", each, refuse=refuse) for each in found)


def emit_to(observers: Sequence[Observer], event: Event) -> None:
    """Call every observer.  One that raises is logged; it is user code and ends nobody else."""
    for observer in observers:
        try:
            observer(event)
        except KeyboardInterrupt:  # Ctrl-C while it ran: for the node
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised again next time
            _scribe.write(partial(_log.error, "observer.failed", of=event.event, exc_info=error))


# What may come in floods, and which of its facts make it the same trouble again.  What is told here
# a minute late, with a count, all other observers see each time.
_SAME: Final[dict[type, tuple[str, ...]]] = {
    LeaseLost: ("node",),  # in each lane
    LeaseResumed: ("node",),
    WorkerFenced: ("worker",),
    HandlerOverran: ("handler",),
    LoopHung: ("node",),
    CommitRefused: ("answer",),
    AttemptFailed: ("handler", "error", "follows"),
    RunDisturbed: ("handler",),
    WorkerReaped: ("identity",),  # in each lane
    RecordQuarantined: (),
    IndexRestored: ("lane", "index"),
    CountersMended: ("lane",),
    ServiceMoved: (),
    LaneMissing: ("node", "problem"),
    ReconciliationMended: ("worker",),
}


def log_observer(event: Event) -> None:
    """Write one line per event, and of what is repeated one a minute; see `Hush`.

    It waits for nobody: see `Scribe`.
    """
    same = _SAME.get(type(event))
    if same is None:
        if isinstance(event, NodeLeft):
            _hush.end()
        _scribe.write(partial(_line, event, 1))
    else:
        _hush.tell(event.event, tuple(getattr(event, n) for n in same), partial(_line, event))


def _line(event: Event, times: int) -> None:
    facts = attrs.asdict(event)
    if times > 1:
        facts["times"] = times
    # Plain (never `ainfo`): structlog's async twins need asyncio.
    getattr(_log, event.level)(event.event, **facts)
