"""A node's way into the journal: events that no script could note.

    emit --> waiting, by lane --note.lua--> journal
                ^                |
                +-- a pause -----+  the lane did not answer

One call of a lane is under way at a time.  At most so many events of a lane wait: what comes while
one hangs is dropped then, and counted in the next one that is noted.  A call whose answer was lost
is sent again as it was, and stands once.  What waits dies with its node.  Nothing is written
for data that are others by now.  Who must know that it stands (`write`) waits for that call alone;
repeated, that one may stand twice.

What can come with each ordinary job (SUMMED) would drive all else out of the journal: one is noted
at once, and then one a minute with the number of those meanwhile (`times`), as in the log.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from pool.core.journal import ZERO
from pool.core.plans import plan_key
from pool.core.retry import refused_delay
from pool.errors import PoolError, StoreLost, StoreUnavailable
from pool.events import Event, HookFailed
from pool.jobs.context import Context
from pool.names import lane_of
from pool.redis.commands.journal import NotedEvent
from pool.redis.io.system import Reply

WAITING_MAX: Final = 256  # events of a lane
BATCH_MAX: Final = 64  # of them in one call
# Facts with a place of their own, and such as say nothing beside the others.
_APART: Final = frozenset(
    {"key", "job_id", "handler", "worker", "identity", "epoch", "attempt"}
    | {"pool", "node", "lane", "hint", "traceback", "generation"}
)
FACT_CHARS_MAX: Final = 160
# What is not about the job that it came with, and which of its facts make it the same again.
SUMMED: Final[dict[type, tuple[str, ...]]] = {HookFailed: ("handler", "what")}
MINUTE_S: Final = 60.0


@attrs.define(eq=False)
class _Lane:
    waiting: deque[NotedEvent] = attrs.field(factory=deque)
    dropped: int = 0
    failures: int = 0
    is_flying: bool = False  # or a pause is not over
    unanswered: Sequence[NotedEvent] = ()  # what was sent last, if no answer came
    last: str = ZERO  # id of the last entry that we were told of


@attrs.define(eq=False)
class _Sum:
    times: int = 0  # since the one that was noted last
    last: Event | None = None


@attrs.define(eq=False)
class Noter:
    """Writes a node's events into the journal.  On the event loop only."""

    context: Context
    minute_s: float = MINUTE_S
    _sums: dict[Hashable, _Sum] = attrs.field(init=False, factory=dict)
    _lanes: dict[int, _Lane] = attrs.field(factory=partial(defaultdict, _Lane))

    def note(self, event: Event) -> None:
        """Note an event, soon."""
        if not self.context.lanes:
            return  # the node has not joined
        same = SUMMED.get(type(event))
        if same is None:
            self._note(event)
            return
        key: Hashable = (event.event, *(getattr(event, name) for name in same))
        if (known := self._sums.get(key)) is not None:
            known.times, known.last = known.times + 1, event
            return
        self._sums[key] = _Sum()
        self._note(event)
        self.context.loop.later(self.minute_s, partial(self._on_minute, key))

    def _on_minute(self, key: Hashable) -> None:
        known = self._sums.pop(key)
        if known.last is not None:
            self._sums[key] = _Sum()
            self._note(known.last, known.times)
            self.context.loop.later(self.minute_s, partial(self._on_minute, key))

    def _note(self, event: Event, times: int = 1) -> None:
        facts, key, number = self._place(event)
        if times > 1:
            facts["times"] = times
        lane = self._lanes[number]
        if len(lane.waiting) + len(lane.unanswered) >= WAITING_MAX:
            lane.dropped += 1
            return
        if lane.dropped:
            facts["dropped_before"], lane.dropped = lane.dropped, 0
        lane.waiting.append(noted(event, facts, key, self.context.node_id))
        self._flush(number, lane)

    async def write(self, event: Event) -> None:
        """Note an event now; return once it stands.

        Raises:
            StoreUnavailable, StoreLost: It may not.
        """
        facts, key, number = self._place(event)
        state = self.context.lanes[number]
        call = state.lane.note([noted(event, facts, key, self.context.node_id)])
        try:
            await self.context.pipeline.call(call, repeatable=True)
        except StoreLost:
            self.context.on_data_lost(number)
            raise StoreLost(pool=self.context.control.pool) from None

    def _place(self, event: Event) -> tuple[dict[str, Any], str, int]:
        """Return its facts, the key it is about, and the lane whose journal has it."""
        facts = attrs.asdict(event, recurse=False)
        key = facts.get("key") or (plan_key(facts["plan"]) if "plan" in facts else "")
        number = facts.get("lane")
        if number is None:
            number = lane_of(key or event.event, len(self.context.lanes))
        return facts, key, number

    def _flush(self, number: int, lane: _Lane) -> None:
        if lane.is_flying or not (lane.unanswered or lane.waiting):
            return
        batch, lane.unanswered = lane.unanswered, ()
        after = lane.last if batch else ""
        if not batch:
            batch = [lane.waiting.popleft() for _ in range(min(BATCH_MAX, len(lane.waiting)))]
        lane.is_flying = True
        call = self.context.lanes[number].lane.note(batch, after=after)
        try:
            self.context.pipeline.send(call, partial(self._on_reply, number, batch))
        except PoolError as error:
            self._on_reply(number, batch, error)

    def _on_reply(self, number: int, batch: Sequence[NotedEvent], reply: Reply) -> None:
        lane = self._lanes[number]
        lane.is_flying = False
        if not isinstance(reply, StoreUnavailable):
            # Anything else it would answer again: what it does not take is lost.
            lane.failures = 0
            if isinstance(reply, str):
                lane.last = reply
            self._flush(number, lane)
            return
        lane.failures += 1
        lane.is_flying = True  # until the pause is over
        lane.unanswered = batch
        self.context.loop.later(refused_delay(lane.failures), partial(self._again, number))

    def _again(self, number: int) -> None:
        lane = self._lanes[number]
        lane.is_flying = False
        self._flush(number, lane)


def noted(event: Event, facts: dict[str, Any], key: str, node: str) -> NotedEvent:
    """Return what is written of an event."""
    told = (
        f"{name}={str(value)[:FACT_CHARS_MAX]}"
        for name, value in facts.items()
        if name not in _APART and value not in ("", None)
    )
    return (
        event.event,
        key,
        facts.get("job_id", ""),
        facts.get("handler", ""),
        facts.get("worker") or facts.get("identity") or node,
        facts.get("epoch", ""),
        facts.get("attempt", ""),
        " ".join(told),
    )
