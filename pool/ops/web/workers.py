"""Workers that poll: each call is one of `pool/jobs/remote`, with claims as signed tokens."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
import msgspec

from pool import checks
from pool.core.ids import member_name
from pool.core.record import Progress
from pool.errors import PoolError
from pool.jobs.remote.claims import (
    NUMBER,
    Beat,
    EndedJob,
    Failure,
    HandedOut,
    HandlerOffer,
    JobClaim,
    Lost,
    Polled,
    WorkerClaim,
)
from pool.jobs.remote.workers import RemoteWorkers
from pool.ops.jsonable import as_json
from pool.ops.web.asked import WebAnswer, WebRequest
from pool.ops.web.bodies import WAIT_S_MAX, BeatBody, OfferBody, ProgressBody, SaveBody
from pool.ops.web.jobs import from_base64
from pool.ops.web.problems import MEDIA_TYPE, WebProblem, WebRefusal, problem_of

EndJobs: TypeAlias = Callable[
    [WorkerClaim, Sequence[tuple[JobClaim, Any]]], Awaitable[Sequence[EndedJob]]
]
_WEB_OPTIONS = tuple(name for name in OfferBody.__struct_fields__ if name not in ("name", "kind"))

_NOT_OF: Final = {
    "job": {"healthy_s"},
    "service": {
        *("timeout_s", "progress_timeout_s", "park_on", "attempts_max"),
        *("expires_s", "start_timeout_s"),
    },
}


# --- what is told -----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class WorkerTold:
    """A worker that was registered: `token` comes with all that it asks."""

    worker: str
    token: str
    heartbeat_s: float
    expires_in_s: float
    poll_max_s: float = WAIT_S_MAX


@attrs.frozen(kw_only=True)
class JobHanded:
    """A job to be begun; `encoding` base64: its only argument is bytes, so written.

    `state_encoding` says the same of its state.
    `saves`: the number of the newest state that was saved with this token, or 0.
    """

    token: str
    key: str
    id: str
    handler: str
    kind: Literal["job", "service"]
    attempt: int
    epoch: int
    worker: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    encoding: Literal["json", "base64"]
    state: Any
    state_encoding: Literal["json", "base64"]
    saves: int
    is_recovered: bool
    timeout_s: float | None


@attrs.frozen(kw_only=True)
class StopTold:
    """A job that the worker shall end, and why.

    `stop`: somebody asked for it, `detail` says why; complete it, or give it back: it is cancelled.
    `release`: give it back, it goes on elsewhere.  `timeout`: it had its time; fail it or give
    it back, either uses an attempt up.
    """

    token: str
    reason: Literal["stop", "release", "timeout"]
    detail: str


@attrs.frozen(kw_only=True)
class MessageTold:
    """A message for a job; it comes again until it was seen.  `encoding` base64: it is bytes."""

    token: str
    id: str
    value: Any
    encoding: Literal["json", "base64"]


@attrs.frozen(kw_only=True)
class LostTold:
    """A job that is not this worker's any more: end it at once, and name it no more."""

    token: str
    reason: str


@attrs.frozen(kw_only=True)
class PollTold:
    """What a poll or a heartbeat answers; `expires_in_s` counts from when it was sent.

    Of `jobs` those that the worker has and did not name come in any case: who takes no more gives
    them back.  `drain`: end what runs, and leave.  `register_again`: what is lost is lost.
    """

    jobs: tuple[JobHanded, ...]
    stop: tuple[StopTold, ...]
    messages: tuple[MessageTold, ...]
    lost: tuple[LostTold, ...]
    drain: bool
    cordoned: bool
    register_again: bool
    heartbeat_s: float
    expires_in_s: float


@attrs.frozen(kw_only=True)
class EndTold:
    """What became of one job: an outcome, or why there is none; `in_s`: when it is tried again."""

    token: str
    outcome: (
        Literal["done", "repeated", "retried", "parked", "released", "cancelled", "saved"] | None
    ) = None
    in_s: float = 0.0
    problem: WebProblem | None = None


@attrs.frozen(kw_only=True)
class EndsTold:
    """What became of each."""

    jobs: tuple[EndTold, ...]


@attrs.frozen(kw_only=True)
class LeftTold:
    """How many jobs were given back."""

    released: int


# --- the calls --------------------------------------------------------------------------------


async def register(asked: WebRequest) -> WebAnswer:
    """Register a worker."""
    body, gateway = asked.body, asked.gateway
    offers = [_offer(each) for each in body.handlers]
    told = await (await _remote(asked)).register(
        offers,
        capacity=body.capacity,
        weight=body.weight,
        label=body.label,
        version=body.version,
        host=body.host,
        pid=body.pid,
    )
    return WebAnswer(
        status=201,
        told=WorkerTold(
            worker=told.claim.id,
            token=gateway.tokens.of_worker(told.claim),
            heartbeat_s=told.heartbeat_s,
            expires_in_s=told.expires_in_s,
        ),
    )


