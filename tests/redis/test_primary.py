"""Every connection follows the primary that the quorum names: real servers, sentinels, clusters.

The cases that real sentinels cannot be brought to at will (lies, late answers, epochs that fall)
have sentinels that say what the test wants, before real servers.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest
import redis

from pool import Handlers, Job, Node, ReplicatedMap, Settings
from pool.errors import PoolError, StoreUnavailable
from pool.redis import quorum, topology
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from tests.partitions import (
    FakeSentinel,
    RelayedCluster,
    as_client,
    client_of,
    isolate,
    let_clients_in,
)
from tests.servers import SERVICE, Cluster, Sentinels, admin

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]
KEY = "pool:{p:0}:list"
PATIENCE_S = 20.0
# From the moment when the quorum names a new primary: within seconds, on a busy machine too.
FOLLOWED_S = 3.0
LOOK_AGAIN_S = 0.01


async def soon(look: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Look in a thread, again and again, until it is so."""

    def is_so() -> bool:
        try:
            return bool(look())
        except redis.RedisError:
            return False

    with anyio.fail_after(within_s):
        while not await anyio.to_thread.run_sync(is_so):  # noqa: ASYNC110 - a server tells nobody
            await anyio.sleep(LOOK_AGAIN_S)


@asynccontextmanager
async def opened(url: str, op_timeout_s: float = 5.0) -> AsyncIterator[Pipeline]:
    pipeline = await Pipeline.open(SystemIO(), Url.parse(url).at(KEY), op_timeout_s=op_timeout_s)
    try:
        yield pipeline
    finally:
        await pipeline.aclose(1.0)


@attrs.define(eq=False)
class Writer:
    """Appends numbers to a list; each is sent once, and what is acknowledged is noted."""

    acknowledged: dict[int, float] = attrs.field(factory=dict)

    async def run(self, pipeline: Pipeline) -> None:
        number = 0
        while True:
            number += 1
            try:
                await pipeline.execute("RPUSH", KEY, str(number))
                self.acknowledged[number] = time.monotonic()
            except PoolError:
                pass  # not acknowledged
            await anyio.sleep(0.002)

    def lost(self, server: EmbeddedServer) -> list[float]:
        """Return when that was acknowledged which a server does not have."""
        with client_of(server) as client:
            told: Any = client.lrange(KEY, 0, -1)
        kept = set(map(int, told))
        return [at_s for number, at_s in self.acknowledged.items() if number not in kept]

    async def goes_on(self) -> None:
        before = len(self.acknowledged)
        await soon(lambda: len(self.acknowledged) > before)


@asynccontextmanager
async def writing(pipeline: Pipeline) -> AsyncIterator[Writer]:
    writer = Writer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, pipeline)
        await writer.goes_on()
        yield writer
        tasks.cancel_scope.cancel()


def port_named(place: Sentinels, sentinel: int) -> int:
    with admin(place.sentinels[sentinel]) as client:
        told: Any = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)
    return int(told[1])


def majority_names_another(place: Sentinels, before: EmbeddedServer) -> bool:
    named = [port_named(place, number) for number in range(3)]
    return sum(port != before.tcp_port for port in named) >= 2


async def test_a_planned_failover_loses_what_the_replica_lacks_at_its_promotion(
    program: ServerProgram,
) -> None:
    """About 10 s of acknowledged work was lost: nodes stayed until the old one was demoted."""
    with Sentinels.start(program) as place:
        let_clients_in(*place.nodes())
        before, replica = place.processes
        promoted_s: list[float] = []

        def is_promoted() -> bool:
            with client_of(replica) as client:
                role: Any = client.role()
                if role[0] != "master":
                    return False
            promoted_s.append(time.monotonic())
            return True

        async with opened(as_client(place.url)) as pipeline, writing(pipeline) as writer:
            with admin(place.sentinels[0]) as client:
                client.execute_command("SENTINEL", "FAILOVER", SERVICE)
            await soon(is_promoted)
            await soon(lambda: majority_names_another(place, before))
            named_s = time.monotonic()
            await writer.goes_on()
            assert time.monotonic() - named_s < FOLLOWED_S
            lost = writer.lost(replica)
            # The promotion is noticed a little after it was made.
            assert not [at_s for at_s in lost if at_s > promoted_s[0] + 0.2], (
                f"{len(lost)} lost, up to {max(lost) - promoted_s[0]:.2f} s after the promotion"
            )


def connections(server: EmbeddedServer) -> set[str]:
    """Return the names of a pool's connections to this server."""
    with client_of(server) as client:
        told: Any = client.client_list()
    return {each["name"] for each in told if each["name"].startswith("pool-")}


