"""A process that has hardly a descriptor left: a node opens there, or says why it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

OP_S = 2.0
PROGRAM = """
import json, os, resource, sys, time
import anyio
from pool import Handlers, Job, Node, PoolError, Settings

url, pool, free, loop = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
handlers = Handlers()

@handlers.job("job")
async def job(_: Job) -> str:
    return "done"

async def main() -> dict:
    await anyio.to_thread.run_sync(int)  # what that opens is open from here on
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    in_use = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + free, hard))
    began = time.monotonic()
    try:
        settings = Settings(op_timeout_s=%s, lease_ttl_s=1.0)
        async with Node(pool, url, handlers=handlers, settings=settings, observers=()) as node:
            opened = time.monotonic() - began
            # It begins when a lease that nobody renews would be over.
            ref = await node.options(delay_s=1.5).dispatch(job, f"k{free}")
            result = await ref.result(timeout_s=60)
            return {"opened": opened, "result": result, "state": node.state}
    except PoolError as error:
        return {"failed": time.monotonic() - began, "code": error.code, "said": str(error)}

print(json.dumps(anyio.run(main, backend=loop)))
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_node_opens_or_fails_with_however_few_descriptors(
    redis_url: str, pool_name: str, loop: str
) -> None:
    """Never neither, and never open without a lease that is renewed."""

    def tell(free: int) -> dict[str, Any]:
        words = [PROGRAM % OP_S, redis_url, pool_name, str(free), loop]
        done = subprocess.run(
            [sys.executable, "-c", *words],
            stdout=subprocess.PIPE,
            text=True,
            timeout=180,
            check=True,
        )
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    # Two at a time: who is only slow, as all of them at once would be, has descriptors enough.
    with ThreadPoolExecutor(2) as pair:
        told = list(pair.map(tell, range(9)))
    for each in told:
        if "opened" in each:
            assert (each["result"], each["state"]) == ("done", "open")
        else:
            assert each["code"] == "POOLUNAVAILABLE"
            assert "open files" in each["said"] or "not joined within" in each["said"]
            assert each["failed"] < 8 * OP_S + 30.0
    assert any("opened" in each for each in told)
    assert any("failed" in each for each in told)
