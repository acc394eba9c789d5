"""What goes wrong, as `application/problem+json`: our code, its facts, and what helps.

One table says which status each of our errors is; a class below one of them has its status.  What
is refused before the pool is asked has codes of its own (REFUSALS).
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import attrs

from pool import errors
from pool.errors import PoolError, sentence, shown

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
