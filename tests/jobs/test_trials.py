"""Whose trial it is, as a plain machine: time is an argument."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import attrs
import pytest

from pool.core.crash_marks import Marks, trial_tenths
from pool.core.record import Start
from pool.core.run import Event
from pool.jobs.run import Run
from pool.jobs.trials import (
    LIVED_S,
    OLD_S,
    PREPARE_S,
    SENDING_S,
    SPAN_S,
    SPAN_TRIALS,
    TRIAL_S,
    TRIALS_S,
    WAVE_S,
    Rank,
    Trials,
)

if TYPE_CHECKING:
    from pool.core.retry import Dice

RANK = (0.0, 1)


def trials_of(age_s: float = 1000.0, share: float = 0.0) -> Trials:
    """Return the trials of a process of some age; its dice say how late a suspect begins."""
    dice = SimpleNamespace(random=lambda: share)
    return Trials(cast("Dice", dice), -age_s, lambda: SPAN_S)


def suspect(key: str, grown: int = 0) -> Run:
    start = Start(
        key=key,
        id=key,
        handler="h",
        kind="job",
        epoch=1,
        attempt=1,
        flags="a",
        marks=Marks(deaths=1 + grown, grown=grown, is_tried=True),
        accepted=1,
        payload=b"",
    )
    return Run(start, 0, 0.0)


def nothing() -> None:
    """Be called."""


def come(trials: Trials, count: int, now_s: float, grown: int = 0) -> None:
    """Have suspects come that wait."""
    for n in range(count):
        trials.come(suspect(f"k{n}", grown), now_s)


def tried(
    trials: Trials,
    run: Run,
    now_s: float,
    *,
    rank: Rank = RANK,
    identity: tuple[int, str] = (0, "w1.1"),
) -> float:
    """Put a suspect on trial, and have its handler called at once; returns for how long."""
    assert not trials.is_taken(now_s, nothing, RANK)
    trials.take(run, rank, identity, nothing, now_s)
    run.step("prepare")
    assert trials.is_taken(now_s, nothing, RANK)
    run.step("prepared")
    run.step("begin")
    return trials.begins(run, now_s)


def test_one_at_a_time_and_whoever_waits_is_called() -> None:
    """Of all workers of a node: a process dies with all of them."""
    trials, called = trials_of(), list[str]()
    come(trials, 2, 0.0)
    run = suspect("k")
    for_s = tried(trials, run, 0.0)
    assert for_s == TRIAL_S
    assert trials.is_taken(TRIAL_S / 2, lambda: called.append("other"), RANK)
    trials.end(run, TRIAL_S / 2)
    assert not called
    trials.end(run, TRIAL_S)
    assert called == ["other"]
    assert not trials.is_taken(TRIAL_S, nothing, RANK)


def test_the_earliest_death_comes_first_and_the_most_suspected_last() -> None:
    """In whichever worker they wait, and whichever of these has asked first."""
    trials, called = trials_of(), list[str]()
    once, often, run = suspect("a"), suspect("b", 1), suspect("d")
    later, late_s = suspect("c"), 2 * WAVE_S
    asked = ((run, 0.0), (often, 0.1), (once, 0.2), (later, late_s))
    ranks = {each.key: trials.come(each, now_s) for each, now_s in asked}
    trials.go(run, ranks["d"])
    for_s = tried(trials, run, late_s)
    for key in ("c", "b", "a"):
        assert trials.is_taken(late_s, lambda key=key: called.append(key), ranks[key])  # type: ignore[misc]
    trials.end(run, late_s + for_s)
    assert called == ["a", "b", "c"]


def test_what_has_ended_or_is_released_keeps_the_turn_no_longer() -> None:
    """A short job that did its work has shown itself."""
    trials = trials_of()
    changes: tuple[tuple[Event, ...], ...] = (("ended",), ("release",), ("lease", "cancelled"))
    for change in changes:
        run = suspect("k")
        tried(trials, run, 0.0)
        for event in change:
            run.step(event)
        assert not trials.is_taken(0.0, nothing, RANK)


def test_a_lane_that_is_silent_holds_nobody_up_for_long() -> None:
    """Lanes are islands: a suspect whose acknowledgement is not answered loses its turn."""
    trials, run = trials_of(), suspect("k")
    assert trials.take(run, RANK, (0, "w1.1"), nothing, 0.0) == PREPARE_S
    run.step("prepare")
    assert trials.is_taken(PREPARE_S - 0.01, nothing, RANK)
    assert not trials.is_taken(PREPARE_S, nothing, RANK)


def test_who_outlived_trials_is_given_more_time_as_far_as_there_is_some() -> None:
    """What kills after a while is found so; and all have begun in time, however many they are."""
    trials = trials_of()
    come(trials, 3, 0.0)
    assert tried(trials, suspect("k", 1), 0.0) == 4 * TRIAL_S
    assert tried(trials_of(), suspect("k", 7), 0.0) == LIVED_S
    come(trials, 996, 0.0)
    assert tried(trials, suspect("k"), 1.0) == (TRIALS_S - 1.0) / 1000
    assert tried(trials, suspect("k"), TRIALS_S + 1.0) == 0.0


def test_the_most_suspected_keep_more_where_time_is_short() -> None:
    """I36: it killed 0.3 s after its start, its trial was 0.13 s, and another one looked guilty."""
    trials, most = trials_of(), suspect("k", 2)
    runs = [*(suspect(f"k{n}", 1) for n in range(26)), most]
    ranks = [trials.come(run, 0.0) for run in runs]
    now_s, tried_s = 0.0, list[float]()
    for run, rank in zip(runs, ranks, strict=True):
        trials.go(run, rank)
        tried_s.append(tried(trials, run, now_s))
        now_s += tried_s[-1]
        run.step("ended")
    assert now_s == pytest.approx(TRIALS_S)
    assert tried_s[-1] == pytest.approx(4 * tried_s[0])
    assert tried_s[-1] > 0.3


def test_suspects_of_another_death_have_a_time_of_their_own() -> None:
    """Also if a worker has gone with some that waited, and never said so."""
    trials = trials_of()
    come(trials, 5, 0.0)
    late_s = 3 * TRIALS_S
    rank = trials.come(suspect("k"), late_s)
    assert tried(trials, suspect("k"), late_s, rank=rank) == TRIAL_S


def test_a_second_death_has_a_time_of_its_own() -> None:
    """I36: its suspects had only what the first death's had left, and that was too little."""
    trials, late_s = trials_of(), TRIALS_S - 0.5
    first, second = suspect("a", 1), suspect("b", 2)
    ranks = [trials.come(run, now_s) for run, now_s in ((first, 0.0), (second, late_s))]
    # Neither takes from the other's: what comes before those of the first one leaves them theirs.
    assert tried(trials, suspect("c"), late_s, rank=ranks[1]) == TRIAL_S
    short = tried(trials, suspect("d"), TRIALS_S - 0.1, rank=ranks[1])
    assert short == pytest.approx(0.1 / 5)
    for run, rank in zip((first, second), ranks, strict=True):
        trials.go(run, rank)
    assert tried(trials, first, TRIALS_S - 0.05, rank=ranks[0]) == pytest.approx(0.05)
    assert tried(trials, second, TRIALS_S + 0.01, rank=ranks[1]) == pytest.approx(16 * TRIAL_S)


