"""`advance`: every change of a job, held to the table of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pool.core.crash_marks import Aboard, Marks
from pool.core.lifecycle import EDGE_NAMES, TABLE
from pool.core.record import STATES
from pool.names import queued
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import DoneEdge, Edge
from pool.redis.commands.recovery import Claim

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W1, W2 = Target("w1", 1), Target("w2", 1)
SOURCE = {"P": W1.name, "R": W1.name, "W": "", "U": "", "Q": ""}
ANSWER = {"a": "OK -", "g": "GRANTED w2.1"}
ENDS = {"d": "done", "c": "cancelled", "x": "parked"}


def guard_of(state: str) -> Any:
    return "own" if state in "PR" else "free"


def go(bench: Bench, state: str, *edges: Edge) -> list[str]:
    """Advance as whoever may in this state."""
    return bench.advance(guard_of(state), SOURCE[state], *edges, targets=[W2])


# --- only what nobody has begun -------------------------------------------------------------------


UNBEGUN = [("g", {"y": "p"}), ("w", {"y": "1 p"}), ("x", {"z": "p"})]


@pytest.mark.parametrize("intent", ["", "senough", "t"])
@pytest.mark.parametrize(("letter", "mark"), UNBEGUN)
def test_a_mark_says_that_it_is_of_before_the_acknowledgement(
    bench: Bench, letter: str, mark: dict[str, str], intent: str
) -> None:
    """Another gateway may have handed it out since, whatever is asked of it by now."""
    bench.put("k", "P")
    late = bench.edge(letter, "k", **mark)
    go(bench, "P", bench.edge("a", "k"))
    if intent:
        intend(bench, intent)
    before = bench.dump()
    assert go(bench, "R", late) == ["REFUSED R"]
    assert bench.dump() == before


@pytest.mark.parametrize(("letter", "mark"), UNBEGUN)
def test_what_has_not_begun_goes_on_elsewhere_or_ends_by_it(
    bench: Bench, letter: str, mark: dict[str, str]
) -> None:
    bench.put("k", "P")
    (answer,) = go(bench, "P", bench.edge(letter, "k", **mark))
    assert answer.startswith(ANSWER.get(letter, "OK"))
    assert bench.audit() == []


# --- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", EDGE_NAMES)
@pytest.mark.parametrize("state", STATES)
def test_every_edge_does_what_the_table_says(bench: Bench, state: str, letter: str) -> None:
    """G-05: after each edge the job is in its new state's index only; all others are refused."""
    put = bench.put("k", state)
    name = queued("k", put.id) if state == "Q" else "k"
    before = bench.dump()
    (answer,) = go(bench, state, bench.edge(letter, name))

    allowed = TABLE.get((STATES[state], letter))
    if allowed is None:
        assert answer == f"REFUSED {state}"
        assert bench.dump() == before
        return
    assert answer.startswith(ANSWER.get(letter, "OK"))
    if letter in ENDS:
        assert bench.text(name) is None
        assert bench.outcome(put.id).word == ENDS[letter]
        assert ENDS[letter] in allowed
    else:
        assert bench.record("k").state in allowed
    assert bench.audit() == []


@pytest.mark.parametrize("state", "PRWU")
@pytest.mark.parametrize("size", [7, 2000])
def test_a_grant_carries_everything_along(bench: Bench, state: str, size: int) -> None:
    """G-01, G-07: payload, messages, waiters and checkpoint stay with the job wherever it goes."""
    payload = b"x" * size
    put = bench.put("k", state, payload=payload)
    bench.run(bench.lane.notify("k", put.owner, "r1", b"hello", messages_max=5))
    bench.look("k", node="n1.1")
    (answer,) = go(bench, state, bench.edge("g", "k", z=b"=the checkpoint"))

    moved = bench.record("k")
    assert answer == f"GRANTED w2.1 {moved.epoch}"
    assert moved.epoch > put.epoch
    assert (moved.accepted, moved.waiters) == (put.accepted, ("n1.1",))
    assert {"b", "i"} <= set(moved.flags)
    assert bench.do("HGET", bench.names.checkpoints, "k") == b"|the checkpoint"
    assert bench.do("LLEN", bench.names.inbox("k")) == 1
    (fields,) = bench.entries(bench.names.stream(W2.name))
    if "p" in fields:
        assert fields["p"].encode() == payload
    else:
        assert bench.do("HGET", bench.names.payloads, "k") == payload
    assert bench.audit() == []


