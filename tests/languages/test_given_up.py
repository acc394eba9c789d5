"""The clients of examples/http end what takes too long, can always say so, and leave in order."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from tests.languages.fleet import Fleet, Language, until
from tests.languages.proxy import Between
from tests.languages.test_clients import await_outcomes, other, outcomes

LIMITED = {"attempts_max": 2, "backoff_s": 0.01, "backoff_max_s": 0.02}
MANY = 1_000_000


def test_a_job_that_takes_too_long_is_parked_after_its_attempts(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """It is told to stop, and given back: that has used an attempt up."""
    between.options = {"timeout_s": 1.0, **LIMITED}
    fleet.worker(language, gateways=[between.url])
    key = f"too-long-{language}"
    job = fleet.dispatch(key, ms=600_000)
    assert fleet.result(key, job)["state"] == "parked"
    assert [event.attempt for event in fleet.events("start", key=key)] == [1, 2]


def test_a_failure_that_is_refused_is_told_in_other_words(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """Forgotten, its job would be handed out again and again, under one attempt."""
    worker = fleet.worker(language, gateways=[between.url])
    key = f"refused-{language}"
    between.refuse["fail"] = 1
    job = fleet.dispatch(key, fails=9)
    told = fleet.result(key, job)
    assert (told["state"], told["attempt"]) == ("parked", 1)
    assert "by a test" in told["error"]
    assert await_outcomes(worker, key) == ["parked"]
    assert len(fleet.events("start", key=key)) == 1


def test_a_poll_that_is_refused_is_no_end_without_leaving(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """Once it is asked again in fewer words; in the end what runs is given back."""
    alone = fleet.worker(language, gateways=[between.url])
    for each in ("poll", "heartbeat"):
        between.refuse[each] = MANY
    assert alone.wait() != 0
    assert until(lambda: ("leave", 200) in between.answered, "it has not left")


def test_a_drain_is_a_way_to_leave(fleet: Fleet, language: Language) -> None:
    """What does not end within the grace begins elsewhere, as after SIGTERM."""
    leaving = fleet.worker(language, grace_s=2)
    key = f"drained-{language}"
    job = fleet.dispatch(key, ms=600_000)
    first = fleet.await_event("start", key=key)
    heir = fleet.worker(other(language))
    [who] = [line["worker"] for line in leaving.lines if "worker" in line]
    fleet.ask("POST", f"/v1/workers/{who}/drain", {"wait_s": 0})
    assert leaving.wait() == 0, leaving.log()
    assert outcomes(leaving, key) == ["released"]
    second = fleet.await_event("start", key=key, count=2)
    [end] = [event for event in fleet.events("end", key=key) if event.p == leaving.p]
    assert (end.err, second.p, second.attempt) == ("cancelled", heir.p, first.attempt)
    assert end.t < second.t
    fleet.ask("POST", f"/v1/jobs/{key}/{job}/stop", {"wait_s": 20}, wait_s=20.0)


@pytest.mark.parametrize("language", ["javascript", "go"], indirect=True)
def test_who_is_to_leave_gives_back_what_a_lost_answer_brought(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """Before what it has ends: nobody else can have it, and it does not know of it."""
    leaving = fleet.worker(language, grace_s=600, gateways=[between.url])
    long, unheard = f"long-{language}", f"unheard-of-{language}"
    running = fleet.dispatch(long, ms=600_000)
    fleet.await_event("start", key=long)
    between.lose["poll"] = MANY
    job = fleet.dispatch(unheard)

    def is_handed_out() -> Any:
        return fleet.ask("GET", f"/v1/jobs/{unheard}/{job}")["state"] == "running"

    until(is_handed_out, "nobody has it")
    heir = fleet.worker(other(language))
    leaving.send(signal.SIGTERM)
    between.lose = Counter()
    assert fleet.result(unheard, job)["result"]["attempt"] == 1
    assert fleet.await_event("start", key=unheard).p in (heir.p, leaving.p)
    assert not fleet.events("end", key=long)
    fleet.ask("POST", f"/v1/jobs/{long}/{running}/stop", {"wait_s": 20}, wait_s=20.0)
    assert leaving.wait() == 0, leaving.log()


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_progress_that_was_told_is_not_told_again(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """That would be progress, and a job that hangs would have no limit."""
    between.options = {"progress_timeout_s": 1.0, **LIMITED}
    fleet.worker(language, gateways=[between.url])
    key = f"progress-{language}"
    job = fleet.dispatch(key, ms=600_000, progress=1)
    told = fleet.result(key, job)
    assert told["state"] == "parked"
    assert "no progress" in told["error"]


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_progress_that_is_none_is_an_error_in_its_handler(fleet: Fleet, language: Language) -> None:
    """And not the end of all the others."""
    worker = fleet.worker(language)
    job = fleet.dispatch("beside", ms=600_000)
    fleet.await_event("start", key="beside")
    bad = fleet.dispatch("bad-progress", progress="much")
    assert await_outcomes(worker, "bad-progress") == ["retried"]
    fleet.ask("POST", f"/v1/jobs/bad-progress/{bad}/stop", {"wait_s": 20}, wait_s=20.0)
    assert not fleet.events("end", key="beside")
    fleet.ask("POST", f"/v1/jobs/beside/{job}/stop", {"wait_s": 20}, wait_s=20.0)
    assert await_outcomes(worker, "beside") == ["cancelled"]


def test_who_has_to_register_again_leaves_before(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """What an answer has brought that it did not heed goes on at once, not after its lease."""
    answers = list[Any]()

    def told(call: str, answer: dict[str, Any]) -> None:
        if call == "poll" and answer["jobs"] and not answers:
            answer["register_again"] = True
            answers.append(answer)

    between.told = told
    worker = fleet.worker(language, gateways=[between.url])
    key = f"again-{language}"
    job = fleet.dispatch(key)
    assert fleet.result(key, job)["result"]["attempt"] == 1
    assert await_outcomes(worker, key) == ["done"]
    assert len(fleet.events("start", key=key)) == 1
    calls = [call for call, _ in between.answered if call in ("", "leave")]
    assert calls[:3] == ["", "leave", ""]


@pytest.mark.parametrize("language", ["javascript", "go"], indirect=True)
def test_who_has_more_than_it_wanted_takes_no_more_and_goes_on(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """A gateway that gives it too much does not end it."""
    asked_for = list[int]()

    def asked(call: str, about: dict[str, Any]) -> None:
        if not call:
            about["capacity"] = 2
        elif call == "poll":
            asked_for.append(about["jobs_max"])
            if about["jobs_max"] >= 0:
                about["jobs_max"] = 2

    between.asked = asked
    worker = fleet.worker(language, capacity=1, gateways=[between.url])
    keys = [f"over-{n}-{language}" for n in range(2)]
    jobs = {key: fleet.dispatch(key, ms=600_000) for key in keys}
    for key in keys:
        fleet.await_event("start", key=key)
    until(lambda: asked_for.count(0) > 4, "it does not poll on")
    assert min(asked_for) == 0
    for key, job in jobs.items():
        fleet.ask("POST", f"/v1/jobs/{key}/{job}/stop", {"wait_s": 20}, wait_s=20.0)
        assert await_outcomes(worker, key) == ["cancelled"]


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_each_state_has_a_number_that_its_repeats_have_too(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """By that a late copy is known, at whichever gateway."""
    numbers = list[tuple[int, int]]()

    def asked(call: str, about: dict[str, Any]) -> None:
        if call == "save":
            numbers.append((about["number"], about["state"]["n"]))

    between.asked, between.lose["save"] = asked, 1
    fleet.worker(language, gateways=[between.url])
    job = fleet.dispatch("saves", saves=2)
    assert fleet.result("saves", job)["has_result"]
    assert numbers == [(1, 0), (1, 0), (2, 1)]
