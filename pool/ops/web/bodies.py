"""What is sent, as types: a body, or a path's query.  They judge it, and its schemas are theirs.

What a type cannot say (a key's bytes, a cron expression) the calls say as for any caller.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pool.checks import SECONDS_MAX
from pool.core.lifecycle import State
from pool.core.options import LINE_MAX, IfExists, Limit
from pool.core.pauses import REASON_MAX
from pool.core.placement import CAPACITY_MAX, WEIGHT_MAX, WEIGHT_MIN
from pool.core.record import CAUSE_CHARS_MAX, LIMIT_S_MIN
from pool.core.times import CRON_CHARS_MAX, EVERY_S_MIN, JITTER_S_MAX, Misfire
from pool.jobs.client import batches, listing, parked, schedules
from pool.jobs.client.options import WINDOW_S
from pool.jobs.handlers import ATTEMPTS_MAX, QUEUE_MAX, SECONDS_MIN
from pool.jobs.job import PROGRESS_MAX
from pool.names import IDEMPOTENCY_KEY_BYTES_MAX, KEY_BYTES_MAX, LABEL_BYTES_MAX

JOBS_MAX: Final = 1_000  # of one request
MEMBERS_MAX: Final = 10_000  # of a batch, in one request
WAIT_S_MAX: Final = 30.0
COUNT: Final = 100
OFFERS_MAX: Final = 256

# In the words of JSON Schema; with bytes instead of characters the pool asks itself.
KEY: Final = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$"
NAME: Final = "^[A-Za-z0-9_.:-]{1,128}$"
ID: Final = "^[!-+\\-.-{}~]{1,128}$"

_BYTES: Final = "At most {:,} bytes in UTF-8."  # a schema counts characters
Key = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KEY_BYTES_MAX,
        pattern=KEY,
        description=_BYTES.format(KEY_BYTES_MAX),
    ),
]
Label = Annotated[str, Meta(max_length=LABEL_BYTES_MAX, description=_BYTES.format(LABEL_BYTES_MAX))]
HandlerName = Annotated[str, Meta(pattern=NAME)]
JobId = Annotated[str, Meta(pattern=ID)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
LimitS = Annotated[float, Meta(ge=SECONDS_MIN, le=SECONDS_MAX)]
WaitS = Annotated[float, Meta(ge=0, le=WAIT_S_MAX)]
Cause = Annotated[str, Meta(max_length=CAUSE_CHARS_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_MAX)]
Cursor = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=KEY_BYTES_MAX)]
BodyEncoding = Literal["json", "base64"]


class Sent(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a caller sends; a field more than these is a mistake."""


# --- jobs -------------------------------------------------------------------------------------


class FollowerBody(Sent):
    """A job that follows; see `Follower`."""

    handler: HandlerName
    key: Key
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    takes_result: bool = False
    delay_s: Seconds = 0.0
    then: list[FollowerBody] = []
    otherwise: list[FollowerBody] = []


class CallBody(Sent):
    """A handler, a key, arguments; with `encoding` base64 the only one is bytes, so written."""

    handler: HandlerName
    key: Key
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    encoding: BodyEncoding = "json"


class JobBody(CallBody):
    """A job to be dispatched; its options are those of `Node.options`.

    `run_at` is a time with a zone, by the server's clock: the job begins no earlier.
    """

    job_id: JobId | None = None
    idempotency_key: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=IDEMPOTENCY_KEY_BYTES_MAX,
                pattern=KEY,
                description=_BYTES.format(IDEMPOTENCY_KEY_BYTES_MAX),
            ),
        ]
        | None
    ) = None
    if_exists: IfExists | None = None
    queue_max: Annotated[int, Meta(ge=1, le=LINE_MAX)] = QUEUE_MAX
    attach_any: bool = False
    allow_unknown: bool = False
    delay_s: Seconds = 0.0
    run_at: Annotated[datetime, Meta(tz=True)] | None = None
    window_s: Seconds = WINDOW_S
    retention_s: Seconds | None = None
    expires_s: Annotated[float, Meta(ge=LIMIT_S_MIN, le=SECONDS_MAX)] | None = None
    start_timeout_s: Annotated[float, Meta(ge=LIMIT_S_MIN, le=SECONDS_MAX)] | None = None
    then: list[FollowerBody] = []
    otherwise: list[FollowerBody] = []


