"""The verdict of the demo, from the history that its ledger tells.

What the ledger tells, put together: who ran what, from when to when.  Pure.

The show reads it while the play goes on, the verdict reads it at the end; both learn nothing from
the pool itself.

The verdict: a pure function of the ledger, the stored results and the independent check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

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


KILLED_ZONES_MIN: Final = 20  # fewer running at the kill, and the demo has shown nothing
KILLED_CLOCKS_MIN: Final = 5
TAKEOVER_SLACK_S: Final = 1.0  # G-06: at most the TTL and this,
SUSPECTS_SLACK_S: Final = 6.0  # or this, for what may have killed the node: it had just begun,
JUST_S: Final = 1.0  # so long before the last sign of life


@attrs.frozen(kw_only=True)
class Stored:
    """How a job ended, as it stands in Redis."""

    word: str
    epoch: int
    value: Any = None


@attrs.frozen(kw_only=True)
class Verdict:
    """The figures, in the order in which they are printed, and every promise that was broken."""

    ok: bool
    server: str
    seconds: float
    ttl_s: float
    jobs: int
    services: int
    lost: int
    settled_twice: int
    stale_commits: int
    overlaps: int
    frozen_overlaps: int
    wrong_results: int
    takeover_s: float | None  # None: what the killed node ran was not started elsewhere
    handoff_s: float | None  # None: there was no hand-off
    moves: int
    broken: tuple[str, ...] = attrs.field(repr=False)

    def figures(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "broken")


def judge(
    history: History,
    stored: Mapping[str, Stored],
    expected: Mapping[str, Any],
    *,
    server: str,
    seconds: float,
    ttl_s: float,
) -> Verdict:
    """Return the verdict.

    Args:
        history: What the ledger tells.
        stored: The outcomes in Redis at the end, by job id.
        expected: The right result of each zone, without the epoch, by key.
        server: Name and version.
        seconds: How long it all took.
        ttl_s: The lease TTL of the nodes.
    """
    zones, clocks = history.jobs(ZONE), history.jobs(CLOCK)
    resultless = [e.key for e in zones if stored.get(e.job, _NONE).word != "done"]
    stopped = [e.key for e in clocks if not _ran_at_the_curtain(history, e.key)]
    unheard = _unheard(history)
    twice = [job for job in history.accepted if _was_settled_twice(history, job, stored)]
    stale = [job for job in history.accepted if _is_stale(history, job, stored.get(job, _NONE))]
    wrong = [e.key for e in zones if _is_wrong(stored.get(e.job, _NONE), expected[e.key])]
    overlaps = [_is_frozen(history, *pair) for pair in _overlaps(history)]
    takeover_s, late_s = _takeover_s(history, ttl_s)
    pauses_s = [latter.began_s - former.ended_s for former, latter in history.handoffs()]
    uncarried = [
        latter.key for former, latter in history.handoffs() if former.ticks != latter.given
    ]
    disordered = [key for key, heard in history.heard.items() if heard != sorted(heard)]
    broken = (
        *_the_demo_itself(history),
        *_said(resultless, "zones without a result"),
        *_said(stopped, "clocks that did not run at the end"),
        *_said(unheard, "notifications that no clock heard"),
        *_said(twice, "jobs settled twice"),
        *_said(stale, "results of an owner that was not the last"),
        *_said([key for key, is_frozen in overlaps if not is_frozen], "overlaps of two owners"),
        *_said(wrong, "wrong results"),
        *_said(uncarried, "hand-offs that lost the count of ticks"),
        *_said(disordered, "clocks that heard notifications out of order"),
    )
    if takeover_s == math.inf:
        broken += ("what the killed node ran was not all started elsewhere",)
    elif late_s > 0.0:
        broken += (f"a takeover was {late_s:.2f} s later than G-06 says",)
    return Verdict(
        ok=not broken,
        server=server,
        seconds=round(seconds, 1),
        ttl_s=ttl_s,
        jobs=len(zones),
        services=len(clocks),
        lost=len(resultless) + len(stopped) + len(unheard),
        settled_twice=len(twice),
        stale_commits=len(stale),
        overlaps=sum(not is_frozen for _, is_frozen in overlaps),
        frozen_overlaps=sum(is_frozen for _, is_frozen in overlaps),
        wrong_results=len(wrong),
        takeover_s=round(takeover_s, 3) if takeover_s < math.inf else None,
        handoff_s=round(max(pauses_s), 3) if pauses_s else None,
        moves=sum(1 for _ in history.changes_of_node()),
        broken=broken,
    )


_NONE = Stored(word="", epoch=0)


def _said(cases: list[str], what: str) -> Iterator[str]:
    if cases:
        some = ", ".join(cases[:3])
        yield f"{len(cases)} {what}: {some}{', ...' if len(cases) > 3 else ''}"


def _the_demo_itself(history: History) -> Iterator[str]:
    """Yield why the play has shown nothing: an easy play would look like a safe pool."""
    yield from history.mishaps
    for node, life in history.lives.items():
        if life.exit_code:
            yield f"{node} ended with exit code {life.exit_code}"
    killed = [node for node, life in history.lives.items() if life.killed_s < math.inf]
    if not killed:
        yield "the demo itself failed: no node was killed"
    for node in killed:
        at_s = history.lives[node].killed_s
        zones = sum(r.ended_s == math.inf for r in history.open_runs(node, ZONE, at_s))
        clocks = sum(r.ended_s == math.inf for r in history.open_runs(node, CLOCK, at_s))
        if zones < KILLED_ZONES_MIN or clocks < KILLED_CLOCKS_MIN:
            yield (
                f"the demo itself failed: the killed node ran {zones} zones and {clocks} clocks, "
                f"fewer than {KILLED_ZONES_MIN} and {KILLED_CLOCKS_MIN}"
            )
    if not any(True for _ in history.handoffs()):
        yield "the demo itself failed: no clock was handed over"


def _ran_at_the_curtain(history: History, key: str) -> bool:
    return any(run.ticked_s > history.curtain_s for run in history.by_key.get(key, ()))


def _unheard(history: History) -> list[str]:
    return [
        f"{key} {number}"
        for key, numbers in history.notified.items()
        for number in numbers
        if number not in history.heard.get(key, ())
    ]


def _was_settled_twice(history: History, job: str, stored: Mapping[str, Stored]) -> bool:
    """Say whether an outcome changed after it was seen, or somebody began again after it."""
    seen = history.outcomes.get(job, [])
    told = {(entry.how, entry.epoch) for entry in seen}
    if job in stored:
        told.add((stored[job].word, stored[job].epoch))
    first_s = seen[0].at_s if seen else math.inf
    began_again = any(
        run.job == job and run.began_s > first_s and run.epoch > seen[0].epoch
        for run in history.by_key.get(history.accepted[job].key, ())
    )
    return len(told) > 1 or began_again


def _is_stale(history: History, job: str, stored: Stored) -> bool:
    """Say whether the outcome is that of an epoch which was not the last, by either account."""
    if not stored.word:
        return False  # it counts as lost
    runs = history.by_key.get(history.accepted[job].key, ())
    highest = max((run.epoch for run in runs if run.job == job), default=0)
    # What the handler itself says is beyond the pool's power to mend.
    claimed = stored.value.get("epoch", 0) if isinstance(stored.value, dict) else stored.epoch
    return bool(min(stored.epoch, claimed) < highest)


def _is_wrong(stored: Stored, expected: Any) -> bool:
    if stored.word != "done":
        return False  # it counts as lost
    value = stored.value if isinstance(stored.value, dict) else {}
    return any(value.get(name) != right for name, right in expected.items())


def _overlaps(history: History) -> Iterator[tuple[RunSeen, RunSeen]]:
    """Yield pairs of runs of one key that went on at the same time, the older epoch first."""
    for runs in history.by_key.values():
        for i, former in enumerate(runs):
            for latter in runs[i + 1 :]:
                if latter.began_s < history.end_of(former):
                    yield (former, latter) if former.epoch <= latter.epoch else (latter, former)


def _is_frozen(history: History, older: RunSeen, younger: RunSeen) -> tuple[str, bool]:
    """Say whether an overlap is one that freezing explains: G-03 names it as residual."""
    life = history.lives[older.node]
    began_before = older.began_s <= life.continued_s < math.inf
    return older.key, began_before and younger.began_s >= life.stopped_s


def _takeover_s(history: History, ttl_s: float) -> tuple[float, float]:
    """Return how long the slowest job of a killed node waited for its next start, and by how much
    the latest was late: what had just begun may be to blame, and begins one at a time (G-06).

    A machine that is busy with other work is late itself: that is measured, and no takeover's.
    """
    waits_s, late_s = [], [0.0]
    for node, life in history.lives.items():
        for run in history.runs.values() if life.killed_s < math.inf else ():
            if run.node == node and run.ended_s == math.inf:
                # The last sign of life is a renewal: it may be half a TTL old, where one was slow.
                is_suspect = run.began_s > life.killed_s - ttl_s / 2 - JUST_S
                slack_s = SUSPECTS_SLACK_S if is_suspect else TAKEOVER_SLACK_S
                waits_s.append(history.started_after(run, life.killed_s) - life.killed_s)
                by_then_s = life.killed_s + waits_s[-1]
                slack_s += history.late_s(life.killed_s, by_then_s)
                late_s.append(waits_s[-1] - ttl_s - slack_s)
    return max(waits_s, default=math.inf), max(late_s)
