"""What comes back of a value is compared with it, before anything is sent.

Other libraries decide by themselves what of their classes goes over the wire: secrets are masked,
fields excluded, those of a subclass dropped, and what a serializer made is not always read again.
Each of these would arrive as something else, or never.  So whoever sends such a value reads it
first, as its receiver will, and compares types and contents all the way down.

Two datetimes are the same if they are the same moment.  `==` does not say so where a clock shows an
hour twice, or leaves one out: there no datetime of a `ZoneInfo` equals any of another zone
(PEP 495), and what arrives has a fixed offset.

Where that cannot matter it is not looked at: text, numbers, lists and dicts go as their base does
if they are of a subclass, an int is a float, and a tuple arrives as a list where nobody says
otherwise.  What the errors say never shows a value: it may be a secret.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import is_
from typing import Any, Final
from uuid import UUID

import attrs

from pool.jobs.typed.converters import Wrong, kind_of

_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
# Of these, equal ones are the same.
_WHOLE: Final = _SCALARS | {datetime, date, time, timedelta, Decimal, UUID}
_GO_AS: Final = (str, int, float, list, dict, bytes)
_NOTHING: Final = object()


def check(value: Any, back: Any) -> None:
    """Look whether a value has come back as it is.

    Raises:
        Wrong: It has not; where in it.
    """
    _compare(value, back, ())


def check_read(given: Any, read: Any) -> None:
    """Look whether something of what stood there in terms of JSON was dropped or rounded.

    Raises:
        Wrong: It was; where in it.
    """
    if type(given) is int and type(read) is float:
        if given != read:
            raise _lost(given, read)
    elif type(given) is list and issubclass(type(read), (list, tuple)):
        for at, (mine, other) in enumerate(zip(given, read, strict=False)):
            _read_part(f"[{at}]", mine, other)
    elif type(given) is dict and issubclass(type(read), dict):
        if len(given) != len(read):
            raise Wrong("has keys which would be lost")
        for (key, mine), other in zip(given.items(), read.values(), strict=True):
            _read_part(f"[{_shown(key)}]", mine, other)
    elif type(given) is dict and not hasattr(type(read), "__pydantic_fields__"):
        kind: Any = type(read)
        names = _fields(kind) or ()
        by_key = dict(zip(getattr(read, "__struct_encode_fields__", names), names, strict=True))
        tag = getattr(getattr(read, "__struct_config__", None), "tag_field", None)
        for key, mine in given.items():
            if key in by_key:
                _read_part(f".{by_key[key]}", mine, getattr(read, by_key[key]))
            elif key != tag:
                raise Wrong(f"has the key {_shown(key)}, which {kind_of(read)} does not have")


def _read_part(step: str, given: Any, read: Any) -> None:
    try:
        check_read(given, read)
    except Wrong as error:
        raise error.within(step) from None


def _compare(value: Any, back: Any, within: tuple[int, ...]) -> None:
    kind: Any = type(back)
    if kind in _WHOLE and type(value) is kind and (value == back or _is_moment(value, back)):
        return
    if kind in _SCALARS:
        if not _goes_as(type(value), kind) or not (value == back or _is_nan(value, back)):
            raise _lost(value, back)
    elif value is back or id(value) in within:
        return
    elif issubclass(kind, (list, tuple, deque)):
        _compare_items(value, back, (*within, id(value)))
    elif issubclass(kind, dict):
        if not _goes_as(type(value), kind) or len(value) != len(back):
            raise _lost(value, back)
        key_of = _itself if value.keys() <= back.keys() else _moment
        arrived = {key_of(key): item for key, item in back.items()}
        for key, item in value.items():
            other = arrived.get(key_of(key), _NOTHING)
            _part(f"[{_shown(key)}]", item, other, (*within, id(value)))
    elif type(value) is not kind:
        raise _lost(value, back)
    elif issubclass(kind, AbstractSet):
        _compare_sets(value, back)
    elif (names := _fields(kind)) is not None:  # type: ignore[arg-type]
        within = (*within, id(value))
        for name in names:
            mine, other = getattr(value, name, _NOTHING), getattr(back, name, _NOTHING)
            if type(mine) not in _WHOLE or type(mine) is not type(other) or mine != other:
                _part(f".{name}", mine, other, within)
        if hasattr(kind, "__pydantic_private__"):
            for aside in ("__pydantic_extra__", "__pydantic_private__"):
                _compare_aside(getattr(value, aside), getattr(back, aside), within)
    elif getattr(kind, "__eq__", None) is object.__eq__:  # it is equal to nothing but itself
        _compare(getattr(value, "__dict__", {}), getattr(back, "__dict__", {}), within)
    elif not value == back and not _is_nan(value, back):  # noqa: SIM201 - what is asked is its own
        raise _lost(value, back)


def _part(step: str, value: Any, back: Any, within: tuple[int, ...]) -> None:
    try:
        _compare(value, back, within)
    except Wrong as error:
        raise error.within(step) from None


def _goes_as(mine: type, other: type) -> bool:
    if mine is other or (other in _GO_AS and issubclass(mine, other)):
        return True
    return other is float and issubclass(mine, int)


def _is_nan(value: Any, back: Any) -> bool:
    return bool(value != value and back != back)


def _compare_items(value: Any, back: Any, within: tuple[int, ...]) -> None:
    kind = type(back)
    is_loose = kind is list and issubclass(type(value), (list, tuple))
    if not (is_loose or type(value) is kind) or len(value) != len(back):
        raise _lost(value, back)
    if (
        _WHOLE.issuperset(map(type, back))
        and all(map(is_, map(type, value), map(type, back)))
        and list(value) == list(back)
    ):
        return  # most lists of many
    for at, (mine, other) in enumerate(zip(value, back, strict=True)):
        _part(f"[{at}]", mine, other, within)


def _compare_sets(value: Any, back: Any) -> None:
    key_of = _itself if value == back else _moment
    found = {key_of(item): item for item in back}
    if len(value) != len(back) or any(key_of(item) not in found for item in value):
        raise _lost(value, back)
    for item in value:
        _part("{}", item, found[key_of(item)], ())


def _itself(value: Any) -> Any:
    return value


def _moment(value: Any) -> Any:
    """Return what tells whether two values are the same: of a datetime with a zone its moment.

    Also of those in tuples, in frozen sets, and in instances that say what they consist of: all
    that can be in a set, or be a key.  Others are returned as they are.
    """
    kind: Any = type(value)
    if kind is datetime:
        return value.astimezone(UTC) if value.utcoffset() is not None else value
    if kind is tuple or kind is frozenset:
        return kind(map(_moment, value))
    names = _fields(kind) if kind not in _WHOLE and kind.__eq__ is not object.__eq__ else None
    if names is None:
        return value
    key = (kind, *(_moment(getattr(value, name, _NOTHING)) for name in names))
    try:
        hash(key)
    except TypeError:  # it is hashed by less than it is compared by
        return value
    return key


def _is_moment(value: Any, back: Any) -> bool:
    return type(value) is datetime and _moment(value) == _moment(back)


@lru_cache(1024)
def _fields(kind: Any) -> Iterable[str] | None:
    """Return the names of what an instance consists of; None: it does not say."""
    if (of_pydantic := getattr(kind, "__pydantic_fields__", None)) is not None:
        return tuple(of_pydantic)
    if (of_struct := getattr(kind, "__struct_fields__", None)) is not None:
        return of_struct  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(kind):
        return [each.name for each in dataclasses.fields(kind) if each.compare]
    if attrs.has(kind):
        return [each.name for each in attrs.fields(kind) if each.eq]
    return None


def _compare_aside(
    value: dict[str, Any] | None, back: dict[str, Any] | None, within: tuple[int, ...]
) -> None:
    """Compare what a model has beside its fields: private attributes go nowhere."""
    if value or back:
        value, back = value or {}, back or {}
        for name in {**value, **back}:
            _part(f".{name}", value.get(name, _NOTHING), back.get(name, _NOTHING), within)


def _lost(value: Any, back: Any) -> Wrong:
    if value is _NOTHING:
        return Wrong("is not there, and would be where it arrives")
    if back is _NOTHING:
        return Wrong("would be lost on the way")
    if type(value) is not type(back):
        return Wrong(f"is {kind_of(value)}, and would arrive as {kind_of(back)}")
    return Wrong(f"would arrive as another {kind_of(value)}: it does not read what it writes")


def _shown(key: Any) -> str:
    return repr(key)[:40] if type(key) in (str, int) else f"a {kind_of(key)}"