def _offer(each: str | OfferBody) -> HandlerOffer:
    if isinstance(each, str):
        return HandlerOffer.of(each)
    given = {name: getattr(each, name) for name in _WEB_OPTIONS}
    options = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    for name in sorted(options.keys() & _NOT_OF[each.kind]):
        raise checks.option(name, options[name], f"an option of a {each.kind}")
    return HandlerOffer.of(each.name, each.kind, **options)


async def poll(asked: WebRequest) -> PollTold:
    """Wait for jobs, and for what is to be told of those that are held."""
    body = asked.body
    claim, remote = _claim(asked), await _remote(asked)
    held, lost = _held(asked, claim, body.held)
    wait_s = 0.0 if asked.gateway.waits.is_closed else body.wait_s
    if lost:  # it should hear of that soon, and not ask for it without end
        wait_s = min(wait_s, remote.heartbeat_s)
    polled = list[Polled]()
    with asked.waits.within():
        polled.append(await remote.poll(claim, held, jobs_max=body.jobs_max, wait_s=wait_s))
    if not polled:  # the gateway is about to end: another one, or a later poll, hands jobs out
        polled.append(await remote.heartbeat(claim, held))
    return _told(asked, polled[0], lost)


async def heartbeat(asked: WebRequest) -> PollTold:
    """Renew the lease; tell what is to be told of the jobs that are held."""
    claim = _claim(asked)
    held, lost = _held(asked, claim, asked.body.held)
    return _told(asked, await (await _remote(asked)).heartbeat(claim, held), lost)


async def complete(asked: WebRequest) -> WebAnswer:
    """End jobs that are done."""

    async def end(claim: WorkerClaim, jobs: Sequence[tuple[JobClaim, Any]]) -> Sequence[EndedJob]:
        items = [(job, _value("result", each.result, each.encoding)) for job, each in jobs]
        return await (await _remote(asked)).complete(claim, items)

    return await _ended(asked, end)


async def fail(asked: WebRequest) -> WebAnswer:
    """End attempts that failed."""

    async def end(claim: WorkerClaim, jobs: Sequence[tuple[JobClaim, Any]]) -> Sequence[EndedJob]:
        items = [
            Failure(
                job=job,
                type=each.error.type,
                message=each.error.message,
                traceback=each.error.traceback,
                may_retry=each.retry,
                delay_s=each.delay_s,
            )
            for job, each in jobs
        ]
        return await (await _remote(asked)).fail(claim, items)

    return await _ended(asked, end)


async def release(asked: WebRequest) -> WebAnswer:
    """Give jobs back, so that they go on elsewhere."""

    async def end(claim: WorkerClaim, jobs: Sequence[tuple[JobClaim, Any]]) -> Sequence[EndedJob]:
        items = [(job, _value("state", each.state, each.encoding)) for job, each in jobs]
        return await (await _remote(asked)).release(claim, items)

    return await _ended(asked, end)


async def save(asked: WebRequest) -> WebAnswer:
    """Store the state of a job."""
    body: SaveBody = asked.body
    state = _value("state", body.state, body.encoding)
    claim = _claim(asked)
    job = _job(asked, claim, body.token)
    told = {"number": body.number, "seen": int(body.seen or 0)}
    ended = await (await _remote(asked)).save(claim, job, state, **told)
    return _answered([_end(body.token, ended)])


async def leave(asked: WebRequest) -> LeftTold:
    """Give back what a worker has, and have it leave."""
    return LeftTold(released=await (await _remote(asked)).leave(_claim(asked)))


# --- parts ------------------------------------------------------------------------------------


async def _remote(asked: WebRequest) -> RemoteWorkers:
    remote: RemoteWorkers = await asked.node._open_wiring.remote_workers()
    return remote


def _claim(asked: WebRequest) -> WorkerClaim:
    return asked.gateway.tokens.worker(asked.body.worker_token)


def _value(name: str, value: Any, encoding: str) -> Any:
    return from_base64(name, value) if encoding == "base64" else value


def _job(asked: WebRequest, claim: WorkerClaim, token: str) -> JobClaim:
    """Return of which job a token is.

    Raises:
        WebRefusal: Of none, or of one that another worker has: a client that had to register again.
    """
    job = asked.gateway.tokens.job(token)
    if job.worker != claim.id:
        hint = "end it: it goes on elsewhere"
        detail = f"the job was handed out to worker {job.worker}"
        raise WebRefusal("WEBTOKEN", detail, hint, facts={"worker": job.worker, "asks": claim.id})
    return job


