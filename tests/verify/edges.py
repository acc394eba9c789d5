"""The invariants of the edges: causes, answers, parts, and how long anybody may be down.

What happened must have been asked for, or its limit reached; whoever asks is answered; nothing is
dead inside of what says that it is open; and nobody waits for longer than was promised, whatever
happened to others.  As in `invariants.py` excuses name the node, the lane and the time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

from pool.core.plans import plan_of
from pool.core.record import NOT_IN_TIME
from pool.core.settlement import TOO_LONG
from pool.names import OF_PLANS
from tests.verify.history import MOVED_S, Event
from tests.verify.invariants import AT_ONCE_S, Finding, due_by, invariant
from tests.verify.view import DISTURBS, LOOP_HANGS, Bounds, Commit, Run, View

IN_FLIGHT_S: Final = 0.1  # an acknowledgement may be, when its worker's loop begins to hang
LATE_MAX: Final = 30  # deaths by a job that kills late, in a fleet of two
ALIVE_S: Final = 0.05  # who lives so long is not suspected of having killed at once
RESULT_S: Final = 1.0  # from the commit to its waiter
ASK_AGAIN_S: Final = 5.0  # a waiter whose signal was lost asks by itself
BESIDE_S: Final = 0.1  # nobody waits longer beside a free slot, or is overtaken by more
CALLS: Final = frozenset({"dispatch", "result", "cancel", "notify", "map", "put", "add", "done"})


# --- causes ----------------------------------------------------------------------------------


@invariant("I30", "what was refused is not done")
def refused_is_not_done(view: View, _: Bounds, found: Finding) -> None:
    """A dispatch that surely failed never starts, `JobExists` included; a message that was surely
    refused is never handled.  A member of a batch is excused if the batch lost that it was refused,
    and somebody has asked for it once more.
    """
    began = {run.start.idem: run.start for run in reversed(view.runs)}
    for event in view.of.get("dispatch", ()):
        if event.type == "fail":
            found.judged += 1
            start = began.get(event.idem)
            if start is not None and not (
                _was_asked_anew(view, event, start) or _was_lost_with_it(view, event, start)
            ):
                found.say(f"{event.idem} failed with {event.err}, and ran", event, start)
    handled = {(e.job, e.extra["seq"]): e for e in view.of.get("note", ())}
    for event in view.of.get("notify", ()):
        if event.type == "fail":
            found.judged += 1
            note = handled.get((event.job, event.extra["seq"]))
            if note is not None and not view.loses(event.t, note.t, event.key):
                found.say(f"message {event.extra['seq']} failed with {event.err}", event, note)


def _was_lost_with_it(view: View, refused: Event, start: Event) -> bool:
    """Say whether the batch that refused it had been lost after it had begun."""
    if refused.err != "POOLNOBATCH":
        return False
    losses = view.excuses({"loss"}, start.t, refused.t, lane=view.lane_of(refused.key))
    return any(f.since <= start.t <= f.ended <= refused.t for f in losses)


def _was_asked_anew(view: View, refused: Event, start: Event) -> bool:
    asked = view.invoked.get(refused.idem, refused)
    return any(
        fault.since <= refused.t
        for again in view.of.get("again", ())
        if again.idem == refused.idem and asked.t <= again.t <= start.t
        for fault in view.excuses({"loss"}, asked.t, start.t, lane=again.extra["lane"])
    )


@invariant("I31", "nothing ends without its cause")
def causes(view: View, bounds: Bounds, found: Finding) -> None:
    """Cancelled means that somebody asked; a stop that was refused is not carried out; a time-out
    means that the limit was reached.
    """
    asked: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("cancel", ()):
        asked[event.job].append(event)
    for commit in view.commits:
        runs = view.by_job.get(commit.job, ())
        if commit.word == "cancelled":
            found.judged += 1
            own = any(run.end is not None and run.end.err == "cancel" for run in runs)
            is_planned = commit.cause.startswith("plan ") and plan_of(commit.job)
            if commit.cause == NOT_IN_TIME or is_planned or _was_displaced(view, commit):
                continue  # the first is for I53, the second for I65
            if not own and not _was_asked(asked[commit.job], commit.order + bounds.slack_s):
                why = "was refused" if asked[commit.job] else "nobody had asked"
                shown = (commit.event, *asked[commit.job][-1:])
                found.say(f"{commit.job} was cancelled, and {why}", *shown)
        elif commit.word == "parked" and commit.cause == "timed out":
            found.judged += 1
            _judge_limit(view, bounds, found, commit, runs)
    for run in view.runs:
        limit, end = run.start.extra.get("timeout_s"), run.end
        if end is not None and end.err == "timeout":
            found.judged += 1
            if not limit or end.t < run.start.t + limit - 0.002:
                took = end.t - run.start.t
                found.say(f"{run.start.job} timed out after {took:.2f} s of {limit}", end)


def _was_displaced(view: View, commit: Commit) -> bool:
    """Say whether a dispatch has ended it that might, as its cause says."""
    word, _, by = commit.cause.partition(" by ")
    policies = {"replaced": ("replace",), "superseded": ("replace", "coalesce")}.get(word, ())
    answered = view.accepted.get(by)
    tried = view.of.get("dispatch", ()) if answered is None else (answered,)
    return any(e.key == commit.key and e.extra.get("policy") in policies for e in tried)


def _was_asked(stops: Collection[Event], by: float) -> bool:
    """Say whether one stop at least was asked for by then, and was not refused."""
    asked = [event for event in stops if event.type == "invoke" and event.t <= by]
    refused = [event for event in stops if event.type == "fail"]
    return len(asked) > len(refused) or any(event.type in ("ok", "info") for event in stops)


def _judge_limit(
    view: View, bounds: Bounds, found: Finding, commit: Commit, runs: Collection[Run]
) -> None:
    of_it = [run.start for run in runs if run.start.attempt == commit.attempt]
    limit = next((s.extra["timeout_s"] for s in of_it if s.extra.get("timeout_s")), 0.0)
    tried = view.accepted.get(commit.job)
    is_not_begun = str(commit.event.extra.get("body", "")).startswith(TOO_LONG["start"])
    if of_it and not is_not_begun:
        first = min(of_it, key=lambda start: start.t)
        since = first.t
    elif tried is not None:  # no worker had begun it in time, be it after a hand-over
        first, limit = view.invoked.get(tried.idem, tried), tried.extra.get("start_s", 0.0)
        # If an owner stood still, the job waited again from when it was granted anew.
        grants = [event.t for event in view.of.get("own", ()) if event.job == commit.job]
        before = [
            min([run.ended, commit.order, *(at for at in grants if at > run.start.t)])
            for run in runs
            if run.start.t < commit.order
        ]
        since = max([first.t, *(before if is_not_begun else ())])
    else:
        return
    # The handler's first line may have waited for a processor since its limit was set.
    waited_s = view.waited_s(first.p, since, commit.order)
    if limit and commit.order >= since + limit - 0.002 - waited_s:
        return
    if view.hurts({"loss"}, since - limit, commit.order, (), view.lane_of(commit.key)):
        return
    early_s = view.stepped_s(since, commit.order, bounds)
    if limit and commit.order >= since + limit - 0.002 - waited_s - early_s:
        return
    took = commit.order - since
    found.say(f"{commit.job} timed out after {took:.2f} s of {limit}", commit.event, *of_it)


# --- answers ---------------------------------------------------------------------------------


@invariant("I32", "every call returns")
def calls_return(view: View, bounds: Bounds, found: Finding) -> None:
    """Each call of a process that lives has its end within its deadline, and before the process
    has left; while a process stands still, so does its deadline, which begins anew whenever the
    line moves.
    """
    left = {event.p: event.t for event in view.of.get("leave", ()) if event.type == "ok"}
    last = view.events[-1].t if view.events else 0.0
    moves: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("moved", ()):
        moves[event.p].append(event)
    # What was dispatched together is answered together: when the slowest of its lanes is done.
    together = Counter((event.p, event.t) for event in view.of.get("dispatch", ()))
    for asked, ended in _calls(view):
        found.judged += 1
        is_one = asked.f != "dispatch" or together[asked.p, asked.t] == 1
        lane = view.lane_of(asked.key) if is_one else ""
        within = asked.extra.get("within_s", bounds.call_s if ended is None else math.inf)
        by = _moved_on(moves[asked.p], lane, asked, asked.t + within, within, bounds)
        over = min(view.died.get(asked.p, math.inf), last)
        stood = [f for f in view.excuses({"pause"}, asked.t, over, asked.node) if f.target]
        for fault in (*stood, *(f for f in view.excuses({"pause"}, asked.t, over) if not f.target)):
            by += max(0.0, min(fault.ended, over) - max(fault.began, asked.t))
        by = _moved_on(moves[asked.p], lane, asked, by, within, bounds)
        by += view.slack_s(asked.t, asked.t if by == math.inf else by, bounds)
        at = ended.t if ended is not None else math.inf
        gone = left.get(asked.p, math.inf)
        if at > gone and view.died.get(asked.p, math.inf) >= gone:
            found.say(f"{asked.f} of {asked.key!r} was not answered when {asked.p} left", asked)
        elif at > by and over > by:
            took = f"after {at - asked.t:.2f} s" if ended else "never"
            found.say(f"{asked.f} of {asked.key!r} returned {took}, not in {within} s", asked)


def _moved_on(
    moves: Sequence[Event], lane: str, asked: Event, by: float, within: float, bounds: Bounds
) -> float:
    """Return by when a call must have ended whose line has moved then: so long after the last time,
    but never later than half of a retry window."""
    for moved in moves[bisect_left(moves, asked.t, key=attrgetter("t")) :]:
        if moved.t > by:
            break
        if not lane or moved.extra["lane"] in ("", lane):
            again = min(moved.t + MOVED_S + within, asked.t + max(bounds.longest_s, within))
            by = max(by, again)
    return by


def _calls(view: View) -> Iterator[tuple[Event, Event | None]]:
    """Yield each call and its end."""
    for f in CALLS:
        going: dict[tuple[object, ...], list[Event]] = defaultdict(list)
        for event in view.of.get(f, ()):
            which = event.p, event.idem or (event.key, event.job, event.extra.get("seq"))
            if event.type == "invoke":
                going[which].append(event)
            elif going[which]:
                yield going[which].pop(0), event
        for left in going.values():
            for event in left:
                yield event, None


@invariant("I33", "what says open is alive")
def parts_live(view: View, bounds: Bounds, found: Finding) -> None:
    """No part of a node is dead for longer than a restart takes while the node says `open`."""
    since: dict[tuple[str, str], Event] = {}
    for event in view.of.get("health", ()):
        found.judged += 1
        dead = set(event.extra["dead"]) if event.extra["state"] == "open" else set()
        for p, part in [each for each in since if each[0] == event.p and each[1] not in dead]:
            del since[p, part]
        for part in sorted(dead):
            first = since.setdefault((event.p, part), event)
            stood = view.hurts({"pause"}, first.t, event.t, {event.node})
            late = event.t - first.t - sum(min(f.ended, event.t) - f.began for f in stood)
            if first.t < math.inf and late > bounds.takeover_s + bounds.slack_s:
                found.say(f"{part} of {event.p} is dead, and the node says open", first, event)
                since[event.p, part] = _SAID


_SAID: Final = Event(n=0, t=math.inf, p="", type="ok", f="health")


# --- how long anybody waits ------------------------------------------------------------------


@invariant("I34", "what is accepted begins in time")
def begins_in_time(view: View, bounds: Bounds, found: Finding) -> None:
    """Within B of its acceptance, or of the end of its delay, a job is started where there is room,
    also if it was granted to a loop that hangs; so it is within B of the end of a retry's wait.
    """
    for job, dispatch in view.accepted.items():
        asked = view.invoked.get(dispatch.idem, dispatch)
        runs = view.by_job.get(job, ())
        delay_s = dispatch.extra.get("delay_s", 0.0)
        due = max(dispatch.t, asked.t + delay_s, view.turn(job, dispatch))
        if runs and runs[0].start.attempt > 1 and dispatch.extra.get("start_s"):
            continue  # it had waited for so long before, and failed
        found.judged += 1
        _judge_wait(view, bounds, found, dispatch, due, runs[0].start if runs else None)
        for run, after in pairwise(runs):
            if run.end is None or after.start.attempt != run.start.attempt + 1:
                continue
            found.judged += 1
            wait_s = run.end.extra.get("after_s", bounds.backoff_max_s)
            due = run.end.t + wait_s
            _judge_wait(view, bounds, found, run.end, due, after.start, has_it=run.end.node)


def _judge_wait(
    view: View,
    bounds: Bounds,
    found: Finding,
    event: Event,
    due: float,
    start: Event | None,
    *,
    has_it: str = "",  # who must settle before others can begin
) -> None:
    key, took = event.key, start.t if start else math.inf
    job = start.job if start else event.job
    if took <= due + bounds.takeover_s or view.ended.get(job, math.inf) <= due + bounds.takeover_s:
        return
    if view.is_gone(event) if event.f == "dispatch" else view.loses(event.t, took, key):
        return
    if (event.f != "dispatch" or event.extra.get("delay_s")) and view.is_misled(event):
        return
    # The grant comes before its answer.
    asked = view.invoked.get(event.idem, event) if event.f == "dispatch" else event
    since = asked.t
    due += view.stepped_s(since, took, bounds, view.lane_of(key))
    at_end = view.final.t if view.final else view.events[-1].t
    grants = (e for e in view.grants.get(key, ()) if since <= e.t <= took)
    owners = {view.process_of(e.nonce) for e in grants}

    def due_within(wait_s: float) -> float:
        return view.due_by(
            due,
            wait_s,
            bounds,
            involved=lambda by: view.granted(key, since, by) | {has_it},
            # What it had acknowledged by then it keeps, though it may not have begun (G-06).
            keeps=lambda fault: view.acknowledged(
                key, since, fault.began + IN_FLIGHT_S, fault.target
            ),
            lane=view.lane_of(key),
            readers=view.readers(job),
            owners=owners,
        )

    wait_s = bounds.takeover_s
    by = due_within(wait_s)
    if took > by:
        held = view.granted(key, since, by)
        ends = [fault.ended for fault in view.excuses({"crash"}, since, by) if fault.target in held]
        # Granted within two periods of the last renewal of a dead one it may have begun there.
        deaths = (view.died.get(owner, math.inf) for owner in owners)
        ends += [
            died
            for died in deaths
            if died <= since
            and (
                view.loses(died, since, key)  # its lease may have come back with older data
                or view.ran_s(died, since, bounds, view.lane_of(key)) <= 2 * bounds.renew_s
            )
        ]
        if ends:
            # Whoever had it died with it: it may be what did that, and begins as such (13.8).
            wait_s += bounds.suspects_s + view.late_s(start or event, max(ends), bounds)
            wait_s += view.unbegun_coin_s(job, since, min(took, at_end))
            by = due_within(wait_s)
    by += view.slack_s(due, by, bounds)
    if took > by:
        # What it waits for a slot it waits for a fault that comes meanwhile, too.
        by = due_within(wait_s + view.full_s(due, min(took, at_end), bounds))
        by += view.slack_s(due, by, bounds)
    if took > by and view.ended.get(job, math.inf) > by and by < at_end:
        waited = f"began after {took - due:.2f} s" if start else "never began"
        found.say(f"{job} of {key!r} {waited}, not within {by - due:.2f} s", event, start)


@invariant("I41", "nobody waits beside a free slot")
def room_is_used(view: View, bounds: Bounds, found: Finding) -> None:
    """In peace, what is accepted begins before any process has had a slot free for 0.1 s, and no
    more than 0.1 s after what was asked for later in its lane, but for one that was held ahead and
    given back (DESIGN 13.7, docs/explanation/placement.md).  So does what is due.
    """
    moved = [e.t for f in ("boot", "join", "leave") for e in view.of.get(f, ())]
    moved += view.died.values()
    # Who was aboard waits for its time and its trial, and slots are kept for it.
    suspected = [
        (view.died[run.start.p], later.start.t)
        for runs in view.by_key.values()
        for run, later in pairwise(runs)
        if run.end is None and run.start.p in view.died
    ]
    # So does who had been granted: its owner died before it could tell whether it had begun.
    for moved_on in view.of.get("requeue", ()):
        if moved_on.extra.get("dead") and moved_on.job:
            starts = (run.start.t for run in view.by_job.get(moved_on.job, ()))
            ended = view.ended.get(moved_on.job, math.inf)
            back = min((at for at in starts if at > moved_on.t), default=ended)
            suspected.append((moved_on.t, back))

    def in_peace(asked: float, start: Event) -> bool:
        since = asked - 2 * bounds.ttl_s
        return (
            not view.excuses(DISTURBS | LOOP_HANGS, since, start.t)
            and not any(since <= at <= start.t for at in moved)
            and not any(died <= start.t and asked <= back for died, back in suspected)
        )

    begun: dict[tuple[object, ...], list[tuple[float, float, Event, Event]]] = defaultdict(list)
    for job, accepted in view.accepted.items():
        asked, runs = view.invoked.get(accepted.idem, accepted), view.by_job.get(job, ())
        if not runs or asked.extra.get("delay_s") or runs[0].start.attempt > 1:
            continue
        start = runs[0].start
        if not in_peace(asked.t, start):
            continue
        readers = {*accepted.extra.get("readers", ())}
        if readers and not view.granted(start.key, asked.t, start.t) <= readers:
            continue  # a worker that cannot read it has left it, and it waits a backoff: I74
        found.judged += 1
        since = max(accepted.t, view.turn(job, accepted))
        if bounds.slots and start.t > since + BESIDE_S:
            free_s = view.free_s(since, start.t, bounds)
            if free_s > BESIDE_S:
                found.say(f"{job} waited {free_s:.2f} s beside a free slot", accepted, start)
        queue = ("kind", "timeout_s", "poison")  # one per handler
        kind = (view.lane_of(start.key), *(start.extra.get(name) for name in queue))
        # Who was held ahead and given back waited meanwhile where others did not look: order can be
        # judged only where it is told how often a job was granted.
        if (
            since == accepted.t
            and sum(e.t <= start.t for e in view.grants.get(start.key, ()) if e.job == job) == 1
        ):
            begun[kind].append((accepted.t, asked.t, accepted, start))
    for since, told, said, start in _due(view, bounds):
        if not bounds.slots or not in_peace(told, start):
            continue
        died = (
            run for run in view.by_job[start.job] if run.end is None and run.start.p in view.died
        )
        if any(view.died[run.start.p] <= start.t for run in died):
            continue  # a suspect: it waits for its trial, too
        found.judged += 1
        if start.t > since + BESIDE_S:
            free_s = view.free_s(since, start.t, bounds)
            if free_s > BESIDE_S:
                found.say(f"{start.job} was due for {free_s:.2f} s beside a free slot", said, start)
    for some in begun.values():
        later: Event | None = None  # the first to begin of those that were asked for later
        behind = sorted(some, key=lambda each: each[1])
        for at, _, accepted, start in sorted(some, key=lambda each: each[0], reverse=True):
            while behind and behind[-1][1] > at:
                other = behind.pop()[3]
                later = other if later is None or other.t < later.t else later
            if later is not None and later.t < start.t - BESIDE_S:
                found.say(f"{start.job} began after {later.job}, asked for later", accepted, start)


def _due(view: View, bounds: Bounds) -> Iterator[tuple[float, float, Event, Event]]:
    """Yield when each delay or retry is due, since when it is known, who says so, its start."""
    for job, runs in view.by_job.items():
        accepted = view.accepted.get(job)
        delay_s = accepted.extra.get("delay_s") if accepted else 0.0
        if accepted and delay_s:
            asked = view.invoked.get(accepted.idem, accepted)
            since = max(accepted.t + delay_s, view.turn(job, accepted))
            yield since, asked.t, accepted, runs[0].start
        for before, after in pairwise(runs):
            end = before.end
            if end is None or after.start.attempt != before.start.attempt + 1:
                continue
            if end.err in ("retry", "error"):
                wait_s = end.extra.get("after_s", bounds.backoff_max_s)
                yield end.t + wait_s, end.t, end, after.start


@invariant("I35", "innocents are back soon")
def innocents_return(view: View, bounds: Bounds, found: Finding) -> None:
    """Whatever ended a run from outside (its process died, its lease ended, its node left), the key
    runs again within TTL + 6 s, in a young process after a random time beyond that, whatever it is
    suspected of (DESIGN 13.8).
    """
    stopped = {event.job for event in view.of.get("cancel", ())}
    last = view.final.t if view.final else view.events[-1].t if view.events else 0.0
    for runs in view.by_key.values():
        for at, run in enumerate(runs):
            died = view.died.get(run.start.p)
            if run.end is None and died is not None:
                since = died
            elif run.end is not None and run.end.err == "cancelled":
                since = run.end.t
            else:
                continue
            later = runs[at + 1] if at + 1 < len(runs) else None
            if run.start.extra.get("poison") or run.start.job in stopped:
                continue
            found.judged += 1
            took = later.start.t if later else math.inf
            more_s = bounds.suspects_s + view.late_s(run.start, since, bounds)
            if took <= since + bounds.takeover_s + more_s or (later and later.start.t < since):
                continue
            # In a crash loop of one process a coin may hold it for a round.
            by = due_by(view, bounds, run, since, more_s=more_s + view.coin_s(run))
            by += view.slack_s(since, by, bounds)
            if took > by:
                by += view.full_s(since, min(took, last), bounds)
            if run.end is not None and run.start.extra.get("timeout_s"):
                by += bounds.backoff_max_s
            is_late = took > by and by < last and view.ended.get(run.start.job, math.inf) > by
            if is_late and not view.loses(run.start.t - bounds.ttl_s, by, run.start.key):
                said = f"after {took - since:.2f} s" if later else "never"
                shown = (run.start, run.end, later.start if later else None)
                found.say(f"{run.start.key!r} was back {said}", *shown)


def _missed(view: View, bounds: Bounds, starts: Sequence[Event]) -> int:
    """Return after how many of these deaths its reaper did not find the job: keys were deleted, and
    the walk that found it later, its owner being gone, does not know of what that died.
    """
    lost = [fault.began for fault in view.faults if fault.kind == "lost-index"]
    found = [
        event
        for event in view.of.get("event", ())
        if event.extra.get("event") == "index.restored"
        and event.extra["index"] == "owner"
        and any(began <= event.t for began in lost)
    ]
    return sum(
        any(
            before.t < event.t <= after.t + bounds.slack_s
            and str(event.extra["lane"]) == view.lane_of(before.key)
            and (event.extra["key"] == before.key or event.extra["keys"] > 1)  # it names the first
            for event in found
        )
        for before, after in pairwise(starts)
    )


def _seems_late(view: View, start: Event) -> bool:
    """Say whether one that killed was acknowledged long before its handler was called: its process
    stood still, or was cut off from the answer.
    """
    return any(
        view.died[start.p] > ack.t + AT_ONCE_S
        and view.hurts({"pause", "cut"}, ack.t, start.t, {start.node}, view.lane_of(start.key))
        for ack in view.of.get("ack", ())
        if (ack.key, ack.epoch, ack.nonce) == (start.key, start.epoch, start.nonce)
        and ack.t <= start.t
    )


@invariant("I36", "poison kills few, and nobody else is given up")
def poison_kills_few(view: View, bounds: Bounds, found: Finding) -> None:
    """A job that ends its process at once does so as often as the evidence needs in young processes
    (once more for each other process that died or left meanwhile, and for each death after which no
    index led to it; late ones need dice, and many more deaths than a history has).  A job is given
    up as poison only if it ended a process, whatever else ended those that it was in.
    """
    # Where two of them run together the history says whose deed it was.
    guilty = {
        (fault.event.extra["by"], fault.began) for fault in view.faults if "by" in fault.event.extra
    }
    # One that holds the GIL for longer than a TTL ends its process as far as others can see.
    holds = {run.start.job for run in view.runs if run.start.extra.get("hurts") == "hold"}
    killers = holds | {job for job, _ in guilty}
    for job, runs in view.by_job.items():
        killed = [run for run in runs if run.start.extra.get("poison") and run.end is None]
        deaths = [
            run
            for run in killed
            if run.start.p in view.died and (not guilty or (job, view.died[run.start.p]) in guilty)
        ]
        if not deaths:
            continue
        killers.add(job)
        found.judged += 1
        lane = view.lane_of(runs[0].start.key)
        losses = view.excuses({"loss"}, deaths[0].start.t, deaths[-1].start.t, lane=lane)
        # Its marks may be lost with the data, and then it begins anew.
        starts = [-math.inf, *(fault.ended for fault in losses), math.inf]
        for began, ended in pairwise(starts):
            here = [run.start for run in deaths if began < run.start.t <= ended]
            if not here:
                continue
            own = {view.died[start.p] for start in here}
            others = [at for at in view.died.values() if here[0].t <= at <= max(own)]
            left = [f for f in view.faults if f.does == "leave" and f.began <= max(own)]
            allowed = bounds.deaths_at_once(len(view.by_job)) + len(left)
            allowed += max(0, len(others) - len(here)) + _missed(view, bounds, here)
            is_late = any(
                view.died[start.p] > start.t + ALIVE_S or _seems_late(view, start) for start in here
            )
            if len(here) > allowed + is_late * LATE_MAX:
                found.say(f"{job} ended {len(here)} processes", here[0], here[-1])
    for commit in view.commits:
        if commit.word == "parked" and commit.cause == "poison":
            found.judged += 1
            died = [r.start for r in view.by_job.get(commit.job, ()) if r.start.p in view.died]
            if commit.job not in killers:
                text = f"{commit.job} was given up as poison, and never ended a process"
                found.say(text, commit.event, *died)
            elif len(died) < bounds.crashes_max and commit.job not in holds:
                text = f"{commit.job} was given up as poison, and {len(died)} processes had died"
                found.say(text, commit.event, *died)


def _process_of(view: View, name: str) -> str:
    """Return the process whose identities begin so, in whichever lane."""
    found = {process for identity, process in view.process.items() if identity.startswith(name)}
    return min(found, default="")


@invariant("I40", "who lives has killed nobody")
def the_living_leave_no_marks(view: View, bounds: Bounds, found: Finding) -> None:
    """At the end no job is suspected of the death of a process that lives: who stood still, or was
    cut off, and came back has said so; not so whom its own code kept from renewing.  What was said
    may have been lost with the data.
    """
    held = {fault.target for fault in view.faults if fault.kind == "hold-gil"}
    marks = view.final.extra.get("marks", {}) if view.final else {}
    for key, names in marks.items():
        for name in names:
            process = _process_of(view, name.partition("@")[0])
            found.judged += 1
            if process.partition("/")[0] in held:
                continue
            if process and process not in view.died and not view.loses(0.0, math.inf, key):
                found.say(f"{key!r} is suspected of the death of {name} ({process})", view.final)


@invariant("I37", "results come soon")
def results_come_soon(view: View, bounds: Bounds, found: Finding) -> None:
    """Who waits for a result has it 1 s after the commit; where a signal may have been lost, when
    it has asked again; where the commit was lost before that, as soon after the next one.
    """
    settled: dict[str, list[Commit]] = defaultdict(list)
    for commit in view.settled:
        settled[commit.job].append(commit)
    for asked, ended in _calls(view):
        commits = settled[asked.job] if asked.f == "result" else []
        found.judged += bool(commits)
        at = ended.t if ended is not None else math.inf
        gone = min(view.died.get(asked.p, math.inf), view.events[-1].t)
        told = ended is not None and ended.err == "CANCELLED"
        for commit in commits:
            since, by = max(asked.t, commit.order), _told_by(view, bounds, asked, commit)
            if commit is not commits[-1] and view.is_undone(commit, by):
                continue
            if at > by and gone > by and not (told and at <= since):
                said = f"{at - since:.2f} s" if ended else "for ever"
                found.say(f"result of {asked.job} took {said}", asked, commit.event, ended)
            break


def _told_by(view: View, bounds: Bounds, asked: Event, commit: Commit) -> float:
    """Return by when who asked for a result must have been told of this commit."""
    since = max(asked.t, commit.order)
    by = since + RESULT_S + view.slack_s(since, since + RESULT_S, bounds)
    lane = view.lane_of(asked.key)
    settler = view.process_of(commit.nonce).partition("/")[0]
    nodes = {asked.node, settler}
    began = asked.t - bounds.ttl_s
    # A full server takes no waiter's name: it asks again, too.
    if not settler or view.hurts(DISTURBS | {"full"}, began, by, nodes, lane):
        by += ASK_AGAIN_S
        while hurt := view.hurts(DISTURBS, began, by, {asked.node}, lane):
            later = max(f.ended for f in hurt) + ASK_AGAIN_S + RESULT_S + bounds.ttl_s
            if later <= by:
                break
            by = later
    return by


@invariant("I39", "who comes is there soon")
def joins_in_time(view: View, bounds: Bounds, found: Finding) -> None:
    """A process that begins takes jobs within a TTL in every lane that is there, whatever happens
    to others.
    """
    joined: dict[tuple[str, str], float] = {}
    for event in view.of.get("join", ()):
        if event.extra.get("worker"):
            lane = event.nonce.rpartition("@")[2] if "@" in event.nonce else ""
            joined.setdefault((event.p, lane), event.t)
    # Those that anything was dispatched to; where nothing was, those that somebody has joined.
    lanes = {lane for lane in view.lanes.values() if lane} or {lane for _, lane in joined} or {""}
    last = view.events[-1].t if view.events else 0.0
    for boot in view.of.get("boot", ()):
        for lane in sorted(lanes):
            found.judged += 1
            at = joined.get((boot.p, lane), math.inf)
            by = boot.t + bounds.ttl_s
            while hurt := view.hurts(DISTURBS, boot.t - bounds.ttl_s, by, {boot.node}, lane):
                later = max(fault.ended for fault in hurt) + bounds.ttl_s + bounds.takeover_s
                if later <= by:
                    break
                by = later
            by += view.slack_s(boot.t, by, bounds)
            left = min((e.t for e in view.of.get("leave", ()) if e.p == boot.p), default=math.inf)
            gone = min(view.died.get(boot.p, math.inf), left, last)
            if at > by and gone > by:
                took = f"after {at - boot.t:.2f} s" if at < math.inf else "never"
                found.say(f"{boot.p} takes jobs of lane {lane or 0} {took}", boot)


@invariant("I38", "at the end all is as it should be")
def all_is_well(view: View, _: Bounds, found: Finding) -> None:
    """Each service runs exactly once, in a process that lives, and each living worker takes keys
    in each lane, unless the others have all its slots.
    """
    if view.final is None:
        return
    at = view.final.extra.get("began", view.final.t)
    for key, (job, state, kind) in view.final.extra.get("jobs", {}).items():
        if kind != "service" or key.startswith(OF_PLANS):
            continue  # who keeps a plan writes no history: what comes of it does
        found.judged += 1
        going = [
            run
            for run in view.by_key.get(key, ())
            if run.start.job == job and run.start.t <= at and run.ended > at
        ]
        if len(going) != 1:
            shown = (run.start for run in going)
            found.say(f"service {key!r} ({state}) runs {len(going)} times", view.final, *shown)
    takes: Mapping[str, int] = view.final.extra.get("takes", {})
    for worker in view.final.extra.get("working", ()):
        found.judged += 1
        if takes.get(worker, 0) <= 0:
            found.say(f"{worker} lives, and takes no keys", view.final)
