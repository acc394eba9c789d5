"""Dead letters as the scripts keep them: told page by page, changed, made jobs of again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pool.core.record import Outcome, pack_attempt, parse_steps, steps_name
from pool.names import pair
from pool.redis.commands.letters import (
    KeyHas,
    LaneFull,
    LettersPage,
    LetterStatus,
    Made,
    OtherHandler,
    letter_changed,
    page_of,
    replayed,
)
from pool.redis.commands.talk import Missing
from tests.redis.conftest import W1, Bench

LARGE = b"x" * 2000


def parked(bench: Bench, key: str, **changes: Any) -> str:
    """Park a job that has run; return its id."""
    record = bench.put(key, "R", **changes)
    failed = pack_attempt("ValueError", "boom", "a\n traceback\t")
    handler = changes.get("handler", "h")
    edge = bench.edge("x", key, x="failed", y=f"boom\n{failed}", handler=handler)
    assert bench.advance("own", W1.name, edge) == ["OK"]
    return record.id


def replay(bench: Bench, key: str, job_id: str, anew: str, handler: str = "h", **room: int) -> Any:
    most: dict[str, Any] = {"queued_jobs_max": 100, **room}
    call = bench.lane.replay(key, job_id, anew, handler, [W1], pending_s=9.0, **most)
    return replayed(bench.run(call))


def told(bench: Bench, at: tuple[str, str] | None = None, **wanted: Any) -> LettersPage:
    return page_of(bench.run(bench.lane.letters(at, **wanted)))


@pytest.mark.parametrize("payload", [b"payload", LARGE, b"a\nb\n\nc|d", b""])
def test_a_replay_is_the_job_with_a_new_id_and_its_letter_is_gone(
    bench: Bench, payload: bytes
) -> None:
    """G-01: one step: there is the letter or the job, never both or none."""
    job_id = parked(bench, "k", payload=payload)
    assert replay(bench, "k", job_id, "anew") == Made("anew", "h")
    record = bench.record("k")
    assert (record.id, record.state, record.attempt) == ("anew", "pending", 1)
    assert record.more == f"l{job_id},o{job_id}"
    assert not bench.do("EXISTS", bench.names.letters, bench.names.parked)
    started: Any = bench.client.xrange(bench.names.stream(W1.name))
    found = bench.do("HGET", bench.names.payloads, "k") or started[0][1].get(b"p")
    assert found == payload
    before = bench.dump()
    assert replay(bench, "k", job_id, "other") == Made("anew", "h"), "a repeat learns what was made"
    assert bench.dump() == before
    old = bench.look("k", job_id)
    assert isinstance(old, Outcome)
    assert (old.word, old.cause, old.error) == ("parked", "failed", "boom")
    assert old.more == "hh,yanew"
    assert bench.audit() == []


def test_what_cannot_be_replayed_now_changes_nothing(bench: Bench) -> None:
    """G-09."""
    job_id, other_id = parked(bench, "k"), parked(bench, "o")
    live = bench.put("k", "P")
    before = bench.dump()
    assert replay(bench, "k", job_id, "anew") == KeyHas("pending", "w1.1", live.id, "h", "job")
    assert replay(bench, "o", other_id, "anew", queued_jobs_max=1) == LaneFull(1)
    assert replay(bench, "o", other_id, "anew", "other") == OtherHandler("h")
    assert replay(bench, "o", job_id, "anew") == LetterStatus.NO_LETTER, "it is another key's"
    assert bench.dump() == before
    bench.do("HDEL", bench.names.handlers, "h")
    assert replay(bench, "o", other_id, "anew") == LetterStatus.UNKNOWN
    bench.do("HSET", bench.names.letters, pair("o", other_id), "garbage")
    assert replay(bench, "o", other_id, "anew") == LetterStatus.UNREADABLE
    bench.do("HSET", bench.names.jobs, "k", "garbage")
    assert replay(bench, "k", job_id, "anew") == LetterStatus.UNREADABLE


def test_a_replay_without_room_waits_unassigned(bench: Bench) -> None:
    job_id = parked(bench, "k")
    bench.take(W1, 0)
    assert replay(bench, "k", job_id, "anew") == Made("anew", "h")
    assert bench.record("k").state == "unassigned"
    assert bench.audit() == []


def test_an_edit_keeps_all_but_the_payload(bench: Bench) -> None:
    job_id = parked(bench, "k")
    [before] = told(bench).told
    assert letter_changed(bench.run(bench.lane.letter("edit", "k", job_id, LARGE))).value == "OK"
    [after] = told(bench).told
    assert after.payload_bytes == len(LARGE)
    assert after.letter.outcome.body == before.letter.outcome.body
    assert after.letter.outcome.more == f"{before.letter.outcome.more},e"
    assert replay(bench, "k", job_id, "anew") == Made("anew", "h")
    assert bench.do("HGET", bench.names.payloads, "k") == LARGE
    for what in ("edit", "discard"):
        call = bench.lane.letter(what, "k", job_id, b"")
        assert letter_changed(bench.run(call)) is LetterStatus.NO_LETTER


def test_a_letter_answers_for_its_job_after_its_outcome_is_forgotten(bench: Bench) -> None:
    job_id = parked(bench, "k")
    bench.do("DEL", bench.names.result("k", job_id))
    found = bench.look("k", job_id)
    assert isinstance(found, Outcome)
    assert (found.word, found.error, [each.type for each in found.attempts]) == (
        "parked",
        "boom",
        ["ValueError"],
    )
    assert found.attempts[0].traceback == "a\n traceback\t"
    assert letter_changed(bench.run(bench.lane.letter("discard", "k", job_id))).value == "OK"
    assert isinstance(bench.look("k", job_id), Missing)
    assert bench.audit() == []


def test_pages_tell_each_letter_once_and_go_on_behind_one_that_is_gone(bench: Bench) -> None:
    ids = {f"k{i}": parked(bench, f"k{i}") for i in range(9)}
    for key, job_id in ids.items():  # three in each millisecond
        bench.do("ZADD", bench.names.parked, 10 + int(key[1:]) // 3, pair(key, job_id))
    found, at = list[str](), None
    while True:
        page = told(bench, at, found_max=2)
        found += [each.letter.key for each in page.told]
        at = page.at
        if at is None:
            break
        if len(found) == 4:
            bench.run(bench.lane.letter("discard", *at[1].split(" ")[::-1]))  # type: ignore[arg-type]
    assert sorted({*found}) == sorted(ids)
    assert len(found) - len({*found}) <= 2, "again only what was parked in the same millisecond"
    assert [e.letter.key for e in told(bench, since_ms=12).told] == ["k6", "k7", "k8"]
    assert [e.letter.key for e in told(bench, until_ms=10).told] == ["k0", "k1", "k2"]
    assert [e.letter.key for e in told(bench, prefix="k4").told] == ["k4"]
    assert told(bench, handler="other").told == told(bench, cause="poison").told == ()


def test_the_last_attempts_are_kept_and_go_with_the_job(bench: Bench) -> None:
    """What failed is told with the letter; of a job that is done nothing is left."""
    for end in ("x", "d", "c"):
        bench.put("k", "R")
        for number in range(10):
            failed = json.dumps({"type": f"E{number}"})
            edge = bench.edge("w", "k", x=1, y=number + 2, z=f"boom\n{failed}")
            assert bench.advance("own", W1.name, edge) == ["OK"]
            granted = bench.edge("g", "k", x="1")
            assert bench.advance("free", "", granted, targets=[W1])[0].startswith("GRANTED")
            assert bench.advance("own", W1.name, bench.edge("a", "k"))[0].startswith("OK")
            assert bench.audit() == []
        assert bench.do("HGET", bench.names.attempts, "k").count(b"\t") == 8
        job_id = bench.record("k").id
        edge = bench.edge(end, "k", **({"y": 'boom\n{"type":"last"}'} if end == "x" else {}))
        assert bench.advance("own", W1.name, edge) == ["OK"]
        assert not bench.do("EXISTS", bench.names.attempts)
        if end == "x":
            told_of = bench.outcome(job_id).attempts
            assert [each.type for each in told_of] == [*(f"E{i}" for i in range(3, 10)), "last"]
        assert bench.audit() == []


def test_a_crash_is_an_entry_of_its_own(bench: Bench) -> None:
    bench.put("k", "R")
    claim = bench.fenced(W1)
    edge = bench.edge("g", "k", x="", y="ma=w1.1-")
    told_of = bench.advance("reap", W1.name, edge, claim=claim.claim)
    assert told_of == ["UNASSIGNED"]
    text = bench.do("HGET", bench.names.attempts, "k").decode()
    assert text.startswith(f"{bench.record('k').id}\t")
    assert text.endswith(' 1 w1.1 {"type":"crash"}')
    assert bench.audit() == []


def test_what_a_letter_became_is_remembered_longer_than_how_it_was_parked(bench: Bench) -> None:
    """The older note's time is up first: it must not take the newer one along."""
    job_id = parked(bench, "k")
    before: Any = bench.client.zrange(bench.names.kept, 0, -1)
    [first] = before
    assert replay(bench, "k", job_id, "anew") == Made("anew", "h")
    bench.do("ZADD", bench.names.kept, 1, first)
    bench.run(bench.lane.expire([first.decode()], items_max=9))
    assert bench.client.zcard(bench.names.kept) == 1
    assert replay(bench, "k", job_id, "other") == Made("anew", "h")
    kept: Any = bench.client.zrange(bench.names.kept, 0, -1)
    assert bench.counter("results") == sum(int(text.split(b" ")[0]) for text in kept)


@pytest.mark.parametrize("what", ["replay", "edit", "discard"])
def test_what_steps_returned_goes_with_the_job_unless_its_arguments_are_others(
    bench: Bench, what: str
) -> None:
    bench.put("k", "R")
    assert bench.advance("own", W1.name, bench.edge("t", "k", x="charge", y=b"17")) == ["OK"]
    job_id = bench.record("k").id
    assert bench.advance("own", W1.name, bench.edge("x", "k")) == ["OK"]
    assert bench.audit() == []
    if what != "replay":
        bench.run(bench.lane.letter(what, "k", job_id, b"other"))  # type: ignore[arg-type]
        assert not bench.do("EXISTS", bench.names.checkpoints)
        assert bench.audit() == []
    if what == "discard":
        return
    assert replay(bench, "k", job_id, "anew") == Made("anew", "h")
    assert bench.audit() == []
    has_steps = what == "replay"
    assert ("s" in bench.record("k").flags) is has_steps
    found = bench.do("HGET", bench.names.checkpoints, steps_name("k"))
    assert (found is not None and parse_steps(found) == {"charge": b"17"}) is has_steps
