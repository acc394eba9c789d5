"""`pool rates`: what was counted is added up in Redis, once, and read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import pytest

from pool import Handlers, Job
from pool.errors import ConfigError, PoolError
from pool.metrics import Metrics, keep_rates
from pool.ops import inspect, rates
from pool.ops.cli import OK, USAGE, main
from pool.ops.cli.shapes import SHAPES, faults
from pool.ops.metrics import Durations
from pool.ops.rates import MINUTE_MS, Rating, quantile_s, summed
from pool.redis.url import Url
from pool.testing.proxy import fault_proxy
from tests.nodes import PATIENCE_S

if TYPE_CHECKING:
    from tests.nodes import Fleet

handlers = Handlers()


@handlers.job("do", attempts_max=1)
async def do(_: Job, fails: bool = False) -> None:
    if fails:
        raise ValueError


async def told(fleet: Fleet) -> dict[str, rates.HandlerRates]:
    async with inspect.opened(fleet.pool, Url.parse(fleet.url)) as (pipeline, found):
        return summed(await rates.read(pipeline, found, 3600.0))


@pytest.mark.anyio
async def test_what_nodes_count_is_added_up_and_told(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two nodes, over a minute's end; for people and for programs."""
    nodes, ratings = [], []
    for _ in range(2):
        metrics = Metrics()
        nodes.append(await fleet.node(handlers, observers=[metrics]))
        ratings.append(Rating(metrics))
    for n in range(6):
        await (await nodes[n % 2].dispatch(do, f"k-{n}")).result(PATIENCE_S)

    async def has_settled(jobs: int) -> bool:  # a result may come before its run is counted
        for rating in ratings:
            await rating.send()
        counts = (await told(fleet)).get("do")
        return counts is not None and counts.done + counts.parked == jobs

    await fleet.until(lambda: has_settled(6))
    flat = fleet.client.hget(fleet.names.rates, "at")
    assert flat is not None
    fleet.client.hset(fleet.names.rates, "at", str(int(flat) - 1))  # that minute is over
    with pytest.raises(PoolError):
        await (await nodes[0].dispatch(do, "bad", fails=True)).result(PATIENCE_S)
    await fleet.until(lambda: has_settled(7))
    for rating in ratings:
        await rating.send()  # nothing is news any more
    assert fleet.client.xlen(fleet.names.rated) == 1
    found = (await told(fleet))["do"]
    assert (found.accepted, found.started, found.done, found.parked) == (7, 7, 6, 1)
    assert dict(found.failed) == {"ValueError": 1}
    assert sum(found.waited.counts) == sum(found.ran.counts) == 7
    words = ["rates", "--pool", fleet.pool, "--url", fleet.url]
    assert await anyio.to_thread.run_sync(main, words) == OK
    said = capsys.readouterr().out
    assert "7 jobs settled, 1 attempts failed in the last 24h" in said
    assert "do failed by: ValueError 1" in said
    assert await anyio.to_thread.run_sync(main, [*words, "--json", "--since", "2h"]) == OK
    facts = json.loads(capsys.readouterr().out)
    assert list(faults(facts, SHAPES["rates"])) == []
    top = ["top", "--since", "2h", *words[1:]]
    assert await anyio.to_thread.run_sync(main, top) == OK
    assert "7 jobs settled" in capsys.readouterr().out
    assert (facts["v"], facts["since_s"], facts["handlers"]["do"]["done"]) == (1, 7200.0, 6)
    first, second = facts["minutes"]
    assert second["at_ms"] - first["at_ms"] >= MINUTE_MS
    assert (first["settled"], second["settled"], second["failed"]) == (6, 1, 1)


@pytest.mark.anyio
async def test_a_pool_that_counts_nothing_says_how_it_would(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    await fleet.node()
    words = ["rates", "--pool", fleet.pool, "--url", fleet.url]
    assert await anyio.to_thread.run_sync(main, [*words, "--since", "1d"]) == OK  # no finding
    assert "--metrics-port" in capsys.readouterr().out


@pytest.mark.parametrize("since", ["", "24", "25h", "59s", "2d", "-1h", "h"])
def test_a_span_that_is_none_is_refused(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rates", "--pool", "p", "--url", "redis://127.0.0.1:1", f"--since={since}"]
    assert main(words) == USAGE
    assert "since" in capsys.readouterr().err


@pytest.mark.anyio
async def test_what_could_not_be_sent_is_sent_later_and_never_twice(fleet: Fleet) -> None:
    """While nobody listens there nothing was done; an answer that is lost may stand for it."""
    metrics = Metrics()
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers, url=proxy.url, observers=[metrics])
        rating = Rating(metrics)
        await (await node.dispatch(do, "one")).result(PATIENCE_S)
        await rating.send()
        await (await node.dispatch(do, "two")).result(PATIENCE_S)
        await proxy.refuse()
        await rating.send()
        await proxy.listen()

        async def sent() -> bool:
            await rating.send()
            return "do" in (found := await told(fleet)) and found["do"].done >= 1

        await fleet.until(sent)
        assert (await told(fleet))["do"].done <= 2
        await (await node.dispatch(do, "three")).result(PATIENCE_S)
        await rating.send()
        assert 2 <= (await told(fleet))["do"].done <= 3
        await fleet.leave(node)
    await rating.send()  # nobody is there any more: it waits for a node


@pytest.mark.anyio
async def test_only_metrics_can_be_kept() -> None:
    with pytest.raises(ConfigError, match="metrics"):
        await keep_rates("all")  # type: ignore[arg-type]


def test_a_quantile_is_the_bound_below_which_so_many_were() -> None:
    took = Durations()
    assert quantile_s(took, 0.5) is None
    for value_s in (0.001, 0.004, 0.2, 7000.0):
        took.add(value_s)
    assert quantile_s(took, 0.5) == 0.005
    assert quantile_s(took, 0.75) == 0.25
    assert quantile_s(took, 0.99) == float("inf")
