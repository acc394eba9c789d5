"""The invariants of replicated maps, of readers and of sinks.

The store's side of a history says what was there (`truth`, `added`, `gave`, `acked`, `parked`,
`dropped`), the programs' side what they were told.  A loss of data undoes what came after the
moment that came back; a fault that `does` data is one map's or one stream's (`of`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

import attrs

from tests.verify.history import CONTROL, Event
from tests.verify.invariants import Finding, invariant
from tests.verify.view import DISTURBS, Bounds, Fault, View

LOOKED_S: Final = 0.5  # two looks at copies
RECONNECTED_S: Final = 2.0  # the longest pause before a connection is made again
DATA: Final = "data"

Kept: TypeAlias = Callable[[Event, float], bool]


def _losses(view: View, name: str) -> list[Fault]:
    """Return what took data of this map or stream."""
    return [
        fault
        for fault in view.faults
        if (fault.does == "loss" and fault.lane in ("", CONTROL))
        or (fault.does == DATA and fault.event.extra.get("of") == name)
    ]


def _is_undone(
    view: View,
    name: str,
    at: float,
    by: float,
    *,
    asked: float = math.inf,
    surely: bool = False,
) -> bool:
    """Say whether what happened at a time, asked for before, may have been undone by another.

    What came back may be older than another loss: then that one has not been, nor what it took.
    Of what happened in the very moment as of which the data came back, nobody knows.  Another hand
    takes what it finds when it begins, and when it ends what has come back meanwhile.
    """
    began, present = min(at, asked), by
    losses = _losses(view, name)
    moments = [(fault.began, fault) for fault in losses]
    moments += [(fault.ended, fault) for fault in losses if fault.does == DATA]
    for moment, fault in sorted(moments, key=lambda each: each[0], reverse=True):
        if moment <= present:
            if fault.ended < began:
                return False
            if fault.since < at or (fault.since == at and not surely):
                return True
            present = fault.since
    return False


def _is_well(view: View, bounds: Bounds, p: str) -> bool:
    """Say whether a process lives at the end, and has had the time to hear of all."""
    if view.final is None or view.died.get(p, math.inf) <= view.final.t:
        return False
    at = view.final.t
    return not view.hurts(DISTURBS | {DATA}, at - _again_s(bounds), at, {p.partition("/")[0]})


def _again_s(bounds: Bounds) -> float:
    """How long it takes to notice that a connection is dead, and to be as the server is."""
    return bounds.ttl_s / 2 + 2 * bounds.renew_s + RECONNECTED_S


# --- maps ------------------------------------------------------------------------------------


@invariant("I42", "copies follow their maps")
def copies_follow(view: View, bounds: Bounds, found: Finding) -> None:
    """A copy is what its map is within two renewal periods after that has changed, if its process
    can reach the server; after a fault, once it has noticed that its connection is dead.
    """
    changed: dict[str, list[float]] = defaultdict(list)
    for event in view.of.get("truth", ()):
        changed[event.key].append(event.t)
    last = view.events[-1].t if view.events else 0.0
    for wrong, ended in _wrong_copies(view, last):
        found.judged += 1
        times = [wrong.t, *changed[wrong.key][bisect_left(changed[wrong.key], wrong.t) :]]
        for since, until in pairwise([*(t for t in times if t < ended), ended]):
            by = since + 2 * bounds.renew_s + LOOKED_S + bounds.slack_s
            hurt = view.hurts(DISTURBS | {DATA}, since - bounds.ttl_s, until, {wrong.node})
            if hurt:
                again = _again_s(bounds)
                lost_s = 2 * bounds.ttl_s if any(f.does == "loss" for f in hurt) else 0.0
                by = max(by, since + again, *(fault.ended + again + lost_s for fault in hurt))
            if until > by:
                found.say(f"{wrong.p} is not {wrong.key} for {until - since:.2f} s", wrong)
                break


def _wrong_copies(view: View, last: float) -> Iterator[tuple[Event, float]]:
    """Yield from when to when a copy was something else than its map."""
    since: dict[tuple[str, str], Event] = {}
    for event in view.of.get("copy", ()):
        if event.type == "fail":
            since.setdefault((event.p, event.key), event)
        elif wrong := since.pop((event.p, event.key), None):
            yield wrong, event.t
    for wrong in since.values():
        yield wrong, min(last, view.died.get(wrong.p, last))


@attrs.define(eq=False)
class _Seen:
    """What a watcher knows: all keys, or only those that it heard of."""

    begun: Event
    fetched: Event  # as its copy was fetched before
    is_whole: bool
    at: int
    items: dict[str, Any]


@invariant("I43", "watchers see each change")
def watchers_see_all(view: View, bounds: Bounds, found: Finding) -> None:
    """Each change begins where the last one of its key has ended, and all watchers are told the
    same one under one revision, unless they are told that they begin anew; at the end what they
    were told is what the map is.  Where another hand took data, copies of before and of since make
    two changes of one, until the former have come as far and are fetched anew.
    """
    seen: dict[tuple[str, int], _Seen] = {}
    first: dict[tuple[str, int, str], tuple[Event, Event]] = {}  # and as of when its copy was
    for event in view.of.get("saw", ()):
        who = event.p, event.extra["w"]
        if event.type == "info":
            # What was buffered behind it may be in the snapshot already, and more than that.
            is_whole = event.extra.get("at", event.extra["r"]) == event.extra["r"]
            items = dict(event.extra["items"]) if is_whole else {}
            # A watcher may be behind alone, and its copy is what it was.
            is_old = event.extra["why"] == "overflow" and who in seen
            fetched = seen[who].fetched if is_old else event
            at = event.extra["r"] if is_whole else -1
            seen[who] = _Seen(event, fetched, is_whole, at, items)
            continue
        found.judged += 1
        told, key, revision = seen[who], event.extra["k"], event.extra["r"]
        if revision < told.at:
            found.say(f"{event.p} went back to revision {revision} of {event.key}", event)
        if (told.is_whole or key in told.items) and told.items.get(key) != event.extra["old"]:
            found.say(f"{event.p} has missed what became of {key!r} in {event.key}", event)
        told.at, told.items[key] = revision, event.extra["new"]
        other, fetched = first.setdefault((event.key, revision, key), (event, told.fetched))
        is_same = other.extra["new"] == event.extra["new"]
        asked = other.t - 2 * bounds.ttl_s  # what was undone may be told late
        if (
            not is_same
            and not _is_undone(view, event.key, other.t, event.t, asked=asked)
            and not _is_parted(view, (fetched, other), (told.fetched, event))
        ):
            found.say(f"revision {revision} of {key!r} is two changes", other, event)
    truths = view.final.extra.get("maps", {}) if view.final else {}
    newest = {(told.begun.p, told.begun.key): told for told in seen.values()}
    for (p, name), told in newest.items():
        if _is_well(view, bounds, p) and told.is_whole and truths.get(name) is not None:
            found.judged += 1
            items = {key: value for key, value in told.items.items() if value is not None}
            if items != truths[name]:
                found.say(f"{p} was told that {name} is {items}, not {truths[name]}", told.begun)


def _is_parted(view: View, one: tuple[Event, Event], other: tuple[Event, Event]) -> bool:
    """Say whether two watchers, by when their copies were fetched and what they were told, had
    different values before: another hand took data, and only one copy was fetched since.
    """
    (early, told), (late, told_too) = sorted((one, other), key=lambda each: each[0].t)
    return told.extra["old"] != told_too.extra["old"] and any(
        fault.does == DATA and early.t <= fault.ended and fault.began <= late.t
        for fault in _losses(view, told.key)
    )


@attrs.frozen
class _Puts:
    """The writes of one key, which are made one after another."""

    asked: dict[str, Event]  # by value
    ended: dict[str, Event]

    def unsure(self, by: float) -> set[str]:
        """Return what may have been written later than it was answered, or without an answer."""
        return {
            value
            for value, event in self.asked.items()
            if event.t <= by and (value not in self.ended or self.ended[value].type == "info")
        }


def _puts(view: View) -> dict[str, _Puts]:
    found: dict[str, _Puts] = {}
    for event in view.of.get("put", ()):
        puts = found.setdefault(event.key, _Puts({}, {}))
        (puts.asked if event.type == "invoke" else puts.ended)[event.idem] = event
    return found


@invariant("I44", "who has waited for a write has it")
def waited_for(view: View, _: Bounds, found: Finding) -> None:
    """When `set_and_wait` returns, the copy has the write, or what was written over it; or nothing,
    where another hand took the map's data meanwhile: its log knows of the write still.
    """
    for puts in _puts(view).values():
        for value, event in puts.ended.items():
            if event.type != "ok" or not event.extra["wait"]:
                continue
            found.judged += 1
            name, got = event.key.partition("/")[0], event.extra["got"]
            asked = puts.asked[value].t
            is_taken = any(
                fault.does == DATA and fault.began <= event.t and fault.ended >= asked
                for fault in _losses(view, name)
            )
            may_be_gone = is_taken or name != "m0"
            allowed = {value, *puts.unsure(event.t)} | ({None} if may_be_gone else set())
            if got not in allowed:
                found.say(f"{value} of {event.key} was waited for, and it is {got}", event)


@invariant("I68", "who waits for another's write is told the truth")
def awaited(view: View, bounds: Bounds, found: Finding) -> None:
    """Who waits for what another process has written is told that it is lost only if it may be, has
    it or what was written over it otherwise, and does not wait for ever.
    """
    puts = _puts(view)
    waiting: dict[tuple[str, str], Event] = {}
    for event in view.of.get("await", ()):
        if event.type == "invoke":
            waiting[event.p, event.idem] = event
            continue
        began = waiting.pop((event.p, event.idem), event)
        if event.type == "info":
            continue
        name, of = event.key.partition("/")[0], puts[event.key]
        asked, written = of.asked[event.idem], of.ended[event.idem]
        found.judged += 1
        if _is_undone(view, name, written.t, event.t, asked=asked.t):
            continue
        if event.type == "fail":
            found.say(f"{event.p} was told that {event.idem} of {event.key} is lost", began, event)
            continue
        later = {value for value, each in of.asked.items() if asked.t <= each.t <= event.t}
        # What nobody knows to be done may have been on its way behind it.
        allowed = {*later, *of.unsure(event.t)} | ({None} if name != "m0" else set())
        if event.extra["got"] not in allowed:
            got = event.extra["got"]
            found.say(f"{event.p} waited for {event.idem} of {event.key}, and has {got}", event)
    last = view.final.t if view.final else 0.0
    for (p, value), event in waiting.items():
        if _is_well(view, bounds, p) and event.t + 2 * _again_s(bounds) < last:
            found.say(f"{p} waits for {value} of {event.key} for ever", event)


@invariant("I45", "maps keep what they took")
def maps_keep(view: View, _: Bounds, found: Finding) -> None:
    """At the end each key has the last value that was accepted, unless that was undone."""
    truths = view.final.extra.get("maps", {}) if view.final else {}
    for key, puts in _puts(view).items():
        name, _slash, field = key.partition("/")
        accepted = [value for value, event in puts.ended.items() if event.type == "ok"]
        if name != "m0" or truths.get(name) is None or not accepted:
            continue
        value = accepted[-1]
        event, asked = puts.ended[value], puts.asked[value]
        found.judged += 1
        if _is_undone(view, name, event.t, math.inf, asked=asked.t):
            continue
        if truths[name].get(field) not in {value, *puts.unsure(math.inf)}:
            found.say(f"{key} is {truths[name].get(field)}, not {value}", event)


# --- sinks -----------------------------------------------------------------------------------


@attrs.frozen
class _Sinks:
    """What became of events: (sink, token) -> when."""

    of: Mapping[str, Mapping[tuple[str, str], Sequence[Event]]]  # by f
    most: Mapping[tuple[str, str], int]  # sink, stream -> deliveries_max

    @classmethod
    def seen(cls, view: View) -> _Sinks:
        of: dict[str, dict[tuple[str, str], list[Event]]] = {}
        for f in ("gave", "acked", "given", "parked"):
            of[f] = defaultdict(list)
            for event in view.of.get(f, ()):
                of[f][event.extra["sink"], event.idem].append(event)
        most = {
            (event.extra["sink"], stream): event.extra["max"]
            for event in view.of.get("consumer", ())
            for stream in (event.key.split(",") if event.type == "ok" else ())
        }
        return cls(of, most)

    def got(self, f: str, sink: str, token: str) -> Sequence[Event]:
        return self.of[f].get((sink, token), ())


@invariant("I46", "every event is handled")
def every_event_is_handled(view: View, _: Bounds, found: Finding) -> None:
    """At the end each sink has had each event that its streams kept: acknowledged by who was given
    it, or parked, or taken by a cap, which is told.
    """
    if view.final is None:
        return
    sinks, end = _Sinks.seen(view), view.final.t
    dropped = {event.idem: event for event in view.of.get("dropped", ())}
    missed = {
        (event.extra.get("sink"), event.extra.get("stream"))
        for event in view.of.get("event", ())
        if event.extra.get("event") == "sink.missed"
    }
    for event in view.of.get("added", ()):
        name = event.key
        if not event.idem or _is_undone(view, name, event.t, end):
            continue
        for sink, stream in sinks.most:
            if stream != name:
                continue
            found.judged += 1
            acked = sinks.got("acked", sink, event.idem)
            given = sinks.got("given", sink, event.idem)
            parked = sinks.got("parked", sink, event.idem)
            if acked and not parked and not any(each.t <= acked[0].t for each in given):
                found.say(f"{event.idem} was acknowledged to {sink}, and never given", event)
            if any(not _is_undone(view, name, e.t, end, surely=True) for e in (*acked, *parked)):
                continue
            if event.idem not in dropped:
                found.say(f"{event.idem} of {name} was not handled by {sink}", event)
            elif not given and (sink, name) not in missed:
                found.say(f"{sink} has missed {event.idem} of {name}, untold", event)


@invariant("I47", "parked means tried")
def parked_means_tried(view: View, _: Bounds, found: Finding) -> None:
    """Before an event is parked programs had it as often as that takes; each life of a consumer
    that has ended may stand for one time that was noted and never came.
    """
    sinks = _Sinks.seen(view)
    ends = [
        *view.of.get("exit", ()),
        *(e for e in view.of.get("event", ()) if e.extra.get("event") == "sink.lapsed"),
        *(e for e in view.of.get("consumer", ()) if e.type == "info"),
    ]
    times = sorted(event.t for event in ends)
    added = {event.idem: event.t for event in view.of.get("added", ())}
    for event in view.of.get("parked", ()):
        sink = event.extra["sink"]
        most = sinks.most.get((sink, event.key))
        if not event.idem or most is None:
            continue
        found.judged += 1
        given = sum(each.t <= event.t for each in sinks.got("given", sink, event.idem))
        began = added.get(event.idem, -math.inf)
        ended = bisect_left(times, event.t) - bisect_left(times, began)
        if given + ended < most:
            found.say(f"{event.idem} was parked by {sink} after {given} of {most} times", event)


@invariant("I48", "an event has one holder at a time")
def one_holder(view: View, bounds: Bounds, found: Finding) -> None:
    """Nobody is given an event while the grace and the lease of whoever has it stand."""
    sinks = _Sinks.seen(view)
    lapsed: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("event", ()):
        if event.extra.get("event") == "sink.lapsed":
            lapsed[event.p].append(event)
    for event in view.of.get("consumer", ()):
        if event.type == "info":
            lapsed[event.p].append(event)
    for (sink, token), given in sinks.of["given"].items():
        for one, other in pairwise(given if token else ()):
            found.judged += 1
            until = one.t + one.extra["grace_s"]
            if other.t >= until - bounds.slack_s or view.died.get(one.p, math.inf) <= other.t:
                continue
            began = one.t - bounds.ttl_s
            hurt = view.hurts(DISTURBS, began, other.t, {one.node})
            mine = (e for e in lapsed[one.p] if e.extra["sink"] == sink)
            if hurt or any(one.t <= e.t <= other.t for e in mine):
                continue
            if not _is_undone(view, one.key, one.t, other.t, asked=began):
                took = f"{other.t - one.t:.2f} s"
                found.say(f"{token} was given to {sink} again after {took}", one, other)


@invariant("I49", "what is acknowledged is done")
def acknowledged_is_done(view: View, _: Bounds, found: Finding) -> None:
    """The store gives to nobody what was acknowledged, unless that was undone."""
    sinks = _Sinks.seen(view)
    for (sink, token), gave in sinks.of["gave"].items():
        acked = sinks.got("acked", sink, token) if token else ()
        for event in gave:
            found.judged += 1
            before = [each for each in acked if each.t < event.t]
            if before and not _is_undone(view, event.key, before[-1].t, event.t):
                found.say(f"{token} was given to {sink} after its end", before[-1], event)


# --- readers ---------------------------------------------------------------------------------

_TELLS: Final = frozenset({"stream.missed", "stream.restarted"})


@invariant("I50", "readers see every event, in order")
def readers_see_all(view: View, bounds: Bounds, found: Finding) -> None:
    """Each reader is given each event that its stream kept, once and in order, or is told; at the
    end those that live have had all.  The id of an event that was lost names no place in a stream
    that has come further since: then a reader begins anywhere (docs/how-to/streams.md).
    """
    added: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("added", ()):
        added[event.key].append(event)
    readers: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for event in view.of.get("read", ()):
        readers[event.p, event.key, event.extra["reader"]].append(event)
    newest = {(p, name): number for p, name, number in readers}
    dropped = {event.idem: event for event in view.of.get("dropped", ())}
    for (p, name, number), events in readers.items():
        told = [
            event.t
            for event in view.of.get("event", ())
            if event.p == p
            and event.extra.get("stream") == name
            and event.extra.get("event") in _TELLS
        ]
        end = view.final if _is_well(view, bounds, p) and newest[p, name] == number else None
        kept = partial(_is_kept, view, name, dropped)
        lost = min((fault.began for fault in _losses(view, name)), default=math.inf)
        probed_s = 2 * bounds.renew_s + bounds.slack_s if lost < events[-1].t else 0.0
        at = _place_of(added[name], events[0].extra["start"])
        if at is not None and at >= 0 and _is_undone(view, name, added[name][at].t, events[0].t):
            at = None
        _judge_reader(found, added[name], events, at, told, end, kept, probed_s)


def _is_kept(view: View, name: str, dropped: Mapping[str, Event], event: Event, by: float) -> bool:
    """Say whether an event was surely there all the time from when it was added on."""
    gone = event.idem in dropped and dropped[event.idem].t <= by
    return bool(event.idem) and not gone and not _is_undone(view, name, event.t, by)


def _judge_reader(
    found: Finding,
    added: Sequence[Event],
    events: Sequence[Event],
    at: int | None,
    told: Sequence[float],
    end: Event | None,
    kept: Kept,
    probed_s: float,
) -> None:
    places = {event.idem: place for place, event in enumerate(added)}
    seen: set[str] = set()
    since = events[0].t
    for event in events[1:]:
        found.judged += 1
        place = places.get(event.idem)
        if place is None:
            continue  # a foreign one
        # That a stream went back the next probe may tell, behind what was read of it first.
        is_told = event.extra["after"] or any(since <= t <= event.t + probed_s for t in told)
        if event.extra["after"] == "restarted" or is_told:
            seen.clear()
        elif event.idem in seen or (at is not None and place <= at):
            found.say(f"{event.p} has read {event.idem} again, or behind others", event)
        elif at is not None:
            for left in _left(added[at + 1 : place], event.t, kept):
                found.say(f"{event.p} has not read {left.idem}", left, event)
                break
        seen.add(event.idem)
        at, since = place, event.t
    if end is not None and at is not None and not any(t >= since for t in told):
        for left in _left(added[at + 1 :], end.t, kept):
            found.say(f"{events[0].p} has never read {left.idem}", left)
            break


def _left(between: Collection[Event], by: float, kept: Kept) -> list[Event]:
    return [event for event in between if kept(event, by)]


def _place_of(added: Sequence[Event], start: str) -> int | None:
    """Return where the event is behind which a reader begins; None: nobody knows."""
    if start == "oldest":
        return -1
    found = [place for place, event in enumerate(added) if event.stream_id == start]
    return found[-1] if len(found) == 1 else None
