"""What a node knows of a lane's time: chains of answers, and what breaks them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.pooltime import CONTRADICTED, PoolTime

PERIOD_S = 2.0
EPOCH_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def heard(
    time: PoolTime, at_s: float, off_ms: int = 0, trip_s: float = 0.002, turn: int = 0
) -> PoolTime:
    """Answer a call asked at that time; the server looked at its clock in the middle."""
    raw_ms = EPOCH_MS + round(1000 * (at_s + trip_s / 2)) + off_ms
    return time.heard(raw_ms, off_ms, turn, at_s, at_s + trip_s, PERIOD_S)


def test_nothing_is_expected_before_the_first_answer() -> None:
    time = PoolTime()
    assert (time.expected_ms(5.0), time.latest_ms(5.0, 1.0)) == (0, 0)
    assert time.told(5.0).since_ms == 0


def test_a_chain_of_answers_is_one_witness() -> None:
    time = heard(PoolTime(), 10.0)
    since_ms = time.since_ms
    for n in range(1, 50):
        time = heard(time, 10.0 + PERIOD_S * n)
        assert (time.off_ms, time.since_ms) == (0, since_ms)
    assert abs(time.expected_ms(200.0) - EPOCH_MS - 200_000) <= 3
    assert time.latest_ms(200.0, 0.5) >= EPOCH_MS + 200_500


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 1_500, -1_500])
def test_a_step_is_measured_and_what_was_expected_stays(step_ms: int) -> None:
    time = heard(heard(PoolTime(), 10.0), 12.0)
    off = heard(time, 14.0, step_ms)
    assert abs(off.off_ms - step_ms) <= 3
    assert (off.expected_ms(20.0), off.since_ms) == (time.expected_ms(20.0), time.since_ms)
    back = heard(off, 16.0)  # somebody set the server's clock right
    assert (back.off_ms, back.since_ms) == (0, time.since_ms)


def test_who_comes_to_a_clock_that_nobody_vouches_for_is_no_witness() -> None:
    """Set back by two hours, its first answer would lie before all that was vouched for."""
    raw_ms = EPOCH_MS - 2 * HOUR_MS
    time = PoolTime().heard(raw_ms, 0, 0, 1.0, 1.0, PERIOD_S, is_astray=True)
    assert time.since_ms == 0
    time = time.heard(raw_ms + 2_000, 0, 0, 3.0, 3.0, PERIOD_S, is_astray=True)
    assert (time.since_ms, time.off_ms) == (0, 0)
    time = time.heard(raw_ms + 4_000, 0, 0, 5.0, 5.0, PERIOD_S)
    assert time.since_ms == raw_ms + 4_000


def test_what_others_set_right_goes_on() -> None:
    time = heard(heard(PoolTime(), 10.0), 12.0)
    off = heard(time, 14.0, HOUR_MS)
    right = heard(off, 16.0, 20, turn=1)
    assert (right.off_ms, right.since_ms, right.turn) == (0, time.since_ms, 1)


def test_a_step_behind_another_ends_no_chain() -> None:
    """Set right and off again before we hear of it: what we have counted still holds."""
    time = heard(heard(PoolTime(), 10.0), 12.0)
    off = heard(heard(time, 14.0, HOUR_MS), 16.0, HOUR_MS // 2, turn=1)
    assert abs(off.off_ms - HOUR_MS // 2) <= 3
    assert (off.turn, off.since_ms) == (1, time.since_ms)


def test_who_is_no_witness_takes_what_was_set_right() -> None:
    """Else it would claim what it came to, and set it back again and again."""
    time = PoolTime().heard(EPOCH_MS - HOUR_MS, 0, 0, 1.0, 1.0, PERIOD_S, is_astray=True)
    time = time.heard(EPOCH_MS + 2_000, HOUR_MS, 1, 3.0, 3.0, PERIOD_S)
    assert (time.off_ms, time.since_ms, time.turn) == (0, EPOCH_MS + 2_000, 1)


def test_who_is_no_witness_knows_by_others_what_a_step_behind_another_is() -> None:
    """And believes no clock that nobody has vouched for, though it says what it knew."""
    for then_ms in (HOUR_MS // 2, -HOUR_MS):
        time = PoolTime().heard(EPOCH_MS - HOUR_MS, 0, 0, 1.0, 1.0, PERIOD_S, is_astray=True)
        raw_ms = EPOCH_MS + 2_000 + then_ms
        time = astray(time, 3.0, EPOCH_MS + 2_000, raw_ms, HOUR_MS)
        assert (time.off_ms, time.since_ms, time.turn) == (then_ms, 0, 1)
        assert time.expected_ms(3.0) == EPOCH_MS + 2_000


def astray(time: PoolTime, at_s: float, seen_ms: int, raw_ms: int, offset_ms: int) -> PoolTime:
    """Tell of the first offset that others have set, and of a clock that is off again."""
    told_ms = max(seen_ms, min(raw_ms, seen_ms + round(2000 * PERIOD_S)))
    return time.heard(raw_ms, offset_ms, 1, at_s, at_s, PERIOD_S, is_astray=True, told_ms=told_ms)


@pytest.mark.parametrize("came_ms", [7_000, -7_000, 0])
@pytest.mark.parametrize("then_ms", [15_000, -15_000, HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("last_ms", [9_000, -9_000])
def test_what_was_set_right_for_steps_that_it_counts_in_is_not_taken_off_again(
    came_ms: int, then_ms: int, last_ms: int
) -> None:
    """Who came behind one step, and was told so, stood still while the next one was settled."""
    time = PoolTime().heard(
        EPOCH_MS + came_ms, 0, 0, 1.0, 1.0, PERIOD_S, is_astray=True, witnessed_ms=came_ms
    )
    raw_ms, offset_ms = EPOCH_MS + 4_000 + last_ms, -came_ms - then_ms
    words = time.expects(5.0).split("|")
    assert words == [str(EPOCH_MS + 4_000), str(-came_ms), "0", "4000"]
    time = astray(time, 5.0, EPOCH_MS + 2_000, raw_ms, offset_ms)
    assert (time.expected_ms(5.0), time.since_ms, time.turn) == (EPOCH_MS + 4_000, 0, 1)
    assert time.told(5.0).off_ms == last_ms


def test_what_two_steps_may_mean_is_no_later_than_its_last_answer_allows() -> None:
    """Of neither it was told: both were settled at once, and then the clock was set again."""
    came = PoolTime().heard(EPOCH_MS - 7_000, 0, 0, 1.0, 1.0, PERIOD_S, is_astray=True)
    raw_ms, offset_ms = EPOCH_MS + 4_000 - 9_000, 7_000 + HOUR_MS
    time = astray(came, 5.0, EPOCH_MS + 2_000, raw_ms, offset_ms)
    assert EPOCH_MS + 2_000 <= time.expected_ms(5.0) <= EPOCH_MS + 6_000


def test_who_is_no_witness_begins_anew_with_what_one_claims() -> None:
    """Else what it measures of the next step would hold a part of the one before, or none of it."""
    for step_ms in (HOUR_MS, -HOUR_MS):
        came = PoolTime().heard(EPOCH_MS - 15_000, 0, 0, 1.0, 1.0, PERIOD_S, is_astray=True)
        raw_ms, by_ms = EPOCH_MS + 1_000 + step_ms, step_ms - 15_000
        told = came.heard(
            raw_ms - 15_000, 0, 0, 2.0, 2.0, PERIOD_S, is_astray=True, witnessed_ms=by_ms
        )
        assert (told.expected_ms(2.0), told.since_ms) == (EPOCH_MS + 1_000, 0)
        # The answer to a call that is no renewal says nothing of claims.
        told = told.heard(raw_ms - 15_000, 0, 0, 2.0, 2.0, PERIOD_S, is_astray=True)
        stepped_ms = EPOCH_MS + 2_000 + step_ms  # it was settled, and the next one came, unheard
        both = astray(told, 3.0, EPOCH_MS + 1_500, stepped_ms, -by_ms)
        assert (both.expected_ms(3.0), both.off_ms) == (EPOCH_MS + 2_000, step_ms)
        then = told.heard(
            raw_ms - 15_000 + step_ms + 1_000, 0, 0, 3.0, 3.0, PERIOD_S, is_astray=True
        )
        assert then.told(3.0).off_ms == by_ms + step_ms
        assert then.expected_ms(3.0) == EPOCH_MS + 2_000
        settled = then.heard(EPOCH_MS + 3_000, -by_ms - step_ms, 1, 4.0, 4.0, PERIOD_S)
        assert (settled.off_ms, settled.expected_ms(4.0)) == (0, EPOCH_MS + 3_000)
        same = heard(heard(PoolTime(), 1.0), 2.0)
        witness = same.heard(EPOCH_MS, 0, 0, 2.0, 2.0, PERIOD_S, witnessed_ms=by_ms)
        assert witness.expected_ms(2.0) == same.expected_ms(2.0)


def test_who_was_cut_off_while_others_settled_it_begins_anew() -> None:
    """And who has come to the same as they is a witness since then."""
    time = heard(heard(PoolTime(), 10.0), 12.0)
    for off_ms in (HOUR_MS, 0):
        raw_ms = EPOCH_MS + off_ms + 20_000
        late = time.heard(raw_ms, 0, 0, 20.0, 20.0, PERIOD_S, is_late=True)
        assert (late.off_ms, late.since_ms) == (0, raw_ms)


def test_silence_contradicts_nobody() -> None:
    """Who stood still after it had measured a step is a witness still, while nobody vouches."""
    time = heard(heard(heard(PoolTime(), 10.0), 12.0), 14.0, HOUR_MS)
    at_s = 14.0 + 2 * CONTRADICTED * PERIOD_S
    raw_ms = EPOCH_MS + round(1000 * at_s) + HOUR_MS
    late = time.heard(raw_ms, 0, 0, at_s, at_s, PERIOD_S, is_astray=True)
    assert (abs(late.off_ms - HOUR_MS) < 5, late.since_ms) == (True, time.since_ms)


def test_steps_behind_each_other_contradict_nobody() -> None:
    """Each makes void what was claimed of the one before."""
    time = heard(heard(PoolTime(), 10.0), 12.0)
    for n in range(2 * CONTRADICTED):
        at_s = 14.0 + PERIOD_S * n
        raw_ms = EPOCH_MS + round(1000 * at_s) - 3_000 * (n + 1)
        time = time.heard(raw_ms, 0, 0, at_s, at_s, PERIOD_S, is_astray=True)
    assert time.since_ms > 0


@pytest.mark.parametrize("is_astray", [False, True])
def test_who_is_contradicted_takes_what_the_others_have(is_astray: bool) -> None:
    """Also where nobody vouches: two who do not agree, and do not give up, would stop the clock."""
    time = heard(heard(PoolTime(), 10.0), 12.0)
    for n in range(CONTRADICTED + 2):
        at_s = 14.0 + PERIOD_S * n
        raw_ms = EPOCH_MS + round(1000 * at_s) + HOUR_MS
        time = time.heard(raw_ms, 0, 0, at_s, at_s, PERIOD_S, is_astray=is_astray)
    assert time.off_ms == 0
    if is_astray:
        assert time.since_ms == 0
    else:
        assert time.since_ms > EPOCH_MS + HOUR_MS  # no witness of what was before


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1.0)), min_size=1, max_size=30))
def test_no_latency_is_a_step(answers: list[tuple[float, float]]) -> None:
    """However long, and wherever in it the server looked at its clock."""
    time, at_s = PoolTime(), 100.0
    for trip_s, share in answers:
        raw_ms = EPOCH_MS + round(1000 * (at_s + trip_s * share))
        time = time.heard(raw_ms, 0, 0, at_s, at_s + trip_s, PERIOD_S)
        assert time.off_ms == 0
        error_ms = abs(time.expected_ms(at_s) - EPOCH_MS - 1000 * at_s)
        assert error_ms <= 500 * time.trip_s + 1
        at_s += trip_s + 0.1
