"""The job's record, its table, and the decisions of a recovery: pure, so any input is tried."""

from __future__ import annotations

import random
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core import lifecycle
from pool.core.marks import MARKS_CHARS_MAX, MARKS_MAX, NO_MARKS, Marks
from pool.core.options import Options
from pool.core.record import STATES, Outcome, Record, Start, one_line
from pool.core.settlement import (
    CancelJob,
    Death,
    Grant,
    Judgement,
    Lineup,
    ParkJob,
    Wait,
    after_failure,
    recover,
)

FIELDS = [
    *(
        "R",
        "j",
        "id",
        "h",
        "w.1",
        "7",
        "1",
        "p",
        "",
        "",
        "",
        "",
        "1000",
        "n.1,n.2",
        "boom",
        "d07,r5",
    ),
]

SILENT_S = 4.0


def record(**changes: Any) -> Record:
    parsed = Record.parse("|".join(FIELDS).encode())
    assert parsed is not None
    return attrs.evolve(parsed, **changes)


def decide(
    given_record: Record,
    options: Options | None = None,
    *,
    alive_ms: int = 1500,
    culprit: int = 0,
    died: str = "w.1",
    crashes_max: int = 3,
    is_most: bool = False,
) -> object:
    """Decide about a job that was acknowledged at 1000, and whose owner died after `alive_ms`."""
    judgement = Judgement(
        crash_window_s=600.0, crashes_max=crashes_max, hold_s=10.0, silent_s=SILENT_S
    )
    return recover(
        given_record,
        options or Options(),
        random.Random(1),
        judgement=judgement,
        death=Death(identity=died, alive_ms=alive_ms, culprit=culprit),
        is_most=is_most,
    )


def due(given_record: Record) -> object:
    """Decide about a job that nobody owns, and whose time has come."""
    judgement = Judgement(crash_window_s=600.0, crashes_max=3, hold_s=10.0)
    return recover(given_record, Options(), random.Random(1), judgement=judgement)


def test_a_record_is_read_as_it_stands() -> None:
    """One line, fields between bars; an empty field has its default."""
    parsed = record()
    assert (parsed.state, parsed.kind, parsed.owner, parsed.epoch) == ("running", "job", "w.1", 7)
    assert (parsed.accepted, parsed.since_ms, parsed.waiters) == (7, 1000, ("n.1", "n.2"))


def test_fields_of_a_newer_version_do_not_matter() -> None:
    """Unknown trailing fields survive (the scripts keep them) and are not read."""
    assert Record.parse("|".join([*FIELDS, "later", "more"]).encode()) == record()


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_raise(text: bytes) -> None:
    """What is stored may be anybody's: it is read, or it is None."""
    for parse in (Record.parse, Outcome.parse):
        parse(text)
    Start.parse("1-0", {"k": text, "m": text})
    Options.parse(text)


@given(
    st.builds(
        Options,
        kind=st.sampled_from(["job", "service"]),
        attempts_max=st.integers(0, 1000),
        backoff_s=st.integers(1, 10_000).map(lambda ms: ms / 1000),
        backoff_max_s=st.integers(10_000, 90_000).map(lambda ms: ms / 1000),
        timeout_s=st.none() | st.integers(1, 10**6).map(lambda ms: ms / 1000),
        healthy_s=st.integers(0, 10**6).map(lambda ms: ms / 1000),
    )
)
def test_options_survive_the_store(options: Options) -> None:
    """Recovery needs no handler code: what it needs is read back as it was registered (G-05)."""
    assert Options.parse(options.pack().encode()) == options


@given(st.text(max_size=700))
def test_what_people_write_cannot_break_a_record(text: str) -> None:
    """Errors and causes become one line without bars."""
    line = one_line(text, 500)
    assert len(line) <= 500
    assert not re.search(r"[|\n\r\x00]", line)


