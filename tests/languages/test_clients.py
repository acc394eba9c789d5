"""The clients of examples/http keep what Python workers keep, whatever dies or is lost."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import redis

from tests.languages.fleet import LANGUAGES, POOL, Fleet, Language, Process, until
from tests.languages.proxy import Between
from tests.verify import dump


def other(language: Language) -> Language:
    """Return the next language."""
    return LANGUAGES[(LANGUAGES.index(language) + 1) % len(LANGUAGES)]


def outcomes(worker: Process, key: str) -> list[str]:
    """Return what a worker says became of a key's jobs."""
    return [line["outcome"] for line in worker.said(key=key)]


def await_outcomes(worker: Process, key: str, count: int = 1) -> list[str]:
    """Wait until it has said so many: others may hear that a job has ended before it does."""
    until(lambda: len(outcomes(worker, key)) >= count, f"{worker.p} says nothing of {key}")
    return outcomes(worker, key)


def test_a_job_is_run_and_its_result_told(fleet: Fleet, language: Language) -> None:
    """Whatever text it was given; one that fails is tried again (G-05)."""
    worker = fleet.worker(language)
    key, text = f"naïve key/{language}", 'Grüße, ☃ "\\\n\t \u2028 𝄞'
    plain = fleet.dispatch(f"plain-{language}", text=text)
    failing = fleet.dispatch(f"failing-{language}", fails=1)
    told = fleet.result(f"plain-{language}", plain)
    assert told["result"]["text"] == text
    assert fleet.result(f"failing-{language}", failing)["result"]["attempt"] == 2
    assert await_outcomes(worker, f"failing-{language}", 2) == ["retried", "done"]
    odd = fleet.dispatch(key)
    assert await_outcomes(worker, key) == ["done"]
    assert odd in {line["id"] for line in worker.said(key=key)}


ODD: dict[Language, list[str]] = {
    "javascript": ["null", "nothing", "symbol", "getter", "proxy", "toJSON"],
    "go": ["nil", "is", "marshal", "channel", "panic"],
}


@pytest.mark.parametrize("language", ODD)
def test_a_handler_that_ends_oddly_is_a_failed_attempt(fleet: Fleet, language: Language) -> None:
    """Whatever it throws, or returns: the worker goes on, and so do its other jobs."""
    worker = fleet.worker(language, capacity=20)
    other = fleet.dispatch(f"beside-{language}", ms=3000)
    jobs = {odd: fleet.dispatch(f"{odd}-{language}", odd=odd) for odd in ODD[language]}
    for odd, job in jobs.items():
        assert fleet.result(f"{odd}-{language}", job)["result"]["attempt"] == 2, odd
        assert await_outcomes(worker, f"{odd}-{language}", 2) == ["retried", "done"]
    assert fleet.result(f"beside-{language}", other)["result"]["attempt"] == 1


def test_what_a_message_throws_is_a_failed_attempt(fleet: Fleet) -> None:
    worker = fleet.worker("javascript")
    job = fleet.dispatch("told", odd="message")
    fleet.await_event("start", key="told")
    fleet.ask("POST", "/v1/jobs/told/notify", {"value": "fail"})
    assert fleet.result("told", job)["result"]["attempt"] == 2
    assert await_outcomes(worker, "told", 2) == ["retried", "done"]


def test_a_program_prints_its_result_and_nothing_else(fleet: Fleet) -> None:
    """It arrives as it was printed; what is no JSON fails for good, since it would come again."""
    worker = fleet.worker("shell")
    good = {
        "big": ("9007199254740993", 2**53 + 1),
        "none": (" \n", None),
        "lines": ("[1,\n2]\n", [1, 2]),
    }
    for key, (prints, result) in good.items():
        job = fleet.dispatch(key, prints=prints)
        told = fleet.result(key, job)
        assert (told["has_result"], told["result"]) == (True, result), key
    bad = {
        "nan": ("NaN", "NaN"),
        "two": ("1 2", "one value in JSON"),
        "bytes": ('"\xff"', "no UTF-8"),
        "far": ("1e400", "inf"),
        "half": ('{"a":', "parse error"),
        "more": ('1,"state":2', "parse error"),
    }
    for key, (prints, problem) in bad.items():
        told = fleet.result(key, fleet.dispatch(key, prints=prints))
        assert (told["state"], await_outcomes(worker, key)) == ("parked", ["parked"]), key
        assert problem in told["error"], key
    assert len(fleet.events("start", key="nan")) == 1


