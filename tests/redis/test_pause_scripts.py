"""What is paused is accepted and never granted, whichever script would; and none of it is lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import attrs
import pytest

from pool.core.pauses import HANDLERS_PAUSED_MAX, KEYS_PAUSED_MAX, Pause
from pool.names import PAUSED, queued
from pool.redis.commands.edges import pulled
from pool.redis.commands.letters import Made, replayed
from pool.redis.commands.pausing import LanePauses, is_held_back, told
from tests.redis.conftest import PENDING_S, W1, W2, Bench

POOL, HANDLER, KEY = Pause(), Pause(handler="h"), Pause(key="k")
ANY = pytest.mark.parametrize("pause", [POOL, HANDLER, KEY], ids=["pool", "handler", "key"])


ORDER = count(1)


def do(bench: Bench, verb: Any, pause: Pause, handler: str = "-", order: int = 0) -> str:
    order = order or next(ORDER)
    call = bench.lane.pause(verb, attrs.evolve(pause, order=order), handler)
    found = told(bench.run(call))
    if found.moved_on:
        return do(bench, verb, pause, found.moved_on, order)
    return "FULL" if found.is_full else f"BEHIND {found.behind}" if found.behind else "OK"


def stands(bench: Bench) -> LanePauses:
    fields: Any = bench.client.hgetall(bench.names.lane)
    return LanePauses.of({name.decode(): text for name, text in fields.items()})


def pull(bench: Bench, keys_max: int = 10) -> list[str]:
    """Have a worker pull, and return the keys that it was granted, in order."""
    before = len(bench.entries(bench.names.stream(W1.name)))
    call = bench.lane.pull(W1, ["h", "other"], keys_max=keys_max, pending_s=PENDING_S, says="-")
    found = pulled(bench.run(call))
    granted = [entry["k"] for entry in bench.entries(bench.names.stream(W1.name))[before:]]
    assert found.granted == len(granted)
    assert found.left == bench.counter("unassigned")
    return granted


def line(bench: Bench, handler: str = "h") -> dict[str, float]:
    found: Any = bench.client.zrange(bench.names.unassigned(handler), 0, -1, withscores=True)
    return {key.decode(): score for key, score in found}


# --- what would be granted ----------------------------------------------------------------------


@ANY
def test_a_dispatch_is_accepted_and_waits(bench: Bench, pause: Pause) -> None:
    """G-01: as any job that nobody has room for; a repeat is told the same."""
    do(bench, "pause", pause)
    item = bench.admission("k", ranked=[], unassigned=False)
    assert bench.dispatch(item) == ["OK unassigned"], "nobody is looked for"
    assert bench.dispatch(item) == ["OK unassigned"]
    assert pull(bench) == []
    assert bench.audit() == []


@ANY
@pytest.mark.parametrize("was", ["P", "R", "W"])
def test_whatever_becomes_of_a_job_it_is_not_granted_again(
    bench: Bench, pause: Pause, was: str
) -> None:
    """A release, what a dead worker had, what is due: all of it waits, and keeps its place."""
    record = bench.put("k", was)
    do(bench, "pause", pause)
    guard: Any = "free" if was == "W" else "own"
    source = "" if was == "W" else W1.name
    edge = bench.edge("g", "k", x="1")
    assert bench.advance(guard, source, edge, targets=(W2,)) == ["UNASSIGNED"]
    assert bench.record("k").accepted == record.accepted
    assert pull(bench) == []
    assert bench.audit() == []
    do(bench, "resume", pause)
    assert pull(bench) == ["k"]
    assert bench.audit() == []


@ANY
def test_what_a_reaper_hands_out_waits(bench: Bench, pause: Pause) -> None:
    bench.put("k", "R")
    do(bench, "pause", pause)
    claim = bench.fenced(W1)
    edge = bench.edge("g", "k", x="1")
    status = bench.advance("reap", W1.name, edge, targets=(W2,), claim=claim.claim)
    assert status == ["UNASSIGNED"]
    assert bench.audit() == []


@ANY
def test_what_runs_goes_on_and_ends(bench: Bench, pause: Pause) -> None:
    bench.put("k", "R")
    do(bench, "pause", pause)
    assert bench.advance("own", W1.name, bench.edge("d", "k")) == ["OK"]
    assert bench.audit() == []


@ANY
def test_what_was_granted_before_begins(bench: Bench, pause: Pause) -> None:
    bench.put("k", "P")
    do(bench, "pause", pause)
    (status,) = bench.advance("own", W1.name, bench.edge("a", "k"))
    assert status.startswith("OK")


@ANY
def test_who_was_queued_has_its_turn_and_waits(bench: Bench, pause: Pause) -> None:
    bench.put("k", "Q")
    do(bench, "pause", pause)
    (status,) = bench.advance("own", W1.name, bench.edge("d", "k"))
    assert status.startswith("OK")
    assert bench.record("k").state == "waiting"
    assert bench.advance("free", "", bench.edge("g", "k", x="1"), targets=(W1,)) == ["UNASSIGNED"]
    assert bench.audit() == []


@ANY
def test_a_letter_becomes_a_job_that_waits(bench: Bench, pause: Pause) -> None:
    record = bench.put("k", "R")
    bench.advance("own", W1.name, bench.edge("x", "k"))
    do(bench, "pause", pause)
    call = bench.lane.replay(
        "k", record.id, "anew", "h", (W1,), pending_s=PENDING_S, queued_jobs_max=100
    )
    assert replayed(bench.run(call)) == Made("anew", "h")
    assert bench.record("k").state == "unassigned"
    assert bench.audit() == []


def test_others_are_granted_as_ever(bench: Bench) -> None:
    do(bench, "pause", HANDLER)
    do(bench, "pause", Pause(key="z"))
    assert bench.dispatch(bench.admission("a", handler="other")) == [f"OK {W1.name}"]
    assert bench.dispatch(bench.admission("b")) == ["OK unassigned"]
    do(bench, "resume", HANDLER)
    assert pull(bench) == ["b"]
    assert bench.audit() == []


# --- lines ----------------------------------------------------------------------------------------


def test_what_waited_goes_on_in_its_order(bench: Bench) -> None:
    """G-07 and more: in the order of acceptance, before whoever comes after the resume."""
    do(bench, "pause", POOL)
    for key in "abc":
        bench.dispatch(bench.admission(key, handler="other" if key == "b" else "h"))
    do(bench, "resume", POOL)
    bench.dispatch(bench.admission("d"))
    assert pull(bench) == ["b", "c", "d"], "a had its turn when d came, and there was a slot"
    assert [e["k"] for e in bench.entries(bench.names.stream(W1.name))] == ["a", "b", "c", "d"]


def test_nobody_looks_past_a_paused_key_twice(bench: Bench) -> None:
    """It stands behind all others while it is paused, and where it belongs when it is not."""
    bench.put("k", "U")
    for key in "abc":
        bench.put(key, "U")
    do(bench, "pause", KEY)
    assert pull(bench, 1) == ["a"]
    assert is_held_back(line(bench)["k"])
    assert pull(bench, 1) == ["b"]
    assert bench.audit() == []
    do(bench, "resume", KEY)
    assert pull(bench, 10) == ["k", "c"]
    assert bench.audit() == []


def test_who_dispatches_does_not_give_a_paused_head_away(bench: Bench) -> None:
    """13.7: a target with room gets the head of the line; not one whose key is paused."""
    bench.put("k", "U")
    do(bench, "pause", KEY)
    assert bench.dispatch(bench.admission("a")) == [f"OK {W1.name}"]
    assert bench.record("k").state == "unassigned"
    assert bench.dispatch(bench.admission("b")) == [f"OK {W1.name}"]
    assert bench.audit() == []


def test_a_line_of_nothing_but_paused_keys_is_left(bench: Bench) -> None:
    for n in range(40):
        bench.put(f"k{n}", "U")
        do(bench, "pause", Pause(key=f"k{n}"))
    assert pull(bench) == []
    assert pull(bench) == []
    bench.put("a", "U")
    assert pull(bench) == ["a"]
    assert bench.audit() == []


def test_of_several_pauses_each_is_enough(bench: Bench) -> None:
    for pause in (KEY, HANDLER, POOL):
        do(bench, "pause", pause)
    bench.put("k", "U")
    for pause in (POOL, HANDLER):
        do(bench, "resume", pause)
        assert pull(bench) == []
    do(bench, "resume", KEY)
    assert pull(bench) == ["k"]


# --- the script -----------------------------------------------------------------------------------


@ANY
def test_again_changes_nothing(bench: Bench, pause: Pause) -> None:
    bench.put("k", "U")
    do(bench, "pause", pause, order=next(ORDER))
    before = bench.dump()
    do(bench, "pause", pause, order=next(ORDER) - 1)
    assert bench.dump() == before
    assert stands(bench).has(pause)
    do(bench, "resume", pause, order=next(ORDER))
    before = bench.dump()
    do(bench, "resume", pause, order=next(ORDER) - 1)
    assert bench.dump() == before
    assert stands(bench) == LanePauses()
    assert bench.do("HEXISTS", bench.names.lane, PAUSED) == 0
    assert [each["edge"] for each in bench.journal()] == ["paused", "resumed"]


@ANY
def test_who_comes_late_changes_nothing_and_is_told_how_far_behind(
    bench: Bench, pause: Pause
) -> None:
    """Of two about the same the higher order counts, in whatever order they come."""
    bench.put("k", "U")
    assert do(bench, "resume", pause, order=2000) == "OK"
    before = bench.dump()
    for order in (1000, 2000):
        assert do(bench, "pause", pause, order=order) == "BEHIND 2000"
    assert bench.dump() == before
    assert do(bench, "pause", pause, order=2001) == "OK"
    before = bench.dump()
    for order in (2000, 2001):
        assert do(bench, "resume", pause, order=order) == "BEHIND 2001"
    assert bench.dump() == before
    assert do(bench, "resume", pause, order=2002) == "OK"
    assert pull(bench) == ["k"]


def test_what_is_about_something_else_makes_behind_only_who_decides_otherwise(
    bench: Bench,
) -> None:
    assert do(bench, "pause", HANDLER, order=2000) == "OK"
    assert do(bench, "pause", KEY, order=1000) == "OK"
    assert do(bench, "resume", KEY, order=1500) == "BEHIND 2000", "a number for all"
    assert do(bench, "resume", KEY, order=2001) == "OK"
    assert do(bench, "resume", POOL, order=1000) == "OK", "as it stands so"
    assert do(bench, "pause", HANDLER, order=2000) == "OK", "likewise"
    assert stands(bench) == LanePauses(handlers=("h",))


@pytest.mark.parametrize("junk", ["x", "9|", "|9", "9999999999999999|9999999999999999"])
def test_an_order_of_another_hand_keeps_nobody(bench: Bench, junk: str) -> None:
    bench.do("HSET", bench.names.lane, "paused_at", junk)
    for verb in ("pause", "resume"):
        assert do(bench, verb, KEY) == "OK"


def test_only_so_many_may_be(bench: Bench) -> None:
    several: list[tuple[int, Callable[[int], Pause]]] = [
        (HANDLERS_PAUSED_MAX, lambda n: Pause(handler=f"h{n}")),
        (KEYS_PAUSED_MAX, lambda n: Pause(key=f"k{n}")),
    ]
    for most, made in several:
        for n in range(most):
            assert do(bench, "pause", made(n)) == "OK"
        before = bench.dump()
        assert do(bench, "pause", made(most)) == "FULL"
        assert bench.dump() == before
        assert do(bench, "pause", made(0)) == "OK", "which is paused"
        assert do(bench, "resume", made(0)) == "OK"
        assert do(bench, "pause", made(most)) == "OK"


def test_who_names_another_handler_is_told_which(bench: Bench) -> None:
    do(bench, "pause", KEY)
    bench.put("k", "U", handler="other")
    assert is_held_back(line(bench, "other")["k"])
    found = told(bench.run(bench.lane.pause("resume", KEY, "h")))
    assert found.moved_on == "other"
    assert stands(bench).has(KEY), "nothing was done"
    do(bench, "resume", KEY)
    assert pull(bench) == ["k"]


def test_a_name_that_is_part_of_another_is_not_that(bench: Bench) -> None:
    for name in ("hh", "xh", "h.h", "h:"):
        do(bench, "pause", Pause(handler=name))
    assert bench.dispatch(bench.admission("k")) == [f"OK {W1.name}"]
    do(bench, "pause", HANDLER)
    do(bench, "resume", Pause(handler="hh"))
    assert stands(bench).handlers == ("xh", "h.h", "h:", "h")


@pytest.mark.parametrize("junk", ["x", "p", "|" * 3, "", "-1|", "p5"])
def test_what_another_hand_wrote_pauses_nothing(bench: Bench, junk: str) -> None:
    bench.do("HSET", bench.names.lane, PAUSED, junk)
    bench.put("u", "U")
    assert bench.dispatch(bench.admission("k", handler="other")) == [f"OK {W1.name}"]
    assert pull(bench) == ["u"]
    do(bench, "pause", KEY)
    assert stands(bench).has(KEY)


def test_if_a_pause_was_deleted_by_hand_its_job_is_the_last_of_its_line(bench: Bench) -> None:
    """G-05: it is not stuck."""
    bench.put("k", "U")
    do(bench, "pause", KEY)
    bench.put("a", "U")
    assert pull(bench, 1) == ["a"]
    bench.do("HDEL", bench.names.lane, PAUSED)
    bench.put("b", "U")
    assert pull(bench) == ["b", "k"]


def test_a_script_of_another_generation_changes_nothing(bench: Bench) -> None:
    stale = attrs.evolve(bench.lane, generation="inc-0.1")
    assert "POOLDATALOST" in bench.refused(stale.pause("pause", POOL))


def test_a_job_that_is_queued_is_not_taken_for_the_live_one(bench: Bench) -> None:
    record = bench.put("k", "Q")
    do(bench, "pause", KEY)
    do(bench, "resume", KEY)
    assert bench.record(queued("k", record.id)).state == "queued"
    assert bench.audit() == []
