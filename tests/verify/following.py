"""The invariant of followers: they are released once, when their predecessor has ended so."""

from __future__ import annotations

import math
from collections import defaultdict

from tests.verify.history import Event
from tests.verify.invariants import Finding, invariant
from tests.verify.view import Bounds, Commit, View


@invariant("I61", "followers are released as their job ended")
def followers_are_released(view: View, _: Bounds, found: Finding) -> None:
    """Who follows a job that is done, or one that is not, is accepted, and nobody else is; one that
    is told the result is told what was stored; and no message is left under way.  Lost data excuse
    what came before.
    """
    accepted = {event.idem: event for event in view.accepted.values()}
    ends: dict[str, list[Commit]] = defaultdict(list)
    made_of = {event.job: event.extra["of"] for event in view.of.get("replayed", ())}
    for commit in view.commits:
        job = commit.job
        ends[job].append(commit)
        while job in made_of:  # who follows a letter's job follows what was made of the letter
            job = made_of[job]
            ends[job].append(commit)
    followed = {event.idem: event for event in reversed(view.of.get("follow", ()))}
    told = {run.start.idem: run.start for run in view.runs if "told" in run.start.extra}
    for token, follow in followed.items():
        found.judged += 1
        before, mine = accepted.get(follow.extra["of"]), accepted.get(token)
        if before is None:
            asked = view.invoked.get(follow.extra["of"])
            if mine is not None and asked is None:
                found.say(f"{token} was released, and what it follows was never there", mine)
            continue  # of an unknown outcome: whoever was accepted is in no answer
        commits = ends[before.job]
        if not commits:
            if mine is not None and not _is_lost(view, before, mine):
                found.say(f"{token} was released before {before.job} had ended", before, mine)
            continue
        first, wanted = commits[0], {(c.word == "done") == _is_then(follow) for c in commits}
        # Of a dump it is not known when they were settled.
        since = first.event if view.settled else before
        if mine is None and wanted == {True} and not _is_lost(view, since, view.final):
            found.say(f"{token} was never released by {before.job}", first.event, follow)
        elif mine is not None and wanted == {False} and not _is_lost(view, before, mine):
            found.say(f"{token} was released by {before.job}: {first.word}", first.event, mine)
        start = told.get(token)
        if start is not None and _is_then(follow):
            results = [[follow.extra["of"], c.epoch, c.attempt] for c in commits]
            if start.extra["told"] not in results:
                found.say(f"{token} was told {start.extra['told']}", first.event, start)
    for left in view.final.extra.get("out", ()) if view.final is not None else ():
        found.say(f"message {left} was not carried over", view.final)


def _is_then(follow: Event) -> bool:
    return bool(follow.extra["when"] == "then")


def _is_lost(view: View, since: Event, until: Event | None) -> bool:
    """Say whether data of any lane were lost meanwhile, as of a moment before that, too."""
    at = until.t if until is not None else math.inf
    return any(f.does == "loss" and f.since <= at and f.ended >= since.t for f in view.faults)
