"""A node never believes in its lease longer than the server does (G-03)."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.lease import (
    Effect,
    Event,
    FenceLocally,
    Lease,
    Phase,
    Renewed,
    Resume,
    StopJobs,
    Tick,
    Timing,
)

TTL_S = 10.0


@attrs.frozen
class Rounded(Timing):
    """With a margin that makes rounder numbers."""

    margin_s: float = attrs.field(init=False, default=0.5)


LEASE = Lease(timing=Rounded(TTL_S), asked_s=0.0)  # soft 7.0, hard 9.5


def after(*events: Event, lease: Lease = LEASE) -> tuple[Lease, list[Effect]]:
    """Return the lease after all events, and the effects of the last one."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        lease, effects = lease.step(event)
    return lease, list(effects)


# --- one rule at a time ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now_s", "phase", "effects"),
    [
        (6.999, "held", []),
        (7.0, "stopping", [StopJobs(7.0)]),
        (9.499, "stopping", [StopJobs(9.499)]),
        (9.5, "fenced", [StopJobs(9.5), FenceLocally(9.5)]),  # a tick that came late
        (999.0, "fenced", [StopJobs(999.0), FenceLocally(999.0)]),
    ],
)
def test_silence_stops_jobs_then_fences(now_s: float, phase: Phase, effects: list[Effect]) -> None:
    lease, found = after(Tick(now_s))
    assert (lease.phase, found) == (phase, effects)


def test_each_edge_has_its_effect_once() -> None:
    assert after(Tick(7.0), Tick(8.0))[1] == []
    assert after(Tick(7.0), Tick(9.5))[1] == [FenceLocally(9.5)]
    assert after(Tick(7.0), Tick(9.5), Tick(99.0))[1] == []


def test_the_deadline_says_when_to_tick() -> None:
    held, stopping, fenced = after(Tick(0))[0], after(Tick(7.0))[0], after(Tick(9.5))[0]
    assert [held.deadline_s, stopping.deadline_s, fenced.deadline_s] == [7.0, 9.5, math.inf]


def test_a_renewal_counts_from_asking() -> None:
    lease, effects = after(Renewed(asked_s=2.0, now_s=4.0))
    assert (lease.soft_s, lease.hard_s, effects) == (9.0, 11.5, [])


def test_of_two_answers_the_later_asking_wins() -> None:
    first, second = Renewed(asked_s=2.0, now_s=5.0), Renewed(asked_s=3.0, now_s=5.0)
    assert after(first, second)[0] == after(second, first)[0]
    assert after(second, first)[0].asked_s == 3.0


@pytest.mark.parametrize("silence", [(7.0,), (7.0, 9.5), (9.5,), (9.5, 99.0)])
def test_a_renewal_resumes_what_silence_stopped(silence: tuple[float, ...]) -> None:
    """After an outage jobs go on where they were: nobody took them."""
    asked_s = silence[-1]
    ticks = [Tick(now_s) for now_s in silence]
    lease, effects = after(*ticks, Renewed(asked_s=asked_s, now_s=asked_s + 1))
    assert (lease.phase, effects) == ("held", [Resume()])
    assert lease.is_good(asked_s + 1)


@pytest.mark.parametrize("late_s", [7.0, 9.4, 9.5, 50.0])
def test_a_renewal_acted_upon_too_late_resumes_nothing(late_s: float) -> None:
    """Its handlers would have to stop at once, or others may own their keys already."""
    lease, effects = after(Tick(9.5), Renewed(asked_s=10.0, now_s=10.0 + late_s))
    assert (lease.phase, effects) == ("fenced", [])


def test_a_late_renewal_still_moves_the_fence() -> None:
    lease, effects = after(Tick(7.0), Renewed(asked_s=1.0, now_s=8.5))
    assert (lease.phase, effects, lease.deadline_s) == ("stopping", [], 10.5)


def test_an_older_answer_is_no_news_but_time_passes() -> None:
    lease, effects = after(Renewed(asked_s=5.0, now_s=6.0), Renewed(asked_s=4.0, now_s=12.0))
    assert (lease.asked_s, lease.phase, effects) == (5.0, "stopping", [StopJobs(7.0)])


def test_no_job_starts_late_although_no_tick_came() -> None:
    assert LEASE.is_good(6.999)
    assert not LEASE.is_good(7.0)
    assert not after(Tick(7.0))[0].is_good(1.0)


