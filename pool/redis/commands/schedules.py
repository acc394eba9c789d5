"""Schedules of a lane, changed, and told when they are due; and tickers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from pool.core.ids import number
from pool.redis.commands.calls import Calls, as_ms
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.frozen(kw_only=True)
class ScheduleChange:
    """One schedule as it was seen and as it is to be; `head` empty: it is to go."""

    name: str | bytes
    seen: bytes  # its first line; empty: there was none
    head: str | bytes
    body: bytes = b""  # empty: as it stands
    due_ms: int | None = None  # of the server's own clock; None: nobody need come
    messages: Sequence[tuple[int, bytes]] = ()  # lane, and what it is told


@attrs.frozen(kw_only=True)
class SchedulePage:
    """What became of changes, and the next schedules that are due."""

    wall_ms: int  # the server's own clock
    next_s: float | None  # in how many seconds somebody is to come; None: nobody need
    done: Sequence[bool]  # of each change; else it was seen otherwise than it stands
    due: Sequence[tuple[bytes, bytes]]  # name, and all that stands there


@attrs.frozen(kw_only=True)
class TickTold:
    """Which tick is the caller's, if one is, and when the next one comes."""

    at_ms: int  # its nominal time; 0: none is
    missed: int  # ticks before it that nobody had
    was_done: bool  # who had the one before has dealt with it
    next_s: float


def ticked(reply: Reply) -> TickTold:
    """Read the reply of `tick`."""
    at, missed, was_done, wait = reply
    return TickTold(
        at_ms=number(at),
        missed=number(missed),
        was_done=bool(was_done),
        next_s=number(wait) / 1000,
    )


def page_of(reply: Reply) -> SchedulePage:
    """Read the reply of `schedule`."""
    wall, wait, statuses, flat = reply
    if not {*statuses} <= {b"OK", b"CHANGED"}:
        raise ValueError("no status of this script")
    return SchedulePage(
        wall_ms=number(wall),
        next_s=None if wait == b"-1" else number(wait) / 1000,
        done=[status == b"OK" for status in statuses],
        due=list(zip(flat[::2], flat[1::2], strict=True)),
    )


SCHEDULE: Final = Script.load(
    "schedule",
    keys="lane schedules scheduled due payloads jobs",
    args="generation hold_ms page_max bytes_max skip expects count *items",
    reads=page_of,
)


TICK: Final = Script.load(
    "tick",
    keys="lane tickers",
    args="generation expects name token every_ms done",
    reads=ticked,
)


@attrs.frozen
class ScheduleCalls(Calls):
    """Keeping and firing schedules."""

    def schedule(
        self,
        changes: Sequence[ScheduleChange] = (),
        *,
        hold_s: float,
        is_firing: bool = False,
        skip: int = 0,
        expects: str = "0",
    ) -> ScriptCall:
        """Change schedules; `is_firing`: tell which are due, but for the first `skip` of them."""
        n, pages = self.names, self.pages
        page = pages.fired if is_firing else 0
        args: list[Word] = [self.generation, as_ms(hold_s), page, pages.fired_bytes, skip]
        args += (expects, len(changes))
        for each in changes:
            due_ms = "" if each.due_ms is None else each.due_ms
            args += (each.name, each.seen, each.head, each.body, due_ms, len(each.messages))
            for lane, text in each.messages:
                args += (lane, text)
        if not changes:
            args.append("")
        keys = (n.lane, n.schedules, n.scheduled, n.due, n.payloads, n.jobs)
        return SCHEDULE(keys, args)

    def tick(
        self, name: str, token: str, *, every_s: float, done_ms: int = 0, expects: str = "0"
    ) -> ScriptCall:
        """Have the next tick of a ticker, if its time has come and nobody has had it."""
        args: list[Word] = [self.generation, expects, name, token, as_ms(every_s), done_ms]
        return TICK((self.names.lane, self.names.tickers), args)
