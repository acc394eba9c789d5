"""What a pool stores beside its jobs, seen from outside: maps, streams, configuration.

    names of keys of the server --SCAN, a page at a time--> maps, streams --> how large, how far

No index leads to maps and streams: who does not name one looks through the names of all keys of the
server that holds the control part, PAGE_KEYS a page, and is told how many of how many those were.
That needs a right that nodes have not, see `pool acl --operator`.  Nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import attrs

from pool.core.ids import number_or, order
from pool.core.journal import ZERO
from pool.names import Control, Names
from pool.ops.inspect import Found, all_of, whole
from pool.redis.pipeline import Pipeline

PAGE_KEYS: Final = 20_000  # names of a server's keys that are looked through for one page
SCANNED: Final = 1_000  # by one command: some 0.3 ms
_ID: Final = re.compile(r"\d{1,20}-\d{1,20}")
_AT: Final = 4  # words of a map's place, see lib/at.lua


@attrs.frozen(kw_only=True)
class MapRow:
    """A replicated map; `ends_ms` is when its time is up, 0: never."""

    name: str
    strings: int
    items: int  # of its lists
    revision: int
    deltas: int  # in its log
    ends_ms: int


@attrs.frozen(kw_only=True)
class MapRows:
    """Maps, the pool's own among them; of one page `looked` names of keys were looked through."""

    v: int = 1
    pool: str
    maps: tuple[MapRow, ...]
    cursor: str = ""
    looked: int = 0


@attrs.frozen(kw_only=True)
class SinkRow:
    """A sink of a stream: `lag` events were not given to it yet, `held` were and are not done.

    The first that was not given was added `waits_s` ago (None: there is none); `silent_s` ago a
    consumer said last that it is there (None: none ever has).
    """

    name: str
    consumers: int
    lag: int | None
    held: int
    parked: int
    waits_s: float | None = None
    silent_s: float | None = None


@attrs.frozen(kw_only=True)
class StreamRow:
    """A stream: how many events it has, had, and its sinks."""

    name: str
    length: int
    added: int
    sinks: tuple[SinkRow, ...]


@attrs.frozen(kw_only=True)
class StreamRows:
    """Streams; of one page `looked` names of keys were looked through."""

    v: int = 1
    pool: str
    streams: tuple[StreamRow, ...]
    cursor: str = ""
    looked: int = 0


@attrs.frozen(kw_only=True)
class ConfigTold:
    """What holds for all of a pool.

    `lease_ttl_s` can be changed while its nodes run; all else stands since the pool was made.
    `lanes_apart` do not go by that TTL (yet): its change has not reached them.
    """

    v: int = 1
    pool: str
    lease_ttl_s: float
    lanes: int
    protocol: int
    generation: str
    lanes_apart: tuple[int, ...] = ()


async def names_of(
    pipeline: Pipeline, begins: str, *, cursor: str = "", keys_max: int = PAGE_KEYS
) -> tuple[list[str], str, int]:
    """Look through names of keys for those that begin so; return what is behind, where to go on.

    Raises:
        AuthError: This user may not.
    """
    at, found, looked = cursor or "0", dict[str, None](), 0
    pattern = "".join(f"\\{each}" if each in "*?[]\\" else each for each in begins)
    while looked < keys_max:
        command = ("SCAN", at, "MATCH", f"{pattern}*", "COUNT", SCANNED)
        at, names = await pipeline.at(begins).execute(*command, repeatable=True)
        looked += SCANNED
        found.update((name.decode(errors="replace")[len(begins) :], None) for name in names)
        if not at.strip("0"):
            return list(found), "", looked
    return list(found), at, looked


