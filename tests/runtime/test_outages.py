"""A trouble is told when it begins, once a minute while it lasts, and when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from structlog.testing import capture_logs

from pool import Handlers, Job, log_observer
from pool.core.retry import RESEND_S
from pool.errors import AuthError, PoolError, StoreFault, StoreUnavailable
from pool.events import (
    HookFailed,
    LeaseLost,
    LeaseResumed,
    NodeLeft,
    StoreRecovered,
    StoreTroubled,
    WorkerReaped,
)
from pool.maps.replica import Replica
from pool.metrics import Metrics
from pool.redis.io.scribe import Hush
from pool.runtime import observers as observe
from pool.runtime.observers import AGAIN_S, Outages, emit_to
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pool.events import Event
    from tests.nodes import Fleet

GONE = StoreUnavailable(problem="refused", maybe_done=False)


class Told:
    """Outages on a clock of their own, and what they tell: when, and of which lane."""

    def __init__(self, *, is_apart: bool = False) -> None:
        self.now_s = 100.0
        self.events: list[tuple[float, Event]] = []
        self.outages = Outages(
            lambda e: self.events.append((self.now_s, e)), lambda: self.now_s, is_apart=is_apart
        )

    def fail(self, for_s: float, *, lane: int = 0, error: PoolError = GONE) -> None:
        """Have calls fail every quarter of a second."""
        for _ in range(round(4 * for_s)):
            self.outages.trouble("renew", lane, error)
            self.now_s += 0.25

    def seen(self) -> list[float]:
        """Return when trouble was told, in seconds since the beginning."""
        return [at_s - 100 for at_s, event in self.events if isinstance(event, StoreTroubled)]

    def counts(self) -> list[int]:
        return [event.failures for _, event in self.events if isinstance(event, StoreTroubled)]

    def ends(self) -> list[StoreRecovered]:
        return [event for _, event in self.events if isinstance(event, StoreRecovered)]


@pytest.mark.parametrize("error", [GONE, AuthError(problem="no right"), StoreFault(problem="odd")])
def test_a_renewal_that_fails_is_told_once_a_minute(error: PoolError) -> None:
    told = Told()
    told.fail(150.0, error=error)
    assert told.seen() == [0, AGAIN_S, 2 * AGAIN_S]
    assert told.counts() == [1, 241, 481]
    told.outages.over(0)
    told.outages.over(0)
    assert told.ends() == [StoreRecovered(lane=0, down_s=150.0, failures=600)]


def test_all_lanes_of_a_server_and_all_that_they_do_are_one_outage() -> None:
    """E4: 16 lanes at TTL 2 told 1,186 lines in 10 s."""
    told = Told()
    for _ in range(100):
        for during in ("sweep", "renew", "reap", "join"):
            for lane in (0, 1, None):
                told.outages.trouble(during, lane, GONE)
        told.now_s += 0.1
    assert told.seen() == [0]
    told.outages.over(1)
    assert told.ends() == []
    told.outages.over(0)
    assert told.ends() == [StoreRecovered(lane=0, down_s=10.0, failures=1200)]


def test_lanes_with_a_server_each_are_told_apart() -> None:
    told = Told(is_apart=True)
    for lane in (0, 1, None) * 3:
        told.outages.trouble("renew", lane, GONE)
    assert [event.lane for _, event in told.events if isinstance(event, StoreTroubled)] == [
        0,
        1,
        None,
    ]
    told.outages.over(1)
    assert told.ends() == [StoreRecovered(lane=1, down_s=0.0, failures=3)]
    told.outages.over(None)
    told.outages.over(0)
    assert [end.lane for end in told.ends()] == [1, None, 0]


def test_what_is_no_outage_is_told_once_a_minute_too_for_each_lane_purpose_and_kind() -> None:
    told = Told()
    for _ in range(480):
        for lane in (0, 1):
            told.outages.trouble("sweep", lane, StoreFault(problem=f"at {told.now_s}"))
        told.outages.over(0)  # it answers what else it is asked
        told.now_s += 0.25
    assert told.seen() == [0, 0, AGAIN_S, AGAIN_S]
    told.outages.trouble("walk", 0, StoreFault(problem="odd"))
    told.outages.trouble("sweep", 0, AuthError(problem="no right"))
    assert told.seen()[4:] == [120.0, 120.0]
    told.outages.over(0)
    assert told.ends() == []
    told.now_s += AGAIN_S + 1
    told.outages.over(0)
    assert [(end.lane, end.during, end.failures) for end in told.ends()] == [
        (0, "sweep", 480),
        (0, "walk", 1),
        (0, "sweep", 1),
    ]
    assert told.ends()[0].down_s == 119.75
    told.outages.over(1)
    assert len(told.ends()) == 4
    told.outages.trouble("sweep", 0, StoreFault(problem="anew"))
    assert told.seen()[6:] == [181.0]


def test_an_outage_that_comes_and_goes_is_no_flood_and_the_next_one_is_told_at_once() -> None:
    told = Told()
    for _ in range(140):
        told.fail(0.5)
        told.outages.over(0)
    assert told.seen() == [0, AGAIN_S]
    assert len(told.ends()) == 2
    told.now_s += 100.0
    began_s = told.now_s - 100
    told.fail(1.0)
    assert told.seen()[-1] == began_s


def test_an_outage_within_the_minute_after_the_last_line_waits_for_its_end() -> None:
    """As the docs say: neither that one which is over by then is told, nor its end."""
    told = Told()
    told.fail(20.0)
    told.outages.over(0)
    told.fail(10.0)
    told.outages.over(0)
    assert (len(told.seen()), len(told.ends())) == (1, 1)
    told.fail(40.0)
    told.outages.over(0)
    assert told.seen()[1:] == [AGAIN_S]
    assert [end.down_s for end in told.ends()] == [20.0, 40.0]


def test_what_is_not_tried_again_begins_no_outage() -> None:
    """Nothing would end it: days later the next announcement told of an outage of days."""
    told = Told()
    told.outages.fault("leave", None, GONE)
    told.now_s += 1.0
    told.outages.fault("close", None, GONE)
    told.now_s += 3 * 86_400
    told.outages.over(None)
    assert (told.seen(), told.ends()) == ([0], [])
    told.outages.trouble("join", None, GONE)  # this one is tried again
    told.outages.fault("leave", None, GONE)
    told.outages.over(None)
    assert told.ends() == [StoreRecovered(lane=None, down_s=0.0, failures=2)]


@pytest.mark.anyio
@pytest.mark.one_server  # a proxy stands before it
async def test_a_leave_that_cannot_be_announced_is_no_outage_without_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> None: ...

    node = await fleet.node(handlers)
    other = await node.add_worker(handlers)

    async def refuse(*_: object, **__: object) -> None:
        raise GONE

    monkeypatch.setattr(Replica, "write", refuse)
    await other.remove()
    monkeypatch.undo()
    assert (await fleet.seen(StoreTroubled)).lane is None
    await fleet.until(lambda: not fleet.wiring(node).membership.announcer._is_writing)
    await node.add_worker(handlers)
    assert all(each.down_s < 1.0 for each in fleet.all_seen(StoreRecovered))  # a lane answered
    assert not fleet.wiring(node).context.outages._outages[None].lanes


@pytest.mark.anyio
@pytest.mark.one_server  # a proxy stands before it
async def test_an_outage_of_all_lanes_is_two_lines(fleet: Fleet) -> None:
    """E4: it was one for each lane and try, more than a hundred a second."""
    lanes = 4
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(url=proxy.url, lanes=lanes, lease_ttl_s=1.0)
        outages = fleet.wiring(node).context.outages
        began_s = anyio.current_time()
        await proxy.refuse()
        # A renewal that was slow before would have been one, too: nothing more is told for long.
        outages._outages.clear()
        fleet.events.entries.clear()
        await fleet.seen(StoreTroubled)
        await fleet.until(lambda: outages._outages[None].failures > 3 * lanes)
        await proxy.listen()
        told = await fleet.seen(StoreRecovered)
        assert told.failures > 3 * lanes
        assert told.down_s < anyio.current_time() - began_s
        assert len(fleet.all_seen(StoreTroubled)) == len(fleet.all_seen(StoreRecovered)) == 1
        await fleet.leave(node)


@pytest.mark.anyio
async def test_a_batch_that_is_refused_again_and_again_is_sent_less_and_less_often(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: it was sent every 0.1 s, and told each time."""
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> int:
        await go.wait()
        return job.attempt

    go, refused_s = anyio.Event(), list[float]()
    node = await fleet.node(handlers)
    ref = await node.dispatch("echo", "k")
    await ref.started(timeout_s=30)
    fleet.client.delete(fleet.names.due)
    fleet.client.set(fleet.names.due, "foreign")

    def note(_: Outages, during: str, *__: object) -> None:
        if during == "advance":
            refused_s.append(anyio.current_time())

    monkeypatch.setattr(Outages, "trouble", note)
    go.set()
    await fleet.until(lambda: len(refused_s) == 5)
    assert refused_s[4] - refused_s[0] > RESEND_S * (1 + 2 + 4 + 8)
    fleet.client.delete(fleet.names.due)
    assert await ref.result(timeout_s=30) == 1
    assert len(refused_s) < 7


