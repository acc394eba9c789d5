"""Every argument of every public call, given what it cannot be: a typed error at once.

The calls are enumerated from the public modules and from what those return: a new one, or a new
argument of one, fails here until its row says what it takes.  At once means in the call's first
step, before it could wait for anything; and nothing was given to a pipeline to send.
"""

from __future__ import annotations

import inspect
import os
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs
import pytest

import pool
import pool.batches
import pool.letters
import pool.maps
import pool.pauses
import pool.plans
import pool.schedules
import pool.streams
import pool.sync
from pool import (
    Call,
    Follower,
    Handlers,
    Job,
    JobRef,
    Node,
    PoolError,
    ReplicatedMap,
    Settings,
)
from pool.errors import PayloadTooLarge, UsageError
from pool.events import ActorCrashed
from pool.jobs.client.dispatch import Dispatching
from pool.maps import Position
from pool.pauses import Operating
from pool.redis.pipeline import Pipeline
from pool.schedules import Every
from pool.streams import StreamEvent
from pool.streams.commands import Parked
from pool.testing import make_job

if TYPE_CHECKING:
    from tests.nodes import Fleet

handlers = Handlers()
TEXT_MAX = 1000  # characters of an error's text


@handlers.job("echo")
async def echo(job: Job, /, value: Any = None, **more: Any) -> Any:
    return value


# --- what there is ------------------------------------------------------------------------------


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HOMES = (
    pool,
    pool.batches,
    pool.letters,
    pool.maps,
    pool.pauses,
    pool.plans,
    pool.schedules,
    pool.streams,
    pool.sync,
)

# Made by the library: who makes one by hand is not listened to.
MADE_HERE = words(
    "Change Counted Event EventSource Handler Job JobRef LocalWorker Parked Position Reader "
    "Resized Resync Sink Status Snapshot Stream StreamEvent Watch WorkerInfo Written Dispatching "
    "Options _Decorator ReplicatedMap Attempt DeadLetters ManyReplayed ParkedJob ParkedPage Step "
    "Progress JobPage StopReport Result Stage Ref Letters MapReader Schedule ScheduleList "
    "BlockingBatch BlockingBatchRef BlockingBatches BlockingSchedules "
    "Journal JournalEntry "
    "PlanRef PlanStatus PlanDiff PlanTurn "
    "Pause PauseReport Cordon CordonReport Operating "
    "Batch BatchRef BatchStatus Batches Member Members Refused Schedules TickInfo Ticker"
)
# What Python itself calls, and with what; and what is written by users, not by us.
PYTHONS_OWN = words(
    "__aenter__ __aexit__ __enter__ __exit__ __aiter__ __anext__ __iter__ __next__ "
    "__len__ __repr__ __str__ __eq__ __ne__ __hash__ __lt__ __le__ __gt__ __ge__ "
    "__attrs_post_init__ __getstate__ __setstate__ __replace__ __init_subclass__ "
    "__attrs_init__ __setattr__ __delattr__ __class_getitem__ __new__ __subclasshook__ "
    "__getattr__"
)
USERS_OWN = frozenset({"Runner", "Event"})
# As of a dict: what cannot be a key of it is not in it, or has Python's own error.
OF_A_DICT = frozenset({"Handlers.__getitem__", "Handlers.__contains__", "Handlers.get"})
# Of the library's own parts, which are public in Python's sense only.
INNER = words("Handler.__call__ log_observer Progress.parse Pause.of")


def classes() -> Iterator[type]:
    """What `pool` exports, and what its calls return."""
    waiting: list[Any] = [getattr(home, name) for home in HOMES for name in home.__all__]
    seen: set[type] = set()
    while waiting:
        found = waiting.pop()
        found = typing.get_origin(found) or found
        if not isinstance(found, type) or found in seen or issubclass(found, PoolError):
            continue
        if not found.__module__.startswith("pool."):
            continue
        seen.add(found)
        yield found
        for name, member in members(found):
            if f"{found.__name__}.{name}" in INNER:
                continue
            try:
                answer = typing.get_type_hints(member).get("return")
            except (NameError, TypeError, AttributeError):
                continue
            waiting += [answer, *typing.get_args(answer)]


def members(found: type) -> Iterator[tuple[str, Any]]:
    names = dict.fromkeys(
        name for base in found.__mro__ if base.__module__.startswith("pool.") for name in vars(base)
    )
    for name in names:
        if name in PYTHONS_OWN or (name.startswith("_") and not name.startswith("__")):
            continue
        raw = inspect.getattr_static(found, name)
        if isinstance(raw, property):
            if raw.fset is not None:
                yield name, raw.fset
        elif isinstance(raw, (classmethod, staticmethod)) or inspect.isfunction(raw):
            yield name, inspect.unwrap(getattr(found, name))


def arguments() -> dict[str, list[inspect.Parameter]]:
    """The arguments of every public call, by its name."""
    calls = {name: getattr(pool, name) for name in pool.__all__}
    calls = {name: found for name, found in calls.items() if inspect.isfunction(found)}
    for each in classes():
        for name, member in members(each):
            inherited = each is Node and name not in vars(Node)
            is_made_here = name == "__init__" and each.__name__ in MADE_HERE
            if each.__name__ not in USERS_OWN and not is_made_here and not inherited:
                calls[f"{each.__name__}.{name}"] = member
    found = {
        call: [
            each
            for each in inspect.signature(member).parameters.values()
            # Of the simulation, and of the command line.
            if each.name not in ("self", "cls", "_io", "_is_operator")
        ]
        for call, member in calls.items()
        if call not in INNER | OF_A_DICT
    }
    return {call: parameters for call, parameters in found.items() if parameters}


# --- what is given ------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class OldColour(str, Enum):  # noqa: UP042 - as people had it before
    RED = "red"


