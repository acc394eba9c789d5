"""What all actors of one node share: world, store, lanes, and the local copy of who works.

Who writes: membership the generation, and which lane we are in under which name and lease; the
keepalive what renewals tell, and each step of a lease; executors `busy`.  Whoever has an answer
that tells the time, or how many keys are unassigned, notes it by a `tell_`.  All on the event loop:
the thread that renews writes `Door.shut` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs

from pool.core.lease import Lease, Timing
from pool.core.placement import Candidates
from pool.core.pooltime import PoolTime
from pool.errors import PoolError
from pool.jobs.meter import Meter
from pool.jobs.roster import Roster
from pool.jobs.trials import SPAN_S, SPAN_TTLS, Trials
from pool.names import key_hash, lane_of
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import Pulled
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import Clock
from pool.redis.commands.talk import Missing
from pool.redis.io.system import Loop
from pool.runtime.hang import Door
from pool.runtime.observers import JobListeners, Outages
from pool.runtime.session import Session

TARGETS_MAX = 64  # candidates of one key; when all of them are full, the key waits unassigned


@attrs.frozen
class Seen:
    """When a job was seen alive, by three clocks: the lane's stamp, ours, and the server's.

    It was accepted at that stamp or later.  `generation` is that of its lane's data then; empty:
    not known.  What was told as lost is lost for good, unless it is seen again.
    """

    stamp: int
    at_s: float
    server_ms: float
    generation: str = ""
    was_lost: bool = False  # who asked was told so

    def is_lost(self, missing: Missing, now_s: float, known_s: float, generation: str = "") -> bool:
        """Say whether a job that is not there is surely lost: its outcome would be known by now.

        The lane's data may have been made anew since: `generation` is that of the lane that says
        so.  Stamps alone do not show it: the new lane's are higher, once it has accepted a job.

        `known_s` is for how long outcomes are kept at least.  Nodes may differ in that, and it
        follows the server's clock: half of it, by that clock as well as by ours, is sure.
        """
        if self.was_lost or missing.stamp < self.stamp:
            return True  # the lane has gone back to before it was accepted
        if self.generation and generation not in ("", self.generation):
            return True  # its data went with all others
        for_s = max(now_s - self.at_s, (missing.now_ms - self.server_ms) / 1000)
        return for_s < known_s / 2


@attrs.define(eq=False)
class LaneState:
    """One lane as this node stands in it."""

    number: int
    lane: Lane
    node: Target
    lease: Lease
    door: Door = attrs.field(factory=Door)
    is_followed: bool = False  # its journal takes all edges of some jobs
    is_silent: bool = False  # was asked when somebody left, and has not been heard since
    stamp: int = 0  # as its last renewal told
    highest: int = 0  # stamp or epoch of the lane that we have seen, in any generation
    floor: int = 0  # what that was when our last read failed: see `is_of_older_data()`
    heard_ms: int = 0  # pool time of our last renewal, if somebody vouched for it
    server_ms: int = 0  # pool time, as of ...
    server_at_s: float = 0.0  # ... this moment of our own clock
    clock_ms: float = 0.0  # likewise, the server's own clock: for calls that must not come late
    clock_at_s: float = 0.0
    time: PoolTime = attrs.field(factory=PoolTime)

    def tell_time(self, server_ms: int, now_s: float) -> None:
        """Note what pool time is: to wake in time, never to decide (G-08)."""
        self.server_ms, self.server_at_s = server_ms, now_s

    def see(self, stamp: int) -> None:
        """Note a stamp of the lane, or an epoch; the lane's own must never fall below it."""
        if stamp > self.highest:
            self.highest = stamp

    def break_off(self) -> None:
        """Note that a read failed: what answers next may have gone back to older data."""
        self.floor = self.highest

    def is_of_older_data(self, epoch: int) -> bool:
        """Say whether an epoch that was not read before may be lower than its key had one.

        Until we have renewed our lease there, who came first is granted such epochs.  Or it was
        granted just before the read that failed: granting that anew costs little, either.
        """
        return epoch < self.floor

    def lose(self, now_s: float) -> None:
        """Note that the lane's data are lost: others had epochs that we have not seen.

        A stamp is pool time, or one more than the last; so none of them is higher than both.
        """
        if self.server_ms:
            self.see(math.ceil(1000 * self.now_ms(now_s)))
        self.heard_ms = 0

    def tell_clock(self, clock_ms: float, now_s: float) -> None:
        """Note what the server's own clock says."""
        self.clock_ms, self.clock_at_s = clock_ms, now_s

    def hear(self, clock: Clock, asked_s: float, now_s: float) -> float:
        """Take an answer's time; return by how much the server's clock has stepped, if it tells.

        That is when pool time has been set right: seconds, forward above 0.
        """
        before, period_s = self.time, self.lease.timing.renew_s
        raw_ms, offset_ms, turn = clock.raw_ms, clock.offset_ms, clock.turn
        self.time = before.heard(
            raw_ms,
            offset_ms,
            turn,
            asked_s,
            now_s,
            period_s,
            is_astray=clock.is_astray,
            told_ms=clock.told_ms,
            is_late=clock.is_late,
            witnessed_ms=clock.witnessed_ms,
        )
        self.tell_clock(raw_ms - offset_ms, asked_s)
        is_news = before.at_ms and turn > before.turn
        return (before.off_ms or before.offset_ms - offset_ms) / 1000 if is_news else 0.0

    def seen(self, asked_s: float, stamp: int = 0, *, generation: str = "") -> Seen:
        """Return what we know of a job that an answer said is there.

        `asked_s` is when we asked, `generation` that of the call: it is refused under any other.
        """
        return Seen(stamp or self.stamp, asked_s, self.now_ms(asked_s), generation)

    def now_ms(self, now_s: float) -> float:
        """Return what pool time is at a moment of our own clock."""
        return self.server_ms + 1000 * (now_s - self.server_at_s)

    def until_s(self, server_ms: float, now_s: float) -> float:
        """Return how long it is until the server's clock will say so."""
        return (server_ms - self.server_ms) / 1000 - (now_s - self.server_at_s)


