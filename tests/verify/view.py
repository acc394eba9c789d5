"""A history, looked at once and put in order, so that each invariant is one short pass."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import attrs

from pool.core.crash_marks import LOOP_GAPS, ROUND_GAPS, ROUND_S
from pool.jobs.trials import (
    LIVED_S,
    OLD_S,
    SPAN_S,
    SPAN_TRIALS,
    SPAN_TTLS,
    TRIAL_GROWTH,
    TRIAL_S,
)
from pool.names import key_of, pair
from tests.verify.history import Event

STARVED_S: Final = 0.25  # waited between two looks, which are half a second apart
APART_S: Final = 0.75  # two waits with more between them do not belong together
TERMINAL_ERRORS: Final = frozenset({"POOLPARKED", "POOLCANCELLED", "POOLSUPERSEDED", "POOLTOOLATE"})
EXPIRED: Final = "POOLEXPIRED"  # says that a job has ended only where that may be forgotten
LOST: Final = "POOLJOBLOST"  # ... or has been lost, and then only this is to be said
STOPS: Final = frozenset({"crash", "leave", "pause", "stubborn", "cut", "clock", "loss"})
# A step of the server's clock that pool time takes back: it ends no lease, and ends no wait early.
STEP: Final = "step"
_REACH: Final = 1.75  # renewal periods from one answer that the lease clock runs for
STEP_S: Final = 1.0  # a smaller one is no step, but the time
DISTURBS: Final = STOPS | {"store", "drop", STEP}
ENDS: Final = frozenset({"crash", "leave"})  # of these, those that only end processes
# Nobody is answered, and then everybody: lease time stands still meanwhile, see `lib/lease.lua`.
SILENCES: Final = frozenset({"stall", "lane-stall", "silences"})
CUTS_OFF: Final = frozenset({"partition", "requests-lost", "replies-lost"})  # nothing gets through
# Its lease goes on, or may: who is short of processors still runs now and then.
HANGS: Final = frozenset(
    {"hang", "block", "observer", "block-loop", "hold-gil", "starve", "starved"}
)
# ... and here it surely does: its node renews from a thread.
LOOP_HANGS: Final = frozenset({"hang", "block", "observer"})


@attrs.frozen(kw_only=True)
class Bounds:
    """How long what may take in this run, and what the history itself does not tell."""

    ttl_s: float = 10.0
    queue_s: float = 10.0  # how long a job may wait behind others, beside all other bounds
    attempts_max: int = 5
    backoff_max_s: float = 60.0
    limit_s: float = 30.0  # the longest run-time limit of any handler
    grace_s: float = 10.0
    op_timeout_s: float = 2.0
    slots: int = 0  # of each process; 0: more than are needed
    crashes_max: int = 3  # more deaths than that give a job up
    suspects_s: float = 5.0  # beyond B, for all that one of them may have ended its process
    slack_s: float = 0.25  # what a busy machine may add to anything
    keeps_outcomes: bool = True  # longer than the run lasts
    longest_s: float = 15.0  # half of a retry window: a call on a line that moves takes no longer
    call_s: float = 20.0  # how long any call may take whose deadline the history does not tell

    def deaths_at_once(self, jobs: int) -> int:
        """How many processes one of so many jobs ends that kills at once, in processes that are
        young: it is suspected after the first, and after each further one by log2 of a span of half
        a TTL by a trial of 0.06 s, less 0.3 bits.
        """
        bits = math.log2(max(0.5, min(5.0, self.ttl_s / 2)) / 0.06) - 0.3
        needed = math.ceil((math.log2(1_000_000 * max(1, jobs)) + 1.1) / bits)
        return 1 + max(self.crashes_max, needed)

    def span_s(self, before: int) -> float:
        """Over how long a young process spreads a suspect that was one so many times before."""
        longer: int = min(TRIAL_GROWTH ** min(8, before), round(LIVED_S / TRIAL_S))
        return max(min(SPAN_S, SPAN_TTLS * self.ttl_s), SPAN_TRIALS * longer * TRIAL_S)

    @property
    def margin_s(self) -> float:
        """By how much a node stops before its lease ends."""
        return max(0.05, 0.035 * self.ttl_s)

    @property
    def renew_s(self) -> float:
        """How often a node renews; within this a cancellation reaches a handler."""
        return self.ttl_s / 5

    @property
    def stop_budget_s(self) -> float:
        """How long a cancelled handler may take to end."""
        return self.ttl_s / 4

    @property
    def reap_s(self) -> float:
        """What a reaper that dies adds to a takeover."""
        return max(0.5, self.ttl_s / 4)

    @property
    def leaving_s(self) -> float:
        """How long a node may take to leave while lanes are away: each step waits for these."""
        return self.grace_s + self.stop_budget_s + 7 * self.op_timeout_s

    @property
    def takeover_s(self) -> float:
        """B: from a crash to the start elsewhere (G-06)."""
        return self.ttl_s + 1.0

    @property
    def quiet_s(self) -> float:
        """Within this after `heal` every job must have ended."""
        attempts_s = self.attempts_max * (self.limit_s + self.backoff_max_s)
        return self.takeover_s + self.reap_s + attempts_s + self.queue_s


@attrs.define(eq=False)
class Run:
    """One start of a handler, and its end; `ended` is infinite while it goes on."""

    start: Event
    end: Event | None = None
    ended: float = math.inf  # its end, or that of its process


@attrs.frozen(kw_only=True)
class Fault:
    """A fault, from when to when."""

    kind: str
    does: str
    target: str
    weight: int
    began: float
    ended: float
    event: Event
    lane: str = ""  # it is for; empty: for all
    since: float = -math.inf  # of a loss: as of when the data are that came back

    @property
    def is_end(self) -> bool:
        """Whether its node is gone from the moment when it began, as far as others see."""
        is_still = self.does == "pause" and self.kind not in HANGS
        return self.does == "crash" or is_still or self.kind in CUTS_OFF


@attrs.frozen(kw_only=True)
class Commit:
    """One accepted settlement, from the store's own account or from the final dump."""

    key: str
    job: str
    word: str
    epoch: int
    attempt: int
    nonce: str
    order: float
    event: Event
    cause: str = ""


