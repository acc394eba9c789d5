"""The checker, a pure function of a history: `python -m tests.verify.checker [-b NAME=N] FILE...`

It judges what events say, never what a run was meant to do, so it serves simulated, black-box and
stored histories alike.  One pass puts the events in order (`view.py`), one short pass each judges
the invariants (`invariants.py`), all in linear time; only where something looks wrong are faults
searched for an excuse.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.verify import (  # noqa: F401 - they register
    batching,
    data,
    edges,
    following,
    in_time,
    keeping,
    planning,
    timetable,
    versioning,
)
from tests.verify.flows import STORE
from tests.verify.history import Event, fenced, merged, read
from tests.verify.invariants import INVARIANTS, NOT_YET, Finding, Violation, takeovers
from tests.verify.view import Bounds, View

__all__ = ["Bounds", "Report", "Violation", "check", "load", "sometimes"]

SHOWN_MAX: Final = 20  # violations that are printed with what happened around them
AROUND_MAX: Final = 14
AROUND_S: Final = 2.0
EFFECTS: Final = "effects"  # the stem of the file whose order is the resource's own


@attrs.frozen(kw_only=True)
class Report:
    """What the checker found."""

    events: int
    violations: tuple[Violation, ...]
    judged: Mapping[str, int]  # per invariant; 0: this history says nothing of it
    sometimes: Mapping[str, int]
    figures: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.violations

    @property
    def broken(self) -> dict[str, int]:
        """How often each invariant was violated; those that were not are left out."""
        return dict(Counter(violation.invariant for violation in self.violations))

    def verdict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "ok": self.ok,
            "events": self.events,
            "broken": self.broken,
            "violations": [f"{v.invariant}: {v.text}" for v in self.violations[:SHOWN_MAX]],
            "judged": dict(self.judged),
            "sometimes": dict(self.sometimes),
            "figures": dict(self.figures),
        }

    def text(self, events: Sequence[Event] = ()) -> str:
        """Return it for people; with the history, each violation with the events around it."""
        lines = [f"{self.events} events, {'ok' if self.ok else 'VIOLATED'}"]
        for name, (meaning, _) in INVARIANTS.items():
            wrong = self.broken.get(name, 0)
            said = "ok" if self.judged[name] else "not judged"
            if wrong:
                said = f"{wrong} VIOLATIONS"
            lines.append(f"  {name:4} {meaning:45} {self.judged[name]:>9} judged  {said}")
        lines += [f"  {name:4} not applicable yet: {why}" for name, why in NOT_YET.items()]
        for name, count in self.sometimes.items():
            lines.append(f"  sometimes  {name:38} {count:>9}")
        for name, value in self.figures.items():
            lines.append(f"  figure     {name:38} {value:>9.3f}")
        for violation in self.violations[:SHOWN_MAX]:
            lines.append(f"{violation.invariant} ({INVARIANTS[violation.invariant][0]})")
            lines.append(f"  {violation.text}")
            lines += [f"    {event.line()[:300]}" for event in around(events, violation)]
        if len(self.violations) > SHOWN_MAX:
            lines.append(f"... and {len(self.violations) - SHOWN_MAX} more")
        return "\n".join(lines)


def check(events: Iterable[Event], bounds: Bounds | None = None) -> Report:
    """Judge a history; the events may come in any order."""
    was_collecting = gc.isenabled()
    gc.disable()  # it would look at every event again and again: a third of all time
    try:
        bounds = bounds or Bounds()
        return _report(View.of_events(merged(events), bounds), bounds)
    finally:
        if was_collecting:
            gc.enable()


def _report(view: View, bounds: Bounds) -> Report:
    findings = [Finding(name) for name in INVARIANTS]
    for finding in findings:
        INVARIANTS[finding.invariant][1](view, bounds, finding)
    exact = {finding.invariant: finding.exact for finding in findings}
    return Report(
        events=len(view.events),
        violations=tuple(wrong for finding in findings for wrong in finding.wrong),
        judged={finding.invariant: finding.judged for finding in findings},
        sometimes=sometimes(view),
        figures={
            **_figures(view),
            "takeovers judged": float(next(f.judged for f in findings if f.invariant == "I18")),
            "takeovers judged at exactly B": float(exact["I18"]),
        },
    )


def sometimes(view: View) -> dict[str, int]:
    """Return how often each thing happened that a set of campaigns must have seen."""
    said = Counter(event.extra.get("event", "") for event in view.of.get("event", ()))
    commits = view.of.get("commit", ())
    unknown = {e.idem for e in view.of.get("dispatch", ()) if e.type == "info"}
    started = {run.start.idem for run in view.runs}
    kinds = Counter(fault.kind for fault in view.faults)
    words = Counter(commit.word for commit in view.commits)
    begun = [event for event in view.of.get("saw", ()) if event.type == "info"]
    return {
        "stale commit refused": sum(e.type == "fail" for e in commits),
        "commit repeated, same outcome": sum(e.result == "repeat" for e in commits),
        "job taken over after a crash": sum(later is not None for *_, later in takeovers(view)),
        "worker reaped": len(view.of.get("reap", ())),
        "worker joined again": said["worker.fenced"],
        "self-fence fired": said["lease.lost"],
        "resumed after a self-fence": said["lease.resumed"],
        "reconciliation mended": said["reconciliation.mended"],
        "hung loop reported": said["loop.hung"],
        "handler outlived its lease": said["handler.overran"],
        "data loss detected": said["data.lost"],
        "dispatch of unknown outcome": len(unknown),
        "... that was accepted": len(unknown & started),
        "scripts were flushed": kinds["script-flush"],
        "reaper died with a claim in its hand": kinds["crash-in-reap"],
        "worker was exchanged": kinds["change-worker"],
        "job parked": words["parked"],
        "job cancelled": words["cancelled"],
        "job retried": sum(run.start.attempt > 1 for run in view.runs),
        "copy began anew": len([e for e in begun if e.extra["why"] != "begin"]),
        "event parked": len(view.of.get("parked", ())),
        "event given again": sum(e.extra["n"] > 1 for e in view.of.get("given", ())),
        "event taken by a cap": len(view.of.get("dropped", ())),
        "reader was told that its stream began anew": said["stream.restarted"],
        "job ran more than once": sum(len(runs) > 1 for runs in view.by_job.values()),
    }


def _figures(view: View) -> dict[str, float]:
    took = sorted(later.start.t - crash for _, crash, later in takeovers(view) if later)
    figures = {"jobs accepted": float(len(view.accepted)), "runs": float(len(view.runs))}
    if view.stalls[0]:
        figures["waited for processors s"] = view.stalls[1][-1]
        starved = [fault.ended - fault.began for fault in view.faults if fault.kind == "starved"]
        figures["starved s, longest"] = max(starved, default=0.0)
    if took:
        figures["takeover p50 s"] = took[len(took) // 2]
        figures["takeover p99 s"] = took[min(len(took) - 1, int(len(took) * 0.99))]
        figures["takeover max s"] = took[-1]
    waits = sorted(
        run.start.t - asked.t
        for run in view.runs
        if (asked := view.invoked.get(run.start.idem))
        and run.start.attempt == 1
        and asked.p != STORE  # it was told of afterwards
    )
    if waits:
        figures["dispatch to start p50 s"] = waits[len(waits) // 2]
        figures["dispatch to start max s"] = waits[-1]
    return figures


def around(events: Sequence[Event], violation: Violation) -> Iterator[Event]:
    """Yield the events of a violation and its neighbours: same key or job, or a fault."""
    if not violation.events:
        return
    keys = {event.key for event in violation.events} - {""}
    jobs = {event.job for event in violation.events} - {""}
    began = min(event.t for event in violation.events) - AROUND_S
    ended = max(event.t for event in violation.events) + AROUND_S
    near = [
        event
        for event in events
        if began <= event.t <= ended
        and (event.key in keys or event.job in jobs or event.f in ("fault", "exit", "reap"))
        and event.f != "final_state"
    ]
    middle = violation.events[0].t
    nearest = sorted(near, key=lambda event: abs(event.t - middle))[:AROUND_MAX]
    shown = {id(event): event for event in (*violation.events, *nearest)}
    yield from sorted(shown.values(), key=lambda event: (event.t, event.n))


def load(paths: Iterable[Path]) -> list[Event]:
    """Read a history from its files; what is named `effects` is judged in the file's own order."""
    return merged(*(fenced(read(p)) if p.stem == EFFECTS else read(p) for p in paths))


def main() -> int:
    """Judge stored files."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.checker", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-b", "--bound", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    given = parser.parse_args()
    named = dict(bound.split("=", 1) for bound in given.bound)
    bounds = Bounds(**{name: json.loads(text) for name, text in named.items()})
    events = load(given.files)
    report = check(events, bounds)
    text = json.dumps(report.verdict()) if given.json else report.text(events)
    sys.stdout.write(text + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
