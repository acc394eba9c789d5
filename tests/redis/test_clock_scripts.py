"""A lane's time while its server's clock steps: by the offset, which is the same to the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from pool.core.followers import Follows
from pool.core.pooltime import Told
from pool.core.record import pack_more
from pool.jobs.fleet.walker import EXPIRED
from pool.names import pair
from pool.redis.commands.calls import Target
from pool.redis.commands.channel import outgoing_of
from pool.redis.commands.member import Renewal, renewal
from pool.redis.commands.recovery import fenced, overdue
from pool.redis.commands.upkeep import expired
from tests.redis.conftest import W1

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

HOUR_MS = 3_600_000
PERIOD_MS = 2_000  # of the bench's 10 s
WINDOW_MS = 2 * PERIOD_MS
STEPS = [HOUR_MS, -HOUR_MS]
REACH_MS = 3_500  # a period, the deadline of a renewal and the pause before the next try
BUSY_MS = 1_900  # between two commands on a busy machine; less than a period


class Clock:
    """True time is the server's; what has stepped is the lane's offset."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.renew()

    def field(self, name: str) -> int:
        return int(self.bench.do("HGET", self.bench.names.lane, name) or 0)

    def lease_end(self, identity: str) -> int:
        """Return what is left of a lease, at the last renewal that was vouched for."""
        ends: Any = self.bench.do("ZSCORE", self.bench.names.keepalive, identity)
        return int(ends) - self.field("lease")

    def step(self, ms: int) -> None:
        self.bench.do("HINCRBY", self.bench.names.lane, "offset", ms)

    def renew(
        self,
        *,
        turn: int | None = None,
        later_ms: int = 0,
        off_ms: int = 0,
        since_ms: int = 1,
        who: str = "n1",
        **more: Any,
    ) -> Renewal:
        """Renew as a node that knows the true time; `later_ms`: so much later."""
        if later_ms:
            self.step(later_ms)
        expected_ms = more.pop("expected_ms", self.bench.now_ms() + self.passed_ms + later_ms)
        self.passed_ms += later_ms
        turn = self.field("turn") if turn is None else turn
        told = Told(expected_ms, since_ms, turn, off_ms)
        call = self.bench.renew_call({"n1.1": -1, "w1.1": 10}, told=told, who=who, **more)
        return renewal(self.bench.run(call))

    passed_ms = 0  # of what the test lets pass

    def error_ms(self, told: Renewal) -> int:
        """By how much pool time is not what it should be."""
        return told.now_ms - self.bench.now_ms() - self.passed_ms


@pytest.fixture
def clock(bench: Bench) -> Clock:
    return Clock(bench)


@pytest.mark.parametrize("step_ms", STEPS)
def test_what_is_stored_while_a_step_stands_is_off_by_two_periods_at_most(
    clock: Clock, step_ms: int
) -> None:
    """Delays, and the lease of who joins, by whom nothing is expected."""
    bench = clock.bench
    clock.step(step_ms)
    bench.put("k", "W")  # in 60 s
    score = bench.do("ZSCORE", bench.names.due, "k:k")
    assert abs(score - bench.now_ms() - 60_000) <= WINDOW_MS + BUSY_MS
    bench.end_lease("w2.1")
    before = bench.dump()
    assert bench.fence() == []
    assert bench.dump() == before
    assert abs(clock.error_ms(clock.renew())) <= WINDOW_MS + BUSY_MS


@pytest.mark.parametrize("step_ms", STEPS)
def test_who_says_what_it_expects_is_believed_while_a_step_stands(
    clock: Clock, step_ms: int
) -> None:
    bench = clock.bench
    clock.step(step_ms)
    item = bench.admission("k", delay_s=60.0)
    expected_ms = bench.now_ms()
    call = bench.lane.dispatch(
        [item], [], pending_s=1.0, queued_jobs_max=9, expects=str(expected_ms)
    )
    assert bench.run(call) == [b"OK -"]
    assert abs(bench.do("ZSCORE", bench.names.due, "k:k") - expected_ms - 60_000) <= 5


