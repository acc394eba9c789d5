"""The invariant of jobs that must begin by some time, or never do."""

from __future__ import annotations

import math
from bisect import bisect_right

from pool.core.record import NOT_IN_TIME
from tests.verify.history import Event
from tests.verify.invariants import Finding, invariant
from tests.verify.view import STEP, Bounds, Commit, View

CLAIM_PERIODS = 4  # so long it is known what somebody says of a step, see lib/clock.lua
COUNTED_S = 0.002  # Redis counts in whole milliseconds


@invariant("I53", "what is too late never begins")
def late_is_never(view: View, bounds: Bounds, found: Finding) -> None:
    """A job that has expired never ran, and was not expired before its time; one that ran was
    begun, by the store's own account, before that.  Lost data excuse what came after.

    Only pool time decides.  Where nobody vouches for it, it is what the callers of scripts expect:
    a call that a silent server keeps says when it was sent, and a node that has just come knows
    the time by its first round trip.  So an end counts only if it was stored while somebody
    vouched, and a job came too late if pool time had surely come so far.
    """
    for commit in view.commits:
        if commit.cause != NOT_IN_TIME:
            continue
        found.judged += 1
        had = view.by_job.get(commit.job, ())
        last = max((run.start.t for run in had), default=commit.order)
        if had and not view.loses(0.0, max(commit.order, last), commit.key):
            found.say(f"{commit.job} has expired, and ran", commit.event, had[0].start)
        tried = _tried(view, commit)
        if not tried:
            found.say(f"{commit.job} has expired, and might have begun at any time", commit.event)
        elif all(
            commit.order < _ends(view, each, commit, bounds)
            and not _is_untold(view, each.t, bounds)
            and _is_exact(view, each, commit.job, bounds)
            and view.vouches(commit.order, commit.order, bounds, view.lane_of(commit.key))
            for each in tried
        ):
            found.say(f"{commit.job} has expired before its time", commit.event, *tried)
    # Whoever has acknowledged it may have died before its handler was called.
    acks = {e.job: e for e in reversed(view.of.get("ack", ()))}
    for job, dispatch in view.accepted.items():
        expires_s, ack = dispatch.extra.get("expires_s"), acks.get(job)
        asked = view.invoked.get(dispatch.idem, dispatch)
        if not expires_s or ack is None:
            continue
        found.judged += 1
        is_exact = _is_exact(view, asked, job, bounds)
        found.exact += is_exact
        lane = view.lane_of(dispatch.key)
        by = dispatch.t + expires_s + COUNTED_S
        by += view.stepped_s(dispatch.t, ack.t, bounds, lane)
        if (
            is_exact
            and view.reached(ack.t, bounds, lane) > by
            and not _is_untold(view, ack.t, bounds)
            and not view.loses(dispatch.t, ack.t, dispatch.key)
        ):
            found.say(f"{job} began {ack.t - by:.2f} s too late", dispatch, ack)


def _tried(view: View, commit: Commit) -> list[Event]:
    """Return the dispatches that may have made the job."""
    dispatch = view.accepted.get(commit.job)
    of_key = [e for e in view.invoked.values() if commit.key in ("", e.key)]
    tried = of_key if dispatch is None else [view.invoked.get(dispatch.idem, dispatch)]
    return [each for each in tried if each.extra.get("expires_s")]


def _is_exact(view: View, asked: Event, job: str, bounds: Bounds) -> bool:
    """Say whether somebody vouched for pool time while the store took a dispatch."""
    taken = view.accepted.get(job, asked)
    return view.vouches(asked.t, max(asked.t, taken.t), bounds, view.lane_of(asked.key))


def _ends(view: View, asked: Event, commit: Commit, bounds: Bounds) -> float:
    lane = view.lane_of(commit.key)  # untold of what nobody ever had: then any will do
    lanes = [lane] if lane else ["", *view._answered]
    early_s = max(view.stepped_s(asked.t, commit.order, bounds, each) for each in lanes)
    return float(asked.t + asked.extra["expires_s"] - COUNTED_S - early_s)


def _is_untold(view: View, then: float, bounds: Bounds) -> bool:
    """Say whether a step that had been seen was not settled yet at a time: who was answered was not
    answered again for longer than a claim holds.
    """
    for step in view.excuses({"clock", STEP}, -math.inf, then):
        for heard in view._heard.values():
            at = bisect_right(heard, step.began)
            if at < len(heard):
                later = bisect_right(heard, heard[at] + bounds.renew_s / 2)
                again = heard[later] if later < len(heard) else math.inf
                is_old = again > heard[at] + CLAIM_PERIODS * bounds.renew_s
                if is_old and then <= again + 2 * bounds.renew_s + 1.0 < math.inf:
                    return True
    return False
