"""What `--json` prints: of each verb the class whose fields it is, with `ok` beside them.

`v` rises when a field goes or means something else; a field more does not raise it.  The reference
has these classes as tables, and a test holds what is printed to them.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from pool.ops.admin import Dispatched, JobsChanged, Notified, Purged
from pool.ops.browse import JobRows, JobTold
from pool.ops.cli.batches import BatchesTold, BatchTold
from pool.ops.cli.doctor import Diagnosis
from pool.ops.cli.events import EntryTold
from pool.ops.cli.journal import JournalTold
from pool.ops.cli.operate import CordonDone, PauseDone
from pool.ops.cli.parked import LettersChanged, LettersTold, LetterTold
from pool.ops.cli.plans import PlanCompared, PlanShown, PlansTold
from pool.ops.cli.rates import RatesTold
from pool.ops.cli.schedules import (
    ScheduleChanged,
    ScheduleShown,
    SchedulesTold,
    ScheduleTriggered,
)
from pool.ops.cli.top import Picture
from pool.ops.cli.ttl import TtlSet
from pool.ops.members import PoolMembers
from pool.ops.stores import ConfigTold, MapRows, StreamRows
from pool.ops.summary import PoolStatus
from pool.ops.why import Why

SHAPES: Final[Mapping[str, type[Any]]] = {
    "status": PoolStatus,
    "top": Picture,
    "nodes": PoolMembers,
    "workers": PoolMembers,
    "jobs": JobRows,
    "job": JobTold,
    "why": Why,
    "doctor": Diagnosis,
    "rates": RatesTold,
    "dispatch": Dispatched,
    "notify": Notified,
    "stop": JobsChanged,
    "requeue": JobsChanged,
    "maps": MapRows,
    "streams": StreamRows,
    "config": ConfigTold,
    "ttl": TtlSet,
    "events": EntryTold,
    "journal": JournalTold,
    "pause": PauseDone,
    "resume": PauseDone,
    "cordon": CordonDone,
    "uncordon": CordonDone,
    "drain": CordonDone,
    "purge": Purged,
    "parked list": LettersTold,
    "parked show": LetterTold,
    "parked replay": LettersChanged,
    "parked edit": LettersChanged,
    "parked discard": LettersChanged,
    "batches list": BatchesTold,
    "batches show": BatchTold,
    "batches cancel": BatchTold,
    "schedules list": SchedulesTold,
    "schedules show": ScheduleShown,
    "schedules trigger": ScheduleTriggered,
    "schedules pause": ScheduleChanged,
    "schedules resume": ScheduleChanged,
    "schedules remove": ScheduleChanged,
    "plans list": PlansTold,
    "plans show": PlanShown,
    "plans diff": PlanCompared,
    "plans apply": PlanShown,
    "plans confirm": PlanShown,
}

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00")  # one way to spell it


def classes() -> list[type[Any]]:
    """Return all classes of which these are made, each once, what is printed first."""
    found = dict[type[Any], None]()

    def add(kind: Any) -> None:
        if isinstance(kind, type) and attrs.has(kind):
            if kind not in found:
                found[kind] = None
                for each in fields_of(kind).values():
                    add(each)
        else:
            for each in get_args(kind):
                add(each)

    for kind in SHAPES.values():
        add(kind)
    return list(found)


def fields_of(kind: type[Any]) -> dict[str, Any]:
    """Return the fields of one, with what is in each."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in attrs.fields(kind)}


def word_of(kind: Any) -> str:
    """Return what JSON has of a type, in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(word_of, args)))
    if origin is Literal:
        return " / ".join(f'"{each}"' for each in args)
    if origin in (tuple, list):
        return f"list of {word_of(args[0])}"
    if origin is dict or origin is Mapping:
        return f"object of {word_of(args[1])} by {word_of(args[0])}"
    if isinstance(kind, type) and attrs.has(kind):
        return kind.__name__
    words = {
        str: "text",
        datetime: "time in ISO form",
        int: "number",
        float: "number",
        bool: "true / false",
    }
    return "null" if kind is type(None) else words.get(kind, "anything")


def faults(value: object, kind: Any, where: str = "$") -> Iterator[str]:
    """Yield in what a value that was printed is not of a type, field by field."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin in (Union, types.UnionType):
        if all(any(True for _ in faults(value, each)) for each in args):
            yield f"{where} is none of {word_of(kind)}: {value!r}"
    elif origin is Literal:
        if value not in args:
            yield f"{where} is none of {word_of(kind)}: {value!r}"
    elif origin in (tuple, list):
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield f"{where} is no list"
            return
        for i, each in enumerate(value):
            yield from faults(each, args[0], f"{where}[{i}]")
    elif origin is dict or origin is Mapping:
        if not isinstance(value, dict):
            yield f"{where} is no object"
            return
        for name, each in value.items():
            yield from faults(each, args[1], f"{where}.{name}")
    elif isinstance(kind, type) and attrs.has(kind):
        yield from _faults_of(value, kind, where)
    elif kind is datetime:
        if type(value) is not str or not _TIME.fullmatch(value):
            yield f"{where} is no time: {value!r}"
    elif kind is float:
        if type(value) not in (int, float):
            yield f"{where} is no number"
    elif type(value) is not kind and not (kind is type(None) and value is None):
        yield f"{where} is no {word_of(kind)}: {value!r}"


def _faults_of(value: object, kind: type[Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    told = fields_of(kind)
    for name in told.keys() - value.keys():
        yield f"{where}.{name} is missing"
    for name in value.keys() - told.keys() - ({"ok"} if where == "$" else set()):
        yield f"{where}.{name} is not told of"
    for name in told.keys() & value.keys():
        yield from faults(value[name], told[name], f"{where}.{name}")
