"""Jobs, dead letters, batches and schedules: each call is one of the node's own."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs
from msgspec import UNSET

from pool import checks
from pool.core.times import At, Cron, Every, When
from pool.errors import InvalidOption, NotStopped, PayloadEncodingError, PoolError
from pool.jobs.client.dispatch import Call, Dispatching
from pool.jobs.client.listing import Gaps, JobFilter
from pool.jobs.client.ref import JobRef, Status, wait_stopped
from pool.jobs.followers import Follower
from pool.names import check_idempotency_key
from pool.ops import admin, browse
from pool.ops.jsonable import DeadLetter, ScheduleState, as_text, shown
from pool.ops.web.asked import WebAnswer, WebRequest
from pool.ops.web.bodies import (
    CallBody,
    EditBody,
    FollowerBody,
    JobBody,
    JobsBody,
    NotifyBody,
    ScheduleBody,
)
from pool.ops.web.problems import (
    BatchMade,
    Done,
    JobRefused,
    JobSent,
    JobsTaken,
    JobState,
    JobStop,
    JobTaken,
    ScheduleStates,
    WebProblem,
    WebRefusal,
    problem_of,
)

_REPEAT: Final = "idempotency-key"
_OCCURRENCE: Final = "\N{NUMERO SIGN}"  # no header has it: no other one becomes the same
_OPTIONS = (
    *("if_exists", "queue_max", "attach_any", "allow_unknown", "window_s"),
    *("retention_s", "expires_s", "start_timeout_s"),
)
_OF_SCHEDULES = (
    *("if_exists", "queue_max", "allow_unknown", "delay_s"),
    *("retention_s", "expires_s", "start_timeout_s"),
)
# What says when, and which others belong to it; what the calls name otherwise.
_FIRING: Final = {"misfire", "misfire_window_s", "jitter_s"}
_TIMING: Final[Mapping[str, set[str]]] = {
    "cron": {"tz", *_FIRING},
    "every_s": {"start", *_FIRING},
    "at": {"misfire_window_s"},
}
_NAMES: Final = {"misfire_window_s": "window_s"}


# --- dispatching ------------------------------------------------------------------------------


async def dispatch(asked: WebRequest) -> WebAnswer:
    """Dispatch a job, or many: each of these is accepted or refused by itself."""
    idempotency_key = asked.headers.get(_REPEAT)
    if isinstance(asked.body, JobsBody):
        return WebAnswer(told=await _dispatch_many(asked, asked.body.jobs, idempotency_key))
    body: JobBody = asked.body
    known = _known(body, idempotency_key, "", "$")
    args, kwargs = arguments(body)
    dispatching = _options(asked, body, **known)
    ref = await dispatching.dispatch(body.handler, body.key, *args, **kwargs)
    return WebAnswer(status=201, told=_taken(ref))


async def _dispatch_many(
    asked: WebRequest, jobs: Sequence[JobBody], idempotency_key: str | None
) -> JobsTaken:
    """Dispatch those that have the same handler and options in one call, all calls at once."""
    counts = Counter[str]()
    knowns = list[dict[str, Any]]()
    for place, body in enumerate(jobs):
        # Known by key, and not by its place: a part of the list may be sent again, in any order.
        suffix = f"{_OCCURRENCE}{counts[body.key]}" if counts[body.key] else ""
        counts[body.key] += 1
        knowns.append(_known(body, idempotency_key, suffix, f"$.jobs[{place}]"))
    answers: list[JobSent | None] = [None] * len(jobs)
    groups: dict[Any, list[tuple[int, Call]]] = defaultdict(list)
    samples: dict[Any, JobBody] = {}

    def refuse(place: int, error: PoolError) -> None:
        problem = WebProblem(**problem_of(error))
        answers[place] = JobSent(key=jobs[place].key, problem=problem)

    for place, body in enumerate(jobs):
        try:
            args, kwargs = arguments(body)
            call = Call(body.key, *args, **kwargs)
            call = call.identified(**knowns[place])
            same = (body.handler, body.delay_s, body.run_at, *(getattr(body, n) for n in _OPTIONS))
            if body.then or body.otherwise:
                same = (*same, place)
            samples.setdefault(same, body)
            groups[same].append((place, call))
        except PoolError as error:
            refuse(place, error)

    async def send(same: Any) -> None:
        body, places = samples[same], [place for place, _ in groups[same]]
        try:
            dispatching = _options(asked, body)
            told = await dispatching.dispatch_many(body.handler, [call for _, call in groups[same]])
        except PoolError as error:
            for place in places:
                refuse(place, error)
            return
        for place, each in zip(places, told, strict=True):
            if isinstance(each, PoolError):
                refuse(place, each)
            else:
                answers[place] = JobSent(key=each.key, job_id=each.job_id, handler=each.handler)

    async with anyio.create_task_group() as tasks:
        for same in groups:
            tasks.start_soon(send, same)
    told = tuple(each for each in answers if each is not None)
    return JobsTaken(accepted=sum(each.problem is None for each in told), jobs=told)


def _taken(ref: JobRef[Any]) -> JobTaken:
    return JobTaken(key=ref.key, job_id=ref.job_id, handler=ref.handler)


def _known(body: JobBody, header: str | None, suffix: str, at: str) -> dict[str, Any]:
    """Return by what a repeat is known: what the job says, or the header.

    Raises:
        WebRefusal: Both say something, and not the same; or with which job of its key it is the
            header is too long.
    """
    said = {"job_id": body.job_id, "idempotency_key": body.idempotency_key}
    if header is None:
        return said
    known = f"{header}{suffix}"
    others = [name for name, value in said.items() if value not in (None, known)]
    if body.job_id is not None or others:
        name = "job_id" if body.job_id is not None else others[0]
        detail = f"Idempotency-Key and {at}.{name}: by which of them is a repeat known?"
        facts = {"header": "Idempotency-Key", "value": header, "at": f"{at}.{name}"}
        raise WebRefusal("WEBREQUEST", detail, "send one of them", facts=facts)
    try:
        check_idempotency_key(known)
    except InvalidOption as error:
        detail = f"Idempotency-Key, of a key's second job or a later one: {error.problem}"
        facts = {"header": "Idempotency-Key", "value": known}
        raise WebRefusal("WEBREQUEST", detail, facts=facts) from None
    return {"job_id": None, "idempotency_key": known}


def _options(asked: WebRequest, body: JobBody, **known: Any) -> Dispatching:
    options = {name: getattr(body, name) for name in _OPTIONS}
    return asked.node.options(
        **options,
        **known,
        delay_s=_delay_s(asked, body),
        then=followers(body.then),
        otherwise=followers(body.otherwise),
    )


def _delay_s(asked: WebRequest, body: JobBody) -> float:
    """Return how long a job is to wait; until a time by the server's clock, not by ours."""
    if body.run_at is None:
        return body.delay_s
    if body.delay_s:
        raise checks.option("run_at", body.run_at.isoformat(), "beside delay_s: give one of them")
    context = asked.node._open_client().context
    at_ms = 1000 * body.run_at.timestamp()
    delay_s = max(0.0, context.lane_of(body.key).until_s(at_ms, context.io.clock()))
    if delay_s > checks.SECONDS_MAX:
        raise checks.option("run_at", body.run_at.isoformat(), "within 365 days from now")
    return delay_s


