"""The invariant of versions and codecs that only some workers have."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from tests.verify.history import Event
from tests.verify.invariants import Finding, invariant
from tests.verify.view import DISTURBS, Bounds, View

LEFT: Final = ("of version", "codec")  # in what a worker says that leaves a job to others


@invariant("I74", "a job goes to a worker that can read it")
def goes_to_a_reader(view: View, bounds: Bounds, found: Finding) -> None:
    """A job that only some workers can read begins on none of the others, and is not parked for it.

    While nothing is wrong and a slot is free on a node that can read it, no worker leaves it twice,
    and it begins within B of the moment when the first worker left it.  I34 judges the same time
    from its dispatch.
    """
    left: dict[str, list[Event]] = {}
    for event in view.of.get("event", ()):
        if event.extra.get("event") == "attempt.failed" and _is_left(event):
            left.setdefault(event.extra["key"], []).append(event)
    parked = {commit.job: commit for commit in view.commits if commit.word == "parked"}
    for job, dispatch in view.accepted.items():
        readers = {*dispatch.extra.get("readers", ())}
        if not readers:
            continue
        found.judged += 1
        starts = [run.start for run in view.by_job.get(job, ())]
        for start in starts:
            if start.node not in readers:
                found.say(f"{job} began on {start.node}, which cannot read it", dispatch, start)
        if job in parked and not view.deaths_with(dispatch.key, job, math.inf):
            found.say(f"{job} was parked, and only some workers can read it", dispatch)
        if dispatch.key in left:
            _judge_left(view, bounds, found, job, dispatch, left[dispatch.key], starts)


def _is_left(event: Event) -> bool:
    return any(word in str(event.extra.get("error", "")) for word in LEFT)


def _judge_left(
    view: View,
    bounds: Bounds,
    found: Finding,
    job: str,
    dispatch: Event,
    left: list[Event],
    starts: list[Event],
) -> None:
    since = left[0].t
    by = since + bounds.takeover_s
    by += view.slack_s(since, by, bounds) + view.full_s(since, by, bounds)
    began = since - bounds.ttl_s
    at_end = view.final.t if view.final else view.events[-1].t
    readers = {*dispatch.extra["readers"]}
    is_known = view.well(began, by) & readers
    if by > at_end or not is_known or view.excuses(DISTURBS, began, by):
        return
    found.exact += 1
    took = min((start.t for start in starts if start.t > since), default=math.inf)
    if took > by and view.ended.get(job, math.inf) > by:
        waited = f"began {took - since:.2f} s" if took < math.inf else "never began"
        found.say(f"{job} {waited} after {left[0].node} had left it", dispatch, *left[:3])
    for node, times in Counter(event.node for event in left if event.t <= by).items():
        if times > 1:
            found.say(f"{node} was given {job} {times} times, and cannot read it", *left)
