"""One alarm per lane: who looks at a lane that hangs keeps no other lane waiting."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from pool.runtime.timers import Alarms

pytestmark = pytest.mark.anyio
HUNG, SOUND = 0, 1


async def test_a_lane_that_hangs_is_looked_at_once_and_keeps_no_other_waiting() -> None:
    """Its own next look waits for this one; the other lane's are made as often as they are due."""
    looks: Counter[int] = Counter()
    hangs, done = anyio.Event(), anyio.Event()

    async def look(lane: int) -> None:
        looks[lane] += 1
        if lane == HUNG:
            alarms.set(HUNG, 0.0)
            await hangs.wait()
        elif looks[SOUND] < 3:
            alarms.set(SOUND, 0.0)
        else:
            done.set()

    async with anyio.create_task_group() as tasks:
        alarms = Alarms(anyio.current_time)
        alarms.set(HUNG, 0.0)
        alarms.set(SOUND, 0.0)
        tasks.start_soon(alarms.ring, look, tasks.start_soon)
        with anyio.fail_after(30):
            await done.wait()
        assert looks == {HUNG: 1, SOUND: 3}
        hangs.set()  # from here on its looks end at once, and each asks for the next one
        with anyio.fail_after(30):
            while looks[HUNG] < 3:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_an_alarm_set_again_rings_when_it_was_said_last() -> None:
    """`set` overrules, `set_by` only brings it forward."""
    rung = anyio.Event()

    async def look(_: int) -> None:
        rung.set()

    async with anyio.create_task_group() as tasks:
        alarms = Alarms(anyio.current_time)
        alarms.set(0, 3600.0)
        tasks.start_soon(alarms.ring, look, tasks.start_soon)
        await anyio.lowlevel.checkpoint()
        alarms.set_by(0, 7200.0)
        alarms.set_by(0, 0.01)
        with anyio.fail_after(30):
            await rung.wait()
        tasks.cancel_scope.cancel()