@given(st.floats(1.0, 3600.0))
def test_the_settings_make_a_lease(ttl_s: float) -> None:
    """Three renewals may fail before anything is stopped."""
    timing = Timing(ttl_s)
    lease = Lease(timing=timing, asked_s=0.0)
    assert 3 * timing.renew_s + timing.renew_timeout_s <= lease.soft_s + 1e-9
    assert lease.soft_s < lease.hard_s < ttl_s


# --- any sequence ---------------------------------------------------------------------------


@attrs.frozen
class Answer:
    """A renewal on its way: asked, granted by the server, acted upon by the node."""

    asked_s: float
    granted_s: float
    now_s: float

    @property
    def event(self) -> Event:
        return Renewed(asked_s=self.asked_s, now_s=self.now_s)


@st.composite
def answers(draw: st.DrawFn) -> list[Answer]:
    """Renewals in any order, slow ones among them, as the node acts upon them."""
    made = []
    asked_s = 0.0
    for _ in range(draw(st.integers(0, 12))):
        asked_s += draw(st.sampled_from([0.0, 0.5, 2.0, 2.0, 4.0, 6.0, 12.0]))
        granted_s = asked_s + draw(st.sampled_from([0.0, 0.1, 1.0, 6.9, 9.0]))
        now_s = granted_s + draw(st.sampled_from([0.0, 0.1, 1.0, 6.9, 9.0]))
        made.append(Answer(asked_s, granted_s, now_s))
    return sorted(made, key=lambda answer: answer.now_s)


@attrs.define
class Run:
    """A node that ticks when told to, and all that happened to it."""

    lease: Lease = LEASE
    effects: list[Effect] = attrs.field(factory=list)
    phases: list[tuple[float, Phase]] = attrs.field(factory=lambda: [(0.0, "held")])

    def step(self, event: Event) -> None:
        self.lease, effects = self.lease.step(event)
        self.effects.extend(effects)
        if self.lease.phase != self.phases[-1][1]:
            self.phases.append((event.now_s, self.lease.phase))

    def until(self, now_s: float) -> None:
        while self.lease.deadline_s <= now_s:
            self.step(Tick(self.lease.deadline_s))


def run_of(arriving: list[Answer]) -> Run:
    run = Run()
    for answer in arriving:
        run.until(answer.now_s)
        run.step(answer.event)
    run.until(1e9)
    return run


@given(answers())
def test_no_job_runs_when_the_server_may_have_fenced_us(arriving: list[Answer]) -> None:
    """At each moment with running jobs, the server's lease goes on for the margin at least."""
    run = run_of(arriving)
    ends = [*(moment for moment, _ in run.phases[1:]), math.inf]
    for (begin_s, phase), end_s in zip(run.phases, ends, strict=True):
        if phase in ("held", "stopping"):
            granted = [a.granted_s for a in arriving if a.now_s < end_s]
            lease_end_s = max([0.0, *granted]) + TTL_S
            assert begin_s <= end_s <= lease_end_s - LEASE.timing.margin_s


@given(answers())
def test_effects_come_in_their_order(arriving: list[Answer]) -> None:
    """Stop before fence, and resume only what was stopped."""
    is_stopped = is_fenced = False
    for effect in run_of(arriving).effects:
        match effect:
            case StopJobs():
                assert not is_stopped
                is_stopped = True
            case FenceLocally():
                assert is_stopped
                assert not is_fenced
                is_fenced = True
            case Resume():
                assert is_stopped
                is_stopped = is_fenced = False


@given(answers(), st.lists(st.floats(0.0, 60.0), max_size=20))
def test_the_machine_agrees_with_its_rule_at_all_times(
    arriving: list[Answer], looks_s: list[float]
) -> None:
    """Model: the newest asking decides, and only a newer one leads back, before its soft time."""
    lease, asked_s, phase = LEASE, 0.0, "held"
    events = [*(answer.event for answer in arriving), *map(Tick, looks_s)]
    for event in sorted(events, key=lambda event: event.now_s):
        now_s = event.now_s
        if isinstance(event, Renewed) and event.asked_s > asked_s:
            asked_s = event.asked_s
            if now_s < asked_s + 7.0:
                phase = "held"
        if now_s >= asked_s + 9.5 or phase == "fenced":
            phase = "fenced"
        elif now_s >= asked_s + 7.0:
            phase = "stopping"
        before, (lease, _) = lease, lease.step(event)
        assert lease.phase == phase
        assert lease.asked_s == asked_s >= before.asked_s  # monotone
        assert lease.is_good(now_s) == (phase == "held" and now_s < asked_s + 7.0)
        assert lease.phase == "fenced" or now_s < lease.hard_s  # never held past hard
        assert lease.deadline_s > now_s  # nothing left undone