@pytest.mark.parametrize("state", "PRWU")
@pytest.mark.parametrize("silent_ms", [0, 4_100])
def test_a_key_goes_to_who_has_renewed_within_two_periods_or_to_nobody(
    bench: Bench, state: str, silent_ms: int
) -> None:
    """G-06: workers die together, and the keys of the first must not wait for the second's end."""
    bench.put("k", state)
    bench.do("ZADD", bench.names.keepalive, bench.now_ms() + 10_000 - silent_ms, W2.name)
    (answer,) = go(bench, state, bench.edge("g", "k"))
    assert answer.startswith("GRANTED w2.1" if not silent_ms else "UNASSIGNED")
    assert bench.audit() == []


@pytest.mark.parametrize("state", "PRWU")
def test_a_grant_without_room_leaves_the_key_unassigned(bench: Bench, state: str) -> None:
    """G-05: a key that nobody can take now is where every worker with room looks."""
    put = bench.put("k", state)
    assert go(bench, state, bench.edge("g", "k", x="")) == ["UNASSIGNED"]
    after = bench.record("k")
    assert (after.state, after.owner, after.accepted) == ("unassigned", "", put.accepted)
    assert bench.counter("unassigned") == 1
    assert bench.counter("waiting") == 0
    assert bench.audit() == []


def test_marks_of_a_grant(bench: Bench) -> None:
    """A crash mark is written as given; a requeue counts itself and asks for acknowledgement."""
    bench.put("k", "R")
    last = Aboard("waaaaaaaaa", 1, 3)
    marks = Marks(2, 10, 20, 5, last=last, place="wbbbbbbbbb", dealt=3, is_tried=True)
    bench.advance("own", W1.name, bench.edge("g", "k", y=f"m={marks.pack()}"), targets=[W1])
    assert (bench.record("k").marks, bench.record("k").requeues) == (marks, 0)
    for requeues in (1, 2):
        bench.advance("own", W1.name, bench.edge("g", "k", y="r"), targets=[W1])
        assert (bench.record("k").requeues, bench.record("k").flags) == (requeues, "a")
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["OK -"]
    assert (bench.record("k").marks, bench.record("k").requeues) == (marks, 0)
    assert bench.counter("crashed") == 1
    assert bench.counter("requeued") == 2
    assert bench.audit() == []


def test_a_retry_waits_with_its_next_attempt_and_error(bench: Bench) -> None:
    """G-05: what waits for its next attempt has a deadline; the error cannot break the record."""
    bench.put("k", "R")
    now_ms = bench.now_ms()
    edge = bench.edge("w", "k", x=1_500, y=3, z="bad | thing\thappened")
    assert bench.advance("own", W1.name, edge) == ["OK"]
    record = bench.record("k")
    assert (record.attempt, record.error) == (3, "bad   thing happened")
    due_ms = float(bench.do("ZSCORE", bench.names.due, "k:k"))
    assert now_ms + 1_500 <= due_ms <= bench.now_ms() + 1_500
    assert bench.counter("waiting") == 1
    assert bench.audit() == []


def test_what_people_write_cannot_break_an_outcome(bench: Bench) -> None:
    """G-04: a cause or an error with bars and newlines is one field, one line."""
    put = bench.put("k", "R")
    for letter, word in (("c", "cancelled"), ("x", "parked")):
        edge = bench.edge(letter, "k", x="no | such\nluck", y="li|ne\nline\n|bar")
        bench.advance("own", W1.name, edge)
        outcome = bench.outcome(put.id)
        assert (outcome.word, outcome.cause) == (word, "no   such luck")
        assert outcome.body.count(b"\n") == (word == "parked")
        put = bench.put("k", "R")
    (letter_text,) = bench.do("HVALS", bench.names.letters)
    head, error, failed, payload = letter_text.split(b"\n")
    assert (error, payload) == (b"li ne", b"payload")
    assert failed.endswith(b" 1 w1.1 line |bar")
    assert b"|hh|" in head