async def maps(
    pipeline: Pipeline, found: Found, names: Sequence[str] = (), *, cursor: str = ""
) -> MapRows:
    """Read these maps, or a page of all."""
    control, following, looked = Control(found.pool), "", 0
    if not names:
        begins = control.map_data("")
        names, following, looked = await names_of(pipeline, begins, cursor=cursor)
    at, rows = pipeline.at(control.prefix), list[MapRow]()
    for name in sorted(names):
        data, lists, log = control.map_data(name), control.map_lists(name), control.map_log(name)
        place, strings, items, deltas = await all_of(
            at, [], [("HGET", data, "at"), ("HLEN", data), ("ZCARD", lists), ("XLEN", log)]
        )
        words = (place or b"").split()
        if len(words) != _AT:
            continue  # there is none, or of another hand
        rows.append(
            MapRow(
                name=name,
                strings=max(0, strings - 1),
                items=items // 2,  # each stands there twice
                revision=number_or(0, words[1]),
                deltas=deltas,
                ends_ms=number_or(0, words[3]),
            )
        )
    return MapRows(pool=found.pool, maps=tuple(rows), cursor=following, looked=looked)


async def streams(
    pipeline: Pipeline, found: Found, names: Sequence[str] = (), *, cursor: str = ""
) -> StreamRows:
    """Read these streams, or a page of all."""
    control, following, looked = Control(found.pool), "", 0
    if not names:
        begins = control.stream("")
        names, following, looked = await names_of(pipeline, begins, cursor=cursor)
    rows = [await _stream(pipeline.at(control.prefix), control, name) for name in sorted(names)]
    there = tuple(each for each in rows if each is not None)
    return StreamRows(pool=found.pool, streams=there, cursor=following, looked=looked)


async def _stream(pipeline: Pipeline, control: Control, name: str) -> StreamRow | None:
    events = control.stream(name)
    [kind] = await all_of(pipeline, [], [("TYPE", events)])
    if kind != b"stream":
        return None
    length, added, groups = await all_of(
        pipeline,
        [],
        [
            ("XLEN", events),
            ("HGET", control.stream_meta(name), "n"),
            ("XINFO", "GROUPS", events),
        ],
    )
    sinks = [_text(group, "name") for group in groups]
    now_ms, *facts = await all_of(
        pipeline,
        [],
        [
            ("TIME",),
            *(("XLEN", control.sink_parked(name, each)) for each in sinks),
            *(("HGET", control.sink(name, each), "seen") for each in sinks),
            *(("XRANGE", events, f"({_given(each)}", "+", "COUNT", 1) for each in groups),
        ],
    )
    count = len(groups)
    parked, seen, first = facts[:count], facts[count : 2 * count], facts[2 * count :]

    def ago_s(ms: int) -> float | None:
        return round(max(0, now_ms - ms) / 1000, 3) if ms else None

    return StreamRow(
        name=name,
        length=length,
        added=whole(added or b"0"),
        sinks=tuple(
            SinkRow(
                name=_text(group, "name"),
                consumers=int(group.get("consumers") or 0),
                lag=None if group.get("lag") is None else int(group["lag"]),
                held=int(group.get("pending") or 0),
                parked=letters,
                waits_s=ago_s(order(behind[0][0])[0]) if behind else None,
                silent_s=ago_s(whole(at_ms or b"0")),
            )
            for group, letters, at_ms, behind in zip(groups, parked, seen, first, strict=True)
        ),
    )


def _given(group: dict[str, Any]) -> str:
    """Return the id of the last event that a group was given; of another hand's: the first."""
    text = _text(group, "last-delivered-id")
    return text if _ID.fullmatch(text) else ZERO


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name, b"")
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


async def config(pipeline: Pipeline, found: Found) -> ConfigTold:
    """Read what holds for all of a pool."""
    names = [Names(found.pool, number).lane for number in range(found.lanes)]
    ttls = await pipeline.execute_all(("HGET", name, "ttl") for name in names)
    ttl_ms = round(found.ttl_s * 1000)
    return ConfigTold(
        pool=found.pool,
        lease_ttl_s=found.ttl_s,
        lanes=found.lanes,
        protocol=found.protocol,
        generation=found.generation,
        lanes_apart=tuple(
            number for number, text in enumerate(ttls) if whole(text or b"0") not in (0, ttl_ms)
        ),
    )
