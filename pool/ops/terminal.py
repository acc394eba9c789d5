"""What we print, made safe for a terminal: the one place that writes lines for people.

Names, arguments, exceptions and tracebacks are users' texts, and what is in Redis anybody may have
put there: printed as they are they could move the cursor, hide a line, or be taken for one of ours.
So what is not printable is written as Python writes it in a string: `\\x1b`, `\\n`, `\\u202e`.

Colour is for terminals, and says nothing that the words do not; NO_COLOR turns it off
(https://no-color.org).  Tables fit the width of a terminal; elsewhere nothing is cut.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, Final, Self, TextIO

from pool.printable import plain

_GAP: Final = "  "
_COLUMN_MIN: Final = 6  # characters of a column that is cut
_PROGRESS_S: Final = 1.0  # what lasts longer tells how far it is
_BAR: Final = 30  # characters
_CODE: Final = re.compile(r"\x1b\[[0-9]*m")  # of a colour, as `painted` writes it
codecs.lookup("unicode_escape")  # now: it opens a file, which may fail where a line has to be told
_RED, _GREEN, _YELLOW, _BOLD = "31", "32", "33", "1"
# Cells that consist of such a word.
_COLOURS: Final = {
    **dict.fromkeys(("error", "hung", "silent", "fenced", "gone", "parked"), _RED),
    **dict.fromkeys(("warning", "draining", "closed", "waiting", "unassigned"), _YELLOW),
    **dict.fromkeys(("live", "running", "done"), _GREEN),
}


class Safe(str):
    """A line that is safe already: its texts are plain, and it is coloured by us alone."""

    __slots__ = ()


class Unwritable(Exception):
    """What was to be told cannot be written: the disk is full, say."""


def write(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Write lines, to standard output as a rule; what its encoding has not is written in ASCII.

    Raises:
        BrokenPipeError: Nobody reads it any more.
        Unwritable: It cannot be written.
    """
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    safe = (line if isinstance(line, Safe) else plain(line) for line in lines)
    text = "".join(f"{line}\n" for line in safe)
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from None


class _Outlet(FileIO):
    """A descriptor that takes every text: what cannot be written is reported and dropped."""

    def __init__(self, number: int, on_lost: Callable[[OSError], object]) -> None:
        super().__init__(number, "w", closefd=False)
        self._on_lost = on_lost

    def write(self, data: Any, /) -> int:
        """Write some of the data; all of it is gone if that fails."""
        try:
            return super().write(data)
        except OSError as error:
            self._on_lost(error)
            return memoryview(data).nbytes


