"""A server whose maxmemory-policy is changed while a pool works: reported, and nothing stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis

from pool import Handlers, Job
from pool.errors import UnsupportedServer
from pool.events import EvictionEnabled, LeaseLost
from pool.maps.map import ReplicatedMap
from pool.ops import poolwide
from pool.ops.cli import UNREACHABLE, main
from pool.ops.cli.doctor import diagnose
from pool.redis.acl import rules
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.url import Url
from pool.streams.stream import Stream
from tests.nodes import Fleet
from tests.ops.verbs import KEY, verbs, words_of

pytestmark = pytest.mark.anyio

HERE = Handlers()
MAKES_WORK = {"dispatch", "notify", "web"}  # they open the pool to write new work to it


@HERE.job("here")
async def here(_: Job) -> None:
    await anyio.sleep_forever()


@pytest.fixture
def client(own_server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_server.url) as client:
        yield client


@pytest.fixture
async def own_fleet(
    anyio_backend: str,
    own_server: EmbeddedServer,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Fleet]:
    monkeypatch.setattr("pool.runtime.eviction.LOOK_S", 0.05)
    async with Fleet(own_server.url, "shop", client).running() as fleet:
        yield fleet


def asked(client: Any) -> int:
    """Return how often the server was asked for INFO, by us too."""
    return int(client.info("commandstats")["cmdstat_info"]["calls"])


def set_policy(client: redis.Redis, policy: str) -> None:
    client.config_set("maxmemory-policy", policy)


async def test_open_nodes_report_a_changed_policy_once_and_go_on(
    own_fleet: Fleet, client: redis.Redis
) -> None:
    node = await own_fleet.node(HERE)
    set_policy(client, "allkeys-lru")
    assert (await own_fleet.seen(EvictionEnabled)).policy == "allkeys-lru"
    client.client_kill_filter(_type="normal", skipme=True)  # its connections are made anew
    ref = await node.dispatch("here", KEY)
    await ref.started(60.0)
    set_policy(client, "volatile-lru")
    await own_fleet.seen(EvictionEnabled, policy="volatile-lru")
    set_policy(client, "noeviction")
    set_policy(client, "volatile-lru")
    first = asked(client)
    await own_fleet.until(lambda: asked(client) > first + 20)
    told = [each.policy for each in own_fleet.all_seen(EvictionEnabled)]
    assert told[:2] == ["allkeys-lru", "volatile-lru"]
    assert len(told) <= 3  # whether the moment between was seen
    assert not own_fleet.all_seen(LeaseLost)


async def test_looking_and_operating_go_on_and_new_work_is_refused(
    own_fleet: Fleet, client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await own_fleet.node(HERE)
    await (await node.dispatch("here", KEY)).started(60.0)
    set_policy(client, "allkeys-lru")
    where = ["--pool", own_fleet.pool, "--url", own_fleet.url]
    codes = dict[str, int]()
    for verb in verbs():
        words = [*words_of(verb, own_fleet.pool), *where]
        codes[verb] = await anyio.to_thread.run_sync(main, words)
    assert {verb for verb, code in codes.items() if code == UNREACHABLE} == MAKES_WORK
    assert "allkeys-lru" in capsys.readouterr().err
    findings = (await diagnose(own_fleet.pool, Url.parse(own_fleet.url))).findings
    assert "server-evicts" in {each.rule for each in findings}
    values: dict[str, Any] = {
        family.name: family
        for family in await poolwide.look(own_fleet.pool, Url.parse(own_fleet.url))
    }
    rules_told = {sample.labels["rule"] for sample in values["pool_findings"].samples}
    assert "server-evicts" in rules_told


async def test_whoever_opens_the_pool_to_write_is_refused(
    own_fleet: Fleet, client: redis.Redis
) -> None:
    await own_fleet.node()
    set_policy(client, "allkeys-lru")
    for handlers in (None, HERE):
        with pytest.raises(UnsupportedServer, match="allkeys-lru"):
            await own_fleet.node(handlers)
    with pytest.raises(UnsupportedServer, match="allkeys-lru"):
        async with ReplicatedMap.open(own_fleet.url, "m", pool=own_fleet.pool):
            pass
    with pytest.raises(UnsupportedServer, match="allkeys-lru"):
        async with Stream.open(own_fleet.url, "s", pool=own_fleet.pool):
            pass
    set_policy(client, "noeviction")
    await own_fleet.node(HERE)


async def test_a_user_who_may_not_ask_is_not_asked_again(
    own_fleet: Fleet, own_server: EmbeddedServer, client: Any
) -> None:
    """Each try would be a refused call in the server's log."""
    without = [word for word in rules("shop") if word != "+info|memory"]
    client.execute_command("ACL", "SETUSER", "ann", "on", ">right", *without)
    url = own_server.url.replace("://", "://ann:right@", 1)
    await own_fleet.node(HERE, url=url)

    def refused() -> int:
        return sum(int(each["count"]) for each in client.acl_log() if "info" in str(each))

    greetings = refused()  # one of each connection
    assert greetings > 0
    await own_fleet.node()  # one who may ask, and asks as often
    first = asked(client)
    await own_fleet.until(lambda: asked(client) > first + 50)
    assert refused() == greetings