@given(st.integers(1, 2000), st.integers(0, 1000), st.integers(0, 2**32))
def test_attempts_are_counted_to_the_end_and_no_further(
    attempt: int, attempts_max: int, seed: int
) -> None:
    """The last allowed attempt parks; any other waits at most the cap; 0 is without limit."""
    options = Options(attempts_max=attempts_max, backoff_s=0.5, backoff_max_s=8.0)
    decision = after_failure(attempt, options, random.Random(seed), cause="failed", error="boom")
    if attempts_max and attempt >= attempts_max:
        assert decision == ParkJob("failed", "boom")
    else:
        assert isinstance(decision, Wait)
        assert decision.attempt == attempt + 1
        assert 0 <= decision.delay_s <= min(8.0, 0.5 * 2 ** min(attempt - 1, 20))


def test_what_had_to_be_acknowledged_first_never_began_and_gets_no_mark() -> None:
    """It is granted again at once, and keeps the marks that it had."""
    assert decide(record(state="pending", flags="a")) == Grant("r=")
    assert decide(record(state="pending", flags="a", marks=Marks(("w.9",)))) == Grant("r=w.9")


def test_what_may_have_begun_unseen_gets_half_a_mark_and_is_begun_alone_next() -> None:
    """A process that dies at the first instruction of a job never acknowledges it."""
    assert decide(record(state="pending")) == Grant("rma=w.1-")


def test_neighbours_of_poison_are_requeued_without_delay_and_others_back_off() -> None:
    """Once for each death that `crashes_max` allows; a key that kills its reader does not spin."""
    assert decide(record(state="pending", requeues=5)) == Grant("rma=w.1-")
    delayed = decide(record(state="pending", requeues=6))
    assert isinstance(delayed, Wait)
    assert delayed.mark == "ma=w.1-"


def test_what_was_delayed_still_counts_as_requeued() -> None:
    """The flag that asks for acknowledgement first stays until it is acknowledged."""
    assert due(record(state="waiting", flags="a")) == Grant("r=")
    assert due(record(state="waiting")) == Grant("=")


def test_a_running_job_gets_half_a_mark_and_is_begun_alone_if_it_had_just_begun() -> None:
    """Who outlived the start for a second, as its renewal proved, does not kill at once."""
    assert decide(record(), alive_ms=1999) == Grant("ma=w.1-")
    assert decide(record(), alive_ms=2000) == Grant("m=w.1-")


def test_only_a_culprit_that_was_suspected_before_gets_a_whole_mark() -> None:
    """The first death is nobody's alone: what began together may all have done it."""
    had = Marks(("w.9-",))
    assert decide(record(), culprit=7) == Grant("ma=w.1-")
    assert decide(record(marks=had), culprit=7) == Grant("ma=w.9-,w.1")
    assert decide(record(marks=had), culprit=7, alive_ms=9000) == Grant("ma=w.9-,w.1")
    assert decide(record(marks=had), culprit=8) == Grant("ma=w.9-,w.1-")


def test_the_last_mark_has_a_job_held_and_not_parked_at_once() -> None:
    """For one TTL: whoever is named may only have been frozen, and come back meanwhile."""
    had = Marks(("w.7-", "w.8", "w.9"))
    held = decide(record(marks=had), culprit=7)
    assert held == Wait(10.0, 1, "boom", "hma=w.7-,w.8,w.9,w.1")


def test_beside_a_culprit_nobody_else_is_held() -> None:
    """Innocents collect marks with the guilty one; they are not given up before it, nor with it."""
    had = Marks(before=6)
    assert isinstance(decide(record(marks=had), culprit=7), Wait)
    for culprit in (0, 8):
        assert decide(record(marks=had), culprit=culprit) == Grant("ma=6,w.1-")
        assert decide(record(marks=had, state="pending"), culprit=culprit) == Grant("rma=6,w.1-")


def judged(jobs: dict[str, Record], *, culprit: int = 0) -> set[str]:
    """Return which of these are held after a death of their owner, read two at a time."""
    judgement = Judgement(crash_window_s=600.0, crashes_max=3, hold_s=10.0)
    death = Death(identity="w.1", alive_ms=1000, culprit=culprit)
    lineup, left, held = Lineup(judgement, death), dict(jobs), set[str]()
    while left:
        moved = 0
        for key in [*left][:2]:
            if lineup.keeps(key, left[key]):
                left[key] = left.pop(key)  # whichever is read next
                continue
            is_most = lineup.is_most(key)
            decision = decide(left.pop(key), culprit=culprit, is_most=is_most)
            held |= {key} if isinstance(decision, Wait) and "h" in decision.mark else set()
            moved += 1
        lineup.is_over = not moved
    return held


