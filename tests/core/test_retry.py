"""Delays grow, are spread, and never leave their bounds."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.retry import (
    RECONNECT_BASE_S,
    RECONNECT_CAP_S,
    RECONNECTS_MAX,
    REFUSED_CAP_S,
    Reconnects,
    Restarts,
    full_jitter,
    reconnect_delay,
    refused_delay,
    requeue_delay,
)
from pool.settings import Settings

TRIES = st.one_of(st.integers(1, 50), st.integers(1, 10**6))
BASE = st.floats(1e-6, 10.0)
CAP = st.floats(10.0, 1e6)
SEED = st.integers(0, 2**32)


class Loaded:
    """Dice that always show the same."""

    def __init__(self, shown: float) -> None:
        self.shown = shown

    def random(self) -> float:
        return self.shown


LOWEST, HIGHEST = Loaded(0.0), Loaded(1.0 - 2**-53)


@given(TRIES, BASE, CAP, SEED)
def test_full_jitter_keeps_its_bounds(attempt: int, base_s: float, cap_s: float, seed: int) -> None:
    delay_s = full_jitter(attempt, base_s, cap_s, random.Random(seed))
    assert 0 <= delay_s <= cap_s
    assert attempt > 60 or delay_s <= base_s * 2 ** (attempt - 1)


@given(TRIES, BASE, CAP)
def test_full_jitter_uses_all_of_its_range(attempt: int, base_s: float, cap_s: float) -> None:
    assert full_jitter(attempt, base_s, cap_s, LOWEST) == 0
    ceiling_s = min(cap_s, base_s * 2.0 ** min(attempt - 1, 100))
    assert full_jitter(attempt, base_s, cap_s, HIGHEST) == pytest.approx(ceiling_s)


@given(TRIES, BASE, CAP, SEED)
def test_a_requeued_key_waits_longer_each_time(
    requeues: int, base_s: float, cap_s: float, seed: int
) -> None:
    dice = random.Random(seed)
    assert requeue_delay(0, base_s, cap_s, dice) == 0
    now_s = requeue_delay(requeues, base_s, cap_s, dice)
    later_s = requeue_delay(requeues + 1, base_s, cap_s, dice)
    assert 0 < now_s <= cap_s
    # From half of the next step on: never shorter, until the cap is reached.
    assert later_s >= now_s or later_s >= cap_s / 2


@given(st.integers(0, 10**6), SEED)
def test_reconnecting_is_at_once_then_bounded(failures: int, seed: int) -> None:
    delay_s = reconnect_delay(failures, random.Random(seed))
    if failures == 0:
        assert delay_s == 0
    else:
        assert RECONNECT_BASE_S / 2 <= delay_s <= RECONNECT_CAP_S


def test_the_dice_decide() -> None:
    """The same seed gives the same delays; another one spreads them."""
    one, same, other = (
        [full_jitter(5, 0.1, 60.0, dice) for _ in range(20)]
        for dice in (random.Random(1), random.Random(1), random.Random(2))
    )
    assert one == same != other


def test_faults_of_the_store_never_come_too_often_by_default() -> None:
    """Restarted at once after what no restart mends, a part ended its node within a second."""
    restarts, now_s, pauses = Restarts(Settings().restarts_max, LOWEST), 0.0, []
    while now_s < 600:
        pause_s = restarts.crashed(now_s, is_fault=True)
        assert pause_s is not None
        pauses.append(pause_s)
        now_s += pause_s
    assert pauses[:5] == [0.0, 1.0, 4.0, 16.0, 60.0]


def test_what_is_refused_is_sent_less_and_less_often_and_never_rarely() -> None:
    pauses = [refused_delay(n, 0.1) for n in range(9)]
    assert pauses == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, REFUSED_CAP_S, REFUSED_CAP_S]
    assert refused_delay(10**9, 0.1) == REFUSED_CAP_S


def reconnected_at(lost_after_s: float, until_s: float) -> list[float]:
    """Return when a reader connects that loses each connection after so long."""
    reconnects, now_s, found = Reconnects(), 0.0, list[float]()
    while now_s < until_s:
        now_s += reconnects.pause_s(now_s)
        found.append(now_s)
        now_s += lost_after_s
    return found


@pytest.mark.parametrize("lost_after_s", [0.0, 0.001, 0.1, 0.9])
def test_what_is_lost_again_and_again_is_connected_to_once_a_second(lost_after_s: float) -> None:
    found = reconnected_at(lost_after_s, 60.0)
    assert len(found) <= RECONNECTS_MAX + 60.0 / RECONNECT_CAP_S + 1
    assert max(after - before for before, after in pairwise(found)) <= RECONNECT_CAP_S + 1e-9


@pytest.mark.parametrize("lost_after_s", [RECONNECT_CAP_S, 1.5, 3600.0])
def test_connections_that_last_for_a_second_are_replaced_without_a_pause(
    lost_after_s: float,
) -> None:
    found = reconnected_at(lost_after_s, 100 * lost_after_s)
    assert max(after - before for before, after in pairwise(found)) == pytest.approx(lost_after_s)


def test_pauses_that_end_early_do_not_add_up() -> None:
    reconnects = Reconnects()
    pauses = [reconnects.pause_s(0.0) for _ in range(100)]  # nobody waited for one of them
    assert max(pauses) == RECONNECT_CAP_S
    assert reconnects.pause_s(0.5) <= RECONNECT_CAP_S


def test_a_burst_of_lost_connections_costs_no_pause() -> None:
    found = reconnected_at(1e-6, 4e-6)
    assert found[: RECONNECTS_MAX - 1] == pytest.approx([0.0] * (RECONNECTS_MAX - 1), abs=1e-4)
