"""What holds for every script of a lane: it declares, checks first, and survives a full server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis

from pool.core.ailing import Ails
from pool.core.followers import Follows
from pool.core.options import Options
from pool.core.pauses import Pause
from pool.core.schedules import ScheduledJob, ScheduleHead, StoredSchedule
from pool.core.times import Every
from pool.names import line, queued, split_pair
from pool.redis.commands.calls import Target
from pool.redis.commands.channel import outgoing_of
from pool.redis.commands.lane import SCRIPTS, Lane
from pool.redis.commands.schedules import ScheduleChange
from pool.redis.commands.upkeep import expired, walked
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.scripts import Script, ScriptCall

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

NODE, W1, W2, W3 = Target("n1", 1), Target("w1", 1), Target("w2", 1), Target("w3", 1)

Make = Callable[["Bench"], ScriptCall]


def _dispatch(bench: Bench) -> ScriptCall:
    items = [
        bench.admission("first"),
        bench.admission("large", payload=b"x" * 2000),
        bench.admission("later", delay_s=1.0),
        bench.admission("nowhere", ranked=[], unassigned=True, handler="other"),
    ]
    return bench.dispatch_call(*items, targets=[W1, W2])


def _settle(bench: Bench) -> ScriptCall:
    edges = [bench.edge(*of) for of in (("d", "r1"), ("l", "r2"), ("s", "r2"), ("a", "p"))]
    return bench.advance_call("own", "w1.1", *edges)


def _release(bench: Bench) -> ScriptCall:
    edges = [
        bench.edge("c", "r1"),
        bench.edge("x", "p"),
        bench.edge("w", "r2"),
        bench.edge("g", "r3", z=b"=checkpoint", x=""),
    ]
    return bench.advance_call("own", "w1.1", *edges, targets=[W2])


def _grant(bench: Bench) -> ScriptCall:
    return bench.advance_call("free", "", bench.edge("g", "u"), bench.edge("g", "w"), targets=[W2])


def _reap_grant(bench: Bench) -> ScriptCall:
    claim = bench.fenced(W1)
    edges = [bench.edge("g", key) for key in ("p", "r1")]
    return bench.advance_call("reap", "w1.1", *edges, targets=[W2], claim=claim.claim)


def _fence(bench: Bench) -> ScriptCall:
    bench.end_lease("w1.1")
    return bench.fence_call(suspects=["w9.1"])


def _reap(bench: Bench) -> ScriptCall:
    return bench.lane.reap(bench.fenced(W1), reap_s=1.0)


def _reap_all(bench: Bench) -> ScriptCall:
    return bench.lane.reap(bench.fenced(W2), reap_s=1.0)


def _sweep(bench: Bench) -> ScriptCall:
    bench.do("ZADD", bench.names.pending, 1, "p")
    bench.do("ZADD", bench.names.due, 1, "k:w")
    return bench.lane.sweep("n1.1", lock_s=1.0, keys_max=10)


def _quarantine(bench: Bench) -> ScriptCall:
    bench.do("HSET", bench.names.jobs, "p", "garbage")
    return bench.lane.quarantine("p", b"garbage", "w1.1")


def _restore(bench: Bench) -> ScriptCall:
    bench.do("SREM", bench.names.owned("w1.1"), "r1")
    text = bench.text("r1")
    assert text is not None
    return bench.lane.restore("w1.1", [("r1", text, 0.0)], pending_s=1.0)


def _expire(bench: Bench) -> ScriptCall:
    bench.run(bench.advance_call("own", "w1.1", bench.edge("d", "r2", ttl_ms=1)))
    while not (items := expired(bench.run(bench.lane.expire([], items_max=9))).items):
        pass  # for a millisecond
    return bench.lane.expire(items, items_max=9)


def walk(bench: Bench, cursor: str = "") -> ScriptCall:
    at = (cursor, "0", "0")
    return bench.lane.walk("n1.1", hold_s=9.0, at=at, keys_max=100, names_max=100)


def _recount(bench: Bench) -> ScriptCall:
    changes = walked(bench.run(walk(bench))).changes
    return bench.lane.recount(["h", "other"], changes=changes, found=1, counted=1)


def _queue(bench: Bench) -> ScriptCall:
    bench.put("r1", "Q")
    items = [bench.admission(k, policy=p) for k, p in (("r1", "q9"), ("r1", "r"), ("r2", "c"))]
    return bench.dispatch_call(*items, bench.admission("p", policy="a", payload=b"payload"))


def _promote(bench: Bench) -> ScriptCall:
    first, second = bench.put("r1", "Q"), bench.put("r1", "Q")
    bench.put("r2", "Q")
    edges = [bench.edge("c", queued("r1", second.id)), bench.edge("d", "r2"), bench.edge("x", "r1")]
    assert first.state == "queued"
    return bench.advance_call("own", "w1.1", *edges)


def _requeue(bench: Bench) -> ScriptCall:
    lost, kept = bench.put("r1", "Q"), bench.put("r2", "Q")
    bench.do("HDEL", bench.names.jobs, "r2")
    bench.do("HDEL", bench.names.payloads, line("r1"))
    bench.do("SREM", bench.names.owned("w1.1"), "r2")
    bench.do("HDEL", bench.names.payloads, "r2")
    bench.do("DEL", bench.names.inbox("r2"))
    return bench.lane.requeue([("r1", lost.id), ("r2", ""), ("r2", kept.id)])


def _join(bench: Bench) -> ScriptCall:
    return bench.lane.join(
        NODE,
        {W3: 10},
        {"new": Options()},
        is_new=False,
        not_after_ms=bench.now_ms() + 60_000,
        pool_ttl_ms=10_000,
    )


def _letter(bench: Bench) -> tuple[str, str]:
    """Return key and id of the dead letter that `busy` leaves."""
    [name] = bench.do("HKEYS", bench.names.letters)
    return split_pair(name.decode())


def _replay(bench: Bench) -> ScriptCall:
    key, job_id = _letter(bench)
    room: dict[str, Any] = {"pending_s": 1.0, "queued_jobs_max": 99}
    return bench.lane.replay(key, job_id, "anew", "h", [W1], **room)


def _resume(bench: Bench) -> ScriptCall:
    bench.run(bench.lane.pause("pause", Pause(key="u", order=1)))
    bench.run(bench.lane.pull(W2, ["h"], keys_max=1, pending_s=1.0))  # it stands last now
    return bench.lane.pause("resume", Pause(key="u", order=2), "h")


def _follows() -> bytes:
    nested = Follows(when="then", key="n", id="idn", handler="h", lane=0, call=b"").pack()
    call = b'["' + b"x" * 2000 + b'"]'
    follows = Follows(
        when="then", key="f", id="idf", handler="h", lane=0, call=call, followers=nested
    )
    return follows.pack()


def _lead(bench: Bench) -> ScriptCall:
    return bench.advance_call("own", "w1.1", bench.edge("d", "r1", y=_follows()))


def _outgoing(bench: Bench) -> ScriptCall:
    assert bench.advance("own", "w1.1", bench.edge("d", "r1", y=_follows())) == ["OK - 0"]
    told = outgoing_of(bench.run(bench.lane.outgoing(0, hold_s=1.0)))
    return bench.lane.outgoing(0, hold_s=1.0, taken=told.messages, root=told.root)


def _incoming(bench: Bench) -> ScriptCall:
    assert bench.advance("own", "w1.1", bench.edge("d", "r1", y=_follows())) == ["OK - 0"]
    told = outgoing_of(bench.run(bench.lane.outgoing(0, hold_s=1.0)))
    return bench.lane.incoming(0, told.root, told.messages)


def _open_batch(bench: Bench, nonce: str = "b1") -> ScriptCall:
    return bench.lane.batch_open("b", nonce, least=None, keep_s=9.0, open_s=9.0)


def _batch(bench: Bench, *, is_sealed: bool = False) -> Lane:
    bench.run(_open_batch(bench))
    bench.run(bench.lane.batch_add("b", "b1", 0, ["k1", "k2"]))
    if is_sealed:
        bench.run(bench.lane.batch_seal("b", "b1", 2, check_s=9.0))
    return bench.lane


def _schedule(bench: Bench) -> ScriptCall:
    job = ScheduledJob(lane=0, key="f", handler="h", call=b"[]")
    due = StoredSchedule(
        name="due", head=ScheduleHead(due_ms=1, next_ms=1, token="t"), when=Every(1), job=job
    )
    line = due.head.pack()
    new = ScheduleChange(name="due", seen=b"", head=line, body=due.body, due_ms=1)
    bench.run(bench.lane.schedule([new], hold_s=2.0))
    following = ScheduleHead(due_ms=2, next_ms=2, fired=1, token="u").pack()
    fired = ScheduleChange(
        name="due",
        seen=line.encode(),
        head=following,
        due_ms=2,
        messages=[(0, job.message("due@1970-01-01T00:00:00Z"))],
    )
    return bench.lane.schedule([fired], hold_s=2.0, is_firing=True)


# Each makes a call which writes, in a lane as `busy` makes it.
ACCEPTING: dict[str, Make] = {
    "dispatch": _dispatch,
    "queue": _queue,
    "ttl": lambda b: b.lane.change_ttl(2_000),
    "notify": lambda b: b.lane.notify("r1", "w1.1", "r9", b"m", messages_max=9),
    "batch_open": _open_batch,
    "batch_add": lambda b: _batch(b).batch_add("b", "b1", 2, ["k3"]),
    "schedule": _schedule,
    "tick": lambda b: b.lane.tick("t", "a", every_s=1.0),
    "follow": lambda b: b.lane.follow(["k"], ["h"], for_s=60),
    "edit": lambda b: b.lane.letter("edit", *_letter(b), b"another payload"),
}
FREEING: dict[str, Make] = {
    "join": _join,
    "signal": lambda b: b.lane.signal("n1.1", ("t", "ended", "i", "j1")),
    "thaw": lambda b: b.lane.thaw(["w2.1"]),
    "look": lambda b: b.lane.look([("r1", ""), ("none", "j")], node="n7.1"),
    "settle": _settle,
    "lead": _lead,
    "outgoing": _outgoing,
    "incoming": _incoming,
    "release": _release,
    "grant": _grant,
    "reap grant": _reap_grant,
    "renew": lambda b: b.renew_call({"n1.1": -1, "w1.1": 5}, ails=Ails(down=1)),
    "fence": _fence,
    "reap": _reap,
    "reap all": _reap_all,
    "forget": lambda b: b.lane.forget([b.fenced(W2)]),
    "expire": _expire,
    "sweep": _sweep,
    "stop": lambda b: b.lane.intend("r1", "", "w1.1", "sbecause", again_s=1.0),
    "pull": lambda b: b.lane.pull(W2, ["h", "other"], keys_max=5, pending_s=1.0),
    "leave": lambda b: b.lane.leave([W2, NODE]),
    "quarantine": _quarantine,
    "restore": _restore,
    "promote": _promote,
    "requeue": _requeue,
    "walk": walk,
    "recount": _recount,
    "replay": _replay,
    "batch_seal": lambda b: _batch(b).batch_seal("b", "b1", 2, check_s=9.0),
    "batch_ends": lambda b: _batch(b).batch_ends("b", "b1", [(1, "m")]),
    "batch_tend": lambda b: _batch(b, is_sealed=True).batch_tend("b", 0, hold_s=5.0, check_s=50.0),
    "batch_look": lambda b: _batch(b).batch_look("b", node="n7.1"),
    "muster": lambda b: b.lane.muster([("r1", "id1"), ("none", "j")], missing_s=9.0),
    "discard": lambda b: b.lane.letter("discard", *_letter(b)),
    "pause": lambda b: b.lane.pause("pause", Pause(handler="h", order=1)),
    "resume": _resume,
    "note": lambda b: b.lane.note([("commit.refused", "k", "j", "h", "w1.1", 1, 1, "FENCED")]),
}
READING: dict[str, Make] = {
    "reconcile": lambda b: b.lane.reconcile("w1.1"),
    "inbox": lambda b: b.lane.inbox("r1", ""),
    "letters": lambda b: b.lane.letters(),
}
ALL = {**ACCEPTING, **FREEING, **READING}


def busy(bench: Bench) -> Bench:
    """Fill a lane with a job in each state, messages, a checkpoint and a dead letter."""
    for key, state in (("p", "P"), ("r1", "R"), ("r2", "R"), ("r3", "R"), ("x", "R"), ("w", "W")):
        bench.put(key, state)
    bench.put("u", "U", payload=b"x" * 2000)
    for key in ("r1", "r2"):
        bench.run(bench.lane.notify(key, "w1.1", "r1", b"m", messages_max=5))
    bench.advance("own", "w1.1", bench.edge("x", "x"), bench.edge("w", "r3"))
    bench.advance("free", "", bench.edge("g", "r3", z=b"=checkpoint"), targets=[W1])
    bench.advance("own", "w1.1", bench.edge("a", "r3"))
    bench.run(bench.renew_call({"n1.1": -1, "w1.1": 10, "w2.1": 10}))
    assert bench.audit() == []
    return bench


# --- what it touches ----------------------------------------------------------------------------


def test_every_script_of_the_lane_is_held_to_these_rules() -> None:
    """A script that is added must be added here."""
    scripts = {script.name for script in SCRIPTS}
    tested = {"settle": "advance", "release": "advance", "grant": "advance", "stop": "intend"}
    tested |= {"reap grant": "advance", "reap all": "reap", "edit": "letter", "discard": "letter"}
    tested |= {"promote": "advance", "queue": "dispatch", "lead": "advance", "resume": "pause"}
    # `found` has one key, in the control prefix, and a test of its own; so has `rate`, which knows
    # of no job.
    assert {tested.get(name, name) for name in ALL} == scripts - {"open_pool", "rate"}


def test_the_bench_notices_a_key_that_was_not_declared(bench: Bench) -> None:
    """The check that all these tests rely on: only the call's own KEYS may be touched."""
    source = f"return redis.call('HGET', '{bench.names.jobs}', 'k')"
    call = bench.renew_call({"w1.1": 1})
    rogue = Script("rogue", (("rogue", source),), call.script.keys, ())
    bench.do("SCRIPT", "LOAD", rogue.source)
    with pytest.raises(redis.ResponseError, match=r"No permissions|can't access"):
        bench.run(ScriptCall(rogue, call.keys, (), None))