class JobsBody(Sent):
    """Many jobs; each is accepted or refused by itself."""

    jobs: Annotated[list[JobBody], Meta(min_length=1, max_length=JOBS_MAX)]


class StopBody(Sent):
    """Why, and how long to wait until it has ended."""

    cause: Cause = "stopped"
    wait_s: WaitS = 0.0


class NotifyBody(Sent):
    """A message."""

    value: Any
    encoding: BodyEncoding = "json"


class Nothing(Sent):
    """Nothing has to be said."""


class JobQuery(Sent):
    """How long to wait for its end."""

    wait_s: WaitS = 0.0


class JobsQuery(Sent):
    """Which jobs; see `Node.jobs`."""

    state: State | None = None
    handler: HandlerName | None = None
    prefix: Text = ""
    owner: Text | None = None
    older_than_s: Seconds | None = None
    page: Annotated[int, Meta(ge=1, le=listing.PAGE_MAX)] = 500
    cursor: Cursor = ""


class WhyQuery(Sent):
    """Of which job of the key; left out: its live or last one."""

    job_id: JobId | None = None


# --- dead letters -----------------------------------------------------------------------------


class LettersQuery(Sent):
    """Which dead letters."""

    handler: Text = ""
    prefix: Text = ""
    cause: Text = ""
    older_than_s: Seconds | None = None
    newer_than_s: Seconds | None = None
    count: Annotated[int, Meta(ge=1, le=parked.COUNT_MAX)] = COUNT
    cursor: Cursor = ""


class EditBody(Sent):
    """All its arguments, for when it is replayed: they replace those that are there.

    Without `args` it has none by place, without `kwargs` none by name.
    """

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    encoding: BodyEncoding = "json"

    @property
    def names(self) -> str:
        """What is given, without any value."""
        return ", ".join((f"{len(self.args)} by place", *self.kwargs))


# --- batches ----------------------------------------------------------------------------------


class BatchBody(Sent):
    """A batch with all its members; sent again it goes on with the one that is there."""

    id: JobId
    jobs: Annotated[list[CallBody], Meta(max_length=MEMBERS_MAX)] = []
    then: list[FollowerBody] = []
    otherwise: list[FollowerBody] = []
    success_min: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    open_s: Annotated[float, Meta(ge=1, le=SECONDS_MAX)] = batches.OPEN_S
    keep_s: Annotated[float, Meta(ge=1, le=SECONDS_MAX)] = batches.KEEP_S

    @property
    def members(self) -> int:
        """How many jobs are sent."""
        return len(self.jobs)


class BatchesQuery(Sent):
    """How many of the newest."""

    newest: Annotated[int, Meta(ge=1, le=1_000)] = COUNT


class CancelBody(Sent):
    """Why."""

    cause: Cause = "stopped"


# --- schedules --------------------------------------------------------------------------------


class ScheduleBody(CallBody):
    """When (one of `cron`, `every_s`, `at`) and what; see `Node.schedule`.

    `tz` (UTC) is of `cron` alone, `start` of `every_s`; `misfire` (once) and `jitter_s` (0) of
    both; `misfire_window_s` (3,600) of all three.
    """

    cron: Annotated[str, Meta(min_length=1, max_length=CRON_CHARS_MAX)] | None = None
    tz: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    every_s: Annotated[float, Meta(ge=EVERY_S_MIN, le=SECONDS_MAX)] | None = None
    start: Annotated[datetime, Meta(tz=True)] | UnsetType | None = UNSET
    at: Annotated[datetime, Meta(tz=True)] | None = None
    misfire: Misfire | UnsetType = UNSET
    misfire_window_s: Seconds | UnsetType = UNSET
    jitter_s: Annotated[float, Meta(ge=0, le=JITTER_S_MAX)] | UnsetType = UNSET
    if_exists: IfExists | None = None
    queue_max: Annotated[int, Meta(ge=1, le=LINE_MAX)] = QUEUE_MAX
    allow_unknown: bool = False
    delay_s: Seconds = 0.0
    retention_s: Seconds | None = None
    expires_s: Annotated[float, Meta(ge=LIMIT_S_MIN, le=SECONDS_MAX)] | None = None
    start_timeout_s: Annotated[float, Meta(ge=LIMIT_S_MIN, le=SECONDS_MAX)] | None = None
    then: list[FollowerBody] = []
    otherwise: list[FollowerBody] = []


