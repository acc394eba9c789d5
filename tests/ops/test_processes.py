"""The parent's children as a machine: no place stays empty, and none is filled too often."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.retry import Dice
from pool.ops.processes import (
    FAILED,
    HEALTHY_S,
    LOADING_END_S,
    MISUSED,
    RESTART_CAP_S,
    DrainChild,
    Effect,
    Finish,
    KillChild,
    Processes,
    Say,
    StartChild,
)

DRAIN_S = 20.0


class Highest:
    """Dice whose every throw is as high as can be."""

    def random(self) -> float:
        return 1.0


class System:
    """What a parent does with the effects: serials that run, and which of them were told to end."""

    def __init__(
        self, count: int, *, waits_for_change: bool = False, dice: Dice | None = None
    ) -> None:
        self.it = Processes(count=count, dice=dice or Highest(), waits_for_change=waits_for_change)
        self.now_s = 0.0
        self.running: dict[int, int] = {}  # serial -> number
        self.drained: set[int] = set()
        self.killed: set[int] = set()
        self.said: list[str] = []
        self.code: int | None = None
        self.do(self.it.begin())

    def do(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            assert self.code is None, "nothing follows the end"
            match effect:
                case StartChild(number=number, serial=serial):
                    assert serial not in self.running
                    assert not self.it.is_stopping
                    self.running[serial] = number
                case DrainChild(serial=serial):
                    assert serial in self.running
                    self.drained.add(serial)
                case KillChild(serial=serial):
                    assert serial in self.running
                    self.killed.add(serial)
                case Say(event=event):
                    self.said.append(event)
                case Finish(code=code):
                    assert not self.running
                    self.code = code
        return effects

    def ready(self, *serials: int) -> None:
        for serial in serials or [*self.running]:
            self.do(self.it.ready(serial, self.now_s, DRAIN_S))

    def end(self, serial: int, code: int = 0) -> None:
        self.running.pop(serial, None)
        self.drained.discard(serial)
        self.do(self.it.ended(serial, code, self.now_s))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.do(self.it.tick(self.now_s))

    def wait_restart(self) -> float:
        """Let the time come for the next restart; return how long that took."""
        assert self.it.wake_s is not None
        waited_s = self.it.wake_s - self.now_s
        self.wait(waited_s)
        return waited_s


# --- starting -------------------------------------------------------------------------------------


def test_ready_is_when_all_were_and_one_still_is() -> None:
    system = System(2)
    system.ready(1)
    found = [system.it.is_ready]
    system.ready(2)
    found.append(system.it.is_ready)
    for serial in (1, 2):
        system.end(serial, -9)
        found.append(system.it.is_ready)
    system.wait_restart()
    system.ready(3)
    assert [*found, system.it.is_ready] == [False, True, True, False, True]


def test_if_none_can_work_as_configured_it_ends_with_their_code() -> None:
    """Starting them again would not help; the code is the same as without a parent."""
    system = System(2)
    system.end(1, MISUSED)
    assert (system.drained, system.it.wake_s, system.code) == (set(), None, None)
    system.end(2, MISUSED)
    assert system.code == MISUSED


@pytest.mark.parametrize("is_late", [False, True])
def test_one_that_cannot_begin_where_another_can_is_tried_again(is_late: bool) -> None:
    """It may have been a file that was being written: nobody's jobs are to suffer."""
    system = System(2)
    if is_late:
        system.end(1, MISUSED)
        system.ready(2)
    else:
        system.ready(2)
        system.end(1, MISUSED)
    assert (system.running, system.drained, system.said) == ({2: 2}, set(), ["restarting"])
    waits = []
    for _ in range(3):
        waits.append(system.wait_restart())
        [new] = {*system.running} - {2}
        system.end(new, MISUSED)
    assert waits == sorted(waits)
    assert waits[-1] > 0
    system.wait_restart()
    system.ready()
    assert system.it.is_ready


def test_who_may_still_come_is_waited_for() -> None:
    system = System(2)
    system.end(1, -9)
    system.end(2, MISUSED)
    assert system.code is None
    system.wait_restart()
    system.end(3, MISUSED)
    assert system.code == MISUSED


def test_a_reload_starts_also_who_could_not_begin() -> None:
    system = System(2)
    system.end(1, MISUSED)
    system.do(system.it.reload())
    system.end(2)
    assert sorted(system.running.values()) == [1, 2]
    system.ready()
    assert system.said == ["reloading", "reloaded"]


def test_one_alone_that_cannot_work_ends_at_once() -> None:
    system = System(1)
    system.end(1, MISUSED)
    assert system.code == MISUSED


def test_with_files_watched_it_waits_for_a_change_instead() -> None:
    system = System(1, waits_for_change=True)
    system.end(1, MISUSED)
    assert (system.code, system.running, system.it.wake_s) == (None, {}, None)
    assert system.said == ["waiting"]
    system.do(system.it.reload())
    assert system.running == {2: 1}
    system.ready()
    assert system.said[-1] == "reloaded"


# --- restarts -------------------------------------------------------------------------------------


