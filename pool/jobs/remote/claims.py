"""What a polling worker, its gateway and the web application say to each other.

Claims are all that a gateway has to know of a worker and of a job: they are handed to the client
(signed, by who speaks to it) and come back with each request, at whichever gateway.  Nothing of
them is kept there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool.core.ids import member_name
from pool.core.options import Options
from pool.core.record import KIND_LETTERS, KINDS, Kind, Progress
from pool.errors import ClaimRefused, PoolError, WrongClaim
from pool.jobs.handlers import Handlers
from pool.redis.commands.calls import Target

NUMBER: Final = 1  # of a polling worker in each lane: who has to join again is another worker

StopReason: TypeAlias = Literal["stop", "release", "timeout"]
EndOutcome: TypeAlias = Literal[
    "done", "repeated", "retried", "parked", "released", "cancelled", "saved"
]


# --- who and what -----------------------------------------------------------------------------


@attrs.frozen
class HandlerOffer:
    """A handler that a worker has, and how its jobs are run."""

    name: str
    options: Options = attrs.field(factory=Options)

    @classmethod
    def of(cls, name: str, kind: Kind = "job", **options: Any) -> HandlerOffer:
        """Make one from the options of `Handlers.job()`, or of `Handlers.service()`.

        Raises:
            ConfigError: The name cannot be used.
            InvalidOption: A value is out of bounds, or there is no such option.
        """
        return cls(name, options_of(name, kind, options))


def options_of(name: str, kind: Kind, given: Mapping[str, Any]) -> Options:
    """Return the options of a handler, by the rules of `Handlers`."""
    usual = Handlers()
    register = usual.service if kind == "service" else usual.job
    return register(name, **given).options


@attrs.frozen(kw_only=True)
class WorkerClaim:
    """Who a polling worker is: what `register` answers, and each request brings back."""

    id: str
    pool: str
    generation: str  # the pool's, when it was registered
    since_ms: int  # pool time, likewise
    lanes: tuple[bool, ...]  # which of them it has joined
    capacity: int
    handlers: Mapping[str, Options]
    weight: float = 1.0
    label: str = ""
    version: str = ""
    host: str = ""
    pid: int = 0

    @property
    def target(self) -> Target:
        """Its name in each lane."""
        return Target(self.id, NUMBER)

    @property
    def name(self) -> str:
        """Likewise, as scripts take it."""
        return member_name(self.id, NUMBER)

    def pack(self) -> str:
        """Return it as text, to be signed; options that are the usual ones take no room."""
        usual = Options().pack()
        packed = {name: options.pack() for name, options in self.handlers.items()}
        handlers = {name: "" if text == usual else text for name, text in packed.items()}
        lanes = "" if all(self.lanes) else "".join("01"[has] for has in self.lanes)
        parts = (self.id, self.pool, self.generation, self.since_ms, len(self.lanes), lanes)
        about = (self.weight, self.label, self.version, self.host, self.pid)
        return _packed((*parts, self.capacity, handlers, *about))

    @classmethod
    def parse(cls, text: str) -> WorkerClaim:
        """Return what `pack()` made.

        Raises:
            WrongClaim: It is no such text.
        """
        try:
            who, pool, generation, since, count, lanes, capacity, handlers, *about = _parsed(text)
            weight, label, version, host, pid = about
            return cls(
                id=who,
                pool=pool,
                generation=generation,
                since_ms=since,
                lanes=tuple(each == "1" for each in lanes) or (True,) * count,
                capacity=capacity,
                handlers={name: _options(packed) for name, packed in handlers.items()},
                weight=weight,
                label=label,
                version=version,
                host=host,
                pid=pid,
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise WrongClaim(problem="it is not a worker's") from error


@attrs.frozen
class JobClaim:
    """One run of a job that a worker has: the same one however often it is handed out."""

    worker: str  # id
    lane: int
    key: str
    id: str
    handler: str
    kind: Kind
    epoch: int
    attempt: int

    def pack(self) -> str:
        """Return it as text, to be signed."""
        parts = (self.worker, self.lane, self.key, self.id, self.handler)
        return _packed((*parts, KIND_LETTERS[self.kind], self.epoch, self.attempt))

    @classmethod
    def parse(cls, text: str) -> JobClaim:
        """Return what `pack()` made.

        Raises:
            WrongClaim: It is no such text.
        """
        try:
            worker, lane, key, job_id, handler, kind, epoch, attempt = _parsed(text)
            return cls(worker, lane, key, job_id, handler, KINDS[kind], epoch, attempt)
        except (ValueError, TypeError, KeyError) as error:
            raise WrongClaim(problem="it is not a job's") from error


def _options(packed: str) -> Options:
    return Options.parse(packed.encode()) if packed else Options()


def _packed(parts: Sequence[object]) -> str:
    return json.dumps(parts, separators=(",", ":"), ensure_ascii=False)


def _parsed(text: str) -> list[Any]:
    parts = json.loads(text)
    if not isinstance(parts, list):
        raise ValueError(text[:20])
    return parts


# --- what a worker says -----------------------------------------------------------------------


@attrs.frozen
class Beat:
    """A job that a worker still has; how far it is, and up to which message it has come."""

    job: JobClaim
    progress: Progress | None = None
    seen: int = 0  # id of a message: it and those before it are handled, and not told again


HeldJob: TypeAlias = JobClaim | Beat


@attrs.frozen(kw_only=True)
class Failure:
    """How an attempt failed."""

    job: JobClaim
    type: str = "Error"
    message: str = ""
    traceback: str = ""
    may_retry: bool = True  # else it is parked
    delay_s: float | None = None  # before the next attempt; None: as the handler's options say


# --- what it is told --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Registration:
    """A worker that was registered."""

    claim: WorkerClaim
    heartbeat_s: float  # how often it should beat while it has jobs and no poll is open
    expires_in_s: float  # see `Polled.expires_in_s`


@attrs.frozen(kw_only=True)
class HandedOut:
    """A job to be begun, or gone on with: under this claim it may have been handed out before."""

    job: JobClaim
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: Any = None  # what it saved, or handed over
    saves: int = 0  # number of the newest that is stored under this claim; the next is higher
    is_recovered: bool = False  # a run of it may have begun before, and not have ended
    timeout_s: float | None = None


@attrs.frozen
class ToStop:
    """A job that the worker shall end.

    stop: somebody asked for it, `detail` says why; end it, then complete or release it.
    release: it shall go on elsewhere; release it.  timeout: it has had its time; fail or release
    it, which is the same: an attempt has been used up.
    """

    job: JobClaim
    reason: StopReason
    detail: str = ""


@attrs.frozen
class Message:
    """A message for a job; told again until a `Beat` says that it was seen."""

    job: JobClaim
    id: int
    value: Any


@attrs.frozen
class Lost:
    """A job that is not this worker's any more: it must end at once, and cannot be settled."""

    job: JobClaim
    reason: str