@pytest.mark.anyio
@pytest.mark.one_server
async def test_ten_seconds_of_outage_of_many_lanes_are_a_few_log_lines(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4, as its log is read: 16 lanes, of which each loses its lease and gets it back."""
    monkeypatch.setattr(observe, "_hush", Hush(observe._scribe.write))
    async with fault_proxy(fleet.url) as proxy:
        with capture_logs() as logs:
            observers = (fleet.events.note, log_observer)
            node = await fleet.node(
                url=proxy.url, lanes=16, lease_ttl_s=1.0, op_timeout_s=3.0, observers=observers
            )
            await proxy.refuse()
            await fleet.seen(LeaseLost, times=16)
            await proxy.listen()
            await fleet.seen(LeaseResumed, times=16)
            await fleet.seen(StoreRecovered)
            await fleet.leave(node)
            await fleet.until(lambda: "node.left" in [line["event"] for line in logs])
    counted = {line["event"]: line["times"] for line in logs if "times" in line}
    # On a busy machine one may be lost twice.
    assert counted["lease.lost"] >= 15
    assert counted["lease.resumed"] >= 15
    assert len(logs) < 15, logs


@pytest.mark.parametrize("by", ["an observer", "a callback of Metrics"])
def test_an_observer_that_always_raises_is_a_line_and_their_number(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is lost in the sum of them, and no thread is left when the node has."""
    lines: list[Callable[[], object]] = []
    monkeypatch.setattr(observe, "_hush", hush := Hush(lines.append))

    def bad(*_: object) -> None:
        raise ValueError(f"no luck {len(lines)} {object()}")

    observer = bad if by == "an observer" else Metrics(callback=bad)
    with capture_logs() as logs:
        for n in range(300):
            emit_to([observer], HookFailed(key=f"k{n}", handler="h", what="started", problem="x"))
        first = len(lines)
        assert first == 1
        emit_to([], NodeLeft(node="n", abandoned=0, pool="p"))
        for line in lines:
            line()
    assert {each["event"] for each in logs} == {"observer.failed"}
    assert [each.get("times", 1) for each in logs] == [1, 299]
    assert all("no luck" in str(each["exc_info"]) for each in logs)
    assert hush._timer is None


def test_each_who_was_reaped_is_a_log_line_and_not_each_of_his_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process is a node and its workers: that of the keys was told when the reaper left."""
    lines: list[Callable[[], object]] = []
    monkeypatch.setattr(observe, "_hush", hush := Hush(lines.append))
    dead = [("n1.1", 0, 0), ("w1.1", 0, 7), ("n1.1", 1, 0), ("w1.1", 1, 2)]
    for identity, lane, keys in dead:
        log_observer(WorkerReaped(identity=identity, lane=lane, keys=keys, by="n2"))
    with capture_logs() as logs:
        for line in lines:
            line()
    assert [(each["identity"], each["keys"]) for each in logs] == [("n1.1", 0), ("w1.1", 7)]
    hush.end()