class Level(IntEnum):
    SEVEN = 7


class Angry(Exception):
    """Raised by whatever is asked of what is hostile: nobody shall see it."""


def _angry(*_: Any, **__: Any) -> Any:
    raise Angry


_ASKED = words(
    "__repr__ __str__ __format__ __eq__ __ne__ __hash__ __bool__ __len__ __iter__ "
    "__contains__ __lt__ __le__ __gt__ __ge__ __getitem__ __getattr__ __round__ __mul__ "
    "__rmul__ __add__"
)
_HOSTILE: dict[str, Any] = {**dict.fromkeys(_ASKED, _angry), "__class__": property(_angry)}
Hostile = type("Hostile", (), dict(_HOSTILE))
HostileText = type(
    "HostileText", (str,), {**_HOSTILE, "encode": _angry, "isascii": _angry, "partition": _angry}
)
HostileInt = type("HostileInt", (int,), {**_HOSTILE, "__int__": _angry, "__index__": _angry})
HostileFloat = type("HostileFloat", (float,), {**_HOSTILE, "__float__": _angry})
HostileFunction = type(
    "HostileFunction", (), {**_HOSTILE, "__getattribute__": _angry, "__call__": _angry}
)
LongName = type("L" * 5000, (), {"__repr__": lambda _: "r" * 10**7})


def plain(*_: Any) -> None: ...


async def waits(*_: Any) -> None: ...


def generator() -> Iterator[None]:
    yield


ODD: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "-1": -1,
    "2": 2,
    "-0.0": -0.0,
    "1.5": 1.5,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "10**5000": 10**5000,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "5e-324": 5e-324,
    "Decimal": Decimal(1),
    "Fraction": Fraction(1, 2),
    "1j": 1j,
    "timedelta": timedelta(seconds=1),
    "datetime": datetime(2026, 1, 1),  # noqa: DTZ001 - without a zone
    "''": "",
    "'x'": "x",
    "64 KiB": "x" * 65_536,
    "surrogate": "\ud800",
    "control": "a\x00",
    "b''": b"",
    "b'x'": b"x",
    "bytearray": bytearray(b"x"),
    "[]": [],
    "[None]": [None],
    "['x']": ["x"],
    "()": (),
    "{}": {},
    "{1: 2}": {1: 2},
    "{'x': 'x'}": {"x": "x"},
    "set": {"x"},
    "object": object(),
    "type": int,
    "function": plain,
    "async function": waits,
    "generator": generator(),
    "exception": ValueError("x"),
    "StrEnum": Colour.RED,
    "str, Enum": OldColour.RED,
    "IntEnum": Level.SEVEN,
    "hostile": Hostile(),
    "hostile text": HostileText("x"),
    "hostile int": HostileInt(10**400),
    "hostile float": HostileFloat("nan"),
    "hostile function": HostileFunction(),
    "long name": LongName(),
    "long list": [LongName()] * 1000,
}


# --- what is taken ------------------------------------------------------------------------------


@attrs.frozen
class Takes:
    """What an argument takes."""

    good: Any  # a value, or what makes one of the `Things`
    takes: frozenset[str] = frozenset()  # of the odd values
    said: str = ""  # how the error calls it, if not as the argument is called

    def or_none(self) -> Takes:
        return attrs.evolve(self, takes=self.takes | {"None"})

    def called(self, said: str) -> Takes:
        return attrs.evolve(self, said=said)

    def but(self, *names: str) -> Takes:
        return attrs.evolve(self, takes=self.takes - {*names})

    def also(self, *names: str) -> Takes:
        return attrs.evolve(self, takes=self.takes | {*names})

    def like(self, good: Any) -> Takes:
        return attrs.evolve(self, good=good)


def taking(good: Any, *names: str) -> Takes:
    assert set(names) <= ODD.keys()
    return Takes(good, frozenset(names))


def within(low: float, high: float, *, whole: bool = False, good: Any = None) -> Takes:
    kinds = (int, IntEnum) if whole else (int, IntEnum, float)
    fits = (
        name
        for name, value in ODD.items()
        if name not in ("True", "False")
        and type(value) in (*kinds, Level)
        and low <= value <= high
        and not (whole and type(value) is float)
    )
    return taking(low if good is None else good, *fits)


ANY = Takes("x", frozenset(ODD))
YEAR_S = 365 * 86_400.0


def setting(field: attrs.Attribute[Any]) -> Takes:
    meta = field.metadata
    if "low" not in meta:
        return taking(field.default)
    takes = within(meta["low"], meta["high"], whole=meta["whole"])
    return takes.or_none() if field.default is None else takes