def test_waiters_are_told_with_every_end(bench: Bench) -> None:
    """A settlement returns who registered, and so does the acknowledgement."""
    bench.put("k", "P")
    for node in ("n1.1", "n2.1", "n1.1"):
        bench.look("k", node=node)
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["OK - n1.1,n2.1"]
    assert bench.advance("own", W1.name, bench.edge("d", "k")) == ["OK n1.1,n2.1"]


def test_seen_messages_leave_the_inbox_in_order(bench: Bench) -> None:
    """G-07: only what was handled goes; an item that is no message goes with them."""
    bench.put("k", "R")
    ids = [
        int(bench.run(bench.lane.notify("k", W1.name, f"r{i}", b"m", messages_max=5)).split()[1])
        for i in range(3)
    ]
    bench.do("LPUSH", bench.names.inbox("k"), "garbage")
    assert bench.advance("own", W1.name, bench.edge("s", "k", x=ids[1])) == ["OK"]
    left = bench.client.lrange(bench.names.inbox("k"), 0, -1)
    assert left == [f"{ids[2]}|r2|m".encode()]
    assert bench.advance("own", W1.name, bench.edge("s", "k", x=ids[2])) == ["OK"]
    assert bench.audit() == []


def test_a_run_time_limit_enters_due_and_leaves_with_the_job(bench: Bench) -> None:
    """G-05: a limit is a deadline of the running job, gone when it ends."""
    bench.put("k", "R")
    assert bench.advance("own", W1.name, bench.edge("l", "k", x=1_000)) == ["OK"]
    assert bench.do("ZCARD", bench.names.due) == 1
    assert bench.audit() == []
    bench.advance("own", W1.name, bench.edge("d", "k"))
    assert bench.do("ZCARD", bench.names.due) == 0


# --- who may ------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", EDGE_NAMES)
@pytest.mark.parametrize("wrong", ["epoch", "source", "id", "no record"])
def test_only_the_owner_at_its_epoch_may_commit(bench: Bench, letter: str, wrong: str) -> None:
    """G-02: another worker, an old epoch, another job of the key: FENCED, and nothing written."""
    put = bench.put("k", "R")
    source, edge = W1.name, bench.edge(letter, "k")
    match wrong:
        case "epoch":
            edge.epoch = put.epoch - 1
        case "source":
            source = W2.name
        case "id":
            edge.id = "another"
        case "no record":
            edge.key = "nothing"
    before = bench.dump()
    assert bench.advance("own", source, edge, targets=[W2]) == ["FENCED"]
    assert bench.dump() == before


@pytest.mark.parametrize("how", ["fenced", "unregistered", "left", "nobody"])
def test_who_is_fenced_or_unknown_commits_nothing(bench: Bench, how: str) -> None:
    """G-02: refused for all its keys at once, before the first of them is moved."""
    bench.put("k", "R")
    source = W1.name
    match how:
        case "fenced":
            bench.fenced(W1)
        case "unregistered":
            bench.do("ZREM", bench.names.keepalive, W1.name)
        case "left":
            bench.run(bench.lane.leave([W2]))
            source = W2.name
        case "nobody":
            source = ""
    call = bench.advance_call("own", source, bench.edge("d", "k"))
    assert bench.refused(call) == f"POOLGONE {source}"


def test_only_the_holder_of_the_claim_reaps(bench: Bench) -> None:
    """G-02: a reaper that was succeeded writes nothing; its successor has a higher fence."""
    bench.put("k", "R")
    first = bench.fenced(W1)
    bench.end_lease(W1.name)
    (second,) = bench.fence(holder="n2.1")
    assert int(second.claim.split("|")[1]) > int(first.claim.split("|")[1])
    edge = bench.edge("g", "k")
    for claim in (first.claim, "", "done"):
        call = bench.advance_call("reap", W1.name, edge, targets=[W2], claim=claim)
        assert bench.refused(call) == f"POOLGONE {claim}"
    (answer,) = bench.advance("reap", W1.name, edge, targets=[W2], claim=second.claim)
    assert answer.startswith("GRANTED w2.1")
    assert bench.audit() == []


