"""The witness: one file outside Redis that every process of the demo appends to.

A line is written with one `write` to a descriptor in append mode, so that lines of several
processes do not mix, and what was written before a SIGKILL stays.  All processes of one machine
share a monotonic clock, which is what `at_s` is read from.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import anyio
import attrs

from pool.jobs.job import Job

What: TypeAlias = Literal[
    # by handlers
    "start",  # count: the ticks that a clock was given
    "end",  # count: the ticks that it has now; how: returned, cancelled or failed
    "tick",  # count
    "heard",  # count: the number of a notification
    # by the conductor
    "accepted",  # a dispatch returned
    "notified",  # a notification was accepted; count is its number
    "outcome",  # an outcome was seen in the store: epoch is the one stored, how its word
    "node",  # how: joined, killed, stopped, continued, draining, left (count: the exit code)
    "mishap",  # how: what the conductor could not do
    "late",  # it slept for longer than it had asked; count: by how many microseconds
    "curtain",  # the play is over: clocks must still run now
]
CLOCK, ZONE = "clock", "zone"


@attrs.frozen(kw_only=True)
class Entry:
    """One line."""

    at_s: float
    what: What
    node: str = ""
    key: str = ""
    job: str = ""  # the job's id
    handler: str = ""
    epoch: int = 0
    run: int = 0  # which start of its process this is: one epoch may be started twice
    count: int = 0
    how: str = ""


_FIELDS: Final = {field.name: field.default for field in attrs.fields(Entry)}


class Ledger:
    """The writing end, one per process.  `node` is what this process calls itself."""

    def __init__(self, path: Path, node: str = "") -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._node = node
        self._runs = 0

    def write(self, what: What, **facts: Any) -> float:
        """Append a line and return its time."""
        entry = Entry(**{"at_s": time.monotonic(), "what": what, "node": self._node, **facts})
        fields = {k: v for k, v in attrs.asdict(entry).items() if v != _FIELDS[k]}
        os.write(self._fd, json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        return entry.at_s

    def begin(self, job: Job, ticks: int = 0) -> Running:
        """Write that a handler has started."""
        self._runs += 1
        running = Running(self, job, self._runs, ticks)
        running.write("start")
        return running

    @contextmanager
    def running(self, job: Job, ticks: int = 0) -> Iterator[Running]:
        """Write that a handler has started and, whatever happens, how it has ended."""
        running = self.begin(job, ticks)
        how = "failed"
        try:
            yield running
            how = "returned"
        except anyio.get_cancelled_exc_class():
            how = "cancelled"
            raise
        finally:
            running.write("end", how=how)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@attrs.define(eq=False)
class Running:
    """One handler's part of the ledger."""

    ledger: Ledger
    job: Job
    run: int
    count: int

    def write(self, what: What, **facts: Any) -> None:
        """Append a line about this run."""
        job = self.job
        about = {"key": job.key, "job": job.id, "handler": job.handler, "epoch": job.epoch}
        self.ledger.write(what, **{**about, "run": self.run, "count": self.count, **facts})


@attrs.define(eq=False)
class LedgerTail:
    """The reading end: what was appended since the last look."""

    path: Path
    _at: int = attrs.field(init=False, default=0)

    def read(self) -> list[Entry]:
        """Return the new lines; one that is being written is left for the next time."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._at += len(whole)
        return [Entry(**json.loads(line)) for line in whole.splitlines()]