NAME = taking("x", "'x'")
KEY = NAME.called("key")
POOL = NAME.called("pool")
LABEL = taking("", "''", "'x'")
URL = taking("redis://localhost")
FLAG = taking(False, "True", "False")
TEXT = taking("why", *(name for name, value in ODD.items() if type(value) is str))
TIMEOUT = within(0.0, YEAR_S).or_none()
BACKOFF = within(0.001, YEAR_S, good=1.0)
FUNCTION = taking(plain, "function", "async function", "type")
# It is looked at where a handler needs it.
HOSTILE_TOO = taking(plain, "function", "async function", "type", "hostile function")
WHERE = taking(None, "None", "function", "type", "hostile function")
JSON = taking(
    1,
    *("None", "True", "False", "0", "-1", "2", "-0.0", "1.5", "10**400", "-10**400", "5e-324"),
    *("''", "'x'", "64 KiB", "control", "b''", "b'x'", "[]", "[None]", "['x']", "()", "{}"),
    *("{'x': 'x'}", "StrEnum", "str, Enum", "IntEnum", "hostile text", "hostile int"),
).called("path")
TEXTS = frozenset({"''", "'x'", "control", "StrEnum", "str, Enum", "hostile text"})
MAP_KEY = Takes("x", TEXTS | {"b''", "b'x'"})
MAP_READ = MAP_KEY.also("64 KiB")  # it is not there
MAP_VALUE = MAP_KEY.also("64 KiB")
EVENT = Takes("x", TEXTS - {"''"})
MAP_TTL = within(1.0, YEAR_S).or_none()
BUFFER = within(1, 100_000, whole=True)
START = within(0, 2**53, whole=True, good="oldest")
TOPICS = taking(None, "None", "[]", "['x']", "()", "set", "{}", "{'x': 'x'}", "generator")
PATTERN = taking(None, *("None", "''", "'x'", "64 KiB", "control", "surrogate"))
OBSERVERS = taking((), "[]", "()", "{}", "generator")
SETTINGS = taking(None, "None")
A_NODE = {
    "pool": POOL,
    "url": URL,
    "handlers": taking(handlers, "None"),
    "settings": SETTINGS,
    "capacity": within(1, 10_000, whole=True),
    "weight": within(0.001, 1000.0, good=1.0),
    "label": LABEL,
    "version": LABEL,
    "observers": OBSERVERS,
}
AN_OPEN_MAP = {
    "url": URL,
    "name": NAME.called("map"),
    "values": taking(str),
    "pool": POOL,
    "ttl_s": MAP_TTL,
    "is_sliding": FLAG.but("True"),
    "expires_at": within(0.0, 32_503_680_000.0).or_none(),
    "settings": SETTINGS,
    "observers": OBSERVERS,
}
STREAM_ENDS = {
    "length_max": within(1, 100_000_000, whole=True).or_none(),
    "ttl_s": within(0.001, 10 * YEAR_S).or_none(),
    "is_sliding": FLAG.but("True"),
    "ends_at": within(1, 2**53, whole=True).or_none(),
}
A_WORKER = {name: A_NODE[name] for name in ("capacity", "weight", "label", "version")}
CHOSEN = {"topics": TOPICS, "pattern": PATTERN, "where": WHERE, "buffer_max": BUFFER}
A_JOB = {"handler": Takes(echo, frozenset({"'x'"})), "key": KEY, "args": JSON, "kwargs": JSON}
FUNCTIONS = ("function", "async function", "type", "hostile function")
FOLLOWERS = taking((), "[]", "()", "set", "generator")
STREAM = Takes(lambda o: o.stream)
JOB_ID = NAME.called("job_id")
A_LETTER = {"key": KEY, "job_id": JOB_ID}
LETTERS = {
    "handler": TEXT.but("surrogate"),
    "prefix": TEXT.but("surrogate"),
    "cause": TEXT.but("surrogate"),
    "older_than_s": TIMEOUT,
    "newer_than_s": TIMEOUT,
}

ENCODING = {
    "codec": taking("json"),
    "version": within(1, 999_999, whole=True).but("2", "IntEnum"),  # these need an upcast
    "upcast": taking(None, "None"),
    "state": taking(None, "None", "type"),
}

JOBS = {
    "state": taking(None, "None"),
    "handler": NAME.called("handler").or_none(),
    "prefix": TEXT,
    "owner": TEXT.or_none(),
    "older_than_s": TIMEOUT,
}

DISPATCH_OPTIONS = {
    "delay_s": within(0.0, YEAR_S),
    "if_exists": taking("reject").or_none(),
    "queue_max": within(1, 1000, whole=True),
    "attach_any": FLAG,
    "allow_unknown": FLAG,
    "job_id": JOB_ID.or_none(),
    "idempotency_key": NAME.or_none(),
    "window_s": within(0.0, YEAR_S),
    "retention_s": within(0.0, YEAR_S).or_none(),
    "expires_s": within(0.01, YEAR_S).or_none(),
    "start_timeout_s": within(0.01, YEAR_S).or_none(),
    "then": FOLLOWERS,
    "otherwise": FOLLOWERS,
}
MANY_JOBS = {
    "handler": A_JOB["handler"],
    "calls": taking((), "[]", "[None]", "['x']", "()", "set", "generator", "long list"),
}
A_NAMED_JOB = {"key": KEY, "job_id": JOB_ID.or_none(), "idempotency_key": NAME.or_none()}
GAPS = {"gaps": taking(None).or_none()}
SOME_LETTERS = {
    **LETTERS,
    "cursor": taking("", "''"),
    "count": within(1, 256, whole=True),
    **GAPS,
}

A_FIRING = {
    "misfire": Takes("once"),
    "window_s": within(0.0, YEAR_S),
    "jitter_s": within(0.0, 86_400.0),
}
A_SCHEDULE = {"name": NAME.called("schedule")}
A_NEW_SCHEDULE = {**A_SCHEDULE, "when": Takes(Every(5)), **A_JOB}
SCHEDULES = {
    "list": {
        "handler": TEXT,
        "prefix": TEXT,
        "cursor": taking("", "''"),
        "count": within(1, 1000, whole=True),
        **GAPS,
    },
    "show": A_SCHEDULE,
    "next_times": {**A_SCHEDULE, "count": within(1, 1000, whole=True)},
    "pause": A_SCHEDULE,
    "resume": A_SCHEDULE,
    "trigger": {**A_SCHEDULE, "idempotency_key": NAME.or_none()},
    "remove": A_SCHEDULE,
}

A_BATCH = {
    "id": NAME,
    "then": FOLLOWERS,
    "otherwise": FOLLOWERS,
    "success_min": within(0, 1_000_000, whole=True).or_none(),
    "open_s": within(1.0, YEAR_S),
    "keep_s": within(1.0, YEAR_S),
    "within": taking(None, "None"),
}
MEMBERS = {**MANY_JOBS, "calls": MANY_JOBS["calls"].but("[None]", "long list")}
BATCHES = {"get": {"id": NAME}, "list": {"newest": within(1, 1_000, whole=True), **GAPS}}
A_BATCH_REF = {
    "wait": {
        "timeout_s": TIMEOUT,
        "on_progress": taking(None, "None", *FUNCTIONS).but("async function"),
    },
    "result": {"timeout_s": TIMEOUT},
    "cancel": {"cause": TEXT},
    "members": {
        "handler": taking(None, "None"),
        "passed": within(0, 1_000_000, whole=True),
    },
}

