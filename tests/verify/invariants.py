"""The invariants, one short function each: what has been looked at, and what was wrong.

Ownership here is a grant by a script, under an epoch that rises with every grant in its lane, so
one number is at once the order of owners and the fencing token.  `commit` is the settlement.  Jobs
that reach out of the pool write their effect to a resource that fences by epoch.

What a fault excuses is written at the function, and only a fault of the history excuses anything:
the residual windows of G-03 are `pause`, `stubborn` and `clock`.  Bounds of time grow besides by
what threads waited for a processor (`View.slack_s`).

Not judged:  see NOT_YET.
"""

from __future__ import annotations

import json
import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import attrs

from pool.names import key_of
from tests.verify.history import CONTROL, TOTAL, Event
from tests.verify.view import (
    CUTS_OFF,
    DISTURBS,
    HANGS,
    LOOP_HANGS,
    LOST,
    SILENCES,
    STEP,
    STEP_S,
    STOPS,
    TERMINAL_ERRORS,
    Bounds,
    Commit,
    Fault,
    Run,
    View,
)

HANDED_BACK_S: Final = 0.5  # after its grant a job is, by whom cannot read it; nobody tells when
RESIDUAL: Final = frozenset({"pause", "stubborn", "clock"})  # G-03
MOVED: Final = "service.moved"


@attrs.frozen
class Violation:
    """What was wrong, and the events that show it."""

    invariant: str
    text: str
    events: tuple[Event, ...] = ()


@attrs.define
class Finding:
    """What one invariant found."""

    invariant: str
    judged: int = 0  # of what it speaks of, in this history; a clean 0 proves nothing
    exact: int = 0  # of these, at the promised bound, to which no fault added anything
    wrong: list[Violation] = attrs.field(factory=list)

    def say(self, text: str, *events: Event | None) -> None:
        """Take a violation."""
        self.wrong.append(Violation(self.invariant, text, tuple(e for e in events if e)))


Check: TypeAlias = Callable[[View, Bounds, Finding], None]
INVARIANTS: Final[dict[str, tuple[str, Check]]] = {}
NOT_YET: Final = {
    "I12b": "only simulated worlds give idempotency keys; I12 judges the library's own repeats",
}


def invariant(name: str, meaning: str) -> Callable[[Check], Check]:
    """Register a function as the check of an invariant."""

    def register(check: Check) -> Check:
        INVARIANTS[name] = (meaning, check)
        return check

    return register


# --- jobs ------------------------------------------------------------------------------------


def _live(view: View) -> dict[str, str]:
    """Return job -> kind of what has a record at the end."""
    return {job: kind for job, _, kind in _jobs(view).values()}


def _jobs(view: View) -> Mapping[str, Sequence[str]]:
    """Return name -> id, state and kind of what has a record at the end."""
    found: Mapping[str, Sequence[str]] = view.final.extra.get("jobs", {}) if view.final else {}
    return found


@invariant("I1", "nothing accepted is lost")
def no_loss(view: View, bounds: Bounds, found: Finding) -> None:
    """An accepted job has ended, or still has a record; lost data excuse what came before.

    Where outcomes are not kept for as long as the run lasts, that of one whose asker died is told
    to nobody: then its handler must have ended.
    """
    if view.final is None:
        return
    ended, live = view.ended, _live(view)
    for job, dispatch in view.accepted.items():
        found.judged += 1
        if job not in ended and job not in live and not view.is_gone(dispatch):
            runs = view.by_job.get(job)
            is_told = bounds.keeps_outcomes or dispatch.p not in view.died
            if is_told or not runs or runs[-1].end is None:
                found.say(f"{job} of {dispatch.key!r} was accepted and is nowhere", dispatch)
    for event in view.of.get("replayed", ()):
        found.judged += 1
        is_there = event.job in ended or event.job in live
        if not is_there and not view.loses(event.t, math.inf, event.key):
            found.say(f"{event.job} of {event.key!r} was made of a letter and is nowhere", event)
    for event in view.of.get("result", ()):
        if event.err == LOST:
            found.judged += 1
            if not view.excuses({"loss"}, 0.0, event.t, lane=view.lane_of(event.key)):
                found.say(f"{event.job} was said to be lost, and nothing was", event)


@invariant("I2", "nothing is stuck")
def no_stuck(view: View, bounds: Bounds, found: Finding) -> None:
    """Every job ends in time after `heal`; only a service may still be there at the end.

    Jobs that hurt their own process are tried again after `heal`: then time counts from the end of
    the last such hurt that came before the job's end, as it evicts what waited there.  What waits
    for a time that was named by one whom a step of the clock misled may wait for as long, and so
    may what stands behind it in the queue of its key.  While no process is there that takes jobs,
    or none that can read this one, no time counts.
    """
    ended, live = view.ended, _live(view)
    misled = {job for job, dispatch in view.accepted.items() if _waits_misled(view, job, dispatch)}
    since_s: dict[str, float] = {}  # key -> since when a queue stands behind such a job
    for job in misled & live.keys():
        key, at = view.accepted[job].key, view.accepted[job].t
        since_s[key] = min(at, since_s.get(key, math.inf))
    misled |= {job for job, d in view.accepted.items() if d.t >= since_s.get(d.key, math.inf)}
    # Of what was never said to be accepted it is not told which dispatch of its key it is of.
    keys = {job: key_of(name) for name, (job, *_) in _jobs(view).items()}
    asked = [e for e in view.of.get("dispatch", ()) if e.type == "invoke"]
    misled |= {
        job
        for job in live.keys() - view.accepted.keys()
        if any(e.key == keys[job] and _waits_misled(view, job, e) for e in asked)
    }
    left = {job for job, kind in live.items() if kind == "job"}
    is_ended = view.final is not None and not view.final.extra.get("drained", True)
    at_end = view.final.t if view.final else math.inf
    if is_ended and not (left and left <= misled):
        found.say("the run was ended by the harness, not by its last job", view.final)
    late = [f for f in view.faults if f.does in ("pause", "crash") and f.ended > view.healed]
    for job, dispatch in view.accepted.items() if view.healed < math.inf else ():
        found.judged += 1
        if job in misled:
            continue
        end = ended.get(job, math.inf)
        hurts = (f.ended for f in late if f.ended <= end)
        since = max(view.healed, view.turn(job, dispatch), dispatch.t, max(hurts, default=0.0))
        since = view.served_from(since, bounds.slack_s, view.readers(job))
        by = since + bounds.quiet_s
        by += view.slack_s(since, by, bounds) - bounds.slack_s
        by += view.stepped_s(dispatch.t, by, bounds)
        if live.get(job) == "job" and (dispatch.p != "server" or by < at_end):  # a schedule goes on
            found.say(f"{job} of {dispatch.key!r} has not ended", dispatch)
        elif ended.get(job, 0.0) > by:
            found.say(f"{job} ended {ended[job] - by:.2f} s too late", dispatch)


def _waits_misled(view: View, job: str, dispatch: Event) -> bool:
    """Say whether what a job waits for was named by one whom a step of the clock misled."""
    runs = view.by_job.get(job, ())
    named = [run.end for run in runs if run.end and run.end.err in ("retry", "error")]
    if dispatch.extra.get("delay_s"):
        named.append(dispatch)
    if readers := dispatch.extra.get("readers"):  # who cannot read it gives it back, for a while
        for grant in view.grants.get(dispatch.key, ()):
            p = view.process_of(grant.nonce)
            if grant.job == job and p.partition("/")[0] not in readers:
                named.append(attrs.evolve(grant, p=p, t=grant.t + HANDED_BACK_S))
    return any(view.is_misled(event) for event in named)


@invariant("I3", "one committing owner")
def one_committer(view: View, bounds: Bounds, found: Finding) -> None:
    """The epochs of a key's settlements never fall in the order in which the store took them."""
    if not view.settled and view.excuses({"clock", STEP}, 0, math.inf):
        return  # the dump orders by the server's clock, which jumped
    highest: dict[str, Commit] = {}
    for commit in view.commits:
        found.judged += 1
        before = highest.get(commit.key)
        if not commit.nonce:  # of what nobody owned, as of one that was queued behind it
            continue
        if before is None or commit.epoch >= before.epoch:
            highest[commit.key] = commit
        elif commit.key and not _lost_between(view, before.order, commit.order):
            found.say(
                f"{commit.key!r}: epoch {commit.epoch} ({commit.job}) settled after "
                f"{before.epoch} ({before.job})",
                before.event,
                commit.event,
            )