@pytest.mark.parametrize("name", ALL)
def test_no_call_carries_two_hash_tags(bench: Bench, name: str) -> None:
    """Of every script, all keys live on one node of a Redis Cluster."""
    keys = ALL[name](busy(bench)).keys
    assert len(keys) > 1 or name == "follow"
    assert {key[: key.index("}") + 1] for key in keys} == {bench.names.prefix[:-1]}


def _ms(bench: Bench) -> int:
    seconds, micros = bench.do("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("name", ALL)
def test_every_call_leaves_the_lane_sound(bench: Bench, name: str) -> None:
    """G-05: the calls of this file, as they are meant to be used."""
    call = ALL[name](busy(bench))
    before, began = bench.dump(), _ms(bench)
    while _ms(bench) == began:
        pass  # within the same millisecond a reaper's new deadline may be the one that stands there
    bench.run(call)
    assert (bench.dump() == before) == (name in READING)
    assert bench.audit() == []


# --- checks come first --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_data_of_another_generation_refuse(bench: Bench, name: str) -> None:
    """G-01: POOLDATALOST, and nothing is written; also when the lane is new or gone."""
    call = ALL[name](busy(bench))
    bench.do("HSET", bench.names.lane, "incarnation", "inc-2")
    assert bench.refused(call) == f"POOLDATALOST {bench.names.lane}"
    if name != "join":
        bench.do("DEL", bench.names.lane)
        assert bench.refused(call) == f"POOLDATALOST {bench.names.lane}"


@pytest.mark.parametrize("name", ALL)
def test_a_key_of_the_wrong_type_is_noticed_before_the_first_write(bench: Bench, name: str) -> None:
    """Lua has no rollback: each key in turn is of another type, and nothing is written."""
    call = ALL[name](busy(bench))
    sound = bench.save()
    for key in dict.fromkeys(call.keys):
        bench.restore(sound)
        bench.do("DEL", key)
        bench.do("SET", key, "of another type")
        before = bench.dump()
        said = ""
        try:
            bench.run(call)
        except redis.ResponseError as error:
            said = str(error)
        if said:
            assert said.startswith("WRONGTYPE"), key
            assert bench.dump() == before, f"{key}: written before it raised"
            is_alone = name in ("notify", "inbox")  # of one job
            assert is_alone or not own(bench, key), (
                f"{key}: one job's or handler's key fails the whole batch"
            )
        else:
            is_outcome = key.startswith(bench.names.prefix + "result:")
            nobodys = {*unused(bench, name), kept(bench, name), bench.names.journal}
            is_skipped = own(bench, key) or key in nobodys
            assert is_outcome or is_skipped, f"{key}: nobody noticed"


def own(bench: Bench, key: str) -> bool:
    """Say whether a key is one job's or one handler's, in a call that may be about others too."""
    return key.startswith((bench.names.inbox(""), bench.names.unassigned("")))


def kept(bench: Bench, name: str) -> str:
    """Without it an answer is remembered for too long, which is nothing to lose a job for."""
    return "" if name == "expire" else bench.names.kept


def unused(bench: Bench, name: str) -> set[str]:
    """Return the keys of a call whose type does not matter to it; of outcomes it never does.

    An outcome is only looked for (any type is one), or overwritten; an inbox is deleted with its
    job; `open` is for calls with targets, `trials` for starts that begin or have lived for long
    enough, dead letters for what is not just done, an unassigned index for keys that go there or
    stay; the journal keeps nobody from anything.  A renewal leaves two indexes alone then: leases
    must not end for their sake; signals are looked for, and read by others.  A sweep takes who
    cannot be looked up there for one that does not hang.
    """
    n = bench.names
    inboxes = {n.inbox(key) for key in ("p", "r1", "r2", "r3", "u", "w")}
    match name:
        case "settle" | "lead":
            return {n.inbox("r1"), n.open, n.trials, n.parked, n.letters, n.attempts}
        case "look":
            return {n.deaths, n.letters}  # for records with marks, and who has no outcome
        case "promote":
            return {*inboxes, n.open, n.trials}
        case "forget":  # whose indexes are of another type owns what the reaper has to see to
            return {n.owned("w2.1"), n.stream("w2.1"), n.signal("w2.1")}
        case "release" | "reap grant":
            return {*inboxes, n.trials}
        case "grant":
            return {*inboxes, n.keepalive, n.cleanup, n.trials}
        case "renew":
            return {n.open, n.handlers, *map(n.signal, ("n1.1", "w1.1", "w2.1"))}
        case "sweep":
            return {n.open}
        case "batch_open" | "batch_add" | "batch_look":  # then there is no batch
            return {n.batch("b")}
        case "batch_seal" | "batch_ends" | "batch_tend":
            return {n.batch("b"), n.jobs}
        case "incoming":  # a count of a schedule's that cannot be written holds up no channel
            return {n.schedules}
        case "schedule":  # declared for what it shares with others
            return {n.jobs}
        case "quarantine":
            return {n.owned("w1.1"), n.stream("w1.1")}
        case _:
            return set()


@pytest.mark.parametrize("name", ["join", "renew", "fence", "reap", "sweep", "pull", "leave"])
def test_odd_values_in_the_keep_alive_maps_raise_nothing(bench: Bench, name: str) -> None:
    """What is found in a field is read as text, and what makes no sense counts as absent."""
    call = ALL[name](busy(bench))
    for worker in ("w1", "w2", "w3"):
        bench.do("HSET", bench.names.open, worker, "\x00|")
    bench.do("HSET", bench.names.cleanup, "sweeper", "garbage")
    bench.do("HSET", bench.names.cleanup, "w9.1", "garbage")
    bench.run(call)


# --- a full server ------------------------------------------------------------------------------


@pytest.fixture
def at_its_limit(
    server_to_fill: EmbeddedServer, bench: Bench
) -> Iterator[Callable[[Make], tuple[Bench, ScriptCall]]]:
    """Return what prepares a busy lane on a server, and then fills the server."""
    with redis.Redis.from_url(server_to_fill.url, protocol=2) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        own = type(bench)(client, bench.pool)

        def fill(make: Make) -> tuple[Bench, ScriptCall]:
            call = make(busy(own.join()))
            own.load(call)
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.ResponseError, match="command not allowed"):
                client.set("any", "thing")
            return own, call

        yield fill
        client.config_set("maxmemory", 0)
        own.close()