class SchedulesQuery(Sent):
    """Which schedules."""

    handler: Text = ""
    prefix: Text = ""
    count: Annotated[int, Meta(ge=1, le=schedules.COUNT_MAX)] = COUNT
    cursor: Cursor = ""


class NextQuery(Sent):
    """How many of its next times are told."""

    next: Annotated[int, Meta(ge=1, le=schedules.NEXT_MAX)] = 5


# --- operating --------------------------------------------------------------------------------


class ResumeBody(Sent):
    """The jobs of a handler, of a key, or with `all` of the whole pool: one of the three."""

    handler: HandlerName | None = None
    key: Key | None = None
    all: bool = False


class PauseBody(ResumeBody):
    """The jobs of a handler, of a key, or with `all` of the whole pool: one of the three."""

    reason: Reason = ""


class CordonBody(Sent):
    """Why, and how long to wait until it is heard."""

    reason: Reason = ""
    wait_s: WaitS = 10.0


class UncordonBody(Sent):
    """How long to wait until it is heard."""

    wait_s: WaitS = 10.0


class FindingsQuery(Sent):
    """Whether all records are walked over, not 20,000."""

    all: bool = False


class EventsQuery(Sent):
    """Which entries of the journal to send; with `follow` new ones are sent as they come.

    `since` is a time in ISO form with a zone, or the `id` of an event: entries after it are sent.
    Without `since` all entries that are kept are sent.  A `Last-Event-ID` header overrides `since`.
    """

    key: Key | None = None
    handler: HandlerName | None = None
    since: (
        Annotated[
            str,
            Meta(
                max_length=4096,
                description="A time in ISO form with a zone, or the id of an event, to go on "
                "behind it; left out: all entries that are kept.",
                examples=["2026-01-31T12:00:00Z"],
            ),
        ]
        | None
    ) = None
    follow: bool = True


# --- workers ----------------------------------------------------------------------------------

WorkerToken = Annotated[str, Meta(min_length=1, max_length=16 * 1024)]
JobToken = Annotated[str, Meta(min_length=1, max_length=4 * 1024)]


class OfferBody(Sent):
    """A handler that a worker has, and how its jobs are run; see `Handlers.job` and `service`."""

    name: HandlerName
    kind: Literal["job", "service"] = "job"
    timeout_s: LimitS | UnsetType | None = UNSET
    progress_timeout_s: LimitS | UnsetType | None = UNSET
    park_on: list[Limit] | UnsetType = UNSET
    attempts_max: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | UnsetType = UNSET
    backoff_s: LimitS | UnsetType = UNSET
    backoff_max_s: LimitS | UnsetType = UNSET
    healthy_s: Seconds | UnsetType = UNSET
    retention_s: Seconds | UnsetType | None = UNSET
    if_exists: IfExists | UnsetType = UNSET
    queue_max: Annotated[int, Meta(ge=1, le=LINE_MAX)] | UnsetType = UNSET
    expires_s: Annotated[float, Meta(ge=LIMIT_S_MIN, le=SECONDS_MAX)] | UnsetType | None = UNSET
    start_timeout_s: Annotated[float, Meta(ge=LIMIT_S_MIN, le=SECONDS_MAX)] | UnsetType | None = (
        UNSET
    )