def _lost_between(view: View, began: float, ended: float) -> bool:
    return bool(view.excuses({"loss"}, began, ended))


def is_reborn(view: View, event: Event) -> bool:
    """Say whether numbers could come twice: the last ones were lost, and the clock was set back."""
    before = {fault.does for fault in view.faults if fault.began <= event.t}
    return "loss" in before and not before.isdisjoint({"clock", STEP})


def _is_undone(view: View, claim: Event, event: Event) -> bool:
    """Say whether that claim may have been lost since: then the one before it stands again."""
    dead = claim.nonce if claim.f == "lock" else claim.extra["dead"]
    return bool(view.excuses({"loss"}, claim.t, event.t, lane=dead.partition("@")[2]))


@invariant("I70", "epochs of a key never fall")
def epochs_never_fall(view: View, bounds: Bounds, found: Finding) -> None:
    """A key is granted under no lower epoch than one that a handler has begun under before.

    Neither a loss of data nor a step of the clock is an excuse: whoever fences by epoch would
    refuse the new owner.  Only after a loss the process that ran it must have been there again,
    with a lease that it asked for since: nobody else is sure to know.  That process itself begins
    none without it, either.
    """
    highest: dict[str, Event] = {}
    there: dict[str, list[tuple[float, float]]] = defaultdict(list)  # when asked, and answered
    for f in ("join", "renew"):
        for event in view.of.get(f, ()):
            if event.type == "ok":
                who = f"{event.p}@{event.nonce.partition('@')[2]}"
                there[who].append((event.extra.get("asked", event.t), event.t))

    def is_known(before: Event, at: float) -> bool:
        lane = view.lane_of(before.key)
        lost = max((f.ended for f in view.excuses({"loss"}, before.t, at, lane=lane)), default=None)
        told = there[f"{before.p}@{lane}"]
        return lost is None or any(lost < asked and t < at for asked, t in told)

    for event in sorted((*view.of.get("own", ()), *view.of.get("start", ())), key=lambda e: e.t):
        before = highest.get(event.key)
        if event.f == "start":
            if before is None or event.epoch >= before.epoch:
                highest[event.key] = event
            elif before.p == event.p:
                found.say(f"{event.key!r}: began under {event.epoch} after {before.epoch}", event)
            continue
        found.judged += 1
        if before and event.epoch < before.epoch and is_known(before, event.t):
            found.say(f"{event.key!r}: epoch {event.epoch} after {before.epoch}", before, event)


@invariant("I5", "an epoch has one owner for ever")
def epochs_are_unique(view: View, _: Bounds, found: Finding) -> None:
    """(key, epoch) belongs to one owner's identity, whatever happened to the server."""
    owners: dict[tuple[str, int], Event] = {}
    for f in ("own", "start", "effect", "commit"):
        for event in view.of.get(f, ()):
            if event.nonce and event.epoch and (f != "commit" or event.type == "ok"):
                found.judged += 1
                first = owners.setdefault((event.key, event.epoch), event)
                if first.nonce != event.nonce and not is_reborn(view, event):
                    found.say(
                        f"{event.key!r} epoch {event.epoch}: {first.nonce} and {event.nonce}",
                        first,
                        event,
                    )
    for commit in view.outcomes.values():
        known = owners.get((commit.key, commit.epoch))
        is_other = known and commit.nonce and commit.nonce != known.nonce
        if known and is_other and not is_reborn(view, commit.event):
            found.say(
                f"{commit.key!r} epoch {commit.epoch}: ran on {known.nonce}, settled by "
                f"{commit.nonce}",
                known,
                commit.event,
            )


@invariant("I6", "an outcome is one for ever")
def outcome_is_one(view: View, _: Bounds, found: Finding) -> None:
    """A job is settled first once; whoever asks is told the same value, byte for byte."""
    first: dict[str, Event] = {}
    for event in view.of.get("commit", ()):
        if event.type == "ok" and event.result == "first":
            found.judged += 1
            before = first.setdefault(event.job, event)
            if before is not event and not _lost_between(view, before.t, event.t):
                found.say(f"{event.job} was settled first twice", before, event)
    told: dict[str, tuple[str, Event]] = {}
    for event in view.of.get("result", ()):
        if event.type == "ok" or event.err in TERMINAL_ERRORS:
            found.judged += 1
            said = event.err or _canonical(event.result)
            value, before = told.setdefault(event.job, (said, event))
            if value != said and not _lost_between(view, before.t, event.t):
                found.say(f"{event.job}: {value[:80]} and {said[:80]}", before, event)
            told[event.job] = (said, event)
    dump = view.final.extra.get("outcomes", {}) if view.final else {}
    for job, (said, event) in told.items():
        stored = None if event.t <= view.lost else dump.get(job)
        if stored and stored["word"] == "done":
            if _canonical(stored.get("value")) != said:
                found.say(f"{job}: told {said[:80]}, stored {stored.get('value')!r}", event)
        elif stored and event.type == "ok":
            found.say(f"{job}: told {said[:80]}, stored as {stored['word']}", event)


_canonical: Final[Callable[[Any], str]] = json.JSONEncoder(sort_keys=True).encode


@invariant("I7", "the first terminal write wins")
def first_write_wins(view: View, bounds: Bounds, found: Finding) -> None:
    """What is stored is what the earliest accepted settlement wrote, and it is still there."""
    first: dict[str, Commit] = {}
    for commit in view.settled:
        if commit.order > view.lost:  # an older one may have gone with the data
            first.setdefault(commit.job, commit)
    for job, commit in first.items():
        if (stored := view.outcomes.get(job)) is not None:
            found.judged += 1
            if (stored.word, stored.epoch) != (commit.word, commit.epoch):
                found.say(
                    f"{job}: settled {commit.word} by {commit.epoch}, stored {stored.word} by "
                    f"{stored.epoch}",
                    commit.event,
                    stored.event,
                )
    if view.final is None or not bounds.keeps_outcomes:
        return
    # A process that was frozen meanwhile tells after a loss what it had read before it.
    gone = {commit.job for commit in view.settled} - first.keys()
    for event in view.of.get("result", ()):
        dispatch = view.accepted.get(event.job)
        is_told = event.type == "ok" or event.err in TERMINAL_ERRORS
        if is_told and dispatch and event.t > view.lost and event.job not in gone:
            found.judged += 1
            # It may be forgotten when its time is over by a clock that nobody has seen to step.
            if event.job not in view.outcomes and not view.unseen(
                event.t, view.final.t, bounds, view.lane_of(event.key or dispatch.key)
            ):
                found.say(f"{event.job}: its outcome was told and is gone", event)


@invariant("I8", "done means that the settling owner ran it")
def at_least_once(view: View, _: Bounds, found: Finding) -> None:
    """A done job was started and returned under the settling epoch and attempt, and its effect
    was not refused by the resource.  Where data went back, its end of before stands.
    """
    effects: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("effect", ()):
        effects[event.job].append(event)
    for commit in view.commits:
        if commit.word != "done":
            continue
        found.judged += 1
        runs = view.by_job.get(commit.job, ())
        wanted = (commit.epoch, commit.attempt)
        returned = [run for run in runs if run.end is not None and run.end.type == "ok"]
        if not any(
            (run.start.epoch, run.start.attempt) == wanted
            or (
                run.start.nonce == commit.event.nonce
                and run.end is not None
                and _lost_between(view, run.end.t, commit.order)
            )
            for run in returned
        ):
            shown = (run.start for run in runs)
            found.say(
                f"{commit.job} is done by epoch {commit.epoch}, attempt {commit.attempt}, and "
                "never returned there",
                commit.event,
                *shown,
            )
        had = effects.get(commit.job, [])
        is_refused = had and not any(e.type == "ok" and e.epoch == commit.epoch for e in had)
        # With lost data an older grant may stand again, below what the resource has seen.
        if is_refused and not _lost_between(view, 0.0, commit.order):
            found.say(f"{commit.job}: the settling owner's effect was refused", *had)


@invariant("I9", "nothing runs that nobody asked for")
def no_phantom(view: View, _: Bounds, found: Finding) -> None:
    """Every run, effect and settlement belongs to a dispatch that was tried."""
    for run in view.runs:
        found.judged += 1
        if run.start.idem not in view.invoked:
            found.say(f"{run.start.job} of {run.start.key!r} was never dispatched", run.start)
    for f in ("effect", "commit"):
        for event in view.of.get(f, ()):
            if event.idem and event.idem not in view.invoked:
                found.say(f"{event.job} of {event.key!r} was never dispatched", event)


