"""What kept a thread from the interpreter: its own process, or whoever froze it."""

from __future__ import annotations

import pytest

from pool.runtime.hang import Hold

LONG_S = 1.0


@pytest.mark.parametrize(
    ("gaps", "is_own"),
    [
        pytest.param([(1.2, 150)], True, id="it asked for it again and again"),
        pytest.param([(1.2, 2)], False, id="it stood still"),
        pytest.param([(0.7, 120)] * 9, False, id="many took their turns"),
        pytest.param([(0.1, 30)] * 50, False, id="it was busy"),
    ],
)
def test_only_one_long_stretch_is_a_hold(gaps: list[tuple[float, int]], is_own: bool) -> None:
    hold, now_s, waits = Hold(), 100.0, 7
    hold.look(now_s, waits, LONG_S)
    for gap_s, asked in gaps:
        now_s, waits = now_s + gap_s, waits + asked
        hold.look(now_s, waits, LONG_S)
    assert (hold.over_s == now_s) == is_own


def test_a_thread_begun_again_counts_from_the_start() -> None:
    hold = Hold()
    hold.look(100.0, 5_000, LONG_S)
    hold.look(102.0, 3, LONG_S)
    assert hold.over_s < 0
