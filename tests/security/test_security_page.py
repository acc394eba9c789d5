"""What docs/security.md tells people to do is done here."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from pool import Handlers, Job, Node
from pool.errors import AuthError
from pool.redis.embedded.server import EmbeddedServer

if TYPE_CHECKING:
    from pool.redis.embedded.server import ServerProgram

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text("utf-8")
handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: int) -> int:
    return value


@pytest.mark.anyio
async def test_its_commands_make_a_user_who_can_work_on_the_pool(
    program: ServerProgram, tmp_path: Path
) -> None:
    [commands] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "pool").write_text(f'#!/bin/sh\nexec {sys.executable} -m pool.ops.cli "$@"\n')
    (tmp_path / "pool").chmod(0o700)
    await anyio.run_process(
        ["/bin/sh", "-eu", "-c", commands],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "POOL_PASSWORD": "open-sesame",
        },
    )
    config = {"aclfile": str(tmp_path / "users.acl")}
    with EmbeddedServer.start(program, config=config) as server:
        url = server.url.replace("://", "://media:open-sesame@", 1)
        async with Node("media", url, handlers=handlers, observers=()) as node:
            assert await (await node.dispatch(echo, "k", 1)).result(timeout_s=30) == 1
        with pytest.raises(AuthError, match="~PATTERN"):
            async with Node("other", url, observers=()):
                pass


def test_the_events_that_it_names_exist() -> None:
    from pool import events as module

    events = {getattr(each, "event", "") for each in vars(module).values()}
    assert {"store.policy_unknown", "store.password_in_clear"} <= events
    assert "store.policy_unknown" in PAGE
    assert "store.password_in_clear" in PAGE
