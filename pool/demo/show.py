"""What people see while the demo runs: story lines that stay and, on a terminal, a live block.

Everything shown comes from the ledger.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Final, TextIO

import attrs

from pool.demo.history import History, JobLife
from pool.demo.ledger import CLOCK, ZONE
from pool.demo.verdict import Verdict
from pool.ops.terminal import takes_codes

_PAINT_S: Final = 0.2
_REPORT_S: Final = 5.0  # between two lines of progress where nothing can be repainted
_BAR: Final = 40
_SHOWN: Final = ("Europe/London", "Africa/Nairobi", "Asia/Tokyo", "America/New_York")

_FIGURES: Final = {
    "jobs": "zones computed, each a finite job",
    "services": "world clocks, each a service",
    "lost": "accepted and never seen again",
    "settled_twice": "jobs with more than one outcome",
    "stale_commits": "results of an owner that was not the last",
    "overlaps": "two owners at once",
    "frozen_overlaps": "... of which the older was frozen: it could not know (G-03)",
    "wrong_results": "zones that differ from their TZif file",
    "takeover_s": "seconds from SIGKILL until all ran elsewhere",
    "handoff_s": "seconds that a clock stood still in a planned move, at most",
    "moves": "changes of node, over all clocks",
}


@attrs.define(eq=False)
class Show:
    """Writes to `stream`; None shows nothing."""

    stream: TextIO | None
    _began_s: float = attrs.field(init=False, factory=time.monotonic)
    _painted_s: float = attrs.field(init=False, default=0.0)
    _block: list[str] = attrs.field(init=False, factory=list)  # as it stands there now

    @property
    def is_live(self) -> bool:
        """Whether what was written can be repainted."""
        return self.stream is not None and takes_codes(self.stream)

    def say(self, text: str) -> None:
        """Write a line of the story."""
        self._write([f"{time.monotonic() - self._began_s:6.1f}  {text}"], self._block)

    def paint(self, history: History) -> None:
        """Show how things stand, if it is time to."""
        now_s = time.monotonic()
        if now_s - self._painted_s < (_PAINT_S if self.is_live else _REPORT_S):
            return
        self._painted_s = now_s
        if self.is_live:
            self._write([], list(self._state(history)))
        elif history.accepted:
            self.say(_progress(history))

    def close(self, verdict: Verdict) -> None:
        """Write the verdict."""
        figures = verdict.figures()
        lines = [f"  {_shown(figures[name])}  {text}" for name, text in _FIGURES.items()]
        word = "every promise was kept" if verdict.ok else "BROKEN"
        self._write(["", *lines, "", f"  {word}, in {verdict.seconds:.0f} s"], [])
        self._write([f"  - {case}" for case in verdict.broken], [])

    def _state(self, history: History) -> Iterator[str]:
        yield ""
        yield f"  {self._bar(history)}  {_progress(history)}"
        for node, life in history.lives.items():
            zones = len(history.open_runs(node, ZONE))
            clocks = len(history.open_runs(node, CLOCK))
            load = f"{zones:4} zones {clocks:3} clocks" if life.gone_s == float("inf") else ""
            yield f"  {node:6} {_word(life):9} {load}".rstrip()
        times = [_clock(history, zone) for zone in _SHOWN]
        yield "  " + "   ".join(text for text in times if text)

    def _bar(self, history: History) -> str:
        full, empty = (
            "█░" if "utf" in (getattr(self.stream, "encoding", "") or "").lower() else "#."
        )
        jobs = len(history.jobs(ZONE))
        done = _BAR * (jobs - len(history.unfinished_zones())) // max(jobs, 1)
        return full * done + empty * (_BAR - done)

    def _write(self, story: list[str], block: list[str]) -> None:
        if self.stream is None:
            return
        width = shutil.get_terminal_size().columns - 1
        erase = f"\x1b[{len(self._block)}F\x1b[J" if self._block else ""
        lines = [*story, *(line[:width] for line in block)]
        self.stream.write(erase + "".join(f"{line}\n" for line in lines))
        self.stream.flush()
        self._block = block


def _progress(history: History) -> str:
    jobs = len(history.jobs(ZONE))
    return f"{jobs - len(history.unfinished_zones())} of {jobs} zones"


def _word(life: JobLife) -> str:
    words = {
        life.killed_s: "killed",
        life.left_s: "left",
        life.draining_s: "draining",
        life.continued_s: "running",
        life.stopped_s: "frozen",
        life.joined_s: "running",
    }
    return words[max(at_s for at_s in words if at_s < float("inf"))]


def _clock(history: History, zone: str) -> str:
    runs = history.by_key.get(f"{CLOCK}:{zone}", [])
    shown = [run.shown for run in runs if run.shown]
    return f"{zone.rpartition('/')[2].replace('_', ' ')} {shown[-1]}" if shown else ""


def _shown(figure: float | None) -> str:
    return f"{'never' if figure is None else figure:>8}"
