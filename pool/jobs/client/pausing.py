"""What operators ask for from anywhere: pauses, cordons and drains.

Paused means accepted, never granted.  What stands where:

    `workers`   !paused ...   who, since when, why, and `order`: each node has a copy
    each lane   paused        what all that grants asks (lib/pause.lua); of a key in its own lane
                paused_at     the highest order of a pause of anything there, and of a resume

A decision is written into the map first, by comparing: so those about the same are in one order,
each with a higher number than the one before.  Only then lanes are told, by number:

    no entry --pause: compare and set--> paused, N --each lane: N--> so it stays
       ^                                    |  ^
       |                    resume: compare |  | pause: likewise
       |                                    v  |
       +--compare and delete, once each lane has answered-- over, N + 1 --each lane: N + 1-->

A lane that was told later refuses: it is BEHIND.  Then the entry is looked at: another decision
stands there, and that one counts (`is_overtaken`), or it is ours still, as what the lane had been
told was about something else, and it gets a number above that one's and is told anew.  So of two at
once the last one in the map wins in the map and in every lane.  A late copy of a call is as a
repeat of its decision: it changes nothing, or is refused.

Whoever dies after any step, or meets a lane that does not answer, leaves map and lanes apart.  Who
does it again, either way, completes it; and nodes do by themselves: each compares its copy with
what lanes say at renewals (`fleet/heeding.py`), and what is apart for two of them in a row is
settled: what the entry says is carried out; where there is none, as a resume.  So a lane that was
away is told when it is back.  Meanwhile `doctor` tells it.

Nodes see the entry go, and pull at once in all lanes: what waited goes on in its order.  Where that
is lost on the way, or a lane was away, the next renewal tells that keys wait.  What grants asks the
lane in its own script: so a grant is before a pause, and goes on as what runs does, or behind it,
and leaves its job unassigned.  So does what takes over from the dead, retries, and comes of delays,
lines, other lanes, schedules and letters: all of that is made, and waits.  Times to begin by go on
counting.  A service that runs is not moved to a better place meanwhile; one that its worker gives
up waits.

A lane that lost its data is paused again by the step that makes it anew (join.lua), as its maker's
copy of `workers` says: before that it grants nothing, as it is not there.  Of a pool that was lost
as a whole, who makes it anew writes what was asked for first.  What remains is what the maker has
not heard of: a pause, or a resume, of the moment before.  Of a lane that is settled as above.

A cordon is an entry alone:

    !cordon ID --the node's copy--> it takes 0 keys, which each of its renewals says anew, then its
                                    entry in `workers`, which is how others know
               --is_drain---------> it drains, as when it is told to end; as a client it stays

So no renewal opens it again, and one that does not hear goes on: who cordons waits for the entries
of the workers, and tells of those that do not say so.  A cordon's entry goes when it is taken back,
when its node leaves, or when none of those meant is in the map any more: nodes see to that with
their renewals, and so does the next cordon.

What operators may ask of a pool from any of its nodes; see `pausing.py` for how that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, TypeAlias

import anyio
import attrs

from pool import checks
from pool.core.pauses import (
    HANDLERS_PAUSED_MAX,
    KEYS_PAUSED_MAX,
    REASON_MAX,
    Asked,
    Cordon,
    Pause,
    is_asked,
    lanes_of,
    parse,
)
from pool.errors import InvalidOption, NoSuchMember, PoolError, TooManyPaused, shown
from pool.jobs.roster import WorkerEntry
from pool.maps.commands import StoredMap
from pool.maps.deltas import (
    CompareAndDelete,
    CompareAndSet,
    Delete,
    Op,
    Set,
    SetIfNotExists,
    Value,
    WriteResult,
)
from pool.names import WORKERS, Control, Names, check_handler, check_key
from pool.redis.commands.lane import Lane
from pool.redis.commands.pausing import PauseTold
from pool.redis.pipeline import Pipeline

Verb: TypeAlias = Literal["pause", "resume"]
LOOK_S, LOOK_MAX_S = 0.02, 1.0  # between two looks whether a cordon has been heard
HEARD_S: Final = 10.0  # by then it has been, or its node does not hear
_STALE_MAX: Final = 64  # entries of those who are gone, taken away at once
_MOVES_MAX: Final = 8  # handlers that a key may have had, one after another, while it is asked


@attrs.frozen(kw_only=True)
class PauseReport:
    """What became of pausing or resuming; do it again if it is not complete.

    `lanes` were to be told; `missed` names those that were not reached, and why: they go on as
    before, until a node reaches them.  `is_overtaken` says that somebody has decided otherwise
    meanwhile, and that this counts.  Resuming what nobody had paused has a `pause` of `since_ms` 0;
    `others` are the pauses that stand beside it, and may keep some of its jobs.
    """

    pause: Pause
    lanes: int
    missed: Mapping[int, str]
    is_overtaken: bool = False
    others: tuple[Pause, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether it counts, and every lane was reached."""
        return not (self.missed or self.is_overtaken)


