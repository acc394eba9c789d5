"""The clock that chaos steps: the server's, at once, and no other."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from tests.verify.clock import NoClock, stepped

pytestmark = pytest.mark.one_server


def test_a_server_says_what_its_clock_was_set_to(program: ServerProgram, tmp_path: Path) -> None:
    def off_s(client: redis.Redis) -> float:
        seconds, micros = client.time()
        return float(seconds + micros / 1e6 - time.time())

    with ExitStack() as stack:
        try:
            its, clock = stack.enter_context(stepped(program, tmp_path))
        except NoClock as error:
            pytest.skip(str(error))
        server = stack.enter_context(EmbeddedServer.start(its))
        client = stack.enter_context(redis.Redis.from_url(server.url))
        assert abs(off_s(client)) < 1.0
        for by_s, is_s in ((3600.0, 3600.0), (-7200.0, -3600.0), (3599.5, -0.5)):
            clock.step(by_s)
            until = time.monotonic() + 10.0  # it reads the clock some times a second
            while abs(off_s(client) - is_s) > 0.25:
                assert time.monotonic() < until, off_s(client)