def test_each_reap_batch_moves_its_deadline_on(bench: Bench) -> None:
    """G-06: a reaper that works is not succeeded, one that stopped is."""
    bench.put("k", "R")
    claim = bench.fenced(W1)
    bench.end_lease(W1.name)
    bench.advance("reap", W1.name, bench.edge("g", "k"), targets=[W2], claim=claim.claim)
    until_ms = float(bench.do("ZSCORE", bench.names.keepalive, W1.name))
    assert bench.now_ms() < until_ms <= bench.now_ms() + 1_000


def test_a_live_owners_key_cannot_be_taken(bench: Bench) -> None:
    """G-02: an ended lease alone is never enough; only fenced or unregistered owners lose keys."""
    bench.put("k", "R")
    edge = bench.edge("g", "k")
    before = bench.dump()
    assert bench.advance("free", W1.name, edge, targets=[W2]) == ["OWNED w1.1"]
    assert bench.advance("free", "", edge, targets=[W2]) == ["OWNED w1.1"]
    assert bench.advance("free", W2.name, edge, targets=[W2]) == ["OWNED w1.1"]
    assert bench.dump() == before
    bench.end_lease(W1.name)
    assert bench.advance("free", W1.name, edge, targets=[W2]) == ["OWNED w1.1"]
    bench.fence()
    (answer,) = bench.advance("free", W1.name, edge, targets=[W2])
    assert answer.startswith("GRANTED w2.1")
    assert bench.audit() == []


def test_a_key_of_an_unregistered_owner_may_be_taken(bench: Bench) -> None:
    """G-05: an owner that nobody knows cannot give anything up."""
    bench.put("k", "P")
    bench.do("ZREM", bench.names.keepalive, W1.name)
    (answer,) = bench.advance("free", W1.name, bench.edge("g", "k"), targets=[W2])
    assert answer.startswith("GRANTED w2.1")


@pytest.mark.parametrize("state", ["W", "U"])
def test_a_key_without_an_owner_has_its_epoch_checked(bench: Bench, state: str) -> None:
    """G-02: two sweepers that promote the same key: one does."""
    bench.put("k", state)
    edge = bench.edge("g", "k")
    first, second = go(bench, state, edge, edge)
    assert first.startswith("GRANTED")
    assert second == "OWNED w2.1"
    assert bench.audit() == []


@pytest.mark.parametrize("letter", ["c", "x", "g"])
def test_the_index_of_another_handler_is_refused(bench: Bench, letter: str) -> None:
    """G-05: a key that went into the wrong index would never be pulled."""
    bench.put("k", "U", handler="h")
    before = bench.dump()
    for wrong in ("other", "", "hh"):
        assert go(bench, "U", bench.edge(letter, "k", handler=wrong)) == ["MOVED_ON h"]
    assert bench.dump() == before


# --- once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("letter", "word"), ENDS.items())
def test_a_repeat_gets_the_stored_outcome(bench: Bench, letter: str, word: str) -> None:
    """G-04: the same writer's repeat is no error, and changes nothing."""
    bench.put("k", "R")
    edge = bench.edge(letter, "k")
    assert bench.advance("own", W1.name, edge) == ["OK"]
    before = bench.dump()
    assert bench.advance("own", W1.name, edge) == [f"REPEAT {word}"]
    other = DoneEdge("k", edge.epoch, edge.id, ttl_ms=60_000, result=b"another result")
    assert bench.advance("own", W1.name, other) == [f"REPEAT {word}"]
    assert bench.dump() == before


