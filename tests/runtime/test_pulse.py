"""A loop that hangs, and a process that stood still, as the thread that watches sees them."""

from __future__ import annotations

from pool.runtime.hang import FROZEN_S, HUNG_S, Pulse


def test_a_loop_that_owes_an_answer_for_long_hangs() -> None:
    pulse = Pulse()
    pulse.heard = pulse.beat(10.0)
    assert not pulse.is_hung(20.0)
    pulse.beat(20.0)
    pulse.woke(20.5, 20.5 + FROZEN_S)
    assert not pulse.is_hung(20.0 + 0.9 * HUNG_S)
    assert pulse.is_hung(20.0 + HUNG_S)
    assert pulse.beat(21.5) == 2  # the one that it owes
    pulse.heard = 2
    assert not pulse.is_hung(30.0)


def test_after_the_whole_process_stood_still_the_loop_gets_its_usual_time() -> None:
    """A8: whatever it owed when that began."""
    pulse = Pulse()
    pulse.beat(10.0)
    pulse.woke(10.2, 20.0)
    assert not pulse.is_hung(20.0 + 0.9 * HUNG_S)
    assert pulse.is_hung(20.0 + HUNG_S)
