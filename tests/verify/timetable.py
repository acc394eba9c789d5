"""The invariant of schedules: each time is one job, or is told to have been missed."""

from __future__ import annotations

import math
from collections import Counter

from pool.core.schedules import COUNTED_MAX, ON_TIME_S, schedule_of
from tests.verify.history import Event
from tests.verify.invariants import Finding, invariant
from tests.verify.view import DISTURBS, STEP, Bounds, View, id_of

TICK_S = 1.0  # what happened so long before a tick was due may have kept a node from asking


@invariant("I63", "each time of a schedule is one job")
def each_time_is_one_job(view: View, bounds: Bounds, found: Finding) -> None:
    """What was fired is accepted, or left out as its policy says, and was fired once; of the times
    that a firing passed each was fired or counted as missed or overlapped, and none was missed that
    was in time; whoever changes or pauses a schedule fires or counts what has come by then; when
    all is well again somebody comes for those that are due.  Lost data excuse what was then.
    """
    there = (*view.accepted.values(), *view.of.get("overlap", ()))
    told = {(event.key, id_of(event.job)) for event in there}
    fired: dict[str, float] = {}
    for event in view.of.get("fire", ()):
        found.judged += 1
        for job in event.extra["jobs"]:
            before = fired.get(job)
            if before is not None and not (
                _is_lost(view, -math.inf, event.t) or _is_made_anew(view, before, event)
            ):
                found.say(f"{job} was fired again", event)
            fired[job] = event.t
            is_told = (event.extra["to"], job) in told
            if not is_told and not _is_lost(view, event.t - bounds.ttl_s, math.inf):
                found.say(f"{job} was fired, and never accepted", event)
        if not event.extra["is_edit"]:
            _judge_times(view, bounds, event, found)
        _judge_change(view, event, found)
    for event in view.of.get("schedule", ()):
        _judge_change(view, event, found)
        late_ms = event.extra.get("late_ms")
        if late_ms is not None and event.t > view.healed and not event.extra["paused"]:
            found.judged += 1
            # What was late when all was well again is late by what has passed since.  A busy
            # machine starves processes after that, too.
            hurts = view.excuses(DISTURBS, view.healed, event.t)
            well_s = event.t - max([view.healed, *(fault.ended for fault in hurts)])
            late_s = min(late_ms / 1000, max(0.0, well_s))
            slack_s = view.slack_s(event.t - late_s, event.t, bounds)
            if late_s > bounds.takeover_s + 5.0 + slack_s:
                found.say(f"{event.key} was due for {late_ms} ms, and nobody came", event)
    _judge_looks(view, bounds, found)


def _judge_looks(view: View, bounds: Bounds, found: Finding) -> None:
    """Where only looks tell of a schedule: between two of them as many times passed as were fired
    or missed, none of those missed was in time, and as many jobs are there as were fired.

    Pausing a schedule misses a time that has come and was not fired yet, as in its jitter.
    """
    last: dict[str, Event] = {}
    for event in view.of.get("schedule", ()):
        if "look" not in event.extra:
            continue
        before = last.get(event.key)
        last[event.key] = event
        if before is None or _is_lost(view, before.t - 1.0, event.t):
            continue
        found.judged += 1
        old, new = before.extra["look"], event.extra["look"]
        passed_ms, fired, missed = (b - a for a, b in zip(old, new, strict=True))
        if min(passed_ms, fired, missed) < 0:
            found.say(f"{event.key} went back from {old} to {new}", before, event)
        elif passed_ms != (fired + missed) * event.extra["every_ms"] and missed < COUNTED_MAX - 1:
            found.say(f"{event.key} passed {passed_ms} ms, of {old} to {new}", before, event)
        on_time_ms = event.extra["wall_ms"] - 1000 * ON_TIME_S
        is_early = old[0] > on_time_ms and not event.extra["paused"]
        if missed and is_early and not _is_stepped(view, bounds, before.t, event.t):
            found.say(f"{event.key} missed {missed} times that were in time", before, event)
    made = Counter(schedule_of(id_of(job)) for job in view.accepted)
    for name, event in last.items() if view.final and not _is_lost(view, 0.0, math.inf) else ():
        _, fired, _ = event.extra["look"]
        if made[name] != fired:
            found.say(f"{name} counts {fired} firings, and there are {made[name]} jobs", event)