def test_a_killed_workers_job_is_taken_over(fleet: Fleet, language: Language) -> None:
    """By whoever is there, under a higher epoch (G-06)."""
    key = f"killed-{language}"
    victim = fleet.worker(language)
    job = fleet.dispatch(key, ms=3000)
    first = fleet.await_event("start", key=key)
    heir = fleet.worker(other(language))
    victim.kill()
    second = fleet.await_event("start", key=key, count=2)
    assert (first.p, second.p) == (victim.p, heir.p)
    assert second.epoch > first.epoch
    assert fleet.result(key, job)["result"]["epoch"] == second.epoch
    assert await_outcomes(heir, key) == ["done"]
    assert not outcomes(victim, key)
    assert [event.err for event in fleet.events("end", key=key) if event.p == victim.p] in (
        [],
        ["cancelled"],  # a program of its own, which does not outlive the worker for long
    )


def test_a_gateway_that_dies_takes_nobody_with_it(fleet: Fleet, language: Language) -> None:
    """Neither who runs something, nor who waits: the same worker goes on at the other gateway."""
    worker = fleet.worker(language)
    for turn, gateway in enumerate(fleet.gateways):
        key = f"gateway-{turn}-{language}"
        running = fleet.dispatch(key, ms=2000)
        fleet.await_event("start", key=key)
        gateway.kill()
        assert fleet.result(key, running)["result"]["call"] == f"call-{key}"
        waiting = fleet.dispatch(f"{key}-next")
        assert fleet.result(f"{key}-next", waiting)["has_result"]
        assert len(fleet.events("start", key=key)) == 1
        gateway.up()
    assert len([line for line in worker.lines if "worker" in line]) == 1  # it had registered once


def test_who_is_told_to_leave_ends_what_it_can_and_gives_back_the_rest(
    fleet: Fleet, language: Language
) -> None:
    """What is given back begins elsewhere at once, and as the same attempt (G-09)."""
    leaving = fleet.worker(language, grace_s=3)
    short, long = f"short-{language}", f"long-{language}"
    if language != "shell":  # it does one thing at a time
        fleet.dispatch(short, ms=1000)
        fleet.await_event("start", key=short)
    job = fleet.dispatch(long, ms=6000)
    first = fleet.await_event("start", key=long)
    heir = fleet.worker(other(language))
    leaving.send(signal.SIGTERM)
    assert leaving.wait() == 0, leaving.log()
    if language != "shell":
        assert outcomes(leaving, short) == ["done"]
    assert outcomes(leaving, long) == ["released"]
    second = fleet.await_event("start", key=long, count=2)
    [end] = [event for event in fleet.events("end", key=long) if event.p == leaving.p]
    assert end.err == "cancelled"
    assert end.t < second.t
    assert (second.p, second.attempt) == (heir.p, first.attempt)
    assert fleet.result(long, job)["has_result"]
    with redis.Redis.from_url(fleet.server.url) as client:
        leases = dump.state_of(client, POOL)["leases"]
    gone = {line["worker"] for line in leaving.lines if "worker" in line}
    assert not [lease for lease in leases if lease.partition(".")[0] in gone]


def test_a_job_that_is_stopped_ends_in_its_handler(fleet: Fleet, language: Language) -> None:
    """And then it is cancelled, for everybody (G-08)."""
    key = f"stopped-{language}"
    worker = fleet.worker(language)
    job = fleet.dispatch(key, ms=60_000)
    fleet.await_event("start", key=key)
    fleet.ask("POST", f"/v1/jobs/{key}/{job}/stop", {"cause": "enough", "wait_s": 20}, wait_s=20.0)
    told = fleet.result(key, job)
    assert await_outcomes(worker, key) == ["cancelled"]
    assert (told["state"], told["has_result"]) == ("cancelled", False)
    assert [event.err for event in fleet.events("end", key=key)] == ["cancelled"]


