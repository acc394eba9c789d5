"""The picture of a job's life: drawn by hand where things are, checked against the code's table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from pool.core.lifecycle import TABLE

LIVE: Final = ("unassigned", "pending", "waiting", "running")
PLACES: Final = {
    "unassigned": (250, 80),
    "pending": (250, 220),
    "waiting": (250, 360),
    "running": (520, 220),
    "queued": (250, 480),
    "done": (800, 80),
    "parked": (800, 220),
    "cancelled": (800, 360),
}
WIDE, HIGH = 124, 44


@attrs.frozen
class Arrow:
    """An arrow between two states: a path, and where its word stands."""

    source: str
    target: str
    path: str
    word: str = ""
    at: tuple[int, int] = (0, 0)


ARROWS: Final = (
    Arrow("unassigned", "pending", "M 230 102 V 192", "grant", (222, 152)),
    Arrow("pending", "unassigned", "M 270 198 V 108", "back", (280, 138)),
    Arrow("waiting", "pending", "M 230 338 V 248", "due", (222, 298)),
    Arrow("pending", "waiting", "M 270 242 V 332", "retry", (280, 298)),
    Arrow("waiting", "unassigned", "M 188 352 C 120 330 120 110 182 88", "no room", (146, 268)),
    Arrow("unassigned", "waiting", "M 188 98 C 160 140 160 300 182 342", "late", (172, 176)),
    Arrow("pending", "running", "M 312 210 H 452", "acknowledge", (340, 202)),
    Arrow("running", "pending", "M 458 230 H 318", "new owner", (346, 248)),
    Arrow("running", "unassigned", "M 490 198 C 470 130 400 90 318 82", "no room", (448, 118)),
    Arrow("running", "waiting", "M 490 242 C 470 320 400 352 318 358", "retry", (448, 332)),
    Arrow("running", "done", "M 560 198 C 600 120 660 84 732 80", "result", (640, 128)),
    Arrow("pending", "done", "M 290 198 C 360 20 600 40 732 72"),
    Arrow("queued", "cancelled", "M 312 480 C 620 480 790 460 800 388", "stopped", (520, 492)),
)
# What may happen in these four states is drawn once, from the frame around them.
FRAMED: Final = ("parked", "cancelled")
FRAME: Final = (96, 30, 514, 390)


def picture() -> str:
    """Return it as SVG.  It has a ground of its own, so that it can be read on any page."""
    drawn = {(arrow.source, arrow.target) for arrow in ARROWS}
    drawn |= {(state, end) for state in LIVE for end in FRAMED}
    assert drawn == set(_changes()), "the picture is not the table's"
    return "\n".join(_lines()) + "\n"


def _changes() -> Iterator[tuple[str, str]]:
    for (state, _), becomes in TABLE.items():
        for other in becomes:
            if other != state:
                yield state, other


def _lines() -> Iterator[str]:
    yield (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 530" role="img" '
        'font-family="system-ui, sans-serif" font-size="15" aria-label="The life of a job">'
    )
    yield '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
    yield 'markerHeight="7" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="#37474f"/>'
    yield "</marker></defs>"
    yield '<rect width="900" height="530" rx="10" fill="#fafafa"/>'
    x, y, wide, high = FRAME
    yield f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="14" fill="#e0f2f1"/>'
    for left, top, word in (
        (10, 80, ""),
        (10, 220, ""),
        (10, 360, "with a delay"),
        (10, 480, "behind another"),
    ):
        yield _stroke(f"M {left} {top} H 182")
        yield _text(word, left + 6, top + 20, 12)
    yield _text("dispatch", 14, 210, 15)
    yield _stroke("M 250 458 V 388")  # of no edge of its own: the end of the one before it
    yield _text("its turn", 258, 440, 13)
    for arrow in ARROWS:
        yield _stroke(arrow.path)
        end = ' text-anchor="end"' if arrow.at[0] == 222 else ""  # left of its arrow
        yield _text(arrow.word, *arrow.at, 13, end)
    yield _stroke("M 610 250 C 660 250 680 222 732 220")
    yield _text("given up", 640, 268, 13)
    yield _stroke("M 610 330 C 660 330 680 358 732 360")
    yield _text("stopped", 640, 370, 13)
    for state, (across, down) in PLACES.items():
        ground = "#ffffff" if state in (*LIVE, "queued") else "#cfd8dc"
        box = f'x="{across - WIDE // 2}" y="{down - HIGH // 2}" width="{WIDE}" height="{HIGH}"'
        yield f'<rect {box} rx="8" fill="{ground}" stroke="#00796b" stroke-width="1.5"/>'
        yield _text(state, across, down + 5, 16, ' text-anchor="middle" font-weight="600"')
    yield "</svg>"


def _stroke(path: str) -> str:
    return (
        f'<path d="{path}" fill="none" stroke="#37474f" stroke-width="1.5" marker-end="url(#a)"/>'
    )


def _text(word: str, x: int, y: int, size: int, more: str = "") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="#263238"{more}>{word}</text>'
        if word
        else ""
    )