PAUSED = {"handler": NAME.called("handler").or_none(), "key": KEY.or_none()}
A_MEMBER = {"member": TEXT, "timeout_s": within(0.0, YEAR_S)}

CALLS: dict[str, dict[str, Takes]] = {
    "Node.__init__": A_NODE,
    "Node.options": DISPATCH_OPTIONS,
    "Follower.__init__": {"handler": ANY, "key": ANY, "args": ANY, "kwargs": ANY},
    "Follower.options": {
        "then": FOLLOWERS,
        "otherwise": FOLLOWERS,
        "takes_result": FLAG,
        "delay_s": within(0.0, YEAR_S),
    },
    "Node.batch": A_BATCH,
    "Batch.add": MEMBERS,
    "Operating.pause": {**PAUSED, "reason": TEXT},
    "Operating.resume": PAUSED,
    "Operating.cordon": {"member": TEXT, "reason": TEXT, **A_MEMBER},
    "Operating.uncordon": A_MEMBER,
    "Operating.drain_member": {"member": TEXT, "reason": TEXT, **A_MEMBER},
    **{f"Batches.{name}": row for name, row in BATCHES.items()},
    **{f"BatchRef.{name}": row for name, row in A_BATCH_REF.items()},
    "Dispatching.dispatch": A_JOB,
    "Dispatching.dispatch_many": MANY_JOBS,
    "Node.ticker": {**A_SCHEDULE, "every_s": within(0.1, 86_400.0, good=1.0)},
    "Dispatching.schedule": A_NEW_SCHEDULE,
    "Cron.__init__": {
        "expression": Takes("0 3 * * *").called("cron"),
        "tz": Takes("UTC"),
        **A_FIRING,
    },
    "Every.__init__": {"seconds": within(1.0, YEAR_S), "start": taking(None, "None"), **A_FIRING},
    "At.__init__": {
        "when": Takes(datetime(2030, 1, 1, tzinfo=UTC)),
        "window_s": A_FIRING["window_s"],
    },
    **{f"Schedules.{name}": row for name, row in SCHEDULES.items()},
    "Handlers.schedule": {
        "when": Takes("0 3 * * *"),
        "tz": Takes("UTC"),
        "name": taking("", "''", "'x'").called("schedule"),
        "key": taking("", "''", "'x'"),
        "args": taking((), *("[]", "[None]", "['x']", "()", "set", "generator", "long list")),
        "kwargs": taking({}, "None", "{}", "{'x': 'x'}"),
        "options": Takes({}).called("extra"),
    },
    "Node.notify": {"key": KEY, "payload": JSON.but("64 KiB")},
    "Node.stop": {"key": KEY, "cause": TEXT, "timeout_s": TIMEOUT},
    "Node.status": {"key": KEY},
    "Node.jobs": {
        **JOBS,
        "page": within(1, 2_000, whole=True),
        "cursor": taking("", "''"),
        "payloads": FLAG,
    },
    "Node.journal": {
        "key": KEY.or_none(),
        "handler": NAME.called("handler").or_none(),
        "since": taking(None, "None"),
        "follow": FLAG,
    },
    "Node.count": JOBS,
    "Node.stop_all": {
        "handler": JOBS["handler"],
        "prefix": TEXT,
        "cause": TEXT,
        "timeout_s": TIMEOUT,
        "dry_run": FLAG,
    },
    "Node.shutdown_pool": {"end_jobs": FLAG},
    "Node.job": A_NAMED_JOB,
    "Node.map": {
        n: AN_OPEN_MAP[n] for n in ("name", "values", "ttl_s", "is_sliding", "expires_at")
    },
    "Node.stream": {"name": NAME.called("stream"), **STREAM_ENDS},
    "Node.plan": {"name": NAME.called("handler")},
    "Node.plans": GAPS,
    "Handlers.plan": {
        "name": NAME.called("handler"),
        "handler": NAME.called("handler").or_none(),
        "every_s": within(0.05, 86_400.0, good=1.0),
        "timeout_s": within(0.001, YEAR_S, good=1.0),
        "stop_max": within(0.0, 1.0),
        "version": within(1, 999_999, whole=True),
    },
    "PlanRef.diff": {"timeout_s": TIMEOUT},
    "PlanRef.apply": {"timeout_s": TIMEOUT},
    "PlanRef.confirm": {"token": TEXT.but("''").or_none(), "timeout_s": TIMEOUT},
    # Looked at where the producer's answer is.
    "Planned.__init__": {
        "handler": A_JOB["handler"],
        "key": KEY,
        "args": ANY,
        "kwargs": ANY,
    },
    "Node.add_worker": {"handlers": Takes(handlers), **A_WORKER},
    "LocalWorker.remove": {"grace_s": within(0.0, 86_400.0).or_none()},
    "Node.drain": {"grace_s": within(0.0, 86_400.0).or_none()},
    "Node.suspect": {"job_id": TEXT},
    "JobRef.started": {"timeout_s": TIMEOUT},
    "JobRef.result": {"timeout_s": TIMEOUT},
    "JobRef.stop": {"cause": TEXT, "timeout_s": TIMEOUT},
    "Depends": {"fn": HOSTILE_TOO.called("Depends")},
    "Handlers.__init__": {
        "lifespan": taking(None, "None", "function", "type", "hostile function"),
        "log_jobs": taking(None, "None"),
        "timeout_s": within(0.001, YEAR_S).or_none(),
        "progress_timeout_s": within(0.001, YEAR_S).or_none(),
        "park_on": taking((), "[]", "()", "{}", "generator"),
        "attempts_max": within(1, 1000, whole=True),
        "backoff_s": BACKOFF,
        "backoff_max_s": within(1.0, YEAR_S, good=60.0),
        "healthy_s": within(0.0, YEAR_S),
        "retention_s": within(0.0, YEAR_S).or_none(),
        "if_exists": taking("reject"),
        "queue_max": within(1, 1000, whole=True),
        "expires_s": within(0.01, YEAR_S).or_none(),
        "start_timeout_s": within(0.01, YEAR_S).or_none(),
    },
    "Handlers.override": {"dependency": HOSTILE_TOO, "by": HOSTILE_TOO},
    "Handlers.include": {
        "others": Takes(lambda _: Handlers()),
        "prefix": taking("", "''", "'x'").called("handler"),
    },
    "Handlers.around_run": {"fn": taking(waits, "async function").called("middleware")},
    "Handlers.around_dispatch": {"fn": taking(waits, "async function").called("middleware")},
    "Handlers.on": {"what": taking("started")},
    "Handlers.job": {
        "name": NAME.called("handler"),
        "timeout_s": within(0.001, YEAR_S).or_none(),
        "progress_timeout_s": within(0.001, YEAR_S).or_none(),
        "park_on": taking((), "[]", "()", "{}", "generator"),  # another one has emptied it
        "attempts_max": within(1, 1000, whole=True),
        "backoff_s": BACKOFF,
        "backoff_max_s": within(1.0, YEAR_S, good=60.0),
        "retention_s": within(0.0, YEAR_S).or_none(),
        "if_exists": taking("reject"),
        "queue_max": within(1, 1000, whole=True),
        "expires_s": within(0.01, YEAR_S).or_none(),
        "start_timeout_s": within(0.01, YEAR_S).or_none(),
        **ENCODING,
    },
    "Handlers.service": {
        "name": NAME.called("handler"),
        "backoff_s": BACKOFF,
        "backoff_max_s": within(1.0, YEAR_S, good=60.0),
        "healthy_s": within(0.0, YEAR_S),
        "retention_s": within(0.0, YEAR_S).or_none(),
        "if_exists": taking("reject"),
        "queue_max": within(1, 1000, whole=True),
        **ENCODING,
    },
    "Handlers.runner": {
        "name": NAME.called("handler"),
        "runner": Takes(lambda o: o.runner, said="handler"),
        "backoff_s": BACKOFF,
        "backoff_max_s": within(1.0, YEAR_S, good=60.0),
        "healthy_s": within(0.0, YEAR_S),
        "retention_s": within(0.0, YEAR_S).or_none(),
        "if_exists": taking("reject"),
        "queue_max": within(1, 1000, whole=True),
    },
    "_Decorator.__call__": {"fn": FUNCTION.but("type").called("handler")},
    "Settings.__init__": {field.name: setting(field) for field in attrs.fields(Settings)},
    "Retry.__init__": {
        "after_s": within(0.0, YEAR_S).or_none(),
        "cause": ANY,
    },
    "Cancel.__init__": {"cause": ANY},
    "Park.__init__": {"cause": ANY},
    # Looked at where it is dispatched.
    "Call.__init__": {"key": ANY, "args": ANY, "kwargs": ANY},
    "Call.identified": {"job_id": JOB_ID.or_none(), "idempotency_key": NAME.or_none()},
    "DeadLetters.list": SOME_LETTERS,
    "DeadLetters.count": LETTERS,
    "DeadLetters.show": A_LETTER,
    "DeadLetters.edit": {**A_LETTER, "args": JSON, "kwargs": JSON},
    "DeadLetters.replay": A_LETTER,
    "DeadLetters.replay_all": {
        **LETTERS,
        "rate": within(0.001, 100_000.0).or_none(),
        "dry_run": FLAG,
    },
    "DeadLetters.discard": A_LETTER,
    "DeadLetters.discard_all": {**LETTERS, "dry_run": FLAG},
    "Job.state": {"value": JSON.but("64 KiB")},
    "Job.save": {"state": JSON.but("64 KiB")},
    "Job.save_soon": {"state": JSON.but("64 KiB")},
    "Job.once": {"name": NAME.called("step"), "fn": FUNCTION.also("hostile function")},
    "Job.run_blocking": {
        "fn": taking(plain, "function", "type", "hostile function"),
        "args": ANY,
        "process": FLAG,
        "memory_bytes": taking(None, "None"),
    },
    "Job.then": {"followers": Takes(Follower("x", "k")).called("then")},
    "Job.progress": {
        "done": within(0, 10**15),
        "total": within(0, 10**15).or_none(),
        "note": TEXT,
    },
    "ReplicatedMap.open": AN_OPEN_MAP,
    "ReplicatedMap.get": {"key": MAP_READ, "default": ANY},
    "ReplicatedMap.get_list": {"key": MAP_READ},
    "ReplicatedMap.get_int": {"key": MAP_READ, "default": ANY},
    "ReplicatedMap.__getitem__": {"key": MAP_READ},
    "ReplicatedMap.__contains__": {"key": ANY},
    "ReplicatedMap.watch": {"buffer_max": within(1, 1_000_000, whole=True)},
    "Position.parse": {"text": taking("1-a-i")},
    "ReplicatedMap.wait_for": {"at": taking(Position("i", 1))},
    "ReplicatedMap.set": {"key": MAP_KEY, "value": MAP_VALUE},
    "ReplicatedMap.set_and_wait": {"key": MAP_KEY, "value": MAP_VALUE},
    "ReplicatedMap.update": {"values": taking({"x": "x"}, "{}", "{'x': 'x'}")},
    "ReplicatedMap.set_if_not_exists": {"key": MAP_KEY, "value": MAP_VALUE},
    "ReplicatedMap.compare_and_set": {"key": MAP_KEY, "expected": MAP_VALUE, "value": MAP_VALUE},
    "ReplicatedMap.delete": {"key": MAP_KEY},
    "ReplicatedMap.compare_and_delete": {"key": MAP_KEY, "expected": MAP_VALUE},
    "ReplicatedMap.increment": {
        "key": MAP_KEY,
        "by": within(-(2**53) + 1, 2**53 - 1, whole=True, good=1),
    },
    "ReplicatedMap.append": {"key": MAP_KEY, "values": MAP_VALUE},
    "ReplicatedMap.append_unique": {"key": MAP_KEY, "values": MAP_VALUE},
    "ReplicatedMap.remove": {"key": MAP_KEY, "values": MAP_VALUE},
    "ReplicatedMap.compare_and_reset": {"expected": taking({"x": "x"}, "{}", "{'x': 'x'}")},
    "Stream.open": {
        "url": URL,
        "name": NAME.called("stream"),
        "pool": POOL,
        **STREAM_ENDS,
        "settings": SETTINGS,
        "observers": OBSERVERS,
    },
    "Stream.sibling": {"name": NAME.called("stream"), **STREAM_ENDS},
    "Stream.add": {
        "event": EVENT,
        "payload": Takes("x", TEXTS | {"64 KiB", "b''", "b'x'"}),
        "topic": EVENT.or_none(),
        "only_if_exists": FLAG,
        "once_id": EVENT.or_none(),
        "once_for_s": within(1.0, 7 * 86_400.0),
    },
    "Stream.snapshot": {"start": START},
    "Stream.remove": {"event_ids": Takes("1-1", said="id")},
    "Stream.reader": {"start": START, **CHOSEN},
    "Stream.sink": {
        "name": NAME.called("sink"),
        "start": START,
        "no_ack": FLAG,
        "grace_s": within(0.1, 7 * 86_400.0, good=1.0),
        "deliveries_max": within(1, 10_000, whole=True),
        **CHOSEN,
    },
    "Reader.add_stream": {"stream": STREAM, "start": START},
    "Reader.remove_stream": {"stream": STREAM},
    "Reader.position": {"stream": STREAM},
    "Sink.add_stream": {"stream": STREAM, "start": START},
    "Sink.remove_stream": {"stream": STREAM},
    "Sink.ack": {"event": Takes(lambda o: o.event)},
    "Sink.ack_many": {"events": taking((), "[]", "()", "{}", "generator")},
    "Sink.fetch_parked": {"count": within(1, 10_000, whole=True)},
    "Sink.drop_parked": {"parked": Takes(lambda o: o.parked)},
    "Client.__init__": {
        "pool": POOL,
        "url": URL,
        "settings": SETTINGS,
        "timeout_s": TIMEOUT,
        "observers": OBSERVERS,
    },
    "Client.options": {"timeout_s": TIMEOUT, **DISPATCH_OPTIONS},
    "Client.dispatch": A_JOB,
    "Client.dispatch_many": MANY_JOBS,
    "Client.job": A_NAMED_JOB,
    "Client.status": {"key": KEY},
    "Client.notify": {"key": KEY, "payload": JSON.but("64 KiB")},
    "Client.stop": {"key": KEY, "cause": TEXT, "timeout_s": TIMEOUT},
    "Client.batch": A_BATCH,
    "BlockingBatch.add": MEMBERS,
    **{f"BlockingBatches.{name}": row for name, row in BATCHES.items()},
    **{f"BlockingBatchRef.{name}": row for name, row in A_BATCH_REF.items()},
    "Client.schedule": A_NEW_SCHEDULE,
    **{f"BlockingSchedules.{name}": row for name, row in SCHEDULES.items()},
    "Client.map": {"name": NAME.called("map"), "values": taking(str)},
    # What it raises itself is its own.
    "Client.call": {"fn": taking(waits, "async function", "type", "hostile function")},
    "Ref.started": {"timeout_s": TIMEOUT},
    "Ref.result": {"timeout_s": TIMEOUT},
    "Ref.stop": {"cause": TEXT, "timeout_s": TIMEOUT},
    "MapReader.get": {"key": MAP_READ, "default": ANY},
    "MapReader.get_list": {"key": MAP_READ},
    "MapReader.get_int": {"key": MAP_READ, "default": ANY},
    "MapReader.__getitem__": {"key": MAP_READ},
    "MapReader.__contains__": {"key": ANY},
    "Letters.list": SOME_LETTERS,
    "Letters.show": A_LETTER,
    "Letters.replay": A_LETTER,
    "Letters.discard": A_LETTER,
}


