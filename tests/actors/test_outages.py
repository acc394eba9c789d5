"""An outage is told when it begins, now and then while it lasts, and when it is over; per lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from pool.actors.observe import LeaseLost, StoreRecovered, StoreTroubled
from pool.actors.outages import AGAIN_MAX_S, AGAIN_S, Outages
from pool.errors import AuthError, PoolError, StoreFault, StoreUnavailable
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from pool.actors.observe import Event
    from tests.actors.conftest import Fleet

GONE = StoreUnavailable(problem="refused", maybe_done=False)


class Told:
    """Outages on a clock of their own, and what they tell: when, and of which lane."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.events: list[tuple[float, Event]] = []
        self.outages = Outages(lambda e: self.events.append((self.now_s, e)), lambda: self.now_s)

    def fail(self, for_s: float, *, lane: int = 0, error: PoolError = GONE) -> None:
        """Have calls fail every quarter of a second."""
        for _ in range(round(4 * for_s)):
            self.outages.trouble("renew", lane, error)
            self.now_s += 0.25

    def seen(self) -> list[float]:
        """Return when trouble was told, in seconds since the beginning."""
        return [at_s - 100 for at_s, event in self.events if isinstance(event, StoreTroubled)]

    def ends(self) -> list[StoreRecovered]:
        return [event for _, event in self.events if isinstance(event, StoreRecovered)]


@pytest.mark.parametrize("error", [GONE, AuthError(problem="no right"), StoreFault(problem="odd")])
def test_a_renewal_that_fails_is_told_at_growing_pauses(error: PoolError) -> None:
    told = Told()
    told.fail(100.0, error=error)
    assert told.seen() == [0, AGAIN_S, 3 * AGAIN_S, 7 * AGAIN_S, 15 * AGAIN_S]
    told.outages.over(0)
    told.outages.over(0)
    assert told.ends() == [StoreRecovered(lane=0, down_s=100.0, failures=400)]
    told.fail(100 * AGAIN_MAX_S)
    last, before = told.seen()[-1], told.seen()[-2]
    assert last - before == AGAIN_MAX_S


def test_lanes_are_told_apart_and_all_that_one_does_is_one_outage() -> None:
    told = Told()
    for during in ("sweep", "renew", "reap", "join"):
        for lane in (0, 1, None):
            told.outages.trouble(during, lane, GONE)
    assert [event.lane for _, event in told.events if isinstance(event, StoreTroubled)] == [
        0,
        1,
        None,
    ]
    told.outages.over(1)
    assert told.ends() == [StoreRecovered(lane=1, down_s=0.0, failures=4)]


def test_what_is_no_outage_is_told_each_time() -> None:
    told = Told()
    for _ in range(3):
        told.outages.trouble("sweep", 0, StoreFault(problem="another type"))
    assert len(told.seen()) == 3
    told.outages.over(0)
    assert told.ends() == []


def test_an_outage_that_comes_and_goes_is_no_flood_and_the_next_one_is_told_at_once() -> None:
    told = Told()
    for _ in range(40):
        told.fail(0.5)
        told.outages.over(0)
    assert told.seen() == [0, AGAIN_S, 3 * AGAIN_S]
    assert len(told.ends()) == 3
    told.now_s += 100.0
    began_s = told.now_s - 100
    told.fail(1.0)
    assert told.seen()[-1] == began_s


@pytest.mark.anyio
@pytest.mark.one_server  # a proxy stands before it
async def test_an_outage_of_all_lanes_is_a_line_or_two_for_each(fleet: Fleet) -> None:
    """E4: it was one for each lane and try, more than a hundred a second."""
    lanes = 4
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(url=proxy.url, lanes=lanes, lease_ttl_s=1.0, op_timeout_s=0.3)
        began_s = anyio.current_time()
        await proxy.refuse()
        await fleet.seen(StoreTroubled, times=lanes)
        await fleet.seen(LeaseLost, times=lanes)  # by then renewals were tried again and again
        await proxy.listen()
        for lane in range(lanes):
            told = await fleet.seen(StoreRecovered, lane=lane)
            assert told.failures > 3
            assert told.down_s < anyio.current_time() - began_s
            assert len(fleet.all_seen(StoreTroubled, lane=lane)) == 1
        await fleet.leave(node)