def test_after_an_outage_a_delay_counts_from_now(clock: Clock) -> None:
    """Nobody could renew for an hour: raw is right, and a caller that has counted says so."""
    bench = clock.bench
    clock.step(HOUR_MS)
    expected_ms = bench.now_ms() + HOUR_MS
    lease = clock.field("lease")
    bench.run(
        bench.lane.dispatch(
            [bench.admission("k", delay_s=60.0)],
            [],
            pending_s=1.0,
            queued_jobs_max=9,
            expects=str(expected_ms),
        )
    )
    assert abs(bench.do("ZSCORE", bench.names.due, "k:k") - expected_ms - 60_000) <= 5
    told = clock.renew(expected_ms=expected_ms)
    assert abs(told.now_ms - expected_ms) < BUSY_MS  # one witness is enough
    assert clock.field("lease") == lease + REACH_MS


@pytest.mark.parametrize("step_ms", [*STEPS, 0])
def test_what_waits_for_no_time_is_due_at_once_whatever_anybody_expects(
    clock: Clock, step_ms: int
) -> None:
    """Messages to a lane, what they bring, and who has its turn: the next sweep finds them."""
    bench = clock.bench
    then = Follows(id="f1", handler="h", kind="job", lane=0, call=b"[1]", when="then", key="f")
    more = pack_more(followers=len(b"[1]"))
    item = bench.admission("k", payload=b"[1]" + then.pack(), more=more)
    assert bench.dispatch(item) == [f"OK {W1.name}"]
    assert bench.dispatch(bench.admission("k", id="next", policy="q9")) == ["QUEUED 0"]
    bench.advance("own", W1.name, bench.edge("a", "k"))
    bench.end_lease("w2.1")
    clock.step(step_ms)
    expects = come(clock)

    def swept() -> Any:
        call = bench.lane.sweep("n1.1", lock_s=1.0, keys_max=10)
        return overdue(bench.run(call))

    ends = [bench.edge("d", "k")]
    bench.run(bench.lane.advance("own", W1.name, ends, pending_s=1.0, expects=expects))
    found = swept()
    assert list(found.outgoing) == [0]
    assert [each.key for each in found.found] == ["k"]
    told = outgoing_of(bench.run(bench.lane.outgoing(0, hold_s=5.0)))
    bench.run(bench.lane.incoming(0, told.root, told.messages, expects=expects))
    assert sorted(each.key for each in swept().found) == ["f", "k"]


def due_ms(clock: Clock, expects: object) -> int:
    """Return from when a delay counts that is stored now by who expects that."""
    bench = clock.bench
    key = f"k{bench.do('ZCARD', bench.names.due)}"
    item = bench.admission(key, delay_s=60.0)
    told: Any = {"pending_s": 1.0, "queued_jobs_max": 9, "expects": str(expects)}
    bench.run(bench.lane.dispatch([item], [], **told))
    return int(bench.do("ZSCORE", bench.names.due, f"k:{key}")) - 60_000


def come(clock: Clock) -> str:
    """Return what one expects who comes to the clock as it is, and goes by that."""
    return f"{raw_ms(clock)}|{clock.field('offset')}|{clock.field('turn')}|0"


def test_after_the_pool_stood_empty_a_delay_counts_from_now(clock: Clock) -> None:
    """Nobody can say how long, so the server's clock counts; but not where somebody can."""
    bench = clock.bench
    clock.step(HOUR_MS)
    now_ms = bench.now_ms()
    expects = come(clock)
    assert now_ms <= due_ms(clock, expects) - HOUR_MS <= bench.now_ms()
    clock.renew(off_ms=HOUR_MS)  # a witness
    assert abs(due_ms(clock, come(clock)) - bench.now_ms()) <= WINDOW_MS + BUSY_MS


@pytest.mark.parametrize("step_ms", STEPS)
def test_two_who_have_measured_a_step_set_the_offset_right(clock: Clock, step_ms: int) -> None:
    clock.step(step_ms)
    told = clock.renew()
    assert told.clock.turn == 0  # not measured yet: it may have come late
    lease = clock.field("lease")
    clock.renew(off_ms=step_ms)
    assert clock.field("turn") == 0
    assert clock.lease_end("w1.1") == WINDOW_MS + 10_000  # wherever the lease clock is set
    told = clock.renew(off_ms=step_ms + 40, who="n2", term=clock.field("term"))
    assert (told.clock.turn, clock.field("turn")) == (1, 1)
    assert abs(clock.error_ms(told)) < BUSY_MS
    assert abs(clock.field("offset")) < BUSY_MS
    assert clock.field("lease") == lease
    assert clock.lease_end("w1.1") == 10_000
    assert [e["edge"] for e in clock.bench.journal()] == ["clock"]
    assert not clock.bench.do("HEXISTS", clock.bench.names.lane, "claim")