@pytest.mark.parametrize("letter", ["d", "c", "x", "w", "g"])
def test_the_first_terminal_write_wins(bench: Bench, letter: str) -> None:
    """G-04: a later writer is told who won: at another epoch, or as another worker."""
    bench.put("k", "R")
    winner, late = bench.edge("d", "k"), bench.edge(letter, "k")
    bench.advance("own", W1.name, winner)
    before = bench.dump()
    told = f"SETTLED done w1.1 {winner.epoch}"
    assert bench.advance("own", W2.name, late, targets=[W2]) == [told]
    late.epoch = winner.epoch - 1
    assert bench.advance("own", W1.name, late, targets=[W2]) == [told]
    assert bench.dump() == before


def test_a_repeated_acknowledgement_is_no_refusal(bench: Bench) -> None:
    """G-04: a worker whose answer was lost asks again, and must not cancel what it runs."""
    bench.put("k", "P", payload=b"x" * 2000)
    bench.look("k", node="n1.1")
    edge = bench.edge("a", "k")
    assert bench.advance("own", W1.name, edge) == ["OK p n1.1"]
    before = bench.dump()
    assert bench.advance("own", W1.name, edge) == ["OK p n1.1"]
    assert bench.dump() == before


def test_an_outcome_that_is_none_counts_as_absent(bench: Bench) -> None:
    """A foreign value under result:ID is answered, not raised: the rest of the batch goes on."""
    put = bench.put("k", "R")
    gone = bench.edge("d", "nothing", id="gone", epoch=put.epoch)
    edges = [gone, bench.edge("d", "k")]
    bench.do("SET", bench.names.result("nothing", "gone"), "garbage")
    assert bench.advance("own", W1.name, *edges) == ["FENCED", "OK"]
    bench.do("DEL", bench.names.result("nothing", "gone"))
    bench.do("RPUSH", bench.names.result("nothing", "gone"), "of another type")
    assert bench.advance("own", W1.name, *edges) == ["FENCED", "REPEAT done"]


# --- intents ------------------------------------------------------------------------------------


def intend(bench: Bench, intent: str) -> None:
    answer = bench.run(bench.lane.intend("k", "", W1.name, intent, again_s=1.0))
    assert answer.startswith(b"OK ")


@pytest.mark.parametrize("letter", ["w", "g", "c"])
@pytest.mark.parametrize("state", ["P", "R"])
def test_a_stop_that_was_asked_for_ends_the_job(bench: Bench, state: str, letter: str) -> None:
    """G-05: whatever would run the job again settles it by the intent's cause instead."""
    put = bench.put("k", state)
    intend(bench, "sby the user")
    edge = bench.edge(letter, "k", x="by the user" if letter == "c" else "1")
    assert bench.advance("own", W1.name, edge, targets=[W2]) == ["OK"]
    outcome = bench.outcome(put.id)
    assert (outcome.word, outcome.cause) == ("cancelled", "by the user")
    assert bench.audit() == []


@pytest.mark.parametrize("state", ["P", "R"])
def test_a_stopped_job_is_not_to_be_started(bench: Bench, state: str) -> None:
    """A stop before the start, or before a repeated acknowledgement: do not run it."""
    bench.put("k", state)
    intend(bench, "sby the user")
    before = bench.dump()
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["STOPPED by the user"]
    assert bench.dump() == before
    assert bench.advance("own", W1.name, bench.edge("d", "k")) == ["OK"]  # it ended all the same


@pytest.mark.parametrize("state", ["P", "R"])
def test_what_has_begun_is_running_though_it_shall_stop(bench: Bench, state: str) -> None:
    """13.6: else its worker could not say that it hangs, and nothing could be taken from it."""
    bench.put("k", state)
    intend(bench, "sby the user")
    assert bench.advance("own", W1.name, bench.edge("a", "k", x="1")) == ["OK d"]
    assert bench.record("k").state == "running"
    assert bench.advance("own", W1.name, bench.edge("a", "k")) == ["STOPPED by the user"]
    assert bench.audit() == []


@pytest.mark.parametrize("letter", ["d", "g"])
def test_a_timed_out_attempt_ends_as_timed_out(bench: Bench, letter: str) -> None:
    """Whoever settles or requeues next must end the attempt as a failed one."""
    bench.put("k", "R")
    intend(bench, "t")
    before = bench.dump()
    assert bench.advance("own", W1.name, bench.edge(letter, "k"), targets=[W2]) == ["TIMEDOUT"]
    assert bench.dump() == before
    assert bench.advance("own", W1.name, bench.edge("w", "k")) == ["OK"]
    assert bench.record("k").intent == ""
    assert bench.audit() == []


