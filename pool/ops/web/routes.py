"""All that can be asked, as one table: routing, roles, OpenAPI and the reference are made of it.

`action` is what the journal says of who did it, written before it is done; `tells` names what of
the body stands beside that, and a handler and a key.  No arguments, payloads or results are told
there.  `run` does it; what then waits for it is `then`, so that who goes ends nothing but that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool import errors
from pool.errors import PoolError
from pool.jobs.client.batches import BatchStatus
from pool.jobs.client.parked import ParkedPage
from pool.jobs.client.pausing import CordonReport, PauseReport
from pool.names import check_batch, check_handler, check_job_id, check_key, check_schedule
from pool.ops.admin import JobsChanged
from pool.ops.browse import JobRows
from pool.ops.jsonable import DeadLetter, ScheduleState
from pool.ops.summary import PoolStatus
from pool.ops.web import bodies, jobs, looking, problems, workers
from pool.ops.web.access import Role
from pool.ops.web.asked import WebAnswer, WebRequest
from pool.ops.why import Why

Method: TypeAlias = Literal["POST", "GET", "PUT", "DELETE"]
Endpoint: TypeAlias = Callable[[WebRequest], Awaitable[Any]]
Then: TypeAlias = Callable[[WebRequest, WebAnswer], Awaitable[WebAnswer]]
Repeats: TypeAlias = Literal["same", "known", "again"]

STORE: Final = (errors.StoreUnavailable, errors.StoreLost, errors.NotRunning)
ADMITTED: Final = (
    *(errors.UnknownHandler, errors.WrongArguments, errors.PayloadEncodingError),
    *(errors.PayloadTooLarge, errors.JobExists, errors.JobStopping, errors.ArgumentsDiffer),
    *(errors.IdempotencyConflict, errors.QueueFull, errors.PoolFull, errors.StorageFull),
)


_NAME_IT: Final = "name the job by its id: /v1/jobs/{key}/{job_id}/..."


@attrs.frozen(kw_only=True)
class WebRoute:
    """One thing that can be asked; `role` None: by anybody.

    `repeats` is what becomes of one that is sent again: the `same`, so it does no harm; the same if
    it is `known` by its Idempotency-Key; or it is done `again`, and such a header is refused.
    """

    method: Method
    path: str
    role: Role | None
    does: str
    run: Endpoint
    body: tuple[type[bodies.Sent], ...] = ()
    query: type[bodies.Sent] | None = None
    answer: Any = None  # the type of what is told; None: it is no JSON
    status: int = 200
    also: Mapping[int, Any] = attrs.field(factory=dict)  # other answers that are no problems
    media_type: str = "application/json"
    may: Sequence[type[PoolError]] = ()
    action: str = ""
    tells: Sequence[str] = ()
    headers: Sequence[str] = ()
    group: str = "jobs"
    waits: bool = False  # it may take long, and changes nothing: it ends when who asked is gone
    then: Then | None = None
    repeats: Repeats = "same"
    repeat_hint: str = ""

    @property
    def parts(self) -> int:
        """How many parts of its path may be anything."""
        return self.path.count("{")

    @property
    def name(self) -> str:
        """Its name, as generated clients call it."""
        words = [self.method.lower(), *self.path.strip("/").removeprefix("v1/").split("/")]
        return "_".join(word.strip("{}") for word in words)


# What a part of a path is called, and what refuses it.
PATH_CHECKS: Final[Mapping[str, Callable[[object], None]]] = {
    "key": check_key,
    "job_id": check_job_id,
    "batch": check_batch,
    "schedule": check_schedule,
    "member": check_handler,
}


@attrs.frozen(kw_only=True)
class BatchList:
    """The newest batches."""

    batches: tuple[BatchStatus, ...]
    unread: tuple[str, ...] = ()


def _jobs() -> list[WebRoute]:
    one = (errors.NoSuchJob, errors.JobLost, *STORE)
    found = [
        WebRoute(
            method="POST",
            path="/v1/jobs",
            role="operate",
            does="Dispatch a job, or up to 1,000 of them.",
            run=jobs.dispatch,
            body=(bodies.JobBody, bodies.JobsBody),
            answer=problems.JobTaken,
            status=201,
            also={200: problems.JobsTaken},
            may=(*ADMITTED, *STORE),
            action="dispatch",
            headers=("Idempotency-Key",),
            repeats="known",
        ),
        WebRoute(
            method="GET",
            path="/v1/jobs",
            role="read",
            does="Look through live jobs, a page at a time.",
            run=jobs.find,
            query=bodies.JobsQuery,
            answer=JobRows,
            may=STORE,
        ),
    ]
    for path in ("/v1/jobs/{key}", "/v1/jobs/{key}/{job_id}"):
        is_named = path.endswith("{job_id}")
        of = "a job" if is_named else "a key's live job"
        # Sent again it may be about the next job of the key.
        make = WebRoute if is_named else partial(WebRoute, repeats="again", repeat_hint=_NAME_IT)
        found += [
            WebRoute(
                method="GET",
                path=path,
                role="read",
                does=f"Tell how {of} is, and its result; with `wait_s` once it has ended.",
                run=jobs.show,
                query=bodies.JobQuery,
                answer=problems.JobState,
                waits=True,
                may=one,
            ),
            make(
                method="POST",
                path=f"{path}/stop",
                role="operate",
                does=f"Stop {of}; 202: it has not ended yet.",
                run=jobs.stop,
                body=(bodies.StopBody,),
                answer=problems.JobStop,
                also={202: problems.JobStop},
                then=jobs.stopped,
                may=one,
                action="stop",
                tells=("cause",),
            ),
            make(
                method="POST",
                path=f"{path}/requeue",
                role="operate",
                does=f"Have {of} begin now that waits for its delay or its next attempt.",
                run=jobs.requeue,
                body=(bodies.Nothing,),
                answer=JobsChanged,
                may=(*one, errors.JobExists, errors.NotWaiting),
                action="requeue",
            ),
        ]
    found.append(
        WebRoute(
            method="POST",
            path="/v1/jobs/{key}/notify",
            role="operate",
            does="Send a message to the live job of a key.",
            run=jobs.notify,
            body=(bodies.NotifyBody,),
            answer=problems.Done,
            status=202,
            may=(*one, errors.InboxFull, errors.PayloadTooLarge, errors.PayloadEncodingError),
            action="notify",
            repeats="again",
            repeat_hint="have the message say which it is, and the handler know those that it had",
        )
    )
    return found


def _letters() -> list[WebRoute]:
    one, path = (errors.NoSuchLetter, *STORE), "/v1/parked/{key}/{job_id}"
    make = partial(WebRoute, group="parked")
    return [
        make(
            method="GET",
            path="/v1/parked",
            role="read",
            does="Look through dead letters, a page at a time.",
            run=jobs.letters,
            query=bodies.LettersQuery,
            answer=ParkedPage,
            may=STORE,
        ),
        make(
            method="GET",
            path=path,
            role="read",
            does="Tell a dead letter, with its arguments and tracebacks.",
            run=jobs.letter,
            answer=DeadLetter,
            may=one,
        ),
        make(
            method="PUT",
            path=path,
            role="operate",
            does="Give a dead letter other arguments, for when it is replayed.",
            run=jobs.edit,
            body=(bodies.EditBody,),
            answer=problems.Done,
            may=(
                *(*one, errors.WrongArguments, errors.CodecMissing),
                *(errors.PayloadEncodingError, errors.PayloadTooLarge, errors.StorageFull),
            ),
            action="edit",
            tells=("names",),
        ),
        make(
            method="POST",
            path=f"{path}/replay",
            role="operate",
            does="Make a job of a dead letter again; a repeat tells the job of the first one.",
            run=jobs.replay,
            body=(bodies.Nothing,),
            answer=problems.JobTaken,
            status=201,
            may=(*one, errors.JobExists, errors.PoolFull, errors.UnknownHandler),
            action="replay",
        ),
        make(
            method="DELETE",
            path=path,
            role="admin",
            does="Throw a dead letter away.",
            run=jobs.discard,
            answer=problems.Done,
            may=one,
            action="discard",
        ),
    ]


def _batches() -> list[WebRoute]:
    one, path = (errors.NoSuchBatch, *STORE), "/v1/batches/{batch}"
    make = partial(WebRoute, group="batches")
    return [
        make(
            method="POST",
            path="/v1/batches",
            role="operate",
            does="Make a batch of up to 10,000 jobs; sent again it goes on where it was.",
            run=jobs.make_batch,
            body=(bodies.BatchBody,),
            answer=problems.BatchMade,
            status=201,
            may=(
                *(*one, errors.BatchSealed, errors.BatchDiffers, errors.BatchTooLarge),
                *(errors.WrongArguments, errors.PayloadEncodingError, errors.PayloadTooLarge),
                errors.StorageFull,
            ),
            action="batch",
            tells=("id", "members"),
        ),
        make(
            method="GET",
            path="/v1/batches",
            role="read",
            does="Tell the newest batches.",
            run=jobs.batches,
            query=bodies.BatchesQuery,
            answer=BatchList,
            may=STORE,
        ),
        make(
            method="GET",
            path=path,
            role="read",
            does="Tell how a batch is; with `wait_s` once it has settled.",
            run=jobs.batch,
            query=bodies.JobQuery,
            answer=BatchStatus,
            waits=True,
            may=one,
        ),
        make(
            method="POST",
            path=f"{path}/cancel",
            role="operate",
            does="Have a batch take no more members, and stop those that it has.",
            run=jobs.cancel_batch,
            body=(bodies.CancelBody,),
            answer=problems.Done,
            status=202,
            may=one,
            action="cancel",
            tells=("cause",),
        ),
    ]


def _schedules() -> list[WebRoute]:
    one, path = (errors.NoSuchSchedule, *STORE), "/v1/schedules/{schedule}"
    make = partial(WebRoute, group="schedules")
    return [
        make(
            method="GET",
            path="/v1/schedules",
            role="read",
            does="Look through schedules, a page at a time.",
            run=jobs.schedules,
            query=bodies.SchedulesQuery,
            answer=problems.ScheduleStates,
            may=STORE,
        ),
        make(
            method="PUT",
            path=path,
            role="operate",
            does="Make a schedule, or change the one of this name.",
            run=jobs.keep_schedule,
            body=(bodies.ScheduleBody,),
            answer=ScheduleState,
            may=(
                *(*one, errors.UnknownHandler, errors.WrongArguments),
                *(errors.PayloadEncodingError, errors.PayloadTooLarge, errors.StorageFull),
            ),
            action="schedule",
            tells=("cron", "tz", "every_s", "start", "at"),
        ),
        make(
            method="GET",
            path=path,
            role="read",
            does="Tell a schedule, with its next times.",
            run=jobs.schedule,
            query=bodies.NextQuery,
            answer=ScheduleState,
            may=one,
        ),
        make(
            method="POST",
            path=f"{path}/pause",
            role="operate",
            does="Fire a schedule no more, until it is resumed.",
            run=jobs.pause_schedule,
            body=(bodies.Nothing,),
            answer=problems.Done,
            may=one,
            action="schedule.pause",
        ),
        make(
            method="POST",
            path=f"{path}/resume",
            role="operate",
            does="Fire a paused schedule again, from now on.",
            run=jobs.resume_schedule,
            body=(bodies.Nothing,),
            answer=problems.Done,
            may=one,
            action="schedule.resume",
        ),
        make(
            method="POST",
            path=f"{path}/trigger",
            role="operate",
            does="Make a job of a schedule now, beside its times.",
            run=jobs.trigger,
            body=(bodies.Nothing,),
            answer=problems.JobTaken,
            status=201,
            may=(*one, *ADMITTED),
            action="schedule.trigger",
            headers=("Idempotency-Key",),
            repeats="known",
        ),
        make(
            method="DELETE",
            path=path,
            role="admin",
            does="Take a schedule away; jobs that it has made stay.",
            run=jobs.remove_schedule,
            answer=problems.Done,
            may=one,
            action="schedule.remove",
        ),
    ]


def _operating() -> list[WebRoute]:
    make = partial(WebRoute, group="operating")
    found = [
        make(
            method="POST",
            path="/v1/pause",
            role="admin",
            does="Give no more jobs to workers: of a handler, a key, or (`all`) the whole pool.",
            run=looking.pause,
            body=(bodies.PauseBody,),
            answer=PauseReport,
            may=(errors.TooManyPaused, *STORE),
            action="pause",
            tells=("all", "reason"),
        ),
        make(
            method="POST",
            path="/v1/resume",
            role="admin",
            does="Give them to workers again.",
            run=looking.resume,
            body=(bodies.ResumeBody,),
            answer=PauseReport,
            may=STORE,
            action="resume",
            tells=("all",),
        ),
        make(
            method="GET",
            path="/v1/pauses",
            role="read",
            does="Tell what is paused, and who is cordoned.",
            run=looking.asked_for,
            answer=problems.AskedTold,
            may=STORE,
        ),
        make(
            method="GET",
            path="/v1/nodes",
            role="read",
            does="Tell the nodes of the pool.",
            run=looking.nodes,
            answer=problems.NodesTold,
            may=STORE,
        ),
        make(
            method="GET",
            path="/v1/workers",
            role="read",
            does="Tell the workers of the pool, those over HTTP among them.",
            run=looking.workers,
            answer=problems.WorkersTold,
            may=STORE,
        ),
    ]
    one = (errors.NoSuchMember, *STORE)
    verbs: tuple[tuple[str, Endpoint, Any, str], ...] = (
        ("cordon", looking.cordon, bodies.CordonBody, "take no more jobs, and keep those it has"),
        ("uncordon", looking.uncordon, bodies.UncordonBody, "take jobs again"),
        ("drain", looking.drain, bodies.CordonBody, "give up what it has in order, and leave"),
    )
    for of in ("nodes", "workers"):
        found += [
            make(
                method="POST",
                path=f"/v1/{of}/{{member}}/{verb}",
                role="admin",
                does=f"Have a {of.removesuffix('s')} {does}.",
                run=run,
                body=(body,),
                answer=CordonReport,
                may=one,
                action=verb,
                tells=("reason",),
                then=looking.heard,
            )
            for verb, run, body, does in verbs
        ]
    return found


def _workers() -> list[WebRoute]:
    one = (errors.WorkerGone, errors.WrongClaim, errors.ClaimRefused, *STORE)
    ended = (*one, errors.PayloadEncodingError, errors.PayloadTooLarge, errors.StorageFull)
    rows: tuple[tuple[str, Endpoint, Any, Any, Sequence[type[PoolError]], str], ...] = (
        (
            "/poll",
            workers.poll,
            bodies.PollBody,
            workers.PollTold,
            one,
            "Wait for jobs, and for what is to be told of those that are held; renews the lease.",
        ),
        (
            "/heartbeat",
            workers.heartbeat,
            bodies.HeartbeatBody,
            workers.PollTold,
            one,
            "Renew the lease of a worker that takes no more; not while a poll is open.",
        ),
        (
            "/complete",
            workers.complete,
            bodies.CompleteBody,
            workers.EndsTold,
            ended,
            "End jobs that are done; a repeat is told as one.",
        ),
        (
            "/fail",
            workers.fail,
            bodies.FailBody,
            workers.EndsTold,
            ended,
            "End attempts that failed: another one follows, or the job is parked.",
        ),
        (
            "/release",
            workers.release,
            bodies.ReleaseBody,
            workers.EndsTold,
            ended,
            "Give jobs back, so that they go on elsewhere; one that was to stop has ended by that.",
        ),
        (
            "/save",
            workers.save,
            bodies.SaveBody,
            workers.EndsTold,
            ended,
            "Store the state of a job, from which it goes on after a crash.",
        ),
        (
            "/leave",
            workers.leave,
            bodies.OfWorker,
            workers.LeftTold,
            one,
            "Give back what a worker has, and have it leave.",
        ),
    )
    make = partial(WebRoute, method="POST", group="workers", role="worker")
    return [
        make(
            path="/v1/workers",
            does="Register a worker; its token comes with all that it asks from then on.",
            run=workers.register,
            body=(bodies.RegisterBody,),
            answer=workers.WorkerTold,
            status=201,
            may=(errors.DuplicateHandler, errors.StorageFull, *STORE),
            repeats="again",
            repeat_hint="register without it: a worker that nobody polls for goes with its lease",
        ),
        *(
            make(
                path=f"/v1/workers{path}",
                does=does,
                run=run,
                body=(body,),
                answer=answer,
                may=may,
                waits=path == "/poll",
            )
            for path, run, body, answer, may, does in rows
        ),
    ]


def _looking() -> list[WebRoute]:
    make = partial(WebRoute, group="looking")
    return [
        make(
            method="GET",
            path="/v1/status",
            role="read",
            does="Tell the pool at a glance.",
            run=looking.status,
            answer=PoolStatus,
            may=STORE,
        ),
        make(
            method="GET",
            path="/v1/findings",
            role="read",
            does="Say what is wrong with the pool, and what mends it.",
            run=looking.findings,
            query=bodies.FindingsQuery,
            answer=problems.FindingsTold,
            may=STORE,
        ),
        make(
            method="GET",
            path="/v1/why/{key}",
            role="read",
            does="Say why a key is as it is, and what helps.",
            run=looking.explain,
            query=bodies.WhyQuery,
            answer=Why,
            may=(errors.NoSuchJob, *STORE),
        ),
        make(
            method="GET",
            path="/v1/events",
            role="read",
            does="Tell the journal as server-sent events; `Last-Event-ID` goes on behind one.",
            run=looking.events,
            query=bodies.EventsQuery,
            media_type=looking.EVENT_STREAM,
            may=STORE,
            headers=("Last-Event-ID",),
        ),
    ]


def _health() -> list[WebRoute]:
    make = partial(WebRoute, method="GET", group="health")

    def live(what: str) -> WebRoute:
        return make(
            path=f"/{what}",
            role=None,
            does={"live": "Whether it is to be left alone.", "ready": "Whether it can serve."}[
                what
            ],
            run=partial(looking.health, f"/{what}"),
            answer=problems.HealthTold,
            also={503: problems.HealthTold},
        )

    return [
        live("live"),
        live("ready"),
        make(
            path="/metrics",
            role="read",
            does="The figures of this process, for Prometheus.",
            run=partial(looking.health, "/metrics"),
            media_type="text/plain",
        ),
    ]


ROUTES: Final[Sequence[WebRoute]] = (
    *_jobs(),
    *_letters(),
    *_batches(),
    *_schedules(),
    *_operating(),
    *_workers(),
    *_looking(),
    *_health(),
)