@pytest.mark.parametrize("min_replicas", [0, 1])
async def test_a_primary_that_the_quorum_replaced_is_left_by_all_connections(
    min_replicas: int, program: ServerProgram, pool_name: str
) -> None:
    """Cut off from sentinels and replicas, and not from its clients: they stayed, all of them."""
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> str:
        return job.key

    config = {"min_replicas_to_write": str(min_replicas), "min_replicas_max_lag": "2"}
    settings = Settings(lease_ttl_s=3.0, op_timeout_s=10.0)
    with Sentinels.start(program, replicas=2, **config) as place:
        let_clients_in(*place.nodes())
        url, before = as_client(place.url), place.processes[0]
        async with (
            Node(pool_name, url, handlers=handlers, settings=settings) as node,
            ReplicatedMap.open(url, "m", pool=pool_name) as mine,
        ):
            await node.add_worker(handlers)
            await mine.set("k", "v")
            assert await (await node.dispatch("echo", "first")).result() == "first"
            had = await anyio.to_thread.run_sync(connections, before)
            assert len(had) >= 3, had
            await anyio.to_thread.run_sync(isolate, before)
            await soon(lambda: majority_names_another(place, before))
            await soon(lambda: not connections(before), within_s=FOLLOWED_S)
            assert await (await node.dispatch("echo", "second")).result() == "second"
            now = await anyio.to_thread.run_sync(place.primary)
            await soon(lambda: had <= connections(now))
            assert not await anyio.to_thread.run_sync(connections, before)


async def test_a_primary_that_is_cut_off_from_its_cluster_is_left(program: ServerProgram) -> None:
    """It calls itself the owner as before, so those who connected anew were stuck there, too."""
    with RelayedCluster.start(program, replicas=True) as place:
        let_clients_in(*place.nodes())
        before = place.primary(KEY)
        other = next(each for each in place.processes if each is not before)
        async with opened(as_client(place.url)) as pipeline, writing(pipeline) as writer:
            place.isolate(before)
            await soon(lambda: place.owner(KEY, other) is not before)
            named_s = time.monotonic()
            async with opened(as_client(place.url)) as fresh:
                await fresh.execute("RPUSH", KEY, "0", repeatable=True)
            await writer.goes_on()
            assert time.monotonic() - named_s < FOLLOWED_S
            now = await anyio.to_thread.run_sync(place.owner, KEY, other)
            assert not [at_s for at_s in writer.lost(now) if at_s > named_s]


