"""A notebook's cells: a real kernel of Jupyter, which runs them where an event loop runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import KernelManager

from tests.programs.conftest import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.programs.conftest import Place


@pytest.fixture
def kernel(place: Place) -> Iterator[KernelManager]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(place.folder), env=dict(place.environment))
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


@pytest.fixture
def run(kernel: KernelManager) -> Iterator[Any]:
    client = kernel.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE_S)
    yield client
    client.stop_channels()


def cell(client: Any, code: str) -> str:
    """Run a cell; return what it printed and what it raised, if it did."""
    told: list[str] = []

    def on_output(message: Any) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            told.append(content["text"])
        elif message["msg_type"] == "error":
            told.append(content["ename"])
        elif message["msg_type"] == "execute_result":
            told.append(content["data"]["text/plain"])

    client.execute_interactive(code, timeout=PATIENCE_S, output_hook=on_output, allow_stdin=False)
    return "".join(told)


def test_cells_call_although_a_loop_runs(place: Place, kernel: KernelManager, run: Any) -> None:
    place.worker()
    first = f"""
import asyncio, os
asyncio.get_running_loop()
from pool.sync import Client
client = Client({place.pool!r}, os.environ["POOL_URL"], observers=())
client.dispatch("invoice", "acme", 17).result(timeout_s=60)
"""
    assert cell(run, first) == "'invoice 17 of acme'"
    second = "client.dispatch('invoice', 'duff', 2).result(timeout_s=60)"
    assert cell(run, second) == "'invoice 2 of duff'"
    # Its cell is the last one of a loop that goes on: `await` works beside it.
    beside = "await asyncio.to_thread(client.status, 'acme')"
    assert cell(run, beside) == "NoSuchJob"

    # Without stop_on_error the kernel would refuse what comes right after the interrupt.
    asked = run.execute("client.dispatch('stays', 's').result()", stop_on_error=False)
    until(lambda: "running" in state_of(place))
    kernel.interrupt_kernel()
    reply = run.get_shell_msg(timeout=PATIENCE_S)
    while reply["parent_header"].get("msg_id") != asked:
        reply = run.get_shell_msg(timeout=PATIENCE_S)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert cell(run, "client.status('s').state") == "'running'"
    assert cell(run, "client.stop('s', timeout_s=60)") == ""


def state_of(place: Place) -> str:
    """Ask from a process of its own."""
    looking = place.start("python", "-c", LOOKS.format(pool=place.pool))
    looking.ends()
    until(lambda: looking.lines)
    return "\n".join(looking.lines)


LOOKS = """
import os
from pool.errors import NoSuchJob
from pool.sync import Client
client = Client({pool!r}, os.environ["POOL_URL"], observers=())
try:
    print(client.status("s").state)
except NoSuchJob:
    print("none")
"""


def test_a_script_that_is_told_to_end_while_it_waits_ends(place: Place) -> None:
    """Ctrl-C ends the wait, and the end of the program the client."""
    place.worker()
    waits = """
from pool.sync import Client
import os
client = Client({pool!r}, os.environ["POOL_URL"])
ref = client.dispatch("stays", "s")
ref.started(timeout_s=60)
print("waits", flush=True)
ref.result()
"""
    script = place.start("python", "-c", waits.format(pool=place.pool))
    script.says("^waits")
    script.ends(signal.SIGINT)
    script.says("KeyboardInterrupt")
    script.says("node.left")
