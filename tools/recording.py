"""docs/assets/demo.svg: a real run of `pool demo`, recorded in a terminal of its own.

    python -m tools.recording        runs the demo (about a minute) and writes the picture

It plays `SPEED` times as fast as it was; the seconds that stand in its lines are those of the run.
The picture is one SVG file that needs nothing else: each line is a text that comes and goes.  Who
cannot play it sees its end.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Final

import attrs

OUT: Final = Path(__file__).parents[1] / "docs/assets/demo.svg"
COLUMNS, ROWS = 84, 34
SPEED: Final = 2.0
FRAME_S: Final = 0.4  # of the play: what changes within that is one change
END_S: Final = 12.0  # for which the end stays
CHAR, LINE, PAD = 8.4, 18, 14

_COLOURS: Final = {
    r"^ *[\d.]+  SIGKILL|  killed": "#ff8a80",
    r"^ *[\d.]+  SIG|  frozen|  draining": "#ffd180",
    "every promise was kept": "#a5d6a7",
    "[█░]": "#80cbc4",
}
_BACK: Final = re.compile(r"\x1b\[(\d+)F\x1b\[J")


@attrs.frozen
class Span:
    """A text, where it stands, and from when until when; `until_s` None: until the end."""

    row: int
    text: str
    from_s: float
    until_s: float | None


@attrs.define
class Screen:
    """As much of a terminal as the demo needs: lines, and going back to write some anew."""

    lines: list[str] = attrs.field(factory=lambda: [""])

    def feed(self, text: str) -> None:
        """Take what was printed."""
        while text:
            back = _BACK.match(text)
            if back:
                del self.lines[len(self.lines) - 1 - int(back[1]) :]
                self.lines.append("")
                text = text[back.end() :]
                continue
            end = text.find("\x1b", 1)
            piece, text = (text, "") if end < 0 else (text[:end], text[end:])
            first, *others = piece.replace("\r", "").split("\n")
            self.lines[-1] += first
            self.lines += others


def record(words: list[str]) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal; yield what it printed, with the seconds since it began."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "PYTHONIOENCODING": "utf-8"}
    began_s = time.monotonic()
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            yield time.monotonic() - began_s, piece.decode("utf-8", "replace")
    os.close(ours)
    if process.returncode:  # a busy machine, or a bug: there is no picture of either
        raise SystemExit(f"the demo ended with {process.returncode}; run it by itself")


def spans(pieces: Iterable[tuple[float, str]]) -> tuple[list[Span], float]:
    """Return which text stood where and when, in seconds of the picture; and its length."""
    screen, done = Screen(), list[Span]()
    open_: dict[int, tuple[str, float]] = {}
    shown_s, at_s = -1.0, 0.0

    def show(now_s: float) -> None:
        for row in range(max(len(screen.lines), *[*open_, 0]) + 1):
            text = screen.lines[row].rstrip() if row < len(screen.lines) else ""
            before = open_.get(row)
            if before is not None and before[0] != text:
                done.append(Span(row, before[0], before[1], now_s))
                del open_[row]
            if text and (before is None or before[0] != text):
                open_[row] = (text, now_s)

    for real_s, piece in pieces:
        at_s = round(real_s / SPEED, 2)
        if at_s - shown_s >= FRAME_S:  # as it stood until now
            show(at_s)
            shown_s = at_s
        screen.feed(piece)
    show(at_s)
    done += [Span(row, text, from_s, None) for row, (text, from_s) in open_.items()]
    return done, at_s + END_S


def picture(found: list[Span], length_s: float) -> str:
    """Return the picture."""
    rows = max(span.row for span in found) + 1
    wide, high = round(COLUMNS * CHAR + 2 * PAD), rows * LINE + 2 * PAD + 30
    return "\n".join((*_head(wide, high, length_s), *map(_line, found), "</svg>")) + "\n"


def _head(wide: int, high: int, length_s: float) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
        'aria-label="pool demo: three processes, one killed, one frozen, one drained" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="#cfd8dc">'
    )
    yield f'<rect width="{wide}" height="{high}" rx="8" fill="#1c2529"/>'
    for i, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f")):
        yield f'<circle cx="{20 + 18 * i}" cy="18" r="5.5" fill="{colour}"/>'
    yield f'<text x="{wide / 2}" y="23" text-anchor="middle" fill="#90a4ae">$ make demo</text>'
    # The clock of all others; it begins again when it is over.
    yield '<rect width="0" height="0"><animate id="loop" attributeName="x" from="0" to="0"'
    yield f' begin="0s;loop.end" dur="{length_s:.2f}s"/></rect>'


def _line(span: Span) -> str:
    y = PAD + 30 + LINE * span.row + 12
    begin, hidden = f"loop.begin+{span.from_s:.2f}s", ' visibility="hidden"'
    if span.until_s is None:  # what stands at the end stands also where nothing moves
        moves, hidden = (
            f'<set attributeName="visibility" to="hidden" begin="loop.begin" end="{begin}"/>',
            "",
        )
    else:
        end = f"loop.begin+{span.until_s:.2f}s"
        moves = f'<set attributeName="visibility" to="visible" begin="{begin}" end="{end}"/>'
    colour = _colour(span.text)
    text = escape(span.text, quote=False)
    return f'<text x="{PAD}" y="{y}" xml:space="preserve"{colour}{hidden}>{text}{moves}</text>'


def _colour(text: str) -> str:
    for form, colour in _COLOURS.items():
        if re.search(form, text):
            return f' fill="{colour}"'
    return ""


def main() -> int:
    """Record, and write the picture."""
    found, length_s = spans(record([str(Path(sys.executable).parent / "pool"), "demo"]))
    OUT.write_text(picture(found, length_s), "utf-8")
    sys.stdout.write(f"{OUT}: {len(found)} texts, {length_s:.0f} s, {OUT.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