@invariant("I10", "no payload is invented or lost")
def payload_is_kept(view: View, _: Bounds, found: Finding) -> None:
    """A handler is given what the dispatch gave, and no job is parked for want of it."""
    dump = view.final.extra.get("outcomes", {}) if view.final else {}
    causes = {job: said.get("cause", "") for job, said in dump.items()}
    causes.update({e.job: e.extra.get("cause", "") for e in view.of.get("commit", ())})
    for job, cause in causes.items():
        found.judged += 1
        if cause in DAMAGED:
            found.say(f"{job} was parked as {cause}", view.accepted.get(job), *_starts(view, job))
    for run in view.runs:
        dispatch = view.invoked.get(run.start.idem)
        given, sent = run.start.extra.get("digest"), dispatch and dispatch.extra.get("digest")
        if given is not None and dispatch is not None and sent is not None:
            found.judged += 1
            if given != sent or run.start.key != dispatch.key:
                found.say(f"{run.start.job}: another payload or key", dispatch, run.start)


# Nothing but the library writes into the store of a campaign: only it can have damaged a job.
DAMAGED: Final = frozenset({"malformed", "malformed payload"})


def _starts(view: View, job: str) -> Iterator[Event]:
    return (run.start for run in view.by_job.get(job, ()))


@invariant("I11", "runs again only for a cause")
def bounded_duplication(view: View, bounds: Bounds, found: Finding) -> None:
    """Beyond one run per attempt, each needs a fault of a node that ran it, or of the server; a
    service may have been moved on purpose.  What was lost with the data may all be done again.
    """
    told = (e for e in view.of.get("event", ()) if e.extra.get("event") == MOVED)
    moves = Counter(e.key or e.extra.get("key", "") for e in told)
    for job, runs in view.by_job.items():
        found.judged += 1
        again = len(runs) - len({run.start.attempt for run in runs}) - moves[runs[0].start.key]
        if again <= 0:
            continue
        nodes = {run.start.node for run in runs}
        began = min(_known_at(view, runs[0].start), runs[0].start.t) - bounds.ttl_s
        causes = [
            fault
            for fault in view.excuses(DISTURBS, began, runs[-1].start.t)
            if fault.target in nodes or not fault.target
        ]
        deaths = sum(run.start.p in view.died for run in runs[:-1])
        losses = [fault.ended for fault in causes if fault.does == "loss"]
        undone = sum(run.start.t <= max(losses, default=-math.inf) for run in runs)
        if again > max(sum(fault.weight for fault in causes) + undone, deaths):
            found.say(
                f"{job} of {runs[0].start.key!r} ran {len(runs)} times, {again} more than its "
                f"attempts, for {len(causes)} faults",
                *(run.start for run in runs),
            )


def _known_at(view: View, start: Event) -> float:
    dispatch = view.invoked.get(start.idem)
    return dispatch.t if dispatch else start.t


@invariant("I12", "one call makes one job")
def one_call_one_job(view: View, _: Bounds, found: Finding) -> None:
    """Whatever the library repeats, one dispatch call leads to one job id."""
    made: dict[str, Event] = {}
    anew = {event.job for event in view.of.get("replayed", ())}  # of dead letters
    letters: dict[tuple[str, str], Event] = {}
    for event in view.of.get("replayed", ()):
        found.judged += 1
        before = letters.get(letter := (event.key, event.extra["of"]))
        if before is not None and not view.loses(before.t, event.t, event.key):
            found.say(f"the letter of {letter[1]} was made {before.job}, too", before, event)
        letters[letter] = event
    for f in ("dispatch", "start", "effect", "commit"):
        for event in view.of.get(f, ()):
            if event.idem and event.job and event.job not in anew:
                found.judged += 1
                first = made.setdefault(event.idem, event)
                if first.job != event.job:
                    found.say(f"{event.idem}: {first.job} and {event.job}", first, event)


@invariant("I13", "order per key")
def order_per_key(view: View, bounds: Bounds, found: Finding) -> None:
    """Jobs of a key first start in the order accepted; its messages are handled so (G-07).

    At least once: a message whose answer was lost on the way may be accepted twice, next to itself;
    one of unknown outcome may come late.
    """
    began: dict[str, float] = {}
    last: dict[str, Event] = {}
    for run in view.runs:
        dispatch = view.accepted.get(run.start.job)
        if run.start.job in began or dispatch is None:
            continue
        found.judged += 1
        began[run.start.job] = run.start.t
        before = last.get(run.start.key)
        asked = view.invoked.get(before.idem) if before else None
        # Whoever has not heard yet that its data are lost may start what was accepted before.
        is_lost = _lost_between(view, dispatch.t, run.start.t)
        if before and asked and dispatch.t < asked.t and not is_lost:
            found.say(f"{run.start.job} started after {before.job}", dispatch, before, run.start)
        last[run.start.key] = dispatch
    _messages_in_order(view, found)


def _messages_in_order(view: View, found: Finding) -> None:
    unsure = {(e.job, e.extra["seq"]) for e in view.of.get("notify", ()) if e.type == "info"}
    in_run: dict[tuple[str, Any], int] = {}
    first: dict[str, set[int]] = defaultdict(set)
    sent = {(e.job, e.extra["seq"]): e for e in view.of.get("notify", ()) if e.type == "invoke"}
    for event in view.of.get("note", ()):
        found.judged += 1
        seq, run = event.extra["seq"], (event.p, event.extra.get("run"))
        if (event.job, seq) in unsure:
            continue
        asked, last = sent.get((event.job, seq), event), in_run.get(run, -1)
        # A repeated call may be accepted twice when its first copy was handled, or late; and
        # messages come again, where what was handled was not told to the server in time.
        nodes = {asked.node, event.node}
        if seq <= last and not view.hurts(DISTURBS, asked.t, event.t, nodes):
            found.say(f"{event.key!r}: message {seq} after {last} in one run", event)
        in_run[run] = seq
        handled = first[event.job]
        if seq not in handled and handled and seq < max(handled):
            found.say(f"{event.key!r}: message {seq} first handled after {max(handled)}", event)
        handled.add(seq)
    if view.final is None:
        return
    live = _live(view)
    for event in view.of.get("notify", ()):
        if event.type == "ok" and event.job in live and event.t > view.lost:
            found.judged += 1
            if event.extra["seq"] not in first.get(event.job, ()):
                found.say(f"{event.key!r}: message {event.extra['seq']} was never handled", event)


# --- lines ------------------------------------------------------------------------------------


@invariant("I13b", "a line goes in order, and the newest takes the others' place")
def lines_are_kept(view: View, _: Bounds, found: Finding) -> None:
    """What was dispatched after another one of its key was accepted begins when that has ended.

    Behind a live job that another one replaced, or with which it coalesced, nothing else has its
    turn before that; a replaced job is not granted again; and who was superseded never began, and
    names one that could do so.  Lost data excuse what came before.
    """
    settled = {commit.job: commit for commit in reversed(view.settled)}
    invoked = {idem: event.t for idem, event in view.invoked.items()}
    by_key: dict[str, list[tuple[str, Event, float]]] = defaultdict(list)
    for job, ok in view.accepted.items():
        by_key[ok.key].append((job, ok, invoked.get(ok.idem, ok.t)))
    for jobs in by_key.values():
        policies = [each for each in jobs if each[1].extra.get("policy") not in (None, "attach")]
        for job, ok, asked in policies:
            found.judged += 1
            runs = view.by_job.get(job, ())
            if not runs or _lost_between(view, 0.0, runs[0].start.t):
                continue
            began = runs[0].start
            between = []
            for other, before, _at in jobs:
                if before.t >= asked or other == job:
                    continue
                had, end = view.by_job.get(other, ()), settled.get(other)
                if not had:
                    continue  # it has ended in the line, or will
                last = max(had[-1].start.t, end.order if end is not None else 0.0)
                if last > began.t and not _lost_between(view, 0.0, last):
                    found.say(f"{job} began, and {other} before it had not ended", before, began)
                if ok.t < had[0].start.t < began.t:
                    between.append(other)
            if ok.extra["policy"] != "queue" and len(between) > 1:
                found.say(f"{job} took the place of {between[1:]}, which ran before it", ok, began)
        for job, ok, asked in policies:
            if ok.extra["policy"] == "replace":
                _judge_replaced(view, found, job, ok, asked, jobs)
    for commit in view.settled:
        if commit.cause.startswith("superseded by "):
            by = view.accepted.get(commit.cause.removeprefix("superseded by "))
            found.judged += 1
            had = view.by_job.get(commit.job, ())
            if had and not _lost_between(view, 0.0, max(commit.order, had[-1].start.t)):
                found.say(f"{commit.job} was superseded, and ran", commit.event)
            if by is not None and by.extra.get("policy") not in ("replace", "coalesce"):
                found.say(f"{commit.job} was superseded by {by.job}, which may not", by)