def bench_now(clock: Clock) -> int:
    return clock.bench.now_ms() + clock.passed_ms


@pytest.mark.parametrize("step_ms", STEPS)
def test_alone_the_same_claim_a_period_later_counts(clock: Clock, step_ms: int) -> None:
    clock.step(step_ms)
    clock.renew(off_ms=step_ms)
    assert clock.renew(off_ms=step_ms, later_ms=PERIOD_MS // 2).clock.turn == 0
    assert clock.renew(off_ms=step_ms, later_ms=PERIOD_MS // 2).clock.turn == 1
    assert abs(clock.field("offset") - PERIOD_MS) < BUSY_MS  # what the test let pass


def test_who_vouches_ends_a_claim(clock: Clock) -> None:
    """One whose own clock is off finds nobody who says the same."""
    clock.renew(expected_ms=clock.bench.now_ms() - HOUR_MS, off_ms=HOUR_MS, who="n2")
    assert clock.bench.do("HEXISTS", clock.bench.names.lane, "claim")
    clock.renew()
    assert not clock.bench.do("HEXISTS", clock.bench.names.lane, "claim")
    clock.renew(expected_ms=clock.bench.now_ms() - HOUR_MS + PERIOD_MS, off_ms=HOUR_MS, who="n2")
    assert clock.field("turn") == 0


def test_a_late_renewal_claims_nothing_and_a_late_claim_is_for_its_own_offset(
    clock: Clock,
) -> None:
    clock.renew(expected_ms=clock.bench.now_ms() - HOUR_MS)
    assert not clock.bench.do("HEXISTS", clock.bench.names.lane, "claim")
    clock.step(HOUR_MS)
    clock.renew(off_ms=HOUR_MS, turn=7)
    assert not clock.bench.do("HEXISTS", clock.bench.names.lane, "claim")
    clock.renew(off_ms=HOUR_MS)
    clock.renew(off_ms=HOUR_MS, who="n2")
    offset = clock.field("offset")
    clock.renew(off_ms=HOUR_MS, who="n3")  # sent before
    clock.renew(off_ms=HOUR_MS, who="n4", turn=0)
    assert (clock.field("offset"), clock.field("turn")) == (offset, 1)


@pytest.mark.parametrize("step_ms", STEPS)
def test_who_has_just_come_is_believed_after_two_periods(clock: Clock, step_ms: int) -> None:
    """A pool that stood empty: how long, nobody knows; pool time does not go back."""
    clock.step(step_ms)
    clock.passed_ms = max(0, step_ms)
    began_ms = seen = clock.field("seen")
    late_ms, lease = clock.field("seen") + HOUR_MS, clock.field("lease")
    for passed_ms in (0, PERIOD_MS):
        told = clock.renew(
            later_ms=passed_ms, since_ms=late_ms, expected_ms=raw_ms(clock) + passed_ms
        )
        assert began_ms <= told.now_ms <= began_ms + WINDOW_MS
    told = clock.renew(later_ms=PERIOD_MS, since_ms=late_ms, expected_ms=raw_ms(clock) + PERIOD_MS)
    should_ms = raw_ms(clock) if step_ms > 0 else seen + 2 * PERIOD_MS
    assert abs(told.now_ms - should_ms) < BUSY_MS
    assert (
        clock.field("lease") == lease + WINDOW_MS
    )  # those who were there before have a TTL less that
    for name in ("n1.1", "w1.1"):
        assert clock.lease_end(name) == 10_000


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -30_000, -6_000, 6_000, HOUR_MS])
def test_a_step_that_nobody_was_there_to_see_counts_back_by_the_time_without_renewals(
    clock: Clock, step_ms: int
) -> None:
    """And in full forward: an empty pool whose clock was set is one that stood empty for longer."""
    empty_ms = 20_000
    clock.step(empty_ms + step_ms)
    clock.passed_ms = empty_ms
    told = None
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        told = clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=raw_ms(clock) + passed_ms)
    assert told
    assert not told.clock.is_astray
    assert abs(clock.error_ms(told) - max(step_ms, -empty_ms)) < BUSY_MS