def _progress(told: ProgressBody | None) -> Progress | None:
    if told is None:
        return None
    return Progress(done=told.done, total=told.total, note=told.note)


def _held(
    asked: WebRequest, claim: WorkerClaim, given: Sequence[str | BeatBody]
) -> tuple[list[JobClaim | Beat], list[LostTold]]:
    """Return what is held, and of what that cannot be said."""
    held, lost = list[JobClaim | Beat](), list[LostTold]()
    for each in given:
        token = each if isinstance(each, str) else each.token
        try:
            job = _job(asked, claim, token)
        except WebRefusal as refusal:
            lost.append(LostTold(token=token, reason=refusal.detail))
            continue
        if isinstance(each, str):
            held.append(job)
            continue
        held.append(Beat(job, _progress(each.progress), int(each.seen or 0)))
    return held, lost


def _told(asked: WebRequest, polled: Polled, lost: Sequence[LostTold]) -> PollTold:
    token = asked.gateway.tokens.of_job
    return PollTold(
        jobs=tuple(_handed(token(each.job), each) for each in polled.jobs),
        stop=tuple(
            StopTold(token=token(each.job), reason=each.reason, detail=each.detail)
            for each in polled.stop
        ),
        messages=tuple(
            _message(token(each.job), str(each.id), each.value) for each in polled.messages
        ),
        lost=(*lost, *(_lost(token, each) for each in polled.lost)),
        drain=polled.is_draining,
        cordoned=polled.is_cordoned,
        register_again=polled.register_again,
        heartbeat_s=polled.heartbeat_s,
        expires_in_s=polled.expires_in_s,
    )


def _lost(token: Callable[[JobClaim], str], each: Lost) -> LostTold:
    return LostTold(token=token(each.job), reason=each.reason)


def _as_told(value: Any) -> tuple[Any, Literal["json", "base64"]]:
    """Return a value as it is told, and how that is written."""
    return (b64encode(value).decode(), "base64") if isinstance(value, bytes) else (value, "json")


def _message(token: str, id_: str, value: Any) -> MessageTold:
    value, encoding = _as_told(value)
    return MessageTold(token=token, id=id_, value=value, encoding=encoding)


def _handed(token: str, each: HandedOut) -> JobHanded:
    args = tuple(each.args)
    encoding: Literal["json", "base64"] = "json"
    if len(args) == 1:
        arg, encoding = _as_told(args[0])
        args = (arg,)
    state, state_encoding = _as_told(each.state)
    return JobHanded(
        token=token,
        key=each.job.key,
        id=each.job.id,
        handler=each.job.handler,
        kind=each.job.kind,
        attempt=each.job.attempt,
        epoch=each.job.epoch,
        worker=member_name(each.job.worker, NUMBER),
        args=args,
        kwargs=dict(each.kwargs),
        encoding=encoding,
        state=state,
        state_encoding=state_encoding,
        saves=each.saves,
        is_recovered=each.is_recovered,
        timeout_s=each.timeout_s,
    )


async def _ended(asked: WebRequest, end: EndJobs) -> WebAnswer:
    """End those whose tokens are good, and tell of all in their order."""
    claim = _claim(asked)
    bodies = asked.body.jobs
    told: list[EndTold | None] = [None] * len(bodies)
    claims, places = list[tuple[JobClaim, Any]](), list[int]()
    for place, each in enumerate(bodies):
        try:
            claims.append((_job(asked, claim, each.token), each))
            places.append(place)
        except WebRefusal as refusal:
            told[place] = _problem(each.token, refusal)
    if claims:
        for place, ended in zip(places, await end(claim, claims), strict=True):
            told[place] = _end(bodies[place].token, ended)
    return _answered([each for each in told if each is not None])


def _end(token: str, ended: EndedJob) -> EndTold:
    if ended.error is not None:
        return _problem(token, ended.error)
    return EndTold(token=token, outcome=ended.outcome, in_s=ended.in_s)


def _problem(token: str, error: PoolError | WebRefusal) -> EndTold:
    return EndTold(token=token, problem=WebProblem(**problem_of(error)))


def _answered(told: Sequence[EndTold]) -> WebAnswer:
    """Tell it; where nothing was done at all, as the problem of the first."""
    problems = [each.problem for each in told if each.problem is not None]
    if len(problems) < len(told):
        return WebAnswer(told=EndsTold(jobs=tuple(told)))
    first = problems[0]
    assert first is not None
    facts = {**attrs.asdict(first), "jobs": tuple(told)}
    return WebAnswer(status=first.status, body=as_json(facts), media_type=MEDIA_TYPE)