# --- what happens -------------------------------------------------------------------------------


AN_EVENT = StreamEvent(stream="s", id="1-1", event="e", payload=b"")
PARKED = Parked(entry="1-1", event=AN_EVENT, reason="r")


@attrs.frozen(kw_only=True)
class Things:
    """One of each, that the calls are made on."""

    node: Node
    ref: JobRef[Any]
    worker: Any
    flags: ReplicatedMap[str]
    watch: Any
    stream: Any
    reader: Any
    sink: Any
    job: Job
    batch: Any
    client: pool.sync.Client
    blocking_ref: pool.sync.Ref[Any]
    blocking_batch: pool.sync.BlockingBatch
    event: StreamEvent = AN_EVENT
    parked: Parked = PARKED
    runner: Any = attrs.field(factory=type("R", (), {"start": plain, "stop": plain}))

    def call(self, name: str) -> Callable[..., Any]:
        owner, _, method = name.partition(".")
        match owner:
            case "Node" if method != "__init__":
                on: Any = self.node
            case "Dispatching" | "Operating":
                on = self.node
            case "LocalWorker":
                on = self.worker
            case "Client" if method != "__init__":
                on = self.client
            case "Ref":
                on = self.blocking_ref
            case "Letters":
                on = self.client.parked
            case "BlockingBatches":
                on = self.client.batches
            case "BlockingBatchRef":
                on = self.client.batches.get("b")
            case "BlockingBatch":
                on = self.blocking_batch
            case "BlockingSchedules":
                on = self.client.schedules
            case "MapReader":
                on = self.client.map("flags")
            case "JobRef":
                on = self.ref
            case "DeadLetters":
                on = self.node.parked
            case "Schedules":
                on = self.node.schedules
            case "Batches":
                on = self.node.batches
            case "BatchRef":
                on = self.batch.ref
            case "Batch":
                on = self.batch
            case "Follower":
                on = Follower if method == "__init__" else Follower("x", "k")
            case "Call":
                on = Call if method == "__init__" else Call("x")
            case "PlanRef":
                on = self.node.plan("x")
            case "ReplicatedMap" if method != "open":
                on = self.flags
            case "Stream" if method != "open":
                on = self.stream
            case "Ticker":
                on = self.node.ticker("x", every_s=60.0)
            case "Watch" | "Reader" | "Sink":
                on = getattr(self, owner.lower())
            case "Handlers":
                on = Handlers if method == "__init__" else Handlers()
            case "_Decorator":
                on = Handlers().job("x")
            case "Job" if method == "state":
                return partial(setattr, self.job, method)
            case "Job":
                on = self.job
            case _:
                on = next(getattr(home, owner) for home in HOMES if owner in home.__all__)
        found: Callable[..., Any] = on if method in ("", "__init__") else getattr(on, method)
        return found