def test_who_is_killed_is_started_at_once_and_later_the_more_often() -> None:
    system = System(1)
    waits = []
    for _ in range(12):
        [serial] = system.running
        system.ready()
        system.end(serial, -9)
        waits.append(system.wait_restart())
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == RESTART_CAP_S


@pytest.mark.parametrize(("ran_s", "first"), [(HEALTHY_S, True), (HEALTHY_S - 1, False)])
def test_who_worked_for_long_is_started_at_once_again(ran_s: float, first: bool) -> None:
    system = System(1)
    for _ in range(3):
        [serial] = system.running
        system.ready()
        system.end(serial, FAILED)
        system.wait_restart()
    [serial] = system.running
    system.ready()
    system.now_s += ran_s
    system.end(serial, FAILED)
    assert (system.wait_restart() == 0) is first


def test_only_the_place_of_who_ended_is_filled() -> None:
    system = System(3)
    system.ready()
    system.end(2, FAILED)
    system.wait_restart()
    assert system.running == {1: 1, 3: 3, 4: 2}


def test_who_leaves_by_itself_is_replaced_while_it_drains() -> None:
    system = System(1)
    system.ready()
    system.do(system.it.leaving(1, 0.0, is_shut_down=False))
    system.wait_restart()
    assert system.running == {1: 1, 2: 1}
    system.ready(2)
    system.end(1)
    assert system.running == {2: 1}


def test_when_the_pool_is_shut_down_all_leave_and_it_ends_well() -> None:
    system = System(3)
    system.ready(1, 2)
    system.do(system.it.leaving(1, 0.0, is_shut_down=True))
    assert system.drained == {2, 3}  # one that is still starting would never hear of it
    assert system.do(system.it.leaving(2, 0.0, is_shut_down=True)) == []
    for serial in (1, 2, 3):
        system.end(serial)
    assert system.code == 0


# --- reloads --------------------------------------------------------------------------------------


def test_a_reload_goes_place_by_place_and_an_old_one_drains_when_a_new_one_is_ready() -> None:
    system = System(2)
    system.ready()
    system.do(system.it.reload())
    assert (system.running, system.drained) == ({1: 1, 2: 2, 3: 1}, set())
    system.ready(3)
    assert (system.running, system.drained) == ({1: 1, 2: 2, 3: 1}, {1})
    system.end(1)
    assert (system.running, system.drained) == ({2: 2, 3: 1, 4: 2}, set())
    system.ready(4)
    system.end(2)
    assert (system.running, system.said) == ({3: 1, 4: 2}, ["reloading", "reloaded"])


def test_a_reload_whose_first_successor_fails_changes_nothing() -> None:
    system = System(2)
    system.ready()
    system.do(system.it.reload())
    system.end(3, MISUSED)
    assert (system.running, system.it.wake_s) == ({1: 1, 2: 2}, None)
    assert (system.said, system.it.is_reloading) == (["reloading", "reload.failed"], False)
    system.do(system.it.reload())
    assert system.running == {1: 1, 2: 2, 4: 1}


def test_a_second_reload_replaces_those_that_the_first_one_has_made() -> None:
    system = System(1)
    system.ready()
    system.do(system.it.reload())
    system.ready(2)
    system.do(system.it.reload())
    system.end(1)
    assert system.running == {2: 1, 3: 1}
    system.ready(3)
    system.end(2)
    assert system.said == ["reloading", "reloading", "reloaded"]


def test_a_second_reload_does_not_wait_for_who_has_not_come() -> None:
    """It may hang while it imports what has been mended since."""
    system = System(1)
    system.ready()
    system.do(system.it.reload())
    system.do(system.it.reload())
    assert system.drained == {2}
    system.end(2)
    assert system.running == {1: 1, 3: 1}


def test_an_old_one_that_dies_meanwhile_is_followed_by_its_successor() -> None:
    system = System(1)
    system.ready()
    system.do(system.it.reload())
    system.end(1, -9)
    assert (system.running, system.it.wake_s) == ({2: 1}, None)
    system.end(2, MISUSED)  # and if that fails, too, it is tried again
    assert system.said == ["reloading", "reload.failed", "restarting"]
    system.wait_restart()
    assert system.running == {3: 1}


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, FAILED, -9])
def test_all_drain_and_the_code_says_whether_they_did(code: int) -> None:
    system = System(2)
    system.ready()
    system.do(system.it.stop())
    assert system.drained == {1, 2}
    system.end(1)
    system.end(2, code)
    assert system.code == (FAILED if code else 0)


def test_who_was_still_starting_has_nothing_to_drain() -> None:
    """Ctrl-C and systemd signal the children, too, and one that loads ends by that."""
    system = System(1)
    system.do(system.it.stop())
    system.end(1, -15)
    assert system.code == 0


def test_asked_twice_it_kills() -> None:
    system = System(2)
    system.ready()
    system.do(system.it.stop())
    assert system.do(system.it.stop()) == [KillChild(1), KillChild(2)]