@attrs.define(eq=False, kw_only=True)
class Context(Session):
    """The shared part of one node."""

    loop: Loop
    node: Any  # the `Node` itself, for handlers
    node_id: str
    jobs: JobListeners | None = None  # who is told of ordinary jobs
    lanes: list[LaneState] = attrs.field(factory=list)
    roster: Roster = attrs.field(factory=Roster)
    # key -> run: a key never starts here while an earlier handler of it still runs in this process
    busy: dict[str, Any] = attrs.field(factory=dict)
    trials: Trials = attrs.field(init=False)
    meter: Meter | None = None  # counts what goes by
    outages: Outages = attrs.field(init=False)
    # lane -> how many keys are unassigned, where some are, as of the last answer that told
    unassigned: dict[int, int] = attrs.field(init=False, factory=dict)
    # lanes where keys are unassigned and the last pull was given none: they are for others
    barren: set[int] = attrs.field(init=False, factory=set)
    # a script answered that the data of this lane are not there; it may be an answer of before
    on_data_lost: Callable[[int], object] = attrs.field(default=lambda _: None)
    on_interrupt: Callable[[KeyboardInterrupt], object] = attrs.field(default=lambda _: None)
    on_due: Callable[[int, float], object] = attrs.field(default=lambda *_: None)

    @trials.default
    def _first_trials(self) -> Trials:
        io = self.io
        return Trials(io.dice, io.clock(), lambda: min(SPAN_S, SPAN_TTLS * self.timing.ttl_s))

    @outages.default
    def _first_outages(self) -> Outages:
        return Outages(self.emit, self.io.clock, is_apart=self.url.kind == "cluster")

    def trouble(self, during: str, lane: int | None, error: PoolError) -> None:
        """Tell that a call of ours failed, which is tried again; see `Outages`."""
        self.outages.trouble(during, lane, error)

    def tell_unassigned(self, lane: int, keys: int) -> None:
        """Note how many keys wait in a lane for a worker with room; negative: none is for us."""
        if keys > 0:
            self.unassigned[lane] = keys
        elif lane in self.unassigned:
            del self.unassigned[lane]

    def tell_pulled(self, lane: int, pulled: Pulled, *, goes_on: bool = False) -> None:
        """Note what a pull left there.

        The lane counts the keys of all handlers.  After a pull that was given none of them, the
        settlements ask whether one is for us (`barren`), and only then we pull again.  That count
        hides nothing: the settlement that frees a slot looks in the same step, so a key that was
        there before is reported, and one that comes later finds the slot and is granted directly.
        Whoever does not know us yet leaves its key behind; a lost answer says nothing.  Both end
        with the next answer or renewal: a renewal counts all keys, and leads to one pull.
        """
        if pulled.granted:
            self.barren.discard(lane)
        elif pulled.left:
            self.barren.add(lane)
        self.tell_unassigned(lane, pulled.left if pulled.granted or goes_on else 0)

    def retime(self) -> float | None:
        """Go by the shortest TTL of our lanes; return the one of before, None if it is the same.

        Lanes differ while a change is carried out, and after one that did not reach them all.
        """
        before, after = self.timing, min((s.lease.timing for s in self.lanes), key=_by_ttl)
        self.timing = after
        return before.ttl_s if before != after else None

    @property
    def candidates(self) -> Candidates:
        """Who may be given keys."""
        return self.roster.candidates

    def lane_of(self, key: str) -> LaneState:
        """Return the lane of a key."""
        return self.lanes[lane_of(key, len(self.lanes))]

    def targets(
        self,
        key: str,
        handler: str,
        *,
        lane: int,
        limit: int = TARGETS_MAX,
        but: str = "",
        left: Collection[str] = (),
    ) -> tuple[Target, ...]:
        """Return the workers for a key, the one that should have it first, without `but`.

        `left` are workers whose programs cannot read its arguments: neither they get it nor others
        of the same process or of the same version.
        """
        if left:
            none = {but, *self.roster.like(left)}
            known = self.candidates
            everybody = known.ranked(key_hash(key), handler, len(known.workers))
            return self.as_targets([w for w in everybody if w not in none], lane)[:limit]
        candidates = self.roster.candidates
        ranked = candidates.few(handler)
        if ranked is None:
            ranked = candidates.ranked(key_hash(key), handler, limit + bool(but))
        if but:
            ranked = tuple([w for w in ranked if w != but][:limit])
        found = self.as_targets(ranked, lane)
        return found if len(found) == len(ranked) else self._wider(key, handler, lane, limit, but)

    def _wider(self, key: str, handler: str, lane: int, limit: int, but: str) -> tuple[Target, ...]:
        """Return the same where some of the first have not joined the lane, which is rare."""
        asked = limit + bool(but)
        while True:
            asked *= 2
            ranked = self.candidates.ranked(key_hash(key), handler, asked)
            found = self.as_targets([w for w in ranked if w != but], lane)
            if len(found) >= limit or len(ranked) < asked:
                return found[:limit]

    def as_targets(self, workers: Sequence[str], lane: int) -> tuple[Target, ...]:
        """Return these workers under their names in a lane."""
        known = self.candidates.workers
        if len(workers) == 1:  # as for nearly each dispatch
            candidate = known[workers[0]]
            return (Target(candidate.id, candidate.numbers[lane]),) if candidate.is_in(lane) else ()
        here = slice(lane, lane + 1)
        return tuple([Target(w, n) for w in workers for n in known[w].numbers[here] if n])


def _by_ttl(timing: Timing) -> float:
    return timing.ttl_s


class Ranks:
    """Collects the targets of a batch, so that each is declared once and named by its place."""

    def __init__(self) -> None:
        self._places: dict[Target, int] = {}
        self._known: dict[tuple[Target, ...], tuple[int, ...]] = {}  # what was asked for before

    def of(self, targets: tuple[Target, ...]) -> tuple[int, ...]:
        """Return the places of one item's targets, the first choice first."""
        found = self._known.get(targets)
        if found is None:
            places = self._places
            found = tuple([places.setdefault(target, len(places) + 1) for target in targets])
            self._known[targets] = found
        return found

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets, in their places."""
        return tuple(self._places)
