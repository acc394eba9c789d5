"""N child processes as a pure machine: which is started, drained, replaced, and when.

    (none) --begin--> starting --it says so--> ready --drained, or by itself--> leaving --> ended
                         '-----------------------'--- killed, or crashed --------------------^

Each child has a number from 1 to N, its place, and a serial of its own, which never comes back:
what is said late, twice, or by who is gone is about a serial that is not there any more, or not in
that state, and changes nothing.  One place has at most two that do not leave: who is there, and a
successor.

A *reload* replaces the children one place after the other: a successor is started, and when it is
ready the old one drains; when that has ended, the next place follows.  So no place is without
somebody who takes jobs, and there are at most N + 1 processes and those that drain by themselves.
Who fails to begin in a reload ends it: who is there stays.

Who cannot begin as it is configured (a module that fails) is let be until another one is ready:
then it is started again as anybody else, since here it can be done.  If all have failed so, nothing
but a change helps, and it is over.

Who ends unasked is started again, at once, and later and later the sooner it ends again.  A child
that says by itself that it leaves (somebody has sent it a signal) is replaced while it drains.  Who
has not ended when its drain must be over hangs, or is stopped: it is killed.  In a reload that is a
failure: who hangs says nothing good of what is to follow.  If
the pool is shut down, all drain, and none is started again.

The caller has the clock, the processes and the signals; it tells what happened, and carries out
what it is answered, in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool.core.retry import Dice, requeue_delay

RESTART_BASE_S: Final = 0.5
RESTART_CAP_S: Final = 30.0
LOADING_END_S: Final = 10.0  # who is told while it loads ends at once; a busy machine is late
HEALTHY_S: Final = 60.0  # who was ready for so long has not failed to start
# Exit codes of a child, as those of any of our commands.
DONE, FAILED, MISUSED = 0, 1, 2
KILLED = -9  # as the system says it


@attrs.frozen
class StartChild:
    """Effect: make a process for this place."""

    number: int
    serial: int


@attrs.frozen
class DrainChild:
    """Effect: have it drain, and end."""

    serial: int


@attrs.frozen
class KillChild:
    """Effect: end it at once."""

    serial: int


@attrs.frozen
class Say:
    """Effect: tell people."""

    event: str
    facts: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Finish:
    """Effect: nobody is left; end with this exit code."""

    code: int


Effect: TypeAlias = StartChild | DrainChild | KillChild | Say | Finish
Effects: TypeAlias = Iterator[Effect]


@attrs.define
class Child:
    """One process."""

    number: int
    serial: int
    generation: int  # of the reload that it was started in
    state: Literal["starting", "ready", "leaving"] = "starting"
    ready_s: float = math.inf  # since when
    drain_s: float = LOADING_END_S  # its drain takes no longer
    kill_s: float = math.inf  # of one that leaves: by then it has ended


@attrs.define(kw_only=True)
class Processes:
    """The children, and what is under way with them."""

    count: int
    dice: Dice
    waits_for_change: bool = False  # files are watched: what cannot start waits for the next reload
    children: dict[int, Child] = attrs.field(factory=dict)  # by serial
    restarts: dict[int, float] = attrs.field(factory=dict)  # places without a child, and until when
    is_reloading: bool = False
    is_stopping: bool = False
    was_ready: bool = False  # all of them were, once
    has_worked: bool = False  # one of them was ready, once
    _code: int = DONE
    _serial: int = 0
    _generation: int = 0
    _failures: dict[int, int] = attrs.field(factory=dict)  # in a row, by place
    _refused: list[Child] = attrs.field(factory=list)  # who could not begin, before any other had

    # --- what is the case -----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether jobs are taken: all children were ready once, and one of them is."""
        return self.was_ready and not self.is_stopping and bool(self._in_state("ready"))

    @property
    def wake_s(self) -> float | None:
        """By when `tick` wants to be called; None: never."""
        kills_s = [each.kill_s for each in self._in_state("leaving")]
        return min([*self.restarts.values(), *kills_s], default=None)

    # --- what happens ---------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        """Start them all."""
        return [self._start(number) for number in self._places]

    def ready(self, serial: int, now_s: float, drain_s: float) -> list[Effect]:
        """One takes jobs, and needs no longer to drain."""
        child = self.children.get(serial)
        if child is None or child.state != "starting":
            return []
        child.state, child.ready_s, child.drain_s = "ready", now_s, drain_s
        self.has_worked = True
        refused, self._refused = self._refused, []
        older = [each for each in self._present(child.number) if each.serial < serial]
        effects: list[Effect] = [self._drain(each) for each in older]
        places = {each.number for each in self._in_state("ready")}
        self.was_ready = self.was_ready or len(places) == self.count
        for each in refused:
            effects += self._again(each, now_s, MISUSED)
        return [*effects, *self._go_on()]

    def leaving(self, serial: int, now_s: float, *, is_shut_down: bool) -> list[Effect]:
        """One drains, which nobody here has asked for."""
        child = self.children.get(serial)
        if child is None or child.state == "leaving":
            return []
        child.state = "leaving"
        if is_shut_down:
            return [] if self.is_stopping else self.stop()
        return [*self._again(child, now_s, DONE), *self._go_on()]

    def ended(self, serial: int, code: int, now_s: float) -> list[Effect]:
        """One is no more; a negative code is the signal that ended it."""
        child = self.children.pop(serial, None)
        if child is None:
            return []
        if self.is_stopping:
            has_worked = child.ready_s < math.inf  # else there was nothing to drain
            self._code = self._code or (FAILED if code and has_worked else DONE)
            return self._finish()
        if child.state == "leaving":
            return [*self._go_on()]
        if code == MISUSED and not self.has_worked and not self.waits_for_change:
            self._refused.append(child)
            if self._in_state("starting") or self.restarts:
                return []  # those will tell whether it can be done
            self._code = code
            return self.stop()
        effects: list[Effect] = []
        if self.is_reloading and child.state == "starting":
            self.is_reloading = False
            effects = [Say("reload.failed", {"child": child.number, "code": code})]
        return [*effects, *self._again(child, now_s, code), *self._go_on()]

    def reload(self) -> list[Effect]:
        """Have all be replaced, by processes that begin from now on."""
        if self.is_stopping:
            return []
        self._generation += 1
        self._failures.clear()
        self._refused.clear()
        self.is_reloading = True
        # Who is not there yet may have begun with what was there before.
        late = self._in_state("starting")
        effects: list[Effect] = [Say("reloading"), *(self._drain(each) for each in late)]
        self.restarts.clear()
        vacant = [n for n in self._places if not self._present(n)]
        return [*effects, *(self._start(number) for number in vacant), *self._go_on()]

    def tick(self, now_s: float) -> list[Effect]:
        """Start whose time has come, and end whose time is over; to be called after all others."""
        due = [number for number, at_s in self.restarts.items() if at_s <= now_s]
        for number in due:
            del self.restarts[number]
        effects: list[Effect] = [self._start(number) for number in due]
        for child in self._in_state("leaving"):
            if child.kill_s <= now_s:
                effects += self._kill(child)
                child.kill_s = math.inf
            if child.kill_s == math.inf:
                child.kill_s = now_s + child.drain_s
        return effects

    def stop(self) -> list[Effect]:
        """Have all drain; asked for again, end them at once."""
        if self.is_stopping:
            return [KillChild(serial) for serial in self.children]
        self.is_stopping, self.is_reloading = True, False
        self.restarts.clear()
        present = [each for each in self.children.values() if each.state != "leaving"]
        return [*(self._drain(each) for each in present), *self._finish()]

    # --- parts of it ----------------------------------------------------------------------------

    @property
    def _places(self) -> range:
        return range(1, self.count + 1)

    def _in_state(self, state: str) -> list[Child]:
        return [each for each in self.children.values() if each.state == state]

    def _present(self, number: int) -> list[Child]:
        """Return who is in a place, and will not leave by itself."""
        return [
            each
            for each in self.children.values()
            if each.number == number and each.state != "leaving"
        ]

    def _start(self, number: int) -> StartChild:
        self._serial += 1
        self.children[self._serial] = Child(number, self._serial, self._generation)
        return StartChild(number, self._serial)

    def _drain(self, child: Child) -> DrainChild:
        child.state = "leaving"
        return DrainChild(child.serial)

    def _kill(self, child: Child) -> Effects:
        yield Say("child.hangs", {"child": child.number, "killed_after_s": child.drain_s})
        yield KillChild(child.serial)
        if self.is_reloading:
            self.is_reloading = False
            yield Say("reload.failed", {"child": child.number, "code": KILLED})

    def _again(self, child: Child, now_s: float, code: int) -> Effects:
        """See that somebody comes to the place of a child that has gone."""
        number = child.number
        if self._present(number) or number in self.restarts:
            return  # a successor is there already
        if self.waits_for_change and code == MISUSED:
            yield Say("waiting", {"child": number, "code": code})
            return
        is_healthy = now_s - child.ready_s >= HEALTHY_S
        failures = 0 if is_healthy else self._failures.get(number, 0)
        pause_s = requeue_delay(failures, RESTART_BASE_S, RESTART_CAP_S, self.dice)
        self._failures[number] = failures + 1
        self.restarts[number] = now_s + pause_s
        yield Say("restarting", {"child": number, "code": code, "in_s": round(pause_s, 3)})

    def _go_on(self) -> Effects:
        """Yield the next step of a reload, if one is under way and the last one is done."""
        if not self.is_reloading or self.restarts or self._in_state("starting"):
            return
        if self._in_state("leaving"):
            return  # one more process than usual, not many more
        stale = [n for n in self._places for each in self._present(n) if self._is_old(each)]
        if stale:
            yield self._start(stale[0])
        else:
            self.is_reloading = False
            yield Say("reloaded")

    def _is_old(self, child: Child) -> bool:
        return child.generation < self._generation

    def _finish(self) -> list[Effect]:
        return [] if self.children else [Finish(self._code)]