@pytest.mark.parametrize("is_ready", [True, False])
def test_who_does_not_end_is_killed_when_its_drain_must_be_over(is_ready: bool) -> None:
    """One that is stopped, or hangs, would hold its parent for ever."""
    system = System(2)
    if is_ready:
        system.ready()
    system.do(system.it.stop())
    system.wait(0)  # as after all that happens
    system.end(1)
    bound_s = DRAIN_S if is_ready else LOADING_END_S
    system.wait(bound_s - 0.1)
    assert (system.killed, system.it.wake_s) == (set(), bound_s)
    system.wait(0.1)
    assert (system.killed, system.said) == ({2}, ["child.hangs"])
    system.end(2, -9)
    assert system.code == (FAILED if is_ready else 0)


def test_a_reload_in_which_one_does_not_end_has_failed() -> None:
    system = System(2)
    system.ready()
    system.do(system.it.reload())
    system.ready(3)
    system.wait(0)
    system.wait(DRAIN_S)
    assert system.killed == {1}
    system.end(1, -9)
    assert system.running == {2: 2, 3: 1}
    assert system.said == ["reloading", "child.hangs", "reload.failed"]
    system.do(system.it.reload())
    assert system.running == {2: 2, 3: 1, 4: 1}


def test_asked_while_nobody_runs_it_ends_at_once() -> None:
    system = System(1)
    system.end(1, -9)
    system.do(system.it.stop())
    assert system.code == 0


def test_a_stop_ends_a_reload() -> None:
    system = System(2)
    system.ready()
    system.do(system.it.reload())
    system.do(system.it.stop())
    assert system.drained == {1, 2, 3}
    system.do(system.it.reload())
    for serial in (1, 2, 3):
        system.end(serial)
    assert system.code == 0


@pytest.mark.parametrize(
    "late",
    [
        lambda it: it.ready(1, 0.0, DRAIN_S),
        lambda it: it.leaving(1, 0.0, is_shut_down=True),
        lambda it: it.leaving(1, 0.0, is_shut_down=False),
        lambda it: it.ended(1, FAILED, 0.0),
    ],
)
def test_what_is_said_of_who_is_gone_changes_nothing(
    late: Callable[[Processes], list[Effect]],
) -> None:
    system = System(2)
    system.ready()
    system.end(1, -9)
    before = repr(system.it)
    assert late(system.it) == []
    assert repr(system.it) == before


# --- whatever happens -----------------------------------------------------------------------------

STEPS = ("ready", "drained", "crash", "refuse", "signal", "reload", "wait", "wait")


def step(system: System, what: str, which: int) -> None:
    """Let something happen to one of them."""
    serials = sorted(system.running)
    serial = serials[which % len(serials)] if serials else 0
    match what:
        case "ready":
            system.ready(serial)
        case "drained" if serial in system.drained:
            system.end(serial)
        case "crash":
            system.end(serial, -9)
        case "refuse":
            system.end(serial, MISUSED)
        case "signal":
            system.do(system.it.leaving(serial, system.now_s, is_shut_down=False))
        case "reload":
            system.do(system.it.reload())
        case "wait":
            system.wait(float(which))


@given(
    count=st.integers(1, 4),
    seed=st.integers(0, 3),
    is_watched=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), max_size=60),
)
def test_whatever_happens_each_place_has_somebody_or_a_time(
    count: int, seed: int, is_watched: bool, steps: list[tuple[str, int]]
) -> None:
    system = System(count, waits_for_change=is_watched, dice=random.Random(seed))
    for what, which in steps:
        step(system, what, which)
        if system.code is not None:
            break
        assert set(system.running) == set(system.it.children)
        present = [each for each in system.it.children.values() if each.state != "leaving"]
        starting = [each for each in present if each.state == "starting"]
        for number in range(1, count + 1):
            here = [each for each in present if each.number == number]
            assert len(here) <= 2
            has_time = number in system.it.restarts
            assert not (here and has_time)
            if not system.it.is_stopping and "waiting" not in system.said:
                # Who could not begin is let be only while others may still show that it can.
                is_open = not system.it.has_worked and bool(starting or system.it.restarts)
                assert here or has_time or is_open
        assert len(starting) <= count
    if system.code is None:
        system.do(system.it.stop())
        for serial in sorted(system.running):
            system.end(serial)
    assert system.code is not None


@given(
    count=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(("ready", "drained", "refuse new", "reload")), st.integers(0, 9)),
        max_size=60,
    ),
)
def test_reloads_never_leave_fewer_ready_than_there_are_places(
    count: int, steps: list[tuple[str, int]]
) -> None:
    """Whichever of the successors cannot start."""
    system = System(count)
    system.ready()
    for what, which in steps:
        if what == "refuse new":
            new = [c.serial for c in system.it.children.values() if c.state == "starting"]
            for serial in new:
                system.end(serial, MISUSED)
        else:
            step(system, what, which)
        states = [each.state for each in system.it.children.values()]
        assert states.count("ready") == count
        assert states.count("starting") <= 1
        assert len(states) <= count + 1
