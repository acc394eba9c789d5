"""A worker is gone in the documented time, whatever its handlers have left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pool.jobs.fleet.keepalive import EXIT_CODE
from tests.verify.exits import BEHIND, ENDS, KILL, LOOPS, Cell, measure

HELD_UP = ("abandoned to_thread", "thread", "executor", "process pool", "atexit")
NAMED = {
    "abandoned to_thread": "AnyIO worker thread",
    "thread": "threads that go on: Thread-",
    "executor": "threads that go on: ThreadPoolExecutor-",
    "process pool": "",
    "atexit": "a function of atexit",
}
ABANDONED = {("abandoned to_thread", "trio")}  # nobody waits for a thread of trio's
CELLS = [
    (behind, end)
    for behind in BEHIND
    for end in ENDS
    if not (behind.startswith("import") and end == "shutdown")  # nobody has joined yet
]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("behind", "end"), CELLS)
def test_it_is_gone_in_time(
    behind: str, end: str, loop: str, pool_name: str, pool_url: str, tmp_path: Path
) -> None:
    cell = measure(behind, end, loop, pool_name, pool_url, tmp_path)
    assert cell.seconds is not None
    holds_up = behind in HELD_UP and (behind, loop) not in ABANDONED
    code = EXIT_CODE if holds_up else 0
    if behind == "import":
        code = -signal.SIGTERM  # nothing had begun
    elif behind == "import, as PID 1":
        code = 128 + signal.SIGTERM
    assert cell == Cell(cell.seconds, None if end == "SIGHUP" else code)
    hangs = [
        line for line in (tmp_path / "out").read_text().splitlines() if "process.hangs" in line
    ]
    assert len(hangs) == holds_up
    assert all(NAMED[behind] in line for line in hangs)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("behind", ["nothing", "full pipe", "as PID 1"])
def test_a_child_that_is_killed_is_replaced(
    behind: str, loop: str, pool_name: str, pool_url: str, tmp_path: Path
) -> None:
    """Its parent stood still in a write where nobody read what it printed (P1)."""
    cell = measure(behind, KILL, loop, pool_name, pool_url, tmp_path)
    assert cell.seconds is not None
    assert cell.code is None  # the parent goes on
