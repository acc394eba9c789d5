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
from pool.core.crash_marks import (
    MARKS_CHARS_MAX,
    NO_MARKS,
    SUM_MAX,
    Aboard,
    Deaths,
    Marks,
    trial_tenths,
)
from pool.core.options import Options
from pool.core.record import STATES, Outcome, Record, Start, one_line
from pool.core.settlement import (
    NO_DEAL,
    CancelJob,
    Deal,
    Death,
    Grant,
    Judgement,
    ParkJob,
    Wait,
    after_failure,
    recover,
)
from pool.jobs.trials import SENDING_S, SPAN_S, TRIAL_S

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


DEALT = Deal("processtwo", 3)


def decide(
    given_record: Record,
    options: Options | None = None,
    *,
    alive_ms: int = 1500,
    culprit: int = 0,
    bits: int = 0,
    died: str = "wprocessone1.1",
    crashes_max: int = 3,
    deaths: dict[str, int] | None = None,
    jobs: int = 1,
    deal: Deal = DEALT,
) -> object:
    """Decide about a job that was acknowledged at 1000, and whose owner died after `alive_ms`."""
    happened = {"process000": 500, "processone": 1_500} if deaths is None else deaths
    return recover(
        given_record,
        options or Options(),
        random.Random(1),
        judgement=Judgement(
            crash_window_s=600.0,
            crashes_max=crashes_max,
            hold_s=10.0,
            deaths=Deaths(happened, 100),
            jobs=jobs,
            silent_s=SILENT_S,
        ),
        death=Death(identity=died, alive_ms=alive_ms, culprit=culprit, bits=bits),
        deal=deal,
    )


def due(given_record: Record, jobs: int = 1) -> object:
    """Decide about a job that nobody owns, and whose time has come."""
    happened = Deaths({"process000": 500, "processone": 1_500}, 100)
    judgement = Judgement(
        crash_window_s=600.0, crashes_max=3, hold_s=10.0, deaths=happened, jobs=jobs
    )
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


PROCESS = "processone"
OWNER = f"w{PROCESS}1.1"
DIED_MS = 1_500
SUSPECT = Marks(1, seen_ms=500, last=Aboard("process000", 500, 1), place=PROCESS, dealt=4)


def test_what_had_to_be_acknowledged_first_never_began_and_gets_no_mark() -> None:
    """It is granted again at once, and keeps the marks that it had."""
    assert decide(record(state="pending", flags="a")) == Grant("r=")
    kept = decide(record(state="pending", flags="a", marks=SUSPECT))
    assert isinstance(kept, Grant)
    assert kept.marks == attrs.evolve(SUSPECT, place="processtwo", dealt=3, is_tried=True)


def test_what_may_have_begun_unseen_is_begun_alone_next() -> None:
    """A process that dies at the first instruction of a job never acknowledges it."""
    decision = decide(record(state="pending"))
    assert isinstance(decision, Grant)
    assert decision.mark.startswith("rma=1.0.0.")
    assert decision.marks.is_tried


def test_neighbours_of_poison_are_requeued_without_delay_and_others_back_off() -> None:
    """Once for each death that `crashes_max` allows; a key that kills its reader does not spin."""
    assert isinstance(decide(record(state="pending", requeues=5)), Grant)
    delayed = decide(record(state="pending", requeues=6))
    assert isinstance(delayed, Wait)
    assert delayed.mark.startswith("ma=1.")


def test_what_was_delayed_still_counts_as_requeued() -> None:
    """The flag that asks for acknowledgement first stays until it is acknowledged."""
    assert due(record(state="waiting", flags="a")) == Grant("r=")
    assert due(record(state="waiting")) == Grant("=")


def test_a_running_job_is_begun_alone_if_it_had_just_begun() -> None:
    """Who outlived the start for a second, as its renewal proved, does not kill at once."""
    for alive_ms, letters in ((1999, "ma"), (2000, "m")):
        decision = decide(record(), alive_ms=alive_ms)
        assert isinstance(decision, Grant)
        assert decision.mark.partition("=")[0] == letters
        assert decision.marks == Marks(
            1,
            seen_ms=DIED_MS,
            last=Aboard(PROCESS, DIED_MS, 1),
            place="processtwo",
            dealt=3,
            is_tried=letters == "ma",
        )


def test_the_end_of_a_process_that_drained_or_has_come_back_is_no_death() -> None:
    """`fence.lua` did not note it, or it was taken out again: the job keeps what it had."""
    for had in (NO_MARKS, SUSPECT):
        decision = decide(record(marks=had), deaths={"process000": 500})
        assert isinstance(decision, Grant)
        assert (decision.marks.deaths, decision.marks.last) == (had.deaths, had.last)


def test_what_is_proved_is_held_for_a_ttl_and_then_parked() -> None:
    """Its last process may only have been frozen; by then it has said so."""
    guilty = attrs.evolve(SUSPECT, deaths=4, low=150, high=215)
    held = decide(record(marks=guilty), alive_ms=2000)
    assert isinstance(held, Wait)
    assert (held.delay_s, held.mark[:3]) == (10.0, "hm=")
    waits = record(state="waiting", flags="h", owner="", marks=Marks.parse(held.mark[3:]))
    assert due(waits) == ParkJob("poison", "suspected of 5 worker crashes")
    assert isinstance(due(waits, jobs=100), Grant)  # of as many jobs one is suspected by chance
    assert isinstance(due(attrs.evolve(waits, flags="")), Grant)
    few = decide(record(marks=attrs.evolve(guilty, deaths=3)))
    assert isinstance(few, Grant)


