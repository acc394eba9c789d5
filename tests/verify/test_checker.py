"""What the checker says of histories written by hand: a good and a bad one for each invariant.

An oracle that has never been seen to fire says nothing by its silence: the last test here fails
for an invariant without a bad history.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from pool.core.batches import member_id
from pool.core.settlement import TOO_LONG
from tests.verify.checker import Bounds, check, load
from tests.verify.history import Event, FencedResource, Recorder, digest, file_sink, merged, read
from tests.verify.invariants import INVARIANTS, NOT_YET

BOUNDS = Bounds(ttl_s=2.0, queue_s=5.0, attempts_max=3, backoff_max_s=1.0, limit_s=2.0, grace_s=2.0)
ROOT = Path(__file__).parents[2]


@attrs.define(eq=False)
class Story:
    """A history as it is told; `at` is the clock."""

    at: float = 0.0
    events: list[Event] = attrs.field(factory=list)
    _faults: int = 0
    _runs: dict[tuple[str, str], int] = attrs.field(factory=dict)

    def say(self, f: str, type_: Any = "ok", /, *, p: str = "d/1", **fields: Any) -> Event:
        recorder = Recorder(p, self.events.append, lambda: self.at)
        return recorder(f, type_, **fields)

    def dispatch(self, job: str, key: str = "k", **extra: Any) -> None:
        facts: dict[str, Any] = {"key": key, "idem": f"c-{job}", "extra": {"digest": "x", **extra}}
        self.say("dispatch", "invoke", **facts)
        self.say("dispatch", job=job, **facts)

    def start(
        self,
        job: str,
        key: str = "k",
        *,
        by: str = "a",
        epoch: int = 10,
        attempt: int = 1,
        **x: Any,
    ) -> None:
        number = self._runs[by, job] = self._runs.get((by, job), 0) + 1
        extra = {"run": f"{job}/{number}", "digest": "x", **x}
        self._about("start", "ok", job, key, by, epoch, attempt, extra)

    def end(
        self,
        job: str,
        key: str = "k",
        *,
        by: str = "a",
        epoch: int = 10,
        attempt: int = 1,
        err: str = "",
        effect: bool = True,
        **x: Any,
    ) -> None:
        extra = {"run": f"{job}/{self._runs[by, job]}", **x}
        if effect:
            self._about("effect", "ok", job, key, by, epoch, attempt, {})
        self._about("end", "fail" if err else "ok", job, key, by, epoch, attempt, extra, err=err)

    def _about(
        self,
        f: str,
        type_: str,
        job: str,
        key: str,
        by: str,
        epoch: int,
        attempt: int,
        extra: dict[str, Any],
        **fields: Any,
    ) -> None:
        self.say(
            f,
            type_,
            p=f"{by}/1",
            nonce=f"W{by}.1",
            job=job,
            key=key,
            idem=f"c-{job}",
            epoch=epoch,
            attempt=attempt,
            extra=extra,
            **fields,
        )

    def commit(
        self,
        job: str,
        key: str = "k",
        *,
        by: str = "a",
        epoch: int = 10,
        attempt: int = 1,
        **f: Any,
    ) -> None:
        facts = {"result": "first", "extra": {"word": "done"}, **f}
        self.say(
            "commit", p=f"{by}/1", nonce=f"W{by}.1", job=job, key=key, epoch=epoch,
            attempt=attempt, **facts,
        )  # fmt: skip

    def whole(self, job: str, key: str = "k", *, by: str = "a", epoch: int = 10) -> None:
        """Tell a job's life without trouble."""
        self.dispatch(job, key)
        self.at += 0.01
        self.start(job, key, by=by, epoch=epoch)
        self.at += 0.1
        self.end(job, key, by=by, epoch=epoch)
        self.commit(job, key, by=by, epoch=epoch)
        self.say("result", job=job, key=key, result={"epoch": epoch})

    def fault(
        self, does: str, target: str = "", *, kind: str = "", lasts: float = 0.0, **more: Any
    ) -> None:
        """Tell a fault, and let it pass."""
        self._faults += 1
        extra = {"id": self._faults, "does": does, "kind": kind or does, "target": target, **more}
        self.say("fault", "invoke", extra=extra)
        self.at += lasts
        self.say("fault", "ok", extra=extra)

    def crash(self, node: str = "a") -> None:
        self.fault("crash", node)
        self.say("exit", p=f"{node}/1", result=-9)

    def final(self, outcomes: dict[str, Any] | None = None, **extra: Any) -> None:
        """Heal and dump; an outcome is (word, epoch, value, seconds before the dump)."""
        self.at += 0.5
        dumped = {
            job: {
                "word": word,
                "epoch": epoch,
                "owner": "Wa.1" if epoch == 10 else f"W{epoch}",
                "attempt": 1,
                "ended_ms": 100_000 - ago * 1000,
                "value": value,
            }
            for job, (word, epoch, value, ago) in (outcomes or {}).items()
        }
        facts = {"now_ms": 100_000, "jobs": {}, "outcomes": dumped, **extra}
        self.say("final_state", extra=facts)

    def heal(self) -> None:
        self.say("heal")


Tell = Callable[[Story], None]
GOOD: dict[str, list[Tell]] = {}
BAD: dict[str, list[Tell]] = {}


def good(*names: str) -> Callable[[Tell], Tell]:
    return _into(GOOD, names)


def bad(*names: str) -> Callable[[Tell], Tell]:
    return _into(BAD, names)


def _into(stories: dict[str, list[Tell]], names: tuple[str, ...]) -> Callable[[Tell], Tell]:
    def register(tell: Tell) -> Tell:
        for name in names:
            stories.setdefault(name, []).append(tell)
        return tell

    return register


# --- jobs ------------------------------------------------------------------------------------


