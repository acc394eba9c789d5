"""Evidence against jobs: what each kind of death adds, and that innocents are safe."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.crash_marks import (
    BETS,
    NO_MARKS,
    ROUNDS_MAX,
    SUM_MAX,
    Deaths,
    Marks,
    aboard_tenths,
    after_death,
    elsewhere_tenths,
    in_round,
    is_proved,
    outlived,
    round_s,
    settled,
    tenths,
)
from pool.core.settlement import Lineup

PERIOD_MS = 2_000


def deaths(**at_s: float) -> Deaths:
    return Deaths({name: round(1000 * s) for name, s in at_s.items()}, PERIOD_MS)


def with_one(had: Deaths, **at_s: float) -> Deaths:
    return Deaths(had.at_ms | deaths(**at_s).at_ms, PERIOD_MS)


def marked(**changes: Any) -> Marks:
    """Return the marks of a job that was dealt to process `a`, of four, after a first death."""
    first = after_death(NO_MARKS, deaths(first=1), "first")
    dealt: dict[str, Any] = {"place": "a", "dealt": 4} | changes
    return attrs.evolve(first, **dealt)


def sums(marks: Marks, happened: Deaths) -> tuple[int, int]:
    whole = settled(marks, happened)
    return whole.low, whole.high


@given(st.integers(1, 1000), st.data(), st.sampled_from(BETS))
def test_a_death_is_worth_nothing_on_average_whatever_kills(
    dealt: int, data: st.DataObject, bet: float
) -> None:
    """The inequality that the whole proof rests on, with all roundings, for any k of m."""
    died = data.draw(st.integers(1, dealt))
    aboard = 2 ** (aboard_tenths(bet, dealt, died) / 10)
    elsewhere = 2 ** (elsewhere_tenths(bet) / 10)
    share = died / dealt
    if dealt > 1:
        assert share * aboard + (1 - share) * elsewhere <= 1 + 1e-9


def test_the_first_death_only_starts_the_record() -> None:
    """It chose the job: of those aboard some had to be."""
    happened = deaths(first=1)
    marks = marked()
    assert (marks.deaths, sums(marks, happened)) == (1, (0, 0))
    # Wherever it was dealt before, and whoever was on trial there.
    dealt = attrs.evolve(NO_MARKS, place="first", dealt=9)
    assert sums(after_death(dealt, happened, "first", 60), happened) == (0, 0)


def test_the_second_death_aboard_counts_by_the_dice_alone() -> None:
    happened = deaths(first=1, a=50)
    one = after_death(marked(), happened, "a")
    assert sums(one, happened) == tuple(aboard_tenths(bet, 4, 1) for bet in BETS)
    moved = after_death(marked(place="b"), happened, "a")
    assert sums(moved, happened) == (0, 0), "it was not where the dice had put it"


def test_what_died_together_is_one_event_also_if_that_was_known_late() -> None:
    """A host with all its processes; the first of them is judged before the others are fenced."""
    alone, whole = deaths(first=1, a=50), deaths(first=1, a=50, b=51, c=49)
    early = after_death(marked(), alone, "a")
    assert sums(early, whole) == tuple(aboard_tenths(bet, 4, 3) for bet in BETS)
    elsewhere = after_death(marked(low=100, high=100), with_one(whole, z=90), "z")
    assert (elsewhere.low, elsewhere.high) == tuple(100 + elsewhere_tenths(bet) for bet in BETS)


def test_deaths_elsewhere_count_once_and_leave_fewer_to_be_aboard() -> None:
    """A successor of a dead reaper reads the same list, and the record says what is counted."""
    happened = deaths(first=1, x=20, y=30, a=50)
    one = after_death(marked(low=100, high=200), happened, "a")
    assert (one.low, one.high) == (100 - 20, 200 - 2 * 44)
    assert one.last is not None
    assert one.last.dealt == 2  # x and y may have been two of the four
    again = attrs.evolve(one, place="b", dealt=4)
    later = with_one(happened, b=60)
    two = after_death(again, later, "b")
    assert sums(two, later)[0] == 100 - 20 + aboard_tenths(0.5, 2, 1) + aboard_tenths(0.5, 4, 1)


def test_who_comes_back_is_taken_out() -> None:
    happened = deaths(first=1, a=50)
    one = after_death(marked(low=100), happened, "a")
    left = settled(one, deaths(first=1))
    assert (left.deaths, left.low) == (1, 100)
    assert after_death(marked(), deaths(first=1), "a").deaths == 1


def test_a_trial_is_a_bet() -> None:
    happened = deaths(first=1, a=50)
    killed = after_death(marked(is_tried=True), happened, "a", 66)
    lived = after_death(marked(is_tried=True), happened, "a")
    free = after_death(marked(), happened, "a")
    assert sums(killed, happened)[0] == sums(free, happened)[0] + 66 - 2
    assert sums(lived, happened)[0] == 0
    assert (killed.grown, lived.grown, free.grown) == (0, 1, 0)


def test_evidence_halves_and_is_never_below_0_nor_without_bound() -> None:
    assert outlived(marked(low=101, high=7), 1) == marked(low=50, high=3)
    assert outlived(marked(low=1, high=1), 1) == NO_MARKS
    happened = deaths(first=1, a=50)
    assert sums(after_death(marked(low=SUM_MAX, high=3), happened, "a"), happened)[0] == SUM_MAX
    many = Deaths({"first": 1_000, **{f"x{n}": 10_000 * n for n in range(1, 50)}, "a": 10**6}, 1)
    assert sums(after_death(marked(low=30, high=30), many, "a"), many)[0] <= 10


@pytest.mark.parametrize(("jobs", "needed"), [(1, 19.93), (100, 26.57), (10_000, 33.22)])
def test_it_is_proved_by_one_in_a_million_for_each_running_job(jobs: int, needed: float) -> None:
    """And one bit more, since the larger of two sums counts; by enough deaths."""
    bits = math.ceil(10 * (needed + 1))
    happened = deaths(first=1)
    for sum_, proved in ((bits + 1, True), (bits - 2, False)):
        marks = Marks(5, sum_, 0, seen_ms=1)
        assert tenths(marks, happened) == sum_ - 10
        assert is_proved(marks, happened, jobs=jobs, crashes_max=3) is proved
        assert not is_proved(marks, happened, jobs=jobs, crashes_max=4)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_lineup_knows_the_strongest_other_job(sums: list[int], dice: random.Random) -> None:
    """In whichever order the jobs are read, and however often."""
    evidence = {str(number): had for number, had in enumerate(sums)}
    lineup = Lineup()
    for key in dice.choices(list(evidence), k=9) + dice.sample(list(evidence), len(evidence)):
        lineup.see(key, evidence[key])
    for key, own in evidence.items():
        others = [had for other, had in evidence.items() if other != key]
        assert (own > lineup.rival(key)) == (own > max(others, default=0))


def in_loop(*, is_held: bool, **changes: Any) -> Marks:
    """Return marks with a round of 60 s, from a death at second 100 on."""
    first = after_death(NO_MARKS, deaths(first=100), "first")
    return attrs.evolve(in_round(first, 60, is_held=is_held), low=500, high=500, **changes)


@given(st.lists(st.integers(101, 400), max_size=6, unique=True), st.sampled_from([0, 1]))
def test_a_round_is_worth_nothing_on_average_whatever_dies_in_it(at_s: list[int], bet: int) -> None:
    """One process at a time; a held job is aboard from second 160 on, and each job dies once more.

    A job that never dies again is never judged, so it need not pay for its round.
    """
    happened = with_one(deaths(first=100), **{f"x{s}": s for s in [*at_s, 500]})
    total = 0.0
    for is_held in (False, True):
        after_s = 160 if is_held else 100
        own_s = min(s for s in [*at_s, 500] if s > after_s)
        marks = after_death(in_loop(is_held=is_held), happened, f"x{own_s}")
        marks = settled(marks, happened)
        total += 2 ** (((marks.low, marks.high)[bet] - 500) / 10)
    assert total <= 2 + 1e-9


@pytest.mark.parametrize(
    ("is_held", "at_s", "gains"),
    [
        (False, [120], True),  # it ran, and its process died
        (False, [300], False),  # it ran, and nothing died in the round
        (True, [300], True),  # it was held, and nothing died
        (True, [120, 300], False),  # it was held, and something else did it
    ],
)
def test_a_coin_tells_a_late_killer_where_one_process_only_may_take_it(
    is_held: bool, at_s: list[int], gains: bool
) -> None:
    happened = with_one(deaths(first=100), **{f"x{s}": s for s in at_s})
    marks = after_death(in_loop(is_held=is_held), happened, f"x{at_s[-1]}")
    wins = tuple(500 + aboard_tenths(bet, 2, 1) for bet in BETS)
    loses = tuple(500 + elsewhere_tenths(bet) for bet in BETS)
    assert sums(marks, happened) == (wins if gains else loses)
    assert marks.round is None


def test_what_nobody_knows_of_a_round_is_no_evidence() -> None:
    """The list has lost what it had before: a death within the round may be gone, too."""
    happened = deaths(x300=300)
    marks = after_death(in_loop(is_held=True), happened, "x300")
    assert sums(marks, happened) == tuple(500 + elsewhere_tenths(bet) for bet in BETS)


@pytest.mark.parametrize(
    ("at_s", "lasts_s"),
    [
        ([100, 110], 0),  # two deaths are no loop
        ([100, 110, 120], 30),
        ([100, 110, 120, 220, 230, 330], 30),  # silent rounds make some of the gaps long
        ([100, 130, 160], 60),  # a minute at most
        ([100, 160, 220], 0),  # a tenth of the window is no loop
    ],
)
def test_a_round_lasts_for_three_gaps_of_a_crash_loop(at_s: list[int], lasts_s: float) -> None:
    happened = Deaths({f"x{s}": 1000 * s for s in at_s}, PERIOD_MS)
    marks = after_death(NO_MARKS, happened, f"x{at_s[-1]}")
    assert round_s(marks, happened, 600.0) == lasts_s
    tired = attrs.evolve(marks, rounds=ROUNDS_MAX)
    assert round_s(tired, happened, 600.0) == 0


def test_marks_keep_the_rounds() -> None:
    for marks in (in_loop(is_held=True), in_loop(is_held=False), in_loop(is_held=True, round=None)):
        assert Marks.parse(marks.pack()) == marks


def test_renewals_tell_what_died_together() -> None:
    happened = deaths(a=1, b=2.5, c=3.5, d=10)
    assert happened.events(0, 20_000) == [(2, 2_500), (1, 3_500), (1, 10_000)]
    assert happened.events(1_000, 10_000) == [(2, 3_500)]
    assert happened.together(2_500) == (3, 3_500)