def _judge_replaced(
    view: View,
    found: Finding,
    job: str,
    ok: Event,
    asked: float,
    jobs: Sequence[tuple[str, Event, float]],
) -> None:
    """What was there before it was replaced is not begun again: who gets it is told to stop."""
    granted = {grant.epoch: grant.t for grant in view.grants.get(ok.key, ())}
    for other, before, _ in jobs:
        if other == job or before.t >= asked:
            continue
        for run in view.by_job.get(other, ()):
            at = granted.get(run.start.epoch, 0.0)
            if at > ok.t and not _lost_between(view, 0.0, run.start.t):
                found.say(f"{other} was replaced by {job}, and begun again", ok, run.start)


# --- ownership -------------------------------------------------------------------------------


def _windows(view: View, bounds: Bounds, f: str) -> dict[str, list[tuple[float, float]]]:
    """Return nonce -> when its lease was good by its own clock (f renew), or by the server's (f
    lease), joined up.
    """
    windows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in view.of.get(f, ()):
        if event.type != "ok":
            continue
        asked = event.extra.get("asked", event.t)
        until = event.extra.get("until", asked + bounds.ttl_s - bounds.margin_s)
        had = windows[event.nonce]
        if had and asked <= had[-1][1]:
            had[-1] = (had[-1][0], max(until, had[-1][1]))
        else:
            had.append((asked, until))
    return windows


@invariant("I4", "no two believe that they own a key")
def one_believer(view: View, bounds: Bounds, found: Finding) -> None:
    """No two processes at once hold a good lease and an epoch of a key.

    By their own clocks, if they say when they renewed; else by the server's account, which is
    enough for one half: that no new owner begins while the lease of the one before is good (that
    who has lost his lease begins nothing and stops is I15 and I26).  A frozen process is no excuse
    there: the server's clock goes on.
    """
    own = _windows(view, bounds, "renew")
    windows, excuses = (own, RESIDUAL) if own else (_windows(view, bounds, "lease"), {"clock"})
    gone = {(e.p, e.key, e.epoch): e.t for e in view.of.get("disown", ())}
    for key, runs in view.by_key.items():
        last: tuple[float, Run] | None = None
        for run in runs:
            until = min(
                gone.get((run.start.p, key, run.start.epoch), math.inf),
                run.ended,
                _good_until(windows.get(run.start.nonce), run.start.t),
            )
            if until == -math.inf:
                continue  # no renewals were recorded
            found.judged += 1
            before, owned = last or (-math.inf, run)
            is_both = owned.start.p != run.start.p and run.start.t < before
            if not own and run.start.epoch < owned.start.epoch:
                continue
            # A grant that the server lost is still started by whoever has read it, and ends when
            # that is acknowledged or compared: as in I14.
            lost = owned.start.t - 2 * bounds.ttl_s - bounds.slack_s
            began = owned.start.t - bounds.ttl_s
            is_excused = is_both and (
                view.excuses(excuses, began, run.start.t, owned.start.node)
                or view.excuses(excuses, began, run.start.t, run.start.node)
                or view.loses(lost, run.start.t, key)
            )
            if is_both and not is_excused:
                found.say(
                    f"{key!r}: {owned.start.p} and {run.start.p} own it", owned.start, run.start
                )
            if until > before:
                last = (until, run)


def _good_until(windows: Sequence[tuple[float, float]] | None, at: float) -> float:
    if windows is None:
        return -math.inf
    return max((until for began, until in windows if began <= at), default=-math.inf)


@invariant("I14", "a key runs in one place")
def one_place(view: View, bounds: Bounds, found: Finding) -> None:
    """No two runs of a key overlap, but in a residual window of G-03, and never in one process."""
    for key, runs in view.by_key.items():
        last: Run | None = None
        for run in runs:
            found.judged += 1
            if last is not None and run.start.t < last.ended:
                old, new = (last, run) if last.start.epoch <= run.start.epoch else (run, last)
                is_excused = last.start.p != run.start.p and (
                    _is_residual(view, bounds, old, new)
                    or _outlives(view, bounds, old, new)
                    or is_reborn(view, run.start)
                )
                if not is_excused:
                    found.say(
                        f"{key!r} runs on {old.start.p} and on {new.start.p}",
                        old.start,
                        new.start,
                        old.end,
                    )
            if last is None or run.ended > last.ended:
                last = run


def _outlives(view: View, bounds: Bounds, old: Run, new: Run) -> bool:
    """Say whether the old one was told to go on while the store is away, and it was, for it."""
    away = {"cut", "store", "drop"}
    began = max(old.start.t, new.start.t - 2 * bounds.ttl_s)
    return bool(
        old.start.extra.get("outlives")
        and view.excuses(away, began, max(began, min(old.ended, new.start.t)), old.start.node)
    )


def _is_residual(view: View, bounds: Bounds, old: Run, new: Run) -> bool:
    began = new.start.t - 2 * bounds.ttl_s - bounds.slack_s
    ended = min(old.ended, new.start.t + bounds.slack_s)
    return bool(
        _windows_of_g03(view, began, max(ended, new.start.t), old.start)
        or view.loses(began, new.start.t, new.start.key)
    )


def _windows_of_g03(view: View, began: float, ended: float, start: Event) -> list[Fault]:
    """Return what opens a residual window for who started; a loop that hangs while nothing is
    wrong with its lease opens none: it has acknowledged what has begun, and begins nothing else.
    """
    found = view.excuses(RESIDUAL, began, ended, start.node)
    if found and all(fault.kind in LOOP_HANGS for fault in found):
        hurts = view.hurts(DISTURBS, min(began, start.t), ended, {start.node})
        return [fault for fault in hurts if fault.kind not in LOOP_HANGS]
    return found


@invariant("I15", "only the owner starts")
def owner_starts(view: View, bounds: Bounds, found: Finding) -> None:
    """A start is under the key's latest grant; without recorded grants, under no older epoch."""
    grants: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("own", ()):
        grants[event.key].append(event)
    highest: dict[str, Event] = {}
    for run in view.runs:
        start = run.start
        found.judged += 1
        if start.key in grants:
            known = {(e.epoch, e.nonce) for e in grants[start.key] if e.t <= start.t}
            if (start.epoch, start.nonce) not in known:
                found.say(f"{start.key!r}: started without a grant of {start.epoch}", start)
        before = highest.get(start.key)
        if before is None or start.epoch >= before.epoch:
            highest[start.key] = start
        elif not (
            _windows_of_g03(view, before.t - bounds.ttl_s, start.t, start)
            or view.loses(before.t - bounds.ttl_s, start.t)
        ):
            found.say(
                f"{start.key!r}: epoch {start.epoch} started after {before.epoch}", before, start
            )


# --- recovery --------------------------------------------------------------------------------


DONE_TTLS: Final = 10


