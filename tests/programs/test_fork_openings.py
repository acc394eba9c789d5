"""A program that forks while another thread's first call opens the client: the child can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.programs.conftest import Place

MOMENTS = 16  # of an opening, evenly spread over the functions that it calls

IMPORTS = """
import os, sys
from pool import Settings
from pool.errors import NoSuchJob
from pool.sync import Client
client = Client({pool!r}, os.environ["POOL_URL"], settings=Settings(op_timeout_s=30))
before = set(sys.modules)
try:
    client.status("k")
except NoSuchJob:
    print("imported:", *sorted(set(sys.modules) - before), "end", flush=True)
"""

FORKS = """
import os, signal, sys, threading, time
from pool import Settings
from pool.errors import NoSuchJob
from pool.sync import Client

def ask(client):
    try:
        client.status("k")
    except NoSuchJob:
        return True

def opening(moment):
    # In a process in which nothing has been opened yet: open a client, and stop at that call.
    client = Client({pool!r}, os.environ["POOL_URL"], settings=Settings(op_timeout_s=30))
    calls, is_there, is_over = 0, threading.Event(), threading.Event()
    def look(frame, event, arg):
        nonlocal calls
        if threading.current_thread().name == "pool-client" and event == "call":
            calls += 1
            if calls == moment:
                is_there.set()
                is_over.wait()
    threading.setprofile(look)
    asking = threading.Thread(target=ask, args=(client,))
    asking.start()
    if not moment:
        asking.join()
        return calls
    is_there.wait(30)
    child = os.fork()
    if not child:
        threading.setprofile(None)
        sys.setprofile(None)
        signal.alarm(30)
        os._exit(0 if ask(client) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    is_over.set()
    asking.join()
    return code

def in_copy(moment):
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, str(opening(moment)).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        found = int(file.read())
    os.waitpid(pid, 0)
    return found

calls = in_copy(0)
bad = [m for m in (1 + calls * i // {moments} for i in range({moments})) if in_copy(m)]
print("calls:", calls, "hang:", bad, "end", flush=True)
"""


def test_opening_a_client_imports_nothing(place: Place) -> None:
    """A child of a fork meanwhile would wait for ever for the lock of such a module."""
    program = place.start("python", "-c", IMPORTS.format(pool=place.pool))
    assert program.says("imported:.*end") == "imported: end"
    program.ends()


def test_a_fork_at_any_moment_of_an_opening_leaves_a_child_that_works(place: Place) -> None:
    program = place.start("python", "-c", FORKS.format(pool=place.pool, moments=MOMENTS))
    code = program.ends()
    assert code == 0, "\n".join(program.lines)
    assert " hang: [] end" in program.says("calls: .*end")
