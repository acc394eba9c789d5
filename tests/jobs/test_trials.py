"""Whose trial it is, as a plain machine: time is an argument."""

from __future__ import annotations

import attrs

from pool.core.record import Marks, Start
from pool.core.run import Event
from pool.jobs.run import Run
from pool.jobs.trials import PREPARE_S, TRIAL_S, TRIALS_S, Trials


def suspect(key: str, *marks: str) -> Run:
    start = Start(
        key=key,
        id=key,
        handler="h",
        kind="job",
        epoch=1,
        attempt=1,
        flags="a",
        marks=Marks(marks or ("w9.1-",)),
        accepted=1,
        payload=b"",
    )
    return Run(start, 0, 0.0)


def nothing() -> None:
    """Be called."""


def tried(
    trials: Trials, run: Run, now_s: float, *, identity: tuple[int, str] = (0, "w1.1")
) -> float:
    """Put a suspect on trial, and have its handler called at once; returns for how long."""
    assert not trials.is_taken(now_s, nothing)
    trials.take(run, identity, nothing, now_s)
    run.step("prepare")
    assert trials.is_taken(now_s, nothing)
    run.step("prepared")
    run.step("begin")
    return trials.begins(run, now_s)


def test_one_at_a_time_and_whoever_waits_is_called() -> None:
    """Of all workers of a node: a process dies with all of them."""
    trials, called = Trials(), list[str]()
    trials.count(2, 0.0)
    run = suspect("k")
    for_s = tried(trials, run, 0.0)
    assert for_s == TRIAL_S
    assert trials.is_taken(TRIAL_S / 2, lambda: called.append("other"))
    trials.end(run, TRIAL_S / 2)
    assert not called
    trials.end(run, TRIAL_S)
    assert called == ["other"]
    assert not trials.is_taken(TRIAL_S, nothing)


def test_what_has_ended_or_is_released_keeps_the_turn_no_longer() -> None:
    """A short job that did its work has shown itself."""
    trials = Trials()
    changes: tuple[tuple[Event, ...], ...] = (("ended",), ("release",), ("lease", "cancelled"))
    for change in changes:
        run = suspect("k")
        tried(trials, run, 0.0)
        for event in change:
            run.step(event)
        assert not trials.is_taken(0.0, nothing)


def test_a_lane_that_is_silent_holds_nobody_up_for_long() -> None:
    """Lanes are islands: a suspect whose acknowledgement is not answered loses its turn."""
    trials, run = Trials(), suspect("k")
    assert trials.take(run, (0, "w1.1"), nothing, 0.0) == PREPARE_S
    run.step("prepare")
    assert trials.is_taken(PREPARE_S - 0.01, nothing)
    assert not trials.is_taken(PREPARE_S, nothing)


def test_who_has_more_marks_is_given_more_time_as_far_as_there_is_some() -> None:
    """What kills after a while is found so; and all have begun in time, however many they are."""
    trials = Trials()
    trials.count(3, 0.0)
    assert tried(trials, suspect("k", "w1.1-", "w2.1-"), 0.0) == 4 * TRIAL_S
    assert tried(Trials(), suspect("k", *(f"w{n}.1" for n in range(8))), 0.0) <= TRIALS_S
    trials.count(997, 0.0)
    assert tried(trials, suspect("k"), 1.0) == (TRIALS_S - 1.0) / 1000
    assert tried(trials, suspect("k"), TRIALS_S + 1.0) == 0.0


def test_suspects_of_another_death_have_a_time_of_their_own() -> None:
    """Also if a worker has gone with some that waited, and never said so."""
    trials = Trials()
    trials.count(5, 0.0)
    late_s = 3 * TRIALS_S
    trials.count(1, late_s)
    assert tried(trials, suspect("k"), late_s) == TRIAL_S


def test_who_lived_is_cleared_where_only_its_own_identity_is_known() -> None:
    """Each identity of a process is judged by itself: its last suspect must not look guilty."""
    trials, lived = Trials(), list[str]()
    for key, lane, name in (("a", 0, "w1.1"), ("b", 0, "w1.1"), ("c", 0, "w2.1"), ("d", 1, "w2.1")):
        trials.take(suspect(key), (lane, name), lambda key=key: lived.append(key), 0.0)  # type: ignore[misc]
    assert lived == ["b", "c"]


def test_who_was_said_to_live_is_not_said_to_again() -> None:
    """When the next one is of another identity: it was said after LIVED_S."""
    trials, lived = Trials(), list[str]()
    a, b = suspect("a"), suspect("b")
    trials.take(a, (0, "w1.1"), lambda: lived.append("a"), 0.0)
    trials.lived(b)
    trials.lived(a)
    trials.take(b, (1, "w1.1"), lambda: lived.append("b"), 2.0)
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