@pytest.mark.parametrize("step_ms", STEPS)
def test_who_died_before_anybody_came_is_taken_over_a_ttl_after_that(
    clock: Clock, step_ms: int
) -> None:
    """Its lease was granted while pool time stood, as are those of who came and renews."""
    bench = clock.bench
    clock.step(step_ms)
    bench.do("ZADD", bench.names.keepalive, clock.field("lease") + WINDOW_MS + 10_000, "w2.1")
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        expected_ms = raw_ms(clock) + passed_ms
        clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms)
    assert clock.field("begun")
    assert clock.lease_end("w2.1") == 10_000 - WINDOW_MS


@pytest.mark.parametrize("step_ms", STEPS)
def test_who_died_while_pool_time_stood_was_surely_alive_when_that_began(
    clock: Clock, step_ms: int
) -> None:
    """It got a lease when that ended: what it had begun since may have killed it at once."""
    bench = clock.bench
    clock.step(step_ms)
    stood_ms = clock.field("seen") + (WINDOW_MS if step_ms > 0 else 0)
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        expected_ms = raw_ms(clock) + passed_ms
        clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms)
        if not passed_ms:
            granted = clock.field("lease") + WINDOW_MS + 10_000
            bench.do("ZADD", bench.names.keepalive, granted, "w2.1")
    assert clock.lease_end("w2.1") == 10_000
    since_ms = clock.field("begun")
    for _ in range(4):
        clock.renew(later_ms=3_000, since_ms=since_ms, expected_ms=raw_ms(clock) + 3_000)
    claim = next(each for each in bench.fence() if each.identity == "w2.1")
    assert claim.death.alive_ms == stood_ms


@pytest.mark.parametrize("step_ms", STEPS)
def test_who_makes_a_lane_is_the_first_witness_of_its_clock(bench: Bench, step_ms: int) -> None:
    """A step before anybody renews there is one: who comes behind it does not vouch for that."""
    bench.do("DEL", bench.names.lane)
    later: Any = {"not_after_ms": bench.now_ms() + HOUR_MS, "pool_ttl_ms": 10_000, "pool": "inc"}
    anew = attrs.evolve(bench.lane, generation="")
    made = anew.join(Target("n1", 1), {Target("w1", 1): 10}, {}, is_new=True, **later)
    began_ms, _, _, generation, _ = bench.run(made)
    clock = Clock.__new__(Clock)
    clock.bench, bench.lane = bench, attrs.evolve(bench.lane, generation=generation.decode())
    clock.step(step_ms)
    told = clock.renew(since_ms=0, who="n9", expected_ms=raw_ms(clock))
    assert abs(clock.error_ms(told)) <= WINDOW_MS + BUSY_MS
    for who, later_ms in (("n1", 0), ("n1", PERIOD_MS)):
        told = clock.renew(since_ms=began_ms, off_ms=step_ms, who=who, later_ms=later_ms)
    assert (told.clock.turn, abs(clock.error_ms(told)) < BUSY_MS) == (1, True)


@pytest.mark.parametrize(
    ("ttl_ms", "window_ms"), [(10_000, WINDOW_MS), (3_600_000, 20_000), ("junk", WINDOW_MS)]
)
def test_who_joins_believes_a_clock_no_further_than_two_periods(
    clock: Clock, ttl_ms: object, window_ms: int
) -> None:
    """Nor is its lease any longer."""
    bench = clock.bench
    bench.do("HSET", bench.names.lane, "ttl", ttl_ms, "paced", ttl_ms)
    seen_ms = clock.field("seen")
    clock.step(HOUR_MS)
    soon: Any = {"not_after_ms": bench.now_ms() + HOUR_MS, "pool_ttl_ms": 10_000}
    call = bench.lane.join(Target("n1", 1), {Target("w3", 1): 10}, {}, is_new=False, **soon)
    now_ms, granted_ms, *_ = bench.run(call)
    assert now_ms == seen_ms + window_ms
    assert clock.lease_end("w3.1") == window_ms + granted_ms


def test_a_lane_that_was_made_anew_begins_with_what_its_server_says(clock: Clock) -> None:
    """What nodes had counted was of the one that is gone."""
    clock.bench.do("HDEL", clock.bench.names.lane, "seen", "offset", "turn")
    told = clock.renew(expected_ms=clock.bench.now_ms() - HOUR_MS, off_ms=HOUR_MS)
    assert (abs(clock.error_ms(told)) < BUSY_MS, clock.field("turn")) == (True, 0)
    assert abs(clock.field("seen") - clock.bench.now_ms()) < BUSY_MS


