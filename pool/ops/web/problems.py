"""Answers of the gateway, problems as `application/problem+json`.

What goes wrong, as `application/problem+json`: our code, its facts, and what helps.

One table says which status each of our errors is; a class below one of them has its status.  What
is refused before the pool is asked has codes of its own (REFUSALS).

What is answered, where that is not what `pool/ops` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool import errors
from pool.core.pauses import Cordon, Pause
from pool.errors import PoolError, sentence, shown
from pool.jobs.client.ref import Status
from pool.ops.findings import Finding
from pool.ops.jsonable import ScheduleState
from pool.ops.members import NodeRow, WorkerRow

ProblemFacts: TypeAlias = Mapping[str, Any]
MEDIA_TYPE: Final = "application/problem+json"
AGAIN_S: Final = 1  # what `Retry-After` says where nothing better is known

# The most particular class counts.
STATUSES: Final[Mapping[type[PoolError], int]] = {
    errors.UsageError: 400,
    errors.UnknownHandler: 422,
    errors.WrongArguments: 422,
    errors.PayloadEncodingError: 422,
    errors.PayloadTooLarge: 413,
    errors.BatchTooLarge: 413,
    errors.NotRunning: 503,
    errors.RefusedError: 409,
    errors.NoSuchJob: 404,
    errors.NoSuchLetter: 404,
    errors.NoSuchSchedule: 404,
    errors.NoSuchMember: 404,
    errors.NoSuchBatch: 404,
    errors.NoSuchPlan: 404,
    errors.OutcomeExpired: 404,
    errors.QueueFull: 429,
    errors.PoolFull: 429,
    errors.InboxFull: 429,
    errors.TooManyPaused: 429,
    errors.NotStarted: 504,
    errors.NotStopped: 504,
    errors.LostError: 409,
    errors.Gone: 410,
    errors.WorkerGone: 410,
    errors.WrongClaim: 410,
    errors.StoreError: 503,
    errors.JobLost: 404,
    errors.NodeError: 503,
    errors.HandlerError: 409,
    errors.MiddlewareFailed: 422,
    PoolError: 500,
}
# Status, title, and what helps where nothing better is known.
REFUSALS: Final[Mapping[str, tuple[int, str, str]]] = {
    "WEBREQUEST": (
        *(400, "The request cannot be understood"),
        "correct what it names; GET /openapi.json tells what may be sent",
    ),
    "WEBSECRET": (
        *(401, "Who asks is not known"),
        "send the secret of a role, as the gateway's file or variables have it",
    ),
    "WEBROLE": (
        *(403, "This needs another role"),
        "ask with the secret of a role that may; admin may all but what workers ask",
    ),
    "WEBORIGIN": (
        *(403, "Programs of this machine alone are answered"),
        "set secrets, or an authenticator, to be asked from elsewhere; no page of elsewhere is",
    ),
    "WEBPATH": (
        *(404, "There is nothing here"),
        "GET /openapi.json tells what there is; a / within a key is sent as %2F",
    ),
    "WEBMETHOD": (405, "This cannot be done here", "use a method that `Allow` names"),
    "WEBSLOW": (
        *(408, "The request did not come in time"),
        "send a body at once, or a smaller one",
    ),
    "WEBTOOLARGE": (
        *(413, "The request is too large"),
        "send less at a time; who runs the gateway can raise --body-bytes-max",
    ),
    "WEBMEDIA": (415, "The body must be JSON", "send Content-Type: application/json"),
    "WEBTOKEN": (
        *(409, "The token is none of this gateway's"),
        "send what was handed out as it came; all gateways of a pool need the same `signing`",
    ),
    "WEBWORKER": (
        *(410, "The worker has to register again"),
        "POST /v1/workers; what it runs goes on elsewhere",
    ),
    "WEBRATE": (429, "Too many requests", "ask again after `Retry-After` seconds, and less often"),
    "WEBBUSY": (
        *(503, "Too many wait already"),
        "ask without wait_s, after `Retry-After` seconds, or at another gateway",
    ),
    "WEBFAULT": (
        *(500, "The gateway has failed"),
        "look into the log of the gateway that `Pool-Gateway` names",
    ),
}


@attrs.frozen(eq=False)
class WebRefusal(Exception):
    """A request that is refused before the pool is asked.

    `facts` are what is known of it: the limit, what was sent, what is allowed; never a secret.
    """

    code: str
    detail: str
    hint: str = ""
    facts: ProblemFacts = attrs.field(factory=dict, kw_only=True)
    again_s: float | None = None
    allow: str = ""

    @property
    def status(self) -> int:
        """The status that it is."""
        return REFUSALS[self.code][0]


def status_of(kind: type[PoolError]) -> int:
    """Return the status of an error of ours."""
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


def problem_of(error: PoolError | WebRefusal) -> dict[str, Any]:
    """Return an error as it is told."""
    if isinstance(error, WebRefusal):
        status, title, hint = REFUSALS[error.code]
        facts = dict(error.facts)
        if error.again_s is not None:
            facts["again_s"] = round(error.again_s, 3)
        return _problem(status, title, error.detail, error.code, facts, error.hint or hint)
    status = status_of(type(error))
    if isinstance(error, errors.StoreUnavailable) and error.maybe_done:
        status = 504
    title = (type(error).__doc__ or error.code).splitlines()[0].rstrip(".")
    names = (each.name for each in attrs.fields(type(error)))
    facts = {name: _fact(getattr(error, name)) for name in names}
    return _problem(status, title, sentence(error), error.code, facts, error.hint_now)


def headers_of(error: PoolError | WebRefusal, status: int) -> dict[str, str]:
    """Return what stands beside it."""
    found = {}
    if isinstance(error, WebRefusal) and error.allow:
        found["Allow"] = error.allow
    if status == HTTPStatus.UNAUTHORIZED:
        found["WWW-Authenticate"] = "Bearer"
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        again_s = error.again_s if isinstance(error, WebRefusal) else None
        found["Retry-After"] = str(max(AGAIN_S, round(again_s or AGAIN_S)))
    return found


def _problem(
    status: int, title: str, detail: str, code: str, facts: dict[str, Any], hint: str
) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "facts": facts,
        "hint": hint,
    }


def _fact(fact: object) -> Any:
    if fact is None or type(fact) in (bool, int, float, str):
        return fact
    if type(fact) is tuple and {type(each) for each in fact} <= {str, int}:
        return list(fact)
    return shown(fact)


@attrs.frozen(kw_only=True)
class WebProblem:
    """What went wrong: our code, what it is about, what helps."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    facts: dict[str, Any]
    hint: str