def arguments(body: CallBody | EditBody) -> tuple[list[Any], dict[str, Any]]:
    """Return what a call is given.

    Raises:
        InvalidOption: It is not in base64 as it says.
    """
    if body.encoding == "json":
        return body.args, body.kwargs
    if body.kwargs:
        must = "allowed with base64, of which the bytes are the only argument"
        raise checks.option("kwargs", ", ".join(body.kwargs), must)
    if len(body.args) != 1:
        raise checks.option("args", f"{len(body.args)} arguments", "one text in base64")
    return [from_base64("args", body.args[0])], {}


def from_base64(name: str, text: object) -> bytes:
    """Return what a text stands for.

    Raises:
        InvalidOption: For nothing.
    """
    try:
        return b64decode(checks.text(name, text), validate=True)
    except (binascii.Error, ValueError):
        raise checks.option(name, text, "a text in base64") from None


def followers(bodies: Sequence[FollowerBody]) -> list[Follower]:
    """Return what follows."""
    return [
        Follower(each.handler, each.key, *each.args, **each.kwargs).options(
            then=followers(each.then),
            otherwise=followers(each.otherwise),
            takes_result=each.takes_result,
            delay_s=each.delay_s,
        )
        for each in bodies
    ]


# --- jobs -------------------------------------------------------------------------------------


async def show(asked: WebRequest) -> JobState:
    """Tell how a job is; wait for its end if that is asked for.

    Raises:
        NoSuchJob, ...: As `JobRef.status`.
    """
    ref = await asked.node.job(asked.path["key"], asked.path.get("job_id"))
    result = dict[str, Any]()
    # It is asked for first: a job that ends meanwhile is told as ended, with its result.
    try:
        if asked.query.wait_s:
            with asked.waits.within(asked.query.wait_s):
                result = _result(await ref.result())
        else:
            result = _result(await ref.result(0))
    except PayloadEncodingError as error:
        result = {"result_problem": error.problem}
    except (TimeoutError, PoolError):
        pass  # the state below says the same
    return state_of(await ref.status(), result)


