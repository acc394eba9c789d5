"""`join`, `renew`, `fence`, `reap`, `open`, `leave`: who is alive, and who takes over from whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from pool.core.ailing import Ails
from pool.core.options import Options
from pool.redis.commands.calls import Target
from pool.redis.commands.member import Renewal, Ttl, registered, renewal
from pool.redis.commands.recovery import Claim, Holding, fenced, reaped

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

NODE, W1, W2 = Target("n1", 1), Target("w1", 1), Target("w2", 1)
TTL_MS = 10_000
HOUR_US = 3_600_000_000


def lease_end_ms(bench: Bench, identity: str) -> float | None:
    score = bench.do("ZSCORE", bench.names.keepalive, identity)
    return None if score is None else float(score)


def renew(bench: Bench, *identities: str, term: int = 0) -> Renewal:
    return renewal(
        bench.run(bench.renew_call({n: -1 if n[0] == "n" else 10 for n in identities}, term=term))
    )


def reap(bench: Bench, claim: Claim, after: int = 0) -> tuple[bool, list[Holding]]:
    told = reaped(bench.run(bench.lane.reap(claim, reap_s=1.0, after=after)))
    return told.is_forgotten, [*told.held]


# --- join ---------------------------------------------------------------------------------------


def test_join_registers_everybody_and_wakes_the_node(bench: Bench) -> None:
    """A worker can be granted jobs, and its node reads its streams, from this one step on."""
    for identity in ("n1.1", "w1.1", "w2.1"):
        end = lease_end_ms(bench, identity)
        assert end is not None
        assert bench.now_ms() < end <= bench.now_ms() + TTL_MS
    assert bench.client.hgetall(bench.names.open) == {b"w1": b"1|10|0", b"w2": b"1|10|0"}
    assert bench.do("HGET", bench.names.handlers, "h") == Options().pack().encode()
    before = bench.do("XLEN", bench.names.signal("n1.1"))
    bench.join({Target("w3", 1): 0}, is_new=False)
    assert bench.do("XLEN", bench.names.signal("n1.1")) == before + 1
    assert not bench.do("HEXISTS", bench.names.open, "w3")
    assert bench.audit() == []


def test_a_late_copy_of_join_is_refused(bench: Bench) -> None:
    """G-02: not after its time, and never for who was fenced or has left meanwhile."""

    def call(worker: Target, late_ms: int) -> Any:
        return bench.lane.join(
            NODE,
            {worker: 10},
            {},
            is_new=False,
            not_after_ms=bench.now_ms() - late_ms,
            pool_ttl_ms=10_000,
        )

    assert bench.refused(call(Target("w3", 1), 1)) == "POOLGONE w3.1"
    bench.fenced(W1)
    assert bench.refused(call(W1, -TTL_MS)) == "POOLGONE w1.1"
    bench.run(bench.lane.leave([W2]))
    assert bench.refused(call(W2, -TTL_MS)) == "POOLGONE w2.1"
    bench.run(call(Target("w1", 2), -TTL_MS))
    assert bench.do("HGET", bench.names.open, "w1") == b"2|10|0"
    assert bench.audit() == []


def test_a_lane_of_a_lost_generation_is_joined_only_by_who_knows_it(bench: Bench) -> None:
    """A node that had not heard of the loss may have joined it first; its jobs stay."""
    bench.dispatch(bench.admission("k"))
    anew = attrs.evolve(bench.lane, generation="")

    def call(stale: str) -> Any:
        return anew.join(
            NODE,
            {Target("w3", 1): 10},
            {},
            is_new=False,
            not_after_ms=bench.now_ms() + TTL_MS,
            pool_ttl_ms=10_000,
            pool="inc-new",
            stale=stale,
        )

    assert bench.refused(call("")).startswith("POOLDATALOST")
    assert bench.refused(call("inc-other")).startswith("POOLDATALOST")
    bench.run(call(bench.lane.generation))
    assert bench.do("HGET", bench.names.lane, "incarnation").startswith(b"inc-new.")
    assert bench.do("HEXISTS", bench.names.jobs, "k")
    assert bench.refused(bench.renew_call({"w1.1": 10})).startswith("POOLDATALOST")


def test_a_lane_that_begins_anew_begins_above_what_its_joiners_have_seen(bench: Bench) -> None:
    """Rule 8: epochs never fall, though the server's clock is behind the pool time of before."""
    seen = 1000 * bench.now_ms() + HOUR_US
    bench.do("DEL", bench.names.lane)
    anew = attrs.evolve(bench.lane, generation="")

    def join(worker: Target, floor: int) -> None:
        call = anew.join(
            NODE,
            {worker: 10},
            {},
            is_new=False,
            not_after_ms=bench.now_ms() + TTL_MS,
            pool_ttl_ms=TTL_MS,
            pool="inc-new",
            floor=floor,
        )
        bench.lane = attrs.evolve(bench.lane, generation=registered(bench.run(call)).generation)

    def epoch(key: str) -> int:
        bench.dispatch(bench.admission(key))
        return bench.record(key).epoch

    join(W1, seen)
    first = epoch("k1")
    assert first > seen
    join(W2, seen + HOUR_US)  # who comes later may know more ...
    second = epoch("k2")
    assert second > seen + HOUR_US
    join(W2, 0)  # ... or nothing
    join(W2, seen)
    assert second < epoch("k3") < second + HOUR_US
    join(W2, 9 * 10**15 + 1)  # nobody's stamp
    assert epoch("k4") < second + HOUR_US


