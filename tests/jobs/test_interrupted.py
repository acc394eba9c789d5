"""A blocking client that is interrupted at any line: nothing is left behind, nothing hangs.

A signal's handler runs between two lines of the main thread, and raises there, calls the client
itself, or closes it.  A trace function does the same at a line that can be chosen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeAlias

import pytest

from pool import Settings
from pool.errors import NoSuchJob, NotRunning
from pool.events import NodeJoined, NodeLeft
from pool.sync import Client

WAIT_S = 30.0
PATIENT = Settings(op_timeout_s=WAIT_S)  # of a busy machine

Handler: TypeAlias = Callable[[], object]


class TimeLimit(BaseException):
    """As Celery's soft limit, gunicorn's abort, or Ctrl-C."""


def raises() -> None:
    raise TimeLimit


class Lines:
    """Runs something at the nth line of what opens and closes a client, in this thread."""

    def __init__(self, handler: Handler | None = None, at: int = -1) -> None:
        self.count = 0
        self.handler, self.at = handler, at

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        is_it = name.endswith(("sync/portal.py", "sync/client.py"))
        if not is_it and frame.f_code.co_qualname != "Thread.start":
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at and self.handler is not None:
                self.handler()
        return self._trace


def use(client: Client, lines: Lines) -> str:
    """Call it once and close it; return how the call ended."""
    said = ""
    with lines:
        try:
            client.status("k")
        except (NoSuchJob, NotRunning, TimeLimit) as error:
            said = type(error).__name__
        try:
            client.close()
        except TimeLimit:
            said = TimeLimit.__name__
    client.close()
    return said


@pytest.mark.parametrize("what", ["raise", "call", "close"])
def test_whichever_line_is_interrupted_no_node_and_no_thread_is_left(
    pool_url: str, pool_name: str, what: str
) -> None:
    told, ends = list[object](), set[str]()
    before = set(threading.enumerate())

    def new() -> Client:
        return Client(pool_name, pool_url, settings=PATIENT, observers=(told.append,))

    def call() -> None:
        try:
            client.status("of-a-signal")
        except (NoSuchJob, NotRunning) as error:
            ends.add(f"handler: {type(error).__name__}")

    def close() -> None:
        client.close()

    client, lines = new(), Lines()
    assert use(client, lines) == "NoSuchJob"
    handlers: dict[str, Handler] = {"raise": raises, "call": call, "close": close}
    for at in range(1, lines.count + 1):
        client = new()
        ends.add(use(client, Lines(handlers[what], at)))
    for thread in set(threading.enumerate()) - before:
        if thread.name == "pool-client":
            thread.join(WAIT_S)
            assert not thread.is_alive()
    joined, left = (
        {each.node for each in told if isinstance(each, kind)} for kind in (NodeJoined, NodeLeft)
    )
    assert joined == left
    assert len(joined) > 2
    expected = {
        "raise": {"TimeLimit"},
        "call": {"NoSuchJob", "handler: NoSuchJob", "handler: NotRunning"},
        "close": {"NoSuchJob", "NotRunning"},
    }
    assert ends == expected[what]