@pytest.mark.parametrize("name", [*FREEING, *READING])
def test_what_frees_or_keeps_alive_succeeds_on_a_full_server(
    at_its_limit: Callable[[Make], tuple[Bench, ScriptCall]], name: str
) -> None:
    """G-09: leases are renewed, jobs end and are recovered, so that memory can be freed."""
    full, call = at_its_limit(ALL[name])
    before = full.dump()
    full.run(call)
    assert (full.dump() == before) == (name in READING)
    full.client.config_set("maxmemory", 0)  # a full Redis 7.0 refuses the auditor's MULTI
    assert full.audit() == []


@pytest.mark.parametrize("name", ACCEPTING)
def test_what_accepts_is_refused_on_a_full_server(
    at_its_limit: Callable[[Make], tuple[Bench, ScriptCall]], name: str
) -> None:
    """G-09: refused at once, with nothing written."""
    full, call = at_its_limit(ALL[name])
    assert "command not allowed when used memory" in full.refused(call)


def test_one_can_look_at_a_job_on_a_full_server(
    at_its_limit: Callable[[Make], tuple[Bench, ScriptCall]],
) -> None:
    """G-09: also whoever waits for several, of which one has ended."""
    full, call = at_its_limit(lambda b: b.lane.look([("r1", ""), ("gone", "j")], node="n7.1"))
    record, ended = full.run(call)
    assert record == full.text("r1")
    assert b"n7.1" in record
    assert ended.startswith(b"?")


def test_a_full_server_answers_each_dispatch_that_needs_no_memory(
    at_its_limit: Callable[[Make], tuple[Bench, ScriptCall]],
) -> None:
    """G-09: asked only to answer, it refuses what is new and nothing else, and writes nothing."""

    def make(b: Bench) -> ScriptCall:
        b.do("SET", b.names.result("x2", "of-ended"), "done|5|w1.1|")
        items = [b.admission(key) for key in ("first", "r1", "x2", "r2", "second")]
        items[2].id = "of-ended"
        items[3].policy = "b"
        return b.lane.dispatch(items, [W1], pending_s=1.0, queued_jobs_max=0)

    full, call = at_its_limit(make)
    before = full.dump()
    words = [status.partition(b" ")[0] for status in full.run(call)]
    assert words == [b"FULL", b"EXISTS", b"ENDED", b"ATTACHED", b"FULL"]
    assert full.dump() == before