def test_who_joined_a_lane_before_its_clock_went_back_has_one_ttl_left(clock: Clock) -> None:
    """Made anew, nobody had vouched yet: the lease of who died at once would stand for an hour."""
    bench = clock.bench
    bench.do("HDEL", bench.names.lane, "seen", "lease", "offset", "turn")
    bench.do("ZADD", bench.names.keepalive, bench.now_ms() + HOUR_MS + 10_000, "w2.1")
    told = clock.renew(expected_ms=bench.now_ms())
    assert bench.do("ZSCORE", bench.names.keepalive, "w2.1") == told.now_ms + 10_000


def raw_ms(clock: Clock) -> int:
    return clock.bench.now_ms() + clock.field("offset")


def test_a_witness_is_believed_and_not_who_has_just_come(clock: Clock) -> None:
    clock.step(HOUR_MS)
    late_ms = raw_ms(clock) + 9
    clock.renew(since_ms=late_ms, who="n9", expected_ms=raw_ms(clock))
    clock.renew(off_ms=HOUR_MS)
    for _ in range(2):
        clock.renew(since_ms=late_ms, who="n9", expected_ms=raw_ms(clock))
    told = clock.renew(off_ms=HOUR_MS, who="n2")
    assert (told.clock.turn, abs(clock.error_ms(told)) < BUSY_MS) == (1, True)


def test_who_was_cut_off_while_others_settled_it_takes_nothing_back(clock: Clock) -> None:
    """What was stored since would wait for an hour."""
    clock.step(HOUR_MS)
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        expected_ms = raw_ms(clock) + passed_ms
        clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms)
    begun_ms = clock.field("begun")
    assert begun_ms == clock.field("seen")
    clock.step(HOUR_MS // 2)  # nobody vouches for that yet
    for who in ("n7", "n8"):
        off_ms = raw_ms(clock) - clock.bench.now_ms() - clock.passed_ms
        told = clock.renew(off_ms=off_ms, who=who)
        assert begun_ms <= told.now_ms <= begun_ms + WINDOW_MS
        assert told.clock.is_late
    told = clock.renew(  # but who has counted since then is a witness
        off_ms=HOUR_MS // 2, since_ms=begun_ms, expected_ms=raw_ms(clock) - HOUR_MS // 2, who="n9"
    )
    assert (told.clock.turn, told.clock.is_late) == (0, False)
    told = clock.renew(
        off_ms=HOUR_MS // 2, since_ms=begun_ms, expected_ms=raw_ms(clock) - HOUR_MS // 2, who="n6"
    )
    assert (told.clock.turn, abs(told.now_ms - begun_ms) < BUSY_MS) == (1, True)


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("then_ms", [0, 3_000, "back"])
def test_who_comes_after_a_witness_died_goes_by_what_that_claimed(
    clock: Clock, step_ms: int, then_ms: Any
) -> None:
    """Nobody confirmed it; and the clock may step again before anybody else can see it."""
    clock.step(step_ms)
    clock.renew(off_ms=step_ms, who="n9")
    clock.step(-step_ms if then_ms == "back" else then_ms)
    told = None
    for passed_ms in (0, 5 * PERIOD_MS, PERIOD_MS, PERIOD_MS):
        expected_ms = raw_ms(clock) + passed_ms
        assert abs(due_ms(clock, come(clock)) - bench_now(clock)) <= 3_000 + BUSY_MS
        told = clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms)
    assert told
    assert -WINDOW_MS - BUSY_MS <= clock.error_ms(told) <= WINDOW_MS
    assert clock.field("begun") == told.now_ms


@pytest.mark.parametrize("behind_ms", [3_000, 1_000])
def test_a_clock_that_was_behind_what_was_vouched_for_is_still_wrong_when_it_has_passed_that(
    clock: Clock, behind_ms: int
) -> None:
    """A node comes to it after the witness has died; what that claimed is believed, or a retry that
    was stored meanwhile would wait for as long as the step.
    """
    step_ms = -20_000
    clock.step(step_ms)
    clock.renew(off_ms=step_ms, who="n9")
    clock.step(-step_ms - behind_ms)
    clock.passed_ms = -step_ms - behind_ms
    told = None
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        expected_ms = raw_ms(clock) + passed_ms
        assert abs(due_ms(clock, come(clock)) - bench_now(clock)) < BUSY_MS
        told = clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms)
    assert told
    assert abs(clock.error_ms(told)) < BUSY_MS
    assert (clock.field("seen"), clock.field("turn")) == (told.now_ms, 1)
    assert not told.clock.is_astray


