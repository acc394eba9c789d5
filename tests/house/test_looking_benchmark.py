"""`benchmarks.looking` in its smallest form: each verb looks, and its commands are counted."""

from __future__ import annotations

import pytest
import redis

from benchmarks.looking import FILTERS, LIMIT_MS, LONG, Look, looks, report
from pool.redis.embedded.server import EmbeddedServer


@pytest.mark.anyio
async def test_each_verb_looks_at_a_pool_and_its_commands_are_told(
    own_server: EmbeddedServer,
) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        found = await looks(own_server.url, client, 3_000, 5)
    assert {each.verb for each in found} > {*FILTERS, LONG}
    assert all(each.commands > 0 and each.server_ms > 0 for each in found)
    lines = list(report(found, 3_000, 5))
    assert lines[0].startswith("3000 jobs, 5 workers; load ")


def test_what_is_beyond_the_limit_is_said() -> None:
    look = Look(
        verb="jobs",
        took_s=1.0,
        server_ms=9.0,
        longest_ms=LIMIT_MS + 1,
        commands=3,
        slowest="HSCAN",
        beyond=1,
    )
    assert list(report([look], 1, 1))[-1] == "beyond 5 ms: jobs, 1 of 3 commands"
