"""The invariants of what jobs store while they go on: their steps' results, and their states."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from tests.verify.history import Event
from tests.verify.invariants import Finding, invariant
from tests.verify.view import Bounds, View


@invariant("I51", "a step is done once")
def steps_are_done_once(view: View, _: Bounds, found: Finding) -> None:
    """All who are told a step's result are told the same; once somebody was, no later owner calls
    its function again; its key is one, and no other step's.  Lost data excuse what came after.
    What is made of a dead letter has the step keys of the job that was given up.
    """
    letters = {event.job: event.extra["of"] for event in view.of.get("replayed", ())}

    def origin(job: str) -> str:
        return origin(letters[job]) if job in letters else job

    told: dict[tuple[str, str], Event] = {}
    called: dict[tuple[str, str], Event] = {}
    keys: dict[str, tuple[str, str]] = {}
    for event in view.of.get("step", ()):
        step = event.job, event.extra["step"]
        found.judged += 1
        before = told.get(step)
        if before is not None and view.loses(before.t, event.t, event.key):
            before = None
        if event.type == "invoke":
            first = called.setdefault(step, event)
            if first.extra["skey"] != event.extra["skey"]:
                found.say(f"step {step[1]} of {step[0]} has another key", first, event)
            of_origin = origin(event.job), step[1]
            if keys.setdefault(event.extra["skey"], of_origin) != of_origin:
                found.say(f"step {step[1]} of {step[0]} has the key of another", event)
            if before is not None and event.epoch >= before.epoch:
                found.say(f"step {step[1]} of {step[0]} is done again", before, event)
        else:
            if before is not None and before.result != event.result:
                found.say(f"step {step[1]} of {step[0]} has another result", before, event)
            told[step] = event


@invariant("I52", "a state holds each message once")
def states_hold_messages_once(view: View, _: Bounds, found: Finding) -> None:
    """In the order in which they were accepted, without a gap; and a run begins with what the runs
    before it had saved, whatever ended them.  Lost data excuse what came after: also a message that
    was heard before and after, as its worker may bring the state along, while its removal is lost.
    What one run heard twice was sent twice, by who had no answer.  A first try that comes late,
    when its repeat was handled, is accepted behind what came between (see I13): by the store's own
    account.
    """
    notes = Counter((e.p, e.extra["run"], e.job, e.extra["seq"]) for e in view.of.get("note", ()))
    heard_at: dict[tuple[str, int], list[float]] = defaultdict(list)
    for event in view.of.get("note", ()):
        heard_at[event.job, event.extra["seq"]].append(event.t)
    sent_twice = {(job, seq) for (_, _, job, seq), times in notes.items() if times > 1}
    accepted: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("notify", ()):
        if event.type == "ok":
            accepted[event.job].append(event)
    put: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("message", ()):
        put[event.job].append(event)
    saved: dict[str, list[Event]] = defaultdict(list)
    for event in view.of.get("state", ()):
        found.judged += 1
        heard: Sequence[int] = event.extra["heard"]
        order = [each.extra["seq"] for each in put[event.job] if each.t <= event.t]
        for at, (before, after) in enumerate(pairwise(heard)):
            is_sent = after == before and (event.job, after) in sent_twice
            if after > before or is_sent or _came_again(heard, at, order):
                continue
            moments = [t for t in heard_at[event.job, after] if t <= event.t] or [event.t]
            is_again = after in heard[: at + 1]
            if not is_again or not view.loses(moments[0], moments[-1], event.key):
                found.say(f"the state of {event.job} has message {after} after {before}", event)
        if heard:
            has = frozenset(heard)
            for note in accepted[event.job]:
                seq = note.extra["seq"]
                is_missing = seq < heard[-1] and seq not in has
                if is_missing and not view.loses(note.t, event.t, event.key):
                    found.say(f"the state of {event.job} lacks message {seq}", note, event)
        for former in saved[event.job] if event.type == "info" else ():
            kept = former.extra["heard"]
            is_older = former.epoch < event.epoch and list(heard[: len(kept)]) != list(kept)
            if is_older and not view.loses(former.t, event.t, event.key):
                found.say(f"{event.job} began without what was saved", former, event)
        if event.type == "ok":
            saved[event.job].append(event)


def _came_again(heard: Sequence[int], at: int, order: Sequence[int]) -> bool:
    """Say whether the message behind that at `at` had been there, and was accepted once more."""
    before, after = heard[at], heard[at + 1]
    return (
        after in heard[: at + 1]
        and before in order
        and after in order[order.index(before) + 1 :]
        and heard.count(after) <= order.count(after)
    )