@attrs.frozen(kw_only=True)
class JobTaken:
    """A job that was accepted, or the one that has this id."""

    key: str
    job_id: str
    handler: str


@attrs.frozen(kw_only=True)
class JobRefused:
    """A member of a batch that was refused."""

    key: str
    problem: WebProblem


@attrs.frozen(kw_only=True)
class JobSent:
    """What became of one of many jobs: it was accepted, or there is a problem."""

    key: str
    job_id: str = ""
    handler: str = ""
    problem: WebProblem | None = None


@attrs.frozen(kw_only=True)
class JobsTaken:
    """What became of each of many jobs, in their order."""

    accepted: int
    jobs: tuple[JobSent, ...]


@attrs.frozen(kw_only=True)
class JobState(Status):
    """A job; `result` is there if `has_result`, in base64 if its `encoding` says so.

    `result_problem` says why the result of a job that is done cannot be shown; else it is empty.
    """

    is_ended: bool
    has_result: bool = False
    encoding: Literal["json", "base64"] = "json"
    result: Any = None
    result_problem: str = ""


@attrs.frozen(kw_only=True)
class JobStop:
    """A stop that was asked for; `is_ended`: the job has."""

    key: str
    job_id: str
    is_ended: bool


@attrs.frozen(kw_only=True)
class Done:
    """It is done."""

    done: bool = True


@attrs.frozen(kw_only=True)
class BatchMade:
    """A batch that was sealed: the first `added` calls of the request are its members.

    Refused calls are members, too, and count as missing.  The answer to a repeated request names
    only the calls that were refused to that request; `GET` counts all as missing.  The answer to a
    request that repeats a sealed batch with fewer calls speaks of those calls only.
    """

    id: str
    added: int
    refused: tuple[JobRefused, ...]


@attrs.frozen(kw_only=True)
class ScheduleStates:
    """A page of schedules."""

    schedules: tuple[ScheduleState, ...]
    cursor: str
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class AskedTold:
    """What operators have asked for."""

    pauses: tuple[Pause, ...]
    cordons: tuple[Cordon, ...]


@attrs.frozen(kw_only=True)
class NodesTold:
    """The nodes of the pool; `unread` says what could not be read, and why."""

    nodes: tuple[NodeRow, ...]
    unread: tuple[str, ...]


@attrs.frozen(kw_only=True)
class WorkersTold:
    """Its workers, likewise."""

    workers: tuple[WorkerRow, ...]
    unread: tuple[str, ...]


@attrs.frozen(kw_only=True)
class FindingsTold:
    """What is wrong with the pool; `looked` of `jobs` records were walked over."""

    is_well: bool
    looked: int
    jobs: int
    findings: tuple[Finding, ...]


@attrs.frozen(kw_only=True)
class HealthTold:
    """How the gateway's node is, part by part."""

    ok: bool
    pid: int
    parts: dict[str, Any]