@attrs.frozen(kw_only=True)
class Polled:
    """The answer to a poll or a heartbeat.

    Of `jobs` those that the worker had already, and did not name, come whatever room it has; with
    `register_again` there are none.
    """

    jobs: Sequence[HandedOut] = ()
    stop: Sequence[ToStop] = ()
    messages: Sequence[Message] = ()
    lost: Sequence[Lost] = ()
    is_draining: bool = False  # it is given no jobs any more: end what it has, and leave
    is_cordoned: bool = False  # it is given none for now
    # What is lost is lost; the rest may still be ended.  `leave` before it is joined again: what
    # an answer that was lost has brought goes on elsewhere by that.
    register_again: bool = False
    heartbeat_s: float
    # Counted from when the request ARRIVED here: whoever counts from when it sent it is safe.  So
    # long nobody else can have the jobs that it holds; by then they must have ended.
    expires_in_s: float


@attrs.frozen
class EndedJob:
    """What became of one item of `complete`, `fail`, `release` or `save`."""

    job: JobClaim
    outcome: EndOutcome | None = None  # None: `error` says why nothing was done
    error: PoolError | None = None
    in_s: float = 0.0  # of what is retried: when

    @classmethod
    def refused(cls, job: JobClaim, reason: str) -> EndedJob:
        """Say that it is not the worker's to end."""
        error = ClaimRefused(key=job.key, job_id=job.id, epoch=job.epoch, reason=reason)
        return cls(job, error=error)