@asynccontextmanager
async def things(fleet: Fleet) -> AsyncIterator[Things]:
    node = await fleet.node(handlers)
    worker, stream = await node.add_worker(handlers), node.stream("s")
    async with (
        node.map("flags") as flags,
        stream.reader() as reader,
        stream.sink("billing") as sink,
    ):
        batch = await node.batch("b").__aenter__()
        with pool.sync.Client(fleet.pool, fleet.url, observers=()) as client:
            await flags.set_and_wait("k", "v")
            yield Things(
                node=node,
                ref=await node.dispatch(echo, "a", "x"),
                worker=worker,
                flags=flags,
                watch=flags.watch(),
                stream=stream,
                reader=reader,
                sink=sink,
                job=make_job("j"),
                batch=batch,
                client=client,
                blocking_ref=client.job("a", "x"),
                blocking_batch=await anyio.to_thread.run_sync(client.batch("c").__enter__),
            )


def bound(
    o: Things, name: str, parameters: Iterable[inspect.Parameter], given: Mapping[str, Any]
) -> Callable[[], Any]:
    """The call with these arguments, and with good ones where it needs more."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    kinds = [each.kind for each in parameters]
    in_order = inspect.Parameter.VAR_POSITIONAL in kinds or name == "Job.state"
    for each in parameters:
        if each.name in given:
            value = given[each.name]
        elif each.default is each.empty and each.kind != each.VAR_KEYWORD:
            good = CALLS[name][each.name].good
            value = good(o) if getattr(good, "__name__", "") == "<lambda>" else good
        else:
            continue
        if each.kind is each.VAR_KEYWORD:
            kwargs["extra"] = value
        elif each.kind is not each.KEYWORD_ONLY and (
            each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) or in_order
        ):
            args.append(value)
        else:
            kwargs[each.name] = value
    return partial(o.call(name), *args, **kwargs)


@contextmanager
def counting() -> Iterator[list[Any]]:
    """What this thread gave to links to send: renewals go on in one of their own."""
    sent: list[Any] = []
    enqueue, caller = Pipeline._enqueue, threading.get_ident()

    def counted(self: Pipeline, command: Any, on_reply: Any, *limits: Any, **kinds: Any) -> None:
        enqueue(self, command, on_reply, *limits, **kinds)
        if threading.get_ident() == caller:
            sent.append(command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "_enqueue", counted)
        yield sent


def first_step(call: Callable[[], Any]) -> object:
    """What a call says before it waits for anything: an error, or that it went on."""
    try:
        answer = call()
        if inspect.iscoroutine(answer):
            try:
                answer.send(None)
            finally:
                answer.close()
            return "waits"
    except StopIteration:
        return "returned"
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    return "returned"


def wrong(answer: object, said: str) -> str:
    """What is wrong with such an answer to what cannot be meant; nothing, if it is as promised."""
    if not isinstance(answer, UsageError):
        return answer if isinstance(answer, str) else f"{type(answer).__name__}: {answer}"
    text = str(answer)
    fields = ("setting", "option", "what", "path", "key")
    named = next((str(getattr(answer, f)) for f in fields if hasattr(answer, f)), "")
    if type(answer).__name__ in ("InvalidKey", "PayloadEncodingError"):
        named = "key" if hasattr(answer, "key") else "path"
    named = named.partition("[")[0].partition(":")[0]  # of several: without its place among them
    if not isinstance(answer, PayloadTooLarge) and named not in (said, said.removesuffix("s")):
        return f"names {named!r}, not {said!r}: {text[:200]}"
    if len(text) > TEXT_MAX or "L" * 200 in text or "rrr" in text or not text.isprintable():
        return f"its text is too long: {len(text)}"
    return "" if "Hint: " in text else f"no hint: {text}"


def test_every_argument_of_every_public_call_has_its_row() -> None:
    found = {name: [each.name for each in each_of] for name, each_of in arguments().items()}
    assert found == {name: list(row) for name, row in CALLS.items()}


@pytest.mark.anyio
async def test_what_an_argument_cannot_be_is_refused_unsent(
    fleet: Fleet,
) -> None:
    async with things(fleet) as o:
        found: list[str] = []
        with counting() as sent:
            for name, parameters in arguments().items():
                for each in parameters:
                    row = CALLS[name][each.name]
                    for odd in ODD.keys() - row.takes:
                        answer = first_step(bound(o, name, parameters, {each.name: ODD[odd]}))
                        problem = wrong(answer, row.said or each.name)
                        if problem or sent:
                            found.append(f"{name}({each.name}={odd}): {problem} {len(sent)} sent")
                        sent.clear()
        assert not found, "\n".join(["", *found[:60]])
        assert await (await o.node.dispatch(echo, "b", 1)).result(timeout_s=30) == 1
        await o.flags.set_and_wait("k", "w")
        assert await o.stream.add("e", "p")
        assert o.node.state == "open"
    assert not fleet.all_seen(ActorCrashed)


# --- where and when -----------------------------------------------------------------------------

# Calls that only read what is here, or describe what is to be entered later.
ANYWHERE = words(
    "Node.options Node.map Node.suspect JobRef.__init__ ReplicatedMap.get ReplicatedMap.get_list "
    "Ticker.__aiter__ Node.ticker "
    "ReplicatedMap.get_int ReplicatedMap.keys ReplicatedMap.values ReplicatedMap.items "
    "ReplicatedMap.snapshot ReplicatedMap.__contains__ ReplicatedMap.__getitem__ Stream.sibling "
    "Stream.reader Stream.sink Reader.position ReplicatedMap.__iter__ ReplicatedMap.__len__ "
    "Watch.__aiter__ Reader.__aiter__ Sink.__aiter__ Snapshot.__aiter__ "
    "Node.__aenter__ ReplicatedMap.__aenter__"  # they are entered already, and say that
)
# What may be done twice, and so after the end.
TWICE = words(
    "Watch.close Reader.aclose Sink.aclose Reader.remove_stream Sink.remove_stream Watch.__enter__ "
    "Node.wait_drained Reader.__anext__ Sink.__anext__ Watch.__anext__ Node.drain "
    "LocalWorker.remove"
)
OF_A_LOOP = (
    *("Node", "Dispatching", "JobRef", "DeadLetters", "ReplicatedMap", "Watch", "Stream", "Reader"),
    *("Sink", "Schedules", "Ticker", "Operating"),
)
ENTERING = ("__aenter__", "__anext__", "__enter__", "__aiter__", "__iter__", "__len__")


def calls_of_a_loop() -> dict[str, list[inspect.Parameter]]:
    """All calls of what belongs to an event loop, with their arguments, if they have some."""
    known = arguments()
    found: dict[str, list[inspect.Parameter]] = {}
    for each in classes():
        if each.__name__ in OF_A_LOOP:
            names = [name for name, _ in members(each)] + [n for n in ENTERING if n in vars(each)]
            for name in names:
                call = f"{each.__name__}.{name}"
                inherited = each is Node and name in vars(Dispatching) | vars(Operating)
                if name in ("__init__", "open", "options") or call in INNER or inherited:
                    continue
                found[call] = known.get(call, [])
    return found


def asked(o: Things) -> dict[str, object]:
    """What each of them says in its first step."""
    calls = calls_of_a_loop()
    return {name: first_step(bound(o, name, calls[name], {})) for name in calls}


def kinds(said: Mapping[str, object]) -> dict[str, str]:
    return {
        name: type(answer).__name__ if isinstance(answer, BaseException) else str(answer)
        for name, answer in said.items()
    }


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["asyncio", "trio", "no loop"])
async def test_every_call_on_another_loop_is_refused_and_does_nothing(
    fleet: Fleet, where: str
) -> None:
    async with things(fleet) as o:

        def ask() -> dict[str, object]:
            leaving = {
                each: partial(each.__aexit__, None, None, None) for each in (o.node, o.flags)
            }
            return asked(o) | {f"leaving {each!r}": first_step(leaving[each]) for each in leaving}

        async def there() -> dict[str, object]:
            return ask()

        call = ask if where == "no loop" else partial(anyio.run, there, backend=where)
        said = kinds(await anyio.to_thread.run_sync(call))
        refused = dict.fromkeys(said.keys() - ANYWHERE, "WrongLoop")
        assert {name: said[name] for name in refused} == refused
        assert await o.stream.fetch_length() == 0
        assert (o.node.state, o.flags["k"], o.watch.is_closed) == ("open", "v", False)
        assert await o.ref.result(timeout_s=30) == "x"
    assert not fleet.all_seen(ActorCrashed)


@pytest.mark.anyio
async def test_every_call_after_the_end_is_refused(fleet: Fleet) -> None:
    async with things(fleet) as o:
        await o.ref.result(timeout_s=30)
    await fleet.leave(o.node)
    said = kinds(asked(o))
    refused = dict.fromkeys(said.keys() - ANYWHERE - TWICE, "NotRunning")
    assert {name: said[name] for name in refused} == refused


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.anyio
async def test_every_call_in_a_forked_child_is_refused(fleet: Fleet) -> None:
    async with things(fleet) as o:
        there, here = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                told = [
                    f"{name} {getattr(answer, 'state', type(answer).__name__)}"
                    for name, answer in asked(o).items()
                ]
                os.write(here, "\n".join(told).encode())
            finally:
                os._exit(0)
        os.close(here)
        text = (await anyio.to_thread.run_sync(os.read, there, 60_000)).decode()
        os.close(there)
        await anyio.to_thread.run_sync(os.waitpid, pid, 0)
        said = dict(line.split(" ", 1) for line in text.splitlines())
        refused = dict.fromkeys(calls_of_a_loop().keys() - ANYWHERE, "forked")
        assert {name: said[name] for name in refused} == refused
        assert await o.ref.result(timeout_s=30) == "x"