def test_who_is_cut_off_stops_before_anybody_else_begins(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """By `expires_in_s` alone, and it comes back as another worker (G-03)."""
    key = f"cut-{language}"
    alone = fleet.worker(language, gateways=[between.url])
    job = fleet.dispatch(key, ms=12_000)
    fleet.await_event("start", key=key)
    heir = fleet.worker(other(language))
    between.is_cut = True
    second = fleet.await_event("start", key=key, count=2)
    [end] = fleet.events("end", key=key)
    assert (end.p, end.err, second.p) == (alone.p, "cancelled", heir.p)
    assert end.t < second.t
    between.is_cut = False
    assert fleet.result(key, job)["result"]["epoch"] == second.epoch
    assert await_outcomes(alone, key) == ["refused"]
    heir.leave()
    until(
        lambda: len(alone.said()) and alone.said()[-1].get("worker"),
        lambda: f"it does not register again: {alone.lines} {alone.log()} {between.answered[-5:]}",
    )
    again = fleet.dispatch(f"{key}-again")
    assert fleet.result(f"{key}-again", again)["has_result"]
    assert await_outcomes(alone, f"{key}-again") == ["done"]


def test_what_is_completed_too_late_is_refused(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """The token of a lease that is over does nothing, and the result is the new owner's."""
    key = f"late-{language}"
    alone = fleet.worker(language, gateways=[between.url])
    between.held["complete"] = threading.Event()  # before it can end, however long its heir takes
    job = fleet.dispatch(key, ms=500)
    first = fleet.await_event("start", key=key)
    heir = fleet.worker(other(language))
    between.is_cut = True
    second = fleet.await_event("start", key=key, count=2)
    assert fleet.result(key, job)["result"]["epoch"] == second.epoch > first.epoch
    between.is_cut = False
    between.held["complete"].set()
    assert await_outcomes(alone, key) == ["refused"]
    assert await_outcomes(heir, key) == ["done"]
    until(
        lambda: ("complete", 409) in between.answered or ("complete", 410) in between.answered, ""
    )
    assert ("complete", 200) not in between.answered


def test_answers_that_are_lost_change_nothing(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """What a lost answer handed out is handed out again under the same token, and begun once."""
    worker = fleet.worker(language, gateways=[between.url])
    for call, outcome in (("poll", "done"), ("complete", "repeated")):
        key = f"lost-{call}-{language}"
        between.lose[call] = 2
        job = fleet.dispatch(key)
        told: dict[str, Any] = fleet.result(key, job)
        assert await_outcomes(worker, key) == [outcome]
        assert told["result"]["attempt"] == 1
        assert len(fleet.events("start", key=key)) == 1
        assert not between.lose[call]


def test_a_job_whose_end_nobody_has_heard_is_not_begun_again(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """Its worker says that it holds it until what became of it is answered."""
    key = f"unheard-{language}"
    worker = fleet.worker(language, gateways=[between.url])
    between.drop["complete"] = 8  # for longer than from one poll to the next
    job = fleet.dispatch(key)
    assert fleet.result(key, job)["result"]["attempt"] == 1
    assert await_outcomes(worker, key) == ["done"]
    assert len(fleet.events("start", key=key)) == 1
    assert not between.drop["complete"]


def test_requests_that_come_twice_change_nothing(
    fleet: Fleet, language: Language, between: Between
) -> None:
    """The second one says what the first has done."""
    worker = fleet.worker(language, gateways=[between.url])
    for call in ("complete", "fail"):
        key = f"twice-{call}-{language}"
        between.twice[call] = 1
        job = fleet.dispatch(key, fails=int(call == "fail"))
        assert fleet.result(key, job)["result"]["attempt"] == 1 + (call == "fail")
        assert await_outcomes(worker, key, 1 + (call == "fail"))[-1] in ("done", "repeated")
        assert len(fleet.events("start", key=key)) == 1 + (call == "fail")