def test_a_limit_does_not_undo_an_intent(bench: Bench) -> None:
    """G-05: the sweeper comes back for an intent when it said it would."""
    bench.put("k", "R")
    intend(bench, "t")
    before = bench.dump()
    assert bench.advance("own", W1.name, bench.edge("l", "k", x=999_999)) == ["OK"]
    assert bench.dump() == before


# --- batches ------------------------------------------------------------------------------------


def test_each_item_has_its_own_answer(bench: Bench) -> None:
    """A bad item, whatever is wrong with it, takes nothing from its neighbours."""
    bench.put("k1", "P")
    bench.put("k2", "R")
    bench.put("k3", "R")
    bench.do("HSET", bench.names.jobs, "bad", "R|j|id||")
    answers = bench.advance(
        "own",
        W1.name,
        bench.edge("d", "k1"),
        bench.edge("d", "bad"),
        bench.edge("a", "k3", epoch=1),
        bench.edge("l", "nothing"),
        bench.edge("g", "k2"),
        bench.edge("w", "k3"),
        targets=[W2],
    )
    assert answers[:4] == ["OK", "MALFORMED", "FENCED", "FENCED"]
    assert answers[4].startswith("GRANTED w2.1")
    assert answers[5] == "OK"
    bench.do("HDEL", bench.names.jobs, "bad")
    assert bench.audit() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "R",
        "|" * 20,
        "R|j|i|h|w1.1|99999999999999999999999|1||||||1|||",  # no entry id
        "R|j|i|h|w1.1|007|1||||||1|||",
        "R|j|i|h|w1.1|0|1||||||1|||",
        f"R|j|i|h|w1.1|7|{'1' * 5000}||||||1|||",
        f"R|j|i|h|w1.1|7|1||||{'1' * 400}||1|||",
        "R|j|i|h|w1.1|7|-1||||||1|||",
        "R|j|i|h|w1.1|7|1|P|||||1|||",
        "R|q|i|h|w1.1|7|1||||||1||",
        "R|j||h|w1.1|7|1||||||1|||",
        b"\xff\x00|\n",
    ],
)
@pytest.mark.parametrize("letter", EDGE_NAMES)
def test_model_and_scripts_agree_on_what_cannot_be_read(
    bench: Bench, text: bytes | str, letter: str
) -> None:
    """A record that only one side could read would neither be run nor be parked."""
    raw = text.encode() if isinstance(text, str) else text
    bench.do("HSET", bench.names.jobs, "bad", raw)
    edge = bench.edge(letter, "bad", id="i", epoch=7)
    before = bench.dump()
    assert bench.advance("own", W1.name, edge, targets=[W2]) == ["MALFORMED"]
    assert bench.dump() == before
    assert bench.run(bench.lane.quarantine("bad", raw, "")) == b"OK"


def test_what_a_newer_version_wrote_survives(bench: Bench) -> None:
    """Unknown trailing fields are kept as they are, whatever an older node does to the job."""
    bench.put("k", "P")
    text = bench.text("k")
    assert text is not None
    bench.do("HSET", bench.names.jobs, "k", text + b"|new|fields")
    for state, letter in (("P", "a"), ("R", "w"), ("W", "g")):
        go(bench, state, bench.edge(letter, "k"))
        after = bench.text("k")
        assert after is not None
        assert after.endswith(b"|new|fields")
        assert bench.audit() == []


def test_a_claim_is_not_mistaken_for_another_identity(bench: Bench) -> None:
    """G-02: the claim on one worker gives no right to another's keys."""
    bench.put("k", "R")
    claim = bench.fenced(W2)
    assert isinstance(claim, Claim)
    call = bench.advance_call("reap", W1.name, bench.edge("g", "k"), claim=claim.claim)
    assert bench.refused(call) == f"POOLGONE {claim.claim}"
