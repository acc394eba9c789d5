"""The invariant of batches: each settles, once, with what its members came to."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from pool.core.batches import member_id
from tests.verify.invariants import Finding, invariant
from tests.verify.view import Bounds, View

# The last one is of batches.
_LETTERS = {"done": "s", "parked": "f", "cancelled": "c", "failed": "f"}
SETTLED: Final = {"done", "failed", "cancelled"}


@invariant("I62", "a batch settles once with true counts")
def batches_settle(view: View, _: Bounds, found: Finding) -> None:
    """Who is noted counts as it has ended, and as missing only if it never was accepted; and who
    follows is accepted once, if it is done.  Lost data excuse what came before.
    """
    opened = {event.key: event for event in view.of.get("batch", ()) if event.type == "ok"}
    asked = {event.key: event for event in view.of.get("batch", ()) if event.type == "invoke"}
    words = {commit.job: commit.word for commit in reversed(view.commits)}
    tokens = Counter(event.idem for event in view.accepted.values())
    final = view.final.extra.get("batches", {}) if view.final is not None else {}
    lost = max((f.ended for f in view.faults if f.does == "loss"), default=-math.inf)
    for name, event in opened.items():
        found.judged += 1
        is_excused = event.t <= lost
        batch = final.get(name)
        if batch is None or batch["nonce"] != event.nonce:
            if not is_excused:
                found.say(f"batch {name} is gone", event)
            continue
        if batch["state"] not in SETTLED:
            found.say(f"batch {name} is {batch['state']} for ever", event)
            continue
        for index, letter in enumerate(batch["letters"]):
            word = words.get(member_id(event.nonce, index))
            if (kid := batch.get("kids", {}).get(index)) is not None:
                word = final[kid]["state"] if kid in final else None
            if letter != _LETTERS.get(word or "", "m") and not is_excused:
                found.say(f"member {index} of {name} counts as {letter}: it is {word}", event)
        then, least = asked[name].extra["then"], asked[name].extra["least"]
        succeeded = batch["letters"].count("s")
        if batch["counts"] != [batch["letters"].count(letter) for letter in "sfcm"]:
            found.say(f"batch {name} counts {batch['counts']}, of {batch['letters']}", event)
        is_done = succeeded >= least
        if is_done != (batch["state"] == "done"):
            found.say(f"batch {name} is {batch['state']}, and {succeeded} succeeded", event)
        if then and tokens[then] != is_done and not (is_excused and tokens[then] <= 1):
            found.say(f"batch {name}: what follows it was accepted {tokens[then]} times", event)
