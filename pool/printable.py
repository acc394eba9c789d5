"""Texts of others, made safe to print: what is not printable is written as Python writes it.

Names, arguments, exceptions and tracebacks are users' texts.  Printed unchanged they could move the
cursor of a terminal, hide a line, or look like a line of ours.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """Return a text as one line, without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(map(_plain, text))


def plain_lines(text: str) -> str:
    """Return a text whose line breaks are meant, such as a traceback."""
    return "\n".join(map(plain, text.split("\n")))


def _plain(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return character.encode("unicode_escape").decode("ascii")