@pytest.mark.parametrize("step_ms", STEPS)
def test_who_has_come_since_is_told_what_a_witness_claims(clock: Clock, step_ms: int) -> None:
    """Until somebody has settled it, and while it is no older than another step."""
    clock.step(step_ms)
    came: dict[str, Any] = {"since_ms": 0, "expected_ms": raw_ms(clock), "who": "n2"}
    assert clock.renew(**came).clock.witnessed_ms == 0
    assert clock.renew(off_ms=step_ms, who="n9").clock.witnessed_ms == 0
    assert clock.renew(**came).clock.witnessed_ms == step_ms
    clock.step(-2 * HOUR_MS)
    assert clock.renew(**came).clock.witnessed_ms == 0
    clock.step(2 * HOUR_MS)
    settled = clock.renew(off_ms=step_ms, who="n3")
    assert (settled.clock.turn, settled.clock.witnessed_ms) == (1, 0)


@pytest.mark.parametrize("step_ms", [*STEPS, 4_000, -4_000])
@pytest.mark.parametrize("waits_ms", [0, 5 * PERIOD_MS])
def test_who_was_told_what_a_witness_claims_confirms_it(
    clock: Clock, step_ms: int, waits_ms: int
) -> None:
    """In two periods, as all who have come since; or begins anew when it is too old."""
    clock.step(step_ms)
    clock.renew(off_ms=step_ms, who="n9")
    told = None
    for passed_ms in (waits_ms, PERIOD_MS, PERIOD_MS):
        told = clock.renew(later_ms=passed_ms, since_ms=0, off_ms=step_ms, who="n2")
    assert told
    assert told.clock.turn == 1
    assert abs(clock.error_ms(told)) < BUSY_MS


def test_who_comes_after_a_witness_died_goes_on_from_what_that_stored(clock: Clock) -> None:
    """It had no time to say what it had seen; what it stored would wait for as long as that."""
    clock.step(-HOUR_MS)
    clock.passed_ms = 20_000
    now_ms = bench_now(clock)
    assert due_ms(clock, now_ms) == now_ms
    told = None
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        told = clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=raw_ms(clock) + passed_ms)
        assert abs(due_ms(clock, come(clock)) - bench_now(clock)) < BUSY_MS
    assert told
    assert abs(clock.error_ms(told)) < BUSY_MS
    assert clock.field("reached") == 0


def test_an_old_claim_does_not_age_what_was_stored(clock: Clock) -> None:
    """Seed 90286: the clock was set again since, and a claim tells no more than four periods."""
    clock.step(-3 * HOUR_MS)
    clock.passed_ms = 20_000
    now_ms = bench_now(clock)
    assert due_ms(clock, now_ms) == now_ms
    clock.renew(since_ms=0, expected_ms=raw_ms(clock))
    clock.step(2 * HOUR_MS)
    assert -BUSY_MS < due_ms(clock, come(clock)) - bench_now(clock) <= 4 * PERIOD_MS