def suspected(deaths: int, **facts: Any) -> Record:
    """Return a running job that was aboard at so many deaths before."""
    return record(marks=Marks(tuple(f"w.{n + 2}-" for n in range(deaths))), **facts)


def test_who_alone_was_aboard_at_the_most_deaths_is_held() -> None:
    """What kills late is no culprit; its neighbours were elsewhere at one of them, at least."""
    others = {f"k{n}": suspected(n % 4) for n in range(8)}
    assert judged({**others, "poison": suspected(4)}) == {"poison"}
    assert judged({"poison": suspected(5), **others, "near": suspected(4)}) == {"poison"}
    assert judged({"near": suspected(4), **others, "poison": suspected(5)}) == {"poison"}
    assert judged({"poison": suspected(4)}) == {"poison"}


def test_nobody_is_held_who_is_not_alone_or_beside_a_culprit() -> None:
    """They are spread again, and the next death tells more; four deaths are too few."""
    others = {f"k{n}": suspected(n % 4) for n in range(8)}
    assert not judged(others)
    assert not judged({"a": suspected(4), **others, "b": suspected(4)})
    assert not judged({"a": suspected(4), "b": suspected(4), "c": suspected(4)})
    # An unread start cannot be waited for.
    assert not judged({"a": suspected(4), **others, "b": suspected(4, state="pending")})
    assert not judged({**others, "a": suspected(4)}, culprit=8)


def test_what_was_held_for_most_deaths_is_parked_while_there_are_as_many() -> None:
    """One of those died was only frozen: then it was not one too many."""
    held = attrs.evolve(suspected(5), state="waiting", flags="h", owner="")
    assert due(held) == ParkJob("poison", "suspected of 5 worker crashes")
    assert isinstance(due(attrs.evolve(held, marks=suspected(4).marks)), Grant)
    assert isinstance(due(attrs.evolve(held, flags="")), Grant)


def test_what_is_held_is_parked_unless_its_marks_have_become_too_few() -> None:
    """The scripts hand it out without the marks of those who came back (`lua/lib/marks.lua`)."""
    held = record(state="waiting", flags="ah", owner="")
    parked = due(attrs.evolve(held, marks=Marks(("w.7-", "w.8", "w.9", "w.1"))))
    assert isinstance(parked, ParkJob)
    assert (parked.cause, parked.error) == ("poison", "suspected of 4 worker crashes")
    assert due(attrs.evolve(held, marks=Marks(("w.8", "w.9", "w.1")))) == Grant("=w.8,w.9,w.1")
    # Not held, it only waits for its next attempt: others were the culprits of its deaths.
    assert due(record(state="waiting", marks=Marks(before=9))) == Grant("=9")


def test_a_long_run_clears_the_marks() -> None:
    """Marks count crashes close together, not a service's whole life."""
    had = record(marks=Marks(("w.7", "w.8", "w.9")))
    for is_most in (False, True):
        assert decide(had, alive_ms=1000 + 600_000, is_most=is_most) == Grant("=")
    assert isinstance(decide(had, alive_ms=1000 + 599_999, is_most=True), Wait)


