"""JSON forms of what the gateway and the command line tell.

What the gateway and the command line tell, as JSON that every reader takes.

Arguments, results and states are whatever somebody has dispatched: bytes, sets, numbers that JSON
has no word for, keys that are no text.

The form of a dead letter on the command line and over HTTP.

A schedule as it is told, on the command line and over HTTP.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool.core.times import packed
from pool.errors import ConfigError
from pool.jobs.client.parked import ParkedJob
from pool.jobs.client.schedules import Schedule, Schedules

TextEncoding: TypeAlias = Literal["json", "base64"]
_DEPTH_MAX: Final = 200
_COMPACT: Final = (",", ":")


def as_text(value: Any) -> tuple[Any, TextEncoding]:
    """Return a value in terms of JSON, and how it is written there: bytes in base 64."""
    if isinstance(value, bytes):
        return b64encode(value).decode(), "base64"
    return value, "json"


def args_as_text(args: Sequence[Any]) -> tuple[tuple[Any, ...], TextEncoding]:
    """Return arguments by position in terms of JSON; bytes are the only one."""
    if len(args) != 1:
        return tuple(args), "json"
    arg, encoding = as_text(args[0])
    return (arg,), encoding


def as_json(value: object) -> bytes:
    """Return it as JSON: whatever stands in somebody's arguments, too."""
    return json_line(value, _COMPACT).encode()


def json_line(value: object, separators: tuple[str, str] = (", ", ": ")) -> str:
    """Return it as one line of JSON: whatever stands in somebody's arguments, too."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=separators)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_told(value, _DEPTH_MAX), separators=separators)


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


@attrs.frozen(kw_only=True)
class DeadLetter(ParkedJob):
    """A dead letter, with its history; `encoding` base64: its only argument is bytes, so written.

    `args` and `kwargs` are null where they cannot be read: they are `payload_bytes`, made by
    `codec`.
    """

    encoding: TextEncoding = "json"

    @classmethod
    def of(cls, job: ParkedJob) -> DeadLetter:
        """Return the form of a parked job."""
        facts = attrs.asdict(job, recurse=False)
        if job.args is not None:
            facts["args"], facts["encoding"] = args_as_text(job.args)
        return cls(**facts)


@attrs.frozen(kw_only=True)
class ScheduleState:
    """A schedule; `when` has one of `cron`, `every_s` and `at_ms`, with what belongs to it.

    Of its times `fired` have made jobs, `missed` none as nobody could fire them or as it was paused
    before their jitter was over, and `overlapped` none as their key had a job.  `next_at` is null
    while it is paused.  `args` and `kwargs` are null where they cannot be read: they are
    `payload_bytes`, made by `codec`.  `encoding` base64: the only argument is bytes, so written.
    Only a request for one schedule that is not paused has `next_times`; `note` says why they are
    no more than the first, if that is so.
    """

    name: str
    when: dict[str, Any]
    handler: str
    key: str
    is_paused: bool
    next_at: datetime | None
    last_at: datetime | None
    fired: int
    missed: int
    overlapped: int
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    payload_bytes: int = 0
    codec: str = ""
    encoding: TextEncoding = "json"
    next_times: tuple[datetime, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, found: Schedule) -> ScheduleState:
        """Return a schedule as it is told, without its next times."""
        facts: dict[str, Any] = attrs.asdict(found, recurse=False)
        facts["when"] = packed(found.when)
        if found.args is not None:
            facts["args"], facts["encoding"] = args_as_text(found.args)
        return cls(**facts)


async def shown(schedules: Schedules, name: str, count: int) -> ScheduleState:
    """Return a schedule with so many of its next times.

    Raises:
        PoolError: As `Schedules.show` and `next_times`.
    """
    state = ScheduleState.of(await schedules.show(name))
    if state.next_at is None:
        return state
    try:
        times = await schedules.next_times(name, count)
    except ConfigError as error:  # its time zone is not installed here
        return attrs.evolve(state, next_times=(state.next_at,), note=error.problem)
    return attrs.evolve(state, next_times=times)