def test_a_renewal_raises_epochs_of_data_that_went_back(bench: Bench) -> None:
    """Rule 8: a restored snapshot, or a replica that lagged, lacks the latest epochs."""
    bench.dispatch(bench.admission("k1"))
    before = bench.record("k1").epoch
    seen = before + HOUR_US
    told = renewal(bench.run(bench.renew_call({"w1.1": 10}, floor=seen)))
    assert told.stamp == seen
    assert told.older_ms > HOUR_US / 1000 - 60_000
    bench.dispatch(bench.admission("k2"))
    assert bench.record("k2").epoch > seen
    stamp = bench.do("HGET", bench.names.lane, "stamp")
    bench.run(bench.renew_call({"w1.1": 10}, floor=before))
    assert bench.do("HGET", bench.names.lane, "stamp") == stamp
    assert bench.audit() == []


def test_a_renewal_tells_of_older_data_though_the_lane_was_used_since(bench: Bench) -> None:
    """The stamp is that of now; no renewal has been there since, and the last one is missing."""

    def renew(**options: Any) -> int:
        return int(renewal(bench.run(bench.renew_call({"w1.1": 10}, **options))).older_ms)

    heard_ms = renewal(bench.run(bench.renew_call({"w1.1": 10}))).now_ms
    assert renew(heard_ms=heard_ms) == 0
    bench.do("HINCRBY", bench.names.lane, "seen", -900)
    bench.dispatch(bench.admission("k1"))
    assert renew(heard_ms=heard_ms, floor=bench.record("k1").epoch) == 0  # as the clocks allow for
    heard_ms = int(bench.do("HGET", bench.names.lane, "seen"))
    bench.do("HINCRBY", bench.names.lane, "seen", -5000)
    bench.dispatch(bench.admission("k2"))
    assert renew(heard_ms=heard_ms, floor=bench.record("k1").epoch) == 5000
    assert renew(heard_ms=heard_ms) == 0  # it was told


def test_a_repeated_join_does_not_open_a_worker_again(bench: Bench) -> None:
    """A worker that closed itself while a copy of its join was on the way stays closed."""
    bench.take(W1, 0)
    closed = bench.opening("w1")
    bench.join()
    assert bench.opening("w1") == closed
    assert bench.opening("w2") == "1|10|0"


def test_a_workers_join_does_not_bring_its_nodes_stream_back(bench: Bench) -> None:
    """What nobody reads any more is not written: a reaped node's stream stays away."""
    bench.run(bench.lane.leave([NODE]))
    bench.join({Target("w3", 1): 1}, is_new=False)
    assert not bench.do("EXISTS", bench.names.signal(NODE.name))


# --- renew --------------------------------------------------------------------------------------


def test_a_renewal_tells_all_that_a_node_needs(bench: Bench) -> None:
    """One reply: counts, what waits, and the deadlines to sleep for."""
    for key, state in (("p", "P"), ("r1", "R"), ("r2", "R"), ("u", "U"), ("w", "W")):
        bench.put(key, state)
    told = renew(bench, "n1.1", "w1.1", "w2.1")
    assert told.counts == (0, 2, 0)
    assert told.unassigned == 1
    assert told.stamp == bench.stamp()
    assert told.now_ms <= bench.now_ms()
    assert told.lease_end_ms == told.now_ms + TTL_MS
    assert told.pending_ms == float(bench.do("ZSCORE", bench.names.pending, "p"))
    assert told.due_ms == float(bench.do("ZSCORE", bench.names.due, "k:w"))


def test_a_renewal_revives_nobody(bench: Bench) -> None:
    """G-02: fenced, left or unknown: gone; an ended lease that nobody fenced goes on."""
    bench.fenced(W1)
    bench.run(bench.lane.leave([W2]))
    bench.end_lease("n1.1")
    until = lease_end_ms(bench, "w1.1")
    assert renew(bench, "w1.1", "w2.1", "n1.1", "w9.1").counts == (-1, -1, 0, -1)
    assert lease_end_ms(bench, "w1.1") == until
    assert lease_end_ms(bench, "w9.1") is None
    end = lease_end_ms(bench, "n1.1")
    assert end is not None
    assert end > bench.now_ms()


def test_a_node_with_very_many_workers_renews(bench: Bench) -> None:
    """Lua can return at most about 8,000 values from one call of unpack; we do not use it."""
    call = bench.renew_call({f"x{i}.1": 1 for i in range(9_000)})
    bench.load(call)
    told = renewal(bench.do(*call.words()))  # as a user with 9,000 rules it would take minutes
    assert told.counts == (-1,) * 9_000


def test_a_clock_behind_the_stamp_is_journalled_once(bench: Bench) -> None:
    """Operators can see that the server's clock went back; numbers rise all the same."""
    bench.do("HSET", bench.names.lane, "stamp", bench.now_ms() * 1000 + 5_000_000)
    renew(bench, "n1.1")
    renew(bench, "n1.1")
    assert [e["edge"] for e in bench.journal()] == ["clock"]
    bench.do("HSET", bench.names.lane, "stamp", bench.now_ms() * 1000)
    renew(bench, "n1.1")
    assert not bench.do("HEXISTS", bench.names.lane, "behind")


# --- the lease clock ----------------------------------------------------------------------------