@invariant("I16", "one reaper takes over")
def one_reaper(view: View, bounds: Bounds, found: Finding) -> None:
    """A dead owner's job is moved once; a claim that was taken over writes nothing more."""
    moved: dict[tuple[str, str, int], Event] = {}
    fences: dict[str, Event] = {}
    marks = sorted(
        [*view.of.get("lock", ()), *view.of.get("requeue", ())], key=lambda e: (e.t, e.f == "lock")
    )
    reaped = {event.nonce: event.t for event in reversed(view.of.get("reap", ()))}
    for event in marks:
        found.judged += 1
        dead = event.nonce if event.f == "lock" else event.extra["dead"]
        # That it was reaped is remembered so long; whoever finds its name after that begins anew.
        if event.f == "lock" and event.t > reaped.get(dead, math.inf) + DONE_TTLS * bounds.ttl_s:
            fences.pop(dead, None)
        held = fences.get(dead)
        is_lower = held is not None and event.extra["fence"] < held.extra["fence"]
        if held and is_lower and not (is_reborn(view, event) or _is_undone(view, held, event)):
            found.say(f"{dead}: fence {event.extra['fence']} after a higher one", held, event)
        if event.f == "lock":
            fences[dead] = event
            continue
        number = (event.job, dead, event.epoch)
        if number in moved and not _lost_between(view, moved[number].t, event.t):
            found.say(f"{event.job} was taken from {dead} twice", moved[number], event)
        moved[number] = event
    done: dict[tuple[str, int], Event] = {}
    for event in view.of.get("reap", ()):
        found.judged += 1
        before = done.setdefault((event.nonce, event.extra.get("lane", 0)), event)
        hands = {e.extra.get("by", e.p).partition("/")[0] for e in (before, event)}
        if before is not event and not view.hurts(DISTURBS, before.t - 10.0, event.t, hands):
            found.say(f"{event.nonce} was reaped twice", before, event)


@invariant("I71", "the dead are dealt nothing")
def dead_dealt_nothing(view: View, bounds: Bounds, found: Finding) -> None:
    """What a dead worker owned is not moved to a worker that has been dead for over two periods.

    A script takes a worker for alive by what its lease has left.  A lease says when its worker
    renewed only while the lease clock runs, and did so when the lease was granted.  So a grant is
    judged where in the two TTLs before it processes died, and nothing else happened.
    """
    ended = {event.p: event.t for event in view.of.get("exit", ())}
    moved = {(event.key, event.job, event.t) for event in view.of.get("requeue", ())}
    for grant in view.of.get("own", ()):
        if (grant.key, grant.job, grant.t) not in moved:
            continue
        found.judged += 1
        died = ended.get(view.process_of(grant.nonce), math.inf)
        silent_s, since = grant.t - died, grant.t - 2 * bounds.ttl_s
        if silent_s <= 2 * bounds.renew_s + view.slack_s(died, grant.t, bounds):
            continue
        if view.is_lease_clock_running(since, grant.t, bounds, view.lane_of(grant.key)):
            found.say(f"{grant.key!r} went to {grant.nonce}, dead for {silent_s:.2f} s", grant)


# Losses of which all that was before a time is left, leases too; and they are told by their name.
GOES_BACK: Final = {"lost-suffix", "old-primary"}
# Likewise of some that no failover makes.
WAS_BEFORE: Final = {*GOES_BACK, "lost-since-grant", "fork-behind"}


@invariant("I17", "the living are not reaped")
def living_not_reaped(view: View, bounds: Bounds, found: Finding) -> None:
    """No owner is reaped whose lease is good, nor one to whose node nothing happened.

    An outage of the server is no excuse: nobody may be evicted for it.  Nor is a failover to data
    of before its last renewals: for a TTL they end no lease.  A lease that somebody deleted is none
    any more.  Who was reaped before is no owner any more; that it is reaped again is for I16.
    """
    renewed: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in (*view.of.get("renew", ()), *view.of.get("lease", ())):
        if event.type == "ok":
            asked = event.extra.get("asked", event.t)
            renewed[event.nonce].append((asked, event.extra.get("ends", asked + bounds.ttl_s)))
    deleted: dict[str, list[float]] = defaultdict(list)
    for fault in view.faults:
        if fault.event.extra.get("index") == "keepalive":
            lease = "{member}@{index_lane}".format_map(fault.event.extra)
            deleted[lease].append(fault.began)
    gone: set[str] = set()
    for reap in view.of.get("reap", ()):
        found.judged += 1
        had = renewed.get(reap.nonce, [])
        at = bisect(had, (reap.t, math.inf))
        last, ends = had[at - 1] if at else (-math.inf, -math.inf)
        is_early = ends > reap.t and not any(last <= t <= reap.t for t in deleted[reap.nonce])
        # A step shortly before it was renewed is noticed only then, and leases are cut to a TTL.
        excuses = view.excuses({"clock", "loss"}, last - 2 * bounds.ttl_s, reap.t)
        if is_early and all(fault.kind in GOES_BACK for fault in excuses):
            found.say(f"{reap.nonce} was reaped within its lease", reap)
        process, is_again = view.process_of(reap.nonce), reap.nonce in gone
        gone.add(reap.nonce)
        if not process or is_again:
            continue
        began = reap.t - 3 * bounds.ttl_s - 2.0
        for fault in view.excuses({"store", "loss"}, began, reap.t):
            began = min(began, fault.began - 3 * bounds.ttl_s)
        died, node = view.died.get(process, math.inf), process.partition("/")[0]
        if not view.excuses(STOPS, began, reap.t, node) and died > reap.t:
            found.say(f"{reap.nonce} on {node} was reaped though nothing had happened to it", reap)


@invariant("I18", "takeover is in time")
def takeover_in_time(view: View, bounds: Bounds, found: Finding) -> None:
    """What ran where nothing runs any more (a process that was killed, or stands still, or is cut
    off for longer than its lease) starts elsewhere within B; what else happens to the server, or
    to whoever had it in hand meanwhile, adds to it.  Where the server only fell silent, however
    often, that is no more than the time of its silences (see `View.by_silences`).

    If nobody was left, B counts from when the first one is back.  Who may have ended its process,
    among others, is begun when the one before it has turned out to be innocent (DESIGN 13.8), and
    in a young process after a random time.
    In a crash loop of one process a coin may hold it for a round more.

    That is the bound for what G-06 speaks of.  Where anything else happened as well, a job may be a
    suspect for reasons that the history does not tell.
    """
    for run, crash, later in (*takeovers(view), *_stood(view, bounds)):
        found.judged += 1
        took = later.start.t if later else math.inf
        by = due_by(view, bounds, run, crash)
        by = min(by, view.by_silences(run, crash, bounds.takeover_s, bounds))
        found.exact += by <= crash + bounds.takeover_s
        by += view.slack_s(crash, by, bounds)
        by += view.stood_s(crash, bounds, view.lane_of(run.start.key))
        if took > by and (more_s := _suspect_s(view, bounds, run, crash, by)):
            by = due_by(view, bounds, run, crash, more_s=more_s)
            by = min(by, view.by_silences(run, crash, bounds.takeover_s + more_s, bounds))
            by += view.slack_s(crash, by, bounds)
        if took > by and (coin_s := view.coin_s(run)):
            by = due_by(view, bounds, run, crash, more_s=bounds.suspects_s + coin_s)
            by += view.slack_s(crash, by, bounds)
        if took > by and (free := _given_up(view, bounds, run, by)) < took:
            at_end = view.final.t if view.final else view.events[-1].t
            by += view.full_s(free, min(took, at_end), bounds)
        if took > by and _is_awaited(view, run, by) and not _goes_on(view, run, by):
            found.say(
                f"{run.start.key!r} of {run.start.p} "
                + (f"started after {took - crash:.2f} s" if later else "never started")
                + f", not within {by - crash:.2f} s",
                run.start,
                later.start if later else None,
            )


def _is_mixed(view: View, bounds: Bounds, run: Run, crash: float, by: float) -> bool:
    """Say whether anything happened that the bound of takeovers does not speak of (G-06): it speaks
    of deaths, of nodes that stand still or are cut off, and of silences, while some node is well.
    """
    began, lane = crash - bounds.ttl_s, view.lane_of(run.start.key)
    is_any_well = bool(view.well(began, by, run.start.node))
    return any(
        not (fault.kind in SILENCES or fault.does in ("crash", "leave"))
        and not (fault.target and (is_any_well or fault.is_end or fault.kind in HANGS))
        for fault in view.excuses(DISTURBS, began, by, lane=lane)
    )


def _given_up(view: View, bounds: Bounds, run: Run, by: float) -> float:
    """Return since when a key waits for a slot elsewhere: a reaper moved it, or its handler asked
    for a retry, whose owner may have said so only when nothing disturbed it any more.
    """
    if run.end is not None and run.end.err == "retry":
        return max(run.end.t + float(run.end.extra.get("after_s", 0.0)), by - bounds.takeover_s)
    moved = (e for e in view.of.get("requeue", ()) if e.job == run.start.job)
    return next((e.t for e in moved if e.epoch == run.start.epoch), math.inf)