@attrs.frozen(kw_only=True)
class CordonReport:
    """Which workers are meant, and which of them have not said yet that they heard it.

    `kept` is what goes on closing some of those that were uncordoned: a cordon of their node, or of
    a worker of that node alone.  Uncordoning who was not has a `cordon` of `since_ms` 0.
    """

    cordon: Cordon
    workers: tuple[str, ...]
    unheard: tuple[str, ...]
    kept: Cordon | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all have heard it, and nothing else closes them."""
        return not self.unheard and self.kept is None


@attrs.frozen
class _Entries:
    """The `workers` map at a moment."""

    asked: Asked
    workers: tuple[WorkerEntry, ...]

    def of(self, member: str) -> tuple[WorkerEntry, ...]:
        """Return a worker, or all of a node."""
        return tuple(each for each in self.workers if member in (each.id, each.node))


def named(handler: object, key: object) -> Pause:
    """Return what is meant by the arguments of a call."""
    if handler is not None and key is not None:
        problem = "name a handler or a key, not both"
        raise InvalidOption(option="key", value=shown(key), problem=problem)
    if handler is not None:
        check_handler(handler)
    if key is not None:
        check_key(key)
    assert handler is None or isinstance(handler, str)
    assert key is None or isinstance(key, str)
    return Pause(handler=handler, key=key)


def stored_reason(reason: object) -> str:
    """Return a reason as the pool stores it: shortened, and with nothing that cannot be sent."""
    # What cannot be sent, such as half of a pair, is not worth refusing a pause for.
    return checks.text("reason", reason)[:REASON_MAX].encode(errors="replace").decode()


@attrs.frozen(kw_only=True)
class Operator:
    """Carries it out, for a node or for the command line."""

    pipeline: Pipeline
    control: Control
    generation: str
    lanes: int
    by: str  # who asks
    known: Callable[[], Asked] | None = None  # a copy of what was asked for; None: there is none

    # --- pausing --------------------------------------------------------------------------------

    async def pauses(self) -> tuple[Pause, ...]:
        """Return what is paused, the oldest first."""
        asked = (await self._entries()).asked
        return tuple(sorted(asked.pauses.values(), key=lambda each: each.since_ms))

    async def pause(self, pause: Pause, reason: str) -> PauseReport:
        """Grant nothing of it any more; again it completes what was begun."""
        await self._check_room(pause)
        now_ms = await self._now_ms()
        wanted = attrs.evolve(pause, since_ms=now_ms, by=self.by, reason=stored_reason(reason))

        def paused(before: Pause | None) -> Pause | None:
            return wanted if before is None or before.is_over else None

        return await self._carry_out(await self._decide(pause, paused, now_ms))

    async def resume(self, pause: Pause) -> PauseReport:
        """Grant it again, where nothing else keeps it; again it completes what was begun."""

        def over(before: Pause | None) -> Pause | None:
            is_over = before is not None and before.is_over
            return None if is_over else attrs.evolve(before or pause, is_over=True)

        stands = (await self._asked()).pauses.values()
        others = tuple(each for each in stands if each.what != pause.what and not each.is_over)
        report = await self._carry_out(await self._decide(pause, over, await self._now_ms()))
        return attrs.evolve(report, others=others)

    async def settle(self, pause: Pause) -> PauseReport:
        """Have the lanes do as the entry says; where there is none, as after a resume."""

        def over(before: Pause | None) -> Pause | None:
            return None if before is not None else attrs.evolve(pause, is_over=True)

        return await self._carry_out(await self._decide(pause, over, await self._now_ms()))

    async def _decide(
        self, pause: Pause, wanted: Callable[[Pause | None], Pause | None], now_ms: int
    ) -> Pause:
        """Write what is wanted in the place of what stands, if it is another; return what does."""
        text: bytes | None = None
        before: Pause | None = None
        while True:
            after = wanted(before)
            if after is None:
                assert before is not None
                return before
            order = max(now_ms, before.order + 1 if before is not None else 0)
            after = attrs.evolve(after, order=order)
            text = await self._swap(pause.entry, text, after.pack())
            if text == after.pack():
                return after
            before = _entry_of(pause, text)

    async def _swap(self, entry: bytes, old: bytes | None, new: bytes) -> bytes | None:
        """Write the entry if it is the old one, None for none; return what stands there then."""
        op = SetIfNotExists(entry, new) if old is None else CompareAndSet(entry, old, new)
        [told] = (await self._write(op)).outcomes
        return new if told.is_met else told.previous

    async def _carry_out(self, decided: Pause) -> PauseReport:
        """Tell the lanes of what stands in the map, by a number that none is ahead of."""
        while True:
            report, ahead = await self._tell(decided)
            if not ahead:
                break
            later = attrs.evolve(decided, order=ahead + 1)
            found = await self._swap(decided.entry, decided.pack(), later.pack())
            stands = _entry_of(decided, found)
            if stands is not None and stands.is_over == decided.is_over:
                decided = stands  # ours, or that of who carries it out as well
            elif stands is None and decided.is_over:
                break  # who carries it out as well has done so
            else:
                return attrs.evolve(report, is_overtaken=True)
        if decided.is_over and not report.missed:
            await self._write(CompareAndDelete(decided.entry, decided.pack()))
        return report

    async def _check_room(self, pause: Pause) -> None:
        most = {"handler": HANDLERS_PAUSED_MAX, "key": KEYS_PAUSED_MAX}.get(pause.what)
        if most is None:
            return
        asked = await self._asked()
        others = (e for e in asked.pauses.values() if e.what == pause.what)
        if pause.entry not in asked.pauses and sum(1 for _ in others) >= most:
            raise TooManyPaused(what=pause.what, paused_max=most)

    async def _tell(self, pause: Pause) -> tuple[PauseReport, int]:
        """Tell all lanes; return the order, too, that is to be passed: a lane is ahead."""
        numbers = lanes_of(pause, self.lanes)
        missed: dict[int, str] = {}
        ahead, full = [0], list[TooManyPaused]()

        async def tell(number: int) -> None:
            try:
                ahead.append(await self._tell_lane(pause, Names(self.control.pool, number)))
            except TooManyPaused as error:
                full.append(error)
            except PoolError as error:
                missed[number] = str(error)

        async with anyio.create_task_group() as tasks:
            for number in numbers:
                tasks.start_soon(tell, number)
        if full:  # several came at once, of whom nobody has heard yet
            await self.resume(pause)
            raise full[0]
        missed = dict(sorted(missed.items()))
        return PauseReport(pause=pause, lanes=len(numbers), missed=missed), max(ahead)

    async def _tell_lane(self, pause: Pause, names: Names) -> int:
        """Return the order of what the lane was told later; 0: it does as it was told."""
        pipeline, handler = self.pipeline.at(names.prefix), "-"
        generation = await pipeline.execute("HGET", names.lane, "incarnation") or b""
        lane = Lane(names, generation.decode(errors="replace"))
        verb: Verb = "resume" if pause.is_over else "pause"
        for _ in range(_MOVES_MAX):
            call = lane.pause(verb, pause, handler)
            told: PauseTold = await pipeline.call(call, repeatable=True)
            if told.is_full:
                most = KEYS_PAUSED_MAX if pause.what == "key" else HANDLERS_PAUSED_MAX
                raise TooManyPaused(what=pause.what, paused_max=most)
            if not told.moved_on:
                return told.behind
            handler = told.moved_on
        return 0

    # --- cordons --------------------------------------------------------------------------------

    async def cordon(
        self, member: str, reason: str, *, is_drain: bool = False, wait_s: float = HEARD_S
    ) -> CordonReport:
        """Have a node, or a worker, take no keys; or give up those that it has, and leave."""
        entries = await self._entries()
        meant = self._meant(entries, member)
        standing = entries.asked.cordons.get(member)
        if standing is None or (is_drain and not standing.is_drain):
            now_ms = await self._now_ms()
            standing = Cordon(
                id=member,
                since_ms=now_ms,
                by=self.by,
                reason=stored_reason(reason),
                is_drain=is_drain,
            )
            await self._write(Set(standing.entry, standing.pack()), *self._stale(entries))
        ids = tuple(each.id for each in meant)
        return await self.heard(CordonReport(cordon=standing, workers=ids, unheard=ids), wait_s)

    async def uncordon(self, member: str, *, wait_s: float = HEARD_S) -> CordonReport:
        """Have it take keys again; a drain cannot be taken back."""
        entries = await self._entries()
        standing = entries.asked.cordons.get(member)
        meant = entries.of(member) if standing is not None else self._meant(entries, member)
        if standing is not None and standing.is_drain:
            problem = "it drains, and that cannot be taken back: start another one"
            raise InvalidOption(option="member", value=member, problem=problem)
        if standing is not None:
            await self._write(Delete(standing.entry), *self._stale(entries))
        cordons = {id_: each for id_, each in entries.asked.cordons.items() if id_ != member}
        left = attrs.evolve(entries.asked, cordons=cordons)
        kept = next(filter(None, (left.cordon_of(e.id, e.node) for e in meant)), None)
        report = CordonReport(
            cordon=standing or Cordon(id=member),
            workers=tuple(each.id for each in meant),
            unheard=tuple(e.id for e in meant if not left.cordon_of(e.id, e.node)),
            kept=kept,
        )
        return await self.heard(report, wait_s, is_taken_back=True)

    async def heard(
        self, report: CordonReport, wait_s: float, *, is_taken_back: bool = False
    ) -> CordonReport:
        """Wait until those have heard it who have not said so; with 0 nobody is asked."""
        is_drain = report.cordon.is_drain

        def has_heard(each: WorkerEntry) -> bool:
            if is_taken_back:
                return not each.is_cordoned
            return each.is_draining or (each.is_cordoned and not is_drain)

        unheard = await self._heard(report.unheard, has_heard, wait_s)
        return attrs.evolve(report, unheard=unheard)

    async def forget(self, cordons: Collection[Cordon]) -> None:
        """Take entries away, as far as they are these."""
        ops = [CompareAndDelete(each.entry, each.pack()) for each in cordons]
        await self._write(*ops[:_STALE_MAX])

    async def cordons(self) -> tuple[Cordon, ...]:
        """Return who is cordoned, or was told to drain, the oldest first."""
        cordons = (await self._entries()).asked.cordons
        return tuple(sorted(cordons.values(), key=lambda each: each.since_ms))

    def _meant(self, entries: _Entries, member: str) -> tuple[WorkerEntry, ...]:
        meant = entries.of(member)
        if not meant:
            raise NoSuchMember(member=member)
        return meant

    def _stale(self, entries: _Entries) -> list[Op]:
        """Return what takes the entries away of those who are no more."""
        there = {each for info in entries.workers for each in (info.id, info.node)}
        gone = [each.entry for each in entries.asked.cordons.values() if each.id not in there]
        return [Delete(entry) for entry in gone[:_STALE_MAX]]

    async def _heard(
        self, ids: Collection[str], has_heard: Callable[[WorkerEntry], bool], wait_s: float
    ) -> tuple[str, ...]:
        """Wait until the entries of workers say that they have heard; return whose do not."""
        unheard, look_s = tuple(ids), LOOK_S
        with anyio.move_on_after(wait_s):
            while unheard:
                there = {each.id: each for each in (await self._entries()).workers}
                unheard = tuple(i for i in unheard if i in there and not has_heard(there[i]))
                if unheard:
                    await anyio.sleep(look_s)
                    look_s = min(2 * look_s, LOOK_MAX_S)  # each look fetches the whole map
        return unheard

    # --- the map --------------------------------------------------------------------------------

    async def _asked(self) -> Asked:
        """Return what was asked for: by our copy, or as it stands where we have none."""
        return self.known() if self.known is not None else (await self._entries()).asked

    async def _entries(self) -> _Entries:
        stored = StoredMap(self.control, WORKERS)
        items = (await stored.snapshot(self.pipeline, self.generation)).items
        infos = [WorkerEntry.parse(text) for name, text in items.items() if not is_asked(name)]
        workers = tuple(info for info in infos if info is not None)
        return _Entries(parse(_asked(items)), workers)

    async def _write(self, *ops: Op) -> WriteResult:
        stored = StoredMap(self.control, WORKERS)
        return await stored.write(self.pipeline, self.generation, ops, repeatable=True)

    async def _now_ms(self) -> int:
        now_ms: int = await self.pipeline.at(self.control.config).execute("TIME")
        return now_ms


def _entry_of(pause: Pause, text: bytes | None) -> Pause | None:
    """Return what stands about this; of another hand's nothing."""
    return parse([(pause.entry, text)]).pauses.get(pause.entry)