def _window_s(bounds: Bounds) -> float:
    return 2 * bounds.renew_s + STEP_S


def _step_s(fault: Fault, most_s: float) -> float:
    return min(abs(float(fault.event.extra.get("step_s", most_s))), most_s)


def _at(event: Event) -> float:
    return event.t


@attrs.define(eq=False, kw_only=True, slots=False)
class View:
    """What invariants look at."""

    events: Sequence[Event]
    of: Mapping[str, Sequence[Event]]  # by f
    runs: Sequence[Run]  # in the order of starts
    by_key: Mapping[str, Sequence[Run]]
    by_job: Mapping[str, Sequence[Run]]
    accepted: Mapping[str, Event]  # job -> its dispatch ok; by its id, or see `_named_apart`
    invoked: Mapping[str, Event]  # idem -> its dispatch invoke
    faults: Sequence[Fault]
    died: Mapping[str, float]  # process -> when it had ended
    process: Mapping[str, str]  # nonce, and nonce without its number -> process
    lives: Sequence[tuple[float, float]]  # of processes that take jobs: joined, ended
    lives_of: Mapping[str, Sequence[tuple[float, float]]]  # ... by node
    grants: Mapping[str, Sequence[Event]]  # key -> own
    lanes: Mapping[str, str]  # key -> lane
    stalls: tuple[Sequence[float], Sequence[float]]  # when told, and how long altogether until then
    settled: Sequence[Commit]  # what the store accepted, as it was recorded at that moment
    outcomes: Mapping[str, Commit]  # job id -> what the final dump says
    ended: Mapping[str, float]  # job id -> when it had ended, by the best account there is
    final: Event | None
    healed: float
    lost: float  # when data were last lost; what was accepted before may be gone

    @classmethod
    def of_events(cls, events: Sequence[Event], bounds: Bounds) -> View:
        """Put a history in order; the events come by time."""
        events = _named_apart(events)
        of: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            of[event.f].append(event)
        died = {event.p: event.t for event in of["exit"]}
        runs, process = _runs(of, died)
        by_key: dict[str, list[Run]] = defaultdict(list)
        by_job: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            by_key[run.start.key].append(run)
            by_job[run.start.job].append(run)
        faults = _faults(of["fault"])
        faults += _starved(of["stall"], bounds)
        final = of["final_state"][-1] if of["final_state"] else None
        lives: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in of["join"]:
            if event.extra.get("worker"):
                lives[event.node].append((event.t, died.get(event.p, math.inf)))
        grants: dict[str, list[Event]] = defaultdict(list)
        for event in of["own"]:
            grants[event.key].append(event)
        lanes = {
            event.key: event.nonce.rpartition("@")[2]
            for event in (*of["own"], *of["start"])
            if "@" in event.nonce
        }
        accepted: dict[str, Event] = {}
        for event in of["dispatch"]:
            if event.type == "ok":
                accepted.setdefault(event.job, event)
        losses = [fault.ended for fault in faults if fault.does == "loss"]
        first = (e for e in of["commit"] if e.type == "ok" and e.result != "repeat")
        settled = [_settled(event) for event in first]
        outcomes = _outcomes(final, accepted, by_job, {c.job: c.order for c in reversed(settled)})
        return cls(
            events=events,
            of=of,
            runs=runs,
            by_key=by_key,
            by_job=by_job,
            accepted=accepted,
            invoked={e.idem: e for e in of["dispatch"] if e.type == "invoke"},
            faults=faults,
            died=died,
            process=process,
            lives=[life for each in lives.values() for life in each],
            lives_of=lives,
            grants=grants,
            lanes=lanes,
            stalls=_stalls(of["stall"], faults),
            settled=settled,
            outcomes=outcomes,
            ended=_ended(
                [e for e in of["result"] if _says_ended(e, accepted, losses, bounds)],
                outcomes,
                settled,
            ),
            final=final,
            healed=of["heal"][-1].t if of["heal"] else math.inf,
            lost=max(losses, default=-math.inf),
        )

    def excuses(
        self, does: Collection[str], began: float, ended: float, node: str = "", lane: str = ""
    ) -> list[Fault]:
        """Return the faults of these kinds in effect within a time; on this node, or on any."""
        return [
            fault
            for fault in self.faults
            if fault.does in does
            and fault.began <= ended
            and fault.ended >= began
            and (not node or fault.target in ("", node))
            and (not lane or fault.lane in ("", lane))
        ]

    def hurts(
        self,
        does: Collection[str],
        began: float,
        ended: float,
        nodes: Collection[str],
        lane: str = "",
    ) -> list[Fault]:
        """Return the faults of these kinds within a time that the server had, or these nodes."""
        found = self.excuses(does, began, ended, lane=lane)
        return [fault for fault in found if not fault.target or fault.target in nodes]

    def stepped_s(self, began: float, ended: float, bounds: Bounds, lane: str = "") -> float:
        """Return by how much steps of the server's clock may change what is waited for.

        Each by two renewal periods and 1 s, and by no more than itself.
        """
        most_s = _window_s(bounds)
        found = self.excuses({"clock", STEP}, began - most_s, ended)
        return self.stood_s(began, bounds, lane) + sum(_step_s(f, most_s) for f in found)

    def turn(self, job: str, dispatch: Event) -> float:
        """Return when a job's turn came: when it was accepted, or the last one before it ended."""
        if dispatch.extra.get("policy") in (None, "attach"):
            return dispatch.t
        runs = self.by_job.get(job, ())
        start = runs[0].start.t if runs else math.inf
        others = [j for j, ok in self.accepted.items() if ok.key == dispatch.key and j != job]
        ends = [self.ended.get(other, math.inf) for other in others]
        # Also of those whose dispatcher never heard that they were accepted.
        ends += [at for at, other in self._ends.get(dispatch.key, ()) if other != job]
        return max((end for end in ends if end <= start), default=0.0)

    def asked_for(self, dispatch: Event) -> float:
        """Return when a job was asked for: by a call, or by the end of the one that it follows."""
        before = self._followed.get(dispatch.idem)
        asked = self.invoked.get(dispatch.idem, dispatch).t
        return min(asked, self.ended.get(before, asked)) if before is not None else asked

    @cached_property
    def _followed(self) -> Mapping[str, str]:
        """What was asked for by the ends of jobs, with the ids of those."""
        jobs = {event.idem: job for job, event in self.accepted.items()}
        follows = ((e.idem, jobs.get(e.extra["of"])) for e in self.of.get("follow", ()))
        return {token: job for token, job in follows if job is not None}

    @cached_property
    def _ends(self) -> Mapping[str, Sequence[tuple[float, str]]]:
        ends: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for commit in self.settled:
            ends[commit.key].append((commit.order, commit.job))
        return ends

    def stood_s(self, began: float, bounds: Bounds, lane: str) -> float:
        """Return by how much steps of before may, as long as nobody could have set them right.

        Those after which no node of the lane was answered for longer than a period: they stand
        together until two periods after the first that was; what is no step for pool time, because
        it is less than 1 s, until that first answer.  Likewise a step that had been told, if the
        answers broke off within the three periods in which one is measured, claimed and settled.
        And those whose settlement was lost, with data.
        """
        most_s, heard = _window_s(bounds), self._heard.get(lane, ())
        stood = [
            fault
            for fault in self.excuses({"clock", STEP}, -math.inf, began - most_s)
            if self._is_undone(fault, began, most_s)
            or (
                (at := bisect_right(heard, fault.began)) < len(heard)
                and heard[at] > fault.began + bounds.renew_s
                and heard[at] + (most_s if fault.does == STEP else 0.0) >= began
            )
            or (fault.does == STEP and self._is_unsettled(fault, began, bounds, heard))
        ]
        return min(sum(_step_s(fault, most_s) for fault in stood), most_s)

    def _is_unsettled(
        self, step: Fault, began: float, bounds: Bounds, heard: Sequence[float]
    ) -> bool:
        """Say whether the answers broke off before a step can have been settled, until now."""
        at = bisect_right(heard, step.began)
        told = heard[at] if at < len(heard) else math.inf
        end = bisect_right(heard, max(step.began + 3 * bounds.renew_s, told + 2 * bounds.renew_s))
        return any(
            after > before + _REACH * bounds.renew_s and after + _window_s(bounds) >= began
            for before, after in pairwise(heard[at : end + 1])
        )

    def _is_undone(self, step: Fault, began: float, most_s: float) -> bool:
        """Say whether data came back that had not got over a step: that begins anew, then."""
        return any(
            step.began < loss.began and loss.since < step.began + most_s
            for loss in self.excuses({"loss"}, began - most_s, began)
        )

    def is_misled(self, event: Event) -> bool:
        """Say whether the end of a wait that this names may be off by a whole step of the clock.

        Who says it joined the lane behind the step, and of those who had seen it nobody had been
        heard yet, or that was lost with data; but somebody was afterwards
        (docs/how-to/operating.md, Clocks).  Who fires a schedule is not told: any of the lane may.
        """
        lane = self.lane_of(event.key)  # untold of what nobody ever had: then any will do
        return any(self._misled_in(event, name) for name in ([lane] if lane else self._answered))

    def _misled_in(self, event: Event, lane: str) -> bool:
        knows: dict[str, float] = {}  # when each was answered first, of data not lost since
        answered = self._answered.get(lane, ())
        lost = self.excuses({"loss"}, -math.inf, event.t, lane=lane)
        for at, p in answered:
            if not any(loss.since <= at <= loss.ended for loss in lost):
                knows.setdefault(p, at)
        for fault in self.excuses({STEP}, -math.inf, event.t):
            losses = self.excuses({"loss"}, fault.began, event.t, lane=lane)
            saw = (
                at
                for at, p in answered
                if knows.get(p, math.inf) < fault.began < at
                and not any(loss.since < at <= loss.began < event.t for loss in losses)
            )
            settled = (at for at in self._settled(fault, lane) if at > fault.began)
            heard = min(next(saw, math.inf), next(settled, math.inf))
            who = [event.p] if event.p in knows else knows
            if any(fault.ended < knows[p] < event.t for p in who) and event.t < heard < math.inf:
                return True
        return False

    def _settled(self, step: Fault, lane: str) -> list[float]:
        """Return when somebody said in a lane that a step, or more, was taken back."""
        least_s = abs(step.event.extra.get("step_s", 0.0)) / 2
        return sorted(
            event.t
            for event in self.of.get("event", ())
            if event.extra.get("event") == "clock.stepped"
            and str(event.extra.get("lane")) == lane
            and abs(event.extra.get("step_s", 0.0)) >= least_s
        )

    @cached_property
    def _answered(self) -> Mapping[str, Sequence[tuple[float, str]]]:
        """When which processes were answered that joined, or renewed; by lane, if that is told."""
        answered: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for event in sorted((*self.of.get("join", ()), *self.of.get("renew", ())), key=_at):
            if "@" in event.nonce:
                answered[event.nonce.rpartition("@")[2]].append((event.t, event.p))
        return answered

    @cached_property
    def _heard(self) -> Mapping[str, Sequence[float]]:
        return {lane: [at for at, _ in told] for lane, told in self._answered.items()}

    @cached_property
    def _renewed(self) -> Mapping[str, tuple[list[float], list[float]]]:
        """When renewals of a lane were answered, and when the latest of those until then had been
        asked for.  A join renews nothing in the store.
        """
        joined = {(event.nonce, event.t) for event in self.of.get("join", ())}
        renewed: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], [-math.inf]))
        for event in self.of.get("renew", ()):
            if event.type == "ok" and (event.nonce, event.t) not in joined:
                answered, asked = renewed[event.nonce.partition("@")[2]]
                answered.append(event.t)
                asked.append(max(asked[-1], event.extra.get("asked", event.t)))
        return renewed

    def _renewal(self, by: float, lane: str) -> float:
        """Return when the latest renewal was asked for that a lane had answered by a time."""
        lanes = {"", lane} if lane else {*self._renewed}
        told = (self._renewed[name] for name in lanes if name in self._renewed)
        latest = (asked[bisect_right(answered, by)] for answered, asked in told)
        return max(latest, default=-math.inf)

    def vouches(self, began: float, ended: float, bounds: Bounds, lane: str) -> bool:
        """Say whether a renewal vouched for pool time all that time: it was answered before, and
        less than two periods had passed since it was asked for, and no data were lost since.

        Else pool time may stand, or is what the caller of a script expects (`lib/lane.lua`,
        `lib/expected.lua`).  True where renewals are not told.
        """
        ttls = (float(event.extra["s"]) for event in self.of.get("ttl", ()))
        since = ended - 0.4 * min(bounds.ttl_s, *ttls, math.inf)
        losses = self.excuses({"loss"}, since, ended, lane=lane)
        since = max(since, *(loss.ended for loss in losses), -math.inf)
        return not self.of.get("renew") or self._renewal(began, lane) >= since

    def reached(self, at: float, bounds: Bounds, lane: str) -> float:
        """Return how far pool time had come by then at least, if no step of a clock stands: it
        never goes back behind the last renewal, whoever calls.
        """
        return at if self.vouches(at, at, bounds, lane) else self._renewal(at, lane)

    def unseen(self, began: float, ended: float, bounds: Bounds, lane: str) -> list[Fault]:
        """Return the steps within a time that nobody saw in a lane; any lane, if it is untold.

        And one forward of just before it that nobody could have settled yet, as nobody of the lane
        was answered in between.  Where it is not told who was heard, there are none.
        """
        if not self.of.get("renew"):
            return []
        heard = self._heard.get(lane, ())
        stood = [
            fault
            for fault in self.excuses({STEP}, -math.inf, began)
            if lane
            and fault.ended < began
            and fault.event.extra.get("step_s", 0.0) > 0.0
            and bisect_right(heard, fault.began) == bisect_right(heard, began)
            and not self.excuses({"loss"}, fault.began, began, lane=lane)
        ]
        found = self.excuses({STEP}, began, ended) + stood
        return [fault for fault in found if not self._is_seen(fault, bounds, lane)]

    def _is_seen(self, step: Fault, bounds: Bounds, lane: str) -> bool:
        """Say whether a process was heard in a lane before a step, and soon enough after it.

        What it asked before the lane lost all it had told it another time than the lane has now.
        Who came to a lane where nobody was left knows its time after two periods: then a process
        that was there before the step is too late to tell of it.
        """
        losses = self.excuses({"loss"}, -math.inf, step.began, lane=lane)
        made = max((loss.ended for loss in losses if loss.since == -math.inf), default=-math.inf)
        heard: dict[str, tuple[float, float]] = {}
        back: dict[str, float] = {}  # when it was heard first after the step
        for event in sorted(self.of["renew"], key=_at):
            is_here = not lane or event.nonce.partition("@")[2] in ("", lane)
            if is_here and event.extra.get("asked", event.t) > made:
                heard[event.p] = (heard.get(event.p, (event.t, 0.0))[0], event.t)
                if event.t > step.began:
                    back.setdefault(event.p, event.t)
        known = step.began - 2 * bounds.renew_s
        too_late = min(back.values(), default=math.inf) + 2 * bounds.renew_s
        return any(
            first < step.began < last
            and back[p] <= too_late
            and (first <= known or any(f < first < at for f, at in heard.values()))
            for p, (first, last) in heard.items()
        )

    def well(self, began: float, ended: float, but: str = "") -> set[str]:
        """Return the nodes that took jobs all that time, and that nothing happened to."""
        nodes = {
            node
            for node, lives in self.lives_of.items()
            if node != but and any(joined <= began and end > ended for joined, end in lives)
        }
        return nodes - {fault.target for fault in self.excuses(DISTURBS, began, ended)}

    def due_by(
        self,
        since: float,
        wait_s: float,
        bounds: Bounds,
        *,
        involved: Callable[[float], Collection[str]],
        but: str = "",
        lane: str = "",
        keeps: Callable[[Fault], bool] = lambda _: True,
        readers: Collection[str] = (),
        owners: Collection[str] = (),
    ) -> float:
        """Return by when something must have happened that takes `wait_s` if nothing disturbs it.

        Each fault of the server begins it anew when it is over, and so does one of a node that had
        it in hand (`involved`, until a time): at once, if others must then see that the node is
        gone, or that its loop hangs (unless it `keeps` its keys then).  Only while no node is well
        that could have it, any node's fault counts.  Where only some nodes can read a job
        (`readers`), no other one could have it, and nobody serves it before one of these is there.
        `owners` are the processes that had it: of one that died the lease must have ended first.
        """
        wait_s += self.unvouched_s(since, bounds, lane)
        by = self.served_from(since, bounds.slack_s, readers) + wait_s
        while by < math.inf:
            faults = self.excuses(DISTURBS, since - bounds.ttl_s, by, lane=lane)
            found = [
                fault
                for fault in faults
                # What made it wait may itself be there as a fault.
                if abs(fault.began - since) > bounds.slack_s or not but or fault.target != but
            ]
            well, hands = self.well(since - bounds.ttl_s, by, but), involved(by)
            if well.intersection(readers or well):
                ends = [
                    fault.began
                    if fault.target and (fault.is_end or (fault.kind in HANGS and not keeps(fault)))
                    else fault.ended
                    for fault in found
                    if not fault.target or fault.target in hands
                ]
            else:
                if not any(
                    joined <= by and end > since
                    for node, lives in self.lives_of.items()
                    for joined, end in lives
                    if node != but
                ):  # it is the only one, and goes on when it is back
                    found = [f for f in faults if f in found or f.does != "crash"]
                ends = [self.served_from(f.ended, bounds.slack_s, readers) for f in found]
            # What waits anew waits for what was not set right by then, too.
            again = max((e + self.stood_s(e, bounds, lane) for e in ends), default=-math.inf)
            again += wait_s + bounds.reap_s
            dead = [died for owner in owners if (died := self.died.get(owner, math.inf)) <= by]
            # Who is cut off for longer than its lease is as good as dead to the others.
            dead += [f.began for f in found if f.is_end and f.does == "cut" and f.target in hands]
            leases = (self.leased_until(died, by, bounds, lane) for died in dead)
            again = max(again, max(leases, default=-math.inf) + wait_s - bounds.ttl_s)
            if again <= by:
                return by
            by = again
        return by

    def unvouched_s(self, since: float, bounds: Bounds, lane: str) -> float:
        """Return by how much leases last longer because the TTL was changed while nobody had been
        answered for so long that nobody vouched for the time: a window of each TTL.
        """
        window_s, heard = 2 * bounds.renew_s, self._heard.get(lane, ())
        for change in self.of.get("ttl", ()):
            at = bisect_right(heard, change.t - window_s)
            before = heard[at - 1] if at else -math.inf
            after = heard[at] if at < len(heard) else math.inf
            is_old = after > before + window_s
            if change.extra["lane"] == lane and is_old and after + window_s > since:
                return 2 * window_s
        return 0.0

    @cached_property
    def _vain(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """When somebody asked a lane for renewals in vain, and nobody else was answered."""
        vain: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in self.of.get("vain", ()):
            lane = event.extra["lane"]
            heard, _ = self._renewed.get(lane, ([], []))
            before = heard[bisect_left(heard, event.t) - 1] if heard[:1] < [event.t] else -math.inf
            began = max(before, event.t - event.extra["first_s"])
            vain[lane].append((began, event.t - event.extra["last_s"]))
        return vain

    def leased_until(self, died: float, by: float, bounds: Bounds, lane: str) -> float:
        """Return when the lease of a process that died then had surely ended in a lane.

        That is a TTL of lease time after its death, or after data were lost until `by`, which may
        bring the lease back.  Lease time surely runs only between renewals that follow each other
        soon enough (`lib/lease.lua`), while nobody asks for one in vain (`lib/silence.lua`), and
        while no step of the clock stands.  If it did not run at some time since a TTL before, the
        lease may have been granted from two periods ahead: while nobody vouched for the time.
        """
        window_s = 2 * bounds.renew_s
        losses = [fault.ended for fault in self.excuses({"loss"}, died, by, lane=lane)]
        since, is_ahead = max((died, *losses)), bool(losses)
        left_s = bounds.ttl_s + window_s * is_ahead
        times, vain = [-math.inf, *self._renewed.get(lane, ([], []))[0]], self._vain.get(lane, ())
        for before, after in pairwise(times[bisect_right(times, since - bounds.ttl_s) - 1 :]):
            is_broken = after > before + _REACH * bounds.renew_s
            if is_broken or self._stands(after, bounds, lane):
                left_s, is_ahead = left_s + window_s * (not is_ahead), True
            elif after >= since + left_s:
                break
            else:
                left_s -= max(
                    0.0, after - since - sum(_within(since, after, *each) for each in vain)
                )
            since = max(since, after)
        return since + left_s

    def ran_s(self, began: float, ended: float, bounds: Bounds, lane: str) -> float:
        """Return for how long pool time surely ran within a time: while the lane answered, with no
        longer break than the lease clock bridges (`lib/lease.lua`), and no step of the server's
        clock may have stood; all of it, if that is untold.
        """
        heard = self._heard.get(lane, ())
        if not heard:
            return ended - began
        known = heard[max(0, bisect_left(heard, began) - 1) : bisect_right(heard, ended) + 1]
        return sum(
            max(0.0, min(after, ended) - max(before, began))
            for before, after in pairwise(known)
            if after - before <= _REACH * bounds.renew_s and not self._stands(after, bounds, lane)
        )

    def is_lease_clock_running(self, began: float, ended: float, bounds: Bounds, lane: str) -> bool:
        """Say whether the lease clock of a lane surely ran with pool time, all that time.

        So it did if processes ended and nothing else happened, the TTL became no shorter, and the
        renewals left no longer break than the lease clock bridges (`lib/lease.lua`).  Behind such a
        break leases are granted ahead of time, until a worker of before it renews.
        """
        ttls = (e for e in self.of.get("ttl", ()) if e.extra["lane"] == lane)
        is_shorter = any(began <= e.t <= ended and e.extra["s"] < e.extra["before_s"] for e in ttls)
        heard = self._heard.get(lane, ())
        known = heard[max(0, bisect_left(heard, began) - 1) : bisect_right(heard, ended) + 1]
        return (
            not is_shorter
            and not self.excuses(DISTURBS - ENDS, began, ended, lane=lane)
            and not self.stood_s(ended, bounds, lane)
            and all(after - before <= _REACH * bounds.renew_s for before, after in pairwise(known))
        )

    def _stands(self, at: float, bounds: Bounds, lane: str) -> bool:
        """Say whether pool time may stand still then, as a step of the clock is not settled yet."""
        recent = self.excuses({STEP}, at - _window_s(bounds), at, lane=lane)
        return bool(recent) or self.stood_s(at, bounds, lane) > 0.0

    def alive(self, run: Run, by: float) -> float:
        """Return when the owner of a run was last known to be alive: when its lease was renewed."""
        renewals = (e.t for e in self.of.get("renew", ()) if e.nonce == run.start.nonce)
        return max((at for at in renewals if at <= by), default=by)

    def by_silences(self, run: Run, since: float, wait_s: float, bounds: Bounds) -> float:
        """Return by when what died must have been taken over, where the server only fell silent.

        That is the wait, and the time in which it was silent since; once more, a reaper whose call
        was under way when that began.  Infinite where anything else happened.
        """
        lane = self.lane_of(run.start.key)
        wait_s += self.unvouched_s(since, bounds, lane)
        by = since + wait_s
        readers = self.readers(run.start.job)
        while True:
            found = self.excuses(DISTURBS, since - bounds.ttl_s, by, lane=lane)
            silences = [fault for fault in found if fault.kind in SILENCES]
            others = [
                fault
                for fault in found
                if fault.kind not in SILENCES
                and not (fault.target == run.start.node and fault.began <= since + bounds.slack_s)
            ]
            well = self.well(since - bounds.ttl_s, by, run.start.node)
            if others or not well.intersection(readers or well):
                return math.inf
            later = since + wait_s + (bounds.reap_s if silences else 0.0)
            later += sum(max(0.0, min(f.ended, by) - max(f.began, since)) for f in silences)
            if later <= by:
                return later
            by = later

    def granted(self, key: str, began: float, ended: float) -> set[str]:
        """Return the nodes to which a key was granted within a time; all, if that is not told."""
        if not self.grants:
            return {*self.lives_of}
        return {
            self.process_of(event.nonce).partition("/")[0]
            for event in self.grants.get(key, ())
            if began <= event.t <= ended
        }

    def acknowledged(self, key: str, began: float, ended: float, node: str) -> bool:
        """Say whether a node acknowledged a start of a key within a time, if that is told."""
        return any(
            event.key == key and began <= event.t <= ended
            for event in self.of.get("ack", ())
            if self.process_of(event.nonce).partition("/")[0] == node
        )

    def free_s(self, began: float, ended: float, bounds: Bounds) -> float:
        """Return the longest stretch, within a time, in which some process had a slot free."""
        longest = 0.0
        left = {event.p: event.t for event in self.of.get("leave", ()) if event.type == "invoke"}
        for p in {event.p for event in self.of.get("join", ())}:
            joined = min(event.t for event in self.of["join"] if event.p == p)
            since, until = (
                max(began, joined),
                min(ended, self.died.get(p, ended), left.get(p, ended)),
            )
            changes: list[tuple[float, int]] = []
            for run in self.runs:
                if run.start.p == p and run.start.t < until and run.ended > since:
                    changes += ((max(since, run.start.t), 1), (run.ended, -1))
            taken = 0
            for at, change in (*sorted(changes), (until, 0)):
                if taken < bounds.slots:
                    longest = max(longest, min(at, until) - since)
                taken += change
                since = at
        return longest

    def full_s(self, began: float, ended: float, bounds: Bounds) -> float:
        """Return for how long, within a time, all slots were taken of all processes that were well.

        Zero where nobody was, or the number of slots is not told.
        """
        if not bounds.slots:
            return 0.0
        joined: dict[str, float] = {}
        left = {event.p: event.t for event in self.of.get("leave", ()) if event.type == "invoke"}
        for event in self.of.get("join", ()):
            joined.setdefault(event.p, event.t)
        runs: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            if run.start.t < ended and run.ended > began:
                runs[run.start.p].append(run)
        held = [each for each in self._held if each[1] < ended and each[2] > began]
        hurt = self.excuses(DISTURBS, began, ended)
        changes = {began, *(t for run in self.runs for t in (run.start.t, run.ended))}
        changes |= {t for _, *times in held for t in times}
        changes |= {t for fault in hurt for t in (fault.began, fault.ended)} | {*joined.values()}
        changes |= {*self.died.values(), *left.values()}
        times = [*sorted(t for t in changes if began <= t < ended), ended]
        spans = {p: [(run.start.t, run.ended) for run in runs[p]] for p in joined}
        for p, at, left_at in held:
            spans.setdefault(p, []).append((at, left_at))
        began_at = {p: sorted(at for at, end in each if at < end) for p, each in spans.items()}
        ended_at = {p: sorted(end for at, end in each if at < end) for p, each in spans.items()}
        total = 0.0
        for since, until in pairwise(times):
            away = {fault.target for fault in hurt if fault.began <= since < fault.ended}
            there = [
                p
                for p, at in joined.items()
                if at <= since < min(self.died.get(p, math.inf), left.get(p, math.inf))
                and p.partition("/")[0] not in away
            ]
            if there and all(
                bisect_right(began_at[p], since) - bisect_right(ended_at[p], since) >= bounds.slots
                for p in there
            ):
                total += until - since
        return total

    @cached_property
    def _held(self) -> list[tuple[str, float, float]]:
        """Which process kept a slot, from when to when, for a suspect that had yet to begin."""
        held = []
        for grants in self.grants.values():
            for at, grant in enumerate(grants):
                if self.deaths_with(grant.key, grant.job, grant.t):
                    left = [e.t for e in grants[at + 1 : at + 2]]
                    left.append(self.ended.get(grant.job, math.inf))
                    left += [
                        run.start.t
                        for run in self.by_job.get(grant.job, ())
                        if run.start.epoch == grant.epoch
                    ]
                    held.append((self.process_of(grant.nonce), grant.t, min(left)))
        return held

    def deaths_with(self, key: str, job: str, by: float) -> int:
        """Return how many processes died until then to which a job was granted."""
        return sum(at < by for at in self._deaths(key, job))

    def last_death(self, start: Event, since: float, by: float) -> float:
        """Return when the last process died that had a job, from then until then."""
        return max((at for at in self._deaths(start.key, start.job) if at <= by), default=since)

    def _deaths(self, key: str, job: str) -> Iterator[float]:
        aboard = self._granted.get((key, job), set()) | {
            run.start.p for run in self.by_job.get(job, ())
        }
        return (self.died.get(p, math.inf) for p in aboard)

    @cached_property
    def _granted(self) -> Mapping[tuple[str, str], set[str]]:
        """The processes to which a job of a key was granted."""
        granted: dict[tuple[str, str], set[str]] = defaultdict(set)
        for key, grants in self.grants.items():
            for grant in grants:
                granted[key, grant.job].add(self.process_of(grant.nonce))
        return granted

    @cached_property
    def _came(self) -> dict[str, float]:
        """When each process was there, as far as that is told."""
        came: dict[str, float] = {}
        for event in self.of.get("boot", ()):
            came[event.p] = min(event.t, came.get(event.p, math.inf))
        return came

    def late_s(self, start: Event, by: float, bounds: Bounds) -> float:
        """Return how much later a suspect of a death then may begin, as somebody is young."""
        is_young = any(came + OLD_S > by for came in self._came.values())
        return bounds.span_s(self.deaths_with(start.key, start.job, by)) if is_young else 0.0

    def lane_of(self, key: str) -> str:
        """Return the lane of a key, as far as a grant or a start has told it."""
        return self.lanes.get(key, "")

    def loses(self, began: float, ended: float, key: str = "") -> bool:
        """Say whether data were lost within a time that this key may have been among."""
        return bool(self.excuses({"loss"}, began, ended, lane=self.lane_of(key) if key else ""))

    def slack_s(self, began: float, ended: float, bounds: Bounds) -> float:
        """Return what the machine may add to what should end then: threads were ready to run, and
        waited so long for a processor.
        """
        told, total = self.stalls
        waited = total[bisect_right(told, ended + bounds.slack_s)] - total[bisect_left(told, began)]
        return bounds.slack_s + waited

    def coin_s(self, run: Run) -> float:
        """Return for how long a coin held a job back after the death of this run's process; where
        the store's account is not told, for how long it may have.
        """
        if not self.of.get("requeue"):
            return self._round_s(self.died.get(run.start.p, run.end.t if run.end else math.inf))
        return self._coin_s(run.start.job, lambda e: e.epoch == run.start.epoch)

    def unbegun_coin_s(self, job: str, since: float, until: float) -> float:
        """Likewise of a job that whoever died then had acknowledged, whether or not it began it."""
        return self._coin_s(job, lambda e: since <= e.t <= until)

    def _round_s(self, at: float) -> float:
        """Return how long a round is at most after a death, if deaths come so fast (DESIGN 2)."""
        times = sorted(died for died in self.died.values() if died <= at)[-LOOP_GAPS[1] - 1 :]
        gaps = [later - before for before, later in pairwise(times)]
        return min(ROUND_S, ROUND_GAPS * max(gaps)) if len(gaps) >= LOOP_GAPS[0] else 0.0

    def _coin_s(self, job: str, is_meant: Callable[[Event], bool]) -> float:
        moved = (e for e in self.of.get("requeue", ()) if e.job == job and is_meant(e))
        return max((float(e.extra.get("coin_s", 0.0)) for e in moved), default=0.0)

    def waited_s(self, process: str, began: float, ended: float) -> float:
        """Return how long this process was ready to run then, and waited for a processor."""
        told = (e for e in self.of.get("stall", ()) if began - APART_S <= e.t <= ended + APART_S)
        return sum((float(e.extra["waited"].get(process, 0.0)) for e in told), 0.0)

    def is_gone(self, dispatch: Event) -> bool:
        """Say whether what this dispatch accepted may have been lost with the server's data."""
        asked = self.invoked.get(dispatch.idem, dispatch)
        lane = self.lane_of(dispatch.key)
        return any(
            fault.since <= dispatch.t
            and asked.t <= fault.ended
            and (not lane or fault.lane in ("", lane))
            for fault in self.faults
            if fault.does == "loss"
        )

    def is_forgotten(self, run: Run) -> bool:
        """Say whether the server's data came back, before this run began, as of before its job was
        accepted, and the server knew no more of it: its start had been read before that.
        """
        job, key = run.start.job, run.start.key
        if (dispatch := self.accepted.get(job)) is None:
            return False
        granted = max((e.t for e in self.grants.get(key, ()) if e.job == job), default=math.inf)
        losses = self.excuses({"loss"}, dispatch.t, run.start.t, lane=self.lane_of(key))
        return any(f.since <= dispatch.t and granted <= f.ended <= run.start.t for f in losses)

    def is_undone(self, commit: Commit, by: float) -> bool:
        """Say whether the server's data came back, until then, as of before this commit."""
        losses = self.excuses({"loss"}, commit.order, by, lane=self.lane_of(commit.key))
        return any(f.since <= commit.order <= f.ended for f in losses)

    def process_of(self, nonce: str) -> str:
        """Return the process of an owner's identity; empty if it never said who it is.

        An identity is a worker and a number that rises when it joins again, in the same process.
        """
        return self.process.get(nonce) or self.process.get(nonce.rpartition(".")[0], "")

    def served_from(self, at: float, slack_s: float, readers: Collection[str] = ()) -> float:
        """Return from when on some process was there to take jobs, of these nodes if there are any;
        who dies now does not count.
        """
        if not self.lives:
            return at
        of_readers = (life for node in readers for life in self.lives_of.get(node, ()))
        lives = [*of_readers] if readers else self.lives
        if any(joined <= at and ended > at + slack_s for joined, ended in lives):
            return at
        return min((joined for joined, _ in lives if joined > at), default=math.inf)

    def readers(self, job: str) -> Sequence[str]:
        """Return the nodes that can read a job; none: all can."""
        dispatch = self.accepted.get(job)
        return dispatch.extra.get("readers", ()) if dispatch else ()

    @property
    def commits(self) -> Sequence[Commit]:
        """What was settled, by the store's account at the time or else by the final dump."""
        return self.settled or list(self.outcomes.values())


def _named_apart(events: Sequence[Event]) -> Sequence[Event]:
    """Give each job a name of its own: an id is its key's, and may be that of a job of each of
    several keys.  A schedule that was lost, and is made again for another key while the clock is
    set back, comes to the same times, of which it makes the same ids.
    """
    keys: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.f == "dispatch" and event.type == "ok":
            keys[event.job].add(event.key)
    several = {job: of for job, of in keys.items() if len(of) > 1}

    def name(key: str, job: str) -> str:
        return pair(key, job) if key in several.get(job, ()) else job

    def named(event: Event) -> Event:
        job, idem, extra = name(event.key, event.job), name(event.key, event.idem), event.extra
        if event.f == "final_state":
            jobs, outcomes = extra.get("jobs", {}), extra.get("outcomes", {})
            jobs = {n: [name(key_of(n), each), *more] for n, (each, *more) in jobs.items()}
            outcomes = {name(said.get("key", ""), each): said for each, said in outcomes.items()}
            extra = {**extra, "jobs": jobs, "outcomes": outcomes}
        elif (job, idem) == (event.job, event.idem):
            return event
        return attrs.evolve(event, job=job, idem=idem, extra=extra)

    return [named(event) for event in events] if several else events


def id_of(name: str) -> str:
    """Return the id of a job, of which there may be one of another key."""
    return name.partition(" ")[0]


def _runs(
    of: Mapping[str, Sequence[Event]], died: Mapping[str, float]
) -> tuple[list[Run], dict[str, str]]:
    process: dict[str, str] = {}
    for event in of.get("join", ()):
        process[event.nonce] = process[event.nonce.rpartition(".")[0]] = event.p
    runs, going = [], {}
    for event in of.get("start", ()):
        run = Run(event, None, died.get(event.p, math.inf))
        process.setdefault(event.nonce, event.p)
        runs.append(run)
        going[event.p, event.extra.get("run", (event.job, event.epoch))] = run
    for event in of.get("end", ()):
        number = event.p, event.extra.get("run", (event.job, event.epoch))
        if (ended := going.pop(number, None)) is not None:
            ended.end, ended.ended = event, event.t
    return runs, process


def _stalls(
    events: Iterable[Event], faults: Sequence[Fault]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return when stalls were told, and the sum of the longest ones until before each of them.

    A node that is starved or stands still is a fault of its own, and does not count twice.
    """
    pauses: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        if fault.does == "pause":
            pauses[fault.target].append(fault)
    told, total = [], [0.0]
    for event in events:
        longest = 0.0
        for p, waited in event.extra["waited"].items():
            hurt = pauses[p.partition("/")[0]]
            if not any(f.began <= event.t and f.ended >= event.t - waited - 0.5 for f in hurt):
                longest = max(longest, waited)
        told.append(event.t)
        total.append(total[-1] + longest)
    return told, total


def _starved(events: Iterable[Event], bounds: Bounds) -> Iterator[Fault]:
    """Yield as faults what the machine did: a process waited for more than half of the time, for
    half a lease or longer.  The driver is everybody's network, and the server is the server.
    """
    stretches: dict[str, tuple[float, Event, float]] = {}  # since when, first and last told

    def told(p: str) -> Iterator[Fault]:
        began, first, ended = stretches.pop(p)
        node = p.partition("/")[0]
        if ended - began >= bounds.ttl_s / 2:
            yield Fault(
                kind="starved",
                does={"driver": "cut", "server": "store"}.get(node, "pause"),
                target="" if node in ("driver", "server") else node,
                weight=1 + int((ended - began) / (bounds.ttl_s / 2)),
                began=began,
                ended=ended,
                event=first,
            )

    for event in events:
        waited = {p: s for p, s in event.extra["waited"].items() if s >= STARVED_S}
        for p, (_, _, ended) in list(stretches.items()):
            # The driver may have been starved too, and have looked late.
            if event.t - waited.get(p, 0.0) - ended > APART_S or p not in waited:
                yield from told(p)
        for p, seconds in waited.items():
            began, first, _ = stretches.get(p, (event.t - seconds, event, 0.0))
            stretches[p] = began, first, event.t
    for p in list(stretches):
        yield from told(p)


def _faults(events: Iterable[Event]) -> list[Fault]:
    over = {event.extra["id"]: event.t for event in events if event.type != "invoke"}
    return [
        Fault(
            kind=event.extra["kind"],
            does=STEP if abs(event.extra.get("step_s", 0.0)) > STEP_S else event.extra["does"],
            target=event.extra.get("target", ""),
            weight=event.extra.get("weight", 1),
            began=event.t,
            ended=over.get(event.extra["id"], math.inf),
            event=event,
            lane=str(event.extra.get("lane", "")),
            since=event.extra.get("since", -math.inf),
        )
        for event in events
        if event.type == "invoke"
    ]


def _settled(event: Event) -> Commit:
    return Commit(
        key=event.key,
        job=event.job,
        word=event.extra.get("word", "done"),
        epoch=event.epoch,
        attempt=event.attempt,
        nonce=event.nonce,
        order=event.t,
        event=event,
        cause=event.extra.get("cause", ""),
    )


def _outcomes(
    final: Event | None,
    accepted: Mapping[str, Event],
    by_job: Mapping[str, Sequence[Run]],
    settled: Mapping[str, float],
) -> dict[str, Commit]:
    if final is None:
        return {}
    now_ms = final.extra.get("now_ms", 0)
    outcomes = {}
    for job, said in final.extra.get("outcomes", {}).items():
        known: Any = accepted.get(job) or (by_job[job][0].start if by_job.get(job) else None)
        outcomes[job] = Commit(
            key=known.key if known else "",
            job=job,
            word=said["word"],
            epoch=said["epoch"],
            attempt=said["attempt"],
            nonce=said["owner"],
            # The server's clock may have jumped since: what was recorded at the time is better.
            order=settled.get(job, final.t - (now_ms - said["ended_ms"]) / 1000),
            event=final,
            cause=said.get("cause", ""),
        )
    return dict(sorted(outcomes.items(), key=lambda item: (item[1].order, item[1].epoch)))


def _says_ended(
    event: Event, accepted: Mapping[str, Event], losses: Sequence[float], bounds: Bounds
) -> bool:
    """Say whether an answer tells that its job has ended.

    Outcomes that are kept for longer than the run expire only when they are lost; whoever says so
    of another one has lost the job.
    """
    if event.err not in (EXPIRED, LOST):
        return event.type == "ok" or event.err in TERMINAL_ERRORS
    dispatch = accepted.get(event.job)
    was_lost = dispatch and any(dispatch.t <= lost <= event.t for lost in losses)
    return bool(was_lost) or (event.err == EXPIRED and not bounds.keeps_outcomes)


def _ended(
    results: Iterable[Event], outcomes: Mapping[str, Commit], settled: Sequence[Commit]
) -> dict[str, float]:
    ended = {event.job: event.t for event in results}
    for job, outcome in outcomes.items():
        ended[job] = min(outcome.order, ended.get(job, math.inf))
    ended.update({commit.job: commit.order for commit in reversed(settled)})
    return ended


def _within(began: float, ended: float, since: float, until: float) -> float:
    """Return how long of one time lies within another."""
    return max(0.0, min(ended, until) - max(began, since))
