"""Lines are written in a thread: who reads them, or does not, holds up nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial

import pytest

from pool.redis.io.scribe import PATIENCE_S, QUEUED_MAX, Scribe

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Gate:
    """A place where lines go, or where they get stuck."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_open = threading.Event()
        self.is_open.set()

    def write(self, line: str) -> None:
        self.is_open.wait()
        self.lines.append(line)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.is_open.set()


def scribe_of(gate: Gate) -> Scribe:
    return Scribe(lambda lines: gate.write(f"{lines} dropped"))


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pool-log"]


def test_a_line_is_written_when_its_writer_goes_on(gate: Gate) -> None:
    """As if there were no thread, in the context of who says it; and no thread is left."""
    scribe = scribe_of(gate)
    token = tenant.set("me")
    for i in range(100):
        scribe.write(partial(lambda i: gate.write(f"{i} {tenant.get()}"), i))
    tenant.reset(token)
    assert gate.lines == [f"{i} me" for i in range(100)]
    for thread in ours():
        thread.join(2.0)
    assert not ours()


def test_a_reader_who_hangs_holds_up_nobody_and_what_was_dropped_is_told(gate: Gate) -> None:
    """A7: the event loop stood still, and with it the node."""
    scribe = scribe_of(gate)
    gate.is_open.clear()
    began_s = time.monotonic()
    for i in range(QUEUED_MAX + 500):
        scribe.write(partial(gate.write, str(i)))
    assert time.monotonic() - began_s < 20 * PATIENCE_S  # it waited once
    [thread] = ours()
    gate.is_open.set()
    thread.join(5.0)
    kept = len(gate.lines) - 1
    assert kept >= QUEUED_MAX
    assert gate.lines == [*map(str, range(kept)), f"{QUEUED_MAX + 500 - kept} dropped"]
    scribe.write(partial(gate.write, "on it goes"))
    assert gate.lines[-1] == "on it goes"


def test_what_cannot_be_written_is_counted(gate: Gate) -> None:
    scribe = scribe_of(gate)

    def broken() -> None:
        raise BrokenPipeError

    scribe.write(broken)
    scribe.write(partial(gate.write, "next"))
    assert "next" in gate.lines
    assert "1 dropped" in gate.lines


def test_lines_of_many_threads_are_all_written(gate: Gate) -> None:
    scribe = scribe_of(gate)

    def fifty() -> None:
        for _ in range(50):
            scribe.write(partial(gate.write, "x"))

    threads = [threading.Thread(target=fifty) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in ours():
        thread.join(2.0)
    assert len(gate.lines) == 400


def test_a_forked_child_writes_its_own_lines(gate: Gate) -> None:
    """Its parent's thread is not there, and what that had in hand is not the child's."""
    scribe = scribe_of(gate)
    gate.is_open.clear()
    scribe.write(partial(gate.write, "the parent's"))
    child = os.fork()
    if child == 0:
        gate.is_open = threading.Event()
        gate.is_open.set()
        scribe.write(partial(gate.write, "the child's"))
        os._exit(0 if gate.lines == ["the child's"] else 1)
    _, status = os.waitpid(child, 0)
    gate.is_open.set()
    for thread in ours():
        thread.join(2.0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert gate.lines == ["the parent's"]


_AT_EXIT = """
import builtins
from pool.redis.io.scribe import Scribe

class Torn:
    def __del__(self):
        scribe.write(lambda: print("a last line"))

scribe = Scribe(print)
builtins.torn = Torn()
"""


def test_a_line_of_what_is_torn_apart_at_the_end_of_the_interpreter_ends_with_it() -> None:
    """As a node's is that was never left: what its tasks say then holds up no exit."""
    command = [sys.executable, "-c", _AT_EXIT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30.0)
    assert done.stdout == "a last line\n"