def _asked(items: Mapping[bytes, Value]) -> list[tuple[bytes, Value]]:
    return [(name, text) for name, text in items.items() if is_asked(name)]


class Operating:
    """A part of `Node`."""

    def _operator(self) -> Operator:
        raise NotImplementedError

    async def pause(
        self, *, handler: str | None = None, key: str | None = None, reason: str = ""
    ) -> PauseReport:
        """Pause the whole pool, or the jobs of a handler, or those of a key.

        Jobs are accepted, and wait; none is given to a worker until `resume()`, whatever it waited
        for before: a delay, a retry, its turn, its schedule, a worker that has died.  What a worker
        has goes on, services too; those that it gives up wait.  Times by which a job must begin go
        on counting.  Doing it again changes nothing, and completes what did not reach every lane.

        Args:
            handler: The jobs of this one only.
            key: The jobs of this one only.
            reason: For those who wonder; 200 characters of it are kept.

        Raises:
            InvalidOption: Both are given, or `reason` is no text.
            ConfigError, InvalidKey: The name or the key cannot be one.
            TooManyPaused: 64 handlers, or 1,000 keys, are.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        meant = named(handler, key)
        checks.text("reason", reason)
        return await self._operator().pause(meant, reason)

    async def resume(self, *, handler: str | None = None, key: str | None = None) -> PauseReport:
        """Take back the `pause()` of the same arguments; what waited goes on at once, in order.

        What something else pauses, goes on waiting for that: the report's `others`.  Of what is not
        paused it changes nothing.

        Raises:
            InvalidOption, ConfigError, InvalidKey: As for `pause()`.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        return await self._operator().resume(named(handler, key))

    async def pauses(self) -> tuple[Pause, ...]:
        """Return what is paused, the oldest first.

        Raises:
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        return await self._operator().pauses()

    async def cordon(
        self, member: str, *, reason: str = "", timeout_s: float = HEARD_S
    ) -> CordonReport:
        """Have a node's workers, or one worker, take no more keys and keep those that they have.

        They take none from when their node has heard it, which this waits for; until it is taken
        back, or the node ends.

        Args:
            member: The id of the node or the worker, as `workers` has it.
            reason: As for `pause()`.
            timeout_s: How long to wait, 0 to 365 days; the report tells who has not heard it.

        Raises:
            InvalidOption: An argument cannot be used.
            NoSuchMember: Nobody has this id.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        wait_s = _member(member, timeout_s)
        checks.text("reason", reason)
        return await self._operator().cordon(member, reason, wait_s=wait_s)

    async def uncordon(self, member: str, *, timeout_s: float = HEARD_S) -> CordonReport:
        """Take a `cordon()` back; of one that is not cordoned it changes nothing.

        Raises:
            InvalidOption: An argument cannot be used, or it drains, which cannot be taken back.
            NoSuchMember, StoreUnavailable, StoreLost, NotRunning: As for `cordon()`.
        """
        return await self._operator().uncordon(member, wait_s=_member(member, timeout_s))

    async def drain_member(
        self, member: str, *, reason: str = "", timeout_s: float = HEARD_S
    ) -> CordonReport:
        """Have a node, or a worker, give up what it has and leave: as SIGTERM does to `pool run`.

        It returns when that has begun; a program that embeds the node has `wait_drained()`.

        Raises:
            InvalidOption, NoSuchMember, StoreUnavailable, StoreLost, NotRunning: As for `cordon()`.
        """
        wait_s = _member(member, timeout_s)
        checks.text("reason", reason)
        return await self._operator().cordon(member, reason, is_drain=True, wait_s=wait_s)

    async def cordons(self) -> tuple[Cordon, ...]:
        """Return who is cordoned, or was told to drain, the oldest first.

        Raises:
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        return await self._operator().cordons()


def _member(member: object, timeout_s: object) -> float:
    checks.text("member", member)
    wait_s: float = checks.seconds("timeout_s", timeout_s)
    return wait_s
