"""What the ledger tells, put together: who ran what, from when to when.  Pure.

The show reads it while the play goes on, the verdict reads it at the end; both learn nothing from
the pool itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

import attrs

from pool.demo.ledger import CLOCK, ZONE, Entry


@attrs.define(eq=False, kw_only=True)
class RunSeen:
    """One start of a handler, and what followed."""

    node: str
    key: str
    job: str
    handler: str
    epoch: int
    began_s: float
    given: int  # the ticks that it was started with
    ticks: int
    ticked_s: float = -math.inf
    shown: str = ""
    ended_s: float = math.inf  # for ever: nothing was written, or the process was killed
    how: str = ""


@attrs.define(eq=False)
class JobLife:
    """One node: when what was done to it."""

    joined_s: float = math.inf
    killed_s: float = math.inf
    stopped_s: float = math.inf
    continued_s: float = math.inf
    draining_s: float = math.inf
    left_s: float = math.inf
    exit_code: int = 0

    @property
    def gone_s(self) -> float:
        """When its process had ended."""
        return min(self.killed_s, self.left_s)


@attrs.define(eq=False)
class History:
    """Everything so far."""

    runs: dict[tuple[str, int], RunSeen] = attrs.field(factory=dict)
    by_key: dict[str, list[RunSeen]] = attrs.field(factory=dict)  # in the order of starts
    accepted: dict[str, Entry] = attrs.field(factory=dict)  # by job id
    notified: dict[str, list[int]] = attrs.field(factory=dict)  # by key: numbers, in order
    heard: dict[str, list[int]] = attrs.field(factory=dict)  # by key, in order, first time only
    outcomes: dict[str, list[Entry]] = attrs.field(factory=dict)  # by job id, as they were seen
    lives: dict[str, JobLife] = attrs.field(factory=dict)
    mishaps: list[str] = attrs.field(factory=list)
    late: list[tuple[float, float]] = attrs.field(factory=list)  # when, and how late a sleeper was
    curtain_s: float = math.inf

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> History:
        """Return the history that a whole ledger tells."""
        history = cls()
        for entry in entries:
            history.add(entry)
        return history

    def add(self, entry: Entry) -> None:
        """Take in one more line.  Lines of several processes may come a little out of order."""
        match entry.what:
            case "start":
                run = RunSeen(
                    node=entry.node,
                    key=entry.key,
                    job=entry.job,
                    handler=entry.handler,
                    epoch=entry.epoch,
                    began_s=entry.at_s,
                    given=entry.count,
                    ticks=entry.count,
                )
                self.runs[entry.node, entry.run] = run
                runs = self.by_key.setdefault(entry.key, [])
                runs.append(run)
                runs.sort(key=lambda each: each.began_s)
            case "end":
                run = self.runs[entry.node, entry.run]
                run.ended_s, run.how, run.ticks = entry.at_s, entry.how, entry.count
            case "tick":
                run = self.runs[entry.node, entry.run]
                run.ticks, run.ticked_s, run.shown = entry.count, entry.at_s, entry.how
            case "heard":
                heard = self.heard.setdefault(entry.key, [])
                if entry.count not in heard:
                    heard.append(entry.count)
            case "accepted":
                self.accepted[entry.job] = entry
            case "notified":
                self.notified.setdefault(entry.key, []).append(entry.count)
            case "outcome":
                self.outcomes.setdefault(entry.job, []).append(entry)
            case "node":
                life = self.lives.setdefault(entry.node, JobLife())
                setattr(life, f"{entry.how}_s", entry.at_s)
                life.exit_code = life.exit_code or entry.count
            case "mishap":
                self.mishaps.append(entry.how)
            case "late":
                self.late.append((entry.at_s, entry.count / 1e6))
            case "curtain":
                self.curtain_s = entry.at_s

    def end_of(self, run: RunSeen) -> float:
        """Return when a run ended: by itself or with its process; infinite while it goes on."""
        return min(run.ended_s, self.lives.get(run.node, _FOR_EVER).gone_s)

    def open_runs(self, node: str, handler: str, at_s: float = math.inf) -> list[RunSeen]:
        """Return what ran on a node at a moment, by default now; what died there counts."""
        return [
            run
            for run in self.runs.values()
            if run.node == node
            and run.handler == handler
            and run.began_s <= at_s
            and (run.ended_s > at_s or run.ended_s == math.inf)
        ]

    def is_worked_on(self, key: str) -> bool:
        """Say whether somebody works on the key now."""
        return any(self.end_of(run) == math.inf for run in self.by_key.get(key, ()))

    def started_after(self, run: RunSeen, at_s: float) -> float:
        """Return when the key of a run was first started on another node after `at_s`."""
        after = (r.began_s for r in self.by_key[run.key] if r.node != run.node)
        return min((began_s for began_s in after if began_s > at_s), default=math.inf)

    def late_s(self, from_s: float, to_s: float) -> float:
        """Return how long a process that does nothing was kept from waking, between two moments."""
        return sum(late_s for at_s, late_s in self.late if from_s < at_s <= to_s)

    def jobs(self, handler: str) -> list[Entry]:
        """Return what was accepted for a handler."""
        return [entry for entry in self.accepted.values() if entry.handler == handler]

    def handoffs(self) -> Iterator[tuple[RunSeen, RunSeen]]:
        """Yield each clock's changes of node in which the former owner had ended it before.

        What ran while its node stood still was taken over: that it ended before the next one began
        is chance, and what it counted last comes too late.
        """
        for former, latter in self.changes_of_node():
            was_frozen = former.began_s <= self.lives[former.node].stopped_s < former.ended_s
            if former.how == "cancelled" and former.ended_s <= latter.began_s and not was_frozen:
                yield former, latter

    def changes_of_node(self) -> Iterator[tuple[RunSeen, RunSeen]]:
        """Yield each clock's changes of node, whatever their reason."""
        for runs in self.by_key.values():
            for former, latter in pairwise(runs):
                if former.handler == CLOCK and former.node != latter.node:
                    yield former, latter

    def unfinished_zones(self) -> list[Entry]:
        """Return the zones for which no outcome was seen."""
        return [entry for entry in self.jobs(ZONE) if entry.job not in self.outcomes]


_FOR_EVER = JobLife()