# --- a lane whose TTL changes ---------------------------------------------------------------

LONG, MIDDLE, SHORT = Timing(10.0), Timing(4.0), Timing(1.0)


def told(asked_s: float, now_s: float, timing: Timing, term: int) -> Renewed:
    return Renewed(asked_s=asked_s, now_s=now_s, timing=timing, term=term)


def test_a_longer_ttl_counts_from_the_answer_that_grants_it() -> None:
    lease, _ = after(told(1.0, 1.1, LONG, 5), lease=Lease(timing=SHORT, asked_s=0.5))
    assert (lease.timing, lease.term, lease.hard_s) == (LONG, 5, 1.0 + 10.0 - LONG.margin_s)


def test_a_shorter_ttl_is_taken_up_from_an_answer_in_time() -> None:
    lease, effects = after(told(2.0, 2.1, SHORT, 5), lease=Lease(timing=LONG, asked_s=0.0))
    assert (lease.timing, lease.term, lease.phase, effects) == (SHORT, 5, "held", [])


def test_a_shorter_ttl_that_is_heard_of_late_stops_nobody() -> None:
    """The server keeps the longer lease for who has not said the new term."""
    before = Lease(timing=LONG, asked_s=0.0, term=1)
    lease, effects = after(told(2.0, 2.0 + SHORT.ttl_s, SHORT, 5), lease=before)
    assert (lease, effects) == (before, [])
    lease, effects = after(told(3.5, 3.6, SHORT, 5), lease=lease)
    assert (lease.timing, lease.term, effects) == (SHORT, 5, [])


def test_what_was_granted_before_the_change_is_worth_no_more_than_the_new_ttl() -> None:
    """Two answers may come in the other order."""
    lease = Lease(timing=SHORT, asked_s=2.0, term=5)
    lease, _ = after(told(2.2, 2.3, LONG, 4), lease=lease)
    assert (lease.timing, lease.term, lease.asked_s) == (SHORT, 5, 2.2)


@attrs.define
class Server:
    """What `renew.lua` and `ttl.lua` do with one lease."""

    timing: Timing = LONG
    term: int = 1
    end_s: float = 0.0

    def renew(self, now_s: float, term: int) -> tuple[Timing, int]:
        end_s = now_s + self.timing.ttl_s
        self.end_s = end_s if term == self.term else max(self.end_s, end_s)
        return self.timing, self.term

    def change(self, timing: Timing) -> None:
        if timing != self.timing:
            self.timing, self.term = timing, self.term + 1


@given(st.data())
def test_no_change_of_the_ttl_ends_a_lease_that_its_node_believes_in(data: st.DataObject) -> None:
    """G-03: whatever is lost, late, or overtaken; several changes, several renewals under way."""
    server, lease = Server(end_s=LONG.ttl_s), Lease(timing=LONG, asked_s=0.0, term=1)
    agenda: list[tuple[float, int, str, object]] = []
    delays = st.sampled_from([0.0, 0.01, 0.3, 0.3, 1.0, 2.5, 7.0, 12.0])
    moments = st.floats(0.0, 30.0)
    for number, asked_s in enumerate(sorted(data.draw(st.lists(moments, max_size=25)))):
        agenda.append((asked_s, number, "ask", None))
    for number, at_s in enumerate(data.draw(st.lists(moments, max_size=5))):
        timing = data.draw(st.sampled_from([LONG, MIDDLE, SHORT]))
        agenda.append((at_s, 1000 + number, "change", timing))
    count = 2000
    while agenda:
        agenda.sort(key=lambda each: each[:2])
        now_s, _, what, facts = agenda.pop(0)
        count += 1
        while lease.deadline_s <= now_s:
            lease, _ = lease.step(Tick(lease.deadline_s))
        match what, facts:
            case "ask", _:
                arrives_s = now_s + data.draw(delays)
                agenda.append((arrives_s, count, "arrive", (now_s, lease.term)))
            case "change", Timing() as timing:
                server.change(timing)
            case "arrive", (float() as asked_s, int() as term):
                answer = (asked_s, *server.renew(now_s, term))
                if not data.draw(st.booleans()):
                    agenda.append((now_s + data.draw(delays), count, "answer", answer))
            case "answer", (float() as asked_s, Timing() as timing, int() as term):
                lease, _ = lease.step(told(asked_s, now_s, timing, term))
        if lease.phase in ("held", "stopping"):
            assert now_s < lease.hard_s < server.end_s