def test_a_death_in_a_trial_is_evidence_against_that_job_alone() -> None:
    """Its neighbours were aboard, no more."""
    had = attrs.evolve(SUSPECT, is_tried=True)
    for culprit, bits in ((7, 66), (8, 0)):
        decision = decide(record(marks=had), culprit=culprit, bits=66)
        assert isinstance(decision, Grant)
        assert decision.marks.last == Aboard(PROCESS, DIED_MS, 4, bits, True)


def test_a_long_run_halves_the_evidence_and_none_is_left_in_the_end() -> None:
    """Marks count crashes close together, not a service's whole life."""
    had = record(marks=Marks(5, 100, 200))
    for windows, left in ((1, (50, 100)), (2, (25, 50))):
        decision = decide(had, alive_ms=1000 + windows * 600_000)
        assert isinstance(decision, Grant)
        assert (decision.marks.low, decision.marks.high, decision.marks.deaths) == (*left, 5)
    assert decide(had, alive_ms=1000 + 30 * 600_000) == Grant("=")


@pytest.mark.parametrize(
    ("crashes_max", "age_s", "jobs", "deaths"),
    [
        (3, 600.0, 1000, 4),
        (3, SPAN_S, 1, 5),
        (3, SPAN_S, 100, 6),
        (1, 600.0, 100, 4),
        (9, 60, 9, 10),
    ],
)
def test_how_many_processes_a_job_ends_that_kills_at_once(
    crashes_max: int, age_s: float, jobs: int, deaths: int
) -> None:
    """G-06: one more than `crashes_max` where they are old, else as many as the evidence needs."""
    job_of, happened = record(owner="w0000000000.1"), dict[str, int]()
    bits = trial_tenths(age_s, TRIAL_S + SENDING_S)
    for number in range(1, 30):
        name = f"process{number:03}"
        happened[name] = 1000 * number
        decision = decide(
            job_of,
            culprit=7 if number > 1 else 0,
            bits=bits,
            died=f"w{name}1.1",
            crashes_max=crashes_max,
            deaths=happened,
            jobs=jobs,
            deal=NO_DEAL,
        )
        if isinstance(decision, Wait):
            break
        assert isinstance(decision, Grant)
        letters, _, marks = decision.mark.partition("=")
        assert "a" in letters
        job_of = record(owner="w0000000000.1", marks=Marks.parse(marks))
    assert number == deaths


@pytest.mark.parametrize(("of", "deaths"), [(2, 32), (3, 20), (6, 13), (12, 9)])
def test_what_kills_workers_that_poll_is_found_as_a_late_killer(of: int, deaths: int) -> None:
    """However soon it kills: its death may be noticed a heartbeat later, so no trial says much."""
    job_of, happened = record(owner="p0000000000.1"), dict[str, int]()
    for number in range(1, 60):
        name = f"process{number:03}"
        happened[name] = 1000 * number
        decision = decide(
            job_of,
            culprit=7 if number > 1 else 0,
            alive_ms=1001,
            died=f"p{name}1.1",
            deaths=happened,
            jobs=100,
            deal=Deal(f"process{number + 1:03}", of),
        )
        if isinstance(decision, Wait):
            break
        assert isinstance(decision, Grant)
        letters, _, marks = decision.mark.partition("=")
        assert letters == "m"  # no trial, and a coin where one process only may take it
        job_of = record(owner="p0000000000.1", marks=Marks.parse(marks))
    assert number == deaths


def test_what_a_dead_worker_that_polls_had_not_handed_out_is_no_suspect() -> None:
    """Its gateway acknowledges a start before any client is told of it."""
    granted = record(state="pending", owner="pprocessone1.1")
    decision = decide(granted, died="pprocessone1.1")
    assert isinstance(decision, Grant)
    assert decision.marks.deaths == 0


@given(
    st.builds(
        Marks,
        deaths=st.integers(1, 10**6),
        low=st.integers(0, SUM_MAX),
        high=st.integers(0, SUM_MAX),
        seen_ms=st.integers(0, 10**15),
        ends=st.integers(0, 10**6),
        grown=st.integers(0, 10**6),
        last=st.none()
        | st.builds(
            Aboard,
            st.from_regex(r"[0-9a-z]{10}", fullmatch=True),
            st.integers(0, 10**15),
            st.integers(1, 10**4),
            st.integers(0, SUM_MAX),
            st.booleans(),
        ),
        place=st.from_regex(r"|[0-9a-z]{10}", fullmatch=True),
        dealt=st.integers(1, 10**4),
        is_tried=st.booleans(),
    )
)
def test_marks_survive_a_record(marks: Marks) -> None:
    """A record is bounded whatever happens."""
    text = "|".join([*FIELDS[:9], marks.pack(), *FIELDS[10:]])
    parsed = Record.parse(text.encode())
    assert parsed is not None
    assert parsed.marks == marks
    assert len(marks.pack()) <= MARKS_CHARS_MAX // 2


@given(st.text("0123456789.,t-az", max_size=60))
def test_marks_that_somebody_else_wrote_are_none_or_can_be_read(text: str) -> None:
    """Another hand may write anywhere."""
    assert Marks.parse(Marks.parse(text).pack()).pack() == Marks.parse(text).pack()


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
