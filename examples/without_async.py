"""A program without an event loop: threads and a forked child share one client of the pool.

It prints:

    in a forked child: hooli 15
    three customers, from three threads: acme 12, duff 12, soylent 21
    a limit of 0.1 s: still waiting
    the client is closed: NotRunning
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import anyio

from pool import Handlers, Job, Node
from pool.errors import NotRunning
from pool.sync import Client

handlers = Handlers()


@handlers.job("letters")
async def letters(job: Job) -> int:
    return 3 * len(job.key)


async def worker(url: str) -> None:
    async with Node("shop", url, handlers=handlers) as node:
        await node.wait_drained()


def main(url: str) -> None:
    # Made once, at the top of a program: it opens with its first call, in each process anew.
    client = Client("shop", url)

    def ask(customer: str) -> str:
        return f"{customer} {client.dispatch(letters, customer).result(timeout_s=30)}"

    with subprocess.Popen([sys.executable, __file__, url]):
        if (child := os.fork()) == 0:
            print(f"in a forked child: {ask('hooli')}", flush=True)
            sys.exit(0)
        with ThreadPoolExecutor() as threads:
            told = ", ".join(threads.map(ask, ["acme", "duff", "soylent"]))
        os.waitpid(child, 0)
        print(f"three customers, from three threads: {told}")
        late = client.options(delay_s=60).dispatch(letters, "initech")
        try:
            late.result(timeout_s=0.1)
        except TimeoutError:
            print("a limit of 0.1 s: still waiting")
        # Whatever else a node can do: here it ends the worker.
        client.call(lambda node: node.shutdown_pool())
    client.close()  # the end of the program would do it, too
    try:
        late.status()
    except NotRunning as error:
        print(f"the client is closed: {type(error).__name__}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(worker, sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(f"embedded://{directory}")