def _goes_on(view: View, run: Run, at: float) -> bool:
    """Say whether who had it was back before anybody took it, and runs it under its grant."""
    key, node = run.start.key, run.start.node
    if any(e.epoch > run.start.epoch and e.t <= at for e in view.grants.get(key, ())):
        return False
    if any(fault.is_end for fault in view.excuses(DISTURBS, at, at, node) if fault.target == node):
        return False
    grant = run.start.p, run.start.epoch
    return any(
        (r.start.p, r.start.epoch) == grant and r.start.t <= at < r.ended for r in view.by_key[key]
    )


def _suspect_s(view: View, bounds: Bounds, run: Run, crash: float, by: float) -> float:
    """Return how much later a job may begin that may have ended its process.  Suspects take turns,
    whichever death they are of; and those that have it next may die too, until the bound.

    Whether a job is a suspect the store has told when it moved the job, and the job must have just
    begun besides.  Where the store has not told it, a job takes turns if others ran there, too.
    """
    late_s = view.late_s(run.start, view.last_death(run.start, crash, by), bounds)
    if _is_mixed(view, bounds, run, crash, by):
        return bounds.suspects_s + late_s
    moved = [e for e in view.of.get("requeue", ()) if "alone" in e.extra and e.t <= by]
    own = [e.extra["alone"] for e in moved if e.job == run.start.job and e.t >= crash]
    if (own and not any(own)) or not _has_just_begun(view, bounds, run, crash, is_told=bool(own)):
        return 0.0
    here = [r for r in view.runs if r.start.p == run.start.p and r.start.t <= crash <= r.ended]
    others = [e for e in moved if e.extra["alone"] and e.job != run.start.job]
    has_turns = any(e.t >= crash - bounds.suspects_s for e in others) if own else len(here) > 1
    return bounds.suspects_s * has_turns + late_s


def _has_just_begun(view: View, bounds: Bounds, run: Run, crash: float, *, is_told: bool) -> bool:
    """Say whether a job was acknowledged at most 1 s before its process was surely alive for the
    last time: when its lease was renewed, less what the process stood still.  Or it had been with
    another process that died.  The store (`is_told`) goes by pool time, which may have stood.
    """
    start, acks = run.start, view.of.get("ack", ())
    own = (e.t for e in acks if (e.key, e.epoch, e.nonce) == (start.key, start.epoch, start.nonce))
    begun = min(own, default=crash if acks else start.t)
    paused = view.excuses({"pause"}, start.t, crash, start.node)
    stood_s = sum(min(f.ended, crash) - max(f.began, start.t) for f in paused)
    alive = min(crash - stood_s, view.alive(run, crash))
    alive -= 2 * bounds.renew_s + STEP_S if is_told else 0.0
    is_new = begun >= alive - AT_ONCE_S - bounds.slack_s
    return is_new or view.deaths_with(start.key, start.job, crash) > 0


AT_ONCE_S: Final = 1.0  # who began so long ago is not suspected alone


def takeovers(view: View) -> Iterator[tuple[Run, float, Run | None]]:
    """Yield what ran in a process that died, when it died, and how the key started elsewhere."""
    for runs in view.by_key.values():
        for i, run in enumerate(runs):
            crash = view.died.get(run.start.p)
            if crash is None or run.end is not None or run.start.extra.get("poison"):
                continue
            rest = runs[i + 1 :]
            if not any(later.start.p == run.start.p for later in rest):
                yield run, crash, rest[0] if rest else None


def _stood(view: View, bounds: Bounds) -> Iterator[tuple[Run, float, Run | None]]:
    """Yield what ran where a node stood still, or was cut off, until its lease must have ended, and
    how the key started again.
    """
    faults = [f for f in view.faults if f.is_end and f.does != "crash" and f.target]
    for fault in faults:
        by = fault.began + bounds.takeover_s + bounds.slack_s
        for run in view.runs if fault.ended > by else ():
            if (
                run.start.node == fault.target
                and run.start.t < fault.began < run.ended
                and view.died.get(run.start.p, math.inf) > by
                and not run.start.extra.get("poison")
            ):
                # It may be given back to the same process, or go on there where nobody took it.
                rest = (r for r in view.by_key[run.start.key] if r.start.t > run.start.t)
                yield run, fault.began, next(rest, None)


def due_by(view: View, bounds: Bounds, run: Run, since: float, *, more_s: float = 0.0) -> float:
    """Return by when what ran should be taken over, where that may take more than usual."""
    claims = view.of.get("lock", ())

    def involved(by: float) -> set[str]:
        """Return who claimed its dead owner until then, and to whom it was granted."""
        if not claims:  # this history does not tell; it may be the same node's next process
            return {*view.lives_of}
        holders = {
            e.extra["by"].partition("/")[0]
            for e in claims
            if e.nonce == run.start.nonce and since <= e.t <= by and "by" in e.extra
        }
        return holders | view.granted(run.start.key, since, by)

    return view.due_by(
        since,
        bounds.takeover_s + more_s,
        bounds,
        involved=involved,
        but=run.start.node,
        lane=view.lane_of(run.start.key),
        readers=view.readers(run.start.job),
        owners=(run.start.p,),
    )


def _is_awaited(view: View, run: Run, by: float) -> bool:
    """Say whether the key's job was still there to be started."""
    ended = view.ended.get(run.start.job, math.inf)
    told = (e for e in view.of.get("result", ()) if e.job == run.start.job and e.type == "ok")
    if run.end is not None and any(_epoch_of(e) == run.start.epoch for e in told):
        ended = min(ended, run.end.t)  # by this very run, of which others may hear late
    at_end = view.final.t if view.final else view.events[-1].t
    if _lost_between(view, run.start.t, by) or view.is_forgotten(run):
        return False
    return ended > by and by < at_end


def _epoch_of(result: Event) -> int:
    value = result.result
    return int(value.get("epoch", 0)) if isinstance(value, Mapping) else 0


@invariant("I19", "retries keep their schedule")
def retry_schedule(view: View, bounds: Bounds, found: Finding) -> None:
    """Attempts rise one by one up to their maximum, each not before the wait that was asked for,
    and nothing starts after a job was parked.
    """
    for job, runs in view.by_job.items():
        dispatch = view.accepted.get(job)
        for run in runs:
            found.judged += 1
            # Nothing bounds the attempts of a service.
            attempts_max = run.start.extra.get("attempts_max", 0)
            if attempts_max and run.start.attempt > attempts_max:
                found.say(f"{job}: attempt {run.start.attempt} of {attempts_max}", run.start)
        for before, after in pairwise(runs):
            nodes = {before.start.node, after.start.node}
            is_skipped = after.start.attempt > before.start.attempt + 1
            asked = dispatch or view.invoked.get(after.start.idem)  # of an unknown outcome
            is_skipped = is_skipped and not (asked and asked.extra.get("start_s"))
            if is_skipped and not view.hurts(DISTURBS, before.start.t, after.start.t, nodes):
                found.say(f"{job}: an attempt is missing", before.start, after.start)
            wait = before.end.extra.get("after_s", 0.0) if before.end else 0.0
            is_next = after.start.attempt == before.start.attempt + 1
            # Redis counts in whole milliseconds.
            early_s = 0.002 + view.stepped_s(before.start.t, after.start.t, bounds)
            is_early = is_next and after.start.t < before.ended + wait - early_s
            excuses = view.excuses({"loss"}, before.start.t, after.start.t)
            # One that lasted to its limit has timed out, whatever its handler says after that.
            limit = before.start.extra.get("timeout_s") or math.inf
            is_early = is_early and before.ended < before.start.t + limit
            if after.start.t < before.ended:  # a frozen owner's attempt was ended for it
                excuses += view.excuses(STOPS, before.start.t, after.start.t, before.start.node)
            if is_early and not excuses:
                found.say(f"{job}: waited less than {wait} s", before.end, after.start)
        stored = view.outcomes.get(job)
        if dispatch and dispatch.extra.get("delay_s"):
            found.judged += 1
            # Accepted at any moment from here on: a step of the clock before the answer counts.
            asked = view.invoked.get(dispatch.idem, dispatch)
            lane = view.lane_of(dispatch.key)
            since = view.asked_for(dispatch)
            early_s = 0.002 + view.stepped_s(since, runs[0].start.t, bounds, lane)
            is_early = runs[0].start.t < since + dispatch.extra["delay_s"] - early_s
            if is_early and not view.excuses({"loss"}, since, runs[0].start.t):
                found.say(f"{job}: started before its delay was over", asked, runs[0].start)
        late = [run.start for run in runs if stored and run.start.t > stored.order + bounds.slack_s]
        if stored and late and stored.word != "done" and not _excused_start(view, bounds, late[0]):
            if _lost_between(view, stored.order, late[0].t):
                continue  # its end was lost with the data
            found.say(f"{job}: started after it was {stored.word}", late[0])