def state_of(status: Status, result: dict[str, Any]) -> JobState:
    """Return a job as it is told."""
    facts = {each.name: getattr(status, each.name) for each in attrs.fields(Status)}
    return JobState(**facts, is_ended=status.is_ended, **result)


def _result(value: Any) -> dict[str, Any]:
    text, encoding = as_text(value)
    return {"has_result": True, "encoding": encoding, "result": text}


async def find(asked: WebRequest) -> Any:
    """Tell a page of live jobs."""
    query = asked.query
    wanted = JobFilter(
        state=query.state,
        handler=query.handler,
        prefix=query.prefix,
        owner=query.owner,
        older_than_s=query.older_than_s,
    )
    gateway = asked.gateway
    return await browse.jobs(
        gateway.pipeline, await gateway.found(), wanted, cursor=query.cursor, page=query.page
    )


async def stop(asked: WebRequest) -> WebAnswer:
    """Ask a job to stop; tell whether it has ended already."""
    ref = await asked.node.job(asked.path["key"], asked.path.get("job_id"))
    try:
        await ref.stop(asked.body.cause, 0)
    except NotStopped:
        return _stop_told(ref, is_ended=False)
    return _stop_told(ref, is_ended=True)


async def stopped(asked: WebRequest, answered: WebAnswer) -> WebAnswer:
    """Wait for the end of a job that was asked to stop, if that is wanted."""
    told, wait_s = answered.told, asked.body.wait_s
    assert isinstance(told, JobStop)
    if told.is_ended or not wait_s:
        return answered
    ref = await asked.node.job(told.key, told.job_id)
    with asked.waits.within(), suppress(NotStopped):
        await wait_stopped(ref, wait_s, wait_s)
        answered = _stop_told(ref, is_ended=True)
    return answered


def _stop_told(ref: JobRef[Any], *, is_ended: bool) -> WebAnswer:
    told = JobStop(key=ref.key, job_id=ref.job_id, is_ended=is_ended)
    return WebAnswer(status=200 if is_ended else 202, told=told)


async def notify(asked: WebRequest) -> WebAnswer:
    """Send a message to the live job of a key."""
    body: NotifyBody = asked.body
    value = from_base64("value", body.value) if body.encoding == "base64" else body.value
    await asked.node.notify(asked.path["key"], value)
    return WebAnswer(status=202, told=Done())


async def requeue(asked: WebRequest) -> Any:
    """Have a job begin now that waits for its time."""
    return await admin.requeue(asked.node, asked.path["key"], asked.path.get("job_id"))


# --- dead letters -----------------------------------------------------------------------------


async def letters(asked: WebRequest) -> Any:
    """Tell a page of dead letters."""
    query = asked.query
    return await asked.node.parked.list(
        handler=query.handler,
        prefix=query.prefix,
        cause=query.cause,
        older_than_s=query.older_than_s,
        newer_than_s=query.newer_than_s,
        cursor=query.cursor,
        count=query.count,
        gaps=Gaps(),
    )


async def letter(asked: WebRequest) -> Any:
    """Tell a dead letter, with its arguments and tracebacks."""
    return DeadLetter.of(await asked.node.parked.show(asked.path["key"], asked.path["job_id"]))


async def replay(asked: WebRequest) -> WebAnswer:
    """Make a job of a dead letter again; a repeat tells the job that the first one made."""
    ref = await asked.node.parked.replay(asked.path["key"], asked.path["job_id"])
    return WebAnswer(status=201, told=_taken(ref))


async def edit(asked: WebRequest) -> Done:
    """Give a dead letter other arguments."""
    args, kwargs = arguments(asked.body)
    await asked.node.parked.edit(asked.path["key"], asked.path["job_id"], *args, **kwargs)
    return Done()


async def discard(asked: WebRequest) -> Done:
    """Throw a dead letter away."""
    await asked.node.parked.discard(asked.path["key"], asked.path["job_id"])
    return Done()


# --- batches ----------------------------------------------------------------------------------


async def make_batch(asked: WebRequest) -> WebAnswer:
    """Make a batch of all these jobs, and seal it."""
    body = asked.body
    calls = list[tuple[str, Call]]()
    for each in body.jobs:
        args, kwargs = arguments(each)
        calls.append((each.handler, Call(each.key, *args, **kwargs)))
    made = asked.node.batch(
        body.id,
        then=followers(body.then),
        otherwise=followers(body.otherwise),
        success_min=body.success_min,
        open_s=body.open_s,
        keep_s=body.keep_s,
    )
    refused = list[JobRefused]()
    async with made as batch:
        at = 0
        while at < len(calls):
            handler, some = calls[at][0], list[Call]()
            while at < len(calls) and calls[at][0] == handler:
                some.append(calls[at][1])
                at += 1
            refused += [
                JobRefused(key=each.key, problem=WebProblem(**problem_of(each.error)))
                for each in await batch.add(handler, some)
            ]
    told = BatchMade(id=body.id, added=made.added, refused=tuple(refused))
    return WebAnswer(status=201, told=told)


