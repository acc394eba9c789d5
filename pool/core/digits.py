"""Numbers as they stand in Redis, in ids and in names: a few ASCII digits, and nothing else.

`int()` takes many more forms, of any length, and `isdigit()` more characters.
"""

from __future__ import annotations

from typing import Final

DIGITS_MAX: Final = 16  # more is not exact in Lua; `lua/lib/record.lua` has it, too


def is_number(text: bytes | str, digits_max: int = DIGITS_MAX) -> bool:
    """Say whether a text is a number as the scripts take it."""
    return text.isdigit() and text.isascii() and len(text) <= digits_max


def number(text: bytes | str, digits_max: int = DIGITS_MAX) -> int:
    """Return it.

    Raises:
        ValueError: It is none.
    """
    # Spelled out: there are three for each job.
    if text.isdigit() and text.isascii() and len(text) <= digits_max:
        return int(text)
    raise ValueError(text[:digits_max])


def number_or(default: int, text: bytes | str | None, digits_max: int = DIGITS_MAX) -> int:
    """Likewise, and the default where it is none: another hand may write anywhere."""
    return int(text) if text is not None and is_number(text, digits_max) else default
