"""What is answered, where that is not what `pool/ops` reads."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from pool.core.pauses import Cordon, Pause
from pool.jobs.client.ref import Status
from pool.ops.findings import Finding
from pool.ops.members import NodeRow, WorkerRow
from pool.ops.schedules import ScheduleState


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
