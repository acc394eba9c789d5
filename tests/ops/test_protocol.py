"""A pool of another protocol number: each verb refuses it before it reads or writes more."""

from __future__ import annotations

import json

import anyio.to_thread
import pytest

from pool import Handlers, Job
from pool.errors import WrongProtocol
from pool.ops import poolwide
from pool.ops.cli import PROTOCOL, main
from pool.redis.commands import member
from pool.redis.url import Url
from tests.nodes import Fleet
from tests.ops.verbs import KEY, verbs, words_of

pytestmark = pytest.mark.anyio

HERE = Handlers()


@HERE.job("here")
async def here(_: Job) -> None:
    """Have a name that dispatches know."""


def stored(fleet: Fleet) -> dict[bytes, object]:
    names = fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000)
    return {name: fleet.client.dump(name) for name in names}


@pytest.fixture
async def other(fleet: Fleet) -> Fleet:
    """Return a fleet whose pool is of the next number, with a job that waits."""
    node = await fleet.node(HERE)
    await node.options(delay_s=600.0).dispatch("here", KEY)
    await fleet.leave(node)
    fleet.client.hset(fleet.control.config, "protocol", member.PROTOCOL + 1)
    fleet.is_audited = False
    return fleet


@pytest.mark.parametrize("verb", verbs())
async def test_each_verb_refuses_a_pool_of_another_number(
    other: Fleet, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(other)
    where = ["--pool", other.pool, "--url", other.url]
    words = [*words_of(verb, other.pool), *where, "--json"]
    if verb in ("pause", "purge"):
        words.append("--yes")
    capsys.readouterr()
    assert await anyio.to_thread.run_sync(main, words) == PROTOCOL
    said = capsys.readouterr()
    assert "POOLPROTOCOL" in said.err
    assert WrongProtocol.hint in said.err
    assert json.loads(said.out)["error"]["code"] == "POOLPROTOCOL"
    assert stored(other) == before


async def test_config_is_not_changed_and_figures_are_not_read(other: Fleet) -> None:
    before = stored(other)
    words = ["config", "--set", "lease_ttl_s=9", "--pool", other.pool, "--url", other.url]
    assert await anyio.to_thread.run_sync(main, words) == PROTOCOL
    with pytest.raises(WrongProtocol):
        await poolwide.look(other.pool, Url.parse(other.url))
    with pytest.raises(WrongProtocol) as refused:
        await other.node(HERE)
    assert (refused.value.protocol, refused.value.ours) == (member.PROTOCOL + 1, member.PROTOCOL)
    assert stored(other) == before