@pytest.mark.parametrize("came_ms", [7_000, -7_000])
@pytest.mark.parametrize("then_ms", [15_000, -15_000, HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("last_ms", [9_000, -9_000])
@pytest.mark.parametrize("was_told", [True, False])
def test_who_has_not_heard_that_steps_were_settled_takes_none_off_again(
    clock: Clock, came_ms: int, then_ms: int, last_ms: int, *, was_told: bool
) -> None:
    """It came behind the first, and stood still for 4 s; the clock was set again since.

    Told what a witness claims of the first, it knows the time.  Else nobody alive does, but that it
    is between what was vouched for and its last answer: so it is not off by more.
    """
    bench = clock.bench
    clock.step(came_ms + then_ms)
    clock.renew(off_ms=came_ms + then_ms)
    clock.renew(off_ms=came_ms + then_ms, who="n2")
    assert clock.field("turn") == 1
    # What settled it is the offset now; so much it was when it came.
    of_offset = clock.field("offset") + then_ms + (came_ms if not was_told else 0)
    clock.step(last_ms)
    bench.do("HINCRBY", bench.names.lane, "seen", -PERIOD_MS)
    expected_ms = bench_now(clock) + (0 if was_told else came_ms)
    expects = f"{expected_ms}|{of_offset}|0|4000"
    error_ms = due_ms(clock, expects) - bench_now(clock)
    assert abs(error_ms) <= BUSY_MS + (0 if was_told else 4_000)


def test_who_measured_a_step_is_believed_and_not_who_came_behind_it(clock: Clock) -> None:
    """Neither is a witness; contradicting each other they would stop the clock."""
    clock.step(HOUR_MS // 2)  # how long the pool stood empty
    clock.renew(since_ms=0, expected_ms=raw_ms(clock), who="n9")
    began_ms = raw_ms(clock)
    clock.step(HOUR_MS)
    for n in range(2):
        for who in ("n8", "n9"):
            off_ms = HOUR_MS if who == "n9" else 0
            expected_ms = raw_ms(clock) + PERIOD_MS - off_ms
            clock.renew(
                later_ms=PERIOD_MS, since_ms=0, expected_ms=expected_ms, off_ms=off_ms, who=who
            )
        assert clock.field("turn") == n
        assert abs(due_ms(clock, come(clock)) - began_ms - clock.passed_ms) < BUSY_MS
    assert abs(clock.field("seen") - began_ms - clock.passed_ms) < BUSY_MS


@pytest.mark.parametrize(
    ("step_ms", "then_ms"), [(-HOUR_MS, 0), (-HOUR_MS, 3_000), (-HOUR_MS, HOUR_MS), (4_000, -4_000)]
)
def test_who_measured_a_step_and_left_is_believed_where_the_clock_is_surely_off(
    clock: Clock, step_ms: int, then_ms: int
) -> None:
    """It was no witness, nobody confirmed it, and what was stored meanwhile goes by its claim: pool
    time went on from where it had stood, and that waited for as long.
    """
    clock.renew(since_ms=0, who="n9")
    clock.passed_ms = 20_000
    clock.step(20_000 + step_ms)
    clock.renew(since_ms=0, off_ms=step_ms, who="n9")
    stored_ms = due_ms(clock, come(clock))
    assert abs(stored_ms - bench_now(clock)) < BUSY_MS
    clock.step(then_ms)
    allowed_ms = BUSY_MS + (then_ms if then_ms == 3_000 else 0)
    clock.passed_ms += 7 * PERIOD_MS
    clock.step(7 * PERIOD_MS)  # the claim is old
    told = None
    for passed_ms in (0, PERIOD_MS, PERIOD_MS):
        assert abs(due_ms(clock, come(clock)) - bench_now(clock)) <= allowed_ms
        expected_ms = raw_ms(clock) + passed_ms
        told = clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms, who="n2")
    assert told
    assert abs(clock.error_ms(told)) <= allowed_ms
    assert clock.field("seen") == told.now_ms


def test_the_delay_of_who_comes_to_a_clock_that_went_back_counts_from_now(clock: Clock) -> None:
    """And not from where pool time stood, which goes on with the first claim."""
    clock.step(-HOUR_MS)
    for passed_ms in (0, PERIOD_MS):
        expected_ms = raw_ms(clock) + passed_ms
        clock.renew(later_ms=passed_ms, since_ms=0, expected_ms=expected_ms)
    stored_ms = due_ms(clock, come(clock))
    told = clock.renew(later_ms=PERIOD_MS, since_ms=0, expected_ms=raw_ms(clock) + PERIOD_MS)
    assert abs(told.now_ms - PERIOD_MS - stored_ms) < 100


@pytest.mark.parametrize("step_ms", STEPS)
def test_an_answer_is_remembered_in_pool_time(clock: Clock, step_ms: int) -> None:
    """Not by the server's own clock, by which an hour forward ends all that it keeps for less."""
    bench = clock.bench
    ids = [bench.put(key, "R").id for key in ("a", "b", "c")]
    edges = [bench.edge("d", key, ttl_ms=30_000) for key in ("a", "b")]
    bench.advance("own", "w1.1", *edges, bench.edge("d", "c", ttl_ms=90_000))
    jobs = [pair(key, job_id) for key, job_id in zip("abc", ids, strict=True)]
    results = [bench.names.result(key, job_id) for key, job_id in zip("abc", ids, strict=True)]
    assert min(bench.client.pttl(result) for result in results) > HOUR_MS

    def expire(*items: str) -> list[str]:
        return expired(bench.run(bench.lane.expire(items, items_max=9))).items

    def kept(*at: int) -> str:
        return "\n".join(f"{bench.client.strlen(results[i])} {jobs[i]}" for i in at)

    clock.step(step_ms)
    assert expire() == []
    clock.renew(off_ms=step_ms)
    clock.renew(off_ms=step_ms, who="n2")
    clock.renew(later_ms=29_000)
    assert expire() == []
    clock.renew(later_ms=2_000)
    assert expire() == [kept(0, 1)]
    assert bench.client.exists(*results) == 3
    assert expire(kept(0, 1), kept(2)) == []  # of the last one it is not time yet
    assert [bench.client.exists(result) for result in results] == [0, 0, 1]
    assert bench.client.zcard(bench.names.kept) == 1


def test_answers_of_many_are_ended_by_bounded_calls(clock: Clock) -> None:
    """However many are over: a call ends 256 at most, and takes them away by one command."""
    bench, count, per_call = clock.bench, 640, 64
    for first in range(0, count, per_call):
        keys = [f"k{n}" for n in range(first, first + per_call)]
        changes: dict[str, Any] = {"ranked": (), "unassigned": True}
        bench.dispatch(*(bench.admission(key, **changes) for key in keys))
        for some in (keys[:32], keys[32:]):
            bench.advance("free", "", *(bench.edge("c", key, ttl_ms=30_000) for key in some))
    clock.renew(later_ms=31_000)
    items, sizes, before = list[str](), list[int](), bench.client.info("commandstats")
    while True:
        items = expired(bench.run(bench.lane.expire(items, items_max=EXPIRED))).items
        if not items:
            break
        sizes.append(sum(len(item.split("\n")) for item in items))
    after: Any = bench.client.info("commandstats")
    assert sizes == [256, 256, 128]
    assert not [*bench.client.scan_iter(match=f"{bench.names.prefix}result:*", count=10_000)]
    assert bench.client.exists(bench.names.kept) == bench.counter("results") == 0
    for name in ("unlink", "zrem"):
        had: Any = before.get(f"cmdstat_{name}", {"calls": 0})
        assert after[f"cmdstat_{name}"]["calls"] - had["calls"] <= len(sizes)


def test_nobody_is_fenced_later_than_its_caller_thinks_it_is(clock: Clock) -> None:
    bench = clock.bench
    bench.end_lease("w2.1")
    clock.step(1_500)
    assert bench.fence(latest_ms=bench.now_ms() + 100) == []
    assert [claim.identity for claim in bench.fence(latest_ms=bench.now_ms() + 2_000)] == ["w2.1"]


@pytest.mark.parametrize("is_late", [True, False])
def test_who_is_suspected_while_nobody_vouches_for_the_time_is_fenced_later(
    clock: Clock, is_late: bool
) -> None:
    """G-05: who found the suspect does not look there again before the next pass of the walk."""
    bench = clock.bench
    bench.do("ZREM", bench.names.keepalive, "w2.1")
    if is_late:  # by its caller
        assert bench.fence(suspects=["w2.1"], latest_ms=bench.now_ms() - 1_000) == []
    else:
        clock.step(HOUR_MS)
        assert bench.fence(suspects=["w2.1"]) == []
        clock.step(-HOUR_MS)
        for _ in range(3):
            clock.renew(later_ms=PERIOD_MS - BUSY_MS // 2)
        assert bench.fence() == []  # it is not yet as late as where time stood
        clock.renew(later_ms=PERIOD_MS)
    assert [claim.identity for claim in bench.fence()] == ["w2.1"]
    assert bench.audit() == []


def test_nothing_fires_early_by_more_than_two_periods(clock: Clock) -> None:
    bench = clock.bench
    bench.put("k", "W")
    clock.step(HOUR_MS)
    found = overdue(bench.run(bench.lane.sweep("n1.1", lock_s=1.0, keys_max=9))).found
    assert found == []


@pytest.mark.parametrize("junk", ["x", "-", "1e3", "9" * 20, "-" + "9" * 20])
def test_what_somebody_else_wrote_is_no_offset(clock: Clock, junk: str) -> None:
    for field in ("offset", "turn", "claim"):
        clock.bench.do("HSET", clock.bench.names.lane, field, junk)
    told = clock.renew(turn=0)
    assert abs(clock.error_ms(told)) < BUSY_MS
    fenced(clock.bench.run(clock.bench.fence_call()))
