"""What we print, made safe for a terminal: the one place that writes lines for people.

Names, arguments, exceptions and tracebacks are users' texts, and what is in Redis anybody may have
put there: printed as they are they could move the cursor, hide a line, or be taken for one of ours.
So what is not printable is written as Python writes it in a string: `\\x1b`, `\\n`, `\\u202e`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import TextIO


def plain(text: str) -> str:
    """Return a text as one line, without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(map(_plain, text))


def plain_lines(text: str) -> str:
    """Return a text whose line breaks are meant, such as a traceback."""
    return "\n".join(map(plain, text.split("\n")))


def write(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Write lines, to standard output as a rule; what its encoding has not is written in ASCII."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = "".join(f"{plain(line)}\n" for line in lines)
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def by_lines(stream: TextIO) -> None:
    """Have each line written when it ends, also into a pipe or a file.

    Python would keep some thousand bytes back there, and lose them with a process that is killed.
    """
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(line_buffering=True)


def redraw(line: str, stream: TextIO) -> None:
    """Write a line in the place of the one that the cursor is in."""
    stream.write(f"\r{plain(line)}\x1b[K")
    stream.flush()


def _plain(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return character.encode("unicode_escape").decode("ascii")