class RegisterBody(Sent):
    """A worker: what it can do, and how many jobs it runs at once."""

    handlers: Annotated[list[HandlerName | OfferBody], Meta(min_length=1, max_length=OFFERS_MAX)]
    capacity: Annotated[int, Meta(ge=1, le=CAPACITY_MAX)] = 1
    weight: Annotated[float, Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)] = 1.0
    label: Label = ""
    version: Label = ""
    host: Label = ""
    pid: Annotated[int, Meta(ge=0, le=2**31)] = 0


class ProgressBody(Sent):
    """How far a job is."""

    done: Annotated[float, Meta(ge=-PROGRESS_MAX, le=PROGRESS_MAX)]
    total: Annotated[float, Meta(ge=-PROGRESS_MAX, le=PROGRESS_MAX)] | None = None
    note: Annotated[str, Meta(max_length=1_000)] = ""


class BeatBody(Sent):
    """A job that a worker has; how far it is, and the last message that it has handled."""

    token: JobToken
    progress: ProgressBody | None = None
    seen: Annotated[str, Meta(pattern="^[0-9]{1,18}$")] | None = None


HeldJobs = list[JobToken | BeatBody]


class OfWorker(Sent):
    """What `register` has answered as `token`."""

    worker_token: WorkerToken


class PollBody(OfWorker):
    """All that was handed out and whose end was not answered yet; how many more, how long."""

    held: Annotated[HeldJobs, Meta(max_length=CAPACITY_MAX)] = []
    jobs_max: Annotated[int, Meta(ge=0, le=CAPACITY_MAX)] = 1
    wait_s: WaitS = 0.0


class HeartbeatBody(OfWorker):
    """Likewise, of who takes no more."""

    held: Annotated[HeldJobs, Meta(max_length=CAPACITY_MAX)] = []


class ResultBody(Sent):
    """A job that is done."""

    token: JobToken
    result: Any = None
    encoding: BodyEncoding = "json"


class CompleteBody(OfWorker):
    """Jobs that are done."""

    jobs: Annotated[list[ResultBody], Meta(min_length=1, max_length=JOBS_MAX)]


class ErrorBody(Sent):
    """What an attempt failed by; of a text that is too long a part is kept, of none it is refused.

    Type and message are cut to 500 characters, a traceback to 4,000, in its middle.
    """

    type: str = "Error"
    message: str = ""
    traceback: str = ""


class FailureBody(Sent):
    """An attempt that failed; with `retry` another one follows, if there is one left."""

    token: JobToken
    error: ErrorBody = msgspec.field(default_factory=ErrorBody)
    retry: bool = True
    delay_s: Seconds | None = None


class FailBody(OfWorker):
    """Attempts that failed."""

    jobs: Annotated[list[FailureBody], Meta(min_length=1, max_length=JOBS_MAX)]


class GivenUpBody(Sent):
    """A job that shall go on elsewhere, with this state."""

    token: JobToken
    state: Any = None
    encoding: BodyEncoding = "json"


class ReleaseBody(OfWorker):
    """Jobs that shall go on elsewhere; one that was asked to stop has ended by that."""

    jobs: Annotated[list[GivenUpBody], Meta(min_length=1, max_length=JOBS_MAX)]


class SaveBody(OfWorker):
    """The state of a job, from which it goes on after a crash; messages up to `seen` go with it.

    `number` rises with each state, from `saves` of the job on; a repeat has that of the first.
    """

    token: JobToken
    number: Annotated[int, Meta(ge=1, le=2**53)]
    state: Any
    encoding: BodyEncoding = "json"
    seen: Annotated[str, Meta(pattern="^[0-9]{1,18}$")] | None = None


def read(kind: type[Sent], given: Any, *, is_text: bool = False) -> Any:
    """Return what was sent as one of these; `is_text`: all values are texts, as in a query.

    Raises:
        msgspec.ValidationError: It is none, and where.
    """
    found = msgspec.convert(given, kind, strict=not is_text)
    for name in given if is_text else ():
        if getattr(found, name) is None:  # "null" is a text
            raise msgspec.ValidationError(f"Expected a value, got `null` - at `$.{name}`")
    return found