def _excused_start(view: View, bounds: Bounds, start: Event) -> list[Fault]:
    return view.excuses(STOPS, start.t - 2 * bounds.ttl_s, start.t, start.node)


@invariant("I20", "run-time limits hold")
def limits_hold(view: View, bounds: Bounds, found: Finding) -> None:
    """A run ends within its limit and the stop budget, and one that timed out is never settled."""
    committed = {(c.job, c.epoch, c.attempt) for c in view.commits if c.word == "done"}
    for run in view.runs:
        limit = run.start.extra.get("timeout_s")
        if not limit:
            continue
        found.judged += 1
        by = run.start.t + limit + bounds.stop_budget_s
        by += view.slack_s(run.start.t, by, bounds)
        if run.ended > by and not view.excuses(
            RESIDUAL | {"crash"}, run.start.t, by, run.start.node
        ):
            found.say(f"{run.start.job} ran longer than {limit} s", run.start, run.end)
        end = run.end
        this = (run.start.job, run.start.epoch, run.start.attempt)
        # Where data went back, the end of a later attempt stands for this one.
        is_undone = end is not None and _lost_between(view, end.t, view.events[-1].t)
        if end is not None and end.err == "timeout" and this in committed and not is_undone:
            found.say(f"{run.start.job}: an attempt that timed out was settled", run.start, end)


@invariant("I21", "cancelled means cancelled")
def cancels_hold(view: View, bounds: Bounds, found: Finding) -> None:
    """After an ok nothing of the job starts or goes on."""
    for event in view.of.get("cancel", ()):
        if event.type != "ok":
            continue
        found.judged += 1
        for run in view.by_job.get(event.job, ()):
            by = event.t + view.slack_s(event.t, event.t, bounds)
            is_late = run.start.t > event.t or run.ended > by
            if is_late and _lost_between(view, event.t, run.start.t):
                continue  # the stop was lost with the data
            if is_late and not view.excuses(
                STOPS, run.start.t - bounds.ttl_s, event.t, run.start.node
            ):
                found.say(f"{event.job} ran after it was stopped", event, run.start, run.end)


@invariant("I22", "nothing appears or vanishes in the counters")
def conservation(view: View, _: Bounds, found: Finding) -> None:
    """In one reading: dispatched = live + done + parked + cancelled."""
    for event in view.of.get("snapshot", ()):
        found.judged += 1
        lane = event.extra
        ended = sum(lane.get(word, 0) for word in ("done", "parked", "cancelled"))
        if lane.get("dispatched", 0) != lane["live"] + ended:
            found.say(f"{lane.get('dispatched', 0)} dispatched, {lane['live']} + {ended}", event)


@invariant("I23", "nothing is left behind")
def no_leaks(view: View, _: Bounds, found: Finding) -> None:
    """At the end the auditor is content; leases and claims are those of the living; every key is
    known.  A claim may be there for a while when a fault, of the machine at that time, is.
    """
    if view.final is None:
        return
    found.judged += 1
    last = view.final.extra
    for problem in last.get("problems", ()):
        found.say(f"auditor: {problem}", view.final)
    reaped = {e.nonce: e.node for e in view.of.get("reap", ()) if e.t > view.final.t}
    for name in ("unknown", "claims"):
        for left in last.get(name, ()):
            if name == "claims" and left in reaped:
                nodes = {view.process_of(left).partition("/")[0], reaped[left]}
                does = DISTURBS - {"leave"}
                if view.hurts(does, view.final.t - 3.0, view.final.t, nodes):
                    continue
            found.say(f"{name}: {left} is left", view.final)
    for lease in sorted({*last.get("leases", ())} - {*last.get("live", ())}):
        found.say(f"the lease of {lease} is left, and nobody has that name", view.final)


@invariant("I24", "maps converge")
def maps_converge(view: View, _: Bounds, found: Finding) -> None:
    """At the end every node's copy of the map of workers is what Redis has.

    Redis is asked last: who was reaped since a node told what it knows is not missing there.
    """
    if view.final is None or "workers" not in view.final.extra:
        return
    truth = sorted(view.final.extra["workers"])
    reaps = view.of.get("reap", ())
    last = {event.p: event for event in view.of.get("members", ())}
    for p, event in last.items():
        if view.died.get(p, math.inf) > view.final.t:
            found.judged += 1
            since = {reap.nonce.split(".")[0] for reap in reaps if reap.t > event.t}
            known = {*event.extra["workers"]}
            if not {*truth} <= known <= {*truth} | since:
                found.say(f"{p} knows {sorted(known)}, not {truth}", event)


LATE_S: Final = 10.0  # a write whose outcome is unknown may still be applied so much later


@invariant("I24b", "maps of users' own converge")
def own_maps_converge(view: View, _: Bounds, found: Finding) -> None:
    """At the end every copy is what Redis has, and that is what was accepted; on the way no copy
    goes back, and all see the same change under the same revision (G-10).
    """
    if view.final is not None and "shared" in view.final.extra:
        truth = view.final.extra["shared"]
        for p, event in {event.p: event for event in view.of.get("members", ())}.items():
            if view.died.get(p, math.inf) > view.final.t and "shared" in event.extra:
                found.judged += 1
                if event.extra["shared"] != truth:
                    found.say(f"{p} has {event.extra['shared']}, not {truth}", event)
        _accepted_writes(view, truth, found)
    at: dict[str, Event] = {}
    first: dict[tuple[int, str], Event] = {}
    for event in view.of.get("seen", ()):
        found.judged += 1
        before, revision = at.get(event.p), event.extra["revision"]
        if before and revision < before.extra["revision"] and not _is_forked(view, before, event):
            found.say(f"{event.p} went back to revision {revision}", before, event)
        at[event.p] = event
        if event.type == "ok":
            other = first.setdefault((revision, event.key), event)
            is_other = other.extra["value"] != event.extra["value"]
            if is_other and not _is_forked(view, other, event):
                found.say(f"revision {revision} of {event.key!r} is two changes", other, event)


def _is_forked(view: View, before: Event, after: Event) -> bool:
    return _lost_between(view, before.t, after.t) or is_reborn(view, after)


def _accepted_writes(view: View, truth: Mapping[str, str], found: Finding) -> None:
    """Judge what the map holds at the end by what was accepted after the last loss of data."""
    last: dict[str, Event] = {}
    unsure: dict[str, list[Event]] = defaultdict(list)
    asked: dict[tuple[str, str], Event] = {}
    added = maybe_added = 0
    for event in view.of.get("map", ()):
        if event.type == "invoke":
            asked[event.p, event.key] = event
        elif event.type != "info":
            asked.pop((event.p, event.key), None)
        if event.type == "ok":
            last[event.key] = event
            added += event.key == TOTAL
        elif event.type == "info":
            unsure[event.key].append(event)
            asked.pop((event.p, event.key), None)
            maybe_added += event.key == TOTAL
    for event in asked.values():  # its process died before it was answered
        unsure[event.key].append(event)
        maybe_added += event.key == TOTAL
    if view.lost == -math.inf and TOTAL in last:
        found.judged += 1
        total = int(truth.get(TOTAL, 0))
        if not added <= total <= added + maybe_added:
            found.say(
                f"{added} were added, maybe {maybe_added} more, and it is {total}", view.final
            )
    for key, event in last.items():
        if key == TOTAL or event.t <= view.lost:
            continue
        found.judged += 1
        late = (e.extra["value"] for e in unsure[key] if e.t > event.t - LATE_S)
        if truth.get(key) not in {event.extra["value"], *late}:
            found.say(f"{key!r} is {truth.get(key)!r}, not {event.extra['value']!r}", event)


_JUST_S: Final = 0.01
OVERRAN: Final = 70  # how a process ends whose handler outlived its lease, if it is told to


