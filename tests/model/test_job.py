"""The job's record, its table, and the decisions of a recovery: pure, so any input is tried."""

from __future__ import annotations

import random
import re
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from pool.model import job
from pool.model.job import (
    Grant,
    Options,
    Outcome,
    Park,
    Record,
    Start,
    Wait,
    after_failure,
    recover,
)

FIELDS = [
    *("R", "j", "id", "h", "w.1", "7", "1", "p", "", "", "", "", "1000", "n.1,n.2", "boom"),
]


def record(**changes: Any) -> Record:
    parsed = Record.parse("|".join(FIELDS).encode())
    assert parsed is not None
    return attrs.evolve(parsed, **changes)


def decide(given_record: Record, options: Options | None = None, now_ms: int = 2000) -> object:
    return recover(
        given_record,
        options or Options(),
        random.Random(1),
        now_ms=now_ms,
        crash_window_s=600.0,
        crashes_max=3,
    )


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
    line = job.one_line(text, 500)
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
        assert decision == Park("failed", "boom")
    else:
        assert isinstance(decision, Wait)
        assert decision.attempt == attempt + 1
        assert 0 <= decision.delay_s <= min(8.0, 0.5 * 2 ** min(attempt - 1, 20))


def test_a_job_that_only_waited_gets_no_crash_mark() -> None:
    """It is granted again at once, and must be acknowledged before its handler starts."""
    assert decide(record(state="pending")) == Grant("r")


def test_a_second_requeue_of_a_pending_job_is_delayed() -> None:
    """Requeues back off, so that a key that kills its reader does not spin."""
    assert isinstance(decide(record(state="pending", requeues=1)), Wait)


def test_what_was_delayed_still_counts_as_requeued() -> None:
    """The flag that asks for acknowledgement first stays until it is acknowledged."""
    assert decide(record(state="waiting", flags="a")) == Grant("r")
    assert decide(record(state="waiting")) == Grant("")


def test_a_running_job_gets_a_crash_mark_and_too_many_park_it() -> None:
    """Poison is isolated after `crashes_max` worker crashes."""
    assert decide(record(crashes=0)) == Grant("1")
    assert decide(record(crashes=2)) == Grant("3")
    poisoned = decide(record(crashes=3))
    assert isinstance(poisoned, Park)
    assert poisoned.cause == "poison"


def test_a_long_run_clears_the_marks() -> None:
    """Marks count crashes close together, not a service's whole life."""
    assert decide(record(crashes=3), now_ms=1000 + 600_000) == Grant("1")
    assert isinstance(decide(record(crashes=3), now_ms=1000 + 599_999), Park)


def test_intents_outlive_their_owner() -> None:
    """A stop ends it, a time-out is a failed attempt, whoever finds the record."""
    assert decide(record(intent="sbecause")) == job.Cancel("because")
    timed_out = decide(record(intent="t", attempt=5), Options(attempts_max=5))
    assert isinstance(timed_out, Park)
    assert timed_out.cause == "timed out"
    assert isinstance(decide(record(intent="t")), Wait)


def test_every_state_can_end() -> None:
    """G-05: from each live state of the table some edges lead to an end."""
    ends = {"done", "parked", "cancelled"}
    for state in job.STATES.values():
        reached = {o for (s, _), outcomes in job.TABLE.items() if s == state for o in outcomes}
        assert reached & ends, state


def test_the_diagram_shows_each_edge_that_leads_elsewhere() -> None:
    """The docs are made from the table."""
    drawn = job.diagram()
    for (state, _), outcomes in job.TABLE.items():
        for outcome in outcomes:
            assert outcome == state or f"{state} --> {outcome}:" in drawn
