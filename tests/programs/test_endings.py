"""How programs end that have a client open: by themselves, with calls under way, or killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.programs.conftest import Place

OPENS = """
import os, sys, threading, time
from pool.errors import NoSuchJob
from pool import Settings
from pool.sync import Client

client = Client({pool!r}, os.environ["POOL_URL"], settings=Settings(op_timeout_s=30))
try:
    client.status("k")
except NoSuchJob:
    pass
"""


def run(place: Place, text: str) -> list[str]:
    """Run a program to its end, which must be good; return what it said."""
    program = place.start("python", "-c", OPENS.format(pool=place.pool) + text)
    code = program.ends()
    program.says("node.joined")
    assert code == 0, "\n".join(program.lines)
    return program.lines


def left(lines: list[str]) -> int:
    return sum("node.left" in line for line in lines)


def test_a_program_that_closes_nothing_leaves(place: Place) -> None:
    assert left(run(place, "")) == 1


def test_a_daemon_thread_that_waits_at_the_end_is_answered(place: Place) -> None:
    """It holds nobody up, and nothing crashes while the interpreter goes."""
    place.worker()
    lines = run(
        place,
        """
ref = client.dispatch("stays", "s")
def wait():
    try:
        ref.result()
    except BaseException as error:
        os.write(1, f"told {type(error).__name__}\\n".encode())
threading.Thread(target=wait, daemon=True).start()
while not client._portals.portal()._flying:
    pass
""",
    )
    assert left(lines) == 1
    assert "told NotRunning" in "\n".join(lines)


def test_calls_of_other_threads_go_on_until_those_end(place: Place) -> None:
    """The interpreter waits for threads that are no daemons, and so does the client."""
    place.worker()
    lines = run(
        place,
        """
def work():
    threading.main_thread().join()
    print("had", client.dispatch("invoice", "acme", 1).result(timeout_s=60), flush=True)
threading.Thread(target=work).start()
""",
    )
    assert "had invoice 1 of acme" in lines
    assert left(lines) == 1


def test_a_call_after_the_end_is_refused(place: Place) -> None:
    """Of an object that the interpreter takes down last."""
    lines = run(
        place,
        """
class Late:
    def __del__(self, client=client, write=os.write):
        try:
            client.status("k")
        except BaseException as error:
            write(1, f"told {type(error).__name__}\\n".encode())
late = Late()
""",
    )
    assert "told NotRunning" in "\n".join(lines)


def test_one_that_is_used_by_functions_for_the_end_works_there(place: Place) -> None:
    place.worker()
    lines = run(
        place,
        """
import atexit
atexit.register(lambda: print(client.dispatch("invoice", "acme", 1).result(60), flush=True))
""",
    )
    assert "invoice 1 of acme" in lines
    assert left(lines) == 1


def test_a_forked_child_that_ends_leaves_and_its_parent_stays(place: Place) -> None:
    lines = run(
        place,
        """
if (child := os.fork()) == 0:
    try:
        client.status("k")
    except NoSuchJob:
        sys.exit(0)
os.waitpid(child, 0)
try:
    client.status("k")
except NoSuchJob:
    print("still open", flush=True)
""",
    )
    assert "still open" in lines
    assert left(lines) == 2


def test_a_child_that_never_calls_ends_without_a_word(place: Place) -> None:
    """It has a copy of an open client, whose thread is not there."""
    lines = run(
        place,
        """
if (child := os.fork()) == 0:
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
""",
    )
    assert left(lines) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_pool_goes_on_without_one_that_was_killed(place: Place, number: signal.Signals) -> None:
    place.worker()
    waits = 'print("waits", flush=True)\nclient.dispatch("stays", "s").result()\n'
    program = place.start("python", "-c", OPENS.format(pool=place.pool) + waits)
    program.says("^waits")
    assert program.ends(number) == -number
    assert "invoice 2 of acme" in run(
        place, 'print(client.dispatch("invoice", "acme", 2).result(60), flush=True)'
    )


def test_a_program_that_blocks_makes_a_batch_and_reads_it(place: Place) -> None:
    """That of the page about callers that block."""
    place.write("blocking-callers.md")
    place.worker()
    program = place.start("python", "nightly.py")
    assert program.ends() == 0, "\n".join(program.lines)
    assert "100" in program.lines
    made = {line for line in program.lines if line.startswith("invoice ")}
    assert made == {f"invoice {number} of customer-{number}" for number in range(100)}