def by_lines(stream: TextIO, on_lost: Callable[[OSError], object]) -> TextIO:
    """Return a stream that writes each line when it ends, also into a pipe or a file.

    Python would keep some thousand bytes back there, and lose them with a process that is killed.
    No write raises: the reader's end, or a full disk, must not fail the jobs that print.
    """
    if not isinstance(stream, TextIOWrapper):
        return stream
    if not isinstance(getattr(stream.buffer, "raw", stream.buffer), FileIO):  # of a test
        stream.reconfigure(line_buffering=True)
        return stream
    stream.flush()
    return TextIOWrapper(
        BufferedWriter(_Outlet(stream.fileno(), on_lost)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=stream.write_through,
    )


def takes_codes(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that understands escape codes (colours, cursor)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_coloured(stream: TextIO) -> bool:
    """Whether what is written there may have colours."""
    return not os.environ.get("NO_COLOR") and takes_codes(stream)


def width_of(stream: TextIO) -> int | None:
    """Return how many columns a line may have there; None: as many as it needs."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def height_of(stream: TextIO) -> int | None:
    """Return how many lines can be seen there; None: as many as come."""
    return shutil.get_terminal_size().lines if stream.isatty() else None


def painted(text: str, word: str = "", *, is_on: bool) -> Safe:
    """Return a text made plain, in the colour of a word, itself if none is given; "" is bold."""
    text = plain(text)
    colour = _COLOURS.get(word, "") if word else _BOLD
    return Safe(f"\x1b[{colour}m{text}\x1b[0m" if is_on and colour else text)


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], stream: TextIO | None = None
) -> Iterator[Safe]:
    """Yield a table as lines that fit the stream's width: the widest columns are cut.

    A column of numbers stands to the right; None is an empty cell.
    """
    stream = stream or sys.stdout
    is_on, limit = is_coloured(stream), width_of(stream)
    cells = [["" if each is None else plain(str(each)) for each in row] for row in rows]
    lines = [list(head), *cells]
    widths = [max(map(_cells, column)) for column in zip(*lines, strict=True)]
    if limit is not None:
        widths = _fitted(widths, limit)
    is_number = [
        all(not each or each.replace(".", "", 1).lstrip("-").isdecimal() for each in column)
        for column in zip(*cells, strict=True)
    ] or [False] * len(head)
    for at, line in enumerate(lines):
        padded = list[str]()
        for text, width, to_right in zip(line, widths, is_number, strict=True):
            cut = _cut(text, width)
            space = " " * (width - _cells(cut))
            shown = painted(cut, text if at else "", is_on=is_on)
            padded.append(f"{space}{shown}" if to_right else f"{shown}{space}")
        yield Safe(_GAP.join(padded).rstrip())


def fitted(line: str, width: int) -> Safe:
    """Return a line cut to so many columns, then without colours: half a code colours all else."""
    safe = line if isinstance(line, Safe) else Safe(plain(line))
    bare = _CODE.sub("", safe)
    return safe if _cells(bare) <= width else Safe(_cut(bare, width))


def _fitted(widths: list[int], limit: int) -> list[int]:
    """Return widths of columns that fit: a character less for the widest, again and again."""
    found = widths.copy()
    while sum(found) + len(_GAP) * (len(found) - 1) > limit and max(found) > _COLUMN_MIN:
        found[found.index(max(found))] -= 1
    return found


def _cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def _cut(text: str, width: int) -> str:
    if _cells(text) <= width:
        return text
    while text and _cells(text) > width - 1:
        text = text[:-1]
    return f"{text}\u2026"


class Screen:
    """A terminal's second screen, on which pictures follow each other; elsewhere they just do."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._is_there = takes_codes(self._stream)

    def __enter__(self) -> Self:
        self._send("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(self, *_: object) -> None:
        self._send("\x1b[?25h\x1b[?1049l")

    def clear(self) -> None:
        """Begin the next picture."""
        self._send("\x1b[H\x1b[J")

    def _send(self, codes: str) -> None:
        if self._is_there:
            self._stream.write(codes)
            self._stream.flush()


@contextmanager
def progress(what: str, total: int, *, is_told: bool = True) -> Iterator[ProgressBar]:
    """Tell on standard error how far something is, once it has lasted for a second."""
    told = ProgressBar(what, total, is_told=is_told and takes_codes(sys.stderr))
    try:
        yield told
    finally:
        told.end()


class ProgressBar:
    """How far something is."""

    def __init__(self, what: str, total: int, *, is_told: bool) -> None:
        self._what, self._total, self._is_told = what, total, is_told
        self._began_s, self._is_drawn = time.monotonic(), False

    def at(self, done: int, total: int = 0) -> None:
        """Tell that so much is done, of how much if that was not known before."""
        if self._is_told and time.monotonic() - self._began_s > _PROGRESS_S:
            self._is_drawn = True
            total = total or self._total
            if not total:
                redraw(f"{self._what} {done}", sys.stderr)
                return
            filled = int(min(1.0, done / total) * _BAR)
            bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
            redraw(f"{self._what} {bar} {done}/{total}", sys.stderr)

    def end(self) -> None:
        """Leave the line, if there is one."""
        if self._is_drawn:
            write([""], sys.stderr)


def redraw(line: str, stream: TextIO) -> None:
    """Write a line in the place of the one that the cursor is in."""
    stream.write(f"\r{plain(line)}\x1b[K")
    stream.flush()