@given(st.integers(1, 1000), st.booleans())
def test_a_job_that_kills_at_once_ends_one_process_more_than_crashes_max(
    crashes_max: int, is_seen: bool
) -> None:
    """Whether its first start is acknowledged or not: 1/2 + 1 + 1 ... is over at the same death."""
    job_of = record(state="running" if is_seen else "pending", owner="w.0")
    for deaths in range(1, crashes_max + 3):
        decision = decide(
            job_of, culprit=7 if deaths > 1 else 0, died=f"w.{deaths}", crashes_max=crashes_max
        )
        if isinstance(decision, Wait):
            break
        assert isinstance(decision, Grant)
        letters, _, marks = decision.mark.partition("=")
        assert "a" in letters
        # It is acknowledged first from now on, and then it kills.
        job_of = record(owner="w.0", marks=Marks.parse(marks))
    assert deaths == crashes_max + 1


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30))
def test_marks_survive_a_record_and_old_ones_lose_only_their_names(
    deaths: list[tuple[int, bool]],
) -> None:
    """A record is bounded whatever happens; what its marks weigh is not."""
    marks, weights = NO_MARKS, dict[int, int]()
    for number, is_whole in deaths:
        marks = marks.add(f"w8z4k0qv1xt{number:x}.12345", is_whole=is_whole)
        if number not in weights or len(weights) <= MARKS_MAX:
            weights[number] = max(weights.get(number, 0), 2 if is_whole else 1)
        text = "|".join([*FIELDS[:9], marks.pack(), *FIELDS[10:]])
        parsed = Record.parse(text.encode())
        assert parsed is not None
        assert parsed.marks == marks
        assert len(marks.named) <= MARKS_MAX
        assert len(marks.pack()) <= MARKS_CHARS_MAX
    if len({number for number, _ in deaths}) <= MARKS_MAX:
        assert marks.halves == sum(weights.values())
    else:
        assert marks.halves >= len({number for number, _ in deaths})


def test_intents_outlive_their_owner() -> None:
    """A stop ends it, a time-out is a failed attempt, whoever finds the record."""
    assert decide(record(intent="sbecause")) == CancelJob("because")
    timed_out = decide(record(intent="t", attempt=5), Options(attempts_max=5))
    assert isinstance(timed_out, ParkJob)
    assert timed_out.cause == "timed out"
    assert isinstance(decide(record(intent="t")), Wait)


def test_every_state_can_end() -> None:
    """G-05: from each live state of the table some edges lead to an end."""
    ends = {"done", "parked", "cancelled"}
    for state in STATES.values():
        reached = {
            o for (s, _), outcomes in lifecycle.TABLE.items() if s == state for o in outcomes
        }
        assert reached & ends, state


def test_of_what_nobody_owns_nothing_is_heard() -> None:
    """G-05: it can be stopped, given up and granted; it waits again where no worker began it;
    all else is said by its owner alone.
    """
    assert {"pending", "running"} == lifecycle.OWNED
    for state in {*STATES.values()} - lifecycle.OWNED:
        edges = {edge for at, edge in lifecycle.TABLE if at == state}
        is_queued = state == "queued"  # granted by way of `waiting`
        others = set() if is_queued else {lifecycle.PARK, lifecycle.GRANT}
        others |= {lifecycle.WAIT} if state == "unassigned" else set()
        assert edges == {lifecycle.CANCEL} | others


def test_what_never_began_has_no_limit_and_no_trial() -> None:
    assert ("pending", lifecycle.LIMIT) not in lifecycle.TABLE
    assert ("pending", lifecycle.OVER) not in lifecycle.TABLE


def test_the_diagram_shows_each_edge_that_leads_elsewhere() -> None:
    """The docs are made from the table."""
    drawn = lifecycle.diagram()
    for (state, _), outcomes in lifecycle.TABLE.items():
        for outcome in outcomes:
            assert outcome == state or f"{state} --> {outcome}:" in drawn


@pytest.mark.parametrize(("late_ms", "is_suspect"), [(3_900, True), (4_100, False)])
def test_what_was_granted_to_a_dead_worker_is_no_suspect(late_ms: int, is_suspect: bool) -> None:
    """G-06: it never began there, and need not be tried alone."""
    granted = record(state="pending", flags="", marks=NO_MARKS, epoch=1000 * (1500 + late_ms))
    decision = decide(granted, alive_ms=1500)
    assert isinstance(decision, Grant)
    assert bool(decision.marks.deaths) is is_suspect
    assert ("a" in decision.mark) is is_suspect
    unknown = decide(granted, alive_ms=0)  # only the reaper knows when it was
    assert isinstance(unknown, Grant)
    assert unknown.marks.deaths == 1