async def test_nodes_that_nobody_asks_in_vain_say_at_once_that_they_are_cut_off(
    program: ServerProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLUSTERDOWN is a reason to look, long before the next look is due."""
    monkeypatch.setattr(topology, "LOOK_S", 60.0)
    with RelayedCluster.start(program, replicas=True) as place:
        let_clients_in(*place.nodes())
        before = place.primary(KEY)
        other = next(each for each in place.processes if each is not before)
        async with opened(as_client(place.url)) as pipeline, writing(pipeline) as writer:
            place.isolate(before)
            await soon(lambda: place.owner(KEY, other) is not before)
            await writer.goes_on()
            assert len(await anyio.to_thread.run_sync(connections, before)) == 0


async def test_a_cluster_is_reached_by_whom_its_first_node_named_when_that_is_gone(
    program: ServerProgram,
) -> None:
    """The address names one node; the others were named by the nodes themselves."""
    with Cluster.start(program, cluster_require_full_coverage="no") as place:
        owner = place.primary(KEY)
        seed = next(each for each in place.processes if each is not owner)
        async with opened(f"redis+cluster://127.0.0.1:{seed.tcp_port}") as pipeline:
            await anyio.to_thread.run_sync(seed.kill)
            with admin(owner) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
            assert await pipeline.execute("RPUSH", KEY, "x", repeatable=True) == 1
            assert pipeline.connections == 2


async def test_one_sentinel_that_leads_nowhere_is_outvoted(program: ServerProgram) -> None:
    """It was asked first, and believed: nothing could be opened, though the others knew better."""
    with Sentinels.start(program) as place:
        with admin(place.sentinels[0]) as client:
            client.execute_command("SENTINEL", "REMOVE", SERVICE)
            client.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", 1, 2)
        async with opened(place.url, op_timeout_s=2.0) as pipeline:
            assert await pipeline.execute("RPUSH", KEY, "x") == 1


# --- sentinels that say what they are told ------------------------------------------------------


@attrs.define(eq=False)
class Stage:
    """Two servers that call themselves masters, and three sentinels."""

    a: EmbeddedServer
    b: EmbeddedServer
    sentinels: list[FakeSentinel]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(each.place for each in self.sentinels)}/{SERVICE}"

    def name(self, server: EmbeddedServer, epoch: int, *, by: Sequence[int] = (0, 1, 2)) -> None:
        for number in by:
            self.sentinels[number].epoch = epoch
            self.sentinels[number].named = place_of(server)

    async def asked(self, times: int, *, by: int = 0) -> None:
        """Return once a sentinel was asked so often from now on."""
        sentinel = self.sentinels[by]
        wanted = sentinel.asked + times
        await soon(lambda: sentinel.asked >= wanted)

    async def leads_to(self, pipeline: Pipeline, server: EmbeddedServer) -> bool:
        with contextlib.suppress(StoreUnavailable):
            told = await pipeline.execute("CONFIG", "GET", "port", repeatable=True)
            return bool(int(told[1]) == server.tcp_port)
        return False

    async def follows(self, pipeline: Pipeline, server: EmbeddedServer) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not await self.leads_to(pipeline, server):  # noqa: ASYNC110 - likewise
                await anyio.sleep(LOOK_AGAIN_S)


def place_of(server: EmbeddedServer) -> tuple[str, int]:
    assert server.tcp_port is not None
    return "127.0.0.1", server.tcp_port


@pytest.fixture(scope="module")
def masters(program: ServerProgram) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    from tests.servers import _free_ports

    one, two = _free_ports(2)
    with (
        EmbeddedServer.start(program, tcp_port=one) as a,
        EmbeddedServer.start(program, tcp_port=two) as b,
    ):
        let_clients_in(a, b)
        yield a, b


@pytest.fixture
def stage(
    masters: tuple[EmbeddedServer, EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """Yield one where all sentinels name the first server, and are asked often."""
    monkeypatch.setattr(topology, "LOOK_S", 0.1)
    a, b = masters
    for each in masters:
        with admin(each) as client:
            client.flushall()
    with contextlib.ExitStack() as stack:
        three = [stack.enter_context(FakeSentinel(place_of(a))) for _ in range(3)]
        yield Stage(a, b, three)


async def test_the_word_of_the_majority_is_followed_and_that_of_one_is_not(stage: Stage) -> None:
    async with opened(stage.url) as pipeline:
        stage.name(stage.b, 9, by=[0])
        stage.sentinels[0].publish("+switch-master", f"{SERVICE} 127.0.0.1 1 127.0.0.1 2")
        await stage.asked(3, by=0)
        await stage.asked(3, by=2)
        assert await stage.leads_to(pipeline, stage.a)
        assert pipeline.connections == 1
        stage.name(stage.b, 9, by=[2])
        await stage.follows(pipeline, stage.b)


async def test_a_lower_epoch_is_followed_only_if_it_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late answer never leads back; sentinels that were set up anew are believed in the end."""
    stage.name(stage.a, 5)
    async with opened(stage.url) as pipeline:
        stage.name(stage.b, 5)
        await stage.asked(10)
        assert await stage.leads_to(pipeline, stage.a)
        monkeypatch.setattr(quorum, "REBUILT_S", 0.0)
        await stage.follows(pipeline, stage.b)


async def test_a_primary_that_changes_again_and_again_is_followed(stage: Stage) -> None:
    async with opened(stage.url) as pipeline:
        for epoch, server in enumerate([stage.b, stage.a] * 3, 2):
            stage.name(server, epoch)
            await stage.follows(pipeline, server)


@pytest.mark.parametrize("how", ["ended", "silent"])
async def test_without_sentinels_connections_stay_and_come_back(stage: Stage, how: str) -> None:
    """Nobody names another primary: to lose the sentinels is no outage."""
    async with opened(stage.url) as pipeline:
        for each in stage.sentinels:
            if how == "ended":
                each.leave()
            else:
                each.is_silent = True
        assert await stage.leads_to(pipeline, stage.a)
        for kill in ("normal", "normal"):
            with admin(stage.a) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", kill)
            assert await stage.leads_to(pipeline, stage.a)


async def test_the_word_of_the_last_sentinel_moves_nobody_who_is_well(stage: Stage) -> None:
    async with opened(stage.url) as pipeline:
        for each in stage.sentinels[:2]:
            each.leave()
        stage.name(stage.b, 9, by=[2])
        await stage.asked(10, by=2)
        with admin(stage.a) as client:  # it comes back to where it was, too
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        assert await stage.leads_to(pipeline, stage.a)


async def test_the_last_sentinel_is_enough_to_open(stage: Stage) -> None:
    for each in stage.sentinels[:2]:
        each.leave()
    async with opened(stage.url) as pipeline:
        assert await stage.leads_to(pipeline, stage.a)


async def test_a_primary_that_lacks_replicas_is_a_reason_to_ask(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NOREPLICAS: the sentinels are asked at once, and again, long before the next look is due."""
    monkeypatch.setattr(topology, "LOOK_S", 60.0)
    with admin(stage.a) as client:
        client.config_set("min-replicas-to-write", 1)
    try:
        async with opened(stage.url) as pipeline:
            stage.name(stage.b, 2)
            await pipeline.execute("SET", "x", "y", repeatable=True)
            assert await stage.leads_to(pipeline, stage.b)
    finally:
        with admin(stage.a) as client:
            client.config_set("min-replicas-to-write", 0)


async def test_a_primary_that_goes_on_lacking_replicas_is_not_asked_about_without_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an hour without replicas, 100 processes would ask each sentinel 2,000 times a second."""
    monkeypatch.setattr(topology, "LOOK_S", 60.0)
    monkeypatch.setattr(topology, "HURRIES_S", 1.0)
    with admin(stage.a) as client:
        client.config_set("min-replicas-to-write", 1)
    try:
        async with opened(stage.url, op_timeout_s=5.0) as pipeline:
            before = stage.sentinels[0].asked
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                await pipeline.execute("SET", "x", "y", repeatable=True)
            assert 1 <= stage.sentinels[0].asked - before <= 12
    finally:
        with admin(stage.a) as client:
            client.config_set("min-replicas-to-write", 0)


async def test_a_promotion_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent between a promotion and the news of it."""
    monkeypatch.setattr(topology, "HOLD_S", 1.0)
    event, text = "+failover-state-send-slaveof-noone", f"slave x y 1 @ {SERVICE} 127.0.0.1 1"
    async with opened(stage.url) as pipeline:
        stage.sentinels[0].publish(event, "slave x y 1 @ another 127.0.0.1 1")
        stage.sentinels[0].publish(event, text)
        await stage.asked(2)  # it has heard by now
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(pipeline.execute, "SET", "held", "1"))
            await stage.asked(3)
            with admin(stage.a) as old:
                assert not old.exists("held")
            stage.name(stage.b, 2)
        with admin(stage.a) as old, admin(stage.b) as new:
            assert not old.exists("held")
            assert new.exists("held")


async def test_a_promotion_that_comes_to_nothing_holds_nobody_for_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, text = "+failover-state-send-slaveof-noone", f"slave x y 1 @ {SERVICE} 127.0.0.1 1"
    monkeypatch.setattr(topology, "HOLD_S", 0.5)
    async with opened(stage.url) as pipeline:
        stage.sentinels[0].publish(event, text)
        await stage.asked(2)
        await pipeline.execute("SET", "held", "1")  # in its time, though it is not sent twice
        assert await stage.leads_to(pipeline, stage.a)
        before = pipeline.connections
        stage.sentinels[0].publish(event, text)  # it cries wolf
        await stage.asked(2)
        await pipeline.execute("PING")
        assert pipeline.connections == before


async def test_an_error_names_the_address_that_refused(stage: Stage) -> None:
    """The seeds answer; what they name may be out of reach, as behind NAT."""
    for each in stage.sentinels:
        each.named = ("127.0.0.1", 1)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1 of main .* refused"):
        async with opened(stage.url):
            pass


async def test_a_sentinel_that_knows_no_such_service_says_so(stage: Stage) -> None:
    for each in stage.sentinels:
        each.named = None
    with pytest.raises(StoreUnavailable, match="names no primary"):
        async with opened(stage.url):
            pass


async def test_nothing_stays_behind_when_the_last_connection_ends(stage: Stage) -> None:
    async with opened(stage.url):
        assert topology._WATCHES
    assert not topology._WATCHES
    await soon(lambda: not [t for t in _threads() if t.startswith("pool-topology")])


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate()]


def test_a_child_of_a_fork_asks_by_itself(stage: Stage) -> None:
    """The parent's watch has no thread in a child; one that is opened there has its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKED, stage.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"{stage.a.tcp_port}\n"
            stage.name(stage.b, 2)
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{stage.b.tcp_port}\n"
        finally:
            process.kill()


_FORKED = """
import os, sys, threading, anyio
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

async def ask():
    pipeline = await Pipeline.open(SystemIO(), Url.parse(sys.argv[1]), op_timeout_s=5.0)
    told = await pipeline.execute("CONFIG", "GET", "port")
    print(told[1].decode(), flush=True)
    return pipeline

def child():
    sys.stdin.readline()
    anyio.run(ask)

async def main():
    pipeline = await ask()
    if os.fork() == 0:
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()
        os._exit(0)
    os.wait()

anyio.run(main)
"""
