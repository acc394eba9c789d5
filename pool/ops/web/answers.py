"""What is answered, where that is not what `pool/ops` reads; and all of it as JSON."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, Final, Literal

import attrs

from pool.core.pauses import Cordon, Pause
from pool.jobs.client.ref import Status
from pool.ops.findings import Finding
from pool.ops.members import NodeRow, WorkerRow
from pool.ops.schedules import ScheduleState

_DEPTH_MAX: Final = 200


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
    """A job; `result` is there if `has_result`, in base64 if its `encoding` says so."""

    is_ended: bool
    has_result: bool = False
    encoding: Literal["json", "base64"] = "json"
    result: Any = None


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
    """A batch that was sealed: `added` of what was sent are its members, by their places.

    Those of them that were refused are among these, and count as missing.  Sent again with fewer,
    of a batch that is sealed, it is told of these: `GET` tells of all.
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


# --- as JSON ----------------------------------------------------------------------------------


def as_json(value: object) -> bytes:
    """Return it as JSON: whatever stands in somebody's arguments, too."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_told(value, _DEPTH_MAX), separators=(",", ":")).encode()


def _plain(value: object) -> object:
    """Return what JSON has no form for, one level of it."""
    kind: type[Any] = type(value)
    if attrs.has(kind):
        names = (each.name for each in attrs.fields(kind))
        return {name: getattr(value, name) for name in names if not name.startswith("_")}
    match value:
        case bytes():
            return {"base64": b64encode(value).decode()}
        case datetime():
            return value.isoformat()
        case Mapping():
            return dict(value)
        case AbstractSet():
            return sorted(value, key=repr)
    return repr(value)


def _told(value: Any, depth: int) -> Any:
    """Return it in terms of JSON, whatever it is: names that are no text, no numbers, too deep."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {
            name if isinstance(name, str) else repr(name): _told(each, depth - 1)
            for name, each in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_told(each, depth - 1) for each in value]
    return _told(_plain(value), depth - 1)