def test_a_young_process_begins_its_suspects_at_a_random_time() -> None:
    """K9: what is killed at some age of its own would hit the same trial in each of its lives."""
    trials, run = trials_of(age_s=1.0, share=0.5), suspect("k")
    rank = trials.come(run, 0.0)
    assert trials.wait_s(run, rank, 0.0) == SPAN_S / 2
    assert trials.wait_s(run, rank, 2.0) == SPAN_S / 2 - 2.0
    longest = suspect("other", 7)  # ten times its trial at least
    assert trials.wait_s(longest, rank, 0.0) == SPAN_TRIALS * LIVED_S / 2
    assert tried(trials, run, SPAN_S / 2, rank=rank) == TRIAL_S
    old = trials_of(age_s=OLD_S, share=0.5)
    assert old.wait_s(run, old.come(run, 0.0), 0.0) == -math.inf


def test_evidence_of_a_trial_is_how_short_it_is() -> None:
    """Of the span in which it could have begun as well, or of the age of an old process."""
    run = suspect("k")
    assert trials_of(age_s=1.0).bits(run, 0.0) == trial_tenths(SPAN_S, TRIAL_S + SENDING_S)
    assert trials_of(age_s=600.0).bits(run, 0.0) == trial_tenths(600.0, TRIAL_S + SENDING_S)
    for age_s in (0.0, 59.0, 60.0, 600.0):
        # Not less than 3 bits, whatever it is.
        assert trials_of(age_s=age_s).bits(suspect("k", 7), 0.0) >= 30


def test_who_lived_is_cleared_where_only_its_own_identity_is_known() -> None:
    """Each identity of a process is judged by itself: its last suspect must not look guilty."""
    trials, lived = trials_of(), list[str]()
    for key, lane, name in (("a", 0, "w1.1"), ("b", 0, "w1.1"), ("c", 0, "w2.1"), ("d", 1, "w2.1")):
        trials.take(suspect(key), RANK, (lane, name), lambda key=key: lived.append(key), 0.0)  # type: ignore[misc]
    assert lived == ["b", "c"]


def test_who_was_said_to_live_is_not_said_to_again() -> None:
    """When the next one is of another identity: it was said after LIVED_S."""
    trials, lived = trials_of(), list[str]()
    a, b = suspect("a"), suspect("b")
    trials.take(a, RANK, (0, "w1.1"), lambda: lived.append("a"), 0.0)
    trials.lived(b)
    trials.lived(a)
    trials.take(b, RANK, (1, "w1.1"), lambda: lived.append("b"), 2.0)
    assert not lived


def test_who_was_misread_gives_way_to_the_start_that_it_should_have_been() -> None:
    """Of one epoch there is one start: another id under it is what the record says."""

    def start(epoch: int, name: str) -> Start:
        return attrs.evolve(suspect("k").start, epoch=epoch, id=name)

    run = Run(start(5, "a"), 0, 0.0)
    later, earlier = [start(6, "a"), start(6, "b"), start(5, "b")], [start(5, "a"), start(4, "b")]
    assert all(map(run.gives_way_to, later))
    assert not any(map(run.gives_way_to, earlier))
    run.then_epoch = 6
    assert not any(map(run.gives_way_to, [*later, *earlier]))