PERIOD_MS = TTL_MS // 5
REACH_MS = 3_500  # a period, the deadline of a renewal and the pause before the next try
LATE_MS = 1_000  # between two commands on a busy machine


def pass_ms(bench: Bench, gap_ms: int) -> None:
    """Let so much time pass in which nobody renews: all that the lane has is so much older."""
    n = bench.names
    for field in ("seen", "lease", "hold"):
        bench.do("HINCRBY", n.lane, field, -gap_ms)
    for name in bench.do("ZRANGE", n.keepalive, 0, -1):
        bench.do("ZINCRBY", n.keepalive, -gap_ms, name)


def lease_ms(bench: Bench) -> int:
    """Return the lease time of the last renewal."""
    return int(bench.do("HGET", bench.names.lane, "lease"))


def lease_left_ms(bench: Bench, identity: str) -> float:
    """Return what was left of a lease at the last renewal of anybody, in lease time."""
    end = lease_end_ms(bench, identity)
    assert end is not None
    return end - lease_ms(bench)


def told_of_silence(bench: Bench, first_ms: int, last_ms: int) -> Renewal:
    call = bench.renew_call({"n1.1": -1}, tried_ms=(first_ms, last_ms))
    return renewal(bench.run(call))


@pytest.mark.parametrize("gap_ms", [TTL_MS // 2 + 1, 60 * TTL_MS])
def test_a_silence_takes_nothing_from_a_lease(bench: Bench, gap_ms: int) -> None:
    """G-06: the time in which somebody asked in vain is given back, and no more than that."""
    renew(bench, "n1.1", "w2.1")
    renew(bench, "w1.1")
    pass_ms(bench, gap_ms)
    told = told_of_silence(bench, gap_ms - 500, 0)
    assert TTL_MS - 500 - LATE_MS <= lease_left_ms(bench, "w1.1") <= TTL_MS - 500
    assert bench.fence() == []
    assert told.lease_end_ms is not None
    assert told.lease_end_ms - told.now_ms == lease_left_ms(bench, "w2.1")
    assert [e["edge"] for e in bench.journal()] == ["silence"]
    pass_ms(bench, TTL_MS - 1_000)
    renew(bench, "n1.1")
    assert bench.fence() == []
    for _ in range(3):
        pass_ms(bench, PERIOD_MS)
        renew(bench, "n1.1")
    assert sorted(claim.identity for claim in bench.fence()) == ["w1.1", "w2.1"]


def test_silences_add_up_and_end(bench: Bench) -> None:
    """G-06 (K2): of half a TTL each, with as much between them; the dead one gets no new TTL."""
    renew(bench, "n1.1", "w1.1", "w2.1")
    left = [lease_left_ms(bench, "w1.1")]
    for _ in range(3):
        pass_ms(bench, TTL_MS // 2)
        told_of_silence(bench, TTL_MS // 2, 0)
        assert left[-1] - LATE_MS <= lease_left_ms(bench, "w1.1") <= left[-1]
        for _ in range(2):
            pass_ms(bench, TTL_MS // 4)
            renew(bench, "n1.1", "w2.1")
        left.append(lease_left_ms(bench, "w1.1"))
        if left[-1] <= 0:
            break
    assert len(left) == 3, "two windows of half a TTL are a TTL"
    assert [claim.identity for claim in bench.fence()] == ["w1.1"]


def test_time_in_which_nobody_asked_counts_up_to_where_a_living_node_would_have(
    bench: Bench,
) -> None:
    """G-06: nobody was left, and a newcomer takes over within a TTL of its coming."""
    renew(bench, "n1.1", "w1.1")
    pass_ms(bench, 60 * TTL_MS)
    before = bench.dump()
    assert bench.fence() == []
    assert bench.dump() == before
    renew(bench, "n1.1")
    assert abs(lease_left_ms(bench, "w1.1") - (TTL_MS - REACH_MS)) <= LATE_MS


def test_the_gap_that_is_running_counts_where_a_fence_comes_first(bench: Bench) -> None:
    """Both ways: what has ended in it is fenced, and a silence ends nothing."""
    renew(bench, "n1.1", "w1.1", "w2.1")
    bench.do("ZINCRBY", bench.names.keepalive, 1_000 - TTL_MS, "w1.1")
    bench.do("ZINCRBY", bench.names.keepalive, REACH_MS + 100 - TTL_MS, "w2.1")
    pass_ms(bench, 1_500)
    assert [claim.identity for claim in bench.fence()] == ["w1.1"]
    pass_ms(bench, 2_200)  # beyond what counts, and not yet astray
    assert "w2.1" not in [claim.identity for claim in bench.fence()]


def test_only_what_is_behind_the_last_renewal_of_anybody_is_a_silence(bench: Bench) -> None:
    """Who was cut off alone for an hour, and a message that comes late, hold up nobody's clock."""
    renew(bench, "n1.1", "w1.1")
    pass_ms(bench, 1_000)
    before = lease_ms(bench)
    told_of_silence(bench, 3_600_000, 200)
    assert 200 <= lease_ms(bench) - before <= 200 + LATE_MS
    pass_ms(bench, 1_000)
    before = lease_ms(bench)
    told_of_silence(bench, 3_600_000, 3_500_000)
    assert 1_000 <= lease_ms(bench) - before <= 1_000 + LATE_MS


@pytest.mark.parametrize("first_ms", [1, 500, 1_000, 2_000, 9_999])
def test_lease_time_never_goes_back_nor_faster_than_time(bench: Bench, first_ms: int) -> None:
    for last_ms in (0, 400, 1_500, 20_000):
        renew(bench, "n1.1")
        before = lease_ms(bench)
        pass_ms(bench, 1_000)
        told_of_silence(bench, first_ms, last_ms)
        assert before - 1_000 < lease_ms(bench) <= before + LATE_MS


def test_another_server_fences_nobody_for_one_ttl_once(bench: Bench) -> None:
    """G-03 (K10): it may lack the renewals that its predecessor answered last."""
    renew(bench, "n1.1", "w1.1", "w2.1")
    bench.end_lease("w1.1")
    bench.do("HSET", bench.names.lane, "run", "anothers")
    told = renew(bench, "n1.1")
    hold = int(bench.do("HGET", bench.names.lane, "hold"))
    assert hold == lease_ms(bench) + TTL_MS
    assert told.lease_end_ms == told.now_ms + TTL_MS
    ends = fenced(bench.run(bench.fence_call()))
    assert ends.claims == []
    assert ends.earliest_ms is not None
    assert abs(ends.earliest_ms - told.now_ms - TTL_MS) <= LATE_MS
    assert [e["edge"] for e in bench.journal()] == ["server"]
    for _ in range(6):
        pass_ms(bench, PERIOD_MS)
        renew(bench, "n1.1", "w2.1")
    assert bench.do("HGET", bench.names.lane, "hold") == b"%d" % (hold - 6 * PERIOD_MS)
    assert [claim.identity for claim in bench.fence()] == ["w1.1"]


def test_a_server_that_does_not_say_which_it_is_holds_nobody(bench: Bench) -> None:
    """An ACL may refuse it: a failover is not noticed then, and leases go on as they were."""
    renew(bench, "n1.1", "w1.1")
    bench.end_lease("w1.1")
    run = bench.do("HGET", bench.names.lane, "run")
    bench.do("ACL", "SETUSER", bench.user, "-info")
    renew(bench, "n1.1")
    assert bench.do("HGET", bench.names.lane, "run") == run
    assert [claim.identity for claim in bench.fence()] == ["w1.1"]


def test_a_lease_clock_that_somebody_took_away_begins_anew(bench: Bench) -> None:
    """Nobody is fenced by a time that nobody knows; then as ever."""
    renew(bench, "n1.1", "w1.1")
    bench.do("ZINCRBY", bench.names.keepalive, 3_600_000, "w1.1")
    bench.do("HDEL", bench.names.lane, "lease", "hold", "run", "silences")
    bench.end_lease("w2.1")
    assert bench.fence() == []
    renew(bench, "n1.1")
    assert bench.fence() == []
    assert lease_left_ms(bench, "w1.1") == TTL_MS


def test_a_usual_pause_is_not_an_outage(bench: Bench) -> None:
    """G-06: up to two periods after a renewal fencing goes on."""
    renew(bench, "n1.1", "w1.1")
    pass_ms(bench, 2 * PERIOD_MS - 500)
    bench.end_lease("w1.1")
    assert [claim.identity for claim in bench.fence()] == ["w1.1"]


def test_a_clock_that_went_back_stretches_no_lease(bench: Bench) -> None:
    """G-06: the lease clock does not go by it."""
    renew(bench, "n1.1", "w1.1", "w2.1")
    bench.do("HINCRBY", bench.names.lane, "seen", 3_600_000)
    renew(bench, "n1.1")
    for worker in ("w1.1", "w2.1"):
        assert lease_left_ms(bench, worker) <= TTL_MS


def test_a_claim_says_in_pool_time_when_a_worker_was_alive(bench: Bench) -> None:
    """Whatever silences came before its last renewal, and after it."""
    renew(bench, "n1.1", "w1.1", "w2.1")
    alive: dict[str, int] = {}
    for name, gap_ms in (("w1.1", 5_000), ("w2.1", 7_000), ("", 6_000)):
        pass_ms(bench, gap_ms)
        alive = {each: at - gap_ms for each, at in alive.items()}
        words = bench.do("HGET", bench.names.lane, "silences") or b""
        moved = [each.split(b"|") for each in words.split()]
        shifted = [(int(a) - gap_ms, int(b), int(c) - gap_ms) for a, b, c in moved]
        silences = " ".join("|".join(map(str, each)) for each in shifted)
        bench.do("HSET", bench.names.lane, "silences", silences)
        told_of_silence(bench, gap_ms, 0)
        if name:
            alive[name] = renew(bench, name).now_ms
    bench.do("HINCRBY", bench.names.lane, "lease", TTL_MS + 5_000)  # as if that had passed
    bench.do("HINCRBY", bench.names.lane, "seen", TTL_MS + 5_000)
    bench.do("HINCRBY", bench.names.lane, "offset", TTL_MS + 5_000)
    found = {claim.identity: claim.death.alive_ms for claim in bench.fence()}
    for name, at in alive.items():
        assert abs(found[name] - at) <= 50, (name, found[name] - at)


# --- the TTL of a lane --------------------------------------------------------------------------


def change_ttl(bench: Bench, ttl_s: float) -> int:
    """Change it as `pool ttl` does; return the number of the change."""
    before_ms, term = bench.run(bench.lane.change_ttl(round(ttl_s * 1000)))
    assert before_ms > 0
    return int(term)


def left_ms(bench: Bench, identity: str) -> float:
    end = lease_end_ms(bench, identity)
    assert end is not None
    return end - bench.now_ms()


def test_the_lane_says_for_how_long_it_grants(bench: Bench) -> None:
    """Whoever founds the lane decides; a later node with another number decides nothing (D1)."""
    told = renew(bench, "n1.1").ttl
    assert told.ms == TTL_MS
    call = bench.lane.join(
        Target("n2", 1),
        {},
        {},
        is_new=True,
        not_after_ms=bench.now_ms() + TTL_MS,
        pool_ttl_ms=3_600_000,
    )
    assert registered(bench.run(call)).ttl == told
    assert left_ms(bench, "n2.1") <= TTL_MS
    bench.do("HDEL", bench.names.lane, "ttl", "term")
    assert renew(bench, "n1.1").ttl.ms == TTL_MS  # the default
    assert bench.audit() == []


def test_a_longer_ttl_counts_at_once_and_for_everybody(bench: Bench) -> None:
    term = change_ttl(bench, 60.0)
    told = renew(bench, "n1.1", "w1.1")
    assert told.ttl == Ttl(60_000, term)
    assert left_ms(bench, "w1.1") > 59_000
    assert change_ttl(bench, 60.0) == term  # again: nothing changes
    assert [e["detail"] for e in bench.journal() if e["edge"] == "ttl"] == [
        "10000 ms, now 60000 ms"
    ]


def test_a_lease_gets_shorter_only_for_who_has_heard_of_it(bench: Bench) -> None:
    """G-03: the reply that told may be lost, and its node then believes in what it had before."""
    before = renew(bench, "n1.1", "w1.1").ttl
    term = change_ttl(bench, 2.0)
    assert term > before.term
    told = renew(bench, "n1.1", "w1.1", term=before.term)
    assert told.ttl == Ttl(2_000, term)
    assert left_ms(bench, "w1.1") > 9_000
    renew(bench, "w1.1", term=term)
    assert left_ms(bench, "w1.1") <= 2_000
    assert left_ms(bench, "n1.1") > 9_000  # said by nobody for it
    bench.do("ZADD", bench.names.keepalive, bench.now_ms() + 500, "n1.1")
    renew(bench, "n1.1", term=before.term)
    assert 1_500 < left_ms(bench, "n1.1") <= 2_000  # what is left of the old one is less by now


def test_a_renewal_of_before_two_changes_shortens_nothing(bench: Bench) -> None:
    """A late message: it names a TTL like the present one, but not the change that made it so."""
    short = change_ttl(bench, 2.0)
    long = change_ttl(bench, 10.0)
    renew(bench, "w1.1", term=long)
    assert change_ttl(bench, 2.0) > long > short
    renew(bench, "w1.1", term=short)
    assert left_ms(bench, "w1.1") > 9_000


def test_a_worker_gets_no_shorter_lease_than_its_node_believes_in(bench: Bench) -> None:
    """G-03: a node has one belief for all it has in a lane; it may not have heard of the change."""
    renew(bench, "n1.1")
    change_ttl(bench, 1.0)
    bench.join({Target("w3", 1): 1}, is_new=False)
    assert left_ms(bench, "w3.1") > 9_000
    bench.fenced(Target("n1", 1))
    bench.join({Target("w4", 1): 1}, is_new=False)
    assert left_ms(bench, "w4.1") <= 1_000  # of a fenced node nobody believes anything


def test_a_ttl_that_changes_in_a_silence_counts_the_silence_all_the_same(bench: Bench) -> None:
    """G-06: one visit with an hour made a fleet of 1 s wait for an hour (D1)."""
    renew(bench, "n1.1", "w1.1")
    change_ttl(bench, 3600.0)
    renew(bench, "w1.1")
    renew(bench, "n1.1", term=change_ttl(bench, 1.0))
    before = lease_ms(bench)
    pass_ms(bench, 800)
    told_of_silence(bench, 700, 0)
    assert before - 800 + 100 <= lease_ms(bench) <= before - 800 + 450
    assert left_ms(bench, "w1.1") > 3_590_000  # nobody has said that it may be cut


def test_what_is_forgotten_is_remembered_for_ten_ttls_of_the_lane(bench: Bench) -> None:
    change_ttl(bench, 2.0)
    bench.run(bench.lane.leave([W1]))
    assert 19_000 < left_ms(bench, "w1.1") <= 20_000
    assert reap(bench, bench.fenced(W2)) == (True, [])
    assert 19_000 < left_ms(bench, "w2.1") <= 20_000


# --- fence --------------------------------------------------------------------------------------


def test_only_an_ended_lease_is_fenced_and_only_once(bench: Bench) -> None:
    """G-02: one reaper of many gets the claim; the worker is out of `open` at once."""
    renew(bench, "n1.1", "w1.1", "w2.1")
    assert bench.fence() == []
    bench.end_lease("w1.1")
    (claim,) = bench.fence()
    assert claim.identity == "w1.1"
    assert claim.claim.startswith("n1.1|")
    assert bench.fence(holder="n2.1") == []
    assert not bench.do("HEXISTS", bench.names.open, "w1")
    assert bench.do("HEXISTS", bench.names.open, "w2")
    assert bench.counter("fenced") == 1
    assert bench.audit() == []


def test_fencing_an_old_name_leaves_the_new_one_open(bench: Bench) -> None:
    """G-06: a worker that joined again goes on while its old keys are reaped."""
    bench.join({Target("w1", 2): 5}, is_new=False)
    bench.end_lease("w1.1")
    bench.fence()
    assert bench.do("HGET", bench.names.open, "w1") == b"2|5|0"


def test_a_reaper_that_died_is_succeeded_with_a_higher_fence(bench: Bench) -> None:
    """G-06: by the fencing script, when its `until` has passed; the first one is then refused."""
    bench.put("k", "R")
    first = bench.fenced(W1)
    bench.end_lease("w1.1")
    (second,) = bench.fence(holder="n2.1")
    assert int(first.claim.split("|")[1]) < int(second.claim.split("|")[1])
    call = bench.lane.reap(first, reap_s=1.0)
    assert bench.refused(call) == f"POOLGONE {first.claim}"
    assert [h.key for h in reap(bench, second)[1]] == ["k"]
    assert [e["edge"] for e in bench.journal()] == ["fenced", "reaper.succeeded"]
    assert bench.counter("fenced") == 1


def test_an_owner_without_a_lease_is_fenced_as_a_suspect(bench: Bench) -> None:
    """G-05: who owns something and is in no keep-alive map is claimed; who is in it is not."""
    bench.do("ZREM", bench.names.keepalive, "w1.1")
    found = bench.fence(suspects=["w1.1", "w2.1"])
    assert [claim.identity for claim in found] == ["w1.1"]
    assert bench.fence(suspects=["w1.1", "w2.1"]) == []
    assert bench.audit() == []


def test_a_fence_claims_no_more_than_asked(bench: Bench) -> None:
    """The earliest lease end left says that there is more to do."""
    bench.end_lease("w1.1", "w2.1", "n1.1")
    told = fenced(bench.run(bench.fence_call(claims_max=2)))
    assert len(told.claims) == 2
    assert told.earliest_ms == 0
    assert len(bench.fence(claims_max=2)) == 1


def test_those_who_own_nothing_are_forgotten_together(bench: Bench) -> None:
    """G-05: who owns something is not, nor whom another one reaps by now."""
    n, clients = bench.names, [Target(f"c{i}", 1) for i in range(20)]
    bench.put("r", "R")
    for client in clients:
        bench.do("ZADD", n.keepalive, 1, client.name)
        bench.do("XADD", n.signal(client.name), "*", "t", "joined")
    bench.end_lease("w1.1", "w2.1")
    bench.do("XADD", n.stream("w2.1"), "1-0", "k", "what", "m", "ever")
    found = {claim.identity: claim for claim in bench.fence(claims_max=100)}
    late = attrs.evolve(found["c3.1"], claim="n9.1|1|0|0")
    some = [found["c1.1"], found["c2.1"], late, found["w1.1"], found["w2.1"]]
    assert bench.run(bench.lane.forget(some)) == [b"OK", b"OK", b"GONE", b"OWNS", b"OWNS"]
    assert bench.run(bench.lane.forget([found["c1.1"]])) == [b"OK"]
    assert bench.do("HGET", n.cleanup, "c2.1") == b"done"
    assert bench.do("HGET", n.cleanup, "c3.1") == found["c3.1"].claim.encode()
    signals = [bench.do("EXISTS", n.signal(client.name)) for client in clients[1:4]]
    assert signals == [0, 0, 1]
    assert bench.do("ZSCORE", n.keepalive, "c1.1") > bench.now_ms() + 9 * TTL_MS


def test_odd_identities_do_not_stop_the_fence(bench: Bench) -> None:
    """A foreign member of the keep-alive map is claimed like any other."""
    for name in ("garbage", "", "a|b.x", "ключ.7"):
        bench.do("ZADD", bench.names.keepalive, 1, name)
    bench.end_lease("w1.1")
    assert "w1.1" in [claim.identity for claim in bench.fence()]


# --- reap ---------------------------------------------------------------------------------------


def test_a_reaper_sees_every_key_and_forgets_last(bench: Bench) -> None:
    """G-05: pending and running keys in batches; only who owns nothing is forgotten."""
    for i in range(70):
        bench.take(W1, 1000)
        bench.put(f"p{i}", "P")
    bench.put("r", "R")
    claim = bench.fenced(W1)
    seen: set[str] = set()
    while True:
        is_done, found = reap(bench, claim)
        if is_done:
            break
        assert 0 < len(found) <= 64
        seen |= {holding.key for holding in found}
        edges = [bench.edge("g", holding.key, x="") for holding in found]
        answers = bench.advance("reap", "w1.1", *edges, claim=claim.claim)
        assert set(answers) == {"UNASSIGNED"}
        assert bench.audit() == []
    assert seen == {f"p{i}" for i in range(70)} | {"r"}
    assert bench.do("HGET", bench.names.cleanup, "w1.1") == b"done"
    for name in (bench.names.signal, bench.names.stream, bench.names.owned):
        assert not bench.do("EXISTS", name("w1.1"))
    assert bench.audit() == []


def test_starts_that_cannot_be_moved_hide_nothing(bench: Bench) -> None:
    """G-05: neither the starts behind them, nor what runs; they are looked at again later."""
    for i in range(70):
        bench.take(W1, 1000)
        bench.put(f"p{i}", "P")
    bench.put("r", "R")
    claim = bench.fenced(W1)
    bench.do("SET", bench.names.unassigned("h"), "somebody else's")
    seen, after = list[str](), 0
    for _ in range(2):
        told = reaped(bench.run(bench.lane.reap(claim, reap_s=1.0, after=after)))
        after = told.upto
        seen += [holding.key for holding in told.held]
        edges = [bench.edge("g", holding.key, x="") for holding in told.held]
        assert set(bench.advance("reap", "w1.1", *edges, claim=claim.claim)) == {"MALFORMED"}
    assert sorted(seen) == sorted([*(f"p{i}" for i in range(70)), "r"])
    told = reaped(bench.run(bench.lane.reap(claim, reap_s=1.0, after=after)))
    assert (told.upto, told.is_forgotten) == (0, False)


def test_a_name_that_is_no_text_keeps_no_other_claim_from_being_read(bench: Bench) -> None:
    bench.end_lease("w1.1")
    bench.client.zadd(bench.names.keepalive, {b"\xff.1": bench.now_ms() - 10})
    assert [claim.identity for claim in bench.fence()] == ["w1.1"]


def test_who_was_reaped_is_remembered_and_then_forgotten(bench: Bench) -> None:
    """A late call is refused for ten TTLs; after them no trace is left."""
    claim = bench.fenced(W1)
    assert reap(bench, claim) == (True, [])
    end = lease_end_ms(bench, "w1.1")
    assert end is not None
    assert end > bench.now_ms() + 9 * TTL_MS
    bench.end_lease("w1.1")
    assert bench.fence() == []
    assert lease_end_ms(bench, "w1.1") is None
    assert not bench.do("HEXISTS", bench.names.cleanup, "w1.1")


def test_an_index_entry_that_no_record_confirms_is_dropped(bench: Bench) -> None:
    """G-05: an orphan in the owned set or the stream keeps nobody from being forgotten."""
    n = bench.names
    bench.put("theirs", "R")
    bench.do("SADD", n.owned("w2.1"), "theirs", "nobody's")
    bench.do("XADD", n.stream("w2.1"), "1-0", "k", "theirs")
    bench.do("XADD", n.stream("w2.1"), "2-0", "what", "ever")
    claim = bench.fenced(W2)
    assert reap(bench, claim) == (True, [])
    assert bench.record("theirs").owner == "w1.1"
    assert bench.audit() == []


def test_an_unreadable_record_is_handed_out_and_can_be_parked(bench: Bench) -> None:
    """G-05: the reaper gets the bytes as they are; parking them lets it finish."""
    bench.put("pending", "P")
    bench.put("running", "R")
    for key in ("pending", "running"):
        bench.do("HSET", bench.names.jobs, key, f"garbage {key}")
    claim = bench.fenced(W1)
    is_done, held = reap(bench, claim)
    assert not is_done
    assert [(holding.key, holding.record) for holding in held] == [
        ("pending", None),
        ("running", None),
    ]
    for holding in held:
        assert bench.run(bench.lane.quarantine(holding.key, holding.text, "w1.1")) == b"OK"
    assert reap(bench, claim) == (True, [])
    assert bench.audit() == []


# --- what is said with each renewal -------------------------------------------------------------


def test_who_is_gone_cannot_open_itself(bench: Bench) -> None:
    """G-02: a fenced or unregistered worker is granted nothing any more."""
    bench.fenced(W1)
    assert renew(bench, "w1.1", "w9.1").counts == (-1, -1)
    assert (bench.opening("w1"), bench.opening("w9")) == ("", "")


def test_a_worker_changes_how_much_it_takes(bench: Bench) -> None:
    """Nothing is granted to a worker that takes nothing, or whose loop hangs."""
    bench.run(bench.renew_call({"w1.1": 3}, seq=7))
    assert bench.opening("w1") == "1|3|7"
    bench.run(bench.renew_call({"w1.1": 0}, seq=8))
    assert bench.opening("w1") == "1|0|8"
    assert bench.dispatch(bench.admission("k")) == ["NOROOM"]
    bench.run(bench.renew_call({"n1.1": -1, "w1.1": 3}, seq=9, is_hung=True))
    assert (bench.opening("w1"), bench.opening("n1")) == ("1|-|9", "")
    assert bench.dispatch(bench.admission("k")) == ["NOROOM"]
    assert bench.audit() == []
    bench.run(bench.renew_call({"w1.1": 3}, seq=10))
    assert bench.dispatch(bench.admission("k")) == ["OK w1.1"]


def test_a_late_renewal_neither_opens_nor_closes_anybody(bench: Bench) -> None:
    """B1: only what a renewal asked for later has written stands, in whatever order they come."""
    bench.run(bench.renew_call({"w1.1": 10, "w2.1": 10}, seq=20))
    bench.run(bench.renew_call({"w1.1": 10, "w2.1": 0}, seq=18, is_hung=True))
    assert (bench.opening("w1"), bench.opening("w2")) == ("1|10|20", "1|10|20")
    bench.run(bench.renew_call({"w1.1": 0, "w2.1": 10}, seq=21))
    bench.run(bench.renew_call({"w1.1": 10}, seq=19))
    assert (bench.opening("w1"), bench.opening("w2")) == ("1|0|21", "1|10|21")
    bench.join({Target("w1", 2): 5}, is_new=False)
    bench.run(bench.renew_call({"w1.2": 5}, seq=3))  # another process may count anew
    assert bench.opening("w1") == "2|5|3"


@pytest.mark.parametrize("junk", ["", "garbage", "1|5", "1|5|" + "9" * 16, "1|5|x", "2|9|99", "|"])
def test_what_somebody_else_wrote_into_open_is_set_right(bench: Bench, junk: str) -> None:
    """B4: by the next renewal, as what was deleted there."""
    bench.do("HSET", bench.names.open, "w1", junk)
    renew(bench, "w1.1", "w2.1")
    assert bench.opening("w1").startswith("1|10|")
    bench.do("DEL", bench.names.open)
    renew(bench, "w1.1")
    assert bench.opening("w1").startswith("1|10|")
    assert bench.audit() == []


def test_a_node_says_what_ails_it(bench: Bench) -> None:
    """13.1: as long as any are; a late renewal neither brings the number back nor takes it away."""
    bench.run(bench.renew_call({"n1.1": -1}, seq=5, ails=Ails(down=2)))
    assert bench.opening("n1") == "1|0|5|2"
    assert bench.audit() == []
    bench.run(bench.renew_call({"n1.1": -1}, seq=4))
    assert bench.opening("n1") == "1|0|5|2"
    bench.run(bench.renew_call({"n1.1": -1}, seq=6))
    assert bench.opening("n1") == ""
    bench.run(bench.renew_call({"n1.1": -1}, seq=7, ails=Ails(down=1, lag_ms=300)))
    assert bench.opening("n1") == "1|0|7|1,300"
    bench.end_lease("n1.1")
    bench.fence(holder="n2.1")
    assert bench.opening("n1") == ""


def test_handlers_that_are_missing_are_registered_again(bench: Bench) -> None:
    """B4: what stands there is another version's, maybe, and stays."""
    theirs = Options(backoff_s=9.0)
    bench.do("DEL", bench.names.handlers)
    bench.do("HSET", bench.names.handlers, "other", theirs.pack())
    known = {"h": Options(), "other": Options()}
    bench.run(bench.renew_call({"w1.1": 10}, handlers=known))
    assert bench.client.hgetall(bench.names.handlers) == {
        b"h": Options().pack().encode(),
        b"other": theirs.pack().encode(),
    }
    bench.do("DEL", bench.names.handlers)
    bench.fenced(W1)
    bench.run(bench.renew_call({"w1.1": 10}, handlers=known))
    assert not bench.do("EXISTS", bench.names.handlers)  # who is gone has no say


@pytest.mark.parametrize("index", ["open", "handlers"])
def test_a_key_of_another_type_ends_no_lease(bench: Bench, index: str) -> None:
    """G-05: what is said with a renewal is not what it is for."""
    name = getattr(bench.names, index)
    bench.do("DEL", name)
    bench.do("SET", name, "foreign")
    assert renew(bench, "n1.1", "w1.1").counts == (0, 0)
    assert bench.do("GET", name) == b"foreign"


# --- leave --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "count"), [("P", 1), ("R", 1)])
def test_who_owns_something_cannot_leave(bench: Bench, state: str, count: int) -> None:
    """G-05: it may go only in the step that saw it own nothing."""
    bench.put("k", state)
    before = bench.dump()
    assert bench.run(bench.lane.leave([W1])) == [f"OWNS {count}".encode()]
    assert bench.dump() == before
    bench.advance("own", "w1.1", bench.edge("d", "k"))
    assert bench.run(bench.lane.leave([W1, W2, NODE])) == [b"OK"] * 3
    assert not bench.do("EXISTS", bench.names.open)
    assert bench.audit() == []


def test_leaving_twice_is_leaving_once(bench: Bench) -> None:
    """A worker whose answer was lost asks again; who was fenced belongs to its reaper."""
    assert bench.run(bench.lane.leave([W1])) == [b"OK"]
    before = bench.dump()
    assert bench.run(bench.lane.leave([W1])) == [b"OK"]
    assert bench.dump() == before
    bench.fenced(W2)
    assert bench.run(bench.lane.leave([W2])) == [b"GONE"]


def test_leaving_does_not_close_the_next_name(bench: Bench) -> None:
    """`open` is deleted only if it names who leaves."""
    bench.join({Target("w1", 2): 5}, is_new=False)
    assert bench.run(bench.lane.leave([W1])) == [b"OK"]
    assert bench.do("HGET", bench.names.open, "w1") == b"2|5|0"


def test_a_renewal_makes_deleted_signals_again_behind_all_that_was_read(bench: Bench) -> None:
    """Whoever reads there is told; nothing is made for who is gone, or what is there."""
    signals = [bench.names.signal(name) for name in ("n1.1", "w1.1", "w2.1", "w9.1")]
    bench.do("DEL", *signals)
    renew(bench, "w2.1")
    bench.do("HSET", bench.names.cleanup, "w2.1", "n9|1|0|0")
    bench.do("DEL", signals[2])
    stamp = 1 + 10**6 * (int(bench.do("TIME")[0]) + 3600)
    bench.do("HSET", bench.names.lane, "stamp", stamp)
    for _ in range(2):
        renew(bench, "n1.1", "w1.1", "w2.1", "w9.1")
    for signal in signals[:2]:
        [(entry, fields)] = bench.do("XRANGE", signal, "-", "+")
        assert fields == {b"t": b"remade"}
        assert int(entry.split(b"-")[0]) > stamp // 1000
    assert bench.do("EXISTS", *signals[2:]) == 0