@invariant("I25", "nothing fails in silence")
def no_silence(view: View, bounds: Bounds, found: Finding) -> None:
    """No actor raised, and no process ended but by a fault, by leaving, or by its own rule."""
    for event in view.of.get("event", ()):
        found.judged += 1
        if event.extra.get("event") == "actor.crashed":
            found.say(f"an actor of {event.p} raised: {event.extra.get('error')}", event)
    left = {event.p for event in view.of.get("leave", ()) if event.type == "ok"}
    booted = {event.p: event.t for event in view.of.get("boot", ())}
    for event in view.of.get("exit", ()):
        found.judged += 1
        began = event.t - bounds.grace_s - bounds.ttl_s
        killed = view.excuses({"crash", "leave"}, began, event.t, event.node)
        # Who was interrupted leaves; while he stands still, or the server does, that takes longer.
        since = booted.get(event.p, began)
        killed += [
            fault
            for fault in view.excuses({"leave"}, since, event.t, event.node)
            if fault.kind == "interrupt" and fault.began >= since
        ]
        overran = view.excuses({"pause", "stubborn"}, began - bounds.ttl_s, event.t, event.node)
        # Who stood still until just before its lease ended told its handlers only then; one whose
        # lease ended meanwhile gives them time.
        by_rule = event.result == OVERRAN and any(
            fault.does == "stubborn"
            or fault.kind in HANGS
            or _JUST_S < event.t - fault.ended <= bounds.margin_s
            for fault in overran
        )
        if event.p not in left and not by_rule and all(f.kind == "exit" for f in killed):
            found.say(f"{event.p} ended with {event.result}, and nobody had killed it", event)


@invariant("I26", "who cannot renew stops in time")
def self_fence(view: View, bounds: Bounds, found: Finding) -> None:
    """Beyond its lease less the margin nothing of a node starts or goes on."""
    windows = _windows(view, bounds, "renew")
    for run in view.runs:
        good = windows.get(run.start.nonce)
        if good is not None:
            found.judged += 1
            inside = any(began <= run.start.t <= until for began, until in good)
            if not inside and not _excused_start(view, bounds, run.start):
                found.say(f"{run.start.job} started outside any lease", run.start)
    by_node: dict[str, list[Run]] = defaultdict(list)
    cuts = [fault for fault in view.faults if fault.does == "cut" and fault.kind in CUTS_OFF]
    for run in view.runs if cuts else ():
        by_node[run.start.node].append(run)
    for cut in cuts:
        by = cut.began + bounds.ttl_s - bounds.margin_s
        by += view.slack_s(cut.began, by, bounds)
        if cut.ended <= by or view.excuses(RESIDUAL, cut.began - 1.0, cut.ended, cut.target):
            continue
        for run in by_node.get(cut.target, ()):
            found.judged += 1
            if run.start.extra.get("outlives"):
                continue
            if run.start.t < cut.ended and run.ended > by:
                went = "started" if run.start.t > by else "went on"
                found.say(
                    f"{run.start.job} {went} {min(run.ended, cut.ended) - cut.began:.2f} s after "
                    "its node was cut off",
                    cut.event,
                    run.start,
                    run.end,
                )


@invariant("I27", "leaving is clean")
def clean_leave(view: View, bounds: Bounds, found: Finding) -> None:
    """A process that leaves ends in time, and nobody has to reap it."""
    asked = {event.p: event for event in view.of.get("leave", ()) if event.type == "invoke"}
    left = {event.p: event for event in view.of.get("leave", ()) if event.type == "ok"}
    disturbs = DISTURBS - {"leave"}
    for p, event in asked.items():
        wait_s = bounds.grace_s + bounds.ttl_s
        by = event.t + wait_s
        # A lane that is away is waited for as long as calls may take, and left to the reapers.
        away = view.excuses(disturbs, event.t - bounds.ttl_s, by, event.node)
        hurt = [fault for fault in away if not fault.lane]
        while hurt and (later := max(fault.ended for fault in hurt) + wait_s) > by:
            by = later
            away = view.excuses(disturbs, event.t - bounds.ttl_s, by, event.node)
            hurt = [fault for fault in away if not fault.lane]
        if any(fault.lane for fault in away):
            by = max(by, event.t + bounds.leaving_s)
        by += view.slack_s(event.t, by, bounds)
        was_killed = any(f.does == "crash" and f.target == event.node for f in hurt)
        found.judged += 1
        if not was_killed and by < view.events[-1].t and (p not in left or left[p].t > by):
            found.say(f"{p} did not leave in time", event, left.get(p))
        if hurt:
            continue
        _grace_is_kept(view, bounds, event, away, found)
        for reap in view.of.get("reap", ()):
            lane = reap.nonce.rpartition("@")[2] if "@" in reap.nonce else ""
            is_away = any(fault.lane == lane for fault in away)
            if reap.t > event.t and view.process_of(reap.nonce) == p and not is_away:
                found.say(f"{p} left and was reaped", event, reap)


def _grace_is_kept(
    view: View, bounds: Bounds, leave: Event, away: Sequence[Fault], found: Finding
) -> None:
    """Judge that finite jobs may end within the grace, but for those whose own lane is away."""
    grace_s = leave.extra.get("grace_s", 0.0)
    stopped = {event.job for event in view.of.get("cancel", ())}
    lanes = {fault.lane for fault in away}
    for run in view.runs if grace_s else ():
        if run.start.p != leave.p or run.end is None or run.end.err != "cancelled":
            continue
        is_soon = leave.t < run.end.t < leave.t + grace_s - 0.002
        is_ours = run.start.extra.get("kind") != "service" and run.start.job not in stopped
        if is_soon and is_ours and view.lane_of(run.start.key) not in lanes:
            found.say(f"{run.start.job} was cancelled within the grace", leave, run.start, run.end)


@invariant("I28", "a pool keeps to its own")
def within_its_rights(view: View, _: Bounds, found: Finding) -> None:
    """Processes whose user may do what `pool acl` says, to this pool's keys, try nothing else."""
    if view.final is None or "refused" not in view.final.extra:
        return
    found.judged += 1
    for refused in view.final.extra["refused"]:
        found.say(f"the server refused {refused}", view.final)


_TELLS_LOSS: Final = frozenset({"data.lost", "lane.lost", "worker.fenced"})


@invariant("I29", "serves again after a loss of data")
def serves_after_loss(view: View, bounds: Bounds, found: Finding) -> None:
    """Within 2 TTL of losing everything, work that is accepted anew is started.

    Some of what a node that was well had in hand must be; whoever starts any of it, it is served.
    What the control keys lose is no lane's loss.
    """
    for fault in view.faults:
        if fault.does != "loss":
            continue
        found.judged += 1
        by = fault.began + 2 * bounds.ttl_s
        by += view.slack_s(fault.began, by, bounds)
        began = fault.began - bounds.ttl_s
        if fault.lane == CONTROL and view.excuses(DISTURBS, began, by) == [fault]:
            for event in view.of.get("event", ()):
                if fault.began <= event.t <= by and event.extra.get("event") in _TELLS_LOSS:
                    found.say("only the control keys were lost", fault.event, event)
        disturbed = view.hurts(DISTURBS - {"loss"}, began, by, ())
        well = view.well(began, by) if view.lives else set()
        again = any(
            fault.began < other.began <= by for other in view.faults if other.does == "loss"
        )
        if disturbed or again or view.events[-1].t < by or (view.lives and not well):
            continue
        dispatches = view.of.get("dispatch", ())
        refused = {e.idem for e in dispatches if e.err in ("POOLEXISTS", "ATTACHED", "POOLSTORAGE")}
        anew = {
            event.idem
            for event in dispatches
            if event.type == "invoke"
            and fault.began < event.t < by - bounds.ttl_s / 4
            and not event.extra.get("delay_s")
            and event.idem not in refused
            and (fault.lane in ("", CONTROL) or view.lane_of(event.key) in ("", fault.lane))
        }
        mine = [
            event.t
            for event in dispatches
            if event.type == "invoke"
            and event.idem in anew
            and (not well or view.granted(event.key, fault.began, by) <= well)
        ]
        # The last of it may have to wait for slots, behind what came just after the loss.
        must = any(t > fault.began + bounds.ttl_s for t in mine)
        started = {run.start.idem for run in view.runs if fault.began < run.start.t <= by}
        if fault.kind in WAS_BEFORE:
            # What was accepted before is there still, and is begun first where slots are few.
            late = fault.began + bounds.ttl_s
            anew |= {run.start.idem for run in view.runs if late < run.start.t <= by}
        if must and not anew & started:
            found.say(f"no new work within {2 * bounds.ttl_s} s of the loss", fault.event)