async def batches(asked: WebRequest) -> Any:
    """Tell the newest batches."""
    gaps = Gaps()
    found = await asked.node.batches.list(newest=asked.query.newest, gaps=gaps)
    return {"batches": found, "unread": gaps.unread}


async def batch(asked: WebRequest) -> Any:
    """Tell how a batch is; wait until it has settled if that is asked for."""
    ref = asked.node.batches.get(asked.path["batch"])
    if asked.query.wait_s:
        with suppress(TimeoutError), asked.waits.within():
            return await ref.wait(asked.query.wait_s)
    return await ref.status()


async def cancel_batch(asked: WebRequest) -> WebAnswer:
    """Have a batch take no more members, and stop those that it has."""
    await asked.node.batches.get(asked.path["batch"]).cancel(asked.body.cause)
    return WebAnswer(status=202, told=Done())


# --- schedules --------------------------------------------------------------------------------


async def keep_schedule(asked: WebRequest) -> ScheduleState:
    """Make a schedule, or change the one of this name."""
    body: ScheduleBody = asked.body
    args, kwargs = arguments(body)
    options = asked.node.options(
        **{name: getattr(body, name) for name in _OF_SCHEDULES},
        then=followers(body.then),
        otherwise=followers(body.otherwise),
    )
    name, kind = asked.path["schedule"], _kind(body)
    try:
        await options.schedule(name, _when(kind, body), body.handler, body.key, *args, **kwargs)
    except InvalidOption as error:
        if error.option != "when":
            raise
        raise attrs.evolve(error, option=kind) from None
    return ScheduleState.of(await asked.node.schedules.show(name))


def _kind(body: ScheduleBody) -> str:
    """Return the field that says when it fires."""
    kinds = [name for name in _TIMING if getattr(body, name) is not None]
    if len(kinds) != 1:
        told = " and ".join(kinds) or "neither"
        raise checks.option(kinds[-1] if kinds else "cron", told, "one of cron, every_s and at")
    return kinds[0]


def _when(kind: str, body: ScheduleBody) -> When:
    given = {name: getattr(body, name) for name in _TIMING["cron"] | _TIMING["every_s"]}
    given = {name: value for name, value in given.items() if value not in (None, UNSET)}
    for name in sorted(given.keys() - _TIMING[kind]):
        of = " and ".join(each for each in _TIMING if name in _TIMING[each])
        raise checks.option(name, given[name], f"left out beside {kind}: it is of {of}")
    firing: dict[str, Any] = {_NAMES.get(name, name): value for name, value in given.items()}
    if body.at is not None:
        return At(body.at, **firing)
    return Cron(body.cron, **firing) if body.cron else Every(body.every_s or 0, **firing)


async def schedules(asked: WebRequest) -> ScheduleStates:
    """Tell a page of schedules."""
    query = asked.query
    page = await asked.node.schedules.list(
        handler=query.handler,
        prefix=query.prefix,
        cursor=query.cursor,
        count=query.count,
        gaps=Gaps(),
    )
    return ScheduleStates(
        schedules=tuple(map(ScheduleState.of, page.schedules)),
        cursor=page.cursor,
        unread=page.unread,
    )


async def schedule(asked: WebRequest) -> ScheduleState:
    """Tell a schedule, with its next times."""
    return await shown(asked.node.schedules, asked.path["schedule"], asked.query.next)


async def pause_schedule(asked: WebRequest) -> Done:
    """Fire a schedule no more, until it is resumed."""
    await asked.node.schedules.pause(asked.path["schedule"])
    return Done()


async def resume_schedule(asked: WebRequest) -> Done:
    """Fire a paused schedule again, from now on."""
    await asked.node.schedules.resume(asked.path["schedule"])
    return Done()


async def trigger(asked: WebRequest) -> WebAnswer:
    """Make a job of a schedule now."""
    idempotency_key = asked.headers.get(_REPEAT)
    ref = await asked.node.schedules.trigger(
        asked.path["schedule"], idempotency_key=idempotency_key
    )
    return WebAnswer(status=201, told=_taken(ref))


async def remove_schedule(asked: WebRequest) -> Done:
    """Take a schedule away."""
    await asked.node.schedules.remove(asked.path["schedule"])
    return Done()