@good("I1", "I2", "I3", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I13", "I14", "I15")
def a_quiet_day(s: Story) -> None:
    s.whole("j1", epoch=10)
    s.whole("j2", by="b", epoch=11)
    s.heal()
    s.final({"j1": ("done", 10, {"epoch": 10}, 0.6)})
    s.events[-1].extra["outcomes"]["j2"] = {
        "word": "done", "epoch": 11, "owner": "Wb.1", "attempt": 1, "ended_ms": 99_900,
        "value": {"epoch": 11},
    }  # fmt: skip


@good("I1")
def what_was_accepted_before_a_loss_may_be_gone(s: Story) -> None:
    s.dispatch("j1")
    s.fault("loss")
    s.final()


@bad("I1")
def an_accepted_job_is_nowhere(s: Story) -> None:
    s.dispatch("j1")
    s.final()


@bad("I1")
def accepted_after_the_loss_it_is_nowhere(s: Story) -> None:
    s.fault("loss")
    s.at += 1.0
    s.dispatch("j1")
    s.final()


@good("I2")
def a_service_lives_on(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.heal()
    s.final(jobs={"k": ["j1", "running", "service"]})


def fired_at_the_end(*, early_s: float) -> Tell:
    """Return the story of a job that a schedule fires so long before the end."""

    def tell(s: Story) -> None:
        s.heal()
        s.whole("j0", "other")
        s.at += 10.0
        facts: dict[str, Any] = {"key": "k", "idem": "t", "extra": {"digest": "x"}, "p": "server"}
        s.say("dispatch", "invoke", **facts)
        s.say("dispatch", job="j1", **facts)
        s.at += early_s
        done = ("done", 10, {"epoch": 10}, 1.0)
        s.final({"j0": done}, jobs={"k": ["j1", "pending", "job"]})

    return tell


good("I2")(fired_at_the_end(early_s=0.01))
bad("I2")(fired_at_the_end(early_s=60.0))


@bad("I2")
def a_job_still_has_a_record_at_the_end(s: Story) -> None:
    s.dispatch("j1")
    s.heal()
    s.final(jobs={"k": ["j1", "pending", "job"]})


@bad("I2")
def a_job_ends_too_late_after_heal(s: Story) -> None:
    s.dispatch("j1")
    s.heal()
    s.at += 100.0
    s.start("j1")
    s.end("j1")
    s.commit("j1")


@good("I2")
def a_job_waits_for_what_is_hurt_after_heal(s: Story) -> None:
    s.dispatch("j1")
    s.heal()
    s.fault("pause", "b", lasts=50.0)
    s.at += 1.0
    s.start("j1")
    s.end("j1")
    s.commit("j1")


@bad("I2")
def a_job_ends_too_late_before_what_is_hurt_after_heal(s: Story) -> None:
    a_job_ends_too_late_after_heal(s)
    s.fault("pause", "b", lasts=50.0)


def waits_for_the_clock(step_s: float, *, late_s: float = 1.7, first: bool = False) -> Tell:
    """Return the story of a job that ends 1.7 s too late, and of a step of the server's clock."""

    def tell(s: Story) -> None:
        def step() -> None:
            extra = {"id": 9, "does": "clock", "kind": "clock-back", "target": "", "step_s": step_s}
            s.say("fault", "invoke", extra=extra)
            s.say("fault", "ok", extra=extra)

        if first:
            step()
            s.at += 9.0
        s.dispatch("j1")
        s.start("j1")
        if not first:
            step()
        s.heal()
        s.at += BOUNDS.quiet_s + late_s
        s.end("j1")
        s.commit("j1")
        s.final({"j1": ("done", 10, None, 0.0)})

    return tell


good("I2")(waits_for_the_clock(-3600.0))
good("I2")(waits_for_the_clock(3600.0))
bad("I2")(waits_for_the_clock(-1.2))
bad("I2")(waits_for_the_clock(-3600.0, late_s=5.0))  # no more than two periods and 1 s
bad("I2")(waits_for_the_clock(-3600.0, first=True))


@bad("I2")
def the_harness_ended_the_run(s: Story) -> None:
    s.final(drained=False)


@bad("I3")
def an_old_owner_settles_after_the_new_one(s: Story) -> None:
    s.whole("j1", epoch=20, by="b")
    s.commit("j2", epoch=10)


@bad("I3")
def an_old_owner_settled_later_by_the_dump(s: Story) -> None:
    s.whole("j1", epoch=20, by="b")
    s.whole("j2", epoch=10)
    s.events = [event for event in s.events if event.f != "commit"]
    s.final({"j1": ("done", 20, {"epoch": 20}, 5.0), "j2": ("done", 10, {"epoch": 10}, 1.0)})


@bad("I5")
def two_owners_have_one_epoch(s: Story) -> None:
    s.whole("j1", epoch=10)
    s.whole("j2", epoch=10, by="b")


@bad("I5")
def another_owner_settled_it(s: Story) -> None:
    s.whole("j1", by="b", epoch=10)
    s.final({"j1": ("done", 10, {"epoch": 10}, 0.5)})


@good("I6")
def a_repeat_is_told_the_same(s: Story) -> None:
    s.whole("j1")
    s.commit("j1", result="repeat")
    s.say("result", job="j1", result={"epoch": 10})


@bad("I6")
def a_job_is_settled_first_twice(s: Story) -> None:
    s.whole("j1")
    s.commit("j1")


@bad("I6")
def two_askers_are_told_different_things(s: Story) -> None:
    s.whole("j1")
    s.say("result", job="j1", result={"epoch": 11})


@bad("I6")
def something_else_is_stored(s: Story) -> None:
    s.whole("j1")
    s.final({"j1": ("done", 10, {"epoch": 9}, 0.5)})


@bad("I6")
def it_is_stored_as_parked(s: Story) -> None:
    s.whole("j1")
    s.final({"j1": ("parked", 10, None, 0.5)})


@bad("I7")
def a_later_write_is_stored(s: Story) -> None:
    s.whole("j1")
    s.commit("j1", epoch=11, by="b", extra={"word": "parked"})
    s.final({"j1": ("parked", 11, None, 0.5)})


@bad("I7")
def an_outcome_vanished(s: Story) -> None:
    s.whole("j1")
    s.final()


def steps_between(*renewed: tuple[str, float]) -> Tell:
    """Return the story of an outcome that is gone after a step at 10.0, and of who was heard."""

    def tell(s: Story) -> None:
        s.whole("j1")
        told = sorted([*((at, by) for by, at in renewed), (10.0, "")])
        for s.at, by in told:
            if by:
                s.say("renew", p=f"{by}/1", nonce=f"N{by}.1", extra={"asked": s.at})
            else:
                extra = {"id": 9, "does": "clock", "kind": "clock", "target": "", "step_s": 3600.0}
                s.say("fault", "invoke", extra=extra)
                s.say("fault", "ok", extra=extra)
        s.at = 30.0
        s.final()

    return tell


good("I7")(steps_between(("a", 9.0), ("b", 11.0)))  # nobody saw it
bad("I7")(steps_between(("a", 9.0), ("b", 9.5), ("a", 19.0)))
good("I7")(steps_between(("a", 9.5), ("a", 19.0)))  # who came knows it only after two periods
bad("I7")(steps_between(("b", 9.0), ("a", 9.5), ("b", 9.6), ("a", 19.0)))  # or from another
bad("I7")(steps_between(("a", 9.0), ("b", 11.0), ("a", 11.5)))
good("I7")(steps_between(("a", 9.0), ("b", 11.0), ("a", 19.0)))  # b's time is the lane's by then
bad("I7")(steps_between())


def told_while_time_stood(
    *renewed: tuple[str, float, float], wiped: float = 5.0, step_s: float = 3600.0, lane: str = "0"
) -> Tell:
    """Return the story of an outcome that was told at 10.1 behind a step at 10.0, and is gone.

    Who was heard in a lane asked at the first time, and was answered at the other.
    """

    def tell(s: Story) -> None:
        def hear(by: str, asked: float) -> None:
            s.say("renew", p=f"{by}/1", nonce=f"N{by}.1@{lane}", extra={"asked": asked})

        s.say("own", key="k", epoch=9, nonce="Wx.1@0")
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        events: list[tuple[float, Callable[[], object]]] = [
            *((at, partial(hear, by, asked)) for by, asked, at in renewed),
            (wiped, partial(s.fault, "loss", kind="lane-wipe", lane="0")),
            (10.0, partial(step, s, step_s=step_s)),
            (10.1, partial(s.whole, "j1")),
        ]
        for at, happens in sorted(events, key=lambda each: each[0]):
            s.at = max(s.at, at)
            happens()
        s.at = 30.0
        s.final()

    return tell


# Who had seen it died before it could say so, and the others knew the lane that was lost.
good("I7")(told_while_time_stood(("a", 9.0, 9.0), ("b", 4.0, 6.0), ("b", 19.0, 19.0)))
bad("I7")(told_while_time_stood(("a", 9.0, 9.0), ("b", 6.0, 6.0), ("b", 19.0, 19.0)))
bad("I7")(told_while_time_stood(("a", 9.0, 9.0), ("c", 10.05, 10.05)))  # it was settled by then
bad("I7")(told_while_time_stood(("a", 9.0, 9.0), ("b", 19.0, 19.0), step_s=-3600.0))
bad("I7")(told_while_time_stood(("a", 9.0, 9.0), ("b", 19.0, 19.0), wiped=10.05))
# What was heard in another lane is no help, nor a hindrance.
good("I7")(told_while_time_stood(("a", 9.0, 9.0), ("a", 10.05, 10.05), lane="1"))


@good("I7")
def a_frozen_caller_tells_after_a_loss_what_was_before_it(s: Story) -> None:
    s.whole("j1")
    s.fault("loss")
    s.say("result", job="j1", result={"epoch": 10})
    s.whole("j2")
    s.final({"j2": ("done", 10, {"epoch": 10}, 0.6)})


@bad("I7")
def an_outcome_of_after_the_loss_vanished(s: Story) -> None:
    s.fault("loss")
    s.whole("j1")
    s.final()


@bad("I8")
def it_is_done_and_never_ran(s: Story) -> None:
    s.dispatch("j1")
    s.commit("j1")


@bad("I8")
def it_is_done_by_an_attempt_that_failed(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="error")
    s.commit("j1")


@bad("I8")
def the_settling_owner_had_its_effect_refused(s: Story) -> None:
    s.whole("j1")
    s.events = [attrs.evolve(e, type="fail") if e.f == "effect" else e for e in s.events]


@bad("I9")
def a_job_runs_that_nobody_asked_for(s: Story) -> None:
    s.start("j1")


@bad("I9")
def an_effect_that_nobody_asked_for(s: Story) -> None:
    s.say("effect", job="j1", idem="c-j1", key="k")


@bad("I10")
def another_payload_arrives(s: Story) -> None:
    s.dispatch("j1", digest="x")
    s.start("j1", digest="y")


@bad("I10")
def the_payload_of_another_key_arrives(s: Story) -> None:
    s.dispatch("j1", "k")
    s.start("j1", "other")


@good("I10")
def a_job_is_parked_after_its_last_attempt(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="error", effect=False)
    s.commit("j1", extra={"word": "parked", "cause": "RuntimeError: as planned"})


@bad("I10")
def a_job_is_parked_because_its_payload_is_gone(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="error", effect=False)
    s.commit("j1", extra={"word": "parked", "cause": "malformed"})


@bad("I10")
def a_job_was_parked_without_its_payload_says_the_dump(s: Story) -> None:
    s.dispatch("j1")
    s.heal()
    s.final({"j1": ("parked", 10, None, 0.0)})
    s.events[-1].extra["outcomes"]["j1"]["cause"] = "malformed payload"


@good("I11", "I18", "I13", "I14", "I15")
def a_crash_and_a_takeover(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    s.at += 2.5
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)
    s.commit("j1", by="b", epoch=11)


@bad("I11")
def it_ran_again_without_a_cause(s: Story) -> None:
    s.whole("j1")
    s.start("j1", epoch=11, by="b")


@bad("I11")
def it_ran_twice_more_for_one_crash(s: Story) -> None:
    a_crash_and_a_takeover(s)
    s.start("j1", by="c", epoch=12)


@bad("I12")
def one_call_made_two_jobs(s: Story) -> None:
    s.whole("j1")
    s.say("start", p="a/1", job="j9", idem="c-j1", key="k", epoch=30, nonce="Wa.1")


@good("I11")
def a_service_was_moved(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.end("j1", err="cancelled")
    s.say("event", p="a/1", key="k", extra={"event": "service.moved", "target": "Wb.1"})
    s.start("j1", by="b", epoch=11)


@good("I11")
def all_that_was_lost_is_done_again(s: Story) -> None:
    s.dispatch("j1")
    for attempt in (1, 2, 3, 4):
        s.start("j1", epoch=9 + attempt, attempt=attempt)
        s.end("j1", epoch=9 + attempt, attempt=attempt, err="error")
    s.fault("loss")
    for attempt in (1, 2, 3, 4):
        s.start("j1", by="b", epoch=19 + attempt, attempt=attempt)
        s.end("j1", by="b", epoch=19 + attempt, attempt=attempt, err="error")


@bad("I11")
def more_than_was_lost_is_done_again(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.fault("loss")
    s.at += 1.0
    for epoch in (11, 12, 13, 14):
        s.start("j1", by="b", epoch=epoch)


@good("I13")
def messages_come_in_order_and_again_after_a_move(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    for seq in (1, 2, 3):
        s.say("notify", key="k", job="j1", extra={"seq": seq})
    for run, seqs in ((1, (1, 2)), (2, (2, 3))):
        for seq in seqs:
            s.say("note", p=f"{run}/1", key="k", job="j1", extra={"seq": seq, "run": run})
    s.final(jobs={"k": ["j1", "running", "service"]})


@bad("I13")
def a_later_job_starts_first(s: Story) -> None:
    s.dispatch("j1")
    s.at += 1.0
    s.dispatch("j2")
    s.start("j2", epoch=11)
    s.end("j2", epoch=11)
    s.start("j1", epoch=12)


@bad("I13")
def a_message_comes_twice_in_one_run(s: Story) -> None:
    s.say("note", p="a/1", job="j1", extra={"seq": 2, "run": 1})
    s.say("note", p="a/1", job="j1", extra={"seq": 2, "run": 1})


@good("I13")
def a_message_is_sent_again_because_its_answer_was_lost(s: Story) -> None:
    s.say("notify", "invoke", key="k", job="j1", extra={"seq": 2})
    s.fault("cut", "d", kind="cut-reply")
    s.say("notify", key="k", job="j1", extra={"seq": 2})
    for _ in range(2):
        s.say("note", p="a/1", job="j1", extra={"seq": 2, "run": 1})


@good("I13")
def a_message_of_unknown_outcome_comes_late(s: Story) -> None:
    s.say("notify", "info", key="k", job="j1", extra={"seq": 1})
    for seq in (2, 1):
        s.say("note", p="a/1", job="j1", extra={"seq": seq, "run": 1})


@bad("I13")
def a_message_is_overtaken(s: Story) -> None:
    s.say("note", p="a/1", job="j1", extra={"seq": 2, "run": 1})
    s.say("note", p="b/1", job="j1", extra={"seq": 1, "run": 2})


@bad("I13")
def a_message_is_lost(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.say("notify", key="k", job="j1", extra={"seq": 1})
    s.final(jobs={"k": ["j1", "running", "service"]})


# --- ownership -------------------------------------------------------------------------------


def renewed(s: Story, by: str, asked: float, until: float) -> None:
    s.say("renew", p=f"{by}/1", nonce=f"W{by}.1", extra={"asked": asked, "until": until})


@good("I4", "I26")
def leases_one_after_the_other(s: Story) -> None:
    renewed(s, "a", 0.0, 1.9)
    s.dispatch("j1")
    s.start("j1")
    s.fault("cut", "a", kind="partition", lasts=1.9)
    s.end("j1", err="cancelled")
    s.at = 2.1
    renewed(s, "b", 2.0, 3.9)
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


@good("I4", "I14", "I15")
def a_grant_that_the_server_lost_is_started_behind_the_next_one(s: Story) -> None:
    renewed(s, "a", 0.0, 9.0)
    renewed(s, "b", 0.0, 9.0)
    s.dispatch("j1")
    s.at += 0.3
    s.fault("loss")
    s.at += 0.3
    s.start("j1", by="b", epoch=11)
    s.at += 0.05
    s.start("j1")
    s.end("j1", err="cancelled", effect=False)
    s.at += 0.05
    s.end("j1", by="b", epoch=11)


def leased(s: Story, by: str, asked: float) -> None:
    s.say("lease", nonce=f"W{by}.1", extra={"asked": asked, "until": asked + 2.0})


@good("I4", "I17")
def a_frozen_process_is_replaced_when_its_lease_has_ended(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    leased(s, "a", 0.0)
    leased(s, "a", 0.4)
    leased(s, "b", 2.0)
    s.dispatch("j1")
    s.start("j1")
    s.fault("pause", "a", lasts=2.5)
    s.start("j1", by="b", epoch=11)
    s.say("reap", p="b/1", nonce="Wa.1")
    s.at += 0.1
    s.end("j1", err="cancelled", effect=False)


@good("I4", "I15")
def a_process_froze_when_it_was_about_to_start(s: Story) -> None:
    leased(s, "a", 0.0)
    leased(s, "b", 2.0)
    s.dispatch("j1")
    s.fault("pause", "a", lasts=2.5)
    s.start("j1", by="b", epoch=11)
    s.at += 0.1
    s.start("j1")
    s.end("j1", err="cancelled", effect=False)
    s.end("j1", by="b", epoch=11)


@bad("I4", "I17")
def a_frozen_process_is_replaced_within_its_lease(s: Story) -> None:
    leased(s, "a", 0.0)
    leased(s, "a", 1.0)
    leased(s, "b", 2.0)
    s.dispatch("j1")
    s.start("j1")
    s.fault("pause", "a", lasts=2.5)
    s.start("j1", by="b", epoch=11)
    s.say("reap", p="b/1", nonce="Wa.1")


@good("I4", "I14", "I15")
def a_frozen_process_believes_for_too_long(s: Story) -> None:
    renewed(s, "a", 0.0, 3.0)
    s.dispatch("j1")
    s.start("j1")
    renewed(s, "b", 0.0, 9.0)
    s.fault("pause", "a", lasts=2.5)
    s.start("j1", by="b", epoch=11)
    s.at += 0.1
    s.end("j1", err="cancelled")


@bad("I4", "I14")
def two_good_leases_and_one_key(s: Story) -> None:
    renewed(s, "a", 0.0, 3.0)
    renewed(s, "b", 0.0, 3.0)
    s.dispatch("j1")
    s.start("j1")
    s.at = 1.0
    s.start("j1", by="b", epoch=11)


@bad("I14")
def an_overlap_after_a_partition(s: Story) -> None:
    """Who is cut off stops in time: that excuses nothing."""
    s.dispatch("j1")
    s.start("j1")
    s.fault("cut", "a", kind="partition", lasts=3.0)
    s.start("j1", by="b", epoch=11)


@bad("I14")
def it_is_taken_from_a_loop_that_hangs(s: Story) -> None:
    """It had begun: its node has acknowledged it, and renews."""
    s.dispatch("j1")
    s.start("j1")
    s.fault("pause", "a", kind="block", lasts=3.0)
    s.start("j1", by="b", epoch=11)


@bad("I15")
def behind_a_loop_that_hung_begins_what_was_taken_back(s: Story) -> None:
    s.dispatch("j1")
    s.fault("pause", "a", kind="hang", lasts=3.0)
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)
    s.start("j1")


@good("I14", "I15")
def its_loop_hung_and_its_lease_ended(s: Story) -> None:
    """It could not renew either: who is fenced then goes on until its loop turns."""
    s.dispatch("j1")
    s.start("j1")
    s.fault("cut", "a", kind="partition", lasts=2.0)
    s.fault("pause", "a", kind="block", lasts=3.0)
    s.at -= 1.0
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)
    s.commit("j1", by="b", epoch=11)


@bad("I14")
def one_process_runs_a_key_twice(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.fault("pause", "a")
    s.start("j1", epoch=11)


@good("I15")
def started_under_its_grant(s: Story) -> None:
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wa.1")
    s.start("j1")
    s.end("j1")


@bad("I15")
def started_without_a_grant(s: Story) -> None:
    s.dispatch("j1")
    s.say("own", key="k", epoch=11, nonce="Wb.1")
    s.start("j1")


@bad("I15")
def a_stale_start(s: Story) -> None:
    s.whole("j1", epoch=11, by="b")
    s.dispatch("j2")
    s.start("j2", epoch=10)


def granted_behind_a_loss(
    *, is_there: bool, epoch: int, asked_s: float = 0.0
) -> Callable[[Story], None]:
    def story(s: Story) -> None:
        s.say("own", key="k", epoch=20, nonce="Wa.1")
        s.whole("j1", epoch=20)
        s.fault("clock", lasts=1.0)
        s.fault("loss", lasts=1.0)
        s.at += 0.1
        if is_there:
            s.say("join", p="a/1", nonce="Wa.2", extra={"worker": True, "asked": s.at - asked_s})
            s.at += 0.1
        s.say("own", key="k", epoch=epoch, nonce="Wb.1")

    story.__name__ = f"granted_{epoch}_behind_a_loss_{is_there}"
    return story


good("I70")(granted_behind_a_loss(is_there=True, epoch=21))
good("I70")(granted_behind_a_loss(is_there=False, epoch=10))  # nobody alive knows
bad("I70")(granted_behind_a_loss(is_there=True, epoch=10))
# Its loop stood still: what it had asked for before the loss is answered, and told later.
good("I70")(granted_behind_a_loss(is_there=True, epoch=10, asked_s=0.2))
bad("I70")(granted_behind_a_loss(is_there=True, epoch=10, asked_s=0.05))


@bad("I70")
def granted_under_a_lower_epoch_without_any_loss(s: Story) -> None:
    s.say("own", key="k", epoch=20, nonce="Wa.1")
    s.start("j1", epoch=20)
    s.at += 1.0
    s.say("own", key="k", epoch=10, nonce="Wb.1")


# --- recovery --------------------------------------------------------------------------------


def dealt(*, after_s: float, ttl_s: float = 2.0) -> Callable[[Story], None]:
    """Two processes die at once; the keys of one are moved to the other a while later."""

    def story(s: Story) -> None:
        joined(s, "a", "b")
        s.crash("a")
        s.crash("b")
        s.at += after_s
        if ttl_s != BOUNDS.ttl_s:
            s.say("ttl", extra={"lane": "", "before_s": BOUNDS.ttl_s, "s": ttl_s})
        s.say("own", key="k", job="j1", epoch=11, nonce="Wb.1")
        s.say("requeue", key="k", job="j1", epoch=10, extra={"dead": "Wa.1", "fence": 1})

    story.__name__ = f"dealt_after_{after_s}_of_{ttl_s}"
    return story


good("I71")(dealt(after_s=0.2))
bad("I71")(dealt(after_s=1.9))
good("I71")(dealt(after_s=1.9, ttl_s=1.0))
bad("I71")(dealt(after_s=1.9, ttl_s=3.0))


def dealt_behind_a_break(break_s: float) -> Callable[[Story], None]:
    """Two processes die at once, and the third one, which reaps them, renews, but for a break."""

    def story(s: Story) -> None:
        for node in "abc":
            s.say("join", p=f"{node}/1", nonce=f"W{node}.1@0", extra={"worker": True})
        s.crash("a")
        s.crash("b")
        for passed_s in (0.4, 0.4, break_s):
            s.at += passed_s
            s.say("renew", p="c/1", nonce="Wc.1@0", extra={"asked": s.at, "until": s.at + 1.9})
        s.say("own", key="k", job="j1", epoch=11, nonce="Wb.1@0")
        s.say("requeue", key="k", job="j1", epoch=10, extra={"dead": "Wa.1@0", "fence": 1})

    story.__name__ = f"dealt_behind_a_break_of_{break_s}"
    return story


# The lease clock stands still in a break that is longer than 1.75 periods: the dead look alive.
good("I71")(dealt_behind_a_break(0.75))
bad("I71")(dealt_behind_a_break(0.65))


def dealt_behind_an_outage(silent_s: float) -> Callable[[Story], None]:
    """A process joins after nobody was heard for a while, dies, and is dealt keys later."""

    def story(s: Story) -> None:
        def renew(node: str, number: int) -> None:
            extra = {"asked": s.at, "until": s.at + 1.9}
            s.say("renew", p=f"{node}/{number}", nonce=f"W{node}.{number}@0", extra=extra)

        for node in "ac":
            s.say("join", p=f"{node}/1", nonce=f"W{node}.1@0", extra={"worker": True})
        s.crash("a")
        s.at += silent_s
        s.say("join", p="b/2", nonce="Wb.2@0", extra={"worker": True})
        renew("b", 2)
        s.fault("crash", "b")
        s.say("exit", p="b/2", result=-9)
        for _ in range(3):
            s.at += 0.4
            renew("c", 1)
        s.say("own", key="k", job="j1", epoch=11, nonce="Wb.2@0")
        s.say("requeue", key="k", job="j1", epoch=10, extra={"dead": "Wa.1@0", "fence": 1})

    story.__name__ = f"dealt_behind_an_outage_of_{silent_s}"
    return story


# A lease that is granted while nobody vouches for the time ends two periods later.
good("I71")(dealt_behind_an_outage(2.0))
bad("I71")(dealt_behind_an_outage(0.6))


def dealt_beside(
    does: str, kind: str, node: str, *, is_over: bool = False
) -> Callable[[Story], None]:
    """The keys of a dead worker are moved to a dead one too late, and something else happens."""

    def story(s: Story) -> None:
        extra = {"id": 9, "does": does, "kind": kind, "target": node}
        s.say("fault", "invoke", extra=extra)
        if is_over:
            s.say("fault", "ok", extra=extra)
        dealt(after_s=1.9)(s)  # ten seconds later
        if not is_over:
            s.say("fault", "ok", extra=extra)

    story.__name__ = f"dealt_beside_{kind}_of_{node}_{is_over}"
    return story


# The last renewal of a dead worker may arrive after its death.
good("I71")(dealt_beside("cut", "late", "b"))
# A living worker that asks in vain holds the lease clock up, whoever else is answered.
good("I71")(dealt_beside("cut", "lossy-requests", "c"))
bad("I71")(dealt_beside("cut", "lossy-requests", "c", is_over=True))
bad("I71")(dealt_beside("crash", "crash", "c"))


@good("I16")
def a_reaper_dies_and_another_goes_on(s: Story) -> None:
    s.say("lock", nonce="Wa.1", extra={"fence": 1, "holder": "b"})
    s.say("requeue", job="j1", epoch=11, extra={"dead": "Wa.1", "fence": 1})
    s.crash("b")
    s.say("lock", nonce="Wa.1", extra={"fence": 2, "holder": "c"})
    s.say("requeue", job="j2", epoch=12, extra={"dead": "Wa.1", "fence": 2})
    s.say("reap", nonce="Wa.1", p="c/1")


@bad("I16")
def who_lost_the_claim_writes(s: Story) -> None:
    s.say("lock", nonce="Wa.1", extra={"fence": 1})
    s.say("lock", nonce="Wa.1", extra={"fence": 2})
    s.at += 0.1
    s.say("requeue", job="j1", epoch=11, extra={"dead": "Wa.1", "fence": 1})


def claimed_and_lost(lane: str, *, is_between: bool) -> Callable[[Story], None]:
    def story(s: Story) -> None:
        if not is_between:
            s.fault("loss", lane=lane)
            s.at += 5.0
        s.say("lock", nonce="Wa.1@2", extra={"fence": 1})
        s.say("lock", nonce="Wa.1@2", extra={"fence": 2})
        s.at += 5.0
        if is_between:
            s.fault("loss", lane=lane)
        s.at += 5.0
        s.say("requeue", job="j1", epoch=11, extra={"dead": "Wa.1@2", "fence": 1})

    story.__name__ = f"a_claim_is_lost_in_{lane}_{is_between}"
    return story


good("I16")(claimed_and_lost("2", is_between=True))
bad("I16")(claimed_and_lost("3", is_between=True))
bad("I16")(claimed_and_lost("2", is_between=False))


@bad("I16")
def a_job_is_taken_twice(s: Story) -> None:
    for _ in range(2):
        s.say("requeue", job="j1", epoch=11, extra={"dead": "Wa.1", "fence": 1})


@bad("I16")
def an_identity_is_reaped_twice(s: Story) -> None:
    s.say("reap", nonce="Wa.1", p="b/1")
    s.say("reap", nonce="Wa.1", p="c/1")


@good("I17")
def the_dead_are_reaped(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    renewed(s, "a", 0.0, 1.9)
    s.at = 0.5
    s.crash()
    s.at = 2.4
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I17")
def reaped_within_its_lease(s: Story) -> None:
    renewed(s, "a", 1.0, 2.9)
    s.at = 2.0
    s.say("reap", p="b/1", nonce="Wa.1")


def reaped_without_its_lease(
    member: str = "Wa.1", lane: str = "0", index: str = "keepalive", *, is_back: bool = False
) -> Tell:
    """Return the story of a dead worker whose lease somebody deleted before it had ended."""

    def tell(s: Story) -> None:
        s.say("join", p="a/1", nonce="Wa.1@0")
        s.at = 1.0
        s.say("renew", p="a/1", nonce="Wa.1@0", extra={"asked": 1.0, "until": 2.9})
        s.at = 1.5
        s.fault("store", kind="lost-index", index=index, member=member, index_lane=lane)
        if is_back:
            s.say("renew", p="a/1", nonce="Wa.1@0", extra={"asked": 1.6, "until": 3.5})
        s.crash()
        s.at = 2.0
        s.say("reap", p="b/1", nonce="Wa.1@0")

    return tell


good("I17")(reaped_without_its_lease())
bad("I17")(reaped_without_its_lease(member="Wb.1"))
bad("I17")(reaped_without_its_lease(lane="1"))
bad("I17")(reaped_without_its_lease(index="owned"))
bad("I17")(reaped_without_its_lease(is_back=True))


def starved(s: Story, p: str, lasts: float, waited: float) -> None:
    """Tell that a process waited for a processor so much of each half second."""
    until = s.at + lasts
    while s.at < until:
        s.at += 0.5
        s.say("stall", "info", extra={"waited": {p: waited}})


@good("I17", "I11", "I14")
def a_starved_process_is_evicted(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at = 20.0
    s.dispatch("j1")
    s.start("j1")
    starved(s, "a/1", 3.0, 0.4)
    s.start("j1", by="b", epoch=11)
    s.say("reap", p="b/1", nonce="Wa.1")
    s.end("j1", err="cancelled", effect=False)
    s.end("j1", by="b", epoch=11)


@good("I17", "I16")
def who_was_evicted_is_forgotten_twice(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at = 20.0
    s.fault("cut", "a", lasts=3.0)
    s.say("reap", p="b/1", nonce="Wa.1")
    s.at += 9.5
    s.fault("store")
    s.say("reap", p="b/1", nonce="Wa.1")


@good("I20")
def it_was_starved_and_nobody_looked(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.0)
    s.at += 4.0
    s.say("stall", "info", extra={"waited": {"a/1": 3.0, "driver/1": 0.9}})
    s.end("j1", err="timeout")


@bad("I17")
def others_were_starved(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at = 20.0
    starved(s, "b/1", 3.0, 0.4)
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I17")
def it_waited_a_little(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at = 20.0
    starved(s, "a/1", 3.0, 0.2)
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I17")
def it_waited_for_a_moment(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at = 20.0
    starved(s, "a/1", 0.5, 0.5)
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I17")
def evicted_for_an_outage_of_the_server(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at = 20.0
    s.fault("store", lasts=5.0)
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I18")
def nobody_takes_over(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    s.at += 20.0
    s.final(jobs={"k": ["j1", "running", "job"]})


def taken_over_by_the_young(*, after_s: float, age_s: float = 1.0) -> Callable[[Story], None]:
    """It had just begun, alone: a process that is young begins it at some time within a span."""

    def tell(s: Story) -> None:
        s.say("boot", p="b/1")
        s.say("join", p="b/1", nonce="Wb.1", extra={"worker": True})
        s.at += age_s
        s.dispatch("j1")
        s.start("j1")
        s.crash()
        s.at += after_s
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


SPAN_S = BOUNDS.span_s(0)  # of a suspect that was none before
good("I18")(taken_over_by_the_young(after_s=3.2 + SPAN_S))
bad("I18")(taken_over_by_the_young(after_s=3.4 + SPAN_S))
bad("I18")(taken_over_by_the_young(after_s=3.4, age_s=60.1))


def back_from_a_pause(*, while_away: bool, nodes: str = "ab") -> Callable[[Story], None]:
    """It stands still for 6 s of a lease of 2; whoever else there is does, too, or is well."""

    def tell(s: Story) -> None:
        joined(s, *nodes)
        s.dispatch("j1", kind="service")
        s.start("j1")
        s.at += 1.0
        s.fault("pause", "a", lasts=6.0)
        if len(nodes) > 1:
            s.at -= 6.0
            s.fault("pause", "b" if while_away else "c", lasts=7.0)
        s.at += 20.0
        s.final(jobs={"k": ["j1", "running", "service"]})

    return tell


good("I18")(back_from_a_pause(while_away=True))  # it goes on where it was
bad("I18")(back_from_a_pause(while_away=False))
good("I18")(back_from_a_pause(while_away=False, nodes="a"))  # there is nobody else


@bad("I18")
def the_takeover_is_late(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    s.at += 3.5
    s.start("j1", by="b", epoch=11)


def taken_over_among_silences(*, after: float, of: str = "stall") -> Callable[[Story], None]:
    """A server that stands still for half of the time, for ten TTLs."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1", kind="service")
        s.start("j1")
        s.at += 5.0
        s.crash()
        died, is_over = s.at, False
        for _ in range(10):
            s.at += 1.0
            s.fault("store", kind=of, lasts=1.0)
            if not is_over and s.at - died >= after:
                s.start("j1", by="b", epoch=11)
                is_over = True
        s.at += 20.0
        s.final(jobs={"k": ["j1", "running", "service"]})

    return tell


good("I18")(taken_over_among_silences(after=6.0))
bad("I18")(taken_over_among_silences(after=12.0))  # by as much as it was silent, and no more
good("I18")(taken_over_among_silences(after=12.0, of="restart"))  # each may be another server


def taken_over_after(kind: str, *, does: str, waits: float, target: str = "") -> Tell:
    """Return the story of a takeover that a fault of 1 s disturbs."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.at += 5.0
        s.dispatch("j1")
        s.start("j1")
        s.crash()
        s.at += 1.5
        s.fault(does, target, kind=kind, lasts=1.0)
        s.at += waits
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


# Beyond what the bound speaks of any job may be a suspect.
good("I18")(taken_over_after("lossy-requests", does="cut", waits=8.6))
bad("I18")(taken_over_after("lossy-requests", does="cut", waits=9.0))
good("I18")(taken_over_after("lossy-requests", does="cut", target="b", waits=8.6))
bad("I18")(taken_over_after("lossy-requests", does="cut", target="c", waits=4.0))
bad("I18")(taken_over_after("stall", does="store", waits=4.0))


@good("I18")
def an_outage_delays_a_takeover(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    s.at += 1.0
    s.fault("store", lasts=3.0)
    s.at += 2.5
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


def begun_again(*, dies: bool) -> Callable[[Story], None]:
    """The process that died is there again; it may be given what it had, and die once more."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        s.start("j1")
        s.crash()
        s.at += 0.5
        s.say("join", p="a/2", nonce="Wa.2", extra={"worker": True})
        s.at += 1.0
        if dies:
            s.fault("crash", "a")
            s.say("exit", p="a/2", result=-9)
        s.at += 2.5
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


good("I18")(begun_again(dies=True))
bad("I18")(begun_again(dies=False))


@good("I18")
def nobody_was_left_for_a_while(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1", extra={"worker": True})
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    s.at += 8.0
    s.say("join", p="b/1", nonce="Wb.1", extra={"worker": True})
    s.at += 2.5
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


@good("I18")
def nobody_was_left_once_more(s: Story) -> None:
    for node in "ab":
        s.say("join", p=f"{node}/1", nonce=f"W{node}.1", extra={"worker": True})
    s.dispatch("j1")
    s.start("j1")
    s.crash("a")
    s.at += 2.0
    s.crash("b")
    s.at += 9.0
    s.say("join", p="e/1", nonce="We.1", extra={"worker": True})
    s.at += 2.5
    s.start("j1", by="e", epoch=11)
    s.end("j1", by="e", epoch=11)


def step(s: Story, **more: Any) -> None:
    extra = {"id": 99, "does": "clock", "kind": "clock", "target": "", "step_s": 3600.0, **more}
    s.say("fault", "invoke", extra=extra)
    s.say("fault", "ok", extra=extra)


def nobody_was_there_to_see_a_step(
    tells: Callable[[Story, float], None],
    took_s: float,
    *,
    heard: str = "",
    answers: int = 4,
    first_s: float = 0.2,
    step_s: float = 3600.0,
) -> Tell:
    """Return a story of three seconds after a step, in which a node was answered, or none was."""

    def tell(s: Story) -> None:
        s.say("join", p="a/1", nonce="Wa.1@0", extra={"worker": True})
        s.say("own", key="k", epoch=9, nonce="Wx.1@0")
        step(s, step_s=step_s)
        until_s = s.at + 3.0
        s.at += first_s
        for _ in range(answers if heard else 0):
            s.say("renew", p="c/1", nonce=f"Wc.1@{heard}", extra={"asked": s.at})
            s.at += 0.4
        s.at = until_s
        tells(s, took_s)

    return tell


def it_is_taken_over(s: Story, took_s: float) -> None:
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wa.1")
    s.start("j1")
    s.crash()
    s.at += 1.0
    s.say("join", p="b/1", nonce="Wb.1@0", extra={"worker": True})
    s.at += took_s
    s.say("own", key="k", epoch=11, nonce="Wb.1")
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


def it_is_dispatched(s: Story, took_s: float) -> None:
    s.say("join", p="b/1", nonce="Wb.1@0", extra={"worker": True})
    s.dispatch("j1")
    s.at += took_s
    s.say("own", key="k", epoch=11, nonce="Wb.1")
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


for name, tells in (("I18", it_is_taken_over), ("I34", it_is_dispatched)):
    good(name)(nobody_was_there_to_see_a_step(tells, 4.5))  # pool time stands for two periods more
    good(name)(nobody_was_there_to_see_a_step(tells, 4.5, heard="1"))  # another lane is no help
    bad(name)(nobody_was_there_to_see_a_step(tells, 4.5, heard="0"))
    # It takes three periods of answers to settle a step.
    good(name)(nobody_was_there_to_see_a_step(tells, 4.5, heard="0", answers=3))
    bad(name)(nobody_was_there_to_see_a_step(tells, 5.5, heard="0", answers=3))
    # ... counted from the first of them.
    good(name)(nobody_was_there_to_see_a_step(tells, 4.5, heard="0", answers=1, first_s=1.6))
    bad(name)(nobody_was_there_to_see_a_step(tells, 5.5, heard="0", answers=1, first_s=1.6))
    bad(name)(nobody_was_there_to_see_a_step(tells, 5.5))
    # What is no step counts as well, by no more than itself.
    good(name)(nobody_was_there_to_see_a_step(tells, 4.0, step_s=0.9))
    bad(name)(nobody_was_there_to_see_a_step(tells, 4.5, step_s=0.9))
    bad(name)(nobody_was_there_to_see_a_step(tells, 4.0, step_s=0.9, heard="0"))


def lost_before_it_began(*, as_of_s: float, again: bool = False) -> Tell:
    """Return the story of a start that was read before its job was lost, or its grant alone."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        accepted = s.at
        s.at += 0.2
        s.say("own", key="k", job="j1", epoch=10, nonce="Wa.1")
        s.at += 0.2
        extra = {"id": 9, "does": "loss", "kind": "loss", "target": "", "since": accepted + as_of_s}
        s.say("fault", "invoke", extra=extra)
        s.say("fault", "ok", extra=extra)
        s.at += 0.1
        if again:
            s.say("own", key="k", job="j1", epoch=10, nonce="Wa.1")
        s.at += 0.1
        s.start("j1")
        s.crash()
        s.at += 20.0
        s.final()

    return tell


good("I18")(lost_before_it_began(as_of_s=-1.0))
bad("I18")(lost_before_it_began(as_of_s=0.1))  # the job itself is still there
bad("I18")(lost_before_it_began(as_of_s=-1.0, again=True))


@good("I18")
def a_takeover_waits_for_a_processor(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    for _ in range(4):
        s.at += 0.75
        s.say("stall", "info", extra={"waited": {"server": 0.2, "b/1": 0.2}})
    s.at += 0.9
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


@bad("I18")
def a_takeover_waits_for_longer_than_the_machine_was_busy(s: Story) -> None:
    """Waits of one moment count once."""
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    for _ in range(4):
        s.at += 0.75
        s.say("stall", "info", extra={"waited": {"server": 0.1, "d/1": 0.1, "b/1": 0.1}})
    s.at += 0.9
    s.start("j1", by="b", epoch=11)


@bad("I20")
def another_was_starved_on_purpose(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.0)
    s.say("fault", "invoke", extra={"id": "x", "does": "pause", "kind": "starve", "target": "b"})
    for _ in range(4):
        s.at += 0.6
        s.say("stall", "info", extra={"waited": {"a/1": 0.1, "b/1": 0.6}})
    s.end("j1")


def suspected(*, waits: float, alone: bool = False, before: float = 0.5) -> Tell:
    """Return the story of a job whose process died so soon after its start, beside another one."""

    def tell(s: Story) -> None:
        if not alone:
            s.dispatch("j0", "other")
            s.start("j0", "other", epoch=9)
        s.dispatch("j1")
        s.start("j1")
        s.at += before
        s.crash()
        s.at += waits
        if not alone:
            s.start("j0", "other", by="b", epoch=11)
        s.start("j1", by="b", epoch=12)
        s.end("j1", by="b", epoch=12)

    return tell


good("I18")(suspected(waits=7.5))  # they are begun one by one
bad("I18")(suspected(waits=9.0))
bad("I18")(suspected(waits=7.5, alone=True))
bad("I18")(suspected(waits=7.5, before=3.0))


def suspected_in_a_frozen_process(node: str) -> Tell:
    """Return the story of a job that ran for 3 s, of which that node stood still for 2.6."""

    def tell(s: Story) -> None:
        for job, key, epoch in (("j0", "other", 9), ("j1", "k", 10)):
            s.dispatch(job, key)
            s.start(job, key, epoch=epoch)
        s.at += 0.4
        s.fault("pause", node, lasts=2.6)
        s.crash()
        s.at += 7.5
        s.start("j0", "other", by="b", epoch=11)
        s.start("j1", by="b", epoch=12)
        s.end("j1", by="b", epoch=12)

    return tell


good("I18")(suspected_in_a_frozen_process("a"))
bad("I18")(suspected_in_a_frozen_process("c"))


def suspected_as_told(
    *, alone: bool, acked: float, other: bool = False, waits: float = 3.2 + SPAN_S
) -> Tell:
    """Return the story of a job that was acknowledged so long before its process was renewed for
    the last time, and whether it is to begin alone in a young process.
    """

    def tell(s: Story) -> None:
        s.say("boot", p="b/1")
        joined(s, "a", "b")
        s.say("renew", p="a/1", nonce="Wa.1", extra={"asked": s.at})
        s.dispatch("j1")
        s.start("j1")
        s.at += 1.5
        s.say("renew", p="a/1", nonce="Wa.1", extra={"asked": s.at})
        s.say("ack", p="server", nonce="Wa.1", job="j1", key="k", epoch=10)
        s.at += acked
        s.say("renew", p="a/1", nonce="Wa.1", extra={"asked": s.at})
        s.crash()
        s.at += 2.0
        for job in ("j1", *(["j2"] if other else [])):
            told = {"dead": "Wa.1", "fence": 1, "alone": alone}
            s.say("requeue", p="server", key="k", job=job, epoch=10, extra=told)
        s.at += waits - 2.0
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


good("I18")(suspected_as_told(alone=True, acked=0.9))  # however long ago it was started
bad("I18")(suspected_as_told(alone=False, acked=0.9))
bad("I18")(suspected_as_told(alone=True, acked=3.5))  # it had lived, and is suspected
bad("I18")(suspected_as_told(alone=True, acked=0.9, waits=7.5))
good("I18")(suspected_as_told(alone=True, acked=0.9, waits=7.5, other=True))  # they take turns


def begun_beside(taken: int) -> Story:
    """Return how j1 began with one worker, while the other one's only slot was taken, or free."""
    s = Story()
    joined(s, "a", "b")
    if taken:
        s.dispatch("jx", "x")
        s.start("jx", "x", by="b", epoch=9)
    s.dispatch("j1")
    s.start("j1")
    return s


@pytest.mark.parametrize(
    ("taken", "moved", "waits", "is_late"),
    [(1, 2.5, 10.0, False), (0, 2.5, 10.0, True), (1, None, 10.0, True), (1, 2.5, 14.0, True)],
)
def test_a_takeover_waits_while_all_slots_are_taken(
    taken: int, moved: float | None, waits: float, *, is_late: bool
) -> None:
    """I18: from when a reaper has moved its key; another one's slots are taken for 10 s."""
    s = begun_beside(taken)
    s.crash()
    s.at += 2.5
    if moved:
        s.say("requeue", key="k", job="j1", epoch=10, extra={"dead": "Wa.1", "fence": 1})
    s.at += 7.5
    if taken:
        s.end("jx", "x", by="b", epoch=9)
    s.at += waits - 10.0
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)
    report = check(s.events, Bounds(ttl_s=2.0, queue_s=60.0, slots=1))
    assert ("I18" in report.broken) == is_late


@pytest.mark.parametrize(("taken", "err"), [(1, "retry"), (0, "retry"), (1, "")])
def test_a_retry_of_who_was_cut_off_waits_while_all_slots_are_taken(taken: int, err: str) -> None:
    """I18: who had it is back, and gives it back, where others have all slots."""
    s = begun_beside(taken)
    s.at += 2.0
    s.say("fault", "invoke", extra={"id": "x", "does": "cut", "kind": "partition", "target": "a"})
    s.at += 0.5
    if err:
        s.end("j1", err=err, after_s=0.1)
    s.at += 5.0
    s.say("fault", "ok", extra={"id": "x", "does": "cut", "kind": "partition", "target": "a"})
    if taken:
        s.dispatch("jy", "y")
        s.start("jy", "y", by="a", epoch=8)
    s.at += 4.5
    if taken:
        s.end("jx", "x", by="b", epoch=9)
    s.start("j1", by="b", epoch=11, attempt=2 if err else 1)
    s.end("j1", by="b", epoch=11)
    report = check(s.events, Bounds(ttl_s=2.0, queue_s=60.0, slots=1))
    assert ("I18" in report.broken) == (not taken or not err)


@bad("I18")
def the_first_one_back_is_late(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1", extra={"worker": True})
    s.dispatch("j1")
    s.start("j1")
    s.crash()
    s.at += 8.0
    s.say("join", p="b/1", nonce="Wb.1", extra={"worker": True})
    s.at += 4.0
    s.start("j1", by="b", epoch=11)


@good("I19", "I20")
def a_retry_waits(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", attempts_max=2, timeout_s=1.0)
    s.end("j1", err="retry", after_s=0.5)
    s.at += 0.5
    s.start("j1", epoch=11, attempt=2, attempts_max=2, timeout_s=1.0)
    s.at += 1.2
    s.end("j1", epoch=11, attempt=2, err="timeout")
    s.commit("j1", epoch=11, attempt=2, extra={"word": "parked"})


@bad("I19")
def a_retry_comes_too_soon(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="retry", after_s=0.5)
    s.at += 0.3
    s.start("j1", epoch=11, attempt=2)


def retried(*, after: float, limit: float = 1.0) -> Tell:
    """Return the story of a handler that asks for a retry after so long, and is not heard."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        s.start("j1", timeout_s=limit)
        s.fault("pause", "a", lasts=after)
        s.end("j1", err="retry", after_s=0.5)
        s.at += 0.1
        s.start("j1", epoch=11, attempt=2, timeout_s=limit)
        s.end("j1", epoch=11, attempt=2)

    return tell


good("I19")(retried(after=1.2))  # it had timed out: the retry is the library's
bad("I19")(retried(after=0.8))
bad("I19")(retried(after=1.2, limit=0.0))


@bad("I19")
def one_attempt_too_many(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", attempt=3, attempts_max=2)


def an_attempt_is_skipped(**asked: float) -> Tell:
    """Return the story of a call that was not answered, and whose job starts without its second."""

    def tell(s: Story) -> None:
        s.say("dispatch", "invoke", key="k", idem="c-j1", extra={"digest": "x", **asked})
        s.start("j1")
        s.end("j1", err="error")
        s.start("j1", epoch=11, attempt=3)
        s.end("j1", epoch=11, attempt=3)

    return tell


good("I19")(an_attempt_is_skipped(start_s=0.01))  # seed 770495: it was granted, and came too late
bad("I19")(an_attempt_is_skipped())


@bad("I19")
def a_delay_is_not_kept(s: Story) -> None:
    s.dispatch("j1", delay_s=1.0)
    s.at += 0.5
    s.start("j1")


def delayed(*, step_at: float) -> Tell:
    """Return the story of a delay that is over too soon, and of when the clock stepped."""

    def tell(s: Story) -> None:
        facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"delay_s": 1.0}}
        for at in sorted((0.0, 0.1, step_at)):
            s.at = 10.0 + at
            if at == step_at:
                s.fault("clock")
            elif at:
                s.say("dispatch", job="j1", **facts)
            else:
                s.say("dispatch", "invoke", **facts)
        s.at = 10.4
        s.start("j1")

    return tell


good("I19")(delayed(step_at=0.05))  # it was accepted before the step, and told behind it
good("I19")(delayed(step_at=0.2))
good("I19")(delayed(step_at=-0.1))  # it stands for two periods
bad("I19")(delayed(step_at=-9.0))


def delayed_behind_another(*, waits: float) -> Tell:
    """Return the story of a follower whose message was carried 2 s after what it follows."""

    def tell(s: Story) -> None:
        s.say("follow", idem="c-j2", extra={"of": "c-j1", "when": "then"})
        s.whole("j1")
        s.at += 2.0
        s.dispatch("j2", "k2", delay_s=3.0)
        s.at += waits
        s.start("j2", "k2", epoch=11)

    return tell


good("I19")(delayed_behind_another(waits=1.1))  # seed 770394: it counts from that end
bad("I19")(delayed_behind_another(waits=0.9))


def delayed_behind_data_of_before(*, since: float, lost_at: float = 9.5) -> Tell:
    """Return the story of a delay that is too short, behind a step 4 s ago and a loss after it."""

    def tell(s: Story) -> None:
        s.at = 6.0
        s.fault("clock")
        s.at = lost_at
        s.fault("loss", since=since)
        s.at = 10.0
        s.dispatch("j1", delay_s=1.0)
        s.at += 0.5
        s.start("j1")

    return tell


good("I19")(delayed_behind_data_of_before(since=7.0))  # the step is settled for the second time
bad("I19")(delayed_behind_data_of_before(since=9.4))
bad("I19")(delayed_behind_data_of_before(since=7.0, lost_at=7.5))


def delayed_behind_a_step(
    *, early_s: float, step_s: float = 5.0, heard: str = "", heard_at: float = 1.0, lane: str = "0"
) -> Tell:
    """Return the story of a delay of 9 s that is asked for 8 s after a step, and is over too soon.

    Lane 0 answers a moment after that again.
    """

    def tell(s: Story) -> None:
        s.say("own", key="k", epoch=9, nonce=f"Wx.1@{lane}")
        step(s, step_s=step_s)
        facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"delay_s": 9.0}}
        if heard:
            for at in range(round(10.0 * heard_at), 80, 4):  # so many tenths of a second
                s.at = 10.0 + at / 10
                s.say("renew", p="c/1", nonce=f"Wc.1@{heard}", extra={"asked": s.at})
        s.at = 18.0
        s.say("dispatch", "invoke", **facts)
        s.at = 18.1
        s.say("dispatch", job="j1", **facts)
        s.say("renew", p="a/1", nonce="Wa.1@0", extra={"asked": s.at})
        s.at = 27.0 - early_s
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.start("j1")

    return tell


good("I19")(delayed_behind_a_step(early_s=1.5))  # nobody could set the lane right
good("I19")(delayed_behind_a_step(early_s=1.5, heard="1"))  # another lane is no help
# It stands for two periods.
good("I19")(delayed_behind_a_step(early_s=1.5, heard="0", heard_at=7.0))
bad("I19")(delayed_behind_a_step(early_s=1.5, heard="0"))
bad("I19")(delayed_behind_a_step(early_s=1.5, lane="1"))  # its own lane was not heard
bad("I19")(delayed_behind_a_step(early_s=8.0))  # for no more than two periods and 1 s
good("I19")(delayed_behind_a_step(early_s=0.7, step_s=0.8))  # asked by what was told before it
bad("I19")(delayed_behind_a_step(early_s=0.9, step_s=0.8))
bad("I19")(delayed_behind_a_step(early_s=0.7, step_s=0.8, heard="0"))
bad("I19")(delayed_behind_a_step(early_s=0.7, step_s=0.8, heard="0", heard_at=7.0))


def misled_by_a_step(
    name: str,
    *,
    saw_at: float = 12.0,
    joined_at: float = 10.5,
    delay_s: float = 0.5,
    retries: bool = False,
    step_s: float = 3600.0,
    lost_since: float | None = None,
    p: str = "b/1",
    behind: float | None = None,
) -> Tell:
    """Return the story of a wait of 11.0 that does not end: of b, which comes behind a step of 10.0
    and names it, and of a, which has seen that and is heard again.

    `p`: who is said to have dispatched it; `behind`: when another job of its key is dispatched.
    """

    def tell(s: Story) -> None:
        facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"delay_s": delay_s}}
        told: list[tuple[float, Callable[[], object]]] = [
            (1.0, lambda: s.say("join", p="a/1", nonce="Wa.1@0", extra={"worker": True})),
            (2.0, lambda: s.say("own", key="k", epoch=9, nonce="Wa.1@0")),
            (10.0, lambda: step(s, step_s=step_s)),
            (joined_at, lambda: s.say("join", p="b/1", nonce="Wb.1@0", extra={"worker": True})),
            (10.9, lambda: s.say("dispatch", "invoke", p=p, **facts)),
            (11.0, lambda: s.say("dispatch", p=p, job="j1", **facts)),
            (saw_at, lambda: s.say("renew", p="a/1", nonce="Wa.1@0", extra={"asked": s.at})),
        ]
        if lost_since is not None:
            told.append((10.75, lambda: s.fault("loss", since=lost_since)))
            told.append((13.0, lambda: s.say("renew", p="a/1", nonce="Wa.1@0", extra={})))
        if behind is not None:
            told.append((behind, lambda: s.dispatch("j2", policy="queue")))
        if retries:
            told += [(11.05, lambda: s.say("own", key="k", epoch=11, nonce="Wb.1"))]
            told += [(11.1, lambda: s.start("j1", by="b", epoch=11))]
            told += [(11.2, lambda: s.end("j1", by="b", epoch=11, err="retry", after_s=0.5))]
        for at, say in sorted(told, key=lambda each: each[0]):
            s.at = at
            say()
        s.heal()
        s.at += 40.0
        if name == "I2":
            waits = {"k": ("j1", "waiting", "job")}
            if behind is not None:
                waits["j2 k"] = ("j2", "queued", "job")
            s.final(drained=False, jobs=waits)
        else:
            s.say("own", key="k", epoch=12, nonce="Wb.1")
            s.start("j1", by="b", epoch=12, attempt=2 if retries else 1)

    return tell


for name in ("I2", "I34"):
    good(name)(misled_by_a_step(name))
    good(name)(misled_by_a_step(name, delay_s=0.0, retries=True))
    bad(name)(misled_by_a_step(name, delay_s=0.0))  # it names no wait
    bad(name)(misled_by_a_step(name, saw_at=10.7))  # by then it was told
    # What it told was lost with data, or stood already as of when they are.
    good(name)(misled_by_a_step(name, saw_at=10.7, lost_since=10.6))
    bad(name)(misled_by_a_step(name, saw_at=10.7, lost_since=10.72))
    bad(name)(misled_by_a_step(name, saw_at=9.0))  # nobody disagrees
    bad(name)(misled_by_a_step(name, joined_at=9.5))  # it has seen the step
    bad(name)(misled_by_a_step(name, step_s=0.9))
    # Whoever came behind the step may have fired a schedule.
    good(name)(misled_by_a_step(name, p="server"))
    bad(name)(misled_by_a_step(name, p="server", joined_at=9.5))
    bad(name)(misled_by_a_step(name, p="server", saw_at=10.7))


def handed_back_behind_a_step(
    *, told_at: float | None = 12.0, readers: Sequence[str] = ("c",), joined_at: float = 10.5
) -> Tell:
    """Return the story of a job that b cannot read and gives back for a while, whose dispatch was
    never answered: the data of before the step were lost, and who saw that is not told.
    """

    def tell(s: Story) -> None:
        facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"readers": readers}}
        step_told = {"event": "clock.stepped", "lane": 0, "step_s": 3600.0}
        told: list[tuple[float, Callable[[], object]]] = [
            (1.0, lambda: s.say("join", p="b/1", nonce="Wb.1@0", extra={"worker": True})),
            (5.0, lambda: s.fault("loss", since=-math.inf)),
            (4.0, lambda: s.whole("j0", "other")),
            (10.0, lambda: step(s, step_s=3600.0)),
            (joined_at, lambda: s.say("join", p="b/1", nonce="Wb.2@0", extra={"worker": True})),
            (10.8, lambda: s.say("dispatch", "invoke", p="b/1", **facts)),
            (11.0, lambda: s.say("own", key="k", job="j1", epoch=9, nonce="Wb.2@0")),
            (11.1, lambda: s.say("dispatch", "info", err="POOLUNAVAILABLE", p="b/1", **facts)),
        ]
        if told_at is not None:
            told.append((told_at, lambda: s.say("event", p="c/1", extra=step_told)))
        for at, say in sorted(told, key=lambda each: each[0]):
            s.at = at
            say()
        s.heal()
        s.at += 40.0
        s.final(drained=False, jobs={"k": ("j1", "waiting", "job")})

    return tell


good("I2")(handed_back_behind_a_step())
bad("I2")(handed_back_behind_a_step(readers=()))  # by nobody, as all can read it
bad("I2")(handed_back_behind_a_step(readers=("b",)))
bad("I2")(handed_back_behind_a_step(told_at=None))  # nobody disagrees
bad("I2")(handed_back_behind_a_step(told_at=10.9))  # by then it was told
bad("I2")(handed_back_behind_a_step(joined_at=9.0))  # it has seen the step
good("I2")(misled_by_a_step("I2", behind=11.5))  # in the queue of a key
bad("I2")(misled_by_a_step("I2", behind=10.8))  # before it


@bad("I19")
def it_starts_a_whole_hour_early(s: Story) -> None:
    """A step excuses two renewal periods and 1 s, and not what it took."""
    facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"delay_s": 60.0}}
    s.say("dispatch", "invoke", **facts)
    s.say("dispatch", job="j1", **facts)
    extra = {"id": 9, "does": "clock", "kind": "clock", "target": "", "step_s": 3600.0}
    s.say("fault", "invoke", extra=extra)
    s.say("fault", "ok", extra=extra)
    s.at += 30.0
    s.start("j1")


@bad("I19")
def it_runs_after_it_was_parked(s: Story) -> None:
    s.dispatch("j1")
    s.at += 5.0
    s.start("j1")
    s.end("j1")
    s.final({"j1": ("parked", 9, None, 5.0)})


@good("I19")
def it_runs_again_when_its_end_was_lost(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", epoch=9)
    s.end("j1", epoch=9, err="park")
    s.commit("j1", epoch=9, extra={"word": "parked"})
    s.at += 5.0
    s.fault("loss")
    s.at += 5.0
    s.start("j1")
    s.end("j1", err="park")
    s.commit("j1", extra={"word": "parked"})
    s.final({"j1": ("parked", 10, None, 0.0)})


@bad("I19")
def it_runs_again_after_a_loss_before_its_end(s: Story) -> None:
    s.fault("loss")
    s.at += 5.0
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="park")
    s.commit("j1", extra={"word": "parked"})
    s.at += 5.0
    s.start("j1", epoch=11)
    s.end("j1", epoch=11, err="park")
    s.final({"j1": ("parked", 10, None, 5.0)})


@bad("I20")
def it_runs_past_its_limit(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.0)
    s.at += 2.0
    s.end("j1", err="timeout")


@bad("I20")
def what_timed_out_is_settled(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.0)
    s.at += 1.1
    s.end("j1", err="timeout")
    s.commit("j1")


@good("I21")
def a_stop_is_answered_when_it_has_ended(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.say("cancel", "invoke", job="j1")
    s.end("j1", err="cancelled")
    s.say("cancel", job="j1")


@bad("I21")
def it_goes_on_after_the_stop(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.say("cancel", job="j1")
    s.at += 1.0
    s.end("j1", err="cancelled")


@bad("I21")
def it_starts_after_the_stop(s: Story) -> None:
    s.dispatch("j1")
    s.say("cancel", job="j1")
    s.at += 0.1
    s.start("j1")
    s.end("j1")


@good("I22")
def the_counters_agree(s: Story) -> None:
    s.say("snapshot", extra={"dispatched": 9, "live": 3, "done": 4, "parked": 1, "cancelled": 1})


@bad("I22")
def a_job_vanished_from_the_counters(s: Story) -> None:
    s.say("snapshot", extra={"dispatched": 9, "live": 3, "done": 4, "parked": 1})


@good("I23", "I24", "I28")
def a_tidy_end(s: Story) -> None:
    s.say("members", p="a/1", extra={"workers": ["Wa"]})
    tidy: dict[str, Any] = {"problems": [], "unknown": [], "claims": [], "refused": []}
    s.final(leases=["Wa.1"], live=["Wa.1"], workers=["Wa"], **tidy)


@bad("I28")
def somebody_tried_more_than_the_pool_may(s: Story) -> None:
    s.final(refused=["key other:jobs"])


@bad("I23")
def the_auditor_complains(s: Story) -> None:
    s.final(problems=["lane 0: 'k' (running): no lease of Wa.1 will ever end"])


@bad("I23")
def a_lease_is_left(s: Story) -> None:
    s.final(leases=["Wa.1", "Wb.1"], live=["Wa.1"])


@bad("I23")
def a_key_is_left(s: Story) -> None:
    s.final(unknown=["pool:{p:0}:stream:Wa.1"])


@good("I23")
def a_claim_is_kept_after_all(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.fault("pause", "a")
    s.final(claims=["Wa.1"])
    s.at += 1.0
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I23")
def a_claim_is_kept_too_late(s: Story) -> None:
    s.final(claims=["Wa.1"])
    s.at += 1.0
    s.say("reap", p="b/1", nonce="Wa.1")


@bad("I23")
def a_claim_is_left(s: Story) -> None:
    s.final(claims=["Wa.1"])


@good("I24")
def somebody_is_reaped_after_a_copy_was_asked(s: Story) -> None:
    s.say("members", p="a/1", extra={"workers": ["Wa", "Wgone"]})
    s.at += 1.0
    s.say("reap", p="a/1", nonce="Wgone.1")
    s.final(workers=["Wa"])


@bad("I24")
def somebody_was_reaped_before_a_copy_was_asked(s: Story) -> None:
    s.say("reap", p="a/1", nonce="Wgone.1")
    s.at += 1.0
    s.say("members", p="a/1", extra={"workers": ["Wa", "Wgone"]})
    s.final(workers=["Wa"])


@bad("I24")
def a_copy_differs(s: Story) -> None:
    s.say("members", p="a/1", extra={"workers": ["Wa", "Wgone"]})
    s.final(workers=["Wa"])


def wrote(s: Story, key: str, value: str = "", type_: str = "ok", **extra: Any) -> None:
    about: dict[str, Any] = {"p": "a/1", "key": key}
    s.say("map", "invoke", extra={"value": value}, **about)
    s.say("map", type_, extra={"value": value, **extra}, **about)


def has(s: Story, by: str, **items: str) -> None:
    s.say("members", p=f"{by}/1", extra={"workers": [], "shared": items})


@good("I24b")
def copies_follow_a_map(s: Story) -> None:
    wrote(s, "a", "1", revision=7)
    wrote(s, "a", "2", type_="info")
    wrote(s, "total", revision=8)
    wrote(s, "total", type_="info")
    for by in "ab":
        s.say("seen", p=f"{by}/1", key="a", extra={"revision": 7, "value": "1"})
        s.say("seen", "info", p=f"{by}/1", extra={"revision": 9})
        has(s, by, a="2", total="2")
    s.final(workers=[], shared={"a": "2", "total": "2"})


@good("I24b")
def a_map_begins_anew_after_a_loss(s: Story) -> None:
    wrote(s, "a", "1", revision=7)
    s.say("seen", p="b/1", key="a", extra={"revision": 7, "value": "1"})
    s.fault("loss")
    s.say("seen", "info", p="b/1", extra={"revision": 0})
    has(s, "b")
    s.final(workers=[], shared={})


@bad("I24b")
def a_copy_of_a_map_differs(s: Story) -> None:
    has(s, "a", a="1")
    s.final(workers=[], shared={"a": "2"})


@bad("I24b")
def an_accepted_write_is_gone(s: Story) -> None:
    wrote(s, "a", "1", revision=7)
    wrote(s, "a", "2", revision=8)
    s.final(workers=[], shared={"a": "1"})


@bad("I24b")
def more_was_added_than_asked(s: Story) -> None:
    wrote(s, "total", revision=7)
    wrote(s, "total", type_="info")
    s.final(workers=[], shared={"total": "3"})


@bad("I24b")
def a_copy_goes_back(s: Story) -> None:
    for revision in (7, 6):
        s.say("seen", p="a/1", key="a", extra={"revision": revision, "value": "1"})


@bad("I24b")
def one_revision_is_two_changes(s: Story) -> None:
    for by in "ab":
        s.say("seen", p=f"{by}/1", key="a", extra={"revision": 7, "value": by})


@good("I25")
def who_was_killed_has_ended(s: Story) -> None:
    s.say("event", p="a/1", extra={"event": "lease.lost"})
    s.crash()


@bad("I25")
def an_actor_raised(s: Story) -> None:
    s.say("event", p="a/1", extra={"event": "actor.crashed", "error": "KeyError"})


@bad("I25")
def a_process_ended_by_itself(s: Story) -> None:
    s.say("exit", p="a/1", result=1)


@bad("I25")
def an_actor_raised_for_what_it_could_not_read(s: Story) -> None:
    """What cannot be read is an error of the call that asked."""
    s.fault("drop", "a", kind="garbage")
    s.say("event", p="a/1", extra={"event": "actor.crashed", "error": "KeyError"})


@bad("I25")
def it_ended_for_what_it_could_not_read(s: Story) -> None:
    s.fault("drop", "a", kind="garbage")
    s.say("exit", p="a/1", result=1)


@good("I25")
def it_ended_as_a_handler_blocked_its_loop(s: Story) -> None:
    s.fault("pause", "a", kind="block", lasts=3.0)
    s.say("exit", p="a/1", result=70)


@bad("I25")
def it_ended_as_it_stood_still(s: Story) -> None:
    """As `pool run` did after a SIGSTOP."""
    s.fault("pause", "a", lasts=3.0)
    s.say("exit", p="a/1", result=70)


@good("I25")
def it_ended_just_after_it_stood_still(s: Story) -> None:
    """Its lease ended then, and its handlers had been told no sooner."""
    s.fault("pause", "a", lasts=2.0)
    s.at += 0.05
    s.say("exit", p="a/1", result=70)


def interrupted(node: str = "a", kind: str = "interrupt", *, boots: bool = False) -> Tell:
    """Return the story of a process that is interrupted, stands still, and ends."""

    def tell(s: Story) -> None:
        s.say("boot", p="a/1")
        s.fault("leave", node, kind=kind)
        if boots:
            s.at += 0.1
            s.say("boot", p="a/1")
        s.fault("pause", "a", lasts=9.0)
        s.say("exit", p="a/1", result=1)

    return tell


good("I25")(interrupted())
bad("I25")(interrupted("b"))
bad("I25")(interrupted(kind="leave"))
bad("I25")(interrupted(boots=True))  # that was the process before


@bad("I26")
def it_starts_without_a_lease(s: Story) -> None:
    renewed(s, "a", 0.0, 1.9)
    s.dispatch("j1")
    s.at = 2.0
    s.start("j1")


@bad("I26")
def it_goes_on_while_cut_off(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.fault("cut", "a", kind="partition", lasts=4.0)
    s.end("j1")


@bad("I26")
def it_starts_while_cut_off(s: Story) -> None:
    s.dispatch("j1")
    s.fault("cut", "a", kind="replies-lost", lasts=4.0)
    s.at -= 1.0
    s.start("j1")
    s.at += 2.0
    s.end("j1")


@good("I27")
def it_leaves_in_time(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.fault("cut", "a")
    s.say("reap", p="b/1", nonce="Wa.1")  # long before, and it joined again
    s.at += 20.0
    s.say("leave", "invoke", p="a/1")
    s.at += 1.0
    s.say("leave", p="a/1")


@bad("I27")
def it_does_not_leave(s: Story) -> None:
    s.say("leave", "invoke", p="a/1")
    s.at += 30.0
    s.say("leave", p="a/1")


def leaving_within(after_s: float) -> Tell:
    """Return the story of who leaves so long after it was asked to, while lanes are away."""

    def tell(s: Story) -> None:
        s.say("leave", "invoke", p="a/1")
        for lane in "012":
            s.fault("store", lasts=after_s / 3, lane=lane)
        s.say("leave", p="a/1")
        s.at += 10.0
        s.whole("j1")

    return tell


good("I27")(leaving_within(BOUNDS.leaving_s - 1.0))  # each step waits for a lane that is away
bad("I27")(leaving_within(BOUNDS.leaving_s + 1.0))


@bad("I27")
def it_leaves_and_has_to_be_reaped(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.at += 30.0
    it_leaves_in_time(s)
    s.say("reap", p="b/1", nonce="Wa.1")


@good("I29")
def it_serves_again(s: Story) -> None:
    s.fault("loss")
    s.at += 1.0
    s.whole("j1")


@good("I29")
def it_serves_again_and_the_last_waits_for_a_slot(s: Story) -> None:
    s.fault("loss")
    s.at += 1.0
    s.whole("j1")
    s.at += BOUNDS.ttl_s
    s.dispatch("j2")
    s.at += 2.5
    s.start("j2", epoch=11)
    s.end("j2", epoch=11)


def asked_after_a_loss(err: str) -> Tell:
    """Return the story of a dispatch that is not accepted, after a loss of data."""

    def tell(s: Story) -> None:
        s.fault("loss")
        s.at += 1.5 * BOUNDS.ttl_s
        refused: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"digest": "x"}}
        s.say("dispatch", "invoke", **refused)
        s.say("dispatch", "fail", err=err, **refused)
        s.at += 10.0
        s.whole("j2")

    return tell


good("I29")(asked_after_a_loss("POOLEXISTS"))  # it was not lost, or is there anew
good("I29")(asked_after_a_loss("ATTACHED"))
good("I29")(asked_after_a_loss("POOLSTORAGE"))
bad("I29")(asked_after_a_loss("POOLUNAVAILABLE"))


def control_lost(told: str) -> Tell:
    """Return the story of a loss of the control keys alone, of which nodes tell so."""

    def tell(s: Story) -> None:
        lose_since(s, 0.0, "control")
        s.at += 1.0
        s.say("event", p="a/1", extra={"event": told})
        s.whole("j1")

    return tell


good("I29")(control_lost("control.lost"))
bad("I29")(control_lost("data.lost"))
bad("I29")(control_lost("worker.fenced"))


@good("I29")
def all_is_lost_with_the_control_keys(s: Story) -> None:
    lose_since(s, 0.0, "control")
    lose_since(s, 0.0, "0")
    s.at += 1.0
    s.say("event", p="a/1", extra={"event": "data.lost"})
    s.whole("j1")


@good("I29")
def it_is_served_by_one_that_had_been_hurt(s: Story) -> None:
    joined(s, "a", "b")
    lose_since(s, s.at, "1")
    s.at += 1.2 * BOUNDS.ttl_s
    s.dispatch("j1", "k1")
    s.dispatch("j2", "k2")
    s.fault("pause", "b")
    for nonce, key in (("Wa.1", "k1"), ("Wb.1", "k2")):
        s.say("own", nonce=nonce, key=key, epoch=10)
    s.start("j2", "k2", by="b")
    s.end("j2", "k2", by="b")
    s.at += 2.5
    s.start("j1", "k1", by="a")
    s.end("j1", "k1", by="a")


@bad("I29")
def it_serves_no_more(s: Story) -> None:
    s.fault("loss")
    s.at += 1.5 * BOUNDS.ttl_s
    s.dispatch("j0")
    s.at += 10.0
    s.whole("j1")


def behind_what_was_there(kind: str, *, late_s: float = 0.2) -> Tell:
    """Return the story of a job that waits for a slot behind one that was accepted before a loss,
    which begins so long after the first TTL.
    """

    def tell(s: Story) -> None:
        s.dispatch("j1")
        s.at = 1.0
        s.fault("loss", kind=kind)
        a_ttl_s = s.at + BOUNDS.ttl_s
        for at, act, job, key in sorted(
            [
                (a_ttl_s + 0.1, s.dispatch, "j2", "other"),
                (a_ttl_s + late_s, s.start, "j1", "k"),
                (a_ttl_s + 3.0, s.start, "j2", "other"),
            ],
            key=lambda each: each[0],
        ):
            s.at = at
            act(job, key)
        s.end("j1")
        s.end("j2", "other")

    return tell


good("I29")(behind_what_was_there("lost-suffix"))
good("I29")(behind_what_was_there("lost-since-grant"))
bad("I29")(behind_what_was_there("wipe"))  # then nothing of before is there
bad("I29")(behind_what_was_there("lost-suffix", late_s=-0.2))  # and nothing has begun since


# --- edges -----------------------------------------------------------------------------------


def refused(s: Story, job: str, err: str, key: str = "k") -> None:
    facts: dict[str, Any] = {"key": key, "idem": f"c-{job}", "extra": {"digest": "x"}}
    s.say("dispatch", "invoke", **facts)
    s.say("dispatch", "fail", err=err, **facts)


@good("I30")
def what_was_refused_never_runs(s: Story) -> None:
    s.whole("j1")
    refused(s, "j2", "POOLEXISTS")
    refused(s, "j3", "POOLUNAVAILABLE", "other")


@good("I30")
def whether_it_was_done_is_not_known(s: Story) -> None:
    facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"digest": "x"}}
    s.say("dispatch", "invoke", **facts)
    s.say("dispatch", "info", err="POOLUNAVAILABLE", **facts)
    s.start("j1")
    s.end("j1")
    refused(s, "j2", "POOLFULL", "other")


@bad("I30")
def what_surely_failed_ran(s: Story) -> None:
    refused(s, "j1", "POOLUNAVAILABLE")
    s.start("j1")
    s.end("j1")


@bad("I30")
def what_surely_failed_ran_beside_its_repeat(s: Story) -> None:
    refused(s, "j1", "POOLUNAVAILABLE")
    s.whole("j2", epoch=11)
    s.start("j1", epoch=12)
    s.end("j1", epoch=12)


@bad("I30")
def its_very_job_existed(s: Story) -> None:
    facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"digest": "x"}}
    s.say("dispatch", "invoke", **facts)
    s.start("j1")
    s.say("dispatch", "fail", err="POOLEXISTS", **facts)
    s.end("j1")


def refused_after_a_loss(err: str) -> Tell:
    """Return the story of a job that has begun before a loss, and is refused after it."""

    def tell(s: Story) -> None:
        facts: dict[str, Any] = {"key": "k", "idem": "c-j1", "extra": {"digest": "x"}}
        s.say("dispatch", "invoke", **facts)
        s.start("j1")
        s.fault("loss")
        s.say("dispatch", "fail", err=err, **facts)

    return tell


bad("I30")(refused_after_a_loss("POOLEXISTS"))
good("I30")(refused_after_a_loss("POOLNOBATCH"))  # the batch is gone


def member_added_twice(
    *, lane: str = "0", since: float = 0.0, is_lost: bool = True, asked: str = "before"
) -> Tell:
    """Return the story of a member that was refused, and ran when it was added once more."""

    def ask(s: Story) -> None:
        s.say("again", p="d/2", key="k", idem="c-j1", extra={"lane": "0"})

    def tell(s: Story) -> None:
        s.at = 5.0
        refused(s, "j1", "POOLEXISTS")
        s.at += 1.0
        if is_lost:
            s.fault("loss", lane=lane, since=since)
        s.at += 1.0
        if asked == "before":
            ask(s)
        s.at += 0.1
        s.start("j1")
        s.end("j1")
        s.at += 0.1
        if asked == "after":
            ask(s)

    return tell


good("I30")(member_added_twice())
good("I30")(member_added_twice(lane=""))
bad("I30")(member_added_twice(is_lost=False))
bad("I30")(member_added_twice(lane="1"))  # the batch still had who was refused
bad("I30")(member_added_twice(since=5.5))  # likewise
bad("I30")(member_added_twice(asked="after"))
bad("I30")(member_added_twice(asked=""))


@bad("I30")
def a_refused_message_was_handled(s: Story) -> None:
    s.whole("j1")
    s.say("notify", "fail", key="k", job="j1", err="POOLUNAVAILABLE", extra={"seq": 1})
    s.say("note", p="a/1", key="k", job="j1", extra={"seq": 1, "run": 1})


@bad("I1", "I2")
def a_lost_job_is_said_to_have_ended(s: Story) -> None:
    """`OutcomeExpired` for what nobody ever ran, and nothing was lost."""
    s.dispatch("j1")
    s.at += 1.0
    s.say("result", "info", job="j1", key="k", err="POOLEXPIRED")
    s.heal()
    s.final(drained=False)


@good("I1")
def what_was_lost_is_said_to_have_ended(s: Story) -> None:
    s.dispatch("j1")
    s.fault("loss")
    s.at += 1.0
    s.say("result", "info", job="j1", key="k", err="POOLEXPIRED")
    s.final()


@good("I1")
def what_was_lost_is_said_to_be_lost(s: Story) -> None:
    s.dispatch("j1")
    s.fault("loss")
    s.at += 1.0
    s.say("result", "info", job="j1", key="k", err="POOLJOBLOST")
    s.final()


@bad("I1")
def what_ended_is_said_to_be_lost(s: Story) -> None:
    s.whole("j1")
    s.say("result", "info", job="j1", key="k", err="POOLJOBLOST")
    s.final()


def lose_since(s: Story, since: float, lane: str = "") -> None:
    extra = {"id": "l", "does": "loss", "kind": "x", "target": "", "since": since, "lane": lane}
    s.say("fault", "invoke", extra=extra)
    s.say("fault", "ok", extra=extra)


@good("I1")
def only_the_last_writes_were_lost(s: Story) -> None:
    s.at = 5.0
    s.dispatch("j1")
    s.at = 6.0
    lose_since(s, 4.9)
    s.final()


@bad("I1")
def it_was_accepted_long_before_what_was_lost(s: Story) -> None:
    s.at = 1.0
    s.dispatch("j1")
    s.at = 6.0
    lose_since(s, 4.9)
    s.final()


@bad("I1")
def another_lane_was_lost(s: Story) -> None:
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wa.1@0")
    s.at = 6.0
    lose_since(s, -math.inf, "1")
    s.final()


def stop(s: Story, type_: str = "", **about: Any) -> None:
    s.say("cancel", "invoke", key="k", job="j1")
    if type_:
        s.say("cancel", type_, key="k", job="j1", **about)


def cancelled(s: Story) -> None:
    s.start("j1")
    s.end("j1", err="cancelled", effect=False)
    s.commit("j1", extra={"word": "cancelled"})


def second(s: Story, *, policy: str = "queue", first_s: float = 0.1) -> None:
    """One job runs, and another one that was dispatched meanwhile begins so long after that."""
    s.dispatch("j1")
    s.start("j1")
    s.at += 0.1
    s.dispatch("j2", policy=policy)
    s.at += first_s
    word = {"word": "cancelled", "cause": "replaced by j2"} if policy == "replace" else {}
    s.end("j1", err="cancelled" if word else "", effect=not word)
    s.commit("j1", extra=word or {"word": "done"})


@good("I13b")
def each_has_its_turn(s: Story) -> None:
    second(s)
    s.dispatch("j3", policy="queue")
    s.at += 0.1
    s.start("j2", epoch=11)
    s.end("j2", epoch=11)
    s.commit("j2", epoch=11)
    s.start("j3", epoch=12)


@good("I13b")
def the_newest_takes_the_others_place(s: Story) -> None:
    second(s)
    s.dispatch("j3", policy="coalesce")
    superseded = {"word": "cancelled", "cause": "superseded by j3"}
    s.say("commit", job="j2", key="k", epoch=5, result="first", extra=superseded)
    s.at += 0.1
    s.start("j3", epoch=12)


@bad("I13b")
def it_begins_before_the_one_before_it_has_ended(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.at += 0.1
    s.dispatch("j2", policy="queue")
    s.at += 0.1
    s.start("j2", epoch=11)
    s.at += 0.1
    s.end("j1")
    s.commit("j1")


@bad("I13b")
def the_last_has_the_first_turn(s: Story) -> None:
    second(s)
    s.dispatch("j3", policy="queue")
    s.at += 0.1
    s.start("j3", epoch=11)
    s.end("j3", epoch=11)
    s.commit("j3", epoch=11)
    s.at += 0.1
    s.start("j2", epoch=12)


@bad("I13b")
def the_newest_waits_with_others(s: Story) -> None:
    s.dispatch("j1")
    s.at += 0.1
    s.dispatch("j2", policy="queue")
    s.dispatch("j3", policy="queue")
    s.at += 0.1
    s.dispatch("j4", policy="coalesce")
    for number, job in enumerate(("j1", "j2", "j4")):
        s.at += 0.1
        s.start(job, epoch=11 + number)
        s.end(job, epoch=11 + number)
        s.commit(job, epoch=11 + number)


@bad("I13b")
def what_was_replaced_begins_again(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.at += 0.1
    s.dispatch("j2", policy="replace")
    s.at += 0.1
    s.say("own", job="j1", key="k", epoch=11, nonce="Wb.1")
    s.at += 0.1
    s.start("j1", epoch=11)


@bad("I13b")
def what_was_superseded_has_run(s: Story) -> None:
    second(s, policy="queue")
    s.dispatch("j3", policy="coalesce")
    s.start("j2", epoch=11)
    superseded = {"word": "cancelled", "cause": "superseded by j3"}
    s.say("commit", job="j2", key="k", epoch=5, result="first", extra=superseded)


@bad("I13b")
def one_that_only_waits_takes_anothers_place(s: Story) -> None:
    second(s)
    s.dispatch("j3", policy="queue")
    superseded = {"word": "cancelled", "cause": "superseded by j3"}
    s.say("commit", job="j2", key="k", epoch=5, result="first", extra=superseded)


@good("I31")
def a_dispatch_took_its_place(s: Story) -> None:
    second(s, policy="replace")


@bad("I31")
def a_dispatch_that_only_waits_takes_its_place(s: Story) -> None:
    second(s, policy="replace")
    s.events[:] = [
        attrs.evolve(e, extra={**e.extra, "policy": "queue"}) if e.f == "dispatch" else e
        for e in s.events
    ]


@good("I31")
def who_was_stopped_had_been_asked_to(s: Story) -> None:
    s.dispatch("j1")
    stop(s)
    cancelled(s)
    s.say("cancel", key="k", job="j1")


@good("I31")
def a_stop_whose_outcome_is_unknown_is_carried_out(s: Story) -> None:
    s.dispatch("j1")
    stop(s, "info", err="POOLUNAVAILABLE")
    cancelled(s)


@good("I31")
def a_handler_cancels_its_own_job(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="cancel", effect=False)
    s.commit("j1", extra={"word": "cancelled"})


@bad("I31")
def nobody_had_asked_for_it(s: Story) -> None:
    s.dispatch("j1")
    cancelled(s)


@bad("I31")
def a_stop_that_was_denied_is_carried_out(s: Story) -> None:
    s.dispatch("j1")
    stop(s, "fail", err="POOLNOJOB")
    cancelled(s)


@bad("I31")
def the_stop_came_later(s: Story) -> None:
    s.dispatch("j1")
    cancelled(s)
    s.at += 1.0
    stop(s)


@good("I31")
def a_limit_was_reached(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.5)
    s.at += 1.5
    s.end("j1", err="timeout", effect=False)
    s.commit("j1", extra={"word": "parked", "cause": "timed out"})


def waited_for_a_processor(s: Story, p: str) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.5)
    s.at += 1.4
    s.say("stall", "info", extra={"waited": {p: 0.2}})
    s.end("j1", err="cancelled", effect=False)
    s.commit("j1", extra={"word": "parked", "cause": "timed out"})


@good("I31")
def its_first_line_had_waited_for_a_processor(s: Story) -> None:
    waited_for_a_processor(s, "a/1")


@bad("I31")
def another_one_had_waited_for_a_processor(s: Story) -> None:
    waited_for_a_processor(s, "b/1")


@bad("I31")
def a_limit_strikes_too_early(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.5)
    s.at += 0.1
    s.end("j1", err="timeout", effect=False)


@bad("I31")
def it_is_parked_for_a_limit_that_was_not_reached(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1", timeout_s=1.5)
    s.at += 0.1
    s.end("j1", err="cancelled", effect=False)
    s.commit("j1", extra={"word": "parked", "cause": "timed out"})


def called(s: Story, f: str = "result", within_s: float = 2.0, p: str = "d/1") -> None:
    s.say(f, "invoke", p=p, key="k", job="j1", extra={"within_s": within_s})


def answered(s: Story, f: str = "result", p: str = "d/1") -> None:
    s.say(f, "info", p=p, key="k", job="j1", err="TIMEOUT")


@good("I32")
def calls_are_answered(s: Story) -> None:
    called(s)
    called(s, p="e/1")
    s.at += 2.0
    answered(s)
    s.crash("e")
    s.at += 9.0
    s.heal()


@good("I32")
def its_asker_stood_still(s: Story) -> None:
    called(s)
    s.fault("pause", "d", lasts=5.0)
    s.at += 1.0
    answered(s)


def moves(s: Story, times: int, p: str = "d/1", lane: str = "") -> None:
    for _ in range(times):
        s.at += 1.0
        s.say("moved", p=p, extra={"lane": lane})


@good("I32")
def its_line_was_slow(s: Story) -> None:
    called(s)
    moves(s, 5)
    s.at += 1.5
    answered(s)


@good("I32")
def its_asker_stood_still_after_its_line_had_moved(s: Story) -> None:
    called(s)
    moves(s, 3)
    s.fault("pause", "d", lasts=5.0)
    s.at += 1.5
    answered(s)


@bad("I32")
def its_asker_stood_still_for_less_than_it_took(s: Story) -> None:
    called(s)
    moves(s, 3)
    s.fault("pause", "d", lasts=5.0)
    s.at += 3.0
    answered(s)


@bad("I32")
def its_line_stood_still_in_the_end(s: Story) -> None:
    called(s)
    moves(s, 5)
    s.at += 3.0
    answered(s)


@bad("I32")
def anothers_line_moved(s: Story) -> None:
    called(s)
    moves(s, 5, p="e/1")
    answered(s)


@bad("I32")
def its_line_moved_too_late(s: Story) -> None:
    called(s)
    s.at += 3.0
    moves(s, 1)
    answered(s)


@bad("I32")
def the_line_of_another_lane_moved(s: Story) -> None:
    s.say("own", key="k", job="j1", epoch=9, nonce="Wx.1@1", p="server")
    called(s)
    moves(s, 5, lane="other")
    answered(s)


@good("I32")
def of_what_was_dispatched_together_another_lane_moved(s: Story) -> None:
    s.say("own", key="k", job="j1", epoch=9, nonce="Wx.1@1", p="server")
    for idem in ("t1.0", "t1.1"):
        s.say("dispatch", "invoke", p="d/1", key="k", idem=idem, extra={"within_s": 2.0}, t=s.at)
    moves(s, 5, lane="2")
    for idem in ("t1.0", "t1.1"):
        s.say("dispatch", "info", p="d/1", key="k", idem=idem, err="TIMEOUT")


@bad("I32")
def its_line_moved_for_longer_than_anybody_waits(s: Story) -> None:
    called(s)
    moves(s, 20)
    answered(s)


@bad("I32")
def another_stood_still(s: Story) -> None:
    called(s)
    s.fault("pause", "e", lasts=5.0)
    s.at += 1.0
    answered(s)


@bad("I32")
def a_result_never_comes(s: Story) -> None:
    called(s)
    s.at += 9.0
    s.heal()


@bad("I32")
def a_call_is_left_when_its_node_leaves(s: Story) -> None:
    called(s, "dispatch", within_s=60.0)
    s.say("leave", "invoke")
    s.at += 1.0
    s.say("leave")
    s.heal()


@bad("I32")
def a_stop_is_answered_too_late(s: Story) -> None:
    called(s, "cancel")
    s.at += 5.0
    answered(s, "cancel")


def health(s: Story, *dead: str, state: str = "open") -> None:
    s.say("health", "info", p="a/1", extra={"state": state, "dead": list(dead)})


@good("I33")
def a_part_is_started_again(s: Story) -> None:
    health(s, "link")
    s.at += 2.0
    health(s)
    s.at += 2.0
    health(s, "link")
    health(s, "link", state="closed")
    s.at += 9.0
    health(s, "link", state="closed")


@bad("I33")
def a_part_stays_dead_and_the_node_says_open(s: Story) -> None:
    for _ in range(4):
        health(s, "link")
        s.at += 2.0


@bad("I33")
def a_part_stays_dead_while_another_stands_still(s: Story) -> None:
    health(s, "link")
    s.fault("pause", "b", lasts=6.0)
    health(s, "link")


def joined(s: Story, *nodes: str) -> None:
    for node in nodes:
        s.say("join", p=f"{node}/1", nonce=f"W{node}.1", extra={"worker": True})
    s.at += 10.0


@good("I34")
def it_waits_for_a_killed_worker(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wa.1")
    s.at += 0.1
    s.crash()
    s.at += 2.9
    s.say("own", key="k", epoch=11, nonce="Wb.1")
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


def held_by_the_dead(
    *,
    waits: float,
    died: str = "a",
    told: bool = True,
    before: float | None = None,
    coin_s: float = 0.0,
) -> Callable[[Story], None]:
    """It was granted to `a`; then a process dies, or had died, and it begins after so long."""

    def tell(s: Story) -> None:
        joined(s, "a", "b", "c")
        if before is not None:
            s.crash(died)
            s.at += before
        s.dispatch("j1")
        if told:
            s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.at += 0.1
        if before is None:
            s.crash(died)
        if coin_s:
            s.at += 3.0
            dead = {"dead": f"W{died}.1", "coin_s": coin_s}
            s.say("requeue", job="j1", key="k", epoch=10, extra=dead)
            s.at -= 3.0
        s.at += waits
        if told:
            s.say("own", key="k", epoch=11, nonce="Wb.1")
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


good("I34")(held_by_the_dead(waits=7.5))  # suspects are begun one by one
good("I34")(held_by_the_dead(waits=7.5, told=False))
bad("I34")(held_by_the_dead(waits=9.5))
bad("I34")(held_by_the_dead(waits=9.5, told=False))
good("I34")(held_by_the_dead(waits=27.5, coin_s=20.0))  # a coin held it, which is told
bad("I34")(held_by_the_dead(waits=29.5, coin_s=20.0))
bad("I34")(held_by_the_dead(waits=4.0, died="c"))  # nobody who had it died
good("I34")(held_by_the_dead(waits=7.5, before=0.7))  # it had renewed within two periods, or might
bad("I34")(held_by_the_dead(waits=7.5, before=0.9))
bad("I34")(held_by_the_dead(waits=7.5, before=0.7, died="c"))


def two_join(s: Story) -> None:
    for node in "ab":
        s.say("join", p=f"{node}/1", nonce=f"W{node}.1@0", extra={"worker": True})


def renews(s: Story, by: str, for_s: float, *, vain_s: float = 0.0) -> None:
    """Tell of the renewals of a node during so long; before each it had asked in vain."""
    until_s = s.at + for_s
    while s.at < until_s - 0.01:
        if vain_s:
            s.say("vain", p="server", extra={"lane": "0", "first_s": vain_s, "last_s": 0.0})
        s.say("renew", p=f"{by}/1", nonce=f"W{by}.1@0", extra={"asked": s.at})
        s.at += 0.4
    s.at = until_s


def begun_elsewhere(s: Story, *, waits: float, by: str) -> None:
    """Tell of a job that `a` is granted and never begins, and of when another one does."""
    s.dispatch("j1")
    s.say("own", key="k", job="j1", epoch=10, nonce="Wa.1@0")
    renews(s, by, waits)
    s.say("own", key="k", job="j1", epoch=11, nonce=f"W{by}.1")
    s.start("j1", by=by, epoch=11)
    s.end("j1", by=by, epoch=11)
    s.at += 60.0
    s.say("heal")


def nobody_was_left(
    *, waits: float, comes: float = 20.0, dies: str = "ab"
) -> Callable[[Story], None]:
    """They die while the server is away, which grants a job to `a` of them when `c` has come."""

    def tell(s: Story) -> None:
        two_join(s)
        renews(s, "a", 4.0)
        for node in dies:
            s.crash(node)
        s.fault("store", kind="restart", lasts=comes)
        s.say("join", p="c/1", nonce="Wc.1@0", extra={"worker": True})
        s.at += 0.1
        begun_elsewhere(s, waits=waits, by="c")

    return tell


# A TTL of 2 s: B is 3 s, a reaper 0.5 s, suspects 5 s, and two renewal periods are 0.8 s.
good("I34")(nobody_was_left(waits=9.0))
good("I34")(nobody_was_left(waits=9.0, dies="a"))  # who lives may not vouch at once, either
bad("I34")(nobody_was_left(waits=9.2))
bad("I34")(nobody_was_left(waits=9.0, dies="b"))  # a lease of the living holds nothing up
bad("I34")(nobody_was_left(waits=9.0, comes=0.2))  # the renewals never broke off


def brought_back(*, waits: float, step: str = "clock", died: str = "a") -> Tell:
    """Return the story of older data that have a dead owner again, who is granted a job."""

    def tell(s: Story) -> None:
        two_join(s)
        s.crash(died)
        renews(s, "b", 20.0)
        if step:
            s.fault(step, step_s=-3600.0)
        s.fault("loss", kind="fork-behind", since=s.at - 0.5)
        s.at += 0.1
        begun_elsewhere(s, waits=waits, by="b")

    return tell


good("I34")(brought_back(waits=10.6))  # seed 771590: kept for a TTL from two periods ahead
bad("I34")(brought_back(waits=11.2))
bad("I34")(brought_back(waits=10.6, step=""))
bad("I34")(brought_back(waits=10.6, died="c"))


def renewed_in_vain(*, waits: float, vain_s: float) -> Tell:
    """Return the story of a job of a process that dies, while another one is hardly answered."""

    def tell(s: Story) -> None:
        two_join(s)
        renews(s, "a", 4.0)
        s.dispatch("j1")
        s.say("own", key="k", job="j1", epoch=9, nonce="Wb.1@0")  # it was b's for a moment
        s.say("own", key="k", job="j1", epoch=10, nonce="Wa.1")
        s.start("j1", epoch=10)
        s.at += 1.5
        s.crash("a")
        slow = {"id": 9, "does": "cut", "kind": "slow", "target": "c", "weight": 1, "s": 99.0}
        s.say("fault", "invoke", extra=slow)
        renews(s, "b", waits, vain_s=vain_s)
        s.say("own", key="k", job="j1", epoch=11, nonce="Wb.1")
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


good("I18")(renewed_in_vain(waits=5.6, vain_s=0.2))  # the lease clock runs half the time
bad("I18")(renewed_in_vain(waits=9.0, vain_s=0.2))
bad("I18")(renewed_in_vain(waits=5.6, vain_s=0.1))
bad("I18")(renewed_in_vain(waits=4.4, vain_s=0.0))


def granted_to_the_dead(*, silent_s: float) -> Tell:
    """Return the story of a job granted to one that had died 5 s ago, and what was heard since."""

    def tell(s: Story) -> None:
        two_join(s)
        s.crash("a")
        died = s.at
        s.fault("store", kind="stop", lasts=silent_s)
        while s.at < died + 5.0:
            s.say("renew", p="b/1", nonce="Wb.1@0", extra={"asked": s.at})
            s.at += 0.4
        begun_elsewhere(s, waits=7.5, by="b")

    return tell


good("I34")(granted_to_the_dead(silent_s=4.7))  # pool time stood: its lease looks new
bad("I34")(granted_to_the_dead(silent_s=3.5))


def granted_to_the_dead_behind_a_step(*, step_s: float = -3600.0, before_s: float = 0.0) -> Tell:
    """Return the story of a step of the clock behind a death, and of a job that the dead one got.

    A living node renews all the while: for so long before the step, and for 1.6 s behind it.
    """

    def tell(s: Story) -> None:
        two_join(s)
        s.crash("a")
        renews(s, "b", before_s)
        step(s, step_s=step_s)
        renews(s, "b", 1.6)
        begun_elsewhere(s, waits=8.0, by="b")

    return tell


good("I34")(granted_to_the_dead_behind_a_step())  # pool time stood: its lease looks new
bad("I34")(granted_to_the_dead_behind_a_step(step_s=-0.9))  # no step for pool time
bad("I34")(granted_to_the_dead_behind_a_step(before_s=1.6))  # it ran before


def begun_before_the_last_renewal(*, by_s: float, waits: float = 7.5) -> Tell:
    """Return the story of a job of a worker whose renewals fail, until it dies beside another."""

    def tell(s: Story) -> None:
        for node in "ab":
            s.say("join", p=f"{node}/1", nonce=f"W{node}.1", extra={"worker": True})
        s.say("renew", p="a/1", nonce="Wa.1", extra={"asked": s.at})
        for job, key in (("j1", "k"), ("j2", "l")):
            s.dispatch(job, key)
            s.start(job, key)
        s.at += by_s
        s.say("renew", p="a/1", nonce="Wa.1", extra={"asked": s.at})
        s.at += 3.0
        s.crash("a")
        s.at += waits
        for job, key in (("j1", "k"), ("j2", "l")):
            s.start(job, key, by="b", epoch=11)
            s.end(job, key, by="b", epoch=11)
        s.at += 60.0
        s.say("heal")

    return tell


good("I18")(begun_before_the_last_renewal(by_s=1.0))  # as far as is known it had just begun
bad("I18")(begun_before_the_last_renewal(by_s=1.5))
bad("I18")(begun_before_the_last_renewal(by_s=1.0, waits=9.0))


def reader_is_away(
    *, waits: float, readers: str = "bc", runs: bool = False, dies: bool = True
) -> Callable[[Story], None]:
    """Only `b`, which dies, and `c`, which comes after 20 s, can read a job; `a` is there."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.heal()
        if runs:
            s.dispatch("j1", readers=[*readers])
            s.start("j1", by="b")
            s.at += 5.0
        if dies:
            s.crash("b")
        s.at += 0.5
        if not runs:
            s.dispatch("j1", readers=[*readers])
        s.at += 20.0
        s.say("join", p="c/1", nonce="Wc.1", extra={"worker": True})
        s.at += waits
        s.start("j1", by="c", epoch=11)
        s.end("j1", by="c", epoch=11)
        s.commit("j1", by="c", epoch=11)
        s.at += 60.0
        s.heal() if runs else s.dispatch("j2", "other")

    return tell


for name, runs in (("I34", False), ("I18", True)):
    good(name)(reader_is_away(waits=3.1, runs=runs))
    bad(name)(reader_is_away(waits=4.0, runs=runs))
    bad(name)(reader_is_away(waits=0.1, runs=runs, readers="abc"))  # who is there can read it
    bad(name)(reader_is_away(waits=0.1, runs=runs, readers=""))
bad("I34")(reader_is_away(waits=0.1, dies=False))
good("I2")(reader_is_away(waits=3.1))
bad("I2")(reader_is_away(waits=18.0))
bad("I2")(reader_is_away(waits=0.1, readers="abc"))
bad("I2")(reader_is_away(waits=0.1, dies=False))


def nobody_is_there(*, waits: float, others: str = "") -> Tell:
    """Return the story of a fleet of one process, which is killed and comes back after 20 s."""

    def tell(s: Story) -> None:
        joined(s, "a", *others)
        s.dispatch("j1")
        s.crash("a")
        s.heal()
        s.at += 20.0
        s.say("join", p="c/1", nonce="Wc.1", extra={"worker": True})
        s.at += waits
        s.start("j1", by="c", epoch=11)
        s.end("j1", by="c", epoch=11)
        s.commit("j1", by="c", epoch=11)

    return tell


good("I2")(nobody_is_there(waits=3.0))
bad("I2")(nobody_is_there(waits=18.0))
bad("I2")(nobody_is_there(waits=3.0, others="b"))  # one that could have done it was there


def behind_a_hang(*, acks: float | None = None, by: str = "a") -> Callable[[Story], None]:
    """It begins when the loop turns again of whoever it was granted to."""

    def tell(s: Story) -> None:
        joined(s, "a", "b", "c")
        s.dispatch("j1")
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.fault("pause", "a", kind="block", lasts=8.0)
        if acks is not None:
            s.at += acks - 8.0
            s.say("ack", p="server", key="k", epoch=10, nonce=f"W{by}.1")
            s.at += 8.0 - acks
        s.at += 0.1
        s.start("j1")
        s.end("j1")

    return tell


bad("I34")(behind_a_hang())
good("I34")(behind_a_hang(acks=0.01))  # it was on its way: then it is kept
bad("I34")(behind_a_hang(acks=0.01, by="c"))
bad("I34")(behind_a_hang(acks=1.0))  # by its thread, and it has not begun


def beside_a_slot(*, takes: int, waits: float = 20.0, stands: bool = False) -> Story:
    """So many slots of two, in two processes, are taken for as long as a job waits."""
    s = Story()
    joined(s, "a", "b")
    for key, by in (("x", "a"), ("y", "b"))[:takes]:
        s.dispatch(f"j{key}", key)
        s.start(f"j{key}", key, by=by)
    if stands:
        s.fault("pause", "b", lasts=waits)
        s.at -= waits
    s.dispatch("j1")
    s.at += waits
    for key, by in (("x", "a"), ("y", "b"))[:takes]:
        s.end(f"j{key}", key, by=by)
        s.commit(f"j{key}", key, by=by)
    s.at += 1.0
    s.start("j1", epoch=20)
    s.end("j1", epoch=20)
    return s


@pytest.mark.parametrize(
    ("slots", "takes", "stands", "is_late"),
    [
        (1, 2, False, False),
        (1, 1, True, False),  # who stands still has no slot to give
        (1, 1, False, True),
        (2, 2, False, True),
        (0, 2, False, True),  # how many there are is not told
    ],
)
def test_a_start_waits_while_all_slots_are_taken(
    slots: int, takes: int, *, stands: bool, is_late: bool
) -> None:
    """I34: for as long as none is free of any process that is well, and no longer."""
    s = beside_a_slot(takes=takes, stands=stands)
    report = check(s.events, Bounds(ttl_s=2.0, queue_s=60.0, slots=slots))
    assert ("I34" in report.broken) == is_late


@pytest.mark.parametrize("takes", [1, 2])
def test_a_fault_that_comes_while_it_waits_for_a_slot_holds_it_up(takes: int) -> None:
    """I34: the time behind full slots moves the end of its own, and what falls into that counts."""
    s = Story()
    joined(s, "a", "b")
    for key, by in (("x", "a"), ("y", "b"))[:takes]:
        s.dispatch(f"j{key}", key)
        s.start(f"j{key}", key, by=by)
    s.dispatch("j1")
    s.at += 20.0
    for key, by in (("x", "a"), ("y", "b"))[:takes]:
        s.end(f"j{key}", key, by=by)
        s.commit(f"j{key}", key, by=by)
    s.fault("store", "", kind="stop", lasts=12.0)
    s.at += 1.0
    s.start("j1", epoch=20)
    s.end("j1", epoch=20)
    report = check(s.events, Bounds(ttl_s=2.0, queue_s=60.0, slots=1))
    assert ("I34" in report.broken) == (takes == 1)


def in_line(*, waits: float = 0.2, granted: int = 1, fault: str = "") -> Callable[[Story], None]:
    """Two jobs of one handler, of which the one that was asked for later begins first."""

    def tell(s: Story) -> None:
        s.at += 10.0
        s.dispatch("j1", "k1")
        s.at += 0.01
        s.dispatch("j2", "k2")
        own = partial(s.say, "own", p="server", key="k1", nonce="Wa.1")
        if granted > 1:
            own(job="j1", epoch=5)
        if fault:
            s.fault(fault, "b")
        s.at += 0.5
        if granted:
            s.say("own", p="server", job="j2", key="k2", epoch=10, nonce="Wb.1")
        s.start("j2", "k2", by="b")
        s.at += waits
        if granted:
            own(job="j1", epoch=10)
        s.start("j1", "k1")
        for job, key, by in (("j2", "k2", "b"), ("j1", "k1", "a")):
            s.end(job, key, by=by)
            s.commit(job, key, by=by)
        s.at += 10.0
        s.whole("j3", "k3", epoch=30)

    return tell


bad("I41")(in_line())
good("I41")(in_line(waits=0.09))
good("I41")(in_line(granted=2))  # it was held ahead, and is at the head again
good("I41")(in_line(granted=0))  # nobody says whether it was
good("I41")(in_line(fault="pause"))


@pytest.mark.parametrize(
    ("slots", "takes", "is_bad"), [(1, 2, True), (1, 1, True), (2, 2, True), (0, 0, False)]
)
def test_nobody_waits_beside_a_slot(slots: int, takes: int, *, is_bad: bool) -> None:
    """I41: for longer than 0.1 s, whoever has it; here one is free for the last second."""
    s = beside_a_slot(takes=takes)
    report = check(s.events, Bounds(ttl_s=0.2, queue_s=60.0, slots=slots))
    assert ("I41" in report.broken) == is_bad


def due_beside_a_slot(*, retry: bool, waits: float, slots: int = 1, fault: str = "") -> Story:
    """A delay of 1 s, or a retry after 1 s, whose start comes so long after it."""
    s = Story()
    joined(s, "a", "b")
    if retry:
        s.dispatch("j1", attempts_max=3)
        s.start("j1")
        s.end("j1", err="retry", effect=False, after_s=1.0)
    else:
        s.dispatch("j1", delay_s=1.0)
    if fault:
        s.fault(fault, "b")
    if not slots:  # all are taken
        for key, by in (("x", "a"), ("y", "b")):
            s.dispatch(f"j{key}", key)
            s.start(f"j{key}", key, by=by)
    s.at += 1.0 + waits
    if not slots:
        for key, by in (("x", "a"), ("y", "b")):
            s.end(f"j{key}", key, by=by)
            s.commit(f"j{key}", key, by=by)
    s.start("j1", epoch=20, attempt=2 if retry else 1)
    s.end("j1", epoch=20, attempt=2 if retry else 1)
    return s


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize(
    ("waits", "slots", "fault", "is_bad"),
    [
        (0.2, 1, "", True),
        (0.05, 1, "", False),
        (0.2, 0, "", False),
        (0.2, 1, "pause", False),
    ],
)
def test_what_is_due_begins(
    waits: float, slots: int, fault: str, *, retry: bool, is_bad: bool
) -> None:
    """I41: a delay or a retry that is over waits no longer than what came just now."""
    s = due_beside_a_slot(retry=retry, waits=waits, slots=slots, fault=fault)
    report = check(s.events, Bounds(ttl_s=0.2, queue_s=60.0, slots=1))
    assert ("I41" in report.broken) == is_bad


@bad("I34")
def it_waits_in_an_idle_fleet(s: Story) -> None:
    s.dispatch("j1")
    s.at += 40.0
    s.start("j1")
    s.end("j1")


@bad("I34")
def it_never_begins(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.at += 40.0
    s.final(jobs={"k": ["j1", "pending", "service"]})


@bad("I34")
def it_waits_while_others_are_hurt(s: Story) -> None:
    """It was granted to one to whom nothing happened."""
    joined(s, "a", "b")
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wb.1")
    for _ in range(4):
        s.fault("cut", "c", lasts=2.0)
    s.start("j1", by="b")


def cut_off(*, is_lost: bool) -> Tell:
    """Return the story of a retry that is taken from a node that is cut off before it tells."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.start("j1")
        extra = {"id": 9, "does": "cut", "kind": "partition", "target": "a"}
        s.say("fault", "invoke", extra=extra)
        s.at += 0.2
        if is_lost:  # its lease may have come back with older data, granted ahead of time
            s.fault("loss", since=s.at - 0.1)
        s.end("j1", err="retry", after_s=0.0, effect=False)
        s.at += 3.9
        s.say("own", key="k", epoch=11, nonce="Wb.1")
        s.start("j1", by="b", epoch=11, attempt=2)
        s.say("fault", "ok", extra=extra)
        s.end("j1", by="b", epoch=11, attempt=2)

    return tell


bad("I34")(cut_off(is_lost=False))
good("I34")(cut_off(is_lost=True))


@good("I34")
def it_waits_for_a_server_that_is_away(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1")
    s.fault("store", lasts=8.0)
    s.at += 2.0
    s.start("j1", by="b")
    s.end("j1", by="b")


@good("I34")
def it_was_taken_back_from_one_loop_after_another(s: Story) -> None:
    joined(s, "a", "b", "c")
    s.dispatch("j1")
    for node, epoch in (("a", 10), ("b", 11), ("c", 12)):
        s.say("own", key="k", epoch=epoch, nonce=f"W{node}.1")
        if node != "c":
            extra = {"id": node, "does": "pause", "kind": "hang", "target": node}
            s.say("fault", "invoke", extra=extra)
            s.at += 2.4
    s.start("j1", by="c", epoch=12)
    s.end("j1", by="c", epoch=12)


@bad("I34")
def it_waits_behind_a_loop_that_hangs(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wa.1")
    s.fault("pause", "a", kind="hang", lasts=6.0)
    s.start("j1")


def stepped(s: Story, step_s: float, late_s: float = 5.2) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="retry", after_s=0.5, effect=False)
    extra = {"id": 9, "does": "clock", "kind": "clock", "target": "", "step_s": step_s}
    s.say("fault", "invoke", extra=extra)
    s.say("fault", "ok", extra=extra)
    s.at += late_s
    s.start("j1", epoch=11, attempt=2)
    s.end("j1", epoch=11, attempt=2)


@good("I34")
def the_clock_by_which_it_waits_was_set_back(s: Story) -> None:
    stepped(s, -9.0)


@bad("I34")
def the_clock_by_which_it_waits_was_set_back_a_little(s: Story) -> None:
    stepped(s, -1.2)


@bad("I34")
def the_clock_by_which_it_waits_was_set_back_and_it_waited_for_that(s: Story) -> None:
    stepped(s, -9.0, late_s=12.0)


def unsettled(node: str) -> Tell:
    """Return the story of a retry that begins when a node's fault is over."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.start("j1")
        s.at += 0.1
        s.end("j1", err="retry", after_s=0.5, effect=False)
        s.fault("cut", node, kind="late", lasts=4.0)
        s.at += 0.5
        s.say("own", key="k", epoch=11, nonce="Wb.1")
        s.start("j1", by="b", epoch=11, attempt=2)
        s.end("j1", by="b", epoch=11, attempt=2)

    return tell


good("I34")(unsettled("a"))  # who ran it could not say how it ended
bad("I34")(unsettled("c"))


@bad("I34")
def a_retry_is_forgotten(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.end("j1", err="retry", after_s=0.5, effect=False)
    s.at += 8.0
    s.start("j1", epoch=11, attempt=2)


@good("I18")
def a_frozen_worker_is_replaced(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1")
    s.start("j1")
    s.at += 0.1
    s.say("fault", "invoke", extra={"id": 9, "does": "pause", "kind": "pause", "target": "a"})
    s.at += 2.9
    s.start("j1", by="b", epoch=11)
    s.at += 3.0
    s.say("fault", "ok", extra={"id": 9})
    s.end("j1", err="cancelled", effect=False)
    s.end("j1", by="b", epoch=11)


@bad("I18")
def a_frozen_worker_is_replaced_late(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1")
    s.start("j1")
    s.at += 0.1
    s.say("fault", "invoke", extra={"id": 9, "does": "pause", "kind": "pause", "target": "a"})
    s.at += 5.0
    s.start("j1", by="b", epoch=11)
    s.at += 3.0
    s.say("fault", "ok", extra={"id": 9})
    s.end("j1", by="b", epoch=11)


def thawed(*, waits: float) -> Tell:
    """Return the story of a job that goes to another frozen worker, and then back."""

    def tell(s: Story) -> None:
        joined(s, "a", "b", "c")
        s.dispatch("j1")
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.start("j1")
        s.at += 0.1
        s.say("fault", "invoke", extra={"id": 9, "does": "pause", "kind": "pause", "target": "a"})
        s.at += 1.0
        s.say("fault", "invoke", extra={"id": 8, "does": "pause", "kind": "pause", "target": "b"})
        s.at += 1.2
        s.say("lock", nonce="Wa.1", extra={"fence": 1, "holder": "x", "by": "c/1"})
        s.say("own", key="k", epoch=11, nonce="Wb.1")
        s.at += 2.0
        s.say("fault", "ok", extra={"id": 9})
        s.end("j1", err="cancelled", effect=False)
        s.at += waits
        s.say("own", key="k", epoch=12, nonce="Wa.1")
        s.start("j1", epoch=12)
        s.at += 3.0
        s.end("j1", epoch=12)

    return tell


good("I18")(thawed(waits=0.1))
bad("I18")(thawed(waits=2.0))


def resumed(*, waits: float, others: float) -> Tell:
    """Return the story of a node that is cut off, the only other one too for a while, and that
    goes on where it was."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        s.start("j1")
        s.at += 0.1
        cut = {"id": 9, "does": "cut", "kind": "partition"}
        s.say("fault", "invoke", extra={**cut, "target": "a"})
        s.say("fault", "invoke", extra={**cut, "target": "b", "id": 8})
        s.at += 1.5
        s.end("j1", err="cancelled", effect=False)
        s.at += others - 1.5
        s.say("fault", "ok", extra={"id": 8})
        s.at += waits
        s.say("fault", "ok", extra={"id": 9})
        s.start("j1")
        s.at += 9.0
        s.end("j1")

    return tell


good("I18")(resumed(waits=1.0, others=3.0))
bad("I18")(resumed(waits=5.0, others=3.0))


def ended_while_cut_off(epoch: int) -> Tell:
    """Return the story of a job whose end reached the store, and its asker much later."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        s.start("j1")
        s.at += 0.1
        s.fault("cut", "a", kind="replies-lost", lasts=9.0)
        s.at -= 8.5
        s.end("j1")
        s.at += 8.5
        s.say("result", job="j1", key="k", result={"epoch": epoch})
        s.at += 1.0
        s.heal()

    return tell


good("I18")(ended_while_cut_off(10))
bad("I18")(ended_while_cut_off(11))


@bad("I18")
def who_was_cut_off_is_never_replaced(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1")
    s.start("j1")
    s.at += 0.1
    s.fault("cut", "a", kind="partition", lasts=9.0)
    s.at += 1.0
    s.heal()


def brief_drops(s: Story, node: str) -> None:
    """Tell of a death, and then of another node, again and again."""
    joined(s, "a", "b", "c")
    s.dispatch("j1")
    s.say("own", key="k", epoch=10, nonce="Wa.1")
    s.start("j1")
    s.crash("a")
    s.say("lock", nonce="Wa.1", extra={"fence": 1, "holder": "x", "by": "b/1"})
    s.say("own", key="k", epoch=11, nonce="Wb.1")
    for _ in range(3):
        s.at += 2.0
        s.fault("drop", node)
    s.at += 2.5
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


@good("I18")
def a_takeover_is_delayed_by_drops_where_it_goes(s: Story) -> None:
    brief_drops(s, "b")


@bad("I18")
def a_takeover_is_excused_by_drops_at_another_node(s: Story) -> None:
    brief_drops(s, "c")


@good("I4")
def another_node_froze_at_another_time(s: Story) -> None:
    leased(s, "a", 0.0)
    leased(s, "b", 2.5)
    s.dispatch("j1")
    s.start("j1")
    s.at = 0.5
    s.fault("drop", "a")
    s.end("j1", err="cancelled", effect=False)
    s.fault("pause", "c", lasts=2.0)
    s.start("j1", by="b", epoch=11)
    s.end("j1", by="b", epoch=11)


@bad("I4")
def two_believe_while_a_third_one_is_frozen(s: Story) -> None:
    renewed(s, "a", 0.0, 3.0)
    renewed(s, "b", 0.0, 3.0)
    s.dispatch("j1")
    s.start("j1")
    s.fault("pause", "c", lasts=1.0)
    s.start("j1", by="b", epoch=11)


@good("I14")
def it_goes_on_while_the_store_is_away(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1", outlives=True)
    s.fault("store", lasts=4.0)
    s.start("j1", by="b", epoch=11)


@bad("I14")
def it_goes_on_though_the_store_is_there(s: Story) -> None:
    s.at = 20.0
    s.dispatch("j1", kind="service")
    s.start("j1", outlives=True)
    s.at += 4.0
    s.start("j1", by="b", epoch=11)


@bad("I13")
def a_message_comes_twice_for_a_fault_of_another(s: Story) -> None:
    s.say("notify", "invoke", key="k", job="j1", extra={"seq": 2})
    s.fault("cut", "c")
    s.say("notify", key="k", job="j1", extra={"seq": 2})
    for _ in range(2):
        s.say("note", p="a/1", job="j1", extra={"seq": 2, "run": 1})


def claimed_anew(*, after: float, is_reaped: bool = True) -> Tell:
    """Return the story of a dead one's name that was left in the map of workers by its reaper."""

    def tell(s: Story) -> None:
        s.say("lock", nonce="Wa.1", extra={"fence": 7, "holder": "x", "by": "b/1"})
        if is_reaped:
            s.say("reap", nonce="Wa.1", p="b/1")
        s.crash("b")
        s.at += after
        s.say("lock", nonce="Wa.1", extra={"fence": 0, "holder": "y", "by": "c/1"})

    return tell


good("I16")(claimed_anew(after=20.1))
bad("I16")(claimed_anew(after=19.0))
bad("I16")(claimed_anew(after=20.1, is_reaped=False))


@bad("I16")
def reaped_twice_while_another_is_hurt(s: Story) -> None:
    s.say("reap", nonce="Wa.1", p="b/1")
    s.fault("cut", "d")
    s.say("reap", nonce="Wa.1", p="c/1")


@bad("I19")
def an_attempt_is_skipped_while_another_is_hurt(s: Story) -> None:
    s.dispatch("j1")
    s.start("j1")
    s.fault("drop", "d")
    s.end("j1", err="error")
    s.start("j1", epoch=11, attempt=3)


@bad("I23")
def a_claim_is_kept_while_another_is_hurt(s: Story) -> None:
    s.say("join", p="a/1", nonce="Wa.1")
    s.fault("pause", "c")
    s.final(claims=["Wa.1"])
    s.at += 1.0
    s.say("reap", p="b/1", nonce="Wa.1")


@good("I27")
def it_leaves_when_the_server_is_back(s: Story) -> None:
    s.say("leave", "invoke", p="a/1")
    s.fault("store", lasts=3.0)
    s.at += 3.0
    s.say("leave", p="a/1")
    s.at += 9.0
    s.heal()


@bad("I27")
def it_does_not_leave_when_the_server_is_back(s: Story) -> None:
    s.say("leave", "invoke", p="a/1")
    s.fault("store", lasts=3.0)
    s.at += 9.0
    s.heal()


@bad("I29")
def it_serves_no_more_while_one_of_many_is_hurt(s: Story) -> None:
    joined(s, "a", "b")
    s.fault("loss")
    s.at += 1.5 * BOUNDS.ttl_s
    s.fault("drop", "b")
    s.dispatch("j0")
    s.say("own", key="k", epoch=10, nonce="Wa.1")
    s.at += 10.0
    s.whole("j1")


@good("I35")
def a_service_is_back(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.crash("a")
    s.at += 2.9
    s.start("j1", by="b", epoch=11)


def down(*, waits: float, does: str = "", target: str = "") -> Tell:
    """Return the story of a job that was evicted, and waits."""

    def tell(s: Story) -> None:
        joined(s, "a", "b", "e")
        s.dispatch("j1")
        s.start("j1")
        s.fault("cut", "a", lasts=1.5)
        s.end("j1", err="cancelled", effect=False)
        if does:
            s.fault(does, target, lasts=2.0)
        s.at += waits
        s.start("j1", by="e", epoch=21)
        s.end("j1", by="e", epoch=21)
        s.heal()

    return tell


good("I35")(down(waits=4.0))
good("I35")(down(waits=6.0, does="store"))
bad("I35")(down(waits=9.0))
bad("I35")(down(waits=7.0, does="drop", target="z"))


def frozen_then_gone(*, goes: bool) -> Tell:
    """Return the story of a job that only a frozen process could take over, which then leaves."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1")
        s.start("j1")
        s.say("fault", "invoke", extra={"id": "x", "does": "pause", "kind": "pause", "target": "b"})
        s.crash("a")
        s.at += 1.0
        s.say("fault", "ok", extra={"id": "x", "does": "pause", "kind": "pause", "target": "b"})
        if goes:
            s.say("leave", "invoke", p="b/1")
            s.say("leave", p="b/1")
            s.say("exit", p="b/1", result=0)
        s.at += 3.0
        s.say("join", p="e/1", nonce="We.1", extra={"worker": True})
        s.at += 2.9
        s.start("j1", by="e", epoch=21)
        s.end("j1", by="e", epoch=21)
        s.heal()

    return tell


good("I18")(frozen_then_gone(goes=True))
bad("I18")(frozen_then_gone(goes=False))


def died_too(*, had: str) -> Tell:
    """Return the story of a job that another process was given, which dies before it begins it."""

    def tell(s: Story) -> None:
        joined(s, "a", "b", "e")
        s.dispatch("j1")
        s.say("own", key="k", epoch=10, nonce="Wa.1")
        s.start("j1")
        s.dispatch("j0", "other")  # either of them may have ended it
        s.say("own", key="other", epoch=11, nonce="Wa.1")
        s.start("j0", "other", epoch=11)
        s.crash("a")
        s.at += 2.5
        s.say("own", key="other", epoch=19, nonce="We.1")
        s.start("j0", "other", by="e", epoch=19)
        s.end("j0", "other", by="e", epoch=19)
        s.say("lock", nonce="Wa.1", extra={"by": "e/1"})
        s.say("own", key="k", epoch=20, nonce=f"W{had}.1")
        s.at += 2.0
        s.crash("b")
        s.at += 5.0
        s.say("own", key="k", epoch=21, nonce="We.1")
        s.start("j1", by="e", epoch=21)
        s.end("j1", by="e", epoch=21)
        s.heal()

    return tell


good("I35")(died_too(had="b"))
bad("I35")(died_too(had="e"))


def back_in_a_crash_loop(deaths: int, *, late_s: float) -> Tell:
    """Return the story of a job whose process is the last of so many that died 5 s apart, told by
    processes alone: a coin may hold it for three of these gaps.
    """

    def tell(s: Story) -> None:
        for number in range(deaths - 1):
            s.crash(f"n{number}")
            s.at += 5.0
        s.dispatch("j1")
        s.start("j1", by="a")
        s.crash("a")
        s.at += late_s
        s.start("j1", by="b", epoch=11)
        s.end("j1", by="b", epoch=11)

    return tell


good("I35")(back_in_a_crash_loop(3, late_s=20.0))
bad("I35")(back_in_a_crash_loop(2, late_s=20.0))  # of one gap nobody can tell a loop
bad("I35")(back_in_a_crash_loop(3, late_s=40.0))


@bad("I35")
def it_never_runs_again(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.end("j1", err="cancelled", effect=False)
    s.at += 30.0
    s.final(jobs={"k": ["j1", "unassigned", "service"]})


def kills(times: int, *, loss: bool = False, after_s: float = 0.0) -> Tell:
    """Return the story of a job that ends its process so often."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        for number in range(times):
            s.start("j1", by=f"n{number}", epoch=10 + number, poison=True)
            s.at += after_s
            s.crash(f"n{number}")
            if loss and number == 2:
                s.fault("loss")
            s.at += 0.1

    return tell


def given_up(deaths: int) -> Tell:
    """Return the story of a job that is parked as poison; others of its processes stood still."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        for number in range(4):
            node = f"n{number}"
            s.start("j1", by=node, epoch=10 + number)
            if number < deaths:
                s.crash(node)
            else:
                s.fault("pause", node, lasts=2.2)
                s.end("j1", by=node, epoch=10 + number, err="cancelled", effect=False)
        s.commit("j1", by="n3", epoch=13, extra={"word": "parked", "cause": "poison"})

    return tell


def beside(*, crashes: int) -> Tell:
    """Return the story of one parked beside poison, of whose processes so many died otherwise."""

    def tell(s: Story) -> None:
        s.dispatch("j0", "other")
        s.dispatch("j1")
        for number in range(5):
            node = f"n{number}"
            s.start("j0", "other", by=node, epoch=10 + number, poison=True)
            s.start("j1", by=node, epoch=20 + number)
            if number < crashes:
                s.crash(node)
            else:
                by = {"id": f"p{number}", "does": "crash", "kind": "poison", "by": "j0"}
                s.say("fault", "invoke", extra={**by, "target": node})
                s.say("exit", p=f"{node}/1", result=-9)
            s.at += 0.1
        s.commit("j1", by="n4", epoch=24, extra={"word": "parked", "cause": "poison"})

    return tell


bad("I36")(beside(crashes=0))
bad("I36")(beside(crashes=1))


def left_by_one(*, times: int = 1, by: str = "b", after_s: float = 0.1, hurt: bool = False) -> Tell:
    """Return the story of a job that only "b" can read, and that "a" has left to others."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1", readers=["b"])
        for _ in range(times):
            error = "its arguments: they are of version 2, 'newer' knows 1 here"
            facts = {"event": "attempt.failed", "key": "k", "error": error}
            s.say("event", p="a/1", extra=facts)
            s.at += 0.1
        if hurt:
            s.fault("store", kind="stop", lasts=after_s)
        else:
            s.at += after_s
        s.start("j1", by=by, epoch=11)
        s.end("j1", by=by, epoch=11)
        s.commit("j1", by=by, epoch=11)
        s.at += 30.0
        s.dispatch("j2", "other")
        s.whole("j3", "third")

    return tell


def parked_unread(s: Story) -> None:
    joined(s, "a", "b")
    s.dispatch("j1", readers=["b"])
    s.commit("j1", extra={"word": "parked", "cause": "arguments"})


good("I74")(left_by_one())
good("I74")(left_by_one(times=3, after_s=20.0, hurt=True))
bad("I74")(left_by_one(times=2))
bad("I74")(left_by_one(by="a"))
bad("I74")(left_by_one(after_s=20.0))
bad("I74")(parked_unread)


def marked(*, dies: bool = False, loss: bool = False, holder: str = "") -> Tell:
    """Return the story of a service that its former worker's process is said to have died of."""

    def tell(s: Story) -> None:
        joined(s, "a", "b")
        s.dispatch("j1", kind="service")
        s.start("j1")
        if dies:
            s.crash("a")
        else:
            s.fault("pause", holder or "a", kind="hold-gil" if holder else "", lasts=4.0)
            s.end("j1", err="cancelled", effect=False)
        if loss:
            s.fault("loss")
        s.start("j1", by="b", epoch=11)
        s.final(jobs={"k": ["j1", "running", "service"]}, marks={"k": ["Wa.1@0"]})

    return tell


bad("I40")(marked())
good("I40")(marked(dies=True))
good("I40")(marked(loss=True))
good("I40")(marked(holder="a"))
bad("I40")(marked(holder="b"))


def parked_for(deaths: int) -> Tell:
    """Return the story of a job that ends so many processes and is parked as poison."""

    def tell(s: Story) -> None:
        kills(deaths)(s)
        s.commit("j1", by="n9", epoch=10 + deaths, extra={"word": "parked", "cause": "poison"})

    return tell


def parked_for_what_stood_still(how: str) -> Tell:
    """Return the story of a job that keeps four processes from renewing, and is given up."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        for number in range(4):
            s.start("j1", by=f"n{number}", epoch=10 + number, hurts=how)
            s.fault("pause", f"n{number}", kind="hold-gil", lasts=4.0)
            s.end("j1", by=f"n{number}", epoch=10 + number, err="cancelled", effect=False)
        s.commit("j1", by="n9", epoch=14, extra={"word": "parked", "cause": "poison"})

    return tell


good("I36")(parked_for_what_stood_still("hold"))
bad("I36")(parked_for_what_stood_still("block"))
good("I36")(parked_for(4))
bad("I36")(parked_for(2))
for _deaths in (0, 2, 4):  # whatever else ended those that it was in
    bad("I36")(given_up(_deaths))
# In a fleet of young processes with a TTL of 2 s: a first death and eight trials of 3 bits.
AT_ONCE = BOUNDS.deaths_at_once(1)
good("I36")(kills(AT_ONCE))
bad("I36")(kills(AT_ONCE + 1))
good("I36")(kills(AT_ONCE + 3, loss=True))
bad("I36")(kills(AT_ONCE + 4, loss=True))
good("I36")(kills(AT_ONCE + 20, after_s=0.3))
bad("I36")(kills(AT_ONCE + 40, after_s=0.3))


def kills_while_others_die(times: int) -> Tell:
    """Return the story of a job that kills at once, while two other processes die."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        for number in range(times):
            s.start("j1", by=f"n{number}", epoch=10 + number, poison=True)
            s.crash(f"n{number}")
            if number < 2:
                s.crash(f"m{number}")
            s.at += 0.1

    return tell


good("I36")(kills_while_others_die(AT_ONCE + 2))
bad("I36")(kills_while_others_die(AT_ONCE + 3))


def kills_thawed(times: int, *, node: str = "n1", does: str = "pause", by: str = "n1") -> Tell:
    """Return the story of a job that kills at once; its second start was acknowledged before."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        for number in range(times):
            if number == 1:
                s.say("ack", p="server", key="k", epoch=11, nonce=f"W{by}.1")
                s.fault(does, node, lasts=3.0)
            s.start("j1", by=f"n{number}", epoch=10 + number, poison=True)
            s.crash(f"n{number}")
            s.at += 0.1

    return tell


good("I36")(kills_thawed(AT_ONCE + 1))
good("I36")(kills_thawed(AT_ONCE + 1, does="cut"))
bad("I36")(kills_thawed(AT_ONCE + 40))
bad("I36")(kills_thawed(AT_ONCE + 1, does="drop"))
bad("I36")(kills_thawed(AT_ONCE + 1, node="n2"))
bad("I36")(kills_thawed(AT_ONCE + 1, by="n2"))


def kills_unmarked(
    *,
    times: int = AT_ONCE + 1,
    kind: str = "lost-index",
    index: str = "owner",
    lane: int = 0,
    key: str = "k",
    keys: int = 1,
    at: int = 2,
) -> Tell:
    """Return the story of a job that kills at once; no index led to it after its third death."""

    def tell(s: Story) -> None:
        s.dispatch("j1")
        s.fault("store", kind=kind)
        for number in range(times):
            s.start("j1", by=f"n{number}", epoch=10 + number, poison=True)
            s.crash(f"n{number}")
            s.at += 2.0
            if number == at:
                facts = {"lane": lane, "index": index, "key": key, "keys": keys}
                s.say("event", extra={"event": "index.restored", **facts})
        s.events = [attrs.evolve(e, nonce=f"{e.nonce}@0") if e.nonce else e for e in s.events]

    return tell


good("I36")(kills_unmarked())
good("I36")(kills_unmarked(key="other", keys=2))
bad("I36")(kills_unmarked(times=AT_ONCE + 2))
bad("I36")(kills_unmarked(kind="stall"))
bad("I36")(kills_unmarked(index="pending"))
bad("I36")(kills_unmarked(lane=1))
bad("I36")(kills_unmarked(key="other"))
bad("I36")(kills_unmarked(at=AT_ONCE))


def waited_for(s: Story, *, waits: float) -> None:
    s.dispatch("j1")
    called(s, within_s=60.0)
    s.start("j1")
    s.end("j1")
    s.commit("j1")
    s.at += waits
    s.say("result", job="j1", key="k", result=1)


@good("I37")
def the_result_comes_soon(s: Story) -> None:
    waited_for(s, waits=1.0)


@bad("I37")
def the_result_comes_late(s: Story) -> None:
    waited_for(s, waits=3.0)


@good("I37")
def its_signal_was_lost(s: Story) -> None:
    s.fault("drop", "a")
    waited_for(s, waits=6.0)


@good("I37")
def the_server_took_no_waiters_name(s: Story) -> None:
    s.fault("full")
    waited_for(s, waits=6.0)


@bad("I37")
def its_signal_behind_a_fork_was_not_seen(s: Story) -> None:
    s.fault("fork-behind")
    s.at += 30.0
    waited_for(s, waits=6.0)


@bad("I37")
def it_did_not_ask_behind_the_fork(s: Story) -> None:
    s.fault("fork-behind")
    s.at += 30.0
    waited_for(s, waits=9.0)


@bad("I37")
def it_was_no_fork_but_a_loss_long_ago(s: Story) -> None:
    s.fault("lost-suffix")
    s.at += 30.0
    waited_for(s, waits=6.0)


@bad("I37")
def the_server_was_full_and_it_did_not_ask(s: Story) -> None:
    s.fault("full")
    waited_for(s, waits=9.0)


@bad("I37")
def another_signal_was_lost(s: Story) -> None:
    s.fault("drop", "c")
    waited_for(s, waits=6.0)


@bad("I37")
def its_signal_was_lost_and_it_did_not_ask(s: Story) -> None:
    s.fault("drop", "a")
    waited_for(s, waits=9.0)


def settled_twice(s: Story, *, since: float, lost_s: float, waits: float, lane: str = "") -> None:
    """Tell how a result is waited for while its commit is lost, and the job runs once more."""
    s.dispatch("j1")
    called(s, within_s=60.0)
    s.start("j1")
    s.end("j1")
    s.at = 5.0
    s.commit("j1")
    s.at += lost_s
    lose_since(s, since, lane)
    s.at = 30.0
    s.start("j1", epoch=20)
    s.end("j1", epoch=20)
    s.commit("j1", epoch=20)
    s.events = [attrs.evolve(e, nonce=f"{e.nonce}@0") if e.nonce else e for e in s.events]
    s.at += waits
    s.say("result", job="j1", key="k", result=1)


@good("I37")
def its_commit_was_lost(s: Story) -> None:
    settled_twice(s, since=4.9, lost_s=0.5, waits=1.0)


@bad("I37")
def its_second_commit_is_told_late(s: Story) -> None:
    settled_twice(s, since=4.9, lost_s=0.5, waits=9.0)


@bad("I37")
def what_came_back_had_its_commit(s: Story) -> None:
    settled_twice(s, since=5.1, lost_s=0.5, waits=1.0)


@bad("I37")
def its_commit_was_lost_when_it_should_have_been_told(s: Story) -> None:
    settled_twice(s, since=4.9, lost_s=3.0, waits=1.0)


@bad("I37")
def its_commit_was_in_another_lane_than_was_lost(s: Story) -> None:
    settled_twice(s, since=4.9, lost_s=0.5, waits=1.0, lane="1")


def booted(s: Story, *, waits: float, lane: str, node: str = "") -> None:
    """Tell how a process comes while a lane, or a node, is away for long."""
    s.whole("j0")
    s.events = [attrs.evolve(e, nonce=f"{e.nonce}@1") if e.nonce else e for e in s.events]
    extra = {"id": "x", "does": "store", "kind": "x", "target": node, "lane": lane}
    s.say("fault", "invoke", extra=extra)
    s.say("boot", p="b/1")
    s.at += waits
    s.say("join", p="b/1", nonce="Wb.1@1", extra={"worker": True})
    s.at += 30.0
    s.say("fault", extra=extra)


@good("I39")
def it_joins_while_another_lane_is_away(s: Story) -> None:
    booted(s, waits=1.0, lane="2")


@good("I39")
def it_joins_when_its_lane_is_back(s: Story) -> None:
    booted(s, waits=20.0, lane="1")


@bad("I39")
def another_lane_keeps_it_out(s: Story) -> None:
    booted(s, waits=20.0, lane="2")


@bad("I39")
def another_node_keeps_it_out(s: Story) -> None:
    booted(s, waits=20.0, lane="", node="c")


def left(s: Story, *, after_s: float, lane: str = "") -> None:
    s.dispatch("j1")
    s.start("j1", kind="job")
    s.events = [attrs.evolve(e, nonce=f"{e.nonce}@1") if e.nonce else e for e in s.events]
    if lane:
        extra = {"id": "x", "does": "store", "kind": "x", "target": "", "lane": lane}
        s.say("fault", "invoke", extra=extra)
    s.fault("leave", "a")
    s.say("leave", "invoke", p="a/1", extra={"grace_s": 2.0})
    s.at += after_s
    s.end("j1", err="cancelled", effect=False)
    s.say("leave", p="a/1")
    s.start("j1", by="b", epoch=11)
    s.at += 9.0
    s.end("j1", by="b", epoch=11)


@good("I27")
def it_may_end_within_the_grace(s: Story) -> None:
    left(s, after_s=2.0)


@bad("I27")
def it_is_cancelled_within_the_grace(s: Story) -> None:
    left(s, after_s=0.5)


@bad("I27")
def it_is_cancelled_as_another_lane_is_away(s: Story) -> None:
    left(s, after_s=0.5, lane="2")


@good("I38")
def all_run_and_take_keys(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.final(jobs={"k": ["j1", "running", "service"]}, takes={"Wa.1": 9}, working=["Wa.1"])


@good("I38")
def it_stopped_while_all_was_written_down(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.at += 9.0
    began = s.at
    s.at += 3.0
    s.end("j1", err="cancelled", effect=False)
    s.final(jobs={"k": ["j1", "running", "service"]}, began=began)


@bad("I38")
def a_service_does_not_run(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.end("j1", err="error", effect=False)
    s.final(jobs={"k": ["j1", "running", "service"]})


@bad("I38")
def a_service_runs_where_nobody_lives(s: Story) -> None:
    s.dispatch("j1", kind="service")
    s.start("j1")
    s.crash("a")
    s.final(jobs={"k": ["j1", "running", "service"]})


@bad("I38")
def a_worker_stays_closed(s: Story) -> None:
    s.final(takes={"Wa.1": 9, "Wb.1": 0}, working=["Wa.1", "Wb.1"])


# --- maps, sinks and readers -----------------------------------------------------------------


def _change(s: Story, revision: int, old: Any, new: Any, *, p: str = "a/1", w: int = 1) -> None:
    s.say("saw", p=p, key="m0", extra={"w": w, "r": revision, "k": "k", "old": old, "new": new})


def _begin(
    s: Story, revision: int, at: int, p: str = "a/1", w: int = 1, *, why: str = "gap", **items: Any
) -> None:
    extra = {"w": w, "r": revision, "at": at, "why": why, "items": items}
    s.say("saw", "info", p=p, key="m0", extra=extra)


def _put(s: Story, value: str, type_: Any = "ok", *, got: str | None = "", **more: Any) -> None:
    facts: dict[str, Any] = {"p": "a/1", "key": "m0/own-a", "idem": value}
    s.say("put", "invoke", extra={"wait": bool(got)}, **facts)
    s.at += 0.01
    told = {"wait": got != "", "r": 3, "copy": 3, "got": got, **more} if type_ == "ok" else {}
    s.say("put", type_, extra=told, **facts)


@good("I42")
def a_copy_follows_its_map(s: Story) -> None:
    s.say("truth", p="server", key="m0")
    s.say("copy", "fail", p="a/1", key="m0")
    s.at += 0.5
    s.say("copy", p="a/1", key="m0")


@good("I42")
def a_copy_follows_when_its_node_is_there_again(s: Story) -> None:
    s.say("copy", "fail", p="a/1", key="m0")
    s.fault("cut", "a", kind="partition", lasts=9.0)
    s.at += 3.0
    s.say("copy", p="a/1", key="m0")


@good("I42")
def a_map_that_changes_all_the_time_is_never_caught_up_with(s: Story) -> None:
    s.say("copy", "fail", p="a/1", key="m0")
    for _ in range(9):
        s.at += 0.5
        s.say("truth", p="server", key="m0")
    s.say("copy", p="a/1", key="m0")


@bad("I42")
def a_copy_does_not_follow(s: Story) -> None:
    s.say("copy", "fail", p="a/1", key="m0")
    s.at += 3.0
    s.say("copy", p="a/1", key="m0")


@bad("I42")
def a_copy_drifts_for_ever(s: Story) -> None:
    s.say("copy", "fail", p="a/1", key="m0")
    s.fault("cut", "b", kind="partition", lasts=9.0)
    s.final()


@good("I43")
def a_watcher_is_told_that_it_begins_anew(s: Story) -> None:
    _begin(s, 1, 1)
    _change(s, 2, None, "x")
    _begin(s, 5, 5, k="y")
    _change(s, 6, "y", "z")
    s.final(maps={"m0": {"k": "z"}})


@good("I43")
def what_was_buffered_behind_a_beginning_is_in_it_already(s: Story) -> None:
    _begin(s, 7, 5, k="z")
    _change(s, 6, "y", "x")
    _change(s, 7, "x", "z")


@good("I43")
def a_revision_is_another_change_after_a_loss(s: Story) -> None:
    _begin(s, 1, 1)
    _change(s, 2, None, "x")
    s.at += 1.0
    s.fault("loss", since=-1.0)
    _begin(s, 1, 1)
    _change(s, 2, None, "y")
    s.at += 9.0
    s.final(maps={"m0": {"k": "y"}})


@bad("I43")
def a_watcher_misses_a_change(s: Story) -> None:
    _begin(s, 1, 1)
    _change(s, 2, None, "x")
    _change(s, 4, "y", "z")


@bad("I43")
def a_watcher_goes_back_untold(s: Story) -> None:
    _begin(s, 1, 1)
    _change(s, 4, None, "x")
    _change(s, 3, "x", "y")


@bad("I43")
def two_watchers_see_two_changes_in_one_revision(s: Story) -> None:
    _begin(s, 1, 1)
    _begin(s, 1, 1, "b/1", 2)
    _change(s, 2, None, "x")
    _change(s, 2, None, "y", p="b/1", w=2)


def parted(
    *,
    of: str = "m0",
    does: str = "data",
    is_early: bool = True,
    why: str = "",
    old: str = "x",
) -> Tell:
    """Return the story of a list that another hand took, and of one who stood still meanwhile.

    With `why` that one begins once more before it is told of the next change.
    """

    def tell(s: Story) -> None:
        if is_early:
            _begin(s, 1, 1, "b/1", 2, k=old)
        s.at += 1.0
        s.fault(does, of=of)
        s.at += 30.0
        _begin(s, 1, 1)
        if not is_early:
            _begin(s, 1, 1, "b/1", 2, k=old)
        _change(s, 2, None, "y")
        if why:
            _begin(s, 1, 1, "b/1", 2, why=why, k=old)
        _change(s, 2, old or None, old + "y" if old else "z", p="b/1", w=2)

    return tell


good("I43")(parted())
good("I43")(parted(why="overflow"))
bad("I43")(parted(why="drift"))
bad("I43")(parted(of="m1"))
bad("I43")(parted(does="pause"))
bad("I43")(parted(is_early=False))
bad("I43")(parted(old=""))


@bad("I43")
def the_last_change_is_told_to_nobody(s: Story) -> None:
    _begin(s, 1, 1)
    _change(s, 2, None, "x")
    s.final(maps={"m0": {"k": "y"}})


@good("I44", "I45")
def who_waits_has_what_was_written(s: Story) -> None:
    _put(s, "v1", got="v1")
    _put(s, "v2")
    _put(s, "v3", "info")
    s.final(maps={"m0": {"own-a": "v3"}})


@good("I44")
def who_waits_has_nothing_of_a_map_that_another_hand_took(s: Story) -> None:
    s.fault("data", "", of="m0")
    _put(s, "v1", got=None)


@bad("I44")
def who_waits_has_it_not(s: Story) -> None:
    _put(s, "v1", got="v1")
    s.at += 1.0
    s.fault("loss")
    _put(s, "v2", got="v1")


@good("I45")
def what_was_written_was_undone(s: Story) -> None:
    _put(s, "v1", got="v1")
    s.fault("loss", since=0.0)
    _put(s, "v2", "fail")
    s.final(maps={"m0": {}})


@bad("I45")
def an_accepted_write_has_gone(s: Story) -> None:
    s.fault("loss", since=-1.0)
    s.at += 1.0
    _put(s, "v1")
    _put(s, "v2")
    s.final(maps={"m0": {"own-a": "v1"}})


def _await(s: Story, value: str, type_: Any = "ok", got: str | None = None) -> None:
    facts: dict[str, Any] = {"p": "b/1", "key": "m0/own-a", "idem": value}
    s.say("await", "invoke", **facts)
    s.at += 0.01
    s.say("await", type_, extra={"got": got} if type_ == "ok" else {}, **facts)


@good("I68")
def what_was_on_its_way_is_written_over_what_is_waited_for(s: Story) -> None:
    _put(s, "v1", "info")
    _put(s, "v2")
    _await(s, "v2", got="v1")


@good("I68")
def who_waits_for_anothers_write_has_it_or_a_later_one(s: Story) -> None:
    _put(s, "v1")
    _await(s, "v1", got="v1")
    _put(s, "v2")
    _await(s, "v1", got="v2")
    _await(s, "v2", "info")


@good("I68")
def what_may_be_lost_is_told_as_lost_or_not(s: Story) -> None:
    _put(s, "v1")
    s.at += 1.0
    s.fault("loss", since=0.0)
    _await(s, "v1", "fail")
    _await(s, "v1", got=None)


@bad("I68")
def what_stands_is_told_as_lost(s: Story) -> None:
    s.fault("loss", since=0.0)
    s.at += 1.0
    _put(s, "v1")
    _await(s, "v1", "fail")


@bad("I68")
def who_waits_for_anothers_write_has_an_older_one(s: Story) -> None:
    _put(s, "v1")
    _put(s, "v2")
    _await(s, "v2", got="v1")


@bad("I68")
def who_waits_for_anothers_write_waits_for_ever(s: Story) -> None:
    _put(s, "v1")
    s.say("await", "invoke", p="b/1", key="m0/own-a", idem="v1")
    s.at += 90.0
    s.final()


def _event(s: Story, token: str, f: str, at: float = 0.1, p: str = "server", **more: Any) -> None:
    """Tell what becomes of an event of e0, for the sink s."""
    s.at += at
    number = "".join(filter(str.isdigit, token))
    extra = {"sink": "s", **more}
    s.say(f, p=p, key="e0", idem=token, stream_id=f"{number}-0", extra=extra)


def _sink(s: Story, most: int = 2) -> None:
    s.say("consumer", p="a/1", key="e0", extra={"sink": "s", "max": most})


def _give(s: Story, token: str, at: float = 0.1, p: str = "a/1") -> None:
    _event(s, token, "gave", at)
    _event(s, token, "given", p=p, n=1, grace_s=2.0)


@good("I46", "I49")
def an_event_is_handled(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _give(s, "t1")
    _event(s, "t1", "acked")
    s.final()


@good("I46", "I47", "I48")
def an_event_is_parked_when_it_was_tried(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _give(s, "t1")
    _give(s, "t1", 2.0, "b/1")
    _event(s, "t1", "parked", 2.0)
    _event(s, "t1", "acked", 0.0)
    s.final()


@good("I47")
def a_consumer_that_ended_may_have_had_it(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _give(s, "t1")
    s.crash("a")
    _event(s, "t1", "parked", 2.0)


@good("I46")
def an_event_is_lost_with_data(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    s.fault("loss", since=0.0)
    _event(s, "t2", "added")
    _give(s, "t2")
    _event(s, "t2", "acked")
    s.final()


def _hand(s: Story, *, back_s: float = -1.0, name: str = "e0", token: str = "") -> None:
    """Tell of another hand at a stream, in whose time a server went back, and what came then."""
    extra = {"id": 90, "does": "data", "kind": "foreign-data", "target": "", "of": name}
    s.say("fault", "invoke", extra=extra)
    if back_s >= 0.0:
        s.at += 0.5
        s.fault("loss", since=s.at - back_s)
    if token:
        _event(s, token, "added")
    s.at += 0.5
    s.say("fault", "ok", extra=extra)


@good("I46")
def what_a_loss_brought_back_is_taken_by_another_hand_as_it_ends(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    s.at += 0.5
    _hand(s, back_s=0.8)
    s.at += 1.0
    s.fault("loss", since=s.at - 0.1)
    _event(s, "t2", "added")
    _give(s, "t2")
    _event(s, "t2", "acked")
    s.final()


@good("I46")
def what_came_behind_a_loss_is_taken_by_another_hand_as_it_ends(s: Story) -> None:
    _sink(s)
    s.at += 1.0
    _hand(s, back_s=0.8, token="t1")
    _event(s, "t2", "added")
    _give(s, "t2")
    _event(s, "t2", "acked")
    s.final()


@bad("I46")
def what_a_loss_brought_back_is_not_of_the_stream_where_another_hand_is(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    s.at += 0.5
    _hand(s, back_s=0.8, name="e1")
    s.final()


@bad("I46")
def what_comes_when_another_hand_has_ended_stays(s: Story) -> None:
    _sink(s)
    s.at += 1.0
    _hand(s, back_s=0.8)
    _event(s, "t1", "added")
    s.final()


@bad("I46")
def a_loss_brings_back_what_another_hand_took_at_both_ends(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    s.at += 0.5
    _hand(s)
    s.fault("loss", since=s.at - 0.8)
    s.final()


@good("I46")
def a_cap_takes_an_event_which_is_told(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _event(s, "t1", "dropped")
    s.say("event", p="a/1", extra={"event": "sink.missed", "sink": "s", "stream": "e0"})
    s.final()


@bad("I46")
def a_cap_takes_an_event_untold(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _event(s, "t1", "dropped")
    s.final()


@bad("I46")
def an_event_is_passed_over(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    s.final()


@bad("I46")
def an_event_is_acknowledged_that_nobody_had(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _event(s, "t1", "gave")
    _event(s, "t1", "acked")
    s.final()


@bad("I47")
def an_innocent_is_parked(s: Story) -> None:
    _sink(s)
    _event(s, "t1", "added")
    _event(s, "t1", "gave")
    _event(s, "t1", "gave", 2.0)
    _event(s, "t1", "parked", 2.0)


@good("I48")
def an_event_goes_to_another_when_its_holder_has_lapsed(s: Story) -> None:
    _give(s, "t1")
    s.say("event", p="a/1", extra={"event": "sink.lapsed", "sink": "s"})
    _give(s, "t1", p="b/1")


@bad("I48")
def an_event_has_two_holders(s: Story) -> None:
    _give(s, "t1")
    _give(s, "t1", 0.5, "b/1")


@good("I49")
def an_acknowledgement_is_undone(s: Story) -> None:
    _give(s, "t1")
    _event(s, "t1", "acked")
    s.at += 0.1
    s.fault("data", of="e0")
    _give(s, "t1")


@bad("I49")
def the_loss_that_undid_it_has_been_undone(s: Story) -> None:
    _give(s, "t1")
    _event(s, "t1", "acked")
    s.at += 0.1
    kept = s.at
    s.at += 0.1
    lose_since(s, 0.0, "")
    s.at += 0.1
    lose_since(s, kept, "")
    _give(s, "t1")


@bad("I49")
def what_is_acknowledged_is_given_again(s: Story) -> None:
    _give(s, "t1")
    _event(s, "t1", "acked")
    s.fault("data", of="e1")
    _give(s, "t1", 2.0, "b/1")


def _reads(s: Story, *tokens: str, after: str = "") -> None:
    for token in tokens:
        _event(s, token, "read", p="r/1", reader=1, after=after)


def _reader(s: Story, start: str = "oldest") -> None:
    s.say("read", "info", p="r/1", key="e0", extra={"reader": 1, "start": start})
    for token in ("t1", "t2", "t3"):
        _event(s, token, "added")


def _step(
    s: Story,
    type_: str,
    epoch: int,
    result: str = "",
    step: str = "pay",
    skey: str = "x",
    job: str = "j1",
) -> None:
    extra = {"step": step, **({"skey": skey} if type_ == "invoke" else {})}
    s.say("step", type_, p="a/1", job=job, key="k", epoch=epoch, extra=extra, result=result or None)
    s.at += 0.1


def _state(s: Story, type_: str, epoch: int, *heard: int) -> None:
    s.say("state", type_, p="a/1", job="j1", key="k", epoch=epoch, extra={"heard": [*heard]})
    s.at += 0.1


def _notified(s: Story, *seqs: int) -> None:
    for seq in seqs:
        s.say("notify", "invoke", key="k", job="j1", extra={"seq": seq})
        s.say("notify", key="k", job="j1", extra={"seq": seq})
        s.at += 0.1


@good("I51")
def a_step_is_done_once(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "ok", 10, "one")
    _step(s, "ok", 20, "one")
    _step(s, "invoke", 20, step="ship", skey="y")


@good("I51")
def a_step_without_a_result_is_done_again(s: Story) -> None:
    """And whoever was its owner may still be doing it."""
    _step(s, "invoke", 10)
    _step(s, "invoke", 20)
    _step(s, "ok", 20, "two")
    _step(s, "invoke", 10)


@good("I51")
def a_result_is_lost_with_its_data(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "ok", 10, "one")
    s.fault("loss")
    _step(s, "invoke", 20)
    _step(s, "ok", 20, "two")


@good("I51")
def a_step_without_a_result_is_done_again_by_a_replay(s: Story) -> None:
    """Seed 400130: its key is that of the job that was given up, so that a provider knows it."""
    _step(s, "invoke", 10)
    s.say("replayed", p="server", job="j2", key="k", extra={"of": "j1"})
    _step(s, "invoke", 20, job="j2")
    _step(s, "ok", 20, "one", job="j2")


@bad("I51")
def a_step_has_the_key_of_another_job(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "invoke", 20, job="j2")


@bad("I51")
def a_step_is_done_again(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "ok", 10, "one")
    _step(s, "invoke", 20)


@bad("I51")
def a_step_has_two_results(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "invoke", 20)
    _step(s, "ok", 20, "two")
    _step(s, "ok", 10, "one")


@bad("I51")
def a_step_has_another_key(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "invoke", 20, skey="y")


@bad("I51")
def two_steps_have_one_key(s: Story) -> None:
    _step(s, "invoke", 10)
    _step(s, "invoke", 10, step="ship")


@good("I52")
def a_state_goes_along(s: Story) -> None:
    _notified(s, 0, 1, 2)
    _state(s, "info", 10)
    _state(s, "ok", 10, 0)
    _state(s, "info", 20, 0, 1)
    _state(s, "ok", 20, 0, 1, 2)


@good("I52")
def a_state_goes_back_with_the_data(s: Story) -> None:
    _notified(s, 0, 1)
    _state(s, "ok", 10, 0, 1)
    s.fault("loss")
    _state(s, "info", 20, 0)


def a_message_is_heard_again(*heard: int, loss: str = "loss") -> Tell:
    """Return the story of a state that its worker brings along, behind the loss of a removal."""

    def tell(s: Story) -> None:
        for run in (1, 2):
            for seq in (0, 1):
                s.say("note", p="a/1", job="j1", key="k", extra={"run": run, "seq": seq})
                s.at += 0.1
            s.fault(loss)
        _state(s, "ok", 10, *heard)

    return tell


good("I52")(a_message_is_heard_again(0, 1, 0, 1))  # seed 770092
bad("I52")(a_message_is_heard_again(0, 1, 0, 1, loss="clock"))  # nothing was lost
bad("I52")(a_message_is_heard_again(1, 0))  # it had not been there


def a_clock_was_behind_a_fork(*does: str) -> Tell:
    """Return the story of a state that lacks a message of after these faults."""

    def tell(s: Story) -> None:
        _notified(s, 0)
        for each in does:
            s.fault(each)
        s.at += 5.0
        _notified(s, 1, 2)
        _state(s, "ok", 10, 0, 2)

    return tell


bad("I52")(a_clock_was_behind_a_fork("clock", "loss"))  # its number was one that was handled
bad("I52")(a_clock_was_behind_a_fork("clock"))
bad("I52")(a_clock_was_behind_a_fork("loss"))


def a_copy_came_late(*put: int, heard: tuple[int, ...] = (0, 5, 6, 5), by: int = 9) -> Tell:
    """Return the story of a state, and of when the store accepted what is in it."""

    def tell(s: Story) -> None:
        for number, seq in enumerate(put):
            if number == by:
                _state(s, "ok", 10, *heard)
            s.say("message", p="server", job="j1", key="k", extra={"seq": seq})
        if by >= len(put):
            _state(s, "ok", 10, *heard)

    return tell


good("I52")(a_copy_came_late(0, 5, 6, 5))
good("I52")(a_copy_came_late(0, 5, 5, heard=(0, 5, 5)))  # nothing had come between
bad("I52")(a_copy_came_late(0, 5, 6))
bad("I52")(a_copy_came_late(0, 5, heard=(0, 5, 5)))
bad("I52")(a_copy_came_late(0, 5, 5, 6))  # then it comes before the other
bad("I52")(a_copy_came_late(0, 5, 6, 5, by=3))  # it was put in only later
bad("I52")(a_copy_came_late(0, 5, 6, 5, heard=(0, 6, 5)))  # it had not been there
bad("I52")(a_copy_came_late(0, 5, 6, 5, 7, heard=(0, 5, 6, 5, 7, 5)))  # nor so often


@bad("I52")
def a_state_has_a_message_twice(s: Story) -> None:
    _state(s, "ok", 10, 0)
    _state(s, "ok", 20, 0, 0)


@bad("I52")
def a_state_lacks_a_message(s: Story) -> None:
    _notified(s, 0, 1, 2)
    _state(s, "ok", 10, 0, 2)


@bad("I52")
def what_was_saved_is_gone(s: Story) -> None:
    _notified(s, 0, 1)
    _state(s, "ok", 10, 0, 1)
    _state(s, "info", 20, 0)


def _follow(s: Story, job: str, when: str = "then", of: str = "j1") -> None:
    extra = {"of": f"c-{of}", "when": when}
    s.say("follow", key="f", idem=f"c-{job}", extra=extra)


def _followed(s: Story, job: str, told: object = None) -> None:
    """Tell the life of a job that follows another."""
    s.dispatch(job, "f")
    x: dict[str, Any] = {} if told is None else {"told": told}
    s.start(job, "f", epoch=20, **x)
    s.end(job, "f", epoch=20)
    s.commit(job, "f", epoch=20)


@good("I61")
def who_follows_what_is_done(s: Story) -> None:
    _follow(s, "j2")
    _follow(s, "j3", "otherwise")
    s.whole("j1")
    _followed(s, "j2", told=["c-j1", 10, 1])


@good("I61")
def who_follows_what_is_not_done(s: Story) -> None:
    _follow(s, "j2")
    _follow(s, "j3", "otherwise")
    s.dispatch("j1")
    s.commit("j1", extra={"word": "parked"})
    _followed(s, "j3", told="parked: failed")
    s.final()


@good("I61")
def who_follows_what_has_not_ended_or_was_never_there(s: Story) -> None:
    _follow(s, "j2")
    _follow(s, "j4", of="j3")
    s.dispatch("j1")


@good("I61")
def a_follower_is_lost_with_the_data(s: Story) -> None:
    _follow(s, "j2")
    s.whole("j1")
    s.fault("loss", since=0.0)
    s.final()


@bad("I61")
def nobody_follows(s: Story) -> None:
    _follow(s, "j2")
    s.whole("j1")
    s.final()


@bad("I61")
def nobody_follows_though_data_were_lost_before(s: Story) -> None:
    _follow(s, "j2")
    s.fault("loss", since=0.0)
    s.at += 1.0
    s.whole("j1")
    s.final()


@bad("I61")
def who_follows_otherwise_follows_what_is_done(s: Story) -> None:
    _follow(s, "j2", "otherwise")
    s.whole("j1")
    _followed(s, "j2")


@bad("I61")
def who_follows_is_there_before_the_end(s: Story) -> None:
    _follow(s, "j2")
    s.dispatch("j1")
    _followed(s, "j2")


@bad("I61")
def who_follows_is_there_and_nobody_is_before_it(s: Story) -> None:
    _follow(s, "j2")
    _followed(s, "j2")


@bad("I61")
def who_follows_is_told_something_else(s: Story) -> None:
    _follow(s, "j2")
    s.whole("j1")
    _followed(s, "j2", told=["c-j1", 9, 1])


@bad("I61")
def a_message_is_left(s: Story) -> None:
    s.final(out=["0 to 1 7"])


def _batch(s: Story, *words: str, state: str = "done", then: int = 1, **changed: Any) -> None:
    """Tell of a batch whose members ended so, and how it stands at the end; one must succeed."""
    extra = {"then": "c-then", "least": 1}
    s.say("batch", "invoke", key="b1", extra=extra)
    s.say("batch", key="b1", nonce="n1")
    for index, word in enumerate(words):
        member = member_id("n1", index)
        s.dispatch(member, member)
        s.start(member, member)
        s.end(member, member)
        s.commit(member, member, extra={"word": word})
    for job in ("then", "again")[:then]:
        s.say("dispatch", "invoke", key="f", idem="c-then", extra={"digest": "x"})
        s.say("dispatch", key="f", idem="c-then", job=job, extra={"digest": "x"})
        s.start(job, "f", epoch=20, by="b")
        s.end(job, "f", epoch=20, by="b")
        s.commit(job, "f", epoch=20, by="b")
    letters = "".join({"done": "s", "parked": "f"}[word] for word in words)
    told = {"nonce": "n1", "state": state, "letters": letters, **changed}
    told.setdefault("counts", [told["letters"].count(letter) for letter in "sfcm"])
    inner = {"nonce": "n2", "state": "done", "letters": "s", "counts": [1, 0, 0, 0]}
    s.final(batches={"b1": told, "inner": inner})


@good("I62")
def a_batch_is_done(s: Story) -> None:
    _batch(s, "done", "parked")


@good("I62")
def a_batch_has_failed_and_one_was_never_accepted(s: Story) -> None:
    _batch(s, "parked", state="failed", then=0, letters="fm")


@good("I62")
def a_batch_within_another_counts_as_it_ended(s: Story) -> None:
    _batch(s, "done", letters="ssm", kids={1: "inner", 2: "never"})


@bad("I62")
def a_batch_within_another_counts_otherwise(s: Story) -> None:
    _batch(s, "done", letters="sf", kids={1: "inner"})


@good("I62")
def a_batch_is_lost_with_the_data(s: Story) -> None:
    s.say("batch", "invoke", key="b1", extra={"then": "c-then", "least": 1})
    s.say("batch", key="b1", nonce="n1")
    s.fault("loss", since=0.0)
    s.final()


@bad("I62")
def a_batch_is_gone(s: Story) -> None:
    s.say("batch", "invoke", key="b1", extra={"then": "c-then", "least": 1})
    s.say("batch", key="b1", nonce="n1")
    s.final()


@bad("I62")
def a_batch_never_settles(s: Story) -> None:
    _batch(s, "done", state="sealed", then=0)


@bad("I62")
def a_member_counts_as_what_it_is_not(s: Story) -> None:
    _batch(s, "done", "parked", letters="ss")


@bad("I62")
def who_has_ended_counts_as_missing(s: Story) -> None:
    _batch(s, "done", "done", letters="sm")


@bad("I62")
def a_batch_counts_wrongly(s: Story) -> None:
    _batch(s, "done", "parked", counts=[2, 0, 0, 0])


@bad("I62")
def a_batch_is_done_and_too_few_succeeded(s: Story) -> None:
    _batch(s, "parked")


@bad("I62")
def nobody_follows_a_batch(s: Story) -> None:
    _batch(s, "done", then=0)


@bad("I62")
def two_follow_a_batch(s: Story) -> None:
    _batch(s, "done", then=2)


def _fires(s: Story, *jobs: str, to: str = "k", accepted: bool = True, **changed: Any) -> None:
    """Tell of a firing of a schedule of each 10 s that comes in time."""
    told = {
        "jobs": [*jobs],
        "to": to,
        "next": (90_000, 90_000 + 10_000 * len(jobs)),
        "fired": len(jobs),
    }
    told |= {
        "missed": 0,
        "overlapped": 0,
        "paused": False,
        "wall_ms": 90_000,
        "every_ms": 10_000,
        "is_edit": False,
        **changed,
    }
    s.say("fire", "info", key="nightly", extra=told)
    for job in jobs if accepted else ():
        s.say("dispatch", "invoke", key=to, idem=job, extra={"digest": "x"})
        s.say("dispatch", key=to, job=job, idem=job, extra={"digest": "x"})


@good("I63")
def a_schedule_fires(s: Story) -> None:
    _fires(s, "nightly@1", "nightly@2")


@good("I63")
def a_late_schedule_misses_times(s: Story) -> None:
    _fires(s, "nightly@1", next=(10_000, 100_000), missed=8)


@good("I63")
def of_late_times_the_newest_is_fired(s: Story) -> None:
    _fires(s, "nightly@3", next=(90_000, 120_000), overlapped=2)


@bad("I63")
def of_late_times_one_is_gone_without_a_word(s: Story) -> None:
    _fires(s, "nightly@3", next=(90_000, 120_000), overlapped=3)


@good("I63")
def a_firing_is_left_out_by_its_policy(s: Story) -> None:
    _fires(s, "nightly@1", accepted=False)
    s.say("overlap", "info", key="k", job="nightly@1")


@good("I63")
def a_firing_is_lost_with_the_data(s: Story) -> None:
    _fires(s, "nightly@1", accepted=False)
    s.fault("loss", since=0.0)


@bad("I63")
def a_firing_is_never_accepted(s: Story) -> None:
    _fires(s, "nightly@1", accepted=False)


@bad("I63")
def a_time_is_fired_twice(s: Story) -> None:
    _fires(s, "nightly@1")
    _fires(s, "nightly@1", accepted=False)


def fired_by_two(step_s: float) -> Tell:
    """Return the story of a time that is fired, and again by a schedule that was made anew."""

    def tell(s: Story) -> None:
        _fires(s, "nightly@1")
        s.at += 5.0
        s.fault("clock", step_s=step_s)
        s.at += 1.0
        made = {"jobs": [], "wall_ms": 1000, "is_edit": True}
        s.say("schedule", "info", key="nightly", extra=made)
        s.at += 1.0
        _fires(s, "nightly@1")

    return tell


good("I63")(fired_by_two(-60.0))
bad("I63")(fired_by_two(60.0))


def _changes(s: Story, came: list[int], settled: int) -> None:
    """Tell of a change to a schedule of which times had come."""
    extra = {"jobs": [], "wall_ms": 90_000, "paused": False, "is_edit": True}
    s.say("schedule", "info", key="e", extra={**extra, "came": came, "settled": settled})


@good("I63")
def a_change_counts_what_has_come(s: Story) -> None:
    _changes(s, [1, 2], 2)


@bad("I63")
def a_change_drops_what_has_come(s: Story) -> None:
    _changes(s, [1], 0)


@bad("I63")
def a_change_counts_what_is_to_come(s: Story) -> None:
    _changes(s, [0], 1)


@good("I63")
def a_change_of_a_schedule_that_was_lost(s: Story) -> None:
    s.fault("loss", since=0.0)
    _changes(s, [1], 0)


def _fires_again(s: Story, *, has_run: bool = False, accepted: bool = True) -> None:
    """Tell of a firing that is lost, and of one of the same time, and so of the same id, by the
    schedule as it is made again for another key.
    """
    _fires(s, "nightly@1", to="lost")
    if has_run:
        _runs(s, "lost")
    s.fault("loss")
    s.at += 10.0
    _fires(s, "nightly@1", accepted=accepted)


def _runs(s: Story, key: str) -> None:
    s.start("nightly@1", key)
    s.end("nightly@1", key)
    s.commit("nightly@1", key)
    s.events = [attrs.evolve(e, idem=e.idem.removeprefix("c-")) for e in s.events]


@good("I1", "I7", "I9", "I10", "I63")
def a_lost_firing_is_made_again_for_another_key(s: Story) -> None:
    _fires_again(s)
    _runs(s, "k")
    s.final({"nightly@1": ("done", 10, None, 0.0)})
    s.events[-1].extra["outcomes"]["nightly@1"]["key"] = "k"


@good("I8", "I10", "I11", "I63")
def a_firing_that_has_run_is_lost_and_made_again_for_another_key(s: Story) -> None:
    _fires_again(s, has_run=True)
    _runs(s, "k")


@good("I1")
def a_firing_that_was_made_again_waits(s: Story) -> None:
    _fires_again(s)
    s.final(jobs={"k": ["nightly@1", "unassigned", "job"]})


@bad("I1")
def a_firing_that_was_made_again_is_nowhere(s: Story) -> None:
    _fires_again(s)
    s.final()


@bad("I63")
def a_firing_that_was_made_again_is_never_accepted(s: Story) -> None:
    _fires_again(s, accepted=False)


@bad("I9")
def a_firing_that_was_made_again_runs_under_a_key_of_neither(s: Story) -> None:
    _fires_again(s)
    _runs(s, "other")


@bad("I63")
def a_time_is_fired_again_for_another_key_and_nothing_was_lost(s: Story) -> None:
    _fires(s, "nightly@1", to="other")
    _fires(s, "nightly@1")


@bad("I63")
def a_paused_schedule_is_fired(s: Story) -> None:
    _fires(s, "nightly@1", paused=True)


@bad("I63")
def a_schedule_stands_still(s: Story) -> None:
    _fires(s, "nightly@1", next=(90_000, 90_000))


@bad("I63")
def a_schedule_counts_wrongly(s: Story) -> None:
    _fires(s, "nightly@1", fired=2)


@bad("I63")
def a_schedule_passes_a_time(s: Story) -> None:
    _fires(s, "nightly@1", next=(90_000, 110_000))


@bad("I63")
def a_schedule_misses_what_was_in_time(s: Story) -> None:
    _fires(s, "nightly@1", next=(90_000, 110_000), missed=1)


def a_schedule_is_looked_at(
    *looks: tuple[int, int, int], jobs: int = 2, is_paused: bool = False
) -> Tell:
    """Return the story of looks at a schedule of each second (next time, fired, missed)."""

    def tell(s: Story) -> None:
        for job in range(jobs):
            _whole_firing(s, f"each@2026-11-26T00:00:0{job}Z")
        for look in looks:
            s.at += 1.0
            extra = {"late_ms": 0, "paused": False, "every_ms": 1000, "wall_ms": 20_000}
            extra["paused"] = is_paused and look is looks[-1]
            s.say("schedule", "info", key="each", extra={**extra, "look": look})
        s.final()

    return tell


def _whole_firing(s: Story, job: str) -> None:
    s.say("dispatch", "invoke", key=job, idem=f"c-{job}", extra={"digest": "x"})
    s.say("dispatch", key=job, job=job, idem=f"c-{job}", extra={"digest": "x"})
    s.start(job, job)
    s.end(job, job)
    s.commit(job, job)


good("I63")(a_schedule_is_looked_at((1000, 0, 0), (3000, 2, 0)))
good("I63")(a_schedule_is_looked_at((1000, 0, 0), (4000, 2, 1)))
bad("I63")(a_schedule_is_looked_at((1000, 0, 0), (4000, 2, 0)))  # one is neither
bad("I63")(a_schedule_is_looked_at((3000, 2, 0), (1000, 2, 0)))  # it goes back
bad("I63")(a_schedule_is_looked_at((12_000, 0, 0), (15_000, 2, 1)))  # it was in time
good("I63")(a_schedule_is_looked_at((12_000, 0, 0), (15_000, 2, 1), is_paused=True))
bad("I63")(a_schedule_is_looked_at((12_000, 0, 0), (15_000, 2, 0), is_paused=True))
bad("I63")(a_schedule_is_looked_at((1000, 0, 0), (3000, 2, 0), jobs=1))
bad("I63")(a_schedule_is_looked_at((1000, 0, 0), (2000, 1, 0)))  # one was fired twice


def late_after_the_heal(*, passed_s: float, starved_s: float = 0.0) -> Tell:
    """Return the story of a schedule that has been due since long before all was well again."""

    def tell(s: Story) -> None:
        s.heal()
        starved(s, "a/1", passed_s, starved_s)
        s.say("schedule", "info", key="nightly", extra={"late_ms": 10_000_000, "paused": False})

    return tell


good("I63")(late_after_the_heal(passed_s=1.0))
good("I63")(late_after_the_heal(passed_s=10.0, starved_s=0.2))
good("I63")(late_after_the_heal(passed_s=20.0, starved_s=0.4))
bad("I63")(late_after_the_heal(passed_s=10.0))


def missed_beside_a_step(before_s: float) -> Tell:
    """Return the story of a time that is missed though it was in time, and the clock was set."""

    def tell(s: Story) -> None:
        s.fault("step")
        s.at += before_s
        _fires(s, "nightly@1", next=(90_000, 110_000), missed=1)

    return tell


# A node is told the time by one call and writes the firing with the next one.
good("I63")(missed_beside_a_step(0.5))
bad("I63")(missed_beside_a_step(10.0))


def _ticks(s: Story, *numbers: int, by: str = "b", told: bool = True, **missed: int) -> None:
    """Tell of ticks, one each second, that a process is given; another one waits as well."""
    s.say("ticker", "invoke", p="a/1", key="t")
    for before, number in zip((numbers[0] - 1, *numbers), numbers, strict=False):
        s.at += number - before
        facts = {"number": number, "missed": missed.get(f"at{number}", number - before - 1)}
        s.say("ticked", p="b/1", key="t", extra=facts)
        if told:
            s.say("tick", p=f"{by}/1", key="t", extra={**facts, "done": True})


@good("I64")
def ticks_come(s: Story) -> None:
    _ticks(s, 7, 8, 9)


@good("I64")
def ticks_are_left_out_while_nobody_can_ask(s: Story) -> None:
    s.say("fault", "invoke", extra={"id": 9, "does": "store", "kind": "store", "target": ""})
    _ticks(s, 7, 9)
    s.say("fault", "ok", extra={"id": 9})


@good("I64")
def a_tick_is_lost_with_who_had_it(s: Story) -> None:
    _ticks(s, 7, told=False)


@bad("I64")
def a_tick_is_left_out(s: Story) -> None:
    _ticks(s, 7, 9)


@bad("I64")
def ticks_are_missed_and_not_told(s: Story) -> None:
    _ticks(s, 7, 8, at8=1)


@bad("I64")
def a_tick_comes_twice(s: Story) -> None:
    _ticks(s, 7, 7)


@bad("I64")
def a_tick_is_told_to_another(s: Story) -> None:
    _ticks(s, 7, by="c")


def _answer(s: Story, mistake: str = "", **wanted: int) -> None:
    s.say("answer", key="p", extra={"wanted": wanted, "mistake": mistake})


def _planned(s: Story, job: str, version: int = 0) -> None:
    """Tell of a job that a plan has started for key `f`."""
    s.dispatch(job, "f", kind="service", plan="p", version=version)
    s.start(job, "f", kind="service")


def _ended(s: Story, job: str) -> None:
    s.end(job, "f", err="cancelled", effect=False)
    s.commit(job, "f", extra={"word": "cancelled", "cause": "plan p: it is not in it any more"})


def _as_planned(s: Story, there: dict[str, int], **wanted: int) -> None:
    jobs = {key: [f"plan:p:{version + 1}", "running", "service"] for key, version in there.items()}
    s.final(jobs=jobs, plan={"wanted": wanted, "there": there, "parked": [["g", 1]]})


@good("I65")
def a_plan_is_kept(s: Story) -> None:
    _answer(s, f=0)
    _planned(s, "plan:p:1")
    s.at += 1.0
    _answer(s)
    _ended(s, "plan:p:1")
    _answer(s, f=1, g=1)
    _planned(s, "plan:p:2", 1)
    _as_planned(s, {"f": 1}, f=1, g=1)  # the other one was parked


@good("I65")
def a_mistake_is_confirmed(s: Story) -> None:
    _answer(s, f=0)
    _planned(s, "plan:p:1")
    _answer(s, "empty")
    s.say("confirm", key="p")
    s.at += 1.0
    _ended(s, "plan:p:1")


@bad("I65")
def a_plan_ends_by_mistake(s: Story) -> None:
    _answer(s, f=0)
    _planned(s, "plan:p:1")
    _answer(s, "empty")
    _ended(s, "plan:p:1")


@bad("I65")
def a_plan_ends_what_is_wanted(s: Story) -> None:
    _answer(s, f=0)
    _planned(s, "plan:p:1")
    _ended(s, "plan:p:1")


@bad("I65")
def a_plan_begins_what_nobody_wants(s: Story) -> None:
    _answer(s, g=0)
    _planned(s, "plan:p:1")


@bad("I65")
def a_plan_leaves_out_a_key(s: Story) -> None:
    _as_planned(s, {}, f=1)


@bad("I65")
def a_plan_leaves_a_key_behind(s: Story) -> None:
    _as_planned(s, {"f": 1})


@bad("I65")
def a_plan_keeps_other_arguments(s: Story) -> None:
    _as_planned(s, {"f": 1}, f=2)


@good("I50")
def a_reader_reads_all(s: Story) -> None:
    _reader(s)
    _reads(s, "t1", "t2", "t3")
    s.final()


@good("I50")
def a_reader_begins_where_another_was(s: Story) -> None:
    _reader(s, "1-0")
    _reads(s, "t2", "t3")
    s.final()


def begins_behind_a_lost_event(*, since: float) -> Tell:
    """Return the story of a reader of `t3` that begins behind `t1`, of data that went back."""

    def tell(s: Story) -> None:
        _event(s, "t1", "added")
        s.at += 1.0
        s.fault("loss", kind="fork-behind", since=since)
        for token in ("t2", "t3"):
            _event(s, token, "added")
        s.at += 1.0
        s.say("read", "info", p="r/1", key="e0", extra={"reader": 1, "start": "1-0"})
        _reads(s, "t3")
        s.final()

    return tell


good("I50")(begins_behind_a_lost_event(since=-1.0))
bad("I50")(begins_behind_a_lost_event(since=0.5))  # the event is still there


@good("I50")
def a_reader_is_told_what_it_misses(s: Story) -> None:
    _reader(s)
    _reads(s, "t1")
    _reads(s, "t3", after="missed")
    _reads(s, "t1", after="restarted")
    s.say("event", p="r/1", extra={"event": "stream.restarted", "stream": "e0"})
    s.final()


@bad("I50")
def a_reader_misses_an_event(s: Story) -> None:
    _reader(s)
    _reads(s, "t1", "t3")


@bad("I50")
def a_reader_reads_an_event_twice(s: Story) -> None:
    _reader(s)
    _reads(s, "t1", "t2", "t1")


@bad("I50")
def a_reader_never_hears_of_the_last_event(s: Story) -> None:
    _reader(s)
    _reads(s, "t1", "t2")
    s.final()


def late(*, begins: float = -1.0, expires_s: float = 1.0, at: float = 1.0, **fault: Any) -> Tell:
    """Return the story of a job that has expired, or that has begun."""

    def tell(s: Story) -> None:
        s.dispatch("j1", expires_s=expires_s)
        if begins >= 0.0:
            s.at += begins
            s.say("ack", p="a/1", nonce="Wa.1", job="j1", key="k", epoch=10)
            s.start("j1")
        if fault:
            s.fault(**fault)
        if at:
            s.at = at
            cause = {"word": "cancelled", "cause": "not started in time"}
            s.say("commit", job="j1", key="k", epoch=10, result="first", extra=cause)

    return tell


def replayed_twice(*, loss: bool) -> Tell:
    """Return the story of a letter that was made two jobs."""

    def tell(s: Story) -> None:
        for number, job in enumerate(("j2", "j3")):
            if number and loss:
                s.fault("loss")
            s.at += 1.0
            s.say("replayed", p="server", job=job, key="k", extra={"of": "j1"})
            s.commit(job, epoch=11 + number, extra={"word": "parked", "cause": "as planned"})
        s.final()

    return tell


good("I12")(replayed_twice(loss=True))
bad("I12")(replayed_twice(loss=False))


def made_and_gone(s: Story, *, loss: bool = False) -> None:
    s.say("replayed", p="server", job="j2", key="k", extra={"of": "j1"})
    if loss:
        s.at += 0.1
        s.fault("loss")
    s.final()


bad("I1")(made_and_gone)


good("I53")(late())
good("I53")(late(begins=0.9, at=0.0))
good("I53")(late(begins=0.9, does="loss"))  # that it had begun was lost
good("I53")(late(begins=2.5, at=0.0, does="step", step_s=-2.0))
bad("I53")(late(at=0.9))
bad("I53")(late(begins=0.9))
bad("I53")(late(begins=1.1, at=0.0))
bad("I53")(late(expires_s=0.0))


def after_an_outage(*, again: float) -> Tell:
    """Return the story of a step that a node may tell of which was answered once, and then again
    in each period.
    """

    def tell(s: Story) -> None:
        s.at = 1.0
        s.fault("clock", step_s=-9.0)
        renewed = [1.0, *(again + 0.4 * n for n in range(25) if again + 0.4 * n < 9.7)]
        for s.at in sorted([*renewed, 9.0]):
            if s.at == 9.0:
                s.dispatch("j1", expires_s=1.0)
            else:
                s.say("renew", p="a/1", nonce="Wa.1@", extra={"asked": s.at})
        s.at = 9.9
        cause = {"word": "cancelled", "cause": "not started in time"}
        s.say("commit", job="j1", key="k", epoch=10, result="first", extra=cause)

    return tell


good("I53")(after_an_outage(again=8.8))
bad("I53")(after_an_outage(again=1.4))


def ends_among_renewals(
    *renewed: float, dispatched: float, begun: float = 0.0, lost: float = 0.0
) -> Tell:
    """Return the story of a job with 0.5 s to begin: it does so then, or expires after 0.3 s."""

    def tell(s: Story) -> None:
        if lost:
            s.at = lost
            s.fault("loss", since=0.0)
        ends = begun or dispatched + 0.3
        for at in sorted((*renewed, dispatched, ends)):
            s.at = at
            if at == dispatched:
                s.dispatch("j1", expires_s=0.5)
            elif at != ends:
                s.say("renew", p="a/1", nonce="Wa.1@0", extra={"asked": s.at})
            elif begun:
                s.say("ack", p="a/1", nonce="Wa.1@0", job="j1", key="k", epoch=10)
            else:
                cause = {"word": "cancelled", "cause": "not started in time"}
                s.say("commit", job="j1", key="k", epoch=10, result="first", extra=cause)

    return tell


# A period is 0.4 s here.  A silent server keeps the call that says that a job begins.
good("I53")(ends_among_renewals(0.1, dispatched=0.2, begun=1.5))
bad("I53")(ends_among_renewals(0.1, 1.4, dispatched=0.2, begun=1.5))
bad("I53")(ends_among_renewals(0.1, 0.8, dispatched=0.2, begun=1.7))  # pool time had come to 0.8
# A node that has just come dispatches, and knows the time badly.
good("I53")(ends_among_renewals(0.1, 1.1, 1.5, dispatched=1.0, begun=1.9))
bad("I53")(ends_among_renewals(0.1, 0.9, 1.5, dispatched=1.0, begun=1.9))
good("I53")(ends_among_renewals(0.1, 0.9, 1.5, dispatched=1.0, begun=1.9, lost=0.95))
good("I53")(ends_among_renewals(0.1, dispatched=1.0))  # ... or takes what has expired
good("I53")(ends_among_renewals(0.1, dispatched=0.8))
bad("I53")(ends_among_renewals(0.1, 1.0, dispatched=0.8))


def not_begun(start_s: float, at: float = 1.0) -> Tell:
    """Return the story of a job that is given up because no worker had begun it."""

    def tell(s: Story) -> None:
        s.dispatch("j1", start_s=start_s)
        s.at = at
        cause = {"word": "parked", "cause": "timed out"}
        s.say("commit", job="j1", key="k", epoch=10, result="first", extra=cause)

    return tell


def not_begun_again(start_s: float, at: float = 1.0, *, goes_on: bool = False) -> Tell:
    """Likewise, after a worker that had begun it has handed it over; or while it still runs."""

    def tell(s: Story) -> None:
        s.dispatch("j1", start_s=start_s)
        s.at += 0.5
        s.start("j1", timeout_s=5.0)
        s.at += 0.5
        if not goes_on:
            s.end("j1", err="cancelled", effect=False)
        s.at += at
        cause = {"word": "parked", "cause": "timed out", "body": TOO_LONG["start"]}
        s.say("commit", job="j1", key="k", epoch=11, attempt=1, result="first", extra=cause)

    return tell


good("I31")(not_begun_again(1.0))
bad("I31")(not_begun_again(1.1))
bad("I31")(not_begun_again(1.0, goes_on=True))
good("I31")(not_begun(1.0))
bad("I31")(not_begun(0.0))
bad("I31")(not_begun(1.1))


# --- the tests -------------------------------------------------------------------------------


def _told(stories: dict[str, list[Tell]]) -> list[Any]:
    return [
        pytest.param(name, tell, id=f"{name}-{tell.__name__}")
        for name, tells in sorted(stories.items())
        for tell in tells
    ]


@pytest.mark.parametrize(("name", "tell"), _told(GOOD))
def test_a_good_history_is_judged_and_passes(name: str, tell: Tell) -> None:
    story = Story()
    tell(story)
    report = check(story.events, BOUNDS)
    assert report.ok, report.text(story.events)
    assert report.judged[name] > 0


@pytest.mark.parametrize(("name", "tell"), _told(BAD))
def test_a_bad_history_violates_its_invariant(name: str, tell: Tell) -> None:
    story = Story()
    tell(story)
    report = check(story.events, BOUNDS)
    assert name in report.broken, report.text(story.events)
    assert not report.ok
    assert f"{name} (" in report.text(story.events)


@pytest.mark.parametrize("asker_dies", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
def test_an_outcome_that_was_told_to_nobody_is_forgotten(asker_dies: bool, has_ended: bool) -> None:
    """In a soak outcomes are kept for seconds: only of one whose asker died none may be left."""
    s = Story()
    joined(s, "a", "b")
    s.dispatch("j1")
    s.start("j1")
    if has_ended:
        s.end("j1")
    s.at += 1.0
    if asker_dies:
        s.say("exit", p="d/1", result=-9)
    s.at += 60.0
    s.final()
    report = check(s.events, attrs.evolve(BOUNDS, keeps_outcomes=False))
    assert ("I1" not in report.broken) == (asker_dies and has_ended)


def test_every_invariant_has_been_seen_to_fire() -> None:
    """One without a bad history is no oracle."""
    assert set(BAD) == set(INVARIANTS)
    assert set(GOOD) == set(INVARIANTS)


def test_every_invariant_of_the_list_is_judged_or_named_as_not_yet() -> None:
    known = set(INVARIANTS) | set(NOT_YET)
    assert {f"I{number}" for number in range(1, 51)} <= known
    assert not set(INVARIANTS) & set(NOT_YET)


def test_a_history_comes_back_from_its_files_as_it_was(tmp_path: Path) -> None:
    """Files are merged by time; a last line that was cut off by a crash is left out."""
    clock = iter([3.0, 1.0, 2.0])
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_a = Recorder("a/1", file_sink(a), lambda: next(clock))
    write_b = Recorder("b/1", file_sink(b), lambda: next(clock))
    written = [
        write_a("start", key="k", attempt=0, result=False, extra={"x": [1]}),
        write_b("dispatch", "invoke", key="ключ", result=""),
        write_a("end", "fail", err="error"),
    ]
    with a.open("ab") as file:
        file.write(b'{"f":"st')
    history = load([a, b])
    assert [event.t for event in history] == [1.0, 2.0, 3.0]
    assert read(b)[0].key == "ключ"
    assert digest(history) == digest(merged([attrs.evolve(e, result=e.result) for e in written]))
    assert digest(history) != digest(history[:2])


def test_the_resource_refuses_an_epoch_below_one_it_has_seen() -> None:
    resource = FencedResource()
    assert [resource.takes("k", epoch) for epoch in (2, 2, 1, 3)] == [True, True, False, True]
    assert resource.takes("other", 1)


def test_effects_are_judged_in_the_order_of_their_file(tmp_path: Path) -> None:
    """A frozen handler may have read its clock long before its effect arrived."""
    path = tmp_path / "effects.jsonl"
    sink = file_sink(path)
    for t, epoch in ((5.0, 2), (1.0, 1)):
        sink(Event(n=1, t=t, p="a/1", type="info", f="effect", key="k", epoch=epoch))
    assert [(event.epoch, event.type) for event in load([path])] == [(1, "fail"), (2, "ok")]


@pytest.mark.slow
@pytest.mark.parametrize(("tell", "code"), [(a_quiet_day, 0), (two_owners_have_one_epoch, 1)])
def test_stored_files_are_judged_from_the_command_line(
    tmp_path: Path, tell: Tell, code: int
) -> None:
    story, path = Story(), tmp_path / "h.jsonl"
    tell(story)
    path.write_text("".join(event.line() + "\n" for event in story.events), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tests.verify.checker", "--json", "-b", "ttl_s=2", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["ok"] is (code == 0)


@pytest.mark.slow
def test_time_grows_with_the_history_alone(record_property: Callable[[str, object], None]) -> None:
    """Ten times the events take about ten times as long; the figure per million is reported."""
    took = {}
    for jobs in (2_000, 20_000):
        story = Story()
        for number in range(jobs):
            story.whole(f"j{number}", f"k{number % 1000}", epoch=10 + number)
        began = time.process_time()  # others may need the machine too
        report = check(story.events, BOUNDS)
        took[jobs] = (time.process_time() - began) / len(story.events)
        assert report.ok
    record_property("checker, s per million events", f"{took[20_000] * 1e6:.2f}")
    assert took[20_000] < 5 * took[2_000], "not linear"