def _judge_times(view: View, bounds: Bounds, event: Event, found: Finding) -> None:
    """Judge which times a firing passed."""
    jobs, missed = event.extra["jobs"], event.extra["missed"]
    passed = len(jobs) + missed + event.extra["overlapped"]
    before, after = event.extra["next"]
    if event.extra["paused"]:
        found.say(f"{event.key} was fired while it was paused", event)
    if not before < after:
        found.say(f"{event.key} was fired, and its next time is not behind that", event)
    if event.extra["fired"] != len(jobs):
        found.say(f"{event.key} counts {event.extra['fired']} of {len(jobs)} firings", event)
    if missed < COUNTED_MAX - 1 and after - before != passed * event.extra["every_ms"]:
        found.say(f"{event.key} passed {after - before} ms, and counts {passed} times", event)
    is_early = before > event.extra["wall_ms"] - 1000 * ON_TIME_S
    if missed and is_early and not _is_stepped(view, bounds, event.t, event.t):
        found.say(f"{event.key} missed {missed} times that were in time", event)


def _judge_change(view: View, event: Event, found: Finding) -> None:
    """Judge what a change makes of the times that had come: each is fired, missed or overlapped."""
    came = event.extra.get("came")
    if not came or event.extra["settled"] >= COUNTED_MAX - 1:
        return
    found.judged += 1
    if event.extra["settled"] not in came and not _is_lost(view, -math.inf, event.t):
        told = f"{event.extra['settled']} of {' or '.join(map(str, came))} times that had come"
        found.say(f"who changed {event.key} counted {told}", event)


@invariant("I64", "each tick is one node's")
def each_tick_is_one_nodes(view: View, _: Bounds, found: Finding) -> None:
    """A ticker's numbers rise, and it tells how many nobody had; each is told to one process, that
    which the store gave it; and none is left out while a node waits that nothing happens to.
    """
    last: dict[str, Event] = {}
    given: dict[tuple[str, int], str] = {}
    for event in view.of.get("ticked", ()):
        found.judged += 1
        number, before = event.extra["number"], last.get(event.key)
        last[event.key], given[event.key, number] = event, event.p
        if before is None or _is_lost(view, before.t, event.t):
            continue
        passed = number - before.extra["number"] - 1
        if passed < 0 or event.extra["missed"] != passed:
            found.say(f"tick {number} of {event.key} comes after {passed} others", before, event)
        elif passed and (waiting := _waiting(view, event.key, before.t, event.t)):
            found.say(f"{passed} ticks of {event.key}, and {waiting} waits", before, event)
    told = Counter[tuple[str, int]]()
    for event in view.of.get("tick", ()):
        found.judged += 1
        tick = event.key, event.extra["number"]
        told[tick] += 1
        if given.get(tick) != event.p or told[tick] > 1:
            found.say(f"tick {tick[1]} of {event.key} is not that of {event.p}", event)


def _waiting(view: View, name: str, began: float, ended: float) -> str:
    """Return a process that waited for ticks all that time, and that nothing happened to."""
    here = {e.p: e.t for e in view.of.get("ticker", ()) if e.key == name and e.type == "invoke"}
    gone = {e.p: e.t for e in view.of.get("ticker", ()) if e.key == name and e.type == "ok"}
    for p, at in here.items():
        over = min(gone.get(p, math.inf), view.died.get(p, math.inf))
        if at < began and over > ended:
            since = began - TICK_S
            if not view.hurts(DISTURBS, since, ended, {p.partition("/")[0]}):
                return p
    return ""


def _is_stepped(view: View, bounds: Bounds, began: float, ended: float) -> bool:
    """Say whether the server's clock was set then, or while a call was under way.

    A firing goes by the clock as its node was told it, and is written a call later.
    """
    return bool(view.excuses({"clock", STEP}, began - bounds.ttl_s, ended))


def _is_made_anew(view: View, since: float, event: Event) -> bool:
    """Say whether a schedule was removed and made again while the clock stood behind its times: a
    schedule knows nothing of those of before it.
    """
    made = (
        each.t
        for each in view.of.get("schedule", ())
        if each.key == event.key and each.extra["is_edit"] and not {"next", "look"} & {*each.extra}
    )
    return any(
        since < at <= event.t
        and any(
            fault.event.extra.get("step_s", 0.0) < 0
            for fault in view.excuses({"clock", STEP}, since, at)
        )
        for at in made
    )


def _is_lost(view: View, since: float, until: float) -> bool:
    return any(f.does == "loss" and f.since <= until and f.ended >= since for f in view.faults)
